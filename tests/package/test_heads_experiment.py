"""The experiment on heads: what it counts, by hand, and the shipped model against its log."""

import pytest
import torch

from tfbook import data, experiments
from tfbook.experiments import heads
from tfbook.teaching.explorables import unpack_weights

CHARACTERS = " abn"
BANANA = heads.encode("banana bab ", CHARACTERS)[None]


def keys_of(relation, query):
    """The keys that stand in a relation to one query of 'banana bab '."""
    return heads.relations(BANANA, CHARACTERS)[relation][0, query].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    "relation, query, keys",
    [
        ("itself", 3, [3]),
        ("one back", 3, [2]),
        ("one back", 0, []),
        ("two back", 3, [1]),
        ("two back", 1, []),
        ("first in the window", 5, [0]),
        ("same character", 5, [1, 3]),
        ("after the same", 5, [2, 4]),
        ("after the same", 3, [2]),
        ("earlier in the word", 4, [0, 1, 2, 3]),
        ("earlier in the word", 9, [7, 8]),
        ("earlier in the word", 6, []),
        ("earlier in the word", 10, []),
        ("spaces and signs", 9, [6]),
        ("spaces and signs", 6, []),
    ],
)
def test_a_relation_holds_between_the_right_characters(relation, query, keys):
    assert keys_of(relation, query) == keys


def test_no_relation_reaches_into_the_future():
    for table in heads.relations(BANANA, CHARACTERS).values():
        assert not table.triu(1).any()


def test_a_head_that_looks_one_back_has_all_its_share_there():
    ids = torch.randint(4, (3, 13))
    weights = torch.zeros(3, 2, 5, 13, 13)
    weights[:, :, 0] = torch.eye(13).roll(-1, dims=1)
    weights[:, :, 1] = torch.eye(13)
    shares = heads.head_shares(weights, ids, CHARACTERS)
    assert torch.equal(shares["one back"][:, 0], torch.ones(2))
    assert torch.equal(shares["one back"][:, 1], torch.zeros(2))
    assert torch.equal(shares["itself"][:, 1], torch.ones(2))


def test_windows_are_followed_by_their_targets():
    ids = torch.arange(1000)
    window, target = heads.windows_of(ids, 7)
    assert window.shape == (7, heads.CONTEXT)
    assert torch.equal(target, window + 1)
    assert window[0, 0] == 0
    assert target[-1, -1] == 999


def test_unknown_characters_are_named():
    with pytest.raises(ValueError, match=r"got \['x'\]"):
        heads.encode("box", "bo")


def test_the_shipped_model_has_the_logged_losses():
    log = experiments.log("heads")
    model, characters = heads.trained()
    ids = heads.encode(data.shakespeare("valid"), characters)
    window, target = heads.windows_of(ids, log["settings"]["windows"])
    chosen = str(log["settings"]["chosen"])
    loss = heads.held_out_loss(model, window, target)
    assert loss == pytest.approx(log["held_out_loss"][chosen][0], abs=1e-3)
    switch = torch.ones(2, log["settings"]["chosen"])
    switch[0, 3] = 0.0
    without = heads.held_out_loss(model, window, target, switch)
    assert without == pytest.approx(log["without_head"][0][0][3], abs=1e-3)


def test_the_shipped_model_does_not_see_the_future():
    model, characters = heads.trained()
    ids = heads.encode("Now it is the time of night", characters)[None]
    other = ids.clone()
    other[:, 20:] = 5
    with torch.no_grad():
        change = (model(ids) - model(other)).abs().amax(dim=-1)[0]
        assert not model.weights(ids).triu(1).any()
    assert change[:20].max() < 1e-4
    assert change[20:].min() > 1e-2


def test_the_shipped_passages_are_what_the_shipped_model_reads():
    model, characters = heads.trained()
    read = heads.read_passages(model, characters)
    for ours, shipped in zip(read, experiments.log("heads")["passages"], strict=True):
        assert ours["tokens"] == shipped["tokens"]
        again = torch.tensor(unpack_weights(ours["weights"]))
        assert torch.allclose(again, torch.tensor(unpack_weights(shipped["weights"])), atol=1e-3)
