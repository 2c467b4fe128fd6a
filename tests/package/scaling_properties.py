"""What has to be true of scaling laws, fits and budgets, as checks of a room that has them all.

A check is `check(c)`, with `c` the room `tfbook.costs` or a copy with a planted bug; it raises
AssertionError when the property does not hold. No check compares with another library: they
compare with tables worked out by hand, derivatives, brute force on grids, limits and units.
"""

import dataclasses
import math

import torch

DOUBLE = torch.float64
CHECKS = {}
# Sizes and tokens of runs on a grid, whose values are no powers of each other.
SIZES = [1.1e7, 3.7e7, 1.3e8, 4.1e8, 1.7e9]
TOKENS = [2.3e9, 7.9e9, 3.1e10, 1.9e11]


def check(run):
    """Put a function among the checks."""
    CHECKS[run.__name__] = run
    return run


def near(found, wanted, within=1e-9):
    """Compare numbers, or lists of them, by their ratio."""
    if isinstance(found, float | int):
        found, wanted = [found], [wanted]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert math.isclose(one, other, rel_tol=within, abs_tol=within * 1e-3), (one, other)


def constants(law):
    return list(dataclasses.astuple(law))


def grid_of_runs():
    n, d = torch.cartesian_prod(torch.tensor(SIZES), torch.tensor(TOKENS)).double().T
    return n, d


def noise(count, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 1 + size * torch.randn(count, generator=generator, dtype=DOUBLE)


def laws(c):
    """Sums with exponents that are alike and that are not; A and B worlds apart."""
    return [c.HOFFMANN, c.BESIROGLU, c.MUENNIGHOFF, c.ChinchillaLaw(0.5, 50.0, 0.2, 3000.0, 0.5)]


class Only:
    """A law of which nothing is known but the loss."""

    def __init__(self, law):
        self.loss = law.loss


# one quantity -------------------------------------------------------------------------------------


@check
def test_a_power_law_has_the_values_worked_out_by_hand(c):
    law = c.PowerLaw(scale=100, exponent=0.5, floor=1)
    near([law.loss(x) for x in (1.0, 25.0, 100.0, 400.0, 10_000.0)], [11, 3, 2, 1.5, 1.1])
    cubic = c.PowerLaw(scale=6, exponent=3)
    near([cubic.loss(x) for x in (1, 2, 3, 6)], [216, 27, 8, 1])


@check
def test_inverse_gives_back_what_it_was_given(c):
    for law in (c.PowerLaw(8.8e13, 0.076), c.PowerLaw(3e8, 0.31, 1.7), c.PowerLaw(5.0, 2.0, 0.1)):
        x = [1.3, 17.0, 500.0]
        near(law.inverse(law.loss(x)).tolist(), x)
        near(law.loss(law.inverse(law.floor + 0.01)), law.floor + 0.01)


@check
def test_ten_times_as_much_leaves_the_same_share_of_what_is_above_the_floor(c):
    law = c.PowerLaw(3e8, 0.31, 1.7)
    above = [law.loss(10.0**power) - law.floor for power in range(3, 9)]
    near([b / a for a, b in zip(above, above[1:], strict=False)], [10**-0.31] * 5)


@check
def test_a_power_law_of_other_units_is_the_same(c):
    law = c.PowerLaw(3e8, 0.31, 1.7)
    in_millions = c.PowerLaw(3e8 / 1e6, 0.31, 1.7)
    near(law.loss(4.2e7), in_millions.loss(42.0))


@check
def test_a_fit_finds_the_law_that_made_the_losses(c):
    x = [1e6 * 3.1**i for i in range(7)]
    for law in (
        c.PowerLaw(1e9, 0.3, 1.7),
        c.PowerLaw(8.8e13, 0.076, 0.0),
        c.PowerLaw(3e5, 1.0, 2.0),
        c.PowerLaw(1e7, 0.1, 3.0),
    ):
        near(constants(c.fit_power_law(x, law.loss(x))), constants(law), 1e-6)
        near(constants(c.fit_power_law(x, law.loss(x), floor=law.floor)), constants(law), 1e-6)


@check
def test_a_fit_without_a_floor_is_a_straight_line(c):
    """The errors of log loss and log x have no trend left in common: the normal equations."""
    x = torch.tensor([1e6 * 3.1**i for i in range(9)], dtype=DOUBLE)
    loss = c.PowerLaw(1e10, 0.15).loss(x) * noise(9, 0.03)
    law = c.fit_power_law(x, loss, floor=0.0)
    misses = law.loss(x).log() - loss.log()
    assert abs(misses.sum()) < 1e-9
    assert abs((misses * x.log()).sum()) < 1e-8


@check
def test_no_power_law_nearby_fits_better(c):
    """Both fits of noisy runs are at a minimum of the squared error of log loss."""
    x = torch.tensor([1e6 * 3.1**i for i in range(9)], dtype=DOUBLE)
    loss = c.PowerLaw(1e9, 0.3, 1.7).loss(x) * noise(9, 0.01)

    def error(law):
        return ((law.loss(x).log() - loss.log()) ** 2).sum().item()

    free, held = c.fit_power_law(x, loss), c.fit_power_law(x, loss, floor=1.5)
    for law, fields in ((free, ("scale", "exponent", "floor")), (held, ("scale", "exponent"))):
        for field in fields:
            for factor in (1 - 1e-3, 1 + 1e-3):
                other = dataclasses.replace(law, **{field: getattr(law, field) * factor})
                assert error(other) > error(law), field
    assert error(free) <= error(held)


@check
def test_the_floor_is_never_negative(c):
    """Losses that fall faster and faster would want one below 0."""
    x = [1.0, 10.0, 100.0, 1000.0]
    law = c.fit_power_law(x, [9.0, 6.0, 3.5, 1.5])
    assert law.floor == 0
    near(constants(law), constants(c.fit_power_law(x, [9.0, 6.0, 3.5, 1.5], floor=0.0)), 1e-6)


@check
def test_units_of_x_change_the_scale_only(c):
    x = [1e6 * 3.1**i for i in range(9)]
    loss = c.PowerLaw(1e9, 0.3, 1.7).loss(x) * noise(9, 0.01)
    plain, scaled = c.fit_power_law(x, loss), c.fit_power_law([each / 1e6 for each in x], loss)
    near(constants(scaled), [plain.scale / 1e6, plain.exponent, plain.floor], 1e-5)


# draws --------------------------------------------------------------------------------------------


@check
def test_draws_keep_rows_together_and_put_them_back(c):
    x = torch.arange(1.0, 41.0)
    draws = c.bootstrap(lambda a, b: (a, b), x, 7 * x, samples=200)
    assert len(draws) == 200
    for a, b in draws:
        assert len(a) == 40 and torch.equal(b, 7 * a)
    kept = sum(len(a.unique()) for a, _ in draws) / (200 * 40)
    assert abs(kept - (1 - (1 - 1 / 40) ** 40)) < 0.02  # the chance that a run is drawn at all
    means = torch.stack([a.mean() for a, _ in draws])
    assert abs(means.mean() - x.mean()) < 0.5  # no run is favoured
    assert 0.85 < means.std() / (x.std(correction=0) / math.sqrt(40)) < 1.15


@check
def test_a_seed_fixes_the_draws(c):
    x = list(range(1, 20))
    first, again, other = (c.bootstrap(torch.sum, x, samples=9, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@check
def test_what_the_fit_refuses_is_drawn_again(c):
    """Of two sizes every other draw has one only, through which no line goes."""
    found = c.bootstrap(c.fit_power_law, [1.0, 2.0, 4.0], [5.0, 4.0, 3.5], samples=40)
    assert len(found) == 40
    near([law.exponent for law in found], [found[0].exponent] * 40, 1e-5)  # all three each time


@check
def test_an_interval_leaves_out_the_same_share_on_both_sides(c):
    values = [(i * 37) % 101 for i in range(101)]  # 0 … 100, in some order
    near(list(c.interval(values)), [5, 95])
    near(list(c.interval(values, level=0.5)), [25, 75])
    near(list(c.interval([3.0])), [3.0, 3.0])


# size and data ------------------------------------------------------------------------------------


@check
def test_the_sum_has_the_values_worked_out_by_hand(c):
    """1.69 + 0.083 + 0.163 for Chinchilla, 1.69 + 0.052 + 0.251 for Gopher, by logarithms."""
    near(c.HOFFMANN.loss(70e9, 1.4e12), 1.69 + 0.0835 + 0.1632, 1e-4)
    near(c.HOFFMANN.loss(280e9, 300e9), 1.69 + 0.0521 + 0.2512, 1e-4)
    easy = c.ChinchillaLaw(1.0, 6.0, 0.5, 8.0, 1 / 3)
    near([easy.loss(9, 64), easy.loss(36, 8)], [1 + 2 + 2, 1 + 1 + 4])


@check
def test_published_constants_are_those_of_the_papers(c):
    assert constants(c.HOFFMANN) == [1.69, 406.4, 0.34, 410.7, 0.28]
    assert constants(c.BESIROGLU) == [1.8172, 482.01, 0.3478, 2085.43, 0.3658]
    assert constants(c.KAPLAN) == [8.8e13, 0.076, 5.4e13, 0.095]
    assert constants(c.KAPLAN_JOINT) == [6.4e13, 0.076, 1.8e13, 0.103]
    floor, a, alpha, b, beta = constants(c.MUENNIGHOFF)
    assert (round(floor, 2), round(a), round(b)) == (1.87, 521, 1488)
    assert round(alpha, 2) == round(beta, 2) == 0.35


@check
def test_each_part_has_its_own_limit_and_exponent(c):
    law = c.ChinchillaLaw(0.7, 300.0, 0.4, 900.0, 0.25)
    without_end = 1e300
    near(law.loss(without_end, without_end), 0.7)
    for n in (1e7, 1e9):
        above = law.loss(n, without_end) - 0.7
        near((law.loss(8 * n, without_end) - 0.7) / above, 8**-0.4)
    for d in (1e9, 1e11):
        above = law.loss(without_end, d) - 0.7
        near((law.loss(without_end, 8 * d) - 0.7) / above, 8**-0.25)


@check
def test_kaplans_law_has_the_laws_of_one_quantity_as_limits(c):
    for law in (c.KAPLAN, c.KAPLAN_JOINT):
        by_size = c.PowerLaw(law.n_scale, law.n_exponent)
        by_data = c.PowerLaw(law.d_scale, law.d_exponent)
        for x in (1e7, 3e9, 1e12):
            near(law.loss(x, 1e60), by_size.loss(x))
            near(law.loss(1e60, x), by_data.loss(x))
    # At N_c parameters and D_c tokens both are 1, and the bracket 2.
    near(c.KAPLAN.loss(8.8e13, 5.4e13), 2**0.095)


@check
def test_the_optimal_size_balances_one_percent_of_each(c):
    for law in laws(c):
        d = torch.tensor([1e9, 3e11], dtype=DOUBLE)
        n = law.optimal_parameters(d)
        more_n, more_d = law.loss(n * 1.001, d), law.loss(n, d * 1.001)
        near((law.loss(n, d) - more_n).tolist(), (law.loss(n, d) - more_d).tolist(), 1e-3)


@check
def test_a_fit_of_size_and_data_finds_the_law_that_made_the_losses(c):
    n, d = grid_of_runs()
    for law in laws(c):
        near(constants(c.fit_chinchilla(n, d, law.loss(n, d))), constants(law), 1e-3)


@check
def test_one_run_that_went_wrong_changes_little(c):
    n, d = grid_of_runs()
    loss = c.BESIROGLU.loss(n, d) * noise(len(n), 1e-3)
    wrong = loss.clone()
    wrong[7] *= 1.3
    robust, plain = c.fit_chinchilla(n, d, wrong), c.fit_chinchilla(n, d, wrong, delta=10.0)
    wanted = c.fit_chinchilla(n, d, loss)
    assert abs(robust.floor - wanted.floor) < 0.1 * abs(plain.floor - wanted.floor)


@check
def test_no_law_of_size_and_data_nearby_fits_better(c):
    """A large delta makes the fit the least squares of log loss."""
    n, d = grid_of_runs()
    loss = c.HOFFMANN.loss(n, d) * noise(len(n), 0.01)
    law = c.fit_chinchilla(n, d, loss, delta=10.0)

    def error(law):
        return ((law.loss(n, d).log() - loss.log()) ** 2).sum().item()

    for field in dataclasses.fields(law):
        for factor in (1 - 1e-3, 1 + 1e-3):
            other = dataclasses.replace(law, **{field.name: getattr(law, field.name) * factor})
            assert error(other) > error(law), field.name


# repeated text ------------------------------------------------------------------------------------


@check
def test_tokens_seen_once_count_in_full(c):
    law = c.DataConstrainedLaw(c.MUENNIGHOFF, 1e10)
    small = [1e6, 1e7]  # below the size that is compute-optimal for so few tokens
    for d in (3e9, 1e10):
        near(law.effective_tokens(d), d)
        near(law.loss(small, [d, d]).tolist(), c.MUENNIGHOFF.loss(small, [d, d]).tolist())


@check
def test_repeated_tokens_are_worth_less_and_less(c):
    """At first as much as new ones; R* repetitions 1 − 1/e of as many; never more than R*."""
    law = c.DataConstrainedLaw(c.MUENNIGHOFF, 1e10, repeat_decay=15.0)
    d = torch.tensor([1e10 * (1 + 1e-9), 5e10, 1.6e11], dtype=DOUBLE, requires_grad=True)
    (worth,) = torch.autograd.grad(law.effective_tokens(d).sum(), d)
    near(worth.tolist(), [1.0, math.exp(-4 / 15), math.exp(-1)], 1e-6)
    near(law.effective_tokens(1.6e11), 1e10 * (1 + 15 * (1 - 1 / math.e)))
    near(law.effective_tokens(1e18), 16e10)


@check
def test_parameters_beyond_the_optimal_size_are_worth_less_and_less(c):
    law = c.DataConstrainedLaw(c.HOFFMANN, 1e10, size_decay=5.0)
    fitting = c.HOFFMANN.optimal_parameters(1e10)
    near(law.effective_parameters(0.9 * fitting, 3e10), 0.9 * fitting)
    near(law.effective_parameters(6 * fitting, 3e10), fitting * (1 + 5 * (1 - 1 / math.e)))
    near(law.effective_parameters(1e9 * fitting, 3e10), 6 * fitting)


@check
def test_without_decay_repeated_tokens_are_new_ones(c):
    law = c.DataConstrainedLaw(c.HOFFMANN, 1e9, repeat_decay=math.inf, size_decay=math.inf)
    near(law.loss(3e10, 7e12), c.HOFFMANN.loss(3e10, 7e12))
    nearly = c.DataConstrainedLaw(c.HOFFMANN, 1e9, repeat_decay=1e12, size_decay=1e12)
    near(nearly.loss(3e10, 7e12), c.HOFFMANN.loss(3e10, 7e12), 1e-6)


@check
def test_the_numbers_that_the_authors_give_come_out(c):
    """Losses of both models of their figure 1, in the notes to their code; N = 0.051 D."""
    law = c.DataConstrainedLaw(c.MUENNIGHOFF, 25e9)
    near(law.loss(6.34e9, 242e9), 2.2256440889984477, 1e-12)
    near(law.loss(8.67e9, 178e9), 2.2269634075087867, 1e-12)
    near(c.MUENNIGHOFF.optimal_parameters(1e9), 0.051e9, 0.01)
    n, d = c.compute_optimal(law, 6 * 8.67e9 * 178e9)  # "227B tokens, 9.1 epochs, 6.8B"
    assert (round(n / 1e8), round(d / 1e9), round(d / 25e8)) == (68, 227, 91)


# budgets ------------------------------------------------------------------------------------------


@check
def test_flops_of_training_are_those_of_the_table_of_gpt_3(c):
    """Millions of parameters and FLOPs, as table D.1 of the paper prints them."""
    table = {125: 2.25e20, 356: 6.41e20, 760: 1.37e21, 1320: 2.38e21, 2650: 4.77e21}
    table |= {6660: 1.20e22, 12850: 2.31e22, 174600: 3.14e23}
    for millions, flops in table.items():
        assert f"{c.training_flops(millions * 1e6, 300e9):.2e}" == f"{flops:.2e}"


@check
def test_flops_of_a_token_are_those_of_its_products(c):
    """Two layers of width 3 over 5 keys: each key takes 3 products for its score, 3 to mix."""
    assert c.forward_flops(1000) == 2000
    products = 2 * 5 * (3 + 3)
    assert c.forward_flops(1000, n_layers=2, d_model=3, context=5) == 2000 + 2 * products


@check
def test_a_device_at_its_peak_takes_its_time(c):
    near(c.training_days(86_400e12, 1, 1e12, 1.0), 1)
    near(c.training_days(86_400e12, 4, 1e12, 0.5), 0.5)


@check
def test_the_optimum_spends_the_budget(c):
    for law in (*laws(c), c.KAPLAN, c.DataConstrainedLaw(c.HOFFMANN, 1e10)):
        for flops in (3e18, 5.76e23):
            near(c.training_flops(*c.compute_optimal(law, flops)), flops)
    n, d = c.compute_optimal(c.HOFFMANN, 1e20, flops_per=8.0)
    near(8 * n * d, 1e20)


@check
def test_at_the_optimum_the_derivative_is_zero(c):
    for law in laws(c):
        n, d = c.compute_optimal(law, 1e21)
        step = torch.zeros((), dtype=DOUBLE, requires_grad=True)  # along the line of equal FLOPs
        (slope,) = torch.autograd.grad(law.loss(n * step.exp(), d * (-step).exp()), step)
        assert abs(slope) < 1e-12


@check
def test_no_other_size_of_the_same_flops_is_better(c):
    scarce = c.DataConstrainedLaw(c.MUENNIGHOFF, 25e9)
    for law in (*laws(c), c.KAPLAN, c.KAPLAN_JOINT, scarce):
        n, d = c.compute_optimal(law, 1e22)
        factors = torch.logspace(-3, 3, 2001, dtype=DOUBLE)
        assert law.loss(n, d) <= law.loss(n * factors, d / factors).min() * (1 + 1e-14)


@check
def test_twice_the_flops_move_the_optimum_by_the_exponents(c):
    for law in laws(c):
        alpha, beta = law.n_exponent, law.d_exponent
        (n, d), (more_n, more_d) = (c.compute_optimal(law, flops) for flops in (1e21, 2e21))
        near(more_n / n, 2 ** (beta / (alpha + beta)))
        near(more_d / d, 2 ** (alpha / (alpha + beta)))


@check
def test_the_search_finds_what_the_closed_form_says(c):
    for law in laws(c):
        for flops in (1e18, 1e25):
            found, wanted = c.compute_optimal(Only(law), flops), c.compute_optimal(law, flops)
            near(list(found), list(wanted), 1e-6)


@check
def test_kaplans_optimum_grows_mostly_in_size(c):
    """From the derivative of the bracket by log N: N ∝ C^(α_D / (α_N + α_D))."""
    law = c.KAPLAN
    (n, _), (more, _) = (c.compute_optimal(law, flops) for flops in (1e21, 2e21))
    near(math.log2(more / n), 0.095 / (0.076 + 0.095), 1e-5)


@check
def test_the_optimal_size_for_its_tokens_is_the_same_point(c):
    for law in laws(c):
        n, d = c.compute_optimal(law, 1e22)
        near(law.optimal_parameters(d), n)


@check
def test_what_serves_reaches_the_loss(c):
    for law in laws(c):
        for served in (0, 1e10, 1e13, 1e20):
            loss = law.floor + 0.3
            near(law.loss(*c.serving_optimal(law, loss, served)), loss)


@check
def test_without_serving_it_is_the_compute_optimal_model(c):
    for law in laws(c):
        n, d = c.compute_optimal(law, 1e22)
        near(list(c.serving_optimal(law, law.loss(n, d), 0)), [n, d])


@check
def test_no_other_model_of_the_same_loss_is_cheaper(c):
    """All sizes that can reach the loss, with the tokens that it takes them."""
    for law in laws(c):
        loss = law.floor + 0.3
        for served in (0.0, 1e11, 1e13):
            n, d = c.serving_optimal(law, loss, served)
            share = torch.linspace(0.001, 0.999, 4001, dtype=DOUBLE)  # of the gap, left to N
            sizes = (law.n_scale / (0.3 * share)) ** (1 / law.n_exponent)
            tokens = (law.d_scale / (0.3 * (1 - share))) ** (1 / law.d_exponent)
            costs = 6 * sizes * tokens + 2 * sizes * served
            assert 6 * n * d + 2 * n * served <= costs.min() * (1 + 1e-12)


@check
def test_the_more_is_served_the_smaller_the_model(c):
    models = [c.serving_optimal(c.HOFFMANN, 2.0, served) for served in (0, 1e11, 1e13, 1e15)]
    sizes, tokens = zip(*models, strict=True)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert list(tokens) == sorted(tokens)


@check
def test_the_vertex_of_a_parabola_is_found(c):
    n = torch.tensor([1e7, 2.3e7, 8e7, 3e8, 1.1e9], dtype=DOUBLE)
    loss = 2.9 + 0.05 * (n / 1.7e8).log() ** 2
    near(list(c.isoflop_minimum(n, loss)), [1.7e8, 2.9])
    near(list(c.isoflop_minimum(n / 1e6, loss + 1)), [1.7e2, 3.9])  # units


@check
def test_runs_of_equal_compute_show_the_optimum_of_their_law(c):
    law = c.MUENNIGHOFF  # α = β: its curve is symmetrical, so a parabola has the right vertex
    best, d = c.compute_optimal(law, 1e21)
    factors = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0], dtype=DOUBLE)
    found, loss = c.isoflop_minimum(best * factors, law.loss(best * factors, d / factors))
    near(found, best, 1e-6)
    near(loss, law.loss(best, d), 1e-2)
