"""Heads as a dimension: features cut into heads, heads cut into groups, and back.

Heads stand at dimension −3: queries are (B, H, N, d_head). Where several of them share one head of
keys and values, they stand in groups, (B, n_kv_heads, G, N, d_head), and the keys beside them as
(B, n_kv_heads, 1, M, d_head): broadcasting says which key-value head a query head uses.

Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
"""

from collections.abc import Callable

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from tfbook._checks import check_float, check_number, check_tensor

__all__ = ["HeadsTogether", "group_heads", "merge_heads", "split_heads"]


def split_heads(x: Float[Tensor, "*B N HD"], n_heads: int) -> Float[Tensor, "*B H N D"]:
    """Cut the features of each row into equal parts, one for each head; nothing is copied.

    heads[..., h, i, :] = x[..., i, h·d : (h + 1)·d] with d = features / n_heads.

    Args:
        x: (..., n, n_heads · d).
        n_heads: how many parts.

    Returns:
        The parts, (..., n_heads, n, d).

    Raises:
        TypeError: if x is not floating point or n_heads is not an integer.
        ValueError: if x has fewer than two dimensions or n_heads does not divide its last one.

    Example:
        >>> import torch
        >>> split_heads(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 2)
        tensor([[[1., 2.]],
        <BLANKLINE>
                [[3., 4.]]])

    Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
    """
    check_float("x", x, min_dims=2)
    check_number("n_heads", n_heads, 1, whole=True)
    if x.shape[-1] % n_heads:
        raise ValueError(
            f"n_heads must divide the last dimension of x, got {n_heads} and x {tuple(x.shape)}"
        )
    return x.view(*x.shape[:-1], n_heads, x.shape[-1] // n_heads).transpose(-2, -3)


def merge_heads(x: Float[Tensor, "*B H N D"]) -> Float[Tensor, "*B N HD"]:
    """Concatenate the heads of each row along its features; undoes :func:`split_heads`.

    Args:
        x: (..., n_heads, n, d).

    Returns:
        The rows, (..., n, n_heads · d).

    Raises:
        TypeError: if x is not floating point.
        ValueError: if x has fewer than three dimensions.

    Explained in: chapters/03_multi_head, section "Split, attend, concatenate, project".
    """
    check_float("x", x, min_dims=3)
    return x.transpose(-2, -3).flatten(-2)


def group_heads(x: Shaped[Tensor, "..."] | None, n_groups: int) -> Shaped[Tensor, "..."] | None:
    """Put heads into groups of neighbours, whether there are H or one for all; nothing is copied.

    Args:
        x: queries, or a mask or bias for the scores: (..., H, N, D), (..., 1, N, D), or (N, D)
            for all heads; None stays None.
        n_groups: how many, a divisor of H.

    Returns:
        (..., n_groups, H / n_groups, N, D), (..., 1, 1, N, D), or x.

    Raises:
        TypeError: if x is no tensor, or n_groups no integer.
        ValueError: if n_groups does not divide the heads.

    Example:
        >>> import torch
        >>> group_heads(torch.zeros(1, 6, 3, 4), 2).shape
        torch.Size([1, 2, 3, 3, 4])

    Source: [ainslie2023gqa]
    Explained in: chapters/03_multi_head, section "Fewer keys and values".
    """
    check_number("n_groups", n_groups, 1, whole=True)
    if x is None:
        return x
    check_tensor("x", x)
    if x.ndim < 3:
        return x
    *lead, n_heads, n, d = x.shape
    if n_heads == 1:
        return x.unsqueeze(-3)
    if n_heads % n_groups:
        raise ValueError(f"n_groups must divide the heads, got {n_groups} and x {tuple(x.shape)}")
    return x.view(*lead, n_groups, n_heads // n_groups, n, d)


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
