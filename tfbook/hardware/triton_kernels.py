"""Two kernels in Triton, to be read: a softmax that touches memory once, attention in tiles.

A kernel is written for one tile and runs for many at once; ``program_id`` says which. What a tile
needs is loaded into fast memory, all arithmetic happens there, and only the result goes back.
Pointers are addresses of first numbers, so an array of offsets makes an array of addresses, and
masks keep those out that lie outside.

:mod:`tfbook.hardware.kernels` calls them; this module is loaded with the first call, for it imports
Triton, which is not a part of every installation.

Explained in: chapters/17_hardware, section "Attention as bytes moved".
"""

from __future__ import annotations

from importlib.util import find_spec

HAS_TRITON = find_spec("triton") is not None
if HAS_TRITON:
    import triton
    import triton.language as tl

    jit = triton.jit
else:

    def jit(kernel):
        """Leave a kernel as text to be read."""
        return kernel


@jit
def softmax_kernel(x, y, x_stride, y_stride, columns, BLOCK: tl.constexpr):
    """Write y_i = exp(x_i − max x) / Σ exp(x − max x) for one row, which fits into fast memory."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    inside = j < columns
    numbers = tl.load(x + row * x_stride + j, mask=inside, other=-float("inf")).to(tl.float32)
    most = tl.max(numbers, 0)
    # A row of −∞ alone has nothing to share out: 0 everywhere, as in this book's masked softmax.
    parts = tl.exp(numbers - tl.where(most == -float("inf"), 0.0, most))
    total = tl.sum(parts, 0)
    shares = parts / tl.where(total == 0, 1.0, total)
    tl.store(y + row * y_stride + j, shares.to(y.dtype.element_ty), mask=inside)


@jit
def attention_kernel(
    q, k, v, out, lse, n, m, d, d_v, scale,
    CAUSAL: tl.constexpr, EXACT: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """Write out = softmax(scale · q kᵀ) v for a tile of ROWS queries of one head.

    q (H, n, d), k (H, m, d), v (H, m, d_v), out (H, n, d_v) and lse (H, n) lie whole in memory. The
    scores of a tile of keys exist in fast memory only: a running maximum, sum and output stand for
    all keys met so far, and are corrected when a larger score comes.
    """
    head = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)  # of the queries
    of_q, of_v = tl.arange(0, D), tl.arange(0, DV)
    q_tile = tl.load(
        q + head * n * d + i[:, None] * d + of_q[None, :],
        mask=(i[:, None] < n) & (of_q[None, :] < d),
        other=0.0,
    )  # (ROWS, D)
    most = tl.full((ROWS,), -float("inf"), tl.float32)  # μ
    total = tl.zeros((ROWS,), tl.float32)  # ℓ
    found = tl.zeros((ROWS, DV), tl.float32)  # o
    stop = m
    if CAUSAL:  # the last query of the tile sees keys up to its own place, counted from the end
        stop = tl.minimum(m, (tl.program_id(0) + 1) * ROWS + m - n)
    for start in range(0, stop, COLS):
        j = start + tl.arange(0, COLS)  # of the keys
        k_tile = tl.load(
            k + head * m * d + j[:, None] * d + of_q[None, :],
            mask=(j[:, None] < m) & (of_q[None, :] < d),
            other=0.0,
        )  # (COLS, D)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision=EXACT) * scale  # (ROWS, COLS)
        allowed = j[None, :] < m
        if CAUSAL:
            allowed = allowed & (j[None, :] <= i[:, None] + m - n)
        scores = tl.where(allowed, scores, -float("inf"))
        larger = tl.maximum(most, tl.max(scores, 1))  # μ'
        level = tl.where(larger == -float("inf"), 0.0, larger)  # where no key was allowed so far
        parts = tl.exp(scores - level[:, None])  # p
        shrink = tl.exp(most - level)  # r
        total = total * shrink + tl.sum(parts, 1)
        v_tile = tl.load(
            v + head * m * d_v + j[:, None] * d_v + of_v[None, :],
            mask=(j[:, None] < m) & (of_v[None, :] < d_v),
            other=0.0,
        )  # (COLS, DV)
        mixed = tl.dot(parts.to(v_tile.dtype), v_tile, input_precision=EXACT)
        found = found * shrink[:, None] + mixed
        most = larger
    divisor = tl.where(total == 0, 1.0, total)
    tl.store(
        out + head * n * d_v + i[:, None] * d_v + of_v[None, :],
        (found / divisor[:, None]).to(out.dtype.element_ty),
        mask=(i[:, None] < n) & (of_v[None, :] < d_v),
    )
    # ln Σ exp(scores), −∞ where nothing is allowed.
    tl.store(lse + head * n + i, most + tl.log(divisor), mask=i < n)
