"""Mixers with a state of fixed size as parts of a layer: described, built and priced.

``[Layer(Retention(8), FFN(2048)), Layer(Attention(8), FFN(2048))] * 6`` is a hybrid of twelve
layers. What the state holds does not depend on how much was read.

Explained in: chapters/09_hybrids, section "A hybrid is a list".
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import check_bool, check_even, check_number, head_sizes
from tfbook.models.spec import Part, Run, Site, Spec
from tfbook.recurrent import (
    ChannelMix,
    DeltaMixer,
    GatedDeltaMixer,
    LinearAttentionMixer,
    RetentionMixer,
    TimeMix,
    retention_decays,
)

__all__ = [
    "RWKV",
    "DeltaNet",
    "GatedDeltaNet",
    "LinearAttention",
    "NoFFN",
    "RWKVChannels",
    "Retention",
]


def check_causal(kind: str, site: Site) -> None:
    """Raise ValueError unless the place is one where only the past is seen."""
    if site.memory:
        raise ValueError(f"{kind} is no cross-attention: it cannot look into a memory")
    if not site.causal:
        raise ValueError(f"{kind} reads from left to right, it is for the layers of a decoder")


def chunks(n: int, size: int) -> list[int]:
    """Return the lengths of the chunks of n rows."""
    return [min(size, n - start) for start in range(0, n, size)]


def refuse_cross(self: Spec) -> Spec:
    """Refuse to become a layer's cross-attention."""
    raise ValueError(f"{type(self).__name__} cannot look into a memory; name a cross for the layer")


class _Sized:
    """What mixers with a matrix for each head share: sizes, and what each product costs."""

    of_memory = refuse_cross
    wide = 1  # how many times as large as a key a value is, when it is left open

    def sizes(self, d_model: int) -> tuple[int, int]:
        """Return the size of a key and that of a value."""
        open_sizes = (None, self.d_head, self.d_value)
        _, d_head, d_value = head_sizes(d_model, self.n_heads, *open_sizes)
        return d_head, d_head * self.wide if self.d_value is None else d_value

    def check(self, site: Site) -> None:
        """Raise ValueError where the sizes do not fit d_model, or the place is no decoder."""
        self.sizes(site.d_model)
        check_causal(type(self).__name__, site)

    def _check_sizes(self) -> None:
        check_number("n_heads", self.n_heads, 1, whole=True)
        for name in ("d_head", "d_value"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1, whole=True)
        check_number("chunk", self.chunk, 1, whole=True)

    def _choices(self, d_model: int) -> dict[str, int]:
        d_head, d_value = self.sizes(d_model)
        return {"d_head": d_head, "d_value": d_value, "chunk": self.chunk}

    def _projections(self, name: str, run: Run, *more: tuple[str, int]) -> Iterator[Part]:
        """Yield the maps of x, which is kept once."""
        d_head, d_value = self.sizes(run.d_model)
        widths = [("q", d_head), ("k", d_head), ("v", d_value), *more]
        for which, size in widths:
            keeps = None if which == "q" else 0
            width = self.n_heads * size
            yield run.linear(f"{name}.{which}_proj", run.d_model, width, bias=False, keeps=keeps)

    def _state(self, name: str, run: Run, columns: int, flops: int, keeps: int) -> Part:
        """Return the row for writing and reading the state; FLOPs and numbers are of one head."""
        lines, (d_head, d_value) = run.batch * self.n_heads, self.sizes(run.d_model)
        moves = run.n * (2 * d_head + 2 * columns) + 2 * d_head * columns
        shape = (run.batch, self.n_heads, run.n, d_value)
        return run.part(
            f"{name}.state", shape, 0, lines * flops, moves=lines * moves, keeps=lines * keeps
        )


def linear_state_flops(n: int, d: int, e: int, chunk: int) -> int:
    """Count the FLOPs of :func:`tfbook.efficient.state_chunked` for one head."""
    return sum(2 * c * (c * (d + e) + 2 * d * e) for c in chunks(n, chunk))


def delta_flops(n: int, d: int, e: int, chunk: int) -> int:
    """Count those of :func:`tfbook.recurrent.delta_chunked`, without its triangular systems."""
    return sum(2 * c * (c * (2 * d + e) + 3 * d * e) for c in chunks(n, chunk))


@dataclass(frozen=True)
class Retention(_Sized, Spec):
    """Multi-scale retention, see :class:`tfbook.recurrent.RetentionMixer`.

    Args:
        n_heads: H.
        d_head: size of queries and keys, even; d_model / H when omitted.
        d_value: size of a value; 2 · d_head when omitted.
        base: of the rotation.
        chunk: rows that are computed at once.

    Example:
        >>> Retention(4).held(64, length=1000) == Retention(4).held(64, length=1)
        True

    Source: [sun2023retentive]
    Explained in: chapters/09_hybrids, section "Retention: attention that fades".
    """

    n_heads: int
    _: KW_ONLY
    d_head: int | None = None
    d_value: int | None = None
    base: float = 10000.0
    chunk: int = 64
    word = "retention"
    wide = 2

    def __post_init__(self) -> None:
        """Check the choices."""
        self._check_sizes()
        check_number("base", self.base, above=1)
        retention_decays(self.n_heads)

    def check(self, site: Site) -> None:
        """Raise ValueError where the sizes do not fit d_model, or the place is no decoder."""
        super().check(site)
        check_even("d_head", self.sizes(site.d_model)[0])

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = self._choices(site.d_model) | {"base": self.base}
        return RetentionMixer(site.d_model, self.n_heads, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the projections, the state, the norm, the output."""
        d_head, d_value = self.sizes(run.d_model)
        width, rows = self.n_heads * d_value, run.batch * run.n
        yield from self._projections(name, run, ("gate", d_value))
        each = chunks(run.n, self.chunk)
        keeps = run.n * (5 * d_head + 2 * d_value) + sum(c * c for c in each)
        keeps += len(each) * d_head * d_value
        flops = linear_state_flops(run.n, d_head, d_value, self.chunk)
        yield self._state(name, run, d_value, flops, keeps)
        shape = (run.batch, run.n, width)
        yield run.part(f"{name}.norm", shape, 2 * width, keeps=5 * rows * width)
        yield run.linear(f"{name}.out_proj", width, run.d_model, bias=False)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the matrices; the length changes nothing."""
        d_head, d_value = self.sizes(d_model)
        return self.n_heads * d_head * d_value


@dataclass(frozen=True)
class LinearAttention(_Sized, Spec):
    """Causal linear attention, see :class:`tfbook.recurrent.LinearAttentionMixer`.

    Args:
        n_heads: H.
        d_head: size of queries and keys; d_model / H when omitted.
        d_value: size of a value; d_head when omitted.
        gated: whether the past fades by a factor that the token chooses.
        chunk: rows that are computed at once.

    Source: [katharopoulos2020transformers], gated: [yang2024gated]
    Explained in: chapters/09_hybrids, section "A state that does not grow".
    """

    n_heads: int
    _: KW_ONLY
    d_head: int | None = None
    d_value: int | None = None
    gated: bool = False
    chunk: int = 64
    word = "linear"

    def __post_init__(self) -> None:
        """Check the choices."""
        self._check_sizes()
        check_bool("gated", self.gated)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = self._choices(site.d_model) | {"gated": self.gated}
        return LinearAttentionMixer(site.d_model, self.n_heads, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the projections, the gate, the state, the output."""
        d_head, d_value = self.sizes(run.d_model)
        columns = d_value + 1  # the last one sums the keys
        yield from self._projections(name, run)
        if self.gated:
            yield run.linear(f"{name}.g_proj", run.d_model, self.n_heads, keeps=0)
        each = chunks(run.n, self.chunk)
        square, between = sum(c * c for c in each), len(each) * d_head * columns
        keeps = run.n * (4 * d_head + 2 * columns + d_value) + square + between
        if self.gated:
            keeps += run.n * (d_head + columns) + 2 * square
        flops = linear_state_flops(run.n, d_head, columns, self.chunk)
        yield self._state(name, run, columns, flops, keeps)
        yield run.linear(f"{name}.out_proj", self.n_heads * d_value, run.d_model, bias=False)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the matrices; the length changes nothing."""
        d_head, d_value = self.sizes(d_model)
        return self.n_heads * d_head * (d_value + 1)


@dataclass(frozen=True)
class DeltaNet(_Sized, Spec):
    """A state that the delta rule corrects, see :class:`tfbook.recurrent.DeltaMixer`.

    The triangular systems of a chunk, chunk · (d_head + d_value) FLOPs a row and head, are no
    matrix products and are not counted, as nowhere else.

    Args:
        n_heads: H.
        d_head: size of queries and keys; d_model / H when omitted.
        d_value: size of a value; d_head when omitted.
        kernel: rows that the short convolution sees.
        negative: whether β goes up to 2.
        chunk: rows that are computed at once.

    Source: [yang2024parallelizing], β up to 2: [grazzi2025unlocking]
    Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
    """

    n_heads: int
    _: KW_ONLY
    d_head: int | None = None
    d_value: int | None = None
    kernel: int = 4
    negative: bool = False
    chunk: int = 64
    word = "delta"
    module = DeltaMixer

    def __post_init__(self) -> None:
        """Check the choices."""
        self._check_sizes()
        check_number("kernel", self.kernel, 1, whole=True)
        check_bool("negative", self.negative)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = {"kernel": self.kernel, "negative": self.negative}
        return self.module(site.d_model, self.n_heads, **choices, **self._choices(site.d_model))

    def _gates(self, d_value: int) -> list[tuple[str, int]]:
        return [("beta", 1)]

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the projections, the convolution, the state, the norm, the output."""
        (d_head, d_value), rows = self.sizes(run.d_model), run.batch * run.n
        width, gates = self.n_heads * d_value, self._gates(d_value)
        yield from self._projections(name, run, *gates)
        if own := self.n_heads * (len(gates) > 1) * 2:  # rates and biases of the decay
            yield run.part(f"{name}.decay", (run.batch, self.n_heads, run.n), own)
        mixed = self.n_heads * (2 * d_head + d_value)
        weights, numbers = mixed * self.kernel, rows * mixed
        flops, moves = 2 * rows * weights, 2 * numbers + weights
        shape = (run.batch, run.n, mixed)
        yield run.part(f"{name}.conv", shape, weights, flops, moves=moves, keeps=2 * numbers)
        flops = delta_flops(run.n, d_head, d_value, self.chunk)
        yield self._state(name, run, d_value, flops, self._keeps(run, d_head, d_value))
        keeps = width * rows * (1 + 3 * (len(gates) > 1))
        yield run.part(f"{name}.norm", (run.batch, run.n, width), d_value, keeps=keeps)
        yield run.linear(f"{name}.out_proj", width, run.d_model, bias=False)

    def _keeps(self, run: Run, d_head: int, d_value: int) -> int:
        """Count the numbers of one head that the chunks keep for the backward pass."""
        each, gated = chunks(run.n, self.chunk), len(self._gates(d_value)) > 1
        square = sum(c * c for c in each)
        rows = run.n * ((7 + 2 * gated) * d_head + (5 + gated) * d_value)
        return rows + (3 + 4 * gated) * square + (1 + gated) * len(each) * d_head * d_value

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the matrices and of the convolution's last rows."""
        d_head, d_value = self.sizes(d_model)
        return self.n_heads * (d_head * d_value + (self.kernel - 1) * (2 * d_head + d_value))


@dataclass(frozen=True)
class GatedDeltaNet(DeltaNet):
    """A state that fades and is corrected, see :class:`tfbook.recurrent.GatedDeltaMixer`.

    Args:
        n_heads: H.
        d_head: size of queries and keys; d_model / H when omitted.
        d_value: size of a value; d_head when omitted.
        kernel: rows that the short convolution sees.
        negative: whether β goes up to 2.
        chunk: rows that are computed at once.

    Source: [yang2025gated]
    Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
    """

    module = GatedDeltaMixer

    def _gates(self, d_value: int) -> list[tuple[str, int]]:
        return [("beta", 1), ("decay", 1), ("gate", d_value)]


@dataclass(frozen=True)
class RWKV(Spec):
    """RWKV's time mixing, see :class:`tfbook.recurrent.TimeMix`.

    A block of RWKV is two layers, ``Layer(RWKV(), NoFFN(), …)`` and
    ``Layer(RWKVChannels(), NoFFN(), …)``, both with ``parallel=True, one_norm=True``, which leaves
    one norm to each; in a hybrid ``Layer(RWKV(), FFN(…))`` has a plain feed-forward network.

    Args:
        d_inner: channels; d_model when omitted.

    Example:
        >>> RWKV().held(64, length=1000)  # numbers, however long the sequence
        256

    Source: [peng2023rwkv]
    Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
    """

    d_inner: int | None = None
    word = "rwkv"
    of_memory = refuse_cross

    def __post_init__(self) -> None:
        """Check the choice."""
        if self.d_inner is not None:
            check_number("d_inner", self.d_inner, 1, whole=True)

    def _width(self, d_model: int) -> int:
        return d_model if self.d_inner is None else self.d_inner

    def check(self, site: Site) -> None:
        """Raise ValueError where the place is no decoder."""
        check_causal("RWKV", site)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        return TimeMix(site.d_model, self._width(site.d_model))

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the token shift, the projections, the sums, the output."""
        d, width, rows = run.d_model, self._width(run.d_model), run.batch * run.n
        yield run.rows(f"{name}.shift", 3 * d, moves=(4 * rows + 3) * d, keeps=2 * rows * d)
        for which in "kvr":
            yield run.linear(f"{name}.{which}_proj", d, width, bias=False)
        passes = run.n.bit_length()  # ⌈log₂(n + 1)⌉, each over three numbers for each channel
        numbers, shape = rows * width, (run.batch, run.n, width)
        memory = {"moves": 6 * passes * numbers, "keeps": (10 + 5 * passes) * numbers}
        yield run.part(f"{name}.wkv", shape, 2 * width, **memory)
        yield run.linear(f"{name}.out_proj", width, d, bias=False, keeps=3 * numbers)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the last row and of the sums."""
        return d_model + 3 * self._width(d_model)


@dataclass(frozen=True)
class RWKVChannels(Spec):
    """RWKV's channel mixing, a mixer because it sees the row before: see :class:`ChannelMix`.

    Args:
        d_ff: size of the inner layer; 4 · d_model when omitted.

    Source: [peng2023rwkv]
    Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
    """

    d_ff: int | None = None
    word = "channels"
    of_memory = refuse_cross

    def __post_init__(self) -> None:
        """Check the choice."""
        if self.d_ff is not None:
            check_number("d_ff", self.d_ff, 1, whole=True)

    def _width(self, d_model: int) -> int:
        return 4 * d_model if self.d_ff is None else self.d_ff

    def check(self, site: Site) -> None:
        """Raise ValueError where the place is no decoder."""
        check_causal("RWKVChannels", site)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        return ChannelMix(site.d_model, self._width(site.d_model))

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the token shift, the projections, the gate."""
        d, width, rows = run.d_model, self._width(run.d_model), run.batch * run.n
        yield run.rows(f"{name}.shift", 2 * d, moves=(3 * rows + 2) * d, keeps=2 * rows * d)
        yield run.linear(f"{name}.k_proj", d, width, bias=False)
        yield run.linear(f"{name}.r_proj", d, d, bias=False)
        keeps = 2 * rows * (width + d)
        yield run.linear(f"{name}.v_proj", width, d, bias=False, keeps=keeps)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the last row."""
        return d_model


class Nothing(nn.Module):
    """A feed-forward part that adds nothing to any row."""

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return zeros."""
        return torch.zeros_like(x)


@dataclass(frozen=True)
class NoFFN(Spec):
    """No feed-forward part, for a layer that is a mixer alone.

    With ``parallel=True, one_norm=True`` the layer has no norm for it either.

    Example:
        >>> from tfbook.models.layers import Layer
        >>> layer = Layer(Retention(4), NoFFN(), parallel=True, one_norm=True)

    Source: [gu2024mamba]
    Explained in: chapters/09_hybrids, section "A hybrid is a list".
    """

    def build(self, site: Site) -> nn.Module:
        """Make a module that gives zeros."""
        return Nothing()

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield one row, of zeros, that costs nothing."""
        yield run.rows(name, moves=0)
