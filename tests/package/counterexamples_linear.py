"""Properties that these attention functions lack, each with an example in which it fails."""

import pytest
import torch
from attention_properties import SINGLE, Case, close, weights_of


def keys_only(fn, *, causal=True):
    """Return an attention function without what this one refuses, to put it through the checks.

    A bias is dropped, and a mask hides a key where it hides it from all queries.
    """

    def attend(q, k, v, *, mask=None, bias=None, **keywords):
        if mask is not None and mask.ndim > 1:
            mask = mask.any(-2, keepdim=True)
        if not causal:
            keywords.pop("causal", None)
        return fn(q, k, v, mask=mask, **keywords)

    return attend


def differs(one, other):
    assert (one - other).abs().max() > 0.01


def scaling_is_no_power(bound):
    q, k, _ = Case().qkv()
    one, two = (weights_of(bound, q, k, scale=scale) for scale in (0.4, 0.8))
    differs(torch.softmax(2 * one.clamp(min=1e-9).log(), dim=-1), two)


def features_are_not_scaled(bound):
    q, k, v = Case().qkv()
    close(bound(q, k, v), bound(q, k, v, scale=1.0))
    differs(bound(q, k, v), bound(q, k, v, scale=3**-0.5))


def more_numbers_meet_other_vectors(bound):
    q, k, v = Case().qkv()
    q_wide, k_wide = (torch.nn.functional.pad(x, (0, 9)) for x in (q, k))
    differs(bound(2 * q_wide, k_wide, v), bound(q, k, v))  # 2 q · k / √12 is q · k / √3


def features_vanish(bound):
    q, k, v = Case().qkv(dtype=SINGLE)
    q = -q.abs()
    assert (bound(q, k, v, scale=1e4) == 0).all()
    assert (bound(q, k, v) != 0).all()


def features_miss_each_other(bound):
    q, k, v = Case().qkv(dtype=SINGLE)
    assert (bound(q, k, v, scale=1e4) == 0).any(-2).any()


def refuses(what, **keywords):
    """Return a counterexample to a property that asks for what is refused."""

    def example(bound):
        with pytest.raises(ValueError, match=f"cannot serve {what}"):
            bound(*Case().qkv(), **keywords)

    return example


def weights_below_zero(bound):
    q, k, _ = Case().qkv()
    assert weights_of(bound, 3 * q, k).min() < -0.01


def order_matters(which):
    def example(bound):
        case = Case()
        q, k, v = case.qkv()
        order = case.order(case.n if which == "queries" else case.m)
        if which == "queries":
            differs(bound(q[..., order, :], k, v), bound(q, k, v)[..., order, :])
        else:
            differs(bound(q, k[..., order, :], v[..., order, :]), bound(q, k, v))

    return example


def others_matter(bound):
    q, k, v = Case().qkv()
    differs(bound(q[..., :1, :], k, v), bound(q, k, v)[..., :1, :])


def weights_are_not_shares(bound):
    q, k, v = Case().qkv(dtype=SINGLE)
    ones = torch.ones_like(v)
    differs(bound(q, k, ones, scale=1e4), torch.ones(()))


MASK = torch.ones(5, 7, dtype=torch.bool)
BIAS = torch.zeros(5, 7, dtype=torch.float64)
NO_CAUSE = refuses("causal=True", causal=True)
NO_MASK = refuses("a mask", mask=MASK)
NO_BIAS = refuses("a bias", bias=BIAS)

OWN = {
    ("linear", "scale"): scaling_is_no_power,
    ("linear", "default_scale"): features_are_not_scaled,
    ("linear", "extreme_logits"): features_vanish,
    ("features", "scale"): scaling_is_no_power,
    ("features", "default_scale"): more_numbers_meet_other_vectors,
    ("features", "extreme_logits"): features_miss_each_other,
    ("nystrom", "convex"): weights_below_zero,
    ("nystrom", "query_equivariance"): order_matters("queries"),
    ("nystrom", "key_value_invariance"): order_matters("keys"),
    ("nystrom", "query_independence"): others_matter,
    ("nystrom", "scale"): scaling_is_no_power,
    ("nystrom", "default_scale"): weights_below_zero,
    ("nystrom", "extreme_logits"): weights_are_not_shares,
}
REFUSED = {
    NO_CAUSE: ("causal", "alignment", "key_shift", "compile", "autocast"),
    NO_MASK: ("mask", "empty_rows", "small_sizes", "broadcasting", "vmap"),
    NO_BIAS: (
        "bias", "score_shift", "proportional", "half_precision", "strides", "purity", "gradients",
        "second_derivatives",
    ),
}  # fmt: skip
OWN |= {("nystrom", slug): example for example, slugs in REFUSED.items() for slug in slugs}
