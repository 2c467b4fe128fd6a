"""Which first weights does the first loss see, and which does learning need?

The first weights of the repaired adder have one size in `tuned_sums`. Here the embedding, which is
also the last layer of the model, has a size of its own: it, or all other matrices, are drawn as
small as is usual (0.02), as large as keeps the size of an input (0.14), or as the colleague had
them (0.6). Queries and keys have a norm, and stay as they are. Steps, seeds and sums are those of
`broken_run`.

The log holds for each pair of sizes, "embedding, others" in units of 0.02, a list over seeds of the
first loss (`first`) and of the share of new sums that is answered rightly (`exact`).

Explained in: chapters/18_practice, section "A checklist that finds the fault".
"""

from collections.abc import Sequence

import torch

from tfbook.experiments.broken_run import (
    BATCH,
    FAULTS,
    KEPT_APART,
    RATE,
    exact,
    learn,
    model_of,
    questions,
)
from tfbook.models import DecoderOnly

__all__ = ["BATCH", "PAIRS", "RATE", "SMOKE", "model_at", "run"]

PAIRS = ((30, 30), (1, 30), (7, 30), (1, 7), (7, 7), (30, 7), (1, 1), (7, 1), (30, 1))
SMOKE = {"seeds": (0,), "steps": 2, "pairs": ((1, 7),), "n_test": 5}
CARD = {
    "model": "decoder, 2 layers of width 48, 57,312 parameters",
    "data": "sums of two numbers below 20",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}",
}


def model_at(embedding: float, others: float, seed: int) -> DecoderOnly:
    """Return the repaired model, the embedding and the other matrices so many times 0.02."""
    model = model_of(FAULTS, seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name == "embed.weight":
                weight *= embedding
            elif weight.ndim == 2 and not name.endswith(("q_proj.weight", "k_proj.weight")):
                weight *= others
    return model


def run(
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    steps: int = 320,
    pairs: Sequence[tuple[float, float]] = PAIRS,
    n_test: int = KEPT_APART,
) -> tuple[dict, None]:
    """Train the repaired adder from weights of each pair of sizes."""
    known = questions()
    test = known.test[:n_test]
    runs = {}
    for pair in pairs:
        found: dict[str, list] = {"first": [], "exact": []}
        for seed in seeds:
            model, losses, _ = learn(FAULTS, seed, steps, known=known, model=model_at(*pair, seed))
            found["first"].append(round(losses[0], 4))
            found["exact"].append(round(exact(model, known.inputs[test], known.targets[test]), 4))
        runs["{:g}, {:g}".format(*pair)] = found
    return {"settings": {"seeds": list(seeds), "steps": steps}, "runs": runs}, None
