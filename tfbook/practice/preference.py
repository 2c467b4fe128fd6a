"""Which of two answers is better: a reward model that says so, and DPO, which does without one.

Both rest on Bradley and Terry: the chance that answer a is preferred to b is σ(r(a) − r(b)). A
reward model learns r. DPO puts r = β ln(π / π_ref), so that the comparisons train the policy.

Explained in: chapters/18_practice, section "Learning from comparisons".
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_callable,
    check_float,
    check_ids,
    check_module,
    check_number,
    check_same,
    check_scale,
    check_shape,
    check_tensor,
    check_token_mask,
)
from tfbook.models import DecoderOnly
from tfbook.training import IGNORE, Example

__all__ = [
    "Preference",
    "RewardModel",
    "bradley_terry_loss",
    "dpo_loss",
    "preference_loss",
    "reference_drift",
    "sequence_log_probs",
    "token_log_probs",
]

Policy = Callable[[Tensor], tuple[Tensor, object]]


class Preference(NamedTuple):
    """What DPO measures on pairs of answers.

    Attributes:
        loss: the mean, ().
        chosen: implicit reward β ln(π / π_ref) of each chosen answer, (B,).
        rejected: of each rejected one, (B,).

    Explained in: chapters/18_practice, section "Learning from comparisons".
    """

    loss: Float[Tensor, ""]
    chosen: Float[Tensor, " B"]
    rejected: Float[Tensor, " B"]


def token_log_probs(
    logits: Float[Tensor, "B N V"], targets: Int[Tensor, "B N"]
) -> Float[Tensor, "B N"]:
    """Return ln p of each target, and 0 where there is none.

    Args:
        logits: (B, N, V).
        targets: tokens (B, N), ``IGNORE`` where nothing counts.

    Returns:
        Nats, (B, N).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit.

    Explained in: chapters/18_practice, section "Learning from comparisons".
    """
    check_float("logits", logits)
    if logits.ndim != 3 or 0 in logits.shape:
        raise ValueError(f"logits must have shape (B, N, V), got {tuple(logits.shape)}")
    counted = check_targets(targets, logits.shape[:2], logits.shape[-1])
    known = targets.masked_fill(~counted, 0).long()
    found = logits.log_softmax(-1).gather(-1, known[..., None])[..., 0]  # (B, N)
    return found.masked_fill(~counted, 0.0)


def sequence_log_probs(
    logits: Float[Tensor, "B N V"], targets: Int[Tensor, "B N"]
) -> Float[Tensor, " B"]:
    """Return ln p of each whole answer, ln π(y | x) = Σ_t ln p(y_t | x, y_<t).

    Args:
        logits: (B, N, V).
        targets: tokens (B, N) of the answers, ``IGNORE`` for the question and for padding; see
            :func:`tfbook.practice.answer_batch`.

    Returns:
        Nats, (B,); a sum, for a long answer is less likely than a short one.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit.

    Example:
        >>> sequence_log_probs(torch.zeros(1, 3, 2), torch.tensor([[-100, 1, 0]])).exp()
        tensor([0.2500])

    Explained in: chapters/18_practice, section "Learning from comparisons".
    """
    return token_log_probs(logits, targets).sum(-1)


def dpo_loss(
    chosen: Float[Tensor, " B"],
    rejected: Float[Tensor, " B"],
    reference_chosen: Float[Tensor, " B"],
    reference_rejected: Float[Tensor, " B"],
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Preference:
    """Raise what was chosen above what was rejected, measured from where the policy began.

    ℓ = −ln σ(h), h = β [ln(π(y_w) / π_ref(y_w)) − ln(π(y_l) / π_ref(y_l))]. Its gradient is
    −β σ(−h) (∇ ln π(y_w) − ∇ ln π(y_l)): pairs that are told apart already hardly count. With
    smoothing ε a share ε of the comparisons is taken to be the wrong way round:
    ℓ = −(1 − ε) ln σ(h) − ε ln σ(−h).

    Args:
        chosen: ln π of the answers that were preferred, (B,).
        rejected: ln π of the others, (B,).
        reference_chosen: ln π_ref of the former, (B,); no gradient goes there.
        reference_rejected: ln π_ref of the latter, (B,).
        beta: β, how dear it is to leave the reference.
        label_smoothing: ε, below 1/2.

    Returns:
        The mean loss, in nats, and the implicit rewards, without a gradient.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that differ, or a number out of its range.

    Example:
        >>> same = torch.tensor([-3.0])
        >>> dpo_loss(same, same, same, same).loss
        tensor(0.6931)

    Source: [rafailov2023direct]
    Explained in: chapters/18_practice, section "Learning from comparisons".
    """
    named = {
        "chosen": chosen,
        "rejected": rejected,
        "reference_chosen": reference_chosen,
        "reference_rejected": reference_rejected,
    }
    _check_alike(named)
    check_scale("beta", beta)
    check_number("label_smoothing", label_smoothing, 0, below=0.5)
    better = beta * (chosen - reference_chosen.detach())  # (B,)
    worse = beta * (rejected - reference_rejected.detach())
    h = better - worse
    losses = -(1 - label_smoothing) * functional.logsigmoid(h)
    losses = losses - label_smoothing * functional.logsigmoid(-h)
    return Preference(losses.mean(), better.detach(), worse.detach())


def preference_loss(
    model: Policy, pair: tuple[Example, Example], *, reference: Policy, beta: float = 0.1
) -> tuple[Float[Tensor, ""], int]:
    """Return DPO's loss of a batch, for :func:`tfbook.training.fit`.

    Args:
        model: the policy that is trained, like :class:`tfbook.models.DecoderOnly`.
        pair: the chosen and the rejected answers to the same questions, each of
            :func:`tfbook.practice.answer_batch`.
        reference: the policy as it was; with adapters it may be the model without them.
        beta: see :func:`dpo_loss`.

    Returns:
        The sum over the pairs, and how many there are.

    Raises:
        TypeError: for a wrong type.
        ValueError: for shapes that do not fit.

    Source: [rafailov2023direct]
    Explained in: chapters/18_practice, section "Learning from comparisons".
    """
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and _are_examples(pair)):
        raise TypeError("pair must be two Examples, of chosen and of rejected answers")
    check_callable("model", model)
    check_callable("reference", reference)
    ours = [sequence_log_probs(model(each.inputs)[0], each.targets) for each in pair]
    with torch.no_grad():
        theirs = [sequence_log_probs(reference(each.inputs)[0], each.targets) for each in pair]
    n = len(ours[0])
    return dpo_loss(*ours, *theirs, beta=beta).loss * n, n


def reference_drift(
    logits: Float[Tensor, "B N V"],
    reference: Float[Tensor, "B N V"],
    mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, ""]:
    """Return how far a policy has gone: the mean over tokens of KL(π ‖ π_ref), in nats.

    It is exact, a sum over the whole vocabulary; :func:`tfbook.practice.k3` estimates it of the
    sampled token alone. Where the texts are the policy's own, its mean over tokens times their
    number is the divergence of whole answers.

    Args:
        logits: of the policy, (B, N, V).
        reference: of the reference, (B, N, V).
        mask: True where a token counts, (B, N); all when omitted.

    Returns:
        One number, at least 0.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that do not fit, or a mask that counts nothing.

    Source: [ouyang2022training]
    Explained in: chapters/18_practice, section "Learning from comparisons".
    """
    check_float("logits", logits, min_dims=3)
    check_float("reference", reference)
    check_shape("reference", reference, logits.shape, "that of logits")
    check_same(logits=logits, reference=reference)
    log_p, log_q = logits.log_softmax(-1), reference.log_softmax(-1)
    each = (log_p.exp() * (log_p - log_q)).sum(-1)  # (B, N)
    if mask is None:
        return each.mean()
    check_token_mask(mask, each.shape)
    if not mask.any():
        raise ValueError("mask must count at least one token, got none")
    return each[mask].mean()


class RewardModel(nn.Module):
    """A decoder whose last row becomes a number: how good the text that ends there is.

    r(x, y) = w · h_last. It is trained on comparisons alone, so only differences mean anything.

    Args:
        model: a decoder; its blocks are used as they are, and its head is not.

    Raises:
        TypeError: if model is no :class:`tfbook.models.DecoderOnly`.

    Source: [ouyang2022training]
    Explained in: chapters/18_practice, section "Learning from comparisons".
    """

    def __init__(self, model: nn.Module):
        """Keep the decoder, and begin with a reward of 0 for everything."""
        super().__init__()
        check_module("model", model)
        if not isinstance(model, DecoderOnly):
            raise TypeError(f"model must be a DecoderOnly, got a {type(model).__name__}")
        self.model, self.config = model, model.config
        self.reward = nn.Linear(model.config.d_model, 1, bias=False)
        nn.init.zeros_(self.reward.weight)

    def forward(
        self, tokens: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"] | None = None
    ) -> Float[Tensor, " B"]:
        """Return the reward of each text.

        Args:
            tokens: (B, N).
            mask: True = token, with padding on the right; all when omitted.

        Returns:
            (B,).

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, or padding that is not on the right.
        """
        check_ids("tokens", tokens)
        last = torch.full((len(tokens),), tokens.shape[1] - 1, device=tokens.device)  # (B,)
        if mask is not None:
            check_token_mask(mask, tokens.shape)
            if not (mask[:, 0].all() and (mask[:, :-1] | ~mask[:, 1:]).all()):
                raise ValueError("mask must have its tokens first and its padding on the right")
            last = mask.sum(-1) - 1
        hidden = self.model.stack.finish(self.model.hidden_states(tokens)[-1])  # (B, N, d_model)
        rows = hidden[torch.arange(len(tokens), device=tokens.device), last]  # (B, d_model)
        return self.reward(rows)[:, 0]


def bradley_terry_loss(
    chosen: Float[Tensor, " B"], rejected: Float[Tensor, " B"], *, margin: float = 0.0
) -> Float[Tensor, ""]:
    """Return the mean of −ln σ(r(chosen) − r(rejected) − margin), in nats.

    Args:
        chosen: rewards of what was preferred, (B,).
        rejected: of the others, (B,).
        margin: by how much it has to be ahead.

    Returns:
        ln 2 = 0.693 where both are equal and the margin is 0.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that differ, or a margin that is not finite.

    Source: [bradley1952rank], [ouyang2022training]
    Explained in: chapters/18_practice, section "Learning from comparisons".
    """
    _check_alike({"chosen": chosen, "rejected": rejected})
    check_number("margin", margin, 0)
    return -functional.logsigmoid(chosen - rejected - margin).mean()


def check_targets(targets: object, shape: tuple[int, ...], vocab_size: int) -> Bool[Tensor, "B N"]:
    """Raise unless these are targets of logits; return where something is asked."""
    check_tensor("targets", targets)
    if targets.dtype == torch.bool or targets.is_floating_point() or targets.is_complex():
        raise TypeError(f"targets must be integers, got {targets.dtype}")
    check_shape("targets", targets, shape, "(B, N)")
    counted = targets != IGNORE
    if (wrong := targets[counted & ((targets < 0) | (targets >= vocab_size))]).numel():
        raise ValueError(
            f"targets must be from 0 to {vocab_size - 1} or {IGNORE}, got {wrong[0].item()}"
        )
    return counted


def _are_examples(pair) -> bool:
    return all(isinstance(each, Example) for each in pair)


def _check_alike(named: dict[str, object]) -> None:
    """Raise unless all are floating-point numbers of one batch."""
    first = next(iter(named))
    for name, value in named.items():
        check_float(name, value)
        if value.ndim != 1 or not len(value):
            raise ValueError(f"{name} must have shape (B,), got {tuple(value.shape)}")
        check_shape(name, value, named[first].shape, f"that of {first}")
    check_same(**named)
