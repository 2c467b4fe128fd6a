"""Hashed attention: queries meet the keys that fall into nearly the same bucket, as in Reformer.

Random rotations turn a vector, and the largest of its turned numbers, with its sign, names its
bucket; vectors at a small angle often share one. Rows are sorted by bucket and cut into chunks,
and a chunk of queries meets the same chunk of keys and the one before. Several rounds with other
rotations find what one has missed; together they are one softmax over all keys that any found.

Explained in: chapters/07_efficient_attention_deeper, section "Hashing: look where the answer is
likely".
"""

import functools
import math
import random
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from tfbook._checks import (
    check_attention,
    check_bool,
    check_float,
    check_number,
    scores_shape,
)
from tfbook.attention import (
    at_least_float32,
    attend,
    causal_mask,
    combine_masks,
    log_sum_exp,
    masked_scores,
    masked_softmax,
    mix,
    register,
    restrict,
)

__all__ = ["attend_hashed", "collision_probability", "hash_recall", "hashed_mask", "lsh_buckets"]

Output = Float[Tensor, "*B N E"] | tuple[Tensor, ...]


def lsh_buckets(
    x: Float[Tensor, "*B N D"], *, buckets: int, rounds: int = 1, seed: int = 0
) -> Int[Tensor, "*B R N"]:
    """Hash vectors by random rotations, so that those at a small angle often share a bucket.

    bucket_r(x) = argmax [x R_r ; −x R_r], with the buckets / 2 columns of R_r normal at random.
    The length of x does not matter. With two buckets it is the side of a random plane.

    Args:
        x: vectors (..., n, d).
        buckets: how many, even; or 1.
        rounds: how many hashes with rotations of their own.
        seed: of the rotations.

    Returns:
        The bucket in each round, integers from 0 (..., rounds, n).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a shape or a number out of range.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0]])
        >>> a, b, c = lsh_buckets(x, buckets=4)[0].tolist()
        >>> a == b, abs(a - c)
        (True, 2)

    Cost: n · d · buckets FLOPs a round.

    Source: [andoni2015practical], in attention: [kitaev2020reformer]
    Explained in: chapters/07_efficient_attention_deeper, section "Hashing: look where the answer is
    likely".
    """
    check_float("x", x, min_dims=2)
    _check_rounds(buckets, rounds, seed)
    return _hash(x, _rotations(rounds, x.shape[-1], buckets // 2, seed))


def _hash(x, rotations):
    """Return the bucket of each row for rotations (rounds, d, buckets / 2)."""
    x = at_least_float32(x.detach()).unsqueeze(-3)  # (..., 1, n, d)
    if not rotations.shape[-1]:  # one bucket
        return x.new_zeros((*x.shape[:-3], len(rotations), x.shape[-2]), dtype=torch.long)
    with torch.autocast(x.device.type, enabled=False):
        turned = x @ rotations.to(x)  # (..., rounds, n, buckets/2)
    return torch.cat([turned, -turned], dim=-1).argmax(-1)


def _rotations(rounds: int, d: int, half: int, seed: int) -> Tensor:
    """Return the rotations, (rounds, d, half); no generator of PyTorch's, for ``torch.vmap``."""
    numbers = _normal_numbers(rounds * d * half, seed)
    return torch.tensor(numbers, dtype=torch.float64).view(rounds, d, half)


# What torch.compiler.assume_constant_result sets; it would import the compiler, two seconds.
_rotations._dynamo_marked_constant = True


@functools.lru_cache(maxsize=16)
def _normal_numbers(count: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(0.0, 1.0) for _ in range(count)]


def collision_probability(angle: float, *, buckets: int = 2, rounds: int = 1) -> float:
    """Return how likely two vectors at an angle share a bucket in at least one round.

    p = 1 − θ/π with two buckets, since a random plane through 0 parts them with probability θ/π;
    p = (1 − θ/π)² with four, since then |a| > |b| asks for the signs of a + b and a − b, the sides
    of two independent planes. In one of r rounds: 1 − (1 − p)^r.

    Args:
        angle: θ, from 0 to π.
        buckets: 2 or 4; no closed form is known for more.
        rounds: how many hashes.

    Raises:
        TypeError: for a wrong type.
        ValueError: for a number out of range.

    Example:
        >>> collision_probability(math.pi / 2), collision_probability(math.pi / 2, rounds=2)
        (0.5, 0.75)

    Source: [charikar2002similarity]
    Explained in: chapters/07_efficient_attention_deeper, section "Hashing: look where the answer is
    likely".
    """
    check_number("angle", angle, 0, math.pi)
    check_number("buckets", buckets, 2, 4, whole=True)
    if buckets == 3:
        raise ValueError("buckets must be 2 or 4, got 3")
    check_number("rounds", rounds, 1, whole=True)
    once = (1 - angle / math.pi) ** (buckets // 2)
    return 1 - (1 - once) ** rounds


class _Plan(NamedTuple):
    """Where rows stand after sorting: in which order, and in chunks of which size.

    order (..., R, n) lists the rows bucket by bucket, place (..., R, n) undoes it, and size rows
    make a chunk.
    """

    order: Tensor
    place: Tensor
    size: int


def _plan(x, chunks, rotations):
    """Sort the rows of x by bucket, in each bucket by position, for so many chunks."""
    found = _hash(x, rotations)  # (..., R, n)
    order = found.argsort(dim=-1, stable=True)
    return _Plan(order, order.argsort(dim=-1), max(1, -(-x.shape[-2] // chunks)))


def _plans(q, k, chunk, shared, choices):
    """Return the number of chunks, and the plans of queries and keys."""
    rounds, buckets, seed = choices
    rotations = _rotations(rounds, q.shape[-1], buckets // 2, seed)
    chunks = max(1, -(-k.shape[-2] // chunk))
    queries = _plan(q, chunks, rotations)
    return chunks, queries, queries if shared else _plan(k, chunks, rotations)


def attend_hashed(
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
    buckets: int = 16,
    rounds: int = 2,
    chunk: int = 64,
    seed: int = 0,
    shared: bool = False,
) -> Output:
    """Attend to the keys that hashing puts near a query; no (n, m) matrix is made.

    In each round queries and keys are sorted by bucket and cut into equally many chunks; a query
    meets the keys of its chunk and of the one before. With P_i the keys that some round shows to
    query i, out_i = softmax over P_i of (scale · q_i · k_j + bias) times v: each round computes
    its part with scores less log N_ij, where N_ij rounds show key j, and the parts are merged by
    their log-sum-exp.

    With ``shared``, as in Reformer, queries and keys are the same vectors, the keys cut to length
    1, and a token attends to itself only if it may attend to nothing else; otherwise it would look
    at itself most of all.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d); with ``shared`` these are the queries.
        v: values (..., m, d_v).
        mask: boolean, True = allowed, broadcasts to (..., n, m).
        bias: added to the scores, broadcasts to (..., n, m).
        causal: hide the future, aligned to the last key. Later rows still take part in the sorting,
            so they may move an earlier query to another chunk.
        scale: factor on q kᵀ; 1/√d when omitted.
        return_weights: also return the weights (..., n, m), which are then written out.
        return_lse: also return the log-sum-exp of the scores of the keys in P, (..., n).
        buckets: how many, even; or 1.
        rounds: how many hashes.
        chunk: keys in a chunk.
        seed: of the random rotations.
        shared: whether queries and keys are the same vectors.

    Returns:
        The output (..., n, d_v), or a tuple of output and what else was asked for, weights first.
        A query to which hashing shows no allowed key gets zeros.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape, device or number; with ``shared`` for keys that are not the
            queries.

    Cost: rounds · n · (2 · chunk) · 2(d + d_v) FLOPs, n · d · buckets a round for hashing, sorting,
        and O(rounds² · n · chunk) comparisons to count the rounds that show a pair.

    Example:
        >>> q, v = torch.randn(100, 8), torch.randn(100, 4)
        >>> attend_hashed(q, q, v, shared=True, causal=True, chunk=10).shape
        torch.Size([100, 4])

    Source: [kitaev2020reformer]
    Explained in: chapters/07_efficient_attention_deeper, section "Hashing: look where the answer is
    likely".
    """
    check_attention(q, k, v, mask=mask, bias=bias, causal=causal, scale=scale)
    _check_choices(q, k, buckets, rounds, chunk, seed, shared)
    given = {"mask": mask, "bias": bias, "causal": causal, "scale": scale}
    check_bool("return_lse", return_lse)
    check_bool("return_weights", return_weights)
    if return_weights:
        choices = {"buckets": buckets, "rounds": rounds, "chunk": chunk, "seed": seed}
        scores = _hashed_scores(q, k, shared=shared, **choices, **given)
        weights = masked_softmax(scores)
        output, weights = mix(weights, v), weights.to(v.dtype)
        return (output, weights, log_sum_exp(scores)) if return_lse else (output, weights)
    output, lse = _attend(q, k, v, chunk, shared, (rounds, buckets, seed), given)
    return (output, lse) if return_lse else output


def _attend(q, k, v, chunk, shared, choices, given):
    """Return output and log-sum-exp, (..., n, e) and (..., n)."""
    *batch, n, m = scores_shape(q, k, v)
    if not math.prod((*batch, n, m)):  # nothing to hash
        return attend(q, k, v, return_lse=True, **given)
    q, k = (at_least_float32(x).expand(*batch, *x.shape[-2:]) for x in (q, k))
    values = at_least_float32(v).expand(*batch, m, v.shape[-1])
    chunks, queries, keys = _plans(q, k, chunk, shared, choices)
    if shared:
        k = functional.normalize(k, dim=-1)
    scale = max(q.shape[-1], 1) ** -0.5 if given["scale"] is None else given["scale"]
    q_rows, q_at = _in_chunks(q * scale, queries, chunks)  # (..., R, C, L, d), (..., R, C, L)
    k_rows, k_at = _in_chunks(k, keys, chunks)
    v_rows, _ = _in_chunks(values, keys, chunks)
    k_rows, v_rows, k_at = (_with_chunk_before(x, chunks) for x in (k_rows, v_rows, k_at))
    scores = q_rows @ k_rows.mT  # (..., R, C, L, 2L')
    allowed = _allowed(q_at, k_at, n, m, shared, given, batch)
    if given["bias"] is not None:
        scores = scores + _of_pairs(given["bias"], q_at, k_at, batch)
    scores = scores - _times_met(q_at, k_at, queries, keys).to(scores.dtype).log()
    scores = scores.masked_fill(~allowed, -torch.inf)
    found = mix(masked_softmax(scores), v_rows)  # (..., R, C, L, e)
    found = _in_order(found.flatten(-3, -2), queries)  # (..., R, n, e)
    lse = _in_order(log_sum_exp(scores).flatten(-2).unsqueeze(-1), queries)  # (..., R, n, 1)
    found, lse = found.movedim(-3, -1), lse.squeeze(-1).movedim(-2, -1)  # (..., n, e, R), (…, n, R)
    if shared:
        found, lse = _or_itself(found, lse, q * scale, k, values, given)
    shares = masked_softmax(lse).unsqueeze(-2)  # (..., n, 1, R)
    return (found * shares).sum(-1).to(v.dtype), log_sum_exp(lse)


def _in_chunks(x, plan, chunks):
    """Sort rows (..., n, d) and cut them: (..., R, C, L, d), and which each is, (..., R, C, L).

    What fills the last chunk is zeros, said to be row −1.
    """
    size, n = plan.size, x.shape[-2]
    rows = torch.take_along_dim(x.unsqueeze(-3), plan.order.unsqueeze(-1), dim=-2)
    missing = chunks * size - n
    at = functional.pad(plan.order, (0, missing), value=-1).unflatten(-1, (chunks, size))
    return functional.pad(rows, (0, 0, 0, missing)).unflatten(-2, (chunks, size)), at


def _with_chunk_before(x, chunks):
    """Put in front of each chunk the one before, (..., C, L, ·) → (..., C, 2L, ·); none is −1."""
    whole = x.is_floating_point()
    dim = -3 if whole else -2
    first = torch.full_like(x.narrow(dim, 0, 1), 0 if whole else -1)
    before = torch.cat([first, x.narrow(dim, 0, chunks - 1)], dim=dim)
    return torch.cat([before, x], dim=dim + 1)


def _allowed(q_at, k_at, n, m, shared, given, batch):
    """Return which pairs of a chunk may meet, (..., R, C, L, 2L')."""
    i, j = q_at.unsqueeze(-1), k_at.unsqueeze(-2)
    allowed = (i >= 0) & (j >= 0)
    if given["causal"]:
        allowed = allowed & (j <= i + (m - n))
    if shared:
        allowed = allowed & (i != j)
    if given["mask"] is not None:
        allowed = allowed & _of_pairs(given["mask"], q_at, k_at, batch)
    return allowed


def _of_pairs(x, q_at, k_at, batch):
    """Pick what belongs to the pairs out of a mask or bias that broadcasts to (..., n, m)."""
    x = x[(None,) * (2 - x.ndim)]
    n, m = x.shape[-2:]
    i = (q_at.clamp(min=0) if n > 1 else torch.zeros_like(q_at)).unsqueeze(-1)
    j = (k_at.clamp(min=0) if m > 1 else torch.zeros_like(k_at)).unsqueeze(-2)
    pairs = i * m + j  # (..., R, C, L, 2L')
    flat = x.expand(*batch, n, m).flatten(-2)  # (..., n · m)
    return flat.gather(-1, pairs.flatten(-4)).unflatten(-1, pairs.shape[-4:])


def _times_met(q_at, k_at, queries, keys):
    """Count in how many rounds each pair of a chunk meets, at least 1: (..., R, C, L, 2L')."""
    rounds, count = q_at.shape[-3], 0
    if rounds == 1:
        return torch.ones_like(q_at.unsqueeze(-1))
    for other in range(rounds):
        i, j = (
            (plan.place.select(-2, other) // plan.size)
            .gather(-1, at.clamp(min=0).flatten(-3))
            .view_as(at)
            for plan, at in ((queries, q_at), (keys, k_at))
        )
        ahead = i.unsqueeze(-1) - j.unsqueeze(-2)
        count = count + ((ahead == 0) | (ahead == 1)).long()
    return count.clamp(min=1)


def _in_order(rows, plan):
    """Undo the sorting of the rows, (..., R, C · L, e) → (..., R, n, e)."""
    return torch.take_along_dim(rows, plan.place.unsqueeze(-1), dim=-2)


def _or_itself(found, lse, q, k, v, given):
    """Add a part in which each token sees itself, where no other part shows it anything."""
    own = (q * k).sum(-1)  # (..., n)
    if given["bias"] is not None:
        own = own + _diagonal(given["bias"], own.shape[-1])
    alone = (lse == -torch.inf).all(-1)
    if given["mask"] is not None:
        alone = alone & _diagonal(given["mask"], own.shape[-1])
    own = own.masked_fill(~alone, -torch.inf)
    found = torch.cat([found, v.unsqueeze(-1)], dim=-1)  # (..., n, e, R + 1)
    return found, torch.cat([lse, own.unsqueeze(-1)], dim=-1)


def _diagonal(x, n):
    """Return what broadcasts to (..., n, n) at the pairs (i, i), (..., n)."""
    x = x[(None,) * (2 - x.ndim)]
    return x.expand(*x.shape[:-2], n, n).diagonal(dim1=-2, dim2=-1)


def hashed_mask(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    *,
    buckets: int = 16,
    rounds: int = 2,
    chunk: int = 64,
    seed: int = 0,
) -> Bool[Tensor, "*B N M"]:
    """Say which keys hashing shows to which query: the explicit form of :func:`attend_hashed`.

    allowed[i, j] = in some round, key j is in the chunk of query i or in the one before.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d); queries and keys that are the same tensor are hashed once.
        buckets: how many, even; or 1.
        rounds: how many hashes.
        chunk: keys in a chunk.
        seed: of the random rotations.

    Returns:
        A mask (..., n, m), before causality and any other mask.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape or number.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.1], [-1.0, 0.1]])
        >>> hashed_mask(x, x, buckets=2, rounds=1, chunk=2).int()
        tensor([[1, 0, 1, 0],
                [1, 1, 1, 1],
                [1, 0, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)

    Explained in: chapters/07_efficient_attention_deeper, section "Hashing: look where the answer is
    likely".
    """
    check_attention(q, k, k)
    _check_choices(q, k, buckets, rounds, chunk, seed, False)
    *batch, n, m = scores_shape(q, k, k)
    q, k = (x.expand(*batch, *x.shape[-2:]) for x in (q, k))
    _, queries, keys = _plans(q, k, chunk, False, (rounds, buckets, seed))
    i, j = ((plan.place // plan.size) for plan in (queries, keys))  # (..., R, n), (..., R, m)
    ahead = i.unsqueeze(-1) - j.unsqueeze(-2)  # (..., R, n, m)
    return ((ahead == 0) | (ahead == 1)).any(-3)


def _hashed_scores(
    q, k, *, mask=None, bias=None, causal=False, scale=None,
    buckets=16, rounds=2, chunk=64, seed=0, shared=False,
):  # fmt: skip
    """Return the scores of the keys that hashing shows, −∞ for all others, (..., n, m)."""
    shown = hashed_mask(q, k, buckets=buckets, rounds=rounds, chunk=chunk, seed=seed)
    if not shared:
        scores = masked_scores(q, k, mask=mask, bias=bias, causal=causal, scale=scale)
        return restrict(scores, mask=shown)
    k = functional.normalize(at_least_float32(k), dim=-1)
    scores = masked_scores(at_least_float32(q), k, bias=bias, scale=scale)
    n, m = scores.shape[-2:]
    past = causal_mask(n, m, device=q.device) if causal else None
    itself = torch.eye(n, dtype=torch.bool, device=q.device)
    may = combine_masks(shown, mask, past)
    others = may & ~itself
    return restrict(scores, mask=others | (may & ~others.any(-1, keepdim=True)))


def hash_recall(
    q: Float[Tensor, "*#B N D"],
    k: Float[Tensor, "*#B M D"],
    *,
    top: int = 1,
    causal: bool = False,
    buckets: int = 16,
    rounds: int = 2,
    chunk: int = 64,
    seed: int = 0,
) -> float:
    """Return which share of the best keys of each query hashing finds.

    The mean over queries of |best ∩ shown| / |best|, the best being the ``top`` allowed keys with
    the largest q · k / |k|, without the token itself where queries and keys are the same tensor.

    Args:
        q: queries (..., n, d).
        k: keys (..., m, d).
        top: how many keys of each query count as its best.
        causal: hide the future, aligned to the last key.
        buckets: how many, even; or 1.
        rounds: how many hashes.
        chunk: keys in a chunk.
        seed: of the random rotations.

    Returns:
        A number from 0 to 1.

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape or number, or if no query has a key.

    Example:
        >>> x = torch.randn(60, 8)
        >>> hash_recall(x, x, chunk=60)
        1.0

    Explained in: chapters/07_efficient_attention_deeper, section "Hashing: look where the answer is
    likely".
    """
    check_number("top", top, 1, whole=True)
    check_bool("causal", causal)
    shown = hashed_mask(q, k, buckets=buckets, rounds=rounds, chunk=chunk, seed=seed)
    n, m = shown.shape[-2:]
    itself = torch.eye(n, dtype=torch.bool, device=q.device) if q is k else None
    with torch.no_grad():
        scores = masked_scores(
            at_least_float32(q), functional.normalize(at_least_float32(k), dim=-1),
            mask=None if itself is None else ~itself, causal=causal,
        )  # fmt: skip
    score, best = scores.topk(min(top, m), dim=-1)  # (..., n, top)
    counts = score > -torch.inf
    if not counts.any():
        raise ValueError("no query has a key that it may see, so there is nothing to recall")
    seen = shown.expand(scores.shape).gather(-1, best) & counts
    rows = counts.any(-1)
    shares = seen.sum(-1)[rows].double() / counts.sum(-1)[rows]
    return float(shares.mean())


def _check_rounds(buckets, rounds, seed):
    check_number("buckets", buckets, 1, 2**20, whole=True)
    if buckets > 1 and buckets % 2:
        raise ValueError(f"buckets must be 1 or even, each turn gives two, got {buckets}")
    check_number("rounds", rounds, 1, 1024, whole=True)
    check_number("seed", seed, whole=True)


def _check_choices(q, k, buckets, rounds, chunk, seed, shared):
    _check_rounds(buckets, rounds, seed)
    check_number("chunk", chunk, 1, whole=True)
    check_bool("shared", shared)
    if not shared or k is q:
        return
    if q.shape != k.shape:
        raise ValueError(
            "shared queries and keys must be the same vectors, got "
            f"q {tuple(q.shape)} and k {tuple(k.shape)}"
        )
    plain = type(q) is Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(q)
    if not torch.compiler.is_compiling() and plain and not torch.equal(q, k):
        raise ValueError("shared queries and keys must be the same vectors, pass q as k too")


def _flops(n, m, d_k, d_v, causal=False, *, buckets=16, rounds=2, chunk=64, seed=0, shared=False):
    """Count what one head costs: hashing and scores, and what is mixed, with chunks filled up."""
    chunks = max(1, -(-m // chunk))
    size, keys = max(1, -(-n // chunks)), 2 * max(1, -(-m // chunks))
    hashing = 0 if buckets == 1 else rounds * (n if shared else n + m) * d_k * buckets
    pairs = rounds * chunks * size * keys
    return hashing + 2 * pairs * d_k, 2 * pairs * d_v


attend_hashed.scores = _hashed_scores

_CHUNKS = "the chunk in which a row stands depends on the other rows"
_OTHER_DEPTH = "another size of the vectors is hashed by other rotations"

register(
    "hashed",
    attend_hashed,
    lacks={
        "exact": "keys that no round shows get no weight",
        "weights": "a query to which only hidden keys are shown has weights of 0",
        "convex": "a query to which only hidden keys are shown gets zeros",
        "lse": "the keys shown among a part are others than among the whole",
        "query_equivariance": _CHUNKS,
        "key_value_invariance": _CHUNKS,
        "query_independence": _CHUNKS,
        "causal": "the future takes part in the sorting and moves the past to other chunks",
        "alignment": _CHUNKS,
        "mask": "a masked key still takes a place in its chunk",
        "bias": "a key that no round shows has no score to be raised",
        "default_scale": _OTHER_DEPTH,
        "key_shift": "a shift turns the keys, and so changes their buckets",
        "proportional": "copies of a key take the places of other keys",
        "extreme_logits": "the best key may not be shown",
    },
    options={"rounds": 2, "buckets": 4, "chunk": 3},
    flops=_flops,
)
