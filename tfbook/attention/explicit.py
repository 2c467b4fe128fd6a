"""Attention on the path where scores and weights are formed, so that they can be read or replaced.

Fast forms of attention never hold the (n, m) scores, and none hands out a place to change them. But
what each computes is softmax(scores) v, and an attention function says what its scores are by an
attribute ``scores``: a function of (q, k, *, mask, bias, causal, scale) that returns them (..., n,
m), −∞ where not allowed. From those the same result follows in the open.

Explained in: chapters/03_multi_head, section "What the heads of a small model do".
"""

import functools
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from tfbook.attention.registry import VARIANTS
from tfbook.attention.scores import masked_softmax, mix
from tfbook.attention.taps import Tap

__all__ = ["attend_explicit", "scores_of"]

Attend = Callable[..., Tensor | tuple[Tensor, ...]]


def scores_of(attend: Attend) -> Callable[..., Tensor] | None:
    """Return the function that forms the scores of an attention function, None if it has none.

    Args:
        attend: a function or module with an attribute ``scores``, or a ``functools.partial`` of
            one, whose keywords are passed on.

    Explained in: chapters/03_multi_head, section "What the heads of a small model do".
    """
    scores = getattr(getattr(attend, "func", attend), "scores", None)
    if not callable(scores):
        return None
    bound = getattr(attend, "keywords", None)
    return functools.partial(scores, **bound) if bound else scores


def attend_explicit(
    attend: Attend,
    q: Float[Tensor, "B *H N D"],
    k: Float[Tensor, "B *G M D2"],
    v: Float[Tensor, "B *G M E"],
    *,
    scores: Tap,
    pattern: Tap,
    dropout: float = 0.0,
    **options: object,
) -> tuple[Float[Tensor, "B *H N E"], Float[Tensor, "B H2 N M"]]:
    """Compute what an attention function computes, with scores and weights passing two taps.

    pattern = softmax(scores), z = dropout(pattern) v. A function that does not say what its scores
    are is asked for its weights instead.

    Args:
        attend: the attention function.
        q: queries, their heads in one dimension or in groups.
        k: keys.
        v: values.
        scores: the tap that the scores pass, (B, H, N, M), in float32 at least.
        pattern: the tap that the weights pass, (B, H, N, M), before dropout.
        dropout: share of the weights to set to 0, the others grow by 1/(1 − dropout).
        options: further arguments of the attention function.

    Returns:
        What was found, z, with heads as in q, and the pattern.

    Raises:
        ValueError: if the function forms no weights, or no scores while ``scores`` is watched.

    Explained in: chapters/03_multi_head, section "What the heads of a small model do".
    """
    heads = q.shape[1:-2]
    form = scores_of(attend)
    if form is not None:
        formed = scores(form(q, k, **options).flatten(1, -3))  # (B, H, N, M)
        weights = masked_softmax(formed)
    elif scores.watched:
        raise ValueError(
            f"attend {_name(attend)} does not say how its scores are formed, so the tap `scores` "
            "has nothing to show: remove the hook, or give the function an attribute "
            "scores(q, k, *, mask, bias, causal, scale)"
        )
    else:
        weights = _ask(attend, q, k, v, options).flatten(1, -3)
    weights = pattern(weights)  # (B, H, N, M)
    z = mix(functional.dropout(weights, dropout).unflatten(1, heads), v)  # (B, …, N, d_value)
    return z, weights


def _ask(attend, q, k, v, options):
    """Return the weights of a function that does not say how they come about."""
    plain = getattr(attend, "func", attend)
    for variant in VARIANTS.values():
        if variant.fn is plain and "weights" in variant.lacks:
            raise ValueError(
                f"attend {variant.name!r} forms no weights ({variant.lacks['weights']}), so they "
                "can be neither shown nor dropped: remove the hook, or the dropout, or choose "
                "another attention function"
            )
    found = attend(q, k, v, return_weights=True, **options)
    if not (isinstance(found, tuple) and len(found) == 2):
        raise ValueError(
            f"attend {_name(attend)} did not return its weights, asked with return_weights=True"
        )
    return found[1]


def _name(attend):
    plain = getattr(attend, "func", attend)
    return getattr(plain, "__name__", type(plain).__name__)
