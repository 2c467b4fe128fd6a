"""Weights in few bits: by one scale or many, around 0 or from a zero point, to read and to run.

A number w becomes a whole number c with w ≈ s (c − z). How many numbers share a scale s, and
whether the zero point z is 0, is the whole difference between the schemes. The readable layers here
decode and multiply; what runs fast is a packed weight (:class:`tfbook.blocks.PackedWeight`), which
holds the same numbers for a kernel.

Explained in: chapters/17_hardware, section "Weights in few bits".
"""

import copy
from collections.abc import Collection
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_bool,
    check_choice,
    check_float,
    check_list,
    check_module,
    check_number,
    check_same,
    check_scale,
)
from tfbook.blocks import GROUPS, GroupedWeight, PackedWeight, RowWeight, set_weight

__all__ = [
    "Quantised",
    "QuantisedLinear",
    "linear_outliers",
    "pack",
    "pack_model",
    "quantise",
    "quantise_model",
    "restore",
]

SHARED = ("tensor", "channel")
SIXTEEN = 16  # rows or columns that the kernels' vectors hold


class Quantised(NamedTuple):
    """A matrix W (N, D) in whole numbers: W_ij ≈ scale (codes_ij − zero).

    Attributes:
        codes: c (N, D), int8, from −2^(bits−1) to 2^(bits−1) − 1.
        scale: s, (1, 1) for the tensor, (N, 1) for channels, (N, D / group) for groups.
        zero: z of the same shape, whole numbers; 0 where 0 is in the middle.
        bits: of a number.

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor
    bits: int


def quantise(
    weight: Float[Tensor, "N D"],
    bits: int = 8,
    *,
    shared: str | int = "channel",
    symmetric: bool = True,
) -> Quantised:
    """Round a matrix to whole numbers with a scale for the tensor, each row, or each group.

    Symmetric (absmax): s = max|w| / (2^(b−1) − 1), c = round(w / s). With a zero point, for b bits
    from the least to the largest number, 0 among them: s = (max w − min w) / (2^b − 1),
    z = −2^(b−1) − round(min w / s), c = round(w / s) + z.

    Args:
        weight: W (N, D).
        bits: b, from 2 to 8.
        shared: who shares a scale: "tensor", "channel" (a row), or how many neighbours in a row.
        symmetric: whether 0 is in the middle.

    Returns:
        The whole numbers, scales and zero points.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if it is no matrix of finite numbers, or a number is out of range.

    Example:
        >>> quantise(torch.tensor([[1.0, -0.6, 0.1]]), 4).codes
        tensor([[ 7, -4,  1]], dtype=torch.int8)
        >>> quantise(torch.tensor([[0.0, 1.5, 3.0]]), 2, symmetric=False).codes
        tensor([[-2,  0,  1]], dtype=torch.int8)

    Source: [jacob2018quantization]
    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    check_number("bits", bits, 2, 8, whole=True)
    check_bool("symmetric", symmetric)
    groups = _groups(weight, shared).double()  # (N, G, group), or (1, 1, N D)
    least, most = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    half = 2 ** (bits - 1)
    if symmetric:
        scale, low = torch.maximum(-least, most) / (half - 1), -half + 1
    else:
        scale, low = (most - least) / (2 * half - 1), -half
    scale = scale.float().double()  # as it is kept
    width = scale.where(scale > 0, 1.0)
    zero = torch.zeros_like(scale) if symmetric else (-half - (least / width).round())
    codes = ((groups / width[..., None]).round() + zero[..., None]).clamp(low, half - 1)
    codes = codes.to(torch.int8).reshape(weight.shape)
    return Quantised(codes, scale.float(), zero.float(), bits)


def restore(
    quantised: Quantised, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "N D"]:
    """Return the matrix that the whole numbers stand for, s (c − z).

    Args:
        quantised: of :func:`quantise`.
        dtype: of the result.

    Raises:
        TypeError: if quantised is something else, or dtype no floating-point dtype.

    Example:
        >>> restore(quantise(torch.tensor([[1.27, 0.013]])))
        tensor([[1.2700, 0.0100]])

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    if not isinstance(quantised, Quantised):
        raise TypeError(f"quantised must be Quantised, got {type(quantised).__name__}")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {dtype}")
    codes, scale, zero, _ = quantised
    one = scale.shape == (1, 1)
    groups = codes.reshape(1, 1, -1) if one else codes.unflatten(1, (scale.shape[1], -1))
    return ((groups - zero[..., None]) * scale[..., None]).reshape(codes.shape).to(dtype)


class QuantisedLinear(nn.Module):
    """A linear map whose weights are whole numbers, to read: decode, then multiply.

    y = x Wᵀ + b with W = s (c − z). It decodes anew with each call, so it saves memory between
    calls and no time at all; see :func:`pack` for what is fast.

    Args:
        linear: the map to copy.
        bits: of a number.
        shared: see :func:`quantise`.
        symmetric: see :func:`quantise`.

    Raises:
        TypeError: if linear is no ``nn.Linear``, or another argument of a wrong type.
        ValueError: as :func:`quantise`.

    Example:
        >>> layer = nn.Linear(3, 1, bias=False)
        >>> layer.weight.data = torch.tensor([[1.0, -0.6, 0.1]])
        >>> QuantisedLinear(layer, 4)(torch.eye(3)).T
        tensor([[ 1.0000, -0.5714,  0.1429]])

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """

    def __init__(
        self,
        linear: nn.Linear,
        bits: int = 8,
        *,
        shared: str | int = "channel",
        symmetric: bool = True,
    ):
        """Round the weights."""
        super().__init__()
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be an nn.Linear, got {type(linear).__name__}")
        found = quantise(linear.weight.detach(), bits, shared=shared, symmetric=symmetric)
        self.bits, self.dtype = bits, linear.weight.dtype
        self.register_buffer("codes", found.codes)
        self.register_buffer("scale", found.scale)
        self.register_buffer("zero", found.zero)
        self.bias = linear.bias

    @property
    def weight(self) -> Float[Tensor, "N D"]:
        """Return W, decoded."""
        found = Quantised(self.codes, self.scale, self.zero, self.bits)
        return restore(found, self.dtype)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B N"]:
        """Return y for each row of x."""
        return functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Show sizes and bits."""
        rows, columns = self.codes.shape
        return f"in_features={columns}, out_features={rows}, bits={self.bits}"


def quantise_model(
    model: nn.Module,
    bits: int = 8,
    *,
    shared: str | int = "channel",
    symmetric: bool = True,
    skip: Collection[str] = (),
) -> nn.Module:
    """Return a copy of a model with readable quantised maps in the place of its linear ones.

    Args:
        model: any module, with ``nn.Linear`` anywhere in it; embeddings and norms stay.
        bits: of a number.
        shared: see :func:`quantise`.
        symmetric: see :func:`quantise`.
        skip: names of linear maps that stay as they are.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: as :func:`quantise`, or if no linear map is left.

    Example:
        >>> quantise_model(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), 4)
        Sequential(
          (0): QuantisedLinear(in_features=4, out_features=3, bits=4)
          (1): ReLU()
        )

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    model, names = _linear_maps(model, skip)
    for name in names:
        owner, _, own = name.rpartition(".")
        old = model.get_submodule(name)
        new = QuantisedLinear(old, bits, shared=shared, symmetric=symmetric)
        setattr(model.get_submodule(owner), own, new.train(old.training))
    return model


def pack(quantised: Quantised, dtype: torch.dtype = torch.float32) -> PackedWeight:
    """Hold the same whole numbers as a packed weight, whose products a kernel computes.

    Args:
        quantised: of :func:`quantise` with ``shared`` of 32, 64, 128 or 256 and 4 or 8 bits; or
            symmetric, with a scale for each row and 8 bits.
        dtype: of the weight.

    Raises:
        TypeError: if quantised is something else.
        ValueError: if the kernels have no such numbers, or the sizes are no multiples of 16.

    Example:
        >>> weight = torch.linspace(-1, 1, 512).view(16, 32)
        >>> pack(quantise(weight, 4, shared=32))
        GroupedWeight(shape=(16, 32), 320 bytes)
        >>> pack(quantise(weight, 8))
        RowWeight(shape=(16, 32), 544 bytes)

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    if not isinstance(quantised, Quantised):
        raise TypeError(f"quantised must be Quantised, got {type(quantised).__name__}")
    codes, scale, zero, bits = quantised
    if bits not in (4, 8):
        raise ValueError(f"quantised must be of 4 or 8 bits, got {bits}")
    if bits == 8 and scale.shape == (len(codes), 1) and not zero.any():
        return RowWeight(codes, scale[:, 0], dtype=dtype)
    start = 8 if bits == 4 else 0  # codes of 4 bits are counted from 0 there
    low = -scale * (start + zero)
    return GroupedWeight(codes.int() + start, scale, low, bits=bits, dtype=dtype)


def pack_model(
    model: nn.Module, bits: int = 4, *, group: int = 32, skip: Collection[str] = ()
) -> nn.Module:
    """Return a copy of a model whose linear maps have packed weights, which are fast on a CPU.

    4 bits: groups of neighbours with a zero point. 8 bits: a scale for each row. Maps of sizes that
    the kernels do not take stay as they are, and so do embeddings, with the heads tied to them.

    Args:
        model: any module, with ``nn.Linear`` anywhere in it.
        bits: 4 or 8.
        group: of 4 bits, 32, 64, 128 or 256 numbers that share a scale.
        skip: names of linear maps that stay as they are.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or if no map can be packed.

    Cost: on one core, products with one row take 0.2 to 0.5 of the time in float32.

    Example:
        >>> pack_model(nn.Sequential(nn.Linear(64, 32)))[0].weight
        GroupedWeight(shape=(32, 64), 1,280 bytes)

    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    if bits not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, got {bits}")
    if group not in GROUPS:
        raise ValueError(f"group must be one of {GROUPS}, got {group}")
    model, names = _linear_maps(model, skip)
    packed = 0
    for name in names:
        weight = model.get_submodule(name).weight.detach()
        rows, columns = weight.shape
        if columns % (group if bits == 4 else SIXTEEN) or (bits == 4 and rows % SIXTEEN):
            continue
        how = {"shared": group, "symmetric": False} if bits == 4 else {}
        new = pack(quantise(weight, bits, **how), weight.dtype)
        set_weight(model, f"{name}.weight", new)
        packed += 1
    if not packed:
        raise ValueError(
            f"model must have a linear map with a multiple of {group if bits == 4 else SIXTEEN} "
            f"columns to be packed in {bits} bits, got none"
        )
    return model


def linear_outliers(
    x: Float[Tensor, "*B D"],
    weight: Float[Tensor, "N D"],
    *,
    threshold: float = 6.0,
) -> Float[Tensor, "*B N"]:
    """Multiply x Wᵀ in 8 bits, but for the columns where x is large (LLM.int8).

    Columns j with max|x_j| ≥ threshold are multiplied as they are. In the others both x and W are
    rounded row by row, s = max| · | / 127, multiplied as whole numbers, whose sums are exact in 32
    bits, and scaled back: y_ik = s_i t_k Σ_j c_ij d_kj. A single large number would otherwise set
    the scale of its whole row.

    Args:
        x: (..., D).
        weight: W (N, D).
        threshold: from which size on a number makes its column an exception.

    Returns:
        y (..., N).

    Raises:
        TypeError: for an argument of a wrong type, or other dtypes.
        ValueError: for shapes that do not fit, or a threshold that is not positive.

    Example:
        >>> x = torch.tensor([[1.0, 0.5, 100.0]])
        >>> linear_outliers(x, torch.eye(3))
        tensor([[  1.0000,   0.5039, 100.0000]])

    Source: [dettmers2022llm]
    Explained in: chapters/17_hardware, section "Weights in few bits".
    """
    check_float("x", x, min_dims=1)
    check_float("weight", weight, min_dims=2)
    check_same(x=x, weight=weight)
    check_scale("threshold", threshold)
    if weight.ndim != 2 or x.shape[-1] != weight.shape[1] or not x.numel():
        raise ValueError(
            f"x must have shape (..., D) and weight (N, D), got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}"
        )
    rows = x.flatten(0, -2) if x.ndim > 1 else x[None]  # (M, D)
    large = rows.abs().amax(0) >= threshold  # (D,)
    exact = rows[:, large] @ weight[:, large].T  # (M, N)
    if large.all():
        return exact.reshape(*x.shape[:-1], -1)
    one, other = (quantise(matrix[:, ~large]) for matrix in (rows.detach(), weight.detach()))
    whole = one.codes.int() @ other.codes.int().T  # (M, N), exact
    y = exact + (one.scale * other.scale.T * whole).to(x.dtype)
    return y.reshape(*x.shape[:-1], -1)


def _groups(weight: object, shared: object) -> Float[Tensor, "N G K"]:
    """Return the numbers that share a scale side by side, checked."""
    check_float("weight", weight, min_dims=2)
    if weight.ndim != 2 or not weight.numel():
        raise ValueError(f"weight must have shape (N, D), got {tuple(weight.shape)}")
    if not weight.isfinite().all():
        raise ValueError("weight must be finite, got inf or nan")
    weight = weight.detach()
    if isinstance(shared, str):
        check_choice("shared", shared, SHARED)
        return weight.reshape(1, 1, -1) if shared == "tensor" else weight[:, None]
    check_number("shared", shared, 1, whole=True)
    if weight.shape[1] % shared:
        raise ValueError(f"shared must divide the {weight.shape[1]} columns, got {shared}")
    return weight.unflatten(1, (-1, shared))


def _linear_maps(model: object, skip: object) -> tuple[nn.Module, list[str]]:
    """Return a copy of the model and the names of its linear maps, but for those to skip."""
    check_module("model", model)
    check_list("skip", skip)
    names = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and name]
    if unknown := [name for name in skip if name not in names]:
        raise ValueError(f"skip must name linear maps of the model, got {unknown[0]!r}")
    names = [name for name in names if name not in skip]
    if not names:
        raise ValueError("model must hold a linear map that is not skipped, got none")
    return copy.deepcopy(model), names
