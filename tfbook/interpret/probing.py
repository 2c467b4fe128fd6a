"""Can a label be read from a row of numbers, and does the model use what can be read?

A probe is a linear classifier that is trained on the activations of a model. Its accuracy by itself
says little: a probe may learn the labels word by word. So it comes with an interval, with the share
of the most frequent label, and with a control task, whose labels mean nothing. And a label that can
be read need not be used: that is asked by taking its directions out.

Explained in: chapters/10_interpretability_deeper, section "A probe and its control".
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tfbook._checks import check_float, check_number, check_shape, check_tensor

__all__ = [
    "LinearProbe",
    "Probed",
    "control_labels",
    "fit_probe",
    "nullspace",
    "probe",
    "probe_layers",
    "remove_directions",
]

RESAMPLES = 1000  # of the texts, for the interval
ABOVE_CHANCE = 0.02  # what a probe has to get right beyond chance to go on


class LinearProbe(NamedTuple):
    """A linear classifier: log p(c) = log softmax(W x + b)_c.

    Attributes:
        weight: W, a direction for each class, (C, D).
        bias: b, (C,).
        classes: the labels that the classes stand for, in increasing order, (C,).

    Explained in: chapters/10_interpretability_deeper, section "A probe and its control".
    """

    weight: Float[Tensor, "C D"]
    bias: Float[Tensor, " C"]
    classes: Int[Tensor, " C"]

    def log_probs(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B C"]:
        """Return how probable each class is, as logarithms.

        Raises:
            TypeError: if x is no floating-point tensor.
            ValueError: if its rows are not of the size that the probe was trained on.
        """
        check_float("x", x, min_dims=1)
        if x.shape[-1] != self.weight.shape[1]:
            raise ValueError(f"x must have rows of {self.weight.shape[1]}, got {tuple(x.shape)}")
        return (x.to(self.weight.dtype) @ self.weight.mT + self.bias).log_softmax(-1)

    def predict(self, x: Float[Tensor, "*B D"]) -> Int[Tensor, "*B"]:
        """Return the most probable label of each row."""
        return self.classes[self.log_probs(x).argmax(-1)]


class Probed(NamedTuple):
    """How well a probe does on texts that it was not trained on.

    Attributes:
        accuracy: the share of labels that are right.
        low: of the interval that holds 95 % of the accuracies when texts are drawn again.
        high: the other end.
        majority: the share that the most frequent label of training would get right.
        control: the accuracy of a probe of the same kind on the control task; NaN without types.

    Explained in: chapters/10_interpretability_deeper, section "A probe and its control".
    """

    accuracy: float
    low: float
    high: float
    majority: float
    control: float

    @property
    def selectivity(self) -> float:
        """Return accuracy − control: what the probe reads rather than learns by heart."""
        return self.accuracy - self.control


def fit_probe(
    x: Float[Tensor, "T D"], labels: Int[Tensor, " T"], *, strength: float = 1.0
) -> LinearProbe:
    """Train a linear probe by logistic regression, with scikit-learn.

    It minimises Σ_t −log p(label_t) + strength / 2 · ‖W‖², with each number of a row first brought
    to mean 0 and variance 1; what is returned takes rows as they are. With two classes W is the
    difference of their directions.

    Args:
        x: rows, (T, D).
        labels: integers, at least two different ones, (T,).
        strength: of the penalty, above 0. A strong one leaves the probe little to learn by heart.

    Returns:
        The probe, in float64.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, numbers that are not finite, or one label only.
        ImportError: if scikit-learn is not installed.

    Example:
        >>> x = torch.tensor([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
        >>> found = fit_probe(x, torch.tensor([7, 7, 9, 9]))
        >>> found.predict(torch.tensor([[0.2, 5.0], [2.9, 5.0]]))
        tensor([7, 9])

    Cost: a few dozen passes over x, each of 4 T D C operations.

    Source: [alain2017understanding]
    Explained in: chapters/10_interpretability_deeper, section "A probe and its control".
    """
    rows = _read_rows("x", x)
    _read_labels("labels", labels, len(rows))
    check_number("strength", strength, 1e-9, 1e9)
    classes, which = labels.detach().cpu().unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"labels must be of at least two kinds, got only {classes.tolist()}")
    from sklearn.linear_model import LogisticRegression

    mean, spread = rows.mean(0), rows.std(0, correction=0)
    spread = torch.where(spread > 1e-12 * (1 + mean.abs()), spread, 1.0)  # a constant tells nothing
    model = LogisticRegression(C=1 / strength, max_iter=1000)
    model.fit(((rows - mean) / spread).numpy(), which.numpy())
    weight, bias = torch.from_numpy(model.coef_), torch.from_numpy(np.atleast_1d(model.intercept_))
    if len(classes) == 2:  # p = σ(w x + b) is a softmax of ∓ half of it
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    weight = weight / spread
    return LinearProbe(weight, bias - weight @ mean, classes)


def control_labels(
    types: Int[Tensor, "*T"], labels: Int[Tensor, "*T"], *, seed: int = 0
) -> Int[Tensor, "*T"]:
    """Return the labels of a control task: one for each type of word, drawn at random.

    A word has the same label wherever it stands, drawn with the frequencies that the labels have.
    There is nothing in it to be read but which word it is, so who does well has learned by heart.

    Args:
        types: which word each row belongs to, such as its token, (...).
        labels: the labels of the task, (...).
        seed: decides which word gets which label.

    Returns:
        Labels, (...).

    Raises:
        TypeError: if a tensor does not hold integers, or seed is none.
        ValueError: if shapes differ, or there is nothing.

    Example:
        >>> control_labels(torch.tensor([5, 6, 5, 8]), torch.tensor([0, 1, 1, 1]), seed=3)
        tensor([1, 0, 1, 1])

    Source: [hewitt2019designing]
    Explained in: chapters/10_interpretability_deeper, section "A probe and its control".
    """
    _check_whole("types", types)
    _check_whole("labels", labels)
    check_shape("labels", labels, types.shape, "(...)")
    check_number("seed", seed, 0, 2**63 - 1, whole=True)
    if not types.numel():
        raise ValueError(f"types must not be empty, got shape {tuple(types.shape)}")
    kinds, which = types.unique(return_inverse=True)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(labels.numel(), (len(kinds),), generator=generator)
    return labels.flatten()[drawn.to(labels.device)][which]


def probe(
    x: Float[Tensor, "T D"],
    labels: Int[Tensor, " T"],
    *,
    texts: Int[Tensor, " T"] | None = None,
    types: Int[Tensor, " T"] | None = None,
    share: float = 0.5,
    strength: float = 1.0,
    seed: int = 0,
) -> Probed:
    """Train a probe on some of the texts, and test it on the others.

    A text is as a whole in one of the two parts, for its words are not independent. The interval
    draws the texts that are tested again and again, with replacement.

    Args:
        x: rows, (T, D).
        labels: integers, (T,).
        texts: the text that each row comes from, (T,); without it each row is a text.
        types: the word that each row belongs to, (T,), for the control task.
        share: of the texts for training, above 0 and below 1.
        strength: of the penalty, see :func:`fit_probe`.
        seed: decides which texts are tested, how they are drawn again, and the control task.

    Returns:
        Accuracy, its interval, the majority's accuracy and that of the control task.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, fewer than two texts, or one label only in those
            for training.
        ImportError: if scikit-learn is not installed.

    Source: [hewitt2019designing]
    Explained in: chapters/10_interpretability_deeper, section "A probe and its control".
    """
    rows = _read_rows("x", x)
    n = len(rows)
    _read_labels("labels", labels, n)
    for name, value in (("texts", texts), ("types", types)):
        if value is not None:
            _read_labels(name, value, n)
    check_number("share", share, above=0, below=1)
    check_number("seed", seed, 0, 2**63 - 1, whole=True)
    labels = labels.detach().cpu()
    texts = torch.arange(n) if texts is None else texts.detach().cpu()
    train, text = _split(texts, share, seed)
    right = _right(rows, labels, train, strength)
    low, high = _interval(right, text[~train], seed)
    majority = labels[train].mode().values
    control = math.nan
    if types is not None:
        random = control_labels(types.detach().cpu(), labels, seed=seed)
        if len(random[train].unique()) > 1:
            control = _right(rows, random, train, strength).mean().item()
        else:  # so few types that all drew the same label
            control = (random[~train] == random[train][0]).double().mean().item()
    accuracy = right.mean().item()
    return Probed(accuracy, low, high, _share(labels[~train] == majority), control)


def probe_layers(
    streams: Float[Tensor, "L B N D"],
    labels: Int[Tensor, "B N"],
    *,
    counted: Bool[Tensor, "B N"] | None = None,
    types: Int[Tensor, "B N"] | None = None,
    share: float = 0.5,
    strength: float = 1.0,
    seed: int = 0,
) -> list[Probed]:
    """Train a probe behind each layer, all on the same texts, and test it on the other texts.

    Args:
        streams: (L, B, N, D), as :func:`tfbook.interpret.streams` returns them; other rows at each
            layer do as well.
        labels: of each token, (B, N).
        counted: which tokens to take, (B, N); all when omitted. Leave out padding.
        types: the word at each place, such as the tokens, (B, N), for the control task.
        share: of the texts for training.
        strength: of the penalty, see :func:`fit_probe`.
        seed: see :func:`probe`.

    Returns:
        What :func:`probe` returns, for each of the L.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or too little to train on.
        ImportError: if scikit-learn is not installed.

    Source: [alain2017understanding], [hewitt2019designing]
    Explained in: chapters/10_interpretability_deeper, section "A probe and its control".
    """
    check_float("streams", streams)
    if streams.ndim != 4 or 0 in streams.shape:
        raise ValueError(
            f"streams must have shape (L, B, N, D), not empty, got {tuple(streams.shape)}"
        )
    batch, n = streams.shape[1:3]
    for name, value in (("labels", labels), ("types", types)):
        if value is not None or name == "labels":
            _check_whole(name, value)
            check_shape(name, value, (batch, n), "(B, N)")
    if counted is None:
        counted = torch.ones(batch, n, dtype=torch.bool)
    check_tensor("counted", counted)
    if counted.dtype != torch.bool:
        raise TypeError(f"counted must be boolean, got {counted.dtype}")
    check_shape("counted", counted, (batch, n), "(B, N)")
    counted = counted.cpu()
    texts = torch.arange(batch)[:, None].expand(batch, n)[counted]
    given = {"texts": texts, "share": share, "strength": strength, "seed": seed}
    if types is not None:
        given["types"] = types.cpu()[counted]
    chosen = labels.cpu()[counted]
    return [probe(layer.cpu()[counted], chosen, **given) for layer in streams]


def remove_directions(
    x: Float[Tensor, "*B D"],
    directions: Float[Tensor, "K D"],
    *,
    around: Float[Tensor, " D"] | None = None,
) -> Float[Tensor, "*B D"]:
    """Take directions out of rows: x − (x − around) Q Qᵀ, with Q a basis of what they span.

    Afterwards all rows have the same coordinates along the directions, those of ``around``.

    Args:
        x: rows, (..., D).
        directions: (K, D), not necessarily orthogonal or of length 1; those that depend on the
            others add nothing.
        around: a row whose coordinates all get, such as the mean, (D,); 0 when omitted.

    Returns:
        Rows, (..., D).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or numbers that are not finite.

    Example:
        >>> remove_directions(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0]]))
        tensor([[0., 4.]])

    Source: [ravfogel2020null]
    Explained in: chapters/10_interpretability_deeper, section "Probes and their controls".
    """
    check_float("x", x, min_dims=1)
    check_float("directions", directions)
    d = x.shape[-1]
    if directions.ndim != 2 or directions.shape[1] != d:
        raise ValueError(
            f"directions must have shape (K, D) = (K, {d}), got {tuple(directions.shape)}"
        )
    for name, value in (("directions", directions), ("around", around)):
        if value is None:
            continue
        check_float(name, value)
        if value.device != x.device:
            raise ValueError(f"{name} must be on the device of x, {x.device}, got {value.device}")
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} must be finite numbers, got some that are not")
    basis = _basis(directions).to(x.dtype)  # (K, D)
    moved = x
    if around is not None:
        check_shape("around", around, (d,), "(D,)")
        moved = x - around.to(x.dtype)
    return x - (moved @ basis.mT) @ basis


def nullspace(
    x: Float[Tensor, "T D"],
    labels: Int[Tensor, " T"],
    *,
    steps: int = 10,
    strength: float = 1.0,
) -> Float[Tensor, "K D"]:
    """Return the directions in which a label can be read linearly, found one probe after another.

    A probe is trained, its directions are taken out of the rows, the next one is trained on what is
    left, and so on, until the accuracy on the rows it was trained on, a mean over the labels, is
    that of chance. Rare labels count as much as frequent ones.

    Args:
        x: rows, (T, D).
        labels: integers, (T,).
        steps: probes at most.
        strength: of the penalty, see :func:`fit_probe`.

    Returns:
        Orthonormal directions, (K, D), at most steps · (C − 1) of them, in float64, for
        :func:`remove_directions`.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, numbers that are not finite, or one label only.
        ImportError: if scikit-learn is not installed.

    Source: [ravfogel2020null]
    Explained in: chapters/10_interpretability_deeper, section "Probes and their controls".
    """
    rows = _read_rows("x", x)
    _read_labels("labels", labels, len(rows))
    check_number("steps", steps, 1, whole=True)
    labels, centre = labels.detach().cpu(), rows.mean(0)
    found, left = rows.new_zeros(0, rows.shape[1]), rows
    for _ in range(min(steps, rows.shape[1])):
        fitted = fit_probe(left, labels, strength=strength)
        chance = 1 / len(fitted.classes)
        if _balanced(fitted.predict(left), labels) < chance + ABOVE_CHANCE:
            break
        found = _basis(torch.cat([found, fitted.weight - fitted.weight.mean(0)]))
        left = remove_directions(rows, found, around=centre)
    return found


def _balanced(said: Tensor, labels: Tensor) -> float:
    """Return the mean over the labels of how many with that label are right."""
    return float(np.mean([_share(said[labels == each] == each) for each in labels.unique()]))


def _basis(directions: Tensor) -> Tensor:
    """Return orthonormal rows that span what the directions span, in float64."""
    rows = directions.detach().double()
    lengths = rows.norm(dim=1, keepdim=True)
    rows = rows / torch.where(lengths > 0, lengths, 1.0)
    _, sizes, basis = torch.linalg.svd(rows, full_matrices=False)
    return basis[sizes > 1e-6]


def _split(texts: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return which rows are for training, and the number of each row's text."""
    kinds, which = texts.unique(return_inverse=True)
    if len(kinds) < 2:
        raise ValueError(f"texts must be at least two, some to test on, got {len(kinds)}")
    order = torch.randperm(len(kinds), generator=torch.Generator().manual_seed(seed))
    many = min(max(round(share * len(kinds)), 1), len(kinds) - 1)
    chosen = torch.zeros(len(kinds), dtype=torch.bool)
    chosen[order[:many]] = True
    return chosen[which], which


def _right(rows: Tensor, labels: Tensor, train: Tensor, strength: float) -> Tensor:
    """Return which rows of the test texts a probe of the others gets right, as numbers."""
    fitted = fit_probe(rows[train], labels[train], strength=strength)
    return (fitted.predict(rows[~train]) == labels[~train]).double()


def _interval(right: Tensor, text: Tensor, seed: int) -> tuple[float, float]:
    """Return where 95 % of the accuracies lie when texts are drawn again."""
    _, which = text.unique(return_inverse=True)
    many = torch.bincount(which).double()  # rows of each text
    good = torch.bincount(which, weights=right)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(many), (RESAMPLES, len(many)), generator=generator)
    found = good[drawn].sum(1) / many[drawn].sum(1)
    low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=found.dtype)).tolist()
    return low, high


def _share(hits: Shaped[Tensor, "..."]) -> float:
    return hits.double().mean().item()


def _read_rows(name: str, value: object) -> Tensor:
    """Return rows (T, D) in float64 on the processor, checked."""
    check_float(name, value)
    if value.ndim != 2 or 0 in value.shape:
        raise ValueError(f"{name} must have shape (T, D), not empty, got {tuple(value.shape)}")
    rows = value.detach().cpu().double()
    if not bool(rows.isfinite().all()):
        raise ValueError(f"{name} must be finite numbers, got some that are not")
    return rows


def _check_whole(name: str, value: object) -> None:
    check_tensor(name, value)
    if value.dtype == torch.bool or value.is_floating_point() or value.is_complex():
        raise TypeError(f"{name} must be integers, got {value.dtype}")


def _read_labels(name: str, value: object, n: int) -> None:
    _check_whole(name, value)
    check_shape(name, value, (n,), "(T,)")
