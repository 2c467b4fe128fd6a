"""Budgets of FLOPs: what training and serving cost, and the model that a budget buys.

A model of N parameters takes about 2 N FLOPs a token forward and 4 N backward. All of these are
estimates: they leave out what does not grow with N, and no machine reaches its peak.

Explained in: chapters/06_complexity, section "Splitting a budget".
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tfbook._checks import check_number
from tfbook.costs.power_laws import LARGEST, ChinchillaLaw, check_different, read_columns

__all__ = [
    "compute_optimal",
    "forward_flops",
    "isoflop_minimum",
    "serving_optimal",
    "training_days",
    "training_flops",
]

GRID = 100  # places where the search for a minimum begins
HALVINGS = 64
GOLDEN = (math.sqrt(5) - 1) / 2


@runtime_checkable
class Law(Protocol):
    """What has a loss of size and data."""

    def loss(self, n_parameters: float, n_tokens: float) -> float:
        """Return the loss in nats a token."""


def training_flops(n_parameters: float, n_tokens: float) -> float:
    """Estimate the FLOPs of training: 6 N D, which is 2 N a token forward and 4 N backward.

    The scores of attention are left out, see :func:`forward_flops`; what is computed a second
    time to save memory is too.

    Args:
        n_parameters: N, of matrices that each token is multiplied with: count no embeddings but
            those that also make the logits, and of experts only those that a token visits.
        n_tokens: D, all tokens seen.

    Raises:
        TypeError: if one is no number.
        ValueError: if one is not positive and finite.

    Example:
        >>> f"{training_flops(174.6e9, 300e9):.3g}"  # GPT-3
        '3.14e+23'

    Source: [kaplan2020scaling]; GPT-3: [brown2020language], table D.1
    Explained in: chapters/06_complexity, section "Splitting a budget".
    """
    check_number("n_parameters", n_parameters, above=0)
    check_number("n_tokens", n_tokens, above=0)
    return 6.0 * n_parameters * n_tokens


def forward_flops(
    n_parameters: float, *, n_layers: int = 0, d_model: int = 0, context: int = 0
) -> float:
    """Estimate the FLOPs of one token's forward pass: 2 N + 4 n_layers · d_model · context.

    The second part is attention: scores and mix of one query with all keys of the context, each
    2 · context · d_model in a layer, whatever the number of heads. A causal model needs half of
    it on average over a sequence, if what the mask hides is not computed; the paper's table counts
    2 n_layers · d_model · context.

    Args:
        n_parameters: N, of matrices that each token is multiplied with.
        n_layers: layers with attention.
        d_model: n_heads · d_head, the width of the queries together.
        context: keys that a query is compared with.

    Raises:
        TypeError: if n_parameters is no number or a size no integer.
        ValueError: if n_parameters is not positive, a size negative, or some but not all of the
            three sizes are given.

    Example:
        >>> forward_flops(124e6), forward_flops(124e6, n_layers=12, d_model=768, context=1024)
        (248000000.0, 285748736.0)

    Source: [kaplan2020scaling], table 1
    Explained in: chapters/06_complexity, section "Splitting a budget".
    """
    check_number("n_parameters", n_parameters, above=0)
    sizes = {"n_layers": n_layers, "d_model": d_model, "context": context}
    for name, size in sizes.items():
        check_number(name, size, 0, whole=True)
    if 0 < sum(size > 0 for size in sizes.values()) < 3:
        said = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise ValueError(f"attention needs n_layers, d_model and context, all or none, got {said}")
    return 2.0 * n_parameters + 4 * n_layers * d_model * context


def training_days(flops: float, n_devices: int, peak_flops: float, utilisation: float) -> float:
    """Estimate how long a training takes: flops / (n_devices · peak · utilisation), in days.

    Args:
        flops: of the whole training.
        n_devices: devices that share it.
        peak_flops: of one device, FLOPs per second as its data sheet says, at least 1.
        utilisation: the share of the peak that the training reaches, above 0, at most 1.

    Raises:
        TypeError: if one is no number, or n_devices no integer.
        ValueError: if one is out of range.

    Example:
        >>> round(training_days(3.14e23, 1024, 312e12, 0.4), 1)  # GPT-3 on A100s, an estimate
        28.4

    Source: the FLOPs of GPT-3: [brown2020language], table D.1
    Explained in: chapters/06_complexity, section "Splitting a budget".
    """
    check_number("flops", flops, above=0)
    check_number("n_devices", n_devices, 1, whole=True)
    check_number("peak_flops", peak_flops, 1)
    check_number("utilisation", utilisation, above=0, high=1)
    return flops / n_devices / peak_flops / utilisation / 86_400


def compute_optimal(law: Law, flops: float, *, flops_per: float = 6.0) -> tuple[float, float]:
    """Return the size and the number of tokens that reach the least loss for given FLOPs.

    The budget is C = 6 N D. For a Chinchilla law the minimum has a closed form,
    N = G (C/6)^(β/(α+β)) and D = (C/6)^(α/(α+β)) / G with G = (α A / (β B))^(1/(α+β)):
    put D = C / (6 N) into the law, and let the derivative by log N be 0. For any other law it is
    looked for, over log N from one parameter to one token, to about 1e-6.

    Args:
        law: a :class:`ChinchillaLaw`, or any object with a method ``loss(N, D)`` of two numbers.
        flops: C, of the whole training, at least flops_per.
        flops_per: FLOPs for each parameter and token.

    Returns:
        N and D, as floats.

    Raises:
        TypeError: if the law has no method loss, or that returns no number.
        ValueError: if a number is out of range, or the law has no minimum inside it.

    Example:
        >>> from tfbook.costs import BESIROGLU
        >>> n, d = compute_optimal(BESIROGLU, 5.76e23)  # the budget of Gopher and Chinchilla
        >>> round(n / 1e9), round(d / n)
        (72, 18)

    Source: [hoffmann2022training], equation 4
    Explained in: chapters/06_complexity, section "Splitting a budget".
    """
    if not callable(getattr(law, "loss", None)):
        raise TypeError(f"law must have a method loss(N, D), got {type(law).__name__}")
    check_number("flops", flops, above=0)
    check_number("flops_per", flops_per, above=0)
    budget = math.log(flops) - math.log(flops_per)  # log of N D
    if not 0 <= budget <= LARGEST:
        raise ValueError(
            f"flops must pay for one parameter and one token at least, and be finite in them, "
            f"got {flops} with flops_per = {flops_per}"
        )
    if isinstance(law, ChinchillaLaw):
        alpha, beta = law.n_exponent, law.d_exponent
        g = _log_ratio(law) / (alpha + beta)
        size = g + budget * beta / (alpha + beta)
    else:
        size = _minimum(lambda log_n: _loss(law, log_n, budget - log_n), 0.0, budget)
    return _amounts(size, budget - size)


def serving_optimal(law: ChinchillaLaw, loss: float, served_tokens: float) -> tuple[float, float]:
    """Return the size and the tokens that reach a loss with the fewest FLOPs of a whole life.

    Training and serving cost 6 N D + 2 N S. A smaller model that is trained longer reaches the same
    loss; it pays when S, the tokens served, are many. Of the gap between ``loss`` and the floor a
    share s is left to A / N^α and the rest to B / D^β. The cost has one minimum over s, where
    6 D / (6 D + 2 S) = β (1 − s) / (α s). For S = 0 that is the compute-optimal model.

    Args:
        law: a :class:`ChinchillaLaw`.
        loss: to be reached, in nats a token, above the law's floor.
        served_tokens: S, read and written by users, from 0.

    Returns:
        N and D, as floats.

    Raises:
        TypeError: if the law is no ChinchillaLaw or another one no number.
        ValueError: if no model reaches the loss, or one with less than a parameter or a token.

    Example:
        >>> from tfbook.costs import HOFFMANN
        >>> n, d = serving_optimal(HOFFMANN, 2.0, served_tokens=0)
        >>> smaller, longer = serving_optimal(HOFFMANN, 2.0, served_tokens=10e12)
        >>> smaller < n and longer > d
        True

    Source: [sardana2024beyond]
    Explained in: chapters/06_complexity, section "Splitting a budget".
    """
    if not isinstance(law, ChinchillaLaw):
        raise TypeError(f"law must be a ChinchillaLaw, got {type(law).__name__}")
    check_number("loss", loss, above=law.floor)
    check_number("served_tokens", served_tokens, 0)
    gap, alpha, beta = math.log(loss - law.floor), law.n_exponent, law.d_exponent
    served = math.log(served_tokens) + math.log(2 / 6) if served_tokens else -math.inf

    def amounts(odds: float) -> tuple[float, float, float]:  # odds: log of s / (1 − s)
        size = (math.log(law.n_scale) - gap - _log_sigmoid(odds)) / alpha
        data = (math.log(law.d_scale) - gap - _log_sigmoid(-odds)) / beta
        training = _log_sigmoid(data - served)  # log of 6 D / (6 D + 2 S)
        return size, data, training + odds + math.log(alpha) - math.log(beta)

    low, high = -LARGEST, LARGEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if amounts(middle)[2] > 0 else (middle, high)
    return _amounts(*amounts(low)[:2])


def isoflop_minimum(
    n_parameters: Tensor | Sequence[float], loss: Tensor | Sequence[float]
) -> tuple[float, float]:
    """Return the best size among runs of equal compute: the vertex of a parabola in log N.

    loss ≈ a + b log N + c (log N)², fitted by least squares; the vertex is at log N = −b / (2 c).
    Where it lies outside of the runs, it is an extrapolation. Seen over a wide range no law is a
    parabola, which moves the vertex.

    Args:
        n_parameters: N of the runs, positive (n,).
        loss: their losses in nats a token (n,).

    Returns:
        N at the vertex, and the parabola's loss there.

    Raises:
        TypeError: if one is no list of numbers.
        ValueError: for fewer than 3 different sizes; for numbers that are not positive and finite;
            where the parabola has no minimum.

    Example:
        >>> n, loss = isoflop_minimum([1e7, 1e8, 1e9], [3.2, 3.0, 3.2])
        >>> round(n), round(loss, 6)
        (100000000, 3.0)

    Source: [hoffmann2022training], approach 2
    Explained in: chapters/06_complexity, section "Splitting a budget".
    """
    n, loss = read_columns(n_parameters=n_parameters, loss=loss)
    check_different("n_parameters", n, 3)
    middle, spread = n.log().mean().item(), n.log().std().item()
    places = (n.log() - middle) / spread
    powers = torch.stack((torch.ones_like(places), places, places**2), dim=-1)  # (n, 3)
    a, b, c = torch.linalg.lstsq(powers, loss[:, None], driver="gelsd").solution[:, 0].tolist()
    if not c > 0 or abs(middle - b / (2 * c) * spread) > LARGEST:
        raise ValueError("loss must have a minimum over n_parameters; the parabola has none")
    return math.exp(middle - b / (2 * c) * spread), a - b**2 / (4 * c)


def _log_ratio(law: ChinchillaLaw) -> float:
    """Return the logarithm of α A / (β B)."""
    by_size = math.log(law.n_exponent) + math.log(law.n_scale)
    return by_size - math.log(law.d_exponent) - math.log(law.d_scale)


def _log_sigmoid(odds: float) -> float:
    """Return log(1 / (1 + e^−odds)), for odds of any size."""
    return min(odds, 0.0) - math.log1p(math.exp(-abs(odds)))


def _loss(law: Law, log_n: float, log_d: float) -> float:
    value = law.loss(math.exp(log_n), math.exp(log_d))
    check_number("law.loss(N, D)", value, finite=False)
    return value


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function is least between two ends: on a grid, then by golden section."""
    grid = [low + (high - low) * i / GRID for i in range(GRID + 1)]
    best = min(range(GRID + 1), key=lambda i: function(grid[i]))
    if best in (0, GRID):
        raise ValueError("law must have a minimum between one parameter and one token; it has none")
    low, high = grid[best - 1], grid[best + 1]
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-9:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2


def _amounts(log_n: float, log_d: float) -> tuple[float, float]:
    """Return N and D, of at least one each."""
    for name, value in (("parameters", log_n), ("tokens", log_d)):
        if not 0 <= value <= LARGEST:
            wanted = "more than a float holds" if value > 0 else "less than one of them"
            raise ValueError(f"no model of this law fits: the number of {name} would be {wanted}")
    return math.exp(log_n), math.exp(log_d)
