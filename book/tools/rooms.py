"""The pages of the package: a room is documented by its door, module by module.

A page of `book/api` holds a line `{room} tfbook.attention`; when Sphinx reads the page, the line
becomes a section for each module of the room. What a door names is documented under the door's
name, since that is where it is imported from. An experiment is documented by its question and its
code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

from book.tools.code_links import code_of

EXPERIMENTS = "tfbook.experiments"
PLACE = re.compile(r"^\{room\} (tfbook\.\w+)$", re.MULTILINE)


def expand(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the sections of a room where a page asks for them."""
    source[0] = PLACE.sub(lambda match: document(match[1]), source[0])


def document(room: str) -> str:
    """Return the Markdown that documents a room."""
    door = importlib.import_module(room)
    homes = dict(_homes(door))
    said = [n for n in door.__all__ if getattr(getattr(door, n), "__module__", None) == room]
    entries = [line for name in said for line in _entry(door, name, room)]
    parts = [_block(f".. automodule:: {room}", "", *entries)]
    for name in modules_of(door):
        module = importlib.import_module(f"{room}.{name}")
        lines = [f".. automodule:: {module.__name__}", ""]
        inner = hasattr(module, "__path__")  # a room in a room, with a door of its own
        named = [p for p in door.__all__ if homes.get(p) == name and not inner]
        own = module.__all__ if name in door.__all__ else ()  # passed on whole, by its own name
        for under, names in ((room, named), (module.__name__, [p for p in own if p not in named])):
            lines += [line for public in names for line in _entry(module, public, under)]
        lines += _code(room, name) if room == EXPERIMENTS else []
        parts.append(f"## {name}\n\n{_block(*lines)}")
    return "\n\n".join(parts)


def modules_of(door: ModuleType) -> list[str]:
    """Return the names of a room's modules, in the order in which the door lists what they hold."""
    homes = dict(_homes(door))
    order = dict.fromkeys(homes.get(name, name) for name in door.__all__)
    beside = {path.stem for path in Path(door.__file__).parent.glob("*.py")}
    beside |= {path.parent.name for path in Path(door.__file__).parent.glob("*/__init__.py")}
    if not homes:  # the experiments stand side by side, and each is a module to run
        return sorted(name for name in beside if not name.startswith("_"))
    return [name for name in order if name in beside]


def _homes(door: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield each name of a door with the module it stands in."""
    yield from getattr(door, "_HOME", {}).items()  # a door that opens lazily says it itself
    for node in ast.parse(inspect.getsource(door)).body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith(f"{door.__name__}."):
            yield from ((alias.name, node.module.rsplit(".", 1)[1]) for alias in node.names)


def _entry(module: ModuleType, name: str, under: str) -> list[str]:
    """Return the lines that document one name, under the module that a reader imports it from."""
    value: Any = getattr(module, name)
    if inspect.isclass(value):
        return [f".. autoclass:: {under}.{name}", "   :members:", ""]
    if inspect.isroutine(value):
        return [f".. autofunction:: {under}.{name}", ""]
    written = ModuleAnalyzer.for_module(module.__name__).find_attr_docs().get(("", name))
    if not written:
        return []
    head = [f".. py:currentmodule:: {under}", "", f".. py:data:: {name}", ""]
    return [*head, *(f"   {line}".rstrip() for line in written), ""]


def _code(room: str, name: str) -> list[str]:
    """Return the lines that show the code of a module, folded."""
    path = f"/{room.replace('.', '/')}/{name}.py"
    fold = f'<details class="tfbook-code" id="{code_of(name)}"><summary>The code</summary>'
    shown = [f".. literalinclude:: {path}", "   :language: python", ""]
    return ["", ".. raw:: html", "", f"   {fold}", "", *shown, ".. raw:: html", "", "   </details>"]


def _block(*lines: str) -> str:
    return "\n".join(["```{eval-rst}", *lines, "```"])
