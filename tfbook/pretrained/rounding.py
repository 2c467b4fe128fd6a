"""Weights in 8 bits a number: each row of a matrix in whole numbers, with a scale of its own.

Explained in: book/live_models, section "What eight bits cost".
"""

import copy
from typing import NamedTuple

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from tfbook._checks import check_float, check_module

__all__ = ["RoundedRows", "restore_rows", "round_model", "round_rows"]

LARGEST = 127  # −128 is left out, so that the numbers lie evenly around 0


class RoundedRows(NamedTuple):
    """A matrix in 8 bits a number: row i is scale_i · values_i.

    Attributes:
        values: whole numbers from −127 to 127, (N, D), int8.
        scale: s, (N,), float32; 0 for a row of zeros.

    Explained in: book/live_models, section "What eight bits cost".
    """

    values: Int8[Tensor, "N D"]
    scale: Float[Tensor, " N"]


def round_rows(weight: Float[Tensor, "N D"]) -> RoundedRows:
    """Round each row of a matrix to 255 steps that are as wide as its largest number asks for.

    s_i = max_j |w_ij| / 127 and q_ij = round(w_ij / s_i), so |w_ij − s_i q_ij| ≤ s_i / 2. The
    quotient is taken in float64: weights in float32 and in float64 give the same bits.

    Args:
        weight: (N, D).

    Returns:
        The whole numbers and the scales.

    Raises:
        TypeError: if the weight is not floating point.
        ValueError: if it is no matrix, or holds a number that is not finite.

    Example:
        >>> values, scale = round_rows(torch.tensor([[0.5, -0.25, 0.01], [0.0, 0.0, 0.0]]))
        >>> values
        tensor([[127, -64,   3],
                [  0,   0,   0]], dtype=torch.int8)
        >>> scale
        tensor([0.0039, 0.0000])

    Explained in: book/live_models, section "What eight bits cost".
    """
    check_float("weight", weight, min_dims=2)
    if weight.ndim != 2:
        raise ValueError(f"weight must have shape (N, D), got {tuple(weight.shape)}")
    if not weight.isfinite().all():
        raise ValueError("weight must be finite, got inf or nan")
    exact = weight.detach().double()
    largest = exact.abs().amax(1) if exact.shape[1] else exact.sum(1)
    scale = (largest / LARGEST).float()  # (N,)
    steps = exact / scale.double().where(scale > 0, 1.0)[:, None]
    values = steps.round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return RoundedRows(values, scale)


def restore_rows(rounded: RoundedRows, dtype: torch.dtype = torch.float32) -> Float[Tensor, "N D"]:
    """Return the matrix that the whole numbers and scales stand for, s_i q_ij.

    Args:
        rounded: of :func:`round_rows`.
        dtype: of the result; float64 holds each product exactly.

    Returns:
        (N, D).

    Raises:
        TypeError: if rounded is something else, or dtype no floating-point dtype.

    Example:
        >>> restore_rows(round_rows(torch.tensor([[127.0, 1.4]])))
        tensor([[127.,   1.]])

    Explained in: book/live_models, section "What eight bits cost".
    """
    if not isinstance(rounded, RoundedRows):
        raise TypeError(f"rounded must be a RoundedRows, got {type(rounded).__name__}")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {dtype}")
    return rounded.values.to(dtype) * rounded.scale.to(dtype)[:, None]


def round_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose matrices hold what 8 bits a number leave of them.

    Every weight with two dimensions goes through :func:`round_rows` and back, the table of the
    embedding too. Gains of norms and biases stay: they are few.

    Args:
        model: any module.

    Raises:
        TypeError: if it is no module.
        ValueError: if a weight is not finite.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> layer.weight.data = torch.tensor([[1.27, 0.004]])
        >>> round_model(layer).weight.data
        tensor([[1.2700, 0.0000]])

    Explained in: book/live_models, section "What eight bits cost".
    """
    check_module("model", model)
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for weight in rounded.parameters():
            if weight.ndim == 2:
                weight.copy_(restore_rows(round_rows(weight), weight.dtype))
    return rounded
