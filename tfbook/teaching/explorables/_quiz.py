"""quiz: one question with choices or a number, and a word on each wrong answer."""

import html
import re
from collections.abc import Mapping, Sequence

from tfbook.teaching.explorables._base import Explorable, number
from tfbook.teaching.explorables._questions import find


def quiz(
    slug: str,
    question: str | None = None,
    *,
    choices: Sequence[tuple[str, bool, str]] | None = None,
    answer: float | None = None,
    tolerance: float = 0.0,
    feedback: Mapping[float, str] | None = None,
    explanation: str | None = None,
    unit: str = "",
) -> Explorable:
    """Return a quiz question with choices, or one that asks for a number.

    `quiz("why-soft")` shows a question of the book: those stand in data files beside the
    exercises, so that no notebook shows an answer. With a question and its choices or its answer
    it is one of your own.

    Text in backticks is set as code, and d_k with a lowered k; other marks are shown as they are.
    In a live notebook `q.answer` is what the reader chose last (the index of a choice, or a
    number) and `q.correct` says whether it was right; both are `None` before.

    Args:
        slug: A short name in lower case with hyphens, for instance "why-scale".
        question: The question; without it, the book's own question of that name.
        choices: Two to six (text, right or wrong, what to say when it is chosen), one right.
        answer: The right number; give either this or `choices`.
        tolerance: How far off a right number may be.
        feedback: Wrong number → what to say; compared with the same tolerance.
        explanation: What to say after the right number.
        unit: Shown behind the field.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if the book has no question of that name, or if an argument is empty, no or
            several choices are right, a feedback is missing, or a wrong number would count as
            right.

    Explained in: the preface, "Three kinds of executable content".
    """
    if not isinstance(slug, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug):
        raise ValueError(f"slug must be lower case with hyphens, got {slug!r}")
    if question is None:
        own = (choices, answer, feedback, explanation)
        if tolerance or unit or any(part is not None for part in own):
            raise ValueError("question must not be missing where choices or answer are given")
        return quiz(slug, **find(slug))
    question = _said("question", question)
    if (choices is None) == (answer is None):
        raise ValueError("give either choices or answer, not both and not neither")
    if choices is not None:
        data = {"kind": "choice", "choices": _checked_choices(choices)}
        right = [i for i, c in enumerate(data["choices"]) if c["correct"]][0]
        solution = data["choices"][right]

        def results(now: dict) -> dict:
            return {"correct": None if now["answer"] is None else now["answer"] == right}

        listed = [c["text"] for c in data["choices"]]
        shown = f"{solution['text']} {solution['feedback']}"
    else:
        target, slack = number("answer")(answer), number("tolerance", 0)(tolerance)
        said = {
            number("a feedback value")(k): _said("feedback", v) for k, v in (feedback or {}).items()
        }
        if clash := [k for k in said if abs(k - target) <= slack]:
            raise ValueError(
                f"feedback must be for wrong numbers, got {clash[0]:g}, which is right"
            )
        explanation = _said("explanation", explanation or f"Yes: {target:g}.")
        data = {
            "kind": "number", "target": target, "tolerance": slack, "unit": unit,
            "feedback": [{"value": k, "text": v} for k, v in said.items()],
            "explanation": explanation,
        }  # fmt: skip

        def results(now: dict) -> dict:
            given = now["answer"]
            return {"correct": None if given is None else abs(given - target) <= slack}

        listed, shown = [], f"{target:g}{' ' + unit if unit else ''}. {explanation}"
    data |= {"slug": slug, "question": question}
    lines = [f"Quiz {slug}", question]
    if listed:
        lines.append(
            "\n".join(f"({letter}) {t}" for letter, t in zip("abcdef", listed, strict=False))
        )
    body = f"<p><strong>Quiz.</strong> {_code(question)}</p>\n"
    if listed:
        items = "".join(f"<li>{_code(t)}</li>" for t in listed)
        body += f'<ol type="a" style="list-style-type: lower-alpha">{items}</ol>\n'
    body += f"<details><summary>Answer</summary><p>{_code(shown)}</p></details>"
    return Explorable(
        "quiz",
        data=data,
        state={"answer": None},
        checks={"answer": lambda v: v},
        results=results,
        text=lambda now: "\n\n".join([*lines, f"Answer: {shown}"]),
        body=body,
    )


def _checked_choices(choices) -> list[dict]:
    checked = []
    for i, choice in enumerate(choices):
        if not isinstance(choice, (tuple, list)) or len(choice) != 3:
            raise ValueError(f"choices[{i}] must be (text, right, feedback), got {choice!r}")
        text, correct, feedback = choice
        if not isinstance(correct, bool):
            raise TypeError(f"choices[{i}][1] must be True or False, got {type(correct).__name__}")
        checked.append({
            "text": _said(f"choices[{i}] text", text), "correct": correct,
            "feedback": _said(f"choices[{i}] feedback", feedback),
        })  # fmt: skip
    if not 2 <= len(checked) <= 6:
        raise ValueError(f"choices must be 2 to 6, got {len(checked)}")
    if (right := sum(c["correct"] for c in checked)) != 1:
        raise ValueError(f"choices must have exactly one right answer, got {right}")
    if len({c["text"] for c in checked}) < len(checked):
        raise ValueError("choices must differ in their texts")
    return checked


def _said(name: str, text) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a string, got {type(text).__name__}")
    if not text.strip():
        raise ValueError(f"{name} must not be empty")
    if text.count("`") % 2:
        raise ValueError(f"{name} must have backticks in pairs, got {text!r}")
    return " ".join(text.split())


def _code(text: str) -> str:
    """Return a text as HTML, with the marks that `prose` in shared.js knows."""
    parts = html.escape(text).split("`")
    return "".join(
        f"<code>{part}</code>"
        if i % 2
        else re.sub(r"\b([a-zA-Z])_([a-z0-9])\b", r"\1<sub>\2</sub>", part)
        for i, part in enumerate(parts)
    )
