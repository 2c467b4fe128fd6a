"""The runs behind chapter 08 at rates and steps of the bias that were not yet tried."""

import statistics

from tfbook import experiments
from tfbook.experiments import choices_longer, choices_searched

LOG = experiments.log("choices_searched")


def test_each_model_of_24_layers_has_the_same_rates_and_seeds():
    for tried in choices_searched.together().values():
        assert [float(rate) for rate in tried] == [*choices_searched.TRIED]
        assert {len(losses) for losses in tried.values()} == {len(LOG["pair"])}


def test_post_norm_learns_at_none_of_the_rates_and_pre_norm_at_all():
    found = choices_searched.together()
    assert min(min(losses) for losses in found["post-norm"].values()) > 3.3
    assert max(max(losses) for losses in found["pre-norm"].values()) < 3.0


def test_a_larger_step_of_the_bias_drops_more():
    usual = experiments.log("choices_longer")["room"][choices_searched.BIAS]
    steps = (LOG["room"]["0.003"], usual, LOG["room"]["0.03"])
    low, middle, high = (statistics.mean(each["dropped"]) for each in steps)
    assert low < middle < high


def test_the_step_of_the_bias_reaches_the_training():
    few, many = (
        choices_longer.room_of(choices_searched.BIAS, 0, 0.01, 2, bias_step=step)
        for step in (0.0, 1.0)
    )
    assert few != many
