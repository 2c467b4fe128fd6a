"""Would the largest models of the scaling law end lower with another learning rate?

In :mod:`tfbook.experiments.scaling` rates are searched at the widths 12 and 64, and a power of the
width laid through the two gives all others. Two of the three models that the chapter holds out of
its fits, of the widths 96 and 128, lie beyond the searched widths. Here they are trained again with
their first seed and with half of that rate, with twice as much, and, for the larger one, with
steps between. Everything else is as it was there, so its runs with the same seed can stand beside
these.

The log holds a list of `runs` with the same entries as the runs of that experiment.

Explained in: chapters/06_complexity, section "A law for the loss".
"""

from collections.abc import Mapping, Sequence

from tfbook import experiments
from tfbook.experiments.scaling import BATCH, measure, model_of

__all__ = ["FACTORS", "SMOKE", "model_of", "run"]

# Width of the model and the steps of its training → what the rate is multiplied by.
FACTORS = {(128, 310): (0.5, 0.71, 1.41, 2.0), (96, 776): (0.5, 2.0)}
SMOKE = {"factors": {(12, 2): (1.0,)}}
CARD = {
    "model": "decoders of {smallest:,} and {largest:,} parameters",
    "data": "Shakespeare, windows of 64 characters, none read twice",
    "steps": "{longest:,} and {fewest:,} steps",
    "rate": "half to twice the rates of the experiment scaling",
}


def run(
    *, factors: Mapping[tuple[int, int], Sequence[float]] = FACTORS, seed: int = 0
) -> tuple[dict, None]:
    """Train the large decoders with other rates.

    Args:
        factors: width and steps of each → what its rate is multiplied by.
        seed: of all runs.
    """
    rates = {run["width"]: run["rate"] for run in experiments.log("scaling")["runs"]
             if run["kind"] == "decoder"}  # fmt: skip
    runs = [
        measure("decoder", width, steps, seed, factor * rates[width])
        for (width, steps), tried in factors.items()
        for factor in tried
    ]
    sizes, steps = ([each[name] for each in runs] for name in ("all_parameters", "steps"))
    return {
        "settings": {
            "batch": BATCH, "smallest": min(sizes), "largest": max(sizes), "fewest": min(steps),
            "longest": max(steps),
        },
        "seeds": [seed], "runs": runs,
    }, None  # fmt: skip
