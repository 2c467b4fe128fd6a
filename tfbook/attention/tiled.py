"""Exact attention in tiles: the (n, m) matrix of scores never exists whole.

Two forms that differ in how they normalise a row:

- **rows** takes all keys a tile of queries may see, so one ordinary softmax does;
- **online** takes keys in tiles too and corrects a running maximum and sum as it goes
  (Milakov and Gimelshein 2018; Dao et al. 2022), so its scratch memory does not grow with m.

Both skip tiles that lie wholly in the future and recompute the weights in the backward pass from
the log-sum-exp of each row. Work goes through one matrix of the batch at a time, so that a tile
stays in the processor's cache. First derivatives only; for higher ones take
:func:`tfbook.attention.attend`.

Explained in: chapters/02_attention_deeper, section "The same function, computed four ways".
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfbook._checks import check_attention, check_bool, check_number, scores_shape


def attend_rows(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
    rows: int = 128,
) -> Float[Tensor, "*B N E"] | tuple[Float[Tensor, "*B N E"], Float[Tensor, "*B N"]]:
    """Compute :func:`tfbook.attention.attend` by tiles of ``rows`` queries against all their keys.

    out[a:b] = softmax(scale · q[a:b] kᵀ + bias) v, one tile of rows [a, b) after another.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: refused, the weights are never whole.
        return_lse: also return the log-sum-exp of each row of scores, (..., n).
        rows: queries in a tile.

    Returns:
        The output (..., n, d_v), or (output, lse). A query that may see no key gets zeros.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale or tile, or for ``return_weights=True``.

    Cost: n · m · 2(d + d_v) FLOPs, half of it when causal; 2 · rows · m numbers of scratch, O(n)
    in all, forward and backward.

    Explained in: chapters/02_attention_deeper, section "The same function, computed four ways".
    """
    _check_extras("attend_rows", return_weights, return_lse)
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    shape = scores_shape(q, k, v)
    check_number("rows", rows, 1, whole=True)
    output, lse = _attend(q, k, v, mask, bias, shape, _How(causal, scale, rows, None))
    return (output, lse) if return_lse else output


def attend_online(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
    rows: int = 128,
    cols: int = 512,
) -> Float[Tensor, "*B N E"] | tuple[Float[Tensor, "*B N E"], Float[Tensor, "*B N"]]:
    """Compute :func:`tfbook.attention.attend` by tiles of queries and keys, by online softmax.

    For each tile of keys with scores s: μ' = max(μ, max s), p = exp(s − μ'), r = exp(μ − μ'); the
    running sum and output become ℓ' = r ℓ + Σ p and o' = r o + p v; in the end out = o / ℓ.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: refused, the weights are never whole.
        return_lse: also return the log-sum-exp of each row of scores, (..., n).
        rows: queries in a tile.
        cols: keys in a tile.

    Returns:
        The output (..., n, d_v), or (output, lse). A query that may see no key gets zeros.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale or tile, or for ``return_weights=True``.

    Cost: n · m · 2(d + d_v) FLOPs, half of it when causal; rows · cols numbers of scratch, whatever
    n and m are, beside O(n) of row statistics.

    Source: [milakov2018online], [dao2022flashattention]
    Explained in: chapters/02_attention_deeper, section "The same function, computed four ways".
    """
    _check_extras("attend_online", return_weights, return_lse)
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    shape = scores_shape(q, k, v)
    check_number("rows", rows, 1, whole=True)
    check_number("cols", cols, 1, whole=True)
    output, lse = _attend(q, k, v, mask, bias, shape, _How(causal, scale, rows, cols))
    return (output, lse) if return_lse else output


def _check_extras(name: str, return_weights: bool, return_lse: bool) -> None:
    check_bool("return_weights", return_weights)
    check_bool("return_lse", return_lse)
    if return_weights:
        raise ValueError(
            f"{name} never holds the weights whole, so return_weights=True cannot be served; "
            "use tfbook.attention.attend"
        )


class _How(NamedTuple):
    """What a tiled call needs to know beside its tensors."""

    causal: bool
    scale: float | None
    rows: int
    cols: int | None  # None: all keys at once


def _attend(q, k, v, mask, bias, shape, how):
    """Bring the tensors to one rank and one batch, and enter the autograd function."""
    *batch, _, _ = shape
    q, k, v = (x.expand(*batch, *x.shape[-2:]) for x in (q, k, v))
    mask, bias = (x if x is None else x[(None,) * (len(shape) - x.ndim)] for x in (mask, bias))
    if how.scale is None:
        how = how._replace(scale=max(q.shape[-1], 1) ** -0.5)
    return _Attend.apply(q, k, v, mask, bias, how)


class _Attend(torch.autograd.Function):
    """Tiled attention with its own backward: (q, k, v, mask, bias) → (output, lse)."""

    @staticmethod
    def forward(q, k, v, mask, bias, how):
        run = _rows_forward if how.cols is None else _online_forward
        with torch.autocast(q.device.type, enabled=False):
            return run(q, k, v, mask, bias, how)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.how = inputs
        ctx.save_for_backward(*tensors, *output)

    @staticmethod
    def backward(ctx, d_output, d_lse):
        want_bias = ctx.needs_input_grad[4]
        d_q, d_k, d_v, d_bias = _AttendBackward.apply(
            *ctx.saved_tensors, d_output, d_lse, want_bias, ctx.how
        )
        return d_q, d_k, d_v, None, d_bias, None

    @staticmethod
    def vmap(info, in_dims, *inputs):
        return _Attend.apply(*_lead(info.batch_size, in_dims, inputs)), (0, 0)


class _AttendBackward(torch.autograd.Function):
    """The backward pass as a function of its own, so that ``vmap`` of a gradient works too."""

    @staticmethod
    def forward(q, k, v, mask, bias, output, lse, d_output, d_lse, want_bias, how):
        with torch.autocast(q.device.type, enabled=False):
            return _backward(q, k, v, mask, bias, output, lse, d_output, d_lse, want_bias, how)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(
            "attend_rows and attend_online have first derivatives only; "
            "use tfbook.attention.attend for higher ones"
        )

    @staticmethod
    def vmap(info, in_dims, *inputs):
        grads = _AttendBackward.apply(*_lead(info.batch_size, in_dims, inputs))
        return grads, tuple(None if grad is None else 0 for grad in grads)


def _lead(size, in_dims, inputs):
    """Give every tensor the mapped dimension in front: it becomes one more batch dimension."""
    for x, dim in zip(inputs, in_dims, strict=True):
        if not isinstance(x, Tensor):
            yield x
        else:
            yield x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _rows_forward(q, k, v, mask, bias, how):
    output, lse = _empty_result(q, v)
    n, m = q.shape[-2], k.shape[-2]
    largest = torch.ones_like(lse)  # weight of each row
    scratch, weights_scratch = lse.new_empty(2, min(how.rows, n) * m)
    for at, matrix in _matrices(q, k, v, mask, bias, how):
        out, tops, most = output[at], lse[at], largest[at]
        for a, b in _spans(n, how.rows):
            end = matrix.visible(b)
            if end == 0:
                continue
            scores = matrix.scores(scratch, (a, b), (0, end))  # (r, end)
            weights = weights_scratch[: scores.numel()].view_as(scores)
            torch.amax(scores, -1, out=tops[a:b])  # (r,)
            torch.softmax(scores, -1, out=weights)
            torch.amax(weights, -1, out=most[a:b])  # (r,)
            torch.mm(weights, matrix.v[:end], out=out[a:b])  # (r, d_v)
    # The largest weight is exp(largest score − lse): no sum over the scores is needed.
    lse = (lse - largest.log_()).where(lse > -torch.inf, lse)
    # A row without an allowed key went through softmax as NaN.
    output.masked_fill_((lse == -torch.inf)[..., None], 0.0)
    return output.to(v.dtype), lse


def _online_forward(q, k, v, mask, bias, how):
    output, lse = _empty_result(q, v)
    n, m = q.shape[-2], k.shape[-2]
    scratch = lse.new_empty(min(how.rows, n) * min(how.cols, m))
    for at, matrix in _matrices(q, k, v, mask, bias, how):
        out, stats = output[at], lse[at]
        for a, b in _spans(n, how.rows):
            top = lse.new_full((b - a, 1), -torch.inf)  # largest score so far
            total = lse.new_zeros(b - a, 1)  # Σ exp(score − top) so far
            mixed = out[a:b]  # Σ exp(score − top) v so far, (r, d_v)
            for c, e in _spans(matrix.visible(b), how.cols):
                scores = matrix.scores(scratch, (a, b), (c, e))  # (r, c)
                new_top = torch.maximum(top, scores.amax(-1, keepdim=True))  # (r, 1)
                base = new_top.masked_fill(new_top == -torch.inf, 0.0)  # nothing allowed yet
                shrink = (top - base).exp_()  # (r, 1) brings the old sums to the new top
                weights = scores.sub_(base).exp_()  # (r, c), not normalised
                total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
                mixed.mul_(shrink).addmm_(weights, matrix.v[c:e])
                top = new_top
            mixed.div_(total.masked_fill(total == 0, 1.0))
            stats[a:b] = (top + total.log()).squeeze(-1)  # −∞ for a row without a key
    return output.to(v.dtype), lse


def _backward(q, k, v, mask, bias, output, lse, d_output, d_lse, want_bias, how):
    """Recompute each tile's weights from the log-sum-exp and push the gradient through it.

    With P the weights and O the output: dV = Pᵀ dO; dP = dO Vᵀ; dS = P ∘ (dP − δ), where
    δ = Σ dO ∘ O in each row; dQ = scale · dS K; dK = scale · dSᵀ Q. The log-sum-exp has P as its
    derivative, so its own gradient is subtracted from δ.
    """
    n, m = q.shape[-2], k.shape[-2]
    cols = how.cols or max(m, 1)
    d_output = d_output.to(lse.dtype).contiguous()
    delta = (d_output * output).sum(-1) - d_lse  # (..., n)
    # exp(s − ∞) = 0: a row without an allowed key gives nothing back.
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    d_q, d_k, d_v = (lse.new_zeros(x.shape) for x in (q, k, v))
    d_bias = lse.new_zeros(bias.shape) if want_bias else None
    scratch, d_scratch = lse.new_empty(2, min(how.rows, n) * min(cols, m))
    for at, matrix in _matrices(q, k, v, mask, bias, how):
        for a, b in _spans(n, how.rows):
            d_out = d_output[at][a:b]  # (r, d_v)
            for c, e in _spans(matrix.visible(b), cols):
                scores = matrix.scores(scratch, (a, b), (c, e))  # (r, c)
                weights = scores.sub_(lse[at][a:b, None]).exp_()  # (r, c)
                d_v[at][c:e].addmm_(weights.T, d_out)
                d_scores = d_scratch[: weights.numel()].view_as(weights)
                d_scores.addmm_(d_out, matrix.v[c:e].T, beta=0)
                d_scores.sub_(delta[at][a:b, None]).mul_(weights)  # (r, c)
                d_q[at][a:b].addmm_(d_scores, matrix.k[c:e], alpha=how.scale)
                d_k[at][c:e].addmm_(d_scores.T, matrix.q[a:b], alpha=how.scale)
                if want_bias:
                    _add_tile(d_bias.expand(*q.shape[:-2], -1, -1)[at], d_scores, (a, b), (c, e))
    grads = (d_q, q), (d_k, k), (d_v, v), (d_bias, bias)
    return tuple(grad if grad is None else grad.to(x.dtype) for grad, x in grads)


class _Matrix(NamedTuple):
    """The queries, keys and values of one matrix of the batch, in float32 at least."""

    q: Tensor  # (n, d)
    k: Tensor  # (m, d)
    v: Tensor  # (m, d_v)
    mask: Tensor | None  # (n, m), a view
    bias: Tensor | None  # (n, m), a view
    later: Tensor | None  # (r, r), True on the diagonal and above: the edge of the future
    how: _How

    def visible(self, b: int) -> int:
        """Count the keys that queries up to row b may see; later ones are the future of all."""
        n, m = len(self.q), len(self.k)
        return max(0, min(m, b + m - n)) if self.how.causal else m

    def scores(self, scratch: Tensor, rows: tuple[int, int], cols: tuple[int, int]) -> Tensor:
        """Write a tile of scale · q kᵀ + bias, −∞ where not allowed, into the scratch."""
        (a, b), (c, e) = rows, cols
        scores = scratch[: (b - a) * (e - c)].view(b - a, e - c)
        scores.addmm_(self.q[a:b], self.k[c:e].T, beta=0, alpha=self.how.scale)
        if self.bias is not None:
            scores.add_(self.bias[a:b, c:e])
        if self.mask is not None:
            scores.masked_fill_(~self.mask[a:b, c:e], -torch.inf)
        if self.how.causal:
            first = a + 1 + len(self.k) - len(self.q) - c  # first column in the future of row a
            if first < e - c:
                edge, skip = scores[:, max(first, 0) :], max(-first, 0)
                future = self.later[: b - a, skip : skip + edge.shape[1]]
                edge.masked_fill_(future, -torch.inf)
        return scores


def _matrices(q, k, v, mask, bias, how) -> Iterator[tuple[tuple[int, ...], _Matrix]]:
    """Yield each matrix of the batch with its index."""
    *batch, n, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    mask, bias = (x if x is None else x.expand(*batch, n, k.shape[-2]) for x in (mask, bias))
    later = None
    if how.causal:  # made once: on a tile, small steps cost as much as large ones
        later = torch.ones(2 * (min(how.rows, n),), dtype=torch.bool, device=q.device).triu()
    for at in itertools.product(*map(range, batch)):
        tensors = (x[at].to(wide) for x in (q, k, v))
        views = (x if x is None else x[at] for x in (mask, bias))
        yield at, _Matrix(*tensors, *views, later, how)


def _spans(length: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of consecutive spans of at most ``step``."""
    for start in range(0, length, step):
        yield start, min(start + step, length)


def _empty_result(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of seeing nothing: zeros and a log-sum-exp of −∞, in float32 at least."""
    wide = torch.promote_types(q.dtype, torch.float32)
    output = q.new_zeros(*q.shape[:-1], v.shape[-1], dtype=wide)  # (..., n, d_v)
    return output, q.new_full(q.shape[:-1], -torch.inf, dtype=wide)  # (..., n)


def _add_tile(total: Tensor, tile: Tensor, rows: tuple[int, int], cols: tuple[int, int]) -> None:
    """Add a tile to its place in a matrix whose sizes of 1 stand for a broadcast."""
    everything = slice(None)
    place = total[
        slice(*rows) if total.shape[0] > 1 else everything,
        slice(*cols) if total.shape[1] > 1 else everything,
    ]
    place.add_(tile.sum_to_size(place.shape))
