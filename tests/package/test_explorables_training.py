"""The figures of schedules, optimizers and byte pairs: their numbers, computed another way."""

import math
import statistics

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tfbook.data import BYTES, BytePairs
from tfbook.optimization import schedules
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _bytepairs, _chance, _optimizers, _schedules

PHASES = (Phase.explicit, Phase.generate)  # a failing case is readable as it is drawn

# ---------------------------------------------------------------------- schedule_designer


def written_out(figure, shape):
    """The learning rate as a function of the step, from the package and the figure's choices."""
    now = _schedules.settled(figure._now())
    least = max(1, now["warmup"])
    kinds = {
        "constant": {"warmup": now["warmup"]},
        "noam": {"d_model": now["d_model"], "warmup": least},
        "inverse_sqrt": {"warmup": least},
        "linear": {"steps": now["steps"], "warmup": now["warmup"], "floor": now["floor"]},
        "cosine": {"steps": now["steps"], "warmup": now["warmup"], "floor": now["floor"]},
        "exponential": {"rate": 0.5 ** (1 / now["half_life"]), "warmup": now["warmup"]},
        "restarts": {
            "period": now["period"], "stretch": now["stretch"], "warmup": now["warmup"],
            "floor": now["floor"],
        },
        "wsd": {
            "steps": now["steps"], "decay": now["decay"], "warmup": now["warmup"],
            "floor": now["floor"], "shape": now["fall"],
        },
    }  # fmt: skip
    factor = schedules.schedule(shape, **kinds[shape])
    return lambda s: factor(s) * (1 if shape == "noam" else now["peak"])


SCHEDULES = st.sampled_from(list(schedules.SCHEDULES))
CHOICES = st.fixed_dictionaries({
    "peak": st.floats(1e-6, 1), "warmup": st.integers(0, 113), "floor": st.floats(0, 1),
    "d_model": st.integers(1, 4099), "half_life": st.integers(1, 997),
    "period": st.integers(1, 211), "stretch": st.integers(1, 4), "decay": st.integers(1, 127),
    "fall": st.sampled_from(["linear", "sqrt"]), "step": st.integers(0, 241),
})  # fmt: skip


def test_every_schedule_of_the_package_can_be_chosen():
    assert set(_schedules.SHAPES) == set(schedules.SCHEDULES)


@settings(max_examples=25, deadline=None, phases=PHASES)
@given(SCHEDULES, SCHEDULES, CHOICES)
def test_rates_are_the_packages(shape, against, choices):
    figure = explorables.schedule_designer(shape, against=against, steps=241, **choices)
    expected, other = written_out(figure, shape), written_out(figure, against)
    rates = [expected(s) for s in range(241)]
    found = figure.results()
    assert found["rate"] == expected(choices["step"])
    assert found["against_rate"] == other(choices["step"])
    assert found["highest"] == max(rates) and found["last"] == rates[-1]
    assert found["factor"] == pytest.approx(found["rate"] / max(rates), rel=1e-12)
    assert found["mean"] == pytest.approx(statistics.fmean(rates), rel=1e-12)


@pytest.mark.parametrize("shape", schedules.SCHEDULES)
def test_highest_rate_is_at_the_end_of_the_warm_up(shape):
    figure = explorables.schedule_designer(shape, steps=397, warmup=37, step=37, decay=101)
    assert figure.rate == figure.highest and figure.factor == 1
    assert figure.highest == pytest.approx((512 * 37) ** -0.5 if shape == "noam" else 1e-3)


def test_fewer_steps_shorten_what_no_longer_fits():
    figure = explorables.schedule_designer("wsd", steps=1000, warmup=400, decay=600, step=1000)
    figure.steps = 300
    assert figure.warmup == 400  # what was chosen is kept, for when there are more steps again
    rates = [schedules.wsd(s, steps=300, warmup=299, decay=1, floor=0.1) for s in range(301)]
    assert figure.rate == 1e-3 * rates[300] and figure.last == 1e-3 * rates[299]
    assert figure.mean == pytest.approx(1e-3 * statistics.fmean(rates[:300]))


def test_without_another_schedule_there_is_no_rate_of_it():
    assert explorables.schedule_designer(steps=100, warmup=0, step=0).against_rate is None


# ---------------------------------------------------------------------- optimizer_paths


class Lion:
    """The algorithm as its paper prints it, for one tensor."""

    def __init__(self, w, lr, betas, weight_decay):
        self.w, self.lr, self.betas, self.decay, self.m = w, lr, betas, weight_decay, 0 * w.detach()

    def zero_grad(self):
        self.w.grad = None

    @torch.no_grad()
    def step(self):
        (beta1, beta2), g = self.betas, self.w.grad
        update = (beta1 * self.m + (1 - beta1) * g).sign()
        self.w -= self.lr * (update + self.decay * self.w)
        self.m = beta2 * self.m + (1 - beta2) * g


def trained(name, rate, now, steps):
    """The path of PyTorch's optimizer, with gradients by autograd, and the losses."""
    w = torch.tensor(now["start"], dtype=torch.double, requires_grad=True)
    betas = (now["momentum"], now["beta2"])
    decay = {"lr": rate, "weight_decay": now["weight_decay"]}
    optimizer = {
        "sgd": lambda: torch.optim.SGD([w], **decay),
        "momentum": lambda: torch.optim.SGD([w], momentum=now["momentum"], **decay),
        "adam": lambda: torch.optim.Adam([w], betas=betas, **decay),
        "adamw": lambda: torch.optim.AdamW([w], betas=betas, **decay),
        "lion": lambda: Lion(w, betas=betas, **decay),
    }[name]()
    uniform = torch.tensor(_chance.uniforms(now["seed"], 400), dtype=torch.double)
    chance = now["noise"] * 3**0.5 * (2 * uniform - 1).reshape(200, 2)
    path, losses = [w.tolist()], [surface(w, now).item()]
    for t in range(steps):
        optimizer.zero_grad()
        surface(w, now).backward()
        w.grad += chance[t]
        optimizer.step()
        path.append(w.tolist())
        losses.append(surface(w, now).item())
    return path, losses


def surface(w, now):
    """The loss as the docstring writes it."""
    kappa = now["condition"]
    if now["surface"] == "valley":
        x, y = w
        return (1 - x) ** 2 / 2 + kappa / 2 * (y - x**2 / 2) ** 2
    angle = torch.tensor(math.radians(now["tilt"])).double()
    turn = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()]).reshape(2, 2)
    u, v = turn @ (w - torch.tensor([1, 0.5]).double())
    return (u**2 + kappa * v**2) / 2


def same_path(figure, kept=70):
    """Compare with the other path up to where the figure's ends, or to step `kept`."""
    path, losses = trained(figure.optimizer, figure.lr, figure._now(), kept)
    found = figure.results()
    count = min(len(found["path"]), kept + 1)
    for got, expected in zip(found["path"][:count], path[:count], strict=True):
        assert got == pytest.approx(expected, rel=1e-7, abs=1e-7)
    assert found["losses"][:count] == pytest.approx(losses[:count], rel=1e-6, abs=1e-9)
    if found["diverged"] and found["diverged"] <= kept:
        assert not max(map(abs, path[found["diverged"]])) <= 1e6


CONTROLS = st.fixed_dictionaries({
    "surface": st.sampled_from(["bowl", "valley"]),
    "lr": st.sampled_from([0.003, 0.02, 0.07]),
    "momentum": st.sampled_from([0, 0.3, 0.9]),
    "beta2": st.sampled_from([0.9, 0.999]),
    "weight_decay": st.sampled_from([0, 0.3]),
    "condition": st.sampled_from([1, 7, 20]),
    "tilt": st.sampled_from([0, 17, 45]),
    "noise": st.sampled_from([0, 0.7]),
    "seed": st.integers(0, 9999),
    "start": st.tuples(st.floats(-2.2, 2.2), st.floats(-2.2, 2.2)),
})  # fmt: skip


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
@settings(max_examples=6, deadline=None, phases=PHASES)
@given(CONTROLS)
def test_paths_are_those_of_pytorchs_optimizers(name, controls):
    same_path(explorables.optimizer_paths(name, **controls))


@settings(max_examples=6, deadline=None, phases=PHASES)
@given(CONTROLS, st.integers(1, 9999))
def test_paths_of_lion_are_those_of_the_paper(controls, seed):
    # Where a mean gradient is 0 but for rounding, rounding decides on a whole step: with noise
    # that does not happen.
    same_path(explorables.optimizer_paths("lion", **controls | {"noise": 0.7, "seed": seed}))
    same_path(explorables.optimizer_paths("lion", **controls | {"noise": 0}), kept=10)


def test_too_large_a_step_leaves_and_the_figure_says_when():
    figure = explorables.optimizer_paths("sgd", lr=0.2, against="none", step=12)
    same_path(figure)
    assert figure.diverged == 13 == len(figure.path) == len(figure.losses)
    assert figure.loss > 1e9
    figure.step = 13
    assert figure.loss is None and figure.w is None and figure.gradient is None
    assert "has left" in repr(figure)


def test_steepest_direction_decides_whether_gradient_descent_stays():
    for condition in (5, 20, 50):
        for factor, stays in ((1.9, True), (2.1, False)):
            figure = explorables.optimizer_paths(
                "sgd", lr=factor / condition, condition=condition, tilt=30
            )
            assert (figure.losses[-1] < figure.losses[0]) == stays


@pytest.mark.parametrize("name", ["adam", "lion"])
def test_turning_the_bowl_matters_where_each_number_is_scaled_alone(name):
    def ends(optimizer, tilt):
        start = turned((-2.0, 0.4), tilt)
        figure = explorables.optimizer_paths(optimizer, lr=0.01, tilt=tilt, start=start)
        return figure.losses

    assert ends("sgd", 40) == pytest.approx(ends("sgd", 0), rel=1e-9)
    assert max(abs(a - b) for a, b in zip(ends(name, 40), ends(name, 0), strict=True)) > 0.05


def turned(uv, tilt):
    cos, sin = math.cos(math.radians(tilt)), math.sin(math.radians(tilt))
    return 1 + cos * uv[0] - sin * uv[1], 0.5 + sin * uv[0] + cos * uv[1]


def test_penalty_hardly_moves_where_it_is_steep_and_decay_does_not_look():
    # Both axes pull to the origin; Adam's balance is g + λw = 0, so the steep one hardly gives way.
    common = {"lr": 0.01, "weight_decay": 0.5, "condition": 50, "momentum": 0.9, "beta2": 0.9}
    x, y = explorables.optimizer_paths("adam", step=200, start=(1, 0.5), **common).w
    assert x == pytest.approx(1 / 1.5, abs=0.02) and y == pytest.approx(0.5 * 50 / 50.5, abs=0.02)
    decayed = explorables.optimizer_paths("adamw", step=1, start=(1, 0.5), **common).w
    assert decayed == pytest.approx([0.995 * 1, 0.995 * 0.5], abs=1e-12)  # no gradient there


@pytest.mark.parametrize("surface", ["bowl", "valley"])
def test_gradient_is_that_of_the_loss_and_zero_at_the_cross(surface):
    def at(start):
        return explorables.optimizer_paths(surface=surface, tilt=25, start=start, step=0)

    assert at((1, 0.5)).loss == 0 and at((1, 0.5)).gradient == [0, 0]
    x, y, by = -0.7, 1.3, 1e-5
    across = (at((x + by, y)).loss - at((x - by, y)).loss) / (2 * by)
    upward = (at((x, y + by)).loss - at((x, y - by)).loss) / (2 * by)
    assert at((x, y)).gradient == pytest.approx([across, upward], rel=1e-6)


def test_noise_has_the_standard_deviation_it_is_given():
    figure = explorables.optimizer_paths("sgd", lr=0.001, noise=2, seed=3, condition=1)
    clean = explorables.optimizer_paths("sgd", lr=0.001, condition=1)
    steps = torch.tensor(figure.path).double().diff(dim=0) / -0.001  # gradients with noise
    gradients = torch.tensor(figure.path[:-1]).double() - torch.tensor([1, 0.5]).double()
    noise = (steps - gradients).flatten()
    assert noise.std().item() == pytest.approx(2, rel=0.1)
    assert abs(noise.mean().item()) < 4 * 2 / 20
    assert noise.abs().max().item() <= 2 * 3**0.5 + 1e-9
    assert clean.path != figure.path


def test_both_meet_the_same_noise():
    figure = explorables.optimizer_paths(
        "adamw", against="adam", against_lr=0.05, noise=1, seed=11, step=150
    )
    assert figure.against_w == figure.w and figure.against_loss == figure.loss


def test_sliders_stop_at_the_defaults():
    figures = (
        (explorables.schedule_designer(), _schedules.STOPS),
        (explorables.optimizer_paths(), _optimizers.STOPS),
    )
    for figure, stops in figures:
        for name, list_ in stops.items():
            assert list_ == sorted(set(list_)), name
            assert getattr(figure, name) in list_, name


# ---------------------------------------------------------------------- byte_pairs

LINES = ["the cat sat on the mat, the cat sat", "déjà vu, déjà là: l'été ; the the", "10 000 €"]
SMALL = BytePairs.train(LINES, vocab_size=256 + 31)


@settings(max_examples=40, deadline=None, phases=PHASES)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.integers(0, 31))
@example("déjà  vu\n\tthe cat's 10 000 €\u0085\ufeff", 31)
def test_ids_are_those_of_the_first_merges(text, merges):
    merges = min(merges, len(SMALL.merges))
    figure = explorables.byte_pairs(SMALL, text=text, merges=merges)
    first = BytePairs(SMALL.merges[:merges], SMALL.tokens[: 256 + merges])
    assert figure.ids == first.encode(text) and figure.count == len(figure.ids)
    assert b"".join(SMALL.tokens[i] for i in figure.ids).decode() == text
    assert figure.bytes == len(text.encode()) and figure.characters == len(text)
    assert figure.tokens == [figure.data["names"][i] for i in figure.ids]


def test_all_merges_give_the_tokenizers_own_ids():
    figure = explorables.byte_pairs(SMALL, text=LINES[1], merges=len(SMALL.merges))
    assert figure.ids == SMALL.encode(LINES[1])


def test_the_last_merge_is_named_and_counted():
    figure = explorables.byte_pairs(SMALL, text=LINES[0])
    assert figure.merge is None and figure.count == figure.bytes
    before = figure.count
    for n in range(1, len(SMALL.merges) + 1):
        figure.merges = n
        left, right = SMALL.merges[n - 1]
        merge = figure.merge
        assert merge["places"] == before - figure.count
        assert merge["left"] + merge["right"] == merge["new"] or "⟨" in str(merge)
        assert figure.data["names"][left] == merge["left"]
        before = figure.count


def test_every_token_can_be_seen():
    names = explorables.byte_pairs(SMALL).data["names"]
    assert all(name.strip() and name.isprintable() for name in names)
    shown = [_bytepairs.shown(t) for t in (b" a", b"\n", b"\t", b"\xc3", b"\xc3\xa9", b"\xa9 b")]
    assert shown == ["␣a", "⏎", "⇥", "⟨C3⟩", "é", "⟨A9⟩␣b"]
    assert _bytepairs.shown("\u00a0".encode()) == "⟨C2⟩⟨A0⟩"
    assert _bytepairs.shown("\u0301".encode()) == "◌\u0301"
    assert len(set(names[:256])) == 256


def test_default_merges_are_learned_from_english_and_french():
    figure = explorables.byte_pairs()
    learned = {figure.data["names"][len(BYTES) + i] for i in range(150)}
    assert {"␣the", "é"} <= learned and len(figure.data["merges"]) == 150
    assert explorables.byte_pairs().data is not figure.data
    assert explorables.byte_pairs()._repr_mimebundle_() == figure._repr_mimebundle_()
