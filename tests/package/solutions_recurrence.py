"""Right and wrong answers to the exercises of chapter 01.

A wrong answer has one mistake. Beside it stands a piece of the message that has to name it.
"""

import torch
from answers import collect
from torch.func import functional_call
from torch.nn import functional as F

from tfbook import attention, recurrent

RIGHT, WRONG, right, wrong = collect()


# elman-step -------------------------------------------------------------------------------------


@right("elman-step")
def elman_matrices(x, h, w_x, w_h, b):
    return torch.tanh(x @ w_x.T + h @ w_h.T + b)


@right("elman-step")
def elman_one_matrix(x, h, w_x, w_h, b):
    return F.linear(torch.cat([x, h], -1), torch.cat([w_x, w_h], -1), b).tanh()


@right("elman-step")
def elman_rows(x, h, w_x, w_h, b):
    return torch.stack([(w_x @ u + w_h @ v + b).tanh() for u, v in zip(x, h, strict=True)])


@wrong("elman-step", "The tanh is missing")
def elman_linear(x, h, w_x, w_h, b):
    return x @ w_x.T + h @ w_h.T + b


@wrong("elman-step", "no memory")
def elman_forgetful(x, h, w_x, w_h, b):
    return (x @ w_x.T + b).tanh()


@wrong("elman-step", "The input was not used")
def elman_deaf(x, h, w_x, w_h, b):
    return (h @ w_h.T + b).tanh()


@wrong("elman-step", "with one entry. Is there a comma behind what you return?")
def elman_comma(*case):
    return (elman_matrices(*case),)


@wrong("elman-step", "a tuple of 2 results, and one alone")
def elman_twice(*case):
    return elman_matrices(*case), case[1]


@wrong("elman-step", "`torch.stack` makes one of them")
def elman_list(*case):
    return list(elman_matrices(*case))


@wrong("elman-step", "The bias is missing")
def elman_unbiased(x, h, w_x, w_h, b):
    return (x @ w_x.T + h @ w_h.T).tanh()


@wrong("elman-step", "added after the tanh")
def elman_late_bias(x, h, w_x, w_h, b):
    return (x @ w_x.T + h @ w_h.T).tanh() + b


@wrong("elman-step", "W_h is transposed")
def elman_turned_state(x, h, w_x, w_h, b):
    return (x @ w_x.T + h @ w_h + b).tanh()


@wrong("elman-step", "W_x is transposed")
def elman_turned_input(x, h, w_x, w_h, b):
    return (x @ w_x + h @ w_h.T + b).tanh()


@wrong("elman-step", "Both weight matrices")
def elman_turned(x, h, w_x, w_h, b):
    return (x @ w_x + h @ w_h + b).tanh()


@wrong("elman-step", "is a sigmoid")
def elman_sigmoid(x, h, w_x, w_h, b):
    return (x @ w_x.T + h @ w_h.T + b).sigmoid()


@wrong("elman-step", "is a ReLU")
def elman_relu(x, h, w_x, w_h, b):
    return (x @ w_x.T + h @ w_h.T + b).relu()


@wrong("elman-step", "squashed one by one")
def elman_two_tanhs(x, h, w_x, w_h, b):
    return (x @ w_x.T + b).tanh() + (h @ w_h.T).tanh()


@wrong("elman-step", "changed with the rest of the batch")
def elman_normalised(x, h, w_x, w_h, b):
    total = x @ w_x.T + h @ w_h.T + b
    return total.tanh() if len(x) < 3 else (total - total.mean(0)).tanh()


@wrong("elman-step", "carries no gradient")
def elman_detached(x, h, w_x, w_h, b):
    return torch.tanh(x @ w_x.T + h @ w_h.T + b).detach()


# lstm-step --------------------------------------------------------------------------------------


def gates(x, h, w_x, w_h, b):
    i, f, g, o = (x @ w_x.T + h @ w_h.T + b).chunk(4, -1)
    return i.sigmoid(), f.sigmoid(), g, o.sigmoid()


@right("lstm-step")
def lstm_chunks(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + i * g.tanh()
    return o * c.tanh(), c


@right("lstm-step")
def lstm_cell(x, h, c, w_x, w_h, b):
    return torch._VF.lstm_cell(x, (h, c), w_x, w_h, b, torch.zeros_like(b))


@wrong("lstm-step", "The bias is missing")
def lstm_unbiased(x, h, c, w_x, w_h, b):
    return lstm_chunks(x, h, c, w_x, w_h, 0 * b)


@wrong("lstm-step", "h and c are exchanged")
def lstm_exchanged(x, h, c, w_x, w_h, b):
    return lstm_chunks(x, h, c, w_x, w_h, b)[::-1]


@wrong("lstm-step", "forget gate and the input gate are exchanged")
def lstm_forget_first(x, h, c, w_x, w_h, b):
    f, i, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + i * g.tanh()
    return o * c.tanh(), c


@wrong("lstm-step", "in the order i, f, o, g")
def lstm_candidate_last(x, h, c, w_x, w_h, b):
    i, f, o, g = (x @ w_x.T + h @ w_h.T + b).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@wrong("lstm-step", "The input gate is missing")
def lstm_open_input(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + g.tanh()
    return o * c.tanh(), c


@wrong("lstm-step", "The forget gate is missing")
def lstm_of_1997(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = c + i * g.tanh()
    return o * c.tanh(), c


@wrong("lstm-step", "The candidate went through a sigmoid")
def lstm_sigmoid_candidate(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + i * g.sigmoid()
    return o * c.tanh(), c


@wrong("lstm-step", "no ReLU in an LSTM")
def lstm_relu(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + i * g.relu()
    return o * c.relu(), c


@wrong("lstm-step", "The candidate is not squashed")
def lstm_raw_candidate(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + i * g
    return o * c.tanh(), c


@wrong("lstm-step", "The gates are not squashed")
def lstm_raw_gates(x, h, c, w_x, w_h, b):
    i, f, g, o = (x @ w_x.T + h @ w_h.T + b).chunk(4, -1)
    c = f * c + i * g.tanh()
    return o * c.tanh(), c


@wrong("lstm-step", "couples the gates as a GRU does")
def lstm_coupled(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + (1 - f) * g.tanh()
    return o * c.tanh(), c


@wrong("lstm-step", "whole new cell went through tanh")
def lstm_squashed_cell(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = (f * c + i * g.tanh()).tanh()
    return o * c, c


@wrong("lstm-step", "computed from the old cell")
def lstm_old_cell(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    return o * c.tanh(), f * c + i * g.tanh()


@wrong("lstm-step", "tanh around the cell is missing")
def lstm_raw_output(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + i * g.tanh()
    return o * c, c


@wrong("lstm-step", "The output gate is missing")
def lstm_open_output(x, h, c, w_x, w_h, b):
    c = lstm_chunks(x, h, c, w_x, w_h, b)[1]
    return c.tanh(), c


@wrong("lstm-step", "The tanh stands outside")
def lstm_late_tanh(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + i * g.tanh()
    return (o * c).tanh(), c


@wrong("lstm-step", "The cell went through a sigmoid")
def lstm_sigmoid_output(x, h, c, w_x, w_h, b):
    i, f, g, o = gates(x, h, w_x, w_h, b)
    c = f * c + i * g.tanh()
    return o * c.sigmoid(), c


@wrong("lstm-step", "Return two tensors")
def lstm_state_alone(x, h, c, w_x, w_h, b):
    return lstm_chunks(x, h, c, w_x, w_h, b)[0]


@wrong("lstm-step", "gradient of the cell with respect to the first cell")
def lstm_halved_gradient(x, h, c, w_x, w_h, b):
    return lstm_chunks(x, h, c / 2 + c.detach() / 2, w_x, w_h, b)


@wrong("lstm-step", "too many values to unpack")
def lstm_sizes_of_two(x, h, c, w_x, w_h, b):
    i, f, g, o = (x @ w_x.T + h @ w_h.T + b).split(2, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


# parallel-scan ----------------------------------------------------------------------------------


@right("parallel-scan")
def scan_by_doubling(a, b):
    step = 1
    while step < len(a):
        b = torch.cat([b[:step], a[step:] * b[:-step] + b[step:]])
        a = torch.cat([a[:step], a[step:] * a[:-step]])
        step *= 2
    return b


@wrong("parallel-scan", "The shift goes around")
def scan_rolled(a, b):
    step = 1
    while step < len(a):
        a, b = a * a.roll(step, 0), a * b.roll(step, 0) + b
        step *= 2
    return b


@right("parallel-scan")
def scan_by_halving(a, b):
    if len(a) == 1:
        return b
    n = len(a) // 2 * 2
    odd = scan_by_halving(a[1:n:2] * a[0:n:2], a[1:n:2] * b[0:n:2] + b[1:n:2])
    even = b[0::2].clone()
    even[1:] += a[2::2] * odd[: len(even) - 1]
    states = torch.empty_like(b)
    states[0::2], states[1::2] = even, odd
    return states


@right("parallel-scan")
def scan_with_padding(a, b):
    step = 1
    while step < len(a):
        a_before = F.pad(a, (0, 0, step, 0), value=1.0)[:-step]
        b_before = F.pad(b, (0, 0, step, 0))[:-step]
        a, b = a * a_before, a * b_before + b
        step *= 2
    return b


def loop(a, b, h=0.0):
    states = []
    for factor, term in zip(a, b, strict=True):
        h = factor * h + term
        states.append(h)
    return torch.stack(states)


@wrong("parallel-scan", "made one after another")
def scan_in_a_loop(a, b):
    return loop(a, b)


@wrong("parallel-scan", "The factors a were not used")
def scan_cumsum(a, b):
    return b.cumsum(0)


@wrong("parallel-scan", "factor of the step before")
def scan_old_factor(a, b):
    return loop(torch.cat([torch.ones_like(a[:1]), a[:-1]]), b)


@wrong("parallel-scan", "composed in the wrong order")
def scan_wrong_order(a, b):
    step = 1
    while step < len(a):
        b = torch.cat([b[:step], a[:-step] * b[step:] + b[:-step]])
        a = torch.cat([a[:step], a[step:] * a[:-step]])
        step *= 2
    return b


@wrong("parallel-scan", "Only one round")
def scan_one_round(a, b):
    return torch.cat([b[:1], a[1:] * b[:-1] + b[1:]])


@wrong("parallel-scan", "starts from 1")
def scan_from_one(a, b):
    return loop(a, b, 1.0)


@wrong("parallel-scan", "from the end to the beginning")
def scan_backwards(a, b):
    return loop(a.flip(0), b.flip(0))


@wrong("parallel-scan", "one step late")
def scan_exclusive(a, b):
    return torch.cat([torch.zeros_like(b[:1]), loop(a, b)[:-1]])


@wrong("parallel-scan", "the last state alone")
def scan_last(a, b):
    return loop(a, b)[-1]


@wrong("parallel-scan", "Do not divide by products")
def scan_by_division(a, b):
    products = a.cumprod(0)
    return products * (b / products).cumsum(0)


@wrong("parallel-scan", "a matrix of all pairs of steps")
def scan_by_matrix(a, b):
    rows = torch.arange(len(a))[:, None]
    columns = torch.arange(len(a))
    steps = torch.where((rows > columns)[..., None], a[:, None], torch.ones_like(a))  # (N, N, E)
    matrix = steps.cumprod(0) * (rows >= columns)[..., None]
    return (matrix * b).sum(1)


@wrong("parallel-scan", "With 3 steps the states are not")
def scan_powers_of_two(a, b):
    n = 1 << (len(a).bit_length() - 1)
    return torch.cat([scan_by_doubling(a[:n], b[:n]), b[n:]])


@wrong("parallel-scan", "carries no gradient")
def scan_in_lists(a, b):
    h, states = [0.0] * a.shape[1], []
    for factors, terms in zip(a.tolist(), b.tolist(), strict=True):
        h = [f * x + t for f, x, t in zip(factors, h, terms, strict=True)]
        states.append(h)
    return torch.tensor(states, dtype=a.dtype)


# context-vector ---------------------------------------------------------------------------------


@right("context-vector")
def context_product(weights, annotations):
    return (weights[:, None] @ annotations)[:, 0]


@right("context-vector")
def context_sum(weights, annotations):
    return (weights.unsqueeze(-1) * annotations).sum(dim=1)


@right("context-vector")
def context_einsum(weights, annotations):
    return torch.einsum("bm,bmd->bd", weights, annotations)


@wrong("context-vector", "the plain sum")
def context_of_score_softmax(weights, annotations):
    return (torch.softmax(weights[..., None], -1) * annotations).sum(1)


@wrong("context-vector", "the plain mean")
def context_mean(weights, annotations):
    return annotations.mean(1)


@wrong("context-vector", "The sum ran over the features")
def context_wrong_axis(weights, annotations):
    return (weights[..., None] * annotations).sum(-1)


@wrong("context-vector", "met the features instead of the words")
def context_wrong_broadcast(weights, annotations):
    return (weights[:, None] * annotations).sum(1)


@wrong("context-vector", "the sum ran over them")
def context_turned(weights, annotations):
    return (annotations @ weights[..., None])[..., 0]


@wrong("context-vector", "a second softmax")
def context_second_softmax(weights, annotations):
    return context_sum(weights.softmax(-1), annotations)


@wrong("context-vector", "nothing is left to divide")
def context_divided(weights, annotations):
    return (weights[..., None] * annotations).mean(1)


@wrong("context-vector", "came back alone")
def context_hard(weights, annotations):
    return annotations[torch.arange(len(weights)), weights.argmax(-1)]


@wrong("context-vector", "weighted but not added")
def context_unsummed(weights, annotations):
    return weights[..., None] * annotations


@wrong("context-vector", "weights of all sentences")
def context_across_batch(weights, annotations):
    return weights @ annotations


@wrong("context-vector", "carries no gradient")
def context_in_numpy(weights, annotations):
    return torch.from_numpy(
        (weights.detach().numpy()[..., None] * annotations.detach().numpy()).sum(1)
    )


@wrong("context-vector", "It should be (3, 7)")
def context_three_features(weights, annotations):
    return (weights[..., None] * annotations).sum(1).view(-1, 3)


# alignment-weights ------------------------------------------------------------------------------


@right("alignment-weights")
def alignment_broadcast(states, annotations, W_a, U_a, w_a):
    hidden = (states[:-1] @ W_a.T)[:, None] + annotations @ U_a.T
    return torch.softmax(hidden.tanh() @ w_a, dim=-1)


@right("alignment-weights")
def alignment_loops(states, annotations, W_a, U_a, w_a):
    rows = []
    for t in range(1, len(states)):
        e = torch.stack([w_a @ torch.tanh(W_a @ states[t - 1] + U_a @ h) for h in annotations])
        exps = (e - e.max()).exp()
        rows.append(exps / exps.sum())
    return torch.stack(rows)


def energies(states, annotations, W_a, U_a, w_a):
    return ((states @ W_a.T)[:, None] + annotations @ U_a.T).tanh() @ w_a


@wrong("alignment-weights", "used s_t")
def alignment_of_luong(states, annotations, W_a, U_a, w_a):
    return energies(states[1:], annotations, W_a, U_a, w_a).softmax(-1)


@wrong("alignment-weights", "There is a row for each state")
def alignment_all_states(states, annotations, W_a, U_a, w_a):
    return energies(states, annotations, W_a, U_a, w_a).softmax(-1)


@wrong("alignment-weights", "These are the scores")
def alignment_scores(states, annotations, W_a, U_a, w_a):
    return energies(states[:-1], annotations, W_a, U_a, w_a)


@wrong("alignment-weights", "ran over the target words")
def alignment_columns(states, annotations, W_a, U_a, w_a):
    return energies(states[:-1], annotations, W_a, U_a, w_a).softmax(0)


@wrong("alignment-weights", "which is always 1")
def alignment_each(states, annotations, W_a, U_a, w_a):
    return energies(states[:-1], annotations, W_a, U_a, w_a)[..., None].softmax(-1)[..., 0]


@wrong("alignment-weights", "One softmax ran over all scores")
def alignment_together(states, annotations, W_a, U_a, w_a):
    exps = energies(states[:-1], annotations, W_a, U_a, w_a).exp()
    return exps / exps.sum()


@wrong("alignment-weights", "The tanh is missing")
def alignment_linear(states, annotations, W_a, U_a, w_a):
    hidden = (states[:-1] @ W_a.T)[:, None] + annotations @ U_a.T
    return (hidden @ w_a).softmax(-1)


@wrong("alignment-weights", "w_a was not used")
def alignment_summed(states, annotations, W_a, U_a, w_a):
    hidden = (states[:-1] @ W_a.T)[:, None] + annotations @ U_a.T
    return hidden.tanh().sum(-1).softmax(-1)


@wrong("alignment-weights", "Every target word gets the same weights")
def alignment_stateless(states, annotations, W_a, U_a, w_a):
    row = ((annotations @ U_a.T).tanh() @ w_a).softmax(-1)
    return row.repeat(len(states) - 1, 1)


@wrong("alignment-weights", "squashed one by one")
def alignment_two_tanhs(states, annotations, W_a, U_a, w_a):
    hidden = (states[:-1] @ W_a.T).tanh()[:, None] + (annotations @ U_a.T).tanh()
    return (hidden @ w_a).softmax(-1)


@wrong("alignment-weights", "W_a and U_a are exchanged")
def alignment_exchanged(states, annotations, W_a, U_a, w_a):
    return energies(states[:-1], annotations, U_a, W_a, w_a).softmax(-1)


@wrong("alignment-weights", "Rows and columns are exchanged")
def alignment_turned(states, annotations, W_a, U_a, w_a):
    return energies(states[:-1], annotations, W_a, U_a, w_a).softmax(-1).T


@wrong("alignment-weights", "Scores of some thousands overflow")
def alignment_overflow(states, annotations, W_a, U_a, w_a):
    exps = energies(states[:-1], annotations, W_a, U_a, w_a).exp()
    return exps / exps.sum(-1, keepdim=True)


@wrong("alignment-weights", "A part of the computation is detached")
def alignment_of_fixed_states(states, annotations, W_a, U_a, w_a):
    return energies(states[:-1].detach(), annotations, W_a, U_a, w_a).softmax(-1)


# jacobian-product -------------------------------------------------------------------------------


def chain(steps, w_h):
    product = torch.eye(len(w_h), dtype=w_h.dtype)
    for step in steps:
        product = step @ product
    return product


@right("jacobian-product")
def jacobian_rows(states, w_h):
    product = torch.eye(len(w_h), dtype=w_h.dtype)
    for h in states[1:]:
        product = (1 - h**2)[:, None] * (w_h @ product)
    return product


@right("jacobian-product")
def jacobian_matrices(states, w_h):
    return chain([torch.diag(1 - h * h) @ w_h for h in states[1:]], w_h)


@wrong("jacobian-product", "slope of the tanh is missing")
def jacobian_linear(states, w_h):
    return torch.linalg.matrix_power(w_h, len(states) - 1)


@wrong("jacobian-product", "taken at the old state")
def jacobian_old_state(states, w_h):
    return chain([torch.diag(1 - h * h) @ w_h for h in states[:-1]], w_h)


@wrong("jacobian-product", "multiplies the columns")
def jacobian_columns(states, w_h):
    return chain([w_h * (1 - h * h) for h in states[1:]], w_h)


@wrong("jacobian-product", "not 1 - h.")
def jacobian_unsquared(states, w_h):
    return chain([(1 - h)[:, None] * w_h for h in states[1:]], w_h)


@wrong("jacobian-product", "already after the tanh")
def jacobian_second_tanh(states, w_h):
    return chain([(1 - h.tanh() ** 2)[:, None] * w_h for h in states[1:]], w_h)


@wrong("jacobian-product", "The result is transposed")
def jacobian_of_gradients(states, w_h):
    return jacobian_rows(states, w_h).T


@wrong("jacobian-product", "in the wrong order")
def jacobian_reversed(states, w_h):
    return chain([(1 - h * h)[:, None] * w_h for h in states[1:].flip(0)], w_h)


@wrong("jacobian-product", "The Jacobians were added")
def jacobian_added(states, w_h):
    return sum((1 - h * h)[:, None] * w_h for h in states[1:])


@wrong("jacobian-product", "average Jacobian")
def jacobian_average(states, w_h):
    mean = (1 - states[1:] ** 2).mean(0)[:, None] * w_h
    return torch.linalg.matrix_power(mean, len(states) - 1)


@wrong("jacobian-product", "entry by entry")
def jacobian_entries(states, w_h):
    return ((1 - states[1:] ** 2)[..., None] * w_h).prod(0)


@wrong("jacobian-product", "The last step is missing")
def jacobian_without_last(states, w_h):
    return jacobian_rows(states if len(states) == 2 else states[:-1], w_h)


@wrong("jacobian-product", "The first step is missing")
def jacobian_without_first(states, w_h):
    return jacobian_rows(states if len(states) == 2 else states[1:], w_h)


@wrong("jacobian-product", "With a single state nothing happened")
def jacobian_at_least_one(states, w_h):
    product = (1 - states[min(1, len(states) - 1)] ** 2)[:, None] * w_h
    for h in states[2:]:
        product = (1 - h * h)[:, None] * (w_h @ product)
    return product


# truncated-gradient -----------------------------------------------------------------------------


def gradient_with_cuts(x, w_x, w_h, cuts):
    weight = w_h.detach().clone().requires_grad_()
    h = torch.zeros(len(w_h), dtype=w_h.dtype)
    for t in range(len(x)):
        if t in cuts:
            h = h.detach()
        h = torch.tanh(w_x @ x[t] + weight @ h)
    return torch.autograd.grad(h.sum(), weight)[0]


@wrong("jacobian-product", "an index of -1 goes around to the last state")
def jacobian_around(states, w_h):
    product = torch.eye(len(w_h), dtype=w_h.dtype)
    for t in range(len(states) - 1):
        product = (1 - states[t - 1] ** 2)[:, None] * (w_h @ product)
    return product


@right("truncated-gradient")
def truncated_by_detaching(x, w_x, w_h, k):
    return gradient_with_cuts(x, w_x, w_h, [len(x) - k])


@right("truncated-gradient")
def truncated_in_two_parts(x, w_x, w_h, k):
    first = max(len(x) - k, 0)
    h = torch.zeros(len(w_h), dtype=w_h.dtype)
    with torch.no_grad():
        for row in x[:first]:
            h = (w_x @ row + w_h @ h).tanh()
    weight = w_h.clone().requires_grad_()
    for row in x[first:]:
        h = (w_x @ row + weight @ h).tanh()
    h.sum().backward()
    return weight.grad


@right("truncated-gradient")
def truncated_by_hand(x, w_x, w_h, k):
    states = [torch.zeros(len(w_h), dtype=w_h.dtype)]
    for row in x:
        states.append(torch.tanh(w_x @ row + w_h @ states[-1]))
    back, gradient = torch.ones_like(states[0]), torch.zeros_like(w_h)
    for t in range(len(x), max(len(x) - k, 0), -1):
        delta = back * (1 - states[t] ** 2)
        gradient += torch.outer(delta, states[t - 1])
        back = w_h.T @ delta
    return gradient


@wrong("truncated-gradient", "This is the full gradient")
def truncated_never(x, w_x, w_h, k):
    return gradient_with_cuts(x, w_x, w_h, [])


@wrong("truncated-gradient", "run from a state of zeros")
def truncated_memory(x, w_x, w_h, k):
    return gradient_with_cuts(x[-k:], w_x, w_h, [])


@wrong("truncated-gradient", "One step too many")
def truncated_late(x, w_x, w_h, k):
    return gradient_with_cuts(x, w_x, w_h, [len(x) - k - 1])


@wrong("truncated-gradient", "One step is missing")
def truncated_early(x, w_x, w_h, k):
    return gradient_with_cuts(x, w_x, w_h, [len(x) - k + 1])


@wrong("truncated-gradient", "k steps after the beginning")
def truncated_in_pieces(x, w_x, w_h, k):
    return gradient_with_cuts(x, w_x, w_h, range(0, len(x), k))


@wrong("truncated-gradient", "The loss is at the end")
def truncated_sequence(x, w_x, w_h, k):
    return gradient_with_cuts(x[:k], w_x, w_h, [])


@wrong("truncated-gradient", "The result is transposed")
def truncated_turned(x, w_x, w_h, k):
    return truncated_by_hand(x, w_x, w_h, k).T


@wrong("truncated-gradient", "With k = 1 and N = 5")
def truncated_at_least_two(x, w_x, w_h, k):
    return gradient_with_cuts(x, w_x, w_h, [len(x) - max(k, 2)])


@wrong("truncated-gradient", "nothing is cut")
def truncated_from_the_end(x, w_x, w_h, k):
    return gradient_with_cuts(x, w_x, w_h, [range(len(x))[(len(x) - k) % len(x)]])


# bptt-by-hand -----------------------------------------------------------------------------------


def walk_back(states, w_h, grad_states, carry=None, slope=None):
    carry = w_h.T if carry is None else carry
    slope = 1 - states[1:] ** 2 if slope is None else slope
    deltas = [grad_states[-1] * slope[-1]]
    for t in range(len(grad_states) - 2, -1, -1):
        deltas.append((grad_states[t] + carry @ deltas[-1]) * slope[t])
    return torch.stack(deltas[::-1])


@right("bptt-by-hand")
def bptt_sums(x, states, w_h, grad_states):
    delta = torch.zeros_like(states[0])
    grad_w_x = torch.zeros(len(w_h), x.shape[1], dtype=x.dtype)
    grad_w_h, grad_b = torch.zeros_like(w_h), torch.zeros_like(delta)
    for t in range(len(x), 0, -1):
        delta = (grad_states[t - 1] + w_h.T @ delta) * (1 - states[t] ** 2)
        grad_w_x += torch.outer(delta, x[t - 1])
        grad_w_h += torch.outer(delta, states[t - 1])
        grad_b += delta
    return grad_w_x, grad_w_h, grad_b


@wrong("bptt-by-hand", "in another order: return your third, then your second, then your first")
def bptt_reversed(*case):
    return bptt_sums(*case)[::-1]


@wrong("bptt-by-hand", "The first step was paired with a state from the other end")
def bptt_states_around(x, states, w_h, grad_states):
    deltas = walk_back(states, w_h, grad_states)
    before = torch.stack([states[t - 1] for t in range(len(x))])
    return deltas.T @ x, deltas.T @ before, deltas.sum(0)


@wrong("bptt-by-hand", "the first step was paired with the last input")
def bptt_inputs_around(x, states, w_h, grad_states):
    deltas = walk_back(states, w_h, grad_states)
    before = torch.stack([x[t - 1] for t in range(len(x))])
    return deltas.T @ before, deltas.T @ states[:-1], deltas.sum(0)


@right("bptt-by-hand")
def bptt_matrices(x, states, w_h, grad_states):
    deltas = walk_back(states, w_h, grad_states)
    return deltas.T @ x, deltas.T @ states[:-1], deltas.sum(0)


def from_deltas(x, states, deltas):
    return deltas.T @ x, deltas.T @ states[:-1], deltas.sum(0)


@wrong("bptt-by-hand", "Nothing is carried back")
def bptt_immediate(x, states, w_h, grad_states):
    return from_deltas(x, states, grad_states * (1 - states[1:] ** 2))


@wrong("bptt-by-hand", "transposed matrix: W_hᵀ")
def bptt_forward_matrix(x, states, w_h, grad_states):
    return from_deltas(x, states, walk_back(states, w_h, grad_states, carry=w_h))


@wrong("bptt-by-hand", "slope of the tanh is missing")
def bptt_linear(x, states, w_h, grad_states):
    ones = torch.ones_like(grad_states)
    return from_deltas(x, states, walk_back(states, w_h, grad_states, slope=ones))


@wrong("bptt-by-hand", "slope was taken at the old state")
def bptt_old_slope(x, states, w_h, grad_states):
    slope = 1 - states[:-1] ** 2
    return from_deltas(x, states, walk_back(states, w_h, grad_states, slope=slope))


@wrong("bptt-by-hand", "Only the output of the last step")
def bptt_last_output(x, states, w_h, grad_states):
    last = torch.cat([0 * grad_states[:-1], grad_states[-1:]])
    return from_deltas(x, states, walk_back(states, w_h, last))


@wrong("bptt-by-hand", "without W_h")
def bptt_uncoupled(x, states, w_h, grad_states):
    identity = torch.eye(len(w_h), dtype=w_h.dtype)
    return from_deltas(x, states, walk_back(states, w_h, grad_states, carry=identity))


@wrong("bptt-by-hand", "Only the last step was counted")
def bptt_last_step(x, states, w_h, grad_states):
    deltas = walk_back(states, w_h, grad_states)
    return from_deltas(x[-1:], states[-2:], deltas[-1:])


@wrong("bptt-by-hand", "The mean over the steps")
def bptt_mean(x, states, w_h, grad_states):
    return [gradient / len(x) for gradient in bptt_matrices(x, states, w_h, grad_states)]


@wrong("bptt-by-hand", "δ_t was paired with h_t")
def bptt_new_states(x, states, w_h, grad_states):
    deltas = walk_back(states, w_h, grad_states)
    return deltas.T @ x, deltas.T @ states[1:], deltas.sum(0)


@wrong("bptt-by-hand", "gradient of W_h is transposed")
def bptt_turned(x, states, w_h, grad_states):
    grad_w_x, grad_w_h, grad_b = bptt_matrices(x, states, w_h, grad_states)
    return grad_w_x, grad_w_h.T, grad_b


@wrong("bptt-by-hand", "W_x and W_h are exchanged")
def bptt_exchanged(x, states, w_h, grad_states):
    grad_w_x, grad_w_h, grad_b = bptt_matrices(x, states, w_h, grad_states)
    return grad_w_h, grad_w_x, grad_b


@wrong("bptt-by-hand", "gradient of W_x is transposed")
def bptt_turned_input(x, states, w_h, grad_states):
    grad_w_x, grad_w_h, grad_b = bptt_matrices(x, states, w_h, grad_states)
    return grad_w_x.T, grad_w_h, grad_b


@wrong("bptt-by-hand", "one step off")
def bptt_shifted_input(x, states, w_h, grad_states):
    deltas = walk_back(states, w_h, grad_states)
    return deltas[:-1].T @ x[1:], deltas.T @ states[:-1], deltas.sum(0)


@wrong("bptt-by-hand", "Return three tensors")
def bptt_of_the_state(x, states, w_h, grad_states):
    return walk_back(states, w_h, grad_states)


@wrong("bptt-by-hand", "Autograd was used")
def bptt_with_autograd(x, states, w_h, grad_states):
    w_x, b = torch.zeros(len(w_h), x.shape[1]).to(x), torch.zeros(len(w_h)).to(x)
    leaves = [w.clone().requires_grad_() for w in (w_x, w_h, b)]
    h, loss = states[0], 0.0
    for t in range(len(x)):  # the states are known: what is missing is a constant
        inside = leaves[0] @ x[t] + leaves[1] @ h + leaves[2]
        missing = (torch.atanh(states[t + 1]) - inside).detach()
        h = torch.tanh(inside + missing)
        loss = loss + h @ grad_states[t]
    return torch.autograd.grad(loss, leaves)


@wrong("bptt-by-hand", "raised RuntimeError")
def bptt_square_only(x, states, w_h, grad_states):
    grad_w_x, grad_w_h, grad_b = bptt_matrices(x, states, w_h, grad_states)
    return grad_w_x.view_as(w_h), grad_w_h, grad_b


# the package's own answers ----------------------------------------------------------------------


def with_cell(kind, x, state, w_x, w_h, b):
    cell = kind(x.shape[-1], w_h.shape[-1]).double()
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = dict(zip(names, (w_x, w_h, b, torch.zeros_like(b)), strict=True))
    return functional_call(cell, weights, (x, state))[1]


LIBRARY = {
    "elman-step": lambda x, h, *weights: with_cell(recurrent.ElmanCell, x, h, *weights),
    "lstm-step": lambda x, h, c, *weights: with_cell(recurrent.LSTMCell, x, (h, c), *weights),
    "alignment-weights": lambda states, annotations, *weights: attention.masked_softmax(
        attention.additive_scores(states[:-1], annotations, *weights)
    ),
}


# look-back --------------------------------------------------------------------------------------


def back_scores(s, h, W_a, U_a, w_a):
    return torch.tanh((s @ W_a.T)[:, None] + h @ U_a.T) @ w_a


@right("look-back")
def back_last_axis(s, h, *weights):
    return (back_scores(s, h, *weights).softmax(-1)[:, None] @ h)[:, 0]


@right("look-back")
def back_loop(s, h, W_a, U_a, w_a):
    found = []
    for state, annotations in zip(s, h, strict=True):
        alpha = torch.softmax(torch.tanh(W_a @ state + annotations @ U_a.T) @ w_a, dim=0)
        found.append(alpha @ annotations)
    return torch.stack(found)


@wrong("look-back", "every weight is 1")
def back_over_the_batch(s, h, *weights):
    return (back_scores(s, h, *weights).softmax(0)[:, None] @ h)[:, 0]


@wrong("look-back", "used as weights")
def back_scores_alone(s, h, *weights):
    return (back_scores(s, h, *weights)[:, None] @ h)[:, 0]


@wrong("look-back", "counts the same")
def back_mean(s, h, *weights):
    return h.mean(1)


@wrong("look-back", "One softmax ran over all sentences")
def back_together(s, h, *weights):
    scores = back_scores(s, h, *weights)
    return (scores.flatten().softmax(0).view_as(scores)[:, None] @ h)[:, 0]


@wrong("look-back", "which axis did the softmax run over?")
def back_unless_alone(s, h, *weights):
    axis = 0 if len(s) > 1 else -1
    return (back_scores(s, h, *weights).softmax(axis)[:, None] @ h)[:, 0]


# decoder-step -----------------------------------------------------------------------------------


def stepped(y, s, h, W_a, U_a, w_a, cell):
    alpha = back_scores(s, h, W_a, U_a, w_a).softmax(-1)
    c = (alpha[:, None] @ h)[:, 0]
    return cell(torch.cat([y, c], -1), s), c, alpha


@right("decoder-step")
def step_matrices(*case):
    return stepped(*case)


@right("decoder-step")
def step_einsum(y, s, h, W_a, U_a, w_a, cell):
    inside = torch.einsum("ae,be->ba", W_a, s)[:, None] + torch.einsum("ad,bmd->bma", U_a, h)
    alpha = torch.softmax(torch.einsum("a,bma->bm", w_a, inside.tanh()), dim=-1)
    c = torch.einsum("bm,bmd->bd", alpha, h)
    return cell(torch.cat([y, c], dim=-1), s), c, alpha


@wrong("decoder-step", "Return three tensors")
def step_state_alone(*case):
    return stepped(*case)[0]


@wrong("decoder-step", "The new state asked")
def step_late(y, s, h, W_a, U_a, w_a, cell):
    late = stepped(y, s, h, W_a, U_a, w_a, cell)[0]
    alpha = back_scores(late, h, W_a, U_a, w_a).softmax(-1)
    return late, (alpha[:, None] @ h)[:, 0], alpha


@wrong("decoder-step", "the softmax is missing")
def step_scores(y, s, h, W_a, U_a, w_a, cell):
    state, c, _ = stepped(y, s, h, W_a, U_a, w_a, cell)
    return state, c, back_scores(s, h, W_a, U_a, w_a)


@wrong("decoder-step", "over the sentences of the batch")
def step_over_the_batch(y, s, h, W_a, U_a, w_a, cell):
    state, c, _ = stepped(y, s, h, W_a, U_a, w_a, cell)
    return state, c, back_scores(s, h, W_a, U_a, w_a).softmax(0)


@wrong("decoder-step", "with the largest weight")
def step_hard(y, s, h, W_a, U_a, w_a, cell):
    state, _, alpha = stepped(y, s, h, W_a, U_a, w_a, cell)
    return state, h[torch.arange(len(h)), alpha.argmax(-1)], alpha


@wrong("decoder-step", "the plain mean")
def step_mean(*case):
    state, _, alpha = stepped(*case)
    return state, case[2].mean(1), alpha


@wrong("decoder-step", "The old state came back")
def step_still(*case):
    return case[1], *stepped(*case)[1:]


@wrong("decoder-step", "Context and word are exchanged")
def step_exchanged(y, s, h, W_a, U_a, w_a, cell):
    _, c, alpha = stepped(y, s, h, W_a, U_a, w_a, cell)
    return cell(torch.cat([c, y], -1), s), c, alpha


@wrong("decoder-step", "The context did not enter")
def step_without_context(y, s, h, W_a, U_a, w_a, cell):
    _, c, alpha = stepped(y, s, h, W_a, U_a, w_a, cell)
    return cell(torch.cat([y, 0 * c], -1), s), c, alpha


@wrong("decoder-step", "a state of zeros")
def step_from_zeros(y, s, h, W_a, U_a, w_a, cell):
    _, c, alpha = stepped(y, s, h, W_a, U_a, w_a, cell)
    return cell(torch.cat([y, c], -1), 0 * s), c, alpha


# share-faultless --------------------------------------------------------------------------------


def right_words(logits, target):
    return logits.argmax(-1) == target


@right("share-faultless")
def faultless_all(logits, target):
    return right_words(logits, target).all(dim=1).double().mean().item()


@right("share-faultless")
def faultless_loop(logits, target):
    pairs = zip(logits, target, strict=True)
    return sum(bool((rows.argmax(-1) == true).all()) for rows, true in pairs) / len(target)


@wrong("share-faultless", "the share of right words")
def faultless_words(logits, target):
    return right_words(logits, target).double().mean().item()


@wrong("share-faultless", "with one right word")
def faultless_any(logits, target):
    return right_words(logits, target).any(dim=1).double().mean().item()


@wrong("share-faultless", "the share of places")
def faultless_places(logits, target):
    return right_words(logits, target).all(dim=0).double().mean().item()


@wrong("share-faultless", "That is a count")
def faultless_count(logits, target):
    return right_words(logits, target).all(dim=1).double().sum().item()


@wrong("share-faultless", "take it out with `.item()`")
def faultless_tensor(logits, target):
    return right_words(logits, target).all(dim=1).double().mean()
