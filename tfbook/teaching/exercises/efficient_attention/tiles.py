"""The exercise of chapter 07 on exact attention in parts: two states become one."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, numbers

State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# merge-states -----------------------------------------------------------------------------------


def merge_states(
    a: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    b: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Merge what two workers have found on different keys, for the same n queries.

    A state is (top, total, mixed): the largest score (n, 1), the sum of exp(score − top) over its
    keys (n, 1), and the sum of exp(score − top) · value (n, d_v), not yet divided.

    Returns: the state over the keys of both.
    """
    ...


def _state_of(scores: torch.Tensor, v: torch.Tensor) -> State:
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    return top, weights.sum(-1, keepdim=True), weights @ v


def _parts(seed: int) -> tuple[torch.Tensor, torch.Tensor, State, State]:
    scores, v = numbers(3, 5, seed=seed) * 2, numbers(5, 2, seed=seed + 1)
    return scores, v, _state_of(scores[:, :2], v[:2]), _state_of(scores[:, 2:], v[2:])


def _taken(merged: Any) -> State:
    if not isinstance(merged, (tuple, list)) or len(merged) != 3:
        raise Wrong("Return three tensors: top, total and mixed.")
    return merged


def _merge_tops(merge: Any) -> None:
    """The largest score is the larger of both."""
    scores, _, a, b = _parts(51)
    expect(_taken(merge(a, b))[0], scores.amax(-1, keepdim=True),
           "The first of the three is the largest score over all keys, for each query.",
           what="top", mistakes={
        "The smaller of both scores is kept. Below it weights would grow without bound.":
            torch.minimum(a[0], b[0]),
        "The largest score of the first state is kept, though the second may have a larger one.":
            a[0],
    })  # fmt: skip


def _merge_equals(merge: Any) -> None:
    """Both states together give attention over all keys."""
    scores, v, a, b = _parts(53)
    top, total, mixed = _state_of(scores, v)
    fa, fb = (a[0] - top).exp(), (b[0] - top).exp()
    found = _taken(merge(a, b))
    expect(found[1], total, "Compare with `exp(scores - top).sum(-1)` over all five keys.",
           what="total", mistakes={
        "The totals are added as they are. Each counts from a largest score of its own: scale "
        "both to the common one first.": a[1] + b[1],
        "The factors are upside down: it is exp(old top − new top), at most 1.":
            a[1] / fa + b[1] / fb,
    })  # fmt: skip
    expect(found[2], mixed, "Compare with `exp(scores - top) @ v` over all five keys.",
           what="mixed", mistakes={
        "The totals are scaled, and the mixed values are not. Both need the same factor.":
            a[2] + b[2],
        "The mixed values are divided by the total already. A state is not: the division comes "
        "last.": mixed / total,
        "Each mix is divided by its own total before they are added: a part with much weight then "
        "counts as much as one with little.": fa * a[2] / a[1] + fb * b[2] / b[1],
    })  # fmt: skip


def _merge_large(merge: Any) -> None:
    """Scores of a thousand do not overflow."""
    scores, v = numbers(2, 4, seed=55) + 1000, numbers(4, 2, seed=56)
    scores[0, :2] -= 1500
    got = _taken(merge(_state_of(scores[:, :2], v[:2]), _state_of(scores[:, 2:], v[2:])))
    if not all(bool(part.isfinite().all()) for part in got):
        raise Wrong("With scores near 1,000 something is infinite: take exp of differences to the "
                    "largest score only.", got=got)  # fmt: skip
    for part, wanted in zip(got, _state_of(scores, v), strict=True):
        expect(part, wanted, "With scores near 1,000 the states no longer agree.")


def _merge_nothing(merge: Any) -> None:
    """A worker that has read nothing yet changes nothing."""
    _, _, a, _ = _parts(57)
    nothing = (torch.full_like(a[0], -math.inf), torch.zeros_like(a[1]), torch.zeros_like(a[2]))
    for found in (merge(a, nothing), merge(nothing, a)):
        for part, wanted in zip(_taken(found), a, strict=True):
            expect(part, wanted, "One state is empty (−∞, 0, 0): the other should come back.")


MERGE_STATES = Exercise(
    name="merge-states",
    title="Two halves of the keys",
    level=2,
    section='chapters/07_efficient_attention, section "Nothing left out"',
    stub=merge_states,
    properties=(_merge_tops, _merge_equals, _merge_large, _merge_nothing),
    hints=(
        "Which largest score do both states have to count from before they can be added?",
        "The step of the loop does nothing else: there the second state is that of one tile.",
        "`torch.maximum` gives the common top. What turns a sum of exp(score − old) into one of "
        "exp(score − new)?",
    ),
)

EXERCISES = (MERGE_STATES,)
