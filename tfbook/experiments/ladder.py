"""What does each part of a GPT bring, with how many parameters?

Decoders learn to predict the next character of Shakespeare. The first has no layer: embedding,
learned positions, and a linear map to the characters. The others add one part after the other:
attention whose output takes the place of its input; the same, added to it; feed-forward networks
behind the attentions, or as many parameters in more attentions; norms, which makes it a GPT; and
the parts of LLaMA in the same wiring. "GPT with a fault" has its norms in the stream before each
part, so that the norm's output, and not the stream, is added to. All start as PyTorch starts them,
and see the same batches at the same rate.

The log holds, for each model, the loss on 12,800 characters of another split in nats a character,
one number for each seed (`losses`), and the number of parameters (`parameters`).

Explained in: chapters/05_architecture, section "A GPT on one screen".
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook import data, models
from tfbook.experiments.depth import CausalAttention, Characters, Wired, batch, feed_forward

__all__ = ["MODELS", "SMOKE", "model_of", "run", "train"]

WIDTH, BATCH, CONTEXT = 64, 16, 32
RATE = 0.008
SMOKE = {"names": ("no layer", "GPT"), "seeds": (0,), "steps": 2}
CARD = {
    "model": "decoders of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}, rising and then falling",
}
PAIR: list[Callable[[], nn.Module]] = [CausalAttention, feed_forward]
# Name → (wiring, the parts); LLaMA is built by the package.
MODELS: dict[str, tuple[str, list[Callable[[], nn.Module]]]] = {
    "no layer": ("replaced", []),
    "1 attention": ("replaced", [CausalAttention]),
    "2 attentions": ("replaced", [CausalAttention] * 2),
    "1 attention, added": ("added", [CausalAttention]),
    "2 attentions, added": ("added", [CausalAttention] * 2),
    "6 attentions, added": ("added", [CausalAttention] * 6),
    "2 × (attention, network), added": ("added", PAIR * 2),
    "GPT": ("pre", PAIR * 2),
    "GPT with a fault": ("fault", PAIR * 2),
    "LLaMA": ("pre", []),
}


class Faulty(Wired):
    """A part with a norm that stands in the stream: the fault of an exercise."""

    def forward(self, x: Tensor) -> Tensor:
        """Pass x through."""
        x = self.norm(x)
        return x + self.part(x)


class Llama(nn.Module):
    """The package's decoder with the parts of LLaMA, as a map from ids to logits."""

    def __init__(self, vocabulary: int) -> None:
        """Build two blocks with two groups of heads, and start them as the others."""
        super().__init__()
        attention = models.Attention(4, n_kv_heads=2, position=models.Rotary(), bias=False)
        layer = models.Layer(
            attention, models.FFN(170, "swiglu", bias=False), norm=models.Norm("rms")
        )
        self.model = models.build(
            models.TransformerConfig(vocabulary, WIDTH, decoder=[layer] * 2, max_len=CONTEXT)
        )
        nn.init.normal_(self.model.embed.weight, std=WIDTH**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of the next character, from (B, N) to (B, N, V)."""
        return self.model(ids)[0]


def model_of(name: str, vocabulary: int) -> nn.Module:
    """Return an untrained model, its linear maps as PyTorch starts them."""
    if name == "LLaMA":
        made: nn.Module = Llama(vocabulary)
    else:
        wiring, parts = MODELS[name]
        layers: list[nn.Module] = [
            Faulty(part(), "pre") if wiring == "fault" else Wired(part(), wiring) for part in parts
        ]
        last = [nn.LayerNorm(WIDTH)] if wiring in ("pre", "fault") else []
        made = Characters(vocabulary, layers + last)
    for part in made.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    return made


def train(name: str, seed: int, steps: int = 200) -> float:
    """Train one model; return its loss on the other split, in nats a character."""
    known = sorted(set(data.shakespeare("train")))
    ids, held = (
        torch.tensor([known.index(c) for c in data.shakespeare(split) if c in known])
        for split in ("train", "valid")
    )
    torch.manual_seed(seed)
    model, chance = model_of(name, len(known)), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 30, 1.02 - step / steps)
        x, y = batch(ids, BATCH, chance)
        optimizer.zero_grad()
        F.cross_entropy(model(x).mT, y).backward()
        optimizer.step()
    with torch.no_grad():
        x, y = batch(held, 400, torch.Generator().manual_seed(0))
        return F.cross_entropy(model(x).mT, y).item()


def run(
    *, names: tuple[str, ...] = tuple(MODELS), seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    steps: int = 200,
) -> tuple[dict, None]:  # fmt: skip
    """Train every model with every seed.

    Returns:
        the log: `losses[name]` is a list over `seeds`, `parameters[name]` a number.
    """
    vocabulary = len(set(data.shakespeare("train")))
    sizes = {
        name: sum(p.numel() for p in model_of(name, vocabulary).parameters()) for name in names
    }
    return {
        "settings": {"steps": steps, "smallest": min(sizes.values()),
                     "largest": max(sizes.values())},
        "seeds": list(seeds), "parameters": sizes,
        "losses": {name: [round(train(name, seed, steps), 3) for seed in seeds] for name in names},
    }, None  # fmt: skip
