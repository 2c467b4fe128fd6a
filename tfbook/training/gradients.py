"""From batches to one gradient: losses read, sums added up over batches and over processes.

Explained in: chapters/11_training_deeper, section "A batch that does not fit".
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from tfbook._checks import check_bool, check_number
from tfbook.training.processes import Ranks, move
from tfbook.training.states import Source

__all__ = ["AT_ONCE", "PRECISIONS", "Execution", "check_finite", "mean_gradients", "sum_gradients"]

PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a step is carried out where a batch, or the weights, would not fit at once.

    Attributes:
        accumulate: batches for a step, whose gradients are added up.
        precision: "float32", or "bfloat16" for the matrix products of the forward pass, with
            weights in float32.
        shard: under torchrun, cut the weights into a part for each process (FSDP).

    Raises:
        ValueError: if accumulate is below 1 or the precision unknown.

    Source: [micikevicius2018mixed], [zhao2023fsdp]
    Explained in: chapters/11_training_deeper, section "A batch that does not fit".
    """

    accumulate: int = 1
    precision: str = "float32"
    shard: bool = False

    def __post_init__(self):
        """Check each of them."""
        check_number("accumulate", self.accumulate, 1, whole=True)
        check_bool("shard", self.shard)
        if self.precision not in PRECISIONS:
            names = ", ".join(PRECISIONS)
            raise ValueError(f"precision must be one of {names}, got {self.precision!r}")

    def rounding(self, device: torch.device) -> AbstractContextManager:
        """Return the context in which a forward pass computes."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16)


AT_ONCE = Execution()  # a batch a step, all in float32, the weights whole


def sum_gradients(
    model: nn.Module,
    loss: Callable[[nn.Module, object], Tensor | tuple[Tensor, int]],
    source: Source,
    ranks: Ranks,
    execution: Execution,
) -> tuple[float, float, object]:
    """Add up the gradients of a step's batches, as sums over their terms, in the weights.

    Args:
        model: whose weights have no gradient yet.
        loss: see :func:`tfbook.training.fit`.
        source: the batches; ``accumulate`` of them are drawn.
        ranks: of each batch this process takes its rows.
        execution: how many batches, and in which precision.

    Returns:
        the sum of the losses and over how many terms it is, both in this process, and the rows of
        the last batch.

    Raises:
        TypeError: if the loss returns no tensor.
        ValueError: if the loss is no single number, does not depend on the weights, or counts
            fewer than 0 terms.

    Explained in: chapters/11_training_deeper, section "A batch that does not fit".
    """
    device = next(weight.device for weight in model.parameters() if weight.requires_grad)
    total = count = 0.0
    for _ in range(execution.accumulate):
        batch, part = ranks.share(next(source))
        batch = move(batch, device)
        with execution.rounding(device):
            value, terms = _read_loss(loss(model, batch), part)
        value.backward()
        total, count = total + value.item(), count + terms
    return total, count, batch


def mean_gradients(weights: list[nn.Parameter], ranks: Ranks, count: float) -> Tensor:
    """Make the sums the mean over all terms of the step, in all processes.

    Args:
        weights: with their gradients.
        ranks: the processes.
        count: terms in all of them.

    Returns:
        The length of the gradient, ().

    Explained in: chapters/11_training_deeper, section "A batch that does not fit".
    """
    if not ranks.cut:
        ranks.add_gradients(weights)
    # Gradients that were cut come as means over the processes, all others as sums.
    factor = (ranks.size if ranks.cut else 1) / count
    grads = [weight.grad for weight in weights if weight.grad is not None]
    if factor != 1:
        for grad in grads:
            grad.mul_(factor)
    norm = get_total_norm(grads)
    return norm.full_tensor() if ranks.cut else norm


def check_finite(step: int, loss: float, norm: float) -> None:
    """Raise FloatingPointError unless a step's loss and the length of its gradient are numbers."""
    for name, value in (("loss", loss), ("length of the gradient", norm)):
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the {name} is {value} at step {step}; the weights are those before it. A smaller "
                "learning rate, a longer warm-up or clip= may help"
            )


def _read_loss(found, part):
    """Return a sum that can be added to others, and over how many terms it is."""
    if isinstance(found, tuple) and len(found) == 2:
        value, terms = found[0], float(found[1])
        if not (math.isfinite(terms) and terms >= 0):
            raise ValueError(f"loss must count its terms, got {found[1]}")
    else:
        value, terms = found, part
    if not isinstance(value, Tensor):
        raise TypeError(
            f"loss must return a tensor, or a tensor and a count, got {type(value).__name__}"
        )
    if value.ndim or not value.is_floating_point():
        raise ValueError(
            "loss must return one floating-point number, a tensor of shape (), "
            f"got shape {tuple(value.shape)} and {value.dtype}; take its mean"
        )
    if not value.requires_grad:
        raise ValueError("loss must depend on the weights, got a tensor without a gradient")
    return (value if part == 1 or found is not value else value * part), terms
