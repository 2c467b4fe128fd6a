"""Parts of a run that have a state: the place in the data, the rates, the best weights, chance.

Each says where it is, so that a checkpoint can keep it, and can be put there again.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import math
import random
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

__all__ = ["Best", "Rates", "Source", "get_random", "seed_all", "set_random"]


class Source:
    """Batches one after the other, without an end, and which is next.

    Args:
        batches: as for :func:`tfbook.training.fit`.
        resumable: whether the place has to be known.

    Raises:
        TypeError: if they are nothing of that kind, or the place cannot be known.
        ValueError: if there is none.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    def __init__(self, batches: object, *, resumable: bool = False):
        """Find out of which kind the batches are."""
        listed = isinstance(batches, list | tuple)
        if listed and not batches:
            raise ValueError("batches must hold at least one batch, got none")
        self.batches, self.drawn, self.iterator = batches, 0, None
        self.stateful = hasattr(batches, "state_dict") and hasattr(batches, "load_state_dict")
        again = hasattr(batches, "__iter__")
        self.numbered = None
        if listed:
            self.numbered = lambda number: batches[number % len(batches)]
        elif callable(batches) and not again:
            self.numbered = batches
        elif not again:
            raise TypeError(
                "batches must be a list, a function from a number to a batch, or something to "
                f"iterate over, got {type(batches).__name__}"
            )
        elif resumable and not self.stateful:
            raise TypeError(
                "with checkpointing= the place in the data must be known: batches must be a list, "
                "a function from a number to a batch, or have state_dict() and load_state_dict(), "
                f"got {type(batches).__name__}"
            )

    def __next__(self) -> object:
        """Return the next batch; at the end of the data begin again.

        Raises:
            ValueError: if there is nothing to begin with again.
        """
        self.drawn += 1
        if self.numbered is not None:
            return self.numbered(self.drawn - 1)
        for _ in range(2):
            if self.iterator is None:
                self.iterator = iter(self.batches)
            try:
                return next(self.iterator)
            except StopIteration:
                self.iterator = None
        raise ValueError(
            f"batches gave {self.drawn - 1} and then no more: it must be possible to iterate over "
            "them again, so pass a list or a loader and no generator"
        )

    def state_dict(self) -> dict[str, object]:
        """Return the place."""
        return {
            "drawn": self.drawn,
            "batches": self.batches.state_dict() if self.stateful else None,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a place."""
        self.drawn, self.iterator = state["drawn"], None
        if self.stateful:
            self.batches.load_state_dict(state["batches"])


class Rates:
    """The learning rates: a pure function of the step, a scheduler of PyTorch, or as they are.

    Attributes:
        groups: what the optimizer's groups were given, for comparison with those of a checkpoint.

    Raises:
        TypeError: if the schedule is neither a function nor a scheduler.
        ValueError: from ``set``, if a rate is not finite.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: LRScheduler | Callable[[int], float] | None = None,
    ):
        """Note the learning rates to begin with."""
        self.scheduler = schedule if isinstance(schedule, LRScheduler) else None
        self.factor = None if self.scheduler is not None else schedule
        if self.factor is not None and not callable(self.factor):
            raise TypeError(
                "schedule must be a function from the step to a factor or a scheduler, "
                f"got {type(schedule).__name__}"
            )
        self.optimizer = optimizer
        changing = ("params", "param_names", "lr")
        self.groups = []
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
            given = {name: _plain(x) for name, x in group.items() if name not in changing}
            self.groups.append(given | {"parameters": len(group["params"])})

    def set(self, step: int) -> None:
        """Set the learning rates for a step, if they are a function of it."""
        if self.factor is not None:
            factor = self.factor(step)
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
        for group in self.optimizer.param_groups:
            if not math.isfinite(group["lr"]):
                raise ValueError(
                    f"the learning rate must be finite, got {float(group['lr'])} at step {step}: "
                    "look at schedule= and at the rate of the optimizer"
                )

    def after(self) -> None:
        """Let the scheduler, if there is one, know that a step was taken."""
        if self.scheduler is not None:
            self.scheduler.step()

    def state_dict(self) -> dict[str, object]:
        """Return where the scheduler is."""
        return {} if self.scheduler is None else self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Put the scheduler there."""
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state)


class Best:
    """The weights that had the smallest loss so far, and for how long none was smaller.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    def __init__(self, patience: int | None):
        """Begin without any."""
        self.patience, self.loss, self.step, self.waited = patience, None, None, 0
        self.weights = {}

    @property
    def over(self) -> bool:
        """Return whether patience is at its end."""
        return self.patience is not None and self.waited >= self.patience

    def see(self, step: int, loss: float, model: nn.Module) -> None:
        """Compare the loss after some steps, and keep the weights if it is the smallest.

        A loss that is no number is never the smallest.
        """
        if not math.isnan(loss) and (self.loss is None or loss < self.loss):
            self.loss, self.step, self.waited = loss, step, 0
            self.weights = {name: x.detach().clone() for name, x in model.state_dict().items()}
        else:
            self.waited += 1

    def state_dict(self) -> dict[str, object]:
        """Return all of it."""
        return {name: value for name, value in vars(self).items() if name != "patience"}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take all of it over."""
        vars(self).update(state)


def seed_all(seed: int) -> None:
    """Seed the random numbers of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def get_random() -> dict[str, object]:
    """Return where the random numbers of Python, NumPy and PyTorch are."""
    on_gpu = torch.cuda.is_available()
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if on_gpu else [],
        "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
    }


def set_random(state: Mapping[str, object]) -> None:
    """Put the random numbers there."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    if torch.backends.mps.is_available() and state.get("mps") is not None:
        torch.mps.set_rng_state(state["mps"])


def _plain(value):
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
