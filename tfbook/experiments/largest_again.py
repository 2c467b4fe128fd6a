"""How much of the luck of one seed is in the largest models of the scaling law?

In :mod:`tfbook.experiments.scaling` the largest decoder that read an amount of text was trained
once, because it is dear. Here the three that the chapter holds out of its fits are trained twice
more, with other seeds. Everything else, the rate included, is as it was there, so its runs and
these can be put together.

The log holds a list of `runs` with the same entries as the runs of that experiment.

Explained in: chapters/06_complexity, section "A law for the loss".
"""

from collections.abc import Sequence

from tfbook import experiments
from tfbook.experiments.scaling import BATCH, measure, model_of

__all__ = ["HELD_OUT", "SMOKE", "model_of", "run"]

# Width of the largest decoder and the steps that it was trained for.
HELD_OUT = ((128, 310), (96, 776), (64, 1940))
SMOKE = {"held_out": ((12, 2),), "seeds": (1,)}
CARD = {
    "model": "decoders of {smallest:,} to {largest:,} parameters",
    "data": "Shakespeare, windows of 64 characters, none read twice",
    "steps": "{fewest:,} to {longest:,} steps",
    "rate": "the rates of the experiment scaling",
}


def run(
    *, held_out: Sequence[tuple[int, int]] = HELD_OUT, seeds: Sequence[int] = (1, 2)
) -> tuple[dict, None]:
    """Train the largest decoders again.

    Args:
        held_out: width and steps of each.
        seeds: of the runs.
    """
    rates = {run["width"]: run["rate"] for run in experiments.log("scaling")["runs"]
             if run["kind"] == "decoder"}  # fmt: skip
    runs = [
        measure("decoder", width, steps, seed, rates[width])
        for width, steps in held_out
        for seed in seeds
    ]
    sizes, steps = ([each[name] for each in runs] for name in ("all_parameters", "steps"))
    return {
        "settings": {
            "batch": BATCH, "smallest": min(sizes), "largest": max(sizes), "fewest": min(steps),
            "longest": max(steps),
        },
        "seeds": list(seeds), "runs": runs,
    }, None  # fmt: skip
