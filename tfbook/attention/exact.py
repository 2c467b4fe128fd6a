"""Exact softmax attention: a reference to read, a fast form to use, other scores, and merging.

Explained in: chapters/02_attention.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from tfbook._checks import (
    check_attention,
    check_bool,
    check_float,
    check_list,
    check_number,
    check_shape,
    scores_shape,
)
from tfbook.attention.masks import causal_mask, combine_masks
from tfbook.attention.registry import register
from tfbook.attention.scores import (
    additive_scores,
    bilinear_scores,
    dot_scores,
    log_sum_exp,
    masked_scores,
    masked_softmax,
    mix,
    restrict,
)
from tfbook.attention.tiled import attend_online, attend_rows

__all__ = [
    "attend",
    "attend_sdpa",
    "attend_topk",
    "attention_with",
    "merge_partials",
]

Output = Float[Tensor, "*B N E"] | tuple[Tensor, ...]
Attend = Callable[..., Tensor | tuple[Tensor, ...]]
Score = Callable[..., Tensor]


def attend(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Output:
    """Mix the values by how well each key answers each query; the reference of this package.

    weights = softmax(scale · q kᵀ + bias), over the allowed keys; out = weights v.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: also return the weights (..., n, m).
        return_lse: also return the log-sum-exp of each row of scores, (..., n).

    Returns:
        The output (..., n, d_v), or a tuple of output and what else was asked for, weights first.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device or scale.

    Cost: n · m · 2(d + d_v) FLOPs and n · m numbers of memory for each matrix of the batch.

    Example:
        >>> q, k = torch.zeros(1, 2), torch.randn(3, 2)  # a query that prefers nothing
        >>> attend(q, k, torch.tensor([[1.0], [2.0], [6.0]]))
        tensor([[3.]])

    Source: [vaswani2017attention]
    Explained in: chapters/02_attention_deeper, section "Lookup made soft".
    """
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    scores = masked_scores(q, k, mask=mask, bias=bias, causal=causal, scale=scale)  # (..., n, m)
    weights = masked_softmax(scores)  # (..., n, m), each row sums to 1 or is all zeros
    output = mix(weights, v)  # (..., n, d_v)
    return _with_extras(output, weights, scores, return_weights, return_lse)


def _with_extras(output, weights, scores, return_weights, return_lse):
    """Return the output alone, or in a tuple with what else was asked for."""
    check_bool("return_weights", return_weights)
    check_bool("return_lse", return_lse)
    extras = (weights.to(output.dtype),) if return_weights else ()
    extras += (log_sum_exp(scores),) if return_lse else ()
    return (output, *extras) if extras else output


def attention_with(score: Score) -> Attend:
    """Make an ``attend`` that scores by another function.

    weights = softmax(scale · score(q, k) + bias); the scale is 1 when omitted.

    Args:
        score: a function (q, k, **parameters) → scores (..., n, m).

    Returns:
        A function with the signature of :func:`attend`; further keyword arguments go to ``score``.

    Raises:
        TypeError: if the score is not callable.

    Explained in: chapters/02_attention_deeper, section "Score functions".
    """
    if not callable(score):
        raise TypeError(f"score must be callable, got {type(score).__name__}")

    def masked_score(
        q: Float[Tensor, "*#B N Dq"],
        k: Float[Tensor, "*#B M Dk"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        scale: float | None = None,
        **parameters: Tensor,
    ) -> Float[Tensor, "*B N M"]:
        scores = score(q, k, **parameters)  # (..., n, m)
        scores = scores if scale is None else scores * scale
        return restrict(scores, mask=mask, bias=bias, causal=causal)

    def attend_with_score(
        q: Float[Tensor, "*#B N Dq"],
        k: Float[Tensor, "*#B M Dk"],
        v: Float[Tensor, "*#B M E"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        scale: float | None = None,
        return_weights: bool = False,
        return_lse: bool = False,
        **parameters: Tensor,
    ) -> Output:
        options = {"mask": mask, "bias": bias, "causal": causal, "scale": scale}
        check_attention(q, k, v, **options, same_depth=False)
        scores = masked_score(q, k, **options, **parameters)  # (..., n, m)
        weights = masked_softmax(scores)  # (..., n, m)
        output = mix(weights, v)  # (..., n, d_v)
        return _with_extras(output, weights, scores, return_weights, return_lse)

    name = getattr(score, "__name__", "score").removesuffix("_scores")
    attend_with_score.__name__ = attend_with_score.__qualname__ = f"attend_{name}"
    attend_with_score.scores = masked_score
    attend_with_score.__doc__ = f"Compute :func:`attend` with the scores of ``{name}``."
    return attend_with_score


def attend_sdpa(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Output:
    """Compute :func:`attend` by PyTorch's ``scaled_dot_product_attention``.

    The same mathematics as :func:`attend`. PyTorch's own ``is_causal`` aligns to the *first* key
    when n ≠ m; here it is used for n = m only, and a mask does the rest. Queries (..., G, n, d)
    that share keys and values (..., 1, m, d), as grouped heads do, read them where they are:
    nothing is written out G times.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: refused, PyTorch keeps the weights to itself.
        return_lse: refused for the same reason.

    Returns:
        The output (..., n, d_v).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device or scale, or for asking for weights or log-sum-exp.

    Source: [dao2022flashattention], shared keys: [ainslie2023gqa]
    Explained in: chapters/02_attention_deeper, section "The same function, computed four ways".
    """
    for name, asked in (("return_weights", return_weights), ("return_lse", return_lse)):
        if asked:
            raise ValueError(
                f"attend_sdpa cannot serve {name}=True, PyTorch does not hand it out; "
                "use tfbook.attention.attend"
            )
    each = k, v
    if isinstance(k, Tensor) and k.ndim > 2 and k.shape[-3] == 1:
        each = _for_each(q, k), _for_each(q, v)
    check_attention(q, *each, mask=mask, bias=bias, causal=causal, scale=scale)
    *batch, n, m = scores_shape(q, *each)
    if n == 1:  # the last one, which sees every key
        causal = False
    triangle = causal and mask is None and bias is None
    if n != m:  # asked in a branch, so that torch.compile knows the answer
        triangle = False
    if causal and not triangle:
        mask = combine_masks(mask, causal_mask(n, m, device=q.device))
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    q, k, v, mask = _in_four_dimensions(q, k, v, mask, batch)
    shares = q.shape[-3] != k.shape[-3]
    output = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=triangle, scale=scale, enable_gqa=shares
    )
    if output.ndim != len(batch) + 2 or output.shape[-2] != n:
        output = output.reshape(*batch, n, v.shape[-1])
    return output.to(v.dtype)  # (..., n, d_v)


def _for_each(q, x):
    """Return keys or values as a view with one for each query matrix that shares them."""
    if not (isinstance(q, Tensor) and isinstance(x, Tensor) and min(q.ndim, x.ndim) > 2):
        return x
    shared = x.shape[-3] == 1 < q.shape[-3] and x.shape[:-3] == q.shape[:-3]
    return x.expand(*q.shape[:-2], *x.shape[-2:]) if shared else x


def _in_four_dimensions(q, k, v, mask, batch):
    """Return q, k, v and mask as PyTorch's fast path takes them: (B, H, n, d), not broadcasting.

    Where the G matrices of the last leading dimension of q share one of k and v, these are not
    written out. PyTorch takes (B, H, n, d) with (B, H/G, m, d); but a single query each become the
    rows of one matrix, (B, H/G, G, d), which reads every key once.
    """
    if len(batch) == 2 and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        return q, k, v, mask  # the usual case
    shared = min(q.ndim, k.ndim, v.ndim) > 2 and k.shape[-3] == v.shape[-3] == 1 < q.shape[-3]
    own = (*batch[:-1], 1) if shared else tuple(batch)  # leading dimensions of k and v
    q = q if q.shape[:-2] == tuple(batch) else q.expand(*batch, *q.shape[-2:])
    k, v = (x if x.shape[:-2] == own else x.expand(*own, *x.shape[-2:]) for x in (k, v))
    if shared and q.shape[-2] == 1:
        q, k, v = q.squeeze(-2), k.squeeze(-3), v.squeeze(-3)  # (..., G, d), (..., m, d)
        mask = mask.squeeze(-2) if mask is not None and mask.ndim > 2 else mask
    elif shared and len(batch) > 2:
        q, mask = q.flatten(-4, -3), _join(mask, batch[-2:])  # (..., H, n, d)
        k, v = k.squeeze(-3), v.squeeze(-3)  # (..., H/G, m, d)
    if q.ndim < 4:
        q, k, v = (x[(None,) * (4 - x.ndim)] for x in (q, k, v))
    return q, k, v, mask


def _join(mask, groups):
    """Join dimensions −4 and −3 of what broadcasts to (..., *groups, n, m)."""
    if mask is None or mask.ndim < 3 or math.prod(mask.shape[-4:-2]) == 1:
        return mask if mask is None or mask.ndim < 4 else mask.flatten(-4, -3)
    return mask.expand(*mask.shape[:-4], *groups, *mask.shape[-2:]).flatten(-4, -3)


def attend_topk(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    top: int,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Output:
    """Attend to the ``top`` best-scored allowed keys of each query only.

    weights = softmax over the ``top`` largest of scale · q kᵀ + bias; all other weights are 0.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        top: how many keys a query keeps, at least 1; with m or more this is :func:`attend`.
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: also return the weights (..., n, m).
        return_lse: also return the log-sum-exp of the kept scores, (..., n).

    Returns:
        The output (..., n, d_v), or a tuple of output and what else was asked for, weights first.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device or scale, or ``top`` below 1.

    Explained in: chapters/02_attention_deeper, section "Soft does not mean few".
    """
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    scores = _topk_scores(q, k, top=top, mask=mask, bias=bias, causal=causal, scale=scale)
    weights = masked_softmax(scores)  # (..., n, m)
    output = mix(weights, v)  # (..., n, d_v)
    return _with_extras(output, weights, scores, return_weights, return_lse)


def _topk_scores(q, k, *, top, **options):
    """Return the scores of which only the best ``top`` of each row are left, (..., n, m)."""
    check_number("top", top, 1, whole=True)
    scores = masked_scores(q, k, **options)  # (..., n, m)
    best = scores.topk(min(top, scores.shape[-1]), dim=-1).indices  # (..., n, top)
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)  # (..., n, m)
    return restrict(scores, mask=kept)


def merge_partials(
    outputs: Sequence[Float[Tensor, "*B N E"]], log_sum_exps: Sequence[Float[Tensor, "*B N"]]
) -> tuple[Float[Tensor, "*B N E"], Float[Tensor, "*B N"]]:
    """Merge attention over disjoint sets of keys into attention over their union, exactly.

    out = Σ_p w_p out_p with w = softmax_p(lse_p), and lse = log Σ_p exp(lse_p).

    Args:
        outputs: one (..., n, d_v) for each set of keys.
        log_sum_exps: one (..., n) for each set; −∞ where the set had no allowed key.

    Returns:
        Output and log-sum-exp of the union, ready to be merged again.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if nothing is given, or numbers or shapes differ.

    Explained in: chapters/02_attention_deeper, section "The same function, computed four ways".
    """
    check_list("outputs", outputs)
    check_list("log_sum_exps", log_sum_exps)
    if not len(outputs) or len(outputs) != len(log_sum_exps):
        raise ValueError(
            "outputs and log_sum_exps must be equally many and at least one, got "
            f"{len(outputs)} and {len(log_sum_exps)}"
        )
    for i, (output, lse) in enumerate(zip(outputs, log_sum_exps, strict=True)):
        check_float(f"outputs[{i}]", output, min_dims=2)
        check_float(f"log_sum_exps[{i}]", lse, min_dims=1)
        check_shape(f"outputs[{i}]", output, outputs[0].shape, "of outputs[0]")
        check_shape(f"log_sum_exps[{i}]", lse, output.shape[:-1], "(..., n)")
    parts = torch.stack(tuple(log_sum_exps), dim=-1)  # (..., n, parts)
    shares = masked_softmax(parts).unsqueeze(-2)  # (..., n, 1, parts)
    merged = (torch.stack(tuple(outputs), dim=-1) * shares).sum(-1)  # (..., n, d_v)
    return merged.to(outputs[0].dtype), log_sum_exp(parts)


# What each variant is not; everything else is claimed and tested.

_NO_WEIGHTS = "the weights are never whole"
_FIRST_ONLY = "its backward pass is written by hand and has no derivative of its own"
_OTHER_SCORE = "another score gives other weights"
_UNSCALED = "the score has no built-in scale"


def _tile_scores(q, k, *, rows=None, cols=None, **options):
    """Return the scores that tiles of any size amount to."""
    return masked_scores(q, k, **options)


# How each forms what its softmax is taken of: see tfbook.attention.explicit.
attend.scores = attend_sdpa.scores = masked_scores
attend_rows.scores = attend_online.scores = _tile_scores
attend_topk.scores = _topk_scores

register("reference", attend)
register(
    "sdpa",
    attend_sdpa,
    lacks={"weights": _NO_WEIGHTS, "lse": "PyTorch keeps it", "second_derivatives": _FIRST_ONLY},
)
register(
    "rows",
    attend_rows,
    lacks={"weights": _NO_WEIGHTS, "second_derivatives": _FIRST_ONLY},
    options={"rows": 3},
)
register(
    "online",
    attend_online,
    lacks={"weights": _NO_WEIGHTS, "second_derivatives": _FIRST_ONLY},
    options={"rows": 3, "cols": 2},
)
register(
    "dot",
    attention_with(dot_scores),
    lacks={"exact": _OTHER_SCORE, "default_scale": _UNSCALED},
)
register(
    "bilinear",
    attention_with(bilinear_scores),
    lacks={"exact": _OTHER_SCORE, "default_scale": _UNSCALED},
    parameters={"weight": ("d_q", "d_k")},
)
register(
    "additive",
    attention_with(additive_scores),
    lacks={
        "exact": _OTHER_SCORE,
        "default_scale": _UNSCALED,
        "key_shift": "tanh does not pass a shift through unchanged",
    },
    parameters={"w_q": ("d_hidden", "d_q"), "w_k": ("d_hidden", "d_k"), "w_a": ("d_hidden",)},
)
register(
    "topk",
    attend_topk,
    lacks={
        "exact": "keys beyond the best few get no weight",
        "lse": "the best of each part are more keys than the best of the whole",
        "proportional": "copies take the places of other keys",
    },
    options={"top": 3},
)
