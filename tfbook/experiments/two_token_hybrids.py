"""Facts of two tokens and four layers: does a convolution below attention let a low place work?

The task of `two_tokens`, where a key and its value are two tokens that something has to bring
together first, for stacks of four layers. The lowest is a convolution over four tokens; one of the
three above it is attention, the second or the last layer, and the other two are states that fade
(gated linear attention). Both rates of `hybrid_share`, and two seeds at each.

The log holds `recall[rate][name][seed]` and `curve[rate][name]`, with the names of the layers from
the lowest to the highest; `numbers[name]` and `parameters[name]`.

Source: [arora2023zoology]
Explained in: chapters/09_hybrids, section "A hybrid is a list".
"""

from collections.abc import Sequence

from tfbook.experiments.associative_recall import (
    ROWS,  # noqa: F401
    WIDTH,  # noqa: F401
    Recaller,
    longer,
    numbers_of,
    trial,
)
from tfbook.experiments.two_tokens import mixers_of

__all__ = ["LISTS", "SMOKE", "run"]

LISTS = ("convolution, attention, state, state", "convolution, state, state, attention")
SMOKE = {"names": LISTS[:1], "rates": (0.003,), "seeds": (0,), "steps": 4}
CARD = {
    "model": "four layers of width {WIDTH}, {parameters_first:,} parameters",
    "data": "sequences of {pairs_first} to {pairs_last} pairs, key and value as two tokens",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "rate {rates_first:g} or {rates_last:g}, rising, then falling",
}


def run(
    *,
    names: Sequence[str] = LISTS,
    pairs: Sequence[int] = (4, 16, 64),
    rates: Sequence[float] = (0.003, 0.008),
    seeds: Sequence[int] = (0, 1),
    steps: int = 700,
) -> tuple[dict, None]:
    """Train each stack at both rates with every seed."""
    log: dict = {
        "settings": {"names": list(names), "rates": list(rates), "steps": steps},
        "pairs": list(pairs), "seeds": list(seeds), "recall": {}, "curve": {}, "numbers": {},
        "parameters": [],
    }  # fmt: skip
    for name in names:
        mixers = mixers_of(name)

        def attempt(rate, seed, mixers=mixers):
            return trial(mixers, rate, seed, steps, pairs, joined=False)

        for rate in rates:
            for key, value in longer(attempt, rate, seeds).items():
                log[key].setdefault(f"{rate:g}", {})[name] = value
        log["numbers"][name] = [numbers_of(mixers, 3 * count) for count in pairs]
        log["parameters"].append(sum(w.numel() for w in Recaller(mixers).parameters()))
    return log, None
