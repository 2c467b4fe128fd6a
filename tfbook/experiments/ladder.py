"""What does each part of a GPT bring, with how many parameters?

Decoders learn to predict the next character of Shakespeare. The first has no layer: embedding,
learned positions, and a linear map to the characters. The others add one part after the other:
attention whose output takes the place of its input; the same, added to it; feed-forward networks
behind the attentions, or as many parameters in more attentions; norms, which makes it a GPT. "GPT
with a fault" has its norms in the stream before each part, so that the norm's output, and not the
stream, is added to. Then the GPT becomes a LLaMA, one exchange after the other: each name that
begins with "+" has its own exchange and all those before it, and the last one ties the tables. All
start as PyTorch starts them, and see the same batches at the same rate.

The log holds, for each model, the loss on 12,800 characters of another split in nats a character,
one number for each seed (`losses`), and the number of parameters (`parameters`).

Explained in: chapters/05_architecture_deeper, section "Five times each".
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tfbook import data, models
from tfbook.experiments.depth import (  # noqa: F401 - the card names all four constants
    BATCH,
    CONTEXT,
    RATE,
    WIDTH,
    CausalAttention,
    Characters,
    Wired,
    feed_forward,
    learn,
)  # fmt: skip

__all__ = ["MODELS", "SMOKE", "model_of", "run", "train"]

SMOKE = {"names": ("no layer", "GPT"), "seeds": (0,), "steps": 2}
CARD = {
    "model": "decoders of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rate {RATE:g}, rising and then falling",
}
PAIR: list[Callable[[], nn.Module]] = [CausalAttention, feed_forward]
# From a GPT to a LLaMA; these are built by the package, each with all exchanges up to its own.
EXCHANGES = ("+ RMSNorm", "+ SwiGLU", "+ rotary", "+ grouped heads", "+ no biases", "LLaMA")
# Name → (wiring, the parts).
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
    **{name: ("pre", []) for name in EXCHANGES},
}


class Faulty(Wired):
    """A part with a norm that stands in the stream: the fault of an exercise."""

    def forward(self, x: Tensor) -> Tensor:
        """Pass x through."""
        x = self.norm(x)
        return x + self.part(x)


class Exchanged(nn.Module):
    """The package's decoder with some of LLaMA's parts, as a map from ids to logits."""

    def __init__(self, vocabulary: int, exchanges: int) -> None:
        """Build two blocks with the first so many of `EXCHANGES`, and start them as the others."""
        super().__init__()
        gated, turned, grouped, bare, tied = (exchanges > i for i in range(1, 6))
        attention = models.Attention(
            4,
            n_kv_heads=2 if grouped else None,
            position=models.Rotary() if turned else None,
            bias=not bare,
        )
        size, kind = (170, "swiglu") if gated else (4 * WIDTH, "relu")
        network = models.FFN(size, kind, bias=not bare)
        layer = models.Layer(attention, network, norm=models.Norm("rms"))
        self.model = models.build(
            models.TransformerConfig(
                vocabulary, WIDTH, decoder=[layer] * 2, max_len=CONTEXT,
                embedding=models.Tokens(None if turned else models.Learned()),
                head=models.NextToken(tie_embeddings=tied, bias=not bare),
            )
        )  # fmt: skip
        nn.init.normal_(self.model.embed.weight, std=WIDTH**-0.5)
        if not turned:
            nn.init.normal_(self.model.position.weight, std=WIDTH**-0.5)
        if not tied:  # as `nn.Linear` starts
            nn.init.kaiming_uniform_(self.model.head.weight, a=5**0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores of the next character, from (B, N) to (B, N, V)."""
        return self.model(ids)[0]


def model_of(name: str, vocabulary: int) -> nn.Module:
    """Return an untrained model, its linear maps as PyTorch starts them."""
    if name in EXCHANGES:
        made: nn.Module = Exchanged(vocabulary, 1 + EXCHANGES.index(name))
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
    torch.manual_seed(seed)
    return learn(model_of(name, len(set(data.shakespeare("train")))), seed, steps)


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
