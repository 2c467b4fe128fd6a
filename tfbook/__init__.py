"""The package behind The Executable Transformer: small, readable, tested parts, in rooms.

Each folder is a room, and its `__init__.py` the door: it names what is public, and one imports
from the door (`from tfbook.attention import attend`). `import tfbook` loads nothing else; a room
is opened when it is first used, so `tfbook.attention.attend(q, k, v)` works after it too.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

__version__ = "0.1.0"


def _rooms() -> list[str]:
    """List the rooms that stand beside this file."""
    here = Path(__file__).parent
    return sorted(path.parent.name for path in here.glob("*/__init__.py"))


def __getattr__(name: str) -> ModuleType:
    """Open the room `name` on first use.

    Raises:
        AttributeError: there is no such room.
    """
    if name.startswith("_") or name not in _rooms():
        raise AttributeError(f"module 'tfbook' has no attribute {name!r}")
    return importlib.import_module(f"tfbook.{name}")


def __dir__() -> list[str]:
    """List the rooms and the names defined here."""
    return sorted([*_rooms(), "__version__"])
