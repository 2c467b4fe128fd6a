"""How many pairs can attention recall, if it may not look at every one?

A task for one layer: the input is a list of pairs, a key and a value each, no key twice; sixteen
questions then name keys of the list, and the layer says the value of each. A pair is one token, the
sum of the embeddings of its key and its value; a question is the embedding of its key. Softmax
attention, linear attention with two kinds of features and with two widths of the head, a window
that holds the last 16 pairs, and Linformer with 16 mixtures are each trained anew for every number
of pairs; the log holds the share of right answers on fresh lists. Linear attention with a narrow
head is also trained for ten times as many steps, on the longest lists, to see whether time helps.

Explained in: chapters/07_efficient_attention, section "What a state forgets".
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook.attention import attend_sdpa
from tfbook.efficient import LinformerAttention, attend_features, attend_linear

__all__ = ["SMOKE", "WAYS", "Recaller", "lists", "run"]

KEYS, VALUES, QUESTIONS, WINDOW = 256, 16, 16, 16
SMOKE = {"counts": (8, 16), "seeds": (0,), "steps": 3, "longer": 4}
CARD = {
    "model": "one layer of width {width}, 24,592 to 30,736 parameters",
    "data": "lists of {counts_first} to {counts_last} pairs, no key twice",
}
# The name, the width of the one head, and what makes the attention for a number of pairs.
WAYS = {
    "softmax, 16 wide": (16, lambda count: attend_sdpa),
    "linear, 16 wide": (16, lambda count: attend_linear),
    "linear, 64 wide": (64, lambda count: attend_linear),
    "64 random features, 16 wide": (16, lambda count: partial(attend_features, n_features=64)),
    "window of 16 pairs": (16, lambda count: _last),
    "Linformer, 16 mixtures": (16, lambda count: LinformerAttention(count, 16)),
}


def _last(q, k, v):
    return attend_sdpa(q, k[:, -WINDOW:], v[:, -WINDOW:])


class Recaller(nn.Module):
    """One layer of attention from questions to pairs, and scores of the values."""

    def __init__(self, way: str, count: int, width: int = 64):
        """Make an untrained model for lists of `count` pairs."""
        super().__init__()
        if way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(WAYS)}, got {way!r}")
        d_head, make = WAYS[way]
        self.keys, self.values = nn.Embedding(KEYS, width), nn.Embedding(VALUES, width)
        self.to_q = nn.Linear(width, d_head, bias=False)
        self.to_k = nn.Linear(width, d_head, bias=False)
        self.to_v = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, VALUES)
        self.attend = make(count)

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Map a list (B, P), (B, P) and questions (B, Q) to scores of the values (B, Q, 16)."""
        told = self.keys(keys) + self.values(values)  # (B, P, width)
        z = self.attend(self.to_q(self.keys(asked)), self.to_k(told), self.to_v(told))
        return self.out(z)


def lists(size: int, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Draw lists of pairs: keys and values (B, P), the keys asked for and their values (B, Q)."""
    keys = torch.rand(size, KEYS, generator=generator).argsort(-1)[:, :count]
    values = torch.randint(VALUES, (size, count), generator=generator)
    at = torch.randint(count, (size, QUESTIONS), generator=generator)
    return keys, values, keys.gather(1, at), values.gather(1, at)


def train(way: str, count: int, seed: int, steps: int, batch: int, rate: float, width: int):
    """Train a model at one number of pairs."""
    torch.manual_seed(seed)
    model, generator = Recaller(way, count, width), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 50, 2 * (1 - step / steps))
        *told, right = lists(batch, count, generator)
        loss = functional.cross_entropy(model(*told).flatten(0, 1), right.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: Recaller, count: int, seed: int, size: int = 128) -> float:
    """Return the share of right answers on fresh lists."""
    *told, right = lists(size, count, torch.Generator().manual_seed(10_000 + seed))
    return round((model(*told).argmax(-1) == right).double().mean().item(), 4)


def run(
    *,
    counts: Sequence[int] = (8, 16, 32, 64),
    seeds: Sequence[int] = (0, 1),
    steps: int = 600,
    batch: int = 32,
    rate: float = 1e-2,
    width: int = 64,
    longer: int = 6000,
) -> tuple[dict, None]:
    """Train every way at every number of pairs with every seed, and one for longer."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in locals().items()}
    scores = {way: [] for way in WAYS}
    for way in WAYS:
        for count in counts:
            runs = []
            for seed in seeds:
                model = train(way, count, seed, steps, batch, rate, width)
                runs.append(accuracy(model, count, seed))
            scores[way].append(runs)
    last, most = "linear, 16 wide", counts[-1]
    late = []
    for seed in seeds:
        model = train(last, most, seed, longer, batch, rate, width)
        late.append(accuracy(model, most, seed))
    return {"settings": settings, "accuracy": scores, "longer": {last: late}}, None
