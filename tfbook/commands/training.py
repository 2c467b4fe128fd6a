"""Training from the command line: a run is begun, gone on with, or lengthened.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping

from tqdm import tqdm

from tfbook.optimization import schedule
from tfbook.training import (
    DEFAULTS,
    MEANINGS,
    Checkpointing,
    Execution,
    History,
    Monitoring,
    Ranks,
    check_choices,
    check_data,
    check_empty,
    choose_device,
    fit,
    lengthen,
    make_optimizer,
    make_task,
    read_choices,
    steps_in,
    write_choices,
)

__all__ = ["rate_course", "say", "seen", "train"]


def train(chosen: argparse.Namespace) -> None:
    """Begin a run or go on with one, as the arguments say.

    Raises:
        ValueError: for choices that do not fit, or a run that they do not go with.
        OSError: if a text cannot be read, or the folder not be used.
        FloatingPointError: if the loss or a weight is no number any more.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    first = Ranks().rank == 0
    device = choose_device(chosen.device)
    choices = _going_on(chosen) if chosen.resume else _beginning(chosen)
    ready = make_task(chosen.task, choices)
    ready.model.to(device)
    optimizer = make_optimizer(choices, shard=chosen.shard)
    if not chosen.shard:  # which cuts the weights first
        optimizer = optimizer(ready.model)
    falling = rate_course(choices)
    if chosen.resume:
        check_data(chosen.folder, ready)
    if first:
        _begin_or_lengthen(chosen, choices, ready)
        say(
            f"{ready.model.count_parameters():,} parameters, {choices['steps']:,} steps of "
            f"{choices['optimizer']} at a rate of {choices['lr']:g} ({choices['schedule']}), "
            f"on {device}"
        )
    found = fit(
        ready.model,
        ready.batches,
        loss=ready.loss,
        optimizer=optimizer,
        steps=choices["steps"],
        schedule=falling,
        clip=choices["clip"],
        seed=choices["seed"],
        execution=Execution(
            accumulate=choices["accumulate"], precision=choices["precision"], shard=chosen.shard
        ),
        monitoring=Monitoring(
            evaluate=ready.evaluate,
            every=choices["every"],
            patience=choices["patience"],
            log=os.path.join(chosen.folder, "log.jsonl"),
            report=lambda history: say(seen(history, choices["steps"])),
        ),
        checkpointing=Checkpointing(chosen.folder, every=choices["every"]),
        progress=not chosen.quiet,
    )
    if first:
        say(f"{seen(found, choices['steps'])}; {found.seconds:.0f} s; kept in {chosen.folder}")


def _beginning(chosen):
    """Return the choices of a new run."""
    check_empty(chosen.folder)
    choices = DEFAULTS[chosen.task] | _asked(chosen)
    check_choices(chosen.task, choices)
    if choices["warmup"] is None:
        choices["warmup"] = min(100, choices["steps"] // 10)
    return choices


def _going_on(chosen):
    """Return the choices of a run, which stay as they were but for a longer run or a new place."""
    task, choices = read_choices(chosen.folder)
    asked = _asked(chosen)
    for name, value in ({"task": chosen.task} | asked).items():
        kept = task if name == "task" else choices[name]
        free = name == "text" or (name == "steps" and value > kept)
        if value != kept and not free:
            raise ValueError(
                f"the run in {chosen.folder} has {name} {kept!r}, not {value!r}: go on with "
                "--resume alone or with more --steps, or begin another run in another folder"
            )
    check_choices(task, choices | asked)
    return choices | asked


def _asked(chosen):
    """Return what was chosen on the command line; a path is that of the file, wherever one is."""
    asked = {name: value for name, value in vars(chosen).items() if name in MEANINGS}
    return asked | {"text": os.path.abspath(asked["text"])} if "text" in asked else asked


def rate_course(choices: Mapping[str, object]) -> Callable[[int], float]:
    """Return the factor on the learning rate for each step, as a run's choices say.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    course = {"warmup": choices["warmup"]}
    if choices["schedule"] != "constant":
        course["steps"] = choices["steps"]
    return schedule(choices["schedule"], **course)


def _begin_or_lengthen(chosen, choices, ready):
    """Write down what was chosen, and say where a run goes on."""
    if not chosen.resume:
        write_choices(chosen.folder, chosen.task, choices, ready)
        return
    done, (_, kept) = max(steps_in(chosen.folder), default=0), read_choices(chosen.folder)
    say(f"going on after {done:,} steps")
    if choices["steps"] > kept["steps"]:
        lengthen(chosen.folder, choices["steps"])
        rate, before = (
            choices["lr"] * rate_course(each)(min(done, each["steps"] - 1))
            for each in (choices, kept)
        )
        say(
            f"{choices['steps']:,} steps instead of {kept['steps']:,}: the {choices['schedule']} "
            f"schedule now ends there, so the learning rate is {rate:.2g} and not {before:.2g}"
        )


def seen(history: History, steps: int) -> str:
    """Return what the last evaluation said, and the best one so far.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    numbers = history.evaluations[-1]
    shown = (f"{name} {value:.4f}" for name, value in numbers.items() if name != "after")
    best = min(history.evaluations, key=lambda each: each["loss"])
    return (
        f"after {numbers['after']:,} of {steps:,} steps: held-out {', '.join(shown)} "
        f"(best {best['loss']:.4f} after {best['after']:,})"
    )


def say(text: str) -> None:
    """Say something that is no result, above a bar if there is one.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    tqdm.write(text, file=sys.stderr)
