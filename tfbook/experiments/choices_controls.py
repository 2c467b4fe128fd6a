"""Would `choices` see a gain that is there? Other rates, more text, twice the width.

The models, the data and the training are those of `choices`; what that experiment has trained
already is read from its log. A seed means the same order of text for all models.

`rates[name][times]` are the losses of six models at multiples of the rate of `choices`, one for
each seed; 99 stands for all that is no number or larger. `controls` are losses of models that
ought to be better: `width` of the plain one with twice its width, `text[name]` of some that read
four times the text. `gain` are losses of the plain model when the gain of its last norm begins at
2, in place of 1. `counts` says how many seeds each of these has.

`last` looks at the last rows of a model without the last norm, for each seed: how much their
lengths differ (`spread`, standard deviation for each unit of mean), how large the logits are
(`logits`, standard deviation), the loss, and the loss when each row is brought to one length
(`one_length`, the best of some).

Source: [narang2021transformer], who ask the same of 223 million parameters.
Explained in: chapters/08_architectural_variants_deeper, section "Does a difference last?".
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook import experiments
from tfbook.data import rows
from tfbook.experiments import choices
from tfbook.experiments.warmup import letters
from tfbook.models import NextToken, TransformerConfig, build

__all__ = ["SMOKE", "loss_of", "model_of", "run"]

WIDE, MORE, HELD = 2 * choices.WIDTH, 4, 170
BEST = "15 fine, 1 shared"
TEXT = ("plain", "SwiGLU", BEST)
GAIN = 2.0
# How many seeds: at multiples of the rate; of the controls and the measurements.
COUNTS = {
    "0.25": 2, "1": 4, "4": 4, "10": 4, "text": 4, BEST: 3, "width": 2, "gain": 2, "last": 1,
}  # fmt: skip
SMOKE = {
    "counts": {"4": 1, "text": 1, "width": 1, "gain": 1, "last": 1}, "steps": 5,
    "stressed": ("plain",), "text": ("plain",), "known": False,
}  # fmt: skip
CARD = {
    "model": "decoders, {LAYERS} layers of width {WIDTH} or {WIDE}, {smallest:,} to {largest:,} "
    "parameters",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "steps": "{steps} steps, or {MORE} times as many",
    "batch": "batches of {BATCH}",
    "rate": "rate {rate:g} and multiples of it; one to four seeds",
}
LAYERS, WIDTH, CONTEXT, BATCH = choices.LAYERS, choices.WIDTH, choices.CONTEXT, choices.BATCH


def model_of(name: str, gain: float = 1.0) -> nn.Module:
    """Return an untrained model of `choices`, or the plain one with twice its width.

    Args:
        name: of a model of `choices`, or "twice the width".
        gain: of the last norm.
    """
    if name != "twice the width":
        model = choices.model_of(name)
    else:
        layer = replace(choices.PLAIN, ffn=choices.ffn(4 * WIDE))
        vocabulary, head = int(letters("train").max()) + 1, NextToken(tie_embeddings=False)
        config = TransformerConfig(vocabulary, WIDE, decoder=[layer] * choices.LAYERS, head=head)
        model = build(config)
        for path, weight in model.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=1.0 if "embed" in path else weight.shape[1] ** -0.5)
    if gain != 1:
        nn.init.constant_(model.stack.final_norm.weight, gain)
    return model


def trained(name: str, seed: int, rate: float, steps: int, gain: float = 1.0) -> nn.Module:
    """Return a trained model."""
    torch.manual_seed(seed)
    model = model_of(name, gain)
    choices.train(name, model, steps, seed, rate)
    return model


def loss_of(name: str, seed: int, rate: float, steps: int, gain: float = 1.0) -> float:
    """Train a model; return its held-out loss in nats a character."""
    return choices.held_out(trained(name, seed, rate, steps, gain))


def last_of(name: str, seed: int, rate: float, steps: int) -> dict[str, float]:
    """Train a model; return what its last rows look like, and what their lengths are worth."""
    model, windows = trained(name, seed, rate, steps).eval(), rows(letters("valid"), CONTEXT)
    windows, kept = windows[:HELD], []
    hook = model.head.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    with torch.no_grad():
        logits = model(windows[:, :-1])[0]
        hook.remove()
        lengths = kept[0].norm(dim=-1, keepdim=True)

        def loss(scale: Tensor | float) -> float:
            return round(F.cross_entropy((logits * scale).mT, windows[:, 1:]).item(), 4)

        one = [loss(times * lengths.mean() / lengths) for times in (0.8, 0.9, 1.0, 1.1, 1.2)]
    return {
        "spread": round((lengths.std() / lengths.mean()).item(), 3),
        "logits": round(logits.std(-1).mean().item(), 3),
        "loss": loss(1.0),
        "one_length": min(one),
    }


def run(
    *, counts: Mapping[str, int] = COUNTS, steps: int = 240, rate: float = 0.012,
    stressed: Sequence[str] = choices.STRESSED, text: Sequence[str] = TEXT,
    known: bool = True,
) -> tuple[dict, None]:  # fmt: skip
    """Train what `choices` has not.

    Args:
        counts: how many seeds each part of the experiment has; a number is a multiple of the rate.
        steps: of each run, but for those on more text.
        rate: the one of `choices`.
        stressed: models that are trained at other rates.
        text: models that read four times the text.
        known: take what `choices` has trained from its log.
    """
    log = experiments.log("choices") if known else {"rates": {}, "models": {}}

    def at(name: str, times: str) -> list[float]:
        old = log["rates"].get(name, {}).get(times, [])
        if times == "1" and name in log["models"]:
            old = log["models"][name]["losses"]
        old = old[: counts[times]]
        missing = range(len(old), counts[times])
        return old + [loss_of(name, seed, float(times) * rate, steps) for seed in missing]

    longer = {
        name: [
            loss_of(name, seed, rate, MORE * steps)
            for seed in range(counts.get(name, counts["text"]))
        ]
        for name in text
    }
    wide = [loss_of("twice the width", seed, rate, steps) for seed in range(counts["width"])]
    rates = {
        name: {times: at(name, times) for times in counts if times.replace(".", "").isdigit()}
        for name in stressed
    }
    last = [last_of("no last norm", seed, rate, steps) for seed in range(counts["last"])]
    gain = [loss_of("plain", seed, rate, steps, GAIN) for seed in range(counts["gain"])]
    sizes = [sum(w.numel() for w in model_of(n).parameters()) for n in ("twice the width", *CHOSEN)]
    return {
        "settings": {"steps": steps, "rate": rate, "smallest": min(sizes), "largest": max(sizes)},
        "counts": dict(counts), "rates": rates,
        "controls": {"width": wide, "text": longer}, "gain": gain, "last": last,
    }, None  # fmt: skip


CHOSEN = tuple(dict.fromkeys((*choices.STRESSED, *TEXT)))
