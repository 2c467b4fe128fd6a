"""What one improbable token does: tokens are drawn where the experiment says."""

import pytest
import torch
from torch.nn import functional as F

from tfbook import experiments
from tfbook.experiments import one_bad_token, two_layouts

SCORES = torch.linspace(6, -6, 1200).log_softmax(0).roll(300)[None].repeat(400, 1)
SPOTS = torch.linspace(0, 1, 401, dtype=torch.double)[:-1]


@pytest.mark.parametrize("kind", one_bad_token.KINDS)
def test_tokens_are_drawn_among_those_of_their_kind(kind):
    tokens, outside = one_bad_token.draw_between(SCORES, kind, SPOTS)
    p, at = SCORES[0].softmax(0), tokens[:, 0]
    before = torch.stack([p[p > p[i]].sum() for i in at])
    assert torch.equal(outside, before >= 0.9)
    wanted = {"kept": [False], "cut off": [True], "tail": [True], "uncut": [False, True]}[kind]
    assert outside.unique().tolist() == wanted
    if kind == "tail":
        assert all((p > p[i]).sum() >= one_bad_token.BEST for i in at)


def test_without_a_cut_tokens_come_as_often_as_they_are_probable():
    tokens, outside = one_bad_token.draw_between(SCORES, "uncut", SPOTS)
    assert outside.float().mean() == pytest.approx(0.1, abs=0.01)
    best = SCORES[0].argmax()
    share = (tokens == best).float().mean()
    assert share == pytest.approx(SCORES[0].softmax(0)[best].item(), abs=0.005)


def test_a_turned_product_is_the_product():
    x, weight, bias = torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(5)
    assert torch.allclose(two_layouts.turned(x, weight, bias), F.linear(x, weight, bias), atol=1e-5)


def test_the_shipped_runs_hold_what_is_compared():
    log = experiments.log("one_bad_token")
    assert {len(each) for each in log["later"].values()} == {2 * log["settings"]["texts"]}
    assert log["at_once"].keys() == {"own", "kept", "cut off", "tail"}
    times = experiments.log("two_layouts")
    assert times["passes"]["as it is"][0] == times["products"]["as it is"][0] == 1
    assert times["apart"] < 1e-3
