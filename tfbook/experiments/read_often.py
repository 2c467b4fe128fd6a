"""Do weight decay and dropout help when a short text is read many times?

The decoder of `ingredients` reads 2,000 batches, at the rate 0.01 with warm-up and decay,
clipped. They come from the whole training text, or from its first 50,000 letters, which are then
read 40 times. Each is trained without help, with weight decay (λ after AdamW's name for it), with
dropout on the parts' outputs, and with both.

The log holds the loss in nats a letter on 4,096 letters of the validation text after each tenth of
the run (`losses[text][help]`, a list over seeds of lists), and on as many letters that were trained
on, at the end (`trained[text][help]`, a list over seeds).

Source: [loshchilov2019decoupled], [srivastava2014dropout]
Explained in: chapters/11_training_deeper, section "When decay and dropout help".
"""

from collections.abc import Sequence

import torch
from torch import nn

from tfbook.data import Windows, rows
from tfbook.experiments import ingredients
from tfbook.experiments.ingredients import BATCH, LENGTH, TENTHS, begin
from tfbook.experiments.warmup import letters
from tfbook.optimization import schedule
from tfbook.training import causal_loss

__all__ = ["HELP", "SMOKE", "TEXTS", "run", "train"]

# Name → weight decay, dropout.
HELP = {
    "none": (0.0, 0.0), "decay 0.1": (0.1, 0.0), "decay 1": (1.0, 0.0), "decay 3": (3.0, 0.0),
    "dropout 0.2": (0.0, 0.2), "both": (1.0, 0.2),
}  # fmt: skip
TEXTS = {"short": 50_000, "whole": None}
SMOKE = {"names": ("both",), "seeds": (0,), "steps": 10}
CARD = {**ingredients.CARD, "batch": "batches of {BATCH}", "rate": "rate {rate:g}, warm-up, decay"}


def train(
    text: str, name: str, seed: int, rate: float = 0.01, steps: int = 2000
) -> tuple[list[float], float]:
    """Train on one of the TEXTS with one HELP; return the losses, held out and on the text."""
    decay, dropout = HELP[name]
    ids = letters("train")[: TEXTS[text]]
    model = begin(seed, dropout)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, **{**ingredients.ADAMW, "weight_decay": decay}
    )
    course, losses = schedule("cosine", steps=steps, warmup=steps // 10), []
    drawn = Windows(ids, LENGTH, batch_size=BATCH, seed=seed)
    for step in range(steps + 1):
        if step * TENTHS % steps < TENTHS:
            losses.append(ingredients.held_out(model.eval()))
        if step == steps:
            break
        model.train()
        optimizer.param_groups[0]["lr"] = rate * course(step)
        total, count = causal_loss(model, drawn(step))
        optimizer.zero_grad()
        (total / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        total, count = causal_loss(model, rows(ids, LENGTH)[:64])
    return losses, total.item() / count


def run(
    *, names: Sequence[str] = tuple(HELP), seeds: Sequence[int] = (0, 1, 2), rate: float = 0.01,
    steps: int = 2000,
) -> tuple[dict, None]:  # fmt: skip
    """Train on both texts with every help and every seed."""
    log: dict[str, dict] = {"losses": {}, "trained": {}}
    for text in TEXTS:
        runs = {name: [train(text, name, seed, rate, steps) for seed in seeds] for name in names}
        log["losses"][text] = {
            name: [[round(loss, 3) for loss in course] for course, _ in each]
            for name, each in runs.items()
        }
        log["trained"][text] = {
            name: [round(loss, 3) for _, loss in each] for name, each in runs.items()
        }
    settings = {"steps": steps, "rate": rate, "names": list(names)}
    after = [k / TENTHS for k in range(TENTHS + 1)]
    return {"settings": settings, "seeds": list(seeds), "after": after, **log}, None
