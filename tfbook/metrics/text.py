"""How close is a text to its references? BLEU and chrF, written to be read.

Both give the numbers of `sacrebleu` (from 0 to 100), the tool to report them with: name its
version and its signature beside the score, since scores of other tokenizations differ.

Explained in: chapters/11_training_deeper, section "Is it any good?".
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tfbook._checks import check_bool, check_number, check_scale

__all__ = [
    "Bleu",
    "bleu",
    "chrf",
    "words_13a",
]

PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@dataclass(frozen=True)
class Bleu:
    """A BLEU score and what it is made of.

    Attributes:
        score: from 0 to 100.
        precisions: p_1 ... p_N in percent, clipped and after smoothing.
        brevity_penalty: BP, from 0 to 1.
        length: tokens of all hypotheses, c.
        reference_length: tokens of the references nearest in length, r.
    """

    score: float
    precisions: tuple[float, ...]
    brevity_penalty: float
    length: int
    reference_length: int


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    max_order: int = 4,
    lowercase: bool = False,
    tokenize: str = "13a",
    smooth: str = "exp",
    floor: float = 0.1,
    effective_order: bool = False,
) -> Bleu:
    """Return BLEU of a corpus: how many runs of words of the translations the references hold.

    BLEU = 100 BP exp(Σ_n ln(p_n) / N), n = 1 ... N, with BP = min(1, exp(1 − r/c)).
    p_n = (n-grams of the hypotheses, each counted at most as often as one of its references has
    it) / (n-grams of the hypotheses), both counted over the whole corpus. c is the length of the
    hypotheses, r that of their references (with several, the nearest in length, the shorter of
    two), in tokens.

    A p_n of 0 has no logarithm: "exp" puts 1/2, 1/4, ... of one match in place of the first zero,
    the second, ..., "floor" puts `floor` matches; "none" gives 0. Nothing that matches at all is 0.

    Args:
        hypotheses: translations, plain text.
        references: for each hypothesis its reference, or a list of several.
        max_order: N.
        lowercase: whether to ignore capitals.
        tokenize: "13a", see :func:`words_13a`, or "none", where spaces part the tokens.
        smooth: "exp", "floor" or "none".
        floor: see above, for "floor" only.
        effective_order: average over the orders that the hypotheses are long enough for; for the
            score of one short sentence.

    Returns:
        See :class:`Bleu`; equal to `sacrebleu.corpus_bleu` with the same settings.

    Raises:
        TypeError: if texts are no strings, or a setting has a wrong type.
        ValueError: if there are no texts, not as many references, or the setting is unknown.

    Example:
        >>> score = bleu(["the the the the the the the"], ["the cat is on the mat"])
        >>> round(score.precisions[0], 2)
        28.57

    Source: [papineni2002bleu], [post2018call]
    Explained in: chapters/11_training_deeper, section "Is it any good?".
    """
    check_number("max_order", max_order, 1, 1000, whole=True)
    check_bool("lowercase", lowercase)
    check_bool("effective_order", effective_order)
    check_number("floor", floor, above=0)
    if tokenize not in ("13a", "none"):
        raise ValueError(f'tokenize must be "13a" or "none", got {tokenize!r}')
    if smooth not in ("exp", "floor", "none"):
        raise ValueError(f'smooth must be "exp", "floor" or "none", got {smooth!r}')
    cut = words_13a if tokenize == "13a" else str.split
    matches, totals, c, r = [0] * max_order, [0] * max_order, 0, 0
    for hypothesis, several in _pairs(hypotheses, references, lowercase):
        words, choices = cut(hypothesis.rstrip()), [cut(text.rstrip()) for text in several]
        c += len(words)
        r += min((abs(len(choice) - len(words)), len(choice)) for choice in choices)[1]
        for n in range(1, max_order + 1):
            found, allowed = _ngrams(words, n), Counter()
            for choice in choices:
                allowed |= _ngrams(choice, n)  # the largest count in any one reference
            matches[n - 1] += (found & allowed).total()  # clipped
            totals[n - 1] += found.total()
    penalty = 1.0 if c >= r else math.exp(1 - r / c) if c else 0.0
    precisions = _smoothed(matches, totals, smooth, floor)
    if effective_order:
        precisions = precisions[: sum(total > 0 for total in totals)]
    score = 0.0
    if any(matches) and min(precisions) > 0:
        score = penalty * math.exp(sum(map(math.log, precisions)) / len(precisions))
    precisions += [0.0] * (max_order - len(precisions))
    return Bleu(score, tuple(precisions), penalty, c, r)


def words_13a(text: str) -> list[str]:
    """Cut a text into words and marks as the evaluation script mteval-v13a does.

    Marks become tokens of their own, but not full stops and commas between digits (3.14), nor
    hyphens between letters. Some XML entities are put back first.

    Raises:
        TypeError: if text is no string.

    Example:
        >>> words_13a("Well-known: 3.14, not 3!")
        ['Well-known', ':', '3.14', ',', 'not', '3', '!']

    Source: [post2018call]
    Explained in: chapters/11_training_deeper, section "Is it any good?".
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}")
    text = text.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, mark in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
        text = text.replace(entity, mark)
    text = re.sub(r"([!-&(-+/:-@\[-`{-~])", r" \1 ", f" {text} ")  # ASCII marks but ' , - .
    text = re.sub(r"([^0-9])([.,])", r"\1 \2 ", text)
    text = re.sub(r"([.,])([^0-9])", r" \1 \2", text)
    return re.sub(r"([0-9])(-)", r"\1 \2 ", text).split()


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str | Sequence[str]],
    *,
    char_order: int = 6,
    word_order: int = 0,
    beta: float = 2.0,
    lowercase: bool = False,
    whitespace: bool = False,
    smooth: bool = False,
) -> float:
    """Return chrF of a corpus: how many runs of characters translations and references share.

    chrF = 100 (1 + β²) P R / (β² P + R). P is the mean over n = 1 ... char_order of the n-gram
    precisions, R that of the recalls, each counted over the corpus; orders for which either side
    has no n-gram are left out. β = 2 gives recall twice the weight. It needs no tokenizer, and a
    wrong ending of a right word costs little.

    Args:
        hypotheses: translations, plain text.
        references: for each hypothesis its reference, or a list of several, of which the one with
            the best score counts.
        char_order: the longest run of characters.
        word_order: the longest run of words; 2 is chrF++.
        beta: β.
        lowercase: whether to ignore capitals.
        whitespace: whether spaces are characters.
        smooth: average the F-scores of all orders in place of P and R, with a small number where
            an order is empty, as chrF++.py, NLTK and Moses do.

    Returns:
        From 0 to 100, equal to `sacrebleu.corpus_chrf` with the same settings.

    Raises:
        TypeError: if texts are no strings, or a setting has a wrong type.
        ValueError: if there are no texts, not as many references, or a number is out of range.

    Example:
        >>> round(chrf(["wanting"], ["wanted"]), 1), bleu(["wanting"], ["wanted"]).score
        (33.5, 0.0)

    Source: [popovic2015chrf]
    Explained in: chapters/11_training_deeper, section "Is it any good?".
    """
    check_number("char_order", char_order, 1, 1000, whole=True)
    check_number("word_order", word_order, 0, 1000, whole=True)
    check_scale("beta", beta)
    for name, flag in (("lowercase", lowercase), ("whitespace", whitespace), ("smooth", smooth)):
        check_bool(name, flag)

    def runs(text: str) -> list[Counter]:
        letters = text if whitespace else "".join(text.split())
        words = _words_chrf(text) if word_order else []
        return [_ngrams(letters, n) for n in range(1, char_order + 1)] + [
            _ngrams(words, n) for n in range(1, word_order + 1)
        ]

    sums = [(0, 0, 0)] * (char_order + word_order)  # (hypothesis, reference, shared) by order
    for hypothesis, several in _pairs(hypotheses, references, lowercase):
        found, best = runs(hypothesis), None
        for text in several:
            counts = [
                (a.total() if b else 0, b.total(), (a & b).total())
                for a, b in zip(found, runs(text), strict=True)
            ]
            value = _f_beta(counts, beta, smooth)
            if best is None or value > best[0]:
                best = value, counts
        sums = [
            tuple(map(sum, zip(*pair, strict=True))) for pair in zip(sums, best[1], strict=True)
        ]
    return _f_beta(sums, beta, smooth)


def _f_beta(counts: Sequence[tuple[int, int, int]], beta: float, smooth: bool) -> float:
    """Combine (hypothesis, reference, shared) of each order to 100 F_β."""

    def f(p: float, r: float, empty: float) -> float:
        return (1 + beta**2) * p * r / (beta**2 * p + r) if p + r > 0 else empty

    tiny = 1e-16
    if smooth:
        rates = [(s / h if h else tiny, s / r if r else tiny) for h, r, s in counts]
        return 100 * sum(f(p, r, tiny) for p, r in rates) / len(rates)
    rates = [(s / h, s / r) for h, r, s in counts if h and r]
    if not rates:
        return 0.0
    p, r = (sum(column) / len(rates) for column in zip(*rates, strict=True))
    return 100 * f(p, r, 0.0)


def _words_chrf(text: str) -> list[str]:
    """Cut at spaces, and one mark off the end of a word or else off its beginning."""
    words = []
    for word in text.split():
        if len(word) > 1 and word[-1] in PUNCTUATION:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in PUNCTUATION:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return words


def _ngrams(tokens: Sequence[str], n: int) -> Counter:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def _smoothed(matches: list[int], totals: list[int], smooth: str, floor: float) -> list[float]:
    """Return the precisions in percent, zeros replaced as asked for."""
    found, halves = [], 1.0
    for match, total in zip(matches, totals, strict=True):
        if match == 0 and smooth == "exp":
            halves /= 2
            match = halves
        elif match == 0 and smooth == "floor":
            match = floor
        found.append(100 * match / total if total else 0.0)
    return found


def _pairs(
    hypotheses: Sequence[str], references: Sequence[str | Sequence[str]], lowercase: bool
) -> list[tuple[str, list[str]]]:
    """Check the texts and return each hypothesis with the list of its references."""
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise TypeError(f"{name} must be a list of texts, got {type(texts).__name__}")
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(
            "hypotheses and references must be as many, at least one, "
            f"got {len(hypotheses)} and {len(references)}"
        )
    pairs = []
    for i, (hypothesis, several) in enumerate(zip(hypotheses, references, strict=True)):
        several = [several] if isinstance(several, str) else several
        if not isinstance(several, Sequence):
            raise TypeError(f"references[{i}] must be text, got {type(several).__name__}")
        if not several:
            raise ValueError(f"references[{i}] must hold at least one text, got none")
        for name, text in [("hypotheses", hypothesis), *(("references", text) for text in several)]:
            if not isinstance(text, str):
                raise TypeError(f"{name}[{i}] must be text, got {type(text).__name__}")
        lower = str.lower if lowercase else str
        pairs.append((lower(hypothesis), [lower(text) for text in several]))
    return pairs
