"""One token at a time: generate and stream.

A model is here anything with ``decode(tokens, state=None, *, mask=None, last=False)``, which
returns logits (B, N, V) and a state to continue from, so that every token is read once. The state
has ``select(rows)``, since sequences end at different times. The models of this package fit, and so
does :class:`tfbook.generation.TableModel`, small enough to compute everything about it by hand.

Explained in: chapters/12_generation, section "One token at a time".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tfbook._checks import check_callable, check_number
from tfbook.attention import Cache, StaticCache
from tfbook.generation.prompts import (
    LanguageModel,
    Prompt,
    Stop,
    check_room,
    device_of,
    make_generator,
    pad,
    read_prompts,
    read_stop,
    start_state,
)
from tfbook.generation.sampling import GREEDY, Sampling, check_sampling, draw, greedy, log_prob_of

__all__ = ["Generation", "generate", "stream"]


@dataclass(frozen=True)
class Generation:
    """What was generated.

    Attributes:
        prompts: the ids each sequence began with.
        tokens: the new ids of each sequence, the stop included.
        log_probs: ln p of each new token, as the model gives it: before any temperature or cut.
        finished: whether each sequence met a stop condition; False where max_new_tokens cut it.

    Explained in: chapters/12_generation, section "One token at a time".
    """

    prompts: list[list[int]]
    tokens: list[list[int]]
    log_probs: list[list[float]]
    finished: list[bool]

    @property
    def sequences(self) -> list[list[int]]:
        """Return prompts and new tokens together."""
        return [a + b for a, b in zip(self.prompts, self.tokens, strict=True)]


def generate(
    model: LanguageModel,
    prompt: Prompt,
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop: Stop = (),
    seed: int | torch.Generator | None = None,
    state: Any = None,
    cache: Cache | None = None,
    pad_id: int = 0,
    on_token: Callable[[int, int], object] | None = None,
) -> Generation:
    """Continue each prompt: read it, choose a token, read that one, and so on until it stops.

    Prompts of different lengths are padded on the left and the padding is masked, so each
    continues as it would alone. A sequence that has stopped leaves the batch, and does not change
    what the others draw: each has its own random numbers.

    Args:
        model: see :class:`tfbook.generation.LanguageModel`; in evaluation mode.
        prompt: ids of one sequence, of several, or (B, N).
        max_new_tokens: how many tokens to add at most.
        sampling: how the next token is chosen; when omitted the most likely one.
        stop: when a sequence ends: ids, sequences of ids, or a function of the new ids so far.
        seed: makes the draws repeatable; or where random numbers come from.
        state: what the model has read before the prompt; for an encoder-decoder
            ``model.remember(source)``.
        cache: how the past is held, see :mod:`tfbook.attention.caches`; when omitted a static cache
            of the right length, where the model has ``empty_state``.
        pad_id: the id that fills up short prompts; it is masked.
        on_token: called with the number of the sequence and the id for each new token.

    Returns:
        The new tokens and their log-probabilities.

    Raises:
        ValueError: for a model in training mode, an empty prompt, more tokens than the model's
            context holds, a state beside a cache, or logits from which no token can be chosen.

    Cost: one forward pass over the prompt and one over a single row for each further token.

    Example:
        >>> from tfbook.generation import TableModel
        >>> loop = TableModel(torch.eye(3).roll(1, dims=1) * 9)  # 0 → 1 → 2 → 0
        >>> generate(loop, [0], max_new_tokens=4).tokens
        [[1, 2, 0, 1]]
        >>> generate(loop, [0], max_new_tokens=4, sampling=Sampling(top_p=0.9), seed=1).tokens
        [[1, 2, 0, 1]]

    Explained in: chapters/12_generation, section "One token at a time".
    """
    texts = read_prompts(prompt)
    if on_token is not None:
        check_callable("on_token", on_token)
    steps = _steps(model, texts, max_new_tokens, sampling, stop, seed, state, cache, pad_id)
    tokens, log_probs = [[] for _ in texts], [[] for _ in texts]
    finished = [False for _ in texts]
    for row, token, log_prob, ended in steps:
        tokens[row].append(token)
        log_probs[row].append(log_prob)
        finished[row] = ended
        if on_token is not None:
            on_token(row, token)
    return Generation(texts, tokens, log_probs, finished)


def stream(
    model: LanguageModel,
    prompt: Prompt,
    *,
    max_new_tokens: int,
    sampling: Sampling = GREEDY,
    stop: Stop = (),
    seed: int | torch.Generator | None = None,
    state: Any = None,
    cache: Cache | None = None,
) -> Iterator[int]:
    """Yield the tokens of one sequence as they are made; stop asking and nothing more is computed.

    Arguments and errors are those of :func:`generate`, with one prompt; they are checked at the
    call, before the first token.

    Example:
        >>> from tfbook.generation import TableModel
        >>> loop = TableModel(torch.eye(3).roll(1, dims=1) * 9)
        >>> tokens = stream(loop, [0], max_new_tokens=100)
        >>> next(tokens), next(tokens)
        (1, 2)

    Explained in: chapters/12_generation, section "One token at a time".
    """
    texts = read_prompts(prompt)
    if len(texts) != 1:
        raise ValueError(f"stream takes one prompt, got {len(texts)}; generate takes several")
    steps = _steps(model, texts, max_new_tokens, sampling, stop, seed, state, cache, pad_id=0)
    return (token for _, token, _, _ in steps)


def _steps(model, texts, max_new_tokens, sampling, stop, seed, state, cache, pad_id):
    """Check and prepare; return the loop, which computes nothing before it is asked."""
    check_room(model, texts, max_new_tokens, state)
    check_sampling(sampling)
    check_number("pad_id", pad_id, 0, whole=True)
    if state is not None and cache is not None:
        raise ValueError("state and cache exclude each other: the state is a cache already")
    ended, generator = read_stop(stop), make_generator(seed)
    tokens, mask = pad(texts, pad_id, device_of(model), left=True)  # (B, N) both
    if state is None:
        room = StaticCache(tokens.shape[1] + max_new_tokens)
        state = start_state(model, len(tokens), cache, room)
    return _loop(model, texts, max_new_tokens, sampling, ended, generator, tokens, mask, state)


def _loop(model, texts, max_new_tokens, sampling, ended, generator, tokens, mask, state):
    """Yield number of the sequence, id, log-probability and whether it ends, token by token."""
    new, rows = [[] for _ in texts], list(range(len(texts)))  # rows: those under way
    for _ in range(max_new_tokens):
        logits, state = _next_logits(model, tokens, state, mask)  # (B, V)
        changed = sampling(logits, [texts[row] + new[row] for row in rows])  # (B, V)
        if sampling.draws:
            # One number for each sequence of the whole batch, though some have stopped: what one
            # draws depends on no other.
            uniform = torch.rand(len(texts), generator=generator, dtype=torch.float64)
            ids = draw(changed, uniform[rows])  # (B,)
        else:
            ids = greedy(changed)  # (B,)
        keep = []
        chosen = zip(rows, ids.tolist(), log_prob_of(logits, ids).tolist(), strict=True)
        for place, (row, token, log_prob) in enumerate(chosen):
            new[row].append(token)
            over = ended(new[row])
            keep += [] if over else [place]
            yield row, token, log_prob, over
        if not keep:
            return
        if len(keep) < len(rows):
            kept = torch.tensor(keep)
            state, ids, rows = (
                state.select(kept.to(tokens.device)),
                ids[kept],
                [rows[i] for i in keep],
            )
        tokens, mask = ids[:, None].to(tokens.device), None  # the state remembers what was padding


@torch.no_grad()  # here and not on the generator above, which hands out tokens in between
def _next_logits(model, tokens, state, mask):
    logits, state = model.decode(tokens, state, mask=mask, last=True)  # (B, 1, V)
    # Chosen on the CPU, so that a seed gives the same tokens wherever the model runs.
    return logits[:, -1].cpu(), state
