"""From which length of a text on does attention take most of the time, in reading and in writing?

One thread, float32, SmolLM2 as it is. *Reading* is one pass over so many tokens, with the scores of
the vocabulary for the last one only. *Writing* is one token more, behind so many in a KV cache
whose room was set aside beforehand, so that nothing is copied; its keys and values are random, as
their numbers do not change the time. Two functions are timed while the pass runs: `F.linear`, which
does every product with parameters (`products`), and `F.scaled_dot_product_attention`, which does
scores, softmax and mix, tile by tile and without the pairs that the causal mask throws away
(`attention`). What remains is the `rest`. The three add up to the `whole`. Of all rounds the log
holds the fastest, in seconds of the one thread: other programs that share the memory can only slow
one down. Writing begins behind 20 tokens, as the pass of :mod:`tfbook.experiments.one_pass` does.

`gates` asks what makes the rest of a long text grow: the seconds that SiLU(gate) · up takes in all
layers, on numbers of the shape that a text of so many tokens has there.

Explained in: chapters/06_complexity_deeper, section "When a conversation gets long".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import process_time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tfbook import pretrained
from tfbook.attention import StaticCache
from tfbook.blocks import BlockState, ModelState
from tfbook.experiments.one_pass import SEEN, timed

__all__ = ["SMOKE", "run"]

PARTS = {"products": "linear", "attention": "scaled_dot_product_attention"}
LONGEST = 20.0  # seconds that the rounds of one length may take, the first apart
SMOKE = {"lengths": (4, 8), "behind": (4, 8), "rounds": 1}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters in float32",
    "data": "texts of {lengths_first} to {lengths_last:,} tokens, read in one pass; "
    "then one token more",
    "steps": "nothing is trained; the fastest of up to {rounds} passes",
    "batch": "",
    "rate": "",
}


@contextmanager
def watched(spent: dict[str, float]) -> Iterator[None]:
    """Add up in `spent` the seconds of the functions that `PARTS` names."""
    real = {name: getattr(F, name) for name in PARTS.values()}

    def watching(part: str, function: Callable) -> Callable:
        def call(*given: Any, **named: Any) -> Any:
            begun = process_time()
            found = function(*given, **named)
            spent[part] += process_time() - begun
            return found

        return call

    for part, name in PARTS.items():
        setattr(F, name, watching(part, real[name]))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(F, name, function)


def apart(action: Callable[[], object]) -> dict[str, float]:
    """Run it once, and return the seconds of its parts and of the whole."""
    spent = dict.fromkeys(PARTS, 0.0)
    with watched(spent):
        whole = timed(action)
    return {"whole": whole, **spent, "rest": whole - sum(spent.values())}


def fastest_round(action: Callable[[], object], rounds: int) -> dict[str, float]:
    """Return the parts of the round with the least whole; fewer rounds where they are long."""
    found = [apart(action)]
    begun = process_time()
    while len(found) < rounds and process_time() - begun < LONGEST:
        found.append(apart(action))
    best = min(found, key=lambda one: one["whole"])
    return {name: round(seconds, 6) for name, seconds in best.items()}


def filled(model: nn.Module, count: int, room: int) -> ModelState:
    """Return a state with random keys and values of so many tokens, and room for more."""
    state = model.empty_state(1, cache=StaticCache(count + room))
    layers = []
    for layer in state.layers:
        _, heads, _, width = layer.mixer.k.shape
        keys, values = torch.randn(2, 1, heads, count, width)
        layers.append(BlockState(layer.mixer.extend(keys, values)))
    return replace(state, layers=tuple(layers), seen=count)


def writer(model: nn.Module, count: int, rounds: int) -> Callable[[], None]:
    """Make what writes one token more at each call, beginning behind so many."""
    states = [filled(model, count, rounds + 2)]
    token = torch.zeros(1, 1, dtype=torch.long)

    def write() -> None:
        _, states[0] = model.decode(token, states[0])

    return write


def gates(count: int, rounds: int, width: int = 1536, layers: int = 30) -> float:
    """Return the seconds of what SwiGLU does number by number, in all layers of one pass."""
    gate, up = torch.randn(2, count, width)

    def every_layer() -> None:
        for _ in range(layers):
            F.silu(gate) * up

    every_layer()
    return round(min(timed(every_layer) for _ in range(rounds)), 6)


@torch.no_grad()
def run(
    *,
    lengths: Sequence[int] = (250, 500, 1000, 2000, 4000, 8000),
    behind: Sequence[int] = (SEEN, 250, 500, 1000, 2000, 4000, 8000),
    rounds: int = 15,
) -> tuple[dict, None]:
    """Time passes over texts, and of one token behind them, in parts.

    Args:
        lengths: of the texts that are read.
        behind: tokens that stand before the one that is written.
        rounds: of which the fastest is taken; fewer of long passes.
    """
    torch.manual_seed(0)
    model = pretrained.load("smollm2-135m").model
    writing = []
    for count in behind:
        write = writer(model, count, rounds)
        write()
        writing.append(fastest_round(write, rounds))
    reading = []
    for count in lengths:
        tokens = torch.randint(49_152, (1, count))
        reading.append(fastest_round(lambda x=tokens: model.decode(x, last=True), rounds))
    return {
        "settings": {"rounds": rounds},
        "lengths": list(lengths), "reading": {n: [one[n] for one in reading] for n in reading[0]},
        "gates": [gates(count, min(rounds, 5)) for count in lengths],
        "behind": list(behind), "writing": {n: [one[n] for one in writing] for n in writing[0]},
    }, None  # fmt: skip
