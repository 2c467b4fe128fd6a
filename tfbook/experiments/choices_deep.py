"""Does the place of the norm matter more with 24 layers? Do a gate and experts want other rates?

`deep[name][start][rate]` are the losses of thin models with 24 layers, in nats a character, one for
each seed: pre-norm, post-norm and DeepNorm, with a warm-up over a tenth of the steps and without
one ("cold"), at two rates each.

The other parts continue `choices` and `choices_again` with the models of these:
`rates[name][times]` at multiples of their rate, `cold[name][times]` without warm-up, `fresh[name]`
with seeds that `choices` has not used. 99 stands for all that is no number or larger. `parameters`
says what each model owns.

Source: [xiong2020layer] and [wang2022deepnet], who ask the first of larger models.
Explained in: chapters/08_architectural_variants, section "Can 24 layers still learn?".
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from tfbook.blocks import deep_norm, draw_deep_norm, with_deep_norm
from tfbook.experiments import choices, choices_again
from tfbook.models import Attention, NextToken, Rotary, TransformerConfig, build

__all__ = ["DEEP", "NAMES", "SMOKE", "deep_loss", "model_of", "run"]

RATE, STEPS, DEEP_STEPS = choices_again.RATE, choices_again.STEPS, 160
LAYERS, THIN, HEADS = 24, 24, 4
WIDTH, CONTEXT, BATCH = choices.WIDTH, choices.CONTEXT, choices.BATCH
# Name → rates: two at which the model may learn.
DEEP = {"pre-norm": (0.003, 0.012), "post-norm": (0.001, 0.003), "DeepNorm": (0.003, 0.012)}
DEEP_SEEDS = (0, 1)
STARTS = {"warm-up": None, "cold": 0}  # steps of the warm-up; None for a tenth of all
# Name → multiple of the rate → how many seeds.
RATES = {
    "plain": {"0.5": 2, "2": 2},
    "SwiGLU": {"0.5": 2, "2": 2, "4": 2},
    "8 experts, bias": {"0.5": 2, "2": 2, "4": 2},
}
COLD = {"DeepNorm": {"1": 4}}
SUSPECTED, FRESH = ("SwiGLU, wider",), choices_again.FRESH
NAMES = (*DEEP, *RATES, *SUSPECTED)
SMOKE = {
    "steps": 3, "deep": {"DeepNorm": (0.003,)}, "deep_seeds": (0,),
    "rates": {"SwiGLU": {"2": 1}}, "cold": {}, "fresh": (),
}  # fmt: skip
CARD = {
    "model": "decoders, {LAYERS} layers of width {THIN} or 4 of width {WIDTH}, {smallest:,} to "
    "{largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "steps": "{deep_steps} steps with {LAYERS} layers, else {steps}",
    "batch": "batches of {BATCH}",
    "rate": "rates from {low:g} up, and multiples of rate {rate:g}; two to eight seeds",
}


def model_of(name: str) -> nn.Module:
    """Return an untrained model: a thin one of 24 layers, or one of `choices`.

    Args:
        name: one of `DEEP`, or of a model of `choices` but DeepNorm.
    """
    if name not in DEEP:
        return choices.model_of(name)
    mixer = Attention(HEADS, position=Rotary(), bias=False)
    layer = replace(choices.PLAIN, mixer=mixer, ffn=choices.ffn(4 * THIN))
    layer = replace(layer, place="post" if name == "post-norm" else "pre")
    config = TransformerConfig(
        choices.config_of("plain").vocab_size, THIN, decoder=[layer] * LAYERS,
        head=NextToken(tie_embeddings=False),
    )  # fmt: skip
    made = build(with_deep_norm(config) if name == "DeepNorm" else config)
    for path, weight in made.named_parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=1.0 if "embed" in path else weight.shape[1] ** -0.5)
    if name == "DeepNorm":
        draw_deep_norm(made.stack, deep_norm(n_decoder=LAYERS)["decoder"].beta)
    return made


def deep_loss(name: str, seed: int, rate: float, start: str, steps: int = DEEP_STEPS) -> float:
    """Train a thin model of 24 layers; return its held-out loss in nats a character."""
    torch.manual_seed(seed)
    model = model_of(name)
    choices.train(name, model, steps, seed, rate, STARTS[start])
    return choices.held_out(model)


def run(
    *, steps: int = STEPS, rate: float = RATE, deep: Mapping[str, Sequence[float]] = DEEP,
    deep_seeds: Sequence[int] = DEEP_SEEDS,
    rates: Mapping[str, Mapping[str, int]] = RATES, cold: Mapping[str, Mapping[str, int]] = COLD,
    suspected: Sequence[str] = SUSPECTED, fresh: Sequence[int] = FRESH,
) -> tuple[dict, None]:  # fmt: skip
    """Train what `choices` and `choices_again` have not.

    Args:
        steps: of each run; those with 24 layers take at most `DEEP_STEPS`.
        rate: the one of `choices`.
        deep: which models of 24 layers, each at these rates.
        deep_seeds: of these.
        rates: models of `choices`, each at multiples of the rate with so many seeds.
        cold: likewise, without warm-up.
        suspected: models that get fresh seeds.
        fresh: these seeds.
    """
    few = min(steps, DEEP_STEPS)

    def losses(name: str, seeds: Sequence[int], times: str = "1", **more: int) -> list[float]:
        return [choices_again.loss_of(name, seed, times, steps, **more) for seed in seeds]

    found = {
        "deep": {
            name: {
                start: {
                    f"{each:g}": [deep_loss(name, seed, each, start, few) for seed in deep_seeds]
                    for each in tried
                }
                for start in STARTS
            }
            for name, tried in deep.items()
        },
        "rates": {
            name: {times: losses(name, range(count), times) for times, count in each.items()}
            for name, each in rates.items()
        },
        "cold": {
            name: {
                times: losses(name, range(count), times, warmup=0) for times, count in each.items()
            }
            for name, each in cold.items()
        },
        "fresh": {name: losses(name, fresh) for name in suspected},
    }
    owned = {name: sum(w.numel() for w in model_of(name).parameters()) for name in NAMES}
    return {
        "settings": {
            "steps": steps, "deep_steps": few, "rate": rate, "low": min(map(min, deep.values())),
            "smallest": min(owned.values()), "largest": max(owned.values()),
        },
        "fresh_seeds": list(fresh), "deep_seeds": list(deep_seeds), "parameters": owned, **found,
    }, None  # fmt: skip
