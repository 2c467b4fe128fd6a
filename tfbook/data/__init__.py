"""Small real data sets that ship with the book; README.md beside this file names their sources."""

from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["word_vectors"]

FOLDER = Path(__file__).parent
STEPS_PER_UNIT = 16  # word_vectors.tsv holds whole numbers of sixteenths


def word_vectors() -> tuple[list[str], Float[Tensor, "n_words d"]]:
    """Return common English words and a vector for each: what MiniLM-L6 knows before it reads.

    The vectors are MiniLM's input embeddings of these words, centred, projected onto their first
    24 principal directions and scaled so that |x|²/√24 is 3 on average. Numbers are float32 and
    exact (multiples of 1/16). Each call returns a list and a tensor of its own.

    Raises:
        ValueError: if the file is damaged: a line of another length, a repeated word, no number.

    Source: [wang2020minilm]; made by tfbook/data/make_word_vectors.py.
    Explained in: chapters/02_attention, section "What is computed: a weighted average".
    """
    words, rows = _read(FOLDER / "word_vectors.tsv")
    return list(words), torch.tensor(rows, dtype=torch.float32) / STEPS_PER_UNIT


@cache
def _read(path: Path) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    words, rows = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        word, *cells = line.split("\t")
        try:
            row = tuple(map(int, cells))
        except ValueError as error:
            raise ValueError(
                f"{path.name} line {number} must hold whole numbers: {error}"
            ) from None
        if not word or not row or (rows and len(row) != len(rows[0])):
            raise ValueError(
                f"{path.name} line {number} must hold a word and as many numbers as line 1"
            )
        words.append(word)
        rows.append(row)
    if not words or len(set(words)) != len(words):
        raise ValueError(f"{path.name} must hold at least one word and none twice")
    return tuple(words), tuple(rows)
