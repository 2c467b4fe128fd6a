"""Which of Adam's two means does a long gradient spoil?

The decoder of `ingredients`, at the rate 0.01 with warm-up and decay, which gains most from
clipping. Adam keeps a mean of gradients, m, which gives the direction of a step, and one of their
squares, v, which gives its size. Here a gradient that is longer than 1 is shortened before it
enters both ("both"), one of them ("m", "v") or none ("none"); or each gradient, long or short, is
brought to length 1 ("always 1"). Others clip both, at another length.

The log holds the loss on 4,096 letters of the validation text in nats a letter at the end
(`losses[name]`, a list over seeds) and the lengths of the gradients of the first 40 steps
(`lengths[name]`, a list over seeds of lists).

Source: [pascanu2013difficulty]
Explained in: chapters/11_training_deeper, section "What does clipping gain?".
"""

import math
from collections.abc import Sequence

import torch

from tfbook.data import Windows
from tfbook.experiments import ingredients
from tfbook.experiments.ingredients import ADAMW, BATCH, LENGTH, STEPS, begin
from tfbook.experiments.warmup import letters
from tfbook.optimization import schedule
from tfbook.training import causal_loss

__all__ = ["SMOKE", "WAYS", "run", "train"]

# Name → the longest gradient that enters m, and v.
WAYS = {
    "none": (math.inf, math.inf),
    "both": (1.0, 1.0),
    "m": (1.0, math.inf),
    "v": (math.inf, 1.0),
    "always 1": (1.0, 1.0),
    "both, at 0.3": (0.3, 0.3),
    "both, at 3": (3.0, 3.0),
    "both, at 10": (10.0, 10.0),
}
SEEN, EPS = 40, 1e-8
SMOKE = {"names": ("m", "always 1"), "seeds": (0,), "steps": 10}
CARD = {
    **ingredients.CARD, "batch": "batches of {BATCH}",
    "rate": "rate {rate:g}, with warm-up and decay",
}  # fmt: skip


def train(
    name: str, seed: int, rate: float = 0.01, steps: int = STEPS
) -> tuple[float, list[float]]:
    """Train in one of the WAYS; return the held-out loss and the lengths of the gradients."""
    model, course = begin(seed), schedule("cosine", steps=steps, warmup=steps // 10)
    weights, (b1, b2) = list(model.parameters()), ADAMW["betas"]
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    drawn = Windows(letters("train"), LENGTH, batch_size=BATCH, seed=seed)
    lengths = []
    for step in range(steps):
        total, count = causal_loss(model, drawn(step))
        model.zero_grad()
        (total / count).backward()
        length = torch.nn.utils.get_total_norm([w.grad for w in weights]).item()
        lengths.append(length)
        always = name == "always 1"
        shares = [1 / length if always else min(1.0, most / length) for most in WAYS[name]]
        lr = rate * course(step)
        with torch.no_grad():
            for w, m, v in zip(weights, first, second, strict=True):
                m.lerp_(w.grad * shares[0], 1 - b1)
                v.lerp_((w.grad * shares[1]).square(), 1 - b2)
                size = (v / (1 - b2 ** (step + 1))).sqrt() + EPS
                w.mul_(1 - lr * ADAMW["weight_decay"])
                w.sub_(lr * m / (1 - b1 ** (step + 1)) / size)
    return ingredients.held_out(model), lengths


def run(
    *, names: Sequence[str] = tuple(WAYS), seeds: Sequence[int] = (0, 1, 2), rate: float = 0.01,
    steps: int = STEPS,
) -> tuple[dict, None]:  # fmt: skip
    """Train in every way with every seed."""
    log: dict[str, dict] = {"losses": {}, "lengths": {}}
    for name in names:
        runs = [train(name, seed, rate, steps) for seed in seeds]
        log["losses"][name] = [round(loss, 3) for loss, _ in runs]
        log["lengths"][name] = [[round(each, 1) for each in found[:SEEN]] for _, found in runs]
    settings = {"steps": steps, "rate": rate, "names": list(names)}
    return {"settings": settings, "seeds": list(seeds), **log}, None
