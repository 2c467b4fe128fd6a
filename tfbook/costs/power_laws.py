"""Scaling laws: how the loss falls with parameters and training tokens, and fits of such laws.

A law is a few constants with a method ``loss``, in nats a token. It describes the runs that it was
fitted to; beyond them, or with another tokenizer, data set or recipe, it is an extrapolation.

Explained in: chapters/06_complexity, section "A law for the loss".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from tfbook._checks import check_callable, check_list, check_number

__all__ = [
    "BESIROGLU",
    "HOFFMANN",
    "KAPLAN",
    "KAPLAN_JOINT",
    "MUENNIGHOFF",
    "ChinchillaLaw",
    "DataConstrainedLaw",
    "KaplanLaw",
    "PowerLaw",
    "bootstrap",
    "fit_chinchilla",
    "fit_power_law",
    "interval",
]

Numbers = float | Tensor | Sequence[float]
LARGEST = 709.0  # of a logarithm: e^709 is about the largest float64
MOST_SAMPLES, MOST_TRIES = 100_000, 100
FLOORS, ROUNDS, STEPS = 65, 7, 10  # of the search for the floor of a power law
EXPONENTS = [0.05 * 1.5**i for i in range(10)]  # from 0.05 to 1.9, where Chinchilla's fit begins
STARTS = 4


@dataclass(frozen=True)
class PowerLaw:
    """The law of one quantity: loss(x) = floor + (scale / x)^exponent.

    Of the loss above the floor ten times as much of x leaves 10^−exponent, whatever x was: a
    straight line where both axes are logarithms and the floor is 0.

    Attributes:
        scale: x at which the loss is 1 nat above the floor, in units of x.
        exponent: how fast it falls.
        floor: what no amount of x takes away, in nats a token.

    Raises:
        TypeError: if one is no number.
        ValueError: if scale or exponent is not positive and finite, or the floor negative.

    Example:
        >>> law = PowerLaw(scale=100, exponent=0.5, floor=1)
        >>> law.loss(25.0), law.loss(400.0), law.inverse(1.5)
        (3.0, 1.5, 400.0)

    Source: [kaplan2020scaling]; the floor: [henighan2020scaling]
    Explained in: chapters/06_complexity, section "A law for the loss".
    """

    scale: float
    exponent: float
    floor: float = 0.0

    def __post_init__(self):
        """Check the constants."""
        _check_constants(self)

    def loss(self, x: Numbers) -> float | Tensor:
        """Return floor + (scale / x)^exponent.

        Args:
            x: positive: a number, a list of them, or a tensor of any shape.

        Returns:
            A number for a number, else a float64 tensor of the shape of x.

        Raises:
            TypeError: if x is none of these.
            ValueError: if a number is not positive and finite.
        """
        (at,) = _tensors(x=x)
        return _as_given(self.floor + (self.scale / at) ** self.exponent, x)

    def inverse(self, loss: Numbers) -> float | Tensor:
        """Return the x that brings the loss down to ``loss``: scale (loss − floor)^(−1/exponent).

        Args:
            loss: above the floor: a number, a list of them, or a tensor of any shape.

        Returns:
            A number for a number, else a float64 tensor; infinite beyond the largest float.

        Raises:
            TypeError: if loss is none of these.
            ValueError: if a loss is not above the floor, where no x reaches it.
        """
        (wanted,) = _tensors(loss=loss)
        if not (wanted > self.floor).all():
            least = wanted.min().item()
            raise ValueError(f"loss must be above the law's floor, {self.floor}, got {least}")
        return _as_given(self.scale * (wanted - self.floor) ** (-1 / self.exponent), loss)


@dataclass(frozen=True)
class ChinchillaLaw:
    """The law of size and data as a sum: L(N, D) = E + A / N^α + B / D^β.

    Attributes:
        floor: E, of infinitely large models on infinitely many tokens, in nats a token.
        n_scale: A, in nats · parameters^α.
        n_exponent: α.
        d_scale: B, in nats · tokens^β.
        d_exponent: β.

    Raises:
        TypeError: if one is no number.
        ValueError: if one is not positive and finite; the floor may be 0.

    Example:
        >>> round(HOFFMANN.loss(70e9, 1.4e12), 3)  # Chinchilla
        1.937

    Source: [hoffmann2022training]
    Explained in: chapters/06_complexity, section "A law for the loss".
    """

    floor: float
    n_scale: float
    n_exponent: float
    d_scale: float
    d_exponent: float

    def __post_init__(self):
        """Check the constants."""
        _check_constants(self)

    def loss(self, n_parameters: Numbers, n_tokens: Numbers) -> float | Tensor:
        """Return E + A / N^α + B / D^β.

        Args:
            n_parameters: N, positive: a number, a list or a tensor.
            n_tokens: D, likewise; both of one shape, or of shapes that broadcast.

        Returns:
            A number for two numbers, else a float64 tensor.

        Raises:
            TypeError: if one is none of these.
            ValueError: if a number is not positive and finite, or the shapes do not fit.
        """
        n, d = _tensors(n_parameters=n_parameters, n_tokens=n_tokens)
        loss = self.floor + self.n_scale / n**self.n_exponent + self.d_scale / d**self.d_exponent
        return _as_given(loss, n_parameters, n_tokens)

    def optimal_parameters(self, n_tokens: Numbers) -> float | Tensor:
        """Return the size that is compute-optimal for D tokens: N = (α A / (β B) · D^β)^(1/α).

        There one percent more of N and one percent more of D, which cost the same FLOPs, lower the
        loss by the same amount: α A / N^α = β B / D^β.

        Args:
            n_tokens: D, positive: a number, a list or a tensor.

        Returns:
            A number for a number, else a float64 tensor.

        Raises:
            TypeError: if n_tokens is none of these.
            ValueError: if a number is not positive and finite.
        """
        (d,) = _tensors(n_tokens=n_tokens)
        ratio = self.n_exponent * self.n_scale / (self.d_exponent * self.d_scale)
        return _as_given((ratio * d**self.d_exponent) ** (1 / self.n_exponent), n_tokens)


@dataclass(frozen=True)
class KaplanLaw:
    """The law of size and data in one bracket: L(N, D) = [(N_c / N)^(α_N/α_D) + D_c / D]^α_D.

    With tokens without end it is (N_c / N)^α_N, with parameters without end (D_c / D)^α_D, so it
    has no floor. The constants that stand here by themselves are those of these two laws.

    Attributes:
        n_scale: N_c, in parameters, embeddings not counted.
        n_exponent: α_N.
        d_scale: D_c, in tokens.
        d_exponent: α_D.

    Raises:
        TypeError: if one is no number.
        ValueError: if one is not positive and finite.

    Example:
        >>> round(KAPLAN.loss(1.5e9, 22e9), 2)
        2.37

    Source: [kaplan2020scaling], equation 1.5
    Explained in: chapters/06_complexity, section "A law for the loss".
    """

    n_scale: float = 8.8e13
    n_exponent: float = 0.076
    d_scale: float = 5.4e13
    d_exponent: float = 0.095

    def __post_init__(self):
        """Check the constants."""
        _check_constants(self)

    def loss(self, n_parameters: Numbers, n_tokens: Numbers) -> float | Tensor:
        """Return [(N_c / N)^(α_N/α_D) + D_c / D]^α_D; see :meth:`ChinchillaLaw.loss`.

        Args:
            n_parameters: N without embeddings, positive: a number, a list or a tensor.
            n_tokens: D, likewise; both of one shape, or of shapes that broadcast.

        Returns:
            A number for two numbers, else a float64 tensor.

        Raises:
            TypeError: if one is none of these.
            ValueError: if a number is not positive and finite, or the shapes do not fit.
        """
        n, d = _tensors(n_parameters=n_parameters, n_tokens=n_tokens)
        by_size = (self.n_scale / n) ** (self.n_exponent / self.d_exponent)
        loss = (by_size + self.d_scale / d) ** self.d_exponent
        return _as_given(loss, n_parameters, n_tokens)


@dataclass(frozen=True)
class DataConstrainedLaw:
    """A Chinchilla law where text is scarce: tokens seen again are worth less than new ones.

    L(N, D) = E + A / N'^α + B / D'^β with U = min(unique_tokens, D) and
    D' = U + U R* (1 − exp(−R / R*)), R = D / U − 1 repetitions;
    N' is the same of N, with the size that is compute-optimal for U tokens in the place of U.

    The first repetitions are worth almost as much as new text, R* of them 1 − 1/e as much, and all
    that may follow no more than R* new copies. The law cannot say that repetition harms.

    Attributes:
        law: a :class:`ChinchillaLaw`, which holds for tokens seen once.
        unique_tokens: how many different tokens there are.
        repeat_decay: R* of tokens; infinite where repeated tokens are as good as new ones.
        size_decay: R* of parameters beyond the compute-optimal size; may be infinite too.

    Raises:
        TypeError: if the law is no ChinchillaLaw, or another one no number.
        ValueError: if a number is not positive.

    Example:
        >>> scarce = DataConstrainedLaw(MUENNIGHOFF, unique_tokens=25e9)
        >>> round(scarce.effective_tokens(100e9) / 1e9, 1)  # billions, in four epochs
        93.1

    Source: [muennighoff2023scaling], appendix A
    Explained in: chapters/06_complexity, section "A law for the loss".
    """

    law: ChinchillaLaw
    unique_tokens: float
    repeat_decay: float = 15.387756
    size_decay: float = 5.309743

    def __post_init__(self):
        """Check the parts."""
        if not isinstance(self.law, ChinchillaLaw):
            raise TypeError(f"law must be a ChinchillaLaw, got {type(self.law).__name__}")
        check_number("unique_tokens", self.unique_tokens, above=0)
        check_number("repeat_decay", self.repeat_decay, above=0, finite=False)
        check_number("size_decay", self.size_decay, above=0, finite=False)

    def effective_tokens(self, n_tokens: Numbers) -> float | Tensor:
        """Return D', the number of new tokens that are worth as much as D of these.

        Args:
            n_tokens: D, all tokens seen, positive: a number, a list or a tensor.

        Returns:
            A number for a number, else a float64 tensor.

        Raises:
            TypeError: if n_tokens is none of these.
            ValueError: if a number is not positive and finite.
        """
        (d,) = _tensors(n_tokens=n_tokens)
        return _as_given(_worth(d, d.clamp(max=self.unique_tokens), self.repeat_decay), n_tokens)

    def effective_parameters(self, n_parameters: Numbers, n_tokens: Numbers) -> float | Tensor:
        """Return N', the size that would do as well if the text were not scarce.

        Args:
            n_parameters: N, positive: a number, a list or a tensor.
            n_tokens: D, likewise; both of one shape, or of shapes that broadcast.

        Returns:
            A number for two numbers, else a float64 tensor.

        Raises:
            TypeError: if one is none of these.
            ValueError: if a number is not positive and finite, or the shapes do not fit.
        """
        n, d = _tensors(n_parameters=n_parameters, n_tokens=n_tokens)
        fitting = self.law.optimal_parameters(d.clamp(max=self.unique_tokens))
        worth = _worth(n, torch.minimum(n, fitting), self.size_decay)
        return _as_given(worth, n_parameters, n_tokens)

    def loss(self, n_parameters: Numbers, n_tokens: Numbers) -> float | Tensor:
        """Return the loss of the Chinchilla law at N' and D'.

        Args:
            n_parameters: N, positive: a number, a list or a tensor.
            n_tokens: D, all tokens seen, likewise; of one shape, or of shapes that broadcast.

        Returns:
            A number for two numbers, else a float64 tensor.

        Raises:
            TypeError: if one is none of these.
            ValueError: if a number is not positive and finite, or the shapes do not fit.
        """
        worth = self.effective_parameters(n_parameters, n_tokens), self.effective_tokens(n_tokens)
        return self.law.loss(*worth)


def fit_power_law(
    x: Tensor | Sequence[float], loss: Tensor | Sequence[float], *, floor: float | None = None
) -> PowerLaw:
    """Fit a power law to runs: the least sum of squares of log law(x) − log loss.

    With floor=0 this is the straight line through log loss over log x. For any other floor the law
    is a line through log(loss − floor), found by Gauss and Newton's iteration, each run weighted
    so that the errors stay those of log loss; the floor itself by a search on finer and finer
    grids. There is no randomness in it.

    Args:
        x: parameters, tokens or FLOPs of the runs, positive (n,).
        loss: their losses in nats a token, positive (n,).
        floor: held at this value; when omitted it is fitted too, from 0 to below the least loss.

    Returns:
        The law. From runs that lie on one its constants come out to about 1e-6.

    Raises:
        TypeError: if x or loss is no list of numbers.
        ValueError: for fewer than 3 different x, or 2 with a floor that is held; for numbers that
            are not positive and finite; where the loss does not fall as x grows.

    Example:
        >>> law = fit_power_law([1e6, 1e7, 1e8], [6.0, 4.0, 3.0])
        >>> round(law.floor, 6), round(law.loss(1e9), 6)
        (2.0, 2.5)

    Source: [kaplan2020scaling]; the floor: [henighan2020scaling]
    Explained in: chapters/06_complexity, section "A law for the loss".
    """
    x, loss = read_columns(x=x, loss=loss)
    check_different("x", x, 3 if floor is None else 2)
    least = loss.min().item()
    if floor is not None:
        check_number("floor", floor, 0, below=least)
    middle = x.log().mean()
    places, wanted = x.log() - middle, loss.log()
    if floor is None:
        found, offset, slope = _search_floor(places, wanted, least)
    else:
        found, rest = float(floor), (loss - floor).log()
        floors = torch.tensor([found], dtype=torch.float64)
        _, (offset,), (slope,) = map(Tensor.tolist, _lines(places, wanted, floors, rest, 5 * STEPS))
    if not slope < 0 or offset / -slope + middle.item() > LARGEST:
        raise ValueError("loss must fall as x grows; these runs are on no power law")
    return PowerLaw(math.exp(offset / -slope + middle.item()), -slope, found)


def _search_floor(places: Tensor, wanted: Tensor, least: float) -> tuple[float, float, float]:
    """Return the best floor below the least loss, with offset and slope of its line."""
    low, high = math.log(1e-9), 0.0  # log of the share of the least loss that is above the floor
    begin, steps = None, STEPS
    for _ in range(ROUNDS):
        shares = torch.linspace(low, high, FLOORS, dtype=torch.float64)
        floors = least * (1 - shares.exp())
        begin = (wanted.exp() - floors[:, None]).log() if begin is None else begin
        errors, offsets, slopes = _lines(places, wanted, floors, begin, steps)
        best = int(errors.argmin())
        low, high = shares[max(best - 1, 0)].item(), shares[min(best + 1, FLOORS - 1)].item()
        begin, steps = offsets[best] + slopes[best] * places, STEPS // 3
    return floors[best].item(), offsets[best].item(), slopes[best].item()


def _lines(
    places: Tensor, wanted: Tensor, floors: Tensor, line: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each floor (K,) the error of log loss, offset and slope of the best line.

    The line is that of log(loss − floor) over the places (n,), log x with mean 0. It is corrected
    step by step, from a first one (n,) or (K, n).
    """
    floors = floors[:, None]
    best = [torch.full_like(floors[:, 0], math.inf) for _ in range(3)]
    whole = floors + line.exp()
    for _ in range(steps):
        share = line.exp() / whole  # of the line's error, in that of log loss
        target, weights = line + (wanted - whole.log()) / share, share**2  # (K, n)
        total = weights.sum(-1)
        centre = (weights @ places) / total  # (K,)
        apart = places - centre[:, None]
        slope = (weights * apart * target).sum(-1) / (weights * apart**2).sum(-1)
        offset = (weights * target).sum(-1) / total - slope * centre
        line = offset[:, None] + slope[:, None] * places
        whole = floors + line.exp()
        error = ((wanted - whole.log()) ** 2).sum(-1)
        better = error < best[0]  # NaN is not
        pairs = zip((error, offset, slope), best, strict=True)
        best = [torch.where(better, new, old) for new, old in pairs]
    return tuple(best)


def fit_chinchilla(
    n_parameters: Tensor | Sequence[float],
    n_tokens: Tensor | Sequence[float],
    loss: Tensor | Sequence[float],
    *,
    delta: float = 1e-3,
) -> ChinchillaLaw:
    """Fit a Chinchilla law to runs: the least sum of Huber_δ(log L(N, D) − log loss).

    log L(N, D) is the log-sum-exp of log A − α log N, log B − β log D and log E. Errors beyond δ
    count by their size and not by their square, so that a run that went wrong counts little. As
    in the paper L-BFGS looks for the minimum, from several starts. Here the starts are the best of
    a grid of exponents; for given ones E, A and B are a linear least squares problem.

    Args:
        n_parameters: N of the runs, positive (n,).
        n_tokens: D of the runs (n,).
        loss: their losses in nats a token (n,).
        delta: δ, in units of log loss, from 1e-6 to 1e6; a large one makes it least squares.

    Returns:
        The law. From runs that lie on one its constants come out to about 1e-3.

    Raises:
        TypeError: if one is no list of numbers.
        ValueError: for fewer than 5 runs, or than 3 different sizes or numbers of tokens, which
            leave the constants open; for numbers that are not positive and finite; where the
            runs are on no such law.

    Example:
        >>> sizes, tokens = [1e7, 1e7, 1e8, 1e8, 1e9, 1e9], [1e9, 1e10, 1e9, 1e11, 1e10, 1e11]
        >>> law = fit_chinchilla(sizes, tokens, HOFFMANN.loss(sizes, tokens))
        >>> round(law.floor, 3), round(law.n_exponent, 3), round(law.d_exponent, 3)
        (1.69, 0.34, 0.28)

    Source: [hoffmann2022training], approach 3
    Explained in: chapters/06_complexity, section "A law for the loss".
    """
    check_number("delta", delta, 1e-6, 1e6)
    n, d, loss = read_columns(n_parameters=n_parameters, n_tokens=n_tokens, loss=loss)
    if len(loss) < 5:
        raise ValueError(f"loss must be that of at least 5 runs, got {len(loss)}")
    check_different("n_parameters", n, 3)
    check_different("n_tokens", d, 3)
    middle = n.log().mean(), d.log().mean()
    places = n.log() - middle[0], d.log() - middle[1]
    wanted = loss.log()

    def error(theta: Tensor) -> Tensor:  # theta (..., 5): logs of α, β, A, B, E at the middle
        alpha, beta, a, b, e = theta[..., None].unbind(-2)
        by_size, by_data = a - alpha.exp() * places[0], b - beta.exp() * places[1]
        fitted = torch.stack((by_size, by_data, e.expand_as(by_size))).logsumexp(0)
        apart = huber_loss(fitted, wanted.expand_as(fitted), reduction="none", delta=delta)
        return apart.mean(-1) / min(delta, 1e-3) ** 2  # of a size that the search can work with

    starts = _starts(*places, loss)
    chosen = starts[error(starts).argsort()[:STARTS]]
    found = [_descend(error, start) for start in chosen]
    best = min(found, key=lambda theta: error(theta).item())
    alpha, beta = best[:2].exp().tolist()
    logs = best[2] + alpha * middle[0], best[3] + beta * middle[1], best[4]
    a, b, floor = torch.stack(logs).exp().tolist()
    for name, scale, exponent, x in (("n_parameters", a, alpha, n), ("n_tokens", b, beta, d)):
        fall = scale * (x.min() ** -exponent - x.max() ** -exponent)
        if not 1e-6 * loss.mean() < fall < math.inf:
            raise ValueError(f"loss must fall as {name} grow; these runs are on no Chinchilla law")
    return ChinchillaLaw(floor, a, alpha, b, beta)


def _starts(by_size: Tensor, by_data: Tensor, loss: Tensor) -> Tensor:
    """Return logs of α, β, A, B and E (K, 5): exponents of a grid, the best others for them."""
    grid = torch.tensor(EXPONENTS, dtype=torch.float64)
    pairs = torch.cartesian_prod(grid, grid)  # (K, 2)
    terms = (-pairs[:, :1] * by_size).exp(), (-pairs[:, 1:] * by_data).exp()
    columns = torch.stack((*terms, torch.ones_like(terms[0])), dim=-1) / loss[:, None]  # (K, n, 3)
    ones = torch.ones_like(columns[..., :1])
    solved = torch.linalg.lstsq(columns, ones, driver="gelsd").solution[..., 0]  # (K, 3)
    return torch.cat((pairs, solved.clamp(min=1e-3 * loss.mean().item())), dim=-1).log()


def _descend(error: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Return where L-BFGS ends."""
    theta = start.clone().requires_grad_()
    search = torch.optim.LBFGS(
        [theta],
        max_iter=300,
        history_size=20,
        tolerance_grad=1e-12,
        tolerance_change=1e-15,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        search.zero_grad()
        value = error(theta)
        value.backward()
        return value

    with torch.enable_grad():
        search.step(closure)
    return theta.detach()


def bootstrap(
    fit: Callable[..., Any],
    *columns: Tensor | Sequence[float],
    samples: int = 1000,
    seed: int = 0,
) -> list[Any]:
    """Fit again and again to runs drawn with replacement: how far the constants could be others.

    Each draw has as many runs as there are; on average 1 − 1/e of them are in it, some twice and
    more. What the fit refuses with a ValueError, such as a draw with one size only, is drawn again.

    Args:
        fit: a function of columns, such as :func:`fit_power_law`.
        columns: numbers of the runs, each (n,); rows stay together.
        samples: draws, at most 100,000.
        seed: of the draws.

    Returns:
        What the fit returned, for each draw.

    Raises:
        TypeError: if fit is no function or a column no list of numbers.
        ValueError: if there is no column, lengths differ, or a number is not finite; where the fit
            refuses all runs, or 100 draws in a row.

    Example:
        >>> laws = bootstrap(fit_power_law, [1, 2, 4, 8, 16], [8.0, 4.1, 2.0, 0.9, 0.5], samples=50)
        >>> low, high = interval([law.exponent for law in laws])
        >>> low < fit_power_law([1, 2, 4, 8, 16], [8.0, 4.1, 2.0, 0.9, 0.5]).exponent < high
        True

    Source: [efron1979bootstrap]
    Explained in: chapters/06_complexity, section "A law for the loss".
    """
    check_callable("fit", fit)
    check_number("samples", samples, 1, MOST_SAMPLES, whole=True)
    check_number("seed", seed, 0, 2**63 - 1, whole=True)
    if not columns:
        raise ValueError("columns must be at least one list of numbers, got none")
    names = (f"column {number}" for number in range(len(columns)))
    table = read_columns(**dict(zip(names, columns, strict=True)), positive=False)
    fit(*table)  # what it refuses here is no matter of draws
    generator = torch.Generator().manual_seed(seed)
    return [_draw(fit, table, generator) for _ in range(samples)]


def _draw(fit: Callable[..., Any], table: list[Tensor], generator: torch.Generator) -> Any:
    refused = None
    for _ in range(MOST_TRIES):
        rows = torch.randint(len(table[0]), (len(table[0]),), generator=generator)
        try:
            return fit(*(column[rows] for column in table))
        except ValueError as error:
            refused = error
    raise ValueError(f"fit refused {MOST_TRIES} draws in a row: {refused}") from refused


def interval(values: Tensor | Sequence[float], level: float = 0.9) -> tuple[float, float]:
    """Return the ends of the middle share of some values: their percentile interval.

    Args:
        values: numbers, such as an exponent from each draw of :func:`bootstrap` (n,).
        level: the share between the ends, above 0 and below 1.

    Returns:
        The quantiles (1 − level) / 2 and (1 + level) / 2, between neighbours interpolated.

    Raises:
        TypeError: if values is no list of numbers or level no number.
        ValueError: if there is no value, one is not finite, or the level is out of range.

    Example:
        >>> low, high = interval(list(range(101)))
        >>> round(low, 6), round(high, 6)
        (5.0, 95.0)

    Source: [efron1979bootstrap]
    Explained in: chapters/06_complexity, section "A law for the loss".
    """
    check_number("level", level, above=0, below=1)
    (column,) = read_columns(values=values, positive=False)
    place = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = column.quantile(place).tolist()
    return low, high


def read_columns(*, positive: bool = True, **columns: Tensor | Sequence[float]) -> list[Tensor]:
    """Return columns of the runs as float64 tensors (n,), all of one length.

    Raises:
        TypeError: if one is no list of numbers.
        ValueError: if one is empty or not a plain list, lengths differ, or a number is not finite
            and, unless that is not asked for, positive.
    """
    for name, column in columns.items():
        check_list(name, column)
        if isinstance(column, Tensor) and column.ndim != 1:
            raise ValueError(f"{name} must have shape (n,), got {tuple(column.shape)}")
        if not len(column):
            raise ValueError(f"{name} must not be empty")
    found = _tensors(**columns, positive=positive, one_shape=True)
    return [column.detach() for column in found]


def check_different(name: str, column: Tensor, least: int) -> None:
    """Raise ValueError unless a column has so many different values."""
    found = len(column.unique())
    if found < least:
        raise ValueError(f"{name} must have at least {least} different values, got {found}")


def _check_constants(law: PowerLaw | ChinchillaLaw | KaplanLaw) -> None:
    for name, value in zip((field.name for field in fields(law)), astuple(law), strict=True):
        if name == "floor":
            check_number(name, value, 0)
        else:
            check_number(name, value, above=0)


def _worth(amount: Tensor, new: Tensor, decay: float) -> Tensor:
    """Return new + new R* (1 − exp(−R / R*)) with R = amount / new − 1."""
    if math.isinf(decay):
        return amount + 0 * new
    return new * (1 - decay * torch.expm1(-(amount / new - 1) / decay))


def _tensors(*, positive: bool = True, one_shape: bool = False, **given: Numbers) -> list[Tensor]:
    """Return numbers, lists and tensors as float64 tensors, checked."""
    found = {name: _tensor(name, value) for name, value in given.items()}
    for name, tensor in found.items():
        wrong = ~tensor.isfinite() | (tensor <= 0 if positive else False)
        if wrong.any():
            wanted = "positive and finite" if positive else "finite"
            raise ValueError(f"{name} must be {wanted}, got {tensor[wrong][0].item()}")
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items()}
    try:
        whole = torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        whole = None
    if whole is None or (one_shape and len(set(shapes.values())) > 1):
        said = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"shapes must {'be the same' if one_shape else 'broadcast'}, got {said}")
    return list(found.values())


def _tensor(name: str, value: Numbers) -> Tensor:
    if isinstance(value, Tensor):
        if value.is_complex() or value.dtype == torch.bool:
            raise TypeError(f"{name} must hold real numbers, got {value.dtype}")
        return value.to(torch.float64)
    if isinstance(value, int | float):
        check_number(name, value)
        return torch.tensor(float(value), dtype=torch.float64)
    check_list(name, value)
    numbers = list(value)
    for number in numbers:
        check_number(name, number)
    return torch.tensor([float(number) for number in numbers], dtype=torch.float64)


def _as_given(result: Tensor, *given: Numbers) -> float | Tensor:
    """Return a number where only numbers were given."""
    return result.item() if all(isinstance(each, int | float) for each in given) else result


#: The constants that Hoffmann et al. print for their approach 3. Source: [hoffmann2022training]
HOFFMANN = ChinchillaLaw(1.69, 406.4, 0.34, 410.7, 0.28)

#: The same fit made anew on runs read off a figure of that paper. Source: [besiroglu2024chinchilla]
BESIROGLU = ChinchillaLaw(1.8172, 482.01, 0.3478, 2085.43, 0.3658)

#: Runs on C4, each token seen once: E = 1.87, A = 521, B = 1488, α = β = 0.35 to the digits that
#: the paper prints. Source: [muennighoff2023scaling]
MUENNIGHOFF = ChinchillaLaw(
    math.exp(0.6254804), math.exp(6.255414), 0.3526596, math.exp(7.3049974), 0.3526596
)

#: With the constants of the laws of N alone and of D alone. Source: [kaplan2020scaling]
KAPLAN = KaplanLaw()

#: With those of one fit to runs of many sizes on data sets of many sizes, table 2 of the paper.
#: Source: [kaplan2020scaling]
KAPLAN_JOINT = KaplanLaw(6.4e13, 0.076, 1.8e13, 0.103)
