"""SmolLM2 in the bits of its file: blocks taken apart, rows in their places, what it knows."""

import json
import math

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from torch.nn import functional

from tfbook import data, pretrained
from tfbook.blocks import GroupedWeight, RowWeight
from tfbook.generation import generate
from tfbook.pretrained import packing

PPL = {"int4": 0.005, "int8": 0.015}  # that int8 rounds the file's numbers a second time costs more
CHECKS = {}


@pytest.fixture
def kit():
    return packing


def check(run):
    CHECKS[run.__name__] = run
    return run


@pytest.fixture(scope="module")
def models():
    return {
        weights: pretrained.load("smollm2-135m", weights=weights)
        for weights in ("float32", "int8", "int4")
    }


def blocks(kind, rows=5, groups=3, seed=0):
    """Random blocks of a format, with scales that are finite."""
    draw = np.random.default_rng(seed)
    raw = draw.integers(0, 256, (rows, groups, packing.BYTES[kind]), dtype=np.uint8)
    heads = draw.normal(size=(rows, groups, 2)).astype(np.float16).view(np.uint8)
    raw[..., :4] = heads
    return raw.reshape(rows, -1)


@check
def test_blocks_hold_what_gguf_decodes(kit):
    for kind in ("Q4_1", "Q8_0"):
        raw = blocks(kind)
        right = torch.from_numpy(dequantize(raw, gguf.GGMLQuantizationType[kind]))
        for dtype in (torch.uint8, torch.float16):
            found = kit.split_blocks(torch.from_numpy(raw).view(dtype), kind)
            codes = found.codes.float().unflatten(1, (-1, 32))
            values = codes * found.scale.float()[..., None]
            if found.low is not None:
                values = values + found.low.float()[..., None]
            assert torch.equal(values.flatten(1), right), kind


@check
def test_a_small_file_packs_to_its_own_numbers(kit):
    """Two layers whose rows all differ: each must come to stand where the decoded one stands."""
    weights, texts, floats = small_file()
    plain = pretrained.fill_model(json.loads(texts["config"]), floats)
    for bits, most in ((4, 0.005), (8, 0.01)):
        model = kit.pack_rows(weights, texts, bits)
        for name, right in plain.named_parameters():
            found = model.get_parameter(name)
            packed = isinstance(found, kit.PackedWeight)
            assert packed == (right.ndim == 2)
            value = found.decode() if packed else found
            error = (value - right).norm(dim=-1)
            assert (error <= most * right.norm(dim=-1)).all(), (bits, name)


def small_file():
    """What `read_rows` would return of a LLaMA of two layers, and its decoded weights."""
    config = {
        "model_type": "llama", "vocab_size": 48, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "hidden_act": "silu", "tie_word_embeddings": True,
    }  # fmt: skip
    shapes = {"model.embed_tokens": (48, 64)}
    for i in range(2):
        own = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "mlp.up_proj": (96, 64)}
        own |= {"self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64)}
        own |= {"mlp.gate_proj": (96, 64), "mlp.down_proj": (64, 96)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in own.items()}
    weights, floats, formats = {}, {}, {}
    for i, (name, (rows, columns)) in enumerate(shapes.items()):
        kind = "Q8_0" if i == 0 else "Q4_1"
        raw = blocks(kind, rows, columns // 32, seed=i)
        weights[f"{name}.weight"] = torch.from_numpy(raw).view(torch.float16)
        values = dequantize(raw, gguf.GGMLQuantizationType[kind])
        floats[f"{name}.weight"] = torch.from_numpy(values)
        formats[f"{name}.weight"] = kind
    for name in ("norm", *(f"layers.{i}.{n}_layernorm" for i in range(2)
                           for n in ("input", "post_attention"))):  # fmt: skip
        weights[f"model.{name}.weight"] = floats[f"model.{name}.weight"] = torch.rand(64)
    return weights, {"config": json.dumps(config), "formats": json.dumps(formats)}, floats


def test_the_numbers_are_those_of_the_file(models):
    """Codes as they are; only the scales are rounded, to 8 bits of mantissa."""
    plain = dict(models["float32"].model.named_parameters())
    for name, found in models["int4"].model.named_parameters():
        if plain[name].ndim < 2:
            assert torch.equal(found, plain[name])
        elif "embed" in name or ".blocks.17." in name:
            assert isinstance(found, GroupedWeight) and found.bits == (8 if "embed" in name else 4)
            rows = torch.arange(0, len(found), 61)
            error = found.look_up(rows) - plain[name][rows] if found.bits == 8 else None
            error = found.decode() - plain[name] if error is None else error
            assert error.norm() < 0.0025 * plain[name].norm()
    for name, found in models["int8"].model.named_parameters():
        in_rows = plain[name].ndim == 2 and "embed" not in name  # the table has 8 bits as it is
        assert isinstance(found, RowWeight) == in_rows


def test_packed_models_take_a_quarter_and_a_third_of_the_memory(models):
    def held(model):
        return sum(weight.nbytes for weight in model.parameters())

    whole = held(models["float32"].model)
    assert held(models["int4"].model) < 0.25 * whole and held(models["int8"].model) < 0.32 * whole


@torch.no_grad()
def test_logits_and_perplexity_are_near_those_of_float32(models):
    """The kernel rounds what it multiplies and its sums to bfloat16, 0.2 % each, in 211 products.

    The differences add up to 2 % of the logits' norm in 4 bits; that the rows were rounded again to
    8 bits makes it 7 %.
    """
    plain = models["float32"]
    ids = plain.encode(data.shakespeare()[:1500])
    right = plain.model(ids)[0]
    loss = functional.cross_entropy(right[0, :-1], ids[0, 1:])
    for weights, most in (("int4", 0.02), ("int8", 0.07)):
        found = models[weights].model(ids)[0]
        assert (found - right).norm() < most * right.norm(), weights
        assert (found - right).abs().max() < 2 * most * right.abs().max(), weights
        other = functional.cross_entropy(found[0, :-1], ids[0, 1:])
        assert abs(math.exp(other - loss) - 1) < PPL[weights], weights


@torch.no_grad()
def test_what_it_knows_it_still_knows(models):
    for weights in ("int8", "int4"):
        model = models[weights]
        found = generate(model, ["The capital of France is"], max_new_tokens=1)
        assert model.decode(found.tokens[0]) == " Paris"


def test_another_dtype_of_what_is_not_packed():
    model = pretrained.load("smollm2-135m", weights="int4", dtype=torch.bfloat16).model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        assert model(torch.tensor([[1, 2, 3]]))[0].dtype == torch.bfloat16


@pytest.mark.untyped
def test_what_cannot_be_packed_is_refused(kit):
    with pytest.raises(ValueError, match="weights must be one of float32, int8, int4"):
        pretrained.load("smollm2-135m", weights="int2")
    for name in ("minilm-l6", "shakespeare"):
        with pytest.raises(ValueError, match="are for smollm2-135m"):
            pretrained.load(name, weights="int4")
    raw = torch.from_numpy(blocks("Q4_1"))
    for value, kind, words in (
        (raw, "Q5_0", "kind must be one of"),
        (raw[:, 1:], "Q4_1", "blocks of 20"),
        (raw[0], "Q4_1", "raw must have shape"),
    ):
        with pytest.raises(ValueError, match=words):
            kit.split_blocks(value, kind)
    weights, texts, _ = small_file()
    with pytest.raises(ValueError, match="bits must be 4 or 8"):
        kit.pack_rows(weights, texts, 3)


def test_the_file_is_read_without_a_cache_too(tmp_path):
    """What is kept is what was read: bytes of matrices, and numbers of vectors."""
    found = pretrained.load("smollm2-135m", weights="int4", cache_dir=tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_size < 100e6  # the file's own size, not that of its decoded numbers
    again = pretrained.load("smollm2-135m", weights="int8", cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
    assert found.chat_template == again.chat_template and found.eos_ids == again.eos_ids
