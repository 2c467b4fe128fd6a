"""Is it enough if some layers see all pairs, in a finished model and in one that is trained so?

First SmolLM2-135M, which was trained with all pairs in each of its 30 layers. It reads the texts of
`told_earlier`, made of another part of the plays: 256 tokens of Shakespeare with one sentence that
says in which of eight boxes a key lies, 112 or 200 tokens before the question. Some layers keep all
pairs (`PLANS`), the others see a window of 63 and the first token. Nothing is trained. The log
holds for each plan, in `finished`, how many answers are right at each distance, of how many, the
mean loss between a quarter of the text and the question, and in how many layers all pairs are seen.

Then stacks of two layers learn the task of `associative_recall`: 64 pairs of a key and a value,
then all keys in another order. Each way of leaving out (`WAYS`) is trained with two seeds, at one
rate for all; those in `SLOW`, to which most questions give nothing to learn from, for more steps.
The log holds, in `trained`, the share of right answers by the distance from question
to pair (`BINS`), for every seed; in `exchanged`, what the stack that was trained with all pairs
answers if the way is put into it afterwards.

Explained in: chapters/07_efficient_attention, section "Windows in some layers".
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfbook import pretrained
from tfbook.attention import attend_sdpa, causal_mask
from tfbook.efficient import strided_mask, window_mask
from tfbook.experiments.associative_recall import MIXERS, ROWS, Recaller, fit, pairs_of
from tfbook.experiments.told_earlier import COLOURS, blocks_read, by_mean, text

__all__ = ["BINS", "PLANS", "SMOKE", "WAYS", "function_of", "run"]

SMOKE = {
    "n": 48, "distances": (16,), "texts": 1, "plans": ("none",),
    "seeds": (0,), "steps": 2, "longer": 2, "fresh": 2, "ways": ("all pairs", "best blocks"),
}  # fmt: skip
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters; and, trained, two layers of width "
    "64, {parameters:,} parameters",
    "data": "{texts} texts of {n} tokens at each of 2 distances; lists of {pairs_first} or "
    "{pairs_last} pairs",
    "steps": "{steps:,} or {longer:,} steps",
    "batch": "batches of {ROWS:,} rows",
    "rate": "rate {rate:g}, rising and then falling",
}
DEPTH = 30
PART = "train"  # of Shakespeare, which SmolLM2 may know; the fact is new
# Which layers of SmolLM2 see all pairs.
PLANS: dict[str, Sequence[int]] = {
    "all 30": range(DEPTH),
    "every second, odd": range(1, DEPTH, 2),
    "every second, even": range(0, DEPTH, 2),
    "every third": range(2, DEPTH, 3),
    "every sixth": range(5, DEPTH, 6),
    "the first 10": range(10),
    "the last 10": range(20, DEPTH),
    "none": (),
}
LAYERS = 2
WINDOW, STRIDE, BLOCK, BEST = 8, 8, 8, 2
# What each of the two layers does.
WAYS: dict[str, Sequence[str]] = {
    "all pairs": ["all", "all"],
    "window, then all": ["window", "all"],
    "best blocks": ["blocks", "blocks"],
    "window": ["window", "window"],
    "strided": ["strided", "strided"],
}
SLOW = ("best blocks", "window", "strided")  # they see the pair of few questions, or choose it
BINS = (8, 32, 64, 128)  # distances below these


def function_of(kind: str) -> Callable:
    """Return the attention function of a layer: all, window, strided, or blocks."""

    def attend(q, k, v, *, scale=None, **_):
        n = q.shape[-2]
        if kind == "blocks":
            allowed = blocks_read(q.detach(), k.detach(), by_mean, top=BEST, block=BLOCK)
        elif kind == "strided":
            allowed = strided_mask(n, stride=STRIDE)
        else:
            allowed = window_mask(n, window=n if kind == "all" else WINDOW, causal=True)
        return attend_sdpa(q, k, v, mask=allowed, scale=scale)

    return attend


def use(stack, functions: Sequence[Callable]) -> None:
    """Let each layer attend with its function."""
    for block, function in zip(stack.blocks, functions, strict=True):
        block.mixer.attend = function


def masked(mask: Tensor) -> Callable:
    """Return attention under a mask."""
    return lambda q, k, v, *, scale=None, **_: attend_sdpa(q, k, v, mask=mask, scale=scale)


def read(language, batch: Tensor, own: Tensor, asked: int) -> tuple[int, float]:
    """Return how many texts (T, n) are answered right, and the mean loss of their later part."""
    names = torch.tensor([language.encode(f" {colour}")[0, 0].item() for colour in COLOURS])
    logits, _ = language.model(batch)  # (T, n, V)
    right = (logits[:, -1, names].argmax(-1) == own).sum().item()
    n = batch.shape[-1]
    part = slice(n // 4, n - asked - 1)
    loss = functional.cross_entropy(logits[:, part].mT, batch[:, n // 4 + 1 : n - asked])
    return right, loss.item()


@torch.no_grad()
def finished(
    plans: dict[str, Sequence[int]], n: int, distances: Sequence[int], texts: int
) -> dict:
    """Read all texts with each plan: a name, and the layers that see all pairs."""
    language = pretrained.load("smollm2-135m")
    batches, own = [], torch.arange(texts) % len(COLOURS)
    for i, distance in enumerate(distances):
        made = [
            text(language, COLOURS[own[c]], 1500 * (c * len(distances) + i), distance, n, part=PART)
            for c in range(texts)
        ]
        batches.append(torch.stack([tokens for tokens, _ in made]))
        asked = made[0][1]
    everything = masked(causal_mask(n))
    near = masked(window_mask(n, window=min(63, n // 2), sinks=1, causal=True))
    found = {}
    for plan, full in plans.items():
        use(language.model.stack, [everything if i in full else near for i in range(DEPTH)])
        parts = [
            [read(language, *part, asked) for part in zip(b.split(4), own.split(4), strict=True)]
            for b in batches
        ]
        losses = [loss for part in parts for _, loss in part]
        found[plan] = {
            "full": len(full), "right": [sum(right for right, _ in part) for part in parts],
            "of": texts, "loss": round(sum(losses) / len(losses), 3),
        }  # fmt: skip
    return found


@torch.no_grad()
def by_distance(net: nn.Module, count: int, fresh: int, seed: int) -> list[float]:
    """Return the share of right answers in fresh lists, by the distance to the pair (`BINS`)."""
    keys, values, asked, wanted = pairs_of(count, fresh, torch.Generator().manual_seed(seed))
    right = net(keys, values, asked).argmax(-1) == wanted  # (fresh, count)
    place = (asked[..., None] == keys[:, None]).int().argmax(-1)  # of the pair
    distance = count + torch.arange(count) - place
    shares, low = [], 0
    for high in BINS:
        here = (distance >= low) & (distance < high)
        shares.append(round(right[here].double().mean().item(), 4) if here.any() else 0.0)
        low = high
    return shares


def trained(way: str, seed: int, steps: int, rate: float, pairs: Sequence[int]) -> Recaller:
    """Train a stack in one way, with lists of so many pairs in turn."""
    torch.manual_seed(seed)
    net, generator = Recaller([MIXERS["attention"]] * LAYERS), torch.Generator().manual_seed(seed)
    use(net.stack, [function_of(kind) for kind in WAYS[way]])

    def loss_of(step):
        count = pairs[step % len(pairs)]
        *given, wanted = pairs_of(count, ROWS // (2 * count), generator)
        return functional.cross_entropy(net(*given).flatten(0, 1), wanted.flatten())

    fit(net, loss_of, steps, rate)
    return net.eval()


def run(
    *,
    n: int = 256,
    distances: Sequence[int] = (112, 200),
    texts: int = 20,
    plans: Sequence[str] = tuple(PLANS),
    ways: Sequence[str] = tuple(WAYS),
    pairs: Sequence[int] = (16, 64),
    seeds: Sequence[int] = (0, 1),
    steps: int = 500,
    longer: int = 2000,
    rate: float = 5e-3,
    fresh: int = 50,
) -> tuple[dict, None]:
    """Read with every plan, then train in every way with every seed."""
    settings = {
        "n": n, "distances": list(distances), "texts": texts, "pairs": list(pairs),
        "seeds": list(seeds), "steps": steps, "longer": longer, "rate": rate, "bins": list(BINS),
    }  # fmt: skip
    chosen = {plan: PLANS[plan] for plan in plans}
    log: dict = {"settings": settings, "finished": finished(chosen, n, distances, texts)}
    log |= {"trained": {}, "exchanged": {}}
    log["parameters"] = sum(
        w.numel() for w in Recaller([MIXERS["attention"]] * LAYERS).parameters()
    )
    for seed in seeds:
        for way in ways:
            net = trained(way, seed, longer if way in SLOW else steps, rate, pairs)
            share = by_distance(net, pairs[-1], fresh, 10_000 + seed)
            log["trained"].setdefault(way, []).append(share)
            if way == "all pairs":
                for other in ways:
                    use(net.stack, [function_of(kind) for kind in WAYS[other]])
                    share = by_distance(net, pairs[-1], fresh, 10_000 + seed)
                    log["exchanged"].setdefault(other, []).append(share)
    return log, None
