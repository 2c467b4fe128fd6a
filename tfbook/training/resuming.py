"""What a training loop needs so that it can be stopped and gone on with, one small class for each.

The place in the data, the learning rates, the random numbers, the best weights so far, the wish to
end, the folder of checkpoints, and the run that holds them all. The loop is
:func:`tfbook.training.fit`.

Explained in: chapters/11_training, section "A run that cannot be lost".
"""

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from tfbook.training.checkpoints import (
    Checkpoint,
    Checkpointing,
    last_checkpoint,
    steps_in,
    write_checkpoint,
)
from tfbook.training.history import History, Log
from tfbook.training.processes import Ranks

__all__ = [
    "Best",
    "Ending",
    "Rates",
    "Run",
    "Saver",
    "Source",
    "get_random",
    "seed_all",
    "set_random",
]


class Source:
    """Batches one after the other, without an end, and which is next.

    Args:
        batches: as for :func:`tfbook.training.fit`.
        resumable: whether the place has to be known.

    Raises:
        TypeError: if they are nothing of that kind, or the place cannot be known.
        ValueError: if there is none.

    Explained in: chapters/11_training, section "A run that cannot be lost".
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

    Explained in: chapters/11_training, section "A run that cannot be lost".
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

    Explained in: chapters/11_training, section "A run that cannot be lost".
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
        """Compare the loss after some steps, and keep the weights if it is the smallest."""
        if self.loss is None or loss < self.loss:
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


class Ending:
    """Ctrl-C and SIGTERM as a wish that is granted between two steps.

    A second Ctrl-C ends at once; under torchrun, which passes the first one on, it is no other.

    Attributes:
        asked: the signal that came, or 0.

    Explained in: chapters/11_training, section "A run that cannot be lost".
    """

    def __init__(self, ranks: Ranks):
        """Ask for nothing yet."""
        self.asked, self.before, self.alone = 0, {}, ranks.size == 1

    def __enter__(self) -> "Ending":
        """Listen, where Python allows it: in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        """Let others listen again."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _hear(self, number, frame):
        if self.asked and self.alone:
            raise KeyboardInterrupt
        self.asked = number

    @property
    def wishes(self) -> tuple[float, float]:
        """Return 1 or 0 for Ctrl-C and for SIGTERM, to be added up over processes."""
        return float(self.asked == signal.SIGINT), float(self.asked == signal.SIGTERM)

    @staticmethod
    def end(message: str, *, terminated: bool) -> None:
        """Raise what the signal stands for: SystemExit for SIGTERM, else KeyboardInterrupt."""
        if terminated:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(message)


class Saver:
    """The folder of a run: what is there to go on from, and what is added to it.

    Args:
        checkpointing: where, and how many to keep; None for no folder.
        about: what has to be the same in a run that goes on.
        ranks: the processes, of which the first writes.

    Explained in: chapters/11_training, section "A run that cannot be lost".
    """

    def __init__(self, checkpointing: Checkpointing | None, about: dict[str, object], ranks: Ranks):
        """Note where to write."""
        self.chosen, self.about, self.ranks = checkpointing, about, ranks
        self.folder = None if checkpointing is None else checkpointing.folder
        self.saved = None

    def begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object] | None:
        """Load the last checkpoint, if there is one, and return the rest of it.

        Raises:
            ValueError: if none is whole, it is of another run, or there is one and ``resume``
                is off.
        """
        if self.folder is None:
            return None
        if not self.chosen.resume:
            if steps_in(self.folder):
                raise ValueError(
                    f"{self.folder} holds checkpoints already: go on with resume=True, or choose "
                    "another folder"
                )
            return None
        found = self._together(lambda: last_checkpoint(self.folder) if self._first else None)
        if not self._first:  # by now the damaged ones are set aside
            found = last_checkpoint(self.folder)
        if found is None:
            return None
        self._compare(found, model)
        state = dict(found.state)
        self.ranks.restore(model, optimizer, found.model, state.pop("optimizer"))
        self.saved = found.step
        return state

    def save(
        self,
        step: int,
        state: dict[str, object],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Write a checkpoint, unless that of this step is there.

        Raises:
            OSError: in every process, if the first could not write it.
        """
        if self.folder is None or self.saved == step:
            return
        weights, own = self.ranks.collect(model, optimizer)
        checkpoint = Checkpoint(step, weights, state | {"optimizer": own}, self.about)

        def write():
            if self._first:
                write_checkpoint(self.folder, checkpoint, keep=self.chosen.keep)

        self._together(write)
        self.saved = step

    @property
    def _first(self) -> bool:
        return self.ranks.rank == 0

    def _together(self, do):
        """Do something; if it fails in one process, fail in all, so that none waits for it."""
        done, failed = None, None
        try:
            done = do()
        except (OSError, ValueError, TypeError) as error:
            failed = error
        for error in self.ranks.gather(failed):
            if error is not None:
                raise failed or error
        return done

    def _compare(self, found, model):
        """Raise unless the checkpoint is of this run."""
        wanted = json.loads(json.dumps(self.about))  # tuples and lists are one
        there = json.loads(json.dumps(found.about))
        differing = [
            f"{name} is {there.get(name)!r} there and {wanted.get(name)!r} here"
            for name in [*wanted, *(name for name in there if name not in wanted)]
            if there.get(name) != wanted.get(name)
        ]
        shapes = {name: tuple(x.shape) for name, x in model.state_dict().items()}
        kept = {name: tuple(x.shape) for name, x in found.model.items()}
        for name in [*shapes, *(name for name in kept if name not in shapes)]:
            if shapes.get(name) != kept.get(name):
                differing.append(
                    f"{name} has shape {kept.get(name)} there and {shapes.get(name)} here"
                )
                break  # one says enough
        if differing:
            raise ValueError(
                f"the checkpoint of step {found.step} in {self.folder} is of another run: "
                f"{'; '.join(differing)}; choose another folder, or make the run as it was"
            )


class Run:
    """A model on its way: all that has to go on where it was, and how far it got.

    Args:
        model: in training.
        optimizer: of its parameters.
        ranks: the processes.
        batches: see :func:`tfbook.training.fit`.
        schedule: see :func:`tfbook.training.fit`.
        patience: see :class:`tfbook.training.Monitoring`.
        checkpointing: see :func:`tfbook.training.fit`.
        settings: numbers and names that have to be the same in a run that goes on.

    Explained in: chapters/11_training, section "A run that cannot be lost".
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        *,
        batches: object,
        schedule: LRScheduler | Callable[[int], float] | None,
        patience: int | None,
        checkpointing: Checkpointing | None,
        settings: dict[str, object],
    ):
        """Begin with nothing."""
        self.model, self.optimizer, self.ranks = model, optimizer, ranks
        self.source = Source(batches, resumable=checkpointing is not None)
        self.rates, self.best, self.history = Rates(optimizer, schedule), Best(patience), History()
        self.every = None if checkpointing is None else checkpointing.every
        config = getattr(model, "config", None)
        about = {
            "model": type(model).__name__,
            "config": config.to_dict() if hasattr(config, "to_dict") else None,
            "optimizer": type(optimizer).__name__,
            "groups": self.rates.groups,
        }
        self.saver = Saver(checkpointing, about | settings, ranks)
        self.started = time.perf_counter()

    def begin(self) -> None:
        """Go to where the last checkpoint is, if there is one."""
        if saved := self.saver.begin(self.model, self.optimizer):
            self.history = History(**saved["history"])
            self.source.load_state_dict(saved["data"])
            self.rates.load_state_dict(saved["schedule"])
            self.best.load_state_dict(saved["best"])
            if self.ranks.rank < len(saved["random"]):
                set_random(saved["random"][self.ranks.rank])
        self.started = time.perf_counter() - self.history.seconds

    @property
    def seconds(self) -> float:
        """Return how long the run has taken, in this process and those before it."""
        return time.perf_counter() - self.started

    def took(self, *, loss: float, gradient_norm: float, count: float, log: Log) -> None:
        """Keep what a step measured, and go on in the schedule."""
        step, rate = len(self.history), self.optimizer.param_groups[0]["lr"]
        self.history.add(loss=loss, gradient_norm=gradient_norm, learning_rate=rate, count=count)
        log.write(step=step, **self.history.last(), seconds=round(self.seconds, 3))
        self.rates.after()

    def saw(self, found: Mapping[str, Mapping[str, object]], log: Log) -> None:
        """Keep what was seen after the last step, and the weights if they are the best."""
        done = len(self.history)
        for name, values in found.items():
            getattr(self.history, name).append({"after": done} | values)
            log.write(after=done, **values)
        if self.best.patience is not None:
            self.best.see(done, found["evaluations"]["loss"], self.model)

    def due(self, steps: int) -> bool:
        """Return whether to save: at the end, of steps or of patience, and every so often."""
        done = len(self.history)
        often = self.every is not None and done % self.every == 0
        return done == steps or self.best.over or often

    def save(self) -> None:
        """Write a checkpoint, if there is a folder."""
        self.history.seconds = self.seconds
        state = {
            "history": asdict(self.history),
            "data": self.source.state_dict(),
            "schedule": self.rates.state_dict(),
            "best": self.best.state_dict(),
            "random": self.ranks.gather(get_random()),
        }
        self.saver.save(len(self.history), state, self.model, self.optimizer)

    def end(self) -> History:
        """Go back to the best weights, where they were sought; return what was measured."""
        self.history.seconds = self.seconds
        if self.best.step is not None:
            self.model.load_state_dict(self.best.weights)
            self.history.best_step = self.best.step
            self.history.stopped = "patience" if self.best.over else "steps"
        return self.history


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
    }


def set_random(state: Mapping[str, object]) -> None:
    """Put the random numbers there."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def _plain(value):
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
