"""What has to be true of position schemes, as checks of a module that has them all.

A check is `check(p)`, with `p` the module `tfbook.positions` or a copy of it with a planted bug; it
raises AssertionError when the property does not hold. No check compares with another library; that
is done in test_positions.py. Sizes are distinct primes where a size may be odd.
"""

import copy
import functools
import itertools
import math
import pickle

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

DOUBLE = torch.float64
CHECKS = {}


def check(run):
    """Put a function among the checks."""
    CHECKS[run.__name__] = run
    return run


def for_all(examples=12, **strategies):
    """Turn a function (p, ...) into one of p alone that tries random values of the others."""

    def wrap(run):
        @functools.wraps(run)
        def every(p):
            @settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(**strategies)
            def holds(**drawn):
                run(p, **drawn)

            holds()

        del every.__wrapped__  # pytest would take the drawn arguments for fixtures
        return every

    return wrap


def normal(*shape, seed=0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=DOUBLE).to(dtype)


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0.0)


def randomise(module):
    """Fill every weight with normal numbers, in float64."""
    module.double()
    with torch.no_grad():
        for index, weight in enumerate(module.parameters()):
            weight.copy_(normal(*weight.shape, seed=100 + index))
    return module


def biases(p, n_heads=3, d_head=5):
    """Every scheme that adds to the scores, with random weights."""
    schemes = (
        p.ALiBi(n_heads),
        p.T5Bias(n_heads, n_buckets=8, max_distance=11),
        p.T5Bias(n_heads, n_buckets=8, max_distance=11, bidirectional=False),
        p.ShawPositions(d_head, max_distance=3),
        p.TransformerXLPositions(n_heads, d_head, d_encoding=14),
    )
    return [randomise(scheme) for scheme in schemes]


def arange(*ends):
    return torch.arange(*ends)


SHIFTS = st.integers(-5000, 5000)
SEEDS = st.integers(0, 1000)

# sinusoidal ---------------------------------------------------------------------------------------


@check
@for_all(d=st.sampled_from([2, 6, 10, 14]), base=st.sampled_from([100.0, 10000.0]))
def test_the_encoding_is_the_formula(p, d, base):
    code = p.sinusoidal_encoding(7, d, base=base, dtype=DOUBLE)
    assert code.shape == (7, d)
    for place in range(7):
        for i in range(d // 2):
            angle = place / base ** (2 * i / d)
            assert math.isclose(code[place, 2 * i], math.sin(angle), abs_tol=1e-12)
            assert math.isclose(code[place, 2 * i + 1], math.cos(angle), abs_tol=1e-12)


@check
def test_five_thousand_positions_have_different_codes(p):
    code = p.sinusoidal_encoding(5000, 32, dtype=DOUBLE)
    norms = code.square().sum(-1)
    distances = norms[:, None] + norms - 2 * code @ code.T  # squared
    assert distances.fill_diagonal_(torch.inf).min() > 1.0


@check
@for_all(d=st.sampled_from([2, 6, 22]), place=st.integers(-(10**6), 10**6))
def test_codes_are_bounded_and_all_of_one_length(p, d, place):
    code = p.sinusoidal_encoding(torch.tensor([place]), d, dtype=DOUBLE)
    assert code.abs().max() <= 1
    close(code.norm(), torch.tensor(math.sqrt(d / 2), dtype=DOUBLE))


@check
def test_the_inner_product_of_codes_depends_on_their_distance(p):
    code = p.sinusoidal_encoding(29, 14, dtype=DOUBLE)
    products = code @ code.T
    for offset in range(-28, 29):
        diagonal = products.diagonal(offset)
        close(diagonal, diagonal[:1].expand_as(diagonal))
    assert (products[0, 1:] < products[0, 0] - 0.1).all()


@check
def test_codes_of_real_positions_lie_between(p):
    place = torch.tensor([[0.25, 3.0]], dtype=DOUBLE)
    code = p.sinusoidal_encoding(place, 6, dtype=DOUBLE)
    assert code.shape == (1, 2, 6)
    close(code[0, 0, :2], torch.tensor([math.sin(0.25), math.cos(0.25)], dtype=DOUBLE))
    close(code[0, 1], p.sinusoidal_encoding(7, 6, dtype=DOUBLE)[3])


@check
def test_each_number_flips_after_half_its_wavelength(p):
    d, start = 10, torch.tensor([0.0, 0.7, 31.0], dtype=DOUBLE)
    wavelengths = p.sinusoidal_wavelengths(d)
    here = p.sinusoidal_encoding(start, d, dtype=DOUBLE)
    for c, wavelength in enumerate(wavelengths):
        half = p.sinusoidal_encoding(start + wavelength / 2, d, dtype=DOUBLE)
        whole = p.sinusoidal_encoding(start + wavelength, d, dtype=DOUBLE)
        close(half[:, c], -here[:, c])
        close(whole[:, c], here[:, c])


@check
def test_wavelengths_come_in_pairs_from_short_to_long(p):
    wavelengths = p.sinusoidal_wavelengths(10, base=1000.0)
    assert math.isclose(wavelengths[0], 2 * math.pi)
    assert math.isclose(wavelengths[-1], 2 * math.pi * 1000 ** (8 / 10))
    close(wavelengths[0::2], wavelengths[1::2])
    assert (wavelengths[2::2] > wavelengths[:-2:2]).all()


@check
@for_all(k=SHIFTS, place=SHIFTS, d=st.sampled_from([2, 6, 10]))
def test_the_shift_matrix_moves_every_code(p, k, place, d):
    here, there = p.sinusoidal_encoding(torch.tensor([place, place + k]), d, dtype=DOUBLE)
    shift = p.shift_matrix(k, d, dtype=DOUBLE)
    close(shift @ here, there)
    back = p.sinusoidal_encoding(torch.tensor([place - k]), d, dtype=DOUBLE)[0]
    close(here @ shift, back)  # a row vector from the left goes the other way


@check
def test_the_shift_matrix_is_what_the_codes_themselves_say(p):
    """Solve PE[p + k] = T PE[p] for T by least squares over 97 positions."""
    d, k = 6, 5
    code = p.sinusoidal_encoding(97 + k, d, base=50.0, dtype=DOUBLE)
    solved = torch.linalg.lstsq(code[:-k], code[k:]).solution.T
    close(solved, p.shift_matrix(k, d, base=50.0, dtype=DOUBLE))


@check
@for_all(a=SHIFTS, b=SHIFTS)
def test_shifts_add_up_and_are_rotations(p, a, b):
    """T_a T_b = T_{a+b} is the addition theorems of sine and cosine, entry by entry."""
    t = functools.partial(p.shift_matrix, d_model=6, dtype=DOUBLE)
    close(t(a) @ t(b), t(a + b))
    close(t(a) @ t(a).T, torch.eye(6, dtype=DOUBLE))
    close(t(-a), t(a).T)
    for i, frequency in enumerate(p.rotary_frequencies(6).tolist()):
        cos, sin = math.cos(a * frequency), math.sin(a * frequency)
        block = torch.tensor([[cos, sin], [-sin, cos]], dtype=DOUBLE)
        close(t(a)[2 * i : 2 * i + 2, 2 * i : 2 * i + 2], block)


@check
def test_half_of_a_grid_code_knows_the_row_and_half_the_column(p):
    grid = p.sinusoidal_encoding_2d(3, 5, 12, dtype=DOUBLE)
    assert grid.shape == (3, 5, 12)
    rows, cols = (p.sinusoidal_encoding(n, 6, dtype=DOUBLE) for n in (3, 5))
    for r in range(3):
        for c in range(5):
            close(grid[r, c], torch.cat((rows[r], cols[c])))


# interpolation ------------------------------------------------------------------------------------


@check
@for_all(n=st.integers(2, 13), new=st.integers(2, 29))
def test_interpolation_keeps_straight_lines_and_the_ends(p, n, new):
    slope, start = normal(3), normal(3, seed=1)
    line = start + torch.linspace(0, 1, n, dtype=DOUBLE)[:, None] * slope
    wanted = start + torch.linspace(0, 1, new, dtype=DOUBLE)[:, None] * slope
    close(p.interpolate_positions(line, new), wanted)
    table = normal(n, 3)
    stretched = p.interpolate_positions(table, new)
    close(stretched[[0, -1]], table[[0, -1]])
    close(p.interpolate_positions(table, n), table)
    close(p.interpolate_positions(table, 2 * n - 1)[::2], table)


@check
def test_interpolating_one_row_repeats_it(p):
    close(p.interpolate_positions(normal(1, 3), 5), normal(1, 3).expand(5, 3))


@check
def test_interpolating_a_grid_treats_rows_and_columns_apart(p):
    rows, cols = normal(3, 1, 2), normal(1, 5, 2, seed=1)
    for mode in ("bicubic", "bilinear"):
        grid = functools.partial(p.interpolate_grid, mode=mode)
        close(grid(normal(3, 5, 2), 3, 5), normal(3, 5, 2))
        tall = grid(rows.expand(3, 5, 2), 7, 5)
        wide = grid(cols.expand(3, 5, 2), 3, 11)
        close(tall, tall[:, :1].expand(7, 5, 2))
        close(wide, wide[:1].expand(3, 11, 2))
        close(grid((rows + cols).contiguous(), 7, 11), tall[:, :1] + wide[:1])


@check
def test_a_grid_is_aligned_by_its_edges(p):
    """Twice the cells: each new centre is a quarter of a cell from an old one."""
    line = arange(5).double()[:, None, None].expand(5, 3, 1)
    doubled = p.interpolate_grid(line, 10, 3, mode="bilinear")[:, 0, 0]
    wanted = torch.tensor([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4], dtype=DOUBLE)
    close(doubled, wanted)


# added --------------------------------------------------------------------------------------------


def added(p):
    """Every scheme for the embeddings, for 15 positions of size 12, with random weights."""
    schemes = (
        p.NoPositions(),
        p.SinusoidalPositions(12),
        p.LearnedPositions(15, 12),
        p.ConcatenatedPositions(12, 6),
        p.SinusoidalPositions2d(3, 5, 12),
        p.LearnedPositions2d(3, 5, 12),
    )
    return [randomise(scheme) for scheme in schemes]


@check
def test_positions_count_from_zero_when_omitted(p):
    for scheme in added(p):
        x = normal(2, 15, 12)
        close(scheme(x), scheme(x, arange(15)))


@check
@for_all(start=st.integers(0, 12), length=st.integers(1, 3))
def test_a_later_piece_gets_the_codes_of_its_place(p, start, length):
    x = normal(2, 15, 12)
    piece = slice(start, start + length)
    for scheme in added(p):
        close(scheme(x[:, piece], arange(start, start + length)), scheme(x)[:, piece])


@check
def test_each_sequence_may_count_by_itself(p):
    x, places = normal(2, 3, 7, 12), torch.stack((arange(7), 14 - arange(7)))
    for scheme in added(p):
        whole = scheme(x, places)
        for b in (0, 1):
            close(whole[b], scheme(x[b], places[b]))
        close(scheme(x, places[:1]), scheme(x, places[0]))


@check
def test_what_is_added_does_not_depend_on_the_token(p):
    one, other = normal(2, 15, 12), normal(2, 15, 12, seed=1)
    for scheme in added(p):
        linear = scheme.weight_x if hasattr(scheme, "weight_x") else torch.eye(12, dtype=DOUBLE)
        close(scheme(one) - one @ linear.T, scheme(other) - other @ linear.T)


@check
def test_added_codes_are_those_of_the_functions(p):
    x = normal(15, 12)
    close(p.SinusoidalPositions(12)(x), x + p.sinusoidal_encoding(15, 12, dtype=DOUBLE))
    grid = p.sinusoidal_encoding_2d(3, 5, 12, dtype=DOUBLE)
    close(p.SinusoidalPositions2d(3, 5, 12)(x), x + grid.flatten(0, 1))
    learned = randomise(p.LearnedPositions2d(3, 5, 12))
    close(learned(x).unflatten(0, (3, 5)), x.unflatten(0, (3, 5)) + learned.weight)


@check
def test_concatenating_is_adding_a_projected_code(p):
    scheme, x = randomise(p.ConcatenatedPositions(5, 6)), normal(2, 7, 5)
    code = p.sinusoidal_encoding(7, 6, dtype=DOUBLE)
    close(scheme(x), x @ scheme.weight_x.T + code @ scheme.weight_p.T)


@check
def test_only_the_rows_in_use_learn(p):
    scheme = randomise(p.LearnedPositions(11, 5))
    scheme(normal(2, 3, 5), torch.tensor([1, 7, 7])).sum().backward()
    wanted = torch.zeros(11, dtype=DOUBLE)
    wanted[1], wanted[7] = 2.0, 4.0
    close(scheme.weight.grad, wanted[:, None].expand(11, 5))


@check
def test_interpolated_tables_are_those_of_the_functions(p):
    line, grid = randomise(p.LearnedPositions(7, 5)), randomise(p.LearnedPositions2d(2, 3, 5))
    close(line.interpolated(11).weight, p.interpolate_positions(line.weight, 11))
    close(grid.interpolated(5, 7).weight, p.interpolate_grid(grid.weight, 5, 7))
    assert line.interpolated(11).weight.requires_grad
    assert line.weight.shape == (7, 5)


# rotary -------------------------------------------------------------------------------------------

LAYOUTS = ("interleaved", "half")


@check
@for_all(m=SHIFTS, n=SHIFTS, shift=st.integers(-(10**5), 10**5), seed=SEEDS)
def test_rotary_scores_depend_on_the_distance_alone(p, m, n, shift, seed):
    q, k = normal(1, 6, seed=seed), normal(1, 6, seed=seed + 1)
    for layout in LAYOUTS:
        turn = functools.partial(p.apply_rotary, layout=layout)
        near = turn(q, torch.tensor([m])) @ turn(k, torch.tensor([n])).T
        far = turn(q, torch.tensor([m + shift])) @ turn(k, torch.tensor([n + shift])).T
        close(far, near)


@check
def test_rotary_scores_do_depend_on_the_distance(p):
    q, k = normal(1, 6), normal(1, 6, seed=1)
    for layout in LAYOUTS:
        turned = p.apply_rotary(k.expand(7, 6).contiguous(), arange(7), layout=layout)
        scores = (q @ turned.T)[0]
        assert (scores[1:] - scores[0]).abs().min() > 1e-3


@check
def test_float32_keeps_the_distance_at_far_positions(p):
    """Angles multiplied out in float32 would be off by 0.004 at position 100,000."""
    q, k = normal(1, 64, dtype=torch.float32), normal(1, 64, seed=1, dtype=torch.float32)
    near, far = (
        p.apply_rotary(q, torch.tensor([m])) @ p.apply_rotary(k, torch.tensor([m + 3])).T
        for m in (0, 100_000)
    )
    close(far, near, atol=2e-5)


@check
@for_all(m=SHIFTS, seed=SEEDS)
def test_a_pair_turns_by_its_angle(p, m, seed):
    x = normal(1, 6, seed=seed)
    pairs_of = {"interleaved": [(0, 1), (2, 3), (4, 5)], "half": [(0, 3), (1, 4), (2, 5)]}
    for layout, pairs in pairs_of.items():
        got = p.apply_rotary(x, torch.tensor([m]), base=100.0, layout=layout)[0]
        for i, (first, second) in enumerate(pairs):
            angle = m * 100.0 ** (-2 * i / 6)
            wanted = complex(x[0, first], x[0, second]) * complex(math.cos(angle), math.sin(angle))
            assert math.isclose(got[first], wanted.real, abs_tol=1e-9)
            assert math.isclose(got[second], wanted.imag, abs_tol=1e-9)


@check
@for_all(m=SHIFTS, n=SHIFTS)
def test_turns_add_up_and_keep_the_length(p, m, n):
    x, m, n = normal(1, 6), torch.tensor([m]), torch.tensor([n])
    for layout in LAYOUTS:
        turn = functools.partial(p.apply_rotary, layout=layout)
        close(turn(turn(x, m), n), turn(x, m + n))
        close(turn(x, m).norm(), x.norm())
        close(turn(turn(x, m), -m), x)


@check
def test_position_zero_turns_nothing(p):
    x = normal(2, 3, 1, 6)
    for layout in LAYOUTS:
        close(p.RotaryPositions(6, layout=layout).rotate(x, torch.tensor([0])), x)


@check
def test_each_sequence_may_turn_by_its_own_positions(p):
    x, places = normal(2, 3, 7, 6), torch.stack((arange(7), 30 - 2 * arange(7)))
    for layout in LAYOUTS:
        rotary = p.RotaryPositions(6, layout=layout)
        whole = rotary.rotate(x, places)
        for b in (0, 1):
            close(whole[b], rotary.rotate(x[b], places[b]))
        close(rotary.rotate(x[:, 0], places), whole[:, 0])


@check
def test_half_precision_turns_in_float32(p):
    """The only error is the rounding of the result, half a unit in its last place."""
    for dtype, unit in ((torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)):
        x = normal(5, 6, dtype=dtype)
        for layout in LAYOUTS:
            got = p.RotaryPositions(6, layout=layout).half().rotate(x, arange(1000, 1005))
            wanted = p.apply_rotary(x.double(), arange(1000, 1005), layout=layout)
            assert got.dtype == dtype
            assert ((got - wanted).abs() <= unit * wanted.abs() + 1e-6).all()


@check
def test_reordering_changes_one_layout_into_the_other(p):
    x, places = normal(2, 3, 5, 10), arange(5)
    half = p.apply_rotary(p.interleaved_to_half(x), places, layout="half")
    close(half, p.interleaved_to_half(p.apply_rotary(x, places)))
    close(p.half_to_interleaved(p.interleaved_to_half(x)), x)
    close(p.interleaved_to_half(p.half_to_interleaved(x)), x)
    close(p.interleaved_to_half(arange(6).double())[3:], torch.tensor([1, 3, 5], dtype=DOUBLE))


@check
def test_reordered_projections_give_the_same_scores(p):
    n_heads, d_head, x = 3, 10, normal(7, 13)
    w_q, w_k = normal(n_heads * d_head, 13, seed=1), normal(n_heads * d_head, 13, seed=2)
    b_q = normal(n_heads * d_head, seed=3)

    def scores(layout, w_q, w_k, b_q):
        rotary = p.RotaryPositions(d_head, layout=layout)
        q, k = (
            rotary.rotate(y.unflatten(-1, (n_heads, d_head)).transpose(0, 1), arange(7))
            for y in (x @ w_q.T + b_q, x @ w_k.T)
        )
        return q @ k.mT

    reorder = functools.partial(p.interleaved_to_half, dim=0, n_heads=n_heads)
    half = scores("half", *map(reorder, (w_q, w_k, b_q)))
    close(half, scores("interleaved", w_q, w_k, b_q))
    back = functools.partial(p.half_to_interleaved, dim=0, n_heads=n_heads)
    close(back(reorder(w_q)), w_q)


@check
def test_linear_scaling_puts_the_context_into_the_old_one(p):
    x, places = normal(7, 6), arange(7)
    scaled = p.apply_rotary(x, 3 * places, scaling=p.LinearScaling(3.0))
    close(scaled, p.apply_rotary(x, places))


@check
@for_all(factor=st.floats(1.0, 64.0), d=st.sampled_from([4, 10, 22]))
def test_ntk_scaling_keeps_the_fastest_pair_and_slows_the_last_by_the_factor(p, factor, d):
    plain, scaled = p.rotary_frequencies(d), p.NTKScaling(factor).frequencies(d, 10000.0)
    ratio = plain / scaled
    close(ratio[0], torch.tensor(1.0, dtype=DOUBLE))
    close(ratio[-1], torch.tensor(factor, dtype=DOUBLE), atol=1e-6)
    assert (ratio.diff() >= -1e-9).all()


@check
@for_all(factor=st.floats(1.0, 64.0), length=st.integers(200, 8000))
def test_yarn_keeps_fast_pairs_and_divides_slow_ones(p, factor, length):
    yarn = p.YarnScaling(factor, length)
    plain, scaled = p.rotary_frequencies(64), p.rotary_frequencies(64, scaling=yarn)
    turns, ratio = length * plain / (2 * math.pi), plain / scaled
    close(ratio[turns >= 32 * 10 ** (8 / 32)], torch.ones_like(ratio[turns >= 32 * 10 ** (8 / 32)]))
    slow = turns <= 10 ** (-8 / 32)  # beyond the pair to which the bound is rounded
    close(ratio[slow], torch.full_like(ratio[slow], factor))
    assert (ratio.diff() >= -1e-9).all() and slow.any()
    assert math.isclose(yarn.amplitude, 1 + 0.1 * math.log(factor))


@check
@for_all(factor=st.floats(1.0, 64.0), length=st.integers(200, 8000))
def test_llama_3_keeps_fast_pairs_and_blends_by_the_number_of_turns(p, factor, length):
    llama = p.Llama3Scaling(factor, length, beta_fast=5.0, beta_slow=0.5)
    plain, scaled = p.rotary_frequencies(64), p.rotary_frequencies(64, scaling=llama)
    turns = length * plain / (2 * math.pi)
    fast, slow = turns >= 5.0, turns <= 0.5
    close(scaled[fast], plain[fast])
    close(scaled[slow] * factor, plain[slow])
    between = ~(fast | slow)
    share = (plain - scaled)[between] / (plain - plain / factor)[between]
    if factor > 1.001:
        close(share, (5.0 - turns[between]) / 4.5, atol=1e-6)
    assert llama.amplitude == 1.0


@check
def test_a_share_of_a_head_turns_and_the_rest_stays(p):
    places = 5 * arange(7)
    for layout, size in itertools.product(LAYOUTS, (12, 11)):
        x = normal(2, 3, 7, size)
        rotary = p.RotaryPositions(size, rotated=6, base=100.0, layout=layout)
        turned = rotary.rotate(x, places)
        close(turned[..., 6:], x[..., 6:], atol=0)
        close(turned[..., :6], p.apply_rotary(x[..., :6], places, base=100.0, layout=layout))
        alone = rotary.turn(x, *rotary.table(places, x.dtype))
        close(alone, turned, atol=0)


# tables that are kept


@check
def test_a_kept_table_gives_what_is_computed_anew(p):
    kinds = (
        [3],
        [0, 1, 2],
        [130, 7, 7, 64, 63],  # any order, beyond what is kept so far
        [-1, 0, 5],
        [-7, -100],
        [2**16 - 1, 2**16],
        [10**9, 3],
        [[0, 1, 2], [40, 9, 200]],
    )
    for layout in LAYOUTS:
        rotary = p.RotaryPositions(6, layout=layout)
        for dtype in (torch.float32, DOUBLE, torch.float32):
            for kind in kinds:
                places = torch.tensor(kind)
                x = normal(2, 3, places.shape[-1], 6).to(dtype)
                wanted = p.apply_rotary(x.double(), places, layout=layout)
                for whole in (torch.int64, torch.int32):
                    got = rotary.rotate(x, places.to(whole))
                    assert got.dtype == dtype
                    close(got.double(), wanted, atol=1e-12 if dtype == DOUBLE else 1e-6)
            for span in (range(7), range(60, 67), range(500, 507), range(-3, 4)):
                x = normal(3, 7, 6).to(dtype)
                wanted = p.apply_rotary(x.double(), torch.tensor(span), layout=layout)
                got = rotary.rotate(x, span)
                close(got.double(), wanted, atol=1e-12 if dtype == DOUBLE else 1e-6)
        assert rotary.rotate(normal(2, 0, 6), range(5, 5)).shape == (2, 0, 6)
        close(rotary.rotate(x, arange(7) + 0.5), p.apply_rotary(x, arange(7) + 0.5, layout=layout))


@check
def test_a_kept_table_never_grows_stale(p):
    x, places = normal(3, 6), arange(3)
    for layout in LAYOUTS:
        rotary, other = p.RotaryPositions(6, layout=layout), p.rotary_frequencies(6, base=50.0)
        rotary.rotate(x, places)
        rotary.frequencies = other
        close(rotary.rotate(x, places), p.apply_rotary(x, places, base=50.0, layout=layout))
        rotary.frequencies *= 0
        close(rotary.rotate(x, places), x)
        rotary.amplitude = 3.0
        close(rotary.rotate(x, places), 3 * x)
    turned = p.RotaryPositions(6, layout="half")
    turned.rotate(x, places)
    turned.layout = "interleaved"
    close(turned.rotate(x, places), p.apply_rotary(x, places))


@check
def test_a_table_made_in_inference_serves_training(p):
    for layout in LAYOUTS:
        rotary, x = p.RotaryPositions(6, layout=layout), normal(3, 6)
        with torch.inference_mode():
            rotary.rotate(x, range(3))
        x.requires_grad_()
        for places in (range(3), arange(3)):
            (slope,) = torch.autograd.grad(rotary.rotate(x, places).square().sum(), x)
            close(slope, 2 * x.detach())  # a rotation keeps lengths


@check
def test_copies_and_files_carry_no_table(p):
    rotary, x = p.RotaryPositions(6), normal(3, 6)
    before = len(pickle.dumps(rotary.__getstate__()))
    rotary.rotate(x, range(2000, 2003))
    copied = copy.deepcopy(rotary)
    assert not copied._kept and not rotary.state_dict()
    assert len(pickle.dumps(rotary.__getstate__())) == before
    close(copied.rotate(x, arange(3)), rotary.rotate(x, arange(3)), atol=0)


@check
def test_the_amplitude_multiplies_scores_by_its_square(p):
    yarn = p.YarnScaling(8.0, 256)
    rotary, x = p.RotaryPositions(6, scaling=yarn), normal(1, 6)
    turned = rotary.rotate(x, torch.tensor([5]))
    close(turned.norm() / x.norm(), torch.tensor(yarn.amplitude, dtype=DOUBLE))
    close(p.apply_rotary(x, torch.tensor([5]), scaling=yarn), turned)


@check
def test_a_factor_of_one_changes_no_frequency(p):
    scalings = (p.LinearScaling, p.NTKScaling, p.YarnScaling, p.Llama3Scaling)
    for scaling in (kind(1.0, *[99] * (i > 1)) for i, kind in enumerate(scalings)):
        close(p.rotary_frequencies(10, scaling=scaling), p.rotary_frequencies(10))
        assert scaling.amplitude == 1.0


# relative -----------------------------------------------------------------------------------------


@check
@for_all(shift=SHIFTS)
def test_biases_do_not_change_when_everything_moves(p, shift):
    q, q_places, k_places = normal(2, 3, 5, 5), arange(6, 11), arange(7)
    for scheme in biases(p):
        here = scheme.bias(q, q_places, k_places)
        close(scheme.bias(q, q_places + shift, k_places + shift), here)


@check
def test_biases_do_change_with_the_distance(p):
    q = normal(2, 3, 1, 5)
    for scheme in biases(p):
        bias = scheme.bias(q, torch.tensor([2]), arange(3)).expand(2, 3, 1, 3)
        assert (bias[..., 0] - bias[..., 2]).abs().min() > 1e-6


@check
@for_all(past=st.integers(0, 8), n=st.integers(1, 3))
def test_a_cache_sees_the_rows_of_the_full_pass(p, past, n):
    """Queries past … past + n − 1 of a longer sequence, all keys up to them."""
    q, places = normal(2, 3, 11, 5), arange(11)
    for scheme in biases(p):
        whole = scheme.bias(q, places, places).expand(2, 3, 11, 11)
        now = slice(past, past + n)
        piece = scheme.bias(q[..., now, :], places[now], places[: past + n])
        close(piece.expand(2, 3, n, past + n), whole[..., now, : past + n])


@check
def test_any_order_of_positions_is_fine(p):
    q, places = normal(2, 3, 7, 5), torch.tensor([5, 0, 3, 6, 1, 4, 2])
    for scheme in biases(p):
        ordered = scheme.bias(q, arange(7), arange(7)).expand(2, 3, 7, 7)
        mixed = scheme.bias(q[..., places, :], places, places).expand(2, 3, 7, 7)
        close(mixed, ordered[..., places, :][..., places])


@check
def test_each_sequence_may_have_its_own_distances(p):
    q = normal(2, 3, 5, 5)
    q_places = torch.stack((arange(5), arange(3, 8)))
    k_places = torch.stack((arange(7), 2 * arange(7)))
    for scheme in biases(p):
        whole = scheme.bias(q, q_places, k_places).expand(2, 3, 5, 7)
        for b in (0, 1):
            one = scheme.bias(q[b : b + 1], q_places[b], k_places[b])
            close(whole[b : b + 1], one.expand(1, 3, 5, 7))
        shared = scheme.bias(q, q_places[:1], k_places[0])
        close(shared, scheme.bias(q, q_places[0], k_places[0]).expand_as(shared))


@check
def test_biases_have_the_dtype_of_the_queries(p):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, DOUBLE):
        for scheme in biases(p):
            q = normal(2, 3, 5, 5, dtype=dtype)
            assert scheme.to(dtype).bias(q, arange(5), arange(7)).dtype == dtype


@check
def test_no_keys_and_no_queries_are_fine(p):
    for scheme in biases(p):
        assert scheme.bias(normal(2, 3, 5, 5), arange(5), arange(0)).shape[-2:] == (5, 0)
        assert scheme.bias(normal(2, 3, 0, 5), arange(0), arange(7)).shape[-2:] == (0, 7)


@check
def test_gradients_of_biases_agree_with_finite_differences(p):
    q = normal(1, 3, 2, 5).requires_grad_()
    for scheme in biases(p):
        weights = tuple(scheme.parameters())

        def bias(q, *_, scheme=scheme):
            return scheme.bias(q, arange(1, 3), arange(3))

        learns = type(scheme).__name__ != "ALiBi"
        assert bias(q).requires_grad == learns
        assert not learns or torch.autograd.gradcheck(bias, (q, *weights))


@check
def test_shaw_is_a_vector_for_each_clipped_distance(p):
    scheme, q = randomise(p.ShawPositions(5, max_distance=2)), normal(2, 3, 7, 5)
    bias = scheme.bias(q, arange(7), arange(11))
    for i in range(7):
        for j in range(11):
            vector = scheme.weight[min(max(j - i, -2), 2) + 2]
            close(bias[:, :, i, j], q[:, :, i] @ vector / 5**0.5)


@check
def test_clipping_numbers_the_near_distances_and_joins_the_far(p):
    rows = p.shaw_clip(arange(-9, 10), 3)
    assert rows.tolist() == [0] * 7 + [1, 2, 3, 4, 5] + [6] * 7


@check
def test_alibi_loses_a_fixed_amount_per_step(p):
    scheme = p.ALiBi(5)
    bias = scheme.bias(normal(2, 5, 7, 3), arange(4, 11), arange(11))
    for h, slope in enumerate(p.alibi_slopes(5)):
        for i in range(7):
            for j in range(11):
                assert math.isclose(bias[h, i, j], -slope * abs(4 + i - j), abs_tol=1e-12)
    assert (bias <= 0).all() and bias.ndim == 3


@check
def test_alibi_counts_exactly_in_half_precision(p):
    """In bfloat16 the slope would be rounded before it is multiplied, and 257 would be 256."""
    bias = p.ALiBi(12).bias(normal(1, 12, 1, 3, dtype=torch.bfloat16), arange(1), arange(1000))
    exact = -torch.tensor(p.alibi_slopes(12), dtype=DOUBLE)[:, None, None] * arange(1000)
    close(bias, exact.to(torch.bfloat16))


@check
def test_alibi_slopes_of_a_power_of_two_are_geometric(p):
    for power in range(8):
        n = 2**power
        slopes = p.alibi_slopes(n)
        assert len(slopes) == n and slopes[-1] == 2**-8
        ratios = [b / a for a, b in zip(slopes, slopes[1:], strict=False)]
        assert all(math.isclose(ratio, slopes[0]) for ratio in ratios)


@check
@for_all(n=st.integers(1, 100))
def test_other_alibi_slopes_are_those_of_a_power_of_two_and_some_in_between(p, n):
    slopes = p.alibi_slopes(n)
    assert len(slopes) == len(set(slopes)) == n
    assert all(0 < slope < 1 for slope in slopes)
    smaller = 2 ** int(math.log2(n))
    assert slopes[:smaller] == p.alibi_slopes(smaller)
    assert set(slopes) <= set(p.alibi_slopes(2 * smaller))
    assert sorted(slopes[smaller:], reverse=True) == list(slopes[smaller:])
    assert max(slopes[smaller:], default=1) >= max(slopes[:smaller])


BUCKETS = st.sampled_from([(True, 32, 128), (False, 32, 128), (True, 12, 50), (False, 7, 20)])


@check
@for_all(how=BUCKETS)
def test_buckets_are_all_in_use_and_widen_with_the_distance(p, how):
    bidirectional, n_buckets, far = how
    sort = functools.partial(
        p.t5_bucket, bidirectional=bidirectional, n_buckets=n_buckets, max_distance=far
    )
    back = sort(-arange(4 * far))  # keys before the query, farther and farther
    n = n_buckets // 2 if bidirectional else n_buckets
    assert back[0] == 0 and back[-1] == n - 1
    assert set(back.tolist()) == set(range(n))
    assert set(back.diff().tolist()) == {0, 1}
    widths = back[: (back == n - 1).nonzero()[0, 0]].bincount()
    assert (widths[: n // 2] == 1).all() and (widths.diff() >= -1).all()
    exact = n // 2
    last = exact * (far / exact) ** ((n - exact - 1) / (n - exact))  # where the last one begins
    assert back[math.floor(last) - 1] < n - 1 and (back[math.ceil(last) + 1 :] == n - 1).all()
    ahead = sort(arange(1, 4 * far))
    close(ahead, back[1:] + n if bidirectional else torch.zeros_like(ahead))


@check
def test_t5_adds_the_number_of_the_bucket(p):
    for bidirectional in (True, False):
        scheme = randomise(p.T5Bias(3, 8, 11, bidirectional=bidirectional))
        bias = scheme.bias(normal(2, 3, 5, 7), arange(20, 25), arange(31))
        assert bias.shape == (3, 5, 31)
        for i in range(5):
            for j in range(31):
                distance = torch.tensor(j - (20 + i))
                bucket = p.t5_bucket(
                    distance, bidirectional=bidirectional, n_buckets=8, max_distance=11
                )
                close(bias[:, i, j], scheme.weight[bucket])


@check
def test_only_t5_leaves_the_scores_unscaled(p):
    assert [scheme.scaled for scheme in biases(p)] == [True, False, False, True, True]


@check
@for_all(n=st.integers(1, 7), m=st.integers(1, 11))
def test_relative_shift_is_direct_indexing(p, n, m):
    x = normal(2, 3, n, n + m - 1)
    shifted = p.relative_shift(x)
    assert shifted.shape == (2, 3, n, m)
    for i in range(n):
        for j in range(m):
            close(shifted[..., i, j], x[..., i, n - 1 - i + j])


@check
@for_all(n=st.integers(1, 7), past=st.integers(0, 5))
def test_the_short_relative_shift_is_right_up_to_the_diagonal(p, n, past):
    """Transformer-XL's own: columns for the distances m − 1 … 0 only."""
    m = n + past
    x = normal(2, n, m)
    shifted = p.relative_shift(x, m)
    assert shifted.shape == (2, n, m)
    for i in range(n):
        for j in range(i + past + 1):
            distance = i + past - j
            close(shifted[:, i, j], x[:, i, m - 1 - distance])


@check
@for_all(n=st.integers(1, 5), past=st.integers(0, 3))
def test_transformer_xl_scores_are_its_four_terms(p, n, past):
    m = n + past
    q, k, r = normal(2, n, 3), normal(2, m, 3, seed=1), normal(n + m - 1, 3, seed=2)
    u, v = normal(3, seed=3), normal(3, seed=4)
    scores = p.transformer_xl_scores(q, k, r, u, v)
    for i in range(n):
        for j in range(m):
            at = r[m - 1 - (i + past - j)]  # the encoding of the distance
            terms = q[:, i] * k[:, j] + q[:, i] * at + u * k[:, j] + v * at
            close(scores[:, i, j], terms.sum(-1) / 3**0.5)


@check
def test_a_bias_of_the_query_projection_is_the_u_of_transformer_xl(p):
    scheme, q, k = p.TransformerXLPositions(3, 5, 14), normal(2, 3, 4, 5), normal(2, 3, 7, 5)
    randomise(scheme)
    u, v = normal(3, 5, seed=5), normal(3, 5, seed=6)
    r = scheme.encode(arange(6, -4, -1))  # distances m − 1 … −(n − 1)
    paper = p.transformer_xl_scores(q, k, r, u, v)
    with torch.no_grad():
        scheme.v.copy_(v - u)
    biased = q + u[:, None]  # as it comes out of a projection with bias u
    ours = biased @ k.mT / 5**0.5 + scheme.bias(biased, arange(3, 7), arange(7))
    close(ours, paper)


@check
def test_transformer_xl_projects_the_sinusoidal_encoding_of_the_distance(p):
    scheme, distances = randomise(p.TransformerXLPositions(3, 5, 14)), torch.tensor([-2, 0, 9])
    code = p.sinusoidal_encoding(distances, 14, dtype=DOUBLE)
    for h in range(3):
        weight = scheme.r_proj.weight[5 * h : 5 * h + 5]
        close(scheme.encode(distances)[h], code @ weight.T)
