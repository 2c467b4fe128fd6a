"""Names of a notebook that change their meaning: a function, module or model made another thing.

A reader who has met `log` as a function is lost when it becomes a table. The bindings at the top
level of the code cells are read in order, without running them; what is imported is looked up.
"""

from __future__ import annotations

import ast
import collections.abc
import functools
import importlib
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

SPECIAL = ("function", "class", "module", "model")  # may not become another thing
VALUE, RETURNED, OPEN = "a value", "what a call returns", "anything"
VALUES = (
    ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp,
    ast.DictComp, ast.GeneratorExp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp,
)  # fmt: skip


def rebound(sources: list[tuple[int, str]]) -> list[str]:
    """Say, for numbered code cells, which names become another kind of thing, and where."""
    names = Names()
    for cell, source in sources:
        names.read(cell, source)
    return names.faults


class Names:
    """What the names of a notebook are, cell by cell."""

    def __init__(self) -> None:
        """Begin with a notebook that has bound nothing."""
        self.faults: list[str] = []
        self._known: dict[str, tuple[str, int]] = {}
        self._things: dict[str, Any] = {}  # what is imported
        self._models: set[str] = set()  # the notebook's own classes that are modules of torch

    def read(self, cell: int, source: str) -> None:
        """Read the bindings of a cell."""
        lines = source.splitlines()
        lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in lines]
        for name, kind in self._bindings(ast.parse("\n".join(lines)).body):
            before, where = self._known.get(name, (OPEN, cell))
            if name != "_" and _clash(before, kind):
                self.faults.append(f"cell {cell}: {name}, {before} in cell {where}, is {kind}")
            if before in (OPEN, RETURNED) or kind in SPECIAL:
                self._known[name] = kind, cell

    def _bindings(self, body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, "function"
            elif isinstance(node, ast.ClassDef):
                if any(self._is_model(base) for base in node.bases):
                    self._models.add(node.name)
                yield node.name, "class"
            elif isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._imports(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from self._assigned(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value:
                yield from self._assigned(node.target, node.value)
            elif isinstance(node, ast.For):
                yield from ((name, RETURNED) for name in _targets(node.target))
            elif isinstance(node, ast.With):
                given = [item.optional_vars for item in node.items if item.optional_vars]
                yield from ((name, RETURNED) for part in given for name in _targets(part))
            for inside in ("body", "orelse", "finalbody"):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from self._bindings(getattr(node, inside, []))

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            try:
                if isinstance(node, ast.Import):
                    thing = importlib.import_module(alias.name if alias.asname else name)
                else:
                    thing = _from(node.module or "", alias.name)
            except (ImportError, AttributeError):
                yield name, OPEN
                continue
            self._things[name] = thing
            yield name, _kind_of(thing)

    def _assigned(self, target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
        if isinstance(target, ast.Name):
            yield target.id, self._kind(value)
        elif isinstance(target, ast.Tuple | ast.List):
            same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            if same and not any(isinstance(part, ast.Starred) for part in target.elts):
                for part, inner in zip(target.elts, value.elts, strict=True):
                    yield from self._assigned(part, inner)
            else:
                yield from ((name, RETURNED) for name in _targets(target))

    def _kind(self, value: ast.expr) -> str:
        """Return what an expression is."""
        if isinstance(value, VALUES):
            return VALUE
        if isinstance(value, ast.Lambda):
            return "function"
        if isinstance(value, ast.Call):
            return "model" if self._is_model(value.func) else _returned(self._thing(value.func))
        if isinstance(value, ast.Name) and value.id in self._known:
            return self._known[value.id][0]
        thing = self._thing(value)
        return OPEN if thing is None else _kind_of(thing)

    def _is_model(self, node: ast.expr) -> bool:
        """Tell whether an expression names a class of models."""
        if isinstance(node, ast.Name) and node.id in self._models:
            return True
        return _makes_models(self._thing(node))

    def _thing(self, node: ast.expr) -> Any:
        """Return what is imported under a name like `nn.Linear`, or None."""
        if isinstance(node, ast.Name):
            return self._things.get(node.id)
        if isinstance(node, ast.Attribute):
            return getattr(self._thing(node.value), node.attr, None)
        return None


def _clash(before: str, after: str) -> bool:
    """Tell whether a name changes its meaning; a model may be what a call returns."""
    pair = {before, after}
    if len(pair) == 1 or OPEN in pair or pair.isdisjoint(SPECIAL):
        return False
    return pair != {"model", RETURNED}


def _targets(target: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _from(module: str, name: str) -> Any:
    home = importlib.import_module(module)
    if hasattr(home, name):
        return getattr(home, name)
    return importlib.import_module(f"{module}.{name}")


def _kind_of(thing: Any) -> str:
    if inspect.ismodule(thing):
        return "module"
    if inspect.isclass(thing):
        return "class"
    return "function" if callable(thing) else VALUE


def _makes_models(thing: Any) -> bool:
    from torch import nn

    if inspect.isclass(thing):
        return issubclass(thing, nn.Module)
    kinds = _hints(thing)
    return bool(kinds) and all(inspect.isclass(k) and issubclass(k, nn.Module) for k in kinds)


def _returned(called: Any) -> str:
    """Return what a call of something returns."""
    if called is functools.partial:
        return "function"
    if inspect.isclass(called):
        return VALUE
    origins = {typing.get_origin(kind) for kind in _hints(called)}
    return "function" if collections.abc.Callable in origins else RETURNED


def _hints(function: Any) -> tuple[Any, ...]:
    """Return the kinds of things that a function says it returns."""
    if not inspect.isfunction(function):
        return ()
    try:
        hint = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, SyntaxError):
        return ()
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return () if hint is None else (hint,)
