"""The exercises of chapter 13 on measures: bits per byte, BLEU; and a table of bigrams."""

import math
from collections import Counter
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_plain

# bits-per-byte ----------------------------------------------------------------------------------


def bits_per_byte(log_probs: torch.Tensor, text: str) -> float:
    """Say how many bits a model spends on each byte of a text.

    A token of probability p costs −log₂ p bits. The bytes are those of the text in UTF-8, so that
    models with different tokens can be compared.

    log_probs: (T,), the natural logarithm of the probability that each token of the text got.
    text: the text that the tokens make up, not empty.
    Returns: bits per byte, a float.
    """
    ...


def _bits(log_probs: torch.Tensor, text: str) -> float:
    return -sum(log_probs.tolist()) / math.log(2) / len(text.encode("utf-8"))


def _bit_slips(log_probs: torch.Tensor, text: str) -> dict[str, float]:
    nats, tokens, size = -sum(log_probs.tolist()), len(log_probs), len(text.encode("utf-8"))
    ln2 = math.log(2)
    return {
        "The sign is wrong: logarithms of probabilities are negative, bits are positive.":
            nats / ln2 / -size,
        "These are nats. A bit is ln 2 nats: divide by `math.log(2)`.": nats / size,
        "The nats were multiplied by ln 2. A bit is less than a nat, so there are more of them: "
        "divide.": nats * ln2 / size,
        "These are bits per token. Divide by the bytes of the text.": nats / ln2 / tokens,
        "These are bits per character. In UTF-8 some characters take several bytes: "
        "`text.encode()`.": nats / ln2 / len(text),
        "These are bits per word. Divide by the bytes.": nats / ln2 / len(text.split()),
        "These are the bits of the whole text. Divide by its bytes.": nats / ln2,
        "The mean of the tokens was divided by the bytes. The sum over the tokens is wanted.":
            nats / ln2 / tokens / size,
        "This is the perplexity, exp of the mean. Bits are wanted.": math.exp(nats / tokens),
        "This is 2 to the power of the bits. Return the bits.": 2 ** min(nats / ln2 / size, 99),
        "UTF-16 takes two bytes or more for each character. The text is measured in UTF-8.":
            nats / ln2 / len(text.encode("utf-16")),
    }


def _bits_ascii(bits: Any) -> None:
    """The bits of all tokens are divided by the bytes of the text."""
    log_probs, text = torch.tensor([-2.0, -0.5, -3.5, -1.0]).double(), "to be or"
    expect_plain(
        bits, {"log_probs": log_probs, "text": text}, _bits(log_probs, text),
        "Four tokens cost 7 nats in all, and the text has 8 bytes.",
        mistakes=_bit_slips(log_probs, text),
    )


def _bits_unicode(bits: Any) -> None:
    """Characters may take several bytes."""
    for text in ("être à Noël", "日本語", "🙂"):
        log_probs = torch.tensor([-4.0, -6.5, -1.5]).double()
        expect_plain(
            bits, {"log_probs": log_probs, "text": text}, _bits(log_probs, text),
            f"The text has {len(text)} characters and {len(text.encode())} bytes.",
            mistakes=_bit_slips(log_probs, text),
        )


def _bits_tokens(bits: Any) -> None:
    """Cut into other tokens, with the same probability in all, the text costs the same."""
    for pieces in ([-6.0], [-2.0, -4.0], [-1.0] * 6):
        log_probs = torch.tensor(pieces).double()
        expect_plain(
            bits, {"log_probs": log_probs, "text": "same text"}, 6 / math.log(2) / 9,
            f"The text costs 6 nats, whether in {len(pieces)} tokens or others.",
        )


def _bits_bytes(bits: Any) -> None:
    """Bytes at random cost 8 bits, and what is certain costs none."""
    for text, nats in (("abcdefg", 7 * math.log(256)), ("sure", 0.0)):
        log_probs = torch.tensor([-nats / 2, -nats / 2]).double()
        expect_plain(
            bits, {"log_probs": log_probs, "text": text}, nats / math.log(2) / len(text),
            "256 equally likely bytes cost 8 bits each; what is certain costs 0.",
        )


BITS_PER_BYTE = Exercise(
    name="bits-per-byte",
    title="Bits per byte",
    level=1,
    section='chapters/13_language_deeper, section "Exercises"',
    stub=bits_per_byte,
    properties=(_bits_ascii, _bits_unicode, _bits_tokens, _bits_bytes),
    hints=(
        "The probability of a text is the product over its tokens. What becomes of the product "
        "when you take logarithms?",
        "Divide nats by `math.log(2)` to have bits. `text.encode()` is the text as bytes.",
        "Check the sign and the unit by a text of one letter with probability `0.5`: it costs "
        "1 bit.",
    ),
)

# interpolated-bigram ----------------------------------------------------------------------------


def bigram_table(tokens: torch.Tensor, vocab: int, weight: float) -> torch.Tensor:
    """Estimate how likely each token is after each other one, by counting.

    The table holds λ · c(a, b) / c(a, ·) + (1 − λ) · (c(b) + 1) / (N + V). c(a, b) says how often b
    follows a, c(a, ·) how often anything follows a, and c(b) how often b occurs. Where nothing
    ever follows a, the second fraction alone stands in the row, without 1 − λ.

    tokens: (N,), int64, below vocab. vocab: V. weight: λ, from 0 to 1.
    Returns: (V, V), float32, row a for what comes after a; each row sums to 1.
    """
    ...


def _bigrams(
    tokens: torch.Tensor, vocab: int, weight: float, *, add: float = 1.0, add_pairs: float = 0.0,
    by_token: bool = False, unseen: str = "unigram",
) -> torch.Tensor:
    """Count as asked, or with a known slip."""
    ids, table = tokens.tolist(), torch.zeros(vocab, vocab)
    for a, b in zip(ids, ids[1:], strict=False):
        table[a, b] += 1
    single = torch.tensor([float(ids.count(b)) for b in range(vocab)])
    unigram = (single + add) / (len(ids) + add * vocab)
    table = table + add_pairs
    totals = single if by_token else table.sum(1)
    rows = []
    for a in range(vocab):
        if totals[a] == 0:
            share = {"unigram": unigram, "nothing": (1 - weight) * unigram,
                     "uniform": weight / vocab + (1 - weight) * unigram}[unseen]
        else:
            share = weight * table[a] / totals[a] + (1 - weight) * unigram
        rows.append(share)
    return torch.stack(rows)


def _bigram_values(table: Any) -> None:
    """Row a mixes what was seen after a with how frequent tokens are."""
    tokens, vocab, weight = torch.tensor([0, 1, 0, 2, 0, 1, 1, 2, 0]), 3, 0.75
    right = _bigrams(tokens, vocab, weight)
    pure, single = _bigrams(tokens, vocab, 1.0), _bigrams(tokens, vocab, 0.0)
    counts = torch.zeros(3, 3)
    for a, b in zip(tokens.tolist(), tokens.tolist()[1:], strict=False):
        counts[a, b] += 1
    ring = counts.clone()
    ring[tokens[-1], tokens[0]] += 1
    columns = weight * counts / counts.sum(0) + (1 - weight) * single
    expect(
        table(tokens, vocab, weight),
        right,
        "Row a should be λ times the shares of what follows a, plus 1 - λ times the shares of all "
        "tokens.",
        tolerance=1e-5,
        mistakes={
            "Rows and columns are exchanged: row a holds what comes after a.":
                (right.mT, weight * pure.mT + (1 - weight) * single,
                 columns.mT),
            "Each column was divided by its sum. Divide the row of a by how often anything "
            "follows a.": columns,
            "λ and 1 - λ are exchanged: λ belongs to the pairs.":
                _bigrams(tokens, vocab, 1 - weight),
            "The row was divided by how often a occurs. The last token of the text has no "
            "successor: divide by the sum of the row.":
                _bigrams(tokens, vocab, weight, by_token=True),
            "The 1 that is added to c(b) is missing, in the numerator or the denominator.":
                (_bigrams(tokens, vocab, weight, add=0.0),
                 weight * pure + (1 - weight) * single * 12 / 9,
                 weight * pure + (1 - weight) * (single * 12 - 1) / 12),
            "The last token was counted before the first: the shift goes around. Nothing follows "
            "the last token.": weight * ring / ring.sum(1, keepdim=True) + (1 - weight) * single,
            "1 was added to the counts of pairs, too. Only c(b) has it.":
                _bigrams(tokens, vocab, weight, add_pairs=1.0),
            "The pairs were divided by their number in the whole text. Divide by the row's sum.":
                weight * counts / 8 + (1 - weight) * single,
            "These are the shares of the pairs alone. Mix in those of the single tokens.": pure,
            "The shares were added without λ and 1 - λ: the rows sum to 2.": pure + single,
            "The second share depends on a. It is that of b, whatever stands before it.":
                weight * pure + (1 - weight) * single.mT,
            "Each token pairs with itself or with the one before it. Count `tokens[1:]` after "
            "`tokens[:-1]`.": weight * torch.eye(3) + (1 - weight) * single,
            "These are logarithms. Return the probabilities.": right.log(),
        },
    )


def _bigram_unseen(table: Any) -> None:
    """After a token that nothing follows, the frequencies of all tokens stand alone."""
    tokens, vocab, weight = torch.tensor([3, 1, 1, 3, 1, 0]), 5, 0.5
    right = _bigrams(tokens, vocab, weight)
    expect(
        table(tokens, vocab, weight),
        right,
        "Nothing follows the tokens 0, 2 and 4. In their rows stand the shares of all tokens.",
        tolerance=1e-5,
        mistakes={
            "The rows of tokens that nothing follows sum to 1 - λ. There the second fraction "
            "counts whole.": _bigrams(tokens, vocab, weight, unseen="nothing"),
            "The rows of tokens that nothing follows mix in equal shares. There the second "
            "fraction counts whole.": _bigrams(tokens, vocab, weight, unseen="uniform"),
        },
    )


def _bigram_weights(table: Any) -> None:
    """λ may be 0 or 1, the text short, and every row sums to 1."""
    generator = torch.Generator("cpu").manual_seed(611)
    for n, vocab, weight in ((1, 2, 0.3), (2, 4, 1.0), (60, 7, 0.0), (200, 11, 0.9)):
        tokens = torch.randint(0, vocab, (n,), generator=generator)
        expect(
            table(tokens, vocab, weight), _bigrams(tokens, vocab, weight),
            f"With {n} tokens, a vocabulary of {vocab} and λ = {weight} the table differs.",
            tolerance=1e-5,
        )


INTERPOLATED_BIGRAM = Exercise(
    name="interpolated-bigram",
    title="A table of bigrams",
    level=2,
    section='chapters/13_language_deeper, section "Exercises"',
    stub=bigram_table,
    properties=(_bigram_values, _bigram_unseen, _bigram_weights),
    hints=(
        "Count the pairs into a table first. What does each row have to be divided by, so that it "
        "sums to 1?",
        "`torch.bincount(tokens[:-1] * vocab + tokens[1:], minlength=vocab**2)` counts all pairs "
        "at once. Rows with the sum 0 need care: `torch.where`.",
        "Keep the axis when you sum a row, so that the division fits. A token that nothing ever "
        "follows has the second fraction alone, without the factor `1 - λ`.",
    ),
)

# corpus-bleu ------------------------------------------------------------------------------------


def corpus_bleu(
    hypotheses: list[list[str]], references: list[list[str]], max_order: int
) -> float:
    """Compute BLEU, 100 · BP · exp(mean of ln p_n for n = 1, …, max_order).

    p_n is the share of the n-grams of the hypotheses that their references hold. An n-gram counts
    as found at most as often as it stands in the reference of its own sentence. Numbers found and
    numbers of n-grams are added over all sentences before the division. BP is 1 where the
    hypotheses have more words than the references, c > r, and exp(1 − r / c) elsewhere, c and r
    counted over all sentences. Where a p_n is 0 or has no n-grams, BLEU is 0.

    hypotheses: sentences, each a list of words. references: one for each hypothesis. max_order: the
    longest n-grams.
    Returns: BLEU, a float from 0 to 100.
    """
    ...


def _grams(words: list[str], n: int, *, ring: bool = False) -> Counter:
    words = [*words, *words[: n - 1]] if ring else words
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _bleu(
    hypotheses: list[list[str]], references: list[list[str]], max_order: int,
    *, clip: bool = True, recall: bool = False, penalty: str = "right", mean: str = "geometric",
    pooled: bool = False, ring: bool = False,
) -> float:
    """Compute BLEU as asked, or with a known slip."""
    found, totals = [0] * max_order, [0] * max_order
    for words, truth in zip(hypotheses, references, strict=True):
        for n in range(1, max_order + 1):
            mine, theirs = _grams(words, n, ring=ring), _grams(truth, n, ring=ring)
            if pooled:
                theirs = sum((_grams(r, n) for r in references), Counter())
            hits = {g: min(k, theirs[g]) if clip else k * (g in theirs) for g, k in mine.items()}
            found[n - 1] += sum(hits.values())
            totals[n - 1] += sum((theirs if recall else mine).values())
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    if not all(found):
        return 0.0
    shares = [a / b for a, b in zip(found, totals, strict=True)]
    short = {"right": min(1.0, math.exp(1 - r / c)), "none": 1.0, "ratio": min(1.0, c / r),
             "upside down": min(1.0, math.exp(1 - c / r)), "always": math.exp(1 - r / c),
             "sentences": sum(min(1.0, math.exp(1 - len(b) / max(len(a), 1)))
                              for a, b in zip(hypotheses, references, strict=True))
             / len(references)}[penalty]
    logs = sum(map(math.log, shares))
    core = {"geometric": math.exp(logs / max_order), "arithmetic": sum(shares) / max_order,
            "last": shares[-1], "first": shares[0], "product": math.exp(logs)}[mean]
    return 100 * short * core


def _bleu_slips(
    hypotheses: list[list[str]], references: list[list[str]], max_order: int
) -> dict[str, float]:
    case = hypotheses, references, max_order
    single = [_bleu([h], [r], max_order) for h, r in zip(hypotheses, references, strict=True)]
    return {
        "An n-gram was counted as found each time it was said. It counts at most as often as the "
        "reference holds it.": _bleu(*case, clip=False),
        "The n-grams were looked up in all references together. Each sentence has its own.":
            _bleu(*case, pooled=True),
        "The number found was divided by the n-grams of the references. That is recall; BLEU "
        "divides by those of the hypotheses.": _bleu(*case, recall=True),
        "Some n-grams go on from the end of a sentence at its beginning. A sentence of w words has "
        "w - n + 1 n-grams.": _bleu(*case, ring=True),
        "The brevity penalty is missing.": _bleu(*case, penalty="none"),
        "The brevity penalty is upside down: what is too short is punished, exp(1 - r / c).":
            _bleu(*case, penalty="upside down"),
        "The brevity penalty is c / r. It is exp(1 - r / c).": _bleu(*case, penalty="ratio"),
        "The brevity penalty is above 1 where the hypotheses are longer. It is at most 1.":
            _bleu(*case, penalty="always"),
        "The brevity penalty was averaged over the sentences. Count the words of all of them.":
            _bleu(*case, penalty="sentences"),
        "The mean of the p_n was taken. It is the mean of their logarithms, and exp of it.":
            _bleu(*case, mean="arithmetic"),
        "The logarithms were added, but not divided by max_order.": _bleu(*case, mean="product"),
        "Only the longest n-grams count. All orders from 1 do.": _bleu(*case, mean="last"),
        "Only single words count. All orders up to max_order do.": _bleu(*case, mean="first"),
        "BLEU was computed for each sentence and averaged. Add up the counts of all sentences "
        "first.": sum(single) / len(single),
        "BLEU goes from 0 to 100: the factor of 100 is missing.": _bleu(*case) / 100,
    }


def _sentences(*texts: str) -> list[list[str]]:
    return [text.split() for text in texts]


def _bleu_case(bleu: Any, hypotheses: Any, references: Any, max_order: int, words: str) -> None:
    case = _sentences(*hypotheses), _sentences(*references), max_order
    names = ("hypotheses", "references", "max_order")
    expect_plain(
        bleu, dict(zip(names, case, strict=True)), _bleu(*case), words, mistakes=_bleu_slips(*case)
    )


def _bleu_clip(bleu: Any) -> None:
    """An n-gram counts at most as often as its own reference holds it."""
    _bleu_case(
        bleu, ["the the the the the the cat", "on a mat the dog sat there"],
        ["the cat is on the mat", "there on a rug the cat sat"], 2,
        "Of the words of the first hypothesis the count 2 times and cat once.",
    )


def _bleu_orders(bleu: Any) -> None:
    """The orders meet in a geometric mean over the whole corpus."""
    _bleu_case(
        bleu, ["we open the file and read it", "close all of the other windows now", "save it"],
        ["we open the file to read it", "close all of the windows", "save it"], 3,
        "The shares of 1-, 2- and 3-grams should meet in exp of the mean of their logarithms.",
    )


def _bleu_short(bleu: Any) -> None:
    """Hypotheses that are too short in all are punished."""
    _bleu_case(
        bleu, ["the cat sat", "a dog ran to the old house there"],
        ["the cat sat on the mat all day", "a dog ran to the old house"], 2,
        "The hypotheses have 11 words and the references 15: BP is exp(1 - 15/11).",
    )


def _bleu_zero(bleu: Any) -> None:
    """Where nothing of an order is found, BLEU is 0."""
    for hypothesis in ("the of and", "of it", "xyz", ""):
        _bleu_case(
            bleu, [hypothesis], ["it and of the"], 3,
            "No 3-gram is found, so BLEU is 0; the logarithm of 0 does not exist.",
        )


def _bleu_order(bleu: Any) -> None:
    """Any max_order; equal texts have 100."""
    same = ["one two three four five six", "seven eight nine ten"]
    for max_order in (1, 2, 4):
        _bleu_case(bleu, same, same, max_order, "Equal texts have a BLEU of 100.")
        _bleu_case(
            bleu, ["a b c d e f a b", "c d e f x"], ["a b c d f e a b c", "x c d e f"], max_order,
            f"With max_order = {max_order} BLEU differs.",
        )


CORPUS_BLEU = Exercise(
    name="corpus-bleu",
    title="BLEU of a corpus",
    level=2,
    section='chapters/13_language_deeper, section "Exercises"',
    stub=corpus_bleu,
    properties=(_bleu_clip, _bleu_orders, _bleu_short, _bleu_zero, _bleu_order),
    hints=(
        "Two sums for each order: n-grams found, and n-grams said. They run over all sentences.",
        "With `Counter` the clipped number found is `(said & true).total()`: `&` keeps the smaller "
        "count of each n-gram.",
        "Collect the `log` of each order's share and take their mean before the exponential. "
        "What has to be returned where one of the sums is 0?",
    ),
)

EXERCISES = (BITS_PER_BYTE, INTERPOLATED_BIGRAM, CORPUS_BLEU)
