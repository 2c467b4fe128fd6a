"""Where a node stands in its graph: what a position is when there is no order.

The numbering of nodes means nothing, so positions are made of the edges alone: eigenvectors of the
Laplacian, chances that a random walk comes back, the number of neighbours.

Explained in: chapters/09_hybrids.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook._checks import (
    check_bool,
    check_float,
    check_generator,
    check_number,
    check_rows,
    check_shape,
    check_tensor,
)
from tfbook.graphs.adjacency import check_graph, degrees, laplacian

__all__ = ["CentralityEmbedding", "flip_signs", "laplacian_positions", "random_walk_positions"]

MOST_STEPS = 10_000


def laplacian_positions(
    weights: Float[Tensor, "*B N N"] | Bool[Tensor, "*B N N"], k: int, *, normalized: bool = True
) -> tuple[Float[Tensor, "*B N K"], Float[Tensor, "*B K"]]:
    """Return the k smoothest ways to number the nodes: eigenvectors of the Laplacian.

    L u_l = λ_l u_l with λ_0 = 0 ≤ λ_1 ≤ …; the first vector, which tells nodes apart by their
    degrees at most, is left out. A path of nodes gets cosines of growing frequency, as in
    sinusoidal positions.

    An eigenvector is known but for its sign, and equal eigenvalues (a graph with symmetries, or in
    several parts) but for any rotation among their vectors. Which of them come out is chance;
    :func:`flip_signs` lets a model learn not to mind the signs. What is sure is each
    eigenvalue's projector Σ u uᵀ.

    Args:
        weights: of an undirected graph, (..., n, n), or its mask; loops are left out.
        k: how many vectors, at most n − 1.
        normalized: whether the Laplacian is the normalised one.

    Returns:
        The vectors as columns, (..., n, k), each of length 1, and their eigenvalues (..., k).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if the graph is directed, or k is out of range.

    Example:
        >>> from tfbook.graphs.adjacency import graph_mask
        >>> path = graph_mask(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> laplacian_positions(path, 2, normalized=False)[1].round(decimals=3)
        tensor([1., 3.])

    Cost: some n³ operations.

    Source: [dwivedi2023benchmarking]
    Explained in: chapters/09_hybrids.
    """
    matrix = laplacian(weights, normalized=normalized)
    check_number("k", k, 1, matrix.shape[-1] - 1, whole=True)
    values, vectors = torch.linalg.eigh(matrix.double())
    found = vectors[..., 1 : k + 1].to(matrix.dtype), values[..., 1 : k + 1].to(matrix.dtype)
    return found[0], found[1].clamp(min=0)


def flip_signs(
    vectors: Float[Tensor, "*B N K"], *, generator: torch.Generator | None = None
) -> Float[Tensor, "*B N K"]:
    """Turn the sign of each eigenvector by chance, as a new one for each step of training.

    Args:
        vectors: as columns, (..., n, k).
        generator: where chance comes from; PyTorch's own when omitted.

    Returns:
        The vectors, each times 1 or −1.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if vectors have fewer than two dimensions.

    Example:
        >>> flip_signs(torch.ones(3, 2)).abs().sum()
        tensor(6.)

    Source: [dwivedi2023benchmarking]
    Explained in: chapters/09_hybrids.
    """
    check_float("vectors", vectors, min_dims=2)
    check_generator(generator)
    shape = (*vectors.shape[:-2], 1, vectors.shape[-1])
    device = None if generator is None else generator.device
    coins = torch.randint(2, shape, generator=generator, device=device).to(vectors)
    return vectors * (2 * coins - 1)


def random_walk_positions(mask: Bool[Tensor, "*B N N"], steps: int) -> Float[Tensor, "*B N K"]:
    """Return how likely a random walk from a node is back after 1, 2, … steps.

    r[i, t] = (Pᵗ)[i, i] with P[i, j] = 1 / d[i] for each neighbour j of i. It has no sign to
    choose, and tells a node in a triangle (back after 3 steps) from one that is in none. A node
    without neighbours has zeros.

    Args:
        mask: the graph, (..., n, n); loops are left out.
        steps: how many, at most 10,000.

    Returns:
        Chances (..., n, steps), float32.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if the mask is not square or ``steps`` out of range.

    Example:
        >>> from tfbook.graphs.adjacency import graph_mask
        >>> random_walk_positions(graph_mask(torch.tensor([[0, 1], [1, 2]]), 3), 2)
        tensor([[0.0000, 0.5000],
                [0.0000, 1.0000],
                [0.0000, 0.5000]])

    Source: [dwivedi2022graph]
    Explained in: chapters/09_hybrids.
    """
    check_graph(mask)
    check_number("steps", steps, 1, MOST_STEPS, whole=True)
    count = degrees(mask)
    loops = torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
    step = (mask & ~loops).double() / count.clamp(min=1)[..., None]
    walk, back = step, []
    for _ in range(steps):
        back.append(walk.diagonal(dim1=-2, dim2=-1))  # (..., n)
        walk = walk @ step
    return torch.stack(back, -1).float()


class CentralityEmbedding(nn.Module):
    """Add to each node a learned vector for its number of neighbours.

    y[i] = x[i] + z[deg(i)], of a directed graph y[i] = x[i] + z_in[deg_in(i)] + z_out[deg_out(i)].
    Attention averages and could not count neighbours by itself.

    Args:
        d_model: size of a row.
        max_degree: nodes with more neighbours count as having so many.
        directed: whether edges that come in and that go out are counted apart.

    Attributes:
        weight: z, (max_degree + 1, d_model), of what comes in where the graph is directed.
        weight_out: z_out, or None.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size out of range.

    Example:
        >>> part = CentralityEmbedding(4, max_degree=8)
        >>> part(torch.zeros(1, 3, 4), torch.eye(3).bool()).shape
        torch.Size([1, 3, 4])

    Source: [ying2021transformers]
    Explained in: chapters/09_hybrids.
    """

    def __init__(self, d_model: int, max_degree: int, *, directed: bool = False):
        """Draw the vectors from a normal distribution of std 0.02."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_number("max_degree", max_degree, 0, whole=True)
        check_bool("directed", directed)
        self.d_model, self.max_degree = d_model, max_degree
        self.weight = nn.Parameter(torch.empty(max_degree + 1, d_model))
        out = nn.Parameter(torch.empty(max_degree + 1, d_model)) if directed else None
        self.register_parameter("weight_out", out)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.d_model}, max_degree={self.max_degree}"

    def forward(
        self, x: Float[Tensor, "B N D"], mask: Bool[Tensor, "*B2 N N"]
    ) -> Float[Tensor, "B N D"]:
        """Return x with the vectors of the nodes' degrees.

        Args:
            x: (B, N, d_model).
            mask: the graph, (N, N), or one for each sequence, (B, N, N).

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit.
        """
        check_rows("x", x, self.weight)
        check_graph_of(mask, x)
        x = x + self.weight[degrees(mask).clamp(max=self.max_degree)]
        if self.weight_out is None:
            return x
        return x + self.weight_out[degrees(mask.mT).clamp(max=self.max_degree)]


def check_graph_of(mask: object, x: Tensor) -> None:
    """Raise unless ``mask`` is a graph of the rows of x (B, N, D), or one for each sequence.

    Raises:
        TypeError: if it is not a boolean tensor.
        ValueError: if its shape does not fit.
    """
    check_tensor("mask", mask, min_dims=2)
    check_graph(mask)
    batch, n = x.shape[:2]
    if mask.ndim == 2:
        check_shape("mask", mask, (n, n), "(N, N)")
    elif mask.ndim != 3 or mask.shape[0] not in (1, batch) or mask.shape[-1] != n:
        raise ValueError(
            f"mask must have shape (N, N) or (B, N, N) = {(batch, n, n)}, got {tuple(mask.shape)}"
        )
