"""The exercise of chapter 12 on measuring surprise, window by window."""

import math
from collections.abc import Callable
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, Wrong

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
    section='chapters/12_generation_deeper, section "How surprised is the model?"',
    stub=perplexity,
    properties=(
        _perplexity_windows, _perplexity_short, _perplexity_strides, _perplexity_uniform,
    ),
    hints=(
        "Keep the number of the first token that is not scored yet. What does a window add to it?",
        "In the window that begins at s, token t is predicted by row t - 1 - s of the logits. "
        "Score the tokens from `done` to the end of the window, then move `done` to that end.",
        "So in each window the rows `done - 1 - s : end - 1 - s` count, where `end` is the smaller "
        "of s + context and N. Add up what they give to their tokens; divide only at the very end.",
    ),
)

EXERCISES = (WINDOWED_PERPLEXITY,)
