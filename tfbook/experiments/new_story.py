"""An old story has to be forgotten and chatter ignored: does a decay that the token chooses help?

A sequence begins with an old story of none, 16 or 48 pairs. Then a new story begins: eight pairs,
whose keys may have stood in the old one too, and among them eight jests, which give the same eight
keys other values. Then the eight keys are asked for, and their values in the new story count. The
row with which the new story begins is marked, and so is each jest: an embedding of the mark is
added to its row.

The networks are those of `associative_recall`, with one layer and states of about 512 numbers. Each
tries two rates with the first seed; the
better one with 48 old pairs is used with the second seed too, but not by those that begin late, and
once more, for three times as many steps, by all but attention, which has learned all by then
(`ENOUGH`).

The log holds what the log of `associative_recall` holds, by name: `recall`, `rates`, `rate`,
`curve`, `numbers` and `parameters`; the numbers of old pairs are `old`; `long` holds `recall` and
`curve` of the longer runs; and `learned`, for each longer run of Mamba-2, what is `left` of the
state of each head and its `step`, in the mean over rows of each kind.

Explained in: chapters/09_hybrids_deeper, section "Trained to forget".
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook.experiments.associative_recall import (
    KEYS,
    LATE,
    MIXERS,
    VALUES,
    WIDTH,
    Recaller,
    longer,
    numbers_of,
    swept,
    trial,
)
from tfbook.models import Spec
from tfbook.recurrent import Mamba2Mixer

__all__ = ["LISTENERS", "SMOKE", "Listener", "length_of", "run", "steps_of", "story_of"]

NEW, SAID, BEGINS, JEST = 8, 0, 1, 2
ROWS, ENOUGH = 512, ("attention",)
SMOKE = {
    "names": ("linear", "Mamba-2"),
    "rates": (0.005,),
    "seeds": (0,),
    "steps": 4,
    "long_steps": 6,
}
CARD = {
    "model": "one layer of width {WIDTH} with each mixer, {smallest:,} to {largest:,} parameters",
    "data": "{old_first} to {old_last} old pairs, eight new ones, eight jests",
    "steps": "{steps:,} steps, all but attention also {long_steps:,}",
    "batch": "batches of {ROWS:,} tokens",
    "rate": "the better rate of {rates_first:g} and {rates_last:g}, rising, then falling",
}
LISTENERS: dict[str, Spec] = {
    **{name: MIXERS[name] for name in ("attention", "linear", "retention", "gated linear",
                                       "Mamba-2", "delta rule", "gated delta rule")},
}  # fmt: skip


class Listener(Recaller):
    """A network of `associative_recall` that also hears where a story begins, and what is jest."""

    def __init__(self, mixers: Sequence[Spec], *, joined: bool = True):
        """Make a network, untrained."""
        super().__init__(mixers, joined=joined)
        self.marks = nn.Embedding(3, WIDTH)
        nn.init.normal_(self.marks.weight, std=0.3)

    def forward(self, keys: Tensor, values: Tensor, marks: Tensor, asked: Tensor) -> Tensor:
        """Read pairs and their marks (B, P), and what is asked for (B, A); score the values."""
        return self.answer(self.keys(keys) + self.values(values) + self.marks(marks), asked)


def story_of(
    old: int, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Draw sequences: keys, values and marks of the rows; keys asked for, and their values."""
    before, now = (
        torch.rand(size, KEYS, generator=generator).argsort(1)[:, :count] for count in (old, NEW)
    )
    again = now.gather(1, torch.rand(size, NEW, generator=generator).argsort(1))  # the jests
    values = torch.randint(VALUES, (size, old + 2 * NEW), generator=generator)
    # The new story's first row stays the first; the others and the jests are mixed.
    order = torch.rand(size, 2 * NEW, generator=generator)
    order[:, 0] = -1
    order = order.argsort(1)
    marks = torch.tensor([BEGINS] + [SAID] * (NEW - 1) + [JEST] * NEW).expand(size, -1)
    rows = [each.gather(1, order) for each in (torch.cat([now, again], 1), values[:, old:], marks)]
    told = [before, values[:, :old], torch.full_like(before, SAID)]
    asked = torch.rand(size, NEW, generator=generator).argsort(1)
    wanted = values[:, old : old + NEW].gather(1, asked)
    given = [torch.cat(each, 1) for each in zip(told, rows, strict=True)]
    return *given, now.gather(1, asked), wanted


def length_of(old: int) -> int:
    """Return how many rows a sequence has."""
    return old + 3 * NEW


@torch.no_grad()
def steps_of(net: Listener) -> dict:
    """Return what is left of the state, and the step, in each head of Mamba-2 by kind of row."""
    mixer = next(part for part in net.modules() if isinstance(part, Mamba2Mixer))
    seen: list[Tensor] = []
    hook = mixer.in_proj.register_forward_hook(lambda *given: seen.append(given[-1]))
    keys, values, marks, asked, _ = story_of(48, 100, torch.Generator().manual_seed(10_000))
    net(keys, values, marks, asked)
    hook.remove()
    step = functional.softplus(seen[0][:, : marks.shape[1], -mixer.n_heads :] + mixer.delta_bias)
    left = torch.exp(-mixer.log_rate.exp() * step)  # (B, P, H)
    kinds = {"pair": SAID, "beginning": BEGINS, "jest": JEST}
    return {
        word: {
            name: [round(x, 3) for x in numbers[marks == kind].mean(0).tolist()]
            for name, numbers in (("left", left), ("step", step))
        }
        for word, kind in kinds.items()
    }


def run(
    *,
    names: Sequence[str] = tuple(LISTENERS),
    old: Sequence[int] = (0, 16, 48),
    rates: Sequence[float] = (0.005, 0.015),
    seeds: Sequence[int] = (0, 1),
    steps: int = 600,
    long_steps: int = 1800,
) -> tuple[dict, None]:
    """Train each network at both rates, and at its better one with every seed."""
    log: dict = {
        "settings": {"names": list(names), "rates": list(rates), "steps": steps,
                     "long_steps": long_steps},
        "old": list(old), "seeds": list(seeds), "long": {"recall": {}, "curve": {}},
        "learned": [],
    }  # fmt: skip
    for name in names:
        mixers = [LISTENERS[name]]

        def attempt(rate, seed, own=steps, mixers=mixers):
            look = steps_of if name == "Mamba-2" and own == long_steps else None  # noqa: B023
            ended = trial(
                mixers, rate, seed, own, old, draw=story_of, make=Listener, length=length_of,
                rows=ROWS, look=look,
            )  # fmt: skip
            if look:
                log["learned"].append(ended["looked"])
            return ended

        given = swept(attempt, rates, seeds[:1] if name in LATE else seeds)
        given["numbers"] = [numbers_of(mixers, length_of(count)) for count in old]
        given["parameters"] = sum(w.numel() for w in Listener(mixers).parameters())
        for key, value in given.items():
            log.setdefault(key, {})[name] = value
        if name not in ENOUGH:
            again = longer(lambda *a: attempt(*a, long_steps), given["rate"], seeds[:1])
            for key, value in again.items():
                log["long"][key][name] = value
    counts = log["parameters"].values()
    log["smallest"], log["largest"] = min(counts), max(counts)
    return log, None
