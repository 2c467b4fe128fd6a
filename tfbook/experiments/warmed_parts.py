"""In which matrices do long first steps do their harm?

The decoder of `ingredients` is trained at the rate 0.01, without clipping and without decay. Of its
four kinds of matrices one alone gets the warm-up of a tenth of the steps ("alone"), or all others
get it and this one does not ("all others"). The batches and seeds are those of `inside_the_loop`.

The log holds, as `losses[way][part]`, losses on 4,096 letters of the validation text, in nats a
letter, and as `norms[way][part]` the longest gradient in steps 3 to 39; lists are over seeds.

Explained in: chapters/11_training, section "What the first steps leave behind".
"""

from collections.abc import Sequence

import torch
from torch import nn

from tfbook.data import Windows
from tfbook.experiments import ingredients
from tfbook.experiments.ingredients import ADAMW, BATCH, LENGTH, STEPS, begin, held_out
from tfbook.experiments.inside_the_loop import PARTS, SEEN, _courses, _loss
from tfbook.experiments.warmup import letters

__all__ = ["SMOKE", "WAYS", "run", "train"]

RATE = 0.01
WAYS = {"alone": True, "all others": False}  # does the part get the warm-up, or the rest?
FIRST = 3  # the norms of the steps before are long in every run
SMOKE = {"seeds": (0,), "steps": 5, "parts": ("embedding",)}
CARD = {
    **ingredients.CARD,
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}, warm-up as named",
}


def train(part: str, way: str, seed: int, steps: int = STEPS) -> tuple[float, float]:
    """Return the held-out loss at the end, and the longest gradient of the first steps."""
    model, rise = begin(seed), _courses(steps)["rise"]
    groups: tuple[list, list] = ([], [])  # without a warm-up, with one
    for name, weight in model.named_parameters():
        inside = any(piece in name for piece in PARTS[part])
        groups[inside == WAYS[way]].append(weight)
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=RATE, **ADAMW)
    drawn, norms = Windows(letters("train"), LENGTH, batch_size=BATCH, seed=seed), []
    for step in range(steps):
        optimizer.param_groups[1]["lr"] = RATE * rise(step)
        optimizer.zero_grad()
        _loss(model, drawn(step)).backward()
        norms.append(nn.utils.get_total_norm([w.grad for w in model.parameters()]).item())
        optimizer.step()
    return round(held_out(model), 3), round(max(norms[FIRST:SEEN]), 2)


def run(
    *, seeds: Sequence[int] = (0, 1, 2), steps: int = STEPS, parts: Sequence[str] = tuple(PARTS)
) -> tuple[dict, None]:
    """Train with every part, both ways and every seed."""
    found = {
        way: {part: [train(part, way, seed, steps) for seed in seeds] for part in parts}
        for way in WAYS
    }
    log = {
        name: {
            way: {part: [each[k] for each in ends] for part, ends in those.items()}
            for way, those in found.items()
        }
        for k, name in enumerate(("losses", "norms"))
    }
    return {"settings": {"steps": steps, "batch": BATCH}, "seeds": list(seeds), **log}, None
