"""The card of an experiment: one line that says what was trained, on what, for how long.

Each experiment says it in its `CARD`, a dictionary of texts: `model` and `data`, and where the
usual words do not do, `steps`, `batch` and `rate`. In braces stand values of the shipped log, with
its settings; for what the log lacks, the defaults of `run` and the constants of the module. Of a
list `name` there are `name_first` and `name_last`.
"""

from __future__ import annotations

import html
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tfbook.teaching import box

USUAL = {"steps": "{steps:,} steps", "batch": "batches of {batch}", "rate": "rate {rate:g}"}


@dataclass(frozen=True)
class Card:
    """What an experiment is: its name, and what there is to say of it in few words."""

    name: str
    facts: tuple[str, ...]

    def __str__(self) -> str:
        """Return the stable text form, one line."""
        return f"experiment {self.name}: {'; '.join(self.facts)}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    def _html(self) -> str:
        said, name = html.escape("; ".join(self.facts)), html.escape(self.name)
        link = f'href="../tfbook/experiments/{name}.py" title="tfbook.experiments.{name}"'
        return (
            f'<div class="tfbook-run" style="{box("grey")}"><strong>Experiment.</strong> {said}; '
            f'<a class="tfbook-source" {link}>the code</a>.</div>'
        )


def card_of(name: str, log: Mapping[str, Any], part: Mapping[str, str] | None = None) -> Card:
    """Make the card of an experiment, or of a part of it, from its module and its shipped log."""
    module = importlib.import_module(f"tfbook.experiments.{name}")
    fields, part = _fields(module, log), part or {}
    words = {**USUAL, **module.CARD, **part}
    facts = [words[what].format(**fields) for what in ("model", "data", *USUAL) if words[what]]
    seeds = fields.get("seeds", fields.get("seed"))
    if "seeds" in part:
        facts.append(part["seeds"])
    elif seeds is not None:
        count = len(seeds) if isinstance(seeds, list | tuple) else 1
        facts.append(f"{count} seeds" if count > 1 else "one seed")
    machine = log["machine"]
    where = machine.get("device", "one thread")
    return Card(name, (*facts, f"{_time(machine['seconds'])} on {where}"))


def _fields(module: ModuleType, log: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card may name; the log comes before the module."""
    asked = inspect.signature(module.run).parameters
    fields = {name: value for name, value in vars(module).items() if name.isupper()}
    fields |= {name: p.default for name, p in asked.items() if p.default is not p.empty}
    fields |= {**log, **log.get("settings", {})}
    for name, value in list(fields.items()):
        if isinstance(value, list | tuple) and value:
            fields |= {f"{name}_first": value[0], f"{name}_last": value[-1]}
    return fields


def _time(seconds: float) -> str:
    return f"{round(seconds / 60)} minutes" if seconds >= 100 else f"{seconds:.0f} seconds"
