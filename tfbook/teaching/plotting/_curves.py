"""Lines and bars."""

import itertools
import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tfbook.teaching.plotting._drawing import tone_of
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

ACROSS = 48  # characters of a legend that stand in one row above the axes


def lines(
    x,
    series: Mapping[str, Sequence[float]],
    *,
    title: str,
    alt: str,
    xlabel: str,
    ylabel: str,
    xlog: bool = False,
    xticks: Sequence[float] | None = None,
    ylog: bool = False,
    markers: bool | None = None,
    bands: Mapping[str, tuple] | None = None,
    levels: Mapping[str, float] | None = None,
    points: Mapping[str, tuple] | None = None,
    marks: Mapping[str, float] | None = None,
    ylim: tuple[float, float] | None = None,
    ends: Mapping[str, str | None] | bool = False,
    muted: Sequence[str] = (),
) -> None:
    """Display one curve for each entry of `series` over the common `x`.

    With `ends` there is no legend: each curve has its name at its end, in its own colour.

    Args:
        x: Numbers `(n,)`; or a dict with the labels of `series`, one `x` for each.
        series: Label → numbers `(n,)`; nan leaves a gap.
        title: What to see, in one sentence.
        alt: The same for a reader who cannot see it, at least 25 characters.
        xlabel: What x is, with its unit.
        ylabel: What y is, with its unit.
        xlog: Logarithmic x; powers of two get ticks of their own.
        xticks: Where x has its numbers, instead of where they are put by default.
        ylog: Logarithmic y.
        markers: Mark the points; by default when there are at most 16.
        bands: Label → (low, high): a shaded band around the curve of that label.
        levels: Label → y: a thin dotted line across the picture, for a law or a bound.
        points: Label → (x, y): observations, drawn as grey dots without a line; a single one as a
            diamond, which beside named ends has its name.
        marks: Label → x: a dashed line from bottom to top, for a place where something changes.
        ylim: Smallest and largest y.
        ends: True; or label of a curve or of points → name of its colour (as in a `Drawing`), None
            for the next one of the cycle. A label may have several lines.
        muted: Labels of curves that are drawn thin, and named in thin letters: what the new one is
            seen with.

    Raises:
        TypeError: if an argument is not made of numbers.
        ValueError: if lengths differ, a label or a colour is unknown, or an axis label is missing.
    """
    axis_names(xlabel, ylabel)
    if not isinstance(series, Mapping) or not series:
        raise ValueError("series must be a dict of label → numbers with at least one entry")
    xs = {k: array(x[k] if isinstance(x, Mapping) else x, "x", ndim=1) for k in series}
    ys = {k: array(v, f"series[{k!r}]", ndim=1) for k, v in series.items()}
    for k, y in ys.items():
        if y.shape != xs[k].shape:
            raise ValueError(
                f"series[{k!r}] must have the length of x, got {y.shape} and {xs[k].shape}"
            )
    if unknown := set(bands or {}) - set(ys):
        raise ValueError(f"bands must use labels of series, got {sorted(unknown)}")
    if ends is True:
        ends = dict.fromkeys(ys)
    if unknown := (set(ends or ()) - set(ys) - set(points or ())) | (set(muted) - set(ys)):
        raise ValueError(f"ends and muted must use labels of series, got {sorted(unknown)}")
    fig, ax = figure()
    with style():
        for (k, y), mark in zip(ys.items(), "osD^vP" * (1 + len(ys) // 6), strict=False):
            few = len(y) <= 16 if markers is None else markers
            (line,) = ax.plot(xs[k], y, label=k, marker=mark if few else "", mec="white", mew=1)
            if ends:
                line.set(linestyle="-", marker="o" if few else "")
            if (ends or {}).get(k):
                line.set_color(tone_of(ends[k]))
            if k in muted:
                line.set(linewidth=1.5, marker="", linestyle="-")
            if k in (bands or {}):
                low, high = (array(b, f"bands[{k!r}]", ndim=1) for b in bands[k])
                ax.fill_between(xs[k], low, high, color=line.get_color(), alpha=0.16, lw=0)
        for k, (px, py) in (points or {}).items():
            px, py = array(px, f"points[{k!r}]", ndim=1), array(py, f"points[{k!r}]", ndim=1)
            if px.shape != py.shape:
                raise ValueError(
                    f"points[{k!r}] must have as many x as y, got {px.shape} and {py.shape}"
                )
            alone = len(px) == 1
            mark = {"marker": "D" if alone else "o", "ms": 7 if alone else 4.5}
            ax.plot(px, py, ls="", color=SOFT_INK, label=k, zorder=4 if alone else 1, **mark)
            if alone and ends and k not in ends:
                ax.annotate(k, (px[0], py[0]), (7, 5), textcoords="offset points", fontsize=12,
                            color=SOFT_INK)  # fmt: skip
        for k, level in (levels or {}).items():
            ax.axhline(level, color=SOFT_INK, lw=1.4, ls=(0, (1, 2)), label=k)
        for k, at in (marks or {}).items():
            ax.axvline(at, color=SOFT_INK, lw=1.4, ls=(0, (5, 3)), label=k, zorder=1)
        every_x = np.concatenate(list(xs.values()))
        if xlog:
            _log_axis(ax, every_x)
        elif np.array_equal(every_x, np.round(every_x)):
            # Counts: there is no word two and a half.
            ax.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        if xticks is not None:
            ax.set_xticks(xticks, [f"{t:g}" for t in xticks])
            ax.minorticks_off()
        if ylog:
            ax.set_yscale("log")
            low, high = ax.get_ylim()
            if high < 10 * low:  # 1.8 and not 1.8 × 10⁰
                for which in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
                    which(FuncFormatter(lambda y, _: f"{y:g}"))
        if ylim is not None:
            ax.set_ylim(*ylim)
        ax.set_xlabel(xlabel)
        ax.set_ylabel(ylabel)
        if ends:
            _name_ends(ax, ends, muted, levels or {}, marks or {})
        elif len(ys) + len(levels or {}) + len(points or {}) + len(marks or {}) > 1:
            # Nobody looks for an empty corner between the lines across; above there is room.
            above = {"loc": "lower left", "bbox_to_anchor": (0, 1.02), "ncols": 3}
            ax.legend(**(above | {"borderaxespad": 0} if marks else {"loc": "best"}))
        write_title(fig, title)
    show(fig, alt=alt, title=title)


def spreads(
    values: Mapping[str, Sequence[float]],
    *,
    title: str,
    alt: str,
    xlabel: str,
    xticks: Sequence[float] | None = None,
    notes: Mapping[str, str] | None = None,
    noted: str | None = None,
    level: str | None = None,
    digits: int = 2,
) -> None:
    """Display a row for each label: a dot for each run, and their mean with its number.

    Args:
        values: Label → numbers of the runs, at least one.
        title: What to see, in one sentence.
        alt: The same for a reader who cannot see it, at least 25 characters.
        xlabel: What is measured, with its unit.
        xticks: Where x has its numbers, instead of where they are put by default.
        notes: Label → a few characters that stand at the right of its row.
        noted: What they are, above them.
        level: Label whose mean is drawn as a line across all rows.
        digits: Decimals of the means.

    Raises:
        TypeError: if an argument is not made of numbers.
        ValueError: if there is nothing to draw, or `notes` or `level` name another label.
    """
    axis_names(xlabel)
    runs = {k: array(v, f"values[{k!r}]", ndim=1) for k, v in values.items()}
    if not runs or not all(len(v) and np.isfinite(v).all() for v in runs.values()):
        raise ValueError("values must have finite numbers for each of at least one label")
    if unknown := {*(notes or {}), *([level] if level else [])} - set(runs):
        raise ValueError(f"notes and level must use labels of values, got {sorted(unknown)}")
    fig, ax = figure(size=(WIDTH, 1.5 + 0.46 * len(runs)))
    with style():
        if level:
            ax.axvline(runs[level].mean(), color=SOFT_INK, lw=1.4, ls=(0, (1, 2)), zorder=1)
        for row, (label, run) in enumerate(runs.items()):
            ax.plot([run.min(), run.max()], [row, row], color="#0b62a4", lw=7, alpha=0.25, ls="-")
            ax.plot(run, [row] * len(run), ls="", marker="o", ms=4, color="#0b62a4", alpha=0.6)
            ax.plot(run.mean(), row, marker="|", ms=19, mew=3, color=INK)
            words = number_text(run.mean(), digits)
            ax.annotate(words, (run.max(), row), (9, 0), textcoords="offset points", va="center",
                        bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip
            if note := (notes or {}).get(label):
                ax.text(1.23, row, note, transform=ax.get_yaxis_transform(), ha="right",
                        va="center", color=SOFT_INK)  # fmt: skip
        if noted:
            ax.text(1.23, -0.75, noted, transform=ax.get_yaxis_transform(), ha="right",
                    va="bottom", color=SOFT_INK)  # fmt: skip
        ax.set(yticks=range(len(runs)), yticklabels=list(runs), xlabel=xlabel)
        ax.set_ylim(len(runs) - 0.4, -0.6)
        ax.grid(False, axis="y")
        every = np.concatenate(list(runs.values()))
        room = np.ptp(every) or 1.0
        ax.set_xlim(every.min() - 0.08 * room, every.max() + 0.3 * room)  # a number on the right
        if xticks is not None:
            ax.set_xticks(xticks, [f"{t:g}" for t in xticks])
        write_title(fig, title)
    show(fig, alt=alt, title=title)


def bars(
    heights,
    *,
    title: str,
    alt: str,
    labels: Sequence[str] | None = None,
    xlabel: str | None = None,
    ylabel: str,
    values: bool = True,
    digits: int = 2,
    horizontal: bool | None = None,
    levels: Mapping[str, float] | None = None,
) -> None:
    """Display bars with their numbers: one group of bars, or several side by side.

    Args:
        heights: A dict of label → number; numbers `(n,)` with `labels`; or a dict of
            group → numbers `(n,)` with `labels`, drawn side by side with a legend.
        title: What to see, in one sentence.
        alt: The same for a reader who cannot see it, at least 25 characters.
        labels: `n` labels, needed unless `heights` is a dict of single numbers.
        xlabel: What a bar stands for.
        ylabel: What is measured, with its unit.
        values: Write the number at the end of each bar.
        digits: Decimals of those numbers.
        horizontal: Let the bars lie; by default when the labels are long.
        levels: Label → height: a thin dotted line across all bars, for a law or a bound.

    Raises:
        TypeError: if an argument is not made of numbers.
        ValueError: if labels do not fit, or a height is not finite.
    """
    axis_names(ylabel)
    if isinstance(heights, Mapping) and labels is None:
        labels, groups = list(heights), {"": array(list(heights.values()), "heights", ndim=1)}
    elif isinstance(heights, Mapping):
        groups = {k: array(v, f"heights[{k!r}]", ndim=1) for k, v in heights.items()}
    else:
        groups = {"": array(heights, "heights", ndim=1)}
    sizes = {len(g) for g in groups.values()}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(f"heights must be groups of one non-zero length, got {sorted(sizes)}")
    n = sizes.pop()
    if labels is None:
        raise ValueError(f"labels must name the {n} bars, got none")
    check_labels(labels, n, "labels")
    if not all(np.isfinite(g).all() for g in groups.values()):
        raise ValueError("heights must be finite, got nan or inf")
    labels = [str(label) for label in labels]
    if horizontal is None:
        horizontal = max(map(len, labels)) > max(4, 40 // n)
    thick = 0.78 / len(groups)
    upright = values and not horizontal and n * len(groups) > 8  # numbers that stand on their bars
    size = (WIDTH, 1.5 + n * max(0.42, 0.3 * len(groups))) if horizontal else None
    fig, ax = figure(size=size)
    hatches = ["", "///", "...", "xx"]
    with style():
        colors = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
        for g, (label, h) in enumerate(groups.items()):
            at = np.arange(n) + (g - (len(groups) - 1) / 2) * thick
            look = {
                "color": colors[g % len(colors)], "label": label, "ec": "white", "lw": 0.8,
                "hatch": hatches[g % len(hatches)],
            }  # fmt: skip
            drawn = ax.barh(at, h, thick, **look) if horizontal else ax.bar(at, h, thick, **look)
            if values:
                texts = [number_text(v, digits) for v in h]
                turned = 90 if upright else 0
                ax.bar_label(drawn, texts, padding=3, fontsize=12, color=INK, rotation=turned)
        place, name = (
            (ax.set_yticks, ax.set_ylabel) if horizontal else (ax.set_xticks, ax.set_xlabel)
        )
        place(np.arange(n), labels)
        name(xlabel or "")
        (ax.set_xlabel if horizontal else ax.set_ylabel)(ylabel)
        ax.grid(False, axis="y" if horizontal else "x")
        ax.margins(**{"x" if horizontal else "y": 0.3 if upright else 0.14})
        (ax.axvline if horizontal else ax.axhline)(0, color="#8b929b", lw=0.9)
        if horizontal:
            ax.invert_yaxis()
        for words, height in (levels or {}).items():
            (ax.axvline if horizontal else ax.axhline)(
                height, color=SOFT_INK, lw=1.4, ls=(0, (1, 2)), zorder=3
            )
            place = (height, 1.0) if horizontal else (1.0, height)
            across = ax.get_xaxis_transform() if horizontal else ax.get_yaxis_transform()
            ax.annotate(
                words, place, (4, -4) if horizontal else (-4, 4), across, "offset points",
                ha="left" if horizontal else "right", va="top" if horizontal else "bottom",
                color=SOFT_INK, fontsize=12,
            )  # fmt: skip
        if levels and horizontal:
            ax.set_ylim(n - 0.4, -1.0)  # a row for their labels
        if len(groups) > 1:
            # Above the bars, where nothing can lie under it.
            # As many columns as fit. matplotlib fills columns; names are read in rows.
            handles, names = ax.get_legend_handles_labels()
            columns = len(groups)
            while columns > 1 and _across(names, columns) > ACROSS:
                columns -= 1
            in_rows = [h for first in range(columns) for h in handles[first::columns]]
            ax.legend(
                handles=in_rows, loc="lower left", bbox_to_anchor=(0, 1.02), ncols=columns,
                borderaxespad=0,
            )  # fmt: skip
        write_title(fig, title)
    show(fig, alt=alt, title=title)


def _across(names: Sequence[str], columns: int) -> int:
    """Count the characters of a legend's row, with 4 for each patch of colour."""
    return sum(4 + max(map(len, names[first::columns])) for first in range(columns))


def _name_ends(ax, ends, muted, levels, marks) -> None:
    """Write each label beside the end of its curve, those of levels and marks on their lines."""
    ax.set_xlim(right=max(line.get_xdata()[-1] for line in ax.lines if line.get_label() in ends))
    low, high = (ax.transData.transform((1, y))[1] for y in ax.get_ylim())
    named = []
    for line in ax.lines:
        if (words := line.get_label()) not in ends:
            continue
        line.set_clip_on(False)
        at = (ax.transData.transform((1, line.get_ydata()[-1]))[1] - low) / (high - low)
        named.append([at, at, words, line.get_color(), words in muted])
    named.sort()
    for _ in range(200):  # two that would overlap give way alike, and stay beside the axes
        for place in named:
            room = 0.036 * (place[2].count("\n") + 1)
            place[0] = min(max(place[0], room), 1 - room)
        for below, above in itertools.pairwise(named):
            rows = (below[2].count("\n") + above[2].count("\n") + 2) / 2
            if (short := 0.072 * rows + 0.02 - (above[0] - below[0])) > 0:
                below[0] -= short / 2
                above[0] += short / 2
    for at, end, words, color, thin in named:
        ax.annotate(
            words, (1, end), (1.045, at), "axes fraction", "axes fraction", va="center",
            color=color, fontsize=12, fontweight="normal" if thin else "bold",
            linespacing=1.15, arrowprops={"arrowstyle": "-", "color": color, "lw": 0.9,
                                          "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)},
        )  # fmt: skip
    for words, y in levels.items():
        left = _is_crowded(ax, y, 0.55, 1) and not _is_crowded(ax, y, 0, 0.45)
        ax.annotate(words, (0.01 if left else 0.99, y), (0, 3), ("axes fraction", "data"),
                    "offset points", ha="left" if left else "right", fontsize=12,
                    color=SOFT_INK)  # fmt: skip
    for words, x in marks.items():
        ax.annotate(words, (x, 0.99), (4, 0), ("data", "axes fraction"), "offset points",
                    va="top", fontsize=12, color=SOFT_INK)  # fmt: skip


def _is_crowded(ax, y: float, left: float, right: float) -> bool:
    """Tell whether a curve runs through the place above a level, from left to right in the axes."""
    to_axes = ax.transData + ax.transAxes.inverted()
    level = to_axes.transform((ax.get_xlim()[1], y))[1]
    for line in ax.lines:
        x, at = to_axes.transform(np.column_stack(line.get_data())).T
        across = np.linspace(left, right, 30)
        if len(x) > 2 and (np.abs(np.interp(across, x, at) - level - 0.04) < 0.06).any():
            return True
    return False


def axis_names(*names: str) -> None:
    """Refuse axes that do not say what is drawn."""
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"xlabel and ylabel must say what is drawn, got {name!r}")


def _log_axis(ax, x: np.ndarray) -> None:
    if x.min() <= 0:
        raise ValueError(f"x must be positive for xlog, got {x.min()}")
    logs = np.log2(x)
    if np.allclose(logs, np.round(logs)):
        ax.set_xscale("log", base=2)
        ticks = np.unique(x)
        ticks = ticks[:: max(1, math.ceil(len(ticks) / 8))]
        ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
        ax.minorticks_off()
    else:
        ax.set_xscale("log")
