"""The exercises of chapter 10 on patching: a grid over layers and tokens, and a single path."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_plain, numbers

Layer = Callable[[torch.Tensor], torch.Tensor]


def patching_grid(
    layers: list[Callable[[torch.Tensor], torch.Tensor]],
    read: Callable[[torch.Tensor], float],
    clean: torch.Tensor,
    corrupted: torch.Tensor,
) -> torch.Tensor:
    """Patch the vector of one token in what enters a layer, and see which share comes back.

    A model is a list of layers, each of which takes the stream and returns the next one. For layer
    l and token i, run the corrupted prompt, but let the vector of token i in what *enters* layer l
    be that of the clean run. The share is (patched − corrupted) / (clean − corrupted), in numbers
    of `read`.

    layers: L functions from (n, d) to (n, d). read: from the last stream to a number.
    clean: (n, d), what enters the first layer in one run; corrupted: (n, d), in the other.
    Returns: (L, n), the shares.
    """
    goods, bads = [clean], [corrupted]
    for layer in layers:
        goods.append(layer(goods[-1]))
        bads.append(layer(bads[-1]))
    best, worst = read(goods[-1]), read(bads[-1])
    shares = torch.zeros(len(layers), len(clean), dtype=clean.dtype)
    for i in range(len(layers)):
        x = bads[i].clone()
        for token in range(len(clean)):
            x[token] = clean[token]
            end = x
            for layer in layers[i:]:
                end = layer(end)
            shares[i, token] = (read(end) - worst) / (best - worst)
    return shares


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
            x = kept if slip in ("stays", "both") else bads[i].clone()
            at = i + 1 if slip == "behind" else i
            if slip == "behind":
                x = bads[at].clone()
            x[row] = goods[at][row]
            if slip in ("embedding", "both"):
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
    "both": "Nothing is mended yet. Take two layers by hand: which vector may differ from the "
            "corrupted run in each cell, and from which depth of the clean run is it?",
    "turned": "Clean and corrupted are exchanged: the clean run got a corrupted row. Here the "
              "corrupted run gets a clean one.",
    "stays": "A token that was patched stays patched for the next one. Start each run from a "
             "fresh copy.",
    "behind": "The vector was patched after layer l, not in what enters it.",
    "embedding": "The vector was taken from what enters the first layer. It should be from the "
                 "clean run's stream of the same depth.",
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
    if n_layers == 1:  # where all depths are one, both faults look like the first
        mistakes.pop(_SLIPS["both"])
    expect(
        make(layers, read, clean.clone(), corrupted.clone()), wanted,
        "Run the corrupted prompt once for each layer and token.", mistakes=mistakes,
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
    title="A patching grid with two faults",
    level=3,
    section='chapters/10_interpretability, section "Activation patching"',
    stub=patching_grid,
    properties=(_grid_one, _grid_deep),
    hints=(
        "Patch a token in which the two prompts agree: its share before the first layer has to be "
        "0. Is it, for every such token?",
        "One fault is in when the corrupted stream is copied. The other is in which clean vector "
        "goes in: at layer 3 it has to be what the clean run had at layer 3.",
        "Copy `bads[i]` once for each cell, inside the inner loop, and take the vector from "
        "`goods[i]`.",
    ),
    broken=True,
    task="Find both faults in `patching_grid` and mend them",
)

# lost-on-path -----------------------------------------------------------------------------------

Part = Callable[[torch.Tensor], torch.Tensor]


def lost_on_path(
    parts: list[Callable[[torch.Tensor], torch.Tensor]],
    read: Callable[[torch.Tensor], float],
    clean: torch.Tensor,
    corrupted: torch.Tensor,
    sender: int,
    receiver: int,
) -> float:
    """Let one part alone use what another one gives in the corrupted run; see what is lost.

    A model is a list of parts. Each takes the stream and returns what it adds to it. In the clean
    run, the receiver gets a stream in which the sender has added what it adds in the corrupted run
    and all other parts what they add in the clean one. What the receiver then adds goes into the
    clean run in the place of its own output, and the parts after it run on from there. Lost is
    (clean − patched) / (clean − corrupted), in numbers of `read`.

    parts: functions from (d,) to (d,), the first one first. read: from the last stream to a number.
    clean: (d,), what enters the first part in one run; corrupted: (d,), in the other.
    sender: the index of a part; receiver: that of a later one.
    Returns: a float, the share that is lost by this path.
    """
    ...


def _adding(d: int, seed: int) -> Part:
    """Return a part that adds something to the stream which no line can make of it."""
    into, out = numbers(d, d, seed=seed), numbers(d, d, seed=seed + 1)

    def part(x: torch.Tensor) -> torch.Tensor:
        return (x @ into).tanh() @ out / 2

    return part


def _run(parts: Sequence[Part], x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    added = []
    for part in parts:
        added.append(part(x))
        x = x + added[-1]
    return added, x


def _path(
    parts: Sequence[Part], read: Any, clean: torch.Tensor, corrupted: torch.Tensor,
    sender: int, receiver: int, slip: str = "",
) -> float:  # fmt: skip
    if slip == "turned":
        clean, corrupted = corrupted, clean
    (good, end), (bad, other) = _run(parts, clean), _run(parts, corrupted)
    heard, x = clean, clean
    for k in range(receiver):
        given = bad[k] if k == sender else parts[k](heard) if slip == "between" else good[k]
        heard = heard + given
        x = x + (given if slip == "stays" else good[k])
    x = x + parts[receiver](heard)
    for k in range(receiver + 1, len(parts)):
        x = x + (good[k] if slip == "frozen" else parts[k](x))
    if slip == "all":
        x = clean
        for k, part in enumerate(parts):
            x = x + (bad[k] if k == sender else part(x))
    lost, gap = read(end) - read(x), read(end) - read(other)
    return {"bare": lost, "whole": lost / read(end), "left": 1 - lost / gap}.get(slip, lost / gap)


_PATHS = {
    "all": "All parts after the sender used what it gave. Here only the receiver may.",
    "between": "The parts between sender and receiver have reacted, and passed it on. Hold them at "
               "what they add in the clean run.",
    "stays": "What the sender gave in the corrupted run has stayed in the stream for the later "
             "parts. In the last run only the output of the receiver differs.",
    "frozen": "The parts after the receiver were held, too. They run on, from a stream that holds "
              "the receiver's new output.",
    "turned": "Clean and corrupted are exchanged: one corrupted output goes into the clean run.",
    "bare": "The difference is not divided: 1 should mean that all of the clean answer is lost.",
    "whole": "Divide by what there is to lose: clean − corrupted.",
    "left": "This is the share that is left. It should be 0 where the path carries nothing.",
}  # fmt: skip


def _path_check(make: Any, n_parts: int, sender: int, receiver: int, seed: int) -> None:
    d = 3
    parts = [_adding(d, seed + 10 * k) for k in range(n_parts)]
    weights = numbers(d, seed=seed + 5)
    clean, corrupted = numbers(d, seed=seed + 6), numbers(d, seed=seed + 7)

    def read(x: torch.Tensor) -> float:
        return float(x @ weights)

    def asked(clean: torch.Tensor, corrupted: torch.Tensor) -> float:
        return make(parts, read, clean.clone(), corrupted.clone(), sender, receiver)

    case = (parts, read, clean, corrupted, sender, receiver)
    wanted = _path(*case)
    slips = {words: _path(*case, slip) for slip, words in _PATHS.items()}
    mistakes = {words: x for words, x in slips.items() if abs(x - wanted) > 1e-6}
    expect_plain(
        asked, {"clean": clean, "corrupted": corrupted}, wanted,
        "Write down what each part adds in the three runs.", mistakes=mistakes,
    )  # fmt: skip


def _path_held(make: Any) -> None:
    """A part between the two, which is held."""
    _path_check(make, 3, 0, 2, 1271)


def _path_later(make: Any) -> None:
    """Parts before, between and after the two."""
    _path_check(make, 5, 1, 3, 1371)


LOST_ON_PATH = Exercise(
    name="lost-on-path",
    title="Path patching",
    level=3,
    section='chapters/10_interpretability, section "Who informs whom"',
    stub=lost_on_path,
    properties=(_path_held, _path_later),
    hints=(
        "Run both prompts once, and keep what each part adds. Which of these outputs make up the "
        "stream that the receiver gets?",
        "The receiver gets clean + the clean outputs before it, only that the sender's is its "
        "corrupted one. Nothing between the two is computed anew.",
        "The last run begins with `clean + sum(good[:receiver])`, all clean outputs before the "
        "receiver. Add what it gives now, and let each later part compute its own.",
    ),
    task="Fill in `lost_on_path_of`",
)

EXERCISES = (PATCHING_GRID, LOST_ON_PATH)
