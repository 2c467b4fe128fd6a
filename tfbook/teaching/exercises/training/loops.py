"""The exercises of chapter 11 on whole loops: one with two faults, two to build."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_plain, numbers

# train-loop -------------------------------------------------------------------------------------


def train_loop(
    model: torch.nn.Module, loss_of: Callable, batches: Callable, steps: int, rate: float,
    warmup: int, clip: float,
) -> tuple[list, list]:  # fmt: skip
    """Train a model, in place: AdamW, a warm-up, a cosine, and clipping.

    AdamW has the betas 0.9 and 0.99 and the decay 0.1. The learning rate of step s, from 0, is
    rate · (s + 1) / (warmup + 1) while s < warmup; after that rate · ½ (1 + cos(π u)),
    u = (s − warmup) / (steps − warmup).

    model: what is trained. loss_of: from the model and a batch to a loss, shape (). batches: from
    the number of a step to a batch. steps: how many. rate: the highest learning rate. warmup: steps
    of the rise, fewer than steps. clip: the longest gradient.
    Returns: the loss of each step, and the length of its gradient before clipping, two lists.
    """
    ...


def _problem() -> tuple[nn.Module, Callable, Callable]:
    """Return a small model, its loss, and batches of unequal difficulty."""
    model = nn.Linear(4, 3).double()
    with torch.no_grad():
        model.weight.copy_(numbers(3, 4, seed=611))
        model.bias.copy_(numbers(3, seed=612))

    def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = numbers(6, 4, seed=620 + step) * (8.0 if step % 3 == 1 else 1.0)
        return inputs, torch.arange(6) % 3

    return model, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), batches


STEPS, RATE, WARMUP, CLIP = 7, 0.2, 3, 0.5


def _trained(
    *, warm: bool = True, fall: bool = True, clip: str = "before", zero: bool = True,
    kind: Any = torch.optim.AdamW, decay: float = 0.1, late: int = 0,
) -> tuple[list, list, torch.Tensor]:  # fmt: skip
    """Train as the exercise asks, or with one mistake; return losses, lengths, weights."""
    model, loss_of, batches = _problem()
    chosen = list(model.parameters())
    optimizer = kind(chosen, lr=RATE, betas=(0.9, 0.99), weight_decay=decay)
    losses, lengths = [], []
    for step in range(STEPS):
        at = step + late
        share = 0.5 * (1 + math.cos(math.pi * (at - WARMUP) / (STEPS - WARMUP))) if fall else 1.0
        if at < WARMUP:
            share = (at + 1) / (WARMUP + 1) if warm else 1.0
        optimizer.param_groups[0]["lr"] = RATE * share
        loss = loss_of(model, batches(step))
        if zero:
            optimizer.zero_grad()
        loss.backward()
        length = torch.cat([w.grad.flatten() for w in chosen]).norm()
        if clip == "before":
            nn.utils.clip_grad_norm_(chosen, CLIP)
        if clip == "value":
            nn.utils.clip_grad_value_(chosen, CLIP)
        optimizer.step()
        losses.append(loss.item())
        lengths.append(length.item())
    return losses, lengths, _flat(model)


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([w.detach().flatten() for w in model.parameters()])


def _asked(train: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Let the reader's loop train the small model; return losses, lengths, weights."""
    model, loss_of, batches = _problem()
    returned = train(model, loss_of, batches, STEPS, RATE, WARMUP, CLIP)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise Wrong("Return two lists: the losses, and the lengths of the gradients.", got=returned)
    for name, numbers_ in zip(("losses", "lengths"), returned, strict=True):
        if not isinstance(numbers_, list) or len(numbers_) != STEPS:
            raise Wrong(f"The {name} should be a list with one number for each of {STEPS} steps.",
                        got=numbers_)  # fmt: skip
    losses, lengths = (
        torch.stack([torch.as_tensor(x, dtype=torch.double).detach() for x in found])
        for found in returned
    )
    return losses, lengths, _flat(model)


def _slips(which: int) -> dict[str, Any]:
    def wrong(**choices: Any) -> Any:
        found = _trained(**choices)[which]
        return found if which == 2 else torch.tensor(found, dtype=torch.double)

    return {
        "The gradients of the steps before are still there: `optimizer.zero_grad()` before "
        "`backward()`.": wrong(zero=False),
        "The gradient is not clipped before the step.": wrong(clip="none"),
        "Each number was clipped by itself. Shorten the gradient as a whole, by its length.":
            wrong(clip="value"),
        "The warm-up is missing: step s < warmup has the share (s + 1) / (warmup + 1).":
            wrong(warm=False),
        "The fall is missing: after the warm-up the rate follows half a cosine.": wrong(fall=False),
        "The schedule is one step ahead: set the rate before the step it belongs to.":
            wrong(late=1),
        "The weights do not decay: weight_decay=0.1.": wrong(decay=0.0),
        "This is Adam with a penalty. AdamW takes the decay out of the gradient.":
            wrong(kind=torch.optim.Adam),
    }  # fmt: skip


def _loop_first(train: Any) -> None:
    """The first loss is that of the untrained model, and there is one for each step."""
    model, loss_of, batches = _problem()
    expect(
        _asked(train)[0][0], loss_of(model, batches(0)).detach(),
        "The first loss is that of the model as it came, on the first batch.",
        what="The first loss",
        mistakes={"The batches are numbered from 0.": loss_of(model, batches(1)).detach()},
    )  # fmt: skip


def _loop_weights(train: Any) -> None:
    """After all steps the weights are where AdamW, the schedule and clipping take them."""
    expect(
        _asked(train)[2], _trained()[2], "The weights after seven steps differ.",
        what="The weights at the end", mistakes=_slips(2),
    )  # fmt: skip


def _loop_losses(train: Any) -> None:
    """So are the losses on the way."""
    expect(
        _asked(train)[0], torch.tensor(_trained()[0], dtype=torch.double),
        "The losses of the steps differ.", what="The losses", mistakes=_slips(0),
    )  # fmt: skip


def _loop_lengths(train: Any) -> None:
    """The lengths are those of the gradients before clipping."""
    lengths = torch.tensor(_trained()[1], dtype=torch.double)
    expect(
        _asked(train)[1], lengths,
        "The length of each step's gradient is wanted, all weights together, before clipping.",
        what="The lengths",
        mistakes={"These are the lengths after clipping. Before it they tell more: "
                  "`clip_grad_norm_` returns them.": lengths.clamp(max=CLIP)},
    )  # fmt: skip


TRAIN_LOOP = Exercise(
    name="train-loop",
    title="The whole loop",
    level=3,
    section='chapters/11_training, section "The finished loop"',
    stub=train_loop,
    properties=(_loop_first, _loop_weights, _loop_losses, _loop_lengths),
    warm=("torch._dynamo",),  # loaded by the first optimizer of PyTorch, in seconds
    hints=(
        "Write the order down first: rate, loss, zero, backward, clip, step. Which of them need "
        "the number of the step?",
        "An optimizer reads its learning rate from `optimizer.param_groups[0]` in each step.",
        "`torch.nn.utils.clip_grad_norm_` changes the gradients, and returns what they were.",
    ),
)

# flat-loss --------------------------------------------------------------------------------------


def short_run(
    model: torch.nn.Module, loss_of: Callable, batches: Callable, steps: int, rate: float,
    factor: Callable,
) -> list:  # fmt: skip
    """Train a model, in place: AdamW, with a learning rate that follows a schedule.

    In step s, counted from 0, the learning rate is rate · factor(s).

    model: what is trained. loss_of: from the model and a batch to a loss, shape (). batches: from
    the number of a step to a batch. steps: how many. rate: the highest learning rate. factor: from
    the number of a step to a share, from 0 to 1.
    Returns: the loss of each step, a list of numbers.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for step in range(steps):
        rate = rate * factor(step)
        optimizer.param_groups[0]["lr"] = rate
        loss = loss_of(model, batches(step))
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        losses.append(loss.item())
    return losses


FALL = (1.0, 0.8, 0.6, 0.3, 0.1)


def _short(
    factors: tuple[float, ...], *, zero: str = "before", piled: bool = False, early: int = 0,
    scheduled: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Train as the exercise asks, or with one mistake; return losses and weights."""
    model, loss_of, batches = _problem()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses, share = [], 1.0
    for step in range(len(factors)):
        now = factors[min(step + early, len(factors) - 1)]
        share = share * now if piled else now
        optimizer.param_groups[0]["lr"] = RATE * (share if scheduled else 1.0)
        loss = loss_of(model, batches(step))
        if zero == "before":
            optimizer.zero_grad()
        loss.backward()
        if zero == "between":
            optimizer.zero_grad()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), _flat(model)


def _short_asked(run: Any, factors: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Let the reader's loop train the small model; return losses and weights."""
    model, loss_of, batches = _problem()
    more = (*factors, factors[-1])
    losses = run(model, loss_of, batches, len(factors), RATE, lambda step: more[step])
    if not isinstance(losses, list) or len(losses) != len(factors):
        raise Wrong("Return one list with the loss of each step.", got=losses)
    found = [torch.as_tensor(x, dtype=torch.double).detach() for x in losses]
    return torch.stack(found), _flat(model)


def _short_mistakes(factors: tuple[float, ...], which: int) -> dict[str, torch.Tensor]:
    return {
        "The weights do not move, so the loss stays where it began: between `backward()` and "
        "`step()` the new gradients are cleared.": _short(factors, zero="between")[which],
        "The old gradients are never cleared: `backward()` adds to them.":
            _short(factors, zero="never")[which],
        "The rate shrinks from step to step by all factors so far: `rate` is overwritten, and "
        "the next step multiplies what is left of it.": _short(factors, piled=True)[which],
        "The schedule is not used: each step has the full rate.":
            _short(factors, scheduled=False)[which],
        "The factor is that of the next step: steps count from 0.":
            _short(factors, early=1)[which],
    }  # fmt: skip


def _short_moves(run: Any) -> None:
    """The weights move: each step follows the gradient of its own batch."""
    factors = (1.0,) * 4
    expect(
        _short_asked(run, factors)[1], _short(factors)[1], "The weights after four steps differ.",
        what="The weights at the end", mistakes=_short_mistakes(factors, 1),
    )  # fmt: skip


def _short_falls(run: Any) -> None:
    """While the schedule falls, each step has the highest rate times its own factor."""
    expect(
        _short_asked(run, FALL)[1], _short(FALL)[1],
        "In step s the learning rate is rate · factor(s).", what="The weights at the end",
        mistakes=_short_mistakes(FALL, 1),
    )  # fmt: skip


def _short_rises(run: Any) -> None:
    """After a factor of 0 the next step is a whole one."""
    factors = (0.1, 0.0, 1.0, 1.0)
    expect(
        _short_asked(run, factors)[1], _short(factors)[1],
        "A factor of 0 skips one step, not all that follow.", what="The weights at the end",
        mistakes=_short_mistakes(factors, 1),
    )  # fmt: skip


def _short_losses(run: Any) -> None:
    """The losses are those of the batches, measured before each step."""
    expect(
        _short_asked(run, FALL)[0], _short(FALL)[0], "The losses of the steps differ.",
        what="The losses", mistakes=_short_mistakes(FALL, 0),
    )  # fmt: skip


FLAT_LOSS = Exercise(
    name="flat-loss",
    title="A loss that does not move",
    level=2,
    section='chapters/11_training, section "Eight sick curves"',
    stub=short_run,
    properties=(_short_moves, _short_falls, _short_rises, _short_losses),
    warm=("torch._dynamo",),  # loaded by the first optimizer of PyTorch, in seconds
    hints=(
        "Do the weights move at all? Look at the gradient of one weight right before "
        "`optimizer.step()`.",
        "For the second symptom, print the rate that each step really has, for the factors 1, "
        "0.5, 0.5, 0.5.",
        "Look at each line with a `=`. Which name has another value at the end of a step than at "
        "its beginning, and should not?",
    ),
    broken=True,
)

# rate-search ------------------------------------------------------------------------------------


def find_rate(run: Callable[[float], float], rates: list[float]) -> float:
    """Search for a learning rate by factors of three, until both sides are worse.

    Each rate costs a run, so none is tried twice. A run that was lost has the loss nan.

    run: from a learning rate to the held-out loss of a short run. rates: those to begin with, from
    the smallest to the largest, each three times the one before.
    Returns: the rate with the lowest loss. It is not an end of those that were tried.
    """
    ...


def _valley(bottom: float, tried: list[float], lost: float = math.inf) -> Callable[[float], float]:
    """Return short runs whose loss is lowest near a rate, and that note which rates they had."""

    def run(rate: float) -> float:
        if len(tried) >= 40:
            raise Wrong("After 40 runs the search still goes on. It ends when the lowest loss has "
                        "a worse one on both sides.")  # fmt: skip
        tried.append(rate)
        return math.nan if rate > lost else 2.0 + (math.log10(rate) - math.log10(bottom)) ** 2

    return run


def _searched(
    bottom: float, rates: list[float], lost: float = math.inf, *, once: bool = False,
    left: bool = True, right: bool = True,
) -> float:  # fmt: skip
    """Search as the exercise asks, or with one mistake."""
    run = _valley(bottom, [], lost)
    told = {rate: run(rate) for rate in rates}
    told = {rate: math.inf if math.isnan(loss) else loss for rate, loss in told.items()}
    for _ in range(1 if once else 30):
        best = min(told, key=told.__getitem__)
        if best == max(told) and right:
            new = 3 * best
        elif best == min(told) and left:
            new = best / 3
        else:
            break
        told[new] = math.inf if math.isnan(run(new)) else run(new)
    return min(told, key=told.__getitem__)


def _rate_case(
    find: Any, bottom: float, rates: list[float], otherwise: str, lost: float = math.inf
) -> None:
    ends = {
        "The lowest loss lies at the right end: nothing is known of larger rates. Try three times "
        "the largest.": _searched(bottom, rates, lost, right=False),
        "The lowest loss lies at the left end: nothing is known of smaller rates. Try a third of "
        "the smallest.": _searched(bottom, rates, lost, left=False),
        "One more rate was tried, and the lowest loss lies at an end again. Go on.":
            _searched(bottom, rates, lost, once=True),
        "This is the largest rate that runs. The one with the lowest loss is wanted.": rates[-1],
    }
    expect_plain(
        find, {"run": _valley(bottom, [], lost), "rates": rates}, _searched(bottom, rates, lost),
        otherwise, mistakes=ends,
    )


def _rate_inside(find: Any) -> None:
    """Where both sides are worse already, the best of the rates is returned."""
    _rate_case(find, 0.0025, [0.001, 0.003, 0.009], "The rate with the lowest loss is wanted.")


def _rate_ends(find: Any) -> None:
    """While the lowest loss lies at an end, the search goes on there, on either side."""
    _rate_case(find, 0.25, [0.001, 0.003, 0.009], "The valley lies far to the right.")
    _rate_case(find, 0.00001, [0.001, 0.003], "The valley lies far to the left.")
    _rate_case(find, 0.004, [0.003], "One rate to begin with has to be worse on both sides, too.")


def _rate_lost(find: Any) -> None:
    """A run that was lost counts as worse than any other."""
    said = "The loss nan is no number: no comparison with it is true. Count it as infinite."
    _rate_case(find, 0.02, [0.001, 0.003, 0.009], said, lost=0.01)
    _rate_case(find, 0.002, [0.003, 0.009, 0.027], said, lost=0.004)


def _rate_once(find: Any) -> None:
    """No rate is tried twice, and none that nobody has to know."""
    tried: list[float] = []
    find(_valley(0.02, tried), [0.001, 0.003, 0.009])
    if len(tried) > len({round(math.log(rate), 6) for rate in tried}):
        raise Wrong("A rate was tried twice. Keep the losses, in a dictionary for example.",
                    got=tried)  # fmt: skip
    if len(tried) > 5:
        raise Wrong("More rates were tried than needed: here two have to be added.", got=tried)


RATE_SEARCH = Exercise(
    name="rate-search",
    title="A search for the rate",
    level=2,
    section='chapters/11_training, section "The learning rate"',
    stub=find_rate,
    properties=(_rate_inside, _rate_ends, _rate_lost, _rate_once),
    hints=(
        "Keep the loss of each rate in a dictionary. Which of its keys is best, and which are the "
        "ends?",
        "`while True:` find the best rate; if it is the largest, try three times of it; if it is "
        "the smallest, try a third; otherwise return it.",
        "A comparison with nan is never true, so `min` may return it. Store `math.inf` in its "
        "place.",
    ),
)

EXERCISES = (FLAT_LOSS, RATE_SEARCH, TRAIN_LOOP)
