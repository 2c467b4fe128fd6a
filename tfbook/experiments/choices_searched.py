"""Do 24 layers of post-norm learn at another rate? And which step does a balancing bias want?

The models and the training are those of `choices_deep`, `choices_longer` and `choices_cures`.

`deep[name][rate]` are losses, in nats a character, of thin models with 24 layers, at those rates
that `choices_deep` and `choices_longer` have not tried: :func:`together` has the same two seeds of
each model at each of three rates.

`room[step]` trains eight experts that serve no more than the mean, with biases that move by this
step: the losses (`losses`), and which share of all choices was dropped in the last quarter of the
run (`dropped`). `choices_longer` has the step 0.01.

Source: [xiong2020layer] and [wang2024auxiliary], for the place of the norm and for the bias.
Explained in: chapters/08_architectural_variants, section "Can 24 layers still learn?".
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from tfbook import experiments
from tfbook.experiments import choices, choices_deep, choices_longer

__all__ = ["DEEP", "SMOKE", "run", "together"]

RATE, STEPS, DEEP_STEPS = choices_longer.RATE, choices_longer.STEPS, choices_longer.DEEP_STEPS
LAYERS, THIN, SMALL = choices_deep.LAYERS, choices_deep.THIN, choices_longer.SMALL
WIDTH, CONTEXT, BATCH = choices.WIDTH, choices.CONTEXT, choices.BATCH
DEEP = {"pre-norm": (0.001,), "post-norm": (0.012,), SMALL: (0.001, 0.012)}
TRIED = (0.001, 0.003, 0.012)  # with the logs of the other two
BIAS, BIAS_STEPS, PAIR = "8 experts, bias", (0.003, 0.03), (0, 1)
SMOKE = {"steps": 1, "deep": {SMALL: (0.001,)}, "bias_steps": (0.03,), "pair": (0,)}
CARD = choices_deep.CARD | {
    "rate": "rates {low:g} and {high:g} with {LAYERS} layers, else {rate:g}; two seeds",
}


def together() -> dict[str, dict[str, list[float]]]:
    """Return for each model of 24 layers and each of three rates the losses of two seeds."""
    before = {
        name: each["warm-up"] for name, each in experiments.log("choices_deep")["deep"].items()
    } | experiments.log("choices_longer")["deep"]
    new = experiments.log("choices_searched")["deep"]
    return {
        name: {f"{rate:g}": (before[name] | new[name])[f"{rate:g}"] for rate in TRIED}
        for name in new
    }


def _model_of(name: str) -> nn.Module:
    return choices_longer.deep_of(name) if name == SMALL else choices_deep.model_of(name)


def _loss(name: str, seed: int, rate: float, steps: int) -> float:
    torch.manual_seed(seed)
    model = _model_of(name)
    choices.train(name, model, steps, seed, rate)
    return choices.held_out(model)


def run(
    *, steps: int = STEPS, rate: float = RATE,
    deep: Mapping[str, Sequence[float]] = DEEP,
    bias_steps: Sequence[float] = BIAS_STEPS, pair: Sequence[int] = PAIR,
) -> tuple[dict, None]:  # fmt: skip
    """Train 24 layers at rates, and experts with steps of the bias, that are not yet tried.

    Args:
        steps: of each run; those with 24 layers take at most `DEEP_STEPS`.
        rate: of the experts, the one of `choices`.
        deep: which models of 24 layers, each at these rates.
        bias_steps: by how much a bias moves after each step of the optimizer.
        pair: seeds.
    """
    few, room = min(steps, DEEP_STEPS), {}
    for each in bias_steps:
        made = [choices_longer.room_of(BIAS, seed, rate, steps, bias_step=each) for seed in pair]
        losses, dropped = zip(*made, strict=True)
        room[f"{each:g}"] = {"losses": list(losses), "dropped": list(dropped)}
    found = {
        name: {f"{each:g}": [_loss(name, seed, each, few) for seed in pair] for each in tried}
        for name, tried in deep.items()
    }
    models = [choices.model_of(BIAS), *map(_model_of, deep)]
    sizes = [sum(weight.numel() for weight in model.parameters()) for model in models]
    rates = [each for tried in deep.values() for each in tried]
    return {
        "settings": {
            "steps": steps, "deep_steps": few, "rate": rate, "low": min(rates), "high": max(rates),
            "smallest": min(sizes), "largest": max(sizes),
        },
        "pair": list(pair), "room": room, "deep": found,
    }, None  # fmt: skip
