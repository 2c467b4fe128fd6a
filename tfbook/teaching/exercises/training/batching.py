"""The exercises of chapter 11 on batches: packed rows, gradients in parts, and a budget."""

from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_plain, numbers

# packed-targets ---------------------------------------------------------------------------------


def packed_targets(tokens: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    """Say what each place of packed rows is to predict.

    Each row holds several documents, one behind the other. A place is to predict the token behind
    it, if that belongs to the same document. Where it does not, where there is none, and at
    padding, nothing is to be predicted: the target is -100.

    tokens: (B, N), int64. documents: (B, N), int64, the number of the document within its row,
    -1 at padding.
    Returns: the targets, (B, N), int64.
    """
    ...


def _packed(tokens: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
    targets = torch.full_like(tokens, -100)
    for b, row in enumerate(documents.tolist()):
        for t in range(len(row) - 1):
            if row[t] >= 0 and row[t] == row[t + 1]:
                targets[b, t] = tokens[b, t + 1]
    return targets


def _pack_inside(targets: Any) -> None:
    """Within a document each place predicts the token behind it."""
    tokens = torch.tensor([[11, 12, 13, 14, 15, 16], [21, 22, 23, 24, 25, 26]])
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    right = _packed(tokens, documents)
    blank = torch.full_like(tokens, -100)
    ahead = torch.cat([tokens[:, 1:], blank[:, :1]], 1)
    kept = right != -100
    first = torch.cat([torch.zeros(2, 1).bool(), documents[:, 1:] == documents[:, :-1]], 1)
    expect(
        targets(tokens, documents),
        right,
        "The target at t is token t + 1 where both belong to one document, and -100 elsewhere.",
        mistakes={
            "The last place of a document predicts the first token of the next. They have nothing "
            "to do with one another.": ahead,
            "The targets are the tokens themselves: a model that reads token t cannot be asked "
            "for it. Shift them by one.": (tokens, tokens.where(kept, -100)),
            "The targets were shifted the wrong way: each place predicts the token before it.":
                (tokens.roll(1, 1).where(first, -100), tokens.roll(1, 1).where(kept, -100),
                 torch.cat([blank[:, :1], tokens[:, :-1]], 1)),
            "The last place of a row predicts the first token of the row. Nothing stands behind "
            "it: the target is -100.": (
                tokens.roll(-1, 1), torch.cat([right[:, :-1], tokens[:, :1]], 1)),
            "The first place of each document has no target. It is the last that has none.":
                (ahead.where(first, -100),),
            "The targets are two tokens ahead.":
                torch.cat([tokens[:, 2:], blank[:, :2]], 1).where(kept, -100),
            "One column is missing: the last place has the target -100.": right[:, :-1],
            "Only the borders have targets. It is the other way round.": ahead.where(~kept, -100),
            "Where nothing is to be predicted the target is -100, which the loss leaves out.":
                (right.where(kept, 0), right.where(kept, -1)),
        },
    )


def _pack_padding(targets: Any) -> None:
    """Padding is neither predicted nor predicts."""
    tokens = torch.tensor([[5, 6, 7, 0, 0, 0], [8, 9, 3, 4, 2, 0]])
    documents = torch.tensor([[0, 0, 0, -1, -1, -1], [0, 0, 1, 1, 2, -1]])
    right = _packed(tokens, documents)
    loose = right.clone()
    loose[0, 3:5] = 0
    into = right.clone()
    into[0, 2], into[1, 4] = 0, 0
    expect(
        targets(tokens, documents),
        right,
        "Padding, document -1, has the target -100, and so has the place in front of it.",
        mistakes={
            "Padding has to predict padding: neighbours that are both -1 count as one document. "
            "Ask for documents from 0 on.": loose,
            "The last token of a row has to predict padding.": into,
        },
    )


def _pack_same_ids(targets: Any) -> None:
    """The borders are those of `documents`, whatever the tokens are."""
    tokens = torch.tensor([[0, 0, 0, 3, 0, 0, 3]])
    for marks in ([0, 0, 1, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5, 6], [4, 4, 4, 4, 4, 4, 4]):
        documents = torch.tensor([marks])
        expect(
            targets(tokens, documents), right := _packed(tokens, documents),
            "Token 0 is a token like any other. The documents alone say what belongs together.",
            mistakes={
                "The shift goes around: one document fills the row, and its last place predicts "
                "its first token. Nothing stands behind it: the target is -100.":
                    torch.cat([right[:, :-1], tokens[:, :1]], 1),
            },
        )


def _pack_sizes(targets: Any) -> None:
    """Rows of any length and number, one of a single place among them."""
    generator = torch.Generator("cpu").manual_seed(551)
    for b, n in ((1, 1), (4, 2), (3, 19)):
        tokens = torch.randint(0, 9, (b, n), generator=generator)
        documents = (torch.rand(b, n, generator=generator) < 0.3).cumsum(1)
        documents[-1, n // 2 + 1 :] = -1
        expect(
            targets(tokens, documents), _packed(tokens, documents),
            f"With {b} rows of {n} places the targets differ.",
        )


PACKED_TARGETS = Exercise(
    name="packed-targets",
    title="What packed rows are to predict",
    level=2,
    section='chapters/11_training_deeper, section "Batches without waste"',
    stub=packed_targets,
    properties=(_pack_inside, _pack_padding, _pack_same_ids, _pack_sizes),
    hints=(
        "Compare each place with the one behind it. What do the two have to have in common?",
        "`documents[:, 1:] == documents[:, :-1]` compares neighbours. It has one column less than "
        "the targets: the last place predicts nothing.",
        "`targets = torch.full_like(tokens, -100)`; "
        "`goes_on = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)`; "
        "`targets[:, :-1] = tokens[:, 1:].where(goes_on, -100)`.",
    ),
)

# accumulated-gradient ---------------------------------------------------------------------------


def accumulate(
    loss: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, int]], weight: torch.Tensor,
    batches: list[torch.Tensor],
) -> torch.Tensor:
    """Compute the gradient of one large batch, in parts that fit into memory.

    Wanted is the gradient of the mean loss over all tokens of all batches. The batches hold
    different numbers of tokens, some perhaps none. A batch goes through `loss` once, and what it
    keeps for its gradient is to be gone before the next one begins.

    loss: from the weight and a batch to the sum of the losses of its tokens, shape (), and how
    many tokens it has, an int. weight: requires a gradient; its `.grad` may hold an old one.
    batches: what `loss` reads, at least one with tokens.
    Returns: the gradient, the shape of the weight.
    """
    ...


class _Kept(torch.autograd.Function):
    """Pass a loss through, and note in a list when its gradient was computed."""

    @staticmethod
    def forward(ctx: Any, total: torch.Tensor, done: list[int]) -> torch.Tensor:
        ctx.done = done
        return total.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.done.append(1)
        return gradient, None


def _watched_loss(strict: bool) -> Callable[..., Any]:
    """Return a loss of examples x, y: Σ (x·w − y)², that can watch how it is used."""
    begun: list[int] = []
    done: list[int] = []

    def loss(weight: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        if strict and len(begun) > len(done):
            raise Wrong(
                "A batch was computed while the one before it still waited for its gradient, so "
                "the memory of both is held. Call `backward()` or `torch.autograd.grad` for each "
                "batch before the next."
            )
        total = (batch[:, :-1] @ weight - batch[:, -1]).square().sum()
        if total.requires_grad:
            begun.append(1)
            total = _Kept.apply(total, done)
        return total, len(batch)

    return loss


def _weight(old: float | None = None) -> torch.Tensor:
    weight = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    if old is not None:
        weight.grad = torch.full_like(weight, old)
    return weight


def _parts(batches: list[torch.Tensor]) -> torch.Tensor:
    """Return the gradient of each batch's sum, (K, D)."""
    weight = _weight().detach()
    return torch.stack([2 * (b[:, :-1] @ weight - b[:, -1]) @ b[:, :-1] for b in batches])


def _examples(*counts: int, seed: int) -> list[torch.Tensor]:
    return [numbers(count, 3, seed=seed + i) for i, count in enumerate(counts)]


def _accumulate(
    accumulate: Any, batches: list[torch.Tensor], otherwise: str, *, old: float | None = None,
    known: bool = True,
) -> None:
    """Compare with the gradient of the mean over all tokens, the known slips first."""
    weight, given = _weight(old), {"weight": _weight().detach(), "batches": batches}
    sums, counts = _parts(batches), torch.tensor([float(len(b)) for b in batches]).double()
    right = sums.sum(0) / counts.sum()
    means = sums[counts > 0] / counts[counts > 0, None]
    slips = {
        "Each batch's mean was taken and the means averaged: a token of a small batch weighs more "
        "than one of a large batch. Add up the sums, and divide once by all tokens.":
            (means.mean(0), means.sum(0) / len(batches)),
        "The means of the batches were added up. Add up the sums, and divide once by all tokens.":
            means.sum(0),
        "This is the gradient of the sum. Divide it by the number of all tokens.": sums.sum(0),
        "The sum was divided by the number of batches. Divide it by that of all tokens.":
            sums.sum(0) / len(batches),
        "Only the last batch is in the gradient. The parts add up.":
            (sums[-1] / counts.sum(), sums[-1] / counts[-1], sums[-1]),
        "Only the first batch is in the gradient. The parts add up.":
            (sums[0] / counts.sum(), sums[0] / counts[0], sums[0]),
        "The sum was divided by the tokens of the last batch. Divide it by those of all.":
            sums.sum(0) / counts[-1].clamp(min=1e-9),
        "The sum was divided by as many tokens as the largest batch has, times the batches.":
            sums.sum(0) / (counts.amax() * len(batches)),
        "The gradient points downhill: return it as it is, the optimizer subtracts.": -right,
    }
    if old is not None:
        slips = {
            "An old gradient is in the result: `backward()` adds to `weight.grad`. Set it to None "
            "first.": (right + old, right + old / counts.sum()),
            **slips,
        }
    expect(
        accumulate(_watched_loss(strict=False), weight, batches), right, otherwise,
        mistakes=slips if known else None, what="The gradient", given=given,
    )


def _sum_parts(accumulate: Any) -> None:
    """Every token weighs the same, in whichever batch it stands."""
    _accumulate(
        accumulate, _examples(1, 3, 2, seed=561),
        "The sums of the batches add up, and so do their gradients; divide by all six tokens.",
    )


def _sum_old(accumulate: Any) -> None:
    """An old gradient does not leak into the result."""
    _accumulate(
        accumulate, _examples(2, 1, seed=571), "An old gradient stands in `weight.grad`.", old=7.0
    )


def _sum_one_at_a_time(accumulate: Any) -> None:
    """Only one batch is in memory, and each is computed once."""
    batches = _examples(2, 1, 3, seed=577)
    seen: list[int] = []
    watch = _watched_loss(strict=True)

    def loss(weight: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
        seen.append(id(batch))
        return watch(weight, batch)

    accumulate(loss, _weight(), batches)
    if len(seen) > len(batches):
        raise Wrong(
            f"`loss` was called {len(seen)} times for {len(batches)} batches. The tokens can be "
            "counted on the way, and the division comes at the end.", got=len(seen),
            wanted=len(batches),
        )


def _sum_empty(accumulate: Any) -> None:
    """A batch without tokens changes nothing, and one batch is enough."""
    for counts in ((2, 0, 3), (0, 4), (5,), (1, 1, 1, 1, 1, 1, 13)):
        _accumulate(
            accumulate, _examples(*counts, seed=587), f"With {counts} tokens the gradient differs.",
            known=False,  # with one batch, or batches of one size, most slips change nothing
        )


ACCUMULATED_GRADIENT = Exercise(
    name="accumulated-gradient",
    title="A large batch in small parts",
    level=3,
    section='chapters/11_training_deeper, section "A sum and a count"',
    stub=accumulate,
    properties=(_sum_parts, _sum_old, _sum_one_at_a_time, _sum_empty),
    hints=(
        "The gradient of a sum is the sum of the gradients. By what is it divided, and when is "
        "that known?",
        "`torch.autograd.grad(total, weight)` returns the gradient of one batch and frees what the "
        "batch kept. It does not touch `weight.grad`.",
        "Keep two things from batch to batch, with `+=`: a sum of gradients and a count of tokens. "
        "Divide when no batch is left.",
    ),
)

# token-budget -----------------------------------------------------------------------------------


def plan_batches(lengths: list[int], budget: int) -> list[list[int]]:
    """Plan batches of sequences so that each costs at most so many places.

    A batch of B sequences, the longest of N tokens, costs B · N places, padding included. Go
    through the sequences from the shortest to the longest, of equally long ones the first first,
    and put each into the current batch if that then costs at most the budget; otherwise it begins
    the next batch.

    lengths: of each sequence, in tokens, none above the budget. budget: in places.
    Returns: the batches in the order in which they began, each a list of indices of sequences.
    """
    ...


def _plan(lengths: list[int], budget: int, *, cost: str = "places", key: Any = None) -> Any:
    """Plan as asked, or with a known slip in the cost or in the order."""
    plan: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__ if key is None else key):
        joined = [*plan[-1], i] if plan else []
        held = [lengths[j] for j in joined]
        costs = {
            "places": len(held) * max(held, default=0), "tokens": sum(held),
            "before": (len(held) - 1) * max(held, default=0),
            "shorter": len(held) * max(held[:-1], default=0), "strict": len(held) * max(
                held, default=0) + 1,
        }
        if joined and costs[cost] <= budget:
            plan[-1] = joined
        else:
            plan.append([i])
    return plan


def _plan_case(plan: Any, lengths: list[int], budget: int, otherwise: str) -> None:
    right = _plan(lengths, budget)
    as_they_come = _plan(lengths, budget, key=lambda i: i)
    sizes = [[lengths[i] for i in batch] for batch in right]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    most = max(1, budget // max(lengths, default=1))
    fixed = [order[i : i + most] for i in range(0, len(order), most)]
    expect_plain(
        plan, {"lengths": lengths, "budget": budget}, right, otherwise,
        mistakes={
            "The tokens were added up, without padding. A batch of B sequences costs B times the "
            "longest.": _plan(lengths, budget, cost="tokens"),
            "The sequences were taken as they come, so that long and short ones share a batch. "
            "Sort them by length.": as_they_come,
            "The sequences were taken from the longest to the shortest.":
                _plan(lengths, budget, key=lambda i: (-lengths[i], i)),
            "These are the lengths. Return the indices of the sequences.": sizes,
            "These are places in the sorted list. Return the indices that the sequences have in "
            "`lengths`.": [[order.index(i) for i in batch] for batch in right],
            "The last batch is missing: it is still open when the loop ends.": right[:-1],
            "An empty batch comes first: a batch begins when there is a sequence for it.":
                [[], *right],
            "A batch that costs exactly the budget is allowed: compare with ≤.":
                _plan(lengths, budget, cost="strict"),
            "The cost was compared before the sequence joined, so a batch may cost more than the "
            "budget. Count it first.": _plan(lengths, budget, cost="before"),
            "The cost was computed with the longest sequence before this one. The new one is the "
            "longest: they are sorted.": _plan(lengths, budget, cost="shorter"),
            "Every batch has the same number of sequences. Short ones fit in larger numbers.":
                fixed,
            "The sequences that did not fit are missing: each begins the next batch.": [
                batch[1:] if k else batch for k, batch in enumerate(right)],
            "The batches are in the wrong order: the shortest sequences come first.": right[::-1],
            "Of equally long sequences the first one in `lengths` comes first.":
                _plan(lengths, budget, key=lambda i: (lengths[i], -i)),
        },
    )


def _plan_cost(plan: Any) -> None:
    """A batch costs its number of sequences times the longest."""
    _plan_case(
        plan, [1, 6, 2, 7, 9, 8, 3], 14,
        "Sorted, the lengths are 1, 2, 3, 6, 7, 8, 9. With a budget of 14 they make the batches "
        "1 2 3, 6 7, 8, 9.",
    )


def _plan_border(plan: Any) -> None:
    """A batch may cost exactly the budget, and a single sequence, too."""
    _plan_case(plan, [4, 4, 4, 4, 4, 12, 6, 6], 12, "Three sequences of 4 cost 12 places.")
    _plan_case(plan, [5, 5, 3, 5, 3], 5, "With a budget of 5 each sequence is alone.")


def _plan_ties(plan: Any) -> None:
    """Of equally long sequences the first comes first, and the list stays as it was."""
    _plan_case(plan, [3, 1, 3, 1, 3, 1, 1, 3], 6, "Equally long sequences keep their order.")


def _plan_sizes(plan: Any) -> None:
    """Any number of sequences, also none."""
    generator = torch.Generator("cpu").manual_seed(593)
    for count, budget in ((0, 10), (1, 3), (40, 64), (60, 31)):
        lengths = torch.randint(1, min(31, budget + 1), (count,), generator=generator).tolist()
        _plan_case(
            plan, lengths, budget,
            f"With {count} sequences and a budget of {budget} the plan differs.",
        )


TOKEN_BUDGET = Exercise(
    name="token-budget",
    title="Batches on a budget",
    level=3,
    section='chapters/11_training_deeper, section "Batches without waste"',
    stub=plan_batches,
    properties=(_plan_cost, _plan_border, _plan_ties, _plan_sizes),
    hints=(
        "In sorted order the sequence that joins is the longest of its batch. What does the batch "
        "cost with it?",
        "`sorted(range(len(lengths)), key=lambda i: lengths[i])` gives the indices from the "
        "shortest sequence on, equally long ones in their order.",
        "For each i: if there is a batch and `(len(batches[-1]) + 1) * lengths[i] <= budget`, "
        "append i to it; otherwise append the new batch `[i]`.",
    ),
)

EXERCISES = (PACKED_TARGETS, ACCUMULATED_GRADIENT, TOKEN_BUDGET)
