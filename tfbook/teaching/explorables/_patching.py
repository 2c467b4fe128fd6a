"""patching_grid: what came of each patch of an activation, as a map of places."""

import math
from collections.abc import Mapping, Sequence

from tfbook.teaching.explorables._base import Explorable, matrix, one_of, wrapped

TITLE = "What came of each patch"
MAX_KINDS, MAX_PLACES, MAX_CELLS, NAMED = 4, 40, 4000, 5
QUOTED = ("token", "word", "character")  # names of such an axis are words of a text
UNSEEN = {" ": "space", "\n": "line break", "\t": "tab", "": "nothing"}


def patching_grid(
    effects: Mapping,
    *,
    rows: Sequence,
    columns: Sequence,
    row_name: str = "layer",
    column_name: str = "token",
    chosen: Sequence[int] = (0, 0),
    unit: str = "share of the difference",
) -> Explorable:
    """Return a map of effects, one for each place where an activation was patched.

    The reader chooses a kind of activation and a place. The figure says what came of this patch,
    how the place stands among all of its kind, and draws its row and its column as bars. All kinds
    share one scale of colours. Numbers are kept with four digits.

    Args:
        effects: for one to four kinds of activation, such as "stream", "attention" and "network",
            a number for each place, (rows, columns).
        rows: names of the rows, texts or whole numbers, at most 40.
        columns: names of the columns, likewise.
        row_name: what a row is.
        column_name: what a column is; names of a "token", "word" or "character" are quoted.
        chosen: row and column of the place that is shown first, from 0.
        unit: what the numbers are.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or numbers do not fit the names.

    Source: [wang2022interpretability], [vig2020investigating].
    Explained in: chapters/10_interpretability, section "Activation patching".
    """
    if not isinstance(effects, Mapping):
        raise TypeError(f"effects must be a dictionary, got {type(effects).__name__}")
    if not 1 <= len(effects) <= MAX_KINDS:
        raise ValueError(f"effects must have 1 to {MAX_KINDS} kinds, got {len(effects)}")
    kinds = [_text("a kind of effects", kind, 40) for kind in effects]
    names = [_names("rows", rows), _names("columns", columns)]
    called = [_text("row_name", row_name, 30), _text("column_name", column_name, 30)]
    unit = _text("unit", unit, 60)
    if len(kinds) * math.prod(map(len, names)) > MAX_CELLS:
        raise ValueError(f"effects must have at most {MAX_CELLS} numbers in all")
    kept = {}
    for kind, numbers in effects.items():
        grid = matrix(f"effects[{kind!r}]", len(names[0]), len(names[1]))(numbers)
        kept[kind] = [[float(f"{x:.4g}") for x in row] for row in grid]
    sizes = [len(axis) for axis in names]
    checks = {"kind": one_of("kind", *kinds), "chosen": _place(sizes)}
    state = {"kind": kinds[0], "chosen": checks["chosen"](chosen)}
    quoted = [name in QUOTED for name in called]

    def place(at: Sequence[int]) -> str:
        return ", ".join(
            f"{called[axis]} " + (_quote(names[axis][i], i) if quoted[axis] else names[axis][i])
            for axis, i in enumerate(at)
        )

    def results(now: dict) -> dict:
        return _results(kept[now["kind"]], now["chosen"])

    def text(now: dict) -> str:
        found = results(now)
        told = " ".join(
            f"{kind}: "
            + "; ".join(
                f"{place(at)}: {x:.3g}" for *at, x in _results(grid, now["chosen"])["largest"][:3]
            )
            + "."
            for kind, grid in kept.items()
        )
        return wrapped(f"""{TITLE}

        Patched: {now["kind"]}, {place(now["chosen"])}. What came of it: {found["effect"]:.3g}
        ({unit}), number {found["rank"]} of {math.prod(sizes)} by size.

        The largest of each kind ({unit}): {told}

        In the page a map of {sizes[0]} by {sizes[1]} cells shows all places, and a cell can be
        chosen.""")

    data = {
        "title": TITLE, "kinds": kinds, "effects": kept, "rows": names[0], "columns": names[1],
        "axes": called, "quoted": quoted, "unit": unit, "named": NAMED,
    }  # fmt: skip
    return Explorable(
        "patching_grid", data=data, state=state, checks=checks, results=results, text=text
    )


def _results(grid: list[list[float]], chosen: Sequence[int]) -> dict:
    i, j = chosen
    cells = [(r, c, x) for r, row in enumerate(grid) for c, x in enumerate(row)]
    cells.sort(key=lambda cell: -abs(cell[2]))
    return {
        "effect": grid[i][j],
        "row": grid[i],
        "column": [row[j] for row in grid],
        "rank": 1 + sum(abs(x) > abs(grid[i][j]) for *_, x in cells),
        "largest": [list(cell) for cell in cells[:NAMED]],
    }


def _quote(name: str, i: int) -> str:
    return f"{UNSEEN[name]} ({i})" if name in UNSEEN else f"“{name}” ({i})"


def _text(name: str, value: object, longest: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, got {type(value).__name__}")
    if not 1 <= len(value.strip()) <= longest:
        raise ValueError(f"{name} must have 1 to {longest} characters, got {value!r}")
    return value.strip()


def _names(name: str, given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"{name} must be a list of names, got {type(given).__name__}")
    if not 1 <= len(given) <= MAX_PLACES:
        raise ValueError(f"{name} must be 1 to {MAX_PLACES} names, got {len(given)}")
    for entry in given:
        if isinstance(entry, bool) or not isinstance(entry, (str, int)):
            raise TypeError(
                f"{name} must hold texts or whole numbers, got {type(entry).__name__} in it"
            )
    return [str(entry) for entry in given]


def _place(sizes: Sequence[int]):
    def check(value):
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"chosen must be a row and a column, got {type(value).__name__}")
        if len(value) != 2:
            raise ValueError(f"chosen must be a row and a column, got {len(value)} numbers")
        for name, i, size in zip(("row", "column"), value, sizes, strict=True):
            if isinstance(i, bool) or not isinstance(i, int):
                raise TypeError(
                    f"the {name} of chosen must be a whole number, got {type(i).__name__}"
                )
            if not 0 <= i < size:
                raise ValueError(f"the {name} of chosen must be between 0 and {size - 1}, got {i}")
        return list(value)

    return check
