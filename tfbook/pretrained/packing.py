"""A file in 4 bits as a model in 4 bits: the numbers of a GGUF file in packed weights.

A block of the file holds 32 numbers of a row as small integers q, with a scale d and in the format
Q4_1 a least value m: x = d q + m. That is what :class:`tfbook.blocks.GroupedWeight` holds too, so
the integers are handed over as they are, and nothing is decoded on the way.

Explained in: chapters/17_hardware, section "Weights in few bits".
"""

import contextlib
import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from tfbook._checks import check_choice, check_tensor
from tfbook.blocks import GroupedWeight, PackedWeight, RowWeight, set_weight
from tfbook.pretrained.conversion import fill_model
from tfbook.pretrained.files import decode_block, read_blocks
from tfbook.pretrained.rounding import round_rows

__all__ = ["Blocks", "pack_rows", "read_rows", "split_blocks"]

BLOCK = 32  # numbers of a row that share a scale
BYTES = {"Q4_1": 4 + BLOCK // 2, "Q8_0": 2 + BLOCK}  # of a block


class Blocks(NamedTuple):
    """A matrix of a GGUF file as the file has it: W_ij = scale_ig codes_ij + low_ig.

    Attributes:
        codes: (N, D), from 0 to 15 in 4 bits, from −128 to 127 in 8 bits, int8.
        scale: (N, D / 32), float16.
        low: (N, D / 32), float16; None where it is 0.
        bits: 4 or 8.

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """

    codes: Tensor
    scale: Tensor
    low: Tensor | None
    bits: int


def split_blocks(raw: Shaped[Tensor, "N R"], kind: str) -> Blocks:
    """Take the rows of a matrix of a GGUF file apart, in the formats Q4_1 and Q8_0.

    Q4_1 has 20 bytes for 32 numbers: d and m in float16, then 16 bytes, of which byte j holds
    number j in its lower and number j + 16 in its upper half. Q8_0 has 34: d, and a byte for each.

    Args:
        raw: the bytes of each row, in any dtype.
        kind: "Q4_1" or "Q8_0".

    Raises:
        TypeError: if raw is no tensor.
        ValueError: for another format, or rows that are not made of its blocks.

    Example:
        >>> raw = torch.tensor([[0, 60, 0, 64, 33] + 15 * [0]], dtype=torch.uint8)
        >>> blocks = split_blocks(raw, "Q4_1")
        >>> blocks.codes[0, [0, 1, 16]].tolist(), blocks.scale.tolist(), blocks.low.tolist()
        ([1, 0, 2], [[1.0]], [[2.0]])

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    check_tensor("raw", raw)
    check_choice("kind", kind, BYTES)
    raw = raw.contiguous().view(torch.uint8) if raw.ndim == 2 and raw.numel() else raw
    if raw.ndim != 2 or 0 in raw.shape or raw.shape[1] % BYTES[kind]:
        raise ValueError(
            f"raw must have shape (N, R), R bytes a row, blocks of {BYTES[kind]} for {kind}, "
            f"got {tuple(raw.shape)}"
        )
    blocks = raw.unflatten(1, (-1, BYTES[kind]))  # (N, G, bytes)
    scale = _half(blocks[..., :2])
    if kind == "Q8_0":
        return Blocks(blocks[..., 2:].contiguous().view(torch.int8).flatten(1), scale, None, 8)
    digits = blocks[..., 4:]  # (N, G, 16)
    codes = torch.cat([digits & 15, digits >> 4], dim=-1).view(torch.int8)  # (N, G, 32)
    return Blocks(codes.flatten(1), scale, _half(blocks[..., 2:4]), 4)


def _half(pairs: Tensor) -> Tensor:
    """Read pairs of bytes (N, G, 2) as float16, (N, G)."""
    return pairs.contiguous().view(torch.float16)[..., 0]


def read_rows(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a GGUF file without decoding its matrices: their bytes, by the names of `transformers`.

    Args:
        path: the file, see :func:`tfbook.pretrained.read_gguf`.

    Returns:
        The bytes of each row, (N, R / 2), two of them looking like a number in float16; vectors as
        they are; the texts of :func:`tfbook.pretrained.read_gguf`, and "formats", which says in
        JSON what the bytes are.

    Raises:
        ModuleNotFoundError: if the package gguf is not installed.
        ValueError: if the file is damaged, of another family or in another format.

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    kinds = []

    def copy(tensor: Any) -> Tensor:
        kinds.append(tensor.tensor_type.name)
        if tensor.data.ndim < 2:
            return decode_block(tensor)
        check_choice(f"the format of {tensor.name}", kinds[-1], BYTES)
        return torch.from_numpy(tensor.data.copy()).view(torch.float16)

    weights, texts = read_blocks(path, copy)
    formats = {name: kind for name, kind in zip(weights, kinds, strict=True) if kind in BYTES}
    return weights, texts | {"formats": json.dumps(formats)}


def pack_rows(
    weights: Mapping[str, Tensor],
    texts: Mapping[str, str],
    bits: int,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Build a model whose matrices are packed of the bytes of a GGUF file.

    Args:
        weights: of :func:`read_rows`.
        texts: of :func:`read_rows`.
        bits: 4 takes codes and scales as they are: what the file has in 4 bits is held in 4, what
            it has in 8 (the table of the embedding) in 8. 8 rounds each row of
            what was in 4 anew, with a scale of its own.
        dtype: of what the model computes in, and of the weights that are not packed.

    Returns:
        The model in evaluation mode.

    Raises:
        ValueError: for other bits, or weights that do not fit the texts.

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    if bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got {bits}")
    formats, named, found, start = json.loads(texts["formats"]), dict(weights), {}, 0
    for name, kind in formats.items():
        rows, columns = len(weights[name]), weights[name].nbytes // len(weights[name])
        found[start] = (weights[name], kind)
        # Row numbers in place of weights, which stand out by their dtype: the conversion to our
        # names and layouts moves rows as a whole, so that where it puts a number says where a row
        # of codes belongs.
        numbers = torch.arange(start, start + rows, dtype=torch.float64)
        named[name] = numbers[:, None].expand(rows, columns // BYTES[kind] * BLOCK)
        start += rows
    model = fill_model(json.loads(texts["config"]), named)
    orders = {}
    for name, weight in model.named_parameters():
        if weight.dtype == torch.float64:
            orders[name] = weight.detach()[:, 0].long()
            weight.data = weight.data[:1].clone().expand_as(weight)  # the numbers' memory may go
        else:
            weight.data = weight.data.to(dtype, copy=True)  # and so may the file's
    pack = _in_groups if bits == 4 else _in_rows
    for name, order in orders.items():
        first = int(order.min())
        raw, kind = found.pop(first)
        set_weight(model, name, pack(split_blocks(raw[order - first], kind), dtype))
    del named, found, raw
    _give_back()
    return model.eval()


def _give_back() -> None:
    """Return to the system what was freed and glibc keeps for itself: a third of the process."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _in_groups(blocks: Blocks, dtype: torch.dtype) -> PackedWeight:
    """Hand over codes and scales."""
    return GroupedWeight(*blocks[:3], bits=blocks.bits, dtype=dtype)


def _in_rows(blocks: Blocks, dtype: torch.dtype) -> PackedWeight:
    """Decode a matrix, and round its rows to 8 bits, if they were not in 8 bits before."""
    if blocks.bits == 8:
        return _in_groups(blocks, dtype)
    values = blocks.codes.float().unflatten(1, (-1, BLOCK)) * blocks.scale.float()[..., None]
    values = values if blocks.low is None else values + blocks.low.float()[..., None]  # (N, G, 32)
    return RowWeight(*round_rows(values.flatten(1)), dtype=dtype)
