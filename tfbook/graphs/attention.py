"""Graph attention: each node looks at its neighbours, and a small network scores them.

The first one (GAT) adds a number of the query to a number of the key, so all queries rank the keys
alike; the second (GATv2) has the nonlinearity between the sum and the weighing, which is Bahdanau's
additive score, and each query has a ranking of its own.

Explained in: chapters/09_hybrids.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    broadcast_batch,
    check_bool,
    check_callable,
    check_choice,
    check_float,
    check_number,
    check_rows,
    check_same,
    check_tensor,
)
from tfbook.attention import (
    at_least_float32,
    masked_softmax,
    merge_heads,
    mix,
    split_heads,
    with_head_axis,
)

__all__ = ["GraphAttention", "gat_scores", "gatv2_scores"]

SLOPE = 0.2  # of the leaky ReLU, in both papers


def gat_scores(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    a_q: Float[Tensor, "*#A D"],
    a_k: Float[Tensor, "*#A D"],
    *,
    slope: float = SLOPE,
) -> Float[Tensor, "*C N M"]:
    """Score as GAT does: s[i, j] = LeakyReLU(a_q · q[i] + a_k · k[j]).

    In the paper q and k are the same W h, and a = [a_q ‖ a_k]. LeakyReLU(x) = max(x, slope · x)
    grows with x, so whichever key has the largest a_k · k[j] is the best one for every query.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        a_q: weights of the query, (d,), or (H, d) for heads at dimension −3.
        a_k: weights of the key, likewise.
        slope: of the negative side, from 0 to 1.

    Returns:
        Scores (..., n, m), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if the shapes do not fit, or the slope is out of range.

    Cost: d numbers a row and one a pair: no pair has a hidden layer.

    Example:
        >>> x, a = torch.eye(2), torch.tensor([1.0, 3.0])
        >>> gat_scores(x, x, -a, a)
        tensor([[ 0.0000,  2.0000],
                [-0.4000,  0.0000]])

    Source: [velickovic2018graph]
    Explained in: chapters/09_hybrids.
    """
    _check_scored(q, k, slope, a_q=a_q, a_k=a_k)
    q, k, a_q, a_k = map(at_least_float32, (q, k, a_q, a_k))
    of_query = (q * a_q[..., None, :]).sum(-1)  # (..., n)
    of_key = (k * a_k[..., None, :]).sum(-1)  # (..., m)
    return functional.leaky_relu(of_query[..., :, None] + of_key[..., None, :], slope)


def gatv2_scores(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    a: Float[Tensor, "*A D"],
    *,
    slope: float = SLOPE,
    activation: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, "*C N M"]:
    """Score as GATv2 does: s[i, j] = a · LeakyReLU(q[i] + k[j]).

    In the paper q = W_l h and k = W_r h. With tanh as the activation this is
    :func:`tfbook.attention.additive_scores`.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        a: weights of the hidden layer, (d,), or (H, d) for heads at dimension −3.
        slope: of the negative side, from 0 to 1.
        activation: what stands in place of the leaky ReLU.

    Returns:
        Scores (..., n, m), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if the shapes do not fit, or the slope is out of range.

    Cost: n · m · d numbers of memory: every pair has its own hidden layer.

    Example:
        >>> gatv2_scores(torch.eye(2), -torch.eye(2), torch.ones(2))
        tensor([[0.0000, 0.8000],
                [0.8000, 0.0000]])

    Source: [brody2022attentive]
    Explained in: chapters/09_hybrids.
    """
    _check_scored(q, k, slope, a=a)
    if activation is not None:
        check_callable("activation", activation)
    q, k, a = map(at_least_float32, (q, k, a))
    hidden = q[..., :, None, :] + k[..., None, :, :]  # (..., n, m, d)
    hidden = functional.leaky_relu(hidden, slope) if activation is None else activation(hidden)
    return (hidden @ a[..., None, :, None]).squeeze(-1)  # (..., n, m)


class GraphAttention(nn.Module):
    """Attention of nodes to their neighbours, with GAT's scores or GATv2's.

    y[i] = Σ_j p[i, j] W h[j] + b with p = softmax of the scores over the allowed j, in several
    heads, concatenated or averaged. GAT has one W for queries, keys and values; GATv2 another one
    for queries.

    Args:
        d_model: size of a row of x.
        n_heads: H.
        d_head: size of a head; d_model / H when omitted.
        kind: "gat" or "gatv2".
        join: "concat", y (B, N, H · d_head), or "mean", y (B, N, d_head).
        slope: of the leaky ReLU's negative side.
        bias: whether there is a b.
        dropout: share of the weights p that training sets to 0.

    Attributes:
        q_proj: W of the queries in GATv2; None in GAT.
        k_proj: W of keys and values, in GAT of the queries too.
        a_q, a_k: weights of the scores, (H, d_head); a_q is None in GATv2.
        bias: b, or None.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for an unknown kind, or sizes that do not fit.

    Example:
        >>> from tfbook.graphs.adjacency import graph_mask
        >>> mask = graph_mask(torch.tensor([[0, 1], [1, 2]]), 3)
        >>> y, _ = GraphAttention(8, n_heads=2)(torch.randn(1, 3, 8), mask=mask)
        >>> y.shape
        torch.Size([1, 3, 8])

    Source: [velickovic2018graph], [brody2022attentive]
    Explained in: chapters/09_hybrids.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_head: int | None = None,
        kind: str = "gat",
        join: str = "concat",
        slope: float = SLOPE,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        """Draw the weights, Xavier uniform with b at 0."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_number("n_heads", n_heads, 1, whole=True)
        if d_head is None and d_model % n_heads:
            raise ValueError(
                f"n_heads must divide d_model, got {n_heads} and {d_model}; "
                "or choose the size of a head with d_head="
            )
        d_head = d_model // n_heads if d_head is None else d_head
        check_number("d_head", d_head, 1, whole=True)
        check_choice("kind", kind, ("gat", "gatv2"))
        check_choice("join", join, ("concat", "mean"))
        check_number("slope", slope, 0, 1)
        check_bool("bias", bias)
        check_number("dropout", dropout, 0, below=1)
        self.d_model, self.n_heads, self.d_head = d_model, n_heads, d_head
        self.kind, self.join, self.slope, self.dropout = kind, join, slope, dropout
        width, static = n_heads * d_head, kind == "gat"
        self.q_proj = None if static else nn.Linear(d_model, width, bias=False)
        self.k_proj = nn.Linear(d_model, width, bias=False)
        a_q = nn.Parameter(torch.empty(n_heads, d_head)) if static else None
        self.register_parameter("a_q", a_q)
        self.a_k = nn.Parameter(torch.empty(n_heads, d_head))
        b = nn.Parameter(torch.empty(width if join == "concat" else d_head)) if bias else None
        self.register_parameter("bias", b)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, Xavier uniform, and set b to 0."""
        for weight in self.parameters():
            if weight is self.bias:
                nn.init.zeros_(weight)
            else:
                nn.init.xavier_uniform_(weight)

    def extra_repr(self) -> str:
        """Show the choices."""
        sizes = f"d_model={self.d_model}, n_heads={self.n_heads}, d_head={self.d_head}"
        return f"{sizes}, kind={self.kind!r}, join={self.join!r}"

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N E"], None]:
        """Mix the rows of each node's neighbours.

        Args:
            x: rows of the nodes, (B, N, d_model).
            state: None; a graph is no sequence that goes on.
            mask: whom each node may look at, boolean, broadcasting to (B, H, N, N); with three
                dimensions it is (B, N, N), with two (N, N); None for all. A node that may look at
                nobody gets b.

        Returns:
            y (B, N, H · d_head), or (B, N, d_head) for the mean of the heads; and None.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, or a state.
        """
        k, p = self._weigh(x, state, mask)
        if self.training and self.dropout:
            p = functional.dropout(p, self.dropout)
        z = mix(p, k)  # (B, H, N, d_head)
        y = merge_heads(z) if self.join == "concat" else z.mean(-3)
        return y if self.bias is None else y + self.bias, None

    def weights(
        self,
        x: Float[Tensor, "B N D"],
        state: None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B H N N"]:
        """Return how much each node takes from each other one, before dropout.

        Arguments and errors are those of :meth:`forward`.
        """
        return self._weigh(x, state, mask)[1].to(x.dtype)

    def _weigh(self, x, state, mask):
        """Return the keys, which are the values, and the weights."""
        refuse_state(state)
        check_rows("x", x, self.k_proj.weight)
        k = split_heads(self.k_proj(x), self.n_heads)  # (B, H, N, d_head)
        if self.q_proj is None:
            scores = gat_scores(k, k, self.a_q, self.a_k, slope=self.slope)
        else:
            q = split_heads(self.q_proj(x), self.n_heads)
            scores = gatv2_scores(q, k, self.a_k, slope=self.slope)
        if mask is not None:
            mask = with_head_axis(mask, tuple(scores.shape))
        return k, masked_softmax(scores, mask)  # (B, H, N, N)


def refuse_state(state: object) -> None:
    """Raise ValueError unless there is no state: a graph is no sequence that goes on."""
    if state is not None:
        raise ValueError(
            f"state must be None, for a graph is no sequence that goes on, got "
            f"{type(state).__name__}"
        )


def _check_scored(q: object, k: object, slope: object, **weights: object) -> None:
    check_float("q", q, min_dims=2)
    check_float("k", k, min_dims=2)
    check_number("slope", slope, 0, 1)
    shapes = {"q": q.shape[:-2], "k": k.shape[:-2]}
    for name, weight in weights.items():
        check_tensor(name, weight, min_dims=1)
        check_float(name, weight)
        if weight.shape[-1] != q.shape[-1]:
            raise ValueError(
                f"{name} must end in d = {q.shape[-1]}, the size of a query, "
                f"got {tuple(weight.shape)}"
            )
        shapes[name] = weight.shape[:-1]
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q and k must have the same last dimension, got "
            f"q {tuple(q.shape)} and k {tuple(k.shape)}"
        )
    broadcast_batch(**shapes)
    check_same(q=q, k=k, **weights)
