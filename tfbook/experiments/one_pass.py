"""Where does one core spend the time of a pass through SmolLM2, with one token and with more?

One thread, the model as it is, after 20 tokens that it has read, with parameters and numbers of
four bytes (float32) and of two (bfloat16). All that is compared is timed in the same rounds, one
piece after the other, so that a slow minute of the memory meets every piece:

- `whole`: a pass over so many tokens, for each of `rows`, in either type;
- `products` of a pass, replayed in its order on rows of the same shapes, and the `pass` of one
  token, with more and with fewer parameters of their own, for each of `own`. With 30 that is the
  model as it is. With fewer, each layer after the last of them meets the parameters of that last
  one again, 14 MB in float32, which the processor's cache still holds. The output layer is fetched.
  With 0 it is cut into 32 pieces of 1,536 rows and meets the first of them 32 times, and all layers
  share the parameters of the first one: then nothing has to come from memory. `different` are the
  bytes of the different parameters in float32. Such a piece runs once before it is timed, so that
  the cache holds what it leaves there;
- `others`: the pass of one token in float32 with every product answered by rows that lie ready;
- `layers` and `output`: the products of one token in float32, in two parts;
- `flops`: operations a second of the fastest large product, in either type;
- `readers`: bytes a second of several ways to go through half a gigabyte; copying reads half of it
  and writes the other. `reading` is the fastest of them, one row of large matrices included: it is
  to bound what a program can do, so no program should beat it. `near` is the same for the fastest
  of them, over 16 MB again and again, which come from the cache.

Of all rounds the log holds the fastest, in processor seconds of the one thread: other programs that
share the memory and the cache can only slow one down. Nothing is subtracted.

After the rounds come three things of float32. `small` asks what `others` is made of: `operations`
are all that PyTorch is told to do in it; `alone` is the time of the same operations, recorded and
repeated one after the other without the model around them; `additions` are seconds of one addition
of so many numbers to as many others. `wide` are four matrices of 4,096 × 4,096 numbers, 268 MB,
that meet `rows` in three programs, `ways`. `forms` are as many numbers as the output layer has, in
one matrix or in 32, each with rows of 576 or of 4,096 numbers, met by 1, 4 and 16 rows. `processor`
is what the system calls the processor; `cache` are the bytes of the largest cache of its core.

Explained in: chapters/06_complexity, section "Two ceilings".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tfbook import pretrained

__all__ = ["SMOKE", "run"]

SEEN = 20
PIECES = 32  # of the output layer
TYPES = ("float32", "bfloat16")
LONGEST, FEWEST = 9.0, 3  # seconds for rounds of the last parts, and how many there are at least
SMOKE = {
    "rows": (1,), "rows_replayed": (1,), "own": (0,), "rounds": 1, "types": ("float32",),
    "squares": (64,), "wide_rows": (1,), "wide_width": 64, "form_rows": (1,),
    "form_numbers": 32 * 4096, "array_numbers": 2**16, "repeats": 2,
}  # fmt: skip
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters, in float32 and in bfloat16, "
    "and with layers that share theirs",
    "data": "{rows_first} to {rows_last} tokens a pass, after {SEEN} that it has read",
    "steps": "nothing is trained; the fastest of {rounds} rounds",
    "batch": "",
    "rate": "",
}


@contextmanager
def linear_is(answer: Callable[..., Tensor]) -> Iterator[None]:
    """Let another function stand for `F.linear`, which every product of the model calls."""
    real = F.linear
    F.linear = answer
    try:
        yield
    finally:
        F.linear = real


def recorded(action: Callable[[], object]) -> list[tuple[Tensor, Tensor]]:
    """Return the rows and the matrix of every product of a pass, in its order."""
    calls, real = [], F.linear

    def noting(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        calls.append((x.clone(), weight))
        return real(x, weight, bias)

    with linear_is(noting):
        action()
    return calls


def ready(calls: Sequence[tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """Make a function that answers each product with rows of its shape that lie ready."""
    rows = {weight.shape: torch.randn(*x.shape[:-1], len(weight)) for x, weight in calls}
    return lambda x, weight, bias=None: rows[weight.shape]


def timed(action: Callable[[], object]) -> float:
    """Return the seconds of one run."""
    begun = process_time()
    action()
    return process_time() - begun


def fastest(pieces: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Run all pieces in turn, once to warm up and then `rounds` times; return the fastest.

    Where that would take longer than `LONGEST` seconds, there are fewer rounds.
    """
    for action in pieces.values():
        action()
    seconds, begun = {name: [] for name in pieces}, process_time()
    for done in range(rounds):
        if done >= FEWEST and process_time() - begun > LONGEST:
            break
        for name, action in pieces.items():
            seconds[name].append(timed(action))
    return {name: round(min(times), 6) for name, times in seconds.items()}


def each(calls: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """Make the replay of products, one after the other."""

    def replay() -> None:
        for x, weight in calls:
            F.linear(x, weight)

    return replay


def met(matrices: Sequence[Tensor], own: int) -> list[list[Tensor]]:
    """Return what each product of a pass meets if so many layers have parameters of their own."""
    *of_layers, output = matrices
    a_layer = len(of_layers) // 30
    found = []
    for number in range(len(of_layers)):
        layer, which = divmod(number, a_layer)
        found.append([of_layers[min(layer, max(own, 1) - 1) * a_layer + which]])
    return [*found, [output] if own else [output[: len(output) // PIECES]] * PIECES]


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


def in_type(
    model: nn.Module,
    kind: str,
    rows: Sequence[int],
    rows_replayed: Sequence[int],
    own: Sequence[int],
    squares: Sequence[int],
) -> tuple[dict[tuple, Callable], dict[tuple, Callable]]:
    """Return what is timed in one type: once a round, and after a run that fills the cache."""
    _, state = model.decode(torch.arange(SEEN)[None])
    once, after = {}, {}
    for size in squares:
        pair = torch.randn(2, size, size).to(getattr(torch, kind))
        after["flops", kind, size] = lambda pair=pair: pair[0] @ pair[1]
    for count in rows:
        tokens = torch.arange(count)[None]
        once["whole", kind, count] = lambda tokens=tokens: model.decode(tokens, state)
    token = torch.zeros(1, 1, dtype=torch.long)
    decode = lambda: model.decode(token, state)  # noqa: E731
    calls = recorded(decode)
    matrices = [weight for _, weight in calls]
    for layers in own:
        pieces = met(matrices, layers)
        after["pass", kind, layers] = whole_with(decode, pieces)
        for count in rows_replayed:
            given = [torch.randn(count, w.shape[1]).to(w.dtype) for w in matrices]
            pairs = [(x, w) for x, group in zip(given, pieces, strict=True) for w in group]
            after["products", kind, count, layers] = each(pairs)
    if kind == "float32":
        answer = ready(calls)

        def others() -> None:
            with linear_is(answer):
                decode()

        after["others",] = others
        once["layers",], once["output",] = each(calls[:-1]), each(calls[-1:])
    return once, after


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


def small_steps(model: nn.Module, state: object, repeats: int) -> dict[str, object]:
    """Return how many operations a pass of one token has beside its products, and their time."""
    token = torch.zeros(1, 1, dtype=torch.long)

    def whole() -> None:
        model.decode(token, state)

    def alone() -> None:
        for function, given, named in recording.calls:
            function(*given, **named)

    with linear_is(ready(recorded(whole))), Recording() as recording:
        whole()
    pairs = {count: torch.randn(2, count) for count in (1, 576)}
    pieces = {"alone": alone} | {
        str(count): lambda pair=pair: [pair[0] + pair[1] for _ in range(1000)]
        for count, pair in pairs.items()
    }
    found = fastest(pieces, repeats)
    return {
        "operations": len(recording.calls),
        "alone": found.pop("alone"),
        "additions": {count: seconds / 1000 for count, seconds in found.items()},
    }


def readers(numbers: int) -> tuple[dict[str, Callable], int]:
    """Return several ways to go through an array, and its bytes."""
    array = torch.ones(numbers)
    half, other = array.chunk(2)
    matrix = array.view(-1, min(4096, numbers // 16))
    row, column = torch.ones(matrix.shape[1]), torch.ones(len(matrix))
    return {
        "sum": array.sum,
        "copy": lambda: other.copy_(half),
        "dot": lambda: torch.dot(half, other),
        "matrix times vector": lambda: torch.mv(matrix, row),
        "vector times matrix": lambda: torch.mv(matrix.mT, column),
        "dot by NumPy": lambda: np.dot(half.numpy(), other.numpy()),
        "matrix times vector by NumPy": lambda: matrix.numpy() @ row.numpy(),
        "vector times matrix by NumPy": lambda: column.numpy() @ matrix.numpy(),
    }, array.nbytes


def wide_matrices(rows: Sequence[int], width: int, rounds: int) -> dict[str, object]:
    """Return the least seconds of products with large square matrices, fetched from memory."""
    matrices = [torch.randn(width, width) for _ in range(4)]
    programs = {
        "F.linear": lambda x: [F.linear(x, w) for w in matrices],
        "x @ W": lambda x: [x @ w for w in matrices],
        "x @ W by NumPy": lambda x: [x.numpy() @ w.numpy() for w in matrices],
    }
    ways = {name: [] for name in programs}
    for count in rows:
        x = torch.randn(count, width)
        pieces = {name: partial(program, x) for name, program in programs.items()}
        for name, seconds in fastest(pieces, rounds).items():
            ways[name].append(seconds)
    layers = [min(seconds) for seconds in zip(*ways.values(), strict=True)]
    found = {"width": width, "matrices": len(matrices), "rows": list(rows), "layers": layers}
    return found | {"ways": ways}


def forms(rows: Sequence[int], numbers: int, rounds: int) -> list[dict]:
    """Return the times of products with as many numbers, in one matrix or in 32, wide or not."""
    found, matrices = [], []
    for width in (576, 4096):
        for count in (1, 32):
            height = numbers // count // width
            form = {"matrices": count, "height": height, "width": width}
            found.append(form | {"rows": list(rows), "seconds": []})
            matrices.append([torch.randn(height, width) for _ in range(count)])
    for count in rows:
        pieces = {
            str(number): each([(torch.randn(count, group[0].shape[1]), w) for w in group])
            for number, group in enumerate(matrices)
        }
        for form, seconds in zip(found, fastest(pieces, rounds).values(), strict=True):
            form["seconds"].append(seconds)
    return found


@torch.no_grad()
def run(
    *,
    rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    rows_replayed: Sequence[int] = (1, 2, 4),
    own: Sequence[int] = (0, 1, 10, 20, 30),
    rounds: int = 45,
    types: Sequence[str] = TYPES,
    squares: Sequence[int] = (1024, 2048),
    wide_rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    wide_width: int = 4096,
    form_rows: Sequence[int] = (1, 4, 16),
    form_numbers: int = 49_152 * 576,
    array_numbers: int = 2**27,
    repeats: int = 51,
) -> tuple[dict, None]:
    """Time passes of so many tokens and their parts, and the two numbers of the core.

    Args:
        rows: tokens of a pass.
        rows_replayed: tokens of a pass whose products are replayed.
        own: layers with parameters of their own.
        rounds: of which the fastest is taken.
        types: of the numbers.
        squares: rows and columns of the matrices whose products give the peak.
        wide_rows: for the large square matrices.
        wide_width: of these.
        form_rows: for the matrices of several forms.
        form_numbers: that each form has.
        array_numbers: of the array that is read.
        repeats: for the small operations.
    """
    torch.manual_seed(0)
    model = pretrained.load("smollm2-135m").model
    once, after = {}, {}
    for kind in types:
        of_kind = model if kind == "float32" else deepcopy(model).to(getattr(torch, kind))
        for all_, new in zip(
            (once, after), in_type(of_kind, kind, rows, rows_replayed, own, squares), strict=True
        ):
            all_ |= new
    ways, read = readers(array_numbers)
    once |= {("reading", name): way for name, way in ways.items()}
    pair = torch.ones(2, array_numbers // 64).numpy()
    after["near",] = lambda: [np.dot(*pair) for _ in range(32)]
    best = dict.fromkeys([*once, *after], float("inf"))
    for number in range(rounds + 1):
        for name, action in (once | after).items():
            if name in after:
                action()
            took = timed(action)
            if number:  # the first round warms up
                best[name] = min(best[name], round(took, 6))
    _, state = model.decode(torch.arange(SEEN)[None])
    calls = recorded(lambda: model.decode(torch.zeros(1, 1, dtype=torch.long), state))
    weights = {"layers": [w for _, w in calls[:-1]], "output": [w for _, w in calls[-1:]]}
    matrices = [weight for _, weight in calls]
    sizes = [{id(w): w.nbytes for group in met(matrices, layers) for w in group} for layers in own]
    wide = wide_matrices(wide_rows, wide_width, max(rounds // 7, 1))
    pairs = list(zip(wide["rows"], wide["layers"], strict=True))
    rates = {name: read / best["reading", name] for name in ways}
    rates["one row of large matrices"] = 4 * wide["matrices"] * wide_width**2 / dict(pairs)[1]
    speeds = {
        kind: max(2 * size**3 / best["flops", kind, size] for size in squares) for kind in types
    }
    of_row = 2 * wide["matrices"] * wide_width**2
    speeds["float32"] = max(speeds["float32"], *(r * of_row / seconds for r, seconds in pairs))
    return {
        "settings": {"rounds": rounds, "seen": SEEN}, "rows": list(rows),
        "rows_replayed": list(rows_replayed), "own": list(own),
        "whole": {kind: [best["whole", kind, count] for count in rows] for kind in types},
        "different": [sum(found.values()) for found in sizes],
        "products": {
            kind: [[best["products", kind, count, layers] for layers in own]
                   for count in rows_replayed]
            for kind in types
        },
        "pass": {kind: [best["pass", kind, layers] for layers in own] for kind in types},
        **{name: best[name,] for name in ("layers", "output", "others")},
        "bytes": {name: sum(w.nbytes for w in group) for name, group in weights.items()},
        "flops": speeds,
        "readers": rates,
        "reading": max(rates.values()),
        "near": read / best["near",],
        "small": small_steps(model, state, repeats),
        "wide": wide,
        "forms": forms(form_rows, form_numbers, max(rounds // 2, 1)),
        "processor": processor(), "cache": cache(),
    }, None  # fmt: skip
