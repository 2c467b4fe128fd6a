"""The delta rule: a state that is corrected and not only added to.

Linear attention adds k vᵀ to its state whatever is there. The delta rule first reads what the state
says of k, and writes the difference: after it the state says v, or is on the way there.

Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
"""

import math
from dataclasses import dataclass
from itertools import repeat

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import (
    broadcast_batch,
    check_bool,
    check_choice,
    check_float,
    check_number,
    check_same,
    check_shape,
    head_sizes,
)
from tfbook.attention import at_least_float32, merge_heads, split_heads
from tfbook.recurrent.convolution import CausalConv, ConvState
from tfbook.recurrent.retention import FixedState, StateMixer, check_kind, make_linear

__all__ = [
    "DeltaMixer",
    "DeltaState",
    "GatedDeltaMixer",
    "delta_chunked",
    "delta_recurrent",
    "delta_wy",
]

FORMS = ("chunked", "recurrent")
FORGOTTEN = -100.0  # exp of it is nothing in float32; sums of it stay finite, those of −∞ do not


@dataclass(frozen=True, eq=False, kw_only=True)
class DeltaState(FixedState):
    """The state of a mixer that follows the delta rule.

    Attributes:
        matrix: S, (B, n_heads, d_head, d_value), in float32 at least.
        conv: the last rows that the short convolution still has to look at.

    Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
    """

    matrix: Float[Tensor, "B H D E"]
    conv: ConvState


def delta_recurrent(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B N D"],
    v: Float[Tensor, "*#B N E"],
    beta: Float[Tensor, "*#B N"],
    *,
    log_decay: Float[Tensor, "..."] | None = None,
    state: Float[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "*B N E"], Float[Tensor, "*C D E"]]:
    """Correct a state by one key and value after the other, and read it with queries.

    S_t = (I − β_t k_t k_tᵀ) α_t S_{t−1} + β_t k_t v_tᵀ and y_t = q_tᵀ S_t, with
    α_t = exp(log_decay_t): of what the faded state says of k_t the share β_t |k_t|² is taken away,
    and the share β_t of v_t is written. With |k_t| = 1 and β_t = 1 the state then says v_t of k_t,
    and of what is orthogonal to k_t what it said before. It is a step of gradient descent, of size
    β_t, on ½ |S_tᵀ k_t − v_t|². (In the papers the state is the transpose of this one.)

    Args:
        q: queries (..., n, d).
        k: keys (..., n, d), of length 1 as a rule.
        v: values (..., n, e).
        beta: β, (..., n); from 0, which writes nothing, to 1, or to 2, which with |k| = 1 reflects
            the state at the plane that k stands on.
        log_decay: log α, (..., n), 0 or negative; None for α = 1, the delta rule without a gate.
        state: S_0, (..., d, e), left by the tokens before; None for zeros.

    Returns:
        y (..., n, e) in the dtype of v, and the state after the last token (..., d, e), in float32
        at least, with the leading dimensions of all but q.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or two devices.

    Example:
        >>> key, value = torch.ones(2, 1), torch.tensor([[3.0], [5.0]])
        >>> delta_recurrent(key, key, value, torch.ones(2))[0].flatten()  # the second replaces
        tensor([3., 5.])

    Cost: d · e numbers of state whatever n is; 4 n d e FLOPs of products, one token after another.

    Source: [yang2024parallelizing], gated: [yang2025gated]; the rule: [schlag2021linear]
    Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
    """
    q, k, v, beta, log_decay, state, dtype = _prepare(q, k, v, beta, log_decay, state)
    alpha = repeat(None) if log_decay is None else log_decay.to(q.dtype).exp().unbind(-1)
    rows, found = [x.unbind(-2) for x in (q, k, v)], []
    for q_t, k_t, v_t, beta_t, alpha_t in zip(*rows, beta.unbind(-1), alpha, strict=False):
        if alpha_t is not None:
            state = alpha_t[..., None, None] * state
        said = (k_t[..., None, :] @ state).squeeze(-2)  # (..., e)
        wrong = beta_t[..., None] * (v_t - said)
        state = state + k_t[..., :, None] * wrong[..., None, :]  # (..., d, e)
        found.append((q_t[..., None, :] @ state).squeeze(-2))
    if not found:
        return (q @ state).to(dtype), state
    return torch.stack(found, dim=-2).to(dtype), state


def delta_wy(
    k: Float[Tensor, "*#B N D"],
    v: Float[Tensor, "*#B N E"],
    beta: Float[Tensor, "*#B N"],
    *,
    log_decay: Float[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "*B N D"], Float[Tensor, "*B N E"]]:
    """Return what n corrections make of any state: they write the rows U − W S_0 under the keys.

    S_n = S_0 + Σ_t k_t (u_t − w_tᵀ S_0)ᵀ without a decay, so that the product of the n matrices
    I − β_t k_t k_tᵀ, the last one on the left, is I − Σ_t k_t w_tᵀ. Token t writes
    β_t (v_t − what the state says of k_t by then), which depends on what the tokens before it
    write: a triangular system. With L_ts = β_t (k_t · k_s) for s < t, else 0,

    (I + L) W = diag(β) K and (I + L) U = diag(β) V.

    With a decay, c_t = log α_1 + … + log α_t: L_ts has the factor exp(c_t − c_s), K on the right
    has exp(c_t), and S_n = exp(c_n) S_0 + Σ_t exp(c_n − c_t) k_t (u_t − w_tᵀ S_0)ᵀ.

    Args:
        k: keys (..., n, d).
        v: values (..., n, e).
        beta: β, (..., n).
        log_decay: log α, (..., n), 0 or negative; None for α = 1.

    Returns:
        W (..., n, d) and U (..., n, e), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or two devices.

    Example:
        >>> key = torch.ones(2, 1)  # the same key twice: the second write takes back the first
        >>> w, u = delta_wy(key, torch.tensor([[3.0], [5.0]]), torch.ones(2))
        >>> w.flatten(), u.flatten()
        (tensor([1., 0.]), tensor([3., 2.]))

    Cost: 2 n² d FLOPs for L, and n² (d + e) for the triangular system.

    Source: [yang2024parallelizing], [bischof1987wy]
    Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
    """
    _, k, v, beta, log_decay, _, _ = _prepare(k, k, v, beta, log_decay, None)
    return _wy(k, v, beta, None if log_decay is None else log_decay.cumsum(-1))


def delta_chunked(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B N D"],
    v: Float[Tensor, "*#B N E"],
    beta: Float[Tensor, "*#B N"],
    *,
    log_decay: Float[Tensor, "..."] | None = None,
    state: Float[Tensor, "..."] | None = None,
    chunk: int = 64,
) -> tuple[Float[Tensor, "*B N E"], Float[Tensor, "*C D E"]]:
    """Compute :func:`delta_recurrent` in chunks: matrix products inside, one chunk after another.

    With W and U of the chunk, see :func:`delta_wy`, D = U − W S, c_t the sum of log α from the
    chunk's first token to its t-th and F_ts = exp(c_t − c_s) for s ≤ t, else 0:
    Y = exp(c) Q S + (Q Kᵀ ⊙ F) D, and the next chunk gets
    S' = exp(c_C) S + Σ_s exp(c_C − c_s) k_s d_sᵀ.

    Args:
        q: queries (..., n, d).
        k: keys (..., n, d), of length 1 as a rule.
        v: values (..., n, e).
        beta: β, (..., n).
        log_decay: log α, (..., n), 0 or negative; None for α = 1.
        state: S_0, (..., d, e), left by the tokens before; None for zeros.
        chunk: tokens in a chunk.

    Returns:
        y (..., n, e) in the dtype of v, and the state after the last token (..., d, e), in float32
        at least, with the leading dimensions of all but q.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, two devices, or a chunk below 1.

    Example:
        >>> key, value = torch.ones(2, 1), torch.tensor([[3.0], [5.0]])
        >>> delta_chunked(key, key, value, torch.tensor([1.0, 0.5]))[0].flatten()
        tensor([3., 4.])

    Cost: 2 n · chunk (2 d + e) + 6 n d e FLOPs of products, and n · chunk (d + e) for triangular
    systems: linear in n.

    Source: [yang2024parallelizing], gated: [yang2025gated]
    Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
    """
    check_number("chunk", chunk, 1, whole=True)
    q, k, v, beta, log_decay, state, dtype = _prepare(q, k, v, beta, log_decay, state)
    found, parts = [], [x.split(chunk, dim=-2) for x in (q, k, v)]
    decays = repeat(None) if log_decay is None else log_decay.split(chunk, dim=-1)
    parts += [beta.split(chunk, dim=-1)]
    for q_c, k_c, v_c, beta_c, decay in zip(*parts, decays, strict=False):
        y, state = _one_chunk(q_c, k_c, v_c, beta_c, decay, state)
        found.append(y)
    return torch.cat(found, dim=-2).to(dtype), state


def _one_chunk(q, k, v, beta, log_decay, state):
    """Return what a chunk's queries read, and the state after it."""
    total = None if log_decay is None else log_decay.cumsum(-1)  # c
    w, u = _wy(k, v, beta, total)
    written = u - w @ state  # (..., C, e)
    scores, read = (q @ k.mT).tril(), q @ state
    if total is None:
        return read + scores @ written, state + k.mT @ written
    y = _exp(total, q)[..., None] * read + (scores * _fade(total, q)) @ written
    last = total[..., -1:] if total.shape[-1] else total.sum(-1, keepdim=True)
    left = _exp(last - total, q)[..., None] * k
    return y, _exp(last, q)[..., None] * state + left.mT @ written


def _wy(k, v, beta, total):
    """Solve the triangular systems for W and U, where ``total`` is c."""
    earlier = (k @ k.mT).tril(-1) * beta[..., None]  # L
    into = k
    if total is not None:
        earlier, into = earlier * _fade(total, k), _exp(total, k)[..., None] * k
    sides = beta[..., None] * torch.cat([into, v], dim=-1)
    unit = earlier + torch.eye(k.shape[-2], dtype=k.dtype, device=k.device)
    solved = torch.linalg.solve_triangular(unit, sides, upper=False, unitriangular=True)
    return solved.split([k.shape[-1], v.shape[-1]], dim=-1)


def _exp(total, rows):
    """Return the exponential of sums of log α, in the dtype of the rows."""
    return total.to(rows.dtype).exp()


def _fade(total, rows):
    """Return exp(c_t − c_s) for s ≤ t, else 0."""
    between = total[..., :, None] - total[..., None, :]
    future = torch.ones(between.shape[-2:], dtype=torch.bool, device=total.device).triu(1)
    return _exp(between.masked_fill(future, -torch.inf), rows)


def _prepare(q, k, v, beta, log_decay, state):
    """Check, widen and complete what a form takes; the last is the dtype of v."""
    given = {"q": q, "k": k, "v": v}
    for name, value in given.items():
        check_float(name, value, min_dims=2)
    check_float("beta", beta, min_dims=1)
    check_same(**given)
    (n, d), e = k.shape[-2:], v.shape[-1]
    check_shape("q", q, (*q.shape[:-2], n, d), "(..., n, d), as k,")
    check_shape("v", v, (*v.shape[:-2], n, e), "(..., n, e), a row for each of k,")
    lead = {"k": k.shape[:-2], "v": v.shape[:-2]}
    for name, value in (("beta", beta), ("log_decay", log_decay)):
        if value is not None:
            check_float(name, value, min_dims=1)
            check_shape(name, value, (*value.shape[:-1], n), "(..., n)")
            lead[name] = value.shape[:-1]
    if state is not None:
        check_float("state", state, min_dims=2)
        check_shape("state", state, (*state.shape[:-2], d, e), "(..., d, e)")
        lead["state"] = state.shape[:-2]
    for name, value in (("beta", beta), ("log_decay", log_decay), ("state", state)):
        if value is not None and value.device != q.device:
            raise ValueError(f"{name} must be on the device of q, {q.device}, got {value.device}")
    broadcast_batch(q=q.shape[:-2], **lead)
    dtype, batch = v.dtype, broadcast_batch(**lead)
    q, k, v = (at_least_float32(x) for x in (q, k, v))
    state = v.new_zeros(*batch, d, e) if state is None else state.to(v.dtype).expand(*batch, d, e)
    k, v = k.expand(*batch, n, d), v.expand(*batch, n, e)
    beta = beta.to(v.dtype).expand(*batch, n)
    if log_decay is not None:  # sums of many, and small differences of them
        exact = torch.float32 if q.device.type == "mps" else torch.float64
        log_decay = log_decay.to(exact).clamp(min=FORGOTTEN).expand(*batch, n)
    return q, k, v, beta, log_decay, state, dtype


class DeltaMixer(StateMixer):
    r"""A mixer whose state is corrected by the delta rule (DeltaNet).

    q, k and v are linear in x, then each number is convolved with a short filter of its own over
    the last rows, and passes SiLU. Queries and keys are brought to length 1, q has the factor
    1/√d_head, and β = σ(w x) is one number for each head. With z of :func:`delta_recurrent`,
    y = W_out norm(z), where the norm divides each head by its root mean square; its weights are
    shared by the heads.

    With β below 1 the matrix I − β k kᵀ that meets the state has no eigenvalue below 0, so that
    nothing in the state can change its sign, and parity cannot be kept. ``negative=True`` makes it
    β = 2 σ(w x), with eigenvalues from −1 to 1.

    Args:
        d_model: features of x and y.
        n_heads: H.
        d_head: size of queries and keys; d_model / H when omitted.
        d_value: size of a value; d_head when omitted.
        kernel: rows that the short convolution sees.
        negative: whether β goes up to 2.
        eps: of the norm.
        form: "chunked" or "recurrent": how it is computed; the results are the same.
        chunk: tokens in a chunk.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit, or an unknown form.

    Cost: see :func:`delta_chunked`; H · d_head · d_value + (kernel − 1) · H · (2 d_head + d_value)
    numbers in the state.

    Example:
        >>> mixer = DeltaMixer(8, 2)
        >>> x = torch.randn(1, 6, 8)
        >>> whole, state = mixer(x)
        >>> start, before = mixer(x[:, :4])
        >>> rest, state = mixer(x[:, 4:], before)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-4), state.nbytes
        (True, 416)

    Source: [yang2024parallelizing], β up to 2: [grazzi2025unlocking]
    Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_head: int | None = None,
        d_value: int | None = None,
        kernel: int = 4,
        negative: bool = False,
        eps: float = 1e-5,
        form: str = "chunked",
        chunk: int = 64,
    ):
        """Make the projections, none of which has a bias, Xavier uniform."""
        super().__init__()
        _, d_head, d_value = head_sizes(d_model, n_heads, None, d_head, d_value)
        check_number("kernel", kernel, 1, whole=True)
        check_bool("negative", negative)
        check_number("eps", eps, above=0)
        check_choice("form", form, FORMS)
        check_number("chunk", chunk, 1, whole=True)
        self.d_model, self.n_heads, self.d_head, self.d_value = d_model, n_heads, d_head, d_value
        self.negative, self.eps, self.form, self.chunk = negative, eps, form, chunk
        self.q_proj = make_linear(d_model, n_heads * d_head)
        self.k_proj = make_linear(d_model, n_heads * d_head)
        self.v_proj = make_linear(d_model, n_heads * d_value)
        self.beta_proj = make_linear(d_model, n_heads)
        self.conv = CausalConv(n_heads * (2 * d_head + d_value), kernel, bias=False)
        self.norm_weight = nn.Parameter(torch.ones(d_value))
        self.out_proj = make_linear(n_heads * d_value, d_model)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return (
            f"d_model={self.d_model}, n_heads={self.n_heads}, d_head={self.d_head}, "
            f"d_value={self.d_value}, negative={self.negative}, form={self.form!r}"
        )

    def check_state(self, x: Tensor, state: object) -> None:
        """Raise an error unless the state is None or fits the mixer and the batch of x."""
        if state is None:
            return
        check_kind(state, DeltaState)
        shape = (len(x), self.n_heads, self.d_head, self.d_value)
        check_shape("state.matrix", state.matrix, shape, "(B, n_heads, d_head, d_value)")
        check_same(**{"x": at_least_float32(x), "state.matrix": state.matrix})

    def mix(
        self, x: Float[Tensor, "B N D"], state: DeltaState | None, tokens: Tensor | None
    ) -> tuple[Float[Tensor, "B N D"], DeltaState]:
        """Mix rows of which those that are no tokens stand behind the others."""
        matrix, before, seen = (
            (None, None, 0) if state is None else (state.matrix, state.conv, state.seen)
        )
        rows = torch.cat([part(x) for part in (self.q_proj, self.k_proj, self.v_proj)], dim=-1)
        rows, conv = self.conv(rows, before, mask=None if tokens is None else tokens[:, None])
        sizes = [self.n_heads * size for size in (self.d_head, self.d_head, self.d_value)]
        q, k, v = (
            split_heads(part, self.n_heads) for part in functional.silu(rows).split(sizes, dim=-1)
        )
        beta = torch.sigmoid(self.beta_proj(x)).mT * (2 if self.negative else 1)  # (B, H, N)
        log_decay = self._log_decay(x)
        if tokens is not None and log_decay is not None:  # other rows get keys of 0 anyway
            log_decay = log_decay.masked_fill(~tokens[:, None], 0.0)
        given = (unit(q) * self.d_head**-0.5, unit(k), v, beta)
        more = {"log_decay": log_decay, "state": matrix}
        if self.form == "chunked":
            z, matrix = delta_chunked(*given, **more, chunk=self.chunk)
        else:
            z, matrix = delta_recurrent(*given, **more)
        z = functional.rms_norm(z, (self.d_value,), self.norm_weight, self.eps)
        y = self.out_proj(self._gated(merge_heads(z), x))
        return y, DeltaState(matrix=matrix, conv=conv, seen=seen + x.shape[1])

    def _log_decay(self, x):
        """Return log α, (B, H, N), or None for α = 1."""
        return None

    def _gated(self, z, x):
        """Return what the heads found, gated or as it is."""
        return z


class GatedDeltaMixer(DeltaMixer):
    r"""A mixer whose state fades and is corrected by the delta rule (Gated DeltaNet).

    As :class:`DeltaMixer`, and the state fades by α = exp(−a · softplus(w x + b)) before it is
    corrected, a number for each head, where a and b are learned; and what was found passes a gate,
    y = W_out (norm(z) ⊙ SiLU(W_gate x)). With α near 0 all is forgotten at once, with α = 1 only
    what a key replaces.

    Args:
        d_model: features of x and y.
        n_heads: H.
        choices: those of :class:`DeltaMixer`.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for sizes that do not fit, or an unknown form.

    Example:
        >>> y, state = GatedDeltaMixer(8, 2, d_value=6)(torch.randn(1, 6, 8))
        >>> y.shape, state.matrix.shape
        (torch.Size([1, 6, 8]), torch.Size([1, 2, 4, 6]))

    Source: [yang2025gated]
    Explained in: chapters/09_hybrids, section "The delta rule: correct what is there".
    """

    def __init__(self, d_model: int, n_heads: int, **choices: object):
        """Draw a from 1 … 16, and b so that the softplus of it is from 0.001 to 0.1."""
        super().__init__(d_model, n_heads, **choices)
        self.decay_proj = make_linear(d_model, n_heads)
        self.log_rate = nn.Parameter(torch.empty(n_heads).uniform_(1, 16).log())  # log a
        step = torch.empty(n_heads).uniform_(-3, -1).mul(math.log(10)).exp()
        self.decay_bias = nn.Parameter(step.expm1().log())  # b, of which softplus makes the step
        self.gate_proj = make_linear(d_model, n_heads * self.d_value)

    def _log_decay(self, x):
        """Return log α, (B, H, N)."""
        step = functional.softplus(at_least_float32(self.decay_proj(x)) + self.decay_bias)
        return (-at_least_float32(self.log_rate).exp() * step).mT

    def _gated(self, z, x):
        """Return what the heads found, gated."""
        return z * functional.silu(self.gate_proj(x))


def unit(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Return x with length 1, but for an ε of 1e-6 that keeps 0 where it is."""
    wide = at_least_float32(x)
    return (wide * (wide.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)
