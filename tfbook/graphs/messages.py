"""Message passing: each node gathers what its neighbours say, and it is masked attention.

Mean aggregation is attention with a mask and equal scores; the sum is the mean times the number of
neighbours. What attention adds is that the weights may depend on what the nodes hold.

Explained in: chapters/09_hybrids.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook._checks import (
    broadcast_batch,
    check_bool,
    check_choice,
    check_dtype,
    check_float,
    check_module,
    check_number,
    check_rows,
    check_tensor,
)
from tfbook.attention import at_least_float32
from tfbook.graphs.adjacency import check_graph, degrees
from tfbook.graphs.attention import refuse_state
from tfbook.graphs.positions import check_graph_of

__all__ = [
    "AGGREGATIONS",
    "GraphConvolution",
    "LocalGlobal",
    "MessagePassing",
    "aggregate",
    "gcn_weights",
]

AGGREGATIONS = ("mean", "sum", "max")


def gcn_weights(
    mask: Bool[Tensor, "*B N N"], *, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*B N N"]:
    """Return how a graph convolution weighs neighbours: by the degrees of both ends.

    w[i, j] = 1 / √((d[i] + 1) (d[j] + 1)) where j is i or a neighbour of it, else 0. Unlike those
    of attention, rows need not sum to 1; w is symmetric where the graph is.

    Args:
        mask: the graph, (..., n, n); loops are put in.
        dtype: of the weights.

    Returns:
        w (..., n, n).

    Raises:
        TypeError: if the mask is not boolean, or the dtype not floating point.
        ValueError: if it is not square.

    Example:
        >>> from tfbook.graphs.adjacency import graph_mask
        >>> gcn_weights(graph_mask(torch.tensor([[0, 1]]), 3))
        tensor([[0.5000, 0.5000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 1.0000]])

    Source: [kipf2017semi]
    Explained in: chapters/09_hybrids.
    """
    check_graph(mask)
    if dtype is None:
        raise TypeError("dtype must be floating point, got None")
    check_dtype(dtype)
    looped = mask | torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
    scale = (degrees(mask) + 1).to(dtype).rsqrt()  # (..., n)
    return looped * scale[..., :, None] * scale[..., None, :]


def aggregate(
    x: Float[Tensor, "*#B N D"], mask: Bool[Tensor, "*#B M N"], kind: str = "mean"
) -> Float[Tensor, "*B M D"]:
    """Gather the rows that each node may look at: their mean, their sum or the largest numbers.

    y[i] = mean, Σ or max over the j with mask[i, j] of x[j]; zeros where there is none. The mean is
    ``attend`` with equal scores.

    Args:
        x: rows (..., n, d).
        mask: (..., m, n), True where row i gathers row j; a loop is one of them.
        kind: "mean", "sum" or "max".

    Returns:
        y (..., m, d).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if the shapes do not fit, or for another kind.

    Cost: of the maximum m · n · d numbers of memory.

    Example:
        >>> x = torch.tensor([[1.0], [3.0], [8.0]])
        >>> aggregate(x, torch.tensor([[True, True, False]]), "sum")
        tensor([[4.]])

    Source: [gilmer2017neural]
    Explained in: chapters/09_hybrids.
    """
    check_float("x", x, min_dims=2)
    check_choice("kind", kind, AGGREGATIONS)
    check_neighbours(mask, x)
    wide = at_least_float32(x)
    if kind == "max":
        heard = wide[..., None, :, :].masked_fill(~mask[..., None], -torch.inf)  # (..., m, n, d)
        largest = heard.amax(-2)
        return largest.masked_fill(~mask.any(-1, keepdim=True), 0.0).to(x.dtype)
    total = mask.to(wide.dtype) @ wide  # (..., m, d)
    if kind == "mean":
        total = total / mask.sum(-1, keepdim=True).clamp(min=1)
    return total.to(x.dtype)


class GraphConvolution(nn.Module):
    """A graph convolution: y = w x Wᵀ + b with fixed weights w of the graph's degrees.

    Args:
        d_model: size of a row of x.
        d_out: size of a row of y; d_model when omitted.
        bias: whether there is a b.

    Attributes:
        proj: W and b, applied before the rows are gathered (b after).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size below 1.

    Example:
        >>> y, _ = GraphConvolution(4, 3)(torch.randn(1, 5, 4), mask=torch.eye(5).bool())
        >>> y.shape
        torch.Size([1, 5, 3])

    Source: [kipf2017semi]
    Explained in: chapters/09_hybrids.
    """

    def __init__(self, d_model: int, d_out: int | None = None, *, bias: bool = True):
        """Draw the weights, Xavier uniform with b at 0."""
        super().__init__()
        d_out = _check_sizes(d_model, d_out, bias)
        self.proj = nn.Linear(d_model, d_out, bias=bias)
        _draw(self.proj)

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: None = None,
        *,
        mask: Bool[Tensor, "*B2 N N"],
    ) -> tuple[Float[Tensor, "B N E"], None]:
        """Gather the rows of each node's neighbours.

        Args:
            x: (B, N, d_model).
            state: None; a graph is no sequence that goes on.
            mask: the graph, (N, N) or (B, N, N).

        Returns:
            y (B, N, d_out), and None.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, or a state.
        """
        refuse_state(state)
        check_rows("x", x, self.proj.weight)
        check_graph_of(mask, x)
        y = gcn_weights(mask, dtype=x.dtype) @ nn.functional.linear(x, self.proj.weight)
        return y if self.proj.bias is None else y + self.proj.bias, None


class MessagePassing(nn.Module):
    """What a node holds and what its neighbours say, each through a linear map of its own.

    y[i] = W_own x[i] + W_heard aggregate_{j ≠ i}(x[j]) + b

    Args:
        d_model: size of a row of x.
        d_out: size of a row of y; d_model when omitted.
        kind: how messages are gathered, "mean", "sum" or "max".
        bias: whether there is a b.

    Attributes:
        own_proj, heard_proj: the linear maps; the first has b.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size below 1, or another kind.

    Example:
        >>> y, _ = MessagePassing(4, kind="max")(torch.randn(1, 5, 4), mask=torch.eye(5).bool())
        >>> y.shape
        torch.Size([1, 5, 4])

    Source: [gilmer2017neural], mean and maximum: [hamilton2017inductive]
    Explained in: chapters/09_hybrids.
    """

    def __init__(
        self, d_model: int, d_out: int | None = None, *, kind: str = "mean", bias: bool = True
    ):
        """Draw the weights, Xavier uniform with b at 0."""
        super().__init__()
        d_out = _check_sizes(d_model, d_out, bias)
        check_choice("kind", kind, AGGREGATIONS)
        self.kind = kind
        self.own_proj = nn.Linear(d_model, d_out, bias=bias)
        self.heard_proj = nn.Linear(d_model, d_out, bias=False)
        _draw(self.own_proj)
        _draw(self.heard_proj)

    def extra_repr(self) -> str:
        """Show how messages are gathered."""
        return f"kind={self.kind!r}"

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: None = None,
        *,
        mask: Bool[Tensor, "*B2 N N"],
    ) -> tuple[Float[Tensor, "B N E"], None]:
        """Pass one message along each edge.

        Args:
            x: (B, N, d_model).
            state: None; a graph is no sequence that goes on.
            mask: the graph, (N, N) or (B, N, N); loops are left out.

        Returns:
            y (B, N, d_out), and None.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, or a state.
        """
        refuse_state(state)
        check_rows("x", x, self.own_proj.weight)
        check_graph_of(mask, x)
        others = mask & ~torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
        heard = aggregate(x, others, self.kind)
        return self.own_proj(x) + self.heard_proj(heard), None


class LocalGlobal(nn.Module):
    """Message passing along the edges and attention among all nodes, side by side.

    y = near(x, along the edges) + far(x, all nodes). In a block that adds x, has norms and a
    feed-forward network this is a layer of GPS, but for the norm that GPS puts behind each branch.

    Args:
        near: a mixer that is told the graph by its mask, such as :class:`MessagePassing`.
        far: a mixer of all nodes, such as ``MultiHeadAttention``.

    Raises:
        TypeError: if one is no module.

    Example:
        >>> from tfbook.attention import MultiHeadAttention
        >>> both = LocalGlobal(MessagePassing(8), MultiHeadAttention(8, n_heads=2))
        >>> y, _ = both(torch.randn(1, 5, 8), mask=torch.eye(5).bool())
        >>> y.shape
        torch.Size([1, 5, 8])

    Source: [rampasek2022recipe]
    Explained in: chapters/09_hybrids.
    """

    def __init__(self, near: nn.Module, far: nn.Module):
        """Keep both."""
        super().__init__()
        check_module("near", near)
        check_module("far", far)
        self.near, self.far = near, far

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: None = None,
        *,
        mask: Bool[Tensor, "*B2 N N"],
        together: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], None]:
        """Add what both find.

        Args:
            x: (B, N, d_model).
            state: None; a graph is no sequence that goes on.
            mask: the graph, (N, N) or (B, N, N), for ``near``.
            together: the mask for ``far``, such as ``document_mask`` of several graphs in a row;
                when omitted all nodes that somebody may look at, which leaves out padding.

        Returns:
            y (B, N, d_model), and None.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, or a state.
        """
        refuse_state(state)
        check_float("x", x, min_dims=3)
        check_graph_of(mask, x)
        if together is None:
            together = mask.any(-2, keepdim=True)  # (..., 1, N)
        return self.near(x, mask=mask)[0] + self.far(x, mask=together)[0], None


def check_neighbours(mask: object, x: Tensor) -> None:
    """Raise unless ``mask`` is boolean and says which rows of x (..., n, d) are gathered.

    Raises:
        TypeError: if it is not a boolean tensor.
        ValueError: if its shape does not fit.
    """
    check_tensor("mask", mask, min_dims=2)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean with True = allowed, got {mask.dtype}")
    if mask.shape[-1] != x.shape[-2] or 0 in mask.shape[-2:]:
        raise ValueError(
            f"mask must have shape (..., m, n) with n = {x.shape[-2]}, the rows of x, "
            f"got {tuple(mask.shape)}"
        )
    broadcast_batch(x=x.shape[:-2], mask=mask.shape[:-2])


def _check_sizes(d_model: object, d_out: object, bias: object) -> int:
    check_number("d_model", d_model, 1, whole=True)
    d_out = d_model if d_out is None else d_out
    check_number("d_out", d_out, 1, whole=True)
    check_bool("bias", bias)
    return d_out


def _draw(linear: nn.Linear) -> None:
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
