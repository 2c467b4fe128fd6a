"""The checks of the project on translation, first half: the split, a dictionary, a batch."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_plain, parts

WHERE = "chapters/project_translation"
Pair = tuple[str, str]

# project-apart ----------------------------------------------------------------------------------


def apart(
    pairs: list[tuple[str, str]], held: set[tuple[str, str]], every: int
) -> tuple[list, list, list]:
    """Sort pairs of sentences into training, test and new combinations, so that nothing leaks.

    A pair that has come before is dropped. A pair whose source holds two held words side by side,
    in their order, goes to the combinations. Of the others, counted from 1, each `every`-th goes to
    the test and the rest to training.

    pairs: (source, target), words parted by spaces. held: (word, next word). every: n.
    Returns: training, test, combinations, each in the order of the pairs.
    """
    ...


def _holds(source: str, held: set[Pair], how: str) -> bool:
    words = source.split()
    if how == "anywhere":
        return any(a in words and b in words for a, b in held)
    if how == "text":
        return any(f"{a} {b}" in source for a, b in held)
    if how == "ring":
        return any(pair in held for pair in zip(words, words[1:] + words[:1], strict=True))
    if how == "turned":
        return any((b, a) in held or (a, b) in held for a, b in zip(words, words[1:], strict=False))
    return any(pair in held for pair in zip(words, words[1:], strict=False))


def _apart(
    pairs: list[Pair], held: set[Pair], every: int, *, how: str = "", repeats: bool = False,
    first: int = 1, count_all: bool = False, also: bool = False,
) -> tuple[list[Pair], list[Pair], list[Pair]]:
    train, test, combinations, seen, count = [], [], [], set(), first - 1
    for pair in pairs:
        if pair in seen and not repeats:
            continue
        seen.add(pair)
        hit = _holds(pair[0], held, how)
        count += count_all or not hit
        if hit:
            combinations.append(pair)
        elif count % every == 0:
            test.append(pair)
        else:
            train.append(pair)
        if also and pair not in train:
            train.append(pair)
    return train, test, combinations


SOURCES = (
    "ebi dak prig bim", "abo bim prig dak", "dak prig bim", "dak prig bim", "bim abo dak stam",
    "ebi dak prig bim", "dak stam abo bim", "bims stam dak", "abo dak prig bim", "abo bims stam",
    "bim prig abo", "dak prig dak", "bim prig bim", "dak abo bim",
)


def _apart_values(apart: Any) -> None:
    """Every pair is where it belongs, once."""
    pairs = [(source, source.upper()) for source in SOURCES]
    arguments = {"pairs": pairs, "held": {("abo", "bim")}, "every": 3}
    right = _apart(*arguments.values())
    train, test, combinations = right
    after = _apart(*arguments.values(), repeats=True)
    expect_plain(
        apart, arguments, right, "A pair is not where it belongs.",
        mistakes={
            "Pairs that repeat an earlier one are still there: one of them can stand in training "
            "and the other in the test.": after,
            "Repeated pairs were dropped within each part only. Drop them before you sort, or the "
            "same pair stands in two parts.": tuple(list(dict.fromkeys(part)) for part in after),
            "Two held words anywhere in a sentence were enough. They must stand side by side.":
                _apart(*arguments.values(), how="anywhere"),
            "A piece of text was looked for, so that `abo bims` holds `abo bim`. Compare words.":
                _apart(*arguments.values(), how="text"),
            "The last word of a sentence was paired with its first. Nothing stands behind the last "
            "word.": _apart(*arguments.values(), how="ring"),
            "Held words in the other order count too here. Only (first, next) is held.":
                _apart(*arguments.values(), how="turned"),
            "The counting begins with the test. Counted from 1, the every-th is the first there.":
                _apart(*arguments.values(), first=0),
            "The combinations were counted, too. Count only the others.":
                _apart(*arguments.values(), count_all=True),
            "Training holds everything. What is tested must not be trained on.":
                _apart(*arguments.values(), also=True),
            "Test and training are exchanged.": (test, train, combinations),
            "The combinations come last.": (combinations, train, test),
            "The pairs are sorted. Leave them in their order.":
                tuple(sorted(part) for part in right),
        },
    )


def _apart_edges(apart: Any) -> None:
    """Nothing held, or nothing but repetitions."""
    pairs = [("dak prig", "DAK"), ("dak prig", "DAK"), ("dak prig", "OTHER"), ("bim", "BIM")]
    for held, every in ((set(), 2), ({("dak", "prig")}, 1), (set(), 9)):
        expect_plain(
            apart, {"pairs": pairs, "held": held, "every": every}, _apart(pairs, held, every),
            f"With every = {every} and {len(held)} held combinations a pair is not where it "
            "belongs. Pairs are the same if source and target are.",
        )


APART = Exercise(
    name="project-apart",
    title="Three piles, and nothing in two of them",
    level=2,
    section=f'{WHERE}, section "Step 1: two languages, and data that do not leak"',
    stub=apart,
    properties=(_apart_values, _apart_edges),
    hints=(
        "First drop what is repeated, then find the combinations, then count the rest.",
        "`list(dict.fromkeys(pairs))` keeps the first of equal pairs. "
        "`zip(words, words[1:])` gives the words that stand side by side.",
        "`test = rest[every - 1 :: every]`; training is what remains of the rest.",
    ),
)

# project-dictionary -----------------------------------------------------------------------------


def dictionary(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Find for each source word the target word that goes with it, without a grammar.

    Dice(s, t) = 2 n(s, t) / (n(s) + n(t)): n(s) pairs have s in the source, n(t) have t in the
    target, n(s, t) both. The largest wins; of equals the first in the alphabet.

    pairs: (source, target), words parted by spaces.
    Returns: a target word for each source word.
    """
    ...


def _dictionary(pairs: list[Pair], how: str = "dice") -> dict[str, str]:
    left: Counter = Counter()
    right: Counter = Counter()
    both: Counter = Counter()
    kind: Any = list if how == "tokens" else set
    for source, target in pairs:
        ours, theirs = kind(source.split()), kind(target.split())
        left.update(ours)
        right.update(theirs)
        both.update((s, t) for s in ours for t in theirs)
    found = {}
    for s in left:
        def rank(t: str, s: str = s) -> float:
            n = both[s, t]
            if how == "together":
                return n
            if how == "share":
                return n / right[t]
            return 2 * n / (left[s] + right[t])

        known = sorted((t for t in right if both[s, t]), reverse=how == "last")
        found[s] = max(known, key=rank)
    return found


def _dictionary_values(dictionary: Any) -> None:
    """The word that goes with a word is neither the most frequent nor the rarest."""
    pairs = [
        ("d a d", "ga D D A"), ("d", "X ga"), ("c", "C ga Z"), ("b d d", "D D B ga"),
        ("c", "ga Z C"), ("c d", "D ga"), ("b", "ga B"), ("d a", "A ga X"),
    ]
    found = _dictionary(pairs)
    turned = _dictionary([(target, source) for source, target in pairs])
    by_place: dict[str, Counter] = {}
    for source, target in pairs:
        for s, t in zip(source.split(), target.split(), strict=False):
            by_place.setdefault(s, Counter())[t] += 1
    expect_plain(
        dictionary, {"pairs": pairs}, found, "A source word has another partner.",
        mistakes={
            "Pairs with both words were counted and nothing else, so a word that is everywhere "
            "wins. Divide by how often the two occur.": _dictionary(pairs, "together"),
            "n(s, t) was divided by n(t) alone: a word that occurs once wins. Divide by the sum.":
                _dictionary(pairs, "share"),
            "A word that stands twice in a sentence was counted twice. n counts pairs.":
                _dictionary(pairs, "tokens"),
            "Of equals the last in the alphabet won. Take the first.": _dictionary(pairs, "last"),
            "This leads from target to source.": turned,
            "Words at the same place were paired. The order of words differs; go through all "
            "words of the target.":
                {s: min(c, key=lambda t: (-c[t], t)) for s, c in by_place.items()},
            "These are the values of Dice. Return the words.":
                {s: _dice(pairs, s, t) for s, t in found.items()},
            "Each source word has several partners here. Return one.":
                {s: [t] for s, t in found.items()},
        },
    )


def _dice(pairs: list[Pair], s: str, t: str) -> float:
    n_s = sum(s in source.split() for source, _ in pairs)
    n_t = sum(t in target.split() for _, target in pairs)
    both = sum(s in a.split() and t in b.split() for a, b in pairs)
    return 2 * both / (n_s + n_t)


def _dictionary_words(dictionary: Any) -> None:
    """Words are compared whole."""
    pairs = [("bim dak", "tura meko"), ("bims", "turali"), ("dak", "meko"), ("bims dak", "turali "
             "meko"), ("bim", "tura")]
    expect_plain(
        dictionary, {"pairs": pairs}, _dictionary(pairs),
        "`bim` and `bims` are two words, and so are `tura` and `turali`.",
    )


DICTIONARY = Exercise(
    name="project-dictionary",
    title="A dictionary out of nothing but pairs",
    level=2,
    section=f'{WHERE}, section "Step 2: word for word"',
    stub=dictionary,
    properties=(_dictionary_values, _dictionary_words),
    hints=(
        "Three counts: of source words, of target words, and of both together.",
        "Take the set of the words of each sentence. `Counter.update` adds a set of words, or of "
        "pairs of words.",
        "`max(sorted(targets), key=lambda t: 2 * both[s, t] / (left[s] + right[t]))`: `max` takes "
        "the first of equals.",
    ),
)

# project-collate --------------------------------------------------------------------------------


def collate(
    sources: list[list[int]], targets: list[list[int]], bos: int, eos: int, pad: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make one batch of sentences of unequal lengths.

    A source ends with eos. A target begins with bos and ends with eos. Behind the end of the
    shorter ones stands pad, up to the longest source or the longest target.

    sources: B lists of ids. targets: B lists of ids. bos: id. eos: id. pad: id.
    Returns: (B, M) and (B, N), int64.
    """
    ...


def _pad(rows: Sequence[list[int]], pad: int, *, left: bool = False, width: int = 0) -> Any:
    width = max(width, *map(len, rows))
    filled = [[pad] * (width - len(row)) for row in rows]
    both = zip(rows, filled, strict=True)
    return torch.tensor([more + row if left else row + more for row, more in both])


def _collate_values(collate: Any) -> None:
    """Sources and targets have their marks, and padding behind them."""
    sources, targets = [[11, 12, 13], [14], [15, 16]], [[21], [22, 23, 24, 25], [26, 27, 28]]
    bos, eos, pad = 1, 2, 7
    arguments = sources, targets, bos, eos, pad
    ends = [row + [eos] for row in sources]
    full = [[bos, *row, eos] for row in targets]
    given = dict(zip(("sources", "targets", "bos", "eos", "pad"), arguments, strict=True))
    source, target = parts(collate(*arguments), "source", "target")
    expect(
        source, _pad(ends, pad), "The sources are not what was wanted.", what="The source",
        given=given,
        mistakes={
            "The sources have no end. With it the decoder can see that nothing follows.":
                _pad(sources, pad),
            "The sources begin with bos. Only what is written needs a beginning.":
                _pad([[bos, *row] for row in ends], pad),
            "The padding stands before the sources. It belongs behind them.":
                _pad(ends, pad, left=True),
            "The sources are as wide as the targets. They may differ, and padding costs time.":
                _pad(ends, pad, width=6),
            "Padding is 0 here. Fill up with `pad`.": _pad(ends, 0),
            "The sources were filled up with eos. The mask knows padding by `pad`.":
                _pad(ends, eos),
            "The sources were cut. Fill the short ones up instead.":
                torch.tensor([row[:2] for row in ends]),
        },
    )
    expect(
        target, _pad(full, pad), "The targets are not what was wanted.", what="The target",
        given=given,
        mistakes={
            "The targets have no bos. The decoder could not read anything before the first word.":
                _pad([[*row, eos] for row in targets], pad),
            "The targets have no eos. The model would never learn where to stop.":
                _pad([[bos, *row] for row in targets], pad),
            "The eos stands behind the padding. It follows the last word.":
                torch.tensor([[bos, *row, *[pad] * (4 - len(row)), eos] for row in targets]),
            "The padding stands before the targets. `translation_loss` wants it behind them.":
                _pad(full, pad, left=True),
            "bos and eos are exchanged.": _pad([[eos, *row, bos] for row in targets], pad),
            "Padding is 0 here. Fill up with `pad`.": _pad(full, 0),
        },
    )


def _collate_equal(collate: Any) -> None:
    """One pair alone, and sentences of one length, need no padding."""
    for sources, targets in (([[5]], [[6, 7]]), ([[5, 6], [7, 8]], [[9], [10]])):
        given = {"sources": sources, "targets": targets}
        source, target = parts(collate(sources, targets, 1, 2, 0), "source", "target")
        expect(source, _pad([row + [2] for row in sources], 0), given=given, what="The source")
        expect(target, _pad([[1, *row, 2] for row in targets], 0), given=given, what="The target")


COLLATE = Exercise(
    name="project-collate",
    title="A batch of unequal sentences",
    level=1,
    section=f'{WHERE}, section "Step 3: an encoder, a decoder, a run"',
    stub=collate,
    properties=(_collate_values, _collate_equal),
    hints=(
        "First add the marks to each list, then find the longest, then fill up.",
        "`row + [pad] * (width - len(row))` fills one list up. Sources and targets have a width "
        "each.",
        "A function `filled(rows)` that returns "
        "`torch.tensor([row + [pad] * (width - len(row)) for row in rows])`, called twice.",
    ),
)

EXERCISES = (APART, DICTIONARY, COLLATE)
