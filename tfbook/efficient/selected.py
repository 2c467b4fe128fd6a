"""Native sparse attention: to blocks that are chosen by scores cheaper than attention.

It looks at the past three times: at blocks pooled to one key each, at the few blocks which these
scores find best, and at the last keys.

Explained in: chapters/07_efficient_attention, section "Choosing what to read".
"""

from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import (
    check_choice,
    check_float,
    check_mask,
    check_number,
    check_rows,
    check_same,
    check_shape,
    check_tensor,
    head_sizes,
)
from tfbook.attention import attend, group_heads, merge_heads, split_heads
from tfbook.efficient.windows import attend_window
from tfbook.positions import RotaryPosition, places_for

__all__ = [
    "NativeSparseAttention",
    "NativeSparseState",
    "attend_chosen",
]


def attend_chosen(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B G M D"],
    v: Float[Tensor, "B G M E"],
    chosen: Int[Tensor, "B C N T"],
    *,
    valid: Bool[Tensor, "B C N T"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "B H N E"]:
    """Attend to T keys that were chosen for each query; only these are read.

    out_i = Σ_t softmax_t(scale · q_i · k_{c(i,t)}) v_{c(i,t)}.

    Args:
        q: queries (B, H, N, d).
        k: keys (B, G, M, d), G a divisor of H; queries of one group share them.
        v: values (B, G, M, d_v).
        chosen: the numbers of the keys, from 0 to M − 1, (B, G, N, T), or (B, 1, N, T) for all
            groups. A key that is named twice counts twice.
        valid: which of them count, of the same shape; all when omitted.
        scale: factor on q kᵀ; 1/√d when omitted.

    Returns:
        The output (B, H, N, d_v); zeros for a query with no valid key.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, or keys that do not exist.

    Cost: 2 H N T (d + d_v) FLOPs; the chosen keys and values, G N T (d + d_v) numbers, are copied.

    Example:
        >>> q, k, v = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 4, 2), torch.arange(4.0)
        >>> attend_chosen(q, k, v.view(1, 1, 4, 1), torch.tensor([[[[1, 3]]]])).item()
        2.0

    Explained in: chapters/07_efficient_attention, section "Choosing what to read".
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_float(name, x)
        if x.ndim != 4:
            raise ValueError(f"{name} must have four dimensions, got {tuple(x.shape)}")
    check_same(q=q, k=k, v=v)
    (batch, heads, n, d), (_, groups, m, _) = q.shape, k.shape
    check_shape("k", k, (batch, groups, m, d), "(B, G, M, d)")
    check_shape("v", v, (batch, groups, m, v.shape[-1]), "(B, G, M, d_v)")
    if not groups or heads % groups:
        raise ValueError(f"the groups of k must divide the heads of q, got {groups} and {heads}")
    _check_chosen(chosen, batch, groups, n, m)
    if valid is not None:
        check_mask(valid, chosen.shape)
        check_shape("valid", valid, chosen.shape, "of chosen")
        valid = valid.unsqueeze(-2)  # (B, C, N, 1, T)
    first = m * torch.arange(batch * groups, device=q.device).view(batch, groups, 1, 1)
    rows, size = (first + chosen).flatten(), chosen.shape[-1]  # rows of one list of all keys
    k, v = (x.flatten(0, 2).index_select(0, rows) for x in (k, v))
    k, v = (x.view(batch, groups, n, size, x.shape[-1]) for x in (k, v))  # (B, G, N, T, d)
    q = q.unflatten(1, (groups, heads // groups)).transpose(2, 3)  # (B, G, N, H / G, d)
    z = attend(q, k, v, mask=valid, scale=scale)  # (B, G, N, H / G, d_v)
    return z.transpose(2, 3).flatten(1, 2)


def _check_chosen(chosen, batch, groups, n, m):
    check_tensor("chosen", chosen)
    if chosen.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"chosen must be integers, got {chosen.dtype}")
    fits = chosen.ndim == 4 and chosen.shape[0] == batch and chosen.shape[2] == n
    if not (fits and chosen.shape[1] in (1, groups)):
        raise ValueError(
            f"chosen must have shape (B, G or 1, N, T) = ({batch}, {groups} or 1, {n}, T), "
            f"got {tuple(chosen.shape)}"
        )
    if chosen.numel() and chosen.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = (int(end) for end in chosen.aminmax())
        if low < 0 or high >= m:
            raise ValueError(f"chosen must be from 0 to {m - 1}, got {low} to {high}")


# Native sparse attention


@dataclass(frozen=True, eq=False)
class NativeSparseState:
    """What native sparse attention carries on; never changed.

    Attributes:
        k, v: keys and values to select from, (B, G, M, d).
        near_k, near_v: those of the window, the last ones only.
        block_k, block_v: pooled blocks.
        rest_k, rest_v: those of a block that is not full yet, not pooled.

    Explained in: chapters/07_efficient_attention, section "Choosing what to read".
    """

    k: Float[Tensor, "B G M D"]
    v: Float[Tensor, "B G M D"]
    near_k: Float[Tensor, "B G W D"]
    near_v: Float[Tensor, "B G W D"]
    block_k: Float[Tensor, "B G C D"]
    block_v: Float[Tensor, "B G C D"]
    rest_k: Float[Tensor, "B G L D"]
    rest_v: Float[Tensor, "B G L D"]

    @property
    def length(self) -> int:
        """Return how many rows came before the next one, M."""
        return self.k.shape[-2]

    @property
    def nbytes(self) -> int:
        """Return the bytes of everything that is held."""
        return sum(getattr(self, each.name).nbytes for each in fields(self))

    def select(self, rows: Int[Tensor, " S"]) -> "NativeSparseState":
        """Return a state of the chosen sequences of the batch, in the order given."""
        return replace(self, **{each.name: getattr(self, each.name)[rows] for each in fields(self)})


class BlockPool(nn.Module):
    """Make one row of each block of rows, which know their place in the block.

    mean: x̃ = mean_t(x_t + place_t); mlp: x̃ = W_2 relu(W_1 [x_1 + place_1, …] + b_1) + b_2.

    Args:
        block: rows in a block.
        d: size of a row.
        kind: "mean" or "mlp".
    """

    def __init__(self, block: int, d: int, kind: Literal["mean", "mlp"]):
        """Make the places, 0 at first, and the network."""
        super().__init__()
        self.place = nn.Parameter(torch.zeros(block, d))
        self.net = None
        if kind == "mlp":
            self.net = nn.Sequential(nn.Linear(block * d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B C D"]:
        """Pool rows (..., C · block, d) to (..., C, d)."""
        x = x.unflatten(-2, (-1, len(self.place))) + self.place  # (..., C, block, d)
        return x.mean(-2) if self.net is None else self.net(x.flatten(-2))


class NativeSparseAttention(nn.Module):
    """Causal attention in three branches: pooled blocks, chosen blocks, and the last keys.

    y = Σ_c g_c ⊙ z_c W_out, g_c = σ(x W_c) one for each head, with keys and values of their own for
    each branch: z_1 attends to the full blocks of the past, each pooled to one key; z_2 attends to
    every key of ``top`` blocks, the query's own and those to which z_1 gives most weight, summed
    over the heads that share keys; z_3 attends to the last ``window`` keys.

    Args:
        d_model: features of x and y.
        n_heads: H.
        n_kv_heads: G, heads of keys and values, a divisor of H; the heads of a group choose the
            same blocks. H when omitted.
        d_head: size of a query, key and value; d_model / H when omitted.
        block: rows in a block.
        top: how many blocks a query reads, its own included.
        window: how many of the last keys it reads, its own included.
        pool: "mean", or "mlp" for a learned pool; both know places in the block.
        position: a rotary part for the second and third branch; None for none.
        bias: whether the projections of queries, keys, values and outputs have one.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit.

    Cost: for a query that has M keys before it, scores and mixing of M / block + top · block +
        window keys instead of M; n · top · block keys and values are copied together.

    Example:
        >>> nsa = NativeSparseAttention(8, 2, block=4, top=2, window=4)
        >>> y, state = nsa(torch.randn(1, 10, 8))
        >>> y.shape, state.length, state.block_k.shape[-2]
        (torch.Size([1, 10, 8]), 10, 2)

    Source: [yuan2025native]
    Explained in: chapters/07_efficient_attention, section "Choosing what to read".
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        block: int = 16,
        top: int = 4,
        window: int = 64,
        pool: Literal["mean", "mlp"] = "mlp",
        position: RotaryPosition | None = None,
        bias: bool = False,
    ):
        """Make the projections and the pools."""
        super().__init__()
        groups, d_head, _ = head_sizes(d_model, n_heads, n_kv_heads, d_head, None)
        for name, value in (("block", block), ("top", top), ("window", window)):
            check_number(name, value, 1, whole=True)
        check_choice("pool", pool, ("mean", "mlp"))
        if position is not None and not callable(getattr(position, "rotate", None)):
            raise TypeError(f"position must have a method rotate, got {type(position).__name__}")
        self.d_model, self.n_heads, self.n_kv_heads, self.d_head = d_model, n_heads, groups, d_head
        self.block, self.top, self.window, self.position = block, top, window, position
        self.q_proj = nn.Linear(d_model, n_heads * d_head, bias=bias)
        self.k_proj = nn.Linear(d_model, 3 * groups * d_head, bias=bias)
        self.v_proj = nn.Linear(d_model, 3 * groups * d_head, bias=bias)
        self.gate_proj = nn.Linear(d_model, 3 * n_heads)
        self.out_proj = nn.Linear(n_heads * d_head, d_model, bias=bias)
        self.k_pool, self.v_pool = (BlockPool(block, d_head, pool) for _ in range(2))

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: NativeSparseState | None = None,
        *,
        mask: None = None,
    ) -> tuple[Float[Tensor, "B N D"], NativeSparseState]:
        """Mix the rows of x, continuing from a state.

        Args:
            x: (B, N, d_model).
            state: what the call before returned, None at the start of a sequence.
            mask: None; blocks are cut by position, so a row cannot be left out. Padding behind the
                end of a sequence does no harm.

        Returns:
            y (B, N, d_model), and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or a mask.
        """
        check_rows("x", x, self.q_proj.weight)
        if mask is not None:
            raise ValueError("mask must be None: blocks are cut by position and know no padding")
        self._check_state(x, state)
        past, n = 0 if state is None else state.length, x.shape[1]
        q = split_heads(self.q_proj(x), self.n_heads)  # (B, H, N, d)
        k, v = (
            split_heads(proj(x), 3 * self.n_kv_heads).chunk(3, dim=1)
            for proj in (self.k_proj, self.v_proj)
        )  # three of (B, G, N, d)
        turned = q
        if self.position is not None:
            own = places_for(self.position, past, past + n, x.device)
            turned = self.position.rotate(q, own)
            k = (k[0], *(self.position.rotate(each, own) for each in k[1:]))
        state = self._extend(state, k, v)
        at = torch.arange(past, past + n, device=x.device)  # (N,)
        pooled, weights = self._attend_pooled(q, state, at)
        chosen, valid = self._choose(weights, at, state.length)
        selected = attend_chosen(turned, state.k, state.v, chosen, valid=valid)
        near = self._attend_near(turned, state)
        gates = torch.sigmoid(self.gate_proj(x)).unflatten(-1, (3, self.n_heads))  # (B, N, 3, H)
        gates = gates.movedim(2, 0).transpose(-1, -2).unsqueeze(-1)  # (3, B, H, N, 1)
        z = gates[0] * pooled + gates[1] * selected + gates[2] * near  # (B, H, N, d)
        return self.out_proj(merge_heads(z)), self._trim(state)

    def _extend(self, state, k, v):
        """Return a state with the new rows, of which each full block is pooled."""
        if state is None:
            state = NativeSparseState(*(k[0][..., :0, :] for _ in fields(NativeSparseState)))
        grown = {}
        for name, new, pool in (("k", k, self.k_pool), ("v", v, self.v_pool)):
            rest = torch.cat([getattr(state, f"rest_{name}"), new[0]], dim=-2)
            full = rest.shape[-2] - rest.shape[-2] % self.block
            blocks = getattr(state, f"block_{name}"), pool(rest[..., :full, :])
            grown[f"block_{name}"] = torch.cat(blocks, dim=-2)
            grown[f"rest_{name}"] = rest[..., full:, :]
            grown[name] = torch.cat([getattr(state, name), new[1]], dim=-2)
            grown[f"near_{name}"] = torch.cat([getattr(state, f"near_{name}"), new[2]], dim=-2)
        return NativeSparseState(**grown)

    def _trim(self, state):
        """Return the state without the keys that have left the window."""
        old = max(0, state.near_k.shape[-2] - (self.window - 1))
        return replace(state, near_k=state.near_k[..., old:, :], near_v=state.near_v[..., old:, :])

    def _full(self, at, blocks):
        """Return which blocks lie wholly in the past of each row, or end with it, (N, C)."""
        ends = (torch.arange(blocks, device=at.device) + 1) * self.block - 1
        return ends <= at[:, None]

    def _attend_pooled(self, q, state, at):
        """Return what is found among pooled blocks, and by which weights (B, G, N, C) in sum."""
        k, v = state.block_k.unsqueeze(2), state.block_v.unsqueeze(2)  # (B, G, 1, C, d)
        q, mask = group_heads(q, self.n_kv_heads), self._full(at, k.shape[-2])
        found, weights = attend(q, k, v, mask=mask, return_weights=True)  # (B, G, H / G, N, ·)
        return found.flatten(1, 2), weights.detach().sum(2)

    def _choose(self, weights, at, length):
        """Return the keys of the best blocks for each row, and which count, (B, G, N, T)."""
        batch, groups, n, blocks = weights.shape
        own = at // self.block  # (N,)
        others = self._full(at, blocks) & (torch.arange(blocks, device=at.device) != own[:, None])
        weights = weights.masked_fill(~others, -torch.inf)
        score, best = weights.topk(min(self.top - 1, blocks), dim=-1)  # (B, G, N, top − 1)
        itself = own[:, None].expand(batch, groups, n, 1)
        best = torch.cat([itself, best], dim=-1)
        counts = torch.cat([torch.ones_like(itself, dtype=torch.bool), score > -torch.inf], dim=-1)
        inside = torch.arange(self.block, device=at.device)
        chosen = (best.unsqueeze(-1) * self.block + inside).flatten(-2)  # (B, G, N, top · block)
        valid = counts.repeat_interleave(self.block, dim=-1) & (chosen <= at[:, None])
        return chosen.clamp(max=length - 1), valid

    def _attend_near(self, q, state):
        """Return what is found among the last keys."""
        k, v = state.near_k.unsqueeze(2), state.near_v.unsqueeze(2)  # (B, G, 1, L, d)
        q = group_heads(q, self.n_kv_heads)  # (B, G, H / G, N, d)
        return attend_window(q, k, v, window=self.window, causal=True).flatten(1, 2)

    def _check_state(self, x, state):
        if state is None:
            return
        if not isinstance(state, NativeSparseState):
            raise TypeError(f"state must be a NativeSparseState, got {type(state).__name__}")
        shape = (len(x), self.n_kv_heads, state.length, self.d_head)
        check_shape("state.k", state.k, shape, "(B, G, M, d_head)")
        check_same(**{"x": x, "state.k": state.k})
