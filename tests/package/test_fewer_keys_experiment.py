"""The run behind "Facts for each feature" of chapter 07: fewer keys, the same features."""

import torch

from tfbook import experiments
from tfbook.experiments import fewer_keys, pairs_recalled

LOG = experiments.log("fewer_keys")


def test_the_log_has_every_number_of_keys_and_every_seed():
    settings = LOG["settings"]
    assert list(LOG["accuracy"]) == [str(many) for many in settings["keys"]]
    assert all(len(right) == len(settings["seeds"]) for right in LOG["accuracy"].values())


def test_with_all_keys_it_is_the_run_of_the_chapter():
    before = experiments.log("pairs_recalled")
    at = before["settings"]["counts"].index(fewer_keys.FACTS)
    known = before["accuracy"][fewer_keys.WAY][at][: len(LOG["settings"]["seeds"])]
    for now, then in zip(LOG["accuracy"]["256"], known, strict=True):
        assert abs(now - then) < 0.02


def test_lists_draw_from_few_keys():
    told, _, asked, _ = pairs_recalled.lists(8, 16, torch.Generator().manual_seed(0), keys=16)
    assert torch.equal(told.sort(-1).values, torch.arange(16).expand(8, 16))
    assert asked.shape == (8, pairs_recalled.QUESTIONS)
