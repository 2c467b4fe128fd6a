"""Which wiring learns with sixteen blocks, if the weights start as PyTorch starts them?

The models, the data and the training are those of `wirings`, with sixteen blocks: each part is
added to its input ("added"), is added and the sum normalised ("post"), or reads a normalised input
and is added ("pre"). There the linear maps start from Xavier's weights, here from the smaller ones
of PyTorch; nothing else differs. Each wiring is trained at two of the rates, with two seeds.

The log holds the loss on 12,800 characters of another split, in nats a character and at most 99:
`losses[wiring][rate]` is a list over seeds.

Source: [xiong2020layer], who compare the two norms with and without a warm-up
Explained in: chapters/05_architecture, section "Pre-norm or post-norm?".
"""

from collections.abc import Mapping, Sequence

import torch

from tfbook.experiments.depth import BATCH, CONTEXT, WIDTH, model_of  # noqa: F401 - the card
from tfbook.experiments.gentle_start import results
from tfbook.experiments.warmup import letters
from tfbook.experiments.wirings import learn

__all__ = ["RATES", "SMOKE", "run", "train"]

DEPTH = 16
RATES = {"added": (0.002, 0.004), "post": (0.002, 0.004), "pre": (0.004, 0.008)}
SMOKE = {
    "rates": {"added": (0.004,), "post": (0.002,), "pre": (0.004,)},
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


def train(wiring: str, rate: float, seed: int, steps: int = 1000, depth: int = DEPTH) -> float:
    """Train one model; return its loss on the other split, in nats a character."""
    torch.manual_seed(seed)
    model = model_of(wiring, depth, int(letters("train").max()) + 1, "pytorch")
    return learn(model, rate, seed, steps)


def run(
    *, rates: Mapping[str, Sequence[float]] = RATES, seeds: Sequence[int] = (0, 1),
    steps: int = 1000, depth: int = DEPTH,
) -> tuple[dict, None]:  # fmt: skip
    """Train every wiring at its rates.

    Returns:
        the log: `losses[wiring][rate]` is a list over `seeds`.
    """
    return results(model_of, train, rates, seeds, steps, depth), None
