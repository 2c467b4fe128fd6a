"""The experiments of chapter 11 on steps: what is compared differs in one thing alone."""

import math

import pytest
import torch
from torch import nn

from tfbook import data
from tfbook.experiments import (
    clipping,
    decay,
    descent,
    ingredients,
    inside_the_loop,
    loop_questions,
    read_often,
    warmup,
    wirings,
)
from tfbook.optimization import schedule


class Fixed(nn.Module):
    """Gives the same prediction everywhere, or that of a table of the last letter."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, tokens, mask=None):
        fixed = self.logits.ndim == 1
        return (self.logits.expand(*tokens.shape, -1) if fixed else self.logits[tokens]), None

    def attention_weights(self, tokens):
        return [torch.eye(tokens.shape[1]).expand(len(tokens), 2, -1, -1)]


def test_letters_are_numbered_alike_in_all_splits():
    known = sorted(set(data.shakespeare("train") + data.shakespeare("valid")))
    for split in ("train", "valid"):
        ids = warmup.letters(split)
        assert len(ids) == len(data.shakespeare(split))
        assert "".join(known[i] for i in ids[:300]) == data.shakespeare(split)[:300]


def test_runs_of_one_seed_begin_with_the_same_matrices():
    one, other = (warmup.begin(place, 3, n_layers=2, d_model=16) for place in ("pre", "post"))
    again = warmup.begin("pre", 3, n_layers=2, d_model=16)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    matrices = ([w for w in m.parameters() if w.ndim == 2] for m in (one, other))
    assert all(torch.equal(a, b) for a, b in zip(*matrices, strict=True))
    assert not torch.equal(warmup.begin("pre", 4).embed.weight, warmup.begin("pre", 3).embed.weight)


@pytest.mark.parametrize(("way", "share"), [("Adam", 1.0), ("Adam, warm-up", 1 / 101)])
def test_the_first_step_is_as_long_as_the_way_says(way, share):
    model = warmup.begin("pre", 0, n_layers=1, d_model=16)
    before = model.stack.blocks[0].ffn.up_proj.weight.detach().clone()
    warmup.train(model, way, 1e-3, 0, steps=1)
    moved = (model.stack.blocks[0].ffn.up_proj.weight - before).abs()
    assert moved.median().item() == pytest.approx(1e-3 * share, rel=0.02)


def test_radam_does_not_divide_by_its_first_estimates():
    """Its first steps are those of a mean gradient: the loss barely moves, Adam's does."""
    losses = {}
    for way in ("Adam", "RAdam"):
        model = warmup.begin("pre", 0, n_layers=1, d_model=16)
        losses[way] = warmup.train(model, way, 1e-2, 0, steps=5)
    assert losses["RAdam"][0] == losses["Adam"][0]
    assert losses["RAdam"][-1] > losses["Adam"][-1] + 0.1


def test_a_prediction_that_ignores_the_text_has_no_context():
    entropy, context = warmup._look(Fixed(torch.randn(63)))
    assert context == pytest.approx(0, abs=1e-3)
    assert entropy == [0.0]


def test_a_prediction_that_copies_the_text_depends_on_all_of_it():
    """Certain of the letter it reads: what is known of the next one is the entropy of letters."""
    _, context = warmup._look(Fixed(100 * torch.eye(63)))
    read = warmup.rows(warmup.letters("valid"), 32)[:64, :-1].flatten()
    share = read.bincount(minlength=63) / len(read)
    assert context == pytest.approx(torch.special.entr(share).sum().item(), abs=2e-3)


def test_guessing_costs_the_logarithm_of_the_letters():
    assert descent._held_out(Fixed(torch.zeros(63))) == pytest.approx(math.log(63), abs=1e-3)


@pytest.mark.parametrize("name", descent.OPTIMIZERS)
def test_each_optimizer_lowers_the_loss(name):
    rates = [descent.OPTIMIZERS[name][1] * step for step in descent.STEP]
    start, _ = descent.train(name, 0.0, 0, steps=2)
    model, seconds = descent.train(name, rates[0], 0, steps=8)
    assert descent._held_out(model) < descent._held_out(start)
    assert seconds > 0


@pytest.mark.parametrize("curve", decay.CURVES)
def test_all_curves_reach_the_same_rate_at_the_same_step(curve):
    name, choices = decay.CURVES[curve]
    factor = schedule(name, warmup=decay.WARMUP, **choices)
    assert factor(decay.WARMUP) == max(map(factor, range(160))) == 1
    assert factor(0) < 0.05


@pytest.mark.parametrize("curve", ["linear", "cosine", "warm-up, stable, decay"])
def test_curves_that_know_the_end_are_down_at_the_end(curve):
    name, choices = decay.CURVES[curve]
    assert schedule(name, warmup=decay.WARMUP, **choices)(159) < 0.03


@pytest.mark.parametrize(("way", "loop"), [("none", "rate 0.01"), ("both", "rate 0.01, clipped")])
def test_adam_in_two_means_is_the_optimizer_of_the_loop(way, loop):
    """Nothing clipped, and both means clipped, are the loops that `ingredients` trains."""
    loss, lengths = clipping.train(way, 1, steps=8)
    model, _, _ = ingredients.train(loop, 1, steps=8)
    assert loss == pytest.approx(ingredients.held_out(model), abs=2e-4)
    assert max(lengths) > 1  # or nothing would have been clipped


def test_to_clip_one_mean_differs_from_clipping_both_and_none():
    losses = [clipping.train(way, 1, steps=8)[0] for way in ("none", "both", "m", "v", "always 1")]
    assert all(abs(a - b) > 1e-4 for i, a in enumerate(losses) for b in losses[:i])


def test_what_is_not_finite_any_more_counts_as_lost():
    assert wirings.train("added", 2, 1e9, 0, steps=5) == wirings.LARGEST
    assert wirings.train("pre", 2, 0.001, 0, steps=5) < 5


def test_every_help_changes_the_run():
    ends = {name: read_often.train("short", name, 0, steps=4) for name in read_often.HELP}
    assert len({losses[-1] for losses, _ in ends.values()}) == len(ends)
    assert all(
        len(losses) == 5 for losses, _ in ends.values()
    )  # each of the four steps, and before


@pytest.mark.parametrize(
    ("course", "clip", "loop"),
    [("rise", float("inf"), "rise alone, not clipped"), ("cosine", 1.0, "rate 0.01, clipped")],
)
def test_what_is_watched_are_the_loops_themselves(course, clip, loop):
    shares = inside_the_loop._courses(12)[course]
    model, _, norms = inside_the_loop._after(12, inside_the_loop.walk(1, shares, clip=clip))
    other, _, longest = ingredients.train(loop, 1, steps=12)
    assert inside_the_loop.held_out(model) == pytest.approx(ingredients.held_out(other), abs=2e-4)
    assert max(norms) == pytest.approx(longest, abs=1e-3)


def test_a_run_goes_on_from_its_whole_state_alone():
    told = inside_the_loop._restart(0, 10)
    firsts = {losses[0] for losses in told.values()}
    assert len(firsts) == 1 and len({losses[-1] for losses in told.values()}) == 3


def test_only_the_named_step_is_clipped():
    shares = inside_the_loop._courses(10)["rise"]
    runs = [
        inside_the_loop._after(4, inside_the_loop.walk(0, shares, clip=0.1, only=only))[2]
        for only in (None, 1, 9)
    ]
    free = inside_the_loop._after(4, inside_the_loop.walk(0, shares, clip=float("inf")))[2]
    assert runs[2] == free and runs[1][:2] == free[:2] and runs[1][2:] != free[2:]
    assert runs[0][2:] != runs[1][2:]


def test_scatter_and_signal_are_those_of_single_windows():
    model = ingredients.begin(0)
    signal, scatter = loop_questions._scattered(model, 6)
    drawn = loop_questions.Windows(warmup.letters("train"), 64, batch_size=1, seed=12345)
    found = []
    for k in range(6):
        model.zero_grad()
        inside_the_loop._loss(model, drawn(k)).backward()
        found.append(torch.cat([w.grad.flatten() for w in model.parameters()]))
    variance = torch.stack(found).var(dim=0).sum().item()
    whole = torch.stack(found).mean(dim=0).square().sum().item()
    assert scatter == pytest.approx(variance**0.5, rel=1e-3)
    assert signal == pytest.approx((whole - variance / 6) ** 0.5, rel=1e-3)


def test_a_gradient_that_is_shortened_nowhere_is_adamw():
    name = "none, warm-up of 40"
    loss = loop_questions._early(name, 1, steps=10)
    course = schedule("cosine", steps=10, warmup=2)
    walked = inside_the_loop.walk(1, course, clip=math.inf)
    model = [next(walked)[0] for _ in range(11)][-1]  # the eleventh comes after ten steps
    assert loss == pytest.approx(ingredients.held_out(model), abs=2e-3)
