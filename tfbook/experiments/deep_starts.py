"""Which wiring learns from which starting weights, if only the weights differ?

The models, the data and the training are those of `wirings`, with sixteen blocks: each part is
added to its input ("added"), is added and the sum normalised ("post"), or reads a normalised input
and is added ("pre"). There the linear maps start from Xavier's weights. Here they start as PyTorch
starts them ("pytorch"), or small, as in GPT-2 ("small"); nothing else changes, the warm-up neither.
Each pair of a start and a wiring is trained at some of the rates of `wirings`, with one seed.

The log holds the loss on 12,800 characters of another split, in nats a character and at most 99:
`losses[start][wiring][rate]` is a list over seeds.

Source: [xiong2020layer], who compare the two norms with and without a warm-up
Explained in: chapters/05_architecture, section "Pre-norm or post-norm?".
"""

from collections.abc import Mapping, Sequence

import torch

from tfbook.experiments.depth import BATCH, CONTEXT, WIDTH, model_of  # noqa: F401 - the card
from tfbook.experiments.gentle_start import begin
from tfbook.experiments.warmup import letters
from tfbook.experiments.wirings import learn

__all__ = ["RATES", "SMOKE", "run", "train"]

DEPTH = 16
RATES = {
    "pytorch": {
        "added": (0.002, 0.004, 0.008),
        "post": (0.001, 0.002),
        "pre": (0.002, 0.004, 0.008),
    },
    "small": {"added": (0.002, 0.004), "post": (0.002, 0.004), "pre": (0.002, 0.004)},
}
SMOKE = {"rates": {"pytorch": {"pre": (0.002,)}, "small": {"added": (0.002,)}}, "steps": 2,
         "depth": 2}  # fmt: skip
CARD = {
    "model": "decoders of {DEPTH} blocks, width {WIDTH}, {smallest:,} to {largest:,} parameters; "
    "initial weights of PyTorch, and as in GPT-2",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rates from {lowest:g} to {highest:g}, rising and then falling",
}


def train(
    start: str, wiring: str, rate: float, seed: int, steps: int = 1000, depth: int = DEPTH
) -> float:
    """Train one model; return its loss on the other split, in nats a character."""
    torch.manual_seed(seed)
    vocabulary = int(letters("train").max()) + 1
    if start == "small":
        model = begin(wiring, depth, vocabulary)
    else:
        model = model_of(wiring, depth, vocabulary, start)
    return learn(model, rate, seed, steps)


def run(
    *, rates: Mapping[str, Mapping[str, Sequence[float]]] = RATES, seeds: Sequence[int] = (0,),
    steps: int = 1000, depth: int = DEPTH,
) -> tuple[dict, None]:  # fmt: skip
    """Train every wiring from every start at its rates.

    Returns:
        the log: `losses[start][wiring][rate]` is a list over `seeds`.
    """
    vocabulary = int(letters("train").max()) + 1
    sizes = [
        sum(p.numel() for p in model_of(wiring, depth, vocabulary).parameters())
        for wirings in rates.values()
        for wiring in wirings
    ]
    own = [rate for wirings in rates.values() for each in wirings.values() for rate in each]
    losses = {
        start: {
            wiring: {
                f"{rate:g}": [
                    round(train(start, wiring, rate, seed, steps, depth), 3) for seed in seeds
                ]
                for rate in each
            }
            for wiring, each in wirings.items()
        }
        for start, wirings in rates.items()
    }
    return {
        "settings": {
            "steps": steps, "depth": depth, "smallest": min(sizes), "largest": max(sizes),
            "lowest": min(own), "highest": max(own),
        },
        "seeds": list(seeds), "losses": losses,
    }, None  # fmt: skip
