"""The delta rule: what one write does, forms that agree, and which automata a state can follow.

A test that takes `rule` gets the module; planted bugs (test_recurrent_mutants.py) are put through
the same tests.
"""

import itertools
from functools import partial

import mixer_properties
import pytest
import torch
from torch import nn
from torch.nn import functional

import tfbook.recurrent.delta_rule as module
from tfbook.efficient import state_chunked, state_recurrent

B, H, N, D, E = 2, 3, 13, 5, 4
SIZES = {"d_head": 4, "d_value": 5, "chunk": 3}
MIXERS = {
    "delta": partial(module.DeltaMixer, 14, 3, **SIZES),
    "gated": partial(module.GatedDeltaMixer, 14, 3, negative=True, **SIZES),
}


@pytest.fixture
def rule():
    return module


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("name", mixer_properties.cases())
def test_as_a_mixer(name, kind):
    mixer_properties.CHECKS[name](MIXERS[kind])


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def given(n=N, *, decay=True):
    """Return q, unit k, v, β up to 2, and log α and a state to start from."""
    q, k, v = normal(B, H, n, D), normal(B, H, n, D, seed=1), normal(B, H, n, E, seed=2)
    k, beta = functional.normalize(k, dim=-1), 2 * torch.sigmoid(normal(B, H, n, seed=3))
    log_decay = -normal(B, H, n, seed=4).abs() if decay else None
    return (q, k, v, beta), {"log_decay": log_decay, "state": normal(B, H, D, E, seed=5)}


def forms(rule):
    return rule.delta_recurrent, partial(rule.delta_chunked, chunk=4)


# what one write does


def test_writing_a_key_again_replaces_its_value(rule):
    (_, k, v, _), _ = given(2)
    k = k[..., :1, :].expand(-1, -1, 2, -1)
    for form in forms(rule):
        _, state = form(k, k, v, torch.ones(B, H, 2).double())
        close((k[..., 0, None, :] @ state)[..., 0, :], v[..., 1, :])
    _, state = state_recurrent(k, k, v)  # linear attention adds
    close((k[..., 0, None, :] @ state)[..., 0, :], v[..., 0, :] + v[..., 1, :])


def test_a_write_leaves_what_is_orthogonal_to_its_key(rule):
    basis = torch.linalg.qr(normal(D, D))[0]
    before = normal(D, E, seed=5)
    for form in forms(rule):
        y, state = form(*[x[:1] for x in (basis, basis)], normal(1, E), torch.ones(1).double(),
                        state=before)  # fmt: skip
        close(basis[:1] @ state, normal(1, E))
        close(basis[1:] @ state, basis[1:] @ before)
        close(y, normal(1, E))  # what is read is the state after the write


def test_as_many_keys_as_numbers_are_all_remembered(rule):
    keys, values = torch.linalg.qr(normal(D, D))[0], normal(3 * D, E)
    order = torch.tensor([0, 3, 1, 4, 2, 0, 0, 2, 4, 3, 1, 1, 0, 3, 2])
    last = {int(key): number for number, key in enumerate(order)}
    wanted = torch.stack([values[last[key]] for key in range(D)])
    for form in forms(rule):
        _, state = form(keys[order], keys[order], values, torch.ones(3 * D).double())
        close(keys @ state, wanted)


def test_a_write_is_a_step_of_gradient_descent(rule):
    (q, k, v, beta), more = given(1, decay=False)
    before = more["state"].requires_grad_()
    wrong = (k @ before - v).square().sum() / 2
    (slope,) = torch.autograd.grad(wrong, before)
    for form in forms(rule):
        close(form(q, k, v, beta, state=before)[1], before - beta[..., None] * slope)


def test_the_state_fades_before_it_is_corrected(rule):
    (q, k, v, _), more = given(1)
    one, none = torch.ones(B, H, 1).double(), torch.zeros(B, H, 1).double()
    for form in forms(rule):
        close(k @ form(q, k, v, one, **more)[1], v)  # what is written does not fade
        fade = more["log_decay"].exp()[..., None]
        close(form(q, k, v, none, **more)[1], fade * more["state"])
        forgotten = form(q, k, v, one, **more | {"log_decay": torch.full_like(one, -torch.inf)})
        close(forgotten[1], k.mT @ v)


# forms


def test_chunks_give_the_numbers_and_gradients_of_the_recurrence(rule):
    for decay, chunk in itertools.product((False, True), (1, 4, N, 64)):
        found = []
        for form in (rule.delta_recurrent, partial(rule.delta_chunked, chunk=chunk)):
            args, more = given(decay=decay)
            leaves = [x.requires_grad_() for x in (*args, *more.values()) if x is not None]
            y, state = form(*args, **more)
            loss = (y * normal(*y.shape, seed=7)).sum() + (state * normal(D, E, seed=8)).sum()
            found.append([y, state, *torch.autograd.grad(loss, leaves)])
        for got, wanted in zip(*found, strict=True):
            close(got, wanted)


def test_the_recurrence_is_its_equation(rule):
    (q, k, v, beta), more = given()
    y, end = rule.delta_recurrent(q, k, v, beta, **more)
    for b, h in itertools.product(range(B), range(H)):
        state = more["state"][b, h].T  # the papers' S, values by keys
        for t in range(N):
            key, step = k[b, h, t], beta[b, h, t]
            turn = more["log_decay"][b, h, t].exp() * (torch.eye(D) - step * torch.outer(key, key))
            state = state @ turn + step * torch.outer(v[b, h, t], key)
            close(y[b, h, t], state @ q[b, h, t])
        close(end[b, h], state.T)


def test_a_product_of_corrections_is_written_with_few_rows(rule):
    (_, k, v, beta), more = given()
    w, u = rule.delta_wy(k, v, beta)
    product = torch.eye(D).double()
    for k_t, beta_t in zip(k[0, 0], beta[0, 0], strict=True):
        product = (torch.eye(D) - beta_t * torch.outer(k_t, k_t)) @ product
    close(torch.eye(D) - k[0, 0].T @ w[0, 0], product)
    for decay in (None, more["log_decay"]):
        w, u = rule.delta_wy(k, v, beta, log_decay=decay)
        total = torch.zeros(B, H, N).double() if decay is None else decay.cumsum(-1)
        left = (total[..., -1:] - total).exp()[..., None] * k
        end = total[..., -1, None, None].exp() * more["state"] + left.mT @ (u - w @ more["state"])
        close(end, rule.delta_recurrent(k, k, v, beta, log_decay=decay, state=more["state"])[1])


def test_without_corrections_among_the_keys_it_is_linear_attention(rule):
    """Orthogonal keys never meet, so there is nothing to correct."""
    keys, values = torch.linalg.qr(normal(D, D))[0], normal(D, E)
    one = torch.ones(D).double()
    for form in forms(rule):
        got, wanted = (
            form(normal(D, D), keys, values, one),
            state_chunked(normal(D, D), keys, values),
        )
        for mine, theirs in zip(got, wanted, strict=True):
            close(mine, theirs)


def test_leading_dimensions_broadcast(rule):
    (q, k, v, beta), more = given()
    more["state"] = None
    shared = (q, k[:1, :1], v, beta[:1])
    wide = (q, k[:1, :1].expand(B, H, N, D), v, beta[:1].expand(B, H, N))
    for form in forms(rule):
        for got, wanted in zip(form(*shared, **more), form(*wide, **more), strict=True):
            close(got, wanted)


def test_reflections_for_five_hundred_rows_stay_near_float64(rule):
    (q, k, v, beta), _ = given(512)
    wanted, end = rule.delta_recurrent(q, k, v, beta)
    single = [x.float() for x in (q, k, v, beta)]
    for form in (rule.delta_recurrent, rule.delta_chunked):
        y, state = form(*single)
        assert y.dtype == torch.float32
        close(y.double(), wanted, atol=2e-4 * float(wanted.abs().max()))
    half, state = rule.delta_chunked(*[x.bfloat16() for x in single])
    assert half.dtype == torch.bfloat16 and state.dtype == torch.float32


# which automata a state can follow


def test_parity_is_a_sign_that_reflections_turn(rule):
    bits = torch.randint(2, (200,), generator=torch.Generator().manual_seed(0))
    beta = torch.cat([torch.ones(1), 2.0 * bits])  # the first row writes 1
    value = torch.cat([torch.ones(1, 1), torch.zeros(200, 1)])
    for form in forms(rule):
        y, _ = form(*[torch.ones(201, 1)] * 2, value, beta)
        assert torch.equal(y[1:, 0], 1.0 - 2.0 * (bits.cumsum(0) % 2))


def test_without_reflections_equal_rows_end_in_one_direction(rule):
    """β ≤ 1: after ever more ones, what is read goes one way to its limit and never alternates."""
    for seed in range(5):
        q, k, start = normal(1, D), functional.normalize(normal(1, D, seed=seed + 1)), normal(D, 1)
        rows = [x.expand(60, -1) for x in (q, k, normal(1, 1, seed=9))]
        for beta in (0.2, 0.7, 1.0, 2.0):
            strength = torch.full((60,), beta).double()
            steps = rule.delta_recurrent(*rows, strength, state=start)[0][:, 0].diff()
            turn = torch.eye(D) - beta * k.T @ k
            assert (torch.linalg.eigvalsh(turn).min() > -1e-9) == (beta <= 1)
            if beta <= 1:
                assert (steps[1:] * steps[:-1] > -1e-15).all() and steps[-1].abs() < 1e-4
            else:
                close(steps[1:], -steps[:-1])
                assert steps.abs().min() > 1e-3


def test_reflections_swap_things(rule):
    """The permutations of five things, whose word problem no diagonal recurrence follows."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(100)])
    eye = torch.eye(5).double()
    keys = (eye[pairs[:, 0]] - eye[pairs[:, 1]]) / 2**0.5
    things = list(range(1, 6))
    state = torch.tensor(things).double()[:, None]
    for form in forms(rule):
        y, end = form(eye[:1].expand(100, -1), keys, torch.zeros(100, 1).double(),
                      torch.full((100,), 2.0).double(), state=state)  # fmt: skip
        places, firsts = list(things), []
        for i, j in pairs.tolist():
            places[i], places[j] = places[j], places[i]
            firsts.append(places[0])
        close(end[:, 0], torch.tensor(places).double(), atol=1e-12)
        close(y[:, 0], torch.tensor(firsts).double(), atol=1e-12)


def test_fading_commutes_and_reflections_do_not(rule):
    (q, k, v, beta), _ = given(2, decay=False)
    start, nothing = normal(B, H, D, E, seed=5), torch.zeros_like(v)
    fades = -normal(B, H, 2).abs()
    ends = [
        state_recurrent(q, 0 * k, v, log_decay=g, state=start)[1] for g in (fades, fades.flip(-1))
    ]
    close(*ends)
    one, other = (
        rule.delta_recurrent(q, keys, nothing, steps, state=start)[1]
        for keys, steps in ((k, beta), (k.flip(-2), beta.flip(-1)))
    )
    assert (one - other).abs().amax((-1, -2)).min() > 1e-2


def parity_mixer(rule, *, negative):
    """Write down the weights of a mixer whose y is the sign of what was read: [start, bit, 1]."""
    mixer = rule.DeltaMixer(3, 1, d_head=1, d_value=1, kernel=1, negative=negative).double()
    with torch.no_grad():
        mixer.conv.weight.fill_(1.0)
        for weight, row in (
            (mixer.q_proj, [0, 0, 1e4]),  # one key and one query for all rows
            (mixer.k_proj, [0, 0, 1e4]),
            (mixer.v_proj, [1e4, 0, 0]),  # only the start writes
            (mixer.beta_proj, [60, 100, -60]),  # β: ½ or 1 at the start, else 1 or 2, and 0
        ):
            weight.weight.copy_(torch.tensor([row]))
        mixer.out_proj.weight.copy_(torch.tensor([[1.0], [0], [0]]))
    return mixer


def test_a_mixer_with_weights_by_hand_knows_parity(rule):
    bits = torch.randint(2, (3, 100), generator=torch.Generator().manual_seed(1)).double()
    x = torch.stack([torch.zeros_like(bits), bits, torch.ones_like(bits)], dim=-1)
    x = torch.cat([torch.tensor([1.0, 0, 1]).double().expand(3, 1, 3), x], dim=1)
    odd = bits.cumsum(1) % 2
    with torch.no_grad():
        y, _ = parity_mixer(rule, negative=True)(x)
        close(y[:, 1:, 0], 1 - 2 * odd, atol=1e-6)
        y, _ = parity_mixer(rule, negative=False)(x)
    assert (y[..., 0] > -1e-6).all()  # the first 1 takes away all, and no sign ever turns


# the library


def test_the_rule_is_that_of_the_library(rule):
    """Its functions compute in float32 and divide q by √d."""
    from transformers.models.qwen3_next import modeling_qwen3_next as library

    (q, k, v, beta), more = given(70)
    theirs = [x.transpose(1, 2).float() for x in (q * D**0.5, k, v, more["log_decay"], beta)]
    for run in (library.torch_recurrent_gated_delta_rule, library.torch_chunk_gated_delta_rule):
        wanted, end = run(*theirs[:3], g=theirs[3], beta=theirs[4],
                          initial_state=more["state"].float(), output_final_state=True)  # fmt: skip
        for form in (rule.delta_recurrent, rule.delta_chunked):
            y, state = form(q, k, v, beta, **more)
            close(y.float(), wanted.transpose(1, 2), atol=2e-5)
            close(state.float(), end, atol=2e-5)


def test_the_gated_mixer_is_the_layer_of_the_library(rule):
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    d, heads, keys, values = 12, 3, 4, 5
    config = Qwen3NextConfig(
        hidden_size=d, linear_num_key_heads=heads, linear_num_value_heads=heads,
        linear_key_head_dim=keys, linear_value_head_dim=values, linear_conv_kernel_dim=4,
        num_hidden_layers=1, layer_types=["linear_attention"],
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = Qwen3NextGatedDeltaNet(config, 0).eval()
    with torch.no_grad():
        for each in theirs.parameters():
            nn.init.normal_(each, std=0.4)
    sizes = {"d_head": keys, "d_value": values, "eps": config.rms_norm_eps, "chunk": 4}
    ours = rule.GatedDeltaMixer(d, heads, **sizes).eval()
    with torch.no_grad():
        by_head = theirs.in_proj_qkvz.weight.view(heads, -1, d)
        parts = [x.reshape(-1, d) for x in by_head.split([keys, keys, values, values], dim=1)]
        own = (ours.q_proj, ours.k_proj, ours.v_proj, ours.gate_proj)
        beta, decay = (
            x.reshape(-1, d) for x in theirs.in_proj_ba.weight.view(heads, 2, d).unbind(1)
        )
        for part, weight in zip((*own, ours.beta_proj, ours.decay_proj), (*parts, beta, decay),
                                strict=True):  # fmt: skip
            part.weight.copy_(weight)
        ours.conv.weight.copy_(theirs.conv1d.weight[:, 0])
        ours.log_rate.copy_(theirs.A_log)
        ours.decay_bias.copy_(theirs.dt_bias)
        ours.norm_weight.copy_(theirs.norm.weight)
        ours.out_proj.weight.copy_(theirs.out_proj.weight)
    x, y = torch.randn(2, 11, d).requires_grad_(), torch.randn(2, 11, d)
    close(ours(x)[0], theirs(x), atol=1e-5)
    slopes = [torch.autograd.grad((part * y).sum(), x)[0] for part in (ours(x)[0], theirs(x))]
    close(*slopes, atol=1e-4)


# what does not fit


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("error", "word", "changed"),
    [
        (ValueError, "v must", {"v": torch.randn(N + 1, E)}),
        (ValueError, "beta", {"beta": torch.rand(N + 1)}),
        (TypeError, "beta", {"beta": 1.0}),
        (TypeError, "dtype", {"q": torch.randn(N, D).double()}),
        (TypeError, "k must", {"k": torch.ones(N, D).long()}),
        (ValueError, "q must", {"q": torch.randn(N, D + 1)}),
        (ValueError, "log_decay", {"log_decay": torch.zeros(2)}),
        (ValueError, "state", {"state": torch.zeros(E, D)}),
        (ValueError, "broadcast", {"state": torch.zeros(2, D, E), "beta": torch.rand(3, N)}),
    ],
)
def test_bad_input_is_refused(error, word, changed):
    right = {"q": torch.randn(N, D), "k": torch.randn(N, D), "v": torch.randn(N, E)}
    for form in (module.delta_recurrent, module.delta_chunked):
        with pytest.raises(error, match=word):
            form(**right | {"beta": torch.rand(N)} | changed)


@pytest.mark.untyped
def test_bad_choices_are_refused():
    for error, word, choices in [
        (ValueError, "form", {"form": "parallel"}),
        (TypeError, "negative", {"negative": 1}),
        (ValueError, "kernel", {"kernel": 0}),
        (ValueError, "chunk", {"chunk": 0}),
    ]:
        with pytest.raises(error, match=word):
            module.GatedDeltaMixer(8, 2, **choices)
