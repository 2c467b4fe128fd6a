"""Where does one core spend the time of a pass through SmolLM2, with one token and with more?

One thread, float32, the model as it is, after 20 tokens that it has read. The whole pass is timed,
and its parts by themselves: the matrices of the layers and the output layer are replayed in the
order of the pass, on rows of the same shapes; and the pass runs once more with every product
answered by rows that lie ready, which is the time of everything else. Nothing is subtracted, so
the parts need not add up, and the log says what they leave open. All parameters take 538 MB, more
than a cache holds: each pass has to fetch them from memory. The pieces of a round follow one
another, so that each finds the memory as a pass leaves it; of all rounds the log holds the median,
in seconds of the one thread. Other programs may share the memory with it, and slow it down.

Of the log, each list has one value for each of `rows`: `whole`, `layers` (all their matrices),
`output`, `others` (the pass without products); `near` is like `layers`, but each matrix is met
thirty times before the next one, so that it comes from the cache; `apart` meets each matrix with
one row after the other, and ends at 8 rows. `bytes` and `flops` of one row are those of `layers`
and `output`. `single` are parts of the pass of one token that `others` holds together: attention
with its cache and rotation, norms, activations; and the products of the layers as `mv`, a product
of a matrix and a vector by its own routine. `machine_flops` is the best of several large products,
`reading` and `copying` are the bytes a second of summing up, and of copying, half a gigabyte.
`wide` has the same two lists for matrices of 4,096 × 4,096 numbers, 8 of them, 537 MB. `routine`
is what the library of PyTorch calls for one row and for two, where it tells.

Explained in: chapters/06_complexity, section "Two ceilings".
"""

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import thread_time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook import costs, pretrained

__all__ = ["SMOKE", "run"]

SEEN = 20
LONGEST, FEWEST = 9.0, 3  # seconds for the rounds of a pass, and how many there are at least
SMOKE = {"rows": (1, 2), "rounds": 1, "wide_rows": (1,), "wide_width": 64, "measuring": 0.05}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters in float32",
    "data": "{rows_first} to {rows_last} tokens a pass, after {SEEN} that it has read",
    "steps": "nothing is trained; medians of up to {rounds} passes",
    "batch": "",
    "rate": "",
}
ASKED = """
import torch, torch.nn.functional as F
torch.set_num_threads(1)
for rows in (1, 2):
    F.linear(torch.randn(1, rows, 576), torch.randn(1536, 576))
"""


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
    begun = thread_time()
    action()
    return thread_time() - begun


def medians(pieces: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Run all pieces in turn, once to warm up and then `rounds` times; return their medians.

    Where that would take longer than `LONGEST` seconds, there are fewer rounds.
    """
    for action in pieces.values():
        action()
    seconds, begun = {name: [] for name in pieces}, thread_time()
    for done in range(rounds):
        if done >= FEWEST and thread_time() - begun > LONGEST:
            break
        for name, action in pieces.items():
            seconds[name].append(timed(action))
    return {name: round(statistics.median(times), 6) for name, times in seconds.items()}


def each(calls: Sequence[tuple[Tensor, Tensor]], times: int = 1) -> Callable[[], None]:
    """Make the replay of products: each so many times before the next one."""

    def replay() -> None:
        for x, weight in calls:
            for _ in range(times):
                F.linear(x, weight)

    return replay


def by_vectors(calls: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """Make a replay in which each matrix meets one row after the other, as a vector."""
    split = [(list(x.flatten(0, -2)), weight) for x, weight in calls]

    def replay() -> None:
        for vectors, weight in split:
            for vector in vectors:
                torch.mv(weight, vector)

    return replay


def pass_of(model: nn.Module, state: object, count: int, rounds: int) -> dict[str, float]:
    """Return the medians of a pass over so many tokens and of its parts."""
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
        "near": each(layers[: len(layers) // len(model.stack.blocks)], 30),
    }
    if count <= 8:
        pieces["apart"] = by_vectors(layers)
    return medians(pieces, rounds)


def single_parts(model: nn.Module, state: object, rounds: int) -> dict[str, float]:
    """Return what parts of the pass of one token take, without products; and products by `mv`."""
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

    pieces = {
        "attention": attention, "norms": norms, "activations": networks,
        "mv": by_vectors(calls[:-1]),
    }  # fmt: skip
    return medians(pieces, rounds)


def wide_matrices(rows: Sequence[int], width: int, rounds: int) -> dict[str, list]:
    """Return the medians of products with large square matrices, fetched from memory."""
    matrices, found = [torch.randn(width, width) for _ in range(8)], []
    for count in rows:
        x = torch.randn(count, width)
        calls = [(x, weight) for weight in matrices]
        found.append(medians({"layers": each(calls)}, rounds)["layers"])
    return {"width": width, "matrices": len(matrices), "rows": list(rows), "layers": found}


def routines() -> list[str]:
    """Ask the library for the name and the sizes of what it runs for one row and for two."""
    said = subprocess.run(
        [sys.executable, "-c", ASKED, "one_pass"], env=os.environ | {"MKL_VERBOSE": "1"},
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    return re.findall(r"MKL_VERBOSE (\w+\(\w+,\w+,\d+,\d+,\d+)", said)


@torch.no_grad()
def run(
    *,
    rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    rounds: int = 21,
    wide_rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
    wide_width: int = 4096,
    measuring: float = 3.0,
) -> tuple[dict, None]:
    """Time passes of so many tokens and their parts.

    Args:
        rows: tokens of a pass.
        rounds: of which the median is taken.
        wide_rows: for the large square matrices.
        wide_width: of these.
        measuring: seconds for the two numbers of the machine.
    """
    model = pretrained.load("smollm2-135m").model
    _, state = model.decode(torch.arange(SEEN)[None])
    machine = costs.measure_machine(threads=1, seconds=measuring)
    array = torch.ones(2**27)
    half = array[: 2**26]
    streams = medians(
        {"reading": array.sum, "copying": lambda: array[2**26 :].copy_(half)}, max(rounds // 2, 1)
    )
    calls = recorded(lambda: model.decode(torch.zeros(1, 1, dtype=torch.long), state))
    weights = {"layers": [w for _, w in calls[:-1]], "output": [w for _, w in calls[-1:]]}
    single = single_parts(model, state, rounds)
    found = [pass_of(model, state, count, rounds) for count in rows]
    names = ("whole", "layers", "output", "others", "near")
    return {
        "settings": {"rounds": rounds, "seen": SEEN}, "rows": list(rows),
        **{name: [one[name] for one in found] for name in names},
        "apart": [one["apart"] for one in found if "apart" in one],
        "single": single,
        "bytes": {name: sum(w.nbytes for w in group) for name, group in weights.items()},
        "flops": {name: sum(2 * w.numel() for w in group) for name, group in weights.items()},
        "machine_flops": machine.flops,
        "reading": array.nbytes / streams["reading"],
        "copying": array.nbytes / streams["copying"],
        "wide": wide_matrices(wide_rows, wide_width, max(rounds // 5, 1)),
        "routine": routines(),
    }, None  # fmt: skip
