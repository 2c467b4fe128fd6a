"""Training runs that are too long for a chapter: the command, the log and the small model it left.

    python -m tfbook.experiments NAME      # run it again; the result replaces the shipped one
    log = experiments.log("translation")   # what the shipped run wrote down
    log = experiments.log("translation", card=True)     # and show what was trained, on what
    weights = experiments.weights("translation")

Each experiment is one module of this folder with a docstring that says what it asks, a function
`run(**settings)` that returns a log (numbers, lists and strings) and, where a chapter needs the
trained model, a dictionary of tensors, and a `SMOKE` dictionary of settings under which the whole
run takes seconds. The results lie in `results/`: NAME.json and NAME.safetensors.
"""

import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from safetensors.torch import load_file, save
from torch import Tensor

__all__ = ["card", "keep", "log", "names", "weights"]

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"


def names() -> list[str]:
    """Return the names of all experiments."""
    return sorted(p.stem for p in FOLDER.glob("*.py") if not p.stem.startswith("_"))


def log(name: str, *, card: bool = False) -> dict:
    """Return what the shipped run of an experiment wrote down.

    Each call reads the file anew, so the dictionary is yours to change.

    Args:
        name: of the experiment.
        card: also show the line of :func:`card`, above the figure that is drawn of the log.

    Raises:
        ValueError: if there is no experiment of that name, or it shipped no log.
    """
    found = json.loads(_result(name, "json").read_text(encoding="utf-8"))
    if card:
        _show(name, found)
    return found


def card(name: str, **part: str) -> None:
    """Show in one line what an experiment trained, on what and for how long, and where its code is.

    Args:
        name: of the experiment.
        part: where a figure shows a part of the experiment, what holds for that part, by `model`,
            `data`, `steps`, `batch`, `rate` or `seeds`.

    Raises:
        ValueError: if there is no experiment of that name, or it shipped no log.
    """
    _show(name, log(name), part)


def _show(name: str, log: Mapping, part: Mapping[str, str] | None = None) -> None:
    from tfbook.experiments._cards import card_of

    shown = card_of(name, log, part)
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        ipython.display.display(shown)


def weights(name: str) -> dict[str, Tensor]:
    """Return the weights that the shipped run of an experiment ended with, by parameter name.

    Raises:
        ValueError: if there is no experiment of that name, or it shipped no weights.
    """
    return load_file(_result(name, "safetensors"))


def keep(
    name: str,
    log: Mapping,
    weights: Mapping[str, Tensor] | None = None,
    *,
    folder: Path | None = None,
) -> None:
    """Write the result of a run, into `results/` or another folder: all of it, or nothing.

    Raises:
        ValueError: if there is no experiment of that name.
    """
    _check(name)
    folder = RESULTS if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    files = {"json": (json.dumps(log, indent=1, allow_nan=False) + "\n").encode()}
    if weights:
        files["safetensors"] = save({key: w.contiguous() for key, w in weights.items()})
    try:
        for ending, content in files.items():
            (folder / f"{name}.{ending}.tmp").write_bytes(content)
        for ending in files:
            os.replace(folder / f"{name}.{ending}.tmp", folder / f"{name}.{ending}")
    finally:
        for ending in files:
            (folder / f"{name}.{ending}.tmp").unlink(missing_ok=True)


@cache
def _known() -> tuple[str, ...]:
    return tuple(names())


def _check(name: str) -> None:
    if name not in _known():
        raise ValueError(f"name must be one of {', '.join(_known())}, got {name!r}")


def _result(name: str, ending: str) -> Path:
    _check(name)
    path = RESULTS / f"{name}.{ending}"
    if not path.exists():
        raise ValueError(f"the experiment {name!r} shipped no {ending} file")
    return path
