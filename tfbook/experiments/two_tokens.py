"""Key and value are two tokens: where does attention have to stand to recall them?

The task of `associative_recall`, with a key and its value as two tokens, one after the other, which
something has to bring together before a pair can be looked up. Stacks of two layers learn it:
attention, the delta rule behind its short convolution over four tokens, a state that fades (gated
linear attention), and a layer that is nothing but a convolution over four tokens, which can join
neighbours and keeps nothing else. All have one rate, the same steps and the same seeds.

The log holds `recall[name][seed]`, `curve[name]`, `numbers[name]` and `parameters`,
as the log of `associative_recall` does; the lower layer is named first.

Source: [arora2023zoology]
Explained in: chapters/09_hybrids, section "A hybrid is a list", and chapters/09_hybrids_deeper,
section "Key and value as two tokens".
"""

from collections.abc import Sequence

from tfbook.experiments.associative_recall import (
    MIXERS,
    ROWS,  # noqa: F401
    SIZES,
    WIDTH,  # noqa: F401
    Recaller,
    numbers_of,
    swept,
    trial,
)
from tfbook.models import Convolution, DeltaNet, Spec

__all__ = ["SMOKE", "STACKS", "mixers_of", "run"]

SMOKE = {"names": ("convolution, attention",), "seeds": (0,), "steps": 4}
CARD = {
    "model": "two layers of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "sequences of {pairs_first} to {pairs_last} pairs, key and value as two tokens",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "rate {rate:g}, rising and then falling",
}
KINDS: dict[str, Spec] = {
    "attention": MIXERS["attention"],
    "delta rule": DeltaNet(2, **SIZES),  # with a short convolution over four tokens
    "convolution": Convolution(4, norm="layer"),
    "state": MIXERS["gated linear"],
}
STACKS = (
    "convolution, attention", "attention, convolution", "delta rule, attention",
    "attention, delta rule", "delta rule, delta rule", "attention, attention",
    "convolution, state",
)  # fmt: skip


def mixers_of(name: str) -> list[Spec]:
    """Return the mixers of a stack, the lower one first."""
    return [KINDS[each] for each in name.split(", ")]


def run(
    *,
    names: Sequence[str] = STACKS,
    pairs: Sequence[int] = (4, 16, 64),
    rate: float = 0.008,
    seeds: Sequence[int] = (0, 1),
    steps: int = 1400,
) -> tuple[dict, None]:
    """Train each stack with every seed."""
    log: dict = {
        "settings": {"names": list(names), "rate": rate, "steps": steps},
        "pairs": list(pairs), "seeds": list(seeds), "recall": {}, "curve": {}, "numbers": {},
        "parameters": {},
    }  # fmt: skip
    for name in names:
        mixers = mixers_of(name)

        def attempt(rate, seed, mixers=mixers):
            return trial(mixers, rate, seed, steps, pairs, joined=False)

        found = swept(attempt, [rate], seeds)
        log["recall"][name], log["curve"][name] = found["recall"], found["curve"]
        log["numbers"][name] = [numbers_of(mixers, 3 * count) for count in pairs]
        log["parameters"][name] = sum(w.numel() for w in Recaller(mixers).parameters())
    counts = log["parameters"].values()
    log["smallest"], log["largest"] = min(counts), max(counts)
    return log, None
