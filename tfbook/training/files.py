"""Files of a run, written so that nothing of anybody else's is lost, and read so that faults speak.

What is written is written under a new name that nothing had, flushed, and renamed: neither a link
nor a file of that name is followed or opened. One training at a time holds a folder.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["Hold", "new_folder", "read_json", "write_bytes", "write_text"]


class Hold:
    """A folder that one training at a time may write into; the system lets go when it ends.

    Held is the folder itself (``flock``), so that no file is left behind and a process that was
    killed holds nothing. Where a system cannot do that (Windows, some network drives), nothing is
    held.

    Args:
        folder: made if it is not there.

    Raises:
        BlockingIOError: if another training, of this process or another, holds it.
        OSError: if it cannot be made.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    def __init__(self, folder: str | os.PathLike[str]):
        """Take hold."""
        self.handle = None
        Path(folder).mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise BlockingIOError(
                f"another training is writing into {folder}: let it end, stop it, or choose "
                "another folder"
            ) from None
        except OSError:
            os.close(handle)
        else:
            self.handle = handle

    def release(self) -> None:
        """Let go."""
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None


def new_folder(parent: Path, prefix: str) -> Path:
    """Make a folder of a name that nothing had, with the rights that folders have here.

    Raises:
        OSError: if it cannot be made.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    made = parent / f"{prefix}{secrets.token_hex(4)}"
    made.mkdir()
    return made


def write_bytes(path: Path, content: bytes) -> None:
    """Write a new file and wait until it lies on the disk.

    Raises:
        FileExistsError: if there is something of that name, a link too.
        OSError: if it cannot be written.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Put a text in the place of a file, whole or not at all.

    Raises:
        OSError: if it cannot be written; what was there is as it was.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    left_over = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}")
    for beside in path.parent.iterdir():  # of a process that was killed here
        if left_over.fullmatch(beside.name):
            beside.unlink()
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_bytes(new, text.encode("utf-8"))
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def read_json(content: bytes) -> object:
    """Return what a JSON file says.

    Raises:
        ValueError: if it is no JSON in UTF-8, or nested too deeply to be one of ours.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
