"""scan_tree: a recurrence run in sequence and as a tree, step by step."""

from collections.abc import Sequence

from tfbook.teaching.explorables._base import Explorable, one_of, vector, whole, wrapped

TITLE = "A recurrence as a tree"
SIZES = (4, 8, 16)
LABELS = {"sequential": "In sequence", "hillis_steele": "Hillis and Steele", "blelloch": "Blelloch"}
A = (0.5, 0.8, 1.0, 0.5, 0.9, 0.25, 1.0, 0.5, 0.8, 0.5, 1.0, 0.9, 0.5, 0.75, 0.5, 1.0)
B = (1.0, 2.0, -1.0, 0.5, 3.0, 1.0, -2.0, 1.0, 0.5, -1.0, 2.0, 1.0, 4.0, -0.5, 1.0, 2.0)
STOPS = {
    "length": [2**p for p in range(2, 21)],
    "processors": [2**p for p in range(17)],
}


def scan_tree(
    method: str = "blelloch",
    *,
    n: int = 8,
    level: int = 0,
    reset: int = 0,
    length: int = 4096,
    processors: int = 1024,
    a: Sequence[float] = A,
    b: Sequence[float] = B,
) -> Explorable:
    r"""Return a figure of $h_t = g_t h_{t-1} + b_t$, $h_0 = 0$, computed by pairs.

    A step is the pair $(g, b)$, and two steps one after the other are a step again:
    $(g_1, b_1)$, then $(g_2, b_2)$, is $(g_2 g_1, g_2 b_1 + b_2)$. This rule is associative, so the
    steps may be joined in any grouping, and the $b$ of all steps up to $t$ joined is $h_t$.

    In sequence $n - 1$ joins follow one another. Hillis and Steele join, at distance 1, 2, 4, ...,
    every pair with the one that far before it: $\log_2 n$ levels, $n \log_2 n - n + 1$ joins.
    Blelloch joins neighbours on the way up a tree, and on the way down gives the places between
    what stands before them: $2 \log_2 n - 1$ levels, $2 n - 2 - \log_2 n$ joins. With $p$
    processors a level of $w$ joins takes $\lceil w / p \rceil$ rounds.

    Args:
        method: "sequential", "hillis_steele" or "blelloch".
        n: Steps of the recurrence, 4, 8 or 16.
        level: Levels of the tree that are done, 0 to 15; no more than there are.
        reset: A step from 1 to 15 whose $g$ is 0, so that it forgets; 0 for none.
        length: Steps of a real sequence, a power of two from 4 to 2²⁰.
        processors: Joins done at once there, 1 to 65 536.
        a: 16 decays $g_t$, -2 to 2; the first $n$ are used.
        b: 16 inputs $b_t$, -10 to 10.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [hillis1986data], [blelloch1990prefix], [martin2018parallelizing].
    Explained in: chapters/09_hybrids_deeper, section "A recurrence as a tree".
    """
    a, b = vector("a", 16, -2, 2)(a), vector("b", 16, -10, 10)(b)
    checks = {
        "method": one_of("method", *LABELS),
        "n": _size,
        "level": whole("level", 0, 15),
        "reset": whole("reset", 0, 15),
        "length": _power,
        "processors": whole("processors", 1, 65_536),
    }
    given = {
        "method": method, "n": n, "level": level, "reset": reset, "length": length,
        "processors": processors,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}

    def results(now: dict) -> dict:
        return _results(now, a, b)

    def text(now: dict) -> str:
        found = results(now)
        told = " ".join(
            f"{LABELS[name]}: {row['depth']:,} levels, {row['work']:,} joins, {row['rounds']:,} "
            "rounds."
            for name, row in found["costs"].items()
        )
        states = ", ".join(f"{x:.4g}" for x in found["h"])
        return wrapped(f"""{TITLE}

        {LABELS[now["method"]]}, {now["n"]} steps: {found["depth"]} levels and {found["work"]}
        joins, of which {found["levels_done"]} levels and {found["done"]} joins are done. The
        states h are {states}.

        At {now["length"]:,} steps with {now["processors"]:,} joins at once: {told}

        In the page a button does the next level, and the tree shows which pairs are joined and
        what they come to.""")

    data = {"title": TITLE, "labels": LABELS, "sizes": SIZES, "a": a, "b": b, "stops": STOPS}
    return Explorable(
        "scan_tree", data=data, state=state, checks=checks, results=results, text=text
    )


def _size(value: object) -> int:
    value = whole("n", SIZES[0], SIZES[-1])(value)
    if value not in SIZES:
        raise ValueError(f"n must be one of {', '.join(map(str, SIZES))}, got {value}")
    return value


def _power(value: object) -> int:
    value = whole("length", 4, 2**20)(value)
    if value & (value - 1):
        raise ValueError(f"length must be a power of two, got {value}")
    return value


def joined(first: tuple[float, float], then: tuple[float, float]) -> tuple[float, float]:
    """Return two steps, one after the other, as one."""
    return then[0] * first[0], then[0] * first[1] + then[1]


def levels(method: str, n: int) -> list[list[tuple[int, int]]]:
    """Return for each level its joins (s, t): the pair at s goes before the pair at t, in t."""
    if method == "sequential":
        return [[(t - 1, t)] for t in range(1, n)]
    distances = [2**p for p in range(n.bit_length() - 1)]
    if method == "hillis_steele":
        return [[(t - d, t) for t in range(d, n)] for d in distances]
    up = [[(t - d, t) for t in range(2 * d - 1, n, 2 * d)] for d in distances]
    down = [[(t - d, t) for t in range(3 * d - 1, n, 2 * d)] for d in reversed(distances[:-1])]
    return up + down


def run(method: str, pairs: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Return the pairs after 0, 1, ... levels."""
    states = [pairs]
    for joins in levels(method, len(pairs)):
        before = states[-1]
        after = list(before)
        for first, then in joins:
            after[then] = joined(before[first], before[then])
        states.append(after)
    return states


def account(method: str, n: int, processors: int) -> dict[str, int]:
    """Return levels, joins, and rounds of so many joins at once, for n a power of two."""
    depth = n.bit_length() - 1
    if method == "sequential":
        return {"depth": n - 1, "work": n - 1, "rounds": n - 1}
    if method == "blelloch":
        sizes = [2**p for p in range(depth)] + [2**p - 1 for p in range(1, depth)]
    else:
        sizes = [n - 2**p for p in range(depth)]
    return {
        "depth": len(sizes),
        "work": sum(sizes),
        "rounds": sum(-(-size // processors) for size in sizes),
    }


def _results(now: dict, a: list[float], b: list[float]) -> dict:
    n, method = now["n"], now["method"]
    pairs = list(zip(a[:n], b[:n], strict=True))
    if 0 < now["reset"] < n:
        pairs[now["reset"]] = (0.0, pairs[now["reset"]][1])
    states, plan = run(method, pairs), levels(method, n)
    level = min(now["level"], len(plan))
    return {
        "levels_done": level,
        "pairs": [list(pair) for pair in states[level]],
        "h": [pair[1] for pair in states[-1]],
        "depth": len(plan),
        "work": sum(map(len, plan)),
        "done": sum(map(len, plan[:level])),
        "costs": {name: account(name, now["length"], now["processors"]) for name in LABELS},
    }
