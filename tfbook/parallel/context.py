"""Context parallelism: a sequence that is cut, each process keeping some of its rows.

Everything but attention treats rows by themselves. For attention keys and values go round a ring:
each process attends to what it has just heard, and merges the answers by their log-sum-exp, which
is exact. Or an all-to-all turns rows of all heads into heads of all rows, and back.

Explained in: chapters/17_hardware, section "Many devices".
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function

from tfbook._checks import check_attention, check_bool, check_callable, check_choice, check_number
from tfbook.attention import attend, attend_sdpa, merge_partials
from tfbook.parallel.conjugates import swap
from tfbook.parallel.groups import Group, check_group

__all__ = ["ORDERS", "attend_ring", "attend_ulysses", "ring_pairs", "rows_of"]

#: How rows are dealt out, see :func:`tfbook.parallel.rows_of`.
ORDERS = ("plain", "zigzag")
LARGEST = 2**40


def rows_of(n: int, p: int, rank: int, *, order: str = "zigzag") -> Int[Tensor, " R"]:
    """Return which of n rows a process keeps.

    "plain": the n/p rows that follow one another. With a causal mask the last process then has the
    most work, and the others wait. "zigzag": the rows are cut into 2p pieces, and process r has
    pieces r and 2p − 1 − r, an early and a late one; all have the same work.

    Args:
        n: rows of the sequence, a multiple of p, for "zigzag" of 2p.
        p: processes.
        rank: which of them.
        order: one of ``ORDERS``.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, rows that cannot be cut, or an unknown order.

    Example:
        >>> rows_of(8, 2, 0).tolist(), rows_of(8, 2, 1).tolist()
        ([0, 1, 6, 7], [2, 3, 4, 5])

    Source: [dubey2024herd]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_choice("order", order, ORDERS)
    check_number("p", p, 1, 2**20, whole=True)
    check_number("rank", rank, 0, p - 1, whole=True)
    pieces = p if order == "plain" else 2 * p
    check_number("n", n, pieces, LARGEST, whole=True)
    if n % pieces:
        raise ValueError(f"n must be a multiple of {pieces} for order {order!r}, got {n}")
    size = n // pieces
    own = (rank,) if order == "plain" else (rank, pieces - 1 - rank)
    return torch.cat([torch.arange(i * size, (i + 1) * size) for i in own])


def ring_pairs(n: int, p: int, *, order: str = "zigzag") -> list[int]:
    """Count the pairs of query and key that each process computes, causally.

    Args:
        n: rows of the sequence.
        p: processes.
        order: one of ``ORDERS``.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, rows that cannot be cut, or an unknown order.

    Example:
        >>> ring_pairs(8, 2, order="plain"), ring_pairs(8, 2)
        ([10, 26], [18, 18])

    Source: [brandon2023striped]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_number("p", p, 1, 2**20, whole=True)
    return [int((rows_of(n, p, rank, order=order) + 1).sum()) for rank in range(p)]


def attend_ring(
    q: Float[Tensor, "*B N D"],
    k: Float[Tensor, "*B N D"],
    v: Float[Tensor, "*B N E"],
    group: Group,
    *,
    causal: bool = False,
    order: str = "zigzag",
    scale: float | None = None,
) -> Float[Tensor, "*B N E"]:
    """Attend over a sequence of which each process has some rows; keys and values go round.

    In step s process r meets the keys of process r − s. What it finds is merged with what it found
    before: out = Σ_s exp(lse_s − lse) out_s. No process ever has all keys, and while one piece is
    worked on the next could arrive. The backward pass is one more round, in which the gradients
    of keys and values travel with them.

    Args:
        q: queries of this process's rows, (..., n/p, d), those of :func:`rows_of`.
        k: keys of the same rows, (..., n/p, d).
        v: values of the same rows, (..., n/p, d_v).
        group: the processes.
        causal: hide the future.
        order: which rows each process has, one of ``ORDERS``; it matters for ``causal`` only.
        scale: factor on q kᵀ; 1/√d when omitted.

    Returns:
        The output for the own queries (..., n/p, d_v); it has first derivatives.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit.
        PeerLost: if a process is gone.

    Cost: p − 1 messages of the bytes of the own k and v forward; backward as many, and p more of
        their gradients.

    Example:
        >>> q, k, v = torch.randn(3, 4, 2)
        >>> y = attend_ring(q, k, v, Group(), causal=True)
        >>> torch.allclose(y, attend(q, k, v, causal=True), atol=1e-6)
        True

    Source: [liu2023ring]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(q, k, v, causal, scale)
    check_group(group)
    check_choice("order", order, ORDERS)
    n, masks = q.shape[-2] * group.size, [None] * group.size
    if causal:
        rows = [rows_of(n, group.size, r, order=order) for r in range(group.size)]
        masks = [rows[group.rank][:, None] >= keys for keys in rows]  # (n/p, n/p) each
        masks = [None if bool(mask.all()) else mask.to(q.device) for mask in masks]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return _Ring.apply(q, k, v, group, masks, scale)


class _Ring(Function):
    """Attention with keys and values that go round; masks say what each owner's keys allow."""

    @staticmethod
    def forward(ctx, q, k, v, group, masks, scale):
        out = lse = None
        for owner, (k_s, v_s) in _round(group, k, v):
            if masks[owner] is not None and not masks[owner].any():
                continue
            found = attend(q, k_s, v_s, mask=masks[owner], scale=scale, return_lse=True)
            out, lse = found if out is None else merge_partials(*zip((out, lse), found))  # noqa: B905
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.given = group, masks, scale
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        group, masks, scale = ctx.given
        delta = (grad * out).sum(-1, keepdim=True)  # (..., n, 1)
        dq, travelling = torch.zeros_like(q), (torch.zeros_like(k), torch.zeros_like(v))
        for owner, (k_s, v_s) in _round(group, k, v):
            dk, dv = travelling
            if masks[owner] is None or masks[owner].any():
                scores = scale * q @ k_s.mT  # (..., n, m)
                if masks[owner] is not None:
                    scores = scores.masked_fill(~masks[owner], -torch.inf)
                weights = (scores - lse[..., None]).exp()
                slopes = scale * weights * (grad @ v_s.mT - delta)
                dv = dv + weights.mT @ grad
                dk = dk + slopes.mT @ q
                dq = dq + slopes @ k_s
            travelling = _pass_on(group, dk, dv)  # after p steps they are at home
        return dq, *travelling, None, None, None


def _round(group: Group, k: Tensor, v: Tensor):
    """Yield the keys and values of each process, the own ones first, and whose they are."""
    for step in range(group.size):
        yield (group.rank - step) % group.size, (k, v)
        if step < group.size - 1:
            k, v = _pass_on(group, k, v)


def _pass_on(group: Group, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Send both to the right in one message, and return what comes from the left."""
    right, left = ((group.rank + step) % group.size for step in (1, -1))
    heard = group.exchange(torch.cat([k, v], -1), right, left)
    return heard.split([k.shape[-1], v.shape[-1]], -1)


def attend_ulysses(
    q: Float[Tensor, "*B H N D"],
    k: Float[Tensor, "*B H N D"],
    v: Float[Tensor, "*B H N E"],
    group: Group,
    *,
    causal: bool = False,
    scale: float | None = None,
    attend: Callable[..., Tensor] = attend_sdpa,
) -> Float[Tensor, "*B H N E"]:
    """Attend over a sequence that is cut in order, by cutting the heads instead meanwhile.

    Four all-to-alls: of q, k, v from rows to heads, and of the result back. Between them each
    process has H/p heads of all rows, and any attention function will do.

    Args:
        q: queries of this process's rows in "plain" order, of all heads, (..., H, n/p, d).
        k: keys of the same rows.
        v: values of the same rows.
        group: the processes; H must be a multiple of their number.
        causal: hide the future.
        scale: factor on q kᵀ; 1/√d when omitted.
        attend: the attention function.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit.
        PeerLost: if a process is gone.

    Cost: (p − 1)/p of the bytes of the own q, k, v and result; with more processes the same bytes
        are of fewer rows, where a ring's stay.

    Example:
        >>> q, k, v = torch.randn(3, 2, 4, 5)
        >>> attend_ulysses(q, k, v, Group()).shape
        torch.Size([2, 4, 5])

    Source: [jacobs2023ulysses]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    _check(q, k, v, causal, scale)
    check_group(group)
    check_callable("attend", attend)
    if q.ndim < 3:
        raise ValueError(f"q must have shape (..., H, N, D), got {tuple(q.shape)}")
    q, k, v = (swap(x, group, cut=-3, join=-2) for x in (q, k, v))  # (..., H/p, n, d)
    return swap(attend(q, k, v, causal=causal, scale=scale), group, cut=-2, join=-3)


def _check(q: object, k: object, v: object, causal: object, scale: object) -> None:
    check_bool("causal", causal)
    check_attention(q, k, v, causal=causal, scale=scale)
    if not q.shape[:-1] == k.shape[:-1] == v.shape[:-1] or 0 in (*q.shape, *v.shape):
        raise ValueError(
            "q, k and v must be of the same rows, and of one at least, got "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
