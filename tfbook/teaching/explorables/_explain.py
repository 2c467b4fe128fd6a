"""explain: the reader writes an answer and marks it by a model answer and a rubric."""

from collections.abc import Sequence

from tfbook.teaching.explorables._answers import check_slug, markup, said
from tfbook.teaching.explorables._base import Explorable, boolean
from tfbook.teaching.explorables._questions import find

POINTS = 3
MOST = 10_000  # characters of an answer


def explain(
    slug: str,
    question: str | None = None,
    *,
    model: str | None = None,
    rubric: Sequence[str] | None = None,
) -> Explorable:
    """Return a question that is answered in words, with a model answer and a rubric of three lines.

    `explain("why-not-average")` asks a question of the book, an entry of the chapter's questions
    with `kind = "explain"`; with a question of your own, give model and rubric. The model answer
    shows once something is written; then the reader marks what the own answer has.

    Text and marks are kept in the browser. In a live notebook `e.text` is what was written,
    `e.marks` are the three marks, `e.compared` says whether the model answer was opened, and
    `e.complete` whether all three are marked.

    Args:
        slug: A short name in lower case with hyphens.
        question: The question; without it, the book's own question of that name.
        model: An answer that has everything the rubric asks for.
        rubric: Three short texts: what a good answer says.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if the book has no such question of this kind, a text is empty, or the rubric
            does not have three lines.

    Explained in: the preface, "Three kinds of executable content".
    """
    check_slug(slug)
    if question is None:
        if model is not None or rubric is not None:
            raise ValueError("question must not be missing where model or rubric are given")
        return explain(slug, **find(slug, "explain"))
    question, model = said("question", question), said("model", model)
    if isinstance(rubric, str) or not isinstance(rubric, Sequence):
        raise TypeError(f"rubric must be a list of strings, got {type(rubric).__name__}")
    lines = [said(f"rubric[{i}]", line) for i, line in enumerate(rubric)]
    if len(lines) != POINTS:
        raise ValueError(f"rubric must have exactly {POINTS} lines, got {len(lines)}")
    items = "".join(f"<li>{markup(line)}</li>" for line in lines)
    story = [f"Explain {slug}", question, f"A model answer: {model}", "A good answer says:"]
    text = "\n\n".join([*story, "\n".join(f"- {line}" for line in lines)])
    return Explorable(
        "explain",
        data={"slug": slug, "question": question, "model": model, "rubric": lines, "most": MOST},
        state={"text": "", "marks": [False] * POINTS, "compared": False},
        checks={"text": _text, "marks": _marks, "compared": boolean("compared")},
        results=lambda now: {"complete": all(now["marks"])},
        text=lambda now: text,
        body=f"<p><strong>Explain.</strong> {markup(question)}</p>\n<details><summary>A model "
        f"answer</summary><p>{markup(model)}</p>\n<p>A good answer says:</p><ul>{items}</ul>"
        "</details>",
    )


def _text(value) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text must be a string, got {type(value).__name__}")
    if len(value) > MOST:
        raise ValueError(f"text must have at most {MOST} characters, got {len(value)}")
    return value


def _marks(value) -> list[bool]:
    if not isinstance(value, (list, tuple)) or len(value) != POINTS:
        raise ValueError(f"marks must be {POINTS} times True or False, got {value!r}")
    return [boolean("a mark")(mark) for mark in value]
