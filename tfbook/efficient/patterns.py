"""Sparse patterns: masks that allow few pairs, and what such a mask lets through.

Query i of n stands at place p = i + m − n among the m keys, as everywhere in this room: the last
query at the last key. A causal pattern is the two-sided one without the future; where it is drawn
by chance, it is drawn from the past. True = allowed.

A **layout** is a mask whose rows and columns are blocks of neighbouring positions. Each mask of
this module can be one: ``strided_mask(16, stride=4)`` is the layout of 16 blocks, and
:func:`expand_layout` makes the mask of positions of it.

Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tfbook._checks import (
    check_bool,
    check_choice,
    check_device,
    check_generator,
    check_number,
    check_tensor,
)
from tfbook.attention import causal_mask

__all__ = [
    "window_mask",
    "strided_mask",
    "fixed_mask",
    "bigbird_layout",
    "expand_layout",
    "pairs",
    "reach",
    "hops_needed",
]

HEADS = ("both", "near", "far")


def window_mask(
    n: int,
    m: int | None = None,
    window: int = 1,
    *,
    dilation: int = 1,
    n_global: int = 0,
    sinks: int = 0,
    causal: bool = False,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "N M"]:
    """Allow each query the keys around it, in steps of ``dilation``, and some keys to everyone.

    allowed[i, j] = (p − j is one of 0, ±δ, …, ±(window − 1) δ) or j < max(sinks, n_global) or
    0 ≤ p < n_global. Causal, it is :func:`tfbook.attention.band_mask` when nothing is added, and
    global tokens are the same as sinks.

    Args:
        n: number of queries.
        m: number of keys; n when omitted.
        window: how many keys a query sees to each side, itself counted: ``window`` when causal,
            2 window − 1 when not.
        dilation: δ, the distance from one of these keys to the next.
        n_global: how many first tokens see all and are seen by all, as in Longformer.
        sinks: how many first keys are seen by all, as in streaming with attention sinks.
        causal: hide the future.
        device: where the mask is made.

    Returns:
        A mask of shape (n, m).

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if a number is negative, or the window or the dilation below 1.

    Example:
        >>> window_mask(4, window=2, n_global=1).int()
        tensor([[1, 1, 1, 1],
                [1, 1, 1, 0],
                [1, 1, 1, 1],
                [1, 0, 1, 1]], dtype=torch.int32)

    Source: [beltagy2020longformer], sinks: [xiao2024efficient]
    Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
    """
    check_number("window", window, 1, whole=True)
    check_number("dilation", dilation, 1, whole=True)
    check_number("n_global", n_global, 0, whole=True)
    check_number("sinks", sinks, 0, whole=True)
    place, key, past = _grid(n, m, causal, device)
    window, dilation, n_global, sinks = _within(past, window, dilation, n_global, sinks)
    gap = place - key  # (n, m)
    allowed = (gap.abs() < window * dilation) & (gap % dilation == 0)
    allowed |= key < max(sinks, n_global)
    allowed |= (place >= 0) & (place < n_global)
    return allowed & past


def strided_mask(
    n: int,
    m: int | None = None,
    stride: int = 1,
    *,
    head: str = "both",
    causal: bool = True,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "N M"]:
    """Allow the last ``stride`` keys and every stride-th one: the strided pattern.

    near: |p − j| ≤ stride; far: (p − j) mod stride = 0. With stride ≈ √n a query sees about 2√n
    keys, and two layers connect all pairs.

    Args:
        n: number of queries.
        m: number of keys; n when omitted.
        stride: l, at least 1.
        head: "near" or "far" for one of the two heads, "both" for their union.
        causal: hide the future.
        device: where the mask is made.

    Returns:
        A mask of shape (n, m).

    Raises:
        TypeError: if a number is not an integer.
        ValueError: for a negative size, a stride below 1 or an unknown head.

    Example:
        >>> strided_mask(7, stride=3)[-1].int()
        tensor([1, 0, 0, 1, 1, 1, 1], dtype=torch.int32)

    Source: [child2019generating]
    Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
    """
    check_number("stride", stride, 1, whole=True)
    check_choice("head", head, HEADS)
    place, key, past = _grid(n, m, causal, device)
    (stride,) = _within(past, stride)
    gap = place - key  # (n, m)
    return _heads(head, gap.abs() <= stride, gap % stride == 0) & past


def fixed_mask(
    n: int,
    m: int | None = None,
    stride: int = 1,
    *,
    summaries: int = 1,
    head: str = "both",
    causal: bool = True,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "N M"]:
    """Allow a query's own block of keys and the last keys of every block: the fixed pattern.

    near: ⌊p / l⌋ = ⌊j / l⌋; far: j mod l ≥ l − summaries. The last ``summaries`` positions of each
    block of l = stride gather what the block holds, and all look at them. As a layout this is a
    hierarchy of two levels: blocks in groups, and one block that speaks for its group.

    Args:
        n: number of queries.
        m: number of keys; n when omitted.
        stride: l, the length of a block.
        summaries: how many last keys of each block everyone sees, from 1 to l.
        head: "near" or "far" for one of the two heads, "both" for their union.
        causal: hide the future.
        device: where the mask is made.

    Returns:
        A mask of shape (n, m).

    Raises:
        TypeError: if a number is not an integer.
        ValueError: for a size out of its range or an unknown head.

    Example:
        >>> fixed_mask(7, stride=3)[-1].int()
        tensor([0, 0, 1, 0, 0, 1, 1], dtype=torch.int32)

    Source: [child2019generating]
    Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
    """
    check_number("stride", stride, 1, whole=True)
    check_number("summaries", summaries, 1, stride, whole=True)
    check_choice("head", head, HEADS)
    place, key, past = _grid(n, m, causal, device)
    stride, last = _within(past, stride, stride - summaries)
    near = place.div(stride, rounding_mode="floor") == key // stride
    far = (key % stride >= last).expand_as(past)
    return _heads(head, near, far) & past


def bigbird_layout(
    n_blocks: int,
    *,
    window: int = 2,
    n_global: int = 1,
    n_random: int = 1,
    causal: bool = False,
    generator: torch.Generator | None = None,
) -> Bool[Tensor, "N N"]:
    """Allow each block its neighbours, the global blocks and a few blocks drawn by chance.

    layout[I, J] = |I − J| < window or I < n_global or J < n_global or J is one of the
    ``n_random`` blocks drawn for I, out of those that it does not see anyway. Causal, they are
    drawn from the past, and a longer layout from the same seed begins with the shorter one.

    Args:
        n_blocks: number of blocks.
        window: how many blocks are seen to each side, the own one counted; 2 is the window of
            three blocks of the paper.
        n_global: how many first blocks see all and are seen by all.
        n_random: how many blocks are drawn for each block, fewer where fewer are left.
        causal: hide later blocks.
        generator: source of the draws; PyTorch's own when omitted.

    Returns:
        A layout of shape (n_blocks, n_blocks), on the CPU.

    Raises:
        TypeError: if a number is not an integer, or the generator none.
        ValueError: if a number is negative or the window below 1.

    Example:
        >>> bigbird_layout(5, n_random=0, causal=True).int()
        tensor([[1, 0, 0, 0, 0],
                [1, 1, 0, 0, 0],
                [1, 1, 1, 0, 0],
                [1, 0, 1, 1, 0],
                [1, 0, 0, 1, 1]], dtype=torch.int32)

    Source: [zaheer2020big]
    Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
    """
    check_number("n_random", n_random, 0, whole=True)
    check_generator(generator)
    layout = window_mask(n_blocks, window=window, n_global=n_global, causal=causal)
    if n_random == 0 or n_blocks == 0:
        return layout
    lots = torch.full((n_blocks, n_blocks), -1.0)  # those seen anyway are drawn last
    if causal:  # row after row, so that more rows leave the first ones as they are
        row, column = torch.tril_indices(n_blocks, n_blocks)
        lots[row, column] = torch.rand(len(row), generator=generator)
    else:
        lots = torch.rand(n_blocks, n_blocks, generator=generator)
    lots.masked_fill_(layout, -1.0)
    best = lots.topk(min(n_random, n_blocks))
    drawn = torch.zeros_like(layout).scatter_(-1, best.indices, best.values >= 0)
    return layout | drawn


def expand_layout(
    layout: Bool[Tensor, "R R"], block: int, n: int, m: int | None = None, *, causal: bool = False
) -> Bool[Tensor, "N M"]:
    """Make the mask of positions of a layout of blocks.

    allowed[i, j] = layout[⌊p / block⌋, ⌊j / block⌋]. A layout for more blocks is cut; a query
    before the first key counts to the first block.

    Args:
        layout: boolean, square, at least as many rows as there are blocks among the m keys.
        block: positions in a block.
        n: number of queries.
        m: number of keys; n when omitted.
        causal: hide the future inside of the blocks too.

    Returns:
        A mask of shape (n, m), on the layout's device.

    Raises:
        TypeError: if a number is not an integer, or the layout is not boolean.
        ValueError: if the layout is too small or a number out of its range.

    Example:
        >>> expand_layout(torch.eye(2, dtype=torch.bool), 2, 4, causal=True).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 0, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)

    Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
    """
    check_number("block", block, 1, whole=True)
    _check_mask("layout", layout)
    place, key, past = _grid(n, m, causal, layout.device)
    check_layout(len(layout), block, past.shape[1])
    (block,) = _within(past, block)
    if 0 in past.shape:
        return past
    return layout[place.clamp(min=0) // block, key // block] & past


def check_layout(rows: int, block: int, m: int) -> None:
    """Raise ValueError unless a layout of so many rows covers the blocks of m positions."""
    if rows < (blocks := -(-m // block)):
        raise ValueError(
            f"layout must have at least {blocks} rows and columns, for blocks of {block} among "
            f"{m} keys, got {rows}"
        )


def pairs(mask: Bool[Tensor, "*B N M"]) -> Int[Tensor, "*B N"]:
    """Count how many keys each query may see.

    pairs[i] = Σ_j allowed[i, j]; their sum, times 2(d + d_v), is what attention costs in FLOPs.

    Args:
        mask: boolean, (..., n, m).

    Returns:
        One count for each query, (..., n).

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if it has fewer than two dimensions.

    Example:
        >>> pairs(causal_mask(3, 5))
        tensor([3, 4, 5])

    Explained in: chapters/07_efficient_attention_deeper, section "Few pairs, chosen beforehand".
    """
    _check_mask("mask", mask, square=False)
    return mask.sum(-1)


def reach(mask: Bool[Tensor, "N N"], hops: int = 1) -> Bool[Tensor, "N N"]:
    """Tell who can be influenced by whom after some layers with this mask and residual paths.

    reach = (mask or identity)^hops as a boolean product: R[i, j] says that some chain of at most
    ``hops`` looks leads from i to j.

    Args:
        mask: boolean, (n, n).
        hops: number of layers; 0 reaches nobody but oneself.

    Returns:
        R, (n, n), True where position i can hold something of position j.

    Raises:
        TypeError: if the mask is not boolean, or hops not an integer.
        ValueError: if the mask is not square, or hops negative.

    Example:
        >>> reach(window_mask(4, window=2, causal=True), hops=2).int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 0],
                [0, 1, 1, 1]], dtype=torch.int32)

    Explained in: chapters/07_efficient_attention, section "How far a token reaches".
    """
    _check_mask("mask", mask)
    check_number("hops", hops, 0, whole=True)
    step = _with_self(mask)
    reached = _with_self(torch.zeros_like(mask))
    for _ in range(hops):
        before, reached = reached, _hop(step, reached)
        if torch.equal(before, reached):  # more layers reach nobody else
            break
    return reached


def hops_needed(mask: Bool[Tensor, "N N"], *, causal: bool = False) -> int | None:
    """Count the layers until every position has reached every other one.

    min h with reach(mask, h) = all pairs, or with ``causal`` all pairs of a later and an earlier
    position; for two-sided masks this is the diameter of their graph.

    Args:
        mask: boolean, (n, n).
        causal: ask for the past only.

    Returns:
        The number of layers, or None if no number is enough.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if the mask is not square.

    Example:
        >>> hops_needed(window_mask(9, window=3, causal=True), causal=True)
        4
        >>> hops_needed(window_mask(9, window=3, n_global=1))
        2

    Explained in: chapters/07_efficient_attention, section "How far a token reaches".
    """
    _check_mask("mask", mask)
    check_bool("causal", causal)
    wanted = causal_mask(len(mask), device=mask.device) if causal else torch.ones_like(mask)
    step, reached, hops = _with_self(mask), _with_self(torch.zeros_like(mask)), 0
    while not reached[wanted].all():
        before, reached = reached, _hop(step, reached)
        hops += 1
        if torch.equal(before, reached):
            return None
    return hops


def _grid(n, m, causal, device):
    """Return the places of the queries (n, 1), those of the keys (m,) and what is not future."""
    m = n if m is None else m
    check_number("n", n, 0, whole=True)
    check_number("m", m, 0, whole=True)
    check_bool("causal", causal)
    check_device(device)
    place = torch.arange(m - n, m, device=device)[:, None]
    past = causal_mask(n, m, device=device)
    return place, torch.arange(m, device=device), past if causal else torch.ones_like(past)


def _within(mask, *sizes):
    """Return sizes of at most n + m, beyond which no place and no key lies."""
    return [min(size, max(sum(mask.shape), 1)) for size in sizes]


def _heads(head, near, far):
    return {"near": near, "far": far}[head] if head != "both" else near | far


def _check_mask(name, mask, *, square=True):
    check_tensor(name, mask, min_dims=2)
    if mask.dtype != torch.bool:
        raise TypeError(f"{name} must be boolean with True = allowed, got {mask.dtype}")
    if square and (mask.ndim != 2 or mask.shape[0] != mask.shape[1]):
        raise ValueError(f"{name} must be square, (n, n), got {tuple(mask.shape)}")


def _with_self(mask):
    return mask | torch.eye(len(mask), dtype=torch.bool, device=mask.device)


def _hop(step, reached):
    """Return who is reached by a look more: a product of 0 and 1, where sums only count."""
    return (step.float() @ reached.float()) > 0
