"""The checks of the project on generation: one token at a time, chances, a penalty."""

import math
from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_plain, numbers

WHERE = "chapters/project_generation"

# project-loop -----------------------------------------------------------------------------------


def continue_ids(
    read: Callable, prompt: list[int], n: int, choose: Callable, stop: int | None
) -> list[int]:
    """Continue ids one at a time: read all there are, choose one, put it behind them.

    Ends after n new ids, or after the first new id that is `stop`, which is kept.

    read: from a list of ids to the logits of the next one, (V,). prompt: ids, a list; it stays
    as it is. n: how many to add at most. choose: from logits (V,) to an id. stop: an id, or None.
    Returns: the new ids, a list.
    """
    ...


class _Reader:
    """A model whose next id depends on each id so far and on its place."""

    def __init__(self, v: int) -> None:
        self.v = v

    def __call__(self, ids: list[int]) -> torch.Tensor:
        place = sum((i + 1) * (int(token) + 1) for i, token in enumerate(ids))
        return -((torch.arange(self.v) - place % self.v) % self.v).float()

    def __deepcopy__(self, memo: dict) -> Any:
        return self

    def __repr__(self) -> str:
        return "a model for this test"


class _Second:
    """Choose the second most likely id, so that a loop with a choice of its own is noticed."""

    def __call__(self, logits: torch.Tensor) -> int:
        return int(logits.argsort()[-2])

    def __deepcopy__(self, memo: dict) -> Any:
        return self

    def __repr__(self) -> str:
        return "the second most likely id"


def _continued(
    read: Any, prompt: list[int], n: int, choose: Any, stop: int | None, *, view: Any = None
) -> list[int]:
    new: list[int] = []
    while len(new) < n and (not new or new[-1] != stop):
        seen = [*prompt, *new] if view is None else view(list(prompt), new)
        new.append(choose(read(seen)))
    return new


def _loop_values(loop: Any) -> None:
    """Each new id is chosen behind all ids so far."""
    given = {"read": _Reader(11), "prompt": [3, 1, 4], "n": 6, "choose": _Second(), "stop": None}
    right = _continued(*given.values())
    longer = _continued(*{**given, "n": 7}.values())
    expect_plain(
        loop, given, right,
        "Each new id is `choose(read(ids))`, with the prompt and all new ids so far.",
        mistakes={
            "The prompt is in the result, too. Return the new ids alone.": [3, 1, 4, *right],
            "Only the last id was read: what stood before it is forgotten.":
                _continued(*given.values(), view=lambda prompt, new: [*prompt, *new][-1:]),
            "The new ids were never read: each time the prompt alone was.":
                _continued(*given.values(), view=lambda prompt, new: prompt),
            "The prompt was read once and then forgotten: later only the new ids were read.":
                _continued(*given.values(), view=lambda prompt, new: new or prompt),
            "The new ids stand before the prompt. Put each behind what there is.":
                _continued(*given.values(), view=lambda prompt, new: [*new, *prompt]),
            "One id is missing: n new ones are wanted.": right[:-1],
            "That is one id too many: n new ones are wanted.": longer,
            "The most likely id was taken. Which one is taken is for `choose` to say.":
                _continued(*{**given, "choose": lambda row: int(row.argmax())}.values()),
        },
    )


def _loop_stop(loop: Any) -> None:
    """The text ends behind the stop."""
    given = {"read": _Reader(11), "prompt": [9, 2, 5], "n": 6, "choose": _Second()}
    free = _continued(*given.values(), None)
    stop = free[2]
    expect_plain(
        loop, {**given, "stop": stop}, free[:3],
        f"The text ends with the id {stop}.",
        mistakes={
            "The text goes on behind the stop.": free,
            "The stop is missing: it is the last id that is kept.": free[:2],
            "One more id was made behind the stop.": free[:4],
        },
    )


def _loop_stop_in_prompt(loop: Any) -> None:
    """A stop in the prompt ends nothing."""
    given = {"read": _Reader(11), "prompt": [3, 1, 4], "n": 4, "choose": _Second(), "stop": 1}
    right = _continued(*given.values())
    expect_plain(
        loop, given, right, "The result differs where the prompt holds the stop.",
        mistakes={
            "The prompt holds the stop, and the loop ended there. Only a new id can end it.": [],
            "The prompt holds the stop, and the loop ended behind one id. Only a new id that is "
            "the stop ends it.": right[:1],
        },
    )


def _loop_none(loop: Any) -> None:
    """With n = 0 nothing is added."""
    for n in (0, 1):
        given = {"read": _Reader(5), "prompt": [2], "n": n, "choose": _Second(), "stop": None}
        expect_plain(loop, given, _continued(*given.values()), f"With n = {n} that is too many.")


LOOP = Exercise(
    name="project-loop",
    title="Read, choose, append",
    level=1,
    section=f'{WHERE}, section "Step 1: one character at a time"',
    stub=continue_ids,
    properties=(_loop_values, _loop_stop, _loop_stop_in_prompt, _loop_none),
    hints=(
        "Keep the new ids in a list of their own; what is read is `prompt + new`.",
        "The loop runs n times at most. After each new id, ask whether it is the stop.",
        "`new = []`; `for _ in range(n)`: `new.append(choose(read(prompt + new)))`; "
        "`if new[-1] == stop: break`; `return new`.",
    ),
)

# project-chances --------------------------------------------------------------------------------


def chances(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Turn logits into the probabilities that the next token is drawn with.

    First the temperature: softmax(logits / T). Then the k most likely tokens stay. Then, with
    what is left made to sum to 1 again, a token stays if those more likely than it sum to less
    than p. What stays is made to sum to 1; the others get probability 0.

    logits: (V,), without ties. temperature: T. top_k: k, may be larger than V. top_p: p, at most 1.
    Returns: (V,), in the order of the logits.
    """
    ...


def _chances(
    logits: torch.Tensor, temperature: float, k: int, p: float, *, order: str = "tkp",
    strict: bool = False, last: bool = True,
) -> torch.Tensor:
    """Do the steps of `order`; the options are the slips that the check knows."""
    odds = logits.double().exp()
    for step in order:
        ranked = odds.argsort(descending=True)
        sums = odds[ranked].cumsum(0) / odds.sum()
        if step == "t":
            odds = odds ** (1 / temperature)
        elif step == "k":
            odds = odds.clone()
            odds[ranked[k:]] = 0.0
        else:
            before = sums if strict else torch.cat([torch.zeros(1).double(), sums[:-1]])
            odds = odds.clone()
            odds[ranked[(before > p) if strict else (before >= p)]] = 0.0
    whole = (logits.double() / temperature).exp().sum() if not last else odds.sum()
    return (odds / whole).to(logits.dtype)


def _chances_values(chances: Any) -> None:
    """Temperature, then the k most likely, then the nucleus of these."""
    logits = torch.tensor([-0.7, -0.2, 3.5, 0.9, 0.5, -1.3, 0.7, 1.3], dtype=torch.float64)
    t, k, p = 2.0, 6, 0.8
    right = _chances(logits, t, k, p)
    rolled = right.clone()
    rolled[logits.argmax()] = 0.0
    expect(
        chances(logits, t, k, p), right,
        "In order: divide by T and take the softmax, keep k, divide by the sum, keep the nucleus, "
        "divide by the sum.",
        tolerance=1e-5,
        mistakes={
            "The logits were multiplied by T. Divide: above 1, T makes chances more alike.":
                _chances(logits, 1 / t, k, p),
            "The temperature is missing.": _chances(logits, t, k, p, order="kp"),
            "The temperature came last. It changes which tokens belong to the nucleus, so it "
            "comes first.": _chances(logits, t, k, p, order="kpt"),
            "The token that crosses p was cut. It stays, as those before it sum to less than p.":
                _chances(logits, t, k, p, strict=True),
            "The most likely token was cut: the mask was moved by `roll`, which goes around, so "
            "that what left at the end came in at the front. The first token always stays.":
                rolled / rolled.sum(),
            "What stays does not sum to 1. Divide by the sum at the end.":
                (_chances(logits, t, k, p, last=False),
                 right * _chances(logits, t, k, 1.0)[right > 0].sum()),
            "These are logarithms. Return probabilities.": right.log(),
            "The probabilities come back sorted, so they belong to other tokens.":
                right.sort(descending=True).values,
            "The cut to k tokens had no effect on the nucleus: it is missing, or came behind it, "
            "or what k left was not made to sum to 1. First k, then the sum, then p.":
                _chances(logits, t, k, p, order="tpk"),
            "The nucleus is missing.": _chances(logits, t, k, p, order="tk"),
        },
    )


def _chances_all(chances: Any) -> None:
    """With T = 1, k = V and p = 1 it is the softmax; a larger k changes nothing."""
    logits = numbers(6, seed=681)
    for k in (6, 50):
        expect(
            chances(logits, 1.0, k, 1.0), logits.softmax(-1),
            f"With T = 1, k = {k} and p = 1, six tokens have the chances of their softmax.",
            tolerance=1e-5,
        )


def _chances_one(chances: Any) -> None:
    """The most likely token always stays."""
    logits = torch.tensor([-1.2, -0.6, 0.8, -0.1, 0.3, 1.1]).double()
    for k, p in ((1, 1.0), (6, 0.01)):
        expect(
            chances(logits, 0.7, k, p),
            torch.nn.functional.one_hot(logits.argmax(), 6).double(),
            f"With k = {k} and p = {p} the most likely token alone stays.", tolerance=1e-5,
        )


def _chances_sizes(chances: Any) -> None:
    """Vocabularies of any size, as float32, and logits that are large."""
    generator = torch.Generator("cpu").manual_seed(685)
    for v, t, k, p in ((2, 0.5, 2, 0.9), (13, 1.3, 7, 0.6), (63, 0.8, 20, 0.95)):
        logits = 3 * torch.randn(v, generator=generator)
        expect(chances(logits, t, k, p), _chances(logits, t, k, p),
               f"With {v} tokens, T = {t}, k = {k} and p = {p} a chance differs.", tolerance=1e-4)
    logits = torch.tensor([300.0, 299.0, 1.0])
    expect(
        chances(logits, 1.0, 3, 1.0), logits.softmax(-1),
        "Logits of 300 overflow in `exp`. `softmax` subtracts the largest first.", tolerance=1e-5,
    )


CHANCES = Exercise(
    name="project-chances",
    title="From logits to chances",
    level=3,
    section=f'{WHERE}, section "Step 2: from logits to chances"',
    stub=chances,
    properties=(_chances_values, _chances_all, _chances_one, _chances_sizes),
    hints=(
        "Sort the probabilities once, in falling order; both cuts are then cuts of the tail.",
        "`kept, ids = (logits / temperature).softmax(-1).sort(descending=True)`; behind the first "
        "k set `kept` to 0 and divide by its sum. `kept.cumsum(0) - kept` is what stands before.",
        "`kept[top_k:] = 0`; `kept = kept / kept.sum()`; "
        "`kept = kept * (kept.cumsum(0) - kept < top_p)`; "
        "`torch.zeros_like(kept).scatter(0, ids, kept / kept.sum())`.",
    ),
)

# project-penalty --------------------------------------------------------------------------------


def penalised(logits: torch.Tensor, ids: list[int], penalty: float) -> torch.Tensor:
    """Make tokens that have occurred less likely.

    Of each token in ids, once and however often it occurred, the logit is divided by the penalty
    if it is positive, and multiplied by it if it is negative. The other logits stay.

    logits: (V,); they stay as they are. ids: what has occurred, a list. penalty: above 1.
    Returns: (V,).
    """
    ...


def _penalised(logits: torch.Tensor, ids: list[int], penalty: float) -> torch.Tensor:
    new = logits.clone()
    for i in set(ids):
        new[i] = logits[i] / penalty if logits[i] > 0 else logits[i] * penalty
    return new


def _penalty_values(penalised: Any) -> None:
    """Positive logits are divided, negative ones multiplied, of tokens that occurred."""
    logits, ids, by = torch.tensor([2.0, -1.0, 3.0, -2.5, 0.6, 1.4]).double(), [3, 0, 3, 0, 4], 1.5
    right = _penalised(logits, ids, by)
    seen = torch.zeros(6, dtype=torch.bool)
    seen[ids] = True
    often = torch.bincount(torch.tensor(ids), minlength=6)
    power = by ** often.double()
    each = _penalised(logits, list(range(6)), by)
    expect(
        penalised(logits, ids, by), right,
        "Divide where the logit is positive, multiply where it is negative, once for each token.",
        mistakes={
            "Negative logits were divided, too: −2.5 / 1.5 is larger than −2.5, so the token "
            "became more likely. Multiply them.": torch.where(seen, logits / by, logits),
            "The logits were multiplied: the positive ones grew. Divide these.":
                torch.where(seen, logits * by, logits),
            "It is the wrong way round: tokens that occurred became more likely.":
                _penalised(logits, ids, 1 / by),
            "A token that occurred twice was punished twice. Once is enough.":
                torch.where(logits > 0, logits / power, logits * power),
            "Tokens that did not occur were changed, and the others stayed.":
                torch.where(seen, logits, each),
            "All tokens were changed. Only those in `ids` are to.": each,
            "Only the last id was looked at.": _penalised(logits, ids[-1:], by),
            "The penalty was subtracted. Divide or multiply.":
                torch.where(seen, logits - by, logits),
            "The tokens that occurred were ruled out. They may occur again, with a lower logit.":
                logits.masked_fill(seen, -math.inf),
            "These are probabilities. Return logits.": (right.softmax(-1), logits.softmax(-1)),
        },
    )


def _penalty_none(penalised: Any) -> None:
    """Nothing has occurred, or the penalty is 1: nothing changes."""
    logits = numbers(7, seed=687, dtype=torch.float32)
    for ids, by in (([], 1.7), ([1, 2, 2], 1.0)):
        expect(penalised(logits, ids, by), logits, f"With ids {ids} and penalty {by} all stays.")


PENALTY = Exercise(
    name="project-penalty",
    title="A penalty for what was there",
    level=2,
    section=f'{WHERE}, section "Step 2: from logits to chances"',
    stub=penalised,
    properties=(_penalty_values, _penalty_none),
    hints=(
        "Take a copy of the logits. Which of its entries change, and how, depends on their sign.",
        "`list(set(ids))` names each token once; an empty list is a case of its own for indexing.",
        "`new = logits.clone()`; for each i of `set(ids)`: "
        "`new[i] = logits[i] / penalty if logits[i] > 0 else logits[i] * penalty`.",
    ),
)

EXERCISES = (LOOP, CHANCES, PENALTY)
