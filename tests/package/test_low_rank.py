"""Low-rank attention: landmarks and learned mixtures, against matrices written out."""

import dataclasses
import functools

import fresh
import pytest
import torch
from attention_properties import CHECKS, DOUBLE, SINGLE, Bound, Case, close, gradients
from counterexamples_linear import keys_only
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import peak_memory
from tfbook.attention import VARIANTS, attend
from tfbook.efficient import LinformerAttention, attend_nystrom, newton_inverse, segment_means

EXACT = functools.partial(attend_nystrom, inverse="exact")


def normal(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# Segments and inverses


def test_segments_are_equal_and_in_order_where_they_can_be():
    x = normal(2, 12, 3)
    means, there = segment_means(x, 4)
    close(means, x.unflatten(-2, (4, 3)).mean(-2))
    assert there.all() and there.shape == (4,)
    for n, s in ((7, 3), (5, 4), (11, 2), (3, 9)):
        rows = normal(n, 2)
        groups = [[i for i in range(n) if i * min(s, n) // n == g] for g in range(min(s, n))]
        assert max(map(len, groups)) - min(map(len, groups)) <= 1
        close(segment_means(rows, s)[0], torch.stack([rows[g].mean(0) for g in groups]))


def test_means_of_allowed_rows_are_those_of_the_rows_alone():
    x = normal(2, 9, 3)
    keep = torch.tensor([1, 0, 1, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    close(segment_means(x, 3, mask=keep)[0], segment_means(x[:, keep], 3)[0])
    means, there = segment_means(x, 8, mask=keep)
    close(means[:, :6], x[:, keep])
    assert there.tolist() == [True] * 6 + [False] * 2 and (means[:, 6:] == 0).all()
    each = torch.stack([keep, ~keep])
    means, _ = segment_means(x, 2, mask=each)
    close(means[1], segment_means(x[1, ~keep], 2)[0])
    means, there = segment_means(x, 2, mask=keep & False)
    assert (means == 0).all() and not there.any()


def test_newton_comes_to_the_pseudo_inverse():
    for shape in ((4, 4), (3, 4), (4, 3)):
        a = torch.softmax(2 * normal(2, *shape), -1)
        errors = [(newton_inverse(a, s) - torch.linalg.pinv(a)).abs().max() for s in (0, 4, 25)]
        assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-9
    assert (newton_inverse(torch.zeros(2, 3, 4)) == 0).all()
    assert newton_inverse(torch.zeros(2, 0, 4)).shape == (2, 4, 0)


def test_a_step_of_newton_cubes_what_is_missing():
    a = torch.softmax(normal(3, 3), -1)
    eye = torch.eye(3, dtype=DOUBLE)
    for steps in range(4):
        left = eye - a @ newton_inverse(a, steps)
        again = eye - a @ newton_inverse(a, steps + 1)
        # 4 (I − AZ') = 4 I − AZ (13 − 15 AZ + 7 (AZ)² − (AZ)³) with AZ = I − R is R³ (3 I + R)
        close(4 * again, left @ left @ left @ (3 * eye + left), atol=1e-10)


# Nyström


@pytest.mark.parametrize(("n", "m"), [(6, 6), (4, 6), (6, 4), (1, 5), (5, 1)])
def test_with_a_landmark_for_each_row_it_is_attention(n, m):
    q, k, v = inputs = [
        normal(2, *shape, seed=s).requires_grad_()
        for s, shape in enumerate([(n, 9), (m, 9), (m, 3)])
    ]
    wanted = attend(q, k, v, scale=0.7)
    for fn in (EXACT, functools.partial(attend_nystrom, steps=40)):
        got = fn(q, k, v, landmarks=9, scale=0.7)
        close(got, wanted, atol=1e-7)
        if n == m:
            for mine, theirs in zip(gradients(got, inputs), gradients(wanted, inputs), strict=True):
                close(mine, theirs, atol=1e-6)


def test_it_is_three_matrices_with_an_inverse_between():
    q, k, v = normal(8, 4), normal(12, 4, seed=1), normal(12, 3, seed=2)
    q_means = q.unflatten(0, (2, 4)).mean(1)
    k_means = k.unflatten(0, (2, 6)).mean(1)

    def weights(a, b):
        e = (a @ b.T / 2).exp()
        return e / e.sum(-1, keepdim=True)

    wanted = weights(q, k_means) @ weights(q_means, k_means).inverse() @ weights(q_means, k) @ v
    close(EXACT(q, k, v, landmarks=2), wanted)
    close(attend_nystrom(q, k, v, landmarks=2, steps=30), wanted)


def test_it_equals_the_librarys_nystromformer():
    modeling = pytest.importorskip("transformers.models.nystromformer.modeling_nystromformer")
    config = modeling.NystromformerConfig(
        hidden_size=12, num_attention_heads=3, num_landmarks=4, segment_means_seq_len=16,
        inv_coeff_init_option=False, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = modeling.NystromformerSelfAttention(config).double().eval()
    theirs.conv_kernel_size = None  # without the convolution beside it
    theirs.init_option = "each"  # Newton's start for each matrix by itself
    x = normal(2, 16, 12)
    q, k, v = (
        getattr(theirs, name)(x).unflatten(-1, (3, 4)).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    wanted = theirs(x)[0]
    got = attend_nystrom(q, k, v, landmarks=4).transpose(1, 2).flatten(-2)
    close(got, wanted)


def test_more_landmarks_come_nearer():
    n = 64
    place = torch.linspace(0, 6, n, dtype=DOUBLE)[:, None]
    q = torch.cat([(place * f).sin() for f in (1, 2, 3)], -1)  # neighbours are alike
    k, v = q.roll(1, -1), normal(n, 3)
    errors = [(EXACT(q, k, v, landmarks=s) - attend(q, k, v)).abs().mean() for s in (4, 8, 16, 32)]
    assert errors[0] > 3 * errors[1] > 9 * errors[2] > 27 * errors[3]


def test_masked_keys_are_as_if_they_were_not_there():
    q, k, v = normal(2, 6, 4), normal(2, 9, 4, seed=1), normal(2, 9, 3, seed=2)
    keep = torch.tensor([1, 0, 1, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    module = LinformerAttention(9, 3).double()
    for fn in (EXACT, attend_nystrom):
        for landmarks in (2, 8):
            wanted = fn(q, k[:, keep], v[:, keep], landmarks=landmarks)
            close(fn(q, k, v, landmarks=landmarks, mask=keep[None]), wanted)
    changed = [torch.where(keep[:, None], x, 7.0) for x in (k, v)]
    for fn in (EXACT, attend_nystrom, module):
        close(fn(q, k, v, mask=keep), fn(q, *changed, mask=keep), atol=0)


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE, torch.float16, torch.bfloat16])
def test_without_any_key_there_are_zeros_and_no_gradient(dtype):
    module = LinformerAttention(9, 3)
    for fn in (EXACT, attend_nystrom, module):
        q, k, v = inputs = Case().qkv(dtype=dtype, grad=True)
        some = torch.ones(2, 1, 7, dtype=torch.bool)
        some[0] = False
        output = fn(q, k, v, mask=some)
        assert (output[0] == 0).all() and (output[1] != 0).any() and output.dtype == dtype
        for slope in gradients(output, inputs):
            assert (slope[0] == 0).all() and slope.isfinite().all()
        none = fn(q, k[..., :0, :], v[..., :0, :])
        assert none.shape == (2, 5, 2) and (none == 0).all()


# Both through the checks of all attention functions, without what they refuse.

KEPT = {
    "value_linear", "half_precision", "small_sizes", "broadcasting", "strides", "purity",
    "gradients", "second_derivatives", "vmap", "autocast",
}  # fmt: skip


# Mixtures of keys and values need not be means of them.
NOT_SHARES = {
    ("linformer", "test_one_key_returns_its_value"),
    ("linformer", "test_expanded_inputs_work"),
}


class OneLinformer:
    """An attention function with weights that depend on nothing but the dtype."""

    def __init__(self):
        torch.manual_seed(0)
        self.module = LinformerAttention(16, 3, shared=True).requires_grad_(False)

    def __call__(self, q, k, v, **keywords):
        return self.module(q, k, v, **keywords)


SUBJECTS = {"nystrom": functools.partial(attend_nystrom, landmarks=3), "linformer": OneLinformer()}


@pytest.mark.parametrize(
    ("subject", "check"),
    [
        pytest.param(name, check, id=f"{name}-{check.name}")
        for name in SUBJECTS
        for check in CHECKS.values()
        if check.property in KEPT and (name, check.name) not in NOT_SHARES
    ],
)
def test_what_they_take_they_take_as_all_do(subject, check):
    check = dataclasses.replace(check, examples=min(check.examples, 1))
    check(Bound(keys_only(SUBJECTS[subject], causal=False)))


@pytest.mark.untyped
def test_landmarks_compile():
    module = fresh.copies("plain_low_rank", ["tfbook.attention", "tfbook.efficient.low_rank"])
    (check,) = (each for each in CHECKS.values() if each.property == "compile")
    check(Bound(keys_only(functools.partial(module.attend_nystrom, landmarks=3), causal=False)))


@pytest.mark.untyped
@pytest.mark.parametrize("fn", [attend_nystrom, LinformerAttention(9, 3).double()])
def test_what_needs_a_score_of_each_query_and_key_is_refused(fn):
    q, k, v = Case().qkv()
    whole = torch.ones(5, 7, dtype=torch.bool)
    for given, what in (
        ({"causal": True}, "causal=True"),
        ({"bias": torch.zeros(5, 7, dtype=DOUBLE)}, "a bias"),
        ({"mask": whole}, r"a mask \(..., n, m\)"),
        ({"return_weights": True}, "return_weights=True"),
        ({"return_lse": True}, "return_lse=True"),
    ):
        with pytest.raises(ValueError, match=f"cannot serve {what}"):
            fn(q, k, v, **given)


@pytest.mark.untyped
def test_impossible_options_are_refused():
    q, k, v = Case().qkv()
    for keywords, error, message in (
        ({"landmarks": 0}, ValueError, "landmarks must be at least 1"),
        ({"landmarks": 2.0}, TypeError, "landmarks must be an integer"),
        ({"inverse": "lu"}, ValueError, "inverse must be one of newton, exact"),
        ({"steps": -1}, ValueError, "steps must be at least 0"),
    ):
        with pytest.raises(error, match=message):
            attend_nystrom(q, k, v, **keywords)
    with pytest.raises(ValueError, match="at most max_len = 6 rows, got 7"):
        LinformerAttention(6, 3).double()(q, k, v)
    for given, error in (((0, 3), ValueError), ((6, 0), ValueError), ((6, True), TypeError)):
        with pytest.raises(error):
            LinformerAttention(*given)
    with pytest.raises(TypeError, match="shared"):
        LinformerAttention(6, 3, shared=1)


# Linformer


def test_linformer_attends_to_mixtures():
    q, k, v = normal(2, 5, 4), normal(2, 7, 4, seed=1), normal(2, 7, 3, seed=2)
    for shared in (False, True):
        module = LinformerAttention(9, 3, shared=shared).double()
        e, f = module.e[:, :7], module.f[:, :7]
        close(module(q, k, v), attend(q, e @ k, f @ v))
        close(module(q, k, v, scale=0.3), attend(q, e @ k, f @ v, scale=0.3))
        assert len(list(module.parameters())) == 2 - shared
        module(q, k, v).sum().backward()
        assert all(p.grad[:, :7].abs().max() > 0 for p in module.parameters())
        assert all((p.grad[:, 7:] == 0).all() for p in module.parameters())


def test_linformer_with_a_mixture_for_each_key_can_be_attention():
    q, k, v = Case().qkv()
    module = LinformerAttention(7, 7).double()
    for weight in (module.e, module.f):
        weight.data = torch.eye(7, dtype=DOUBLE)
    close(module(q, k, v), attend(q, k, v))


# Costs


@pytest.mark.parametrize(("n", "m", "landmarks"), [(12, 20, 4), (20, 12, 4), (3, 20, 4)])
def test_flops_are_those_counted(n, m, landmarks):
    for options in ({}, {"steps": 2}, {"inverse": "exact"}):
        options = options | {"landmarks": landmarks}
        priced = VARIANTS["nystrom"].flops(n, m, 8, 5, **options)
        with FlopCounterMode(display=False) as counter:
            attend_nystrom(normal(n, 8), normal(m, 8), normal(m, 5), **options)
        assert sum(priced) == counter.get_total_flops()


def test_memory_grows_with_the_length_not_with_its_square():
    module = LinformerAttention(1024, 8)

    def peak(fn, n):
        q, k, v = (torch.randn(n, 8, requires_grad=True) for _ in range(3))
        return peak_memory(lambda: fn(q, k, v).sum().backward())

    for fn in (functools.partial(attend_nystrom, landmarks=8), module):
        assert peak(fn, 1024) <= 4.2 * peak(fn, 256)
