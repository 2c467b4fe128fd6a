"""Causal linear attention against a plain loop over chunks: time, its growth, and peak memory.

Setting: one sequence, 8 heads of size 64, float32, causal, one thread.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import machine
from benchmarks.rows import SETTING, SIZE, compare, measure_rows
from benchmarks.rows import table as write
from tfbook.efficient import attend_features, attend_linear, elu_features

CHUNK = 128
LENGTHS = {512: 15, 1024: 11, 2048: 9, 4096: 7}  # length: rounds
BASELINE = "chunk loop"


def target(variant: str, measure: str) -> float | None:
    """Return the largest value allowed, or None where there is no target."""
    return {"forward ratio": 1.3, "slope": 1.1}.get(measure) if variant == "linear" else None


def chunk_loop(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal linear attention as plainly and as fast as a few lines can."""
    q, k, ys = elu_features(q), elu_features(k), []
    state, total = q.new_zeros(*q.shape[:2], SIZE, SIZE), q.new_zeros(*q.shape[:2], SIZE, 1)
    for a in range(0, q.shape[-2], CHUNK):
        q_c, k_c, v_c = (x[..., a : a + CHUNK, :] for x in (q, k, v))
        scores = (q_c @ k_c.mT).tril()
        mixed, weight = scores @ v_c + q_c @ state, scores.sum(-1, keepdim=True) + q_c @ total
        ys.append(mixed / weight)
        state, total = state + k_c.mT @ v_c, total + k_c.sum(-2)[..., None]
    return torch.cat(ys, dim=-2)


VARIANTS = {
    BASELINE: chunk_loop,
    "linear": partial(attend_linear, causal=True),
    "features": partial(attend_features, causal=True, n_features=SIZE),
    "softmax": partial(functional.scaled_dot_product_attention, is_causal=True),
}


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure every variant at each length.

    Args:
        lengths: rounds for each length, in growing order; ``LENGTHS`` when omitted.

    Returns:
        The setting, the machine and one row for each length and variant. ``slope`` is the exponent
        with which the time grew from the first length on, None at the first.
    """
    rows, first = [], {}
    for n, rounds in (lengths or LENGTHS).items():
        for row in measure_rows(n, VARIANTS, BASELINE, rounds):
            m, then = first.setdefault(row["variant"], (n, row["forward ms"]))
            grown = math.log(row["forward ms"] / then)
            row["slope"] = grown / math.log(n / m) if m < n else None
            rows.append(compare(row, partial(target, row["variant"])))
    return {"setting": SETTING, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    return write(
        "ratios to a plain loop over chunks, same round; memory beyond the results",
        results["rows"],
        [
            ("n", "n", ">5"),
            ("variant", "variant", "<10"),
            ("forward ms", "forward ms", ">10"),
            ("ratio", "forward ratio", ">12"),
            ("slope", "slope", ">12"),
            ("extra MiB", "forward extra MiB", ">10"),
            ("+backward ms", "training ms", ">13"),
            ("ratio", "training ratio", ">8"),
            ("extra MiB", "training extra MiB", ">10"),
        ],
    )
