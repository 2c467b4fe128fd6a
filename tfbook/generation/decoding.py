"""One token at a time: generate, stream, and score what a model makes of a text.

A model is here anything with ``decode(tokens, state=None, *, mask=None, last=False)``, which
returns logits (B, N, V) and a state to continue from, so that every token is read once. The state
has ``select(rows)``, since sequences end at different times. The models of this package fit, and so
does :class:`TableModel`, small enough to compute everything about it by hand.

Explained in: chapters/12_generation, section "One token at a time".
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfbook._checks import check_count, check_float
from tfbook.attention import Cache, StaticCache
from tfbook.generation.prompts import (
    LanguageModel,
    Prompt,
    Stop,
    check_model,
    check_room,
    context_of,
    device_of,
    make_generator,
    pad,
    read_prompts,
    read_stop,
    start_state,
)
from tfbook.generation.sampling import draw, greedy, warp
from tfbook.generation.sampling import repetition_penalty as penalise

__all__ = [
    "Generation",
    "TableModel",
    "TableState",
    "generate",
    "perplexity",
    "score",
    "stream",
]


# Of how many rows logits are held at a time: 256 rows of 50,000 numbers are 50 MB.
MOST_ROWS = 256


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
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    sampler: Callable[[Tensor], Tensor] | None = None,
    stop: Stop = (),
    seed: int | None = None,
    generator: torch.Generator | None = None,
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
        temperature: 0 takes the most likely token, above 0 draws; see
            :func:`tfbook.generation.temperature`.
        top_k: see :func:`tfbook.generation.top_k`; like the next two for a temperature above 0.
        top_p: see :func:`tfbook.generation.top_p`.
        min_p: see :func:`tfbook.generation.min_p`.
        repetition_penalty: see :func:`tfbook.generation.repetition_penalty`.
        sampler: a function of logits (B, V) whose result is drawn from, instead of the four
            numbers.
        stop: when a sequence ends: ids, sequences of ids, or a function of the new ids so far.
        seed: makes the draws repeatable.
        generator: where random numbers come from, instead of a seed.
        state: what the model has read before the prompt; for an encoder-decoder
            ``model.remember(source)``.
        cache: how the past is held, see :mod:`tfbook.attention.caches`; when omitted a static cache
            of the right length, where the model has ``empty_state``.
        pad_id: the id that fills up short prompts; it is masked.
        on_token: called with the number of the sequence and the id for each new token.

    Returns:
        The new tokens and their log-probabilities.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a model in training mode, an empty prompt, more tokens than the model's
            context holds, or a number out of its range.

    Cost: one forward pass over the prompt and one over a single row for each further token.

    Example:
        >>> loop = TableModel(torch.eye(3).roll(1, dims=1) * 9)  # 0 → 1 → 2 → 0
        >>> generate(loop, [0], max_new_tokens=4).tokens
        [[1, 2, 0, 1]]

    Explained in: chapters/12_generation, section "One token at a time".
    """
    prompts = read_prompts(prompt)
    steps = _steps(
        model,
        prompts,
        check_room(model, prompts, max_new_tokens, state),
        _picker(temperature, top_k, top_p, min_p, sampler, make_generator(seed, generator)),
        read_stop(stop),
        penalty=repetition_penalty,
        state=state,
        cache=cache,
        pad_id=pad_id,
    )
    tokens, log_probs = [[] for _ in prompts], [[] for _ in prompts]
    finished = [False for _ in prompts]
    for row, token, log_prob, ended in steps:
        tokens[row].append(token)
        log_probs[row].append(log_prob)
        finished[row] = ended
        if on_token is not None:
            on_token(row, token)
    return Generation(prompts, tokens, log_probs, finished)


def stream(
    model: LanguageModel,
    prompt: Prompt,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    sampler: Callable[[Tensor], Tensor] | None = None,
    stop: Stop = (),
    seed: int | None = None,
    generator: torch.Generator | None = None,
    state: Any = None,
    cache: Cache | None = None,
) -> Iterator[int]:
    """Yield the tokens of one sequence as they are made; stop asking and nothing more is computed.

    Arguments and errors are those of :func:`generate`, with one prompt; they are checked at the
    call, before the first token.

    Example:
        >>> loop = TableModel(torch.eye(3).roll(1, dims=1) * 9)
        >>> tokens = stream(loop, [0], max_new_tokens=100)
        >>> next(tokens), next(tokens)
        (1, 2)

    Explained in: chapters/12_generation, section "One token at a time".
    """
    prompts = read_prompts(prompt)
    if len(prompts) != 1:
        raise ValueError(f"stream takes one prompt, got {len(prompts)}; generate takes several")
    steps = _steps(
        model,
        prompts,
        check_room(model, prompts, max_new_tokens, state),
        _picker(temperature, top_k, top_p, min_p, sampler, make_generator(seed, generator)),
        read_stop(stop),
        penalty=repetition_penalty,
        state=state,
        cache=cache,
        pad_id=0,
    )
    return (token for _, token, _, _ in steps)


@torch.no_grad()
def score(
    model: LanguageModel,
    tokens: Prompt,
    *,
    state: Any = None,
    context: int | None = None,
    stride: int | None = None,
    pad_id: int = 0,
) -> Float[Tensor, "B T"]:
    """Return the log-probability of each token given those before it.

    scores[b, i] = ln p(token i + 1 | tokens 0 … i). Where a text is longer than the context,
    windows of that length move over it by ``stride``, and each token is scored in the first
    window that holds it, with at least context − stride tokens before it.

    Args:
        model: see :class:`tfbook.generation.LanguageModel`; in evaluation mode.
        tokens: ids of one sequence, of several, or (B, N), N at least 2.
        state: what the model has read before, such as ``model.remember(source)``; then the
            tokens must fit one window.
        context: length of a window; when omitted the model's ``config.max_len``, or N.
        stride: from 1 to context − 1; half the context when omitted.
        pad_id: the id that fills up short sequences behind; it is masked.

    Returns:
        Nats, (B, N − 1), in falling surprise from −∞ to 0; 0 behind the end of a shorter sequence.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a model in training mode, sequences of fewer than two tokens, or a number
            out of its range.

    Cost: one forward pass over each window, in pieces, so that few logits are held at a time.

    Example:
        >>> fair = TableModel(torch.zeros(2, 2))
        >>> score(fair, [0, 1, 1]).exp()
        tensor([[0.5000, 0.5000]])

    Explained in: chapters/12_generation, section "How surprised is the model?".
    """
    sequences = read_prompts(tokens, name="tokens", shortest=2)
    check_model(model)
    ids, mask = pad(sequences, pad_id, device_of(model), left=False)  # (B, N) both
    n = ids.shape[1]
    context = min(context_of(model) or n, n) if context is None else context
    check_count("context", context, minimum=2)
    stride = max(context // 2, 1) if stride is None else stride
    check_count("stride", stride, minimum=1)
    if stride >= context:
        raise ValueError(f"stride must be below context = {context}, got {stride}")
    if state is not None and n > context:
        raise ValueError(f"behind a state the tokens must fit one window of {context}, got {n}")
    found, done, start = [], 1, 0  # tokens before `done` are scored; the first has none before it
    while done < n:
        window = slice(start, start + context)
        part = None if mask is None else mask[:, window]
        scores = _score_window(model, ids[:, window], part, state)  # (B, W − 1)
        found.append(scores[:, done - 1 - start :])  # the others stand in an earlier window
        done, start = start + context, start + stride
    scores = torch.cat(found, dim=1)  # (B, N − 1)
    return scores if mask is None else scores.masked_fill(~mask[:, 1:], 0.0)


def _score_window(model, ids, mask, state):
    """Return ln p of the tokens behind the first, (B, W − 1)."""
    found = []
    for first in range(0, ids.shape[1] - 1, MOST_ROWS):
        rows = slice(first, min(first + MOST_ROWS, ids.shape[1] - 1))
        part = None if mask is None else mask[:, rows]
        logits, state = model.decode(ids[:, rows], state, mask=part)  # (B, R, V)
        found.append(_log_probs(logits, ids[:, rows.start + 1 : rows.stop + 1]))
    return torch.cat(found, dim=1)


def perplexity(
    model: LanguageModel,
    tokens: Prompt,
    *,
    context: int | None = None,
    stride: int | None = None,
) -> float:
    """Return exp of the mean surprise per token: as unsure as between so many equal choices.

    PPL = exp(−(1/T) Σ_t ln p(x_t | x_<t)), over all T tokens that have one before them.

    Args:
        model: see :class:`tfbook.generation.LanguageModel`; in evaluation mode.
        tokens: ids of one sequence, of several, or (B, N).
        context: see :func:`score`.
        stride: see :func:`score`.

    Returns:
        From 1, no surprise, to ∞; V for a model that knows nothing.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: as :func:`score`.

    Example:
        >>> round(perplexity(TableModel(torch.zeros(5, 5)), [0, 3, 1, 4]), 4)
        5.0

    Explained in: chapters/12_generation, section "How surprised is the model?".
    """
    sequences = read_prompts(tokens, name="tokens", shortest=2)
    scores = score(model, sequences, context=context, stride=stride).double()
    return math.exp(-scores.sum().item() / sum(len(sequence) - 1 for sequence in sequences))


@dataclass(frozen=True)
class TableState:
    """How far a table model has read; it needs to know nothing else.

    Explained in: chapters/12_generation, section "Beam search".
    """

    batch: int
    length: int

    def select(self, rows: Int[Tensor, " S"]) -> "TableState":
        """Return the state of the chosen sequences."""
        return TableState(len(rows), self.length)

    def truncate(self, length: int) -> "TableState":
        """Return the state as it was after ``length`` tokens."""
        return TableState(self.batch, length)


class TableModel:
    """A bigram model read off a table: what comes next depends on the last token alone.

    Small enough to know every probability, so that a way of decoding can be checked by hand.

    Args:
        logits: row i are the logits of what follows token i, (V, V); logarithms of
            probabilities will do.

    Raises:
        TypeError: if they are not floating point.
        ValueError: if the table is not square.

    Source: [shannon1948mathematical]
    Explained in: chapters/12_generation, section "Beam search".
    """

    def __init__(self, logits: Float[Tensor, "V V"]):
        """Keep the table."""
        check_float("logits", logits)
        if logits.ndim != 2 or logits.shape[0] != logits.shape[1]:
            raise ValueError(f"logits must have shape (V, V), got {tuple(logits.shape)}")
        self.logits = logits

    def decode(
        self,
        tokens: Int[Tensor, "B N"],
        state: TableState | None = None,
        *,
        mask: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Float[Tensor, "B _ V"], TableState]:
        """Look up the row of each token; see :meth:`tfbook.generation.LanguageModel.decode`.

        Raises:
            ValueError: if an id is outside of the table.
        """
        if tokens.min() < 0 or tokens.max() >= len(self.logits):
            raise ValueError(
                f"tokens must be from 0 to {len(self.logits) - 1}, "
                f"got {tokens.min().item()} … {tokens.max().item()}"
            )
        read = tokens[:, -1:] if last else tokens
        past = 0 if state is None else state.length
        return self.logits[read], TableState(len(tokens), past + tokens.shape[1])


def _steps(model, prompts, max_new_tokens, pick, ended, *, penalty, state, cache, pad_id):
    """Yield number of the sequence, id, log-probability and whether it ends, token by token."""
    check_count("pad_id", pad_id)
    device = device_of(model)
    tokens, mask = pad(prompts, pad_id, device, left=True)  # (B, N) both
    if state is None:
        room = StaticCache(tokens.shape[1] + max_new_tokens)
        state = start_state(model, len(tokens), cache, room)
    elif cache is not None:
        raise ValueError("state and cache exclude each other: the state is a cache already")
    new, rows = [[] for _ in prompts], list(range(len(prompts)))
    for _ in range(max_new_tokens):
        logits, state = _next_logits(model, tokens, state, mask)  # (B, V)
        changed = logits
        if penalty is not None:
            so_far = [prompts[row] + new[row] for row in rows]
            seen, real = pad(so_far, pad_id, logits.device, left=True)  # (B, N) both
            changed = penalise(logits, seen, penalty, mask=real)
        ids = pick(changed, rows, len(prompts))  # (B,)
        chosen = zip(rows, ids.tolist(), _log_probs(logits, ids).tolist(), strict=True)
        keep = []
        for place, (row, token, log_prob) in enumerate(chosen):
            new[row].append(token)
            over = ended(new[row])
            keep += [] if over else [place]
            yield row, token, log_prob, over
        if not keep:
            return
        if len(keep) < len(rows):
            kept = torch.tensor(keep)
            state, ids, rows = state.select(kept.to(device)), ids[kept], [rows[i] for i in keep]
        tokens, mask = ids[:, None].to(device), None  # the state remembers what was padding


@torch.no_grad()  # here and not on the generator above, which hands out tokens in between
def _next_logits(model, tokens, state, mask):
    logits, state = model.decode(tokens, state, mask=mask, last=True)  # (B, 1, V)
    # Chosen on the CPU, so that a seed gives the same tokens wherever the model runs.
    return logits[:, -1].cpu(), state


def _picker(temperature, top_k, top_p, min_p, sampler, generator):
    """Return what chooses ids (B,) from logits (B, V), given which of how many sequences."""
    cuts = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    given = [name for name, value in cuts.items() if value is not None]
    if sampler is not None:
        if given or temperature:
            raise ValueError("sampler replaces temperature, top_k, top_p and min_p: give one kind")
    elif temperature == 0 and not isinstance(temperature, bool):
        if given:
            raise ValueError(
                f"{given[0]} has no effect on the most likely token: "
                "choose a temperature above 0 to draw"
            )
        return lambda logits, rows, batch: greedy(logits)
    else:

        def sampler(logits):
            return warp(logits, temperature=temperature, **cuts)

        sampler(torch.zeros(1, 2))  # numbers out of their range are refused before the model runs

    def pick(logits, rows, batch):
        # One number for each sequence of the whole batch, though some have stopped: what one
        # draws depends on no other.
        uniform = torch.rand(batch, generator=generator, dtype=torch.float64)
        return draw(sampler(logits), uniform[rows])

    return pick


def _log_probs(logits: Float[Tensor, "*B V"], ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return ln softmax(logits)[ids] without forming the whole of it."""
    chosen = logits.gather(-1, ids[..., None]).squeeze(-1)
    return chosen - logits.logsumexp(dim=-1)
