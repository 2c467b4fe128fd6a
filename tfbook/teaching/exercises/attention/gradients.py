"""The exercise of chapter 02 on the gradients of attention."""

import math
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, numbers, plain_attention


def attention_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grad_output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of attention by the formulas, without autograd.

    The forward pass is output = softmax(q kᵀ / √d) v, without a mask. `grad_output` is the
    gradient of a loss with respect to the output.

    q: (..., n, d). k: (..., m, d). v: (..., m, e). grad_output: (..., n, e). All have the same
    leading axes.
    Returns: the gradients of the loss with respect to q, k and v, in this order.
    """
    ...


def _backward_case(*batch: int, n: int, m: int, d: int, e: int) -> tuple[torch.Tensor, ...]:
    shapes = (n, d), (m, d), (m, e), (n, e)
    return tuple(numbers(*batch, *shape, seed=37 + i) for i, shape in enumerate(shapes))


def _wanted_gradients(*case: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the three gradients, from autograd through the formula of the output."""
    leaves = [x.clone().requires_grad_() for x in case[:3]]
    return torch.autograd.grad(plain_attention(*leaves), leaves, case[3])


def _slips(*case: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return what known slips make of the gradients of q and k."""
    q, k, v, grad = case
    root = math.sqrt(q.shape[-1])
    a = torch.softmax(q @ k.mT / root, -1)
    grad_a = grad @ v.mT
    scores = {
        "The softmax was skipped on the way back: the gradient of the weights was used as the "
        "gradient of the scores. Multiply it by the Jacobian diag(a) - a aᵀ, row by row.": grad_a,
        "The second half of the softmax Jacobian is missing: A∘dA still needs its row sum taken "
        "off, dS = A∘(dA - rowsum(A∘dA)).": a * grad_a,
        "A(1 - A) is only the diagonal of the softmax Jacobian. A score also lowers the other "
        "weights of its row: dS = A∘(dA - rowsum(A∘dA)).": a * (1 - a) * grad_a,
        "The sum in the softmax Jacobian ran over the queries. It runs along each row, over the "
        "keys.": a * (grad_a - (a * grad_a).sum(-2, keepdim=True)),
        "The row sum in the softmax Jacobian is of dA alone. It is the sum of A∘dA.":
            a * (grad_a - grad_a.sum(-1, keepdim=True)),
    }
    right = a * (grad_a - (a * grad_a).sum(-1, keepdim=True))
    slips = {words: (s @ k / root, s.mT @ q / root) for words, s in scores.items()}
    scale = "The scale is missing on the way back: the scores were q·k/√d, so their gradient is "
    slips[scale + "divided by √d too."] = right @ k, right.mT @ q
    return slips


def _three(result: Any) -> tuple[Any, ...]:
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise Wrong("Return three tensors: `return grad_q, grad_k, grad_v`.")
    return tuple(result)


def _backward_values(backward: Any) -> None:
    """The gradient of v is Aᵀ times the gradient of the output."""
    q, k, v, grad = case = _backward_case(n=3, m=3, d=2, e=5)
    a, unscaled = torch.softmax(q @ k.T / math.sqrt(2), -1), torch.softmax(q @ k.T, -1)
    wanted = _wanted_gradients(*case)
    expect(
        _three(backward(*case))[2],
        wanted[2],
        "The gradient of v is not Aᵀ dO.",
        what="The third gradient, of v,",
        mistakes={
            "The gradient of v used A where it needs Aᵀ: value j gathers what every query i sends "
            "back, Σᵢ A[i, j] dO[i].": a @ grad,
            "The weights were computed from scores without the scale 1/√d.": unscaled.T @ grad,
            "The gradients are in another order: return them in the order q, k, v.": wanted[:2],
        },
    )


def _backward_queries(backward: Any) -> None:
    """The gradient of q goes through the softmax and the scale."""
    case = _backward_case(n=3, m=3, d=2, e=5)
    wanted = _wanted_gradients(*case)
    expect(
        _three(backward(*case))[0],
        wanted[0],
        "The gradient of q is not dS k/√d.",
        what="The first gradient, of q,",
        mistakes={
            "The gradients of q and k are exchanged: return them in the order q, k, v.": wanted[1],
            **{words: slip[0] for words, slip in _slips(*case).items()},
        },
    )


def _backward_keys(backward: Any) -> None:
    """The gradient of k gathers what all queries send back."""
    q, k, v, grad = case = _backward_case(n=3, m=3, d=2, e=5)
    a = torch.softmax(q @ k.T / math.sqrt(2), -1)
    grad_a = grad @ v.T
    grad_s = a * (grad_a - (a * grad_a).sum(-1, keepdim=True))
    turned = "The gradient of k used dS where it needs dSᵀ: key j gathers from every query i."
    expect(
        _three(backward(*case))[1],
        _wanted_gradients(*case)[1],
        "The gradient of k is not dSᵀ q/√d.",
        what="The second gradient, of k,",
        mistakes={
            turned: grad_s @ q / math.sqrt(2),
            **{words: slip[1] for words, slip in _slips(*case).items()},
        },
    )


def _backward_shapes(backward: Any) -> None:
    """Numbers of queries and keys may differ, and leading axes are batch axes."""
    for batch in ((), (2,)):
        case = _backward_case(*batch, n=2, m=3, d=5, e=7)
        result = _three(backward(*case))
        for got, wanted, name in zip(result, _wanted_gradients(*case), "qkv", strict=True):
            expect(got, wanted, what=f"The gradient of {name}")


def _backward_without_autograd(backward: Any) -> None:
    """Autograd is not used."""

    class Refuse(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            if getattr(function, "__name__", "") in ("requires_grad_", "backward"):
                raise Wrong("Autograd was used. Write the gradients down as formulas of A and dO.")
            return function(*args, **(kwargs or {}))

    with Refuse(), torch.no_grad():
        backward(*_backward_case(n=2, m=3, d=5, e=7))


ATTENTION_BACKWARD = Exercise(
    name="attention-backward",
    title="The gradients of attention, by hand",
    level=3,
    section='chapters/02_attention_deeper, section "Gradients"',
    stub=attention_backward,
    properties=(
        _backward_values, _backward_queries, _backward_keys, _backward_shapes,
        _backward_without_autograd,
    ),
    hints=(
        "Compute the weights A again, then walk back: output → A and v, A → scores, scores → q "
        "and k. A product C = X Y sends back dX = dC Yᵀ and dY = Xᵀ dC.",
        "For one row a of A, da becomes ds = (diag(a) - a aᵀ) da, which is a∘(da - Σⱼ aⱼ daⱼ).",
        "Let the shapes decide which matrix is transposed: dv has the shape of v, dS that of A. "
        "Keep the axis of the row sum with `keepdim=True`, and divide dq and dk by the root.",
    ),
)

EXERCISES = (ATTENTION_BACKWARD,)
