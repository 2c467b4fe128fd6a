"""Windows, computed without the pairs that they leave out.

Queries go in tiles of neighbouring rows; a tile meets the spans of keys that one of its queries may
see, and PyTorch's attention does the rest on this slice. Masks and biases are cut in the same way,
so that n · m numbers exist only where the caller brought them. Keys are split once into pieces,
and a tile takes the pieces it needs: a slice of all keys for each tile would cost the backward
pass a zero gradient of full length each time.

Each function equals :func:`tfbook.attention.attend` with the mask of its pattern, see
:mod:`tfbook.efficient.patterns`. Query i of n stands at place i + m − n, so the last query stands
at the last key, and one query with a cache of keys sees what it saw in the whole sequence.

Explained in: chapters/07_efficient_attention, section "A window slides over the keys".
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfbook._checks import check_attention, check_bool, check_number, scores_shape
from tfbook.attention import attend_sdpa, combine_masks, masked_scores, register
from tfbook.efficient.patterns import window_mask

__all__ = ["attend_dilated", "attend_window", "window_pairs"]

Spans = list[tuple[int, int]]
Rule = Callable[[Tensor, Tensor], Tensor | None]


def attend_window(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    window: int,
    n_global: int = 0,
    sinks: int = 0,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
    rows: int = 128,
) -> Float[Tensor, "*B N E"]:
    """Attend to the keys around each query, and to a few first keys that all may see.

    weights = softmax(scale · q kᵀ + bias) over |p − j| < window, j < max(sinks, n_global), and for
    the queries at p < n_global over all keys; out = weights v.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        window: how many keys a query sees to each side, itself counted: ``window`` when causal,
            2 window − 1 when not.
        n_global: how many first tokens see all and are seen by all, as in Longformer.
        sinks: how many first keys are seen by all, as in streaming with attention sinks.
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: refused, the weights are never whole.
        return_lse: refused, PyTorch keeps it to itself.
        rows: queries in a tile.

    Returns:
        The output (..., n, d_v). A query that may see no key gets zeros.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale or number, or for asking for weights or
            log-sum-exp.

    Cost: 2(d + d_v) FLOPs for each of about n (window + sinks) pairs when causal, twice the window
    when not, and of n_global (n + m) pairs; O(n + rows · (rows + window)) numbers of scratch, in
    the backward pass O(n (1 + window / rows)).

    Example:
        >>> q, k = torch.zeros(5, 2), torch.randn(5, 2)  # queries that prefer nothing
        >>> v = torch.arange(5.0)[:, None]
        >>> attend_window(q, k, v, window=2, causal=True).flatten()
        tensor([0.0000, 0.5000, 1.5000, 2.5000, 3.5000])

    Source: [beltagy2020longformer], sinks: [xiao2024efficient]
    Explained in: chapters/07_efficient_attention, section "A window slides over the keys".
    """
    refuse_extras("attend_window", return_weights, return_lse)
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    check_number("rows", rows, 1, whole=True)
    _check_window(window, n_global, sinks)
    n, m = scores_shape(q, k, v)[-2:]
    window, first = min(window, n + m), min(max(n_global, sinks), m)  # beyond there is nothing
    n_global = min(n_global, m)

    def sees(place: Tensor, key: Tensor) -> Tensor:
        gap = place - key  # (r, c)
        near = gap < window if causal else gap.abs() < window
        near = near | (key < first)
        if n_global and not causal:  # their past is global too
            near |= (place >= 0) & (place < n_global)
        return near & (gap >= 0) if causal else near

    tiles = []
    for a, b in _tiles(n, m, rows, 0 if causal else n_global):
        start, stop = a + m - n, b + m - n  # places
        low = start - window + 1
        high = stop if causal else stop + window - 1
        if not causal and 0 <= start < n_global:
            low, high = 0, m
        shared = min(first, stop) if causal else first
        tiles.append(((a, b), join_spans([(0, shared), (low, high)], m)))
    given = {"mask": mask, "bias": bias, "scale": scale}
    return attend_tiles(q, k, v, tiles=tiles, sees=sees, piece=rows, **given)


def attend_dilated(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    window: int,
    dilation: int,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
    rows: int = 128,
) -> Float[Tensor, "*B N E"]:
    """Attend to the keys around each query in steps: a window that is wider and has gaps.

    weights = softmax(scale · q kᵀ + bias) over p − j = 0, ±δ, …, ±(window − 1) δ; out = weights v.
    Places with the same remainder by δ see one another only, so these are δ windows without gaps,
    one for each remainder.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        window: how many keys a query sees to each side, itself counted.
        dilation: δ, the distance from one of these keys to the next.
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: refused, the weights are never whole.
        return_lse: refused, PyTorch keeps it to itself.
        rows: queries in a tile.

    Returns:
        The output (..., n, d_v). A query that may see no key gets zeros.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale or number, or for asking for weights or
            log-sum-exp.

    Cost: as :func:`attend_window` of the same window, whatever the dilation.

    Source: [beltagy2020longformer]
    Explained in: chapters/07_efficient_attention, section "A window slides over the keys".
    """
    refuse_extras("attend_dilated", return_weights, return_lse)
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    check_number("rows", rows, 1, whole=True)
    _check_window(window)
    check_number("dilation", dilation, 1, whole=True)
    n, m = scores_shape(q, k, v)[-2:]
    dilation = min(dilation, n + m) or 1  # beyond there is nothing
    classes = min(dilation, n) or 1  # more than n of them hold no query
    given, found = {"causal": causal, "scale": scale, "rows": rows}, []
    for i in range(classes):
        every = slice(i, None, dilation)  # queries at the places of one remainder
        keys = slice((i + m - n) % dilation, None, dilation)  # and the keys at these places
        found.append(
            attend_window(
                q[..., every, :],
                k[..., keys, :],
                v[..., keys, :],
                window=window,
                mask=_every(mask, every, keys),
                bias=_every(bias, every, keys),
                **given,
            )
        )
    if classes == 1:
        return found[0]
    longest = found[0].shape[-2]
    padded = [torch.nn.functional.pad(x, (0, 0, 0, longest - x.shape[-2])) for x in found]
    return torch.stack(padded, -2).flatten(-3, -2)[..., :n, :]  # (..., n, d_v), in order again


def attend_tiles(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    tiles: list[tuple[tuple[int, int], Spans]],
    sees: Rule,
    piece: int,
    mask: Bool[Tensor, "..."] | None,
    bias: Float[Tensor, "..."] | None,
    scale: float | None,
) -> Float[Tensor, "*B N E"]:
    """Attend tile by tile, each with the keys of its spans only.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        tiles: for each its rows (a, b), which follow one another up to n, and its spans of keys.
        sees: from places (r, 1) and keys (c,) to what is allowed, (r, c), or None for all.
        piece: length of the pieces in which keys are split.
        mask: boolean, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        scale: factor on q kᵀ; 1/√d when omitted.

    Returns:
        The output (..., n, d_v).

    Explained in: chapters/07_efficient_attention, section "A window slides over the keys".
    """
    n, m = q.shape[-2], k.shape[-2]
    sizes = [b - a for (a, b), _ in tiles]
    queries, keys, values = q.split(sizes, -2), _Pieces(k, piece), _Pieces(v, piece)
    masks, biases = (_cut(x, sizes) for x in (mask, bias))
    found = []
    for t, ((a, b), spans) in enumerate(tiles):
        place = torch.arange(a + m - n, b + m - n, device=q.device)[:, None]
        each = [torch.arange(*span, device=q.device) for span in spans]
        key = torch.cat(each) if each else place.new_empty(0)
        found.append(
            attend_sdpa(
                queries[t],
                keys.take(spans),
                values.take(spans),
                mask=combine_masks(sees(place, key), _columns(masks[t], spans)),
                bias=_columns(biases[t], spans),
                scale=scale,
            )
        )
    return found[0] if len(found) == 1 else torch.cat(found, -2)


class _Pieces:
    """Rows of keys or values, of which spans are taken.

    Where a gradient will be asked for, they are split once, and a span is put together of pieces.
    """

    def __init__(self, x: Tensor, size: int):
        self.x, self.size = x, max(min(size, x.shape[-2]), 1)
        split = x.requires_grad and torch.is_grad_enabled() and x.shape[-2] > self.size
        self.pieces = x.split(self.size, -2) if split else None

    def take(self, spans: Spans) -> Tensor:
        """Return the rows of the spans, one behind the other."""
        if self.pieces is None or spans == [(0, self.x.shape[-2])]:
            return _columns(self.x, spans, -2)
        found = []
        for low, high in spans:
            for i in range(low // self.size, (high - 1) // self.size + 1):
                start, piece = i * self.size, self.pieces[i]
                a, b = max(low - start, 0), min(high - start, piece.shape[-2])
                found.append(piece if b - a == piece.shape[-2] else piece[..., a:b, :])
        return torch.cat(found, -2) if found else self.x[..., :0, :]


def _cut(x: Tensor | None, sizes: list[int]) -> list[Tensor | None] | tuple[Tensor, ...]:
    """Return the rows of each tile, of what broadcasts to (..., n, m)."""
    if x is None:
        return [None] * len(sizes)
    x = x[(None,) * max(2 - x.ndim, 0)]
    return [x] * len(sizes) if x.shape[-2] == 1 else x.split(sizes, -2)


def _columns(x: Tensor | None, spans: Spans, dim: int = -1) -> Tensor | None:
    """Return the spans of a dimension, one behind the other; a size of 1 of a mask stays."""
    if x is None or (dim == -1 and x.shape[-1] == 1):
        return x
    parts = [x.narrow(dim, low, high - low) for low, high in spans]
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0] if parts else x.narrow(dim, 0, 0)


def _every(x: Tensor | None, rows: slice, cols: slice) -> Tensor | None:
    """Return every δ-th row and column of what broadcasts to (..., n, m)."""
    if x is None:
        return None
    x = x[(None,) * max(2 - x.ndim, 0)]
    x = x if x.shape[-2] == 1 else x[..., rows, :]
    return x if x.shape[-1] == 1 else x[..., cols]


def join_spans(spans: Spans, m: int) -> Spans:
    """Return what the spans cover of 0 … m − 1, in order and without overlap."""
    joined: Spans = []
    for low, high in sorted((max(low, 0), min(high, m)) for low, high in spans):
        if low >= high:
            continue
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


def refuse_extras(name: str, return_weights: bool, return_lse: bool) -> None:
    """Raise ValueError where weights or log-sum-exp are asked for, which no tile keeps."""
    for extra, asked in (("return_weights", return_weights), ("return_lse", return_lse)):
        check_bool(extra, asked)
        if asked:
            raise ValueError(
                f"{name} cannot serve {extra}=True, PyTorch does not hand it out; use "
                "tfbook.attention.attend with the mask of the pattern"
            )


def _check_window(window: int, n_global: int = 0, sinks: int = 0) -> None:
    check_number("window", window, 1, whole=True)
    check_number("n_global", n_global, 0, whole=True)
    check_number("sinks", sinks, 0, whole=True)


def _tiles(n: int, m: int, rows: int, n_global: int) -> list[tuple[int, int]]:
    """Return the rows of each tile: cut where a place is a multiple of rows, and at the globals."""
    shift = m - n
    cuts = {0, n, *range(-shift % rows, n, rows)}
    cuts |= {min(max(place - shift, 0), n) for place in (0, n_global) if n_global}
    edges = sorted(cuts)
    return list(zip(edges, edges[1:], strict=False)) or [(0, 0)]


# What each forms its softmax of, see tfbook.attention.explicit, and what it costs.


def _window_scores(q, k, *, rows=None, mask=None, causal=False, **options):
    """Return the scores that the tiles amount to, (..., n, m)."""
    chosen = {each: options.pop(each) for each in PATTERN if each in options}
    pattern = window_mask(q.shape[-2], k.shape[-2], **chosen, causal=causal, device=q.device)
    return masked_scores(q, k, mask=combine_masks(mask, pattern), **options)


def window_pairs(
    n: int,
    m: int,
    *,
    window: int,
    dilation: int = 1,
    n_global: int = 0,
    sinks: int = 0,
    causal: bool = False,
) -> int:
    """Count the pairs of :func:`tfbook.efficient.window_mask` without making it.

    Causal, a query at place p has min(window, ⌊p / δ⌋ + 1) keys in its window; the first keys that
    all may see are added where the window does not hold them.

    Args:
        n: number of queries.
        m: number of keys.
        window: how many keys a query sees to each side, itself counted.
        dilation: δ, the distance from one of these keys to the next.
        n_global: how many first tokens see all and are seen by all.
        sinks: how many first keys are seen by all.
        causal: hide the future.

    Returns:
        How many scores there are.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if a number is out of its range.

    Example:
        >>> window_pairs(1024, 1024, window=64, causal=True)
        63520

    Explained in: chapters/07_efficient_attention, section "A window slides over the keys".
    """
    check_number("n", n, 0, whole=True)
    check_number("m", m, 0, whole=True)
    check_number("dilation", dilation, 1, whole=True)
    check_bool("causal", causal)
    _check_window(window, n_global, sinks)
    window, dilation = min(window, n + m), min(dilation, n + m) or 1  # beyond there is nothing
    first, n_global = min(max(n_global, sinks), m), min(n_global, m)
    place = torch.arange(m - n, m)  # (n,)
    aside = (window - 1) * dilation

    def near(end: int) -> Tensor:
        """Count the keys before ``end`` in the window of each place, (n,)."""
        low = (place - aside).clamp(min=0)
        high = (place if causal else place + aside).clamp(max=end - 1)
        # Of the keys p + t δ, those with low ≤ p + t δ ≤ high.
        steps = (high - place).div(dilation, rounding_mode="floor")
        steps += (place - low).div(dilation, rounding_mode="floor")
        return (steps + 1).clamp(min=0)

    shared = (place + 1).clamp(0, first) if causal else torch.full_like(place, first)
    seen = near(m) + shared - near(first)
    if not causal:
        seen[(place >= 0) & (place < n_global)] = m
    return int(seen.sum())


def _window_flops(n, m, d_k, d_v, *, rows=None, **pattern):
    count = window_pairs(n, m, **pattern)
    return 2 * count * d_k, 2 * count * d_v


PATTERN = ("window", "dilation", "n_global", "sinks")
attend_window.scores = attend_dilated.scores = _window_scores

#: What no attention with a pattern of places has; the reasons hold for each.
LACKS = {
    "exact": "most pairs are left out",
    "weights": "the weights are never whole",
    "lse": "PyTorch keeps it",
    "query_equivariance": "what a query sees depends on its place",
    "key_value_invariance": "a key is seen for its place",
    "query_independence": "queries are counted from the last one, which stands at the last key",
    "mask": "a key taken out moves the others to other places",
    "proportional": "copies of a key take places, which moves other keys out of sight",
    "second_derivatives": "PyTorch's backward pass has no derivative of its own",
}
_GAPS = "keys between the steps are never seen"

register(
    "window", attend_window, lacks=LACKS, options={"window": 11, "rows": 4}, flops=_window_flops
)
register(
    "streaming",
    attend_window,
    lacks=LACKS,
    options={"window": 11, "sinks": 2, "rows": 4},
    flops=_window_flops,
)
register(
    "longformer",
    attend_window,
    lacks=LACKS,
    options={"window": 11, "n_global": 2, "rows": 3},
    flops=_window_flops,
)
register(
    "dilated",
    attend_dilated,
    lacks=LACKS
    | {
        "convex": _GAPS + ", and a mask may leave nothing else",
        "bias": _GAPS + ", however large their bias is",
        "extreme_logits": _GAPS + ", however large their score is",
        "small_sizes": _GAPS + ", not even when there is one key only",
    },
    options={"window": 6, "dilation": 2, "rows": 3},
    flops=_window_flops,
)
