"""The exercises of chapter 08 on measuring: two models, and what their seeds can tell apart."""

import math
from typing import Any

from tfbook.teaching.exercises._spec import Exercise, expect_plain, parts

# seed-difference --------------------------------------------------------------------------------


def seed_difference(plain: list[float], changed: list[float]) -> tuple[float, float]:
    """Compare two models by the losses of their seeds.

    plain: losses of the plain model, one for each seed, at least two. changed: likewise, of the
    changed model; there may be another number of them.
    Returns: by how much the mean changes (below 0: the changed model is better), and the standard
    error of that difference.
    """
    ...


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _variance(values: list[float], less: int = 1) -> float:
    return sum((x - _mean(values)) ** 2 for x in values) / (len(values) - less)


def _compare(compare: Any, plain: list[float], changed: list[float]) -> None:
    def only(index: int) -> Any:
        return lambda one, other: parts(compare(one, other), "difference", "error")[index]

    runs = {"plain": plain, "changed": changed}
    change = _mean(changed) - _mean(plain)
    expect_plain(only(0), runs, change, "The first result is the difference of the means.",
                 mistakes={
        "The sign is turned: a changed model with a lower loss has a difference below 0.": -change,
    })  # fmt: skip
    one, other = _variance(plain) / len(plain), _variance(changed) / len(changed)
    biased = _variance(plain, 0) / len(plain) + _variance(changed, 0) / len(changed)
    both = math.sqrt(_variance(plain) + _variance(changed))
    expect_plain(only(1), runs, math.sqrt(one + other),
                 "The standard error is the root of the sum of two terms, one for each model: its "
                 "variance over its number of seeds.",
                 mistakes={
        "That is how far single runs differ. Means scatter less: divide each variance by its "
        "number of seeds.": both,
        "The variances were divided by n. From a sample one divides the squares by n - 1.":
            math.sqrt(biased),
        "The standard errors of both means were added. Independent errors add as squares.":
            math.sqrt(one) + math.sqrt(other),
        "The plain model scatters too: its term is missing.": math.sqrt(other),
        "That is the square of the error: take the root.": one + other,
    })  # fmt: skip


def _difference_alike(compare: Any) -> None:
    """Both models have as many seeds."""
    _compare(compare, [2.3, 2.1, 2.2, 2.6], [2.0, 2.2, 2.1, 1.8])


def _difference_unlike(compare: Any) -> None:
    """One model has more seeds than the other."""
    _compare(compare, [1.9, 2.0, 2.3, 2.2, 2.0, 1.8, 2.4], [2.2, 2.5, 2.1])


SEED_DIFFERENCE = Exercise(
    name="seed-difference",
    title="A difference and its error",
    level=1,
    section='chapters/08_architectural_variants, section "What can be seen at all?"',
    stub=seed_difference,
    properties=(_difference_alike, _difference_unlike),
    hints=(
        "Each model gives a mean. How far would that mean move with other seeds?",
        "The variance of a mean is the variance of single runs over their number. What happens to "
        "variances when two independent numbers are subtracted?",
        "`statistics.variance` divides by n - 1. You need it twice, each time over the number of "
        "seeds of that model.",
    ),
)

EXERCISES = (SEED_DIFFERENCE,)
