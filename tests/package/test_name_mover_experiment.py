"""The run behind "From layers to heads": shares against the package's patching, and the log."""

import pytest
import torch

from tfbook import experiments, interpret, pretrained
from tfbook.experiments import name_mover

LOG = experiments.log("name_mover")


@pytest.fixture(scope="module")
def language():
    return pretrained.load("smollm2-135m")


def test_shares_are_those_of_the_package(language):
    model, pair = language.model, name_mover.the_pair(language)
    ends = (model, pair.clean, pair.corrupted, pair.metric)
    layer, place = 28, 13
    grid = name_mover.grid_of(model, pair, [layer])
    stream = interpret.Site(f"stack.blocks.{layer}.resid_pre", places=[place])
    assert grid["stream"][0][place] == pytest.approx(
        interpret.activation_patching(*ends, [stream]).item(), abs=2e-4
    )
    z = interpret.Site(f"stack.blocks.{layer}.mixer.z", places=[place])
    assert grid["attention"][0][place] == pytest.approx(
        interpret.activation_patching(*ends, [z]).item(), abs=2e-4
    )
    heads = name_mover.heads_of(model, pair, [layer])
    found = interpret.activation_patching(
        *ends, [interpret.head_site(layer, head) for head in (0, 4)]
    )
    assert [heads[0][0], heads[0][4]] == pytest.approx(found.tolist(), abs=2e-4)
    assert [grid[kind][0][:9] for kind in name_mover.KINDS] == [[0.0] * 9] * 3
    assert grid["stream"] == [pytest.approx(row, abs=2e-3) for row in [LOG["grid"]["stream"][28]]]


def test_the_log_holds_what_the_run_says():
    settings = LOG["settings"]
    assert list(LOG["grid"]) == list(name_mover.KINDS)
    for grid in LOG["grid"].values():
        assert torch.tensor(grid).shape == (30, 14)
    late = settings["late"]
    assert torch.tensor(LOG["heads"]).shape == (settings["templates"], len(late), 9)
    assert torch.tensor(LOG["feeders"]).shape == (len(settings["early"]), 9)
    mean = torch.tensor(LOG["heads"]).mean(0)
    layer, head, share = LOG["top"][0]
    assert share == pytest.approx(float(mean.max()), abs=1e-3)
    assert share == pytest.approx(float(mean[late.index(layer), head]), abs=1e-3)
    assert all(clean > 0 > corrupted for clean, corrupted in LOG["leads"])


def test_nothing_is_cut_where_all_heads_are_kept_and_controls_do_little():
    kept = {int(n): torch.tensor(leads) for n, leads in LOG["kept"].items()}
    assert {len(leads) for leads in kept.values()} == {16}
    assert (kept[270] > 0).all() and kept[268].mean() > kept[270].mean() > kept[16].mean()
    right, first, again = LOG["looks"]["270"]
    assert right > max(first, again)
    controls = LOG["controls"]
    assert controls["together"] > 2 * max(abs(share) for share in controls["random heads"])
    assert len(controls["other prompts"]) == name_mover.OTHERS
    assert all(0 < share < controls["together"] for share in controls["other prompts"])
    assert set(LOG["off"]) == set(name_mover.HOW)


def test_names_and_their_attributions_are_those_of_the_prompts(language):
    model, pair = language.model, name_mover.the_pair(language)
    words = name_mover.words_of(model, pair)
    assert list(words) == list(LOG["words"])
    assert words["rollout"]["found"] == [0]
    assert words["taken away"]["right"][0] == pytest.approx(6.0, abs=0.3)
    assert all(0 <= n <= 3 for each in LOG["words"].values() for n in each["found"])


def test_with_nothing_cut_the_lead_is_that_of_the_model(language):
    model, pair = language.model, name_mover.the_pair(language)
    leads, looks = name_mover.led_and_looked(model, pair)
    assert leads[0] == pytest.approx(pair.metric(model(pair.clean)[0]), abs=2e-3)
    seen = interpret.patterns(model, pair.clean)[23, 0, [0, 1, 7], -1]
    assert looks == pytest.approx([float(seen[:, i].mean()) for i in (1, 3, 9)], abs=1e-3)
