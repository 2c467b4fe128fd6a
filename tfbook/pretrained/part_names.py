"""The names that families of `transformers` give to the parts of a model, ours on the left.

``{i}`` is the number of a block. :mod:`tfbook.pretrained.families` says whose names they are.

Explained in: chapters/05_architecture_deeper, section "Two real models".
"""

from collections.abc import Mapping, Sequence

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


def _like(names: Mapping[str, str], **changes: str) -> dict[str, str]:
    """Return names with other ones for parts of a block, for the final norm, or for what is new."""
    found = dict(names)
    for ours, theirs in changes.items():
        ours = ours.replace("__", ".")
        if ours == "final_norm":
            found["stack.final_norm"] = theirs
        else:
            found[BLOCK + ours] = "layers.{i}." + theirs
    return found


QWEN3 = _like(LLAMA, mixer__q_norm="self_attn.q_norm", mixer__k_norm="self_attn.k_norm")
OLMO2 = _like(
    LLAMA,
    mixer__q_norm__norm="self_attn.q_norm",
    mixer__k_norm__norm="self_attn.k_norm",
    mixer_residual__norm="post_attention_layernorm",
    ffn_residual__norm="post_feedforward_layernorm",
)
GEMMA2 = _like(
    LLAMA,
    mixer_residual__norm_after="post_attention_layernorm",
    ffn_residual__norm="pre_feedforward_layernorm",
    ffn_residual__norm_after="post_feedforward_layernorm",
)
GEMMA3 = GEMMA2 | _like({}, mixer__q_norm="self_attn.q_norm", mixer__k_norm="self_attn.k_norm")
PLAIN = {"ffn__up_proj": "mlp.fc1", "ffn__down_proj": "mlp.fc2"}
PHI = _like(
    LLAMA,
    **PLAIN,
    mixer__out_proj="self_attn.dense",
    mixer__q_norm="self_attn.q_layernorm",
    mixer__k_norm="self_attn.k_layernorm",
    final_norm="final_layernorm",
)
STARCODER2 = _like(LLAMA, ffn__up_proj="mlp.c_fc", ffn__down_proj="mlp.c_proj")
NEOX = _like(
    LLAMA,
    mixer__q_proj="attention.query_key_value",
    mixer__k_proj="attention.query_key_value",
    mixer__v_proj="attention.query_key_value",
    mixer__out_proj="attention.dense",
    ffn__up_proj="mlp.dense_h_to_4h",
    ffn__down_proj="mlp.dense_4h_to_h",
    final_norm="final_layer_norm",
) | {"embed": "embed_in"}

GATE = {"ffn__router__proj": "mlp.gate"}
SWIGLU = ("gate_proj", "up_proj", "down_proj")


def _experts(theirs: str, names: Sequence[str] = SWIGLU) -> dict[str, str]:
    """Return the names of an expert's maps; the second number in them is the expert's."""
    return {
        f"{BLOCK}ffn.experts.{{i}}.{mine}": f"layers.{{i}}.{theirs}.{{i}}.{other}"
        for mine, other in zip(SWIGLU, names, strict=True)
    }


MIXTRAL = _like(LLAMA, ffn__router__proj="block_sparse_moe.gate") | _experts(
    "block_sparse_moe.experts", ("w1", "w3", "w2")
)
OLMOE = _like(
    LLAMA,
    **GATE,
    mixer__q_norm__norm="self_attn.q_norm",
    mixer__k_norm__norm="self_attn.k_norm",
) | _experts("mlp.experts")
QWEN3_MOE = _like(QWEN3, **GATE) | _experts("mlp.experts")
GPT_OSS = _like(
    LLAMA, ffn__router__proj="mlp.router", mixer__attend__sink="self_attn.sinks"
) | _experts("mlp.experts")
SCAN = {
    "mixer.in_proj": "in_proj",
    "mixer.conv": "conv1d",
    "mixer.delta_bias": "dt_bias",
    "mixer.log_rate": "A_log",
    "mixer.skip": "D",
    "mixer.out_proj": "out_proj",
}
SELECT = SCAN | {
    "mixer.x_proj": "x_proj",
    "mixer.delta_proj": "dt_proj",
    "mixer.delta_bias": "dt_proj.bias",
}
MAMBA = (
    {"embed": "embeddings", "stack.final_norm": "norm_f", "head": "lm_head"}
    | _block(BLOCK, "layers.{i}.", {"mixer_residual.norm": "norm"})
    | _block(BLOCK, "layers.{i}.mixer.", SELECT)
)
MAMBA2 = MAMBA | _block(BLOCK, "layers.{i}.mixer.", SCAN | {"mixer.gain": "norm.weight"})
JAMBA = _like(
    LLAMA,
    final_norm="final_layernorm",
    ffn_residual__norm="pre_ff_layernorm",
    ffn__gate_proj="feed_forward.gate_proj",
    ffn__up_proj="feed_forward.up_proj",
    ffn__down_proj="feed_forward.down_proj",
    ffn__router__proj="feed_forward.router",
) | _experts("feed_forward.experts")
NORMED = {
    "mixer.x_proj.proj": "x_proj",
    "mixer.x_proj.norms.r": "dt_layernorm",
    "mixer.x_proj.norms.b": "b_layernorm",
    "mixer.x_proj.norms.c": "c_layernorm",
}
JAMBA_MIXERS = {"mamba": _block(BLOCK, "layers.{i}.mamba.", SELECT | NORMED)}

ROBERTA = BERT | {
    "head.dense": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.bias": "lm_head.bias",
}
DISTILBERT = {
    "embed": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "embed_norm": "embeddings.LayerNorm",
    "head.dense": "vocab_transform",
    "head.norm": "vocab_layer_norm",
    "head.bias": "vocab_projector.bias",
} | _block(
    BLOCK,
    "transformer.layer.{i}.",
    {
        "mixer.q_proj": "attention.q_lin",
        "mixer.k_proj": "attention.k_lin",
        "mixer.v_proj": "attention.v_lin",
        "mixer.out_proj": "attention.out_lin",
        "mixer_residual.norm": "sa_layer_norm",
        "ffn.up_proj": "ffn.lin1",
        "ffn.down_proj": "ffn.lin2",
        "ffn_residual.norm": "output_layer_norm",
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
