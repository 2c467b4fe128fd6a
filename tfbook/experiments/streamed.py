"""Can a finished model read a text that does not end, with a window and its first token?

SmolLM2-135M reads one long text, Shakespeare with no break. It is made for texts of at most 8,192
tokens, and this one is longer. Nothing is trained: only the attention function of all layers is
exchanged, and the log holds, for each way (`WAYS`), the mean loss of every 256 tokens.

A window of 64 keys is cut into blocks, so its cost grows like the text. With the first token, 63
keys and the first are read. Its distance is then that *in the text*, which grows without end, or
that *in the cache*, where the keys that are left stand side by side: 63 at most. Keys come here
rotated by their place in the text, so for the first key the query is turned back as far as needed.
The ways that need fewer tokens to be seen read fewer (`FEWER`).

Explained in: chapters/07_efficient_attention_deeper, section "Where a rolling cache counts from".
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tfbook import data, pretrained
from tfbook.attention import attend_sdpa
from tfbook.positions import apply_rotary

__all__ = ["SMOKE", "WAYS", "run", "stream"]

SMOKE = {"n": 80, "window": 16, "every": 40}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters, another attention in all layers",
    "data": "{n:,} tokens of Shakespeare in one row",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
WAYS = ("all", "window", "window and the first, places of the text",
        "window and the first, places of the cache")  # fmt: skip
FEWER = {"window": 4}  # reads a quarter of the text: more would show the same
BASE = 100_000  # of SmolLM2's rotary positions


def stream(q, k, v, *, window: int, first: bool, cached: bool, scale=None, **_) -> Tensor:
    """Let each query see the last ``window`` keys, or one fewer and the first.

    q (…, n, d), k and v (…, n, d), rotated by their places in the text; n is a multiple of
    ``window``. With ``cached`` the first key stands as many places before a query as keys lie
    between them in the cache.
    """
    n, near = q.shape[-2], window - first
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    queries, keys, values = (x.unflatten(-2, (-1, window)) for x in (q, k, v))
    keys, values = (torch.cat([x.roll(1, -3), x], -2) for x in (keys, values))
    gap = torch.arange(window)[:, None] + window - torch.arange(2 * window)
    seen = ((gap >= 0) & (gap < near)).repeat(n // window, 1, 1)
    seen[0, :, :window] = False  # before the first block, roll has put the last
    scores = (queries @ keys.mT * scale).masked_fill(~seen, -math.inf)
    if not first:
        return (scores.softmax(-1) @ values).flatten(-3, -2)
    i = torch.arange(n)
    turned = apply_rotary(q, (near - i).clamp(max=0), base=BASE) if cached else q
    sink = (turned @ k[..., :1, :].mT * scale).masked_fill(i[:, None] < near, -math.inf)
    sink = sink.unflatten(-2, (-1, window))  # (…, n / window, window, 1)
    weights = torch.cat([sink, scores], -1).softmax(-1)
    mixed = weights[..., 1:] @ values
    return (mixed + weights[..., :1] * v[..., None, :1, :]).flatten(-3, -2)


def ways(window: int) -> dict[str, Callable]:
    """Return the attention function of each way."""
    return {
        "all": attend_sdpa,
        "window": partial(stream, window=window, first=False, cached=False),
        WAYS[2]: partial(stream, window=window, first=True, cached=False),
        WAYS[3]: partial(stream, window=window, first=True, cached=True),
    }


def read(model, attend: Callable, tokens: Tensor, every: int) -> list[float]:
    """Return the mean loss of each stretch of ``every`` tokens."""
    for block in model.stack.blocks:
        block.mixer.attend = attend
    rows, _ = model.stack(model.embed(tokens))
    losses = []
    for a in range(0, tokens.shape[-1] - 1, every):
        aims = tokens[0, a + 1 : a + 1 + every]
        logits = model.head(rows[:, a : a + len(aims)], model.embed.weight)
        losses.append(round(functional.cross_entropy(logits[0], aims).item(), 3))
    return losses


def one_row(language, n: int) -> Tensor:
    """Return the first n tokens (1, n), put together from texts that the tokenizer takes."""
    play = data.shakespeare("valid")
    parts = [language.encode(play[a : a + 8000])[0] for a in range(0, len(play), 8000)]
    return torch.cat(parts)[None, :n]


@torch.no_grad()
def run(*, n: int = 10_240, window: int = 64, every: int = 256) -> tuple[dict, None]:
    """Read the text in each way."""
    language, losses = pretrained.load("smollm2-135m"), {}
    tokens = one_row(language, n)
    for name, attend in ways(window).items():
        some = max(window, n // FEWER.get(name, 1) // window * window)
        losses[name] = read(language.model, attend, tokens[:, :some], every)
    settings = {"n": n, "window": window, "every": every}
    return {"settings": settings, "losses": losses}, None
