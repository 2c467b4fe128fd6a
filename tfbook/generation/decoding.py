"""One token at a time: generate and stream.

A model is here anything with ``decode(tokens, state=None, *, mask=None, last=False)``, which
returns logits (B, N, V) and a state to continue from, so that every token is read once. The state
has ``select(rows)``, since sequences end at different times. The models of this package fit, and so
does :class:`tfbook.generation.TableModel`, small enough to compute everything about it by hand.

Explained in: chapters/12_generation, section "One token at a time".
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from tfbook._checks import check_bool, check_callable
from tfbook.attention import Cache, StaticCache
from tfbook.generation.prompts import (
    LanguageModel,
    Prompt,
    Stop,
    TextModel,
    check_room,
    context_of,
    device_of,
    forgets,
    make_generators,
    pad,
    read_asked,
    read_stop,
    start_state,
)
from tfbook.generation.sampling import GREEDY, Sampling, check_sampling, draw, greedy, log_prob_of
from tfbook.generation.streaming import pieces

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
    model: LanguageModel | TextModel,
    prompt: Prompt | str | Sequence[str],
    *,
    mask: Bool[Tensor, "B N"] | None = None,
    max_new_tokens: int | None = None,
    sampling: Sampling = GREEDY,
    stop: Stop | None = None,
    seed: int | Sequence[int] | torch.Generator | None = None,
    state: Any = None,
    cache: Cache | None = None,
    crop: bool = False,
    pad_id: int | None = None,
    on_token: Callable[[int, int], object] | None = None,
) -> Generation:
    """Continue each prompt: read it, choose a token, read that one, and so on until it stops.

    Prompts of different lengths are padded on the left and the padding is masked, so each
    continues as it would alone. A sequence that has stopped leaves the batch, and does not change
    what the others draw: each has its own random numbers.

    A text that has filled the model's context (``config.max_len``) is refused, unless one chooses
    how it goes on. With ``crop`` the model reads the last half of the context anew, at any kind of
    position. With ``SlidingCache(window)`` each token sees the ``window`` last ones, which needs
    positions that tell distances only (rotary, T5, ALiBi) and reads nothing twice. Either way each
    sequence goes on as it would alone.

    Args:
        model: see :class:`tfbook.generation.LanguageModel`, in evaluation mode; or one with its
            tokenizer, see :class:`tfbook.pretrained.Pretrained`.
        prompt: ids of one sequence, of several, or (B, N); with a tokenizer also texts.
        mask: for ids (B, N) that were filled up, on either side: True = token.
        max_new_tokens: how many tokens to add at most; 256 when omitted, or as many as the context
            has room for.
        sampling: how the next token is chosen; when omitted the most likely one.
        stop: when a sequence ends: ids, sequences of ids, or a function of the new ids so far. When
            omitted, the tokens that end a text if there is a tokenizer; else nothing.
        seed: makes the draws repeatable: sequence i draws what it would draw alone with seed + i.
            Or a list, with a seed for each sequence; or a generator, from which the first of these
            seeds is drawn.
        state: what the model has read before the prompt; for an encoder-decoder
            ``model.remember(source)``.
        cache: how the past is held, see :mod:`tfbook.attention.caches`; when omitted a static cache
            of the right length, where the model has ``empty_state``.
        crop: whether to go on where the context is full.
        pad_id: the id that fills up short prompts, 0 when omitted; it is masked.
        on_token: called with the number of the sequence and the id for each new token.

    Returns:
        The new tokens and their log-probabilities.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a model in training mode, an empty prompt, more tokens than the model's
            context holds, padding that no mask tells, a state beside a cache, or logits from which
            no token can be chosen.

    Cost: one forward pass over the prompt and one over a single row for each further token; with
        ``crop`` one over half the context each time that it is full.

    Example:
        >>> from tfbook.generation import TableModel
        >>> loop = TableModel(torch.eye(3).roll(1, dims=1) * 9)  # 0 → 1 → 2 → 0
        >>> generate(loop, [0], max_new_tokens=4).tokens
        [[1, 2, 0, 1]]
        >>> generate(loop, [0], max_new_tokens=4, sampling=Sampling(top_p=0.9), seed=1).tokens
        [[1, 2, 0, 1]]

    Explained in: chapters/12_generation, section "One token at a time".
    """
    if on_token is not None:
        check_callable("on_token", on_token)
    asked = read_asked(model, prompt, mask, stop, pad_id)
    texts = asked.prompts
    steps = _steps(asked, max_new_tokens, sampling, seed, state, cache, crop)
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
    model: LanguageModel | TextModel,
    prompt: Prompt | str | Sequence[str],
    *,
    mask: Bool[Tensor, "B N"] | None = None,
    max_new_tokens: int | None = None,
    sampling: Sampling = GREEDY,
    stop: Stop | None = None,
    seed: int | torch.Generator | None = None,
    state: Any = None,
    cache: Cache | None = None,
    crop: bool = False,
) -> Iterator[int] | Iterator[str]:
    """Yield what is generated as it is made; stop asking and nothing more is computed.

    To ids as a prompt come ids. To a text, which takes a :class:`tfbook.pretrained.Pretrained`,
    come pieces of text, see :func:`tfbook.generation.pieces`.

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
    asked = read_asked(model, prompt, mask, stop, None)
    if len(asked.prompts) != 1:
        raise ValueError(
            f"stream takes one prompt, got {len(asked.prompts)}; generate takes several"
        )
    steps = _steps(asked, max_new_tokens, sampling, seed, state, cache, crop)
    tokens = (token for _, token, _, _ in steps)
    texts = not isinstance(prompt, Tensor) and all(isinstance(part, str) for part in prompt)
    return pieces(tokens, model.decode) if texts else tokens


def _steps(asked, max_new_tokens, sampling, seed, state, cache, crop):
    """Check and prepare; return the loop, which computes nothing before it is asked."""
    model, texts, stop, pad_id = asked
    check_bool("crop", crop)
    if crop and not (state is None and cache is None):
        raise ValueError("crop begins anew with an empty state: it goes without state and cache")
    if state is not None and cache is not None:
        raise ValueError("state and cache exclude each other: the state is a cache already")
    limit = context_of(model) if crop else None
    shown = texts if limit is None else [text[-limit:] for text in texts]
    endless = limit is not None or forgets(model, cache)
    max_new_tokens = check_room(model, shown, max_new_tokens, state, endless=endless)
    check_sampling(sampling)
    ended = read_stop(stop)
    generators = make_generators(seed, len(texts) if sampling.draws else 0)
    most = max(map(len, texts)) + max_new_tokens
    room = StaticCache(most if limit is None else min(most, limit))

    def begin(sequences):
        """Return ids (B, N), which are tokens, and an empty state; cut what is too long."""
        for sequence in sequences if limit is not None else ():
            if len(sequence) > limit:
                del sequence[: -((limit + 1) // 2)]
        tokens, mask = pad(sequences, pad_id, device_of(model), left=True)
        fresh = start_state(model, len(tokens), cache, room) if state is None else state
        return tokens, mask, fresh

    return _loop(model, texts, max_new_tokens, sampling, ended, generators, begin, limit)


def _loop(model, texts, max_new_tokens, sampling, ended, generators, begin, limit):
    """Yield number of the sequence, id, log-probability and whether it ends, token by token."""
    new, rows = [[] for _ in texts], list(range(len(texts)))  # rows: those under way
    held = [list(text) for text in texts]  # what the model reads of each
    tokens, mask, state = begin(held)
    for _ in range(max_new_tokens):
        logits, state = _next_logits(model, tokens, state, mask)  # (B, V)
        changed = sampling(logits, [texts[row] + new[row] for row in rows])  # (B, V)
        if sampling.draws:
            chance = [torch.rand((), generator=generators[i], dtype=torch.float64) for i in rows]
            ids = draw(changed, torch.stack(chance))  # (B,)
        else:
            ids = greedy(changed)  # (B,)
        keep = []
        chosen = zip(rows, ids.tolist(), log_prob_of(logits, ids).tolist(), strict=True)
        for place, (row, token, log_prob) in enumerate(chosen):
            new[row].append(token)
            held[row].append(token)
            over = ended(new[row])
            keep += [] if over else [place]
            yield row, token, log_prob, over
        if not keep:
            return
        full = limit is not None and state.length >= limit
        if len(keep) < len(rows):
            kept = torch.tensor(keep)
            ids, rows = ids[kept], [rows[i] for i in keep]
            state = state if full else state.select(kept.to(tokens.device))
        if full:
            tokens, mask, state = begin([held[row] for row in rows])
        else:  # the state remembers what was padding
            tokens, mask = ids[:, None].to(tokens.device), None


@torch.no_grad()  # here and not on the generator above, which hands out tokens in between
def _next_logits(model, tokens, state, mask):
    logits, state = model.decode(tokens, state, mask=mask, last=True)  # (B, 1, V)
    # Chosen on the CPU, so that a seed gives the same tokens wherever the model runs.
    return logits[:, -1].cpu(), state
