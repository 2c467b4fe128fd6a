"""Numbers that one can stand by: pass@k without bias, intervals, and tests that were seen before.

Explained in: chapters/18_practice, section "A ruler for every change".
"""

import math
import re
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from tfbook._checks import check_callable, check_list, check_number

__all__ = [
    "Copied",
    "Interval",
    "bootstrap_interval",
    "find_copies",
    "paired_interval",
    "pass_at_k",
    "wilson_interval",
]


class Interval(NamedTuple):
    """A number with the interval in which it may lie.

    Attributes:
        value: as it was measured.
        low: the lower end.
        high: the upper end.

    Explained in: chapters/18_practice_deeper, section "How sure is one share?".
    """

    value: float
    low: float
    high: float


class Copied(NamedTuple):
    """A stretch of a test text that stands in a training text too.

    Attributes:
        test: number of the test text.
        train: number of the first training text that holds it.
        start: its first word in the test text, from 0.
        words: how many words it is long.

    Explained in: chapters/18_practice, section "A test that leaks".
    """

    test: int
    train: int
    start: int
    words: int


def pass_at_k(n: int, right: int, k: int) -> float:
    """Estimate the chance that one of k answers is right, of n samples of which some were.

    1 − C(n − c, k) / C(n, k): the share of all subsets of k that hold a right one, so its mean over
    samples is the chance itself. 1 − (1 − c/n)^k is too low.

    Args:
        n: samples.
        right: c, how many were right.
        k: how many one may look at.

    Returns:
        From 0 to 1.

    Raises:
        TypeError: if one is no integer.
        ValueError: if c or k is more than n.

    Example:
        >>> round(pass_at_k(4, 2, 2), 4)  # of the 6 pairs 5 hold a right one
        0.8333

    Source: [chen2021evaluating]
    Explained in: chapters/18_practice_deeper, section "One sample, and many".
    """
    check_number("n", n, 1, 10**6, whole=True)
    check_number("right", right, 0, n, whole=True)
    check_number("k", k, 1, n, whole=True)
    if n - right < k:
        return 1.0
    ratios = 1 - k / np.arange(n - right + 1, n + 1)  # C(n − c, k) / C(n, k) as a product
    return float(1 - np.prod(ratios))


def wilson_interval(right: int, n: int, *, confidence: float = 0.95) -> Interval:
    """Return the interval of a share, right of n: it never leaves 0 … 1 and is never empty.

    (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n), the shares that would not be refused by a
    test at the observed p. The usual p ± z √(p(1 − p)/n) has no width at 0 of 20.

    Args:
        right: how many were right.
        n: of how many.
        confidence: of the interval, between 0 and 1.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of its range.

    Example:
        >>> [round(x, 3) for x in wilson_interval(0, 20)]
        [0.0, 0.0, 0.161]

    Source: [wilson1927probable]
    Explained in: chapters/18_practice_deeper, section "How sure is one share?".
    """
    check_number("n", n, 1, 10**15, whole=True)
    check_number("right", right, 0, n, whole=True)
    check_number("confidence", confidence, above=0, below=1)
    z = _quantile(confidence)
    p = right / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half))


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[np.ndarray], float] = np.mean,
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return the interval of a statistic by drawing the examples anew, with putting back.

    Its ends are quantiles of the statistic over the draws. Examples have to be independent: of
    several questions about one text the text is the example.

    Args:
        values: one for each example.
        statistic: of an array of them; the mean when omitted.
        confidence: between 0 and 1.
        draws: how often.
        seed: of the draws.

    Raises:
        TypeError: for a wrong type.
        ValueError: for fewer than 2 values, one that is not finite, or a number out of its range.

    Cost: ``draws`` times the statistic.

    Source: [efron1979bootstrap]
    Explained in: chapters/18_practice, section "A ruler for every change".
    """
    values = _numbers("values", values)
    check_callable("statistic", statistic)
    check_number("confidence", confidence, above=0, below=1)
    check_number("draws", draws, 1, 10**6, whole=True)
    check_number("seed", seed, 0, whole=True)
    generator, n = np.random.default_rng(seed), len(values)
    found = [statistic(values[generator.integers(n, size=n)]) for _ in range(draws)]
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(statistic(values)), float(low), float(high))


def paired_interval(
    one: Sequence[float],
    other: Sequence[float],
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return the interval of the mean difference of two models on the same examples.

    What makes an example hard for both cancels, so it is far narrower than two intervals side by
    side. If it holds 0, the difference may be chance.

    Args:
        one: a number for each example.
        other: of the other model, on the same examples in the same order.
        confidence: between 0 and 1.
        draws: how often.
        seed: of the draws.

    Raises:
        TypeError: for a wrong type.
        ValueError: for lists of different lengths, or as :func:`bootstrap_interval`.

    Source: [efron1979bootstrap]
    Explained in: chapters/18_practice, section "A ruler for every change".
    """
    one, other = _numbers("one", one), _numbers("other", other)
    if len(one) != len(other):
        raise ValueError(f"other must have {len(one)} numbers as one has, got {len(other)}")
    return bootstrap_interval((one - other).tolist(), confidence=confidence, draws=draws, seed=seed)


def find_copies(test: Sequence[str], train: Sequence[str], *, n: int = 13) -> list[Copied]:
    """Find the stretches of at least n words that test texts share with training texts.

    Words are compared in lower case and without punctuation. A model that was trained on a test
    may know its answer by heart.

    Args:
        test: texts that are tested on.
        train: texts that were learned.
        n: words in a row that count as copied; 13 are hardly ever met by chance.

    Returns:
        The stretches, as long as they are, in the order of the test texts; none where nothing is
        shared.

    Raises:
        TypeError: for a wrong type.
        ValueError: if n is below 1.

    Cost: memory for every stretch of n words of the training texts.

    Example:
        >>> find_copies(["Say: to be, or not!"], ["So", "To be or not to be"], n=3)
        [Copied(test=0, train=1, start=1, words=4)]

    Source: [brown2020language]
    Explained in: chapters/18_practice, section "A test that leaks".
    """
    check_number("n", n, 1, 10**6, whole=True)
    known = {}
    for i, text in enumerate(_texts("train", train)):
        words = _words(text)
        for start in range(len(words) - n + 1):
            known.setdefault(tuple(words[start : start + n]), i)
    found = []
    for i, text in enumerate(_texts("test", test)):
        words, last = _words(text), None
        for start in range(len(words) - n + 1):
            train_at = known.get(tuple(words[start : start + n]))
            if train_at is None:
                last = None
            elif last is None:
                last = Copied(i, train_at, start, n)
                found.append(last)
            else:  # the stretch goes on
                last = found[-1] = last._replace(words=start + n - last.start)
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _texts(name: str, texts: object) -> list[str]:
    check_list(name, texts)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name} must hold strings, got {type(text).__name__}")
    return list(texts)


def _numbers(name: str, values: object) -> np.ndarray:
    check_list(name, values)
    for value in values:
        check_number(name, value.item() if hasattr(value, "item") else value)
    if len(values) < 2:
        raise ValueError(f"{name} must hold at least 2 numbers, got {len(values)}")
    return np.array([float(value) for value in values])


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)
