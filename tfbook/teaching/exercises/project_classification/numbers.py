"""The checks of the project on classification that judge a result: errors, and an interval."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Slip, Wrong, expect, parts

WHERE = "chapters/project_classification"

# project-confusion ------------------------------------------------------------------------------


def confusion(predicted: torch.Tensor, labels: torch.Tensor, n_classes: int) -> torch.Tensor:
    """Count which class was taken for which.

    predicted: (T,), int64. labels: (T,), int64, what is right. n_classes: C.
    Returns: (C, C), int64: row i, column j says how many of class i were taken for class j.
    """
    ...


def _confused(predicted: torch.Tensor, labels: torch.Tensor, n: int) -> torch.Tensor:
    table = torch.zeros(n, n, dtype=torch.int64)
    for guess, truth in zip(predicted.tolist(), labels.tolist(), strict=True):
        table[truth, guess] += 1
    return table


def _confusion_counts(confusion: Any) -> None:
    """Rows are what is right, columns what was predicted."""
    predicted, labels = torch.tensor([0, 1, 1, 2, 1, 0, 1]), torch.tensor([0, 1, 0, 0, 0, 2, 1])
    right = _confused(predicted, labels, 3)
    expect(
        confusion(predicted, labels, 3),
        right,
        "Add 1 to row labels[t], column predicted[t] for each t.",
        mistakes={
            "Rows and columns are exchanged: a row holds the examples of one true class.":
                right.mT.contiguous(),
            "Each pair was counted once: `table[labels, predicted] += 1` adds 1 to a place that "
            "occurs several times only once.": (right > 0).long(),
            "These are shares. Return counts.": right / right.sum(1, keepdim=True),
            "Only the right answers were counted.": right.diag().diag(),
            "Only the mistakes were counted.": right - right.diag().diag(),
        },
    )


def _confusion_sizes(confusion: Any) -> None:
    """Classes that never occur have rows and columns of zeros."""
    generator = torch.Generator("cpu").manual_seed(671)
    for t, n in ((0, 2), (1, 3), (500, 4)):
        predicted, labels = torch.randint(0, max(n - 1, 1), (2, t), generator=generator).unbind()
        expect(
            confusion(predicted, labels, n), _confused(predicted, labels, n),
            f"With {t} examples and {n} classes a count differs.",
        )


CONFUSION = Exercise(
    name="project-confusion",
    title="What is taken for what?",
    level=1,
    section=f'{WHERE}, section "Step 5: how sure is the number?"',
    stub=confusion,
    properties=(_confusion_counts, _confusion_sizes),
    hints=(
        "Every example adds 1 to one place of the table.",
        "As one number, the place is labels · C + predicted.",
        "`torch.bincount(labels * n_classes + predicted, minlength=n_classes**2)"
        ".view(n_classes, n_classes)`.",
    ),
)

# project-interval -------------------------------------------------------------------------------


def wilson(right: int, n: int, z: float) -> tuple[float, float]:
    """Say between which accuracies the true one probably lies.

    With the share p = right / n, Wilson's interval has the middle (p + z²/(2n)) / (1 + z²/n) and
    reaches z / (1 + z²/n) · √(p (1 − p)/n + z²/(4n²)) to both sides.

    right: how many answers were right. n: of how many. z: 1.96 for 95 %.
    Returns: the lower and the upper end, two floats.
    """
    ...


def _wilson(right: int, n: int, z: float) -> tuple[float, float]:
    p, scale = right / n, 1 + z * z / n
    middle = (p + z * z / (2 * n)) / scale
    reach = z / scale * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return middle - reach, middle + reach


def _wilson_case(wilson: Any, right: int, n: int, z: float) -> None:
    got, wanted, p = parts(wilson(right, n, z), "low", "high"), _wilson(right, n, z), right / n
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in got):
        raise Wrong("Return two floats.", got=got, wanted=wanted)
    naive, scale = z * math.sqrt(p * (1 - p) / n), 1 + z * z / n
    middle, root = sum(wanted) / 2, math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    reach, high = z / scale * root, (p + z * z / 2 * n) / scale
    wide = z / scale * math.sqrt(p * (1 - p) / n + z * z / 4 * n * n)
    slips = {
        "This is p ± z √(p (1 - p)/n), which has no width where p is 0 or 1. Wilson's interval is "
        "wanted.": (p - naive, p + naive),
        "The two ends are exchanged.": wanted[::-1],
        "These are the middle and the reach. Return middle - reach and middle + reach.":
            (middle, middle - wanted[0]),
        "The ends lie around p. The middle is drawn towards ½.":
            (p - z / scale * root, p + z / scale * root),
        "The reach was not divided by 1 + z²/n.": (middle - z * root, middle + z * root),
        "z is missing in front of the root.": (middle - root / scale, middle + root / scale),
        "The ends are in per cent. Return shares.": tuple(100 * x for x in wanted),
        "`z**2 / 2 * n` multiplies by n. The middle has z² divided by 2n: `z**2 / (2 * n)`.":
            (high - reach, high + reach),
        "`z**2 / 4 * n**2` multiplies by n². Under the root z² is divided by 4n²: "
        "`z**2 / (4 * n**2)`.": (middle - wide, middle + wide),
        "`z**2 / 2 * n` and `z**2 / 4 * n**2` multiply by n and by n². Put what stands below the "
        "line into brackets: `z**2 / (2 * n)`, `z**2 / (4 * n**2)`.": (high - wide, high + wide),
        "The square root is missing in the reach.":
            (middle - z / scale * root**2, middle + z / scale * root**2),
        "The middle was not divided by 1 + z²/n.":
            (middle * scale - z / scale * root, middle * scale + z / scale * root),
    }

    def close(a: Any, b: Any) -> bool:
        pairs = zip(a, b, strict=True)
        return all(math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-9) for x, y in pairs)

    if not close(got, wanted):
        for words, slip in slips.items():
            if close(got, slip):
                raise Slip(words, got=got, wanted=wanted)
        right_middle = math.isclose(sum(got) / 2, middle, rel_tol=1e-6)
        right_reach = math.isclose((got[1] - got[0]) / 2, reach, rel_tol=1e-6)
        words = "Neither the middle nor the reach is Wilson's. Compute and compare them one by one."
        if right_middle or right_reach:
            good, bad = ("middle", "reach") if right_middle else ("reach", "middle")
            words = f"The {good} is right, and the {bad} is not."
        raise Wrong(
            f"{words} The middle should be {middle:.4f} and the reach {reach:.4f}.",
            got=got, wanted=wanted,
        )


def _wilson_middle(wilson: Any) -> None:
    """Middle and reach are Wilson's."""
    _wilson_case(wilson, 17, 20, 1.96)
    _wilson_case(wilson, 430, 1000, 2.5)


def _wilson_ends(wilson: Any) -> None:
    """All right or all wrong is an interval, too."""
    for right, n in ((0, 5), (5, 5), (1, 1), (0, 1)):
        _wilson_case(wilson, right, n, 1.96)


INTERVAL = Exercise(
    name="project-interval",
    title="How far can chance reach?",
    level=1,
    section=f'{WHERE}, section "Step 5: how sure is the number?"',
    stub=wilson,
    properties=(_wilson_middle, _wilson_ends),
    hints=(
        "Compute p and 1 + z²/n first, then the middle, then the reach.",
        "`z**2 / (4 * n**2)` stands under the root beside `p * (1 - p) / n`.",
        "`scale = 1 + z**2 / n`; `middle = (p + z**2 / (2 * n)) / scale`; `reach = z / scale * "
        "math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))`.",
    ),
)

EXERCISES = (CONFUSION, INTERVAL)
