"""Linear attention and random features: three forms of one sum, and an estimate of the softmax."""

import dataclasses
import functools
import itertools
import math

import fresh
import numpy as np
import pytest
import torch
from attention_properties import CHECKS, DOUBLE, SINGLE, Bound, Case, by_the_book, close, gradients
from counterexamples_linear import keys_only
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import peak_memory
from tfbook.attention import VARIANTS, attend, merge_partials
from tfbook.efficient import (
    FEATURES,
    attend_features,
    attend_linear,
    draw_projection,
    elu_features,
    fourier_features,
    kernel_variance,
    positive_features,
    state_chunked,
    state_parallel,
    state_recurrent,
)

NEVER = -torch.inf
FORMS = {
    "parallel": state_parallel,
    "recurrent": state_recurrent,
    "chunked": functools.partial(state_chunked, chunk=3),
    "one chunk": state_chunked,
    "chunks of one": functools.partial(state_chunked, chunk=1),
}
form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def normal(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def state_inputs(n=11, d=4, e=5, grad=False):
    """Queries, keys, values, log-decays and a state, of two sequences and three heads."""
    q, k, v = normal(2, 3, n, d), normal(2, 3, n, d, seed=1), normal(2, 3, n, e, seed=2)
    decay, state = -normal(2, 3, n, seed=3).abs(), normal(2, 3, d, e, seed=4)
    return [x.requires_grad_(grad) for x in (q, k, v, decay, state)]


def token_by_token(q, k, v, decay=None, state=None):
    """The recurrence as it stands on paper, with NumPy's loops."""
    q, k, v = (x.detach().numpy() for x in (q, k, v))
    lead, (n, d), e = k.shape[:-2], k.shape[-2:], v.shape[-1]
    new = np.zeros((*lead, d, e)) if state is None else state.detach().numpy().copy()
    ys = np.zeros((*lead, n, e))
    for at in np.ndindex(*lead):
        for t in range(n):
            g = 1.0 if decay is None else math.exp(decay[at][t])
            new[at] = g * new[at] + np.outer(k[at][t], v[at][t])
            ys[at][t] = q[at][t] @ new[at]
    return torch.from_numpy(ys), torch.from_numpy(new)


# The state


@form
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 11])
def test_every_form_is_the_recurrence(form, n):
    q, k, v, decay, state = state_inputs(n)
    for chosen in ({}, {"decay": decay}, {"state": state}, {"decay": decay, "state": state}):
        wanted = token_by_token(q, k, v, **chosen)
        found = form(q, k, v, log_decay=chosen.get("decay"), state=chosen.get("state"))
        for mine, theirs in zip(found, wanted, strict=True):
            close(mine, theirs)


@pytest.mark.parametrize("decayed", [False, True])
def test_every_form_has_the_same_gradients(decayed):
    inputs = state_inputs(grad=True)
    probes = normal(2, 3, 11, 5, seed=7), normal(2, 3, 4, 5, seed=8)
    found = []
    for form in FORMS.values():
        q, k, v, decay, state = inputs
        y, last = form(q, k, v, log_decay=decay if decayed else None, state=state)
        loss = (y * probes[0]).sum() + (last * probes[1]).sum()
        found.append(torch.autograd.grad(loss, inputs[:3] + inputs[3 if decayed else 4 :]))
    for others in found[1:]:
        for mine, theirs in zip(found[0], others, strict=True):
            close(mine, theirs)


@form
def test_the_gradients_are_those_of_finite_differences(form):
    def run(q, k, v, decay, state):
        return form(q, k, v, log_decay=decay, state=state)

    small = [x[0, 0].detach()[..., :4, :] for x in state_inputs(4)[:3]]
    rest = [normal(4).abs().neg(), normal(4, 5)]
    assert torch.autograd.gradcheck(run, [x.clone().requires_grad_() for x in (*small, *rest)])


@form
def test_pieces_with_a_state_are_the_whole(form):
    q, k, v, decay, state = state_inputs()
    whole, last = form(q, k, v, log_decay=decay, state=state)
    pieces = []
    for a, b in itertools.pairwise((0, 2, 3, 3, 8, 11)):
        cut = (x[..., a:b, :] for x in (q, k, v))
        y, state = form(*cut, log_decay=decay[..., a:b], state=state)
        pieces.append(y)
    close(torch.cat(pieces, dim=-2), whole)
    close(state, last)


@form
def test_a_zero_key_without_decay_leaves_no_trace(form):
    q, k, v, decay, state = state_inputs()
    there = torch.tensor([1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 0], dtype=torch.bool)
    y, last = form(q, k * there[:, None], v, log_decay=decay * there, state=state)
    some = (x[..., there, :] for x in (q, k, v))
    wanted, end = form(*some, log_decay=decay[..., there], state=state)
    close(y[..., there, :], wanted)
    close(last, end)


@form
def test_a_decay_of_minus_infinity_forgets_everything(form):
    q, k, v, decay, state = state_inputs(grad=True)
    cut = decay.detach().clone()
    cut[..., 5] = NEVER
    cut.requires_grad_()
    y, last = form(q, k, v, log_decay=cut, state=state)
    late = [x[..., 5:, :] for x in (q, k, v)]
    fresh_start, end = form(*late, log_decay=decay[..., 5:])
    close(y[..., 5:, :], fresh_start)
    close(last, end)
    slopes = torch.autograd.grad(last.sum(), (k, v, cut, state))
    assert all(g.isfinite().all() for g in slopes)
    assert (slopes[0][..., :5, :].abs() < 1e-30).all() and (slopes[3].abs() < 1e-30).all()


@form
def test_shared_keys_and_one_decay_for_all_are_those_written_out(form):
    q, k, v = normal(2, 3, 7, 4), normal(2, 1, 7, 4, seed=1), normal(2, 1, 7, 5, seed=2)
    decay = -normal(7, seed=3).abs()
    y, state = form(q, k, v, log_decay=decay)
    assert state.shape == (2, 1, 4, 5)  # the queries do not multiply it
    wanted, _ = form(q, k.expand(2, 3, 7, 4), v.expand(2, 3, 7, 5), log_decay=decay.expand(2, 3, 7))
    close(y, wanted)


def test_float32_stays_near_float64_over_many_tokens():
    q, k, v = (normal(3000, 8, seed=s) for s in range(3))
    for decay in (-normal(3000, seed=5).abs() * 0.01, -10 * normal(3000, seed=6).abs()):
        wanted, _ = state_recurrent(q, k, v, log_decay=decay)
        y, _ = state_chunked(q.float(), k.float(), v.float(), log_decay=decay.float())
        assert (y - wanted).abs().max() < 5e-6 * wanted.abs().max()


def test_half_precision_sums_in_float32():
    q, k, v = (normal(4000, 4, seed=s).abs() for s in range(3))
    wanted, _ = state_recurrent(q, k, v)
    for dtype in (torch.float16, torch.bfloat16):
        y, state = state_chunked(*(x.to(dtype) for x in (q / 4000, k, v)))
        assert y.dtype == dtype and state.dtype == SINGLE
        close(4000 * y.to(DOUBLE), wanted, atol=0.5, rtol=2e-2)


@pytest.mark.untyped
def test_a_form_refuses_what_does_not_fit():
    q, k, v, decay, state = state_inputs()
    bad = (
        (TypeError, "q must be a tensor", (None, k, v), {}),
        (TypeError, "k must have a floating-point", (q, k.long(), v), {}),
        (TypeError, "same dtype", (q, k, v.float()), {}),
        (ValueError, r"q must have shape \(..., n, d\)", (q[..., :3], k, v), {}),
        (ValueError, r"q must have shape \(..., n, d\)", (q[..., :3, :], k, v), {}),
        (ValueError, r"v must have shape \(..., n, e\)", (q, k, v[..., 1:, :]), {}),
        (ValueError, "do not broadcast", (q, k[:, :2], v), {}),
        (ValueError, "log_decay must have shape", (q, k, v), {"log_decay": decay[..., :1]}),
        (ValueError, "do not broadcast", (q, k, v), {"log_decay": decay[:, :2]}),
        (TypeError, "log_decay must be a tensor", (q, k, v), {"log_decay": -1.0}),
        (ValueError, "state must have shape", (q, k, v), {"state": state.mT}),
        (ValueError, "state must be on the device", (q, k, v), {"state": state.to("meta")}),
    )
    for error, message, given, further in bad:
        for each in (state_parallel, state_recurrent, state_chunked):
            with pytest.raises(error, match=message):
                each(*given, **further)
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        state_chunked(q, k, v, chunk=0)


# Linear attention


def weights_by_hand(q, k, feature, allowed):
    """φ(q) · φ(k) over their sum, as it stands on paper."""
    phi = {
        "elu": lambda x: x + 1 if x > 0 else math.exp(x),
        "relu": lambda x: max(x, 0.0),
        "squared_relu": lambda x: max(x, 0.0) ** 2,
    }[feature]
    rows = []
    for i in range(len(q)):
        row = [
            sum(phi(a) * phi(b) for a, b in zip(q[i].tolist(), k[j].tolist(), strict=True))
            if allowed[i][j]
            else 0.0
            for j in range(len(k))
        ]
        total = sum(row)
        rows.append([x / total if total else 0.0 for x in row])
    return torch.tensor(rows, dtype=DOUBLE)


LENGTHS = [(5, 5), (3, 7), (7, 3), (1, 6), (6, 1), (4, 0), (0, 4)]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("way", ["parallel", "recurrent", "chunked"])
def test_each_form_mixes_by_the_weights_on_paper(feature, way):
    for (n, m), causal in itertools.product(LENGTHS[:5], (False, True)):
        q, k, v = normal(n, 3), normal(m, 3, seed=1), normal(m, 2, seed=2)
        keep = torch.arange(m) % 3 != 1
        for mask in (None, keep[None]):
            allowed = torch.ones(n, m, dtype=torch.bool) if mask is None else mask.expand(n, m)
            if causal:
                allowed = allowed & (torch.arange(m) <= torch.arange(n)[:, None] + m - n)
            wanted = weights_by_hand(q, k, feature, allowed) @ v
            given = {"mask": mask, "causal": causal, "feature": feature, "chunk": 2}
            close(attend_linear(q, k, v, form=way, **given), wanted)


@pytest.mark.parametrize(("n", "m"), LENGTHS)
@pytest.mark.parametrize("fn", [attend_linear, attend_features])
def test_the_three_forms_agree_and_so_do_their_gradients(n, m, fn):
    case = Case(n=n, m=m, d=4, e=3)
    q, k, v = inputs = [
        normal(2, *shape, seed=s).requires_grad_()
        for s, shape in enumerate([(n, 4), (m, 4), (m, 3)])
    ]
    mask = case.chance(2, 1, m, p=0.7)
    for causal in (False, True):
        found = []
        for way in ("parallel", "recurrent", "chunked"):
            got, lse = fn(
                q, k, v, mask=mask, causal=causal, form=way, chunk=2, scale=0.7, return_lse=True
            )
            finite = lse.masked_fill(lse == NEVER, 0.0)
            slopes = torch.autograd.grad((got.square().sum() + finite.sum()), inputs)
            found.append((got, lse, *slopes))
        for one, other in itertools.combinations(found, 2):
            for mine, theirs in zip(one, other, strict=True):
                close(mine, theirs)


# What takes a bias, or a mask of its own for each query, is no test of a form that refuses both.
ASK_MORE = {
    "test_the_gradient_of_lse_is_the_weights",
    "test_lse_of_a_row_without_keys_is_minus_infinity",
    "test_output_lies_between_the_extreme_values_in_every_direction",
    "test_the_newest_visible_key_is_in_reach",
    "test_causal_and_a_mask_allow_what_both_allow",
    "test_a_masked_key_does_not_change_the_query_it_is_hidden_from",
    "test_a_query_without_keys_gives_zeros_and_zero_gradient",
    "test_all_queries_without_keys_give_zeros_and_zero_gradient",
}
BOTH = {"weights", "bias", "score_shift", "proportional"}
SHORTER = {
    "linear": (attend_linear, {"chunk": 2}),
    "features": (attend_features, {"chunk": 2, "n_features": 16}),
}


@pytest.mark.parametrize(
    ("fn", "check"),
    [
        pytest.param(name, check, id=f"{name}-{check.name}")
        for name in SHORTER
        for check in CHECKS.values()
        if check.property in VARIANTS[name].has - BOTH
        and check.name not in ASK_MORE
        and not check.untyped
    ],
)
def test_the_forms_without_weights_have_the_properties_too(fn, check):
    fn, options = SHORTER[fn]
    check = dataclasses.replace(check, examples=min(check.examples, 1))
    check(Bound(keys_only(functools.partial(fn, **options))))


@pytest.mark.untyped
def test_chunks_whose_state_fades_compile():
    fn, options = SHORTER["features"]
    module = fn.__module__
    plain = getattr(fresh.copies("plain_linear", ["tfbook.attention", module]), fn.__name__)
    (check,) = (each for each in CHECKS.values() if each.property == "compile")
    check(Bound(keys_only(functools.partial(plain, **options))))


@pytest.mark.untyped
@pytest.mark.parametrize("name", ["linear", "features"])
def test_only_the_parallel_form_takes_a_bias_a_mask_of_rows_and_hands_out_weights(name):
    fn, (q, k, v) = VARIANTS[name].fn, Case().qkv()
    whole = torch.ones(5, 7, dtype=torch.bool)
    for way in ("chunked", "recurrent"):
        for given, what in (
            ({"bias": torch.zeros(5, 7, dtype=DOUBLE)}, "bias"),
            ({"mask": whole}, r"a mask \(..., n, m\)"),
            ({"return_weights": True}, "return_weights"),
        ):
            with pytest.raises(ValueError, match=f"{way}.*cannot serve {what}"):
                fn(q, k, v, form=way, **given)
    for wrong, error in (("circle", ValueError), (None, ValueError), (3, ValueError)):
        with pytest.raises(error, match="form must be one of"):
            VARIANTS[name].fn(q, k, v, form=wrong)


@pytest.mark.parametrize("way", ["parallel", "recurrent", "chunked"])
@pytest.mark.parametrize("name", ["linear", "features"])
def test_queries_without_keys_get_zeros_and_give_no_gradient(name, way):
    fn = VARIANTS[name].fn
    for dtype in (DOUBLE, SINGLE, torch.float16, torch.bfloat16):
        q, k, v = inputs = Case(n=7, m=7, batch=()).qkv(dtype=dtype, grad=True)
        mask = (torch.arange(7) > 2)[None]  # the first three queries see none when causal
        output = fn(q, k, v, mask=mask, causal=True, form=way, chunk=2)
        assert (output[:3] == 0).all() and (output[3:] != 0).any()
        dq, dk, dv = gradients(output, inputs)
        assert (dq[:3] == 0).all() and (dk[:3] == 0).all() and (dv[:3] == 0).all()
        assert all(g.isfinite().all() for g in (dq, dk, dv))
        for causal in (False, True):
            nothing = fn(q, k, v, mask=mask & False, causal=causal, form=way)
            assert (nothing == 0).all()
            assert all((g == 0).all() for g in gradients(nothing, inputs))


@pytest.mark.parametrize("way", ["parallel", "recurrent", "chunked"])
def test_a_query_without_features_gets_zeros_and_not_nan(way):
    q, k, v = inputs = [x.requires_grad_() for x in (normal(5, 3), normal(5, 3), normal(5, 2))]
    with torch.no_grad():
        q[1], k[3] = -1.0, -2.0
    for causal in (False, True):
        output = attend_linear(q, k, v, feature="relu", form=way, causal=causal)
        assert (output[1] == 0).all() and output.isfinite().all()
        assert all(g.isfinite().all() for g in gradients(output, inputs))


@pytest.mark.parametrize("way", ["parallel", "recurrent", "chunked"])
def test_no_size_of_queries_and_keys_gives_nan(way):
    for name, size in itertools.product(("linear", "features"), (1e-30, 1.0, 30.0, 1e3, 1e6)):
        q, k, v = (x.requires_grad_() for x in Case(n=7, batch=()).qkv(dtype=SINGLE))
        for scaled in ((q * size, k), (q, k * size), (q * size, k * size)):
            output = VARIANTS[name].fn(*scaled, v, causal=True, form=way, chunk=3)
            assert output.isfinite().all(), (name, size)
            assert not any(g.isnan().any() for g in gradients(output, (q, k, v))), (name, size)


def test_the_gradient_grows_as_the_sum_of_weights_shrinks():
    k, v = normal(4, 3), normal(4, 2)
    steepest = []
    for low in (0.0, -4.0, -8.0):
        q = torch.full((1, 3), low, dtype=DOUBLE)
        q[0, 0] = low + 1
        phi = elu_features(q).requires_grad_()
        output = attend_linear(phi, k, v, feature=lambda x: x.clamp(min=0))
        steepest.append(torch.autograd.grad(output[0, 0], phi)[0].abs().max().item())
    assert steepest[1] / steepest[0] == pytest.approx(math.e**4 * 2 / math.e, rel=0.5)
    assert steepest[2] / steepest[1] == pytest.approx(math.e**4, rel=1e-6)


@pytest.mark.untyped
def test_a_feature_may_be_any_function():
    q, k, v = Case().qkv()
    wide = attend_linear(q, k, v, feature=lambda x: torch.cat([x.exp(), (-x).exp()], -1))
    weights = torch.cosh(q[..., :, None, :] + k[..., None, :, :]).sum(-1)
    close(wide, (weights / weights.sum(-1, keepdim=True)) @ v)
    for bad, error in ((lambda x: x[..., :1, :], ValueError), (lambda x: 3, TypeError)):
        with pytest.raises(error, match="what feature returns"):
            attend_linear(q, k, v, feature=bad)
    for bad in ("cosine", 3, None):
        with pytest.raises(ValueError, match="feature must be one of elu, relu, squared_relu"):
            attend_linear(q, k, v, feature=bad)


def test_parts_of_the_keys_merge_by_the_logarithm_of_the_sums():
    q, k, v = Case().qkv()
    for fn in (attend_linear, attend_features):
        parts = [fn(q, k[:, p], v[:, p], return_lse=True) for p in ([0, 1, 2], [3, 4, 5, 6])]
        whole = fn(q, k, v, return_lse=True)
        for mine, theirs in zip(merge_partials(*zip(*parts, strict=True)), whole, strict=True):
            close(mine, theirs)


# Costs


def counted(fn, *given, **options):
    with FlopCounterMode(display=False) as counter:
        fn(*given, **options)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", ["linear", "features"])
@pytest.mark.parametrize(("n", "m"), [(13, 13), (5, 12), (9, 7)])
def test_flops_are_those_counted(name, n, m):
    variant = VARIANTS[name]
    for hides, way in itertools.product((True, False), ("chunked", "parallel")):
        options = {"form": way, "chunk": 4} | ({"n_features": 6} if name == "features" else {})
        given = normal(n, 8), normal(m, 8), normal(m, 5)
        priced = variant.flops(n, m, 8, 5, causal=hides, **options)
        assert sum(priced) == counted(variant.fn, *given, causal=hides, **options)


@pytest.mark.parametrize("name", ["linear", "features"])
def test_memory_grows_with_the_length_not_with_its_square(name):
    def peak(n, **options):
        q, k, v = (torch.randn(n, 8, requires_grad=True) for _ in range(3))
        run = functools.partial(VARIANTS[name].fn, q, k, v, causal=True, **options)
        return peak_memory(lambda: run().sum().backward())

    options = {"n_features": 8} if name == "features" else {}
    assert peak(1024, chunk=16, **options) <= 4.2 * peak(256, chunk=16, **options)
    assert peak(1024, chunk=16, **options) < peak(1024, form="parallel", **options) / 4


# Random features


def test_the_estimate_of_either_kernel_is_unbiased_with_the_variance_on_paper():
    x, y = torch.tensor([0.6, -0.3, 0.2]).double(), torch.tensor([0.1, 0.5, 0.4]).double()
    w, r = draw_projection(200_000, 3, orthogonal=False, dtype=DOUBLE), 200_000
    root = math.sqrt(r)
    single = {
        "positive": root * positive_features(x, w) * root * positive_features(y, w),
        "trigonometric": (
            (root * fourier_features(x, w, kernel="softmax"))
            * (root * fourier_features(y, w, kernel="softmax"))
        )
        .unflatten(0, (2, r))
        .sum(0),
    }
    for kind, estimates in single.items():
        variance = kernel_variance(x, y, 1, kind=kind).item()
        assert abs(estimates.mean() - (x @ y).exp()) < 4 * math.sqrt(variance / r)
        assert estimates.var().item() == pytest.approx(variance, rel=0.05)
        assert kernel_variance(x, y, 50, kind=kind).item() == pytest.approx(variance / 50)
    gaussian = fourier_features(x, w) @ fourier_features(y, w)
    close(gaussian, (-(x - y).square().sum() / 2).exp(), atol=4e-3)


def test_cosines_vary_most_where_the_kernel_is_small_and_exponentials_least():
    x = torch.tensor([1.5, 1.0], dtype=DOUBLE)
    relative = {"positive": [], "trigonometric": []}
    for angle in (0.0, 0.5, 1.0):  # from y = x to y = −x
        turn = math.pi * angle
        y = torch.stack([
            x[0] * math.cos(turn) - x[1] * math.sin(turn),
            x[0] * math.sin(turn) + x[1] * math.cos(turn),
        ])  # fmt: skip
        draws = torch.stack([
            torch.stack([
                positive_features(x, w) @ positive_features(y, w),
                fourier_features(x, w, kernel="softmax") @ fourier_features(y, w, kernel="softmax"),
            ])
            for w in (draw_projection(64, 2, seed=s, dtype=DOUBLE) for s in range(60))
        ])  # fmt: skip
        spread = (draws - (x @ y).exp()).square().mean(0).sqrt() / (x @ y).exp()
        for kind, value in zip(relative, spread.tolist(), strict=True):
            relative[kind].append(value)
    positive, cosines = relative.values()
    assert min(positive[:2]) > 1 and positive[2] < 1e-9  # y = −x is exact
    assert cosines[0] < 1e-9 < cosines[1] < cosines[2] and cosines[2] > 20
    assert (draws[:, 0] > 0).all() and (draws[:, 1] < 0).any()  # an estimate below 0


def error_of(n_features, draws=24):
    """The mean error of the estimate of softmax attention, over draws of the features."""
    q, k, v = 0.2 * normal(16, 8), 0.2 * normal(32, 8, seed=1), normal(32, 4, seed=2)
    exact = attend(q, k, v, scale=1.0)
    found = [
        attend_features(q, k, v, scale=1.0, n_features=n_features, seed=s, orthogonal=False)
        for s in range(draws)
    ]
    return torch.stack([(each - exact).square().mean() for each in found]).mean().sqrt().item()


def test_the_error_falls_as_one_over_the_root_of_the_number_of_features():
    numbers = [32, 128, 512, 2048]
    errors = [error_of(n) for n in numbers]
    slope = np.polyfit(np.log(numbers), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.07)
    assert errors[-1] < 0.02


def test_orthogonal_vectors_err_less():
    x, errors = 0.4 * normal(12, 8), []
    gaussian = (-torch.cdist(x, x).square() / 2).exp()
    for orthogonal in (True, False):
        draws = (
            draw_projection(8, 8, seed=s, orthogonal=orthogonal, dtype=DOUBLE) for s in range(200)
        )
        phis = [fourier_features(x, w) for w in draws]
        errors.append(sum((phi @ phi.T - gaussian).square().mean() for phi in phis))
    assert errors[0] < 0.8 * errors[1]


def test_vectors_are_normal_whether_orthogonal_or_not():
    for orthogonal in (False, True):
        w = draw_projection(30_000, 3, orthogonal=orthogonal, dtype=DOUBLE)
        close(w.mean(0), torch.zeros(3, dtype=DOUBLE), atol=0.02)
        close(w.T @ w / len(w), torch.eye(3, dtype=DOUBLE), atol=0.03)
        assert w[:, 0].pow(4).mean().item() == pytest.approx(3, abs=0.15)
        assert w.square().sum(-1).var().item() == pytest.approx(6, abs=0.4)  # of χ² with d = 3
    w = draw_projection(7, 3, dtype=DOUBLE)
    for block in w.split(3):
        gram = block @ block.T
        close(gram, gram.diag().diag(), atol=1e-12)
    first = torch.stack([draw_projection(3, 3, seed=s, dtype=DOUBLE)[0] for s in range(500)])
    close(first.mean(0), torch.zeros(3, dtype=DOUBLE), atol=0.2)  # no sign is preferred


@pytest.mark.untyped
def test_a_seed_says_what_is_drawn_and_a_projection_replaces_it():
    q, k, v = Case().qkv()
    one, same, other = (attend_features(q, k, v, n_features=16, seed=s) for s in (1, 1, 2))
    close(one, same, atol=0)
    assert (one - other).abs().max() > 0.01
    w = draw_projection(16, 3, seed=1, dtype=DOUBLE)
    close(attend_features(q, k, v, projection=w), one, atol=0)
    w.zero_()  # what was handed out is the caller's own
    close(attend_features(q, k, v, n_features=16, seed=1), one, atol=0)
    with pytest.raises(ValueError, match=r"projection must have shape \(r, d\)"):
        attend_features(q, k, v, projection=w[:, :2])
    with pytest.raises(ValueError, match="at least one row"):
        attend_features(q, k, v, projection=w[:0])
    for keywords, error, message in (
        ({"n_features": 0}, ValueError, "n_features"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": True}, TypeError, "seed"),
        ({"orthogonal": 1}, TypeError, "orthogonal"),
        ({"kind": "cosine"}, ValueError, "kind must be one of positive, trigonometric"),
    ):
        with pytest.raises(error, match=message):
            attend_features(q, k, v, **keywords)


@pytest.mark.parametrize("way", ["parallel", "recurrent", "chunked"])
def test_keys_far_beyond_what_a_feature_can_hold_still_count(way):
    w = draw_projection(64, 4, dtype=DOUBLE)
    q, k, v = normal(6, 4), normal(6, 4, seed=1), normal(6, 2, seed=2)
    k = k * torch.tensor([1.0, 40.0, 2.0, 60.0, 1.0, 3.0], dtype=DOUBLE)[:, None]
    assert (positive_features(k.float(), w.float())[1] == 0).all()  # exp(−|k|²/2) is nothing
    logs = (q * 0.5**0.5) @ w.T, (k * 0.5**0.5) @ w.T
    logs = [
        a - (x.square().sum(-1, keepdim=True) / 4) for a, x in zip(logs, (q, k), strict=True)
    ]  # scale 1/√d = 1/2
    scores = torch.logsumexp(logs[0][:, None] + logs[1][None], -1) - math.log(64)
    past = torch.ones(6, 6).tril().bool()
    wanted, lse = by_the_book(scores, torch.eye(6).double(), v, mask=past, scale=1.0)
    given = {"projection": w, "causal": True, "form": way, "chunk": 2, "return_lse": True}
    for found, theirs in zip(attend_features(q, k, v, **given), (wanted, lse), strict=True):
        close(found, theirs)
    wide, _ = attend_features(q.float(), k.float(), v.float(), **given)
    close(wide.to(DOUBLE), wanted, atol=1e-3)


def test_trigonometric_features_converge_to_the_softmax_too():
    q, k, v = 0.5 * normal(8, 4), 0.5 * normal(9, 4, seed=1), normal(9, 3, seed=2)
    exact = attend(q, k, v)
    for way in ("parallel", "chunked"):
        found = attend_features(q, k, v, kind="trigonometric", n_features=20_000, form=way)
        assert (found - exact).abs().max() < 0.02
