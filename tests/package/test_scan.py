"""Scans: four forms of one recurrence against a loop, their counts, trees and gradients.

The properties of mixers are tried here too: on attention, on a toy, and on toys with a bug.
"""

import math
from dataclasses import dataclass, replace

import mixer_properties
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import peak_memory
from tfbook.attention import MultiHeadAttention, padding_mask
from tfbook.recurrent import (
    SCANS,
    combine_steps,
    read_tokens,
    scan_blelloch,
    scan_chunked,
    scan_hillis_steele,
    scan_sequential,
    scan_tree,
)

FORMS = ("sequential", "hillis_steele", "blelloch")
LENGTHS = (1, 2, 3, 4, 5, 8, 13, 32, 67)


def inputs(n, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, n, 3, 2), (2, n, 3, 2), (2, 3, 2)
    made = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    made[0] = made[0] / 1.5
    return [each.requires_grad_() for each in made]


def by_loop(a, b, state):
    """Compute the recurrence with nothing but autograd."""
    found = []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        state = a_t * state + b_t
        found.append(state)
    return torch.stack(found, 1)


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def slopes(h, last, given):
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(h.shape, generator=generator, dtype=h.dtype)
    loss = (h * weights).sum() + (last * weights[:, 0]).sum()
    return torch.autograd.grad((loss * loss.conj()).real if loss.is_complex() else loss, given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("form", SCANS)
def test_every_form_is_the_loop_with_its_gradients(form, dtype):
    for n in LENGTHS:
        given = inputs(n, dtype)
        wanted = by_loop(*given)
        exact = slopes(wanted, wanted[:, -1], given)
        options = [{"chunk": c} for c in (1, 4, n, 100)] if form == "chunked" else [{}]
        for option in options:
            h, last = SCANS[form](*given[:2], state=given[2], **option)
            close(h, wanted)
            close(last, wanted[:, -1])
            for mine, theirs in zip(slopes(h, last, given), exact, strict=True):
                torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-11)
            with torch.no_grad():
                close(SCANS[form](*given[:2], state=given[2], **option)[0], wanted)


@pytest.mark.parametrize("form", SCANS)
def test_pieces_are_the_whole_and_no_row_leaves_the_state(form):
    a, b, state = inputs(11)
    whole, end = SCANS[form](a, b, state=state)
    found, held = [], state
    for a_piece, b_piece in zip(a.split([3, 0, 7, 1], 1), b.split([3, 0, 7, 1], 1), strict=True):
        h, held = SCANS[form](a_piece, b_piece, state=held)
        found.append(h)
    close(torch.cat(found, 1), whole)
    close(held, end)
    close(SCANS[form](a, b)[0], SCANS[form](a, b, state=torch.zeros_like(state))[0], atol=0)


@pytest.mark.parametrize("form", SCANS)
def test_a_factor_of_zero_forgets_and_one_keeps(form):
    a, b, state = (each.detach() for each in inputs(9))
    a[:, 4] = 0.0
    h, _ = SCANS[form](a, b, state=1e6 * state)
    close(h[:, 4], b[:, 4])
    close(h[:, 4:], SCANS[form](a[:, 4:], b[:, 4:], state=state)[0])
    h, last = SCANS[form](torch.ones_like(a), torch.zeros_like(b), state=state)
    close(h, state[:, None].expand_as(b), atol=0)
    close(last, state, atol=0)


@pytest.mark.parametrize("form", SCANS)
def test_factors_broadcast_and_16_bits_are_computed_in_32(form):
    _, b, state = inputs(7)
    for shape in ((), (2,), (3, 2), (7, 1, 1), (2, 1, 3, 1)):
        a = torch.full(shape, 0.7, dtype=b.dtype, requires_grad=True)
        close(SCANS[form](a, b, state=state)[0], by_loop(a.expand_as(b), b, state))
        (slope,) = torch.autograd.grad(SCANS[form](a, b, state=state)[0].sum(), a)
        (exact,) = torch.autograd.grad(by_loop(a.expand_as(b), b, state).sum(), a)
        close(slope, exact)
    n = 400  # sums of ones: bfloat16 alone would stop at 256
    h, last = SCANS[form](torch.tensor(1.0).bfloat16(), torch.ones(1, n).bfloat16())
    assert h.dtype == torch.bfloat16 and last.dtype == torch.float32 and last.item() == n


def test_the_gradient_and_that_of_the_gradient():
    given = inputs(4)
    assert torch.autograd.gradcheck(lambda a, b, s: scan_sequential(a, b, state=s), given)
    assert torch.autograd.gradgradcheck(lambda a, b, s: scan_sequential(a, b, state=s)[0], given)
    given = inputs(4, torch.complex128)
    assert torch.autograd.gradcheck(lambda a, b, s: scan_sequential(a, b, state=s), given)


def test_the_adjoint_is_the_scan_run_backwards():
    """⟨w, scan(b)⟩ = ⟨scanᵀ(w), b⟩, with scanᵀ a scan over reversed rows and shifted factors."""
    a, b, _ = (each.detach() for each in inputs(9))
    b.requires_grad_()
    w = torch.randn(b.shape, generator=torch.Generator().manual_seed(3), dtype=b.dtype)
    (slope,) = torch.autograd.grad((scan_sequential(a, b)[0] * w).sum(), b)
    shifted = torch.cat([a[:, 1:], a[:, :1]], 1).flip(1)
    close(slope, scan_blelloch(shifted, w.flip(1))[0].flip(1))


def test_inputs_stay_and_the_last_row_is_a_copy():
    a, b, state = (each.detach() for each in inputs(6))
    before = [each.clone() for each in (a, b, state)]
    for scan in SCANS.values():
        h, last = scan(a, b, state=state)
        h.zero_()
        close(last, by_loop(a, b, state)[:, -1])
    for each, kept in zip((a, b, state), before, strict=True):
        close(each, kept, atol=0)


def test_training_keeps_no_more_than_factors_and_rows():
    a, b = (torch.rand(1, 512, 64, 16, requires_grad=True) for _ in range(2))
    extra = peak_memory(lambda: torch.autograd.grad(scan_sequential(a, b)[0].sum(), (a, b)))
    assert extra < 5 * b.nbytes  # h, its gradient and two results, and one of them at a time


# the operator and the trees

whole = st.integers(-9, 9).map(float)
step = st.tuples(whole, whole).map(lambda pair: tuple(torch.tensor(x) for x in pair))


@given(step, step, step)
def test_steps_are_associative_and_do_what_both_do(x, y, z):
    assert combine_steps(combine_steps(x, y), z) == combine_steps(x, combine_steps(y, z))
    a, b = combine_steps(x, y)
    for h in (-2.0, 0.0, 3.0):
        assert a * h + b == y[0] * (x[0] * h + x[1]) + y[1]


def test_the_order_of_steps_matters():
    x, y = ((torch.tensor(2.0), torch.tensor(1.0)), (torch.tensor(3.0), torch.tensor(0.0)))
    assert combine_steps(x, y) != combine_steps(y, x)


@given(st.sampled_from(FORMS), st.integers(0, 70))
def test_a_tree_gives_every_prefix_of_any_associative_operation(form, n):
    letters = [chr(200 + i) for i in range(n)]
    wanted = ["".join(letters[: i + 1]) for i in range(n)]
    assert scan_tree(n, form).run(letters, str.__add__) == wanted


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 64, 100])
def test_a_level_needs_only_levels_before_and_the_counts_are_the_known_ones(n):
    rounds = math.ceil(math.log2(n))
    for form in FORMS:
        for level in scan_tree(n, form).levels:
            written = [j for _, j in level]
            assert len(set(written)) == len(written)
            if form != "hillis_steele":  # in which all places read before any is written
                assert not {i for i, _ in level} & set(written)
    assert scan_tree(n, "sequential").steps == scan_tree(n, "sequential").work == n - 1
    wide = scan_tree(n, "hillis_steele")
    assert wide.steps == rounds and wide.work == sum(n - 2**r for r in range(rounds))
    lean = scan_tree(n)
    assert lean.work < 2 * n and lean.steps <= max(2 * rounds - 1, 0)
    if n == 2**rounds:
        assert lean.work == 2 * n - 2 - rounds


class Counting(TorchDispatchMode):
    """Counts the numbers that fused multiplications and additions give."""

    def __init__(self):
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.addcmul, torch.ops.aten.add):
            self.made += out.numel()
        return out


@pytest.mark.parametrize("n", [2, 3, 8, 37])
def test_the_code_combines_as_many_pairs_as_its_tree(n):
    a, b = torch.rand(1, n), torch.rand(1, n)
    for form in FORMS:
        with Counting() as counting:
            SCANS[form](a, b)
        assert counting.made - 1 == scan_tree(n, form).work  # one more for the start


def test_chunks_take_few_steps():
    n, chunk = 100, 10
    a, b = torch.rand(1, n, 1), torch.rand(1, n, 1)
    with Counting() as counting:
        scan_chunked(a, b, chunk=chunk)
    assert counting.made == 3 * n + n // chunk  # inside, the product of factors, the carry


@pytest.mark.untyped
def test_what_does_not_fit_is_refused():
    a, b, state = (each.detach() for each in inputs(5))
    for scan in SCANS.values():
        for error, name, call in [
            (TypeError, "a must", lambda scan=scan: scan(0.5, b)),
            (TypeError, "b must", lambda scan=scan: scan(a, [1.0])),
            (TypeError, "b must", lambda scan=scan: scan(a, b.long())),
            (TypeError, "dtype", lambda scan=scan: scan(a.float(), b)),
            (ValueError, "b needs", lambda scan=scan: scan(a[0, 0, 0], b[0, 0, 0])),
            (ValueError, "a must broadcast", lambda scan=scan: scan(a[:, :3], b)),
            (ValueError, "a must broadcast", lambda scan=scan: scan(a[None], b)),
            (ValueError, "state", lambda scan=scan: scan(a, b, state=state[:1])),
            (TypeError, "state", lambda scan=scan: scan(a, b, state=state.float())),
            (TypeError, "state", lambda scan=scan: scan(a, b, state=0)),
        ]:
            with pytest.raises(error, match=name):
                call()
    with pytest.raises(ValueError, match="chunk"):
        scan_chunked(a, b, chunk=0)
    with pytest.raises(TypeError, match="chunk"):
        scan_chunked(a, b, chunk=True)
    with pytest.raises(ValueError, match="form"):
        scan_tree(4, "tree")
    with pytest.raises(TypeError, match="n must"):
        scan_tree(4.0)
    with pytest.raises(ValueError, match="elements"):
        scan_tree(4).run("abc", str.__add__)


def test_empty_batches_and_rows_go_through():
    for scan in (scan_sequential, scan_hillis_steele, scan_blelloch, scan_chunked):
        for shape in ((0, 3, 2), (2, 0, 2), (2, 3, 0)):
            h, last = scan(torch.tensor(0.5), torch.ones(shape))
            assert h.shape == shape and last.shape == (shape[0], shape[2])


@pytest.mark.untyped
def test_a_mask_of_tokens_is_read_in_all_its_shapes():
    x = torch.zeros(2, 4, 3)
    tokens = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    assert read_tokens(None, x) is None
    for mask in (tokens[:, None], tokens[:, None, None], padding_mask(torch.tensor([3, 1]), 4)):
        assert torch.equal(read_tokens(mask, x), tokens)
    with pytest.raises(ValueError, match="mask must say which rows are tokens"):
        read_tokens(torch.ones(4, 4, dtype=torch.bool).tril(), x)
    with pytest.raises(TypeError, match="mask"):
        read_tokens(tokens[:, None].float(), x)


# the properties of mixers


@pytest.mark.parametrize("name", mixer_properties.cases(lacks=["state dtype"]))
def test_attention_has_the_properties_of_a_mixer(name):
    mixer_properties.CHECKS[name](lambda: MultiHeadAttention(6, 2, causal=True))


@dataclass(frozen=True, eq=False)
class ToyState:
    h: torch.Tensor
    length: int

    @property
    def nbytes(self):
        return self.h.nbytes

    def select(self, rows):
        return replace(self, h=self.h[rows])


class Toy(nn.Module):
    """h_t = h_{t−1} / 2 + W x_t, as plain as it can be, with a bug by name."""

    def __init__(self, bug=""):
        super().__init__()
        self.into, self.bug = nn.Linear(6, 6, bias=False), bug

    def forward(self, x, state=None, *, mask=None):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            raise TypeError("x must be a floating-point tensor")
        if x.ndim != 3 or x.shape[-1] != 6:
            raise ValueError("x must have shape (B, N, 6)")
        if x.dtype != self.into.weight.dtype:
            raise TypeError("x has another dtype")
        if not (state is None or isinstance(state, ToyState)):
            raise TypeError("state must be a ToyState")
        h = x.new_zeros(len(x), 6) if state is None else state.h
        if h.shape[0] != len(x):
            raise ValueError("state has another batch")
        if h.dtype != x.dtype:
            raise TypeError("state has another dtype")
        tokens = read_tokens(mask, x)
        rows = self.into(x)
        if self.bug == "sees the future":
            rows = rows + 0.1 * rows.roll(-1, 1)
        if self.bug == "mixes the batch":
            rows = rows + 0.1 * rows.mean(0)
        found = []
        for t, row in enumerate(rows.unbind(1)):
            new = 0.5 * h + row
            if self.bug == "changes the state" and not torch.is_grad_enabled():
                new = h.mul_(0.5).add_(row)
            if tokens is not None:
                keep = 0.5 * h if self.bug == "masked rows fade" else h
                new = torch.where(tokens[:, t, None], new, keep)
            h = new
            found.append(h.clone())
        if self.bug == "forgets the state":
            h = rows[:, -1] if x.shape[1] else h
        if self.bug == "cuts the gradient":
            h = h.detach()
        y = torch.stack(found, 1) if found else x
        n = x.shape[1] if tokens is None or self.bug != "counts tokens" else int(tokens.sum())
        return y, ToyState(h, n + (0 if state is None else state.length))


def test_the_toy_has_all_properties():
    mixer_properties.checks(Toy)


BUGS = {
    "sees the future": "test_no_output_depends_on_a_later_row",
    "mixes the batch": "test_sequences_of_a_batch_do_not_meet",
    "changes the state": "test_two_continuations_start_from_one_state",
    "masked rows fade": "test_gaps_are_as_good_as_not_there",
    "forgets the state": "test_pieces_with_a_state_are_the_whole",
    "cuts the gradient": "test_pieces_with_a_state_are_the_whole",
    "counts tokens": "test_pieces_of_a_padded_batch_are_the_whole",
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_property_finds_a_bug(bug):
    mixer_properties.CHECKS[BUGS[bug]](Toy)
    with pytest.raises(AssertionError):
        mixer_properties.CHECKS[BUGS[bug]](lambda: Toy(bug))
