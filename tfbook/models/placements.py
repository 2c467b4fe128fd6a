"""How a model knows order, as descriptions: added to embeddings, or a part of the attention.

Explained in: chapters/05_architecture_deeper, section "From words in to words out".
"""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from torch import nn

from tfbook._checks import check_even, check_number
from tfbook.blocks import SharedBias
from tfbook.models.spec import Part, Run, Site, Spec
from tfbook.positions import (
    LAYOUTS,
    ALiBi,
    LearnedPositions,
    RotaryPositions,
    RotaryScaling,
    ShawPositions,
    SinusoidalPositions,
    T5Bias,
    TransformerXLPositions,
    check_base,
)

__all__ = ["Learned", "LinearBias", "Rotary", "Shaw", "Sinusoidal", "T5Buckets", "TransformerXL"]


class Heads(NamedTuple):
    """The sizes of an attention's heads, none of them open."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int


class InEmbedding(Spec):
    """A position that is added to the embeddings.

    Attributes:
        index_bytes: of a place in its table, which looking up keeps for the backward pass.

    Explained in: chapters/05_architecture_deeper, section "From words in to words out".
    """

    index_bytes = 0

    def parameters(self, d_model: int, max_len: int | None) -> int:
        """Count its parameters."""
        return 0


@dataclass(frozen=True)
class Sinusoidal(InEmbedding):
    """Sines and cosines of the position, see :class:`tfbook.positions.SinusoidalPositions`.

    Source: [vaswani2017attention]
    Explained in: chapters/04_positions, section "Sinusoidal encoding".
    """

    base: float = 10000.0

    def __post_init__(self) -> None:
        """Check the base."""
        check_base(self.base)

    def check(self, site: Site) -> None:
        """Raise ValueError unless d_model is even."""
        check_even("d_model", site.d_model)

    def build(self, site: Site) -> nn.Module:
        """Make the part."""
        return SinusoidalPositions(site.d_model, self.base)


@dataclass(frozen=True)
class Learned(InEmbedding):
    """A vector for each of max_len positions, see :class:`tfbook.positions.LearnedPositions`.

    Source: [gehring2017convolutional]
    Explained in: chapters/04_positions, section "Learned embeddings".
    """

    index_bytes = 8

    def check(self, site: Site) -> None:
        """Raise ValueError unless the number of positions is known."""
        if site.max_len is None:
            raise ValueError("learned positions need max_len, the number of them")

    def build(self, site: Site) -> nn.Module:
        """Make the table."""
        return LearnedPositions(site.max_len, site.d_model)

    def parameters(self, d_model: int, max_len: int | None) -> int:
        """Count the table."""
        return max_len * d_model


class InAttention(Spec):
    """A position that is a part of the attention; ``heads`` are the sizes of its heads.

    Attributes:
        unscaled: whether the scores are not divided by √d_head.

    Explained in: chapters/05_architecture_deeper, section "From words in to words out".
    """

    unscaled = False

    def fits(self, heads: Heads) -> None:
        """Raise ValueError where it does not fit the heads."""

    def place(self, site: Site, heads: Heads) -> object:
        """Make the part, or return the one that the stack shares."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    def price_stack(self, name: str, run: Run, heads: Heads) -> Iterator[Part]:
        """Yield what a stack whose layers share it computes once."""
        yield from ()

    def price_layer(self, name: str, run: Run, heads: Heads) -> Iterator[Part]:
        """Yield what each layer has of its own."""
        yield from ()


@dataclass(frozen=True)
class Rotary(InAttention):
    """Queries and keys turn with their position, see :class:`tfbook.positions.RotaryPositions`.

    Args:
        base: of the frequencies.
        layout: "interleaved" or "half", see :func:`tfbook.positions.apply_rotary`.
        scaling: None or a scaling for longer contexts, such as ``YarnScaling``.
        share: the share of each head that is turned, rounded down to whole numbers.

    Source: [su2024roformer]
    Explained in: chapters/04_positions, section "Rotary embeddings".
    """

    base: float = 10000.0
    _: KW_ONLY
    layout: str = "interleaved"
    scaling: RotaryScaling | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        """Check the choices."""
        check_base(self.base)
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {self.layout!r}")
        if not (self.scaling is None or isinstance(self.scaling, RotaryScaling)):
            raise TypeError(f"scaling must be a RotaryScaling, got {type(self.scaling).__name__}")
        check_number("share", self.share, above=0)
        if self.share > 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}")

    def turned(self, d_head: int) -> int:
        """Return how many numbers of a head are turned."""
        return int(d_head * self.share)

    def fits(self, heads: Heads) -> None:
        """Raise ValueError unless the numbers that are turned are pairs."""
        check_even("d_head" if self.share == 1 else "share · d_head", self.turned(heads.d_head))

    def place(self, site: Site, heads: Heads) -> object:
        """Return the part that the layers share; it has no weights."""

        def make() -> nn.Module:
            return RotaryPositions(
                heads.d_head,
                rotated=self.turned(heads.d_head),
                base=self.base,
                layout=self.layout,
                scaling=self.scaling,
            )

        return site.once((self, heads.d_head), make)


@dataclass(frozen=True)
class T5Buckets(InAttention):
    """A learned bias for each bucket of distances, see :class:`tfbook.positions.T5Bias`.

    The layers of a stack share one table, and nothing is divided by √d_head.

    Args:
        n_buckets: buckets of distances, even.
        max_distance: from which distance on keys are told apart no more.

    Source: [raffel2020exploring]
    Explained in: chapters/04_positions, section "Relative positions".
    """

    n_buckets: int = 32
    max_distance: int = 128
    unscaled = True

    def __post_init__(self) -> None:
        """Check the choices."""
        check_number("n_buckets", self.n_buckets, 4, whole=True)
        check_even("n_buckets", self.n_buckets)
        check_number("max_distance", self.max_distance, 1, whole=True)
        if self.max_distance <= self.n_buckets // 2:
            raise ValueError(
                f"max_distance must be above half of n_buckets = {self.n_buckets}, "
                f"got {self.max_distance}"
            )

    def place(self, site: Site, heads: Heads) -> object:
        """Return the handle of the table that the stack shares."""

        def make() -> SharedBias:
            return SharedBias(
                T5Bias(
                    heads.n_heads,
                    self.n_buckets,
                    self.max_distance,
                    bidirectional=not site.causal,
                )
            )

        return site.once((self, heads.n_heads), make)

    def price_stack(self, name: str, run: Run, heads: Heads) -> Iterator[Part]:
        """Yield the bias, which is made once for all layers."""
        shape = (heads.n_heads, run.n, run.past + run.n)
        pairs, weights = run.n * (run.past + run.n), self.n_buckets * heads.n_heads
        memory = {"moves": weights + pairs * heads.n_heads, "masks": 8 * pairs}  # bucket numbers
        yield run.part(name, shape, weights, **memory)


@dataclass(frozen=True)
class LinearBias(InAttention):
    """A fixed slope on the distance for each head, see :class:`tfbook.positions.ALiBi`.

    Source: [press2022train]
    Explained in: chapters/04_positions, section "ALiBi: a fixed cost for each position back".
    """

    def place(self, site: Site, heads: Heads) -> object:
        """Return the handle of the bias that the stack shares."""
        return site.once((self, heads.n_heads), lambda: SharedBias(ALiBi(heads.n_heads)))


@dataclass(frozen=True)
class Shaw(InAttention):
    """A learned key for each distance and layer, see :class:`tfbook.positions.ShawPositions`.

    Args:
        max_distance: from which distance on keys are told apart no more.

    Source: [shaw2018self]
    Explained in: chapters/04_positions, section "Relative positions".
    """

    max_distance: int = 128

    def __post_init__(self) -> None:
        """Check the distance."""
        check_number("max_distance", self.max_distance, 1, whole=True)

    def place(self, site: Site, heads: Heads) -> object:
        """Make a table for one layer."""
        return ShawPositions(heads.d_head, self.max_distance)

    def price_layer(self, name: str, run: Run, heads: Heads) -> Iterator[Part]:
        """Yield the products of queries and distances."""
        rows, shape = 2 * self.max_distance + 1, (run.batch, heads.n_heads, run.n, run.past + run.n)
        queries, weights = run.batch * heads.n_heads * run.n * heads.d_head, rows * heads.d_head
        moves = queries + weights + math.prod(shape)
        yield run.part(f"{name}.position", shape, weights, 2 * queries * rows, moves=moves)


@dataclass(frozen=True)
class TransformerXL(InAttention):
    """Sinusoids of the distance in each layer, see `tfbook.positions.TransformerXLPositions`.

    Source: [dai2019transformerxl]
    Explained in: chapters/04_positions, section "Relative positions".
    """

    def fits(self, heads: Heads) -> None:
        """Raise ValueError unless there are pairs of numbers for sines and cosines."""
        check_even("n_heads · d_head", heads.n_heads * heads.d_head)

    def place(self, site: Site, heads: Heads) -> object:
        """Make the weights of one layer."""
        return TransformerXLPositions(heads.n_heads, heads.d_head)

    def price_layer(self, name: str, run: Run, heads: Heads) -> Iterator[Part]:
        """Yield the map of the distances and its products with the queries."""
        width, keys = heads.n_heads * heads.d_head, run.past + run.n
        queries, distances = 2 * run.batch * run.n * width, run.n + keys - 1
        flops = 2 * distances * width**2 + queries * distances
        shape, weights = (run.batch, heads.n_heads, run.n, keys), width**2 + width
        moves = (run.batch * run.n + distances) * width + weights + math.prod(shape)
        yield run.part(f"{name}.position", shape, weights, flops, moves=moves)
