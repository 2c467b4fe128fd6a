"""What a check of the list says when it finds a fault, and what all checks use.

Explained in: chapters/18_practice, section "A checklist that finds the fault".
"""

from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from tfbook._checks import (
    check_float,
    check_ids,
    check_number,
)
from tfbook.training import get_random, set_random

__all__ = ["Finding"]


class Finding(NamedTuple):
    """One fault.

    Attributes:
        what: what is wrong.
        where: in which layer, at which place or step.
        measured: the number that shows it.
        expected: what a healthy model shows, in words.
        advice: what to try.

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """

    what: str
    where: str
    measured: float
    expected: str
    advice: str


@contextmanager
def unchanged():
    """Let random numbers go on afterwards as if none had been drawn."""
    before = get_random()
    try:
        with torch.enable_grad():
            yield
    finally:
        set_random(before)


def read_loss(value: object) -> Tensor:
    """Return a mean loss of what a loss function gave."""
    if isinstance(value, tuple) and len(value) == 2:
        value, count = value
        count = count.item() if isinstance(count, Tensor) and count.numel() == 1 else count
        check_number("the count of loss", count, above=0)
        value = value / count
    check_float("what loss returns", value)
    if value.numel() != 1:
        raise ValueError(f"loss must return one number, got shape {tuple(value.shape)}")
    return value


def logits_of(out: object) -> Tensor:
    logits = out[0] if isinstance(out, tuple) else out
    check_float("what the model returns", logits)
    return logits


def check_tokens(tokens: object, columns: int = 2) -> None:
    check_ids("tokens", tokens)
    if tokens.shape[1] < columns:
        raise ValueError(f"tokens must have at least {columns} columns, got {tuple(tokens.shape)}")
