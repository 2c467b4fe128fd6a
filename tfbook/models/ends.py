"""The two ends of a model as descriptions: the embedding it begins with and the head it ends in.

Explained in: chapters/05_architecture_deeper, section "From words in to words out".
"""

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace

from torch import nn

from tfbook._checks import check_bool, check_choice, check_number
from tfbook.blocks import (
    FEED_FORWARDS,
    GATES,
    LanguageHead,
    MaskedHead,
    PatchEmbedding,
    TokenEmbedding,
)
from tfbook.models.layers import KEEP_INPUT, Norm, check_spec
from tfbook.models.placements import InEmbedding
from tfbook.models.spec import Part, Run, Site, Spec

__all__ = ["Classes", "MaskedToken", "NextToken", "Patches", "Tokens"]

ROOT = "sqrt(d_model)"


@dataclass(frozen=True)
class Tokens(Spec):
    """The embedding of tokens, see :class:`tfbook.blocks.TokenEmbedding`.

    Args:
        position: Sinusoidal or Learned, which are added here; None for none.
        scale: factor on the rows of the table: a number, "sqrt(d_model)", or None for 1.
        n_segments: kinds of segments with a table of their own; None for none. For encoders.
        norm: of the sum; None for none.
        dropout: rate on what leaves.

    Source: [vaswani2017attention], [devlin2019bert]
    Explained in: chapters/05_architecture_deeper, section "From words in to words out".
    """

    position: InEmbedding | None = None
    _: KW_ONLY
    scale: float | str | None = None
    n_segments: int | None = None
    norm: Norm | None = None
    dropout: float = 0.0
    word = "embedding"

    def __post_init__(self) -> None:
        """Check the choices."""
        check_spec("embedding position", self.position, InEmbedding, open=True)
        if isinstance(self.scale, str):
            check_choice("embedding_scale", self.scale, (ROOT,))
        elif self.scale is not None:
            check_number("embedding_scale", self.scale, above=0)
        if self.n_segments is not None:
            check_number("n_segments", self.n_segments, 1, whole=True)
        check_spec("embedding norm", self.norm, Norm, open=True)
        check_number("embedding_dropout", self.dropout, 0, below=1)

    def check(self, site: Site) -> None:
        """Raise ValueError where something is missing."""
        if site.vocab_size is None:
            raise ValueError("vocab_size is needed for a model of tokens, got None")
        if self.position is not None:
            self.position.check(site)

    def build(self, site: Site, embed: nn.Module | None = None) -> TokenEmbedding:
        """Make the module, around a table of its own or a given one."""
        d, n_segments = site.d_model, self.n_segments
        return TokenEmbedding(
            nn.Embedding(site.vocab_size, d) if embed is None else embed,
            segments=None if n_segments is None else nn.Embedding(n_segments, d),
            position=None if self.position is None else self.position.build(site),
            norm=None if self.norm is None else self.norm.make(d),
            scale=math.sqrt(d) if self.scale == ROOT else self.scale,
            dropout=self.dropout,
            max_len=site.max_len,
        )

    def price(self, name: str, run: Run, *, shared: bool = False) -> Iterator[Part]:
        """Yield the tables, with ``name`` before their names; a shared table is there already."""
        rows = run.batch * run.n * run.d_model  # read from the table, which is not read whole
        memory = {"moves": 2 * rows, "masks": run.dropped(self.dropout, rows)}
        if shared:
            yield run.rows("embed", **memory)
        else:
            yield run.rows(f"{name}embed", run.vocab_size * run.d_model, **memory)
        if self.n_segments is not None:
            yield run.rows("segments", self.n_segments * run.d_model)
        yield from _price_rest(self, name, run, run.max_len)


@dataclass(frozen=True)
class Patches(Spec):
    """An image cut into squares, each of which becomes one token.

    Args:
        image_size: pixels along each side of the image.
        patch_size: pixels along each side of a patch, a divisor of it.
        n_channels: colours.
        position: Sinusoidal or Learned, which are added here; None for none.
        norm: of the sum; None for none.
        dropout: rate on what leaves.

    Source: [dosovitskiy2021image]
    Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
    """

    image_size: int
    patch_size: int
    n_channels: int = 3
    _: KW_ONLY
    position: InEmbedding | None = None
    norm: Norm | None = None
    dropout: float = 0.0
    word = "embedding"

    def __post_init__(self) -> None:
        """Check the choices."""
        for name in ("image_size", "patch_size", "n_channels"):
            check_number(f"patches.{name}", getattr(self, name), 1, whole=True)
        if self.image_size % self.patch_size:
            raise ValueError(f"patch_size must divide image_size, got {self}")
        check_spec("embedding position", self.position, InEmbedding, open=True)
        check_spec("embedding norm", self.norm, Norm, open=True)
        check_number("embedding_dropout", self.dropout, 0, below=1)

    @property
    def count(self) -> int:
        """Return how many patches there are."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def numbers(self) -> int:
        """Return how many numbers a patch holds."""
        return self.patch_size**2 * self.n_channels

    @property
    def length(self) -> int:
        """Return how many rows a model reads: the class token and the patches."""
        return self.count + 1

    def check(self, site: Site) -> None:
        """Raise ValueError where tokens and images are mixed."""
        for name in ("max_len", "vocab_size"):
            if (value := getattr(site, name)) is not None:
                raise ValueError(f"{name} must be None for a model of images, got {value}")
        if self.position is not None:
            self.position.check(replace(site, max_len=self.length))

    def build(self, site: Site, embed: nn.Module | None = None) -> TokenEmbedding:
        """Make the module."""
        sizes = (self.image_size, self.patch_size, self.n_channels)
        embed = PatchEmbedding(*sizes, site.d_model) if embed is None else embed
        places = replace(site, max_len=self.length)
        return TokenEmbedding(
            embed,
            position=None if self.position is None else self.position.build(places),
            norm=None if self.norm is None else self.norm.make(site.d_model),
            dropout=self.dropout,
        )

    def price(self, name: str, run: Run, *, shared: bool = False) -> Iterator[Part]:
        """Yield the linear map of the patches, the class token, positions and norm."""
        patches = replace(run, n=self.count)
        yield patches.linear(f"{name}embed.proj", self.numbers, run.d_model)
        masks = run.dropped(self.dropout, run.batch * run.n * run.d_model)
        yield run.rows(f"{name}embed", run.d_model, masks=masks)
        yield from _price_rest(self, name, run, self.length)


def _price_rest(spec: Tokens | Patches, name: str, run: Run, max_len: int | None) -> Iterator[Part]:
    """Yield what tokens and images have in common."""
    d, rows = run.d_model, run.batch * run.n
    if spec.position is not None:
        weights, masks = spec.position.parameters(d, max_len), spec.position.index_bytes * run.n
        yield run.rows(f"{name}position", weights, moves=(2 * rows + run.n) * d, masks=masks)
    if spec.norm is not None:
        weights, keeps = spec.norm.parameters(d), rows * spec.norm.keeps(d)
        yield run.rows(f"{name}embed_norm", weights, keeps=keeps)


@dataclass(frozen=True)
class NextToken(Spec):
    """Score every token as the next one, see :class:`tfbook.blocks.LanguageHead`.

    Args:
        tie_embeddings: whether the scores use the embedding's table.
        scale: factor on the last hidden states; None for 1.
        bias: whether each token has a bias.

    Source: tied: [press2017using]
    Explained in: chapters/05_architecture_deeper, section "From words in to words out".
    """

    _: KW_ONLY
    tie_embeddings: bool = True
    scale: float | None = None
    bias: bool = False
    word = "head"

    def __post_init__(self) -> None:
        """Check the choices."""
        check_bool("tie_embeddings", self.tie_embeddings)
        check_bool("head_bias", self.bias)
        if self.scale is not None:
            check_number("head_scale", self.scale, above=0)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = {"tied": self.tie_embeddings, "scale": self.scale, "bias": self.bias}
        return LanguageHead(site.d_model, site.vocab_size, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the product with the table."""
        scores = run.linear(name, run.d_model, run.vocab_size, bias=self.bias)
        tied = run.vocab_size * run.d_model * self.tie_embeddings
        yield scores._replace(parameters=scores.parameters - tied)


@dataclass(frozen=True)
class MaskedToken(Spec):
    """Score every token for a hidden place, see :class:`tfbook.blocks.MaskedHead`.

    Args:
        activation: a kind of feed-forward network, whose activation is used.
        norm: of what is compared with the table.
        tie_embeddings: whether the scores use the embedding's table.

    Source: [devlin2019bert]
    Explained in: chapters/05_architecture_deeper, section "Encoder only: BERT".
    """

    activation: str = "gelu"
    _: KW_ONLY
    norm: Norm = Norm()
    tie_embeddings: bool = True
    word = "head"

    def __post_init__(self) -> None:
        """Check the choices."""
        check_choice("activation", self.activation, FEED_FORWARDS)
        check_spec("head norm", self.norm, Norm)
        check_bool("tie_embeddings", self.tie_embeddings)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        return MaskedHead(
            site.d_model,
            site.vocab_size,
            activation=self.activation,
            norm=self.norm.make,
            tied=self.tie_embeddings,
        )

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the transform, its norm, and the product with the table."""
        d, rows = run.d_model, run.batch * run.n
        kept = 1 + (GATES.get(self.activation, self.activation) in KEEP_INPUT)
        yield run.linear(f"{name}.dense", d, d, keeps=kept * rows * d)
        keeps = rows * self.norm.keeps(d)
        yield run.rows(f"{name}.norm", self.norm.parameters(d), keeps=keeps)
        scores = run.linear(name, run.d_model, run.vocab_size)
        tied = run.vocab_size * run.d_model * self.tie_embeddings
        yield scores._replace(parameters=scores.parameters - tied)


@dataclass(frozen=True)
class Classes(Spec):
    """Score classes of the whole sequence: a linear map of its first row.

    Args:
        n_classes: how many.

    Source: [devlin2019bert]
    Explained in: chapters/05_architecture_deeper, section "Encoder only: BERT".
    """

    n_classes: int
    word = "head"

    def __post_init__(self) -> None:
        """Check the number."""
        check_number("n_classes", self.n_classes, 1, whole=True)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        return nn.Linear(site.d_model, self.n_classes)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the linear map of one row for each sequence."""
        d, classes, batch = run.d_model, self.n_classes, run.batch
        weights = d * classes + classes
        # It keeps the first row, which is a view of all rows, so all of them stay.
        memory = {"moves": batch * (d + classes) + weights, "keeps": batch * run.n * d}
        yield run.part(name, (batch, classes), weights, 2 * batch * d * classes, **memory)
