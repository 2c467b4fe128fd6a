"""Scores and the softmax that turns them into weights.

A score function says how well each key answers each query: (q, k) → (..., n, m). Scores are
restricted by masks, which set them to −∞, and normalised row by row.

Explained in: chapters/02_attention, section "Why divide by the root of the width".
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfbook._checks import (
    broadcast_batch,
    check_bias,
    check_bool,
    check_float,
    check_mask,
    check_same,
    check_scale,
    check_shape,
)
from tfbook.attention.masks import causal_mask


def dot_scores(q: Float[Tensor, "*#B N D"], k: Float[Tensor, "*#B M D"]) -> Float[Tensor, "*B N M"]:
    """Score by the dot product: s[i, j] = q[i] · k[j].

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).

    Returns:
        Scores (..., n, m), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if the shapes do not fit.

    Source: [luong2015effective]
    Explained in: chapters/02_attention_deeper, section "Score functions".
    """
    _check_pair(q, k, same_depth=True)
    return multiply_shared(at_least_float32(q), at_least_float32(k).mT)  # (..., n, m)


def scaled_dot_scores(
    q: Float[Tensor, "*#B N D"], k: Float[Tensor, "*#B M D"], *, scale: float | None = None
) -> Float[Tensor, "*B N M"]:
    """Score by the dot product, scaled to keep its size independent of d: s = q · k / √d.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        scale: the factor in place of 1/√d.

    Returns:
        Scores (..., n, m), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if the shapes do not fit or the scale is not finite and positive.

    Source: [vaswani2017attention]
    Explained in: chapters/02_attention, section "Why divide by the root of the width".
    """
    _check_pair(q, k, same_depth=True)
    if scale is None:
        scale = max(q.shape[-1], 1) ** -0.5
    check_scale("scale", scale)
    return dot_scores(at_least_float32(q) * scale, at_least_float32(k))  # (..., n, m)


def bilinear_scores(
    q: Float[Tensor, "*#B N Dq"], k: Float[Tensor, "*#B M Dk"], weight: Float[Tensor, "Dq Dk"]
) -> Float[Tensor, "*B N M"]:
    """Score through a matrix: s[i, j] = q[i] W k[j]; q and k may differ in size.

    Args:
        q: queries (..., n, d_q).
        k: keys (..., m, d_k).
        weight: W, (d_q, d_k).

    Returns:
        Scores (..., n, m), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if the shapes do not fit.

    Source: [luong2015effective]
    Explained in: chapters/02_attention_deeper, section "Score functions".
    """
    _check_pair(q, k, weight=weight)
    check_shape("weight", weight, (q.shape[-1], k.shape[-1]), "(d_q, d_k)")
    return dot_scores(at_least_float32(q) @ at_least_float32(weight), at_least_float32(k))


def additive_scores(
    q: Float[Tensor, "*#B N Dq"],
    k: Float[Tensor, "*#B M Dk"],
    w_q: Float[Tensor, "H Dq"],
    w_k: Float[Tensor, "H Dk"],
    w_a: Float[Tensor, " H"],
) -> Float[Tensor, "*B N M"]:
    """Score by a network of one hidden layer: s[i, j] = w_a · tanh(W_q q[i] + W_k k[j]).

    Args:
        q: queries (..., n, d_q).
        k: keys (..., m, d_k).
        w_q: W_q, (d_hidden, d_q).
        w_k: W_k, (d_hidden, d_k).
        w_a: w_a, (d_hidden,).

    Returns:
        Scores (..., n, m), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if the shapes do not fit.

    Cost: n · m · d_hidden numbers of memory: every pair has its own hidden layer.

    Source: [bahdanau2015neural]
    Explained in: chapters/02_attention_deeper, section "Score functions".
    """
    _check_pair(q, k, w_q=w_q, w_k=w_k, w_a=w_a)
    check_shape("w_a", w_a, (w_a.shape[-1] if w_a.ndim else 0,), "(d_hidden,)")
    check_shape("w_q", w_q, (len(w_a), q.shape[-1]), "(d_hidden, d_q)")
    check_shape("w_k", w_k, (len(w_a), k.shape[-1]), "(d_hidden, d_k)")
    q, k, w_q, w_k, w_a = map(at_least_float32, (q, k, w_q, w_k, w_a))
    hidden = torch.tanh((q @ w_q.T).unsqueeze(-2) + (k @ w_k.T).unsqueeze(-3))  # (..., n, m, h)
    return hidden @ w_a  # (..., n, m)


def restrict(
    scores: Float[Tensor, "*B M"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*B M"]:
    """Add the bias to the scores and set those that are not allowed to −∞.

    Args:
        scores: (..., n, m), or one row (m,).
        mask: boolean, True = allowed, broadcasts to the scores.
        bias: added to the scores, broadcasts to them.
        causal: hide the future, aligned to the last key.

    Returns:
        Scores of the same shape.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if the mask or the bias does not broadcast.

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    check_bool("causal", causal)
    check_float("scores", scores, min_dims=2 if causal else 1)
    if bias is not None:
        check_bias(bias, scores.shape, device=scores.device)
        scores = scores + bias
    if mask is not None:
        check_mask(mask, scores.shape, device=scores.device)
        scores = scores.masked_fill(~mask, -torch.inf)
    if causal:
        past = causal_mask(*scores.shape[-2:], device=scores.device)  # (n, m)
        scores = scores.masked_fill(~past, -torch.inf)
    return scores


def masked_scores(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*B N M"]:
    """Score as :func:`tfbook.attention.attend` does: scale · q kᵀ + bias, −∞ where not allowed.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.

    Returns:
        Scores (..., n, m), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape or scale.

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    scores = scaled_dot_scores(q, k, scale=scale)  # (..., n, m)
    return restrict(scores, mask=mask, bias=bias, causal=causal)


def masked_softmax(
    scores: Float[Tensor, "*B M"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    temperature: float = 1.0,
) -> Float[Tensor, "*B M"]:
    """Normalise each row of scores over its allowed entries; a row without any becomes zeros.

    p[i, j] = exp(s[i, j] / T) / Σ exp(s[i, l] / T), the sum over the allowed l. A score of −∞ is
    not allowed either.

    Args:
        scores: (..., n, m), or one row (m,).
        mask: boolean, True = allowed, broadcasts to the scores.
        temperature: T above 0; small values sharpen, large ones flatten.

    Returns:
        The weights (..., n, m), each row non-negative with sum 1, or all zeros.

    Raises:
        TypeError: if scores are not floating point or the mask is not boolean.
        ValueError: if the mask does not broadcast or the temperature is not positive.

    Example:
        >>> mask = torch.tensor([[True, True, False], [False, False, False]])
        >>> masked_softmax(torch.zeros(2, 3), mask)
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 0.0000]])

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    check_scale("temperature", temperature)
    scores, empty = _without_empty_rows(restrict(scores, mask=mask))
    if temperature != 1.0:
        scores = scores / temperature
    return torch.softmax(scores, dim=-1).masked_fill(empty, 0.0)  # (..., n, m)


def log_sum_exp(scores: Float[Tensor, "*B M"]) -> Float[Tensor, "*B"]:
    """Sum each row's exponentials and take the logarithm; −∞ for a row without any allowed entry.

    lse[i] = log Σ exp(s[i, l]). It is what :func:`tfbook.attention.merge_partials` needs.

    Raises:
        TypeError: if scores are not floating point.
        ValueError: if scores have no dimension.

    Explained in: chapters/02_attention_deeper, section "The same function, computed four ways".
    """
    check_float("scores", scores, min_dims=1)
    scores, empty = _without_empty_rows(scores)
    return torch.logsumexp(scores, dim=-1).masked_fill(empty.squeeze(-1), -torch.inf)


def _without_empty_rows(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Set rows of −∞ alone to 0, and return which, (..., 1).

    Their softmax is 0/0. Replacing that NaN afterwards would mend the value, not the gradient.
    """
    empty = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(empty, 0.0), empty


def softmax_jacobian(p: Float[Tensor, "*B M"]) -> Float[Tensor, "*B M M"]:
    """Differentiate the softmax: how each weight answers to each score of its row.

    J[j, l] = ∂p[j] / ∂s[l] = p[j] (δ[j, l] − p[l]), that is J = diag(p) − p pᵀ.

    Args:
        p: weights (..., m), a softmax's output.

    Returns:
        The Jacobian (..., m, m), symmetric, with rows that sum to 0.

    Raises:
        TypeError: if p is not floating point.
        ValueError: if p has no dimension.

    Example:
        >>> softmax_jacobian(torch.tensor([0.5, 0.5]))
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])

    Explained in: chapters/02_attention, section "Why divide by the root of the width".
    """
    check_float("p", p, min_dims=1)
    return torch.diag_embed(p) - p[..., :, None] * p[..., None, :]  # (..., m, m)


def at_least_float32(x: Tensor) -> Tensor:
    """Widen float16 and bfloat16 to float32, where scores neither overflow nor lose their digits.

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def mix(weights: Float[Tensor, "*#B N M"], v: Float[Tensor, "*#B M E"]) -> Float[Tensor, "*B N E"]:
    """Mix the values by the weights, in float32 at least: out = weights v, in the dtype of v.

    Args:
        weights: (..., n, m), in float32 at least.
        v: values (..., m, d_v).

    Returns:
        The output (..., n, d_v).

    Explained in: chapters/02_attention_deeper, section "Lookup made soft".
    """
    return multiply_shared(weights, at_least_float32(v)).to(v.dtype)  # (..., n, d_v)


def multiply_shared(
    a: Float[Tensor, "*#B N D"], b: Float[Tensor, "*#B D M"]
) -> Float[Tensor, "*B N M"]:
    """Multiply matrices of which several on the left share one on the right, without copying it.

    What stands at dimension −3 of a alone becomes rows: (..., G, n, d) and (..., 1, d, m) are
    multiplied as (..., G·n, d) and (..., d, m). ``@`` would write b out G times.

    Args:
        a: (..., n, d).
        b: (..., d, m); leading dimensions broadcast.

    Returns:
        a @ b, (..., n, m).
    """
    if a.ndim > 2 and b.ndim > 2 and b.shape[-3] == 1 < a.shape[-3]:
        return (a.flatten(-3, -2) @ b.squeeze(-3)).unflatten(-2, a.shape[-3:-1])
    return a @ b


def _check_pair(q, k, *, same_depth=False, **weights):
    check_float("q", q, min_dims=2)
    check_float("k", k, min_dims=2)
    for name, weight in weights.items():
        check_float(name, weight)
    check_same(q=q, k=k, **weights)
    if same_depth and q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q and k must have the same last dimension for a dot product, got "
            f"q {tuple(q.shape)} and k {tuple(k.shape)}"
        )
    broadcast_batch(q=q.shape[:-2], k=k.shape[:-2])
