"""Well-known models as configs, and what was printed about their sizes.

A preset is a :class:`tfbook.models.TransformerConfig`; nothing else in this package knows the name
of a model. What a paper says about the number of parameters is kept apart, in :data:`PUBLISHED`,
and compared with what the config counts; where the two differ, a remark says why.

Explained in: chapters/05_architecture, section "What the sizes add up to".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfbook.models.config import Patches, TransformerConfig

__all__ = ["PRESETS", "PUBLISHED", "Published", "preset"]

# The choices that the sizes of a family share.

_VASWANI = {
    "kind": "encoder-decoder",
    "norm_place": "post",
    "scale_embeddings": True,
    "init": "xavier",
}
_BERT = {
    "kind": "encoder",
    "max_len": 512,
    "norm_place": "post",
    "norm_eps": 1e-12,
    "embedding_norm": True,
    "ffn": "gelu",
    "position": "learned",
    "n_segments": 2,
    "pooler": True,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "init": "bert",
}
_GPT2 = {
    "max_len": 1024,
    "ffn": "gelu_tanh",
    "position": "learned",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "init": "gpt2",
}
_T5 = {
    "kind": "encoder-decoder",
    "norm": "rms",
    "norm_eps": 1e-6,
    "attention_bias": False,
    "ffn_bias": False,
    "position": "t5",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "ffn_dropout": 0.1,
    "init": "t5",
}
_LLAMA = {
    "norm": "rms",
    "ffn": "swiglu",
    "attention_bias": False,
    "ffn_bias": False,
    "position": "rotary",
    "init": "gpt2",
}

PRESETS: Mapping[str, TransformerConfig] = {
    "transformer-base": TransformerConfig(37000, 512, 6, 8, 2048, dropout=0.1, **_VASWANI),
    "transformer-big": TransformerConfig(37000, 1024, 6, 16, 4096, dropout=0.3, **_VASWANI),
    "bert-base": TransformerConfig(30522, 768, 12, 12, 3072, **_BERT),
    "bert-large": TransformerConfig(30522, 1024, 24, 16, 4096, **_BERT),
    "gpt": TransformerConfig(
        40478, 768, 12, 12, 3072, **_GPT2 | {"max_len": 512, "norm_place": "post", "init": "bert"}
    ),
    "gpt2": TransformerConfig(50257, 768, 12, 12, 3072, **_GPT2),
    "gpt2-medium": TransformerConfig(50257, 1024, 24, 16, 4096, **_GPT2),
    "gpt2-large": TransformerConfig(50257, 1280, 36, 20, 5120, **_GPT2),
    "gpt2-xl": TransformerConfig(50257, 1600, 48, 25, 6400, **_GPT2),
    "gpt3-175b": TransformerConfig(
        50257,
        12288,
        96,
        96,
        49152,
        **_GPT2 | {"max_len": 2048, "dropout": 0.0, "attention_dropout": 0.0},
    ),
    "t5-small": TransformerConfig(32128, 512, 6, 8, 2048, logit_scale=512**-0.5, **_T5),
    "t5-base": TransformerConfig(32128, 768, 12, 12, 3072, logit_scale=768**-0.5, **_T5),
    "vit-b-16": TransformerConfig(
        None,
        768,
        12,
        12,
        3072,
        kind="encoder",
        norm_eps=1e-6,
        ffn="gelu",
        position="learned",
        patches=Patches(image_size=224, patch_size=16),
        head="classes",
        n_classes=1000,
        init="bert",
    ),
    "llama-7b": TransformerConfig(
        32000,
        4096,
        32,
        32,
        11008,
        max_len=2048,
        norm_eps=1e-6,
        tie_embeddings=False,
        **_LLAMA,
    ),
    "smollm2-135m": TransformerConfig(
        49152, 576, 30, 9, 1536, n_kv_heads=3, max_len=8192, rope_base=100000.0, **_LLAMA
    ),
    "minilm-l6": TransformerConfig(30522, 384, 6, 12, 1536, **_BERT),
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

    Explained in: chapters/05_architecture, section "What the sizes add up to".
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
        changes={"head": None, "n_classes": None},
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
        changes: choices that are to be other ones, such as ``n_layers=2``.

    Raises:
        TypeError: for a name that is no choice, or a value of a wrong type.
        ValueError: for an unknown name, or choices that do not go together.

    Example:
        >>> preset("gpt2").count_parameters()
        124439808

    Explained in: chapters/05_architecture, section "What the sizes add up to".
    """
    if name not in PRESETS:
        raise ValueError(f"name must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name].replace(**changes)
