"""What heads look at, in numbers: how far, how widely, and how much at which place.

Each takes patterns (..., H, n, m) whose rows say how much a query takes from each key, and gives a
number for each head, the mean over its queries. The queries are the last n of the m tokens, as
behind a cache. Not counted are queries that are padding, and those that may look nowhere, whose
rows are all 0.

Explained in: chapters/10_interpretability, section "From layers to heads".
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfbook._checks import check_bool, check_float, check_list, check_number, check_tensor

__all__ = [
    "attention_distance",
    "entropy",
    "head_table",
    "mass_first",
    "mass_next_to",
    "mass_on",
    "weights_of",
]

SLACK = 0.02  # of the sum of a row, which bfloat16 needs


def attention_distance(
    patterns: Float[Tensor, "*L H N M"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    each: bool = False,
) -> Float[Tensor, "..."]:
    """Return how far back or ahead a head looks, in tokens: mean over i of Σ_j a_ij |i − j|.

    Looking at every key of a causal model alike gives i / 2 for query i, on average (n − 1) / 4.

    Args:
        patterns: (..., H, n, m), rows sum to 1 or to 0. Queries are the last n of the m tokens.
        mask: True = token, (..., m), leading dimensions broadcast to those before H.
        each: return a number for each query instead of the mean.

    Returns:
        (..., H); with ``each`` (..., H, n), 0 for queries that do not count.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, rows that are no weights, or no query to count.

    Example:
        >>> attention_distance(torch.eye(4).roll(-1, dims=1)[None])  # the last one looks back by 3
        tensor([1.5000])

    Source: [dosovitskiy2021image]
    Explained in: chapters/10_interpretability_deeper, section "Distance and entropy".
    """
    return _mean(_distance(_read(patterns, mask)), each)


def entropy(
    patterns: Float[Tensor, "*L H N M"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    each: bool = False,
) -> Float[Tensor, "..."]:
    """Return how widely a head looks, in nats: mean over i of −Σ_j a_ij ln a_ij.

    It is 0 where a query looks at one key, and ln k where it looks at k keys alike, which is the
    most that k allowed keys give.

    Arguments, result and errors are those of :func:`attention_distance`.

    Example:
        >>> entropy(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]), each=True)
        tensor([[0.0000, 0.6931]])

    Source: [clark2019what]
    Explained in: chapters/10_interpretability_deeper, section "Distance and entropy".
    """
    return _mean(_entropy(_read(patterns, mask)), each)


def mass_next_to(
    patterns: Float[Tensor, "*L H N M"],
    offset: int,
    *,
    mask: Bool[Tensor, "..."] | None = None,
    each: bool = False,
) -> Float[Tensor, "..."]:
    """Return how much a head looks at the token ``offset`` places on: mean over i of a_{i, i + o}.

    Args:
        patterns: (..., H, n, m), rows sum to 1 or to 0.
        offset: −1 for the previous token, 0 for the query's own, 1 for the next.
        mask: True = token, (..., m).
        each: return a number for each query instead of the mean.

    Returns:
        (..., H), from 0 to 1; queries without a token at that place do not count. With ``each``
        (..., H, n), 0 for them.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, rows that are no weights, or no query to count.

    Example:
        >>> mass_next_to(torch.tensor([[[1.0, 0.0], [0.3, 0.7]]]), -1)
        tensor([0.3000])

    Source: [clark2019what], [voita2019analyzing]
    Explained in: chapters/10_interpretability, section "From layers to heads".
    """
    check_number("offset", offset, whole=True)
    return _mean(_next_to(_read(patterns, mask), offset), each)


def mass_first(
    patterns: Float[Tensor, "*L H N M"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    each: bool = False,
) -> Float[Tensor, "..."]:
    """Return how much a head looks at the first token of its sequence, behind padding in front.

    In a causal model the first query can look nowhere else, so that even a head that never wants
    to has 1 there.

    Arguments, result and errors are those of :func:`attention_distance`.

    Example:
        >>> mass_first(torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.2, 0.8]]]),
        ...            mask=torch.tensor([False, True, True]))
        tensor([0.6000])

    Source: [xiao2024efficient]
    Explained in: chapters/10_interpretability_deeper, section "What a sink hangs on".
    """
    rows = _read(patterns, mask)
    return _mean(_on(rows, _first(rows)), each)


def mass_on(
    patterns: Float[Tensor, "*L H N M"],
    keys: Bool[Tensor, "..."] | Sequence[int],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    each: bool = False,
) -> Float[Tensor, "..."]:
    """Return how much a head looks at some of the keys: mean over i of Σ_{j in S} a_ij.

    Args:
        patterns: (..., H, n, m), rows sum to 1 or to 0.
        keys: which ones: positions, such as ``[0]``, or a boolean (..., m) that may differ from
            sequence to sequence, such as ``torch.isin(tokens, torch.tensor([cls_id, sep_id]))``.
        mask: True = token, (..., m).
        each: return a number for each query instead of the mean.

    Returns:
        (..., H), from 0 to 1; with ``each`` (..., H, n), 0 for queries that do not count.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a position that does not fit, rows that are no weights, or no
            query to count.

    Example:
        >>> tokens = torch.tensor([7, 2, 7])
        >>> mass_on(torch.tensor([[[0.5, 0.3, 0.2]] * 3]), tokens == 7)
        tensor([0.7000])

    Source: [clark2019what], [xiao2024efficient]
    Explained in: chapters/10_interpretability, section "From layers to heads".
    """
    rows = _read(patterns, mask)
    return _mean(_on(rows, _read_keys("keys", keys, rows.weights)), each)


def head_table(
    patterns: Float[Tensor, "L B H N M"],
    *,
    mask: Bool[Tensor, "B M"] | None = None,
    sinks: Bool[Tensor, "B M"] | Sequence[int] | None = None,
) -> dict[str, Float[Tensor, "L H"]]:
    """Return all of these numbers for all heads of a model, over all queries of a batch alike.

    Args:
        patterns: (L, B, H, n, m), as :func:`tfbook.interpret.patterns` returns them.
        mask: True = token, (B, m).
        sinks: keys of which to tell the share besides, as ``keys`` of :func:`mass_on`.

    Returns:
        "distance", "entropy", "self", "previous", "next", "first" and, where asked for, "sinks",
        each (L, H). "previous" and "next" are 0 where no query has such a token.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, rows that are no weights, or a head without any
            query to count.

    Example:
        >>> table = head_table(torch.eye(3).expand(2, 1, 4, 3, 3))
        >>> {name: numbers.shape for name, numbers in table.items()}["entropy"]
        torch.Size([2, 4])
        >>> float(table["self"][0, 0]), float(table["previous"][0, 0])
        (1.0, 0.0)

    Source: [clark2019what]
    Explained in: chapters/10_interpretability, section "From layers to heads".
    """
    check_tensor("patterns", patterns)
    if patterns.ndim != 5:
        shape = tuple(patterns.shape)
        raise ValueError(f"patterns must have shape (L, B, H, n, m), got {shape}")
    rows = _read(patterns, mask)
    found = {
        "distance": _distance(rows),
        "entropy": _entropy(rows),
        "self": _next_to(rows, 0),
        "previous": _next_to(rows, -1),
        "next": _next_to(rows, 1),
        "first": _on(rows, _first(rows)),
    }
    if sinks is not None:
        found["sinks"] = _on(rows, _read_keys("sinks", sinks, rows.weights))
    return {
        name: _mean(each.over_sequences(), False, needed=name not in ("previous", "next"))
        for name, each in found.items()
    }


class _Rows(NamedTuple):
    """Patterns (..., H, n, m), which rows count (..., H, n), and the tokens (..., m) if given."""

    weights: Tensor
    counted: Tensor
    tokens: Tensor | None

    @property
    def places(self) -> Tensor:
        """Return where the queries stand, (n,): they are the last of the m tokens."""
        n, m = self.weights.shape[-2:]
        return torch.arange(m - n, m, device=self.weights.device)


class _Numbers(NamedTuple):
    """A number for each query, (..., H, n), and which of them count."""

    values: Tensor
    counted: Tensor

    def over_sequences(self) -> "_Numbers":
        """Return (L, B, H, n) as (L, H, B n)."""
        counted = self.counted.expand(self.values.shape)
        return _Numbers(*(each.transpose(1, 2).flatten(2) for each in (self.values, counted)))


def _distance(rows: _Rows) -> _Numbers:
    keys = torch.arange(rows.weights.shape[-1], device=rows.weights.device)
    steps = (rows.places[:, None] - keys).abs().to(rows.weights.dtype)  # (n, m)
    return _Numbers((rows.weights * steps).sum(-1), rows.counted)


def _entropy(rows: _Rows) -> _Numbers:
    least = torch.finfo(rows.weights.dtype).tiny  # 0 ln 0 = 0, and its gradient stays finite
    found = (rows.weights * -rows.weights.clamp(min=least).log()).sum(-1)
    return _Numbers(found.clamp(min=0), rows.counted)


def _next_to(rows: _Rows, offset: int) -> _Numbers:
    m = rows.weights.shape[-1]
    there = rows.places + max(-2 * m, min(2 * m, offset))  # (n,)
    counted = rows.counted & (there >= 0) & (there < m)
    there = there.clamp(0, m - 1)
    if rows.tokens is not None:
        counted = counted & rows.tokens[..., None, there]
    at = there[:, None].expand(*rows.weights.shape[:-1], 1)  # (..., H, n, 1)
    return _Numbers(rows.weights.gather(-1, at).squeeze(-1), counted)


def _first(rows: _Rows) -> Tensor:
    """Return which key is the first token, (..., m)."""
    if rows.tokens is None:
        return torch.arange(rows.weights.shape[-1], device=rows.weights.device) == 0
    return rows.tokens & (rows.tokens.cumsum(-1) == 1)


def _on(rows: _Rows, keys: Tensor) -> _Numbers:
    found = (rows.weights * keys[..., None, None, :].to(rows.weights.dtype)).sum(-1)
    return _Numbers(found, rows.counted)


def _mean(numbers: _Numbers, each: bool, *, needed: bool = True) -> Tensor:
    """Return the mean over the queries that count, or each of them with 0 for the others."""
    check_bool("each", each)
    counted = numbers.counted.expand(numbers.values.shape)
    values = numbers.values.masked_fill(~counted, 0.0)
    if each:
        return values
    many = counted.sum(-1)
    if needed and not bool(many.all()):
        raise ValueError(
            "patterns must leave each head a query to count in each sequence, but somewhere all "
            "are padding, have no token at that place, or have rows of zeros"
        )
    return values.sum(-1) / many.clamp(min=1)


def weights_of(patterns: Float[Tensor, "*L N M"]) -> Float[Tensor, "*L N M"]:
    """Return patterns in float32 at least, after a look at whether they are weights.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: if they are empty, one is negative or NaN, or a row sums neither to 1 nor to 0.

    Example:
        >>> weights_of(torch.eye(2).half()).dtype
        torch.float32

    Explained in: chapters/10_interpretability, section "From layers to heads".
    """
    check_float("patterns", patterns, min_dims=2)
    if 0 in patterns.shape:
        raise ValueError(f"patterns must not be empty, got shape {tuple(patterns.shape)}")
    weights = patterns if patterns.dtype == torch.float64 else patterns.float()
    sums = weights.detach().sum(-1)  # (..., n)
    off = float(torch.where(sums == 0, 0.0, (sums - 1).abs()).max())
    least = float(weights.detach().amin())
    if not (off <= SLACK and least >= 0):
        raise ValueError(
            "patterns must be weights, not negative, in rows that sum to 1 or to 0; "
            f"got a smallest weight of {least:.3g} and a row that is off by {off:.3g}"
        )
    return weights


def _read(patterns: object, mask: object) -> _Rows:
    """Return the patterns in float32 at least, with what counts, all checked."""
    check_float("patterns", patterns, min_dims=3)
    weights = weights_of(patterns)
    counted, tokens = weights.detach().sum(-1) > 0, None
    if mask is not None:
        tokens = _read_keys("mask", mask, weights)
        n, m = weights.shape[-2:]
        if n > m:
            raise ValueError(
                f"mask tells the tokens of self-attention, where n is at most m, got {n} and {m}; "
                "with cross-attention set the rows of queries that are padding to 0"
            )
        counted = counted & tokens[..., None, m - n :]
    return _Rows(weights, counted, tokens)


def _read_keys(name: str, keys: object, weights: Tensor) -> Tensor:
    """Return which keys are meant as a boolean (..., m) that fits the patterns."""
    m = weights.shape[-1]
    if not isinstance(keys, Tensor):
        if name == "mask":
            check_tensor(name, keys)
        check_list(name, keys)
        for key in keys:
            check_number(f"a position of {name}", key, 0, m - 1, whole=True)
        chosen = torch.zeros(m, dtype=torch.bool, device=weights.device)
        chosen[list(keys)] = True
        return chosen
    if keys.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean, (..., m), got {keys.dtype}")
    if keys.device != weights.device:
        raise ValueError(
            f"{name} must be on the device of the patterns, {weights.device}, got {keys.device}"
        )
    wanted = (*weights.shape[:-3], m)
    given = (1,) * (len(wanted) - keys.ndim) + tuple(keys.shape)
    fits = keys.ndim > 0 and len(given) == len(wanted) and given[-1] == m
    if not (fits and all(a in (1, b) for a, b in zip(given, wanted, strict=True))):
        raise ValueError(
            f"{name} must broadcast to (..., m) = {wanted} of the patterns, got {tuple(keys.shape)}"
        )
    return keys
