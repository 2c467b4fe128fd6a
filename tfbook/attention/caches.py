"""Three ways to hold the keys and values of the past: growing, preallocated, and forgetting.

All three are states of attention (:class:`tfbook.attention.KVState`), so a mixer, a block and a
model take any of them, and what they compute does not change: a cache is a promise about cost. The
dynamic one is joined anew with every token; the static one has its room from the start and is
written in place; the sliding one keeps the last keys only, and its size does not grow.

A model makes one with ``model.empty_state(batch, cache=StaticCache(128))``.

Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
"""

from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfbook._checks import check_number, check_same, check_shape
from tfbook.attention.states import KVState, join_key_masks

__all__ = [
    "Cache",
    "DynamicCache",
    "SlidingCache",
    "SlidingKVState",
    "StaticCache",
    "StaticKVState",
    "make_empty",
]


class _Room:
    """Memory for keys and values, and how much of it has been written."""

    def __init__(self, k: Tensor, v: Tensor, filled: int):
        self.k, self.v, self.filled = k, v, filled

    def copy(self, k: Tensor, v: Tensor) -> "_Room":
        """Return as much room elsewhere, with the given keys and values in front."""
        room = _Room(*(_empty_like(x, len(k)) for x in (self.k, self.v)), k.shape[-2])
        room.k[:, :, : room.filled], room.v[:, :, : room.filled] = k, v
        return room


@dataclass(frozen=True, eq=False)
class StaticKVState(KVState):
    """Keys and values in memory that was set aside beforehand: a new one is written, not joined.

    An old state stays valid: its rows are never written again. Continue it a second time and the
    second continuation gets a copy of the memory, since the place behind it is taken.

    Attributes:
        k: keys (B, n_kv_heads, M, d_head), a view of the memory.
        v: values (B, n_kv_heads, M, d_value), another.
        mask: which keys may be seen at all, (B, 1, 1, M), True = allowed; None for every key.
        seen: how many positions came before the next one.
        room: the memory.

    Cost: N rows written for N new ones, instead of M + N; ``capacity`` rows held from the start.

    Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
    """

    room: _Room = field(repr=False)

    @property
    def capacity(self) -> int:
        """Return how many keys fit in all."""
        return self.room.k.shape[-2]

    @property
    def nbytes(self) -> int:
        """Return the bytes set aside, used or not."""
        return self.room.k.nbytes + self.room.v.nbytes

    def extend(
        self,
        k: Float[Tensor, "B H N D"],
        v: Float[Tensor, "B H N E"],
        mask: Bool[Tensor, "B 1 1 N"] | None = None,
    ) -> "StaticKVState":
        """Return a state with N more keys and values behind the ones it holds, written in place.

        Raises:
            TypeError: if they have another dtype.
            ValueError: if they do not fit, or a gradient would have to pass through the memory.
        """
        start, stop = self._place_of(k)
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise ValueError(
                "a static cache is written in place, which a gradient cannot pass: call the model "
                "under torch.no_grad(), or use DynamicCache()"
            )
        for name, new, held in (("k", k, self.k), ("v", v, self.v)):
            batch, n_heads, _, d = held.shape
            check_shape(name, new, (batch, n_heads, stop - start, d), "(B, H, N, D)")
            check_same(**{name: new, "the cache": held})
        new = self.append(k, v)
        if mask is not None:
            new = replace(new, mask=join_key_masks(self.mask, start, mask, k))
        return new

    def append(self, k: Float[Tensor, "B H N D"], v: Float[Tensor, "B H N E"]) -> "StaticKVState":
        """Do what :meth:`extend` does, for keys and values that fit and may all be seen.

        Raises:
            ValueError: if there is no room left.
        """
        start, stop = self._place_of(k)
        room = self.room
        if room.filled != start:  # another continuation stands behind these rows
            room = room.copy(self.k, self.v)
        for held, new in ((room.k, k), (room.v, v)):
            held.narrow(2, start, stop - start).copy_(new)
        room.filled = stop
        mask = join_key_masks(self.mask, start, None, k)
        k, v = (held.narrow(2, 0, stop) for held in (room.k, room.v))
        return StaticKVState(k, v, mask, self.seen + stop - start, room)

    def _place_of(self, k: Tensor) -> tuple[int, int]:
        """Return where keys will stand, from and to."""
        start, stop = self.length, self.length + k.shape[-2]
        if stop > self.capacity:
            raise ValueError(
                f"a static cache of {self.capacity} keys holds {start} and cannot take "
                f"{stop - start} more; make it larger, or use DynamicCache()"
            )
        return start, stop

    def select(self, rows: Int[Tensor, " S"]) -> "StaticKVState":
        """Return a state of the chosen sequences, in memory of its own."""
        room = self.room.copy(self.k[rows], self.v[rows])
        k, v = (x[:, :, : room.filled] for x in (room.k, room.v))
        return replace(
            self, k=k, v=v, mask=None if self.mask is None else self.mask[rows], room=room
        )


@dataclass(frozen=True, eq=False)
class SlidingKVState(KVState):
    """The last keys and values, and the first few if asked: old ones in between are dropped.

    Between two calls it holds the ``window`` − 1 last keys, so that a new query sees ``window``
    keys with its own. For a module with the same ``window`` nothing changes but the memory. For
    one without, this is an approximation; the ``sinks`` first keys stay in view as well then,
    since many heads rest on them.

    Attributes:
        k: keys (B, n_kv_heads, M, d_head), with rotary positions already applied.
        v: values (B, n_kv_heads, M, d_value).
        mask: which keys may be seen at all, (B, 1, 1, M), True = allowed; None for every key.
        seen: how many positions came before the next one, dropped ones included.
        window: how many keys a query sees, its own included.
        sinks: how many of the first keys are kept beside them.

    Cost: at most sinks + window − 1 rows held between calls, whatever came before.

    Source: [beltagy2020longformer], sinks: [xiao2024efficient]
    Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
    """

    window: int
    sinks: int = 0

    @property
    def reach(self) -> int:
        """Return how far the next position is from the first key held."""
        return self.seen if self.sinks else self.length

    def extend(
        self,
        k: Float[Tensor, "B H N D"],
        v: Float[Tensor, "B H N E"],
        mask: Bool[Tensor, "B 1 1 N"] | None = None,
    ) -> "SlidingKVState":
        """Return a state with N more keys and values; :meth:`trim` drops what is too old."""
        whole = super().extend(k, v, mask)
        return replace(self, k=whole.k, v=whole.v, mask=whole.mask, seen=whole.seen)

    def trim(self) -> "SlidingKVState":
        """Return the state without the keys that no later query will see."""
        recent = self.window - 1
        if self.length <= self.sinks + recent:
            return self
        first, last = slice(0, self.sinks), slice(self.length - recent, self.length)

        def drop(x: Tensor, dim: int) -> Tensor:
            parts = (x.narrow(dim, s.start, s.stop - s.start) for s in (first, last))
            return torch.cat(list(parts), dim=dim)  # a copy, so that the dropped rows are freed

        mask = None if self.mask is None else drop(self.mask, -1)
        return replace(self, k=drop(self.k, -2), v=drop(self.v, -2), mask=mask)

    def truncate(self, length: int) -> "SlidingKVState":
        """Return the state as it was after ``length`` positions, if nothing was dropped yet.

        Raises:
            TypeError: if the length is not an integer.
            ValueError: if keys that were dropped would have to come back.
        """
        if self.seen > self.length and length != self.seen:
            raise ValueError("a sliding cache cannot go back: it has dropped its old keys")
        return super().truncate(length)

    def positions(self, *, device: torch.device | None = None) -> Int[Tensor, " M"]:
        """Return the position of each key held."""
        recent = self.length - (self.sinks if self.seen > self.length else 0)
        first = torch.arange(self.length - recent, device=device)
        return torch.cat([first, torch.arange(self.seen - recent, self.seen, device=device)])


@runtime_checkable
class Cache(Protocol):
    """What makes the empty state of one attention.

    Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
    """

    def empty(self, k: Float[Tensor, "B H 0 D"], v: Float[Tensor, "B H 0 E"]) -> KVState:
        """Return a state with no keys yet, of the sizes, dtype and device of k and v."""
        ...


@dataclass(frozen=True)
class DynamicCache:
    """Make states that grow with what they hold: :class:`tfbook.attention.KVState`.

    Explained in: chapters/12_generation, section "The cache".
    """

    def empty(self, k: Float[Tensor, "B H 0 D"], v: Float[Tensor, "B H 0 E"]) -> KVState:
        """Return a state with no keys yet, of the sizes, dtype and device of k and v."""
        return KVState(k, v, None, 0)


@dataclass(frozen=True)
class StaticCache:
    """Make states with room for ``max_len`` keys: :class:`StaticKVState`.

    Args:
        max_len: how many keys fit.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is below 1.

    Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
    """

    max_len: int

    def __post_init__(self) -> None:
        """Check the length."""
        check_number("max_len", self.max_len, 1, whole=True)

    def empty(self, k: Float[Tensor, "B H 0 D"], v: Float[Tensor, "B H 0 E"]) -> StaticKVState:
        """Return a state with no keys yet, of the sizes, dtype and device of k and v."""
        memory = (x.new_empty((*x.shape[:2], self.max_len, x.shape[-1])) for x in (k, v))
        room = _Room(*memory, 0)
        return StaticKVState(room.k[:, :, :0], room.v[:, :, :0], None, 0, room)


@dataclass(frozen=True)
class SlidingCache:
    """Make states that keep the last keys only: :class:`SlidingKVState`.

    Args:
        window: how many keys a query sees, its own included.
        sinks: how many of the first keys are kept as well.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if window is below 1 or sinks below 0.

    Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
    """

    window: int
    sinks: int = 0

    def __post_init__(self) -> None:
        """Check both numbers."""
        check_number("window", self.window, 1, whole=True)
        check_number("sinks", self.sinks, 0, whole=True)

    def empty(self, k: Float[Tensor, "B H 0 D"], v: Float[Tensor, "B H 0 E"]) -> SlidingKVState:
        """Return a state with no keys yet, of the sizes, dtype and device of k and v."""
        return SlidingKVState(k, v, None, 0, self.window, self.sinks)


def make_empty(
    cache: Cache | None, batch: int, n_kv_heads: int, d_head: int, d_value: int, *, like: Tensor
) -> KVState:
    """Return a state with no keys yet, with the dtype and device of ``like``.

    Args:
        cache: what makes it; ``DynamicCache()`` when None.
        batch: how many sequences.
        n_kv_heads: heads of keys and values.
        d_head: size of a key.
        d_value: size of a value.
        like: a tensor of the wanted dtype and device, such as a weight.

    Raises:
        TypeError: if batch is not an integer, or the cache cannot make states.
        ValueError: if batch is below 1.

    Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
    """
    check_number("batch", batch, 1, whole=True)
    cache = DynamicCache() if cache is None else cache
    if isinstance(cache, type) or not isinstance(cache, Cache):
        name = cache.__name__ if isinstance(cache, type) else type(cache).__name__
        raise TypeError(f"cache must be one of DynamicCache(), StaticCache(n), …, got {name}")
    shape = (batch, n_kv_heads, 0)
    return cache.empty(*(like.new_empty((*shape, d)).detach() for d in (d_head, d_value)))


def _empty_like(x: Tensor, batch: int) -> Tensor:
    return x.new_empty((batch, *x.shape[1:]))
