"""A graph as a mask: a node may look at its neighbours and at itself.

A graph of n nodes is a boolean (n, n), mask[i, j] True where node i may look at node j, which is
what attention takes. Loops are in it, so that no row is empty; what counts edges leaves them out.
All is dense, n² numbers, meant for graphs of up to some thousand nodes.

Explained in: chapters/09_hybrids.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfbook._checks import check_bool, check_list, check_number, check_shape, check_tensor

__all__ = [
    "degrees",
    "edge_matrix",
    "graph_mask",
    "join_graphs",
    "laplacian",
    "shortest_paths",
    "stack_graphs",
]


def graph_mask(
    edges: Int[Tensor, "E 2"], n_nodes: int, *, directed: bool = False, self_loops: bool = True
) -> Bool[Tensor, "N N"]:
    """Allow each node its neighbours and itself.

    allowed[i, j] = (i = j, or there is an edge between i and j); with ``directed`` an edge
    (source, target) lets the target look at the source alone.

    Args:
        edges: pairs of node numbers, one a row.
        n_nodes: how many nodes there are, those without an edge included.
        directed: whether an edge is seen from its target alone.
        self_loops: whether a node sees itself. Without, a node that has no neighbour has an empty
            row, for which attention gives zeros.

    Returns:
        A mask of shape (n, n), to be passed as ``mask`` to every attention.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if edges are no pairs, or name a node that does not exist.

    Example:
        >>> graph_mask(torch.tensor([[0, 1]]), 3).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)

    Source: [velickovic2018graph]
    Explained in: chapters/09_hybrids.
    """
    check_bool("self_loops", self_loops)
    _check_edges(edges, n_nodes, directed)
    mask = torch.zeros(n_nodes, n_nodes, dtype=torch.bool, device=edges.device)
    source, target = edges.long().unbind(-1)
    mask[target, source] = True
    if not directed:
        mask[source, target] = True
    return mask | torch.eye(n_nodes, dtype=torch.bool, device=edges.device) * self_loops


def edge_matrix(
    edges: Int[Tensor, "E 2"],
    weights: Float[Tensor, "E ..."],
    n_nodes: int,
    *,
    directed: bool = False,
) -> Float[Tensor, "N N ..."]:
    """Write what edges carry, a number or a vector each, into a table of all pairs of nodes.

    w[target, source] = weights[e] for edge e = (source, target), and unless ``directed`` also
    w[source, target]; 0 where there is no edge, and the sum where there are several.

    Args:
        edges: pairs of node numbers, one a row.
        weights: a number for each edge, (E,), or a vector, (E, d_edge).
        n_nodes: how many nodes there are.
        directed: whether an edge counts for its target alone.

    Returns:
        A table (n, n), or (n, n, d_edge).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if edges are no pairs or name a node that does not exist, or there is not one
            weight for each.

    Example:
        >>> edge_matrix(torch.tensor([[0, 1]]), torch.tensor([5.0]), 2)
        tensor([[0., 5.],
                [5., 0.]])

    Explained in: chapters/09_hybrids.
    """
    _check_edges(edges, n_nodes, directed)
    check_tensor("weights", weights, min_dims=1)
    if not weights.is_floating_point():
        raise TypeError(f"weights must have a floating-point dtype, got {weights.dtype}")
    if weights.ndim > 2 or len(weights) != len(edges):
        raise ValueError(
            f"weights must have shape (E,) or (E, d_edge) with E = {len(edges)}, "
            f"got {tuple(weights.shape)}"
        )
    table = weights.new_zeros(n_nodes, n_nodes, *weights.shape[1:])
    source, target = edges.long().unbind(-1)
    table = table.index_put((target, source), weights, accumulate=True)
    if directed:
        return table
    other = source != target  # a loop is one entry
    back = (source[other], target[other])
    return table.index_put(back, weights[other], accumulate=True)


def degrees(mask: Bool[Tensor, "*B N N"]) -> Int[Tensor, "*B N"]:
    """Count the neighbours that each node looks at, itself left out.

    d[i] = Σ_{j ≠ i} mask[i, j]. Of a directed graph these are the edges that come in; pass
    ``mask.mT`` for those that go out.

    Args:
        mask: (..., n, n).

    Returns:
        Integers (..., n).

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if it is not square.

    Example:
        >>> degrees(graph_mask(torch.tensor([[0, 1], [1, 2]]), 4))
        tensor([1, 2, 1, 0])

    Explained in: chapters/09_hybrids.
    """
    return without_loops(mask).sum(-1)  # (..., n)


def shortest_paths(mask: Bool[Tensor, "*B N N"]) -> Int[Tensor, "*B N N"]:
    """Count the steps from each node to each other one along edges, −1 where no path leads.

    distance[i, j] is also the number of layers, each restricted to the mask, after which node i
    knows of node j.

    Args:
        mask: (..., n, n); a step leads from i to a j that i may look at.

    Returns:
        Integers (..., n, n), 0 on the diagonal.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if it is not square.

    Cost: as many products of (n, n) matrices as the longest distance has steps.

    Example:
        >>> shortest_paths(graph_mask(torch.tensor([[0, 1], [1, 2]]), 4))[0]
        tensor([ 0,  1,  2, -1])

    Explained in: chapters/09_hybrids.
    """
    step = without_loops(mask).float()
    n = mask.shape[-1]
    new = torch.eye(n, dtype=torch.bool, device=mask.device).expand(mask.shape)
    seen, distance = new, torch.where(new, 0, -1)
    for steps in range(1, n):
        new = (new.float() @ step > 0) & ~seen  # reached now for the first time
        if not new.any():
            break
        seen, distance = seen | new, distance.masked_fill(new, steps)
    return distance


def laplacian(
    weights: Float[Tensor, "*B N N"] | Bool[Tensor, "*B N N"], *, normalized: bool = False
) -> Float[Tensor, "*B N N"]:
    """Return the Laplacian of an undirected graph: how a node differs from its neighbours.

    L = D − W, so (L f)[i] = Σ_j w[i, j] (f[i] − f[j]); normalised D^(−1/2) L D^(−1/2), with rows
    of 0 for nodes without an edge. D is diagonal, D[i, i] = Σ_j w[i, j]. Loops are left out.

    Args:
        weights: w (..., n, n), symmetric and not negative, or a mask, which has weights 1.
        normalized: whether to divide by the degrees.

    Returns:
        L, symmetric, with eigenvalues from 0 on, normalised from 0 to 2; float32 for a mask.

    Raises:
        TypeError: if the weights are neither floating point nor boolean.
        ValueError: if they are not square, not symmetric, or negative.

    Example:
        >>> laplacian(graph_mask(torch.tensor([[0, 1], [1, 2]]), 3))
        tensor([[ 1., -1.,  0.],
                [-1.,  2., -1.],
                [ 0., -1.,  1.]])

    Source: [chung1997spectral]
    Explained in: chapters/09_hybrids.
    """
    check_bool("normalized", normalized)
    weights = undirected(weights)
    sums = weights.sum(-1)  # (..., n)
    combinatorial = torch.diag_embed(sums) - weights
    if not normalized:
        return combinatorial
    scale = torch.where(sums > 0, sums, 1.0).rsqrt()  # a node without an edge has a row of 0
    return scale[..., :, None] * combinatorial * scale[..., None, :]


def join_graphs(
    masks: Sequence[Bool[Tensor, "_ _"]],
) -> tuple[Bool[Tensor, "N N"], Int[Tensor, " N"]]:
    """Lay several graphs into one, side by side: blocks on the diagonal, nothing between them.

    Args:
        masks: a mask (n_g, n_g) for each graph.

    Returns:
        The mask of all nodes, (n, n) with n = Σ n_g, and the number of the graph that each node
        belongs to, (n,); ``document_mask`` of it lets each node see all of its own graph.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no graph, or a mask is not square.

    Example:
        >>> join_graphs([torch.ones(2, 2).bool(), torch.ones(1, 1).bool()])[1]
        tensor([0, 0, 1])

    Explained in: chapters/09_hybrids.
    """
    sizes = _sizes(masks)
    ids = torch.repeat_interleave(torch.tensor(sizes, device=masks[0].device))
    return torch.block_diag(*masks).bool(), ids


def stack_graphs(masks: Sequence[Bool[Tensor, "_ _"]]) -> Bool[Tensor, "B N N"]:
    """Put several graphs into a batch, smaller ones padded with nodes that nobody sees.

    Args:
        masks: a mask (n_g, n_g) for each graph.

    Returns:
        The masks, (B, n, n) with n the largest; rows and columns of padding are False.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there is no graph, or a mask is not square.

    Example:
        >>> stack_graphs([torch.ones(2, 2).bool(), torch.ones(1, 1).bool()])[1].int()
        tensor([[1, 0],
                [0, 0]], dtype=torch.int32)

    Explained in: chapters/09_hybrids.
    """
    sizes = _sizes(masks)
    whole = masks[0].new_zeros(len(sizes), max(sizes), max(sizes))
    for row, mask, size in zip(whole, masks, sizes, strict=True):
        row[:size, :size] = mask
    return whole


def check_graph(mask: object) -> None:
    """Raise unless ``mask`` is boolean and square in its last two dimensions.

    Raises:
        TypeError: if it is not a boolean tensor.
        ValueError: if it is not square.
    """
    check_tensor("mask", mask, min_dims=2)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean with True = allowed, got {mask.dtype}; a table of 0 and 1 "
            "becomes one with table > 0"
        )
    _check_square("mask", mask)


def without_loops(mask: Bool[Tensor, "*B N N"]) -> Bool[Tensor, "*B N N"]:
    """Return the mask with False on its diagonal.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if it is not square.
    """
    check_graph(mask)
    return mask & ~torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)


def undirected(
    weights: Float[Tensor, "*B N N"] | Bool[Tensor, "*B N N"],
) -> Float[Tensor, "*B N N"]:
    """Return the weights of an undirected graph as numbers, without loops.

    Raises:
        TypeError: if the weights are neither floating point nor boolean.
        ValueError: if they are not square, not symmetric, or not all from 0 to below infinity.
    """
    check_tensor("weights", weights, min_dims=2)
    if not (weights.is_floating_point() or weights.dtype == torch.bool):
        raise TypeError(f"weights must be floating point or boolean, got {weights.dtype}")
    _check_square("weights", weights)
    weights = weights.float() if weights.dtype == torch.bool else weights
    if not torch.equal(weights, weights.mT):  # neither is a table with NaN
        raise ValueError("weights must be symmetric, those of an undirected graph")
    if not ((weights >= 0) & (weights < torch.inf)).all():
        raise ValueError("weights must be finite and not negative")
    return weights - torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))


def _check_square(name: str, value: Tensor) -> None:
    n = value.shape[-1]
    check_shape(name, value, (*value.shape[:-2], n, n), "(..., n, n)")
    if n == 0:
        raise ValueError(f"{name} must have at least one node, got {tuple(value.shape)}")


def _check_edges(edges: object, n_nodes: object, directed: object) -> None:
    check_number("n_nodes", n_nodes, 1, whole=True)
    check_bool("directed", directed)
    check_tensor("edges", edges)
    if edges.dtype == torch.bool or edges.is_floating_point() or edges.is_complex():
        raise TypeError(f"edges must be integers, got {edges.dtype}")
    if edges.ndim != 2 or edges.shape[-1] != 2:
        raise ValueError(f"edges must be pairs, of shape (E, 2), got {tuple(edges.shape)}")
    if len(edges) and not 0 <= int(edges.min()) <= int(edges.max()) < n_nodes:
        raise ValueError(
            f"edges must name nodes from 0 to {n_nodes - 1}, "
            f"got {int(edges.min())} to {int(edges.max())}"
        )


def _sizes(masks: object) -> list[int]:
    """Return how many nodes each graph has."""
    check_list("masks", masks)
    if not len(masks):
        raise ValueError("masks must hold at least one graph, got none")
    for number, mask in enumerate(masks):
        check_graph(mask)
        if mask.ndim != 2:
            raise ValueError(
                f"masks must have shape (n, n) each, got {tuple(mask.shape)} as number {number}"
            )
    return [len(mask) for mask in masks]
