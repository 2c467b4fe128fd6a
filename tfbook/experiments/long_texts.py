"""From which length of a text on does attention take most of the time, in reading and in writing?

One thread, float32, SmolLM2 as it is. *Reading* is one pass over so many tokens, with the scores of
the vocabulary for the last one only. *Writing* is one token more, behind so many in a KV cache
whose room was set aside beforehand, so that nothing is copied; its keys and values are random, as
their numbers do not change the time. Two functions are timed while the pass runs: `F.linear`, which
does every product with parameters (`products`), and `F.scaled_dot_product_attention`, which does
scores, softmax and mix, tile by tile and without the pairs that the causal mask throws away
(`attention`). What remains is the `rest`. The three add up to the `whole`; of all rounds the log
holds the one whose whole is the median, in seconds of the one thread. Other programs may share the
memory with it, and slow it down.

`small` asks what the rest of a pass of one token is made of: `operations` are all that PyTorch is
told to do in it, with the products answered by rows that lie ready, and `without_products` is what
that pass takes. `alone` is the time of the same operations, recorded and repeated one after the
other without the model around them. `additions` are seconds of one addition of so many numbers to
as many others: medians, like all of these.

Explained in: chapters/06_complexity, section "Reading a prompt, writing an answer".
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import process_time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tfbook import pretrained
from tfbook.attention import StaticCache
from tfbook.experiments.one_pass import SEEN, linear_is, ready, recorded, timed
from tfbook.models import BlockState, ModelState

__all__ = ["SMOKE", "run"]

PARTS = {"products": "linear", "attention": "scaled_dot_product_attention"}
LONGEST = 20.0  # seconds that the rounds of one length may take, the first apart
SMOKE = {"lengths": (4, 8), "behind": (4, 8), "rounds": 1, "repeats": 2}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters in float32",
    "data": "texts of {lengths_first} to {lengths_last:,} tokens, read in one pass; "
    "then one token more",
    "steps": "nothing is trained; medians of up to {rounds} passes",
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


def median_round(action: Callable[[], object], rounds: int) -> dict[str, float]:
    """Return the parts of the round with the median whole; fewer rounds where they are long."""
    found = [apart(action)]
    begun = process_time()
    while len(found) < rounds and process_time() - begun < LONGEST:
        found.append(apart(action))
    middle = sorted(found, key=lambda one: one["whole"])[len(found) // 2]
    return {name: round(seconds, 6) for name, seconds in middle.items()}


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


class Recording(TorchDispatchMode):
    """Notes every operation that PyTorch is told to do, with what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable, tuple, dict]] = []

    def __torch_dispatch__(
        self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def small_steps(model: nn.Module, repeats: int) -> dict[str, object]:
    """Return how many operations a pass of one token has beside its products, and their time."""
    _, state = model.decode(torch.arange(SEEN)[None])
    token = torch.zeros(1, 1, dtype=torch.long)

    def whole() -> None:
        model.decode(token, state)

    def alone() -> None:
        for function, given, named in recording.calls:
            function(*given, **named)

    def median(action: Callable[[], object]) -> float:
        action()
        return round(statistics.median(timed(action) for _ in range(repeats)), 6)

    with linear_is(ready(recorded(whole))):
        without_products = median(whole)
        with Recording() as recording:
            whole()
    additions = {}
    for count in (1, 576):
        one, other = torch.randn(2, count)
        additions[str(count)] = median(lambda x=one, y=other: [x + y for _ in range(1000)]) / 1000
    return {
        "operations": len(recording.calls),
        "without_products": without_products,
        "alone": median(alone),
        "additions": additions,
    }


@torch.no_grad()
def run(
    *,
    lengths: Sequence[int] = (250, 500, 1000, 2000, 4000, 8000),
    behind: Sequence[int] = (250, 500, 1000, 2000, 4000, 8000),
    rounds: int = 15,
    repeats: int = 51,
) -> tuple[dict, None]:
    """Time passes over texts, and of one token behind them, in parts.

    Args:
        lengths: of the texts that are read.
        behind: tokens that stand before the one that is written.
        rounds: of which the median is taken; fewer of long passes.
        repeats: for the small operations.
    """
    torch.manual_seed(0)
    model = pretrained.load("smollm2-135m").model
    small = small_steps(model, repeats)
    writing = []
    for count in behind:
        write = writer(model, count, rounds)
        write()
        writing.append(median_round(write, rounds))
    reading = []
    for count in lengths:
        tokens = torch.randint(49_152, (1, count))
        reading.append(median_round(lambda x=tokens: model.decode(x, last=True), rounds))
    return {
        "settings": {"rounds": rounds, "repeats": repeats},
        "lengths": list(lengths), "reading": {n: [one[n] for one in reading] for n in reading[0]},
        "behind": list(behind), "writing": {n: [one[n] for one in writing] for n in writing[0]},
        "small": small,
    }, None  # fmt: skip
