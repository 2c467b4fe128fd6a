"""Attention through several layers: from a row behind the last back to the tokens it came from.

A pattern says how much of the rows *below it* a row takes, and these are mixtures already. Both
functions put the residual connection beside the pattern, for it hands on a row by itself, and then
follow all layers: rollout multiplies shares along each path and adds the paths up, flow asks how
much fits through them all. Neither looks at values or at the feed-forward networks.

Explained in: chapters/10_interpretability_deeper, section "Three answers".
"""

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import check_bool, check_choice, check_float, check_number
from tfbook.interpret.statistics import weights_of

__all__ = ["attention_flow", "rollout", "with_residual"]

JOIN = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


def with_residual(
    patterns: Float[Tensor, "*B H N N"], *, heads: str = "mean"
) -> Float[Tensor, "*B N N"]:
    """Return how much each row takes from each row below, the one it is added to among them.

    Ã = normalise(A + I), A the mean of the heads: ½ A + ½ I where the rows of A sum to 1. Without
    the ½ the rows of a product of L layers would sum to 2^L.

    Args:
        patterns: (..., H, n, n), not negative, rows sum to 1 or to 0.
        heads: how to join them, "mean", "max" or "min".

    Returns:
        (..., n, n), rows sum to 1.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that is not square, negative weights, or an unknown way to join.

    Example:
        >>> with_residual(torch.full((1, 2, 2), 0.5))
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500]])

    Source: [abnar2020quantifying]
    Explained in: chapters/10_interpretability_deeper, section "Three answers".
    """
    check_choice("heads", heads, JOIN)
    joined = JOIN[heads](_weights(patterns, 3), dim=-3)  # (..., n, n)
    kept = joined + torch.eye(joined.shape[-1], dtype=joined.dtype, device=joined.device)
    return kept / kept.sum(-1, keepdim=True)


def rollout(
    patterns: Float[Tensor, "L *B H N N"], *, heads: str = "mean", every: bool = False
) -> Float[Tensor, "..."]:
    """Return how much of each token is in each row behind the last layer, by the patterns alone.

    R = Ã_{L−1} … Ã_1 Ã_0 with Ã_l = normalise(A_l + I). Rows are queries, so that a row of the last
    layer is followed downwards from left to right: later layers stand on the left.

    Args:
        patterns: (L, ..., H, n, n), the first layer first, as
            :func:`tfbook.interpret.patterns` returns them; rows sum to 1 or to 0.
        heads: how to join them, "mean", "max" or "min".
        every: return what is behind each layer, not behind the last one alone.

    Returns:
        (..., n, n), or (L, ..., n, n) with ``every``: rows sum to 1, row i says where row i of the
        layer came from.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that is not square, negative weights, or an unknown way to join.

    Example:
        >>> back = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> rollout(back.expand(2, 1, 3, 3))[2]  # token 0 reaches row 2 by two steps
        tensor([0.2500, 0.5000, 0.2500])

    Cost: L products of (n, n), 2 L n³ FLOPs.

    Source: [abnar2020quantifying]
    Explained in: chapters/10_interpretability_deeper, section "Three answers".
    """
    check_bool("every", every)
    check_float("patterns", patterns, min_dims=4)
    steps = with_residual(patterns, heads=heads).unbind(0)
    found = [steps[0]]
    for step in steps[1:]:
        found.append(step @ found[-1])  # (..., n, n)
    return torch.stack(found) if every else found[-1]


def attention_flow(
    patterns: Float[Tensor, "L H N N"], token: int, *, heads: str = "mean"
) -> Float[Tensor, " N"]:
    """Return how much can flow from each token to a row behind the last layer, at the most.

    Each layer's Ã is a set of pipes from the rows below to those above, as wide as its weights.
    The maximum flow from token j to row ``token`` is limited by the narrowest cut between them;
    unlike the shares of :func:`rollout` these numbers do not sum to 1, for each token has all pipes
    to itself.

    Args:
        patterns: of one sequence, (L, H, n, n), the first layer first; rows sum to 1 or to 0.
        token: the row behind the last layer, from 0 to n − 1.
        heads: how to join them, "mean", "max" or "min".

    Returns:
        (n,), a flow for each token, from 0 to 1, in float64.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a token that does not fit, negative weights, or an unknown way to
            join.

    Example:
        >>> back = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> attention_flow(back.expand(2, 1, 3, 3), 2)
        tensor([0.5000, 1.0000, 0.5000], dtype=torch.float64)

    Cost: n maximum flows in a graph of L n² edges, by networkx; seconds for 12 layers and 20
        tokens.

    Source: [abnar2020quantifying]
    Explained in: chapters/10_interpretability_deeper, section "Three answers".
    """
    import networkx

    check_float("patterns", patterns)
    if patterns.ndim != 4:
        raise ValueError(
            f"patterns must be those of one sequence, (L, H, n, n), got {tuple(patterns.shape)}; "
            "of a batch take one, patterns[:, i]"
        )
    steps = with_residual(patterns.detach().double(), heads=heads).tolist()
    n = patterns.shape[-1]
    check_number("token", token, 0, n - 1, whole=True)
    graph = networkx.DiGraph()
    graph.add_nodes_from((0, j) for j in range(n))
    for layer, step in enumerate(steps):
        for i, row in enumerate(step):
            pipes = [((layer, j), (layer + 1, i), width) for j, width in enumerate(row) if width]
            graph.add_weighted_edges_from(pipes, weight="capacity")
    find, top = networkx.algorithms.flow.shortest_augmenting_path, (len(steps), token)
    flows = [networkx.maximum_flow_value(graph, (0, j), top, flow_func=find) for j in range(n)]
    return torch.tensor(flows, dtype=torch.float64)


def _weights(patterns: object, min_dims: int) -> Tensor:
    """Return patterns in float32 at least, checked."""
    check_float("patterns", patterns, min_dims=min_dims)
    shape = tuple(patterns.shape)
    if shape[-1] != shape[-2] or 0 in shape:
        raise ValueError(
            f"patterns must be square, (..., H, n, n), and hold something, got shape {shape}"
        )
    return weights_of(patterns)
