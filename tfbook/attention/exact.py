"""Exact softmax attention: a reference to read, a fast form to use, other scores, and merging.

Explained in: chapters/02_attention.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from tfbook._checks import check_attention, check_count, check_float, check_shape
from tfbook.attention.masks import causal_mask, combine_masks
from tfbook.attention.registry import VARIANTS, register
from tfbook.attention.scores import (
    additive_scores,
    at_least_float32,
    bilinear_scores,
    dot_scores,
    log_sum_exp,
    masked_softmax,
    restrict,
    scaled_dot_scores,
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
    Explained in: chapters/02_attention, section "Lookup made soft".
    """
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    scores = scaled_dot_scores(q, k, scale=scale)  # (..., n, m)
    scores = restrict(scores, mask=mask, bias=bias, causal=causal)  # −∞ where not allowed
    weights = masked_softmax(scores)  # (..., n, m), each row sums to 1 or is all zeros
    output = (weights @ at_least_float32(v)).to(v.dtype)  # (..., n, d_v)
    return _with_extras(output, weights, scores, return_weights, return_lse)


def _with_extras(output, weights, scores, return_weights, return_lse):
    """Return the output alone, or in a tuple with what else was asked for."""
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

    Explained in: chapters/02_attention, section "Scores and their geometry".
    """
    if not callable(score):
        raise TypeError(f"score must be callable, got {type(score).__name__}")

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
        check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale, same_depth=False)
        scores = score(q, k, **parameters)  # (..., n, m)
        if scale is not None:
            scores = scores * scale
        scores = restrict(scores, mask=mask, bias=bias, causal=causal)
        weights = masked_softmax(scores)
        output = (weights @ at_least_float32(v)).to(v.dtype)  # (..., n, d_v)
        return _with_extras(output, weights, scores, return_weights, return_lse)

    name = getattr(score, "__name__", "score").removesuffix("_scores")
    attend_with_score.__name__ = attend_with_score.__qualname__ = f"attend_{name}"
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
    when n ≠ m; here it is used for n = m only, and a mask does the rest.

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

    Source: [dao2022flashattention]
    Explained in: chapters/02_attention, section "The same function, computed four ways".
    """
    for name, asked in (("return_weights", return_weights), ("return_lse", return_lse)):
        if asked:
            raise ValueError(
                f"attend_sdpa cannot serve {name}=True, PyTorch does not hand it out; "
                "use tfbook.attention.attend"
            )
    *batch, n, _ = check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    # Its fast path takes exactly four dimensions with no broadcasting among them.
    fits = len(batch) == 2 and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    if not fits:
        lead = (1,) * (2 - len(batch))
        q, k, v = (x.expand(*lead, *batch, *x.shape[-2:]) for x in (q, k, v))
    output = grouped_sdpa(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    output = output if fits else output.reshape(*batch, n, v.shape[-1])  # (..., n, d_v)
    return output.to(v.dtype)


def grouped_sdpa(
    q: Float[Tensor, "*B H N D"],
    k: Float[Tensor, "*B G M D"],
    v: Float[Tensor, "*B G M E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*B H N E"]:
    """Compute :func:`attend_sdpa` where heads of q share heads of k and v, which are not copied.

    Query head h uses key-value head ⌊h · G / H⌋; mask and bias broadcast to (..., H, N, M). The
    caller has checked the arguments.

    Source: [ainslie2023gqa]
    Explained in: chapters/02_attention, section "The same function, computed four ways".
    """
    n, m = q.shape[-2], k.shape[-2]
    triangle = causal and mask is None and bias is None
    if n != m:  # asked in a branch, so that torch.compile knows the answer
        triangle = False
    if causal and not triangle:
        mask = combine_masks(mask, causal_mask(n, m, device=q.device))
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    shares = q.ndim > 2 and q.shape[-3] != k.shape[-3]
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=triangle, scale=scale, enable_gqa=shares
    )


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

    Explained in: chapters/02_attention, section "Soft does not mean few".
    """
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    check_count("top", top, minimum=1)
    scores = scaled_dot_scores(q, k, scale=scale)  # (..., n, m)
    scores = restrict(scores, mask=mask, bias=bias, causal=causal)
    best = scores.topk(min(top, scores.shape[-1]), dim=-1).indices  # (..., n, top)
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)  # (..., n, m)
    scores = restrict(scores, mask=kept)
    weights = masked_softmax(scores)
    output = (weights @ at_least_float32(v)).to(v.dtype)  # (..., n, d_v)
    return _with_extras(output, weights, scores, return_weights, return_lse)


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

    Explained in: chapters/02_attention, section "The same function, computed four ways".
    """
    if not outputs or len(outputs) != len(log_sum_exps):
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


def showing_weights(function: Attend) -> Attend:
    """Return a function that computes the same and can also return its weights.

    An exact one that never forms them is replaced by the reference; any other one is asked itself.
    """
    plain = getattr(function, "func", function)  # what a functools.partial calls
    exact = any(variant.fn is plain and "exact" in variant.has for variant in VARIANTS.values())
    return attend if exact else function


def second_of(found: object) -> Tensor:
    """Return the weights out of what an attention function returned when asked for them.

    Raises:
        ValueError: if there is nothing beside the output.
    """
    if not (isinstance(found, tuple) and len(found) == 2):
        raise ValueError("attend did not return its weights, asked with return_weights=True")
    return found[1]
