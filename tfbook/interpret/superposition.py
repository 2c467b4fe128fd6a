"""More features than dimensions: a model of one layer, small enough to see how it packs them.

Inputs are sparse: most of their features are 0. A linear map squeezes them into fewer numbers, its
transpose and a ReLU are to bring them back. What is learnt are the directions of the features, the
columns of W, and whether a feature has a direction of its own, shares one, or has none.

Explained in: chapters/10_interpretability_deeper, section "Superposition".
"""

import math
from fractions import Fraction
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import check_float, check_generator, check_number, check_same, check_shape

__all__ = [
    "Packing",
    "SuperpositionModel",
    "draw_features",
    "expected_loss",
    "fit_superposition",
    "packing",
]

MOST = 8  # features that the exact loss can take: it visits 3^n corners
Shares = float | Float[Tensor, " I"]


class SuperpositionModel(nn.Module):
    """Several small models at once, each x̂ = ReLU(Wᵀ W x + b) with its own W (m, n) and b (n,).

    Args:
        n_features: n, the numbers of an input.
        d_hidden: m, the dimensions they are squeezed into.
        n_instances: I, how many models stand side by side; they share nothing.
        generator: source of the first weights.

    Attributes:
        weight: (I, m, n); column i is the direction of feature i.
        bias: (I, n), 0 at first.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Example:
        >>> model = SuperpositionModel(5, 2, generator=torch.Generator().manual_seed(0))
        >>> model(torch.rand(1, 7, 5)).shape
        torch.Size([1, 7, 5])

    Cost: I (m n + n) parameters, 4 I m n FLOPs a row.

    Source: [elhage2022toy]
    Explained in: chapters/10_interpretability_deeper, section "Superposition".
    """

    def __init__(
        self,
        n_features: int,
        d_hidden: int,
        n_instances: int = 1,
        *,
        generator: torch.Generator | None = None,
    ):
        """Draw the weights: normal, with the variance 2 / (n + m)."""
        super().__init__()
        check_number("n_features", n_features, 1, whole=True)
        check_number("d_hidden", d_hidden, 1, whole=True)
        check_number("n_instances", n_instances, 1, whole=True)
        check_generator(generator)
        std = math.sqrt(2 / (n_features + d_hidden))
        drawn = torch.randn(n_instances, d_hidden, n_features, generator=generator)
        self.weight = nn.Parameter(drawn * std)
        self.bias = nn.Parameter(torch.zeros(n_instances, n_features))

    def forward(self, x: Float[Tensor, "I B n"]) -> Float[Tensor, "I B n"]:
        """Squeeze the features and bring them back.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit.
        """
        check_float("x", x, min_dims=3)
        count, _, n = self.weight.shape
        check_shape("x", x, (count, x.shape[1], n), "(I, B, n)")
        check_same(**{"x": x, "the weights": self.weight})
        hidden = x @ self.weight.mT  # (I, B, m)
        return (hidden @ self.weight + self.bias[:, None]).relu()


def draw_features(
    n_features: int,
    batch: int,
    density: Shares,
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "I B n"]:
    """Draw inputs whose features are 0, or uniform between 0 and 1 with the probability p.

    Args:
        n_features: n.
        batch: B.
        density: p, one number, or one for each instance, (I,); the sparsity is 1 − p.
        generator: source of random numbers.

    Returns:
        (I, B, n), with I = 1 for one number.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or a shape that does not fit.

    Example:
        >>> x = draw_features(4, 1000, 0.1, generator=torch.Generator().manual_seed(0))
        >>> x.shape, round((x > 0).float().mean().item(), 1)
        (torch.Size([1, 1000, 4]), 0.1)

    Source: [elhage2022toy]
    Explained in: chapters/10_interpretability_deeper, section "Superposition".
    """
    check_number("n_features", n_features, 1, whole=True)
    check_number("batch", batch, 1, whole=True)
    check_generator(generator)
    shares = _shares(density)
    size = (len(shares), batch, n_features)
    on = torch.rand(size, generator=generator) < shares[:, None, None]
    return torch.rand(size, generator=generator) * on


def fit_superposition(
    model: SuperpositionModel,
    density: Shares,
    importance: Float[Tensor, "*I n"] | None = None,
    *,
    steps: int = 2000,
    batch: int = 512,
    lr: float = 1e-2,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "S I"]:
    """Train all instances, each by itself, on Σ_i importance_i (x_i − x̂_i)².

    Adam, whose rate falls along a cosine to 0. Each instance sees inputs of its own.

    Args:
        model: trained in place.
        density: the probability p of a feature, one number, or one for each instance, (I,).
        importance: of each feature, (n,), or (I, n); 1 for all when omitted.
        steps: how many.
        batch: inputs of a step, for each instance.
        lr: the highest rate, at most 1.
        generator: source of the inputs.

    Returns:
        The losses of each step, (steps, I).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or a shape that does not fit.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> model = SuperpositionModel(3, 3, generator=generator)
        >>> losses = fit_superposition(model, 0.5, steps=300, batch=64, generator=generator)
        >>> losses.shape, bool(losses[-1] < losses[0] / 10)
        (torch.Size([300, 1]), True)

    Source: [elhage2022toy]
    Explained in: chapters/10_interpretability_deeper, section "Superposition".
    """
    if not isinstance(model, SuperpositionModel):
        raise TypeError(f"model must be a SuperpositionModel, got {type(model).__name__}")
    check_number("steps", steps, 1, whole=True)
    check_number("batch", batch, 1, whole=True)
    check_number("lr", lr, high=1, above=0)
    check_generator(generator)
    count, _, n = model.weight.shape
    shares = _shares(density)
    if len(shares) not in (1, count):
        raise ValueError(f"density must be one number, or {count} of them, got {len(shares)}")
    shares = shares.expand(count)
    weights = _importance(importance, count, n)[:, None].to(model.weight)  # (I, 1, n)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    course = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = torch.empty(steps, count)
    for step in range(steps):
        x = draw_features(n, batch, shares, generator=generator).to(model.weight)
        each = ((x - model(x)).square() * weights).sum(-1).mean(-1)  # (I,)
        optimizer.zero_grad()
        each.sum().backward()
        optimizer.step()
        course.step()
        losses[step] = each.detach()
    return losses


def expected_loss(
    weight: Float[Tensor, "m n"],
    bias: Float[Tensor, " n"],
    density: float,
    importance: Float[Tensor, " n"] | None = None,
) -> float:
    """Return the loss over all inputs, without drawing any: E Σ_i importance_i (x_i − x̂_i)².

    Which features are on is summed over. For those that are, u = b + a·x with the entries a of
    Wᵀ W, and the mean of a power of ReLU(u) over the cube is a sum over its corners v,

    E (b + a·x)_+^q = q! / (q + k)! / Π a_j · Σ_v (−1)^(k − |v|) (b + a·v)_+^(q + k),

    computed in whole numbers, so that nothing is lost where the a_j are small.

    Args:
        weight: (m, n), of one instance, n at most 8.
        bias: (n,).
        density: the probability p that a feature is on.
        importance: of each feature, (n,); 1 for all when omitted.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number that does not fit, or one that is not finite.

    Example:
        >>> expected_loss(torch.eye(2), torch.zeros(2), 0.3)
        0.0
        >>> expected_loss(torch.zeros(1, 2), torch.zeros(2), 1.0)  # 2 · E x²
        0.6666666666666666

    Source: the model: [elhage2022toy]
    Explained in: chapters/10_interpretability_deeper, section "Superposition".
    """
    check_float("weight", weight)
    if weight.ndim != 2 or not 1 <= weight.shape[1] <= MOST or not len(weight):
        wanted = f"(m, n) with n at most {MOST}"
        raise ValueError(f"weight must have shape {wanted}, got {tuple(weight.shape)}")
    n = weight.shape[1]
    check_float("bias", bias)
    check_shape("bias", bias, (n,), "(n,)")
    check_number("density", density, 0, 1)
    counted = _importance(importance, 1, n)[0].tolist()
    weight, bias = weight.detach().double().cpu(), bias.detach().double().cpu()
    entries, ends = (weight.T @ weight).tolist(), bias.tolist()
    if not all(map(math.isfinite, [*ends, *counted, *(a for row in entries for a in row)])):
        raise ValueError("weight, bias and importance must be finite")
    on = Fraction(density)
    total = Fraction(0)
    for here in product((False, True), repeat=n):  # which features are on
        chance = on ** sum(here) * (1 - on) ** (n - sum(here))
        if chance:
            for i in range(n):
                error = _squared_error(entries[i], ends[i], here, i)
                total += chance * Fraction(counted[i]) * error
    return float(total)


def _squared_error(row: list[float], start: float, on: tuple[bool, ...], i: int) -> Fraction:
    """Return the mean of (x_i − ReLU(u))² over the features that are on."""
    a = {j: Fraction(row[j]) for j in range(len(row)) if on[j] and row[j]}
    b = Fraction(start)
    found = _mean_power(list(a.values()), b, 2)
    if not on[i]:
        return found
    rest = [each for j, each in a.items() if j != i]
    if i in a:  # by parts: ∫ x (t + a x)_+ dx = (t + a)_+² / 2a − ∫ (t + a x)_+² dx / 2a
        cross = (_mean_power(rest, b + a[i], 2) - found) / (2 * a[i])
    else:
        cross = _mean_power(rest, b, 1) / 2
    return Fraction(1, 3) - 2 * cross + found


def _mean_power(a: list[Fraction], b: Fraction, power: int) -> Fraction:
    """Return the mean of (b + a·x)_+^power for x uniform in the cube; no a_j is 0."""
    scale = math.lcm(b.denominator, *(each.denominator for each in a))
    steps, start, k = [int(each * scale) for each in a], int(b * scale), len(a)
    total = 0
    for corner in product((0, 1), repeat=k):
        value = start + sum(step for step, there in zip(steps, corner, strict=True) if there)
        if value > 0:
            total += (-1) ** (k - sum(corner)) * value ** (power + k)
    below = math.prod(range(power + 1, power + k + 1)) * math.prod(steps) * scale**power
    return Fraction(total, below)


class Packing(NamedTuple):
    """How features lie in the dimensions there are; all for (…, m, n).

    Attributes:
        norms: ‖W_i‖, about 1 for a feature that is represented, 0 for one that is not, (…, n).
        interference: Σ_{j≠i} (Ŵ_i · W_j)², how much of the others lies along feature i, with
            Ŵ_i = W_i / ‖W_i‖, (…, n).
        dimensions: ‖W_i‖² / Σ_j (Ŵ_i · W_j)², the share of a dimension that feature i has: 1 for a
            direction of its own, 1/2 for one of a pair, (…, n).
        per_dimension: ‖W‖² / m, how many features there are for each dimension, (…).

    Source: [elhage2022toy]
    Explained in: chapters/10_interpretability_deeper, section "Superposition".
    """

    norms: Tensor
    interference: Tensor
    dimensions: Tensor
    per_dimension: Tensor


def packing(weight: Float[Tensor, "*B m n"]) -> Packing:
    """Measure how features share the dimensions: see :class:`Packing`.

    Args:
        weight: (…, m, n), a column for each feature.

    Returns:
        Its numbers. A feature without a direction has 0 everywhere.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for fewer than two dimensions, or an empty one.

    Example:
        >>> found = packing(torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]]))
        >>> found.dimensions, found.per_dimension
        (tensor([0.5000, 0.5000, 1.0000]), tensor(1.5000))

    Source: [elhage2022toy]
    Explained in: chapters/10_interpretability_deeper, section "Superposition".
    """
    check_float("weight", weight, min_dims=2)
    if 0 in weight.shape:
        raise ValueError(f"weight must not be empty, got shape {tuple(weight.shape)}")
    weight = weight.detach()
    weight = weight.float() if weight.itemsize < 4 else weight
    norms = weight.norm(dim=-2)  # (…, n)
    unit = torch.where(norms[..., None, :] > 0, weight / norms[..., None, :], 0)
    along = (unit.mT @ weight).square()  # (…, n, n): how much of j lies along i
    own = along.diagonal(dim1=-2, dim2=-1)
    whole = along.sum(-1)
    shares = torch.where(whole > 0, norms.square() / whole, 0)
    per_dimension = norms.square().sum(-1) / weight.shape[-2]
    return Packing(norms, whole - own, shares, per_dimension)


def _shares(density: object) -> Float[Tensor, " I"]:
    """Return probabilities (I,), after a check."""
    if not isinstance(density, Tensor):
        check_number("density", density, 0, 1)
        return torch.tensor([float(density)])
    check_float("density", density)
    if density.ndim != 1 or not len(density):
        raise ValueError(f"density must have shape (I,), got {tuple(density.shape)}")
    density = density.detach().float().cpu()
    if not bool(((density >= 0) & (density <= 1)).all()):
        raise ValueError("density must hold probabilities, from 0 to 1")
    return density


def _importance(importance: object, count: int, n: int) -> Float[Tensor, "I n"]:
    """Return how much each feature counts in each instance, after a check."""
    if importance is None:
        return torch.ones(count, n)
    check_float("importance", importance)
    if tuple(importance.shape) not in ((n,), (count, n)):
        wanted = f"(n,) = ({n},) or (I, n) = ({count}, {n})"
        raise ValueError(f"importance must have shape {wanted}, got {tuple(importance.shape)}")
    if not bool((importance >= 0).all()):
        raise ValueError("importance must hold no number below 0 and no NaN")
    return importance.detach().cpu().expand(count, n)
