"""What does a real model lose when each token sees only some of those before it?

SmolLM2-135M reads 256 tokens of Shakespeare. In each text one sentence says in which of eight boxes
a key lies, and the last words ask for it. The model is not trained: its attention function is
exchanged in every layer, and the log holds, for each way and each distance between the sentence and
the question, how many texts are answered right (the colour of the eight that the model holds
likeliest), of how many; the mean loss between a quarter of the text and the question; how many keys
a query sees on average, where that is counted; and for three ways the loss by position. Some ways
then read texts of 1,024 tokens.

Explained in: chapters/07_efficient_attention, section "How far a token reaches".
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tfbook import data, pretrained
from tfbook.attention import attend_sdpa, attend_topk, causal_mask
from tfbook.efficient import (
    attend_features,
    attend_hashed,
    attend_linear,
    bigbird_layout,
    expand_layout,
    fixed_mask,
    lsh_buckets,
    pairs,
    strided_mask,
    window_mask,
)

__all__ = ["COLOURS", "LONG", "SMOKE", "WAYS", "best_blocks", "run", "text", "ways"]

COLOURS = ("red", "blue", "green", "white", "black", "yellow", "brown", "grey")
BLOCK = 16
SMOKE = {"n": 48, "distances": (16,), "colours": 1, "long": (64, (24,), 1)}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters, another attention in all layers",
    "data": "texts of {n} tokens, {colours} for each of {DISTANCES} distances; of 1,024 tokens, "
    "4 for each of 2",
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
    "3 random blocks of 16, the own and the first",
    "LSH, 8 rounds, and the first",
    "LSH, 8 rounds, the own block and the first",
    "one bucket in 8 rounds, the own block and the first",
)
# Ways that read long texts.
LONG = (
    "all",
    "window of 63 and the first",
    "window of 63, the first, and the question sees all",
    "the 3 best blocks of 16, the own and the first",
    "LSH, 8 rounds, the own block and the first",
)


def text(
    language, colour: str, offset: int, distance: int, n: int, *, part: str = "valid"
) -> tuple[Tensor, int]:
    """Return n tokens of Shakespeare with the fact and the question, and how long this one is."""
    fact = language.encode(f" Remember: the key is in the {colour} box.\n")[0]
    ask = language.encode(" Remember: the key is in the")[0]
    play = language.encode(data.shakespeare(part)[offset : offset + 12 * n])[0]
    play = play[: n - len(fact) - len(ask)]
    place = len(play) - distance
    return torch.cat([play[:place], fact, play[place:], ask]), len(ask)


def blocks_read(q, k, scores: Callable, *, top: int, block: int = BLOCK) -> Tensor:
    """Return which keys are read (…, n, n): the own block, the first, and the best past blocks.

    ``scores`` makes of queries and the means of the blocks (…, blocks, d) what the choice goes by.
    """
    n = q.shape[-2]
    count = -(-n // block)
    padded = functional.pad(k, (0, 0, 0, count * block - n))
    means = padded.unflatten(-2, (count, block)).mean(-2)  # (…, blocks, d)
    own = torch.arange(n)[:, None] // block
    past = torch.arange(count) < own  # (n, blocks)
    promise = scores(q, means).masked_fill(~past, -torch.inf)
    best = promise.topk(min(top, count), dim=-1)
    chosen = torch.zeros_like(promise, dtype=torch.bool)
    chosen.scatter_(-1, best.indices, best.values > -torch.inf)
    chosen |= (torch.arange(count) == own) | (torch.arange(count) == 0)
    return chosen.repeat_interleave(block, -1)[..., :n] & causal_mask(n)


def by_mean(q, means) -> Tensor:
    """Compare each query with the mean key of each block."""
    return q @ means.mT


def by_chance(q, means) -> Tensor:
    """Draw a number for each query and block."""
    shape = (*q.shape[:-1], means.shape[-2])
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def best_blocks(q, k, v, *, top: int, block: int = BLOCK, **given) -> Tensor:
    """Attend to the own block, the first, and the ``top`` past blocks with the best mean key."""
    allowed = blocks_read(q, k, by_mean, top=top, block=block)
    return attend_sdpa(q, k, v, mask=allowed, scale=given.get("scale"))


def hashed_read(q, k, *, rounds: int, own: bool) -> Tensor:
    """Return which keys hashing shows, as in `hashed_mask`, the first one, and the own block.

    The own block is shown if ``own`` says so.
    """
    n = q.shape[-2]
    hashes = [lsh_buckets(x, buckets=buckets_of(n), rounds=rounds) for x in (q, k)]
    places = [each.argsort(dim=-1, stable=True).argsort(-1) for each in hashes]
    i, j = ((place // BLOCK).to(torch.int8) for place in places)  # chunks (…, rounds, n)
    shown = near_read(n, own=own)
    for r in range(rounds):
        a, b = i[..., r, :, None], j[..., r, None, :]
        shown = shown | (a == b) | (a == b + 1)
    return shown & causal_mask(n)


def bucket_read(q, k, *, rounds: int) -> Tensor:
    """Return which keys share a bucket with a query in some round, the first one, the own block."""
    n = q.shape[-2]
    i, j = (lsh_buckets(x, buckets=buckets_of(n), rounds=rounds).to(torch.int8) for x in (q, k))
    shown = near_read(n, own=True)
    for r in range(rounds):
        shown = shown | (i[..., r, :, None] == j[..., r, None, :])
    return shown & causal_mask(n)


def buckets_of(n: int) -> int:
    """Return how many buckets n tokens are hashed to: about a block in each, and an even number."""
    return max(2, n // BLOCK // 2 * 2)


def near_read(n: int, *, own: bool) -> Tensor:
    """Return the first key, and if ``own`` says so the block of each query (n, n)."""
    block = torch.arange(n) // BLOCK
    return (torch.arange(n) == 0) | ((block[:, None] == block) & own)


class DrawnBlocks:
    """BigBird's keys: the last four blocks, the first, two by chance, drawn at each call and head.

    The window is as wide as that of the other ways. A layer is a call, so each layer has draws of
    its own.
    """

    def __init__(self):
        """Begin the draws."""
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, q, k) -> Tensor:
        """Return the keys that are read (1, kv heads, group, n, n)."""
        *heads, n, _ = q.shape[1:]
        masks = [
            expand_layout(
                bigbird_layout(-(-n // BLOCK), window=64 // BLOCK, n_random=2, causal=True,
                               generator=self.generator),
                BLOCK, n, causal=True,
            )
            for _ in range(torch.Size(heads).numel())
        ]  # fmt: skip
        return torch.stack(masks).view(1, *heads, n, n)


class Reads:
    """Attention to the keys that a function of queries and keys chooses; it counts them."""

    def __init__(self, choose: Callable):
        """Take the function, which returns a mask (…, n, n)."""
        self.choose, self.keys = choose, []

    def __call__(self, q, k, v, *, scale=None, **_) -> Tensor:
        """Attend to what is chosen."""
        allowed = self.choose(q, k)
        self.keys.append(allowed.sum(-1, dtype=torch.float32).mean().item())
        return attend_sdpa(q, k, v, mask=allowed, scale=scale)


def ways(n: int, asked: int) -> dict[str, Tensor | Callable]:
    """Return each way of leaving out: a mask (n, n), or an attention function."""
    first = window_mask(n, window=1, sinks=1, causal=True)
    near = window_mask(n, window=63, sinks=1, causal=True)
    question = torch.arange(n)[:, None] >= n - asked
    masks = [
        causal_mask(n),
        window_mask(n, window=64, causal=True),
        near,
        window_mask(n, window=15, sinks=1, causal=True),
        window_mask(n, window=32, dilation=4, sinks=1, causal=True),
        strided_mask(n, stride=BLOCK) | first,
        fixed_mask(n, stride=BLOCK) | first,
        near | (question & causal_mask(n)),
        Reads(DrawnBlocks()),
    ]
    functions = [
        partial(attend_topk, top=BLOCK),
        Reads(partial(blocks_read, scores=by_mean, top=3)),
        partial(attend_hashed, buckets=BLOCK, chunk=BLOCK, rounds=1),
        partial(attend_hashed, buckets=BLOCK, chunk=BLOCK, rounds=8),
        partial(attend_features, n_features=64),
        partial(attend_features, n_features=1024),
        attend_linear,
        Reads(partial(blocks_read, scores=by_chance, top=3)),
        Reads(partial(hashed_read, rounds=8, own=False)),
        Reads(partial(hashed_read, rounds=8, own=True)),
        Reads(partial(bucket_read, rounds=8)),
    ]
    return dict(zip(WAYS, masks + functions, strict=True))


def use(model, way: Tensor | Callable) -> None:
    """Let every layer attend in this way."""

    def masked(q, k, v, *, scale=None, **_):
        return attend_sdpa(q, k, v, mask=way, scale=scale)

    for block in model.stack.blocks:
        block.mixer.attend = masked if isinstance(way, Tensor) else way


def read(language, way: Tensor | Callable, batch: Tensor, own: Tensor, asked: int) -> tuple:
    """Read texts (T, n) whose colours have the numbers own (T,).

    Returns: how many are answered right, the mean chance of the right colour among all words, and
    the loss at each place before the question (T, n - asked - 1).
    """
    use(language.model, way)
    names = torch.tensor([language.encode(f" {colour}")[0, 0].item() for colour in COLOURS])
    logits, _ = language.model(batch)  # (T, n, V)
    right = (logits[:, -1, names].argmax(-1) == own).sum().item()
    chance = logits[:, -1].softmax(-1).gather(1, names[own][:, None]).mean().item()
    loss = functional.cross_entropy(logits[:, :-1].mT, batch[:, 1:], reduction="none")
    return right, chance, loss[:, : batch.shape[-1] - asked - 1]


def texts(
    language, n: int, distances: Sequence[int], colours: int, *, step: int = 1000
) -> tuple[list[Tensor], int]:
    """Return a batch of texts (colours, n) for each distance, and how long the question is."""
    batches = []
    for i, distance in enumerate(distances):
        made = [
            text(language, colour, step * (i * colours + c), distance, n)
            for c, colour in enumerate(COLOURS[:colours])
        ]
        batches.append(torch.stack([tokens for tokens, _ in made]))
        asked = made[0][1]
    return batches, asked


def keys_of(way: Tensor | Callable) -> dict:
    """Return how many keys a query reads on average, where that is known."""
    if isinstance(way, Tensor):
        return {"keys": round(pairs(way).float().mean().item(), 1)}
    return {"keys": round(sum(way.keys) / len(way.keys), 1)} if isinstance(way, Reads) else {}


def row_of(language, name: str, n: int, distances: Sequence[int], colours: int) -> dict:
    """Return the row of one way."""
    batches, asked = texts(language, n, distances, colours)
    way, own = ways(n, asked)[name], torch.arange(colours)
    right, chance, losses = zip(*(read(language, way, b, own, asked) for b in batches), strict=True)
    loss = torch.cat(losses)  # (texts, positions)
    row = {"right": list(right), "of": colours, "chance": [round(c, 4) for c in chance]}
    row |= {"loss": round(loss[:, n // 4 :].mean().item(), 3)} | keys_of(way)
    if name in BY_POSITION:
        means = [part.mean().item() for part in loss.split(BLOCK, -1)]
        row["by_position"] = [round(mean, 3) for mean in means]
    return row


def long_row(language, name: str, n: int, distances: Sequence[int], colours: int) -> dict:
    """Return the row of one way that reads long texts, one at a time."""
    batches, asked = texts(language, n, distances, colours, step=3900)
    way, right, losses = ways(n, asked)[name], [], []
    for batch in batches:
        each = [read(language, way, batch[c : c + 1], torch.tensor([c]), asked)
                for c in range(colours)]  # fmt: skip
        right.append(sum(found for found, _, _ in each))
        losses += [loss[:, n // 4 :].mean().item() for _, _, loss in each]
    loss = round(sum(losses) / len(losses), 3)
    return {"right": right, "of": colours, "loss": loss} | keys_of(way)


@torch.no_grad()
def run(
    *,
    n: int = 256,
    distances: Sequence[int] = (48, 112, 200),
    colours: int = 8,
    long: tuple[int, Sequence[int], int] = (1024, (400, 800), 4),
) -> tuple[dict, None]:
    """Read every text in every way."""
    settings = {"n": n, "distances": list(distances), "colours": colours, "long": list(long)}
    language = pretrained.load("smollm2-135m")
    found = {name: row_of(language, name, n, distances, colours) for name in WAYS}
    further = {name: long_row(language, name, *long) for name in LONG}
    asked = texts(language, n, distances[:1], 1)[1]
    return {"settings": settings, "asked": asked, "found": found, "long": further}, None
