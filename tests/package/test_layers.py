"""Layers: parity with PyTorch's own, gradients, numbers of the papers, and what is refused."""

import math

import fresh
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_properties import D, F, normal, randomised
from torch import nn
from torch.nn import functional

from tfbook.blocks import (
    ACTIVATIONS,
    FEED_FORWARDS,
    GATES,
    FeedForward,
    LayerNorm,
    Residual,
    RMSNorm,
    feed_forward_parameters,
    from_conv1d,
    layer_norm,
    make_norm,
    rms_norm,
    to_conv1d,
)


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(1, 5), min_size=0, max_size=3),
    d=st.integers(2, 11),
    eps=st.sampled_from([1e-12, 1e-6, 1e-5, 1e-2]),
)
def test_the_written_norms_are_pytorchs(shape, d, eps):
    x, weight, bias = normal(*shape, d), normal(d, seed=2), normal(d, seed=3)
    ours = layer_norm(x, weight, bias, eps=eps)
    torch.testing.assert_close(ours, functional.layer_norm(x, (d,), weight, bias, eps))
    ours = rms_norm(x, weight, eps=eps)
    torch.testing.assert_close(ours, functional.rms_norm(x, (d,), weight, eps))


@pytest.mark.parametrize("make", [LayerNorm, RMSNorm], ids=["layer", "rms"])
def test_norms_load_the_weights_of_pytorchs(make):
    theirs = {LayerNorm: nn.LayerNorm, RMSNorm: nn.RMSNorm}[make](D, eps=1e-3)
    theirs = randomised(theirs)
    ours = make(D, eps=1e-3).double()
    ours.load_state_dict(theirs.state_dict())
    x = normal(3, D)
    torch.testing.assert_close(ours(x), theirs(x))


def test_layer_norm_can_go_without_a_bias():
    norm = LayerNorm(D, bias=False).double()
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    torch.testing.assert_close(norm(normal(3, D)), layer_norm(normal(3, D)))


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_are_pytorchs(kind):
    theirs = {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "identity": lambda x: x,
    }
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[kind](x), theirs[kind](x))


def test_the_two_gelus_are_close_but_not_equal():
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    gap = (ACTIVATIONS["gelu"](x) - ACTIVATIONS["gelu_tanh"](x)).abs().max()
    assert 1e-4 < gap < 1e-3


@pytest.mark.parametrize("kind", sorted(set(FEED_FORWARDS) - {"relu", "reglu"}))
def test_gradients_of_feed_forward_networks_are_right(kind):
    ffn = randomised(FeedForward(3, 5, kind=kind))
    assert torch.autograd.gradcheck(ffn, normal(2, 3).requires_grad_())


def test_a_gated_network_is_half_of_pytorchs_glu():
    ffn = randomised(FeedForward(D, F, kind="glu"))
    x = normal(3, D)
    both = torch.cat([ffn.up_proj(x), ffn.gate_proj(x)], dim=-1)
    torch.testing.assert_close(ffn(x), ffn.down_proj(functional.glu(both, dim=-1)))


@settings(max_examples=40)
@given(
    d=st.integers(1, 13),
    d_ff=st.integers(1, 17),
    kind=st.sampled_from(FEED_FORWARDS),
    bias=st.booleans(),
)
def test_the_count_is_that_of_the_module(d, d_ff, kind, bias):
    with torch.device("meta"):
        ffn = FeedForward(d, d_ff, kind=kind, bias=bias)
    counted = sum(parameter.numel() for parameter in ffn.parameters())
    assert feed_forward_parameters(d, d_ff, kind=kind, bias=bias) == counted


def test_taps_read_and_replace_the_inner_layer():
    ffn, x = randomised(FeedForward(D, F)), normal(3, D)
    ffn.hidden.register_forward_hook(lambda module, args, out: torch.zeros_like(out))
    torch.testing.assert_close(ffn(x), ffn.down_proj.bias.expand(3, D))


def test_dropout_keeps_the_mean():
    ffn = randomised(FeedForward(D, F, dropout=0.5)).train()
    x = normal(1, D)
    torch.manual_seed(0)
    mean = ffn(x.expand(20_000, D)).mean(0, keepdim=True)
    torch.testing.assert_close(mean, ffn.eval()(x), atol=0.1, rtol=0)


def test_a_wider_convolution_is_no_feed_forward_network():
    wide = nn.Conv1d(D, F, 3, padding=1).double()
    x = normal(1, 7, D)
    other = x.clone()
    other[0, 3] += 1
    moved = (wide(other.mT) - wide(x.mT)).abs().amax((0, 1)) > 0
    assert moved.tolist() == [False, False, True, True, True, False, False]


@pytest.fixture(scope="module")
def plain():
    return fresh.copies("plain_layers", ["tfbook.blocks"])


MISTAKES = {
    "norm of integers": (lambda m: m.layer_norm(torch.ones(3).long()), TypeError, "x must have a"),
    "norm of nothing": (lambda m: m.layer_norm(torch.tensor(1.0)), ValueError, "1 dimensions"),
    "weight of another size": (
        lambda m: m.rms_norm(torch.ones(3), torch.ones(2)),
        ValueError,
        r"weight must have shape \(d,\) = \(3,\), got \(2,\)",
    ),
    "weight of another dtype": (
        lambda m: m.layer_norm(torch.ones(3), torch.ones(3).double()),
        TypeError,
        "x and weight must have the same dtype",
    ),
    "eps zero": (lambda m: m.rms_norm(torch.ones(3), eps=0), ValueError, "eps must be finite"),
    "norm of no size": (lambda m: m.LayerNorm(0), ValueError, "d_model must be at least 1"),
    "norm eps": (lambda m: m.RMSNorm(3, eps=-1.0), ValueError, "eps must be finite and above 0"),
    "norm kind": (lambda m: m.make_norm("batch", 3), ValueError, "kind must be one of layer, rms"),
    "norm of another width": (
        lambda m: m.RMSNorm(3)(torch.ones(2, 4)),
        ValueError,
        r"x must end with d_model = 3 numbers, got \(2, 4\)",
    ),
    "ffn kind": (lambda m: m.FeedForward(3, 5, kind="swish"), ValueError, "'swish'"),
    "ffn size": (lambda m: m.FeedForward(3, 0), ValueError, "d_ff must be at least 1, got 0"),
    "ffn bias": (lambda m: m.FeedForward(3, 5, bias=1), TypeError, "bias must be True or False"),
    "ffn dropout": (lambda m: m.FeedForward(3, 5, dropout=1), ValueError, "from 0 up to below 1"),
    "ffn width": (lambda m: m.FeedForward(3, 5)(torch.ones(4)), ValueError, "d_model = 3"),
    "ffn of integers": (
        lambda m: m.FeedForward(3, 5)(torch.ones(3).long()),
        TypeError,
        "floating-point",
    ),
    "place": (lambda m: m.Residual(None, place="before"), ValueError, "place must be one of pre"),
    "norm without place": (
        lambda m: m.Residual(m.LayerNorm(3), place="none"),
        ValueError,
        "norm and place go together",
    ),
    "place without norm": (lambda m: m.Residual(None, place="pre"), ValueError, "go together"),
    "residual dropout": (
        lambda m: m.Residual(None, place="none", dropout="0.1"),
        TypeError,
        "dropout must be a number, got str",
    ),
    "gate as convolution": (
        lambda m: m.to_conv1d(m.FeedForward(3, 5, kind="swiglu")),
        ValueError,
        "gated kind 'swiglu'",
    ),
    "no ffn as convolution": (lambda m: m.to_conv1d(nn.Linear(2, 2)), TypeError, "got Linear"),
    "wide convolution": (
        lambda m: m.from_conv1d(nn.Conv1d(3, 5, 3), nn.Conv1d(5, 3, 1)),
        ValueError,
        "up must be an nn.Conv1d of width 1",
    ),
    "convolutions that do not fit": (
        lambda m: m.from_conv1d(nn.Conv1d(3, 5, 1), nn.Conv1d(7, 3, 1)),
        ValueError,
        "must lead there and back",
    ),
    "convolution with a gate": (
        lambda m: m.from_conv1d(nn.Conv1d(3, 5, 1), nn.Conv1d(5, 3, 1), kind="glu"),
        ValueError,
        "no gate, got 'glu'",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(plain, name):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call(plain)


def test_every_part_says_what_it_is():
    assert "place='pre'" in repr(Residual(LayerNorm(3), place="pre"))
    assert "kind='swiglu'" in repr(FeedForward(3, 5, kind="swiglu"))
    assert "eps=1e-06" in repr(make_norm("rms", 3, eps=1e-6))
    assert "gelu" in repr(to_conv1d(FeedForward(3, 5, kind="gelu")))
    assert set(GATES.values()) <= set(ACTIVATIONS)
    assert from_conv1d(nn.Conv1d(3, 5, 1), nn.Conv1d(5, 3, 1)).kind == "relu"
    assert math.isclose(FeedForward(3, 5).dropout, 0)
