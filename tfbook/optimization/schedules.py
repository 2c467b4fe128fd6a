"""Learning-rate schedules: pure functions from the number of a step to a factor.

The factor multiplies the learning rate of the optimizer. Steps count from 0, as
``torch.optim.lr_scheduler.LambdaLR`` counts them, and step s is the one that is taken after s
others, so no schedule begins with a step of length 0. :func:`schedule` fills in the choices:
``LambdaLR(optimizer, schedule("cosine", steps=1000, warmup=100))``.

All but :func:`noam` reach the factor 1 at step ``warmup`` and stay within 0 … 1.

Explained in: chapters/11_training_deeper, section "The learning rate over time".
"""

import math
from collections.abc import Callable
from functools import partial

from tfbook._checks import check_choice, check_number

__all__ = [
    "SCHEDULES",
    "constant",
    "cosine",
    "exponential",
    "inverse_sqrt",
    "linear",
    "noam",
    "restarts",
    "schedule",
    "wsd",
]


def constant(step: int, *, warmup: int = 0) -> float:
    """Rise to 1, then stay: min(1, (s + 1) / (warmup + 1)).

    The rise is that of all other schedules too: from 1 / (warmup + 1) at step 0, which is not
    wasted, to 1 at step ``warmup``.

    Args:
        step: s, from 0.
        warmup: steps before the factor is 1.

    Raises:
        ValueError: if one is negative.

    Example:
        >>> [constant(step, warmup=3) for step in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]

    Source: [goyal2017accurate]
    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    _check_step(step, warmup)
    return _rise(step, warmup)


def noam(step: int, *, d_model: int, warmup: int) -> float:
    """Return the learning rate of 2017: d_model^−½ · min(s^−½, s · warmup^−1.5).

    This is a learning rate, not a share of one: use it with an optimizer whose ``lr`` is 1. The
    paper counts steps from 1, so step 0 counts as 1. The peak, (d_model · warmup)^−½, is at
    s = warmup.

    Args:
        step: s, from 0.
        d_model: size of the model's rows.
        warmup: steps of the linear rise, at least 1.

    Raises:
        ValueError: if step is negative, or another is below 1.

    Example:
        >>> f"{noam(4000, d_model=512, warmup=4000):.2e}"
        '6.99e-04'

    Source: [vaswani2017attention]
    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    _check_step(step, warmup)
    check_number("d_model", d_model, 1, whole=True)
    check_number("warmup", warmup, 1, whole=True)
    s = max(step, 1)
    return d_model**-0.5 * min(s**-0.5, s * warmup**-1.5)


def inverse_sqrt(step: int, *, warmup: int) -> float:
    """Rise to 1, then fall like 1 / √s: √(warmup / s) after the warm-up.

    The shape of :func:`noam` after its peak, as a share of the optimizer's learning rate.

    Args:
        step: s, from 0.
        warmup: at least 1.

    Raises:
        ValueError: if step is negative, or warmup below 1.

    Source: [vaswani2017attention]
    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    _check_step(step, warmup)
    check_number("warmup", warmup, 1, whole=True)
    return _rise(step, warmup) if step <= warmup else math.sqrt(warmup / step)


def linear(step: int, *, steps: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Rise to 1, then fall along a line: 1 − (1 − floor) · u, u = (s − warmup) / (steps − warmup).

    Args:
        step: s, from 0; at ``steps`` and after it the factor is the floor.
        steps: how long the training is.
        warmup: steps of the rise, fewer than ``steps``.
        floor: where it ends, 0 … 1.

    Raises:
        ValueError: if one is out of its range.

    Source: [devlin2019bert]
    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    _check_step(step, warmup)
    _check_course(steps, warmup, floor)
    if step < warmup:
        return _rise(step, warmup)
    return 1 - (1 - floor) * _progress(step, warmup, steps)


def cosine(step: int, *, steps: int, warmup: int = 0, floor: float = 0.0) -> float:
    """Rise to 1, then fall along half a wave: floor + (1 − floor) · ½ (1 + cos π u).

    u = (s − warmup) / (steps − warmup), at most 1.

    Args:
        step: s, from 0; at ``steps`` and after it the factor is the floor.
        steps: how long the training is.
        warmup: steps of the rise, fewer than ``steps``.
        floor: where it ends, 0 … 1; GPT-3 and LLaMA end at 0.1.

    Raises:
        ValueError: if one is out of its range.

    Example:
        >>> [round(cosine(step, steps=4), 3) for step in range(6)]
        [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]

    Source: [loshchilov2017sgdr]; with a warm-up and a floor of 0.1: [brown2020language]
    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    _check_step(step, warmup)
    _check_course(steps, warmup, floor)
    if step < warmup:
        return _rise(step, warmup)
    return floor + (1 - floor) * _half_wave(_progress(step, warmup, steps))


def exponential(step: int, *, rate: float, warmup: int = 0) -> float:
    """Rise to 1, then shrink by the same share at each step: rate^(s − warmup).

    Args:
        step: s, from 0.
        rate: above 0 and at most 1. To halve the factor every n steps: 0.5 ** (1 / n).
        warmup: steps of the rise.

    Raises:
        ValueError: if one is out of its range.

    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    _check_step(step, warmup)
    check_number("rate", rate, above=0)
    if rate > 1:
        raise ValueError(f"rate must be at most 1, got {rate}")
    return _rise(step, warmup) if step < warmup else rate ** (step - warmup)


def restarts(
    step: int, *, period: int, stretch: int = 1, warmup: int = 0, floor: float = 0.0
) -> float:
    """Rise to 1, then fall along half a wave again and again: cosine with warm restarts.

    Wave number i is period · stretch^i steps long and begins at 1.

    Args:
        step: s, from 0.
        period: steps of the first wave.
        stretch: how many times longer each wave is than the one before.
        warmup: steps of the rise before the first wave.
        floor: what each wave falls to, 0 … 1.

    Raises:
        ValueError: if one is out of its range.

    Example:
        >>> [round(restarts(step, period=2, stretch=2), 3) for step in range(7)]
        [1.0, 0.5, 1.0, 0.854, 0.5, 0.146, 1.0]

    Source: [loshchilov2017sgdr]
    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    _check_step(step, warmup)
    _check_floor(floor)
    check_number("period", period, 1, whole=True)
    check_number("stretch", stretch, 1, whole=True)
    if step < warmup:
        return _rise(step, warmup)
    place, length = step - warmup, period
    if stretch == 1:
        place %= period
    while place >= length:
        place, length = place - length, length * stretch
    return floor + (1 - floor) * _half_wave(place / length)


def wsd(
    step: int,
    *,
    steps: int,
    decay: int,
    warmup: int = 0,
    floor: float = 0.0,
    shape: str = "linear",
) -> float:
    """Warm-up, stable, decay: rise to 1, stay there, and fall in the last ``decay`` steps.

    The fall is 1 − (1 − floor) · f(u), u = (s − (steps − decay)) / decay, with f(u) = u or √u.
    Up to the fall nothing depends on ``steps``: a training can go on from there for longer, which
    one that follows a cosine cannot.

    Args:
        step: s, from 0; at ``steps`` and after it the factor is the floor.
        steps: how long the training is.
        decay: steps of the fall, at least 1.
        warmup: steps of the rise; with the fall at most ``steps``.
        floor: where it ends, 0 … 1.
        shape: "linear", or "sqrt", which falls fast at first.

    Raises:
        ValueError: if one is out of its range, or the shape is unknown.

    Example:
        >>> [wsd(step, steps=8, decay=4, warmup=1) for step in range(9)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    Source: [hu2024minicpm]; shapes of the fall: [hagele2024scaling]
    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    _check_step(step, warmup)
    _check_course(steps, warmup, floor)
    check_number("decay", decay, 1, whole=True)
    if warmup + decay > steps:
        raise ValueError(
            f"warmup and decay must fit into steps = {steps}, got {warmup} and {decay}"
        )
    if shape not in ("linear", "sqrt"):
        raise ValueError(f"shape must be 'linear' or 'sqrt', got {shape!r}")
    if step < warmup:
        return _rise(step, warmup)
    progress = _progress(step, steps - decay, steps)
    return 1 - (1 - floor) * (progress if shape == "linear" else math.sqrt(progress))


# By name, for a command line or a file of choices.
SCHEDULES = {
    "constant": constant,
    "noam": noam,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "cosine": cosine,
    "exponential": exponential,
    "restarts": restarts,
    "wsd": wsd,
}


def schedule(name: str, **choices: object) -> Callable[[int], float]:
    """Return a schedule with its choices filled in, a function of the step alone.

    It can be pickled, and fits ``torch.optim.lr_scheduler.LambdaLR``.

    Args:
        name: one of :data:`SCHEDULES`.
        choices: its keyword arguments.

    Raises:
        TypeError: for an unknown, missing or ill-typed choice.
        ValueError: for an unknown name, or a choice out of its range; at once, not at step 0.

    Example:
        >>> schedule("linear", steps=10)(5)
        0.5

    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    check_choice("name", name, SCHEDULES)
    chosen = partial(SCHEDULES[name], **choices)
    chosen(0)  # raises here what is wrong with the choices
    return chosen


def _rise(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / (warmup + 1))


def _progress(step: int, start: int, end: int) -> float:
    """Return how far the step is on the way from start to end, 0 … 1."""
    return min(max((step - start) / (end - start), 0.0), 1.0)


def _half_wave(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def _check_step(step: object, warmup: object) -> None:
    check_number("step", step, 0, whole=True)
    check_number("warmup", warmup, 0, whole=True)


def _check_course(steps: object, warmup: int, floor: object) -> None:
    check_number("steps", steps, 1, whole=True)
    _check_floor(floor)
    if warmup >= steps:
        raise ValueError(f"warmup must be fewer than steps = {steps}, got {warmup}")


def _check_floor(floor: object) -> None:
    check_number("floor", floor, 0, 1)
