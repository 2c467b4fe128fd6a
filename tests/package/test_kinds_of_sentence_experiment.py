"""Sentences of chapter 01 that are filled up or keep their order, and the gates of a recall."""

import random

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import kinds_of_sentence as kit
from tfbook.experiments import recall, recall_gates

SHAPES = [*kit.SHAPES, *kit.NEW]


@pytest.mark.parametrize("shape", kit.SHAPES)
def test_filled_up_all_sentences_are_equally_long_and_say_the_same(shape):
    plain = kit.pair_of(shape, random.Random(3))
    read, write = kit.pair_of(shape, random.Random(3), "filled")
    assert len(read) == kit.LONGEST and write == plain[1]
    assert [word for word in read if word != kit.FILLER] == plain[0]
    between = read[2 : read.index("was")]
    if shape and read.count(kit.FILLER) > 1:
        assert between[0] == between[-1] == kit.FILLER


@pytest.mark.parametrize("shape", SHAPES)
def test_with_the_order_kept_adjectives_stand_as_in_english(shape):
    read, write = kit.pair_of(shape, random.Random(3), "kept")
    _, turned = kit.pair_of(shape, random.Random(3))
    assert sorted(write) == sorted(turned)
    asked = [word for word in read if word in kit.language.ADJECTIVES]
    forms = {form: word for word, both in kit.language.ADJECTIVES.items() for form in both}
    assert [forms[word] for word in write if word in forms] == asked


def test_four_places_in_training_are_no_longer_than_the_rest():
    assert all(len(s) == 4 and kit.language.length_of(s) <= kit.LONGEST for s in kit.FOUR)
    assert all(kit.language.length_of(s) > kit.LONGEST for s in kit.language.BEYOND)


def test_what_is_written_before_is_moved_by_one():
    source, before, target = kit.batch((1,), 5, random.Random(0), "filled")
    assert source.shape == (5, kit.LONGEST + 1) and source.max() == len(kit.READ) - 1
    assert (before[:, 0] == 0).all() and torch.equal(before[:, 1:], target[:, :-1])


def test_structure_and_not_length_decides_with_one_vector():
    log = experiments.log("kinds_of_sentence")
    plain = experiments.log("sentence_length")
    name = "one vector, all of 22 words"
    assert set(log["lengths"][name]) == {kit.LONGEST}
    for row, known in zip(log["words"][name], plain["words"]["one vector"], strict=False):
        assert abs(sum(row) - sum(known)) / 3 < 0.06


@pytest.mark.parametrize("kind", recall_gates.KINDS)
def test_the_gates_are_those_of_the_layer(kind):
    torch.manual_seed(0)
    model = recall.Recaller(kind).double()
    x = torch.randn(2, 5, 32, dtype=torch.double)
    with torch.random.fork_rng():
        gates = recall_gates.keep_gates(model.mixer, x)
    assert gates.shape == x.shape and 0 < gates.min() and gates.max() < 1
    if kind == "GRU":  # what is not kept is new, between -1 and 1
        states = model.mixer(x)[0]
        new = (states[:, 1:] - gates[:, 1:] * states[:, :-1]) / (1 - gates[:, 1:])
        assert new.abs().max() < 1
    else:
        assert abs(gates.mean() - (0.98 if "open" in kind else 0.5)) < 0.05


def test_training_opens_the_gates_of_the_gru_and_not_of_the_lstm():
    log = experiments.log("recall_gates")
    ends = {kind: [runs[-1] for runs in log["kept"][kind]] for kind in recall_gates.KINDS}
    assert max(runs[0] for kind in ("GRU", "LSTM") for runs in log["kept"][kind]) < 0.01
    assert min(ends["GRU"]) > 0.3 and max(ends["LSTM"]) < 0.01
    assert min(log["recalled"]["GRU"][i][-1] for i in range(5)) > 0.95
