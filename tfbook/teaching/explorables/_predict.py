"""predict: what the reader says will happen, kept before the result is seen."""

from collections.abc import Mapping, Sequence

from tfbook.teaching.explorables._answers import answers, asked, check_slug, said
from tfbook.teaching.explorables._base import Explorable
from tfbook.teaching.explorables._questions import find


def predict(
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
    """Return a question about an experiment that the reader answers before seeing the result.

    `predict("without-scale")` asks a question of the book, an entry of the chapter's questions
    with `kind = "predict"`; with a question of your own, give its choices or its answer. The
    experiment's cell stands below it and says so in its metadata,
    `{"tfbook": {"predict": "without-scale"}}`: the page folds its outputs until the prediction is
    kept, JupyterLab until the cell is run.

    The reader's answer is kept in the browser. In a live notebook `p.answer` is what was
    predicted (the index of a choice, or a number) and `p.correct` whether it came true; both are
    `None` before.

    Args:
        slug: A short name in lower case with hyphens.
        question: The question; without it, the book's own question of that name.
        choices: Two to six (text, whether it happens, how it compares with what happens), one true.
        answer: The number that comes out; give either this or `choices`.
        tolerance: How far off a right prediction may be.
        feedback: Predicted number → what to say; compared with the same tolerance.
        explanation: What to say of the number that comes out, whatever was predicted.
        unit: Shown behind the field.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if the book has no prediction of that name, or if an argument is empty or does
            not fit, as for `quiz`.

    Explained in: the preface, "Three kinds of executable content".
    """
    check_slug(slug)
    if question is None:
        own = (choices, answer, feedback, explanation)
        if tolerance or unit or any(part is not None for part in own):
            raise ValueError("question must not be missing where choices or answer are given")
        return predict(slug, **find(slug, "predict"))
    question = said("question", question)
    found = answers(
        choices=choices, answer=answer, tolerance=tolerance, feedback=feedback,
        explanation=explanation, unit=unit, otherwise="It is {}.",
    )  # fmt: skip
    lines, body = asked("Predict first", f"Predict {slug}", question, found)
    return Explorable(
        "predict",
        data=found.data | {"slug": slug, "question": question},
        state={"answer": None},
        checks={"answer": found.check},
        results=lambda now: {
            "correct": None if now["answer"] is None else found.right(now["answer"])
        },
        text=lambda now: "\n\n".join(lines),
        body=body,
    )
