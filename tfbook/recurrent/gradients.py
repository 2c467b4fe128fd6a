"""Where gradients go in a recurrent network: their norms, and the Jacobians of its steps.

Explained in: chapters/01_motivation, section "A recurrent network reads in order".
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import check_float, check_shape
from tfbook.recurrent.cells import Cell, State
from tfbook.recurrent.networks import check_sequence, unroll

__all__ = [
    "gradient_norms",
    "jacobian_products",
    "step_jacobians",
]


def gradient_norms(
    states: Sequence[Float[Tensor, "B E"]], loss: Float[Tensor, ""]
) -> Float[Tensor, "B N"]:
    """Measure how much the loss depends on each of a list of states: ‖∂loss/∂h_t‖₂.

    Pass the very tensors the loss was computed from, as :func:`unroll` returns them; for an LSTM
    choose one of the two, as in ``[c for h, c in states]``. The graph is kept.

    Args:
        states: N tensors (B, d_hidden).
        loss: one number.

    Returns:
        The norms (B, N), one for each sequence and token; 0 for a state the loss does not use.

    Raises:
        TypeError: if a state or the loss is no floating-point tensor.
        ValueError: if states are empty, differ in shape or carry no gradient, or the loss is more
            than one number.

    Source: [pascanu2013difficulty]
    Explained in: chapters/01_motivation, section "Why gradients vanish".
    """
    check_float("loss", loss)
    check_shape("loss", loss, (), "()")
    if not states:
        raise ValueError("states must hold at least one tensor, got none")
    for t, state in enumerate(states):
        if isinstance(state, tuple):
            raise TypeError(
                f"states[{t}] must be a tensor, got a pair; choose with [h for h, c in states]"
            )
        check_float(f"states[{t}]", state)
        check_shape(f"states[{t}]", state, states[0].shape, "of states[0]")
    for name, value in [("loss", loss), *((f"states[{t}]", s) for t, s in enumerate(states))]:
        if not value.requires_grad:
            raise ValueError(f"{name} carries no gradient: was it made under torch.no_grad()?")
    gradients = torch.autograd.grad(
        loss, list(states), retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.stack([g.norm(dim=-1) for g in gradients], dim=1)  # (B, N)


def step_jacobians(
    cell: Cell, x: Float[Tensor, "B N D"], state: State | None = None
) -> Float[Tensor, "B N S S"]:
    """Differentiate each step: J_t = ∂state_t/∂state_{t−1}, along the cell's own path.

    The state of an LSTM counts as one vector [h ; c], so S = 2 · d_hidden there and d_hidden
    otherwise. An Elman cell has J_t = diag(1 − h_t²) U.

    Args:
        cell: a cell of this module.
        x: inputs (B, N, d_input).
        state: the state before the first token; zeros when omitted.

    Returns:
        The Jacobians (B, N, S, S), detached.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape or device.

    Cost: N · S backward steps of the cell.

    Source: [bengio1994learning]
    Explained in: chapters/01_motivation, section "Why gradients vanish".
    """
    check_sequence(cell, x)
    size = cell.n_states * cell.d_hidden
    with torch.no_grad():
        before = cell.initial_state(x) if state is None else cell.check_state(state, x)
        tokens = cell.project(x)  # (B, N, gates · d_hidden)
        befores = [before, *unroll(cell, x, state)][: x.shape[1]]
        flat = [torch.cat(s, -1) if isinstance(s, tuple) else s for s in befores]
    if not flat:
        return x.new_zeros(x.shape[0], 0, size, size)

    def step(state: Tensor, token: Tensor) -> Tensor:
        parts = tuple(state.unsqueeze(0).split(cell.d_hidden, dim=-1))  # (1, E) each
        after = cell.step(token.unsqueeze(0), parts if len(parts) == 2 else parts[0])
        return (torch.cat(after, -1) if isinstance(after, tuple) else after).squeeze(0)  # (S,)

    over_both = torch.vmap(torch.vmap(torch.func.jacrev(step)))
    return over_both(torch.stack(flat, dim=1), tokens).detach()  # (B, N, S, S)


def jacobian_products(jacobians: Float[Tensor, "B N S S"]) -> Float[Tensor, "B N S S"]:
    """Multiply the steps' Jacobians: P_t = ∂state_N/∂state_t = J_N J_{N−1} ⋯ J_{t+1}.

    The last one is the identity. By the chain rule ∂loss/∂state_t = P_tᵀ ∂loss/∂state_N for a loss
    on the last state, so the singular values of P_t, ``torch.linalg.svdvals``, bound how much
    gradient reaches token t.

    Args:
        jacobians: J_1 … J_N, (B, N, S, S), from :func:`step_jacobians`.

    Returns:
        P_1 … P_N, (B, N, S, S).

    Raises:
        TypeError: if they are not floating point.
        ValueError: if they are not square or there are fewer than three dimensions.

    Source: [bengio1994learning]
    Explained in: chapters/01_motivation, section "Why gradients vanish".
    """
    check_float("jacobians", jacobians, min_dims=3)
    size = jacobians.shape[-1]
    check_shape("jacobians", jacobians, (*jacobians.shape[:-2], size, size), "(..., N, S, S)")
    if jacobians.shape[-3] == 0:
        return jacobians.clone()
    product = torch.eye(size, dtype=jacobians.dtype, device=jacobians.device)
    products = [product.expand_as(jacobians[..., 0, :, :])]
    for jacobian in reversed(jacobians.unbind(-3)[1:]):  # J_N first
        products.append(products[-1] @ jacobian)
    return torch.stack(products[::-1], dim=-3)  # (..., N, S, S)
