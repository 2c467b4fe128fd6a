"""Collectives that gradients pass: each is a linear map, and its backward pass is the transpose.

What is copied to all in the forward pass is summed over all in the backward pass, and the other way
round; what is gathered is scattered. With these pairs a layer that is cut over processes is written
like one that is not, and autograd does the rest.

The gradient that each process begins with is that of the one loss that all of them computed alike.

Explained in: chapters/17_hardware, section "Many devices".
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from tfbook._checks import check_float, check_number
from tfbook.parallel.collectives import (
    all_to_all,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from tfbook.parallel.groups import Group, check_group, check_parts

__all__ = ["copy_to", "gather", "scatter", "scatter_sum", "sum_over", "swap"]

Map = Callable[[Tensor], Tensor]


class _Linear(Function):
    """A linear map with its transpose for gradients."""

    @staticmethod
    def forward(ctx, x: Tensor, there: Map, back: Map) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad), None, None


def copy_to(x: Float[Tensor, "..."], group: Group) -> Float[Tensor, "..."]:
    """Return x, which all processes have alike; its gradients are summed over them.

    It stands where a layer that is cut begins: each process computes another part of what follows,
    and each part has its share in the gradient.

    Args:
        x: the same in every process.
        group: the processes.

    Raises:
        TypeError: for an argument of a wrong type.

    Example:
        >>> copy_to(torch.ones(2), Group())
        tensor([1., 1.])

    Source: [shoeybi2019megatron], f
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(x, group)
    return _Linear.apply(x, lambda x: x.view_as(x), lambda g: ring_all_reduce(g, group))


def sum_over(x: Float[Tensor, "..."], group: Group) -> Float[Tensor, "..."]:
    """Return the sum of x over the processes; its gradient goes to each as it is.

    Args:
        x: the term of this process.
        group: the processes.

    Raises:
        TypeError: for an argument of a wrong type.

    Example:
        >>> sum_over(torch.ones(2), Group())
        tensor([1., 1.])

    Source: [shoeybi2019megatron], g
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(x, group)
    return _Linear.apply(x, lambda x: ring_all_reduce(x, group), lambda g: g)


def gather(x: Float[Tensor, "..."], group: Group, dim: int) -> Float[Tensor, "..."]:
    """Return the parts of all processes, joined along a dimension.

    The gradients of all processes for this one's part are summed.

    Args:
        x: the part of this process.
        group: the processes.
        dim: the dimension along which the parts stand.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no such dimension.

    Example:
        >>> gather(torch.ones(2), Group(), 0)
        tensor([1., 1.])

    Source: [korthikanti2022reducing]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check_dim(x, group, dim)
    return _Linear.apply(x, lambda x: _joined(x, group, dim), lambda g: _summed(g, group, dim))


def scatter_sum(x: Float[Tensor, "..."], group: Group, dim: int) -> Float[Tensor, "..."]:
    """Return this process's part of the sum of x over the processes, cut along a dimension.

    Its gradient is gathered: the transpose of :func:`gather`.

    Args:
        x: the term of this process.
        group: the processes.
        dim: the dimension to cut, a multiple of their number.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no such dimension, or it cannot be cut into equal parts.

    Example:
        >>> scatter_sum(torch.ones(2), Group(), 0)
        tensor([1., 1.])

    Source: [korthikanti2022reducing]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check_dim(x, group, dim, cut=True)
    return _Linear.apply(x, lambda x: _summed(x, group, dim), lambda g: _joined(g, group, dim))


def scatter(x: Float[Tensor, "..."], group: Group, dim: int) -> Float[Tensor, "..."]:
    """Return this process's part of x, which all have alike; its gradients are gathered.

    Args:
        x: the same in every process.
        group: the processes.
        dim: the dimension to cut, a multiple of their number.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no such dimension, or it cannot be cut into equal parts.

    Example:
        >>> scatter(torch.ones(2), Group(), 0)
        tensor([1., 1.])

    Source: [korthikanti2022reducing]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check_dim(x, group, dim, cut=True)
    part = lambda x: x.chunk(group.size, dim)[group.rank].clone()  # noqa: E731
    return _Linear.apply(x, part, lambda g: _joined(g, group, dim))


def swap(x: Float[Tensor, "..."], group: Group, cut: int, join: int) -> Float[Tensor, "..."]:
    """Exchange a dimension that is cut over the processes for another one, by an all-to-all.

    Each process cuts its x along ``cut``, sends piece j to process j, and joins what it hears along
    ``join``. From rows of all heads it makes heads of all rows.

    Args:
        x: of this process.
        group: the processes.
        cut: the dimension that is whole before, a multiple of their number.
        join: the dimension that is whole afterwards.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no such dimension, or it cannot be cut into equal parts.

    Cost: (p − 1)/p of the bytes of x.

    Example:
        >>> swap(torch.ones(2, 3), Group(), cut=0, join=1).shape
        torch.Size([2, 3])

    Source: [jacobs2023ulysses]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check_dim(x, group, cut, cut=True)
    _check_dim(x, group, join)

    def swapped(x: Tensor, cut: int, join: int) -> Tensor:
        return torch.cat(all_to_all(x.chunk(group.size, cut), group), join)

    return _Linear.apply(x, lambda x: swapped(x, cut, join), lambda g: swapped(g, join, cut))


def _joined(x: Tensor, group: Group, dim: int) -> Tensor:
    return torch.cat(ring_all_gather(x, group), dim)


def _summed(x: Tensor, group: Group, dim: int) -> Tensor:
    """Return the own part of the sum: what is cut must stand first in memory."""
    rows = x.movedim(dim, 0)  # (S, ...)
    own = ring_reduce_scatter(rows.contiguous(), group)
    return own.view(-1, *rows.shape[1:]).movedim(0, dim).contiguous()


def _check(x: object, group: object) -> None:
    check_float("x", x)
    check_group(group)


def _check_dim(x: object, group: object, dim: object, *, cut: bool = False) -> None:
    _check(x, group)
    check_float("x", x, min_dims=1)
    check_number("a dimension", dim, -x.ndim, x.ndim - 1, whole=True)
    if cut:
        check_parts("the size of the dimension", x.shape[dim], group)
