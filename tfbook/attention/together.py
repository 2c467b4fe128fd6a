"""One norm over all heads together, where the usual ones see each head by itself.

Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["HeadsTogether"]


class HeadsTogether(nn.Module):
    """Apply a norm to the numbers of all heads of a row as if the row had not been split.

    Args:
        norm: of n_heads · d_head numbers.

    Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
    """

    def __init__(self, norm: nn.Module) -> None:
        """Keep the norm."""
        super().__init__()
        self.norm = norm

    @classmethod
    def making(cls, make: Callable[[int], nn.Module] | None) -> Callable[[int], "HeadsTogether"]:
        """Return what makes such a norm of a size."""
        return lambda size: cls(make(size))

    def forward(self, x: Float[Tensor, "*B H N D"]) -> Float[Tensor, "*B H N D"]:
        """Return x (..., H, N, d_head), each row normalised over H · d_head numbers."""
        rows = x.transpose(-2, -3)  # (..., N, H, d_head)
        return self.norm(rows.flatten(-2)).view(rows.shape).transpose(-2, -3)
