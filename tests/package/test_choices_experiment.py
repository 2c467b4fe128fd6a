"""The runs behind chapter 08: what differs between the models, and what the log shows."""

import statistics

import pytest
import torch
from torch.nn.functional import cross_entropy

from tfbook import experiments
from tfbook.data import rows
from tfbook.experiments import choices
from tfbook.experiments.warmup import letters

LOG = experiments.log("choices")
MODELS = LOG["models"]
PAID = ("SwiGLU", "gated output", "QK-norm", "learned sink", "parallel", "RMSNorm", "post-norm")


@pytest.mark.parametrize("name", choices.CHANGES)
def test_the_log_counts_what_a_model_has(name):
    assert {key: MODELS[name][key] for key in ("parameters", "active", "flops")} == choices.prices(
        name
    )


@pytest.mark.parametrize("name", PAID)
def test_what_a_change_brings_is_paid_for(name):
    for key in ("parameters", "flops"):
        assert MODELS[name][key] == pytest.approx(MODELS["plain"][key], rel=0.01)


def test_experts_work_as_the_plain_network_and_own_more():
    for name in (name for name in MODELS if "experts" in name or "fine" in name):
        assert MODELS[name]["flops"] == pytest.approx(MODELS["plain"]["flops"], rel=0.03)
        assert MODELS[name]["active"] == pytest.approx(MODELS["plain"]["active"], rel=0.03)
        assert MODELS[name]["parameters"] > 2.8 * MODELS["plain"]["parameters"]


def test_the_counted_flops_are_those_of_the_config():
    """Of the plain model, whose config counts matrix products as PyTorch does."""
    assert MODELS["plain"]["flops"] == choices.config_of("plain").flops(64) // 64


@pytest.mark.parametrize("name", choices.CHANGES)
def test_scores_hide_the_future(name):
    torch.manual_seed(0)
    model, ids = choices.model_of(name).eval(), torch.arange(20)[None]
    changed = ids.clone()
    changed[:, 11:] += 3
    with torch.no_grad():
        before, after = (model(x)[0] for x in (ids, changed))
    torch.testing.assert_close(before[:, :11], after[:, :11], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(before[:, 11], after[:, 11])


def test_all_models_have_their_seeds_and_finite_losses():
    for name, each in MODELS.items():
        count = LOG["most_seeds"] if name == "plain" else len(LOG["seeds"])
        assert len(each["losses"]) == count
        assert all(1.5 < loss <= choices.LARGEST for loss in each["losses"])


def test_the_rate_is_the_best_of_those_that_were_tried():
    tried = {float(rate): loss for rate, loss in LOG["tried"].items()}
    assert LOG["settings"]["rate"] == min(tried, key=tried.get)
    assert min(tried) < LOG["settings"]["rate"] < max(tried)


def test_shares_of_experts_sum_to_one():
    for name, each in LOG["loads"].items():
        assert name in choices.WAYS
        assert all(sum(piece) == pytest.approx(1, abs=1e-3) for piece in each["shares"])
        assert len(each["shares"]) == len(each["fullest"]) == LOG["settings"]["steps"] // 20


def test_a_bias_ends_with_loads_that_are_more_alike():
    ends = {name: statistics.mean(each["fullest"][-3:]) for name, each in LOG["loads"].items()}
    assert ends["8 experts, bias"] < ends["8 experts"]


def test_the_shipped_weights_give_the_loss_of_the_log():
    model = choices.model_of("8 experts, bias")
    model.load_state_dict(experiments.weights("choices"))
    assert choices.held_out(model) == pytest.approx(
        MODELS["8 experts, bias"]["losses"][0], abs=0.001
    )
    windows = rows(letters("valid"), 64)[:85]
    with torch.no_grad():
        loss = cross_entropy(model.eval()(windows[:, :-1])[0].mT, windows[:, 1:])
    assert loss < 3


def test_a_short_run_is_the_same_again():
    torch.manual_seed(0)
    one, other = [], []
    for kept in (one, other):
        torch.manual_seed(0)
        model = choices.model_of("8 experts, bias")
        choices.train("8 experts, bias", model, 3, 0, 0.01)
        kept.extend(model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
