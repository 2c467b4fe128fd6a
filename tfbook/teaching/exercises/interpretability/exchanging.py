"""The exercise of chapter 10 on exchanging activations: a grid over layers and tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, numbers

Layer = Callable[[torch.Tensor], torch.Tensor]


def patching_grid(
    layers: list[Callable[[torch.Tensor], torch.Tensor]],
    read: Callable[[torch.Tensor], float],
    clean: torch.Tensor,
    corrupted: torch.Tensor,
) -> torch.Tensor:
    """Exchange one row of the stream at a time, and see how much of the clean answer comes back.

    A model is a list of layers, each of which takes the stream and returns the next one. For layer
    l and row i, run the corrupted prompt, but let row i of what *enters* layer l be that of the
    clean run. The share is (patched − corrupted) / (clean − corrupted), in numbers of `read`.

    layers: L functions from (n, d) to (n, d). read: from the last stream to a number.
    clean: (n, d), what enters the first layer in one run; corrupted: (n, d), in the other.
    Returns: (L, n), the shares.
    """
    ...


def _mixing(n: int, d: int, seed: int) -> Layer:
    """Return a layer that adds to each row what it takes from those before it."""
    take, change = numbers(n, n, seed=seed).tril(), numbers(d, d, seed=seed + 1) / d

    def layer(x: torch.Tensor) -> torch.Tensor:
        return x + (take @ x @ change).tanh()

    return layer


def _grid(
    layers: Sequence[Layer], read: Any, clean: torch.Tensor, corrupted: torch.Tensor, slip: str = ""
) -> torch.Tensor:
    goods, bads = [clean], [corrupted]
    for layer in layers:
        goods.append(layer(goods[-1]))
        bads.append(layer(bads[-1]))
    good, bad = read(goods[-1]), read(bads[-1])
    if slip == "turned":
        goods, bads = bads, goods
    found = torch.zeros(len(layers), len(clean), dtype=clean.dtype)
    for i in range(len(layers)):
        kept = bads[i].clone()
        for row in range(len(clean)):
            x = kept if slip == "stays" else bads[i].clone()
            at = i + 1 if slip == "behind" else i
            if slip == "behind":
                x = bads[at].clone()
            x[row] = goods[at][row]
            if slip == "embedding":
                x[row] = goods[0][row]
            for layer in layers[at:]:
                x = layer(x)
            patched = read(x)
            found[i, row] = {
                "bare": patched - bad,
                "whole": (patched - bad) / good,
                "missing": (good - patched) / (good - bad),
            }.get(slip, (patched - bad) / (good - bad))
    return found


_SLIPS = {
    "turned": "Clean and corrupted are exchanged: the clean run got a corrupted row. Here the "
              "corrupted run gets a clean one.",
    "stays": "A row that was patched stays patched for the next one. Start each run from a "
             "fresh copy.",
    "behind": "The row was patched after layer l, not in what enters it.",
    "embedding": "The row was taken from what enters the first layer. It should be the clean run's "
                 "stream of the same depth.",
    "bare": "The difference is not divided: 1 should mean that all of the clean answer came back.",
    "whole": "Divide by what there is to bring back: clean − corrupted.",
    "missing": "This is the share that is missing still. It should be 0 where nothing comes back.",
}  # fmt: skip


def _grid_check(make: Any, n_layers: int, n: int, d: int, seed: int) -> None:
    layers = [_mixing(n, d, seed + 10 * i) for i in range(n_layers)]
    weights = numbers(d, seed=seed + 5)
    clean, corrupted = numbers(n, d, seed=seed + 6), numbers(n, d, seed=seed + 6)
    corrupted[:2] = numbers(2, d, seed=seed + 7)

    def read(x: torch.Tensor) -> float:
        return float(x[-1] @ weights)

    wanted = _grid(layers, read, clean, corrupted)
    slips = {words: _grid(layers, read, clean, corrupted, slip) for slip, words in _SLIPS.items()}
    mistakes = {words: x for words, x in slips.items() if not torch.allclose(x, wanted)}
    expect(
        make(layers, read, clean.clone(), corrupted.clone()), wanted,
        "Run the corrupted prompt once for each layer and row.", mistakes=mistakes,
        given={"clean": clean, "corrupted": corrupted},
    )  # fmt: skip


def _grid_one(make: Any) -> None:
    """One layer."""
    _grid_check(make, 1, 3, 2, 1071)


def _grid_deep(make: Any) -> None:
    """Several layers, each with the clean row of its own depth."""
    _grid_check(make, 3, 4, 3, 1171)


PATCHING_GRID = Exercise(
    name="patching-grid",
    title="A patching grid",
    level=3,
    section='chapters/10_interpretability, section "Activation patching"',
    stub=patching_grid,
    properties=(_grid_one, _grid_deep),
    hints=(
        "Run both prompts once and keep what enters each layer. Which number does `read` give for "
        "each?",
        "For one cell: copy the corrupted stream that enters layer l, patch one row of the "
        "copy, and run the layers that are left.",
        "Two loops, over layers and rows; inside, a third one, `for layer in layers[l:]`. The last "
        "step brings each number to a share.",
    ),
)

EXERCISES = (PATCHING_GRID,)
