"""Exact attention against PyTorch's: time and peak memory, forward and with backward.

Setting: one sequence, 8 heads of size 64, float32, causal, n = m queries and keys, one thread.
"""

from functools import partial

from torch.nn import functional

from benchmarks.measure import machine
from benchmarks.rows import SETTING, Attend, compare, measure_rows
from benchmarks.rows import table as write
from tfbook.attention import VARIANTS

LENGTHS = {512: 21, 1024: 15, 2048: 9, 4096: 5}  # length: rounds
BASELINE = "PyTorch"
EXACT = ("reference", "sdpa", "rows", "online")


def target(variant: str, n: int, measure: str) -> float | None:
    """Return the largest value allowed, or None where there is no target."""
    if variant == "rows" and measure == "forward ratio":
        return 1.5 if n == 4096 else 1.3
    if variant == "rows" and measure == "training ratio":
        return 2.0
    if variant == "online" and measure == "forward ratio":
        return 1.7 if n >= 1024 else None
    if variant == "online" and measure == "forward extra MiB":
        return 6.0
    return None


def _attends() -> dict[str, Attend]:
    pytorch = partial(functional.scaled_dot_product_attention, is_causal=True)
    return {BASELINE: pytorch} | {name: partial(VARIANTS[name].fn, causal=True) for name in EXACT}


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure every exact variant at each length.

    Args:
        lengths: rounds for each length; ``LENGTHS`` when omitted.

    Returns:
        The setting, the machine and one row for each length and variant.
    """
    rows = [
        compare(row, partial(target, row["variant"], n))
        for n, rounds in (lengths or LENGTHS).items()
        for row in measure_rows(n, _attends(), BASELINE, rounds)
    ]
    return {"setting": SETTING, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    return write(
        "ratios to PyTorch's scaled_dot_product_attention, same round; memory beyond the results",
        results["rows"],
        [
            ("n", "n", ">5"),
            ("variant", "variant", "<10"),
            ("forward ms", "forward ms", ">10"),
            ("ratio", "forward ratio", ">12"),
            ("extra MiB", "forward extra MiB", ">14"),
            ("+backward ms", "training ms", ">13"),
            ("ratio", "training ratio", ">12"),
            ("extra MiB", "training extra MiB", ">10"),
        ],
    )
