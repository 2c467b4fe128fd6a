"""The book's own quiz questions: one data file beside the exercises of each chapter."""

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "exercises"
FILE = "quizzes.toml"


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


def find(slug: str) -> dict:
    """Return the arguments of `quiz` for a question of the book.

    Raises:
        ValueError: if the book has no question of that name; near matches are named.
    """
    known: list[str] = []
    for chapter in chapters():
        if slug in questions(chapter):
            return _arguments(questions(chapter)[slug])
        known += questions(chapter)
    close = difflib.get_close_matches(slug.lower().replace("_", "-"), known, n=3, cutoff=0.4)
    hint = (
        f"did you mean {' or '.join(map(repr, close))}?"
        if close
        else ("for a question of your own give its text, and choices or an answer")
    )
    raise ValueError(f"slug {slug!r} is not a question of the book: {hint}")


def _arguments(entry: Mapping) -> dict:
    """Bring an entry of a file into the form that `quiz` takes."""
    found = dict(entry)
    if "choices" in found:
        found["choices"] = [
            (choice["text"], choice.get("right", False), choice["feedback"])
            for choice in found["choices"]
        ]
    if "feedback" in found:
        found["feedback"] = {wrong["number"]: wrong["text"] for wrong in found["feedback"]}
    return found
