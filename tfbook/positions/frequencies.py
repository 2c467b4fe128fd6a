"""How fast each pair of numbers turns, and how that changes for contexts longer than trained on.

Pair i of a rotary embedding, and of the sinusoidal one, turns by θ_i radians from one position to
the next. Four ways to stretch the angles keep far positions among those that training has seen.

Explained in: chapters/04_positions, section "Rotary embeddings".
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import check_bool, check_even, check_number

__all__ = [
    "LinearScaling",
    "Llama3Scaling",
    "NTKScaling",
    "RotaryScaling",
    "YarnScaling",
    "check_base",
    "rotary_frequencies",
]


@runtime_checkable
class RotaryScaling(Protocol):
    """A way to change the frequencies for contexts longer than those trained on.

    ``amplitude`` multiplies the rotated vectors, so it multiplies each score by its square.

    Explained in: chapters/04_positions, section "Longer contexts".
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
    Explained in: chapters/04_positions, section "Longer contexts".
    """

    factor: float
    amplitude: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Check the factor."""
        check_number("factor", self.factor, above=0)

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
    Explained in: chapters/04_positions, section "Longer contexts".
    """

    factor: float
    amplitude: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Check the factor."""
        check_number("factor", self.factor, above=0)

    def frequencies(self, d_head: int, base: float) -> Float[Tensor, " P"]:
        """Return the frequencies of the larger base, (d_head/2,)."""
        check_number("d_head", d_head, 4, whole=True)
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
        truncate: whether the blend begins and ends at whole pairs, the range of them rounded
            outward, as in the authors' code; GPT-OSS begins and ends in between.

    Raises:
        TypeError: if an argument is not a number, or truncate not a bool.
        ValueError: if one is out of its range, or beta_fast is below beta_slow.

    Source: [peng2024yarn]
    Explained in: chapters/04_positions, section "Longer contexts".
    """

    factor: float
    original_max_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        """Check the four numbers, and the choice."""
        _check_parts(self)
        check_bool("truncate", self.truncate)

    @property
    def amplitude(self) -> float:
        """The factor on rotated queries and keys."""
        return 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, d_head: int, base: float) -> Float[Tensor, " P"]:
        """Return the blend of θ_i and θ_i / factor, (d_head/2,)."""
        plain = rotary_frequencies(d_head, base=base)
        first = self._pair_of(self.beta_fast, d_head, base)
        last = self._pair_of(self.beta_slow, d_head, base)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, d_head - 1)
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


@dataclass(frozen=True)
class Llama3Scaling:
    """Interpolate the slow pairs, leave the fast ones, and blend by how often a pair turns.

    A pair that turns r times within the trained length keeps its angle if r ≥ ``beta_fast`` and has
    it divided by the factor if r ≤ ``beta_slow``; in between the share of the divided angle falls
    linearly in r. LLaMA 3.1 does this; its code calls the bounds high_freq_factor and
    low_freq_factor. The rotated vectors keep their lengths, unlike in :class:`YarnScaling`.

    Args:
        factor: by what the angles of slow pairs are divided, at least 1.
        original_max_len: the length trained on, L.
        beta_fast: turns within L from which on a pair keeps its angle.
        beta_slow: turns within L up to which a pair is interpolated in full.

    Raises:
        TypeError: if an argument is not a number.
        ValueError: if one is out of its range, or beta_fast is not above beta_slow.

    Source: [peng2024yarn], there as "NTK-by-parts"
    Explained in: chapters/04_positions, section "Longer contexts".
    """

    factor: float
    original_max_len: int
    beta_fast: float = 4.0
    beta_slow: float = 1.0
    amplitude: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Check the four numbers."""
        _check_parts(self)
        if self.beta_fast == self.beta_slow:
            raise ValueError(f"beta_fast must be above beta_slow, got {self.beta_fast} for both")

    def frequencies(self, d_head: int, base: float) -> Float[Tensor, " P"]:
        """Return the blend of θ_i and θ_i / factor, (d_head/2,)."""
        plain = rotary_frequencies(d_head, base=base)  # (P,)
        turns = self.original_max_len * plain / (2 * math.pi)  # (P,), within the trained length
        kept = ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)
        return plain * kept + plain / self.factor * (1 - kept)


def _check_parts(scaling: YarnScaling | Llama3Scaling) -> None:
    """Check the numbers of a scaling that treats fast and slow pairs differently."""
    for name in ("factor", "beta_fast", "beta_slow"):
        check_number(name, getattr(scaling, name), above=0)
    check_number("original_max_len", scaling.original_max_len, 1, whole=True)
    if scaling.factor < 1:
        raise ValueError(f"factor must be at least 1, got {scaling.factor}")
    if scaling.beta_fast < scaling.beta_slow:
        raise ValueError(
            "beta_fast must not be below beta_slow, got "
            f"beta_fast {scaling.beta_fast} and beta_slow {scaling.beta_slow}"
        )


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
                "scaling must be LinearScaling, NTKScaling, YarnScaling, Llama3Scaling or "
                f"something with frequencies and amplitude, got {type(scaling).__name__}"
            )
        return scaling.frequencies(d_head, base)
    exponent = torch.arange(0, d_head, 2, dtype=torch.float64, device="cpu") / d_head  # (P,)
    return float(base) ** -exponent


def check_base(base: object) -> None:
    """Raise unless the base is a finite number above 1: wavelengths grow from pair to pair.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is not finite or not above 1.
    """
    check_number("base", base, above=0)
    if base <= 1:
        raise ValueError(f"base must be above 1, got {base}")
