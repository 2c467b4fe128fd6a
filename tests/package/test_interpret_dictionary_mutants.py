"""The checks of superposition, dictionaries and steering proved by planted bugs."""

import fresh
import pytest
import test_interpret_dictionaries
import test_interpret_superposition
from fresh import Mutant

SUPERPOSITION, DICTIONARIES, STEERING = (
    f"tfbook.interpret.{name}" for name in ("superposition", "dictionaries", "steering")
)
CHECKS = test_interpret_dictionaries.CHECKS | test_interpret_superposition.CHECKS
MUTANTS = [
    Mutant(
        "instances share a bias",
        SUPERPOSITION,
        "+ self.bias[:, None]).relu()",
        "+ self.bias.sum(0)).relu()",
        "test_instances_share_nothing",
    ),
    Mutant(
        "no ReLU",
        SUPERPOSITION,
        "+ self.bias[:, None]).relu()",
        "+ self.bias[:, None])",
        "test_the_exact_loss_is_the_mean_of_many_draws",
    ),
    Mutant(
        "features normal and not uniform",
        SUPERPOSITION,
        "return torch.rand(size, generator=generator) * on",
        "return torch.randn(size, generator=generator).abs() * on",
        "test_features_are_on_as_often_as_they_should_and_uniform",
    ),
    Mutant(
        "all features of a row on or off together",
        SUPERPOSITION,
        "on = torch.rand(size, generator=generator) <",
        "on = torch.rand((*size[:2], 1), generator=generator).expand(size) <",
        "test_the_exact_loss_is_the_mean_of_many_draws",
    ),
    Mutant(
        "the corner's sign forgotten",
        SUPERPOSITION,
        "(-1) ** (k - sum(corner)) * value",
        "value",
        "test_an_antipodal_pair_pays_up_to_a_density_of_four_sevenths",
    ),
    Mutant(
        "a feature that is off taken for one that is on",
        SUPERPOSITION,
        "    if not on[i]:\n        return found\n",
        "",
        "test_the_exact_loss_is_the_mean_of_many_draws",
    ),
    Mutant(
        "importance not counted in training",
        SUPERPOSITION,
        "(x - model(x)).square() * weights)",
        "(x - model(x)).square() * weights.mean())",
        "test_dense_features_take_a_dimension_each_and_sparse_ones_share",
    ),
    Mutant(
        "interference along directions of full length",
        SUPERPOSITION,
        "along = (unit.mT @ weight).square()",
        "along = (unit.mT @ unit).square()",
        "test_dimensions_add_up_to_those_that_are_used",
    ),
    Mutant(
        "the first k features and not the largest",
        DICTIONARIES,
        "values, places = scores.topk(k, dim=-1)",
        "values, places = scores.topk(k, dim=-1, largest=False)",
        "test_a_row_is_written_with_its_largest_features",
    ),
    Mutant(
        "directions are not kept at length 1",
        DICTIONARIES,
        "dictionary.directions.copy_(_unit(dictionary.directions))",
        "dictionary.directions.copy_(dictionary.directions)",
        "test_training_finds_the_directions_that_rows_were_made_of",
    ),
    Mutant(
        "living features asked to help too",
        DICTIONARIES,
        "    z = _largest(scores * dead, many)\n",
        "    z = _largest(scores * ~dead, many)\n",
        "test_only_the_auxiliary_loss_reaches_a_dead_feature",
    ),
    Mutant(
        "features die at once",
        DICTIONARIES,
        "found[1, step] = (unused >= dead_after)",
        "found[1, step] = (unused >= 1)",
        "test_only_the_auxiliary_loss_reaches_a_dead_feature",
    ),
    Mutant(
        "rows are not brought to one scale",
        DICTIONARIES,
        "((x - self.mean_in) / self.scale_in)",
        "(x - self.mean_in)",
        "test_scale_and_mean_of_the_rows_make_no_difference",
    ),
    Mutant(
        "the variance around 0",
        DICTIONARIES,
        "    spread = float((y - y.mean(0)).double()",
        "    spread = float(y.double()",
        "test_fidelity_counts_what_it_says",
    ),
    Mutant(
        "a transcoder without what was there before",
        DICTIONARIES,
        "return before + write(block.ffn_residual.enter(before))",
        "return write(block.ffn_residual.enter(before))",
        "test_a_transcoder_stands_where_the_network_stood",
    ),
    Mutant(
        "a transcoder reads in front of the norm",
        DICTIONARIES,
        "return before + write(block.ffn_residual.enter(before))",
        "return before + write(before)",
        "test_a_transcoder_stands_where_the_network_stood",
    ),
    Mutant(
        "the share of the loss the other way round",
        DICTIONARIES,
        "(without - through) / (without - clean)",
        "(through - clean) / (without - clean)",
        "test_a_perfect_copy_changes_nothing_and_the_mean_row_recovers_nothing",
    ),
    Mutant(
        "equal numbers count as wins",
        STEERING,
        "ranks = (count.cumsum(0) - (count - 1) / 2)[kind]",
        "ranks = count.cumsum(0)[kind]",
        "test_separation_is_the_share_of_pairs_in_order",
    ),
    Mutant(
        "the difference from the mean of all",
        STEERING,
        "wide[~labels].mean(0)",
        "wide.mean(0)",
        "test_the_mean_difference_is_one_of_means",
    ),
    Mutant(
        "a long direction steers further",
        STEERING,
        "direction.detach() * (strength / length)",
        "direction.detach() * strength",
        "test_steering_adds_so_much_to_every_row_and_goes_away",
    ),
    Mutant(
        "the side effect counts the wanted tokens",
        STEERING,
        "(each[..., ~wanted].log_softmax(-1) for each in (before, after))",
        "(each for each in (before, after))",
        "test_moving_probability_to_the_wanted_tokens_alone_has_no_side_effect",
    ),
    Mutant(
        "the divergence the wrong way round",
        STEERING,
        "functional.kl_div(q, p, log_target",
        "functional.kl_div(p, q, log_target",
        "test_effects_are_those_of_a_loop",
    ),
]


def kit_of(package, module, edits=None):
    """Copy what the checks of a module use."""
    if module == SUPERPOSITION:
        fresh.copies(package, [SUPERPOSITION], edits)
        return fresh.copy_of(package, SUPERPOSITION)
    known = test_interpret_dictionaries.MODULES
    fresh.copies(package, [each.__name__ for each in known.values()], edits)
    copied = {name: fresh.copy_of(package, each.__name__) for name, each in known.items()}
    return test_interpret_dictionaries.kit_of(**copied)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    with pytest.raises((AssertionError, ValueError, RuntimeError, pytest.fail.Exception)):
        CHECKS[mutant.caught_by](kit_of("sick_tfbook", mutant.module, mutant.edits))


@pytest.mark.parametrize("module", [SUPERPOSITION, DICTIONARIES, STEERING])
def test_the_copies_without_a_bug_pass(module):
    healthy = kit_of("healthy_tfbook", module)
    for name in {mutant.caught_by for mutant in MUTANTS if mutant.module == module}:
        CHECKS[name](healthy)
