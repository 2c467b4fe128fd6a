"""Pictures of matrices and tensors as coloured cells."""

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from tfbook.teaching.plotting._look import (
    INK,
    SOFT_INK,
    WIDTH,
    array,
    check_labels,
    figure,
    number_text,
    show,
    style,
    write_title,
)

# Low is white and high is dark: the dark theme inverts the picture, and then low is the ground
# again and high stands out. Both maps go through the same lightness steps on each side.
SEQUENTIAL = LinearSegmentedColormap.from_list(
    "tfbook_sequential", ["#ffffff", "#d5e6f3", "#8dbfe0", "#3a8bc4", "#0b5a9c", "#072f5f"]
)
DIVERGING = LinearSegmentedColormap.from_list(
    "tfbook_diverging",
    [
        "#6d2604",
        "#b8470f",
        "#e98a55",
        "#f8d3bd",
        "#ffffff",
        "#c5dff0",
        "#62a5d3",
        "#0b62a4",
        "#063763",
    ],
)
MASKED = "#eceef1"
EDGE = "#cfd4da"


def heatmap(
    matrix,
    *,
    title: str,
    alt: str,
    rows: Sequence[str] | None = None,
    cols: Sequence[str] | None = None,
    xlabel: str | None = "key",
    ylabel: str | None = "query",
    values: bool | None = None,
    digits: int = 2,
    mask=None,
    limits: tuple[float, float] | None = None,
    columns: int = 2,
    colorbar: bool | None = None,
) -> None:
    r"""Display a matrix as coloured cells; cells that a mask forbids are grey and hatched.

    Numbers from 0 up go from white to dark blue; if any number is negative the map is symmetric
    around zero, with white at zero. `matrix` may be a dict of label → matrix: then the panels
    share one colour scale and stand in `columns` columns.

    Args:
        matrix: Numbers `(n, m)`, or a dict of them with equal shapes.
        title: What to see, in one sentence.
        alt: The same for a reader who cannot see it, at least 25 characters.
        rows: `n` row labels, for instance the tokens.
        cols: `m` column labels.
        xlabel: What a column is; `None` for no label.
        ylabel: What a row is; `None` for no label.
        values: Write the number into each cell; by default when there are at most 8 columns.
        digits: Decimals of those numbers.
        mask: Boolean `(n, m)`, True = allowed; or a dict of masks with the labels of `matrix`.
        limits: Smallest and largest number of the colour scale.
        columns: Number of columns of panels.
        colorbar: Draw the colour scale; by default when the cells carry no numbers.

    Raises:
        TypeError: if an argument is not made of numbers.
        ValueError: if shapes, labels or limits do not fit, or a cell that is shown is not finite.
    """
    panels = matrix if isinstance(matrix, Mapping) else {"": matrix}
    if not panels:
        raise ValueError("matrix must hold at least one panel, got an empty dict")
    arrays = {k: array(v, f"matrix {k}".strip(), ndim=2) for k, v in panels.items()}
    shapes = {a.shape for a in arrays.values()}
    if len(shapes) > 1 or 0 in next(iter(shapes)):
        raise ValueError(
            f"matrix must have one non-empty shape for all panels, got {sorted(shapes)}"
        )
    n, m = shapes.pop()
    check_labels(rows, n, "rows")
    check_labels(cols, m, "cols")
    masks = {k: _mask(mask, k, (n, m)) for k in arrays}
    shown = np.concatenate([a[masks[k]] for k, a in arrays.items()])
    if not np.isfinite(shown).all():
        raise ValueError("matrix must be finite where mask allows it, got nan or inf")
    low, high, cmap = _scale(shown, limits)

    n_cols = min(columns, len(arrays))
    n_rows = math.ceil(len(arrays) / n_cols)
    values = (m * n_cols <= 8) if values is None else values
    colorbar = (not values) if colorbar is None else colorbar
    alone = len(arrays) == 1
    cell = min(0.78 if values else 0.62, (WIDTH - 1.5) / (m * n_cols))
    # Between rows of panels there is an axis label as well as a panel title.
    between = 1.0 if n_rows == 1 else 1.3
    height = n_rows * (max(n * (min(cell, 0.56) if values else cell), 0.9) + between) + 0.55
    fig, axes = figure(n_rows, n_cols, size=(WIDTH, min(height, 8.0)))
    axes = np.atleast_1d(axes).ravel()
    with style():
        for ax, (label, a) in zip(axes, arrays.items(), strict=False):
            allowed = masks[label]
            drawn = np.where(allowed, a, np.nan)
            # Grey edges: a white cell must still be seen as a cell.
            edge = 0.7 if max(n, m) <= 40 else 0
            picture = ax.pcolormesh(drawn, cmap=cmap, vmin=low, vmax=high, ec=EDGE, lw=edge)
            for i, j in np.argwhere(~allowed):
                ax.add_patch(Rectangle((j, i), 1, 1, fc=MASKED, ec="#b4bac2", hatch="////", lw=0))
                ax.add_patch(Rectangle((j, i), 1, 1, fill=False, ec=EDGE, lw=edge))
            if values:
                for i, j in np.argwhere(allowed):
                    shade = _luminance(cmap((a[i, j] - low) / (high - low)))
                    words = number_text(a[i, j], digits)
                    if m * n_cols > 8:  # narrow cells: .25 for 0.25
                        words = re.sub(r"^([-−]?)0\.", r"\1.", words)
                    ax.text(
                        j + 0.5, i + 0.5, words, ha="center", va="center", fontsize=12,
                        color="white" if shade < 0.3 else INK,
                    )  # fmt: skip
            ax.set_aspect("auto" if values else "equal")
            ax.invert_yaxis()
            ax.grid(False)
            ax.spines[:].set_visible(False)
            _token_ticks(ax, rows, cols, n, m, n_cols)
            ax.set_xlabel(xlabel or "")
            ax.set_ylabel((ylabel or "") if alone or ax in axes[::n_cols] else "")
            if label:
                ax.set_title(label, fontsize=12.5, fontweight="normal", pad=8)
        for ax in axes[len(arrays) :]:
            ax.set_visible(False)
        if colorbar:
            bar = fig.colorbar(picture, ax=list(axes), fraction=0.05, pad=0.03, aspect=24)
            bar.outline.set_visible(False)
        write_title(fig, title)
    show(fig, alt=alt, title=title)


def tensor_picture(
    tensor,
    *,
    title: str,
    alt: str,
    names: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    cols: Sequence[str] | None = None,
    values: bool | None = None,
    digits: int = 1,
) -> None:
    """Display a tensor of one to three dimensions as sheets of cells, with its shape written out.

    The last dimension runs to the right, the one before downward, and the first of three stands
    as sheets behind each other, of which the front one shows its numbers.

    Args:
        tensor: Numbers `(n,)`, `(n, m)` or `(b, n, m)`; at most 8 sheets, 12 rows and 16 columns.
        title: What to see, in one sentence.
        alt: The same for a reader who cannot see it, at least 25 characters.
        names: One name for each dimension, for instance `("batch", "tokens", "d_model")`.
        rows: Labels of the rows, for instance the tokens.
        cols: Labels of the columns.
        values: Write the numbers into the front sheet; by default when there are at most 8 columns.
        digits: Decimals of those numbers.

    Raises:
        TypeError: if `tensor` is not made of numbers.
        ValueError: if it has another rank, is too large to draw, is not finite, or names don't fit.
    """
    a = array(tensor, "tensor")
    if a.ndim not in (1, 2, 3) or 0 in a.shape:
        raise ValueError(f"tensor must have one to three dimensions of size ≥ 1, got {a.shape}")
    if not np.isfinite(a).all():
        raise ValueError("tensor must be finite, got nan or inf")
    names = list(names) if names is not None else [f"dim {i}" for i in range(a.ndim)]
    check_labels(names, a.ndim, "names")
    shape = a.shape
    sheets = a.reshape((1,) * (3 - a.ndim) + shape)
    depth, n, m = sheets.shape
    if depth > 8 or n > 12 or m > 16:
        raise ValueError(f"tensor must be at most (8, 12, 16) to be drawn, got {shape}")
    check_labels(rows, n, "rows")
    check_labels(cols, m, "cols")
    values = m <= 8 if values is None else values
    low, high, cmap = _scale(a, None)
    step = 0.32
    back = (depth - 1) * step
    left = 0.35 + (max((len(str(r)) for r in rows), default=0) * 0.13 + 0.2 if rows else 0)
    unit = (WIDTH - 0.6) / (m * 1.15 + back + left + 1.3)
    size = (WIDTH, min(8.0, (n + back + 1.1 + (0.7 if cols else 0)) * min(unit, 0.62) + 0.8))
    fig, ax = figure(size=size)
    with style():
        for s in reversed(range(depth)):
            dx, dy = s * step * 1.15, -s * step
            for i in range(n):
                for j in range(m):
                    color = cmap((sheets[s, i, j] - low) / (high - low))
                    at = (j * 1.15 + dx, i + dy)
                    ax.add_patch(Rectangle(at, 1.15, 1, fc=color, ec="#8b929b", lw=0.9))
                    if values and s == 0:
                        ax.text(
                            at[0] + 0.575, at[1] + 0.5, number_text(sheets[s, i, j], digits),
                            ha="center", va="center", fontsize=12,
                            color="white" if _luminance(color) < 0.3 else INK,
                        )  # fmt: skip
        arrow = {"arrowstyle": "<->", "color": SOFT_INK, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
        bottom = n + 0.35

        def measure(start, end, text, at, **kw):
            ax.annotate("", end, start, arrowprops=arrow)
            ax.text(*at, text, color=SOFT_INK, fontsize=12, **kw)

        sized = [f"{name} = {size}" for name, size in zip(names, shape, strict=True)]
        wide = m * 1.15
        measure(
            (0, bottom), (wide, bottom), sized[-1], (wide / 2, bottom + 0.15), ha="center", va="top"
        )
        right = wide + back * 1.15 + 0.3
        if a.ndim > 1:
            measure(
                (right, -back), (right, n - back), sized[-2], (right + 0.15, n / 2 - back),
                rotation=90, va="center",
            )  # fmt: skip
        if a.ndim > 2:
            # Along the corner where the sheets stand out, below right.
            measure(
                (wide + 0.25, n), (wide + back * 1.15 + 0.25, n - back), sized[0],
                (wide + back * 0.6 + 0.3, n - back * 0.5 + 0.35), va="top",
            )  # fmt: skip
        for i, label in enumerate(rows or ()):
            ax.text(-0.2, i + 0.5, label, ha="right", va="center", fontsize=12)
        for j, label in enumerate(cols or ()):
            ax.text(j * 1.15 + 0.575, -back - 0.2, label, ha="center", va="bottom", fontsize=12)
        ax.set_xlim(-left, right + 1.0)
        ax.set_ylim(bottom + 0.7, -back - (0.75 if cols else 0.15))
        ax.axis("off")
        write_title(fig, f"{title}")
    show(fig, alt=alt, title=title)


def _mask(mask, label: str, shape: tuple[int, int]) -> np.ndarray:
    mask = mask.get(label) if isinstance(mask, Mapping) else mask
    if mask is None:
        return np.ones(shape, dtype=bool)
    if hasattr(mask, "detach"):
        mask = mask.detach().cpu().numpy()
    mask = np.asarray(mask)
    if mask.dtype != bool:
        raise TypeError(f"mask must be boolean, True = allowed, got {mask.dtype}")
    try:
        return np.broadcast_to(mask, shape)
    except ValueError as error:
        raise ValueError(f"mask must broadcast to {shape}, got {mask.shape}") from error


def _scale(shown: np.ndarray, limits):
    if limits is not None:
        low, high = map(float, limits)
        if not low < high:
            raise ValueError(f"limits must be (low, high) with low < high, got {limits}")
    elif shown.size and shown.min() < 0:
        high = float(np.abs(shown).max())
        low = -high
    else:
        low, high = 0.0, float(shown.max()) if shown.size else 1.0
    if low == high:
        high = low + 1.0
    return low, high, DIVERGING if low < 0 else SEQUENTIAL


def _luminance(rgba) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgba[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _token_ticks(ax, rows, cols, n: int, m: int, n_cols: int) -> None:
    for labels, size, axis in ((rows, n, ax.yaxis), (cols, m, ax.xaxis)):
        if labels is not None:
            axis.set_ticks(np.arange(size) + 0.5, [str(label) for label in labels])
        elif size <= 12:
            axis.set_ticks(np.arange(size) + 0.5, range(size))
        else:
            ticks = MaxNLocator(6, integer=True).tick_values(0, size - 1)
            ticks = [int(t) for t in ticks if 0 <= t < size]
            axis.set_ticks(np.array(ticks) + 0.5, ticks)
    if cols is not None and sum(len(str(c)) + 2 for c in cols) * n_cols > 46:
        ax.tick_params(axis="x", rotation=45)
        for text in ax.get_xticklabels():
            text.set_ha("right")
            text.set_rotation_mode("anchor")
