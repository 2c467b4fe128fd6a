"""Revealing in any order: what is hidden, what the bound is, and the shipped model's log."""

import itertools
import math

import pytest
import torch
from torch import nn

from tfbook import data, experiments
from tfbook.experiments import unmasking


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def test_what_is_hidden_is_spread_evenly_and_never_the_first_place():
    hidden, m = unmasking.hide(64, 16, draws())
    assert hidden.shape == (64, 17) and not hidden[:, 0].any()
    assert torch.equal(hidden.sum(1), m)
    assert torch.equal(m.sort().values, torch.arange(1, 17).repeat_interleave(4))
    places = torch.stack([unmasking.hide(64, 16, draws(s))[0][:, 1:] for s in range(60)])
    shares = places.double().mean((0, 1))  # by place
    assert (shares - 17 / 32).abs().max() < 0.04


class Exact(nn.Module):
    """What fills in places of texts of three letters with the true probabilities."""

    mask = 2

    def __init__(self, joint):
        super().__init__()
        self.joint = nn.Parameter(joint)  # (2, 2, 2)

    def forward(self, tokens):
        texts = torch.tensor(list(itertools.product(range(2), repeat=3)))
        logits = torch.full((*tokens.shape, 2), -math.inf)
        for row, each in enumerate(tokens[:, 1:]):
            fits = ((texts == each) | (each == self.mask)).all(1)
            for place in range(3):
                for letter in range(2):
                    found = self.joint.flatten()[fits & (texts[:, place] == letter)].sum()
                    logits[row, place + 1, letter] = found.log()
        logits[:, 0] = 0
        return logits


@pytest.fixture
def exact():
    return Exact(torch.rand(2, 2, 2, generator=draws(3)).softmax(0) / 4)


def test_the_bound_is_the_likelihood_where_all_is_filled_in_truly(exact):
    text = torch.tensor([[0, 1, 0, 1]] * 600)
    nats, shares = unmasking.bound(exact, text, draws=8)
    assert set(shares.unique().mul(3).round().tolist()) == {1, 2, 3}
    assert nats.mean().item() == pytest.approx(-exact.joint[1, 0, 1].log().item() / 3, abs=0.01)


def test_the_bound_lies_above_the_likelihood_where_it_is_not(exact):
    """Three places that agree, filled in as if each were alone: ln 2 a place, and not ln 2 / 3."""

    def alone(tokens):
        return torch.zeros(*tokens.shape, 2)

    model = exact
    model.forward = alone
    nats, _ = unmasking.bound(model, torch.tensor([[0, 1, 1, 1]]), draws=6)
    assert nats.mean().item() == pytest.approx(math.log(2)) and math.log(2) > math.log(2) / 3


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_one_place_a_pass_draws_from_the_joint_distribution(exact, passes):
    written = unmasking.unmask(exact, 4000, passes, first=0, length=3, seed=1)
    assert not written[:, 0].any() and written.max() <= 1
    found = torch.zeros(2, 2, 2).index_put_(
        tuple(written[:, 1:].T), torch.tensor(1 / 4000), accumulate=True
    )
    joint = exact.joint.detach()
    at_once = torch.einsum(
        "i,j,k->ijk", joint.sum((1, 2)), joint.sum((0, 2)), joint.sum((0, 1))
    )  # fmt: skip
    if passes == 3:
        torch.testing.assert_close(found, joint, atol=0.025, rtol=0)
    if passes == 1:
        torch.testing.assert_close(found, at_once, atol=0.025, rtol=0)


class Watched(nn.Module):
    """A model that is surest of the last places, and remembers what it was shown."""

    mask = 5

    def __init__(self):
        super().__init__()
        self.none, self.shown = nn.Parameter(torch.zeros(1)), []

    def forward(self, tokens):
        self.shown.append(tokens.clone())
        scores = torch.zeros(*tokens.shape, 5)
        scores[..., 2] = 40 + torch.arange(tokens.shape[1])  # all but sure, the later the surer
        return scores.double()


@pytest.mark.parametrize("surest", [False, True])
def test_each_pass_reveals_its_share_and_changes_nothing_else(surest):
    model = Watched()
    last = unmasking.unmask(model, 3, 4, first=1, length=10, surest=surest)
    shown = [*model.shown, last]
    hidden = [(each == 5).sum(1).tolist() for each in shown]
    assert hidden == [[10] * 3, [8] * 3, [5] * 3, [3] * 3, [0] * 3]
    for before, after in itertools.pairwise(shown):
        assert torch.equal(before[before != 5], after[before != 5])
    assert (last[:, 0] == 1).all()


def test_the_two_models_differ_in_who_sees_whom_alone():
    causal = unmasking.network(9, causal=True)
    model = unmasking.Unmasker(9)
    sizes = [sum(w.numel() for w in each.parameters()) for each in (causal, model)]
    assert sizes[1] - sizes[0] == unmasking.WIDTH  # the row of the hidden place
    assert model(torch.randint(9, (2, 7))).shape == (2, 7, 9)
    for weights in (causal, model.model):  # fresh blocks pass everything on
        for weight in weights.stack.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.2)
    first, second = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 3, 5]])
    with torch.no_grad():
        causal.eval(), model.eval()
        torch.testing.assert_close(causal(first)[0][:, :3], causal(second)[0][:, :3])
        assert (model(first) - model(second))[:, :3].abs().max() > 1e-3


def test_measures_tell_repetition_from_variety():
    class Even(nn.Module):
        def __init__(self):
            super().__init__()
            self.none = nn.Parameter(torch.zeros(1))

        def forward(self, tokens, mask=None):
            return torch.zeros(*tokens.shape, 27), None

    def decode(ids):
        return "".join(" abcdefghijklmnopqrstuvwxyz"[i] for i in ids)

    same = torch.tensor([[0, *([1, 2, 0] * 8)]] * 3)
    other = torch.randint(27, (3, 25), generator=draws())
    known = {"ab"}
    found = [unmasking.measures(each, Even(), decode, known) for each in (same, other)]
    assert found[0]["distinct"] == round(3 / 63, 4) and found[1]["distinct"] > 0.95
    assert found[0]["words"] == 1 and found[1]["words"] == 0
    assert found[0]["nats"] == pytest.approx(math.log(27), abs=1e-4)


# what was shipped


@pytest.fixture(scope="module")
def log():
    return experiments.log("unmasking")


def test_the_shipped_model_has_the_logged_bound(log):
    model, tokenizer = unmasking.load()
    assert sum(w.numel() for w in model.parameters()) == log["parameters"]["unmasking"]
    ids = torch.tensor(tokenizer.encode(data.shakespeare("valid")).ids)
    texts = data.rows(ids, unmasking.CONTEXT)[::6]
    nats, _ = unmasking.bound(model, texts, 3)
    assert nats.mean().item() == pytest.approx(log["losses"]["valid"]["bound"], abs=0.05)


def test_the_bound_is_the_mean_height_of_the_curve(log):
    height = log["by_share"]
    assert len(height) == unmasking.SHARES
    assert height == sorted(height)
    assert sum(height) / len(height) == pytest.approx(log["losses"]["valid"]["bound"], abs=0.02)


def test_the_log_says_what_the_page_says(log):
    for split in ("valid", "test"):
        assert log["losses"][split]["autoregressive"] < log["losses"][split]["bound"]
    for surest in (False, True):
        found = [each for each in log["unmasked"] if each["surest"] == surest]
        passes = [each["passes"] for each in found]
        assert passes == sorted(passes) and (passes[0], passes[-1]) == (4, unmasking.CONTEXT)
        assert found[0]["nats"] > found[-1]["nats"]
    assert log["parameters"]["unmasking"] - log["parameters"]["autoregressive"] == unmasking.WIDTH
