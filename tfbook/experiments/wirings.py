"""At which rates can each wiring be trained, and when does depth pay?

The models, the data and the start of 2017 are those of `depth`: embedding and learned positions, L
blocks of causal attention and feed-forward network, a linear map to the characters. Each part is
added to its input ("added"), reads a normalised input as well ("pre"), or has the sum normalised
("post"). They are trained five times as long as there, at several rates, each of which rises over
the first tenth of the steps and then falls on a line to nearly 0.

The log holds the loss on 12,800 characters of another split, in nats a character and at most 99:
`losses[wiring][rate]` has a list over seeds for each depth. `long` has such a list of pre-norm at
one rate, trained eight times as long, over `long_depths`.

Source: [xiong2020layer], who compare the two norms with and without a warm-up
Explained in: chapters/05_architecture, section "Pre-norm or post-norm?".
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from tfbook.experiments.depth import BATCH, CONTEXT, LARGEST, WIDTH, batch, model_of  # noqa: F401
from tfbook.experiments.warmup import letters

__all__ = ["RATES", "SMOKE", "WIRINGS", "learn", "run", "train"]

WIRINGS = ("added", "post", "pre")
RATES = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)
SMOKE = {
    "depths": (1, 2), "seeds": (0,), "steps": 2, "rates": (0.001,), "long_steps": 3,
    "long_depths": (1,),
}  # fmt: skip
CARD = {
    "model": "decoders of {depths_first} to {depths_last} blocks, width {WIDTH}, {smallest:,} to "
    "{largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rates from {rates_first:g} to {rates_last:g}, rising and then falling",
}


def train(wiring: str, depth: int, rate: float, seed: int, steps: int = 1000) -> float:
    """Train one model; return its loss on the other split, in nats a character.

    Args:
        wiring: one of `WIRINGS`.
        depth: blocks.
        rate: of learning, at its highest.
        seed: of the weights and of the batches.
        steps: of training; the rate rises for a tenth of them.
    """
    torch.manual_seed(seed)
    model = model_of(wiring, depth, int(letters("train").max()) + 1)
    return learn(model, rate, seed, steps)


def learn(model: nn.Module, rate: float, seed: int, steps: int, rise: int = 10) -> float:
    """Train a model; return its loss on the other split, in nats a character.

    Args:
        model: of characters.
        rate: of learning, at its highest.
        seed: of the batches.
        steps: of training.
        rise: the rate rises for one in so many of them, and then falls to 0.
    """
    ids, held = letters("train"), letters("valid")
    chance, up = torch.Generator().manual_seed(seed), max(1, steps // rise)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
    for step in range(steps):
        share = min((step + 1) / up, (steps - step) / (steps - up))
        optimizer.param_groups[0]["lr"] = rate * share
        x, y = batch(ids, BATCH, chance)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).mT, y)
        if not loss.isfinite():
            return LARGEST
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x, y = batch(held, 400, torch.Generator().manual_seed(0))
        found = F.cross_entropy(model(x).mT, y).item()
    return found if found < LARGEST else LARGEST  # what is no number any more, too


def run(
    *, depths: Sequence[int] = (2, 8, 16), rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0, 1, 2), steps: int = 1000, long_rate: float = 0.004,
    long_steps: int = 8000, long_depths: Sequence[int] = (2, 8),
) -> tuple[dict, None]:  # fmt: skip
    """Train every wiring at every depth and rate with every seed, and pre-norm longer.

    Returns:
        the log: `losses[wiring][rate]` is a list over `depths` of lists over `seeds`, `long` such a
        list over `long_depths`.
    """

    def found(wiring: str, rate: float, own: int, deep: Sequence[int]) -> list[list[float]]:
        return [
            [round(train(wiring, depth, rate, seed, own), 3) for seed in seeds] for depth in deep
        ]

    vocabulary = int(letters("train").max()) + 1
    sizes = [
        sum(p.numel() for p in model_of(wiring, depth, vocabulary).parameters())
        for wiring in WIRINGS
        for depth in depths
    ]
    return {
        "settings": {
            "steps": steps, "long_rate": long_rate, "long_steps": long_steps,
            "smallest": min(sizes), "largest": max(sizes),
        },
        "seeds": list(seeds), "depths": list(depths), "long_depths": list(long_depths),
        "rates": list(rates),
        "losses": {
            wiring: {f"{rate:g}": found(wiring, rate, steps, depths) for rate in rates}
            for wiring in WIRINGS
        },
        "long": found("pre", long_rate, long_steps, long_depths),
    }, None  # fmt: skip
