"""The run behind "Windows in some layers" of chapter 07: which layers see all pairs."""

from tfbook import experiments
from tfbook.experiments import fetching_layers, some_layers

LOG = experiments.log("fetching_layers")


def test_the_plans_are_parts_of_the_stack():
    middle, fetch, rest, both, third = (set(plan) for plan in fetching_layers.PLANS.values())
    assert middle == set(range(10, 20))
    assert fetch == set(range(17, 25))
    assert not fetch & rest
    assert fetch | rest == set(range(some_layers.DEPTH))
    assert both <= fetch
    assert not both & third
    assert both | third == set(some_layers.PLANS["every third"])
    assert not third & fetch


def test_the_texts_are_those_of_the_other_plans():
    settings = experiments.log("some_layers")["settings"]
    assert LOG["settings"] == {name: settings[name] for name in LOG["settings"]}


def test_the_log_has_every_plan():
    assert list(LOG["finished"]) == list(fetching_layers.PLANS)
    for plan, row in LOG["finished"].items():
        assert row["full"] == len(fetching_layers.PLANS[plan])
        assert all(0 <= right <= row["of"] for right in row["right"])
