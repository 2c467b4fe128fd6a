"""What lets 24 layers of post-norm learn, and does a balancing loss save choices, too?

The models and the training are those of `choices_deep` and `choices_longer`. All lists hold one
number for each seed.

`deep[cure]` are the losses, in nats a character, of the thin post-norm model with 24 layers: with a
warm-up over half of the steps; with first weights of the attention (values and outputs) that are
0.64 times as large, as in BERT-large, whose matrices begin at 0.02 where ours would begin at 1/32;
and with those of the networks as small, too.

`room[strength]` trains eight experts that serve no more than the mean, with a balancing loss of
that factor: the losses (`losses`), and which share of all choices was dropped in the last quarter
of the run (`dropped`).

Source: [devlin2019bert] and [fedus2022switch], for the first weights and for the loss.
Explained in: chapters/08_architectural_variants, section "Can 24 layers still learn?".
"""

from collections.abc import Sequence

import torch
from torch import nn

from tfbook.blocks import FeedForward, draw_deep_norm
from tfbook.experiments import choices, choices_deep, choices_longer

__all__ = ["CURES", "SMOKE", "model_of", "run"]

RATE, STEPS, DEEP_STEPS = choices_longer.RATE, choices_longer.STEPS, choices_longer.DEEP_STEPS
DEEP_RATE, FACTOR, LAYERS, THIN = 0.003, 0.64, choices_deep.LAYERS, choices_deep.THIN
WIDTH, CONTEXT, BATCH = choices.WIDTH, choices.CONTEXT, choices.BATCH
CURES = ("long warm-up", "smaller attention", "smaller sublayers")
STRENGTHS, PAIR = (0.01, 0.1), (0, 1)
SMOKE = {"steps": 3, "cures": ("smaller attention",), "strengths": (0.1,), "pair": (0,)}
CARD = choices_deep.CARD | {
    "rate": "rate {DEEP_RATE:g} with {LAYERS} layers, else {rate:g}; two seeds",
}


def model_of(cure: str) -> nn.Module:
    """Return an untrained post-norm model of 24 thin layers, with one of `CURES`."""
    model = choices_deep.model_of("post-norm")
    if cure != "long warm-up":
        networks = [part for part in model.modules() if isinstance(part, FeedForward)]
        before = [weight.clone() for part in networks for weight in part.parameters()]
        draw_deep_norm(model.stack, FACTOR)
        if cure == "smaller attention":  # the networks as they were
            weights = [weight for part in networks for weight in part.parameters()]
            with torch.no_grad():
                for weight, old in zip(weights, before, strict=True):
                    weight.copy_(old)
    return model


def _loss(cure: str, seed: int, steps: int) -> float:
    torch.manual_seed(seed)
    model = model_of(cure)
    warmup = steps // 2 if cure == "long warm-up" else None
    choices.train("post-norm", model, steps, seed, DEEP_RATE, warmup)
    return choices.held_out(model)


def run(
    *, steps: int = STEPS, rate: float = RATE, cures: Sequence[str] = CURES,
    strengths: Sequence[float] = STRENGTHS, pair: Sequence[int] = PAIR,
) -> tuple[dict, None]:  # fmt: skip
    """Train post-norm with each cure, and experts with a balancing loss of each strength.

    Args:
        steps: of each run; those with 24 layers take at most `DEEP_STEPS`.
        rate: of the experts, the one of `choices`.
        cures: of post-norm, some of `CURES`.
        strengths: factors of the balancing loss.
        pair: seeds.
    """
    few, name = min(steps, DEEP_STEPS), "8 experts, loss"
    room = {}
    for strength in strengths:
        made = [choices_longer.room_of(name, seed, rate, steps, strength) for seed in pair]
        losses, dropped = zip(*made, strict=True)
        room[f"{strength:g}"] = {"losses": list(losses), "dropped": list(dropped)}
    models = [choices.model_of(name), *map(model_of, cures)]
    sizes = [sum(weight.numel() for weight in model.parameters()) for model in models]
    return {
        "settings": {
            "steps": steps, "deep_steps": few, "rate": rate,
            "smallest": min(sizes), "largest": max(sizes),
        },
        "pair": list(pair), "room": room,
        "deep": {cure: [_loss(cure, seed, few) for seed in pair] for cure in cures},
    }, None  # fmt: skip
