"""Configs: counts equal to real models, published sizes, round trips, tables, what is refused."""

import json

import fresh
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tfbook.costs import attention_parameters
from tfbook.models import (
    FEED_FORWARDS,
    PRESETS,
    PUBLISHED,
    Patches,
    TransformerConfig,
    build,
    feed_forward_parameters,
    preset,
)
from tfbook.models.config import POSITIONS, SCHEMES
from tfbook.positions import LinearScaling, NTKScaling, YarnScaling


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
        "norm_place": draw(st.sampled_from(["pre", "post", "none"])),
        "final_norm": draw(st.sampled_from([None, True, False])),
        "embedding_norm": draw(st.booleans()),
        "ffn": draw(st.sampled_from(FEED_FORWARDS)),
        "attention_bias": draw(st.sampled_from([True, False, ("q", "v"), ("out",)])),
        "ffn_bias": draw(st.booleans()),
        "qk_norm": draw(st.booleans()),
        "position": draw(st.sampled_from(POSITIONS)),
        "tie_embeddings": draw(st.booleans()),
        "share_embeddings": draw(st.booleans()),
        "init": draw(st.sampled_from(SCHEMES)),
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
    if kind == "encoder-decoder":
        choices["n_decoder_layers"] = draw(st.sampled_from([None, 1, 3]))
    heads = kv * draw(st.integers(1, 2))
    sizes = {"vocab_size": 13, "d_model": 2 * draw(st.integers(2, 4)), "n_layers": 2, "d_ff": 7}
    return sizes | {"n_heads": heads} | choices


def run(model, n, batch, m):
    """Call a model with some tokens."""
    config = model.config
    if config.patches is not None:
        size, channels = config.patches.image_size, config.patches.n_channels
        return model(torch.zeros(batch, channels, size, size))
    target = torch.zeros(batch, n, dtype=torch.long)
    if config.kind == "encoder-decoder":
        return model(torch.zeros(batch, m, dtype=torch.long), target)
    return model(target)


@settings(max_examples=16)
@given(choices=configs(), n=st.integers(1, 5), m=st.integers(1, 5))
def test_counts_are_those_of_a_real_model(choices, n, m):
    config = TransformerConfig(**choices)
    model = build(config).eval()
    assert config.count_parameters() == model.count_parameters()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(model, n, 2, m)
    assert config.flops(n, 2, m=m) == counter.get_total_flops()
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))).count_parameters()


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
    model, seen = build(config.replace(head="mlm")), {}
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
    config = config.replace(patches=Patches(8, 2, 1), attend="reference")
    model = build(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(model, None, 3, None)
    assert config.flops(batch=3) == counter.get_total_flops()
    assert model.count_parameters() == config.count_parameters()


@pytest.mark.parametrize("name", PRESETS)
def test_configs_survive_json(name):
    config = preset(name)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "scaling", [LinearScaling(2.0), NTKScaling(4.0), YarnScaling(8.0, 128)], ids=str
)
def test_scalings_survive_json(scaling):
    config = preset("smollm2-135m", rope_scaling=scaling)
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    build(config.replace(n_layers=1, vocab_size=7))


def test_names_of_biases_survive_json():
    config = TransformerConfig(5, 4, 1, 2, 3, attention_bias={"q", "v"})
    again = TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again.biased == config.biased == {"q", "v"}


def test_a_summary_lists_equal_blocks_once_and_all_parameters():
    config = preset("gpt2")
    text = config.summary(10)
    assert "124,439,808" in text.splitlines()[-1] and f"{config.flops(10):,}" in text
    assert text.count("mixer.q_proj") == 1 and "× 12" in text
    assert max(map(len, text.splitlines())) <= 110
    assert "total" in TransformerConfig(5, 4, 1, 2, 3, position="none").summary()


def test_a_choice_left_open_is_chosen_when_it_is_needed():
    config = TransformerConfig(5, 4, 2, 2, 3)
    assert config.has_final_norm and not config.replace(norm_place="post").has_final_norm
    assert config.output == "lm" and config.replace(kind="encoder").output is None
    assert config.heads == (2, 2, 2) and config.replace(n_heads=1).heads == (1, 1, 4)
    assert config.decoder_layers == 2 and config.replace(kind="encoder").decoder_layers == 0
    with pytest.raises(AttributeError):
        config.d_model = 8


@pytest.fixture(scope="module")
def plain():
    return fresh.copies(
        "plain_config",
        ["tfbook.models.architectures", "tfbook.models.presets", "tfbook.models.config"],
    )


CHOICES = {
    "d_model": ({"d_model": 0}, ValueError, "d_model must be at least 1, got 0"),
    "layers": ({"n_layers": 1.0}, TypeError, "n_layers must be an integer, got float"),
    "heads": ({"n_heads": 5}, ValueError, "n_heads must divide d_model, got 5 and 12"),
    "kv heads": ({"n_kv_heads": 2}, ValueError, "n_kv_heads must divide n_heads, got 2 and 3"),
    "vocabulary": ({"vocab_size": None}, ValueError, "vocab_size is needed"),
    "kind": ({"kind": "gpt"}, ValueError, "kind must be one of 'decoder', 'encoder'"),
    "norm": ({"norm": "batch"}, ValueError, "norm must be one of 'layer', 'rms', got 'batch'"),
    "place": ({"norm_place": "mid"}, ValueError, "norm_place must be one of"),
    "ffn": ({"ffn": "swish"}, ValueError, "ffn must be one of"),
    "position": ({"position": "rope"}, ValueError, "position must be one of"),
    "init": ({"init": "zeros"}, ValueError, "init must be one of"),
    "attend": ({"attend": "bilinear"}, ValueError, "attend must be one of reference"),
    "biases": ({"attention_bias": ("w",)}, ValueError, "attention_bias must be True, False or"),
    "switch": ({"ffn_bias": 1}, TypeError, "ffn_bias must be True or False, got int"),
    "final": ({"final_norm": "yes"}, TypeError, "final_norm must be True or False"),
    "eps": ({"norm_eps": 0.0}, ValueError, "norm_eps must be finite and above 0"),
    "dropout": ({"dropout": 1.0}, ValueError, "dropout must be from 0 up to below 1"),
    "learned": ({"position": "learned"}, ValueError, "learned positions need max_len"),
    "odd": ({"d_model": 15}, ValueError, "d_model must be even"),
    "odd head": ({"position": "rotary", "d_head": 3}, ValueError, "d_head must be even"),
    "buckets": (
        {"position": "t5", "max_distance": 16},
        ValueError,
        "max_distance must be above half of n_buckets = 32, got 16",
    ),
    "base": ({"rope_base": 1.0}, ValueError, "base must be above 1"),
    "scaling": ({"rope_scaling": LinearScaling(2.0)}, ValueError, "for rotary positions"),
    "no scaling": ({"rope_scaling": 2, "position": "rotary"}, TypeError, "RotaryScaling"),
    "head": ({"head": "mlm"}, ValueError, "head must be 'lm' or None for kind 'decoder'"),
    "lm": ({"head": "lm", "kind": "encoder"}, ValueError, "head must be 'mlm', 'classes' or"),
    "classes": ({"n_classes": 3}, ValueError, "'classes' and n_classes go together"),
    "pooler": ({"pooler": True}, ValueError, "pooler is for kind 'encoder', got kind 'decoder'"),
    "segments": ({"n_segments": 2}, ValueError, "n_segments is for kind 'encoder'"),
    "decoder": ({"n_decoder_layers": 2}, ValueError, "is for kind 'encoder-decoder'"),
    "window": ({"window": 3, "kind": "encoder"}, ValueError, "window is for a model with"),
    "patches": ({"patches": (8, 2)}, TypeError, "patches must be Patches, got tuple"),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", CHOICES)
def test_choices_that_do_not_go_together_are_named(plain, name):
    changes, error, message = CHOICES[name]
    sizes = {"vocab_size": 7, "d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 5}
    with pytest.raises(error, match=message):
        plain.TransformerConfig(**(sizes | changes))


IMAGES = {
    "text": ({}, ValueError, "vocab_size must be None for a model of images, got 7"),
    "decoder": ({"vocab_size": None}, ValueError, "patches need kind 'encoder'"),
    "fit": (
        {"vocab_size": None, "kind": "encoder", "sizes": (9, 2, 1)},
        ValueError,
        "patch_size must divide image_size",
    ),
    "size": (
        {"vocab_size": None, "kind": "encoder", "sizes": (8, 0, 1)},
        ValueError,
        "patches.patch_size must be at least 1",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", IMAGES)
def test_images_and_tokens_do_not_mix(plain, name):
    changes, error, message = IMAGES[name]
    changes = {"vocab_size": 7} | changes
    patches = plain.Patches(*changes.pop("sizes", (8, 2, 1)))
    with pytest.raises(error, match=message):
        plain.TransformerConfig(
            d_model=4, n_layers=1, n_heads=2, d_ff=3, patches=patches, **changes
        )


@pytest.mark.untyped
def test_other_mistakes_are_named(plain):
    config = plain.TransformerConfig(7, 12, 2, 3, 5)
    presets = fresh.copy_of("plain_config", "tfbook.models.presets")
    for call, error, message in (
        (lambda: config.replace(n_head=2), TypeError, "changes must be fields .* got n_head"),
        (lambda: config.from_dict({"layers": 2}), TypeError, "choices must be fields"),
        (lambda: config.parts(), ValueError, "n is needed"),
        (lambda: config.parts(0), ValueError, "n must be at least 1"),
        (lambda: config.parts(3, past=-1), ValueError, "past must be at least 0"),
        (lambda: config.replace(kind="encoder").flops(3, past=2), ValueError, "past is for"),
        (lambda: config.kv_cache_bytes(3, m=2), ValueError, "holds no such keys"),
        (lambda: config.replace(kind="encoder").kv_cache_bytes(3), ValueError, "'encoder' holds"),
        (lambda: presets.preset("vit-b-16").parts(5), ValueError, "n must be 197"),
        (lambda: presets.preset("gpt5"), ValueError, "name must be one of .* got 'gpt5'"),
    ):
        with pytest.raises(error, match=message):
            call()
