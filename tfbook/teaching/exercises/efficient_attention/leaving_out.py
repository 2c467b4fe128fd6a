"""The exercises of chapter 07 on fewer pairs: a window, and blocks that each query chooses."""

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, numbers, plain_attention

# near-attention ---------------------------------------------------------------------------------


def near_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Attend causally to the last `window` keys, the query's own one counted.

    q: (n, d), one sequence. k: (n, d). v: (n, d_v). window: how many keys a query sees at most.
    Returns: (n, d_v); row i is a weighted mean of the values that query i sees.
    """
    gap = torch.arange(len(q))[:, None] - torch.arange(len(k))
    near = (gap >= 0) & (gap < window)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores, dim=-1) * near
    return weights @ v


def _band(n: int, window: int) -> torch.Tensor:
    gap = torch.arange(n)[:, None] - torch.arange(n)
    return (gap >= 0) & (gap < window)


def _near_mean(attend: Any) -> None:
    """Values that are all 1 come back as 1: the weights of each query sum to 1."""
    q, k, v = numbers(7, 3, seed=1), numbers(7, 3, seed=2), torch.ones(7, 2, dtype=torch.float64)
    cut = torch.softmax(q @ k.mT / math.sqrt(3), -1) * _band(7, 3)
    expect(attend(q, k, v, 3), v, "All values are 1, so every weighted mean of them is 1.",
           mistakes={
        "The weights of a query do not sum to 1: the softmax has divided by the sum over all keys, "
        "also over those that are cut off afterwards.": cut @ v,
    })  # fmt: skip


def _near_band(attend: Any) -> None:
    """Each query sees its last keys, itself counted, and no other."""
    n, window = 8, 3
    q, k, v = numbers(n, 4, seed=3), numbers(n, 4, seed=4), numbers(n, 3, seed=5)
    gap = torch.arange(n)[:, None] - torch.arange(n)

    def seen(mask: torch.Tensor) -> torch.Tensor:
        return plain_attention(q, k, v, mask)

    zeroed = (q @ k.mT / 2) * _band(n, window)
    expect(attend(q, k, v, window), seen(_band(n, window)), "Compare with attention under a mask.",
           mistakes={
        "One key too many: a window of 3 holds the query's own key and two before it.":
            seen(_band(n, window + 1)),
        "The window reaches into the future.": seen(gap.abs() < window),
        "The future is hidden, the distant past is not.": seen(gap >= 0),
        "Forbidden scores are 0 here. A score of 0 has the weight exp(0) = 1 before the division; "
        "only −∞ gives none.": torch.softmax(zeroed, -1) @ v,
        "The scores are not divided by √d.": plain_attention(2 * q, k, v, _band(n, window)),
    })  # fmt: skip


def _near_wide(attend: Any) -> None:
    """A window as long as the text is causal attention."""
    q, k, v = numbers(5, 2, seed=6), numbers(5, 2, seed=7), numbers(5, 2, seed=8)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    expect(attend(q, k, v, 9), plain_attention(q, k, v, causal),
           "With a window wider than the text nothing of the past is left out.")  # fmt: skip


NEAR_ATTENTION = Exercise(
    name="near-attention",
    title="A window with a leak",
    level=1,
    section='chapters/07_efficient_attention, section "A window slides over the keys"',
    stub=near_attention,
    properties=(_near_mean, _near_band, _near_wide),
    hints=(
        "Print the sums of the rows of `weights`, for some window that is shorter than the text.",
        "Two lines are right, but they stand in the wrong order: what is divided by what?",
        "`masked_fill` can put a number where `near` is False. Which one has no weight after exp?",
    ),
    broken=True,
)

# block-attention --------------------------------------------------------------------------------


def block_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int, top: int
) -> torch.Tensor:
    """Let each query attend to the `top` blocks of keys that promise most.

    Blocks are neighbouring keys, 0 … block − 1, block … 2·block − 1, and so on. What a block
    promises a query is the product of the query with the mean of the block's keys. All keys lie in
    the past: no mask is needed.

    q: (n, d). k: (m, d), m a multiple of `block`. v: (m, d_v). block: keys in a block. top: at
    most the number of blocks.
    Returns: (n, d_v), scaled softmax attention over the keys of the chosen blocks. Scores
    are computed for these keys only.
    """
    ...


def _blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int, top: int, *,
    by: str = "mean", least: bool = False, joint: bool = False,
) -> torch.Tensor:  # fmt: skip
    cut = k.unflatten(0, (-1, block))
    if by == "mean":
        promise = q @ cut.mean(1).mT
    elif by == "first":
        promise = q @ cut[:, 0].mT
    else:
        promise = (q @ k.mT).unflatten(-1, (-1, block)).amax(-1)
    if joint:
        promise = promise.sum(0, keepdim=True).expand_as(promise)
    best = promise.topk(top, largest=not least).indices
    mask = torch.zeros_like(promise, dtype=torch.bool).scatter(-1, best, True)
    return plain_attention(q, k, v, mask.repeat_interleave(block, -1))


def _blocks_chosen(attend: Any) -> None:
    """Each query reads the blocks with the best mean key, and reads them by softmax."""
    q, k, v = numbers(6, 4, seed=21), numbers(20, 4, seed=22), numbers(20, 3, seed=23)
    every = q @ k.mT / 2
    kept = _blocks(q, k, torch.eye(20, dtype=torch.float64), 4, 2) > 0
    expect(attend(q, k, v, 4, 2), _blocks(q, k, v, 4, 2),
           "Choose two blocks of four for each query, then attend to their eight keys.", mistakes={
        "One choice serves all queries here. Each query chooses for itself.":
            _blocks(q, k, v, 4, 2, joint=True),
        "The blocks are chosen by their best key. That asks for the score of every key, which is "
        "what the choice should save: take the mean of the keys.": _blocks(q, k, v, 4, 2, by="max"),
        "The blocks are chosen by their first key.": _blocks(q, k, v, 4, 2, by="first"),
        "These are the blocks that promise least.": _blocks(q, k, v, 4, 2, least=True),
        "One block is read. `top` of them should be.": _blocks(q, k, v, 4, 1),
        "All blocks are read.": plain_attention(q, k, v),
        "The weights of the chosen keys do not sum to 1: the softmax ran over all keys.":
            torch.softmax(every, -1) * kept @ v,
        "The scores are not divided by √d. (For the choice that makes no difference.)":
            _blocks(2 * q, k, v, 4, 2),
        "The mean values of the blocks are mixed. Of a chosen block each key counts by itself.":
            plain_attention(q, k.unflatten(0, (-1, 4)).mean(1), v.unflatten(0, (-1, 4)).mean(1),
                            kept[:, ::4]),
    })  # fmt: skip


def _blocks_all(attend: Any) -> None:
    """With all blocks chosen, nothing is left out."""
    q, k, v = numbers(3, 2, seed=24), numbers(6, 2, seed=25), numbers(6, 2, seed=26)
    expect(attend(q, k, v, 2, 3), plain_attention(q, k, v), "Three blocks of two are all six keys.")


def _blocks_unread(attend: Any) -> None:
    """What stands in blocks that are not chosen has no influence."""
    q, k, v = numbers(1, 3, seed=27), numbers(12, 3, seed=28), numbers(12, 2, seed=29)
    before = attend(q, k, v, 3, 2)
    kept = _blocks(q, k, torch.eye(12, dtype=torch.float64), 3, 2)[0] > 0
    after = attend(q, k, torch.where(kept[:, None], v, v + 100), 3, 2)
    if not torch.allclose(before, after):
        raise Wrong("Values in blocks that the query did not choose have changed its result.",
                    got=after, wanted=before)  # fmt: skip


def _blocks_cheap(attend: Any) -> None:
    """No score is computed for a key that is not chosen."""
    n, m, d, block, top = 32, 1024, 16, 8, 2
    q, k, v = numbers(n, d, seed=30), numbers(m, d, seed=31), numbers(m, d, seed=32)
    with FlopCounterMode(display=False) as counter:
        attend(q, k, v, block, top)
    flops = counter.get_total_flops()
    enough = 2 * n * d * (m // block) + 4 * n * d * top * block  # means, then scores and mixing
    if flops > 2 * enough:
        raise Wrong(f"For {n} queries and {m} keys your products of matrices take {flops:,} FLOPs. "
                    f"{enough:,} are enough to compare with the means and to read {top} blocks. A "
                    "mask hides scores that have been computed; gather the keys of the chosen "
                    "blocks before you compute scores.", got=flops, wanted=enough)  # fmt: skip


BLOCK_ATTENTION = Exercise(
    name="block-attention",
    title="Read where it promises most",
    level=3,
    section='chapters/07_efficient_attention, section "Choosing what to read"',
    stub=block_attention,
    properties=(_blocks_chosen, _blocks_all, _blocks_unread, _blocks_cheap),
    hints=(
        "`k.unflatten(0, (-1, block))` has the shape (blocks, block, d). What is its mean, and "
        "what is the product of the queries with that?",
        "`topk` gives the numbers of the best blocks of each query, (n, top). Keys in blocks, of "
        "the shape (blocks, block, d), can be indexed with that: what shape comes out?",
        "After `flatten(1, 2)` each query has its own (top · block, d) keys. Give the queries a "
        "dimension more, (n, 1, d), and attend in n separate rows.",
    ),
)

EXERCISES = (NEAR_ATTENTION, BLOCK_ATTENTION)
