"""Low-rank attention: the n × m weights as a product of thin matrices.

Linformer mixes the keys, and the values, into a fixed number of rows by learned weights; Nyström
attention takes means of segments as landmarks and goes from queries to keys by way of them. Both
look at all keys before the first query is answered, so neither can be causal.

Explained in: chapters/07_efficient_attention_deeper, section "Few rows for many keys".
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfbook._checks import (
    broadcast_batch,
    check_attention,
    check_bool,
    check_choice,
    check_float,
    check_mask,
    check_number,
    check_tensor,
)
from tfbook.attention import (
    at_least_float32,
    masked_softmax,
    mix,
    multiply_shared,
    register,
    scaled_dot_scores,
)

__all__ = ["LinformerAttention", "attend_nystrom", "newton_inverse", "segment_means"]

INVERSES = ("newton", "exact")


def segment_means(
    x: Float[Tensor, "*#B N D"],
    n_segments: int,
    *,
    mask: Bool[Tensor, "..."] | None = None,
) -> tuple[Float[Tensor, "*B S D"], Bool[Tensor, "*C S"]]:
    """Take the mean of each of so many segments of equal length, as far as they can be equal.

    Row i of n goes to segment ⌊i s / n⌋ of s = min(n_segments, n). Only allowed rows count, as if
    the others were not there.

    Args:
        x: rows (..., n, d).
        n_segments: how many segments at most.
        mask: boolean, True = allowed, broadcasts to (..., n).

    Returns:
        The means (..., s, d), zeros for an empty segment, and which segments have a row, (..., s).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or fewer than one segment.

    Example:
        >>> means, there = segment_means(torch.arange(5.0)[:, None], 2)  # 0 1 2 and 3 4
        >>> means.flatten(), there
        (tensor([1.0000, 3.5000]), tensor([True, True]))

    Source: [xiong2021nystromformer]
    Explained in: chapters/07_efficient_attention_deeper, section "Few rows for many keys".
    """
    check_float("x", x, min_dims=2)
    check_number("n_segments", n_segments, 1, whole=True)
    n = x.shape[-2]
    if mask is None:
        there = torch.ones(n, dtype=torch.bool, device=x.device)
    else:
        check_tensor("mask", mask)
        lead = broadcast_batch(x=x.shape[:-2], mask=mask.shape[:-1]) if mask.ndim else ()
        check_mask(mask, (*lead, n), device=x.device)
        there = mask.expand(*mask.shape[:-1], n)
    s = min(n_segments, n)
    count, place = there.sum(-1, keepdim=True), there.cumsum(-1) - 1  # (..., 1), (..., n)
    segment = place * count.clamp(max=s) // count.clamp(min=1)
    own = segment[..., None, :] == torch.arange(s, device=x.device)[:, None]  # (..., s, n)
    own = own & there[..., None, :]
    sizes = own.sum(-1, keepdim=True)  # (..., s, 1)
    shares = own.to(x.dtype) / sizes.clamp(min=1)
    return shares @ x, sizes.squeeze(-1) > 0


def newton_inverse(a: Float[Tensor, "*B S T"], steps: int = 6) -> Float[Tensor, "*B T S"]:
    """Approach the pseudo-inverse by products of matrices alone, which a GPU likes.

    Z ← Z (13 I − A Z (15 I − A Z (7 I − A Z))) / 4, from Z = Aᵀ / (‖A‖₁ ‖A‖_∞). Each step cubes the
    distance of A Z from the identity; how many it takes depends on the smallest singular value.

    Args:
        a: A, (..., s, t).
        steps: how often.

    Returns:
        About A⁺, (..., t, s).

    Raises:
        TypeError: if a is not floating point.
        ValueError: for fewer than two dimensions or a number of steps below 0.

    Example:
        >>> newton_inverse(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), steps=8)
        tensor([[0.5000, 0.0000],
                [0.0000, 0.2500]])

    Source: [xiong2021nystromformer]
    Explained in: chapters/07_efficient_attention_deeper, section "Few rows for many keys".
    """
    check_float("a", a, min_dims=2)
    check_number("steps", steps, 0, whole=True)
    if a.numel() == 0:
        return a.mT
    columns, rows = (a.abs().sum(dim).amax(-1)[..., None, None] for dim in (-2, -1))
    none = (columns * rows) == 0
    z = a.mT / (columns * rows).masked_fill(none, 1.0)  # (..., t, s)
    eye = torch.eye(a.shape[-2], dtype=a.dtype, device=a.device)
    for _ in range(steps):
        az = a @ z  # (..., s, s)
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z


def attend_nystrom(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    landmarks: int = 64,
    inverse: str = "newton",
    steps: int = 6,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Float[Tensor, "*B N E"]:
    """Estimate softmax attention by way of a few landmarks, in time linear in the length.

    With q̃ and k̃ the means of segments of queries and keys, and σ the softmax of scaled products:
    out = σ(q k̃ᵀ) σ(q̃ k̃ᵀ)⁺ (σ(q̃ kᵀ) v). With as many landmarks as rows this is attention itself,
    since A A⁺ A = A. In between rows of weights sum to about 1, and some weights are below 0.

    Args:
        q: queries (..., n, d). All of them make landmarks, so leave padding out.
        k: keys (..., m, d).
        v: values (..., m, d_v).
        landmarks: how many means of queries, and of keys; n and m at most.
        inverse: "newton", in few steps, or "exact", by singular values.
        steps: how many of Newton's, see :func:`newton_inverse`.
        mask: boolean, True = allowed, which keys exist: broadcasts to (..., 1, m).
        bias: refused, no score of a query and a key is formed.
        causal: refused, each landmark holds what came later.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: refused, the weights are never whole.
        return_lse: refused, a product of three has no one sum.

    Returns:
        The output (..., n, d_v).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale, number or inverse, or for what is refused.

    Cost: 2 s (n + m) d + 2 s m d_v + 2 s n (s + d_v) FLOPs and those of the inverse, with s
    landmarks; s (n + m) numbers of memory.

    Source: [xiong2021nystromformer]
    Explained in: chapters/07_efficient_attention_deeper, section "Few rows for many keys".
    """
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    check_number("landmarks", landmarks, 1, whole=True)
    check_choice("inverse", inverse, INVERSES)
    check_number("steps", steps, 0, whole=True)
    _refuse("attend_nystrom", mask, bias, causal, return_weights, return_lse)
    with torch.autocast(q.device.type, enabled=False):  # an inverse needs all its digits
        wide = map(at_least_float32, (q, k, v))
        return _by_landmarks(*wide, mask, scale, landmarks, inverse, steps).to(v.dtype)


def _by_landmarks(q, k, v, mask, scale, landmarks, inverse, steps):
    there = None if mask is None else mask.any(-2) if mask.ndim > 1 else mask  # (..., m)
    q_means, _ = segment_means(q, landmarks)  # (..., s, d)
    k_means, filled = segment_means(k, landmarks, mask=there)  # (..., s, d), (..., s)
    filled, there = filled[..., None, :], None if there is None else there[..., None, :]
    to_landmarks = masked_softmax(scaled_dot_scores(q, k_means, scale=scale), filled)  # (..., n, s)
    between = masked_softmax(scaled_dot_scores(q_means, k_means, scale=scale), filled)
    to_keys = masked_softmax(scaled_dot_scores(q_means, k, scale=scale), there)  # (..., s, m)
    inverted = torch.linalg.pinv(between) if inverse == "exact" else newton_inverse(between, steps)
    return multiply_shared(to_landmarks, inverted @ mix(to_keys, v))  # (..., n, d_v)


class LinformerAttention(nn.Module):
    """Attention to a few learned mixtures of the keys and values, a drop-in attention function.

    out = softmax(scale · q (E k)ᵀ) (F v), E and F (rank, m): row r of E says how much each
    position counts for mixture r, whatever stands there.

    Args:
        max_len: the most keys there may be; fewer use the first columns of E and F.
        rank: how many mixtures.
        shared: whether F is E.

    Attributes:
        e: E, (rank, max_len).
        f: F, (rank, max_len); E itself when shared.

    Raises:
        TypeError: for a number or boolean that is none.
        ValueError: for a number below 1.

    Example:
        >>> attend = LinformerAttention(max_len=100, rank=8)
        >>> q, k, v = torch.randn(3, 2, 50, 4)
        >>> attend(q, k, v).shape
        torch.Size([2, 50, 4])

    Source: [wang2020linformer]
    Explained in: chapters/07_efficient_attention_deeper, section "Few rows for many keys".
    """

    def __init__(self, max_len: int, rank: int, *, shared: bool = False):
        """Draw E and F; see the class."""
        super().__init__()
        check_number("max_len", max_len, 1, whole=True)
        check_number("rank", rank, 1, whole=True)
        check_bool("shared", shared)
        self.max_len, self.rank = max_len, rank
        self.e = nn.Parameter(torch.randn(rank, max_len) * max_len**-0.5)
        self.f = self.e if shared else nn.Parameter(torch.randn(rank, max_len) * max_len**-0.5)

    def forward(
        self,
        q: Float[Tensor, "*#B N D"],
        k: Float[Tensor, "*#B M D"],
        v: Float[Tensor, "*#B M E"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        scale: float | None = None,
        return_weights: bool = False,
        return_lse: bool = False,
    ) -> Float[Tensor, "*B N E"]:
        """Attend to mixtures of the keys.

        A masked key counts as 0 in every mixture. Where all keys are masked the output is zeros.

        Args:
            q: queries (..., n, d).
            k: keys (..., m, d), m at most ``max_len``.
            v: values (..., m, d_v).
            mask: boolean, True = allowed, which keys exist: broadcasts to (..., 1, m).
            bias: refused, no score of a query and a key is formed.
            causal: refused, each mixture holds what came later.
            scale: factor on q (E k)ᵀ; 1/√d when omitted.
            return_weights: refused, the weights are over mixtures.
            return_lse: refused, a mixture is not a key.

        Returns:
            The output (..., n, d_v).

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a wrong shape, device or scale, more than ``max_len`` keys, or for
                what is refused.

        Explained in: chapters/07_efficient_attention_deeper, section "Few rows for many keys".
        """
        check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
        _refuse("LinformerAttention", mask, bias, causal, return_weights, return_lse)
        m, dtype = k.shape[-2], v.dtype
        if m > self.max_len:
            raise ValueError(f"k must have at most max_len = {self.max_len} rows, got {m}")
        if k.device != self.e.device:
            raise ValueError(f"k must be on the device of e, {self.e.device}, got {k.device}")
        q, k, v = map(at_least_float32, (q, k, v))
        any_key = None
        if mask is not None:
            there = (mask.any(-2) if mask.ndim > 1 else mask).expand(*mask.shape[:-2], m)
            k, v = (torch.where(there[..., None], x, 0.0) for x in (k, v))
            any_key = there.any(-1)[..., None, None]
        elif m == 0:
            any_key = torch.zeros(1, 1, dtype=torch.bool, device=k.device)
        keys = self.e[:, :m].to(k.dtype) @ k  # (..., rank, d)
        values = self.f[:, :m].to(v.dtype) @ v  # (..., rank, d_v)
        weights = masked_softmax(scaled_dot_scores(q, keys, scale=scale), any_key)  # (..., n, rank)
        return mix(weights, values).to(dtype)


def _refuse(name, mask, bias, causal, return_weights, return_lse):
    """Raise ValueError for what needs a score or a weight of each query and key."""
    check_bool("return_weights", return_weights)
    check_bool("return_lse", return_lse)
    given = {
        "a bias": bias is not None,
        "causal=True": causal,
        "return_weights=True": return_weights,
        "return_lse=True": return_lse,
        "a mask (..., n, m)": mask is not None and mask.ndim > 1 and mask.shape[-2] > 1,
    }
    if refused := [each for each, there in given.items() if there]:
        raise ValueError(
            f"{name} mixes all keys before it meets a query, so it cannot serve "
            f"{' and '.join(refused)}; a mask (..., 1, m) hides keys from every query"
        )


def _flops(
    n, m, d_k, d_v, causal=False, *, landmarks=64, inverse="newton", steps=6, **options
):  # fmt: skip
    s, t = min(landmarks, n), min(landmarks, m)
    scores = s * n + t * m + n * t + s * t + s * m  # means, and three matrices of scores
    newton = steps * (s * t * s + 2 * s**3 + t * s * s) * (inverse == "newton")
    return 2 * scores * d_k, 2 * (newton + (s * m + s * t + n * t) * d_v)


_NO_CAUSE = "landmarks hold the future, so it refuses causal"
_NO_BIAS = "no score of a query and a key is formed, so it refuses a bias"
_KEYS_ONLY = "landmarks are of all queries, so it refuses a mask (..., n, m)"

register(
    "nystrom",
    attend_nystrom,
    lacks={
        "exact": "fewer landmarks than rows lose what is between them",
        "weights": "the weights are never whole",
        "lse": "a product of three softmaxes has no one sum",
        "convex": "the inverse makes weights below 0",
        "query_equivariance": "other queries come into a segment",
        "key_value_invariance": "other keys come into a segment",
        "query_independence": "the other queries are in the landmarks",
        "causal": _NO_CAUSE,
        "alignment": _NO_CAUSE,
        "mask": _KEYS_ONLY,
        "bias": _NO_BIAS,
        "scale": "a scale acts on three softmaxes",
        "default_scale": "the weights are no softmax whose logarithm could be halved",
        "key_shift": _NO_CAUSE + "; without it a shift changes nothing",
        "score_shift": _NO_BIAS,
        "proportional": _NO_BIAS,
        "extreme_logits": "sharp softmaxes of landmarks can be far from invertible",
        "half_precision": _NO_BIAS + "; what it takes, it computes in float32",
        "empty_rows": _KEYS_ONLY + "; without any key all queries get zeros",
        "small_sizes": _KEYS_ONLY + "; without one all sizes work",
        "broadcasting": _KEYS_ONLY + "; without one leading dimensions broadcast",
        "strides": _NO_BIAS + "; without one the layout does not matter",
        "purity": _NO_BIAS + "; without one no input is changed",
        "gradients": "through the bias, which it refuses, there are none; through the others there "
        "are",
        "second_derivatives": "through the bias, which it refuses, there are none; through the "
        "others there are",
        "compile": _NO_CAUSE + "; without it there is no graph break",
        "vmap": _KEYS_ONLY + "; without one vmap works",
        "autocast": _NO_CAUSE + "; without it autocast works",
    },
    options={"landmarks": 3},
    flops=_flops,
)
