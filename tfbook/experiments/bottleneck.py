"""How long a sequence fits into one vector, and what changes when the decoder may look back?

The task: write a sequence of random symbols in reverse order. The same encoder-decoder is trained
with one fixed vector between its halves, at three widths, and with Bahdanau's attention at the
smallest of them; on all lengths up to the longest, each batch of one length. The log holds the
share of symbols that are written correctly, given the correct ones before (which are of no help:
the symbols are independent), for each length and seed.

Explained in: chapters/01_motivation, section "The fixed vector".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook.recurrent import Seq2Seq

__all__ = ["MODELS", "SMOKE", "accuracy", "batch_of", "run", "train"]

# Label → attention and width d_hidden. The fixed vector joins two directions: 2 · d_hidden numbers.
MODELS = {
    "fixed vector of 64": (None, 32),
    "fixed vector of 128": (None, 64),
    "fixed vector of 256": (None, 128),
    "attention, states of 64": ("bahdanau", 32),
}
SYMBOLS = 20
BATCH, RATE = 64, 6e-3
PAD, BEGIN, FIRST = 0, 1, 3  # as in Seq2Seq: padding, begin, end, then the symbols
SMOKE = {"lengths": (2, 3), "beyond": (5,), "seeds": (0, 1), "steps": 3}
CARD = {
    "model": "encoder-decoder of GRUs, width 32 to 128, 33,591 to 375,639 parameters",
    "data": "rows of {lengths_first} to {lengths_last} random symbols, to be reversed",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g} at most",
}


def batch_of(size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw sources, the targets to write, and the targets as they go in, one place to the right.

    Returns:
        source, target and target_in, each `(size, length)`.
    """
    source = torch.randint(FIRST, FIRST + SYMBOLS, (size, length), generator=generator)
    target = source.flip(1)
    begin = torch.full((size, 1), BEGIN)
    return source, target, torch.cat([begin, target[:, :-1]], dim=1)


def model_of(label: str) -> Seq2Seq:
    """Make one of the networks, untrained.

    Raises:
        ValueError: if there is no network of that label.
    """
    if label not in MODELS:
        raise ValueError(f"label must be one of {', '.join(MODELS)}, got {label!r}")
    attention, d_hidden = MODELS[label]
    return Seq2Seq(FIRST + SYMBOLS, FIRST + SYMBOLS, 32, d_hidden, attention=attention)


def train(model: Seq2Seq, longest: int, steps: int, seed: int, size: int = BATCH) -> list[float]:
    """Train on all lengths from 1 to `longest` and return the losses, in nats per symbol."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    losses = []
    for _ in range(steps):
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        source, target, target_in = batch_of(size, length, generator)
        logits, _ = model(source, torch.full((size,), length), target_in)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def accuracy(model: Seq2Seq, length: int, seed: int, size: int = 300) -> float:
    """Return the share of correct symbols in fresh sequences of one length."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    source, target, target_in = batch_of(size, length, generator)
    logits, _ = model(source, torch.full((size,), length), target_in)
    return (logits.argmax(dim=-1) == target).double().mean().item()


def run(
    *,
    lengths: tuple[int, ...] = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20),
    beyond: tuple[int, ...] = (24, 30),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 1500,
) -> tuple[dict, None]:
    """Train every network with every seed.

    Returns:
        the log: `accuracy[label]` is a list over lengths of lists over seeds, and `beyond` the
        same at lengths that were not trained.
    """
    scores: dict[str, list] = {label: [] for label in MODELS}
    for label in MODELS:
        rows = []
        for seed in seeds:
            torch.manual_seed(seed)
            model = model_of(label)
            train(model, max(lengths), steps, seed)
            rows.append([round(accuracy(model, n, seed), 3) for n in (*lengths, *beyond)])
        scores[label] = [list(column) for column in zip(*rows, strict=True)]
    return {
        "settings": {"steps": steps, "symbols": SYMBOLS, "task": "reverse"},
        "lengths": list(lengths),
        "seeds": list(seeds),
        "accuracy": {label: columns[: len(lengths)] for label, columns in scores.items()},
        "beyond": {
            "lengths": list(beyond),
            "accuracy": {label: columns[len(lengths) :] for label, columns in scores.items()},
        },
    }, None
