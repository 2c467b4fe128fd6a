"""How `transformers` writes down families of models: their names for our parts, and their choices.

For each family a table of names, ours on the left, and a function that reads its ``config.json``
as one of our configs. :mod:`tfbook.pretrained.conversion` uses them.

Explained in: chapters/05_architecture, section "Two real models".
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tfbook.models import Patches, TransformerConfig
from tfbook.positions import LinearScaling

__all__ = ["FAMILIES", "Family"]

Settings = Mapping[str, object]


class Family(NamedTuple):
    """How `transformers` writes down one family of models.

    Attributes:
        names: our name of each part and theirs, ``{i}`` being the number of a block.
        prefix: what stands before their names where a model has a head.
        heads: how their names of heads begin, which have no prefix.
        copies: a second name under which a tied weight may be stored, and the first one.
        ignored: names that hold nothing to learn, or a head that is not known here.
        config: makes a config of a ``config.json`` and the tensors' names.

    Explained in: chapters/05_architecture, section "Two real models".
    """

    names: Mapping[str, str]
    prefix: str
    heads: tuple[str, ...]
    copies: Mapping[str, str]
    ignored: str
    config: Callable[[Settings, Mapping[str, Tensor] | None], TransformerConfig]


ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
GATED = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}


# Names, ours on the left.

BLOCK, IN, OUT = "stack.blocks.{i}.", "encoder.blocks.{i}.", "decoder.blocks.{i}."


def _block(ours: str, theirs: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {ours + mine: theirs + other for mine, other in parts.items()}


BERT = {
    "embed": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "pooler": "pooler.dense",
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.bias": "cls.predictions.bias",
} | _block(
    BLOCK,
    "encoder.layer.{i}.",
    {
        "mixer.q_proj": "attention.self.query",
        "mixer.k_proj": "attention.self.key",
        "mixer.v_proj": "attention.self.value",
        "mixer.out_proj": "attention.output.dense",
        "mixer_residual.norm": "attention.output.LayerNorm",
        "ffn.up_proj": "intermediate.dense",
        "ffn.down_proj": "output.dense",
        "ffn_residual.norm": "output.LayerNorm",
    },
)
VIT = {
    "embed.class_token": "embeddings.cls_token",
    "embed.proj": "embeddings.patch_embeddings.projection",
    "position.weight": "embeddings.position_embeddings",
    "stack.final_norm": "layernorm",
    "pooler": "pooler.dense",
    "head": "classifier",
} | _block(
    BLOCK,
    "encoder.layer.{i}.",
    {
        "mixer_residual.norm": "layernorm_before",
        "mixer.q_proj": "attention.attention.query",
        "mixer.k_proj": "attention.attention.key",
        "mixer.v_proj": "attention.attention.value",
        "mixer.out_proj": "attention.output.dense",
        "ffn_residual.norm": "layernorm_after",
        "ffn.up_proj": "intermediate.dense",
        "ffn.down_proj": "output.dense",
    },
)
GPT2 = {
    "embed": "wte",
    "position": "wpe",
    "stack.final_norm": "ln_f",
    "head": "lm_head",
} | _block(
    BLOCK,
    "h.{i}.",
    {
        "mixer_residual.norm": "ln_1",
        "mixer.q_proj": "attn.c_attn",
        "mixer.k_proj": "attn.c_attn",
        "mixer.v_proj": "attn.c_attn",
        "mixer.out_proj": "attn.c_proj",
        "ffn_residual.norm": "ln_2",
        "ffn.up_proj": "mlp.c_fc",
        "ffn.down_proj": "mlp.c_proj",
    },
)
LLAMA = {
    "embed": "embed_tokens",
    "stack.final_norm": "norm",
    "head": "lm_head",
} | _block(
    BLOCK,
    "layers.{i}.",
    {
        "mixer_residual.norm": "input_layernorm",
        "mixer.q_proj": "self_attn.q_proj",
        "mixer.k_proj": "self_attn.k_proj",
        "mixer.v_proj": "self_attn.v_proj",
        "mixer.out_proj": "self_attn.o_proj",
        "ffn_residual.norm": "post_attention_layernorm",
        "ffn.gate_proj": "mlp.gate_proj",
        "ffn.up_proj": "mlp.up_proj",
        "ffn.down_proj": "mlp.down_proj",
    },
)


def _t5_block(ours: str, theirs: str, ffn: int) -> dict[str, str]:
    """Return the names of one side's blocks, whose feed-forward network is sublayer 1 or 2."""
    looks = {"mixer": (0, "SelfAttention"), "cross": (1, "EncDecAttention")}
    net = f"layer.{ffn}.DenseReluDense"
    parts = {
        "ffn.gate_proj": f"{net}.wi_0",
        "ffn.up_proj": f"{net}.wi_1",
        "ffn.down_proj": f"{net}.wo",
        "ffn_residual.norm": f"layer.{ffn}.layer_norm",
    }
    for mine, (layer, other) in list(looks.items())[:ffn]:
        parts[f"{mine}_residual.norm"] = f"layer.{layer}.layer_norm"
        for name in "q k v out".split():
            parts[f"{mine}.{name}_proj"] = f"layer.{layer}.{other}.{name[0]}"
    return _block(ours, theirs, parts)


FIRST = "block.0.layer.0.SelfAttention.relative_attention_bias"
T5 = {
    "embed": "shared",
    "position": f"encoder.{FIRST}",
    "target_position": f"decoder.{FIRST}",
    "encoder.final_norm": "encoder.final_layer_norm",
    "decoder.final_norm": "decoder.final_layer_norm",
    "head": "lm_head",
}
T5 |= _t5_block(IN, "encoder.block.{i}.", 1) | _t5_block(OUT, "decoder.block.{i}.", 2)


# Choices.


def _must_be(settings: Settings, **wanted: object) -> None:
    """Raise ValueError where an entry, if it is there, says something else."""
    for name, value in wanted.items():
        if settings.get(name, value) != value:
            raise ValueError(
                f"config.json has {name} = {settings[name]!r}; here it must be {value!r}"
            )


def _activation(settings: Settings, name: str) -> str:
    if settings[name] not in ACTIVATIONS:
        raise ValueError(f"{name} must be one of {', '.join(ACTIVATIONS)}, got {settings[name]!r}")
    return ACTIVATIONS[settings[name]]


def _has(settings: Settings, weights: Collection[str] | None, part: str, *classes: str) -> bool:
    """Return whether a part is there: by the tensors' names, or without them by the class."""
    if weights is None:
        return bool(set(settings.get("architectures") or ()) & set(classes))
    return any(part in name for name in weights)


def _bert(settings, weights):
    _must_be(
        settings,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    masked = _has(settings, weights, "cls.predictions", "BertForMaskedLM", "BertForPreTraining")
    return TransformerConfig(
        settings["vocab_size"],
        settings["hidden_size"],
        settings["num_hidden_layers"],
        settings["num_attention_heads"],
        settings["intermediate_size"],
        kind="encoder",
        max_len=settings["max_position_embeddings"],
        norm_place="post",
        norm_eps=settings.get("layer_norm_eps", 1e-12),
        embedding_norm=True,
        ffn=_activation(settings, "hidden_act"),
        position="learned",
        n_segments=settings.get("type_vocab_size", 2),
        head="mlm" if masked else None,
        pooler=_has(settings, weights, "pooler.dense", "BertModel", "BertForPreTraining"),
        init="bert",
    )


def _vit(settings, weights):
    _must_be(settings, pooler_act="tanh", pooler_output_size=settings["hidden_size"])
    classes = None
    if weights is not None and "classifier.weight" in weights:
        classes = len(weights["classifier.weight"])
    elif "ViTForImageClassification" in (settings.get("architectures") or ()):
        classes = len(settings.get("id2label") or (0, 1))
    bias = ("q", "k", "v", "out") if settings.get("qkv_bias", True) else ("out",)
    return TransformerConfig(
        None,
        settings["hidden_size"],
        settings["num_hidden_layers"],
        settings["num_attention_heads"],
        settings["intermediate_size"],
        kind="encoder",
        patches=Patches(
            settings["image_size"], settings["patch_size"], settings.get("num_channels", 3)
        ),
        norm_eps=settings.get("layer_norm_eps", 1e-12),
        ffn=_activation(settings, "hidden_act"),
        attention_bias=True if len(bias) == 4 else bias,
        position="learned",
        head=None if classes is None else "classes",
        n_classes=classes,
        pooler=_has(settings, weights, "pooler.dense", "ViTModel"),
        init="bert",
    )


def _gpt2(settings, weights):
    _must_be(
        settings,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    return TransformerConfig(
        settings["vocab_size"],
        settings["n_embd"],
        settings["n_layer"],
        settings["n_head"],
        settings.get("n_inner") or 4 * settings["n_embd"],
        max_len=settings["n_positions"],
        norm_eps=settings.get("layer_norm_epsilon", 1e-5),
        ffn=_activation(settings, "activation_function"),
        position="learned",
        tie_embeddings=settings.get("tie_word_embeddings", True),
        init="gpt2",
    )


def _t5(settings, weights):
    act = settings.get("feed_forward_proj", "relu")
    gated, plain = act.startswith("gated-"), act.removeprefix("gated-")
    # "gated-gelu" has always meant the approximation there.
    plain = "gelu_tanh" if act == "gated-gelu" else _activation({"act": plain}, "act")
    # Whether the head is the embedding is seen from the weights; whether the decoder's output is
    # scaled is what the entry meant in 2020, under another name since.
    scaled = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))
    tied = scaled
    if weights is not None:
        own = weights.get("lm_head.weight")
        tied = own is None or torch.equal(own, weights["shared.weight"])
    return TransformerConfig(
        settings["vocab_size"],
        settings["d_model"],
        settings["num_layers"],
        settings["num_heads"],
        settings["d_ff"],
        kind="encoder-decoder",
        n_decoder_layers=settings.get("num_decoder_layers") or settings["num_layers"],
        d_head=settings["d_kv"],
        norm="rms",
        norm_eps=settings.get("layer_norm_epsilon", 1e-6),
        ffn=GATED[plain] if gated else plain,
        attention_bias=False,
        ffn_bias=False,
        position="t5",
        n_buckets=settings["relative_attention_num_buckets"],
        max_distance=settings.get("relative_attention_max_distance", 128),
        tie_embeddings=tied,
        logit_scale=settings["d_model"] ** -0.5 if scaled else None,
        init="t5",
    )


def _llama(settings, weights):
    _must_be(settings, partial_rotary_factor=1.0)
    n_heads, n_kv_heads = settings["num_attention_heads"], settings.get("num_key_value_heads")
    d_head = settings.get("head_dim")
    base, scaling = _rotary(settings)
    window = settings.get("sliding_window")
    return TransformerConfig(
        settings["vocab_size"],
        settings["hidden_size"],
        settings["num_hidden_layers"],
        n_heads,
        settings["intermediate_size"],
        n_kv_heads=None if n_kv_heads == n_heads else n_kv_heads,
        d_head=None if d_head == settings["hidden_size"] // n_heads else d_head,
        max_len=settings["max_position_embeddings"],
        norm="rms",
        norm_eps=settings.get("rms_norm_eps", 1e-6),
        ffn=GATED[_activation(settings, "hidden_act")],
        attention_bias=settings.get("attention_bias", False),
        ffn_bias=settings.get("mlp_bias", False),
        position="rotary",
        rope_base=base,
        rope_layout="interleaved",  # turning pairs that lie side by side is faster
        rope_scaling=scaling,
        tie_embeddings=settings.get("tie_word_embeddings", False),
        window=window if settings["model_type"] == "mistral" else None,
        init="gpt2",
    )


def _rotary(settings: Settings) -> tuple[float, LinearScaling | None]:
    """Return base and scaling of rotary positions, from where different years wrote them."""
    entry = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    base = entry.get("rope_theta", settings.get("rope_theta", 10000.0))
    kind = entry.get("rope_type", entry.get("type", "default"))
    if kind not in ("default", "linear"):
        raise ValueError(f"rope_type must be default or linear, got {kind!r}")
    return float(base), LinearScaling(float(entry["factor"])) if kind == "linear" else None


BERT_COPIES = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
SHARED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
LLAMA_FAMILY = Family(
    LLAMA,
    "model.",
    ("lm_head",),
    {"lm_head.weight": "embed_tokens.weight"},
    r"rotary_emb\.inv_freq$",
    _llama,
)
FAMILIES = {
    "bert": Family(
        BERT, "bert.", ("cls",), BERT_COPIES, r"\.position_ids$|^cls\.seq_relationship\.", _bert
    ),
    "gpt2": Family(
        GPT2,
        "transformer.",
        ("lm_head",),
        {"lm_head.weight": "wte.weight"},
        r"\.attn\.(masked_)?bias$",
        _gpt2,
    ),
    "t5": Family(T5, "", ("",), dict.fromkeys(SHARED, "shared.weight"), r"$^", _t5),
    "llama": LLAMA_FAMILY,
    "mistral": LLAMA_FAMILY,
    "vit": Family(VIT, "vit.", ("classifier",), {}, r"$^", _vit),
}
