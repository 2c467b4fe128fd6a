"""The model that learns in the page: its JavaScript in Node, and what the figure says in Python."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from tests.package import training_checks as checks
from tests.package.node import NODE, NodePage
from tfbook.teaching.explorables import _base, _training
from tfbook.teaching.explorables._training import live_training

with_node = pytest.mark.skipif(NODE is None, reason="needs Node")
TEXT = checks.TEXT


@pytest.fixture(scope="module")
def node():
    """Node with the library."""
    page = NodePage()
    checks.load(page)
    yield page
    page.close()


# ---------------------------------------------------------------------- the library


@with_node
@pytest.mark.parametrize("name", checks.CHECKS)
def test_javascript_computes_what_torch_computes(node, name):
    assert checks.CHECKS[name](node)


@with_node
def test_gradients_agree_weight_by_weight(node, record_property):
    errors = checks.gradient_errors(node, checks.SIZES, 7, seed=5)
    record_property("largest_error", max(errors.values()))
    assert len([name for name in errors if name.endswith(".weight")]) == 2 + 2 * 8 + 1
    assert {name: x for name, x in errors.items() if x > 1e-12} == {}


@with_node
def test_planted_bugs_are_seen(node):
    assert checks.unseen_mutants(node) == []


@with_node
def test_the_loss_falls_and_the_text_is_learned_by_heart(node):
    losses, held, shown, _ = checks.serve(
        node, [checks.beginning(count=40), {"kind": "run", "turn": 2, "count": 150}]
    )
    even = math.log(len(set(TEXT)))
    assert losses[0] == pytest.approx(even, abs=0.3)
    assert sum(losses[-20:]) / 20 < 1 < even
    assert held[-1][1] > 1.5  # the bird at its end stands nowhere else
    known = _training.characters_of(TEXT)
    assert "sat on the" in "".join(known[i] for i in shown[-1]["sample"])


@with_node
def test_what_is_learned_does_not_depend_on_the_pace(node):
    run = [{"kind": "run", "turn": 2, "count": 7}, {"kind": "run", "turn": 3, "count": 8}]
    begin = checks.beginning()
    wanted = checks.serve(node, [begin, {"kind": "run", "turn": 2, "count": 15}])
    for slice_ms in (0, 1000):
        found = checks.serve(node, [begin, *run], slice_ms)
        assert found[0] == wanted[0] and found[2][-1]["sample"] == wanted[2][-1]["sample"]


@with_node
def test_a_new_beginning_ends_the_old_one(node):
    old = checks.beginning(seed=1)
    new = checks.beginning(seed=3) | {"id": 2, "turn": 3}
    requests = [old, {"kind": "run", "turn": 2, "count": 500}, new,
                {"kind": "run", "turn": 4, "count": 6}]  # fmt: skip
    told = checks.serve(node, requests, 0, together=True)[3]
    mine = [answer for answer in told if answer["id"] == 2]
    losses = [loss for answer in mine for loss in answer.get("losses", [])]
    assert losses == pytest.approx(_training.train(TEXT, 1, 0.01, 3, 6).losses, abs=1e-9)
    assert mine[-1]["turn"] == 4 and not mine[-1]["running"]
    assert sum(len(a.get("losses", [])) for a in told if a["id"] == 1) < 500


@with_node
def test_a_pause_holds_and_a_look_learns_nothing(node):
    probe = checks.beginning()["ids"][3:8]
    requests = [checks.beginning(), {"kind": "run", "turn": 2, "count": 10_000},
                {"kind": "pause"}, {"kind": "look", "turn": 3, "probe": probe}]  # fmt: skip
    losses, _, shown, told = checks.serve(node, requests, 0, together=True)
    assert len(losses) < 100 and told[-1]["step"] == len(losses)
    assert shown[-1]["probe"] == probe and told[-1]["turn"] == 3 and not told[-1]["running"]


@with_node
def test_the_learning_rate_changes_from_the_next_step_on(node):
    begin = checks.beginning(lr=0.02)
    requests = [begin, {"kind": "run", "turn": 2, "count": 5}, {"kind": "rate", "lr": 0.2},
                {"kind": "run", "turn": 3, "count": 5}]  # fmt: skip
    losses = checks.serve(node, requests)[0]
    constant = _training.train(TEXT, 1, 0.02, 3, 10).losses
    assert losses[:6] == pytest.approx(constant[:6], abs=1e-10)
    assert abs(losses[6] - constant[6]) > 1e-3


@with_node
def test_too_high_a_rate_diverges_in_finite_numbers(node):
    begin = checks.beginning(lr=10, count=20)
    losses = checks.serve(node, [begin, {"kind": "run", "turn": 2, "count": 60}])[0]
    assert len(losses) == 60 and all(map(math.isfinite, losses))
    assert sum(losses[-20:]) / 20 > math.log(len(set(TEXT))) + 0.2


@with_node
def test_numbers_that_are_none_end_the_training(node):
    begin = checks.beginning(lr=1e308)
    losses, _, _, told = checks.serve(node, [begin, {"kind": "run", "turn": 2, "count": 30}])
    assert told[-1]["broken"] and not told[-1]["running"] and len(losses) < 30
    assert all(loss is not None and math.isfinite(loss) for loss in losses)


# ---------------------------------------------------------------------- the figure in Python


def by_hand(text, n_layers, lr, seed, steps):
    """The same training once more, with AdamW written out; losses and first weights."""
    model = _training.new_model(len(set(text)), n_layers, seed)
    known, n = sorted(set(text)), _training.SIZES["context"]
    ids = [known.index(c) for c in text]
    learned = ids[: len(ids) - max(n + 1, len(ids) // 10)]
    chance = iter(_training.hashed((seed + 10_000) * _training.SPREAD, 8 * steps).tolist())
    mean = [torch.zeros_like(w) for w in model.parameters()]
    square = [torch.zeros_like(w) for w in model.parameters()]
    losses = []
    for t in range(1, steps + 1):
        total = 0
        for _ in range(8):
            at = int(next(chance) * (len(learned) - n))
            row = torch.tensor(learned[at : at + n + 1])
            logp = model(row[None, :-1])[0][0].log_softmax(-1)
            total = total - logp[torch.arange(n), row[1:]].sum()
        losses.append(total.item() / (8 * n))
        grads = torch.autograd.grad(total / (8 * n), list(model.parameters()))
        with torch.no_grad():
            for w, g, m, v in zip(model.parameters(), grads, mean, square, strict=True):
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.999).add_(0.001 * g**2)
                step = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
                w.mul_(1 - 0.01 * lr).sub_(lr * step)
    return losses


@pytest.mark.parametrize(("n_layers", "seed"), [(1, 0), (2, 77)])
def test_the_figure_trains_as_it_says(n_layers, seed):
    found = _training.train(TEXT, n_layers, 0.01, seed, 6)
    assert found.losses == pytest.approx(by_hand(TEXT, n_layers, 0.01, seed, 6), abs=1e-9)
    assert len(found.written) == _training.WRITTEN and set(found.written) <= set(TEXT)


def test_results_are_those_of_the_first_steps():
    figure = live_training(TEXT, seed=4)
    wanted = _training.train(TEXT, 1, 0.01, 4, _training.TOLD)
    assert figure.losses == wanted.losses and figure.held_out == wanted.held
    assert figure.even == pytest.approx(math.log(len(set(TEXT))))
    d, v, n = 16, len(set(TEXT)), 16
    assert figure.parameters == v * d + n * d + 4 * d * d + 2 * 4 * d * d + 3 * d
    words = " ".join(repr(figure).split())
    assert f"{figure.parameters:,} weights" in words and f"costs {figure.even:.2f} nats" in words
    assert f"then {figure.held_out:.2f}," in words
    figure.seed = 5
    assert figure.losses != wanted.losses


def test_first_weights_are_as_large_as_they_should_be():
    model = _training.new_model(200, 2, 1)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            assert weight.tolist() == [1.0] * 16
            continue
        spread = weight.shape[1] ** -0.5 if name.startswith("stack") else 0.1
        spread /= 2 if name.endswith(("out_proj.weight", "down_proj.weight")) else 1
        assert weight.std().item() == pytest.approx(spread, rel=4 / (2 * weight.numel()) ** 0.5)


def test_the_texts_are_what_they_are_called():
    names, sums = (_training.TEXTS[name].split() for name in ("Names", "Sums"))
    assert len(names) == len(set(names)) == 301 and sorted(names) != names
    assert all(re.fullmatch("[a-z]{3,9}", name) for name in names)
    assert len(set(sums)) == 100 and all(int(a) + int(b) == int(c) for a, b, c in
                                         (re.split("[+=]", line) for line in sums))  # fmt: skip
    for text in _training.TEXTS.values():
        live_training(text)


def test_what_is_stored_is_small_and_says_no_weights():
    html = live_training()._html()
    assert len(html) < 9_000
    payload = json.loads(re.search(r"<script[^>]*>(.*?)</script>", html, re.S)[1])
    assert payload["probe"] == payload["text"][:12] and payload["data"]["batch"] == 8


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"text": "a" * 99}, ValueError, "text must have 100 to 20000"),
        ({"text": "ab" * 10_001}, ValueError, "text must have 100 to 20000"),
        ({"text": "".join(map(chr, range(300, 600)))}, ValueError, "200 different"),
        ({"text": 3}, TypeError, "text"),
        ({"probe": ""}, ValueError, "probe"),
        ({"probe": "a" * 17}, ValueError, "probe must have 1 to 16"),
        ({"probe": "A?"}, ValueError, "'?A'"),
        ({"probe": 1}, TypeError, "probe"),
        ({"lr": 0}, ValueError, "lr"),
        ({"lr": True}, TypeError, "lr"),
        ({"n_layers": 3}, ValueError, "n_layers"),
        ({"layer": 1}, ValueError, "layer"),
        ({"head": 2}, ValueError, "head"),
        ({"seed": 1.5}, TypeError, "seed"),
    ],
)
@pytest.mark.untyped
def test_what_the_figure_refuses(given, error, words):
    with pytest.raises(error, match=re.escape(words)):
        live_training(**given)


def test_the_module_and_the_package_have_the_same_names_for_the_weights():
    source = Path(_base.FOLDER / "training_model.js").read_text(encoding="utf-8")
    parts = {name.split(".", 3)[3] for name in _training._order(1) if "blocks" in name}
    assert all(f'"{part.removesuffix(".weight")}"' in source for part in parts)
    model = _training.new_model(5, 2, 0)
    assert set(_training._order(2)) == {name for name, _ in model.named_parameters()}


# ---------------------------------------------------------------------- the page


@with_node
def test_the_page_says_what_happens(node):
    """Every number in the section on this model, computed in JavaScript, which is torch's."""
    page = Path(__file__).resolve().parents[2] / "book" / "live_models.md"
    words = " ".join(page.read_text(encoding="utf-8").split("## A model that learns")[1].split())
    names, poem = _training.TEXTS["Names"], _training.TEXTS["A sonnet"]
    begin = checks.beginning(names, seed=0)
    run = [{"kind": "run", "turn": 2, "count": count} for count in (100, 100)]
    losses, _, shown, _ = checks.serve(node, [begin, *run])
    known = _training.characters_of(names)
    written = "".join(known[i] for i in shown[-1]["sample"]).split("\n")[:-1]
    written = [line for line in written if line]
    assert f"first step costs {losses[0]:.2f}" in words and f"{math.log(27):.2f}" in words
    assert f"the loss is {sum(losses[-20:]) / 20:.2f}, and" in words
    assert f"held out cost {shown[-1]['held'][1]:.2f} too" in words
    assert f"writes *{written[0]}*, *{written[1]}* and *{written[2]}*" in words
    assert f"none of its {len(written)} names" in words and not set(written) & set(names.split())
    assert f"{_training.new_model(27, 1, 0).count_parameters():,} weights" in words

    begun = checks.beginning(poem, seed=0, count=5)
    losses, held, _, _ = checks.serve(node, [begun, run[0] | {"count": 300}])
    step, least = min(held, key=lambda pair: pair[1])
    assert f"costs least at step {step}: {least:.2f}" in words
    held = dict(map(tuple, held))
    early, late = sum(losses[180:200]) / 20, sum(losses[280:]) / 20
    assert f"learns from costs {early:.2f} and what is held out {held[200]:.2f}, after" in words
    assert f"after 300 steps {late:.2f} and {held[300]:.2f}" in words
    end = poem[len(poem) - len(poem) // 10 :]
    assert 0 < len(end) - len(poem.split("\n")[-2]) < 20

    rates = [run[0], {"kind": "rate", "lr": 10}, {"kind": "run", "turn": 3, "count": 10},
             {"kind": "rate", "lr": 0.01}, run[0]]  # fmt: skip
    losses = checks.serve(node, [begin | {"count": 5}, *rates])[0]
    assert f"from {sum(losses[80:100]) / 20:.1f} to above 400" in words and losses[103] > 400
    assert sum(losses[-20:]) / 20 > 1000
