"""Do the best blocks find a fact whose question has other words, or one that is very far back?

The facts of `told_earlier` are asked for in their own words, so a model can copy what followed
these words. Here SmolLM2-135M reads the same kind of text, 256 tokens with a fact 112 or 200 tokens
back, and the last words are others (`ASKED`): no more than two words in a row are those of the
fact. Then it reads texts of 4,096 tokens, with the fact 1,500 or 3,500 tokens back, asked for in
its own words. Nothing is trained: only the attention function of all layers is exchanged. The log
holds, for each way, how many texts are answered right at each distance (the colour of the eight
that the model holds likeliest), of how many, and for long texts the mean loss of all tokens from a
quarter of the text to the question.

Explained in: chapters/07_efficient_attention, section "Choosing what to read".
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from tfbook import data, pretrained
from tfbook.attention import attend_sdpa
from tfbook.efficient import window_mask
from tfbook.experiments.told_earlier import BLOCK, COLOURS, read

__all__ = ["ASKED", "SMOKE", "best_blocks", "run"]

SMOKE = {"n": 36, "distances": (8,), "colours": 1, "long": (36, (8,), 1)}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters, another attention in all layers",
    "data": "texts of {n} tokens, {colours} for each of 2 distances, and of 4,096 tokens, 2 for "
    "each of 2",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}
ASKED = " To find the key, open the"
STEP = 500  # tokens of a text that are read at a time


def best_blocks(q, k, v, *, top: int = 3, block: int = BLOCK, scale=None, **_) -> Tensor:
    """Attend to the own block, the first, and the ``top`` past blocks with the best mean key.

    It is `told_earlier.best_blocks`, some queries at a time, so that a long text fits into memory.
    """
    n = q.shape[-2]
    count, outputs = -(-n // block), []
    padded = torch.nn.functional.pad(k, (0, 0, 0, count * block - n))
    means = padded.unflatten(-2, (count, block)).mean(-2)  # (…, blocks, d)
    for a in range(0, n, STEP):
        some = q[..., a : a + STEP, :]
        end = a + some.shape[-2]
        i = torch.arange(a, end)[:, None]
        past = torch.arange(count) < i // block
        promise = (some @ means.mT).masked_fill(~past, -torch.inf)
        best = promise.topk(min(top, count), dim=-1)
        chosen = torch.zeros_like(promise, dtype=torch.bool)
        chosen.scatter_(-1, best.indices, best.values > -torch.inf)
        chosen |= (torch.arange(count) == i // block) | (torch.arange(count) == 0)
        allowed = chosen.repeat_interleave(block, -1)[..., :end] & (torch.arange(end) <= i)
        outputs.append(
            attend_sdpa(some, k[..., :end, :], v[..., :end, :], mask=allowed, scale=scale)
        )
    return torch.cat(outputs, -2)


def placed(
    language, colour: str, offset: int, distance: int, n: int, words: str | None
) -> tuple[Tensor, int]:
    """Return n tokens with the fact and the question, and how long this one is.

    Without ``words`` the question has the words of the fact.
    """
    fact = language.encode(f" Remember: the key is in the {colour} box.\n")[0]
    ask = language.encode(words or " Remember: the key is in the")[0]
    play = language.encode(data.shakespeare("train")[offset : offset + 5 * n])[0]
    play = play[: n - len(fact) - len(ask)]
    place = len(play) - distance
    return torch.cat([play[:place], fact, play[place:], ask]), len(ask)


def texts(
    language, n: int, distances: Sequence[int], colours: int, words: str | None
) -> list[tuple[Tensor, int]]:
    """Return for each distance the texts (colours, n) and how long their question is."""
    batches = []
    for i, distance in enumerate(distances):
        made = [
            placed(language, colour, 4 * n * (i * colours + c), distance, n, words)
            for c, colour in enumerate(COLOURS[:colours])
        ]
        batches.append((torch.stack([tokens for tokens, _ in made]), made[0][1]))
    return batches


def rows_of(language, ways: dict[str, Tensor | Callable], batches: list) -> dict:
    """Return the row of each way; every text is read by itself."""
    rows = {}
    for name, way in ways.items():
        right, losses = [], []
        for batch, asked in batches:
            own = torch.arange(len(batch))
            each = [read(language, way, batch[c : c + 1], own[c : c + 1], asked) for c in own]
            right.append(sum(hits for hits, _, _ in each))
            losses += [loss[:, batch.shape[-1] // 4 :].mean().item() for _, _, loss in each]
        rows[name] = {
            "right": right,
            "of": len(batches[0][0]),
            "loss": round(sum(losses) / len(losses), 3),
        }
    return rows


@torch.no_grad()
def run(
    *,
    n: int = 256,
    distances: Sequence[int] = (112, 200),
    colours: int = 8,
    long: tuple[int, Sequence[int], int] = (4096, (1500, 3500), 2),
) -> tuple[dict, None]:
    """Read the texts with other words, then the long ones."""
    language = pretrained.load("smollm2-135m")
    settings = {"n": n, "distances": list(distances), "colours": colours, "long": list(long)}
    ways: dict[str, Tensor | Callable] = {
        "all": attend_sdpa_causal,
        "the 3 best blocks of 16, the own and the first": partial(best_blocks, top=3),
    }
    batches = texts(language, n, distances, colours, ASKED)
    length = batches[0][0].shape[-1]
    near = {"window of 63 and the first": window_mask(length, window=63, sinks=1, causal=True)}
    other = rows_of(language, ways | near, batches)
    far = rows_of(language, ways, texts(language, *long, None))
    return {"settings": settings, "asked": ASKED, "other words": other, "long": far}, None


def attend_sdpa_causal(q, k, v, *, scale=None, **_) -> Tensor:
    """Attend to all pairs that look back."""
    return attend_sdpa(q, k, v, causal=True, scale=scale)
