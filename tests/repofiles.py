"""The files of the repository, as its tests see them."""

import functools
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {".git", ".venv", "_build", "__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis"}


@functools.cache
def files() -> tuple[Path, ...]:
    """All files that are committed or would be: git's list, or the tree where there is no git."""
    try:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        names = [ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [
            path
            for path in ROOT.rglob("*")
            if not LEFT_OUT & set(path.relative_to(ROOT).parts)
            and not any(part.endswith(".egg-info") for part in path.parts)
        ]
    return tuple(sorted(path for path in names if path.is_file()))


def named(*suffixes: str, under: str = "") -> list[Path]:
    """The files with one of these endings in a folder."""
    return [p for p in files() if p.suffix in suffixes and p.is_relative_to(ROOT / under)]


def short(path: Path) -> str:
    """A path as a message shows it."""
    return path.relative_to(ROOT).as_posix()


def findings(paths, look) -> list[str]:
    """All that `look` finds in any of these files, each with the name of its file."""
    return [f"{short(path)}: {found}" for path in paths for found in look(path)]
