"""Sparse attention against a bare loop over its blocks: time and peak memory, by length.

Setting: one sequence, 8 heads of size 64, float32, causal, n = m queries and keys, one thread. The
baseline is a window of 256 keys as one would write it out: a loop over blocks of 128 queries, each
a call of PyTorch's attention on a slice, with a band mask. What a variant costs must grow with n.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

import tfbook.efficient  # noqa: F401 (its functions join VARIANTS)
from benchmarks.measure import machine
from benchmarks.rows import SETTING, Attend, compare, measure_rows
from benchmarks.rows import table as write
from tfbook.attention import VARIANTS

WINDOW, BLOCK = 256, 128
LENGTHS = {1024: 9, 2048: 7, 4096: 5, 8192: 3}  # length: rounds
DENSE = 4096  # the longest length at which the dense form is measured too
BASELINE = "loop"
OPTIONS = {
    "window": {"window": WINDOW},
    "streaming": {"window": WINDOW, "sinks": 4},
    "longformer": {"window": WINDOW, "n_global": 4},
    "dilated": {"window": WINDOW, "dilation": 4},
    "bigbird": {"block": BLOCK, "window": 2, "n_global": 1, "n_random": 1},
}


def target(variant: str, measure: str) -> float | None:
    """Return the largest value allowed, or None where there is no target."""
    if variant == "window":
        return {"forward ratio": 1.2, "forward growth": 2.3}.get(measure)
    return None


def block_loop(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute a causal window by a bare loop, the baseline."""
    found = []
    for a in range(0, q.shape[-2], BLOCK):
        b, low = min(a + BLOCK, q.shape[-2]), max(a - WINDOW + 1, 0)
        gap = torch.arange(a, b)[:, None] - torch.arange(low, b)
        keys, values = k[:, :, low:b], v[:, :, low:b]
        band = (gap >= 0) & (gap < WINDOW)
        found.append(
            functional.scaled_dot_product_attention(q[:, :, a:b], keys, values, attn_mask=band)
        )
    return torch.cat(found, 2)


def _attends(n: int) -> dict[str, Attend]:
    attends = {BASELINE: block_loop}
    for name, options in OPTIONS.items():
        attends[name] = partial(VARIANTS[name].fn, causal=True, **options)
    attends["strided"] = partial(VARIANTS["strided"].fn, causal=True, stride=round(n**0.5))
    if n <= DENSE:
        attends["all keys"] = partial(VARIANTS["sdpa"].fn, causal=True)
    return attends


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure every sparse variant at each length.

    Args:
        lengths: rounds for each length, each twice the one before; ``LENGTHS`` when omitted.

    Returns:
        The setting, the machine and one row for each length and variant.
    """
    rows, before = [], {}
    for n, rounds in (lengths or LENGTHS).items():
        for row in measure_rows(n, _attends(n), BASELINE, rounds):
            name, now = row["variant"], row["forward ms"]
            row["forward growth"] = now / before[name] if name in before else None
            before[name] = now
            rows.append(compare(row, partial(target, name)))
    setting = SETTING | {"window": WINDOW, "block": BLOCK}
    return {"setting": setting, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    return write(
        "ratios to the bare loop over blocks, same round; growth: time by that of half the length",
        results["rows"],
        [
            ("n", "n", ">5"),
            ("variant", "variant", "<10"),
            ("forward ms", "forward ms", ">10"),
            ("ratio", "forward ratio", ">12"),
            ("growth", "forward growth", ">12"),
            ("extra MiB", "forward extra MiB", ">10"),
            ("+backward ms", "training ms", ">13"),
            ("ratio", "training ratio", ">7"),
            ("extra MiB", "training extra MiB", ">10"),
        ],
    )
