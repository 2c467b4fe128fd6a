"""What do the heads of a small language model do, and how much would be lost without each of them?

A causal transformer of two layers reads Shakespeare one character at a time and predicts the
next. It is trained with 1, 2, 4 and 8 heads a layer, with the same parameters, data and steps, from
several seeds. For the models with `chosen` heads the log holds, for each seed, how each head
spreads its weight, and the held-out loss without that head and without all heads of a layer, with
nothing retrained. The shipped weights are those of the first seed, and so is what the heads look at
in a few passages.

Around each attention layer stand the parts that every transformer has: a normalisation before it,
a residual sum after it, and a feed-forward network applied to each position alone (chapter 5).

Explained in: chapters/03_multi_head, section "What the heads of a small model do".
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook import data, experiments
from tfbook.attention import MultiHeadAttention
from tfbook.teaching.explorables import pack_weights

__all__ = [
    "SMOKE",
    "CharacterModel",
    "encode",
    "head_shares",
    "held_out_loss",
    "relations",
    "run",
    "train",
    "trained",
    "windows_of",
]

SMOKE = {"heads": (1, 2), "seeds": (0, 1), "steps": 3, "chosen": 2, "windows": 8}
CARD = {
    "model": "transformer, {layers} layers of width {width}, {heads_first} to {heads_last} heads, "
    "{parameters:,} parameters",
    "data": "Shakespeare, windows of {context} characters",
}
WIDTH, LAYERS, CONTEXT = 64, 2, 64
PASSAGES = ("SIR ANDREW:\nSir Toby Belch!", "Not a flower, not a flower", "Now it is the time")


class CharacterModel(nn.Module):
    """A causal transformer over characters: ids (B, N) to scores of the next character (B, N, V).

    Each layer adds attention(norm(x)) and then feed_forward(norm(x)) to x. Positions are learned.
    """

    def __init__(self, n_characters: int, n_heads: int, layers: int = LAYERS):
        """Draw the weights: the modules' own defaults, embeddings with standard deviation 0.5."""
        super().__init__()
        self.character = nn.Embedding(n_characters, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.attention = nn.ModuleList(
            MultiHeadAttention(WIDTH, n_heads, causal=True) for _ in range(layers)
        )
        self.before_attention = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(layers))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                nn.Linear(4 * WIDTH, WIDTH),
            )
            for _ in range(layers)
        )  # fmt: skip
        self.last_norm = nn.LayerNorm(WIDTH)
        self.to_character = nn.Linear(WIDTH, n_characters)
        for table in (self.character, self.position):
            nn.init.normal_(table.weight, std=0.5)

    def forward(
        self, ids: Int[Tensor, "B N"], *, head_mask: Float[Tensor, "L H"] | None = None
    ) -> Float[Tensor, "B N V"]:
        """Score the next character; `head_mask` (layers, heads) multiplies each head's output."""
        x = self._embed(ids)  # (B, N, E)
        for layer in range(len(self.attention)):
            switch = None if head_mask is None else head_mask[layer]
            x = x + self.attention[layer](self.before_attention[layer](x), head_mask=switch)[0]
            x = x + self.feed_forward[layer](x)
        return self.to_character(self.last_norm(x))

    def weights(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B L H N N"]:
        """Return the attention weights of every head, (B, layers, heads, N, N)."""
        x, found = self._embed(ids), []
        for layer in range(len(self.attention)):
            normed = self.before_attention[layer](x)
            found.append(self.attention[layer].weights(normed))
            x = x + self.attention[layer](normed)[0]
            x = x + self.feed_forward[layer](x)
        return torch.stack(found, dim=1)

    def _embed(self, ids: Tensor) -> Tensor:
        return self.character(ids) + self.position.weight[: ids.shape[1]]


def encode(text: str, characters: str) -> Int[Tensor, " N"]:
    """Return the id of each character of `text`, its place in `characters`.

    Raises:
        ValueError: if the text has a character that the model does not know.
    """
    place = {character: i for i, character in enumerate(characters)}
    if unknown := sorted(set(text) - set(characters)):
        raise ValueError(f"text must be of the characters that are known, got {unknown} as well")
    return torch.tensor([place[character] for character in text])


def windows_of(ids: Int[Tensor, " N"], count: int) -> tuple[Int[Tensor, "C W"], Int[Tensor, "C W"]]:
    """Cut `count` windows of CONTEXT characters, evenly spread, and the characters that follow."""
    starts = torch.linspace(0, len(ids) - CONTEXT - 1, count).long()
    window = ids[starts[:, None] + torch.arange(CONTEXT + 1)]  # (count, CONTEXT + 1)
    return window[:, :-1], window[:, 1:]


@torch.no_grad()
def held_out_loss(
    model: CharacterModel,
    ids: Int[Tensor, "B N"],
    targets: Int[Tensor, "B N"],
    head_mask: Float[Tensor, "L H"] | None = None,
) -> float:
    """Return the mean cross-entropy of the next character, in nats."""
    scores = model(ids, head_mask=head_mask)
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten()).item()


def relations(ids: Int[Tensor, "B N"], characters: str) -> dict[str, Bool[Tensor, "B N N"]]:
    """Say which keys stand in which relation to which query, as boolean tables (B, N, N).

    The relations overlap: the character before is often in the same word as well.
    """
    n = ids.shape[1]
    i, j = torch.arange(n)[:, None], torch.arange(n)
    space = torch.tensor([not character.isalpha() for character in characters])[ids]  # (B, N)
    word = (space.cumsum(dim=1) - space.long()).masked_fill(space, -1)  # its number; −1 outside
    same = (ids[:, :, None] == ids[:, None, :]) & (j < i)
    after = functional.pad(same[:, :, :-1], (1, 0))  # key j follows a copy of the query
    return {
        "itself": (i == j).expand_as(same),
        "one back": (j == i - 1).expand_as(same),
        "two back": (j == i - 2).expand_as(same),
        "earlier in the word": (word[:, :, None] == word[:, None, :]) & (word[:, :, None] >= 0)
        & (j < i),
        "spaces and signs": (space[:, None, :] & (j < i)).expand_as(same),
        "same character": same,
        "after the same": after,
        "first in the window": (j == 0).expand_as(same),
    }  # fmt: skip


@torch.no_grad()
def head_shares(
    weights: Float[Tensor, "#B L H N N"], ids: Int[Tensor, "B N"], characters: str
) -> dict[str, Float[Tensor, "L H"]]:
    """Return each head's mean share of weight on the keys of each relation, (layers, heads).

    Queries in the first quarter of the window are left out: they have few keys to choose from.
    """
    late = slice(ids.shape[1] // 4, None)
    return {
        name: (weights * table[:, None, None])[..., late, :].sum(dim=-1).mean(dim=(0, -1))
        for name, table in relations(ids, characters).items()
    }


@torch.no_grad()
def read_passages(model: CharacterModel, characters: str) -> list[dict]:
    """Let the model read a few held-out passages of 60 characters; keep all weights, packed.

    Returns:
        Dictionaries as :func:`tfbook.teaching.explorables.head_viewer` takes them.
    """
    held_out, found = data.shakespeare("valid"), []
    for start in PASSAGES:
        text = held_out[held_out.index(start) :][:60]
        weights = model.weights(encode(text, characters)[None])[0]  # (layers, heads, N, N)
        title = start.replace("\n", " ")
        found.append({"title": title, "tokens": list(text), "weights": pack_weights(weights)})
    return found


def trained() -> tuple[CharacterModel, str]:
    """Return the shipped model, in evaluation mode, and the characters that it knows."""
    log = experiments.log("heads")
    model = CharacterModel(len(log["characters"]), log["settings"]["chosen"])
    model.load_state_dict(experiments.weights("heads"))
    return model.eval(), log["characters"]


def train(
    n_heads: int, seed: int, text: Tensor, n_characters: int, steps: int, batch: int, rate: float,
    layers: int = LAYERS,
) -> tuple[CharacterModel, list[float]]:  # fmt: skip
    """Train one model; return it with its training loss, averaged over tenths of the run."""
    torch.manual_seed(seed)
    model = CharacterModel(n_characters, n_heads, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda t: min((t + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * t / steps)) + 0.02),
    )
    generator = torch.Generator().manual_seed(seed)  # the same batches whatever the head count
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (batch, 1), generator=generator)
        window = text[starts + torch.arange(CONTEXT + 1)]
        loss = functional.cross_entropy(
            model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model.eval(), losses


def _without(model: CharacterModel, ids: Tensor, targets: Tensor, n_heads: int) -> list:
    """Return the held-out loss without each head, (layers, heads)."""
    found = []
    for layer in range(LAYERS):
        row = []
        for head in range(n_heads):
            switch = torch.ones(LAYERS, n_heads)
            switch[layer, head] = 0.0
            row.append(held_out_loss(model, ids, targets, switch))
        found.append(row)
    return found


def _rounded(numbers, digits: int = 4):
    if isinstance(numbers, dict):
        return {key: _rounded(value, digits) for key, value in numbers.items()}
    if isinstance(numbers, list):
        return [_rounded(value, digits) for value in numbers]
    return round(numbers, digits)


def run(
    *,
    heads: tuple[int, ...] = (1, 2, 4, 8),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 1200,
    chosen: int = 4,
    batch: int = 32,
    rate: float = 4e-3,
    windows: int = 256,
) -> tuple[dict, dict[str, Tensor]]:
    """Train all models; return the log, and the weights of the first one with `chosen` heads."""
    settings = {key: value for key, value in locals().items()}
    text, held_out = data.shakespeare("train"), data.shakespeare("valid")
    characters = "".join(sorted(set(text + held_out)))
    ids, targets = windows_of(encode(held_out, characters), windows)
    encoded = encode(text, characters)
    log = {
        "settings": settings | {"width": WIDTH, "layers": LAYERS, "context": CONTEXT},
        "characters": characters,
        "training_loss": {},
        "held_out_loss": {},
        "without_head": [],
        "without_layer": [],
        "shares": [],
    }
    kept: dict[str, Tensor] = {}
    piece = max(1, steps // 25)
    log["steps"] = list(range(piece, steps + 1, piece))
    for n_heads in heads:
        curves, ends = [], []
        for seed in seeds:
            model, losses = train(n_heads, seed, encoded, len(characters), steps, batch, rate)
            curves.append([sum(losses[s - piece : s]) / piece for s in log["steps"]])
            ends.append(held_out_loss(model, ids, targets))
            log["parameters"] = sum(p.numel() for p in model.parameters())
            if n_heads != chosen:
                continue
            if not kept:
                kept = {name: w.detach().clone() for name, w in model.state_dict().items()}
                log["passages"] = read_passages(model, characters)
            log["without_head"].append(_without(model, ids, targets, n_heads))
            gone = [torch.ones(LAYERS, n_heads) for _ in range(LAYERS)]
            for layer in range(LAYERS):
                gone[layer][layer] = 0.0
            log["without_layer"].append([held_out_loss(model, ids, targets, m) for m in gone])
            shares = head_shares(model.weights(ids), ids, characters)
            log["shares"].append({name: share.tolist() for name, share in shares.items()})
        log["training_loss"][str(n_heads)] = curves
        log["held_out_loss"][str(n_heads)] = ends
    digits = ("training_loss", "held_out_loss", "without_head", "without_layer", "shares")
    return log | {key: _rounded(log[key]) for key in digits}, kept
