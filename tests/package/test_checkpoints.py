"""Checkpoints of `transformers` read and written: tiny random models of each family as witnesses.

Every parameter is randomised, norms and biases too, since at their initial values a norm that was
left out, or a bias added twice, would not show. Sizes are distinct primes where the family allows.
"""

import copy
import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from tfbook import pretrained
from tfbook.models import preset
from tfbook.positions import LinearScaling
from tfbook.pretrained import (
    config_from,
    conversion,
    family_of,
    fill_model,
    weights_from,
    weights_to,
)

transformers.logging.set_verbosity_error()

VOCABULARY, LAYERS = 97, 3
BERT = dict(
    vocab_size=VOCABULARY,
    hidden_size=21,
    num_hidden_layers=LAYERS,
    num_attention_heads=3,
    intermediate_size=37,
    max_position_embeddings=19,
    type_vocab_size=2,
    attn_implementation="eager",
)
GPT2 = dict(
    vocab_size=VOCABULARY,
    n_embd=22,
    n_layer=LAYERS,
    n_head=2,
    n_inner=41,
    n_positions=23,
    bos_token_id=0,
    eos_token_id=1,
    attn_implementation="eager",
)
T5 = dict(
    vocab_size=VOCABULARY,
    d_model=23,
    d_kv=7,
    d_ff=37,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=3,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=13,
)
LLAMA = dict(
    vocab_size=VOCABULARY,
    hidden_size=60,
    num_hidden_layers=LAYERS,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=41,
    max_position_embeddings=29,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    attn_implementation="eager",
)
VIT = dict(
    image_size=15,
    patch_size=5,
    num_channels=3,
    hidden_size=22,
    num_hidden_layers=LAYERS,
    num_attention_heads=2,
    intermediate_size=31,
    attn_implementation="eager",
)


def make(kind, config, seed=0):
    """Make a model of theirs with random numbers in every parameter, norms and biases included."""
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.5 if "relative_attention_bias" in name else parameter.shape[-1] ** -0.5
            centre = 1.0 if parameter.ndim == 1 and "bias" not in name else 0.0
            parameter.copy_(centre + spread * torch.randn_like(parameter))
    return model


def settings_of(model):
    """What its config.json would hold."""
    return json.loads(model.config.to_json_string(use_diff=False)) | {
        "architectures": [type(model).__name__]
    }


def ours(model, **changes):
    """The same model in the parts of this book."""
    settings = settings_of(model)
    weights = model.state_dict()
    if not changes:
        return fill_model(settings, weights).eval()
    config = config_from(settings, weights).replace(**changes)
    new = conversion.build(config)
    new.load_state_dict(weights_from(weights, config, family_of(settings)))
    return new.eval()


FAMILIES = {
    "bert": lambda: make(transformers.BertModel, transformers.BertConfig(**BERT)),
    "bert masked": lambda: make(
        transformers.BertForMaskedLM, transformers.BertConfig(**BERT, hidden_act="gelu_new")
    ),
    "gpt2": lambda: make(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2)),
    "gpt2 untied": lambda: make(
        transformers.GPT2LMHeadModel,
        transformers.GPT2Config(**GPT2, tie_word_embeddings=False, activation_function="relu"),
    ),
    "t5 1.0": lambda: make(transformers.T5ForConditionalGeneration, transformers.T5Config(**T5)),
    "t5 1.1": lambda: make_t5_untied(),
    "llama": lambda: make(transformers.LlamaForCausalLM, transformers.LlamaConfig(**LLAMA)),
    "llama biased": lambda: make(
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            **LLAMA | {"num_key_value_heads": 3, "head_dim": 14},
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "llama scaled": lambda: make(
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(
            **LLAMA
            | {"rope_parameters": {"rope_type": "linear", "rope_theta": 900.0, "factor": 3.0}}
        ),
    ),
    "mistral": lambda: make(
        transformers.MistralForCausalLM,
        transformers.MistralConfig(**LLAMA, sliding_window=5, head_dim=10),
    ),
}
# Families that differ in choices of parts: norms inside or on both sides, parallel branches, rotary
# on a part of the head, norms of queries and keys, windows in some layers, factors.
MODERN = LLAMA | {"hidden_size": 48, "rope_parameters": None}
NEOX = {name: value for name, value in MODERN.items() if name != "num_key_value_heads"}


def modern(name, base=MODERN, rope=None, **choices):
    """A tiny decoder of a family, in the classes named after it."""
    rope = {"rope_type": "default", "rope_theta": 500.0} | (rope or {})
    config = getattr(transformers, f"{name}Config")(
        **base | {"rope_parameters": rope, "max_position_embeddings": 64} | choices
    )
    return make(getattr(transformers, f"{name}ForCausalLM"), config)


FAMILIES |= {
    "qwen2": lambda: modern(
        "Qwen2",
        tie_word_embeddings=True,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
    ),
    "qwen3": lambda: modern("Qwen3", head_dim=10),
    "gemma": lambda: modern("Gemma", head_dim=10),
    "gemma2": lambda: modern(
        "Gemma2",
        head_dim=10,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        sliding_window=4,
        query_pre_attn_scalar=7,
    ),
    "olmo2": lambda: modern("Olmo2"),
    "granite": lambda: modern(
        "Granite",
        embedding_multiplier=3.0,
        logits_scaling=2.0,
        residual_multiplier=0.3,
        attention_multiplier=0.2,
    ),
    "cohere": lambda: modern("Cohere"),
    "stablelm": lambda: modern("StableLm", rope={"partial_rotary_factor": 0.5}, use_qkv_bias=True),
    "stablelm parallel": lambda: modern(
        "StableLm", rope={"partial_rotary_factor": 0.25}, use_parallel_residual=True
    ),
    "starcoder2": lambda: modern("Starcoder2", sliding_window=5),
    "phi": lambda: modern("Phi", rope={"partial_rotary_factor": 0.5}, qk_layernorm=True),
    "gpt_neox": lambda: modern("GPTNeoX", NEOX, rope={"partial_rotary_factor": 0.25}),
    "gpt_neox in line": lambda: modern("GPTNeoX", NEOX, use_parallel_residual=False),
    "llama yarn": lambda: modern(
        "Llama",
        rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    ),
    "llama 3.1": lambda: modern(
        "Llama",
        rope={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "roberta": lambda: make(
        transformers.RobertaModel, transformers.RobertaConfig(**BERT | {"type_vocab_size": 1})
    ),
    "roberta masked": lambda: make(
        transformers.RobertaForMaskedLM, transformers.RobertaConfig(**BERT)
    ),
    "distilbert masked": lambda: make(
        transformers.DistilBertForMaskedLM,
        transformers.DistilBertConfig(
            vocab_size=VOCABULARY,
            dim=21,
            n_layers=LAYERS,
            n_heads=3,
            hidden_dim=37,
            max_position_embeddings=19,
            attn_implementation="eager",
        ),
    ),
}
DECODERS = [name for name in FAMILIES if not name.startswith(("bert", "t5", "rob", "dis"))]
ENCODERS = [name for name in FAMILIES if name.startswith(("bert", "rob", "dis"))]


def make_t5_untied():
    """T5 1.1: gated, and a head of its own, which `transformers` unties when it is in the file."""
    config = transformers.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return make(lambda _: model, config)


@pytest.fixture(scope="module")
def models():
    """Each family's model, made when first asked for, and ours with the same weights."""
    made = {}

    def get(name):
        if name not in made:
            theirs = FAMILIES[name]()
            made[name] = theirs, ours(theirs)
        return made[name]

    return get


def tokens(batch, n, seed=1):
    return torch.randint(2, VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(seed))


def padding(lengths, n, side):
    """True at tokens."""
    place = torch.arange(n)
    return torch.stack([place < k if side == "right" else place >= n - k for k in lengths])


def close(a, b, tolerance=1e-5):
    """Compare up to a tolerance times the size of the numbers."""
    torch.testing.assert_close(
        a, b, rtol=0, atol=tolerance * max(1.0, float(b.detach().abs().max()))
    )


def gradients(loss, theirs, mine):
    """Compare the gradients of both models, ours under their names."""
    loss[0].backward()
    loss[1].backward()
    family = family_of(settings_of(theirs))
    found = weights_to({name: p.grad for name, p in mine.named_parameters()}, mine.config, family)
    if pretrained.FAMILIES[family].centred:  # weights less 1 have the gradients of the weights
        found = {name: grad + name.endswith("norm.weight") for name, grad in found.items()}
    wanted = dict(theirs.named_parameters())
    renamed = classic(theirs, {name: p.grad for name, p in wanted.items()})
    assert found.keys() <= renamed.keys()
    for name, grad in found.items():
        close(grad, renamed[name])
    for model in (theirs, mine):
        model.zero_grad()
    unread = {name for name in renamed.keys() - found.keys() if renamed[name] is not None}
    assert unread == set()


def classic(model, named):
    """Give tensors the names that their files have, where memory has others (ViT)."""
    if model.config.model_type != "vit":
        return named
    new = {}
    for name, value in named.items():
        name = name.replace("layers.", "encoder.layer.")
        for old, other in {
            "attention.q_proj": "attention.attention.query",
            "attention.k_proj": "attention.attention.key",
            "attention.v_proj": "attention.attention.value",
            "attention.o_proj": "attention.output.dense",
            "mlp.fc1": "intermediate.dense",
            "mlp.fc2": "output.dense",
        }.items():
            name = name.replace(old, other)
        new[name] = value
    return new


# The same numbers come out: hidden states, logits, gradients.


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_agree_on_hidden_states_logits_and_gradients(models, name, side):
    theirs, mine = models(name)
    ids, mask = tokens(3, 11), None
    options = {}
    if side != "none":
        mask = padding((11, 4, 7), 11, side)
        options["attention_mask"] = mask.long()
        # What generate() passes: absolute positions count the tokens.
        options["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    seen = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    found = theirs(ids, output_hidden_states=True, use_cache=False, **options)
    logits, _ = mine(ids, mask=mask)
    close(logits[seen], found.logits[seen])
    for one, other in zip(
        mine.hidden_states(ids, mask=mask)[:-1], found.hidden_states[:-1], strict=True
    ):
        close(one[seen], other[seen])
    weigh = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)) * seen[..., None]
    gradients(((found.logits * weigh).mean(), (logits * weigh).mean()), theirs, mine)


@pytest.mark.parametrize("side", ["none", "right"])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_agree_on_hidden_states_logits_and_gradients(models, name, side):
    theirs, mine = models(name)
    ids, n_segments = tokens(3, 13), mine.config.embedding.n_segments
    segments = None if n_segments is None else tokens(3, 13, 5) % n_segments
    mask = None if side == "none" else padding((13, 5, 8), 13, side)
    seen = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    found = theirs(
        ids,
        **{} if segments is None else {"token_type_ids": segments},
        attention_mask=None if mask is None else mask.long(),
        output_hidden_states=True,
    )
    for one, other in zip(
        mine.hidden_states(ids, mask=mask, segments=segments), found.hidden_states, strict=True
    ):
        close(one[seen], other[seen])
    result = mine(ids, mask=mask, segments=segments)
    wanted = found[0]
    close(result[seen], wanted[seen])
    weigh = torch.randn(result.shape, generator=torch.Generator().manual_seed(2)) * seen[..., None]
    losses = [(each * weigh).mean() for each in (wanted, result)]
    if mine.pooler is not None:
        close(mine.pooled(result), found.pooler_output)
        losses = [
            losses[0] + found.pooler_output.square().mean(),
            losses[1] + mine.pooled(result).square().mean(),
        ]
    gradients(losses, theirs, mine)


def test_no_segments_are_segment_zero(models):
    theirs, mine = models("bert")
    close(mine(tokens(2, 7)), theirs(tokens(2, 7)).last_hidden_state)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["t5 1.0", "t5 1.1"])
def test_t5_agrees_on_memory_logits_and_gradients(models, name, padded):
    theirs, mine = models(name)
    source, target = tokens(3, 17), tokens(3, 7, 3)
    mask = padding((17, 9, 12), 17, "right") if padded else None
    found = theirs(
        input_ids=source,
        decoder_input_ids=target,
        attention_mask=None if mask is None else mask.long(),
    )
    seen = torch.ones_like(source, dtype=torch.bool) if mask is None else mask
    close(mine.encode(source, mask=mask)[seen], found.encoder_last_hidden_state[seen])
    logits = mine(source, target, source_mask=mask)
    close(logits, found.logits)
    weigh = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    gradients(((found.logits * weigh).mean(), (logits * weigh).mean()), theirs, mine)


def test_vit_agrees_through_its_file(tmp_path):
    theirs = make(transformers.ViTForImageClassification, transformers.ViTConfig(**VIT))
    theirs.save_pretrained(tmp_path)
    mine = pretrained.load_directory(tmp_path).model
    images = torch.randn(2, 3, 15, 15, generator=torch.Generator().manual_seed(1))
    found = theirs(images, output_hidden_states=True)
    for one, other in zip(mine.hidden_states(images), found.hidden_states, strict=True):
        close(one, other)
    logits = mine(images)
    close(logits, found.logits)
    gradients((found.logits.square().mean(), logits.square().mean()), theirs, mine)


@pytest.mark.parametrize("name", ["llama", "llama biased"])
def test_rotary_layouts_agree_after_rows_are_put_side_by_side(models, name):
    theirs, side_by_side = models(name)
    half = ours(theirs, layout="half")
    ids = tokens(2, 9)
    one, other = half.stack.blocks[0].mixer.q_proj, side_by_side.stack.blocks[0].mixer.q_proj
    assert not torch.equal(one.weight, other.weight)
    close(side_by_side(ids)[0], half(ids)[0])


@pytest.mark.parametrize("name", [*DECODERS, "t5 1.1"])
def test_caches_give_the_next_tokens_of_theirs(models, name):
    """Greedy tokens one by one from our cache against their logits over the whole."""
    theirs, mine = models(name)
    ids = tokens(2, 6)
    if mine.config.kind == "decoder":
        logits, state = mine(ids[:, :4], last=True)
    else:
        source = tokens(2, 5, 9)
        logits, state = mine.decode(ids[:, :4], mine.remember(source), last=True)
    for _ in range(8):
        if mine.config.kind == "decoder":
            wanted = theirs(ids[:, : state.length], use_cache=False).logits[:, -1:]
        else:
            wanted = theirs(input_ids=source, decoder_input_ids=ids[:, : state.length]).logits[
                :, -1:
            ]
        close(logits, wanted)
        if state.length == ids.shape[1]:
            ids = torch.cat([ids, logits.argmax(-1)], dim=1)
        logits, state = mine.decode(ids[:, state.length : state.length + 1], state, last=True)


# Names go both ways, and what does not fit is refused.


@pytest.mark.parametrize("name", FAMILIES)
def test_names_and_numbers_come_back_as_they_were(models, name):
    theirs, mine = models(name)
    family = family_of(settings_of(theirs))
    back = weights_to(mine.state_dict(), mine.config, family)
    know = pretrained.FAMILIES[family]
    wanted = theirs.state_dict()
    assert back.keys() <= wanted.keys()
    for key, value in back.items():
        if "position_embeddings" in key and know.first_place:  # rows before it are never read
            assert torch.equal(value[know.first_place :], wanted[key][know.first_place :])
        elif know.centred and "norm" in key:  # 1 was added and taken off
            torch.testing.assert_close(value, wanted[key])
        else:
            assert torch.equal(value, wanted[key]), key
    for key in wanted.keys() - back.keys():  # tied ones only
        assert key.removeprefix(know.prefix) in know.copies


@pytest.mark.parametrize("name", FAMILIES)
def test_ours_counts_as_many_parameters_as_theirs(models, name):
    theirs, mine = models(name)
    unread = pretrained.FAMILIES[family_of(settings_of(theirs))].first_place
    own = mine.config.count_parameters() + unread * mine.config.d_model
    assert own == sum(p.numel() for p in theirs.parameters())


def test_nothing_is_drawn_or_copied_that_need_not_be(models):
    theirs, _ = models("bert")
    before = torch.get_rng_state()
    weights = theirs.state_dict()
    mine = fill_model(settings_of(theirs), weights)
    assert torch.equal(torch.get_rng_state(), before)
    held = {value.data_ptr() for value in weights.values()}
    assert all(parameter.data_ptr() in held for parameter in mine.parameters())


def test_a_prefix_is_taken_off_or_missed():
    theirs = make(transformers.BertForMaskedLM, transformers.BertConfig(**BERT))
    weights = theirs.state_dict()
    bare = {name.removeprefix("bert."): value for name, value in weights.items()}
    config = config_from(settings_of(theirs), weights)
    one, other = (weights_from(each, config, "bert") for each in (weights, bare))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("classes", "head", "pooler"),
    [(["BertModel"], None, True), (["BertForMaskedLM"], "mlm", False), (None, None, False)],
)
def test_without_weights_the_class_says_what_stands_on_top(classes, head, pooler):
    config = config_from(
        {"model_type": "bert", "hidden_act": "gelu", **BERT, "architectures": classes}
    )
    found = None if config.head is None else "mlm"
    assert (found, config.pooler) == (head, pooler)


PUBLISHED = {
    "bert-base": transformers.BertConfig(),
    "gpt2": transformers.GPT2Config(),
    "gpt2-xl": transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25),
    "t5-small": transformers.T5Config(),
    "t5-base": transformers.T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, num_decoder_layers=12
    ),
    "llama-7b": transformers.LlamaConfig(),
    "vit-b-16": transformers.ViTConfig(),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_the_sizes_that_transformers_has(name):
    """The same parameters under the same names with the same shapes, no number made."""
    settings = json.loads(PUBLISHED[name].to_json_string(use_diff=False))
    config, wanted = config_from(settings), preset(name)
    bare = wanted.replace(pooler=False, head=None) if wanted.kind == "encoder" else wanted
    shapes = [
        {key: tuple(x.shape) for key, x in conversion.empty_model(each).state_dict().items()}
        for each in (config, bare)
    ]
    assert shapes[0] == shapes[1]
    # ViT's authors have 1e-6 in their code and 1e-12 stands in the files of `transformers`.
    assert config.kind == wanted.kind and config.n_layers == wanted.n_layers
    for choice in ["place", "ffn_kind", "n_heads"] + ["norm_eps"] * (name != "vit-b-16"):
        assert config.choice(choice) == wanted.choice(choice), choice
    assert config.embedding.position == wanted.embedding.position
    assert config.layers[-1].mixer.position == wanted.layers[-1].mixer.position
    if wanted.kind != "encoder":
        assert config.head.scale == wanted.head.scale


def test_years_have_written_rotary_bases_in_three_places():
    base = {"model_type": "llama", "hidden_act": "silu", **LLAMA}
    del base["rope_parameters"]
    assert config_from(base).choice("base") == 10000.0
    assert config_from(base | {"rope_theta": 7000.0}).choice("base") == 7000.0
    newest = {"rope_parameters": {"rope_theta": 9000.0, "rope_type": "default"}}
    assert config_from(base | newest).choice("base") == 9000.0
    scaled = base | {"rope_theta": 7000.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert config_from(scaled).choice("base") == 7000.0
    assert config_from(scaled).choice("scaling") == LinearScaling(2.0)


@pytest.fixture
def llama():
    theirs = make(transformers.LlamaForCausalLM, transformers.LlamaConfig(**LLAMA))
    return settings_of(theirs), dict(theirs.state_dict())


@pytest.mark.untyped
def test_a_missing_tensor_is_named(llama):
    settings, weights = llama
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ValueError, match=r"no tensor layers\.1\.mlp\.up_proj\.weight"):
        fill_model(settings, weights)


@pytest.mark.untyped
def test_an_unknown_tensor_is_named(llama):
    settings, weights = llama
    weights["model.layers.0.self_attn.q_norm.weight"] = torch.ones(10)
    with pytest.raises(ValueError, match=r"not known here: layers\.0\.self_attn\.q_norm\.weight"):
        fill_model(settings, weights)


@pytest.mark.untyped
def test_a_wrong_shape_says_both(llama):
    settings, weights = llama
    weights["model.norm.weight"] = torch.ones(59)
    with pytest.raises(ValueError, match=r"norm\.weight .*shape \(60,\), got \(59,\)"):
        fill_model(settings, weights)


@pytest.mark.untyped
def test_packed_matrices_of_odd_width_are_refused():
    theirs = make(transformers.GPT2LMHeadModel, transformers.GPT2Config(**GPT2))
    weights = dict(theirs.state_dict())
    weights["transformer.h.0.attn.c_attn.weight"] = torch.ones(22, 65)
    with pytest.raises(ValueError, match=r"c_attn\.weight must become .*got \(22, 65\)"):
        fill_model(settings_of(theirs), weights)


@pytest.mark.untyped
def test_a_tied_weight_that_differs_is_refused(llama):
    settings, weights = llama
    with pytest.raises(ValueError, match="lm_head.weight differs from embed_tokens.weight"):
        fill_model(settings | {"tie_word_embeddings": True}, weights)


def test_a_tied_weight_that_is_stored_twice_is_read_once(llama):
    settings, weights = llama
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    model = fill_model(settings | {"tie_word_embeddings": True}, weights)
    assert "head.weight" not in model.state_dict()


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("llama", {"model_type": "rwkv"}, "model_type must be one of .*'rwkv'"),
        ("llama", {"hidden_act": "mish"}, "must be one of relu, .*'mish'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 8.0}},
            "rope_type must be one of default, linear, yarn, llama3, got 'dynamic'",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 2.0}},
            "attention_factor must be 0.1 .* got 2.0",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "mscale": 0.7}},
            "mscale = 0.7; here it must be None",
        ),
        ("llama", {"partial_rotary_factor": 0.3}, "share · d_head must be even, .* got 3"),
        ("llama", {"model_type": "falcon"}, "model_type must be one of .*'falcon'"),
        (
            "llama",
            {
                "model_type": "gemma2",
                "hidden_activation": "gelu_new",
                "query_pre_attn_scalar": 3,
                "attn_logit_softcapping": 50.0,
            },
            "attn_logit_softcapping = 50.0; here it must be None",
        ),
        (
            "llama",
            {"model_type": "stablelm", "qk_layernorm": True},
            "qk_layernorm = True; here it must be False",
        ),
        (
            "llama",
            {
                "model_type": "qwen3",
                "layer_types": ["chunked_attention"] * 3,
                "sliding_window": 3,
                "use_sliding_window": True,
            },
            "layer_types must be out of full_attention, .* got 'chunked_attention'",
        ),
        ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings = False"),
        ("bert", {"is_decoder": True}, "is_decoder = True; here it must be False"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type = "),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"n_embd": None}, "d_model"),
    ],
)
def test_what_is_not_known_is_refused(family, change, message):
    first = {
        "bert": {"hidden_act": "gelu", **BERT},
        "gpt2": {"activation_function": "gelu_new", **GPT2},
        "llama": {"hidden_act": "silu", **LLAMA},
    }[family]
    with pytest.raises((ValueError, TypeError), match=message):
        config_from({"model_type": family, **first, **change})


@pytest.mark.untyped
def test_a_missing_entry_is_named():
    with pytest.raises(ValueError, match="config.json of a gpt2 must hold 'n_layer'"):
        config_from({"model_type": "gpt2", "vocab_size": 3, "n_embd": 4, "n_head": 2, "n_inner": 5,
                     "activation_function": "relu"})  # fmt: skip


# Folders.


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    return folder


@pytest.mark.parametrize("name", ["bert masked", "gpt2", "t5 1.1", "llama biased"])
def test_a_folder_that_transformers_saved_is_read(models, tmp_path, name):
    theirs, mine = models(name)
    loaded = pretrained.load_directory(save(theirs, tmp_path / "mine"))
    assert loaded.name == "mine"
    assert loaded.config == mine.config
    assert not loaded.model.training
    wanted = mine.state_dict()
    assert loaded.model.state_dict().keys() == wanted.keys()
    for key, value in loaded.model.state_dict().items():
        assert torch.equal(value, wanted[key]), key


def test_weights_in_several_files_are_read_together(models, tmp_path):
    theirs, mine = models("gpt2")
    save(theirs, tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    loaded = pretrained.load_directory(tmp_path)
    close(loaded.model(tokens(1, 5))[0], mine(tokens(1, 5))[0], 0)


def test_weights_are_read_in_the_dtype_asked_for(models, tmp_path):
    theirs, _ = models("bert")
    loaded = pretrained.load_directory(save(theirs, tmp_path), dtype=torch.float64)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float64}
    other = copy.deepcopy(theirs).double()(tokens(1, 5)).last_hidden_state
    close(loaded.model(tokens(1, 5)), other, 1e-12)


def test_dropout_is_left_out(models, tmp_path):
    theirs, mine = models("bert")
    loaded = pretrained.load_directory(save(theirs, tmp_path)).model.train()
    close(loaded(tokens(1, 5)), mine(tokens(1, 5)), 1e-6)


OTHER_NUMBERS = {
    "complex": lambda x: x.to(torch.complex64),
    "integer": lambda x: x.long(),
    "of no dimension": lambda x: x.sum(),
}


def change_a_weight(path, change):
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("wte.weight"))
    save_file(weights | {name: change(weights[name])}, path, metadata={"format": "pt"})


def break_folder(folder, how):
    """Damage a saved folder in one way."""
    path = folder / "model.safetensors"
    if how == "no folder":
        return folder / "nowhere"
    if how == "no config":
        (folder / "config.json").unlink()
    if how == "broken config":
        (folder / "config.json").write_text('{"model_type": "gp')
    if how == "a deep config":
        (folder / "config.json").write_text("[" * 200_000)
    if how == "no text":
        (folder / "config.json").write_bytes(b'{"model_type": "\xe9"}')
    if how == "too many layers":
        config = json.loads((folder / "config.json").read_text()) | {"n_layer": 10**9}
        (folder / "config.json").write_text(json.dumps(config))
    if how in OTHER_NUMBERS:
        change_a_weight(path, OTHER_NUMBERS[how])
    if how == "a list":
        (folder / "config.json").write_text("[]")
    if how in ("no weights", "pickle"):
        path.unlink()
    if how == "pickle":
        (folder / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\n.")
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-7])
    if how == "no safetensors":
        path.write_bytes(b"PK\x03\x04 something else")
    if how == "a file of several is missing":
        path.unlink()
        index = {"weight_map": {"wte.weight": "model-00001-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if how == "a file elsewhere":
        path.unlink()
        index = {"weight_map": {"wte.weight": "../model.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("no folder", FileNotFoundError, "there is no folder"),
        ("no config", FileNotFoundError, "holds no config.json"),
        ("broken config", ValueError, "config.json is damaged"),
        ("a deep config", ValueError, "config.json is damaged: maximum recursion"),
        ("no text", ValueError, "config.json is damaged: 'utf-8' codec"),
        ("too many layers", ValueError, "n_layer must be from 1 to 10000"),
        ("complex", ValueError, "wte.weight must be floating point, got torch.complex64"),
        ("integer", ValueError, "wte.weight must be floating point, got torch.int64"),
        ("of no dimension", ValueError, "wte.weight must become .*, got one number"),
        ("a list", ValueError, "must hold a JSON object, got list"),
        ("no weights", FileNotFoundError, "holds no model.safetensors"),
        ("pickle", FileNotFoundError, "only pytorch_model.bin: a pickle, .*not read here"),
        ("truncated", ValueError, "model.safetensors is damaged"),
        ("no safetensors", ValueError, "model.safetensors is damaged"),
        ("a file of several is missing", FileNotFoundError, "names model-00001-of-00002"),
        ("a file elsewhere", FileNotFoundError, "names ../model.safetensors"),
    ],
)
def test_damaged_folders_are_refused_in_words(models, tmp_path, how, kind, message):
    folder = save(models("gpt2")[0], tmp_path / "it")
    with pytest.raises(kind, match=message):
        pretrained.load_directory(break_folder(folder, how))


def test_what_we_write_transformers_reads(models, tmp_path):
    theirs, mine = models("t5 1.0")
    weights = weights_to(mine.state_dict(), mine.config, "t5")
    theirs.config.save_pretrained(tmp_path)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    again, report = transformers.T5ForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values())
    ids = tokens(1, 5)
    one = again.eval()(input_ids=ids, decoder_input_ids=ids).logits
    close(mine(ids, ids), one)
