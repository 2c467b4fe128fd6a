"""Where does one core spend the time of a pass through SmolLM2, with one token and with more?

One thread, float32, the model as it is, after 20 tokens that it has read. The whole pass is timed,
and its parts by themselves: the matrices of the layers and the output layer are replayed in the
order of the pass, on rows of the same shapes; and the pass runs once more with every product
answered by rows that lie ready, which is the time of everything else. Nothing is subtracted, so
the parts need not add up, and the log says what they leave open. All parameters take 538 MB, more
than a cache holds: each pass has to fetch them from memory. The pieces of a round follow one
another, so that each finds the memory as a pass leaves it. Of all rounds the log holds the fastest,
in seconds of the one thread: other programs that share the memory can only slow one down.

Of the log, each list has one value for each of `rows`: `whole`, `layers` (all their matrices),
`output`, `others` (the pass without products). `bytes` and `flops` of one row are those of `layers`
and `output`. `single` are parts of the pass of one token that `others` holds together: attention
with its cache and rotation, norms, activations. `small` asks what `others` of one token is made of:
`operations` are all that PyTorch is told to do in it; `alone` is the time of the same operations,
recorded and repeated one after the other without the model around them; `additions` are seconds of
one addition of so many numbers to as many others. `machine_flops` is the best of several large
products. `readers` are the bytes a second of several ways to go through half a gigabyte, of each
the best run; copying reads half of it and writes the other. `reading` is the fastest of them, one
row of large matrices included: it is to bound what a program can do, so no program should beat it.
`wide` are four matrices of 4,096 × 4,096 numbers, 268 MB, that meet `rows` in three programs,
`ways`; `layers` is the fastest of them. `forms` are as many numbers as the output layer has, in one
matrix or in 32, each with rows of 576 or of 4,096 numbers, met by 1, 4 and 16 rows.

Explained in: chapters/06_complexity, section "Two ceilings".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import process_time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tfbook import costs, pretrained

__all__ = ["SMOKE", "run"]

SEEN = 20
LONGEST, FEWEST = 9.0, 3  # seconds for the rounds of a pass, and how many there are at least
SMOKE = {
    "rows": (1, 2), "rounds": 1, "wide_rows": (1,), "wide_width": 64, "measuring": 0.05,
    "form_rows": (1,), "form_numbers": 32 * 4096, "array_numbers": 2**16, "repeats": 2,
}  # fmt: skip
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters in float32",
    "data": "{rows_first} to {rows_last} tokens a pass, after {SEEN} that it has read",
    "steps": "nothing is trained; the fastest of up to {rounds} passes",
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


def pass_of(model: nn.Module, state: object, count: int, rounds: int) -> dict[str, float]:
    """Return the least seconds of a pass over so many tokens and of its parts."""
    tokens = torch.arange(count)[None]

    def whole() -> None:
        model.decode(tokens, state)

    calls = recorded(whole)
    layers, output = calls[:-1], calls[-1:]
    answer = ready(calls)

    def others() -> None:
        with linear_is(answer):
            whole()

    pieces = {
        "whole": whole,
        "layers": each(layers),
        "output": each(output),
        "others": others,
    }
    return fastest(pieces, rounds)


def single_parts(model: nn.Module, state: object, rounds: int) -> dict[str, float]:
    """Return what parts of the pass of one token take, without products."""
    token = torch.zeros(1, 1, dtype=torch.long)
    calls = recorded(lambda: model.decode(token, state))
    answer, x = ready(calls), torch.randn(1, 1, 576)
    blocks, states = model.stack.blocks, [block.mixer for block in state.layers]

    def attention() -> None:
        with linear_is(answer):
            for block, kept in zip(blocks, states, strict=True):
                block.mixer(x, kept)

    def networks() -> None:
        with linear_is(answer):
            for block in blocks:
                block.ffn(x)

    def norms() -> None:
        for block in blocks:
            block.mixer_residual.norm(x)
            block.ffn_residual.norm(x)
        model.stack.final_norm(x)

    return fastest({"attention": attention, "norms": norms, "activations": networks}, rounds)


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


def readers(numbers: int, rounds: int) -> dict[str, float]:
    """Return the bytes a second of several ways to go through an array; of each, the best run."""
    array = torch.ones(numbers)
    half, other = array.chunk(2)
    matrix = array.view(-1, min(4096, numbers // 16))
    row, column = torch.ones(matrix.shape[1]), torch.ones(len(matrix))
    ways = {
        "sum": array.sum,
        "copy": lambda: other.copy_(half),
        "dot": lambda: torch.dot(half, other),
        "matrix times vector": lambda: torch.mv(matrix, row),
        "vector times matrix": lambda: torch.mv(matrix.mT, column),
        "dot by NumPy": lambda: np.dot(half.numpy(), other.numpy()),
        "matrix times vector by NumPy": lambda: matrix.numpy() @ row.numpy(),
        "vector times matrix by NumPy": lambda: column.numpy() @ matrix.numpy(),
    }
    for action in ways.values():
        action()
    seconds = {name: min(timed(way) for _ in range(rounds)) for name, way in ways.items()}
    return {name: array.nbytes / least for name, least in seconds.items()}


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
    rounds: int = 21,
    wide_rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    wide_width: int = 4096,
    form_rows: Sequence[int] = (1, 4, 16),
    form_numbers: int = 49_152 * 576,
    array_numbers: int = 2**27,
    measuring: float = 3.0,
    repeats: int = 51,
) -> tuple[dict, None]:
    """Time passes of so many tokens and their parts.

    Args:
        rows: tokens of a pass.
        rounds: of which the fastest is taken.
        wide_rows: for the large square matrices.
        wide_width: of these.
        form_rows: for the matrices of several forms.
        form_numbers: that each form has.
        array_numbers: of the array that is read.
        measuring: seconds for the two numbers of the machine.
        repeats: for the small operations.
    """
    model = pretrained.load("smollm2-135m").model
    model.stack.register_forward_hook(lambda *_: None)  # so that its modules do the work
    _, state = model.decode(torch.arange(SEEN)[None])
    machine = costs.measure_machine(threads=1, seconds=measuring)
    read = readers(array_numbers, max(rounds // 2, 1))
    calls = recorded(lambda: model.decode(torch.zeros(1, 1, dtype=torch.long), state))
    weights = {"layers": [w for _, w in calls[:-1]], "output": [w for _, w in calls[-1:]]}
    single = single_parts(model, state, rounds)
    small = small_steps(model, state, repeats)
    found = [pass_of(model, state, count, rounds) for count in rows]
    wide = wide_matrices(wide_rows, wide_width, max(rounds // 7, 1))
    one_row = dict(zip(wide["rows"], wide["layers"], strict=True))[1]
    read["one row of large matrices"] = 4 * wide["matrices"] * wide_width**2 / one_row
    flops_of_row = 2 * wide["matrices"] * wide_width**2
    pairs = zip(wide["rows"], wide["layers"], strict=True)
    peak = max(machine.flops, *(count * flops_of_row / seconds for count, seconds in pairs))
    return {
        "settings": {"rounds": rounds, "seen": SEEN}, "rows": list(rows),
        **{name: [one[name] for one in found] for name in ("whole", "layers", "output", "others")},
        "single": single,
        "small": small,
        "bytes": {name: sum(w.nbytes for w in group) for name, group in weights.items()},
        "flops": {name: sum(2 * w.numel() for w in group) for name, group in weights.items()},
        "machine_flops": peak,
        "readers": read,
        "reading": max(read.values()),
        "wide": wide,
        "forms": forms(form_rows, form_numbers, max(rounds // 2, 1)),
    }, None  # fmt: skip
