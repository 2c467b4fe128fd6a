"""delta_rule: a memory that adds, and one that erases before it writes."""

import math
from collections.abc import Sequence

from tfbook.teaching.explorables._base import Explorable, number, one_of, vector, whole, wrapped

TITLE = "To add, or to erase and write"
MODES = ("linear", "decay", "delta", "gated")
LABELS = {
    "linear": "adds", "decay": "fades and adds", "delta": "erases and writes",
    "gated": "fades, erases, writes",
}  # fmt: skip
NAMES = {
    "linear": "linear attention", "decay": "linear attention with decay", "delta": "the delta rule",
    "gated": "the gated delta rule",
}  # fmt: skip
FORMULAS = {
    "linear": "S ← S + kᵀv",
    "decay": "S ← αS + kᵀv",
    "delta": "S ← S − βkᵀ(kS) + βkᵀv",
    "gated": "S ← αS − βkᵀ(kαS) + βkᵀv",
}
# Which of the two keys is written, with what value.
WRITES = ((0, (1.0, 0.5)), (1, (-0.5, 1.0)), (0, (0.5, -1.0)), (1, (1.0, 1.0)))


def delta_rule(
    mode: str = "delta",
    *,
    first: float = 20,
    second: float = 65,
    query: float = 20,
    beta: float = 1,
    alpha: float = 0.8,
    written: int = 2,
    watched: str = "first",
    writes: Sequence[tuple[int, Sequence[float]]] = WRITES,
) -> Explorable:
    r"""Return a figure of a 2 × 2 state that is written with keys and values and read by a query.

    Keys and the query are rows of length 1, given by their angles. The state $S$ has a row for each
    number of a key and a column for each of a value, and a query reads $q S$. Linear attention
    adds: $S \leftarrow S + k^\top v$. The delta rule first takes off what the key reads now:
    $S \leftarrow S - \beta k^\top (k S) + \beta k^\top v$. With $\beta = 1$ the key then reads $v$
    exactly. Each form has one with a decay $\alpha$, which multiplies what stood there.

    For the curve the first key is written once, then the second: how far each then reads from its
    value depends on the angle between the two. What was written last the delta rule reads exactly;
    what was written before it reads as far as the later key left it.

    Args:
        mode: "linear", "decay", "delta" or "gated".
        first: Angle of the first key in degrees, -180 to 180.
        second: Angle of the second key.
        query: Angle of the query.
        beta: Strength of a write of the delta rule, 0 to 2; 1 replaces, above 1 overshoots.
        alpha: Share of the state that a write leaves, 0 to 1, where there is a decay.
        written: Writes that are done, 0 to as many as there are.
        watched: Whose error the curve shows, "first" or "second".
        writes: 2 to 8 pairs (key, value): key 0 or 1, and two numbers from -2 to 2. The first is of
            key 0, the second of key 1.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [schlag2021linear], [yang2024parallelizing], [yang2025gated].
    Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
    """
    plan = _checked(writes)
    checks = {
        "mode": one_of("mode", *MODES),
        "first": number("first", -180, 180),
        "second": number("second", -180, 180),
        "query": number("query", -180, 180),
        "beta": number("beta", 0, 2),
        "alpha": number("alpha", 0, 1),
        "written": whole("written", 0, len(plan)),
        "watched": one_of("watched", "first", "second"),
    }
    given = {
        "mode": mode, "first": first, "second": second, "query": query, "beta": beta,
        "alpha": alpha, "written": written, "watched": watched,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}

    def results(now: dict) -> dict:
        return _results(now, plan)

    def text(now: dict) -> str:
        found = results(now)
        rows = "; ".join(_row(row) for row in found["state"])
        errors = "; ".join(
            f"{NAMES[mode]} {one:.3f} and {two:.3f}" for mode, (one, two) in found["errors"].items()
        )
        recall = ""
        if found["recall_error"][0] is not None:
            told = [x for x in found["recall_error"] if x is not None]
            recall = f"""The first key reads {told[0]:.3f} from its last value""" + (
                f", the second {told[1]:.3f} from its own. " if len(told) > 1 else ". "
            )
        return wrapped(f"""{TITLE}

        {NAMES[now["mode"]].capitalize()}: {FORMULAS[now["mode"]]}. After {now["written"]} of
        {len(plan)} writes the rows of S are {rows}. The query at {now["query"]:.0f} degrees reads
        {_row(found["read"])}. {recall}

        The keys stand {found["between"]:.0f} degrees apart. Each written once, the first and the
        second then read so far from their values: {errors}.

        In the page the keys and the query are arrows that can be turned, a button does the next
        write, and the state shows what was erased and what was written.""")

    data = {
        "title": TITLE, "modes": LABELS, "names": NAMES, "formulas": FORMULAS,
        "writes": [[key, value] for key, value in plan],
    }  # fmt: skip
    return Explorable(
        "delta_rule", data=data, state=state, checks=checks, results=results, text=text
    )


def _checked(writes: object) -> list[tuple[int, list[float]]]:
    """Return the writes, each checked."""
    if isinstance(writes, str) or not isinstance(writes, Sequence):
        raise TypeError(f"writes must be a list of (key, value), got {type(writes).__name__}")
    if not 2 <= len(writes) <= 8:
        raise ValueError(f"writes must be 2 to 8, got {len(writes)}")
    plan = []
    for i, row in enumerate(writes):
        if not isinstance(row, (tuple, list)):
            raise TypeError(f"writes[{i}] must be (key, value), got {type(row).__name__}")
        if len(row) != 2:
            raise ValueError(f"writes[{i}] must be (key, value), got {len(row)} items")
        key = whole(f"writes[{i}] key", 0, 1)(row[0])
        if i < 2 and key != i:
            raise ValueError(f"writes[{i}] key must be {i}, got {key}")
        plan.append((key, vector(f"writes[{i}] value", 2, -2, 2)(row[1])))
    return plan


def _row(numbers: Sequence[float]) -> str:
    return "(" + ", ".join(f"{x:.3f}" for x in numbers) + ")"


def unit(degrees: float) -> tuple[float, float]:
    """Return the arrow of length 1 at an angle."""
    angle = math.radians(degrees)
    return math.cos(angle), math.sin(angle)


def read(state: list[list[float]], key: Sequence[float]) -> list[float]:
    """Return what a key reads from the state."""
    return [key[0] * state[0][j] + key[1] * state[1][j] for j in (0, 1)]


def write(
    mode: str, state: list[list[float]], key: Sequence[float], value: Sequence[float],
    beta: float, alpha: float,
) -> dict[str, list[list[float]]]:  # fmt: skip
    """Return what a write leaves, erases and adds, and the state after it."""
    share = alpha if mode in ("decay", "gated") else 1.0
    strength = beta if mode in ("delta", "gated") else 1.0
    left = [[share * x for x in row] for row in state]
    now = read(left, key) if mode in ("delta", "gated") else [0.0, 0.0]
    erased = [[-strength * k * x for x in now] for k in key]
    added = [[strength * k * x for x in value] for k in key]
    after = [[left[i][j] + erased[i][j] + added[i][j] for j in (0, 1)] for i in (0, 1)]
    return {"left": left, "erased": erased, "added": added, "after": after}


def _distance(x: Sequence[float], y: Sequence[float]) -> float:
    return math.hypot(x[0] - y[0], x[1] - y[1])


def recall_errors(mode: str, degrees: float, now: dict, plan: list) -> list[float]:
    """Return how far two keys so many degrees apart read from their values, each written once."""
    state, keys = [[0.0, 0.0], [0.0, 0.0]], (unit(0), unit(degrees))
    for key, value in plan[:2]:
        state = write(mode, state, keys[key], value, now["beta"], now["alpha"])["after"]
    return [_distance(read(state, keys[key]), value) for key, value in plan[:2]]


def _results(now: dict, plan: list) -> dict:
    keys = (unit(now["first"]), unit(now["second"]))
    state, last = [[0.0, 0.0], [0.0, 0.0]], None
    values: list[list[float] | None] = [None, None]
    for key, value in plan[: now["written"]]:
        last = {"before": state, **write(now["mode"], state, keys[key], value, now["beta"],
                                         now["alpha"])}  # fmt: skip
        state, values[key] = last["after"], value
    apart = abs(now["first"] - now["second"]) % 360
    between = min(apart, 360 - apart)
    return {
        "state": state,
        "last_write": last,
        "read": read(state, unit(now["query"])),
        "recall": [read(state, key) for key in keys],
        "recall_error": [
            None if value is None else _distance(read(state, key), value)
            for key, value in zip(keys, values, strict=True)
        ],
        "between": between,
        "errors": {mode: recall_errors(mode, between, now, plan) for mode in MODES},
    }
