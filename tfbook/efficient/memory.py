"""Memories beyond a segment: rows of the past kept, rows of the past pooled, and a stream's ends.

A long text is read segment by segment. Transformer-XL keeps the rows that entered each layer while
the last segments were read, and lets the next segment look at them; the Compressive Transformer
pools what is too old for that instead of forgetting it. For a model that was trained without any
memory, a cache of the first few and the last keys lets it read a stream without end.

Explained in: chapters/07_efficient_attention_deeper, section "Memory across segments".
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_choice,
    check_number,
    check_rows,
    check_same,
    check_shape,
)
from tfbook.attention import KVState, MultiHeadAttention, SlidingCache, SlidingKVState, split_heads
from tfbook.positions import RotaryPosition

__all__ = ["SegmentAttention", "SegmentState", "SinkCache", "SinkKVState"]

POOLS = ("mean", "max", "conv")


@dataclass(frozen=True, eq=False)
class SegmentState:
    """The rows that a layer has seen last, and in front of them pooled ones; never changed.

    Attributes:
        rows: what entered the layer, (B, M, d_model).
        pooled: older rows, several pooled to one, (B, C, d_model).
        mask: which rows may be seen, (B, 1, 1, C + M), True = allowed; None for all.
        seen: how many rows came before the next one.

    Explained in: chapters/07_efficient_attention_deeper, section "Memory across segments".
    """

    rows: Float[Tensor, "B M D"]
    pooled: Float[Tensor, "B C D"]
    mask: Bool[Tensor, "B 1 1 L"] | None
    seen: int

    @property
    def length(self) -> int:
        """Return how many rows are held, C + M."""
        return self.pooled.shape[1] + self.rows.shape[1]

    @property
    def reach(self) -> int:
        """Return how far back, in positions of the attention, the next row looks."""
        return self.length

    @property
    def nbytes(self) -> int:
        """Return the bytes of the rows."""
        return self.rows.nbytes + self.pooled.nbytes

    def select(self, rows: Int[Tensor, " S"]) -> "SegmentState":
        """Return a state of the chosen sequences of the batch, in the order given."""
        mask = None if self.mask is None else self.mask[rows]
        return replace(self, rows=self.rows[rows], pooled=self.pooled[rows], mask=mask)


class SegmentAttention(nn.Module):
    """Self-attention that remembers the rows of past segments, as in Transformer-XL.

    With the memory m, the last ``length`` rows that entered this layer in earlier calls:
    q = x W_q, k = [m ; x] W_k, v = [m ; x] W_v, y = attend(q, k, v) W_out, and the next memory is
    the end of [sg(m) ; sg(x)], where sg stops the gradient. A row of layer ℓ sees ``length`` rows
    of layer ℓ − 1, which saw as many before them: n_layers · length positions in all.

    With ``pooled``, as in the Compressive Transformer, ``rate`` rows that leave the memory become
    one, the last ``pooled`` of which stand in front of it.

    Args:
        attention: causal multi-head self-attention. Its positions must depend on distances:
            ``TransformerXLPositions``, another part with ``bias``, a rotary one, or none.
        length: how many rows are kept.
        pooled: how many pooled rows are kept; 0 forgets what is too old.
        rate: how many rows become one.
        pool: "mean", "max", or "conv", a learned map of the ``rate`` rows.
        detach: whether the gradient stops at the memory. The learned map gets none then, so it
            needs another loss, such as that of :meth:`reconstruction_loss`.

    Attributes:
        conv: the learned map, None for another pool.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or attention of another kind.

    Cost: as the attention of n queries and C + M + n keys, and 2 (C + M) d_model · 2 d_k H FLOPs
        for the keys and values of the memory, which are made anew in each call.

    Example:
        >>> from tfbook.positions import TransformerXLPositions
        >>> attention = MultiHeadAttention(
        ...     8, 2, causal=True, position=TransformerXLPositions(2, 4)
        ... )
        >>> layer = SegmentAttention(attention, length=6)
        >>> _, state = layer(torch.randn(1, 4, 8))
        >>> _, state = layer(torch.randn(1, 4, 8), state)
        >>> state.length, state.seen
        (6, 8)

    Source: [dai2019transformerxl], pooled: [rae2020compressive]
    Explained in: chapters/07_efficient_attention_deeper, section "Memory across segments".
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        length: int,
        *,
        pooled: int = 0,
        rate: int = 4,
        pool: Literal["mean", "max", "conv"] = "mean",
        detach: bool = True,
    ):
        """Keep the attention and the choices."""
        super().__init__()
        if not isinstance(attention, MultiHeadAttention):
            raise TypeError(
                f"attention must be a MultiHeadAttention, got {type(attention).__name__}"
            )
        part = attention.position
        relative = any(callable(getattr(part, name, None)) for name in ("bias", "rotate"))
        if attention.is_cross or not attention.causal or not (part is None or relative):
            raise ValueError(
                "attention must be causal self-attention, its position None or one that depends on "
                f"distances, got causal={attention.causal} and position {part}"
            )
        if attention.window is not None:
            raise ValueError(f"attention must have no window, got {attention.window}")
        check_number("length", length, 0, whole=True)
        check_number("pooled", pooled, 0, whole=True)
        check_number("rate", rate, 1, whole=True)
        check_choice("pool", pool, POOLS)
        check_bool("detach", detach)
        self.attention, self.length, self.pooled = attention, length, pooled
        self.rate, self.pool, self.detach = rate, pool, detach
        d = self.d_model = attention.d_model
        self.conv = nn.Conv1d(d, d, rate, stride=rate) if pooled and pool == "conv" else None

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: SegmentState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], SegmentState]:
        """Mix the rows of a segment, looking into the memory.

        Args:
            x: (B, N, d_model).
            state: what the call before returned, None at the start of a sequence.
            mask: as for :meth:`tfbook.attention.MultiHeadAttention.forward`; with ``pooled`` none
                is taken, since a pooled row cannot be told by halves.

        Returns:
            y (B, N, d_model), and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit.
        """
        check_rows("x", x, self.attention.q_proj.weight)
        self._check_state(x, state)
        if mask is not None and self.pooled:
            raise ValueError("mask must be None where old rows are pooled, they cannot be masked")
        if state is None:
            state = SegmentState(x[:, :0], x[:, :0], None, 0)
        y, after = self.attention(x, self._as_keys(state), mask=mask)
        return y, self._remember(x, state, after.mask)

    def reconstruction_loss(
        self, x: Float[Tensor, "B N D"], old: Float[Tensor, "B M D"]
    ) -> Float[Tensor, ""]:
        """Return how much is lost when rows are pooled: what x finds in them before and after.

        The mean of (attend(q, k(old), v(old)) − attend(q, k(pool(old)), v(pool(old))))², without
        positions. Only the learned map gets a gradient.

        Args:
            x: the rows that ask, (B, N, d_model).
            old: rows to be pooled, (B, M, d_model), M a multiple of ``rate``.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit.

        Source: [rae2020compressive]
        Explained in: chapters/07_efficient_attention_deeper, section "Memory across segments".
        """
        part = self.attention
        check_rows("x", x, part.q_proj.weight)
        check_rows("old", old, part.q_proj.weight)
        if len(x) != len(old) or not old.shape[1] or old.shape[1] % self.rate:
            raise ValueError(
                f"old must have shape (B, M, {self.d_model}) with B = {len(x)} and M a multiple of "
                f"{self.rate}, got {tuple(old.shape)}"
            )
        new, found = self._pool(old.detach()), []
        q = split_heads(_frozen(part.q_proj, x.detach()), part.n_heads).unflatten(
            1, (part.n_kv_heads, -1)
        )
        for rows in (old.detach(), new):
            k, v = (
                split_heads(_frozen(proj, rows), part.n_kv_heads).unsqueeze(2)
                for proj in (part.k_proj, part.v_proj)
            )
            found.append(part.attend(q, k, v, scale=part.scale))
        return (found[0] - found[1]).square().mean()

    def _as_keys(self, state):
        """Return the keys and values of the memory, at the positions 0, 1, … before x."""
        part = self.attention
        rows = torch.cat([state.pooled, state.rows], dim=1)  # (B, C + M, D)
        k, v = (split_heads(proj(rows), part.n_kv_heads) for proj in (part.k_proj, part.v_proj))
        k = k if part.k_norm is None else part.k_norm(k)
        if callable(getattr(part.position, "rotate", None)):
            k = part.position.rotate(k, torch.arange(state.length, device=rows.device))
        return KVState(k, v, state.mask, state.length)

    def _remember(self, x, state, mask):
        """Return the state after the rows x, of which the mask was kept with the memory's."""
        rows, pooled = torch.cat([state.rows, x], dim=1), state.pooled
        seen = state.seen + x.shape[1]
        old = max(0, rows.shape[1] - self.length)
        if self.pooled:
            old -= old % self.rate  # as many as can be pooled; the rest waits
            if old:
                pooled = torch.cat([pooled, self._pool(rows[:, :old])], dim=1)
            pooled = pooled[:, max(0, pooled.shape[1] - self.pooled) :]
        rows = rows[:, old:]
        if self.detach:
            rows, pooled = rows.detach(), pooled.detach()
        if mask is not None:
            mask = mask[..., mask.shape[-1] - rows.shape[1] :]
        return SegmentState(rows, pooled, mask, seen)

    def _pool(self, rows):
        """Make one row of each ``rate``, (B, M, D) → (B, M / rate, D)."""
        if self.conv is not None:
            return self.conv(rows.mT).mT
        groups = rows.unflatten(1, (-1, self.rate))
        return groups.mean(2) if self.pool == "mean" else groups.amax(2)

    def _check_state(self, x, state):
        if state is None:
            return
        if not isinstance(state, SegmentState):
            raise TypeError(f"state must be a SegmentState, got {type(state).__name__}")
        for name in ("rows", "pooled"):
            held = getattr(state, name)
            shape = (len(x), held.shape[1], self.d_model)
            check_shape(f"state.{name}", held, shape, "(B, M, d_model)")
            check_same(**{"x": x, f"state.{name}": held})

    def extra_repr(self) -> str:
        """Show the sizes."""
        pooled = f", pooled={self.pooled}, rate={self.rate}, pool={self.pool!r}"
        return f"length={self.length}" + pooled * bool(self.pooled)


def _frozen(linear: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear map whose weights get no gradient."""
    bias = None if linear.bias is None else linear.bias.detach()
    return nn.functional.linear(x, linear.weight.detach(), bias)


@dataclass(frozen=True, eq=False)
class SinkKVState(KVState):
    """The first keys and the last ones, numbered as if nothing had stood between them.

    Attributes:
        k: keys (B, n_kv_heads, M, d_head), rotated to their places in the cache, 0 … M − 1.
        v: values (B, n_kv_heads, M, d_value).
        mask: which keys may be seen at all, (B, 1, 1, M), True = allowed; None for every key.
        seen: the place of the next key in the cache, M.
        window: how many of the last keys a query sees, its own included.
        sinks: how many of the first keys are kept beside them.
        rotary: what rotated the keys.
        dropped: how many were dropped.

    Cost: at most sinks + window − 1 rows held between calls; those of the window are turned back
        by a place for each that is dropped.

    Source: [xiao2024efficient]
    Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
    """

    window: int
    sinks: int
    rotary: RotaryPosition
    dropped: int = 0

    def extend(
        self,
        k: Float[Tensor, "B H N D"],
        v: Float[Tensor, "B H N E"],
        mask: Bool[Tensor, "B 1 1 N"] | None = None,
    ) -> "SinkKVState":
        """Return a state with N more keys and values; :meth:`trim` drops what is too old."""
        whole = super().extend(k, v, mask)
        return replace(self, k=whole.k, v=whole.v, mask=whole.mask, seen=whole.seen)

    def trim(self) -> "SinkKVState":
        """Return the state without the keys that no later query will see, the others moved up."""
        recent, held = self.window - 1, self.length
        old = held - self.sinks - recent
        if old <= 0:
            return self

        def keep(x: Tensor, dim: int) -> Sequence[Tensor]:
            return x.narrow(dim, 0, self.sinks), x.narrow(dim, held - recent, recent)

        first, last = keep(self.k, -2)
        back = torch.full((recent,), -old, device=last.device)
        # Rotations add up, so a turn by −old places is a turn to the new place.
        k = torch.cat([first, self.rotary.rotate(last, back)], dim=-2)
        mask = None if self.mask is None else torch.cat(keep(self.mask, -1), dim=-1)
        v, dropped = torch.cat(keep(self.v, -2), dim=-2), self.dropped + old
        return replace(self, k=k, v=v, mask=mask, seen=self.sinks + recent, dropped=dropped)

    def truncate(self, length: int) -> "SinkKVState":
        """Return the state as it was after ``length`` positions, if nothing was dropped yet.

        Raises:
            TypeError: if the length is not an integer.
            ValueError: if keys that were dropped would have to come back.
        """
        if self.dropped:
            raise ValueError("a cache with sinks cannot go back: it has dropped keys")
        return super().truncate(length)


@dataclass(frozen=True)
class SinkCache:
    """Make states that keep the first keys and the last ones, as StreamingLLM does.

    Many heads rest on the first tokens of a text, so a window that drops these breaks a model which
    was trained without one; a few of them, kept, mend it. With ``rotary`` the keys that are kept
    are numbered anew, 0 … sinks + window − 1, so that no distance is longer than the cache,
    however long the stream. Without it they keep their positions: that is
    :class:`tfbook.attention.SlidingCache`.

    Args:
        window: how many of the last keys a query sees, its own included.
        sinks: how many of the first keys are kept as well.
        rotary: the part that rotates the model's keys, such as ``block.mixer.position``, whose
            ``amplitude`` must be 1; None to keep the positions.

    Raises:
        TypeError: if a number is not an integer, or rotary cannot rotate.
        ValueError: if window is below 1 or sinks below 0, or rotary changes the keys' lengths.

    Example:
        >>> from tfbook.positions import RotaryPositions
        >>> rotary = RotaryPositions(4)
        >>> mha = MultiHeadAttention(8, 2, causal=True, position=rotary)
        >>> state = mha.empty_state(1, cache=SinkCache(3, sinks=2, rotary=rotary))
        >>> for row in torch.randn(20, 1, 1, 8):
        ...     _, state = mha(row, state)
        >>> state.length, state.seen, state.dropped
        (4, 4, 16)

    Source: [xiao2024efficient]
    Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
    """

    window: int
    sinks: int = 4
    rotary: RotaryPosition | None = None

    def __post_init__(self) -> None:
        """Check the choices."""
        check_number("window", self.window, 1, whole=True)
        check_number("sinks", self.sinks, 0, whole=True)
        if self.rotary is None:
            return
        if isinstance(self.rotary, type) or not callable(getattr(self.rotary, "rotate", None)):
            raise TypeError(
                f"rotary must have a method rotate, or be None, got {type(self.rotary).__name__}"
            )
        amplitude = getattr(self.rotary, "amplitude", 1.0)
        if amplitude != 1:
            raise ValueError(
                "rotary must keep the lengths of keys, for they are turned more than once; "
                f"got one with amplitude {amplitude}"
            )

    def empty(
        self, k: Float[Tensor, "B H 0 D"], v: Float[Tensor, "B H 0 E"]
    ) -> SinkKVState | SlidingKVState:
        """Return a state with no keys yet, of the sizes, dtype and device of k and v."""
        if self.rotary is None:
            return SlidingCache(self.window, self.sinks).empty(k, v)
        return SinkKVState(k, v, None, 0, self.window, self.sinks, self.rotary)
