"""The runs behind chapter 08 that cure post-norm, and that balance experts by a loss."""

import statistics

import torch

from tfbook import experiments
from tfbook.experiments import choices, choices_cures, choices_deep

LOG = experiments.log("choices_cures")
LONGER = experiments.log("choices_longer")


def test_each_part_has_as_many_seeds_as_it_says():
    assert tuple(LOG["deep"]) == choices_cures.CURES
    assert [float(each) for each in LOG["room"]] == [*choices_cures.STRENGTHS]
    for each in LOG["room"].values():
        assert len(each["losses"]) == len(each["dropped"]) == len(LOG["pair"])
    assert {len(losses) for losses in LOG["deep"].values()} == {len(LOG["pair"])}


def test_a_cure_changes_the_first_weights_that_it_names():
    made = {}
    for cure in choices_cures.CURES:
        torch.manual_seed(0)
        made[cure] = choices_cures.model_of(cure).stack.blocks[0]
    torch.manual_seed(0)
    old = choices_deep.model_of("post-norm").stack.blocks[0]
    warm, attention, all_parts = made.values()
    assert torch.equal(warm.ffn.up_proj.weight, old.ffn.up_proj.weight)
    assert torch.equal(attention.ffn.up_proj.weight, old.ffn.up_proj.weight)
    assert attention.mixer.v_proj.weight.std() < 0.8 * old.mixer.v_proj.weight.std()
    assert all_parts.ffn.up_proj.weight.std() < 0.8 * old.ffn.up_proj.weight.std()


def test_a_stronger_loss_drops_less_and_so_does_a_bias():
    weak, strong = (statistics.mean(each["dropped"]) for each in LOG["room"].values())
    nothing, bias = (statistics.mean(each["dropped"]) for each in LONGER["room"].values())
    assert max(strong, bias) < weak < nothing


def test_the_factor_of_the_balancing_loss_reaches_the_training():
    routers = []
    for strength in (0.0, 10.0):
        torch.manual_seed(0)
        model = choices.model_of("8 experts, loss")
        choices.train("8 experts, loss", model, 2, 0, 0.01, strength=strength)
        routers.append(model.stack.blocks[0].ffn.router.proj.weight.detach())
    assert not torch.allclose(*routers, atol=1e-4)
