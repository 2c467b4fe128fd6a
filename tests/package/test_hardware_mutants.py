"""Checks of formats, packed weights, quantisation and memory proved: planted bugs, each caught."""

import functools

import fresh
import pytest
import test_hardware_formats
import test_hardware_memory
import test_hardware_quantise
import test_packed
import test_packed_pretrained
from fresh import Mutant

FORMATS, BLOCKS, SCALING, MEMORY, QUANTISE, CALIBRATION = (
    f"tfbook.hardware.{name}"
    for name in ("formats", "blocks", "scaling", "memory", "quantisation", "calibration")
)
PACKED, PACKING = "tfbook.blocks.packed", "tfbook.pretrained.packing"
# The file with the checks of each module, what makes a kit of a copy, and what is copied.
NUMBERS = (test_hardware_formats, test_hardware_formats.kit_of, [FORMATS, BLOCKS, SCALING])
FEW_BITS = (test_hardware_quantise, test_hardware_quantise.kit_of, [QUANTISE, CALIBRATION])
FILES = {
    FORMATS: NUMBERS,
    BLOCKS: NUMBERS,
    SCALING: NUMBERS,
    QUANTISE: FEW_BITS,
    CALIBRATION: FEW_BITS,
    MEMORY: (test_hardware_memory, lambda copy_of: copy_of(MEMORY), [MEMORY]),
    PACKED: (test_packed, lambda copy_of: copy_of(PACKED), [PACKED]),
    PACKING: (test_packed_pretrained, lambda copy_of: copy_of(PACKING), [PACKING]),
}

MUTANTS = [
    Mutant(
        "half ways away from 0",
        FORMATS,
        "_drawn(generator) if stochastic else torch.round",
        "_drawn(generator) if stochastic else lambda x: (x + 0.5).floor()",
        "test_whole_numbers_are_in_twos_complement",
    ),
    Mutant(
        "cut off and not rounded",
        FORMATS,
        "_drawn(generator) if stochastic else torch.round",
        "_drawn(generator) if stochastic else torch.trunc",
        "test_half_ways_and_neighbours_round_as_in_pytorch",
    ),
    Mutant(
        "subnormal numbers become 0",
        FORMATS,
        "    steps = choose(torch.ldexp(size, form.mantissa - exponent))",
        "    size = size * (size >= form.smallest)\n"
        "    steps = choose(torch.ldexp(size, form.mantissa - exponent))",
        "test_every_number_of_a_format_is_its_own_nearest",
    ),
    Mutant(
        "subnormal numbers one exponent lower",
        FORMATS,
        "scale = field.clamp(min=int(form.subnormal)) - form.bias",
        "scale = field - form.bias",
        "test_every_pattern_stands_for_what_pytorch_reads",
    ),
    Mutant(
        "the sign of zero is lost",
        FORMATS,
        "x.signbit().long()",
        "(x < 0).long()",
        "test_every_number_of_a_format_is_its_own_nearest",
    ),
    Mutant(
        "e4m3 with an infinity",
        FORMATS,
        'FloatFormat("e4m3", 4, 3, special="nan", dtype=torch.float8_e4m3fn)',
        'FloatFormat("e4m3", 4, 3, dtype=torch.float8_e4m3fn)',
        "test_the_figures_of_the_papers",
    ),
    Mutant(
        "drawn from the nearest and not from below",
        FORMATS,
        "dtype=x.dtype)).floor()",
        "dtype=x.dtype)).round()",
        "test_drawn_rounding_keeps_the_mean",
    ),
    Mutant(
        "the first of two halves on top",
        FORMATS,
        "codes[..., ::2] | codes[..., 1::2] << 4",
        "codes[..., 1::2] | codes[..., ::2] << 4",
        "test_two_halves_share_a_byte",
    ),
    Mutant(
        "saturated where infinity was asked for",
        FORMATS,
        "form.last if saturate or form.beyond is None else form.beyond",
        "form.last",
        "test_what_is_beyond_becomes_infinity_or_nan_or_the_largest",
    ),
    Mutant(
        "the scale of a block rounded up",
        BLOCKS,
        "power = (torch.frexp(most).exponent - 1 - 2)",
        "power = (torch.frexp(most).exponent - 2)",
        "test_blocks_are_the_formula_written_out",
    ),
    Mutant(
        "a block's scale of its own neighbours' size",
        BLOCKS,
        "most = blocks.abs().amax(-1)",
        "most = blocks.abs().amax((-1, -2), keepdim=True)[..., 0].expand(blocks.shape[:-1])",
        "test_blocks_are_the_formula_written_out",
    ),
    Mutant(
        "the factor forgotten on the way back",
        BLOCKS,
        "return decode(scales, read, dtype=torch.float64) * factor.double()",
        "return decode(scales, read, dtype=torch.float64)",
        "test_a_smaller_block_with_a_finer_scale_is_nearer",
    ),
    Mutant(
        "the scale stays after a bad step",
        SCALING,
        "self.scale, self.good = self.scale * self.backoff, 0",
        "self.good = 0",
        "test_loss_scaling_is_that_of_pytorch",
    ),
    Mutant(
        "good steps counted through bad ones",
        SCALING,
        "self.scale, self.good = self.scale * self.backoff, 0",
        "self.scale = self.scale * self.backoff",
        "test_loss_scaling_is_that_of_pytorch",
    ),
    Mutant(
        "gradients left scaled",
        SCALING,
        "gradient.div_(self.scale)",
        "gradient.div_(1.0)",
        "test_loss_scaling_is_that_of_pytorch",
    ),
    Mutant(
        "other random numbers the second time",
        MEMORY,
        "torch.set_rng_state(ctx.random)  # so that dropout drops the same",
        "torch.rand(1)",
        "test_gradients_are_those_of_the_plain_loop",
    ),
    Mutant(
        "the random numbers stay where they were before",
        MEMORY,
        "with torch.enable_grad(), torch.random.fork_rng(devices=[]):",
        "with torch.enable_grad():",
        "test_recomputing_leaves_the_random_numbers_as_they_were",
    ),
    Mutant(
        "the result is kept too",
        MEMORY,
        "        ctx.save_for_backward(x)\n        return function(x)",
        "        y = function(x)\n        ctx.save_for_backward(x, y)\n        return y",
        "test_only_the_inputs_of_segments_are_kept",
    ),
    Mutant(
        "nothing is computed twice",
        MEMORY,
        "x = checkpoint(run, x, use_reentrant=False)",
        "x = run(x)",
        "test_only_the_inputs_of_segments_are_kept",
    ),
    Mutant(
        "the last blocks left out",
        MEMORY,
        "for start in range(0, len(blocks), every):",
        "for start in range(0, len(blocks) - every + 1, every):",
        "test_gradients_are_those_of_the_plain_loop",
    ),
    Mutant(
        "storages counted as often as they are kept",
        MEMORY,
        "kept[x.untyped_storage().data_ptr()] = x.untyped_storage()",
        "kept[len(kept)] = x.untyped_storage()",
        "test_only_the_inputs_of_segments_are_kept",
    ),
    Mutant(
        "the inside of a segment counted by half",
        MEMORY,
        "return outside + (len(segments) - 1) * inputs + max(segments)",
        "return outside + (len(segments) - 1) * inputs + max(segments) // 2",
        "test_the_account_is_what_is_kept_at_the_worst_moment",
    ),
    Mutant(
        "the copy in float32 forgotten",
        MEMORY,
        "kept = OPTIMIZER_BYTES[optimizer] + each.master",
        "kept = OPTIMIZER_BYTES[optimizer]",
        "test_mixed_precision_moves_bytes_from_activations_to_the_optimizer",
    ),
    Mutant(
        "the logits forgotten",
        MEMORY,
        'if p.name == "head"',
        'if p.name == "heads"',
        "test_the_loss_keeps_a_number_for_each_token_and_word",
    ),
    Mutant(
        "one sequence too many",
        MEMORY,
        "        low, high = (middle, high) if fits(middle) else (low, middle)\n    return low",
        "        low, high = (middle, high) if fits(middle) else (low, middle)\n    return high",
        "test_the_largest_batch_fits_and_one_more_does_not",
    ),
    Mutant(
        "one step too few to the largest number",
        QUANTISE,
        "torch.maximum(-least, most) / (half - 1)",
        "torch.maximum(-least, most) / half",
        "test_every_number_is_within_half_a_step",
    ),
    Mutant(
        "the zero point is not whole",
        QUANTISE,
        "(-half - (least / width).round())",
        "(-half - least / width)",
        "test_the_largest_and_zero_are_exact",
    ),
    Mutant(
        "0 outside of the range",
        QUANTISE,
        "least, most = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)",
        "least, most = groups.amin(-1), groups.amax(-1)",
        "test_the_largest_and_zero_are_exact",
    ),
    Mutant(
        "columns share and not rows",
        QUANTISE,
        "return weight.unflatten(1, (-1, shared))",
        "return weight.unflatten(1, (shared, -1)).mT",
        "test_who_shares_a_scale_is_who_is_asked_for",
    ),
    Mutant(
        "the zero point added",
        QUANTISE,
        "((groups - zero[..., None]) * scale[..., None])",
        "((groups + zero[..., None]) * scale[..., None])",
        "test_every_number_is_within_half_a_step",
    ),
    Mutant(
        "the bias is forgotten",
        QUANTISE,
        "return functional.linear(x, self.weight, self.bias)",
        "return functional.linear(x, self.weight)",
        "test_a_readable_layer_multiplies_the_restored_matrix",
    ),
    Mutant(
        "packed codes counted from elsewhere",
        QUANTISE,
        "low = -scale * (start + zero)",
        "low = -scale * zero",
        "test_packed_weights_hold_the_same_numbers",
    ),
    Mutant(
        "the model itself is changed",
        QUANTISE,
        "return copy.deepcopy(model), names",
        "return model, names",
        "test_models_of_quantised_maps_say_nearly_the_same",
    ),
    Mutant(
        "the exceptions are what is small",
        QUANTISE,
        "large = rows.abs().amax(0) >= threshold",
        "large = rows.abs().amax(0) < threshold",
        "test_outliers_stay_as_they_are",
    ),
    Mutant(
        "outliers rounded with their row",
        QUANTISE,
        "for matrix in (rows.detach(), weight.detach()))",
        "for matrix in (rows.detach() + 0 * rows.amax(), 1.01 * weight.detach()))",
        "test_outliers_stay_as_they_are",
    ),
    Mutant(
        "the factor of H and not of its inverse",
        CALIBRATION,
        "factor = torch.linalg.cholesky(inverse, upper=True)",
        "factor = torch.linalg.cholesky(hessian, upper=True)",
        "test_gptq_makes_each_step_the_best_that_is_left",
    ),
    Mutant(
        "errors that are passed on with the wrong sign",
        CALIBRATION,
        "left[:, j + 1 :] -= error[:, None] * factor[j, j + 1 :]",
        "left[:, j + 1 :] += error[:, None] * factor[j, j + 1 :]",
        "test_gptq_makes_each_step_the_best_that_is_left",
    ),
    Mutant(
        "scales of a group before the errors came",
        CALIBRATION,
        "if j % size == 0 and groups > 1:",
        "if j % size == 1 and groups > 1:",
        "test_gptq_of_inputs_without_correlation_is_plain_rounding",
    ),
    Mutant(
        "columns that meet large inputs made coarser",
        CALIBRATION,
        "scale = (power * (size.log() - size.log().mean())).exp().float()",
        "scale = (power * (size.log().mean() - size.log())).exp().float()",
        "test_awq_is_never_worse_on_its_inputs_and_helps_where_columns_differ",
    ),
    Mutant(
        "the worst of all powers",
        CALIBRATION,
        "error < best[0]:",
        "error > best[0]:",
        "test_awq_is_never_worse_on_its_inputs_and_helps_where_columns_differ",
    ),
    Mutant(
        "a rotation that stretches",
        CALIBRATION,
        "return (found / n**0.5).float()",
        "return (found / n**0.49).float()",
        "test_hadamard_matrices_are_rotations_of_equal_entries",
    ),
    Mutant(
        "blocks of the wrong size",
        CALIBRATION,
        "x.shape[-1] & -x.shape[-1]",
        "1",
        "test_a_rotation_changes_no_product_and_spreads_outliers",
    ),
    Mutant(
        "the middle taken for the least",
        PACKED,
        "low + MIDDLE * scale\n",
        "low\n",
        "test_a_packed_weight_stands_for_its_formula",
    ),
    Mutant(
        "the digits of 8 bits exchanged",
        PACKED,
        "torch.cat([(digits >> 4) + MIDDLE, digits & 15], dim=1)",
        "torch.cat([digits & 15, (digits >> 4) + MIDDLE], dim=1)",
        "test_the_kernel_multiplies_exactly_what_is_exact",
    ),
    Mutant(
        "scales of other rows",
        PACKED,
        "pairs.transpose(0, 1).contiguous()",
        "pairs.flip(0).transpose(0, 1).contiguous()",
        "test_a_packed_weight_stands_for_its_formula",
    ),
    Mutant(
        "lookups without the least value",
        PACKED,
        "low = middle - MIDDLE * scale  # (G, ...)",
        "low = 0 * middle  # (G, ...)",
        "test_rows_are_looked_up_as_decoded",
    ),
    Mutant(
        "the bias is forgotten",
        PACKED,
        "return y if bias is None else y + bias",
        "return y",
        "test_a_layer_keeps_its_bias_and_the_dtype_of_x",
    ),
    Mutant(
        "gradients end at a packed weight",
        PACKED,
        "or (x.requires_grad and torch.is_grad_enabled()):",
        "or False:",
        "test_x_has_the_gradient_of_the_matrix",
    ),
    Mutant(
        "changes are lost in silence",
        PACKED,
        "if function._schema.is_mutable:",
        "if False:",
        "test_a_packed_weight_is_never_changed",
    ),
    Mutant(
        "a copy is decoded",
        PACKED,
        "PASSED_ON = {ATEN.detach.default, ATEN.clone.default, ATEN.alias.default}",
        "PASSED_ON = {ATEN.detach.default, ATEN.alias.default}",
        "test_bits_stay_bits_where_nothing_is_computed",
    ),
    Mutant(
        "neighbours in place of halves",
        PACKING,
        "codes = torch.cat([digits & 15, digits >> 4], dim=-1).view(torch.int8)",
        "codes = torch.stack([digits & 15, digits >> 4], dim=-1).flatten(-2).view(torch.int8)",
        "test_blocks_hold_what_gguf_decodes",
    ),
    Mutant(
        "scale and least value exchanged",
        PACKING,
        "scale = _half(blocks[..., :2])",
        "scale = _half(blocks[..., 2:4])",
        "test_blocks_hold_what_gguf_decodes",
    ),
    Mutant(
        "rows in the order of the file",
        PACKING,
        "raw[order - first]",
        "raw[(order - first).sort().values]",
        "test_a_small_file_packs_to_its_own_numbers",
    ),
    Mutant(
        "the least value left out before rounding anew",
        PACKING,
        "values if blocks.low is None else values + blocks.low.float()[..., None]",
        "values",
        "test_a_small_file_packs_to_its_own_numbers",
    ),
]


def copied(package, module, edits=None):
    """Return the checks of a module, and a kit of copies for them."""
    file, kit_of, modules = FILES[module]
    fresh.copies(package, modules, edits)
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
