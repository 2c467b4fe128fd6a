"""Were the labels right? Accuracy, F1 of classes, and F1 of the spans that tags spell.

Explained in: chapters/11_training_deeper, section "Is it any good?".
"""

from collections.abc import Sequence, Set

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from tfbook._checks import check_list, check_number, check_tensor

__all__ = [
    "accuracy",
    "f1",
    "span_f1",
    "spans",
]


def accuracy(
    predicted: Int[Tensor, "*B"], targets: Int[Tensor, "*B"], *, ignore: int | None = None
) -> float:
    """Return the share of predictions that are right, padding left out.

    Args:
        predicted: classes or tokens, (...): ``logits.argmax(-1)``.
        targets: what is right, (...).
        ignore: a target that is not counted, such as ``tfbook.data.PAD``; None counts all.

    Returns:
        From 0 to 1.

    Raises:
        TypeError: if a tensor does not hold integers, or ignore is no integer.
        ValueError: if the shapes differ, or nothing is left to count.

    Example:
        >>> accuracy(torch.tensor([5, 6, 7, 8]), torch.tensor([5, 6, 9, 0]), ignore=0)
        0.6666666666666666

    Explained in: chapters/11_training_deeper, section "Is it any good?".
    """
    predicted, targets = _counted(predicted, targets, ignore)
    return (predicted == targets).double().mean().item()


def f1(
    predicted: Int[Tensor, "*B"],
    targets: Int[Tensor, "*B"],
    *,
    average: str = "macro",
    ignore: int | None = None,
) -> float:
    """Return F1, the harmonic mean of precision and recall, over classes.

    For one class F1 = 2 TP / (2 TP + FP + FN). "macro" is the mean of it over the classes that
    occur in predictions or targets; "micro" adds the counts of all classes first. With one label
    for each example every false positive of a class is a false negative of another, so micro F1 is
    the accuracy.

    Args:
        predicted: classes, (...).
        targets: what is right, (...).
        average: "macro" or "micro".
        ignore: a target that is not counted; None counts all.

    Returns:
        From 0 to 1.

    Raises:
        TypeError: if a tensor does not hold integers, or ignore is no integer.
        ValueError: for another average, if the shapes differ, or nothing is left to count.

    Example:
        >>> guess, truth = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1])
        >>> round(f1(guess, truth), 4), f1(guess, truth, average="micro")
        (0.7333, 0.75)

    Explained in: chapters/11_training_deeper, section "Is it any good?".
    """
    if average not in ("macro", "micro"):
        raise ValueError(f'average must be "macro" or "micro", got {average!r}')
    predicted, targets = _counted(predicted, targets, ignore)
    classes = torch.cat((predicted, targets)).unique()  # (C,)
    said, true = predicted == classes[:, None], targets == classes[:, None]  # (C, T)
    hits = (said & true).sum(-1)  # (C,), TP
    both = said.sum(-1) + true.sum(-1)  # (C,), (TP + FP) + (TP + FN)
    if average == "micro":
        hits, both = hits.sum(), both.sum()
    return (2 * hits.double() / both).mean().item()


def spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Read the named entities off a row of BIO tags.

    "B-X" begins an entity of kind X, "I-X" goes on with it, "O" is outside. An "I-X" that has
    nothing of its kind before it begins one too, as conlleval has it.

    Returns:
        (start, end, kind) of each, end exclusive.

    Raises:
        TypeError: if a tag is no string.
        ValueError: if a tag is none of these.

    Example:
        >>> sorted(spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
        [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC')]

    Source: [sang2003conll]
    Explained in: chapters/13_language_deeper, section "A label for every token".
    """
    check_list("tags", tags, sized=False)
    found, start, inside = set(), 0, ""
    for i, tag in enumerate([*tags, "O"]):
        if not isinstance(tag, str):
            raise TypeError(f"tags must be strings, got {type(tag).__name__}")
        mark, _, kind = tag.partition("-")
        if tag != "O" and (mark not in ("B", "I") or not kind):
            raise ValueError(f'tags must be "O", "B-..." or "I-...", got {tag!r}')
        if mark != "I" or kind != inside:  # what went on until here has ended
            if inside:
                found.add((start, i, inside))
            start, inside = i, kind
    return found


def span_f1(predicted: Sequence[Set], targets: Sequence[Set]) -> float:
    """Return F1 of named entities: one is found if its ends and its kind are right.

    F1 = 2 TP / (found + true), the counts added over all sentences. Unlike the share of right tags
    it gives nothing for the many tags outside of all entities.

    Args:
        predicted: for each sentence a set, such as :func:`spans` gives.
        targets: what is right, as many sets.

    Returns:
        From 0 to 1; 1 where there is nothing to find and nothing was found.

    Raises:
        TypeError: if something is no set.
        ValueError: if there are not as many of one as of the other.

    Example:
        >>> guess, truth = ["B-PER", "I-PER", "B-LOC"], ["B-PER", "I-PER", "I-PER"]
        >>> span_f1([spans(guess)], [spans(truth)]), span_f1([spans(truth)], [spans(truth)])
        (0.0, 1.0)

    Source: [sang2003conll]
    Explained in: chapters/13_language_deeper, section "A label for every token".
    """
    for name, sets in (("predicted", predicted), ("targets", targets)):
        check_list(name, sets)
    if len(predicted) != len(targets):
        raise ValueError(
            f"predicted and targets must be as many, got {len(predicted)} and {len(targets)}"
        )
    for name, sets in (("predicted", predicted), ("targets", targets)):
        for value in sets:
            if not isinstance(value, Set):
                raise TypeError(f"{name} must hold sets, got {type(value).__name__}")
    hits = sum(len(a & b) for a, b in zip(predicted, targets, strict=True))
    both = sum(map(len, predicted)) + sum(map(len, targets))
    return 2 * hits / both if both else 1.0


def _counted(
    predicted: Int[Tensor, "*B"], targets: Int[Tensor, "*B"], ignore: int | None
) -> tuple[Shaped[Tensor, " T"], Shaped[Tensor, " T"]]:
    """Check predictions and targets and return those that count, flat."""
    for name, value in (("predicted", predicted), ("targets", targets)):
        check_tensor(name, value)
        if value.is_floating_point() or value.is_complex():
            raise TypeError(f"{name} must hold integers, got {value.dtype}; use logits.argmax(-1)")
    if predicted.shape != targets.shape:
        raise ValueError(
            "predicted and targets must have the same shape, "
            f"got {tuple(predicted.shape)} and {tuple(targets.shape)}"
        )
    if ignore is not None:
        check_number("ignore", ignore, whole=True)
    kept = torch.ones_like(targets, dtype=torch.bool) if ignore is None else targets != ignore
    if not kept.any():
        raise ValueError(f"nothing is left to count: targets have {targets.numel()} to ignore")
    return predicted[kept], targets[kept]
