"""The exercises of chapter 12 on the cache."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    Wrong,
    expect,
    expect_gradients,
    numbers,
    parts,
)

Prompts = tuple[tuple[int, ...], ...]

# cached-loop ------------------------------------------------------------------------------------


def cached_greedy(
    decode: Callable[[torch.Tensor, object], tuple[torch.Tensor, object]],
    tokens: torch.Tensor,
    steps: int,
) -> torch.Tensor:
    """Continue a text greedily, with a cache.

    decode: from new tokens (1, n) and a state to logits (1, n, V) and the grown state; the state is
    None at the start.
    tokens: (1, t), int64, the prompt.
    steps: how many tokens to add.
    Returns: the text with the new tokens, (1, t + steps).
    """
    logits, state = decode(tokens, None)
    for _ in range(steps):
        new = logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat([tokens, new], dim=1)
        logits, _ = decode(new, state)
    return tokens


def _follower(read: Sequence[int]) -> int:
    """Return the token that the toy model names behind these; every one of them counts."""
    return (sum((i + 2) * token for i, token in enumerate(read)) + len(read)) % 11


def _text_of(prompt: Sequence[int], steps: int) -> list[int]:
    text = list(prompt)
    for _ in range(steps):
        text.append(_follower(text))
    return text


def _remembering(prompt: list[int], calls: list[int], watch: bool) -> Any:
    """Return a model whose state is what it has read; where it watches, it names a wrong input."""

    def decode(tokens: Any, state: Any = None) -> tuple[torch.Tensor, tuple[int, ...]]:
        if not isinstance(tokens, torch.Tensor) or tokens.ndim != 2 or tokens.shape[0] != 1:
            raise Wrong("decode takes tokens of shape (1, n), a batch of one.", got=tokens)
        past, new = tuple(state or ()), tuple(tokens[0].tolist())
        wanted = _text_of(prompt, len(calls))
        calls.append(len(new))
        if watch and [*past, *new] != wanted:
            slips = {
                "The prompt was not read as a whole, and in order, by the first call.":
                    len(calls) == 1,
                "The state has read the text already, and the whole text was handed over once "
                "more: hand over only what is unread.":
                    len(past) > 0 and list(new) == wanted,
                "The new token was handed over without the state, so the model has forgotten the "
                "text: hand over the state that `decode` returned.":
                    not past and list(new) == wanted[-1:],
                "The state that `decode` returned last was not handed over, but an older one.":
                    len(past) > 0 and list(new) == wanted[-1:],
            }
            words = next((words for words, true in slips.items() if true), "")
            raise Wrong(
                words or "What the model has read, state and new tokens together, is not the text.",
                given={"tokens": tokens, "state has read": list(past)},
                got=[*past, *new], wanted=wanted,
            )
        seen, logits = list(past), torch.zeros(1, len(new), 11)
        for place, token in enumerate(new):
            seen.append(token)
            logits[0, place, _follower(seen)] = 1.0
        return logits, tuple(seen)

    return decode


def _cached_reads(write: Any) -> None:
    """Each token is read once: first the prompt, then one new token at a time."""
    prompt: list[int] = [3, 1, 4, 1]
    calls: list[int] = []
    write(_remembering(prompt, calls, watch=True), torch.tensor([prompt]), 5)
    if calls != [4, 1, 1, 1, 1]:
        words = "The model should read the prompt once, and then one token in each call."
        if calls == [4, 5, 6, 7, 8]:
            words = "The whole text is read at every step: the text is right, but no cache is used."
        elif calls[:5] == [4, 1, 1, 1, 1]:
            words = "The model was called once too often: the last new token need not be read."
        elif calls == [1] * 8:
            words = "The prompt was read token by token. One call reads all of it."
        raise Wrong(words, got=calls, wanted=[4, 1, 1, 1, 1])


def _cached_text(write: Any) -> None:
    """What comes back is the prompt with the most likely tokens behind it."""
    for prompt, steps in (([3, 1, 4, 1], 5), ([7], 3), ([2, 9], 1)):
        text = torch.tensor([_text_of(prompt, steps)])
        got = write(_remembering(prompt, [], watch=False), torch.tensor([prompt]), steps)
        expect(
            got, text,
            "The text is not the prompt followed by the most likely tokens.",
            given={"tokens": torch.tensor([prompt]), "steps": steps},
            what="The text",
            mistakes={
                "The prompt is missing: the text holds it too.": text[:, len(prompt):],
                "Only the last token came back. Keep the text, and what is unread, apart.":
                    text[:, -1:],
                "The last new token is missing.": text[:, :-1],
            },
        )


CACHED_LOOP = Exercise(
    name="cached-loop",
    title="A state that stays behind",
    level=2,
    section='chapters/12_generation, section "The cache"',
    stub=cached_greedy,
    properties=(_cached_reads, _cached_text),
    hints=(
        "Write down for the first three calls which tokens the state has read before the call.",
        "After a call, the state that `decode` returns has read what was handed over as well. Who "
        "keeps it?",
        "Keep the `state` of each call, and read what is unread before you choose: then no call is "
        "made for the last new token, whose scores nobody needs.",
    ),
    broken=True,
)

# cached-step ------------------------------------------------------------------------------------


def cached_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Let new tokens attend to a cache and to one another, and grow the cache.

    The cache holds keys and values of M earlier tokens; N new ones come behind them. A new token
    attends to all earlier tokens, to itself, and to the new tokens before it. Scores are divided by
    √d.

    q: (B, H, N, d), of the new tokens. k: (B, H, N, d). v: (B, H, N, e). past_k: (B, H, M, d),
    with M = 0 at the start. past_v: (B, H, M, e).
    Returns: the result (B, H, N, e), and the cache for the next step: keys (B, H, M + N, d) and
    values (B, H, M + N, e).
    """
    ...


def _step_case(b: int, h: int, m: int, n: int, d: int, e: int) -> tuple[torch.Tensor, ...]:
    shapes = (b, h, n, d), (b, h, n, d), (b, h, n, e), (b, h, m, d), (b, h, m, e)
    return tuple(numbers(*shape, seed=481 + i) for i, shape in enumerate(shapes))


def _attend(q: Any, k: Any, v: Any, allowed: torch.Tensor | None = None, scale: float = 0.0) -> Any:
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return torch.softmax(scores, -1) @ v


def _seen(n: int, m: int) -> torch.Tensor:
    return torch.ones(n, m + n, dtype=torch.bool).tril(m)


def _stepped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    keys, values = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    return _attend(q, keys, values, _seen(q.shape[2], past_k.shape[2])), keys, values


STEP_NAMES = ("result", "keys", "values")


def _step_cache(step: Any) -> None:
    """The cache grows by the new keys and values, behind the earlier ones."""
    q, k, v, past_k, past_v = case = _step_case(1, 1, 3, 2, 2, 3)
    _, keys, values = _stepped(*case)
    exchanged = {
        "Keys and values are exchanged: return the result, the keys, the values.": (keys, values)
    }
    for got, right, old, new, name in zip(
        parts(step(*case), *STEP_NAMES)[1:], (keys, values), (past_k, past_v), (k, v),
        ("keys", "values"), strict=True,
    ):
        expect(
            got,
            right,
            f"The {name} of the earlier tokens come first, those of the new tokens behind them.",
            what=f"The cache of {name}",
            mistakes={
                f"The cache of {name} did not grow: the next step needs the new ones too.": old,
                f"Only the new {name} were returned. The earlier ones are needed at every step.":
                    new,
                f"The new {name} stand in front of the earlier ones.": torch.cat([new, old], 2),
                **{words: slips[right is keys] for words, slips in exchanged.items()},
            },
        )


def _step_one(step: Any) -> None:
    """A single new token attends to everything."""
    q, k, v, past_k, past_v = case = _step_case(1, 2, 3, 1, 3, 2)
    right, keys, values = _stepped(*case)
    expect(
        parts(step(*case), *STEP_NAMES)[0],
        right,
        "The new token should attend to the three earlier ones and to itself.",
        what="The result for one new token",
        mistakes={
            "The new token does not attend to itself. Its key and value join the cache first.":
                _attend(q, past_k, past_v),
            "The new token attends to nothing but itself: the cache was not read.": v,
            "The causal mask was cut from its first row, so the new token sees the oldest token "
            "alone. The new tokens are the last rows.": values[:, :, :1],
            "The scale is missing: divide the scores by √d.": _attend(q, keys, values, scale=1.0),
            "The scores were divided by the root of the number of keys. It is √d.":
                _attend(q, keys, values, scale=keys.shape[2] ** -0.5),
            "The scores were divided by d. It is √d.": _attend(q, keys, values, scale=1 / 3),
            "The heads were mixed up: keys of another head were read.":
                _attend(q, keys.flip(1), values),
        },
    )


def _step_many(step: Any) -> None:
    """Of several new tokens, each sees the earlier ones and the new ones up to itself."""
    q, k, v, past_k, past_v = case = _step_case(1, 1, 2, 3, 2, 2)
    right, keys, values = _stepped(*case)
    corner = torch.ones(3, 5).tril().bool()
    expect(
        parts(step(*case), *STEP_NAMES)[0],
        right,
        "New token i may attend to the keys 0, ..., M + i.",
        what="The result for three new tokens",
        mistakes={
            "The mask is missing: a new token sees the new tokens behind it.":
                _attend(q, keys, values),
            "The causal mask starts in its upper left corner, as if there were no cache. New token "
            "i is token M + i of the sequence: `tril(M)`.": _attend(q, keys, values, corner),
            "A new token does not see itself. The diagonal of the mask is one place off.":
                _attend(q, keys, values, torch.ones(3, 5).tril(1).bool()),
            "A new token sees the one behind it. The diagonal of the mask is one place off.":
                _attend(q, keys, values, torch.ones(3, 5).tril(3).bool()),
            "The new tokens do not see one another.":
                _attend(q, keys, values,
                        torch.cat([torch.ones(3, 2), torch.eye(3)], 1).bool()),
            "The new tokens see the cache alone.": _attend(q, past_k, past_v),
            "The new tokens see one another alone: the cache was not read.":
                _attend(q, k, v, torch.ones(3, 3).tril().bool()),
        },
    )


def _step_whole(step: Any) -> None:
    """In pieces of any length, the result is that of one pass."""
    b, h, n, d, e = 2, 2, 7, 3, 5
    q, k, v, past_k, past_v = _step_case(b, h, 0, n, d, e)
    whole = _attend(q, k, v, _seen(n, 0))
    for lengths in ([7], [3, 1, 2, 1], [1] * 7):
        keys, values, done = past_k, past_v, 0
        for length in lengths:
            new = slice(done, done + length)
            z, keys, values = parts(
                step(q[:, :, new], k[:, :, new], v[:, :, new], keys, values), *STEP_NAMES
            )
            expect(
                z, whole[:, :, new],
                f"Read in pieces of {lengths}, tokens {done} to {done + length - 1} differ.",
                what=f"Read in pieces of {lengths}, a result",
            )
            done += length


def _step_gradients(step: Any) -> None:
    """Gradients reach the new tokens and the cache."""
    names = ("q", "k", "v", "past_k", "past_v")
    case = dict(zip(names, _step_case(1, 1, 2, 2, 2, 3), strict=True))
    expect_gradients(lambda *tensors: parts(step(*tensors), *STEP_NAMES)[0], **case)


CACHED_STEP = Exercise(
    name="cached-step",
    title="Attend to a cache",
    level=2,
    section='chapters/12_generation, section "The cache"',
    stub=cached_attention,
    properties=(_step_cache, _step_one, _step_many, _step_whole, _step_gradients),
    hints=(
        "First let the cache grow. Then ask which keys new token i may read.",
        "New token i is token M + i of the sequence, so it may read the keys 0, ..., M + i. As a "
        "mask this is a lower triangle whose diagonal is moved M places to the right.",
        "`torch.tril` takes the number of places by which the diagonal is moved. Check your mask "
        "with N = 1: the one row must be True everywhere.",
    ),
)

EXERCISES = (CACHED_LOOP, CACHED_STEP)
