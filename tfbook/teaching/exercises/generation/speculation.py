"""The exercise of chapter 12 on checking guesses."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, parts

# speculative-step -------------------------------------------------------------------------------


def speculative_step(
    p: torch.Tensor, q: torch.Tensor, draft: torch.Tensor, u: torch.Tensor
) -> tuple[int, torch.Tensor]:
    """Check the tokens that a draft model guessed, so that what comes out is distributed as p.

    Go through the guesses in order. Guess t, the token x, is accepted if u[t] < p[t, x] / q[t, x].
    At the first guess that is rejected the rest is dropped, and the next token is drawn from
    max(p[t] - q[t], 0), made to sum to 1. If all guesses are accepted, the next token is drawn from
    the last row of p.

    p: (n + 1, V), probabilities of the model: row t is for the token after t guesses. q: (n, V),
    those of the draft model. draft: (n,), the guesses, drawn from the rows of q. u: (n,), uniform
    between 0 and 1.
    Returns: how many guesses are accepted, an int, and the distribution (V,) of the next token.
    """
    ...


def _speculated(
    p: torch.Tensor, q: torch.Tensor, draft: torch.Tensor, u: torch.Tensor
) -> tuple[int, torch.Tensor]:
    for t, token in enumerate(draft.tolist()):
        if u[t] >= p[t, token] / q[t, token]:
            rest = (p[t] - q[t]).clamp_min(0)
            return t, rest / rest.sum()
    return len(draft), p[-1]


SPEC_P = torch.tensor(
    [[0.2, 0.3, 0.5], [0.6, 0.1, 0.3], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]]
).double()
SPEC_Q = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.4, 0.2, 0.4]]).double()


def _step_of(step: Any, p: Any, q: Any, draft: list[int], u: list[float]) -> tuple[int, Any]:
    """Return what the reader's function makes of these guesses, the number as an int."""
    result = step(p.clone(), q.clone(), torch.tensor(draft), torch.tensor(u).double())
    accepted, distribution = parts(result, "accepted", "distribution")
    if isinstance(accepted, torch.Tensor) and not accepted.ndim and accepted.dtype == torch.int64:
        accepted = int(accepted)
    if isinstance(accepted, bool) or not isinstance(accepted, int):
        raise Wrong(
            f"The first result is a {type(accepted).__name__}. Return the number of accepted "
            "guesses, an int.", got=accepted,
        )
    return accepted, distribution


def _speculate_one(step: Any) -> None:
    """One guess is accepted where u is below p / q."""
    p, q = SPEC_P[[0, 3]], SPEC_Q[:1]
    cases = ((0, 0.3), (0, 0.45), (2, 0.9), (2, 0.3))  # p / q is 0.4 for token 0, 2.5 for token 2
    got = [_step_of(step, p, q, [token], [u])[0] for token, u in cases]
    slips = {
        "u was compared with p alone. A token that the draft model guesses as often as p wants "
        "has to stay always: compare with p / q.": [0, 0, 0, 1],
        "u was compared with q / p. It is p / q: tokens that the draft model guesses too often are "
        "the ones to reject now and then.": [1, 1, 0, 1],
        "u was compared with q. It is p / q.": [1, 1, 0, 0],
        "Every guess was accepted.": [1, 1, 1, 1],
        "No guess was accepted.": [0, 0, 0, 0],
        "The comparison is reversed: a guess is accepted where u is below p / q.": [0, 1, 0, 0],
        "u was not used: a guess with p below q is accepted with probability p / q, not never.":
            [0, 0, 1, 1],
    }
    wanted = [1, 0, 1, 1]
    if got != wanted:
        message = next((words for words, slip in slips.items() if got == slip), "")
        raise Wrong(
            message or "A guess x should be accepted where u < p[x] / q[x].",
            given={"p": p, "q": q, "draft": "one guess at a time: 0, 0, 2, 2",
                   "u": "one at a time: 0.3, 0.45, 0.9, 0.3"},
            got=got, wanted=wanted,
        )


def _speculate_many(step: Any) -> None:
    """Guesses are accepted up to the first rejection."""
    for draft, u, wanted, slips in (
        ([2, 1, 1], [0.9, 0.5, 0.9], 1, {
            2: "The guesses behind the first rejected one were accepted. They continue a text that "
               "does not exist any more.",
        }),
        ([0, 0, 1], [0.7, 0.1, 0.1], 0, {
            2: "The guesses behind the first rejected one were accepted. They continue a text that "
               "does not exist any more.",
            1: "The rejected guess was counted.",
        }),
        ([1, 0, 0], [0.9, 0.9, 0.5], 2, {3: "The rejected guess was counted."}),
        ([2, 0, 1], [0.9, 0.9, 0.9], 3, {
            4: "The token that is drawn at the end was counted. Count the accepted guesses.",
            2: "All guesses were accepted: there are three of them.",
        }),
    ):
        got = _step_of(step, SPEC_P, SPEC_Q, draft, u)[0]
        if got != wanted:
            raise Wrong(
                slips.get(got, "The number of accepted guesses is wrong."), got=got, wanted=wanted
            )


def _speculate_rest(step: Any) -> None:
    """After a rejection, the next token comes from what p has more of than q."""
    draft, u, t = [2, 1, 1], [0.9, 0.5, 0.9], 1
    p, q = SPEC_P[t], SPEC_Q[t]
    rest = (p - q).clamp_min(0)
    without = p.masked_fill(torch.tensor([False, True, False]), 0.0)
    gap = (p - q).abs()
    far = (SPEC_P[2] - SPEC_Q[2]).clamp_min(0)
    near = (SPEC_P[0] - SPEC_Q[0]).clamp_min(0)
    expect(
        _step_of(step, SPEC_P, SPEC_Q, draft, u)[1],
        rest / rest.sum(),
        "The distribution should be max(p[t] - q[t], 0) divided by its sum, with t the rejected "
        "guess.",
        what="The distribution",
        mistakes={
            "The next token is drawn from p itself. Tokens that q guesses would come out too "
            "often: subtract q first.": p,
            "The rejected token was taken out of p, and q was not subtracted.":
                (without / without.sum(), without),
            "The distribution does not sum to 1: divide by the sum.": (rest, p - q),
            "The differences were made positive. Where q is larger than p the share is 0.":
                (gap / gap.sum(), gap),
            "The difference is reversed: it is p - q.":
                ((q - p).clamp_min(0) / (q - p).clamp_min(0).sum(), (q - p).clamp_min(0)),
            "The next token is drawn from the draft model.": q,
            "A softmax was taken of the differences. Divide them by their sum.":
                (torch.softmax(p - q, -1), torch.softmax(rest, -1)),
            "This is the row behind the rejected guess. Its own row is p[t].":
                (far / far.sum(), SPEC_P[2]),
            "This is the row of the guess before the rejected one.":
                (near / near.sum(), SPEC_P[0]),
            "The last row of p is for the case that all guesses are accepted.": SPEC_P[3],
        },
    )


def _speculate_bonus(step: Any) -> None:
    """If all guesses are accepted, one more token comes from the last row of p."""
    draft, u = [2, 0, 1], [0.9, 0.9, 0.9]
    rest = (SPEC_P[2] - SPEC_Q[2]).clamp_min(0)
    expect(
        _step_of(step, SPEC_P, SPEC_Q, draft, u)[1],
        SPEC_P[3],
        "All guesses are accepted, so the next token is drawn from the last row of p.",
        what="The distribution",
        mistakes={
            "This is the row of the last guess. The token after it has the row p[n].": SPEC_P[2],
            "q was subtracted. Nothing was rejected, so the last row of p is used as it is.":
                (rest / rest.sum(), (SPEC_P[3] - SPEC_Q[2]).clamp_min(0)),
            "This is the first row of p.": SPEC_P[0],
        },
    )


def _speculate_exact(step: Any) -> None:
    """Over all guesses and all u, what comes out is distributed as p."""
    # Every p / q below 1 is a multiple of 1 / steps, so the middles of the steps stand for all u.
    for p, q, steps in (
        (SPEC_P[0], SPEC_Q[0], 10), (SPEC_P[2], SPEC_Q[2], 4), (SPEC_P[1], SPEC_P[1], 1),
    ):
        total = torch.zeros(3).double()
        grid = [(i + 0.5) / steps for i in range(steps)]
        for token in range(3):
            for u in grid:
                accepted, rest = _step_of(step, torch.stack([p, p]), q[None], [token], [u])
                out = torch.eye(3).double()[token] if accepted else rest
                if not isinstance(out, torch.Tensor) or out.shape != (3,):
                    expect(out, p, what="The distribution")
                total = total + q[token] * out / len(grid)
        expect(
            total, p,
            "Guesses from q, accepted or replaced as your function says, should be distributed as "
            "p.", what="The distribution of the first token", given={"p": p, "q": q},
        )


SPECULATIVE_STEP = Exercise(
    name="speculative-step",
    title="Check a guess without changing the distribution",
    level=3,
    section='chapters/12_generation, section "Guess ahead and check"',
    stub=speculative_step,
    properties=(
        _speculate_one, _speculate_many, _speculate_rest, _speculate_bonus, _speculate_exact,
    ),
    hints=(
        "A token that q guesses too often has to be thrown away sometimes; one that q guesses too "
        "rarely is made up for by the draw after a rejection.",
        "Walk through the guesses and return at the first rejection. The share that p has more of "
        "than q is `(p[t] - q[t]).clamp_min(0)`.",
        "Two things are easily forgotten: that share has to sum to 1 before one draws from it, and "
        "when nothing was rejected, `p[-1]` is used as it is.",
    ),
)

EXERCISES = (SPECULATIVE_STEP,)
