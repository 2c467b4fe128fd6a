"""Looking on while a model trains, without changing how it is trained.

Explained in: chapters/11_training, section "The finished loop".
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from tfbook._checks import check_ids, check_number
from tfbook.training.history import History
from tfbook.training.processes import Ranks
from tfbook.training.states import get_random, set_random

__all__ = ["UNWATCHED", "Monitoring", "attention_entropy", "evaluating"]


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """What is looked at while a model trains, how often, and where it is written down.

    Attributes:
        evaluate: a function of the model, called without gradients, in evaluation mode: a loss, or
            numbers by name, "loss" among them with ``patience``.
        monitors: named functions of the model and the last batch, called likewise.
        every: how often, in steps; and after the last one.
        patience: stop after so many evaluations in a row that brought no smaller loss, and go
            back to the weights of the best one.
        log: a file that gets a line of JSON for each step and each look: a new one, or the log
            of a run.
        report: called after each look, in the first process, with the history so far.

    Raises:
        ValueError: if a number is below 1, or there is patience and nothing to wait for.

    Explained in: chapters/11_training, section "The finished loop".
    """

    evaluate: Callable[[nn.Module], float | Mapping[str, float]] | None = None
    monitors: Mapping[str, Callable[[nn.Module, object], object]] = field(default_factory=dict)
    every: int = 100
    patience: int | None = None
    log: str | os.PathLike[str] | None = None
    report: Callable[[History], None] | None = None

    def __post_init__(self):
        """Check each of them."""
        check_number("every", self.every, 1, whole=True)
        for name, of in (("evaluate", "the model"), ("report", "the history")):
            function = getattr(self, name)
            if function is not None and not callable(function):
                kind = type(function).__name__
                raise TypeError(f"{name} must be a function of {of}, got {kind}")
        if self.log is not None and not isinstance(self.log, str | os.PathLike):
            raise TypeError(f"log must be a path, got {type(self.log).__name__}")
        if not isinstance(self.monitors, Mapping):
            kind = type(self.monitors).__name__
            raise TypeError(f"monitors must be functions by name, a dictionary, got {kind}")
        if self.patience is not None:
            check_number("patience", self.patience, 1, whole=True)
            if self.evaluate is None:
                raise ValueError("patience waits for a smaller loss of evaluate, which is missing")

    def look(self, model: nn.Module, batch: object, ranks: Ranks) -> dict[str, dict[str, object]]:
        """Return what monitors and evaluation say, as in the first process.

        Returns:
            numbers by name under "monitored" and "evaluations", where there are such functions.

        Raises:
            ValueError: if there is patience and the evaluation says no "loss".
        """
        found = {}
        with evaluating(model):
            if self.monitors:
                named = self.monitors.items()
                found["monitored"] = {name: each(model, batch) for name, each in named}
            if self.evaluate is not None:
                value = self.evaluate(model)
                values = dict(value) if isinstance(value, Mapping) else {"loss": value}
                if self.patience is not None and "loss" not in values:
                    raise ValueError(
                        'patience needs what evaluate returns to have "loss" among its names, '
                        f"got {', '.join(values) or 'none'}"
                    )
                found["evaluations"] = {name: float(number) for name, number in values.items()}
            return ranks.gather(found)[0]


UNWATCHED = Monitoring()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode for a while, without gradients.

    Afterwards every part is in the mode it was in, and the random numbers go on as if nothing had
    been drawn: looking at a model does not change how it is trained.
    """
    modes = {module: module.training for module in model.modules()}
    before = get_random()
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        set_random(before)
        for module, mode in modes.items():
            module.training = mode


def attention_entropy(model: nn.Module, batch: object) -> list[float]:
    """Return how spread out each layer's attention is: the entropy of its weights, in nats.

    mean over batch, heads and queries of −Σ_j a_j ln a_j: 0 where each query looks at one key, ln m
    where it looks at m keys alike. A layer whose entropy falls to 0 early in training has stopped
    learning where to look.

    Args:
        model: with ``attention_weights(tokens)``, such as :class:`tfbook.models.DecoderOnly`.
        batch: tokens (B, N), or a tuple or list that begins with them; columns beyond the model's
            ``max_len`` are left out.

    Returns:
        A number for each layer.

    Raises:
        TypeError: if the model cannot give its weights.

    Source: [zhai2023stabilizing]
    Explained in: chapters/11_training_deeper, section "Attention that collapses".
    """
    if not hasattr(model, "attention_weights"):
        raise TypeError(
            f"model must have attention_weights(tokens), which {type(model).__name__} has not"
        )
    tokens = batch[0] if isinstance(batch, list | tuple) and batch else batch
    check_ids("batch", tokens)
    longest = getattr(getattr(model, "config", None), "max_len", None)
    with torch.no_grad():
        layers = model.attention_weights(tokens[:, :longest])  # L of (B, H, N, N)
    return [torch.special.entr(weights.float()).sum(-1).mean().item() for weights in layers]
