"""The lightning indexer: a small attention of its own chooses the keys that the large one reads.

It scores every key for every query, and is learned for that.

Explained in: chapters/07_efficient_attention, section "Choosing what to read".
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_float,
    check_mask,
    check_number,
    check_rows,
    check_same,
    check_shape,
)
from tfbook.attention import (
    KVState,
    MultiHeadAttention,
    causal_mask,
    combine_masks,
    merge_heads,
    restrict,
    split_heads,
)
from tfbook.efficient.selected import attend_chosen

__all__ = [
    "IndexedAttention",
    "IndexedState",
    "LightningIndexer",
    "index_loss",
]


class LightningIndexer(nn.Module):
    """Score each key for each query with a few small heads, to choose what attention reads.

    I_ts = Σ_j w_tj relu(q_tj · k_s), where the queries q_tj and the weights w_tj of the heads j are
    made from row t, and the key k_s, one for all heads, from row s.

    Args:
        d_model: features of x.
        n_heads: heads of the indexer.
        d_index: size of their queries and of the key.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if one is below 1.

    Cost: 2 · n · m · n_heads · (d_index + 1) FLOPs, small but for every pair.

    Example:
        >>> indexer, x = LightningIndexer(8, 2, 4), torch.randn(1, 5, 8)
        >>> indexer(x, indexer.keys(x)).shape
        torch.Size([1, 5, 5])

    Source: [deepseek2025v32]
    Explained in: chapters/07_efficient_attention, section "Choosing what to read".
    """

    def __init__(self, d_model: int, n_heads: int = 4, d_index: int = 32):
        """Make the three linear maps, none of which has a bias."""
        super().__init__()
        sizes = {"d_model": d_model, "n_heads": n_heads, "d_index": d_index}
        for name, value in sizes.items():
            check_number(name, value, 1, whole=True)
        self.d_model, self.n_heads, self.d_index = d_model, n_heads, d_index
        self.q_proj = nn.Linear(d_model, n_heads * d_index, bias=False)
        self.k_proj = nn.Linear(d_model, d_index, bias=False)
        self.weight_proj = nn.Linear(d_model, n_heads, bias=False)

    def keys(self, x: Float[Tensor, "B M D"]) -> Float[Tensor, "B M I"]:
        """Return what the indexer keeps of each row, (B, M, d_index)."""
        check_rows("x", x, self.k_proj.weight)
        return self.k_proj(x)

    def forward(
        self, x: Float[Tensor, "B N D"], keys: Float[Tensor, "B M I"]
    ) -> Float[Tensor, "B N M"]:
        """Return the scores of all keys for each row of x, (B, N, M); nothing is hidden.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit.
        """
        check_rows("x", x, self.q_proj.weight)
        check_float("keys", keys, min_dims=3)
        check_shape("keys", keys, (len(x), keys.shape[1], self.d_index), "(B, M, d_index)")
        q = split_heads(self.q_proj(x), self.n_heads)  # (B, J, N, I)
        hits = torch.relu(q @ keys.unsqueeze(1).mT)  # (B, J, N, M)
        return torch.einsum("bnj,bjnm->bnm", self.weight_proj(x), hits)


def index_loss(
    scores: Float[Tensor, "B N M"],
    weights: Float[Tensor, "B H N M"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, ""]:
    """Return how far an indexer is from the attention that it chooses for.

    The mean over queries of KL(p ‖ softmax(I)), where p is the attention's weights summed over the
    heads and divided by their sum. The weights get no gradient: the indexer follows the attention.

    Args:
        scores: of the indexer, (B, N, M), −∞ where not allowed.
        weights: of the attention, (B, H, N, M).
        mask: which keys count, such as the chosen ones, broadcasting to (B, N, M); those with a
            score above −∞ when omitted.

    Returns:
        The loss in nats, 0 where the two agree; queries without any weight are left out.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit.

    Example:
        >>> weights = torch.tensor([[[[0.0, 1.0]]]])
        >>> index_loss(torch.zeros(1, 1, 2), weights)  # of two keys the right one, unknown: log 2
        tensor(0.6931)

    Source: [deepseek2025v32]
    Explained in: chapters/07_efficient_attention, section "Choosing what to read".
    """
    check_float("scores", scores)
    check_float("weights", weights)
    if scores.ndim != 3:
        raise ValueError(f"scores must have shape (B, N, M), got {tuple(scores.shape)}")
    batch, n, m = scores.shape
    heads = weights.shape[1] if weights.ndim > 1 else 0
    check_shape("weights", weights, (batch, heads, n, m), "(B, H, N, M)")
    check_same(scores=scores, weights=weights)
    allowed = scores.detach() > -torch.inf
    if mask is not None:
        check_mask(mask, scores.shape)
        allowed = allowed & mask
    p = (weights.detach().sum(1) * allowed).double()  # (B, N, M)
    total = p.sum(-1, keepdim=True)
    p = p / total.masked_fill(total == 0, 1.0)
    lowest = torch.finfo(scores.dtype).min  # in a row without any, all are alike
    guess = functional.log_softmax(scores.masked_fill(~allowed, lowest), dim=-1)
    guess = guess.masked_fill(~allowed, 0.0).double()
    parts = torch.special.xlogy(p, p) - p * guess  # (B, N, M)
    return (parts.sum() / (total > 0).sum().clamp(min=1)).to(scores.dtype)


@dataclass(frozen=True, eq=False)
class IndexedState:
    """Keys and values of the attention, and the keys of its indexer; never changed.

    Attributes:
        cache: the state of the attention.
        keys: those of the indexer, (B, M, d_index).

    Explained in: chapters/07_efficient_attention, section "Choosing what to read".
    """

    cache: KVState
    keys: Float[Tensor, "B M I"]

    @property
    def length(self) -> int:
        """Return how many rows are held, M."""
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all keys and values."""
        return self.cache.nbytes + self.keys.nbytes

    def select(self, rows: Int[Tensor, " S"]) -> "IndexedState":
        """Return a state of the chosen sequences of the batch, in the order given."""
        return IndexedState(self.cache.select(rows), self.keys[rows])


class IndexedAttention(nn.Module):
    """Causal multi-head attention to the ``top`` keys that a lightning indexer scores best.

    y_t = attention of row t to {s : I_ts among the top scores of row t}, all heads to the same
    keys. With ``top`` at least the number of keys it is plain attention.

    Args:
        d_model: features of x and y.
        n_heads: H.
        top: how many keys a query reads.
        index_heads: heads of the indexer.
        d_index: size of its keys.
        choices: further ones of :class:`tfbook.attention.MultiHeadAttention`: n_kv_heads, d_head,
            d_value, bias, scale, qk_norm, qk_norm_whole, and a rotary position.

    Attributes:
        attention: the large attention.
        indexer: the small one. The choice of keys gives it no gradient; it learns by
            :func:`index_loss`, and the rows it reads get none from it.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes or choices that do not fit.

    Cost: the indexer's n · m scores, and attention of n · top pairs.

    Example:
        >>> mixer = IndexedAttention(8, 2, top=3, index_heads=2, d_index=4)
        >>> y, state = mixer(torch.randn(1, 5, 8))
        >>> y.shape, state.length
        (torch.Size([1, 5, 8]), 5)

    Source: [deepseek2025v32]
    Explained in: chapters/07_efficient_attention, section "Choosing what to read".
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        top: int,
        index_heads: int = 4,
        d_index: int = 32,
        **choices: object,
    ):
        """Make the attention and the indexer."""
        super().__init__()
        check_number("top", top, 1, whole=True)
        known = "n_kv_heads d_head d_value bias scale qk_norm qk_norm_whole position".split()
        if unknown := sorted(set(choices) - set(known)):
            raise ValueError(f"choices must be out of {', '.join(known)}, got {unknown}")
        position = choices.get("position")
        if position is not None and not callable(getattr(position, "rotate", None)):
            raise TypeError(f"position must have a method rotate, got {type(position).__name__}")
        self.d_model, self.top = d_model, top
        self.attention = MultiHeadAttention(d_model, n_heads, causal=True, **choices)
        self.indexer = LightningIndexer(d_model, index_heads, d_index)

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: IndexedState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], IndexedState]:
        """Mix the rows of x, continuing from a state.

        Arguments, returns and errors are those of
        :meth:`tfbook.attention.MultiHeadAttention.forward`; the mask is the same for all heads.
        """
        part = self.attention
        q, state, scores = self._score(x, state, mask)
        # Of keys with equal scores, such as 0 where no head of the indexer is above it, the first
        # are taken, so that it does not matter where a sequence is cut.
        best, chosen = scores.detach().sort(dim=-1, descending=True, stable=True)
        best, chosen = (each[..., : self.top] for each in (best, chosen))  # (B, N, T)
        valid = (best > -torch.inf).unsqueeze(1)
        cache = state.cache
        z = attend_chosen(q, cache.k, cache.v, chosen.unsqueeze(1), valid=valid, scale=part.scale)
        return part.out_proj(merge_heads(part.z(z))), state

    def _score(self, x, state, mask):
        """Return queries, state, and the indexer's scores, −∞ where not allowed."""
        part = self.attention
        if not (state is None or isinstance(state, IndexedState)):
            raise TypeError(f"state must be an IndexedState, got {type(state).__name__}")
        q, cache, given = part._project(x, None if state is None else state.cache, mask)
        rows = x.detach()
        keys = self.indexer.keys(rows)
        if state is not None:
            keys = torch.cat([state.keys, keys], dim=1)
        n, m = x.shape[1], keys.shape[1]
        allowed = combine_masks(given["mask"], causal_mask(n, m, device=x.device))
        allowed = allowed.expand(len(x), -1 if allowed.ndim == 4 else 1, n, m)  # (B, 1 or H, N, M)
        if allowed.shape[1] > 1:
            raise ValueError("mask must be the same for all heads, which read the same keys")
        scores = restrict(self.indexer(rows, keys), mask=allowed.squeeze(1))
        return q, IndexedState(cache, keys), scores
