"""What does a real model lose when each token sees only some of those before it?

SmolLM2-135M reads 256 tokens of Shakespeare. In each text one sentence says in which of eight boxes
a key lies, and the last words ask for it. The model is not trained: its attention function is
exchanged in every layer, and the log holds, for each way and each distance between the sentence and
the question, how many of eight texts are answered right (the colour of the eight that the model
holds likeliest); the mean loss on the tokens between; how many keys a query sees on average, for
the ways that choose them; and for three ways the loss by position.

Explained in: chapters/07_efficient_attention, section "Few pairs, chosen beforehand".
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tfbook import data, pretrained
from tfbook.attention import (
    attend_features,
    attend_hashed,
    attend_linear,
    attend_sdpa,
    attend_topk,
    bigbird_layout,
    causal_mask,
    expand_layout,
    fixed_mask,
    pairs,
    strided_mask,
    window_mask,
)

__all__ = ["COLOURS", "SMOKE", "WAYS", "best_blocks", "run", "text", "ways"]

COLOURS = ("red", "blue", "green", "white", "black", "yellow", "brown", "grey")
BLOCK = 16
SMOKE = {"n": 48, "distances": (16,), "colours": 1}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters, another attention in all layers",
    "data": "texts of {n} tokens, {colours} for each of {DISTANCES} distances",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
DISTANCES = 3
BY_POSITION = ("all", "window of 64", "window of 63 and the first")
# What chooses beforehand, as a mask; then what chooses or sums by content.
WAYS = (
    "all",
    "window of 64",
    "window of 63 and the first",
    "window of 15 and the first",
    "dilated window of 32 and the first",
    "strided by 16 and the first",
    "fixed by 16 and the first",
    "window of 63, the first, and the question sees all",
    "BigBird, blocks of 16",
    "the 16 best keys",
    "the 3 best blocks of 16, the own and the first",
    "LSH, 1 round",
    "LSH, 8 rounds",
    "64 random features",
    "1024 random features",
    "linear attention, elu + 1",
)


def text(language, colour: str, offset: int, distance: int, n: int) -> tuple[Tensor, int]:
    """Return n tokens of Shakespeare with the fact and the question, and how long this one is."""
    fact = language.encode(f" Remember: the key is in the {colour} box.\n")[0]
    ask = language.encode(" Remember: the key is in the")[0]
    play = language.encode(data.shakespeare("valid")[offset : offset + 12 * n])[0]
    play = play[: n - len(fact) - len(ask)]
    place = len(play) - distance
    return torch.cat([play[:place], fact, play[place:], ask]), len(ask)


def best_blocks(q, k, v, *, top: int, block: int = BLOCK, **given) -> Tensor:
    """Attend to the own block, the first, and the ``top`` past blocks with the best mean key."""
    n = q.shape[-2]
    count = -(-n // block)
    padded = functional.pad(k, (0, 0, 0, count * block - n))
    means = padded.unflatten(-2, (count, block)).mean(-2)  # (…, blocks, d)
    own = torch.arange(n)[:, None] // block
    past = torch.arange(count) < own  # (n, blocks)
    scores = (q @ means.mT).masked_fill(~past, -torch.inf)
    best = scores.topk(min(top, count), dim=-1)
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen.scatter_(-1, best.indices, best.values > -torch.inf)
    chosen |= (torch.arange(count) == own) | (torch.arange(count) == 0)
    allowed = chosen.repeat_interleave(block, -1)[..., :n] & causal_mask(n)
    return attend_sdpa(q, k, v, mask=allowed, scale=given.get("scale"))


def ways(n: int, asked: int) -> dict[str, Tensor | Callable]:
    """Return each way of leaving out: a mask (n, n), or an attention function."""
    first = window_mask(n, window=1, sinks=1, causal=True)
    near = window_mask(n, window=63, sinks=1, causal=True)
    question = torch.arange(n)[:, None] >= n - asked
    layout = bigbird_layout(
        -(-n // BLOCK), n_random=2, causal=True, generator=torch.Generator().manual_seed(0)
    )
    masks = [
        causal_mask(n),
        window_mask(n, window=64, causal=True),
        near,
        window_mask(n, window=15, sinks=1, causal=True),
        window_mask(n, window=32, dilation=4, sinks=1, causal=True),
        strided_mask(n, stride=BLOCK) | first,
        fixed_mask(n, stride=BLOCK) | first,
        near | (question & causal_mask(n)),
        expand_layout(layout, BLOCK, n, causal=True),
    ]
    functions = [
        partial(attend_topk, top=BLOCK),
        partial(best_blocks, top=3),
        partial(attend_hashed, buckets=BLOCK, chunk=BLOCK, rounds=1),
        partial(attend_hashed, buckets=BLOCK, chunk=BLOCK, rounds=8),
        partial(attend_features, n_features=64),
        partial(attend_features, n_features=1024),
        attend_linear,
    ]
    return dict(zip(WAYS, masks + functions, strict=True))


def use(model, way: Tensor | Callable) -> None:
    """Let every layer attend in this way."""

    def masked(q, k, v, *, scale=None, **_):
        return attend_sdpa(q, k, v, mask=way, scale=scale)

    for block in model.stack.blocks:
        block.mixer.attend = masked if isinstance(way, Tensor) else way


@torch.no_grad()
def run(
    *, n: int = 256, distances: Sequence[int] = (48, 112, 200), colours: int = 8
) -> tuple[dict, None]:
    """Read every text in every way."""
    settings = {"n": n, "distances": list(distances), "colours": colours}
    language = pretrained.load("smollm2-135m")
    names = [language.encode(f" {colour}")[0, 0].item() for colour in COLOURS]
    batches = []
    for i, distance in enumerate(distances):
        read = [
            text(language, colour, 1000 * (i * colours + c), distance, n)
            for c, colour in enumerate(COLOURS[:colours])
        ]
        batches.append(torch.stack([tokens for tokens, _ in read]))
        asked = read[0][1]
    found: dict[str, dict] = {}
    for name, way in ways(n, asked).items():
        use(language.model, way)
        right, chances, losses = [], [], []
        for batch in batches:
            logits, _ = language.model(batch)  # (colours, n, V)
            own = torch.arange(colours)
            right.append((logits[:, -1, names].argmax(-1) == own).sum().item())
            chance = logits[:, -1].softmax(-1)[own, torch.tensor(names)[:colours]]
            chances.append(round(chance.mean().item(), 4))
            loss = functional.cross_entropy(logits[:, :-1].mT, batch[:, 1:], reduction="none")
            losses.append(loss[:, : n - asked - 1])
        loss = torch.cat(losses)  # (texts, positions)
        found[name] = {
            "right": right,
            "chance": chances,
            "loss": round(loss[:, n // 4 :].mean().item(), 3),
        }
        if isinstance(way, Tensor):
            found[name]["keys"] = round(pairs(way).float().mean().item(), 1)
        if name in BY_POSITION:
            means = [part.mean().item() for part in loss.split(BLOCK, -1)]
            found[name]["by_position"] = [round(mean, 3) for mean in means]
    return {"settings": settings, "asked": asked, "found": found}, None
