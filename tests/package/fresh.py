"""A second copy of the package's modules, made from their text: plain, or with edits.

The tests wrap every function of `tfbook` in a check of its shapes. `torch.compile` is to see the
functions a reader has, so it gets a copy without that. Planted bugs are edits to the text.

A copy is imported like any package: folders have doors (`__init__.py`), a module's parents come
before it, and whoever imports from the package inside of the copy gets the copy.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
import types
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
Edits = dict[str, list[tuple[str, str]]]


class Mutant(NamedTuple):
    """One planted bug: the text it replaces in a module, and the check that must catch it."""

    bug: str
    module: str  # by its whole name, as in "tfbook.attention.masks"
    old: str
    new: str
    caught_by: str
    variant: str = "reference"

    @property
    def edits(self) -> Edits:
        """What `copies` has to replace."""
        return {self.module: [(self.old, self.new)]}


class Copy(importlib.machinery.SourceFileLoader):
    """Compiles a module's text with the edits made, and its own package's name put in."""

    def __init__(self, name: str, path: str, source: str, edits: list[tuple[str, str]]):
        super().__init__(name, path)
        self.source, self.edits = source, edits

    def get_code(self, fullname: str) -> types.CodeType:
        return _compiled(self.path, self.source, fullname.split(".")[0], tuple(self.edits))


@cache
def _compiled(
    path: str, source: str, package: str, edits: tuple[tuple[str, str], ...]
) -> types.CodeType:
    text = Path(path).read_text(encoding="utf-8")
    for old, new in edits:
        if text.count(old) != 1:
            place = Path(path).relative_to(_home(source).parent)
            raise ValueError(f"{old!r} stands {text.count(old)} times in {place}, not once")
        text = text.replace(old, new)
    own = rf'\b(from |import |import_module\(f?"){source}\b'
    return compile(re.sub(own, rf"\1{package}", text), path, "exec", dont_inherit=True)


def _home(source: str) -> Path:
    """Return the folder of a package, without importing it."""
    found = importlib.util.find_spec(source)
    return Path(found.submodule_search_locations[0])


class Copies(importlib.abc.MetaPathFinder):
    """Finds the modules of the packages that `copies` has made."""

    def __init__(self):
        self.made: dict[str, tuple[str, Edits]] = {}

    def find_spec(self, fullname, path=None, target=None):
        package, _, rest = fullname.partition(".")
        if package not in self.made:
            return None
        source, edits = self.made[package]
        file = _home(source).joinpath(*rest.split(".") * bool(rest))
        folder = file.is_dir()
        file = file / "__init__.py" if folder else file.with_suffix(".py")
        if not file.exists():
            return None
        own = edits.get(".".join([source, rest]) if rest else source, [])
        loader = Copy(fullname, str(file), source, own)
        return importlib.util.spec_from_file_location(
            fullname,
            file,
            loader=loader,
            submodule_search_locations=[str(file.parent)] if folder else None,
        )


COPIES = Copies()
sys.meta_path.insert(0, COPIES)


def attention(package: str, edits: Edits | None = None) -> types.ModuleType:
    """Copy what attention is made of, see `copies`; return the copy of `tfbook.attention`."""
    return copies(package, ["tfbook.efficient", "tfbook.attention"], edits)


def copies(package: str, names: Sequence[str], edits: Edits | None = None) -> types.ModuleType:
    """Import the named modules anew under `package`, (old, new) texts replaced.

    names: whole names in one package, such as "tfbook.attention.masks"; what they import is
        copied with them, at any depth, and so are the modules that have edits.

    Returns the last one's copy.

    Raises:
        ValueError: if an old text does not stand in its module exactly once.
        ModuleNotFoundError: if there is no module of such a name.
    """
    (source,) = {name.split(".")[0] for name in (*names, *(edits or {}))}
    for known in [m for m in sys.modules if m.split(".")[0] == package]:
        del sys.modules[known]
    COPIES.made[package] = (source, edits or {})
    found = [copy_of(package, name) for name in (*(edits or {}), *names)]
    return found[-1]


def copy_of(package: str, name: str) -> types.ModuleType:
    """Return the module that stands in a copy for the one of this whole name."""
    return importlib.import_module(".".join([package, *name.split(".")[1:]]))
