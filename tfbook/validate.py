"""Checks for public entries: one clear message for each kind of bad input.

Every message names the argument, says what was given and what was wanted. The checks read shapes,
dtypes and devices only, never values, so they cost a few microseconds and work under
``torch.compile`` and ``torch.vmap``.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Shape = tuple[int, ...]


def check_tensor(name: str, value: object, *, min_dims: int = 0) -> None:
    """Raise unless ``value`` is a tensor of at least ``min_dims`` dimensions.

    Raises:
        TypeError: if it is not a tensor.
        ValueError: if it has too few dimensions.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.ndim < min_dims:
        raise ValueError(
            f"{name} needs at least {min_dims} dimensions, got shape {tuple(value.shape)}"
        )


def check_float(name: str, value: object, *, min_dims: int = 0) -> None:
    """Raise unless ``value`` is a real floating-point tensor of at least ``min_dims`` dimensions.

    Raises:
        TypeError: if it is not a tensor or its dtype is not floating point.
        ValueError: if it has too few dimensions.
    """
    check_tensor(name, value, min_dims=min_dims)
    if not value.is_floating_point():
        raise TypeError(
            f"{name} must have a floating-point dtype, got {value.dtype}; "
            f"convert it with {name}.float()"
        )


def check_bool(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")


def check_positive(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number above zero.

    Raises:
        TypeError: if it is not a Python number.
        ValueError: if it is zero, negative, infinite or NaN.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and above 0, got {value}")


def check_count(name: str, value: object, *, minimum: int = 0) -> None:
    """Raise unless ``value`` is an integer of at least ``minimum``.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is below the minimum.
    """
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


def check_shape(name: str, value: Tensor, wanted: Sequence[int], letters: str) -> None:
    """Raise ValueError unless ``value`` has exactly the shape ``wanted``, described by letters."""
    if tuple(value.shape) != tuple(wanted):
        raise ValueError(
            f"{name} must have shape {letters} = {tuple(wanted)}, got {tuple(value.shape)}"
        )


def check_same(**tensors: Tensor) -> None:
    """Raise unless all named tensors share one device and one dtype.

    Under autocast different floating dtypes may meet, as they do in PyTorch's own operations.

    Raises:
        TypeError: if two dtypes differ.
        ValueError: if two devices differ.
    """
    (first, one), *rest = tensors.items()
    for name, other in rest:
        if other.device != one.device:
            raise ValueError(
                f"{first} and {name} must be on the same device, "
                f"got {one.device} and {other.device}"
            )
        if other.dtype != one.dtype and not torch.is_autocast_enabled(one.device.type):
            raise TypeError(
                f"{first} and {name} must have the same dtype, got {one.dtype} and {other.dtype}"
            )


def broadcast_batch(**shapes: Sequence[int]) -> Shape:
    """Return the broadcast of the named leading dimensions.

    Raises:
        ValueError: if they do not broadcast.
    """
    try:
        return tuple(torch.broadcast_shapes(*(tuple(shape) for shape in shapes.values())))
    except RuntimeError:
        listing = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"leading dimensions do not broadcast: {listing}") from None


def check_mask(
    mask: object, scores_shape: Sequence[int], *, device: torch.device | None = None
) -> None:
    """Raise unless ``mask`` is boolean and broadcasts to the scores, (..., n, m).

    Raises:
        TypeError: if it is not a boolean tensor.
        ValueError: if its shape does not broadcast, or it lies on another device.
    """
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean with True = allowed, got {mask.dtype}; turn an additive mask "
            "into a boolean one with tfbook.masks.to_boolean, or pass numbers as bias="
        )
    _check_broadcasts("mask", mask, tuple(scores_shape), device)


def check_bias(
    bias: object, scores_shape: Sequence[int], *, device: torch.device | None = None
) -> None:
    """Raise unless ``bias`` is floating point and broadcasts to the scores, (..., n, m).

    Raises:
        TypeError: if it is not a floating-point tensor.
        ValueError: if its shape does not broadcast, or it lies on another device.
    """
    check_tensor("bias", bias)
    if not bias.is_floating_point():
        raise TypeError(
            f"bias must have a floating-point dtype, got {bias.dtype}; pass booleans as mask="
        )
    _check_broadcasts("bias", bias, tuple(scores_shape), device)


def check_attention(
    q: object,
    k: object,
    v: object,
    *,
    mask: object = None,
    bias: object = None,
    causal: object = False,
    scale: object = None,
    same_depth: bool = True,
) -> Shape:
    """Check every argument of an attention call and return the shape of its scores, (..., n, m).

    Shapes: q (..., n, d_q), k (..., m, d_k), v (..., m, d_v); mask and bias broadcast to
    (..., n, m). With ``same_depth`` d_q and d_k must be equal, as a dot product needs.

    Raises:
        TypeError: for a non-tensor, an integer tensor, mixed dtypes, a mask that is not boolean.
        ValueError: for a wrong rank, shape, device or scale.
    """
    for name, value in (("q", q), ("k", k), ("v", v)):
        check_float(name, value, min_dims=2)
    check_same(q=q, k=k, v=v)
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(
            "k and v must have the same number of rows (one value for each key), got "
            f"k {tuple(k.shape)} and v {tuple(v.shape)}"
        )
    if same_depth and q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q and k must have the same last dimension for a dot product, got "
            f"q {tuple(q.shape)} and k {tuple(k.shape)}"
        )
    batch = broadcast_batch(q=q.shape[:-2], k=k.shape[:-2], v=v.shape[:-2])
    scores_shape = (*batch, q.shape[-2], k.shape[-2])
    if mask is not None:
        check_mask(mask, scores_shape, device=q.device)
    if bias is not None:
        check_bias(bias, scores_shape, device=q.device)
        check_same(q=q, bias=bias)
    check_bool("causal", causal)
    if scale is not None:
        check_positive("scale", scale)
    return scores_shape


def _check_broadcasts(
    name: str, value: Tensor, scores_shape: Shape, device: torch.device | None
) -> None:
    if device is not None and value.device != device:
        raise ValueError(f"{name} must be on the device of q, {device}, got {value.device}")
    shape = tuple(value.shape)
    padded = (1,) * (len(scores_shape) - len(shape)) + shape
    fits = len(padded) == len(scores_shape) and all(
        size in (1, wanted) for size, wanted in zip(padded, scores_shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{name} must broadcast to the scores, (..., n, m) = {scores_shape}, got {shape}"
            + _hint(name, shape, scores_shape)
        )


def _hint(name: str, shape: Shape, scores_shape: Shape) -> str:
    """Guess what was meant by a mask that does not fit."""
    *batch, n, m = scores_shape
    if batch and shape == (batch[0], m):
        missing = ", ".join([":"] + ["None"] * len(batch) + [":"])
        return f"; one row for each sequence of the batch needs {name}[{missing}]"
    if len(batch) == 2 and len(shape) == 3 and shape[0] == batch[0] and shape[-1] == m:
        return f"; add a head dimension with {name}.unsqueeze(1)"
    if shape[-2:] == (m, n):
        return f"; queries come before keys, try {name}.mT"
    return ""
