"""Can attention alone know facts, or does it take a feed-forward network?

A vector tells eight things, each yes or no, and to each of the 256 combinations belongs an answer,
yes or no, drawn by chance: a fact. A model reads such vectors and says the answer of each. A text
holds one vector, so that an attention can read nothing else, or eight of them, which tell nothing
of one another. Three attentions, with one or sixteen heads each, are compared with one attention
and one feed-forward network, which have about as many parameters. Every part is added to its input,
and a linear map reads the answer. Guessing is right in half of the cases.

The log holds the share of 8,000 answers that are right after training, `known[positions][name]`, a
list over seeds, and the number of parameters, `parameters[name]`. A seed decides the facts, too.

Explained in: chapters/05_architecture_deeper, section "Facts about a single vector".
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook.attention import MultiHeadAttention
from tfbook.blocks import FeedForward

__all__ = ["MODELS", "SMOKE", "model_of", "run", "train"]

THINGS, WIDTH, BATCH, RATE = 8, 16, 256, 0.01  # a batch counts vectors, not texts
POSITIONS = (1, 8)
# Name → heads of each attention, whether a network takes the place of the last two.
MODELS = {
    "3 attentions, 1 head each": (1, False),
    "3 attentions, 16 heads each": (16, False),
    "1 attention, 1 network": (4, True),
}
SMOKE = {"names": ("1 attention, 1 network",), "seeds": (0,), "steps": 2}
CARD = {
    "model": "{WIDTH} numbers wide, {smallest:,} and {largest:,} parameters",
    "data": "{facts} facts, each about {THINGS} things; texts of one vector or of eight",
    "batch": "batches of {BATCH} vectors",
    "rate": "rate {RATE:g}, rising and then falling",
}


class Added(nn.Module):
    """A part with a residual connection."""

    def __init__(self, part: nn.Module) -> None:
        """Keep the part."""
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        """Return x with what the part adds, (B, N, WIDTH)."""
        found = self.part(x)
        return x + (found[0] if isinstance(found, tuple) else found)


def model_of(name: str) -> nn.Module:
    """Return an untrained model: (B, N, THINGS) to logits (B, N, 1)."""
    heads, with_network = MODELS[name]
    parts: list[nn.Module] = [MultiHeadAttention(WIDTH, heads)]
    if with_network:
        parts.append(FeedForward(WIDTH, 4 * WIDTH))
    else:
        parts += [MultiHeadAttention(WIDTH, heads) for _ in range(2)]
    return nn.Sequential(nn.Linear(THINGS, WIDTH), *map(Added, parts), nn.Linear(WIDTH, 1))


def train(name: str, positions: int, seed: int, steps: int = 1000) -> float:
    """Teach a model the facts of a seed; return the share of answers that are right."""
    chance = torch.Generator().manual_seed(seed)
    facts = torch.randint(2, (2**THINGS,), generator=chance)
    torch.manual_seed(seed)
    model = model_of(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)

    def asked(vectors: int) -> tuple[Tensor, Tensor]:
        shape = (vectors // positions, positions, THINGS)
        things = torch.randint(2, shape, generator=chance)
        return model(2.0 * things - 1)[..., 0], facts[things @ 2 ** torch.arange(THINGS)]

    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 30, 1.02 - step / steps)
        said, right = asked(BATCH)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(said, right.float()).backward()
        optimizer.step()
    with torch.no_grad():
        said, right = asked(8000)
    return ((said > 0) == right).float().mean().item()


def run(
    *, names: Sequence[str] = tuple(MODELS), seeds: Sequence[int] = (0, 1, 2, 3, 4),
    steps: int = 1000,
) -> tuple[dict, None]:  # fmt: skip
    """Teach every model the facts of every seed.

    Returns:
        the log: `known[positions][name]` is a list over `seeds`, `parameters[name]` a number.
    """
    sizes = {name: sum(p.numel() for p in model_of(name).parameters()) for name in names}
    known = {
        str(positions): {
            name: [round(train(name, positions, seed, steps), 3) for seed in seeds]
            for name in names
        }
        for positions in POSITIONS
    }
    return {
        "settings": {
            "steps": steps, "facts": 2**THINGS, "smallest": min(sizes.values()),
            "largest": max(sizes.values()),
        },
        "seeds": list(seeds), "parameters": sizes, "known": known,
    }, None  # fmt: skip
