"""The linear recurrence as a scan: its forms against a loop, forward and with backward.

Setting: the selective scan of Mamba, one sequence, 256 columns of 16 numbers, float32, one thread.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import MIB, machine, peak_memory, time_ratios
from benchmarks.rows import compare
from benchmarks.rows import table as write
from tfbook.recurrent import SCANS, scan_tree

COLUMNS, SIZE = 256, 16
LENGTHS = {256: 15, 1024: 9}  # length: rounds
BASELINE = "loop"  # in place, over views


def target(form: str, measure: str) -> float | None:
    """Return the largest value allowed, or None where there is no target."""
    if form != "sequential":
        return None
    return {"forward ratio": 1.3, "training / forward": 3.0}.get(measure)


def _inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n)
    shape = (1, n, COLUMNS, SIZE)
    a, b = (torch.rand(shape, generator=generator).requires_grad_() for _ in range(2))
    return [a, b]


def _loop(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    h, last = torch.empty_like(b), torch.zeros_like(b[:, 0])
    for a_t, b_t, h_t in zip(a.unbind(1), b.unbind(1), h.unbind(1), strict=True):
        last = torch.mul(a_t, last, out=h_t).add_(b_t)
    return h, last


def _autograd(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    rows, last = [], torch.zeros_like(b[:, 0])
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        last = a_t * last + b_t
        rows.append(last)
    return torch.stack(rows, 1), last


def _forward(scan: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return scan(*inputs)[0]


def _training(scan: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor]) -> object:
    h = scan(*inputs)[0]
    return torch.autograd.grad(h, inputs, h.detach())


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure every form at each length.

    Args:
        lengths: rounds for each length; ``LENGTHS`` when omitted.

    Returns:
        The setting, the machine and one row for each length and form. Training of the loop is
        that by PyTorch's own gradients, which in-place steps would not allow.
    """
    rows = []
    for n, rounds in (lengths or LENGTHS).items():
        inputs = _inputs(n)
        scans = {BASELINE: _loop} | SCANS
        forward = {name: partial(_forward, scan, inputs) for name, scan in scans.items()}
        scans[BASELINE] = _autograd
        training = {name: partial(_training, scan, inputs) for name, scan in scans.items()}
        forward_time = time_ratios(forward, BASELINE, rounds)
        # In one call, so that both are times of the same rounds.
        both = time_ratios(
            {f"{name} forward": forward[name] for name in SCANS} | training,
            BASELINE,
            rounds,
        )
        for name in scans:
            shown = name if name in SCANS else "sequential"
            row = {
                "n": n,
                "form": name,
                "forward ms": forward_time[name]["ms"],
                "forward ratio": forward_time[name]["ratio"],
                "training ms": both[name]["ms"],
                "training / forward": both[name]["ms"] / both[f"{shown} forward"]["ms"],
                # Beyond h; beyond h and the two gradients.
                "forward extra MiB": (peak_memory(forward[name]) - inputs[1].nbytes) / MIB,
                "training extra MiB": (peak_memory(training[name]) - 3 * inputs[1].nbytes) / MIB,
            }
            if name in ("sequential", "hillis_steele", "blelloch"):
                tree = scan_tree(n, name)
                row |= {"steps": tree.steps, "work": tree.work}
            rows.append(compare(row, partial(target, name)))
    setting = {"batch": 1, "columns": COLUMNS, "state": SIZE, "dtype": "float32"}
    return {"setting": setting, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; a target follows its number, with a ! where it is missed."""
    return write(
        "ratios to a loop in place, same round; memory beyond the results; a tree's steps and work",
        results["rows"],
        [
            ("n", "n", ">5"),
            ("form", "form", "<14"),
            ("forward ms", "forward ms", ">10"),
            ("ratio", "forward ratio", ">12"),
            ("extra MiB", "forward extra MiB", ">10"),
            ("+backward ms", "training ms", ">13"),
            ("/ forward", "training / forward", ">12"),
            ("extra MiB", "training extra MiB", ">10"),
            ("steps", "steps", ">6"),
            ("work", "work", ">7"),
        ],
    )
