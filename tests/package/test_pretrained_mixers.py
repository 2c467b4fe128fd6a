"""Checkpoints with experts, state spaces and sinks: tiny random models of `transformers`.

Every number is random, norms, biases and sinks too. `transformers` writes the files, so that names
and arrangements are those of files and not those that it has in memory.
"""

import functools
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from test_memory_accounts import kept
from torch.utils.flop_counter import FlopCounterMode

from tfbook import pretrained
from tfbook.blocks import FeedForward
from tfbook.generation import generate
from tfbook.models import (
    FFN,
    Attention,
    Experts,
    Layer,
    Mamba,
    NoFFN,
    Norm,
    Rotary,
    TransformerConfig,
    active_parameters,
    build,
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

KIT = SimpleNamespace(pretrained=pretrained)
V, N = 61, 8
BASE = dict(
    vocab_size=V,
    hidden_size=24,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=17,
    max_position_embeddings=64,
)
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "truncate": False}
TWO = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 900.0, "factor": 3.0},
}
CHOSEN = {"num_experts": 5, "num_experts_per_tok": 3}
LOCAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
STATE = dict(vocab_size=V, hidden_size=20, num_hidden_layers=3, state_size=5, conv_kernel=3)
PERIODS = dict(
    attn_layer_period=3,
    attn_layer_offset=1,
    expert_layer_period=2,
    expert_layer_offset=0,
    mamba_d_state=5,
    mamba_dt_rank=3,
)
GEMMA = {"head_dim": 10, "sliding_window": 4, "query_pre_attn_scalar": 7}
FAMILIES = {
    "mixtral": ("Mixtral", BASE | ROPE | LOCAL),
    "mixtral in windows": ("Mixtral", BASE | ROPE | LOCAL | {"sliding_window": 4, "head_dim": 6}),
    "olmoe": ("Olmoe", BASE | ROPE | CHOSEN),
    "qwen3_moe": (
        "Qwen3Moe",
        BASE
        | ROPE
        | CHOSEN
        | {"moe_intermediate_size": 7, "norm_topk_prob": True, "decoder_sparse_step": 2}
        | {"head_dim": 10, "mlp_only_layers": [3]},
    ),
    "mamba": ("Mamba", STATE | {"time_step_rank": 4}),
    "mamba otherwise": (
        "Mamba",
        STATE
        | {"use_bias": True, "use_conv_bias": False, "expand": 1, "tie_word_embeddings": False},
    ),
    "mamba2": ("Mamba2", STATE | {"num_heads": 10, "head_dim": 4, "n_groups": 2, "chunk_size": 4}),
    "jamba": ("Jamba", BASE | PERIODS | CHOSEN),
    "jamba without experts": (
        "Jamba",
        BASE
        | PERIODS
        | {"num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False}
        | {"tie_word_embeddings": True},
    ),
    "gpt_oss": (
        "GptOss",
        BASE
        | LOCAL
        | {"head_dim": 6, "sliding_window": 4}
        | {"rope_parameters": YARN | {"original_max_position_embeddings": 16}},
    ),
    "gpt_oss without biases": (
        "GptOss",
        BASE | ROPE | LOCAL | {"head_dim": 4, "sliding_window": 3, "attention_bias": False},
    ),
    "gemma3": (
        "Gemma3Text",
        BASE
        | GEMMA
        | {"rope_parameters": TWO, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
}
RECURRENT = ("mamba", "jamba")


@functools.cache
def theirs(name):
    """A model of theirs with random numbers, and what its folder holds."""
    kind, choices = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**choices)
    model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).eval()
    model.config._experts_implementation = "eager"
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            centre = 1.0 if parameter.ndim == 1 and "bias" not in key else 0.0
            spread = parameter.shape[-1] ** -0.5
            parameter.copy_(centre + spread * torch.randn_like(parameter))
    return model, *read(model)


def read(model):
    """Return what `transformers` writes into the files of a folder."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        settings = json.loads((Path(folder) / "config.json").read_text())
        return settings, load_file(Path(folder) / "model.safetensors")


@functools.cache
def ours(name):
    _, settings, weights = theirs(name)
    return pretrained.fill_model(settings, weights).eval()


def of(kit, name):
    """The same by a kit."""
    if kit is KIT:
        return ours(name)
    _, settings, weights = theirs(name)
    return kit.pretrained.fill_model(settings, weights).eval()


def tokens(batch=3, n=N, seed=1):
    return torch.randint(2, V, (batch, n), generator=torch.Generator().manual_seed(seed))


def padding(lengths, side):
    place = torch.arange(N)
    return torch.stack([place < k if side == "right" else place >= N - k for k in lengths])


def close(a, b, tolerance=1e-5):
    """Compare up to a tolerance times the size of the numbers."""
    torch.testing.assert_close(
        a, b, rtol=0, atol=tolerance * max(1.0, float(b.detach().abs().max()))
    )


@functools.cache
def wanted(name):
    """Their logits of a whole sequence."""
    with torch.no_grad():
        return theirs(name)[0](tokens(), use_cache=False).logits


# What a planted bug must not pass: each is called with a kit.


def a_whole_pass_gives_their_logits(kit, name):
    with torch.no_grad():
        close(of(kit, name)(tokens())[0], wanted(name))


def token_by_token_gives_their_logits(kit, name):
    model, state, found = of(kit, name), None, []
    with torch.no_grad():
        for piece in tokens().split([3] + [1] * (N - 3), dim=1):
            logits, state = model(piece, state)
            found.append(logits)
    close(torch.cat(found, 1), wanted(name))


def names_and_numbers_come_back(kit, name):
    _, settings, weights = theirs(name)
    family = kit.pretrained.family_of(settings)
    config = kit.pretrained.config_from(settings, weights)
    mine = kit.pretrained.weights_from(weights, config, family)
    back = kit.pretrained.weights_to(mine, config, family)
    copies = kit.pretrained.FAMILIES[family]
    assert {key.removeprefix(copies.prefix) for key in weights.keys() - back.keys()} <= set(
        copies.copies
    )
    assert back.keys() <= weights.keys()
    for key, value in back.items():
        if copies.centred and "norm" in key:  # 1 was added and taken off
            close(value, weights[key], 1e-6)
        else:
            assert torch.equal(value, weights[key]), key
    again = kit.pretrained.weights_from(back, config, family)
    assert again.keys() == mine.keys()
    assert all(torch.equal(again[key], mine[key]) or copies.centred for key in mine)


def the_layers_are_those_of_the_list(kit, name):
    """Which layer has a window, an attention, experts: by their own config, not by the weights."""
    model, settings, _ = theirs(name)
    bare = {x: y for x, y in settings.items() if x not in ("layer_types", "sliding_window_pattern")}
    for found in (kit.pretrained.config_from(settings), kit.pretrained.config_from(bare)):
        if name.startswith("jamba"):
            kinds = ["attention" if i == 1 else "mamba" for i in range(4)]
            assert [layer.mixer.word for layer in found.decoder] == kinds
            several = [name == "jamba" and i in (0, 2) for i in range(4)]
            assert [layer.ffn.word == "experts" for layer in found.decoder] == several
        elif name == "qwen3_moe":
            words = [layer.ffn.word for layer in found.decoder]
            assert words == ["ffn", "experts", "ffn", "ffn"]
        elif name.startswith("gpt_oss"):
            window = model.config.sliding_window
            assert [layer.mixer.window for layer in found.decoder] == [window, None] * 2


CHECKS = {
    check.__name__: check
    for check in (
        a_whole_pass_gives_their_logits,
        token_by_token_gives_their_logits,
        names_and_numbers_come_back,
        the_layers_are_those_of_the_list,
    )
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("check", CHECKS)
def test_property(check, name):
    CHECKS[check](KIT, name)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", FAMILIES)
def test_padding_hides_what_it_hides_from_them(name, side):
    mask, ids = padding((N, 3, 6), side), tokens()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    where = {} if name.startswith("mamba") else {"position_ids": positions}
    with torch.no_grad():
        found = theirs(name)[0](ids, attention_mask=mask.long(), use_cache=False, **where).logits
        logits, state = ours(name)(ids, mask=mask)
        # With a bias in the map in, padding in front enters their convolutions.
        if side == "right" or name not in ("mamba otherwise", "jamba without experts"):
            close(logits[mask], found[mask])
        if side == "left":  # and what follows does not see it either
            more = tokens(n=2, seed=5)
            after, _ = ours(name)(more, state)
            for i, length in enumerate((N, 3, 6)):
                alone = torch.cat([ids[i : i + 1, N - length :], more[i : i + 1]], 1)
                close(after[i : i + 1], theirs(name)[0](alone, use_cache=False).logits[:, -2:])


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_theirs(name):
    model, settings, _ = theirs(name)
    mine, family = ours(name), pretrained.family_of(settings)
    logits, found = mine(tokens())[0], model(tokens(), use_cache=False).logits
    weigh = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    (logits * weigh).mean().backward()
    (found * weigh).mean().backward()
    grads = {  # an expert that nobody asked for has none
        key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in mine.named_parameters()
    }
    own = pretrained.weights_to(grads, mine.config, family)
    held = {key: p.detach().clone() for key, p in model.named_parameters()}
    with torch.no_grad():  # their gradients under the names of their files
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
        _, exact = read(model)
        for key, parameter in model.named_parameters():
            parameter.copy_(held[key])
    model.zero_grad()
    mine.zero_grad()
    assert own.keys() <= exact.keys()
    for key, value in own.items():
        less = pretrained.FAMILIES[family].centred and "norm" in key
        close(value + less, exact[key], 2e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_ours_counts_as_many_parameters_as_theirs(name):
    assert ours(name).config.count_parameters() == sum(
        p.numel() for p in theirs(name)[0].parameters()
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_the_config_survives_json(name):
    config = ours(name).config
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", ["mixtral", "mamba", "jamba", "gpt_oss"])
def test_what_we_write_transformers_reads(name, tmp_path):
    model, settings, _ = theirs(name)
    mine = ours(name)
    weights = pretrained.weights_to(mine.state_dict(), mine.config, pretrained.family_of(settings))
    model.config.save_pretrained(tmp_path)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    again.config._experts_implementation = "eager"
    with torch.no_grad():
        close(again.eval()(tokens(), use_cache=False).logits, wanted(name), 1e-7)


@pytest.mark.parametrize("name", ["jamba", "gpt_oss"])
def test_a_folder_is_read_and_goes_on_writing_as_theirs(name, tmp_path):
    theirs(name)[0].save_pretrained(tmp_path)
    loaded, ids = pretrained.load_directory(tmp_path), tokens(1, 5)
    found = theirs(name)[0].generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    assert list(generate(loaded.model, ids, max_new_tokens=6).tokens[0]) == found[0, 5:].tolist()


def test_their_own_steps_are_the_same_too():
    """Their caches, of windows, convolutions and states, against ours."""
    for name in ("gpt_oss", "jamba", "mamba2"):
        model, mine, state, cache = theirs(name)[0], ours(name), None, None
        key = "cache_params" if name == "mamba2" else "past_key_values"
        with torch.no_grad():
            for token in tokens(2, 7).split(1, dim=1):
                found = model(token, use_cache=True, **{key: cache})
                cache = getattr(found, key)
                logits, state = mine(token, state)
                close(logits, found.logits)


# What a file may leave out, and what is refused.


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        ("Mixtral", {}),
        ("Cohere", {}),
        ("Gemma2", GEMMA),
        ("Gemma3Text", GEMMA | {"num_hidden_layers": 7}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 3}),
        ("GptOss", LOCAL | ROPE),
    ],
)
def test_what_a_file_leaves_out_is_what_transformers_takes(kind, choices):
    config = getattr(transformers, f"{kind}Config")(**BASE | choices)
    settings = json.loads(config.to_json_string(use_diff=False))
    settings |= {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    settings.pop("layer_types", None)
    if kind != "GptOss":
        settings.pop("rope_parameters")
    found = pretrained.config_from(settings)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    wanted = [window if each == "sliding_attention" else None for each in kinds]
    assert [layer.mixer.window for layer in found.decoder] == wanted
    rope = config.rope_parameters
    for each, layer in zip(kinds, found.decoder, strict=True):
        assert layer.mixer.position.base == rope.get(each, rope)["rope_theta"]


def test_older_files_have_gemmas_two_bases_in_two_entries():
    _, settings, _ = theirs("gemma3")
    settings = {x: y for x, y in settings.items() if x != "rope_parameters"}
    older = {"rope_theta": 800.0, "rope_local_base_freq": 70.0}
    older["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    found = [layer.mixer.position for layer in pretrained.config_from(settings | older).decoder]
    assert [(each.base, each.scaling is None) for each in found] == [(70, True), (800, False)] * 2


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mixtral", {"num_local_experts": 10**9}, "num_local_experts must be from 1 to 10000"),
        ("mixtral", {"num_experts_per_tok": 6}, "top_k must be at most n_experts = 5, got 6"),
        ("mixtral", {"num_local_experts": None}, "config.json of a mixtral must hold 'num_exp"),
        ("mixtral", {"hidden_act": "mish"}, "hidden_act must be one of relu, .*'mish'"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv = 8.0; here it must be None"),
        ("qwen3_moe", {"moe_intermediate_size": 0}, "d_ff must be at least 1, got 0"),
        ("mamba", {"hidden_act": "relu"}, "hidden_act = 'relu'; here it must be 'silu'"),
        ("mamba", {"expand": 1.5}, "expand must be an integer"),
        ("mamba", {"time_step_rank": 0}, "rank must be at least 1, got 0"),
        ("mamba2", {"time_step_limit": [0.0, 0.1]}, "time_step_limit must be 0 and infinity"),
        ("mamba2", {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon = 1e-06; here"),
        ("mamba2", {"num_heads": 5}, "num_heads = 5; here it must be 10"),
        ("jamba", {"attn_layer_offset": 3}, "attn_layer_offset must be .* 3, got 3"),
        ("jamba", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms = False"),
        ("jamba", {"sliding_window": 8}, "sliding_window = 8; here it must be None"),
        ("gpt_oss", {"swiglu_limit": 9.0}, "swiglu_limit = 9.0; here it must be 7.0"),
        ("gpt_oss", {"rope_parameters": YARN | {"truncate": 2}}, "truncate must be True or False"),
        (
            "gpt_oss",
            {"quantization_config": {"quant_method": "mxfp4"}},
            "quantization_config = .*mxfp4.*; here it must be None",
        ),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "layer_types must name 4 layers, got 1"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ],
)
def test_what_is_not_known_is_refused(name, change, message):
    _, settings, _ = theirs(name)
    with pytest.raises((ValueError, TypeError), match=message):
        pretrained.config_from(settings | change)


def spoiled(name, key, change):
    """A checkpoint with one tensor other than it was."""
    _, settings, weights = theirs(name)
    found = dict(weights)
    found[key] = change(found[key])
    return settings, {x: y for x, y in found.items() if y is not None}


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("name", "key", "change", "message"),
    [
        (
            "mixtral",
            "model.layers.1.block_sparse_moe.experts.2.w3.weight",
            lambda x: None,
            r"no tensor layers\.1\.block_sparse_moe\.experts\.2\.w3\.weight, which becomes",
        ),
        (
            "gpt_oss",
            "model.layers.0.mlp.experts.down_proj",
            lambda x: x[0],
            r"experts\.down_proj must hold \(E, inputs, outputs\), got shape \(17, 24\)",
        ),
        (
            "gpt_oss",
            "model.layers.0.mlp.experts.gate_up_proj",
            lambda x: x[..., :-1],
            r"experts\.\d\.up_proj\.weight must become .*shape \(17, 24\), got \(16, 24\)",
        ),
        (
            "gpt_oss",
            "model.layers.0.mlp.experts.down_proj_bias",
            lambda x: x[:-1],
            r"no tensor layers\.0\.mlp\.experts\.4\.down_proj\.bias",
        ),
        (
            "gpt_oss",
            "model.layers.3.self_attn.sinks",
            lambda x: x[:-1],
            r"self_attn\.sinks must become .*shape \(6, 1\), got \(5,\)",
        ),
        (
            "mamba",
            "backbone.layers.0.mixer.conv1d.weight",
            lambda x: x.expand(-1, 2, -1),
            r"conv1d\.weight must become .*shape \(40, 3\), got \(40, 2, 3\)",
        ),
        (
            "jamba",
            "model.layers.1.self_attn.o_proj.weight",
            lambda x: x[:-1],
            r"self_attn\.o_proj\.weight must become .*got \(23, 24\)",
        ),
        (
            "jamba",
            "model.layers.0.mamba.b_layernorm.weight",
            lambda x: None,
            r"no tensor layers\.0\.mamba\.b_layernorm\.weight",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(name, key, change, message):
    with pytest.raises(ValueError, match=message):
        pretrained.fill_model(*spoiled(name, key, change))


def test_an_expert_too_many_is_not_passed_over():
    _, settings, weights = theirs("jamba")
    more = "model.layers.0.feed_forward.experts.5.up_proj.weight"
    with pytest.raises(ValueError, match=r"not known here: layers\.0\.feed_forward\.experts\.5"):
        pretrained.fill_model(settings, weights | {more: torch.zeros(17, 24)})


def test_published_sizes_are_counted_without_making_anything():
    """Mixtral 8x7B: 46.7 billion parameters, of which a token passes 12.9 billion."""
    settings = json.loads(transformers.MixtralConfig().to_json_string(use_diff=False))
    config = pretrained.config_from(settings)
    assert round(config.count_parameters() / 1e9, 1) == 46.7
    assert round(active_parameters(config) / 1e9, 1) == 12.9
    settings = json.loads(transformers.JambaConfig().to_json_string(use_diff=False))
    config = pretrained.config_from(settings)
    assert round(config.count_parameters() / 1e9) == 52
    assert round(active_parameters(config) / 1e9) == 12


# The choices of parts that these families need, counted like the models.


PARTS = {
    "inner norms": Layer(
        Mamba(5, rank=2, inner_norm=Norm("rms")), NoFFN(), parallel=True, one_norm=True
    ),
    "inner norms with biases": Layer(Mamba(3, inner_norm=Norm()), FFN(9)),
    "sinks": Layer(Attention(3, n_kv_heads=1, position=Rotary(), n_sinks=2, window=4), FFN(9)),
    "clipped": Layer(Attention(3), FFN(9, "swiglu_clipped")),
    "router with a bias": Layer(
        Attention(3), Experts(7, 4, 2, "swiglu_clipped", router_bias=True, n_shared=1)
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_choice_is_counted_like_the_model(name):
    attention = Layer(Attention(3, attend="reference"), FFN(5))
    config = TransformerConfig(V, 12, decoder=[PARTS[name], attention])
    if name in ("clipped", "router with a bias"):
        config = config.replace(attend="reference")
    torch.manual_seed(0)
    model = build(config).eval()
    assert config.count_parameters() == sum(p.numel() for p in model.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        state = model(tokens(2))[1]
    assert config.flops(N, 2) == counter.get_total_flops()
    assert state.nbytes == config.kv_cache_bytes(N, 2)
    again = TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config


def test_a_choice_says_about_how_much_training_keeps():
    for part in (PARTS["sinks"], PARTS["clipped"], PARTS["router with a bias"]):
        one, two = (TransformerConfig(V, 12, decoder=[part] * n) for n in (1, 2))
        measured = kept(two, 24, 2) - kept(one, 24, 2)
        said = two.saved_bytes(24, 2) - one.saved_bytes(24, 2)
        assert 0.98 < said / measured < 1.02, (part, said, measured)


def test_a_router_with_a_bias_prefers_what_it_says():
    torch.manual_seed(0)
    config = TransformerConfig(V, 12, decoder=[PARTS["router with a bias"]])
    model = build(config).eval()
    moe = model.stack.blocks[0].ffn
    assert config.count_parameters() - active_parameters(config) == 2 * sum(
        p.numel() for p in moe.experts[0].parameters()
    )
    assert torch.equal(moe.router.proj.bias, torch.zeros(4))
    with torch.no_grad():
        moe.router.proj.bias.copy_(torch.tensor([0.0, 50.0, 0.0, 40.0]))
        model(tokens())
    assert moe.routing.load.tolist() == [0, 3 * N, 0, 3 * N]


def test_the_clipped_gate_is_that_of_gpt_oss():
    torch.manual_seed(0)
    ffn = FeedForward(4, 5, kind="swiglu_clipped")
    experts = theirs("gpt_oss")[0].model.layers[0].mlp.experts
    x = 20 * torch.randn(50, 4)  # far enough that both factors are cut off
    pairs = torch.stack([ffn.gate_proj(x), ffn.up_proj(x)], -1).flatten(-2)
    assert (pairs.abs() > 7).float().mean() > 0.2
    close(ffn(x), ffn.down_proj(experts._apply_gate(pairs)))


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (ValueError, "n_sinks must be at least 0", lambda: Attention(2, n_sinks=-1)),
        (ValueError, "n_sinks are for attend", lambda: Attention(2, n_sinks=1, attend="dot")),
        (TypeError, "inner_norm must be a Norm", lambda: Mamba(inner_norm="rms")),
        (TypeError, "router_bias", lambda: Experts(4, 2, 1, router_bias=1)),
    ],
)
def test_bad_choices_are_refused(error, message, make):
    with pytest.raises(error, match=message):
        make()
