"""Graded exercises: `check` runs hidden property tests against the function you wrote.

Each chapter, lab and project has a folder of files (`attention/softmax.py` and
`attention/masking.py` for chapter 02), each file a tuple `EXERCISES`. `_index.py` says which
exercise stands in which file, so that a check imports that one only.

Explained in: the preface, "Three kinds of executable content".
"""

import difflib
import importlib
import sys
from collections.abc import Callable
from typing import Any

from tfbook.teaching.exercises import _progress
from tfbook.teaching.exercises._card import Description, Report
from tfbook.teaching.exercises._guard import Guarded, reordered, steady_torch
from tfbook.teaching.exercises._index import FILES
from tfbook.teaching.exercises._progress import progress
from tfbook.teaching.exercises._spec import LEVELS, Exercise, NotStarted, Slip, Wrong, property_name

__all__ = ["LEVELS", "Description", "Report", "check", "describe", "evaluate", "names", "progress"]


def names() -> tuple[str, ...]:
    """Return the names of all exercises, by chapter and then by level."""
    return tuple(FILES)


def describe(name: str) -> Description:
    """Return what an exercise asks for: title, level, signature, docstring, stub and hints.

    Raises ValueError for a name that is not an exercise.
    """
    return Description.of(_find(name))


def check(
    name: str, function: Callable[..., Any], *, time_limit: float = 10.0, record: bool = True
) -> None:
    """Check your function against an exercise and show a card with the answer.

    A wrong answer never raises: the card names the first thing that is wrong, shows a small
    input, what came back and what was wanted, and offers hints. The inputs are the same at every
    run; your random seed, default dtype and gradient mode stay as they are.

    name: one of `names()`.
    function: the function itself, not a call of it.
    time_limit: seconds of processor time for one call of the function. A loop without end can only
        be stopped in the main thread on Linux and macOS; elsewhere, interrupt it by hand. A single
        call that computes in C without an end, such as `sum(range(10**11))`, lets nothing in
        between, Ctrl-C neither: Python looks for interruptions only between two of its own steps,
        and a second process could not be given the names of your notebook. There, restart the
        kernel.
    record: note a pass for `progress()`. The book's own solutions are checked without.

    Raises ValueError for a name that is not an exercise, TypeError for what cannot be called.
    """
    report = evaluate(name, function, time_limit=time_limit)
    if record and report.state == "pass":
        _progress.record(name)
    _display(report)


def evaluate(name: str, function: Callable[..., Any], *, time_limit: float = 10.0) -> Report:
    """Check a function like `check`, and return the report instead of showing it."""
    exercise = _find(name)
    if not callable(function):
        raise TypeError(
            f"function must be callable, got {type(function).__name__}: pass the function itself, "
            f'as in check("{name}", {exercise.stub.__name__})'
        )
    if not time_limit > 0:
        raise ValueError(f"time_limit must be a positive number of seconds, got {time_limit}")
    for module in exercise.warm:
        importlib.import_module(module)
    guarded = Guarded(exercise, function, time_limit)
    fault = _first_fault(guarded)
    if fault is None:
        return Report(exercise, "pass")
    test, error = fault
    if isinstance(error, NotStarted):
        return Report(exercise, "todo", f"{exercise.begin}, then run the check again.")
    # A result can be so odd that the property itself stumbles over it.
    message = f"The result could not be compared ({type(error).__name__}: {error})."
    given, got, wanted = guarded.given, guarded.got, None
    if isinstance(error, Wrong):
        message, wanted = str(error), error.wanted
        given = given if error.given is None else error.given
        got = got if error.got is None else error.got
    if not isinstance(error, Slip):
        for words, answer in reordered(function, exercise, guarded.got):
            if _first_fault(Guarded(exercise, answer, time_limit)) is None:
                message = words
                break
    return Report(exercise, "fail", message, property_name(test), given, got, wanted)


def _first_fault(guarded: Guarded) -> tuple[Callable[..., None], Exception] | None:
    """Ask one property after the other; return the first that fails and what it raised, or None."""
    for test in guarded.exercise.properties:
        try:
            with steady_torch():
                test(guarded)
        except Exception as error:
            return test, error
    return None


def _find(name: str) -> Exercise:
    if not isinstance(name, str):
        raise TypeError(
            f"name must be the exercise's name, a string, got {type(name).__name__}: "
            'check("name", function)'
        )
    if name not in FILES:
        close = difflib.get_close_matches(name.lower().replace("_", "-"), FILES, n=3, cutoff=0.4)
        known = f"did you mean {' or '.join(map(repr, close))}?" if close else (
            f"the exercises are {', '.join(FILES)}"
        )
        raise ValueError(f"name {name!r} is not an exercise: {known}")
    file = importlib.import_module(f"{__name__}.{FILES[name]}")
    return next(exercise for exercise in file.EXERCISES if exercise.name == name)


def _display(report: Report) -> None:
    """Show a report in a notebook, or write its text where there is none."""
    if "IPython" in sys.modules:
        from IPython.display import display

        display(report)
    else:
        sys.stdout.write(f"{report!r}\n")
