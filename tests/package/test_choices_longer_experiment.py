"""The runs behind chapter 08 with more text and without the last norm, and looks inside."""

import statistics

from tfbook import experiments
from tfbook.experiments import choices, choices_deep, choices_longer

LOG = experiments.log("choices_longer")
OLD = experiments.log("choices")


def test_each_part_has_as_many_seeds_as_it_says():
    assert {name: len(losses) for name, losses in LOG["text"].items()} == choices_longer.TEXT
    assert len(LOG["only_last"]) == len(LOG["seeds"])
    for key, asked in (("deep", choices_longer.DEEP), ("rates", choices_longer.RATES)):
        assert LOG[key].keys() == asked.keys()
        for name, at in LOG[key].items():
            assert len(at) == len(asked[name])
            assert {len(losses) for losses in at.values()} == {len(LOG["pair"])}
    for each in LOG["room"].values():
        assert len(each["losses"]) == len(each["dropped"]) == len(LOG["pair"])
    assert {len(found) for found in LOG["quiet"].values()} == {len(LOG["pair"])}


def test_only_the_last_norm_is_a_model_without_norms_but_one():
    model = choices_longer.model_of(choices_longer.ONLY_LAST)
    plain, bare = (choices.model_of(name) for name in ("plain", "no norms"))
    norms = [path for path, _ in model.named_parameters() if "norm" in path]
    assert norms == [path for path, _ in plain.named_parameters() if "final_norm" in path]
    sizes = [sum(w.numel() for w in each.parameters()) for each in (model, bare)]
    assert sizes[0] == sizes[1] + choices.WIDTH


def test_deep_models_are_those_of_choices_deep_but_for_one_thing():
    bare, small = map(choices_longer.deep_of, choices_longer.DEEP)
    pre, post = (choices_deep.model_of(name) for name in ("pre-norm", "post-norm"))
    assert bare.stack.final_norm is None is not pre.stack.final_norm
    assert small.stack.blocks[0].ffn_residual.multiplier == 1
    sizes = [model.stack.blocks[0].ffn.up_proj.weight.std() for model in (small, post)]
    assert sizes[0] < sizes[1] / 2


def test_a_gate_never_leaves_weight_over_and_a_sink_does():
    found = {name: choices_longer.inside(name, choices.model_of(name)) for name in LOG["quiet"]}
    assert found["plain"]["sink"] == found["gated output"]["sink"] == 0
    assert 0 < found["learned sink"]["sink"] < 0.1  # one of many keys, and at 0
    assert 0.4 < found["gated output"]["gate"] < 0.6


def test_a_short_run_is_the_same_again_and_drops_what_finds_no_room():
    one, other = (choices_longer.room_of("8 experts", 3, 0.01, 3) for _ in range(2))
    assert one == other
    assert 0 < one[1] < 1


def test_a_bias_drops_less():
    dropped = [statistics.mean(each["dropped"]) for each in LOG["room"].values()]
    assert dropped[1] < dropped[0] / 2
