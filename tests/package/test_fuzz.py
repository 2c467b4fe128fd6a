"""Calls that were altered: each is answered or refused in a sentence, and nothing hangs.

The calls are those of the docstrings' examples and of `calls.py`. One argument after the other is
put in another's place: something of another kind, a number out of any bounds, a tensor of another
shape or dtype. An error has to be raised by the package itself, as one of the kinds that it
documents; what comes from inside, such as an AttributeError or a message of PyTorch, is a fault.
So is an answer where the argument could have had no meaning, or NaN where it was a number.
"""

import contextlib
import dis
import doctest
import importlib
import inspect
import io
import math
import pkgutil
import random
import re
import signal
import sys
import warnings
from functools import cache
from pathlib import Path

import calls
import pytest
import torch

import tfbook
from tfbook import (
    attention,
    blocks,
    data,
    generation,
    optimization,
    positions,
    pretrained,
)

ROOMS = (
    "data metrics costs positions attention efficient recurrent graphs blocks models optimization "
    "pretrained generation training interpret hardware parallel serving practice".split()
)
HOME = str(Path(tfbook.__file__).parent)
TWICE = 2  # as many calls of a function are altered
MOST = 4000  # altered calls, drawn from all
SECONDS = 30  # for one of them: this decides what hangs, not what is slow
# Where the machine is at its end and not the argument; only PyTorch knows what fits.
TOO_LARGE = re.compile(
    "Storage size calculation overflowed|can't allocate|Overflow when|array is too big"
)
DOCUMENTED = (ValueError, TypeError, ArithmeticError, OSError, ImportError)


class Nothing:
    """What no function can do anything with."""

    def __repr__(self):
        return "Nothing()"


NOTHING = Nothing()


class Hangs(BaseException):
    """The alarm."""


def public():
    """Yield what the doors name and can be called, as room, name and value."""
    for room in ROOMS:
        door = importlib.import_module(f"tfbook.{room}")
        for name in door.__all__:
            value = getattr(door, name)
            if inspect.isfunction(value) or inspect.isclass(value):
                yield room, name, value


@cache
def seeds():
    """Return calls that are right: name, function, and its arguments by name."""
    names = {value: f"{room}.{name}" for room, name, value in public()}
    found = []

    def recorder(function):
        def record(*args, **kwargs):
            keep(names[function], function, args, kwargs)
            return function(*args, **kwargs)

        return record

    def keep(name, function, args, kwargs):
        if sum(each == name for each, _, _ in found) < TWICE:
            bound = inspect.signature(function).bind(*args, **kwargs)
            bound.apply_defaults()  # they are altered too
            found.append((name, function, bound))

    for example in examples():
        for name, value in list(example.globs.items()):
            if inspect.isfunction(value) and value in names:
                example.globs[name] = recorder(value)
        code = "".join(each.source for each in example.examples)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            exec(code, example.globs)
    for call in calls.calls():
        keep(*call)
    return found


def examples():
    """Yield the examples in the docstrings of functions and classes."""
    for room in ROOMS:
        door = importlib.import_module(f"tfbook.{room}")
        for module in pkgutil.iter_modules(door.__path__):
            if module.name != "make":
                whole = importlib.import_module(f"tfbook.{room}.{module.name}")
                yield from doctest.DocTestFinder(exclude_empty=True).find(whole)


def others(value):
    """Yield what could stand in an argument's place, and whether that can have no meaning."""
    yield NOTHING, True
    yield None, False
    if isinstance(value, torch.Tensor):
        yield from ((each, False) for each in tensors(value))
        yield "zz", True
        yield value.tolist(), False
    elif isinstance(value, bool):
        yield from (("zz", True), (3, False), ([], False))
    elif isinstance(value, int | float):
        yield from (("zz", True), (math.nan, True), ([], True), (-1, False), (0, False))
        yield from ((2.5, False), (math.inf, False), (-(2**62), False), (value * 1j, True))
        yield from ((2**62, False), (1e308, False), (1e-308, False))
    elif isinstance(value, str):
        yield from ((3, False), ("zz", False), ([], False), ("", False), ("\0", False))
    elif callable(value):
        yield from ((3, True), ("zz", True))
    elif isinstance(value, list | tuple | dict):
        kind = next(each for each in (list, tuple, dict) if isinstance(value, each))
        yield from ((kind(), False), (3, False), ("zz", False), (math.nan, False))
        if kind in (list, tuple):
            yield from ((kind([each]), False) for each in (NOTHING, math.nan, "zz", -1, None))
    else:
        yield from ((3, False), ("zz", False), ([], False))


def tensors(value):
    """Yield a tensor in other shapes and dtypes."""
    yield value[None]
    real = value.real if value.is_complex() else value
    yield real.to(torch.complex64)
    yield value.bool()
    yield real.double() if value.dtype == torch.float32 else real.float()
    yield real.long()
    yield torch.zeros(())
    yield torch.zeros(2, 3, 5, 7, 2)
    if value.ndim:
        yield value[..., :0]
        yield value[0]
        yield value[:1].repeat_interleave(13, 0)
    if value.is_floating_point():
        yield value * math.nan
    else:
        yield real.long() + 10**6
        yield -1 - real.long()


def altered():
    """Return all altered calls: name, function, arguments, which one is altered, and how."""
    found = []
    for name, function, bound in seeds():
        for argument in bound.arguments:
            kind = bound.signature.parameters[argument].kind
            several = kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            if several or (name, argument) in calls.ANYTHING:
                continue
            for other, wrong in others(bound.arguments[argument]):
                found.append((name, function, bound, argument, other, wrong))
    return found


@contextlib.contextmanager
def alarm():
    """Raise in a block that takes too long."""

    def ring(number, frame):
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fault(name, function, bound, argument, other, wrong):
    """Return what is wrong with the answer to an altered call, or None."""
    given = {each: calls.fresh(value) for each, value in bound.arguments.items()}
    call = inspect.BoundArguments(bound.signature, given | {argument: other})
    try:
        with alarm(), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            result = function(*call.args, **call.kwargs)
            if inspect.isgenerator(result):
                next(result, None)
    except Hangs:
        return f"hangs for {SECONDS} s"
    except Exception as error:
        if isinstance(error, DOCUMENTED) and raised_here(error):
            return None if str(error) else "an error without words"
        if TOO_LARGE.search(str(error)):
            return None
        return f"from inside: {type(error).__name__}: {str(error)[:90]}"
    if wrong:
        return "accepted"
    number = isinstance(other, int | float) and math.isfinite(other)
    return "gives NaN" if number and has_nan(result) else None


def has_nan(result):
    """Tell whether a tensor or number in an answer is NaN."""
    if isinstance(result, torch.Tensor):
        return result.is_floating_point() and bool(result.isnan().any())
    if isinstance(result, list | tuple):
        return any(map(has_nan, result))
    return isinstance(result, float) and math.isnan(result)


def raised_here(error):
    """Tell whether a `raise` of the package brought the error up."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    if not trace.tb_frame.f_code.co_filename.startswith(HOME):
        return False
    steps = dis.get_instructions(trace.tb_frame.f_code)
    return any(step.offset == trace.tb_lasti and step.opname == "RAISE_VARARGS" for step in steps)


def shown(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return repr(value)[:40]


TABLE = generation.TableModel(torch.zeros(5, 5))
# Calls that were answered wrongly once, or ended the process.
KNOWN = {
    "ids must be from 0 to 4": lambda: generation.perplexity(TABLE, [0, 3, 5]),
    "ids must be from 0 to 4, got -1": lambda: generation.score(TABLE, [[0, 3, -1], [0, 1, 2]]),
    "tokens must be from 0 to 4": lambda: generation.repetition_penalty(
        torch.zeros(1, 5), torch.tensor([[7]]), 2.0
    ),
    "d_model must be at least 1": lambda: blocks.feed_forward_parameters(-1, 7),
    "n_heads must be an integer": lambda: attention.kept_groups([0], math.nan, 2),
    "dtype must be floating": lambda: positions.sinusoidal_encoding(3, 4, dtype=math.nan),
    "not_hidden must be a list": lambda: optimization.muon_groups(
        calls.decoder(), lr=0.1, adamw_lr=0.1, not_hidden="stack"
    ),
    "fn must be a function": lambda: attention.register("zz", 3),
    "at least one token": lambda: generation.greedy(torch.zeros(1, 0)),
    "x and the weights must have the same dtype": lambda: blocks.FeedForward(5, 7)(
        torch.zeros(2, 5).double()
    ),
    "x and the weights must have the": lambda: blocks.LayerNorm(5)(torch.zeros(2, 5).double()),
    "uniform must be from 0": lambda: generation.draw(torch.zeros(1, 5), torch.tensor([math.nan])),
    "row 0 of the logits": lambda: generation.draw(
        torch.full((1, 5), math.nan), torch.tensor([0.5])
    ),
    "scale must be from 1e-18": lambda: attention.attend(*torch.ones(3, 2, 5), scale=1e308),
    "n_layer must be from 1 to 10000": lambda: pretrained.config_from(
        {"model_type": "gpt2", "n_layer": 10**9}
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("message", KNOWN)
def test_what_was_wrong_once_is_refused(message):
    with pytest.raises((ValueError, TypeError), match=message):
        KNOWN[message]()


def test_a_vocabulary_larger_than_the_text_can_fill_is_as_large_as_it_can():
    texts = ["low low low lower lower newest"]
    few = data.byte_pair_tokenizer(texts, vocab_size=500)
    for size in (10**10, 2**62, 2**70):
        assert data.byte_pair_tokenizer(texts, vocab_size=size).to_str() == few.to_str()


@pytest.mark.untyped
@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="Windows has no alarm")
def test_an_altered_call_is_answered_or_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a path may come to be one that is written to
    drawn = altered()
    random.Random(0).shuffle(drawn)
    faults = {}
    for name, function, bound, argument, other, wrong in drawn[:MOST]:
        found = fault(name, function, bound, argument, other, wrong)
        if found is not None:
            faults.setdefault((name, argument), []).append(f"{shown(other)}: {found}")
    assert not faults, "\n".join(f"{where}: {said[0]}" for where, said in sorted(faults.items()))


def test_most_functions_are_called():
    called = {name for name, _, _ in seeds()}
    functions = {f"{room}.{name}" for room, name, value in public() if inspect.isfunction(value)}
    assert functions - called == calls.LEFT_OUT
    assert len(altered()) > MOST


if __name__ == "__main__":
    for each in altered():
        said = fault(*each)
        if said:
            print(each[0], each[3], shown(each[4]), said, file=sys.stdout)
