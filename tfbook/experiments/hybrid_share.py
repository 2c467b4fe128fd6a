"""How many layers of attention does a model need to recall, and does it matter where they stand?

Hybrids are models of four layers, of which 0, 1, 2 or all have attention and the others gated
linear attention, a state of fixed size. They learn the task of `associative_recall`, where a pair
is one row; one layer of attention stands first, second, third or last.

In the usual form of the task key and value are two tokens, one after the other, and have to be
brought together first. Five models of two layers learn that: each kind alone, and hybrids with the
attention below or above; here the others have the delta rule behind its short convolution, which
sees four rows.

Models of four layers try two rates, but for those with more attention (`ONCE`); the better one
counts. Those of the road (`ROAD`) learn at both rates with five seeds. Three of them learn three
times as long as well, at the first rate, with five seeds (`LONGER`). Models of two layers have the
second rate; two of those learn three times as long too (`APART_LONGER`).

The log holds two parts, `joined` and `apart`, with what the log of `associative_recall` holds:
`recall[name][seed]`, `rates[name]`, `rate[name]`, `curve[name]`, `numbers[name]`, `parameters`; and
`places[rate]`, `longer` and `apart_longer`, with `recall[name][seed]` and `curve[name]` of the five
seeds and of the longer runs, the last with `rates[name]` and `rate[name]` too.

Source: [arora2023zoology]
Explained in: chapters/09_hybrids, section "A hybrid is a list".
"""

from collections.abc import Sequence

from tfbook.experiments.associative_recall import (
    MIXERS,
    ROWS,  # noqa: F401
    SIZES,
    WIDTH,  # noqa: F401
    Recaller,
    longer,
    numbers_of,
    swept,
    trial,
)
from tfbook.models import DeltaNet, Spec

__all__ = ["APART", "HYBRIDS", "LONGER", "SMOKE", "mixers_of", "run"]

SMOKE = {
    "names": ("1 of 4, last", "delta rule"), "rates": (0.005,), "seeds": (0,),
    "again": (0, 1), "steps": 4, "apart_steps": 4, "long_steps": 6, "apart_long_steps": 6,
}  # fmt: skip
CARD = {
    "model": "four layers of width {WIDTH}, {four_smallest:,} to {four_largest:,} parameters",
    "data": "sequences of {pairs_first} to {pairs_last} pairs, a pair as one token",
    "steps": "{steps:,} steps, three lists also {long_steps:,}",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "rate {rates_first:g} or {rates_last:g}, rising, then falling",
}
KINDS: dict[str, Spec] = {
    "attention": MIXERS["attention"],
    "gated linear": MIXERS["gated linear"],
    "delta rule": DeltaNet(2, **SIZES),  # with a short convolution over four rows
}
HYBRIDS: dict[str, list[str]] = {
    "0 of 4": ["gated linear"] * 4,
    "1 of 4, first": ["attention"] + ["gated linear"] * 3,
    "1 of 4, second": ["gated linear", "attention", "gated linear", "gated linear"],
    "1 of 4, third": ["gated linear", "gated linear", "attention", "gated linear"],
    "1 of 4, last": ["gated linear"] * 3 + ["attention"],
    "2 of 4": ["gated linear", "attention"] * 2,
    "4 of 4": ["attention"] * 4,
}
APART: dict[str, list[str]] = {
    "attention": ["attention"] * 2,
    "gated linear": ["gated linear"] * 2,
    "delta rule": ["delta rule"] * 2,
    "attention first": ["attention", "delta rule"],
    "attention last": ["delta rule", "attention"],
}


ONCE = ("2 of 4", "4 of 4")
PLACES = ("1 of 4, first", "1 of 4, second", "1 of 4, third", "1 of 4, last")
ROAD = ("0 of 4", *PLACES, "4 of 4")
LONGER = ("0 of 4", "1 of 4, third", "1 of 4, last")
APART_LONGER = ("delta rule", "attention last")


def mixers_of(name: str) -> list[Spec]:
    """Return the mixers of a model's layers, from the first to the last."""
    return [KINDS[each] for each in (HYBRIDS | APART)[name]]


def run(
    *,
    names: Sequence[str] = (*HYBRIDS, *APART),
    pairs: Sequence[int] = (4, 16, 64),
    rates: Sequence[float] = (0.003, 0.008),
    seeds: Sequence[int] = (0,),
    again: Sequence[int] = (0, 1, 2, 3, 4),
    steps: int = 500,
    apart_steps: int = 700,
    long_steps: int = 1500,
    apart_long_steps: int = 2100,
) -> tuple[dict, None]:
    """Train each model on its form of the task, at both rates, then with every seed."""
    log: dict = {
        "settings": {
            "names": list(names), "rates": list(rates), "steps": steps,
            "apart_steps": apart_steps, "long_steps": long_steps,
            "apart_long_steps": apart_long_steps,
        },
        "pairs": list(pairs), "seeds": list(again),
    }  # fmt: skip
    for part, models, own in (("joined", HYBRIDS, steps), ("apart", APART, apart_steps)):
        rows, found = (2 if part == "joined" else 3), {}
        for name in (name for name in names if name in models):
            mixers = mixers_of(name)

            def attempt(rate, seed, mixers=mixers, own=own, joined=part == "joined"):
                return trial(mixers, rate, seed, own, pairs, joined=joined)

            few = rates[-1:] if part == "apart" else rates[:1] if name in ONCE else rates
            given = swept(attempt, few, seeds)
            given["numbers"] = [numbers_of(mixers, rows * count) for count in pairs]
            given["parameters"] = sum(w.numel() for w in Recaller(mixers).parameters())
            for key, value in given.items():
                found.setdefault(key, {})[name] = value
        log[part] = found
    log["apart_longer"] = {}
    for name in (name for name in APART_LONGER if name in names):
        mixers = mixers_of(name)

        def attempt(rate, seed, mixers=mixers):
            return trial(mixers, rate, seed, apart_long_steps, pairs, joined=False)

        for key, value in swept(attempt, rates[-1:], seeds).items():
            log["apart_longer"].setdefault(key, {})[name] = value

    def repeated(models: Sequence[str], rate: float, own: int) -> dict:
        found: dict = {"recall": {}, "curve": {}}
        for name in (name for name in models if name in names):
            mixers = mixers_of(name)

            def attempt(rate, seed, mixers=mixers):
                return trial(mixers, rate, seed, own, pairs, joined=True)

            for key, value in longer(attempt, rate, again).items():
                found[key][name] = value
        return found

    log["places"] = {f"{rate:g}": repeated(ROAD, rate, steps) for rate in rates}
    log["longer"] = repeated(LONGER, rates[0], long_steps)
    for layers, part in (("four", "joined"), ("two", "apart")):
        counts = log[part]["parameters"].values()
        log[f"{layers}_smallest"], log[f"{layers}_largest"] = min(counts), max(counts)
    return log, None
