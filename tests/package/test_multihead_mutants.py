"""The checks of multi-head and latent attention proved by planted bugs, each caught by one."""

import fresh
import pytest
from fresh import Mutant
from multihead_properties import CHECKS, LATENT, PARITY, Kit
from torch.autograd.gradcheck import GradcheckError

ALL = CHECKS | LATENT


MUTANTS = [
    Mutant(
        "keys not normalised",
        "tfbook.attention.multihead",
        "k = self.k(k if self.k_norm is None else self.k_norm(k))",
        "k = self.k(k)",
        "test_with_norms_the_lengths_of_queries_and_keys_do_not_matter",
    ),
    Mutant(
        "queries normalised with the norm of the keys",
        "tfbook.attention.multihead",
        "self.q_norm(q))",
        "self.k_norm(q))",
        "test_with_norms_the_lengths_of_queries_and_keys_do_not_matter",
    ),
    Mutant(
        "keys normalised after they were rotated",
        "tfbook.attention.multihead",
        "q, k = part.rotate(q, own), part.rotate(k, own)",
        "q, k = part.rotate(q, own), self.k_norm(part.rotate(k / self.k_norm.weight, own))",
        "test_each_head_has_a_norm_of_its_own_before_it_is_rotated",
    ),
    Mutant(
        "a pruned module forgets its norms",
        "tfbook.attention.multihead",
        'scale dropout window qk_norm".split()',
        'scale dropout window".split()',
        "test_norms_of_queries_and_keys_stay_through_state_pruning_and_memory",
    ),
    Mutant(
        "heads interleaved instead of stacked",
        "tfbook.attention.heads",
        "x.view(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).transpose(-2, -3)",
        "x.view(*x.shape[:-1], x.shape[-1] // n_heads, n_heads).movedim(-1, -3)",
        "test_splitting_cuts_features_and_merging_undoes_it",
    ),
    Mutant(
        "heads not brought back behind the rows",
        "tfbook.attention.heads",
        "return x.transpose(-2, -3).flatten(-2)",
        "return x.reshape(*x.shape[:-3], x.shape[-2], -1)",
        "test_later_rows_do_not_change_earlier_outputs",
    ),
    Mutant(
        "one causal mask too many: queries of cross-attention see the first keys only",
        "tfbook.attention.multihead",
        '"causal": self.causal',
        '"causal": True',
        "test_a_memory_is_a_set_and_is_remembered_once",
    ),
    Mutant(
        "causal forgotten",
        "tfbook.attention.multihead",
        '"causal": self.causal',
        '"causal": False',
        "test_later_rows_do_not_change_earlier_outputs",
    ),
    Mutant(
        "keys of the groups in the order 0 1 0 1",
        "tfbook.attention.heads",
        "x.view(*lead, n_groups, n_heads // n_groups, n, d)",
        "x.view(*lead, n_heads // n_groups, n_groups, n, d).transpose(-4, -3)",
        "test_shared_keys_and_values_equal_repeated_ones",
    ),
    Mutant(
        "heads of a folded group come back in another order",
        "tfbook.attention.exact",
        "q, k, v = q.squeeze(-2), k.squeeze(-3), v.squeeze(-3)",
        "q, k, v = q.squeeze(-2).flip(-2), k.squeeze(-3), v.squeeze(-3)",
        "test_any_way_to_cut_a_sequence_gives_the_whole",
    ),
    Mutant(
        "masks of the heads not folded with their queries",
        "tfbook.attention.exact",
        "mask = mask.squeeze(-2) if mask is not None and mask.ndim > 2 else mask",
        "mask = mask if mask is None else mask[..., :1, :, :].squeeze(-2)",
        "test_each_head_can_have_its_own_mask",
    ),
    Mutant(
        "positions start again with every piece",
        "tfbook.attention.multihead",
        "own = places_for(part, seen, seen + n, x.device)",
        "own = places_for(part, 0, n, x.device)",
        "test_any_way_to_cut_a_sequence_gives_the_whole",
    ),
    Mutant(
        "positions counted from the first key held",
        "tfbook.attention.multihead",
        "own = places_for(part, seen, seen + n, x.device)",
        "own = places_for(part, past, past + n, x.device)",
        "test_dropping_old_keys_from_a_state_equals_masking_them",
    ),
    Mutant(
        "only the queries are rotated",
        "tfbook.attention.multihead",
        "part.rotate(q, own), part.rotate(k, own)",
        "part.rotate(q, own), k",
        "test_padding_in_front_is_remembered_by_the_state",
    ),
    Mutant(
        "new keys in front of the old ones",
        "tfbook.attention.states",
        "torch.cat([self.k, k], dim=-2)",
        "torch.cat([k, self.k], dim=-2)",
        "test_any_way_to_cut_a_sequence_gives_the_whole",
    ),
    Mutant(
        "the state counts one position too few",
        "tfbook.attention.states",
        "self.seen + k.shape[-2] - self.length)",
        "self.seen + k.shape[-2] - self.length - 1)",
        "test_any_way_to_cut_a_sequence_gives_the_whole",
    ),
    Mutant(
        "the state is changed in place",
        "tfbook.attention.states",
        "        return KVState(k, v, joined, self.seen + k.shape[-2] - self.length)\n",
        "        seen = self.seen + k.shape[-2] - self.length\n"
        "        for name, value in (('k', k), ('v', v), ('mask', joined), ('seen', seen)):\n"
        "            object.__setattr__(self, name, value)\n"
        "        return self\n",
        "test_an_old_state_stays_valid_and_can_be_continued_twice",
    ),
    Mutant(
        "the keys in the state have no gradient",
        "tfbook.attention.states",
        "torch.cat([self.k, k], dim=-2)",
        "torch.cat([self.k.detach(), k], dim=-2)",
        "test_gradients_go_through_the_state",
    ),
    Mutant(
        "padding of earlier pieces forgotten",
        "tfbook.attention.states",
        "for side, size in sides",
        "for side, size in ((None, length), sides[1])",
        "test_padding_in_front_is_remembered_by_the_state",
    ),
    Mutant(
        "what is not said to be visible is hidden",
        "tfbook.attention.states",
        "rows.new_ones((rows.shape[0]",
        "rows.new_zeros((rows.shape[0]",
        "test_padding_in_front_is_remembered_by_the_state",
    ),
    Mutant(
        "a mask of the new keys hides the old ones",
        "tfbook.attention.states",
        "(past, 0), value=True",
        "(past, 0), value=False",
        "test_a_mask_of_all_keys_and_one_of_the_new_keys_say_the_same",
    ),
    Mutant(
        "a mask of three dimensions taken for one of heads",
        "tfbook.attention.states",
        "mask = mask.unsqueeze(1)",
        "mask = mask.unsqueeze(0).expand(batch, -1, -1, -1).repeat(1, n_heads, 1, 1)[:, :n_heads]",
        "test_three_dimensions_of_a_mask_are_batch_queries_keys",
    ),
    Mutant(
        "the mask of the memory forgotten",
        "tfbook.attention.multihead",
        "mask = combine_masks(state.mask, mask)",
        "mask = mask if self.is_cross else combine_masks(state.mask, mask)",
        "test_padding_of_a_memory_does_not_change_the_result",
    ),
    Mutant(
        "sequences picked out of a state without their mask",
        "tfbook.attention.states",
        "mask = None if self.mask is None else self.mask[rows]",
        "mask = self.mask[:1].expand(len(rows), -1, -1, -1)",
        "test_sequences_can_be_picked_out_of_a_state",
    ),
    Mutant(
        "a scale of 1 forgotten for a position that is not scaled",
        "tfbook.attention.multihead",
        "            scale = 1.0\n",
        "            scale = None\n",
        "test_an_unscaled_position_leaves_the_scores_as_they_are",
    ),
    Mutant(
        "the scale multiplied with the usual one",
        "tfbook.attention.multihead",
        "scale = self.scale\n",
        "scale = self.scale and self.scale * self.d_head**-0.5\n",
        "test_a_scale_multiplies_the_scores",
    ),
    Mutant(
        "values made from the rows of the keys",
        "tfbook.attention.multihead",
        "self.v_proj(for_values)",
        "self.v_proj(for_values if for_values.shape != for_keys.shape else for_keys.flip(1))",
        "test_without_positions_and_causal_order_is_lost",
    ),
    Mutant(
        "terms of the heads taken from the wrong blocks of the output projection",
        "tfbook.attention.multihead",
        "split_heads(self.out_proj.weight, self.n_heads).mT",
        "split_heads(self.out_proj.weight, self.n_heads).flip(0).mT",
        "test_the_heads_sum_to_the_output",
    ),
    Mutant(
        "head mask applied to the rows",
        "tfbook.attention.multihead",
        "head_mask.to(z.dtype)[:, None, None]",
        "head_mask.to(z.dtype).mean()",
        "test_masked_heads_get_no_gradient",
    ),
    Mutant(
        "pruning takes the first heads",
        "tfbook.attention.head_surgery",
        "kept[name] = pick_rows(value.T, n_heads, keep).T",
        "kept[name] = pick_rows(value.T, n_heads, range(len(keep))).T",
        "test_pruning_equals_masking_heads",
    ),
    Mutant(
        "pruning keeps the key-value heads of the same numbers",
        "tfbook.attention.head_surgery",
        "used = [head * n_kv_heads // n_heads for head in keep]",
        "used = [head % n_kv_heads for head in keep]",
        "test_pruning_equals_masking_heads",
    ),
    Mutant(
        "pruning makes one key-value head for each query head",
        "tfbook.attention.head_surgery",
        "return used[:: math.gcd(*(used.count(head) for head in used))]",
        "return used",
        "test_pruning_drops_what_nobody_uses",
    ),
    Mutant(
        "pruning shares its weights with the original",
        "tfbook.attention.head_surgery",
        "value.detach().clone() for name",
        "value.detach() for name",
        "test_pruning_leaves_the_original_alone",
    ),
    Mutant(
        "a position of all heads asked for the wrong ones after pruning",
        "tfbook.attention.head_surgery",
        "bias[..., self.keep, :, :]",
        "bias[..., : len(self.keep), :, :]",
        "test_pruning_equals_masking_heads",
    ),
    Mutant(
        "the tap z stands behind nothing",
        "tfbook.attention.multihead",
        "z = self.z(self._attend(q, state.k, state.v, **given))  # (B, H, N, d_value)\n"
        "        if head_mask",
        "z = self._attend(q, state.k, state.v, **given)  # (B, H, N, d_value)\n"
        "        if head_mask",
        "test_a_hook_on_a_tap_replaces_what_passes",
    ),
    Mutant(
        "the weights are those without the mask of the state",
        "tfbook.attention.multihead",
        "return self._attend_explicit(q, state.k, state.v, **given)[1]",
        'return self._attend_explicit(q, state.k, state.v, **given | {"mask": None})[1]',
        "test_each_head_can_have_its_own_mask",
    ),
    Mutant(
        "a hook on the pattern ignored",
        "tfbook.attention.multihead",
        "if drops or self.scores.watched or self.pattern.watched:",
        "if drops or self.scores.watched:",
        "test_a_patched_pattern_mixes_the_values",
    ),
    Mutant(
        "a hook on the scores ignored",
        "tfbook.attention.multihead",
        "if drops or self.scores.watched or self.pattern.watched:",
        "if drops or self.pattern.watched:",
        "test_patched_scores_give_their_softmax",
    ),
    Mutant(
        "what a hook makes of the pattern ignored",
        "tfbook.attention.explicit",
        "    weights = pattern(weights)  #",
        "    pattern(weights)  #",
        "test_a_patched_pattern_mixes_the_values",
    ),
    Mutant(
        "what a hook makes of the scores ignored",
        "tfbook.attention.explicit",
        "        formed = scores(form(q, k, **options).flatten(1, -3))",
        "        formed = form(q, k, **options).flatten(1, -3)\n        scores(formed)",
        "test_patched_scores_give_their_softmax",
    ),
    Mutant(
        "the pattern shown after dropout",
        "tfbook.attention.explicit",
        "    weights = pattern(weights)  #",
        "    weights = pattern(functional.dropout(weights, dropout))  #",
        "test_the_pattern_is_shown_before_dropout",
    ),
    Mutant(
        "weights formed whether anybody looks or not",
        "tfbook.attention.multihead",
        "if drops or self.scores.watched or self.pattern.watched:",
        "if True:",
        "test_scores_are_formed_only_while_somebody_looks",
    ),
    Mutant(
        "keys written out for every query head",
        "tfbook.attention.exact",
        "k, v = k.squeeze(-3), v.squeeze(-3)  #",
        "everything = (x.expand(*batch, *x.shape[-2:]) for x in (k, v))\n"
        "        k, v = (x.flatten(-4, -3) for x in everything)  #",
        "test_keys_are_not_written_out_for_the_heads_that_share_them",
    ),
    Mutant(
        "a mask for each head given to the first of a group only",
        "tfbook.attention.exact",
        "*groups, *mask.shape[-2:]).flatten(-4, -3)",
        "*groups, *mask.shape[-2:]).transpose(-4, -3).flatten(-4, -3)",
        "test_each_head_can_have_its_own_mask",
    ),
    Mutant(
        "shared rows come back in another order",
        "tfbook.attention.scores",
        ".unflatten(-2, a.shape[-3:-1])",
        ".unflatten(-2, a.shape[-3:-1][::-1]).transpose(-3, -2)",
        "test_a_pattern_can_be_read_wherever_attention_is_exact",
    ),
    Mutant(
        "a hook on the latents' pattern ignored",
        "tfbook.attention.latent",
        "if self.scores.watched or self.pattern.watched:",
        "if self.scores.watched:",
        "test_patterns_among_latents_can_be_read_and_patched",
    ),
    Mutant(
        "the queries are moved to the latents by the wrong heads",
        "tfbook.attention.latent",
        "torch.cat([q @ w_k, q_rope], dim=-1)",
        "torch.cat([q @ w_k.flip(0), q_rope], dim=-1)",
        "test_both_forms_give_the_same",
    ),
    Mutant(
        "the absorbed form scales by its own width",
        "tfbook.attention.latent",
        "found = self.attend(q, k, v, **given)",
        'found = self.attend(q, k, v, **given | ({"scale": None} if absorbed else {}))',
        "test_both_forms_give_the_same",
    ),
    Mutant(
        "the latents' positions start again with every piece",
        "tfbook.attention.latent",
        "places_for(self.position, seen, seen + n, x.device)",
        "places_for(self.position, 0, n, x.device)",
        "test_latents_can_be_cut_anywhere",
    ),
    Mutant(
        "the latent is kept before its norm",
        "tfbook.attention.latent",
        "latent = self.kv_norm(self.kv_down(x))",
        "latent = self.kv_down(x) if n > 1 else self.kv_norm(self.kv_down(x))",
        "test_latents_can_be_cut_anywhere",
    ),
    Mutant(
        "keys rotated after they are kept",
        "tfbook.attention.latent",
        "k_rope = self.position.rotate(self.k_rope_proj(x), own)",
        "k_rope = self.k_rope_proj(x)",
        "test_latent_padding_in_front_is_remembered",
    ),
    Mutant(
        "latent attention forgets causal",
        "tfbook.attention.latent",
        '"causal": self.causal, "scale"',
        '"causal": False, "scale"',
        "test_latent_attention_is_causal",
    ),
    Mutant(
        "the dearer form is taken",
        "tfbook.attention.latent",
        "return absorbed < naive",
        "return absorbed > naive",
        "test_the_form_with_fewer_operations_is_taken",
    ),
]


def kit_of(package, edits=None):
    fresh.copies(package, Kit.MODULES, edits)
    return Kit(*(fresh.copy_of(package, name) for name in Kit.MODULES))


@pytest.fixture(scope="module")
def healthy():
    return kit_of("healthy_multihead")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant, healthy):
    check = ALL[mutant.caught_by]
    sick = kit_of("sick_multihead", mutant.edits)
    check(healthy)  # what is caught is the bug, not the copy
    with pytest.raises((AssertionError, GradcheckError)):
        check(sick)


def test_no_bug_needs_a_comparison_with_another_implementation():
    assert len(MUTANTS) >= 20
    assert not PARITY & {mutant.caught_by for mutant in MUTANTS}
