"""How deep can a model be: without norms, with norms before or behind, from two starts?

A decoder learns to predict the next character of Shakespeare: embedding and learned positions, then
L blocks of causal attention and feed-forward network, then a linear map to the characters. It is
wired in three ways: each part is added to its input ("added"), is added and reads a normalised
input ("pre"), is added and the sum is normalised ("post"). (In the fourth, "replaced", a part takes
the place of its input; `ladder` trains such models.) Its linear maps start in two ways: as PyTorch
starts them ("pytorch"), or as in the model of 2017 ("xavier"), with Xavier's uniform weights, which
are larger, and biases of 0. All models see the same batches at the same rate.

The log holds the loss on 12,800 characters of another split, in nats a character and at most 99:
`losses[start][wiring]` has a list over seeds for each depth.

Explained in: chapters/05_architecture_deeper, section "Why post-norm loses the gradient".
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook import data
from tfbook.experiments.warmup import letters

__all__ = ["SMOKE", "STARTS", "WIRINGS", "model_of", "run", "train"]

WIDTH, HEADS, CONTEXT, BATCH = 64, 4, 32, 16
STARTS, WIRINGS = ("pytorch", "xavier"), ("added", "post", "pre")
RATE, LARGEST = 0.008, 99.0
SMOKE = {"depths": (1, 2), "seeds": (0,), "steps": 2}
CARD = {
    "model": "decoders of 2 to 12 blocks, width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}, rising and then falling",
}


class CausalAttention(nn.Module):
    """Multi-head attention of each position to itself and those before."""

    def __init__(self) -> None:
        """Make the maps to queries, keys and values, and the one behind the heads."""
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Attend, (B, N, WIDTH) to (B, N, WIDTH)."""
        maps = (self.q, self.k, self.v)
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in maps)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def feed_forward() -> nn.Module:
    """Return a feed-forward network, four times as wide inside."""
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))


class Wired(nn.Module):
    """A part with its wiring."""

    def __init__(self, part: nn.Module, wiring: str) -> None:
        """Put the part into the wiring, with a norm of its own where there is one."""
        super().__init__()
        self.part, self.wiring = part, wiring
        self.norm = nn.LayerNorm(WIDTH) if wiring in ("pre", "post") else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Pass x through."""
        if self.wiring == "replaced":
            return self.part(x)
        if self.wiring == "post":
            return self.norm(x + self.part(x))
        return x + self.part(self.norm(x))


class Characters(nn.Module):
    """Embed, pass through the layers, score the next character."""

    def __init__(self, vocabulary: int, layers: list[nn.Module]) -> None:
        """Make the tables and the last map around the layers."""
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, vocabulary)
        for table in (self.embed, self.position):
            nn.init.normal_(table.weight, std=WIDTH**-0.5)
        for part in self.layers.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)
                nn.init.zeros_(part.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of the next character, from (B, N) to (B, N, V)."""
        x = self.embed(ids) + self.position.weight[: ids.shape[1]]
        return self.head(self.layers(x))


def model_of(wiring: str, depth: int, vocabulary: int, start: str = "xavier") -> nn.Module:
    """Return an untrained model of `depth` blocks."""
    parts: list[Callable[[], nn.Module]] = [CausalAttention, feed_forward]
    layers: list[nn.Module] = [Wired(part(), wiring) for _ in range(depth) for part in parts]
    made = Characters(vocabulary, [*layers, nn.LayerNorm(WIDTH)] if wiring == "pre" else layers)
    if start == "pytorch":
        for part in made.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
    return made


def batch(ids: Tensor, size: int, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw windows, (size, CONTEXT), and the character behind each of their characters."""
    start = torch.randint(len(ids) - CONTEXT, (size, 1), generator=chance)
    window = ids[start + torch.arange(CONTEXT + 1)]
    return window[:, :-1], window[:, 1:]


def learn(model: nn.Module, seed: int, steps: int, rate: float = RATE) -> float:
    """Train a model on the batches of a seed; return its loss on the other split, in nats."""
    ids, held = letters("train"), letters("valid")
    chance = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 30, 1.02 - step / steps)
        x, y = batch(ids, BATCH, chance)
        optimizer.zero_grad()
        F.cross_entropy(model(x).mT, y).backward()
        optimizer.step()
    with torch.no_grad():
        x, y = batch(held, 400, torch.Generator().manual_seed(0))
        loss = F.cross_entropy(model(x).mT, y).item()
    return loss if loss < LARGEST else LARGEST  # what is no number any more, too


def train(start: str, wiring: str, depth: int, seed: int, steps: int = 200) -> float:
    """Train one model; return its loss on the other split, in nats a character."""
    torch.manual_seed(seed)
    vocabulary = int(letters("train").max()) + 1
    return learn(model_of(wiring, depth, vocabulary, start), seed, steps)


def run(
    *, depths: tuple[int, ...] = (2, 4, 8, 12), seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 200,
) -> tuple[dict, None]:  # fmt: skip
    """Train every wiring at every depth, from both starts, with every seed.

    Returns:
        the log: `losses[start][wiring]` is a list over `depths` of lists over `seeds`.
    """
    vocabulary = len(set(data.shakespeare("train")))
    sizes = [
        sum(p.numel() for p in model_of(wiring, depth, vocabulary).parameters())
        for wiring in WIRINGS
        for depth in depths
    ]
    losses = {
        start: {
            wiring: [
                [round(train(start, wiring, depth, seed, steps), 3) for seed in seeds]
                for depth in depths
            ]
            for wiring in WIRINGS
        }
        for start in STARTS
    }
    return {
        "settings": {"steps": steps, "smallest": min(sizes), "largest": max(sizes)},
        "seeds": list(seeds), "depths": list(depths), "losses": losses,
    }, None  # fmt: skip
