"""Keys get a value once, twice or four times, and the last one counts: who keeps up?

Of 64 keys, 16 get a value once, twice or four times, in a mixed order, and are then asked for; the
last value counts. Sequences of four keys told once take turns with these: they are the easy way
into the task. One layer, as in `associative_recall`, with states of about 512 numbers. Those that
learn slowest (`SLOW`) try two rates; the one that is right more often after four times counts. All
but those that only add, which cannot do better (`ENOUGH`), then use it for three times as many
steps.

The log holds what the log of `associative_recall` holds, by name: `recall`, `rates`, `rate`,
`curve`, `numbers` and `parameters`; the numbers of pairs told are `writes`; `long` holds `recall`
and `curve` of the longer runs.

Explained in: chapters/09_hybrids_deeper, section "What recall does not show".
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tfbook.experiments.associative_recall import (
    KEYS,
    MIXERS,
    VALUES,
    WIDTH,  # noqa: F401
    Recaller,
    longer,
    numbers_of,
    swept,
    trial,
)
from tfbook.models import Spec

__all__ = ["AGAIN", "PEOPLE", "SMOKE", "again_of", "length_of", "run"]

PEOPLE, ROWS, SLOW = 16, 512, ("Mamba-2", "gated delta rule")
ENOUGH = ("linear", "delta rule without erasing")
SMOKE = {"names": ("delta rule", "linear"), "rates": (0.008,), "steps": 4, "long_steps": 6}
CARD = {
    "model": "one layer of width {WIDTH} with each mixer, {smallest:,} to {largest:,} parameters",
    "data": "{PEOPLE} keys told once, twice or four times",
    "steps": "{steps:,} steps, and {long_steps:,} with all but the two that only add",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "rate {rates_first:g}, for two {rates_first:g} or {rates_last:g}, rising, then falling",
}
AGAIN: dict[str, Spec] = {
    **{name: MIXERS[name] for name in ("attention", "linear", "gated linear", "Mamba-2",
                                       "delta rule without erasing", "delta rule",
                                       "gated delta rule")},
}  # fmt: skip


def again_of(
    count: int, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw so many pairs of 16 keys, or fewer, each told as often; the keys again; last values."""
    people = min(PEOPLE, count)
    chosen = torch.rand(size, KEYS, generator=generator).argsort(1)[:, :people]
    which = torch.rand(size, count, generator=generator).argsort(1) % people  # (B, count)
    values = torch.randint(VALUES, (size, count), generator=generator)
    places = torch.where(which[..., None] == torch.arange(people), torch.arange(count)[:, None], -1)
    order = torch.rand(size, people, generator=generator).argsort(1)
    last = places.amax(1).gather(1, order)  # of each key that is asked for
    return chosen.gather(1, which), values, chosen.gather(1, order), values.gather(1, last)


def length_of(count: int) -> int:
    """Return how many rows a sequence has."""
    return count + min(PEOPLE, count)


def run(
    *,
    names: Sequence[str] = tuple(AGAIN),
    writes: Sequence[int] = (4, 16, 32, 64),
    rates: Sequence[float] = (0.008, 0.015),
    seeds: Sequence[int] = (0,),
    steps: int = 720,
    long_steps: int = 2160,
) -> tuple[dict, None]:
    """Train each network at both rates, and at its better one with every seed."""
    log: dict = {
        "settings": {"names": list(names), "rates": list(rates), "steps": steps,
                     "long_steps": long_steps},
        "writes": list(writes), "seeds": list(seeds), "long": {"recall": {}, "curve": {}},
    }  # fmt: skip
    for name in names:
        mixers = [AGAIN[name]]

        def attempt(rate, seed, own=steps, mixers=mixers):
            return trial(
                mixers, rate, seed, own, writes, draw=again_of, length=length_of, rows=ROWS
            )

        given = swept(attempt, rates if name in SLOW else rates[:1], seeds)
        given["numbers"] = [numbers_of(mixers, length_of(count)) for count in writes]
        given["parameters"] = sum(w.numel() for w in Recaller(mixers).parameters())
        for key, value in given.items():
            log.setdefault(key, {})[name] = value
        if name not in ENOUGH:
            again = longer(lambda *a: attempt(*a, long_steps), given["rate"], seeds)
            for key, value in again.items():
                log["long"][key][name] = value
    counts = log["parameters"].values()
    log["smallest"], log["largest"] = min(counts), max(counts)
    return log, None
