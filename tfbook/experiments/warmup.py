"""Which models need a warm-up, and does a better Adam replace it?

A decoder of eight layers learns to predict the next letter of Shakespeare for 250 steps, with the
norms behind the parts (post-norm) or before them (pre-norm), at five learning rates. Each of them
is trained in three ways: with Adam at once at full rate, with a rate that rises over the first 100
steps, and with RAdam, whose first steps are small by themselves. Runs of one seed begin with the
same weights and read the same batches; no letter is read twice in a run, up to chance.

The log holds for each run the mean loss (nats a letter) of every 25 steps, the mean entropy of the
attention weights of each layer at the end (nats), and in `context` by how many nats the predictions
depend on what was read: the entropy of the mean prediction less the mean entropy of a prediction,
on 2,048 letters of another split. `letters` is the loss of naming each letter by its frequency.

Source: [xiong2020layer] and [liu2020variance], who ask the same of models for translation.
Explained in: chapters/11_training_deeper, section "Why warm up?".
"""

import math
from functools import cache

import torch
from torch import Tensor, nn

from tfbook import data
from tfbook.data import Windows, rows
from tfbook.models import FFN, Attention, Layer, Sinusoidal, Tokens, TransformerConfig, build
from tfbook.optimization import schedule
from tfbook.training import attention_entropy, causal_loss

__all__ = ["SMOKE", "WAYS", "batches", "begin", "letters", "run", "train"]

# Way → the optimizer, and after how many steps the learning rate is what it is said to be.
WAYS = {
    "Adam": (torch.optim.Adam, 0),
    "Adam, warm-up": (torch.optim.Adam, 100),
    "RAdam": (torch.optim.RAdam, 0),
}
BETAS = (0.9, 0.98)  # those of 2017
PIECE, LENGTH, BATCH = 25, 32, 8
SMOKE = {"rates": (1e-3,), "seeds": (0,), "steps": 25, "n_layers": 1}
CARD = {
    "model": "decoder, {n_layers} layers of width 48, 229,200 and 229,296 parameters",
    "data": "Shakespeare, windows of {LENGTH} characters",
    "batch": "batches of {BATCH}",
    "rate": "rates {rates_first:g} to {rates_last:g}",
}


@cache
def letters(split: str) -> Tensor:
    """Return Shakespeare as numbers of letters, in the order of the letters of all of it."""
    known = sorted(set(data.shakespeare("train") + data.shakespeare("valid")))
    number = {letter: i for i, letter in enumerate(known)}
    return torch.tensor([number[letter] for letter in data.shakespeare(split)])


def begin(place: str, seed: int, *, n_layers: int = 8, d_model: int = 48) -> nn.Module:
    """Return an untrained decoder with norms "pre" or "post"."""
    torch.manual_seed(seed)
    size = int(letters("train").max()) + 1
    layers = [Layer(Attention(4), FFN(4 * d_model, "gelu"), place=place)] * n_layers
    embedding = Tokens(Sinusoidal(), scale="sqrt(d_model)")
    return build(TransformerConfig(size, d_model, decoder=layers, embedding=embedding))


def batches(seed: int, *, length: int = LENGTH, size: int = BATCH) -> Windows:
    """Return the batches of a run: number → (8, 33) letters."""
    return Windows(letters("train"), length, batch_size=size, seed=seed)


def train(model: nn.Module, way: str, rate: float, seed: int, steps: int = 250) -> list[float]:
    """Train a model in one of the WAYS and return the loss of each step, nats a letter."""
    kind, warmup = WAYS[way]
    optimizer = kind(model.parameters(), lr=rate, betas=BETAS)
    rise = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule("constant", warmup=warmup))
    drawn, losses = batches(seed), []
    for step in range(steps):
        total, count = causal_loss(model, drawn(step))
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        rise.step()
        losses.append(total.item() / count)
    return losses


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(dim=-1)


@torch.no_grad()
def _look(model: nn.Module) -> tuple[list[float], float]:
    """Return the entropy of each layer's attention, and how far predictions depend on the text."""
    tokens = rows(letters("valid"), LENGTH)[:64, :-1]  # (64, 32)
    p = model.eval()(tokens)[0].softmax(dim=-1).flatten(0, 1)  # (2048, V)
    context = _entropy(p.mean(dim=0)) - _entropy(p).mean()
    return [round(e, 2) for e in attention_entropy(model, tokens)], round(context.item(), 3)


def run(
    *,
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 250,
    n_layers: int = 8,
) -> tuple[dict, None]:
    """Train both models in all ways.

    Returns:
        the log: `losses[place][way]`, `entropy[place][way]` and `context[place][way]` are lists
        over rates of lists over seeds; a loss that is no number is None.
    """
    found: dict[str, dict] = {"losses": {}, "entropy": {}, "context": {}}
    for place in ("post", "pre"):
        for each in found.values():
            each[place] = {way: [[] for _ in rates] for way in WAYS}
        for way in WAYS:
            for i, rate in enumerate(rates):
                for seed in seeds:
                    model = begin(place, seed, n_layers=n_layers)
                    losses = train(model, way, rate, seed, steps)
                    means = [sum(losses[k : k + PIECE]) / PIECE for k in range(0, steps, PIECE)]
                    rounded = [round(x, 3) if math.isfinite(x) else None for x in means]
                    entropy, context = _look(model)
                    found["losses"][place][way][i].append(rounded)
                    found["entropy"][place][way][i].append(entropy)
                    found["context"][place][way][i].append(context)
    share = letters("train").bincount() / len(letters("train"))
    return {
        "settings": {"steps": steps, "n_layers": n_layers, "betas": list(BETAS), "warmup": 100},
        "rates": list(rates),
        "seeds": list(seeds),
        "after": list(range(PIECE, steps + 1, PIECE)),
        "letters": round(_entropy(share.double()).item(), 3),
        **found,
    }, None
