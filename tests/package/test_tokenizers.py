"""Text to ids and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tfbook import data
from tfbook.tokenizers import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    char_tokenizer,
    pad_batch,
    word_tokenizer,
)

TEXTS = ["the cat saw the dog", "the dog ran", "a cat!"]


def pieces(text):
    return word_tokenizer([text], vocab_size=1000).encode(text).tokens


# Words


def test_the_special_tokens_come_first():
    tokenizer = word_tokenizer(TEXTS, vocab_size=20)
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert [tokenizer.id_to_token(i) for i in range(4)] == list(SPECIALS)


def test_words_follow_from_the_most_frequent_on_then_by_their_characters():
    tokenizer = word_tokenizer(TEXTS, vocab_size=100)
    words = [tokenizer.id_to_token(i) for i in range(4, tokenizer.get_vocab_size())]
    assert words == ["the", "cat", "dog", "!", "a", "ran", "saw"]


@pytest.mark.parametrize("vocab_size", [5, 7, 11, 50])
def test_the_vocabulary_is_no_larger_than_asked_for(vocab_size):
    tokenizer = word_tokenizer(TEXTS, vocab_size=vocab_size)
    assert tokenizer.get_vocab_size() == min(vocab_size, 11)
    assert sorted(tokenizer.get_vocab().values()) == list(range(min(vocab_size, 11)))


def test_a_smaller_vocabulary_is_the_start_of_a_larger_one():
    small, large = (word_tokenizer(TEXTS, vocab_size=n).get_vocab() for n in (6, 9))
    assert small.items() <= large.items()


def test_the_order_of_the_texts_does_not_matter():
    one, two = (word_tokenizer(texts, vocab_size=8) for texts in (TEXTS, TEXTS[::-1]))
    assert one.get_vocab() == two.get_vocab()


def test_a_rare_or_new_word_is_unknown():
    tokenizer = word_tokenizer(TEXTS, vocab_size=5)
    assert tokenizer.encode("the cat ate").ids == [4, UNK, UNK]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("L'icône s'affiche.", "l' icône s' affiche ."),
        ("Qu'est-ce qu'il dit ?", "qu' est - ce qu' il dit ?"),
        ("jusqu'à lorsqu'on puisqu'elle", "jusqu' à lorsqu' on puisqu' elle"),
        ("aujourd'hui d'abord", "aujourd'hui d' abord"),
        ("vue d’ensemble", "vue d' ensemble"),
        ("You don't; it's Anna's.", "you don 't ; it 's anna 's ."),
        ("we'll, they're, I've", "we 'll , they 're , i 've"),
        ("the users' settings", "the users ' settings"),
        ('say "yes"', 'say " yes "'),
        ("version 43.0, 3e étape", "version 43 . 0 , 3 e étape"),
        ("e\u0301te\u0301", "\u00e9t\u00e9"),
        ("  two\n spaces\t", "two spaces"),
        ("naïve façade Ærø", "naïve façade ærø"),
        ("日本 语!", "日本 语 !"),
    ],
)
def test_sentences_fall_into_words_endings_and_marks(text, expected):
    assert pieces(text) == expected.split()


@given(st.text())
def test_nothing_but_space_is_lost(text):
    tokenizer = word_tokenizer(["a", text], vocab_size=10_000)
    tidy = tokenizer.normalizer.normalize_str(text)
    encoding = tokenizer.encode(text)
    covered = [i for start, end in encoding.offsets for i in range(start, end)]
    assert len(covered) == len(set(covered))
    left = [character for i, character in enumerate(tidy) if i not in set(covered)]
    if len(tidy) == len(text) and not any(special in text for special in SPECIALS):
        assert not "".join(left).strip()
        assert UNK not in encoding.ids


def test_capitals_stay_when_asked():
    tokenizer = word_tokenizer(["The the"], vocab_size=9, lowercase=False)
    assert tokenizer.encode("The the THE").tokens == ["The", "the", "<unk>"]


def test_encoding_adds_no_special_token_and_decoding_leaves_them_out():
    tokenizer = word_tokenizer(TEXTS, vocab_size=20)
    ids = tokenizer.encode("the cat").ids
    assert min(ids) > UNK
    assert tokenizer.decode([BOS, *ids, EOS, PAD]) == "the cat"


def test_a_tokenizer_comes_back_from_its_file(tmp_path):
    tokenizer = word_tokenizer(["L'icône s'affiche.", "it's"], vocab_size=30)
    tokenizer.save(str(tmp_path / "words.json"))
    again = Tokenizer.from_file(str(tmp_path / "words.json"))
    assert again.encode("L'icône, it's").ids == tokenizer.encode("L'icône, it's").ids


def test_most_words_of_the_help_pages_are_known():
    for side in (0, 1):
        texts = [pair[side] for pair in data.english_french("train")]
        tokenizer = word_tokenizer(texts, vocab_size=1700)
        unseen = [pair[side] for pair in data.english_french("test")]
        ids = [token for text in unseen for token in tokenizer.encode(text).ids]
        assert ids.count(UNK) / len(ids) < 0.1


# Characters


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_characters_come_back_exactly(text):
    tokenizer = char_tokenizer(text)
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


def test_character_ids_are_places_in_the_sorted_alphabet():
    tokenizer = char_tokenizer("hello\nworld")
    alphabet = sorted(set("hello\nworld"))
    assert tokenizer.get_vocab() == {character: i for i, character in enumerate(alphabet)}


def test_shakespeare_has_its_63_characters():
    text = data.shakespeare("all")
    tokenizer = char_tokenizer(text)
    assert tokenizer.get_vocab_size() == 63
    assert tokenizer.decode(tokenizer.encode(text[:2000]).ids) == text[:2000]


def test_a_character_that_was_not_there_is_an_error():
    with pytest.raises(Exception, match="UNK"):
        char_tokenizer("abc").encode("abd")


# Batches


@given(st.lists(st.lists(st.integers(1, 99), max_size=7), max_size=5), st.integers(0, 3))
def test_a_padded_batch_holds_the_lists_and_padding_behind_them(sequences, pad_id):
    ids, lengths = pad_batch(sequences, pad_id)
    assert ids.dtype == lengths.dtype == torch.int64
    assert lengths.tolist() == [len(sequence) for sequence in sequences]
    assert ids.shape == (len(sequences), max(map(len, sequences), default=0))
    for row, sequence in zip(ids.tolist(), sequences, strict=True):
        assert row == sequence + [pad_id] * (len(row) - len(sequence))


# Bad input

BAD = [
    (lambda: word_tokenizer("one text", vocab_size=9), TypeError, r"write \[text\]"),
    (lambda: word_tokenizer([b"bytes"], vocab_size=9), TypeError, "strings, got bytes"),
    (lambda: word_tokenizer(["a"], vocab_size=4), ValueError, "vocab_size must be at least 5"),
    (lambda: word_tokenizer(["a"], vocab_size=9.0), TypeError, "vocab_size must be an integer"),
    (lambda: word_tokenizer(["a"], vocab_size=9, lowercase=0), TypeError, "lowercase must be True"),
    (lambda: word_tokenizer([], vocab_size=9), ValueError, "at least one word"),
    (lambda: word_tokenizer([" \n"], vocab_size=9), ValueError, "at least one word"),
    (lambda: char_tokenizer(["a"]), TypeError, "text must be a string, got list"),
    (lambda: char_tokenizer(""), ValueError, "at least one character"),
    (lambda: pad_batch([[1], 2]), TypeError, r"sequences\[1\] must be a list of ids, got int"),
    (lambda: pad_batch(["word"]), TypeError, r"sequences\[0\] must be a list of ids, got str"),
    (lambda: pad_batch([[1], [2.0]]), TypeError, r"sequences\[1\] must hold integers, got float"),
    (lambda: pad_batch([[True]]), TypeError, "integers, got bool"),
    (lambda: pad_batch([[1]], pad_id=-100), ValueError, "pad_id must be at least 0"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_input_gets_a_clear_error(call, error, message):
    with pytest.raises(error, match=message):
        call()
