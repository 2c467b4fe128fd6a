"""rollout_stepper: attention through several layers, one factor after the other."""

from collections.abc import Sequence

from tfbook.teaching.explorables._alignment import tokens as checked_tokens
from tfbook.teaching.explorables._base import Explorable, matrix, whole, wrapped

TITLE = "Rollout, one layer after the other"
MAX_LAYERS, MAX_TOKENS, MAX_NUMBERS = 32, 24, 6000
SUM_TOLERANCE = 0.01
STEPS = ("A", "A + I", "½ (A + I)", "product")


def rollout_stepper(
    patterns,
    tokens: Sequence[str],
    *,
    token: int = -1,
    layer: int = 0,
    step: int = 0,
) -> Explorable:
    r"""Return a figure that builds $R = \tilde A_l \cdots \tilde A_1 \tilde A_0$ step by step.

    Each layer has four steps: its pattern $A$; $A + I$, with the row that the residual connection
    hands on; $\tilde A$, whose rows sum to 1 again; and the product with all layers below. One row
    is followed, and beside it stands the same row of the product in the other order,
    $\tilde A_0 \tilde A_1 \cdots \tilde A_l$, whose rows sum to 1 too.

    Args:
        patterns: one square matrix for each layer, the first layer first, (L, n, n): queries are
            rows, and rows sum to 1. Kept with six decimals, at most 6000 numbers.
        tokens: n texts.
        token: which row is followed; the last when omitted.
        layer: which layer, from 0.
        step: 0 for A, 1 for A + I, 2 for rows that sum to 1, 3 for the product.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or a matrix does not fit or has rows that do not sum
            to 1.

    Source: [abnar2020quantifying].
    Explained in: chapters/10_interpretability_deeper, section "Three answers".
    """
    names = checked_tokens("tokens", tokens, 2, MAX_TOKENS)
    n = len(names)
    if hasattr(patterns, "tolist"):
        patterns = patterns.tolist()
    if not isinstance(patterns, (list, tuple)):
        raise TypeError(f"patterns must be a list of matrices, got {type(patterns).__name__}")
    if not 1 <= len(patterns) <= MAX_LAYERS:
        raise ValueError(f"patterns must be 1 to {MAX_LAYERS} matrices, got {len(patterns)}")
    if len(patterns) * n * n > MAX_NUMBERS:
        raise ValueError(
            f"patterns must have at most {MAX_NUMBERS} numbers, got {len(patterns) * n * n}"
        )
    kept = [_pattern(f"patterns[{i}]", pattern, n) for i, pattern in enumerate(patterns)]
    checks = {
        "layer": whole("layer", 0, len(kept) - 1),
        "step": whole("step", 0, len(STEPS) - 1),
        "token": whole("token", 0, n - 1),
    }
    token = whole("token", -n, n - 1)(token)
    given = {"layer": layer, "step": step, "token": token % n}
    state = {name: check(given[name]) for name, check in checks.items()}

    def results(now: dict) -> dict:
        return _results(kept, now)

    def text(now: dict) -> str:
        found = results(now)
        told = "; ".join(
            f"“{name}” ({j}) {right:.3f}, and {wrong:.3f} in the other order"
            for j, (name, right, wrong) in enumerate(
                zip(names, found["right"], found["wrong"], strict=True)
            )
            if max(right, wrong) >= 0.0005
        )
        i = now["token"]
        return wrapped(f"""{TITLE}

        {len(kept)} layers, {n} tokens. Behind layer {now["layer"]} row “{names[i]}” ({i}) came
        from: {told}. The two orders differ by {found["difference"]:.3f} of the row.

        In the page buttons step through A, A + I, rows that sum to 1, and the product.""")

    data = {"title": TITLE, "patterns": kept, "tokens": names, "steps": STEPS}
    return Explorable(
        "rollout_stepper", data=data, state=state, checks=checks, results=results, text=text
    )


def _pattern(name: str, given: object, n: int) -> list[list[float]]:
    rows = [[round(x, 6) for x in row] for row in matrix(name, n, n)(given)]
    for i, row in enumerate(rows):
        if min(row) < 0 or abs(sum(row) - 1) > SUM_TOLERANCE:
            raise ValueError(
                f"{name} must have rows of weights that sum to 1, row {i} sums to {sum(row):.3f}"
            )
    return rows


def _shares(pattern: list[list[float]]) -> list[list[float]]:
    """Return A + I with rows made to sum to 1."""
    rows = [[x + (i == j) for j, x in enumerate(row)] for i, row in enumerate(pattern)]
    return [[x / sum(row) for x in row] for row in rows]


def _times(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    columns = list(zip(*b, strict=True))
    return [[sum(x * y for x, y in zip(row, c, strict=True)) for c in columns] for row in a]


def _results(patterns: list, now: dict) -> dict:
    layer, i = now["layer"], now["token"]
    steps = [_shares(pattern) for pattern in patterns[: layer + 1]]
    right = wrong = steps[0]
    for step in steps[1:]:
        right, wrong = _times(step, right), _times(wrong, step)
    pattern = patterns[layer]
    added = [[x + (r == c) for c, x in enumerate(row)] for r, row in enumerate(pattern)]
    shown = (pattern, added, steps[-1], right)[now["step"]]
    return {
        "shown": shown[i],
        "right": right[i],
        "wrong": wrong[i],
        "row_sum": sum(shown[i]),
        "own": right[i][i],
        "difference": sum(abs(x - y) for x, y in zip(right[i], wrong[i], strict=True)) / 2,
    }
