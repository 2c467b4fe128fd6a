"""The property suite proved: planted bugs, each caught by a property other than parity."""

import fresh
import pytest
from attention_properties import CHECKS, Bound
from fresh import Mutant
from torch.autograd.gradcheck import GradcheckError

SCORE = (
    "    scores = masked_scores(q, k, mask=mask, bias=bias, causal=causal, scale=scale)"
    "  # (..., n, m)\n"
)
SOFTMAX = (
    "    weights = masked_softmax(scores)  # (..., n, m), each row sums to 1 or is all zeros\n"
)
MIX = "    output = mix(weights, v)  # (..., n, d_v)\n"
MUTANTS = [
    Mutant(
        "mask inverted",
        "tfbook.attention.scores",
        "scores.masked_fill(~mask, -torch.inf)",
        "scores.masked_fill(mask, -torch.inf)",
        "test_masking_keys_equals_removing_them",
    ),
    Mutant(
        "masked scores set to 0 in place of minus infinity",
        "tfbook.attention.scores",
        "scores.masked_fill(~mask, -torch.inf)",
        "scores.masked_fill(~mask, 0.0)",
        "test_masked_keys_have_weight_zero",
    ),
    Mutant(
        "mask applied after the softmax",
        "tfbook.attention.exact",
        SCORE + SOFTMAX,
        SCORE.replace("mask=mask, ", "")
        + "    weights = torch.softmax(scores, -1) * (restrict(scores, mask=mask) > -torch.inf)\n",
        "test_weights_are_not_negative_and_sum_to_one",
    ),
    Mutant(
        "scale missing",
        "tfbook.attention.scores",
        "scale = max(q.shape[-1], 1) ** -0.5",
        "scale = 1.0",
        "test_empty_features_shrink_the_scores_by_the_root_of_the_size",
    ),
    Mutant(
        "scale from the number of queries",
        "tfbook.attention.scores",
        "scale = max(q.shape[-1], 1) ** -0.5",
        "scale = q.shape[-2] ** -0.5",
        "test_a_query_alone_gets_the_same_output",
    ),
    Mutant(
        "scale given by the caller ignored",
        "tfbook.attention.scores",
        "    if scale is None:\n        scale =",
        "    if True:\n        scale =",
        "test_a_scale_raises_the_weights_to_its_power",
    ),
    Mutant(
        "softmax over the queries",
        "tfbook.attention.scores",
        "torch.softmax(scores, dim=-1)",
        "torch.softmax(scores, dim=-2)",
        "test_equal_values_come_out_unchanged",
    ),
    Mutant(
        "largest score not subtracted",
        "tfbook.attention.scores",
        "torch.softmax(scores, dim=-1)",
        "(scores.exp() / scores.exp().sum(-1, keepdim=True))",
        "test_extreme_scores_pick_the_best_key",
    ),
    Mutant(
        "causal hides the present",
        "tfbook.attention.masks",
        "key <= query + (m - n)",
        "key < query + (m - n)",
        "test_the_newest_visible_key_is_in_reach",
    ),
    Mutant(
        "causal shows the next key",
        "tfbook.attention.masks",
        "key <= query + (m - n)",
        "key <= query + (m - n) + 1",
        "test_future_keys_do_not_change_past_outputs",
    ),
    Mutant(
        "causal aligned to the first key",
        "tfbook.attention.masks",
        "key <= query + (m - n)",
        "key <= query",
        "test_the_last_query_sees_every_key",
    ),
    Mutant(
        "softmax of nothing left as NaN",
        "tfbook.attention.scores",
        "return scores.masked_fill(empty, 0.0), empty",
        "return scores, empty & False",
        "test_a_query_without_keys_gives_zeros_and_zero_gradient",
    ),
    Mutant(
        "softmax of nothing zero in value but NaN in gradient",
        "tfbook.attention.scores",
        "return scores.masked_fill(empty, 0.0), empty",
        "return scores, empty",
        "test_all_queries_without_keys_give_zeros_and_zero_gradient",
    ),
    Mutant(
        "values in another order than the keys",
        "tfbook.attention.exact",
        SOFTMAX + MIX,
        SOFTMAX + MIX.replace(" v)", " v.flip(-2))"),
        "test_a_large_bias_picks_its_key",
    ),
    Mutant(
        "bias subtracted",
        "tfbook.attention.scores",
        "scores = scores + bias",
        "scores = scores - bias",
        "test_a_bias_multiplies_a_weight_by_its_exponential",
    ),
    Mutant(
        "half precision not widened",
        "tfbook.attention.scores",
        "return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x",
        "return x",
        "test_half_precision_stays_finite_at_large_scores",
    ),
    Mutant(
        "queries that share keys put together in the order 0 1 0 1",
        "tfbook.attention.exact",
        "q, mask = q.flatten(-4, -3), _join(mask, batch[-2:])",
        "q, mask = q.transpose(-4, -3).flatten(-4, -3), _join(mask, batch[-2:])",
        "test_queries_that_share_keys_equal_keys_written_out",
        "sdpa",
    ),
    Mutant(
        "the mask of one query for all that share its keys",
        "tfbook.attention.exact",
        "mask = mask.squeeze(-2) if mask is not None and mask.ndim > 2 else mask",
        "mask = mask[..., :1, 0, :] if mask is not None and mask.ndim > 2 else mask",
        "test_queries_that_share_keys_equal_keys_written_out",
        "sdpa",
    ),
    Mutant(
        "rows that share keys come back in another order",
        "tfbook.attention.scores",
        ".unflatten(-2, a.shape[-3:-1])",
        ".unflatten(-2, a.shape[-3:-1][::-1]).transpose(-3, -2)",
        "test_queries_that_share_keys_equal_keys_written_out",
    ),
    Mutant(
        "running output not brought to the new maximum",
        "tfbook.attention.tiled",
        "mixed.mul_(shrink).addmm_",
        "mixed.addmm_",
        "test_permuting_keys_with_their_values_changes_nothing",
        "online",
    ),
    Mutant(
        "running sum not brought to the new maximum",
        "tfbook.attention.tiled",
        "total.mul_(shrink).add_",
        "total.add_",
        "test_equal_values_come_out_unchanged",
        "online",
    ),
    Mutant(
        "one key too few in a causal tile",
        "tfbook.attention.tiled",
        "max(0, min(m, b + m - n)) if self.how.causal",
        "max(0, min(m, b + m - n - 1)) if self.how.causal",
        "test_the_newest_visible_key_is_in_reach",
        "rows",
    ),
    Mutant(
        "rows without keys left as NaN",
        "tfbook.attention.tiled",
        "output.masked_fill_((lse == -torch.inf)[..., None], 0.0)",
        "pass",
        "test_a_query_without_keys_gives_zeros_and_zero_gradient",
        "rows",
    ),
    Mutant(
        "normalisation left out of the gradient",
        "tfbook.attention.tiled",
        "d_scores.sub_(delta[at][a:b, None]).mul_(weights)",
        "d_scores.mul_(weights)",
        "test_gradients_agree_with_finite_differences",
        "rows",
    ),
    Mutant(
        "gradient of the log-sum-exp dropped",
        "tfbook.attention.tiled",
        "(d_output * output).sum(-1) - d_lse",
        "(d_output * output).sum(-1)",
        "test_two_parts_of_the_keys_merge_into_the_whole",
        "online",
    ),
    Mutant(
        "gradient of a broadcast bias not summed over tiles",
        "tfbook.attention.tiled",
        "place.add_(tile.sum_to_size(place.shape))",
        "place.copy_(tile.sum_to_size(place.shape))",
        "test_the_gradient_of_a_broadcast_bias_is_summed",
        "online",
    ),
]


@pytest.fixture(scope="module")
def healthy():
    return fresh.attention("healthy_tfbook").VARIANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.variant}-{m.bug}".replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant, healthy):
    check = CHECKS[mutant.caught_by]
    sick = fresh.attention("sick_tfbook", mutant.edits).VARIANTS
    variant = healthy[mutant.variant]
    check(Bound(variant.fn, variant))  # what is caught is the bug, not the copy
    with pytest.raises((AssertionError, GradcheckError)):
        check(Bound(sick[mutant.variant].fn, variant))


def test_no_bug_needs_a_comparison_with_another_implementation():
    assert len(MUTANTS) >= 10
    assert not any(CHECKS[mutant.caught_by].property == "exact" for mutant in MUTANTS)
