"""The step repeated along a sequence: the loop itself, layers made of it, both directions.

Explained in: chapters/01_motivation, section "A recurrent network reads in order".
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook._checks import check_bool, check_float, check_number, check_same, check_tensor
from tfbook.recurrent.cells import Cell, ElmanCell, GRUCell, LSTMCell, State, check_cell, hidden

__all__ = [
    "Bidirectional",
    "Recurrent",
    "unroll",
]


def unroll(
    cell: Cell,
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
        mask: True at real tokens, (B, N) or as :func:`tfbook.attention.padding_mask` gives it,
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
    Explained in: chapters/01_motivation_deeper, section "Backpropagation through time".
    """
    check_sequence(cell, x)
    state = cell.initial_state(x) if state is None else cell.check_state(state, x)
    if truncate is not None:
        check_number("truncate", truncate, 1, whole=True)
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

    def __init__(self, cell: Cell, *, fused: bool = False):
        """Make a layer around a cell, whose parameters are its own."""
        super().__init__()
        check_cell(cell)
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
        check_sequence(self.cell, x)
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

    def __init__(self, forwards: Cell, backwards: Cell):
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


def check_sequence(cell: object, x: object) -> None:
    check_cell(cell)
    check_float("x", x)
    check_same(x=x, weight_ih=cell.weight_ih)
    if x.ndim != 3 or x.shape[-1] != cell.d_input:
        raise ValueError(
            f"x must have shape (B, N, d_input) = (B, N, {cell.d_input}), got {tuple(x.shape)}"
        )
