"""Decoders with experts, or with other mixers than attention: Mixtral, Mamba, Jamba, GPT-OSS.

A hybrid is read as what it is here, a list of layers. Where a ``config.json`` asks for something
that the parts cannot do, the error names the entry.

Explained in: chapters/09_hybrids, section "A hybrid is a list".
"""

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tfbook.models import (
    FFN,
    Attention,
    Experts,
    Layer,
    Mamba,
    Mamba2,
    NextToken,
    NoFFN,
    Norm,
    Spec,
    Tokens,
    TransformerConfig,
)
from tfbook.pretrained.decoders import GATED, LLAMA, Settings, activation, in_turns, must_be

# How files write that there is no bound.
ENDLESS = (math.inf, "inf", "Infinity", {"__float__": "Infinity"})


def _experts(settings: Settings, ffn: FFN, **choices: object) -> Experts:
    """Return a mixture of experts like a feed-forward part."""
    number = settings.get("num_experts", settings.get("num_local_experts"))
    if number is None:
        raise KeyError("num_experts")
    own = {"kind": ffn.kind, "bias": ffn.bias} | choices
    return Experts(own.pop("d_ff", ffn.d_ff), number, settings["num_experts_per_tok"], **own)


def _mixtral(settings: Settings, ffn: FFN) -> Sequence[Spec]:
    return [_experts(settings, ffn)] * settings["num_hidden_layers"]


def _router(settings: Settings) -> str:
    """Return how the chosen are weighed: by the whole softmax, or by one of their own."""
    return "top_k" if settings.get("norm_topk_prob", False) else "softmax"


def _olmoe(settings: Settings, ffn: FFN) -> Sequence[Spec]:
    experts = _experts(settings, ffn, router=_router(settings))
    return [experts] * settings["num_hidden_layers"]


def _qwen3_moe(settings: Settings, ffn: FFN) -> Sequence[Spec]:
    own = {"d_ff": settings["moe_intermediate_size"], "router": _router(settings)}
    experts, step = _experts(settings, ffn, **own), settings.get("decoder_sparse_step", 1)
    plain = settings.get("mlp_only_layers") or ()
    return [
        ffn if i in plain or (i + 1) % step else experts
        for i in range(settings["num_hidden_layers"])
    ]


def _yarn(settings: Settings, kind: str) -> Settings:
    """Return GPT-OSS's settings with the rotary positions that are meant where none are there."""
    if settings.get("rope_parameters") or settings.get("rope_scaling"):
        return settings
    usual = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    return {**settings, "rope_parameters": usual | {"truncate": False}}


def _gpt_oss(settings: Settings, ffn: FFN) -> Sequence[Spec]:
    own = {"kind": "swiglu_clipped", "bias": True, "router_bias": True}
    return [_experts(settings, ffn, **own)] * settings["num_hidden_layers"]


SPARSE = {
    "mixtral": LLAMA._replace(window=lambda s: True, ffns=_mixtral, base=1e6),
    "olmoe": LLAMA._replace(
        qk_norm=lambda s: True, qk_norm_whole=True, ffns=_olmoe, fixed={"clip_qkv": None}
    ),
    "qwen3_moe": LLAMA._replace(
        qk_norm=lambda s: True,
        window=lambda s: s.get("use_sliding_window", False),
        ffns=_qwen3_moe,
    ),
    "gpt_oss": LLAMA._replace(
        bias=lambda s: s.get("attention_bias", True),
        window=lambda s: True,
        sees_all=in_turns,
        rope=_yarn,
        base=150000.0,
        n_sinks=1,
        ffns=_gpt_oss,
        fixed={
            "hidden_act": "silu",
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "quantization_config": None,
        },
    ),
}


# GPT-OSS has all experts of a layer in one tensor. Matrices are transposes; of gate and up, which
# are one, the columns take turns. Each line: its name, ours of the part, where the part is.
PACKED = re.compile(r"(layers\.\d+\.mlp\.experts)\.(gate_up_proj|down_proj)(_bias)?$")
ALONE = re.compile(r"(layers\.\d+\.mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)$")


def experts_apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give each expert of GPT-OSS tensors of its own, as other families write them.

    Raises:
        ValueError: for a tensor of all experts that has another number of dimensions.
    """
    found = {}
    for name, value in tensors.items():
        if not (packed := PACKED.search(name)):
            found[name] = value
            continue
        layer, which, bias = packed.groups()
        if value.ndim != (2 if bias else 3):
            raise ValueError(
                f"{name} must hold {'(E, outputs)' if bias else '(E, inputs, outputs)'}, "
                f"got shape {tuple(value.shape)}"
            )
        parts = {"gate": value[..., 0::2], "up": value[..., 1::2]}
        for part, all_of_it in ({"down": value} if which == "down_proj" else parts).items():
            for i, own in enumerate(all_of_it):
                own = own if bias else own.T
                kind = "bias" if bias else "weight"
                found[f"{layer}.{i}.{part}_proj.{kind}"] = own.contiguous()
    return found


def experts_together(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Undo :func:`experts_apart`."""
    found: dict[str, Tensor] = {}
    several: dict[str, dict[str, list[Tensor]]] = {}
    for name, value in tensors.items():
        if not (alone := ALONE.search(name)):
            found[name] = value
            continue
        layer, _, part, kind = alone.groups()
        before = name[: alone.start()]
        which = "down" if part == "down" else "gate_up"
        packed = f"{before}{layer}.{which}_proj{'_bias' * (kind == 'bias')}"
        several.setdefault(packed, {}).setdefault(part, []).append(
            value.T if kind == "weight" else value
        )
    for name, parts in several.items():
        stacked = {part: torch.stack(values) for part, values in parts.items()}
        both = [stacked[part] for part in ("gate", "up") if part in stacked]
        found[name] = torch.stack(both, -1).flatten(-2) if both else stacked["down"].contiguous()
    return found


def mamba(settings: Settings, weights: Mapping[str, Tensor] | None) -> TransformerConfig:
    """Read the ``config.json`` of a Mamba: layers that are a mixer alone.

    Raises:
        KeyError: for a missing entry.
        ValueError: for a choice that is not known here.

    Source: [gu2024mamba]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """
    rank = settings.get("time_step_rank", "auto")
    mixer = Mamba(
        settings["state_size"],
        expand=_whole(settings, "expand", 2),
        width=settings["conv_kernel"],
        rank=None if rank in ("auto", -(-settings["hidden_size"] // 16)) else rank,
        bias=settings.get("use_bias", False),
        conv_bias=settings.get("use_conv_bias", True),
    )
    return _of_mixers(settings, mixer, tied=True)


def mamba2(settings: Settings, weights: Mapping[str, Tensor] | None) -> TransformerConfig:
    """Read the ``config.json`` of a Mamba-2; arguments and errors are those of :func:`mamba`.

    Source: [dao2024transformers]
    Explained in: chapters/09_hybrids, section "One map, three ways to compute it".
    """
    must_be(settings, layer_norm_epsilon=1e-5)  # the norm behind the state has no other
    low, high = settings.get("time_step_limit") or (0.0, math.inf)
    if low != 0 or high not in ENDLESS:
        raise ValueError(f"time_step_limit must be 0 and infinity, got {low} and {high}")
    mixer = Mamba2(
        settings["state_size"],
        d_head=settings["head_dim"],
        expand=_whole(settings, "expand", 2),
        n_groups=settings["n_groups"],
        width=settings["conv_kernel"],
        bias=settings.get("use_bias", False),
        conv_bias=settings.get("use_conv_bias", True),
    )
    must_be(settings, num_heads=mixer.expand * settings["hidden_size"] // mixer.d_head)
    return _of_mixers(settings, mixer, tied=False)


def _of_mixers(settings: Settings, mixer: Spec, *, tied: bool) -> TransformerConfig:
    """Return a config of layers that are this mixer alone."""
    must_be(settings, hidden_act="silu")
    norm = Norm("rms", eps=settings.get("layer_norm_epsilon", 1e-5))
    layer = Layer(mixer, NoFFN(), norm=norm, parallel=True, one_norm=True)
    return TransformerConfig(
        settings["vocab_size"],
        settings["hidden_size"],
        decoder=[layer] * settings["num_hidden_layers"],
        embedding=Tokens(),
        head=NextToken(tie_embeddings=settings.get("tie_word_embeddings", tied)),
        init="gpt2",
    )


def _whole(settings: Settings, name: str, usual: int) -> object:
    """Return an entry that may be written as 2.0 where 2 is meant."""
    found = settings.get(name, usual)
    return int(found) if isinstance(found, float) and found.is_integer() else found


def jamba(settings: Settings, weights: Mapping[str, Tensor] | None) -> TransformerConfig:
    """Read the ``config.json`` of a Jamba: an attention now and then, between them Mamba.

    Each has a feed-forward part, a mixture of experts in some layers. Nothing knows a position but
    the order in which Mamba reads. Errors are those of :func:`mamba`.

    Source: [lieber2024jamba]
    Explained in: chapters/09_hybrids, section "A hybrid is a list".
    """
    must_be(settings, hidden_act="silu", sliding_window=None, mamba_inner_layernorms=True)
    d_model, n_heads = settings["hidden_size"], settings["num_attention_heads"]
    n_kv_heads, d_head = settings.get("num_key_value_heads"), settings.get("head_dim")
    norm = Norm("rms", eps=settings.get("rms_norm_eps", 1e-6))
    attention = Attention(
        n_heads,
        n_kv_heads=None if n_kv_heads == n_heads else n_kv_heads,
        d_head=None if d_head == d_model // n_heads else d_head,
        bias=False,
    )
    rank = settings.get("mamba_dt_rank", "auto")
    between = Mamba(
        settings["mamba_d_state"],
        expand=_whole(settings, "mamba_expand", 2),
        width=settings["mamba_d_conv"],
        rank=None if rank in ("auto", -(-d_model // 16)) else rank,
        bias=settings.get("mamba_proj_bias", False),
        conv_bias=settings.get("mamba_conv_bias", True),
        inner_norm=norm,
    )
    ffn = FFN(settings["intermediate_size"], GATED[activation(settings, "hidden_act")], bias=False)
    several = settings.get("num_experts", 1) > 1
    experts = _experts(settings, ffn, router="softmax") if several else ffn
    layers = [
        Layer(mixer, own, norm=norm)
        for mixer, own in zip(
            _now_and_then(settings, "attn_layer", attention, between),
            _now_and_then(settings, "expert_layer", experts, ffn),
            strict=True,
        )
    ]
    return TransformerConfig(
        settings["vocab_size"],
        d_model,
        decoder=layers,
        embedding=Tokens(),
        head=NextToken(tie_embeddings=settings.get("tie_word_embeddings", False)),
        max_len=settings["max_position_embeddings"],
        init="gpt2",
    )


def _now_and_then(settings: Settings, what: str, part: Spec, other: Spec) -> list[Spec]:
    """Return a part for each layer: one in each period, the other one in the rest."""
    period, offset = settings[f"{what}_period"], settings[f"{what}_offset"]
    if not 0 <= offset < period:
        raise ValueError(
            f"{what}_offset must be from 0 to below {what}_period = {period}, got {offset}"
        )
    layers = range(settings["num_hidden_layers"])
    return [part if i % period == offset else other for i in layers]
