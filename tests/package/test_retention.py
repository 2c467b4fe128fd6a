"""Retention and linear attention: forms that agree, what fades, and what a state means.

A test that takes `retention` gets the module; planted bugs (test_recurrent_mutants.py) are put
through the same tests.
"""

import math
from functools import partial

import mixer_properties
import pytest
import torch
from torch import nn
from torch.nn import functional

import tfbook.recurrent.retention as module
from tfbook.attention import causal_mask
from tfbook.positions import apply_rotary

B, N, D, H, DK, DV = 2, 11, 14, 3, 4, 5
SIZES = {"d_head": DK, "d_value": DV, "chunk": 3}
MIXERS = {
    "retention": partial(module.RetentionMixer, D, H, **SIZES),
    "linear": partial(module.LinearAttentionMixer, D, H, **SIZES),
    "gated": partial(module.LinearAttentionMixer, D, H, gated=True, **SIZES),
}


@pytest.fixture
def retention():
    return module


@pytest.mark.parametrize("kind", MIXERS)
@pytest.mark.parametrize("name", mixer_properties.cases())
def test_as_a_mixer(name, kind):
    mixer_properties.CHECKS[name](MIXERS[kind])


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def randomised(mixer, seed=0):
    """Give every parameter random numbers in float64, norms and biases too."""
    generator = torch.Generator().manual_seed(seed)
    mixer = mixer.double()
    with torch.no_grad():
        for each in mixer.parameters():
            each.copy_(torch.randn(each.shape, generator=generator, dtype=torch.float64) / 2)
    return mixer


def rows(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def all_mixers(retention, **choices):
    yield randomised(retention.RetentionMixer(D, H, **(SIZES | choices)))
    for gated in (False, True):
        yield randomised(
            retention.LinearAttentionMixer(D, H, gated=gated, temperature=2.0, **SIZES | choices)
        )


def heads(x, size):
    return x.unflatten(-1, (H, size)).transpose(1, 2)


# forms


def test_the_three_forms_give_the_same_numbers_and_gradients(retention):
    x, seed = rows(B, N, D).requires_grad_(), rows(B, N, D, seed=3)
    for mixer in all_mixers(retention):
        found = []
        for form in ("parallel", "recurrent", "chunked"):
            mixer.form = form
            y, state = mixer(x)
            again, end = mixer(x[:, :4], state)
            loss = (y * seed).sum() + again.square().sum() + end.matrix.square().mean()
            found.append([y, state.matrix, *torch.autograd.grad(loss, [x, *mixer.parameters()])])
        for others in found[1:]:
            for got, wanted in zip(others, found[0], strict=True):
                close(got, wanted)


def test_chunks_of_any_size_give_the_same(retention):
    x = rows(B, N, D)
    for mixer in all_mixers(retention):
        wanted = mixer(x)[0]
        for chunk in (1, 4, N, 64):
            mixer.chunk = chunk
            close(mixer(x)[0], wanted)


def test_the_state_is_as_large_after_many_rows_as_after_one(retention):
    for mixer in all_mixers(retention):
        with torch.no_grad():
            sizes = {mixer(rows(1, n, D))[1].nbytes for n in (1, 40)}
        columns = DV + isinstance(mixer, retention.LinearAttentionMixer)
        assert sizes == {8 * H * DK * columns}


# retention


def test_retention_is_what_its_equation_says(retention):
    mixer, x = randomised(retention.RetentionMixer(D, H, **SIZES)), rows(B, N, D)
    q, k = (apply_rotary(heads(w(x), DK), torch.arange(N)) for w in (mixer.q_proj, mixer.k_proj))
    v, place = heads(mixer.v_proj(x), DV), torch.arange(N, dtype=torch.float64)
    z = torch.zeros(B, H, N, DV, dtype=torch.float64)
    for h in range(H):
        fade = (1 - 2.0 ** (-5 - h)) ** (place[:, None] - place)
        scores = q[:, h] @ k[:, h].mT / math.sqrt(DK)
        z[:, h] = (scores * fade * causal_mask(N)) @ v[:, h]
    norm = nn.GroupNorm(H, H * DV, eps=mixer.eps).double()
    norm.weight, norm.bias = mixer.norm_weight, mixer.norm_bias
    z = norm(z.transpose(1, 2).reshape(B * N, H * DV)).view(B, N, H * DV)
    close(mixer(x)[0], mixer.out_proj(functional.silu(mixer.gate_proj(x)) * z))


def test_the_divisors_of_the_paper_change_nothing(retention):
    """It divides D's rows by the root of their sums, and z by the sum of the scores."""
    mixer, x = randomised(retention.RetentionMixer(D, H, eps=1e-18, **SIZES)), rows(B, N, D)
    q, k = (apply_rotary(heads(w(x), DK), torch.arange(N)) for w in (mixer.q_proj, mixer.k_proj))
    place = torch.arange(N, dtype=torch.float64)
    gammas = 1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))
    fade = gammas[:, None, None] ** (place[:, None] - place) * causal_mask(N)
    fade = fade / fade.sum(-1, keepdim=True).sqrt()
    scores = q @ k.mT / math.sqrt(DK) * fade
    scores = scores / scores.sum(-1, keepdim=True).abs().clamp(min=1)
    z = functional.layer_norm(scores @ heads(mixer.v_proj(x), DV), (DV,), eps=1e-18)
    z = z.transpose(1, 2).flatten(-2) * mixer.norm_weight + mixer.norm_bias
    close(mixer(x)[0], mixer.out_proj(functional.silu(mixer.gate_proj(x)) * z), atol=1e-8)


def test_each_head_looks_back_twice_as_far_as_the_one_before(retention):
    gammas = retention.retention_decays(8)
    half = math.log(0.5) / gammas.log()
    assert 21 < half[0] < 22.5
    ratio = half[1:] / half[:-1]
    close(ratio, torch.full_like(ratio, 2.0), atol=0.04)


def test_an_old_key_counts_less_by_gamma_for_each_row_in_between(retention):
    mixer = randomised(retention.RetentionMixer(D, H, base=1e30, **SIZES))  # pairs hardly turn
    with torch.no_grad():
        written = mixer(rows(1, 1, D))[1].matrix
        later = mixer(torch.zeros(1, 7, D).double(), mixer(rows(1, 1, D))[1])[1].matrix
    close(later, written * retention.retention_decays(H)[None, :, None, None] ** 7)


def test_only_distances_count(retention):
    """A sequence that begins later, at any position, gives the same."""
    mixer, x = randomised(retention.RetentionMixer(D, H, **SIZES)), rows(B, N, D)
    empty = retention.MatrixState(matrix=torch.zeros(B, H, DK, DV).double(), seen=1000)
    close(mixer(x, empty)[0], mixer(x)[0])


# linear attention


def test_linear_attention_is_a_causal_mean_with_weights_of_its_own(retention):
    for gated in (False, True):
        mixer = randomised(retention.LinearAttentionMixer(D, H, gated=gated, **SIZES))
        x = rows(B, N, D)
        q, k = (functional.elu(heads(w(x), DK)) + 1 for w in (mixer.q_proj, mixer.k_proj))
        weights = q @ k.mT * causal_mask(N)
        if gated:
            g = torch.sigmoid(mixer.g_proj(x)).mT ** (1 / 16)  # (B, H, N)
            for t in range(N):
                for s in range(t):
                    weights[..., t, s] *= g[..., s + 1 : t + 1].prod(-1)
        weights = weights / weights.sum(-1, keepdim=True)
        z = weights @ heads(mixer.v_proj(x), DV)
        close(mixer(x)[0], mixer.out_proj(z.transpose(1, 2).flatten(-2)))


def test_a_mean_of_equal_values_is_that_value(retention):
    for mixer in list(all_mixers(retention))[1:]:
        value = rows(H * DV)
        with torch.no_grad():
            mixer.v_proj.weight.zero_()
        mixer.v_proj.bias = nn.Parameter(value)
        close(mixer(rows(B, N, D))[0], mixer.out_proj(value).expand(B, N, D))


def test_without_a_gate_the_past_is_a_set_and_with_one_it_is_not(retention):
    kept, _, gated = all_mixers(retention)
    _, plain, _ = all_mixers(retention)
    x = rows(B, N, D)
    other = torch.cat([x[:, :-1].flip(1), x[:, -1:]], dim=1)
    close(plain(other)[0][:, -1], plain(x)[0][:, -1])
    for mixer in (kept, gated):
        assert (mixer(other)[0][:, -1] - mixer(x)[0][:, -1]).abs().max() > 1e-3


# what does not fit


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("error", "word", "call"),
    [
        (ValueError, "n_heads", lambda: module.RetentionMixer(14, 4)),
        (ValueError, "d_head must be even", lambda: module.RetentionMixer(14, 2)),
        (ValueError, "form", lambda: module.RetentionMixer(8, 2, form="fast")),
        (ValueError, "chunk", lambda: module.LinearAttentionMixer(8, 2, chunk=0)),
        (TypeError, "gated", lambda: module.LinearAttentionMixer(8, 2, gated=1)),
        (ValueError, "temperature", lambda: module.LinearAttentionMixer(8, 2, temperature=0)),
        (ValueError, "n_heads", lambda: module.retention_decays(0)),
        (TypeError, "n_heads", lambda: module.retention_decays(True)),
        (ValueError, "n_heads", lambda: module.retention_decays(60)),
    ],
)
def test_bad_choices_are_refused(error, word, call):
    with pytest.raises(error, match=word):
        call()


@pytest.mark.untyped
def test_a_causal_mask_is_refused():
    mixer = MIXERS["retention"]()
    with pytest.raises(ValueError, match="no scores to hide"):
        mixer(torch.randn(1, N, D), mask=causal_mask(N))
