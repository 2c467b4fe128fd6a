"""A second copy of some modules, made from their text: plain, or with edits.

The tests wrap every function of `tfbook` in a check of its shapes. `torch.compile` is to see the
functions a reader has, so it gets a copy without that. Planted bugs are edits to the text.
"""

import re
import sys
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import tfbook


class Mutant(NamedTuple):
    """One planted bug: the text it replaces in a module, and the check that must catch it."""

    bug: str
    module: str
    old: str
    new: str
    caught_by: str
    variant: str = "reference"

    @property
    def edits(self) -> dict[str, list[tuple[str, str]]]:
        """What `copies` has to replace."""
        return {self.module: [(self.old, self.new)]}


@cache
def needed(*names: str) -> tuple[str, ...]:
    """Return the modules that the named ones import, directly or not, each after its own."""
    found = {}
    for name in names:
        text = Path(tfbook.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        imported = re.findall(r"^from tfbook\.(\w+) import", text, flags=re.MULTILINE)
        found |= dict.fromkeys(needed(*imported)) | {name: None}
    return tuple(found)


MULTIHEAD = needed("multihead", "latent")
MODELS = needed("models")


def attention(
    package: str, edits: dict[str, list[tuple[str, str]]] | None = None
) -> types.ModuleType:
    """Copy what attention is made of, see `copies`; return the copy of `tfbook.attention`."""
    return copies(package, needed("attention"), edits)


def copies(
    package: str,
    modules: Sequence[str],
    edits: dict[str, list[tuple[str, str]]] | None = None,
) -> types.ModuleType:
    """Execute the modules anew as `package.…`, (old, new) texts replaced; return the last one.

    Raises:
        ValueError: if an old text does not stand in its module exactly once.
    """
    sys.modules[package] = types.ModuleType(package)
    for name in modules:
        path = Path(tfbook.__file__).with_name(f"{name}.py")
        text = path.read_text(encoding="utf-8")
        for old, new in (edits or {}).get(name, []):
            if text.count(old) != 1:
                raise ValueError(f"{old!r} stands {text.count(old)} times in {name}.py, not once")
            text = text.replace(old, new)
        text = text.replace("from tfbook.", f"from {package}.")
        # torch.compile looks modules up by name, so the copy has to be found.
        sys.modules[f"{package}.{name}"] = module = types.ModuleType(f"{package}.{name}")
        exec(compile(text, str(path), "exec"), module.__dict__)
    return module
