"""A transformer of graphs: the book's own layers, told of the graph by a bias on the scores.

The layers are those of any encoder. What stands around them says where a node is: its degree is
added to its row, and its distance from each other node to the scores.

Explained in: chapters/09_hybrids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook._checks import check_float, check_list, check_number, check_rows, check_shape
from tfbook.blocks import Stack
from tfbook.graphs import CentralityEmbedding, EdgeBias, GivenBias, SpatialBias, shortest_paths
from tfbook.models.layers import Layer, Norm, check_spec
from tfbook.models.placements import Heads, InAttention
from tfbook.models.spec import Site

__all__ = ["Given", "GraphTransformer"]


@dataclass(frozen=True)
class Given(InAttention):
    """A bias that the model is given for a pass, the same in all layers, such as that of a graph.

    See :class:`tfbook.graphs.GivenBias`.

    Example:
        >>> from tfbook.models.layers import Attention
        >>> Attention(4, position=Given()).position
        Given()

    Source: [ying2021transformers]
    Explained in: chapters/09_hybrids.
    """

    def place(self, site: Site, heads: Heads) -> object:
        """Return the handle that the layers of the stack share."""
        return site.once((self,), GivenBias)


class GraphTransformer(nn.Module):
    """An encoder of graphs: rows of nodes in, rows of nodes out, in whatever order they come.

    h = W_in x (+ W_pos p) + z[degree]; h through the layers, whose scores get
    b[distance] (+ what the edges between carry); y = W_out norm(h). To renumber the nodes of x and
    of the graph renumbers y.

    Args:
        d_in: numbers of a node.
        d_model: size of a row.
        layers: such as ``[Layer(Attention(4, position=Given()), FFN(64))] * 3``; those whose
            attention has no :class:`Given` do not learn of distances.
        d_out: numbers of a node at the end.
        max_distance: from which distance on nodes are told apart no more.
        max_degree: nodes with more neighbours count as having so many.
        d_edge: numbers that an edge carries; None for none.
        d_position: numbers of a node's position, such as eigenvectors; None for none.

    Attributes:
        spatial, edge, centrality: the parts that know the graph; edge may be None.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size below 1, no layer, or layers with different numbers of heads.

    Example:
        >>> import torch
        >>> from tfbook.models.layers import FFN, Attention
        >>> layers = [Layer(Attention(2, position=Given()), FFN(16))] * 2
        >>> net = GraphTransformer(3, 8, layers, d_out=5)
        >>> net(torch.randn(1, 4, 3), torch.eye(4).bool()).shape
        torch.Size([1, 4, 5])

    Cost: that of an encoder, and the shortest paths, which may be passed instead.

    Source: [ying2021transformers]
    Explained in: chapters/09_hybrids.
    """

    def __init__(
        self,
        d_in: int,
        d_model: int,
        layers: Sequence[Layer],
        *,
        d_out: int,
        max_distance: int = 8,
        max_degree: int = 16,
        d_edge: int | None = None,
        d_position: int | None = None,
    ):
        """Build the layers and what stands around them."""
        super().__init__()
        for name, size in (("d_in", d_in), ("d_model", d_model), ("d_out", d_out)):
            check_number(name, size, 1, whole=True)
        check_list("layers", layers)
        for layer in layers:
            check_spec("layers", layer, Layer)
        told = [x.mixer for x in layers if isinstance(getattr(x.mixer, "position", None), Given)]
        n_heads = {mixer.n_heads for mixer in told}
        if not len(layers) or len(n_heads) > 1:
            raise ValueError(
                "layers must be at least one, and those with position=Given() of as many heads, "
                f"got {len(layers)} layers with {sorted(n_heads)} heads"
            )
        site = Site(d_model)
        for layer in layers:
            layer.check(site)
        self.given = site.once((Given(),), GivenBias)
        self.embed = nn.Linear(d_in, d_model)
        if d_position is not None:
            check_number("d_position", d_position, 1, whole=True)
        self.place = None if d_position is None else nn.Linear(d_position, d_model, bias=False)
        self.centrality = CentralityEmbedding(d_model, max_degree)
        heads = max(n_heads, default=1)
        self.spatial = SpatialBias(heads, max_distance)
        self.edge = None if d_edge is None else EdgeBias(heads, d_edge, max_distance)
        norm = None if layers[-1].place == "post" else Norm().make(d_model)
        self.stack = Stack([layer.build(site) for layer in layers], norm)
        self.out = nn.Linear(d_model, d_out)

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        mask: Bool[Tensor, "*B2 N N"],
        *,
        carried: Float[Tensor, "*B3 N N F"] | None = None,
        positions: Float[Tensor, "*B4 N K"] | None = None,
        distances: Tensor | None = None,
    ) -> Float[Tensor, "B N E"]:
        """Return a row for each node.

        Args:
            x: (B, N, d_in).
            mask: the graph, (N, N) or (B, N, N); nodes that nobody sees, not even they themselves,
                are padding.
            carried: what edges carry, (..., N, N, d_edge), with as many dimensions before N as
                the mask; needed if there is a d_edge.
            positions: (N, d_position) or (B, N, d_position); needed if there is a d_position.
            distances: the shortest paths of the mask, where they are known.

        Returns:
            y (B, N, d_out); rows of padding mean nothing.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, or a part of the graph that is missing.
        """
        check_rows("x", x, self.embed.weight)
        for name, value, part in (
            ("carried", carried, self.edge),
            ("positions", positions, self.place),
        ):
            if (value is None) != (part is None):
                wanted = "left out" if part is None else "given"
                raise ValueError(f"{name} must be {wanted}, for so the model was made")
        h = self.centrality(self.embed(x), mask)  # (B, N, d_model)
        if positions is not None:
            check_float("positions", positions, min_dims=2)
            batch = x.shape[:1] if positions.ndim > 2 else ()
            wanted = (*batch, x.shape[1], self.place.in_features)
            check_shape("positions", positions, wanted, "(..., N, d_position)")
            h = h + self.place(positions)
        distances = shortest_paths(mask) if distances is None else distances
        check_shape("distances", distances, mask.shape, "that of the mask,")
        bias = self.spatial(distances)  # (..., H, N, N)
        if carried is not None:
            bias = bias + self.edge(mask, carried)
        seen = mask.any(-2, keepdim=True)  # (..., 1, N)
        with self.given.during(bias):
            return self.out(self.stack.encode(h, mask=seen))
