"""RWKV: a mean that fades in three forms, and its two mixers against the library's model.

A test that takes `rwkv` gets the module; planted bugs (test_recurrent_mutants.py) are put through
the same tests.
"""

import math
from functools import partial

import mixer_properties
import pytest
import torch
from torch import nn

import tfbook.recurrent.rwkv as module
from tfbook.models import RWKV, Layer, NoFFN, Norm, RWKVChannels, Site

B, N, C = 2, 13, 5
MIXERS = {"time": partial(module.TimeMix, 14, 11), "channels": partial(module.ChannelMix, 14, 11)}


@pytest.fixture
def rwkv():
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


def given(n=N):
    """Return k, v, w and u."""
    return 3 * normal(B, n, C), normal(B, n, C, seed=1), normal(C, seed=2).abs(), normal(C, seed=3)


def forms(rwkv):
    return rwkv.wkv_recurrent, rwkv.wkv_scan


# forms


def test_the_mean_is_what_its_equation_says(rwkv):
    k, v, w, u = given()
    wanted = torch.zeros_like(v)
    for b, t, c in torch.cartesian_prod(*map(torch.arange, (B, N, C))).tolist():
        total = part = 0.0
        for s in range(t + 1):
            logit = k[b, s, c] + (u[c] if s == t else -(t - 1 - s) * w[c])
            total, part = total + math.exp(logit), part + math.exp(logit) * float(v[b, s, c])
        wanted[b, t, c] = part / total
    close(rwkv.wkv_parallel(k, v, w, u), wanted)
    for form in forms(rwkv):
        close(form(k, v, w, u)[0], wanted)


def test_the_forms_give_the_same_gradients(rwkv):
    found = []
    for form in (rwkv.wkv_parallel, *forms(rwkv)):
        leaves = [x.requires_grad_() for x in given()]
        y = form(*leaves)
        y = y if isinstance(y, torch.Tensor) else y[0]
        found.append(torch.autograd.grad((y * normal(B, N, C, seed=7)).sum(), leaves))
    for others in found[1:]:
        for got, wanted in zip(others, found[0], strict=True):
            close(got, wanted)


def test_the_mean_goes_on_from_its_state(rwkv):
    found = []
    for form in (rwkv.wkv_parallel, *forms(rwkv)):
        k, v, w, u = leaves = [x.requires_grad_() for x in given()]
        if form is rwkv.wkv_parallel:
            y = form(*leaves)
        else:
            state, ys = None, []
            for k_part, v_part in zip(k.split([4, 1, 8], 1), v.split([4, 1, 8], 1), strict=True):
                y, state = form(k_part, v_part, w, u, state=state)
                ys.append(y)
            y = torch.cat(ys, dim=1)
        found.append([y, *torch.autograd.grad((y * normal(B, N, C, seed=7)).sum(), leaves)])
    for others in found[1:]:
        for got, wanted in zip(others, found[0], strict=True):
            close(got, wanted)


def test_a_state_holds_the_sums_and_their_exponent(rwkv):
    k, v, w, u = given()
    fade = (k - (N - 1 - torch.arange(N)[:, None]) * w).exp()
    for form in forms(rwkv):
        a, b, m = form(k, v, w, u)[1]
        close(m.exp() * b, fade.sum(1))
        close(m.exp() * a, (fade * v).sum(1))


# what it means


def test_without_fading_and_extra_it_is_a_softmax_over_the_past(rwkv):
    k, v, _, _ = given()
    zero = torch.zeros(C).double()
    for form in forms(rwkv):
        y, _ = form(k, v, zero, zero)
        for t in range(N):
            close(y[:, t], (k[:, : t + 1].softmax(1) * v[:, : t + 1]).sum(1))


def test_what_all_keys_have_in_common_does_not_matter(rwkv):
    k, v, w, u = given()
    for form in forms(rwkv):
        close(form(k + 3.0, v, w, u)[0], form(k, v, w, u)[0])


def test_keys_in_the_thousands_do_not_overflow(rwkv):
    k, v, w, u = (x.float() for x in given())
    for shift in (-1000.0, 1000.0):
        for form in (rwkv.wkv_parallel, *forms(rwkv)):
            y = form((k + shift).requires_grad_(), v, w, u)
            y = y if isinstance(y, torch.Tensor) else y[0]
            (y.sum()).backward()
            close(y.detach(), rwkv.wkv_parallel(k, v, w, u), atol=1e-3)


def test_a_fast_rate_leaves_the_last_row_and_the_one_before(rwkv):
    """What was written just before has not faded yet; everything older has."""
    k, v, _, u = given()
    fast = torch.full((C,), 200.0).double()
    for form in forms(rwkv):
        y, _ = form(k, v, fast, u)
        share = torch.sigmoid(k[:, 1:] + u - k[:, :-1])
        close(y[:, 1:], share * v[:, 1:] + (1 - share) * v[:, :-1])


def test_a_mean_lies_between_its_values(rwkv):
    k, v, w, u = given(200)
    for form in forms(rwkv):
        y, _ = form(k, v, w, u)
        assert (y <= v.cummax(1).values + 1e-12).all() and (y >= v.cummin(1).values - 1e-12).all()


def test_the_scan_passes_over_all_rows_a_few_times(rwkv):
    for n, passes in ((1, 1), (7, 3), (8, 4), (200, 8)):
        k, v, w, u = given(n)
        calls, merge = [], rwkv._merge
        rwkv._merge = lambda *sums, calls=calls, merge=merge: calls.append(0) or merge(*sums)
        try:
            rwkv.wkv_scan(k, v, w, u)
        finally:
            rwkv._merge = merge
        assert len(calls) == passes + 1  # and one for what each row adds of its own


def test_each_row_is_mixed_with_the_one_before(rwkv):
    mixer = rwkv.ChannelMix(4, 6).double()
    x = normal(B, 3, 4)
    with torch.no_grad():
        mixer.mix_k.fill_(0.0)
        mixer.mix_r.fill_(0.0)
        only_before = mixer(x)[0]
        mixer.mix_k.fill_(1.0)
        mixer.mix_r.fill_(1.0)
        only_own = mixer(x)[0]
    close(only_before[:, 1:], only_own[:, :-1])
    close(only_before[:, 0], torch.zeros(B, 4).double())


# the library


def library_model():
    from transformers import RwkvConfig, RwkvModel

    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2}
    config = RwkvConfig(vocab_size=23, context_length=32, rescale_every=0, **sizes)
    torch.manual_seed(0)
    model = RwkvModel(config).eval()
    with torch.no_grad():
        for each in model.parameters():
            nn.init.normal_(each, std=0.5)
    return model


NAMES = {
    "key.weight": "k_proj.weight",
    "value.weight": "v_proj.weight",
    "receptance.weight": "r_proj.weight",
    "output.weight": "out_proj.weight",
    "time_mix_key": "mix_k",
    "time_mix_value": "mix_v",
    "time_mix_receptance": "mix_r",
}


def as_our_blocks(theirs):
    """Return two of our blocks with the weights of one of theirs."""
    halves = [
        (theirs.attention, theirs.ln1, RWKV()),
        (theirs.feed_forward, theirs.ln2, RWKVChannels(20)),
    ]
    for half, norm, spec in halves:
        layer = Layer(spec, NoFFN(), parallel=True, one_norm=True, norm=Norm(eps=norm.eps))
        block = layer.build(Site(12, causal=True)).eval()
        weights = {NAMES.get(name, name): x.squeeze() for name, x in half.state_dict().items()}
        block.mixer.load_state_dict(weights)
        block.mixer_residual.norm.load_state_dict(norm.state_dict())
        yield block


def test_two_layers_are_a_block_of_the_library():
    model = library_model()
    ids = torch.randint(23, (2, 9))
    with torch.no_grad():
        wanted = model(ids, use_cache=True, output_hidden_states=True)
        x = model.blocks[0].pre_ln(model.embeddings(ids))
        states = []
        for number, theirs in enumerate(model.blocks):
            pair, starts = list(as_our_blocks(theirs)), []
            whole = x
            for block in pair:
                whole, state = block(whole)
                states.append(state.mixer)
            rest, first = x[:, 4:], x[:, :4]
            for block in pair:  # in two pieces
                first, state = block(first)
                rest, _ = block(rest, state)
                starts.append(state)
            close(torch.cat([first, rest], dim=1), whole, atol=1e-5)
            x = whole
            if number == 0:
                close(x, wanted.hidden_states[0], atol=1e-5)
        close(model.ln_out(x), wanted.last_hidden_state, atol=1e-5)
    for number, state in enumerate(states[::2]):  # rows, then a, b and m of each channel
        close(state.row, wanted.state[1][..., number], atol=1e-5)
        a, b, m = state.sums.unbind(1)
        theirs = [x[..., number] for x in wanted.state[2:]]
        close(m, theirs[2], atol=1e-4)
        close(a / b, theirs[0] / theirs[1], atol=1e-5)


# what does not fit


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("error", "word", "changed"),
    [
        (ValueError, "v must", {"v": torch.randn(N + 1, C)}),
        (ValueError, "decay", {"decay": torch.rand(C + 1)}),
        (TypeError, "decay", {"decay": 1.0}),
        (TypeError, "dtype", {"k": torch.randn(N, C).double()}),
        (TypeError, "state", {"state": torch.zeros(3, C)}),
        (ValueError, r"state\[1\]", {"state": (torch.zeros(C), torch.zeros(2), torch.zeros(C))}),
    ],
)
def test_bad_input_is_refused(error, word, changed):
    right = {"k": torch.randn(N, C), "v": torch.randn(N, C)}
    right |= {"decay": torch.rand(C), "first": torch.rand(C)}
    for form in (module.wkv_recurrent, module.wkv_scan):
        with pytest.raises(error, match=word):
            form(**right | changed)


@pytest.mark.untyped
def test_bad_sizes_are_refused():
    for make in (module.TimeMix, module.ChannelMix):
        for sizes in ((0,), (8, 0), (8, 2.5), (True,)):
            with pytest.raises((TypeError, ValueError), match="d_"):
                make(*sizes)
