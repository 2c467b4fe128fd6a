"""The checks of the project on generation: how varied a text is, and whether it quotes."""

from itertools import pairwise
from typing import Any

from tfbook.teaching.exercises._spec import Exercise, expect_plain

WHERE = "chapters/project_generation"

# project-distinct -------------------------------------------------------------------------------


def distinct(texts: list[list[str]], n: int) -> float:
    """Say which share of the n-grams of some texts are distinct.

    An n-gram is n words in a row within one text. All texts are counted together: the number of
    different n-grams in them, divided by the number of all. Without any n-gram: 0.0.

    texts: lists of words. n: at least 1.
    Returns: from 0 to 1, a float.
    """
    ...


def _grams(words: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def _distinct(texts: list[list[str]], n: int) -> float:
    found = [gram for words in texts for gram in _grams(words, n)]
    return len(set(found)) / len(found) if found else 0.0


def _distinct_values(distinct: Any) -> None:
    """Different n-grams over all n-grams, of all texts together."""
    texts = ["the cat and the cat and the dog", "the cat and a dog", "a dog and a cow and"]
    texts = [text.split() for text in texts]
    right, n = _distinct(texts, 2), 2
    found = [gram for words in texts for gram in _grams(words, n)]
    words = [word for text in texts for word in text]
    each = [_distinct([text], n) for text in texts]
    once = sum(found.count(gram) == 1 for gram in set(found))
    shorter = [gram for text in texts for gram in _grams(text, n)[:-1]]
    ring = [gram for text in texts for gram in _grams([*text, text[0]], n)]
    blocks = [tuple(text[i : i + n]) for text in texts for i in range(0, len(text) - 1, n)]
    expect_plain(
        distinct, {"texts": texts, "n": n}, right,
        "Put the n-grams of all texts in one list; divide the size of its set by its length.",
        mistakes={
            "This is the mean over the texts. Count all together: a phrase in two texts is "
            "repeated, too.": sum(each) / len(each),
            "Some n-grams reach from one text into the next.": _distinct([words], n),
            "Some n-grams go on from the end of a text at its beginning. A text of w words has "
            "w - n + 1 n-grams.": len(set(ring)) / len(ring),
            "The number of words stands below. Divide by the number of n-grams.":
                len(set(found)) / len(words),
            "These are single words, whatever n.": _distinct(texts, 1),
            "Each n-gram has one word too many.": _distinct(texts, 3),
            "This is the share of n-grams that are repeated. The others are wanted.": 1 - right,
            "Only n-grams that occur once were counted. One that is repeated is one different "
            "n-gram.": once / len(found),
            "The last n-gram of each text is missing.": len(set(shorter)) / len(shorter),
            "The n-grams lie side by side. They overlap: one begins at each word.":
                len(set(blocks)) / len(blocks),
            "This is how many there are. Divide by the number of all n-grams.":
                float(len(set(found))),
            "This is the number of all divided by that of the different ones: turn it over.":
                len(found) / len(set(found)),
            "The sets of the texts were added up: a phrase in two texts is one and the same.":
                sum(len(set(_grams(text, n))) for text in texts) / len(found),
        },
    )


def _distinct_sizes(distinct: Any) -> None:
    """Any n, and texts too short for one n-gram."""
    texts = ["a b c a b d a b c a".split(), "a b c".split(), ["d"], []]
    for n in (1, 2, 3, 4, 9):
        expect_plain(
            distinct, {"texts": texts, "n": n}, _distinct(texts, n), f"With n = {n} it differs."
        )


def _distinct_none(distinct: Any) -> None:
    """Without an n-gram the share is 0."""
    for texts, n in (([["one", "word"]], 3), ([], 1)):
        expect_plain(distinct, {"texts": texts, "n": n}, 0.0, "There is no n-gram here: 0.0.")


DISTINCT = Exercise(
    name="project-distinct",
    title="Which share is distinct?",
    level=1,
    section=f'{WHERE}, section "Step 3: is it varied?"',
    stub=distinct,
    properties=(_distinct_values, _distinct_sizes, _distinct_none),
    hints=(
        "A text of N words has N − n + 1 n-grams, one from each place but the last n − 1.",
        "A list cannot stand in a set; `tuple(words[i : i + n])` can.",
        "`found = [tuple(w[i : i + n]) for w in texts for i in range(len(w) - n + 1)]`; "
        "`len(set(found)) / len(found) if found else 0.0`.",
    ),
)

# project-quote ----------------------------------------------------------------------------------


def longest_quote(text: str, source: str) -> str:
    """Find the longest stretch of a text that stands in another one, letter by letter.

    Spaces, line breaks, capitals and all: nothing is changed before comparing. Of several that
    are equally long, the one that comes first in the text. Nothing in common: "".

    text: some hundred characters. source: maybe a million.
    Returns: a piece of the text.
    """
    ...


def _quote(text: str, source: str, *, last: bool = False) -> str:
    best = ""
    for i in range(len(text)):
        for j in range(i + 1, len(text) + 1):
            longer = j - i > len(best) or (last and j - i == len(best))
            if longer and text[i:j] in source:
                best = text[i:j]
    return best


def _first_stretch(text: str, source: str) -> str:
    """Return the stretch at the first place that has one, as a search that stops too early."""
    for i in range(len(text)):
        found = max(
            (text[i:j] for j in range(i + 1, len(text) + 1) if text[i:j] in source),
            key=len, default="",
        )
        if found:
            return found
    return ""


def _quote_values(quote: Any) -> None:
    """The longest stretch that both have."""
    source = "The rat, the cat and THE DOG sat on a mat.\nAll was well."
    text = "the dog ate on a mat.\nAll is a rat, the bat"
    right = _quote(text, source)
    words = [word for word in text.split() if word in source.split()]
    expect_plain(
        quote, {"text": text, "source": source}, right,
        "Try each beginning in the text, and make the stretch longer while it stands in the "
        "source.",
        mistakes={
            "This is the stretch at the beginning of the text. A later one is longer.":
                _first_stretch(text, source),
            "The spaces at the ends were cut off. They stand in both.": right.strip(),
            "One character is missing at the end.": right[:-1],
            "One character is missing at the beginning.": right[1:],
            "That is a single word. A stretch may hold spaces and line breaks.":
                max(words, key=len),
            "Only whole words were compared. A stretch may begin and end within one.":
                right.strip().rpartition(" ")[0],
            "The longest stretch within one line was taken. A line break is a character, too.":
                max((_quote(line, source) for line in text.split("\n")), key=len),
        },
    )


def _quote_exact(quote: Any) -> None:
    """Capitals count, and the characters stand side by side."""
    text, source = "now GOOD MORROW all, so good!", "A good morrow, all; so say we"
    small = _quote(text.lower(), source.lower())
    place = text.lower().index(small)
    expect_plain(
        quote, {"text": text, "source": source}, _quote(text, source),
        "Compare letter by letter.",
        mistakes={
            "Small letters and capitals were taken for the same.": text[place : place + len(small)],
            "Small letters and capitals were taken for the same, and the text was changed.": small,
        },
    )


def _quote_ends(quote: Any) -> None:
    """A stretch may reach from the first to the last character; none at all is possible."""
    cases = {
        "The whole text stands in the source.": ("the cat", "see the cat sit"),
        "The longest stretch is at the end of the text.": ("oh the cat", "the cat"),
        "The two have nothing in common: return \"\".": ("abc", "xyz"),
        "The text is empty: return \"\".": ("", "xyz"),
        "The whole source stands in the text.": ("see the cat sit", "the cat"),
    }
    for sentence, (text, source) in cases.items():
        expect_plain(quote, {"text": text, "source": source}, _quote(text, source), sentence)


def _quote_first(quote: Any) -> None:
    """Of equally long stretches the first is taken."""
    given = {"text": "abc-xyz-abd", "source": "xyz abd abc"}
    expect_plain(
        quote, given, "abc", "Three stretches are equally long.",
        mistakes={
            "Of equally long stretches the last was taken. The first in the text is wanted.":
                _quote(*given.values(), last=True),
            "The first in the source was taken. The first in the text is wanted.": "xyz",
        },
    )


def _quote_long(quote: Any) -> None:
    """A source of half a million characters does not take long."""
    words = [f"{a * b % 97}{a % 7} " for a, b in pairwise(range(140_000))]
    source = "".join(words)
    text = source[777:800] + "?" + source[40_000:40_041] + "!" + source[70_000:70_030]
    wanted = source[40_000:40_041]
    got = quote(text, source)
    if got != wanted:
        expect_plain(lambda text, source: got, {"text": text, "source": source[:50] + "…"}, wanted,
                     "In a long source another stretch came back.")


QUOTE = Exercise(
    name="project-quote",
    title="The longest quotation",
    level=2,
    section=f'{WHERE}, section "Step 4: does it write, or quote?"',
    stub=longest_quote,
    properties=(_quote_values, _quote_exact, _quote_ends, _quote_first, _quote_long),
    hints=(
        "Python's `in` finds a stretch in a million characters in less than a millisecond.",
        "From each place only a stretch that is longer than the best so far is of interest: try "
        "that length at once.",
        "For each i, while `i + len(best) < len(text)` and `text[i : i + len(best) + 1] in "
        "source`: `best = text[i : i + len(best) + 1]`.",
    ),
)

EXERCISES = (DISTINCT, QUOTE)
