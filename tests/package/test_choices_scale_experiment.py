"""The runs behind chapter 08 that say what a nat is worth, and that give the frequencies away."""

import statistics

import torch

from tfbook import experiments
from tfbook.experiments import choices, choices_deep, choices_scale

LOG = experiments.log("choices_scale")


def test_each_part_has_as_many_seeds_as_it_says():
    counts = {
        f"{float(times) * choices_scale.STEPS:.0f}": each
        for times, each in choices_scale.TEXT.items()
    }
    found = {
        steps: {name: len(losses) for name, losses in each.items()}
        for steps, each in LOG["text"].items()
    }
    assert found == counts
    assert len(LOG["given"]) == len(LOG["pair"])


def test_more_steps_lower_the_loss_of_the_plain_model():
    short = experiments.log("choices")["models"]["plain"]["losses"]
    losses = [short, *(each["plain"] for each in LOG["text"].values())]
    means = [statistics.mean(each) for each in losses]
    assert means == sorted(means, reverse=True)


def test_given_frequencies_are_in_the_logits():
    ids = choices.letters("valid")[:64].view(1, 64)
    with torch.no_grad():
        torch.manual_seed(0)
        model = choices_deep.model_of("post-norm")
        before = model(ids)[0]
        after = choices_scale.given_frequencies(model)(ids)[0]
    added = (after - before)[0, 0]
    assert torch.allclose(after - before, added.expand_as(after), atol=1e-4)
    assert abs(added.exp().sum().item() - 1) < 1e-3
