"""Listings: what is shown of a function, under which name, and what is refused."""

import functools
import html
import importlib
import re

import pytest
import torch

from tfbook import attention, data, experiments, teaching, training
from tfbook.teaching import listing, listings
from tfbook.teaching.listings import core, without_checks

SOURCE = '''\
def f(x, size):
    """What it does."""
    check_size("size", size)
    # Too small a size is a mistake.
    # It has two lines.
    if size < 1:
        raise ValueError("small")

    # Half of it.
    half = size // 2  # rounded down
    for name in ("x", "y"):
        if not name:
            raise ValueError(name)
        _checks.check_name(name)
    if x is None:
        raise TypeError("x")
    elif size == 1:
        return x
    if half:
        self._check_mask(half)
        x = x + half
    checked = lookup(x)

    def inner(y):
        """Inside."""
        check(y)
        return y

    while half:
        raise ValueError
    return checked
'''
CORE = '''\
def f(x, size):
    # Half of it.
    half = size // 2  # rounded down
    if x is None:
        raise TypeError("x")
    elif size == 1:
        return x
    if half:
        x = x + half
    checked = lookup(x)

    def inner(y):
        return y

    while half:
        raise ValueError
    return checked'''


def test_docstrings_and_checks_are_left_out_and_comments_stay():
    assert without_checks(SOURCE) == CORE


def test_what_is_all_checks_is_refused():
    source = 'def f(x):\n    """Doc."""\n    check_x(x)\n'
    with pytest.raises(ValueError, match="nothing is left of f but its checks"):
        without_checks(source)


def test_the_core_of_attend_is_short_and_computes_what_attend_computes():
    shown = core(attention.attend)
    assert shown.name == "tfbook.attention.attend" and shown.path == "tfbook/attention/exact.py"
    assert len(shown.code.splitlines()) <= 20
    assert "check" not in shown.code and '"""' not in shown.code
    names = dict(vars(importlib.import_module("tfbook.attention.exact")))
    exec("from __future__ import annotations\n" + shown.code, names)
    q, k, v = (torch.randn(2, n, 3) for n in (4, 5, 5))
    again = names["attend"](q, k, v, causal=True, return_weights=True)
    usual = attention.attend(q, k, v, causal=True, return_weights=True)
    assert all(map(torch.equal, again, usual)) and len(again) == len(usual) == 2


@pytest.mark.parametrize(
    ("function", "name", "path"),
    [
        (training.fit, "tfbook.training.fit", "training/loop.py"),
        (attention.causal_mask, "tfbook.attention.causal_mask", "attention/masks.py"),
        (
            attention.MultiHeadAttention.forward,
            "tfbook.attention.MultiHeadAttention.forward",
            "attention/multihead.py",
        ),
        (teaching.plotting.heatmap, "tfbook.teaching.heatmap", "teaching/plotting/_maps.py"),
        (teaching.explorables.quiz, "tfbook.teaching.quiz", "teaching/explorables/_quiz.py"),
        (experiments.log, "tfbook.experiments.log", "experiments/__init__.py"),
        (listings.core, "tfbook.teaching.listings.core", "teaching/listings.py"),
    ],
)
def test_a_name_is_the_one_a_reader_imports(function, name, path):
    shown = core(function)
    assert (shown.name, shown.path) == (name, f"tfbook/{path}")


def test_methods_are_shown_without_their_indent_and_properties_too():
    for method in (attention.MultiHeadAttention.forward, data.BytePairs.encode):
        assert core(method).code.startswith("def ")
    bound = attention.MultiHeadAttention(8, 2).forward
    assert core(bound) == core(attention.MultiHeadAttention.forward)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (3, TypeError, "got int"),
        (functools.partial(attention.attend), TypeError, "got partial"),
        (attention.MultiHeadAttention, TypeError, "name one of its methods"),
        (torch.softmax, ValueError, "must be one of tfbook, softmax is of"),
        (len, ValueError, "must be one of tfbook, len is of 'builtins'"),
        (lambda x: x, ValueError, "must be one of tfbook"),
    ],
)
def test_what_cannot_be_listed_is_refused_with_the_reason(function, error, words):
    with pytest.raises(error, match=words):
        listing(function)


@pytest.mark.untyped
def test_a_function_without_source_is_refused():
    made = eval("lambda x: x")
    made.__module__ = "tfbook.attention"
    with pytest.raises(ValueError, match="has no source to be shown"):
        listing(made)


def test_html_and_text_hold_the_same_code():
    forms = core(attention.attend)._repr_mimebundle_()
    (pre,) = re.findall(r"(?s)<pre>(.*)\n</pre>", forms["text/html"])
    assert html.unescape(re.sub(r"<[^>]+>", "", pre)) == forms["text/plain"]
    assert 'class="k">def</span>' in pre
    link = 'href="../tfbook/attention/exact.py" title="tfbook.attention.attend"'
    assert link in forms["text/html"]


def test_it_shows_itself_once_in_a_notebook_and_returns_nothing(monkeypatch):
    ipython = pytest.importorskip("IPython")
    shown = []
    monkeypatch.setattr(ipython.display, "display", shown.append)
    monkeypatch.setattr(ipython, "get_ipython", lambda: object())
    assert listing(attention.attend) is None
    assert shown == [core(attention.attend)]
    monkeypatch.setattr(ipython, "get_ipython", lambda: None)
    listing(attention.attend)
    assert len(shown) == 1
