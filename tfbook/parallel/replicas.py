"""Data parallelism: the same model in every process, each with its own rows of the batch.

The gradient of a mean over all rows is the mean of the gradients over each process's rows. So one
all-reduce after the backward pass makes p processes compute what one does. PyTorch's
``DistributedDataParallel`` does this too, and begins with the last layers' gradients while the
first layers' are still being computed.

Explained in: chapters/17_hardware, section "Many devices".
"""

from collections.abc import Iterable

import torch
from torch import nn

from tfbook._checks import check_list, check_number
from tfbook.parallel.collectives import ring_all_gather, ring_all_reduce
from tfbook.parallel.groups import Group, check_group

__all__ = ["average_gradients", "gradient_buckets", "same_weights"]

MIB = 2**20
LARGEST = 2**62


def gradient_buckets(
    parameters: Iterable[nn.Parameter], bucket_bytes: int = 25 * MIB
) -> list[list[nn.Parameter]]:
    """Put parameters together whose gradients go in one message, the last layers' first.

    Small messages cost latency, and one for everything would have to wait for the first layer. A
    bucket holds parameters of one dtype, of together at most ``bucket_bytes``, or a single one.

    Args:
        parameters: in the order of the model.
        bucket_bytes: how large a bucket may become.

    Returns:
        The buckets, in the order in which a backward pass fills them.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if bucket_bytes is below 1.

    Example:
        >>> layers = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 5))
        >>> [sum(p.numel() for p in b) for b in gradient_buckets(layers.parameters(), 4 * 100)]
        [65, 100]

    Source: [li2020pytorch]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_number("bucket_bytes", bucket_bytes, 1, LARGEST, whole=True)
    buckets, room = [], -1
    for parameter in reversed(read_parameters(parameters)):
        fits = parameter.nbytes <= room and buckets[-1][-1].dtype == parameter.dtype
        if not fits:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(parameter)
        room -= parameter.nbytes
    return buckets


def average_gradients(
    parameters: Iterable[nn.Parameter],
    group: Group,
    *,
    bucket_bytes: int = 25 * MIB,
    weight: float | None = None,
) -> None:
    """Replace each gradient by its mean over the processes, one all-reduce a bucket.

    g ← Σ_r w_r g_r, with w = 1/p when every process has as many rows.

    Args:
        parameters: those of the model, in every process in the same order; one without a gradient
            counts as 0.
        group: the processes.
        bucket_bytes: as for :func:`gradient_buckets`.
        weight: the share of this process's rows in all rows; 1/p when omitted.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.
        PeerLost: if a process is gone.

    Cost: 2(p − 1)/p of the bytes of the gradients.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> layer(torch.ones(1, 2)).sum().backward()
        >>> average_gradients(layer.parameters(), Group())
        >>> layer.weight.grad
        tensor([[1., 1.]])

    Source: [li2020pytorch]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_group(group)
    if weight is not None:
        check_number("weight", weight, 0, 1)
    share = 1 / group.size if weight is None else weight
    for bucket in gradient_buckets(parameters, bucket_bytes):
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in bucket])
        total = ring_all_reduce(flat * share, group)
        parts = total.split([parameter.numel() for parameter in bucket])
        for parameter, part in zip(bucket, parts, strict=True):
            parameter.grad.copy_(part.view_as(parameter))


def same_weights(model: nn.Module, group: Group) -> None:
    """Give every process the weights of the first.

    Args:
        model: of the same shapes in every process.
        group: the processes.

    Raises:
        TypeError: for an argument of a wrong type.
        PeerLost: if a process is gone.

    Example:
        >>> same_weights(nn.Linear(2, 1), Group())

    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_group(group)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, got {type(model).__name__}")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(ring_all_gather(parameter, group)[0])


def read_parameters(parameters: object) -> list[nn.Parameter]:
    """Return the parameters that are trained.

    Raises:
        TypeError: if something else is among them.
        ValueError: if there is none.
    """
    check_list("parameters", parameters, sized=False)
    found = list(parameters)
    for each in found:
        if not isinstance(each, nn.Parameter):
            raise TypeError(f"parameters must be parameters, got {type(each).__name__}")
    trained = [each for each in found if each.requires_grad]
    if not trained:
        raise ValueError("parameters must hold one that is trained, got none")
    return trained
