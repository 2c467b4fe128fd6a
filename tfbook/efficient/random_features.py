"""Random features: an unbiased estimate of the softmax's kernel that linear attention can sum.

exp(x · y) is the mean over Gaussian vectors w of φ_w(x) φ_w(y). Finitely many w give an estimate,
whose error falls as one over the root of their number. Cosines can estimate a small kernel by a
negative number; exponentials cannot (Choromanski et al. 2021).

Explained in: chapters/07_efficient_attention_deeper, section "A softmax by random features".
"""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfbook._checks import (
    broadcast_batch,
    check_attention,
    check_bool,
    check_choice,
    check_device,
    check_dtype,
    check_float,
    check_number,
    check_same,
    check_shape,
)
from tfbook.attention import at_least_float32, register
from tfbook.efficient.linear import (
    Mapped,
    mix_by_features,
    mixing_flops,
    mixing_keeps,
    scores_by_features,
)

__all__ = [
    "attend_features",
    "draw_projection",
    "fourier_features",
    "kernel_variance",
    "positive_features",
]

KINDS = ("positive", "trigonometric")
Output = Float[Tensor, "*B N E"] | tuple[Tensor, ...]


def draw_projection(
    n_features: int,
    d: int,
    *,
    seed: int = 0,
    orthogonal: bool = True,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "R D"]:
    """Draw the vectors w of random features, each by itself from the normal distribution N(0, I).

    Orthogonal ones come in blocks of d: a random rotation, whose rows get the lengths of normal
    vectors. Each alone is distributed as before, so the estimate stays unbiased, and together they
    spread better, so it varies less.

    Args:
        n_features: how many vectors.
        d: their size, that of queries and keys.
        seed: the same seed draws the same vectors.
        orthogonal: whether each d vectors in order are orthogonal to one another.
        dtype: of the result; PyTorch's default when omitted.
        device: of the result.

    Returns:
        One vector a row, (n_features, d).

    Raises:
        TypeError: for a number, boolean or dtype that is none.
        ValueError: for fewer than one feature or number, a seed below 0, or an unknown device.

    Example:
        >>> w = draw_projection(3, 3, dtype=torch.float64)
        >>> gram = w @ w.T
        >>> torch.allclose(gram, torch.diag(gram.diag()), atol=1e-12)
        True

    Source: [choromanski2021rethinking], [yu2016orthogonal]
    Explained in: chapters/07_efficient_attention_deeper, section "A softmax by random features".
    """
    check_number("n_features", n_features, 1, 2**20, whole=True)
    check_number("d", d, 1, whole=True)
    check_number("seed", seed, 0, whole=True)
    check_bool("orthogonal", orthogonal)
    check_dtype(dtype)
    check_device(device)
    drawn = _constant(n_features, d, seed, orthogonal)
    return drawn.to(device=device, dtype=dtype or torch.get_default_dtype(), copy=True)


def _constant(*asked):
    return torch.from_numpy(_draw(*asked))


# What torch.compiler.assume_constant_result sets; it would import the compiler, two seconds.
_constant._dynamo_marked_constant = True


@lru_cache(maxsize=16)
def _draw(n_features, d, seed, orthogonal):
    """Draw with NumPy, since PyTorch refuses to draw inside of vmap."""
    rng = np.random.default_rng(seed)
    if not orthogonal:
        return rng.normal(size=(n_features, d))
    blocks = []
    for _ in range(math.ceil(n_features / d)):
        q, r = np.linalg.qr(rng.normal(size=(d, d)))
        blocks.append((q * np.sign(np.diag(r))).T)  # without the signs not every turn is as likely
    lengths = np.linalg.norm(rng.normal(size=(n_features, d)), axis=1)
    return np.concatenate(blocks)[:n_features] * lengths[:, None]


def fourier_features(
    x: Float[Tensor, "*B D"], projection: Float[Tensor, "R D"], *, kernel: str = "gaussian"
) -> Float[Tensor, "*B F"]:
    """Map to cosines and sines of random frequencies: φ(x) = [cos Wx, sin Wx] / √r.

    φ(x) · φ(y) = Σ_w cos(w · (x − y)) / r, in the mean over w the Gaussian kernel exp(−|x − y|²/2).
    With a factor exp(|x|²/2) it is in the mean the softmax's, exp(x · y).

    Args:
        x: queries or keys (..., d).
        projection: W, r rows w from N(0, I), (r, d).
        kernel: "gaussian" or "softmax".

    Returns:
        φ(x), (..., 2r), in float32 at least.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit, or an unknown kernel.

    Example:
        >>> x = torch.tensor([1.0, 2.0])
        >>> phi = fourier_features(x, draw_projection(5, 2))
        >>> phi @ phi  # cos² + sin²: the kernel of a point with itself is exact
        tensor(1.)

    Source: [rahimi2007random]
    Explained in: chapters/07_efficient_attention_deeper, section "A softmax by random features".
    """
    check_choice("kernel", kernel, ("gaussian", "softmax"))
    _check_projection("x", x, projection)
    phi, log = _trigonometric(at_least_float32(x), at_least_float32(projection))
    return phi if kernel == "gaussian" else phi * log.exp()[..., None]


def positive_features(
    x: Float[Tensor, "*B D"], projection: Float[Tensor, "R D"]
) -> Float[Tensor, "*B R"]:
    """Map to positive random features: φ(x) = exp(Wx − |x|²/2) / √r.

    φ(x) · φ(y) is in the mean over w the softmax's kernel exp(x · y), and never negative.

    Args:
        x: queries or keys (..., d).
        projection: W, r rows w from N(0, I), (r, d).

    Returns:
        φ(x), (..., r), in float32 at least. Where |x| is large it is rounded to 0, or beyond what
        the dtype holds; :func:`attend_features` keeps the exponents apart.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape that does not fit.

    Example:
        >>> positive_features(torch.zeros(2), draw_projection(4, 2))  # exp(0) / √4
        tensor([0.5000, 0.5000, 0.5000, 0.5000])

    Source: [choromanski2021rethinking]
    Explained in: chapters/07_efficient_attention_deeper, section "A softmax by random features".
    """
    _check_projection("x", x, projection)
    phi, log = _positive(at_least_float32(x), at_least_float32(projection))
    return phi * log.exp()[..., None]


def _positive(x: Tensor, projection: Tensor) -> Mapped:
    """Return features whose largest is 1 / √r, and the logarithm of what was taken off, (...)."""
    exponents = x @ projection.mT - x.square().sum(-1, keepdim=True) / 2  # (..., r)
    top = exponents.detach().amax(-1, keepdim=True)
    return (exponents - top).exp() * projection.shape[0] ** -0.5, top.squeeze(-1)


def _trigonometric(x: Tensor, projection: Tensor) -> Mapped:
    angles = x @ projection.mT  # (..., r)
    phi = torch.cat((angles.cos(), angles.sin()), dim=-1) * projection.shape[0] ** -0.5
    return phi, x.square().sum(-1) / 2


MAPS = {"positive": _positive, "trigonometric": _trigonometric}


def kernel_variance(
    x: Float[Tensor, "*#B D"],
    y: Float[Tensor, "*#B D"],
    n_features: int,
    *,
    kind: str = "positive",
) -> Float[Tensor, "*B"]:
    """Give the variance of the estimate of exp(x · y) from independent vectors w.

    positive: exp(|x + y|²) exp(x · y)² (1 − exp(−|x + y|²)) / r, small where the kernel is small;
    trigonometric: exp(|x + y|²) exp(x · y)⁻² (1 − exp(−|x − y|²))² / 2r, large there.

    Args:
        x: one vector (..., d).
        y: another (..., d).
        n_features: r, the number of vectors w, each drawn by itself.
        kind: "positive" or "trigonometric".

    Returns:
        The variance of φ(x) · φ(y), (...).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for shapes that do not fit, fewer than one feature, or an unknown kind.

    Example:
        >>> x, y = torch.tensor([2.0]), torch.tensor([-2.0])  # the kernel is exp(−4) = 0.0183
        >>> [round(float(kernel_variance(x, y, 100, kind=k).sqrt()), 2) for k in KINDS]
        [0.0, 3.86]

    Source: [choromanski2021rethinking]
    Explained in: chapters/07_efficient_attention_deeper, section "A softmax by random features".
    """
    check_float("x", x, min_dims=1)
    check_float("y", y, min_dims=1)
    check_same(x=x, y=y)
    check_shape("y", y, (*y.shape[:-1], x.shape[-1]), "(..., d), as x,")
    broadcast_batch(x=x.shape[:-1], y=y.shape[:-1])
    check_number("n_features", n_features, 1, 2**20, whole=True)
    check_choice("kind", kind, KINDS)
    dot, both = 2 * (x * y).sum(-1), (x + y).square().sum(-1)
    if kind == "positive":
        return (both + dot).exp() * -torch.expm1(-both) / n_features
    apart = -torch.expm1(-(x - y).square().sum(-1))
    return (both - dot).exp() * apart.square() / (2 * n_features)


def attend_features(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    v: Float[Tensor, "*#B M E"],
    *,
    n_features: int = 256,
    kind: str = "positive",
    seed: int = 0,
    orthogonal: bool = True,
    projection: Float[Tensor, "R D"] | None = None,
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    scale: float | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
    form: str = "chunked",
    chunk: int = 64,
) -> Output:
    """Estimate softmax attention by random features, in time and memory linear in the length.

    exp(scale · q · k) is estimated by φ(√scale q) · φ(√scale k), and the rest is linear attention,
    see :func:`tfbook.efficient.attend_linear`. Positive features are those of the Performer.

    Exponents are taken off: each query's largest, which the division cancels, and the largest of
    the keys so far. Trigonometric features can be negative, and so can a sum of weights: where the
    kernel is small the output may be anything.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        v: values (..., m, d_v).
        n_features: how many vectors w to draw; each gives two trigonometric features.
        kind: "positive" or "trigonometric".
        seed: of the vectors: the same for each call, unless you change it.
        orthogonal: see :func:`draw_projection`.
        projection: the vectors, (r, d), in place of n_features, seed and orthogonal.
        mask: boolean, True = allowed, which keys exist: broadcasts to (..., 1, m). In parallel
            form any that broadcasts to (..., n, m).
        bias: refused; in parallel form added to the scores, (..., n, m).
        causal: hide the future, aligned to the last key.
        scale: factor on q · k; 1/√d when omitted.
        return_weights: refused; in parallel form also return the weights (..., n, m).
        return_lse: also return the estimated log-sum-exp of each row of scores, (..., n).
        form: when causal, how to sum over the past: "chunked" (fast), "recurrent" (token by
            token) or "parallel" (to read: forms all n × m weights, causal or not).
        chunk: tokens in a chunk.

    Returns:
        The output (..., n, d_v), or a tuple of output and what else was asked for, weights first.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device, scale, kind, form or number, or for what only the
            parallel form can do.

    Cost: 2 (n + m) r (d + d_v + 1) FLOPs; causal besides 2 n · chunk (r + d_v + 1).

    Source: [choromanski2021rethinking]
    Explained in: chapters/07_efficient_attention_deeper, section "A softmax by random features".
    """
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    drawn = {"n_features": n_features, "seed": seed, "orthogonal": orthogonal}
    queries, keys = _features(q, k, kind, projection, scale, drawn)
    return mix_by_features(
        queries, keys, v, mask=mask, bias=bias, causal=causal, form=form, chunk=chunk,
        return_weights=return_weights, return_lse=return_lse,
    )  # fmt: skip


def _feature_scores(
    q, k, *, n_features=256, kind="positive", seed=0, orthogonal=True, projection=None, scale=None,
    form=None, chunk=None, **restricted,
):  # fmt: skip
    """Return log φ(q) · φ(k), restricted; the form plays no role."""
    if kind == "trigonometric":
        raise ValueError("trigonometric features form weights below 0, which have no scores")
    drawn = {"n_features": n_features, "seed": seed, "orthogonal": orthogonal}
    return scores_by_features(*_features(q, k, kind, projection, scale, drawn), **restricted)


def _features(q, k, kind, projection, scale, drawn):
    """Return the features of queries and keys, both scaled by √scale."""
    check_choice("kind", kind, KINDS)
    q, k, d = at_least_float32(q), at_least_float32(k), q.shape[-1]
    if projection is None:
        projection = draw_projection(**drawn, d=max(d, 1), dtype=q.dtype, device=q.device)[:, :d]
    else:
        _check_projection("q", q, projection, dtype=False)
    projection = projection.to(q.dtype)
    root = max(d, 1) ** -0.25 if scale is None else scale**0.5
    return MAPS[kind](q * root, projection), MAPS[kind](k * root, projection)


def _check_projection(name, x, projection, *, dtype=True):
    check_float(name, x, min_dims=1)
    check_float("projection", projection, min_dims=2)
    check_shape("projection", projection, (len(projection), x.shape[-1]), "(r, d)")
    if not len(projection):
        raise ValueError("projection must have at least one row, got none")
    if x.device != projection.device or dtype:
        check_same(**{name: x, "projection": projection})


def _flops(n, m, d_k, d_v, causal=False, *, form="chunked", chunk=64, **options):
    given = options.get("projection")
    width = options.get("n_features", 256) if given is None else len(given)
    mapping = 2 * (n + m) * d_k * width
    width *= 1 + (options.get("kind") == "trigonometric")
    scores, mixed = mixing_flops(n, m, width, d_v, causal=causal, form=form, chunk=chunk)
    return scores + mapping, mixed


def _keeps(n, m, d_k, d_v, causal=False, *, form="chunked", chunk=64, **options):
    given, waves = options.get("projection"), options.get("kind") == "trigonometric"
    drawn = options.get("n_features", 256) if given is None else len(given)
    width, made = drawn * (1 + waves), drawn * (2 + waves)  # angles, and what is made of them
    pairs, queries, keys = mixing_keeps(n, m, width, d_v, causal=causal, form=form, chunk=chunk)
    keys += m * (1 + width * waves)  # they are taken relative to their largest
    if causal and form == "chunked":  # how the past fades, and what is left of each key
        squares = queries - n * (d_v + 2)
        queries, keys = queries + squares, keys + min(n, m) * width
    return pairs, queries + n * (d_k + made), keys + m * (d_k + made)


attend_features.scores = _feature_scores

register(
    "features",
    attend_features,
    lacks={
        "exact": "finitely many features estimate exp(q · k), they do not compute it",
        "scale": "a power of an estimate is not the estimate of the power",
        "default_scale": "queries of another size meet other random vectors",
        "key_shift": "the features of shifted keys estimate with another error",
        "extreme_logits": "a query and its keys may have no feature in common that is not 0",
    },
    options={"n_features": 16, "form": "parallel"},  # others are equal to the parallel form
    flops=_flops,
    keeps=_keeps,
)
