"""Checks of what is read from models proved: planted bugs, each caught without another library."""

import functools

import fresh
import pytest
import test_interpret_attribution
import test_interpret_capturing
import test_interpret_flow
import test_interpret_statistics
from fresh import Mutant

CAPTURE = "tfbook.interpret.capturing"
STATISTICS = "tfbook.interpret.statistics"
ROLLOUT = "tfbook.interpret.flow"
ATTRIBUTION = "tfbook.interpret.attribution"
# The file with the checks of each module, and what makes a kit of a copy.
FILES = {
    CAPTURE: (test_interpret_capturing, test_interpret_capturing.kit_of),
    STATISTICS: (test_interpret_statistics, lambda copy_of: copy_of(STATISTICS)),
    ROLLOUT: (test_interpret_flow, lambda copy_of: copy_of(ROLLOUT)),
    ATTRIBUTION: (test_interpret_attribution, test_interpret_attribution.kit_of),
}
MODULES = {
    CAPTURE: ["tfbook.attention", "tfbook.blocks", "tfbook.models", CAPTURE],
    STATISTICS: [STATISTICS],
    ROLLOUT: [ROLLOUT],
    ATTRIBUTION: ["tfbook.attention", "tfbook.blocks", "tfbook.models", ATTRIBUTION],
}

MUTANTS = [
    Mutant(
        "the first tensor is kept",
        CAPTURE,
        "                seen.pop(name, None)  # so that the order is that of the last call\n"
        "                seen[name] = kept",
        "                seen.setdefault(name, kept)",
        "test_a_tap_passed_more_than_once_keeps_the_last_or_all",
    ),
    Mutant(
        "hooks stay when one cannot be set",
        CAPTURE,
        """    with ExitStack() as hooks:
        for name, tap in watched.items():
            hooks.callback(tap.register_forward_hook(keep(name)).remove)
        yield seen""",
        """    hooks = [tap.register_forward_hook(keep(name)) for name, tap in watched.items()]
    yield seen
    for hook in hooks:
        hook.remove()""",
        "test_nothing_stays_behind",
    ),
    Mutant(
        "patches stay when one cannot be set",
        CAPTURE,
        """    with ExitStack() as hooks:
        for name, tap, change in changes:
            hooks.callback(tap.register_forward_pre_hook(put(name, change)).remove)
        yield""",
        """    hooks = []
    for name, tap, change in changes:
        hooks.append(tap.register_forward_pre_hook(put(name, change)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()""",
        "test_hooks_go_when_one_cannot_be_set",
    ),
    Mutant(
        "what is captured is not what passes on",
        CAPTURE,
        "kept = x = _with_gradient(name, x) if grad else x",
        "kept = _with_gradient(name, x) if grad else x",
        "test_a_model_whose_weights_are_fixed_has_gradients_too",
    ),
    Mutant(
        "what is captured keeps the graph",
        CAPTURE,
        "kept = x.detach() if to is None else x.detach().to(to)",
        "kept = x if to is None else x.to(to)",
        "test_captured_is_what_the_model_says_itself",
    ),
    Mutant(
        "captures see what arrives, before the patches",
        CAPTURE,
        "hooks.callback(tap.register_forward_pre_hook(put(name, change)).remove)",
        "hooks.callback(tap.register_forward_hook("
        "lambda m, a, x, h=put(name, change): h(m, (x,))[0]).remove)",
        "test_patches_follow_each_other_and_captures_see_the_last",
    ),
    Mutant(
        "layers in the order of their names",
        CAPTURE,
        "    return passed\n",
        "    return list(dict(passed).items())\n",
        "test_layers_that_share_a_tap_are_all_seen",
    ),
    Mutant(
        "the embedding is forgotten",
        CAPTURE,
        'if name.endswith("resid_pre")][:1]',
        'if name.endswith("resid_pre")][:0]',
        "test_captured_is_what_the_model_says_itself",
    ),
    Mutant(
        "cross-attention counted with self-attention",
        CAPTURE,
        '(stack or "the model") + ", cross-attention" * ("cross" in name.split("."))',
        '(stack or "the model")',
        "test_stacks_of_an_encoder_and_a_decoder_are_kept_apart",
    ),
    Mutant(
        "queries stand at the first keys",
        STATISTICS,
        "return torch.arange(m - n, m, device=self.weights.device)",
        "return torch.arange(n, device=self.weights.device)",
        "test_a_cache_sees_the_last_rows_of_the_whole",
    ),
    Mutant(
        "queries that are padding are counted",
        STATISTICS,
        "counted = counted & tokens[..., None, m - n :]",
        "counted = counted & torch.ones_like(tokens)[..., None, m - n :]",
        "test_padding_on_either_side_changes_nothing",
    ),
    Mutant(
        "rows of zeros are counted",
        STATISTICS,
        "counted, tokens = weights.detach().sum(-1) > 0, None",
        "counted, tokens = weights.detach().sum(-1) >= 0, None",
        "test_rows_of_zeros_are_not_counted",
    ),
    Mutant(
        "a query without a previous token looks at none",
        STATISTICS,
        "counted = rows.counted & (there >= 0) & (there < m)",
        "counted = rows.counted",
        "test_heads_made_up_have_the_numbers_they_were_made_for",
    ),
    Mutant(
        "padding can be the previous token",
        STATISTICS,
        "counted = counted & rows.tokens[..., None, there]",
        "counted = counted & (rows.tokens[..., None, there] >= 0)",
        "test_padding_on_either_side_changes_nothing",
    ),
    Mutant(
        "previous and next exchanged",
        STATISTICS,
        "there = rows.places + max(",
        "there = rows.places - max(",
        "test_heads_made_up_have_the_numbers_they_were_made_for",
    ),
    Mutant(
        "the first column and not the first token",
        STATISTICS,
        "return rows.tokens & (rows.tokens.cumsum(-1) == 1)",
        "return torch.arange(rows.weights.shape[-1]) == 0",
        "test_padding_on_either_side_changes_nothing",
    ),
    Mutant(
        "entropy in bits",
        STATISTICS,
        "-rows.weights.clamp(min=least).log())",
        "-rows.weights.clamp(min=least).log2())",
        "test_looking_everywhere_alike_is_known_in_closed_form",
    ),
    Mutant(
        "the gradient of 0 ln 0",
        STATISTICS,
        "found = (rows.weights * -rows.weights.clamp(min=least).log()).sum(-1)",
        "found = torch.special.entr(rows.weights).sum(-1)",
        "test_entropy_has_a_gradient_where_keys_are_hidden",
    ),
    Mutant(
        "each sequence counts alike, however short",
        STATISTICS,
        "each.over_sequences(), False",
        "_Numbers(_mean(each, False, needed=False).transpose(1, 2), torch.tensor(True)), False",
        "test_the_table_counts_every_query_of_a_batch_alike",
    ),
    Mutant(
        "rollout without renormalisation",
        ROLLOUT,
        "return kept / kept.sum(-1, keepdim=True)",
        "return kept",
        "test_twelve_layers_still_share_out_one_whole",
    ),
    Mutant(
        "later layers on the right",
        ROLLOUT,
        "found.append(step @ found[-1])",
        "found.append(found[-1] @ step)",
        "test_later_layers_stand_on_the_left",
    ),
    Mutant(
        "rollout without the residual connection",
        ROLLOUT,
        "kept = joined + torch.eye(joined.shape[-1], dtype=joined.dtype, device=joined.device)",
        "kept = joined + 1e-30",
        "test_rollout_is_the_jacobian_of_a_network_of_patterns",
    ),
    Mutant(
        "columns made to sum to 1",
        ROLLOUT,
        "return kept / kept.sum(-1, keepdim=True)",
        "return kept / kept.sum(-2, keepdim=True)",
        "test_rollout_is_the_sum_over_all_paths",
    ),
    Mutant(
        "pipes laid from the key to the wrong row",
        ROLLOUT,
        "((layer, j), (layer + 1, i), width)",
        "((layer, i), (layer + 1, j), width)",
        "test_flow_is_the_narrowest_cut",
    ),
    Mutant(
        "flow through the layers upside down",
        ROLLOUT,
        "for layer, step in enumerate(steps):",
        "for layer, step in enumerate(reversed(steps)):",
        "test_flow_is_the_best_linear_program",
    ),
    Mutant(
        "the sign is lost",
        ATTRIBUTION,
        "return {name: x * gradients[name] for name, x in seen.items()}",
        "return {name: x * gradients[name].abs() for name, x in seen.items()}",
        "test_the_sign_tells_support_from_opposition",
    ),
    Mutant(
        "the positive part of the mean",
        ATTRIBUTION,
        "return products.clamp(min=0).mean(-3)",
        "return products.mean(-3).clamp(min=0)",
        "test_relevance_is_the_mean_of_what_each_head_does_for_the_score",
    ),
    Mutant(
        "relevance with later layers on the right",
        ATTRIBUTION,
        "found = found + layer @ found",
        "found = found + found @ layer",
        "test_relevance_is_the_sum_over_the_paths_upwards",
    ),
    Mutant(
        "integrated gradients times x, not the way from the baseline",
        ATTRIBUTION,
        "values = (x - start) * total",
        "values = x * total",
        "test_a_line_owes_each_number_its_term",
    ),
    Mutant(
        "the way begins at 0 and not at the baseline",
        ATTRIBUTION,
        "point = torch.lerp(start, x, share)",
        "point = torch.lerp(torch.zeros_like(x), x, share)",
        "test_a_square_is_shared_out_by_its_integral",
    ),
    Mutant(
        "points of the interval from −1 to 1",
        ATTRIBUTION,
        "return ((points + 1) / 2).tolist()",
        "return points.tolist()",
        "test_points_of_gauss_are_exact_for_high_powers",
    ),
    Mutant(
        "weights that sum to 2",
        ATTRIBUTION,
        "(weights / 2).tolist()",
        "weights.tolist()",
        "test_a_line_owes_each_number_its_term",
    ),
    Mutant(
        "a gap that is always 0",
        ATTRIBUTION,
        "change = whole - score_of(start)",
        "change = values.flatten(1).sum(1) if whole.ndim else values.sum()",
        "test_points_of_gauss_are_exact_for_high_powers",
    ),
    Mutant(
        "shuffled in place",
        ATTRIBUTION,
        "other = copy.deepcopy(model)",
        "other = model",
        "test_a_shuffled_copy_has_the_same_numbers_elsewhere",
    ),
    Mutant(
        "equal numbers get ranks as they come",
        ATTRIBUTION,
        "ranks = (many.cumsum(0) - (many - 1).double() / 2)[kind]",
        "ranks = values.argsort().argsort().double()",
        "test_rank_correlation_is_that_of_scipy",
    ),
]


def copied(package, module, edits=None):
    """Return the checks of a module, and a kit of copies for them."""
    file, kit_of = FILES[module]
    fresh.copies(package, MODULES[module], edits)
    return file.CHECKS, kit_of(functools.partial(fresh.copy_of, package))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    checks, kit = copied("sick_tfbook", mutant.module, mutant.edits)
    with pytest.raises((AssertionError, ValueError, RuntimeError, pytest.fail.Exception)):
        checks[mutant.caught_by](kit)


@pytest.mark.parametrize("module", FILES)
def test_the_copies_without_a_bug_pass(module):
    checks, kit = copied("healthy_tfbook", module)
    for name in {mutant.caught_by for mutant in MUTANTS if mutant.module == module}:
        checks[name](kit)
