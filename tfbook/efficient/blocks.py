"""Attention to chosen blocks of keys, and the strided pattern computed on a grid.

A processor reads neighbouring numbers, so a sparse pattern pays where it leaves out whole blocks:
a layout says which block of queries meets which block of keys, and only these are multiplied.
:func:`attend_bigbird` draws its layout. The strided pattern of the Sparse Transformer has no such
blocks, but on a grid of rows of length l its far keys are a column, and columns are blocks again.

Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from tfbook._checks import check_attention, check_number, check_tensor, scores_shape
from tfbook.attention import (
    at_least_float32,
    attend_sdpa,
    combine_masks,
    masked_scores,
    masked_softmax,
    register,
)
from tfbook.efficient.patterns import bigbird_layout, check_layout, expand_layout, strided_mask
from tfbook.efficient.windows import LACKS, attend_tiles, join_spans, refuse_extras

__all__ = ["attend_bigbird", "attend_blocks", "attend_strided"]

Layout = Bool[Tensor, "R R"] | Sequence


def attend_blocks(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    layout: Layout,
    block: int,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Float[Tensor, "*B N E"]:
    """Attend to the blocks of keys that a layout allows; the other blocks are never read.

    weights = softmax(scale · q kᵀ + bias) over layout[⌊p / block⌋, ⌊j / block⌋]; out = weights v.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        layout: boolean, True = allowed, one row and one column for each block of positions, as a
            tensor or as rows of booleans; that of a longer sequence is cut.
        block: positions in a block.
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: refused, the weights are never whole.
        return_lse: refused, PyTorch keeps it to itself.

    Returns:
        The output (..., n, d_v). A query that may see no key gets zeros, one before the first key
        counts to the first block.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale or block, a layout that is not square or too
            small, or for asking for weights or log-sum-exp.

    Cost: 2(d + d_v) block² FLOPs for each allowed pair of blocks; O(n + block · keys of a row)
    numbers of scratch, in the backward pass O(keys of all rows).

    Example:
        >>> q, k = torch.zeros(4, 2), torch.randn(4, 2)  # queries that prefer nothing
        >>> v = torch.arange(4.0)[:, None]
        >>> attend_blocks(q, k, v, layout=torch.eye(2, dtype=torch.bool), block=2).flatten()
        tensor([0.5000, 0.5000, 2.5000, 2.5000])

    Source: [child2019generating], [zaheer2020big]
    Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
    """
    refuse_extras("attend_blocks", return_weights, return_lse)
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    check_number("block", block, 1, whole=True)
    chosen = _rows_of(layout)
    m = scores_shape(q, k, v)[-1]
    check_layout(len(chosen), block, m)
    return _attend_blocks(q, k, v, chosen, block, causal, mask=mask, bias=bias, scale=scale)


def attend_bigbird(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    block: int = 64,
    window: int = 2,
    n_global: int = 1,
    n_random: int = 1,
    seed: int = 0,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Float[Tensor, "*B N E"]:
    """Attend to neighbouring blocks, to global ones and to some drawn by chance.

    :func:`attend_blocks` with the layout that :func:`tfbook.efficient.bigbird_layout` draws from
    a generator of this seed, anew in each call and always the same.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        block: positions in a block.
        window: how many blocks are seen to each side, the own one counted.
        n_global: how many first blocks see all and are seen by all.
        n_random: how many blocks are drawn for each block of queries.
        seed: of the draws.
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: refused, the weights are never whole.
        return_lse: refused, PyTorch keeps it to itself.

    Returns:
        The output (..., n, d_v). A query that may see no key gets zeros, one before the first key
        counts to the first block.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale or number, or for asking for weights or
            log-sum-exp.

    Cost: as :func:`attend_blocks`, and (m / block)² random numbers.

    Source: [zaheer2020big]
    Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
    """
    refuse_extras("attend_bigbird", return_weights, return_lse)
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    sizes = {"window": window, "n_global": n_global, "n_random": n_random, "seed": seed}
    _check_bigbird(block, **sizes)
    n_blocks = -(-k.shape[-2] // block)
    chosen = _draw(n_blocks, causal=causal, **sizes)
    return _attend_blocks(q, k, v, chosen, block, causal, mask=mask, bias=bias, scale=scale)


def attend_strided(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    stride: int,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Float[Tensor, "*B N E"]:
    """Attend to the last keys and to every stride-th one, both heads of the pattern in one.

    weights = softmax(scale · q kᵀ + bias) over |p − j| ≤ l or (p − j) mod l = 0; out = weights v.
    Written as a grid with rows of length l, the near keys of a query stand in its own row and in
    the neighbouring ones, the far ones in its column.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        stride: l, about √n.
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: refused, the weights are never whole.
        return_lse: refused, for it is not the log-sum-exp of parts that merge.

    Returns:
        The output (..., n, d_v). A query that may see no key gets zeros.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale or stride, or for asking for weights or
            log-sum-exp.

    Cost: n (3 l + m / l) scores, 2 l in place of 3 l when causal, with 2(d + d_v) FLOPs each, and
    as many numbers of memory.

    Source: [child2019generating]
    Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
    """
    refuse_extras("attend_strided", return_weights, return_lse)
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    check_number("stride", stride, 1, whole=True)
    *_, n, m = scores_shape(q, k, v)
    if n == 0 or m == 0:
        return attend_sdpa(q, k, v, mask=mask, bias=bias, scale=scale)
    scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    grid = _Grid(n, m, min(stride, n + m), causal, q.device)
    queries = grid.queries(at_least_float32(q) * scale)  # (..., T, l, d)
    keys, values = (grid.keys(at_least_float32(x)) for x in (k, v))  # (..., S, l, d)
    near = queries @ grid.near(keys).mT  # (..., T, l, 3 l)
    far = queries.transpose(-3, -2) @ keys.transpose(-3, -2).mT  # (..., l, T, S)
    scores = torch.cat([near, far.transpose(-3, -2)], -1)  # (..., T, l, 3 l + S)
    if bias is not None:
        scores = scores + grid.pick(bias)
    allowed = grid.allowed if mask is None else grid.allowed & grid.pick(mask)
    weights = masked_softmax(scores, allowed)
    near, far = weights.split([near.shape[-1], keys.shape[-3]], -1)
    found = near @ grid.near(values)  # (..., T, l, d_v)
    found = found + (far.transpose(-3, -2) @ values.transpose(-3, -2)).transpose(-3, -2)
    return grid.rows(found).to(v.dtype)  # (..., n, d_v)


class _Grid:
    """Places in rows of l: row t holds the places t l … t l + l − 1, padded on both sides."""

    def __init__(self, n: int, m: int, length: int, causal: bool, device: torch.device):
        self.n, self.m, self.length = n, m, length
        self.sides = (0, 1) if causal else (0, 1, 2)  # rows of keys before, at, behind a query
        self.start = (m - n) // length * length  # place at which the rows of queries begin
        self.first = min(self.start, 0)  # and those of keys
        self.end = -(-m // length) * length
        place = torch.arange(self.start, self.end, device=device).view(-1, length, 1)  # (T, l, 1)
        column = torch.arange(self.first, self.end, device=device).view(-1, length).T  # (l, S)
        aside = torch.arange(len(self.sides) * length, device=device) - length
        near = place[:, :1] + aside  # (T, 1, 3 l)
        gaps = place - near, place - column  # (T, l, 3 l) and (T, l, S)
        if causal:
            allowed = (gaps[0] >= 0) & (gaps[0] < length), gaps[1] >= length
        else:
            allowed = gaps[0].abs() < length, gaps[1].abs() >= length
        key = torch.cat([near.expand_as(gaps[0]), column.expand_as(gaps[1])], -1)
        self.allowed = torch.cat(allowed, -1) & (key >= 0) & (key < m)
        self.key = key.clamp(0, m - 1)  # (T, l, 3 l + S)
        self.query = (place - (m - n)).clamp(0, n - 1)  # (T, l, 1)

    def queries(self, x: Tensor) -> Tensor:
        """Lay (..., n, d) out as (..., T, l, d)."""
        shift = self.m - self.n
        return self._lay(x, shift - self.start, self.end - self.m)

    def keys(self, x: Tensor) -> Tensor:
        """Lay (..., m, d) out as (..., S, l, d)."""
        return self._lay(x, -self.first, self.end - self.m)

    def near(self, x: Tensor) -> Tensor:
        """Return the rows of keys around each row of queries, (..., T, 3 l, d)."""
        offset, count = (self.start - self.first) // self.length, self.query.shape[0]
        x = pad(x, (0, 0, 0, 0, 1, 1))
        return torch.cat([x.narrow(-3, offset + s, count) for s in self.sides], -2)

    def rows(self, x: Tensor) -> Tensor:
        """Take (..., n, d) out of (..., T, l, d)."""
        return x.flatten(-3, -2).narrow(-2, self.m - self.n - self.start, self.n)

    def pick(self, x: Tensor) -> Tensor:
        """Take the pairs of the grid out of what broadcasts to (..., n, m)."""
        x = x[(None,) * max(2 - x.ndim, 0)]
        query = self.query if x.shape[-2] > 1 else torch.zeros_like(self.query)
        return x[..., query, self.key if x.shape[-1] > 1 else torch.zeros_like(self.key)]

    def _lay(self, x: Tensor, before: int, behind: int) -> Tensor:
        return pad(x, (0, 0, before, behind)).unflatten(-2, (-1, self.length))


def _attend_blocks(q, k, v, chosen, block, causal, **given):
    """Attend by a layout given as the numbers of the blocks that each block of queries sees."""
    n, m = q.shape[-2], k.shape[-2]
    block = min(block, n + m) or 1
    shift, tiles = m - n, []
    edges = sorted({0, n, *(row for row in range(-shift % block, n, block) if row + shift > 0)})
    for a, b in list(zip(edges, edges[1:], strict=False)) or [(0, 0)]:
        row = max(a + shift, 0) // block
        high = b + shift if causal else m
        blocks = chosen[row] if row < len(chosen) else []
        spans = [(j * block, min((j + 1) * block, high)) for j in blocks]
        tiles.append(((a, b), join_spans(spans, m)))

    def sees(place: Tensor, key: Tensor) -> Tensor | None:
        return key <= place if causal else None

    return attend_tiles(q, k, v, tiles=tiles, sees=sees, piece=block, **given)


def _rows_of(layout: Layout) -> list[list[int]]:
    """Return for each row of a layout the numbers of its True columns."""
    if isinstance(layout, Tensor):
        check_tensor("layout", layout, min_dims=2)
        if layout.dtype != torch.bool:
            raise TypeError(f"layout must be boolean with True = allowed, got {layout.dtype}")
        if layout.ndim > 2:
            raise ValueError(f"layout must be square, got {tuple(layout.shape)}")
        layout = layout.tolist()
    if not isinstance(layout, list | tuple) or not all(isinstance(r, list | tuple) for r in layout):
        raise TypeError(
            f"layout must be a boolean tensor or rows of booleans, got {type(layout).__name__}"
        )
    if not all(isinstance(each, bool) for row in layout for each in row):
        raise TypeError("layout must hold booleans with True = allowed")
    if any(len(row) != len(layout) for row in layout):
        widths = sorted({len(row) for row in layout})
        raise ValueError(f"layout must be square, got {len(layout)} rows of {widths} columns")
    return [[j for j, each in enumerate(row) if each] for row in layout]


def _check_bigbird(block, *, window, n_global, n_random, seed):
    check_number("block", block, 1, whole=True)
    check_number("window", window, 1, whole=True)
    for name, value in (("n_global", n_global), ("n_random", n_random)):
        check_number(name, value, 0, whole=True)
    check_number("seed", seed, 0, 2**63 - 1, whole=True)


def _draw(n_blocks, *, window, n_global, n_random, seed, causal):
    """Return the numbers of the blocks that each block sees, out of a layout drawn by the seed."""
    generator = torch.Generator().manual_seed(seed)
    layout = bigbird_layout(
        n_blocks,
        window=window,
        n_global=n_global,
        n_random=n_random,
        causal=causal,
        generator=generator,
    )
    return _rows_of(layout)


# What torch.compiler.assume_constant_result sets; it would import the compiler, two seconds.
_draw._dynamo_marked_constant = True


# What each forms its softmax of, see tfbook.attention.explicit, and what it costs.


def _blocks_scores(q, k, *, layout, block, mask=None, causal=False, **options):
    layout = torch.as_tensor(layout, device=q.device)
    pattern = expand_layout(layout, block, q.shape[-2], k.shape[-2], causal=causal)
    return masked_scores(q, k, mask=combine_masks(mask, pattern), **options)


def _bigbird_scores(
    q, k, *, block=64, window=2, n_global=1, n_random=1, seed=0, causal=False, **options
):
    layout = bigbird_layout(
        -(-k.shape[-2] // block),
        window=window,
        n_global=n_global,
        n_random=n_random,
        causal=causal,
        generator=torch.Generator().manual_seed(seed),
    )
    return _blocks_scores(q, k, layout=layout, block=block, causal=causal, **options)


def _strided_scores(q, k, *, stride, mask=None, causal=False, **options):
    sizes = q.shape[-2], k.shape[-2], stride
    pattern = strided_mask(*sizes, causal=causal, device=q.device)
    return masked_scores(q, k, mask=combine_masks(mask, pattern), **options)


def _blocks_flops(n, m, d_k, d_v, *, layout, block, causal=False):
    count = _count(n, m, _rows_of(layout), block, causal)
    return 2 * count * d_k, 2 * count * d_v


def _bigbird_flops(
    n, m, d_k, d_v, *, block=64, window=2, n_global=1, n_random=1, seed=0, causal=False
):
    sizes = {"window": window, "n_global": n_global, "n_random": n_random, "seed": seed}
    count = _count(n, m, _draw(-(-m // block), causal=causal, **sizes), block, causal)
    return 2 * count * d_k, 2 * count * d_v


def _count(n, m, chosen, block, causal):
    """Count the pairs of a layout, row of blocks by row of blocks."""
    count = 0
    for row in range(-(-m // block)):
        low, high = max(row * block, m - n), min((row + 1) * block, m)  # places of queries
        early = max(n - m, 0) if row == 0 and not causal else 0  # those before the first key
        inside = sum(min((j + 1) * block, m) - j * block for j in chosen[row] if j * block < m)
        if causal:
            whole = sum(block for j in chosen[row] if j < row)
            own = sum(place - row * block + 1 for place in range(low, high)) * (row in chosen[row])
            count += max(high - low, 0) * whole + own
        else:
            count += (max(high - low, 0) + early) * inside
    return count


def _strided_flops(n, m, d_k, d_v, *, stride, causal=False):
    place = torch.arange(m - n, m)
    back = place.div(stride, rounding_mode="floor")  # far keys in the past, in its column
    if causal:
        count = (place + 1).clamp(0, stride) + back.clamp(min=0)
    else:
        low, high = (place - stride + 1).clamp(min=0), (place + stride - 1).clamp(max=m - 1)
        ahead = (m - 1 - place).div(stride, rounding_mode="floor")
        column = (back + ahead + 1).clamp(min=0) - (place >= 0).int()  # without itself
        count = (high - low + 1).clamp(min=0) + column
    return 2 * int(count.sum()) * d_k, 2 * int(count.sum()) * d_v


# Neighbouring blocks, for sequences of up to 64 positions.
_NEIGHBOURS = tuple(tuple(abs(i - j) < 3 for j in range(16)) for i in range(16))

attend_blocks.scores = _blocks_scores
attend_bigbird.scores = _bigbird_scores
attend_strided.scores = _strided_scores

register(
    "blocks",
    attend_blocks,
    lacks=LACKS,
    options={"layout": _NEIGHBOURS, "block": 4},
    flops=_blocks_flops,
)
register(
    "bigbird",
    attend_bigbird,
    lacks=LACKS | {"vmap": "it draws blocks, which vmap refuses; attend_blocks can be given them"},
    options={"block": 4, "window": 3, "n_global": 1, "n_random": 1},
    flops=_bigbird_flops,
)
register(
    "strided",
    attend_strided,
    lacks={name: why for name, why in LACKS.items() if name != "second_derivatives"},
    options={"stride": 11},
    flops=_strided_flops,
)
