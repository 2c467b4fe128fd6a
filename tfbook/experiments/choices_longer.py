"""Do the differences of `choices` remain with more text and more layers? And what is inside?

The models, the data and the training are those of `choices` and `choices_deep`. All lists hold one
loss for each seed, in nats a character; 99 stands for all that is no number or larger.

`text[name]` are losses after four times the text; `choices_controls` has those of further models.
`only_last` are losses of a model that has no norm but the last one. `deep[name][rate]` are losses
of thin models with 24 layers and a warm-up: pre-norm without the last norm, and post-norm whose
first weights are as small as those of DeepNorm. `rates[name][times]` are
models of `choices` at a multiple of their rate.

`room[name]` trains eight experts that serve no more than the mean: the losses (`losses`), and which
share of all choices was dropped in the last quarter of the run (`dropped`).

`quiet[name]` looks into models that may, or may not, attend to nothing, for each seed: the share of
the attention that lies on the first character of a window (`first`), how long its value is beside
those of the others (`value`), the share that goes to the sink (`sink`), and the mean of the gates
(`gate`). Queries are those from position `LATE` on.

Source: [narang2021transformer], who ask the same of 223 million parameters.
Explained in: chapters/08_architectural_variants_deeper, section "Does a difference last?".
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from tfbook.blocks import MixtureOfExperts, deep_norm, draw_deep_norm
from tfbook.data import rows
from tfbook.experiments import choices, choices_again, choices_deep
from tfbook.experiments.warmup import letters
from tfbook.models import Norm, build

__all__ = ["ONLY_LAST", "SMOKE", "inside", "model_of", "room_of", "run"]

RATE, STEPS, DEEP_STEPS, MORE = choices_again.RATE, choices_again.STEPS, choices_deep.DEEP_STEPS, 4
LAYERS, DEEP_LAYERS, THIN = choices.LAYERS, choices_deep.LAYERS, choices_deep.THIN
WIDTH, CONTEXT, BATCH, LATE, HELD = choices.WIDTH, choices.CONTEXT, choices.BATCH, 32, 170
ONLY_LAST, SMALL = "only the last norm", "post-norm, small weights"
TEXT = {"no last norm": 3, "post-norm": 3}
DEEP = {"no last norm": (0.003, 0.012), SMALL: (0.003,)}
# Multiples of the rate; `choices_deep` has those of further models.
RATES = {"one shared layer": ("2",), "QK-norm": ("2",)}
ROOM = ("8 experts", "8 experts, bias")
QUIET = ("plain", "learned sink", "gated output")
SEEDS, PAIR = (0, 1, 2, 3), (0, 1)
SMOKE = {
    "steps": 4, "text": {"no last norm": 1}, "deep": {SMALL: (0.003,)}, "rates": {"QK-norm": "2"},
    "room": ("8 experts",), "quiet": ("learned sink", "gated output"), "seeds": (0,), "pair": (0,),
}  # fmt: skip
CARD = {
    "model": "decoders, {LAYERS} layers of width {WIDTH} or {DEEP_LAYERS} of width {THIN}, "
    "{smallest:,} to {largest:,} parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "steps": "{steps} steps, {MORE} times as many or, with {DEEP_LAYERS} layers, {deep_steps}",
    "batch": "batches of {BATCH}",
    "rate": "rate {rate:g} and others; two to four seeds",
}


def drawn(model: nn.Module) -> nn.Module:
    """Draw the matrices of a model as `choices` does."""
    for path, weight in model.named_parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=1.0 if "embed" in path else weight.shape[1] ** -0.5)
    return model


def model_of(name: str) -> nn.Module:
    """Return an untrained model with four layers: one of `choices`, or "only the last norm"."""
    if name != ONLY_LAST:
        return choices.model_of(name)
    return drawn(build(replace(choices.config_of("no norms"), final_norm=Norm(bias=False))))


def deep_of(name: str) -> nn.Module:
    """Return an untrained thin model with 24 layers, one of `DEEP`."""
    if name == "no last norm":
        model = choices_deep.model_of("pre-norm")
        model.stack.final_norm = None
        return model
    model = choices_deep.model_of("post-norm")
    if name == SMALL:
        draw_deep_norm(model.stack, deep_norm(n_decoder=DEEP_LAYERS)["decoder"].beta)
    return model


def loss_of(name: str, seed: int, rate: float, steps: int, *, deep: bool = False) -> float:
    """Train a model; return its held-out loss in nats a character."""
    torch.manual_seed(seed)
    model = deep_of(name) if deep else model_of(name)
    choices.train(name, model, steps, seed, rate)
    return choices.held_out(model)


def room_of(
    name: str, seed: int, rate: float, steps: int, strength: float = 0.01, bias_step: float = 0.01
) -> tuple[float, float]:
    """Train experts that serve no more than the mean; return the loss and the share dropped."""
    torch.manual_seed(seed)
    model, dropped = choices.model_of(name), []
    mixtures = [part for part in model.modules() if isinstance(part, MixtureOfExperts)]
    for part in mixtures:
        part.router.capacity_factor = 1.0
        part.register_forward_hook(lambda part, given, out: dropped.append(_dropped(part)))
    choices.train(name, model, steps, seed, rate, strength=strength, bias_step=bias_step)
    late = dropped[-max(1, steps // 4) * len(mixtures) :]  # before the model is tested
    return choices.held_out(model), round(statistics.mean(late), 4)


def _dropped(part: MixtureOfExperts) -> float:
    return 1 - part.routing.kept.float().mean().item()


def inside(name: str, model: nn.Module) -> dict[str, float]:
    """Return how much of a model's attention lies on the first character or on nothing."""
    windows, values, gates = rows(letters("valid"), CONTEXT)[:HELD, :-1], [], []
    hooks = []
    for block in model.stack.blocks:
        mixer = getattr(block.mixer, "attention", block.mixer)
        hooks.append(mixer.v_proj.register_forward_hook(lambda _, x, v: values.append(v)))
        if name == "gated output":
            gate = block.mixer.gate_proj
            hooks.append(gate.register_forward_hook(lambda _, x, z: gates.append(z.sigmoid())))
    with torch.no_grad():
        weights = torch.stack(list(model.eval().attention_weights(windows)))[:, :, :, LATE:]
    for hook in hooks:
        hook.remove()
    lengths = [v.unflatten(-1, (choices.HEADS, -1)).norm(dim=-1).mean((0, 2)) for v in values]
    found = {
        "first": weights[..., 0].mean().item(),
        "value": statistics.mean((each[0] / each[LATE:].mean()).item() for each in lengths),
        "sink": 1 - weights.sum(-1).mean().item(),
    } | ({"gate": torch.stack(gates).mean().item()} if gates else {})
    return {key: round(abs(value), 4) for key, value in found.items()}


def quiet_of(name: str, seed: int, rate: float, steps: int) -> dict[str, float]:
    """Train a model; return what :func:`inside` finds."""
    torch.manual_seed(seed)
    model = choices.model_of(name)
    choices.train(name, model, steps, seed, rate)
    return inside(name, model)


def run(
    *, steps: int = STEPS, rate: float = RATE, text: Mapping[str, int] = TEXT,
    deep: Mapping[str, Sequence[float]] = DEEP, rates: Mapping[str, Sequence[str]] = RATES,
    room: Sequence[str] = ROOM, quiet: Sequence[str] = QUIET, seeds: Sequence[int] = SEEDS,
    pair: Sequence[int] = PAIR,
) -> tuple[dict, None]:  # fmt: skip
    """Train what `choices` and those that continue it have not.

    Args:
        steps: of each run; those with 24 layers take at most `DEEP_STEPS`, those on more text more.
        rate: the one of `choices`.
        text: models that read four times the text, each with so many seeds.
        deep: thin models of 24 layers, each at these rates.
        rates: models at multiples of the rate.
        room: mixtures that serve no more than the mean.
        quiet: models to look into.
        seeds: of `only_last`.
        pair: seeds of all other parts but `text`.
    """
    few = min(steps, DEEP_STEPS)
    found: dict[str, Mapping] = {
        "only_last": [loss_of(ONLY_LAST, seed, rate, steps) for seed in seeds],
        "deep": {
            name: {
                f"{each:g}": [loss_of(name, seed, each, few, deep=True) for seed in pair]
                for each in tried
            }
            for name, tried in deep.items()
        },
        "rates": {
            name: {
                times: [loss_of(name, seed, float(times) * rate, steps) for seed in pair]
                for times in tried
            }
            for name, tried in rates.items()
        },
        "room": {},
        "quiet": {name: [quiet_of(name, seed, rate, steps) for seed in pair] for name in quiet},
    }
    for name in room:
        losses, dropped = zip(*(room_of(name, seed, rate, steps) for seed in pair), strict=True)
        found["room"][name] = {"losses": list(losses), "dropped": list(dropped)}
    found["text"] = {
        name: [loss_of(name, seed, rate, MORE * steps) for seed in range(count)]
        for name, count in text.items()
    }
    models = [model_of(name) for name in (*text, *rates, *room, *quiet, ONLY_LAST)]
    sizes = [_size(model) for model in (*models, *map(deep_of, deep))]
    return {
        "settings": {
            "steps": steps, "deep_steps": few, "rate": rate,
            "smallest": min(sizes), "largest": max(sizes),
        },
        "seeds": list(seeds), "pair": list(pair), **found,
    }, None  # fmt: skip


def _size(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())
