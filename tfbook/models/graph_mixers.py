"""Layers of graphs as mixers: described, built and priced as parts of a layer.

The graph is the mask, (B, N, N), True where a node looks at another one. So these stand in the
layers of an encoder that is called with such a mask; an attention beside them looks at neighbours
too.

Explained in: chapters/09_hybrids_deeper, section "Graph attention networks".
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

from torch import nn

from tfbook._checks import check_bool, check_choice, check_number, head_sizes
from tfbook.graphs import AGGREGATIONS, GraphAttention, MessagePassing
from tfbook.models.mixers import refuse_cross
from tfbook.models.spec import Part, Run, Site, Spec

__all__ = ["Messages", "Neighbours"]


def _check_encoder(kind: str, site: Site) -> None:
    """Raise ValueError unless the place is one where a graph says who sees whom."""
    if site.causal or site.memory:
        raise ValueError(f"{kind} is for an encoder, whose mask is the graph")


@dataclass(frozen=True)
class Neighbours(Spec):
    """Attention of nodes to their neighbours, see :class:`tfbook.graphs.GraphAttention`.

    Args:
        n_heads: H, a divisor of d_model.
        kind: "gat" or "gatv2".
        slope: of the leaky ReLU's negative side.
        bias: whether there is one.
        dropout: rate on the weights.

    Example:
        >>> import torch
        >>> layer = Neighbours(2).build(Site(8))
        >>> layer(torch.randn(1, 3, 8), mask=torch.eye(3).bool())[0].shape
        torch.Size([1, 3, 8])

    Source: [velickovic2018graph], [brody2022attentive]
    Explained in: chapters/09_hybrids_deeper, section "Graph attention networks".
    """

    n_heads: int
    _: KW_ONLY
    kind: str = "gat"
    slope: float = 0.2
    bias: bool = True
    dropout: float = 0.0
    word = "neighbours"
    of_memory = refuse_cross

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        check_number("n_heads", self.n_heads, 1, whole=True)
        check_choice("kind", self.kind, ("gat", "gatv2"))
        check_number("slope", self.slope, 0, 1)
        check_bool("neighbours_bias", self.bias)
        check_number("neighbours_dropout", self.dropout, 0, below=1)

    def check(self, site: Site) -> None:
        """Raise ValueError where the sizes do not fit d_model, or the place is no encoder."""
        _check_encoder("Neighbours", site)
        head_sizes(site.d_model, self.n_heads, None, None, None)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = {"slope": self.slope, "bias": self.bias, "dropout": self.dropout}
        return GraphAttention(site.d_model, self.n_heads, kind=self.kind, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the projections, the scores, and what is mixed, for all pairs of nodes."""
        d, n, batch, static = run.d_model, run.n, run.batch, self.kind == "gat"
        numbers, pairs = batch * n * d, batch * self.n_heads * n * n
        if not static:
            yield run.linear(f"{name}.q_proj", d, d, bias=False)
        yield run.linear(f"{name}.k_proj", d, d, bias=False, keeps=None if static else 0)
        shape = (batch, self.n_heads, n, n)
        flops = 0 if static else 2 * numbers * n  # GAT's scores are sums, no matrix product
        wide = 0 if static else numbers * n
        memory = {"moves": 2 * numbers + pairs, "keeps": 2 * pairs + 2 * wide}
        memory |= {"masks": batch * self.n_heads * n + batch * n * n}
        yield run.part(f"{name}.scores", shape, d * (1 + static), flops, **memory)
        kept = run.dropped(self.dropout, pairs)
        memory = {"moves": pairs + 2 * numbers, "keeps": numbers * (1 + static) + pairs}
        memory["masks"] = kept
        z = (batch, n, d)
        yield run.part(f"{name}.z", z, d * self.bias, 2 * numbers * n, **memory)


@dataclass(frozen=True)
class Messages(Spec):
    """What a node holds and what its neighbours say, see :class:`tfbook.graphs.MessagePassing`.

    Args:
        kind: how messages are gathered, "mean", "sum" or "max".
        bias: whether there is one.

    Example:
        >>> import torch
        >>> layer = Messages("max").build(Site(8))
        >>> layer(torch.randn(1, 3, 8), mask=torch.eye(3).bool())[0].shape
        torch.Size([1, 3, 8])

    Source: [gilmer2017neural], mean and maximum: [hamilton2017inductive]
    Explained in: chapters/09_hybrids_deeper, section "Graph attention networks".
    """

    kind: str = "mean"
    _: KW_ONLY
    bias: bool = True
    word = "messages"
    of_memory = refuse_cross

    def __post_init__(self) -> None:
        """Check the choices."""
        check_choice("kind", self.kind, AGGREGATIONS)
        check_bool("messages_bias", self.bias)

    def check(self, site: Site) -> None:
        """Raise ValueError where the place is no encoder."""
        _check_encoder("Messages", site)

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        return MessagePassing(site.d_model, kind=self.kind, bias=self.bias)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield what is heard and the two linear maps."""
        d, n, numbers = run.d_model, run.n, run.batch * run.n * run.d_model
        yield run.linear(f"{name}.own_proj", d, d, bias=self.bias)
        flops, pairs = 2 * numbers * n * (self.kind != "max"), run.batch * n * n
        memory = {"moves": 2 * numbers + pairs, "keeps": pairs}
        if self.kind == "max":  # every neighbour's row beside every other's
            memory = {"moves": numbers * (n + 1), "keeps": numbers * (n + 1), "masks": pairs}
        yield run.rows(f"{name}.heard", 0, flops, **memory)
        yield run.linear(f"{name}.heard_proj", d, d, bias=False)
