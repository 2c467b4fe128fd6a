"""The exercises of chapter 17 on sharing: a network on many devices, and slots in a batch."""

from typing import Any

import torch
import torch.nn.functional as F

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_tensor, numbers

# split-network ----------------------------------------------------------------------------------


def split_network(
    w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor, p: int
) -> list:
    """Cut y = w2 · gelu(w1 x + b1) + b2 for p devices.

    w1: (d_ff, d). b1: (d_ff,). w2: (d, d_ff). b2: (d,). p: divides d_ff.
    Returns: a list of p functions, each of rows x (n, d), whose results
    (n, d) add up to y. None may hold more than its share of w1 and w2.
    """
    ...


def _network(d: int, d_ff: int, seed: int) -> tuple[torch.Tensor, ...]:
    shapes = ((d_ff, d), (d_ff,), (d, d_ff), (d,))
    return tuple(numbers(*shape, seed=seed + i) for i, shape in enumerate(shapes))


def _whole(x: torch.Tensor, w1: Any, b1: Any, w2: Any, b2: Any) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def _parts(split: Any, network: tuple[torch.Tensor, ...], p: int) -> list:
    parts = split(*network, p)
    if not isinstance(parts, list | tuple) or len(parts) != p or not all(map(callable, parts)):
        raise Wrong(f"Return a list of {p} functions.", got=parts)
    return list(parts)


def _sum(parts: list, x: torch.Tensor) -> torch.Tensor:
    results = [part(x) for part in parts]
    for result in results:
        expect_tensor(result, tuple(x.shape), x.dtype, what="What a device computes")
    return torch.stack(results).sum(0)


def _split_sum(split: Any) -> None:
    """The results of all devices add up to the whole network."""
    network, x = _network(3, 8, 31), numbers(5, 3, seed=35)
    w1, b1, w2, b2 = network
    y, p = _whole(x, *network), 4
    inner = F.linear(x, w1, b1)
    strided = torch.stack([
        F.linear(F.gelu(inner[:, 2 * r : 2 * r + 2]), w2[:, r::p]) for r in range(p)
    ]).sum(0)  # fmt: skip
    expect(_sum(_parts(split, network, p), x), y, "Give each device some rows of w1, the same "
           "numbers of b1, and the same columns of w2.", mistakes={
        "The last bias is added by every device, so the sum has it p times.": y + (p - 1) * b2,
        "The last bias is missing: one of the devices has to add it.": y - b2,
        "The first bias is missing.": _whole(x, w1, torch.zeros_like(b1), w2, b2),
        "The rows of w1 and the columns of w2 of a device do not belong together.": strided + b2,
        "There is no gelu between the products.": F.linear(inner, w2, b2),
    }, what="The sum of the results")  # fmt: skip


def _split_alone(split: Any) -> None:
    """Each device uses its own share of the inner layer and no other."""
    network, x = _network(3, 6, 41), numbers(4, 3, seed=45)
    w1, b1, w2, b2 = network
    before = [part(x) for part in _parts(split, network, 3)]
    changed = w2.clone()
    changed[:, 0] += 1  # what only one device has
    after = [part(x) for part in _parts(split, (w1, b1, changed, b2), 3)]
    touched = sum(not torch.allclose(a, b) for a, b in zip(before, after, strict=True))
    if touched != 1:
        raise Wrong("One column of w2 was changed, which belongs to one of three devices. The "
                    f"results of {touched} devices changed.", got=touched, wanted=1)  # fmt: skip


def _split_share(split: Any) -> None:
    """With as many devices as inner numbers, each computes one of them."""
    network, x = _network(2, 4, 51), numbers(3, 2, seed=55)
    for p in (1, 2, 4):
        expect(_sum(_parts(split, network, p), x), _whole(x, *network),
               f"For p = {p} the results do not add up to the network.")  # fmt: skip


SPLIT_NETWORK = Exercise(
    name="split-network",
    title="Two halves of a network",
    level=2,
    section='chapters/17_hardware, section "Many devices"',
    stub=split_network,
    properties=(_split_sum, _split_alone, _split_share),
    hints=(
        "A number of the inner layer needs one row of w1 and one number of b1. Which part of w2 "
        "does it meet afterwards?",
        "`w1.chunk(p)` cuts rows. Along which dimension has w2 to be cut, so that the pieces fit?",
        "`b2` belongs to the sum, not to a part. How can p functions add it once? And beware: a "
        "function made in a loop sees the loop's last value, unless it gets its own.",
    ),
)

# continuous-ends --------------------------------------------------------------------------------


def continuous_ends(lengths: list[int], slots: int) -> list[int]:
    """Say in which step each request gets its last token.

    lengths: how many tokens each request wants, in the order of their
    arrival, all before step 1.
    slots: how many can run at once. In each step everyone who runs gets one
    token. Who gets the last one leaves, and in the next step the first who
    waits has the slot.
    Returns: a list of steps, counted from 1, in the order of arrival.
    """
    ...


def _ends(lengths: list[int], slots: int, *, order: str = "first", late: int = 0) -> list[int]:
    waiting, running, ends = list(range(len(lengths))), {}, [0] * len(lengths)
    if order == "shortest":
        waiting.sort(key=lambda i: lengths[i])
    elif order == "last":
        waiting.reverse()
    step = 0
    while waiting or running:
        step += 1
        while waiting and len(running) < slots:
            number = waiting.pop(0)
            running[number] = lengths[number] + late * (step > 1)
        for number in list(running):
            running[number] -= 1
            if not running[number]:
                ends[number] = step
                del running[number]
    return ends


def _static(lengths: list[int], slots: int, *, all_end: bool = False) -> list[int]:
    ends, begun = [], 0
    for start in range(0, len(lengths), slots):
        some = lengths[start : start + slots]
        ends += [begun + (max(some) if all_end else length) for length in some]
        begun += max(some)
    return ends


def _ends_tensor(schedule: Any, lengths: list[int], slots: int) -> torch.Tensor:
    got = schedule(list(lengths), slots)
    if not isinstance(got, list | tuple) or len(got) != len(lengths):
        raise Wrong("Return one step for each request.", got=got)
    return torch.tensor([float(each) for each in got])


def _ends_refilled(schedule: Any) -> None:
    """A slot that becomes free is taken in the next step."""
    lengths, slots = [3, 6, 2, 4, 1, 5], 2
    wanted = torch.tensor(_ends(lengths, slots), dtype=torch.float32)

    def floats(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    expect(_ends_tensor(schedule, lengths, slots), wanted, "Follow the two slots step by step.",
           mistakes={
        "The next requests begin only when all of a batch have ended: that is a batch that is "
        "filled once.": (floats(_static(lengths, slots)),
                         floats(_static(lengths, slots, all_end=True))),
        "The steps are counted from 0. The first token comes in step 1.": wanted - 1,
        "One step too late after the first: the slot is free in the step after the last token, "
        "not one step later.": floats(_ends(lengths, slots, late=1)),
        "The shortest request is taken first. Whoever came first is.":
            floats(_ends(lengths, slots, order="shortest")),
        "The last that came is taken first.": floats(_ends(lengths, slots, order="last")),
        "All requests run at once here: there are only two slots.": floats(lengths),
        "They run one after another here: there are two slots.":
            floats(_ends(lengths, 1)),
    }, what="The list of steps")  # fmt: skip


def _ends_room(schedule: Any) -> None:
    """With a slot for everyone, a request ends after as many steps as it has tokens."""
    lengths = [4, 1, 7]
    for slots in (3, 8):
        expect(_ends_tensor(schedule, lengths, slots), torch.tensor([4.0, 1.0, 7.0]),
               f"Nobody has to wait among {slots} slots.", what="The list of steps")  # fmt: skip


def _ends_one(schedule: Any) -> None:
    """With one slot, the steps add up."""
    expect(_ends_tensor(schedule, [2, 3, 1], 1), torch.tensor([2.0, 5.0, 6.0]),
           "One after another.", what="The list of steps")  # fmt: skip


CONTINUOUS_ENDS = Exercise(
    name="continuous-ends",
    title="Who ends when",
    level=2,
    section='chapters/17_hardware, section "Serving many"',
    stub=continuous_ends,
    properties=(_ends_refilled, _ends_room, _ends_one),
    hints=(
        "You need not go step by step. What does the next request have to know about each slot?",
        "Keep one number a slot: after which step it is free. At the beginning that is 0.",
        "The next request takes the smallest of these numbers, `min(free)`. What becomes of it?",
    ),
)

EXERCISES = (SPLIT_NETWORK, CONTINUOUS_ENDS)
