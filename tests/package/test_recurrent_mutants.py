"""The tests of mixers with a state proved: planted bugs, each caught by one of them.

A test of test_retention.py, test_rwkv.py or test_delta_rule.py is called with a sick copy of the
module; a check of mixer_properties.py with a mixer of the copy.
"""

from functools import partial

import fresh
import mixer_properties
import pytest
import test_delta_rule
import test_retention
import test_rwkv
from fresh import Mutant

RETENTION, RWKV, DELTA = (f"tfbook.recurrent.{x}" for x in ("retention", "rwkv", "delta_rule"))
TESTS = {RETENTION: test_retention, RWKV: test_rwkv, DELTA: test_delta_rule}
SIZES = {"d_head": 4, "d_value": 5, "chunk": 3}
MAKE = {  # the mixer that a check is put to
    RETENTION: lambda copy: partial(copy.RetentionMixer, 14, 3, **SIZES),
    RWKV: lambda copy: partial(copy.TimeMix, 14, 11),
    DELTA: lambda copy: partial(copy.GatedDeltaMixer, 14, 3, **SIZES),
}


MUTANTS = [
    Mutant(
        "heads that forget twice as fast instead of half as fast",
        RETENTION,
        "-(5 + torch.arange(n_heads, dtype=torch.float64))",
        "-(5 - torch.arange(n_heads, dtype=torch.float64))",
        "test_each_head_looks_back_twice_as_far_as_the_one_before",
    ),
    Mutant(
        "a piece rotated as if it were the first",
        RETENTION,
        "return range(seen, seen + n), None",
        "return range(0, n), None",
        "test_pieces_with_a_state_are_the_whole",
    ),
    Mutant(
        "keys not rotated",
        RETENTION,
        "self.position.rotate(k, places) * self.d_head**-0.5",
        "k * self.d_head**-0.5",
        "test_only_distances_count",
    ),
    Mutant(
        "one norm over all heads",
        RETENTION,
        "z = functional.layer_norm(z, (self.d_value,), eps=self.eps)  # each head by itself",
        "z = functional.layer_norm(z.mT, (z.shape[-2],), eps=self.eps).mT",
        "test_no_output_depends_on_a_later_row",
    ),
    Mutant(
        "the state fades at masked rows",
        RETENTION,
        "log_decay = log_decay.expand(len(k), -1, -1).masked_fill(~tokens[:, None], 0.0)",
        "log_decay = log_decay.expand(len(k), -1, -1)",
        "test_padding_is_as_good_as_not_there",
    ),
    Mutant(
        "masked rows are written",
        RETENTION,
        "k = k.masked_fill(~tokens[:, None, :, None], 0.0)",
        "pass",
        "test_padding_is_as_good_as_not_there",
    ),
    Mutant(
        "linear attention forgets to divide",
        RETENTION,
        "z = z[..., :-1] / total.masked_fill(total == 0, 1.0)",
        "z = z[..., :-1]",
        "test_a_mean_of_equal_values_is_that_value",
    ),
    Mutant(
        "the present row fades before it is seen",
        RWKV,
        "a, b, _ = _merge(tuple(x[..., :-1, :] for x in sums), (*own[:2], k + first))",
        "a, b, _ = _merge(_faded(tuple(x[..., :-1, :] for x in sums), decay), "
        "(*own[:2], k + first))",
        "test_a_fast_rate_leaves_the_last_row_and_the_one_before",
    ),
    Mutant(
        "no running maximum",
        RWKV,
        "top = torch.maximum(m, n).detach()",
        "top = torch.zeros_like(m)",
        "test_keys_in_the_thousands_do_not_overflow",
    ),
    Mutant(
        "the extra of the present row is kept in the state",
        RWKV,
        "state = _merge(_faded(state, decay), own)",
        "state = _merge(_faded(state, decay), (*own[:2], k_t + first))",
        "test_a_state_holds_the_sums_and_their_exponent",
    ),
    Mutant(
        "a scan that fades by one row only",
        RWKV,
        "reach * decay)",
        "decay)",
        "test_a_state_holds_the_sums_and_their_exponent",
    ),
    Mutant(
        "the row before a piece is forgotten",
        RWKV,
        "row = x.new_zeros(len(x), self.d_model) if state is None else state.row",
        "row = x.new_zeros(len(x), self.d_model)",
        "test_pieces_with_a_state_are_the_whole",
    ),
    Mutant(
        "the last row kept although it is masked",
        RWKV,
        "rows[torch.arange(len(rows), device=rows.device), tokens.sum(1)]",
        "rows[:, -1]",
        "test_padding_is_as_good_as_not_there",
    ),
    Mutant(
        "the delta rule adds",
        DELTA,
        "wrong = beta_t[..., None] * (v_t - said)",
        "wrong = beta_t[..., None] * v_t",
        "test_writing_a_key_again_replaces_its_value",
    ),
    Mutant(
        "rows of a chunk do not see each other's writes",
        DELTA,
        "unit = earlier + torch.eye(",
        "unit = 0 * earlier + torch.eye(",
        "test_writing_a_key_again_replaces_its_value",
    ),
    Mutant(
        "what is read is the state before the write",
        DELTA,
        "scores, read = (q @ k.mT).tril(), q @ state",
        "scores, read = (q @ k.mT).tril(-1), q @ state",
        "test_a_write_leaves_what_is_orthogonal_to_its_key",
    ),
    Mutant(
        "a chunk's state fades as if its rows were written at its start",
        DELTA,
        "left = _exp(last - total, q)[..., None] * k",
        "left = _exp(last, q)[..., None] * k",
        "test_the_state_fades_before_it_is_corrected",
    ),
    Mutant(
        "the fading of a chunk forgotten where its rows are corrected",
        DELTA,
        "earlier * _fade(total, k), _exp(total, k)[..., None] * k",
        "earlier * _fade(total, k), k",
        "test_a_product_of_corrections_is_written_with_few_rows",
    ),
    Mutant(
        "β up to 1 where up to 2 was asked for",
        DELTA,
        "* (2 if self.negative else 1)",
        "* (1 if self.negative else 1)",
        "test_a_mixer_with_weights_by_hand_knows_parity",
    ),
    Mutant(
        "the convolution starts anew in each piece",
        DELTA,
        "self.conv(rows, before, mask=",
        "self.conv(rows, None, mask=",
        "test_pieces_with_a_state_are_the_whole",
    ),
    Mutant(
        "the corrected state fades at masked rows",
        DELTA,
        "log_decay = log_decay.masked_fill(~tokens[:, None], 0.0)",
        "pass",
        "test_padding_is_as_good_as_not_there",
    ),
]


def run(copy, name, module):
    """Put a copy of a module through one of its tests, or a mixer of it through a check."""
    own = getattr(TESTS[module], name, None)
    if own is not None:
        own(copy)
    else:
        mixer_properties.CHECKS[name](MAKE[module](copy))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    sick = fresh.copies("sick_tfbook", [mutant.module], mutant.edits)
    with pytest.raises((AssertionError, RuntimeError)):
        run(sick, mutant.caught_by, mutant.module)


def test_the_copies_without_a_bug_pass():
    for module in TESTS:
        healthy = fresh.copies("healthy_tfbook", [module])
        for name in {each.caught_by for each in MUTANTS if each.module == module}:
            run(healthy, name, module)
