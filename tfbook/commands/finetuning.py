"""Fine-tuning from the command line: a run on the reader's own examples, begun or gone on with.

Explained in: chapters/18_practice, section "Fine-tuning on your own data".
"""

import argparse
import os
from functools import partial

import torch

from tfbook.commands.training import rate_course, say, seen
from tfbook.practice import (
    TUNING,
    check_tuning,
    count_trained,
    holds_tuning,
    make_tuning,
    read_examples,
    read_tuning,
    resolve_tuning,
    tuning_groups,
    write_tuning,
)
from tfbook.training import (
    Checkpointing,
    Execution,
    Monitoring,
    check_empty,
    choose_device,
    fit,
    steps_in,
)

__all__ = ["finetune"]


def finetune(chosen: argparse.Namespace) -> None:
    """Begin a run on a pretrained model or go on with one, as the arguments say.

    Raises:
        ValueError: for choices or examples that do not fit, or a run that they do not go with.
        OSError: if a file cannot be read, or the folder not be used.
        FloatingPointError: if the loss or a weight is no number any more.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    device = choose_device(chosen.device)
    choices, examples = _going_on(chosen) if chosen.resume else _beginning(chosen)
    ready = make_tuning(choices, examples)
    if chosen.resume:
        check_tuning(chosen.folder, ready)
    ready.model.to(device)
    if not chosen.resume or choices["steps"] > read_tuning(chosen.folder)["choices"]["steps"]:
        write_tuning(chosen.folder, choices, ready, examples)
    trained, total = count_trained(ready.model)
    say(
        f"{choices['model']} on {len(examples.items):,} {_words(examples)}: {trained:,} of "
        f"{total:,} parameters, {choices['steps']:,} steps at a rate of {choices['lr']:g}, "
        f"on {device}"
    )
    if chosen.resume:
        say(f"going on after {max(steps_in(chosen.folder), default=0):,} steps")
    found = fit(
        ready.model,
        ready.batches,
        loss=ready.loss,
        optimizer=torch.optim.AdamW(tuning_groups(ready.model, choices), betas=(0.9, 0.99)),
        steps=choices["steps"],
        schedule=rate_course(choices),
        clip=choices["clip"],
        seed=choices["seed"],
        execution=Execution(accumulate=choices["accumulate"], precision=choices["precision"]),
        monitoring=Monitoring(
            evaluate=ready.evaluate,
            every=choices["every"],
            patience=choices["patience"],
            log=os.path.join(chosen.folder, "log.jsonl"),
            report=partial(_report, steps=choices["steps"]),
        ),
        checkpointing=Checkpointing(chosen.folder, every=choices["every"]),
        progress=not chosen.quiet,
    )
    kept = f"{found.seconds:.0f} s; kept in {chosen.folder}"
    say(f"{seen(found, choices['steps'])}; {kept}")


def _report(history, steps):
    say(seen(history, steps))


def _words(examples) -> str:
    if examples.kind == "labels":
        return f"texts with {len(examples.labels)} labels"
    return {"text": "text", "answers": "conversations"}[examples.kind]


def _beginning(chosen):
    """Return the choices of a new run, and its examples."""
    if holds_tuning(chosen.folder):
        raise FileExistsError(
            f"{chosen.folder} holds a run already: go on with --resume, or choose another folder"
        )
    check_empty(chosen.folder)
    asked = _asked(chosen)
    if "data" not in asked:
        raise ValueError("finetune needs --data FILE: the examples to learn from")
    examples = read_examples(asked["data"])
    return resolve_tuning(asked, examples.kind), examples


def _going_on(chosen):
    """Return the choices of a run, which stay but for more steps or a new place of the file."""
    kept, asked = read_tuning(chosen.folder)["choices"], _asked(chosen)
    for name, value in asked.items():
        free = name == "data" or (name == "steps" and value > kept[name])
        if value != kept[name] and not free:
            raise ValueError(
                f"the run in {chosen.folder} has {name} {kept[name]!r}, not {value!r}: go on with "
                "--resume alone or with more --steps, or begin another run in another folder"
            )
    choices = kept | asked
    return choices, read_examples(choices["data"])


def _asked(chosen):
    """Return what was chosen on the command line; a path is that of the file, wherever one is."""
    asked = {name: value for name, value in vars(chosen).items() if name in TUNING}
    for name in ("data", "model"):
        if name in asked and (name == "data" or os.path.isdir(asked[name])):
            asked[name] = os.path.abspath(asked[name])
    return asked
