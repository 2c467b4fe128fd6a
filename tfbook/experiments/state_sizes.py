"""How many pairs are recalled for the numbers that are stored, by states and by a cache?

The task and the networks are those of `associative_recall`: one layer that adds, as the delta rule,
or the delta rule. The state has two heads of 16 · 16, 32 · 32 or 64 · 64 numbers. Attention has one
head with keys and values of 4, 16 or 64 numbers and no positions, so that its cache holds as many
numbers as the states when 64 pairs have been read and the questions begin. All learn at one rate,
for half as many steps as there.

The log holds, by name ("adds, 512", "attention, 512", …), what the log of `associative_recall`
holds: `recall`, `rates`, `rate`, `curve`, `numbers` and `parameters`.

Explained in: chapters/09_hybrids_deeper, section "Equal memory".
"""

from collections.abc import Sequence

from tfbook.experiments.associative_recall import (
    ROWS,  # noqa: F401
    WIDTH,  # noqa: F401
    Adding,
    Recaller,
    numbers_of,
    swept,
    trial,
)
from tfbook.models import Attention, DeltaNet, Spec

__all__ = ["KINDS", "MAKERS", "SIDES", "SMOKE", "mixer_of", "names_of", "run"]

SIDES, PAIRS = (16, 32, 64), 64
MAKERS = {"adds": Adding, "delta rule": DeltaNet}
KINDS = (*MAKERS, "attention")
SMOKE = {"sides": (16,), "seeds": (0,), "steps": 4}
CARD = {
    "model": "one layer of width {WIDTH}, {smallest:,} to {largest:,} parameters",
    "data": "sequences of {pairs_first} to {pairs_last} pairs",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "rate {rate:g}, rising and then falling",
}


def names_of(sides: Sequence[int] = SIDES) -> list[str]:
    """Return the names of the networks: what they do, and the numbers in their state."""
    return [f"{kind}, {2 * side * side:,}" for kind in KINDS for side in sides]


def mixer_of(name: str) -> Spec:
    """Return the mixer of a network of that name."""
    kind, _, said = name.partition(", ")
    numbers = int(said.replace(",", ""))
    if kind == "attention":
        return Attention(1, d_head=numbers // (2 * PAIRS))
    side = round((numbers / 2) ** 0.5)
    return MAKERS[kind](2, kernel=1, d_head=side, d_value=side)


def run(
    *,
    sides: Sequence[int] = SIDES,
    pairs: Sequence[int] = (4, 16, 64),
    rate: float = 0.008,
    seeds: Sequence[int] = (0, 1),
    steps: int = 450,
) -> tuple[dict, None]:
    """Train each network with every seed."""
    log: dict = {
        "settings": {"sides": list(sides), "rate": rate, "steps": steps},
        "pairs": list(pairs), "seeds": list(seeds),
    }  # fmt: skip
    for name in names_of(sides):
        mixers = [mixer_of(name)]

        def attempt(rate, seed, mixers=mixers):
            return trial(mixers, rate, seed, steps, pairs)

        given = swept(attempt, [rate], seeds)
        given["numbers"] = [numbers_of(mixers, 2 * count) for count in pairs]
        given["parameters"] = sum(w.numel() for w in Recaller(mixers).parameters())
        for key, value in given.items():
            log.setdefault(key, {})[name] = value
    counts = log["parameters"].values()
    log["smallest"], log["largest"] = min(counts), max(counts)
    return log, None
