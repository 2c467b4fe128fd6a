"""When does a small model begin to copy what followed last time, and which heads do it?

A piece of 8 to 24 tokens is drawn from one table of pairs: each token says how likely each next
one is. The text repeats the piece until it has 48 tokens. So there are two things to learn. The
pairs are the same in all texts, and weights can hold them. What is repeated is new in each text,
and how far back it stands is new too: it can only be found by looking where this token stood
before, and what followed it there.

The decoders of `MODELS` learn it, at a rate that is constant after the first 50 steps, so that no
schedule can make a jump. All have attention alone: one layer; one layer whose keys also hold the
key of the token before (:class:`Smeared`); two layers.

The log holds under each name lists by model, seed and look (`after`). "loss" is that of fresh
texts, "repeats" the part at places that can be known, behind the first token of the first
repetition, "others" the rest, "in_context" the loss at the last 8 places less that at places 1 to
7, which are never a repetition. "random" is the loss on the second half of 48 random tokens of
which the second half repeats the first, "random_first" on the first half, where nothing can be
known. "prefix", "copying" and "previous" are scores of all heads, (layer, head). "effects", at the
looks `effects_after`, is by how much "random" grows if a head's findings are replaced by their
mean; "composition" is how much the keys of layer 1 read of what each head of layer 0 writes,
(head, head). "found" names the head with the largest prefix score in the last layer at the end, the
head that looks most at the token before in the first, and the prefix score with the second one
switched off. "jump" is the first look at which "random" is by 1 nat below "random_first", and at
which a prefix score is above 0.5; null where that never is.

Source: [olsson2022context]
Explained in: chapters/05_architecture_deeper, section "The residual stream".
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook.interpret import (
    ablated,
    composition_scores,
    copying_scores,
    head_effects,
    prefix_matching_scores,
    previous_token_scores,
    repeated_tokens,
)
from tfbook.models import (
    Attention,
    DecoderOnly,
    Layer,
    NextToken,
    NoFFN,
    Norm,
    Rotary,
    TransformerConfig,
    build,
)

__all__ = ["MODELS", "SMOKE", "Smeared", "model_of", "pairs", "run", "stream"]

SMOKE = {
    "models": ("1 layer, smeared keys", "2 layers"), "seeds": (0,), "steps": 4, "every": 2,
    "tests": 4,
}  # fmt: skip
CARD = {
    "model": "decoders of 1 or 2 layers of {HEADS} heads, width {WIDTH}, attention alone, "
    "{parameters_first:,} to {parameters_last:,} parameters",
    "data": "texts of {LENGTH} tokens, a piece from a table of pairs that is repeated",
    "rate": "rate {rate:g}, rising, then constant",
}
VOCABULARY, WIDTH, HEADS, D_HEAD, LENGTH = 32, 32, 4, 16, 48
PIECE = (8, 24)  # how long the piece is that is repeated, at least and at most
EARLY, LATE = slice(1, 8), slice(40, 48)  # places that the score "in_context" compares
NATS, LOOKS = 1.0, 0.5  # what counts as a jump
MODELS: dict[str, dict] = {
    "1 layer": {"layers": 1},
    "1 layer, smeared keys": {"layers": 1, "smeared": True},
    "2 layers": {"layers": 2},
}


class Smeared(nn.Linear):
    """Keys that also hold the key of the token before: k_i ← s k_i + (1 − s) k_{i−1}.

    The share s is learnt, one for all heads, and begins at one half.

    Source: [olsson2022context]
    Explained in: chapters/05_architecture_deeper, section "The residual stream".
    """

    def __init__(self, projection: nn.Linear):
        """Take the weights of a projection."""
        super().__init__(projection.in_features, projection.out_features)
        self.weight, self.bias = projection.weight, projection.bias
        self.share = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N E"]:
        """Return the mixed keys; before the first token there are zeros."""
        keys, share = super().forward(x), self.share.sigmoid()
        return share * keys + (1 - share) * functional.pad(keys, (0, 0, 1, -1))


def model_of(name: str) -> DecoderOnly:
    """Make one of `MODELS`, untrained."""
    choice = MODELS[name]
    attention = Attention(HEADS, d_head=D_HEAD, position=Rotary())
    config = TransformerConfig(
        VOCABULARY,
        WIDTH,
        decoder=[Layer(attention, NoFFN(), norm=Norm("rms"))] * choice["layers"],
        head=NextToken(tie_embeddings=False),
    )
    model = build(config)
    if choice.get("smeared"):
        for block in model.stack.blocks:
            block.mixer.k_proj = Smeared(block.mixer.k_proj)
    return model


def pairs(seed: int = 0, *, sharpness: float = 1.0) -> Float[Tensor, "V V"]:
    """Draw the table of pairs: row a says how likely each token is behind a."""
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(VOCABULARY, VOCABULARY, generator=generator)).softmax(-1)


def stream(
    table: Float[Tensor, "V V"], batch: int, generator: torch.Generator
) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
    """Draw texts that repeat a piece, and tell the places that can be known from before.

    Args:
        table: of pairs, rows sum to 1.
        batch: how many texts, B.
        generator: source of randomness.

    Returns:
        Tokens (B, 48), and a boolean of the same shape, True behind the first token of the first
        repetition.
    """
    limits = table.cumsum(-1)  # (V, V)
    drawn = [torch.randint(VOCABULARY, (batch,), generator=generator)]
    for u in torch.rand(PIECE[1] - 1, batch, 1, generator=generator).unbind(0):
        after = (limits[drawn[-1]] < u).sum(-1)  # (B,)
        drawn.append(after.clamp(max=VOCABULARY - 1))
    piece, place = torch.stack(drawn, 1), torch.arange(LENGTH)
    size = torch.randint(PIECE[0], PIECE[1] + 1, (batch, 1), generator=generator)
    return piece.gather(1, place % size), place > size


def losses(model: nn.Module, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "B M"]:
    """Return the loss of each token but the first, (B, N − 1)."""
    return functional.cross_entropy(model(tokens[:, :-1])[0].mT, tokens[:, 1:], reduction="none")


def second_half(model: nn.Module, tokens: Int[Tensor, "B N"]) -> Tensor:
    """Return the mean loss of the second half of repeated tokens, but of its first one."""
    return losses(model, tokens)[:, tokens.shape[1] // 2 :].mean()


class Looks:
    """What is measured on the way, always on the same fresh texts."""

    def __init__(self, table: Tensor, tests: int):
        """Draw the texts."""
        generator = torch.Generator().manual_seed(10_000)
        self.tokens, self.known = stream(table, 4 * tests, generator)
        self.random = repeated_tokens(VOCABULARY, LENGTH // 2, tests, generator=generator)

    @torch.no_grad()
    def numbers(self, model: nn.Module) -> dict[str, float]:
        """Return the losses."""
        each, known = losses(model, self.tokens), self.known[:, 1:]
        random = losses(model, self.random)
        place = torch.arange(1, LENGTH)
        late, early = ((place >= s.start) & (place < s.stop) for s in (LATE, EARLY))
        return {
            "loss": each.mean().item(),
            "repeats": each[known].mean().item(),
            "others": each[~known].mean().item(),
            "in_context": (each[:, late].mean() - each[:, early].mean()).item(),
            "random": second_half(model, self.random).item(),
            "random_first": random[:, : LENGTH // 2 - 1].mean().item(),
        }

    @torch.no_grad()
    def scores(self, model: nn.Module) -> dict[str, Tensor]:
        """Return what the heads do, (L, H) each."""
        return {
            "prefix": prefix_matching_scores(model, self.random),
            "previous": previous_token_scores(model, self.random),
            "copying": copying_scores(model),
        }

    def effects(self, model: nn.Module) -> Float[Tensor, "L H"]:
        """Return by how much the loss of the second half grows without each head."""
        return head_effects(
            model, lambda m: second_half(m, self.random), how="mean", reference=self.random
        )

    def found(self, model: nn.Module) -> dict:
        """Name the two heads, and say what the second one's place is to the first."""
        scores, last = self.scores(model), len(model.stack.blocks) - 1
        induction = int(scores["prefix"][last].argmax())
        previous = int(scores["previous"][0].argmax())
        with ablated(model, [(0, previous)], how="mean", reference=self.random):
            without = prefix_matching_scores(model, self.random)[last, induction].item()
        return {
            "induction": [last, induction], "previous": [0, previous],
            "prefix_without_previous": round(without, 4),
        }  # fmt: skip


def train(
    name: str, seed: int, table: Tensor, looks: Looks, settings: dict
) -> tuple[dict, DecoderOnly]:
    """Train one model and look at it on the way."""
    torch.manual_seed(seed)
    model, generator = model_of(name), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["rate"], weight_decay=0.01)
    seen: dict = {}
    for step in range(settings["steps"] + 1):
        if step % settings["every"] == 0:
            for key, value in (looks.numbers(model) | looks.scores(model)).items():
                seen.setdefault(key, []).append(_rounded(value))
        if step in settings["effects_after"]:
            seen.setdefault("effects", []).append(_rounded(looks.effects(model)))
            if len(model.stack.blocks) > 1:
                composed = composition_scores(model, "k")[0, :, 1]
                seen.setdefault("composition", []).append(_rounded(composed))
        if step == settings["steps"]:
            break
        optimizer.param_groups[0]["lr"] = settings["rate"] * min(1.0, (step + 1) / 50)
        loss = losses(model, stream(table, settings["batch"], generator)[0]).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    seen["found"] = looks.found(model)
    seen["jump"] = _jump(seen, settings["every"])
    return seen, model


def _rounded(value: float | Tensor) -> float | list:
    """Return numbers with 4 digits behind the point, nested as they were."""
    if isinstance(value, Tensor):
        return [_rounded(each) for each in value] if value.ndim else round(value.item(), 4)
    return round(value, 4)


def _jump(seen: dict, every: int) -> dict:
    """Return after how many steps the loss and the scores have jumped, None for never."""
    halves = zip(seen["random_first"], seen["random"], strict=True)
    gains = [first - second for first, second in halves]
    best = [max(max(row) for row in scores) for scores in seen["prefix"]]
    return {
        key: next((i * every for i, value in enumerate(values) if value > limit), None)
        for key, values, limit in (("loss", gains, NATS), ("prefix", best, LOOKS))
    }


def run(
    *,
    models: Sequence[str] = tuple(MODELS),
    seeds: Sequence[int] = (0, 1, 2),
    steps: int = 500,
    every: int = 20,
    batch: int = 32,
    rate: float = 5e-3,
    tests: int = 16,
) -> tuple[dict, dict[str, Tensor]]:
    """Train every model with every seed; keep the weights of two layers, of the first seed."""
    looked = list(range(0, steps + 1, every))
    settings = {
        "seeds": list(seeds), "steps": steps, "every": every, "batch": batch, "rate": rate,
        "tests": tests, "effects_after": looked[:: max(1, len(looked) // 5)],
    }  # fmt: skip
    table = pairs()
    looks, kept = Looks(table, tests), {}
    often = torch.linalg.matrix_power(table, 100)[0]  # how often each token stands there
    best = -(often @ (table * table.log())).sum().item()
    log: dict = {
        "settings": settings, "after": looked, "effects_after": settings["effects_after"],
        "models": list(models), "entropy_of_pairs": round(best, 4),
        "parameters": sorted({sum(w.numel() for w in model_of(m).parameters()) for m in models}),
    }  # fmt: skip
    for name in models:
        for seed in seeds:
            seen, model = train(name, seed, table, looks, settings)
            for key, value in seen.items():
                log.setdefault(key, {}).setdefault(name, []).append(value)
            if name == "2 layers" and seed == seeds[0]:
                kept = model.state_dict()
    return log, kept
