"""What does it buy to lower the learning rate, and does it matter along which curve?

A decoder of two layers with pre-norm learns to predict the next letter of Shakespeare for 160
steps with Adam, from the same weights and on the same batches along each curve. All of them reach
the rate 0.01 after 20 steps; then it stays, or falls in one of four ways.

The log holds the loss on 2,048 letters of another split (nats a letter) after every 20 steps.

Explained in: chapters/11_training_deeper, section "The learning rate over time".
"""

from collections.abc import Mapping

import torch
from torch import nn

from tfbook.data import rows
from tfbook.experiments.warmup import BATCH, BETAS, LENGTH, batches, begin, letters
from tfbook.optimization import schedule
from tfbook.training import causal_loss

__all__ = ["CURVES", "SMOKE", "run", "train"]

# Name → schedule and its choices, for 160 steps; floors and falls are those in use.
CURVES: Mapping[str, tuple[str, dict]] = {
    "constant": ("constant", {}),
    "1/√step": ("inverse_sqrt", {}),
    "linear": ("linear", {"steps": 160}),
    "cosine": ("cosine", {"steps": 160}),
    "warm-up, stable, decay": ("wsd", {"steps": 160, "decay": 40}),
}
WARMUP = 20
PIECE = 20
SMOKE = {"seeds": (0,), "steps": 5}
CARD = {
    "model": "decoder, 2 layers of width 64, 104,128 parameters",
    "data": "Shakespeare, windows of {LENGTH} characters",
    "batch": f"batches of {BATCH}",
}


def train(curve: str, seed: int, rate: float = 0.01, steps: int = 160) -> list[float]:
    """Train along one of the CURVES; return the loss on other text after every 20 steps."""
    model, drawn = begin("pre", seed, n_layers=2, d_model=64), batches(seed)
    held = rows(letters("valid"), LENGTH)[:64]
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=BETAS)
    name, choices = CURVES[curve]
    factor = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(name, warmup=WARMUP, **choices))
    losses = []
    for step in range(steps):
        total, count = causal_loss(model, drawn(step))
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        factor.step()
        if (step + 1) % PIECE == 0:
            losses.append(round(_held_out(model, held), 3))
    return losses


@torch.no_grad()
def _held_out(model: nn.Module, held: torch.Tensor) -> float:
    total, count = causal_loss(model, held)
    return total.item() / count


def run(*, seeds: tuple[int, ...] = (0, 1, 2), steps: int = 160) -> tuple[dict, None]:
    """Train along every curve with every seed.

    Returns:
        the log: `losses[curve]` is a list over seeds of lists over `after`, numbers of steps.
    """
    return {
        "settings": {"steps": steps, "warmup": WARMUP, "rate": 0.01, "betas": list(BETAS)},
        "seeds": list(seeds),
        "after": list(range(PIECE, steps + 1, PIECE)),
        "losses": {curve: [train(curve, seed, steps=steps) for seed in seeds] for curve in CURVES},
    }, None
