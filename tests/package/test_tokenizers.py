"""Text to ids and back."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tfbook import data
from tfbook.data import (
    BOS,
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


# Byte-level BPE

CORPORA = {
    "english": [english for english, _ in data.english_french("valid")[:41]],
    "french": [french for _, french in data.english_french("valid")[:41]],
    "shakespeare": [data.shakespeare()[:4001]],
    "scripts": [
        "数学は楽しい。数学は難しい。",
        "Ελλάδα, Ελλάδα",
        "👩‍🚀 👩‍🚀🚀 e\u0301 é",
        "a\tb\r\n\n b",
    ],
    "runs": ["aaaaaaa aaaaa aaa aa", "abababab babab", "zzz  zzz   zzz"],
}


@pytest.fixture(scope="module", params=CORPORA)
def bpe(request):
    """A corpus, what we learn from it, and what the library learns."""
    texts = CORPORA[request.param]
    return texts, BytePairs.train(texts, 331), byte_pair_tokenizer(texts, vocab_size=335)


def test_the_merges_are_those_of_the_library(bpe):
    _, ours, theirs = bpe
    model = json.loads(theirs.to_str())["model"]
    merges = [tuple(model["vocab"][token] - 4 for token in pair) for pair in model["merges"]]
    assert merges == list(ours.merges)
    assert theirs.get_vocab_size() == len(ours.tokens) + 4


def test_texts_are_cut_as_the_library_cuts_them(bpe):
    _, ours, theirs = bpe
    for text in [text for texts in CORPORA.values() for text in texts]:
        assert [i - 4 for i in theirs.encode(text).ids] == ours.encode(text)


ANY = BytePairs.train([text for texts in CORPORA.values() for text in texts], 401)
USED = byte_pair_tokenizer([text for texts in CORPORA.values() for text in texts], vocab_size=405)


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_any_text_comes_back(text):
    assert ANY.decode(ANY.encode(text)) == text
    assert USED.decode(USED.encode(text).ids) == text
    assert [i - 4 for i in USED.encode(text).ids] == ANY.encode(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "<bos> <pad><unk>", "\x00\x7f\x80\xad", "\u2028", "\U0010ffff", "e\u0301", " a  b"],
)
def test_odd_texts_come_back(text):
    assert ANY.decode(ANY.encode(text)) == text
    assert USED.decode(USED.encode(text).ids) == text


def test_without_merges_a_text_is_its_bytes():
    plain = BytePairs.train(["abc abc"], 256)
    assert plain.merges == () and sorted(plain.tokens) == [bytes([i]) for i in range(256)]
    text = "Ça 🚀"
    assert b"".join(plain.tokens[i] for i in plain.encode(text)) == text.encode()
    assert len(plain.encode(text)) == len(text.encode())


def test_the_first_merge_is_the_most_frequent_pair_and_of_two_the_first():
    assert BytePairs.train(["no not nor", "to to"], 257).tokens[256] == b"no"  # 3 against 2
    assert BytePairs.train(["to no", "no to"], 257).tokens[256] == b"no"  # 2 and 2: n before t


def test_each_token_is_two_others_laid_together_and_none_is_twice():
    assert len(ANY.merges) == 401 - 256
    for i, (a, b) in enumerate(ANY.merges, start=256):
        assert ANY.tokens[i] == ANY.tokens[a] + ANY.tokens[b] and max(a, b) < i
    assert len(set(ANY.tokens)) == len(ANY.tokens) == 401


def test_encoding_repeats_the_merges_in_the_order_of_training():
    words = "low lower lowest slow we were"
    tokenizer = BytePairs.train([words] * 2, 275)
    for word in words.split() + ["swerve", "lowlowest"]:
        parts = [bytes([byte]) for byte in word.encode()]
        for a, b in tokenizer.merges:  # all of them, on strings
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == (tokenizer.tokens[a], tokenizer.tokens[b]):
                    parts[i : i + 2] = [parts[i] + parts[i + 1]]
                i += 1
        assert [tokenizer.tokens[i] for i in tokenizer.encode(word)] == parts


def test_a_smaller_vocabulary_is_the_start_of_a_larger_bpe():
    texts = CORPORA["french"]
    small, large = BytePairs.train(texts, 267), BytePairs.train(texts, 281)
    assert large.merges[: len(small.merges)] == small.merges
    assert large.tokens[:267] == small.tokens


def test_more_merges_make_the_text_shorter():
    texts = CORPORA["english"]
    trained = [BytePairs.train(texts, n) for n in (256, 271, 283)]
    sizes = [sum(len(bpe.encode(text)) for text in texts) for bpe in trained]
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_pair_that_occurs_once_is_not_merged():
    assert BytePairs.train(["abcdefg"], 999).merges == ()
    assert byte_pair_tokenizer(["abcdefg"], vocab_size=999).get_vocab_size() == 260


def test_nothing_is_merged_across_words():
    tokens = BytePairs.train(["of the of the of the"], 999).tokens
    assert b" the" in tokens and b"of the" not in tokens


def test_the_tokenizer_of_the_library_keeps_special_tokens_apart():
    ids = USED.encode("<bos>").ids
    assert len(ids) > 1 and min(ids) > UNK
    assert USED.decode([BOS, *USED.encode("so").ids, EOS, PAD]) == "so"
    assert [USED.token_to_id(token) for token in SPECIALS] == [PAD, BOS, EOS, UNK]


def test_bytes_that_are_no_text_are_marked():
    half = ANY.tokens.index("é".encode()[:1])
    assert ANY.decode([half]) == "\ufffd"


@pytest.mark.untyped
def test_bad_input_of_byte_pairs_is_refused():
    for make in (
        lambda t, n: BytePairs.train(t, n),
        lambda t, n: byte_pair_tokenizer(t, vocab_size=n),
    ):
        with pytest.raises(TypeError, match="one string; write"):
            make("abc", 300)
        with pytest.raises(TypeError, match="must hold strings, got int"):
            make([3], 300)
        with pytest.raises(ValueError, match="vocab_size must be at least 2[56][06], got 255"):
            make(["abc"], 255)
        with pytest.raises(TypeError, match="vocab_size must be an integer"):
            make(["abc"], 300.0)
        with pytest.raises(ValueError, match=r"valid Unicode, got '\\ud800'"):
            make(["a\ud800"], 300)
    with pytest.raises(ValueError, match="valid Unicode"):
        ANY.encode("\ud800")
    with pytest.raises(TypeError, match="text must be a string, got bytes"):
        ANY.encode(b"abc")
    with pytest.raises(ValueError, match="ids must be below 401, got 401"):
        ANY.decode([401])
    with pytest.raises(TypeError, match="an id must be an integer, got float"):
        ANY.decode([1.0])
