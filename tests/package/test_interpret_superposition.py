"""More features than dimensions: the exact loss against quadrature and draws, known packings.

A test that takes `kit` gets the module; planted bugs (test_interpret_dictionary_mutants.py) are put
through the same tests.
"""

import itertools
import math

import pytest
import torch
from test_interpret_lens import checks

from tfbook.interpret import superposition


@pytest.fixture
def kit():
    return superposition


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def on_a_grid(weight, bias, density, importance, points=600):
    """The loss of two features by the midpoint rule: features off, one on, both on."""
    t = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    zero = torch.zeros(1, dtype=torch.float64)
    total = 0.0
    for on in itertools.product((False, True), repeat=2):
        axes = [t if each else zero for each in on]
        x = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
        made = (x @ weight.T @ weight + bias).relu()
        chance = math.prod(density if each else 1 - density for each in on)
        total += chance * ((x - made).square() * importance).sum(-1).mean().item()
    return total


@pytest.mark.parametrize("density", [0.1, 0.7])
def test_the_exact_loss_is_that_of_a_fine_grid(density):
    for seed in range(3):
        weight = torch.randn(1, 2, generator=seeded(seed), dtype=torch.float64)
        bias = torch.randn(2, generator=seeded(seed + 9), dtype=torch.float64) / 3
        importance = torch.tensor([1.0, 0.3], dtype=torch.float64)
        exact = superposition.expected_loss(weight, bias, density, importance)
        assert exact == pytest.approx(on_a_grid(weight, bias, density, importance), abs=3e-6)


def test_the_exact_loss_is_the_mean_of_many_draws(kit):
    model = kit.SuperpositionModel(4, 2, generator=seeded(1))
    with torch.no_grad():
        model.bias.copy_(torch.tensor([[-0.2, 0.1, 0.0, 0.3]]))
    importance = torch.tensor([1.0, 0.5, 2.0, 0.25])
    x = kit.draw_features(4, 400_000, 0.4, generator=seeded(2))
    drawn = ((x - model(x)).square() * importance).sum(-1).detach()
    exact = kit.expected_loss(model.weight[0], model.bias[0], 0.4, importance)
    error = drawn.std().item() / len(drawn[0]) ** 0.5
    assert exact == pytest.approx(drawn.mean().item(), abs=5 * error)


def test_an_antipodal_pair_pays_up_to_a_density_of_four_sevenths(kit):
    """By hand: p² / 3 for the pair W = (1, −1), p / 3 − p² / 4 for one feature alone."""
    pair, alone = torch.tensor([[1.0, -1.0]]), torch.tensor([[1.0, 0.0]])
    for p in (0.1, 0.5, 4 / 7, 0.7):
        assert kit.expected_loss(pair, torch.zeros(2), p) == pytest.approx(p**2 / 3, rel=1e-6)
        lost = kit.expected_loss(alone, torch.tensor([0.0, p / 2]), p)
        assert lost == pytest.approx(p / 3 - p**2 / 4, rel=1e-6)


def test_nothing_is_lost_where_the_entries_are_small(kit):
    """Close to zero weights, by the values and by a series."""
    loss = kit.expected_loss(1e-6 * torch.ones(1, 6), torch.zeros(6), 1.0)
    assert loss == pytest.approx(6 / 3, abs=1e-9)
    same = kit.expected_loss(torch.zeros(1, 6), torch.zeros(6), 1.0)
    assert same == pytest.approx(2.0, abs=1e-12)


def test_instances_share_nothing(kit):
    """Three at once, and what gradients of a sum give: each is as if it were alone."""
    model = kit.SuperpositionModel(5, 2, 3, generator=seeded(3))
    x = kit.draw_features(5, 50, torch.tensor([0.2, 0.5, 0.9]), generator=seeded(4))
    with torch.no_grad():
        model.bias.copy_(torch.linspace(-0.2, 0.3, 15).view(3, 5))
    made = model(x)
    for i in range(3):
        alone = (x[i] @ model.weight[i].T @ model.weight[i] + model.bias[i]).clamp(min=0)
        torch.testing.assert_close(made[i], alone)
    made[1].sum().backward()
    assert model.weight.grad[1].abs().sum() > 0
    assert model.weight.grad[[0, 2]].abs().sum() == 0


def test_features_are_on_as_often_as_they_should_and_uniform(kit):
    x = kit.draw_features(20, 20_000, torch.tensor([0.05, 0.6, 0.0]), generator=seeded())
    assert x.shape == (3, 20_000, 20)
    share = (x > 0).float().mean((1, 2))
    torch.testing.assert_close(share, torch.tensor([0.05, 0.6, 0.0]), atol=0.005, rtol=0)
    on = x[1][x[1] > 0]
    assert on.max() < 1 and abs(on.mean() - 0.5) < 0.005 and abs(on.var() - 1 / 12) < 0.002


def test_polygons_have_the_packing_that_geometry_gives_them(kit):
    for n in (3, 4, 5, 6):
        turn = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
        found = kit.packing(torch.stack([turn.cos(), turn.sin()]))
        torch.testing.assert_close(found.norms, torch.ones(n, dtype=torch.float64))
        torch.testing.assert_close(found.dimensions, torch.full((n,), 2 / n, dtype=torch.float64))
        assert found.per_dimension.item() == pytest.approx(n / 2)
        others = sum(math.cos(2 * math.pi * i / n) ** 2 for i in range(1, n))
        assert found.interference[0].item() == pytest.approx(others)


def test_dimensions_add_up_to_those_that_are_used(kit):
    """For tight frames; a wide matrix with equal columns' norms need not be one, a basis is."""
    basis = torch.linalg.qr(torch.randn(6, 6, generator=seeded(5), dtype=torch.float64))[0]
    found = kit.packing(2.5 * basis)
    assert found.dimensions.sum().item() == pytest.approx(6)
    assert found.interference.abs().max() < 1e-12
    nothing = kit.packing(torch.zeros(2, 3))
    assert not any(each.isnan().any() or each.any() for each in nothing)


def test_dense_features_take_a_dimension_each_and_sparse_ones_share(kit):
    """Two instances trained at once, and no other difference between them."""
    model = kit.SuperpositionModel(5, 2, 2, generator=seeded(0))
    importance = 0.8 ** torch.arange(5.0)
    density = torch.tensor([1.0, 0.05])
    losses = kit.fit_superposition(
        model, density, importance, steps=300, batch=256, lr=0.03, generator=seeded(6)
    )
    packed = kit.packing(model.weight).norms
    dense, sparse = (int(each) for each in (packed > 0.5).sum(-1))
    assert dense == 2 and sparse >= 4
    assert set(packed[0].topk(2).indices.tolist()) == {0, 1}  # those that count most
    assert losses.shape == (300, 2)
    for i in range(2):
        exact = kit.expected_loss(model.weight[i], model.bias[i], density[i].item(), importance)
        assert losses[-30:, i].mean().item() == pytest.approx(exact, rel=0.2)


def test_the_same_seeds_train_the_same_weights(kit):
    def trained():
        model = kit.SuperpositionModel(3, 2, generator=seeded(1))
        kit.fit_superposition(model, 0.3, steps=5, batch=8, generator=seeded(2))
        return model.weight

    assert torch.equal(trained(), trained())


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.expected_loss(torch.ones(2, 9), torch.zeros(9), 0.1), "n at most 8"),
        (lambda m: m.expected_loss(torch.ones(2, 3), torch.zeros(2), 0.1), "bias must have"),
        (lambda m: m.expected_loss(torch.ones(2, 3), torch.zeros(3), 1.1), "density must be"),
        (lambda m: m.expected_loss(torch.full((1, 2), math.inf), torch.zeros(2), 0.1), "finite"),
        (lambda m: m.draw_features(3, 2, torch.tensor([0.1, -0.1])), "probabilities"),
        (lambda m: m.draw_features(3, 2, torch.zeros(2, 2)), "density must have shape"),
        (lambda m: m.packing(torch.zeros(0, 3)), "weight must not be empty"),
        (lambda m: m.SuperpositionModel(3, 2)(torch.zeros(2, 4, 3)), "x must have shape"),
        (
            lambda m: m.fit_superposition(m.SuperpositionModel(3, 2, 2), torch.ones(3)),
            "density must be one number, or 2",
        ),
        (
            lambda m: m.fit_superposition(m.SuperpositionModel(3, 2), 0.1, torch.ones(2)),
            "importance must have shape",
        ),
        (
            lambda m: m.fit_superposition(m.SuperpositionModel(3, 2), 0.1, -torch.ones(3)),
            "no number below 0",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(superposition)


CHECKS = checks(globals())
