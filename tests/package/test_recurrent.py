"""Recurrent networks: cells by their gates, sequences by cuts and padding, gradients by numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tfbook.attention import padding_mask
from tfbook.recurrent import (
    Bidirectional,
    ElmanCell,
    GRUCell,
    LSTMCell,
    Recurrent,
    gradient_norms,
    hidden,
    jacobian_products,
    step_jacobians,
    unroll,
)

CELLS = (ElmanCell, GRUCell, LSTMCell)
TWINS = {ElmanCell: nn.RNNCell, GRUCell: nn.GRUCell, LSTMCell: nn.LSTMCell}
B, N, D, E = 3, 11, 5, 7
SEEDS = st.integers(0, 10**6)


def lively(module, seed=0):
    """Spread all parameters, biases too, so that no gate stays near a half."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
    return module.double()


def tokens(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def parts(state):
    return state if isinstance(state, tuple) else (state,)


def a_state(cell, batch=B, seed=2):
    drawn = tuple(tokens(batch, cell.d_hidden, seed=seed + i).tanh() for i in range(cell.n_states))
    return drawn if cell.n_states == 2 else drawn[0]


def same(a, b, tolerance=1e-12):
    return all(torch.allclose(x, y, 0, tolerance) for x, y in zip(parts(a), parts(b), strict=True))


@pytest.fixture(params=CELLS, ids=lambda kind: kind.__name__)
def cell(request):
    return lively(request.param(D, E))


def gate(cell, which, value):
    """Force a gate: no weights, and a bias that saturates the sigmoid in double precision."""
    rows = slice(which * E, (which + 1) * E)
    with torch.no_grad():
        for weight in (cell.weight_ih, cell.weight_hh):
            weight[rows] = 0
        cell.bias_hh[rows] = 0
        cell.bias_ih[rows] = {"open": 50.0, "closed": -50.0}[value]


# One step


def test_an_elman_cell_of_size_one_is_the_formula():
    cell = ElmanCell(1, 1).double()
    with torch.no_grad():
        for parameter, value in zip(cell.parameters(), (2.0, -3.0, 0.5, 0.25), strict=True):
            parameter.fill_(value)
    output, state = cell(
        torch.tensor([[0.7]], dtype=torch.float64), torch.tensor([[0.2]], dtype=torch.float64)
    )
    assert output.item() == pytest.approx(math.tanh(2.0 * 0.7 - 3.0 * 0.2 + 0.75), abs=1e-12)
    assert output is state


def test_a_gru_with_open_update_gate_keeps_its_state():
    cell = lively(GRUCell(D, E))
    gate(cell, 1, "open")
    h = a_state(cell)
    assert same(cell(tokens(B, D), h)[1], h)


def test_a_gru_with_closed_update_gate_forgets_all_but_its_candidate():
    cell = lively(GRUCell(D, E))
    gate(cell, 1, "closed")
    gate(cell, 0, "closed")  # the candidate then sees the input and its own input bias
    x = tokens(B, D)
    candidate = torch.tanh(x @ cell.weight_ih[2 * E :].T + cell.bias_ih[2 * E :])
    assert same(cell(x, a_state(cell))[1], candidate)


def test_the_reset_gate_of_a_gru_covers_the_recurrent_bias_too():
    cell = lively(GRUCell(D, E))
    gate(cell, 0, "closed")
    x, h = tokens(B, D), a_state(cell)
    before = cell(x, h)[1]
    with torch.no_grad():
        cell.bias_hh[2 * E :] += 3.0
    assert same(cell(x, h)[1], before)


@given(SEEDS)
def test_a_gru_state_lies_between_the_old_one_and_the_candidate(seed):
    cell = lively(GRUCell(D, E), seed)
    h = a_state(cell, seed=seed)
    assert bool((cell(tokens(B, D, seed=seed), h)[1].abs() <= h.abs().clamp(min=1)).all())


def test_an_lstm_with_open_forget_and_closed_input_gate_keeps_c():
    cell = lively(LSTMCell(D, E))
    gate(cell, 0, "closed")
    gate(cell, 1, "open")
    h, c = a_state(cell)
    _, (_, kept) = cell(tokens(B, D), (h, 9 * c))
    assert same(kept, 9 * c)


def test_an_lstm_with_closed_forget_gate_does_not_see_c():
    cell = lively(LSTMCell(D, E))
    gate(cell, 1, "closed")
    h, c = a_state(cell)
    x = tokens(B, D)
    assert same(cell(x, (h, c))[1], cell(x, (h, c + 5))[1])


def test_an_lstm_with_open_input_gate_writes_no_more_than_one():
    cell = lively(LSTMCell(D, E))
    gate(cell, 0, "open")
    gate(cell, 1, "open")
    h, c = a_state(cell)
    x = tokens(B, D)
    _, (_, new) = cell(x, (h, c))
    written = new - c
    rows = slice(2 * E, 3 * E)
    proposal = x @ cell.weight_ih[rows].T + cell.bias_ih[rows]
    proposal = torch.tanh(proposal + h @ cell.weight_hh[rows].T + cell.bias_hh[rows])
    assert same(written, proposal)


def test_an_lstm_with_closed_output_gate_shows_nothing():
    cell = lively(LSTMCell(D, E))
    gate(cell, 3, "closed")
    h, c = a_state(cell)
    output, (_, new) = cell(tokens(B, D), (h, c))
    assert output.abs().max() < 1e-12 < new.abs().min()


@given(SEEDS)
@settings(max_examples=20)
def test_an_lstm_shows_less_than_one_however_much_it_holds(seed):
    cell = lively(LSTMCell(D, E), seed)
    h, c = a_state(cell, seed=seed)
    output, (_, held) = cell(tokens(B, D, seed=seed), (h, 1000 * c))
    assert output.abs().max() <= 1 < held.abs().max()


def test_the_gradient_from_c_to_c_is_the_forget_gate():
    cell = lively(LSTMCell(D, E))
    x = tokens(1, D)
    h, c = a_state(cell, 1)
    jacobian = step_jacobians(cell, x[:, None], (h, c))[0, 0]  # (2E, 2E), rows [h ; c]
    rows = slice(E, 2 * E)
    f = x @ cell.weight_ih[rows].T + cell.bias_ih[rows] + h @ cell.weight_hh[rows].T
    f = torch.sigmoid(f + cell.bias_hh[rows])
    assert torch.allclose(jacobian[E:, E:], torch.diag(f[0]), 0, 1e-12)


def test_without_a_state_a_cell_starts_from_zeros(cell):
    x = tokens(B, D)
    zeros = tuple(torch.zeros(B, E, dtype=torch.float64) for _ in range(cell.n_states))
    assert same(cell(x)[1], cell(x, zeros if cell.n_states == 2 else zeros[0])[1], 0)


def test_the_output_of_a_cell_is_the_h_of_its_state(cell):
    output, state = cell(tokens(B, D))
    assert output is hidden(state)


def test_parameters_are_drawn_from_one_over_the_root_of_the_size():
    for kind in CELLS:
        cell = kind(D, 400)
        drawn = torch.cat([parameter.flatten() for parameter in cell.parameters()])
        assert 0.049 < drawn.abs().max() <= 0.05
        assert drawn.mean().abs() < 0.001


# PyTorch's cells


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_a_step_equals_that_of_the_cell_it_was_copied_from(kind, bias):
    theirs = lively(TWINS[kind](D, E, bias=bias))
    ours = kind.from_torch(theirs)
    x, state = tokens(B, D), a_state(ours)
    assert same(ours(x, state)[1], theirs(x, state))


@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_comes_back_from_pytorch_unchanged(cell, bias):
    original = lively(type(cell)(D, E, bias=bias))
    there = original.to_torch()
    back = type(cell).from_torch(there)
    assert there.state_dict().keys() == original.state_dict().keys() == back.state_dict().keys()
    for a, b in zip(original.state_dict().values(), back.state_dict().values(), strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype
        assert a.data_ptr() != b.data_ptr()


def test_the_nonlinearity_goes_along():
    theirs = lively(nn.RNNCell(D, E, nonlinearity="relu"))
    ours = ElmanCell.from_torch(theirs)
    x, h = tokens(B, D), a_state(ours)
    assert same(ours(x, h)[1], theirs(x, h))
    assert ours.to_torch().nonlinearity == "relu"


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@settings(max_examples=20)
@given(batch=st.integers(0, 4), length=st.integers(0, 9), seed=SEEDS)
def test_the_fused_loop_gives_the_same_numbers(nonlinearity, batch, length, seed):
    for cell in (ElmanCell(D, E, nonlinearity=nonlinearity), GRUCell(D, E), LSTMCell(D, E)):
        lively(cell, seed)
        x, state = tokens(batch, length, D, seed=seed), a_state(cell, batch, seed)
        for start in (None, state):
            y, last = Recurrent(cell)(x, start)
            fused, fused_last = Recurrent(cell, fused=True)(x, start)
            assert same(y, fused) and same(last, fused_last)


def test_the_fused_loop_works_without_biases(cell):
    bare = lively(type(cell)(D, E, bias=False))
    x = tokens(B, N, D)
    assert same(Recurrent(bare)(x)[0], Recurrent(bare, fused=True)(x)[0])


def test_the_fused_loop_gives_the_same_gradients(cell):
    def gradients(fused):
        x = tokens(B, N, D).requires_grad_()
        y, last = Recurrent(cell, fused=fused)(x)
        loss = (y * tokens(B, N, E, seed=5)).sum() + sum(part.sum() for part in parts(last))
        return torch.autograd.grad(loss, [x, *cell.parameters()])

    for a, b in zip(gradients(False), gradients(True), strict=True):
        assert torch.allclose(a, b, 0, 1e-10)


# Sequences


@given(cut=st.integers(0, N), seed=SEEDS)
def test_a_sequence_in_two_pieces_gives_the_whole(cut, seed):
    for kind in CELLS:
        layer = Recurrent(lively(kind(D, E), seed))
        x = tokens(B, N, D, seed=seed)
        whole, last = layer(x)
        first, state = layer(x[:, :cut])
        second, state = layer(x[:, cut:], state)
        assert same(torch.cat([first, second], 1), whole) and same(state, last)


def test_an_old_state_stays_valid_after_going_on_from_it(cell):
    layer = Recurrent(cell)
    _, state = layer(tokens(B, N, D))
    copies = [part.clone() for part in parts(state)]
    one = layer(tokens(B, 2, D, seed=3), state)[0]
    layer(tokens(B, 5, D, seed=4), state)
    assert all(torch.equal(a, b) for a, b in zip(parts(state), copies, strict=True))
    assert torch.equal(layer(tokens(B, 2, D, seed=3), state)[0], one)


@pytest.mark.parametrize("fused", [False, True])
def test_a_token_changes_its_own_and_later_outputs_only(cell, fused):
    layer, x = Recurrent(cell, fused=fused), tokens(B, N, D)
    y = layer(x)[0]
    for t in (0, 4, N - 1):
        other = x.clone()
        other[:, t] += 1
        changed = (layer(other)[0] - y).abs().amax(dim=(0, 2)) > 1e-9
        assert changed.tolist() == [False] * t + [True] * (N - t)


def test_no_gradient_flows_back_from_the_past(cell):
    x = tokens(B, N, D).requires_grad_()
    y = Recurrent(cell)(x)[0]
    (gradient,) = torch.autograd.grad(y[:, 4].sum(), x)
    reached = gradient.abs().amax(dim=(0, 2)) > 0
    assert reached.tolist() == [True] * 5 + [False] * (N - 5)


def test_sequences_of_a_batch_do_not_meet(cell):
    layer, x = Recurrent(cell), tokens(B, N, D)
    alone = torch.cat([layer(row[None])[0] for row in x])
    assert same(layer(x)[0], alone)


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=N, max_size=N), SEEDS)
def test_masked_tokens_might_as_well_not_be_there(real, seed):
    real = torch.tensor(real)
    for kind in CELLS:
        layer = Recurrent(lively(kind(D, E), seed))
        x = tokens(2, N, D, seed=seed)
        y, last = layer(x, mask=real.expand(2, N))
        short, short_last = layer(x[:, real])
        assert same(y[:, real], short) and same(last, short_last)


def test_padding_leaves_the_last_state_and_repeats_the_last_output(cell):
    lengths = torch.tensor([N, 4, 1])
    x = tokens(B, N, D)
    y, last = Recurrent(cell)(x, mask=padding_mask(lengths, N))
    for b, length in enumerate(lengths.tolist()):
        alone, state = Recurrent(cell)(x[b : b + 1, :length])
        assert same(y[b, :length], alone[0])
        assert same(tuple(p[b] for p in parts(last)), tuple(p[0] for p in parts(state)))
        assert same(y[b, length:], y[b, length - 1].expand(N - length, E), 0)


def test_a_mask_with_and_without_the_query_dimension_are_the_same(cell):
    mask = padding_mask(torch.tensor([N, 4, 1]), N)
    x = tokens(B, N, D)
    assert same(Recurrent(cell)(x, mask=mask)[0], Recurrent(cell)(x, mask=mask[:, 0])[0], 0)


def test_no_gradient_reaches_the_padding(cell):
    x = tokens(1, N, D).requires_grad_()
    y = Recurrent(cell)(x, mask=padding_mask([4], N))[0]
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient[:, 4:].abs().max() == 0 < gradient[:, :4].abs().min()


def test_layers_pass_gradcheck(cell):
    mask = padding_mask(torch.tensor([3, 1]), 3)
    both = Bidirectional(cell, lively(type(cell)(D, E), 9))
    x = tokens(2, 3, D).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: Recurrent(cell)(x, mask=mask)[0], x)
    assert torch.autograd.gradcheck(lambda x: both(x, mask=mask)[0], x)


def test_an_empty_sequence_returns_the_state_it_was_given(cell):
    state = a_state(cell)
    y, last = Recurrent(cell)(tokens(B, 0, D), state)
    assert y.shape == (B, 0, E) and last is state
    assert unroll(cell, tokens(B, 0, D)) == []
    assert step_jacobians(cell, tokens(B, 0, D)).shape[:2] == (B, 0)


# Both directions


@pytest.fixture
def both(cell):
    return Bidirectional(cell, lively(type(cell)(D, E), 5))


def test_reading_backwards_with_swapped_cells_gives_the_mirror_image(both):
    x = tokens(B, N, D)
    y, (last, first) = both(x)
    mirror, (m_last, m_first) = Bidirectional(both.backwards.cell, both.forwards.cell)(x.flip(1))
    ahead, behind = mirror.flip(1).split(E, dim=-1)
    assert same(torch.cat([behind, ahead], -1), y)
    assert same(m_last, first) and same(m_first, last)


def test_each_output_sees_its_past_in_one_half_and_its_future_in_the_other(both):
    x = tokens(B, N, D)
    y = both(x)[0]
    other = x.clone()
    other[:, 4] += 1
    ahead, behind = ((both(other)[0] - y).abs() > 1e-9).any(0).split(E, dim=-1)
    assert ahead.any(-1).tolist() == [False] * 4 + [True] * (N - 4)
    assert behind.any(-1).tolist() == [True] * 5 + [False] * (N - 5)


def test_padding_changes_nothing_in_either_direction(both):
    lengths = torch.tensor([N, 4, 1])
    x = tokens(B, N, D)
    y, states = both(x, mask=padding_mask(lengths, N))
    for b, length in enumerate(lengths.tolist()):
        alone, alone_states = both(x[b : b + 1, :length])
        assert same(y[b, :length], alone[0])
        for state, one in zip(states, alone_states, strict=True):
            assert same(tuple(p[b] for p in parts(state)), tuple(p[0] for p in parts(one)))


# Gradients through time


def test_the_elman_jacobian_is_the_formula():
    cell = lively(ElmanCell(D, E))
    x = tokens(B, N, D)
    h = Recurrent(cell)(x)[0]  # (B, N, E)
    expected = (1 - h**2)[..., None] * cell.weight_hh
    assert torch.allclose(step_jacobians(cell, x), expected, 0, 1e-12)


def test_products_of_jacobians_are_the_slopes_of_the_last_state(cell):
    """Central differences: nudge the state after token t and read on to the end."""
    x, nudge = tokens(1, N, D), 1e-5
    size = cell.n_states * E
    states = unroll(cell, x)
    products = jacobian_products(step_jacobians(cell, x))
    assert torch.equal(products[0, -1], torch.eye(size, dtype=torch.float64))
    for t in (0, 4, N - 2):
        flat = torch.cat(parts(states[t]), -1)  # (1, S)

        def end(flat, t=t):
            start = flat.split(E, dim=-1)
            start = start if cell.n_states == 2 else start[0]
            return torch.cat(parts(unroll(cell, x[:, t + 1 :], start)[-1]), -1)[0]

        for column in range(size):
            step = torch.zeros_like(flat)
            step[0, column] = nudge
            slope = (end(flat + step) - end(flat - step)) / (2 * nudge)
            assert torch.allclose(products[0, t, :, column], slope, 0, 1e-8)


@pytest.mark.parametrize("kind", [ElmanCell, GRUCell])
def test_gradient_norms_obey_the_chain_rule(kind):
    cell = lively(kind(D, E))
    x, weight = tokens(B, N, D), tokens(E, seed=8)
    states = unroll(cell, x)
    norms = gradient_norms(states, (states[-1] @ weight).sum())
    products = jacobian_products(step_jacobians(cell, x))  # (B, N, E, E)
    assert torch.allclose(norms, (products.mT @ weight).norm(dim=-1), 0, 1e-12)


def test_gradient_norms_along_an_open_lstm_do_not_fade():
    cell = lively(LSTMCell(D, E))
    gate(cell, 1, "open")
    with torch.no_grad():
        cell.weight_hh.zero_()
    states = unroll(cell, tokens(B, N, D))
    cells = [c for _, c in states]
    norms = gradient_norms(cells, cells[-1].sum())
    assert torch.allclose(norms, torch.full_like(norms, E**0.5), 0, 1e-9)


def test_an_identity_network_of_rectifiers_carries_the_gradient_unchanged():
    cell = ElmanCell(E, E, bias=False, nonlinearity="relu").double()
    with torch.no_grad():
        cell.weight_hh.copy_(torch.eye(E))
        cell.weight_ih.copy_(torch.eye(E))
    states = unroll(cell, tokens(B, N, E).abs())
    norms = gradient_norms(states, states[-1].sum())
    assert torch.allclose(norms, torch.full_like(norms, E**0.5), 0, 1e-12)


def test_a_state_behind_the_loss_has_gradient_zero(cell):
    states = [hidden(state) for state in unroll(cell, tokens(B, N, D))]
    norms = gradient_norms(states, states[4].sum())
    assert norms[:, 5:].abs().max() == 0 < norms[:, 4].min()
    assert torch.equal(norms, gradient_norms(states, states[4].sum()))  # the graph was kept


def test_gradient_norms_are_one_for_each_sequence():
    cell = lively(ElmanCell(D, E))
    states = unroll(cell, tokens(B, N, D))
    norms = gradient_norms(states, states[-1][0].sum())
    assert norms.shape == (B, N)
    assert norms[1:].abs().max() == 0 < norms[0].min()


@settings(max_examples=40)
@given(truncate=st.integers(1, N + 2), seed=SEEDS)
def test_truncation_changes_no_value_and_cuts_the_gradient_at_its_places(truncate, seed):
    for kind in CELLS:
        cell = lively(kind(D, E), seed)
        x = tokens(B, N, D, seed=seed).requires_grad_()
        full, cut = unroll(cell, x), unroll(cell, x, truncate=truncate)
        assert same(torch.cat(parts(full[-1])), torch.cat(parts(cut[-1])), 0)
        (gradient,) = torch.autograd.grad(hidden(cut[-1]).sum(), x)
        start = (N - 1) // truncate * truncate  # where the last piece begins
        reached = gradient.abs().amax(dim=(0, 2)) > 0
        assert reached.tolist() == [t >= start for t in range(N)]
        # Within the piece the gradient is that of a run that starts there.
        state = full[start - 1] if start else None
        state = state if state is None else tuple(p.detach() for p in parts(state))
        if state is not None and cell.n_states == 1:
            state = state[0]
        piece = x.detach()[:, start:].requires_grad_()
        (expected,) = torch.autograd.grad(hidden(unroll(cell, piece, state)[-1]).sum(), piece)
        assert torch.allclose(gradient[:, start:], expected, 0, 1e-12)


def test_a_state_handed_over_keeps_its_gradient_unless_detached(cell):
    state = a_state(cell)
    first = parts(state)[0].requires_grad_()
    later = unroll(cell, tokens(B, N, D), state, truncate=N)
    assert torch.autograd.grad(hidden(later[-1]).sum(), first)[0].abs().sum() > 0


# Bad input


GRU = GRUCell(D, E)
LSTM = LSTMCell(D, E)
X = torch.zeros(B, N, D)
H = torch.zeros(B, E)
BAD = [
    (lambda: GRUCell(0, E), ValueError, "d_input must be at least 1"),
    (lambda: GRUCell(D, 2.0), TypeError, "d_hidden must be an integer"),
    (lambda: GRUCell(D, E, bias=1), TypeError, "bias must be True or False"),
    (lambda: ElmanCell(D, E, nonlinearity="sine"), ValueError, "'tanh' or 'relu', got 'sine'"),
    (lambda: GRU(X), ValueError, r"\(B, d_input\) = \(B, 5\), got \(3, 11, 5\); Recurrent"),
    (lambda: GRU(X[:, 0].long()), TypeError, "x must have a floating-point dtype"),
    (lambda: GRU(X[:, 0].double()), TypeError, "x and weight_ih must have the same dtype"),
    (lambda: GRU(X[:, 0, :4]), ValueError, r"got \(3, 4\)"),
    (
        lambda: GRU(X[:, 0], H[:2]),
        ValueError,
        r"state h must have shape \(B, d_hidden\) = \(3, 7\)",
    ),
    (lambda: GRU(X[:, 0], H.double()), TypeError, "x and state h must have the same dtype"),
    (lambda: GRU(X[:, 0], (H, H)), TypeError, "must be one tensor h, got a tuple of 2"),
    (lambda: LSTM(X[:, 0], H), TypeError, r"must be a pair \(h, c\), got Tensor"),
    (lambda: LSTM(X[:, 0], (H, H[:, :6])), ValueError, "state c must have shape"),
    (lambda: GRUCell.from_torch(nn.LSTMCell(D, E)), TypeError, "must be nn.GRUCell, got LSTMCell"),
    (lambda: Recurrent(nn.GRUCell(D, E)), TypeError, "got GRUCell; convert it with from_torch"),
    (lambda: Bidirectional(GRU, "GRU"), TypeError, "LSTMCell, got str"),
    (lambda: Recurrent(GRU, fused="yes"), TypeError, "fused must be True or False"),
    (lambda: Recurrent(GRU)(X[0]), ValueError, r"\(B, N, d_input\) = \(B, N, 5\), got \(11, 5\)"),
    (lambda: Recurrent(GRU)(X, mask=torch.ones(B, N)), TypeError, "mask must be boolean"),
    (lambda: Recurrent(GRU)(X, mask=torch.ones(N, N).bool()), ValueError, "chosen pairs"),
    (lambda: Recurrent(GRU)(X, mask=[True]), TypeError, "mask must be a tensor"),
    (lambda: Recurrent(GRU, fused=True)(X, mask=torch.ones(B, N).bool()), ValueError, "no mask"),
    (lambda: unroll(GRU, X, truncate=0), ValueError, "truncate must be at least 1"),
    (lambda: unroll(nn.Linear(D, E), X), TypeError, "cell must be an ElmanCell"),
    (lambda: gradient_norms([], H.sum()), ValueError, "at least one tensor"),
    (lambda: gradient_norms([(H, H)], H.sum()), TypeError, r"\[h for h, c in states\]"),
    (lambda: gradient_norms([H], H.sum()), ValueError, "loss carries no gradient"),
    (lambda: gradient_norms([H], H), ValueError, r"loss must have shape \(\)"),
    (lambda: jacobian_products(X), ValueError, "N, S, S"),
    (lambda: jacobian_products(H), ValueError, "at least 3 dimensions"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_input_gets_a_clear_error(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.untyped
def test_states_made_without_gradient_are_named():
    state = unroll(GRU, X)[0]
    with pytest.raises(ValueError, match=r"states\[1\] carries no gradient"):
        gradient_norms([state, H], state.sum())
