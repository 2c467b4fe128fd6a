"""The linear recurrence h_t = a_t h_{t−1} + b_t, number by number: in order, or as a tree.

Two steps of it, one after the other, are a step of the same kind. So steps can be grouped as one
likes, and what looks as if it had to be done in order can be done in about log₂ n rounds.

Explained in: chapters/09_hybrids_deeper, section "A recurrence as a tree".
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Inexact
from torch import Tensor

from tfbook._checks import check_choice, check_number, check_same, check_shape, check_tensor
from tfbook.attention import read_mask

__all__ = [
    "SCANS",
    "ScanTree",
    "combine_steps",
    "read_tokens",
    "scan_blelloch",
    "scan_chunked",
    "scan_hillis_steele",
    "scan_sequential",
    "scan_tree",
]

Rows = Inexact[Tensor, "B N *D"]
Row = Inexact[Tensor, "B *D"]
Step = tuple[Inexact[Tensor, "*A"], Inexact[Tensor, "*B"]]


def combine_steps(first: Step, second: Step) -> Step:
    """Make one step h ↦ a h + b of two: (a₁, b₁) ∘ (a₂, b₂) = (a₂ a₁, a₂ b₁ + b₂).

    It is associative, (x ∘ y) ∘ z = x ∘ (y ∘ z), and not commutative.

    Args:
        first: a₁ and b₁ of the earlier step, any shapes that broadcast.
        second: a₂ and b₂ of the later one.

    Raises:
        TypeError: if a step is no pair of tensors.
        ValueError: if their devices differ.

    Example:
        >>> two, half = torch.tensor(2.0), torch.tensor(0.5)
        >>> combine_steps((two, two), (half, half))  # 0.5 (2 h + 2) + 0.5
        (tensor(1.), tensor(1.5000))

    Source: [blelloch1990prefix]
    Explained in: chapters/09_hybrids_deeper, section "A recurrence as a tree".
    """
    for name, step in (("first", first), ("second", second)):
        if not (isinstance(step, tuple | list) and len(step) == 2):
            raise TypeError(f"{name} must be a pair (a, b), got {type(step).__name__}")
        check_tensor(f"a of {name}", step[0])
        check_tensor(f"b of {name}", step[1])
    (a, b), (a_next, b_next) = first, second
    return a_next * a, a_next * b + b_next


def scan_sequential(
    a: Inexact[Tensor, "..."], b: Rows, *, state: Row | None = None
) -> tuple[Rows, Row]:
    """Compute h_t = a_t h_{t−1} + b_t in order, n steps one after the other.

    The gradient is a scan too, run backwards: with g_t = ∂L/∂h_t, all paths counted,
    g_t = (∂L/∂h_t, directly) + a_{t+1} g_{t+1}, ∂L/∂b_t = g_t and ∂L/∂a_t = g_t h_{t−1}. Of the
    forward pass a and h are kept.

    Args:
        a: factors, broadcasting to the shape of b; real or complex.
        b: what is added, (B, N, …).
        state: h_0, (B, …); zeros when omitted.

    Returns:
        h (B, N, …) in the dtype of b, and h_N (B, …), in float32 at least.

    Raises:
        TypeError: for a wrong type, or dtypes that differ.
        ValueError: for a shape that does not fit, or two devices.

    Example:
        >>> h, last = scan_sequential(torch.tensor(0.5), torch.ones(1, 3))
        >>> h, last
        (tensor([[1.0000, 1.5000, 1.7500]]), tensor([1.7500]))

    Cost: n multiplications and n additions for each number, in n steps.

    Source: [martin2018parallelizing]
    Explained in: chapters/09_hybrids_deeper, section "A recurrence as a tree".
    """
    return _finish(b, *_prepare(a, b, state), _Scan.apply)


def scan_hillis_steele(
    a: Inexact[Tensor, "..."], b: Rows, *, state: Row | None = None
) -> tuple[Rows, Row]:
    """Compute the same as :func:`scan_sequential` in ⌈log₂ n⌉ rounds over all places.

    In round r each place t takes over what place t − 2^r has: then it covers 2^(r+1) steps.
    Arguments, results and errors are those of :func:`scan_sequential`.

    Example:
        >>> scan_hillis_steele(torch.tensor(0.5), torch.ones(1, 3))[0]
        tensor([[1.0000, 1.5000, 1.7500]])

    Cost: about n log₂ n combinations, in ⌈log₂ n⌉ steps.

    Source: [hillis1986data]
    Explained in: chapters/09_hybrids_deeper, section "A recurrence as a tree".
    """
    return _finish(b, *_prepare(a, b, state), _hillis_steele)


def scan_blelloch(
    a: Inexact[Tensor, "..."], b: Rows, *, state: Row | None = None
) -> tuple[Rows, Row]:
    """Compute the same as :func:`scan_sequential` up and down a tree, with twice its work.

    Each two neighbours are combined, the half as long sequence of pairs is scanned, in the same
    way, and gives h at every second place; one more step from there gives the places between.
    Arguments, results and errors are those of :func:`scan_sequential`.

    Example:
        >>> scan_blelloch(torch.tensor(0.5), torch.ones(1, 3))[0]
        tensor([[1.0000, 1.5000, 1.7500]])

    Cost: less than 2n combinations, in about 2 log₂ n steps.

    Source: [blelloch1990prefix]
    Explained in: chapters/09_hybrids_deeper, section "A recurrence as a tree".
    """
    return _finish(b, *_prepare(a, b, state), _blelloch)


def scan_chunked(
    a: Inexact[Tensor, "..."], b: Rows, *, state: Row | None = None, chunk: int = 32
) -> tuple[Rows, Row]:
    """Compute the same as :func:`scan_sequential` in chunks: all at once inside, then across them.

    Inside of all chunks together, ``chunk`` steps: h from 0, and the product of the factors. Then
    one step for each chunk carries h over its border. Other arguments, results and errors are
    those of :func:`scan_sequential`.

    Args:
        a: factors, broadcasting to the shape of b; real or complex.
        b: what is added, (B, N, …).
        state: h_0, (B, …); zeros when omitted.
        chunk: steps in a chunk, at least 1.

    Example:
        >>> scan_chunked(torch.tensor(0.5), torch.ones(1, 3), chunk=2)[0]
        tensor([[1.0000, 1.5000, 1.7500]])

    Cost: 3n + n / chunk multiplications and additions, in chunk + n / chunk + 1 steps.

    Explained in: chapters/09_hybrids_deeper, section "A recurrence as a tree".
    """
    check_number("chunk", chunk, 1, whole=True)
    return _finish(
        b, *_prepare(a, b, state), lambda a, b, start: _chunked(a, b, start, min(chunk, b.shape[1]))
    )


SCANS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "sequential": scan_sequential,
    "hillis_steele": scan_hillis_steele,
    "blelloch": scan_blelloch,
    "chunked": scan_chunked,
}


class ScanTree(NamedTuple):
    """Which places a scan combines, level by level, for drawing and counting.

    Attributes:
        n: number of places.
        levels: pairs (i, j) with i < j: what place i has is put before what place j has. The pairs
            of a level do not need each other.

    Explained in: chapters/09_hybrids_deeper, section "A recurrence as a tree".
    """

    n: int
    levels: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def steps(self) -> int:
        """Return how many levels come one after the other."""
        return len(self.levels)

    @property
    def work(self) -> int:
        """Return how many pairs are combined in all."""
        return sum(map(len, self.levels))

    def run(
        self, elements: Sequence[object], combine: Callable[[object, object], object]
    ) -> list[object]:
        """Return all prefixes x_1, x_1 ∘ x_2, … with any associative operation.

        Raises:
            ValueError: unless there are n elements.
        """
        if len(elements) != self.n:
            raise ValueError(f"elements must be {self.n}, got {len(elements)}")
        found = list(elements)
        for level in self.levels:
            made = [combine(found[i], found[j]) for i, j in level]
            for (_, j), each in zip(level, made, strict=True):
                found[j] = each
        return found


def scan_tree(n: int, form: str = "blelloch") -> ScanTree:
    """Return which places a scan of n steps combines, level by level.

    Args:
        n: number of places.
        form: "sequential", "hillis_steele" or "blelloch".

    Raises:
        TypeError: if n is not an integer.
        ValueError: if it is negative, or no form has this name.

    Example:
        >>> scan_tree(4, "blelloch").levels
        (((0, 1), (2, 3)), ((1, 3),), ((1, 2),))
        >>> [scan_tree(1024, form).steps for form in ("sequential", "hillis_steele", "blelloch")]
        [1023, 10, 19]
        >>> [scan_tree(1024, form).work for form in ("sequential", "hillis_steele", "blelloch")]
        [1023, 9217, 2036]

    Source: [hillis1986data], [blelloch1990prefix]
    Explained in: chapters/09_hybrids_deeper, section "A recurrence as a tree".
    """
    check_number("n", n, 0, 2**16, whole=True)
    check_choice("form", form, ("sequential", "hillis_steele", "blelloch"))
    strides = [2**r for r in range(max(n - 1, 0).bit_length())]
    if form == "sequential":
        levels = [[(t - 1, t)] for t in range(1, n)]
    elif form == "hillis_steele":
        levels = [[(t - s, t) for t in range(s, n)] for s in strides]
    else:
        levels = [[(t - s, t) for t in range(2 * s - 1, n, 2 * s)] for s in strides]
        levels += [[(t - s, t) for t in range(3 * s - 1, n, 2 * s)] for s in strides[::-1]]
    return ScanTree(n, tuple(tuple(level) for level in levels if level))


def read_tokens(
    mask: Bool[Tensor, "..."] | None, x: Inexact[Tensor, "B N D"]
) -> Bool[Tensor, "B N"] | None:
    """Return which rows of x are tokens, for a mixer that has a state and no scores.

    Args:
        mask: boolean, broadcasting to (B, 1, N), as ``padding_mask``; None for all.
        x: the rows, (B, N, D).

    Returns:
        (B, N), or None for all.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if it does not fit, or says more than which rows are tokens.

    Example:
        >>> read_tokens(torch.tensor([[[True, False]]]), torch.zeros(2, 2, 3))
        tensor([[ True, False],
                [ True, False]])

    Explained in: chapters/09_hybrids.
    """
    check_tensor("x", x, min_dims=2)
    batch, n = x.shape[:2]
    tokens, other = read_mask(mask, batch, 1, n, 0)
    if other is not None:
        raise ValueError(
            "mask must say which rows are tokens, broadcasting to (B, 1, N) = "
            f"({batch}, 1, {n}), got {tuple(mask.shape)}: there are no scores to hide"
        )
    return None if tokens is None else tokens[:, 0, 0]


def _prepare(a, b, state):
    """Check, widen to float32 at least and broadcast: a and b (B, N, …), state (B, …)."""
    named = {"b": b, "a": a} | ({} if state is None else {"state": state})
    for name, value in named.items():
        check_tensor(name, value, min_dims=2 if name == "b" else 0)
        if not (value.is_floating_point() or value.is_complex()):
            raise TypeError(f"{name} must be real or complex floating point, got {value.dtype}")
    check_same(b=b, a=a)
    try:
        fits = torch.broadcast_shapes(a.shape, b.shape) == b.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"a must broadcast to b, {tuple(b.shape)}, got {tuple(a.shape)}")
    wide = torch.promote_types(b.dtype, torch.float32)
    if state is None:
        state = b.new_zeros(b.shape[:1] + b.shape[2:], dtype=wide)
    elif state.dtype not in (b.dtype, wide):
        raise TypeError(f"state must have dtype {wide}, got {state.dtype}")
    check_shape("state", state, b.shape[:1] + b.shape[2:], "(B, …)")
    if state.device != b.device:
        raise ValueError(f"state must be on the device of b, {b.device}, got {state.device}")
    return a.to(wide).expand_as(b), b.to(wide), state.to(wide)


def _finish(given, a, b, state, form):
    """Run one form; without any row the state stays."""
    if not b.shape[1]:
        return given.clone(), state
    h = form(a, b, state)
    return h.to(given.dtype), h[:, -1].clone()


class _Scan(torch.autograd.Function):
    """h_t = a_t h_{t−1} + b_t; its adjoint is _Back."""

    @staticmethod
    def forward(ctx, a, b, start):
        h, last = torch.empty_like(b, memory_format=torch.contiguous_format), start
        for a_t, b_t, h_t in zip(a.unbind(1), b.unbind(1), h.unbind(1), strict=True):
            last = torch.addcmul(b_t, a_t, last, out=h_t)
        ctx.save_for_backward(a, h, start)
        return h

    @staticmethod
    def backward(ctx, slope):
        a, h, start = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _slopes(a.conj(), h.conj(), start.conj(), slope)
        g = _Back.apply(a.conj(), slope)  # the same, for gradients of gradients
        before = g[:, :1] * start[:, None].conj(), g[:, 1:] * h[:, :-1].conj()
        return torch.cat(before, dim=1), g, a[:, 0].conj() * g[:, 0]


class _Back(torch.autograd.Function):
    """g_t = b_t + a_{t+1} g_{t+1}; its adjoint is _Scan."""

    @staticmethod
    def forward(ctx, a, b):
        g = torch.empty_like(b, memory_format=torch.contiguous_format)
        a_next, b_t, g_t = (each.unbind(1)[::-1] for each in (a, b, g))
        last = g_t[0].copy_(b_t[0])
        for a_each, b_each, g_each in zip(a_next[:-1], b_t[1:], g_t[1:], strict=True):
            last = torch.addcmul(b_each, a_each, last, out=g_each)
        ctx.save_for_backward(a, g)
        return g

    @staticmethod
    def backward(ctx, slope):
        a, g = ctx.saved_tensors
        u = _Scan.apply(a.conj(), slope, torch.zeros_like(slope[:, 0]))
        return torch.cat([torch.zeros_like(u[:, :1]), u[:, :-1] * g[:, 1:].conj()], dim=1), u


def _slopes(a, h, start, slope):
    """Return the gradients in a, b and start in one pass back, in place."""
    da, db = (torch.empty_like(slope, memory_format=torch.contiguous_format) for _ in "ab")
    before = [start, *h.unbind(1)[:-1]]
    a, slope, found, db_t = (x.unbind(1) for x in (a, slope, da, db))
    g = db_t[-1].copy_(slope[-1])
    for t in range(len(a) - 1, 0, -1):
        torch.mul(g, before[t], out=found[t])
        g = torch.addcmul(slope[t - 1], a[t], g, out=db_t[t - 1])
    torch.mul(g, start, out=found[0])
    return da, db, a[0] * g


def _with_start(a, b, start):
    """Put the start into the first step, whose factor is used no more."""
    return torch.cat([torch.addcmul(b[:, 0], a[:, 0], start)[:, None], b[:, 1:]], dim=1)


def _hillis_steele(a, b, start):
    b, reach = _with_start(a, b, start), 1
    a = a[:, 1:]  # of the places that are not finished, from ``reach`` on
    while reach < b.shape[1]:
        late = torch.addcmul(b[:, reach:], a, b[:, :-reach])
        b = torch.cat([b[:, :reach], late], dim=1)
        a = a[:, reach:] * a[:, :-reach]
        reach *= 2
    return b


def _blelloch(a, b, start):
    return _tree(a, _with_start(a, b, start))


def _tree(a, b):
    if b.shape[1] == 1:
        return b
    pairs = combine_steps((a[:, :-1:2], b[:, :-1:2]), (a[:, 1::2], b[:, 1::2]))
    odd, h = _tree(*pairs), torch.empty_like(b)
    h[:, 0], h[:, 1::2] = b[:, 0], odd
    h[:, 2::2] = torch.addcmul(b[:, 2::2], a[:, 2::2], odd[:, : (b.shape[1] - 1) // 2])
    return h


def _chunked(a, b, start, chunk):
    n, shape = b.shape[1], b.shape[2:]
    if extra := -n % chunk:  # steps that keep h
        a = torch.cat([a, a.new_ones(len(a), extra, *shape)], dim=1)
        b = torch.cat([b, b.new_zeros(len(b), extra, *shape)], dim=1)
    a, b = (each.unflatten(1, (-1, chunk)).flatten(0, 1) for each in (a, b))  # (B · C, chunk, …)
    cut, none = (len(start), -(-n // chunk)), b.new_zeros(len(b), *shape)
    inside = _Scan.apply(a, b, none).unflatten(0, cut)
    factors = _Scan.apply(a, torch.zeros_like(b), torch.ones_like(none)).unflatten(0, cut)
    ends = _Scan.apply(factors[:, :, -1], inside[:, :, -1], start)  # (B, C, …)
    before = torch.cat([start[:, None], ends[:, :-1]], dim=1)[:, :, None]
    return torch.addcmul(inside, factors, before).flatten(1, 2)[:, :n]
