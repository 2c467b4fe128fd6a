"""Does each way to learn a preferred style lose right answers at other rates, too?

The three ways of `preferred_sums`, DPO with beta = 0.1, supervised fine-tuning on the preferred
answers ("lessons") and both losses ("mixed"), begin from the same models and read the same pairs,
at a quarter and at four times the rate of that experiment.

The log holds under `rates`, for each rate and way, a list over seeds of the shares in the preferred
style (`style`) and of right answers (`right`) after each number of steps of `at`, on samples of the
model itself for new sums.

Source: [rafailov2023direct]
Explained in: chapters/18_practice, section "Learning from comparisons".
"""

from collections.abc import Sequence

from tfbook.experiments.broken_run import model_of, questions
from tfbook.experiments.preferred_sums import BATCH, LESSONS, followed, taught

__all__ = ["BATCH", "RATES", "SMOKE", "model_of", "run"]

RATES = (5e-5, 8e-4)
WAYS = ("lessons", 0.1, "mixed")
SMOKE = {"seeds": (0,), "rates": (5e-5,), "lessons": 2, "at": (0, 1), "n_test": 2}
CARD = {
    "model": "decoder, 2 layers of width 48, 57,312 parameters",
    "data": "pairs of right answers to sums of two numbers below 20",
    "batch": "batches of {BATCH} pairs",
    "rate": "rates {RATES_first:g} and {RATES_last:g}",
}


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    rates: Sequence[float] = RATES,
    lessons: int = LESSONS,
    at: Sequence[int] = (0, 20, 40, 80),
    n_test: int = 80,
) -> tuple[dict, None]:
    """Follow each way at each rate, from the same models."""
    known = questions()
    asked = [known.texts[i] for i in known.test[:n_test].tolist()]
    found = {f"{rate:g}": {str(way): {"style": [], "right": []} for way in WAYS} for rate in rates}
    for seed in seeds:
        base = taught(known, seed, lessons)
        for rate in rates:
            for way in WAYS:
                looks = followed(base, way, seed, known, asked, at, rate)
                for k, name in enumerate(("style", "right")):
                    found[f"{rate:g}"][str(way)][name].append([look[k] for look in looks])
    settings = {"seeds": list(seeds), "steps": max(at), "lessons": lessons}
    return {"settings": settings, "at": list(at), "rates": found}, None
