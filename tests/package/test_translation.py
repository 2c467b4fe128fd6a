"""The translation experiment: its batches, its measures, and what the shipped model does."""

import pytest
import torch

from tfbook import data, experiments
from tfbook.data import BOS, EOS, PAD, UNK
from tfbook.experiments import translation
from tfbook.recurrent import Seq2Seq

PAIRS = data.english_french("test")[:7]


@pytest.fixture(scope="module")
def words():
    return translation.tokenizers()


@pytest.fixture(scope="module")
def shipped():
    return translation.trained()


@pytest.fixture(scope="module")
def log():
    return experiments.log("translation")


# Batches and measures


def test_a_batch_holds_the_sentences_with_their_ends(words):
    english, french = words
    batch = translation.batch_of(PAIRS, english, french)
    for i, (source, target) in enumerate(PAIRS):
        read, written = english.encode(source).ids, french.encode(target).ids
        assert batch.source[i, : batch.lengths[i]].tolist() == [*read, EOS]
        assert [t for t in batch.target_in[i].tolist() if t != PAD] == [BOS, *written]
        assert [t for t in batch.target_out[i].tolist() if t != PAD] == [*written, EOS]
    # What goes in at a step is what was asked for at the step before.
    inner = batch.target_out[:, :-1].masked_fill(batch.target_out[:, :-1] == EOS, PAD)
    assert torch.equal(batch.target_in[:, 1:], inner)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_an_epoch_sees_every_pair_once(size):
    pairs = data.english_french("valid")
    generator = torch.Generator().manual_seed(0)
    epoch = list(translation.batches(pairs, size, generator))
    assert sorted(pair for batch in epoch for pair in batch) == sorted(pairs)
    assert max(map(len, epoch)) <= size
    assert epoch != list(translation.batches(pairs, size, generator))


def test_padding_costs_nothing_and_is_never_right(words):
    torch.manual_seed(0)
    model = Seq2Seq(1700, 1700, 5, 7).eval()
    loss, right = translation.losses(model, translation.batch_of(PAIRS, *words))
    for i, pair in enumerate(PAIRS):
        alone, alone_right = translation.losses(model, translation.batch_of([pair], *words))
        n = alone.shape[1]
        assert torch.allclose(loss[i, :n], alone[0], 0, 1e-4)
        assert torch.equal(right[i, :n], alone_right[0])
        assert loss[i, n:].abs().sum() == 0 and not bool(right[i, n:].any())


def test_a_new_model_is_as_surprised_as_an_even_guess(words):
    torch.manual_seed(0)
    measured = translation.measure(Seq2Seq(1700, 1700, 5, 7), PAIRS, words)
    assert measured["loss"] == pytest.approx(7.438, abs=0.3)  # log 1700
    assert measured["sentences"] == 7
    assert measured["tokens"] == sum(len(words[1].encode(f).ids) + 1 for _, f in PAIRS)


@pytest.mark.untyped
def test_the_overlap_counts_each_token_of_the_reference_once(words, monkeypatch):
    _, french = words
    pairs = [("", "le fichier et le bouton")]
    for written, expected in [
        (["le", "le", "le", "le"], 2 / 5),
        (["bouton", "le", "et", "le", "fichier", "!"], 1),
        ([], 0),
    ]:
        monkeypatch.setattr(translation, "translate", lambda *_, w=written: [{"target": w}])
        assert translation.overlap(None, pairs, (None, french)) == pytest.approx(expected)


def test_training_keeps_the_weights_of_the_best_epoch(words):
    torch.manual_seed(0)
    model = Seq2Seq(1700, 1700, 5, 7)
    curve = translation.train(model, PAIRS, PAIRS[:2], words, epochs=4, seed=0)
    assert len(curve["train"]) == len(curve["valid"]) == 4
    now = translation.measure(model, PAIRS[:2], words)["loss"]
    assert now == pytest.approx(min(curve["valid"]), abs=1e-3)


def test_a_model_without_attention_translates_without_weights(words):
    torch.manual_seed(0)
    entries = translation.translate(Seq2Seq(1700, 1700, 5, 7, attention=None), *words, ["Open it."])
    assert entries[0].keys() == {"source", "target"}


# The shipped run


def test_the_shipped_model_translates_as_the_log_says(shipped, log):
    asked = {
        tuple(shipped[1].encode(english).tokens): english
        for english, _ in data.english_french("test")
    }
    sentences = [asked[tuple(entry["source"][:-1])] for entry in log["examples"]]
    again = translation.translate(*shipped, sentences)
    # The last bits of a sum differ between processors, and so may one choice between equals.
    same = [a["target"] == b["target"] for a, b in zip(again, log["examples"], strict=True)]
    assert sum(same) >= len(same) - 1
    for entry, logged, equal in zip(again, log["examples"], same, strict=True):
        if equal:
            ours, theirs = torch.tensor(entry["weights"]), torch.tensor(logged["weights"])
            assert torch.allclose(ours, theirs, 0, 0.01)


def test_the_shipped_model_scores_as_the_log_says(shipped, log):
    model, *words = shipped
    low, high = log["buckets"][1]
    pairs = [
        pair
        for pair in data.english_french("test")
        if low <= len(words[0].encode(pair[0]).ids) <= high
    ]
    measured = translation.measure(model, pairs, tuple(words))
    logged = log["models"]["bahdanau"][0]["test"][1]
    assert measured["tokens"] == logged["tokens"]
    assert measured["accuracy"] == pytest.approx(logged["accuracy"], abs=0.005)
    assert measured["loss"] == pytest.approx(logged["loss"], abs=0.01)


def test_logged_alignments_are_rows_of_a_distribution(log):
    assert len(log["examples"]) >= 10
    for entry in log["examples"]:
        weights = torch.tensor(entry["weights"])
        assert weights.shape == (len(entry["target"]), len(entry["source"]))
        assert torch.allclose(weights.sum(-1), torch.ones(len(weights)), 0, 0.02)


def test_the_examples_are_unseen_sentences_of_known_words(shipped, log):
    seen = {" ".join(shipped[1].encode(e).tokens) for e, _ in data.english_french("train")}
    for entry in log["examples"]:
        assert UNK not in shipped[1].encode(" ".join(entry["source"][:-1])).ids
        assert " ".join(entry["source"][:-1]) not in seen


def test_every_seed_of_both_models_was_tested_on_the_same_tokens(log):
    rows = [entry["test"] for runs in log["models"].values() for entry in runs]
    assert len(rows) == 2 * len(log["seeds"])
    assert len({tuple(cell["tokens"] for cell in row) for row in rows}) == 1
    assert all(len(row) == len(log["buckets"]) for row in rows)
