"""Of models that cost the same to train, is neither the smallest nor the largest the best?

Seven decoders of two layers learn to predict the next character of Shakespeare, all with the same
budget of FLOPs: the small ones read much text, the large ones little. No window is read twice. The
budget is counted in full: three times the products of a pass, with those of the scores, the mixed
values and the map to the characters, which for models of this size cost more than half; 6 N D
would leave them out. Everything else is as in :mod:`tfbook.experiments.scaling`: each run has a
schedule of its own, and the rate of its width.

The log holds the `budget` and a list of `runs`, each with its width, its `parameters` without
tables, the FLOPs that it needs `a_token`, the characters it reads (`tokens`) in `steps`, its `seed`
and `rate`, and its `loss` on another split, in nats a character.

Explained in: chapters/06_complexity_deeper, section "Testing the advice of a law".
"""

from collections.abc import Sequence

import torch
from torch import nn

from tfbook.experiments import scaling
from tfbook.experiments.warmup import letters
from tfbook.models import FFN, Attention, Layer, NextToken, Norm, Rotary, TransformerConfig, build

__all__ = ["SMOKE", "WIDTHS", "a_token", "model_of", "run"]

WIDTHS, LAYERS = (6, 8, 12, 16, 20, 24, 32), 2
FOUND = {12: 0.032, 64: 0.008}  # rates that the search of `scaling` found
SMOKE = {"widths": (6,), "seeds": (0,), "budget": 2e7}
CARD = {
    "model": "decoders of {LAYERS} layers, at most {largest:,} parameters without tables",
    "data": "Shakespeare, windows of 64 characters, none read twice",
    "steps": "{most_steps:,} to {fewest_steps} steps, the wider the fewer",
    "rate": "rates {highest:.2g} to {lowest:.2g}, the wider the lower",
}


def model_of(width: int) -> nn.Module:
    """Return an untrained decoder, of the kind of `scaling`, for widths that it does not have."""
    attention = Attention(max(1, width // 16), position=Rotary(), bias=False)
    layer = Layer(attention, FFN(4 * width, "gelu", bias=False), norm=Norm("rms"))
    vocabulary, head = int(letters("train").max()) + 1, NextToken(tie_embeddings=False)
    made = build(TransformerConfig(vocabulary, width, decoder=[layer] * LAYERS, head=head))
    for name, weight in made.named_parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=1.0 if "embed" in name else weight.shape[1] ** -0.5)
    return made


def a_token(width: int) -> int:
    """Count the FLOPs of training for one token, forward and back, with all pairs and the map."""
    vocabulary = int(letters("train").max()) + 1
    products = LAYERS * (12 * width**2 + 2 * scaling.CONTEXT * width) + vocabulary * width
    return 6 * products


def run(
    *, widths: Sequence[int] = WIDTHS, seeds: Sequence[int] = (0, 1, 2), budget: float = 1.65e10
) -> tuple[dict, None]:
    """Train a model of each width with each seed until the budget is spent."""
    runs = []
    for width in widths:
        rate = scaling.rate_of(FOUND, width)
        steps = max(1, round(budget / a_token(width) / (scaling.BATCH * scaling.CONTEXT)))
        for seed in seeds:
            torch.manual_seed(seed)
            model = model_of(width)
            scaling.train(model, steps, seed, rate)
            runs.append({
                "width": width, "parameters": scaling.size_of(model)[0],
                "a_token": a_token(width), "tokens": steps * scaling.BATCH * scaling.CONTEXT,
                "steps": steps, "seed": seed, "rate": round(rate, 5),
                "loss": round(scaling.held_out(model)[0], 4),
            })  # fmt: skip
    return {
        "settings": {
            "batch": scaling.BATCH,
            "smallest": min(each["parameters"] for each in runs),
            "largest": max(each["parameters"] for each in runs),
            "most_steps": max(each["steps"] for each in runs),
            "fewest_steps": min(each["steps"] for each in runs),
            "highest": max(each["rate"] for each in runs),
            "lowest": min(each["rate"] for each in runs),
        },
        "seeds": list(seeds), "budget": budget, "runs": runs,
    }, None  # fmt: skip
