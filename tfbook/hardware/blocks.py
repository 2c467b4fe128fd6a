"""Block formats: numbers of 4 bits that share a scale, MXFP4 and NVFP4.

A number of 4 bits, e2m1, is one of 0, ½, 1, 1½, 2, 3, 4, 6 with a sign. A block of neighbours
shares a scale that brings its largest number near 6.

Explained in: chapters/17_hardware_deeper, section "Block formats".
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from tfbook._checks import check_choice, check_float
from tfbook.hardware.formats import FORMATS, decode, encode

__all__ = ["BLOCK_FORMATS", "BlockCodes", "decode_blocks", "encode_blocks"]

#: How many neighbours share a scale.
BLOCK_FORMATS = {"mxfp4": 32, "nvfp4": 16}
E2M1, E4M3, E8M0 = (FORMATS[name] for name in ("e2m1", "e4m3", "e8m0"))


class BlockCodes(NamedTuple):
    """A tensor in a block format.

    Attributes:
        codes: patterns of e2m1, (..., D).
        scales: patterns of the blocks' scales, e8m0 for MXFP4 and e4m3 for NVFP4, (..., D / block).
        factor: what all scales are multiplied with, float32; 1 for MXFP4.
        form: "mxfp4" or "nvfp4".

    Explained in: chapters/17_hardware_deeper, section "Block formats".
    """

    codes: Tensor
    scales: Tensor
    factor: Tensor
    form: str

    @property
    def bits(self) -> float:
        """Return the bits that a number takes, its share of a scale counted in."""
        return 4 + 8 / BLOCK_FORMATS[self.form]


def encode_blocks(x: Float[Tensor, "*S D"], form: str) -> BlockCodes:
    """Round the numbers of x to 4 bits, with a scale for each block of neighbours in a row.

    "mxfp4": 32 neighbours, scale 2^(⌊log₂ max|x|⌋ − 2), so that the largest lies from 4 up to below
    8; what is above 6 becomes 6. "nvfp4": 16 neighbours, scale r(max|x| / 6 / f) f, with r the
    rounding to e4m3 and f = max|X| / (6 · 448), one number for the tensor X, that brings the scales
    into e4m3's range.

    Args:
        x: (..., D), D a multiple of the block.
        form: "mxfp4" or "nvfp4".

    Raises:
        TypeError: if x is not floating point.
        ValueError: for an unknown format, numbers that are not finite, or rows of another length.

    Example:
        >>> codes = encode_blocks(torch.linspace(-3, 3, 32), "mxfp4")
        >>> codes.bits, decode_blocks(codes)[-4:]
        (4.25, tensor([2., 3., 3., 3.]))

    Source: [rouhani2023microscaling], [nvidia2025pretraining]
    Explained in: chapters/17_hardware_deeper, section "Block formats".
    """
    check_float("x", x, min_dims=1)
    check_choice("form", form, BLOCK_FORMATS)
    size = BLOCK_FORMATS[form]
    if x.shape[-1] % size or not x.numel():
        raise ValueError(f"x must end in a multiple of {size} numbers, got {tuple(x.shape)}")
    if not x.isfinite().all():
        raise ValueError("x must be finite, got inf or nan")
    blocks = x.detach().double().unflatten(-1, (-1, size))  # (..., G, size)
    most = blocks.abs().amax(-1)  # (..., G)
    if form == "mxfp4":
        factor = torch.ones(())
        power = (torch.frexp(most).exponent - 1 - 2).clamp(-127, 127)
        scales = encode(torch.ldexp(torch.ones_like(most), power.where(most > 0, -127)), E8M0)
    else:
        factor = (most.max() / (E2M1.largest * E4M3.largest)).float()
        scale = most / E2M1.largest / factor.double() if factor > 0 else torch.zeros_like(most)
        scales = encode(scale, E4M3, saturate=True)
    width = _scale(scales, factor, form)[..., None]
    codes = encode(torch.where(width > 0, blocks / width, 0.0), E2M1)
    return BlockCodes(codes.flatten(-2).to(torch.uint8), scales.to(torch.uint8), factor, form)


def decode_blocks(
    blocks: BlockCodes, *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*S D"]:
    """Return the numbers that a block format holds.

    Args:
        blocks: of :func:`encode_blocks`.
        dtype: of the result.

    Raises:
        TypeError: if blocks is something else, or dtype no floating-point dtype.

    Explained in: chapters/17_hardware_deeper, section "Block formats".
    """
    if not isinstance(blocks, BlockCodes):
        raise TypeError(f"blocks must be BlockCodes, got {type(blocks).__name__}")
    values = decode(blocks.codes, E2M1, dtype=torch.float64)
    width = _scale(blocks.scales, blocks.factor, blocks.form)[..., None]
    values = values.unflatten(-1, (-1, BLOCK_FORMATS[blocks.form])) * width
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {dtype}")
    return values.flatten(-2).to(dtype)


def _scale(scales: Integer[Tensor, "*G"], factor: Tensor, form: str) -> Tensor:
    """Return the scales as numbers, in float64."""
    read = E8M0 if form == "mxfp4" else E4M3
    return decode(scales, read, dtype=torch.float64) * factor.double()
