"""The position properties proved: planted bugs, each caught without another implementation."""

import fresh
import pytest
from fresh import Mutant
from position_properties import CHECKS

MODULES = ["tfbook.positions"]


MUTANTS = [
    Mutant(
        "sine and cosine exchanged",
        "tfbook.positions.added",
        "return torch.stack((sin, cos), dim=-1).flatten(-2)  # (..., d), sine",
        "return torch.stack((cos, sin), dim=-1).flatten(-2)  # (..., d), sine",
        "test_the_shift_matrix_moves_every_code",
    ),
    Mutant(
        "all sines first",
        "tfbook.positions.added",
        "return torch.stack((sin, cos), dim=-1).flatten(-2)  # (..., d), sine",
        "return torch.cat((sin, cos), dim=-1)  # (..., d), sine",
        "test_each_number_flips_after_half_its_wavelength",
    ),
    Mutant(
        "exponent without its 2",
        "tfbook.positions.frequencies",
        "torch.arange(0, d_head, 2, dtype=torch.float64",
        "torch.arange(0, d_head // 2, dtype=torch.float64",
        "test_a_pair_turns_by_its_angle",
    ),
    Mutant(
        "frequencies that grow",
        "tfbook.positions.frequencies",
        "return float(base) ** -exponent",
        "return float(base) ** (exponent - 1)",
        "test_wavelengths_come_in_pairs_from_short_to_long",
    ),
    Mutant(
        "a wavelength for each number instead of each pair",
        "tfbook.positions.added",
        "return (2 * math.pi / rotary_frequencies(d_model, base=base)).repeat_interleave(2)",
        "return 2 * math.pi * base ** (torch.arange(d_model, dtype=torch.float64) / d_model)",
        "test_each_number_flips_after_half_its_wavelength",
    ),
    Mutant(
        "shift transposed",
        "tfbook.positions.added",
        "(torch.stack((cos, sin), -1), torch.stack((-sin, cos), -1))",
        "(torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1))",
        "test_the_shift_matrix_is_what_the_codes_themselves_say",
    ),
    Mutant(
        "rows and columns of the grid exchanged",
        "tfbook.positions.grids",
        "(row[:, None].expand(-1, cols, -1), col.expand(rows, -1, -1))",
        "(col.expand(rows, -1, -1), row[:, None].expand(-1, cols, -1))",
        "test_half_of_a_grid_code_knows_the_row_and_half_the_column",
    ),
    Mutant(
        "cells counted column by column",
        "tfbook.positions.grids",
        "row = sinusoidal_encoding(positions // self.cols,",
        "row = sinusoidal_encoding(positions // self.rows,",
        "test_added_codes_are_those_of_the_functions",
    ),
    Mutant(
        "interpolation that forgets the ends",
        "tfbook.positions.added",
        "place = torch.linspace(0, len(weight) - 1, n_new, ",
        "place = torch.linspace(0, len(weight) * (1 - 1 / n_new), n_new, ",
        "test_interpolation_keeps_straight_lines_and_the_ends",
    ),
    Mutant(
        "nearest instead of interpolated",
        "tfbook.positions.added",
        "return torch.lerp(weight[before], weight[after], share)",
        "return torch.lerp(weight[before], weight[after], share.round())",
        "test_interpolation_keeps_straight_lines_and_the_ends",
    ),
    Mutant(
        "grid aligned by its corners",
        "tfbook.positions.grids",
        "mode=mode, align_corners=False",
        "mode=mode, align_corners=True",
        "test_a_grid_is_aligned_by_its_edges",
    ),
    Mutant(
        "positions of a piece counted from zero",
        "tfbook.positions.added",
        "        return torch.arange(n, device=x.device)\n",
        "        pass\n    positions = torch.arange(n, device=x.device)\n",
        "test_a_later_piece_gets_the_codes_of_its_place",
    ),
    Mutant(
        "batched codes in the place of heads",
        "tfbook.positions.added",
        "code.unflatten(0, (len(code), *(1,) * (x.ndim - 3)))",
        "code",
        "test_each_sequence_may_count_by_itself",
    ),
    Mutant(
        "halves of the projection exchanged",
        "tfbook.positions.added",
        "self.proj(torch.cat((x, code), dim=-1))",
        "self.proj(torch.cat((code, x), dim=-1))",
        "test_concatenating_is_adding_a_projected_code",
    ),
    Mutant(
        "wrong sign in one layout",
        "tfbook.positions.rotary",
        "torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)",
        "torch.cat((a * cos + b * sin, a * sin + b * cos), dim=-1)",
        "test_turns_add_up_and_keep_the_length",
    ),
    Mutant(
        "turned the other way in one layout",
        "tfbook.positions.rotary",
        "_as_complex(x.to(exact)) * table[0]",
        "_as_complex(x.to(exact)) * table[0].conj()",
        "test_reordering_changes_one_layout_into_the_other",
    ),
    Mutant(
        "turned the other way in both layouts",
        "tfbook.positions.rotary",
        "(angles.sin() * amplitude)",
        "(-angles.sin() * amplitude)",
        "test_a_pair_turns_by_its_angle",
    ),
    Mutant(
        "positions counted from one",
        "tfbook.positions.rotary",
        "angles = positions.to(exact)[..., None]",
        "angles = (positions.to(exact) + 1)[..., None]",
        "test_position_zero_turns_nothing",
    ),
    Mutant(
        "angles in float32",
        "tfbook.positions.rotary",
        'exact = torch.float32 if positions.device.type == "mps" else torch.float64',
        "exact = torch.float32",
        "test_float32_keeps_the_distance_at_far_positions",
    ),
    Mutant(
        "rotation in half precision",
        "tfbook.positions.rotary",
        "a, b = x.to(exact).chunk(2, dim=-1)  # (..., N, P) each",
        "table, (a, b) = [each.to(x.dtype) for each in table], x.chunk(2, dim=-1)\n"
        "        cos, sin = table",
        "test_half_precision_turns_in_float32",
    ),
    Mutant(
        "batched turns in the place of heads",
        "tfbook.positions.rotary",
        "if table[0].ndim == 3:",
        "if False:",
        "test_each_sequence_may_turn_by_its_own_positions",
    ),
    Mutant(
        "layout changed across heads",
        "tfbook.positions.rotary",
        "pairs = (-1, 2) if pair_first else (2, x.shape[dim] // n_heads // 2)",
        "n_heads, pairs = 1, (-1, 2) if pair_first else (2, x.shape[dim] // 2)",
        "test_reordered_projections_give_the_same_scores",
    ),
    Mutant(
        "layout changed the wrong way",
        "tfbook.positions.rotary",
        "(-1, 2) if pair_first else",
        "(-1, 2) if not pair_first else",
        "test_reordering_changes_one_layout_into_the_other",
    ),
    Mutant(
        "frequencies multiplied instead of divided",
        "tfbook.positions.frequencies",
        "return rotary_frequencies(d_head, base=base) / self.factor",
        "return rotary_frequencies(d_head, base=base) * self.factor",
        "test_linear_scaling_puts_the_context_into_the_old_one",
    ),
    Mutant(
        "NTK with the exponent 1",
        "tfbook.positions.frequencies",
        "self.factor ** (d_head / (d_head - 2))",
        "self.factor",
        "test_ntk_scaling_keeps_the_fastest_pair_and_slows_the_last_by_the_factor",
    ),
    Mutant(
        "YaRN with the ramp turned around",
        "tfbook.positions.frequencies",
        "plain * (1 - divided) + plain / self.factor * divided",
        "plain * divided + plain / self.factor * (1 - divided)",
        "test_yarn_keeps_fast_pairs_and_divides_slow_ones",
    ),
    Mutant(
        "YaRN without 2 pi",
        "tfbook.positions.frequencies",
        "math.log(wavelength / (2 * math.pi))",
        "math.log(wavelength)",
        "test_yarn_keeps_fast_pairs_and_divides_slow_ones",
    ),
    Mutant(
        "amplitude forgotten in the function",
        "tfbook.positions.rotary",
        "scaling.amplitude if scaling else 1.0, layout)",
        "1.0, layout)",
        "test_the_amplitude_multiplies_scores_by_its_square",
    ),
    Mutant(
        "LLaMA 3's ramp turned around",
        "tfbook.positions.frequencies",
        "plain * kept + plain / self.factor * (1 - kept)",
        "plain * (1 - kept) + plain / self.factor * kept",
        "test_llama_3_keeps_fast_pairs_and_blends_by_the_number_of_turns",
    ),
    Mutant(
        "LLaMA 3 blends by the number of the pair",
        "tfbook.positions.frequencies",
        "kept = ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)",
        "kept = (turns.log() / math.log(self.beta_fast / self.beta_slow)).clamp(0, 1)",
        "test_llama_3_keeps_fast_pairs_and_blends_by_the_number_of_turns",
    ),
    Mutant(
        "the last numbers of a head rotated instead of the first",
        "tfbook.positions.rotary",
        "x, rest = x[..., : self.rotated], x[..., self.rotated :]\n"
        "        return torch.cat((_turn(x, table), rest), dim=-1)",
        "rest, x = x[..., : -self.rotated], x[..., -self.rotated :]\n"
        "        return torch.cat((rest, _turn(x, table)), dim=-1)",
        "test_a_share_of_a_head_turns_and_the_rest_stays",
    ),
    Mutant(
        "frequencies of the whole head for a share of it",
        "tfbook.positions.rotary",
        "rotary_frequencies(self.rotated, base=base, scaling=scaling)",
        "rotary_frequencies(d_head, base=base, scaling=scaling)[: self.rotated // 2]",
        "test_a_share_of_a_head_turns_and_the_rest_stays",
    ),
    Mutant(
        "a table of another base, once made, is kept",
        "tfbook.positions.rotary",
        "if old is not source or old_how != how or len(table[0]) < stop:",
        "if not table or len(table[0]) < stop:",
        "test_a_kept_table_never_grows_stale",
    ),
    Mutant(
        "a kept table forgets that its frequencies were written to",
        "tfbook.positions.rotary",
        "old_how != how or",
        "old_how[1:] != how[1:] or",
        "test_a_kept_table_never_grows_stale",
    ),
    Mutant(
        "one table for all precisions",
        "tfbook.positions.rotary",
        "self._kept[dtype, device] = source, how, table",
        "both = [(kind, device) for kind in (torch.float32, torch.float64)]\n"
        "                self._kept = dict.fromkeys(both, (source, how, table))",
        "test_a_kept_table_gives_what_is_computed_anew",
    ),
    Mutant(
        "a range read off the kept table from its beginning",
        "tfbook.positions.rotary",
        "tuple(x[first:stop] for x in self._rows(stop, exact, device))",
        "tuple(x[: stop - first] for x in self._rows(stop, exact, device))",
        "test_a_kept_table_gives_what_is_computed_anew",
    ),
    Mutant(
        "negative positions counted from the end of the table",
        "tfbook.positions.rotary",
        "if not 0 <= first <= stop <= MOST_KEPT",
        "if not first <= stop <= MOST_KEPT",
        "test_a_kept_table_gives_what_is_computed_anew",
    ),
    Mutant(
        "a table made where no gradients are recorded cannot be trained with",
        "tfbook.positions.rotary",
        "with torch.inference_mode(False), torch.no_grad():",
        "with torch.no_grad():",
        "test_a_table_made_in_inference_serves_training",
    ),
    Mutant(
        "copies share their table",
        "tfbook.positions.rotary",
        'return self.__dict__ | {"_kept": {}}',
        "return self.__dict__",
        "test_copies_and_files_carry_no_table",
    ),
    Mutant(
        "query minus key",
        "tfbook.positions.relative",
        "return k_positions[..., None, :] - q_positions[..., :, None]",
        "return q_positions[..., :, None] - k_positions[..., None, :]",
        "test_shaw_is_a_vector_for_each_clipped_distance",
    ),
    Mutant(
        "positions counted from the first query",
        "tfbook.positions.relative",
        "return k_positions[..., None, :] - q_positions[..., :, None]",
        "return k_positions[..., None, :] - (q_positions - q_positions[..., :1])[..., :, None]",
        "test_a_cache_sees_the_rows_of_the_full_pass",
    ),
    Mutant(
        "absolute positions in the bias",
        "tfbook.positions.relative",
        "return k_positions[..., None, :] - q_positions[..., :, None]",
        "return k_positions[..., None, :] + 0 * q_positions[..., :, None]",
        "test_biases_do_not_change_when_everything_moves",
    ),
    Mutant(
        "future and past exchanged",
        "tfbook.positions.relative",
        "first = n_buckets * (relative > 0)",
        "first = n_buckets * (relative < 0)",
        "test_buckets_are_all_in_use_and_widen_with_the_distance",
    ),
    Mutant(
        "the future looks like the past",
        "tfbook.positions.relative",
        "distance = (-relative).clamp(min=0)",
        "distance = relative.abs()",
        "test_buckets_are_all_in_use_and_widen_with_the_distance",
    ),
    Mutant(
        "logarithm of another base",
        "tfbook.positions.relative",
        "math.log(max_distance / exact)",
        "math.log(max_distance)",
        "test_buckets_are_all_in_use_and_widen_with_the_distance",
    ),
    Mutant(
        "far distances have no bucket",
        "tfbook.positions.relative",
        ".clamp(max=n_buckets - 1)",
        "",
        "test_buckets_are_all_in_use_and_widen_with_the_distance",
    ),
    Mutant(
        "slopes of a power of two beyond the count",
        "tfbook.positions.relative",
        "power = 2 ** (n_heads.bit_length() - 1)",
        "power = n_heads",
        "test_other_alibi_slopes_are_those_of_a_power_of_two_and_some_in_between",
    ),
    Mutant(
        "the even slopes in between",
        "tfbook.positions.relative",
        "for h in range(1, 2 * power + 1, 2)]",
        "for h in range(2, 2 * power + 1, 2)]",
        "test_other_alibi_slopes_are_those_of_a_power_of_two_and_some_in_between",
    ),
    Mutant(
        "distance rewarded",
        "tfbook.positions.relative",
        "(-slopes * relative.abs().unsqueeze(-3))",
        "(slopes * relative.abs().unsqueeze(-3))",
        "test_alibi_loses_a_fixed_amount_per_step",
    ),
    Mutant(
        "slopes in half precision",
        "tfbook.positions.relative",
        "exact = torch.promote_types(q.dtype, torch.float32)",
        "exact = q.dtype",
        "test_alibi_counts_exactly_in_half_precision",
    ),
    Mutant(
        "clipped on one side only",
        "tfbook.positions.relative",
        "relative.clamp(-max_distance, max_distance) + max_distance",
        "relative.clamp(max=max_distance) + max_distance",
        "test_clipping_numbers_the_near_distances_and_joins_the_far",
    ),
    Mutant(
        "Shaw's term not scaled",
        "tfbook.positions.relative",
        "q @ self.weight.T / math.sqrt(self.d_head)",
        "q @ self.weight.T",
        "test_shaw_is_a_vector_for_each_clipped_distance",
    ),
    Mutant(
        "T5 added to scaled scores",
        "tfbook.positions.relative",
        "scaled: ClassVar[bool] = False",
        "scaled: ClassVar[bool] = True",
        "test_only_t5_leaves_the_scores_unscaled",
    ),
    Mutant(
        "shift by one column too many",
        "tfbook.positions.relative",
        "flat[..., n - 1 : n - 1 + n * length]",
        "flat[..., n : n + n * length]",
        "test_relative_shift_is_direct_indexing",
    ),
    Mutant(
        "distance of Transformer-XL turned around",
        "tfbook.positions.relative",
        "distance = -relative  # (..., N, M), of the query from the key",
        "distance = relative",
        "test_a_bias_of_the_query_projection_is_the_u_of_transformer_xl",
    ),
    Mutant(
        "u and v exchanged",
        "tfbook.positions.relative",
        "content = (q + u[..., None, :]) @ k.mT",
        "content = (q + v[..., None, :]) @ k.mT",
        "test_transformer_xl_scores_are_its_four_terms",
    ),
    Mutant(
        "v left out",
        "tfbook.positions.relative",
        "by_distance = (q + self.v[:, None]) @ r.mT",
        "by_distance = q @ r.mT",
        "test_a_bias_of_the_query_projection_is_the_u_of_transformer_xl",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    sick = fresh.copies("sick_tfbook", MODULES, mutant.edits)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        CHECKS[mutant.caught_by](sick)


def test_the_copy_without_a_bug_passes():
    healthy = fresh.copies("healthy_tfbook", MODULES)
    for name in {mutant.caught_by for mutant in MUTANTS}:
        CHECKS[name](healthy)
