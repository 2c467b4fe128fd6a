"""Schedules: their properties, those of PyTorch and `transformers`, what is refused."""

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_properties import CHECKS, PARTS, Kit
from torch import nn
from torch.optim import lr_scheduler

from tfbook.optimization import SCHEDULES, schedule, schedules

NAMES = [name for name, part in PARTS.items() if part == "schedules"]
STEPS = 29


@pytest.mark.parametrize("name", NAMES)
def test_properties(name):
    CHECKS[name](Kit("tfbook"))


def rates(make, steps=STEPS, lr=0.3):
    """Follow a scheduler of PyTorch and return the learning rate of each step."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr)
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


THEIRS = {
    "linear": lambda o: lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=23),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=0.06),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, T_mult=2, eta_min=0.06),
}
OURS = {
    "linear": schedule("linear", steps=23, floor=0.2),
    "cosine": schedule("cosine", steps=STEPS, floor=0.2),
    "exponential": schedule("exponential", rate=0.9),
    "restarts": schedule("restarts", period=3, stretch=2, floor=0.2),
}


@pytest.mark.parametrize("name", THEIRS)
def test_they_are_pytorchs(name):
    theirs = rates(THEIRS[name])
    assert [0.3 * OURS[name](step) for step in range(STEPS)] == pytest.approx(theirs)
    through = rates(lambda o: lr_scheduler.LambdaLR(o, OURS[name]))
    assert through == pytest.approx(theirs)


def test_after_the_warm_up_they_are_those_of_transformers():
    from transformers import optimization as theirs

    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    made = {
        "linear": theirs.get_linear_schedule_with_warmup(optimizer, 5, STEPS),
        "cosine": theirs.get_cosine_schedule_with_warmup(optimizer, 5, STEPS),
        "inverse_sqrt": theirs.get_inverse_sqrt_schedule(optimizer, 5),
    }
    for name, scheduler in made.items():
        choices = {"warmup": 5} | ({} if name == "inverse_sqrt" else {"steps": STEPS})
        ours = schedule(name, **choices)
        for step in range(5, STEPS):
            assert ours(step) == pytest.approx(scheduler.lr_lambdas[0](step))


@settings(max_examples=60)
@given(
    step=st.integers(0, 10**6),
    steps=st.integers(2, 10**6),
    warm=st.floats(0, 0.99),
    floor=st.floats(0, 1),
)
def test_no_step_is_out_of_bounds(step, steps, warm, floor):
    warmup = min(int(warm * steps), steps - 1)
    least = min(floor, 1 / (warmup + 1))
    decay = max(1, steps - warmup - 1)
    for value in (
        schedules.linear(step, steps=steps, warmup=warmup, floor=floor),
        schedules.cosine(step, steps=steps, warmup=warmup, floor=floor),
        schedules.restarts(step, period=steps, warmup=warmup, floor=floor),
        schedules.wsd(step, steps=steps, decay=decay, warmup=warmup, floor=floor),
    ):
        assert least - 1e-12 <= value <= 1 + 1e-12


def test_a_scheduler_with_them_is_saved_as_plain_numbers_and_goes_on():
    chosen = schedule("wsd", steps=STEPS, decay=7, warmup=3)
    assert pickle.loads(pickle.dumps(chosen))(28) == chosen(28)

    def scheduler():
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        return optimizer, lr_scheduler.LambdaLR(optimizer, chosen)

    _, first = scheduler()
    for _ in range(25):
        first.optimizer.step()
        first.step()
    optimizer, second = scheduler()
    second.load_state_dict(first.state_dict())
    optimizer.step()
    second.step()
    assert second.get_last_lr() == [chosen(26)] and math.isclose(chosen(26), 3 / 7)


MISTAKES = {
    "name": (lambda: schedule("cosinus"), ValueError, "name must be one of constant, noam"),
    "missing": (lambda: schedule("cosine"), TypeError, "steps"),
    "unknown": (lambda: schedule("cosine", steps=5, decay=1), TypeError, "decay"),
    "at once": (lambda: schedule("linear", steps=5, warmup=5), ValueError, "warmup must be fewer"),
    "negative step": (lambda: schedules.constant(-1), ValueError, "step must be at least 0, got"),
    "half a step": (lambda: schedules.constant(0.5), TypeError, "step must be an integer"),
    "no warm-up": (
        lambda: schedules.noam(0, d_model=512, warmup=0),
        ValueError,
        "warmup must be at least 1, got 0",
    ),
    "rate": (lambda: schedules.exponential(1, rate=1.5), ValueError, "rate must be at most 1, got"),
    "floor": (lambda: schedules.cosine(1, steps=5, floor=2.0), ValueError, "floor must be from 0"),
    "floor text": (lambda: schedules.cosine(1, steps=5, floor="0"), TypeError, "floor must be a n"),
    "long decay": (
        lambda: schedules.wsd(1, steps=5, warmup=2, decay=4),
        ValueError,
        "warmup and decay must fit into steps = 5, got 2 and 4",
    ),
    "shape": (
        lambda: schedules.wsd(1, steps=5, decay=4, shape="cubic"),
        ValueError,
        "shape must be 'linear' or 'sqrt', got 'cubic'",
    ),
    "period": (lambda: schedules.restarts(1, period=0), ValueError, "period must be at least 1"),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()


def test_all_have_their_own_names():
    assert all(function.__name__ == name for name, function in SCHEDULES.items())
