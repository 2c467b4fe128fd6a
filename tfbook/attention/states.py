"""The state of attention: the keys and values seen so far, and which of them may be seen.

Every token mixer of this package is called as ``mixer(x, state=None, *, mask=None)`` and returns
``(y, state)``. For attention the state is a :class:`KVState`: a cache for self-attention, the
memory for cross-attention.

Explained in: chapters/03_multi_head, section "Fewer keys and values".
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from tfbook._checks import check_mask, check_number

__all__ = ["KVState", "join_key_masks", "read_mask", "with_head_axis"]


@dataclass(frozen=True, eq=False)
class KVState:
    """The keys and values that attention has seen: a cache, or a memory to look things up in.

    A state is never changed: :meth:`extend` makes a new one, so an old state stays valid and two
    continuations may start from it.

    Attributes:
        k: keys (B, n_kv_heads, M, d_head), with rotary positions already applied.
        v: values (B, n_kv_heads, M, d_value).
        mask: which keys may be seen at all, (B, 1, 1, M), True = allowed; None for every key.
        seen: how many positions came before the next one; M, unless old keys were dropped.

    Explained in: chapters/03_multi_head, section "Fewer keys and values".
    """

    k: Float[Tensor, "B H M D"]
    v: Float[Tensor, "B H M E"]
    mask: Bool[Tensor, "B 1 1 M"] | None
    seen: int

    @property
    def counts(self) -> Int[Tensor, " B"] | None:
        """Return at which position each sequence goes on; None where all do at ``seen``."""
        return None

    @property
    def length(self) -> int:
        """Return how many keys are held, M."""
        return self.k.shape[-2]

    @property
    def reach(self) -> int:
        """Return how far the next position is from the first key held."""
        return self.seen

    @property
    def nbytes(self) -> int:
        """Return the bytes of keys and values."""
        return self.k.nbytes + self.v.nbytes

    def extend(
        self,
        k: Float[Tensor, "B H N D"],
        v: Float[Tensor, "B H N E"],
        mask: Bool[Tensor, "B 1 1 N"] | None = None,
    ) -> "KVState":
        """Return a state with N more keys and values behind the ones it holds."""
        joined = join_key_masks(self.mask, self.length, mask, k)
        k, v = torch.cat([self.k, k], dim=-2), torch.cat([self.v, v], dim=-2)
        return KVState(k, v, joined, self.seen + k.shape[-2] - self.length)

    def append(self, k: Float[Tensor, "B H N D"], v: Float[Tensor, "B H N E"]) -> "KVState":
        """Do what :meth:`extend` does, for keys and values that fit and may all be seen."""
        return self.extend(k, v)

    def select(self, rows: Int[Tensor, " S"]) -> "KVState":
        """Return a state of the chosen sequences of the batch, in the order given."""
        mask = None if self.mask is None else self.mask[rows]
        return replace(self, k=self.k[rows], v=self.v[rows], mask=mask)

    def truncate(self, length: int) -> "KVState":
        """Return the state as it was after ``length`` positions: later keys are forgotten.

        Raises:
            TypeError: if the length is not an integer.
            ValueError: if it is negative, above ``seen``, or before the first key held.
        """
        check_number("length", length, 0, whole=True)
        left = self.length - (self.seen - length)
        if length > self.seen or left < 0:
            raise ValueError(
                f"length must be from {self.seen - self.length} to {self.seen}, "
                f"the positions held, got {length}"
            )
        mask = None if self.mask is None else self.mask[..., :left]
        return replace(
            self, k=self.k[..., :left, :], v=self.v[..., :left, :], mask=mask, seen=length
        )

    def trim(self) -> "KVState":
        """Return the state without what no later query will see; here it is the state itself."""
        return self

    def positions(self, *, device: torch.device | None = None) -> Int[Tensor, " M"]:
        """Return the position of each key held, seen − M … seen − 1."""
        return torch.arange(self.seen - self.length, self.seen, device=device)


def join_key_masks(
    old: Bool[Tensor, "B 1 1 M"] | None,
    length: int,
    new: Bool[Tensor, "B 1 1 N"] | None,
    rows: Float[Tensor, "B *H N D"],
) -> Bool[Tensor, "B 1 1 L"] | None:
    """Put the mask of the new keys behind that of the ``length`` old ones; None allows all.

    Args:
        old: which old keys may be seen.
        length: how many there are.
        new: which new keys may be seen.
        rows: the new keys themselves.
    """
    if old is None and new is None:
        return None
    sides = ((old, length), (new, rows.shape[-2]))
    everything = [
        rows.new_ones((rows.shape[0], 1, 1, size), dtype=torch.bool) if side is None else side
        for side, size in sides
    ]
    return torch.cat(everything, dim=-1)


def read_mask(
    mask: Bool[Tensor, "..."] | None, batch: int, n_heads: int, n: int, past: int
) -> tuple[Bool[Tensor, "B 1 1 N"] | None, Bool[Tensor, "..."] | None]:
    """Sort a mask into what belongs to the n new keys for good and what to this call only.

    Args:
        mask: boolean, True = allowed, as :meth:`MultiHeadAttention.forward` describes it.
        batch: how many sequences.
        n_heads: how many heads.
        n: how many queries, and new keys.
        past: how many keys come before them.

    Returns:
        Which new keys may be seen, (B, 1, 1, n), and which scores, broadcasting to
        (B, H, n, past + n); None where there is nothing to say.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if it does not fit.
    """
    if mask is None:
        return None, None
    own = isinstance(mask, Tensor) and mask.ndim > 0 and mask.shape[-1] in (1, n)
    mask = with_head_axis(mask, (batch, n_heads, n, n if own else past + n))
    if not own:
        return None, mask
    if mask.shape[1] == mask.shape[2] == 1:
        return mask.expand(batch, 1, 1, n), None
    return None, functional.pad(mask.expand(-1, -1, -1, n), (past, 0), value=True)


def with_head_axis(
    mask: Bool[Tensor, "..."], scores_shape: tuple[int, int, int, int]
) -> Bool[Tensor, "_ _ _ _"]:
    """Give a mask its four dimensions, (B, H, N, M); with three it is (B, N, M), for all heads.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if it does not broadcast to the scores.
    """
    batch, n_heads = scores_shape[:2]
    if isinstance(mask, Tensor) and mask.ndim == 3:
        if mask.shape[0] not in (1, batch):
            raise ValueError(
                "a mask of three dimensions is read as (B, N, M) with the batch first, here "
                f"B = {batch}, got {tuple(mask.shape)}; one mask for each head is mask[None], and "
                "nn.MultiheadAttention's (B·H, N, M) is "
                f"~mask.unflatten(0, ({batch}, {n_heads})), for it marks what is blocked"
            )
        mask = mask.unsqueeze(1)
    check_mask(mask, scores_shape)
    return mask[(None,) * (4 - mask.ndim)]
