"""Which rates does each wiring bear with sixteen blocks, from the weights of PyTorch?

`deep_starts` trains every wiring at two rates, near its best one. Here each wiring gets a higher
rate, with the first of the two seeds. Models, data, training and start are those of `deep_starts`.

The log holds the loss on 12,800 characters of another split, in nats a character and at most 99:
`losses[wiring][rate]` is a list over seeds.

Source: [xiong2020layer], who compare the two norms with and without a warm-up
Explained in: chapters/05_architecture, section "Pre-norm or post-norm?".
"""

from collections.abc import Mapping, Sequence

from tfbook.experiments.deep_starts import (  # noqa: F401 - the card, and the models of the test
    BATCH,
    CONTEXT,
    DEPTH,
    WIDTH,
    model_of,
    train,
)
from tfbook.experiments.gentle_start import results

__all__ = ["RATES", "SMOKE", "run"]

RATES = {"added": (0.016,), "post": (0.008,), "pre": (0.016,)}
SMOKE = {
    "rates": {"added": (0.016,), "post": (0.008,), "pre": (0.016,)},
    "seeds": (0,),
    "steps": 2,
    "depth": 2,
}
CARD = {
    "model": "decoders of {DEPTH} blocks, width {WIDTH}, {smallest:,} to {largest:,} parameters; "
    "PyTorch's initial weights",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rates from {lowest:g} to {highest:g}, rising and then falling",
}


def run(
    *, rates: Mapping[str, Sequence[float]] = RATES, seeds: Sequence[int] = (0,),
    steps: int = 1000, depth: int = DEPTH,
) -> tuple[dict, None]:  # fmt: skip
    """Train every wiring at a higher rate than `deep_starts` does.

    Returns:
        the log: `losses[wiring][rate]` is a list over `seeds`.
    """
    return results(model_of, train, rates, seeds, steps, depth), None
