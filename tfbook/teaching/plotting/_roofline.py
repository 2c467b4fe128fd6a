"""The roof of a machine, and what reached it."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import FuncFormatter

from tfbook.teaching.plotting._curves import axis_names
from tfbook.teaching.plotting._look import SOFT_INK, array, figure, show, style, write_title


def roofline(
    points: Mapping[str, Sequence[tuple[float, float, str]]],
    *,
    peak: float,
    bandwidth: float,
    title: str,
    alt: str,
    ylabel: str,
    xlabel: str = "FLOPs for each byte",
    joined: bool = False,
) -> None:
    """Display the roof of a machine, min(peak, intensity · bandwidth), and what reached it.

    Both axes are logarithmic. The ridge, where the two bounds meet, has its number.

    Args:
        points: Label → points of (FLOPs for each byte, FLOPs a second, a few characters that stand
            beside it, or ""). With several labels there is a legend.
        peak: The most FLOPs a second, in the unit of the points.
        bandwidth: The most bytes a second, in that unit.
        title: What to see, in one sentence.
        alt: The same for a reader who cannot see it, at least 25 characters.
        ylabel: What y is, with its unit.
        xlabel: What x is.
        joined: Draw a line through the points of a label.

    Raises:
        TypeError: if a point is not made of two numbers and a text.
        ValueError: if there is no point, or a number is not positive and finite.

    Source: [williams2009roofline]
    Explained in: chapters/17_hardware, section "Two ceilings by hand".
    """
    axis_names(xlabel, ylabel)
    at = {k: array([p[:2] for p in ps], f"points[{k!r}]") for k, ps in points.items()}
    if not at or not all(len(xy) for xy in at.values()):
        raise ValueError("points must have at least one point for each of at least one label")
    given = np.concatenate(list(at.values()))
    for name, numbers in {"peak": [peak], "bandwidth": [bandwidth], "points": given}.items():
        if not ((numbers := array(numbers, name)) > 0).all() or np.isinf(numbers).any():
            raise ValueError(f"{name} must be positive and finite, got {numbers.tolist()}")
    ridge = peak / bandwidth
    xs, ys = given.T
    left, right = min(xs.min(), ridge) / 2.5, max(xs.max(), ridge) * 4
    bottom = min(ys.min(), left * bandwidth) / 3
    fig, ax = figure()
    with style():
        ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, 2.2 * peak))
        ax.plot((left, ridge, right), (left * bandwidth, peak, peak), color=SOFT_INK, ls="-")
        ax.axvline(ridge, color=SOFT_INK, lw=1.4, ls=(0, (5, 3)), zorder=1)
        words = f"ridge: {ridge:,.0f}" if ridge >= 20 else f"ridge: {ridge:.1f}"
        ax.annotate(words, (ridge, bottom), (6, 8), textcoords="offset points", color=SOFT_INK)
        for (label, xy), mark in zip(at.items(), "os^D" * len(at), strict=False):
            (line,) = ax.plot(*xy.T, marker=mark, ms=8, ls="-" if joined else "", label=label)
            for place, (*_, words) in zip(xy, points[label], strict=True):
                ax.annotate(words, place, (9, -14), textcoords="offset points",
                            color=line.get_color(),
                            bbox={"fc": "white", "ec": "none", "pad": 0.5})  # fmt: skip
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
        ax.set(xlabel=xlabel, ylabel=ylabel)
        if len(at) > 1:
            ax.legend(loc="upper left")  # above the slope, where nothing can be
        write_title(fig, title)
    show(fig, alt=alt, title=title)
