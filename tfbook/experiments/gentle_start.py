"""Can post-norm be deep if it starts gently, and can a stack without residual connections?

The models, the data and the training are those of `wirings`, with sixteen blocks. But the linear
maps start small, as in GPT-2 (normal, with a standard deviation of 0.02, and smaller by the root of
the number of parts where a map writes to the stream), and the rate rises over the first fifth of
the steps. The parts are added and the sum is normalised ("post"), read a normalised input and are
added ("pre"), or read a normalised input and take the place of what they have read ("replaced").

The log holds the loss on 12,800 characters of another split, in nats a character and at most 99:
`losses[wiring][rate]` is a list over seeds.

Source: [xiong2020layer], who compare the two norms with and without a warm-up
Explained in: chapters/05_architecture_deeper, section "A gentle start".
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from tfbook.experiments.depth import (
    BATCH,  # noqa: F401 - the card
    CONTEXT,  # noqa: F401 - the card
    WIDTH,  # noqa: F401 - the card
    Characters,
    Wired,
    model_of,
)
from tfbook.experiments.warmup import letters
from tfbook.experiments.wirings import learn

__all__ = ["RATES", "SMOKE", "begin", "results", "run", "train"]

DEPTH = 16
RATES = {"post": (0.001, 0.002), "pre": (0.002,), "replaced": (0.002,)}
SMOKE = {"rates": {"replaced": (0.002,)}, "seeds": (0,), "steps": 2, "depth": 2}
CARD = {
    "model": "decoders of {DEPTH} blocks, width {WIDTH}, {smallest:,} and {largest:,} parameters; "
    "initial weights as in GPT-2",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rate {highest:g}, for post-norm also {lowest:g}, rising over a fifth of the steps, "
    "then falling",
}


class Replacing(Wired):
    """A part that reads through a norm and takes the place of what it has read."""

    def forward(self, x: Tensor) -> Tensor:
        """Pass x through."""
        return self.part(self.norm(x))


def begin(wiring: str, depth: int, vocabulary: int) -> Characters:
    """Return an untrained model, its linear maps drawn as in GPT-2."""
    model = model_of("pre" if wiring == "replaced" else wiring, depth, vocabulary)
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear):
            writes = name.endswith((".out", ".part.2")) and wiring != "replaced"
            nn.init.normal_(part.weight, std=0.02 / (math.sqrt(2 * depth) if writes else 1))
        if wiring == "replaced" and isinstance(part, Wired):
            part.__class__ = Replacing
    return model


def train(wiring: str, rate: float, seed: int, steps: int = 1000, depth: int = DEPTH) -> float:
    """Train one model; return its loss on the other split, in nats a character."""
    torch.manual_seed(seed)
    model = begin(wiring, depth, int(letters("train").max()) + 1)
    return learn(model, rate, seed, steps, rise=5)


def results(
    begin: Callable, train: Callable, rates: Mapping[str, Sequence[float]], seeds: Sequence[int],
    steps: int, depth: int,
) -> dict:  # fmt: skip
    """Return the log of `run`: `begin` makes the models that are counted, `train` trains one."""
    vocabulary = int(letters("train").max()) + 1
    sizes = [
        sum(p.numel() for p in begin(wiring, depth, vocabulary).parameters()) for wiring in rates
    ]
    losses = {
        wiring: {
            f"{rate:g}": [round(train(wiring, rate, seed, steps, depth), 3) for seed in seeds]
            for rate in own
        }
        for wiring, own in rates.items()
    }
    return {
        "settings": {
            "steps": steps, "depth": depth, "smallest": min(sizes), "largest": max(sizes),
            "lowest": min(map(min, rates.values())), "highest": max(map(max, rates.values())),
        },
        "seeds": list(seeds), "losses": losses,
    }  # fmt: skip


def run(
    *, rates: Mapping[str, Sequence[float]] = RATES, seeds: Sequence[int] = (0, 1, 2),
    steps: int = 1000, depth: int = DEPTH,
) -> tuple[dict, None]:  # fmt: skip
    """Train every wiring at its rates with every seed.

    Returns:
        the log: `losses[wiring][rate]` is a list over `seeds`.
    """
    return results(begin, train, rates, seeds, steps, depth), None
