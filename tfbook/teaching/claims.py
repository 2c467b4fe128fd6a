r"""Claims: sentences of the book that are asserted where they stand.

A claim compares two independent things, a measurement and what it ought to be, and shows one
quiet line. A false claim raises, so a chapter with a false sentence does not run.

    claim("rows-sum-to-one", "Each row of weights sums to 1.", weights.sum(-1), ones, 1e-6)

Explained in: the preface, "Three kinds of executable content".
"""

from __future__ import annotations

import html
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfbook.teaching.boxes import box, colour
from tfbook.teaching.sentences import SHOWN_VALUES, fill, rounded

RELATIONS = ("equal", "at most", "at least", "above", "below")
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
WORD = re.compile(r"'[^'\n]{1,24}'")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
BOUND = re.compile(r"(?:(at most|at least|above|below) )?(.*?)(?: ± (.*))?", re.DOTALL)
SHOWN_NUMBERS = 4  # on the line of a claim
SMALL = 1e-4  # what is kept below this is meant to be nothing
LEADS_UP = re.compile(
    r"(?:\b(?:by|at most|at least|is|are|costs?|needs?)|[:,])$"
    r"|\b(?:how many|so many|largest difference)"
)
ASKS = re.compile(r"(?:is|are|do|does)\b")
CLOSE = 1e-3  # relative; what is as near as this to the number in the sentence adds nothing to it


class ClaimError(AssertionError):
    """A claim is false, or too loose to be worth making."""


@dataclass(frozen=True)
class Claim:
    """A claim that held: what was said, what was measured, what was expected.

    The fields are the texts that are shown; numbers in them are rounded for reading. `parts` are
    the sentence in pieces, the words and behind them the number that stands there, if any.
    """

    slug: str
    sentence: str
    measured: str
    expected: str
    wrong: str | None = None
    parts: tuple[tuple[str, str | None], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        """Return the stable text form, one line."""
        line = f"claim {self.slug}: {self.sentence} | measured {self.measured}"
        line += f" | expected {self.expected}"
        return line if self.wrong is None else f"{line} | not {self.wrong}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        """Return the line: tick, sentence, the measured number where it says something; a fold."""
        rest = f'expected <span class="tfbook-claim-expected">{html.escape(self.expected)}</span>'
        if self.wrong is not None:
            rest += f'; not <span class="tfbook-claim-wrong">{html.escape(self.wrong)}</span>'
        shown = _number(self.measured)
        said = "".join(
            html.escape(words) + ("" if number is None else _number(number))
            for words, number in self.parts or [(self.sentence, None)]
        )
        head, title = shown, ' title="measured"'
        if not speaks(self):
            head, title, rest = "numbers", "", f"measured {shown}; {rest}"
        return (
            f'<div class="tfbook-claim" id="claim-{html.escape(self.slug)}" style="{box("green")}">'
            f'<span class="tfbook-claim-tick" aria-hidden="true" style="color: '
            f'{colour("green")}; font-weight: bold">✓</span> '
            f'<span class="tfbook-claim-sentence">{said}</span> '
            f'<details class="tfbook-claim-numbers" style="display: inline; font-size: 0.92em">'
            f'<summary{title} style="display: inline; cursor: pointer; opacity: 0.75; '
            f'text-decoration: underline">{head}</summary> {rest}</details></div>'
        )


def _number(text: str) -> str:
    return f'<span class="tfbook-claim-measured">{html.escape(text)}</span>'


def speaks(claim: Claim) -> bool:
    """Tell whether what a claim measured says more to a reader than that the sentence is true.

    Not if the sentence holds the numbers already. Otherwise a number does, and so do up to four, or
    a word; but not what had to be nothing (a difference of arrays, an equality with 0, a number
    below a very small one), and not what the sentence says. A sentence that leads up to its number,
    "differ by at most", gets it in any case, and a question its yes or no.
    All but the kind of the measurement is read off what was expected, which is the same anywhere.
    """
    if any(number is not None for _, number in claim.parts):
        return False
    if WORD.fullmatch(claim.measured):
        return True
    numbers = _parts(claim.measured)
    if ASKS.match(claim.sentence) and set(numbers) <= {"yes", "no"}:
        return True
    if len(numbers) > SHOWN_NUMBERS or not all(map(NUMBER.fullmatch, numbers)):
        return False
    if LEADS_UP.search(claim.sentence):
        return True
    relation, bound, tolerance = BOUND.fullmatch(claim.expected).groups()
    bounds = _parts(bound)
    if relation in ("above", "at least") or not all(map(NUMBER.fullmatch, bounds)):
        return True
    largest = max(abs(float(each)) for each in bounds)
    if relation == "below":
        return not 0 < largest <= SMALL  # below 0: a difference with a sign
    if relation == "at most":
        return largest > SMALL
    said = bound in re.findall(NUMBER, claim.sentence)
    return largest > 0 and not (said and float(tolerance or 0) <= CLOSE * largest)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in re.sub(r"[\[\]]", "", text).split(",")]


def claim(
    slug: str,
    sentence: str,
    measured: Any,
    expected: Any,
    tolerance: float = 0.0,
    *,
    relation: str = "equal",
    wrong: Any = None,
    digits: int = 4,
) -> None:
    r"""Assert that `measured` stands in `relation` to `expected`, and show the sentence.

    For numbers and arrays "equal" means $\max_i |m_i - e_i| \le$ `tolerance`; "at most" and
    "at least" allow every entry to miss the bound by `tolerance`; "above" and "below" are
    strict and take no tolerance. Booleans and texts have to be equal exactly.

    The sentence may hold fields in braces as `str.format` takes them. Each is replaced by a number
    of `measured`, in order, or by its index: "Of 100 words {} are right, {:.1f} times as many."

    Args:
        slug: name of the claim, in lower case with hyphens; unique in the book.
        sentence: what is claimed, as the reader is to read it.
        measured: number, bool, text, tensor, array or (nested) list.
        expected: the same kind and shape, from an independent source.
        tolerance: absolute, in the unit of `measured`.
        relation: "equal", "at most", "at least", "above" or "below".
        wrong: a value which the claim must reject, where the book corrects a source.
        digits: significant digits shown.

    Raises:
        ClaimError: the claim is false, the measurement is not finite, or `wrong` passes too.
        TypeError: a value is of a kind that cannot be compared.
        ValueError: an argument makes no sense (slug, tolerance, relation, nothing to compare,
            fields for other numbers than there are).
    """
    shown = evaluate(
        slug, sentence, measured, expected, tolerance, relation=relation, wrong=wrong, digits=digits
    )
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        ipython.display.display(shown)


def evaluate(
    slug: str,
    sentence: str,
    measured: Any,
    expected: Any,
    tolerance: float = 0.0,
    *,
    relation: str = "equal",
    wrong: Any = None,
    digits: int = 4,
) -> Claim:
    """Check a claim like `claim`, with its errors, and return it instead of showing it."""
    tolerance = _check_arguments(slug, sentence, tolerance, relation, digits)
    _refuse_itself(measured, expected)
    m, e = _value("measured", measured), _value("expected", expected)
    _check_kinds(m, e, relation, tolerance)
    if not _finite(e):
        raise ValueError(f"claim {slug}: expected has to be finite, got {rounded(e, digits)}")

    holds = _judge(relation, tolerance)
    if not holds(m, e):
        raise ClaimError(
            f"claim {slug} is false: {sentence} "
            f"Measured {_measured_text(m, e, relation, digits)}, "
            f"expected {_expected_text(m, e, relation, tolerance, digits)}."
        )
    wrong_text = None
    if wrong is not None:
        w = _value("wrong", wrong)
        if (_kind(w), np.ndim(w)) not in [(_kind(x), np.ndim(x)) for x in (m, e)]:
            raise TypeError(f"claim {slug}: wrong is {_kind(w)}, expected is {_kind(e)}")
        # A source's wrong value must fail as a measurement and, for equality, as expectation.
        if holds(w, e) or (relation == "equal" and holds(m, w)):
            raise ClaimError(
                f"claim {slug} does not tell right from wrong: {rounded(w, digits)} passes too; "
                f"tolerance {tolerance:g} is too wide"
            )
        wrong_text = _measured_text(w, e, relation, digits)
    return Claim(
        slug,
        sentence,
        _measured_text(m, e, relation, digits),
        _expected_text(m, e, relation, tolerance, digits),
        wrong_text,
        tuple(fill(slug, sentence, m, digits)),
    )


def _check_arguments(
    slug: str, sentence: str, tolerance: float, relation: str, digits: int
) -> float:
    if not isinstance(slug, str) or not SLUG.fullmatch(slug):
        raise ValueError(f"slug has to be in lower case with hyphens, got {slug!r}")
    if not isinstance(sentence, str) or not sentence.strip():
        raise ValueError(f"claim {slug}: sentence has to say something, got {sentence!r}")
    if "\n" in sentence or " | " in sentence:
        raise ValueError(f"claim {slug}: sentence has to be one line without ' | '")
    if relation not in RELATIONS:
        raise ValueError(f"claim {slug}: relation has to be one of {RELATIONS}, got {relation!r}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float | np.number):
        raise TypeError(f"claim {slug}: tolerance has to be a number, got {tolerance!r}")
    if not math.isfinite(tolerance) or tolerance < 0:
        raise ValueError(f"claim {slug}: tolerance has to be finite and ≥ 0, got {tolerance!r}")
    if relation in ("above", "below") and tolerance:
        raise ValueError(f"claim {slug}: {relation!r} is strict and takes no tolerance")
    if isinstance(digits, bool) or not isinstance(digits, int) or digits < 1:
        raise ValueError(f"claim {slug}: digits has to be a positive integer, got {digits!r}")
    return float(tolerance)


def _refuse_itself(measured: Any, expected: Any) -> None:
    """Refuse to compare a thing with itself: the same object, or a view of all of it."""
    # Constants may be one object by accident of the interpreter, tuples of them too.
    same = measured is expected and isinstance(measured, list)
    if hasattr(measured, "data_ptr") and hasattr(expected, "data_ptr") and measured.numel():
        same = same or _layout(measured) == _layout(expected)
    elif isinstance(measured, np.ndarray) and isinstance(expected, np.ndarray) and measured.size:
        same = same or _layout(measured) == _layout(expected)
    if same:
        raise ValueError("measured and expected are one and the same: a claim compares two things")


def _layout(array: Any) -> tuple:
    """Return where and how an array lies in memory; a transpose lies otherwise."""
    if hasattr(array, "data_ptr"):
        return array.data_ptr(), tuple(array.shape), array.stride()
    return array.__array_interface__["data"], array.shape, array.strides


def _value(name: str, value: Any) -> bool | str | int | float | tuple | np.ndarray:
    """Bring a value to one of the kinds that are compared; numbers lose no digits."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if value.is_floating_point():
            value = value.double()
        value = value.numpy()
    if isinstance(value, list | tuple):
        flat = list(_leaves(value))
        if flat and all(isinstance(leaf, str) for leaf in flat):
            return _frozen(value)
        if any(isinstance(leaf, str) for leaf in flat):
            raise TypeError(f"{name} mixes texts with other things")
        try:
            value = np.asarray(
                [_value(name, leaf) if hasattr(leaf, "detach") else leaf for leaf in value]
            )
        except ValueError as error:
            raise ValueError(f"{name} is a ragged list: {error}") from None
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biuf":
            raise TypeError(f"{name} has to hold real numbers or booleans, got {value.dtype}")
        if value.ndim == 0:
            return value.item()
        if value.size == 0:
            raise ValueError(f"{name} is empty (shape {value.shape}): nothing would be compared")
        return value
    if isinstance(value, bool | str | int | float):
        return value
    raise TypeError(
        f"{name} has to be a number, bool, text, tensor, array or list, got {type(value).__name__}"
    )


def _leaves(value: Any):
    for item in value:
        if isinstance(item, list | tuple):
            yield from _leaves(item)
        else:
            yield item


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list | tuple) else value


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "booleans" if value.dtype.kind == "b" else "numbers"
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str | tuple) else "number"


def _check_kinds(m: Any, e: Any, relation: str, tolerance: float) -> None:
    if _kind(m) != _kind(e) and {_kind(m), _kind(e)} != {"number", "numbers"}:
        raise TypeError(f"measured is {_kind(m)} and expected {_kind(e)}: they cannot be compared")
    exact = _kind(m) not in ("number", "numbers")
    if exact and (relation != "equal" or tolerance):
        raise ValueError(f"{_kind(m)} can only be equal, and exactly: drop relation and tolerance")


def _finite(value: Any) -> bool:
    return _kind(value) in ("bool", "text", "booleans") or bool(
        np.isfinite(np.asarray(value, float)).all()
    )


def _difference(m: Any, e: Any) -> float:
    """Return the largest absolute difference; infinite where the shapes differ."""
    if np.shape(m) != np.shape(e):
        return math.inf
    if isinstance(m, np.ndarray):
        # As Python objects, so that large integers are subtracted exactly.
        whole = m.dtype.kind in "biu" and e.dtype.kind in "biu"
        kind: type = object if whole else np.float64
        return float(np.abs(m.astype(kind) - e.astype(kind)).max())
    return abs(m - e)


def _judge(relation: str, tolerance: float) -> Callable[[Any, Any], bool]:
    """Return the comparison that `measured` and `wrong` both have to face."""

    def holds(m: Any, e: Any) -> bool:
        if not (_finite(m) and _finite(e)):
            return False
        if _kind(m) in ("text", "bool"):
            return m == e
        if relation == "equal":
            return _difference(m, e) <= tolerance
        # A bound may be one number for a whole array; equality may not be.
        if np.ndim(e) and np.shape(m) != np.shape(e):
            return False
        low, high = np.asarray(m), np.asarray(e)
        if relation in ("at least", "above"):
            low, high = high, low
        gap = low - high
        return bool((gap < 0).all() if relation in ("above", "below") else (gap <= tolerance).all())

    return holds


def _by_difference(m: Any, e: Any, relation: str) -> bool:
    """Tell whether a large array is shown by its largest difference only."""
    large = isinstance(e, np.ndarray) and e.size > SHOWN_VALUES
    return relation == "equal" and large and np.shape(m) == np.shape(e) and _kind(m) != "booleans"


def _measured_text(m: Any, e: Any, relation: str, digits: int) -> str:
    if _by_difference(m, e, relation):
        return f"{rounded(_difference(m, e), digits)} apart at most"
    if isinstance(m, np.ndarray) and m.size > SHOWN_VALUES:
        if not _finite(m):
            return f"values that are not finite, in shape {m.shape}"
        if _kind(m) == "booleans":
            return f"{int(m.sum())} of {m.size} true, in shape {m.shape}"
        if relation != "equal":
            extreme = m.max() if relation in ("at most", "below") else m.min()
            return f"{rounded(extreme.item(), digits)} at the extreme"
    return rounded(m, digits)


def _expected_text(m: Any, e: Any, relation: str, tolerance: float, digits: int) -> str:
    if _by_difference(m, e, relation):
        text = "0"
    elif isinstance(e, np.ndarray) and e.size > SHOWN_VALUES and _kind(e) == "booleans":
        text = f"{int(e.sum())} of {e.size} true, in shape {e.shape}"
    else:
        text = rounded(e, digits)
    text = text if relation == "equal" else f"{relation} {text}"
    return f"{text} ± {tolerance:g}" if tolerance else text
