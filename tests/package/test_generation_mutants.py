"""The checks of generation proved by planted bugs: each is caught by one, without a library."""

from functools import cache

import fresh
import pytest
from fresh import Mutant
from generation_properties import CHECKS, Kit

MUTANTS = [
    # sampling
    Mutant(
        "multiplied by the temperature",
        "tfbook.generation.sampling",
        "divided = logits / value",
        "divided = logits * value",
        "test_temperature_raises_probabilities_to_a_power",
    ),
    Mutant(
        "ties with the k-th are cut",
        "tfbook.generation.sampling",
        "logits < smallest",
        "logits.argsort(-1, descending=True).argsort(-1) >= k",
        "test_top_k_keeps_the_largest_and_what_ties_with_the_last",
    ),
    Mutant(
        "the token that crosses p is cut",
        "tfbook.generation.sampling",
        "before = share.cumsum(dim=-1) - share",
        "before = share.cumsum(dim=-1)",
        "test_top_p_keeps_the_smallest_set_that_reaches_p",
    ),
    Mutant(
        "the cut is in the order of probability",
        "tfbook.generation.sampling",
        ".scatter(-1, places, before >= p)",
        "",
        "test_top_p_keeps_the_smallest_set_that_reaches_p",
    ),
    Mutant(
        "of equals any is kept",
        "tfbook.generation.sampling",
        "ordered, places = logits.sort(dim=-1, descending=True, stable=True)",
        "ordered, places = (x.flip(-1) for x in logits.sort(dim=-1, stable=True))",
        "test_top_p_takes_the_lower_id_of_two_equals",
    ),
    Mutant(
        "min-p of 1 instead of the largest",
        "tfbook.generation.sampling",
        "border = logits.amax(dim=-1, keepdim=True) + math.log(p)",
        "border = logits.logsumexp(dim=-1, keepdim=True) + math.log(p)",
        "test_min_p_keeps_what_is_near_the_most_probable",
    ),
    Mutant(
        "a negative logit is divided: the penalty is a reward",
        "tfbook.generation.sampling",
        "torch.where(logits < 0, logits * penalty, logits / penalty)",
        "logits / penalty",
        "test_a_repeated_token_is_punished_once_and_padding_not_at_all",
    ),
    Mutant(
        "padding is punished",
        "tfbook.generation.sampling",
        "torch.ones_like(tokens) if mask is None else mask",
        "torch.ones_like(tokens)",
        "test_repetition_is_punished_over_prompt_and_new_tokens_but_not_padding",
    ),
    Mutant(
        "a number on the border draws the token before it",
        "tfbook.generation.sampling",
        "right=True",
        "right=False",
        "test_draw_gives_each_token_its_share_of_the_numbers",
    ),
    Mutant(
        "the sum of probabilities is taken for 1",
        "tfbook.generation.sampling",
        "place = (uniform.double().unsqueeze(-1) * total).minimum(total.nextafter(-total))",
        "place = uniform.double().unsqueeze(-1).nextafter(total * 2)",
        "test_draw_ends_on_a_possible_token_however_the_sum_is_rounded",
    ),
    Mutant(
        "top-p before top-k",
        "tfbook.generation.sampling",
        "            logits = top_k(logits, self.top_k)\n        if self.top_p is not None:\n"
        "            logits = top_p(logits, self.top_p)\n",
        "            logits = logits if self.top_p is None else top_p(logits, self.top_p)\n"
        "            logits = top_k(logits, self.top_k)\n",
        "test_warp_applies_temperature_then_top_k_then_top_p_then_min_p",
    ),
    Mutant(
        "each row is punished for what the first has seen",
        "tfbook.generation.sampling",
        "ids, real = pad(seen, 0, ",
        "ids, real = pad([seen[0]] * len(seen), 0, ",
        "test_a_penalty_comes_first_and_counts_what_each_row_has_seen",
    ),
    Mutant(
        "a rule makes the penalty forgotten",
        "tfbook.generation.sampling",
        "        if self.repetition_penalty is not None:\n            if seen is None:",
        "        if self.repetition_penalty is not None and self.rule is None:\n"
        "            if seen is None:",
        "test_a_penalty_comes_first_and_counts_what_each_row_has_seen",
    ),
    Mutant(
        "what ties with the most likely token stays",
        "tfbook.generation.sampling",
        "others.scatter(-1, greedy(logits)[..., None], False)",
        "logits < logits.amax(dim=-1, keepdim=True)",
        "test_at_temperature_0_all_is_on_the_most_likely_token",
    ),
    Mutant(
        "temperature 0 draws random numbers",
        "tfbook.generation.sampling",
        "        return self.temperature != 0\n",
        "        return True\n",
        "test_at_temperature_0_all_is_on_the_most_likely_token",
    ),
    Mutant(
        "a generator begins again with each call",
        "tfbook.generation.prompts",
        "isinstance(seed, torch.Generator):\n        return seed",
        "isinstance(seed, torch.Generator):\n"
        "        return seed and seed.manual_seed(seed.initial_seed())",
        "test_a_seed_repeats_and_another_does_not",
    ),
    # caches
    Mutant(
        "a second continuation overwrites the first",
        "tfbook.attention.caches",
        "if room.filled != start:",
        "if False:",
        "test_a_state_can_be_continued_twice_and_is_not_changed",
    ),
    Mutant(
        "the memory is copied each time",
        "tfbook.attention.caches",
        "if room.filled != start:",
        "if True:",
        "test_a_static_cache_writes_where_it_stands",
    ),
    Mutant(
        "the memory of chosen rows counts as empty",
        "tfbook.attention.caches",
        "room = self.room.copy(self.k[rows], self.v[rows])",
        "room = self.room.copy(self.k[rows], self.v[rows])\n        room.filled = 0",
        "test_chosen_rows_go_on_by_themselves",
    ),
    Mutant(
        "one key too many is kept",
        "tfbook.attention.caches",
        "recent = self.window - 1\n",
        "recent = self.window\n",
        "test_a_sliding_cache_is_exact_for_a_model_that_sees_no_further",
    ),
    Mutant(
        "one key too few is kept",
        "tfbook.attention.caches",
        "recent = self.window - 1\n",
        "recent = max(self.window - 2, 0)\n",
        "test_a_sliding_cache_is_exact_for_a_model_that_sees_no_further",
    ),
    Mutant(
        "the sinks are taken to stand before the last keys",
        "tfbook.attention.caches",
        "recent = self.length - (self.sinks if self.seen > self.length else 0)",
        "recent = self.length",
        "test_sinks_stay_where_they_were",
    ),
    Mutant(
        "the mask forgets what slid out",
        "tfbook.attention.caches",
        "drop(self.mask, -1)",
        "self.mask[..., : self.sinks + recent]",
        "test_a_sliding_cache_remembers_which_keys_were_padding",
    ),
    Mutant(
        "what is dropped stays in memory",
        "tfbook.attention.caches",
        "return torch.cat(list(parts), dim=dim)",
        "return x.narrow(dim, last.start, recent)",
        "test_what_each_cache_holds_is_what_the_formula_says",
    ),
    Mutant(
        "positions start where the state was cut off",
        "tfbook.attention.states",
        "mask=mask, seen=length\n",
        "mask=mask, seen=self.seen\n",
        "test_going_back_is_as_if_nothing_had_been_read",
    ),
    # generation
    Mutant(
        "the batch is padded on the right",
        "tfbook.generation.decoding",
        "pad(sequences, pad_id, device_of(model), left=True)",
        "pad(sequences, pad_id, device_of(model), left=False)",
        "test_greedy_takes_the_most_likely_token_of_a_full_pass_each_time",
    ),
    Mutant(
        "padding is read",
        "tfbook.generation.decoding",
        "model.decode(tokens, state, mask=mask, last=True)",
        "model.decode(tokens, state, mask=None, last=True)",
        "test_greedy_takes_the_most_likely_token_of_a_full_pass_each_time",
    ),
    Mutant(
        "the mask is one column off",
        "tfbook.generation.prompts",
        "place >= missing if left",
        "place > missing if left",
        "test_greedy_takes_the_most_likely_token_of_a_full_pass_each_time",
    ),
    Mutant(
        "the cache belongs to other rows",
        "tfbook.generation.decoding",
        "state.select(kept.to(tokens.device))",
        "state.select((kept - kept).to(tokens.device))",
        "test_a_sequence_that_stops_leaves_the_batch_and_changes_no_other",
    ),
    Mutant(
        "those that go on draw the numbers of those that stopped",
        "tfbook.generation.decoding",
        "dtype=torch.float64) for i in rows]",
        "dtype=torch.float64) for i in range(len(rows))]",
        "test_a_sequence_that_stops_leaves_the_batch_and_changes_no_other",
    ),
    Mutant(
        "log-probabilities after the cuts",
        "tfbook.generation.decoding",
        "log_prob_of(logits, ids).tolist()",
        "log_prob_of(changed, ids).tolist()",
        "test_log_probabilities_are_those_of_a_full_pass",
    ),
    Mutant(
        "the prompt is read again with each token",
        "tfbook.generation.decoding",
        "tokens, mask = ids[:, None].to(tokens.device), None",
        "tokens, mask, state = torch.cat([tokens, ids[:, None]], 1), None, None",
        "test_each_token_is_read_once_and_the_last_not_at_all",
    ),
    Mutant(
        "a stop is found in the middle",
        "tfbook.generation.prompts",
        "new[-len(ending) :] == ending",
        "set(ending) <= set(new)",
        "test_it_stops_at_an_id_a_sequence_or_when_told_and_says_so",
    ),
    Mutant(
        "the cuts do not reach the draw",
        "tfbook.generation.decoding",
        "draw(changed, ",
        "draw(logits, ",
        "test_pairs_of_tokens_come_as_often_as_their_probabilities_say",
    ),
    Mutant(
        "the same numbers at each step",
        "tfbook.generation.decoding",
        "torch.rand((), generator=generators[i], dtype=torch.float64)",
        "torch.rand((), generator=torch.Generator().manual_seed(i), dtype=torch.float64)",
        "test_pairs_of_tokens_come_as_often_as_their_probabilities_say",
    ),
    Mutant(
        "of a list of seeds all sequences take the first",
        "tfbook.generation.prompts",
        "manual_seed(each) for each in seed",
        "manual_seed(seed[0]) for each in seed",
        "test_a_row_draws_what_it_would_draw_alone_with_its_own_seed",
    ),
    Mutant(
        "the rows of a batch draw alike",
        "tfbook.generation.prompts",
        "manual_seed((first + i) % 2**64)",
        "manual_seed(first)",
        "test_pairs_of_tokens_come_as_often_as_their_probabilities_say",
    ),
    Mutant(
        "what a row draws depends on the size of its batch",
        "tfbook.generation.prompts",
        "manual_seed((first + i) % 2**64)",
        "manual_seed((first * n + i) % 2**64)",
        "test_a_row_draws_what_it_would_draw_alone_with_its_own_seed",
    ),
    Mutant(
        "the mask keeps the padding",
        "tfbook.generation.prompts",
        "row[kept].tolist()",
        "row.tolist()",
        "test_a_mask_takes_the_padding_off_whichever_side_it_is_on",
    ),
    Mutant(
        "the first half of the context is kept",
        "tfbook.generation.decoding",
        "del sequence[: -((limit + 1) // 2)]",
        "del sequence[(limit + 1) // 2 :]",
        "test_cropped_to_half_a_context_each_goes_on_as_by_hand",
    ),
    Mutant(
        "all sequences are cut when one is full",
        "tfbook.generation.decoding",
        "            if len(sequence) > limit:\n",
        "            if max(map(len, sequences)) > limit:\n",
        "test_cropped_to_half_a_context_each_goes_on_as_by_hand",
    ),
    Mutant(
        "a sliding cache reaches back to the beginning",
        "tfbook.attention.caches",
        "return self.seen if self.sinks else self.length",
        "return self.seen",
        "test_with_a_sliding_cache_a_text_goes_on_behind_the_context",
    ),
    Mutant(
        "scores one place off",
        "tfbook.generation.scoring",
        "scores[:, done - 1 - start :]",
        "scores[:, done - start - (start > 0) :]",
        "test_windows_score_each_token_once_with_enough_before_it",
    ),
    Mutant(
        "each piece of a long text begins anew",
        "tfbook.generation.scoring",
        "logits, state = model.decode(ids[:, rows], state, mask=part)",
        "logits, _ = model.decode(ids[:, rows], state, mask=part)",
        "test_a_long_text_is_scored_in_pieces_as_at_once",
    ),
    Mutant(
        "padding is scored",
        "tfbook.generation.scoring",
        "scores.masked_fill(~mask[:, 1:], 0.0)",
        "scores",
        "test_sequences_of_different_lengths_are_scored_as_each_alone",
    ),
    Mutant(
        "the first tokens count though nothing is before them",
        "tfbook.generation.scoring",
        "sum(len(sequence) - 1 for sequence in sequences)",
        "sum(len(sequence) for sequence in sequences)",
        "test_perplexity_weighs_every_token_alike",
    ),
    # beam search
    Mutant(
        "the log-probabilities are not summed",
        "tfbook.generation.beam",
        "sums[:, None] + ",
        "",
        "test_wide_enough_it_is_exhaustive_search",
    ),
    Mutant(
        "the caches of the beams are mixed up",
        "tfbook.generation.beam",
        "state = state.select(torch.tensor(beams, device=tokens.device))",
        "state = state.select(torch.tensor(sorted(beams), device=tokens.device))",
        "test_one_beam_is_greedy_and_every_beam_has_its_log_probability",
    ),
    Mutant(
        "the length is that of the longest",
        "tfbook.generation.beam",
        "log_prob / length**self.length_penalty, over",
        "log_prob / self.max_new_tokens**self.length_penalty, over",
        "test_wide_enough_it_is_exhaustive_search",
    ),
    Mutant(
        "the search ends with the first finished ones",
        "tfbook.generation.beam",
        "return best.log_prob / longest**self.length_penalty <= finished[-1].score",
        "return True",
        "test_the_search_ends_when_nothing_can_come_in_and_not_before",
    ),
    Mutant(
        "the bound takes the present length for the best",
        "tfbook.generation.beam",
        "longest = self.max_new_tokens if self.length_penalty > 0 else length + 1",
        "longest = length + 1",
        "test_the_search_ends_when_nothing_can_come_in_and_not_before",
    ),
    Mutant(
        "all prompts look at the first source",
        "tfbook.generation.beam",
        "state.select(torch.tensor([row], device=tokens.device))",
        "state.select(torch.tensor([0], device=tokens.device))",
        "test_beams_of_an_encoder_decoder_look_at_their_own_source",
    ),
    # speculation
    Mutant(
        "after a rejection p itself is drawn from",
        "tfbook.generation.speculative",
        "p[kept] if kept == len(guesses) else residual_distribution(p[kept], q[kept])",
        "p[kept]",
        "test_speculation_has_exactly_the_models_distribution",
    ),
    Mutant(
        "all is accepted that the model finds possible",
        "tfbook.generation.speculative",
        "torch.where(q > 0, p / q, 1.0).clamp(max=1.0)",
        "(p > 0).to(p.dtype)",
        "test_speculation_has_exactly_the_models_distribution",
    ),
    Mutant(
        "no guess is ever accepted",
        "tfbook.generation.speculative",
        "if chance.uniform() >= float(",
        "if chance.uniform() >= 0 * float(",
        "test_a_draft_that_is_the_model_is_always_right",
    ),
    Mutant(
        "rejected guesses stay in the cache",
        "tfbook.generation.speculative",
        "self.state, self.length = self.state.truncate(length), length",
        "self.length = length",
        "test_at_temperature_0_it_says_what_greedy_says_with_any_draft",
    ),
    Mutant(
        "the temperature is not applied",
        "tfbook.generation.speculative",
        "return sampling(logits.double(), seen).softmax(dim=-1)",
        "return Sampling(top_k=sampling.top_k)(logits.double(), seen).softmax(dim=-1)",
        "test_speculation_draws_from_the_warped_distribution",
    ),
    Mutant(
        "the guesses before a place are not punished there",
        "tfbook.generation.speculative",
        "seen = [sequence + guesses[:place] for place in range(len(guesses) + 1)]",
        "seen = [sequence for place in range(len(guesses) + 1)]",
        "test_a_penalty_counts_the_guesses_before_each_place",
    ),
    Mutant(
        "accepted tokens run on behind a stop",
        "tfbook.generation.speculative",
        "            if finished:\n                break\n",
        "",
        "test_a_stop_among_the_accepted_ends_it_there",
    ),
    Mutant(
        "the last layers instead of the first",
        "tfbook.generation.speculative",
        "list(stack.blocks)[:n_layers]",
        "list(stack.blocks)[-n_layers:]",
        "test_first_layers_is_the_model_without_the_others",
    ),
    Mutant(
        "the shortest match is counted",
        "tfbook.generation.speculative",
        "range(min(self.n, len(seen)) - 1, 0, -1)",
        "range(1, min(self.n, len(seen)))",
        "test_an_ngram_draft_counts_what_followed_the_longest_match",
    ),
]


def kit_of(package, edits=None):
    fresh.copies(package, Kit.MODULES.values(), edits)
    return Kit(package)


@pytest.fixture(scope="module")
def healthy():
    kit = kit_of("healthy_generation")
    return cache(lambda name: CHECKS[name](kit))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant, healthy):
    sick = kit_of("sick_generation", mutant.edits)
    healthy(mutant.caught_by)  # what is caught is the bug, not the copy
    with pytest.raises((AssertionError, RuntimeError, ValueError, IndexError)):
        CHECKS[mutant.caught_by](sick)
