"""ZeRO: data parallelism in which no number is held twice that need not be.

Adam holds 12 bytes for each weight of two: that is cut first (stage 1), then the gradients (2),
then the weights (3). Each process keeps one piece of everything, a p-th, and is the only one that
updates it. PyTorch has this as ``torch.distributed.fsdp.fully_shard``.

Stages 1 and 2 send what data parallelism sends: an all-reduce *is* a reduce-scatter, between which
and the all-gather the update has its place. Stage 3 gathers the weights twice, once for the forward
and once for the backward pass: half as much again.

Explained in: chapters/17_hardware, section "Many devices".
"""

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from tfbook._checks import check_callable, check_module, check_number
from tfbook.blocks import Block
from tfbook.parallel.collectives import ring_all_gather, ring_reduce_scatter
from tfbook.parallel.groups import Group, check_group
from tfbook.parallel.replicas import read_parameters

__all__ = ["Sharded", "ZeroOptimizer", "shard"]

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class ZeroOptimizer:
    """An optimizer of which each process holds the state of its own pieces only: ZeRO 1 and 2.

    Each parameter is a line of numbers, cut into p pieces. A step adds up the gradients of each
    piece where it belongs (reduce-scatter), updates it there, and gives the new piece to everybody
    (all-gather). It fits optimizers that treat each number by itself, such as Adam.

    Args:
        parameters: those of the model, alike in every process.
        make: makes the optimizer of a list of parameters, which are the pieces.
        group: the processes.
        stage: 1 cuts the optimizer's state. 2 also adds up each gradient as soon as the backward
            pass has computed it, and keeps the own piece only; one backward pass to a step then.

    Attributes:
        optimizer: what ``make`` made, of the own pieces.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for another stage, or no parameter.

    Cost: 2(p − 1)/p of the bytes of the weights, as for data parallelism.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> optimizer = ZeroOptimizer(layer.parameters(), torch.optim.AdamW, Group(), stage=2)
        >>> layer(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()

    Source: [rajbhandari2020zero]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make: Make, group: Group, *, stage: int = 1
    ):
        """Cut the parameters and make the optimizer of the own pieces."""
        check_callable("make", make)
        check_group(group)
        check_number("stage", stage, 1, 2, whole=True)
        self.parameters, self.group, self.stage = read_parameters(parameters), group, stage
        self.pieces = [nn.Parameter(_own(_line(p, group), group)) for p in self.parameters]
        self.optimizer = make(self.pieces)
        if stage == 2:
            for parameter, piece in zip(self.parameters, self.pieces, strict=True):
                parameter.register_post_accumulate_grad_hook(self._reducer(piece))

    def step(self) -> None:
        """Update the weights of every process by the mean of the gradients, and forget these.

        Raises:
            PeerLost: if a process is gone.
        """
        for parameter, piece in zip(self.parameters, self.pieces, strict=True):
            if parameter.grad is not None:
                self._reducer(piece)(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for parameter, piece in zip(self.parameters, self.pieces, strict=True):
                line = torch.cat(ring_all_gather(piece, self.group))
                parameter.copy_(line[: parameter.numel()].view_as(parameter))

    def _reducer(self, piece: nn.Parameter) -> Callable[[nn.Parameter], None]:
        """Return what moves the gradient of a parameter to its pieces."""

        def reduce(parameter: nn.Parameter) -> None:
            line = _line(parameter.grad, self.group)
            piece.grad = ring_reduce_scatter(line, self.group) / self.group.size
            parameter.grad = None

        return reduce


class Sharded(nn.Module):
    """A module of which each process holds a p-th of the weights: ZeRO 3.

    The weights are one line, cut into p pieces. For the forward pass the line is gathered and let
    go when it is over; what autograd would keep of it is kept as "from here to there in the line",
    and the line is gathered once more for the backward pass. Gradients are added up where the piece
    lies (reduce-scatter), and are means over the processes.

    Args:
        module: alike in every process; its weights are taken from it. Modules in it that are
            sharded already keep their own pieces. It must be called through this one only.
        group: the processes.

    Attributes:
        piece: the own piece of the line, the only parameter.
        module: the module, without its weights.
        gathered: how often the line was gathered.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no weight in it, or there are several dtypes.

    Cost: 3(p − 1)/p of the bytes of the weights, for forward and backward pass.

    Example:
        >>> layer = Sharded(nn.Linear(3, 2), Group())
        >>> layer(torch.ones(1, 3)).sum().backward()
        >>> layer.piece.grad
        tensor([1., 1., 1., 1., 1., 1., 1., 1.])

    Source: [rajbhandari2020zero], [zhao2023fsdp]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(self, module: nn.Module, group: Group):
        """Take the weights out of the module and keep the own piece."""
        super().__init__()
        check_module("module", module)
        check_group(group)
        places: dict[nn.Parameter, list] = {}
        for owner in module.modules():
            for name, weight in owner._parameters.items():
                if weight is not None and not isinstance(owner, Sharded):
                    places.setdefault(weight, []).append((owner, name))
        if not places or len({weight.dtype for weight in places}) > 1:
            raise ValueError(f"module must have weights of one dtype, got {len(places)} weights")
        self.group, self.gathered, self._again = group, 0, None
        self._whole = lambda: None  # a weak reference to the line, while there is one
        self._shapes = [weight.shape for weight in places]
        self._places = list(places.values())
        with torch.no_grad():
            line = torch.cat([weight.reshape(-1) for weight in places])
            self.piece = nn.Parameter(_own(_line(line, group), group))
        self._put([None] * len(places))
        self.module = module

    @property
    def is_whole(self) -> bool:
        """Return whether the whole line is in memory."""
        return self._whole() is not None

    def forward(self, *args: object, **kwargs: object) -> object:
        """Call the module with its weights; arguments and results are the module's.

        Raises:
            PeerLost: if a process is gone.
        """
        line = _Gathered.apply(self.piece, self)
        self._whole = weakref.ref(line)
        sizes = [shape.numel() for shape in self._shapes]
        parts = line[: sum(sizes)].split(sizes)
        self._put([part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)])
        try:
            with saved_tensors_hooks(self._packer(line), self._unpack):
                return self.module(*args, **kwargs)
        finally:
            self._put([None] * len(self._places))

    def gather(self) -> Tensor:
        """Return the whole line, from the pieces of all processes."""
        self.gathered += 1
        return torch.cat(ring_all_gather(self.piece, self.group))

    def _put(self, weights: list[Tensor | None]) -> None:
        """Put weights where the module looks for them."""
        for weight, places in zip(weights, self._places, strict=True):
            for owner, name in places:
                owner._parameters[name] = weight

    def _packer(self, line: Tensor):
        home = line.untyped_storage().data_ptr()

        def pack(x: Tensor):
            if x.untyped_storage().data_ptr() != home:
                return x
            return x.shape, x.stride(), x.storage_offset()

        return pack

    def _unpack(self, kept):
        if isinstance(kept, Tensor):
            return kept
        if self._again is None:
            self._again = self.gather()
            self._whole = weakref.ref(self._again)
        return self._again.as_strided(*kept)


class _Gathered(Function):
    """The line of a piece; the gradients of the line are added up where the piece is."""

    @staticmethod
    def forward(ctx, piece: Tensor, owner: Sharded) -> Tensor:
        ctx.owner = owner
        return owner.gather()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        group = ctx.owner.group
        ctx.owner._again = None  # the backward pass through the module is over
        return ring_reduce_scatter(grad, group) / group.size, None


def shard(model: nn.Module, group: Group) -> Sharded:
    """Shard each block of a model by itself, and what is left as one more.

    So that only one block is whole at a time, beside the embeddings.

    Args:
        model: with :class:`tfbook.blocks.Block` in it, alike in every process; it is changed.
        group: the processes.

    Returns:
        What is called like the model, and whose parameters are the pieces.

    Raises:
        TypeError: for an argument of a wrong type.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> layer = Layer(Attention(2), FFN(16))
        >>> model = shard(build(TransformerConfig(11, 8, decoder=[layer] * 2)), Group())
        >>> logits, _ = model(torch.tensor([[3, 1, 4]]))
        >>> len(list(model.parameters()))
        3

    Source: [zhao2023fsdp]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_module("model", model)
    check_group(group)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Block):
                setattr(parent, name, Sharded(child, group))
    return Sharded(model, group)


def _line(x: Tensor, group: Group) -> Tensor:
    """Return the numbers of x as a line that can be cut into equal pieces, filled up with 0."""
    line = x.detach().reshape(-1)
    return functional.pad(line, (0, -len(line) % group.size))


def _own(line: Tensor, group: Group) -> Tensor:
    """Return the own piece of a line."""
    return line.chunk(group.size)[group.rank].clone()
