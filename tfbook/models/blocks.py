"""Blocks: a mixer, perhaps a look into a memory, and a feed-forward network, each added to x.

A block is called like the mixer in it, ``block(x, state=None, *, mask=None) -> (y, state)``, so a
stack of blocks is called like that too, and neither asks what kind of mixer it holds.

Explained in: chapters/05_architecture.
"""

import operator
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook.attention import Cache, Tap
from tfbook.models.layers import LayerNorm, Place, Residual, check_place

__all__ = [
    "Block",
    "BlockState",
    "ModelState",
    "SharedBias",
    "SharedRotation",
    "Stack",
    "Trace",
]


class BlockState(NamedTuple):
    """What a block carries on: the state of its mixer and that of its cross-attention.

    Attributes:
        mixer: what the mixer returned, or None at the start.
        cross: what the cross-attention remembers of the memory, or None without one.

    Explained in: chapters/05_architecture, section "The decoder".
    """

    mixer: object = None
    cross: object = None

    def select(self, rows: Int[Tensor, " S"]) -> "BlockState":
        """Return the state of the chosen sequences of the batch, in the order given."""
        return BlockState(*(each if each is None else _select(each, rows) for each in self))

    @property
    def nbytes(self) -> int:
        """Return the bytes of both."""
        return sum(_nbytes(each) for each in self if each is not None)

    def truncate(self, length: int) -> "BlockState":
        """Return the state as it was after ``length`` positions; the memory stays.

        Raises:
            TypeError: if the mixer's state cannot go back.
            ValueError: if the length is out of its range.
        """
        if not hasattr(self.mixer, "truncate"):
            raise TypeError(f"a state of type {type(self.mixer).__name__} cannot go back")
        return self._replace(mixer=self.mixer.truncate(length))

    @property
    def length(self) -> int:
        """Return how many positions the mixer holds, 0 at the start."""
        return getattr(self.mixer, "length", 0)


@dataclass(frozen=True, eq=False)
class ModelState:
    """What a model carries on from one piece of a sequence to the next; never changed.

    Attributes:
        layers: a state for each block of the decoder.
        seen: how many columns of tokens came before the next one, padding included.
        counts: how many of them were tokens in each sequence, (B,); None when all were.

    Explained in: chapters/12_generation, section "The cache".
    """

    layers: tuple[BlockState, ...]
    seen: int = 0
    counts: Int[Tensor, " B"] | None = None

    @property
    def length(self) -> int:
        """Return how many columns were seen."""
        return self.seen

    @property
    def nbytes(self) -> int:
        """Return the bytes of all keys and values, or whatever the layers keep."""
        return sum(layer.nbytes for layer in self.layers)

    def select(self, rows: Int[Tensor, " S"]) -> "ModelState":
        """Return the state of the chosen sequences of the batch, in the order given."""
        counts = None if self.counts is None else self.counts[rows]
        layers = tuple(layer.select(rows) for layer in self.layers)
        return replace(self, layers=layers, counts=counts)

    def truncate(self, length: int) -> "ModelState":
        """Return the state as it was after ``length`` columns: later ones are forgotten.

        Raises:
            TypeError: if a layer's state cannot go back.
            ValueError: if the length is out of its range, or the sequences were padded.
        """
        if self.counts is not None:
            raise ValueError("the state of a padded batch cannot go back")
        layers = tuple(layer.truncate(length) for layer in self.layers)
        return replace(self, layers=layers, seen=length)


class Trace(NamedTuple):
    """What happens in a stack, block by block.

    Attributes:
        states: what enters the first block, and what each block makes of it, (B, N, d_model).
        weights: of each mixer, (B, H, N, M), where they were asked for.
        cross: of each cross-attention, None where there is none.

    Explained in: chapters/05_architecture, section "Two real models".
    """

    states: list[Tensor]
    weights: list[Tensor]
    cross: list[Tensor | None]


class Block(nn.Module):
    """One layer: mix the rows, perhaps look into a memory, then treat each row by itself.

    x ← x + mixer(x), x ← x + cross(x, memory), x ← x + ffn(x), each with a norm before it or
    behind the sum, see :class:`tfbook.models.Residual`.

    Args:
        mixer: what mixes rows: ``mixer(x, state=None, *, mask=None) -> (y, state)``.
        ffn: what treats each row by itself, with an attribute ``d_model``.
        cross: attention to a memory, with ``remember``; None for a block that looks at no memory.
        norm: makes a norm of a given size.
        place: "pre", "post" or "none".
        dropout: rate on what each sublayer adds.

    Attributes:
        mixer_residual, cross_residual, ffn_residual: the wiring of each sublayer.
        resid_pre, resid_mid, resid_post: identities that pass on x at the entrance, behind the
            mixer and at the exit. A forward hook on them reads or replaces what passes.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for an unknown place, or a rate out of range.

    Example:
        >>> from tfbook.models.layers import FeedForward
        >>> from tfbook.attention.multihead import MultiHeadAttention
        >>> block = Block(MultiHeadAttention(8, n_heads=2), FeedForward(8, 32), place="pre")
        >>> y, state = block(torch.randn(1, 5, 8))
        >>> y.shape
        torch.Size([1, 5, 8])

    Cost: that of its parts; see :meth:`tfbook.models.TransformerConfig.parts`.

    Source: [vaswani2017attention]
    Explained in: chapters/05_architecture, section "The encoder".
    """

    def __init__(
        self,
        mixer: nn.Module,
        ffn: nn.Module,
        *,
        cross: nn.Module | None = None,
        norm: Callable[[int], nn.Module] = LayerNorm,
        place: Place = "post",
        dropout: float = 0.0,
    ):
        """Put a residual connection around each part."""
        super().__init__()
        check_place(place)
        for name, part in (("mixer", mixer), ("ffn", ffn), ("cross", cross)):
            if not (isinstance(part, nn.Module) or (name == "cross" and part is None)):
                raise TypeError(f"{name} must be a module, got {type(part).__name__}")

        def residual() -> Residual:
            own = None if place == "none" else norm(ffn.d_model)
            return Residual(own, place=place, dropout=dropout)

        self.resid_pre = Tap()
        self.mixer, self.mixer_residual = mixer, residual()
        self.resid_mid = Tap()
        self.cross, self.cross_residual = cross, None if cross is None else residual()
        self.ffn, self.ffn_residual = ffn, residual()
        self.resid_post = Tap()

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: BlockState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], BlockState]:
        """Pass x through the sublayers, continuing from a state.

        Args:
            x: (B, N, d_model).
            state: what the call before returned, None at the start of a sequence; with
                cross-attention the first comes from :meth:`remember`.
            mask: which keys the mixer may see, as the mixer takes it.

        Returns:
            y (B, N, d_model), and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or a memory that is missing.
        """
        before, memory = self._read_state(state)
        x, residual = self.resid_pre(x), self.mixer_residual
        y, after = self.mixer(residual.enter(x), before, mask=mask)
        x = self.resid_mid(residual.leave(x, y))
        del y  # its memory serves what follows
        if self.cross is not None:
            y, memory = self.cross(self.cross_residual.enter(x), memory)
            x = self.cross_residual.leave(x, y)
        y = self.ffn(self.ffn_residual.enter(x))
        x = self.resid_post(self.ffn_residual.leave(x, y))
        return x, BlockState(after, memory)

    def weights(
        self,
        x: Float[Tensor, "B N D"],
        state: BlockState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B H N M"], Float[Tensor, "B H N K"] | None]:
        """Return the weights of the mixer, and those of the cross-attention where there is one.

        Arguments and errors are those of :meth:`forward`.

        Raises:
            TypeError: also if the mixer has no weights to show.
        """
        if not hasattr(self.mixer, "weights"):
            raise TypeError(f"a mixer of type {type(self.mixer).__name__} has no weights to show")
        before, memory = self._read_state(state)
        found = self.mixer.weights(self.mixer_residual.enter(x), before, mask=mask)
        if self.cross is None:
            return found, None
        y, _ = self.mixer(self.mixer_residual.enter(x), before, mask=mask)
        x = self.cross_residual.enter(self.mixer_residual.leave(x, y))
        return found, self.cross.weights(x, memory)

    def remember(
        self, memory: Float[Tensor, "B M Dk"], mask: Bool[Tensor, "..."] | None = None
    ) -> BlockState:
        """Return the state to start from: the memory's keys and values, computed once.

        Args:
            memory: the rows to look into, (B, M, d_memory).
            mask: which of them may be seen, boolean, broadcasting to (B, 1, M).

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, or without cross-attention.

        Explained in: chapters/05_architecture, section "The decoder".
        """
        if self.cross is None:
            raise ValueError("this block has no cross-attention; build it with cross= for that")
        return BlockState(None, self.cross.remember(memory, mask=mask))

    def empty_state(self, batch: int, *, cache: Cache | None = None) -> BlockState:
        """Return a state with nothing in it yet, the mixer's in the cache of one's choice.

        A mixer that knows no caches, such as a recurrent one, begins with None. Arguments and
        errors are those of :meth:`tfbook.attention.MultiHeadAttention.empty_state`.

        Explained in: chapters/12_generation, section "Caches that do not grow".
        """
        if not hasattr(self.mixer, "empty_state"):
            return BlockState()
        return BlockState(self.mixer.empty_state(batch, cache=cache))

    def _read_state(self, state):
        if state is None:
            state = BlockState()
        if not isinstance(state, BlockState):
            raise TypeError(f"state must be a BlockState, got {type(state).__name__}")
        if self.cross is not None and state.cross is None:
            raise ValueError("a block with cross-attention starts from state=remember(memory)")
        return state


class _Shared:
    """A position part that several layers use and the model owns.

    It is no module, so the part's weights appear once among the parameters. Within a ``with`` block
    on it, what all layers would compute alike is computed by the first of them.
    """

    def __init__(self, part: nn.Module):
        """Keep the part."""
        self.part, self._kept = part, None

    def __enter__(self) -> "_Shared":
        """Begin a pass through the layers."""
        self._kept = {}
        return self

    def __exit__(self, *error: object) -> None:
        """Forget what was kept: the weights may change before the next pass."""
        self._kept = None

    def places(self, first: int, stop: int, device: torch.device) -> Int[Tensor, " N"]:
        """Return the positions first … stop − 1, the same tensor for every layer of a pass."""
        return self._once(
            ("places", first, stop, device), (), lambda: torch.arange(first, stop, device=device)
        )

    def _once(self, key, inputs, make):
        """Return what ``make`` returned for the same key and the same tensors in this pass."""
        kept = self._kept
        if kept is None:
            return make()
        found = kept.get(key)
        if found is None or not all(map(operator.is_, found[0], inputs)):
            found = kept[key] = (inputs, make())
        return found[1]


class SharedRotation(_Shared):
    """A rotary position that layers share: cosines and sines are computed once a pass.

    Args:
        part: such as :class:`tfbook.positions.RotaryPositions`; the model owns it.

    Explained in: chapters/05_architecture, section "From words in to words out".
    """

    def rotate(
        self, x: Float[Tensor, "*B N D"], positions: Int[Tensor, "... N"]
    ) -> Float[Tensor, "*B N D"]:
        """Turn queries or keys x (..., N, d_head) to their positions."""
        if self._kept is None:
            return self.part.rotate(x, positions)
        key = ("table", x.dtype)
        table = self._once(key, (positions,), lambda: self.part.table(positions, x.dtype))
        return self.part.turn(x, *table)


class SharedBias(_Shared):
    """A bias on the scores that layers share and that does not ask the query: once a pass.

    Args:
        part: such as :class:`tfbook.positions.T5Bias`; the model owns it.

    Source: [raffel2020exploring]
    Explained in: chapters/05_architecture, section "From words in to words out".
    """

    @property
    def scaled(self) -> bool:
        """Return whether the scores are divided by √d."""
        return self.part.scaled

    def bias(
        self,
        q: Float[Tensor, "*B H N D"],
        q_positions: Int[Tensor, "... N"],
        k_positions: Int[Tensor, "... M"],
    ) -> Float[Tensor, "*C H N M"]:
        """Return what to add to the scores of q (..., H, N, d)."""
        key, inputs = ("bias", q.dtype), (q_positions, k_positions)
        return self._once(key, inputs, lambda: self.part.bias(q, *inputs))


class Stack(nn.Module):
    """Blocks, one after another, and perhaps a norm behind the last.

    Args:
        blocks: at least one; each is called as ``block(x, state=None, *, mask=None)``.
        final_norm: applied to what the last block returns; pre-norm blocks need it, since nothing
            has normalised the sum.
        shared: the handle of a position part that the blocks share, :class:`SharedRotation` or
            :class:`SharedBias`; what it computes is kept for the time of one pass.

    Attributes:
        layer_drop: rate at which a block is left out in training, 0 at first; see
            :func:`tfbook.training.layer_drop`.

    Raises:
        TypeError: if a block is no module.
        ValueError: if there is none.

    Source: [vaswani2017attention], final norm: [radford2019language]
    Explained in: chapters/05_architecture, section "The encoder".
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        final_norm: nn.Module | None = None,
        *,
        shared: SharedRotation | SharedBias | None = None,
    ):
        """Keep the blocks."""
        super().__init__()
        if not len(blocks):
            raise ValueError("blocks must hold at least one block, got none")
        self.blocks, self.final_norm = nn.ModuleList(blocks), final_norm
        self.shared = shared
        self.layer_drop = 0.0

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: Sequence[BlockState] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], tuple[BlockState, ...]]:
        """Pass x through all blocks, continuing from a state.

        Args:
            x: (B, N, d_model).
            state: a state for each block, as the call before returned them; None at the start.
            mask: passed on to each block.

        Returns:
            y (B, N, d_model), and a state for each block.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or a wrong number of states.
        """
        states = self._read_state(state)
        after = []
        with self._one_pass():
            for block, before in zip(self.blocks, states, strict=True):
                if self._left_out():
                    after.append(BlockState() if before is None else before)
                    continue
                x, own = block(x, before, mask=mask)
                after.append(own)
        return self.finish(x), tuple(after)

    def encode(
        self, x: Float[Tensor, "B N D"], *, mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B N D"]:
        """Return y alone and keep no state, for a sequence that will not go on.

        Arguments and errors are those of :meth:`forward`.
        """
        with self._one_pass():
            for block in self.blocks:
                if not self._left_out():
                    x = block(x, mask=mask)[0]  # and its state is gone before the next
        return self.finish(x)

    def trace(
        self,
        x: Float[Tensor, "B N D"],
        state: Sequence[BlockState] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        weights: bool = False,
    ) -> Trace:
        """Return what each block makes of x, and with ``weights`` where attention looked.

        Arguments and errors are those of :meth:`forward`; the norm behind the blocks is left out.
        """
        trace = Trace([x], [], [])
        with self._one_pass():
            for block, before in zip(self.blocks, self._read_state(state), strict=True):
                if weights:
                    own, cross = block.weights(trace.states[-1], before, mask=mask)
                    trace.weights.append(own)
                    trace.cross.append(cross)
                trace.states.append(block(trace.states[-1], before, mask=mask)[0])
        return trace

    def _left_out(self) -> bool:
        return self.training and self.layer_drop > 0 and bool(torch.rand(()) < self.layer_drop)

    def finish(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Apply the last norm, if there is one."""
        return x if self.final_norm is None else self.final_norm(x)

    def remember(
        self, memory: Float[Tensor, "B M Dk"], mask: Bool[Tensor, "..."] | None = None
    ) -> tuple[BlockState, ...]:
        """Return the states to start from: each block's keys and values of the same memory.

        Arguments and errors are those of :meth:`Block.remember`.

        Explained in: chapters/05_architecture, section "The decoder".
        """
        return tuple(block.remember(memory, mask) for block in self.blocks)

    def empty_state(self, batch: int, *, cache: Cache | None = None) -> tuple[BlockState, ...]:
        """Return a state with nothing in it yet for each block, see :meth:`Block.empty_state`.

        Explained in: chapters/12_generation, section "Caches that do not grow".
        """
        return tuple(block.empty_state(batch, cache=cache) for block in self.blocks)

    def _one_pass(self):
        """Return within what the blocks run; a compiler finds what is computed twice by itself."""
        return (
            nullcontext() if self.shared is None or torch.compiler.is_compiling() else self.shared
        )

    def _read_state(self, state):
        if state is None:
            return (None,) * len(self.blocks)
        if isinstance(state, BlockState) or not isinstance(state, Sequence):
            raise TypeError(f"state must be a sequence of BlockStates, got {type(state).__name__}")
        if len(state) != len(self.blocks):
            raise ValueError(
                f"state must have one part for each of the {len(self.blocks)} blocks, "
                f"got {len(state)}"
            )
        return state


def _select(state, rows):
    if isinstance(state, Tensor):
        return state[rows]
    if hasattr(state, "select"):
        return state.select(rows)
    return tuple(_select(each, rows) for each in state)  # such as an LSTM's pair


def _nbytes(state):
    if hasattr(state, "nbytes"):
        return state.nbytes
    return sum(_nbytes(each) for each in state)
