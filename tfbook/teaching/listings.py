"""Listings: the core of a function of the package, shown where a chapter begins to use it.

    listing(attend)

shows the source without docstring, types and the checks of its arguments, under the function's
name, which leads to its code. The text form is the plain code, so nbval compares it
and a chapter learns that the function has changed.

Explained in: the preface, "Three kinds of executable content".
"""

from __future__ import annotations

import ast
import html
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
CHECK = re.compile(r"_?check")
STYLE = "margin: 0.5rem 0"
WIDTH = 90  # columns


@dataclass(frozen=True)
class Listing:
    """The core of a function: its public name, the file it stands in, its code."""

    name: str
    path: str
    code: str

    def __str__(self) -> str:
        """Return the code."""
        return self.code

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.code, "text/html": self._html()}

    def _html(self) -> str:
        """Return name and code; the classes of Pygments have their colours where a page does."""
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        code = highlight(self.code, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n")
        name, path = html.escape(self.name), html.escape(self.path)
        return (
            f'<div class="tfbook-listing" style="{STYLE}"><div class="tfbook-listing-name">'
            f'<a class="tfbook-source" href="../{path}" title="{name}"><code>{name}</code></a>'
            f'</div><div class="highlight"><pre>{code}\n</pre></div></div>'
        )


def listing(function: Callable) -> None:
    """Show the core of a function or method of the package: no docstring, no checks of arguments.

    Args:
        function: a function of `tfbook`, or a method, as `MultiHeadAttention.forward`.

    Raises:
        TypeError: for what is no function and no method.
        ValueError: for a function that is not of this package, has no source, or only checks.
    """
    shown = core(function)
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        ipython.display.display(shown)


def core(function: Callable) -> Listing:
    """Return what `listing` shows, with its errors."""
    if isinstance(function, property):
        function = function.fget
    plain = inspect.unwrap(function) if callable(function) else function
    plain = getattr(plain, "__func__", plain)  # of a method that is bound
    if inspect.isclass(plain):
        raise TypeError(f"function is the class {plain.__name__}: name one of its methods")
    if not callable(plain) or not hasattr(plain, "__qualname__"):
        raise TypeError(f"function must be a function or a method, got {type(plain).__name__}")
    home = getattr(plain, "__module__", None) or ""
    if home.split(".")[0] != "tfbook":
        raise ValueError(f"function must be one of tfbook, {plain.__name__} is of {home!r}")
    try:
        source = textwrap.dedent(inspect.getsource(plain))
    except (OSError, TypeError):
        raise ValueError(f"{home}.{plain.__qualname__} has no source to be shown") from None
    if "<lambda>" in plain.__qualname__ or not re.match(r"(@|def |async def )", source):
        raise ValueError(f"{home}.{plain.__qualname__} is not written as a function of its own")
    path = Path(inspect.getsourcefile(plain)).relative_to(PACKAGE.parent).as_posix()
    return Listing(public_name(plain), path, without_checks(source))


def public_name(function: Callable) -> str:
    """Return the name under which a reader imports a function, or where it stands if nowhere."""
    top, *rest = function.__qualname__.split(".")
    parts = function.__module__.split(".")
    for depth in range(2, len(parts) + 1):
        door = importlib.import_module(".".join(parts[:depth]))
        if top in getattr(door, "__all__", ()) and depth < len(parts):
            return ".".join([door.__name__, top, *rest])
    return f"{function.__module__}.{function.__qualname__}"


def without_checks(source: str) -> str:
    """Return the source of a function without docstrings, types and checks; comments stay.

    Left out are statements that only raise, an `if` or a loop of nothing else, and calls of
    functions whose name begins with check or _check; with the comments right above them.

    Raises:
        ValueError: if nothing is left.
    """
    (function,) = ast.parse(source).body
    lines = source.splitlines()
    gone: set[int] = set()
    for node in _dropped(function):
        start, end = node.lineno, node.end_lineno
        while start > 1 and lines[start - 2].strip().startswith("#"):
            start -= 1
        gone |= set(range(start, end + 1))
    kept = [line for number, line in enumerate(lines, 1) if number not in gone]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept))
    text = re.sub(r":\n\n(?=\s)", ":\n", text).rstrip()  # a body begins at once
    try:
        (function,) = ast.parse(text).body
    except SyntaxError:
        raise ValueError(f"nothing is left of {function.name} but its checks") from None
    return f"{_signature(function)}\n{_body(function, text)}"


def _signature(function: ast.FunctionDef) -> str:
    """Return the first line of a function without types, in several lines if it is long."""
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    arguments = ast.unparse(function.args)
    line = f"def {function.name}({arguments}):"
    if len(line) <= WIDTH:
        return line
    wrapped = textwrap.fill(arguments, WIDTH - 4, break_long_words=False)
    return f"def {function.name}(\n{textwrap.indent(wrapped, '    ')}\n):"


def _body(function: ast.FunctionDef, text: str) -> str:
    """Return the lines below the signature, with the comments that open them."""
    lines = text.splitlines()
    first = function.body[0].lineno
    while lines[first - 2].strip().startswith("#"):
        first -= 1
    return "\n".join(lines[first - 1 :])


def _dropped(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield what is left out of a block and of the blocks in it."""
    bodies = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    bodies += [handler.body for handler in getattr(node, "handlers", ())]
    for body in bodies:
        out = [statement for statement in body if _is_docstring(node, statement)]
        out += [s for s in body if s not in out and _is_check(s)]
        if len(out) < len(body) or isinstance(node, ast.FunctionDef):
            yield from out
            for statement in body:
                if statement not in out:
                    yield from _dropped(statement)


def _is_docstring(node: ast.AST, statement: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return False
    value = getattr(statement, "value", None) if statement is node.body[0] else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _is_check(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return True
    if isinstance(statement, ast.If | ast.For):
        return all(map(_is_check, [*statement.body, *statement.orelse]))
    called = getattr(statement, "value", None) if isinstance(statement, ast.Expr) else None
    if not isinstance(called, ast.Call):
        return False
    name = getattr(called.func, "attr", getattr(called.func, "id", ""))
    return bool(CHECK.match(name))
