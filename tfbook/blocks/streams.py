"""Reversible layers: two streams from which what came in can be computed back.

A residual layer adds to its input and forgets it. With two streams, each of which is changed by
what the other holds, nothing is forgotten: the outputs give back the inputs. So a stack need keep
no activations for the backward pass but those of its end, and computes the others once more.

Explained in: chapters/07_efficient_attention.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tfbook._checks import check_float, check_list, check_module, check_same, check_shape

__all__ = ["ReversibleBlock", "ReversibleStack"]


class ReversibleBlock(nn.Module):
    """A layer of two streams that can be undone.

    y1 = x1 + f(x2), y2 = x2 + g(y1); backwards x2 = y2 − g(y1), x1 = y1 − f(x2). Neither f nor g
    needs an inverse. In a transformer f is a norm and attention, g a norm and a feed-forward
    network.

    Args:
        f: a module, rows (..., d) to rows (..., d); of a mixer, which returns (y, state), the y is
            taken.
        g: another.

    Raises:
        TypeError: if one is no module.

    Example:
        >>> block = ReversibleBlock(nn.Linear(4, 4), nn.Linear(4, 4))
        >>> x1, x2 = torch.randn(2, 5, 4).unbind()
        >>> back = block.inverse(*block(x1, x2))
        >>> torch.allclose(torch.stack(back), torch.stack((x1, x2)), atol=1e-5)
        True

    Source: [gomez2017reversible], in a transformer: [kitaev2020reformer]
    Explained in: chapters/07_efficient_attention.
    """

    def __init__(self, f: nn.Module, g: nn.Module):
        """Keep both."""
        super().__init__()
        check_module("f", f)
        check_module("g", g)
        self.f, self.g = f, g

    def forward(
        self, x1: Float[Tensor, "*B D"], x2: Float[Tensor, "*B D"]
    ) -> tuple[Float[Tensor, "*B D"], Float[Tensor, "*B D"]]:
        """Return what the layer makes of both streams.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for streams of different shapes, or if f or g changes the shape.
        """
        check_streams(x1, x2)
        y1 = x1 + _rows_of(self.f, x2, "f")
        return y1, x2 + _rows_of(self.g, y1, "g")

    def inverse(
        self, y1: Float[Tensor, "*B D"], y2: Float[Tensor, "*B D"]
    ) -> tuple[Float[Tensor, "*B D"], Float[Tensor, "*B D"]]:
        """Return what came in, from what came out; exact up to rounding, without dropout.

        Arguments and errors are those of :meth:`forward`.
        """
        check_streams(y1, y2)
        x2 = y2 - _rows_of(self.g, y1, "g")
        return y1 - _rows_of(self.f, x2, "f"), x2


class ReversibleStack(nn.Module):
    """Reversible layers one after another, which keep no activations but the last.

    The backward pass goes from the outputs: each layer is undone, f and g are computed once more
    with a gradient, and what they held is let go before the next one. Random numbers that f and g
    drew, for dropout, are drawn again the same.

    Args:
        blocks: :class:`ReversibleBlock`, at least one.

    Raises:
        TypeError: for anything else.
        ValueError: without a block.

    Cost: the outputs of both streams kept, whatever the depth; f and g computed twice, which makes
        a training step a third longer where the backward pass of a part costs two forward passes.

    Example:
        >>> blocks = [ReversibleBlock(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3)]
        >>> y1, y2 = ReversibleStack(blocks)(torch.zeros(5, 4), torch.zeros(5, 4))
        >>> (y1 + y2).sum().backward()
        >>> blocks[0].f.weight.grad.shape
        torch.Size([4, 4])

    Source: [gomez2017reversible], in a transformer: [kitaev2020reformer]
    Explained in: chapters/07_efficient_attention.
    """

    def __init__(self, blocks: Sequence[ReversibleBlock]):
        """Keep the blocks."""
        super().__init__()
        check_list("blocks", blocks)
        if not len(blocks):
            raise ValueError("blocks must be at least one, got none")
        for block in blocks:
            if not isinstance(block, ReversibleBlock):
                raise TypeError(
                    f"blocks must be made of ReversibleBlock, got {type(block).__name__}"
                )
        self.blocks = nn.ModuleList(blocks)

    def forward(
        self, x1: Float[Tensor, "*B D"], x2: Float[Tensor, "*B D"]
    ) -> tuple[Float[Tensor, "*B D"], Float[Tensor, "*B D"]]:
        """Return what the last layer makes of both streams; the first may get x twice.

        Arguments and errors are those of :meth:`ReversibleBlock.forward`. The gradient exists once:
        there is no derivative of it.
        """
        check_streams(x1, x2)
        weights = [weight for weight in self.parameters() if weight.requires_grad]
        return _Reversible.apply(self.blocks, x1, x2, *weights)

    def inverse(
        self, y1: Float[Tensor, "*B D"], y2: Float[Tensor, "*B D"]
    ) -> tuple[Float[Tensor, "*B D"], Float[Tensor, "*B D"]]:
        """Return what came into the first layer, from what came out of the last."""
        for block in reversed(self.blocks):
            y1, y2 = block.inverse(y1, y2)
        return y1, y2


class _Reversible(torch.autograd.Function):
    """A stack as one function of its inputs and weights, which saves its outputs."""

    @staticmethod
    def forward(ctx, blocks, x1, x2, *weights):
        ctx.blocks, ctx.weights, ctx.chance = blocks, weights, []
        for block in blocks:
            x1 = x1 + _drawing(block.f, x2, "f", ctx.chance)
            x2 = x2 + _drawing(block.g, x1, "g", ctx.chance)
        ctx.save_for_backward(x1, x2)
        return x1, x2

    @staticmethod
    @once_differentiable
    def backward(ctx, d1, d2):
        y1, y2 = ctx.saved_tensors
        found = {id(weight): None for weight in ctx.weights}
        chance = iter(reversed(ctx.chance))
        for block in reversed(ctx.blocks):
            y2, d1 = _undo(block.g, y1, y2, d2, d1, found, next(chance))
            y1, d2 = _undo(block.f, y2, y1, d1, d2, found, next(chance))
        return None, d1, d2, *(found[id(weight)] for weight in ctx.weights)


def _drawing(part, x, name, chance):
    """Return what a part makes of x, and note the generators before it if it drew from them."""
    before = _chance(x)
    y = _rows_of(part, x, name)
    chance.append(None if all(map(torch.equal, before, _chance(x))) else before)
    return y


def _undo(part, seen, out, d_out, d_seen, found, chance):
    """Take a part's output off a stream, and give its gradient to what it saw and to its weights.

    Returns the stream before, and the gradient of ``seen``. Gradients of the weights, by id, are
    added to ``found``.
    """
    weights = [weight for weight in part.parameters() if weight.requires_grad]
    with torch.enable_grad(), _Again(chance, out):
        seen = seen.detach().requires_grad_()
        y = _rows_of(part, seen, "part")
    if not y.requires_grad:
        return out - y, d_seen
    own, *slopes = torch.autograd.grad(y, [seen, *weights], d_out, allow_unused=True)
    for weight, slope in zip(weights, slopes, strict=True):
        if slope is not None:
            old = found[id(weight)]
            found[id(weight)] = slope if old is None else old + slope
    return out - y.detach(), d_seen if own is None else d_seen + own


class _Again:
    """A block in which the random numbers of an earlier time are drawn again; None for any."""

    def __init__(self, chance, like):
        self.chance, self.like = chance, like

    def __enter__(self):
        if self.chance is not None:
            self.now = _chance(self.like)
            _set_chance(self.chance)

    def __exit__(self, *error):
        if self.chance is not None:
            _set_chance(self.now)


def _chance(x: Tensor) -> list[Tensor]:
    """Return the states of the generators that a module on x may draw from."""
    states = [torch.get_rng_state()]
    return states + [torch.cuda.get_rng_state(x.device)] if x.is_cuda else states


def _set_chance(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)


def _rows_of(part: nn.Module, x: Tensor, name: str) -> Tensor:
    """Return the rows that a part, perhaps a mixer, makes of x."""
    y = part(x)
    y = y[0] if isinstance(y, tuple) else y
    check_float(f"what {name} returns", y)
    check_shape(f"what {name} returns", y, x.shape, "as what it gets")
    return y


def check_streams(x1: object, x2: object) -> None:
    """Raise unless two streams have one shape, dtype and device.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for different shapes or devices.
    """
    check_float("x1", x1, min_dims=1)
    check_float("x2", x2, min_dims=1)
    check_same(x1=x1, x2=x2)
    check_shape("x2", x2, x1.shape, "of x1")
