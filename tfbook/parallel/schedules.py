"""Schedules of a pipeline: which stage computes what, and when it waits.

A model of p stages reads its batch in m micro-batches. A stage can begin a forward pass when the
stage before has done it, and a backward pass when the stage behind has. A schedule is the order in
which each stage does its tasks; when they happen follows from that.

Explained in: chapters/17_hardware, section "Many devices".
"""

from collections.abc import Sequence
from typing import NamedTuple

from tfbook._checks import check_list, check_number

__all__ = [
    "PipelineTask",
    "bubble_fraction",
    "gpipe",
    "idle_share",
    "in_flight",
    "one_forward_one_backward",
    "schedule_table",
    "timeline",
]

MOST = 10_000  # stages, or micro-batches


class PipelineTask(NamedTuple):
    """One pass of one micro-batch through a stage.

    Attributes:
        kind: "F" for forward, "B" for backward.
        micro: which micro-batch.

    Explained in: chapters/17_hardware, section "Many devices".
    """

    kind: str
    micro: int


class Span(NamedTuple):
    """When a stage does a task.

    Explained in: chapters/17_hardware, section "Many devices".
    """

    task: PipelineTask
    start: float
    end: float


Schedule = list[list[PipelineTask]]


def gpipe(p: int, m: int) -> Schedule:
    """Return GPipe's order: each stage does all forward passes, then all backward passes.

    Args:
        p: stages.
        m: micro-batches.

    Returns:
        The tasks of each stage.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if one is below 1.

    Example:
        >>> print(schedule_table(gpipe(2, 2), backward=1))
        F0 F1 .  .  B0 B1
        .  F0 F1 B0 B1 .

    Source: [huang2019gpipe]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(p, m)
    each = [PipelineTask(kind, micro) for kind in "FB" for micro in range(m)]
    return [list(each) for _ in range(p)]


def one_forward_one_backward(p: int, m: int) -> Schedule:
    """Return the order 1F1B: as soon as a backward pass can be done, it is.

    Stage s does p − 1 − s forward passes first, then one forward and one backward in turns, then
    the backward passes that are left. It takes as long as GPipe, but a stage keeps the activations
    of at most p − s micro-batches, however many there are.

    Args:
        p: stages.
        m: micro-batches.

    Returns:
        The tasks of each stage.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if one is below 1.

    Example:
        >>> print(schedule_table(one_forward_one_backward(2, 3), backward=1))
        F0 F1 .  B0 F2 B1 .  B2
        .  F0 B0 F1 B1 F2 B2 .

    Source: [narayanan2019pipedream], [narayanan2021efficient]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(p, m)
    schedule = []
    for stage in range(p):
        first = min(m, p - 1 - stage)
        tasks = [PipelineTask("F", micro) for micro in range(first)]
        for micro in range(m):
            if first + micro < m:
                tasks.append(PipelineTask("F", first + micro))
            tasks.append(PipelineTask("B", micro))
        schedule.append(tasks)
    return schedule


def bubble_fraction(p: int, m: int, *, chunks: int = 1) -> float:
    """Return the share of the time in which a stage waits: (p − 1) / (v m + p − 1).

    Args:
        p: stages.
        m: micro-batches.
        chunks: v, how many pieces of the model each stage has, which are visited in turns; each
            takes a v-th of the time, and so does the waiting.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if one is below 1.

    Example:
        >>> bubble_fraction(4, 4), bubble_fraction(4, 27), bubble_fraction(4, 9, chunks=3)
        (0.42857142857142855, 0.1, 0.1)

    Source: [huang2019gpipe], chunks: [narayanan2021efficient]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(p, m)
    check_number("chunks", chunks, 1, MOST, whole=True)
    return (p - 1) / (chunks * m + p - 1)


def timeline(
    schedule: Sequence[Sequence[PipelineTask]], *, forward: float = 1.0, backward: float = 2.0
) -> list[list[Span]]:
    """Return when each stage does each task, if it begins as soon as it can.

    A forward pass waits for that of the stage before, a backward pass for that of the stage behind,
    and each for the task before it. Messages take no time.

    Args:
        schedule: the tasks of each stage.
        forward: time of a forward pass through a stage.
        backward: time of a backward pass.

    Returns:
        Spans for each stage, in its order.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if a time is not positive, a stage does a task twice or not at all, or each
            waits for another.

    Example:
        >>> timeline(gpipe(2, 1))[1]
        [Span(task=PipelineTask(kind='F', micro=0), start=1.0, end=2.0), \
Span(task=PipelineTask(kind='B', micro=0), start=2.0, end=4.0)]

    Source: [huang2019gpipe]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    times = {"F": forward, "B": backward}
    for name, value in (("forward", forward), ("backward", backward)):
        check_number(name, value, above=0, high=1e12)
    stages = _read(schedule)
    ends: dict[tuple[int, PipelineTask], float] = {}
    done: list[list[Span]] = [[] for _ in stages]
    while len(ends) < sum(map(len, stages)):
        before = len(ends)
        for stage, tasks in enumerate(stages):
            while len(done[stage]) < len(tasks):
                task = tasks[len(done[stage])]
                needs = [(stage, PipelineTask("F", task.micro))] if task.kind == "B" else []
                other = stage + (1 if task.kind == "B" else -1)
                if 0 <= other < len(stages):
                    needs.append((other, task))
                if any(need not in ends for need in needs):
                    break
                free = done[stage][-1].end if done[stage] else 0.0
                start = max([free, *(ends[need] for need in needs)])
                ends[stage, task] = start + times[task.kind]
                done[stage].append(Span(task, start, ends[stage, task]))
        if len(ends) == before:
            raise ValueError("schedule must be one that ends; in this one each stage waits")
    return done


def idle_share(
    schedule: Sequence[Sequence[PipelineTask]], *, forward: float = 1.0, backward: float = 2.0
) -> float:
    """Return the share of the time, over all stages, in which none of their tasks is done.

    Arguments and errors are those of :func:`timeline`.

    Example:
        >>> round(idle_share(gpipe(4, 4)), 6), round(bubble_fraction(4, 4), 6)
        (0.428571, 0.428571)

    Source: [huang2019gpipe]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    spans = timeline(schedule, forward=forward, backward=backward)
    whole = max(span.end for stage in spans for span in stage)
    busy = sum(span.end - span.start for stage in spans for span in stage)
    return 1 - busy / (whole * len(spans))


def in_flight(schedule: Sequence[Sequence[PipelineTask]]) -> list[int]:
    """Return of how many micro-batches each stage keeps activations at most.

    Args:
        schedule: the tasks of each stage.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if a stage does a task twice or not at all.

    Example:
        >>> in_flight(gpipe(3, 8)), in_flight(one_forward_one_backward(3, 8))
        ([8, 8, 8], [3, 2, 1])

    Source: [narayanan2021efficient]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    most = []
    for tasks in _read(schedule):
        kept, peak = 0, 0
        for task in tasks:
            kept += 1 if task.kind == "F" else -1
            peak = max(peak, kept)
        most.append(peak)
    return most


def schedule_table(
    schedule: Sequence[Sequence[PipelineTask]], *, forward: int = 1, backward: int = 2
) -> str:
    """Return a schedule as a table: a line for each stage, a column for each unit of time.

    Args:
        schedule: the tasks of each stage.
        forward: units of time of a forward pass.
        backward: units of time of a backward pass.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: as for :func:`timeline`.

    Example:
        >>> print(schedule_table(gpipe(2, 1)))
        F0 .  .  .  B0 B0
        .  F0 B0 B0 .  .

    Explained in: chapters/17_hardware, section "Many devices".
    """
    for name, value in (("forward", forward), ("backward", backward)):
        check_number(name, value, 1, 100, whole=True)
    spans = timeline(schedule, forward=forward, backward=backward)
    width = int(max(span.end for stage in spans for span in stage))
    lines = []
    for stage in spans:
        cells = ["."] * width
        for task, start, end in stage:
            for column in range(int(start), int(end)):
                cells[column] = f"{task.kind}{task.micro}"
        lines.append(cells)
    wide = max(len(cell) for cells in lines for cell in cells)
    return "\n".join(" ".join(f"{cell:<{wide}}" for cell in cells).rstrip() for cells in lines)


def _check(p: object, m: object) -> None:
    check_number("p", p, 1, MOST, whole=True)
    check_number("m", m, 1, MOST, whole=True)


def _read(schedule: object) -> list[list[PipelineTask]]:
    """Return the tasks of each stage, each forward and backward pass once."""
    check_list("schedule", schedule)
    stages = []
    for tasks in schedule:
        check_list("a stage of the schedule", tasks)
        for task in tasks:
            if not isinstance(task, PipelineTask):
                raise TypeError(f"schedule must hold Tasks, got {type(task).__name__}")
            check_number("a micro-batch", task.micro, 0, MOST, whole=True)
        stages.append(list(tasks))
    m = len(stages[0]) // 2 if stages else 0
    wanted = {PipelineTask(kind, micro) for kind in "FB" for micro in range(m)}
    if not m or any(len(tasks) != 2 * m or set(tasks) != wanted for tasks in stages):
        raise ValueError("schedule must have each pass of each micro-batch once in every stage")
    return stages


def check_schedule(schedule: object, p: int, m: int) -> None:
    """Raise ValueError unless a schedule is for p stages and m micro-batches."""
    stages = _read(schedule)
    if (len(stages), len(stages[0])) != (p, 2 * m):
        raise ValueError(
            f"schedule must be for {p} stages and {m} micro-batches, got one for {len(stages)} "
            f"and {len(stages[0]) // 2}"
        )
