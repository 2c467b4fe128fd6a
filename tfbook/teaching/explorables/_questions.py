"""The book's own questions: one data file beside the exercises of each chapter."""

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "exercises"
FILE = "quizzes.toml"
KINDS = ("quiz", "predict", "explain")


@cache
def questions(chapter: str) -> Mapping[str, dict]:
    """Return the questions of a chapter by their slugs, as its file writes them.

    Raises:
        ValueError: if there is no file of questions for that chapter.
    """
    path = FOLDER / chapter / FILE
    if not path.is_file():
        raise ValueError(f"chapter must be one of {', '.join(chapters())}, got {chapter!r}")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def chapters() -> tuple[str, ...]:
    """Return the folders of `tfbook.teaching.exercises` that have a file of questions."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob(f"*/{FILE}")))


def kind_of(entry: Mapping) -> str:
    """Return by which function an entry of a file is shown: a quiz, if it does not say."""
    return entry.get("kind", "quiz")


def find(slug: str, kind: str) -> dict:
    """Return the arguments of `quiz`, `predict` or `explain` for a question of the book.

    Raises:
        ValueError: if the book has no question of that name; near matches are named. Also if its
            question is of another kind.
    """
    known: list[str] = []
    for chapter in chapters():
        if slug in questions(chapter):
            entry = questions(chapter)[slug]
            if kind_of(entry) != kind:
                other = kind_of(entry)
                shown = f"{other}({slug!r}) shows it" if other in KINDS else "no function shows it"
                raise ValueError(
                    f"slug {slug!r} must name a question of the kind {kind!r}; the book has it as "
                    f"{other!r}: {shown}"
                )
            return _arguments(entry)
        known += [name for name, e in questions(chapter).items() if kind_of(e) == kind]
    close = difflib.get_close_matches(slug.lower().replace("_", "-"), known, n=3, cutoff=0.4)
    needs = "model and rubric" if kind == "explain" else "choices or an answer"
    hint = (
        f"did you mean {' or '.join(map(repr, close))}?"
        if close
        else f"for a question of your own give its text, and {needs}"
    )
    raise ValueError(f"slug {slug!r} is not a question of the book: {hint}")


def _arguments(entry: Mapping) -> dict:
    """Bring an entry of a file into the form that the function of its kind takes."""
    found = {name: value for name, value in entry.items() if name != "kind"}
    if "choices" in found:
        found["choices"] = [
            (choice["text"], choice.get("right", False), choice["feedback"])
            for choice in found["choices"]
        ]
    if "numbers" in found:
        found["numbers"] = [_with_feedback(number) for number in found["numbers"]]
    return _with_feedback(found)


def _with_feedback(entry: Mapping) -> dict:
    if "feedback" not in entry:
        return dict(entry)
    return {**entry, "feedback": {wrong["number"]: wrong["text"] for wrong in entry["feedback"]}}
