"""Well-known models as configs, and what was printed about their sizes.

A preset is a :class:`tfbook.models.TransformerConfig`; nothing else in this package knows the name
of a model. What a paper says about the number of parameters is kept apart, in :data:`PUBLISHED`,
and compared with what the config counts; where the two differ, a remark says why.

Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tfbook._checks import check_choice
from tfbook.models.config import TransformerConfig
from tfbook.models.ends import Classes, NextToken, Patches, Tokens
from tfbook.models.layers import FFN, Attention, Layer, Norm
from tfbook.models.placements import Learned, Rotary, Sinusoidal, T5Buckets

__all__ = ["PRESETS", "PUBLISHED", "Published", "preset"]


def _vaswani(d_model: int, layer: Layer, dropout: float) -> TransformerConfig:
    layer = replace(layer, place="post", dropout=dropout)
    embedding = Tokens(Sinusoidal(), scale="sqrt(d_model)", dropout=dropout)
    encoder, decoder = [layer] * 6, [layer.with_cross()] * 6
    return TransformerConfig(37000, d_model, encoder=encoder, decoder=decoder, embedding=embedding)


def _bert(d_model: int, n_layers: int, n_heads: int, d_ff: int) -> TransformerConfig:
    norm = Norm(eps=1e-12)
    layer = Layer(
        Attention(n_heads, dropout=0.1), FFN(d_ff, "gelu"), norm=norm, place="post", dropout=0.1
    )
    return TransformerConfig(
        30522,
        d_model,
        encoder=[layer] * n_layers,
        embedding=Tokens(Learned(), n_segments=2, norm=norm, dropout=0.1),
        pooler=True,
        max_len=512,
        init="bert",
    )


def _gpt2(d_model: int, n_layers: int, n_heads: int) -> TransformerConfig:
    layer = Layer(Attention(n_heads, dropout=0.1), FFN(4 * d_model, "gelu_tanh"), dropout=0.1)
    return TransformerConfig(
        50257,
        d_model,
        decoder=[layer] * n_layers,
        embedding=Tokens(Learned(), dropout=0.1),
        max_len=1024,
        init="gpt2",
    )


def _t5(d_model: int, n_layers: int, n_heads: int, d_ff: int) -> TransformerConfig:
    layer = Layer(
        Attention(n_heads, position=T5Buckets(32, max_distance=128), bias=False, dropout=0.1),
        FFN(d_ff, bias=False, dropout=0.1),
        norm=Norm("rms", eps=1e-6),
        dropout=0.1,
    )
    return TransformerConfig(
        32128,
        d_model,
        encoder=[layer] * n_layers,
        decoder=[layer.with_cross()] * n_layers,
        embedding=Tokens(dropout=0.1),
        head=NextToken(scale=d_model**-0.5),
        init="t5",
    )


def _llama(attention: Attention, d_ff: int, norm: Norm) -> Layer:
    return Layer(replace(attention, bias=False), FFN(d_ff, "swiglu", bias=False), norm=norm)


PRESETS: Mapping[str, TransformerConfig] = {
    "transformer-base": _vaswani(512, Layer(Attention(8), FFN(2048)), dropout=0.1),
    "transformer-big": _vaswani(1024, Layer(Attention(16), FFN(4096)), dropout=0.3),
    "bert-base": _bert(768, n_layers=12, n_heads=12, d_ff=3072),
    "bert-large": _bert(1024, n_layers=24, n_heads=16, d_ff=4096),
    "gpt": _gpt2(768, n_layers=12, n_heads=12).replace(
        vocab_size=40478, max_len=512, place="post", init="bert"
    ),
    "gpt2": _gpt2(768, n_layers=12, n_heads=12),
    "gpt2-medium": _gpt2(1024, n_layers=24, n_heads=16),
    "gpt2-large": _gpt2(1280, n_layers=36, n_heads=20),
    "gpt2-xl": _gpt2(1600, n_layers=48, n_heads=25),
    "gpt3-175b": _gpt2(12288, n_layers=96, n_heads=96).replace(
        max_len=2048, dropout=0.0, attention_dropout=0.0
    ),
    "t5-small": _t5(512, n_layers=6, n_heads=8, d_ff=2048),
    "t5-base": _t5(768, n_layers=12, n_heads=12, d_ff=3072),
    "vit-b-16": TransformerConfig(
        None,
        768,
        encoder=[Layer(Attention(12), FFN(3072, "gelu"), norm=Norm(eps=1e-6))] * 12,
        embedding=Patches(image_size=224, patch_size=16, position=Learned()),
        head=Classes(1000),
        init="bert",
    ),
    "llama-7b": TransformerConfig(
        32000,
        4096,
        decoder=[_llama(Attention(32, position=Rotary()), 11008, Norm("rms", eps=1e-6))] * 32,
        head=NextToken(tie_embeddings=False),
        max_len=2048,
        init="gpt2",
    ),
    "smollm2-135m": TransformerConfig(
        49152,
        576,
        decoder=[_llama(Attention(9, n_kv_heads=3, position=Rotary(100000.0)), 1536, Norm("rms"))]
        * 30,
        max_len=8192,
        init="gpt2",
    ),
    "minilm-l6": _bert(384, n_layers=6, n_heads=12, d_ff=1536),
}


@dataclass(frozen=True)
class Published:
    """What was printed about the size of a model.

    Attributes:
        text: as printed.
        value: the number that it stands for.
        digits: how many digits it was printed with.
        source: key of the bibliography.
        changes: what to change in the preset to count what the source counted.
        remark: where count and print differ, why; empty where they agree.

    Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
    """

    text: str
    value: float
    digits: int
    source: str
    changes: Mapping[str, object] = field(default_factory=dict)
    remark: str = ""

    def agrees(self, count: int) -> bool:
        """Return whether a count, rounded to as many digits, is the printed number."""
        return float(f"{count:.{self.digits - 1}e}") == float(f"{self.value:.{self.digits - 1}e}")


_FIRST_COUNT = (
    "The authors' repository says that the counts of the paper were wrong; the sizes that the "
    "paper lists beside this one, {old}, give {new}."
)

PUBLISHED: Mapping[str, Published] = {
    "transformer-base": Published(
        "65M",
        65e6,
        2,
        "vaswani2017attention",
        remark="The sizes and the shared vocabulary of 37,000 that the paper lists give 63.1M; "
        "65M would need about 40,700 rows.",
    ),
    "transformer-big": Published(
        "213M",
        213e6,
        3,
        "vaswani2017attention",
        remark="The sizes and the shared vocabulary of 37,000 that the paper lists give 214.2M.",
    ),
    "bert-base": Published("110M", 110e6, 2, "devlin2019bert"),
    "bert-large": Published("340M", 340e6, 2, "devlin2019bert"),
    # The GPT-2 paper says it of its smallest model, "equivalent to the original GPT".
    "gpt": Published("117M", 117e6, 3, "radford2019language"),
    "gpt2": Published(
        "117M",
        117e6,
        3,
        "radford2019language",
        remark=_FIRST_COUNT.format(old="117M", new="124.4M"),
    ),
    "gpt2-medium": Published(
        "345M",
        345e6,
        3,
        "radford2019language",
        remark=_FIRST_COUNT.format(old="345M", new="354.8M"),
    ),
    "gpt2-large": Published(
        "762M",
        762e6,
        3,
        "radford2019language",
        remark=_FIRST_COUNT.format(old="762M", new="774.0M"),
    ),
    "gpt2-xl": Published(
        "1542M",
        1542e6,
        4,
        "radford2019language",
        remark=_FIRST_COUNT.format(old="1542M", new="1557.6M")
        + " That rounds to 1.6B; the 1.5B of the text is cut off.",
    ),
    "gpt3-175b": Published("175B", 175e9, 3, "brown2020language"),
    # The paper has 32,000 word pieces; the released tables have 32,128 rows.
    "t5-small": Published(
        "60M",
        60e6,
        2,
        "raffel2020exploring",
        changes={"vocab_size": 32000},
    ),
    "t5-base": Published("220M", 220e6, 2, "raffel2020exploring", changes={"vocab_size": 32000}),
    # The paper's table leaves out the head.
    "vit-b-16": Published(
        "86M",
        86e6,
        2,
        "dosovitskiy2021image",
        changes={"head": None},
    ),
    "llama-7b": Published("6.7B", 6.7e9, 2, "touvron2023llama"),
    "smollm2-135m": Published("135M", 135e6, 3, "allal2025smollm2"),
    # The number stands on the page of all-MiniLM-L6-v2, by the makers of Sentence-BERT.
    "minilm-l6": Published("22.7M", 22.7e6, 3, "reimers2019sentence"),
}


def preset(name: str, **changes: object) -> TransformerConfig:
    """Return the config of a well-known model, with changes if wanted.

    Args:
        name: a name out of :data:`PRESETS`.
        changes: choices that are to be other ones, such as ``n_layers=2``, by the names of
            :meth:`tfbook.models.TransformerConfig.replace`.

    Raises:
        TypeError: for a name that no part has, or a value of a wrong type.
        ValueError: for an unknown name, or choices that do not go together.

    Example:
        >>> preset("gpt2").count_parameters()
        124439808

    Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
    """
    check_choice("name", name, PRESETS)
    return PRESETS[name].replace(**changes)
