"""From text to ids and back: words for translation, characters for language models, and padding.

Both makers return a `Tokenizer` of the `tokenizers` library, with its `encode(text).ids`,
`encode(text).tokens`, `decode(ids)`, `get_vocab()` and `save(path)`.

Explained in: chapters/01_motivation, section "Trained on real sentences".
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Int
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from tfbook.validate import check_bool, check_count

__all__ = ["BOS", "EOS", "PAD", "SPECIALS", "UNK", "char_tokenizer", "pad_batch", "word_tokenizer"]

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
PAD, BOS, EOS, UNK = range(4)

# The pieces of a sentence, tried in this order.
PIECES = "|".join(
    (
        r"(?i:aujourd'hui)\b",
        r"\b(?i:[cdjlmnst]|(?:jus|lors|puis|quoi)?qu)'(?=\p{L})",  # French: l' d' qu'
        r"'(?i:s|t|m|d|ll|re|ve)\b",  # English: 's 't 'll
        r"\p{L}[\p{L}\p{M}]*",  # a word
        r"\p{N}+",  # a number
        r"[^\s\p{L}\p{N}]",  # one mark
    )
)


def word_tokenizer(texts: Iterable[str], *, vocab_size: int, lowercase: bool = True) -> Tokenizer:
    """Make a tokenizer whose tokens are the most frequent words and marks of some texts.

    A French article or pronoun that lost its vowel is a token with its apostrophe (l' icône), an
    English ending begins with it (don 't); each punctuation mark is a token. A word that is not in
    the vocabulary becomes <unk>. Ids 0 to 3 are <pad>, <bos>, <eos> and <unk>; the words follow
    from the most frequent on, equally frequent ones in the order of their characters. `encode`
    adds neither <bos> nor <eos>.

    Args:
        texts: what the words are counted in.
        vocab_size: the largest number of tokens, the four special ones among them.
        lowercase: whether to turn capitals into small letters first.

    Returns:
        The tokenizer, with ``get_vocab_size() ≤ vocab_size``.

    Raises:
        TypeError: if texts is one string or holds something else, or vocab_size is no integer.
        ValueError: if vocab_size is below 5 or the texts hold no word.

    Example:
        >>> tokenizer = word_tokenizer(["L'icône s'affiche."], vocab_size=9)
        >>> tokenizer.encode("L'icône clignote.").tokens
        ["l'", 'icône', '<unk>', '.']

    Explained in: chapters/01_motivation, section "Trained on real sentences".
    """
    check_count("vocab_size", vocab_size, minimum=len(SPECIALS) + 1)
    check_bool("lowercase", lowercase)
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, got one string; write [text]")
    tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIALS[UNK]))
    # One code point for each letter with its accent, and one kind of apostrophe.
    tidy = [normalizers.NFC(), normalizers.Replace("’", "'")]
    tokenizer.normalizer = normalizers.Sequence(tidy + [normalizers.Lowercase()] * lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "removed", invert=True)
    counts = Counter()
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must hold strings, got {type(text).__name__}")
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
        counts.update(word for word, _ in pieces)
    if not counts:
        raise ValueError("texts must hold at least one word, got none")
    words = sorted(counts, key=lambda word: (-counts[word], word))
    vocabulary = [*SPECIALS, *words][:vocab_size]
    tokenizer.model = models.WordLevel(
        {token: i for i, token in enumerate(vocabulary)}, unk_token=SPECIALS[UNK]
    )
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def char_tokenizer(text: str) -> Tokenizer:
    """Make a tokenizer whose tokens are the distinct characters of a text, sorted.

    Nothing is lost: ``decode(encode(text).ids)`` is the text. There are no special tokens, and a
    character that the text did not hold makes `encode` raise an error.

    Args:
        text: what the characters are taken from.

    Returns:
        The tokenizer; the id of a character is its place in the sorted list.

    Raises:
        TypeError: if text is not a string.
        ValueError: if it is empty.

    Example:
        >>> tokenizer = char_tokenizer("to be, or not")
        >>> tokenizer.encode("be").ids, tokenizer.decode([2, 3])
        ([2, 3], 'be')
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}")
    if not text:
        raise ValueError("text must hold at least one character, got an empty string")
    vocabulary = {character: i for i, character in enumerate(sorted(set(text)))}
    # The library needs the name of an unknown token; this one is never in the vocabulary.
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def pad_batch(
    sequences: Sequence[Sequence[int]], pad_id: int = PAD
) -> tuple[Int[Tensor, "B N"], Int[Tensor, " B"]]:
    """Put lists of ids of different lengths into one tensor, filled up on the right.

    Args:
        sequences: B lists of integers.
        pad_id: what fills the short ones up.

    Returns:
        ids (B, N), N the largest length, and lengths (B,), both int64.

    Raises:
        TypeError: if an id or pad_id is not an integer, or a sequence is no list or tuple of them.
        ValueError: if pad_id is negative.

    Example:
        >>> pad_batch([[5, 6, 7], [8]])
        (tensor([[5, 6, 7],
                [8, 0, 0]]), tensor([3, 1]))

    Explained in: chapters/01_motivation, section "Trained on real sentences".
    """
    check_count("pad_id", pad_id)
    for i, sequence in enumerate(sequences):
        if not isinstance(sequence, list | tuple):
            raise TypeError(f"sequences[{i}] must be a list of ids, got {type(sequence).__name__}")
        for token in sequence:
            if isinstance(token, bool) or not isinstance(token, int):
                raise TypeError(f"sequences[{i}] must hold integers, got {type(token).__name__}")
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)  # (B,)
    longest = int(lengths.max()) if len(lengths) else 0
    ids = torch.full((len(lengths), longest), pad_id)  # (B, N)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence, dtype=torch.int64)
    return ids, lengths
