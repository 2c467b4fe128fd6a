"""The run behind "Superposition": what is trained, and what the log shows."""

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import superposition
from tfbook.interpret.superposition import expected_loss

LOG = experiments.log("superposition")
SET = LOG["settings"]


def test_states_are_named_by_what_is_long():
    assert superposition.state_of([1.0, -0.9]) == "both"
    assert superposition.state_of([-1.0, 0.1]) == "first"
    assert superposition.state_of([0.1, 1.0]) == "second"
    assert superposition.state_of([0.1, 0.2]) == "none"


def test_a_smoke_run_has_the_shape_of_the_log():
    log, weights = superposition.run(**superposition.SMOKE)
    assert weights is None and log["settings"].keys() == SET.keys()
    assert torch.tensor(log["phases"]["weights"]).shape == (1, 1, 2, 2)
    assert torch.tensor(log["packed"]["kept"]).shape == (1, 2)


def test_the_log_has_every_density_and_every_seed():
    seeds, wide = len(LOG["seeds"]), len(SET["sparser"])
    grid = (len(SET["ratios"]), len(SET["densities"]))
    assert torch.tensor(LOG["phases"]["weights"]).shape == (len(LOG["starts"]), *grid, 2)
    assert torch.tensor(LOG["phases"]["losses"]).shape == (len(LOG["starts"]), *grid)
    assert torch.tensor(LOG["polygons"]["norms"]).shape == (seeds, wide, SET["five"][0])
    assert torch.tensor(LOG["packed"]["kept"]).shape == (seeds, wide)
    assert LOG["parameters"] == SET["many"][0] * (SET["many"][1] + 1)


def test_the_best_of_the_seeds_is_no_worse_than_the_solutions_by_hand():
    """One feature alone, and the pair (1, −1): training finds one of them, or something better."""
    best = torch.tensor(LOG["phases"]["losses"]).amin(0)
    for row, ratio in zip(best, SET["ratios"], strict=True):
        for found, p in zip(row, SET["densities"], strict=True):
            importance = torch.tensor([1.0, ratio])
            alone = expected_loss(
                torch.tensor([[1.0, 0.0]]), torch.tensor([0.0, p / 2]), p, importance
            )
            pair = expected_loss(torch.tensor([[1.0, -1.0]]), torch.zeros(2), p, importance)
            assert found <= min(alone, pair) * 1.02 + 2e-4


def test_sparser_features_are_packed_more_densely():
    kept = torch.tensor(LOG["packed"]["kept"]).mean(0)
    at = {p: each.item() for p, each in zip(SET["sparser"], kept, strict=True)}
    assert at[0.3] == pytest.approx(2, abs=0.05)  # opposite pairs
    assert at[0.3] < at[0.2] < at[0.05] == pytest.approx(4, abs=0.05)  # all of them
