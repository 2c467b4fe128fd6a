"""How `transformers` writes down families of models: their names for our parts, and their choices.

For each family a table of names, ours on the left, and a function that reads its ``config.json``
as one of our configs. :mod:`tfbook.pretrained.conversion` uses them.

* Encoders: BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ViT; with a decoder: T5.
* Decoders of one kind of layer: GPT-2, GPT-NeoX, LLaMA, Mistral, Qwen 2 and 3, Gemma, OLMo 2,
  Granite, Cohere, StableLM, StarCoder 2, Phi; with windows in some layers: Gemma 2 and 3.
* With experts: Mixtral, OLMoE, Qwen 3 MoE; with experts, windows and sinks: GPT-OSS.
* Without attention: Mamba, Mamba-2; a hybrid of Mamba, attention and experts: Jamba.

Explained in: chapters/05_architecture_deeper, section "Two real models".
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from tfbook.models import (
    FFN,
    Attention,
    Classes,
    Layer,
    Learned,
    MaskedToken,
    NextToken,
    Norm,
    Patches,
    T5Buckets,
    Tokens,
    TransformerConfig,
)
from tfbook.pretrained.decoders import (
    GATED,
    MODERN,
    Settings,
    activation,
    modern,
    must_be,
)
from tfbook.pretrained.mixed import SPARSE, experts_apart, experts_together, jamba, mamba, mamba2
from tfbook.pretrained.part_names import (
    BERT,
    DISTILBERT,
    GEMMA2,
    GEMMA3,
    GPT2,
    GPT_OSS,
    JAMBA,
    JAMBA_MIXERS,
    LLAMA,
    MAMBA,
    MAMBA2,
    MIXTRAL,
    NEOX,
    OLMO2,
    OLMOE,
    PHI,
    QWEN3,
    QWEN3_MOE,
    ROBERTA,
    STARCODER2,
    T5,
    VIT,
)

__all__ = ["FAMILIES", "Family"]


def _as_they_are(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return tensors


class Family(NamedTuple):
    """How `transformers` writes down one family of models.

    Attributes:
        names: our name of each part and theirs, ``{i}`` being the number of a block.
        prefix: what stands before their names where a model has a head.
        heads: how their names of heads begin, which have no prefix.
        copies: a second name under which a tied weight may be stored, and the first one.
        ignored: names that hold nothing to learn, or a head that is not known here.
        config: makes a config of a ``config.json`` and the tensors' names.
        packed: the word in the name of a matrix that holds queries, keys and values; None where
            none does.
        by_head: whether that holds them head by head, and not one after the other.
        transposed: whether matrices are stored as their transposes.
        reshaped: whether tensors have dimensions that ours do not have.
        layout: of their rotary pairs.
        centred: whether weights of norms are stored less 1.
        first_place: the row of the table of positions that is the first one's.
        older: names that tensors had in older files, and those of today.
        mixers: other names in a layer whose mixer has a description of this word, as "mamba".
        apart: gives what several experts have in one tensor to each of them.
        together: undoes that.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """

    names: Mapping[str, str]
    prefix: str
    heads: tuple[str, ...]
    copies: Mapping[str, str]
    ignored: str
    config: Callable[[Settings, Mapping[str, Tensor] | None], TransformerConfig]
    packed: str | None = None
    by_head: bool = False
    transposed: bool = False
    reshaped: bool = False
    layout: str = "half"
    centred: bool = False
    first_place: int = 0
    older: Mapping[str, str] = {}  # noqa: RUF012 - never changed
    mixers: Mapping[str, Mapping[str, str]] = {}  # noqa: RUF012 - never changed
    apart: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = _as_they_are
    together: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = _as_they_are


def _has(settings: Settings, weights: Collection[str] | None, part: str, *classes: str) -> bool:
    """Return whether a part is there: by the tensors' names, or without them by the class."""
    if weights is None:
        return bool(set(settings.get("architectures") or ()) & set(classes))
    return any(part in name for name in weights)


def _bert(settings, weights):
    must_be(
        settings,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    masked = _has(settings, weights, "cls.predictions", "BertForMaskedLM", "BertForPreTraining")
    kind, norm = activation(settings, "hidden_act"), Norm(eps=settings.get("layer_norm_eps", 1e-12))
    attention = Attention(settings["num_attention_heads"])
    layer = Layer(attention, FFN(settings["intermediate_size"], kind), norm=norm, place="post")
    return TransformerConfig(
        settings["vocab_size"],
        settings["hidden_size"],
        encoder=[layer] * settings["num_hidden_layers"],
        embedding=Tokens(Learned(), n_segments=settings.get("type_vocab_size", 2), norm=norm),
        head=MaskedToken(kind, norm=norm) if masked else None,
        pooler=_has(settings, weights, "pooler.dense", "BertModel", "BertForPreTraining"),
        max_len=settings["max_position_embeddings"],
        init="bert",
    )


def _roberta(settings, weights):
    """Read RoBERTa's: BERT but for the head, and for positions that begin behind the padding's."""
    must_be(settings, pad_token_id=1)
    config = _bert(settings, weights)
    masked = _has(settings, weights, "lm_head", "RobertaForMaskedLM", "XLMRobertaForMaskedLM")
    return config.replace(
        head=MaskedToken("gelu", norm=config.encoder[0].norm) if masked else None,
        pooler=_has(settings, weights, "pooler.dense", "RobertaModel", "XLMRobertaModel"),
        max_len=config.max_len - 2,
    )


def _distilbert(settings, weights):
    must_be(settings, tie_word_embeddings=True)
    masked = _has(settings, weights, "vocab_transform", "DistilBertForMaskedLM")
    kind, norm = activation(settings, "activation"), Norm(eps=1e-12)
    ffn = FFN(settings["hidden_dim"], kind)
    return TransformerConfig(
        settings["vocab_size"],
        settings["dim"],
        encoder=[Layer(Attention(settings["n_heads"]), ffn, norm=norm, place="post")]
        * settings["n_layers"],
        embedding=Tokens(Learned(), norm=norm),
        head=MaskedToken(kind, norm=norm) if masked else None,
        max_len=settings["max_position_embeddings"],
        init="bert",
    )


def _vit(settings, weights):
    must_be(settings, pooler_act="tanh", pooler_output_size=settings["hidden_size"])
    classes = None
    if weights is not None and "classifier.weight" in weights:
        classes = len(weights["classifier.weight"])
    elif "ViTForImageClassification" in (settings.get("architectures") or ()):
        classes = len(settings.get("id2label") or (0, 1))
    bias = True if settings.get("qkv_bias", True) else ("out",)
    sizes = (settings["image_size"], settings["patch_size"], settings.get("num_channels", 3))
    layer = Layer(
        Attention(settings["num_attention_heads"], bias=bias),
        FFN(settings["intermediate_size"], activation(settings, "hidden_act")),
        norm=Norm(eps=settings.get("layer_norm_eps", 1e-12)),
    )
    return TransformerConfig(
        None,
        settings["hidden_size"],
        encoder=[layer] * settings["num_hidden_layers"],
        embedding=Patches(*sizes, position=Learned()),
        head=None if classes is None else Classes(classes),
        pooler=_has(settings, weights, "pooler.dense", "ViTModel"),
        init="bert",
    )


def _gpt2(settings, weights):
    must_be(
        settings,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    layer = Layer(
        Attention(settings["n_head"]),
        FFN(
            settings.get("n_inner") or 4 * settings["n_embd"],
            activation(settings, "activation_function"),
        ),
        norm=Norm(eps=settings.get("layer_norm_epsilon", 1e-5)),
    )
    return TransformerConfig(
        settings["vocab_size"],
        settings["n_embd"],
        decoder=[layer] * settings["n_layer"],
        embedding=Tokens(Learned()),
        head=NextToken(tie_embeddings=settings.get("tie_word_embeddings", True)),
        max_len=settings["n_positions"],
        init="gpt2",
    )


def _t5(settings, weights):
    act = settings.get("feed_forward_proj", "relu")
    gated, plain = act.startswith("gated-"), act.removeprefix("gated-")
    # "gated-gelu" has always meant the approximation there.
    plain = "gelu_tanh" if act == "gated-gelu" else activation({"act": plain}, "act")
    # Whether the head is the embedding is seen from the weights; whether the decoder's output is
    # scaled is what the entry meant in 2020, under another name since.
    scaled = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))
    tied = scaled
    if weights is not None:
        own = weights.get("lm_head.weight")
        tied = own is None or torch.equal(own, weights["shared.weight"])
    buckets = T5Buckets(
        settings["relative_attention_num_buckets"],
        settings.get("relative_attention_max_distance", 128),
    )
    heads = {"d_head": settings["d_kv"], "position": buckets, "bias": False}
    layer = Layer(
        Attention(settings["num_heads"], **heads),
        FFN(settings["d_ff"], GATED[plain] if gated else plain, bias=False),
        norm=Norm("rms", eps=settings.get("layer_norm_epsilon", 1e-6)),
    )
    n_decoder_layers = settings.get("num_decoder_layers") or settings["num_layers"]
    return TransformerConfig(
        settings["vocab_size"],
        settings["d_model"],
        encoder=[layer] * settings["num_layers"],
        decoder=[layer.with_cross()] * n_decoder_layers,
        head=NextToken(tie_embeddings=tied, scale=settings["d_model"] ** -0.5 if scaled else None),
        init="t5",
    )


BERT_COPIES = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
ROBERTA_COPIES = {
    "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
DISTILBERT_COPIES = {"vocab_projector.weight": "embeddings.word_embeddings.weight"}
SHARED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
MAMBA_COPIES = {"lm_head.weight": "embeddings.weight"}
TIED = {"lm_head.weight": "embed_tokens.weight"}
TABLES = r"rotary_emb\.inv_freq$|\.attention\.(masked_)?bias$"
POSITION_IDS = r"\.position_ids$"


def _modern(name: str, names: Mapping[str, str] = LLAMA, **more: object) -> Family:
    """Return a family of decoders that differs from LLaMA as ``MODERN`` says."""

    def config(settings, weights):
        return modern(settings, (MODERN | SPARSE)[name])

    usual = {"prefix": "model.", "heads": ("lm_head",), "copies": TIED, "ignored": TABLES}
    return Family(names, config=config, **usual | more)


ROBERTA_FAMILY = Family(
    ROBERTA, "roberta.", ("lm_head",), ROBERTA_COPIES, POSITION_IDS, _roberta, first_place=2
)
FAMILIES = {
    "bert": Family(
        BERT, "bert.", ("cls",), BERT_COPIES, r"\.position_ids$|^cls\.seq_relationship\.", _bert
    ),
    "roberta": ROBERTA_FAMILY,
    "xlm-roberta": ROBERTA_FAMILY,
    "distilbert": Family(
        DISTILBERT, "distilbert.", ("vocab_",), DISTILBERT_COPIES, POSITION_IDS, _distilbert
    ),
    "vit": Family(VIT, "vit.", ("classifier",), {}, r"$^", _vit, reshaped=True),
    "t5": Family(T5, "", ("",), dict.fromkeys(SHARED, "shared.weight"), r"$^", _t5),
    "gpt2": Family(
        GPT2,
        "transformer.",
        ("lm_head",),
        {"lm_head.weight": "wte.weight"},
        r"\.attn\.(masked_)?bias$",
        _gpt2,
        packed="c_attn",
        transposed=True,
    ),
    "llama": _modern("llama"),
    "mistral": _modern("mistral"),
    "qwen2": _modern("qwen2"),
    "qwen3": _modern("qwen3", QWEN3),
    "gemma": _modern("gemma", centred=True),
    "gemma2": _modern("gemma2", GEMMA2, centred=True),
    "gemma3_text": _modern("gemma3_text", GEMMA3, centred=True),
    "olmo2": _modern("olmo2", OLMO2),
    "granite": _modern("granite"),
    "cohere": _modern("cohere", layout="interleaved"),
    "stablelm": _modern("stablelm"),
    "starcoder2": _modern("starcoder2", STARCODER2),
    "phi": _modern("phi", PHI),
    "gpt_neox": _modern(
        "gpt_neox",
        NEOX,
        prefix="gpt_neox.",
        copies={"lm_head.weight": "embed_in.weight"},
        older={"embed_out.weight": "lm_head.weight"},
        packed="query_key_value",
        by_head=True,
    ),
    "mixtral": _modern("mixtral", MIXTRAL),
    "olmoe": _modern("olmoe", OLMOE),
    "qwen3_moe": _modern("qwen3_moe", QWEN3_MOE),
    "gpt_oss": _modern("gpt_oss", GPT_OSS, apart=experts_apart, together=experts_together),
    "mamba": Family(MAMBA, "backbone.", ("lm_head",), MAMBA_COPIES, r"$^", mamba),
    "mamba2": Family(MAMBA2, "backbone.", ("lm_head",), MAMBA_COPIES, r"$^", mamba2),
    "jamba": Family(JAMBA, "model.", ("lm_head",), TIED, r"$^", jamba, mixers=JAMBA_MIXERS),
}
