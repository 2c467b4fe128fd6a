"""Attentions that look in another way: described, built and priced as parts of a layer.

``[Layer(Gated(Attention(8)), FFN(2048)), Layer(NativeSparse(8), FFN(2048))] * 6`` is a model of
twelve layers. Those that change what is around an attention hold the description of one.

Explained in: chapters/09_hybrids, section "A hybrid is a list".
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace

from torch import nn

from tfbook._checks import check_bool, check_choice, check_number, chosen_names, head_sizes
from tfbook.attention import VARIANTS, DifferentialAttention, GatedAttention
from tfbook.efficient import IndexedAttention, NativeSparseAttention, SegmentAttention
from tfbook.models.layers import Attention, check_spec, read_options
from tfbook.models.mixers import check_causal, refuse_cross
from tfbook.models.placements import Heads, InAttention, Rotary
from tfbook.models.spec import Part, Run, Site, Spec

__all__ = ["Differential", "Gated", "Indexed", "NativeSparse", "Segments"]

MIXED = (".scores", ".z")


class _Around:
    """What descriptions that hold an attention share."""

    @property
    def position(self) -> InAttention | None:
        """Return the attention's position, which a stack asks for."""
        return self.attention.position

    @property
    def n_heads(self) -> int:
        """Return how many heads there are."""
        return self.attention.n_heads

    def heads(self, d_model: int) -> Heads:
        """Return the sizes of the heads, none of them open."""
        return self.attention.heads(d_model)

    def of_memory(self) -> Attention:
        """Return the attention itself as a layer's ``cross``: it is one at a time."""
        return self.attention.of_memory()

    def check(self, site: Site) -> None:
        """Raise ValueError where the attention does not fit its place, or looks into a memory."""
        if site.memory:
            raise ValueError(f"{type(self).__name__} is no cross-attention: name an Attention")
        self.attention.check(site)


@dataclass(frozen=True)
class Gated(_Around, Spec):
    """An attention whose finds pass a gate, see :class:`tfbook.attention.GatedAttention`.

    Args:
        attention: heads and the rest.
        per: "element" for a gate on each number that a head finds, "head" for one on each head.
        gate_bias: whether the gate has a bias.

    Example:
        >>> Gated(Attention(4), per="head").held(64, length=10)  # a gate needs no memory
        1280

    Source: [qiu2025gated]
    Explained in: chapters/08_architectural_variants_deeper, section
    "A head that may look at nothing".
    """

    attention: Attention
    _: KW_ONLY
    per: str = "element"
    gate_bias: bool = True
    word = "gated"

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        check_spec("attention", self.attention, Attention)
        check_choice("per", self.per, ("element", "head"))
        check_bool("gate_bias", self.gate_bias)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = self.attention.choices(site) | {"per": self.per, "gate_bias": self.gate_bias}
        return GatedAttention(site.d_model, self.n_heads, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the attention, the gate, and the projection that is behind it."""
        heads, rows = self.heads(run.d_model), run.batch * run.n
        width = heads.n_heads * heads.d_value
        gates = width if self.per == "element" else heads.n_heads
        *inner, out = self.attention.price(f"{name}.attention", run)
        yield from inner
        keeps = rows * (gates + width + width * (self.per == "head"))  # both factors
        yield run.linear(f"{name}.gate_proj", run.d_model, gates, bias=self.gate_bias, keeps=keeps)
        yield out._replace(name=f"{name}.out_proj")

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the keys and values of so many rows."""
        return self.attention.held(d_model, length)


@dataclass(frozen=True)
class Segments(_Around, Spec):
    """An attention that remembers rows of earlier calls, see `tfbook.efficient.SegmentAttention`.

    What one call reads is a segment: its rows see all rows of it that came before, and the last
    ``length`` rows of earlier calls. So it matters where a sequence is cut, unless ``length`` is as
    large as the sequence.

    Args:
        attention: heads and the rest; its position, if any, one that depends on distances.
        length: rows that are kept.
        pooled: pooled rows that are kept in front of them; 0 forgets what is too old.
        rate: how many rows become one.
        pool: "mean", "max" or "conv".
        detach: whether the gradient stops at what is remembered.

    Example:
        >>> from tfbook.models.placements import TransformerXL
        >>> spec = Segments(Attention(4, position=TransformerXL()), 100)
        >>> [spec.held(64, length) for length in (10, 1000)]  # rows, not keys and values
        [640, 6400]

    Source: [dai2019transformerxl], pooled: [rae2020compressive]
    Explained in: chapters/07_efficient_attention_deeper, section "Memory across segments".
    """

    attention: Attention
    length: int
    _: KW_ONLY
    pooled: int = 0
    rate: int = 4
    pool: str = "mean"
    detach: bool = True
    word = "segments"

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        check_spec("attention", self.attention, Attention)
        if self.attention.window is not None:
            raise ValueError(f"attention must have no window, got {self.attention.window}")
        check_number("length", self.length, 0, whole=True)
        check_number("pooled", self.pooled, 0, whole=True)
        check_number("rate", self.rate, 1, whole=True)
        check_choice("pool", self.pool, ("mean", "max", "conv"))
        check_bool("detach", self.detach)

    def check(self, site: Site) -> None:
        """Raise ValueError where the attention does not fit, or the place is no decoder."""
        check_causal("Segments", site)
        super().check(site)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = {"pooled": self.pooled, "rate": self.rate, "pool": self.pool}
        attention = self.attention.build(site)
        return SegmentAttention(attention, self.length, detach=self.detach, **choices)

    def _rows(self, seen: int) -> tuple[int, int]:
        """Return how many rows have left the memory behind so many, and how many are held."""
        old = max(0, seen - self.length)
        if not self.pooled:
            return old, seen - old
        old -= old % self.rate
        return old, seen - old + min(self.pooled, old // self.rate)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the attention to the memory and the segment, and the learned pool."""
        d, (gone, past) = run.d_model, self._rows(run.past)
        heads, biased = self.heads(d), chosen_names("bias", self.attention.bias, tuple("qkv"))
        memory = replace(run, n=max(past, 1))
        for part in self.attention.price(f"{name}.attention", replace(run, past=past)):
            which = part.name.rpartition(".")[2].removesuffix("_proj")
            if past and which in ("k", "v"):  # of what is remembered too
                width = heads.n_kv_heads * (heads.d_head if which == "k" else heads.d_value)
                again = memory.linear("", d, width, bias=which in biased)
                moved, saved = part.moved + again.moved, part.saved + again.saved * (which == "k")
                part = part._replace(flops=part.flops + again.flops, moved=moved, saved=saved)
            yield part
        if self.pooled and self.pool == "conv":
            made = (self._rows(run.past + run.n)[0] - gone) // self.rate
            weights = d * d * self.rate
            flops, shape = 2 * run.batch * made * weights, (run.batch, made, d)
            numbers = run.batch * made * d
            moves = (numbers * (self.rate + 1) + weights + d) * (made > 0)
            keeps = numbers * self.rate * (not self.detach)
            yield run.part(f"{name}.conv", shape, weights + d, flops, moves=moves, keeps=keeps)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the rows that are kept after so many."""
        return self._rows(length)[1] * d_model


@dataclass(frozen=True)
class Indexed(_Around, Spec):
    """An attention to chosen keys only, see :class:`tfbook.efficient.IndexedAttention`.

    Only :func:`tfbook.efficient.index_loss` trains the indexer: the choice of keys gives it no
    gradient.

    Args:
        attention: heads and the rest; without dropout, window, or another attention function, and
            its position a :class:`Rotary` one or none.
        top: how many keys a query reads.
        index_heads: heads of the indexer.
        d_index: size of its keys.

    Example:
        >>> Indexed(Attention(4), top=8, d_index=16).held(64, length=10)
        1440

    Source: [deepseek2025v32]
    Explained in: chapters/07_efficient_attention, section "Choosing what to read".
    """

    attention: Attention
    top: int
    _: KW_ONLY
    index_heads: int = 4
    d_index: int = 32
    word = "indexed"

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        check_spec("attention", self.attention, Attention)
        plain = Attention(1)
        for name in ("dropout", "window", "attend", "options", "n_sinks"):
            if (value := getattr(self.attention, name)) != getattr(plain, name):
                raise ValueError(f"attention must have no {name} of its own, got {value!r}")
        _check_rotary(self.position)
        for name in ("top", "index_heads", "d_index"):
            check_number(name, getattr(self, name), 1, whole=True)

    def check(self, site: Site) -> None:
        """Raise ValueError where the attention does not fit, or the place is no decoder."""
        check_causal("Indexed", site)
        super().check(site)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        names = "n_kv_heads d_head d_value bias scale qk_norm qk_norm_whole position".split()
        choices = self.attention.choices(site)
        choices = {name: choices[name] for name in names}
        choices |= {"index_heads": self.index_heads, "d_index": self.d_index}
        return IndexedAttention(site.d_model, self.n_heads, top=self.top, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the projections, the indexer, and the attention to what it has chosen.

        What the indexer makes is not kept for a backward pass: no gradient goes there.
        """
        d, rows, heads = run.d_model, run.batch * run.n, self.heads(run.d_model)
        keys = run.past + run.n
        *inner, out = self.attention.price(f"{name}.attention", run)
        yield from (part for part in inner if not part.name.endswith(MIXED))
        sizes = {"q": self.index_heads * self.d_index, "k": self.d_index}
        for which, width in (*sizes.items(), ("weight", self.index_heads)):
            yield run.linear(f"{name}.indexer.{which}_proj", d, width, bias=False, keeps=0)
        pairs, width = rows * keys, self.index_heads * self.d_index
        flops = 2 * pairs * self.index_heads * (self.d_index + 1)
        moves = rows * (width + self.index_heads) + run.batch * keys * self.d_index + pairs
        yield run.part(f"{name}.indexer", (run.batch, run.n, keys), 0, flops, moves=moves)
        yield from _price_chosen(name, run, heads, min(self.top, keys), groups=1)
        yield out

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the keys and values, and of the indexer's keys."""
        return self.attention.held(d_model, length) + self.d_index * length


@dataclass(frozen=True)
class NativeSparse(Spec):
    """Pooled blocks, chosen blocks and the last keys: `tfbook.efficient.NativeSparseAttention`.

    Args:
        n_heads: H.
        n_kv_heads: G, heads of keys and values, a divisor of H; H when omitted.
        d_head: size of a query, key and value; d_model / H when omitted.
        block: rows in a block.
        top: how many blocks a query reads, its own included.
        window: how many of the last keys it reads, its own included.
        pool: "mean" or "mlp".
        position: a :class:`Rotary` one or none.
        bias: whether the projections have one.

    Example:
        >>> NativeSparse(4, block=4, window=8).held(64, length=10)
        2688

    Source: [yuan2025native]
    Explained in: chapters/07_efficient_attention, section "Choosing what to read".
    """

    n_heads: int
    _: KW_ONLY
    n_kv_heads: int | None = None
    d_head: int | None = None
    block: int = 16
    top: int = 4
    window: int = 64
    pool: str = "mlp"
    position: Rotary | None = None
    bias: bool = False
    word = "native"
    of_memory = refuse_cross

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        for name in ("n_heads", "block", "top", "window"):
            check_number(name, getattr(self, name), 1, whole=True)
        for name in ("n_kv_heads", "d_head"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1, whole=True)
        check_choice("pool", self.pool, ("mean", "mlp"))
        _check_rotary(self.position)
        check_bool("bias", self.bias)

    def heads(self, d_model: int) -> Heads:
        """Return the sizes of the heads, none of them open."""
        sizes = head_sizes(d_model, self.n_heads, self.n_kv_heads, self.d_head, None)
        return Heads(self.n_heads, *sizes)

    def check(self, site: Site) -> None:
        """Raise ValueError where the sizes do not fit d_model, or the place is no decoder."""
        check_causal("NativeSparse", site)
        heads = self.heads(site.d_model)
        if self.position is not None:
            self.position.fits(heads)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        heads = self.heads(site.d_model)
        return NativeSparseAttention(
            site.d_model,
            self.n_heads,
            n_kv_heads=heads.n_kv_heads,
            d_head=heads.d_head,
            block=self.block,
            top=self.top,
            window=self.window,
            pool=self.pool,
            position=None if self.position is None else self.position.place(site, heads),
            bias=self.bias,
        )

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the projections, the pools, the three branches, the gates, the output."""
        d, batch, n, heads = run.d_model, run.batch, run.n, self.heads(run.d_model)
        size, groups, lines = heads.d_head, heads.n_kv_heads, batch * heads.n_heads * n
        widths = {"q": heads.n_heads * size, "k": 3 * groups * size, "v": 3 * groups * size}
        for which, width in widths.items():
            keeps = None if which == "q" else 0
            yield run.linear(f"{name}.{which}_proj", d, width, bias=self.bias, keeps=keeps)
        blocks = (run.past + n) // self.block
        made = batch * groups * (blocks - run.past // self.block)
        for which in "kv":
            yield self._price_pool(f"{name}.{which}_pool", run, made, size)
        held, pairs = batch * groups * blocks * size, lines * blocks
        keeps = lines * size + 2 * held + 2 * pairs
        moves = 2 * lines * size + 2 * held
        shape, masks = (batch, heads.n_heads, n, size), lines + n * blocks
        memory = {"moves": moves, "keeps": keeps, "masks": masks}
        yield run.part(f"{name}.pooled", shape, 0, 4 * pairs * size, **memory)
        chosen = self.block * (min(self.top - 1, blocks) + 1)
        yield from _price_chosen(name, run, heads, chosen, groups=groups)
        near = min(run.past, self.window - 1) + n
        flops = VARIANTS["window"].flops(n, near, size, size, causal=True, window=self.window)
        keys = 2 * batch * groups * near * size
        memory = {"moves": 2 * lines * size + keys, "keeps": lines * (size + 1) + keys}
        yield run.part(f"{name}.near", shape, 0, batch * heads.n_heads * sum(flops), **memory)
        keeps = lines * (3 + 3 * size)  # the gates, and what each lets pass
        yield run.linear(f"{name}.gate_proj", d, 3 * heads.n_heads, keeps=keeps)
        yield run.linear(f"{name}.out_proj", widths["q"], d, bias=self.bias)

    def _price_pool(self, name: str, run: Run, made: int, size: int) -> Part:
        """Return the row of a pool that makes so many rows."""
        whole = self.block * size  # numbers of a block
        weights, flops, keeps = whole, 0, 0
        if self.pool == "mlp":
            weights += 2 * size * (whole + 1) + size * (2 * size + 1)
            flops, keeps = 2 * made * (2 * size * whole + 2 * size * size), whole + 2 * size
        moves = (made * (whole + size) + weights) * (made > 0)
        shape = (made, size)
        return run.part(name, shape, weights, flops, moves=moves, keeps=made * keeps)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of all keys, of those in the window, of blocks, and of the rest."""
        heads, near = self.heads(d_model), min(length, self.window - 1)
        rows = length + near + length // self.block + length % self.block
        return 2 * heads.n_kv_heads * heads.d_head * rows


@dataclass(frozen=True)
class Differential(Spec):
    """The difference of two attentions, see :class:`tfbook.attention.DifferentialAttention`.

    Args:
        n_heads: H; 2 H divides d_model, for each head has two of queries and of keys.
        layer: number of the layer from 0, for λ_init.
        lambda_init: λ_init itself, in the place of that of the layer.
        position: a :class:`Rotary` one or none.
        normalise: whether each head is normalised and scaled.
        eps: ε of that norm.
        attend: as for :class:`Attention`.
        options: as for :class:`Attention`.

    Example:
        >>> [Differential(4).held(64, length=10), Attention(8).held(64, length=10)]
        [1280, 1280]

    Source: [ye2025differential]
    Explained in: chapters/08_architectural_variants_deeper, section "Attention that subtracts".
    """

    n_heads: int
    _: KW_ONLY
    layer: int = 0
    lambda_init: float | None = None
    position: Rotary | None = None
    normalise: bool = True
    eps: float = 1e-5
    attend: str = "sdpa"
    options: dict[str, object] | tuple = ()
    word = "differential"
    of_memory = refuse_cross

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        check_number("n_heads", self.n_heads, 1, whole=True)
        check_number("layer", self.layer, 0, whole=True)
        if self.lambda_init is not None:
            check_number("lambda_init", self.lambda_init, 0, below=1)
        _check_rotary(self.position)
        check_bool("normalise", self.normalise)
        check_number("eps", self.eps, above=0)
        object.__setattr__(self, "options", read_options(self.attend, self.options))

    def heads(self, d_model: int) -> Heads:
        """Return the sizes of the heads of queries and keys, with values of twice the size."""
        size = d_model // (2 * self.n_heads)
        return Heads(2 * self.n_heads, 2 * self.n_heads, size, 2 * size)

    def check(self, site: Site) -> None:
        """Raise ValueError where the sizes do not fit d_model, or the place is a look elsewhere."""
        if site.memory:
            raise ValueError("Differential is no cross-attention: it cannot look into a memory")
        if site.d_model % (2 * self.n_heads):
            raise ValueError(
                f"2 · n_heads must divide d_model, got {self.n_heads} and {site.d_model}"
            )
        if self.position is not None:
            self.position.fits(self.heads(site.d_model))

    def _inner(self, d_model: int) -> Attention:
        """Return the attention of both maps; SDPA has queries filled up to the size of values."""
        heads = self.heads(d_model)
        size = heads.d_value if self.attend == "sdpa" else heads.d_head
        sizes = {"d_head": size, "d_value": heads.d_value}
        return Attention(heads.n_heads, attend=self.attend, options=self.options, **sizes)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        heads, attend = self.heads(site.d_model), self._inner(site.d_model).choices(site)["attend"]
        return DifferentialAttention(
            site.d_model,
            self.n_heads,
            layer=self.layer,
            lambda_init=self.lambda_init,
            causal=site.causal,
            attend=attend,
            position=None if self.position is None else self.position.place(site, heads),
            normalise=self.normalise,
            eps=self.eps,
        )

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the projections, both maps, their difference, the norm, the output."""
        d, rows, heads = run.d_model, run.batch * run.n, self.heads(run.d_model)
        for which in "qkv":
            keeps = None if which == "q" else 0
            yield run.linear(f"{name}.{which}_proj", d, d, bias=False, keeps=keeps)
        parts = self._inner(d).price(name, run)
        yield from (part for part in parts if part.name.endswith(MIXED))
        shape = (run.batch, self.n_heads, run.n, heads.d_value)
        memory = {"moves": 3 * rows * d, "keeps": 2 * rows * d}
        yield run.part(f"{name}.difference", shape, 4 * heads.d_head, **memory)
        if self.normalise:
            keeps = rows * (2 * d + self.n_heads)
            yield run.part(f"{name}.norm", shape, heads.d_value, keeps=keeps)
        yield run.linear(f"{name}.out_proj", d, d, bias=False)

    def held(self, d_model: int, length: int) -> int:
        """Count the numbers of the keys and values of so many rows."""
        return 2 * d_model * length


def _check_rotary(position: object) -> None:
    check_spec("position", position, InAttention, open=True)
    if not (position is None or isinstance(position, Rotary)):
        raise ValueError(f"position must be Rotary or None, got {type(position).__name__}")


def _price_chosen(name: str, run: Run, heads: Heads, size: int, *, groups: int) -> Iterator[Part]:
    """Yield the attention of each query to so many keys, which are copied together."""
    lines = run.batch * heads.n_heads * run.n
    copied = run.batch * heads.n_kv_heads * run.n * size * (heads.d_head + heads.d_value)
    pairs, q, z = lines * size, lines * heads.d_head, lines * heads.d_value
    each = run.batch * heads.n_kv_heads * run.n * size
    memory = {"moves": 2 * copied + q + z, "keeps": copied + q + 2 * pairs, "masks": 8 * each}
    memory["masks"] += lines + run.batch * groups * run.n * size
    flops = 2 * pairs * (heads.d_head + heads.d_value)
    yield run.part(f"{name}.chosen", (run.batch, heads.n_heads, run.n, heads.d_value), 0, flops,
                   **memory)  # fmt: skip
