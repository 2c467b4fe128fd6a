"""The exercises of chapter 12 on checking guesses, and on measuring surprise."""

import math
from collections.abc import Callable
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
        "`if u[t] >= p[t, x] / q[t, x]: rest = (p[t] - q[t]).clamp_min(0); return t, rest / "
        "rest.sum()`; after the loop `return len(draft), p[-1]`.",
    ),
)

# windowed-perplexity ----------------------------------------------------------------------------


def perplexity(
    model: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor, context: int, stride: int
) -> float:
    """Measure the perplexity of a text that is longer than what the model can read at once.

    Windows of up to `context` tokens begin at tokens 0, stride, 2·stride, ..., until one reaches
    the end. The first window that holds a token scores it, from the tokens before it in that
    window; the first token of the text has none and is not scored. The perplexity is exp of the
    mean of -log p over all scored tokens.

    model: from tokens (1, n), n at most `context`, to logits (1, n, V). tokens: (N,), int64, at
    least two. context: how many tokens the model can read. stride: at least 1, below `context`.
    Returns: the perplexity, a float.
    """
    ...


def _reader(
    vocabulary: int, window: int, calls: list[int]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a model whose logits depend on all it has read, and which names a wrong input."""
    generator = torch.Generator("cpu").manual_seed(491)
    table = torch.randn(vocabulary, vocabulary, generator=generator, dtype=torch.float64)

    def model(tokens: Any) -> torch.Tensor:
        if not isinstance(tokens, torch.Tensor) or tokens.ndim != 2 or len(tokens) != 1:
            shape = tuple(tokens.shape) if isinstance(tokens, torch.Tensor) else "no shape"
            raise Wrong(f"The model reads tokens of shape (1, n). It was given {shape}.")
        if not 0 < tokens.shape[1] <= window:
            raise Wrong(
                f"The model was given {tokens.shape[1]} tokens. It can read 1 to {window} at once.",
                got=tokens,
            )
        calls.append(tokens.shape[1])
        count = torch.arange(1, tokens.shape[1] + 1).double()[:, None]
        return table[tokens].cumsum(1) / count.sqrt()

    return model


def _surprises(model: Any, tokens: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Return -log p of the tokens start + 1, ..., end - 1, read from `start` on."""
    logs = torch.log_softmax(model(tokens[None, start:end])[0], -1)
    return -logs[:-1].gather(-1, tokens[start + 1 : end, None])[:, 0]


def _scored(model: Any, tokens: torch.Tensor, window: int, stride: int) -> list[torch.Tensor]:
    """Return, for each window, -log p of the tokens that it is the first to hold."""
    found, done = [], 1
    for start in range(0, len(tokens), stride):
        end = min(start + window, len(tokens))
        found.append(_surprises(model, tokens, start, end)[done - start - 1 :])
        done = end
        if end == len(tokens):
            break
    return found


def _rolled(
    model: Any, tokens: torch.Tensor, window: int, stride: int, *, whole: bool
) -> list[torch.Tensor]:
    """Score each place once, the last one by the first token: of the whole text or of a window."""
    found, done = [], 0
    for start in range(0, len(tokens), stride):
        end = min(start + window, len(tokens))
        logs = torch.log_softmax(model(tokens[None, start:end])[0], -1)
        targets = tokens.roll(-1)[start:end] if whole else tokens[start:end].roll(-1)
        found.append(-logs.gather(-1, targets[:, None])[done - start :, 0])
        done = end
        if end == len(tokens):
            break
    return found


def _expect_float(got: Any, wanted: float, mistakes: dict[str, Any], otherwise: str, given: Any):
    if isinstance(got, torch.Tensor) and got.numel() == 1 and not got.is_complex():
        got = float(got)
    message = ""
    if isinstance(got, bool) or not isinstance(got, int | float):
        message = f"The result is a {type(got).__name__}. Return a float."
    elif not math.isclose(got, wanted, rel_tol=1e-6):
        slips = (
            words for words, values in mistakes.items()
            if any(math.isclose(got, float(value), rel_tol=1e-6) for value in values)
        )
        message = next(slips, otherwise)
    if message:
        raise Wrong(message, given=given, got=got, wanted=wanted)


def _text() -> torch.Tensor:
    return torch.tensor([3, 0, 2, 2, 1, 4, 0, 3, 1, 1, 2, 4])


def _perplexity_windows(measure: Any) -> None:
    """Every token but the first is scored once, by the first window that holds it."""
    tokens, window, stride = _text(), 5, 3
    quiet = _reader(5, window, [])
    pieces = _scored(quiet, tokens, window, stride)
    each = torch.cat(pieces)
    n = len(tokens)
    starts = range(0, n - 1, stride)
    again = torch.cat([_surprises(quiet, tokens, s, min(s + window, n)) for s in starts])
    apart = torch.cat([_surprises(quiet, tokens, s, min(s + window, n))
                       for s in range(0, n - 1, window)])
    full = torch.cat([_surprises(quiet, tokens, s, s + window)
                      for s in range(0, n - window + 1, stride)])
    moved = torch.cat(_scored(quiet, tokens, window, 1))
    overlapping = torch.cat([_surprises(quiet, tokens, s, s + window)
                             for s in range(n - window + 1)])
    means = torch.stack([piece.mean() for piece in pieces])
    read = []
    done = 0
    for s in starts:
        end = min(s + window, n)
        logs = torch.log_softmax(quiet(tokens[None, s:end])[0], -1)
        read.append(-logs.gather(-1, tokens[s:end, None])[done - s if s else 0 :, 0])
        done = end
    rolled = [
        torch.cat(_rolled(quiet, tokens, window, stride, whole=whole)).mean().exp()
        for whole in (True, False)
    ]
    right = each.mean().exp().item()
    got = measure(_reader(5, window, []), tokens, window, stride)
    _expect_float(
        got, right,
        {
            "Tokens in two windows were scored twice. A window scores those that no window before "
            "it held.": [again.mean().exp(), overlapping.mean().exp()],
            "The windows do not overlap, so the first token of each was not scored. They begin at "
            "0, stride, 2·stride, ...": [apart.mean().exp()],
            "The last window was dropped because it is shorter than the others.":
                [full.mean().exp()],
            "The windows moved by one token. They move by `stride`.": [moved.mean().exp()],
            "The mean was taken in each window, then over the windows. A window that scores few "
            "tokens would count as much as a full one.": [means.mean().exp(), means.exp().mean()],
            "The mean of the perplexities of single tokens was taken. Take the mean of -log p "
            "first, then exp.": [each.exp().mean()],
            "This is the mean of -log p, the cross-entropy. The perplexity is its exp.":
                [each.mean(), each.mean() / math.log(2)],
            "-log p was summed, not averaged.": [each.sum().exp(), each.sum()],
            "The sum was divided by N. The first token is not scored: there are N - 1.":
                [(each.sum() / n).exp()],
            "The power of 2 was taken of natural logarithms. It is exp.": [2 ** each.mean()],
            "The sign of the logarithm is missing.": [(-each.mean()).exp()],
            "Each token was scored by the logits of its own place, which have read it. The logits "
            "of place i predict token i + 1.": [torch.cat(read).mean().exp()],
            "The targets were rolled around: the last place was scored by the first token. Nothing "
            "follows the last token, so its logits are not scored.": rolled,
        },
        "The perplexity is not exp of the mean of -log p over the scored tokens.",
        {"tokens": tokens, "context": window, "stride": stride},
    )


def _perplexity_short(measure: Any) -> None:
    """A text that fits into one window needs one pass."""
    for tokens, window in ((_text()[:5], 7), (_text()[:5], 5), (_text()[:2], 5)):
        right = _surprises(_reader(5, window, []), tokens, 0, len(tokens)).mean().exp().item()
        calls: list[int] = []
        got = measure(_reader(5, window, calls), tokens, window, 2)
        given = {"tokens": tokens, "context": window, "stride": 2}
        _expect_float(got, right, {}, "With a single window the result differs.", given)
        if len(calls) != 1:
            raise Wrong(
                f"The text fits into one window, but the model was called {len(calls)} times: stop "
                "when a window reaches the end.", given=given, got=len(calls), wanted=1,
            )


def _perplexity_strides(measure: Any) -> None:
    """Any stride below the window works, with no more passes than there are windows."""
    for n, window, stride in ((11, 5, 1), (11, 5, 4), (10, 4, 2), (11, 2, 1)):
        tokens = _text()[:n]
        pieces = _scored(_reader(5, window, []), tokens, window, stride)
        calls: list[int] = []
        got = measure(_reader(5, window, calls), tokens, window, stride)
        given = {"tokens": tokens, "context": window, "stride": stride}
        _expect_float(
            got, torch.cat(pieces).mean().exp().item(), {},
            f"With windows of {window} tokens and stride {stride} the result differs.", given,
        )
        if len(calls) > len(pieces):
            raise Wrong(
                f"The model was called {len(calls)} times for {len(pieces)} windows: stop when a "
                "window reaches the end.", given=given, got=len(calls), wanted=len(pieces),
            )


def _perplexity_uniform(measure: Any) -> None:
    """A model that knows nothing has the perplexity V."""
    tokens = _text().repeat(3)
    got = measure(lambda tokens: torch.zeros(1, tokens.shape[1], 5), tokens, 7, 5)
    _expect_float(
        got, 5.0, {}, "A model for which all five tokens are equally likely has perplexity 5.",
        {"tokens": tokens, "context": 7, "stride": 5},
    )


WINDOWED_PERPLEXITY = Exercise(
    name="windowed-perplexity",
    title="Perplexity of a long text",
    level=3,
    section='chapters/12_generation, section "How surprised is the model?"',
    stub=perplexity,
    properties=(
        _perplexity_windows, _perplexity_short, _perplexity_strides, _perplexity_uniform,
    ),
    hints=(
        "Keep the number of the first token that is not scored yet. What does a window add to it?",
        "In the window that begins at s, token t is predicted by row t - 1 - s of the logits. "
        "Score the tokens from `done` to the end of the window, then move `done` to that end.",
        "`done = 1`; for each start `s`: `end = min(s + context, N)`, "
        "`logs = model(tokens[None, s:end])[0].log_softmax(-1)`, "
        "`logs[done - 1 - s : end - 1 - s].gather(-1, tokens[done:end, None])`, `done = end`.",
    ),
)

EXERCISES = (SPECULATIVE_STEP, WINDOWED_PERPLEXITY)
