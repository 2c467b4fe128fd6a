"""A model is a list of layers: the choices that make 2017's Transformer, BERT, GPT, LLaMA or ViT.

A config holds descriptions of parts, each plain numbers and names. It can be counted without
making anything: parameters, FLOPs of a pass, bytes of a cache, part by part;
:func:`tfbook.models.build` makes the model.

Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from tfbook._checks import check_bool, check_choice, check_number
from tfbook.blocks import SCHEMES
from tfbook.models.changes import change, choice
from tfbook.models.ends import Classes, MaskedToken, NextToken, Patches, Tokens
from tfbook.models.layers import Layer, Norm
from tfbook.models.placements import InAttention, T5Buckets
from tfbook.models.spec import Part, Run, Site, plain, table, unplain

__all__ = ["TransformerConfig"]

BEFORE = ("pre", "inside", "both")  # places where nothing has normalised the stream itself


@dataclass(frozen=True)
class TransformerConfig:
    """The parts that make a transformer, checked against one another.

    Args:
        vocab_size: V, different tokens; None for a model of images.
        d_model: size of the residual stream.
        encoder: the layers that see everything, see :class:`tfbook.models.Layer`; may be empty.
        decoder: the layers that hide the future; may be empty. With both, the decoder looks into
            what the encoder made, by the ``cross`` of its layers.
        embedding: :class:`tfbook.models.Tokens` or :class:`tfbook.models.Patches`.
        share_embeddings: whether source and target of an encoder-decoder have one embedding.
        head: what the model ends in: :class:`tfbook.models.NextToken` with a decoder, also when
            omitted; for an encoder :class:`tfbook.models.MaskedToken`,
            :class:`tfbook.models.Classes`, or None for the hidden states.
        pooler: whether a tanh layer stands between the first row and the classes.
        final_norm: the norm behind the last layer: a :class:`tfbook.models.Norm`, True for that of
            the last layer, False for none; when omitted True where that stands before its parts.
        max_len: the longest sequence; None for no limit.
        init: how weights are drawn: "xavier", "gpt2", "bert" or "t5".

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a value out of range, an unknown name, or choices that do not go together.

    Example:
        >>> from tfbook.models import FFN, Attention, Layer
        >>> config = TransformerConfig(100, 8, decoder=[Layer(Attention(2), FFN(32))] * 2)
        >>> config.count_parameters()
        2560
        >>> config.replace(tie_embeddings=False, n_heads=4).count_parameters() - 100 * 8
        2560

    Source: [vaswani2017attention]
    Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
    """

    vocab_size: int | None
    d_model: int
    _: KW_ONLY
    encoder: Sequence[Layer] = ()
    decoder: Sequence[Layer] = ()
    embedding: Tokens | Patches = Tokens()
    share_embeddings: bool = True
    head: NextToken | MaskedToken | Classes | None = None
    pooler: bool = False
    final_norm: Norm | bool | None = None
    max_len: int | None = None
    init: str = "xavier"

    def __post_init__(self) -> None:
        """Check the choices one by one, then against one another."""
        for name in ("encoder", "decoder"):
            layers = getattr(self, name)
            if isinstance(layers, Layer) or not isinstance(layers, Sequence):
                raise TypeError(f"{name} must be a list of layers, got {type(layers).__name__}")
            object.__setattr__(self, name, tuple(layers))
        if self.head is None and self.decoder:
            object.__setattr__(self, "head", NextToken())
        _check_each(self)
        _check_kind(self)
        for stack, layers in (("encoder", self.encoder), ("decoder", self.decoder)):
            for layer in layers:
                layer.check(self.site(causal=stack == "decoder"))
            _check_shared(stack, layers)
        self.embedding.check(self.site())

    @property
    def kind(self) -> str:
        """Return "encoder", "decoder" or "encoder-decoder"."""
        return "-".join(name for name in ("encoder", "decoder") if getattr(self, name))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return all layers, the encoder's first."""
        return (*self.encoder, *self.decoder)

    @property
    def n_layers(self) -> int:
        """Return how many layers there are; in an encoder-decoder those of the encoder."""
        return len(self.encoder or self.decoder)

    @property
    def norm_behind(self) -> Norm | None:
        """Return the norm behind the last layer, if there is one."""
        last = (self.decoder or self.encoder)[-1]
        found = last.place in BEFORE if self.final_norm is None else self.final_norm
        return (last.norm if found else None) if isinstance(found, bool) else found

    def site(self, *, causal: bool = False) -> Site:
        """Return where a stack of this model is built, nothing shared in it yet."""
        return Site(self.d_model, self.vocab_size, self.max_len, causal)

    def choice(self, name: str) -> object:
        """Return the value of a choice that is the same in all parts that have it.

        Names are those of :meth:`replace`.

        Raises:
            TypeError: for a name that no part has, or that several kinds of parts have.
            ValueError: if the parts differ in it.

        Example:
            >>> from tfbook.models import preset
            >>> preset("gpt2").choice("n_heads")
            12
        """
        return choice(self, name)

    def replace(self, **changes: object) -> "TransformerConfig":
        """Return a config with other choices, each changed in all parts that have it.

        A field of the config is replaced. ``n_layers`` (``n_encoder_layers``,
        ``n_decoder_layers``) repeats or cuts the list of layers. Any other name is that of a choice
        of parts, such as n_heads, d_ff, window, place or tie_embeddings. Where several kinds of
        parts have a choice of one name, the part's word stands before it: attention_bias,
        ffn_bias, norm_bias; attention_dropout, ffn_dropout, embedding_dropout. Three plain names
        mean more than one part: ``dropout`` is what layers add and the embedding; ``norm`` is every
        norm there is; ``position`` goes to embedding or attention, whichever can have it, and the
        other then has none. A ``cross`` that is like its layer's mixer stays like it.

        Raises:
            TypeError: for a name that no part has, or that several kinds of parts have, or a value
                of a wrong type.
            ValueError: for choices that do not go together.

        Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
        """
        return TransformerConfig(**change(self, changes))

    def to_dict(self) -> dict[str, object]:
        """Return the choices as plain numbers, names, lists and dictionaries, as JSON can hold."""
        found = {each.name: plain(getattr(self, each.name)) for each in dataclasses.fields(self)}
        for stack in ("encoder", "decoder"):
            runs: list[dict[str, object]] = []
            for layer in found[stack]:
                if runs and runs[-1]["layer"] == layer:
                    runs[-1]["times"] += 1
                else:
                    runs.append({"times": 1, "layer": layer})
            found[stack] = runs
        return found

    @classmethod
    def from_dict(cls, choices: Mapping[str, object]) -> "TransformerConfig":
        """Make a config of what :meth:`to_dict` returned.

        Raises:
            TypeError: for a name that is no field, a missing one, or a value of a wrong type.
            ValueError: for a part that is not known, or choices that do not go together.
        """
        known = {each.name for each in dataclasses.fields(cls)}
        if unknown := sorted(set(choices) - known):
            raise TypeError(
                f"choices must be fields of TransformerConfig, got {', '.join(unknown)}; there are "
                f"{', '.join(sorted(known))}. Configs of one flat list of numbers, from before "
                "models were lists of layers, have to be written anew"
            )
        found = dict(choices)
        for stack in ("encoder", "decoder"):
            runs = found.pop(stack, ())
            layers = [unplain(run["layer"]) for run in runs for _ in range(run["times"])]
            found[stack] = tuple(layers)
        return cls(**{
            name: value if name in ("encoder", "decoder") else unplain(value)
            for name, value in found.items()
        })  # fmt: skip

    def parts(
        self,
        n: int | None = None,
        batch: int = 1,
        *,
        m: int | None = None,
        past: int = 0,
        bytes_per_number: int = 4,
        mask_bytes: int | None = None,
        stores_weights: bool | None = None,
    ) -> list[Part]:
        """List the parts of the model as data meets them in one forward pass.

        Causal attention is counted in full: half of its scores are thrown away, but whether they
        are computed is the attention function's affair. Embeddings are looked up, which is no
        FLOP; norms, activations and sums are left out as :mod:`tfbook.costs` leaves them out. Bytes
        are those of :meth:`moved_bytes` and :meth:`saved_bytes`.

        Args:
            n: tokens of each sequence, for an encoder-decoder of the target; max_len when omitted,
                and for images what the patches come to.
            batch: sequences.
            m: tokens of the source of an encoder-decoder; n when omitted.
            past: tokens before these n, of which a cache holds keys and values.
            bytes_per_number: 4 for single precision, 2 for half.
            mask_bytes: of what dropout keeps for each number; bytes_per_number when omitted, as
                PyTorch does it on a CPU; 1 on a GPU.
            stores_weights: whether attention writes down its weights, n · m for each head; when
                omitted as its function does in training, where dropout of weights needs them.

        Raises:
            TypeError: for an argument of a wrong type.
            ValueError: for a number out of range, or an n that is missing.

        Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
        """
        n = _length(self, n)
        m = n if m is None else m
        for name, value in (("n", n), ("batch", batch), ("m", m)):
            check_number(name, value, 1, whole=True)
        check_number("past", past, 0, whole=True)
        check_number("bytes_per_number", bytes_per_number, 1, whole=True)
        if mask_bytes is not None:
            check_number("mask_bytes", mask_bytes, 1, whole=True)
        if stores_weights is not None:
            check_bool("stores_weights", stores_weights)
        if past and self.kind == "encoder":
            raise ValueError(f"past is for a model with a decoder, got past = {past}")
        run = Run(
            self.d_model,
            batch,
            n,
            past,
            bytes_per_number=bytes_per_number,
            vocab_size=self.vocab_size,
            max_len=self.max_len,
            causal=self.kind == "decoder",
            stores_weights=stores_weights,
            mask_bytes=mask_bytes,
        )
        return list(self._walk(run, m))

    def _walk(self, run: Run, m: int) -> Iterator[Part]:
        """Yield what a pass costs: of the encoder, of the decoder, of the head."""
        both = self.kind == "encoder-decoder"
        if not both:
            yield from self.embedding.price("", run)
            yield from self._price_stack("stack", "position", self.layers, run)
        else:
            source = dataclasses.replace(run, n=m, past=0)
            encoder = [
                *self.embedding.price("", source),
                *self._price_stack("encoder", "position", self.encoder, source),
            ]
            # With a past the encoder has run before: its weights are there, its work is done.
            done = {"flops": 0, "moved": 0} if run.past else {}
            yield from (part._replace(**done) for part in encoder)
            target = dataclasses.replace(run, m=m, causal=True)
            embed, *rest = self.embedding.price("target_", target, shared=self.share_embeddings)
            # All cross-attentions keep the same memory.
            memory = run.batch * m * run.d_model * run.bytes_per_number
            yield from (embed._replace(saved=embed.saved + memory), *rest)
            yield from self._price_stack("decoder", "target_position", self.decoder, target)
        if self.pooler:
            d, used = self.d_model, isinstance(self.head, Classes)
            weights, flops = d * d + d, 2 * run.batch * d * d * used
            memory = {"moves": (2 * run.batch * d + weights) * used, "keeps": run.batch * d * used}
            yield run.part("pooler", (run.batch, d), weights, flops, **memory)
        if self.head is not None:
            yield from self.head.price("head", run)

    def _price_stack(
        self, name: str, position: str, layers: Sequence[Layer], run: Run
    ) -> Iterator[Part]:
        shared = {
            (layer.mixer.position, layer.mixer.heads(self.d_model)): None
            for layer in layers
            if isinstance(getattr(layer.mixer, "position", None), InAttention)
        }
        for spec, heads in shared:
            yield from spec.price_stack(position, run, heads)
        for i, layer in enumerate(layers):
            yield from layer.price(f"{name}.blocks.{i}", run)
        if (norm := self.norm_behind) is not None:
            keeps = run.batch * run.n * norm.keeps(self.d_model)
            yield run.rows(f"{name}.final_norm", norm.parameters(self.d_model), keeps=keeps)

    def count_parameters(self) -> int:
        """Count the parameters of the model, shared ones once, without making it."""
        n = self.embedding.length if isinstance(self.embedding, Patches) else 1
        return sum(part.parameters for part in self.parts(n))

    def flops(
        self, n: int | None = None, batch: int = 1, *, m: int | None = None, past: int = 0
    ) -> int:
        """Count the FLOPs of one forward pass; arguments and errors as for :meth:`parts`."""
        return sum(part.flops for part in self.parts(n, batch, m=m, past=past))

    def moved_bytes(
        self, n: int | None = None, batch: int = 1, *, m: int | None = None, past: int = 0,
        bytes_per_number: int = 4, stores_weights: bool | None = None,
    ) -> int:  # fmt: skip
        """Count the bytes that one forward pass reads and writes when every step stands alone.

        Each part reads its inputs and its weights and writes its output; of a table it reads the
        rows that are looked up. FLOPs / bytes is the arithmetic intensity. Attention that stores no
        weights reads q, k, v and writes z, each once. What is no part, such as an activation, the
        softmax or a sum, is left out, as for FLOPs. Arguments and errors as for :meth:`parts`.

        Example:
            >>> from tfbook.models import preset
            >>> gpt2 = preset("gpt2")
            >>> [round(gpt2.flops(n) / gpt2.moved_bytes(n), 1) for n in (1, 1024)]
            [0.5, 100.0]

        Source: [williams2009roofline]
        Explained in: chapters/06_complexity, section "What training costs".
        """
        choices = {"bytes_per_number": bytes_per_number, "stores_weights": stores_weights}
        return sum(part.moved for part in self.parts(n, batch, m=m, past=past, **choices))

    def saved_bytes(
        self, n: int | None = None, batch: int = 1, *, m: int | None = None,
        bytes_per_number: int = 4, mask_bytes: int | None = None,
        stores_weights: bool | None = None,
    ) -> int:  # fmt: skip
        """Count the bytes that a forward pass in training keeps for the backward pass.

        A linear map keeps its inputs, a norm its inputs and their spread, an activation its input
        or its output, attention q, k, v and its weights or else the log-sum-exp of each line of
        scores, dropout which numbers it set to 0. What several steps keep is counted once;
        weights, tokens and rotary tables, which are there anyway, are not counted, and neither are
        the logits, which the loss keeps.

        In float32 these are, on a CPU, the bytes that PyTorch keeps; attention weights it keeps
        twice, as softmax gave them and as they meet the values. Not counted are padding masks; the
        positions of Shaw and Transformer-XL; the weights that SDPA forms where a bias is added to
        the scores; and a second copy of what the heads found, batch · n · n_heads · d_value numbers
        a layer, where they leave it in another order than ``out_proj`` reads it: attention in
        tiles, and SDPA with qk_norm or with rotary positions that are not interleaved or not of the
        whole head.

        In half precision, with masks of one byte, a layer of GPT-2 and its dropout keep
        34 · n · batch · d_model + 5 · n_heads · n² · batch bytes, and a few for norms and for what
        is hidden.

        Arguments and errors as for :meth:`parts`.

        Example:
            >>> from tfbook.models import preset
            >>> gpt2 = preset("gpt2", attention_dropout=0.0)
            >>> [gpt2.saved_bytes(1024, stores_weights=each) >> 20 for each in (True, False)]
            [1821, 657]

        Source: [korthikanti2022reducing]
        Explained in: chapters/06_complexity, section "What training costs".
        """
        choices = {"mask_bytes": mask_bytes, "stores_weights": stores_weights}
        parts = self.parts(n, batch, m=m, bytes_per_number=bytes_per_number, **choices)
        return sum(part.saved for part in parts)

    def kv_cache_bytes(
        self, length: int, batch: int = 1, bytes_per_number: int = 4, *, m: int = 0
    ) -> int:
        """Count the bytes of the keys and values, or other states, that generation holds.

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
        for name, value in (("length", length), ("batch", batch), ("m", m)):
            check_number(name, value, 0, whole=True)
        check_number("bytes_per_number", bytes_per_number, 1, whole=True)
        if self.kind == "encoder" or (m and self.kind != "encoder-decoder"):
            raise ValueError(f"kind {self.kind!r} holds no such keys and values (m = {m})")
        d, crosses = self.d_model, [layer.cross for layer in self.decoder if layer.cross]
        numbers = sum(layer.mixer.held(d, length) for layer in self.decoder)
        numbers += sum(cross.held(d, m) for cross in crosses)
        return numbers * batch * bytes_per_number

    def summary(self, n: int | None = None, batch: int = 1) -> str:
        """Return a table of the parts, equal blocks written once; arguments as for :meth:`parts`.

        The lines of a block are those of one; "× 12" says how many there are.
        """
        open_length = n is None and self.max_len is None and isinstance(self.embedding, Tokens)
        return table(self.parts(1 if open_length else n, batch))


def _length(config: TransformerConfig, n: object) -> object:
    """Return how many tokens there are, in words of the config where n is omitted."""
    if isinstance(config.embedding, Patches):
        fixed = config.embedding.length
        if n not in (None, fixed):
            raise ValueError(f"n must be {fixed}, the class token and the patches, got {n}")
        return fixed
    n = config.max_len if n is None else n
    if n is None:
        raise ValueError("n is needed: the config has no max_len to take in its place")
    return n


def _check_each(config: TransformerConfig) -> None:
    """Check every choice by itself."""
    check_number("d_model", config.d_model, 1, whole=True)
    for name in ("vocab_size", "max_len"):
        if getattr(config, name) is not None:
            check_number(name, getattr(config, name), 1, whole=True)
    for name in ("share_embeddings", "pooler"):
        check_bool(name, getattr(config, name))
    check_choice("init", config.init, SCHEMES)
    for layer in config.layers:
        if not isinstance(layer, Layer):
            raise TypeError(f"encoder and decoder must hold layers, got {type(layer).__name__}")
    if not isinstance(config.embedding, Tokens | Patches):
        raise TypeError(
            f"embedding must be Tokens or Patches, got {type(config.embedding).__name__}"
        )
    if not (config.final_norm is None or isinstance(config.final_norm, bool | Norm)):
        raise TypeError(
            f"final_norm must be a Norm, True or False, got {type(config.final_norm).__name__}"
        )


def _check_kind(config: TransformerConfig) -> None:
    """Check what an encoder and a decoder may have."""
    kind, head = config.kind, config.head
    if not config.layers:
        raise ValueError("encoder or decoder must hold at least one layer, got none")
    known = (MaskedToken, Classes) if kind == "encoder" else (NextToken,)
    if head is not None and not isinstance(head, known):
        wanted = ", ".join(each.__name__ for each in known)
        raise ValueError(
            f"head must be {wanted} or None for kind {kind!r}, got {type(head).__name__}"
        )
    segments = getattr(config.embedding, "n_segments", None) is not None
    for name, there in (("pooler", config.pooler), ("n_segments", segments)):
        if there and kind != "encoder":
            raise ValueError(f"{name} is for kind 'encoder', got kind {kind!r}")
    if isinstance(config.embedding, Patches) and (
        kind != "encoder" or isinstance(head, MaskedToken)
    ):
        raise ValueError(
            "patches need kind 'encoder' and head Classes or None, got "
            f"kind {kind!r} and head {type(head).__name__}"
        )
    looks = any(layer.cross is not None for layer in config.decoder)
    if any(layer.cross is not None for layer in config.encoder) or looks != (
        kind == "encoder-decoder"
    ):
        raise ValueError(
            "cross is for layers of a decoder beside an encoder, which need it in at least one, "
            f"got kind {kind!r}"
        )


def _check_shared(stack: str, layers: Sequence[Layer]) -> None:
    """Raise ValueError where a stack would need more than one shared table."""
    tables = {
        (layer.mixer.position, layer.mixer.n_heads)
        for layer in layers
        if isinstance(getattr(layer.mixer, "position", None), T5Buckets)
    }
    if len(tables) > 1:
        raise ValueError(f"the layers of the {stack} must share one T5Buckets, got {len(tables)}")
