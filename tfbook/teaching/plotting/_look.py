"""The look of all pictures, and how one reaches the page: style, figure, show."""

import io
import os
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

STYLE_SHEET = Path(__file__).with_name("tfbook.mplstyle")
MAX_BYTES = 150_000
QUALITIES = ((200, 256), (200, 64), (150, 64), (110, 32))  # dots per inch, colours
SKETCH = ((40, 256),)  # where TFBOOK_SKETCH is set: the tests run chapters, and look at no picture
MIN_ALT = 25
PLACEHOLDERS = ("plot", "figure", "image", "picture", "chart", "graph", "heatmap", "output")
WIDTH = 6.2  # inches; at 390 px the text of a wider picture would be too small to read

INK = "#1a1d21"
SOFT_INK = "#59626d"


@contextmanager
def style():
    """Apply the book's matplotlib style sheet inside a `with` block, and nothing outside it."""
    # Tick formats and fonts must not depend on the reader's own matplotlibrc.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.style.use(STYLE_SHEET)
        yield


def figure(n_rows: int = 1, n_cols: int = 1, *, size: tuple[float, float] | None = None):
    """Return `(fig, axes)` in the book's style, to draw on and hand to `show`.

    `size` is (width, height) in inches; the default width suits a phone. The figure belongs to
    no window and no `pyplot` state, so nothing has to be closed.

    Raises:
        ValueError: if `n_rows` or `n_cols` is below 1, or `size` is not positive.
    """
    if n_rows < 1 or n_cols < 1:
        raise ValueError(f"n_rows and n_cols must be at least 1, got {n_rows} and {n_cols}")
    size = size or (WIDTH, 3.6 * n_rows)
    if len(size) != 2 or min(size) <= 0:
        raise ValueError(f"size must be two positive numbers of inches, got {size}")
    with style():
        fig = Figure(figsize=size)
        FigureCanvasAgg(fig)
        axes = fig.subplots(n_rows, n_cols)
    return fig, axes


def show(fig: Figure, *, alt: str, title: str | None = None, kind: str = "plot") -> None:
    """Display a figure as one small PNG with its text alternative, and close it.

    The picture has a white ground and at most 256 colours, and is at most 150 KB; the alternative
    text, the width and the size of the smallest text travel in the output's metadata. `title`
    defaults to the title drawn in the figure; `kind` says whether numbers were plotted ("plot") or
    the picture is a scheme ("drawing").

    Raises:
        TypeError: if `fig` is not a matplotlib figure.
        ValueError: if `alt` or `title` is missing or a placeholder, `kind` is another word, or the
            PNG stays too large.
    """
    if kind not in ("plot", "drawing"):
        raise ValueError(f"kind must be 'plot' or 'drawing', got {kind!r}")
    if not isinstance(fig, Figure):
        raise TypeError(f"fig must be a matplotlib Figure, got {type(fig).__name__}")
    alt = checked_alt(alt)
    title = _drawn_title(fig) if title is None else title
    if not isinstance(title, str) or not title.strip():
        raise ValueError("title must be a sentence that says what to see, got none")
    png, width = _png(fig)
    marks = {"alt": alt, "width": width, "text": smallest_text(fig)}
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(fig)
    title = " ".join(title.split())
    stop = "" if title.endswith((".", "?", "!")) else "."
    from IPython.display import display

    display(
        {"image/png": png, "text/plain": f"Figure: {title}{stop} {alt}"},
        metadata={"image/png": marks | ({"kind": kind} if kind != "plot" else {})},
        raw=True,
    )


def smallest_text(fig: Figure) -> float:
    """Return the size in points of the smallest text that a drawn figure shows.

    Raised and lowered signs within a formula count as the formula.
    """
    texts = (text for text in fig.findobj(Text) if text.get_visible() and text.get_text().strip())
    return round(min((text.get_fontsize() for text in texts), default=12.0), 2)


def checked_alt(alt) -> str:
    """Return the alternative text on one line, or refuse it."""
    if not isinstance(alt, str):
        raise TypeError(
            f"alt must be a string that describes the picture, got {type(alt).__name__}"
        )
    alt = " ".join(alt.split())
    words = alt.lower().rstrip(".").split()
    if len(alt) < MIN_ALT or (len(words) < 4 and any(w in PLACEHOLDERS for w in words)):
        raise ValueError(
            f"alt must say in at least {MIN_ALT} characters what the picture shows, got {alt!r}"
        )
    return alt


def _drawn_title(fig: Figure) -> str | None:
    if fig.get_suptitle():
        return fig.get_suptitle()
    titles = (ax.get_title(loc) for ax in fig.axes for loc in ("left", "center", "right"))
    return next((t for t in titles if t), None)


def _png(fig: Figure) -> tuple[bytes, int]:
    from PIL import Image

    for dpi, colors in SKETCH if os.environ.get("TFBOOK_SKETCH") else QUALITIES:
        raw = io.BytesIO()
        with style():
            # A figure made by pyplot keeps its own canvas; this one draws it without a window.
            canvas, fig_canvas = FigureCanvasAgg(fig), fig.canvas
            fast = {"compress_level": 0}  # it is read again at once
            canvas.figure.savefig(
                raw, format="png", dpi=dpi, bbox_inches="tight", pad_inches=0.12, pil_kwargs=fast
            )
            fig.set_canvas(fig_canvas)
        picture = Image.open(raw).convert("RGB")
        small = picture.quantize(colors, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        out = io.BytesIO()
        small.save(out, format="PNG", optimize=True)
        if len(out.getvalue()) <= MAX_BYTES:
            return out.getvalue(), round(picture.width * 100 / dpi)
    raise ValueError(
        f"the figure must fit in {MAX_BYTES} bytes, got {len(out.getvalue())}: draw fewer points"
    )


def write_title(fig: Figure, title: str) -> None:
    """Write the title at the top left, in lines that fit."""
    if not isinstance(title, str) or not title.strip():
        raise ValueError("title must be a sentence that says what to see, got none")
    size = matplotlib.rcParams["axes.titlesize"]
    wrapped = textwrap.fill(title, 54)
    fig.suptitle(wrapped, x=0.02, ha="left", fontsize=size, fontweight="bold", linespacing=1.25)


def array(numbers, name: str, ndim: int | None = None) -> np.ndarray:
    """Return numbers (a list, an array, a tensor of any float type) as a float64 array."""
    if hasattr(numbers, "detach"):
        # bfloat16 has no numpy type; double holds every value of every float type exactly.
        numbers = numbers.detach().cpu().double().numpy()
    try:
        array = np.asarray(numbers, dtype=float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers, got {type(numbers).__name__}") from error
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    return array


def check_labels(labels, size: int, name: str) -> None:
    """Refuse labels that are not one for each of `size` things."""
    if labels is not None and len(labels) != size:
        raise ValueError(f"{name} must have {size} entries, got {len(labels)}")


def number_text(value: float, digits: int) -> str:
    """Return a number as text, with a true minus sign and no sign on a rounded zero."""
    text = f"{value:.{digits}f}"
    # A rounded zero has no sign, and a true minus sign is as wide as a digit.
    return (text.lstrip("-") if float(text) == 0 else text).replace("-", "−")
