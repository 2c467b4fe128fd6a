"""Collectives, written from sends and receives.

p processes stand in a ring; each sends to the one on its right and hears from the one on its left,
all at once. After p − 1 such steps every process has the sum of one piece (reduce-scatter); after
p − 1 more everybody has every piece (all-gather); both together are an all-reduce. PyTorch's own
are in ``torch.distributed``; these are for reading, and give the same.

Explained in: chapters/17_hardware, section "Many devices".
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from tfbook._checks import check_callable, check_list, check_tensor
from tfbook.parallel.groups import Group, check_group

__all__ = [
    "all_to_all",
    "doubling_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
]


def ring_reduce_scatter(
    x: Shaped[Tensor, "..."],
    group: Group,
    *,
    reduce: Callable[[Tensor, Tensor], Tensor] = torch.add,
) -> Shaped[Tensor, " C"]:
    """Add up x over the processes, and leave each with one piece of the sum.

    In step s process r sends piece r − s − 1, to which s + 1 processes have added theirs.

    Args:
        x: of the same shape in every process; it is read as one line of numbers.
        group: the processes.
        reduce: what to do instead of adding, such as ``torch.maximum``.

    Returns:
        Piece number r of p in process r, as ``torch.tensor_split`` cuts the line.

    Raises:
        TypeError: for an argument of a wrong type.
        PeerLost: if a process is gone.

    Cost: p − 1 messages, (p − 1)/p of the bytes of x.

    Example:
        >>> ring_reduce_scatter(torch.arange(3), Group())
        tensor([0, 1, 2])

    Source: [patarasuk2009bandwidth]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(x, group)
    check_callable("reduce", reduce)
    p, r = group.size, group.rank
    pieces = list(x.detach().reshape(-1).tensor_split(p))
    for step in range(p - 1):
        out, into = (r - step - 1) % p, (r - step - 2) % p
        heard = group.exchange(pieces[out], (r + 1) % p, (r - 1) % p, like=pieces[into])
        pieces[into] = reduce(pieces[into], heard)
    return pieces[r].clone() if p == 1 else pieces[r]


def ring_all_gather(
    x: Shaped[Tensor, "..."], group: Group, *, likes: Sequence[Tensor] | None = None
) -> list[Shaped[Tensor, "..."]]:
    """Give every process what each has: step by step the pieces go once around the ring.

    Args:
        x: the piece of this process.
        group: the processes.
        likes: tensors of the shapes of all pieces, where they differ.

    Returns:
        The pieces of all processes, in their order.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is not one shape for each process.
        PeerLost: if a process is gone.

    Cost: p − 1 messages, (p − 1)/p of the bytes of all pieces.

    Example:
        >>> ring_all_gather(torch.arange(3), Group())
        [tensor([0, 1, 2])]

    Source: [patarasuk2009bandwidth]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(x, group)
    p, r = group.size, group.rank
    _check_likes(likes, p)
    pieces = [x] * p if likes is None else list(likes)
    pieces[r] = x.detach().clone()
    for step in range(p - 1):
        out, into = (r - step) % p, (r - step - 1) % p
        pieces[into] = group.exchange(pieces[out], (r + 1) % p, (r - 1) % p, like=pieces[into])
    return pieces


def ring_all_reduce(
    x: Shaped[Tensor, "*S"],
    group: Group,
    *,
    reduce: Callable[[Tensor, Tensor], Tensor] = torch.add,
) -> Shaped[Tensor, "*S"]:
    """Add up x over the processes, and leave each with the whole sum.

    A reduce-scatter and an all-gather: every process has each piece from the one that has added it
    up, so all have the same bits.

    Args:
        x: of the same shape in every process.
        group: the processes.
        reduce: what to do instead of adding, such as ``torch.maximum``.

    Raises:
        TypeError: for an argument of a wrong type.
        PeerLost: if a process is gone.

    Cost: 2(p − 1) messages, 2(p − 1)/p of the bytes of x.

    Example:
        >>> ring_all_reduce(torch.ones(2), Group())
        tensor([1., 1.])

    Source: [patarasuk2009bandwidth]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    own = ring_reduce_scatter(x, group, reduce=reduce)
    likes = x.detach().reshape(-1).tensor_split(group.size)
    return torch.cat(ring_all_gather(own, group, likes=likes)).view(x.shape)


def doubling_all_reduce(x: Float[Tensor, "*S"], group: Group) -> Float[Tensor, "*S"]:
    """Add up x over the processes by exchanging whole sums with partners 1, 2, 4, … apart.

    After step s each process has the sum over 2^(s + 1) of them. Few messages, but long ones: good
    for small tensors.

    Args:
        x: of the same shape in every process.
        group: the processes, 1, 2, 4, 8 or so of them.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if their number is no power of 2.
        PeerLost: if a process is gone.

    Cost: log₂ p messages, each of the bytes of x.

    Example:
        >>> doubling_all_reduce(torch.ones(2), Group())
        tensor([1., 1.])

    Source: [thakur2005optimization]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(x, group)
    p = group.size
    if p & (p - 1):
        raise ValueError(f"group must have 1, 2, 4, 8, … members, got {p}")
    total, apart = x.detach().clone(), 1
    while apart < p:
        partner = group.rank ^ apart
        total = total + group.exchange(total, partner, partner)
        apart *= 2
    return total


def all_to_all(
    pieces: Sequence[Tensor], group: Group, *, likes: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Send piece j to process j, and return what the others have sent here.

    In step s process r sends to r + s and hears from r − s, so that nobody is asked twice at once.

    Args:
        pieces: one for each process.
        group: the processes.
        likes: tensors of the shapes of what comes, where they differ from ``pieces``.

    Returns:
        One piece from each process.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is not one piece, or one shape, for each process.
        PeerLost: if a process is gone.

    Cost: p − 1 messages, (p − 1)/p of the bytes of all pieces if these are alike.

    Example:
        >>> all_to_all([torch.arange(2)], Group())
        [tensor([0, 1])]

    Source: [thakur2005optimization]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_list("pieces", pieces)
    check_group(group)
    p, r = group.size, group.rank
    if len(pieces) != p:
        raise ValueError(f"pieces must be one for each of {p} processes, got {len(pieces)}")
    for each in pieces:
        check_tensor("a piece of pieces", each)
    _check_likes(likes, p)
    likes = pieces if likes is None else likes
    found = [pieces[r].detach().clone()] * p
    for step in range(1, p):
        to, source = (r + step) % p, (r - step) % p
        found[source] = group.exchange(pieces[to], to, source, like=likes[source])
    return found


def _check(x: object, group: object) -> None:
    check_tensor("x", x)
    check_group(group)


def _check_likes(likes: object, p: int) -> None:
    if likes is None:
        return
    check_list("likes", likes)
    if len(likes) != p:
        raise ValueError(f"likes must be one for each of {p} processes, got {len(likes)}")
    for each in likes:
        check_tensor("a tensor of likes", each)
