"""Similarity of rows: against Gram matrices written out, scipy, and what must not change it."""

import pytest
import scipy.spatial
import scipy.stats
import torch
from test_interpret_probing import DOUBLE, drawn, kit_of

from tfbook.interpret import similarity

CHECKS = {}


@pytest.fixture
def kit():
    return kit_of(similarity)


def check(run):
    CHECKS[run.__name__] = run
    return run


def turned(d, seed=3):
    return torch.from_numpy(scipy.stats.ortho_group.rvs(d, random_state=seed))


def related(t=40, d=6, e=9, seed=0):
    x = drawn(t, d, seed=seed)
    return x, x @ drawn(d, e, seed=seed + 1) + 2 * drawn(t, e, seed=seed + 2)


def close(one, other, atol=1e-10):
    torch.testing.assert_close(one, torch.as_tensor(other, dtype=DOUBLE), atol=atol, rtol=0)


def by_gram(x, y):
    """The cosine of centred Gram matrices, with the centring matrix written out."""
    t = len(x)
    centre = torch.eye(t, dtype=DOUBLE) - 1 / t
    one, two = centre @ x @ x.mT @ centre, centre @ y @ y.mT @ centre
    return (one * two).sum() / (one.norm() * two.norm())


def unbiased_hsic(x, y):
    """The estimate of Song et al. (2012), eq. 4, as it stands there."""
    n = len(x)
    k, m = (each @ each.mT for each in (x, y))
    k, m = (each - torch.diag(each.diagonal()) for each in (k, m))
    ones = torch.ones(n, dtype=DOUBLE)
    whole = (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    return ((k @ m).trace() + whole - 2 / (n - 2) * ones @ k @ m @ ones) / (n * (n - 3))


@check
def test_cka_is_the_cosine_of_centred_gram_matrices(kit):
    for t, d, e in ((40, 6, 9), (7, 20, 3), (5, 1, 1)):
        x, y = related(t, d, e)
        close(kit.cka(x + 3, y - 1), by_gram(x + 3, y - 1))
    close(kit.cka(x, x), 1.0)


@check
def test_unbiased_cka_is_made_of_unbiased_estimates(kit):
    for t, d, e in ((40, 6, 9), (7, 20, 3)):
        x, y = related(t, d, e)
        own = unbiased_hsic(x, x) * unbiased_hsic(y, y)
        close(kit.cka(x + 2, y, unbiased=True), unbiased_hsic(x, y) / own.sqrt())


@check
def test_what_changes_neither(kit):
    x, y = related()
    for measure in (kit.cka, kit.procrustes_distance, lambda *a: kit.cka(*a, unbiased=True)):
        wanted = measure(x, y)
        close(measure(y, x), wanted)
        close(measure(7e-5 * x @ turned(6) + drawn(6, seed=9), y @ turned(9, 4) * 1e4), wanted)
        order = torch.randperm(40, generator=torch.manual_seed(0))
        close(measure(x[order], y[order]), wanted)
        close(measure(torch.cat([x, torch.zeros(40, 3)], 1), y), wanted)
        assert abs(float(measure(x[order], y) - wanted)) > 0.02  # inputs have to be the same
        stretched = x @ torch.diag(torch.tensor([30.0, 1, 1, 1, 1, 0.1]).double())
        assert abs(float(measure(stretched, y) - wanted)) > 0.02  # invertible, and not the same


@check
def test_rows_without_relation_look_alike_unless_the_bias_is_gone(kit):
    pairs = [(drawn(30, 60, seed=s), drawn(30, 60, seed=100 + s)) for s in range(20)]
    plain = torch.stack([kit.cka(*pair) for pair in pairs])
    without = torch.stack([kit.cka(*pair, unbiased=True) for pair in pairs])
    assert float(plain.min()) > 0.5 and abs(float(without.mean())) < 0.03
    assert float(without.min()) < 0


@check
def test_procrustes_is_the_distance_after_the_best_turn(kit):
    for d, e in ((6, 6), (5, 8)):
        x, y = related(d=d, e=e)
        one, two, left = scipy.spatial.procrustes(  # which fills up nothing, and scales x to fit
            *(torch.nn.functional.pad(z, (0, 8 - z.shape[1])).numpy() for z in (x, y))
        )
        share = 1 - left  # scipy also scales the second: 1 - s², s the sum of singular values
        close(kit.procrustes_distance(x, y), 2 - 2 * share**0.5, atol=1e-8)
    close(kit.procrustes_distance(x, -3 * x), 0.0)


@check
def test_the_root_of_procrustes_obeys_the_triangle_inequality(kit):
    for seed in range(20):
        x, y, z = (drawn(8, 3, seed=3 * seed + i) for i in range(3))
        a, b, c = (kit.procrustes_distance(*pair).sqrt() for pair in ((x, y), (y, z), (x, z)))
        assert float(c) <= float(a + b) + 1e-9


@check
def test_a_table_is_made_of_pairs(kit):
    xs, ys = drawn(3, 20, 4), drawn(2, 20, 7, seed=1)
    for unbiased in (False, True):
        found = kit.cka_table(xs, ys, unbiased=unbiased)
        assert found.shape == (3, 2)
        close(found[2, 1], kit.cka(xs[2], ys[1], unbiased=unbiased))
        close(found[0, 1], kit.cka(xs[0], ys[1], unbiased=unbiased))


@check
def test_gradients_are_those_of_differences(kit):
    x, y = related(12, 3, 4)
    x = x.requires_grad_()
    for measure in (kit.cka, kit.procrustes_distance, lambda *a: kit.cka(*a, unbiased=True)):
        assert torch.autograd.gradcheck(lambda x, m=measure: m(x, y), (x,))


@check
def test_large_and_small_numbers_neither_overflow_nor_vanish(kit):
    x, y = related()
    for factor in (1e-200, 1e150):
        close(kit.cka(factor * x, y), kit.cka(x, y))
        close(kit.procrustes_distance(factor * x, y), kit.procrustes_distance(x, y))
    half = kit.cka(x.half(), y.bfloat16())
    close(half, kit.cka(x, y), atol=0.01)


@pytest.mark.untyped
def test_bad_arguments_are_refused_in_words():
    x, y = related()
    square = torch.eye(4)
    bad = {
        "x must have shape": lambda: similarity.cka(x[0], y),
        "y must have a floating-point dtype": lambda: similarity.cka(x, y.long()),
        "as many each, got 40 and 39": lambda: similarity.cka(x, y[1:]),
        "x must be finite": lambda: similarity.cka(x / 0, y),
        "x must have rows that differ": lambda: similarity.cka(x * 0 + 1, y),
        "y must have rows that differ": lambda: similarity.procrustes_distance(x, y * 0),
        "unbiased must be True or False": lambda: similarity.cka(x, y, unbiased=1),
        "unbiased needs at least 4": lambda: similarity.cka(x[:3], y[:3], unbiased=True),
        "equally far from each other": lambda: similarity.cka(square, square, unbiased=True),
        "xs must have shape": lambda: similarity.cka_table(x, y[None]),
    }
    for words, call in bad.items():
        with pytest.raises((TypeError, ValueError), match=words):
            call()
