"""Asking several times: the best of n, the answer most often given, and what n costs.

Explained in: chapters/18_practice_deeper, section "Compute at test time".
"""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from tfbook._checks import check_choice, check_list, check_number

__all__ = ["RULES", "accuracy_curve", "best_of", "majority", "within_budget"]

RULES = ("any", "majority")


def best_of(answers: Sequence, scores: Sequence[float]) -> object:
    """Return the answer with the highest score; the first of equal ones.

    Args:
        answers: n of them.
        scores: of a reward model, a checker, or the log-probabilities.

    Raises:
        TypeError: for a wrong type.
        ValueError: if there are none, or another number of scores, or one is not finite.

    Example:
        >>> best_of(["a", "b", "c"], [0.1, 0.9, 0.9])
        'b'

    Source: [cobbe2021training]
    Explained in: chapters/18_practice_deeper, section "Compute at test time".
    """
    _check_answers(answers)
    check_list("scores", scores)
    if len(scores) != len(answers):
        raise ValueError(f"scores must be as many as answers, {len(answers)}, got {len(scores)}")
    for score in scores:
        check_number("scores", score)
    return answers[max(range(len(answers)), key=lambda i: scores[i])]


def majority(answers: Sequence[Hashable]) -> object:
    """Return the answer that was given most often; of equally frequent ones the first given.

    Args:
        answers: what was read off n samples, such as the number at the end of each.

    Raises:
        TypeError: if they are no list, or cannot be compared.
        ValueError: if there are none.

    Example:
        >>> majority(["12", "11", "11", "7"])
        '11'

    Source: [wang2023selfconsistency]
    Explained in: chapters/18_practice_deeper, section "Compute at test time".
    """
    _check_answers(answers)
    try:
        counts = Counter(answers)  # in the order of the first ones
    except TypeError:
        raise TypeError("answers must be hashable, such as strings or numbers") from None
    return max(counts, key=counts.get)


def within_budget(lengths: Sequence[int], tokens: int) -> int:
    """Return how many answers, in their order, a budget of tokens pays for.

    Args:
        lengths: tokens of each answer.
        tokens: how many may be spent on a question.

    Returns:
        From 0 to n: an answer that does not fit whole is not given.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number below 0.

    Example:
        >>> within_budget([5, 7, 4], 13)
        2

    Explained in: chapters/18_practice_deeper, section "Compute at test time".
    """
    check_list("lengths", lengths)
    check_number("tokens", tokens, 0, whole=True)
    spent, n = 0, 0
    for length in lengths:
        check_number("lengths", length, 0, whole=True)
        spent += length
        if spent > tokens:
            break
        n += 1
    return n


def accuracy_curve(
    answers: Sequence[Sequence[Hashable]],
    right: Sequence[Hashable],
    sizes: Sequence[int],
    *,
    rule: str = "majority",
    draws: int = 200,
    seed: int = 0,
) -> list[float]:
    """Return the share of questions answered right from k of the n samples, for each k.

    Of each question's n answers k are drawn without putting back, again and again, and the mean
    taken: the curve of k from one set of samples. "majority" asks whether the most frequent one is
    right, "any" whether there is a right one, which takes a checker that knows.

    Args:
        answers: n for each question.
        right: the right answer of each.
        sizes: values of k, from 1 to n.
        rule: "majority" or "any".
        draws: how often k are drawn.
        seed: of the draws.

    Returns:
        A share for each k.

    Raises:
        TypeError: for a wrong type.
        ValueError: for lists that do not fit, an unknown rule, or a k that is larger than n.

    Source: [wang2023selfconsistency], any: [chen2021evaluating]
    Explained in: chapters/18_practice_deeper, section "Compute at test time".
    """
    check_list("answers", answers)
    check_list("right", right)
    check_list("sizes", sizes)
    check_choice("rule", rule, RULES)
    check_number("draws", draws, 1, 10**6, whole=True)
    check_number("seed", seed, 0, whole=True)
    if len(answers) != len(right) or not len(answers):
        raise ValueError(f"right must be as many as answers, got {len(right)} and {len(answers)}")
    for each in answers:
        _check_answers(each)
    fewest = min(len(each) for each in answers)
    for k in sizes:
        check_number("sizes", k, 1, fewest, whole=True)
    generator = np.random.default_rng(seed)
    found = []
    for k in sizes:
        hits = 0
        for given, wanted in zip(answers, right, strict=True):
            for _ in range(draws):
                chosen = [given[i] for i in generator.permutation(len(given))[:k]]
                hits += wanted in chosen if rule == "any" else majority(chosen) == wanted
        found.append(hits / (draws * len(answers)))
    return found


def _check_answers(answers: object) -> None:
    check_list("answers", answers)
    if isinstance(answers, set | frozenset) or not hasattr(answers, "__getitem__"):
        raise TypeError(f"answers must be a list, got {type(answers).__name__}")
    if not len(answers):
        raise ValueError("answers must hold at least one, got none")
