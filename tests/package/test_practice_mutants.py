"""Checks of the room `practice` proved: planted bugs, each caught without another library."""

import functools

import fresh
import practice_kit
import pytest
import test_practice_adapters
import test_practice_debugging
import test_practice_finetuning
import test_practice_preference
from fresh import Mutant

FREEZING, LORA = "tfbook.practice.freezing", "tfbook.practice.lora"
ADAPTERS, FINETUNING = "tfbook.practice.adapters", "tfbook.practice.finetuning"
READING = "tfbook.practice.reading"
PREFERENCE, VERIFIABLE = "tfbook.practice.preference", "tfbook.practice.verifiable"
ASKING, EVALUATION = "tfbook.practice.asking", "tfbook.practice.evaluation"
DEBUGGING, FAULTS = "tfbook.practice.debugging", "tfbook.practice.training_faults"

MUTANTS = [
    Mutant(
        "a rate that grows towards the input",
        FREEZING,
        "decay ** (n_layers + 1 - depth)",
        "decay**depth",
        "test_rates_fall_layer_by_layer_towards_the_input",
    ),
    Mutant(
        "what stands behind the blocks moves like the embeddings",
        FREEZING,
        "(n_layers + 1 if behind else 0)",
        "0",
        "test_rates_fall_layer_by_layer_towards_the_input",
    ),
    Mutant(
        "frozen weights in the groups",
        FREEZING,
        "        if weight.requires_grad:\n            groups",
        "        if True:\n            groups",
        "test_rates_fall_layer_by_layer_towards_the_input",
    ),
    Mutant(
        "a factor of alpha alone",
        LORA,
        "return self.alpha / self.rank",
        "return self.alpha",
        "test_lora_is_its_formula",
    ),
    Mutant(
        "the base gets a gradient",
        LORA,
        "        freeze(base)\n        dense",
        "        dense",
        "test_lora_is_its_formula",
    ),
    Mutant(
        "the rest of the model is trained",
        LORA,
        "    freeze(model)\n    for name, adapter",
        "    for name, adapter",
        "test_a_fresh_adapter_changes_nothing_and_the_base_gets_no_gradient",
    ),
    Mutant(
        "lengths of columns",
        LORA,
        "lengths = v.norm(dim=1).clamp",
        "lengths = v.norm(dim=1).mean().clamp",
        "test_dora_is_its_formula",
    ),
    Mutant(
        "a gradient through the lengths",
        LORA,
        """        with torch.no_grad():
            v = dense_weight""",
        """        if True:
            v = dense_weight""",
        "test_no_gradient_passes_the_lengths_of_dora",
    ),
    Mutant(
        "the bias is stretched",
        LORA,
        "plain = y if self.bias is None else y - self.bias  #",
        "plain = y  #",
        "test_dora_is_its_formula",
    ),
    Mutant(
        "merged without the adapter",
        LORA,
        "self.merged = self.weight.detach().clone()",
        "self.merged = dense_weight(self.base).detach().clone()",
        "test_merged_unmerged_and_baked_are_equal",
    ),
    Mutant(
        "merged and added once more",
        LORA,
        "            return functional.linear(x, self.merged, self.bias)\n",
        "            y = functional.linear(functional.linear(x, self.lora_a), self.lora_b)\n"
        "            return self.scale * y + functional.linear(x, self.merged, self.bias)\n",
        "test_merged_unmerged_and_baked_are_equal",
    ),
    Mutant(
        "dropout on both paths",
        LORA,
        "        y = self.base(x)  #",
        "        x = functional.dropout(x, self.p, self.training)\n        y = self.base(x)  #",
        "test_dropout_is_on_the_thin_path_alone_and_only_in_training",
    ),
    Mutant(
        "dropout without an end",
        LORA,
        "functional.dropout(x, self.p, self.training)",
        "functional.dropout(x, self.p, True)",
        "test_dropout_is_on_the_thin_path_alone_and_only_in_training",
    ),
    Mutant(
        "one place of a shared layer",
        LORA,
        "for name, child in list(part._modules.items()):",
        "for name, child in list(part.named_children()):",
        "test_a_layer_that_is_shared_gets_one_adapter",
    ),
    Mutant(
        "a bottleneck without its residual",
        ADAPTERS,
        "return h + self.up(",
        "return self.up(",
        "test_a_bottleneck_is_its_formula",
    ),
    Mutant(
        "positions that do not count the prefix",
        ADAPTERS,
        "return ModelState(tuple(layers), self.length)",
        "return ModelState(tuple(layers), 0)",
        "test_a_prefix_of_a_text_does_what_the_text_does",
    ),
    Mutant(
        "a prefix before every piece",
        ADAPTERS,
        "state = self.prefix.state(len(tokens)) if state is None else state",
        "state = self.prefix.state(len(tokens))",
        "test_a_prefix_is_continued_piece_by_piece_and_padded_as_any_state",
    ),
    Mutant(
        "the question is learned too",
        FINETUNING,
        "(place >= starts[:, None])",
        "(place >= 0)",
        "test_only_the_answer_is_learned_and_each_of_its_tokens",
    ),
    Mutant(
        "the first token of the answer is not learned",
        FINETUNING,
        "(place >= starts[:, None])",
        "(place > starts[:, None])",
        "test_only_the_answer_is_learned_and_each_of_its_tokens",
    ),
    Mutant(
        "padding is learned",
        FINETUNING,
        " & (place < lengths[:, None])",
        "",
        "test_padding_and_the_next_conversation_change_no_answer",
    ),
    Mutant(
        "an answer that never ends",
        FINETUNING,
        "end = list(found.eos_ids[:1])",
        "end = []",
        "test_only_the_answer_is_learned_and_each_of_its_tokens",
    ),
    Mutant(
        "a classifier of a fresh encoder",
        FINETUNING,
        "model.load_state_dict(body |",
        "model.load_state_dict(model.state_dict() |",
        "test_a_classifier_keeps_the_encoder_and_gets_a_new_head",
    ),
    Mutant(
        "a checkpoint with frozen weights",
        FINETUNING,
        "self.model.named_parameters() if x.requires_grad}",
        "self.model.named_parameters()}",
        "test_checkpoints_hold_what_is_trained_alone",
    ),
    Mutant(
        "the mean of the tokens instead of their sum",
        PREFERENCE,
        "return token_log_probs(logits, targets).sum(-1)",
        "return token_log_probs(logits, targets).mean(-1)",
        "test_the_log_probability_of_an_answer_is_a_sum_of_its_tokens",
    ),
    Mutant(
        "ignored tokens count",
        PREFERENCE,
        "return found.masked_fill(~counted, 0.0)",
        "return found",
        "test_the_log_probability_of_an_answer_is_a_sum_of_its_tokens",
    ),
    Mutant(
        "the reference with the wrong sign",
        PREFERENCE,
        "worse = beta * (rejected - reference_rejected.detach())",
        "worse = beta * (rejected + reference_rejected.detach())",
        "test_dpo_is_its_formula",
    ),
    Mutant(
        "a gradient into the reference",
        PREFERENCE,
        "better = beta * (chosen - reference_chosen.detach())",
        "better = beta * (chosen - reference_chosen)",
        "test_the_gradient_of_dpo_is_that_of_the_paper",
    ),
    Mutant(
        "a logarithm that underflows",
        PREFERENCE,
        "losses = -(1 - label_smoothing) * functional.logsigmoid(h)",
        "losses = -(1 - label_smoothing) * h.sigmoid().log()",
        "test_a_pair_far_apart_has_no_infinite_loss",
    ),
    Mutant(
        "the divergence the other way round",
        PREFERENCE,
        "each = (log_p.exp() * (log_p - log_q)).sum(-1)",
        "each = (log_q.exp() * (log_q - log_p)).sum(-1)",
        "test_drift_is_the_divergence_of_each_counted_token",
    ),
    Mutant(
        "the reward of the padding",
        PREFERENCE,
        "        last = mask.sum(-1) - 1\n".replace("        last", "            last"),
        "            last = torch.full_like(last, tokens.shape[1] - 1)\n",
        "test_a_reward_is_that_of_the_last_token_and_learns_comparisons",
    ),
    Mutant(
        "a margin that helps",
        PREFERENCE,
        "chosen - rejected - margin",
        "chosen - rejected + margin",
        "test_strengths_that_made_the_comparisons_have_the_smallest_loss",
    ),
    Mutant(
        "a baseline over all groups",
        VERIFIABLE,
        "better = rewards - rewards.mean(1, keepdim=True)",
        "better = rewards - rewards.mean()",
        "test_advantages_are_against_the_own_group",
    ),
    Mutant(
        "the corrected form divides by the length",
        VERIFIABLE,
        "    return -each.sum() / (len(each) * length)",
        "    return -(each.sum(1) / drawn.sum(1)).mean()",
        "test_a_wrong_answer_pays_for_its_length_in_the_corrected_form_only",
    ),
    Mutant(
        "the larger of both",
        VERIFIABLE,
        "each = torch.minimum(",
        "each = torch.maximum(",
        "test_a_ratio_beyond_the_clip_gets_no_gradient_where_it_would_gain",
    ),
    Mutant(
        "the estimate of the other divergence",
        VERIFIABLE,
        "d = reference.detach() - log_probs",
        "d = log_probs - reference.detach()",
        "test_k3_has_the_divergence_as_its_mean_and_varies_less",
    ),
    Mutant(
        "probabilities of the prompt too",
        VERIFIABLE,
        "pairs = [(old + new, len(old))",
        "pairs = [(old + new, 1)",
        "test_a_rollout_holds_what_was_drawn_and_what_it_was_worth",
    ),
    Mutant(
        "groups mixed up",
        VERIFIABLE,
        "for prompt in prompts for _ in range(group)]",
        "for _ in range(group) for prompt in prompts]",
        "test_a_rollout_holds_what_was_drawn_and_what_it_was_worth",
    ),
    Mutant(
        "a rollout for each step",
        VERIFIABLE,
        "number % self.inner == 0",
        "True",
        "test_a_rollout_serves_several_steps_and_follows_from_its_number",
    ),
    Mutant(
        "drawn with putting back",
        ASKING,
        "generator.permutation(len(given))[:k]",
        "generator.integers(len(given), size=k)",
        "test_the_curve_of_k_is_that_of_all_subsets",
    ),
    Mutant(
        "the last of equally frequent answers",
        ASKING,
        "counts = Counter(answers)",
        "counts = Counter(answers[::-1])",
        "test_the_best_and_the_most_frequent_are_chosen",
    ),
    Mutant(
        "the plain estimate of pass@k",
        EVALUATION,
        "return float(1 - np.prod(ratios))",
        "return 1 - (1 - right / n) ** k",
        "test_pass_at_k_is_the_share_of_all_subsets",
    ),
    Mutant(
        "the interval of Wald",
        EVALUATION,
        "middle = (p + z * z / (2 * n)) / (1 + z * z / n)",
        "middle = p",
        "test_the_interval_of_a_share_solves_its_equation_and_holds_it",
    ),
    Mutant(
        "one tail for both",
        EVALUATION,
        "inv_cdf((1 + confidence) / 2)",
        "inv_cdf(confidence)",
        "test_the_interval_of_a_share_solves_its_equation_and_holds_it",
    ),
    Mutant(
        "pairs drawn apart",
        EVALUATION,
        "return bootstrap_interval((one - other).tolist(),",
        "return bootstrap_interval((one - other[::-1]).tolist(),",
        "test_the_interval_of_a_mean_is_that_of_the_normal_law_and_pairs_are_narrower",
    ),
    Mutant(
        "a copy one word too short",
        EVALUATION,
        "words=start + n - last.start",
        "words=start + n - last.start - 1",
        "test_a_planted_copy_is_found_whole_and_chance_is_not",
    ),
    Mutant(
        "capitals hide a copy",
        EVALUATION,
        "text.lower()",
        "text",
        "test_a_planted_copy_is_found_whole_and_chance_is_not",
    ),
    Mutant(
        "the place itself may not change either",
        DEBUGGING,
        "device=tokens.device) > place",
        "device=tokens.device) >= place",
        "test_looking_changes_nothing_and_healthy_models_are_quiet",
    ),
    Mutant(
        "the changed places are compared",
        DEBUGGING,
        "[:, : place + 1].abs()",
        "[:, : place + 2].abs()",
        "test_looking_changes_nothing_and_healthy_models_are_quiet",
    ),
    Mutant(
        "heads by their values alone",
        DEBUGGING,
        "added = (z @ parts).square()",
        "added = z.square()",
        "test_a_dead_head_is_found_by_what_it_adds",
    ),
    Mutant(
        "the mean of the layers instead of the median",
        DEBUGGING,
        "middle = median(usual)",
        "middle = sum(usual) / len(usual)",
        "test_gradients_that_vanish_or_explode_are_found_in_their_layer",
    ),
    Mutant(
        "the model itself is trained",
        DEBUGGING,
        "other = copy.deepcopy(model).eval()",
        "other = model.eval()",
        "test_looking_changes_nothing_and_healthy_models_are_quiet",
    ),
    Mutant(
        "gradients are left behind",
        DEBUGGING,
        "torch.autograd.grad(value, list(trained.values()), allow_unused=True)",
        "[value.backward(retain_graph=True) or w.grad for w in trained.values()]",
        "test_looking_changes_nothing_and_healthy_models_are_quiet",
    ),
    Mutant(
        "a causal query that is said to see every key",
        DEBUGGING,
        "torch.arange(1, n + 1) if causal",
        "torch.full((n,), n) if causal",
        "test_even_attention_has_all_of_its_entropy",
    ),
    Mutant(
        "only losses that are too high",
        DEBUGGING,
        "if abs(value - wanted) <=",
        "if value - wanted <=",
        "test_a_first_loss_that_is_not_ln_v_is_found",
    ),
    Mutant(
        "targets compared the wrong way",
        FAULTS,
        "rows.start + shift : rows.stop + shift",
        "rows.start - shift : rows.stop - shift or None",
        "test_targets_moved_by_another_number_are_found",
    ),
    Mutant(
        "every column is looked at for padding but the last",
        FAULTS,
        'end = mask[:, -1] if wanted == "left" else mask[:, 0]',
        'end = mask[:, 0] if wanted == "left" else mask[:, -1]',
        "test_padding_on_the_wrong_side_is_found",
    ),
    Mutant(
        "every step of a jump is told",
        FAULTS,
        "if spikes[name] < step - window:",
        "if True:",
        "test_a_jump_of_the_rate_and_of_the_loss_is_found",
    ),
    Mutant(
        "every broadcast is a fault",
        FAULTS,
        "if size > max(x.numel() for x in pair):",
        "if size > min(x.numel() for x in pair):",
        "test_a_silent_broadcast_is_found_in_the_loss",
    ),
]

FILES = {
    test_practice_adapters: (FREEZING, LORA, ADAPTERS),
    test_practice_finetuning: (FINETUNING,),
    test_practice_preference: (PREFERENCE, VERIFIABLE, ASKING, EVALUATION),
    test_practice_debugging: (DEBUGGING, FAULTS),
}
CHECKS = {name: run for file in FILES for name, run in file.CHECKS.items()}
DOORS = ["tfbook.models", "tfbook.training", "tfbook.generation", "tfbook.practice"]


def copied(package, edits=None):
    """Return a kit of copies."""
    fresh.copies(package, DOORS, edits)
    return practice_kit.kit_of(functools.partial(fresh.copy_of, package))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    kit = copied("sick_tfbook", mutant.edits)
    with pytest.raises((AssertionError, ValueError, RuntimeError, pytest.fail.Exception)):
        CHECKS[mutant.caught_by](kit)


def test_the_copies_without_a_bug_pass():
    kit = copied("healthy_tfbook")
    for name in {mutant.caught_by for mutant in MUTANTS}:
        CHECKS[name](kit)
