"""Does a pass through SmolLM2 take less time when fewer of its bytes come from memory?

One thread. The matrix products of a pass are replayed in its order, on rows of the same shapes, as
in :mod:`tfbook.experiments.one_pass`. Their shapes, their number and the routine of PyTorch stay
what they are; only how many layers have parameters of their own changes. With `own` = 30 that is
the model as it is. With fewer, each layer after the last of them meets the parameters of that last
one again, 14 MB in float32, which the processor's cache still holds. The output layer is always
fetched. With `own` = 0 it is cut into 32 pieces of 1,536 rows and meets the first of them 32 times,
and all layers share the parameters of the first one: then nothing has to come from memory. A pass
of the pieces is run before each timing, so that the cache holds what such a pass leaves in it.

Of the log, `own` are the numbers of layers and `bytes` the different parameters of a pass, in
float32, for each of them. `products` has a list for each of `rows` in `float32` and in `bfloat16`,
where each parameter has two bytes, with a time for each of `own`; `pass` holds the whole pass of
one token in float32. Of all rounds, which go through all conditions in turn, the log holds the
fastest, in processor seconds of the one thread: other programs that share the memory and the cache
can only slow one down. The shipped log is the better of two runs of 50 rounds, time by time.
`reading` are the bytes a second of a product of two long vectors, timed in the same rounds;
`processor` is what the system calls the processor; `cache` are the bytes of the largest cache that
its core can use.

Explained in: chapters/06_complexity, section "Two ceilings".
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tfbook import pretrained
from tfbook.experiments.one_pass import SEEN, linear_is, recorded, timed

__all__ = ["SMOKE", "run"]

PIECES = 32  # of the output layer
SMOKE = {"rows": (1,), "own": (0,), "rounds": 1, "numbers": 2**16}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters, and with layers that share theirs",
    "data": "{rows_first} to {rows_last} tokens a pass, after {SEEN} that it has read",
    "steps": "nothing is trained; the fastest of {rounds} rounds",
    "batch": "",
    "rate": "",
}


def met(matrices: Sequence[Tensor], own: int) -> list[list[Tensor]]:
    """Return what each product of a pass meets if so many layers have parameters of their own."""
    *of_layers, output = matrices
    a_layer = len(of_layers) // 30
    found = []
    for number in range(len(of_layers)):
        layer, which = divmod(number, a_layer)
        found.append([of_layers[min(layer, max(own, 1) - 1) * a_layer + which]])
    return [*found, [output] if own else [output[: len(output) // PIECES]] * PIECES]


def replay(rows: Sequence[Tensor], matrices: Sequence[Sequence[Tensor]]) -> Callable[[], None]:
    """Make the replay of products, one after the other."""

    def again() -> None:
        for x, pieces in zip(rows, matrices, strict=True):
            for weight in pieces:
                F.linear(x, weight)

    return again


def whole_with(decode: Callable[[], object], matrices: Sequence[list[Tensor]]) -> Callable:
    """Make the pass in which each product meets other parameters than those of the model."""
    real = F.linear

    def again() -> None:
        left = iter(matrices)

        def other(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            found = [real(x, piece) for piece in next(left)]
            return found[0] if len(found) == 1 else torch.cat(found, -1)

        with linear_is(other):
            decode()

    return again


def processor() -> str:
    """Return what the system calls its processor, or an empty text."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""


def cache() -> int:
    """Return the bytes of the largest cache of the first core, or 0 if the system does not say."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob(
        "index*/size")]  # fmt: skip
    return max((1024 * int(size[:-1]) for size in sizes if size.endswith("K")), default=0)


@torch.no_grad()
def run(
    *,
    rows: Sequence[int] = (1, 2, 4),
    own: Sequence[int] = (0, 1, 10, 20, 30),
    rounds: int = 100,
    numbers: int = 2**26,
) -> tuple[dict, None]:
    """Time the products of a pass with more and with fewer parameters of their own.

    Args:
        rows: tokens of a pass.
        own: layers with parameters of their own.
        rounds: of which the fastest is taken.
        numbers: of each of the two vectors that are read.
    """
    torch.manual_seed(0)
    model = pretrained.load("smollm2-135m").model
    _, state = model.decode(torch.arange(SEEN)[None])
    token = torch.zeros(1, 1, dtype=torch.long)
    matrices = [weight for _, weight in recorded(lambda: model.decode(token, state))]
    pieces = {}
    for name in ("float32", "bfloat16"):
        kind = getattr(torch, name)
        of_kind = [weight.to(kind) for weight in matrices]
        for count in rows:
            given = [torch.randn(count, weight.shape[1]).to(kind) for weight in matrices]
            for layers in own:
                pieces[name, count, layers] = replay(given, met(of_kind, layers))
    for layers in own:
        decode, different = lambda: model.decode(token, state), met(matrices, layers)
        pieces["pass", 1, layers] = whole_with(decode, different)
    one, other = np.ones((2, numbers), dtype=np.float32)
    pieces["reading"] = lambda: one @ other
    best = dict.fromkeys(pieces, float("inf"))
    for _ in range(rounds):
        for name, action in pieces.items():
            action()
            best[name] = min(best[name], timed(action))
    sizes = [{id(w): w.nbytes for group in met(matrices, layers) for w in group} for layers in own]
    return {
        "settings": {"rounds": rounds, "seen": SEEN}, "rows": list(rows), "own": list(own),
        "bytes": [sum(found.values()) for found in sizes],
        "products": {
            name: [[best[name, count, layers] for layers in own] for count in rows]
            for name in ("float32", "bfloat16")
        },
        "pass": [best["pass", 1, layers] for layers in own],
        "reading": (one.nbytes + other.nbytes) / best["reading"],
        "processor": processor(), "cache": cache(),
    }, None  # fmt: skip
