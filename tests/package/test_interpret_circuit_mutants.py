"""The checks of lens, ablation, patching and circuits proved by planted bugs."""

import fresh
import pytest
import test_interpret_ablation
import test_interpret_circuits
import test_interpret_lens
import test_interpret_patching
from fresh import Mutant

CHECKS = (
    test_interpret_lens.CHECKS
    | test_interpret_ablation.CHECKS
    | test_interpret_patching.CHECKS
    | test_interpret_circuits.CHECKS
)
LENS, ABLATION, PATCHING, CIRCUITS = (
    f"tfbook.interpret.{name}" for name in ("lens", "ablation", "patching", "circuits")
)
MUTANTS = [
    Mutant(
        "the head reads without the last norm",
        LENS,
        "    return model.head(model.stack.finish(x), model.embed.weight)\n",
        "    return model.head(x, model.embed.weight)\n",
        "test_the_last_entry_is_what_the_model_says",
    ),
    Mutant(
        "the divergence the wrong way round",
        LENS,
        "functional.kl_div(q, p, log_target",
        "functional.kl_div(p, q, log_target",
        "test_the_divergence_is_its_sum",
    ),
    Mutant(
        "a lens taught by its own word",
        LENS,
        "loss = _divergence(last, read.float().log_softmax(-1)).mean()",
        "loss = _divergence(read.float().log_softmax(-1), last).mean()",
        "test_the_step_is_that_of_the_divergence",
    ),
    Mutant(
        "each part normalised by itself",
        LENS,
        "        read = read - read.mean(-1, keepdim=True)  # as a mean is taken off each part\n",
        "        read = read * 1\n",
        "test_parts_sum_to_the_logit",
    ),
    Mutant(
        "the bias of the output left out",
        LENS,
        "bias = residual.leave(bias, bias + mixer.out_proj.bias)",
        "bias = residual.leave(bias, bias)",
        "test_parts_sum_to_the_logit",
    ),
    Mutant(
        "heads without the factor of the connection",
        LENS,
        "added = residual.leave(torch.zeros_like(each), each)",
        "added = each",
        "test_a_part_is_what_the_frozen_norm_makes_of_it",
    ),
    Mutant(
        "a mean over rows alone",
        ABLATION,
        "found.mean((0, -2), keepdim=True)",
        "found.mean(0, keepdim=True)[..., : x.shape[-2], :]",
        "test_the_mean_is_that_of_the_reference",
    ),
    Mutant(
        "a row resampled from itself",
        ABLATION,
        "+ self.shift) % len(found)",
        "+ 0) % len(found)",
        "test_resampling_takes_another_row_and_no_other_head",
    ),
    Mutant(
        "all heads of the layer go",
        ABLATION,
        "new[:, heads[layer]] = put(names[layer], z)[:, heads[layer]]",
        "new[:] = put(names[layer], z)",
        "test_resampling_takes_another_row_and_no_other_head",
    ),
    Mutant(
        "slopes of rows that cancel",
        ABLATION,
        "torch.stack([each.abs().mean(0) for each in gates])",
        "torch.stack([each.mean(0).abs() for each in gates])",
        "test_importance_of_rows_does_not_cancel",
    ),
    Mutant(
        "a layer without heads gives nothing",
        ABLATION,
        "return (y if self.bias is None else y + self.bias), state",
        "return y, state",
        "test_a_pruned_model_is_one_with_heads_at_zero",
    ),
    Mutant(
        "a pruned model stays pruned",
        ABLATION,
        "            blocks[layer].mixer = mixer\n",
        "            pass\n",
        "test_a_model_is_afterwards_what_it_was",
    ),
    Mutant(
        "a site is its whole tap",
        PATCHING,
        "                new[where] = source[tap][where]\n",
        "                new[:] = source[tap]\n",
        "test_patching_finds_the_circuit_of_induction",
    ),
    Mutant(
        "a share of the wrong difference",
        PATCHING,
        "found.append(sign * (after - start) / (good - bad))",
        "found.append(sign * (after - start) / good)",
        "test_what_carries_everything_has_share_one",
    ),
    Mutant(
        "noise from the clean run",
        PATCHING,
        "else (clean, sources[1])",
        "else (clean, sources[0])",
        "test_both_directions_are_one_another_with_prompts_exchanged",
    ),
    Mutant(
        "heads between them are free",
        PATCHING,
        "with kept.held(), patched(model, held), capture",
        "with kept.held(), patched(model, {s.tap: held[s.tap] for s in group}), capture",
        "test_a_path_is_the_stream_put_together_by_hand",
    ),
    Mutant(
        "feed-forward parts between them are free",
        PATCHING,
        "() if through_ffn else model.stack.blocks)",
        "())",
        "test_feed_forward_parts_pass_it_on_where_they_may",
    ),
    Mutant(
        "receivers never hear of it",
        PATCHING,
        "            with patch_sites(model, receivers, told):\n",
        "            with kept.held(), patched(model, held):\n",
        "test_a_path_is_the_stream_put_together_by_hand",
    ),
    Mutant(
        "the copy itself, not what followed it",
        CIRCUITS,
        "after[..., 1:] = same[..., :-1]",
        "after[...] = same",
        "test_the_model_by_hand_is_an_induction_circuit",
    ),
    Mutant(
        "queries without a copy count too",
        CIRCUITS,
        "    queries = asked.any(-1)\n",
        "    queries = torch.ones_like(asked.any(-1))\n",
        "test_scores_are_loops_over_tokens",
    ),
    Mutant(
        "a group's first key-value head for all",
        CIRCUITS,
        "    k = mixer.k_proj.weight.unflatten(0, (mixer.n_kv_heads, -1))[group].mT\n",
        "    k = mixer.k_proj.weight.unflatten(0, (mixer.n_kv_heads, -1))[0].mT\n",
        "test_qk_circuits_are_the_scores",
    ),
    Mutant(
        "the mean stays in",
        CIRCUITS,
        "return matrix if isinstance(norm, RMSNorm) else matrix - matrix.mean(0)",
        "return matrix",
        "test_a_norm_folded_in_is_the_norm_up_to_a_factor",
    ),
    Mutant(
        "sizes of eigenvalues, not their signs",
        CIRCUITS,
        "float(values.real.sum()) / size",
        "float(values.real.abs().sum()) / size",
        "test_what_suppresses_has_the_opposite_score",
    ),
    Mutant(
        "keys composed as queries",
        CIRCUITS,
        '(left, right.mT) if kind == "q" else (right, left.mT)',
        "(left, right.mT)",
        "test_composition_is_the_norm_of_the_whole_product",
    ),
    Mutant(
        "place 0 counts as its own copy",
        CIRCUITS,
        "    second.k_proj.weight[v, place] = -2 ",
        "    second.k_proj.weight[v, place] = 0 ",
        "test_the_model_by_hand_continues_what_it_has_read",
    ),
]
CAUGHT = (AssertionError, IndexError, KeyError, RuntimeError, ValueError, pytest.fail.Exception)


def kit_of(package, edits=None):
    names = [module.__name__ for module in test_interpret_lens.MODULES.values()]
    fresh.copies(package, names, edits)
    copied = {
        name: fresh.copy_of(package, module.__name__)
        for name, module in test_interpret_lens.MODULES.items()
    }
    return test_interpret_lens.kit_of(**copied)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    with pytest.raises(CAUGHT):
        CHECKS[mutant.caught_by](kit_of("sick_tfbook", mutant.edits))


def test_the_copy_without_a_bug_passes():
    healthy = kit_of("healthy_tfbook")
    for name in {mutant.caught_by for mutant in MUTANTS}:
        CHECKS[name](healthy)
