"""What is left of a part's gain, and of depth, when a model trains seven times as long?

The question behind `ladder` and `depth`, whose runs have 200 steps: is a part worth its parameters,
or is it only learned sooner? Models of `ladder` and `depth` learn from 1,500 batches each: one
without a layer; one and two attentions that replace what they read, and that are added to it; six
added attentions; two attentions, each with a feed-forward network behind it, of nearly as many
parameters; the same with norms, a GPT of two blocks; six attentions with norms, of as many
parameters; the GPT as a LLaMA; and GPTs of four and of eight blocks. Each trains at two rates,
because the best one depends on the model.

The log holds the loss on 12,800 characters of another split in nats a character, one number for
each seed, `losses[rate][name]`, and the number of parameters, `parameters[name]`.

Explained in: chapters/05_architecture, section "What each part brings".
"""

import torch
from torch import nn

from tfbook import data
from tfbook.experiments import ladder
from tfbook.experiments.depth import (  # noqa: F401 - the card names the constants
    BATCH,
    CONTEXT,
    WIDTH,
    CausalAttention,
    Characters,
    Wired,
    learn,
)

__all__ = ["MODELS", "RATES", "SMOKE", "model_of", "run", "train"]

STEPS, RATES = 1500, (0.003, 0.008)
SMOKE = {"names": ("GPT",), "rates": RATES[:1], "seeds": (0,), "steps": 2}
CARD = {
    "model": "decoders of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rates {RATES_first:g} and {RATES_last:g}, rising and then falling",
}
FROM_LADDER = (
    "no layer",
    "1 attention",
    "2 attentions",
    "1 attention, added",
    "2 attentions, added",
    "6 attentions, added",
    "2 × (attention, network), added",
    "GPT",
    "LLaMA",
)
# Further models with pre-norm: the parts in a row, each with a norm before it.
DEEPER = {
    "6 attentions, norms": [CausalAttention] * 6,
    "GPT, 4 blocks": ladder.PAIR * 4,
    "GPT, 8 blocks": ladder.PAIR * 8,
}
MODELS = (*FROM_LADDER, *DEEPER)


def model_of(name: str, vocabulary: int) -> nn.Module:
    """Return an untrained model, its linear maps as PyTorch starts them."""
    if name in FROM_LADDER:
        return ladder.model_of(name, vocabulary)
    layers = [Wired(part(), "pre") for part in DEEPER[name]]
    made = Characters(vocabulary, [*layers, nn.LayerNorm(WIDTH)])
    for part in made.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    return made


def train(name: str, rate: float, seed: int, steps: int = STEPS) -> float:
    """Train one model; return its loss on the other split, in nats a character."""
    torch.manual_seed(seed)
    return learn(model_of(name, len(set(data.shakespeare("train")))), seed, steps, rate)


def run(
    *, names: tuple[str, ...] = MODELS, rates: tuple[float, ...] = RATES,
    seeds: tuple[int, ...] = (0, 1, 2), steps: int = STEPS,
) -> tuple[dict, None]:  # fmt: skip
    """Train every model at every rate with every seed.

    Returns:
        the log: `losses[rate][name]` is a list over `seeds`, `parameters[name]` a number.
    """
    vocabulary = len(set(data.shakespeare("train")))
    sizes = {
        name: sum(p.numel() for p in model_of(name, vocabulary).parameters()) for name in names
    }
    losses = {
        str(rate): {
            name: [round(train(name, rate, seed, steps), 3) for seed in seeds] for name in names
        }
        for rate in rates
    }
    return {
        "settings": {"steps": steps, "smallest": min(sizes.values()),
                     "largest": max(sizes.values())},
        "seeds": list(seeds), "parameters": sizes, "losses": losses,
    }, None  # fmt: skip
