"""Sparse attention against a bare loop over its blocks: time and peak memory, by length.

Setting: one sequence, 8 heads of size 64, float32, causal, n = m queries and keys, one thread. The
baseline is a window of 256 keys as one would write it out: a loop over blocks of 128 queries, each
a call of PyTorch's attention on a slice, with a band mask. What a variant costs must grow with n.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import MIB, machine, peak_memory, time_ratios
from tfbook.attention import VARIANTS

HEADS, SIZE = 8, 64
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
    if variant == "window" and measure == "forward ratio":
        return 1.2
    if variant == "window" and measure == "forward growth":
        return 2.3
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


def _attends(n: int) -> dict[str, Callable[..., Tensor]]:
    attends = {BASELINE: block_loop}
    for name, options in OPTIONS.items():
        attends[name] = partial(VARIANTS[name].fn, causal=True, **options)
    attends["strided"] = partial(VARIANTS["strided"].fn, causal=True, stride=round(n**0.5))
    if n <= DENSE:
        attends["all keys"] = partial(VARIANTS["sdpa"].fn, causal=True)
    return attends


def _inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    shape = (1, HEADS, n, SIZE)
    return [torch.randn(shape, generator=generator, requires_grad=True) for _ in range(3)]


def _forward(attend: Callable[..., Tensor], inputs: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return attend(*inputs)


def _training(attend: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    output = attend(*inputs)
    return (output, *torch.autograd.grad(output, inputs, torch.ones_like(output)))


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure every sparse variant at each length.

    Args:
        lengths: rounds for each length, each twice the one before; ``LENGTHS`` when omitted.

    Returns:
        The setting, the machine and one row for each length and variant.
    """
    rows, before = [], {}
    for n, rounds in (lengths or LENGTHS).items():
        inputs, attends = _inputs(n), _attends(n)
        forward = {name: partial(_forward, fn, inputs) for name, fn in attends.items()}
        training = {name: partial(_training, fn, inputs) for name, fn in attends.items()}
        forward_time = time_ratios(forward, BASELINE, rounds)
        training_time = time_ratios(training, BASELINE, rounds)
        output = inputs[0].nbytes
        for name in attends:
            now = forward_time[name]["ms"]
            row = {
                "n": n,
                "variant": name,
                "forward ms": now,
                "forward ratio": forward_time[name]["ratio"],
                "forward growth": now / before[name] if name in before else None,
                "training ms": training_time[name]["ms"],
                "training ratio": training_time[name]["ratio"],
                # Beyond the output; beyond output, its incoming gradient and the three gradients.
                "forward extra MiB": (peak_memory(forward[name]) - output) / MIB,
                "training extra MiB": (peak_memory(training[name]) - 5 * output) / MIB,
            }
            before[name] = now
            row["targets"] = {
                measure: {"limit": limit, "met": row[measure] <= limit}
                for measure in row
                if row[measure] is not None and (limit := target(name, str(measure))) is not None
            }
            rows.append(row)
    setting = {"batch": 1, "heads": HEADS, "head size": SIZE, "dtype": "float32", "causal": True}
    setting |= {"window": WINDOW, "block": BLOCK}
    return {"setting": setting, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    lines = [
        "ratios to the bare loop over blocks, same round; growth: time by that of half the length",
        f"{'n':>5} {'variant':<10} {'forward ms':>10} {'ratio':>12} {'growth':>12} "
        f"{'extra MiB':>10} {'+backward ms':>13} {'ratio':>7} {'extra MiB':>10}",
    ]
    for row in results["rows"]:

        def cell(measure, row=row):
            limit = row["targets"].get(measure)
            text = "" if row[measure] is None else f"{row[measure]:.2f}"
            if limit:
                text += f" ≤{limit['limit']:g}{' ' if limit['met'] else '!'}"
            return text

        lines.append(
            f"{row['n']:>5} {row['variant']:<10} {row['forward ms']:>10.1f} "
            f"{cell('forward ratio'):>12} {cell('forward growth'):>12} "
            f"{cell('forward extra MiB'):>10} {row['training ms']:>13.1f} "
            f"{cell('training ratio'):>7} {cell('training extra MiB'):>10}"
        )
    return "\n".join(lines)
