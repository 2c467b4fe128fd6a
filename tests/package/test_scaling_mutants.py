"""The scaling properties proved: planted bugs, each caught without another implementation."""

from functools import cache

import fresh
import pytest
from fresh import Mutant
from scaling_properties import CHECKS

MODULES = ["tfbook.costs"]
LAWS, BUDGETS = "tfbook.costs.power_laws", "tfbook.costs.budgets"

MUTANTS = [
    # laws
    Mutant(
        "the scale outside of the power",
        LAWS,
        "self.floor + (self.scale / at) ** self.exponent",
        "self.floor + self.scale / at**self.exponent",
        "test_a_power_law_has_the_values_worked_out_by_hand",
    ),
    Mutant(
        "the inverse forgets the floor",
        LAWS,
        "(wanted - self.floor) ** (-1 / self.exponent)",
        "wanted ** (-1 / self.exponent)",
        "test_inverse_gives_back_what_it_was_given",
    ),
    Mutant(
        "the exponents of size and data exchanged",
        LAWS,
        "self.n_scale / n**self.n_exponent + self.d_scale / d**self.d_exponent",
        "self.n_scale / n**self.d_exponent + self.d_scale / d**self.n_exponent",
        "test_the_sum_has_the_values_worked_out_by_hand",
    ),
    Mutant(
        "a constant with two digits exchanged",
        LAWS,
        "ChinchillaLaw(1.8172, 482.01, 0.3478, 2085.43, 0.3658)",
        "ChinchillaLaw(1.8172, 482.01, 0.3478, 2058.43, 0.3658)",
        "test_published_constants_are_those_of_the_papers",
    ),
    Mutant(
        "the balance of sizes and not of losses",
        LAWS,
        "ratio = self.n_exponent * self.n_scale / (self.d_exponent * self.d_scale)",
        "ratio = self.n_scale / self.d_scale",
        "test_the_optimal_size_balances_one_percent_of_each",
    ),
    Mutant(
        "Kaplan's inner exponent upside down",
        LAWS,
        "** (self.n_exponent / self.d_exponent)",
        "** (self.d_exponent / self.n_exponent)",
        "test_kaplans_law_has_the_laws_of_one_quantity_as_limits",
    ),
    Mutant(
        "Kaplan's outer exponent is that of size",
        LAWS,
        "loss = (by_size + self.d_scale / d) ** self.d_exponent",
        "loss = (by_size + self.d_scale / d) ** self.n_exponent",
        "test_kaplans_law_has_the_laws_of_one_quantity_as_limits",
    ),
    Mutant(
        "the constant of decay as a half-life",
        LAWS,
        "torch.expm1(-(amount / new - 1) / decay)",
        "torch.expm1(-(amount / new - 1) / decay * math.log(2))",
        "test_repeated_tokens_are_worth_less_and_less",
    ),
    Mutant(
        "the first pass counted as a repetition",
        LAWS,
        "torch.expm1(-(amount / new - 1) / decay)",
        "torch.expm1(-(amount / new) / decay)",
        "test_tokens_seen_once_count_in_full",
    ),
    Mutant(
        "parameters decay like tokens",
        LAWS,
        "_worth(n, torch.minimum(n, fitting), self.size_decay)",
        "_worth(n, torch.minimum(n, fitting), self.repeat_decay)",
        "test_parameters_beyond_the_optimal_size_are_worth_less_and_less",
    ),
    Mutant(
        "small models are stretched to the optimal size",
        LAWS,
        "_worth(n, torch.minimum(n, fitting), self.size_decay)",
        "_worth(n, fitting, self.size_decay)",
        "test_parameters_beyond_the_optimal_size_are_worth_less_and_less",
    ),
    Mutant(
        "the optimal size for all tokens, repeated ones too",
        LAWS,
        "self.law.optimal_parameters(d.clamp(max=self.unique_tokens))",
        "self.law.optimal_parameters(d)",
        "test_the_numbers_that_the_authors_give_come_out",
    ),
    # fits
    Mutant(
        "the middle of log x is not put back",
        LAWS,
        "PowerLaw(math.exp(offset / -slope + middle.item()), -slope, found)",
        "PowerLaw(math.exp(offset / -slope), -slope, found)",
        "test_a_fit_finds_the_law_that_made_the_losses",
    ),
    Mutant(
        "errors of the part above the floor",
        LAWS,
        "line + (wanted - whole.log()) / share, share**2  #",
        "line + (wanted - whole.log()) / share, share**0  #",
        "test_no_power_law_nearby_fits_better",
    ),
    Mutant(
        "weights not squared",
        LAWS,
        "line + (wanted - whole.log()) / share, share**2  #",
        "line + (wanted - whole.log()) / share, share  #",
        "test_no_power_law_nearby_fits_better",
    ),
    Mutant(
        "the search for the floor stops at its first grid",
        LAWS,
        "    for _ in range(ROUNDS):\n",
        "    for _ in range(1):\n",
        "test_a_fit_finds_the_law_that_made_the_losses",
    ),
    Mutant(
        "a floor is always found",
        LAWS,
        "low, high = math.log(1e-9), 0.0",
        "low, high = math.log(1e-9), -0.1",
        "test_the_floor_is_never_negative",
    ),
    Mutant(
        "squares instead of Huber's loss",
        LAWS,
        'reduction="none", delta=delta)',
        'reduction="none", delta=10.0)',
        "test_one_run_that_went_wrong_changes_little",
    ),
    Mutant(
        "sizes are moved by the middle of the tokens",
        LAWS,
        "best[2] + alpha * middle[0], best[3] + beta * middle[1]",
        "best[2] + alpha * middle[1], best[3] + beta * middle[0]",
        "test_a_fit_of_size_and_data_finds_the_law_that_made_the_losses",
    ),
    Mutant(
        "the search ends where it starts",
        LAWS,
        "    with torch.enable_grad():\n        search.step(closure)\n",
        "",
        "test_no_law_of_size_and_data_nearby_fits_better",
    ),
    # draws
    Mutant(
        "rows drawn without putting them back",
        LAWS,
        "torch.randint(len(table[0]), (len(table[0]),), generator=generator)",
        "torch.randperm(len(table[0]), generator=generator)",
        "test_draws_keep_rows_together_and_put_them_back",
    ),
    Mutant(
        "the last run is never drawn",
        LAWS,
        "torch.randint(len(table[0]), (len(table[0]),), generator=generator)",
        "torch.randint(len(table[0]) - 1, (len(table[0]),), generator=generator)",
        "test_draws_keep_rows_together_and_put_them_back",
    ),
    Mutant(
        "each column is drawn by itself",
        LAWS,
        "return fit(*(column[rows] for column in table))",
        "return fit(*(column[rows[torch.randperm(len(rows))]] for column in table))",
        "test_draws_keep_rows_together_and_put_them_back",
    ),
    Mutant(
        "the seed is ignored",
        LAWS,
        "torch.Generator().manual_seed(seed)",
        "torch.Generator().manual_seed(0)",
        "test_a_seed_fixes_the_draws",
    ),
    Mutant(
        "an interval with all that is left out on one side",
        LAWS,
        "[(1 - level) / 2, (1 + level) / 2]",
        "[0.0, level]",
        "test_an_interval_leaves_out_the_same_share_on_both_sides",
    ),
    # budgets
    Mutant(
        "no backward pass",
        BUDGETS,
        "return 6.0 * n_parameters * n_tokens",
        "return 2.0 * n_parameters * n_tokens",
        "test_flops_of_training_are_those_of_the_table_of_gpt_3",
    ),
    Mutant(
        "scores without the mix",
        BUDGETS,
        "2.0 * n_parameters + 4 * n_layers",
        "2.0 * n_parameters + 2 * n_layers",
        "test_flops_of_a_token_are_those_of_its_products",
    ),
    Mutant(
        "the less is used of the peak, the faster",
        BUDGETS,
        "peak_flops / utilisation / 86_400",
        "peak_flops * utilisation / 86_400",
        "test_a_device_at_its_peak_takes_its_time",
    ),
    Mutant(
        "tokens grow with the exponent of size",
        BUDGETS,
        "size = g + budget * beta / (alpha + beta)",
        "size = g + budget * alpha / (alpha + beta)",
        "test_twice_the_flops_move_the_optimum_by_the_exponents",
    ),
    Mutant(
        "no factor between size and tokens",
        BUDGETS,
        "g = _log_ratio(law) / (alpha + beta)",
        "g = 0.0",
        "test_at_the_optimum_the_derivative_is_zero",
    ),
    Mutant(
        "G without the exponents in it",
        BUDGETS,
        "by_size = math.log(law.n_exponent) + math.log(law.n_scale)",
        "by_size = math.log(law.d_exponent) + math.log(law.n_scale)",
        "test_no_other_size_of_the_same_flops_is_better",
    ),
    Mutant(
        "the budget taken for N D",
        BUDGETS,
        "budget = math.log(flops) - math.log(flops_per)",
        "budget = math.log(flops)",
        "test_the_optimum_spends_the_budget",
    ),
    Mutant(
        "golden section keeps the worse part",
        BUDGETS,
        "if at_left < at_right:",
        "if at_left > at_right:",
        "test_the_search_finds_what_the_closed_form_says",
    ),
    Mutant(
        "the search ends too early",
        BUDGETS,
        "while high - low > 1e-9:",
        "while high - low > 1e-1:",
        "test_kaplans_optimum_grows_mostly_in_size",
    ),
    Mutant(
        "a served token costs as much as a trained one",
        BUDGETS,
        "math.log(served_tokens) + math.log(2 / 6)",
        "math.log(served_tokens)",
        "test_no_other_model_of_the_same_loss_is_cheaper",
    ),
    Mutant(
        "serving makes models larger",
        BUDGETS,
        "return size, data, training + odds",
        "return size, data, odds - training",
        "test_the_more_is_served_the_smaller_the_model",
    ),
    Mutant(
        "the gap to the floor is the loss",
        BUDGETS,
        "math.log(loss - law.floor), law.n_exponent",
        "math.log(loss), law.n_exponent",
        "test_what_serves_reaches_the_loss",
    ),
    Mutant(
        "shares of the gap exchanged",
        BUDGETS,
        "+ math.log(alpha) - math.log(beta)",
        "+ math.log(beta) - math.log(alpha)",
        "test_without_serving_it_is_the_compute_optimal_model",
    ),
    Mutant(
        "the vertex twice as far",
        BUDGETS,
        "return math.exp(middle - b / (2 * c) * spread)",
        "return math.exp(middle - b / c * spread)",
        "test_the_vertex_of_a_parabola_is_found",
    ),
    Mutant(
        "the loss at the middle and not at the vertex",
        BUDGETS,
        "return math.exp(middle - b / (2 * c) * spread), a - b**2 / (4 * c)",
        "return math.exp(middle - b / (2 * c) * spread), a",
        "test_the_vertex_of_a_parabola_is_found",
    ),
]


@pytest.fixture(scope="module")
def healthy():
    room = fresh.copies("healthy_scaling", MODULES)
    return cache(lambda name: CHECKS[name](room))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant, healthy):
    sick = fresh.copies("sick_scaling", [mutant.module, *MODULES], mutant.edits)
    healthy(mutant.caught_by)  # what is caught is the bug, not the copy
    with pytest.raises((AssertionError, ValueError)):
        CHECKS[mutant.caught_by](sick)
