"""One step of a recurrent network: ``cell(x, state) -> (output, state)``, Elman, GRU and LSTM.

The state of an Elman or GRU cell is h (B, d_hidden); that of an LSTM is the pair (h, c).

Explained in: chapters/01_motivation, section "A recurrent network reads in order".
"""


import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import check_bool, check_float, check_number, check_same, check_shape

__all__ = [
    "Cell",
    "ElmanCell",
    "GRUCell",
    "LSTMCell",
    "hidden",
]

Pair = tuple[Float[Tensor, "B E"], Float[Tensor, "B E"]]
State = Float[Tensor, "B E"] | Pair


class Cell(nn.Module):
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
        check_number("d_input", d_input, 1, whole=True)
        check_number("d_hidden", d_hidden, 1, whole=True)
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
    def from_torch(cls, cell: nn.RNNCellBase) -> "Cell":
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


class ElmanCell(Cell):
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


class GRUCell(Cell):
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


class LSTMCell(Cell):
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


def check_cell(cell: object) -> None:
    if not isinstance(cell, Cell):
        hint = "; convert it with from_torch" if isinstance(cell, nn.RNNCellBase) else ""
        raise TypeError(
            f"cell must be an ElmanCell, GRUCell or LSTMCell, got {type(cell).__name__}{hint}"
        )
