"""What a number of the output owes to what passes a tap, by gradients.

The number is a score: a function of what the model returns, such as one logit, or one for each
sequence of the batch. A gradient says how the score changes with a small change of x; x ⊙ gradient
what that line says of taking x away; integrated gradients follow the way from a baseline to x, and
sum to the whole change. The sign tells support from opposition.

Explained in: chapters/10_interpretability_deeper, section "Three answers".
"""

import copy
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import (
    check_callable,
    check_float,
    check_generator,
    check_module,
    check_number,
    check_shape,
    check_tensor,
)
from tfbook.interpret.capturing import capture, patched, taps

__all__ = [
    "Integrated",
    "gradients_at",
    "head_relevance",
    "integrated_gradients",
    "rank_correlation",
    "relevance",
    "shuffled",
    "times_gradient",
]

Score = Callable[[object], Tensor]


class Integrated(NamedTuple):
    """What integrated gradients found.

    Attributes:
        values: what each number that passes the tap has contributed, in its shape.
        gap: score(x) − score(baseline) − the sum of the values, () or (B,) as the score: 0 but for
            the error of the numerical integral.

    Explained in: chapters/10_interpretability_deeper, section "Three answers".
    """

    values: Tensor
    gap: Tensor


def gradients_at(
    model: nn.Module, score: Score, *inputs: object, at: str = "*.pattern", **options: object
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what passes the taps, and the gradient of a score with respect to each.

    Parameters get no gradients, and the model's mode stays: dropout needs ``model.eval()``.

    Args:
        model: a model with taps.
        score: a function of what the model returns that gives a number, or one for each sequence.
        inputs: what the model is called with.
        at: names of taps, as for :func:`tfbook.interpret.taps`.
        options: named arguments of the model, such as ``mask``.

    Returns:
        Tensors by the names of their taps, and gradients by the same names, 0 where the score does
        not depend on a tensor.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if no tap fits, a tap is passed more than once, what passes is not finite, or
            the score has a wrong shape or depends on none of them.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> seen, gradients = gradients_at(model, lambda out: out[0][:, -1, 7], tokens)
        >>> gradients["stack.blocks.1.mixer.pattern"].shape
        torch.Size([1, 2, 5, 5])

    Cost: one call of the model and one pass back, about 3 times the call.

    Explained in: chapters/10_interpretability_deeper, section "Three answers".
    """
    check_callable("score", score)
    with torch.enable_grad(), capture(model, at, grad=True, every=True) as seen:
        found = _scored(score, model(*inputs, **options))
    seen = {name: _only(name, passed) for name, passed in seen.items()}
    gradients = _gradients(found, list(seen.values()), at)
    return {name: x.detach() for name, x in seen.items()}, dict(zip(seen, gradients, strict=True))


def times_gradient(
    model: nn.Module, score: Score, *inputs: object, at: str = "*.pattern", **options: object
) -> dict[str, Tensor]:
    """Return x ⊙ ∂score/∂x at each tap, with its sign.

    At the entrance of the first layer, ``at="*.0.resid_pre"``, it is input × gradient, to be
    summed over the features of a token; at patterns attention × gradient. Positive numbers
    support the score, negative ones oppose it: A ⊙ |∂score/∂A| would call both the same.

    Arguments and errors are those of :func:`gradients_at`.

    Returns:
        A tensor for each tap, in the shape of what passes it.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> found = times_gradient(model, lambda out: out[0][:, -1, 7], tokens, at="*.0.resid_pre")
        >>> found["stack.blocks.0.resid_pre"].sum(-1).shape
        torch.Size([1, 5])

    Source: [shrikumar2016not], of patterns: [chefer2021generic]
    Explained in: chapters/10_interpretability_deeper, section "Three answers".
    """
    seen, gradients = gradients_at(model, score, *inputs, at=at, **options)
    return {name: x * gradients[name] for name, x in seen.items()}


def head_relevance(products: Float[Tensor, "*L H N M"]) -> Float[Tensor, "*L N M"]:
    """Return what the heads of a layer do for a score together: mean over them of (A ⊙ ∇A)⁺.

    What a head does against the score is left out before the mean, or it would be taken off from
    what another does for it.

    Args:
        products: A ⊙ ∇A of all heads, (..., H, n, m), as :func:`times_gradient` returns them.

    Returns:
        (..., n, m), not negative.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for too few dimensions, or none of something.

    Example:
        >>> head_relevance(torch.tensor([[[3.0, -1.0]], [[-2.0, -5.0]]]))
        tensor([[1.5000, 0.0000]])

    Source: [chefer2021generic]
    Explained in: chapters/10_interpretability_deeper, section "Relevance through layers".
    """
    _check_products(products, 3)
    return products.clamp(min=0).mean(-3)


def relevance(products: Float[Tensor, "L *B H N N"]) -> Float[Tensor, "*B N N"]:
    """Return what each token has done for a score by all layers: R ← R + Ā_l R, R = I at first.

    Ā_l is :func:`head_relevance` of layer l. As in :func:`tfbook.interpret.rollout` later layers
    stand on the left, but their weights are those that the score owes something to, and rows do
    not sum to 1.

    Args:
        products: A ⊙ ∇A of all layers, the first one first, (L, ..., H, n, n).

    Returns:
        R (..., n, n); its row of the token whose logit is the score says what that logit owes to
        each token.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that is not square.

    Example:
        >>> back = torch.tensor([[0.0, 0.0], [0.5, 0.0]])
        >>> relevance(back.expand(3, 1, 2, 2))
        tensor([[1.0000, 0.0000],
                [1.5000, 1.0000]])

    Source: [chefer2021generic]
    Explained in: chapters/10_interpretability_deeper, section "Relevance through layers".
    """
    _check_products(products, 4)
    n = products.shape[-1]
    if products.shape[-2] != n:
        raise ValueError(
            f"products must be square, (L, ..., H, n, n), got shape {tuple(products.shape)}"
        )
    found = torch.eye(n, dtype=products.dtype, device=products.device)
    for layer in head_relevance(products).unbind(0):
        found = found + layer @ found
    return found


def integrated_gradients(
    model: nn.Module,
    score: Score,
    *inputs: object,
    at: str = "*.0.resid_pre",
    baseline: Float[Tensor, "..."] | None = None,
    steps: int = 32,
    **options: object,
) -> Integrated:
    """Attribute a score to what passes a tap by the gradients on the way from a baseline.

    values = (x − b) ⊙ ∫₀¹ ∂score/∂x at b + α (x − b) dα, whose sum is score(x) − score(b). The
    integral is a Gauss-Legendre sum. Look at the gap: at rows of zeros a norm is steepest, norm
    behind norm more so, and a way that begins there may need thousands of steps, where one from
    the rows of another text needs tens to hundreds.

    Args:
        model: a model with taps. Its mode stays: dropout needs ``model.eval()``.
        score: a function of what the model returns that gives a number, or one for each sequence.
        inputs: what the model is called with.
        at: the name of one tap; that of the residual stream before layer 0 when omitted.
        baseline: b, broadcasting to what passes the tap; 0 when omitted. What "nothing there"
            means is a choice: zeros, a padding token's embedding, a mean.
        steps: how many points on the way.
        options: named arguments of the model, such as ``mask``.

    Returns:
        The values, and by how much they miss completeness.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if not exactly one tap fits, it is passed more than once, what passes is not
            finite, the baseline does not fit, or the score has a wrong shape or does not depend on
            it.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer, TransformerConfig, build
        >>> model = build(TransformerConfig(11, 8, decoder=[Layer(Attention(2), FFN(16))] * 2))
        >>> tokens = torch.tensor([[3, 1, 4, 1, 5]])
        >>> found = integrated_gradients(model, lambda out: out[0][:, -1, 7], tokens)
        >>> found.values.shape, found.gap.shape
        (torch.Size([1, 5, 8]), torch.Size([1]))

    Cost: ``steps`` times that of :func:`gradients_at`.

    Source: [sundararajan2017axiomatic], of patterns: [hao2021selfattention]
    Explained in: chapters/10_interpretability_deeper, section "Three answers".
    """
    check_callable("score", score)
    check_number("steps", steps, 1, 10_000, whole=True)
    names = list(taps(model, at))
    if len(names) != 1:
        raise ValueError(f"at must name one tap, got {at!r}, which fits {', '.join(names)}")
    with torch.no_grad(), capture(model, at, every=True) as seen:
        whole = _scored(score, model(*inputs, **options))
    if not seen:
        raise ValueError(f"at names the tap {names[0]}, which the model does not pass")
    x = _only(names[0], seen[names[0]])
    start = _read_baseline(baseline, x)

    def score_of(point: Tensor) -> Tensor:
        with patched(model, {names[0]: point}):
            return _scored(score, model(*inputs, **options))

    total = torch.zeros_like(x)
    for share, weight in zip(*_gauss_legendre(steps), strict=True):
        with torch.enable_grad():
            point = torch.lerp(start, x, share).requires_grad_()
            found = score_of(point)
        total += weight * _gradients(found, [point], at)[0]
    values = (x - start) * total
    with torch.no_grad():
        change = whole - score_of(start)
    if change.ndim and change.shape != x.shape[:1]:
        raise ValueError(
            f"score must give a number for each of the {x.shape[0]} sequences, or one in all, "
            f"got shape {tuple(change.shape)}"
        )
    return Integrated(values, change - (values.flatten(1).sum(1) if change.ndim else values.sum()))


def shuffled(
    model: nn.Module, where: str = "*", *, generator: torch.Generator | None = None
) -> nn.Module:
    """Return a copy of a model in which the numbers of some weights have changed places.

    An explanation of what a model has learnt must change with what it has learnt. One that stays
    the same for the copy shows the input, not the model.

    Args:
        model: stays as it is.
        where: names of parameters, with ``*`` as for :func:`tfbook.interpret.taps`.
        generator: source of random numbers.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if no parameter fits.

    Example:
        >>> model = nn.Linear(3, 5)
        >>> other = shuffled(model, "weight", generator=torch.Generator().manual_seed(0))
        >>> bool((other.weight == model.weight).all()), bool((other.bias == model.bias).all())
        (False, True)

    Source: [adebayo2018sanity], where weights are drawn anew
    Explained in: chapters/10_interpretability_deeper, section "Sanity checks".
    """
    check_module("model", model)
    check_generator(generator)
    if not isinstance(where, str):
        raise TypeError(f"where must be the name of a parameter, got {type(where).__name__}")
    other = copy.deepcopy(model)
    found = [each for name, each in other.named_parameters() if fnmatchcase(name, where)]
    if not found:
        raise ValueError(f"where {where!r} fits no parameter of the model")
    with torch.no_grad():
        for each in found:
            order = torch.randperm(each.numel(), generator=generator).to(each.device)
            each.copy_(each.flatten()[order].view_as(each))
    return other


def rank_correlation(a: Float[Tensor, "..."], b: Float[Tensor, "..."]) -> float:
    """Return whether two attributions put the same things first: Spearman's ρ, from −1 to 1.

    ρ is the correlation of the ranks; equal numbers share the mean of theirs.

    Args:
        a: numbers.
        b: as many.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for different shapes, fewer than two numbers, NaN, or numbers all alike.

    Example:
        >>> rank_correlation(torch.tensor([1.0, 2.0, 30.0]), torch.tensor([-1.0, 0.0, 0.1]))
        1.0

    Explained in: chapters/10_interpretability_deeper, section "Sanity checks".
    """
    check_float("a", a)
    check_float("b", b)
    check_shape("b", b, a.shape, "that of a")
    x, y = (_ranks(name, each) for name, each in (("a", a), ("b", b)))
    return float((x @ y / (x @ x * (y @ y)).sqrt()).clamp(-1, 1))


def _ranks(name: str, values: Tensor) -> Tensor:
    """Return ranks, less their mean."""
    values = values.detach().double().flatten().cpu()
    if values.isnan().any() or len(values) < 2 or bool((values == values[0]).all()):
        raise ValueError(f"{name} must hold numbers to rank: two that differ, and no NaN")
    _, kind, many = values.unique(return_inverse=True, return_counts=True)
    ranks = (many.cumsum(0) - (many - 1).double() / 2)[kind]
    return ranks - ranks.mean()


def _scored(score: Score, output: object) -> Tensor:
    """Return the score of what a model returned, checked."""
    found = score(output)
    if not (isinstance(found, Tensor) and found.is_floating_point()):
        kind = found.dtype if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(f"score must return a floating-point tensor, got {kind}")
    if found.ndim > 1:
        raise ValueError(
            "score must return one number, or one for each sequence of the batch, "
            f"got shape {tuple(found.shape)}"
        )
    return found


def _gradients(score: Tensor, tensors: list[Tensor], at: str) -> list[Tensor]:
    """Return the gradients of a score, 0 for tensors that it does not depend on."""
    found = [None] * len(tensors)
    if tensors and score.requires_grad:
        found = torch.autograd.grad(score, tensors, torch.ones_like(score), allow_unused=True)
    if all(each is None for each in found):
        raise ValueError(f"score must depend on what passes the taps {at!r}, but does not")
    return [
        torch.zeros_like(x) if each is None else each
        for x, each in zip(tensors, found, strict=True)
    ]


def _only(name: str, passed: list[Tensor]) -> Tensor:
    """Return the one tensor that has passed a tap."""
    if len(passed) != 1:
        raise ValueError(f"tap {name} must be passed once in a call, but was {len(passed)} times")
    if not bool(passed[0].isfinite().all()):
        raise ValueError(
            f"what passes the tap {name} must be finite to be multiplied with a gradient; scores "
            "of keys that are hidden are not, take the tap of the pattern"
        )
    return passed[0]


def _read_baseline(baseline: object, x: Tensor) -> Tensor:
    """Return the baseline in the shape of x."""
    if baseline is None:
        return torch.zeros_like(x)
    check_tensor("baseline", baseline)
    if baseline.dtype != x.dtype or baseline.device != x.device:
        raise TypeError(
            f"baseline must be {x.dtype} on {x.device} as what passes the tap, "
            f"got {baseline.dtype} on {baseline.device}"
        )
    shape = tuple(baseline.shape)
    padded = (1,) * (x.ndim - len(shape)) + shape
    if len(padded) != x.ndim or any(a not in (1, b) for a, b in zip(padded, x.shape, strict=True)):
        raise ValueError(f"baseline must broadcast to {tuple(x.shape)}, got shape {shape}")
    return baseline.detach().expand_as(x)


def _gauss_legendre(steps: int) -> tuple[list[float], list[float]]:
    """Return points in (0, 1) and their weights."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    return ((points + 1) / 2).tolist(), (weights / 2).tolist()


def _check_products(products: object, min_dims: int) -> None:
    check_float("products", products, min_dims=min_dims)
    if 0 in products.shape:
        raise ValueError(f"products must not be empty, got shape {tuple(products.shape)}")
