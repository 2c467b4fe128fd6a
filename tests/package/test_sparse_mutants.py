"""The checks of the sparse patterns proved: planted bugs, most caught by a property."""

import fresh
import pytest
from fresh import Mutant
from test_sparse import CHECKS, kit_of

MODULES = ["tfbook.efficient." + name for name in ("patterns", "windows", "blocks")]
WEIGHT = "every_allowed_key_has_weight_and_no_other_one"
ALONE = "the_last_queries_with_all_keys_see_what_they_saw_among_all"
GIVEN = "weights_follow_mask_and_bias"
MASKS = "masks_are_those_of_the_definitions"
DRAWN = "bigbird_draws_as_many_blocks_as_asked_among_the_unseen"
SLOPES = "values_and_slopes_are_those_of_the_dense_form"
MUTANTS = [
    Mutant(
        "window one key too wide",
        "tfbook.efficient.windows",
        "near = gap < window if causal else gap.abs() < window",
        "near = gap <= window if causal else gap.abs() < window",
        WEIGHT,
    ),
    Mutant(
        "spans of a two-sided window end at the query",
        "tfbook.efficient.windows",
        "high = stop if causal else stop + window - 1",
        "high = stop",
        WEIGHT,
    ),
    Mutant(
        "places counted from the first query",
        "tfbook.efficient.windows",
        "place = torch.arange(a + m - n, b + m - n, device=q.device)[:, None]",
        "place = torch.arange(a, b, device=q.device)[:, None]",
        ALONE,
    ),
    Mutant(
        "global tokens are seen but see nothing more",
        "tfbook.efficient.windows",
        "near |= (place >= 0) & (place < n_global)",
        "pass",
        WEIGHT,
    ),
    Mutant(
        "queries before the first key count as global",
        "tfbook.efficient.windows",
        "near |= (place >= 0) & (place < n_global)",
        "near |= place < n_global",
        WEIGHT,
    ),
    Mutant(
        "keys in two spans counted twice",
        "tfbook.efficient.windows",
        "if joined and low <= joined[-1][1]:",
        "if False:",
        "joined_spans_cover_what_the_spans_cover",
    ),
    Mutant(
        "the mask's columns are those of the first span",
        "tfbook.efficient.windows",
        "mask=combine_masks(sees(place, key), _columns(masks[t], spans))",
        "mask=combine_masks(sees(place, key), None if masks[t] is None else "
        "masks[t][..., : key.numel()])",
        GIVEN,
    ),
    Mutant(
        "a piece is cut where the tile begins",
        "tfbook.efficient.windows",
        "a, b = max(low - start, 0), min(high - start, piece.shape[-2])",
        "a, b = 0, min(high - low, piece.shape[-2])",
        SLOPES,
    ),
    Mutant(
        "keys in the gradient's way are detached",
        "tfbook.efficient.windows",
        "found.append(piece if b - a == piece.shape[-2] else piece[..., a:b, :])",
        "found.append(piece if b - a == piece.shape[-2] else piece[..., a:b, :].detach())",
        "the_slopes_of_the_values_sum_to_what_the_queries_took",
    ),
    Mutant(
        "remainders of the keys not shifted",
        "tfbook.efficient.windows",
        "keys = slice((i + m - n) % dilation, None, dilation)",
        "keys = slice(i, None, dilation)",
        ALONE,
    ),
    Mutant(
        "steps of the window counted from the wrong end",
        "tfbook.efficient.windows",
        'steps += (place - low).div(dilation, rounding_mode="floor")',
        'steps += (place - low).div(dilation, rounding_mode="trunc") * 0',
        MASKS,
    ),
    Mutant(
        "far keys that are near too counted twice",
        "tfbook.efficient.blocks",
        "(gaps[0] >= 0) & (gaps[0] < length), gaps[1] >= length",
        "(gaps[0] >= 0) & (gaps[0] < length), gaps[1] >= 0",
        "a_query_that_prefers_nothing_weighs_what_it_sees_alike",
    ),
    Mutant(
        "far weights mix the rows in place of the columns",
        "tfbook.efficient.blocks",
        "near, far = weights.split([near.shape[-1], keys.shape[-3]], -1)",
        "near, far = weights.split([near.shape[-1], keys.shape[-3]], -1)\n    far = far.flip(-1)",
        WEIGHT,
    ),
    Mutant(
        "blocks counted from the first query",
        "tfbook.efficient.blocks",
        "row = max(a + shift, 0) // block",
        "row = a // block",
        ALONE,
    ),
    Mutant(
        "the future inside of a block is seen",
        "tfbook.efficient.blocks",
        "return key <= place if causal else None",
        "return None",
        WEIGHT,
    ),
    Mutant(
        "random blocks drawn among those seen anyway",
        "tfbook.efficient.patterns",
        "    lots.masked_fill_(layout, -1.0)\n",
        "",
        DRAWN,
    ),
    Mutant(
        "random blocks of the future",
        "tfbook.efficient.patterns",
        "    if causal:  # row after row",
        "    if False:  # row after row",
        DRAWN,
    ),
    Mutant(
        "summaries at the beginning of a block",
        "tfbook.efficient.patterns",
        "key % stride >= last",
        "key % stride < summaries",
        "patterns_need_the_layers_that_papers_say",
    ),
    Mutant(
        "nobody keeps what he has",
        "tfbook.efficient.patterns",
        "step = _with_self(mask)\n",
        "step = mask\n",
        "a_chain_of_looks_is_found_by_following_it",
    ),
    Mutant(
        "who is seen by whom",
        "tfbook.efficient.patterns",
        "(step.float() @ reached.float()) > 0",
        "(step.float().T @ reached.float()) > 0",
        "a_chain_of_looks_is_found_by_following_it",
    ),
]


def copy_of(package, edits=None):
    last = fresh.copies(package, MODULES, edits)
    names = [name.split(".", 1)[1] for name in MODULES]
    assert last.__name__ == f"{package}.{names[-1]}"
    return kit_of(*(fresh.copy_of(package, name) for name in MODULES))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    sick = copy_of("sick_tfbook", mutant.edits)
    with pytest.raises((AssertionError, IndexError, RuntimeError, ValueError)):
        CHECKS[mutant.caught_by](sick)


def test_the_copy_without_a_bug_passes():
    healthy = copy_of("healthy_tfbook")
    for name in {mutant.caught_by for mutant in MUTANTS}:
        CHECKS[name](healthy)


def test_few_bugs_need_a_comparison_with_the_dense_form():
    assert sum(mutant.caught_by == SLOPES for mutant in MUTANTS) <= 1
