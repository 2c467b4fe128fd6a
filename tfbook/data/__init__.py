"""The data that ship with the book, and the way from text to batches of ids.

Word vectors, English-French sentence pairs, nine plays of Shakespeare and rated film reviews;
tokenizers for words, characters and byte pairs; loaders, batches, augmentation, near-duplicates.
"""

from tfbook.data import augment
from tfbook.data.batches import (
    Packed,
    bucketed,
    competence,
    easiest,
    pack,
    padding_waste,
    shuffled,
    token_budget,
    warm_length,
)
from tfbook.data.corpora import english_french, movie_sentiment, shakespeare, word_vectors
from tfbook.data.duplicates import (
    bands_for,
    jaccard,
    minhash,
    near_duplicates,
    shingles,
    without_duplicates,
)
from tfbook.data.graphs import Graph, karate_club, les_miserables, shakespeare_speakers
from tfbook.data.loading import Loader, Windows, rows, seeded
from tfbook.data.tokenizers import (
    BOS,
    BYTES,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    BytePairs,
    byte_pair_tokenizer,
    char_tokenizer,
    pad_batch,
    word_tokenizer,
)

__all__ = [
    "english_french",
    "movie_sentiment",
    "shakespeare",
    "word_vectors",
    "BOS",
    "EOS",
    "PAD",
    "SPECIALS",
    "UNK",
    "BytePairs",
    "byte_pair_tokenizer",
    "char_tokenizer",
    "pad_batch",
    "word_tokenizer",
    "BYTES",
    "Loader",
    "Windows",
    "rows",
    "seeded",
    "Packed",
    "bucketed",
    "competence",
    "easiest",
    "pack",
    "padding_waste",
    "shuffled",
    "token_budget",
    "warm_length",
    "augment",
    "bands_for",
    "jaccard",
    "minhash",
    "near_duplicates",
    "shingles",
    "without_duplicates",
    "Graph",
    "karate_club",
    "les_miserables",
    "shakespeare_speakers",
]
