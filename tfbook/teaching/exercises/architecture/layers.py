"""The exercises of chapter 05 on the parts of a layer: normalisation and the gated network."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_gradients, numbers

# layer-norm -------------------------------------------------------------------------------------


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """Normalise every token to mean 0 and variance 1, then scale and shift its features.

    With μ the mean of a token's D features and σ² the mean of their squared distances from μ, the
    result is weight · (x - μ) / √(σ² + eps) + bias.

    x: (..., D), tokens in the last axis but one. weight: (D,). bias: (D,). eps: a small number.
    Returns: (..., D).
    """
    ...


def _norm(
    x: torch.Tensor, weight: torch.Tensor | float, bias: torch.Tensor | float, eps: float,
    axis: int = -1,
) -> torch.Tensor:
    centred = x - x.mean(axis, keepdim=True)
    return centred / (centred.square().mean(axis, keepdim=True) + eps).sqrt() * weight + bias


def _norm_rows(normalise: Any) -> None:
    """Every token is centred and divided by √(σ² + eps)."""
    x, eps = numbers(3, 4, seed=401), 0.5
    one, zero = torch.ones(4).double(), torch.zeros(4).double()
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    unbiased = variance * 4 / 3
    whole = x - x.mean()
    expect(
        normalise(x, one, zero, eps),
        _norm(x, one, zero, eps),
        "This is not (x - μ) / √(σ² + eps) for every row.",
        mistakes={
            "`eps` was added to σ. It belongs under the root, to the variance: √(σ² + eps).":
                (centred / (variance.sqrt() + eps), centred / (unbiased.sqrt() + eps)),
            "`eps` is an argument, and another number stands in its place.": tuple(
                centred / (variance + fixed).sqrt() for fixed in (1e-5, 1e-3)),
            "`eps` was not used: a token whose features are all equal would be divided by 0.":
                (centred / variance.sqrt(), centred / unbiased.sqrt()),
            "The variance was divided by D - 1. Layer normalisation takes the plain mean of the "
            "squares, divided by D: `var(..., unbiased=False)`.":
                centred / (unbiased + eps).sqrt(),
            "The root is missing: the token was divided by its variance.":
                (centred / (variance + eps), centred / (unbiased + eps)),
            "The mean was not subtracted. Dividing by the root of the mean square is RMSNorm.":
                (x / (x.square().mean(-1, keepdim=True) + eps).sqrt(), x / (variance + eps).sqrt()),
            "Mean and variance were taken over the tokens. Each token has its own, over its "
            "features, the last axis.": (_norm(x, 1, 0, eps, 0), whole / (x.var(0) + eps).sqrt()),
            "One mean and one variance were taken for all tokens. Each token has its own.":
                (whole / (whole.square().mean() + eps).sqrt(), whole / (x.var() + eps).sqrt()),
            "The mean was subtracted and nothing more: divide by √(σ² + eps).": centred,
        },
    )


def _norm_affine(normalise: Any) -> None:
    """The features are scaled by `weight`, then shifted by `bias`."""
    x, weight, bias, eps = numbers(2, 3, seed=402), *numbers(2, 3, seed=403), 0.1
    plain = _norm(x, 1.0, 0.0, eps)
    expect(
        normalise(x, weight, bias, eps),
        plain * weight + bias,
        "The normalised features should be multiplied by `weight`, then `bias` added.",
        mistakes={
            "`bias` is missing: it is added last.": plain * weight,
            "`weight` is missing: it multiplies each normalised feature.": plain + bias,
            "`weight` and `bias` are both missing.": plain,
            "`weight` and `bias` are exchanged.": plain * bias + weight,
            "`bias` was added before the scaling: scale first, then shift.":
                (plain + bias) * weight,
            "The input was scaled before it was normalised. Normalise first.":
                (_norm(x * weight, 1.0, bias, eps), _norm(x * weight + bias, 1.0, 0.0, eps)),
            "1 was added to `weight`.": plain * (1 + weight) + bias,
        },
    )


def _norm_shapes(normalise: Any) -> None:
    """Any axes may stand before the features."""
    for shape in ((5,), (2, 3, 5), (2, 1, 3, 7)):
        x, weight, bias = numbers(*shape, seed=404), *numbers(2, shape[-1], seed=405)
        expect(
            normalise(x, weight, bias, 1e-5), _norm(x, weight, bias, 1e-5),
            f"With an input of shape {shape} the result differs.",
        )


def _norm_constant(normalise: Any) -> None:
    """A token whose features are all equal becomes the bias."""
    x, weight, bias = torch.full((2, 5), 3.0).double(), *numbers(2, 5, seed=406)
    expect(normalise(x, weight, bias, 1e-5), bias.expand(2, 5))


def _norm_gradients(normalise: Any) -> None:
    """Gradients reach the tokens, the weight and the bias."""
    weight, bias = numbers(2, 5, seed=407)
    expect_gradients(
        lambda *tensors: normalise(*tensors, 1e-3),
        x=numbers(2, 5, seed=408), weight=weight, bias=bias,
    )


LAYER_NORM = Exercise(
    name="layer-norm",
    title="Layer normalisation",
    level=1,
    section='chapters/05_architecture_deeper, section "Layer normalisation"',
    stub=layer_norm,
    properties=(_norm_rows, _norm_affine, _norm_shapes, _norm_constant, _norm_gradients),
    hints=(
        "Which axis holds the features of one token? Mean and variance are taken over it alone.",
        "`keepdim=True` keeps the axis, so that the means line up with the tokens. What stands "
        "under the root is the variance and `eps`.",
        "`centred = x - x.mean(-1, keepdim=True)` and `variance = centred.square().mean(-1, "
        "keepdim=True)`; return `weight * centred / torch.sqrt(variance + eps) + bias`.",
    ),
)

# swiglu -----------------------------------------------------------------------------------------


def swiglu(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor
) -> torch.Tensor:
    """Apply the gated feed-forward network SwiGLU to every token, without biases.

    With Swish(z) = z · σ(z), where σ is the logistic function, the hidden features are
    Swish(x W_gateᵀ) ⊙ (x W_upᵀ), and the result is the hidden features times W_downᵀ.

    x: (..., D). w_gate: (F, D). w_up: (F, D). w_down: (D, F).
    Returns: (..., D).
    """
    ...


def _gated(x: Any, w_gate: Any, w_up: Any, w_down: Any) -> torch.Tensor:
    gate = x @ w_gate.T
    return (gate * torch.sigmoid(gate) * (x @ w_up.T)) @ w_down.T


def _gated_case(tokens: tuple[int, ...], width: int, hidden: int) -> tuple[torch.Tensor, ...]:
    shapes = (*tokens, width), (hidden, width), (hidden, width), (width, hidden)
    return tuple(numbers(*shape, seed=411 + i) for i, shape in enumerate(shapes))


def _swiglu_values(network: Any) -> None:
    """Gate, multiply, project down."""
    x, w_gate, w_up, w_down = case = _gated_case((2,), 3, 3)
    gate, up = x @ w_gate.T, x @ w_up.T
    swish = gate * torch.sigmoid(gate)
    both = gate * up
    expect(
        network(*case),
        _gated(*case),
        "This is not (Swish(x W_gateᵀ) ⊙ x W_upᵀ) W_downᵀ.",
        mistakes={
            "The gate is σ(z) alone. That is the older GLU; Swish multiplies by z again: z·σ(z).":
                (torch.sigmoid(gate) * up) @ w_down.T,
            "The gate is a ReLU: that is ReGLU.": (gate.relu() * up) @ w_down.T,
            "The gate is a GELU: that is GEGLU. Swish is z·σ(z).":
                ((torch.nn.functional.gelu(gate) * up) @ w_down.T,
                 (torch.nn.functional.gelu(gate, approximate="tanh") * up) @ w_down.T),
            "The gate has no nonlinearity: Swish is missing.": both @ w_down.T,
            "Swish was applied to the side of W_up. The gate is x W_gateᵀ.":
                (gate * up * torch.sigmoid(up)) @ w_down.T,
            "Swish was applied to both sides. Only the gate goes through it.":
                (swish * up * torch.sigmoid(up)) @ w_down.T,
            "Swish was applied to the product. It is applied to the gate, before the product.":
                (both * torch.sigmoid(both)) @ w_down.T,
            "W_up was not used: the gate multiplies a second projection of the token.":
                (swish @ w_down.T, (swish * gate) @ w_down.T),
            "The two sides were added. The gate multiplies.": (swish + up) @ w_down.T,
            "The gate multiplies the token itself, not x W_upᵀ.": (swish * x) @ w_down.T,
            "The projection down is missing: the result still has the hidden features.": swish * up,
            "The weights are transposed: a batch of rows is projected by `x @ w.T`.":
                (_gated(x, w_gate.T, w_up.T, w_down.T), _gated(x, w_gate, w_up, w_down.T),
                 _gated(x, w_gate.T, w_up.T, w_down)),
            "A softmax over the hidden features took the place of σ. σ looks at one number.":
                (gate * torch.softmax(gate, -1) * up) @ w_down.T,
        },
    )


def _swiglu_sizes(network: Any) -> None:
    """The hidden features may be more or fewer than the token's, and any axes may stand before."""
    for tokens, width, hidden in (((2, 3), 5, 7), ((), 7, 3), ((2, 1, 3), 2, 5)):
        case = _gated_case(tokens, width, hidden)
        expect(
            network(*case), _gated(*case),
            f"With tokens of width {width} and {hidden} hidden features the result differs.",
        )


def _swiglu_large(network: Any) -> None:
    """A gate far above or below zero is open or shut, and gives no NaN."""
    one = torch.eye(2).double()
    x = torch.tensor([[900.0, -900.0]]).double()
    expect(
        network(x, one, one, one),
        torch.tensor([[810_000.0, 0.0]]).double(),
        "`exp` overflows for large inputs: `torch.sigmoid` does not.",
    )


def _swiglu_gradients(network: Any) -> None:
    """Gradients reach the tokens and all weights."""
    names = ("x", "w_gate", "w_up", "w_down")
    expect_gradients(network, **dict(zip(names, _gated_case((2,), 3, 2), strict=True)))


SWIGLU = Exercise(
    name="swiglu",
    title="A network with a gate",
    level=1,
    section='chapters/05_architecture_deeper, section "The feed-forward network"',
    stub=swiglu,
    properties=(_swiglu_values, _swiglu_sizes, _swiglu_large, _swiglu_gradients),
    hints=(
        "Two projections of the same token: one goes through Swish and becomes the gate, the other "
        "is let through as far as the gate is open.",
        "σ alone would make it a GLU. Swish(z) is z·σ(z): `torch.sigmoid` gives the second factor.",
        "`gate = x @ w_gate.T`; return `(gate * torch.sigmoid(gate) * (x @ w_up.T)) @ w_down.T`.",
    ),
)

EXERCISES = (LAYER_NORM, SWIGLU)
