"""What a model is trained to make small: cross-entropy, contrast, distance from a teacher.

Losses take logits (…, V) and targets (…); a target of :data:`IGNORE` counts for nothing.
:func:`causal_loss`, :func:`masked_loss` and :func:`translation_loss` join a model and a batch, and
return the sum of the losses and the number of targets, as :func:`tfbook.training.fit` wants them:
batches with unequal numbers of tokens are added up before the division.

Explained in: chapters/11_training, section "What is minimised".
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from tfbook._checks import (
    check_bool,
    check_callable,
    check_float,
    check_ids,
    check_number,
    check_same,
    check_scale,
    check_shape,
    check_tensor,
    check_token_mask,
)

__all__ = [
    "IGNORE",
    "Example",
    "causal_loss",
    "cross_entropy",
    "distillation",
    "info_nce",
    "masked_loss",
    "next_tokens",
    "smooth_targets",
    "translation_loss",
]

# The target of a place where nothing is to be predicted; PyTorch's own choice.
IGNORE = -100
REDUCTIONS = ("mean", "sum", "none", "sequences")


class Example(NamedTuple):
    """What a model reads and what it is to say.

    Attributes:
        inputs: tokens (B, N).
        targets: tokens (B, N), IGNORE where nothing is asked.

    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """

    inputs: Int[Tensor, "B N"]
    targets: Int[Tensor, "B N"]


def cross_entropy(
    logits: Float[Tensor, "*B V"],
    targets: Int[Tensor, "*B"],
    *,
    label_smoothing: float = 0.0,
    ignore: int = IGNORE,
    reduction: str = "mean",
) -> Float[Tensor, "..."]:
    """Return the mean of −Σ_c q_c log p_c over the targets: p the softmax, q where p should go.

    q is 1 at the target, or with smoothing ε (1 − ε) [c = target] + ε / V, see
    :func:`smooth_targets`. "mean" divides by the number of targets that are not ignored: a long
    sequence weighs more than a short one. "sequences" takes the mean of each sequence first.

    Args:
        logits: (..., V).
        targets: class or token numbers (...), or ``ignore``.
        label_smoothing: ε, 0 … 1.
        ignore: marks targets that do not count.
        reduction: "mean", "sum", "sequences", or "none" for one number each, 0 where ignored.

    Returns:
        One number, or (...) for "none". Without any target 0, where PyTorch has NaN.

    Raises:
        TypeError: if logits are not floating point or targets no integers.
        ValueError: if the shapes do not fit, a target is out of range, or a choice is unknown.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0, -1.0, 0.5]])
        >>> cross_entropy(logits, torch.tensor([0]), label_smoothing=0.1)
        tensor(0.5048)

    Cost: no distribution q is made, only p, (..., V).

    Source: smoothing: [szegedy2016rethinking]
    Explained in: chapters/11_training, section "What is minimised".
    """
    _check_targets(logits, targets, ignore)
    check_number("label_smoothing", label_smoothing, 0, 1)
    check_number("ignore", ignore, whole=True)
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    summed = reduction in ("mean", "sum")
    losses = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        targets.reshape(-1).long(),
        ignore_index=ignore,
        label_smoothing=label_smoothing,
        reduction="sum" if summed else "none",
    )
    if reduction == "sum":
        return losses
    if reduction == "mean":
        return losses / (targets != ignore).sum().clamp(min=1)
    losses = losses.reshape(targets.shape)
    if reduction == "none":
        return losses
    counts = (targets != ignore).sum(-1)  # (..., ) of each sequence
    means = losses.sum(-1) / counts.clamp(min=1)
    return means.sum() / (counts > 0).sum().clamp(min=1)


def smooth_targets(
    targets: Int[Tensor, "*B"], n_classes: int, label_smoothing: float
) -> Float[Tensor, "*B V"]:
    """Return the distributions q_c = (1 − ε) [c = target] + ε / V that smoothing aims at.

    A share ε is spread over all V classes, the target among them: it keeps 1 − ε + ε / V.

    Args:
        targets: (...), from 0 to V − 1.
        n_classes: V.
        label_smoothing: ε, 0 … 1.

    Returns:
        (..., V), in the default floating-point dtype; rows sum to 1.

    Raises:
        ValueError: for one out of its range.

    Example:
        >>> smooth_targets(torch.tensor([2]), 4, 0.1)
        tensor([[0.0250, 0.0250, 0.9250, 0.0250]])

    Source: [szegedy2016rethinking]
    Explained in: chapters/11_training_deeper, section "Label smoothing".
    """
    check_number("n_classes", n_classes, 1, whole=True)
    check_number("label_smoothing", label_smoothing, 0, 1)
    _check_range("targets", targets, n_classes)
    one_hot = functional.one_hot(targets.long(), n_classes).to(torch.get_default_dtype())
    return (1 - label_smoothing) * one_hot + label_smoothing / n_classes


def info_nce(
    a: Float[Tensor, "B D"],
    b: Float[Tensor, "B D"],
    *,
    temperature: float = 0.07,
    symmetric: bool = True,
) -> Float[Tensor, ""]:
    """Find the partner of each row among all rows: cross-entropy of similarities over τ.

    −mean_i log softmax_j(cos(a_i, b_j) / τ)_i. Row i of b is the partner of row i of a, the other
    rows are what it is to be told from. Guessing costs log B, and log B minus the loss is, in the
    mean, at most the mutual information of partners.

    Args:
        a: (B, D).
        b: (B, D).
        temperature: τ.
        symmetric: whether to take the mean with the same loss from b to a.

    Returns:
        One number, in nats.

    Raises:
        TypeError: if a or b are not floating point, or of different dtypes.
        ValueError: if the shapes differ, or the temperature is not above 0.

    Source: [oord2018representation], both ways: [radford2021learning]
    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    for name, value in (("a", a), ("b", b)):
        check_float(name, value)
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(f"a and b must be (B, D), got {tuple(a.shape)} and {tuple(b.shape)}")
    check_same(a=a, b=b)
    check_scale("temperature", temperature)
    check_bool("symmetric", symmetric)
    scores = functional.normalize(a, dim=-1) @ functional.normalize(b, dim=-1).mT / temperature
    partners = torch.arange(len(a), device=a.device)
    loss = functional.cross_entropy(scores, partners)  # scores (B, B)
    if symmetric:
        loss = (loss + functional.cross_entropy(scores.mT, partners)) / 2
    return loss


def distillation(
    student: Float[Tensor, "*B V"],
    teacher: Float[Tensor, "*B V"],
    *,
    temperature: float = 2.0,
    mask: Bool[Tensor, "*B"] | None = None,
) -> Float[Tensor, ""]:
    """Bring a student's distribution near a teacher's: T² · mean KL(p_teacher ‖ p_student).

    Both are softmaxes of logits / T: above 1 the unlikely classes of the teacher count for more.
    The gradient of the KL alone shrinks like 1 / T², which the factor undoes, so that a sum with
    a loss on true labels keeps its balance. No gradient goes to the teacher. A class that the
    teacher cuts (a logit of −∞, as :func:`tfbook.generation.top_k` gives) adds nothing, 0 ln 0 = 0;
    one that only the student cuts makes the loss ∞.

    Args:
        student: logits (..., V).
        teacher: logits (..., V).
        temperature: T.
        mask: True where a place counts, (...); all when omitted.

    Returns:
        One number, in nats; 0 without any place.

    Raises:
        TypeError: for a wrong type or different dtypes.
        ValueError: if the shapes differ, or the temperature is not above 0.

    Source: [hinton2015distilling]
    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    check_float("student", student, min_dims=1)
    check_float("teacher", teacher)
    check_shape("teacher", teacher, student.shape, "the student's")
    check_same(student=student, teacher=teacher)
    check_scale("temperature", temperature)
    log_p = (teacher.detach() / temperature).log_softmax(-1)  # (..., V)
    log_q = (student / temperature).log_softmax(-1)
    cut = log_p == -math.inf  # 0 · −∞ would be NaN, in the gradient too
    log_p, log_q = log_p.masked_fill(cut, 0), log_q.masked_fill(cut, 0)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
    if mask is None:
        return temperature**2 * divergence.mean()
    check_token_mask(mask, divergence.shape, "that of the tokens")
    return temperature**2 * (divergence * mask).sum() / mask.sum().clamp(min=1)


def next_tokens(tokens: Int[Tensor, "B N"], mask: Bool[Tensor, "B N"] | None = None) -> Example:
    """Let each place predict the token after it: inputs tokens[:, :-1], targets tokens[:, 1:].

    Row t of the logits has read tokens 0 … t, so it is asked for token t + 1, never for t.

    Args:
        tokens: (B, N), N ≥ 2.
        mask: True = token; a target outside of it, or after a place outside of it, is IGNORE.

    Returns:
        Inputs and targets, (B, N − 1).

    Raises:
        TypeError: if tokens are no integers or the mask is not boolean.
        ValueError: if the shapes do not fit.

    Example:
        >>> next_tokens(torch.tensor([[5, 6, 7]]))
        Example(inputs=tensor([[5, 6]]), targets=tensor([[6, 7]]))

    Source: [radford2018improving]
    Explained in: chapters/11_training, section "All positions in one pass".
    """
    check_ids("tokens", tokens)
    if tokens.shape[1] < 2:
        raise ValueError(f"tokens must have at least 2 columns, got {tuple(tokens.shape)}")
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if mask is not None:
        check_token_mask(mask, tokens.shape, "that of the tokens")
        targets = targets.masked_fill(~(mask[:, 1:] & mask[:, :-1]), IGNORE)
    return Example(inputs, targets)


def causal_loss(
    model: Callable[..., tuple[Tensor, object]],
    tokens: Int[Tensor, "B N"],
    *,
    mask: Bool[Tensor, "B N"] | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], int]:
    """Let a decoder predict each token from those before it; see :func:`next_tokens`.

    Args:
        model: like :class:`tfbook.models.DecoderOnly`.
        tokens: (B, N): one more than the model reads.
        mask: True = token.
        label_smoothing: ε.

    Returns:
        The sum of the losses in nats, and the number of targets.

    Raises:
        ValueError: for shapes that do not fit.

    Source: [radford2018improving]
    Explained in: chapters/11_training, section "All positions in one pass".
    """
    check_callable("model", model)
    inputs, targets = next_tokens(tokens, mask)
    logits, _ = model(inputs, mask=None if mask is None else mask[:, :-1])  # (B, N − 1, V)
    return _summed(logits, targets, label_smoothing)


def masked_loss(
    model: Callable[..., Tensor],
    task: Example,
    *,
    mask: Bool[Tensor, "B N"] | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], int]:
    """Let an encoder predict the chosen tokens; see :func:`tfbook.training.mask_tokens`.

    Args:
        model: like :class:`tfbook.models.EncoderOnly` with ``head="mlm"``.
        task: inputs and targets.
        mask: True = token, False = padding.
        label_smoothing: ε.

    Returns:
        The sum of the losses in nats, and the number of targets.

    Raises:
        ValueError: for shapes that do not fit.

    Source: [devlin2019bert]
    Explained in: chapters/11_training_deeper, section "Which question to train on".
    """
    check_callable("model", model)
    inputs, targets = _two("task", task, "inputs and targets")
    check_ids("inputs", inputs)
    if mask is not None:
        check_token_mask(mask, inputs.shape)
    return _summed(model(inputs, mask=mask), targets, label_smoothing)


def translation_loss(
    model: Callable[..., Tensor],
    pair: tuple[Int[Tensor, "B M"], Int[Tensor, "B N"]],
    *,
    pad_id: int,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], int]:
    """Let a decoder predict each token of the target from those before it and the source.

    This is teacher forcing: the decoder reads the true target, not what it would have said, and
    so all places are predicted in one pass. It reads target[:, :-1] and is to say target[:, 1:].

    Args:
        model: like :class:`tfbook.models.Transformer`.
        pair: source (B, M) and target (B, N); each target has a first token that is given and,
            if the model is to learn where to stop, a last one that says so.
        pad_id: fills up the shorter ones, on the right.
        label_smoothing: ε.

    Returns:
        The sum of the losses in nats, and the number of targets.

    Raises:
        ValueError: for shapes that do not fit.

    Source: [vaswani2017attention], teacher forcing: [williams1989learning]
    Explained in: chapters/11_training, section "All positions in one pass".
    """
    check_callable("model", model)
    source, target = _two("pair", pair, "source and target")
    check_ids("source", source)
    check_ids("target", target)
    check_number("pad_id", pad_id, 0, whole=True)
    source_mask, target_mask = source != pad_id, target != pad_id  # (B, M) and (B, N)
    inputs, targets = next_tokens(target, target_mask)
    logits = model(source, inputs, source_mask=source_mask, target_mask=target_mask[:, :-1])
    return _summed(logits, targets, label_smoothing)


def _two(name: str, value: object, wanted: str) -> tuple[object, object]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise TypeError(f"{name} must be a pair, {wanted}, got {type(value).__name__}")
    return tuple(value)


def _summed(logits: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, int]:
    loss = cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction="sum")
    return loss, int((targets != IGNORE).sum())


def _check_targets(logits: object, targets: object, ignore: int) -> None:
    check_float("logits", logits, min_dims=1)
    check_tensor("targets", targets)
    check_shape("targets", targets, logits.shape[:-1], "that of the logits without V")
    _check_range("targets", targets, logits.shape[-1], ignore)


def _check_range(name: str, value: object, below: int, ignore: int | None = None) -> None:
    """Raise unless these are integers below ``below``, or ``ignore``; looks on CPUs only."""
    check_tensor(name, value)
    if value.dtype == torch.bool or value.is_floating_point() or value.is_complex():
        raise TypeError(f"{name} must be integers, got {value.dtype}")
    if value.device.type != "cpu" or torch.compiler.is_compiling() or not value.numel():
        return
    wrong = (value < 0) | (value >= below)
    if ignore is not None:
        wrong &= value != ignore
    if wrong.any():
        also = "" if ignore is None else f", or {ignore} to be ignored"
        raise ValueError(
            f"{name} must be from 0 to {below - 1}{also}, got {value[wrong][0].item()}"
        )
