"""Stochastic depth and LayerDrop: means, evaluation, caches, and what is refused."""

import pytest
import torch
from model_properties import randomised, uniform
from torch import nn

from tfbook import models
from tfbook.blocks import Residual
from tfbook.models import build
from tfbook.training import keep_layers, layer_drop, stochastic_depth

B, N, V, L = 3, 7, 11, 2


def model(kind="decoder", **choices):
    choices |= {"n_decoder_layers": L} if kind == "encoder-decoder" else {}
    config = uniform(models, V, 12, L, 3, 17, kind=kind, max_len=19, **choices)
    return randomised(build(config))


def ids(seed=0):
    return torch.randint(0, V, (B, N), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("change", [stochastic_depth, layer_drop])
def test_evaluation_is_unchanged_and_0_switches_it_off(change):
    decoder = model().eval()
    wanted = decoder(ids())[0]
    change(decoder, 0.9)
    torch.manual_seed(0)
    torch.testing.assert_close(decoder(ids())[0], wanted)
    changed = decoder.train()(ids())[0]
    change(decoder, 0.0)
    torch.testing.assert_close(decoder(ids())[0], wanted)
    assert not torch.allclose(changed, wanted)
    assert "skip" not in str(decoder.state_dict().keys())


def test_each_sequence_has_its_own_coin_and_the_mean_stays():
    residual = Residual(None, place="none").double()
    residual.skip = 0.3
    torch.manual_seed(0)
    x, y = torch.zeros(20_000, 1, 2).double(), torch.ones(20_000, 1, 2).double()
    out = residual.leave(x, y)
    assert set(out.unique().tolist()) == {0.0, 1 / 0.7}
    assert (out[..., 0] == out[..., 1]).all()
    assert abs(out.mean().item() - 1) < 5 * (0.3 / 0.7 / 20_000) ** 0.5


def test_the_rate_grows_with_depth_or_not():
    both = model("encoder-decoder")
    stochastic_depth(both, 0.4)
    rates = [[b.mixer_residual.skip, b.ffn_residual.skip] for b in both.decoder.blocks]
    assert rates == [[0.2, 0.2], [0.4, 0.4]]
    assert both.encoder.blocks[0].mixer_residual.skip == 0.2
    stochastic_depth(both, 0.4, growing=False)
    assert {b.cross_residual.skip for b in both.decoder.blocks} == {0.4}


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
def test_what_is_left_out_is_a_block_with_its_share(kind):
    whole = model(kind)
    layer_drop(whole, 0.25)
    count = []
    for block in [m for n, m in whole.named_modules() if n.split(".")[-2:-1] == ["blocks"]]:
        block.register_forward_hook(lambda *_: count.append(1))
    torch.manual_seed(0)
    runs, layers = 300, L * (2 if kind == "encoder-decoder" else 1)
    for _ in range(runs):
        whole(ids(), ids(1)) if kind == "encoder-decoder" else whole(ids())
    n = runs * layers
    assert abs(len(count) / n - 0.75) < 5 * (0.1875 / n) ** 0.5


def test_without_its_blocks_a_stack_passes_x_on():
    stack = model().stack
    stack.final_norm = None
    layer_drop(stack, 1 - 1e-9)
    x = torch.randn(B, N, 12, dtype=torch.float64)
    y, states = stack(x)
    assert torch.equal(y, x) and torch.equal(stack.encode(x), x)
    assert [state.length for state in states] == [0] * L


def test_a_stack_of_some_blocks_is_those_blocks():
    stack = model().eval().stack
    x = torch.randn(B, N, 12, dtype=torch.float64)
    kept = keep_layers(stack, [1]).eval()
    torch.testing.assert_close(kept(x)[0], stack.final_norm(stack.blocks[1](x)[0]))
    torch.testing.assert_close(keep_layers(stack, range(L)).eval()(x)[0], stack(x)[0])


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: layer_drop(model(), 1.0), ValueError, "rate must be from 0 up to below 1"),
        (lambda: stochastic_depth(model(), "0"), TypeError, "rate must be a number"),
        (lambda: layer_drop(nn.Linear(1, 1), 0.1), ValueError, "must have a Stack of blocks"),
        (lambda: keep_layers(model().stack, [1, 0]), ValueError, "layers must rise within 0 to 1"),
        (lambda: keep_layers(model().stack, [2]), ValueError, "layers must rise within 0 to 1"),
        (lambda: keep_layers(model().stack, []), ValueError, "got none"),
        (lambda: keep_layers(model().stack, [0.5]), TypeError, "layers must be an integer"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
