"""Schematic drawings: blocks, matrices, arrows, who sees whom, arrows in the plane."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path

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
from tfbook.teaching.plotting._maps import DIVERGING, EDGE, MASKED

UNIT = 0.5  # inches
ACROSS = WIDTH / UNIT  # units from the left edge to the right one
# The same colours as the curves have, so that a thing keeps its colour from drawing to plot.
TONES = {
    "blue": "#0b62a4",
    "orange": "#c2480c",
    "green": "#007a63",
    "plum": "#9a3b86",
    "ochre": "#866200",
    "grey": "#59626d",
}
SIZES = {"small": 12, "normal": 12, "large": 14}


@dataclass(frozen=True)
class Place:
    """Where a part of a drawing stands: its corner at the top left and its size, in units."""

    x: float
    y: float
    width: float
    height: float
    n_rows: int = 1
    n_cols: int = 1

    @property
    def left(self) -> tuple[float, float]:
        """Middle of the left edge, where an arrow may end."""
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> tuple[float, float]:
        """Middle of the right edge."""
        return self.x + self.width, self.y + self.height / 2

    @property
    def top(self) -> tuple[float, float]:
        """Middle of the upper edge."""
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> tuple[float, float]:
        """Middle of the lower edge."""
        return self.x + self.width / 2, self.y + self.height

    def row(self, index: int) -> Place:
        """Return the place of a row of a matrix, counted from 0.

        Raises:
            ValueError: if there is no such row.
        """
        if not 0 <= index < self.n_rows:
            raise ValueError(f"index must be from 0 to {self.n_rows - 1}, got {index}")
        height = self.height / self.n_rows
        return Place(self.x, self.y + index * height, self.width, height, 1, self.n_cols)


class Drawing:
    """A sheet on which parts are drawn one by one, and which `show` displays.

    Places are given in units of half an inch from the top left corner; a sheet is 12.4 units wide,
    so that its words can be read on a phone. Colours are named: blue, orange, green, plum, ochre,
    grey.

        sheet = Drawing(height=3)
        x = sheet.block(1, 1, 2, 1, "x")
        y = sheet.block(6, 1, 2, 1, "y", tone="blue")
        sheet.arrow(x.right, y.left, "W")
        sheet.show(title="One map", alt="A block x, an arrow W, and a block y.")

    Args:
        height: height of the sheet in units.

    Raises:
        ValueError: if `height` is not positive.

    Explained in: chapters/02_attention, "The whole thing in one screen".
    """

    def __init__(self, height: float) -> None:
        if not height > 0:
            raise ValueError(f"height must be positive, got {height}")
        self.fig, self.ax = figure(size=(WIDTH, height * UNIT))
        self._height = height
        with style():
            self.fig.set_layout_engine("none")
            self.ax.set_axis_off()
            self.ax.set(xlim=(0, ACROSS), ylim=(height, 0), position=(0, 0, 1, 1))

    def text(
        self, x: float, y: float, words: str, *, tone: str | None = None, size: str = "normal",
        align: str = "center", bold: bool = False,
    ) -> None:  # fmt: skip
        """Write words at a place: centred on it, or to the right (left) of it.

        Raises:
            ValueError: if there is no such colour, size or alignment.
        """
        if size not in SIZES or align not in ("left", "center", "right"):
            raise ValueError(
                f"size must be one of {', '.join(SIZES)} and align left, center or right, "
                f"got {size!r} and {align!r}"
            )
        with style():
            self.ax.text(
                x, y, words, ha=align, va="center_baseline", color=tone_of(tone, INK),
                fontsize=SIZES[size], fontweight="bold" if bold else "normal", linespacing=1.25,
                zorder=5,
            )  # fmt: skip

    def block(
        self, x: float, y: float, width: float, height: float, words: str = "", *,
        shape: str | None = None, tone: str = "grey", filled: bool = True,
    ) -> Place:  # fmt: skip
        """Draw a block with rounded corners, its name inside and its shape below the name."""
        colour = tone_of(tone)
        with style():
            self.ax.add_patch(
                FancyBboxPatch(
                    (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.15", zorder=2,
                    facecolor=_pale(colour) if filled else "white", edgecolor=colour, linewidth=1.6,
                )  # fmt: skip
            )
        lines = [words, *([shape] if shape else [])]
        for i, line in enumerate(lines):
            at = y + height / 2 + (i - (len(lines) - 1) / 2) * 0.48
            self.text(x + width / 2, at, line, size="small" if i else "normal",
                      tone=None if i == 0 else "grey")  # fmt: skip
        return Place(x, y, width, height)

    def matrix(
        self, x: float, y: float, numbers, *, label: str | None = None, shape: str | None = None,
        rows: Sequence[str] | None = None, cols: Sequence[str] | None = None,
        focus: int | None = None, tone: str = "blue", digits: int = 1, cell: float = 0.8,
        tall: float = 0.62, written: bool = True, allowed=None, largest: float | None = None,
    ) -> Place:  # fmt: skip
        """Draw a matrix of numbers as cells, one row of it in the foreground.

        A cell is the stronger the larger its number; what is not `allowed` is grey and empty.

        Args:
            x: left edge of the cells, in units.
            y: upper edge of the cells.
            numbers: `(n, m)`, or `(m,)` for one row.
            label: name above the matrix, for instance "Q".
            shape: its shape, behind the name.
            rows: `n` labels to the left.
            cols: `m` labels above the columns; the name then stands higher.
            focus: row that is followed, counted from 0; the others fade.
            tone: colour of the frame.
            digits: decimals.
            cell: width of a cell.
            tall: its height.
            written: whether the numbers stand in the cells.
            allowed: boolean `(n, m)`, True = allowed.
            largest: what has the full strength of colour, and all beyond it, so that two matrices
                can be compared; by default the largest number of this one.

        Raises:
            TypeError: if `numbers` is not made of numbers.
            ValueError: if labels, focus or `allowed` do not fit, or a number is not finite, or
                `largest` is not above 0.
        """
        values = np.atleast_2d(array(numbers, "numbers"))
        if values.ndim != 2 or 0 in values.shape:
            raise ValueError(f"numbers must be (n, m) or (m,), got shape {np.shape(numbers)}")
        n, m = values.shape
        check_labels(rows, n, "rows")
        check_labels(cols, m, "cols")
        seen = np.ones((n, m), bool) if allowed is None else np.asarray(allowed, bool)
        if seen.shape != (n, m):
            raise ValueError(f"allowed must have shape {(n, m)}, got {seen.shape}")
        if not np.isfinite(values[seen]).all():
            raise ValueError("numbers must be finite where they are allowed, got nan or inf")
        place = Place(x, y, m * cell, n * tall, n, m)
        if focus is not None:
            place.row(focus)
        if largest is not None and not 0 < largest < math.inf:
            raise ValueError(f"largest must be a number above 0, got {largest!r}")
        largest = largest or np.abs(values[seen]).max(initial=0) or 1.0
        with style():  # once: it costs more than a cell
            for i, j in np.ndindex(n, m):
                self._cell(
                    (x + j * cell, y + i * tall, cell, tall),
                    float(np.clip(values[i, j] / largest, -1, 1)) if seen[i, j] else None,
                    number_text(values[i, j], digits) if written and seen[i, j] else "",
                    focus is not None and i != focus,
                )
        colour = tone_of(tone)
        with style():
            self.ax.add_patch(
                Rectangle((x, y), place.width, place.height, fill=False, edgecolor=colour,
                          linewidth=1.6, zorder=3)
            )  # fmt: skip
            if focus is not None:
                row = place.row(focus)
                self.ax.add_patch(
                    Rectangle((x, row.y), row.width, row.height, fill=False, edgecolor=colour,
                              linewidth=3, zorder=4)
                )  # fmt: skip
        self._labels(place, cell, rows, cols, focus)
        if label or shape:
            name = " ".join(part for part in (label, shape and f"({shape})") if part)
            self.text(place.top[0], y - (0.95 if cols else 0.4), name, tone=tone, bold=True)
        return place

    def _cell(self, box, strength, words, faded) -> None:
        x, y, width, height = box
        ground = MASKED if strength is None else DIVERGING(0.5 + 0.26 * strength)
        if faded and strength is not None:
            ground = tuple(0.35 * part + 0.65 for part in to_rgb(ground))
        self.ax.add_patch(
            Rectangle((x, y), width, height, facecolor=ground, edgecolor=EDGE, linewidth=0.8,
                      hatch="//" if strength is None else None, zorder=2)
        )  # fmt: skip
        if words:
            self.text(x + width / 2, y + height / 2, words, size="small",
                      tone="grey" if faded else None)  # fmt: skip

    def _labels(self, place, cell, rows, cols, focus) -> None:
        for i, word in enumerate(rows or ()):
            self.text(place.x - 0.15, place.row(i).left[1], word, align="right", size="small",
                      bold=i == focus, tone=None if focus in (None, i) else "grey")  # fmt: skip
        for j, word in enumerate(cols or ()):
            self.text(place.x + (j + 0.5) * cell, place.y - 0.3, word, size="small")

    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], words: str | None = None, *,
        tone: str = "grey", bend: float = 0.0, wide: float = 1.6, dashed: bool = False,
        above: float = 0.3,
    ) -> None:  # fmt: skip
        """Draw an arrow between two points, with words beside its middle.

        `bend` curves it (positive: to the right of its way); `wide` is the line's width in points;
        `above` says how many units over the middle the words stand.
        """
        colour = tone_of(tone)
        with style():
            self.ax.add_patch(
                FancyArrowPatch(
                    start, end, arrowstyle="-|>", mutation_scale=10 + 2.2 * wide, color=colour,
                    connectionstyle=f"arc3,rad={bend}", linewidth=wide, shrinkA=2, shrinkB=2,
                    linestyle="--" if dashed else "-", zorder=3,
                )  # fmt: skip
            )
        if words:
            middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 - above)
            self.text(*middle, words, tone=tone, size="small")

    def route(
        self, points: Sequence[tuple[float, float]], words: str | None = None, *,
        tone: str = "grey", wide: float = 1.6, above: float = 0.3,
    ) -> None:  # fmt: skip
        """Draw an arrow along straight lines, from point to point.

        Its words stand `above` units over the middle of its last line.

        Raises:
            ValueError: if there are fewer than two points.
        """
        if len(points) < 2:
            raise ValueError(f"points must be at least two, got {len(points)}")
        with style():
            self.ax.add_patch(
                FancyArrowPatch(
                    path=Path(points), arrowstyle="-|>", mutation_scale=10 + 2.2 * wide,
                    color=tone_of(tone), linewidth=wide, joinstyle="round", zorder=3,
                )  # fmt: skip
            )
        if words:
            (x, y), (right, low) = points[-2:]
            self.text((x + right) / 2, (y + low) / 2 - above, words, tone=tone, size="small")

    def plus(self, x: float, y: float, *, tone: str = "blue") -> Place:
        """Draw a plus sign in a circle, where something is added to a stream."""
        with style():
            self.ax.add_patch(
                Circle((x, y), 0.32, facecolor="white", edgecolor=tone_of(tone), lw=1.8, zorder=4)
            )
            for across, down in ((0.17, 0), (0, 0.17)):
                self.ax.plot([x - across, x + across], [y - down, y + down], color=tone_of(tone),
                             linewidth=2, linestyle="-", zorder=5)  # fmt: skip
        return Place(x - 0.32, y - 0.32, 0.64, 0.64)

    def bracket(
        self, x: float, top: float, bottom: float, words: str, *, opens: str = "right",
    ) -> None:  # fmt: skip
        """Draw a bracket from top to bottom around what repeats, with words on its other side.

        Raises:
            ValueError: if `opens` is neither right nor left.
        """
        if opens not in ("right", "left"):
            raise ValueError(f"opens must be right or left, got {opens!r}")
        side = 1 if opens == "right" else -1
        with style():
            self.ax.plot([x + 0.25 * side, x, x, x + 0.25 * side], [top, top, bottom, bottom],
                         color=SOFT_INK, linewidth=1.8, linestyle="-", zorder=2)  # fmt: skip
        self.text(x - 0.15 * side, (top + bottom) / 2, words, bold=True,
                  align="right" if side == 1 else "left")  # fmt: skip

    def stream(self, start: tuple[float, float], end: tuple[float, float], words: str = "", *,
               tone: str = "blue") -> None:  # fmt: skip
        """Draw a wide stream between two points, from which parts read and to which they add.

        What is drawn upon it covers it.
        """
        with style():
            self.ax.plot(*zip(start, end, strict=True), color=_pale(tone_of(tone), 0.3),
                         linewidth=13, solid_capstyle="butt", linestyle="-", zorder=1)  # fmt: skip
            self.ax.add_patch(
                FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=13, shrinkA=2,
                                color=tone_of(tone), linewidth=1.2, shrinkB=0, zorder=1.5)
            )  # fmt: skip
        if words:
            self.text(start[0], start[1] + 0.55, words, tone=tone, size="small")

    def plane(
        self, x: float, y: float, side: float, vectors: Mapping[str, Sequence[float]], *,
        limit: float, tones: Mapping[str, str] | None = None, ticks: bool = False,
    ) -> Place:  # fmt: skip
        """Draw vectors of two numbers as arrows from the middle of a square.

        Args:
            x: left edge of the square, in units.
            y: upper edge.
            side: its side.
            vectors: label → two numbers.
            limit: the number that lies on the edge of the square.
            tones: label → colour; grey without.
            ticks: write `limit` at the ends of the axes.

        Raises:
            ValueError: if a vector is not two numbers within the square, or `limit` not positive.
        """
        if not limit > 0:
            raise ValueError(f"limit must be positive, got {limit}")
        middle, per = (x + side / 2, y + side / 2), side / 2 / limit
        with style():
            self.ax.add_patch(
                Rectangle((x, y), side, side, facecolor="white", edgecolor=EDGE, linewidth=1)
            )
            self.ax.plot([x, x + side], [middle[1]] * 2, color=EDGE, linewidth=1, linestyle="-")
            self.ax.plot([middle[0]] * 2, [y, y + side], color=EDGE, linewidth=1, linestyle="-")
        for label, vector in vectors.items():
            a, b = array(vector, f"vectors[{label!r}]", ndim=1).tolist() + [np.nan] * (
                2 - len(vector)
            )
            if len(vector) != 2 or not (abs(a) <= limit and abs(b) <= limit):
                raise ValueError(
                    f"vectors[{label!r}] must be two numbers of at most {limit:g}, got {vector}"
                )
            tone = (tones or {}).get(label, "grey")
            end = (middle[0] + a * per, middle[1] - b * per)
            self.arrow(middle, end, tone=tone, wide=2.2)
            away = np.array([a, -b]) / (np.hypot(a, b) or 1)
            self.text(end[0] + 0.45 * away[0] + 0.1, end[1] + 0.38 * away[1], label, tone=tone,
                      size="small", bold=True)  # fmt: skip
        if ticks:
            self.text(x + side, middle[1] + 0.28, f"{limit:g}", size="small", tone="grey",
                      align="right")  # fmt: skip
            self.text(middle[0] + 0.1, y + 0.3, f"{limit:g}", size="small", tone="grey",
                      align="left")  # fmt: skip
        return Place(x, y, side, side)

    def show(self, *, title: str, alt: str) -> None:
        """Display the drawing under a title that says what to see.

        Raises:
            TypeError: if `alt` is not a text.
            ValueError: if `title` or `alt` says nothing.
        """
        with style():
            write_title(self.fig, title)
            words = self.fig._suptitle
            above = 0.28 * len(words.get_text().split("\n")) + 0.1  # inches
            whole = self._height * UNIT + above
            self.fig.set_size_inches(WIDTH, whole)
            self.ax.set_position((0, 0, 1, 1 - above / whole))
            words.set(x=0, y=1, va="top")
        show(self.fig, alt=alt, title=title, kind="drawing")


def who_sees_whom(
    allowed, *, rows: Sequence[str], cols: Sequence[str], title: str, alt: str,
    focus: int | None = None, xlabel: str = "is read (key)", ylabel: str = "reads (query)",
) -> None:  # fmt: skip
    """Display a mask as a grid: a dot where the row may read the column, grey hatching elsewhere.

    Args:
        allowed: boolean `(n, m)`, True = allowed.
        rows: `n` labels of those that read.
        cols: `m` labels of those that are read.
        title: what to see, in one sentence.
        alt: the same for a reader who cannot see it.
        focus: row that is followed, counted from 0.
        xlabel: what a column is.
        ylabel: what a row is.

    Raises:
        ValueError: if the labels or `focus` do not fit, or a text says nothing.

    Explained in: chapters/02_attention, "Masks: who may look at whom".
    """
    seen = np.asarray(array(allowed, "allowed", ndim=2), bool)
    n, m = seen.shape
    check_labels(rows, n, "rows")
    check_labels(cols, m, "cols")
    side = min(1.4, 9.2 / m)
    left = (ACROSS - m * side) / 2 + 0.8
    sheet = Drawing(n * 0.62 + 1.4)
    place = sheet.matrix(
        left, 1.3, seen.astype(float), rows=rows, cols=cols, focus=focus, cell=side,
        written=False, allowed=seen,
    )  # fmt: skip
    for i, j in zip(*np.nonzero(seen), strict=True):
        sheet.text(left + (j + 0.5) * side, place.row(int(i)).left[1], "●", size="small")
    sheet.text(place.top[0], 0.45, f"{xlabel} →", tone="grey", size="small")
    sheet.text(left - 0.15, 0.45, f"{ylabel} ↓", tone="grey", size="small", align="right")
    sheet.show(title=title, alt=alt)


def tone_of(name: str | None, default: str = SOFT_INK) -> str:
    """Return a named colour, or the default without a name."""
    if name is None:
        return default
    if name not in TONES:
        raise ValueError(f"tone must be one of {', '.join(TONES)}, got {name!r}")
    return TONES[name]


def _pale(colour: str, strength: float = 0.14) -> tuple[float, ...]:
    return tuple(1 - strength * (1 - part) for part in to_rgb(colour))
