"""What of the gentle start helps post-norm, and can a stack without norms start gently, too?

`gentle_start` changes two things at once: the linear maps start small, and the rate rises for twice
as long, over a fifth of the steps. Here post-norm gets one of the two at a time: small weights with
the rise of `wirings`, a tenth of the steps ("post, small weights"), and Xavier's weights with the
longer rise ("post, longer warm-up"). And a stack without any norm, its parts added, gets both
("added"). Models, data and training are those of `gentle_start`.

The log holds the loss on 12,800 characters of another split, in nats a character and at most 99:
`losses[name]` is a list over seeds, `rates[name]` the highest rate.

Explained in: chapters/05_architecture_deeper, section "A gentle start".
"""

from collections.abc import Sequence

import torch

from tfbook.experiments.depth import BATCH, CONTEXT, WIDTH, model_of  # noqa: F401 - the card
from tfbook.experiments.gentle_start import DEPTH, begin
from tfbook.experiments.warmup import letters
from tfbook.experiments.wirings import learn

__all__ = ["MODELS", "SMOKE", "run", "train"]

# Name → wiring, whether the weights start small, the share of steps of the rise, the highest rate.
MODELS = {
    "added": ("added", True, 5, 0.002),
    "post, small weights": ("post", True, 10, 0.002),
    "post, longer warm-up": ("post", False, 5, 0.001),
}
SMOKE = {"seeds": (0,), "steps": 2, "depth": 2}
CARD = {
    "model": "decoders of {DEPTH} blocks, width {WIDTH}, {smallest:,} and {largest:,} parameters; "
    "initial weights as in GPT-2, or Xavier's",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rate {highest:g}, for the longer warm-up alone {lowest:g}, rising and then falling",
}


def train(name: str, seed: int, steps: int = 1000, depth: int = DEPTH) -> float:
    """Train one model; return its loss on the other split, in nats a character."""
    wiring, small, rise, rate = MODELS[name]
    torch.manual_seed(seed)
    model = (begin if small else model_of)(wiring, depth, int(letters("train").max()) + 1)
    return learn(model, rate, seed, steps, rise)


def run(
    *, seeds: Sequence[int] = (0, 1, 2), steps: int = 1000, depth: int = DEPTH
) -> tuple[dict, None]:
    """Train every model with every seed.

    Returns:
        the log: `losses[name]` is a list over `seeds`, `rates[name]` a number.
    """
    vocabulary = int(letters("train").max()) + 1
    sizes = [
        sum(p.numel() for p in begin(wiring, depth, vocabulary).parameters())
        for wiring, *_ in MODELS.values()
    ]
    rates = {name: rate for name, (*_, rate) in MODELS.items()}
    return {
        "settings": {
            "steps": steps, "depth": depth, "smallest": min(sizes), "largest": max(sizes),
            "lowest": min(rates.values()), "highest": max(rates.values()),
        },
        "seeds": list(seeds), "rates": rates,
        "losses": {name: [round(train(name, seed, steps, depth), 3) for seed in seeds]
                   for name in MODELS},
    }, None  # fmt: skip
