"""Configs: counts equal to real models, published sizes, round trips, tables, what is refused."""

import json

import fresh
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_properties import POSITIONS, uniform
from torch.utils.flop_counter import FlopCounterMode

import tfbook.models
from tfbook.blocks import FEED_FORWARDS, SCHEMES, feed_forward_parameters
from tfbook.costs import attention_parameters
from tfbook.models import (
    FFN,
    PRESETS,
    PUBLISHED,
    Attention,
    Layer,
    LinearBias,
    MaskedToken,
    NextToken,
    Norm,
    Patches,
    Rotary,
    Sinusoidal,
    T5Buckets,
    TransformerConfig,
    build,
    preset,
)
from tfbook.positions import LinearScaling, Llama3Scaling, NTKScaling, YarnScaling


@st.composite
def configs(draw):
    """Draw small sizes and any choices."""
    kind = draw(st.sampled_from(["decoder", "encoder", "encoder-decoder"]))
    kv = draw(st.integers(1, 3))
    choices = {
        "kind": kind,
        "n_kv_heads": kv,
        "d_head": 2 * draw(st.integers(1, 3)),
        "max_len": 11,
        "max_distance": 4,
        "n_buckets": 4,
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "place": draw(st.sampled_from(["pre", "post", "none", "inside", "both"])),
        "final_norm": draw(st.sampled_from([None, True, False])),
        "embedding_norm": draw(st.booleans()),
        "ffn": draw(st.sampled_from(FEED_FORWARDS)),
        "multiplier": draw(st.sampled_from([1.0, 0.5])),
        "attention_bias": draw(st.sampled_from([True, False, ("q", "v"), ("out",)])),
        "ffn_bias": draw(st.booleans()),
        "qk_norm": draw(st.booleans()),
        "position": draw(st.sampled_from(POSITIONS)),
        "tie_embeddings": draw(st.booleans()),
        "share_embeddings": draw(st.booleans()),
        "qk_norm_whole": draw(st.booleans()),
        "d_value": draw(st.sampled_from([None, 5])),
        "init": draw(st.sampled_from(sorted(SCHEMES))),
        "attend": "reference",  # PyTorch does not count its own attention on a CPU
    }
    if kind == "encoder":
        head = draw(st.sampled_from([None, "mlm", "classes"]))
        choices |= {
            "head": head,
            "n_classes": 3 if head == "classes" else None,
            "pooler": draw(st.booleans()),
            "n_segments": draw(st.sampled_from([None, 2])),
        }
    else:
        choices["head_bias"] = draw(st.booleans())
    if kind == "decoder":
        choices["parallel"] = draw(st.booleans())
        choices["one_norm"] = (
            choices["parallel"] and choices["place"] == "pre" and draw(st.booleans())
        )
    if kind == "encoder-decoder":
        choices["n_decoder_layers"] = draw(st.sampled_from([None, 1, 3]))
    heads = kv * draw(st.integers(1, 2))
    sizes = {"vocab_size": 13, "d_model": 2 * draw(st.integers(2, 4)), "n_layers": 2, "d_ff": 7}
    return sizes | {"n_heads": heads} | choices


def run(model, n, batch, m):
    """Call a model with some tokens."""
    config = model.config
    if isinstance(config.embedding, Patches):
        size, channels = config.embedding.image_size, config.embedding.n_channels
        return model(torch.zeros(batch, channels, size, size))
    target = torch.zeros(batch, n, dtype=torch.long)
    if config.kind == "encoder-decoder":
        return model(torch.zeros(batch, m, dtype=torch.long), target)
    return model(target)


@settings(max_examples=16)
@given(choices=configs(), n=st.integers(1, 5), m=st.integers(1, 5))
def test_counts_are_those_of_a_real_model(choices, n, m):
    config = uniform(tfbook.models, **choices)
    model = build(config).eval()
    assert config.count_parameters() == model.count_parameters()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(model, n, 2, m)
    assert config.flops(n, 2, m=m) == counter.get_total_flops()
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", ["gpt2", "llama-7b", "t5-small", "transformer-base"])
@pytest.mark.parametrize("past", [0, 1, 6])
def test_flops_of_a_continued_text_are_those_counted(name, past):
    small = {"d_model": 12, "d_ff": 17, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1}
    config = preset(name, vocab_size=13, attend="reference", **small)
    model = build(config).eval()
    tokens = torch.zeros(2, past, dtype=torch.long)
    state = model.remember(tokens[:, :1].new_zeros(2, 5)) if "t5" in name or "tr" in name else None
    if past:
        _, state = model.decode(tokens, state)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.decode(torch.zeros(2, 3, dtype=torch.long), state)
    encoder = 0
    if config.kind == "encoder-decoder" and not past:
        parts = config.parts(3, 2, m=5)
        memory = (".cross.k_proj", ".cross.v_proj")
        encoder = sum(
            part.flops
            for part in parts
            if part.name.startswith("encoder") or part.name.endswith(memory)
        )
    assert config.flops(3, 2, m=5, past=past) - encoder == counter.get_total_flops()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_counted_like_the_model_they_build(name):
    config = preset(name)
    with torch.device("meta"):
        model = build(config)
    assert config.count_parameters() == model.count_parameters()


@pytest.mark.parametrize("name", PRESETS)
def test_counts_are_the_published_ones_to_the_digits_printed(name):
    printed = PUBLISHED[name]
    count = preset(name, **printed.changes).count_parameters()
    if printed.remark:  # the print is wrong, and by little
        assert not printed.agrees(count)
        assert 0.02 * printed.value > 0 and abs(count / printed.value - 1) < 0.07
    else:
        assert printed.agrees(count)
        unit = 10 ** (len(str(count)) - printed.digits)
        assert abs(count - printed.value) <= unit / 2


def test_what_is_printed_is_the_number_it_stands_for():
    units = {"M": 1e6, "B": 1e9}
    for printed in PUBLISHED.values():
        assert float(printed.text[:-1]) * units[printed.text[-1]] == printed.value
        assert len(printed.text[:-1].replace(".", "").rstrip("0")) <= printed.digits
    assert set(PUBLISHED) == set(PRESETS)
    assert not PUBLISHED["gpt3-175b"].agrees(175_600_000_000)
    assert PUBLISHED["gpt3-175b"].agrees(174_600_000_000)


def test_the_wrong_prints_are_the_known_ones():
    wrong = {name for name, printed in PUBLISHED.items() if printed.remark}
    assert wrong == {
        "transformer-base",
        "transformer-big",
        "gpt2",
        "gpt2-medium",
        "gpt2-large",
        "gpt2-xl",
    }


def test_a_base_transformer_is_the_sum_of_its_parts():
    d, d_ff, norm = 512, 2048, 2 * 512
    attention = attention_parameters(d, 8)
    ffn = feed_forward_parameters(d, d_ff)
    encoder, decoder = attention + ffn + 2 * norm, 2 * attention + ffn + 3 * norm
    assert preset("transformer-base").count_parameters() == 37000 * d + 6 * (encoder + decoder)


def test_the_cache_is_as_large_as_what_a_model_holds():
    for name in ("smollm2-135m", "gpt2", "t5-small"):
        config = preset(name, n_layers=3, vocab_size=17)
        model = build(config)
        tokens = torch.zeros(2, 5, dtype=torch.long)
        source = config.kind == "encoder-decoder"
        state = model.remember(torch.zeros(2, 7, dtype=torch.long)) if source else None
        _, state = model.decode(tokens, state)
        assert config.kv_cache_bytes(5, 2, m=7 if source else 0) == state.nbytes
        assert config.kv_cache_bytes(5, 2, 2, m=7 if source else 0) == state.nbytes // 2


def test_shapes_and_bytes_are_those_of_what_parts_return():
    config = preset("bert-base", n_layers=1, vocab_size=17, d_model=24, n_heads=4, d_ff=10)
    model, seen = build(config.replace(head=MaskedToken())), {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda module, args, out, name=name: seen.update({name: out}))
    model(torch.zeros(2, 5, dtype=torch.long))
    for part in model.config.parts(5, 2, bytes_per_number=2):
        assert part.bytes == 2 * torch.Size(part.shape).numel()
        if part.name in seen and part.name not in ("segments", "stack.blocks.0.mixer.z"):
            assert seen[part.name].shape == part.shape, part.name
    assert seen["stack.blocks.0.mixer.z"].shape == (2, 4, 5, 6)


def test_a_model_of_images_is_counted_at_its_own_length():
    config = preset("vit-b-16", n_layers=1, d_model=24, n_heads=4, d_ff=10, n_classes=3)
    config = config.replace(image_size=8, patch_size=2, n_channels=1, attend="reference")
    model = build(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(model, None, 3, None)
    assert config.flops(batch=3) == counter.get_total_flops()
    assert model.count_parameters() == config.count_parameters()


@pytest.mark.parametrize("name", PRESETS)
def test_configs_survive_json(name):
    config = preset(name)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_smaller_keys_save_what_table_3_says():
    """Rows B of [vaswani2017attention], which keep the values' size: 58 and 60 million, not 65."""
    base = preset("transformer-base")
    for d_key, printed in ((16, 58), (32, 60)):
        smaller = base.replace(d_head=d_key, d_value=64)
        saved = (base.count_parameters() - smaller.count_parameters()) / 1e6
        assert round(saved) == 65 - printed


@pytest.mark.parametrize(
    "scaling",
    [LinearScaling(2.0), NTKScaling(4.0), YarnScaling(8.0, 128), Llama3Scaling(8.0, 128)],
    ids=str,
)
def test_scalings_survive_json(scaling):
    config = preset("smollm2-135m", scaling=scaling)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    build(config.replace(n_layers=1, vocab_size=7))


def test_names_of_biases_survive_json():
    config = TransformerConfig(5, 4, decoder=[Layer(Attention(2, bias={"v", "q"}), FFN(3))])
    again = TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and config.decoder[0].mixer.bias == ("q", "v")


def test_a_summary_lists_equal_blocks_once_and_all_parameters():
    config = preset("gpt2")
    text = config.summary(10)
    assert "124,439,808" in text.splitlines()[-1] and f"{config.flops(10):,}" in text
    assert text.count("mixer.q_proj") == 1 and "× 12" in text
    assert max(map(len, text.splitlines())) <= 110
    assert "total" in TransformerConfig(5, 4, decoder=[Layer(Attention(2), FFN(3))]).summary()


LAYER = Layer(Attention(2), FFN(3))


def test_a_choice_left_open_is_chosen_when_it_is_needed():
    config = TransformerConfig(5, 4, decoder=[LAYER] * 2)
    assert config.norm_behind == Norm() and config.replace(place="post").norm_behind is None
    assert config.replace(final_norm=False).norm_behind is None
    assert config.replace(place="post", final_norm=True).norm_behind == Norm()
    assert config.replace(final_norm=Norm("rms")).norm_behind == Norm("rms")
    encoder = TransformerConfig(5, 4, encoder=[LAYER])
    assert config.head == NextToken() and encoder.head is None
    assert LAYER.mixer.heads(4) == (2, 2, 2, 2) and Attention(1).heads(4) == (1, 1, 4, 4)
    both = TransformerConfig(5, 4, encoder=[LAYER], decoder=[LAYER.with_cross()] * 3)
    assert [x.kind for x in (config, encoder, both)] == ["decoder", "encoder", "encoder-decoder"]
    assert [x.n_layers for x in (config, encoder, both)] == [2, 1, 1]
    with pytest.raises(AttributeError):
        config.d_model = 8


def test_a_change_reaches_every_part_that_has_the_choice():
    config = preset("t5-small").replace(n_heads=4, d_ff=7, n_layers=3, n_decoder_layers=2, eps=0.1)
    assert (len(config.encoder), len(config.decoder)) == (3, 2)
    for layer in config.layers:
        assert (layer.mixer.n_heads, layer.ffn.d_ff, layer.norm.eps) == (4, 7, 0.1)
    assert config.decoder[0].cross.n_heads == 4 and config.norm_behind.eps == 0.1
    assert config.choice("n_heads") == 4 and config.choice("norm_kind") == "rms"
    with pytest.raises(ValueError, match="the parts of this model differ in dropout"):
        config.replace(embedding_dropout=0.3).choice("dropout")


def test_a_list_of_layers_is_repeated_or_cut():
    wide = Layer(Attention(2, window=3), FFN(5))
    config = TransformerConfig(5, 4, decoder=[LAYER, wide])
    assert config.replace(n_layers=5).decoder == (LAYER, wide, LAYER, wide, LAYER)
    assert config.replace(n_layers=1).decoder == (LAYER,)


def test_dropout_is_of_layers_and_embedding_and_no_other():
    config = preset("t5-small", dropout=0.3)
    assert config.embedding.dropout == config.encoder[0].dropout == 0.3
    assert config.encoder[0].mixer.dropout == config.encoder[0].ffn.dropout == 0.1
    config = preset("bert-base", ffn_dropout=0.2, attention_dropout=0.0)
    assert config.encoder[0].ffn.dropout == 0.2 and config.encoder[0].mixer.dropout == 0.0
    assert config.encoder[0].dropout == config.embedding.dropout == 0.1


def test_a_norm_is_every_norm_and_its_epsilon_too():
    rms = Norm("rms", eps=0.2)
    config = preset("bert-base", norm=rms, head=MaskedToken())
    norms = config.embedding.norm, config.encoder[0].norm
    assert norms == (rms, rms) and config.head.norm == Norm()
    config = config.replace(norm_eps=0.3, embedding_norm=None)
    assert config.embedding.norm is None and config.encoder[0].norm == Norm("rms", eps=0.3)
    assert config.head.norm.eps == 0.3 and preset("gpt2", norm=rms).embedding.norm is None


def test_a_position_goes_where_it_can_and_the_other_place_has_none():
    config = preset("gpt2", position=Rotary())
    assert config.embedding.position is None and config.decoder[0].mixer.position == Rotary()
    config = config.replace(position=Sinusoidal())
    assert config.embedding.position == Sinusoidal() and config.decoder[0].mixer.position is None
    config = config.replace(position=None)
    assert config.embedding.position is config.decoder[0].mixer.position is None
    config = preset("transformer-base", position=T5Buckets())
    assert config.encoder[0].mixer.position == config.decoder[0].mixer.position == T5Buckets()
    assert config.decoder[0].cross.position is None and config.decoder[0].cross.scale == 1.0
    assert config.replace(position=LinearBias()).decoder[0].cross.scale is None


def test_a_window_is_for_what_hides_the_future():
    config = preset("t5-small", window=5)
    assert config.decoder[0].mixer.window == 5
    assert config.encoder[0].mixer.window is config.decoder[0].cross.window is None


@pytest.fixture(scope="module")
def plain():
    return fresh.copies("plain_config", ["tfbook.models"])


def one(m, *, mixer=None, ffn=None, kind="decoder", d_model=12, **choices):
    """Make a config of one layer."""
    layer = {name: choices.pop(name) for name in ("cross", "norm", "place") if name in choices}
    part = m.Layer(
        m.Attention(**{"n_heads": 3} | (mixer or {})), m.FFN(**{"d_ff": 5} | (ffn or {}))
    )
    made = m.Layer(part.mixer, part.ffn, **layer)
    choices = {"vocab_size": 7} | choices
    return m.TransformerConfig(d_model=d_model, **{kind: [made]}, **choices)


CHOICES = {
    "d_model": (lambda m: one(m, d_model=0), ValueError, "d_model must be at least 1, got 0"),
    "heads": (lambda m: one(m, mixer={"n_heads": 5}), ValueError, "n_heads must divide d_model"),
    "no heads": (lambda m: m.Attention(1.0), TypeError, "n_heads must be an integer, got float"),
    "kv heads": (
        lambda m: one(m, mixer={"n_kv_heads": 2}),
        ValueError,
        "n_kv_heads must divide n_heads, got 2 and 3",
    ),
    "vocabulary": (lambda m: one(m, vocab_size=None), ValueError, "vocab_size is needed"),
    "no layers": (lambda m: m.TransformerConfig(7, 12), ValueError, "at least one layer, got none"),
    "a layer": (
        lambda m: m.TransformerConfig(7, 12, decoder=m.Layer(m.Attention(3), m.FFN(5))),
        TypeError,
        "decoder must be a list of layers, got Layer",
    ),
    "no layer": (
        lambda m: m.TransformerConfig(7, 12, decoder=[3]),
        TypeError,
        "hold layers, got i",
    ),
    "mixer": (lambda m: m.Layer("attention", m.FFN(5)), TypeError, "mixer must be a description"),
    "norm": (lambda m: m.Norm("batch"), ValueError, "norm kind must be one of layer, rms"),
    "no norm": (lambda m: one(m, norm="rms"), TypeError, "norm must be a Norm, got str"),
    "place": (lambda m: one(m, place="mid"), ValueError, "place must be one of"),
    "ffn": (lambda m: m.FFN(5, "swish"), ValueError, "ffn kind must be one of"),
    "position": (lambda m: m.Attention(3, position="rotary"), TypeError, "InAttention, got str"),
    "added": (
        lambda m: m.Attention(3, position=m.Learned()),
        TypeError,
        "position must be a InAttention, got Learned",
    ),
    "not added": (
        lambda m: m.Tokens(m.Rotary()),
        TypeError,
        "embedding position must be a InEmbedding, got Rotary",
    ),
    "init": (lambda m: one(m, init="zeros"), ValueError, "init must be one of"),
    "attend": (
        lambda m: m.Attention(3, attend="bilinear"),
        ValueError,
        "attend must be one of reference",
    ),
    "attend needs more": (
        lambda m: m.Attention(3, attend="topk"),
        ValueError,
        "got 'topk'; topk needs top too",
    ),
    "biases": (
        lambda m: m.Attention(3, bias=("w",)),
        ValueError,
        "attention_bias must be True, False or",
    ),
    "switch": (lambda m: m.FFN(5, bias=1), TypeError, "ffn_bias must be True or False, got int"),
    "final": (lambda m: one(m, final_norm="yes"), TypeError, "final_norm must be a Norm, True or"),
    "eps": (lambda m: m.Norm(eps=0.0), ValueError, "eps must be finite and above 0"),
    "dropout": (
        lambda m: m.Layer(m.Attention(3), m.FFN(5), dropout=1.0),
        ValueError,
        "dropout must be from 0 up to below 1",
    ),
    "weights": (
        lambda m: m.Attention(3, dropout=1.0),
        ValueError,
        "attention_dropout must be from 0 up to below 1",
    ),
    "learned": (
        lambda m: one(m, embedding=m.Tokens(m.Learned())),
        ValueError,
        "learned positions need max_len",
    ),
    "odd": (
        lambda m: one(m, d_model=15, embedding=m.Tokens(m.Sinusoidal())),
        ValueError,
        "d_model must be even",
    ),
    "odd head": (
        lambda m: one(m, mixer={"position": m.Rotary(), "d_head": 3}),
        ValueError,
        "d_head must be even",
    ),
    "odd share": (
        lambda m: one(m, mixer={"position": m.Rotary(share=0.75)}),
        ValueError,
        "share · d_head must be even, .* got 3",
    ),
    "share": (lambda m: m.Rotary(share=1.5), ValueError, "share must be above 0 and at most 1"),
    "layout": (lambda m: m.Rotary(layout="odd"), ValueError, "layout must be one of interleaved"),
    "buckets": (
        lambda m: m.T5Buckets(max_distance=16),
        ValueError,
        "max_distance must be above half of n_buckets = 32, got 16",
    ),
    "two tables": (
        lambda m: m.TransformerConfig(
            7,
            12,
            decoder=[m.Layer(m.Attention(3, position=m.T5Buckets(n)), m.FFN(5)) for n in (8, 16)],
        ),
        ValueError,
        "the decoder must share one T5Buckets, got 2",
    ),
    "base": (lambda m: m.Rotary(1.0), ValueError, "base must be above 1"),
    "no scaling": (lambda m: m.Rotary(scaling=2), TypeError, "scaling must be a RotaryScaling"),
    "head": (
        lambda m: one(m, head=m.MaskedToken()),
        ValueError,
        "head must be NextToken or None for kind 'decoder', got MaskedToken",
    ),
    "lm": (
        lambda m: one(m, head=m.NextToken(), kind="encoder"),
        ValueError,
        "head must be MaskedToken, Classes or None",
    ),
    "classes": (lambda m: m.Classes(0), ValueError, "n_classes must be at least 1"),
    "pooler": (
        lambda m: one(m, pooler=True),
        ValueError,
        "pooler is for kind 'encoder', got kind 'decoder'",
    ),
    "segments": (
        lambda m: one(m, embedding=m.Tokens(n_segments=2)),
        ValueError,
        "n_segments is for kind 'encoder'",
    ),
    "cross": (
        lambda m: one(m, cross=m.Attention(3)),
        ValueError,
        "cross is for layers of a decoder beside an encoder",
    ),
    "no cross": (
        lambda m: one(m, encoder=[m.Layer(m.Attention(3), m.FFN(5))]),
        ValueError,
        "need it in at least one, got kind 'encoder-decoder'",
    ),
    "order": (
        lambda m: one(
            m,
            encoder=[m.Layer(m.Attention(3), m.FFN(5))],
            cross=m.Attention(3, position=m.Rotary()),
        ),
        ValueError,
        "position is not for a cross-attention",
    ),
    "window": (
        lambda m: one(m, mixer={"window": 3}, kind="encoder"),
        ValueError,
        "window is for the layers of a decoder",
    ),
    "one norm": (
        lambda m: m.Layer(m.Attention(3), m.FFN(5), one_norm=True),
        ValueError,
        "one_norm is for parallel=True with place='pre'",
    ),
    "parallel cross": (
        lambda m: m.Layer(m.Attention(3), m.FFN(5), parallel=True, cross=m.Attention(3)),
        ValueError,
        "parallel is for a block without cross-attention",
    ),
    "multiplier": (
        lambda m: m.Layer(m.Attention(3), m.FFN(5), multiplier=0.0),
        ValueError,
        "multiplier must be finite and above 0",
    ),
    "scale": (lambda m: m.Tokens(scale="d"), ValueError, "embedding_scale must be one of sqrt"),
    "patches": (
        lambda m: one(m, embedding=(8, 2)),
        TypeError,
        "embedding must be Tokens or Patches, got tuple",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", CHOICES)
def test_choices_that_do_not_go_together_are_named(plain, name):
    call, error, message = CHOICES[name]
    with pytest.raises(error, match=message):
        call(plain)


IMAGES = {
    "text": ({"vocab_size": 7}, ValueError, "vocab_size must be None for a model of images, got 7"),
    "length": ({"max_len": 7}, ValueError, "max_len must be None for a model of images, got 7"),
    "decoder": ({"kind": "decoder"}, ValueError, "patches need kind 'encoder'"),
    "fit": ({"sizes": (9, 2, 1)}, ValueError, "patch_size must divide image_size"),
    "size": ({"sizes": (8, 0, 1)}, ValueError, "patches.patch_size must be at least 1"),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", IMAGES)
def test_images_and_tokens_do_not_mix(plain, name):
    changes, error, message = IMAGES[name]
    changes = {"vocab_size": None, "kind": "encoder"} | changes
    with pytest.raises(error, match=message):
        one(plain, embedding=plain.Patches(*changes.pop("sizes", (8, 2, 1))), **changes)


@pytest.mark.untyped
def test_other_mistakes_are_named(plain):
    config, encoder = one(plain), one(plain, kind="encoder")
    flat = {"vocab_size": 7, "d_model": 12, "n_layers": 2, "norm_place": "pre"}
    unknown = config.to_dict() | {"head": {"part": "Hyena"}}
    extra = config.to_dict() | {"head": {"part": "NextToken", "warmth": 2}}
    for call, error, message in (
        (lambda: config.replace(n_head=2), TypeError, "got n_head; there are .* n_heads, n_kv"),
        (lambda: config.replace(bias=True), TypeError, "say which of attention_bias, ffn_bias"),
        (lambda: config.replace(n_layers=0), ValueError, "n_layers must be at least 1"),
        (lambda: config.replace(ffn="gelu"), TypeError, "ffn must be a description"),
        (lambda: config.choice("kind"), TypeError, "kind is a choice of several parts: say"),
        (lambda: config.from_dict({"layers": 2}), TypeError, "choices must be fields"),
        (lambda: config.from_dict(flat), TypeError, "one flat list .* have to be written anew"),
        (lambda: config.from_dict(unknown), ValueError, "part must be one of .* got 'Hyena'"),
        (lambda: config.from_dict(extra), ValueError, "a NextToken has no choice warmth; it has"),
        (lambda: config.parts(), ValueError, "n is needed"),
        (lambda: config.parts(0), ValueError, "n must be at least 1"),
        (lambda: config.parts(3, past=-1), ValueError, "past must be at least 0"),
        (lambda: encoder.flops(3, past=2), ValueError, "past is for"),
        (lambda: config.kv_cache_bytes(3, m=2), ValueError, "holds no such keys"),
        (lambda: encoder.kv_cache_bytes(3), ValueError, "'encoder' holds"),
        (lambda: plain.preset("vit-b-16").parts(5), ValueError, "n must be 197"),
        (lambda: plain.preset("gpt5"), ValueError, "name must be one of .* got 'gpt5'"),
    ):
        with pytest.raises(error, match=message):
            call()
