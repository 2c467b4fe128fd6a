"""Norms: the numbers of each position brought to one size, by functions and modules with weights.

Explained in: chapters/05_architecture_deeper, section "Layer normalisation".
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_bool,
    check_choice,
    check_float,
    check_number,
    check_same,
    check_shape,
)

__all__ = ["NORMS", "LayerNorm", "RMSNorm", "layer_norm", "make_norm", "rms_norm"]


def layer_norm(
    x: Float[Tensor, "*B D"],
    weight: Float[Tensor, " D"] | None = None,
    bias: Float[Tensor, " D"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "*B D"]:
    """Shift and scale the numbers of each position to mean 0 and variance 1, then by the weights.

    y = γ ⊙ (x − μ) / √(σ² + ε) + β with μ = mean(x) and σ² = mean((x − μ)²), both over the last
    dimension: each position of each sequence by itself. σ² divides by d, not by d − 1.

    Args:
        x: (..., d).
        weight: γ, (d,); 1 when omitted.
        bias: β, (d,); 0 when omitted.
        eps: ε, so that a position of equal numbers gives 0 and no division by 0.

    Returns:
        y (..., d).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or an ε that is not positive.

    Example:
        >>> layer_norm(torch.tensor([1.0, 2.0, 3.0]))
        tensor([-1.2247,  0.0000,  1.2247])

    Source: [ba2016layer]
    Explained in: chapters/05_architecture_deeper, section "Layer normalisation".
    """
    _check_norm(x, eps, weight=weight, bias=bias)
    mean = x.mean(-1, keepdim=True)  # (..., 1)
    variance = (x - mean).square().mean(-1, keepdim=True)  # (..., 1)
    y = (x - mean) / torch.sqrt(variance + eps)  # (..., d)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(
    x: Float[Tensor, "*B D"], weight: Float[Tensor, " D"] | None = None, *, eps: float = 1e-5
) -> Float[Tensor, "*B D"]:
    """Scale the numbers of each position to a root mean square of 1, then by the weights.

    y = γ ⊙ x / √(mean(x²) + ε), over the last dimension: layer norm without mean and bias.

    Args:
        x: (..., d).
        weight: γ, (d,); 1 when omitted.
        eps: ε.

    Returns:
        y (..., d).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or an ε that is not positive.

    Example:
        >>> rms_norm(torch.tensor([3.0, 4.0])) * 12.5**0.5
        tensor([3.0000, 4.0000])

    Source: [zhang2019root]
    Explained in: chapters/05_architecture_deeper, section "Layer normalisation".
    """
    _check_norm(x, eps, weight=weight)
    y = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)  # (..., d)
    return y if weight is None else y * weight


class LayerNorm(nn.Module):
    """Layer normalisation with weights: :func:`layer_norm`, computed by PyTorch's fused kernel.

    Args:
        d_model: how many numbers a position has.
        eps: ε.
        bias: whether there is a β.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if d_model is below 1 or ε not positive.

    Source: [ba2016layer]
    Explained in: chapters/05_architecture_deeper, section "Layer normalisation".
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True):
        """Start with γ = 1 and β = 0."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_number("eps", eps, above=0)
        check_bool("bias", bias)
        self.d_model, self.eps = d_model, eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return x (..., d_model), normalised.

        Raises:
            TypeError: if x is not floating point.
            ValueError: if x ends in another size.
        """
        check_width(x, self.d_model, self.weight)
        return functional.layer_norm(x, (self.d_model,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"d_model={self.d_model}, eps={self.eps:g}, bias={self.bias is not None}"


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with weights: :func:`rms_norm`, by PyTorch's fused kernel.

    Args:
        d_model: how many numbers a position has.
        eps: ε.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if d_model is below 1 or ε not positive.

    Source: [zhang2019root]
    Explained in: chapters/05_architecture_deeper, section "Layer normalisation".
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5):
        """Start with γ = 1."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_number("eps", eps, above=0)
        self.d_model, self.eps = d_model, eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return x (..., d_model), scaled.

        Raises:
            TypeError: if x is not floating point.
            ValueError: if x ends in another size.
        """
        check_width(x, self.d_model, self.weight)
        return functional.rms_norm(x, (self.d_model,), self.weight, self.eps)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"d_model={self.d_model}, eps={self.eps:g}"


NORMS = {"layer": LayerNorm, "rms": RMSNorm}


def make_norm(kind: str, d_model: int, *, eps: float = 1e-5) -> nn.Module:
    """Make a norm by its name, "layer" or "rms".

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for an unknown name, or a number out of range.

    Explained in: chapters/05_architecture_deeper, section "Layer normalisation".
    """
    check_choice("kind", kind, NORMS)
    return NORMS[kind](d_model, eps=eps)


def _check_norm(x: object, eps: object, **weights: Tensor | None) -> None:
    check_float("x", x, min_dims=1)
    check_number("eps", eps, above=0)
    for name, weight in weights.items():
        if weight is not None:
            check_float(name, weight)
            check_shape(name, weight, x.shape[-1:], "(d,)")
            check_same(**{"x": x, name: weight})


def check_width(x: object, d_model: int, weight: Tensor) -> None:
    if isinstance(x, Tensor) and x.shape[-1:] == (d_model,) and x.dtype == weight.dtype:
        return  # the usual case, and a fast one
    check_float("x", x, min_dims=1)
    if x.shape[-1] != d_model:
        raise ValueError(f"x must end with d_model = {d_model} numbers, got {tuple(x.shape)}")
    check_same(**{"x": x, "the weights": weight})
