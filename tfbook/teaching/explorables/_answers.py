"""What quiz, predict and explain share: words, choices and numbers, checked and as HTML."""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tfbook.teaching.explorables._base import number, vector, whole


class Answers(NamedTuple):
    """How a question is answered.

    data: what the browser needs. check: lets an answer through, or None. right: tells whether an
    answer is right. listed: the choices as texts, if any. shown: the right answer in words.
    """

    data: dict
    check: Callable[[Any], Any]
    right: Callable[[Any], bool]
    listed: list[str]
    shown: str


def answers(
    *,
    choices: Sequence[tuple[str, bool, str]] | None,
    answer: float | None,
    tolerance: float = 0.0,
    feedback: Mapping[float, str] | None = None,
    explanation: str | None = None,
    unit: str = "",
    otherwise: str = "Yes: {}.",
) -> Answers:
    """Return how a question with choices, or one with a number, is answered.

    otherwise: what to say of the number where there is no explanation.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if an argument is empty or does not fit, as `quiz` says.
    """
    if (choices is None) == (answer is None):
        raise ValueError("give either choices or answer, not both and not neither")
    if choices is not None:
        checked = _choices(choices)
        right = [c["correct"] for c in checked].index(True)
        return Answers(
            {"kind": "choice", "choices": checked},
            _or_none(whole("answer", 0, len(checked) - 1)),
            lambda given: given == right,
            [c["text"] for c in checked],
            f"{checked[right]['text']} {checked[right]['feedback']}",
        )
    one = _number("answer", answer, tolerance, feedback)
    words = said("explanation", explanation or otherwise.format(f"{one['target']:g}"))
    return Answers(
        {
            "kind": "number", "target": one["target"], "tolerance": one["tolerance"],
            "unit": unit, "feedback": one["feedback"], "explanation": words,
        },
        _or_none(number("answer")),
        lambda given: _near(given, one),
        [],
        f"{one['target']:g}{' ' + unit if unit else ''}. {words}",
    )  # fmt: skip


def named_answers(numbers: Sequence[Mapping], explanation: str | None) -> Answers:
    """Return how a question is answered that asks for several numbers by name.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if a number lacks its name or answer, or two have one name.
    """
    if isinstance(numbers, (str, Mapping)) or not isinstance(numbers, Sequence):
        raise TypeError(f"numbers must be a list of dictionaries, got {type(numbers).__name__}")
    if not 2 <= len(numbers) <= 8:
        raise ValueError(f"numbers must be 2 to 8 dictionaries, got {len(numbers)}")
    fields = []
    for i, given in enumerate(numbers):
        if not isinstance(given, Mapping):
            raise TypeError(f"numbers[{i}] must be a dictionary, got {type(given).__name__}")
        if unknown := given.keys() - {"name", "answer", "tolerance", "feedback"}:
            raise ValueError(f"numbers[{i}] has no {', '.join(sorted(unknown))}")
        if missing := {"name", "answer"} - given.keys():
            raise ValueError(f"numbers[{i}] must have {', '.join(sorted(missing))}")
        name = said(f"numbers[{i}] name", given["name"])
        checked = _number(
            f"numbers[{i}] answer", given["answer"], given.get("tolerance", 0.0),
            given.get("feedback"),
        )  # fmt: skip
        fields.append({"name": name, **checked})
    if len({field["name"] for field in fields}) < len(fields):
        raise ValueError("numbers must differ in their names")
    shown = ", ".join(f"{field['name']} = {field['target']:g}" for field in fields)
    words = said("explanation", explanation) if explanation is not None else ""
    return Answers(
        {"kind": "numbers", "numbers": fields, "explanation": words},
        _or_none(vector("answer", len(fields))),
        lambda given: all(map(_near, given, fields)),
        [],
        f"{shown}. {words}".strip(),
    )


def _near(given: float, field: Mapping) -> bool:
    return abs(given - field["target"]) <= field["tolerance"]


def _or_none(check: Callable) -> Callable:
    return lambda value: None if value is None else check(value)


def _number(name: str, answer, tolerance, feedback: Mapping[float, str] | None) -> dict:
    target, slack = number(name)(answer), number("tolerance", 0)(tolerance)
    told = {number("a feedback value")(k): said("feedback", v) for k, v in (feedback or {}).items()}
    if clash := [k for k in told if abs(k - target) <= slack]:
        raise ValueError(f"feedback must be for wrong numbers, got {clash[0]:g}, which is right")
    return {
        "target": target, "tolerance": slack,
        "feedback": [{"value": k, "text": v} for k, v in told.items()],
    }  # fmt: skip


def _choices(choices) -> list[dict]:
    checked = []
    for i, choice in enumerate(choices):
        if not isinstance(choice, (tuple, list)) or len(choice) != 3:
            raise ValueError(f"choices[{i}] must be (text, right, feedback), got {choice!r}")
        text, correct, feedback = choice
        if not isinstance(correct, bool):
            raise TypeError(f"choices[{i}][1] must be True or False, got {type(correct).__name__}")
        checked.append({
            "text": said(f"choices[{i}] text", text), "correct": correct,
            "feedback": said(f"choices[{i}] feedback", feedback),
        })  # fmt: skip
    if not 2 <= len(checked) <= 6:
        raise ValueError(f"choices must be 2 to 6, got {len(checked)}")
    if (right := sum(c["correct"] for c in checked)) != 1:
        raise ValueError(f"choices must have exactly one right answer, got {right}")
    if len({c["text"] for c in checked}) < len(checked):
        raise ValueError("choices must differ in their texts")
    return checked


# ------------------------------------------------------------------------------------------ words


def check_slug(slug: str) -> None:
    """Refuse a name that is not lower case with hyphens.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(slug, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug):
        raise ValueError(f"slug must be lower case with hyphens, got {slug!r}")


def said(name: str, text) -> str:
    """Return a text with single spaces.

    Raises:
        TypeError: if it is no string.
        ValueError: if it is empty, or opens code that it does not close.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a string, got {type(text).__name__}")
    if not text.strip():
        raise ValueError(f"{name} must not be empty")
    if text.count("`") % 2:
        raise ValueError(f"{name} must have backticks in pairs, got {text!r}")
    return " ".join(text.split())


def markup(text: str) -> str:
    """Return a text as HTML, with the marks that `prose` in shared.js knows."""
    parts = html.escape(text).split("`")
    return "".join(
        f"<code>{part}</code>"
        if i % 2
        else re.sub(r"\b([a-zA-Z])_([a-z0-9])\b", r"\1<sub>\2</sub>", part)
        for i, part in enumerate(parts)
    )


def asked(kind: str, title: str, question: str, found: Answers) -> tuple[list[str], str]:
    """Return a question with its answers as paragraphs, and as HTML with the answer folded."""
    lines = [title, question]
    body = f"<p><strong>{kind}.</strong> {markup(question)}</p>\n"
    if found.listed:
        pairs = zip("abcdef", found.listed, strict=False)
        lines.append("\n".join(f"({letter}) {text}" for letter, text in pairs))
        items = "".join(f"<li>{markup(text)}</li>" for text in found.listed)
        body += f'<ol type="a" style="list-style-type: lower-alpha">{items}</ol>\n'
    body += f"<details><summary>Answer</summary><p>{markup(found.shown)}</p></details>"
    return [*lines, f"Answer: {found.shown}"], body
