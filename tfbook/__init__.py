"""The package behind The Executable Transformer: small, readable, tested parts.

`import tfbook` loads nothing else; a submodule is imported when it is first used, so
`tfbook.attention.attend(q, k, v)` works after `import tfbook` alone.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

__version__ = "0.1.0"


def _submodules() -> list[str]:
    """List the public submodules that stand beside this file."""
    here = Path(__file__).parent
    files = {path.stem for path in here.glob("*.py")}
    folders = {path.parent.name for path in here.glob("*/__init__.py")}
    return sorted(name for name in files | folders if not name.startswith("_"))


def __getattr__(name: str) -> ModuleType:
    """Import the submodule `name` on first use.

    Raises:
        AttributeError: there is no such submodule.
    """
    if name.startswith("_") or name not in _submodules():
        raise AttributeError(f"module 'tfbook' has no attribute {name!r}")
    return importlib.import_module(f"tfbook.{name}")


def __dir__() -> list[str]:
    """List the submodules and the names defined here."""
    return sorted([*_submodules(), "__version__"])
