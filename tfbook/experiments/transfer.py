"""Does the best learning rate of a narrow model fit a wide one?

A decoder of one layer learns to predict the next letter of Shakespeare for 120 steps with Adam, at
the widths 32 to 256, at eight learning rates a factor of two apart, in two parametrisations. Heads
are 16 numbers wide at every width, so a wider model has more of them. The rate rises over the first
12 steps and then falls along a line to 0; long gradients are shortened to 1.

Standard: matrices begin with variance 1 / inputs, and all weights have one learning rate.
In muP: what grows with the width is told so. With n = width / 32, the matrices that read a row as
wide as the model have the learning rate divided by n, and the output matrix begins smaller by
another root of n. At width 32 the two are one model.

The log holds for each run the loss on 4,096 letters of another split after training, nats a letter.
One depth, one length of training: for a longer run the best rates will be others.

Source: [yang2022tensor], tables 3 and 8.
Explained in: chapters/11_training_deeper, section "Learning rates that transfer with width".
"""

import math

import torch
from torch import nn

from tfbook.data import rows
from tfbook.experiments.warmup import LENGTH, batches, letters
from tfbook.models import FFN, Attention, Layer, NextToken, Norm, Rotary, TransformerConfig, build
from tfbook.optimization import schedule
from tfbook.training import causal_loss

__all__ = ["BASE", "SMOKE", "WAYS", "groups", "model", "run", "train"]

WAYS = ("standard", "muP")
BASE, HEAD = 32, 16
BATCH = 8
SMOKE = {"widths": (32, 64), "rates": (0.004,), "seeds": (0,), "steps": 3}
CARD = {
    "model": "decoder, one layer of width {widths_first} to {widths_last}, "
    "16,416 to 819,456 parameters",
    "data": "Shakespeare, windows of {LENGTH} characters",
    "rate": "rates {rates_first:g} to {rates_last:g}",
}


def model(width: int, way: str, seed: int) -> nn.Module:
    """Return an untrained decoder of a width, drawn in one of the WAYS."""
    torch.manual_seed(seed)
    layer = Layer(
        Attention(width // HEAD, position=Rotary(), bias=False),
        FFN(4 * width, "gelu", bias=False),
        norm=Norm("rms"),
    )
    size, head = int(letters("train").max()) + 1, NextToken(tie_embeddings=False)
    made = build(TransformerConfig(size, width, decoder=[layer], head=head))
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.ndim == 2:
                size = 1.0 if name.startswith("embed") else weight.shape[1] ** -0.5
                if way == "muP" and name.startswith("head"):
                    size *= math.sqrt(BASE / width)
                weight.normal_(0, size)
    return made


def groups(made: nn.Module, way: str, rate: float) -> list[dict]:
    """Return the groups of an optimizer: in muP, matrices that read wide rows take small steps."""
    width = made.get_parameter("stack.final_norm.weight").shape[0]
    wide, others = [], []
    for name, weight in made.named_parameters():
        reads_wide = weight.ndim == 2 and not name.startswith("embed")
        (wide if reads_wide else others).append(weight)
    factor = BASE / width if way == "muP" else 1.0
    return [{"params": wide, "lr": rate * factor}, {"params": others, "lr": rate}]


def train(width: int, way: str, rate: float, seed: int, steps: int = 120) -> float:
    """Train one model and return its loss on other text."""
    made, drawn = model(width, way, seed), batches(seed, size=BATCH)
    optimizer = torch.optim.Adam(groups(made, way, rate), betas=(0.9, 0.98))
    course = schedule("linear", steps=steps, warmup=min(12, steps - 1))
    course = torch.optim.lr_scheduler.LambdaLR(optimizer, course)
    for step in range(steps):
        total, count = causal_loss(made, drawn(step))
        optimizer.zero_grad()
        (total / count).backward()
        nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        course.step()
    with torch.no_grad():
        total, count = causal_loss(made.eval(), rows(letters("valid"), LENGTH)[:128])
    return round(total.item() / count, 3)


def run(
    *,
    widths: tuple[int, ...] = (32, 64, 128, 256),
    rates: tuple[float, ...] = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 120,
) -> tuple[dict, None]:
    """Train every width at every rate in both ways.

    Returns:
        the log: `losses[way][width]` is a list over rates of lists over seeds.
    """
    return {
        "settings": {"steps": steps, "batch": BATCH, "base": BASE},
        "widths": list(widths),
        "rates": list(rates),
        "seeds": list(seeds),
        "losses": {
            way: {
                str(width): [
                    [train(width, way, rate, seed, steps) for seed in seeds] for rate in rates
                ]
                for width in widths
            }
            for way in WAYS
        },
    }, None
