"""Mamba: a state space whose steps depend on what is read, and its form as masked attention.

Mamba chooses Δ, B and C for each token, so it is no convolution any more, but still a scan. Mamba-2
lets all numbers of a head's state fade alike; then the same map is an attention without a softmax.

Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    broadcast_batch,
    check_bool,
    check_choice,
    check_float,
    check_number,
    check_rows,
    check_same,
    check_shape,
)
from tfbook.attention import at_least_float32
from tfbook.efficient import state_chunked, state_parallel, state_recurrent
from tfbook.recurrent.convolution import CausalConv, ConvState
from tfbook.recurrent.scan import SCANS, read_tokens
from tfbook.recurrent.state_space import check_range

__all__ = [
    "Mamba2Mixer",
    "MambaMixer",
    "MambaState",
    "selective_scan",
    "semiseparable_mask",
    "state_space_dual",
]

DUALS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "parallel": state_parallel,
    "recurrent": state_recurrent,
    "chunked": state_chunked,
}


def selective_scan(
    x: Float[Tensor, "B N D"],
    delta: Float[Tensor, "B N D"],
    a: Float[Tensor, "D S"],
    b: Float[Tensor, "B N S"],
    c: Float[Tensor, "B N S"],
    *,
    state: Float[Tensor, "B D S"] | None = None,
    form: str = "sequential",
) -> tuple[Float[Tensor, "B N D"], Float[Tensor, "B D S"]]:
    """Run a state space for each column, with Δ, B and C of each token: Mamba's core.

    h_t[d, s] = exp(Δ_t[d] A[d, s]) h_{t−1}[d, s] + Δ_t[d] B_t[s] x_t[d],
    y_t[d] = Σ_s C_t[s] h_t[d, s]. A is held by zero order, of B only the first term, Δ B, is taken.

    Args:
        x: (B, N, D).
        delta: Δ, (B, N, D), not negative; with Δ = 0 a token leaves the state as it is.
        a: A, (D, S), negative, so that the past fades.
        b: B, (B, N, S).
        c: C, (B, N, S).
        state: h_0, (B, D, S); zeros when omitted.
        form: how the recurrence is computed, a key of ``tfbook.recurrent.SCANS``.

    Returns:
        y (B, N, D) in the dtype of x, and the last h (B, D, S), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or an unknown form.

    Example:
        >>> one = torch.ones(1, 3, 1)
        >>> selective_scan(one, one, -torch.ones(1, 1) * 0.6931, one, one)[0].flatten()
        tensor([1.0000, 1.5000, 1.7500])

    Cost: h and its factors, B · N · D · S numbers each, are written down.

    Source: [gu2024mamba]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """
    named = {"x": x, "delta": delta, "a": a, "b": b, "c": c}
    for name, value in named.items():
        check_float(name, value)
    check_same(**named)
    if x.ndim != 3 or a.ndim != 2:
        raise ValueError(
            f"x must be (B, N, D) and a (D, S), got {tuple(x.shape)} and {tuple(a.shape)}"
        )
    batch, n, d = x.shape
    check_shape("delta", delta, (batch, n, d), "(B, N, D)")
    check_shape("a", a, (d, a.shape[1]), "(D, S)")
    check_shape("b", b, (batch, n, a.shape[1]), "(B, N, S)")
    check_shape("c", c, (batch, n, a.shape[1]), "(B, N, S)")
    check_choice("form", form, SCANS)
    if state is not None:
        check_float("state", state)
        check_shape("state", state, (batch, *a.shape), "(B, D, S)")
    dtype = x.dtype
    x, delta, a, b, c = map(at_least_float32, (x, delta, a, b, c))
    fade = (delta[..., None] * a).exp()  # (B, N, D, S)
    written = (delta * x)[..., None] * b[:, :, None]
    h, last = SCANS[form](fade, written, state=state)
    return (h @ c[..., None])[..., 0].to(dtype), last


def semiseparable_mask(log_decay: Float[Tensor, "*B N"]) -> Float[Tensor, "*B N N"]:
    """Return L, the causal mask of a past that fades: L_ts = g_{s+1} ⋯ g_t for s ≤ t, 0 for s > t.

    With all g = 1 it is the causal mask. Each block below the diagonal has rank 1.

    Args:
        log_decay: log g, (..., n), 0 or negative; −∞ forgets everything before.

    Returns:
        L, (..., n, n), in float32 at least.

    Raises:
        TypeError: if it is not a floating-point tensor.
        ValueError: if it has no dimension.

    Example:
        >>> semiseparable_mask(torch.full((3,), 0.5).log())
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 1.0000, 0.0000],
                [0.2500, 0.5000, 1.0000]])

    Source: [dao2024transformers]
    Explained in: chapters/09_hybrids, section "One map, three ways to compute it".
    """
    check_float("log_decay", log_decay, min_dims=1)
    wide, n = at_least_float32(log_decay), log_decay.shape[-1]
    causal = torch.ones(n, n, dtype=torch.bool, device=wide.device).tril()
    # Sums of rows s + 1 … t and not differences of sums, in which small numbers would be lost.
    rows = wide[..., None].expand(*wide.shape, n).masked_fill(~causal.tril(-1), 0.0)
    return rows.cumsum(-2).masked_fill(~causal, -torch.inf).exp()


def state_space_dual(
    x: Float[Tensor, "*B N P"],
    delta: Float[Tensor, "*B N"],
    a: Float[Tensor, "*#A"],
    b: Float[Tensor, "*#B N S"],
    c: Float[Tensor, "*#B N S"],
    *,
    state: Float[Tensor, "..."] | None = None,
    form: str = "chunked",
    chunk: int | None = None,
) -> tuple[Float[Tensor, "*B N P"], Float[Tensor, "*B S P"]]:
    """Run one state space whose whole state fades alike: Mamba-2's core, in its three forms.

    h_t = exp(Δ_t a) h_{t−1} + Δ_t B_t x_tᵀ, y_t = C_tᵀ h_t, which is also
    Y = (L ⊙ C Bᵀ) (Δ X) with the L of :func:`semiseparable_mask`: an attention with queries C, keys
    B, values Δ X, a fading mask and no softmax.

    Args:
        x: (..., n, p).
        delta: Δ, (..., n), not negative; with Δ = 0 a token leaves the state as it is.
        a: negative, broadcasting to the leading dimensions, such as (H,) for (B, H, n, p).
        b: B, (..., n, s), leading dimensions that broadcast.
        c: C, (..., n, s), likewise.
        state: h_0, (..., s, p); zeros when omitted.
        form: "parallel", the attention, n² numbers for each head; "recurrent", token by token; or
            "chunked", the attention inside of chunks and the state between them.
        chunk: tokens in a chunk, for that form; 64 when omitted.

    Returns:
        y (..., n, p) in the dtype of x, and the last h (..., s, p), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or an unknown form.

    Example:
        >>> one, delta = torch.ones(3, 1), torch.ones(3)
        >>> state_space_dual(one, delta, torch.tensor(0.5).log(), one, one)[0].flatten()
        tensor([1.0000, 1.5000, 1.7500])

    Source: [dao2024transformers]
    Explained in: chapters/09_hybrids, section "One map, three ways to compute it".
    """
    for name, value in {"x": x, "b": b, "c": c}.items():
        check_float(name, value, min_dims=2)
    check_float("delta", delta, min_dims=1)
    check_float("a", a)
    check_same(x=x, delta=delta, a=a, b=b, c=c)
    check_shape("delta", delta, x.shape[:-1], "(..., n)")
    check_shape("c", c, (*c.shape[:-2], x.shape[-2], b.shape[-1]), "(..., n, s)")
    check_shape("b", b, (*b.shape[:-2], x.shape[-2], b.shape[-1]), "(..., n, s)")
    check_choice("form", form, DUALS)
    if chunk is not None and form != "chunked":
        raise ValueError(f"chunk is for form='chunked', got form {form!r}")
    for name, value, lead in (("a", a, a.shape), ("b", b, b.shape[:-2]), ("c", c, c.shape[:-2])):
        if broadcast_batch(**{name: lead, "x": x.shape[:-2]}) != x.shape[:-2]:
            raise ValueError(
                f"{name} must broadcast to the leading dimensions of x, "
                f"got {tuple(value.shape)} and {tuple(x.shape)}"
            )
    options = {"chunk": 64 if chunk is None else chunk} if form == "chunked" else {}
    dtype = x.dtype
    x, delta, a, b, c = map(at_least_float32, (x, delta, a, b, c))
    b, c = (each.expand(*x.shape[:-1], -1) for each in (b, c))
    y, last = DUALS[form](
        c, b, x * delta[..., None], log_decay=delta * a[..., None], state=state, **options
    )
    return y.to(dtype), last


@dataclass(frozen=True, eq=False)
class MambaState:
    """What a Mamba layer carries on; never changed.

    Attributes:
        conv: the rows that the convolution still looks at.
        h: the state, (B, d_inner, d_state), or (B, H, d_state, d_head) of Mamba-2.

    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """

    conv: ConvState
    h: Float[Tensor, "B ..."]

    @property
    def length(self) -> int:
        """Return how many rows were read."""
        return self.conv.length

    @property
    def nbytes(self) -> int:
        """Return the bytes of both parts."""
        return self.conv.nbytes + self.h.nbytes

    def select(self, rows: Int[Tensor, " S"]) -> "MambaState":
        """Return the state of the chosen sequences of the batch, in the order given."""
        return MambaState(self.conv.select(rows), self.h[rows])


class MambaMixer(nn.Module):
    """Mamba: a short convolution, a selective state space and a gate, as a mixer.

    (u, z) = W_in x, u = SiLU(conv(u)), (r, B, C) = W_x u, Δ = softplus(W_Δ r + b_Δ),
    s = selective_scan(u, Δ, A, B, C) + D ⊙ u, y = W_out (s ⊙ SiLU(z)), with A = −exp(log_rate).

    Args:
        d_model: columns of x and y.
        d_state: S, numbers in the state of one column.
        expand: d_inner / d_model; the columns of u.
        width: rows that the convolution sees.
        rank: size of r, from which Δ is made; ⌈d_model / 16⌉ when omitted.
        delta: smallest and largest Δ that a column begins with.
        bias: whether W_in and W_out have biases.
        conv_bias: whether the convolution has one.
        form: how the recurrence is computed, a key of ``tfbook.recurrent.SCANS``.

    Attributes:
        in_proj, conv, x_proj, delta_proj, out_proj: the maps, in the order of the data.
        delta_bias: b_Δ, (d_inner,).
        log_rate: log(−A), (d_inner, S); A begins as −1 … −S in each column.
        skip: D, (d_inner,).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Cost: with E = d_inner, E (3 d_model + width + 2 rank + 3 S + 3) parameters at the usual
        choices; the state holds E (S + width − 1) numbers, however long the sequence.

    Example:
        >>> mixer = MambaMixer(4, d_state=3)
        >>> x = torch.randn(1, 6, 4)
        >>> whole, _ = mixer(x)
        >>> start, state = mixer(x[:, :2])
        >>> rest, state = mixer(x[:, 2:], state)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-5), state.length
        (True, 6)

    Source: [gu2024mamba]
    Explained in: chapters/09_hybrids, section "Mamba: the token decides how much fades".
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        *,
        expand: int = 2,
        width: int = 4,
        rank: int | None = None,
        delta: tuple[float, float] = (0.001, 0.1),
        bias: bool = False,
        conv_bias: bool = True,
        form: str = "sequential",
    ):
        """Draw the weights; A and Δ begin on a grid and at random between the bounds."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        rank = -(-d_model // 16) if rank is None else rank
        check_number("rank", rank, 1, whole=True)
        check_sizes(d_state=d_state, expand=expand, width=width)
        check_bool("bias", bias)
        check_choice("form", form, SCANS)
        self.d_model, self.d_state, self.rank, self.form = d_model, d_state, rank, form
        self.d_inner = inner = expand * d_model
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=bias)
        self.conv = CausalConv(inner, width, bias=conv_bias)
        self.x_proj = nn.Linear(inner, rank + 2 * d_state, bias=False)
        self.delta_proj = nn.Linear(rank, inner, bias=False)
        self.delta_bias = nn.Parameter(initial_delta(inner, delta))  # not for a scheme to zero
        self.log_rate = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, d_model, bias=bias)
        nn.init.uniform_(self.delta_proj.weight, -(rank**-0.5), rank**-0.5)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.d_model}, d_state={self.d_state}, d_inner={self.d_inner}"

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: MambaState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], MambaState]:
        """Pass the rows of x through the layer, continuing from a state.

        Args:
            x: (B, N, d_model).
            state: what the call before returned; None at the start of a sequence.
            mask: which rows are tokens, boolean, broadcasting to (B, 1, N), as ``padding_mask``.
                A row that is none leaves the state as it is.

        Returns:
            y (B, N, d_model), and the state to continue from.

        Raises:
            TypeError: for a wrong type or dtype, or a state of another kind.
            ValueError: for a shape that does not fit, or a mask that is not one of rows.
        """
        check_rows("x", x, self.in_proj.weight)
        past = read_state(state, x, (self.d_inner, self.d_state))
        tokens = read_tokens(mask, x)
        u, z = self.in_proj(x).chunk(2, dim=-1)  # (B, N, d_inner) each
        u, conv = self.conv(u, past and past.conv, mask=mask)
        u = functional.silu(u)
        r, b, c = self.x_proj(u).split([self.rank, self.d_state, self.d_state], dim=-1)
        delta = functional.softplus(self.delta_proj(r) + self.delta_bias)  # (B, N, d_inner)
        if tokens is not None:
            delta = delta.masked_fill(~tokens[..., None], 0.0)
        a = -at_least_float32(self.log_rate).exp()
        wide = [at_least_float32(each) for each in (u, delta, b, c)]
        s, h = selective_scan(*wide[:2], a, *wide[2:], state=past and past.h, form=self.form)
        s = (s + self.skip * wide[0]).to(x.dtype)
        return self.out_proj(s * functional.silu(z)), MambaState(conv, h)


class Mamba2Mixer(nn.Module):
    """Mamba-2: the state space of each head fades as a whole, so that it is a masked attention.

    (z, u, Δ) = W_in x, (v, B, C) = SiLU(conv(u)), Δ = softplus(Δ + b_Δ), and for each head
    s = state_space_dual(v, Δ, a, B, C) + D v; y = W_out norm(s ⊙ SiLU(z)), a root-mean-square norm
    of each group. a = −exp(log_rate) and Δ are one number for a head, B and C one row for a group
    of heads, as keys and queries that heads share.

    Args:
        d_model: columns of x and y.
        d_state: S, the size of B and C.
        expand: d_inner / d_model.
        d_head: P, the size of v; it divides d_inner.
        n_groups: G, how many B and C; it divides the number of heads, H = d_inner / P.
        width: rows that the convolution sees.
        delta: smallest and largest Δ that a head begins with.
        bias: whether W_in and W_out have biases.
        conv_bias: whether the convolution has one.
        form: "parallel", "recurrent" or "chunked", see :func:`state_space_dual`.
        chunk: tokens in a chunk.

    Attributes:
        in_proj, conv, out_proj: the maps, in the order of the data.
        delta_bias, log_rate, skip: b_Δ, log(−a) and D, (H,) each; a begins as −1 … −H.
        gain: factors of the norm, (d_inner,).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range, or one that does not divide another.

    Cost: with E = d_inner, d_model (3 E + 2 G S + H) + (width + 1) (E + 2 G S) + 3 H + E parameters
        at the usual choices; the state holds E S + (E + 2 G S) (width − 1) numbers.

    Example:
        >>> mixer = Mamba2Mixer(4, d_state=3, d_head=2)
        >>> x = torch.randn(1, 6, 4)
        >>> whole, _ = mixer(x)
        >>> start, state = mixer(x[:, :2])
        >>> rest, state = mixer(x[:, 2:], state)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-5), state.length
        (True, 6)

    Source: [dao2024transformers]
    Explained in: chapters/09_hybrids, section "One map, three ways to compute it".
    """

    EPS = 1e-5

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        *,
        expand: int = 2,
        d_head: int = 64,
        n_groups: int = 1,
        width: int = 4,
        delta: tuple[float, float] = (0.001, 0.1),
        bias: bool = False,
        conv_bias: bool = True,
        form: str = "chunked",
        chunk: int = 64,
    ):
        """Draw the weights; a and Δ begin on a grid and at random between the bounds."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        check_sizes(d_state=d_state, expand=expand, width=width, chunk=chunk)
        check_bool("bias", bias)
        check_choice("form", form, DUALS)
        self.d_model, self.d_state, self.d_head = d_model, d_state, d_head
        self.d_inner, self.n_groups, self.form = expand * d_model, n_groups, form
        self.n_heads = heads_of(self.d_inner, d_head, n_groups)
        self.chunk = chunk if form == "chunked" else None
        self.d_conv = self.d_inner + 2 * n_groups * d_state
        self.in_proj = nn.Linear(d_model, self.d_inner + self.d_conv + self.n_heads, bias=bias)
        self.conv = CausalConv(self.d_conv, width, bias=conv_bias)
        self.delta_bias = nn.Parameter(initial_delta(self.n_heads, delta))
        self.log_rate = nn.Parameter(torch.arange(1.0, self.n_heads + 1).log())
        self.skip = nn.Parameter(torch.ones(self.n_heads))
        self.gain = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias)

    def extra_repr(self) -> str:
        """Show the sizes."""
        sizes = f"d_state={self.d_state}, n_heads={self.n_heads}, d_head={self.d_head}"
        return f"{self.d_model}, {sizes}, n_groups={self.n_groups}"

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: MambaState | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B N D"], MambaState]:
        """Pass the rows of x through the layer, continuing from a state.

        Arguments, results and errors are those of :meth:`MambaMixer.forward`.
        """
        check_rows("x", x, self.in_proj.weight)
        past = read_state(state, x, (self.n_heads, self.d_state, self.d_head))
        tokens = read_tokens(mask, x)
        z, u, delta = self.in_proj(x).split([self.d_inner, self.d_conv, self.n_heads], dim=-1)
        u, conv = self.conv(u, past and past.conv, mask=mask)
        size = self.n_groups * self.d_state
        v, b, c = functional.silu(u).split([self.d_inner, size, size], dim=-1)
        v = at_least_float32(v).unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)
        b, c = (self._for_heads(at_least_float32(each)) for each in (b, c))  # (B, H, N, S)
        delta = functional.softplus(at_least_float32(delta) + self.delta_bias).mT  # (B, H, N)
        if tokens is not None:
            delta = delta.masked_fill(~tokens[:, None], 0.0)
        a = -at_least_float32(self.log_rate).exp()  # (H,)
        s, h = state_space_dual(
            v, delta, a, b, c, state=past and past.h, form=self.form, chunk=self.chunk
        )
        s = s + self.skip[:, None, None] * v  # (B, H, N, P)
        s = s.transpose(1, 2).flatten(-2) * functional.silu(at_least_float32(z))
        groups = s.unflatten(-1, (self.n_groups, -1))  # each normalised by itself
        s = functional.rms_norm(groups, groups.shape[-1:], eps=self.EPS).flatten(-2) * self.gain
        return self.out_proj(s.to(x.dtype)), MambaState(conv, h)

    def _for_heads(self, rows):
        """Return (B, N, G · S) as (B, H, N, S): a group's row for each of its heads."""
        rows = rows.unflatten(-1, (self.n_groups, self.d_state)).transpose(1, 2)
        return rows.repeat_interleave(self.n_heads // self.n_groups, dim=1)


def initial_delta(size: int, delta: tuple[float, float]) -> Float[Tensor, " D"]:
    """Draw Δ, evenly in its logarithm, and return the biases whose softplus it is."""
    low, high = (torch.tensor(each).log() for each in check_range(delta))
    drawn = (low + torch.rand(size) * (high - low)).exp()
    return drawn + (-torch.expm1(-drawn)).log()


def check_sizes(**sizes: object) -> None:
    """Raise unless each is an integer of at least 1."""
    for name, size in sizes.items():
        check_number(name, size, 1, whole=True)


def heads_of(d_inner: int, d_head: object, n_groups: object) -> int:
    """Return how many heads there are.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if it is below 1 or does not divide.
    """
    check_sizes(d_head=d_head, n_groups=n_groups)
    if d_inner % d_head:
        raise ValueError(f"d_head must divide expand · d_model = {d_inner}, got {d_head}")
    if d_inner // d_head % n_groups:
        heads = d_inner // d_head
        raise ValueError(f"n_groups must divide the number of heads, {heads}, got {n_groups}")
    return d_inner // d_head


def read_state(state: object, x: Tensor, shape: tuple[int, ...]) -> MambaState | None:
    """Return the state if it fits the rows, or None.

    Raises:
        TypeError: for another kind or dtype.
        ValueError: for a wrong shape.
    """
    if state is None:
        return None
    if not isinstance(state, MambaState):
        raise TypeError(f"state must be a MambaState, got {type(state).__name__}")
    check_shape("state.h", state.h, (len(x), *shape), "(B, …)")
    wanted = torch.promote_types(x.dtype, torch.float32)
    if state.h.dtype != wanted:
        raise TypeError(f"state.h must have dtype {wanted}, got {state.h.dtype}")
    return state
