"""How many pairs can attention recall, if it may not look at every one?

A task for one layer: the input is a list of pairs, a key and a value each, no key twice; sixteen
questions then name keys of the list, and the layer says the value of each. A pair is one token, the
sum of the embeddings of its key and its value; a question is the embedding of its key. Softmax
attention to all pairs, to the last 16 and to the best blocks by their mean key, and linear
attention with 4 to 128 features are each trained anew for every number of pairs. The log holds the
share of right answers on fresh lists, on the longest lists also for the last 16 pairs and for the
others alone. Linear attention with 16 features is also trained for ten times as many steps, on the
longest lists, to see whether time helps. All is one task of one layer: it does not show how often a
language model has to recall.

Explained in: chapters/07_efficient_attention, section "What a state forgets".
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook.attention import attend_sdpa
from tfbook.efficient import attend_linear

__all__ = ["FEATURES", "SMOKE", "WAYS", "Recaller", "lists", "run"]

KEYS, VALUES, QUESTIONS, WINDOW, BLOCK, BEST = 256, 16, 16, 16, 4, 3
FEATURES = (4, 8, 16, 32, 64, 128)  # elu + 1 makes as many as the head is wide
SMOKE = {"counts": (16, 32), "seeds": (0,), "steps": 3, "longer": 4}
CARD = {
    "model": "one layer of width {width}, 23,056 to 38,928 parameters",
    "data": "lists of {counts_first} to {counts_last} facts, no key twice",
}


def _last(q, k, v):
    return attend_sdpa(q, k[:, -WINDOW:], v[:, -WINDOW:])


def _best(q, k, v):
    """Attend to the blocks with the best mean key."""
    means = k.unflatten(-2, (-1, BLOCK)).mean(-2)  # (B, blocks, d)
    scores = q @ means.mT
    best = scores.topk(min(BEST, means.shape[-2]), dim=-1).indices
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
    return attend_sdpa(q, k, v, mask=chosen.repeat_interleave(BLOCK, -1))


# The name, the width of the one head, and its attention.
WAYS = {
    "all pairs": (16, attend_sdpa),
    "window of 16 facts": (16, _last),
    "3 best blocks of 4": (16, _best),
    **{f"linear, {r} features": (r, attend_linear) for r in FEATURES},
}


class Recaller(nn.Module):
    """One layer of attention from questions to pairs, and scores of the values."""

    def __init__(self, way: str, width: int = 64, *, keys: int = KEYS):
        """Make an untrained model that knows so many keys."""
        super().__init__()
        if way not in WAYS:
            raise ValueError(f"way must be one of {', '.join(WAYS)}, got {way!r}")
        d_head, self.attend = WAYS[way]
        self.keys, self.values = nn.Embedding(keys, width), nn.Embedding(VALUES, width)
        self.to_q = nn.Linear(width, d_head, bias=False)
        self.to_k = nn.Linear(width, d_head, bias=False)
        self.to_v = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, VALUES)

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Map a list (B, P), (B, P) and questions (B, Q) to scores of the values (B, Q, 16)."""
        told = self.keys(keys) + self.values(values)  # (B, P, width)
        z = self.attend(self.to_q(self.keys(asked)), self.to_k(told), self.to_v(told))
        return self.out(z)


def lists(
    size: int, count: int, generator: torch.Generator, *, keys: int = KEYS
) -> tuple[Tensor, ...]:
    """Draw lists of pairs: keys and values (B, P), the keys asked for and their values (B, Q)."""
    told = torch.rand(size, keys, generator=generator).argsort(-1)[:, :count]
    values = torch.randint(VALUES, (size, count), generator=generator)
    at = torch.randint(count, (size, QUESTIONS), generator=generator)
    return told, values, told.gather(1, at), values.gather(1, at)


def train(
    way: str, count: int, seed: int, steps: int, batch: int, rate: float, width: int,
    *, keys: int = KEYS,
):  # fmt: skip
    """Train a model at one number of pairs."""
    torch.manual_seed(seed)
    model, generator = Recaller(way, width, keys=keys), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 50, 2 * (1 - step / steps))
        *told, right = lists(batch, count, generator, keys=keys)
        loss = functional.cross_entropy(model(*told).flatten(0, 1), right.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(
    model: Recaller, count: int, seed: int, size: int = 128, *, keys: int = KEYS
) -> tuple[float, ...]:
    """Return the share of right answers: of all, about the last 16 pairs, about the others."""
    *told, right = lists(size, count, torch.Generator().manual_seed(10_000 + seed), keys=keys)
    listed, _, asked = told
    correct = (model(*told).argmax(-1) == right).double()  # (size, QUESTIONS)
    near = (asked[..., None] == listed[:, None, -WINDOW:]).any(-1)
    return tuple(round(x.mean().item(), 4) for x in (correct, correct[near], correct[~near]))


def run(
    *,
    counts: Sequence[int] = (16, 32, 64),
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    steps: int = 600,
    batch: int = 32,
    rate: float = 1e-2,
    width: int = 64,
    longer: int = 6000,
) -> tuple[dict, None]:
    """Train every way at every number of pairs with every seed, and one for longer."""
    settings = {k: list(v) if isinstance(v, tuple) else v for k, v in locals().items()}
    scores, near, far = ({way: [] for way in WAYS} for _ in range(3))
    for way in WAYS:
        for count in counts:
            models = [train(way, count, seed, steps, batch, rate, width) for seed in seeds]
            found = [accuracy(m, count, seed) for m, seed in zip(models, seeds, strict=True)]
            scores[way].append([right for right, *_ in found])
        near[way] = [right for _, right, _ in found]  # of the longest lists
        far[way] = [right for *_, right in found]
    last, most = "linear, 16 features", counts[-1]
    late = [
        accuracy(train(last, most, seed, longer, batch, rate, width), most, seed)[0]
        for seed in seeds
    ]
    log = {"settings": settings, "accuracy": scores, "near": near, "far": far}
    return log | {"longer": {last: late}}, None
