"""Whole models: properties, parity with PyTorch's own, compiling, states, and what is refused."""

import copy

import fresh
import pytest
import safetensors.torch
import torch
from attention_properties import torch_may_warn
from model_properties import CHECKS, B, F, Kit, M, N, V, ids, normal, randomised, uniform
from test_blocks import block_of
from torch import nn

import tfbook.attention
import tfbook.blocks
import tfbook.models
from tfbook.attention import SlidingCache, StaticCache, causal_mask
from tfbook.models import (
    FFN,
    PRESETS,
    Attention,
    Layer,
    Patches,
    TransformerConfig,
    build,
    preset,
    shift_right,
)

KIT = Kit(tfbook.models, tfbook.attention, tfbook.blocks)


@pytest.mark.parametrize("name", CHECKS)
def test_property(name):
    CHECKS[name](KIT)


SIZES = {"d_model": 24, "n_layers": 2, "n_heads": 6, "d_ff": F}


def put(target, source):
    """Copy a part of PyTorch's into ours."""
    for ours, theirs in zip(target.blocks, source.layers, strict=True):
        block = block_of(theirs)
        ours.load_state_dict(block.state_dict())
    target.final_norm.load_state_dict(source.norm.state_dict())


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_transformer_is_pytorchs(norm_first, activation):
    options = {"activation": activation, "norm_first": norm_first, "batch_first": True}
    theirs = randomised(nn.Transformer(24, 6, 2, 2, F, 0.0, **options))
    config = uniform(
        tfbook.models,
        V,
        **SIZES,
        kind="encoder-decoder",
        place="pre" if norm_first else "post",
        final_norm=True,
        ffn=activation,
        position="none",
        share_embeddings=False,
    )
    ours = randomised(build(config), seed=4)
    put(ours.encoder, theirs.encoder)
    put(ours.decoder, theirs.decoder)
    source, target = ids(B, M), ids(B, N, seed=2)
    lengths, own = (
        torch.arange(M) < torch.tensor([[M], [3]]),
        torch.arange(N) < torch.tensor([[N], [4]]),
    )
    hidden = theirs(
        ours.embed(source),
        ours.target_embed(target),
        tgt_mask=~causal_mask(N),
        src_key_padding_mask=~lengths,
        tgt_key_padding_mask=~own,
        memory_key_padding_mask=~lengths,
    )
    wanted = hidden @ ours.target_embed.weight.T
    found = ours(source, target, source_mask=lengths, target_mask=own)
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)
    weights = [ours.embed.weight, ours.target_embed.weight]
    for a, b in zip(
        torch.autograd.grad(found.sin().sum(), weights),
        torch.autograd.grad(wanted.sin().sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


def test_patches_are_a_convolution_with_stride():
    layer = Layer(Attention(2), FFN(5))
    config = TransformerConfig(None, 14, encoder=[layer], embedding=Patches(9, 3, 2))
    embed = randomised(build(config)).embed
    images = normal(B, 2, 9, 9)
    kernel = embed.proj.weight.unflatten(1, (2, 3, 3))
    wanted = nn.functional.conv2d(images, kernel, embed.proj.bias, stride=3)
    torch.testing.assert_close(embed(images)[:, 1:], wanted.flatten(2).mT)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("cache", [None, StaticCache(N), SlidingCache(N)], ids=str)
def test_every_cache_gives_the_same_logits(kind, cache):
    model = KIT.model(kind=kind, position="rotary")
    tokens, source = ids(B, N), ids(B, M, seed=2)
    with torch.no_grad():
        if kind == "decoder":
            whole, state = model(tokens)[0], model.empty_state(B, cache=cache)
        else:
            whole, state = model(source, tokens), model.remember(source, cache=cache)
        pieces = []
        for piece in tokens.split([1, 4, 2], 1):
            logits, state = model.decode(piece, state)
            pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)


def test_masks_of_three_dimensions_go_to_attention():
    tokens = ids(B, N)
    ahead = causal_mask(N)[None]
    encoder = KIT.model(kind="encoder")
    changed = tokens.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % V
    found = [encoder(x, mask=ahead)[:, :4] for x in (tokens, changed)]
    torch.testing.assert_close(*found)
    decoder = KIT.model()
    torch.testing.assert_close(decoder(tokens, mask=ahead)[0], decoder(tokens)[0])
    state = decoder(tokens, mask=ahead)[1]
    assert state.counts is None and state.seen == N


def test_shifted_targets_line_up_with_what_predicts_them():
    targets = ids(B, N)
    read = shift_right(targets, bos=V + 1)
    assert (read[:, 0] == V + 1).all() and torch.equal(read[:, 1:], targets[:, :-1])
    assert read.dtype == targets.dtype


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_small_and_can_be_saved(name, tmp_path):
    config = preset(name, n_layers=2, d_model=24, n_heads=6, n_kv_heads=None, d_ff=F)
    images = isinstance(config.embedding, Patches)
    if not images:
        config = config.replace(vocab_size=V)
    model = build(config).eval()
    tokens = ids(B, N) if not images else normal(B, 3, 224, 224).float()
    run = {"encoder": lambda m: m(tokens), "decoder": lambda m: m(tokens)[0]}
    run = run.get(config.kind, lambda m: m(tokens, tokens))
    found = run(model)
    assert found.isfinite().all()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        again = build(config).eval()
    again.load_state_dict(
        safetensors.torch.load_file(tmp_path / "model.safetensors"), strict=True, assign=True
    )
    torch.testing.assert_close(run(again), found)
    torch.testing.assert_close(run(copy.deepcopy(model)), found)


def test_a_copy_has_positions_of_its_own():
    model = KIT.model(position="t5")
    twin = copy.deepcopy(model)
    tokens = ids(B, N)
    before = model(tokens)[0]
    with torch.no_grad():
        twin.position.weight.zero_()
    torch.testing.assert_close(model(tokens)[0], before)
    assert (twin(tokens)[0] - before).abs().max() > 1e-6


@pytest.mark.parametrize("position", ["learned", "rotary", "t5"])
def test_half_precision_stays_what_it_is(position):
    model = build(KIT.choices(position=position)).bfloat16().eval()
    logits, state = model(ids(B, N))
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()
    assert state.layers[0].mixer.k.dtype == torch.bfloat16


@pytest.fixture(scope="module")
def plain():
    fresh.copies("plain_models", ["tfbook.models"])
    return Kit(*(fresh.copy_of("plain_models", name) for name in Kit.MODULES))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("kind", "position"),
    [("decoder", "rotary"), ("encoder", "t5")],
)
def test_models_compile_whole(plain, kind, position):
    model = plain.model(kind=kind, position=position)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    with torch_may_warn(), torch.no_grad():
        found, wanted = compiled(ids(B, N)), model(ids(B, N))
    found, wanted = (x[0] if kind == "decoder" else x for x in (found, wanted))
    torch.testing.assert_close(found, wanted)


def decode(kit, **choices):
    """Make a decoder of the copied modules."""
    return kit.model(**choices)


T = torch.tensor([[1, 2, 3]])
MISTAKES = {
    "no config": (lambda k: k.models.build({"d_model": 3}), TypeError, "TransformerConfig, got d"),
    "wrong class": (
        lambda k: k.models.EncoderOnly(k.choices()),
        ValueError,
        r"of kind 'encoder', got 'decoder'; build\(config\)",
    ),
    "one sequence": (lambda k: decode(k)(T[0]), ValueError, r"\(B, N\), got \(3,\).*tokens\[None"),
    "empty": (lambda k: decode(k)(T[:, :0]), ValueError, r"must not be empty, got shape \(1, 0\)"),
    "no sequence": (lambda k: decode(k)(T[:0]), ValueError, "tokens must not be empty"),
    "floats": (lambda k: decode(k)(T.float()), TypeError, "integers, got torch.float32"),
    "list": (lambda k: decode(k)([[1]]), TypeError, "tokens must be a tensor, got list"),
    "too large": (lambda k: decode(k)(T + V), ValueError, "from 0 to 22, got 24 to 26"),
    "negative": (lambda k: decode(k)(T - 2), ValueError, "from 0 to 22, got -1 to 1"),
    "too long": (
        lambda k: decode(k)(torch.zeros(1, 20).long()),
        ValueError,
        "tokens must not be longer than max_len = 19, got 20",
    ),
    "too long rotary": (
        lambda k: decode(k, position="rotary")(torch.zeros(1, 20).long()),
        ValueError,
        "max_len = 19, got 20",
    ),
    "too long in the end": (
        lambda k: decode(k)(T, decode(k)(torch.zeros(1, 17).long())[1]),
        ValueError,
        "max_len = 19, got 20 with what came before",
    ),
    "mask shape": (
        lambda k: decode(k)(T, mask=torch.ones(1, 2).bool()),
        ValueError,
        r"mask must have shape \(B, N\) = \(1, 3\), got \(1, 2\)",
    ),
    "mask dtype": (lambda k: decode(k)(T, mask=T), TypeError, "mask must be boolean with True"),
    "mask list": (lambda k: decode(k)(T, mask=[True]), TypeError, "mask must be a tensor"),
    "state": (lambda k: decode(k)(T, ()), TypeError, "state must be a ModelState, got tuple"),
    "last": (lambda k: decode(k)(T, last=1), TypeError, "last must be True or False"),
    "no state": (
        lambda k: decode(k, kind="encoder-decoder").decode(T, None),
        TypeError,
        r"got NoneType; it comes from remember\(source\)",
    ),
    "another batch": (
        lambda k: decode(k)(T, decode(k)(torch.zeros(2, 3).long())[1]),
        ValueError,
        r"state.k must have shape",
    ),
    "source": (
        lambda k: decode(k, kind="encoder-decoder")(T + V, T),
        ValueError,
        "source must be from 0 to 22",
    ),
    "target": (
        lambda k: decode(k, kind="encoder-decoder")(T, T + V),
        ValueError,
        "target must be from 0 to 22",
    ),
    "segments": (
        lambda k: decode(k, kind="encoder", n_segments=2)(T, segments=T),
        ValueError,
        "segments must be from 0 to 1, got 1 to 3",
    ),
    "segments shape": (
        lambda k: decode(k, kind="encoder", n_segments=2)(T, segments=T[:, :2] * 0),
        ValueError,
        "segments must have the shape of tokens",
    ),
    "no segments": (
        lambda k: decode(k, kind="encoder")(T, segments=T),
        ValueError,
        "this model has none",
    ),
    "shift": (lambda k: k.models.shift_right(T, -1), ValueError, "bos must be at least 0"),
    "shift of one": (lambda k: k.models.shift_right(T[0], 1), ValueError, r"targets\[None\]"),
    "tied without a table": (
        lambda k: tfbook.blocks.LanguageHead(3, 5, tied=True)(torch.ones(1, 2, 3)),
        ValueError,
        "table is needed",
    ),
    "image": (
        lambda k: tfbook.blocks.PatchEmbedding(8, 2, 3, 5)(torch.ones(1, 3, 8, 9)),
        ValueError,
        r"\(C, S, S\) = \(3, 8, 8\), got \(1, 3, 8, 9\)",
    ),
    "patch": (
        lambda k: tfbook.blocks.PatchEmbedding(8, 3, 3, 5),
        ValueError,
        "must divide image_size",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(plain, name):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call(plain)
