"""Rotary embeddings: queries and keys turn with their position, so scores see the distance.

The numbers of a query are taken in pairs, and pair i is turned by the angle m·θ_i at position m.
Turning two vectors by the same angle leaves their inner product alone, so a score depends on where
the key stands from the query, and on nothing else about the positions. Two layouts of the pairs
are in use, and three ways to stretch the angles for contexts longer than those trained on.

Explained in: chapters/04_positions, section "Rotary embeddings".
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from tfbook._checks import (
    check_count,
    check_even,
    check_float,
    check_positions,
    check_positive,
    check_tensor,
)

__all__ = [
    "LinearScaling",
    "NTKScaling",
    "RotaryPositions",
    "RotaryScaling",
    "YarnScaling",
    "apply_rotary",
    "half_to_interleaved",
    "interleaved_to_half",
    "rotary_frequencies",
    "rotary_table",
]

Layout = Literal["interleaved", "half"]
LAYOUTS = ("interleaved", "half")


@runtime_checkable
class RotaryScaling(Protocol):
    """A way to change the frequencies for contexts longer than those trained on.

    ``amplitude`` multiplies the rotated vectors, so it multiplies each score by its square.

    Explained in: chapters/04_positions, section "Longer contexts by interpolation".
    """

    amplitude: float

    def frequencies(self, d_head: int, base: float) -> Float[Tensor, " P"]:
        """Return the angles per position, one for each of the d_head/2 pairs, in float64."""
        ...


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: every angle is divided by the same factor.

    θ'_i = θ_i / factor, so position p stands where p / factor stood in training, and a context
    ``factor`` times as long spans the angles that were trained. The neighbours come closer.

    Raises:
        TypeError: if the factor is not a number.
        ValueError: if it is not finite and positive.

    Source: [chen2023extending]
    Explained in: chapters/04_positions, section "Longer contexts by interpolation".
    """

    factor: float
    amplitude: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Check the factor."""
        check_positive("factor", self.factor)

    def frequencies(self, d_head: int, base: float) -> Float[Tensor, " P"]:
        """Return θ_i / factor, (d_head/2,)."""
        return rotary_frequencies(d_head, base=base) / self.factor


@dataclass(frozen=True)
class NTKScaling:
    """A larger base: the slowest pair is slowed down by the factor, the fastest not at all.

    θ'_i = (base · factor^{d/(d−2)})^{−2i/d} = θ_i · factor^{−2i/(d−2)}: pair 0 keeps its angle 1
    and the last pair, 2i = d − 2, has its own divided by the factor.

    Raises:
        TypeError: if the factor is not a number.
        ValueError: if it is not finite and positive, or d_head is 2, which has no slowest pair.

    Source: [peng2024yarn]
    Explained in: chapters/04_positions, section "Longer contexts by interpolation".
    """

    factor: float
    amplitude: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Check the factor."""
        check_positive("factor", self.factor)

    def frequencies(self, d_head: int, base: float) -> Float[Tensor, " P"]:
        """Return the frequencies of the larger base, (d_head/2,)."""
        check_count("d_head", d_head, minimum=4)
        return rotary_frequencies(d_head, base=base * self.factor ** (d_head / (d_head - 2)))


@dataclass(frozen=True)
class YarnScaling:
    """Interpolate the slow pairs, leave the fast ones, and blend in between.

    A pair that turns r times within the trained length keeps its angle if r ≥ ``beta_fast`` and has
    it divided by the factor if r ≤ ``beta_slow``. In between the share of the divided angle grows
    linearly with the number of the pair, as in the authors' code; the paper writes it linear in r.
    The rotated vectors are multiplied by ``amplitude`` = 0.1 ln(factor) + 1.

    Args:
        factor: how many times longer the context gets, at least 1.
        original_max_len: the length trained on, L.
        beta_fast: turns within L from which on a pair keeps its angle.
        beta_slow: turns within L up to which a pair is interpolated in full.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if one is out of its range, or beta_fast is below beta_slow.

    Source: [peng2024yarn]
    Explained in: chapters/04_positions, section "Longer contexts by interpolation".
    """

    factor: float
    original_max_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        """Check the four numbers."""
        for name in ("factor", "beta_fast", "beta_slow"):
            check_positive(name, getattr(self, name))
        check_count("original_max_len", self.original_max_len, minimum=1)
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, got {self.factor}")
        if self.beta_fast < self.beta_slow:
            raise ValueError(
                "beta_fast must not be below beta_slow, got "
                f"beta_fast {self.beta_fast} and beta_slow {self.beta_slow}"
            )

    @property
    def amplitude(self) -> float:
        """The factor on rotated queries and keys."""
        return 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, d_head: int, base: float) -> Float[Tensor, " P"]:
        """Return the blend of θ_i and θ_i / factor, (d_head/2,)."""
        plain = rotary_frequencies(d_head, base=base)
        first = max(math.floor(self._pair_of(self.beta_fast, d_head, base)), 0)
        last = min(math.ceil(self._pair_of(self.beta_slow, d_head, base)), d_head - 1)
        pair = torch.arange(d_head // 2, dtype=plain.dtype, device=plain.device)  # (P,)
        # With first = last the ramp is a step; a thousandth keeps the division defined.
        divided = ((pair - first) / max(last - first, 1e-3)).clamp(0, 1)  # (P,), the share
        return plain * (1 - divided) + plain / self.factor * divided

    def _pair_of(self, turns: float, d_head: int, base: float) -> float:
        """Return which pair, as a real number, turns so often within the trained length.

        From turns · 2π · base^{2i/d} = L.
        """
        wavelength = self.original_max_len / turns
        return d_head * math.log(wavelength / (2 * math.pi)) / (2 * math.log(base))


def rotary_frequencies(
    d_head: int, *, base: float = 10000.0, scaling: RotaryScaling | None = None
) -> Float[Tensor, " P"]:
    """Return by which angle each pair turns from one position to the next.

    θ_i = base^{−2i/d} for pair i = 0, …, d/2 − 1: pair 0 turns by 1 radian, the last one slowest.

    Args:
        d_head: size of a head, even.
        base: 10000 as in the paper; larger ones turn more slowly.
        scaling: a change of the frequencies for longer contexts.

    Returns:
        Radians per position, (d_head/2,), in float64 on the CPU.

    Raises:
        TypeError: for a wrong type.
        ValueError: if d_head is odd or below 2, or the base is not above 1.

    Example:
        >>> rotary_frequencies(4, base=100.0)
        tensor([1.0000, 0.1000], dtype=torch.float64)

    Source: [su2024roformer]
    Explained in: chapters/04_positions, section "Rotary embeddings".
    """
    check_even("d_head", d_head)
    check_base(base)
    if scaling is not None:
        if not isinstance(scaling, RotaryScaling):
            raise TypeError(
                "scaling must be LinearScaling, NTKScaling, YarnScaling or something with "
                f"frequencies and amplitude, got {type(scaling).__name__}"
            )
        return scaling.frequencies(d_head, base)
    exponent = torch.arange(0, d_head, 2, dtype=torch.float64, device="cpu") / d_head  # (P,)
    return float(base) ** -exponent


def rotary_table(
    positions: Real[Tensor, "*B N"],
    frequencies: Float[Tensor, " P"],
    *,
    amplitude: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "*B N P"], Float[Tensor, "*B N P"]]:
    """Return the cosine and sine of each position's angle for each pair.

    The angles are multiplied out in float64: in float32 an angle of 100,000 radians is known to
    0.004 only, and the scores at far positions would show it. (Apple's MPS has no float64.)

    Args:
        positions: (..., N), integers, or real numbers in between.
        frequencies: radians per position, (P,).
        amplitude: factor on both.
        dtype: dtype of the result.

    Returns:
        amplitude · cos and amplitude · sin of positions × frequencies, each (..., N, P).

    Raises:
        TypeError: if the positions are booleans or the frequencies no floating-point tensor.

    Explained in: chapters/04_positions, section "Rotary embeddings".
    """
    check_positions("positions", positions, whole=False)
    check_float("frequencies", frequencies, min_dims=1)
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    frequencies = frequencies.to(exact).to(positions.device)
    angles = positions.to(exact)[..., None] * frequencies  # (..., N, P)
    return (angles.cos() * amplitude).to(dtype), (angles.sin() * amplitude).to(dtype)


def apply_rotary(
    x: Float[Tensor, "*B N D"],
    positions: Real[Tensor, "... N"],
    *,
    base: float = 10000.0,
    layout: Layout = "interleaved",
    scaling: RotaryScaling | None = None,
) -> Float[Tensor, "*B N D"]:
    """Turn each pair of each vector by its position times the pair's frequency.

    (a, b) → (a cos mθ_i − b sin mθ_i, a sin mθ_i + b cos mθ_i) for pair i at position m.
    The pairs are numbers 2i and 2i + 1 in the layout "interleaved" (the paper), i and i + d/2 in
    the layout "half" (LLaMA in `transformers`).

    Args:
        x: queries or keys (..., N, d_head).
        positions: (N,) for all sequences, or (B, N) for an x that begins with B.
        base: see :func:`rotary_frequencies`.
        layout: which numbers form a pair.
        scaling: see :func:`rotary_frequencies`.

    Returns:
        The rotated vectors, (..., N, d_head), in the dtype of x.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if a shape does not fit, d_head is odd or the layout is unknown.

    Example:
        >>> apply_rotary(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))  # by 1 radian
        tensor([[0.5403, 0.8415]])

    Cost: 3 N d_head FLOPs for each sequence and head, beside the sines and cosines of the table.

    Source: [su2024roformer]
    Explained in: chapters/04_positions, section "Rotary embeddings".
    """
    check_float("x", x, min_dims=2)
    frequencies = rotary_frequencies(x.shape[-1], base=base, scaling=scaling)
    return _rotate(x, positions, frequencies, scaling.amplitude if scaling else 1.0, layout)


class RotaryPositions(nn.Module):
    """Rotary embeddings as a part: rotate queries and keys before they are compared.

    ⟨R_m q, R_n k⟩ = ⟨q, R_{n−m} k⟩, so a score depends on the distance n − m alone. It has no
    weights; the frequencies are no buffer, so that ``.half()`` cannot round them.

    Args:
        d_head: size of a head, even.
        base: see :func:`rotary_frequencies`.
        layout: "interleaved" or "half", see :func:`apply_rotary`.
        scaling: LinearScaling, NTKScaling or YarnScaling for longer contexts.

    Raises:
        TypeError: for a wrong type.
        ValueError: if d_head is odd, the base is not above 1 or the layout is unknown.

    Source: [su2024roformer]
    Explained in: chapters/04_positions, section "Rotary embeddings".
    """

    def __init__(
        self,
        d_head: int,
        *,
        base: float = 10000.0,
        layout: Layout = "interleaved",
        scaling: RotaryScaling | None = None,
    ) -> None:
        """Compute the frequencies."""
        super().__init__()
        check_layout(layout)
        self.d_head, self.base, self.layout, self.scaling = d_head, base, layout, scaling
        self.frequencies = rotary_frequencies(d_head, base=base, scaling=scaling)  # (d_head/2,)
        self.amplitude = scaling.amplitude if scaling else 1.0

    def rotate(
        self, x: Float[Tensor, "*B N D"], positions: Real[Tensor, "... N"]
    ) -> Float[Tensor, "*B N D"]:
        """Turn queries or keys x (..., N, d_head) to their positions, (N,) or (B, N).

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit.
        """
        check_float("x", x, min_dims=2)
        if x.shape[-1] != self.d_head:
            raise ValueError(
                f"x must end with d_head = {self.d_head} numbers, got shape {tuple(x.shape)}"
            )
        return _rotate(x, positions, self.frequencies, self.amplitude, self.layout)

    def table(
        self, positions: Real[Tensor, "... N"], dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, ...]:
        """Return what turns vectors of this dtype to these positions, for :meth:`turn`.

        Layers that rotate to the same positions can share it.
        """
        exact = torch.promote_types(dtype, torch.float32)
        table = rotary_table(positions, self.frequencies, amplitude=self.amplitude, dtype=exact)
        return _as_layout(*table, self.layout)

    def turn(self, x: Float[Tensor, "*B N D"], *table: Tensor) -> Float[Tensor, "*B N D"]:
        """Turn queries or keys x (..., N, d_head) by what :meth:`table` returned."""
        return _turn(x, table)

    def extra_repr(self) -> str:
        """Show the configuration."""
        scaling = f", scaling={self.scaling}" if self.scaling else ""
        return f"d_head={self.d_head}, base={self.base:g}, layout={self.layout!r}{scaling}"


def interleaved_to_half(
    x: Float[Tensor, "*S"], *, dim: int = -1, n_heads: int = 1
) -> Float[Tensor, "*S"]:
    """Reorder from pairs (2i, 2i + 1) to pairs (i, i + d/2): evens first, then odds.

    Rotating in one layout and reordering is reordering and rotating in the other. Reorder the
    rows of the projections that make q and k, and a model trained in one layout runs in the
    other: ``interleaved_to_half(q_proj.weight, dim=0, n_heads=n_heads)``, and so for its bias.
    Scores stay the same, since q and k are reordered alike.

    Args:
        x: activations, or a projection's weight (n_heads · d_head, d_model) or bias.
        dim: the dimension to reorder.
        n_heads: how many heads lie side by side in it.

    Returns:
        A tensor of the same shape.

    Raises:
        TypeError: for a wrong type.
        ValueError: if the dimension does not split into heads of even size.

    Example:
        >>> interleaved_to_half(torch.tensor([0.0, 1.0, 2.0, 3.0]))
        tensor([0., 2., 1., 3.])

    Explained in: chapters/04_positions, section "Rotary embeddings".
    """
    return _swap_layout(x, dim, n_heads, pair_first=True)


def half_to_interleaved(
    x: Float[Tensor, "*S"], *, dim: int = -1, n_heads: int = 1
) -> Float[Tensor, "*S"]:
    """Reorder from pairs (i, i + d/2) to pairs (2i, 2i + 1): undo :func:`interleaved_to_half`.

    Args:
        x: activations, or a projection's weight (n_heads · d_head, d_model) or bias.
        dim: the dimension to reorder.
        n_heads: how many heads lie side by side in it.

    Returns:
        A tensor of the same shape.

    Raises:
        TypeError: for a wrong type.
        ValueError: if the dimension does not split into heads of even size.

    Explained in: chapters/04_positions, section "Rotary embeddings".
    """
    return _swap_layout(x, dim, n_heads, pair_first=False)


def _swap_layout(x: Tensor, dim: int, n_heads: int, *, pair_first: bool) -> Tensor:
    check_tensor("x", x, min_dims=1)
    check_count("n_heads", n_heads, minimum=1)
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"dim must name a dimension of x, got {dim} for shape {tuple(x.shape)}")
    if x.shape[dim] % (2 * n_heads):
        raise ValueError(
            f"x must have n_heads = {n_heads} heads of even size along dim {dim}, "
            f"got shape {tuple(x.shape)}"
        )
    dim %= x.ndim
    pairs = (-1, 2) if pair_first else (2, x.shape[dim] // n_heads // 2)
    return x.unflatten(dim, (n_heads, *pairs)).transpose(dim + 1, dim + 2).flatten(dim, dim + 2)


def check_base(base: object) -> None:
    """Raise unless the base is a finite number above 1: wavelengths grow from pair to pair.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is not finite or not above 1.
    """
    check_positive("base", base)
    if base <= 1:
        raise ValueError(f"base must be above 1, got {base}")


def check_layout(layout: object) -> None:
    """Raise ValueError unless the layout is "interleaved" or "half"."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")


def _rotate(
    x: Tensor, positions: Tensor, frequencies: Tensor, amplitude: float, layout: str
) -> Tensor:
    check_layout(layout)
    check_positions("positions", positions, shape=x.shape[:-1], device=x.device, whole=False)
    exact = torch.promote_types(x.dtype, torch.float32)
    table = rotary_table(positions, frequencies, amplitude=amplitude, dtype=exact)
    return _turn(x, _as_layout(*table, layout))


def _as_layout(cos: Tensor, sin: Tensor, layout: str) -> tuple[Tensor, ...]:
    """Return the table as :func:`_turn` takes it: two tensors for "half", one complex one else."""
    return (cos, sin) if layout == "half" else (torch.complex(cos, sin),)


def _turn(x: Tensor, table: tuple[Tensor, ...]) -> Tensor:
    """Turn the pairs of x (..., N, D) by a table of tensors (N, P) or (B, N, P)."""
    exact = torch.promote_types(x.dtype, torch.float32)
    if table[0].ndim == 3:  # (B, N, P): make room for what stands between batch and tokens
        table = tuple(each.unflatten(0, (len(each), *(1,) * (x.ndim - 3))) for each in table)
    if len(table) == 2:
        cos, sin = table
        a, b = x.to(exact).chunk(2, dim=-1)  # (..., N, P) each
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)  # (..., N, D)
    else:  # a pair is a complex number, and turning it is a multiplication
        turned = _as_complex(x.to(exact)) * table[0]  # (..., N, P)
        turned = torch.view_as_real(turned).flatten(-2)  # (..., N, D)
    return turned if turned.dtype == x.dtype else turned.to(x.dtype)


def _as_complex(x: Tensor) -> Tensor:
    """Read the pairs of x (..., D) as complex numbers (..., D/2), in place where memory allows."""
    pairs = x.view(*x.shape[:-1], x.shape[-1] // 2, 2)
    if torch.compiler.is_compiling():
        return torch.complex(*pairs.unbind(-1))
    *strides, last = pairs.stride()
    if last == 1 and math.gcd(2, pairs.storage_offset(), *strides) == 2:  # all of them are even
        return torch.view_as_complex(pairs)
    return torch.complex(*pairs.unbind(-1))
