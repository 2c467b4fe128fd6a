"""RWKV: a weighted mean of all values so far, whose weights fade at a rate of each channel.

RWKV stands for receptance weighted key value: what each token writes is its value, weighed by the
exponential of its key, and what it reads passes a gate, the receptance. There are no queries and
nothing is compared with anything; that is why sums of one number for each channel are enough.

Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import broadcast_batch, check_float, check_number, check_same, check_shape
from tfbook.attention import at_least_float32
from tfbook.recurrent.retention import FixedState, StateMixer, check_kind, make_linear

__all__ = [
    "ChannelMix",
    "ShiftState",
    "TimeMix",
    "WKVState",
    "wkv_parallel",
    "wkv_recurrent",
    "wkv_scan",
]

Sums = tuple[Float[Tensor, "..."], Float[Tensor, "..."], Float[Tensor, "..."]]

EMPTY = -1e30  # the exponent of a sum with nothing in it: exp of it is 0, differences are finite


@dataclass(frozen=True, eq=False, kw_only=True)
class ShiftState(FixedState):
    """The state of a token shift.

    Attributes:
        row: the last row that was read, (B, d_model), 0 before the first.

    Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
    """

    row: Float[Tensor, "B D"]


@dataclass(frozen=True, eq=False, kw_only=True)
class WKVState(ShiftState):
    """The state of RWKV's time mixing: two sums in a form that does not overflow.

    Attributes:
        row: the last row that was read, (B, d_model), 0 before the first.
        sums: the numerator, the denominator and the exponent m of each channel, (B, 3, c); the
            sums themselves are exp(m) times the first two. In float32 at least.

    Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
    """

    sums: Float[Tensor, "B 3 C"]


def wkv_parallel(
    k: Float[Tensor, "*#B N C"],
    v: Float[Tensor, "*#B N C"],
    decay: Float[Tensor, " C"],
    first: Float[Tensor, " C"],
) -> Float[Tensor, "*B N C"]:
    """Return the fading mean of the values, with all its weights written down, n × n each channel.

    wkv_t = Σ_s a_ts v_s with a = softmax of e^{…} over s ≤ t, where the logit of s is
    k_s − (t − 1 − s) w before t and k_t + u at t: the older a token the less it counts, and the
    present one has an extra u of its own. Everything is for each channel by itself.

    Args:
        k: keys (..., n, c), the logarithms of weights.
        v: values (..., n, c).
        decay: w, (c,), 0 or positive: what a logit loses with each token.
        first: u, (c,).

    Returns:
        wkv, (..., n, c), in the dtype of v.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or two devices.

    Example:
        >>> zero, v = torch.zeros(1), torch.tensor([[1.0], [2.0], [6.0]])
        >>> wkv_parallel(torch.zeros(3, 1), v, zero, zero).flatten()  # plain means
        tensor([1.0000, 1.5000, 3.0000])

    Cost: n² c numbers of memory.

    Source: [peng2023rwkv]
    Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
    """
    k, v, decay, first, _, dtype = _prepare(k, v, decay, first, None)
    if not k.shape[-2]:
        return v.to(dtype)
    place = torch.arange(k.shape[-2], device=k.device)
    age = (place[:, None] - place - 1)[..., None]  # (N, N, 1), −1 for the token itself
    logits = torch.where(age < 0, first, -age * decay) + k[..., None, :, :]  # (..., N, N, C)
    weights = logits.masked_fill(age < -1, -torch.inf).softmax(dim=-2)
    return (weights * v[..., None, :, :]).sum(-2).to(dtype)


def wkv_recurrent(
    k: Float[Tensor, "*#B N C"],
    v: Float[Tensor, "*#B N C"],
    decay: Float[Tensor, " C"],
    first: Float[Tensor, " C"],
    *,
    state: Sums | None = None,
) -> tuple[Float[Tensor, "*B N C"], Sums]:
    """Compute :func:`wkv_parallel` token by token, with two sums and an exponent for a state.

    a_t = e^{−w} a_{t−1} + e^{k_t} v_t and b_t = e^{−w} b_{t−1} + e^{k_t};
    wkv_t = (a_{t−1} + e^{u + k_t} v_t) / (b_{t−1} + e^{u + k_t}). Keys are exponents, so a and b
    would overflow: what is kept is e^{−m} a and e^{−m} b, and m, the largest exponent so far.

    Args:
        k: keys (..., n, c), the logarithms of weights.
        v: values (..., n, c).
        decay: w, (c,), 0 or positive: what a logit loses with each token.
        first: u, (c,).
        state: e^{−m} a, e^{−m} b and m, (..., c) each, left by the tokens before; None for none.

    Returns:
        wkv (..., n, c) in the dtype of v, and the state after the last token, in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or two devices.

    Example:
        >>> zero, v = torch.zeros(1), torch.tensor([[1.0], [2.0], [6.0]])
        >>> y, (a, b, m) = wkv_recurrent(torch.full((3, 1), 1000.0), v, zero, zero)
        >>> y.flatten(), (a / b).item(), m.item()
        (tensor([1.0000, 1.5000, 3.0000]), 3.0, 1000.0)

    Cost: 3 c numbers of state whatever n is, one token after another.

    Source: [peng2023rwkv]
    Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
    """
    k, v, decay, first, state, dtype = _prepare(k, v, decay, first, state)
    found = []
    for k_t, v_t in zip(k.unbind(-2), v.unbind(-2), strict=True):
        own = (v_t, torch.ones_like(v_t), k_t)
        a, b, _ = _merge(state, (*own[:2], k_t + first))
        found.append(a / b)
        state = _merge(_faded(state, decay), own)
    return (torch.stack(found, dim=-2) if found else v).to(dtype), state


def wkv_scan(
    k: Float[Tensor, "*#B N C"],
    v: Float[Tensor, "*#B N C"],
    decay: Float[Tensor, " C"],
    first: Float[Tensor, " C"],
    *,
    state: Sums | None = None,
) -> tuple[Float[Tensor, "*B N C"], Sums]:
    """Compute :func:`wkv_recurrent` for all tokens at once, in ⌈log₂(n + 1)⌉ passes.

    The sum up to t over the last 2 s tokens is that over the last s, and that over the s before
    them, faded by s tokens: each pass doubles how far back the sums reach.

    Args:
        k: keys (..., n, c), the logarithms of weights.
        v: values (..., n, c).
        decay: w, (c,), 0 or positive: what a logit loses with each token.
        first: u, (c,).
        state: as for :func:`wkv_recurrent`.

    Returns:
        wkv (..., n, c) in the dtype of v, and the state after the last token, in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or two devices.

    Example:
        >>> zero, v = torch.zeros(1), torch.tensor([[1.0], [2.0], [6.0]])
        >>> wkv_scan(torch.zeros(3, 1), v, zero, zero)[0].flatten()
        tensor([1.0000, 1.5000, 3.0000])

    Cost: 3 n c numbers for each pass, where there is a backward pass.

    Source: [peng2023rwkv]; the passes: [hillis1986data]
    Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
    """
    k, v, decay, first, state, dtype = _prepare(k, v, decay, first, state)
    y, sums = _scan(k, v, decay, first, state)
    return y.to(dtype), tuple(x[..., -1, :] for x in sums)


def _scan(k, v, decay, first, state):
    """Return y (..., N, C) and the states before and after each token, (..., N + 1, C)."""
    own = (v, torch.ones_like(v), k)
    sums = tuple(torch.cat([x[..., None, :], y], dim=-2) for x, y in zip(state, own, strict=True))
    reach = 1
    while reach < sums[0].shape[-2]:
        earlier = _faded(tuple(x[..., :-reach, :] for x in sums), reach * decay)
        later = _merge(earlier, tuple(x[..., reach:, :] for x in sums))
        sums = tuple(
            torch.cat([x[..., :reach, :], y], dim=-2) for x, y in zip(sums, later, strict=True)
        )
        reach *= 2
    a, b, _ = _merge(tuple(x[..., :-1, :] for x in sums), (*own[:2], k + first))
    return a / b, sums


def _faded(sums, loss):
    a, b, m = sums
    return a, b, m - loss


def _merge(one, other):
    """Add two pairs of sums, each with its exponent."""
    (a, b, m), (c, d, n) = one, other
    top = torch.maximum(m, n).detach()  # any number would do: what is kept does not depend on it
    left, right = (m - top).exp(), (n - top).exp()
    return a * left + c * right, b * left + d * right, top


def _prepare(k, v, decay, first, state):
    """Check, widen and complete what a form takes; the last is the dtype of v."""
    for name, value in (("k", k), ("v", v)):
        check_float(name, value, min_dims=2)
    check_same(k=k, v=v)
    n, c = k.shape[-2:]
    check_shape("v", v, (*v.shape[:-2], n, c), "(..., n, c), as k,")
    lead = {"k": k.shape[:-2], "v": v.shape[:-2]}
    given = {"decay": decay, "first": first}
    for name, value in given.items():
        check_float(name, value)
        check_shape(name, value, (c,), "(c,)")
    if state is not None:
        if not (isinstance(state, tuple) and len(state) == 3):
            raise TypeError("state must be a tuple of three tensors, what the call before returned")
        for number, value in enumerate(state):
            check_float(f"state[{number}]", value, min_dims=1)
            check_shape(f"state[{number}]", value, (*value.shape[:-1], c), "(..., c)")
            lead[f"state[{number}]"] = value.shape[:-1]
        given |= {f"state[{number}]": value for number, value in enumerate(state)}
    for name, value in given.items():
        if value.device != k.device:
            raise ValueError(f"{name} must be on the device of k, {k.device}, got {value.device}")
    batch, dtype = broadcast_batch(**lead), v.dtype
    k, v = (at_least_float32(x).expand(*batch, n, c) for x in (k, v))
    if state is None:
        zeros = v.new_zeros(*batch, c)
        state = (zeros, zeros, torch.full_like(zeros, EMPTY))
    state = tuple(x.to(v.dtype).expand(*batch, c) for x in state)
    return k, v, decay.to(v.dtype), first.to(v.dtype), state, dtype


class _Shifting(StateMixer):
    """What both halves of an RWKV block share: each row is mixed with the one before it."""

    kind = ShiftState

    def check_state(self, x: Tensor, state: object) -> None:
        """Raise an error unless the state is None or fits the mixer and the batch of x."""
        if state is None:
            return
        check_kind(state, self.kind)
        check_shape("state.row", state.row, (len(x), self.d_model), "(B, d_model)")
        check_same(**{"x": x, "state.row": state.row})

    def _shift(self, x, state, tokens):
        """Return the row before each row, the last row that is a token, and how many were read."""
        row = x.new_zeros(len(x), self.d_model) if state is None else state.row
        rows = torch.cat([row[:, None], x], dim=1)  # (B, N + 1, D)
        seen = x.shape[1] + (0 if state is None else state.seen)
        return rows[:, :-1], _last(rows, tokens), seen


def _last(rows: Tensor, tokens: Tensor | None) -> Tensor:
    """Return the row behind the last token, (B, …), of rows (B, N + 1, …) that begin before it."""
    if tokens is None:
        return rows[:, -1].clone()
    return rows[torch.arange(len(rows), device=rows.device), tokens.sum(1)]


def _mixed(x, before, share):
    """Return share · x + (1 − share) · before."""
    return torch.lerp(before, x, share)


class TimeMix(_Shifting):
    r"""RWKV's time mixing: the mixer of an RWKV-4 block.

    With x' the row before x and μ a share for each number, k = W_k (μ_k x + (1 − μ_k) x'), v and r
    likewise; y = W_out (σ(r) ⊙ wkv), see :func:`wkv_recurrent`, with w = exp(time_decay).

    Args:
        d_model: features of x and y.
        d_inner: channels; d_model when omitted.

    Attributes:
        time_decay: log w, (d_inner,).
        time_first: u, (d_inner,).

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1.

    Cost: 8 · d_model · d_inner FLOPs a token; d_model + 3 · d_inner numbers in the state.

    Example:
        >>> mixer = TimeMix(8)
        >>> x = torch.randn(1, 6, 8)
        >>> whole, state = mixer(x)
        >>> start, before = mixer(x[:, :4])
        >>> rest, state = mixer(x[:, 4:], before)
        >>> torch.allclose(whole, torch.cat([start, rest], dim=1), atol=1e-5), state.nbytes
        (True, 128)

    Source: [peng2023rwkv]
    Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
    """

    kind = WKVState

    def __init__(self, d_model: int, d_inner: int | None = None):
        """Spread log w from −5 to 3, and the shares from 0 to 1, over the channels."""
        super().__init__()
        d_inner = d_model if d_inner is None else d_inner
        check_number("d_model", d_model, 1, whole=True)
        check_number("d_inner", d_inner, 1, whole=True)
        self.d_model, self.d_inner = d_model, d_inner
        self.mix_k, self.mix_v, self.mix_r = (
            nn.Parameter(torch.arange(d_model) / d_model) for _ in range(3)
        )
        where = torch.linspace(0, 1, d_inner)
        self.time_decay = nn.Parameter(8 * where**0.7 - 5)
        self.time_first = nn.Parameter(math.log(0.3) + 0.5 * ((torch.arange(d_inner) + 1) % 3 - 1))
        self.k_proj, self.v_proj, self.r_proj = (make_linear(d_model, d_inner) for _ in range(3))
        self.out_proj = make_linear(d_inner, d_model)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"d_model={self.d_model}, d_inner={self.d_inner}"

    def check_state(self, x: Tensor, state: object) -> None:
        """Raise an error unless the state is None or fits the mixer and the batch of x."""
        super().check_state(x, state)
        if state is not None:
            check_shape("state.sums", state.sums, (len(x), 3, self.d_inner), "(B, 3, d_inner)")
            check_same(**{"x": at_least_float32(x), "state.sums": state.sums})

    def mix(
        self, x: Float[Tensor, "B N D"], state: WKVState | None, tokens: Tensor | None
    ) -> tuple[Float[Tensor, "B N D"], WKVState]:
        """Mix rows of which those that are no tokens stand behind the others."""
        before, row, seen = self._shift(x, state, tokens)
        k = self.k_proj(_mixed(x, before, self.mix_k))
        v = self.v_proj(_mixed(x, before, self.mix_v))
        gate = torch.sigmoid(self.r_proj(_mixed(x, before, self.mix_r)))
        sums = None if state is None else state.sums.unbind(1)
        rate = at_least_float32(self.time_decay).exp()
        wkv, sums = _scan(*_prepare(k, v, rate, self.time_first, sums)[:5])
        sums = _last(torch.stack(sums, dim=2), tokens)  # of (B, N + 1, 3, C)
        y = self.out_proj(gate * wkv.to(x.dtype))
        return y, WKVState(row=row, sums=sums, seen=seen)


class ChannelMix(_Shifting):
    r"""RWKV's channel mixing: a feed-forward network that sees the row before as well.

    k = W_k (μ_k x + (1 − μ_k) x'), r likewise, with x' the row before x;
    y = σ(r) ⊙ W_v max(k, 0)². It stands where a feed-forward network stands, but because of x' it
    has a state, one row, and so it is a mixer: ``mixer(x, state) -> (y, state)``. An RWKV block is
    two layers with no feed-forward part, one with each mixer.

    Args:
        d_model: features of x and y.
        d_ff: size of the inner layer; 4 · d_model when omitted.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1.

    Cost: 2 · d_model · (2 d_ff + d_model) FLOPs a token; d_model numbers in the state.

    Example:
        >>> y, state = ChannelMix(8)(torch.randn(1, 6, 8))
        >>> y.shape, state.row.shape
        (torch.Size([1, 6, 8]), torch.Size([1, 8]))

    Source: [peng2023rwkv]
    Explained in: chapters/09_hybrids_deeper, section "RWKV: a mean that fades".
    """

    def __init__(self, d_model: int, d_ff: int | None = None):
        """Spread the shares from 0 to 1 over the numbers of a row."""
        super().__init__()
        check_number("d_model", d_model, 1, whole=True)
        d_ff = 4 * d_model if d_ff is None else d_ff
        check_number("d_ff", d_ff, 1, whole=True)
        self.d_model, self.d_ff = d_model, d_ff
        self.mix_k, self.mix_r = (nn.Parameter(torch.arange(d_model) / d_model) for _ in range(2))
        self.k_proj, self.r_proj = make_linear(d_model, d_ff), make_linear(d_model, d_model)
        self.v_proj = make_linear(d_ff, d_model)

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"d_model={self.d_model}, d_ff={self.d_ff}"

    def mix(
        self, x: Float[Tensor, "B N D"], state: ShiftState | None, tokens: Tensor | None
    ) -> tuple[Float[Tensor, "B N D"], ShiftState]:
        """Mix rows of which those that are no tokens stand behind the others."""
        before, row, seen = self._shift(x, state, tokens)
        inner = torch.relu(self.k_proj(_mixed(x, before, self.mix_k))).square()
        gate = torch.sigmoid(self.r_proj(_mixed(x, before, self.mix_r)))
        return gate * self.v_proj(inner), ShiftState(row=row, seen=seen)
