"""Masks that say which query may look at which key. **True = allowed**, everywhere.

This is the convention of ``torch.nn.functional.scaled_dot_product_attention``;
``torch.nn.MultiheadAttention`` uses the opposite one, so pass it ``~mask``. A mask broadcasts to
the scores, (..., n, m): n queries as rows, m keys as columns.

Explained in: chapters/02_attention, section "Masks: who may look at whom".
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfbook._checks import (
    broadcast_batch,
    check_device,
    check_dtype,
    check_float,
    check_number,
    check_tensor,
)


def causal_mask(
    n: int, m: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "N M"]:
    """Allow each query its own position and the past, aligned to the last key.

    allowed[i, j] = (j ≤ i + m − n), so the last query sees every key. With n = m this is the lower
    triangle; with n < m the queries are the last n of m positions, as when earlier keys come from
    a cache; with n > m the first n − m queries see nothing.

    Args:
        n: number of queries.
        m: number of keys; n when omitted.
        device: where the mask is made.

    Returns:
        A mask of shape (n, m).

    Raises:
        TypeError: if n or m is not an integer.
        ValueError: if n or m is negative.

    Example:
        >>> causal_mask(2, 4).int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    m = n if m is None else m
    check_number("n", n, 0, whole=True)
    check_number("m", m, 0, whole=True)
    check_device(device)
    query = torch.arange(n, device=device)[:, None]  # (n, 1)
    key = torch.arange(m, device=device)  # (m,)
    return key <= query + (m - n)  # (n, m)


def band_mask(
    n: int, m: int | None = None, window: int = 1, *, device: torch.device | str | None = None
) -> Bool[Tensor, "N M"]:
    """Allow each query itself and the keys just before it, ``window`` in all, aligned to the last.

    allowed[i, j] = (p − window < j ≤ p) with p = i + m − n, the place of query i among the keys.

    Args:
        n: number of queries.
        m: number of keys; n when omitted.
        window: how many keys a query sees, at least 1.
        device: where the mask is made.

    Returns:
        A mask of shape (n, m).

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if n or m is negative or the window below 1.

    Example:
        >>> band_mask(2, 4, window=2).int()
        tensor([[0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)

    Source: [beltagy2020longformer]
    Explained in: chapters/12_generation_deeper, section "Caches that do not grow".
    """
    check_number("window", window, 1, whole=True)
    m = n if m is None else m
    near = causal_mask(n, m, device=device)  # (n, m)
    far = torch.arange(m, device=device) <= torch.arange(n, device=device)[:, None] + (
        m - n - window
    )
    return near & ~far


def padding_mask(
    lengths: Int[Tensor, " B"] | Sequence[int], max_len: int | None = None
) -> Bool[Tensor, "B 1 M"]:
    """Allow the first ``lengths[b]`` keys of each sequence b and block the padding behind them.

    allowed[b, 0, j] = (j < lengths[b]). The middle dimension stands for the queries, so the mask
    fits scores (B, n, m); for scores with heads, (B, H, n, m), add their dimension with
    ``.unsqueeze(1)``. Without the middle one, a mask (B, M) would be read as (n, m) whenever B = n,
    and no check could tell.

    Args:
        lengths: integers of shape (B,), one for each sequence.
        max_len: padded length M; the largest length when omitted.

    Returns:
        A mask of shape (B, 1, M).

    Raises:
        TypeError: if a length is not an integer.
        ValueError: if lengths is not a vector, or a length is negative or above ``max_len``.

    Example:
        >>> padding_mask([1, 3]).int()
        tensor([[[1, 0, 0]],
        <BLANKLINE>
                [[1, 1, 1]]], dtype=torch.int32)

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    lengths = _integers("lengths", lengths)
    if lengths.ndim != 1:
        raise ValueError(f"lengths must have shape (B,), got {tuple(lengths.shape)}")
    if lengths.numel() and int(lengths.min()) < 0:
        raise ValueError(f"lengths must not be negative, got {int(lengths.min())}")
    longest = int(lengths.max()) if lengths.numel() else 0
    max_len = longest if max_len is None else max_len
    check_number("max_len", max_len, 0, whole=True)
    if longest > max_len:
        raise ValueError(f"lengths go up to {longest}, which is above max_len = {max_len}")
    position = torch.arange(max_len, device=lengths.device)  # (M,)
    return position < lengths[:, None, None]  # (B, 1, M)


def document_mask(ids: Int[Tensor, "*B N"] | Sequence) -> Bool[Tensor, "*B N N"]:
    """Allow a position to see the positions of its own document, for documents packed in a row.

    allowed[i, j] = (ids[i] = ids[j]).

    Args:
        ids: the number of the document each position belongs to, integers of shape (..., N).

    Returns:
        A mask of shape (..., N, N). With a batch and heads, add the heads with ``.unsqueeze(1)``.

    Raises:
        TypeError: if ids are not integers.
        ValueError: if ids have no dimension.

    Example:
        >>> document_mask([0, 0, 1]).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    ids = _integers("ids", ids)
    check_tensor("ids", ids, min_dims=1)
    return ids[..., :, None] == ids[..., None, :]  # (..., N, N)


def block_mask(
    n: int, block: int, *, device: torch.device | str | None = None
) -> Bool[Tensor, "N N"]:
    """Allow a position to see its own block of ``block`` neighbouring positions.

    allowed[i, j] = (⌊i / block⌋ = ⌊j / block⌋); the last block may be shorter.

    Raises:
        TypeError: if n or block is not an integer.
        ValueError: if n is negative or block is below 1.

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    check_number("n", n, 0, whole=True)
    check_number("block", block, 1, whole=True)
    check_device(device)
    return document_mask(torch.arange(n, device=device) // block)  # (n, n)


def combine_masks(*masks: Bool[Tensor, "..."] | None) -> Bool[Tensor, "..."] | None:
    """Allow what every mask allows; None allows everything.

    The shapes broadcast against one another: causal (n, m) and padding (B, 1, m) give (B, n, m).

    Returns:
        The combined mask, or None when every argument is None.

    Raises:
        TypeError: if a mask is not boolean.
        ValueError: if the shapes do not broadcast.

    Example:
        >>> combine_masks(causal_mask(3), block_mask(3, 2)).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    given = [mask for mask in masks if mask is not None]
    for mask in given:
        _check_boolean(mask)
    if len(given) > 1:
        broadcast_batch(**{f"mask {i}": mask.shape for i, mask in enumerate(given)})
    combined = None
    for mask in given:
        combined = mask if combined is None else combined & mask
    return combined


def to_additive(
    mask: Bool[Tensor, "*S"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "*S"]:
    """Turn a boolean mask into numbers to add to the scores: 0 where allowed, −∞ where not.

    −∞ exists in every floating dtype, so this is safe in half precision, where the customary −1e9
    is out of float16's range. Pass the result as ``bias``.

    Raises:
        TypeError: if the mask is not boolean or the dtype is not floating point.

    Example:
        >>> to_additive(causal_mask(2), torch.float16)
        tensor([[0., -inf],
                [0., 0.]], dtype=torch.float16)

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    _check_boolean(mask)
    if dtype is None:
        raise TypeError("dtype must be floating point, got None")
    check_dtype(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)


def to_boolean(additive: Float[Tensor, "*S"]) -> Bool[Tensor, "*S"]:
    """Turn an additive mask into a boolean one: 0 is allowed, −1e4 and below is blocked.

    The bound takes in the stand-ins for −∞ that are in use: −1e4, −1e9, the dtype's minimum.
    Anything in between would change the weights without blocking, so it is refused.

    Raises:
        TypeError: if the tensor is not floating point.
        ValueError: if it holds other values: then it is a bias, not a mask.

    Example:
        >>> to_boolean(torch.tensor([0.0, -1e9]))
        tensor([ True, False])

    Explained in: chapters/02_attention, section "Masks: who may look at whom".
    """
    check_float("additive", additive)
    allowed = additive == 0
    if not (allowed | (additive <= -1e4)).all():
        raise ValueError(
            "additive must hold only 0 (allowed) and values of -1e4 or below (blocked); "
            "other numbers change the weights, pass them as bias="
        )
    return allowed


def _check_boolean(mask: object) -> None:
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean with True = allowed, got {mask.dtype}; "
            "to_boolean turns an additive mask into a boolean one"
        )


def _integers(name: str, values: object) -> Tensor:
    if not isinstance(values, Tensor):
        try:
            values = torch.as_tensor(values)
        except (RuntimeError, TypeError, ValueError):
            raise TypeError(f"{name} must be integers, got {values!r}") from None
    # An empty list becomes a float tensor; it holds no number that could be wrong.
    if values.numel() == 0 and values.dtype.is_floating_point:
        values = values.long()
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {values.dtype}")
    return values
