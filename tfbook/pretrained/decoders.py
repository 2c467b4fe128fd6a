"""The decoders since LLaMA, each as what it has otherwise: one entry a family.

Where a ``config.json`` asks for something that the parts cannot do, the error names the entry.

Explained in: chapters/05_architecture_deeper, section "Two real models".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tfbook.models import (
    FFN,
    Attention,
    Layer,
    NextToken,
    Norm,
    Rotary,
    Spec,
    Tokens,
    TransformerConfig,
)
from tfbook.positions import LinearScaling, Llama3Scaling, RotaryScaling, YarnScaling

__all__ = ["MODERN", "Modern"]

Settings = Mapping[str, object]
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
GATED = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
ROPE_TYPES = ("default", "linear", "yarn", "llama3")
LAYER_TYPES = ("full_attention", "sliding_attention")


def must_be(settings: Settings, **wanted: object) -> None:
    """Raise ValueError where an entry, if it is there, says something else."""
    for name, value in wanted.items():
        if (settings.get(name, value) or None) != (value or None):  # none is as good as False
            raise ValueError(
                f"config.json has {name} = {settings[name]!r}; here it must be {value!r}"
            )


def activation(settings: Settings, name: str) -> str:
    """Return our name of an activation.

    Raises:
        ValueError: if there is none of that name.
    """
    if settings[name] not in ACTIVATIONS:
        raise ValueError(f"{name} must be one of {', '.join(ACTIVATIONS)}, got {settings[name]!r}")
    return ACTIVATIONS[settings[name]]


def _no(settings: Settings) -> object:
    return False


def _none(settings: Settings) -> object:
    return None


def in_turns(settings: Settings, i: int) -> bool:
    """Return whether a layer is the second, the fourth, and so on."""
    return i % 2 == 1


def _first_ones(settings: Settings, i: int) -> bool:
    return i < settings.get("max_window_layers", 28)


def _last_of_some(settings: Settings, i: int) -> bool:
    return (i + 1) % settings.get("sliding_window_pattern", 6) == 0


def _two_bases(settings: Settings, kind: str) -> Settings:
    """Return Gemma 3's settings as those of a layer's kind: where it sees all, it turns slower."""
    found = (settings.get("rope_parameters") or {}).get(kind)
    if found is None and kind == "full_attention":
        found = {"rope_theta": settings.get("rope_theta", 1e6)}
        found |= settings.get("rope_scaling") or {}
    elif found is None:
        found = {"rope_theta": settings.get("rope_local_base_freq", 1e4)}
    return {**settings, "rope_parameters": found}


def _alike(settings: Settings, ffn: FFN) -> Sequence[Spec]:
    return [ffn] * settings["num_hidden_layers"]


class Modern(NamedTuple):
    """What a family of decoders has otherwise than LLaMA; functions are asked of its settings.

    Attributes:
        norm, norm_bias, eps: the norms, and the entry that holds ε.
        act, gated: the entry of the activation, and whether the feed-forward network has a gate.
        bias, ffn_bias, head_bias: what has biases.
        place: of the norms.
        parallel, one_norm: whether mixer and feed-forward part stand side by side.
        qk_norm, qk_norm_whole: whether queries and keys are normalised, and over all heads.
        scale: factor on q kᵀ.
        embedding_scale, head_scale, multiplier: factors on embeddings, last states and sublayers.
        window: whether ``sliding_window`` is in use.
        sees_all: whether a layer, by its number, has no window, where the file does not list them.
        rope: the settings of rotary positions of a layer's kind.
        base: of rotary positions where the file does not say.
        tied: whether the head is the embedding where the file does not say.
        share: the share of each head that is rotated where the file does not say.
        n_sinks: how many learned sinks each head has.
        ffns: the feed-forward part of each layer, made of the settings and of what it is in LLaMA.
        fixed: entries that must have a value, since another one asks for what is not known here.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """

    norm: str = "rms"
    norm_bias: bool = True
    eps: str = "rms_norm_eps"
    act: str = "hidden_act"
    gated: bool = True
    bias: Callable[[Settings], object] = lambda s: s.get("attention_bias", False)
    ffn_bias: Callable[[Settings], object] = lambda s: s.get("mlp_bias", False)
    head_bias: bool = False
    place: str = "pre"
    parallel: Callable[[Settings], object] = _no
    one_norm: bool = False
    qk_norm: Callable[[Settings], object] = _no
    qk_norm_whole: bool = False
    scale: Callable[[Settings], object] = _none
    embedding_scale: Callable[[Settings], object] = _none
    head_scale: Callable[[Settings], object] = _none
    multiplier: Callable[[Settings], object] = lambda s: 1.0
    window: Callable[[Settings], object] = _no
    sees_all: Callable[[Settings, int], bool] = lambda s, i: False
    rope: Callable[[Settings, str], Settings] = lambda s, kind: s
    base: float = 10000.0
    tied: bool = False
    share: float = 1.0
    n_sinks: int = 0
    ffns: Callable[[Settings, FFN], Sequence[Spec]] = _alike
    fixed: Mapping[str, object] = {}  # noqa: RUF012 - never changed


LLAMA = Modern()
LAYER_NORM = {"norm": "layer", "eps": "layer_norm_eps"}
GEMMA = {
    "embedding_scale": lambda s: "sqrt(d_model)",
    "tied": True,
    "fixed": {"use_bidirectional_attention": None},
}
CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
MODERN = {
    "llama": LLAMA,
    "mistral": LLAMA._replace(window=lambda s: True),
    "qwen2": LLAMA._replace(
        bias=lambda s: ("q", "k", "v"),
        window=lambda s: s.get("use_sliding_window", False),
        sees_all=_first_ones,
    ),
    "qwen3": LLAMA._replace(
        qk_norm=lambda s: True,
        window=lambda s: s.get("use_sliding_window", False),
        sees_all=_first_ones,
    ),
    "gemma": LLAMA._replace(**GEMMA),
    "gemma2": LLAMA._replace(
        **GEMMA | {"fixed": CAPS},
        act="hidden_activation",
        place="both",
        scale=lambda s: s["query_pre_attn_scalar"] ** -0.5,
        window=lambda s: True,
        sees_all=in_turns,
    ),
    "gemma3_text": LLAMA._replace(
        **GEMMA | {"fixed": GEMMA["fixed"] | CAPS},
        act="hidden_activation",
        place="both",
        qk_norm=lambda s: True,
        scale=lambda s: s["query_pre_attn_scalar"] ** -0.5,
        window=lambda s: True,
        sees_all=_last_of_some,
        rope=_two_bases,
    ),
    "olmo2": LLAMA._replace(place="inside", qk_norm=lambda s: True, qk_norm_whole=True),
    "granite": LLAMA._replace(
        scale=lambda s: s["attention_multiplier"],
        embedding_scale=lambda s: s["embedding_multiplier"],
        multiplier=lambda s: s["residual_multiplier"],
        head_scale=lambda s: 1 / s["logits_scaling"],
    ),
    "cohere": LLAMA._replace(
        **LAYER_NORM,
        norm_bias=False,
        parallel=lambda s: True,
        one_norm=True,
        head_scale=lambda s: s["logit_scale"],
        base=5e5,
        tied=True,
        fixed={"use_qk_norm": False},  # it has weights for each head
    ),
    "stablelm": LLAMA._replace(
        **LAYER_NORM,
        bias=lambda s: ("q", "k", "v") if s.get("use_qkv_bias", False) else False,
        parallel=lambda s: s.get("use_parallel_residual", False),
        one_norm=True,
        share=0.25,
        fixed={"qk_layernorm": False},  # it has weights for each head
    ),
    "starcoder2": LLAMA._replace(
        norm="layer",
        eps="norm_epsilon",
        gated=False,
        bias=lambda s: s.get("use_bias", True),
        ffn_bias=lambda s: s.get("use_bias", True),
        window=lambda s: True,
        tied=True,
    ),
    "phi": LLAMA._replace(
        **LAYER_NORM,
        gated=False,
        bias=lambda s: True,
        ffn_bias=lambda s: True,
        head_bias=True,
        parallel=lambda s: True,
        one_norm=True,
        qk_norm=lambda s: s.get("qk_layernorm", False),
        share=0.5,
    ),
    "gpt_neox": LLAMA._replace(
        **LAYER_NORM,
        gated=False,
        bias=lambda s: s.get("attention_bias", True),
        ffn_bias=lambda s: True,
        parallel=lambda s: s.get("use_parallel_residual", True),
        share=0.25,
    ),
}


def modern(settings: Settings, family: Modern) -> TransformerConfig:
    """Read the ``config.json`` of a decoder as one of our configs.

    Raises:
        KeyError: for a missing entry.
        ValueError: for a choice that is not known here.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """
    must_be(settings, **family.fixed)
    n_heads, n_kv_heads = settings["num_attention_heads"], settings.get("num_key_value_heads")
    d_head, d_model = settings.get("head_dim"), settings["hidden_size"]
    norm = Norm(family.norm, eps=settings.get(family.eps, 1e-6), bias=family.norm_bias)
    kind, parallel = activation(settings, family.act), bool(family.parallel(settings))
    attention = {
        "n_kv_heads": None if n_kv_heads == n_heads else n_kv_heads,
        "d_head": None if d_head == d_model // n_heads else d_head,
        "bias": family.bias(settings),
        "scale": family.scale(settings),
        "qk_norm": norm if family.qk_norm(settings) else None,
        "qk_norm_whole": family.qk_norm_whole,
        "n_sinks": family.n_sinks,
    }
    ffn = FFN(
        settings["intermediate_size"],
        GATED[kind] if family.gated else kind,
        bias=bool(family.ffn_bias(settings)),
    )
    layers = [
        Layer(
            Attention(
                n_heads,
                window=window,
                position=_rotary(family.rope(settings, LAYER_TYPES[window is not None]), family),
                **attention,
            ),
            own,
            norm=norm,
            place=family.place,
            parallel=parallel,
            one_norm=family.one_norm and parallel,
            multiplier=family.multiplier(settings),
        )
        for window, own in zip(_windows(settings, family), family.ffns(settings, ffn), strict=True)
    ]
    scale = family.embedding_scale(settings)
    tied = settings.get("tie_word_embeddings", family.tied)
    factor = family.head_scale(settings)
    return TransformerConfig(
        settings["vocab_size"],
        d_model,
        decoder=layers,
        embedding=Tokens(scale=None if scale == 1 else scale),
        head=NextToken(
            tie_embeddings=tied, scale=None if factor == 1 else factor, bias=family.head_bias
        ),  # fmt: skip
        max_len=settings["max_position_embeddings"],
        init="gpt2",
    )


def _windows(settings: Settings, family: Modern) -> list[int | None]:
    """Return for each layer how far back it sees, None for as far as there is."""
    n_layers, window = settings["num_hidden_layers"], settings.get("sliding_window")
    if not family.window(settings) or window is None:
        return [None] * n_layers
    kinds = settings.get("layer_types")
    kinds = kinds or [LAYER_TYPES[not family.sees_all(settings, i)] for i in range(n_layers)]
    if len(kinds) != n_layers:
        raise ValueError(f"layer_types must name {n_layers} layers, got {len(kinds)}")
    for kind in kinds:
        if kind not in LAYER_TYPES:
            raise ValueError(f"layer_types must be out of {', '.join(LAYER_TYPES)}, got {kind!r}")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _rotary(settings: Settings, family: Modern) -> Rotary:
    """Return rotary positions, from where different years wrote them."""
    entry = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    base = entry.get("rope_theta", settings.get("rope_theta", settings.get("rotary_emb_base")))
    share = settings.get("partial_rotary_factor", settings.get("rotary_pct", family.share))
    share = entry.get("partial_rotary_factor", share)
    kind = entry.get("rope_type", entry.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ValueError(f"rope_type must be one of {', '.join(ROPE_TYPES)}, got {kind!r}")
    # Turning pairs that lie side by side is faster.
    scaling = _scaling(kind, entry, settings)
    base = family.base if base is None else float(base)
    return Rotary(base, layout="interleaved", scaling=scaling, share=float(share))


def _scaling(kind: str, entry: Settings, settings: Settings) -> RotaryScaling | None:
    """Return how the angles are stretched."""
    if kind == "default":
        return None
    factor = float(entry["factor"])
    if kind == "linear":
        return LinearScaling(factor)
    known = entry.get("original_max_position_embeddings") or settings["max_position_embeddings"]
    if kind == "llama3":
        return Llama3Scaling(factor, known, entry["high_freq_factor"], entry["low_freq_factor"])
    must_be(entry, mscale=None, mscale_all_dim=None)
    turns = entry.get("beta_fast") or 32.0, entry.get("beta_slow") or 1.0
    whole = entry.get("truncate", True)
    scaling = YarnScaling(factor, known, float(turns[0]), float(turns[1]), truncate=whole)
    amplitude = entry.get("attention_factor") or scaling.amplitude
    if abs(amplitude - scaling.amplitude) > 1e-6:
        raise ValueError(
            f"attention_factor must be 0.1 ln(factor) + 1 = {scaling.amplitude:.4f}, "
            f"got {amplitude}"
        )
    return scaling
