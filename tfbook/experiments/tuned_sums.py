"""Which of five repairs does a run need, and what of the repaired run is tuned first?

The program of the experiment broken_run has five faults. First each is left in alone: four faults
are repaired and one is not ("without"). Then all are repaired, and the weights are drawn at several
scales, as multiples of 0.02 ("started"). At width 48 a scale of 7 draws them with a standard
deviation of 1/√48, so that a matrix keeps the size of what it is given. Last, with weights of that
size, the peak of the learning rate is swept at two widths ("swept"), and at three rates with
weights of scale 1 ("small"). All runs have as many steps as those of broken_run, the same seeds,
and the same 80 sums kept apart.

The log holds for each fault that was left in, for each scale, and for each width and rate, a list
over seeds of the share of new sums that is answered rightly (`exact`), of that share of the first
and of the second half of them (`halves`, for scales and small weights), and of their loss (`held`);
for each scale also of the first loss (`first`), and means of 10 steps (`loss`). Under `mirrors` it
holds, for weights that keep the size, how many of the sums kept apart have a mirror that is learned
(8+3 of 3+8) and how many have not (`asked`), and how many of either each seed answers (`right`).

Explained in: chapters/18_practice, section "What to tune first".
"""

from collections.abc import Mapping, Sequence

import torch

from tfbook.experiments.broken_run import (
    BATCH,
    EVERY,
    FAULTS,
    KEPT_APART,
    LARGEST,
    RATE,
    Questions,
    answer,
    exact,
    learn,
    loss_of,
    model_of,
    questions,
)
from tfbook.models import DecoderOnly

__all__ = ["BATCH", "RATES", "SCALES", "SMOKE", "WIDTHS", "model_at", "run", "tuned"]

RATES = (0.0005, 0.0015, 0.005, 0.015, 0.05)
KEEPING = 7  # at width 48
WIDTHS = {24: 10, 48: KEEPING}  # width → scale of the weights
SMALL_RATES = (0.0015, 0.005, 0.015)
SCALES = (1, 3, 7, 15, 30)
SMOKE = {
    "seeds": (0,), "steps": 10, "rates": (0.005,), "widths": {24: 10}, "scales": (7,), "n_test": 5,
    "small_rates": (0.005,),
}  # fmt: skip
CARD = {
    "model": "decoder, 2 layers of width 24 or 48, 14,832 or 57,312 parameters",
    "data": "sums of two numbers below 20",
    "batch": "batches of {BATCH}",
    "rate": "rates {rates_first:g} to {rates_last:g}",
}


def model_at(scale: float, seed: int, *, width: int = 48) -> DecoderOnly:
    """Return the repaired model, with weights so many times 0.02; queries and keys have a norm."""
    model = model_of(FAULTS, seed, width=width)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and not name.endswith(("q_proj.weight", "k_proj.weight")):
                weight *= scale
    return model


def tuned(
    model: DecoderOnly, known: Questions, seed: int, steps: int, rate: float = RATE
) -> tuple[DecoderOnly, list[float]]:
    """Train a repaired model, at a peak of the rate; return it and its losses."""
    return learn(FAULTS, seed, steps, rate=rate, model=model, known=known)[:2]


@torch.no_grad()
def measured(model: DecoderOnly, known: Questions, n_test: int) -> dict[str, float]:
    """Return the share of new sums answered rightly, and their loss."""
    test = known.test[:n_test]
    inputs, targets = known.inputs[test], known.targets[test]
    held = loss_of(model, inputs, targets).item()
    return {"exact": round(exact(model, inputs, targets), 4), "held": round(held, 4)}


@torch.no_grad()
def halves(model: DecoderOnly, known: Questions, n_test: int) -> list[float]:
    """Return the share of new sums answered rightly, of either half of them."""
    parts = known.test[:n_test].tensor_split(2)
    return [round(exact(model, known.inputs[p], known.targets[p]), 4) for p in parts]


@torch.no_grad()
def mirrored(model: DecoderOnly, known: Questions, n_test: int) -> tuple[list[int], list[int]]:
    """Return how many new sums have a mirror that is learned, and not; and how many are right."""
    test, width = known.test[:n_test], LARGEST + 1
    twin = torch.isin(test % width * width + test // width, known.train)
    right = (answer(model, known.inputs[test], known.targets[test]) == known.targets[test]).all(1)
    return tuple([int(found[twin].sum()), int(found[~twin].sum())]
                 for found in (torch.ones_like(right), right))  # fmt: skip


def columns(rows: Sequence[dict]) -> dict[str, list]:
    """Turn what was measured of each seed into a list over seeds of each measure."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    steps: int = 320,
    rates: Sequence[float] = RATES,
    widths: Mapping[int, float] = WIDTHS,
    scales: Sequence[float] = SCALES,
    small_rates: Sequence[float] = SMALL_RATES,
    n_test: int = KEPT_APART,
) -> tuple[dict, None]:
    """Leave each repair out once, draw weights at several scales, then sweep the rate."""
    known = questions()
    without, started, swept, small, mirrors = {}, {}, {}, {}, {"asked": [], "right": []}
    for fault in FAULTS:
        others = [each for each in FAULTS if each != fault]
        models = [learn(others, seed, steps, known=known)[0] for seed in seeds]
        without[fault] = columns([measured(model, known, n_test) for model in models])
    for scale in scales:
        rows = []
        for seed in seeds:
            model, losses = tuned(model_at(scale, seed), known, seed, steps)
            means = torch.tensor(losses).view(-1, EVERY).mean(1).tolist()
            looked = {"first": round(losses[0], 4), "loss": [round(x, 4) for x in means]}
            looked["halves"] = halves(model, known, n_test)
            rows.append(measured(model, known, n_test) | looked)
            if scale == KEEPING:
                mirrors["asked"], right = mirrored(model, known, n_test)
                mirrors["right"].append(right)
        started[f"{scale:g}"] = columns(rows)
    for rate in small_rates:
        rows = []
        for seed in seeds:
            model = tuned(model_at(1, seed), known, seed, steps, rate)[0]
            rows.append(measured(model, known, n_test) | {"halves": halves(model, known, n_test)})
        small[f"{rate:g}"] = columns(rows)
    for width, scale in widths.items():
        swept[str(width)] = {}
        for rate in rates:
            begun = [model_at(scale, seed, width=width) for seed in seeds]
            models = [
                tuned(model, known, seed, steps, rate)[0]
                for model, seed in zip(begun, seeds, strict=True)
            ]
            swept[str(width)][f"{rate:g}"] = columns([measured(m, known, n_test) for m in models])
    settings = {"seeds": list(seeds), "steps": steps, "rates": list(rates)}
    return {
        "settings": settings, "every": EVERY, "without": without, "started": started,
        "swept": swept, "small": small, "mirrors": mirrors,
    }, None  # fmt: skip
