"""Attribution: models whose answer is known in closed form, completeness, finite differences.

A check is `check(kit)`, with `kit` the modules, or copies of them with a planted bug.
"""

import copy
import itertools
from types import SimpleNamespace

import pytest
import scipy.stats
import torch
from captum import attr
from torch import nn

import tfbook.attention
import tfbook.interpret.attribution
import tfbook.interpret.capturing
import tfbook.models

DOUBLE = torch.float64
CHECKS = {}
EMBEDDED = "stack.blocks.0.resid_pre"


def kit_of(copy_of):
    """Put modules side by side, as `copy_of` finds them by their whole names."""
    module = copy_of("tfbook.interpret.attribution")
    return SimpleNamespace(
        models=copy_of("tfbook.models"),
        Tap=copy_of("tfbook.attention").Tap,
        patched=copy_of("tfbook.interpret.capturing").patched,
        taps=copy_of("tfbook.interpret.capturing").taps,
        **{name: getattr(module, name) for name in module.__all__},
    )


@pytest.fixture
def kit():
    return kit_of(lambda name: eval(name, {"tfbook": tfbook}))


def check(run):
    CHECKS[run.__name__] = run
    return run


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def equal(one, other, atol=1e-10):
    other = torch.as_tensor(other, dtype=one.dtype).expand(one.shape)
    torch.testing.assert_close(one, other, atol=atol, rtol=0.0)


def ids(batch=2, n=5, seed=1):
    return torch.randint(11, (batch, n), generator=torch.Generator().manual_seed(seed))


def decoder(kit, n_layers=2):
    models = kit.models
    layer = models.Layer(models.Attention(2), models.FFN(12))
    model = models.build(models.TransformerConfig(11, 8, decoder=[layer] * n_layers))
    for i, value in enumerate(model.double().parameters()):
        value.data = normal(*value.shape, seed=i) / 2
    return model.eval()


def last_logit(out):
    return out[0][:, -1, 3]


def formula(kit, f):
    """A model that is one formula of what passes its only tap."""

    class Formula(nn.Module):
        def __init__(self):
            super().__init__()
            self.tap = kit.Tap()

        def forward(self, x):
            return f(self.tap(x))

    return Formula()


def itself(out):
    return out


# Gradients, and x times them ----------------------------------------------------------------------


@check
def test_gradients_are_finite_differences(kit):
    model, x = decoder(kit), ids()
    seen, gradients = kit.gradients_at(model, last_logit, x)
    assert list(seen) == list(gradients) and len(seen) == 2
    step = 1e-5
    for i, (name, gradient) in enumerate(gradients.items()):
        way = normal(*gradient.shape, seed=i)
        found = []
        for sign in (1, -1):
            moved = {name: seen[name] + sign * step * way}
            with torch.no_grad(), kit.patched(model, moved):
                found.append(last_logit(model(x)).sum())
        equal((found[0] - found[1]) / (2 * step), (gradient * way).sum(), atol=1e-6)
    assert all(each.grad is None and each.requires_grad for each in model.parameters())
    assert not any(each.requires_grad for each in (*seen.values(), *gradients.values()))


@check
def test_the_sign_tells_support_from_opposition(kit):
    """A ⊙ |∂score/∂A|, which is written now and then, says +1 of both halves."""
    model = formula(kit, lambda a: a @ torch.tensor([2.0, -2.0], dtype=DOUBLE))
    half = torch.full((1, 2), 0.5, dtype=DOUBLE)
    found = kit.times_gradient(model, itself, half, at="tap")["tap"]
    equal(found, [[1.0, -1.0]])
    _, gradients = kit.gradients_at(model, itself, half, at="tap")
    equal(half * gradients["tap"].abs(), 1.0)


@check
def test_input_times_gradient_is_the_product(kit):
    w = normal(4)
    square = formula(kit, lambda x: (x @ w).square().sum(-1))
    x = normal(3, 5, 4, seed=1)
    equal(kit.times_gradient(square, itself, x, at="tap")["tap"], 2 * x * w * (x @ w)[..., None])
    model, tokens = decoder(kit), ids()
    found = kit.times_gradient(model, last_logit, tokens, at=EMBEDDED)[EMBEDDED]
    seen, gradients = kit.gradients_at(model, last_logit, tokens, at=EMBEDDED)
    equal(found, seen[EMBEDDED] * gradients[EMBEDDED])


@check
def test_each_sequence_of_a_batch_is_as_alone(kit):
    model, x = decoder(kit), ids(3)
    product = kit.times_gradient(model, last_logit, x)
    whole = kit.integrated_gradients(model, last_logit, x, baseline=normal(8), steps=4)
    for b in range(3):
        alone = kit.times_gradient(model, last_logit, x[b : b + 1])
        for name, each in alone.items():
            equal(product[name][b : b + 1], each)
        one = kit.integrated_gradients(model, last_logit, x[b : b + 1], baseline=normal(8), steps=4)
        equal(whole.values[b : b + 1], one.values)
        equal(whole.gap[b : b + 1], one.gap)


@check
def test_what_the_score_does_not_see_gets_nothing(kit):
    model, x = decoder(kit), ids()

    def early(out):
        return out[0][:, 2, 3]

    product = kit.times_gradient(model, early, x, at=EMBEDDED)[EMBEDDED]
    path = kit.integrated_gradients(model, early, x, baseline=normal(8), steps=5).values
    for found in (product, path):
        equal(found[:, 3:], 0.0)
        assert bool((found[:, :3] != 0).any(-1).all())
    seen, gradients = kit.gradients_at(model, early, x, at="*.resid_post")
    equal(gradients["stack.blocks.1.resid_post"][:, [0, 1, 3, 4]], 0.0)


@check
def test_weights_that_are_fixed_and_switched_off_gradients_do_not_matter(kit):
    model, x = decoder(kit), ids()
    wanted = kit.times_gradient(model, last_logit, x, at=EMBEDDED)[EMBEDDED]
    model.requires_grad_(False)
    with torch.no_grad():
        equal(kit.times_gradient(model, last_logit, x, at=EMBEDDED)[EMBEDDED], wanted)
        found = kit.integrated_gradients(model, last_logit, x, steps=2)
    assert not found.values.requires_grad and not found.gap.requires_grad


# Integrated gradients -----------------------------------------------------------------------------


@check
def test_a_line_owes_each_number_its_term(kit):
    w, x, b = normal(4), normal(2, 3, 4, seed=1), normal(2, 3, 4, seed=2)
    model = formula(kit, lambda x: (x @ w).sum(-1))
    for steps in (1, 7):
        found = kit.integrated_gradients(model, itself, x, at="tap", baseline=b, steps=steps)
        equal(found.values, (x - b) * w)
        equal(found.gap, 0.0)
    equal(kit.integrated_gradients(model, itself, x, at="tap").values, x * w)  # from 0


@check
def test_a_square_is_shared_out_by_its_integral(kit):
    """(w·x)² − (w·b)² = Σ_i (x_i − b_i) w_i w·(x + b): one point in the middle is exact."""
    w, x, b = normal(4), normal(3, 4, seed=1), normal(4, seed=2)
    model = formula(kit, lambda x: (x @ w).square())
    found = kit.integrated_gradients(model, itself, x, at="tap", baseline=b, steps=1)
    equal(found.values, (x - b) * w * ((x + b) @ w)[:, None])
    equal(found.gap, 0.0)


@check
def test_points_of_gauss_are_exact_for_high_powers(kit):
    """n points integrate polynomials of degree 2n − 1, the gradient of x to the 2n."""
    x = torch.tensor([[1.3]], dtype=DOUBLE)
    model = formula(kit, lambda x: x.pow(8).sum(-1))
    equal(kit.integrated_gradients(model, itself, x, at="tap", steps=4).values, x.pow(8))
    assert abs(float(kit.integrated_gradients(model, itself, x, at="tap", steps=3).gap)) > 1e-3


@check
def test_where_the_gradient_is_0_the_way_is_not(kit):
    """1 − relu(1 − x) at x = 2 is flat, and yet all of its change from 0 is x's doing."""
    model = formula(kit, lambda x: 1 - torch.relu(1 - x).sum(-1))
    x = torch.tensor([[2.0]], dtype=DOUBLE)
    equal(kit.times_gradient(model, itself, x, at="tap")["tap"], 0.0)
    found = kit.integrated_gradients(model, itself, x, at="tap", steps=400)
    equal(found.values, 1.0, atol=5e-3)


@check
def test_values_sum_to_the_change_of_the_score(kit):
    model, x = decoder(kit), ids()
    places = ids(seed=5)
    for at, baseline in ((EMBEDDED, model.embed.weight[places].detach()), ("*.1.*.pattern", None)):
        found = kit.integrated_gradients(model, last_logit, x, at=at, baseline=baseline, steps=40)
        (name,) = kit.taps(model, at)
        start = torch.zeros_like(found.values) if baseline is None else baseline
        with torch.no_grad():
            whole = last_logit(model(x))
            with kit.patched(model, {name: start}):
                change = whole - last_logit(model(x))
        summed = found.values.flatten(1).sum(1)
        equal(summed, change, atol=3e-3)
        equal(found.gap, change - summed)
        assert found.gap.shape == (2,) and bool((change.abs() > 0.01).all())
        whole = kit.integrated_gradients(
            model, lambda out: last_logit(out).sum(), x, at=at, baseline=baseline, steps=40
        )
        equal(whole.values, found.values)
        equal(whole.gap, found.gap.sum())


@check
def test_equal_places_get_equal_parts(kit):
    model = formula(kit, lambda x: (x[:, 0] * x[:, 1]).tanh() + x[:, 2])
    x = torch.tensor([[0.7, 0.7, -1.0]], dtype=DOUBLE)
    found = kit.integrated_gradients(model, itself, x, at="tap", steps=30).values
    equal(found[0, 0], found[0, 1])
    equal(found[0, :2].sum(), torch.tensor(0.49, dtype=DOUBLE).tanh())
    equal(found[0, 2], -1.0)


@check
def test_the_model_is_called_as_often_as_promised_and_left_as_it_was(kit):
    calls = []
    model = formula(kit, lambda x: calls.append(1) or x.sum(-1))
    kit.integrated_gradients(model, itself, normal(2, 3), at="tap", steps=9)
    assert len(calls) == 9 + 2 and not model.tap.watched


def test_captum_finds_the_same(kit):
    model, tokens = decoder(kit), ids(3)
    seen, _ = kit.gradients_at(model, last_logit, tokens, at=EMBEDDED)

    def forward(x):
        with kit.patched(model, {EMBEDDED: x}):
            return last_logit(model(tokens[: len(x)]))

    x, start = seen[EMBEDDED], normal(3, 5, 8, seed=4)
    wanted = attr.InputXGradient(forward).attribute(x.clone().requires_grad_())
    equal(kit.times_gradient(model, last_logit, tokens, at=EMBEDDED)[EMBEDDED], wanted)
    for steps in (3, 16):
        wanted, delta = attr.IntegratedGradients(forward).attribute(
            x,
            start,
            n_steps=steps,
            method="gausslegendre",
            internal_batch_size=3,
            return_convergence_delta=True,
        )
        found = kit.integrated_gradients(model, last_logit, tokens, baseline=start, steps=steps)
        equal(found.values, wanted, atol=1e-6)  # its points are rounded to float32
        equal(found.gap, -delta, atol=1e-6)


# Relevance ----------------------------------------------------------------------------------------


@check
def test_relevance_is_the_mean_of_what_each_head_does_for_the_score(kit):
    products = normal(2, 3, 4, 4)
    wanted = sum(products[:, h].relu() for h in range(3)) / 3
    equal(kit.head_relevance(products), wanted)
    opposed = torch.stack([torch.ones(2, 2), -torch.ones(2, 2)])
    equal(kit.head_relevance(opposed), 0.5)  # the mean first would say 0


@check
def test_relevance_is_the_sum_over_the_paths_upwards(kit):
    """(I + Ā_2)(I + Ā_1)(I + Ā_0): of each path a row may stay where it is or go on."""
    products, n = normal(3, 2, 4, 4), 4
    bars = [kit.head_relevance(layer) for layer in products]
    wanted = torch.zeros(n, n, dtype=DOUBLE)
    for path in itertools.product(range(n), repeat=4):
        share = 1.0
        for layer, bar in enumerate(bars):
            above, below = path[layer + 1], path[layer]
            share = share * ((above == below) + bar[above, below])
        wanted[path[3], path[0]] += share
    equal(kit.relevance(products), wanted)
    equal(kit.relevance(products[:1]), torch.eye(n, dtype=DOUBLE) + bars[0])
    batched = torch.stack([products, normal(3, 2, 4, 4, seed=1)], dim=1)
    equal(kit.relevance(batched)[0], wanted)


@check
def test_relevance_sees_no_future_and_no_other_token(kit):
    model, x = decoder(kit), ids()
    products = torch.stack(list(kit.times_gradient(model, last_logit, x).values()))
    found = kit.relevance(products)
    assert found.shape == (2, 5, 5)
    equal(found.triu(1), 0.0)
    assert bool((found >= 0).all())
    equal(products[1][:, :, :-1], 0.0)  # above the last layer only the last row is read


# Sanity -------------------------------------------------------------------------------------------


@check
def test_a_shuffled_copy_has_the_same_numbers_elsewhere(kit):
    model = decoder(kit)
    before = copy.deepcopy(model.state_dict())
    first, again = (
        kit.shuffled(model, "stack.blocks.1.*", generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        other = first.state_dict()[name]
        assert torch.equal(other, again.state_dict()[name])
        if name.startswith("stack.blocks.1."):
            equal(other.flatten().sort().values, value.flatten().sort().values)
            assert not torch.equal(other, value)
        else:
            assert torch.equal(other, value)
    assert not torch.allclose(first(ids())[0], model(ids())[0])
    assert first.embed.weight is not model.embed.weight


@check
def test_rank_correlation_is_that_of_scipy(kit):
    generator = torch.Generator().manual_seed(0)
    for n in (2, 3, 50):
        for high in (3, 1000):  # many ties, few
            a, b = torch.randint(high, (2, n), generator=generator).double()
            a[0], b[0] = high, high + 1.0  # not all alike
            b[1] = -1.0
            wanted = scipy.stats.spearmanr(a.numpy(), b.numpy()).statistic
            assert kit.rank_correlation(a, b) == pytest.approx(float(wanted), abs=1e-12)
    a = normal(4, 5)
    assert kit.rank_correlation(a, a.exp()) == pytest.approx(1)
    assert kit.rank_correlation(a, -a.pow(3)) == pytest.approx(-1)


@check
def test_attribution_changes_with_what_the_model_knows(kit):
    """The test of sanity on products: with weights shuffled they are other ones."""
    model, x = decoder(kit), ids(4)
    other = kit.shuffled(model, generator=torch.Generator().manual_seed(0))
    one, two = (
        kit.times_gradient(each, last_logit, x, at=EMBEDDED)[EMBEDDED].sum(-1)
        for each in (model, other)
    )
    assert abs(kit.rank_correlation(one, two)) < 0.7


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.untyped
def test_what_has_no_gradient_is_refused(kit):
    model, x = decoder(kit), ids()
    for score, error, words in (
        (3, TypeError, "score must be a function"),
        (lambda out: 1.0, TypeError, "score must return a floating-point tensor, got float"),
        (lambda out: out[0].argmax(-1)[0, 0], TypeError, "got torch.int64"),
        (lambda out: out[0], ValueError, r"one for each sequence.*\(2, 5, 11\)"),
        (lambda out: out[0].detach().sum(), ValueError, "score must depend on"),
        (lambda out: model.embed.weight.sum(), ValueError, "score must depend on"),
    ):
        for call in (kit.gradients_at, kit.times_gradient, kit.integrated_gradients):
            with pytest.raises(error, match=words):
                call(model, score, x)
    for call in (kit.gradients_at, kit.integrated_gradients):
        with pytest.raises(ValueError, match="hidden are not, take the tap of the pattern"):
            call(model, last_logit, x, at="*.1.mixer.scores")
        with pytest.raises(ValueError, match="fits no tap"):
            call(model, last_logit, x, at="nowhere")
        with pytest.raises(TypeError, match="model must be a module"):
            call("gpt", last_logit, x)


@pytest.mark.untyped
def test_integrated_gradients_refuse_what_does_not_fit(kit):
    model, x = decoder(kit), ids()
    for wrong, error, words in (
        (dict(at="*.pattern"), ValueError, "at must name one tap, got '\\*.pattern', which fits"),
        (dict(steps=0), ValueError, "steps must be from 1 to 10000, got 0"),
        (dict(steps=2.0), TypeError, "steps must be an integer"),
        (dict(baseline=torch.zeros(9, dtype=DOUBLE)), ValueError, r"broadcast to \(2, 5, 8\)"),
        (dict(baseline=torch.zeros(8)), TypeError, "baseline must be torch.float64"),
        (dict(baseline=0.0), TypeError, "baseline must be a tensor"),
    ):
        with pytest.raises(error, match=words):
            kit.integrated_gradients(model, last_logit, x, **wrong)
    with pytest.raises(ValueError, match=r"each of the 2 sequences, or one in all.*\(5,\)"):
        kit.integrated_gradients(model, lambda out: out[0][0, :, 3], x, steps=1)
    layers = kit.models.share([kit.models.Layer(kit.models.Attention(2), kit.models.FFN(12))] * 2)
    shared = kit.models.build(kit.models.TransformerConfig(11, 8, decoder=layers))
    for call in (kit.gradients_at, kit.integrated_gradients):
        with pytest.raises(ValueError, match="must be passed once in a call, but was 2 times"):
            call(shared, last_logit, x, at="*.0.mixer.pattern")
    unused = formula(kit, lambda x: x)
    unused.other = kit.Tap()
    with pytest.raises(ValueError, match="other, which the model does not pass"):
        kit.integrated_gradients(unused, itself, normal(2), at="other")


@pytest.mark.untyped
def test_what_is_no_product_or_number_is_refused(kit):
    for call, least in ((kit.head_relevance, 3), (kit.relevance, 4)):
        for wrong, error, words in (
            (normal(2, 2), ValueError, f"at least {least} dimensions"),
            (normal(2, 2, 2, 0), ValueError, "not be empty"),
            (torch.ones(2, 2, 2, 2).long(), TypeError, "floating-point"),
            ("zz", TypeError, "must be a tensor"),
        ):
            with pytest.raises(error, match=words):
                call(wrong)
    with pytest.raises(ValueError, match="square"):
        kit.relevance(normal(2, 2, 3, 4))
    a = normal(5)
    for one, other, error, words in (
        (a, normal(4), ValueError, "b must have shape"),
        (a, torch.ones(5), ValueError, "b must hold numbers to rank"),
        (a * torch.nan, a, ValueError, "a must hold numbers to rank"),
        (a[:1], a[:1], ValueError, "a must hold numbers to rank"),
        (a, a.tolist(), TypeError, "b must be a tensor"),
    ):
        with pytest.raises(error, match=words):
            kit.rank_correlation(one, other)
    with pytest.raises(ValueError, match="'zz' fits no parameter"):
        kit.shuffled(nn.Linear(2, 3), "zz")
    with pytest.raises(TypeError, match="where must be the name"):
        kit.shuffled(nn.Linear(2, 3), 3)
    with pytest.raises(TypeError, match="model must be a module"):
        kit.shuffled("gpt")
    with pytest.raises(TypeError, match="generator"):
        kit.shuffled(nn.Linear(2, 3), generator=3)
