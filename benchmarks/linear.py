"""Causal linear attention against a plain loop over chunks: time, its growth, and peak memory.

Setting: one sequence, 8 heads of size 64, float32, causal, one thread.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import MIB, machine, peak_memory, time_ratios
from tfbook.attention import attend_features, attend_linear, elu_features

HEADS, SIZE, CHUNK = 8, 64, 128
LENGTHS = {512: 15, 1024: 11, 2048: 9, 4096: 7}  # length: rounds
BASELINE = "chunk loop"


def target(variant: str, measure: str, n: int) -> float | None:
    """Return the largest value allowed, or None where there is no target."""
    if variant == "linear":
        return {"forward ratio": 1.3, "slope": 1.1 if n > min(LENGTHS) else None}.get(measure)
    return None


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


def _inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    shape = (1, HEADS, n, SIZE)
    return [torch.randn(shape, generator=generator, requires_grad=True) for _ in range(3)]


def _forward(attend, inputs: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return attend(*inputs)


def _training(attend, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    output = attend(*inputs)
    return (output, *torch.autograd.grad(output, inputs, torch.ones_like(output)))


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure every variant at each length.

    Args:
        lengths: rounds for each length, in growing order; ``LENGTHS`` when omitted.

    Returns:
        The setting, the machine and one row for each length and variant. ``slope`` is the exponent
        with which the time grew from the first length on.
    """
    rows, first = [], {}
    for n, rounds in (lengths or LENGTHS).items():
        inputs = _inputs(n)
        forward = {name: partial(_forward, fn, inputs) for name, fn in VARIANTS.items()}
        training = {name: partial(_training, fn, inputs) for name, fn in VARIANTS.items()}
        forward_time = time_ratios(forward, BASELINE, rounds)
        training_time = time_ratios(training, BASELINE, rounds)
        output = inputs[0].nbytes
        for name in VARIANTS:
            ms = forward_time[name]["ms"]
            m, then = first.setdefault(name, (n, ms))
            row = {
                "n": n,
                "variant": name,
                "forward ms": ms,
                "forward ratio": forward_time[name]["ratio"],
                "slope": math.log(ms / then) / math.log(n / m) if m < n else math.nan,
                "training ms": training_time[name]["ms"],
                "training ratio": training_time[name]["ratio"],
                # Beyond the output; beyond output, its incoming gradient and the three gradients.
                "forward extra MiB": (peak_memory(forward[name]) - output) / MIB,
                "training extra MiB": (peak_memory(training[name]) - 5 * output) / MIB,
            }
            row["targets"] = {
                measure: {"limit": limit, "met": row[measure] <= limit}
                for measure in row
                if (limit := target(name, str(measure), n)) is not None
            }
            rows.append(row)
    setting = {"batch": 1, "heads": HEADS, "head size": SIZE, "dtype": "float32", "causal": True}
    return {"setting": setting, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    lines = [
        "ratios to a plain loop over chunks, same round; memory beyond the results",
        f"{'n':>5} {'variant':<10} {'forward ms':>10} {'ratio':>12} {'slope':>12} "
        f"{'extra MiB':>10} {'+backward ms':>13} {'ratio':>8} {'extra MiB':>10}",
    ]
    for row in results["rows"]:

        def cell(measure, row=row):
            limit = row["targets"].get(measure)
            text = f"{row[measure]:.2f}"
            if limit:
                text += f" ≤{limit['limit']:g}{' ' if limit['met'] else '!'}"
            return text

        lines.append(
            f"{row['n']:>5} {row['variant']:<10} {row['forward ms']:>10.1f} "
            f"{cell('forward ratio'):>12} {cell('slope'):>12} {cell('forward extra MiB'):>10} "
            f"{row['training ms']:>13.1f} {cell('training ratio'):>8} "
            f"{cell('training extra MiB'):>10}"
        )
    return "\n".join(lines)
