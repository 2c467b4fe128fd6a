"""Rotary embeddings: queries and keys turn with their position, so scores see the distance.

The numbers of a query are taken in pairs, and pair i is turned by the angle m·θ_i at position m.
Turning two vectors by the same angle leaves their inner product alone, so a score depends on where
the key stands from the query, and on nothing else about the positions. Two layouts of the pairs
are in use, and some models turn the first numbers of a head only.

Explained in: chapters/04_positions, section "Rotary embeddings".
"""

import math
from typing import Literal

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from tfbook._checks import (
    check_dtype,
    check_even,
    check_float,
    check_number,
    check_positions,
    check_tensor,
)
from tfbook.positions.frequencies import RotaryScaling, rotary_frequencies

__all__ = [
    "RotaryPositions",
    "apply_rotary",
    "half_to_interleaved",
    "interleaved_to_half",
    "rotary_table",
]

Layout = Literal["interleaved", "half"]
LAYOUTS = ("interleaved", "half")
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
MOST_KEPT = 2**16  # rows; farther positions are computed when they are asked for


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
        ValueError: if the frequencies have another shape, or the amplitude is not finite.

    Explained in: chapters/04_positions, section "Rotary embeddings".
    """
    check_positions("positions", positions, whole=False)
    check_float("frequencies", frequencies, min_dims=1)
    if frequencies.ndim != 1:
        raise ValueError(f"frequencies must have shape (P,), got {tuple(frequencies.shape)}")
    check_number("amplitude", amplitude)
    check_dtype(dtype)
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
    weights; the frequencies are no buffer, so that ``.half()`` cannot round them. Cosines and sines
    of positions once met are kept, outside of the state dictionary, for all layers that share it.

    Args:
        d_head: size of a head, even unless only a share of it is rotated.
        rotated: how many numbers of a head are rotated, the first ones, even; the others stay as
            they are. All of them when omitted; GPT-NeoX rotates a quarter.
        base: see :func:`rotary_frequencies`, there with ``rotated`` for d_head.
        layout: "interleaved" or "half", see :func:`apply_rotary`.
        scaling: LinearScaling, NTKScaling, YarnScaling or Llama3Scaling for longer contexts.

    Raises:
        TypeError: for a wrong type.
        ValueError: if d_head or rotated is odd, rotated is above d_head, the base is not above 1
            or the layout is unknown.

    Cost: a table of cosines and sines, 8 · rotated/2 bytes for each position up to the farthest
        one met in float32, at most for the first 65,536.

    Source: [su2024roformer]
    Explained in: chapters/04_positions, section "Rotary embeddings".
    """

    spans = True  # positions may be a range: then nobody has to look at them to know which they are

    def __init__(
        self,
        d_head: int,
        *,
        rotated: int | None = None,
        base: float = 10000.0,
        layout: Layout = "interleaved",
        scaling: RotaryScaling | None = None,
    ) -> None:
        """Compute the frequencies."""
        super().__init__()
        check_layout(layout)
        if rotated is not None:
            check_number("d_head", d_head, 2, whole=True)
            check_even("rotated", rotated)
            if rotated > d_head:
                raise ValueError(f"rotated must not exceed d_head = {d_head}, got {rotated}")
        self.d_head, self.rotated = d_head, d_head if rotated is None else rotated
        self.base, self.layout, self.scaling = base, layout, scaling
        self.frequencies = rotary_frequencies(self.rotated, base=base, scaling=scaling)  # (P,)
        self.amplitude = scaling.amplitude if scaling else 1.0
        self._kept = {}  # (dtype, device) → what the table was made from, and the table

    def rotate(
        self, x: Float[Tensor, "*B N D"], positions: Real[Tensor, "... N"] | range
    ) -> Float[Tensor, "*B N D"]:
        """Turn queries or keys x (..., N, d_head) to their positions: (N,), (B, N) or a range.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit.
        """
        check_float("x", x, min_dims=2)
        if x.shape[-1] != self.d_head:
            raise ValueError(
                f"x must end with d_head = {self.d_head} numbers, got shape {tuple(x.shape)}"
            )
        if not isinstance(positions, range):
            tokens = x.shape[:-1]
            check_positions("positions", positions, shape=tokens, device=x.device, whole=False)
        elif len(positions) != x.shape[-2] or positions.step != 1:
            raise ValueError(
                f"positions must be a range of {x.shape[-2]} in steps of 1, got {positions}"
            )
        return self.turn(x, *self.table(positions, x.dtype, device=x.device))

    def table(
        self,
        positions: Real[Tensor, "... N"] | range,
        dtype: torch.dtype = torch.float32,
        *,
        device: torch.device | None = None,
    ) -> tuple[Tensor, ...]:
        """Return what turns vectors of this dtype to these positions, for :meth:`turn`.

        Layers that rotate to the same positions can share it.

        Args:
            positions: (N,), (B, N), or a range.
            dtype: that of the vectors.
            device: where the table is to be for a range; a tensor's own otherwise.
        """
        exact = torch.promote_types(dtype, torch.float32)
        first, stop = _ends(positions)
        if not 0 <= first <= stop <= MOST_KEPT or self.frequencies.requires_grad:
            if isinstance(positions, range):
                positions = torch.arange(positions.start, positions.stop, device=device)
            return self._make(positions, exact)
        if isinstance(positions, range):
            return tuple(x[first:stop] for x in self._rows(stop, exact, device))
        rows = self._rows(stop, exact, positions.device)
        return tuple(x[positions.long()] for x in rows)

    def turn(self, x: Float[Tensor, "*B N D"], *table: Tensor) -> Float[Tensor, "*B N D"]:
        """Turn queries or keys x (..., N, d_head) by what :meth:`table` returned."""
        if self.rotated == self.d_head:
            return _turn(x, table)
        x, rest = x[..., : self.rotated], x[..., self.rotated :]
        return torch.cat((_turn(x, table), rest), dim=-1)

    def extra_repr(self) -> str:
        """Show the configuration."""
        share = f", rotated={self.rotated}" if self.rotated != self.d_head else ""
        scaling = f", scaling={self.scaling}" if self.scaling else ""
        return f"d_head={self.d_head}{share}, base={self.base:g}, layout={self.layout!r}{scaling}"

    def _make(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        table = rotary_table(positions, self.frequencies, amplitude=self.amplitude, dtype=dtype)
        return _as_layout(*table, self.layout)

    def _rows(self, stop: int, dtype: torch.dtype, device: object) -> tuple[Tensor, ...]:
        """Return a table of the positions 0 … stop − 1 at least, made anew where it has grown old.

        Two threads may both make it, and either's is right: a table is never changed, and put in
        its place whole.
        """
        source = self.frequencies
        how = (0 if source.is_inference() else source._version, self.amplitude, self.layout)
        old, old_how, table = self._kept.get((dtype, device), (None, None, ()))
        if old is not source or old_how != how or len(table[0]) < stop:
            length = max(64, 1 << (stop - 1).bit_length())
            with torch.inference_mode(False), torch.no_grad():  # for any later use
                table = self._make(torch.arange(length, device=device), dtype)
            if type(table[0]) is Tensor:  # and no stand-in of a tracer's
                self._kept[dtype, device] = source, how, table
        return table

    def __getstate__(self) -> dict[str, object]:
        """Leave the tables out of copies and files; they are made again when needed."""
        return self.__dict__ | {"_kept": {}}


def _ends(positions: Tensor | range) -> tuple[int, int]:
    """Return the first and one past the last position; (0, −1) where one cannot or should not look.

    Looking at values makes a GPU wait, and in a compiled or mapped function there are none.
    """
    unknown = (0, -1)
    if torch.compiler.is_compiling():
        return unknown
    if isinstance(positions, range):
        return positions.start, positions.stop
    if positions.device.type != "cpu" or positions.dtype not in WHOLE or not positions.numel():
        return unknown
    if type(positions) is not Tensor or torch._C._functorch.is_functorch_wrapped_tensor(positions):
        return unknown
    low, high = positions.aminmax()
    return int(low), int(high) + 1


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
    check_number("n_heads", n_heads, 1, whole=True)
    check_number("dim", dim, whole=True)
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
