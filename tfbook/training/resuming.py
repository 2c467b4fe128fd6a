"""What a training loop needs so that it can be stopped and gone on with, one small class for each.

The wish to end, the folder of checkpoints, and the run that holds all that has a state. The loop is
:func:`tfbook.training.fit`.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

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
from tfbook.training.files import Hold
from tfbook.training.history import History, Log
from tfbook.training.processes import Ranks
from tfbook.training.states import Best, Rates, Source, get_random, set_random

__all__ = ["Ending", "Run", "Saver"]


# What fit keeps beside the weights.
STATE = ("optimizer", "history", "data", "schedule", "best", "random")


class Ending:
    """Ctrl-C and SIGTERM as a wish that is granted between two steps.

    A second Ctrl-C ends at once; under torchrun, which passes the first one on, it is no other.

    Attributes:
        asked: the signal that came, or 0.

    Explained in: chapters/11_training, section "A run that can be resumed".
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

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    def __init__(self, checkpointing: Checkpointing | None, about: dict[str, object], ranks: Ranks):
        """Note where to write."""
        self.chosen, self.about, self.ranks = checkpointing, about, ranks
        self.folder = None if checkpointing is None else checkpointing.folder
        self.saved, self.hold = None, None

    def begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object] | None:
        """Take hold of the folder, load the last checkpoint, if any, and return the rest of it.

        Raises:
            BlockingIOError: if another training is writing into the folder.
            ValueError: if none is whole, it is of another run, or there is one and ``resume``
                is off.
        """
        if self.folder is None:
            return None
        self.hold = self._together(lambda: Hold(self.folder) if self._first else None)
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

    def end(self) -> None:
        """Let go of the folder."""
        if self.hold is not None:
            self.hold.release()

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
        missing = [name for name in STATE if name not in found.state]
        if missing:
            differing.append(f"it does not say {', '.join(missing)}")
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

    Explained in: chapters/11_training, section "A run that can be resumed".
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

    def __enter__(self) -> "Run":
        """Begin, as the only one that writes into the folder."""
        try:
            self.begin()
        except BaseException:
            self.saver.end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Let others write into the folder."""
        self.saver.end()

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
        """Keep what was seen after the last step, and the weights if they are the best.

        Raises:
            FloatingPointError: if the loss of the evaluation is not finite.
        """
        done = len(self.history)
        for name, values in found.items():
            getattr(self.history, name).append({"after": done} | values)
            log.write(after=done, **values)
        loss = found.get("evaluations", {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss of the evaluation {_lost(loss, done)}")
        if self.best.patience is not None:
            self.best.see(done, found["evaluations"]["loss"], self.model)

    def due(self, steps: int) -> bool:
        """Return whether to save: at the end, of steps or of patience, and every so often."""
        done = len(self.history)
        often = self.every is not None and done % self.every == 0
        return done == steps or self.best.over or often

    def save(self) -> None:
        """Write a checkpoint, if there is a folder.

        Raises:
            FloatingPointError: if a weight is not finite; nothing is written.
        """
        done = len(self.history)
        wrong = next((name for name, x in self.model.named_parameters() if not _finite(x)), None)
        wrong = next((name for name in self.ranks.gather(wrong) if name is not None), None)
        if wrong is not None:
            raise FloatingPointError(f"a weight of {wrong} {_lost('not finite', done)}")
        self.history.seconds = self.seconds
        state = {
            "history": asdict(self.history),
            "data": self.source.state_dict(),
            "schedule": self.rates.state_dict(),
            "best": self.best.state_dict(),
            "random": self.ranks.gather(get_random()),
        }
        self.saver.save(done, state, self.model, self.optimizer)

    def end(self) -> History:
        """Go back to the best weights, where they were sought; return what was measured."""
        self.history.seconds = self.seconds
        if self.best.step is not None:
            self.model.load_state_dict(self.best.weights)
            self.history.best_step = self.best.step
            self.history.stopped = "patience" if self.best.over else "steps"
        return self.history


def _finite(weight):
    own = weight.to_local() if hasattr(weight, "to_local") else weight  # of one that was cut
    return bool(own.isfinite().all())


def _lost(value, done):
    return (
        f"is {value} after {done} steps; the last checkpoint, if there is one, is from before. A "
        "smaller learning rate, a longer warm-up or clip= may help"
    )
