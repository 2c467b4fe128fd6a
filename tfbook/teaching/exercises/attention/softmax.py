"""The exercises of chapter 02 on lookup and softmax."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    expect,
    expect_gradients,
    numbers,
)

# soft-lookup ------------------------------------------------------------------------------------


def soft_lookup(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Look a query up in a dictionary whose keys match more or less.

    The similarity of the query to a key is their dot product. Divide the similarities by the
    temperature, turn them into weights with a softmax, and return the weighted average of the
    values.

    query: (d,). keys: (m, d). values: (m, e). temperature: a positive number.
    Returns: (e,).
    """
    ...


def _pairs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return numbers(3, seed=1), numbers(5, 3, seed=2), numbers(5, 2, seed=3)


def _lookup_averages(lookup: Any) -> None:
    """The result is the average of the values, weighted by the softmax of the similarities."""
    query, keys, values = _pairs()
    like = torch.stack([(query * key).sum() for key in keys])
    weights = torch.tensor([math.exp(x) for x in like], dtype=torch.float64)
    expect(
        lookup(query, keys, values),
        weights / weights.sum() @ values,
        "This is not the average that the softmax of the similarities gives.",
        mistakes={
            "The similarities themselves were used as weights. They may be negative and do not "
            "sum to one: pass them through a softmax.": like @ values,
            "The similarities were divided by their sum. A weight can then be negative: take the "
            "exponential first.": like / like.sum() @ values,
            "The exponentials do not sum to one, so this is no average: divide them by their "
            "sum.": weights @ values,
            "Every value got the same weight: the query was not used.": values.mean(0),
            "The value of the most similar key came back alone. That is a hard lookup: let every "
            "value count, by its weight.": values[like.argmax()],
            "The similarities were divided by √d. Here the temperature alone sets the scale.":
                torch.softmax(like / math.sqrt(3), 0) @ values,
        },
    )


def _lookup_temperature(lookup: Any) -> None:
    """The temperature divides the similarities."""
    query, keys, values = _pairs()
    like, temperature = keys @ query, 0.5
    expect(
        lookup(query, keys, values, temperature=temperature),
        torch.softmax(like / temperature, 0) @ values,
        "The temperature is not used as a divisor of the similarities.",
        mistakes={
            "The temperature was ignored: the result is the one for temperature 1.":
                torch.softmax(like, 0) @ values,
            "The similarities were multiplied by the temperature. Divide: a low temperature makes "
            "the lookup sharper.": torch.softmax(like * temperature, 0) @ values,
            "The temperature was applied after the softmax, so the weights do not sum to one.":
                torch.softmax(like, 0) / temperature @ values,
        },
    )


def _lookup_cold(lookup: Any) -> None:
    """A low temperature returns the value of the most similar key."""
    query, keys, values = _pairs()
    expect(
        lookup(query, keys, values, temperature=1e-4),
        values[(keys @ query).argmax()],
        "Dividing by a small temperature makes exponents that overflow: subtract the largest one "
        "before taking the exponential.",
    )


def _lookup_hot(lookup: Any) -> None:
    """A high temperature returns the mean of the values."""
    query, keys, values = _pairs()
    expect(lookup(query, keys, values, temperature=1e9), values.mean(0))


def _lookup_order(lookup: Any) -> None:
    """The order of the key-value pairs does not matter."""
    query, keys, values = _pairs()
    order = torch.tensor([3, 0, 4, 1, 2])
    expect(lookup(query, keys[order], values[order]), lookup(query, keys, values).detach())


def _lookup_gradients(lookup: Any) -> None:
    """Gradients reach the query, the keys and the values."""
    query, keys, values = _pairs()
    expect_gradients(lookup, query=query, keys=keys, values=values)


SOFT_LOOKUP = Exercise(
    name="soft-lookup",
    title="A dictionary that answers every query",
    level=1,
    section='chapters/02_attention_deeper, section "Lookup made soft"',
    stub=soft_lookup,
    properties=(
        _lookup_averages, _lookup_temperature, _lookup_cold, _lookup_hot, _lookup_order,
        _lookup_gradients,
    ),
    hints=(
        "Three steps: one similarity for each key, one weight for each similarity, one average.",
        "`keys @ query` holds all similarities, in a tensor of shape (m,).",
        "`torch.softmax(keys @ query / temperature, dim=0)` are the weights. A tensor of shape "
        "(m,) times one of shape (m, e) is the weighted sum of its rows.",
    ),
)

# stable-softmax ---------------------------------------------------------------------------------


def stable_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Compute the softmax along the last axis, for scores of any size.

    The results are non-negative, sum to one along the last axis, and stay finite where the
    scores reach 10 000 in either direction.

    scores: (..., m).
    Returns: (..., m), of the same dtype.
    """
    ...


def _softmax_rows(softmax: Any) -> None:
    """Every row is exp(score) divided by the sum of its row."""
    scores = numbers(2, 3, seed=5)
    exps = scores.exp()
    columns = scores - scores.amax(0)
    expect(
        softmax(scores),
        exps / exps.sum(-1, keepdim=True),
        "The rows are not exp(score) divided by the sum of exp(score) over the row.",
        mistakes={
            "The columns sum to one instead of the rows: run along the last axis, `dim=-1`.":
                exps / exps.sum(0),
            "All numbers together sum to one: every row needs a sum of its own, over `dim=-1`.":
                exps / exps.sum(),
            "The exponentials were not divided by their sum.": exps,
            "The scores were divided by their sum; the exponential is missing.":
                scores / scores.sum(-1, keepdim=True),
            "This is the logarithm of the softmax.": (exps / exps.sum(-1, keepdim=True)).log(),
            "The exponentials were divided by the largest of their row, not by their sum.":
                exps / exps.amax(-1, keepdim=True),
            "The largest score was taken of each column. Subtracting a different number from each "
            "score of a row changes its softmax: take the largest of each row.":
                columns.exp() / columns.exp().sum(-1, keepdim=True),
        },
    )


def _softmax_axes(softmax: Any) -> None:
    """It runs along the last axis, however many axes there are."""
    scores = numbers(2, 3, 5, seed=7)
    axis_1 = "It ran along axis 1, which is the last axis of a matrix alone: use `dim=-1`."
    wanted = torch.softmax(scores, -1)
    expect(softmax(scores), wanted, mistakes={axis_1: torch.softmax(scores, 1)})
    expect(softmax(scores[0, 0]), wanted[0, 0])


def _softmax_shift(softmax: Any) -> None:
    """Adding 10 000 to every score of a row changes nothing."""
    scores = numbers(2, 3, seed=5)
    expect(
        softmax(scores + 1e4),
        torch.softmax(scores, -1),
        "exp(10000) overflows to infinity, and infinity divided by infinity is NaN. Subtract the "
        "largest score of the row first: a shift of a whole row cancels in the fraction.",
        mistakes={
            "Large scores were clamped, so all of them became equal. Subtract the largest score "
            "of the row instead.": torch.full_like(scores, 1 / 3),
        },
    )


def _softmax_extremes(softmax: Any) -> None:
    """Rows near +10 000 and rows near -10 000 stay exact side by side."""
    scores = numbers(2, 3, seed=5) + torch.tensor([[1e4], [-1e4]])
    wanted = torch.softmax(numbers(2, 3, seed=5), -1)
    lost = torch.full((3,), math.nan, dtype=torch.float64)
    whole = (
        "The second row is lost: the largest score of the whole tensor was subtracted, so all its "
        "exponentials became zero. Subtract the largest score of each row, `keepdim=True`."
    )
    expect(softmax(scores), wanted, mistakes={whole: torch.stack([wanted[0], lost])})


def _softmax_dtype(softmax: Any) -> None:
    """The dtype of the scores is kept."""
    scores = numbers(2, 3, seed=5, dtype=torch.float32)
    expect(softmax(scores), torch.softmax(scores, -1), tolerance=1e-5)


def _softmax_gradients(softmax: Any) -> None:
    """Gradients reach the scores."""
    expect_gradients(softmax, scores=numbers(2, 3, seed=5))


STABLE_SOFTMAX = Exercise(
    name="stable-softmax",
    title="A softmax that survives large scores",
    level=1,
    section='chapters/02_attention_deeper, section "Large scores: subtract the largest"',
    stub=stable_softmax,
    properties=(
        _softmax_rows, _softmax_axes, _softmax_shift, _softmax_extremes, _softmax_dtype,
        _softmax_gradients,
    ),
    hints=(
        "What happens to exp(x)/Σexp(x) when you add the same number to every x?",
        "Choose the number so that the largest exponent of each row is zero.",
        "`scores - scores.amax(dim=-1, keepdim=True)` has no positive entry. Take the exponential "
        "and divide by its sum over `dim=-1`, again with `keepdim=True`.",
    ),
)

EXERCISES = (SOFT_LOOKUP, STABLE_SOFTMAX)
