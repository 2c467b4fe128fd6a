"""The runs behind chapter 08 with 24 layers, and at rates of their own."""

import statistics

from tfbook import experiments
from tfbook.experiments import choices, choices_deep

LOG = experiments.log("choices_deep")
OLD = experiments.log("choices")


def test_each_part_has_as_many_seeds_as_it_says():
    for key, asked in (("rates", choices_deep.RATES), ("cold", choices_deep.COLD)):
        assert {
            name: {times: len(losses) for times, losses in at.items()}
            for name, at in LOG[key].items()
        } == {name: dict(at) for name, at in asked.items()}
    assert LOG["deep"].keys() == choices_deep.DEEP.keys()
    for name, starts in LOG["deep"].items():
        assert starts.keys() == choices_deep.STARTS.keys()
        for at in starts.values():
            assert [*at] == [f"{rate:g}" for rate in choices_deep.DEEP[name]]
            assert {len(losses) for losses in at.values()} == {len(LOG["deep_seeds"])}


def test_fresh_seeds_are_none_of_the_first():
    assert not set(LOG["fresh_seeds"]) & set(OLD["seeds"])
    for name, losses in LOG["fresh"].items():
        assert len(losses) == len(LOG["fresh_seeds"])
        assert not set(losses) & set(OLD["models"][name]["losses"])


def test_the_counts_are_those_of_the_models():
    for name, count in LOG["parameters"].items():
        assert sum(w.numel() for w in choices_deep.model_of(name).parameters()) == count


def test_the_deep_models_differ_in_the_place_of_the_norm():
    models = {name: choices_deep.model_of(name) for name in choices_deep.DEEP}
    wirings = {name: model.stack.blocks[0].ffn_residual for name, model in models.items()}
    assert {name: each.place for name, each in wirings.items()} == {
        "pre-norm": "pre", "post-norm": "post", "DeepNorm": "post",
    }  # fmt: skip
    assert wirings["post-norm"].multiplier == 1 > wirings["DeepNorm"].multiplier
    sizes = [
        models[name].stack.blocks[0].ffn.up_proj.weight.std() for name in ("post-norm", "DeepNorm")
    ]
    assert sizes[1] < sizes[0] / 2
    assert all(len(model.stack.blocks) == 24 for model in models.values())


def test_other_models_are_those_of_choices():
    for name in choices_deep.RATES:
        one, other = (module.model_of(name) for module in (choices_deep, choices))
        shapes = [[(path, w.shape) for path, w in m.named_parameters()] for m in (one, other)]
        assert shapes[0] == shapes[1]


def summed(model):
    return sum(weight.double().sum().item() for weight in model.parameters())


def test_a_short_run_is_the_same_again_and_the_start_matters(monkeypatch):
    monkeypatch.setattr(choices, "held_out", summed)
    runs = [choices_deep.deep_loss("DeepNorm", 3, 0.01, start, 3) for start in ("cold", "cold")]
    assert runs[0] == runs[1]
    monkeypatch.setitem(choices_deep.STARTS, "late", 2)
    assert choices_deep.deep_loss("DeepNorm", 3, 0.01, "late", 3) != runs[0]


def test_the_losses_are_those_of_models_that_learned():
    for losses in LOG["fresh"].values():
        assert statistics.mean(losses) < 2.4
    for at in LOG["deep"]["pre-norm"].values():
        assert all(statistics.mean(losses) < 2.9 for losses in at.values())
