"""The words of a claim: its values rounded for reading, and its sentence with numbers in it."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Any

import numpy as np

SHOWN_VALUES = 8
SHOWN_CHARACTERS = 80


def rounded(value: Any, digits: int) -> str:
    """Round a value for reading."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str | tuple):
        text = repr(list(value)) if isinstance(value, tuple) else repr(value)
        return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    if isinstance(value, np.ndarray):
        if value.size > SHOWN_VALUES:
            return f"an array of shape {value.shape}"
        parts = [rounded(v.item() if v.ndim == 0 else v, digits) for v in map(np.asarray, value)]
        return f"[{', '.join(parts)}]"
    if isinstance(value, int):
        return str(value)
    text = f"{value:.{digits}g}"
    if "e" in text and 1 <= abs(value) < 1e6:
        text = f"{value:.0f}"
    return "0" if text == "-0" else text


def fill(slug: str, sentence: str, measured: Any, digits: int) -> Iterator[tuple[str, str | None]]:
    """Yield the sentence in pieces: words, and the number that stands behind them, or None."""
    try:
        pieces = list(string.Formatter().parse(sentence))
    except ValueError as error:
        raise ValueError(f"claim {slug}: sentence has braces that say nothing: {error}") from None
    names = [name for _, name, _, _ in pieces if name is not None]
    if not names:
        yield "".join(words for words, *_ in pieces), None
        return
    if np.asarray(measured).dtype.kind not in "iuf":
        kind = type(measured).__name__
        raise ValueError(f"claim {slug}: fields take numbers, measured is {kind}")
    numbers = [each.item() for each in np.asarray(measured).ravel()]
    places = list(range(len(names))) if not any(names) else names
    if not all(str(place).isdecimal() for place in places):
        raise ValueError(f"claim {slug}: number its fields all or none, got {sentence!r}")
    if {int(place) for place in places} != set(range(len(numbers))):
        raise ValueError(
            f"claim {slug}: sentence shows {len(names)} numbers, measured holds {len(numbers)}"
        )
    left = iter(places)
    for words, name, spec, _ in pieces:
        if name is None:
            yield words, None
            continue
        number = numbers[int(next(left))]
        try:
            text = format(number, spec) if spec else rounded(number, digits)
        except ValueError as error:
            raise ValueError(f"claim {slug}: field {{:{spec}}}: {error}") from None
        yield words, text.replace("-", "−")
