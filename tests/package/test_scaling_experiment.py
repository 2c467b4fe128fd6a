"""The runs behind the law for the loss: what is counted, what is read, and what the log shows."""

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tfbook import experiments
from tfbook.data import rows
from tfbook.experiments import scaling
from tfbook.experiments.warmup import letters

LOG = experiments.log("scaling")
RUNS = LOG["runs"]
MODELS = [(kind, width) for kind, widths in scaling.LAYERS.items() for width in widths]


def mean_losses(kind):
    """Return the mean loss over seeds by (parameters, tokens)."""
    seen = defaultdict(list)
    for each in RUNS:
        if each["kind"] == kind:
            seen[each["parameters"], each["tokens"]].append(each["loss"])
    return {key: np.mean(losses) for key, losses in seen.items()}


def spread():
    """Return the standard deviation between seeds of the same run, over all that have several."""
    seen = defaultdict(list)
    for each in RUNS:
        seen[each["kind"], each["width"], each["tokens"]].append(each["loss"])
    return math.sqrt(np.mean([np.var(x, ddof=1) for x in seen.values() if len(x) > 1]))


class Recorder(nn.Module):
    """Keeps what it reads; predicts by a table of the last letter."""

    def __init__(self):
        super().__init__()
        self.table, self.read = nn.Embedding(63, 63), []

    def forward(self, ids):
        self.read.append(ids)
        return self.table(ids), None


class Late(nn.Module):
    """Knows nothing but in the last 16 places, where it knows how frequent letters are."""

    def forward(self, ids):
        share = letters("valid").bincount(minlength=63) / len(letters("valid"))
        scores = torch.zeros(*ids.shape, 63)
        scores[:, -16:] = share.clamp(min=1e-9).log()
        return scores, None


@pytest.mark.parametrize(("kind", "width"), MODELS)
def test_sizes_are_those_counted_by_hand(kind, width):
    layers = scaling.LAYERS[kind][width]
    if kind == "decoder":  # q, k, v, out; up, down; two norms; and the last norm
        inner = layers * (4 * width**2 + 2 * width * 4 * width + 2 * width) + width
        tables = 2 * 63 * width
    else:  # four gates read the input and the state, and have two biases
        inner, tables = layers * 4 * (2 * width**2 + 2 * width), 63 * width + 63 * (width + 1)
    assert scaling.size_of(scaling.model_of(kind, width)) == (inner, inner + tables)


def test_the_log_counts_what_the_models_have():
    for each in RUNS:
        model = scaling.model_of(each["kind"], each["width"])
        assert [each["parameters"], each["all_parameters"]] == [*scaling.size_of(model)]


def test_the_two_kinds_are_of_about_the_same_sizes():
    inner = {
        kind: [scaling.size_of(scaling.model_of(kind, width))[0] for width in widths]
        for kind, widths in scaling.LAYERS.items()
    }
    for one, other in zip(inner["decoder"], inner["LSTM"], strict=False):
        assert one == pytest.approx(other, rel=0.05)


def test_tokens_epochs_and_flops_are_those_of_the_steps():
    text = len(letters("train"))
    for each in RUNS:
        assert each["tokens"] == each["steps"] * 8 * 64
        assert each["epochs"] == pytest.approx(each["tokens"] / text, abs=1e-4)
        assert each["flops"] == 6 * each["parameters"] * each["tokens"]
        assert (each["epochs"] < 1) == (each["tokens"] <= 993_280)
    assert max(each["epochs"] for each in RUNS) < 4


@pytest.mark.parametrize(("width", "share"), [(12, 2.07), (32, 1.41), (64, 1.19), (128, 1.09)])
def test_six_flops_a_parameter_and_token_leave_out_much_of_what_a_small_model_does(width, share):
    """What is counted in a pass and back, over 6 N D: the head and the scores of attention."""
    model, ids = scaling.model_of("decoder", width), torch.zeros(2, 64, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(ids)[0].sum().backward()
    counted = counter.get_total_flops() / (6 * scaling.size_of(model)[0] * ids.numel())
    layers = scaling.LAYERS["decoder"][width]
    beside = 63 * width + 2 * layers * 64 * width  # the head; each query with 64 keys and values
    matrices = layers * 12 * width**2
    assert counted == pytest.approx((matrices + beside) / scaling.size_of(model)[0], rel=1e-6)
    assert counted == pytest.approx(share, abs=0.005)
    work = scaling.work_of({"width": width, "layers": layers})
    assert counted == pytest.approx(work / scaling.size_of(model)[0], rel=1e-6)


def test_laws_by_all_work_are_fitted_to_the_runs_of_the_log():
    kept = {"cheap": 27, "all": 36}
    for name, most in (("cheap", 1e11), ("all", math.inf)):
        assert len(scaling.cheap_runs(RUNS, most)) == kept[name]
        assert len(LOG["redrawn_work"][name]) == 60
    again = scaling.redraw(RUNS, 1, most=math.inf, size=scaling.work_of)
    assert again[0] == pytest.approx(LOG["redrawn_work"]["all"][0], rel=0.02)


def test_the_runs_are_all_that_the_settings_ask_for():
    settings, asked = LOG["settings"], set()
    for kind, width in MODELS:
        inner = scaling.size_of(scaling.model_of(kind, width))[0]
        for steps in settings["steps"] if kind == "decoder" else [settings["lstm_steps"]]:
            flops = 6 * inner * steps * 8 * 64
            cheap = flops <= settings["cheap"] and steps <= 1940
            seeds = LOG["seeds"] if cheap else LOG["seeds"][:1]
            asked |= {(kind, width, steps, s) for s in seeds if flops <= settings["most"]}
    made = [(each["kind"], each["width"], each["steps"], each["seed"]) for each in RUNS]
    assert len(made) == len(set(made)) and set(made) == asked


def test_rates_are_on_the_power_through_what_the_search_found():
    for kind, tried in LOG["tried"].items():
        for width, losses in tried.items():
            good = [float(r) for r, loss in losses.items() if loss <= min(losses.values()) + 0.02]
            assert LOG["found"][kind][width] == min(good)
        widths = [*map(int, tried)]
        line = np.polyfit(np.log(widths), np.log([*LOG["found"][kind].values()]), 1)
        for each in RUNS:
            if each["kind"] == kind:
                there = math.exp(np.polyval(line, math.log(each["width"])))
                assert each["rate"] == pytest.approx(there, rel=1e-3)


def by_place(kind="decoder"):
    """Return the mean losses, sizes by numbers of characters, nan where there is none; sizes."""
    losses = mean_losses(kind)
    sizes, tokens = (sorted({key[i] for key in losses}) for i in (0, 1))
    return np.array([[losses.get((n, d), np.nan) for d in tokens] for n in sizes]), sizes


def test_seeds_differ_by_less_than_budgets():
    assert 0.01 < spread() < 0.04


def test_two_and_a_half_times_the_data_lower_the_loss_beyond_the_spread():
    """As long as no window is read twice; the last step, of 2.4 epochs, brings less."""
    falls = -np.diff(by_place()[0], axis=1)
    assert np.nanmin(falls[:, :-1]) > 2 * spread()
    assert np.nanmin(falls) > 0
    assert np.all(falls[:4, -1] < falls[:4, -2])


def test_five_times_the_parameters_lower_the_loss_beyond_the_spread():
    """Neighbours in size, at 2.5 times, differ by less than that in some places."""
    table, _ = by_place()
    falls = table[:-2] - table[2:]
    assert np.nanmin(falls[:4]) > spread()


@pytest.mark.parametrize(("longest", "best"), [(0, 1), (2, 3), (3, 4)])
def test_of_runs_that_cost_the_same_neither_the_smallest_nor_the_largest_is_best(longest, best):
    """Sizes and budgets grow by about the same factor: a diagonal has about the same FLOPs."""
    table, sizes = by_place()
    places = [(longest + i, 5 - i) for i in range(6) if longest + i < len(sizes)]
    costs = [6 * sizes[i] * LOG["settings"]["steps"][j] * 512 for i, j in places]
    assert max(costs) / min(costs) < 1.25
    losses = [table[place] for place in places]
    assert longest + int(np.argmin(losses)) == best
    assert losses[-1] > min(losses) + 5 * spread()


def test_larger_lstms_are_better_too():
    losses = by_place("LSTM")[0][:, 0]
    assert np.all(np.diff(losses) < 0)
    assert losses[0] - losses[2] > spread() and losses[2] - losses[4] > spread()


def test_a_run_reads_no_window_twice_and_another_seed_reads_others():
    read = []
    for seed in (0, 1):
        model = Recorder()
        scaling.train(model, 40, seed, 0.01)
        assert {len(batch) for batch in model.read} == {8}
        read.append({tuple(window.tolist()) for batch in model.read for window in batch})
        assert len(read[-1]) == 40 * 8
    assert len(read[0] & read[1]) < 40


def test_every_epoch_reads_each_window_once_in_another_order(monkeypatch):
    monkeypatch.setattr(scaling, "letters", lambda split: letters(split)[: 64 * 40 + 1])
    model = Recorder()
    scaling.train(model, 12, 0, 0.01)
    read = [tuple(window.tolist()) for batch in model.read for window in batch]
    assert len(read) == 12 * 8
    one, other, rest = read[:40], read[40:80], read[80:]
    windows = {tuple(window[:-1].tolist()) for window in rows(letters("train"), 64)[:40]}
    assert set(one) == set(other) == windows
    assert one != other and len(set(rest)) == 16


def test_the_held_out_loss_of_a_model_that_knows_little_is_known():
    late_letters = rows(letters("valid"), 64)[:, -16:].flatten()
    share = letters("valid").bincount(minlength=63) / len(letters("valid"))
    by_hand = -share[late_letters].log().mean().item()
    loss, late = scaling.held_out(Late())
    assert late == pytest.approx(by_hand, abs=1e-4)
    assert loss == pytest.approx(0.75 * math.log(63) + 0.25 * by_hand, abs=1e-4)


def test_the_held_out_text_is_long():
    assert rows(letters("valid"), 64)[:, 1:].numel() == 56_384


@pytest.mark.parametrize("kind", scaling.LAYERS)
def test_scores_hide_the_future(kind):
    model, ids = scaling.model_of(kind, next(iter(scaling.LAYERS[kind]))), torch.arange(20)[None]
    changed = ids.clone()
    changed[:, 11:] += 3
    before, after = (model(x)[0] for x in (ids, changed))
    torch.testing.assert_close(before[:, :11], after[:, :11])
    assert not torch.allclose(before[:, 11], after[:, 11])


@pytest.mark.parametrize("kind", scaling.LAYERS)
def test_an_untrained_model_is_no_worse_than_a_few_nats(kind):
    """A start that is sure of the wrong letter would spend its first steps on unlearning that."""
    torch.manual_seed(0)
    for width in scaling.LAYERS[kind]:
        held = rows(letters("valid"), 64)[:50]
        with torch.no_grad():
            scores = scaling.model_of(kind, width)(held[:, :-1])[0]
        loss = functional.cross_entropy(scores.mT, held[:, 1:]).item()
        assert math.log(63) - 0.2 < loss < math.log(63) + 1


def test_a_short_run_gives_the_loss_of_the_log_again():
    first = next(each for each in RUNS if (each["width"], each["steps"]) == (12, 50))
    again = scaling.measure("decoder", 12, 50, first["seed"], first["rate"])
    assert again["loss"] == pytest.approx(first["loss"], abs=0.02)
    assert again.keys() == first.keys()
