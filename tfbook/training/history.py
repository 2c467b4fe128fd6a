"""What a run measured: a list for each number, and a file with a line for each thing that happened.

Explained in: chapters/11_training, section "The finished loop".
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from tfbook.training.files import read_json, write_text

__all__ = ["History", "Log"]


@dataclass
class History:
    """What a run measured, a number for each step; step i is the one taken after i others.

    Attributes:
        losses: mean loss of the step's batches, before the weights were changed.
        gradient_norms: length of the gradient, before it was clipped.
        learning_rates: of the optimizer's first group.
        counts: what the loss was a mean over: tokens, or batches.
        evaluations: what ``evaluate`` returned, with "after", the number of steps before it.
        monitored: what the monitors returned, likewise.
        seconds: spent in all, in this process and those before it.
        best_step: after how many steps "loss" was smallest, with ``patience``.
        stopped: why the run ended: "steps" or "patience".

    Explained in: chapters/11_training, section "The finished loop".
    """

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    evaluations: list[dict] = field(default_factory=list)
    monitored: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    best_step: int | None = None
    stopped: str = "steps"

    def __len__(self) -> int:
        """Return how many steps were taken."""
        return len(self.losses)

    def add(self, *, loss: float, gradient_norm: float, learning_rate: float, count: float) -> None:
        """Add a step."""
        self.losses.append(loss)
        self.gradient_norms.append(gradient_norm)
        self.learning_rates.append(learning_rate)
        self.counts.append(count)

    def last(self) -> dict[str, float]:
        """Return what was measured in the last step."""
        return {
            "loss": self.losses[-1],
            "gradient_norm": self.gradient_norms[-1],
            "learning_rate": self.learning_rates[-1],
            "count": self.counts[-1],
        }


class Log:
    """A file with a line of JSON for each thing that happened.

    A run that goes on from a step takes the lines of later steps away first, also one that was cut
    short when the process was killed, so that no step stands there twice. A run that begins takes
    the place of a log, and of nothing else.

    Args:
        path: the file, or None for no log.
        step: where the run goes on.
        first: whether this process is the one that writes.

    Raises:
        FileExistsError: if there is a file that is no log, or a link.
        OSError: if it cannot be written.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    def __init__(self, path: str | os.PathLike[str] | None, step: int = 0, first: bool = True):
        """Keep the lines of earlier steps."""
        self.file = None
        if path is None or not first:
            return
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        entries, content = _entries(path)
        kept = "".join(line for line, after in entries if after <= step)
        if kept.encode("utf-8") != content:
            write_text(path, kept)
        self.file = path.open("a", encoding="utf-8", buffering=1)  # a line at a time

    def write(self, **entry: object) -> None:
        """Write one line."""
        if self.file is not None:
            self.file.write(json.dumps(entry) + "\n")

    def __enter__(self) -> "Log":
        """Return itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()


def _entries(path):
    """Return the lines of a log, each with the steps before it, and all that is in the file."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise FileExistsError(f"log must be a file of its own, got a link or folder: {path}")
    content = path.read_bytes() if path.exists() else b""
    lines = content.splitlines(keepends=True)
    found = [entry for entry in map(_entry, lines) if entry is not None]
    # A line or two may be damaged; where most say something else, it is somebody's file.
    if len(lines) > 2 * len(found) and not content.startswith(b'{"step": '):
        raise FileExistsError(f"log must be a new file or the log of a run, got {path}")
    return found, content


def _entry(line):
    """Return a line of a log with the number of steps; None for any other line, or half of one."""
    try:
        entry, text = read_json(line), line.decode("utf-8")
        after = entry["step"] + 1 if "step" in entry else entry["after"]
    except (ValueError, KeyError, TypeError):
        return None
    return (text, after) if isinstance(after, int) and text.endswith("\n") else None
