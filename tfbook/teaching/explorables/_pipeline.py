"""pipeline_schedule: who computes when in a pipeline, who waits, and what a stage has to keep."""

from tfbook.parallel import (
    bubble_fraction,
    gpipe,
    idle_share,
    in_flight,
    one_forward_one_backward,
    timeline,
)
from tfbook.teaching.explorables._base import Explorable, one_of, whole, wrapped

TITLE = "A pipeline over time"
SCHEDULES = {"gpipe": gpipe, "1f1b": one_forward_one_backward}
LABELS = {"gpipe": "GPipe", "1f1b": "1F1B"}
MOST = {"stages": 8, "micro_batches": 24, "backward": 3}


def pipeline_schedule(
    schedule: str = "gpipe",
    *,
    stages: int = 4,
    micro_batches: int = 8,
    backward: int = 2,
    moment: int = 12,
    followed: int = 0,
) -> Explorable:
    r"""Return a figure of a pipeline's schedule: stages over time, as fast as they can be.

    A stage begins a forward pass when the stage before has done it, and a backward pass when the
    stage behind has. With $p$ stages and $m$ micro-batches each waits a share
    $(p - 1) / (m + p - 1)$ of the time in both schedules. GPipe does all forward passes first, so
    that a stage keeps the activations of all $m$; 1F1B does a backward pass as soon as it can, and
    the first stage keeps those of $p$ at most.

    Args:
        schedule: "gpipe" or "1f1b".
        stages: p, 1 to 8.
        micro_batches: m, 1 to 24.
        backward: Time of a backward pass, 1 to 3; a forward pass takes 1.
        moment: The unit of time that is looked at, from 0; at most the last one.
        followed: The micro-batch that stands out, from 0; at most the last one.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Example:
        >>> figure = pipeline_schedule("gpipe", stages=4, micro_batches=12)
        >>> figure.formula, figure.kept
        (0.2, [12, 12, 12, 12])
        >>> figure.schedule = "1f1b"
        >>> figure.formula, figure.kept
        (0.2, [4, 3, 2, 1])

    Source: [huang2019gpipe], [narayanan2019pipedream], [narayanan2021efficient].
    Explained in: chapters/17_hardware, section "Many devices".
    """
    last = (MOST["stages"] + MOST["micro_batches"]) * (1 + MOST["backward"])
    checks = {
        "schedule": one_of("schedule", *SCHEDULES),
        **{name: whole(name, 1, most) for name, most in MOST.items()},
        "moment": whole("moment", 0, last),
        "followed": whole("followed", 0, MOST["micro_batches"] - 1),
    }
    given = {
        "schedule": schedule, "stages": stages, "micro_batches": micro_batches,
        "backward": backward, "moment": moment, "followed": followed,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}
    data = {"title": TITLE, "labels": LABELS, "most": MOST}
    return Explorable(
        "pipeline_schedule", data=data, state=state, checks=checks, results=_results, text=_text
    )


def _results(now: dict) -> dict:
    p, m, times = now["stages"], now["micro_batches"], {"backward": float(now["backward"])}
    tasks = SCHEDULES[now["schedule"]](p, m)
    spans = timeline(tasks, **times)
    total = int(max(span.end for stage in spans for span in stage))
    moment = min(now["moment"], total - 1)
    doing, held = [], []
    for stage in spans:
        at = [span.task for span in stage if span.start <= moment < span.end]
        doing.append(f"{at[0].kind}{at[0].micro}" if at else "")
        begun = sum(span.task.kind == "F" and span.start <= moment for span in stage)
        ended = sum(span.task.kind == "B" and span.end <= moment for span in stage)
        held.append(begun - ended)
    kept = in_flight(tasks)
    return {
        "moment_shown": moment,
        "total": total,
        "bubble": idle_share(tasks, **times) if p > 1 else 0.0,
        "formula": bubble_fraction(p, m),
        "kept": kept,
        "most": max(kept),
        "share": max(kept) / m,
        "doing": doing,
        "held": held,
        "waits": [stage[0].start for stage in spans],
        "others": {name: max(in_flight(make(p, m))) for name, make in SCHEDULES.items()},
    }


def _text(now: dict) -> str:
    found, m = _results(now), now["micro_batches"]
    acts = ", ".join(
        f"stage {i} {'waits' if not task else 'does ' + task}"
        for i, task in enumerate(found["doing"])
    )
    return wrapped(f"""{TITLE}

    {LABELS[now["schedule"]]} with {now["stages"]} stages and {m} micro-batches: a forward pass
    takes 1 unit of time and a backward pass {now["backward"]}. The step takes {found["total"]}
    units, and a stage waits {found["bubble"]:.1%} of them. The stages keep the activations of at
    most {", ".join(map(str, found["kept"]))} micro-batches. In unit {found["moment_shown"]} {acts}
    (F: forward, B: backward, with the number of the micro-batch).

    In the page you choose the schedule, the stages and the micro-batches, and move through time;
    each stage is a line of coloured boxes with gaps where it waits.""")
