"""A mixture of experts against a dense feed-forward network of equal active FLOPs.

Setting: d_model 512, SwiGLU without biases, inner layers of 2048 in all for each row, float32, one
thread, forward and with backward. What the mixture does beside its products is to choose, to sort
rows by expert, to copy them there and to add the answers up; and each of its products is smaller.
The target is for many rows: with few, each expert is read from memory for a handful of them, and
the time is that of the bytes.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import MIB, machine, peak_memory, time_ratios
from benchmarks.rows import compare
from benchmarks.rows import table as write
from tfbook.blocks import FeedForward, MixtureOfExperts

D_MODEL, D_FF = 512, 2048
ROWS = {256: 11, 2048: 5}  # rows: rounds
SIZES = {  # name: experts, how many treat a row
    "2 experts, 1 treats a row": (2, 1),
    "8 experts, 1 treats a row": (8, 1),
    "8 experts, 2 treat a row": (8, 2),
    "16 experts, 4 treat a row": (16, 4),
    "64 experts, 8 treat a row": (64, 8),
}
BASELINE, LIMIT, MANY = "dense", 1.3, 2048


def target(variant: str, n: int, measure: str) -> float | None:
    """Return the largest value allowed, or None where there is no target."""
    if variant == BASELINE or n < MANY or measure not in ("forward ratio", "training ratio"):
        return None
    return LIMIT


def _networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    made = {BASELINE: FeedForward(D_MODEL, D_FF, kind="swiglu", bias=False)}
    for name, (n_experts, top_k) in SIZES.items():
        sizes = D_MODEL, D_FF // top_k, n_experts, top_k
        made[name] = MixtureOfExperts(*sizes, kind="swiglu", bias=False)
    return made


def _forward(network: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return network(x)


def _training(network: nn.Module, x: Tensor) -> tuple[Tensor | None, ...]:
    y, weights = network(x), list(network.parameters())
    return torch.autograd.grad(y, [x, *weights], torch.ones_like(y), allow_unused=True)


def _flops(call: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def run(rows: dict[int, int] | None = None) -> dict[str, object]:
    """Measure every mixture for each number of rows.

    Args:
        rows: rounds for each number of rows; ``ROWS`` when omitted.

    Returns:
        The setting, the machine and one row for each number of rows and network. "FLOPs" are by
        those of the dense network, counted; "busiest" is the load of the busiest expert by the
        mean.
    """
    found, networks = [], _networks()
    for n, rounds in (rows or ROWS).items():
        x = torch.randn(n, D_MODEL, generator=torch.Generator().manual_seed(n))
        x.requires_grad_()
        forward = {name: partial(_forward, network, x) for name, network in networks.items()}
        training = {name: partial(_training, network, x) for name, network in networks.items()}
        forward_time = time_ratios(forward, BASELINE, rounds)
        training_time = time_ratios(training, BASELINE, rounds)
        flops = {
            name: _flops(partial(_forward, each, x.detach())) for name, each in networks.items()
        }
        for name, network in networks.items():
            row = {
                "rows": n,
                "variant": name,
                "forward ms": forward_time[name]["ms"],
                "forward ratio": forward_time[name]["ratio"],
                "training ms": training_time[name]["ms"],
                "training ratio": training_time[name]["ratio"],
                "forward MiB": peak_memory(forward[name]) / MIB,
                "parameters": sum(weight.numel() for weight in network.parameters()),
                "FLOPs": flops[name] / flops[BASELINE],
            }
            if name != BASELINE:
                load = network.routing.load.double()
                row["busiest"] = float(load.max() / load.mean())
            found.append(compare(row, partial(target, name, n)))
    setting = {"d_model": D_MODEL, "d_ff": D_FF, "kind": "swiglu", "dtype": "float32"}
    return {"setting": setting, "machine": machine(), "rows": found}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    return write(
        "ratios to a dense network whose inner layer has as many numbers for a row, same round",
        results["rows"],
        [
            ("rows", "rows", ">5"),
            ("variant", "variant", "<26"),
            ("forward ms", "forward ms", ">10"),
            ("ratio", "forward ratio", ">11"),
            ("+backward ms", "training ms", ">13"),
            ("ratio", "training ratio", ">11"),
            ("MiB", "forward MiB", ">7"),
            ("FLOPs", "FLOPs", ">6"),
            ("busiest", "busiest", ">8"),
            ("parameters", "parameters", ">11"),
        ],
    )
