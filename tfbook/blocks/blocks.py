"""Blocks: a mixer, perhaps a look into a memory, and a feed-forward network, each added to x.

A block is called like the mixer in it, ``block(x, state=None, *, mask=None) -> (y, state)``, so a
stack of blocks is called like that too, and neither asks what kind of mixer it holds.

Explained in: chapters/05_architecture.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import check_bool
from tfbook.attention import Cache, Tap
from tfbook.blocks.norms import LayerNorm
from tfbook.blocks.residual import Place, Residual, check_place
from tfbook.blocks.states import BlockState, Trace

__all__ = ["Block", "SharedBias", "Stack", "check_parallel"]


class Block(nn.Module):
    """One layer: mix the rows, perhaps look into a memory, then treat each row by itself.

    x ← x + mixer(x), x ← x + cross(x, memory), x ← x + ffn(x), each with a norm before it, behind
    the sum or inside, see :class:`tfbook.blocks.Residual`; in parallel y = x + mixer(x) + ffn(x).

    Args:
        mixer: what mixes rows: ``mixer(x, state=None, *, mask=None) -> (y, state)``.
        ffn: what treats each row by itself.
        cross: attention to a memory, with ``remember``; None for a block that looks at no memory.
        norm: makes a norm of a given size.
        place: "pre", "post", "inside", "both" or "none".
        dropout: rate on what each sublayer adds.
        parallel: whether the ffn reads the same x as the mixer.
        one_norm: whether the two then share the norm before them, for the place "pre".
        multiplier: factor on what each sublayer adds.
        d_model: size of a row; the ffn's ``d_model`` when omitted.

    Attributes:
        mixer_residual, cross_residual, ffn_residual: the wiring of each sublayer.
        resid_pre, resid_mid, resid_post: identities that pass on x at the entrance, behind the
            mixer and at the exit. A forward hook on them reads or replaces what passes.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for an unknown place, a rate out of range, or parts that cannot be parallel.

    Example:
        >>> from tfbook.blocks.feed_forward import FeedForward
        >>> from tfbook.attention import MultiHeadAttention
        >>> block = Block(MultiHeadAttention(8, n_heads=2), FeedForward(8, 32), place="pre")
        >>> y, state = block(torch.randn(1, 5, 8))
        >>> y.shape
        torch.Size([1, 5, 8])

    Cost: that of its parts; see :meth:`tfbook.models.TransformerConfig.parts`.

    Source: [vaswani2017attention], parallel: [wang2021gptj]
    Explained in: chapters/05_architecture_deeper, section "The encoder".
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
        parallel: bool = False,
        one_norm: bool = False,
        multiplier: float = 1.0,
        d_model: int | None = None,
    ):
        """Put a residual connection around each part."""
        super().__init__()
        check_place(place)
        check_parallel(parallel, one_norm, place, cross)
        for name, part in (("mixer", mixer), ("ffn", ffn), ("cross", cross)):
            if not (isinstance(part, nn.Module) or (name == "cross" and part is None)):
                raise TypeError(f"{name} must be a module, got {type(part).__name__}")
        width = ffn.d_model if d_model is None else d_model

        def residual(place: Place = place) -> Residual:
            own = None if place == "none" else norm(width)
            after = norm(width) if place == "both" else None
            return Residual(
                own, place=place, norm_after=after, dropout=dropout, multiplier=multiplier
            )

        self.parallel, self.one_norm = parallel, one_norm
        self.resid_pre = Tap()
        self.mixer, self.mixer_residual = mixer, residual()
        self.resid_mid = Tap()
        self.cross, self.cross_residual = cross, None if cross is None else residual()
        self.ffn, self.ffn_residual = ffn, residual("none") if one_norm else residual()
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
        entered = self.resid_pre(x)
        seen = self.mixer_residual.enter(entered)
        y, after = self.mixer(seen, before, mask=mask)
        x = self.resid_mid(self.mixer_residual.leave(entered, y))
        del y  # its memory serves what follows
        if self.cross is not None:
            y, memory = self.cross(self.cross_residual.enter(x), memory)
            x = self.cross_residual.leave(x, y)
        if not self.one_norm:
            seen = self.ffn_residual.enter(entered if self.parallel else x)
        y = self.ffn(seen)
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

        Explained in: chapters/05_architecture_deeper, section "The decoder".
        """
        if self.cross is None:
            raise ValueError("this block has no cross-attention; build it with cross= for that")
        return BlockState(None, self.cross.remember(memory, mask=mask))

    def empty_state(self, batch: int, *, cache: Cache | None = None) -> BlockState:
        """Return a state with nothing in it yet, the mixer's in the cache of one's choice.

        A mixer that knows no caches, such as a recurrent one, begins with None. Arguments and
        errors are those of :meth:`tfbook.attention.MultiHeadAttention.empty_state`.

        Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
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


class SharedBias:
    """A bias on the scores that layers share and that does not ask the query: once a pass.

    It is no module, so the part's weights appear once among the parameters: the model owns it.
    Between :meth:`begin` and :meth:`end` the last bias is kept, and a layer that asks for the same
    positions gets it; the weights may change before the next pass, so nothing is kept beyond.

    Args:
        part: such as :class:`tfbook.positions.T5Bias`; the model owns it.

    Source: [raffel2020exploring]
    Explained in: chapters/05_architecture_deeper, section "From words in to words out".
    """

    def __init__(self, part: nn.Module):
        """Keep the part."""
        self.part, self._running, self._asked, self._bias = part, False, None, None

    @property
    def scaled(self) -> bool:
        """Return whether the scores are divided by √d."""
        return self.part.scaled

    def begin(self) -> None:
        """Begin a pass through the layers."""
        self._running = True

    def end(self) -> None:
        """Forget what was kept."""
        self._running, self._asked, self._bias = False, None, None

    def bias(
        self,
        q: Float[Tensor, "*B H N D"],
        q_positions: Int[Tensor, "... N"],
        k_positions: Int[Tensor, "... M"],
    ) -> Float[Tensor, "*C H N M"]:
        """Return what to add to the scores of q (..., H, N, d)."""
        if not self._running:
            return self.part.bias(q, q_positions, k_positions)
        asked = (q_positions, k_positions)
        known = self._asked is not None and self._bias.dtype == q.dtype
        if not (known and all(map(torch.equal, asked, self._asked))):
            self._asked, self._bias = asked, self.part.bias(q, q_positions, k_positions)
        return self._bias


class Stack(nn.Module):
    """Blocks, one after another, and perhaps a norm behind the last.

    Args:
        blocks: at least one; each is called as ``block(x, state=None, *, mask=None)``.
        final_norm: applied to what the last block returns; pre-norm blocks need it, since nothing
            has normalised the sum.
        shared: the bias parts that blocks share; what they compute is kept for one pass.

    Attributes:
        layer_drop: rate at which a block is left out in training, 0 at first; see
            :func:`tfbook.training.layer_drop`.

    Raises:
        TypeError: if a block is no module.
        ValueError: if there is none.

    Source: [vaswani2017attention], final norm: [radford2019language]
    Explained in: chapters/05_architecture_deeper, section "The encoder".
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        final_norm: nn.Module | None = None,
        *,
        shared: Sequence[SharedBias] = (),
    ):
        """Keep the blocks."""
        super().__init__()
        if not len(blocks):
            raise ValueError("blocks must hold at least one block, got none")
        self.blocks, self.final_norm = nn.ModuleList(blocks), final_norm
        self.shared = tuple(shared)
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

        Explained in: chapters/05_architecture_deeper, section "The decoder".
        """
        return tuple(
            BlockState() if block.cross is None else block.remember(memory, mask)
            for block in self.blocks
        )

    def empty_state(self, batch: int, *, cache: Cache | None = None) -> tuple[BlockState, ...]:
        """Return a state with nothing in it yet for each block, see :meth:`Block.empty_state`.

        Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
        """
        return tuple(block.empty_state(batch, cache=cache) for block in self.blocks)

    @contextmanager
    def _one_pass(self):
        """Let the shared biases be computed once; a compiler finds what is alike by itself."""
        shared = () if torch.compiler.is_compiling() else self.shared
        for each in shared:
            each.begin()
        try:
            yield
        finally:
            for each in shared:
                each.end()

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


def check_parallel(parallel: object, one_norm: object, place: object, cross: object) -> None:
    """Raise an error unless a block of these choices can be wired."""
    check_bool("parallel", parallel)
    check_bool("one_norm", one_norm)
    if parallel and cross is not None:
        raise ValueError("parallel is for a block without cross-attention, got a cross")
    if one_norm and not (parallel and place == "pre"):
        raise ValueError(
            "one_norm is for parallel=True with place='pre', got "
            f"parallel {parallel} and place {place!r}"
        )
