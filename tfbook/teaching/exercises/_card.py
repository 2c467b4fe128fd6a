"""What a check and a description look like: plain text and HTML that are the same at every run."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import torch

from tfbook.teaching.boxes import box
from tfbook.teaching.exercises._spec import LEVELS, Exercise, property_name

LARGEST = 48  # numbers in a tensor that is still shown in full
HEADINGS = {"pass": ("✓", "Passed"), "fail": ("✗", "Not yet"), "todo": ("○", "Not started")}
COLOURS = {"pass": "green", "fail": "red", "todo": "grey"}


class _Shown:
    """Something that IPython shows as HTML and everything else as text."""

    def __repr__(self) -> str:
        """Return the plain text."""
        return self._text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self._text(), "text/html": self._html()}


@dataclass(frozen=True, repr=False, eq=False)
class Report(_Shown):
    """The answer to one check.

    state: "pass", "fail" or "todo". `failed` names the property that failed; `given`, `got` and
    `wanted` illustrate it.
    """

    exercise: Exercise
    state: str
    message: str = ""
    failed: str = ""
    given: Mapping[str, Any] | None = None
    got: Any = None
    wanted: Any = None

    def _evidence(self) -> list[tuple[str, str]]:
        rows = [(f"given {name}", show(value)) for name, value in (self.given or {}).items()]
        rows += [("came back", show(self.got))] if self.got is not None else []
        return rows + ([("wanted", show(self.wanted))] if self.wanted is not None else [])

    def _text(self) -> str:
        names = [property_name(test) for test in self.exercise.properties]
        if self.state == "pass":
            count = f"{len(names)} propert{'y' if len(names) == 1 else 'ies'}"
            return f"exercise {self.exercise.name}: passed ({count}: {'; '.join(names)})"
        if self.state == "todo":
            return f"exercise {self.exercise.name}: not started. {self.message}"
        property_ = f" [property: {self.failed}]" if self.failed else ""
        lines = [f"exercise {self.exercise.name}: not yet. {self.message}{property_}"]
        for label, value in self._evidence():
            lines.append(f"  {label}: " + value.replace("\n", "\n" + " " * (len(label) + 4)))
        return "\n".join(lines)

    def _html(self) -> str:
        symbol, word = HEADINGS[self.state]
        exercise = self.exercise
        parts = [
            f'<div class="tfbook-check" data-exercise="{exercise.name}" data-state="{self.state}" '
            f'style="{box(COLOURS[self.state])}">',
            f'<div role="status"><strong><span aria-hidden="true">{symbol}</span> {word}</strong> '
            f"· {escape(exercise.title)} ({LEVELS[exercise.level]})",
        ]
        if self.message:
            parts.append(f"<p>{inline(self.message)}</p>")
        parts.append("</div>")
        if self.state == "pass":
            items = "".join(
                f"<li>{inline(property_name(test))}</li>" for test in exercise.properties
            )
            parts.append(f"<p>These properties hold:</p><ul>{items}</ul>")
        if self.failed:
            parts.append(f"<p>Property tried: <em>{inline(self.failed)}</em></p>")
        if self.state == "fail":
            rows = "".join(
                f'<dt>{escape(label)}</dt><dd><code style="white-space: pre-wrap">'
                f"{escape(value)}</code></dd>"
                for label, value in self._evidence()
            )
            parts.append(f"<dl>{rows}</dl>" if rows else "")
        if self.state != "pass":
            count = len(exercise.hints)
            parts += [
                f"<details><summary>Hint {index} of {count}</summary>"
                f"<p>{inline(hint)}</p></details>"
                for index, hint in enumerate(exercise.hints, 1)
            ]
        return "".join(parts) + "</div>"


@dataclass(frozen=True, repr=False, eq=False)
class Description(_Shown):
    """What an exercise asks for, without its tests.

    stub is the source to start from; `hints` go from a nudge to nearly the solution.
    """

    name: str
    title: str
    level: int
    section: str
    signature: str
    docstring: str
    stub: str
    properties: tuple[str, ...]
    hints: tuple[str, ...]

    @classmethod
    def of(cls, exercise: Exercise) -> "Description":
        """Describe an exercise."""
        stub = exercise.stub
        signature = re.sub(r"\b(torch|collections\.abc)\.", "", str(inspect.signature(stub)))
        return cls(
            name=exercise.name,
            title=exercise.title,
            level=exercise.level,
            section=exercise.section,
            signature=stub.__name__ + signature,
            docstring=inspect.getdoc(stub) or "",
            stub=inspect.getsource(stub),
            properties=tuple(property_name(test) for test in exercise.properties),
            hints=exercise.hints,
        )

    def _text(self) -> str:
        head = f"exercise {self.name} ({LEVELS[self.level]}): {self.title}"
        return f"{head}\n{self.signature}\n\n{self.docstring}"

    def _html(self) -> str:
        return (
            f'<div class="tfbook-exercise" data-exercise="{self.name}" '
            f'style="{box("grey")}"><strong>'
            f"{escape(self.title)}</strong> ({LEVELS[self.level]})<p><code>"
            f'{escape(self.signature)}</code></p><p style="white-space: pre-wrap">'
            f"{inline(self.docstring)}</p></div>"
        )


def inline(text: str) -> str:
    """Escape a sentence for HTML; `backticks` become code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def show(value: Any) -> str:
    """Write a value the way a card shows it: short, rounded to four digits, rows aligned."""
    try:
        return _show(value)
    except Exception:  # the value is the reader's, and its own methods may fail
        return f"a {type(value).__name__} that cannot be shown"


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.numel() > LARGEST or value.ndim > 4:
            return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype)[6:]}"
        flat = [_number(x) for x in value.flatten().tolist()]
        width = max(map(len, flat), default=0)
        return _rows([x.rjust(width) for x in flat], tuple(value.shape))
    if isinstance(value, tuple | list) and any(isinstance(x, torch.Tensor) for x in value):
        return ",\n".join(map(show, value))
    if isinstance(value, float):
        return _number(value)
    if inspect.isfunction(value):
        return "a function"
    if isinstance(value, torch.nn.Module):  # its own text names every layer
        return f"a module, {type(value).__name__}"
    text = str(value)
    text = re.sub(r" at 0x[0-9a-f]+", "", text)  # an address differs from run to run
    return text if len(text) <= 600 else text[:599] + "…"


def _number(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return "0" if text == "-0" else text


def _rows(cells: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return cells[0]
    if len(shape) == 1:
        return "[" + ", ".join(cells) + "]"
    step = len(cells) // shape[0] if shape[0] else 0
    rows = [_rows(cells[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]
    return "[" + ",\n".join(rows).replace("\n", "\n ") + "]"
