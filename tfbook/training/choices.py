"""What can be chosen for a run of the command line: defaults, meanings, bounds.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import os
from collections.abc import Mapping

from tfbook._checks import check_number
from tfbook.training.gradients import PRECISIONS

__all__ = ["DEFAULTS", "MEANINGS", "OPTIMIZERS", "check_choices", "check_memory"]

Choices = dict[str, object]
OPTIMIZERS = ("adamw", "muon")

_MODEL = {"d_model": 128, "layers": 4, "heads": 4, "dropout": 0.0}
_COURSE = {
    "steps": 1000,
    "batch": 16,
    "accumulate": 1,
    "lr": 3e-3,
    "warmup": None,
    "schedule": "cosine",
    "optimizer": "adamw",
    "weight_decay": 0.1,
    "clip": 1.0,
    "precision": "float32",
    "seed": 0,
    "every": 250,
    "patience": None,
}
DEFAULTS: Mapping[str, Choices] = {
    "lm": {"text": None, "vocab": None, "context": 256} | _MODEL | _COURSE,
    "mt": {"vocab": 2000, "context": 48}
    | _MODEL
    | {"layers": 2, "dropout": 0.1}
    | _COURSE
    | {"batch": 32, "lr": 1e-3},
    "classifier": {"vocab": 8000, "context": 64}
    | _MODEL
    | {"d_model": 64, "layers": 2, "dropout": 0.3}
    | _COURSE
    | {"batch": 32, "lr": 1e-3, "every": 100, "patience": 4},
}

# Of each choice its kind, or the names it can have, and what it means where the name says less.
MEANINGS: Mapping[str, tuple[object, str]] = {
    "text": (str, "a text file (UTF-8) to learn; its last tenth is held out"),
    "vocab": (int, "learn so many tokens by byte-pair encoding (260 or more)"),
    "context": (int, "tokens that the model sees at once; attention costs its square"),
    "d_model": (int, "numbers for each token in the residual stream"),
    "layers": (int, "blocks, each attention and a feed-forward network"),
    "heads": (int, "attention heads of a block; they share d_model among them"),
    "dropout": (float, "how much of what a block adds is dropped; for small data 0.1 to 0.3"),
    "steps": (int, "how often the weights are changed; with --resume more than before"),
    "batch": (int, "sequences for a step, over all processes"),
    "accumulate": (int, "batches for a step: larger steps in the same memory"),
    "lr": (float, "learning rate at its highest: the choice that matters most"),
    "warmup": (int, "steps in which the learning rate rises to it (a tenth, at most 100)"),
    "schedule": (("constant", "linear", "cosine"), "how it falls after that"),
    "optimizer": (OPTIMIZERS, "how a gradient becomes a step"),
    "weight_decay": (float, "how much matrices shrink at each step, times the learning rate"),
    "clip": (float, "longest gradient: a longer one is shortened to it"),
    "precision": (PRECISIONS, "of products; bfloat16 (bf16) pays on a GPU, and not on most CPUs"),
    "seed": (int, "of everything that is drawn; the same seed gives the same run"),
    "every": (int, "steps between two evaluations, and between two checkpoints"),
    "patience": (int, "stop after so many evaluations that brought nothing better"),
}
# Whole numbers from … to …; beyond them a slip of the finger would hang or end the machine.
BOUNDS = {
    "vocab": (1, 10**7),
    "context": (1, 2**20),
    "d_model": (1, 2**16),
    "layers": (1, 1000),
    "heads": (1, 2**16),
    "steps": (1, 10**9),
    "batch": (1, 2**20),
    "accumulate": (1, 2**20),
    "warmup": (0, 10**9),
    "seed": (0, 2**63 - 1),
    "every": (1, 10**9),
    "patience": (1, 10**9),
}


def check_choices(name: str, choices: Mapping[str, object]) -> None:
    """Raise unless the choices are those of a task, each of its kind and within its bounds.

    Args:
        name: of the task, one of ``DEFAULTS``.
        choices: all of them.

    Raises:
        TypeError: if a choice is of another kind.
        ValueError: for an unknown task, a choice too many or too few, or one out of its bounds.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    if not isinstance(name, str) or name not in DEFAULTS:
        raise ValueError(f"task must be one of {', '.join(DEFAULTS)}, got {name!r}")
    wrong = set(choices) ^ set(DEFAULTS[name])
    if wrong:
        raise ValueError(f"choices must be those of {name!r}, got {min(wrong)} wrong")
    for choice, value in choices.items():
        kind, _ = MEANINGS[choice]
        if value is None and DEFAULTS[name][choice] is None:
            continue
        if kind is int:
            check_number(choice, value, *BOUNDS[choice], whole=True)
        elif isinstance(kind, tuple) and value not in kind:
            raise ValueError(f"{choice} must be one of {', '.join(kind)}, got {value!r}")
        elif kind is str and not isinstance(value, str):
            raise TypeError(f"{choice} must be a string, got {type(value).__name__}")
    check_number("lr", choices["lr"], above=0)
    check_number("clip", choices["clip"], above=0)
    check_number("weight_decay", choices["weight_decay"], 0)
    check_number("dropout", choices["dropout"], 0, below=1)


def check_memory(parameters: int, vocab_size: int, choices: Mapping[str, object]) -> None:
    """Raise ValueError if a run would take more memory than the machine has.

    Weights, gradients and the two means of Adam take 16 bytes a parameter, logits and their
    gradients 8 bytes for each token of a batch and each of the vocabulary. What layers keep for
    the backward pass comes on top, so a run that passes may still be too large.

    Args:
        parameters: of the model.
        vocab_size: V.
        choices: of the run.

    Raises:
        ValueError: naming what the run takes and what there is.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    wanted = 16 * parameters + 8 * choices["batch"] * choices["context"] * vocab_size
    names = getattr(os, "sysconf_names", {})
    if not {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= set(names):  # Windows
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > there:
        raise ValueError(
            f"{parameters:,} parameters and a batch of {choices['batch']:,} × "
            f"{choices['context']:,} tokens take {wanted / 1e9:,.0f} GB at least, and this "
            f"machine has {there / 1e9:,.0f}: choose a smaller model, batch or context"
        )
