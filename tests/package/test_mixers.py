"""Mixers with a state of fixed size as parts of a hybrid: counted, trained, continued.

Each stands between attentions in a small decoder, built from its description alone.
"""

import json

import pytest
import torch
from test_memory_accounts import kept
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tfbook.generation import generate
from tfbook.models import (
    FFN,
    RWKV,
    Attention,
    DeltaNet,
    GatedDeltaNet,
    Layer,
    LinearAttention,
    NoFFN,
    Norm,
    Retention,
    Rotary,
    RWKVChannels,
    Site,
    TransformerConfig,
    build,
)

V, D = 23, 12
SIZES = {"d_head": 4, "d_value": 5, "chunk": 4}
SPECS = {
    "retention": Retention(3, **SIZES),
    "retention as it comes": Retention(2),
    "linear": LinearAttention(3, **SIZES),
    "gated linear": LinearAttention(3, gated=True, chunk=4),
    "delta": DeltaNet(3, kernel=3, **SIZES),
    "gated delta": GatedDeltaNet(3, d_value=7, negative=True, chunk=4),
    "rwkv": RWKV(7),
    "rwkv channels": RWKVChannels(9),
}
ALONE = {"parallel": True, "one_norm": True}  # a layer without a feed-forward part


def hybrid(spec):
    attention = Attention(3, n_kv_heads=1, position=Rotary(), attend="reference")
    layers = [
        Layer(spec, FFN(17), norm=Norm("rms")),
        Layer(attention, FFN(9)),
        Layer(spec, NoFFN(), **ALONE),
    ]
    return TransformerConfig(V, D, decoder=layers)


@pytest.fixture(scope="module", params=SPECS)
def spec(request):
    return SPECS[request.param]


@pytest.fixture(scope="module")
def model(spec):
    torch.manual_seed(0)
    return build(hybrid(spec)).eval()


def tokens(batch=2, n=11):
    return torch.randint(V, (batch, n), generator=torch.Generator().manual_seed(1))


def test_it_is_counted_like_the_model(spec, model):
    config = hybrid(spec)
    assert config.count_parameters() == model.count_parameters()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        state = model(tokens())[1]
    assert config.flops(11, 2) == counter.get_total_flops()
    for n in (1, 6):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens(2, n), state)
        assert config.flops(n, 2, past=11) == counter.get_total_flops()


def test_its_state_is_as_large_as_counted_and_does_not_grow(spec, model):
    config, sizes = hybrid(spec), set()
    for n in (1, 11):
        state = model(tokens(2, n))[1]
        assert state.nbytes == config.kv_cache_bytes(n, 2)
        sizes.add(state.layers[0].nbytes)
    assert sizes == {4 * 2 * spec.held(D, 1)} == {4 * 2 * spec.held(D, 1000)}


def test_pieces_give_the_whole_and_generation_goes_on_from_the_state(model):
    whole, pieces, state = model(tokens())[0], [], None
    for piece in tokens().split([4, 1, 6], dim=1):
        logits, state = model(piece, state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-4, rtol=1e-4)
    found = generate(model, tokens(1, 4), max_new_tokens=5).tokens[0]
    wanted = tokens(1, 4)
    for _ in range(5):
        wanted = torch.cat([wanted, model(wanted)[0][:, -1:].argmax(-1)], 1)
    assert list(found)[-5:] == wanted[0, 4:].tolist()


def test_a_padded_batch_gives_what_each_sequence_gives_alone(model):
    mask = torch.arange(11) >= torch.tensor([[4], [0]])
    logits, state = model(tokens(), mask=mask)
    alone, own = model(tokens()[:1, 4:])
    torch.testing.assert_close(logits[:1, 4:], alone, atol=1e-4, rtol=1e-4)
    more = tokens(2, 3)
    after, alone = model(more, state)[0][:1], model(more[:1], own)[0]
    torch.testing.assert_close(after, alone, atol=1e-4, rtol=1e-4)


def test_a_step_of_training_reaches_every_part(spec):
    torch.manual_seed(2)
    net = build(hybrid(spec))
    before = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    ids = tokens(8, 12)
    loss = nn.functional.cross_entropy(net(ids[:, :-1])[0].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    still = [name for name, weight in net.named_parameters() if torch.equal(weight, before[name])]
    assert still == []


def test_it_survives_json(spec):
    config = hybrid(spec)
    again = TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and again.decoder[0].mixer == spec


def test_it_says_about_how_much_training_keeps():
    """Within a tenth; PyTorch's kernels copy rows here and there."""
    sizes = {"d_head": 16, "d_value": 32, "chunk": 16}
    for spec in (
        *(kind(3, **sizes) for kind in (Retention, LinearAttention, DeltaNet, GatedDeltaNet)),
        LinearAttention(3, gated=True, **sizes),
        RWKV(40),
        RWKVChannels(90),
    ):
        one, two = (
            TransformerConfig(V, 48, decoder=[Layer(spec, NoFFN(), **ALONE)] * n) for n in (1, 2)
        )
        measured = kept(two, 48, 2) - kept(one, 48, 2)
        said = sum(part.saved for part in two.parts(48, 2) if ".1." in part.name)
        assert 0.9 < said / measured < 1.1, (spec, said, measured)


def test_it_stands_in_decoders_only(spec):
    for site in (Site(D), Site(D, causal=True, memory=True)):
        with pytest.raises(ValueError, match=type(spec).__name__):
            spec.check(site)
    with pytest.raises(ValueError, match="cross"):
        Layer(spec, FFN(4)).with_cross()


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("error", "word", "make"),
    [
        (TypeError, "n_heads", lambda: Retention(2.0)),
        (ValueError, "base", lambda: Retention(2, base=1)),
        (ValueError, "chunk", lambda: LinearAttention(2, chunk=0)),
        (TypeError, "gated", lambda: LinearAttention(2, gated=None)),
        (ValueError, "kernel", lambda: DeltaNet(2, kernel=0)),
        (TypeError, "negative", lambda: GatedDeltaNet(2, negative="yes")),
        (ValueError, "d_inner", lambda: RWKV(0)),
        (TypeError, "d_ff", lambda: RWKVChannels(True)),
        (ValueError, "d_head must be even", lambda: Retention(4).check(Site(D, causal=True))),
        (ValueError, "n_heads must divide", lambda: DeltaNet(5).check(Site(D, causal=True))),
    ],
)
def test_bad_choices_are_refused(error, word, make):
    with pytest.raises(error, match=word):
        make()


def test_states_of_one_size_can_be_compared():
    """With 64 numbers a row and 4 heads: what 1,000 rows leave behind."""
    specs = (LinearAttention(4), Retention(4, d_value=16), DeltaNet(4, kernel=1), RWKV())
    assert [spec.held(64, 1000) for spec in specs] == [1088, 1024, 1024, 256]
    assert Attention(4).held(64, 1000) == 128_000


def test_nothing_adds_nothing():
    x = torch.randn(2, 3, D)
    layer = Layer(RWKV(), NoFFN(), **ALONE).build(Site(D, causal=True))
    y, _ = layer(x)
    torch.testing.assert_close(y, x + layer.mixer(layer.mixer_residual.norm(x))[0])
