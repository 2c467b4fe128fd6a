"""Number formats bit by bit: what a pattern stands for, and which pattern is nearest to a number.

A floating-point format is a sign, an exponent field of e bits and a mantissa field of m bits. With
E and M the fields read as whole numbers, a pattern stands for

    ± 2^(E − bias) (1 + M / 2^m)      if E > 0, a normal number,
    ± 2^(1 − bias) M / 2^m            if E = 0, a subnormal number or 0,

but for the patterns at the top, which may be infinity or NaN. Within one exponent all numbers are
equally far apart, 2^(E − bias − m), so rounding is a division, a ``round`` and a shift.

Explained in: chapters/17_hardware, section "Numbers bit by bit".
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from tfbook._checks import check_bool, check_choice, check_float, check_generator, check_number

__all__ = [
    "FORMATS",
    "FloatFormat",
    "IntFormat",
    "decode",
    "encode",
    "round_to",
    "to_torch",
]

SPECIALS = ("ieee", "nan", "none")


def _check_name(name: object, dtype: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, got {type(name).__name__}")
    if not (dtype is None or isinstance(dtype, torch.dtype)):
        raise TypeError(f"dtype must be a torch.dtype or None, got {type(dtype).__name__}")


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format.

    Args:
        name: what it is called.
        exponent: e, bits of the exponent field.
        mantissa: m, bits of the mantissa field.
        bias: what is taken off the exponent field; 2^(e−1) − 1 when omitted.
        special: what the patterns at the top mean. "ieee": with E all ones, M = 0 is infinity and
            any other M is NaN. "nan": all ones is NaN, there is no infinity. "none": all patterns
            are numbers.
        signed: whether there is a sign, the highest bit.
        subnormal: whether E = 0 is for subnormal numbers and 0; else it is an exponent like others.
        dtype: of PyTorch, None where it has none.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or an unknown ``special``.

    Example:
        >>> form = FloatFormat("e4m3", 4, 3, special="nan")
        >>> form.bits, form.largest, form.smallest, form.least
        (8, 448.0, 0.015625, 0.001953125)

    Source: of 8 bits: [micikevicius2022fp8], of 4: [rouhani2023microscaling]
    Explained in: chapters/17_hardware, section "Numbers bit by bit".
    """

    name: str
    exponent: int
    mantissa: int
    bias: int | None = None
    special: str = "ieee"
    signed: bool = True
    subnormal: bool = True
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        """Check the sizes, and fill in the bias."""
        _check_name(self.name, self.dtype)
        check_number("exponent", self.exponent, 1, 11, whole=True)
        check_number("mantissa", self.mantissa, 0, 30, whole=True)
        check_choice("special", self.special, SPECIALS)
        check_bool("signed", self.signed)
        check_bool("subnormal", self.subnormal)
        usual = 2 ** (self.exponent - 1) - 1
        object.__setattr__(self, "bias", usual if self.bias is None else self.bias)
        check_number("bias", self.bias, -1000, 1000, whole=True)
        if self.special == "ieee" and not self.mantissa:
            raise ValueError("special 'ieee' tells infinity from NaN by the mantissa, got 0 bits")

    @property
    def bits(self) -> int:
        """Return the bits of a number."""
        return self.signed + self.exponent + self.mantissa

    @property
    def last(self) -> int:
        """Return the pattern of the largest finite number."""
        patterns = 2 ** (self.exponent + self.mantissa)
        return patterns - 1 - {"ieee": 2**self.mantissa, "nan": 1, "none": 0}[self.special]

    @property
    def beyond(self) -> int | None:
        """Return the pattern behind it, infinity or NaN; None where there is none."""
        return None if self.special == "none" else self.last + 1

    @property
    def nan(self) -> int | None:
        """Return a pattern of NaN; None where there is none."""
        if self.special != "ieee":
            return self.beyond
        return self.beyond + 2 ** (self.mantissa - 1)  # the quiet one, as processors write it

    @property
    def largest(self) -> float:
        """Return the largest finite number."""
        return float(decode(torch.tensor(self.last), self))

    @property
    def smallest(self) -> float:
        """Return the smallest positive normal number, 2^(1 − bias)."""
        return 2.0 ** (self.subnormal - self.bias)

    @property
    def least(self) -> float:
        """Return the smallest positive number."""
        return self.smallest * 2.0 ** (-self.mantissa * self.subnormal)

    @property
    def epsilon(self) -> float:
        """Return the distance from 1 to the next number, 2^−m."""
        return 2.0**-self.mantissa


@dataclass(frozen=True)
class IntFormat:
    """Whole numbers from −2^(bits−1) to 2^(bits−1) − 1, in two's complement.

    Args:
        name: what it is called.
        bits: of a number.
        dtype: of PyTorch, None where it has none.

    Raises:
        TypeError: if bits is no integer.
        ValueError: if it is out of range.

    Source: [jacob2018quantization]
    Explained in: chapters/17_hardware, section "Numbers bit by bit".
    """

    name: str
    bits: int
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        """Check the size."""
        _check_name(self.name, self.dtype)
        check_number("bits", self.bits, 2, 32, whole=True)

    @property
    def largest(self) -> float:
        """Return the largest number."""
        return 2.0 ** (self.bits - 1) - 1


Format = FloatFormat | IntFormat
#: The formats of this book, by name.
FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        FloatFormat("fp32", 8, 23, dtype=torch.float32),
        FloatFormat("tf32", 8, 10),  # what tensor cores read of a float32
        FloatFormat("fp16", 5, 10, dtype=torch.float16),
        FloatFormat("bf16", 8, 7, dtype=torch.bfloat16),
        FloatFormat("e4m3", 4, 3, special="nan", dtype=torch.float8_e4m3fn),
        FloatFormat("e5m2", 5, 2, dtype=torch.float8_e5m2),
        FloatFormat("e2m1", 2, 1, special="none", dtype=torch.float4_e2m1fn_x2),
        FloatFormat(
            "e8m0", 8, 0, special="nan", signed=False, subnormal=False, dtype=torch.float8_e8m0fnu
        ),
        IntFormat("int8", 8, dtype=torch.int8),
        IntFormat("int4", 4),
    )
}


def encode(
    x: Float[Tensor, "*S"],
    form: Format,
    *,
    saturate: bool = False,
    stochastic: bool = False,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "*S"]:
    """Return the bit patterns of the numbers of a format that are nearest to x.

    Half way between two, the one with an even pattern is taken. With ``stochastic`` a number that
    is a share p of the way to its upper neighbour is rounded up with probability p, so that the
    mean is x. What lies beyond the largest number becomes infinity, or NaN where there is none;
    with ``saturate``, and where a format has neither, the largest number. Formats without 0 give
    their least number for it.

    Args:
        x: any shape; computed with in float64, where all steps are exact.
        form: one of :data:`FORMATS`, or another one.
        saturate: whether to stay finite.
        stochastic: whether to draw the rounding.
        generator: to draw with.

    Returns:
        The patterns as whole numbers from 0 to 2^bits − 1, int64.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for NaN where the format has none, or a negative number where it has no sign.

    Example:
        >>> encode(torch.tensor([1.0, -2.0, 3.1, 9.0]), FORMATS["e2m1"]).tolist()
        [2, 12, 5, 7]

    Source: stochastic: [gupta2015deep]
    Explained in: chapters/17_hardware, section "Numbers bit by bit".
    """
    check_float("x", x)
    _check_form(form)
    check_bool("saturate", saturate)
    check_bool("stochastic", stochastic)
    check_generator(generator)
    x = x.detach().double()
    nan, choose = x.isnan(), _drawn(generator) if stochastic else torch.round
    if isinstance(form, IntFormat):
        if nan.any():
            raise ValueError(f"x must hold no NaN, {form.name} has none")
        whole = choose(x.clamp(-(2.0**33), 2.0**33)).clamp(-form.largest - 1, form.largest)
        return whole.long() % 2**form.bits
    if nan.any() and form.nan is None:
        raise ValueError(f"x must hold no NaN, {form.name} has none")
    if not form.signed and (x < 0).any():
        raise ValueError(f"x must not be negative, {form.name} has no sign")
    size = x.abs().nan_to_num(nan=0.0, posinf=2.0**1023)
    exponent = (torch.frexp(size).exponent - 1).long()  # 2^exponent ≤ size < 2^(exponent + 1)
    exponent = exponent.clamp(min=form.subnormal - form.bias).where(size > 0, -form.bias)
    steps = choose(torch.ldexp(size, form.mantissa - exponent))  # from 2^m to 2^(m+1), or below
    # For a normal number the first of the steps is 2^m, the 1 that is not written; added to E − 1
    # it makes E. A round up to the next power of two carries into the exponent by itself.
    code = ((exponent + form.bias - 1) << form.mantissa) + steps.clamp(max=2.0**40).long()
    code = code.clamp(min=0)
    top = form.last if saturate or form.beyond is None else form.beyond
    code = torch.where(code > form.last, top, code)
    code = torch.where(nan, form.nan or 0, code)
    return code | (x.signbit().long() << (form.bits - 1)) if form.signed else code


def decode(
    codes: Integer[Tensor, "*S"], form: Format, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*S"]:
    """Return the numbers that bit patterns stand for.

    Args:
        codes: whole numbers from 0 to 2^bits − 1, any shape.
        form: one of :data:`FORMATS`, or another one.
        dtype: of the result; float32 holds every number of every format here.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a pattern that has more bits.

    Example:
        >>> decode(torch.arange(8), FORMATS["e2m1"])
        tensor([0.0000, 0.5000, 1.0000, 1.5000, 2.0000, 3.0000, 4.0000, 6.0000])

    Explained in: chapters/17_hardware, section "Numbers bit by bit".
    """
    codes = _read_codes(codes, form)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {dtype}")
    if isinstance(form, IntFormat):
        return torch.where(codes > form.largest, codes - 2**form.bits, codes).to(dtype)
    size = codes & (2 ** (form.exponent + form.mantissa) - 1)
    field, rest = size >> form.mantissa, (size & (2**form.mantissa - 1)).double()
    normal = (field > 0) | (not form.subnormal)
    scale = field.clamp(min=int(form.subnormal)) - form.bias
    value = torch.ldexp(normal + rest / 2**form.mantissa, scale)
    if form.special == "ieee":
        value = torch.where(size == form.beyond, torch.inf, value)
    value = torch.where(size > form.last + (form.special == "ieee"), torch.nan, value)
    negative = (codes >> (form.bits - 1)).bool() & form.signed
    return torch.where(negative, -value, value).to(dtype)


def round_to(
    x: Float[Tensor, "*S"],
    form: Format,
    *,
    saturate: bool = False,
    stochastic: bool = False,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*S"]:
    """Return the numbers of a format that are nearest to x, in the dtype of x.

    Arguments and errors are those of :func:`encode`. The result has no gradient.

    Example:
        >>> round_to(torch.tensor([0.1, 1.1, 500.0]), FORMATS["bf16"])
        tensor([1.0010e-01, 1.1016e+00, 5.0000e+02])

    Explained in: chapters/17_hardware, section "Numbers bit by bit".
    """
    how = {"saturate": saturate, "stochastic": stochastic, "generator": generator}
    return decode(encode(x, form, **how), form, dtype=x.dtype)


def to_torch(codes: Integer[Tensor, "*S"], form: Format) -> Tensor:
    """Return a tensor of PyTorch's dtype for the format that has these bit patterns.

    Of e2m1 two patterns share a byte, the first in the lower half, so that the last dimension is
    half as long.

    Args:
        codes: whole numbers from 0 to 2^bits − 1.
        form: one of :data:`FORMATS` that has a dtype.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a pattern of more bits, a format without dtype, or an odd number of halves.

    Example:
        >>> to_torch(torch.tensor([0b0_0111_000, 0b1_1111_110]), FORMATS["e4m3"]).float()
        tensor([   1., -448.])

    Explained in: chapters/17_hardware, section "Numbers bit by bit".
    """
    codes = _read_codes(codes, form)
    if form.dtype is None:
        raise ValueError(f"PyTorch has no dtype for {form.name}")
    if form.bits == 4:
        if codes.ndim == 0 or codes.shape[-1] % 2:
            raise ValueError(f"codes must end in an even number, got {tuple(codes.shape)}")
        codes = codes[..., ::2] | codes[..., 1::2] << 4
    whole = {4: torch.uint8, 8: torch.uint8, 16: torch.int16, 32: torch.int32}[form.bits]
    return codes.to(whole).view(form.dtype)


def _drawn(generator):
    """Return a rounding that draws."""
    return lambda x: (x + torch.rand(x.shape, generator=generator, dtype=x.dtype)).floor()


def _check_form(form: object) -> None:
    if not isinstance(form, FloatFormat | IntFormat):
        raise TypeError(f"form must be a FloatFormat or IntFormat, got {type(form).__name__}")


def _read_codes(codes: object, form: object) -> Tensor:
    """Return the patterns as int64, checked."""
    _check_form(form)
    if not isinstance(codes, Tensor) or codes.is_floating_point() or codes.is_complex():
        kind = codes.dtype if isinstance(codes, Tensor) else type(codes).__name__
        raise TypeError(f"codes must be a tensor of integers, got {kind}")
    codes = codes.long()
    if codes.numel() and not (codes.min() >= 0 and codes.max() < 2**form.bits):
        raise ValueError(f"codes of {form.name} must be from 0 to {2**form.bits - 1}")
    return codes
