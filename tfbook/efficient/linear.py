"""Linear attention: a feature map in place of the softmax, so that the past fits into one matrix.

With weights φ(q) · φ(k) the sum over keys can be taken before the query is known: a state S, one
matrix (d, d_v) per head, takes the place of all keys and values. The same sum has three forms: in
parallel (n × n, to read), token by token (a recurrent network) and in chunks (the fast one).

Explained in: chapters/07_efficient_attention, section "Take the sum first".
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from tfbook._checks import (
    broadcast_batch,
    check_attention,
    check_bool,
    check_choice,
    check_float,
    check_number,
    check_same,
    check_shape,
)
from tfbook.attention import (
    at_least_float32,
    log_sum_exp,
    masked_softmax,
    mix,
    multiply_shared,
    register,
    restrict,
)

Output = Float[Tensor, "*B N E"] | tuple[Tensor, ...]
State = tuple[Float[Tensor, "*B N E"], Float[Tensor, "*C D E"]]

FORMS = ("parallel", "recurrent", "chunked")
FORGOTTEN = -100.0  # exp of it is nothing in float32; sums of it stay finite, those of −∞ do not


def state_parallel(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B N D"],
    v: Float[Tensor, "*#B N E"],
    *,
    log_decay: Float[Tensor, "..."] | None = None,
    state: Float[Tensor, "..."] | None = None,
) -> State:
    """Write keys and values into a state and read it with queries, all tokens at once.

    y_t = Σ_{s ≤ t} (g_{s+1} ⋯ g_t) (q_t · k_s) v_s + (g_1 ⋯ g_t) q_tᵀ S_0: a causal attention
    without a softmax, in which g_t = exp(log_decay_t) lets the past fade.

    Args:
        q: queries (..., n, d).
        k: keys (..., n, d). A zero key writes nothing.
        v: values (..., n, e).
        log_decay: log g, (..., n), 0 or negative; −∞ forgets everything. None for g = 1.
        state: S_0, (..., d, e), left by the tokens before; None for zeros.

    Returns:
        y (..., n, e) in the dtype of v, and the state after the last token (..., d, e), in float32
        at least, with the leading dimensions of all but q.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or two devices.

    Example:
        >>> one = torch.ones(3, 1)
        >>> y, state = state_parallel(one, one, one, log_decay=torch.full((3,), 0.5).log())
        >>> y.flatten(), state
        (tensor([1.0000, 1.5000, 1.7500]), tensor([[1.7500]]))

    Cost: n² numbers of memory; 2 n² (d + e) FLOPs.

    Source: [katharopoulos2020transformers], [sun2023retentive]
    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    q, k, v, log_decay, state, dtype = _prepare(q, k, v, log_decay, state)
    y, state = _one_chunk(q, k, v, log_decay, state)
    return y.to(dtype), state


def state_recurrent(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B N D"],
    v: Float[Tensor, "*#B N E"],
    *,
    log_decay: Float[Tensor, "..."] | None = None,
    state: Float[Tensor, "..."] | None = None,
) -> State:
    """Compute :func:`state_parallel` token by token, as a recurrent network would.

    S_t = g_t S_{t−1} + k_t v_tᵀ and y_t = q_tᵀ S_t.

    Args:
        q: queries (..., n, d).
        k: keys (..., n, d). A zero key writes nothing.
        v: values (..., n, e).
        log_decay: log g, (..., n), 0 or negative; −∞ forgets everything. None for g = 1.
        state: S_0, (..., d, e), left by the tokens before; None for zeros.

    Returns:
        y (..., n, e) in the dtype of v, and the state after the last token (..., d, e), in float32
        at least, with the leading dimensions of all but q.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or two devices.

    Cost: d · e numbers of state whatever n is; 4 n d e FLOPs, one token after another.

    Source: [katharopoulos2020transformers]
    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    q, k, v, log_decay, state, dtype = _prepare(q, k, v, log_decay, state)
    rows, ys = [x.unbind(-2) for x in (q, k, v)], []
    g = [None] * len(rows[0]) if log_decay is None else log_decay.to(q.dtype).exp().unbind(-1)
    for q_t, k_t, v_t, g_t in zip(*rows, g, strict=True):
        old = state if g_t is None else g_t[..., None, None] * state
        state = old + k_t[..., :, None] * v_t[..., None, :]  # (..., d, e)
        ys.append((q_t[..., None, :] @ state).squeeze(-2))  # (..., e)
    if not ys:
        return _one_chunk(q, k, v, log_decay, state)[0].to(dtype), state
    return torch.stack(ys, dim=-2).to(dtype), state


def state_chunked(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B N D"],
    v: Float[Tensor, "*#B N E"],
    *,
    log_decay: Float[Tensor, "..."] | None = None,
    state: Float[Tensor, "..."] | None = None,
    chunk: int = 64,
) -> State:
    """Compute :func:`state_parallel` in chunks: in parallel inside of each, one after another.

    With c_t the sum of log g from the chunk's first token to its t-th, Q, K, V the chunk's rows and
    L_ts = exp(c_t − c_s) for s ≤ t, else 0: Y = (Q Kᵀ ⊙ L) V + exp(c) Q S, and the next chunk gets
    S' = exp(c_C) S + Σ_s exp(c_C − c_s) k_s v_sᵀ.

    Args:
        q: queries (..., n, d).
        k: keys (..., n, d). A zero key writes nothing.
        v: values (..., n, e).
        log_decay: log g, (..., n), 0 or negative; −∞ forgets everything. None for g = 1.
        state: S_0, (..., d, e), left by the tokens before; None for zeros.
        chunk: tokens in a chunk.

    Returns:
        y (..., n, e) in the dtype of v, and the state after the last token (..., d, e), in float32
        at least, with the leading dimensions of all but q.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, two devices, or a chunk below 1.

    Cost: 2 n · chunk (d + e) + 4 n d e FLOPs, linear in n; n · chunk numbers of memory where there
    is a backward pass, else chunk².

    Source: [hua2022transformer], [sun2023retentive]
    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    check_number("chunk", chunk, 1, whole=True)
    q, k, v, log_decay, state, dtype = _prepare(q, k, v, log_decay, state)
    ys, parts = [], [x.split(chunk, dim=-2) for x in (q, k, v)]
    decays = [None] * len(parts[0]) if log_decay is None else log_decay.split(chunk, dim=-1)
    for q_c, k_c, v_c, decay in zip(*parts, decays, strict=True):
        y, state = _one_chunk(q_c, k_c, v_c, decay, state)
        ys.append(y)
    return torch.cat(ys, dim=-2).to(dtype), state


def _one_chunk(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what a chunk's queries read, and the state after it."""
    scores, read = multiply_shared(q, k.mT), multiply_shared(q, state)  # (..., C, C), (..., C, e)
    if log_decay is None:
        return multiply_shared(scores.tril(), v) + read, state + k.mT @ v
    total, log_decay = log_decay.sum(-1, keepdim=True), log_decay.cumsum(-1)  # c_C and c
    between = (log_decay[..., :, None] - log_decay[..., None, :]).to(q.dtype)  # (..., C, C)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    fade = between.masked_fill(future, -torch.inf).exp()
    y = multiply_shared(scores * fade, v) + log_decay.to(q.dtype).exp()[..., None] * read
    left = (total - log_decay).to(q.dtype).exp()[..., None] * k  # (..., C, d)
    return y, total.to(q.dtype).exp()[..., None] * state + left.mT @ v


def _prepare(
    q: object, k: object, v: object, log_decay: object, state: object
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, torch.dtype]:
    """Check, widen and complete what a form takes; the last is the dtype of v."""
    given = {"q": q, "k": k, "v": v}
    for name, value in given.items():
        check_float(name, value, min_dims=2)
    check_same(**given)
    (n, d), e = k.shape[-2:], v.shape[-1]
    check_shape("q", q, (*q.shape[:-2], n, d), "(..., n, d), as k,")
    check_shape("v", v, (*v.shape[:-2], n, e), "(..., n, e), a row for each of k,")
    lead = {"k": k.shape[:-2], "v": v.shape[:-2]}
    if log_decay is not None:
        check_float("log_decay", log_decay, min_dims=1)
        check_shape("log_decay", log_decay, (*log_decay.shape[:-1], n), "(..., n)")
        lead["log_decay"] = log_decay.shape[:-1]
    if state is not None:
        check_float("state", state, min_dims=2)
        check_shape("state", state, (*state.shape[:-2], d, e), "(..., d, e)")
        lead["state"] = state.shape[:-2]
    for name, value in (("log_decay", log_decay), ("state", state)):
        if value is not None and value.device != q.device:
            raise ValueError(f"{name} must be on the device of q, {q.device}, got {value.device}")
    broadcast_batch(q=q.shape[:-2], **lead)
    dtype, (q, k, v) = v.dtype, map(at_least_float32, (q, k, v))
    shape = (*broadcast_batch(**lead), d, e)
    state = v.new_zeros(shape) if state is None else state.to(v.dtype).expand(shape)
    if log_decay is not None:  # sums of many, and small differences of them
        exact = torch.float32 if q.device.type == "mps" else torch.float64
        log_decay = log_decay.to(exact).clamp(min=FORGOTTEN)
    return q, k, v, log_decay, state, dtype


def elu_features(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Map to positive features: φ(x) = elu(x) + 1, which is x + 1 above 0 and eˣ below.

    Args:
        x: queries or keys (..., d).

    Returns:
        φ(x), (..., d), positive until eˣ is rounded to 0, below −103 in float32.

    Raises:
        TypeError: if x is not floating point.

    Example:
        >>> elu_features(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0.3679, 1.0000, 3.0000])

    Source: [katharopoulos2020transformers]
    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    check_float("x", x)
    return functional.relu(x) + x.clamp(max=0).exp()


def relu_features(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Map to features that are positive or 0: φ(x) = max(x, 0).

    A query without a positive number has no features, so it weighs no key and gets zeros.

    Args:
        x: queries or keys (..., d).

    Returns:
        φ(x), (..., d).

    Raises:
        TypeError: if x is not floating point.

    Example:
        >>> relu_features(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])

    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    check_float("x", x)
    return functional.relu(x)


def squared_relu_features(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Map to features that tell large numbers from small ones more sharply: φ(x) = max(x, 0)².

    Args:
        x: queries or keys (..., d).

    Returns:
        φ(x), (..., d).

    Raises:
        TypeError: if x is not floating point.

    Example:
        >>> squared_relu_features(torch.tensor([-1.0, 0.5, 2.0]))
        tensor([0.0000, 0.2500, 4.0000])

    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    check_float("x", x)
    return functional.relu(x).square()


#: The feature maps that have a name: name → function (..., d) → (..., d_f).
FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": elu_features,
    "relu": relu_features,
    "squared_relu": squared_relu_features,
}


def attend_linear(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    feature: str | Callable[[Tensor], Tensor] = "elu",
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
    form: str = "chunked",
    chunk: int = 64,
) -> Output:
    """Attend with a feature map in place of the softmax, in time and memory linear in the length.

    out[i] = φ(q[i])ᵀ Σ_j φ(k[j]) v[j]ᵀ / φ(q[i])ᵀ Σ_j φ(k[j]), the sums over the allowed j; that
    is the weights are φ(q[i]) · φ(k[j]), divided by their sum.

    The sum in the denominator is taken as it is, however small: where the features of a query and
    of all its keys hardly meet, the gradient grows like one over it. Only what a number cannot hold
    well (below 10⁻³⁰ in float32) counts as 0, and a query with such a sum, because it has no
    allowed key or no features, gets zeros.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        feature: φ, one of :data:`FEATURES` or a function (..., d) → (..., d_f), not negative.
        mask: boolean, True = allowed, which keys exist: broadcasts to (..., 1, m). In parallel
            form any that broadcasts to (..., n, m).
        bias: refused; in parallel form weights are multiplied by exp(bias), (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q before φ; 1 when omitted.
        return_weights: refused; in parallel form also return the weights (..., n, m).
        return_lse: also return the logarithm of the sum of each row of weights, (..., n).
        form: when causal, how to sum over the past: "chunked" (fast), "recurrent" (token by
            token) or "parallel" (to read: forms all n × m weights, causal or not).
        chunk: tokens in a chunk.

    Returns:
        The output (..., n, d_v), or a tuple of output and what else was asked for, weights first.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale, feature, form or chunk, or for what only the
            parallel form can do.

    Cost: 2 (n + m) d_f (d_v + 1) FLOPs; causal besides 2 n · chunk (d_f + d_v + 1).

    Example:
        >>> q, k = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [2.0, 2.0]])  # φ = 1, and 3
        >>> attend_linear(q, k, torch.tensor([[0.0], [1.0]]))
        tensor([[0.7500]])

    Source: [katharopoulos2020transformers]
    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    phi_q, phi_k = _features(q, k, feature, scale)
    return mix_by_features(
        (phi_q, None), (phi_k, None), v, mask=mask, bias=bias, causal=causal, form=form,
        chunk=chunk, return_weights=return_weights, return_lse=return_lse,
    )  # fmt: skip


def _linear_scores(q, k, *, feature="elu", scale=None, form=None, chunk=None, **restricted):
    """Return log φ(q) · φ(k), restricted; the form plays no role."""
    phi_q, phi_k = _features(q, k, feature, scale)
    return scores_by_features((phi_q, None), (phi_k, None), **restricted)


def _features(q, k, feature, scale):
    if not callable(feature):
        check_choice("feature", feature, FEATURES)
    fn = FEATURES[feature] if isinstance(feature, str) else feature
    q, k = at_least_float32(q), at_least_float32(k)
    found = fn(q if scale is None else q * scale), fn(k)
    for x, phi in zip((q, k), found, strict=True):
        check_float("what feature returns", phi, min_dims=2)
        wanted = (*x.shape[:-1], phi.shape[-1])
        check_shape("what feature returns", phi, wanted, "(..., d_f)")
    return found


Mapped = tuple[Tensor, Tensor | None]


def mix_by_features(
    queries: Mapped,
    keys: Mapped,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    form: str = "chunked",
    chunk: int = 64,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Output:
    """Mix values by weights φ(q) · φ(k), where features are given, as :func:`attend_linear` does.

    Features come in two parts, φ and λ: what counts is φ · exp(λ), with one λ for each query or
    key, (..., n) or (..., m). So features may be beyond what a number can hold. λ of the keys is
    taken off their largest so far, and the state fades when that grows.

    Args:
        queries: φ (..., n, d_f) and λ (..., n) or None.
        keys: φ (..., m, d_f) and λ (..., m) or None.
        v: values (..., m, d_v).
        mask: boolean, True = allowed, (..., 1, m); in parallel form (..., n, m).
        bias: for the parallel form, (..., n, m).
        causal: hide the future, aligned to the last key.
        form: "chunked", "recurrent" or "parallel".
        chunk: tokens in a chunk.
        return_weights: for the parallel form.
        return_lse: also return the logarithm of the sum of each row of weights.

    Returns:
        The output (..., n, d_v), or a tuple of output and what else was asked for, weights first.

    Raises:
        TypeError: for a wrong type.
        ValueError: for an unknown form, a chunk below 1, or what only the parallel form can do.

    Source: [katharopoulos2020transformers]
    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    check_choice("form", form, FORMS)
    check_number("chunk", chunk, 1, whole=True)
    check_bool("return_weights", return_weights)
    check_bool("return_lse", return_lse)
    given = {"bias": bias is not None, "return_weights": return_weights}
    given["a mask (..., n, m)"] = mask is not None and mask.ndim > 1 and mask.shape[-2] > 1
    if form != "parallel" and any(given.values()):
        refused = [name for name, there in given.items() if there]
        raise ValueError(
            f"form {form!r} never forms the weights, so it cannot serve {' and '.join(refused)}; "
            "masks (..., 1, m) hide keys in every form, form='parallel' takes all"
        )
    if form == "parallel":
        output, total, log_total, weights = _dense(queries, keys, v, mask, bias, causal)
    else:
        run = state_recurrent if form == "recurrent" else partial(state_chunked, chunk=chunk)
        output, total, log_total = _summed(queries, keys, v, mask, causal, run)
    extras = (weights.to(v.dtype),) if return_weights else ()
    if return_lse:
        lse = _log(total) + log_total
        extras += (lse if queries[1] is None else lse + queries[1],)
    return (output, *extras) if extras else output


def _dense(queries, keys, v, mask, bias, causal):
    """Return output, sums of weights, their factors' logarithms and the weights."""
    products = multiply_shared(queries[0], keys[0].mT)  # (..., n, m)
    logs = torch.zeros_like(products) if keys[1] is None else keys[1][..., None, :]
    logs = restrict(logs.expand(products.shape), mask=mask, bias=bias, causal=causal)
    shares = products * masked_softmax(logs)  # (..., n, m)
    total = shares.sum(-1, keepdim=True)
    weights = _divide(shares, total)
    return mix(weights, v), total.squeeze(-1), log_sum_exp(logs), weights


def _summed(queries, keys, v, mask, causal, run):
    """Return output, sums of weights and their factors' logarithms, without any weight."""
    (phi_q, _), (phi_k, logs), (n, m) = queries, keys, (queries[0].shape[-2], v.shape[-2])
    values = functional.pad(at_least_float32(v), (0, 1), value=1.0)  # (..., m, d_v + 1)
    if mask is not None:
        there = mask if mask.ndim < 2 else mask.any(-2)  # (..., m), of (..., 1, m)
        there = there.expand(*there.shape[:-1], m)
        phi_k = torch.where(there[..., None], phi_k, 0.0)
        logs = logs if logs is None else torch.where(there, logs, -torch.inf)
    top = fade = None
    before, blind = (max(m - n, 0), max(n - m, 0)) if causal else (m, 0)
    if logs is not None:
        top, logs, fade = _running(logs, before, causal)
        phi_k = phi_k * logs.exp()[..., None]
    state = phi_k[..., :before, :].mT @ values[..., :before, :]  # (..., d_f, d_v + 1)
    if not causal:
        y = multiply_shared(phi_q, state)
    else:
        late = (phi_q[..., blind:, :], phi_k[..., before:, :], values[..., before:, :])
        y, _ = run(*late, log_decay=fade, state=state)
        y = functional.pad(y, (0, 0, blind, 0))  # (..., n, d_v + 1)
    mixed, total = y[..., :-1], y[..., -1:]
    output = _divide(mixed, total).to(v.dtype)
    if top is None:
        return output, total.squeeze(-1), 0.0
    return output, total.squeeze(-1), functional.pad(top, (blind, 0)) if causal else top


def _running(logs, before, causal):
    """Return the largest λ so far for each query, each key's λ less that, and how it fades.

    The first ``before`` keys are summed at once, relative to the largest of them.
    """
    if logs.shape[-1] == 0:
        return (logs, logs, logs) if causal else (logs.sum(-1, keepdim=True), logs, None)
    tops = logs.detach().cummax(-1).values  # (..., m)
    tops = tops.masked_fill(tops == -torch.inf, 0.0)  # no key yet
    if before:
        start = tops[..., before - 1 : before]
        tops = torch.cat((start.expand(*start.shape[:-1], before), tops[..., before:]), dim=-1)
    if not causal:
        return tops[..., -1:], logs - tops, None
    fade = functional.pad(-tops.diff(dim=-1), (1, 0)).clamp(max=0)  # above 0 only before a key
    return tops[..., before:], logs - tops, fade[..., before:]


def _divide(x, total):
    """Return x / total, and zeros where the total is nothing."""
    none = total.abs() < _nothing(total)
    return (x / total.masked_fill(none, 1.0)).masked_fill(none, 0.0)


def _log(x):
    """Return the logarithm, −∞ with gradient 0 where x is nothing."""
    none = x < _nothing(x)
    return x.masked_fill(none, 1.0).log().masked_fill(none, -torch.inf)


def _nothing(x):
    """Return below what a sum of weights counts as 0; one over it must leave room for a slope."""
    return torch.finfo(x.dtype).tiny * 2.0**26


def scores_by_features(queries: Mapped, keys: Mapped, **restricted: object) -> Tensor:
    """Return the scores whose softmax are the weights φ(q) · φ(k): their logarithm.

    Args:
        queries: φ (..., n, d_f), not negative, and λ (..., n) or None.
        keys: φ (..., m, d_f), not negative, and λ (..., m) or None.
        restricted: mask, bias and causal, see :func:`tfbook.attention.restrict`.

    Returns:
        Scores (..., n, m), −∞ where not allowed and where features do not meet.

    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    scores = _log(multiply_shared(queries[0], keys[0].mT))  # (..., n, m)
    if queries[1] is not None:
        scores = scores + queries[1][..., :, None]
    if keys[1] is not None:
        scores = scores + keys[1][..., None, :]
    return restrict(scores, **restricted)


def mixing_flops(
    n: int, m: int, d_f: int, d_v: int, *, causal: bool, form: str, chunk: int
) -> tuple[int, int]:
    """Count what one head spends on weights, and on mixing values by them or by their sums.

    Args:
        n: queries.
        m: keys.
        d_f: features of each.
        d_v: size of a value.
        causal: whether the future is hidden.
        form: as in :func:`attend_linear`.
        chunk: tokens in a chunk.

    Returns:
        FLOPs of the weights φ(q) · φ(k), 0 where none are formed, and of the rest.

    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    if form == "parallel":
        return 2 * n * m * d_f, 2 * n * m * d_v
    width = d_v + 1  # the sum of the weights is one more value
    reads = min(n, m) if causal else n
    sums = 2 * (m + reads) * d_f * width
    if not causal or form == "recurrent":
        return 0, sums
    full, rest = divmod(reads, chunk)
    pairs = full * chunk**2 + rest**2
    return 2 * pairs * d_f, 2 * pairs * width + sums


def _flops(n, m, d_k, d_v, causal=False, *, feature="elu", form="chunked", chunk=64):
    width = d_k if isinstance(feature, str) else feature(torch.zeros(1, d_k)).shape[-1]
    return mixing_flops(n, m, width, d_v, causal=causal, form=form, chunk=chunk)


def mixing_keeps(
    n: int, m: int, d_f: int, d_v: int, *, causal: bool, form: str, chunk: int
) -> tuple[int, int, int]:
    """Count the numbers that mixing by features keeps for the backward pass, without the features.

    Args:
        n: queries.
        m: keys.
        d_f: features of each.
        d_v: size of a value.
        causal: whether the future is hidden.
        form: as in :func:`attend_linear`.
        chunk: tokens in a chunk.

    Returns:
        Numbers of all pairs, 0 where no weights are formed; of a query head beside them; and of a
        head of keys and values.

    Explained in: chapters/07_efficient_attention, section "Take the sum first".
    """
    if form == "parallel":
        return 3 * n * m, n, m * d_v
    reads, states, pairs = min(n, m), 1, 0
    if causal and form == "recurrent":
        states = reads
    elif causal:
        full, rest = divmod(reads, chunk)
        states, pairs = full + (rest > 0), full * chunk**2 + rest**2
    width = d_v + 1  # the sum of the weights is one more value
    return 0, n * (width + 1) + pairs, m * width + states * d_f * width


# What each feature map keeps of each number that it makes.
KEPT = {"elu": 4, "relu": 1, "squared_relu": 2}


def _keeps(n, m, d_k, d_v, causal=False, *, feature="elu", form="chunked", chunk=64):
    known = isinstance(feature, str)
    width = d_k if known else feature(torch.zeros(1, d_k)).shape[-1]
    each = KEPT[feature] if known else 1
    pairs, queries, keys = mixing_keeps(n, m, width, d_v, causal=causal, form=form, chunk=chunk)
    if causal and form == "chunked":  # products copy what lies between that of other heads
        reads = min(n, m)
        queries += 2 * reads * width
        keys += max(0, reads - 1) // chunk * chunk * width  # nothing reads what the last one writes
    return pairs, queries + each * n * width, keys + each * m * width


attend_linear.scores = _linear_scores

register(
    "linear",
    attend_linear,
    lacks={
        "exact": "weights φ(q) · φ(k) are not exp(q · k)",
        "scale": "a scale acts before the feature map, which is not linear",
        "default_scale": "a feature map takes queries and keys as they are",
        "key_shift": "φ does not pass a shift through unchanged",
        "extreme_logits": "a query whose features are all rounded to 0 weighs no key",
    },
    options={"form": "parallel"},  # the form that takes any mask and bias; others are equal to it
    flops=_flops,
    keeps=_keeps,
)
