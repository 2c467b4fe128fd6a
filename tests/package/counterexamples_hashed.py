"""Properties that these attention functions lack, each with an example in which it fails."""

import torch
from attention_properties import DOUBLE, Case, close

from tfbook.attention import attend, merge_partials


def differs(one, other):
    assert (one - other).abs().max() > 0.01


# Hashed attention: options {"rounds": 2, "buckets": 4, "chunk": 3}


def hidden_by_chance(bound):
    """Return a case and a mask that hides from query 0 exactly the keys it is shown."""
    q, k, v = Case(m=11).qkv()
    _, weights = bound(q, k, v, return_weights=True)
    return q, k, v, weights[0, 0] == 0


def weights_of_zero(bound):
    q, k, v, mask = hidden_by_chance(bound)
    assert 0 < mask.sum() < 11  # there are keys to be seen
    _, weights = bound(q, k, v, mask=mask.expand(5, 11), return_weights=True)
    close(weights[0, 0].sum(), torch.tensor(0.0, dtype=DOUBLE))


def zeros_are_outside_of_the_values(bound):
    q, k, v, mask = hidden_by_chance(bound)
    output = bound(q, k, v.abs() + 1, mask=mask.expand(5, 11))
    assert (output[0, 0] == 0).all()


def parts_show_other_keys(bound):
    q, k, v = Case(m=11).qkv()
    parts = [bound(q, k[:, p], v[:, p], return_lse=True) for p in (slice(0, 5), slice(5, 11))]
    differs(merge_partials(*zip(*parts, strict=True))[0], bound(q, k, v))


def order_of_queries_matters(bound):
    q, k, v = Case(n=11, m=11).qkv()
    order = torch.arange(11).flip(0)
    differs(bound(q[:, order], k, v), bound(q, k, v)[:, order])


def order_of_keys_matters(bound):
    q, k, v = Case(m=11).qkv()
    order = torch.arange(11).flip(0)
    differs(bound(q, k[:, order], v[:, order]), bound(q, k, v))


def other_queries_matter(bound):
    q, k, v = Case(n=11, m=11).qkv()
    differs(bound(q[:, :1], k, v), bound(q, k, v)[:, :1])


def the_future_moves_the_past(bound):
    q, k, v = Case(n=11, m=11).qkv()
    before = bound(q, k, v, causal=True)
    q, k = q.clone(), k.clone()
    q[:, -1], k[:, -1] = -q[:, -1], -k[:, -1]  # other buckets, so all may stand elsewhere
    differs(bound(q, k, v, causal=True)[:, :-1], before[:, :-1])


def the_last_queries_alone_see_others(bound):
    q, k, v = Case(n=11, m=11).qkv()
    differs(bound(q[:, -2:], k, v, causal=True), bound(q, k, v, causal=True)[:, -2:])


def masked_keys_take_places(bound):
    q, k, v = Case(m=11).qkv()
    keep = torch.arange(11) % 3 > 0
    differs(bound(q, k, v, mask=keep.expand(5, 11)), bound(q, k[:, keep], v[:, keep]))


def a_key_not_shown_cannot_be_raised(bound):
    q, k, v, unseen = hidden_by_chance(bound)
    bias = torch.zeros(5, 11, dtype=DOUBLE)
    bias[0] = 200.0 * unseen
    assert unseen.any()
    close(bound(q, k, v, bias=bias)[0, 0], bound(q, k, v)[0, 0])


def another_depth_is_another_hash(bound):
    q, k, v = Case(m=11).qkv()
    wide = [torch.nn.functional.pad(x, (0, 9)) for x in (q, k)]  # 12 numbers for 3
    differs(bound(*wide, v), bound(q, k, v, scale=12**-0.5))


def copies_push_others_out(bound):
    q, k, v = Case(m=11).qkv()
    more = [torch.cat([x, *[x[:, :1]] * 3], dim=-2) for x in (k, v)]
    bias = torch.zeros(5, 11, dtype=DOUBLE)
    bias[:, 0] = torch.tensor(4.0).log()
    differs(bound(q, *more), bound(q, k, v, bias=bias))


def a_shift_changes_buckets(bound):
    q, k, v = Case(m=11).qkv()
    differs(bound(q, k + 3, v), bound(q, k, v))


# A sink: options {}, four logits or a single 0


def weights_sum_to_less_than_one(bound):
    _, weights = bound(*Case().qkv(), return_weights=True)
    assert (weights > 0).all() and (weights.sum(-1) < 0.99).all()


def each_part_has_the_sink(bound):
    q, k, v = Case().qkv()
    parts = [bound(q, k[:, p], v[:, p], return_lse=True) for p in (slice(0, 3), slice(3, 7))]
    output, lse = merge_partials(*zip(*parts, strict=True))
    whole, whole_lse = bound(q, k, v, return_lse=True)
    differs(output, whole)
    assert (lse > whole_lse).all()


def zero_is_mixed_in(bound):
    q, k, v = Case().qkv()
    ones = torch.ones_like(v)
    assert (bound(q, k, ones) < 0.99).all()


def the_sink_keeps_its_scale(bound):
    q, k, v = Case().qkv()
    (_, one), (_, two) = (bound(q, k, v, scale=s, return_weights=True) for s in (0.4, 0.8))
    differs(torch.softmax(2 * one.log(), dim=-1), two)


def the_sink_has_no_share_of_the_root(bound):
    q, k, v = Case().qkv()
    _, narrow = bound(q, k, v, return_weights=True)
    _, wide = bound(*(torch.nn.functional.pad(x, (0, 9)) for x in (q, k)), v, return_weights=True)
    differs(torch.softmax(0.5 * narrow.log(), dim=-1), wide)


def shifted_keys_outweigh_the_sink(bound):
    q, k, v = Case().qkv()
    differs(bound(q, k + 3, v), bound(q, k, v))


def shifted_scores_outweigh_the_sink(bound):
    q, k, v = Case().qkv()
    raised = bound(q, k, v, bias=torch.full((5, 1), 40.0, dtype=DOUBLE))
    close(raised, attend(q, k, v))
    differs(raised, bound(q, k, v))


def the_sink_gives_way_to_a_bias(bound):
    q, k, v = Case().qkv()
    bias = Case(seed=3).normal(5, 7) + 1
    _, weights = bound(q, k, v, return_weights=True)
    _, raised = bound(q, k, v, bias=bias, return_weights=True)
    wanted = weights * bias.exp()
    differs(raised, wanted / wanted.sum(-1, keepdim=True))


def very_low_scores_lose_to_the_sink(bound):
    q, k, v = Case().qkv()
    low = torch.full((5, 7), -1e4, dtype=DOUBLE)
    assert (bound(q, k, v, bias=low) == 0).all()
    differs(attend(q, k, v, bias=low), torch.zeros(()).double())


def one_key_shares_with_the_sink(bound):
    q, k, v = Case(m=1).qkv()
    differs(bound(q, k, v), v.expand(2, 5, 2))


def equal_values_come_out_smaller(bound):
    wide = [x[..., :1, :].expand_as(x) for x in Case().qkv()]
    got = bound(*wide)
    differs(got, wide[2][..., :1, :].expand_as(got))
    close(got, bound(*(x.contiguous() for x in wide)))  # the layout itself does not matter


HASHED = {
    "weights": weights_of_zero,
    "convex": zeros_are_outside_of_the_values,
    "lse": parts_show_other_keys,
    "query_equivariance": order_of_queries_matters,
    "key_value_invariance": order_of_keys_matters,
    "query_independence": other_queries_matter,
    "causal": the_future_moves_the_past,
    "alignment": the_last_queries_alone_see_others,
    "mask": masked_keys_take_places,
    "bias": a_key_not_shown_cannot_be_raised,
    "default_scale": another_depth_is_another_hash,
    "key_shift": a_shift_changes_buckets,
    "proportional": copies_push_others_out,
    "extreme_logits": a_key_not_shown_cannot_be_raised,
}
SINK = {
    "weights": weights_sum_to_less_than_one,
    "lse": each_part_has_the_sink,
    "convex": zero_is_mixed_in,
    "scale": the_sink_keeps_its_scale,
    "default_scale": the_sink_has_no_share_of_the_root,
    "key_shift": shifted_keys_outweigh_the_sink,
    "score_shift": shifted_scores_outweigh_the_sink,
    "proportional": the_sink_gives_way_to_a_bias,
    "extreme_logits": very_low_scores_lose_to_the_sink,
    "small_sizes": one_key_shares_with_the_sink,
    "strides": equal_values_come_out_smaller,
}
OWN = {("hashed", slug): example for slug, example in HASHED.items()} | {
    (name, slug): example for name in ("sink", "plus_one") for slug, example in SINK.items()
}
