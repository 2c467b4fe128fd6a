"""Four layers that recall: is it the size of the memory, and do states below hide a look-up?

Two controls of `hybrid_share`, with its task, its first rate and its steps, and five seeds. In
"large states" no layer has attention, but each has states of 2 · 48 · 49 numbers, so that all four
together hold 18,816, more than the list with one layer of attention after 64 pairs and 64 questions
(18,016). In "third, silent states below" attention stands third, as in `hybrid_share`, but what the
two states below it read is never added to the stream, so that it gets the pairs as the lowest layer
would.

The log holds, as that of `hybrid_share`, `recall[name][seed]`, `curve[name]`, `numbers[name]` and
`parameters[name]`.

Source: [arora2023zoology]
Explained in: chapters/09_hybrids, section "A hybrid is a list".
"""

from collections.abc import Sequence

from torch import nn

from tfbook.experiments.associative_recall import (
    ROWS,  # noqa: F401
    WIDTH,  # noqa: F401
    Recaller,
    longer,
    numbers_of,
    trial,
)
from tfbook.experiments.hybrid_share import mixers_of
from tfbook.models import LinearAttention, Spec

__all__ = ["CONTROLS", "SMOKE", "model_of", "run"]

SMOKE = {"seeds": (0,), "steps": 4}
CARD = {
    "model": "four layers of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "sequences of {pairs_first} to {pairs_last} pairs, a pair as one token",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "rate {rates_first:g}, rising, then falling",
}
CONTROLS: dict[str, list[Spec]] = {
    "large states": [LinearAttention(2, d_head=48, d_value=48, gated=True)] * 4,
    "third, silent states below": mixers_of("1 of 4, third"),
}


def model_of(name: str) -> Recaller:
    """Return the untrained model of a control."""
    net = Recaller(CONTROLS[name])
    if "silent" in name:
        for layer in list(net.stack.blocks)[:2]:
            nn.init.zeros_(layer.mixer.out_proj.weight).requires_grad_(False)
    return net


def run(
    *,
    names: Sequence[str] = tuple(CONTROLS),
    pairs: Sequence[int] = (4, 16, 64),
    rates: Sequence[float] = (0.003,),
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    steps: int = 500,
) -> tuple[dict, None]:
    """Train each control with every seed."""
    log: dict = {
        "settings": {"rates": list(rates), "steps": steps}, "pairs": list(pairs),
        "seeds": list(seeds), "recall": {}, "curve": {}, "numbers": {}, "parameters": {},
    }  # fmt: skip
    for name in names:

        def attempt(rate, seed, name=name):
            return trial(
                CONTROLS[name], rate, seed, steps, pairs,
                make=lambda mixers, joined: model_of(name),
            )  # fmt: skip

        for key, value in longer(attempt, rates[0], seeds).items():
            log[key][name] = value
        log["numbers"][name] = [numbers_of(CONTROLS[name], 2 * count) for count in pairs]
        log["parameters"][name] = sum(w.numel() for w in model_of(name).parameters())
    parameters = log["parameters"].values()
    return log | {"smallest": min(parameters), "largest": max(parameters)}, None
