"""The exercises of chapter 01 on backpropagation through time."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, numbers

# jacobian-product -------------------------------------------------------------------------------


def jacobian_product(states: torch.Tensor, w_h: torch.Tensor) -> torch.Tensor:
    """Compute how the last state of an Elman network depends on its first one.

    The states follow h_t = tanh(W_x x_t + W_h h_(t-1) + b), so one step has the Jacobian
    ∂h_t/∂h_(t-1) = diag(1 - h_t²) W_h. The result is ∂h_N/∂h_0, the product of all of them.

    states: (N+1, E), the states h_0, h_1, ..., h_N, after the tanh. w_h: (E, E).
    Returns: (E, E), with ∂h_N[i]/∂h_0[j] in row i and column j.
    """
    ...


def _states(n: int, e: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states with one decimal between -0.9 and 0.9, and weights."""
    return numbers(n + 1, e, seed=251).clamp(-0.9, 0.9), numbers(e, e, seed=252)


def _chain(steps: Iterable[torch.Tensor], e: int) -> torch.Tensor:
    product = torch.eye(e, dtype=torch.float64)
    for step in steps:  # the first step first: later ones multiply from the left
        product = step @ product
    return product


def _slopes(states: torch.Tensor) -> torch.Tensor:
    return torch.diag_embed(1 - states[1:] ** 2)


def _jacobian_one_step(jacobian: Any) -> None:
    """One step gives diag(1 - h_1²) W_h."""
    states, w_h = _states(1, 3)
    first, last = states
    expect(
        jacobian(states, w_h),
        _slopes(states)[0] @ w_h,
        "This is not diag(1 - h_1²) W_h.",
        mistakes={
            "The slope of the tanh is missing: row i of W_h is multiplied by 1 - h[i]².": w_h,
            "The slope was taken at the old state. It belongs to the state that the step makes: "
            "1 - h_1².": torch.diag(1 - first**2) @ w_h,
            "The slope multiplies the columns of W_h. It multiplies the rows, one for each entry "
            "of the new state.": w_h @ torch.diag(1 - last**2),
            "The slope of tanh at a state h = tanh(z) is 1 - h², not 1 - h.":
                torch.diag(1 - last) @ w_h,
            "The states are already after the tanh: the slope is 1 - h², not 1 - tanh(h)².":
                torch.diag(1 - last.tanh() ** 2) @ w_h,
            "The result is transposed: rows belong to the last state, columns to the first. (The "
            "transposed matrix is what carries a gradient back.)": (_slopes(states)[0] @ w_h).T,
        },
    )


def _jacobian_several(jacobian: Any) -> None:
    """Several steps multiply, the later ones from the left."""
    states, w_h = _states(3, 2)
    steps = [slope @ w_h for slope in _slopes(states)]
    mean = torch.stack(steps).mean(0)
    expect(
        jacobian(states, w_h),
        _chain(steps, 2),
        "This is not J_N ⋯ J_2 J_1 with J_t = diag(1 - h_t²) W_h.",
        mistakes={
            "The product runs in the wrong order: the Jacobian of the last step stands on the "
            "left.": _chain(steps[::-1], 2),
            "The first state got a factor too: h_0 was not made by a step. N steps have N "
            "factors, of h_1 to h_N.":
                _chain(steps, 2) @ torch.diag(1 - states[0] ** 2) @ w_h,
            "The factors are those of h_N, h_0, h_1, ...: an index of -1 goes around to the last "
            "state. Step t makes h_t, row t of `states`.":
                _chain((torch.diag(1 - h**2) @ w_h for h in states.roll(1, 0)[:-1]), 2),
            "The last step is missing: h_N has a factor too.": _chain(steps[:-1], 2),
            "The first step is missing: the product starts with h_1.": _chain(steps[1:], 2),
            "The Jacobians were added. The chain rule multiplies them.": torch.stack(steps).sum(0),
            "One average Jacobian was raised to a power. Each step has its own.":
                torch.linalg.matrix_power(mean, 3),
            "The Jacobians were multiplied entry by entry. Use the matrix product.":
                steps[0] * steps[1] * steps[2],
        },
    )


def _jacobian_none(jacobian: Any) -> None:
    """No step gives the identity."""
    states, w_h = _states(0, 3)
    expect(
        jacobian(states, w_h), torch.eye(3, dtype=torch.float64),
        "With a single state nothing happened: h_0 depends on itself by the identity.",
    )


def _jacobian_autograd(jacobian: Any) -> None:
    """Autograd through a real network agrees."""
    w_h, start, inputs = (numbers(*s, seed=253 + i) for i, s in enumerate(((5, 5), (5,), (7, 5))))
    seen: list[torch.Tensor] = []

    def run(h: torch.Tensor) -> torch.Tensor:
        seen[:] = [h]
        for x in inputs:
            seen.append(torch.tanh(w_h @ seen[-1] + x))
        return seen[-1]

    wanted = torch.autograd.functional.jacobian(run, start)
    states = torch.stack([h.detach() for h in seen])
    expect(jacobian(states, w_h), wanted, tolerance=1e-9)


JACOBIAN_PRODUCT = Exercise(
    name="jacobian-product",
    title="What is left of the first state?",
    level=2,
    section='chapters/01_motivation, section "Why gradients vanish"',
    stub=jacobian_product,
    properties=(_jacobian_one_step, _jacobian_several, _jacobian_none, _jacobian_autograd),
    hints=(
        "Start from the identity and go through the states h_1 to h_N.",
        "diag(s) W multiplies row i of W by s[i]: with broadcasting, `s[:, None] * w`.",
        "For each h in `states[1:]`: `product = (1 - h**2)[:, None] * (w_h @ product)`.",
    ),
)

# truncated-gradient -----------------------------------------------------------------------------


def truncated_gradient(
    x: torch.Tensor, w_x: torch.Tensor, w_h: torch.Tensor, k: int
) -> torch.Tensor:
    """Compute the gradient of a loss with respect to W_h by truncated backpropagation.

    The network is h_t = tanh(W_x x_t + W_h h_(t-1)) for t = 1, ..., N, with h_0 = 0. The loss is
    the sum of the entries of h_N. Its gradient flows back through the last k steps only: the state
    h_(N-k) counts as a constant. All N steps are made on the way forward. Autograd is allowed.

    x: (N, D). w_x: (E, D). w_h: (E, E). k: number of steps, at least 1; if it is N or more, the
    gradient is the full one.
    Returns: (E, E), the gradient with respect to w_h.
    """
    ...


def _truncated_case(n: int, d: int, e: int) -> tuple[torch.Tensor, ...]:
    shapes = (n, d), (e, d), (e, e)
    return tuple(numbers(*shape, seed=261 + i) * 0.5 for i, shape in enumerate(shapes))


def _cut(x: torch.Tensor, w_x: torch.Tensor, w_h: torch.Tensor, cuts: set[int]) -> torch.Tensor:
    """Return the gradient when the states h_t with t in `cuts` are constants."""
    weight = w_h.clone().requires_grad_()
    h = torch.zeros(len(w_h), dtype=x.dtype)
    for t, row in enumerate(x):
        h = torch.tanh(w_x @ row + weight @ (h.detach() if t in cuts else h))
    return torch.autograd.grad(h.sum(), weight)[0]


def _truncated_values(gradient: Any) -> None:
    """The gradient is that of the last k steps, from the state that N steps have made."""
    case = x, w_x, w_h = _truncated_case(8, 2, 2)
    cut = "the gradient stops at h_(N-k), so k steps are differentiated."
    expect(
        gradient(*case, 5),
        _cut(*case, {3}),
        "This is not the gradient through the last k steps.",
        mistakes={
            "This is the full gradient: nothing was cut. The state h_(N-k) counts as a constant.":
                _cut(*case, set()),
            "The last k steps were run from a state of zeros. Truncation cuts the gradient, not "
            "the memory: all N steps are made on the way forward.": _cut(x[3:], w_x, w_h, set()),
            f"One step too many was differentiated: {cut}": _cut(*case, {2}),
            f"One step is missing: {cut}": _cut(*case, {4}),
            "The cut is k steps after the beginning. Count back from the end, where the loss is.":
                _cut(*case, {5}),
            "Only the first k steps were made. The loss is at the end.":
                _cut(x[:5], w_x, w_h, set()),
            "The result is transposed: row i, column j belongs to the weight w_h[i, j].":
                _cut(*case, {3}).T,
        },
    )


def _truncated_numbers_of_steps(gradient: Any) -> None:
    """Any number of steps from 1 to N."""
    case = _truncated_case(5, 3, 2)
    for k in (1, 3, 4, 5):
        expect(
            gradient(*case, k), _cut(*case, {5 - k}),
            f"With k = {k} and N = 5 this is not the gradient through the last k steps.",
        )


def _truncated_long(gradient: Any) -> None:
    """More steps than there are give the full gradient."""
    case = _truncated_case(3, 2, 5)
    expect(
        gradient(*case, 7), _cut(*case, set()),
        "With k larger than N nothing is cut: N - k is negative then, and a slice or an index "
        "that starts at a negative number counts from the end.",
    )


TRUNCATED_GRADIENT = Exercise(
    name="truncated-gradient",
    title="Cut the gradient, keep the state",
    level=2,
    section='chapters/01_motivation_deeper, section "Backpropagation through time"',
    stub=truncated_gradient,
    properties=(_truncated_values, _truncated_numbers_of_steps, _truncated_long),
    hints=(
        "On the way forward nothing changes. At which step is the state cut off from its past?",
        "`h.detach()` is the same state without a past. With the steps counted from 0, step t "
        "starts from h_t: cut where t = N - k.",
        "Make a leaf, `w = w_h.detach().clone().requires_grad_()`; in the loop, "
        "`if t == len(x) - k: h = h.detach()`; then `torch.autograd.grad(h.sum(), w)[0]`.",
    ),
)

# bptt-by-hand -----------------------------------------------------------------------------------


def bptt_by_hand(
    x: torch.Tensor, states: torch.Tensor, w_h: torch.Tensor, grad_states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of an Elman network by the formulas, without autograd.

    The network is h_t = tanh(W_x x_t + W_h h_(t-1) + b) for t = 1, ..., N. A loss is made of the
    outputs of all steps; `grad_states` holds what each step's own output sends back to its state,
    without the part that comes through later states.

    x: (N, D), the inputs x_1, ..., x_N. states: (N+1, E), the states h_0, h_1, ..., h_N.
    w_h: (E, E). grad_states: (N, E), in row t - 1 the direct gradient with respect to h_t.
    Returns: the gradients of the loss with respect to W_x (E, D), W_h (E, E) and b (E,).
    """
    ...


def _bptt_case(n: int, d: int, e: int) -> tuple[torch.Tensor, ...]:
    """Return x, states, w_h, the direct gradients, w_x and b; the states belong to the rest."""
    shapes = (n, d), (e, e), (n, e), (e, d), (e,), (e,)
    x, w_h, grad, w_x, b, h = (numbers(*s, seed=271 + i) for i, s in enumerate(shapes))
    states = [h.tanh()]
    for row in x:
        states.append(torch.tanh(w_x @ row + w_h @ states[-1] + b))
    return x, torch.stack(states), w_h, grad, w_x, b


def _bptt_wanted(*case: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the three gradients, from autograd through the network."""
    x, states, w_h, grad, w_x, b = case
    leaves = [w.clone().requires_grad_() for w in (w_x, w_h, b)]
    h, loss = states[0], torch.zeros((), dtype=x.dtype)
    for row, direct in zip(x, grad, strict=True):
        h = torch.tanh(leaves[0] @ row + leaves[1] @ h + leaves[2])
        loss = loss + h @ direct
    return torch.autograd.grad(loss, leaves)


def _deltas(
    states: torch.Tensor, w_h: torch.Tensor, grad: torch.Tensor, *, carry: torch.Tensor,
    slope: torch.Tensor | None = None, direct: bool = True,
) -> torch.Tensor:
    """Walk back: δ_t = (direct_t + Cᵀ δ_(t+1))∘slope_t, with C the matrix that carries back."""
    slope = 1 - states[1:] ** 2 if slope is None else slope
    delta, rows = torch.zeros_like(grad[0]), []
    for t in reversed(range(len(grad))):
        own = grad[t] if direct or t == len(grad) - 1 else 0.0
        delta = (own + carry.T @ delta) * slope[t]
        rows.append(delta)
    return torch.stack(rows[::-1])


def _bptt_slips(*case: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what known slips make of the δ of all steps."""
    _, states, w_h, grad, *_ = case
    ones = torch.ones_like(grad)
    return {
        "Nothing is carried back from later states: each step got the gradient of its own output "
        "alone. What reaches h_t is grad_states[t - 1] plus W_hᵀ δ_(t+1).":
            _deltas(states, w_h, grad, carry=0 * w_h),
        "The gradient was carried back with W_h. It needs the transposed matrix: W_hᵀ δ_(t+1).":
            _deltas(states, w_h, grad, carry=w_h.T),
        "The slope of the tanh is missing: multiply by 1 - h_t².":
            _deltas(states, w_h, grad, carry=w_h, slope=ones),
        "The slope was taken at the old state: step t has the slope 1 - h_t², not 1 - h_(t-1)².":
            _deltas(states, w_h, grad, carry=w_h, slope=1 - states[:-1] ** 2),
        "Only the output of the last step was counted. Each step's own gradient enters on the "
        "way back.": _deltas(states, w_h, grad, carry=w_h, direct=False),
        "The gradient was carried back without W_h: what reaches h_t is W_hᵀ δ_(t+1).":
            _deltas(states, w_h, grad, carry=torch.eye(len(w_h), dtype=w_h.dtype)),
    }


def _three(result: Any) -> tuple[Any, ...]:
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise Wrong("Return three tensors: `return grad_w_x, grad_w_h, grad_b`.")
    return tuple(result)


def _bptt_bias(backward: Any) -> None:
    """The gradient of b is the sum of δ_t, with δ_t = (direct + W_hᵀ δ_(t+1))∘(1 - h_t²)."""
    case = _bptt_case(3, 2, 2)
    deltas = _deltas(case[1], case[2], case[3], carry=case[2])
    expect(
        _three(backward(*case[:4]))[2],
        _bptt_wanted(*case)[2],
        "The gradient of b is not the sum of δ_t.",
        what="The third gradient, of b,",
        mistakes={
            **{words: slip.sum(0) for words, slip in _bptt_slips(*case).items()},
            "Only the last step was counted. The same weights are used at each step: their "
            "gradient is the sum over all steps.": deltas[-1],
            "Only the first step was counted. The same weights are used at each step: their "
            "gradient is the sum over all steps.": deltas[0],
            "The mean over the steps came back. The gradient is the sum.": deltas.mean(0),
        },
    )


def _bptt_recurrent(backward: Any) -> None:
    """The gradient of W_h is Σ_t δ_t h_(t-1)ᵀ."""
    case = _bptt_case(3, 2, 2)
    states = case[1]
    deltas = _deltas(states, case[2], case[3], carry=case[2])
    expect(
        _three(backward(*case[:4]))[1],
        _bptt_wanted(*case)[1],
        "The gradient of W_h is not Σ_t δ_t h_(t-1)ᵀ.",
        what="The second gradient, of W_h,",
        mistakes={
            "δ_t was paired with h_t. W_h multiplies the state before: h_(t-1).":
                deltas.T @ states[1:],
            "The first step was paired with a state from the other end: an index of -1 and `roll` "
            "go around. It begins at h_0, row 0 of `states`.":
                (deltas.T @ states[1:].roll(1, 0), deltas.T @ states.roll(1, 0)[:-1]),
            "The gradient of W_h is transposed: row i belongs to δ_t[i], column j to h_(t-1)[j].":
                states[:-1].T @ deltas,
            "The gradients of W_x and W_h are exchanged: return them in the order W_x, W_h, b.":
                deltas.T @ case[0],
        },
    )


def _bptt_input(backward: Any) -> None:
    """The gradient of W_x is Σ_t δ_t x_tᵀ."""
    case = _bptt_case(3, 2, 2)
    deltas = _deltas(case[1], case[2], case[3], carry=case[2])
    expect(
        _three(backward(*case[:4]))[0],
        _bptt_wanted(*case)[0],
        "The gradient of W_x is not Σ_t δ_t x_tᵀ.",
        what="The first gradient, of W_x,",
        mistakes={
            "The gradient of W_x is transposed: row i belongs to δ_t[i], column j to x_t[j].":
                case[0].T @ deltas,
            "The inputs are one step off: step t has the input x_t, row t - 1 of x.":
                deltas[:-1].T @ case[0][1:],
            "The inputs are one step off, and the first step was paired with the last input: an "
            "index of -1 and `roll` go around. Step t has row t - 1 of x.":
                deltas.T @ case[0].roll(1, 0),
        },
    )


def _bptt_sizes(backward: Any) -> None:
    """Inputs and states may have different sizes, and the sequence any length."""
    for sizes in ((1, 2, 3), (5, 3, 2), (11, 2, 7)):
        case = _bptt_case(*sizes)
        for got, wanted, name in zip(
            _three(backward(*case[:4])), _bptt_wanted(*case), ("W_x", "W_h", "b"), strict=True
        ):
            expect(got, wanted, what=f"The gradient of {name}")


def _bptt_without_autograd(backward: Any) -> None:
    """Autograd is not used."""

    class Refuse(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            if getattr(function, "__name__", "") in ("requires_grad_", "backward"):
                raise Wrong("Autograd was used. Walk back through the steps with the formulas.")
            return function(*args, **(kwargs or {}))

    with Refuse(), torch.no_grad():
        backward(*_bptt_case(2, 3, 2)[:4])


BPTT_BY_HAND = Exercise(
    name="bptt-by-hand",
    title="Backpropagation through time, by hand",
    level=3,
    section='chapters/01_motivation_deeper, section "Backpropagation through time"',
    stub=bptt_by_hand,
    properties=(_bptt_bias, _bptt_recurrent, _bptt_input, _bptt_sizes, _bptt_without_autograd),
    hints=(
        "Go through the steps from the last to the first, and keep one vector: the gradient with "
        "respect to what stands inside the tanh, δ_t.",
        "What reaches h_t comes from two sides: from its own output, and from the next step as "
        "W_hᵀ δ_(t+1). Multiply the sum by the slope 1 - h_t².",
        "In the loop: `delta = (grad_states[t - 1] + w_h.T @ delta) * (1 - states[t]**2)`, then "
        "add `torch.outer(delta, x[t - 1])`, `torch.outer(delta, states[t - 1])` and `delta`.",
    ),
)

EXERCISES = (JACOBIAN_PRODUCT, TRUNCATED_GRADIENT, BPTT_BY_HAND)
