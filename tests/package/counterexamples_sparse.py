"""Properties that these attention functions lack, each with an example in which it fails.

The sequences are longer than the windows, strides and layouts that the suite is run with.
"""

import pytest
import torch
from attention_properties import DOUBLE, Case, close

from tfbook.attention import attend


def differs(one, other):
    assert (one - other).abs().max() > 0.01


def long():
    """Return queries, keys and values longer than what a query sees."""
    return Case(n=29, m=29, d=3, e=2).qkv()


def not_exact(bound):
    q, k, v = long()
    differs(bound(q, k, v), attend(q, k, v))


def the_order_of_queries_matters(bound):
    q, k, v = long()
    order = torch.arange(29).flip(0)
    differs(bound(q[..., order, :], k, v), bound(q, k, v)[..., order, :])


def the_order_of_keys_matters(bound):
    q, k, v = long()
    differs(bound(q, k.flip(-2), v.flip(-2)), bound(q, k, v))


def a_query_alone_stands_at_the_end(bound):
    q, k, v = long()
    differs(bound(q[..., :1, :], k, v), bound(q, k, v)[..., :1, :])


def a_key_taken_out_moves_the_others(bound):
    q, k, v = long()
    keep = torch.arange(29) % 2 == 0
    masked = bound(q, k, v, mask=keep.expand(29, 29))
    differs(masked, bound(q, k[..., keep, :], v[..., keep, :]))


def copies_move_the_others_out_of_sight(bound):
    q, k, v = long()
    more = (x[..., :1, :].expand(2, 29, -1) for x in (k, v))
    k_more, v_more = (torch.cat([x, y], -2) for x, y in zip((k, v), more, strict=True))
    bias = torch.zeros(29, 29, dtype=DOUBLE)
    bias[:, 0] = torch.tensor(30.0).log()
    differs(bound(q, k_more, v_more), bound(q, k, v, bias=bias))


def a_mask_may_leave_nothing_to_see(bound):
    q, k, v = Case(n=2, m=2).qkv()
    others = torch.tensor([[False, True], [True, False]])
    assert (bound(q, k, v, mask=others) == 0).all()  # and zero need not lie between the values
    assert (attend(q, k, v, mask=others) != 0).all()


def a_bias_shows_no_key_between_the_steps(bound):
    q, k, v = Case(n=2, m=2).qkv()
    bias = torch.tensor([[0.0, 200.0], [200.0, 0.0]], dtype=DOUBLE)
    close(bound(q, k, v, bias=bias), v)  # each its own, not the other's that the bias is for


def one_key_may_be_out_of_sight(bound):
    q, k, v = Case(n=2, m=1).qkv()
    output = bound(q, k, v)
    assert (output[..., 0, :] == 0).all()
    with pytest.raises(AssertionError):
        close(output, v.expand(2, 2, -1))


def drawing_is_refused_inside_of_vmap(bound):
    q, k, v = Case().qkv()
    with pytest.raises(RuntimeError, match="random"):
        torch.vmap(lambda q: bound(q, k, v))(torch.stack([q, -q]))


EXAMPLES = {
    "exact": not_exact,
    "query_equivariance": the_order_of_queries_matters,
    "key_value_invariance": the_order_of_keys_matters,
    "query_independence": a_query_alone_stands_at_the_end,
    "mask": a_key_taken_out_moves_the_others,
    "proportional": copies_move_the_others_out_of_sight,
}
NAMES = ("window", "streaming", "longformer", "dilated", "blocks", "bigbird", "strided")
OWN = {(name, slug): example for name in NAMES for slug, example in EXAMPLES.items()} | {
    ("dilated", "convex"): a_mask_may_leave_nothing_to_see,
    ("dilated", "bias"): a_bias_shows_no_key_between_the_steps,
    ("dilated", "extreme_logits"): a_bias_shows_no_key_between_the_steps,
    ("dilated", "small_sizes"): one_key_may_be_out_of_sight,
    ("bigbird", "vmap"): drawing_is_refused_inside_of_vmap,
}
