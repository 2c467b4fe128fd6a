"""Does a schedule pay in a run that is ten times as long as those of `ingredients`?

The decoder of `ingredients` reads ten times as many batches, with the loops that a short run cannot
tell apart: gradient descent at its larger rate; AdamW with clipping at a constant rate, with a rise
alone, and with a rise and a fall, at three rates; at 0.01 also with the fall alone, without
clipping and without weight decay; and with a rise and a fall at 0.03 and at 0.1.

The log holds, for each loop, the loss on 4,096 letters of the validation text in nats a letter
after each tenth of the run (`losses`, a list for each seed).

Explained in: chapters/11_training, section "Warm-up and decay".
"""

from tfbook.experiments import ingredients
from tfbook.experiments.ingredients import BATCH, LENGTH, TENTHS, begin  # noqa: F401 - the card

__all__ = ["LOOPS", "SMOKE", "run"]

STEPS = 2000
LOOPS = (
    "SGD, rate 0.2",
    "AdamW, rate 0.001, clipped",
    "rate 0.001, clipped",
    "AdamW, rate 0.003, clipped",
    "rise alone, rate 0.003",
    "rate 0.003, clipped",
    "AdamW, rate 0.01, clipped",
    "rise alone",
    "fall alone",
    "rate 0.01, clipped",
    "rate 0.01",
    "no decay",
    "rate 0.03, clipped",
    "rate 0.1, clipped",
)
SMOKE = {"names": LOOPS[-1:], "seeds": (0,), "steps": 10}
CARD = {**ingredients.CARD, "batch": "batches of {BATCH}"}


def run(
    *, seeds: tuple[int, ...] = (0, 1, 2), steps: int = STEPS, names: tuple[str, ...] = LOOPS
) -> tuple[dict, None]:
    """Train with every loop and every seed.

    Returns:
        the log: `losses` by name, lists over seeds of lists over `after`, shares of the run.
    """
    losses: dict[str, list[list[float]]] = {name: [] for name in names}
    for name in names:
        for seed in seeds:
            _, course, _ = ingredients.train(name, seed, steps)
            losses[name].append([round(loss, 3) for loss in course])
    after = [k / TENTHS for k in range(TENTHS + 1)]
    settings = {"steps": steps, "batch": BATCH}
    return {"settings": settings, "seeds": list(seeds), "after": after, "losses": losses}, None
