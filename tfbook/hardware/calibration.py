"""Rounding that looks at what the weights are multiplied with: GPTQ, AWQ, and a rotation.

What counts is not how far a weight moves but how far the result does, ‖X Wᵀ − X Ŵᵀ‖ for inputs X.
GPTQ makes up for each column's error in the columns that are still to come. AWQ gives columns that
meet large inputs a finer grid. A rotation spreads outliers over all columns before anything is
rounded.

Explained in: chapters/17_hardware_deeper, section "Second order and rotation".
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import check_float, check_number
from tfbook.hardware.quantisation import Quantised, quantise, restore

__all__ = ["Scaled", "awq", "gptq", "hadamard", "output_error", "rotate"]


class Scaled(NamedTuple):
    """A matrix whose columns were scaled before they were rounded: W ≈ restore(quantised) / scale.

    Attributes:
        quantised: of W · scale.
        scale: one factor for each column, (D,); x is divided by it, or the part before.
        power: α, by which it was made of the inputs.

    Explained in: chapters/17_hardware_deeper, section "Second order and rotation".
    """

    quantised: Quantised
    scale: Tensor
    power: float

    def matrix(self) -> Float[Tensor, "N D"]:
        """Return what W has become."""
        return restore(self.quantised) / self.scale


def output_error(
    weight: Float[Tensor, "N D"], other: Float[Tensor, "N D"], inputs: Float[Tensor, "M D"]
) -> float:
    """Return how far the results of two matrices are apart: ‖X (W − Ŵ)ᵀ‖ / ‖X Wᵀ‖.

    Args:
        weight: W (N, D).
        other: Ŵ (N, D).
        inputs: X (M, D).

    Raises:
        TypeError: if one is not floating point.
        ValueError: for shapes that do not fit, or results that are all 0.

    Example:
        >>> output_error(torch.eye(2), 1.125 * torch.eye(2), torch.ones(1, 2))
        0.125

    Explained in: chapters/17_hardware_deeper, section "Second order and rotation".
    """
    weight, inputs = _read(weight, inputs)
    check_float("other", other)
    if other.shape != weight.shape:
        raise ValueError(
            f"other must have the shape of weight, {tuple(weight.shape)}, got {tuple(other.shape)}"
        )
    right = (inputs @ weight.T).norm()
    if not right > 0:
        raise ValueError("the results of weight must not all be 0")
    return round(float((inputs @ (weight - other.detach().double()).T).norm() / right), 12)


def gptq(
    weight: Float[Tensor, "N D"],
    inputs: Float[Tensor, "M D"],
    bits: int = 4,
    *,
    shared: str | int = "channel",
    symmetric: bool = True,
    damping: float = 0.01,
) -> Quantised:
    """Round column after column, and let the later ones make up for each error (GPTQ).

    With H = XᵀX + λ I and U the upper Cholesky factor of H⁻¹ (H⁻¹ = UᵀU), for j = 1 … D:
    e = (w_j − ŵ_j) / U_jj, and w_k ← w_k − e U_jk for all k > j. That is the best that the columns
    still to come can do about column j.

    Args:
        weight: W (N, D).
        inputs: X (M, D), what the map sees of a text.
        bits: of a number.
        shared: see :func:`tfbook.hardware.quantise`; the scales of a group are found when its
            first column is reached.
        symmetric: see :func:`tfbook.hardware.quantise`.
        damping: λ as a share of the mean of the diagonal of XᵀX.

    Returns:
        The whole numbers, as :func:`tfbook.hardware.quantise` returns them.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a shape that does not fit, or a number out of range.

    Cost: O(D³ + N D²), computed in float64.

    Source: [frantar2023gptq]
    Explained in: chapters/17_hardware_deeper, section "Second order and rotation".
    """
    found = quantise(weight, bits, shared=shared, symmetric=symmetric)
    left, inputs = _read(weight, inputs)  # what is left of W to be rounded
    check_number("damping", damping, 1e-12, 1e6)
    hessian = inputs.T @ inputs  # (D, D)
    ridge = damping * hessian.diagonal().mean().clamp(min=1e-12)
    hessian = hessian + ridge * torch.eye(len(hessian), dtype=hessian.dtype)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor = torch.linalg.cholesky(inverse, upper=True)
    codes, (_, scale, zero, _) = found.codes.clone(), found
    rows, groups = scale.shape
    columns = left.shape[1]
    size = columns // groups
    low = -(2 ** (bits - 1)) + symmetric
    scale, zero = scale.clone(), zero.clone()
    for j in range(columns):
        g = j // size
        if j % size == 0 and groups > 1:
            fresh = quantise(left[:, j : j + size], bits, symmetric=symmetric)
            scale[:, g], zero[:, g] = fresh.scale[:, 0], fresh.zero[:, 0]
        s, z = scale[:, g].double(), zero[:, g].double()  # (N,), or (1,) for the tensor
        whole = (left[:, j] / s.where(s > 0, 1.0)).round() + z
        whole = whole.clamp(low, 2 ** (bits - 1) - 1)
        codes[:, j] = whole.to(torch.int8)
        error = (left[:, j] - s * (whole - z)) / factor[j, j]  # (N,)
        left[:, j + 1 :] -= error[:, None] * factor[j, j + 1 :]
    return Quantised(codes, scale, zero, bits)


def awq(
    weight: Float[Tensor, "N D"],
    inputs: Float[Tensor, "M D"],
    bits: int = 4,
    *,
    shared: str | int = "channel",
    symmetric: bool = True,
    steps: int = 20,
) -> Scaled:
    """Scale up the columns that meet large inputs before rounding (AWQ).

    t_j = (mean_i |x_ij|)^α, brought to a geometric mean of 1, and Ŵ = round(W t) / t. α is the one
    of 0, 1/steps, …, 1 that changes the results least; α = 0 is plain rounding.

    Args:
        weight: W (N, D).
        inputs: X (M, D), what the map sees of a text.
        bits: of a number.
        shared: see :func:`tfbook.hardware.quantise`.
        symmetric: see :func:`tfbook.hardware.quantise`.
        steps: how many values of α are tried beside 0.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a shape that does not fit, a number out of range, or results all 0.

    Source: [lin2024awq]
    Explained in: chapters/17_hardware_deeper, section "Second order and rotation".
    """
    check_number("steps", steps, 1, 1000, whole=True)
    exact, seen = _read(weight, inputs)
    size = seen.abs().mean(0)  # (D,)
    size = size.clamp(min=float(size.max()) * 1e-4).clamp(min=1e-30)
    best = None
    for step in range(steps + 1):
        power = step / steps
        scale = (power * (size.log() - size.log().mean())).exp().float()  # (D,)
        found = quantise(weight * scale, bits, shared=shared, symmetric=symmetric)
        scaled = Scaled(found, scale, power)
        error = output_error(exact, scaled.matrix().double(), seen)
        if best is None or error < best[0]:
            best = (error, scaled)
    return best[1]


def hadamard(n: int) -> Float[Tensor, "N N"]:
    """Return the Hadamard matrix of size n, a power of 2, divided by √n: a rotation.

    H_1 = 1, H_2n = [[H_n, H_n], [H_n, −H_n]] / √2. All its entries have the same size, so that
    whatever stands in one column is spread over all; and H Hᵀ = I.

    Args:
        n: a power of 2.

    Raises:
        TypeError: if n is no integer.
        ValueError: if it is no power of 2, or above 16,384.

    Example:
        >>> hadamard(2)
        tensor([[ 0.7071,  0.7071],
                [ 0.7071, -0.7071]])

    Source: [ashkboos2024quarot]
    Explained in: chapters/17_hardware_deeper, section "Second order and rotation".
    """
    check_number("n", n, 1, 2**14, whole=True)
    if n & (n - 1):
        raise ValueError(f"n must be a power of 2, got {n}")
    found = torch.ones(1, 1, dtype=torch.float64)
    while len(found) < n:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    return (found / n**0.5).float()


def rotate(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Rotate the rows of x by a Hadamard matrix, in blocks of the largest power of 2 in D.

    Rotated inputs times rotated weights give what the plain ones give, (x R)(W R)ᵀ = x Wᵀ, so both
    may be rounded after the rotation. R is its own inverse.

    Args:
        x: (..., D).

    Raises:
        TypeError: if x is not floating point.
        ValueError: if it has no dimension, or rows of no number.

    Cost: D · block multiplications a row here; log₂ of the block would do.

    Example:
        >>> rotate(torch.tensor([1.0, 0.0, 0.0, 0.0]))
        tensor([0.5000, 0.5000, 0.5000, 0.5000])

    Source: [ashkboos2024quarot]
    Explained in: chapters/17_hardware_deeper, section "Second order and rotation".
    """
    check_float("x", x, min_dims=1)
    if not x.shape[-1]:
        raise ValueError(f"x must end in at least one number, got {tuple(x.shape)}")
    block = min(x.shape[-1] & -x.shape[-1], 2**14)  # the largest power of 2 that divides D
    turn = hadamard(block).to(x)
    return (x.unflatten(-1, (-1, block)) @ turn).flatten(-2)


def _read(weight: object, inputs: object) -> tuple[Tensor, Tensor]:
    """Return copies of both in float64, checked."""
    for name, value in (("weight", weight), ("inputs", inputs)):
        check_float(name, value)
        if value.ndim != 2 or not value.numel():
            raise ValueError(f"{name} must be a matrix with numbers, got {tuple(value.shape)}")
        if not value.isfinite().all():
            raise ValueError(f"{name} must be finite, got inf or nan")
    if weight.shape[1] != inputs.shape[1]:
        raise ValueError(
            f"inputs must have the {weight.shape[1]} columns of weight, got {inputs.shape[1]}"
        )
    return weight.detach().double().clone(), inputs.detach().double()
