"""The page of measurements, made from `benchmarks/results`: {benchmark} NAME becomes its tables.

When Sphinx reads a page, each line `{benchmark} attention` becomes a sentence about machine, date
and command, and a table with a line for each row of the file; `{benchmark} gpu products` is the
table of one part of what was measured on a GPU. Columns are chosen here: what a reader compares,
and not everything that was kept.
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
PLACE = re.compile(r"^\{benchmark\} (\w+)(?: ([\w ]+))?$", re.MULTILINE)
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
    "phone": (
        Column("page", "page"),
        Column("first paint, s", "first paint, s"),
        Column("largest paint, s", "largest paint, s"),
        Column("formulas, s", "formulas, s"),
        Column("figure, s", "figure, s"),
        Column("longest task while loading, ms", "task while loading, ms", digits=0),
        Column("while scrolling, ms", "task while scrolling, ms", digits=0),
        Column("nodes", "nodes"),
        Column("requests", "requests"),
        Column("MB", "MB"),
        Column("load of the machine", "load", digits=1),
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


FORMATS = ("float32", "tf32", "float16", "bfloat16", "float8_e4m3", "int8")
FORMS = ("naive", "sdpa math", "sdpa efficient", "sdpa flash", "sdpa cudnn", "tfbook triton")


def _gpu_products(rows: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """A line for each size, the rates of all formats side by side."""
    rates = {(row["n"], row["format"]): row.get("TFLOP/s") for row in rows}
    columns = [Column("n", "n"), *(Column(name, name, digits=0) for name in FORMATS)]
    sizes = sorted({row["n"] for row in rows})
    return columns, [{"n": n, **{name: rates.get((n, name)) for name in FORMATS}} for n in sizes]


def _gpu_copies(rows: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """A line for each size."""
    columns = [Column("MiB", "MiB"), Column("GB read and written a second", "GB/s", digits=0)]
    return columns, [{"MiB": row["bytes"] // 2**20, **row} for row in rows]


def _gpu_few_bits(rows: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """A line for each number of rows: microseconds in both formats."""
    taken = {(row["rows"], row["format"]): 1e3 * row["ms"] for row in rows if "ms" in row}
    columns = [Column("rows", "rows"), Column("bfloat16, µs", "bfloat16", digits=0)]
    columns.append(Column("int4, µs", "int4", digits=0))
    counts = sorted({row["rows"] for row in rows})
    names = ("bfloat16", "int4")
    return columns, [{"rows": n, **{name: taken.get((n, name)) for name in names}} for n in counts]


def _gpu_attention(rows: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """A line for each length and pass with the future hidden, milliseconds of each form."""
    taken = {(r["n"], r["pass"], r["form"]): r for r in rows if r["causal"] and "ms" in r}
    columns = [Column("n", "n"), Column("pass", "pass")]
    columns += [Column(f"{form}, ms", form) for form in FORMS]
    columns.append(Column("fastest, share of the roofline", "share"))
    columns.append(Column("Triton's share", "ours"))
    lines: list[Row] = []
    for n in sorted({row["n"] for row in rows}):
        for way in ("forward", "backward"):
            here = {form: taken[n, way, form] for form in FORMS if (n, way, form) in taken}
            shares = {form: row["share of roofline"] for form, row in here.items()}
            line = {form: row["ms"] for form, row in here.items()}
            line |= {"n": n, "pass": way, "share": max(shares.values())}
            lines.append(line | {"ours": shares.get("tfbook triton")})
    return columns, lines


def _gpu_decoding(rows: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """A line for each model and length: called, and replayed as a graph."""
    speed = {(row["model"], row["past"], row["way"]): row.get("tokens/s") for row in rows}
    columns = [Column("model", "model"), Column("tokens before", "past")]
    columns += [Column("called, tokens/s", "called", digits=0)]
    columns += [Column("as a graph, tokens/s", "graph", digits=0)]
    cases = dict.fromkeys((row["model"], row["past"]) for row in rows)
    return columns, [
        {"model": model, "past": past, **{w: speed.get((model, past, w)) for w in WAYS}}
        for model, past in cases
    ]


def _gpu_training(rows: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """A line for each step."""
    columns = [Column("model", "model"), Column("precision", "precision")]
    columns += [Column("kept", "kept"), Column("step, ms", "ms", digits=1)]
    columns += [Column("thousand tokens/s", "speed", digits=0)]
    columns += [Column("share of the ceiling", "share of peak", digits=3)]
    columns += [Column("memory of a step, GB", "memory", digits=1)]
    return columns, [
        {
            **row,
            "kept": "checkpoints" if row["checkpointed"] else "everything",
            "speed": row["tokens/s"] / 1e3,
            "memory": row["peak bytes"] / 1e9,
        }
        for row in rows
        if "ms" in row
    ]


WAYS = ("called", "graph")
GPU: dict[str, Callable[[Sequence[Row]], tuple[list[Column], list[Row]]]] = {
    "products": _gpu_products,
    "copies": _gpu_copies,
    "few bits": _gpu_few_bits,
    "attention": _gpu_attention,
    "decoding": _gpu_decoding,
    "training": _gpu_training,
}


def document(name: str, part: str = "", folder: Path = RESULTS) -> str:
    """Return the Markdown that shows a result, or one part of what was measured on a GPU.

    Raises:
        ValueError: if no result of this name is kept, or nothing says how to show it.
    """
    path = folder / f"{name}.json"
    known = part in GPU if name == "gpu" else name in COLUMNS and not part
    if not known or not path.exists():
        asked = f"{name} {part}".strip()
        raise ValueError(f"{{benchmark}} must name a kept result with columns, got {asked!r}")
    found = json.loads(path.read_text(encoding="utf-8"))
    if name == "gpu":
        columns, rows = GPU[part](found[part])
        lead = told(name, found) if part == next(iter(GPU)) else ""
    else:
        rows = [PREPARED.get(name, dict)(row) for row in found["rows"]]
        columns = [column for column in COLUMNS[name] if any(column.name in row for row in rows)]
        lead = told(name, found)
    lines = [lead, "", _line([column.title for column in columns])]
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
    if "gpu" in machine:
        text = (
            f"{machine['gpu']}, {machine['gpu memory'] / 2**30:.0f} GiB, driver "
            f"{machine['driver']}, CUDA {machine['cuda']}, Triton {machine['triton']}; {text}"
        )
        run = found
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
    if named := PLACE.findall(source[0]):
        for name, _ in named:
            app.env.note_dependency(str(RESULTS / f"{name}.json"))
        source[0] = PLACE.sub(lambda match: document(match[1], match[2] or ""), source[0])
