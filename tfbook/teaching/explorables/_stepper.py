"""stepper: a drawing of matrices and vectors with their numbers, walked through step by step."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from tfbook.teaching.explorables._answers import check_slug, markup, said
from tfbook.teaching.explorables._base import Explorable, matrix, number, vector, whole, wrapped

KINDS = ("matrix", "bars")
KEYS = {"values", "shape", "label", "rows", "columns", "highlight", "digits", "reach", "at"}
MOST_STEPS, MOST_PARTS, LARGEST = 12, 8, 8


def stepper(
    slug: str, *, steps: Sequence[Mapping], title: str, alt: str, step: int = 0
) -> Explorable:
    """Return a drawing that is walked through: matrices, bars, arrows and a formula, step by step.

    A step is a dictionary with a `caption` and `parts`; it may have `arrows`, a `formula` (text
    with the marks of `quiz`) and `pale`, the names of parts that stay in sight but are not what
    the step is about. Where there is no room for them, these are left out.

    A part is named by its kind: `{"matrix": "K", "values": K}` or `{"bars": "s", "values": s}`. It
    may have `rows` and `columns` (names), `label` (else its name), `highlight` (a row),
    `digits`, `reach` (the number that fills a bar or a cell, else the largest), and `at`, its row
    and column in the drawing; by default the parts of the first row, one after the other. A matrix
    without values is drawn empty if it has a `shape`. What a part does not say it keeps from the
    step before; its name alone means "as before". So a part that stays keeps its place.

    An arrow is `("K", "scores")` or, with words, `("K", "scores", "· q")`.

    In a live notebook `figure.step` can be read and set.

    Args:
        slug: A short name in lower case with hyphens.
        steps: Two to twelve steps, each with one to eight parts of at most 8 × 8 numbers.
        title: What is shown.
        alt: What is there, in a sentence, for those who do not see it.
        step: Where it begins, from 0.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if a step or a part lacks something or has too much of it, if shapes do not
            fit, or if an arrow or a name leads to no part.

    Explained in: the preface, "Three kinds of executable content".
    """
    return walk(slug, steps=steps, title=title, alt=alt, step=step, results={})


def walk(
    slug: str, *, steps: Sequence[Mapping], title: str, alt: str, step: int, results: dict
) -> Explorable:
    """Return a stepper whose `results` can be read in Python.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it does not fit, as `stepper` says.
    """
    check_slug(slug)
    title, alt = said("title", title), said("alt", alt)
    if isinstance(steps, (str, Mapping)) or not isinstance(steps, Sequence):
        raise TypeError(f"steps must be a list of dictionaries, got {type(steps).__name__}")
    if not 2 <= len(steps) <= MOST_STEPS:
        raise ValueError(f"steps must be 2 to {MOST_STEPS}, got {len(steps)}")
    known: dict[str, dict] = {}
    checked = [_step(f"steps[{i}]", given, known) for i, given in enumerate(steps)]
    found = whole("step", 0, len(steps) - 1)
    told = _told(checked)
    lines = "\n\n".join([title, alt, *(f"{head} {' '.join(rest)}" for head, rest in told)])
    items = "".join(
        f"<li>{markup(one['caption'])}"
        + (f"<br><code>{html.escape(one['formula'])}</code>" if one["formula"] else "")
        + "".join(f"<br>{html.escape(line)}" for line in numbers)
        + "</li>"
        for one, (_, numbers) in zip(checked, told, strict=True)
    )
    return Explorable(
        "stepper",
        data={"slug": slug, "title": title, "alt": alt, "steps": checked, "spans": _spans(checked)},
        state={"step": found(step)},
        checks={"step": found},
        results=lambda now: results,
        text=lambda now: wrapped(lines),
        body=f"<p><strong>{html.escape(title)}</strong></p>\n<p>{markup(alt)}</p>\n"
        f"<ol>{items}</ol>",
    )


# ---------------------------------------------------------------------------------------- a step


def _step(name: str, given: Any, known: dict[str, dict]) -> dict:
    """Check a step; `known` are the parts as the step before left them, and is brought forward."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a dictionary, got {type(given).__name__}")
    if other := given.keys() - {"caption", "parts", "arrows", "formula", "pale"}:
        raise ValueError(f"{name} has no {', '.join(sorted(other))}")
    parts = given.get("parts", ())
    if isinstance(parts, (str, Mapping)) or not isinstance(parts, Sequence):
        raise TypeError(f"{name} parts must be a list, got {type(parts).__name__}")
    if not 1 <= len(parts) <= MOST_PARTS:
        raise ValueError(f"{name} parts must be 1 to {MOST_PARTS}, got {len(parts)}")
    changes, names = {}, []
    for i, part in enumerate(parts):
        where = f"{name} parts[{i}]"
        if isinstance(part, str):
            part_name = _known(where, part, known)
        else:
            part_name, changed = _part(where, part, known)
            if changed != known.get(part_name):
                known[part_name] = changed
                changes[part_name] = changed | {"digits": _digits(changed)}
        if part_name in names:
            raise ValueError(f"{name} has the part {part_name!r} twice")
        names.append(part_name)
    pale = [_known(f"{name} pale", each, known) for each in given.get("pale", ())]
    if both := set(pale) & set(names):
        raise ValueError(f"{name} has {sorted(both)[0]!r} among its parts and pale")
    seen = [*names, *pale]
    places = [tuple(known[each]["at"]) for each in seen]
    if len(set(places)) < len(places):
        raise ValueError(f"{name} has two parts in one place: {sorted(places)}")
    return {
        "caption": said(f"{name} caption", given.get("caption")),
        "formula": said(f"{name} formula", given["formula"]) if given.get("formula") else "",
        "parts": names, "pale": pale, "changes": changes,
        "arrows": [_arrow(f"{name} arrows[{i}]", a, seen) for i, a in
                   enumerate(given.get("arrows", ()))],
    }  # fmt: skip


def _known(where: str, name: str, known: dict[str, dict]) -> str:
    if name not in known:
        raise ValueError(f"{where} names {name!r}, which no step before has drawn")
    return name


def _arrow(where: str, given: Any, seen: list[str]) -> dict:
    if not isinstance(given, (tuple, list)) or not 2 <= len(given) <= 3:
        raise ValueError(f"{where} must be (from, to) or (from, to, words), got {given!r}")
    for end in given[:2]:
        if end not in seen:
            raise ValueError(f"{where} leads to {end!r}, which the step does not show")
    words = said(f"{where} words", given[2]) if len(given) == 3 else ""
    return {"from": given[0], "to": given[1], "words": words}


# ---------------------------------------------------------------------------------------- a part


def _part(where: str, given: Any, known: dict[str, dict]) -> tuple[str, dict]:
    """Return a part's name and all that is to be drawn of it."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{where} must be a name or a dictionary, got {type(given).__name__}")
    kinds = [kind for kind in KINDS if kind in given]
    if len(kinds) != 1:
        raise ValueError(f"{where} must have one of {', '.join(KINDS)}, with the part's name")
    (kind,) = kinds
    name = said(f"{where} name", given[kind])
    if other := given.keys() - KEYS - {kind}:
        raise ValueError(f"{where} has no {', '.join(sorted(other))}")
    old = known.get(name, {})
    if old and old["kind"] != kind:
        raise ValueError(f"{where} makes {kind} of {name!r}, which was {old['kind']}")
    part = {
        "kind": kind, "label": name, "rows": None, "columns": None, "highlight": None,
        "digits": None, "reach": None, "at": [0, sum(e["at"][0] == 0 for e in known.values())],
        "values": None, "shape": None,
    } | old  # fmt: skip
    if "values" in given:
        rows = vector if kind == "bars" else matrix
        part["values"] = rows(f"{where} values", None)(_listed(given["values"], kind))
        part["shape"] = [len(part["values"]), len(part["values"][0]) if kind == "matrix" else 1]
    elif "shape" in given and kind == "matrix":
        part["values"] = None
        part["shape"] = [whole(f"{where} shape", 1, LARGEST)(size) for size in given["shape"]]
    if part["shape"] is None:
        raise ValueError(f"{where} must have values{' or a shape' if kind == 'matrix' else ''}")
    n, m = part["shape"]
    if max(n, m) > LARGEST:
        raise ValueError(f"{where} must be at most {LARGEST} × {LARGEST}, got {n} × {m}")
    if "label" in given:
        part["label"] = said(f"{where} label", given["label"])
    for side, size in (("rows", n), ("columns", m)):
        if side in given:
            part[side] = [said(f"{where} {side}", each) for each in given[side]]
        if part[side] is not None and len(part[side]) != size:
            raise ValueError(f"{where} {side} must be {size} names, got {len(part[side])}")
    if "highlight" in given:
        row = given["highlight"]
        part["highlight"] = None if row is None else whole(f"{where} highlight", 0, n - 1)(row)
    if "digits" in given:
        part["digits"] = whole(f"{where} digits", 0, 4)(given["digits"])
    if "reach" in given:
        part["reach"] = number(f"{where} reach", 1e-9)(given["reach"])
    if "at" in given:
        part["at"] = [whole(f"{where} at", 0, MOST_PARTS - 1)(x) for x in given["at"]]
        if len(part["at"]) != 2:
            raise ValueError(f"{where} at must be a row and a column, got {given['at']!r}")
    return name, part


def _listed(values: Any, kind: str) -> Any:
    """Return numbers as lists; one row of numbers is a matrix of one row."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    flat = isinstance(values, (list, tuple)) and values and not isinstance(values[0], (list, tuple))
    return [values] if kind == "matrix" and flat else values


def _flat(part: Mapping) -> list[float]:
    return [x for row in part["values"] or [] for x in (row if isinstance(row, list) else [row])]


def _digits(part: Mapping) -> int:
    """Return with how many digits a part's numbers are shown: what they need, at most two."""
    if part["digits"] is not None:
        return part["digits"]
    return next((d for d in (0, 1) if all(abs(round(x, d) - x) < 1e-9 for x in _flat(part))), 2)


def _spans(steps: list[dict]) -> dict[str, list[float]]:
    """Return the least and the largest number that a part has room for: those of all steps."""
    spans: dict[str, list[float]] = {}
    for step in steps:
        for name, part in step["changes"].items():
            low, high = spans.get(name, [0.0, 0.0])
            low, high = min(low, *_flat(part), 0.0), max(high, *_flat(part), 0.0)
            reach = part["reach"]
            spans[name] = [low, high] if reach is None else [-reach if low < 0 else 0.0, reach]
    return spans


def _told(steps: list[dict]) -> list[tuple[str, list[str]]]:
    """Return what each step shows, as text: its place with its caption, and its new numbers."""
    told, known = [], {}
    for i, step in enumerate(steps):
        head = f"Step {i + 1} of {len(steps)}. {step['caption']}"
        if step["formula"]:
            head += f" {step['formula']}."
        lines = {name: _numbers(part) for name, part in step["changes"].items()}
        told.append((head, [line for name, line in lines.items() if known.get(name) != line]))
        known |= lines
    return told


def _numbers(part: dict) -> str:
    n, m = part["shape"]
    size = f"{n} × {m}" if part["kind"] == "matrix" else f"{n}"
    if part["values"] is None:
        return f"{part['label']} ({size})."
    names = part["rows"] or [""] * n
    rows = [row if isinstance(row, list) else [row] for row in part["values"]]
    texts = [
        f"{name} {', '.join(_written(x, part['digits']) for x in row)}".strip()
        for name, row in zip(names, rows, strict=True)
    ]
    return f"{part['label']} ({size}): {'; '.join(texts)}."


def _written(x: float, digits: int) -> str:
    return f"{round(x, digits) + 0.0:.{digits}f}"
