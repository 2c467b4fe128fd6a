"""Faults that stand outside of the model: in targets, padding, losses, rates and test sets.

Explained in: chapters/18_practice, section "A checklist that finds the fault".
"""

import math
import warnings
from collections.abc import Callable, Sequence
from statistics import median

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tfbook._checks import (
    check_callable,
    check_choice,
    check_number,
    check_shape,
    check_tensor,
    check_token_mask,
)
from tfbook.practice.evaluation import find_copies
from tfbook.practice.findings import Finding, check_tokens
from tfbook.training import IGNORE, History

__all__ = ["rate_spikes", "seen_tests", "silent_broadcasts", "wrong_padding", "wrong_shift"]


def wrong_shift(inputs: Int[Tensor, "B N"], targets: Int[Tensor, "B N"]) -> list[Finding]:
    """See which input each target is: it has to be the next one, shift 1.

    With shift 0 the model is asked for what it reads, and the loss falls to 0 at once; with 2 it is
    asked for the token after the next, and learns slowly; with −1 for the one before.

    Args:
        inputs: what the model reads, (B, N), at least 4 columns.
        targets: what it is asked for, (B, N), ``IGNORE`` where nothing.

    Returns:
        One finding, if the targets are not the inputs moved by one.

    Raises:
        TypeError: for a wrong type.
        ValueError: for shapes that do not fit.

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_tokens(inputs, 4)
    check_tensor("targets", targets)
    check_shape("targets", targets, inputs.shape, "that of inputs")
    n, shares = inputs.shape[1], {}
    for shift in (-1, 0, 1, 2):
        rows = slice(max(0, -shift), n - max(0, shift))  # of the targets that have such an input
        moved = inputs[:, rows.start + shift : rows.stop + shift]
        counted = targets[:, rows] != IGNORE
        same = (targets[:, rows] == moved) & counted
        shares[shift] = (same.sum() / counted.sum().clamp(min=1)).item() if counted.any() else 1.0
    best = max(shares, key=lambda shift: (shares[shift], shift == 1))
    if shares[1] == 1.0 or best == 1 and shares[1] > 0.99:
        return []
    what = "targets are the inputs themselves" if best == 0 else f"targets are moved by {best}"
    if shares[best] < 0.99:
        what = "targets are not the inputs moved by any shift"
    return [Finding(
        what, f"shift {best}", shares[1], "every target is the next input (a share of 1)",
        "inputs = tokens[:, :-1], targets = tokens[:, 1:], and shift once: not in the data and in "
        "the loss as well",
    )]  # fmt: skip


def wrong_padding(mask: Bool[Tensor, "B N"], *, wanted: str = "left") -> list[Finding]:
    """See on which side sequences were filled up: on the left where they are to be continued.

    Generation goes on behind the last column, so padding there would stand in the text. For
    training and for encoders it stands on the right as a rule.

    Args:
        mask: True = token, (B, N).
        wanted: "left" or "right".

    Returns:
        One finding, if a row has padding on the other side or between tokens, or has no token.

    Raises:
        TypeError: for a wrong type.
        ValueError: for another shape or side.

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_tensor("mask", mask)
    if mask.ndim != 2 or 0 in mask.shape:
        raise ValueError(f"mask must have shape (B, N), got {tuple(mask.shape)}")
    check_token_mask(mask, mask.shape)
    check_choice("wanted", wanted, ("left", "right"))
    end = mask[:, -1] if wanted == "left" else mask[:, 0]
    turned = mask if wanted == "left" else mask.flip(1)
    whole = (turned[:, 1:] | ~turned[:, :-1]).all(1) & end  # tokens without a gap up to that end
    wrong = (~whole).nonzero().flatten().tolist()
    if not wrong:
        return []
    return [Finding(
        f"padding is not on the {wanted}", f"row {wrong[0]}", len(wrong) / len(mask),
        "a share of 0 of the rows",
        f"fill up on the {wanted} (found.encode(texts, side={wanted!r})), and hand over the mask",
    )]  # fmt: skip


def rate_spikes(history: History, *, window: int = 10, factor: float = 3.0) -> list[Finding]:
    """Find steps at which the learning rate jumps, and at which the loss does.

    A rate jumps where it is ``factor`` times the median of the ``window`` steps before it; a loss
    where it stands above their median by ``factor`` times their range, and by a tenth at least.

    Args:
        history: of :func:`tfbook.training.fit`.
        window: steps that are looked back.
        factor: how large a jump counts.

    Returns:
        A finding for the first jump of a row, with the rate at that step.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of its range.

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    if not isinstance(history, History):
        raise TypeError(f"history must be a History, got {type(history).__name__}")
    check_number("window", window, 2, 10**6, whole=True)
    check_number("factor", factor, above=1)
    rates, losses, found = history.learning_rates, history.losses, []
    spikes = {"rate": -2, "loss": -2}
    for step in range(window, len(losses)):
        rate, before = rates[step], median(rates[step - window : step])
        last = losses[step - window : step]
        middle, spread = median(last), max(last) - min(last)
        jumps = {
            "rate": rate > factor * before > 0,
            "loss": losses[step] > middle + max(factor * spread, 0.1 * abs(middle)),
        }
        for name, jumped in jumps.items():
            if not jumped:
                continue
            if spikes[name] < step - window:  # the first of a row
                measured, usual = (rate, before) if name == "rate" else (losses[step], middle)
                found.append(Finding(
                    f"the {'learning rate' if name == 'rate' else 'loss'} jumps",
                    f"step {step}, at a rate of {rate:.3g}", measured, f"about {usual:.4g}",
                    "look at the schedule" if name == "rate" else
                    "lower the rate, lengthen the warm-up, clip the gradient; look at that batch",
                ))  # fmt: skip
            spikes[name] = step
    return found


def silent_broadcasts(
    loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> list[Finding]:
    """Watch a loss for two tensors that become a larger one than both: (B, 1) and (B,) give (B, B).

    Args:
        loss: of outputs and targets.
        outputs: what a model gave.
        targets: what it was to give.

    Returns:
        A finding for the first such operation.

    Raises:
        TypeError: for a wrong type.
        ValueError: if the loss cannot take them at all.

    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    check_callable("loss", loss)
    check_tensor("outputs", outputs)
    check_tensor("targets", targets)
    watch = _Broadcasts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with watch:
                loss(outputs, targets)
        except RuntimeError as error:
            shapes = f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
            raise ValueError(f"loss cannot take outputs and targets {shapes}: {error}") from None
    return watch.found[:1]


ELEMENTWISE = frozenset(
    "add sub rsub mul div maximum minimum __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ "
    "__truediv__ mse_loss l1_loss smooth_l1_loss huber_loss".split()
)


class _Broadcasts(TorchFunctionMode):
    """Looks at every elementwise operation of two tensors."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        pair = args[:2]
        if name in ELEMENTWISE and len(pair) == 2 and all(isinstance(x, Tensor) for x in pair):
            shapes = [tuple(x.shape) for x in pair]
            try:
                size = math.prod(torch.broadcast_shapes(*shapes))
            except RuntimeError:  # the operation itself will say so
                size = 0
            if size > max(x.numel() for x in pair):
                self.found.append(Finding(
                    "two tensors are broadcast to a larger one", f"{name.strip('_')} of "
                    f"{shapes[0]} and {shapes[1]}", float(size),
                    f"at most {max(x.numel() for x in pair)} numbers",
                    "give both one shape: squeeze the last dimension of the outputs",
                ))  # fmt: skip
        return function(*args, **(kwargs or {}))


def seen_tests(test: Sequence[str], train: Sequence[str], *, n: int = 13) -> list[Finding]:
    """Find test texts that share n words in a row with what was learned.

    Args:
        test: texts that are tested on.
        train: texts that were learned.
        n: see :func:`tfbook.practice.find_copies`.

    Returns:
        A finding for each test text that has such a stretch, with its longest.

    Raises:
        TypeError: for a wrong type.
        ValueError: if n is below 1.

    Source: [brown2020language]
    Explained in: chapters/18_practice, section "A checklist that finds the fault".
    """
    longest = {}
    for copied in find_copies(test, train, n=n):
        if copied.test not in longest or copied.words > longest[copied.test].words:
            longest[copied.test] = copied
    return [
        Finding(
            "a test text was learned",
            f"test text {i}, word {each.start}, as in training text {each.train}",
            float(each.words),
            f"fewer than {n} words in a row",
            "take it out of the test or out of training, and test again",
        )  # fmt: skip
        for i, each in longest.items()
    ]
