"""quiz: one question with choices or numbers, and a word on each wrong answer."""

from collections.abc import Mapping, Sequence

from tfbook.teaching.explorables._answers import answers, asked, check_slug, named_answers, said
from tfbook.teaching.explorables._base import Explorable
from tfbook.teaching.explorables._questions import find


def quiz(
    slug: str,
    question: str | None = None,
    *,
    choices: Sequence[tuple[str, bool, str]] | None = None,
    answer: float | None = None,
    tolerance: float = 0.0,
    numbers: Sequence[Mapping] | None = None,
    feedback: Mapping[float, str] | None = None,
    explanation: str | None = None,
    unit: str = "",
) -> Explorable:
    """Return a quiz question with choices, or one that asks for a number or for several.

    `quiz("why-soft")` shows a question of the book: those stand in data files beside the
    exercises, so that no notebook shows an answer. With a question and its choices or its answer
    it is one of your own.

    Text in backticks is set as code, and d_k with a lowered k; other marks are shown as they are.
    In a live notebook `q.answer` is what the reader chose last (the index of a choice, a number,
    or a list of them) and `q.correct` says whether it was right; both are `None` before.

    Args:
        slug: A short name in lower case with hyphens, for instance "why-scale".
        question: The question; without it, the book's own question of that name.
        choices: Two to six (text, right or wrong, what to say when it is chosen), one right.
        answer: The right number; give either this or `choices` or `numbers`.
        tolerance: How far off a right number may be.
        numbers: Two to eight dictionaries with `name` and `answer`, each a field of its own; they
            may have a `tolerance` and a `feedback` as below.
        feedback: Wrong number → what to say; compared with the same tolerance.
        explanation: What to say after the right number.
        unit: Shown behind the field.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if the book has no question of that name or one of another kind, or if an
            argument is empty, no or several choices are right, a feedback is missing, or a wrong
            number would count as right.

    Explained in: the preface, "Three kinds of executable content".
    """
    check_slug(slug)
    if question is None:
        own = (choices, answer, numbers, feedback, explanation)
        if tolerance or unit or any(part is not None for part in own):
            raise ValueError("question must not be missing where choices or answer are given")
        return quiz(slug, **find(slug, "quiz"))
    question = said("question", question)
    if numbers is None:
        found = answers(
            choices=choices, answer=answer, tolerance=tolerance, feedback=feedback,
            explanation=explanation, unit=unit,
        )  # fmt: skip
    elif choices is None and answer is None and feedback is None and not (tolerance or unit):
        found = named_answers(numbers, explanation)
    else:
        raise ValueError("numbers have answers, tolerances and feedback of their own")
    lines, body = asked("Quiz", f"Quiz {slug}", question, found)
    return Explorable(
        "quiz",
        data=found.data | {"slug": slug, "question": question},
        state={"answer": None},
        checks={"answer": found.check},
        results=lambda now: {
            "correct": None if now["answer"] is None else found.right(now["answer"])
        },
        text=lambda now: "\n\n".join(lines),
        body=body,
    )
