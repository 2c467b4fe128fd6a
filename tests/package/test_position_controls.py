"""The controls of chapter 04's long test: each way of reading changes what it says, and no more."""

import pytest
import torch

from tfbook.experiments import extrapolation, position_controls
from tfbook.experiments.extrapolation import LENGTH, Reader
from tfbook.positions import LearnedPositions, T5Bias


def reader(scheme, n_ids=24, n_answers=8):
    torch.manual_seed(1)
    return Reader(scheme, n_ids, n_answers).eval()


@pytest.fixture
def ids():
    return torch.randint(24, (2, 150), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("scheme", ["rotary", "sinusoidal", "learned"])
@torch.no_grad()
def test_from_position_0_a_shifted_reader_is_the_model(scheme, ids):
    model = reader(scheme)
    torch.testing.assert_close(position_controls.shifted_reader(model, 0)(ids), model(ids))


@pytest.mark.parametrize(
    ("scheme", "moves"), [("rotary", False), ("sinusoidal", True), ("learned", True)]
)
@torch.no_grad()
def test_a_shift_is_seen_by_absolute_positions_alone(scheme, moves, ids):
    model = reader(scheme)
    if scheme == "learned":
        torch.nn.init.normal_(model.entrance.weight)
    shifted = position_controls.shifted_reader(model, 300)(ids)
    assert ((shifted - model(ids)).abs().max() > 1e-3) == moves


@torch.no_grad()
def test_a_window_hides_what_is_more_than_63_back(ids):
    """Two layers see twice 63 back: what stands before makes no difference to the last letter."""
    window, other = position_controls.window_reader(reader("rotary")), ids.clone()
    other[:, : 150 - 1 - 2 * (LENGTH - 1)] = 0
    torch.testing.assert_close(window(ids)[:, -1], window(other)[:, -1])
    other[:, 150 - 1 - 2 * (LENGTH - 1)] = 0
    ids[:, 150 - 1 - 2 * (LENGTH - 1)] = 1
    assert not torch.equal(window(ids)[:, -1], window(other)[:, -1])


@torch.no_grad()
def test_within_the_trained_length_window_and_clip_change_nothing(ids):
    model = reader("rotary")
    for way in (position_controls.window_reader, position_controls.clipped_reader):
        read, plain = way(model)(ids), model(ids)
        torch.testing.assert_close(read[:, :LENGTH], plain[:, :LENGTH])
        assert (read - plain)[:, LENGTH:].abs().max() > 1e-3


@torch.no_grad()
def test_clipped_distances_all_look_alike(ids):
    """With every distance counted as 0 the last letter does not know the order of the others."""
    model = reader("rotary")
    model.layers = model.layers[:1]
    clipped = position_controls.clipped_reader(model, most=0)
    turned = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], dim=1)
    torch.testing.assert_close(clipped(ids)[:, -1], clipped(turned)[:, -1])
    assert (model(ids) - model(turned))[:, -1].abs().max() > 1e-3


def test_a_table_begins_and_learns_as_it_is_told():
    begun = extrapolation.train("recall", "learned", steps=1, begun=1.0)
    assert begun.entrance.weight.std().item() == pytest.approx(1, rel=0.02)
    batch = [extrapolation.recall_batch(2, 8, torch.Generator().manual_seed(0))]
    model = reader("learned")
    before = model.entrance.weight.detach().clone()
    extrapolation.fit(model, batch, 1, 1e-3, 10.0, LearnedPositions)
    assert (model.entrance.weight - before).abs().max().item() == pytest.approx(1e-2, rel=0.05)
    model = reader("T5")
    table = model.layers[0].attention.position
    assert isinstance(table, T5Bias)
    before = table.weight.detach().clone()
    extrapolation.fit(model, batch, 1, 1e-3, 10.0, LearnedPositions)  # not this kind of table
    assert (table.weight - before).abs().max().item() == pytest.approx(1e-3, rel=0.05)


def test_longer_pieces_hold_as_many_letters_a_step(monkeypatch):
    seen = []
    monkeypatch.setattr(extrapolation, "fit", lambda model, batches, *_: seen.extend(batches))
    for length in (64, 512):
        extrapolation.train("recall", "rotary", steps=1, length=length)
    assert [ids.shape for ids, _ in seen] == [(32, 64), (4, 512)]


@torch.no_grad()
def test_clocks_are_clipped_one_by_one(ids):
    model, clipped = reader("rotary"), position_controls.clipped_reader
    torch.testing.assert_close(clipped(model, clocks=())(ids), model(ids))
    torch.testing.assert_close(clipped(model, clocks=tuple(range(6)))(ids), clipped(model)(ids))
    one = clipped(model, clocks=(2,))(ids)
    torch.testing.assert_close(one[:, :LENGTH], model(ids)[:, :LENGTH])
    assert (one - model(ids))[:, LENGTH:].abs().max() > 1e-4
    five = clipped(model, clocks=(0, 1, 3, 4, 5))(ids)
    assert (five - clipped(model)(ids))[:, LENGTH:].abs().max() > 1e-4
