"""Does the mended adder answer sums that no choice has seen, and does it need their mirrors?

The mended adder of `tuned_sums` (all five repairs, weights that keep the size) is trained again as
there. Its 80 new sums have been asked after every repair, and 58 of them have a mirror among the
sums that are learned, 8+3 of 3+8. So it is trained in three more ways:

- "no mirrors": without the mirrors of the new sums;
- "as few": with the mirrors, and without as many other sums;
- "fresh": another 80 sums are kept apart, and the seeds are new.

The log holds, for each way, how many sums are learned (`learned`) and, seed by seed, the share of
its 80 new sums that is answered rightly (`exact`).

Explained in: chapters/18_practice, section "A test that leaks".
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tfbook.experiments.broken_run import (
    BATCH,
    KEPT_APART,
    LARGEST,
    RATE,
    Questions,
    exact,
    model_of,
    questions,
)
from tfbook.experiments.tuned_sums import KEEPING, model_at, tuned

__all__ = ["BATCH", "RATE", "SMOKE", "model_of", "run", "ways_of"]

SMOKE = {"seeds": (0,), "steps": 2, "n_test": 5}
CARD = {
    "model": "decoder, 2 layers of width 48, 57,312 parameters",
    "data": "sums of two numbers below 20",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}",
}


def ways_of(known: Questions) -> dict[str, tuple[Tensor, Tensor]]:
    """Return for each way which sums are learned, and which are new."""
    width, test = LARGEST + 1, known.test
    twins = torch.isin(known.train, test % width * width + test // width)
    paired, others = known.train[twins], known.train[~twins]
    mixed = torch.randperm(len(known.texts), generator=torch.Generator().manual_seed(8))
    return {
        "as before": (known.train, test),
        "no mirrors": (others, test),
        "as few": (torch.cat([paired, others[len(paired) :]]), test),
        "fresh": (mixed[KEPT_APART:], mixed[:KEPT_APART]),
    }


def run(
    *, seeds: Sequence[int] = (0, 1, 2, 3, 4), steps: int = 320, n_test: int = KEPT_APART
) -> tuple[dict, None]:
    """Train the mended adder in each way, and ask what is new to it."""
    known, ways = questions(), {}
    for name, (train, test) in ways_of(known).items():
        new, shares = test[:n_test], []
        for seed in seeds:
            own = seed + 10 * (name == "fresh")
            parted = known._replace(train=train, test=test)
            model, _ = tuned(model_at(KEEPING, own), parted, own, steps)
            shares.append(round(exact(model, known.inputs[new], known.targets[new]), 4))
        ways[name] = {"learned": len(train), "exact": shares}
    return {"settings": {"seeds": list(seeds), "steps": steps}, "ways": ways}, None
