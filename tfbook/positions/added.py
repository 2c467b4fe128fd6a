"""Positions that are added to tokens, or put beside them, before the first block.

Explained in: chapters/04_positions.
"""

import math

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_dtype, check_even, check_float, check_number, check_positions
from tfbook.positions.frequencies import check_base, rotary_frequencies
from tfbook.positions.rotary import rotary_table

__all__ = [
    "ConcatenatedPositions",
    "LearnedPositions",
    "NoPositions",
    "SinusoidalPositions",
    "interpolate_positions",
    "shift_matrix",
    "sinusoidal_encoding",
    "sinusoidal_wavelengths",
]


def sinusoidal_encoding(
    positions: int | Real[Tensor, "*S"],
    d_model: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*S d_model"]:
    """Encode each position by sines and cosines of d/2 frequencies.

    PE[p, 2i] = sin(p / base^{2i/d}), PE[p, 2i + 1] = cos(p / base^{2i/d}), i = 0 … d/2 − 1.

    Args:
        positions: integers or real numbers of any shape (...,), or n for 0 … n − 1.
        d_model: size of the encoding, even.
        base: the wavelengths run from 2π to almost 2π · base.
        dtype: of the result; the default dtype when omitted. Angles are computed in float64.

    Returns:
        (..., d_model), each entry in [−1, 1], each vector of norm √(d_model / 2).

    Raises:
        TypeError: for a wrong type.
        ValueError: if n is negative, d_model is odd or the base is not above 1.

    Example:
        >>> sinusoidal_encoding(2, 4, base=100.0)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0998, 0.9950]])

    Source: [vaswani2017attention]
    Explained in: chapters/04_positions, section "Sinusoidal encoding".
    """
    if not isinstance(positions, Tensor):
        check_number("positions", positions, 0, whole=True)
        positions = torch.arange(positions)
    check_even("d_model", d_model)
    frequencies = rotary_frequencies(d_model, base=base)  # (d/2,)
    check_dtype(dtype)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    cos, sin = rotary_table(positions, frequencies, dtype=dtype)  # (..., d/2) each
    return torch.stack((sin, cos), dim=-1).flatten(-2)  # (..., d), sine and cosine alternate


def sinusoidal_wavelengths(d_model: int, *, base: float = 10000.0) -> Float[Tensor, " d_model"]:
    """Return after how many positions each number of the encoding repeats.

    λ = 2π · base^{2i/d} for numbers 2i and 2i + 1 alike: the sine and the cosine of a pair share
    their frequency.

    Args:
        d_model: size of the encoding, even.
        base: see :func:`sinusoidal_encoding`.

    Returns:
        (d_model,), in positions, in float64.

    Raises:
        TypeError: for a wrong type.
        ValueError: if d_model is odd or the base is not above 1.

    Example:
        >>> sinusoidal_wavelengths(4, base=100.0) / (2 * torch.pi)
        tensor([ 1.,  1., 10., 10.], dtype=torch.float64)

    Source: [vaswani2017attention]
    Explained in: chapters/04_positions, section "Sinusoidal encoding".
    """
    check_even("d_model", d_model)
    return (2 * math.pi / rotary_frequencies(d_model, base=base)).repeat_interleave(2)


def shift_matrix(
    k: float, d_model: int, *, base: float = 10000.0, dtype: torch.dtype | None = None
) -> Float[Tensor, "d_model d_model"]:
    """Return the matrix that moves every sinusoidal encoding by k positions.

    PE[p + k] = T_k PE[p] for all p, PE as column vectors. T_k has a block
    [[cos kω, sin kω], [−sin kω, cos kω]] for each pair, by the addition theorems of sine and
    cosine. The rows of ``sinusoidal_encoding`` move by ``pe @ shift_matrix(k, d).T``.

    Args:
        k: the shift; it may be negative.
        d_model: size of the encoding, even.
        base: see :func:`sinusoidal_encoding`.
        dtype: of the result; the default dtype when omitted.

    Returns:
        T_k, (d_model, d_model), orthogonal.

    Raises:
        TypeError: for a wrong type.
        ValueError: if d_model is odd or the base is not above 1.

    Source: [vaswani2017attention]
    Explained in: chapters/04_positions, section "A shift is a rotation".
    """
    check_number("k", k)
    check_even("d_model", d_model)
    check_dtype(dtype)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    angles = float(k) * rotary_frequencies(d_model, base=base)  # (d/2,)
    cos, sin = angles.cos(), angles.sin()
    blocks = torch.stack((torch.stack((cos, sin), -1), torch.stack((-sin, cos), -1)), -2)
    return torch.block_diag(*blocks).to(dtype)  # blocks (d/2, 2, 2)


def interpolate_positions(weight: Float[Tensor, "N D"], n_new: int) -> Float[Tensor, "M D"]:
    """Stretch or squeeze a table of positions to another length.

    New row j is read off the old table at j · (n − 1) / (n_new − 1), on the straight line between
    its two neighbours; the first and last rows stay.

    Args:
        weight: one row for each old position, (n, d).
        n_new: the new number of rows, at least 2.

    Returns:
        (n_new, d).

    Raises:
        TypeError: for a wrong type.
        ValueError: if the table has no row or n_new is below 2.

    Example:
        >>> interpolate_positions(torch.tensor([[0.0], [10.0], [40.0]]), 5).T
        tensor([[ 0.,  5., 10., 25., 40.]])

    Explained in: chapters/04_positions, section "Longer contexts".
    """
    check_float("weight", weight, min_dims=2)
    check_number("n_new", n_new, 2, whole=True)
    if weight.ndim != 2 or len(weight) == 0:
        raise ValueError(f"weight must have shape (n, d) with n > 0, got {tuple(weight.shape)}")
    place = torch.linspace(0, len(weight) - 1, n_new, dtype=torch.float64, device=weight.device)
    before = place.floor().long().clamp(max=max(len(weight) - 2, 0))  # (n_new,)
    after = (before + 1).clamp(max=len(weight) - 1)
    share = (place - before).to(weight.dtype)[:, None]  # (n_new, 1), of the row after
    return torch.lerp(weight[before], weight[after], share)  # (n_new, d)


class NoPositions(nn.Module):
    """Leave the embeddings as they are: tokens are a set, unless a mask tells them apart.

    Source: [haviv2022transformer]
    Explained in: chapters/04_positions, section "Without positions, order is lost".
    """

    def forward(
        self, x: Float[Tensor, "*B N D"], positions: Int[Tensor, "... N"] | None = None
    ) -> Float[Tensor, "*B N D"]:
        """Return x.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if the positions do not fit x.
        """
        positions_of(x, positions)
        return x


class SinusoidalPositions(nn.Module):
    """Add the sinusoidal encoding: x + PE. It has no weights, and every position has a code.

    Args:
        d_model: size of the embeddings, even.
        base: see :func:`sinusoidal_encoding`.

    Raises:
        TypeError: for a wrong type.
        ValueError: if d_model is odd or the base is not above 1.

    Source: [vaswani2017attention]
    Explained in: chapters/04_positions, section "Sinusoidal encoding".
    """

    def __init__(self, d_model: int, base: float = 10000.0) -> None:
        """Keep the configuration."""
        super().__init__()
        check_even("d_model", d_model)
        check_base(base)
        self.d_model, self.base = d_model, base

    def forward(
        self, x: Float[Tensor, "*B N D"], positions: Real[Tensor, "... N"] | None = None
    ) -> Float[Tensor, "*B N D"]:
        """Return x (..., N, d_model) plus the codes of its positions, 0 … N − 1 when omitted.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit.
        """
        positions = positions_of(x, positions, self.d_model, whole=False)
        code = sinusoidal_encoding(positions, self.d_model, base=self.base, dtype=x.dtype)
        return x + beside(x, code)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"d_model={self.d_model}, base={self.base:g}"


class LearnedPositions(nn.Module):
    """Add a learned vector for each position: x + weight[positions]. Beyond max_len there is none.

    Args:
        max_len: number of positions.
        d_model: size of the embeddings.

    Raises:
        TypeError: for a wrong type.
        ValueError: if a size is below 1.

    Source: [gehring2017convolutional]
    Explained in: chapters/04_positions, section "Learned embeddings".
    """

    def __init__(self, max_len: int, d_model: int) -> None:
        """Make the table as `nn.Embedding` has it, (max_len, d_model), normal with std 0.02."""
        super().__init__()
        check_number("max_len", max_len, 1, whole=True)
        check_number("d_model", d_model, 1, whole=True)
        self.weight = nn.Parameter(torch.empty(max_len, d_model))
        nn.init.normal_(self.weight, std=0.02)

    @property
    def max_len(self) -> int:
        """The number of positions."""
        return len(self.weight)

    @property
    def d_model(self) -> int:
        """The size of the embeddings."""
        return self.weight.shape[1]

    def forward(
        self, x: Float[Tensor, "*B N D"], positions: Int[Tensor, "... N"] | None = None
    ) -> Float[Tensor, "*B N D"]:
        """Return x (..., N, d_model) plus the vectors of its positions, 0 … N − 1 when omitted.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit or a position is outside of the table.
        """
        positions = positions_of(x, positions, self.d_model, below=self.max_len)
        return x + beside(x, functional.embedding(positions, self.weight))

    def interpolated(self, max_len: int) -> "LearnedPositions":
        """Return a copy with another number of positions, see :func:`interpolate_positions`.

        Raises:
            TypeError: if the number is not an integer.
            ValueError: if it is below 2.
        """
        weight = interpolate_positions(self.weight.detach(), max_len)
        other = LearnedPositions(max_len, self.d_model)
        other.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        return other

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"max_len={self.max_len}, d_model={self.d_model}"


class ConcatenatedPositions(nn.Module):
    """Put the code beside the embedding and project both: W [x; p] = W_x x + W_p p.

    So concatenating is adding a projected code, with d_position further inputs to pay for.

    Args:
        d_model: size of the embeddings.
        d_position: size of the sinusoidal code p, even.
        base: see :func:`sinusoidal_encoding`.

    Raises:
        TypeError: for a wrong type.
        ValueError: if a size is out of range.

    Explained in: chapters/04_positions_deeper, section "Adding and concatenating".
    """

    def __init__(self, d_model: int, d_position: int, base: float = 10000.0) -> None:
        """Make W, (d_model, d_model + d_position)."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_even("d_position", d_position)
        check_base(base)
        self.d_model, self.d_position, self.base = d_model, d_position, base
        self.proj = nn.Linear(d_model + d_position, d_model, bias=False)

    @property
    def weight_x(self) -> Float[Tensor, "D D"]:
        """W_x, the columns of W that meet the embedding."""
        return self.proj.weight[:, : self.d_model]

    @property
    def weight_p(self) -> Float[Tensor, "D P"]:
        """W_p, the columns of W that meet the code."""
        return self.proj.weight[:, self.d_model :]

    def forward(
        self, x: Float[Tensor, "*B N D"], positions: Real[Tensor, "... N"] | None = None
    ) -> Float[Tensor, "*B N D"]:
        """Return W [x; p] for x (..., N, d_model), positions 0 … N − 1 when omitted.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit.
        """
        positions = positions_of(x, positions, self.d_model, whole=False)
        code = sinusoidal_encoding(positions, self.d_position, base=self.base, dtype=x.dtype)
        code = beside(x, code).expand(*x.shape[:-1], -1)  # (..., N, d_position)
        return self.proj(torch.cat((x, code), dim=-1))

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"d_model={self.d_model}, d_position={self.d_position}, base={self.base:g}"


def positions_of(
    x: Tensor,
    positions: Tensor | None,
    d_model: int | None = None,
    *,
    below: int | None = None,
    whole: bool = True,
) -> Tensor:
    """Check x and its positions; return the positions, 0 … N − 1 when omitted."""
    check_float("x", x, min_dims=2)
    if d_model not in (None, x.shape[-1]):
        raise ValueError(f"x must end with d_model = {d_model} numbers, got shape {tuple(x.shape)}")
    n = x.shape[-2]
    if positions is None:
        if below is not None and n > below:
            raise ValueError(f"x has {n} tokens, but there are only {below} positions")
        return torch.arange(n, device=x.device)
    check_positions("positions", positions, shape=x.shape[:-1], device=x.device, whole=whole)
    # A compiled graph cannot look at values; there the lookup itself refuses.
    if below is not None and positions.numel() and not torch.compiler.is_compiling():
        lowest, highest = (int(end) for end in positions.aminmax())
        if lowest < 0 or highest >= below:
            raise ValueError(f"positions must be from 0 to {below - 1}, got {lowest} to {highest}")
    return positions


def beside(x: Tensor, code: Tensor) -> Tensor:
    """Give a code (N, D) or (B, N, D) the dimensions that x has between batch and tokens."""
    return code if code.ndim == 2 else code.unflatten(0, (len(code), *(1,) * (x.ndim - 3)))
