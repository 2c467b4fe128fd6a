"""Do the suspicions of `choices` return with fresh seeds? And rivals, warm-up and the last norm.

The models, the data and the training are those of `choices`; what it and `choices_controls` have
trained already is read from their logs. A seed means the same order of text for all models. All
lists hold one loss for each seed, in nats a character; 99 stands for all that is no number or
larger. Multiples are those of the rate of `choices`.

`fresh[name]` are losses with seeds that `choices` has not used: all of `FRESH` for models that it
found close to its limits, the first of them (`SOME`) for the others, but for one that
`choices_deep` has and for two with fine experts. `rivals[name][times]` compare sizes: twice the
width, and two models that own as much as one shared layer, a narrow one and a single layer.
`cold[name][times]` are losses without warm-up. `rates[name][times]` are a further model at other
rates, as in `choices_controls`. `gain[gain]` are losses of the plain model when the gain of
its last norm begins so large. `parameters` says what each model owns.

Source: [narang2021transformer], who ask the same of 223 million parameters.
Explained in: chapters/08_architectural_variants, section "How large is luck?".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from tfbook import experiments
from tfbook.experiments import choices, choices_controls
from tfbook.models import build

__all__ = ["CHOSEN", "SMOKE", "model_of", "run"]

RATE, STEPS, LAYERS = 0.012, 240, choices.LAYERS
WIDTH, CONTEXT, BATCH = choices.WIDTH, choices.CONTEXT, choices.BATCH
NARROW, NARROW_INNER = 24, 111  # together as many parameters as one shared layer, but for 72
SUSPECTED = ("RMSNorm", "no norms", "DeepNorm", "SwiGLU")
FRESH = tuple(range(4, 12))
SOME, ELSEWHERE = FRESH[:4], ("plain", "SwiGLU, wider", "16 fine experts", "15 fine, 1 shared")
OTHERS = tuple(name for name in choices.CHANGES if name not in (*SUSPECTED, *ELSEWHERE))
# Name → multiple of the rate → how many seeds.
RIVALS = {
    "twice the width": {"1": 4},
    "narrow": {"1": 4, "2": 2, "4": 2},
    "single layer": {"1": 4, "2": 2, "4": 2},
}
COLD = {"plain": {"1": 4}, "post-norm": {"1": 4}}
RATES = {"DeepNorm": {"0.25": 2, "1": 4, "4": 2, "10": 2}}
GAINS = {"2": 2, "4": 2, "8": 2}
SMOKE = {
    "steps": 3, "suspected": ("SwiGLU",), "fresh": (4,), "others": (),
    "rivals": {"narrow": {"1": 1}}, "cold": {"plain": {"1": 1}}, "rates": {"DeepNorm": {"4": 1}},
    "gains": {"4": 1},
    "known": False,
}  # fmt: skip
CARD = {
    "model": "decoders, {LAYERS} layers of width {NARROW} to twice {WIDTH}, {smallest:,} to "
    "{largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "batch": "batches of {BATCH}",
    "rate": "rate {rate:g} and multiples of it; two to eight seeds",
}


def model_of(name: str, gain: float = 1.0) -> nn.Module:
    """Return an untrained model of `choices` or `choices_controls`, or a rival of the same size.

    Args:
        name: of a model of these, "narrow", or "single layer".
        gain: of the last norm.
    """
    config = choices.config_of("plain")
    if name == "narrow":
        layer = replace(choices.PLAIN, ffn=choices.ffn(NARROW_INNER))
        config = replace(config, d_model=NARROW, decoder=[layer] * LAYERS)
    elif name == "single layer":
        config = replace(config, decoder=config.decoder[:1])
    else:
        return choices_controls.model_of(name, gain)
    model = build(config)
    for path, weight in model.named_parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=1.0 if "embed" in path else weight.shape[1] ** -0.5)
    return model


CHOSEN = ("plain", "post-norm", *SUSPECTED, *RIVALS)


def loss_of(
    name: str, seed: int, times: str, steps: int, *, gain: float = 1.0, warmup: int | None = None
) -> float:
    """Train a model at a multiple of the rate; return its held-out loss in nats a character."""
    torch.manual_seed(seed)
    model = model_of(name, gain)
    choices.train(name, model, steps, seed, float(times) * RATE, warmup)
    return choices.held_out(model)


def continued(old: Sequence[float], count: int, loss: Callable[[int], float]) -> list[float]:
    """Return the losses of the first `count` seeds, of which some are known."""
    return [*old[:count], *(loss(seed) for seed in range(len(old), count))]


def run(
    *, steps: int = STEPS, rate: float = RATE, suspected: Sequence[str] = SUSPECTED,
    fresh: Sequence[int] = FRESH, others: Sequence[str] = OTHERS,
    rivals: Mapping[str, Mapping[str, int]] = RIVALS,
    cold: Mapping[str, Mapping[str, int]] = COLD, rates: Mapping[str, Mapping[str, int]] = RATES,
    gains: Mapping[str, int] = GAINS, known: bool = True,
) -> tuple[dict, None]:  # fmt: skip
    """Train what `choices` and `choices_controls` have not.

    Args:
        steps: of each run.
        rate: the one of `choices`.
        suspected: models that get fresh seeds.
        fresh: these seeds.
        others: models that get the first four of them.
        rivals: other sizes, each at multiples of the rate with so many seeds.
        cold: likewise, without warm-up.
        rates: likewise, as in `choices`.
        gains: of the last norm, each with so many seeds.
        known: take what has been trained from the logs.
    """
    log = experiments.log("choices_controls") if known else None
    models = experiments.log("choices")["models"] if known else {}

    def old(name: str, times: str) -> list[float]:
        if log and name == "twice the width" and times == "1":
            return log["controls"]["width"]
        return models[name]["losses"] if times == "1" and name in models else []

    def grid(asked: Mapping[str, Mapping[str, int]], warmup: int | None = None) -> dict:
        return {
            name: {
                times: continued(
                    old(name, times) if warmup is None else [], count,
                    lambda seed, name=name, times=times: loss_of(
                        name, seed, times, steps, warmup=warmup
                    ),
                )
                for times, count in each.items()
            }
            for name, each in asked.items()
        }  # fmt: skip

    new = dict.fromkeys(suspected, fresh) | dict.fromkeys(others, SOME)
    found = {
        "fresh": {
            name: [loss_of(name, seed, "1", steps) for seed in seeds] for name, seeds in new.items()
        },
        "rivals": grid(rivals),
        "cold": grid(cold, warmup=0),
        "rates": grid(rates),
        "gain": {
            gain: continued(
                log["gain"] if log and float(gain) == choices_controls.GAIN else [], count,
                lambda seed, gain=gain: loss_of("plain", seed, "1", steps, gain=float(gain)),
            )
            for gain, count in gains.items()
        },
    }  # fmt: skip
    owned = {name: sum(w.numel() for w in model_of(name).parameters()) for name in CHOSEN}
    return {
        "settings": {
            "steps": steps, "rate": rate,
            "smallest": min(owned.values()), "largest": max(owned.values()),
        },
        "fresh_seeds": list(fresh), "parameters": owned, **found,
    }, None  # fmt: skip
