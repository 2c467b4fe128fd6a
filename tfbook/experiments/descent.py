"""Which optimizer takes a small language model furthest in 100 steps, each at its best rate?

A decoder of two layers with pre-norm learns to predict the next letter of Shakespeare. Eight
optimizers, those of this book, get the same weights, batches and number of steps, a rate that
rises over 20 steps and then falls along a line to 0, and three learning rates each to choose
from, a factor of about three apart. The choice is made with one seed, the comparison with three
others. None decays its weights. What Muon leaves to AdamW (embeddings,
norms, biases) has the learning rate 0.003. Sophia takes in a new estimate of the curvature every
ten steps.

The log holds for each run the loss after training on 4,096 letters of another split, nats a
letter, and the mean time of a step. One size of model, one short length of training: which is
ahead here need not be so elsewhere.

Explained in: chapters/11_training_deeper, section "Optimizers".
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from tfbook.data import rows
from tfbook.experiments.warmup import BATCH, LENGTH, batches, begin, letters
from tfbook.optimization import (
    SGD,
    Adafactor,
    Adam,
    Lion,
    Muon,
    RAdam,
    Sophia,
    Written,
    gauss_newton_bartlett,
    muon_groups,
    schedule,
)
from tfbook.training import causal_loss, cross_entropy, next_tokens

__all__ = ["OPTIMIZERS", "SMOKE", "run", "train"]

SMOKE = {"seeds": (0,), "steps": 3, "n_rates": 1}
CARD = {
    "model": "decoder, 2 layers of width 64, 104,128 parameters",
    "data": "Shakespeare, windows of {LENGTH} characters",
    "batch": f"batches of {BATCH}",
    "rate": "for each optimizer the best of three rates",
}
STEP = (0.1, 0.3, 1.0)
BETAS = (0.9, 0.98)


def _muon(model: nn.Module, lr: float) -> Muon:
    groups = muon_groups(model, lr=lr, adamw_lr=3e-3, weight_decay=0.0)
    return Muon(groups, precision="bfloat16")


def _all(kind: type[Written], **options: object) -> Callable[[nn.Module, float], Written]:
    return lambda model, lr: kind(model.parameters(), lr=lr, **options)


# Name → what makes it of a model and a rate, and by what the three rates are multiplied.
OPTIMIZERS: Mapping[str, tuple[Callable[[nn.Module, float], Written], float]] = {
    "SGD": (_all(SGD), 1.0),
    "momentum": (_all(SGD, momentum=0.9), 0.3),
    "Adam": (_all(Adam, betas=BETAS), 0.03),
    "RAdam": (_all(RAdam, betas=BETAS), 0.03),
    "Adafactor": (_all(Adafactor), 0.3),
    "Lion": (_all(Lion), 0.03),
    "Sophia": (_all(Sophia, gamma=0.05), 0.03),
    "Muon": (_muon, 0.1),
}


def train(name: str, rate: float, seed: int, steps: int = 100) -> tuple[nn.Module, float]:
    """Train a model with one of the OPTIMIZERS; return it and the seconds of a step."""
    model, drawn = begin("pre", seed, n_layers=2, d_model=64), batches(seed)
    optimizer = OPTIMIZERS[name][0](model, rate)
    course = schedule("linear", steps=steps, warmup=min(20, steps - 1))
    course = torch.optim.lr_scheduler.LambdaLR(optimizer, course)
    weights = [w for group in optimizer.param_groups for w in group["params"]]
    generator = torch.Generator().manual_seed(seed)
    started = time.process_time()
    for step in range(steps):
        inputs, targets = next_tokens(drawn(step))
        logits, _ = model(inputs)  # (B, N, V)
        if name == "Sophia" and step % 10 == 0:
            optimizer.curvature(gauss_newton_bartlett(logits, weights, generator=generator))
        optimizer.zero_grad()
        cross_entropy(logits, targets).backward()
        optimizer.step()
        course.step()
    return model, (time.process_time() - started) / steps


@torch.no_grad()
def _held_out(model: nn.Module) -> float:
    total, count = causal_loss(model.eval(), rows(letters("valid"), LENGTH)[:128])
    return round(total.item() / count, 3)


def run(
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    other: int = 3,
    steps: int = 100,
    n_rates: int = 3,
) -> tuple[dict, None]:
    """Choose a rate for every optimizer with the seed `other`, then train with the seeds.

    Returns:
        the log: by name `rates`, those tried; `tried`, the loss at each, None where it is no
        number; `best`, the rate that was chosen; `losses` with it, a list over seeds; and
        `milliseconds` of a step, the median.
    """
    log: dict[str, dict] = {"rates": {}, "tried": {}, "best": {}, "losses": {}, "milliseconds": {}}
    one = partial(train, steps=steps)
    for name, (_, factor) in OPTIMIZERS.items():
        rates = [round(factor * step, 6) for step in STEP[:n_rates]]
        tried = [_held_out(one(name, rate, other)[0]) for rate in rates]
        finite = [(loss, rate) for loss, rate in zip(tried, rates, strict=True) if loss == loss]
        best = min(finite)[1]
        found = [one(name, best, seed) for seed in seeds]
        log["rates"][name], log["best"][name] = rates, best
        log["tried"][name] = [loss if loss == loss else None for loss in tried]
        log["losses"][name] = [_held_out(model) for model, _ in found]
        seconds = torch.tensor([s for _, s in found])
        log["milliseconds"][name] = round(1000 * seconds.median().item(), 1)
    settings = {"steps": steps, "betas": list(BETAS), "other": other}
    return {"settings": settings, "seeds": list(seeds), **log}, None
