"""What benchmarks of attention functions share: inputs, passes, rows with targets, and tables.

Setting: one sequence, 8 heads of size 64, float32, n = m queries and keys, one thread.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import MIB, peak_memory, time_ratios

HEADS, SIZE = 8, 64
SETTING = {"batch": 1, "heads": HEADS, "head size": SIZE, "dtype": "float32", "causal": True}

Attend = Callable[..., Tensor]
Row = dict[str, object]


def inputs(n: int) -> list[Tensor]:
    """Draw queries, keys and values (1, HEADS, n, SIZE) that ask for gradients."""
    generator = torch.Generator().manual_seed(n)
    shape = (1, HEADS, n, SIZE)
    return [torch.randn(shape, generator=generator, requires_grad=True) for _ in range(3)]


def forward(attend: Attend, given: Sequence[Tensor]) -> Tensor:
    """Run without autograd."""
    with torch.no_grad():
        return attend(*given)


def training(attend: Attend, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run forward and backward; return the output and the gradients of all that is given."""
    output = attend(*given)
    return (output, *torch.autograd.grad(output, given, torch.ones_like(output)))


def measure_rows(n: int, attends: Mapping[str, Attend], baseline: str, rounds: int) -> list[Row]:
    """Time attention functions in turn and weigh their memory, forward and with backward.

    Args:
        n: queries and keys.
        attends: functions of q, k and v, by name.
        baseline: the name of the one that the others are compared with.
        rounds: how often each is timed.

    Returns:
        For each a row with times, ratios to the baseline, and memory beyond the results.
    """
    given = inputs(n)
    calls = {
        what: {name: partial(run, attend, given) for name, attend in attends.items()}
        for what, run in (("forward", forward), ("training", training))
    }
    times = {what: time_ratios(each, baseline, rounds) for what, each in calls.items()}
    # Beyond the output; beyond output, its incoming gradient and the three gradients.
    results = {"forward": given[0].nbytes, "training": 5 * given[0].nbytes}
    rows = []
    for name in attends:
        row = {"n": n, "variant": name}
        for what, taken in times.items():
            row |= {f"{what} {measure}": value for measure, value in taken[name].items()}
        for what, call in calls.items():
            row[f"{what} extra MiB"] = (peak_memory(call[name]) - results[what]) / MIB
        rows.append(row)
    return rows


def compare(row: Row, target: Callable[[str], float | None]) -> Row:
    """Return the row with what ``target(measure)`` allows at most, and whether it is met."""
    limits = {measure: target(measure) for measure, value in row.items() if value is not None}
    targets = {
        measure: {"limit": limit, "met": row[measure] <= limit}
        for measure, limit in limits.items()
        if limit is not None
    }
    return row | {"targets": targets}


def table(title: str, rows: Sequence[Row], columns: Sequence[tuple[str, str, str]]) -> str:
    """Write rows under their headings; a target follows its number, with a ! where it is missed.

    Args:
        title: the first line.
        rows: what was measured.
        columns: for each its heading, the measure that it shows, and how wide, such as ">10".
    """
    lines = [title, " ".join(f"{heading:{width}}" for heading, _, width in columns)]
    for row in rows:
        lines.append(" ".join(f"{cell(row, measure):{width}}" for _, measure, width in columns))
    return "\n".join(line.rstrip() for line in lines)


def cell(row: Row, measure: str) -> str:
    """Write one measure of a row with its target; nothing where it was not taken."""
    value, target = row.get(measure), row.get("targets", {}).get(measure)
    if value is None:
        return ""
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.1f}" if measure.endswith("ms") else f"{value:.2f}"
    if target:
        text += f" ≤{target['limit']:g}{' ' if target['met'] else '!'}"
    return text
