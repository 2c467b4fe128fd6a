"""Processes that talk to each other: who they are, and every byte that one of them sends.

A :class:`Group` is some of the processes of a run in an order. It can do two things only, send and
receive; all else in this room is written with them. A :class:`Grid` puts the processes on a grid,
whose rows are the groups of data, tensor and pipeline parallelism.

Explained in: chapters/17_hardware, section "Many devices".
"""

import math
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import Tensor, distributed

from tfbook._checks import check_choice, check_list, check_number, check_tensor
from tfbook.parallel.links import Traffic

__all__ = ["Grid", "Group", "PeerLost"]

LONGEST = 86_400.0


class PeerLost(RuntimeError):
    """A process that another one waits for has ended, or says nothing.

    Explained in: chapters/17_hardware, section "Many devices".
    """


class Group:
    """Some of the processes of a run, in an order, seen from one of them.

    Without other processes it is a group of one, in which everything of this room works.

    Args:
        ranks: the numbers of the members in the run, this process among them; all when omitted.
        patience: seconds to wait for a message.

    Attributes:
        ranks: the members.
        rank: the place of this process among them.
        size: p, how many they are.
        traffic: the messages and bytes that this process has sent.

    Raises:
        TypeError: if a rank is no integer, or patience no number.
        ValueError: if a rank is not in the run or named twice, or this process is no member.

    Example:
        >>> group = Group()
        >>> group.rank, group.size, group.traffic
        (0, 1, Traffic(messages=0, bytes=0))

    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(self, ranks: Sequence[int] | None = None, *, patience: float = 60.0):
        """Find the own place."""
        check_number("patience", patience, above=0, high=LONGEST)
        joined = distributed.is_initialized()
        world, own = (distributed.get_world_size(), distributed.get_rank()) if joined else (1, 0)
        if ranks is not None:
            check_list("ranks", ranks)
        self.ranks = tuple(range(world)) if ranks is None else tuple(ranks)
        for rank in self.ranks:
            check_number("a rank of ranks", rank, 0, world - 1, whole=True)
        if own not in self.ranks or len(set(self.ranks)) < len(self.ranks):
            raise ValueError(
                f"ranks must hold this process, {own}, and each once, got {list(self.ranks)}"
            )
        self.rank, self.size, self.patience = self.ranks.index(own), len(self.ranks), patience
        self.traffic = Traffic(0, 0)

    def forget(self) -> Traffic:
        """Return the traffic so far and begin to count anew."""
        found, self.traffic = self.traffic, Traffic(0, 0)
        return found

    def send(self, x: Tensor, to: int) -> "Sending":
        """Begin to send x to a member; ``wait()`` of what is returned says when it has left.

        Raises:
            TypeError: if x is no tensor.
            ValueError: if there is no such member, or it is this process itself.
            PeerLost: if the member is gone.
        """
        self._check_other("to", to)
        check_tensor("x", x)
        x = x.detach().contiguous()
        if not x.numel():
            return Sending(self, None, to, x)
        self.traffic += Traffic(1, x.nbytes)
        return Sending(self, self._begin(distributed.isend, x, to), to, x)

    def receive(self, like: Tensor, source: int) -> Tensor:
        """Return what a member sends, a new tensor of the shape and dtype of ``like``.

        Raises:
            TypeError: if ``like`` is no tensor.
            ValueError: if there is no such member, or it is this process itself.
            PeerLost: if the member is gone, or says nothing for longer than the patience.
        """
        self._check_other("source", source)
        check_tensor("like", like)
        found = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        if found.numel():
            Sending(self, self._begin(distributed.irecv, found, source), source, found).wait()
        return found

    def exchange(self, x: Tensor, to: int, source: int, like: Tensor | None = None) -> Tensor:
        """Send x to one member while another's message is received, and return that.

        Args:
            x: what to send.
            to: the member that gets it.
            source: the member to hear from; if both are this process itself, x comes back.
            like: of the shape of what is received; that of x when omitted.

        Raises:
            TypeError: if x or like is no tensor.
            ValueError: if there is no such member.
            PeerLost: if a member is gone, or says nothing for longer than the patience.
        """
        check_tensor("x", x)
        if to == source == self.rank:
            return x.detach().clone()
        sending = self.send(x, to)
        found = self.receive(x if like is None else like, source)
        sending.wait()
        return found

    def _check_other(self, name: str, place: int) -> None:
        check_number(name, place, 0, self.size - 1, whole=True)
        if place == self.rank:
            raise ValueError(f"{name} must be another member than this one, got {place}")

    def _begin(self, operation, x: Tensor, place: int):
        try:
            return operation(x, self.ranks[place])
        except (RuntimeError, ValueError) as error:
            raise self._lost(place, error) from None

    def _lost(self, place: int, error: Exception) -> PeerLost:
        """Say in one line what happened."""
        said = str(error)
        who = f"process {self.ranks[self.rank]}"
        other = f"process {self.ranks[place]}"
        if "timed out" in said.lower() or "timeout" in said.lower():
            return PeerLost(f"{who} has waited {self.patience:g} s for {other}, in vain")
        return PeerLost(f"{who} has lost {other}: the connection was closed")


class Sending:
    """A message on its way.

    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(self, group: Group, work: object, place: int, x: Tensor):
        """Hold on to the tensor until it has left."""
        self.group, self.work, self.place, self.x = group, work, place, x

    def wait(self) -> None:
        """Return when the message has left, or arrived.

        Raises:
            PeerLost: if the other process is gone, or says nothing for longer than the patience.
        """
        if self.work is None:
            return
        try:
            done = self.work.wait(timedelta(seconds=self.group.patience))
        except RuntimeError as error:
            raise self.group._lost(self.place, error) from None
        if done is False:
            raise self.group._lost(self.place, RuntimeError("timed out"))
        self.work = None


class Grid:
    """The processes of a run on a grid: pipeline stages, replicas of the data, parts of tensors.

    Process number = (stage · data + replica) · tensor + part. Parts of tensors, which talk most,
    are neighbours, so that they come to lie in one machine; stages, which talk least, lie farthest
    apart.

    Args:
        data: replicas.
        tensor: parts of each layer.
        pipeline: stages.
        patience: seconds to wait for a message.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if the product is not the number of processes.

    Example:
        >>> Grid().place
        {'pipeline': 0, 'data': 0, 'tensor': 0}

    Source: [narayanan2021efficient]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(
        self, *, data: int = 1, tensor: int = 1, pipeline: int = 1, patience: float = 60.0
    ):
        """Find the own place."""
        self.sizes = {"pipeline": pipeline, "data": data, "tensor": tensor}
        for name, size in self.sizes.items():
            check_number(name, size, 1, 2**31, whole=True)
        world = Group(patience=patience)
        if math.prod(self.sizes.values()) != world.size:
            raise ValueError(
                f"data · tensor · pipeline must be the number of processes, {world.size}, "
                f"got {data} · {tensor} · {pipeline}"
            )
        self.patience = patience
        numbers = torch.arange(world.size).view(*self.sizes.values())
        found = (numbers == world.rank).nonzero()[0].tolist()
        self.place = dict(zip(self.sizes, found, strict=True))

    def group(self, name: str) -> Group:
        """Return the processes that differ from this one in one coordinate only.

        Args:
            name: "data", "tensor" or "pipeline".

        Raises:
            ValueError: for another name.
        """
        check_choice("name", name, self.sizes)
        numbers = torch.arange(math.prod(self.sizes.values())).view(*self.sizes.values())
        index = tuple(slice(None) if each == name else at for each, at in self.place.items())
        return Group(numbers[index].tolist(), patience=self.patience)


def check_group(group: object) -> None:
    """Raise TypeError unless ``group`` is a :class:`Group`."""
    if not isinstance(group, Group):
        raise TypeError(f"group must be a Group, got {type(group).__name__}")


def check_parts(name: str, size: int, group: Group) -> None:
    """Raise unless a size can be cut into one equal part for each process.

    Raises:
        TypeError: if group is no group.
        ValueError: if it cannot.
    """
    check_group(group)
    if size % group.size or not size:
        raise ValueError(
            f"{name} must be a multiple of the number of processes, {group.size}, got {size}"
        )
