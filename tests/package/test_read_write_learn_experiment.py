"""The times of a token that is read, written, learned from: what is timed, in parts that add up."""

import pytest
import torch

from tfbook import experiments, pretrained
from tfbook.experiments import read_write_learn

LOG = experiments.log("read_write_learn")


@pytest.mark.parametrize("what", ["reading", "writing", "alone", "learning"])
def test_the_parts_add_up_to_the_whole(what):
    whole, *parts = LOG[what].values()
    assert sum(parts) == pytest.approx(whole, abs=3e-6)
    assert all(seconds > 0 for seconds in parts)


def test_a_step_changes_the_model_by_what_adamw_does_and_leaves_no_gradient():
    torch.manual_seed(0)
    model = pretrained.load("smollm2-135m").model.train().requires_grad_(True)
    weight = next(model.parameters())
    before = weight.detach().clone()
    adamw = torch.optim.AdamW(model.parameters(), lr=read_write_learn.RATE, weight_decay=0.0)
    parts = read_write_learn.step_of(model, adamw, torch.arange(5)[None])
    moved = (weight.detach() - before).abs().max().item()
    assert 0 < moved <= 1.01 * read_write_learn.RATE + 1e-6
    assert all(parameter.grad is None for parameter in model.parameters())
    assert set(parts) == {"whole", *read_write_learn.PARTS}


def test_the_slowest_step_is_not_below_the_fastest():
    assert LOG["slowest"] >= LOG["learning"]["whole"]
