"""How many steps is a nat worth, and what if post-norm need not learn the frequencies?

The models and the training are those of `choices` and `choices_deep`. All lists hold one loss for
each seed, in nats a character.

`text[steps][name]` are losses after so many steps, each with new text: a fifth more than in
`choices`, and twice as many. `choices_longer` and `choices_controls` have four times as many.

`given` are losses of thin models with 24 layers of post-norm whose logits begin with the logarithms
of the frequencies of the characters, so that no sublayer has to write these: see
:func:`given_frequencies`. `choices_deep` has the same models without them.

Source: [narang2021transformer] and [xiong2020layer], who ask about larger models.
Explained in: chapters/08_architectural_variants, section "What the ruler cannot say".
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tfbook.experiments import choices, choices_deep, choices_longer
from tfbook.experiments.warmup import letters

__all__ = ["SMOKE", "given_frequencies", "run"]

RATE, STEPS, DEEP_STEPS = choices_longer.RATE, choices_longer.STEPS, choices_longer.DEEP_STEPS
DEEP_RATE, LAYERS, THIN = 0.003, choices_deep.LAYERS, choices_deep.THIN
WIDTH, CONTEXT, BATCH = choices.WIDTH, choices.CONTEXT, choices.BATCH
# Multiple of the steps → name → how many seeds.
TEXT = {"1.2": {"plain": 4}, "2": {"plain": 3, "no last norm": 3, "post-norm": 3}}
PAIR = (0, 1)
SMOKE = {"steps": 4, "text": {"1.2": {"plain": 1}}, "pair": (0,)}
CARD = choices_deep.CARD | {
    "steps": "{longer} and {longest} steps, with {LAYERS} layers {deep_steps}",
    "rate": "rate {DEEP_RATE:g} with {LAYERS} layers, else {rate:g}; two to four seeds",
}


def given_frequencies(model: nn.Module) -> nn.Module:
    """Add the logarithms of the frequencies of the characters to the logits of a model."""
    vocabulary = choices.config_of("plain").vocab_size
    counts = torch.bincount(letters("train"), minlength=vocabulary) + 1.0
    frequencies = (counts / counts.sum()).log()

    def added(part: nn.Module, given: object, logits: Tensor) -> Tensor:
        return logits + frequencies

    model.head.register_forward_hook(added)
    return model


def _given(seed: int, steps: int) -> float:
    torch.manual_seed(seed)
    model = given_frequencies(choices_deep.model_of("post-norm"))
    choices.train("post-norm", model, steps, seed, DEEP_RATE)
    return choices.held_out(model)


def run(
    *, steps: int = STEPS, rate: float = RATE,
    text: Mapping[str, Mapping[str, int]] = TEXT, pair: Sequence[int] = PAIR,
) -> tuple[dict, None]:  # fmt: skip
    """Train plain and changed models longer, and deep ones that are given the frequencies.

    Args:
        steps: of `choices`; those with 24 layers take at most `DEEP_STEPS`.
        rate: the one of `choices`.
        text: for each multiple of the steps, models and how many seeds.
        pair: seeds of the deep models.
    """
    few = min(steps, DEEP_STEPS)
    given = [_given(seed, few) for seed in pair]
    longer = {f"{float(times) * steps:.0f}": each for times, each in text.items()}
    found = {
        many: {
            name: [choices_longer.loss_of(name, seed, rate, int(many)) for seed in range(count)]
            for name, count in each.items()
        }
        for many, each in longer.items()
    }
    models = [choices_deep.model_of("post-norm"), choices.model_of("plain")]
    sizes = [sum(weight.numel() for weight in model.parameters()) for model in models]
    return {
        "settings": {
            "steps": steps, "deep_steps": few, "rate": rate, "longer": int([*longer][0]),
            "longest": int([*longer][-1]), "smallest": min(sizes), "largest": max(sizes),
        },
        "pair": list(pair), "text": found, "given": given,
    }, None  # fmt: skip
