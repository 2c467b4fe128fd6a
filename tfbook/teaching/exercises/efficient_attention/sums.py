"""The exercise of chapter 07 on linear attention: a state that grows by sums."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, numbers

# running-attention ------------------------------------------------------------------------------


def running_attention(phi_q: torch.Tensor, phi_k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute causal linear attention token by token, with a state in place of the past.

    Weights are phi_q[i] · phi_k[j] for j ≤ i, divided by their sum. Whatever the length, keep a
    state of r · d_v + r numbers only, and make no n × n matrix.

    phi_q: features of the queries, not negative, (n, r). phi_k: those of the keys, (n, r). v:
    (n, d_v).
    Returns: (n, d_v).
    """
    ...


def _explicit(phi_q: torch.Tensor, phi_k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (phi_q @ phi_k.mT).tril()
    return weights / weights.sum(-1, keepdim=True) @ v


def _features(*shape: int, seed: int) -> torch.Tensor:
    return numbers(*shape, seed=seed).abs() + 0.1


def _running_means(attend: Any) -> None:
    """Values that are all 1 come back as 1: the weights are divided by their sum."""
    phi_q, phi_k = _features(5, 3, seed=41), _features(5, 3, seed=42)
    v = torch.ones(5, 2, dtype=torch.float64)
    expect(attend(phi_q, phi_k, v), v, "All values are 1, so every weighted mean of them is 1.",
           mistakes={
        "The weights are not divided by their sum. Keep a second sum, that of the features of the "
        "keys.": (phi_q @ phi_k.mT).tril() @ v,
    })  # fmt: skip


def _running_equals(attend: Any) -> None:
    """The running sums give what the matrix of weights gives."""
    phi_q, phi_k, v = _features(6, 3, seed=43), _features(6, 3, seed=44), numbers(6, 2, seed=45)
    weights = phi_q @ phi_k.mT
    past = weights.tril()
    late = weights.tril(-1)
    expect(attend(phi_q, phi_k, v), _explicit(phi_q, phi_k, v),
           "Compare with the weights written out: `(phi_q @ phi_k.mT).tril()`.", mistakes={
        "The future is seen: the sums run over the whole text before the first query reads them.":
            weights / weights.sum(-1, keepdim=True) @ v,
        "A token does not see itself: add its key to the state before its query reads it.":
            (late / late.sum(-1, keepdim=True)) @ v,
        "The weights go through a softmax here. They are the products themselves, divided by "
        "their sum.": torch.softmax(weights.masked_fill(past == 0, -torch.inf), -1) @ v,
        "Queries and keys are exchanged: the state is made of keys, and read by queries.":
            _explicit(phi_k, phi_q, v),
        "The sum of the last token divides all of them. Each has a sum of its own.":
            past @ v / past.sum(-1)[-1],
    })  # fmt: skip


def _running_past(attend: Any) -> None:
    """A later token changes nothing that was said before."""
    phi_q, phi_k, v = _features(4, 2, seed=46), _features(4, 2, seed=47), numbers(4, 2, seed=48)
    before = attend(phi_q, phi_k, v)[:3]
    after = attend(phi_q, torch.cat([phi_k[:3], phi_k[3:] + 5]), v)[:3]
    if not torch.allclose(before, after):
        raise Wrong("The last key has changed the results of the tokens before it.",
                    got=after, wanted=before)  # fmt: skip


RUNNING_ATTENTION = Exercise(
    name="running-attention",
    title="A past in two sums",
    level=2,
    section='chapters/07_efficient_attention, section "Take the sum first"',
    stub=running_attention,
    properties=(_running_means, _running_equals, _running_past),
    hints=(
        "Two sums grow with the text: one over phi_k[j] times v[j], one over phi_k[j] alone. What "
        "shapes do they have?",
        "`torch.outer(phi_k[j], v[j])` has the shape (r, d_v). What does `phi_q[i] @ state` give?",
        "In the loop: first add token i to both sums, then read both with phi_q[i], and divide. "
        "`torch.stack` makes rows of what you collected.",
    ),
)

EXERCISES = (RUNNING_ATTENTION,)
