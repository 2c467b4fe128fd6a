"""Exact attention against PyTorch's: time and peak memory, forward and with backward.

Setting: one sequence, 8 heads of size 64, float32, causal, n = m queries and keys, one thread.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import MIB, machine, peak_memory, time_ratios
from tfbook.attention import VARIANTS

HEADS, SIZE = 8, 64
LENGTHS = {512: 21, 1024: 15, 2048: 9, 4096: 5}  # length: rounds
BASELINE = "PyTorch"
EXACT = ("reference", "sdpa", "rows", "online")


def target(variant: str, measure: str, n: int) -> float | None:
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


def _attends() -> dict[str, Callable[..., Tensor]]:
    def pytorch(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def causal(fn):
        return lambda q, k, v: fn(q, k, v, causal=True)

    return {BASELINE: pytorch} | {name: causal(VARIANTS[name].fn) for name in EXACT}


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure every exact variant at each length.

    Args:
        lengths: rounds for each length; ``LENGTHS`` when omitted.

    Returns:
        The setting, the machine and one row for each length and variant.
    """
    rows = []
    for n, rounds in (lengths or LENGTHS).items():
        inputs = _inputs(n)
        attends = _attends()
        forward = {name: partial(_forward, fn, inputs) for name, fn in attends.items()}
        training = {name: partial(_training, fn, inputs) for name, fn in attends.items()}
        forward_time = time_ratios(forward, BASELINE, rounds)
        training_time = time_ratios(training, BASELINE, rounds)
        output = inputs[0].nbytes
        for name in attends:
            row = {
                "n": n,
                "variant": name,
                "forward ms": forward_time[name]["ms"],
                "forward ratio": forward_time[name]["ratio"],
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
        "ratios to PyTorch's scaled_dot_product_attention, same round; memory beyond the results",
        f"{'n':>5} {'variant':<10} {'forward ms':>10} {'ratio':>12} {'extra MiB':>14} "
        f"{'+backward ms':>13} {'ratio':>12} {'extra MiB':>10}",
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
            f"{cell('forward ratio'):>12} {cell('forward extra MiB'):>14} "
            f"{row['training ms']:>13.1f} {cell('training ratio'):>12} "
            f"{cell('training extra MiB'):>10}"
        )
    return "\n".join(lines)
