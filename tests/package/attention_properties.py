"""What can be true of an attention function, as checks that any such function can be put through.

A check is `check(attend, case)`; it raises AssertionError when the property does not hold. `attend`
has the signature of `tfbook.attention.attend`, a `Case` is sizes and a seed. The same checks run
over the registry (test_attention.py), over the lookups (test_lookup.py) and over planted bugs
(test_mutants.py).
"""

import contextlib
import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

import tfbook.efficient  # noqa: F401 (its functions join VARIANTS)
from tfbook.attention import Variant, merge_partials

DOUBLE, SINGLE = torch.float64, torch.float32
NEVER = -torch.inf


class Bound:
    """A variant with its test options and random weights, to be called like `attend`.

    The weights depend on nothing but the shapes, so two calls on the same sizes use the same.
    """

    def __init__(self, fn: Callable, variant: Variant | None = None):
        self.fn = fn
        self.parameters = variant.parameters if variant else {}
        self.options = variant.options if variant else {}

    def weights(self, q, k):
        sizes = {"d_q": q.shape[-1], "d_k": k.shape[-1], "d_hidden": 4}
        rng = np.random.default_rng(3)  # NumPy's, since torch's is not to be used inside of vmap
        return {
            name: torch.from_numpy(rng.normal(size=[sizes[s] for s in shape])).to(q.dtype)
            for name, shape in self.parameters.items()
        }

    def __call__(self, q, k, v, **keywords):
        return self.fn(q, k, v, **self.options, **(self.weights(q, k) | keywords))


@dataclass
class Case:
    """Sizes of one example, distinct primes so that no swapped axis fits, and a seed."""

    n: int = 5
    m: int = 7
    d: int = 3
    e: int = 2
    batch: tuple[int, ...] = (2,)
    seed: int = 0
    generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self):
        self.generator = torch.Generator().manual_seed(self.seed)

    def normal(self, *shape, dtype=DOUBLE):
        return torch.randn(shape, generator=self.generator, dtype=DOUBLE).to(dtype)

    def qkv(self, *, dtype=DOUBLE, grad=False, n=None, m=None):
        n, m = n or self.n, m or self.m
        shapes = (n, self.d), (m, self.d), (m, self.e)
        return [self.normal(*self.batch, *s, dtype=dtype).requires_grad_(grad) for s in shapes]

    def chance(self, *shape, p=0.6):
        return torch.rand(shape, generator=self.generator) < p

    def mask(self, *, some_in_each_row=True):
        mask = self.chance(self.n, self.m)
        if some_in_each_row:
            mask[
                torch.arange(self.n), torch.randint(self.m, (self.n,), generator=self.generator)
            ] = 1
        return mask

    def order(self, size):
        return torch.randperm(size, generator=self.generator)


def case_of(number: int) -> Case:
    """Return one of all examples: the first two are small, and each two have other dimensions."""
    chance = random.Random(number)
    n, m, d, e = chance.sample([2, 3, 5, 7] if number < 2 else [2, 3, 5, 7, 11], 4)
    e = d if number % 2 else e  # PyTorch takes its fast path for values as wide as keys
    return Case(n, m, d, e, [(2,), (), (3, 2)][number % 3], number)


@dataclass(frozen=True)
class Check:
    """One check: the property it belongs to, and how many cases it takes (0: one fixed)."""

    property: str
    run: Callable
    examples: int
    untyped: bool

    @property
    def name(self):
        return self.run.__name__

    def __call__(self, attend):
        for case in map(case_of, range(self.examples)) if self.examples else [Case()]:
            try:
                self.run(attend, case)
            except Exception as error:
                error.add_note(f"in {case}")
                raise


CHECKS: dict[str, Check] = {}


def checks(slug, *, examples=8, untyped=False):
    """Put the function below among the checks of a property."""

    def keep(run):
        CHECKS[run.__name__] = Check(slug, run, examples, untyped)
        return run

    return keep


def close(got, wanted, atol=1e-9, rtol=0.0):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=rtol)


def weights_of(attend, q, k, **keywords):
    """Read the weights off the output: with the identity as values, the output is the weights."""
    return attend(q, k, torch.eye(k.shape[-2], dtype=q.dtype), **keywords)


def past(n, m):
    """Which key lies in the past of which query, from the definition: both end at the same time."""
    return torch.tensor([[j + (n - m) <= i for j in range(m)] for i in range(n)]).reshape(n, m)


def by_the_book(q, k, v, mask=None, bias=None, scale=None):
    """Evaluate softmax(q kᵀ / √d + bias) v in float64 with NumPy, and the log-sum-exp."""
    q, k, v = (x.detach().to(DOUBLE).numpy() for x in (q, k, v))
    scores = np.einsum("...id,...jd->...ij", q, k)
    scores = scores / math.sqrt(q.shape[-1]) if scale is None else scores * scale
    if bias is not None:
        scores = scores + bias.detach().to(DOUBLE).numpy()
    if mask is not None:
        scores = np.where(mask.numpy(), scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    exponentials = np.exp(scores - top)
    total = exponentials.sum(axis=-1, keepdims=True)
    output = np.einsum("...ij,...je->...ie", exponentials / total, v)
    return torch.from_numpy(output), torch.from_numpy((top + np.log(total))[..., 0])


def gradients(output, inputs):
    ones = torch.ones_like(output)
    return torch.autograd.grad(output, inputs, ones, allow_unused=True, retain_graph=True)


@contextlib.contextmanager
def torch_may_warn():
    """Let PyTorch warn about its own inside: deprecations, and SDPA's missing batching rule."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


# exact


@checks("exact", examples=15)
def test_float32_equals_the_float64_formula(attend, case):
    q, k, v = case.qkv(dtype=SINGLE)
    mask, bias = case.mask(), case.normal(case.n, case.m, dtype=SINGLE)
    for keywords in ({}, {"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}):
        wanted, _ = by_the_book(q, k, v, **keywords)
        close(attend(q, k, v, **keywords).to(DOUBLE), wanted, atol=5e-6)


@checks("exact", examples=15)
def test_causal_equals_the_float64_formula(attend, case):
    case.m = max(case.m, case.n)
    q, k, v = case.qkv(dtype=SINGLE)
    mask = past(case.n, case.m)
    wanted, _ = by_the_book(q, k, v, mask=mask)
    close(attend(q, k, v, causal=True).to(DOUBLE), wanted, atol=5e-6)


@checks("exact")
def test_equals_pytorch_forward_and_backward(attend, case):
    case.m = case.n
    q, k, v = inputs = case.qkv(grad=True)
    got = attend(q, k, v, causal=True, scale=0.7)
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7)
    close(got, wanted)
    for mine, theirs in zip(gradients(got, inputs), gradients(wanted, inputs), strict=True):
        close(mine, theirs)


@checks("exact")
def test_float32_gradients_equal_those_in_float64(attend, case):
    inputs = case.qkv(dtype=SINGLE, grad=True)
    wide = [x.detach().to(DOUBLE).requires_grad_() for x in inputs]
    mask = case.mask()
    wanted = functional.scaled_dot_product_attention(*wide, attn_mask=mask)
    slopes = gradients(attend(*inputs, mask=mask), inputs)
    for mine, exact in zip(slopes, gradients(wanted, wide), strict=True):
        close(mine.to(DOUBLE), exact, atol=1e-5)


@checks("exact", examples=0)
def test_without_features_all_keys_count_alike(attend, case):
    q, k, v = case.qkv()
    close(attend(q[..., :0], k[..., :0], v), v.mean(-2, keepdim=True).expand(2, case.n, case.e))


# weights


@checks("weights")
def test_weights_are_not_negative_and_sum_to_one(attend, case):
    q, k, v = case.qkv()
    for keywords in ({}, {"mask": case.mask()}, {"bias": case.normal(case.n, case.m)}):
        _, weights = attend(q, k, v, return_weights=True, **keywords)
        assert weights.shape == (*case.batch, case.n, case.m)
        assert (weights >= 0).all()
        close(weights.sum(-1), torch.ones(*case.batch, case.n, dtype=DOUBLE))


@checks("weights")
def test_weights_mix_the_values_into_the_output(attend, case):
    q, k, v = case.qkv()
    output, weights = attend(q, k, v, mask=case.mask(), return_weights=True)
    close(output, torch.einsum("...ij,...je->...ie", weights, v))


@checks("weights")
def test_masked_keys_have_weight_zero(attend, case):
    q, k, v = case.qkv()
    mask = case.mask()
    _, weights = attend(q, k, v, mask=mask, return_weights=True)
    assert (weights[..., ~mask] == 0).all()


@checks("weights")
def test_asking_for_weights_does_not_change_the_output(attend, case):
    q, k, v = case.qkv()
    output, _ = attend(q, k, v, return_weights=True)
    close(output, attend(q, k, v), atol=0)


# lse


@checks("lse")
def test_two_parts_of_the_keys_merge_into_the_whole(attend, case):
    q, k, v = inputs = case.qkv(grad=True)
    cut = max(case.m // 2, 1)
    parts = [
        attend(q, k[..., part, :], v[..., part, :], return_lse=True)
        for part in (slice(None, cut), slice(cut, None))
    ]
    output, lse = merge_partials(*zip(*parts, strict=True))
    whole, whole_lse = attend(q, k, v, return_lse=True)
    close(output, whole)
    close(lse, whole_lse)
    slopes, whole_slopes = gradients(output, inputs), gradients(whole, inputs)
    for mine, wanted in zip(slopes, whole_slopes, strict=True):
        close(mine, wanted)


@checks("lse")
def test_the_gradient_of_lse_is_the_weights(attend, case):
    q, k, v = case.qkv()
    bias = case.normal(*case.batch, case.n, case.m).requires_grad_()
    _, lse = attend(q, k, v, bias=bias, return_lse=True)
    _, raised = attend(q, k, v, bias=bias + 2.5, return_lse=True)
    close(raised, lse + 2.5)
    close(gradients(lse, [bias])[0], weights_of(attend, q, k, bias=bias))


@checks("lse")
def test_lse_of_a_row_without_keys_is_minus_infinity(attend, case):
    q, k, v = case.qkv()
    mask = case.mask()
    mask[0] = False
    _, lse = attend(q, k, v, mask=mask, return_lse=True)
    assert (lse[..., 0] == NEVER).all()
    assert lse[..., 1:].isfinite().all()


# convex


@checks("convex")
def test_output_lies_between_the_extreme_values_in_every_direction(attend, case):
    q, k, v = case.qkv()
    mask, directions = case.mask(), case.normal(case.e, 13)
    values = v @ directions  # (..., m, 13)
    output = attend(3 * q, k, v, mask=mask) @ directions  # (..., n, 13)
    for i in range(case.n):
        seen = values[..., mask[i], :]
        assert (output[..., i, :] <= seen.amax(-2) + 1e-9).all()
        assert (output[..., i, :] >= seen.amin(-2) - 1e-9).all()


@checks("convex")
def test_equal_values_come_out_unchanged(attend, case):
    q, k, v = case.qkv()
    v = v[..., :1, :].expand_as(v)
    close(attend(q, k, v), v[..., :1, :].expand(*case.batch, case.n, case.e))


# permutations and independence


@checks("query_equivariance")
def test_permuting_queries_permutes_outputs(attend, case):
    q, k, v = case.qkv()
    order = case.order(case.n)
    close(attend(q[..., order, :], k, v), attend(q, k, v)[..., order, :])


@checks("key_value_invariance")
def test_permuting_keys_with_their_values_changes_nothing(attend, case):
    q, k, v = case.qkv()
    order = case.order(case.m)
    close(attend(q, k[..., order, :], v[..., order, :]), attend(q, k, v))


@checks("query_independence")
def test_a_query_alone_gets_the_same_output(attend, case):
    q, k, v = case.qkv()
    together = attend(q, k, v)
    for i in range(case.n):
        close(attend(q[..., i : i + 1, :], k, v), together[..., i : i + 1, :])


# causal


@checks("causal")
def test_future_keys_do_not_change_past_outputs(attend, case):
    q, k, v = case.qkv()
    before = attend(q, k, v, causal=True)
    for j in range(case.m):
        k_new, v_new = k.clone(), v.clone()
        k_new[..., j, :] += 3.0
        v_new[..., j, :] -= 5.0
        after = attend(q, k_new, v_new, causal=True)
        blind = ~past(case.n, case.m)[:, j]  # queries that may not see key j
        close(after[..., blind, :], before[..., blind, :], atol=0)


@checks("causal")
def test_future_keys_get_no_gradient_from_past_outputs(attend, case):
    q, k, v = case.qkv(grad=True)
    output = attend(q, k, v, causal=True)
    for i in range(case.n):
        row = output[..., i, :]
        dk, dv = torch.autograd.grad(row, (k, v), torch.ones_like(row), retain_graph=True)
        future = ~past(case.n, case.m)[i]
        assert (dk[..., future, :] == 0).all() and (dv[..., future, :] == 0).all()


@checks("causal")
def test_the_newest_visible_key_is_in_reach(attend, case):
    q, k, v = case.qkv()
    newest = torch.arange(case.n) + case.m - case.n
    bias = torch.zeros(case.n, case.m, dtype=DOUBLE)
    seeing = newest >= 0
    bias[seeing, newest[seeing]] = 200.0
    output = attend(q, k, v, bias=bias, causal=True)
    close(output[..., seeing, :], v[..., newest[seeing], :])


@checks("causal")
def test_causal_and_a_mask_allow_what_both_allow(attend, case):
    q, k, v = case.qkv()
    mask = case.mask()
    both = attend(q, k, v, mask=mask & past(case.n, case.m))
    close(attend(q, k, v, mask=mask, causal=True), both)


@checks("alignment")
def test_the_last_queries_alone_see_what_they_saw_among_all(attend, case):
    q, k, v = case.qkv(n=case.m)
    full = attend(q, k, v, causal=True)
    for r in range(1, case.m):
        close(attend(q[..., -r:, :], k, v, causal=True), full[..., -r:, :])


@checks("alignment")
def test_the_last_query_sees_every_key(attend, case):
    q, k, v = case.qkv(n=1)
    close(attend(q, k, v, causal=True), attend(q, k, v))


@checks("alignment")
def test_queries_older_than_every_key_see_nothing(attend, case):
    extra = 3
    q, k, v = case.qkv(n=case.m + extra)
    output = attend(q, k, v, causal=True)
    assert (output[..., :extra, :] == 0).all()
    close(output[..., extra:, :], attend(q[..., extra:, :], k, v, causal=True))


# mask, bias, scale


@checks("mask")
def test_masking_keys_equals_removing_them(attend, case):
    q, k, v = case.qkv()
    keep = case.mask()[0]
    got = attend(q, k, v, mask=keep.expand(case.n, case.m))
    close(got, attend(q, k[..., keep, :], v[..., keep, :]))


@checks("mask")
def test_a_masked_key_does_not_change_the_query_it_is_hidden_from(attend, case):
    q, k, v = case.qkv()
    mask = case.mask()
    before = attend(q, k, v, mask=mask)
    for j in range(case.m):
        k_new, v_new = k.clone(), v.clone()
        k_new[..., j, :] += 3.0
        v_new[..., j, :] -= 5.0
        after = attend(q, k_new, v_new, mask=mask)
        blind = ~mask[:, j]
        close(after[..., blind, :], before[..., blind, :], atol=0)


@checks("mask")
def test_a_mask_of_true_changes_nothing(attend, case):
    q, k, v = case.qkv()
    mask = torch.ones(case.n, case.m, dtype=torch.bool)
    close(attend(q, k, v, mask=mask), attend(q, k, v))


@checks("mask")
def test_a_mask_may_have_sizes_of_one(attend, case):
    q, k, v = case.qkv()
    for mask in (case.mask()[:1], case.mask()[:, :1]):
        close(attend(q, k, v, mask=mask), attend(q, k, v, mask=mask.expand(case.n, case.m)))


@checks("bias")
def test_a_bias_of_minus_infinity_equals_a_mask(attend, case):
    q, k, v = case.qkv()
    mask = case.mask(some_in_each_row=False)
    bias = torch.zeros(case.n, case.m, dtype=DOUBLE).masked_fill(~mask, NEVER)
    close(attend(q, k, v, bias=bias), attend(q, k, v, mask=mask))


@checks("bias")
def test_a_large_bias_picks_its_key(attend, case):
    q, k, v = case.qkv()
    pick = torch.randint(case.m, (case.n,), generator=case.generator)
    bias = 200.0 * functional.one_hot(pick, case.m).to(DOUBLE)
    close(attend(q, k, v, bias=bias), v[..., pick, :])


@checks("bias")
def test_a_bias_may_have_sizes_of_one(attend, case):
    q, k, v = case.qkv()
    for bias in (case.normal(1, case.m), case.normal(case.n, 1)):
        close(attend(q, k, v, bias=bias), attend(q, k, v, bias=bias.expand(case.n, case.m)))


@checks("scale")
def test_a_scale_raises_the_weights_to_its_power(attend, case):
    q, k, _ = case.qkv()
    one, two = (weights_of(attend, q, k, scale=scale) for scale in (0.4, 0.8))
    close(torch.softmax(2 * one.log(), dim=-1), two)


@checks("default_scale")
def test_empty_features_shrink_the_scores_by_the_root_of_the_size(attend, case):
    q, k, _ = case.qkv()
    q_wide, k_wide = (functional.pad(x, (0, 3 * case.d)) for x in (q, k))  # 4 d features
    halved = torch.softmax(0.5 * weights_of(attend, q, k).log(), dim=-1)
    close(weights_of(attend, q_wide, k_wide), halved)


@checks("default_scale")
def test_the_default_scale_is_one_over_the_root_of_the_size(attend, case):
    q, k, v = case.qkv()
    close(attend(q, k, v), attend(q, k, v, scale=case.d**-0.5))


# invariances


@checks("key_shift")
def test_a_vector_added_to_all_keys_changes_nothing(attend, case):
    q, k, v = case.qkv()
    shift = 3 * case.normal(case.d)
    close(attend(q, k + shift, v, causal=True), attend(q, k, v, causal=True))


@checks("score_shift")
def test_a_number_added_to_all_scores_of_a_query_changes_nothing(attend, case):
    q, k, v = case.qkv()
    bias = case.normal(case.n, case.m)
    shift = 30 * case.normal(case.n, 1)
    close(attend(q, k, v, bias=bias + shift), attend(q, k, v, bias=bias))


@checks("proportional")
def test_a_bias_multiplies_a_weight_by_its_exponential(attend, case):
    q, k, _ = case.qkv()
    bias = case.normal(case.n, case.m)
    wanted = weights_of(attend, q, k) * bias.exp()
    close(weights_of(attend, q, k, bias=bias), wanted / wanted.sum(-1, keepdim=True))


@checks("proportional")
def test_a_repeated_key_counts_as_often_as_it_stands_there(attend, case):
    q, k, v = case.qkv()
    repeats = torch.randint(1, 4, (case.m,), generator=case.generator)
    k_more, v_more = (x.repeat_interleave(repeats, dim=-2) for x in (k, v))
    bias = repeats.to(DOUBLE).log().expand(case.n, case.m)
    close(attend(q, k_more, v_more), attend(q, k, v, bias=bias))


@checks("value_linear")
def test_the_output_is_linear_in_the_values(attend, case):
    q, k, v = case.qkv()
    other = case.normal(*v.shape)
    mixed = attend(q, k, 2 * v - 3 * other)
    close(mixed, 2 * attend(q, k, v) - 3 * attend(q, k, other))


# numbers


@checks("extreme_logits")
def test_extreme_scores_pick_the_best_key(attend, case):
    for dtype in (SINGLE, DOUBLE):
        q, k, v = case.qkv(dtype=dtype, grad=True)
        steps = torch.stack([case.order(case.m) for _ in range(case.n)])  # 0 .. m − 1, shuffled
        bias = (2e4 * steps / (case.m - 1) - 1e4).to(dtype)  # from −1e4 to 1e4
        output = attend(q, k, v, bias=bias)
        close(output, v[..., steps.argmax(-1), :], atol=1e-6)
        assert all(g.isfinite().all() for g in gradients(output, (q, k, v)))


@checks("extreme_logits")
def test_a_huge_scale_stays_finite(attend, case):
    q, k, v = case.qkv(dtype=SINGLE, grad=True)
    output = attend(q, k, v, scale=1e4)
    assert output.isfinite().all()
    assert all(g.isfinite().all() for g in gradients(output, (q, k, v)))
    ones = torch.ones_like(v)
    close(attend(q, k, ones, scale=1e4), torch.ones_like(output), atol=1e-5)


@checks("half_precision")
def test_half_precision_is_near_the_same_function_in_float64(attend, case):
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = case.qkv(dtype=dtype)
        mask, bias = case.mask(), case.normal(case.n, case.m, dtype=dtype)
        got = attend(q, k, v, mask=mask, bias=bias)
        assert got.dtype == dtype
        same = {name: w.to(DOUBLE) for name, w in attend.weights(q, k).items()}  # rounded as well
        wide = attend(*(x.to(DOUBLE) for x in (q, k, v)), mask=mask, bias=bias.to(DOUBLE), **same)
        close(got.to(DOUBLE), wide, atol=1.4e-2, rtol=1.4e-2)


@checks("half_precision")
def test_half_precision_stays_finite_at_large_scores(attend, case):
    for dtype in (torch.float16, torch.bfloat16):
        q, k, v = case.qkv(dtype=dtype)
        q, k = (1000 * x.detach() for x in (q, k))  # scores beyond float16's 65504
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        output = attend(q, k, v, causal=True)
        assert output.isfinite().all()
        dq, dk, dv = gradients(output, (q, k, v))
        assert dv.isfinite().all() and not dq.isnan().any() and not dk.isnan().any()


@checks("empty_rows")
def test_a_query_without_keys_gives_zeros_and_zero_gradient(attend, case):
    for dtype in (DOUBLE, SINGLE, torch.float16, torch.bfloat16):
        q, k, v = inputs = case.qkv(dtype=dtype, grad=True)
        mask = case.mask()
        mask[0] = False
        output = attend(q, k, v, mask=mask)
        assert (output[..., 0, :] == 0).all()
        assert output.isfinite().all()
        dq, dk, dv = gradients(output, inputs)
        assert (dq[..., 0, :] == 0).all()
        assert dk.isfinite().all() and dv.isfinite().all()
        dk, dv = torch.autograd.grad(attend(q, k, v, mask=mask)[..., 0, :].sum(), (k, v))
        assert (dk == 0).all() and (dv == 0).all()


@checks("empty_rows")
def test_all_queries_without_keys_give_zeros_and_zero_gradient(attend, case):
    q, k, v = inputs = case.qkv(grad=True)
    nothing = torch.zeros(case.n, case.m, dtype=torch.bool)
    bias = torch.full((case.n, case.m), NEVER, dtype=DOUBLE)
    for keywords in ({"mask": nothing}, {"bias": bias}, {"mask": nothing[:, :1], "causal": True}):
        output = attend(q, k, v, **keywords)
        assert (output == 0).all()
        assert all((g == 0).all() for g in gradients(output, inputs))


# shapes


@checks("small_sizes", examples=0)
def test_one_key_returns_its_value(attend, case):
    q, k, v = case.qkv(m=1)
    close(attend(q, k, v), v.expand(*case.batch, case.n, case.e))


@checks("small_sizes", examples=0)
def test_sizes_of_one_work(attend, case):
    for size in ("n", "m", "d", "e"):
        one = Case(**{size: 1})
        q, k, v = inputs = one.qkv(grad=True)
        output = attend(q, k, v, causal=True)
        assert output.shape == (*one.batch, one.n, one.e)
        assert all(g.isfinite().all() for g in gradients(output, inputs))


@checks("small_sizes", examples=0)
def test_sizes_of_zero_work(attend, case):
    for size in ("n", "m", "d", "e", "batch"):
        shape = {"n": 5, "m": 7, "d": 3, "e": 2, "batch": 2} | {size: 0}
        b, n, m, d, e = (shape[s] for s in ("batch", "n", "m", "d", "e"))
        q, k, v = inputs = [
            torch.randn(*s, dtype=DOUBLE, generator=case.generator).requires_grad_()
            for s in ((b, n, d), (b, m, d), (b, m, e))
        ]
        output = attend(q, k, v, mask=torch.ones(n, m, dtype=torch.bool))
        assert output.shape == (b, n, e)
        assert output.isfinite().all()
        slopes = gradients(output, inputs)
        assert all(g is None or g.shape == x.shape for g, x in zip(slopes, inputs, strict=True))
        if size == "m":
            assert (output == 0).all()


@checks("broadcasting")
def test_leading_dimensions_broadcast_like_expanded_ones(attend, case):
    q = case.normal(2, 1, case.n, case.d).requires_grad_()
    k = case.normal(3, case.m, case.d).requires_grad_()
    v = case.normal(1, 3, case.m, case.e).requires_grad_()
    mask = case.mask().expand(2, 1, case.n, case.m)
    got = attend(q, k, v, mask=mask)
    assert got.shape == (2, 3, case.n, case.e)
    whole = [x.expand(2, 3, *x.shape[-2:]) for x in (q, k, v)]
    wanted = attend(*whole, mask=mask.expand(2, 3, case.n, case.m))
    close(got, wanted)
    for mine, theirs in zip(gradients(got, (q, k, v)), gradients(wanted, (q, k, v)), strict=True):
        close(mine, theirs)


@checks("broadcasting", examples=2)
def test_queries_that_share_keys_equal_keys_written_out(attend, case):
    for lead, group in (((2, 3), 2), ((2,), 3), ((), 5), ((1, 2, 2), 2)):
        for n in (case.n, 1):
            q = case.normal(*lead, group, n, case.d).requires_grad_()
            k = case.normal(*lead, 1, case.m, case.d).requires_grad_()
            v = case.normal(*lead, 1, case.m, case.e).requires_grad_()
            whole = [x.expand(*lead, group, *x.shape[-2:]).contiguous() for x in (k, v)]
            mask = case.chance(*lead[-1:], group, n, case.m)
            mask[..., 0] = True
            first = n >= case.m
            for keywords in (
                {},
                {"mask": mask},
                {"mask": mask[..., :1, :, :], "bias": case.normal(group, n, case.m)},
                {"bias": case.normal(*lead, 1, 1, case.m), "mask": mask[(0,) * (mask.ndim - 2)]},
                {"causal": not first},
                {"causal": not first, "bias": case.normal(n, case.m), "scale": 0.3},
            ):
                got, wanted = attend(q, k, v, **keywords), attend(q, *whole, **keywords)
                close(got, wanted)
                slopes = zip(gradients(got, (q, k, v)), gradients(wanted, (q, k, v)), strict=True)
                for mine, theirs in slopes:
                    close(mine, theirs)


@checks("broadcasting")
def test_each_matrix_of_a_batch_is_on_its_own(attend, case):
    q, k, v = (x.expand(2, *x.shape).clone() for x in case.qkv())
    q[1], k[1], v[1] = case.qkv()
    bias = case.normal(2, *(1 for _ in case.batch), case.n, case.m)
    together = attend(q, k, v, bias=bias)
    for b in range(2):
        close(together[b], attend(q[b], k[b], v[b], bias=bias[b]))


@checks("strides")
def test_the_memory_layout_does_not_matter(attend, case):
    q, k, v = case.qkv()
    transposed = [x.mT.contiguous().mT for x in (q, k, v)]
    spaced = [x.repeat_interleave(2, -1)[..., ::2] for x in (q, k, v)]
    mask, bias = case.mask(), case.normal(case.n, case.m)
    wanted = attend(q, k, v, mask=mask, bias=bias)
    for layout in (transposed, spaced):
        inputs = [x.detach().requires_grad_() for x in layout]
        got = attend(*inputs, mask=mask.mT.contiguous().mT, bias=bias.mT.contiguous().mT)
        close(got, wanted)
        assert all(g.isfinite().all() for g in gradients(got, inputs))


@checks("strides")
def test_expanded_inputs_work(attend, case):
    q, k, v = case.qkv()
    wide = [x[..., :1, :].expand_as(x) for x in (q, k, v)]
    close(attend(*wide), wide[2][..., :1, :].expand(*case.batch, case.n, case.e))


@checks("purity")
def test_inputs_stay_as_they_were_and_calls_repeat(attend, case):
    q, k, v = case.qkv()
    mask, bias = case.mask(), case.normal(case.n, case.m)
    kept = [x.clone() for x in (q, k, v, mask, bias)]
    one = attend(q, k, v, mask=mask, bias=bias, causal=True)
    two = attend(q, k, v, mask=mask, bias=bias, causal=True)
    close(one, two, atol=0)
    for now, before in zip((q, k, v, mask, bias), kept, strict=True):
        assert torch.equal(now, before)


# derivatives


def _of_everything(attend, case, **keywords):
    """Return attend as a function of all its differentiable inputs, and those inputs."""
    q, k, v = case.qkv(grad=True)
    bias = case.normal(case.n, case.m).requires_grad_()
    weights = {name: w.requires_grad_() for name, w in attend.weights(q, k).items()}

    def function(q, k, v, bias, *values):
        return attend(q, k, v, bias=bias, **dict(zip(weights, values, strict=True)), **keywords)

    return function, (q, k, v, bias, *weights.values())


@checks("gradients", examples=2)
def test_gradients_agree_with_finite_differences(attend, case):
    mask = case.mask()
    mask[0] = False
    function, inputs = _of_everything(attend, case, mask=mask)
    assert torch.autograd.gradcheck(function, inputs)


@checks("gradients", examples=2)
def test_causal_gradients_agree_with_finite_differences(attend, case):
    function, inputs = _of_everything(attend, case, causal=True, scale=0.7)
    assert torch.autograd.gradcheck(function, inputs)


@checks("gradients", examples=0)
def test_the_gradient_of_a_broadcast_bias_is_summed(attend, case):
    q, k, v = case.qkv()

    def of_bias(bias):
        return attend(q, k, v, bias=bias, causal=True)

    for shape in ((case.n, 1), (1, case.m), (*case.batch, 1, case.m), (1, case.n, case.m)):
        assert torch.autograd.gradcheck(of_bias, (case.normal(*shape).requires_grad_(),))


@checks("second_derivatives", examples=0)
def test_second_derivatives_agree_with_finite_differences(attend, case):
    mask = case.mask()
    mask[0] = False
    function, inputs = _of_everything(attend, Case(n=2, m=3, d=5, e=2), mask=mask[:2, :3])
    assert torch.autograd.gradgradcheck(function, inputs)


@checks("second_derivatives", examples=0)
def test_forward_mode_agrees_with_backward_mode(attend, case):
    mask = case.mask()
    mask[0] = False
    with torch_may_warn():
        function, inputs = _of_everything(attend, case, mask=mask)
        directions = tuple(case.normal(*x.shape) for x in inputs)
        _, forward = torch.func.jvp(function, tuple(x.detach() for x in inputs), directions)
        output, back = torch.func.vjp(function, *(x.detach() for x in inputs))
        probe = case.normal(*output.shape)
        by_backward = sum((g * x).sum() for g, x in zip(back(probe), directions, strict=True))
        close((forward * probe).sum(), by_backward)


# transformations


@checks("compile", examples=0, untyped=True)
def test_compiles_to_one_graph_with_the_same_output_and_gradient(attend, case):
    torch.compiler.reset()
    case = Case(n=4, m=5, d=3, e=2, batch=())  # two tiles each way, where there are tiles
    q, k, v = inputs = case.qkv(grad=True)
    keywords = {"causal": True, "mask": case.mask()}
    with torch_may_warn():
        compiled = torch.compile(attend.fn, backend="aot_eager", fullgraph=True, dynamic=False)
        weights = attend.weights(q, k)
        got = compiled(q, k, v, **keywords, **weights, **attend.options)
        mine = gradients(got, inputs)
    wanted = attend(q, k, v, **keywords)
    close(got, wanted)
    for one, other in zip(mine, gradients(wanted, inputs), strict=True):
        close(one, other)


@checks("vmap", examples=2)
def test_vmap_equals_a_loop(attend, case):
    q, k, v = case.qkv()
    masks = torch.stack([case.mask() for _ in range(3)])
    many = torch.stack([q, 2 * q, -q], dim=1 if case.batch else 0)
    at = 1 if case.batch else 0
    with torch_may_warn():
        mapped = torch.vmap(lambda q, mask: attend(q, k, v, mask=mask), in_dims=(at, 0))
        got = mapped(many, masks)
    for b in range(3):
        close(got[b], attend(many.select(at, b), k, v, mask=masks[b]))


@checks("vmap", examples=2)
def test_gradients_of_each_example_equal_a_loop(attend, case):
    q, k, v = case.qkv()
    bias = case.normal(case.n, case.m)
    many = torch.stack([q, 2 * q, -q])

    def energy(q, k, v, bias):
        return attend(q, k, v, bias=bias, causal=True).square().sum()

    slopes = torch.func.grad(energy, argnums=(0, 1, 2, 3))
    with torch_may_warn():
        got = torch.vmap(slopes, in_dims=(0, None, None, None))(many, k, v, bias)
        for b in range(3):
            for mine, theirs in zip(got, slopes(many[b], k, v, bias), strict=True):
                close(mine[b], theirs)


@checks("autocast", examples=2)
def test_autocast_stays_near_full_precision(attend, case):
    q, k, v = inputs = case.qkv(dtype=SINGLE, grad=True)
    wanted = attend(q, k, v, causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        got = attend(q, k, v, causal=True)
        assert got.dtype == v.dtype
        mine = gradients(got, inputs)
    close(got, wanted, atol=3e-2, rtol=3e-2)
    for one, other in zip(mine, gradients(wanted, inputs), strict=True):
        assert one.dtype == SINGLE
        close(one, other, atol=1e-1, rtol=1e-1)


@checks("autocast", examples=2)
def test_autocast_takes_mixed_dtypes(attend, case):
    q, k, v = case.qkv(dtype=SINGLE)
    with torch.autocast("cpu", torch.bfloat16):
        got = attend(q, k, v.to(torch.bfloat16))
    close(got.to(SINGLE), attend(q, k, v), atol=3e-2, rtol=3e-2)
