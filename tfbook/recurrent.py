"""Recurrent networks, written to be read: cells, the loop over a sequence, and where gradients go.

A cell makes one step, ``cell(x, state) -> (output, state)``. :func:`unroll` repeats it along a
sequence, :class:`Recurrent` and :class:`Bidirectional` are layers made of it. Parameters have the
names, shapes and gate order of PyTorch's cells, so state dicts pass both ways.

The state of an Elman or GRU cell is h (B, d_hidden); that of an LSTM is the pair (h, c).

Explained in: chapters/01_motivation, section "A recurrent network reads in order".
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook.validate import (
    check_bool,
    check_count,
    check_float,
    check_same,
    check_shape,
    check_tensor,
)

__all__ = [
    "Bidirectional",
    "ElmanCell",
    "GRUCell",
    "LSTMCell",
    "Recurrent",
    "gradient_norms",
    "hidden",
    "jacobian_products",
    "step_jacobians",
    "unroll",
]

Pair = tuple[Float[Tensor, "B E"], Float[Tensor, "B E"]]
State = Float[Tensor, "B E"] | Pair


class _Cell(nn.Module):
    """What the three cells share: parameters as in PyTorch, checks, and one step in two halves.

    Everything that does not need the state, W x + b, is `project`; it can be computed for a whole
    sequence at once. `step` does the rest.
    """

    n_gates: int
    n_states = 1  # how many vectors the state is made of
    twin: type[nn.RNNCellBase]

    def __init__(self, d_input: int, d_hidden: int, *, bias: bool = True):
        """Make a cell with parameters drawn from ±1/√d_hidden."""
        super().__init__()
        check_count("d_input", d_input, minimum=1)
        check_count("d_hidden", d_hidden, minimum=1)
        check_bool("bias", bias)
        self.d_input, self.d_hidden = d_input, d_hidden
        rows = self.n_gates * d_hidden  # the gates' weights, stacked
        self.weight_ih = nn.Parameter(torch.empty(rows, d_input))
        self.weight_hh = nn.Parameter(torch.empty(rows, d_hidden))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, nn.Parameter(torch.empty(rows)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly from ±1/√d_hidden, as PyTorch does."""
        bound = self.d_hidden**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Name the sizes in the printed form of the module."""
        bias = "" if self.bias_ih is not None else ", bias=False"
        return f"{self.d_input}, {self.d_hidden}{bias}"

    def initial_state(self, x: Float[Tensor, "B *N D"]) -> State:
        """Return the state before the first step, zeros, for the batch and dtype of ``x``."""
        zeros = x.new_zeros(x.shape[0], self.d_hidden)
        return zeros if self.n_states == 1 else (zeros, zeros)

    def project(self, x: Float[Tensor, "B *N D"]) -> Float[Tensor, "B *N G"]:
        """Compute the part of the gates that does not need the state: W x + b_ih."""
        return nn.functional.linear(x, self.weight_ih, self.bias_ih)  # (B, …, gates · d_hidden)

    def recur(self, h: Float[Tensor, "B E"]) -> Float[Tensor, "B G"]:
        """Compute the part of the gates that needs the state: U h + b_hh."""
        return nn.functional.linear(h, self.weight_hh, self.bias_hh)  # (B, gates · d_hidden)

    def step(self, projected: Float[Tensor, "B G"], state: State) -> State:
        """Make one step from the projected input and the last state."""
        raise NotImplementedError

    def forward(
        self, x: Float[Tensor, "B D"], state: State | None = None
    ) -> tuple[Float[Tensor, "B E"], State]:
        """Read one input and return the output h, (B, d_hidden), and the new state.

        Args:
            x: one token for each sequence, (B, d_input).
            state: what the last step returned; zeros when omitted.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a wrong shape or device.
        """
        check_float("x", x)
        check_same(x=x, weight_ih=self.weight_ih)
        if x.ndim != 2 or x.shape[-1] != self.d_input:
            raise ValueError(
                f"x must have shape (B, d_input) = (B, {self.d_input}), got {tuple(x.shape)}; "
                "Recurrent and unroll take whole sequences"
            )
        state = self.initial_state(x) if state is None else self.check_state(state, x)
        state = self.step(self.project(x), state)
        return hidden(state), state

    def check_state(self, state: object, x: Tensor) -> State:
        """Return the state unchanged if it fits the cell and the batch of ``x``.

        Raises:
            TypeError: for a wrong type or dtype, such as one tensor where an LSTM needs a pair.
            ValueError: for a wrong shape or device.
        """
        parts = state if isinstance(state, tuple) else (state,)
        if len(parts) != self.n_states:
            wanted = "a pair (h, c)" if self.n_states == 2 else "one tensor h"
            got = f"a tuple of {len(parts)}" if isinstance(state, tuple) else type(state).__name__
            raise TypeError(f"state of {type(self).__name__} must be {wanted}, got {got}")
        for name, part in zip(("state h", "state c"), parts, strict=False):
            check_float(name, part)
            check_shape(name, part, (x.shape[0], self.d_hidden), "(B, d_hidden)")
            check_same(**{"x": x, name: part})
        return state

    @classmethod
    def from_torch(cls, cell: nn.RNNCellBase) -> "_Cell":
        """Copy one of PyTorch's cells of the same kind.

        Raises:
            TypeError: if it is not of that kind.
        """
        if not isinstance(cell, cls.twin):
            raise TypeError(f"cell must be nn.{cls.twin.__name__}, got {type(cell).__name__}")
        bias = cell.bias_ih is not None
        copy = cls(cell.input_size, cell.hidden_size, bias=bias, **cls._options(cell))
        copy.to(cell.weight_ih).load_state_dict(cell.state_dict())
        return copy

    def to_torch(self) -> nn.RNNCellBase:
        """Copy this cell into PyTorch's of the same kind."""
        bias = self.bias_ih is not None
        copy = self.twin(self.d_input, self.d_hidden, bias=bias, **self._options(self))
        copy.to(self.weight_ih).load_state_dict(self.state_dict())
        return copy

    @staticmethod
    def _options(cell: nn.Module) -> dict[str, str]:
        return {}


class ElmanCell(_Cell):
    """The plain recurrent cell: a layer that sees the input and its own last output.

    h_t = tanh(W x_t + b_ih + U h_{t−1} + b_hh)

    Args:
        d_input: size of x.
        d_hidden: size of h.
        bias: whether both biases exist; one would do, PyTorch has two.
        nonlinearity: "tanh", or "relu" in its place.

    Cost: 2 · d_hidden · (d_input + d_hidden) FLOPs a token.

    Source: [elman1990finding]
    Explained in: chapters/01_motivation, section "A recurrent network reads in order".
    """

    n_gates, twin = 1, nn.RNNCell

    def __init__(
        self, d_input: int, d_hidden: int, *, bias: bool = True, nonlinearity: str = "tanh"
    ):
        """Make a cell with parameters drawn from ±1/√d_hidden."""
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(d_input, d_hidden, bias=bias)
        self.nonlinearity = nonlinearity

    def step(self, projected: Float[Tensor, "B G"], state: State) -> State:
        """Make one step from the projected input and the last state."""
        activate = torch.tanh if self.nonlinearity == "tanh" else torch.relu
        return activate(projected + self.recur(state))  # (B, E)

    @staticmethod
    def _options(cell: nn.Module) -> dict[str, str]:
        return {"nonlinearity": cell.nonlinearity}


class GRUCell(_Cell):
    """The gated recurrent unit: two gates decide what of the old state is kept.

    r = σ(W_r x + U_r h + b_r)             reset: how much of h the candidate sees
    z = σ(W_z x + U_z h + b_z)             update: how much of h stays
    ĥ = tanh(W_n x + b_in + r ⊙ (U_n h + b_hn))
    h' = z ⊙ h + (1 − z) ⊙ ĥ

    As in PyTorch, r multiplies U_n h; in the paper it multiplies h itself. In some texts z and
    1 − z change places. Weights are stacked in the order r, z, n.

    Cost: 6 · d_hidden · (d_input + d_hidden) FLOPs a token.

    Source: [cho2014learning]
    Explained in: chapters/01_motivation, section "Why gradients vanish".
    """

    n_gates, twin = 3, nn.GRUCell

    def step(self, projected: Float[Tensor, "B G"], state: State) -> State:
        """Make one step from the projected input and the last state."""
        x_r, x_z, x_n = projected.chunk(3, dim=-1)  # (B, E) each
        h_r, h_z, h_n = self.recur(state).chunk(3, dim=-1)
        reset, update = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
        candidate = torch.tanh(x_n + reset * h_n)
        return update * state + (1 - update) * candidate  # (B, E)


class LSTMCell(_Cell):
    """Long short-term memory: a second state c that is only scaled and added to.

    i = σ(W_i x + U_i h + b_i)             input gate: what is written
    f = σ(W_f x + U_f h + b_f)             forget gate: what is kept
    g = tanh(W_g x + U_g h + b_g)          what could be written
    o = σ(W_o x + U_o h + b_o)             output gate: what is shown
    c' = f ⊙ c + i ⊙ g,   h' = o ⊙ tanh(c')

    The state is the pair (h, c). Weights are stacked in the order i, f, g, o; the forget gate's
    biases are ``bias_ih[d_hidden : 2 * d_hidden]`` and the same of ``bias_hh``.

    Cost: 8 · d_hidden · (d_input + d_hidden) FLOPs a token.

    Source: [hochreiter1997long]; the forget gate is from [gers2000learning].
    Explained in: chapters/01_motivation, section "Why gradients vanish".
    """

    n_gates, n_states, twin = 4, 2, nn.LSTMCell

    def step(self, projected: Float[Tensor, "B G"], state: State) -> State:
        """Make one step from the projected input and the last state."""
        h, c = state  # (B, E) each
        i, f, g, o = (projected + self.recur(h)).chunk(4, dim=-1)  # (B, E) each
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def hidden(state: State) -> Float[Tensor, "B E"]:
    """Return the part of a state that is the output: h itself, or h of (h, c).

    Explained in: chapters/01_motivation, section "A recurrent network reads in order".
    """
    return state[0] if isinstance(state, tuple) else state


def unroll(
    cell: _Cell,
    x: Float[Tensor, "B N D"],
    state: State | None = None,
    *,
    mask: Bool[Tensor, "B N"] | Bool[Tensor, "B 1 N"] | None = None,
    truncate: int | None = None,
) -> list[State]:
    """Run a cell along a sequence and return its state after each token.

    state_t = cell(x_t, state_{t−1}); where the mask is False, state_t = state_{t−1}.

    Args:
        cell: the cell of this module to repeat.
        x: inputs (B, N, d_input).
        state: the state before the first token; zeros when omitted.
        mask: True at real tokens, (B, N) or as :func:`tfbook.masks.padding_mask` gives it,
            (B, 1, N). Padding leaves the state as it is.
        truncate: cut the gradient after every so many tokens: values stay the same, and no
            gradient passes from token ``truncate`` into the state before it.

    Returns:
        A list of N states.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape or device, or ``truncate`` below 1.

    Cost: N steps that have to wait for one another.

    Source: truncation is from [williams1990efficient].
    Explained in: chapters/01_motivation, section "Backpropagation through time".
    """
    _check_sequence(cell, x)
    state = cell.initial_state(x) if state is None else cell.check_state(state, x)
    if truncate is not None:
        check_count("truncate", truncate, minimum=1)
    # Slices of one unbind share one backward; x[:, t] in a loop would cost O(N²).
    tokens = cell.project(x).unbind(1)  # N times (B, gates · d_hidden)
    states = []
    for t, (token, real) in enumerate(zip(tokens, _columns(mask, x), strict=True)):
        if truncate is not None and t and t % truncate == 0:
            state = _each(torch.Tensor.detach, state)
        stepped = cell.step(token, state)
        if real is not None:  # (B, 1)
            stepped = _each(lambda new, old, real=real: torch.where(real, new, old), stepped, state)
        state = stepped
        states.append(state)
    return states


class Recurrent(nn.Module):
    """A token mixer that reads in order: a cell along the sequence, h at each token.

    Args:
        cell: a cell of this module.
        fused: run PyTorch's compiled loop in place of the one written here. It gives the same
            numbers, faster, and takes no mask.

    Raises:
        TypeError: if the cell is not one of this module.

    Explained in: chapters/01_motivation, section "A recurrent network reads in order".
    """

    def __init__(self, cell: _Cell, *, fused: bool = False):
        """Make a layer around a cell, whose parameters are its own."""
        super().__init__()
        _check_cell(cell)
        check_bool("fused", fused)
        self.cell, self.fused = cell, fused

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: State | None = None,
        *,
        mask: Bool[Tensor, "B N"] | Bool[Tensor, "B 1 N"] | None = None,
    ) -> tuple[Float[Tensor, "B N E"], State]:
        """Read a sequence, or its next piece, and return h at each token and the last state.

        Args:
            x: (B, N, d_input).
            state: what the call for the piece before returned; zeros when omitted.
            mask: True at real tokens, (B, N) or (B, 1, N); at padding the last h is repeated.

        Returns:
            y (B, N, d_hidden) and the state after the last token.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a wrong shape or device, or a mask where ``fused`` is set.
        """
        _check_sequence(self.cell, x)
        if self.fused:
            return self._run_fused(x, state, mask)
        states = unroll(self.cell, x, state, mask=mask)
        if not states:
            state = self.cell.initial_state(x) if state is None else state
            return x.new_zeros(x.shape[0], 0, self.cell.d_hidden), state
        return torch.stack([hidden(s) for s in states], dim=1), states[-1]  # (B, N, E)

    def _run_fused(self, x, state, mask):
        if mask is not None:
            raise ValueError("fused=True takes no mask; use Recurrent(cell) for padded sequences")
        cell = self.cell
        state = cell.initial_state(x) if state is None else cell.check_state(state, x)
        if x.shape[0] == 0 or x.shape[1] == 0:  # PyTorch's loop refuses empty sequences
            return x.new_zeros(*x.shape[:2], cell.d_hidden), state
        parts = state if isinstance(state, tuple) else (state,)
        first = [part.unsqueeze(0) for part in parts]  # (1, B, E): one layer
        loop = {ElmanCell: torch.rnn_tanh, GRUCell: torch.gru, LSTMCell: torch.lstm}[type(cell)]
        if isinstance(cell, ElmanCell) and cell.nonlinearity == "relu":
            loop = torch.rnn_relu
        weights = list(cell.parameters())
        start = first if cell.n_states == 2 else first[0]
        # has_biases, layers, dropout, train, bidirectional, batch_first
        y, *last = loop(x, start, weights, len(weights) == 4, 1, 0.0, False, False, True)
        last = tuple(part.squeeze(0) for part in last)
        return y, last if cell.n_states == 2 else last[0]


class Bidirectional(nn.Module):
    """Two recurrent layers, one reading left to right and one right to left, side by side.

    y_j = [h→_j ; h←_j]: what is known at token j from both sides.

    Args:
        forwards: a cell for reading left to right.
        backwards: a cell for reading right to left.

    Raises:
        TypeError: if one is not a cell of this module.

    Source: [bahdanau2015neural]
    Explained in: chapters/01_motivation, section "Bahdanau's alignment".
    """

    def __init__(self, forwards: _Cell, backwards: _Cell):
        """Make a layer around two cells, whose parameters are its own."""
        super().__init__()
        self.forwards, self.backwards = Recurrent(forwards), Recurrent(backwards)

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        *,
        mask: Bool[Tensor, "B N"] | Bool[Tensor, "B 1 N"] | None = None,
    ) -> tuple[Float[Tensor, "B N S"], tuple[State, State]]:
        """Read a sequence both ways; there is no state to start from, it needs all of it.

        Args:
            x: (B, N, d_input).
            mask: True at real tokens, (B, N) or (B, 1, N).

        Returns:
            y (B, N, 2 · d_hidden), and the last state of each direction; that of the right-to-left
            one is its state at the first token.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a wrong shape or device.
        """
        ahead, last = self.forwards(x, mask=mask)  # (B, N, E)
        # Turned round, padding comes first, where it leaves the state at zero.
        turned = None if mask is None else mask.flip(-1)
        behind, first = self.backwards(x.flip(1), mask=turned)  # (B, N, E)
        return torch.cat([ahead, behind.flip(1)], dim=-1), (last, first)  # (B, N, 2E)


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
    cell: _Cell, x: Float[Tensor, "B N D"], state: State | None = None
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
    _check_sequence(cell, x)
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


def _each(function, *states: State) -> State:
    """Apply a function to the corresponding parts of some states."""
    if isinstance(states[0], tuple):
        return tuple(function(*parts) for parts in zip(*states, strict=True))
    return function(*states)


def _columns(mask: Tensor | None, x: Tensor) -> Iterator[Tensor | None]:
    """Yield which sequences have a real token at each place, (B, 1), or None without a mask."""
    if mask is None:
        return iter([None] * x.shape[1])
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean with True = a real token, got {mask.dtype}")
    if mask.device != x.device:
        raise ValueError(f"mask must be on the device of x, {x.device}, got {mask.device}")
    batch, length = x.shape[:2]
    if tuple(mask.shape) not in {(batch, length), (batch, 1, length)}:
        raise ValueError(
            f"mask must have shape (B, N) or (B, 1, N) with (B, N) = {(batch, length)}, "
            f"got {tuple(mask.shape)}; a recurrent network cannot look at chosen pairs of tokens"
        )
    return iter(mask.reshape(batch, length, 1).unbind(1))


def _check_cell(cell: object) -> None:
    if not isinstance(cell, _Cell):
        hint = "; convert it with from_torch" if isinstance(cell, nn.RNNCellBase) else ""
        raise TypeError(
            f"cell must be an ElmanCell, GRUCell or LSTMCell, got {type(cell).__name__}{hint}"
        )


def _check_sequence(cell: object, x: object) -> None:
    _check_cell(cell)
    check_float("x", x)
    check_same(x=x, weight_ih=cell.weight_ih)
    if x.ndim != 3 or x.shape[-1] != cell.d_input:
        raise ValueError(
            f"x must have shape (B, N, d_input) = (B, N, {cell.d_input}), got {tuple(x.shape)}"
        )
