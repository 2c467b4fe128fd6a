"""A short causal convolution: each number looks back over its own last few values.

Models with a state put one before it, so that a row knows its nearest neighbours before anything is
remembered. The last rows are all that it carries on.

Explained in: chapters/09_hybrids.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_bool, check_number, check_rows, check_same, check_shape
from tfbook.attention import at_least_float32
from tfbook.recurrent.scan import read_tokens

__all__ = ["CausalConv", "ConvState"]


@dataclass(frozen=True, eq=False)
class ConvState:
    """The rows that a causal convolution still has to look at; never changed.

    Attributes:
        rows: the last width − 1 rows of each sequence, (B, width − 1, d), 0 before the first.
        seen: how many rows came before the next one, masked ones included.

    Explained in: chapters/09_hybrids.
    """

    rows: Float[Tensor, "B W D"]
    seen: int

    @property
    def length(self) -> int:
        """Return how many rows were read."""
        return self.seen

    @property
    def nbytes(self) -> int:
        """Return the bytes of the rows."""
        return self.rows.nbytes

    def select(self, rows: Int[Tensor, " S"]) -> "ConvState":
        """Return the state of the chosen sequences of the batch, in the order given."""
        return replace(self, rows=self.rows[rows])


class CausalConv(nn.Module):
    """Convolve each of d numbers with a filter of its own over the last rows, the present included.

    y[t, c] = b[c] + Σ_{j = 0}^{width − 1} w[c, width − 1 − j] x[t − j, c], with rows of 0 before
    the first.

    Args:
        d: numbers in a row.
        width: how many rows a filter sees, at least 1.
        bias: whether there is a b.

    Attributes:
        weight: w, (d, width); the last column meets the present row, as in PyTorch's ``Conv1d``.
        bias: b, (d,), or None.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a size below 1.

    Cost: d · width parameters, and d of the bias; 2 · d · width FLOPs a row; the state holds
        d · (width − 1) numbers, however long the sequence.

    Example:
        >>> conv = CausalConv(3, width=4)
        >>> x = torch.randn(1, 6, 3)
        >>> whole, _ = conv(x)
        >>> start, state = conv(x[:, :2])
        >>> rest, state = conv(x[:, 2:], state)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-6), state.length
        (True, 6)

    Source: [gu2024mamba]
    Explained in: chapters/09_hybrids.
    """

    def __init__(self, d: int, width: int, *, bias: bool = True):
        """Draw filters and biases from ±1/√width, as PyTorch does."""
        super().__init__()
        check_number("d", d, 1, whole=True)
        check_number("width", width, 1, whole=True)
        check_bool("bias", bias)
        self.d, self.width = d, width
        self.weight = nn.Parameter(torch.empty(d, width))
        self.register_parameter("bias", nn.Parameter(torch.empty(d)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw filters and biases from ±1/√width, as PyTorch does."""
        bound = self.width**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.d}, width={self.width}"

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: ConvState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], ConvState]:
        """Convolve the rows of x, continuing from a state.

        Args:
            x: (B, N, d).
            state: what the call before returned; None at the start of a sequence.
            mask: which rows are tokens, boolean, broadcasting to (B, 1, N), as ``padding_mask``.
                The filters pass over a row that is none as if it were not there; its y is 0.

        Returns:
            y (B, N, d), and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or a mask that is not one of rows.
        """
        check_rows("x", x, self.weight.mT)
        batch, n, _ = x.shape
        past, seen = self._read_state(x, state)
        tokens = read_tokens(mask, x)
        if tokens is None:
            rows = torch.cat([past, x], dim=1)  # (B, width − 1 + N, d)
            return self._convolve(rows), ConvState(rows[:, n:].clone(), seen + n)
        order = (~tokens).int().argsort(dim=1, stable=True)  # tokens first, in their order
        packed = x.gather(1, order[..., None].expand_as(x))
        rows = torch.cat([past, packed], dim=1)
        y = torch.zeros_like(x).scatter(1, order[..., None].expand_as(x), self._convolve(rows))
        last = tokens.sum(1, keepdim=True) + torch.arange(self.width - 1, device=x.device)
        held = rows.gather(1, last[..., None].expand(-1, -1, self.d))  # behind the last token
        return y.masked_fill(~tokens[..., None], 0.0), ConvState(held, seen + n)

    def _convolve(self, rows):
        """Return y for all rows but the first width − 1."""
        wide = at_least_float32(rows).mT  # (B, d, width − 1 + N)
        bias = None if self.bias is None else at_least_float32(self.bias)
        if wide.shape[-1] < self.width:  # no row at all
            return rows[:, :0]
        filters = at_least_float32(self.weight)[:, None]  # (d, 1, width)
        return functional.conv1d(wide, filters, bias, groups=self.d).mT.to(rows.dtype)

    def _read_state(self, x, state):
        """Return the rows before x and how many were read."""
        if state is None:
            return x.new_zeros(len(x), self.width - 1, self.d), 0
        if not isinstance(state, ConvState):
            raise TypeError(f"state must be a ConvState, got {type(state).__name__}")
        check_shape("state.rows", state.rows, (len(x), self.width - 1, self.d), "(B, width − 1, d)")
        check_same(**{"x": x, "state.rows": state.rows})
        return state.rows, state.seen
