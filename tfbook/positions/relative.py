"""Relative positions: biases on the scores that depend on where a key stands from a query.

Each scheme is a part with ``bias(q, q_positions, k_positions)``, which is added to the scores:
T5's learned number for each bucket of distances, ALiBi's fixed slope for each head, and the two
that also ask the query, Shaw's and Transformer-XL's. Positions are whatever integers the caller
counts with; only their differences matter, so a cache or an offset needs no special case.

Explained in: chapters/04_positions, section "Relative positions".
"""

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_bool,
    check_even,
    check_float,
    check_number,
    check_positions,
    check_same,
)
from tfbook.positions.frequencies import rotary_frequencies
from tfbook.positions.rotary import rotary_table

__all__ = [
    "ALiBi",
    "ShawPositions",
    "T5Bias",
    "TransformerXLPositions",
    "alibi_slopes",
    "relative_shift",
    "shaw_clip",
    "t5_bucket",
    "transformer_xl_scores",
]


def t5_bucket(
    relative: Int[Tensor, "*S"],
    *,
    bidirectional: bool = True,
    n_buckets: int = 32,
    max_distance: int = 128,
) -> Int[Tensor, "*S"]:
    """Sort relative positions into buckets that widen with the distance.

    Half of the buckets hold one distance each, 0 … e − 1. The other half divide e … max_distance
    evenly on a logarithmic scale, bucket = e + ⌊(n − e) ln(r / e) / ln(max_distance / e)⌋, and the
    last one takes all that is farther. With ``bidirectional`` keys after the query have buckets of
    their own, n = n_buckets / 2 on each side; without, they share bucket 0 with the present.

    Args:
        relative: position of the key − position of the query, any shape.
        bidirectional: tell keys after the query from keys before it.
        n_buckets: number of buckets, at least 2; with bidirectional even and at least 4.
        max_distance: where the logarithm reaches the last bucket, which by rounding down begins
            a little earlier; above e.

    Returns:
        Bucket numbers 0 … n_buckets − 1, in the same shape.

    Raises:
        TypeError: if relative is not integer.
        ValueError: if the number of buckets or the maximum distance is out of range.

    Example:
        >>> t5_bucket(torch.tensor([-200, -8, -1, 0, 1, 8]))
        tensor([15,  8,  1,  0, 17, 24])

    Source: [raffel2020exploring]
    Explained in: chapters/04_positions, section "Relative positions".
    """
    check_positions("relative", relative)
    _check_buckets(n_buckets, max_distance, bidirectional)
    if bidirectional:
        n_buckets //= 2
        first = n_buckets * (relative > 0)  # keys after the query have the upper half
        distance = relative.abs()
    else:
        first = 0
        distance = (-relative).clamp(min=0)
    exact = n_buckets // 2
    # In float32 and in this order, as T5 was trained: at the edge of a bucket rounding decides.
    ratio = torch.log(distance.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    wide = (exact + (ratio * (n_buckets - exact)).to(relative.dtype)).clamp(max=n_buckets - 1)
    return first + torch.where(distance < exact, distance, wide)


def alibi_slopes(n_heads: int) -> tuple[float, ...]:
    """Return ALiBi's slope for each head.

    For a power of two, m_h = 2^{−8h/H}, h = 1 … H. For other H, the slopes of the next smaller
    power of two P, and then every other slope of 2P from the first on, as in the authors' code.

    Raises:
        TypeError: if the number of heads is not an integer.
        ValueError: if it is below 1.

    Example:
        >>> alibi_slopes(4)
        (0.25, 0.0625, 0.015625, 0.00390625)

    Source: [press2022train]
    Explained in: chapters/04_positions, section "ALiBi: a fixed cost for each position back".
    """
    check_number("n_heads", n_heads, 1, 2**16, whole=True)
    power = 2 ** (n_heads.bit_length() - 1)  # the largest power of two up to n_heads
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return tuple(slopes + between[: n_heads - power])


def shaw_clip(relative: Int[Tensor, "*S"], max_distance: int) -> Int[Tensor, "*S"]:
    """Number the relative positions −K … K from 0 on; farther ones count as ±K.

    Args:
        relative: position of the key − position of the query, any shape.
        max_distance: K, at least 1.

    Returns:
        clip(relative, −K, K) + K, rows 0 … 2K of a table.

    Raises:
        TypeError: if relative is not integer.
        ValueError: if the maximum distance is below 1.

    Example:
        >>> shaw_clip(torch.tensor([-9, -1, 0, 1, 9]), 2)
        tensor([0, 1, 2, 3, 4])

    Source: [shaw2018self]
    Explained in: chapters/04_positions, section "Relative positions".
    """
    check_positions("relative", relative)
    check_number("max_distance", max_distance, 1, whole=True)
    return relative.clamp(-max_distance, max_distance) + max_distance


def relative_shift(
    x: Float[Tensor, "*B N L"], n_keys: int | None = None
) -> Float[Tensor, "*B N M"]:
    """Slide row i to the left by n − 1 − i: from a column for each distance to one for each key.

    out[i, j] = x[i, n − 1 − i + j]. Transformer-XL's trick: multiply each query with each
    distance, a matrix product, then read the same memory with rows one number shorter than they
    were written, so that each row starts one later. No number is computed.

    With L = n + m − 1 columns, the default, column c holds distance m − 1 − c and every entry is
    right. Transformer-XL keeps only the L = m distances ≥ 0 and asks for ``n_keys=m``: then
    entries above the diagonal run over the end of a row, and a causal mask has to hide them.

    Args:
        x: one column for each distance, falling to the right, (..., n, L).
        n_keys: columns of the result, at most L; L − n + 1 when omitted.

    Returns:
        (..., n, n_keys).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if there are too few columns.

    Example:
        >>> relative_shift(torch.tensor([[2.0, 1.0, 0.0, -1.0], [2.0, 1.0, 0.0, -1.0]]))
        tensor([[ 1.,  0., -1.],
                [ 2.,  1.,  0.]])

    Source: [dai2019transformerxl]
    Explained in: chapters/04_positions, section "Relative positions".
    """
    check_float("x", x, min_dims=2)
    n, length = x.shape[-2:]
    n_keys = length - n + 1 if n_keys is None else n_keys
    check_number("n_keys", n_keys, 0, whole=True)
    if n_keys > length or n == 0:
        raise ValueError(
            f"x must have at least one row and n_keys = {n_keys} columns, got shape "
            f"{tuple(x.shape)}"
        )
    flat = functional.pad(x, (0, 1)).flatten(-2)  # (..., n (L + 1))
    return flat[..., n - 1 : n - 1 + n * length].unflatten(-1, (n, length))[..., :n_keys]


def transformer_xl_scores(
    q: Float[Tensor, "*B N D"],
    k: Float[Tensor, "*B M D"],
    r: Float[Tensor, "*#B L D"],
    u: Float[Tensor, "*#B D"],
    v: Float[Tensor, "*#B D"],
) -> Float[Tensor, "*B N M"]:
    """Score by content and distance, the four terms of Transformer-XL in two products.

    s[i, j] = ((q_i + u) · k_j + (q_i + v) · r_{i−j}) / √d: content, distance, and for each of
    the two a preference that no query changes.

    Args:
        q: queries (..., n, d), the last n of the m positions.
        k: keys (..., m, d).
        r: the projected encoding of distance m − 1 − c in row c, (..., n + m − 1, d).
        u: added to every query that meets a key, (..., d).
        v: added to every query that meets a distance, (..., d).

    Returns:
        Scores (..., n, m).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if the shapes do not fit.

    Source: [dai2019transformerxl]
    Explained in: chapters/04_positions, section "Relative positions".
    """
    for name, value in (("q", q), ("k", k), ("r", r)):
        check_float(name, value, min_dims=2)
    for name, value in (("u", u), ("v", v)):
        check_float(name, value, min_dims=1)
    check_same(q=q, k=k, r=r, u=u, v=v)
    n, m = q.shape[-2], k.shape[-2]
    if r.shape[-2] != n + m - 1:
        raise ValueError(
            f"r must have a row for each of the n + m - 1 = {n + m - 1} distances, "
            f"got shape {tuple(r.shape)}"
        )
    content = (q + u[..., None, :]) @ k.mT  # (..., n, m)
    distance = relative_shift((q + v[..., None, :]) @ r.mT)  # (..., n, m)
    return (content + distance) / math.sqrt(q.shape[-1])


class T5Bias(nn.Module):
    """T5's relative bias: one learned number for each head and bucket of distances.

    s[h, i, j] = q_i · k_j + weight[bucket(j − i), h]. T5 does not divide q · k by √d, so
    ``scaled`` is False; in T5 the layers share one such part.

    Args:
        n_heads: number of heads.
        n_buckets: see :func:`t5_bucket`.
        max_distance: see :func:`t5_bucket`.
        bidirectional: True in an encoder, False in a decoder.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of range.

    Source: [raffel2020exploring]
    Explained in: chapters/04_positions, section "Relative positions".
    """

    scaled: ClassVar[bool] = False

    def __init__(
        self,
        n_heads: int,
        n_buckets: int = 32,
        max_distance: int = 128,
        *,
        bidirectional: bool = True,
    ) -> None:
        """Make the table, `transformers`' relative_attention_bias.weight: (n_buckets, n_heads)."""
        super().__init__()
        check_number("n_heads", n_heads, 1, whole=True)
        _check_buckets(n_buckets, max_distance, bidirectional)
        self.n_heads, self.n_buckets, self.max_distance = n_heads, n_buckets, max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))
        nn.init.normal_(self.weight, std=0.02)

    def bias(
        self,
        q: Float[Tensor, "*B H N D"],
        q_positions: Int[Tensor, "... N"],
        k_positions: Int[Tensor, "... M"],
    ) -> Float[Tensor, "*C H N M"]:
        """Return what to add to the scores of q (..., H, N, d); q itself is not used.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit.
        """
        relative = _relative_positions(q, q_positions, k_positions, self.n_heads)
        bucket = t5_bucket(
            relative,
            bidirectional=self.bidirectional,
            n_buckets=self.n_buckets,
            max_distance=self.max_distance,
        )
        # Head by head: keys lie together, and the gradient is faster than that of an embedding.
        bias = self.weight.T.index_select(1, bucket.flatten()).unflatten(1, bucket.shape)
        return bias.movedim(0, -3).to(q.dtype)  # (..., H, N, M)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return (
            f"n_heads={self.n_heads}, n_buckets={self.n_buckets}, "
            f"max_distance={self.max_distance}, bidirectional={self.bidirectional}"
        )


class ALiBi(nn.Module):
    """Attention with linear biases: each head loses a fixed amount for each step of distance.

    s[h, i, j] = q_i · k_j / √d − m_h |i − j|. It has no weights. The paper defines it for causal
    attention; the absolute value is its symmetric form for both directions.

    Args:
        n_heads: number of heads, any.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is below 1.

    Source: [press2022train]
    Explained in: chapters/04_positions, section "ALiBi: a fixed cost for each position back".
    """

    scaled: ClassVar[bool] = True

    def __init__(self, n_heads: int) -> None:
        """Compute the slopes."""
        super().__init__()
        self.n_heads = n_heads
        self.slopes = alibi_slopes(n_heads)  # no buffer: .half() would round it

    def bias(
        self,
        q: Float[Tensor, "*B H N D"],
        q_positions: Int[Tensor, "... N"],
        k_positions: Int[Tensor, "... M"],
    ) -> Float[Tensor, "*C H N M"]:
        """Return what to add to the scores of q (..., H, N, d); q itself is not used.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit.
        """
        relative = _relative_positions(q, q_positions, k_positions, self.n_heads)
        exact = torch.promote_types(q.dtype, torch.float32)  # half precision cannot count to 300
        slopes = torch.tensor(self.slopes, dtype=exact, device=q.device)[:, None, None]  # (H, 1, 1)
        return (-slopes * relative.abs().unsqueeze(-3)).to(q.dtype)  # (..., H, N, M)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"n_heads={self.n_heads}"


class ShawPositions(nn.Module):
    """Shaw's relative positions: a learned vector for each clipped distance, added to the key.

    s[i, j] = q_i · (k_j + a_{clip(j−i)}) / √d. Each query meets the 2K + 1 vectors once, and the
    products are handed out by distance, so no tensor of size n · m · d arises. The heads share the
    table. The paper adds a second table to the values; a bias on the scores cannot, and it is left
    out here.

    Args:
        d_head: size of a head.
        max_distance: K, the distance from which on all are alike.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of range.

    Cost: n (2K + 1) 2 d FLOPs for each head.

    Source: [shaw2018self]
    Explained in: chapters/04_positions, section "Relative positions".
    """

    scaled: ClassVar[bool] = True

    def __init__(self, d_head: int, max_distance: int) -> None:
        """Make the table, (2K + 1, d_head)."""
        super().__init__()
        check_number("d_head", d_head, 1, whole=True)
        check_number("max_distance", max_distance, 1, whole=True)
        self.d_head, self.max_distance = d_head, max_distance
        self.weight = nn.Parameter(torch.empty(2 * max_distance + 1, d_head))
        nn.init.xavier_uniform_(self.weight)

    def bias(
        self,
        q: Float[Tensor, "*B H N D"],
        q_positions: Int[Tensor, "... N"],
        k_positions: Int[Tensor, "... M"],
    ) -> Float[Tensor, "*B H N M"]:
        """Return q_i · a_{clip(j−i)} / √d, what to add to the scaled scores of q (..., H, N, d).

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit.
        """
        relative = _relative_positions(q, q_positions, k_positions, d_head=self.d_head)
        row = shaw_clip(relative, self.max_distance)  # (..., N, M)
        by_row = q @ self.weight.T / math.sqrt(self.d_head)  # (..., H, N, 2K + 1)
        return _hand_out(by_row, row)  # (..., H, N, M)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"d_head={self.d_head}, max_distance={self.max_distance}"


class TransformerXLPositions(nn.Module):
    """Transformer-XL's relative positions: the query meets a projected encoding of the distance.

    s[i, j] = (q_i · k_j + (q_i + v) · W_r R_{i−j}) / √d, with R the sinusoidal encoding of the
    distance. The paper's scores are ((q_i + u) · k_j + (q_i + v') · W_r R_{i−j}) / √d with no bias
    in the projections. That is the same function: u is the bias of the query projection, which q
    already holds when it comes here, and v = v' − u. The projection needs a bias, then.

    Args:
        n_heads: number of heads.
        d_head: size of a head.
        d_encoding: size of R, even; n_heads · d_head when omitted.
        base: see :func:`tfbook.positions.sinusoidal_encoding`.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of range.

    Cost: (n + m) distances meet W_r once and each query once: 2 (n + m) d_head (d_encoding + n)
        FLOPs for each head.

    Source: [dai2019transformerxl]
    Explained in: chapters/04_positions, section "Relative positions".
    """

    scaled: ClassVar[bool] = True

    def __init__(
        self, n_heads: int, d_head: int, d_encoding: int | None = None, *, base: float = 10000.0
    ) -> None:
        """Make W_r, (n_heads · d_head, d_encoding), and v, (n_heads, d_head)."""
        super().__init__()
        check_number("n_heads", n_heads, 1, whole=True)
        check_number("d_head", d_head, 1, whole=True)
        d_encoding = n_heads * d_head if d_encoding is None else d_encoding
        check_even("d_encoding", d_encoding)
        self.n_heads, self.d_head, self.d_encoding, self.base = n_heads, d_head, d_encoding, base
        self.frequencies = rotary_frequencies(d_encoding, base=base)  # (d_encoding/2,)
        self.r_proj = nn.Linear(d_encoding, n_heads * d_head, bias=False)
        self.v = nn.Parameter(torch.zeros(n_heads, d_head))

    def encode(self, distances: Int[Tensor, " L"]) -> Float[Tensor, "H L D"]:
        """Return W_r R for each distance, split into heads: (H, L, d_head).

        Raises:
            TypeError: if the distances are not integers.
        """
        check_positions("distances", distances)
        dtype = self.r_proj.weight.dtype
        cos, sin = rotary_table(distances, self.frequencies, dtype=dtype)  # (L, d_encoding/2)
        r = self.r_proj(torch.stack((sin, cos), dim=-1).flatten(-2))  # (L, H · d_head)
        return r.unflatten(-1, (self.n_heads, self.d_head)).transpose(0, 1)

    def bias(
        self,
        q: Float[Tensor, "*B H N D"],
        q_positions: Int[Tensor, "... N"],
        k_positions: Int[Tensor, "... M"],
    ) -> Float[Tensor, "*B H N M"]:
        """Return (q_i + v) · W_r R_{i−j} / √d, to add to the scaled scores of q (..., H, N, d).

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit.
        """
        relative = _relative_positions(q, q_positions, k_positions, self.n_heads, self.d_head)
        if not relative.numel():
            return q.new_zeros(*q.shape[:-1], relative.shape[-1])
        distance = -relative  # (..., N, M), of the query from the key
        nearest, farthest = (int(end) for end in distance.aminmax())
        r = self.encode(torch.arange(nearest, farthest + 1, device=q.device))  # (H, L, d_head)
        by_distance = (q + self.v[:, None]) @ r.mT / math.sqrt(self.d_head)  # (..., H, N, L)
        return _hand_out(by_distance, distance - nearest)  # (..., H, N, M)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"n_heads={self.n_heads}, d_head={self.d_head}, base={self.base:g}"


def _relative_positions(
    q: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    n_heads: int | None = None,
    d_head: int | None = None,
) -> Tensor:
    """Check the arguments of a bias and return key − query, (N, M) or (B, N, M)."""
    check_float("q", q, min_dims=3)
    for name, wanted, got in (("n_heads", n_heads, q.shape[-3]), ("d_head", d_head, q.shape[-1])):
        if wanted not in (None, got):
            raise ValueError(
                f"q must have shape (..., n_heads, N, d_head) with {name} = {wanted}, "
                f"got {tuple(q.shape)}"
            )
    batch = q.shape[:-3]  # positions know nothing of heads
    check_positions("q_positions", q_positions, shape=(*batch, q.shape[-2]), device=q.device)
    check_positions("k_positions", k_positions, shape=(*batch, None), device=q.device)
    return k_positions[..., None, :] - q_positions[..., :, None]


def _hand_out(table: Tensor, row: Tensor) -> Tensor:
    """Pick table[..., h, i, row[i, j]]: (..., H, N, L) and (N, M) or (B, N, M) → (..., H, N, M)."""
    return table.gather(-1, row.unsqueeze(-3).expand(*table.shape[:-1], row.shape[-1]))


def _check_buckets(n_buckets: object, max_distance: object, bidirectional: object) -> None:
    check_bool("bidirectional", bidirectional)
    check_number("n_buckets", n_buckets, 4 if bidirectional else 2, whole=True)
    if bidirectional:
        check_even("n_buckets", n_buckets)
    exact = n_buckets // (4 if bidirectional else 2)  # e, the buckets of one distance each
    check_number("max_distance", max_distance, exact + 1, whole=True)
