"""schedule_designer: the learning rate at each step of a training, by any schedule of the book."""

import math
from collections.abc import Callable

from tfbook.optimization import schedule
from tfbook.teaching.explorables._base import Explorable, number, one_of, whole, wrapped

TITLE = "The learning rate, step by step"
LONGEST = 100_000
# Name, formula after the rise (u runs from 0 to 1), and what the shape takes besides the warm-up.
SHAPES = {
    "constant": ("constant", "1", ()),
    "noam": ("Noam, of 2017", "1/√d · min(1/√s, s/(w√w))", ("d_model",)),
    "inverse_sqrt": ("inverse square root", "√(w / s)", ()),
    "linear": ("linear", "1 − (1 − floor) · u", ("floor",)),
    "cosine": ("cosine", "floor + (1 − floor) · ½ (1 + cos πu)", ("floor",)),
    "exponential": ("exponential", "½^((s − w) / half-life)", ("half_life",)),
    "restarts": (
        "cosine with restarts",
        "floor + (1 − floor) · ½ (1 + cos πu), u anew in each wave",
        ("period", "stretch", "floor"),
    ),
    "wsd": (
        "warm-up, stable, decay",
        "1, and in the last steps 1 − (1 − floor) · u or √u",
        ("decay", "fall", "floor"),
    ),
}
WAVES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 4000, 5000, 8000]
WAVES += [10_000, 20_000, 50_000, 100_000]
STOPS = {
    "steps": WAVES[6:11] + WAVES[12:13] + WAVES[14:],
    "warmup": [0, *WAVES[:-1]],
    "peak": [m * 10**e / 10**6 for e in range(6) for m in (1, 1.5, 2, 3, 5, 7)] + [1.0],
    "d_model": [32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192],
    "half_life": WAVES,
    "period": WAVES,
    "decay": WAVES,
    "stretch": [1, 2, 3, 4],
}


def schedule_designer(
    shape: str = "cosine",
    *,
    against: str = "none",
    peak: float = 1e-3,
    steps: int = 10_000,
    warmup: int = 500,
    step: int = 2_500,
    floor: float = 0.1,
    d_model: int = 512,
    half_life: int = 2_000,
    period: int = 2_000,
    stretch: int = 2,
    decay: int = 2_000,
    fall: str = "linear",
) -> Explorable:
    r"""Return a figure of the learning rate over the steps of a training.

    At step $s$ it is `peak` times the factor of `tfbook.optimization.schedules`; the schedule of
    2017, "noam", is a learning rate itself, whose peak $(d \cdot \text{warmup})^{-1/2}$ follows
    from the size of the model. The steps are 0 … `steps` − 1.

    Args:
        shape: A name in `tfbook.optimization.SCHEDULES`.
        against: Another one, drawn beside it, or "none".
        peak: The highest learning rate, 1e-6 to 1; "noam" does not use it.
        steps: How many are taken, 100 to 100 000.
        warmup: Steps of the rise, fewer than `steps`; "noam" and "inverse_sqrt" take at least 1.
        step: The one that is read, 0 to `steps`.
        floor: Where "linear", "cosine", "restarts" and "wsd" end, as a share of the peak.
        d_model: Size of the model's rows, for "noam".
        half_life: Steps in which "exponential" halves.
        period: Steps of the first wave of "restarts".
        stretch: How many times longer each wave is than the one before, 1 to 4.
        decay: Steps of the fall of "wsd"; with the warm-up at most `steps`.
        fall: "linear" or "sqrt", the fall of "wsd".

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or warm-up, decay or step do not fit into the steps.

    Source: [vaswani2017attention], [loshchilov2017sgdr], [hu2024minicpm].
    Explained in: chapters/11_training_deeper, section "The learning rate over time".
    """
    checks = {
        "shape": one_of("shape", *SHAPES),
        "against": one_of("against", "none", *SHAPES),
        "peak": number("peak", 1e-6, 1),
        "steps": whole("steps", 100, LONGEST),
        "warmup": whole("warmup", 0, LONGEST),
        "step": whole("step", 0, LONGEST),
        "floor": number("floor", 0, 1),
        "d_model": whole("d_model", 1, 65_536),
        "half_life": whole("half_life", 1, LONGEST),
        "period": whole("period", 1, LONGEST),
        "stretch": whole("stretch", 1, 4),
        "decay": whole("decay", 1, LONGEST),
        "fall": one_of("fall", "linear", "sqrt"),
    }
    given = (shape, against, peak, steps, warmup, step, floor, d_model, half_life, period, stretch,
             decay, fall)  # fmt: skip
    state = {name: check(v) for (name, check), v in zip(checks.items(), given, strict=True)}
    fitting = settled(state)
    limits = {"warmup": "below", "step": "at most"}
    if "wsd" in (shape, against):
        limits["decay"] = "with the warm-up at most"
    for name, how in limits.items():
        if fitting[name] != state[name]:
            raise ValueError(f"{name} must be {how} steps = {steps}, got {state[name]}")

    def results(now: dict) -> dict:
        now = settled(now)
        own = rates_of(now["shape"], now)
        rates = [own(s) for s in range(now["steps"])]
        here, highest = own(now["step"]), max(rates)
        other = None if now["against"] == "none" else rates_of(now["against"], now)
        return {
            "rate": here,
            "factor": here / highest,
            "highest": highest,
            "mean": math.fsum(rates) / len(rates),
            "last": rates[-1],
            "against_rate": None if other is None else other(now["step"]),
        }

    def text(now: dict) -> str:
        now = settled(now)
        label, formula, _ = SHAPES[now["shape"]]
        own = rates_of(now["shape"], now)
        here, highest = own(now["step"]), own(max(_least(now["shape"]), now["warmup"]))
        chosen = "".join(
            f", {key.replace('_', ' ')} {now[key]}" for key in ("warmup", *SHAPES[now["shape"]][2])
        )
        other = ""
        if now["against"] != "none":
            there = rates_of(now["against"], now)(now["step"])
            other = f" Beside it, {SHAPES[now['against']][0]} gives {there:.3g} there."
        return wrapped(f"""{TITLE}

        Schedule: {label}; after the rise {formula}. With {now["steps"]} steps{chosen}, the
        learning rate at step {now["step"]} is {here:.3g}, {here / highest:.3f} of the highest,
        {highest:.3g}. At the last step it is {own(now["steps"] - 1):.3g}.{other}

        In the page you choose the shape and another one to compare, move the peak, the number of
        steps, the warm-up and what else the shape takes, and read the rate at any step.""")

    shapes = {
        key: {"label": label, "formula": formula, "takes": list(takes)}
        for key, (label, formula, takes) in SHAPES.items()
    }
    return Explorable(
        "schedule_designer", data={"title": TITLE, "shapes": shapes, "stops": STOPS}, state=state,
        checks=checks, results=results, text=text,
    )  # fmt: skip


def settled(now: dict) -> dict:
    """Return the choices as far as they fit into the steps."""
    warmup = min(now["warmup"], now["steps"] - 1)
    return now | {
        "warmup": warmup,
        "decay": min(now["decay"], now["steps"] - warmup),
        "step": min(now["step"], now["steps"]),
    }


def rates_of(shape: str, now: dict) -> Callable[[int], float]:
    """Return the learning rate of a schedule as a function of the step."""
    choices = {
        "floor": now["floor"], "d_model": now["d_model"],
        "half_life": now["half_life"], "period": now["period"], "stretch": now["stretch"],
        "decay": now["decay"], "fall": now["fall"],
    }  # fmt: skip
    wanted = {key: choices[key] for key in SHAPES[shape][2]}
    if "half_life" in wanted:
        wanted["rate"] = 0.5 ** (1 / wanted.pop("half_life"))
    if "fall" in wanted:
        wanted["shape"] = wanted.pop("fall")
    if shape in ("linear", "cosine", "wsd"):
        wanted["steps"] = now["steps"]
    factor = schedule(shape, warmup=max(_least(shape), now["warmup"]), **wanted)
    scale = 1.0 if shape == "noam" else now["peak"]
    return lambda step: scale * factor(step)


def _least(shape: str) -> int:
    """Return the fewest steps of warm-up that a schedule takes."""
    return 1 if shape in ("noam", "inverse_sqrt") else 0
