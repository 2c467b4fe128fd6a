"""The page of measurements, made from `benchmarks/results`: {benchmark} NAME becomes its tables.

When Sphinx reads a page, each line `{benchmark} attention` becomes a sentence about machine, date
and command, and a table with a line for each row of the file. Columns are chosen here: what a
reader compares, and not everything that was kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PLACE = re.compile(r"^\{benchmark\} (\w+)$", re.MULTILINE)
Row = Mapping[str, object]


class Column(NamedTuple):
    """A column: its heading, where its number stands in a row, and the spread beside it."""

    title: str
    name: str
    spread: str = ""
    digits: int = 2


def _forward(*more: Column) -> tuple[Column, ...]:
    return (
        *more,
        Column("forward, ms", "forward ms", digits=1),
        Column("forward, ratio", "forward ratio", "forward spread"),
        Column("with backward, ratio", "training ratio", "training spread"),
    )


AGAINST = (Column("what", "what"), Column("against", "against"))
COLUMNS: dict[str, tuple[Column, ...]] = {
    "attention": (
        *_forward(Column("n", "n"), Column("form", "variant")),
        Column("scratch, MiB", "forward extra MiB", digits=1),
    ),
    "linear": _forward(Column("n", "n"), Column("form", "variant")),
    "sparse": _forward(Column("n", "n"), Column("form", "variant")),
    "scan": (
        Column("n", "n"),
        Column("form", "form"),
        Column("forward, ms", "forward ms", digits=1),
        Column("forward, ratio", "forward ratio", "forward spread"),
        Column("training / forward", "training / forward"),
    ),
    "experts": _forward(Column("rows", "rows"), Column("form", "variant")),
    "multihead": (
        Column("n", "n"),
        *AGAINST,
        Column("ratio", "ratio", "spread"),
        Column("MiB", "MiB", digits=1),
        Column("our MiB", "our MiB", digits=1),
    ),
    "peers": (Column("n", "n"), *AGAINST, Column("ratio", "ratio", "spread")),
    "pretrained": (
        *AGAINST,
        Column("theirs", "theirs", digits=1),
        Column("ours", "ours", digits=1),
        Column("unit", "unit"),
        Column("times as fast", "times as fast", "spread"),
    ),
    "training": (
        Column("model", "model"),
        Column("parts", "what"),
        Column("times as fast", "times as fast", "spread"),
        Column("with Muon", "Muon"),
    ),
    "decoding": (
        Column("weights", "weights"),
        Column("tokens/s", "tokens/s", digits=1),
        Column("by the modules", "tokens/s by modules", digits=1),
        Column("times float32 by the modules", "times float32 by modules", "spread"),
        Column("times float32", "times float32"),
        Column("process, MiB", "MiB", digits=0),
    ),
    "serving": (
        Column("weights", "weights"),
        Column("one by one, tokens/s", "one by one", digits=1),
        Column("eight at once, tokens/s", "eight at once", digits=1),
        Column("times as fast", "times as fast"),
        Column("over HTTP, times as fast", "over HTTP"),
        Column("step of one, ms", "step of one", digits=1),
        Column("of eight, ms", "step of eight", digits=1),
        Column("with fixed sums, ms", "invariant step ms", digits=1),
        Column("of a copy's speed, one", "copy, one"),
        Column("eight", "copy, eight"),
        Column("share of logits with other bits", "logits with other bits"),
    ),
}


def _pretrained(row: Row) -> Row:
    """Return a row whose two speeds have names without their unit."""
    unit = row["unit"]
    return {**row, "theirs": row[unit], "ours": row[f"our {unit}"]}


def _serving(row: Row) -> Row:
    """Return a row in which each of several ways of serving has a name of its own."""
    speed, fast, step = row["tokens/s"], row["times as fast"], row["step ms"]
    names = {"1": "one", "8": "eight"}
    return {
        **row,
        **{name: speed[name] for name in ("one by one", "eight at once")},
        "times as fast": fast["eight at once"],
        "over HTTP": fast["over HTTP"],
        **{f"step of {name}": step[batch] for batch, name in names.items()},
        **{f"copy, {name}": row["share of a copy"][batch] for batch, name in names.items()},
    }


PREPARED: dict[str, Callable[[Row], Row]] = {"pretrained": _pretrained, "serving": _serving}


def document(name: str, folder: Path = RESULTS) -> str:
    """Return the Markdown that shows a result.

    Raises:
        ValueError: if no result of this name is kept, or nothing says how to show it.
    """
    path = folder / f"{name}.json"
    if name not in COLUMNS or not path.exists():
        raise ValueError(f"{{benchmark}} must name a kept result with columns, got {name!r}")
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = [PREPARED.get(name, dict)(row) for row in found["rows"]]
    columns = [column for column in COLUMNS[name] if any(column.name in row for row in rows)]
    lines = [told(name, found), "", _line([column.title for column in columns])]
    lines.append(_line(["---"] * len(columns)))
    lines += [_line([cell(row, column) for column in columns]) for row in rows]
    return "\n".join(lines)


def told(name: str, found: Mapping[str, object]) -> str:
    """Say where, when and how a result was measured."""
    machine, run = found["machine"], found.get("run", {})
    threads = machine["threads"]
    text = (
        f"{machine['cpu']}, {threads} thread{'s' * (threads != 1)} of {machine['cores']} cores, "
        f"{machine['vector_instructions']}, {machine['system']}, Python {machine['python']}, "
        f"PyTorch {machine['torch']}"
    )
    when = f"On {run['date']}" if "date" in run else "Before dates were kept"
    command = run.get("command", f"python -m benchmarks {name}")
    return f"{when}, with `{command}`: {text}."


def cell(row: Row, column: Column) -> str:
    """Write one number with its spread and, where it has a target, a mark if it is missed."""
    value = row.get(column.name)
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    text = f"{value:.{column.digits}f}"
    if spread := row.get(column.spread):
        low, high = (f"{edge:.{column.digits}f}" for edge in spread)
        text += f" ({low} to {high})"
    target = row.get("targets", {}).get(column.name)
    if target is None and column.name in ("ratio", "times as fast"):
        target = row.get("target")
    return f"{text}, target missed: {target['limit']:g}" if target and not target["met"] else text


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def expand(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the tables where a page asks for them, and have the page made anew with its numbers."""
    if names := PLACE.findall(source[0]):
        for name in names:
            app.env.note_dependency(str(RESULTS / f"{name}.json"))
        source[0] = PLACE.sub(lambda match: document(match[1]), source[0])
