"""The runs behind chapter 08 that came after `choices`: fresh seeds, rivals, warm-up, last norm."""

import statistics

from tfbook import experiments
from tfbook.experiments import choices_again, choices_controls

LOG = experiments.log("choices_again")
OLD = experiments.log("choices")
CONTROLS = experiments.log("choices_controls")


def test_what_is_known_already_is_taken_over():
    assert LOG["rivals"]["twice the width"]["1"][:2] == CONTROLS["controls"]["width"]
    assert LOG["gain"]["2"][:2] == CONTROLS["gain"]
    assert LOG["rates"]["DeepNorm"]["1"] == OLD["models"]["DeepNorm"]["losses"]


def test_each_part_has_as_many_seeds_as_it_says():
    for key, asked in (
        ("rivals", choices_again.RIVALS), ("cold", choices_again.COLD),
        ("rates", choices_again.RATES),
    ):  # fmt: skip
        assert {
            name: {times: len(losses) for times, losses in at.items()}
            for name, at in LOG[key].items()
        } == {name: dict(at) for name, at in asked.items()}
    assert {gain: len(losses) for gain, losses in LOG["gain"].items()} == choices_again.GAINS


def test_fresh_seeds_are_none_of_the_first():
    assert not set(LOG["fresh_seeds"]) & set(OLD["seeds"])
    for name, losses in LOG["fresh"].items():
        seeds = choices_again.SOME if name in choices_again.OTHERS else LOG["fresh_seeds"]
        assert len(losses) == len(seeds)
        assert not set(losses) & set(OLD["models"][name]["losses"])


def test_all_models_but_four_have_fresh_seeds():
    assert set(LOG["fresh"]) == set(OLD["models"]) - set(choices_again.ELSEWHERE)


def test_the_rivals_own_what_one_shared_layer_owns():
    shared = OLD["models"]["one shared layer"]["parameters"]
    assert LOG["parameters"]["single layer"] == shared
    assert abs(LOG["parameters"]["narrow"] - shared) < 0.01 * shared


def test_the_counts_are_those_of_the_models():
    for name, count in LOG["parameters"].items():
        assert sum(w.numel() for w in choices_again.model_of(name).parameters()) == count


def test_the_wider_model_is_the_one_of_the_controls():
    sizes = [
        sum(w.numel() for w in m.model_of("twice the width").parameters())
        for m in (choices_again, choices_controls)
    ]
    assert sizes[0] == sizes[1]


def test_a_short_run_is_the_same_again():
    one, other = (choices_again.loss_of("narrow", 3, "1", 3) for _ in range(2))
    assert one == other
    assert choices_again.loss_of("narrow", 3, "1", 3, warmup=2) != one


def test_the_losses_are_those_of_models_that_learned():
    for losses in LOG["fresh"].values():
        assert statistics.mean(losses) < 2.4
