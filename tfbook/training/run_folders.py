"""The folder of a run: what was chosen, the tokenizer, the checkpoints, the log.

Choices are kept as ``run.json`` with a digest of the texts, and the tokenizer beside it, so that a
run can be gone on with, and its model used, by the name of the folder alone.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer
from torch import nn

from tfbook.models import TransformerConfig, build
from tfbook.training.checkpoints import last_checkpoint
from tfbook.training.choices import Choices, check_choices
from tfbook.training.files import read_json, write_bytes, write_text
from tfbook.training.recipes import Task

__all__ = [
    "check_data",
    "check_empty",
    "holds_run",
    "lengthen",
    "load_run",
    "read_choices",
    "write_choices",
]

CHOICES, TOKENIZER = "run.json", "tokenizer.json"


def write_choices(
    folder: str | os.PathLike[str], name: str, choices: Mapping[str, object], task: Task
) -> None:
    """Begin a run's folder: its choices, a digest of its texts, and its tokenizer.

    Args:
        folder: one that is not there, or an empty one.
        name: of the task.
        choices: all of them.
        task: what was made of them.

    Raises:
        FileExistsError: if the folder holds a run already, or anything else.
        OSError: if it cannot be written.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    check_empty(folder)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # The choices come last: a folder that has them is complete.
    write_bytes(folder / TOKENIZER, task.tokenizer.to_str().encode("utf-8"))
    write_bytes(folder / CHOICES, _contents(name, choices, task.digest).encode("utf-8"))


def check_empty(folder: str | os.PathLike[str]) -> None:
    """Raise unless a folder can take a run: it is empty, or not there.

    Raises:
        FileExistsError: if it holds a run or anything else, or is a file.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    folder = Path(folder)
    if (folder / CHOICES).exists():
        raise FileExistsError(
            f"{folder} holds a run already: go on with --resume, or choose another folder"
        )
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"a run needs a folder of its own, got the file {folder}")
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ()
    if found:
        raise FileExistsError(
            f"{folder} holds something else, such as {found[0]}: a run needs a new folder or an "
            "empty one"
        )


def holds_run(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder was begun by :func:`write_choices`.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    return (Path(folder) / CHOICES).is_file()


def read_choices(folder: str | os.PathLike[str]) -> tuple[str, Choices]:
    """Return the task and the choices of a run.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: if it is damaged or of another program.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    found = _read(folder)
    return found["task"], found["choices"]


def check_data(folder: str | os.PathLike[str], task: Task) -> None:
    """Raise unless a task learns from the texts that a run was begun with, by the same tokens.

    A run that was begun before digests were kept is compared by its tokenizer alone.

    Raises:
        FileNotFoundError: if the folder holds no run, or no tokenizer.
        ValueError: if a text was changed, or files of the run are damaged.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    kept = _read(folder).get("digest", task.digest)
    if kept != task.digest or _read_tokenizer(folder).to_str() != task.tokenizer.to_str():
        raise ValueError(
            f"the run in {folder} learns from another text: what it is given now is not what it "
            "was begun with; give it that one with --text, or begin another run"
        )


def lengthen(folder: str | os.PathLike[str], steps: int) -> None:
    """Let a run take more steps in all.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: if it is damaged, or has as many steps already.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    found = _read(folder)
    if steps <= found["choices"]["steps"]:
        raise ValueError(f"steps must be above {found['choices']['steps']:,}, got {steps:,}")
    choices = found["choices"] | {"steps": steps}
    text = _contents(found["task"], choices, found.get("digest"))
    write_text(Path(folder) / CHOICES, text)


def load_run(folder: str | os.PathLike[str]) -> tuple[nn.Module, Tokenizer, int]:
    """Return the model of a run as it is in the last checkpoint, its tokenizer, and the step.

    The model is in evaluation mode, with the best weights if the run was watched with patience. It
    reads as many tokens at once as it was trained on, ``config.max_len``.

    Raises:
        FileNotFoundError: if the folder holds no run, or no checkpoint yet.
        ValueError: if no checkpoint is whole, or another file is damaged.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    folder = Path(folder)
    _, choices = read_choices(folder)
    tokenizer = _read_tokenizer(folder)
    checkpoint = last_checkpoint(folder)
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint yet")
    try:
        config = TransformerConfig.from_dict(checkpoint.about["config"])
        model = build(config.replace(max_len=choices["context"]))
        model.load_state_dict(checkpoint.state["best"]["weights"] or checkpoint.model)
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"the checkpoint of step {checkpoint.step} in {folder} is of another kind of run: "
            f"{error}"
        ) from None
    return model.eval(), tokenizer, checkpoint.step


def _contents(name, choices, digest):
    contents = {"made_by": "tfbook", "task": name, "choices": dict(choices), "digest": digest}
    return json.dumps(
        {key: value for key, value in contents.items() if value is not None}, indent=1
    )


def _read(folder):
    """Return what run.json says, if it is whole."""
    path = Path(folder) / CHOICES
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no run: there is no {CHOICES} in it")
    try:
        found = read_json(path.read_bytes())
        name, choices = found["task"], dict(found["choices"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or of another program: {error!r}") from None
    try:
        check_choices(name, choices)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged or of another version of tfbook: {error}") from None
    return found


def _read_tokenizer(folder):
    path = Path(folder) / TOKENIZER
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} is no whole run: {TOKENIZER} is missing") from None
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{path} is damaged: {error}") from None
