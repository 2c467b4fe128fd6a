"""A layer as a list of parts: a mixer, a feed-forward part, a norm and its place.

``[Layer(Attention(8), FFN(2048), place="post")] * 6`` is the encoder of 2017. Each description here
builds its module and prices it, a few lines apart.

Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from inspect import Parameter, signature

from torch import nn

from tfbook._checks import check_bool, check_choice, check_number, chosen_names, head_sizes
from tfbook.attention import VARIANTS, MultiHeadAttention, SinkAttention, Variant
from tfbook.blocks import (
    FEED_FORWARDS,
    GATES,
    PLACES,
    Block,
    FeedForward,
    LayerNorm,
    RMSNorm,
    check_parallel,
)
from tfbook.costs import attention_flops_parts
from tfbook.models.placements import Heads, InAttention
from tfbook.models.spec import Part, Run, Site, Spec

__all__ = ["FFN", "Attention", "Layer", "Norm"]

PROJECTIONS = ("q", "k", "v", "out")
# What an activation keeps for the backward pass, its input or its output; the identity nothing.
KEEP_INPUT, KEEP_OUTPUT = ("gelu", "gelu_tanh", "silu"), ("relu", "sigmoid", "tanh")


def check_spec(name: str, value: object, kind: type = Spec, *, open: bool = False) -> None:
    """Raise TypeError unless a value describes a part of a kind."""
    if not (isinstance(value, kind) or (open and value is None)):
        wanted = "a description of a part" if kind is Spec else f"a {kind.__name__}"
        raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")


SHARED = {"mask", "bias", "causal", "scale", "return_weights", "return_lse"}


def read_options(name: object, options: object) -> tuple[tuple[str, object], ...]:
    """Return the options of the attention function of this name as pairs in order.

    Raises:
        TypeError: if the name is no string, or the options are no dictionary.
        ValueError: for an unknown name, an option that is unknown, or one that is missing.
    """
    if not isinstance(name, str):
        raise TypeError(f"attend must be a name, got {type(name).__name__}")
    pairs = isinstance(options, tuple | list) and all(
        isinstance(each, tuple | list) and len(each) == 2 for each in options
    )
    if not (pairs or isinstance(options, Mapping)):
        raise TypeError(f"options must be a dictionary, got {type(options).__name__}")
    options = dict(options)
    lacking = {
        each: [o for o in _options(variant, needed=True) if each != name or o not in options]
        for each, variant in VARIANTS.items()
    }
    if name not in lacking or lacking[name]:
        known = ", ".join(each for each, needed in lacking.items() if not needed)
        more = f"; {name} needs {', '.join(lacking[name])} too" if name in lacking else ""
        raise ValueError(f"attend must be one of {known}, got {name!r}{more}")
    known = _options(VARIANTS[name])
    if unknown := sorted(set(options) - set(known)):
        wanted = f"one of {', '.join(known)}" if known else "left out"
        raise ValueError(f"options of attend {name!r} must be {wanted}, got {', '.join(unknown)}")
    return tuple(sorted(options.items()))


def _options(variant: Variant, *, needed: bool = False) -> list[str]:
    """Return what a call of an attention function can give of its own, or must."""
    further = list(signature(variant.fn).parameters.values())[3:]
    own = [each for each in further if each.name not in SHARED and each.kind != each.VAR_KEYWORD]
    own = [each for each in own if each.name not in variant.parameters]
    names = [each.name for each in own if each.default is Parameter.empty or not needed]
    return names + (list(variant.parameters) if needed else [])


@dataclass(frozen=True)
class Norm(Spec):
    """A norm: :class:`tfbook.blocks.LayerNorm` or :class:`tfbook.blocks.RMSNorm`.

    Args:
        kind: "layer" or "rms".
        eps: ε.
        bias: whether a layer norm has a β; a norm of the other kind has none.

    Source: [ba2016layer], [zhang2019root]
    Explained in: chapters/05_architecture_deeper, section "Layer normalisation".
    """

    kind: str = "layer"
    _: KW_ONLY
    eps: float = 1e-5
    bias: bool = True
    word = "norm"

    def __post_init__(self) -> None:
        """Check the choices."""
        check_choice("norm kind", self.kind, ("layer", "rms"))
        check_number("eps", self.eps, above=0)
        check_bool("bias", self.bias)

    def make(self, size: int) -> nn.Module:
        """Make the module for vectors of a size."""
        if self.kind == "rms":
            return RMSNorm(size, eps=self.eps)
        return LayerNorm(size, eps=self.eps, bias=self.bias)

    def parameters(self, size: int) -> int:
        """Count the parameters for vectors of a size."""
        return size * (2 if self.kind == "layer" and self.bias else 1)

    def keeps(self, size: int) -> int:
        """Count the numbers kept of a vector: it and μ, 1/σ; or it, 1/σ and what γ scales."""
        return size + 2 if self.kind == "layer" else 2 * size + 1


@dataclass(frozen=True)
class Attention(Spec):
    """Multi-head attention, see :class:`tfbook.attention.MultiHeadAttention`.

    In a decoder it hides the future, as the ``cross`` of a layer it looks into the memory.

    Args:
        n_heads: H.
        n_kv_heads: heads of keys and values, a divisor of H; H when omitted.
        d_head: size of a query and a key; d_model / H when omitted.
        d_value: size of a value; d_head when omitted.
        position: Rotary, T5Buckets, LinearBias, Shaw or TransformerXL; None for none.
        bias: whether the projections have biases, or which of q, k, v, out.
        scale: factor on q kᵀ; when omitted 1/√d_head, and 1 with T5's buckets.
        dropout: rate on the attention weights.
        window: how many keys a query sees; None for all. For decoders.
        qk_norm: the norm of queries and keys, each head by itself; None for none.
        qk_norm_whole: whether that norm is over all heads together.
        attend: name of the attention function in :data:`tfbook.attention.VARIANTS`, one without
            weights of its own.
        options: what that function takes beside q, k and v, as a dictionary: ``{"top": 8}`` for
            "topk".
        n_sinks: how many learned sinks each head has, see :class:`tfbook.attention.SinkAttention`;
            they are an attention function of their own.

    Source: [vaswani2017attention], sinks: [openai2025gptoss]
    Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
    """

    n_heads: int
    _: KW_ONLY
    n_kv_heads: int | None = None
    d_head: int | None = None
    d_value: int | None = None
    position: InAttention | None = None
    bias: bool | Collection[str] = True
    scale: float | None = None
    dropout: float = 0.0
    window: int | None = None
    qk_norm: Norm | None = None
    qk_norm_whole: bool = False
    attend: str = "sdpa"
    options: Mapping[str, object] | tuple = ()
    n_sinks: int = 0
    word = "attention"

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        check_number("n_heads", self.n_heads, 1, whole=True)
        for name in ("n_kv_heads", "d_head", "d_value", "window"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1, whole=True)
        check_spec("position", self.position, InAttention, open=True)
        biased = chosen_names("attention_bias", self.bias, PROJECTIONS)
        bias = tuple(name for name in PROJECTIONS if name in biased)
        object.__setattr__(self, "bias", len(bias) == 4 if len(bias) in (0, 4) else bias)
        if self.scale is not None:
            check_number("attention_scale", self.scale, above=0)
        check_number("attention_dropout", self.dropout, 0, below=1)
        check_spec("qk_norm", self.qk_norm, Norm, open=True)
        check_bool("qk_norm_whole", self.qk_norm_whole)
        object.__setattr__(self, "options", read_options(self.attend, self.options))
        check_number("n_sinks", self.n_sinks, 0, whole=True)
        if self.n_sinks and self.attend != "sdpa":
            raise ValueError(f"n_sinks are for attend 'sdpa', got {self.attend!r}")

    def of_memory(self) -> "Attention":
        """Return the same attention as a layer's ``cross``: no order is common, none is asked."""
        unscaled = self.position is not None and self.position.unscaled
        scale = 1.0 if self.scale is None and unscaled else self.scale  # T5 divides nowhere
        return replace(self, position=None, window=None, scale=scale)

    def heads(self, d_model: int) -> Heads:
        """Return the sizes of the heads, none of them open."""
        open_sizes = (self.n_kv_heads, self.d_head, self.d_value)
        return Heads(self.n_heads, *head_sizes(d_model, self.n_heads, *open_sizes))

    def check(self, site: Site) -> None:
        """Raise ValueError where the sizes do not fit d_model, or the choices the place."""
        heads = self.heads(site.d_model)
        if self.position is not None:
            if site.memory:
                raise ValueError("position is not for a cross-attention: no order is common")
            self.position.fits(heads)
        if self.window is not None and not site.causal:
            raise ValueError("window is for the layers of a decoder, which hide the future")

    def build(self, site: Site) -> nn.Module:
        """Make the module; its position is the stack's or its own."""
        return MultiHeadAttention(site.d_model, self.n_heads, **self.choices(site))

    def choices(self, site: Site) -> dict[str, object]:
        """Return what the module is made with beside d_model and n_heads."""
        heads, fn = self.heads(site.d_model), VARIANTS[self.attend].fn
        if self.n_sinks:
            fn = SinkAttention(self.n_heads, self.n_sinks)
        return {
            "n_kv_heads": heads.n_kv_heads,
            "d_head": heads.d_head,
            "d_value": heads.d_value,
            "d_memory": site.d_model if site.memory else None,
            "causal": site.causal,
            "attend": partial(fn, **options) if (options := dict(self.options)) else fn,
            "position": None if self.position is None else self.position.place(site, heads),
            "bias": self.bias,
            "scale": self.scale,
            "dropout": self.dropout,
            "window": self.window,
            "qk_norm": None if self.qk_norm is None else self.qk_norm.make,
            "qk_norm_whole": self.qk_norm_whole,
        }

    def stores(self, run: Run) -> bool:
        """Return whether the weights are written down: for their dropout, or by the function."""
        if run.stores_weights is not None:
            return run.stores_weights
        if self.dropout > 0 or self.n_sinks > 0:
            return True
        if (own := VARIANTS[self.attend].keeps) is None:
            return "weights" in VARIANTS[self.attend].has
        return own(1, 1, 1, 1, causal=run.causal, **dict(self.options))[0] > 0

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the projections, the norms, the position, the scores, what is mixed, the output."""
        d, batch, n, heads = run.d_model, run.batch, run.n, self.heads(run.d_model)
        cross, keys = run.m is not None, run.past + n if run.m is None else run.m
        rows, biased = keys if cross else n, chosen_names("bias", self.bias, PROJECTIONS)
        flops = attention_flops_parts(
            n, d, m=keys, batch=batch, **heads._asdict(), d_memory=d if cross else None,
            remembered=cross and run.past > 0,
        )  # fmt: skip
        if (own := VARIANTS[self.attend].flops) is not None:
            hides, sizes = run.causal and not cross, (n, keys, heads.d_head, heads.d_value)
            parts = own(*sizes, causal=hides, **dict(self.options))
            flops |= {
                x: batch * heads.n_heads * y for x, y in zip(("scores", "mix"), parts, strict=True)
            }
        widths = {"q": heads.n_heads * heads.d_head, "k": heads.n_kv_heads * heads.d_head}
        widths["v"] = heads.n_kv_heads * heads.d_value
        for which, width in widths.items():
            made, weights = n if which == "q" else rows, d * width + width * (which in biased)
            work = flops[which] > 0  # none where a memory's keys and values are there already
            # The rows that k and v are made of too are kept once; for a memory see the decoder.
            memory = {"keeps": batch * n * d * (which == "q")}
            memory["moves"] = work * (batch * made * (d + width) + weights)
            shape = (batch, made, width)
            yield run.part(f"{name}.{which}_proj", shape, weights, flops[which], **memory)
            if self.qk_norm is not None and which in "qk":
                size = width if self.qk_norm_whole else heads.d_head
                weights, numbers = self.qk_norm.parameters(size), batch * made * width
                memory = {"moves": work * (2 * numbers + weights)}
                memory["keeps"] = numbers // size * self.qk_norm.keeps(size)
                shape = (batch, width // heads.d_head, made, heads.d_head)
                yield run.part(f"{name}.{which}_norm", shape, weights, **memory)
        if self.position is not None:
            yield from self.position.price_layer(name, run, heads)
        if self.n_sinks:
            shape = (run.batch, heads.n_heads, n)
            yield run.part(f"{name}.attend.sink", shape, heads.n_heads * self.n_sinks)
        yield from self._price_mixing(name, run, keys, flops)
        width = heads.n_heads * heads.d_value
        yield run.linear(f"{name}.out_proj", width, d, bias="out" in biased)

    def _price_mixing(
        self, name: str, run: Run, keys: int, flops: Mapping[str, int]
    ) -> Iterator[Part]:
        """Yield the scores and z, with weights that are written down or never whole."""
        heads, n, shared = self.heads(run.d_model), run.n, run.batch * keys
        lines = run.batch * heads.n_heads * n  # of scores
        q, z = lines * heads.d_head, lines * heads.d_value
        k, v = (shared * heads.n_kv_heads * size for size in (heads.d_head, heads.d_value))
        pairs, windowed = lines * keys, self.window is not None and keys > self.window
        stored, own = self.stores(run), VARIANTS[self.attend].keeps
        if own is not None and not (self.dropout or (stored and run.stores_weights)):
            sizes, hides = (n, keys, heads.d_head, heads.d_value), run.causal and run.m is None
            formed, each, shares = own(*sizes, causal=hides, **dict(self.options))
            kept = run.batch * (heads.n_heads * each + heads.n_kv_heads * shares)
            scores = {"moves": q + k + pairs * stored, "keeps": kept}
            mixed = {"keeps": run.batch * heads.n_heads * formed * stored, "masks": lines}
            pairs *= stored
        elif stored:  # as softmax made them, and as v meets them; what is hidden or empty
            hidden = n * keys * ((run.causal and run.m is None) + windowed)
            scores = {"moves": q + k + pairs, "keeps": q + k + pairs, "masks": hidden + lines}
            mixed = {"keeps": v + pairs, "masks": run.dropped(self.dropout, pairs)}
        else:  # the log-sum-exp of each line, from which the weights are made again
            pairs, scores = 0, {"moves": q + k, "keeps": q + k}
            mixed = {"keeps": v + lines, "masks": 4 * n * keys * windowed}
        if self.n_sinks:  # the sums of the lines, what the heads find before the sinks take theirs
            scores["keeps"] += pairs
            mixed["keeps"] += z + 2 * lines
            mixed["masks"] += 2 * lines
        mixed["moves"] = pairs + v + z
        shape = (run.batch, heads.n_heads, n)
        yield run.part(f"{name}.scores", (*shape, keys), 0, flops["scores"], **scores)
        yield run.part(f"{name}.z", (*shape, heads.d_value), 0, flops["mix"], **mixed)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the keys and values of so many rows."""
        heads = self.heads(d_model)
        return heads.n_kv_heads * (heads.d_head + heads.d_value) * length


@dataclass(frozen=True)
class FFN(Spec):
    """A feed-forward network, see :class:`tfbook.blocks.FeedForward`.

    Args:
        d_ff: size of the inner layer.
        kind: an activation or a gate out of ``tfbook.blocks.FEED_FORWARDS``.
        bias: whether the linear maps have one.
        dropout: rate on the inner layer.

    Source: [vaswani2017attention], gated: [shazeer2020glu]
    Explained in: chapters/05_architecture_deeper, section "The feed-forward network".
    """

    d_ff: int
    kind: str = "relu"
    _: KW_ONLY
    bias: bool = True
    dropout: float = 0.0
    word = "ffn"

    def __post_init__(self) -> None:
        """Check the choices."""
        check_number("d_ff", self.d_ff, 1, whole=True)
        check_choice("ffn kind", self.kind, FEED_FORWARDS)
        check_bool("ffn_bias", self.bias)
        check_number("ffn_dropout", self.dropout, 0, below=1)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = {"kind": self.kind, "bias": self.bias, "dropout": self.dropout}
        return FeedForward(site.d_model, self.d_ff, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the linear maps, two of them to the inner layer where there is a gate."""
        d, size = run.d_model, run.batch * run.n * self.d_ff
        gated, activation = self.kind in GATES, GATES.get(self.kind, self.kind)
        for inner in ("gate_proj", "up_proj") if gated else ("up_proj",):
            keeps = 0 if gated and inner == "up_proj" else None  # what both read is kept once
            yield run.linear(f"{name}.{inner}", d, self.d_ff, bias=self.bias, keeps=keeps)
        # What down_proj reads; both factors of a gate; what the activation needs beside them.
        apart = not gated and self.dropout > 0  # else its output is one of these
        kept = 1 + 2 * gated + (activation in KEEP_INPUT) + (apart and activation in KEEP_OUTPUT)
        kept += 3 * (self.kind == "swiglu_clipped")  # both before they are cut off, and a sigmoid
        down = run.linear(f"{name}.down_proj", self.d_ff, d, bias=self.bias, keeps=kept * size)
        yield down._replace(saved=down.saved + run.dropped(self.dropout, size))


@dataclass(frozen=True)
class Layer(Spec):
    """One layer: a mixer, a feed-forward part, and how each is added to the stream.

    Args:
        mixer: what mixes rows, such as an :class:`Attention`.
        ffn: what treats each row by itself, such as an :class:`FFN`.
        cross: attention to a memory, in the decoder of an encoder-decoder.
        norm: of each sublayer.
        place: where it stands, "pre", "post", "inside", "both" or "none", see
            :class:`tfbook.blocks.Residual`.
        parallel: whether the ffn reads the same x as the mixer.
        one_norm: whether these two then share the norm before them.
        dropout: rate on what each sublayer adds.
        multiplier: factor on what each sublayer adds.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a value out of range, or choices that do not go together.

    Example:
        >>> Layer(Attention(8), FFN(2048), place="post").ffn.kind
        'relu'

    Source: [vaswani2017attention], places: [xiong2020layer]
    Explained in: chapters/05_architecture_deeper, section "The encoder".
    """

    mixer: Spec
    ffn: Spec
    _: KW_ONLY
    cross: Spec | None = None
    norm: Norm = Norm()
    place: str = "pre"
    parallel: bool = False
    one_norm: bool = False
    dropout: float = 0.0
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        check_spec("mixer", self.mixer)
        check_spec("ffn", self.ffn)
        check_spec("cross", self.cross, open=True)
        check_spec("norm", self.norm, Norm)
        check_choice("place", self.place, PLACES)
        check_parallel(self.parallel, self.one_norm, self.place, self.cross)
        check_number("dropout", self.dropout, 0, below=1)
        check_number("multiplier", self.multiplier, above=0)

    def with_cross(self) -> "Layer":
        """Return the layer with a look into the memory by an attention like its own."""
        return replace(self, cross=self.mixer.of_memory())

    def check(self, site: Site) -> None:
        """Raise an error where a part does not fit its place."""
        self.mixer.check(site)
        self.ffn.check(site)
        if self.cross is not None:
            self.cross.check(site.of_memory())

    def build(self, site: Site) -> nn.Module:
        """Make the block."""
        return Block(
            self.mixer.build(site),
            self.ffn.build(site),
            cross=None if self.cross is None else self.cross.build(site.of_memory()),
            norm=self.norm.make,
            place=self.place,
            dropout=self.dropout,
            parallel=self.parallel,
            one_norm=self.one_norm,
            multiplier=self.multiplier,
            d_model=site.d_model,
        )

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield mixer, cross-attention and feed-forward part, each with its norms."""
        own = replace(run, m=None)
        rows = {"mixer": self.mixer.price(f"{name}.mixer", own)}
        if self.cross is not None:
            rows["cross"] = self.cross.price(f"{name}.cross", run)
        rows["ffn"] = self.ffn.price(f"{name}.ffn", own)
        weights, size = self.norm.parameters(run.d_model), run.batch * run.n
        for part, found in rows.items():
            keeps = size * self.norm.keeps(run.d_model)
            norm = run.rows(f"{name}.{part}_residual.norm", weights, keeps=keeps)
            before = self.place in ("pre", "both") and not (part == "ffn" and self.one_norm)
            steps = [norm, *found] if before else [*found]
            if self.place in ("post", "inside"):
                steps.append(norm)
            if self.place == "both":
                steps.append(norm._replace(name=f"{norm.name}_after"))
            if self.parallel and part == "ffn":  # the mixer keeps the x that both read
                kept = max(0, steps[0].saved - size * run.d_model * run.bytes_per_number)
                steps[0] = steps[0]._replace(saved=kept)
            dropped = run.dropped(self.dropout, size * run.d_model)
            steps[-1] = steps[-1]._replace(saved=steps[-1].saved + dropped)
            yield from steps
