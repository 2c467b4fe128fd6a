"""Do six attentions with norms end so high only because of their learning rate, or of their norms?

In `longer_models`, six added attentions with norms end above six without. Here they train at three
more rates, below, between and above the two of `longer_models`. And six attentions get the last
norm only, none before the parts ("6 attentions, last norm"), at the two rates of `longer_models`.
Everything else is as there.

The log holds the loss on 12,800 characters of another split in nats a character, one number for
each seed, `losses[name][rate]`, and the number of parameters, `parameters[name]`.

Explained in: chapters/05_architecture, section "What each part brings".
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from tfbook.experiments.depth import (
    BATCH,  # noqa: F401 - the card
    CONTEXT,  # noqa: F401 - the card
    WIDTH,
    CausalAttention,
    Characters,
    Wired,
    learn,
)
from tfbook.experiments.warmup import letters

__all__ = ["MODELS", "SMOKE", "model_of", "run", "train"]

STEPS = 1500
# Name → the wiring of its parts, the highest rates.
MODELS = {
    "6 attentions, norms": ("pre", (0.001, 0.005, 0.016)),
    "6 attentions, last norm": ("added", (0.003, 0.008)),
}
SMOKE = {"models": {"6 attentions, norms": ("pre", (0.001,))}, "seeds": (0,), "steps": 2}
CARD = {
    "model": "six added attentions, width {WIDTH}, {smallest:,} and {largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rates {lowest:g} to {highest:g}, rising and then falling",
}


def model_of(wiring: str, vocabulary: int) -> nn.Module:
    """Return untrained six attentions with a norm at the end, as PyTorch starts them."""
    layers = [Wired(CausalAttention(), wiring) for _ in range(6)]
    made = Characters(vocabulary, [*layers, nn.LayerNorm(WIDTH)])
    for part in made.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    return made


def train(wiring: str, rate: float, seed: int, steps: int = STEPS) -> float:
    """Train one model; return its loss on the other split, in nats a character."""
    torch.manual_seed(seed)
    return learn(model_of(wiring, int(letters("train").max()) + 1), seed, steps, rate)


def run(
    *, models: Mapping[str, tuple[str, Sequence[float]]] = MODELS,
    seeds: Sequence[int] = (0, 1, 2), steps: int = STEPS,
) -> tuple[dict, None]:  # fmt: skip
    """Train every model at its rates with every seed.

    Returns:
        the log: `losses[name][rate]` is a list over `seeds`, `parameters[name]` a number.
    """
    vocabulary = int(letters("train").max()) + 1
    sizes = {
        name: sum(p.numel() for p in model_of(wiring, vocabulary).parameters())
        for name, (wiring, _) in models.items()
    }
    losses = {
        name: {
            f"{rate:g}": [round(train(wiring, rate, seed, steps), 3) for seed in seeds]
            for rate in rates
        }
        for name, (wiring, rates) in models.items()
    }
    every = [rate for _, rates in models.values() for rate in rates]
    return {
        "settings": {
            "steps": steps, "smallest": min(sizes.values()), "largest": max(sizes.values()),
            "lowest": min(every), "highest": max(every),
        },
        "seeds": list(seeds), "parameters": sizes, "losses": losses,
    }, None  # fmt: skip
