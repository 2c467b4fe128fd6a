"""The graph as a bias: all nodes may look at all, and their distance is added to the scores.

A mask forbids; a bias lets each head learn how much a distance matters. This is the graph
transformer of Graphormer: attention as anywhere, with the structure in the scores.

Explained in: chapters/09_hybrids.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import check_float, check_number, check_same, check_shape, check_tensor
from tfbook.graphs.adjacency import check_graph, shortest_paths, without_loops

__all__ = ["EdgeBias", "GivenBias", "SpatialBias"]


class SpatialBias(nn.Module):
    """A learned number for each head and each distance between nodes, to be added to the scores.

    bias[h, i, j] = b_h[φ(i, j)] with φ the steps of a shortest path, at most max_distance, or a
    number of its own where no path leads. It asks the edges alone, so to renumber the nodes is to
    renumber the bias.

    Args:
        n_heads: H.
        max_distance: from which distance on nodes are told apart no more.

    Attributes:
        weight: b, (max_distance + 2, H); the last row is for nodes that no path joins.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size below 1.

    Example:
        >>> from tfbook.graphs.adjacency import graph_mask, shortest_paths
        >>> mask = graph_mask(torch.tensor([[0, 1], [1, 2]]), 4)
        >>> SpatialBias(2, max_distance=5)(shortest_paths(mask)).shape
        torch.Size([2, 4, 4])

    Source: [ying2021transformers]
    Explained in: chapters/09_hybrids.
    """

    def __init__(self, n_heads: int, max_distance: int):
        """Draw the numbers from a normal distribution of std 0.02."""
        super().__init__()
        check_number("n_heads", n_heads, 1, whole=True)
        check_number("max_distance", max_distance, 1, whole=True)
        self.n_heads, self.max_distance = n_heads, max_distance
        self.weight = nn.Parameter(torch.empty(max_distance + 2, n_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the numbers anew."""
        nn.init.normal_(self.weight, std=0.02)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.n_heads}, max_distance={self.max_distance}"

    def forward(self, distances: Int[Tensor, "*B N M"]) -> Float[Tensor, "*B H N M"]:
        """Return the bias of all pairs of nodes.

        Args:
            distances: (..., n, m), as of :func:`tfbook.graphs.shortest_paths`, −1 for no path.

        Raises:
            TypeError: if distances are not integers.
            ValueError: if they have fewer than two dimensions.
        """
        check_tensor("distances", distances, min_dims=2)
        if distances.dtype == torch.bool or not _whole(distances):
            raise TypeError(f"distances must be integers, got {distances.dtype}")
        rows = distances.clamp(max=self.max_distance)
        rows = torch.where(distances < 0, self.max_distance + 1, rows)
        return self.weight[rows].movedim(-1, -3)  # (..., H, n, m)


class EdgeBias(nn.Module):
    """What the edges between two nodes carry, weighed and averaged along the shortest paths.

    bias[h, i, j] = (1/L) Σ_{l = 1}^{L} w_h[l] · e_l, with e_l what the l-th edge of a shortest path
    of L steps from i to j carries; 0 for i = j and where no path leads. Where several paths are
    shortest it is the mean over all of them: the paper takes one, whose choice hangs on the
    numbering of the nodes.

    Args:
        n_heads: H.
        d_edge: numbers that an edge carries.
        max_distance: paths of more steps count with their edges up to this one; the mean is then
            over these.

    Attributes:
        weight: w, (H, max_distance, d_edge).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size below 1.

    Cost: for each distance L up to the longest, min(L, max_distance) products of (n, n) matrices a
        head.

    Example:
        >>> from tfbook.graphs.adjacency import edge_matrix, graph_mask
        >>> edges = torch.tensor([[0, 1], [1, 2]])
        >>> carried = edge_matrix(edges, torch.ones(2, 3), 3)
        >>> EdgeBias(2, d_edge=3, max_distance=4)(graph_mask(edges, 3), carried).shape
        torch.Size([2, 3, 3])

    Source: [ying2021transformers]
    Explained in: chapters/09_hybrids.
    """

    def __init__(self, n_heads: int, d_edge: int, max_distance: int):
        """Draw the numbers from a normal distribution of std 0.02."""
        super().__init__()
        check_number("n_heads", n_heads, 1, whole=True)
        check_number("d_edge", d_edge, 1, whole=True)
        check_number("max_distance", max_distance, 1, whole=True)
        self.n_heads, self.d_edge, self.max_distance = n_heads, d_edge, max_distance
        self.weight = nn.Parameter(torch.empty(n_heads, max_distance, d_edge))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the numbers anew."""
        nn.init.normal_(self.weight, std=0.02)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.n_heads}, d_edge={self.d_edge}, max_distance={self.max_distance}"

    def forward(
        self, mask: Bool[Tensor, "*B N N"], carried: Float[Tensor, "*B N N F"]
    ) -> Float[Tensor, "*B H N N"]:
        """Return the bias of all pairs of nodes.

        Args:
            mask: the graph, (..., n, n).
            carried: what the edges carry, (..., n, n, d_edge), as of
                :func:`tfbook.graphs.edge_matrix`; entries without an edge are not looked at.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit.
        """
        check_graph(mask)
        check_float("carried", carried)
        check_shape("carried", carried, (*mask.shape, self.d_edge), "(..., n, n, d_edge)")
        check_same(**{"carried": carried, "the weights": self.weight})
        step = without_loops(mask)
        distance = shortest_paths(mask)[..., None, :, :]  # (..., 1, n, n)
        count = paths_of(step[..., None, :, :], distance).to(carried.dtype)
        carried = carried.masked_fill(~step[..., None], 0.0)
        worth = torch.einsum("...ijf,hlf->...lhij", carried, self.weight)  # (..., L, H, n, n)
        by_step = worth.unbind(-4)
        at = [count * (distance == steps) for steps in range(int(distance.max()) + 1)]
        bias = torch.zeros_like(by_step[0])
        for steps in range(1, len(at)):
            used = min(steps, self.max_distance)
            total = sum(at[n] @ by_step[n] @ at[steps - 1 - n] for n in range(used))
            paths = torch.where(distance == steps, count, 1.0)
            bias = bias + total * (distance == steps) / (used * paths)
        return bias


class GivenBias:
    """A part of attention that adds to the scores what was given to it for one pass.

    It stands where a position stands, ``MultiHeadAttention(…, position=given)``, and brings a
    graph to layers that know of none; it is no module and owns no weights.

    Attributes:
        scaled: True: it is added to q · k / √d.

    Example:
        >>> from tfbook.attention import MultiHeadAttention
        >>> given = GivenBias()
        >>> mha = MultiHeadAttention(8, n_heads=2, position=given)
        >>> with given.during(torch.zeros(2, 5, 5)):
        ...     y, _ = mha(torch.randn(1, 5, 8))

    Source: [ying2021transformers]
    Explained in: chapters/09_hybrids.
    """

    scaled: ClassVar[bool] = True

    def __init__(self):
        """Begin with nothing given."""
        self._bias = None

    @contextmanager
    def during(self, bias: Float[Tensor, "*B H N M"]) -> Iterator[None]:
        """Give a bias, (H, n, m) or (B, H, n, m), for the passes inside of a ``with``.

        Raises:
            TypeError: if it is not a floating-point tensor.
            ValueError: if it has fewer than three dimensions.
        """
        check_float("bias", bias, min_dims=3)
        before, self._bias = self._bias, bias
        try:
            yield
        finally:
            self._bias = before

    def bias(
        self,
        q: Float[Tensor, "*B H N D"],
        q_positions: Int[Tensor, "... N"],
        k_positions: Int[Tensor, "... M"],
    ) -> Float[Tensor, "*C H N M"]:
        """Return the rows and columns that are asked for, in the dtype of q.

        Raises:
            ValueError: if nothing is given, or not for so many nodes.
        """
        if self._bias is None:
            raise ValueError(
                "no bias is given: call the layers inside of `with given.during(bias)`"
            )
        n, m = self._bias.shape[-2:]
        last = int(q_positions.max()) + 1, int(k_positions.max()) + 1
        if last[0] > n or last[1] > m:
            raise ValueError(f"bias must be for {last} rows, got {tuple(self._bias.shape)}")
        return self._bias[..., q_positions[:, None], k_positions].to(q.dtype)


def paths_of(step: Bool[Tensor, "*B N N"], distance: Int[Tensor, "*B N N"]) -> Float[Tensor, "..."]:
    """Count the shortest paths between all nodes, in float64; 1 from a node to itself.

    Args:
        step: the graph without loops.
        distance: its distances, −1 for no path.
    """
    edge = step.double()
    new = (distance == 0).double()
    count = new
    for steps in range(1, int(distance.max()) + 1):
        new = new @ edge * (distance == steps)
        count = count + new
    return count


def _whole(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())
