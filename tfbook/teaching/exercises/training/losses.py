"""The exercises of chapter 11 on what is made small: a mean over tokens, and smoothed labels."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_gradients, numbers

# token-mean -------------------------------------------------------------------------------------


def token_mean(losses: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average the losses of a batch over its tokens.

    Every token counts the same, in whichever sequence it stands. Padding does not count, and may
    hold anything, NaN and infinity included. The mean of a batch without a token is 0.

    losses: (B, N), one at each place. mask: (B, N), boolean, True at tokens.
    Returns: the mean, a tensor of shape ().
    """
    ...


def _token_mean(losses: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = [loss for loss, real in zip(losses.flatten(), mask.flatten(), strict=True) if real]
    return sum(kept, losses.new_zeros(())) / max(len(kept), 1)


def _mean_values(mean: Any) -> None:
    """The sum over the tokens is divided by how many tokens there are."""
    losses = torch.tensor([[2.0, 3.0, 1.5, 2.5], [6.0, 0.5, 0.7, 0.9]])
    mask = torch.tensor([[True, True, True, True], [True, False, False, False]])
    kept = losses.where(mask, 0.0)
    right = _token_mean(losses, mask)
    rows = kept.sum(1) / mask.sum(1)
    expect(
        mean(losses, mask),
        right,
        "Add up the losses at the five tokens and divide by five.",
        mistakes={
            "The losses at padding were averaged too. Only tokens count: use `mask`.":
                losses.mean(),
            "The losses at padding are left out of the sum, but counted: divide by the number of "
            "tokens, not of places.": kept.mean(),
            "The mean of each sequence was taken first, so that a token of a short sequence "
            "weighs more than one of a long sequence. Divide once, by all tokens.": rows.mean(),
            "This is the sum. A batch with more tokens would have a larger loss: divide by their "
            "number.": kept.sum(),
            "The sum was divided by the number of sequences. Divide by that of the tokens.":
                (kept.sum() / 2, kept.sum() / 4),
            "The mask is inverted: True marks a token.":
                (losses.where(~mask, 0.0).sum() / 3, losses.where(~mask, 0.0).sum() / 5),
            "These are the means of the sequences. One number is wanted, for all tokens.": rows,
        },
    )


def _mean_padding(mean: Any) -> None:
    """What stands at padding does not matter, not even NaN."""
    losses = torch.tensor([[1.5, math.nan, math.nan], [0.5, 2.5, math.inf]]).double()
    mask = torch.tensor([[True, False, False], [True, True, False]])
    expect(
        mean(losses, mask),
        _token_mean(losses, mask),
        "NaN · 0 is NaN, and so is ∞ · 0: a product with the mask does not take them away. Choose "
        "the tokens with `losses[mask]` or `torch.where`.",
    )


def _mean_zero(mean: Any) -> None:
    """A token with the loss 0 is a token, and a batch without tokens has the mean 0."""
    losses = torch.tensor([[0.0, 3.0, 0.0], [0.0, 1.0, 5.0]]).double()
    mask = torch.tensor([[True, True, False], [True, True, False]])
    expect(
        mean(losses, mask),
        _token_mean(losses, mask),
        "Two of the four tokens have the loss 0, which happens when the model is sure. They count.",
    )
    expect(
        mean(losses, torch.zeros_like(mask)),
        losses.new_zeros(()),
        "Without a token the mean is 0: divide by at least 1, with `clamp` or `max`.",
    )


def _mean_gradients(mean: Any) -> None:
    """Every token has the same share of the gradient, and padding has none."""
    losses = numbers(3, 5, seed=501)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]]).bool()
    expect(mean(losses, mask), _token_mean(losses, mask), "With 3 sequences the mean differs.")
    expect_gradients(mean, losses=losses, mask=mask)


TOKEN_MEAN = Exercise(
    name="token-mean",
    title="The mean over tokens",
    level=1,
    section='chapters/11_training_deeper, section "A sum and a count"',
    stub=token_mean,
    properties=(_mean_values, _mean_padding, _mean_zero, _mean_gradients),
    hints=(
        "How many numbers are added up, and by how many is the sum divided?",
        "A boolean mask can choose: `losses[mask]` holds the losses at the tokens, in one row.",
        "`losses[mask].sum() / mask.sum().clamp(min=1)`.",
    ),
)

# smoothed-loss ----------------------------------------------------------------------------------


def smoothed_loss(logits: torch.Tensor, targets: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Compute the cross-entropy with smoothed labels, −Σ_c q_c log p_c, as a mean over the rows.

    p is the softmax of a row. q is what p should become: of the 1 that belongs to the target, a
    share ε is spread evenly over all V classes, the target among them.

    logits: (T, V). targets: (T,), int64. epsilon: ε, from 0 to 1.
    Returns: the loss, a tensor of shape ().
    """
    ...


def _smooth(
    logits: torch.Tensor, targets: torch.Tensor, epsilon: float,
    *, hit: float | None = None, miss: float | None = None,
) -> torch.Tensor:
    """Compute the loss with the labels `hit` at the target and `miss` elsewhere."""
    classes = logits.shape[1]
    hit = 1 - epsilon + epsilon / classes if hit is None else hit
    miss = epsilon / classes if miss is None else miss
    labels = torch.full_like(logits, miss)
    labels[torch.arange(len(targets)), targets] = hit
    return -(labels * logits.log_softmax(-1)).sum() / len(targets)


def _smooth_values(loss: Any) -> None:
    """A share ε of each label goes to all classes alike."""
    logits = torch.tensor([[2.0, 0.0, -1.0, 0.5], [0.3, 1.1, 0.8, -0.4], [0.0, 0.9, -2.0, 1.0]])
    targets, epsilon = torch.tensor([0, 3, 1]), 0.2
    logs = logits.log_softmax(-1)
    right = _smooth(logits, targets, epsilon)
    sure = torch.nn.functional.cross_entropy(logits, targets)
    spread = -logs.mean()  # the cross-entropy of labels that are the same for all classes
    entropy = -(0.85 * math.log(0.85) + 3 * 0.05 * math.log(0.05))
    expect(
        loss(logits, targets, epsilon),
        right,
        "With ε = 0.2 and 4 classes, q is 0.85 at the target and 0.05 at each other class.",
        mistakes={
            "The labels were not smoothed.": sure,
            "ε was shared out among the other classes only. It goes to all V, the target too.":
                _smooth(logits, targets, epsilon, hit=0.8, miss=0.2 / 3),
            "The labels do not sum to 1: the target keeps 1 - ε and also gets its own ε / V.":
                _smooth(logits, targets, epsilon, hit=0.8, miss=0.05),
            "The labels sum to more than 1: what goes to all classes is taken from the target, "
            "which keeps 1 - ε of its 1.":
                (_smooth(logits, targets, epsilon, hit=1.05), _smooth(logits, targets, epsilon,
                                                                       hit=1.0)),
            "ε was given to every class whole. Each gets ε / V.":
                (_smooth(logits, targets, epsilon, hit=1.0, miss=0.2),
                 _smooth(logits, targets, epsilon, hit=0.8, miss=0.2)),
            "The targets play no part: (1 - ε) was multiplied with the logarithms of all classes. "
            "It belongs to the target's alone.":
                (-(0.8 * logs.sum() + 0.05 * logs.sum()) / 3, spread,
                 (-0.8 * logs.sum() + 0.05 * logs.sum()) / 3),
            "The minus stands before the first term only. Both terms need it: put them into "
            "brackets.": 0.8 * sure - 0.2 * spread,
            "The sign is wrong: logarithms of probabilities are negative, the loss is positive.":
                -right,
            "ε and 1 - ε are exchanged.": 0.2 * sure + 0.8 * spread,
            "The loss was added up over the rows. Take their mean.": right * 3,
            "The loss was averaged over the classes, too. Sum over them.": right / 4,
            "The entropy of the labels was taken off: this is the divergence. The cross-entropy "
            "is wanted.": right - entropy,
            "The probabilities were smoothed. Smooth the labels.":
                -((0.8 * logs.exp() + 0.05).log())[torch.arange(3), targets].mean(),
            "These are the losses of the rows. Take their mean.":
                torch.stack([_smooth(logits[i : i + 1], targets[i : i + 1], epsilon)
                             for i in range(3)]),
        },
    )


def _smooth_ends(loss: Any) -> None:
    """With ε = 0 this is the cross-entropy, and with ε = 1 the targets do not matter."""
    logits, targets = numbers(5, 3, seed=503), torch.tensor([0, 2, 2, 1, 0])
    for epsilon in (0.0, 1.0):
        expect(
            loss(logits, targets, epsilon), _smooth(logits, targets, epsilon),
            f"With ε = {epsilon:g} the loss differs.",
        )


def _smooth_large(loss: Any) -> None:
    """A class whose probability rounds to 0 gives a large loss, not an infinite one."""
    logits, targets = torch.tensor([[400.0, 0.0, -500.0]]), torch.tensor([0])
    got = loss(logits, targets, 0.3)
    wanted = _smooth(logits, targets, 0.3)
    if isinstance(got, torch.Tensor) and not got.isfinite().all():
        raise Wrong(
            "The softmax of this row is 1, 0 and 0 in float32, and the logarithm of 0 is -∞. Use "
            "`log_softmax`, which does not go through the probabilities.", got=got, wanted=wanted,
        )
    expect(got, wanted, "With large logits the loss differs.")


def _smooth_sizes(loss: Any) -> None:
    """Any number of rows and classes, and gradients flow."""
    for t, v, epsilon in ((1, 2, 0.1), (7, 5, 0.4), (3, 11, 0.05)):
        logits = numbers(t, v, seed=505 + t)
        targets = torch.arange(t) * 3 % v
        expect(
            loss(logits, targets, epsilon), _smooth(logits, targets, epsilon),
            f"With {t} rows, {v} classes and ε = {epsilon} the loss differs.",
        )
    expect_gradients(lambda x: loss(x, targets, 0.2), logits=logits)


SMOOTHED_LOSS = Exercise(
    name="smoothed-loss",
    title="Cross-entropy with smoothed labels",
    level=2,
    section='chapters/11_training_deeper, section "Label smoothing"',
    stub=smoothed_loss,
    properties=(_smooth_values, _smooth_ends, _smooth_large, _smooth_sizes),
    hints=(
        "Write q for ε = 0.2 and V = 4 on paper. Does it sum to 1?",
        "q is a mixture: (1 - ε) times the label without smoothing, plus ε times the same for all "
        "classes. So the loss is a mixture of two losses.",
        "`logs = logits.log_softmax(-1)`; `hit = logs.gather(1, targets[:, None]).mean()`; the "
        "loss is `-(1 - epsilon) * hit - epsilon * logs.mean()`.",
    ),
)

EXERCISES = (TOKEN_MEAN, SMOOTHED_LOSS)
