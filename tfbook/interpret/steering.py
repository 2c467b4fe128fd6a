"""Steering: add a direction to the stream, and see what a model says more, and what else changes.

Any direction can be added: the mean difference between rows of two kinds, a feature of a
dictionary, a random one as control. What it does to the wanted tokens is half of the answer; the
other half is what it does to all the others, at the same length.

Explained in: chapters/10_interpretability_deeper, section "Steering".
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_float,
    check_ids,
    check_list,
    check_number,
    check_shape,
    check_tensor,
)
from tfbook.interpret.capturing import patched
from tfbook.interpret.dictionaries import CHUNK
from tfbook.interpret.lens import check_decoder
from tfbook.models import DecoderOnly
from tfbook.training import evaluating

__all__ = [
    "SteeringEffects",
    "mean_difference",
    "separation",
    "steered",
    "steering_effects",
]


@torch.no_grad()
def separation(z: Float[Tensor, "R F"], labels: Bool[Tensor, " R"]) -> Float[Tensor, " F"]:
    """Return how well each feature tells rows apart: the area under its ROC curve, from 0 to 1.

    The chance that z is larger for a row of the kind than for another one, half for equal numbers:
    1/2 for a feature that says nothing.

    Args:
        z: features, (R, F), or any numbers of which one asks this.
        labels: which rows are of the kind, (R,).

    Returns:
        (F,).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, NaN, or labels all alike.

    Example:
        >>> z = torch.tensor([[0.0, 3.0], [0.0, 0.0], [2.0, 0.0]])
        >>> separation(z, torch.tensor([True, False, False]))
        tensor([0.2500, 1.0000])

    Source: as the choice of a feature for a concept: [wu2025axbench]
    Explained in: chapters/10_interpretability_deeper, section "Steering".
    """
    check_float("z", z)
    if z.ndim != 2 or 0 in z.shape:
        raise ValueError(f"z must have shape (R, F) and not be empty, got {tuple(z.shape)}")
    check_labels(labels, len(z))
    if bool(z.isnan().any()):
        raise ValueError("z must hold no NaN")
    labels = labels.to(z.device)
    many = int(labels.sum())
    areas = []
    for column in z.T:
        _, kind, count = column.unique(return_inverse=True, return_counts=True)
        ranks = (count.cumsum(0) - (count - 1) / 2)[kind].double()
        above = ranks[labels].sum() - many * (many + 1) / 2
        areas.append(above / (many * (len(z) - many)))
    return torch.stack(areas).to(z.dtype)


def check_labels(labels: object, rows: int) -> None:
    """Raise unless labels say for each row whether it is of a kind, and both kinds occur.

    Raises:
        TypeError: if they are no boolean tensor.
        ValueError: for another shape, or labels all alike.
    """
    check_tensor("labels", labels)
    if labels.dtype != torch.bool:
        raise TypeError(f"labels must be boolean, got {labels.dtype}")
    check_shape("labels", labels, (rows,), "(R,)")
    if bool(labels.all()) or not bool(labels.any()):
        raise ValueError("labels must hold rows of both kinds, these are all alike")


def mean_difference(x: Float[Tensor, "R D"], labels: Bool[Tensor, " R"]) -> Float[Tensor, " D"]:
    """Return the difference of means: the mean row of a kind less the mean of all others.

    Args:
        x: rows, (R, D).
        labels: which rows are of the kind, (R,).

    Returns:
        (D,), of the length it has.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or labels all alike.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 2.0], [0.0, 5.0]])
        >>> mean_difference(x, torch.tensor([True, True, False]))
        tensor([ 2., -3.])

    Source: [turner2023steering], [wu2025axbench]
    Explained in: chapters/10_interpretability_deeper, section "Steering".
    """
    check_float("x", x)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"x must have shape (R, D) and not be empty, got {tuple(x.shape)}")
    check_labels(labels, len(x))
    labels = labels.to(x.device)
    wide = x.detach().float() if x.itemsize < 4 else x.detach()
    return (wide[labels].mean(0) - wide[~labels].mean(0)).to(x.dtype)


def steered(
    model: nn.Module, tap: str, direction: Float[Tensor, " D"], strength: float
) -> AbstractContextManager[None]:
    """Let a model run with a direction added to every row that passes a tap.

    x ← x + strength · direction / ‖direction‖

    Args:
        model: the model to change for a while.
        tap: name of the tap, such as "stack.blocks.1.resid_post".
        direction: (D,), of any length but 0.
        strength: length of what is added; below 0 it is taken off.

    Returns:
        What ``with`` enters.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a tap that is not there, a direction without length or of another size.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))]))
        >>> tokens, toward = torch.tensor([[3, 1, 4]]), model.embed.weight[7].detach()
        >>> with steered(model, "stack.blocks.0.resid_post", toward, 10.0):
        ...     logits, _ = model(tokens)
        >>> bool((logits[..., 7] > model(tokens)[0][..., 7]).all())
        True

    Source: [turner2023steering]
    Explained in: chapters/10_interpretability_deeper, section "Steering".
    """
    if not isinstance(tap, str):
        raise TypeError(f"tap must be the name of a tap, got {type(tap).__name__}")
    check_float("direction", direction)
    check_number("strength", strength)
    if direction.ndim != 1:
        raise ValueError(f"direction must have shape (D,), got {tuple(direction.shape)}")
    length = float(direction.detach().double().norm())
    if not 0 < length < float("inf"):
        raise ValueError(f"direction must have a length above 0 and finite, got {length}")
    step = direction.detach() * (strength / length)

    def add(x: Tensor) -> Tensor:
        check_shape("direction", step, x.shape[-1:], "that of a row")
        return x + step.to(x)

    return patched(model, {tap: add})


class SteeringEffects(NamedTuple):
    """What a direction does at several strengths; all entries (S,).

    Attributes:
        strengths: the lengths of what was added.
        wanted: mean probability of the wanted tokens.
        others: mean KL divergence, in nats, of the probabilities among all other tokens from those
            of the model as it is: the side effect.
        loss: mean loss on the text, in nats a token.

    Explained in: chapters/10_interpretability_deeper, section "Steering".
    """

    strengths: Float[Tensor, " S"]
    wanted: Float[Tensor, " S"]
    others: Float[Tensor, " S"]
    loss: Float[Tensor, " S"]


def steering_effects(
    model: DecoderOnly,
    tokens: Int[Tensor, "B N"],
    tap: str,
    direction: Float[Tensor, " D"],
    strengths: Sequence[float],
    wanted: Bool[Tensor, " V"],
) -> SteeringEffects:
    """Measure what adding a direction does to wanted tokens, to the others, and to the loss.

    With p the model as it is, q the steered one and T the wanted tokens, the mean over all places
    of Σ_{v in T} q(v), and of Σ_{v not in T} p'(v) (ln p'(v) − ln q'(v)), where p' and q' are p and
    q divided by what they give to the tokens outside of T. So a direction that moves probability to
    T and keeps the proportions of all others has no side effect.

    Args:
        model: a decoder.
        tokens: a text, (B, N), without padding; all but the first of each row are predicted.
        tap: name of the tap, such as "stack.blocks.1.resid_post".
        direction: (D,).
        strengths: lengths of what is added, see :func:`steered`.
        wanted: which tokens are wanted, (V,); some, and not all.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a shape or a number that does not fit.

    Cost: one pass of the model for each strength, and one for the model as it is.

    Source: the comparison at equal length: [wu2025axbench]
    Explained in: chapters/10_interpretability_deeper, section "Steering".
    """
    check_decoder(model)
    check_ids("tokens", tokens, model.config.vocab_size)
    if tokens.shape[1] < 2:
        raise ValueError(f"tokens must have at least two in a row, got {tuple(tokens.shape)}")
    check_list("strengths", strengths)
    if not len(strengths):
        raise ValueError("strengths must hold at least one number, got none")
    for each in strengths:
        check_number("an entry of strengths", each)
    check_tensor("wanted", wanted)
    if wanted.dtype != torch.bool:
        raise TypeError(f"wanted must be boolean, got {wanted.dtype}")
    check_shape("wanted", wanted, (model.config.vocab_size,), "(V,)")
    if bool(wanted.all()) or not bool(wanted.any()):
        raise ValueError("wanted must name some tokens, and not all of them")
    found = torch.zeros(len(strengths), 3, dtype=torch.float64)
    with evaluating(model):
        for chunk in tokens.split(CHUNK):
            before = model(chunk[:, :-1])[0].float().log_softmax(-1)  # (B, N − 1, V)
            for i, strength in enumerate(strengths):
                with steered(model, tap, direction, float(strength)):
                    after = model(chunk[:, :-1])[0].float().log_softmax(-1)
                found[i] += _effects(before, after, chunk[:, 1:], wanted.to(before.device))
    found = (found / (tokens.shape[0] * (tokens.shape[1] - 1))).float()
    return SteeringEffects(torch.tensor(strengths, dtype=torch.float32), *found.unbind(-1))


def _effects(before, after, targets, wanted):
    """Return the sums over places of the probability, of the divergence and of the loss."""
    share = after[..., wanted].exp().sum()
    p, q = (each[..., ~wanted].log_softmax(-1) for each in (before, after))
    divergence = functional.kl_div(q, p, log_target=True, reduction="sum")
    loss = functional.nll_loss(after.flatten(0, 1), targets.flatten(), reduction="sum")
    return torch.stack([share, divergence, loss]).double().cpu()
