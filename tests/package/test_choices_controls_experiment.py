"""The runs that say what chapter 08 can see at all: controls, other rates, the last norm."""

import statistics

import torch

from tfbook import experiments
from tfbook.experiments import choices, choices_controls

LOG = experiments.log("choices_controls")
OLD = experiments.log("choices")


def test_what_is_known_already_is_taken_over():
    for name, at in LOG["rates"].items():
        assert at["1"] == OLD["models"][name]["losses"][: len(at["1"])]
        for times in ("4", "10"):
            assert at[times][:2] == OLD["rates"][name][times][: len(at[times])]


def test_each_part_has_as_many_seeds_as_it_says():
    counts = LOG["counts"]
    for at in LOG["rates"].values():
        assert {times: len(losses) for times, losses in at.items()} == {
            times: counts[times] for times in at
        }
    for name, losses in LOG["controls"]["text"].items():
        assert len(losses) == counts.get(name, counts["text"])
    assert len(LOG["controls"]["width"]) == counts["width"]


def test_the_controls_are_seen():
    plain = statistics.mean(OLD["models"]["plain"]["losses"])
    assert statistics.mean(LOG["controls"]["text"]["plain"]) < plain - 0.2


def test_the_wider_model_is_the_plain_one_with_twice_its_width():
    wide, plain = choices_controls.model_of("twice the width"), choices.model_of("plain")
    for (path, one), (other_path, other) in zip(
        wide.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert path == other_path
        assert all(a in (b, 2 * b) for a, b in zip(one.shape, other.shape, strict=True))
    assert wide.embed.weight.shape[1] == 2 * plain.embed.weight.shape[1]


def test_the_gain_of_the_last_norm_begins_where_it_is_told():
    model = choices_controls.model_of("plain", gain=2.0)
    assert (model.stack.final_norm.weight == 2).all()


def test_all_models_of_a_seed_read_the_same_text(monkeypatch):
    seen = {}

    def rows(ids, context):
        return torch.arange(40 * (context + 1)).view(40, context + 1) % 60

    for name in ("plain", "8 experts"):
        model, batches = choices.model_of(name), []
        model.register_forward_pre_hook(lambda _, given, kept=batches: kept.append(given[0]))
        monkeypatch.setattr(choices, "rows", rows)
        choices.train(name, model, 3, seed=5, rate=0.01)
        seen[name] = torch.stack(batches)
    assert torch.equal(*seen.values())
