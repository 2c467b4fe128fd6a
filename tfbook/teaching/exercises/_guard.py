"""Calling the reader's function: with a time limit, on inputs of ours, and in readable words."""

import builtins
import copy
import dis
import functools
import inspect
import math
import os
import random
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from types import CodeType
from typing import Any, get_args, get_type_hints

import torch

from tfbook.teaching.exercises._spec import Exercise, NotStarted, Wrong

PATIENCE = 12  # a call that waits instead of computing may last so many times its limit
PLACES = ("first", "second", "third", "fourth")
# What an answer could change for whoever comes after it, the check itself among them.
SHARED = (torch, torch.nn.functional, torch.linalg, torch.Tensor, math, random, builtins)


class TooSlow(BaseException):
    """The time limit; not an Exception, so that the reader's `except Exception` lets it through."""


@contextmanager
def steady_torch() -> Iterator[None]:
    """Run with float32, gradients and the CPU as defaults; put back all of it and the seed."""
    dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.device("cpu"):
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the block after so many seconds of processor time, with what it took.

    Time in which other programs have the processor does not count. A block that waits takes no
    processor time; it is stopped after `PATIENCE` times as many seconds. Only the main thread of a
    system with interval timers (Linux, macOS) can be interrupted; elsewhere the block runs without
    a limit.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not (in_main and hasattr(signal, "setitimer")):
        yield
        return

    def stop(signum: int, frame: Any) -> None:
        if time.thread_time() - computed >= seconds:
            raise TooSlow(f"{seconds:g} seconds")
        if time.monotonic() - started >= PATIENCE * seconds:
            raise TooSlow(f"{PATIENCE * seconds:g} seconds, most of them spent waiting")

    started, computed = time.monotonic(), time.thread_time()
    handler = signal.signal(signal.SIGALRM, stop)
    # The repeat looks again, and catches code that swallows the first interruption.
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, seconds / 4)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:  # somebody else's timer was running: let it go on where it would be by now
            left = max(left - (time.monotonic() - started), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


class Shared:
    """What is shared by all code: names of PyTorch, Python's functions; kept as they were."""

    def __init__(self) -> None:
        """Note what is there."""
        self.kept = [(place, dict(vars(place))) for place in SHARED]

    def restore(self) -> str:
        """Put back what was changed, and return its name, or ""."""
        changed = ""
        for place, kept in self.kept:
            now = vars(place)
            if self._alike(now, kept):  # the usual case, and a fast one
                continue
            for name in [name for name, value in kept.items() if now.get(name) is not value]:
                setattr(place, name, kept[name])
                changed = f"{place.__name__}.{name}"
            if isinstance(place, type):  # a module may load a part of itself, a class gets none
                for name in set(now) - set(kept):
                    delattr(place, name)
                    changed = f"{place.__module__}.{place.__name__}.{name}"
        return changed

    @staticmethod
    def _alike(now: Any, kept: dict[str, Any]) -> bool:
        try:
            return bool(now == kept)  # looks at values that are not the same object
        except Exception:  # a tensor in the place of a function compares to no single answer
            return False


class Guarded:
    """The reader's function as the properties call it.

    Every way to go wrong becomes a `Wrong` in words: a signature that does not fit, an exception,
    a call without end, a changed input, a forgotten return. `given` and `got` hold the last call.
    """

    def __init__(self, exercise: Exercise, function: Callable[..., Any], seconds: float) -> None:
        """Wrap `function`, to be called the way the exercise's stub is called."""
        self.exercise, self.function, self.seconds = exercise, function, seconds
        self.given: dict[str, Any] = {}
        self.got: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the reader's function once and return what it returned."""
        bound = inspect.signature(self.exercise.stub).bind(*args, **kwargs).arguments
        self.given = {name: _copy(value) for name, value in bound.items()}
        self.got = None
        if self.exercise.broken and _same_code(self.function, self.exercise.stub):
            raise NotStarted
        self._match_signature(args, kwargs)
        shared, changed = Shared(), ""
        try:
            try:
                with time_limit(self.seconds):
                    result = self.function(*args, **kwargs)
            finally:
                changed = shared.restore()
        except Wrong:  # from an input of ours that watches how it is used
            raise
        except (Exception, SystemExit, TooSlow) as error:
            self._explain(error)
        if changed:
            raise Wrong(
                f"Your function replaced `{changed}`, which all other code uses too. It was put "
                "back: give your own function a name of its own."
            )
        if result is Ellipsis or (result is None and _does_nothing(self.function)):
            raise NotStarted
        if result is None:
            raise Wrong("Your function returned None. Is the `return` missing?")
        self.got = _copy(result)
        for name, value in bound.items():
            if not _equal(value, self.given[name]):
                how = "compute a new one, without `+=`, `[...] =` or methods that end in `_`."
                if not isinstance(value, torch.Tensor):
                    how = "build a new one, without `append`, `pop`, `sort`, `+=` or `[...] =`."
                kind = "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
                raise Wrong(
                    f"Your function {_deed(value, self.given[name])} its input `{name}`. Whoever "
                    f"called it still needs that {kind}: {how}",
                    got=value, wanted=self.given[name],
                )
        return result

    def _match_signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):  # some built-in functions have none; the call will tell
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            stub = self.exercise.stub
            wanted = ", ".join(inspect.signature(stub).parameters)
            raise Wrong(
                f"Your function takes ({', '.join(signature.parameters)}), but it is called as "
                f"{stub.__name__}({wanted}): {error}."
            ) from error

    def _explain(self, error: BaseException) -> None:
        line = _readers_line(error, self.function)
        place = f" at your line {line.lineno}: `{line.line}`" if line else ""
        if isinstance(error, TooSlow):
            raise Wrong(
                f"Your function was stopped after {error}{place}. Does a loop never end?"
            ) from error
        if isinstance(error, NotImplementedError) and _raised_in_python(error):
            raise NotStarted from error
        message = re.sub(r" at 0x[0-9a-f]+", "", str(error)).strip().partition("\n")[0]
        message = message if len(message) <= 200 else message[:199] + "…"
        kind = type(error).__name__ + (f": {message}" if message else "")
        comma = "," if place else "."
        raise Wrong(f"Your function raised {kind.rstrip('.')}{comma}{place}") from error


def _copy(value: Any) -> Any:
    """Return a copy of tensors and of plain lists, dictionaries and sets; all else is itself."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(_copy, value))
    if type(value) is dict:
        return {name: _copy(each) for name, each in value.items()}
    return copy.deepcopy(value) if isinstance(value, list | dict | set) else value


def _equal(left: Any, right: Any) -> bool:
    """Tell whether a value is still as its copy."""
    if isinstance(left, torch.Tensor):
        return left.shape == right.shape and torch.allclose(left, right, 0, 0, equal_nan=True)
    if type(left) in (list, tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    if type(left) is dict:
        return list(left) == list(right) and all(map(_equal, left.values(), right.values()))
    plain = isinstance(left, list | dict | set | int | float | str | bytes | None)
    return left is right or not plain or bool(left == right)


def _deed(value: Any, kept: Any) -> str:
    """Say in words what became of an argument that is no longer as its copy."""
    if not isinstance(value, list | dict | set) or len(value) >= len(kept):
        return "changed"
    gone = len(kept) - len(value)
    return f"took {gone} of {len(kept)} entries out of" if value else "emptied"


def reordered(
    function: Callable[..., Any], exercise: Exercise, got: Any
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield for each other order of an answer's results the sentence that names it, and the answer.

    got: what the answer returned. An exercise that asks for one result has no other order.
    """
    count = len(get_args(get_type_hints(exercise.stub).get("return")))
    if not isinstance(got, tuple | list) or not 2 <= len(got) <= len(PLACES) or len(got) != count:
        return
    for order in list(permutations(range(count)))[1:]:

        @functools.wraps(function)
        def answer(*args: Any, _order: tuple[int, ...] = order, **kwargs: Any) -> Any:
            results = function(*args, **kwargs)
            return tuple(results[i] for i in _order)

        places = ", then ".join(f"your {PLACES[i]}" for i in order)
        words = "The two results are exchanged: return your second first."
        if count > 2:
            words = f"The results are right, but in another order: return {places}."
        yield words, answer


def _does_nothing(function: Callable[..., Any]) -> bool:
    """Tell whether a function that returned None uses no name and binds no variable."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    return not code.co_names and code.co_nlocals == len(inspect.signature(function).parameters)


def _same_code(left: Any, right: Any) -> bool:
    """Tell whether two functions do the same, word for word; comments and docstrings are free."""
    codes = [getattr(inspect.unwrap(each), "__code__", None) for each in (left, right)]
    return None not in codes and _words(codes[0]) == _words(codes[1])


def _words(code: CodeType) -> tuple:
    """What a function does, without where it stands and what its docstring says."""
    # A call by the name of an imported module is compiled otherwise where the import stands.
    kept = [step for step in dis.get_instructions(code) if step.opname != "PUSH_NULL"]
    steps = [
        (
            step.opname.replace("LOAD_METHOD", "LOAD_ATTR"),
            sum(each.offset < step.argval for each in kept)  # so many steps stand before it
            if step.opcode in (*dis.hasjrel, *dis.hasjabs)
            else _words(step.argval)
            if isinstance(step.argval, CodeType)
            else step.argrepr.removeprefix("NULL + ").removeprefix("NULL|self + "),
        )
        for step in kept
    ]
    return code.co_varnames[: code.co_argcount], *steps


def _raised_in_python(error: BaseException) -> bool:
    """Tell a `raise` statement from torch's own NotImplementedError for a missing kernel."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and any(
        step.offset == trace.tb_lasti and step.opname == "RAISE_VARARGS"
        for step in dis.get_instructions(trace.tb_frame.f_code)
    )


def _readers_line(
    error: BaseException, function: Callable[..., Any]
) -> traceback.FrameSummary | None:
    """Return the deepest line of the traceback that the reader wrote, or None.

    Theirs is what stands in the same file as the function, or in a notebook cell, which is source
    text without a file on disk.
    """
    code = getattr(function, "__code__", None)
    home = code.co_filename if code is not None else None
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [
        frame
        for frame in frames
        if frame.line and (frame.filename == home or not os.path.exists(frame.filename))
    ]
    return theirs[-1] if theirs else None
