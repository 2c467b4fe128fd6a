"""A model is a config: the choices that make it 2017's Transformer, BERT, GPT, T5, LLaMA or ViT.

A config is plain numbers and names. It can be counted without making anything: parameters, FLOPs
of a pass, bytes of a cache, part by part; :func:`tfbook.models.build` makes the model.

Explained in: chapters/05_architecture, section "What the sizes add up to".
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from tfbook._checks import (
    check_bool,
    check_count,
    check_even,
    check_heads,
    check_names,
    check_positive,
    check_rate,
)
from tfbook.attention import VARIANTS
from tfbook.costs import kv_cache_bytes
from tfbook.models.account import Part, walk
from tfbook.models.layers import FEED_FORWARDS, NORMS, PLACES
from tfbook.positions import (
    LAYOUTS,
    LinearScaling,
    NTKScaling,
    RotaryScaling,
    YarnScaling,
    check_base,
)

__all__ = ["Part", "Patches", "TransformerConfig"]

KINDS = ("decoder", "encoder", "encoder-decoder")
ADDED = ("sinusoidal", "learned")  # added to the embeddings
SHARED = ("rotary", "t5", "alibi")  # one part for all layers of a stack
OWN = ("shaw", "transformer-xl")  # one for each layer
POSITIONS = (*ADDED, *SHARED, *OWN, "none")
HEADS = ("lm", "mlm", "classes")
SCHEMES = ("xavier", "gpt2", "bert", "t5")
SCALINGS = {each.__name__: each for each in (LinearScaling, NTKScaling, YarnScaling)}
PROJECTIONS = ("q", "k", "v", "out")


class Patches(NamedTuple):
    """An image cut into squares, each of which becomes one token.

    Attributes:
        image_size: pixels along each side of the image.
        patch_size: pixels along each side of a patch, a divisor of it.
        n_channels: colours.

    Source: [dosovitskiy2021image]
    Explained in: chapters/05_architecture, section "What the sizes add up to".
    """

    image_size: int
    patch_size: int
    n_channels: int = 3

    @property
    def count(self) -> int:
        """Return how many patches there are."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def numbers(self) -> int:
        """Return how many numbers a patch holds."""
        return self.patch_size**2 * self.n_channels


@dataclass(frozen=True)
class TransformerConfig:
    """The choices that make a transformer, checked against one another.

    Args:
        vocab_size: V, different tokens; None for a model of images.
        d_model: size of the residual stream.
        n_layers: blocks; in an encoder-decoder those of the encoder.
        n_heads: H, attention heads of a block.
        d_ff: size of the feed-forward network's inner layer.
        kind: "decoder", "encoder" or "encoder-decoder".
        n_decoder_layers: blocks of the decoder of an encoder-decoder; n_layers when omitted.
        n_kv_heads: heads of keys and values, a divisor of H; H when omitted.
        d_head: size of a head; d_model / H when omitted.
        max_len: the longest sequence; needed for learned positions, else None for no limit.
        norm: "layer" or "rms".
        norm_place: "pre", "post" or "none".
        norm_eps: ε of the norms.
        final_norm: whether a norm stands behind the last block; with "pre" when omitted.
        embedding_norm: whether one stands behind the embeddings.
        ffn: a kind out of ``tfbook.models.FEED_FORWARDS``.
        attention_bias: whether the attention's projections have biases, or which of q, k, v, out.
        ffn_bias: whether the feed-forward network's have.
        position: "sinusoidal" or "learned", added to the embeddings; "rotary"; "t5" or "alibi",
            added to the scores; "shaw" or "transformer-xl", with weights in each layer; "none".
        rope_base: base of the rotary frequencies.
        rope_layout: "interleaved" or "half", see :func:`tfbook.positions.apply_rotary`.
        rope_scaling: None or a scaling for longer contexts, such as ``YarnScaling``.
        n_buckets: buckets of the T5 bias.
        max_distance: from which distance on T5 and Shaw tell keys apart no more.
        qk_norm: whether queries and keys are normalised, each head by itself, by ``norm``.
        attention_scale: factor on q kᵀ; when omitted 1/√d_head, and 1 with the T5 bias.
        tie_embeddings: whether the head that predicts tokens uses the embedding's weights.
        share_embeddings: whether source and target of an encoder-decoder have one embedding.
        scale_embeddings: whether embeddings are multiplied by √d_model.
        logit_scale: factor on the last hidden states before the head.
        n_segments: kinds of segments with an embedding of their own; None for none.
        head: what an encoder ends in: "mlm" (hidden tokens), "classes", or None for the hidden
            states. A model with a decoder predicts tokens, "lm".
        n_classes: for the head "classes".
        pooler: whether a tanh layer stands between the first position and the classes.
        patches: how images are cut, which makes the encoder one of images.
        dropout: rate behind each sublayer and on the embeddings.
        attention_dropout: rate on the attention weights.
        ffn_dropout: rate on the inner layer of the feed-forward network.
        window: how many keys a query of the decoder sees, see
            :class:`tfbook.attention.MultiHeadAttention`; None for all.
        attend: name of the attention function in :data:`tfbook.attention.VARIANTS`.
        init: how weights are drawn: "xavier", "gpt2", "bert" or "t5".

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a value out of range, an unknown name, or choices that do not go together.

    Example:
        >>> config = TransformerConfig(100, d_model=8, n_layers=2, n_heads=2, d_ff=32)
        >>> config.count_parameters()
        2560
        >>> config.replace(tie_embeddings=False).count_parameters() - 100 * 8
        2560

    Source: [vaswani2017attention]
    Explained in: chapters/05_architecture, section "What the sizes add up to".
    """

    vocab_size: int | None
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    _: KW_ONLY
    kind: str = "decoder"
    n_decoder_layers: int | None = None
    n_kv_heads: int | None = None
    d_head: int | None = None
    max_len: int | None = None
    norm: str = "layer"
    norm_place: str = "pre"
    norm_eps: float = 1e-5
    final_norm: bool | None = None
    embedding_norm: bool = False
    ffn: str = "relu"
    attention_bias: bool | Collection[str] = True
    ffn_bias: bool = True
    position: str = "sinusoidal"
    rope_base: float = 10000.0
    rope_layout: str = "interleaved"
    rope_scaling: RotaryScaling | None = None
    n_buckets: int = 32
    max_distance: int = 128
    qk_norm: bool = False
    attention_scale: float | None = None
    tie_embeddings: bool = True
    share_embeddings: bool = True
    scale_embeddings: bool = False
    logit_scale: float | None = None
    n_segments: int | None = None
    head: str | None = None
    n_classes: int | None = None
    pooler: bool = False
    patches: Patches | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0
    window: int | None = None
    attend: str = "sdpa"
    init: str = "xavier"

    def __post_init__(self) -> None:
        """Check the choices one by one, then against one another."""
        _check_each(self)
        _check_kind(self)
        _check_position(self)

    @property
    def heads(self) -> tuple[int, int, int]:
        """Return n_heads, n_kv_heads and d_head, none of them open."""
        n_kv_heads, d_head, _ = check_heads(
            self.d_model, self.n_heads, self.n_kv_heads, self.d_head, None
        )
        return self.n_heads, n_kv_heads, d_head

    @property
    def biased(self) -> frozenset[str]:
        """Return which projections of the attention have a bias."""
        return check_names("attention_bias", self.attention_bias, PROJECTIONS)

    @property
    def has_final_norm(self) -> bool:
        """Return whether a norm stands behind the last block."""
        return self.norm_place == "pre" if self.final_norm is None else self.final_norm

    @property
    def output(self) -> str | None:
        """Return the name of the head."""
        return "lm" if self.head is None and self.kind != "encoder" else self.head

    @property
    def decoder_layers(self) -> int:
        """Return how many blocks the decoder has."""
        if self.kind == "encoder":
            return 0
        return self.n_layers if self.n_decoder_layers is None else self.n_decoder_layers

    @property
    def n_positions(self) -> int:
        """Return how many positions a learned table has, 0 where there is none."""
        if self.position != "learned":
            return 0
        return self.max_len if self.patches is None else self.patches.count + 1

    @property
    def norm_parameters(self) -> int:
        """Return how many parameters a norm has."""
        return self.d_model * (2 if self.norm == "layer" else 1)

    def replace(self, **changes: object) -> "TransformerConfig":
        """Return a config with other choices.

        Raises:
            TypeError: for a name that is no choice, or a value of a wrong type.
            ValueError: for choices that do not go together.
        """
        _check_known(changes, "changes")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, object]:
        """Return the choices as plain numbers, names and dictionaries, as JSON can hold them."""
        found = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        if self.patches is not None:
            found["patches"] = dict(self.patches._asdict())
        if not isinstance(self.attention_bias, bool):
            found["attention_bias"] = sorted(self.attention_bias)
        if self.rope_scaling is not None:
            kind = type(self.rope_scaling).__name__
            if kind not in SCALINGS:
                raise ValueError(f"rope_scaling must be one of {', '.join(SCALINGS)}, got {kind}")
            found["rope_scaling"] = {"kind": kind} | dataclasses.asdict(self.rope_scaling)
        return found

    @classmethod
    def from_dict(cls, choices: Mapping[str, object]) -> "TransformerConfig":
        """Make a config of what :meth:`to_dict` returned.

        Raises:
            TypeError: for a name that is no choice, a missing one, or a value of a wrong type.
            ValueError: for choices that do not go together.
        """
        _check_known(choices, "choices")
        choices = dict(choices)
        if choices.get("patches") is not None:
            choices["patches"] = Patches(**choices["patches"])
        if choices.get("rope_scaling") is not None:
            scaling = dict(choices["rope_scaling"])
            kind = scaling.pop("kind", None)
            if kind not in SCALINGS:
                raise ValueError(f"rope_scaling must be one of {', '.join(SCALINGS)}, got {kind}")
            choices["rope_scaling"] = SCALINGS[kind](**scaling)
        return cls(**choices)

    def parts(
        self,
        n: int | None = None,
        batch: int = 1,
        *,
        m: int | None = None,
        past: int = 0,
        bytes_per_number: int = 4,
    ) -> list[Part]:
        """List the parts of the model as data meets them in one forward pass.

        Causal attention is counted in full: half of its scores are thrown away, but whether they
        are computed is the attention function's affair. Embeddings are looked up, which is no
        FLOP; norms, activations and sums are left out as :mod:`tfbook.costs` leaves them out.

        Args:
            n: tokens of each sequence, for an encoder-decoder of the target; max_len when omitted,
                and for images what the patches come to.
            batch: sequences.
            m: tokens of the source of an encoder-decoder; n when omitted.
            past: tokens before these n, of which a cache holds keys and values.
            bytes_per_number: 4 for single precision, 2 for half.

        Raises:
            TypeError: if a number is not an integer.
            ValueError: for a number out of range, or an n that is missing.

        Explained in: chapters/05_architecture, section "What the sizes add up to".
        """
        n = _length(self, n)
        m = n if m is None else m
        for name, value in (("n", n), ("batch", batch), ("m", m)):
            check_count(name, value, minimum=1)
        check_count("past", past)
        check_count("bytes_per_number", bytes_per_number, minimum=1)
        if past and self.kind == "encoder":
            raise ValueError(f"past is for a model with a decoder, got past = {past}")
        return list(walk(self, n, m=m, batch=batch, past=past, bytes_per_number=bytes_per_number))

    def count_parameters(self) -> int:
        """Count the parameters of the model, shared ones once, without making it."""
        return sum(part.parameters for part in self.parts(None if self.patches else 1))

    def flops(
        self, n: int | None = None, batch: int = 1, *, m: int | None = None, past: int = 0
    ) -> int:
        """Count the FLOPs of one forward pass; arguments and errors as for :meth:`parts`."""
        return sum(part.flops for part in self.parts(n, batch, m=m, past=past))

    def kv_cache_bytes(
        self, length: int, batch: int = 1, bytes_per_number: int = 4, *, m: int = 0
    ) -> int:
        """Count the bytes of the keys and values that generation holds.

        Args:
            length: tokens of the decoder that are held.
            batch: sequences.
            bytes_per_number: 4 for single precision, 2 for half.
            m: tokens of the source, whose keys and values an encoder-decoder holds too.

        Raises:
            TypeError: if a number is not an integer.
            ValueError: for a number out of range, or an encoder, which generates nothing.

        Explained in: chapters/12_generation, section "The cache".
        """
        check_count("m", m)
        if self.kind == "encoder" or (m and self.kind != "encoder-decoder"):
            raise ValueError(f"kind {self.kind!r} holds no such keys and values (m = {m})")
        _, n_kv_heads, d_head = self.heads
        return kv_cache_bytes(
            self.decoder_layers, n_kv_heads, d_head, length + m, batch, bytes_per_number
        )

    def summary(self, n: int | None = None, batch: int = 1) -> str:
        """Return a table of the parts, equal blocks written once; arguments as for :meth:`parts`.

        The lines of a block are those of one; "× 12" says how many there are.
        """
        n = 1 if n is None and self.max_len is None and self.patches is None else n
        parts = self.parts(n, batch)
        lines = [_line("part", "shape", "parameters", "FLOPs")]
        for part, times in _fold(parts):
            name = part.name + (f"  × {times}" if times > 1 else "")
            shape = " × ".join(map(str, part.shape))
            lines.append(_line(name, shape, f"{part.parameters:,}", f"{part.flops:,}"))
        total = (sum(part.parameters for part in parts), sum(part.flops for part in parts))
        lines.append(_line("total", "", *(f"{each:,}" for each in total)))
        return "\n".join(line.rstrip() for line in lines)


def _line(name: str, shape: str, parameters: str, flops: str) -> str:
    return f"{name:<44}{shape:<22}{parameters:>16}{flops:>22}"


def _fold(parts: list[Part]) -> list[tuple[Part, int]]:
    """Keep the first of equal blocks, with their number."""
    times: dict[tuple[str, ...], int] = {}
    kept = []
    for part in parts:
        stack, _, rest = part.name.partition(".blocks.")
        number, _, rest = rest.partition(".")
        key = (stack, rest)
        times[key] = times.get(key, 0) + 1
        if number in ("", "0"):
            kept.append((part, key if number else None))
    return [(part, times[key] if key else 1) for part, key in kept]


def _length(config: TransformerConfig, n: object) -> object:
    """Return how many tokens there are, in words of the config where n is omitted."""
    if config.patches is not None:
        fixed = config.patches.count + 1
        if n not in (None, fixed):
            raise ValueError(f"n must be {fixed}, the class token and the patches, got {n}")
        return fixed
    n = config.max_len if n is None else n
    if n is None:
        raise ValueError("n is needed: the config has no max_len to take in its place")
    return n


def _check_known(choices: Mapping[str, object], name: str) -> None:
    known = {each.name for each in dataclasses.fields(TransformerConfig)}
    unknown = sorted(set(choices) - known)
    if unknown:
        raise TypeError(
            f"{name} must be fields of TransformerConfig, got {', '.join(unknown)}; "
            f"there are {', '.join(sorted(known))}"
        )


COUNTS = ("d_model", "n_layers", "n_heads", "d_ff")
OPEN_COUNTS = (
    "vocab_size n_decoder_layers n_kv_heads d_head max_len n_segments n_classes window".split()
)
CHOICES = {
    "kind": KINDS,
    "norm": tuple(NORMS),
    "norm_place": PLACES,
    "ffn": FEED_FORWARDS,
    "position": POSITIONS,
    "rope_layout": LAYOUTS,
    "head": (None, *HEADS),
    "init": SCHEMES,
}
SWITCHES = "embedding_norm ffn_bias qk_norm pooler".split()
SWITCHES += "tie_embeddings share_embeddings scale_embeddings".split()


def _check_each(config: TransformerConfig) -> None:
    """Check every choice by itself."""
    for name in COUNTS:
        check_count(name, getattr(config, name), minimum=1)
    for name in OPEN_COUNTS:
        if getattr(config, name) is not None:
            check_count(name, getattr(config, name), minimum=1)
    check_count("n_buckets", config.n_buckets, minimum=4)
    check_even("n_buckets", config.n_buckets)
    check_count("max_distance", config.max_distance, minimum=1)
    for name, known in CHOICES.items():
        value = getattr(config, name)
        if value not in known:
            names = ", ".join(map(repr, known))
            raise ValueError(f"{name} must be one of {names}, got {value!r}")
    for name in SWITCHES:
        check_bool(name, getattr(config, name))
    if config.final_norm is not None:
        check_bool("final_norm", config.final_norm)
    check_positive("norm_eps", config.norm_eps)
    for name in ("attention_scale", "logit_scale"):
        if getattr(config, name) is not None:
            check_positive(name, getattr(config, name))
    for name in ("dropout", "attention_dropout", "ffn_dropout"):
        check_rate(name, getattr(config, name))
    check_base(config.rope_base)
    known = [name for name, variant in VARIANTS.items() if not variant.parameters]
    if config.attend not in known:
        raise ValueError(f"attend must be one of {', '.join(known)}, got {config.attend!r}")
    _ = config.heads, config.biased


def _check_kind(config: TransformerConfig) -> None:
    """Check what an encoder and a decoder may have."""
    encoder = config.kind == "encoder"
    if config.head is not None and encoder == (config.head == "lm"):
        wanted = "'mlm', 'classes' or None" if encoder else "'lm' or None"
        raise ValueError(f"head must be {wanted} for kind {config.kind!r}, got {config.head!r}")
    if (config.head == "classes") != (config.n_classes is not None):
        raise ValueError(
            "head 'classes' and n_classes go together, got "
            f"head {config.head!r} and n_classes {config.n_classes}"
        )
    only = {
        "encoder": {"pooler": config.pooler, "n_segments": config.n_segments is not None},
        "encoder-decoder": {"n_decoder_layers": config.n_decoder_layers is not None},
    }
    for kind, chosen in only.items():
        for name, there in chosen.items():
            if there and config.kind != kind:
                raise ValueError(f"{name} is for kind {kind!r}, got kind {config.kind!r}")
    if encoder and config.window is not None:
        raise ValueError("window is for a model with a decoder, got kind 'encoder'")
    _check_patches(config)


def _check_patches(config: TransformerConfig) -> None:
    if config.patches is None:
        if config.vocab_size is None:
            raise ValueError("vocab_size is needed for a model of tokens, got None")
        return
    if not isinstance(config.patches, Patches):
        raise TypeError(f"patches must be Patches, got {type(config.patches).__name__}")
    for name, size in config.patches._asdict().items():
        check_count(f"patches.{name}", size, minimum=1)
    if config.patches.image_size % config.patches.patch_size:
        raise ValueError(f"patch_size must divide image_size, got {config.patches}")
    for name in ("n_segments", "max_len", "vocab_size"):
        if (value := getattr(config, name)) is not None:
            raise ValueError(f"{name} must be None for a model of images, got {value}")
    if config.kind != "encoder" or config.output == "mlm":
        raise ValueError(
            "patches need kind 'encoder' and head 'classes' or None, got "
            f"kind {config.kind!r} and head {config.head!r}"
        )


def _check_position(config: TransformerConfig) -> None:
    """Check what each scheme needs."""
    _, _, d_head = config.heads
    if config.position == "learned" and config.patches is None and config.max_len is None:
        raise ValueError("learned positions need max_len, the number of them")
    if config.position == "sinusoidal":
        check_even("d_model", config.d_model)
    if config.position == "rotary":
        check_even("d_head", d_head)
    if config.position == "transformer-xl":
        check_even("n_heads · d_head", config.n_heads * d_head)
    if config.position == "t5" and config.max_distance <= config.n_buckets // 2:
        raise ValueError(
            f"max_distance must be above half of n_buckets = {config.n_buckets}, "
            f"got {config.max_distance}"
        )
    scaling = config.rope_scaling
    if scaling is not None and config.position != "rotary":
        raise ValueError(f"rope_scaling is for rotary positions, got position {config.position!r}")
    if scaling is not None and not isinstance(scaling, RotaryScaling):
        raise TypeError(f"rope_scaling must be a RotaryScaling, got {type(scaling).__name__}")
