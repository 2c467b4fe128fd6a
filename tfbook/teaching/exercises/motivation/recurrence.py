"""The exercises of chapter 01 on recurrent steps and on recurrences without a loop."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_gradients, numbers

# elman-step -------------------------------------------------------------------------------------


def elman_step(
    x: torch.Tensor, h: torch.Tensor, w_x: torch.Tensor, w_h: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Make one step of an Elman network, for a batch.

    The new state is tanh(W_x x + W_h h + b): the input and the old state, each through its own
    weights, and the hyperbolic tangent of the sum.

    x: (B, D), the inputs. h: (B, E), the old states. w_x: (E, D). w_h: (E, E). b: (E,).
    Returns: (B, E), the new states.
    """
    ...


def _elman_case(n: int, d: int, e: int) -> tuple[torch.Tensor, ...]:
    shapes = (n, d), (n, e), (e, d), (e, e), (e,)
    return tuple(numbers(*shape, seed=201 + i) for i, shape in enumerate(shapes))


def _elman_equation(step: Any) -> None:
    """The new state is tanh(W_x x + W_h h + b)."""
    x, h, w_x, w_h, b = case = _elman_case(2, 3, 3)
    given, kept = x @ w_x.T, h @ w_h.T
    total = given + kept + b
    turned = "a weight matrix has one row for each entry of its result, so a batch of rows needs "
    expect(
        step(*case),
        total.tanh(),
        "This is not tanh(W_x x + W_h h + b).",
        mistakes={
            "The tanh is missing: without it the state can grow without limit.": total,
            "The old state was not used: the network has no memory.": (given + b).tanh(),
            "The input was not used: the state follows from the old state alone.":
                (kept + b).tanh(),
            "The bias is missing.": (given + kept).tanh(),
            "The bias was added after the tanh. It belongs inside.": (given + kept).tanh() + b,
            f"W_h is transposed: {turned}`h @ w_h.T`.": (given + h @ w_h + b).tanh(),
            f"W_x is transposed: {turned}`x @ w_x.T`.": (x @ w_x + kept + b).tanh(),
            f"Both weight matrices are transposed: {turned}`w.T` on its right.":
                (x @ w_x + h @ w_h + b).tanh(),
            "The nonlinearity is a sigmoid. Elman's state goes through tanh here.":
                total.sigmoid(),
            "The nonlinearity is a ReLU. Elman's state goes through tanh here.": total.relu(),
            "Input and state were squashed one by one. Add first, then take one tanh.":
                (given + b).tanh() + kept.tanh(),
        },
    )


def _elman_sizes(step: Any) -> None:
    """Input and state may have different sizes."""
    for sizes in ((2, 5, 3), (1, 3, 7)):
        x, h, w_x, w_h, b = case = _elman_case(*sizes)
        expect(step(*case), (x @ w_x.T + h @ w_h.T + b).tanh())


def _elman_batch(step: Any) -> None:
    """Rows of the batch do not meet."""
    x, h, *weights = _elman_case(3, 2, 5)
    alone = step(x[1:2], h[1:2], *weights)
    expect(step(x, h, *weights)[1:2], alone.detach(), "A row changed with the rest of the batch.")


def _elman_gradients(step: Any) -> None:
    """Gradients reach the input, the state and the weights."""
    expect_gradients(step, **dict(zip(("x", "h", "w_x", "w_h", "b"), _elman_case(2, 3, 2),
                                      strict=True)))


ELMAN_STEP = Exercise(
    name="elman-step",
    title="One step of a recurrent network",
    level=1,
    section='chapters/01_motivation, section "A recurrent network reads in order"',
    stub=elman_step,
    properties=(_elman_equation, _elman_sizes, _elman_batch, _elman_gradients),
    hints=(
        "The batch stands in rows: each row of the result needs one row of x and one row of h.",
        "For a row vector, W x becomes `x @ W.T`. Add the two products and the bias.",
        "`torch.tanh(x @ w_x.T + h @ w_h.T + b)`.",
    ),
)

# lstm-step --------------------------------------------------------------------------------------


def lstm_step(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w_x: torch.Tensor, w_h: torch.Tensor,
    b: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make one step of an LSTM, for a batch.

    The rows of W_x x + W_h h + b are four blocks of size E, in the order i, f, g, o. The gates i,
    f and o go through a sigmoid, the candidate g through tanh. Then c' = f∘c + i∘g and
    h' = o∘tanh(c').

    x: (B, D). h: (B, E). c: (B, E), the cell. w_x: (4E, D). w_h: (4E, E). b: (4E,).
    Returns: the new h and the new c, in this order, each (B, E).
    """
    ...


def _lstm_case(n: int, d: int, e: int) -> tuple[torch.Tensor, ...]:
    shapes = (n, d), (n, e), (n, e), (4 * e, d), (4 * e, e), (4 * e,)
    return tuple(numbers(*shape, seed=211 + i) for i, shape in enumerate(shapes))


def _blocks(x: Any, h: Any, c: Any, w_x: Any, w_h: Any, b: Any) -> tuple[torch.Tensor, ...]:
    return (x @ w_x.T + h @ w_h.T + b).chunk(4, dim=-1)


def _lstm_right(*case: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, g, o = _blocks(*case)
    cell = f.sigmoid() * case[2] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _two(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong("Return two tensors: `return h, c`.")
    return tuple(result)


def _lstm_cell(step: Any) -> None:
    """The new cell is f∘c + i∘g."""
    case = _lstm_case(2, 3, 2)
    i, f, g, o = _blocks(*case)
    c = case[2]
    si, sf, sg = i.sigmoid(), f.sigmoid(), g.sigmoid()
    hidden, cell = _lstm_right(*case)
    expect(
        _two(step(*case))[1],
        cell,
        "The new cell is not f∘c + i∘g.",
        what="The second result, the cell,",
        mistakes={
            "The bias is missing: b is added to W_x x + W_h h.":
                _lstm_right(*case[:5], 0 * case[5])[1],
            "h and c are exchanged: return h first, then c.": hidden,
            "The forget gate and the input gate are exchanged: the blocks come in the order i, f, "
            "g, o.": si * c + sf * g.tanh(),
            "The blocks were read in the order i, f, o, g. They come as i, f, g, o.":
                sf * c + si * o.tanh(),
            "The input gate is missing: the candidate enters as i∘g.": sf * c + g.tanh(),
            "The forget gate is missing: the old cell stays as f∘c.": c + si * g.tanh(),
            "The candidate went through a sigmoid. It goes through tanh, so that the cell can "
            "also be lowered.": sf * c + si * sg,
            "The candidate went through a ReLU. There is no ReLU in an LSTM: it is tanh.":
                sf * c + si * g.relu(),
            "The candidate is not squashed: g goes through tanh.": sf * c + si * g,
            "The gates are not squashed: i, f and o go through a sigmoid.": f * c + i * g.tanh(),
            "The input gate was set to 1 - f. That couples the gates as a GRU does; an LSTM has "
            "an input gate of its own.": sf * c + (1 - sf) * g.tanh(),
            "The whole new cell went through tanh. It stays outside: nothing squashes the path "
            "from cell to cell.": cell.tanh(),
        },
    )


def _lstm_hidden(step: Any) -> None:
    """The new state is o∘tanh(c') of the new cell."""
    case = _lstm_case(2, 3, 2)
    o = _blocks(*case)[3].sigmoid()
    hidden, cell = _lstm_right(*case)
    expect(
        _two(step(*case))[0],
        hidden,
        "The new state is not o∘tanh(c').",
        what="The first result, the state,",
        mistakes={
            "The state was computed from the old cell. It shows the new one: o∘tanh(c').":
                o * case[2].tanh(),
            "The tanh around the cell is missing: h' = o∘tanh(c').": o * cell,
            "The output gate is missing: h' = o∘tanh(c').": cell.tanh(),
            "The tanh stands outside: it is o∘tanh(c'), not tanh(o∘c').": (o * cell).tanh(),
            "The cell went through a sigmoid on its way out: it is tanh.": o * cell.sigmoid(),
        },
    )


def _lstm_sizes(step: Any) -> None:
    """Input and state may have different sizes."""
    for sizes in ((3, 5, 2), (1, 2, 7)):
        case = _lstm_case(*sizes)
        for got, wanted in zip(_two(step(*case)), _lstm_right(*case), strict=True):
            expect(got, wanted)


def _lstm_carousel(step: Any) -> None:
    """With open forget gates and closed input gates the cell stays, and so does its gradient."""
    x, h, c, w_x, w_h, b = _lstm_case(1, 2, 3)
    b = torch.tensor([-90.0, 90.0, 0.0, 0.0], dtype=b.dtype).repeat_interleave(3)
    start = c.clone().requires_grad_()
    cell = start
    for _ in range(20):
        h, cell = _two(step(x, h, cell, 0 * w_x, 0 * w_h, b))
    expect(cell, c)
    expect(
        torch.autograd.grad(cell.sum(), start, allow_unused=True)[0], torch.ones_like(c),
        "After 20 steps the gradient of the cell with respect to the first cell should be 1.",
        what="The gradient",
    )


LSTM_STEP = Exercise(
    name="lstm-step",
    title="One step of an LSTM",
    level=2,
    section='chapters/01_motivation, section "Why gradients vanish"',
    stub=lstm_step,
    properties=(_lstm_cell, _lstm_hidden, _lstm_sizes, _lstm_carousel),
    hints=(
        "One sum W_x x + W_h h + b gives all four blocks; cut it along the last axis.",
        "Gates are sigmoids, what is stored is a tanh. The cell changes by a product and a sum "
        "only, and the state is computed from the new cell.",
        "`i, f, g, o = (x @ w_x.T + h @ w_h.T + b).chunk(4, dim=-1)`, then "
        "`c = f.sigmoid() * c + i.sigmoid() * g.tanh()` and `h = o.sigmoid() * c.tanh()`.",
    ),
)

# parallel-scan ----------------------------------------------------------------------------------


def parallel_scan(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Run a linear recurrence without a loop over the steps.

    The states are h_t = a_t∘h_(t-1) + b_t, for t = 0, 1, ..., N-1, with h_(-1) = 0. The number of
    tensor operations has to grow like log₂ N, and memory like N.

    a: (N, E). b: (N, E). N need not be a power of two, and entries of a may be 0.
    Returns: (N, E), all states.
    """
    ...


def _looped(a: torch.Tensor, b: torch.Tensor, start: float = 0.0) -> torch.Tensor:
    h, states = torch.full_like(b[0], start), []
    for factor, term in zip(a, b, strict=True):
        h = factor * h + term
        states.append(h)
    return torch.stack(states)


def _doubled(a: torch.Tensor, b: torch.Tensor, *, exchanged: bool) -> torch.Tensor:
    """Combine pairs at distances 1, 2, 4, ...; `exchanged` composes them in the wrong order."""
    step = 1
    while step < len(a):
        early, late = (a[:-step], b[:-step]), (a[step:], b[step:])
        joined = early[0] * late[1] + early[1] if exchanged else late[0] * early[1] + late[1]
        a = torch.cat([a[:step], early[0] * late[0]])
        b = torch.cat([b[:step], joined])
        step *= 2
    return b


def _rolled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Double the distance like `_doubled`, with shifts that go around."""
    step = 1
    while step < len(a):
        a, b = a * a.roll(step, 0), a * b.roll(step, 0) + b
        step *= 2
    return b


def _scan_case(n: int, e: int) -> tuple[torch.Tensor, torch.Tensor]:
    return numbers(n, e, seed=221), numbers(n, e, seed=222)


def _scan_values(scan: Any) -> None:
    """The states are those of the loop."""
    a, b = _scan_case(4, 2)
    flipped = torch.cat([torch.ones_like(a[:1]), a[:-1]])
    one_round = torch.cat([b[:1], a[1:] * b[:-1] + b[1:]])
    right = _looped(a, b)
    expect(
        scan(a, b),
        right,
        "The states are not h_t = a_t∘h_(t-1) + b_t.",
        mistakes={
            "The factors a were not used: this is the running sum of b.": b.cumsum(0),
            "The factor of the step before was used: h_t takes a_t, not a_(t-1).":
                _looped(flipped, b),
            "The pairs are composed in the wrong order. First (a₁, b₁), then (a₂, b₂) gives "
            "(a₂a₁, a₂b₁ + b₂): the later factor multiplies the earlier term.":
                _doubled(a, b, exchanged=True),
            "Only one round was made: after it a state knows its own step and the one before. Go "
            "on with distances 2, 4, 8, ...": one_round,
            "The recurrence starts from 1. It starts from h_(-1) = 0.": _looped(a, b, 1.0),
            "The shift goes around: what left at the end came in at the front. Nothing stands "
            "before the first step, so the first `distance` steps stay as they are.":
                (_rolled(a, b), a * b.roll(1, 0) + b),
            "The recurrence ran from the end to the beginning.": _looped(a.flip(0), b.flip(0)),
            "The states are one step late: h_0 is b_0.":
                torch.cat([torch.zeros_like(b[:1]), right[:-1]]),
            "The result holds the last state alone. Return the states of all steps.": right[-1],
        },
    )


def _scan_lengths(scan: Any) -> None:
    """The number of steps need not be a power of two."""
    for n in (1, 2, 3, 5, 7, 13):
        a, b = _scan_case(n, 3)
        a[a == 0] = 0.5  # zeros have a property of their own
        expect(
            scan(a, b), _looped(a, b),
            f"With {n} {'step' if n == 1 else 'steps'} the states are not those of the loop.",
        )


def _scan_zeros(scan: Any) -> None:
    """A factor of 0 forgets what was before, and long products may underflow."""
    a, b = _scan_case(5, 2)
    a[2] = 0.0
    small = torch.full((400, 1), 0.01, dtype=torch.float64)
    for factors, terms in ((a, b), (small, numbers(400, 1, seed=223))):
        expect(
            scan(factors, terms), _looped(factors, terms),
            "Do not divide by products of the factors: a product can be 0, or too small for a "
            "floating-point number, and the recurrence is still well defined.",
        )


class _Count(TorchFunctionMode):
    """Counts the tensor operations and remembers the largest result."""

    calls = largest = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        result = function(*args, **(kwargs or {}))
        self.calls += 1
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        return result


def _scan_rounds(scan: Any) -> None:
    """Operations grow like the logarithm of the number of steps, memory like their number."""
    counts = []
    for n in (64, 1024):
        a, b = _scan_case(n, 2)
        with _Count() as count, torch.no_grad():
            result = scan(a, b)
        counts.append(count.calls)
        expect(result, _looped(a, b))
        if count.largest > 8 * a.numel():
            raise Wrong(
                f"For {n} steps a tensor of {count.largest} numbers was made: a matrix of all "
                "pairs of steps. That is quadratic work. Combine neighbours instead, then pairs "
                "of pairs."
            )
    if counts[1] > 3 * counts[0]:
        raise Wrong(
            f"64 steps took {counts[0]} tensor operations and 1024 steps {counts[1]}: the steps "
            "are made one after another. With pairs, then pairs of pairs, 16 times as many steps "
            "need four more rounds.",
            given={"number of steps": 1024}, got=counts[1], wanted=f"at most {3 * counts[0]}",
        )


def _scan_gradients(scan: Any) -> None:
    """Gradients reach the factors and the terms."""
    a, b = _scan_case(5, 2)
    expect_gradients(scan, a=a, b=b)


PARALLEL_SCAN = Exercise(
    name="parallel-scan",
    title="A recurrence without a loop",
    level=3,
    section='chapters/01_motivation, section "One step after another"',
    stub=parallel_scan,
    properties=(_scan_values, _scan_lengths, _scan_zeros, _scan_rounds, _scan_gradients),
    hints=(
        "One step is the map h → a∘h + b. Two steps in a row are again a map of this form: with "
        "which a and b?",
        "First (a₁, b₁), then (a₂, b₂) is (a₂a₁, a₂b₁ + b₂). Compose each step with the one "
        "before it, then with what stands 2, 4, 8, ... steps before.",
        "While step < N: `b = cat([b[:step], a[step:] * b[:-step] + b[step:]])`, "
        "`a = cat([a[:step], a[step:] * a[:-step]])`, `step = 2 * step`. Compute b first.",
    ),
)

EXERCISES = (ELMAN_STEP, LSTM_STEP, PARALLEL_SCAN)
