"""Checkpoints of a training run: written whole or not at all, and read only when they are whole.

A run has a folder, and each checkpoint is a folder in it, ``step-00000250``, with three files: the
weights (safetensors, under the model's own names), every other tensor (safetensors), and a JSON
file with the rest, the sizes and the digests of all. Nothing is pickled, so nothing is run when a
checkpoint is read.

A checkpoint is written under another name, flushed to the disk, and then renamed. A process that is
killed, or runs out of disk, leaves the last checkpoint as it was. One run writes into a folder, not
two at a time: :func:`tfbook.training.fit` holds it. What else lies there is left alone.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tfbook._checks import check_bool, check_number
from tfbook.training.files import new_folder, read_json, write_bytes

__all__ = [
    "Checkpoint",
    "Checkpointing",
    "DamagedCheckpoint",
    "last_checkpoint",
    "read_checkpoint",
    "steps_in",
    "write_checkpoint",
]

FORMAT = 1  # raise it with every change of what the files hold
MADE_BY = "tfbook.training.checkpoints"
NAME = re.compile(r"step-(\d{8,})")
WRITING, REMOVED, DAMAGED = ".writing-", ".removed-", "damaged-"
LEFT_OVER = re.compile(r"\.(writing|removed)-step-\d{8,}-\w+")
MODEL, TENSORS, CONTENTS = "model.safetensors", "tensors.safetensors", "checkpoint.json"
KINDS = ("$tensor", "$array", "$tuple", "$pairs")  # what JSON has no form for


class DamagedCheckpoint(ValueError):
    """A folder that is no whole checkpoint: cut short, changed, or something else.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped.

    Attributes:
        step: how many steps had been taken.
        model: weights and buffers by name.
        state: everything else: nested dictionaries, lists and tuples of numbers, strings, tensors
            and arrays.
        about: what has to be the same to go on: the model's config, the optimizer, the settings.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    step: int
    model: dict[str, Tensor]
    state: dict[str, object] = field(default_factory=dict)
    about: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpointing:
    """Where a run keeps its checkpoints, how often it saves, and whether it goes on from them.

    Attributes:
        folder: of its own for this run.
        every: how often to save, in steps; only at the end when omitted.
        keep: how many to keep.
        resume: go on from the last checkpoint, if there is one.

    Raises:
        ValueError: if a number is below 1.

    Example:
        >>> Checkpointing("runs/shakespeare", every=250).keep
        2

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    folder: str | os.PathLike[str]
    _: KW_ONLY
    every: int | None = None
    keep: int = 2
    resume: bool = True

    def __post_init__(self):
        """Check each of them."""
        if not isinstance(self.folder, str | os.PathLike):
            raise TypeError(f"folder must be a path, got {type(self.folder).__name__}")
        if self.every is not None:
            check_number("every", self.every, 1, whole=True)
        check_number("keep", self.keep, 1, whole=True)
        check_bool("resume", self.resume)


def steps_in(folder: str | os.PathLike[str]) -> list[int]:
    """Return the steps of which a folder holds checkpoints, from the first to the last.

    Whether they are whole is not looked at; a folder that is not there holds none.

    Raises:
        NotADirectoryError: if it is a file.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    folder = Path(folder)
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise NotADirectoryError(f"checkpoints lie in a folder, got the file {folder}")
    found = (NAME.fullmatch(path.name) for path in folder.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in found if match)


def write_checkpoint(
    folder: str | os.PathLike[str], checkpoint: Checkpoint, *, keep: int = 2
) -> Path:
    """Write a checkpoint whole or not at all, then drop all but the last ``keep``.

    Args:
        folder: of the run; made if it is not there.
        checkpoint: what to write. One of the same step is replaced.
        keep: how many to keep, counted back from this step.

    Returns:
        Where it lies.

    Raises:
        TypeError: if the state holds something of which only a pickle could be made.
        ValueError: if keep is below 1 or the step negative.
        OSError: if it could not be written (no space, no permission): the checkpoints that were
            there are as they were.

    Cost: the bytes of the tensors, once more in memory while they are written.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    check_number("keep", keep, 1, whole=True)
    check_number("step", checkpoint.step, 0, whole=True)
    folder = Path(folder)
    files = _files(checkpoint)
    place = folder / _name(checkpoint.step)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        new = new_folder(folder, f"{WRITING}{place.name}-")
        for name, content in files.items():
            write_bytes(new / name, content)
        _flush_folder(new)
        _remove(place)
        os.rename(new, place)
        _flush_folder(folder)
    except OSError as error:
        _clear(folder)
        raise _unwritten(folder, checkpoint.step, files, error) from error
    for step in [step for step in steps_in(folder) if step <= checkpoint.step][:-keep]:
        _remove(folder / _name(step))
    return place


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint and compare every byte with its digest.

    Args:
        path: the checkpoint's folder, ``…/step-00000250``.

    Raises:
        DamagedCheckpoint: if it is not whole; it is a ValueError.
        ValueError: if it was made by a later version of this module.
        FileNotFoundError: if there is none.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    contents = _read_contents(path)
    parts = {}
    for name, wanted in contents["files"].items():
        content = _read(path, name)
        if len(content) != wanted["bytes"]:
            raise DamagedCheckpoint(
                f"{path.name}/{name} is cut short or changed: it must have {wanted['bytes']:,} "
                f"bytes, got {len(content):,}"
            )
        if _digest(content) != wanted["blake2b"]:
            raise DamagedCheckpoint(f"{path.name}/{name} is damaged: its bytes were changed")
        try:
            parts[name] = load(content)
        except SafetensorError as error:
            raise DamagedCheckpoint(f"{path.name}/{name} cannot be read: {error}") from None
    try:
        state = _unpack(contents["state"], parts[TENSORS])
        about = _unpack(contents["about"], {})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path.name}/{CONTENTS} is no whole state: {error!r}") from None
    return Checkpoint(contents["step"], parts[MODEL], state, about)


def last_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint | None:
    """Read the last whole checkpoint of a run.

    One that is damaged is passed over with a warning that says what is wrong with it, and renamed
    so that it does not count any more; the one before it is used.

    Returns:
        The checkpoint, or None where there is none.

    Raises:
        ValueError: if there are some and none is whole, or one is of a later version.
        NotADirectoryError: if the folder is a file.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    folder, wrong = Path(folder), {}
    for step in reversed(steps_in(folder)):
        path = folder / _name(step)
        try:
            found = read_checkpoint(path)
        except DamagedCheckpoint as error:
            wrong[path] = str(error)
            continue
        for damaged in wrong:
            _set_aside(damaged)
        if wrong:
            warnings.warn(
                f"{'; '.join(wrong.values())}. The last whole checkpoint is used, {path.name}",
                stacklevel=2,
            )
        return found
    if wrong:
        raise ValueError(f"no checkpoint in {folder} is whole: {'; '.join(wrong.values())}")
    return None


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=20).hexdigest()


def _files(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Return the bytes of the three files."""
    tensors = {}
    state = _pack(checkpoint.state, "state", tensors)
    parts = {MODEL: save(_alone(checkpoint.model)), TENSORS: save(_alone(tensors))}
    contents = {
        "made_by": MADE_BY,
        "format": FORMAT,
        "step": checkpoint.step,
        "about": _pack(checkpoint.about, "about", None),
        "state": state,
        "files": {
            name: {"bytes": len(content), "blake2b": _digest(content)}
            for name, content in parts.items()
        },
    }
    whole = {"blake2b": _digest(_canonical(contents)), "contents": contents}
    return parts | {CONTENTS: json.dumps(whole).encode()}


def _canonical(contents: object) -> bytes:
    return json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()


def _alone(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, none sharing memory with another, as the format asks for."""
    found, seen = {}, set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return found


def _pack(value: object, name: str, tensors: dict[str, Tensor] | None) -> object:
    """Return what JSON can hold, with the tensors put aside under the name of their place."""
    if isinstance(value, Tensor) and tensors is not None:
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, np.ndarray):
        return {"$array": [value.dtype.str, value.tolist()]}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        plain = all(isinstance(key, str) and key not in KINDS for key in value)
        packed = {key: _pack(each, f"{name}.{key}", tensors) for key, each in value.items()}
        keys = [_pack(key, f"a key of {name}", None) for key in value]
        return packed if plain else {"$pairs": list(zip(keys, packed.values(), strict=True))}
    if isinstance(value, list | tuple):
        packed = [_pack(each, f"{name}.{i}", tensors) for i, each in enumerate(value)]
        return packed if isinstance(value, list) else {"$tuple": packed}
    raise TypeError(
        f"{name} cannot be kept in a checkpoint: it must be made of numbers, strings, lists, "
        f"tuples, dictionaries, arrays and tensors, got {type(value).__name__}"
    )


def _unpack(value: object, tensors: dict[str, Tensor]) -> object:
    """Return what was packed."""
    if isinstance(value, list):
        return [_unpack(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value)) if len(value) == 1 else None
    if kind == "$tensor":
        return tensors[value[kind]]
    if kind == "$array":
        dtype, numbers = value[kind]
        return np.array(numbers, dtype=dtype)
    if kind == "$tuple":
        return tuple(_unpack(value[kind], tensors))
    if kind == "$pairs":
        return {_unpack(key, tensors): _unpack(each, tensors) for key, each in value[kind]}
    return {key: _unpack(each, tensors) for key, each in value.items()}


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{path.name} is no whole checkpoint: {name} is missing") from None
    except OSError as error:
        raise DamagedCheckpoint(
            f"{path.name}/{name} cannot be read: {error.strerror or error}"
        ) from None


def _read_contents(path: Path) -> dict[str, object]:
    """Return what the JSON file says, if it is ours and whole."""
    try:
        whole = read_json(_read(path, CONTENTS))
        contents = whole["contents"]
        made_by, version = contents["made_by"], contents["format"]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, DamagedCheckpoint):
            raise
        raise DamagedCheckpoint(
            f"{path.name}/{CONTENTS} is damaged or of another program: {error!r}"
        ) from None
    if made_by != MADE_BY:
        raise DamagedCheckpoint(f"{path.name}/{CONTENTS} is of another program, {made_by!r}")
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version}, and this version of tfbook reads format {FORMAT}: "
            "go on with the version that wrote it, or begin a run in another folder"
        )
    if whole.get("blake2b") != _digest(_canonical(contents)):
        raise DamagedCheckpoint(f"{path.name}/{CONTENTS} is damaged: its text was changed")
    step, files = contents.get("step"), contents.get("files")
    if not isinstance(step, int) or path.name != _name(step):
        raise DamagedCheckpoint(f"{path.name} holds the checkpoint of step {step}")
    if not isinstance(files, dict) or set(files) != {MODEL, TENSORS}:
        raise DamagedCheckpoint(f"{path.name}/{CONTENTS} must name {MODEL} and {TENSORS}")
    if not {"state", "about"} <= set(contents) or not all(map(_is_listed, files.values())):
        raise DamagedCheckpoint(f"{path.name}/{CONTENTS} is no whole list of what is kept")
    return contents


def _is_listed(entry: object) -> bool:
    return isinstance(entry, dict) and {"bytes", "blake2b"} <= set(entry)


def _flush_folder(folder: Path) -> None:
    """Wait until the names in a folder lie on the disk, where the system can do that."""
    with suppress(OSError):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    """Remove a checkpoint; while its files go, it has no checkpoint's name any more."""
    if path.exists():
        gone = new_folder(path.parent, f"{REMOVED}{path.name}-")
        os.rename(path, gone / path.name)
        shutil.rmtree(gone, ignore_errors=True)


def _clear(folder: Path) -> None:
    """Remove what a process left half written or half removed."""
    with suppress(OSError):
        for path in folder.iterdir():
            if LEFT_OVER.fullmatch(path.name) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


def _set_aside(path: Path) -> None:
    """Rename a damaged checkpoint, so that it stays to be looked at and does not count."""
    with suppress(OSError):
        os.rename(path, new_folder(path.parent, DAMAGED) / path.name)


def _unwritten(folder: Path, step: int, files: dict[str, bytes], error: OSError) -> OSError:
    """Return the error that says what is lost and what is not."""
    needed = sum(map(len, files.values()))
    free = "an unknown number of"
    with suppress(OSError):
        free = f"{shutil.disk_usage(folder).free:,}"
    kept = steps_in(folder) if folder.is_dir() else []
    last = f"the last one, {_name(kept[-1])}, is as it was" if kept else "there is none before it"
    return OSError(
        error.errno,
        f"the checkpoint of step {step} could not be written to {folder} ({error.strerror}): it "
        f"takes {needed:,} bytes, and {free} are free; {last}",
    )
