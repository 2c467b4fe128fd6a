"""Mixers whose state is one matrix for each head: linear attention, and retention where it fades.

What a sequence leaves behind is a matrix S (d_head, d_value) for each head, as large after a
thousand tokens as after one. Keys and values are written into it as k vᵀ and read by queries as
qᵀ S, see :func:`tfbook.efficient.state_parallel`; in retention the old state fades by a factor of
the head, and in gated linear attention by one that the token chooses.

Explained in: chapters/09_hybrids, section "Retention: attention that fades".
"""

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    check_bool,
    check_choice,
    check_even,
    check_number,
    check_rows,
    check_same,
    check_shape,
    head_sizes,
)
from tfbook.attention import at_least_float32, merge_heads, read_mask, split_heads
from tfbook.efficient import state_chunked, state_parallel, state_recurrent
from tfbook.positions import RotaryPositions

__all__ = [
    "FixedState",
    "LinearAttentionMixer",
    "MatrixState",
    "RetentionMixer",
    "StateMixer",
    "retention_decays",
]

FORMS = ("chunked", "parallel", "recurrent")


@dataclass(frozen=True, eq=False, kw_only=True)
class FixedState:
    """What a mixer carries on whose state does not grow; never changed.

    Attributes:
        seen: how many rows came before the next one, masked ones included.

    Explained in: chapters/09_hybrids, section "A state that does not grow".
    """

    seen: int

    @property
    def length(self) -> int:
        """Return how many rows were read."""
        return self.seen

    @property
    def nbytes(self) -> int:
        """Return the bytes of the numbers that are carried on."""
        parts = [part for part in self._parts().values() if not _counts(part)]
        return sum(part.nbytes for part in parts)

    def select(self, rows: Int[Tensor, " S"]) -> "FixedState":
        """Return a state of the chosen sequences of the batch, in the order given."""
        chosen = {
            name: part[rows] if isinstance(part, Tensor) else part.select(rows)
            for name, part in self._parts().items()
        }
        return replace(self, **chosen)

    def _parts(self):
        parts = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: x for name, x in parts.items() if x is not None and name != "seen"}


def _counts(part: object) -> bool:
    return isinstance(part, Tensor) and not part.is_floating_point()


@dataclass(frozen=True, eq=False, kw_only=True)
class MatrixState(FixedState):
    """The state of retention and of linear attention.

    Attributes:
        matrix: S, (B, n_heads, d_head, d_value), in float32 at least; in linear attention with one
            column more, which sums the keys.
        tokens: how many rows were no masked ones in each sequence, (B,); None when all were.

    Explained in: chapters/09_hybrids, section "A state that does not grow".
    """

    matrix: Float[Tensor, "B H D E"]
    tokens: Int[Tensor, " B"] | None = None


class StateMixer(nn.Module):
    """What mixers with a state of fixed size share: checks, and rows that are masked left out.

    A mixer that inherits gives ``mix(x, state, tokens)``. Where there is a mask it sees the tokens
    of each sequence first and what is masked behind them, and ``tokens`` (B, N) says which is
    which; without a mask ``tokens`` is None. So a masked row is as if it were not there: it changes
    neither the state nor another row, and its own y is 0.

    Explained in: chapters/09_hybrids, section "A state that does not grow".
    """

    d_model: int

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: FixedState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], FixedState]:
        """Mix the rows of x with those before them, continuing from a state.

        Args:
            x: (B, N, d_model).
            state: what the call before returned; None at the start of a sequence.
            mask: which rows are tokens, boolean, broadcasting to (B, 1, N), as ``padding_mask``.

        Returns:
            y (B, N, d_model), and the state to continue from, as large as before.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or a mask that is not one of rows.
        """
        check_rows("x", x, next(self.parameters()).new_empty(0, self.d_model))
        self.check_state(x, state)
        batch, n, _ = x.shape
        tokens = None if mask is None else token_rows(mask, batch, n)
        if tokens is None:
            return self.mix(x, state, None)
        order = (~tokens).int().argsort(dim=1, stable=True)  # tokens first, in their order
        places = order[..., None].expand_as(x)
        y, state = self.mix(x.gather(1, places), state, tokens.gather(1, order))
        y = torch.zeros_like(y).scatter(1, places, y)
        return y.masked_fill(~tokens[..., None], 0.0), state

    def mix(
        self, x: Float[Tensor, "B N D"], state: FixedState | None, tokens: Tensor | None
    ) -> tuple[Float[Tensor, "B N D"], FixedState]:
        """Mix rows of which those that are no tokens stand behind the others."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it mixes")

    def check_state(self, x: Tensor, state: object) -> None:
        """Raise an error unless the state is None or fits the mixer and the batch of x."""
        raise NotImplementedError(f"{type(self).__name__} does not say which state it takes")


def token_rows(mask: Bool[Tensor, "..."], batch: int, n: int) -> Bool[Tensor, "B N"]:
    """Return which rows are tokens.

    Raises:
        TypeError: if the mask is not boolean.
        ValueError: if it does not fit, or says more than that.
    """
    tokens, other = read_mask(mask, batch, 1, n, 0)
    if other is not None:
        raise ValueError(
            "mask must say which rows are tokens, broadcasting to (B, 1, N) = "
            f"({batch}, 1, {n}), got {tuple(mask.shape)}: a recurrent mixer has no scores to hide"
        )
    return tokens[:, 0, 0]  # (B, N)


def check_kind(state: object, kind: type) -> None:
    """Raise TypeError unless a state is of the kind that a mixer carries on."""
    if not isinstance(state, kind):
        raise TypeError(f"state must be a {kind.__name__}, got {type(state).__name__}")


def make_linear(inputs: int, outputs: int) -> nn.Linear:
    """Make a linear map without a bias, Xavier uniform."""
    linear = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear


def run_form(
    form: str, chunk: int, *given: Tensor, **more: Tensor | None
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """Write and read the state in one of the forms, all of which give the same."""
    if form == "chunked":
        return state_chunked(*given, **more, chunk=chunk)
    return {"parallel": state_parallel, "recurrent": state_recurrent}[form](*given, **more)


def retention_decays(n_heads: int) -> Float[Tensor, " H"]:
    """Return how much of the state each head of retention keeps from one token to the next.

    γ_h = 1 − 2^(−5 − h) for h = 0 … H − 1: what was written is down to a half after about
    22 · 2^h tokens. Each head looks back twice as far as the one before it.

    Args:
        n_heads: H.

    Returns:
        γ, (H,), in float64.

    Raises:
        TypeError: if H is not an integer.
        ValueError: if it is below 1, or so large that a γ would be 1.

    Example:
        >>> retention_decays(3)
        tensor([0.9688, 0.9844, 0.9922], dtype=torch.float64)

    Source: [sun2023retentive]
    Explained in: chapters/09_hybrids, section "Retention: attention that fades".
    """
    check_number("n_heads", n_heads, 1, 48, whole=True)
    return 1 - 2.0 ** -(5 + torch.arange(n_heads, dtype=torch.float64))


class _MatrixMixer(StateMixer):
    """What retention and linear attention share: projections, sizes and the state's shape."""

    state_columns = 0  # of the matrix, beside those of the values

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int | None,
        d_value: int | None,
        form: str,
        chunk: int,
    ):
        super().__init__()
        _, d_head, d_value = head_sizes(d_model, n_heads, None, d_head, d_value)
        check_choice("form", form, FORMS)
        check_number("chunk", chunk, 1, whole=True)
        self.d_model, self.n_heads, self.d_head, self.d_value = d_model, n_heads, d_head, d_value
        self.form, self.chunk = form, chunk
        self.q_proj = make_linear(d_model, n_heads * d_head)
        self.k_proj = make_linear(d_model, n_heads * d_head)
        self.v_proj = make_linear(d_model, n_heads * d_value)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return (
            f"d_model={self.d_model}, n_heads={self.n_heads}, d_head={self.d_head}, "
            f"d_value={self.d_value}, form={self.form!r}"
        )

    def check_state(self, x: Tensor, state: object) -> None:
        """Raise an error unless the state is None or fits the mixer and the batch of x."""
        if state is None:
            return
        check_kind(state, MatrixState)
        shape = (len(x), self.n_heads, self.d_head, self.d_value + self.state_columns)
        check_shape("state.matrix", state.matrix, shape, "(B, n_heads, d_head, columns)")
        check_same(**{"x": at_least_float32(x), "state.matrix": state.matrix})

    def _heads(self, x):
        """Return queries, keys and values, (B, H, N, …)."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        return [split_heads(part(x), self.n_heads) for part in projections]

    def _run(self, q, k, v, log_decay, tokens, state):
        """Return what the queries read, and the matrix after the last token."""
        if tokens is not None:  # what is no token writes nothing and lets nothing fade
            k = k.masked_fill(~tokens[:, None, :, None], 0.0)
            if log_decay is not None:
                log_decay = log_decay.expand(len(k), -1, -1).masked_fill(~tokens[:, None], 0.0)
        matrix = None if state is None else state.matrix
        return run_form(self.form, self.chunk, q, k, v, log_decay=log_decay, state=matrix)


class RetentionMixer(_MatrixMixer):
    r"""Multi-scale retention: attention without a softmax, whose past fades by a factor each head.

    S_t = γ_h S_{t−1} + k_t v_tᵀ and z_t = q_tᵀ S_t, or all at once
    Z = (Q Kᵀ ⊙ D) V with D_ts = γ_h^(t − s) for s ≤ t, else 0. Queries and keys are rotated to
    their positions, k has the factor 1/√d_head, and γ_h is that of :func:`retention_decays`. A
    rotation that fades is what xPos does; here the fading is in γ.
    y = W_out (swish(W_gate x) ⊙ norm(z)), where the norm is over each head by itself, with a weight
    and a bias for each number. It divides every factor out that z has as a whole, so that the
    paper's divisors for D and for the scores would change nothing but the weight of its ε.

    Args:
        d_model: features of x and y.
        n_heads: H.
        d_head: size of queries and keys, even; d_model / H when omitted.
        d_value: size of a value; 2 · d_head when omitted, as in the paper.
        base: of the rotation, see :class:`tfbook.positions.RotaryPositions`.
        eps: of the norm.
        form: "chunked", "parallel" or "recurrent": how it is computed; the results are the same.
        chunk: tokens in a chunk.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit, or an unknown form.

    Cost: 2 · d_model · H · (2 d_head + 3 d_value) FLOPs a token for the projections, and those of
    :func:`tfbook.efficient.state_chunked`; H · d_head · d_value numbers in the state.

    Example:
        >>> mixer = RetentionMixer(8, 2)
        >>> x = torch.randn(1, 6, 8)
        >>> whole, state = mixer(x)
        >>> start, before = mixer(x[:, :4])
        >>> rest, state = mixer(x[:, 4:], before)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-4), state.nbytes
        (True, 256)

    Source: [sun2023retentive]; xPos: [sun2023length]
    Explained in: chapters/09_hybrids, section "Retention: attention that fades".
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_head: int | None = None,
        d_value: int | None = None,
        base: float = 10000.0,
        eps: float = 1e-5,
        form: str = "chunked",
        chunk: int = 64,
    ):
        """Make the projections, none of which has a bias, Xavier uniform."""
        if d_value is None:
            d_value = 2 * head_sizes(d_model, n_heads, None, d_head, None)[1]
        super().__init__(d_model, n_heads, d_head, d_value, form, chunk)
        check_even("d_head", self.d_head)
        check_number("eps", eps, above=0)
        retention_decays(n_heads)
        self.eps, self.position = eps, RotaryPositions(self.d_head, base=base)
        self.gate_proj = make_linear(d_model, n_heads * d_value)
        self.norm_weight = nn.Parameter(torch.ones(n_heads * d_value))
        self.norm_bias = nn.Parameter(torch.zeros(n_heads * d_value))
        self.out_proj = make_linear(n_heads * d_value, d_model)

    def mix(
        self, x: Float[Tensor, "B N D"], state: MatrixState | None, tokens: Tensor | None
    ) -> tuple[Float[Tensor, "B N D"], MatrixState]:
        """Mix rows of which those that are no tokens stand behind the others."""
        n, seen = x.shape[1], 0 if state is None else state.seen
        places, counts = self._places(x, state, tokens)
        q, k, v = self._heads(x)
        q, k = self.position.rotate(q, places), self.position.rotate(k, places) * self.d_head**-0.5
        log_decay = retention_decays(self.n_heads).log().to(x.device)  # (H,)
        z, matrix = self._run(q, k, v, log_decay[:, None].expand(-1, n), tokens, state)
        z = functional.layer_norm(z, (self.d_value,), eps=self.eps)  # each head by itself
        z = merge_heads(z) * self.norm_weight + self.norm_bias  # (B, N, H · d_value)
        y = self.out_proj(functional.silu(self.gate_proj(x)) * z)
        return y, MatrixState(matrix=matrix, tokens=counts, seen=seen + n)

    @staticmethod
    def _places(x, state, tokens):
        """Return the positions of the rows, and how many tokens each sequence has then."""
        batch, n, _ = x.shape
        seen, before = (0, None) if state is None else (state.seen, state.tokens)
        if before is None and tokens is None:
            return range(seen, seen + n), None
        if before is None:
            before = torch.full((batch,), seen, device=x.device)
        own = torch.arange(n, device=x.device)
        after = before + (n if tokens is None else tokens.sum(1))
        return before[:, None] + own, after


class LinearAttentionMixer(_MatrixMixer):
    r"""Causal linear attention as a mixer: weights φ(q) · φ(k), normalised, and a matrix as state.

    With φ(x) = elu(x) + 1: S_t = g_t S_{t−1} + φ(k_t) v_tᵀ, n_t = g_t n_{t−1} + φ(k_t) and
    z_t = φ(q_t)ᵀ S_t / φ(q_t)ᵀ n_t, a mean of the values so far; y = W_out z. Without a gate g = 1.
    A gate lets the past fade as the token says, g_t = σ(w x_t + b)^(1/τ), one number for each head.
    (Gated linear attention has one for each number of a key.) n is the last column of the state.

    Args:
        d_model: features of x and y.
        n_heads: H.
        d_head: size of queries and keys; d_model / H when omitted.
        d_value: size of a value; d_head when omitted.
        gated: whether there is a g.
        temperature: τ; the larger, the closer g begins to 1.
        form: "chunked", "parallel" or "recurrent": how it is computed; the results are the same.
        chunk: tokens in a chunk.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit, or an unknown form.

    Cost: H · d_head · (d_value + 1) numbers in the state.

    Example:
        >>> y, state = LinearAttentionMixer(8, 2)(torch.randn(1, 6, 8))
        >>> y.shape, state.matrix.shape
        (torch.Size([1, 6, 8]), torch.Size([1, 2, 4, 5]))

    Source: [katharopoulos2020transformers], gated: [yang2024gated]
    Explained in: chapters/09_hybrids, section "A state that does not grow".
    """

    state_columns = 1

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_head: int | None = None,
        d_value: int | None = None,
        gated: bool = False,
        temperature: float = 16.0,
        form: str = "chunked",
        chunk: int = 64,
    ):
        """Make the projections, Xavier uniform; only that of the gate has a bias, 0."""
        super().__init__(d_model, n_heads, d_head, d_value, form, chunk)
        check_bool("gated", gated)
        check_number("temperature", temperature, above=0)
        self.gated, self.temperature = gated, temperature
        self.g_proj = nn.Linear(d_model, n_heads) if gated else None
        if gated:
            nn.init.xavier_uniform_(self.g_proj.weight)
            nn.init.zeros_(self.g_proj.bias)
        self.out_proj = make_linear(n_heads * self.d_value, d_model)

    def mix(
        self, x: Float[Tensor, "B N D"], state: MatrixState | None, tokens: Tensor | None
    ) -> tuple[Float[Tensor, "B N D"], MatrixState]:
        """Mix rows of which those that are no tokens stand behind the others."""
        seen = 0 if state is None else state.seen
        q, k, v = self._heads(x)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        v = at_least_float32(torch.cat([v, torch.ones_like(v[..., :1])], dim=-1))
        q, k, log_decay = at_least_float32(q), at_least_float32(k), None
        if self.gated:
            gates = at_least_float32(self.g_proj(x)).mT  # (B, H, N)
            log_decay = functional.logsigmoid(gates) / self.temperature
        z, matrix = self._run(q, k, v, log_decay, tokens, state)
        total = z[..., -1:]  # 0 where nothing was read yet, which only a masked row can meet
        z = z[..., :-1] / total.masked_fill(total == 0, 1.0)
        y = self.out_proj(merge_heads(z).to(x.dtype))
        return y, MatrixState(matrix=matrix, seen=seen + x.shape[1])
