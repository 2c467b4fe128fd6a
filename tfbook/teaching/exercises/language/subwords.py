"""The exercises of chapter 13 on byte-pair encoding: learning a merge, and applying what was."""

from collections import Counter
from typing import Any

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect_plain, parts

Word = tuple[str, ...]
Pair = tuple[str, str]

# byte-pair-step ---------------------------------------------------------------------------------


def merge_step(
    words: dict[tuple[str, ...], int],
) -> tuple[tuple[str, str], dict[tuple[str, ...], int]]:
    """Learn one merge of byte-pair encoding, and carry it out.

    Count how often each pair of neighbouring tokens stands in the words; a word counts as often as
    it occurs. The most frequent pair is merged, of equally frequent ones the first in the order of
    `sorted`. In every word each occurrence of it, from the left, becomes one token, the two strings
    joined.

    words: from a word, a tuple of tokens, to how often it occurs; one has at least two tokens.
    Returns: the pair, and a dictionary with the words after the merge.
    """
    ...


def _joined(word: Word, pair: Pair, *, at_most: int = 99, right: bool = False) -> Word:
    """Replace a pair in a word, from the left; or, as a slip, from the right or a few times."""
    tokens = list(word)[::-1] if right else list(word)
    wanted = pair[::-1] if right else pair
    found: list[str] = []
    i = done = 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == wanted and done < at_most:
            found.append("".join(pair))
            i, done = i + 2, done + 1
        else:
            found.append(tokens[i])
            i += 1
    return tuple(found[::-1] if right else found)


def _pairs(words: dict[Word, int]) -> Counter:
    counts: Counter = Counter()
    for word, times in words.items():
        for pair in zip(word, word[1:], strict=False):
            counts[pair] += times
    return counts


def _best(counts: dict) -> Any:
    return min(counts, key=lambda pair: (-counts[pair], pair))


def _words(text: str) -> dict[Word, int]:
    return {tuple(word): times for word, times in Counter(text.split()).items()}


def _step_results(step: Any, words: dict[Word, int]) -> tuple[Any, Any]:
    pair, merged = parts(step(words), "pair", "words")
    if isinstance(pair, str):
        raise Wrong("This is the pair alone. Return 2 results: `return pair, words`.")
    return pair, merged


def _step_pair(step: Any) -> None:
    """The most frequent pair is found, each word counted as often as it occurs."""
    words = _words("he " * 5 + "low row cow sow " + "tat " * 3)
    counts = _pairs(words)
    right = _best(counts)
    once = _best(Counter(pair for w in words for pair in set(zip(w, w[1:], strict=False))))
    tokens: Counter = Counter()
    for word, times in words.items():
        for token in word:
            tokens[token] += times
    expect_plain(
        lambda words: _step_results(step, words)[0], {"words": words}, right,
        "The first result should be the most frequent pair of neighbours.",
        mistakes={
            "Each word was counted once. A word that occurs five times counts five times.": once,
            "The rarest pair was merged.": min(counts, key=lambda pair: (counts[pair], pair)),
            "The two most frequent tokens were taken. They have to be neighbours.":
                tuple(token for token, _ in tokens.most_common(2)),
            "The pair is turned around, or the last token of each word was counted before its "
            "first. Nothing follows the last one.": right[::-1],
            "Return the pair, without its count.": (right, counts[right]),
        },
    )


def _step_ties(step: Any) -> None:
    """Of equally frequent pairs the first in sorted order is taken."""
    words = {("c", "d", "a", "b"): 2, ("b", "c"): 1, ("e", "b", "c"): 1}
    counts = _pairs(words)
    expect_plain(
        lambda words: _step_results(step, words)[0], {"words": words}, _best(counts),
        "Several pairs occur twice. The first in the order of `sorted` is wanted.",
        mistakes={
            "Several pairs occur twice, and the one that was found first was taken. The first in "
            "the order of `sorted` is wanted.": max(counts, key=lambda pair: counts[pair]),
            "Several pairs occur twice, and the last in sorted order was taken. The first is "
            "wanted: compare the counts the other way round.":
                max(counts, key=lambda pair: (counts[pair], pair)),
        },
    )


def _step_words(step: Any) -> None:
    """Every occurrence becomes one token, from the left, and words keep their counts."""
    words = {
        ("a", "b", "a", "b", "c"): 3, ("c", "a", "b"): 1, ("b", "a"): 2, ("c",): 4,
        ("a", "c", "b"): 1,
    }
    pair = _best(_pairs(words))
    everywhere = {_joined(word, pair): times for word, times in words.items()}
    expect_plain(
        lambda words: dict(_step_results(step, words)[1]), {"words": words}, everywhere,
        "In each word every (a, b) should become ab; what does not hold it stays.",
        mistakes={
            "Only the first occurrence in each word was merged.":
                {_joined(word, pair, at_most=1): times for word, times in words.items()},
            "The words came back as they were. Carry the merge out.": dict(words),
            "The counts are lost: a word occurs as often as before.":
                {word: 1 for word in everywhere},
            "Words without the pair are missing. They stay as they are.":
                {word: times for word, times in everywhere.items() if word not in words},
            "The new token was put behind the two. It replaces them.":
                {tuple(t for x in w for t in ((*pair, x) if x == "ab" else (x,))): n
                 for w, n in everywhere.items()},
            "The tokens of the pair were replaced wherever they stand. Only where the one follows "
            "the other they become one.":
                {tuple("ab" if x in pair else x for x in w): n for w, n in words.items()},
        },
    )


def _step_overlap(step: Any) -> None:
    """In a row of equal tokens the pairs are joined from the left and do not overlap."""
    words = {("a", "a", "a"): 2, ("b", "a", "a", "a", "a", "a"): 1}
    pair = ("a", "a")
    got = _step_results(step, words)
    expect_plain(
        lambda words: dict(got[1]), {"words": words},
        {_joined(word, pair): times for word, times in words.items()},
        "From the left, a a a becomes aa a.",
        mistakes={
            "The pairs were joined from the right. From the left, a a a becomes aa a.":
                {_joined(word, pair, right=True): times for word, times in words.items()},
            "A token was used twice: a a a became aa aa. After a merge go on behind both tokens.":
                {("aa", "aa"): 2, ("b", "aa", "aa", "aa", "aa"): 1},
            "A token that was merged was merged again: a a a became aaa. One merge joins two "
            "tokens.": {("aaa",): 2, ("b", "aaaaa"): 1},
        },
    )


def _step_on(step: Any) -> None:
    """Step by step, tokens of several characters are merged too."""
    words = _words("low " * 5 + "lower lower newest newest newest newest widest lowest")
    for turn in range(8):
        pair = _best(_pairs(words))
        wanted = {_joined(word, pair): times for word, times in words.items()}
        got = _step_results(step, dict(words))
        for result, right, what in ((got[0], pair, "pair"), (dict(got[1]), wanted, "words")):
            if result != right:
                raise Wrong(
                    f"At merge number {turn + 1} another {what} was wanted. A token may be a "
                    "string of several characters.", got=result, wanted=right,
                )
        words = wanted


BYTE_PAIR_STEP = Exercise(
    name="byte-pair-step",
    title="Learn one merge",
    level=2,
    section='chapters/13_language_deeper, section "Exercises"',
    stub=merge_step,
    properties=(_step_pair, _step_ties, _step_words, _step_overlap, _step_on),
    hints=(
        "Two parts: count the neighbours of all words, then rewrite each word with a walk from "
        "the left.",
        "`zip(word, word[1:])` gives the neighbours. A `Counter` adds up how often the word "
        "occurs, and `min(counts, key=lambda pair: (-counts[pair], pair))` settles ties.",
        "Walk through a word with an index. By how much does it grow where the pair stands, and "
        "by how much elsewhere? Try `a a a` with the pair `a`, `a`.",
    ),
)

# apply-merges -----------------------------------------------------------------------------------


def apply_merges(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """Cut a word into the tokens of a byte-pair encoding.

    Begin with the characters. As long as two neighbours are a pair that was learned, take the pair
    that was learned first and join each occurrence of it, from the left.

    word: any string, also an empty one. merges: the pairs in the order in which they were learned.
    Returns: the tokens, a list of strings.
    """
    ...


def _cut(word: str, merges: list[Pair], *, rank: Any = None) -> list[str]:
    """Encode as asked, or with a known slip in which pair goes first."""
    tokens = tuple(word)
    order = {pair: i for i, pair in enumerate(merges)}
    while True:
        known = [p for p in zip(tokens, tokens[1:], strict=False) if p in order]
        if not known:
            return list(tokens)
        pair = min(known, key=order.__getitem__) if rank is None else rank(known, order)
        tokens = _joined(tokens, pair)


def _longest(word: str, merges: list[Pair]) -> list[str]:
    """Take from the left the longest string that is a token."""
    known = {"".join(pair) for pair in merges}
    tokens = []
    while word:
        size = next(n for n in range(len(word), 0, -1) if n == 1 or word[:n] in known)
        tokens.append(word[:size])
        word = word[size:]
    return tokens


def _cut_around(word: str, merges: list[Pair]) -> list[str]:
    """Join neighbours as if the word were a ring, whose last token stands before the first."""
    tokens = list(word)
    for pair in merges:
        joined, i = [], 0
        while i < len(tokens):
            found = (tokens[i], tokens[(i + 1) % len(tokens)]) == pair
            joined.append("".join(pair) if found else tokens[i])
            i += 2 if found else 1
        tokens = joined
    return tokens


def _cut_slips(word: str, merges: list[Pair]) -> dict[str, list[str]]:
    order = {pair: i for i, pair in enumerate(merges)}
    one = list(word)
    if pairs := [p for p in zip(word, word[1:], strict=False) if p in order]:
        one = list(_joined(tuple(word), min(pairs, key=order.__getitem__)))
    until = tuple(word)
    for pair in merges:
        if pair not in zip(until, until[1:], strict=False):
            break
        until = _joined(until, pair)
    backwards = tuple(word)
    for pair in reversed(merges):
        backwards = _joined(backwards, pair)
    return {
        "The longest known token was taken from the left. The order in which the merges were "
        "learned decides.": _longest(word, merges),
        "The leftmost pair that was learned was joined. The one that was learned first goes "
        "first, wherever it stands.": _cut(word, merges, rank=lambda known, order: known[0]),
        "The pair that was learned last goes first. It is the one that was learned first.":
            _cut(word, merges, rank=lambda known, order: max(known, key=order.__getitem__)),
        "The merges were gone through from the last to the first.": list(backwards),
        "One pair was joined, and then it ended. Go on as long as there is a pair that was "
        "learned.": one,
        "It ended at the first merge that this word does not need. Go on to the next.":
            list(until),
        "Only the characters came back: nothing was joined.": list(word),
        "The last token was paired with the first, as in a ring. The word ends with its last "
        "token.": _cut_around(word, merges),
    }


# What training learns from 5 times town, 4 notes, 3 low, 3 seventeen and one steel.
LEARNED: list[Pair] = [
    ("o", "w"), ("t", "e"), ("e", "n"), ("ow", "n"), ("t", "own"), ("n", "o"), ("no", "te"),
    ("note", "s"),
]


def _cut_order(cut: Any) -> None:
    """The pair that was learned first goes first, wherever it stands."""
    for word in ("low", "notes", "tense", "sentence", "know"):
        expect_plain(
            cut, {"word": word, "merges": LEARNED}, _cut(word, LEARNED),
            f"{word!r} is cut into {_cut(word, LEARNED)}.", mistakes=_cut_slips(word, LEARNED),
        )


def _cut_each(cut: Any) -> None:
    """Each occurrence is joined, from the left, without overlaps."""
    merges = [("a", "a"), ("aa", "b"), ("aa", "a")]
    for word in ("aabaac", "aaab", "baaaaa"):
        turned = "".join(word[::-1])
        first_only = tuple(word)
        for pair in merges:
            first_only = _joined(first_only, pair, at_most=1)
        expect_plain(
            cut, {"word": word, "merges": merges}, _cut(word, merges),
            f"{word!r} is cut into {_cut(word, merges)}: pairs are joined from the left.",
            mistakes={
                "The pairs were joined from the right.":
                    [token[::-1] for token in _cut(turned, [("a", "a"), ("b", "aa"), ("a", "aa")])
                     ][::-1],
                "Each merge joined one occurrence only. It joins all of them in the word.":
                    list(first_only),
                **_cut_slips(word, merges),
            },
        )


def _cut_edges(cut: Any) -> None:
    """No merges, no known pair, one character or none: the characters come back."""
    for word, merges in (("low", []), ("xyz", LEARNED), ("é", LEARNED), ("", LEARNED)):
        expect_plain(
            cut, {"word": word, "merges": merges}, list(word),
            f"{word!r} holds no pair that was learned: its characters come back.",
        )
    ring = [("b", "a")]
    expect_plain(
        cut, {"word": "aab", "merges": ring}, list("aab"),
        "'aab' holds no pair that was learned: its characters come back.",
        mistakes=_cut_slips("aab", ring),
    )


def _cut_many(cut: Any) -> None:
    """Joined again, the tokens are the word; many merges and long words."""
    merges: list[Pair] = []
    words = _words("abracadabra " * 3 + "barbara cadabra arcade abba " * 2 + "ada")
    while len(merges) < 14:
        pair = _best(_pairs(words))
        merges.append(pair)
        words = {_joined(word, pair): times for word, times in words.items()}
    for word in ("abracadabra", "cabbala", "barracuda", "radarabbabra", "abba" * 5):
        expect_plain(
            cut, {"word": word, "merges": merges}, _cut(word, merges),
            f"{word!r} is cut in another way.", mistakes=_cut_slips(word, merges),
        )


APPLY_MERGES = Exercise(
    name="apply-merges",
    title="Cut a word into tokens",
    level=3,
    section='chapters/13_language, section "Cutting text into tokens"',
    stub=apply_merges,
    properties=(_cut_order, _cut_each, _cut_edges, _cut_many),
    hints=(
        "Not the longest token and not the leftmost pair: which pair would training have joined "
        "first?",
        "Give each pair its rank, `{pair: i for i, pair in enumerate(merges)}`. Among the "
        "neighbours find the lowest rank; stop when none has one.",
        "After each join the neighbours are others, so look for the lowest rank anew (`min`). "
        "A pair without a rank counts as the worst of all.",
    ),
)

EXERCISES = (BYTE_PAIR_STEP, APPLY_MERGES)
