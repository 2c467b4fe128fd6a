"""From the logits of the next token to a choice: reshape the distribution, then draw.

Each function takes logits (B, V) and returns logits (B, V), so they compose like the steps of a
recipe: :func:`repetition_penalty`, :func:`temperature`, :func:`top_k`, :func:`top_p`,
:func:`min_p`. A token that is cut gets −∞, which a softmax turns into probability 0. A
:class:`Sampling` applies those asked for in this order, and :func:`draw` picks a token.

Explained in: chapters/12_generation, section "Choosing the next token".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfbook._checks import check_float, check_ids, check_number, check_tensor, check_token_mask
from tfbook.generation.prompts import pad

__all__ = [
    "GREEDY",
    "Sampling",
    "check_sampling",
    "draw",
    "greedy",
    "log_prob_of",
    "min_p",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
]

SMALLEST = 2.0**-126  # below it float32 has too few digits left to divide by


def temperature(logits: Float[Tensor, "*B V"], value: float) -> Float[Tensor, "*B V"]:
    """Divide the logits: below 1 the likely tokens gain, above 1 the unlikely ones.

    p_i ∝ exp(logit_i / T). T → 0 is the greedy choice, T → ∞ the uniform distribution.

    Args:
        logits: (..., V).
        value: T, above 0.

    Returns:
        logits / T, (..., V).

    Raises:
        ValueError: if T is not finite and positive, or so small that logits / T overflow.

    Example:
        >>> temperature(torch.tensor([1.0, 2.0]), 0.5).softmax(-1)
        tensor([0.1192, 0.8808])

    Source: [ackley1985learning]
    Explained in: chapters/12_generation, section "Choosing the next token".
    """
    check_float("logits", logits, min_dims=1)
    if value == 0 and not isinstance(value, bool):
        raise ValueError(
            "temperature must be above 0, got 0: its limit is the most likely token, "
            "tfbook.generation.greedy(logits)"
        )
    check_number("temperature", value, above=0)
    divided = logits / value
    if value < SMALLEST or bool((divided.isinf() & ~logits.isinf()).any()):
        raise ValueError(
            f"temperature {value} is so small that logits / T overflow; "
            "0 takes the most likely token"
        )
    return divided


def top_k(logits: Float[Tensor, "*B V"], k: int) -> Float[Tensor, "*B V"]:
    """Keep the k largest logits and cut the rest; what ties with the k-th stays too.

    Args:
        logits: (..., V).
        k: how many to keep, at least 1; above V all stay.

    Returns:
        The logits with −∞ where cut, (..., V).

    Raises:
        ValueError: if k is below 1.

    Example:
        >>> top_k(torch.tensor([1.0, 3.0, 2.0, 2.0]), 2)
        tensor([-inf, 3., 2., 2.])

    Source: [fan2018hierarchical]
    Explained in: chapters/12_generation, section "Choosing the next token".
    """
    check_float("logits", logits, min_dims=1)
    check_number("top_k", k, 1, whole=True)
    if k >= logits.shape[-1]:
        return logits
    smallest = logits.topk(k, dim=-1).values[..., -1:]  # (..., 1)
    return logits.masked_fill(logits < smallest, -math.inf)


def top_p(logits: Float[Tensor, "*B V"], p: float) -> Float[Tensor, "*B V"]:
    """Keep the fewest tokens whose probabilities sum to at least p: the nucleus.

    In falling order of probability a token stays if those before it sum to less than p; of two
    equal ones the lower id comes first. So the token that crosses p stays, and the first always.

    Args:
        logits: (..., V).
        p: 0 < p ≤ 1; 1 keeps all.

    Returns:
        The logits with −∞ where cut, (..., V).

    Raises:
        ValueError: if p is not above 0, or above 1.

    Example:
        >>> top_p(torch.tensor([0.1, 0.5, 0.4]).log(), 0.6).softmax(-1)
        tensor([0.0000, 0.5556, 0.4444])

    Source: [holtzman2020curious]
    Explained in: chapters/12_generation, section "Choosing the next token".
    """
    check_float("logits", logits, min_dims=1)
    check_number("top_p", p, high=1, above=0)
    if p == 1:
        return logits
    ordered, places = logits.sort(dim=-1, descending=True, stable=True)
    # Sums of thousands of small numbers: float64, so that the border is where the formula puts it.
    share = ordered.double().softmax(dim=-1)  # (..., V)
    before = share.cumsum(dim=-1) - share
    cut = (before >= p).scatter(-1, places, before >= p)  # back in the order of the ids
    return logits.masked_fill(cut, -math.inf)


def min_p(logits: Float[Tensor, "*B V"], p: float) -> Float[Tensor, "*B V"]:
    """Keep the tokens at least p times as probable as the most probable one.

    p_i ≥ p · max_j p_j, which in logits reads logit_i ≥ max_j logit_j + ln p.

    Args:
        logits: (..., V).
        p: 0 < p ≤ 1; 1 keeps the largest and what ties with it.

    Returns:
        The logits with −∞ where cut, (..., V).

    Raises:
        ValueError: if p is not above 0, or above 1.

    Example:
        >>> min_p(torch.tensor([0.1, 0.5, 0.4]).log(), 0.25).exp()
        tensor([0.0000, 0.5000, 0.4000])

    Source: [nguyen2024turning]
    Explained in: chapters/12_generation, section "Choosing the next token".
    """
    check_float("logits", logits, min_dims=1)
    check_number("min_p", p, high=1, above=0)
    _check_some(logits)
    border = logits.amax(dim=-1, keepdim=True) + math.log(p)  # (..., 1)
    return logits.masked_fill(logits < border, -math.inf)


def repetition_penalty(
    logits: Float[Tensor, "B V"],
    tokens: Int[Tensor, "B N"],
    penalty: float,
    *,
    mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B V"]:
    """Make the tokens that have occurred less likely: divide their logits, or multiply if negative.

    A token that occurred twice is punished once. The result depends on where the zero of the
    logits lies, though the softmax does not: it is a rule of thumb, not a change of probabilities.

    Args:
        logits: (B, V).
        tokens: what has occurred in each sequence, (B, N).
        penalty: above 1 discourages, below 1 encourages, 1 changes nothing.
        mask: which tokens count, (B, N), True = token; all when omitted.

    Returns:
        The changed logits, (B, V).

    Raises:
        ValueError: if the penalty is not finite and positive, or a shape does not fit.

    Example:
        >>> repetition_penalty(torch.tensor([[2.0, -2.0, 2.0]]), torch.tensor([[0, 1]]), 2.0)
        tensor([[ 1., -4.,  2.]])

    Source: [keskar2019ctrl]
    Explained in: chapters/12_generation, section "Choosing the next token".
    """
    check_float("logits", logits, min_dims=2)
    check_tensor("tokens", tokens, min_dims=2)
    check_number("repetition_penalty", penalty, above=0)
    if logits.ndim != 2:
        raise ValueError(f"logits must have shape (B, V), got {tuple(logits.shape)}")
    if tokens.numel():
        check_ids("tokens", tokens, below=logits.shape[-1])
    if mask is not None:
        check_token_mask(mask, tokens.shape)
    if tokens.shape[0] != logits.shape[0]:
        raise ValueError(
            "tokens must have a row for each row of the logits, got "
            f"{tuple(tokens.shape)} and logits {tuple(logits.shape)}"
        )
    seen = torch.zeros_like(logits, dtype=torch.int8)  # (B, V)
    counts = torch.ones_like(tokens) if mask is None else mask
    seen = seen.scatter_reduce(-1, tokens, counts.to(torch.int8), "amax") > 0
    changed = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, changed, logits)


def greedy(logits: Float[Tensor, "*B V"]) -> Int[Tensor, "*B"]:
    """Return the token with the largest logit; of equal ones the lowest id.

    Args:
        logits: (..., V).

    Returns:
        Token ids, (...).

    Raises:
        ValueError: if a row has NaN, or no token that is allowed.

    Explained in: chapters/12_generation, section "Choosing the next token".
    """
    check_float("logits", logits, min_dims=1)
    _check_some(logits)
    largest, ids = logits.max(dim=-1)
    _check_possible(largest)
    return ids


def draw(logits: Float[Tensor, "*B V"], uniform: Float[Tensor, "*B"]) -> Int[Tensor, "*B"]:
    """Pick the token at which the running sum of probabilities passes a uniform number.

    id = min {i : p_0 + … + p_i > u}, so token i is drawn with probability p_i, and one of
    probability 0 never. The numbers come from outside: the same ones give the same tokens.

    Args:
        logits: (..., V).
        uniform: u, one for each row, (...), 0 ≤ u < 1.

    Returns:
        Token ids, (...).

    Raises:
        ValueError: if a row has NaN, or no token that is allowed, or the shapes do not fit.

    Example:
        >>> draw(torch.tensor([[0.2, 0.5, 0.3]]).log(), torch.tensor([0.6]))
        tensor([1])

    Explained in: chapters/12_generation, section "Choosing the next token".
    """
    check_float("logits", logits, min_dims=1)
    check_float("uniform", uniform)
    if uniform.shape != logits.shape[:-1]:
        raise ValueError(
            "uniform must have one number for each row of the logits, got "
            f"{tuple(uniform.shape)} and logits {tuple(logits.shape)}"
        )
    _check_some(logits)
    if not bool(((uniform >= 0) & (uniform < 1)).all()):
        raise ValueError(f"uniform must be from 0 up to below 1, got {uniform.tolist()}")
    _check_possible(logits.amax(dim=-1))
    sums = logits.double().softmax(dim=-1).cumsum(dim=-1)  # (..., V)
    total = sums[..., -1:]  # 1, but for rounding
    # Below the total even after rounding, so that the search ends on a token with p > 0.
    place = (uniform.double().unsqueeze(-1) * total).minimum(total.nextafter(-total))
    return torch.searchsorted(sums, place, right=True).squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen: every number that changes the distribution drawn from.

    Called with logits it applies what is asked for, in this order: repetition penalty,
    temperature, top-k, top-p, min-p. The order matters: top-p after top-k takes its share of what
    top-k left, and a temperature above 1 widens the nucleus.

    Attributes:
        temperature: T; 1 changes nothing, 0 leaves only the most likely token.
        top_k: see :func:`top_k`; None changes nothing, likewise in what follows.
        top_p: see :func:`top_p`.
        min_p: see :func:`min_p`.
        repetition_penalty: see :func:`repetition_penalty`.
        rule: a function of logits (B, V), instead of the four numbers above: the softmax of what
            it returns is drawn from.

    Raises:
        ValueError: if one is out of its range, has no effect at temperature 0, or stands beside a
            rule that replaces it.

    Example:
        >>> Sampling(temperature=0.5, top_k=2)(torch.tensor([1.0, 3.0, 2.0])).softmax(-1)
        tensor([0.0000, 0.8808, 0.1192])
        >>> GREEDY(torch.tensor([1.0, 3.0, 2.0])).softmax(-1)
        tensor([0., 1., 0.])

    Explained in: chapters/12_generation, section "Choosing the next token".
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    rule: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self):
        """Refuse what cannot be meant before a model runs."""
        if isinstance(self.temperature, bool) or self.temperature != 0:
            temperature(torch.zeros(1), self.temperature)  # checks it
        if self.top_k is not None:
            check_number("top_k", self.top_k, 1, whole=True)
        for name in ("top_p", "min_p"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), high=1, above=0)
        if self.repetition_penalty is not None:
            check_number("repetition_penalty", self.repetition_penalty, above=0)
        cuts = [name for name in ("top_k", "top_p", "min_p") if getattr(self, name) is not None]
        if self.rule is not None:
            if not callable(self.rule):
                raise TypeError(
                    f"rule must be a function of logits, got {type(self.rule).__name__}"
                )
            if cuts or self.temperature != 1:
                raise ValueError("rule replaces temperature, top_k, top_p and min_p: give one kind")
        if cuts and not self.draws:
            raise ValueError(
                f"{cuts[0]} has no effect on the most likely token: "
                "choose a temperature above 0 to draw"
            )

    @property
    def draws(self) -> bool:
        """Return whether chance has a say: not at temperature 0."""
        return self.temperature != 0

    def __call__(
        self, logits: Float[Tensor, "*B V"], seen: Sequence[Sequence[int]] | None = None
    ) -> Float[Tensor, "*B V"]:
        """Return logits whose softmax is the distribution to choose from.

        Args:
            logits: as the model gives them, (..., V); (B, V) with a repetition penalty.
            seen: for the repetition penalty the ids that each row has before it, B sequences.

        Returns:
            The logits with −∞ where cut, (..., V).

        Raises:
            ValueError: if there is a repetition penalty and ``seen`` is missing.
        """
        check_float("logits", logits, min_dims=1)
        if self.repetition_penalty is not None:
            if seen is None:
                raise ValueError("repetition_penalty needs seen, the ids that each row has so far")
            ids, real = pad(seen, 0, logits.device, left=True)  # (B, N) both
            logits = repetition_penalty(logits, ids, self.repetition_penalty, mask=real)
        if self.rule is not None:
            return self.rule(logits)
        if not self.draws:
            others = torch.ones_like(logits, dtype=torch.bool)  # (..., V)
            return logits.masked_fill(
                others.scatter(-1, greedy(logits)[..., None], False), -math.inf
            )
        logits = temperature(logits, self.temperature)
        if self.top_k is not None:
            logits = top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = min_p(logits, self.min_p)
        return logits


GREEDY = Sampling(temperature=0.0)  # always the most likely token


def check_sampling(value: object) -> None:
    """Raise TypeError unless it is a :class:`Sampling`."""
    if not isinstance(value, Sampling):
        raise TypeError(
            "sampling must be a Sampling, such as Sampling(temperature=0.7), "
            f"got {type(value).__name__}"
        )


def log_prob_of(logits: Float[Tensor, "*B V"], ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return ln softmax(logits)[id] of one id for each row, without forming the whole softmax.

    Args:
        logits: (..., V).
        ids: (...).

    Returns:
        Nats, (...), from −∞ to 0.

    Raises:
        TypeError: if logits are not floating point, or ids no integers.
        ValueError: if the shapes do not fit, or an id stands for no token.

    Example:
        >>> log_prob_of(torch.tensor([[1.0, 3.0]]).log(), torch.tensor([0])).exp()
        tensor([0.2500])

    Explained in: chapters/12_generation_deeper, section "How surprised is the model?".
    """
    check_float("logits", logits, min_dims=1)
    check_tensor("ids", ids)
    if ids.shape != logits.shape[:-1]:
        raise ValueError(
            f"ids must have shape (...) = {tuple(logits.shape[:-1])}, got {tuple(ids.shape)}"
        )
    if ids.numel():
        check_ids("ids", ids.reshape(1, -1), below=logits.shape[-1])
    chosen = logits.gather(-1, ids[..., None]).squeeze(-1)  # (...)
    return chosen - logits.logsumexp(dim=-1)


def _check_some(logits: Tensor) -> None:
    if not logits.shape[-1]:
        raise ValueError(f"logits must hold at least one token, got shape {tuple(logits.shape)}")


def _check_possible(largest: Tensor) -> None:
    """Raise where the largest logit of a row is NaN, or nothing is left in it."""
    if not bool(largest.isfinite().all()):
        row = int((~largest.isfinite()).flatten().nonzero()[0])
        value = largest.flatten()[row].item()
        why = "every token has been cut" if value == -math.inf else f"its largest is {value}"
        raise ValueError(f"no token can be chosen from row {row} of the logits: {why}")
