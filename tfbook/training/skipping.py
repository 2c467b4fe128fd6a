"""Parts of a model that are left out: at random while it trains, or for good.

Explained in: chapters/11_training_deeper, section "Leaving out whole layers".
"""

from collections.abc import Sequence

from torch import nn

from tfbook._checks import check_bool, check_list, check_module, check_number
from tfbook.blocks import Residual, Stack

__all__ = ["keep_layers", "layer_drop", "stochastic_depth"]


def stochastic_depth(model: nn.Module, rate: float, *, growing: bool = True) -> None:
    """Let sequences go around sublayers at random in training: x + (coin / (1 − p)) · f(x).

    Each sequence of a batch has a coin of its own in each sublayer, which is 0 with probability
    p; the factor keeps the mean. The last layer has p = ``rate``; with ``growing`` layer l of L
    has l / L of it, since early layers do what all later ones build on. Evaluation is unchanged.

    Args:
        model: whose stacks are changed, in place; 0 switches it off.
        rate: p of the last layer, 0 up to below 1.
        growing: whether the rate grows with depth, or is the same for all.

    Raises:
        ValueError: if the rate is out of its range, or the model has no stack of blocks.

    Source: [huang2016stochastic]
    Explained in: chapters/11_training_deeper, section "Leaving out whole layers".
    """
    check_number("rate", rate, 0, below=1)
    check_bool("growing", growing)
    for stack in _stacks(model):
        for depth, block in enumerate(stack.blocks, 1):
            for part in block.modules():
                if isinstance(part, Residual):
                    part.skip = rate * depth / len(stack.blocks) if growing else float(rate)


def layer_drop(model: nn.Module, rate: float) -> None:
    """Leave out each block at random in training, for the whole batch and without a factor.

    A model that was trained so can do with fewer layers, see :func:`keep_layers`; and a block that
    is left out costs no time. Evaluation is unchanged.

    Args:
        model: whose stacks are changed, in place; 0 switches it off.
        rate: of the blocks, 0 up to below 1.

    Raises:
        TypeError: if the rate is not a number.
        ValueError: if it is out of its range, or the model has no stack of blocks.

    Source: [fan2020reducing]
    Explained in: chapters/11_training_deeper, section "Leaving out whole layers".
    """
    check_number("rate", rate, 0, below=1)
    for stack in _stacks(model):
        stack.layer_drop = float(rate)


def keep_layers(stack: Stack, layers: Sequence[int]) -> Stack:
    """Return a stack of some of the blocks; they are shared with the old one, not copied.

    Args:
        stack: the blocks to choose from.
        layers: numbers from 0, rising: ``range(0, n, 2)`` keeps every other one.

    Raises:
        ValueError: if one is out of range, or they do not rise, or there are none.

    Source: [fan2020reducing]
    Explained in: chapters/11_training_deeper, section "Leaving out whole layers".
    """
    if not isinstance(stack, Stack):
        raise TypeError(f"stack must be a Stack, got {type(stack).__name__}")
    check_list("layers", layers)
    layers = list(layers)
    for number in layers:
        check_number("layers", number, 0, whole=True)
    rising = all(a < b for a, b in zip(layers, layers[1:], strict=False))
    if not layers or not rising or layers[-1] >= len(stack.blocks):
        raise ValueError(
            f"layers must rise within 0 to {len(stack.blocks) - 1}, got {layers or 'none'}"
        )
    kept = [stack.blocks[number] for number in layers]
    return Stack(kept, stack.final_norm, shared=stack.shared)


def _stacks(model: nn.Module) -> list[Stack]:
    check_module("model", model)
    found = [part for part in model.modules() if isinstance(part, Stack)]
    if not found:
        raise ValueError("model must have a Stack of blocks, got none")
    return found
