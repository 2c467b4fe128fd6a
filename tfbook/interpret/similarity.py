"""How alike are the rows that two layers, or two models, make of the same inputs?

Coordinates cannot be compared, for nothing says that the third number of one means what the third
number of the other does. What can be compared is which inputs lie close to which. Linear CKA and
the Procrustes distance do not change when rows are turned, mirrored, moved or scaled.

Explained in: chapters/10_interpretability_deeper, section "How alike are two layers?".
"""

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import check_bool, check_float

__all__ = ["cka", "cka_table", "procrustes_distance"]

LEAST_UNBIASED = 4  # inputs


def cka(
    x: Float[Tensor, "T D"], y: Float[Tensor, "T E"], *, unbiased: bool = False
) -> Float[Tensor, ""]:
    """Return linear CKA, the centred kernel alignment of two sets of rows, from 0 to 1.

    CKA = ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖), with Frobenius norms and columns brought to mean 0. It is the
    cosine of the two centred Gram matrices XXᵀ and YYᵀ, which hold how close each input is to each
    other one.

    With few inputs and long rows it is far from 0 even for rows that have nothing in common.
    ``unbiased`` puts estimates in place of the three terms that leave the diagonals out; their
    expectation for unrelated rows is 0, and the result may be a little below 0.

    Args:
        x: rows of T inputs, (T, D).
        y: rows of the same inputs in the same order, (T, E).
        unbiased: use the estimates without bias, which needs at least 4 inputs.

    Returns:
        A number, in float64.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that do not fit, numbers that are not finite, too few inputs, or rows
            that are all the same.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
        >>> round(float(cka(x, 5 * x.flip(1) + 1)), 6)  # mirrored, scaled and moved
        1.0

    Cost: 2 T (D² + D E + E²) operations; with ``unbiased`` 2 T² (D + E).

    Source: [kornblith2019similarity], without bias: [song2012feature], [nguyen2021wide]
    Explained in: chapters/10_interpretability_deeper, section "How alike are two layers?".
    """
    x, y = _read_pair(x, y)
    check_bool("unbiased", unbiased)
    if unbiased:
        one, two = _hollow_gram("x", x), _hollow_gram("y", y)
        return (one * two).sum() / (one.norm() * two.norm())
    x, y = _centred("x", x), _centred("y", y)
    return (y.mT @ x).square().sum() / ((x.mT @ x).norm() * (y.mT @ y).norm())


def cka_table(
    xs: Float[Tensor, "K T D"], ys: Float[Tensor, "L T E"], *, unbiased: bool = False
) -> Float[Tensor, "K L"]:
    """Return linear CKA of each layer of one model with each layer of another, or of the same.

    Args:
        xs: rows of T inputs at K layers, (K, T, D), such as ``streams.flatten(1, 2)``.
        ys: rows of the same inputs at L layers, (L, T, E).
        unbiased: see :func:`cka`.

    Returns:
        (K, L).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: as for :func:`cka`.

    Example:
        >>> xs = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0))
        >>> cka_table(xs, xs[:2]).shape
        torch.Size([3, 2])

    Source: [kornblith2019similarity]
    Explained in: chapters/10_interpretability_deeper, section "How alike are two layers?".
    """
    for name, value in (("xs", xs), ("ys", ys)):
        check_float(name, value)
        if value.ndim != 3 or 0 in value.shape:
            raise ValueError(
                f"{name} must have shape (layers, T, D), not empty, got {tuple(value.shape)}"
            )
    return torch.stack([torch.stack([cka(x, y, unbiased=unbiased) for y in ys]) for x in xs])


def procrustes_distance(x: Float[Tensor, "T D"], y: Float[Tensor, "T E"]) -> Float[Tensor, ""]:
    """Return how far apart two sets of rows stay when one is turned onto the other at best.

    d = min over orthogonal R of ‖X R − Y‖² = 2 − 2 ‖YᵀX‖_*, with columns brought to mean 0, both
    sets to Frobenius norm 1, and the nuclear norm, the sum of singular values. Rows of different
    length are filled up with zeros. Unlike 1 − CKA its square root obeys the triangle inequality.

    Args:
        x: rows of T inputs, (T, D).
        y: rows of the same inputs in the same order, (T, E).

    Returns:
        A number from 0 (the same up to turning, mirroring, moving and scaling) to 2.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that do not fit, numbers that are not finite, or rows all the same.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
        >>> round(float(procrustes_distance(x, 5 * x.flip(1) + 1)), 6)
        0.0

    Cost: 2 T D E operations and the singular values of a D × E matrix.

    Source: [ding2021grounding], [williams2021generalized]
    Explained in: chapters/10_interpretability_deeper, section "How alike are two layers?".
    """
    x, y = _read_pair(x, y)
    x, y = _centred("x", x), _centred("y", y)
    found = 2 - 2 * torch.linalg.svdvals((y / y.norm()).mT @ (x / x.norm())).sum()
    return found.clamp(min=0)


def _read_pair(x: object, y: object) -> tuple[Tensor, Tensor]:
    """Return both sets of rows in float64, checked."""
    for name, value in (("x", x), ("y", y)):
        check_float(name, value)
        if value.ndim != 2 or 0 in value.shape:
            raise ValueError(f"{name} must have shape (T, D), not empty, got {tuple(value.shape)}")
        if not bool(value.detach().isfinite().all()):
            raise ValueError(f"{name} must be finite numbers, got some that are not")
    if len(x) != len(y):
        raise ValueError(
            f"x and y must be rows of the same inputs, as many each, got {len(x)} and {len(y)}"
        )
    if x.device != y.device:
        raise ValueError(f"x and y must be on the same device, got {x.device} and {y.device}")
    return x.double(), y.double()


def _centred(name: str, x: Tensor) -> Tensor:
    """Return rows less their mean, scaled so that no square overflows or vanishes."""
    size = float(x.detach().abs().max())
    x = x / size if size else x
    moved = x - x.mean(0)
    if not float(moved.detach().abs().max()) > 1e-12:
        raise ValueError(f"{name} must have rows that differ, got all the same")
    return moved / moved.detach().abs().max()


def _hollow_gram(name: str, x: Tensor) -> Tensor:
    """Return the Gram matrix without its diagonal, its rows and columns brought to sum 0."""
    n = len(x)
    if n < LEAST_UNBIASED:
        raise ValueError(f"unbiased needs at least {LEAST_UNBIASED} inputs, got {n}")
    x = _centred(name, x)
    gram = x @ x.mT
    gram = gram - torch.diag(gram.diagonal())
    sums = gram.sum(0) / (n - 2)
    gram = gram - sums - sums[:, None] + sums.sum() / (n - 1)
    gram = gram - torch.diag(gram.diagonal())
    if not float(gram.detach().abs().max()) > 1e-12:
        raise ValueError(f"{name} must have rows that are not all equally far from each other")
    return gram
