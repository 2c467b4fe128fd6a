"""From text to ids and back: words, characters, byte-level BPE, and padding.

The makers return a `Tokenizer` of the `tokenizers` library, with its `encode(text).ids`,
`encode(text).tokens`, `decode(ids)`, `get_vocab()` and `save(path)`. :class:`BytePairs` is
byte-level BPE written for reading, which learns the same merges as the library.

Explained in: chapters/01_motivation_deeper, section "Trained on real sentences".
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Int
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from tfbook._checks import check_bool, check_list, check_number

__all__ = [
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
]

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

# GPT-2's pieces, across which nothing is merged: a word takes the space before it along.
GPT2_PIECES = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# All bytes in GPT-2's order: those that print (in Latin-1) first.
BYTES = sorted(range(256), key=lambda b: not (33 <= b <= 126 or 161 <= b <= 255 and b != 173))
PLACE = {byte: i for i, byte in enumerate(BYTES)}
RAREST = 2  # a pair that occurs less often is not merged


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

    Explained in: chapters/01_motivation_deeper, section "Trained on real sentences".
    """
    check_number("vocab_size", vocab_size, len(SPECIALS) + 1, whole=True)
    check_bool("lowercase", lowercase)
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, got one string; write [text]")
    check_list("texts", texts, sized=False)
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

    Explained in: chapters/13_language_deeper, section "Predicting the next character".
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


@dataclass(frozen=True)
class BytePairs:
    """Byte-level BPE: a text is its bytes in UTF-8, and frequent neighbours become one token.

    Training: cut the texts into pieces (words with the space before them), write each as bytes;
    join the pair of neighbouring tokens that is the most frequent into a new token; repeat.
    Encoding: cut and write as bytes again, and join in the order in which it was learned. Decoding:
    lay the bytes of the tokens together. As every byte is a token, any text can be encoded, and
    ``decode(encode(text)) == text``.

    Of equally frequent pairs the one with the lowest ids is joined first. Every merge counts all
    pairs anew, O(bytes of the distinct pieces); :func:`byte_pair_tokenizer` is made for use.

    Attributes:
        merges: pairs of ids in the order in which they were learned.
        tokens: the bytes of each id, first the 256 single ones, in the order of GPT-2.

    Example:
        >>> tokenizer = BytePairs.train(["low low low lower lower newest"], vocab_size=260)
        >>> tokenizer.tokens[256:]
        (b'lo', b'low', b' low', b'er')
        >>> [tokenizer.tokens[i] for i in tokenizer.encode("below")]
        [b'b', b'e', b'low']

    Source: [sennrich2016neural], [radford2019language]
    Explained in: chapters/13_language, section "Cutting text into tokens".
    """

    merges: tuple[tuple[int, int], ...]
    tokens: tuple[bytes, ...]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "BytePairs":
        """Learn merges until there are vocab_size tokens, or no pair occurs twice.

        Raises:
            TypeError: if texts is one string or holds something else, or vocab_size is no integer.
            ValueError: if vocab_size is below 256, or a text is no valid Unicode.
        """
        check_number("vocab_size", vocab_size, len(BYTES), whole=True)
        pieces = Counter(piece for text in _strings(texts) for piece in _pieces(text))
        words = {piece: [PLACE[byte] for byte in piece] for piece in pieces}
        merges, tokens = [], [bytes([byte]) for byte in BYTES]
        while len(tokens) < vocab_size:
            pairs = Counter()
            for piece, ids in words.items():
                for pair in zip(ids, ids[1:], strict=False):
                    pairs[pair] += pieces[piece]
            if not pairs:
                break
            best = min(pairs, key=lambda pair: (-pairs[pair], pair))
            if pairs[best] < RAREST:
                break
            words = {piece: _join(ids, best, len(tokens)) for piece, ids in words.items()}
            tokens.append(tokens[best[0]] + tokens[best[1]])
            merges.append(best)
        return cls(tuple(merges), tuple(tokens))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text.

        Raises:
            TypeError: if text is no string.
            ValueError: if it is no valid Unicode: half of a surrogate pair.
        """
        found = []
        for piece in _pieces(text):
            ids = [PLACE[byte] for byte in piece]
            while len(ids) > 1:
                pair = min(zip(ids, ids[1:], strict=False), key=self._joined)
                if pair not in self._new:
                    break
                ids = _join(ids, pair, self._new[pair])
            found += ids
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids; bytes that are no UTF-8 become U+FFFD, the mark of that.

        Raises:
            TypeError: if an id is no integer.
            ValueError: if there is no such id.
        """
        found = []
        for token in ids:
            check_number("an id", token, 0, whole=True)
            if token >= len(self.tokens):
                raise ValueError(f"ids must be below {len(self.tokens)}, got {token}")
            found.append(self.tokens[token])
        return b"".join(found).decode("utf-8", errors="replace")

    def _joined(self, pair: tuple[int, int]) -> float:
        """Return the id a pair becomes, which is lower the earlier it was learned."""
        return self._new.get(pair, float("inf"))

    @cached_property
    def _new(self) -> dict[tuple[int, int], int]:
        return {pair: len(BYTES) + rank for rank, pair in enumerate(self.merges)}


def byte_pair_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Make a byte-level BPE tokenizer with the `tokenizers` library; see :class:`BytePairs`.

    Ids 0 to 3 are <pad>, <bos>, <eos> and <unk> (never needed), 4 to 259 the bytes, then the
    merges. `encode` adds neither <bos> nor <eos>, and takes "<bos>" in a text for five characters
    (`encode_special_tokens`, a setting that `save` does not keep). `decode(ids)` leaves the special
    tokens out.

    Args:
        texts: what the merges are learned from.
        vocab_size: the largest number of tokens, at least 260.

    Returns:
        The tokenizer; its token strings show each byte as one printing character, a space as Ġ.

    Raises:
        TypeError: if texts is one string or holds something else, or vocab_size is no integer.
        ValueError: if vocab_size is below 260, or a text is no valid Unicode.

    Example:
        >>> texts = ["low low low lower lower newest"]
        >>> tokenizer = byte_pair_tokenizer(texts, vocab_size=264)
        >>> tokenizer.encode("below lowest").tokens
        ['b', 'e', 'low', 'Ġlow', 'e', 's', 't']

    Source: [sennrich2016neural], [radford2019language]
    Explained in: chapters/13_language, section "Cutting text into tokens".
    """
    check_number("vocab_size", vocab_size, len(SPECIALS) + len(BYTES), whole=True)
    texts = list(_strings(texts))
    # Each token but the bytes joins two others, so a text has fewer than bytes; the library would
    # make room for as many as it is told of.
    vocab_size = min(vocab_size, len(SPECIALS) + len(BYTES) + sum(len(_utf8(t)) for t in texts))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=RAREST,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.encode_special_tokens = True  # what is in a text is text
    return tokenizer


def _strings(texts: Iterable[str]) -> Iterable[str]:
    """Pass on each text, after a check that it is one."""
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, got one string; write [text]")
    check_list("texts", texts, sized=False)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must hold strings, got {type(text).__name__}")
        yield text


def _utf8(text: str) -> bytes:
    """Return the bytes of a text.

    Raises:
        ValueError: if it has half of a surrogate pair, which UTF-8 cannot write.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"text must be valid Unicode, got {text[error.start]!r}") from None


def _pieces(text: str) -> list[bytes]:
    """Cut a text where GPT-2 cuts it; laid together, the pieces are the text."""
    if not isinstance(text, str):
        raise TypeError(f"text must be a string, got {type(text).__name__}")
    _utf8(text)
    cut = pre_tokenizers.Split(Regex(GPT2_PIECES), "isolated")
    return [_utf8(piece) for piece, _ in cut.pre_tokenize_str(text)]


def _join(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """Replace each pair by the new id, from the left."""
    found, i = [], 0
    while i < len(ids):
        if tuple(ids[i : i + 2]) == pair:
            found.append(new)
            i += 2
        else:
            found.append(ids[i])
            i += 1
    return found


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

    Explained in: chapters/01_motivation_deeper, section "Trained on real sentences".
    """
    check_number("pad_id", pad_id, 0, whole=True)
    check_list("sequences", sequences)
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
