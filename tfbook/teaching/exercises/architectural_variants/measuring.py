"""The exercises of chapter 08 on measuring: an experiment with two models, and what it shows."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect_plain, parts

# two-small-models -------------------------------------------------------------------------------


def judge(
    train: Callable[[str, int], float], plain: str, changed: str, seeds: list[int]
) -> tuple[float, float, str]:
    """Train two models, each with all seeds, and judge the difference of their means.

    train: train(name, seed) trains the model of this name afresh and returns its loss.
    plain: name of the one model. changed: of the other. seeds: at least two.
    Returns: by how much the mean loss changes (below 0: the changed model is better); the standard
    error of this difference, where each model varies as its own runs do; and "clear" beyond three
    standard errors, else "not clear".
    """
    ...


Losses = dict[str, dict[int, float]]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _variance(values: list[float], less: int = 1) -> float:
    return sum((x - _mean(values)) ** 2 for x in values) / (len(values) - less)


def _only(judge: Any, index: int) -> Any:
    """Judge models whose losses are known, and return one of the results."""

    def one(losses: Losses, seeds: list[int]) -> Any:
        found = judge(lambda name, seed: losses[name][seed], *losses, seeds)
        return parts(found, "difference", "error", "word")[index]

    return one


def _runs_all(judge: Any) -> None:
    """Each model is trained once with each seed."""
    trained: list[tuple[str, int]] = []

    def train(name: str, seed: int) -> float:
        trained.append((name, seed))
        return 2.0 + 0.1 * seed + 0.001 * seed * seed * len(name)

    judge(train, "first", "second", [3, 8, 5])
    runs = Counter(trained)
    for name, other in (("first", "plain"), ("second", "changed")):
        asked = sorted(seed for (each, seed) in runs.elements() if each == name)
        if asked != [3, 5, 8]:
            raise Wrong(
                f"The {other} model was trained with the seeds {asked}. Train each model once "
                "with every seed of the list: [3, 8, 5]."
            )


def _error(judge: Any) -> None:
    """The difference of the means, and its standard error."""
    plain, changed = [2.3, 2.1, 2.2, 2.6], [2.1, 2.0, 1.8, 2.2]
    seeds = [0, 1, 2, 3]
    losses = {
        "plain": dict(zip(seeds, plain, strict=True)),
        "changed": dict(zip(seeds, changed, strict=True)),
    }
    runs = {"losses": losses, "seeds": seeds}
    change, n = _mean(changed) - _mean(plain), len(seeds)
    expect_plain(_only(judge, 0), runs, change,
                 "The first result is the mean of the changed model less that of the plain one.",
                 mistakes={
        "The sign is turned: a changed model with a lower loss has a difference below 0.": -change,
    })  # fmt: skip
    both = _variance(plain) + _variance(changed)
    apart = [y - x for x, y in zip(plain, changed, strict=True)]
    expect_plain(_only(judge, 1), runs, math.sqrt(both / n),
                 "The standard error is the root of the two variances, each over the number of "
                 "seeds.",
                 mistakes={
        "That is how far the difference of two single runs varies. Means vary less: divide each "
        "variance by the number of seeds.": math.sqrt(both),
        "The variance was divided by n. From a sample one divides the squares by n - 1.":
            math.sqrt((_variance(plain, 0) + _variance(changed, 0)) / n),
        "Only one of the two means is taken as uncertain. Both are: their variances add up.":
            math.sqrt(_variance(plain) / n),
        "The differences were taken seed by seed. Take the standard deviation of either model, as "
        "in (8.1).": math.sqrt(_variance(apart) / n),
        "The error falls with the root of the number of seeds, not with the number.":
            math.sqrt(both) / n,
        "That is the square of the error: take the root.": both / n,
    })  # fmt: skip


def _word(judge: Any) -> None:
    """The verdict follows from how many standard errors it is, upwards or downwards."""
    seeds = [5, 6, 9]
    plain = dict(zip(seeds, (2.0, 2.1, 2.2), strict=True))

    def moved(by: float) -> dict[str, Any]:
        changed = {seed: x + by for seed, x in plain.items()}
        return {"losses": {"A": plain, "B": changed}, "seeds": seeds}

    # The standard error is 0.082 in all four.
    expect_plain(_only(judge, 2), moved(0.3), "clear",
                 "Beyond three standard errors the word is \"clear\".")  # fmt: skip
    expect_plain(_only(judge, 2), moved(-0.3), "clear",
                 "Beyond three standard errors the word is \"clear\".", mistakes={
        "A gain is a difference below 0, and this one is as large as a clear loss: compare its "
        "size with the error.": "not clear",
    })  # fmt: skip
    expect_plain(_only(judge, 2), moved(0.2), "not clear",
                 "Up to three standard errors the words are \"not clear\".", mistakes={
        "This difference is 2.4 standard errors. It is clear beyond three.": "clear",
    })  # fmt: skip
    expect_plain(_only(judge, 2), moved(0.1), "not clear",
                 "Up to three standard errors the words are \"not clear\".")  # fmt: skip


TWO_SMALL_MODELS = Exercise(
    name="two-small-models",
    title="An experiment of your own",
    level=2,
    section='chapters/08_architectural_variants, section "How large must a difference be?"',
    stub=judge,
    properties=(_runs_all, _error, _word),
    hints=(
        "Begin with two lists of losses, one for each model. How long is either?",
        "Either mean is uncertain by the variance of its runs, divided by their number. What "
        "becomes of two variances when the means are subtracted?",
        "`statistics.variance` divides by n - 1, as it should. The word depends on the size of the "
        "difference over its error, whatever the sign.",
    ),
)

EXERCISES = (TWO_SMALL_MODELS,)
