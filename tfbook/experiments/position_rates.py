"""Does the verdict on length depend on the rate of training? And a larger base, trained on.

The models and the text of `extrapolation`, where all weights but T5's table learn with the rate
0.005. Here every scheme is trained with two and four times that rate, too, and those with a table
of positions (T5's, the learned one) both with one rate for all weights and with ten times the rate
for the table. One seed; `extrapolation` and `position_controls` hold the rate 0.005 with three.

`further` asks one more thing of the rotary models of `position_controls`, at the rate 0.005: what
does a larger base do when the model is trained on with it?

Explained in: chapters/04_positions, section "Train short, test long".
"""

import torch
from torch import Tensor

from tfbook.experiments import extrapolation
from tfbook.experiments.extrapolation import (
    D_MODEL,
    LENGTH,
    LONG,
    N_HEADS,
    STRETCH,
    Reader,
    by_place,
    letters,
    recall_batch,
    rescale,
    short_reading,
    text_batch,
    train,
)
from tfbook.positions import LearnedPositions, NTKScaling

__all__ = ["SETTINGS", "SMOKE", "read", "run"]

SETTINGS = {
    "T5": {"scheme": "T5", "table_rate": 10.0},
    "T5, one rate": {"scheme": "T5", "table_rate": 1.0},
    "rotary": {"scheme": "rotary"},
    "ALiBi": {"scheme": "ALiBi"},
    "sinusoidal": {"scheme": "sinusoidal"},
    "learned": {"scheme": "learned"},
    "learned, tenfold rate": {
        "scheme": "learned",
        "table_rate": 10.0,
        "tables": LearnedPositions,
    },
    "none": {"scheme": "none"},
}
RATES = (0.01, 0.02)
FURTHER = (40, 160)
RATE_FURTHER = 2e-3
SMOKE = {"names": ("rotary",), "rates": (0.01,), "steps": 1, "further": (), "pieces": 1}
CARD = {
    "model": "transformer, {layers} layers of width {d_model}, 62,751 to 87,327 parameters",
    "data": "Shakespeare, in pieces of {trained}",
    "rate": "rates {rates_first:g} and {rates_last:g}",
}


def read(log: dict, name: str, model: Reader, pieces: int) -> None:
    """Note how a model reads the last 256 letters of the test pieces, short and long."""
    curve = by_place(model, "text", pieces)
    half = curve[len(curve) // 2 :]
    short, mean = short_reading(model, pieces), sum(half) / len(half)
    for part, value in (("curves", curve), ("long", mean), ("short", short)):
        log[part].setdefault(name, []).append(extrapolation.rounded(value))


def _further(task: str, model: Reader, steps: int, seed: int, text: Tensor) -> Reader:
    """Train a rotary model on with a larger base, on pieces of 512."""
    tuned, generator = rescale(model, NTKScaling(LONG / LENGTH)), torch.Generator()
    generator.manual_seed(1000 + seed)
    if task == "text":
        batches = (text_batch(text, 4, LONG, generator) for _ in range(steps))
    else:
        batches = (recall_batch(4, LONG, generator) for _ in range(steps))
    extrapolation.fit(tuned, batches, steps, RATE_FURTHER)
    return tuned


def run(
    *,
    names: tuple[str, ...] = tuple(SETTINGS),
    rates: tuple[float, ...] = RATES,
    seeds: tuple[int, ...] = (0,),
    steps: int = 350,
    further: tuple[int, ...] = FURTHER,
    pieces: int = 64,
) -> tuple[dict, None]:
    """Train every scheme with every rate, and read long pieces; then train on with a larger base.

    Returns:
        the log: `tried[rate]` holds `short`, `long` and `curves` by name, lists over seeds as in
        `position_controls`; `further` the same by the number of steps, and `recall`.
    """
    text = letters("train")
    log: dict = {"tried": {}, "further": {"short": {}, "long": {}, "curves": {}, "recall": {}}}
    for rate in rates:
        found = log["tried"].setdefault(f"{rate:g}", {"short": {}, "long": {}, "curves": {}})
        for name in names:
            for seed in seeds:
                how = {"seed": seed, "steps": steps, "text": text, "rate": rate}
                read(found, name, train("text", **how, **SETTINGS[name]), pieces)
    for seed in seeds if further else ():
        for task, counts in (("text", further), ("recall", further[:1])):
            model = train(task, "rotary", seed=seed, steps=steps, text=text)
            for count in counts:
                name, tuned = f"{count} steps", _further(task, model, count, seed, text)
                if task == "text":
                    read(log["further"], name, tuned, pieces)
                else:
                    curve = extrapolation.rounded(by_place(tuned, "recall", pieces))
                    log["further"]["recall"].setdefault(name, []).append(curve)
    settings = {"trained": LENGTH, "tested": LONG, "steps": steps, "batch": 32, "layers": 2,
                "d_model": D_MODEL, "n_heads": N_HEADS, "rates": list(rates),
                "further": list(further), "rate_further": RATE_FURTHER}  # fmt: skip
    places = [STRETCH * i + STRETCH // 2 for i in range(LONG // STRETCH)]
    return {"settings": settings, "seeds": list(seeds), "places": places, **log}, None
