"""The exercises of chapter 10 on patterns: equal outputs, rollout, and the induction score."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    Wrong,
    expect,
    expect_plain,
    expect_tensor,
    numbers,
)

# same-output ------------------------------------------------------------------------------------


def same_output(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Find other weights of one query with which it gets the same output.

    They must be weights: none negative, sum 1. Together they should differ from the given ones by
    0.05 or more, as the sum of the absolute differences.

    weights: (m,), all above 0.01. values: (m, d), with m at least d + 2.
    Returns: (m,), other weights.
    """
    ...


def _same_check(make: Any, m: int, d: int, seed: int) -> None:
    weights = 0.3 + numbers(m, seed=seed).abs()
    weights, values = weights / weights.sum(), numbers(m, d, seed=seed + 1)
    given = {"weights": weights, "values": values}
    found = make(weights.clone(), values.clone())
    expect_tensor(found, (m,), torch.float64, what="What came back")
    troubles = {
        "These are no weights: they should sum to 1. A change whose entries sum to 0 keeps the "
        "sum.": abs(float(found.sum()) - 1) > 1e-6,
        "These are no weights: one is negative. Take a smaller step along the same direction.":
            float(found.min()) < -1e-9,
        "The output has changed: the change times the values should be 0.":
            float((found @ values - weights @ values).abs().max()) > 1e-6,
        "These are nearly the weights that were given: together they should differ by 0.05 or more."
        : float((found - weights).abs().sum()) < 0.05,
    }  # fmt: skip
    for words, there in troubles.items():
        if there:
            raise Wrong(words, given=given, got=found)


def _same_small(make: Any) -> None:
    """Four keys in a plane."""
    _same_check(make, 4, 2, 1001)


def _same_larger(make: Any) -> None:
    """More keys than values have numbers."""
    _same_check(make, 9, 4, 1011)
    _same_check(make, 6, 1, 1021)


SAME_OUTPUT = Exercise(
    name="same-output",
    title="The same output by other weights",
    level=2,
    section='chapters/10_interpretability_deeper, section "The same output by other weights"',
    stub=same_output,
    properties=(_same_small, _same_larger),
    hints=(
        "Write the new weights as the old ones plus a change. What must the change times the "
        "values be, and what must its entries sum to?",
        "These are d + 1 linear equations for m unknown numbers, so some direction solves them "
        "all. Put the values and a column of ones beside each other, and ask for what is at right "
        "angles to all their columns: `torch.linalg.svd(..., full_matrices=True)`.",
        "Go along this direction until the first weight would become 0: `weights + t * change` "
        "with t as large as possible. The other way is another answer, and one of the two may be "
        "too near.",
    ),
)

# mended-rollout ---------------------------------------------------------------------------------


def mended_rollout(patterns: torch.Tensor) -> torch.Tensor:
    """Follow what each row after the last layer has taken from each token, by the patterns.

    The residual connection keeps half of each row. Rows are queries.

    patterns: (L, H, n, n), the first layer first; rows sum to 1.
    Returns: (n, n), rows sum to 1.
    """
    found = torch.eye(patterns.shape[-1], dtype=patterns.dtype)
    for pattern in patterns.mean(dim=1):
        found = found @ (pattern + torch.eye(len(pattern), dtype=patterns.dtype))
    return found


def _rolled(patterns: torch.Tensor, slip: str = "") -> torch.Tensor:
    n = patterns.shape[-1]
    eye = torch.eye(n, dtype=patterns.dtype)
    found = eye
    for heads in patterns:
        mean = heads.sum(0) if slip == "sum" else heads.mean(0)
        step = mean if slip == "bare" else mean + eye
        if slip not in ("grows", "both"):
            step = step / step.sum(-1, keepdim=True)
        found = found @ step if slip in ("turned", "both") else step @ found
    return found / found.sum(-1, keepdim=True) if slip == "late" else found


_ROLLED = {
    "both": "Nothing is mended yet: rows do not sum to 1, and the first layer stands where the "
            "last one belongs.",
    "grows": "The order is right now. But a row of a pattern plus the identity sums to 2, so with "
             "each layer the rows grow.",
    "turned": "Rows sum to 1 now. But the order is that of the layers read backwards: a row of the "
              "last layer is what one starts from, so that matrix stands on the left.",
    "bare": "The residual connection is gone: each row also keeps itself.",
    "sum": "The heads were summed, so that they outweigh the residual connection. Take their mean.",
}  # fmt: skip


def _rollout_check(make: Any, layers: int, heads: int, n: int, seed: int) -> None:
    patterns = (2 * numbers(layers, heads, n, n, seed=seed)).masked_fill(
        ~torch.ones(n, n).tril().bool(), -torch.inf
    )
    patterns = patterns.softmax(-1).mul(100).round() / 100
    patterns = patterns / patterns.sum(-1, keepdim=True)
    wanted = _rolled(patterns)
    slips = {words: _rolled(patterns, slip) for slip, words in _ROLLED.items()}
    mistakes = {words: x for words, x in slips.items() if not torch.allclose(x, wanted)}
    expect(
        make(patterns.clone()), wanted, "It should be the product of the layers' shares.",
        mistakes=mistakes, given={"patterns": patterns},
    )  # fmt: skip


def _rollout_two(make: Any) -> None:
    """Two layers, in the right order, with rows that sum to 1."""
    _rollout_check(make, 2, 1, 3, 1031)


def _rollout_more(make: Any) -> None:
    """More layers and heads."""
    _rollout_check(make, 3, 2, 4, 1041)


MENDED_ROLLOUT = Exercise(
    name="mended-rollout",
    title="A rollout with two faults",
    level=2,
    section='chapters/10_interpretability_deeper, section "Relevance through layers"',
    stub=mended_rollout,
    properties=(_rollout_two, _rollout_more),
    hints=(
        "Run it on one layer, and look at the sums of the rows. Then on two, and on three.",
        "For the order take two layers by hand: in the last one, row 2 reads row 1; in the first "
        "one, row 1 reads row 0. In which order must the matrices stand so that row 2 of the "
        "product has something of token 0?",
        "One fault is in the size of what is multiplied in, one in the side from which `@` "
        "multiplies it.",
    ),
    broken=True,
)

# induction-score --------------------------------------------------------------------------------


def induction_score(tokens: list[int], pattern: list[list[float]]) -> float:
    """Measure how much a head looks at what followed earlier copies of the token that asks.

    For query i these are the keys j ≤ i with tokens[j − 1] equal to tokens[i]. The score is the
    weight on them, as a mean over the queries that have such a key.

    tokens: n token ids. pattern: n rows of n weights; row i is query i.
    Returns: a float from 0 to 1; at least one query has such a key.
    """
    ...


def _scored(tokens: list[int], pattern: list[list[float]], slip: str = "") -> float:
    found, n = [], len(tokens)
    for i in range(n):
        keys = [
            j for j in range(n)
            if (slip == "ahead" or j <= i)
            and (
                (tokens[j] == tokens[i] and j < i) if slip == "copy"
                else (j + 1 < n and tokens[j + 1] == tokens[i]) if slip == "before"
                else (j > 0 and tokens[j - 1] == tokens[i])
            )
        ]  # fmt: skip
        if slip == "last":
            keys = keys[-1:]
        if keys or slip == "every":
            found.append(sum(pattern[i][j] for j in keys))
    return sum(found) / max(1, len(found))


_SCORED = {
    "copy": "This is the weight on the earlier copies themselves. An induction head looks one "
            "place further, at what followed them.",
    "before": "This is the weight on what stood before the copies. An induction head looks at what "
              "followed them.",
    "every": "Queries whose token has not been there before were counted too. They have nothing "
             "to find.",
    "last": "Only the last such key of each query was counted. A token may have been there more "
            "than once.",
    "ahead": "Keys after the query were counted.",
}  # fmt: skip


def _score_check(make: Any, tokens: list[int], seed: int) -> None:
    n = len(tokens)
    drawn = numbers(n, n, seed=seed).abs() + 0.1
    pattern = (drawn / drawn.sum(-1, keepdim=True)).mul(100).round() / 100
    given = {"tokens": tokens, "pattern": pattern.tolist()}
    wanted = _scored(**given)
    slips = {words: _scored(**given, slip=slip) for slip, words in _SCORED.items()}
    mistakes = {words: x for words, x in slips.items() if abs(x - wanted) > 1e-6}
    expect_plain(make, given, wanted, "Write down, for each query, which keys count.",
                 mistakes=mistakes)  # fmt: skip


def _score_repeat(make: Any) -> None:
    """A text that is repeated once."""
    _score_check(make, [5, 2, 7, 5, 2, 7], 1051)


def _score_mixed(make: Any) -> None:
    """Tokens that come back several times, or never."""
    _score_check(make, [3, 1, 3, 4, 9, 3, 1], 1061)


INDUCTION_SCORE = Exercise(
    name="induction-score",
    title="The induction score",
    level=2,
    section='chapters/10_interpretability_deeper, section "Induction heads in SmolLM2"',
    stub=induction_score,
    properties=(_score_repeat, _score_mixed),
    hints=(
        "Take the tokens a b c a b c. Which query has a key to find first, and which key is it?",
        "Two loops: over queries, and over the keys up to the query. Key 0 has nothing before it.",
        "Query i may find key j if `tokens[j - 1] == tokens[i]`. Collect one number for each query "
        "that has such a key, and take the mean of these alone.",
    ),
)

EXERCISES = (SAME_OUTPUT, MENDED_ROLLOUT, INDUCTION_SCORE)
