"""Labels for attention: how often a head looks where it should, and losses that tell it to.

A link says for a query which key is meant: the bracket that is still open, the noun of an article,
the word that is being translated. With links one can ask what heads do, always beside a rule that
knows positions only; or one can train with them, on the pattern of a head that was captured with
``capture(model, "*.pattern", grad=True)``. A teacher's patterns can take the place of links.

Explained in: chapters/10_interpretability_deeper, section "Attention told where to look".
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfbook._checks import (
    check_choice,
    check_float,
    check_list,
    check_number,
    check_shape,
    check_tensor,
)
from tfbook.interpret.statistics import weights_of

__all__ = [
    "attention_loss",
    "best_offset",
    "distillation_loss",
    "layer_pairs",
    "link_accuracy",
    "link_pattern",
    "offset_links",
]

NONE = -1  # the link of a query that has none


def link_pattern(links: Int[Tensor, "*B N"], n_keys: int) -> Float[Tensor, "*B N M"]:
    """Return the pattern of a head that looks at the linked keys and nowhere else.

    Args:
        links: the number of each query's key, −1 for none, (..., n).
        n_keys: m.

    Returns:
        (..., n, m), with rows of zeros for queries without a link.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a link to a key that is not there.

    Example:
        >>> link_pattern(torch.tensor([-1, 0, 1]), 3)
        tensor([[0., 0., 0.],
                [1., 0., 0.],
                [0., 1., 0.]])

    Explained in: chapters/10_interpretability_deeper, section "Attention told where to look".
    """
    check_number("n_keys", n_keys, 1, whole=True)
    _check_links(links, n_keys)
    return (links[..., None] == torch.arange(n_keys, device=links.device)).float()


def link_accuracy(
    patterns: Float[Tensor, "*L B H N M"], links: Int[Tensor, "B N"]
) -> Float[Tensor, "*L H"]:
    """Return how often the key that a head looks at most is the linked one.

    Of several keys with the same largest weight the first is taken, so that a head that looks at
    all alike gets no credit.

    Args:
        patterns: (..., B, H, n, m), such as those of :func:`tfbook.interpret.patterns`.
        links: the number of each query's key, −1 where a query does not count, (B, n).

    Returns:
        Shares over all queries of the batch that count, (..., H).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, rows that are no weights, or no link at all.

    Example:
        >>> patterns = torch.tensor([[[[1.0, 0.0, 0.0], [0.1, 0.9, 0.0], [0.2, 0.5, 0.3]]]])
        >>> link_accuracy(patterns, torch.tensor([[-1, 0, 1]]))
        tensor([0.5000])

    Source: [clark2019what]
    Explained in: chapters/10_interpretability_deeper, section "Syntax, with labels".
    """
    weights = _weights("patterns", patterns)
    if weights.ndim < 4:
        raise ValueError(f"patterns must have shape (..., B, H, n, m), got {tuple(weights.shape)}")
    *_, batch, heads, n, m = weights.shape
    counted = _counted(links, (batch, n), m)
    hits = weights.argmax(-1) == links[:, None].to(weights.device)  # (..., B, H, n)
    hits = (hits & counted[:, None]).sum((-3, -1))
    return hits.to(weights.dtype) / counted.sum()


def best_offset(links: Int[Tensor, "B N"]) -> int:
    """Return the step o for which "query i looks at key i + o" is right most often.

    It is chosen on some texts and tried on others, and is what a head has to be compared with: it
    knows nothing but positions.

    Args:
        links: the number of each query's key, −1 for none, (B, n).

    Returns:
        o; of steps that are equally frequent the smallest, and back before ahead.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, or no link at all.

    Example:
        >>> best_offset(torch.tensor([[-1, 0, 1, 0]]))
        -1

    Source: [clark2019what]
    Explained in: chapters/10_interpretability_deeper, section "Syntax, with labels".
    """
    _check_links(links)
    if links.ndim != 2:
        raise ValueError(f"links must have shape (B, n), got {tuple(links.shape)}")
    counted = _counted(links, links.shape, None)
    steps = (links - torch.arange(links.shape[1], device=links.device))[counted]
    kinds, many = steps.unique(return_counts=True)
    best = kinds[many == many.max()].tolist()
    return min(best, key=lambda step: (abs(step), step))


def offset_links(links: Int[Tensor, "B N"], offset: int, n_keys: int) -> Int[Tensor, "B N"]:
    """Return where a rule "query i looks at key i + offset" looks, for the queries with a link.

    The share of places where this is the link itself is the accuracy of the rule. A key that is not
    there is replaced by the nearest one.

    Args:
        links: the number of each query's key, −1 for none, (B, n).
        offset: the step, such as that of :func:`best_offset`.
        n_keys: m.

    Returns:
        Links of the rule, −1 where there was none, (B, n).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, or a link to a key that is not there.

    Example:
        >>> offset_links(torch.tensor([[-1, 0, 1, 0]]), -2, 4)
        tensor([[-1,  0,  0,  1]])

    Explained in: chapters/10_interpretability_deeper, section "Syntax, with labels".
    """
    check_number("n_keys", n_keys, 1, whole=True)
    check_number("offset", offset, -(2**31), 2**31, whole=True)
    _check_links(links, n_keys)
    if links.ndim != 2:
        raise ValueError(f"links must have shape (B, n), got {tuple(links.shape)}")
    there = torch.arange(links.shape[1], device=links.device) + offset
    return torch.where(links == NONE, NONE, there.clamp(0, n_keys - 1))


def attention_loss(
    patterns: Float[Tensor, "*B N M"],
    target: Float[Tensor, "..."],
    *,
    kind: str = "cross-entropy",
) -> Float[Tensor, ""]:
    """Return how far patterns are from those that are wanted, the mean over queries that count.

    cross-entropy: −Σ_j t_ij ln a_ij, KL: Σ_j t_ij (ln t_ij − ln a_ij). They differ by the entropy
    of the target, so their gradients are the same: with respect to the scores a_i − t_i. Where the
    target is a link, both are −ln of the weight on the linked key.

    Args:
        patterns: a, (..., n, m), rows sum to 1; with a gradient for training.
        target: t, of the same shape or one that broadcasts, rows sum to 1; queries whose row is 0
            do not count.
        kind: "cross-entropy" or "kl".

    Returns:
        A number, in nats.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, rows that are no weights, an unknown kind, or no
            query that counts.

    Example:
        >>> pattern = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
        >>> float(attention_loss(pattern, torch.tensor([[0.0, 0.0], [1.0, 0.0]])))
        1.3862943649291992

    Source: [liu2016neural]
    Explained in: chapters/10_interpretability_deeper, section "Attention told where to look".
    """
    check_choice("kind", kind, ("cross-entropy", "kl"))
    check_float("patterns", patterns, min_dims=2)
    check_float("target", target, min_dims=2)
    shape, given = tuple(patterns.shape), tuple(target.shape)
    pairs = zip(given[::-1], shape[::-1], strict=False)
    fits = len(given) <= len(shape) and all(mine in (1, yours) for mine, yours in pairs)
    if not fits or given[-1] != shape[-1]:
        raise ValueError(f"target must broadcast to the patterns, {shape}, got {given}")
    a, t = _weights("patterns", patterns), _weights("target", target)
    if t.device != a.device:
        raise ValueError(f"target must be on the device of patterns, {a.device}, got {t.device}")
    t = t.to(a.dtype).expand(a.shape)
    counted = t.detach().sum(-1) > 0  # (..., n)
    if not bool(counted.any()):
        raise ValueError("target must say for one query at least where to look, got zeros only")
    least = torch.finfo(a.dtype).tiny  # so that a weight of 0 gives a large number, not infinity
    each = -(t * a.clamp(min=least).log()).sum(-1)
    if kind == "kl":
        each = each + (t * t.clamp(min=least).log()).sum(-1)
    return each[counted].mean()


def layer_pairs(n_student: int, n_teacher: int, *, how: str = "even") -> list[tuple[int, int]]:
    """Return which layer of a student learns from which layer of a teacher.

    "even" spreads the teacher's layers: student layer l learns from layer (l + 1) · T / S − 1,
    rounded. "last" compares the last layers alone, which leaves the student free in all others.

    Args:
        n_student: layers of the student, S.
        n_teacher: layers of the teacher, T, at least S.
        how: "even" or "last".

    Returns:
        Pairs (layer of the student, layer of the teacher).

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if a number is too small, or how is unknown.

    Example:
        >>> layer_pairs(4, 12)
        [(0, 2), (1, 5), (2, 8), (3, 11)]

    Source: "even": [jiao2020tinybert], "last": [wang2020minilm]
    Explained in: chapters/10_interpretability_deeper, section "Attention told where to look".
    """
    check_number("n_student", n_student, 1, whole=True)
    check_number("n_teacher", n_teacher, n_student, whole=True)
    check_choice("how", how, ("even", "last"))
    if how == "last":
        return [(n_student - 1, n_teacher - 1)]
    return [(i, ((i + 1) * n_teacher + n_student // 2) // n_student - 1) for i in range(n_student)]


def distillation_loss(
    student: Float[Tensor, "S B H N M"],
    teacher: Float[Tensor, "T B H N M"],
    *,
    pairs: Sequence[tuple[int, int]] | None = None,
    mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, ""]:
    """Return how far a student's patterns are from a teacher's: the mean of KL(teacher ‖ student).

    The mean is over pairs of layers, sequences, heads and queries. No gradient reaches the teacher.

    Args:
        student: patterns of its S layers, (S, B, H, n, m), with a gradient.
        teacher: patterns of its T layers, (T, B, H, n, m), with as many heads.
        pairs: layers (student, teacher), counted from 0; those of :func:`layer_pairs` when omitted.
        mask: True = token, (B, n): queries that are padding do not count.

    Returns:
        A number, in nats.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, a layer that is not there, rows that are no
            weights, or no query that counts.

    Example:
        >>> teacher = torch.eye(3).expand(4, 1, 2, 3, 3)
        >>> float(distillation_loss(teacher[:2], teacher))
        0.0

    Source: [wang2020minilm]; of scores, with squared errors: [jiao2020tinybert]
    Explained in: chapters/10_interpretability_deeper, section "Attention told where to look".
    """
    for name, value in (("student", student), ("teacher", teacher)):
        check_float(name, value)
        if value.ndim != 5:
            raise ValueError(
                f"{name} must have shape (layers, B, H, n, m), got {tuple(value.shape)}"
            )
    if student.shape[1:] != teacher.shape[1:]:
        raise ValueError(
            "student and teacher must agree in (B, H, n, m), got "
            f"{tuple(student.shape[1:])} and {tuple(teacher.shape[1:])}"
        )
    layers = len(student), len(teacher)
    if pairs is None:
        pairs = layer_pairs(*layers)
    chosen = _read_pairs(pairs, layers)
    wanted = _weights("teacher", teacher.detach())[[t for _, t in chosen]]
    given = _weights("student", student)[[s for s, _ in chosen]]
    if wanted.device != given.device:
        raise ValueError(
            f"teacher must be on the device of student, {given.device}, got {wanted.device}"
        )
    if mask is not None:
        check_tensor("mask", mask)
        if mask.dtype != torch.bool:
            raise TypeError(f"mask must be boolean with True = token, got {mask.dtype}")
        check_shape("mask", mask, (student.shape[1], student.shape[3]), "(B, n)")
        wanted = wanted * mask[:, None, :, None].to(wanted.device, wanted.dtype)
    return attention_loss(given, wanted, kind="kl")


def _weights(name: str, value: object) -> Tensor:
    """Return patterns in float32 at least; what is wrong with them is said by their own name."""
    check_float(name, value, min_dims=2)
    try:
        return weights_of(value)
    except ValueError as error:
        raise ValueError(str(error).replace("patterns", name, 1)) from None


def _read_pairs(pairs: object, layers: tuple[int, int]) -> list[tuple[int, int]]:
    check_list("pairs", pairs)
    if not len(pairs):
        raise ValueError(f"pairs must name layers to compare, got none of {layers}")
    for pair in pairs:
        check_list("a pair of pairs", pair)
        if len(pair) != 2:
            raise ValueError(f"a pair of pairs must be two layers, got {len(pair)}")
        for who, layer, many in zip(("student", "teacher"), pair, layers, strict=True):
            check_number(f"a {who}'s layer of pairs", layer, 0, many - 1, whole=True)
    return [(s, t) for s, t in pairs]


def _check_links(links: object, n_keys: int | None = None) -> None:
    """Raise unless links are integers from −1 to the last key."""
    check_tensor("links", links, min_dims=1)
    if links.dtype == torch.bool or links.is_floating_point() or links.is_complex():
        raise TypeError(f"links must be integers, got {links.dtype}")
    if not links.numel():
        raise ValueError(f"links must not be empty, got shape {tuple(links.shape)}")
    low, high = (int(end) for end in links.aminmax())
    if low < NONE or (n_keys is not None and high >= n_keys):
        last = "" if n_keys is None else f" to {n_keys - 1}, the last key"
        raise ValueError(f"links must be keys from 0{last}, or -1 for none, got {low} to {high}")


def _counted(links: object, shape: Sequence[int], n_keys: int | None) -> Tensor:
    """Return which queries have a link, all checked."""
    _check_links(links, n_keys)
    check_shape("links", links, shape, "(B, n)")
    counted = links != NONE
    if not bool(counted.any()):
        raise ValueError("links must give one query at least a key, got none")
    return counted
