"""Which exercises the reader has passed: one empty file each, in a folder of the reader's own."""

import os
import sys
import warnings
from html import escape
from pathlib import Path
from typing import Any

from tfbook.teaching.boxes import colour
from tfbook.teaching.exercises._index import FILES


def data_folder() -> Path:
    """Return the folder where the reader's progress is kept; it need not exist yet.

    The first that is given of: the environment's TFBOOK_DATA, `tfbook` in its XDG_DATA_HOME, and
    what the system has for such files (on Windows LOCALAPPDATA, on macOS Library/Application
    Support, else .local/share in the home folder).
    """
    if own := os.environ.get("TFBOOK_DATA"):
        return Path(own)
    if shared := os.environ.get("XDG_DATA_HOME"):
        return Path(shared) / "tfbook"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "tfbook" / "data"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "tfbook"
    return Path.home() / ".local" / "share" / "tfbook"


def record(name: str) -> None:
    """Note that an exercise has been passed.

    An empty file is there or not: nothing can be half written, and notebooks that run at the same
    time do not undo what the other noted. Where it cannot be made, a warning says so.
    """
    folder = data_folder() / "passed"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    except OSError as error:
        warnings.warn(
            f"that {name} has passed could not be noted in {folder} ({error}); name a folder that "
            "can be written with TFBOOK_DATA",
            stacklevel=2,
        )


def passed() -> tuple[str, ...]:
    """Return the names of the exercises that have been passed, in the order of the book."""
    folder = data_folder() / "passed"
    return tuple(name for name in FILES if (folder / name).is_file())


class Progress:
    """How many exercises of each chapter, lab and project have been passed, as a table."""

    def __init__(self) -> None:
        """Read what was noted until now."""
        done = set(passed())
        self.chapters: dict[str, tuple[int, int]] = {}
        for name, file in FILES.items():
            chapter = file.partition(".")[0].replace("_", " ").capitalize()
            count, total = self.chapters.get(chapter, (0, 0))
            self.chapters[chapter] = (count + (name in done), total + 1)

    def __repr__(self) -> str:
        """Return the table as text."""
        width = max(map(len, self.chapters))
        rows = [f"{name:{width}}  {n:2} of {all_:2}" for name, (n, all_) in self.chapters.items()]
        return "\n".join(["exercises passed", *rows])

    def _html(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align: left">{escape(name)}</td><td>{count} of {total}</td>'
            f'<td style="text-align: left; color: {colour("green" if count else "grey")}">'
            f"<span aria-hidden=\"true\">{'●' * count}{'○' * (total - count)}</span></td></tr>"
            for name, (count, total) in self.chapters.items()
        )
        return f'<table class="tfbook-progress"><tbody>{rows}</tbody></table>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._html()}


def progress() -> Progress:
    """Return which exercises have been passed, as a table that a notebook shows.

    A check that passes notes it in a folder of the reader's own, outside of the book: what
    TFBOOK_DATA names, or `tfbook` where the system keeps such data. Delete the folder to begin
    anew. The book's own solutions do not count (`check(..., record=False)`).

    Explained in: the preface, "Three kinds of executable content".
    """
    return Progress()
