"""The translators behind chapter 01: their language, their contexts, and what the log shows."""

import random

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import sentence_length as kit

LOG = experiments.log("sentence_length")


def mean(name, length, what="faultless"):
    rows = [r for n, r in zip(LOG["lengths"], LOG[what][name], strict=False) if n == length]
    return sum(map(sum, rows)) / sum(map(len, rows))


@pytest.mark.parametrize("shape", [*kit.SHAPES, *kit.BEYOND])
def test_a_pair_is_of_its_kind(shape):
    read, write = kit.pair_of(shape, random.Random(3))
    assert len(read) == kit.length_of(shape) == 7 + 3 * len(shape) + sum(shape)
    assert len(write) == len(read) + 1 and set(read) <= set(kit.READ)
    assert set(write) <= set(kit.WRITE)


def test_adjectives_follow_their_noun_in_the_opposite_order():
    read, write = kit.pair_of((2,), random.Random(3))
    first, second = (kit.ADJECTIVES[word] for word in read[4:6])
    assert write[5] in second and write[6] in first


def test_sentences_of_a_kind_are_counted():
    assert kit.number_of(()) == 8**4
    assert kit.number_of((2,)) == 8**4 * 4 * 8 * 8 * 7


def test_as_ids_moves_what_was_written_one_place():
    source, before, target = kit.batch((1,), 5, random.Random(0))
    assert (source[:, -1] == 0).all() and (target[:, -1] == 1).all()
    assert (before[:, 0] == 0).all() and torch.equal(before[:, 1:], target[:, :-1])


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in kit.RUNS.values()}))
def test_a_decoder_does_not_see_what_it_has_to_write(kind):
    torch.manual_seed(0)
    model = kit.model_of(kind).double()
    source, before, _ = kit.batch((0,), 2, random.Random(1))
    changed = before.clone()
    changed[:, 5:] = 2
    logits, others = model(source, before), model(source, changed)
    assert logits.shape == (2, before.shape[1], len(kit.WRITE))
    assert torch.allclose(logits[:, :5], others[:, :5])
    assert not torch.allclose(logits[:, 5:], others[:, 5:])


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind must be one of one vector.*got 'x'"):
        kit.model_of("x")


def test_read_forwards_only_the_vector_has_the_same_size():
    for both in (True, False):
        h, c = kit.Encoder(6, both)(torch.zeros(2, 4, dtype=torch.long))
        assert h.shape == (2, 4, 12) and c.shape == (2, 12)


def test_a_decoder_that_is_not_told_begins_with_zeros():
    assert kit.LooksBack(8, told=False).begin(torch.randn(3, 16)).abs().max() == 0
    assert kit.LooksBack(8).begin(torch.randn(3, 16)).abs().max() > 0


def test_one_vector_fails_later_when_it_is_trained_longer():
    runs = ["one vector", "one vector, more steps", "one vector, most steps"]
    for length in (12, 17, 22):
        found = [mean(name, length) for name in runs]
        assert found == sorted(found)
    assert mean(runs[0], 17) < 0.05 and 0.6 < mean(runs[2], 17) and mean(runs[2], 22) < 0.2


def test_one_wrong_word_spoils_a_sentence_and_one_place():
    _, _, target = kit.batch((1,), 4, random.Random(77))
    said = target.clone()
    said[0, 2] = (said[0, 2] + 1) % len(kit.WRITE)

    model = kit.model_of("one vector")
    model.forward = lambda *_: torch.nn.functional.one_hot(said, len(kit.WRITE)).float()
    faultless, words, places = kit.shares(model, (1,), 4)
    assert faultless == 0.75 and words == pytest.approx(1 - 1 / target.numel())
    assert places == [0.75 if place == 2 else 1.0 for place in range(target.shape[1])]


def test_neither_reading_backwards_nor_more_parameters_explain_it():
    forwards = torch.tensor(LOG["places"]["one vector, read forwards only"]).mean(dim=0)
    assert forwards[1] > 0.95  # the document, first of all nouns
    assert max(forwards[[4, 5, 6]].mean(), forwards[[14, 15, 16]].mean()) < 0.55
    assert abs(mean("one vector", 12) - mean("one vector, as many parameters", 12)) < 0.1


def test_looking_back_needs_no_vector_and_fails_beyond_its_lengths():
    assert mean("looks back", 22) > 0.95
    assert mean("looks back, begins with zeros", 22) > 0.9
    assert max(mean("looks back", n) for n in (23, 25, 27)) < 0.3
