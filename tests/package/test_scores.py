"""Scores against sums written out, and the softmax against its definition and its derivative."""

import math

import pytest
import torch
from attention_properties import DOUBLE, Case, close
from hypothesis import given
from hypothesis import strategies as st

from tfbook import attention


def pairs(q, k):
    """Every query with every key: (i, j, q[i], k[j]) as lists of numbers."""
    return [(i, j, a, b) for i, a in enumerate(q.tolist()) for j, b in enumerate(k.tolist())]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_dot_scores_are_dot_products():
    q, k, _ = Case(batch=()).qkv()
    got = attention.dot_scores(q, k)
    assert all(math.isclose(got[i, j], dot(a, b), abs_tol=1e-12) for i, j, a, b in pairs(q, k))


def test_scaled_dot_scores_are_divided_by_the_root_of_the_size():
    q, k, _ = Case(d=7, batch=()).qkv()
    got = attention.scaled_dot_scores(q, k)
    for i, j, a, b in pairs(q, k):
        assert math.isclose(got[i, j], dot(a, b) / 7**0.5, abs_tol=1e-12)


def test_bilinear_scores_go_through_the_matrix():
    case = Case(batch=())
    q, k, _ = case.qkv()
    q, weight = q[:, :2], case.normal(2, 3)
    got = attention.bilinear_scores(q, k, weight)
    for i, j, a, b in pairs(q, k):
        wanted = sum(a[x] * weight[x, y].item() * b[y] for x in range(2) for y in range(3))
        assert math.isclose(got[i, j], wanted, abs_tol=1e-12)


def test_additive_scores_are_a_network_of_one_hidden_layer():
    case = Case(batch=())
    q, k, _ = case.qkv()
    q, w_q, w_k, w_a = q[:, :2], case.normal(11, 2), case.normal(11, 3), case.normal(11)
    got = attention.additive_scores(q, k, w_q, w_k, w_a)
    for i, j, a, b in pairs(q, k):
        hidden = [
            math.tanh(dot(x, a) + dot(y, b))
            for x, y in zip(w_q.tolist(), w_k.tolist(), strict=True)
        ]
        assert math.isclose(got[i, j], dot(w_a.tolist(), hidden), abs_tol=1e-12)


def test_bilinear_scores_with_the_identity_are_dot_products():
    q, k, _ = Case().qkv()
    close(attention.bilinear_scores(q, k, torch.eye(3, dtype=DOUBLE)), attention.dot_scores(q, k))


def test_half_precision_scores_come_in_float32():
    q, k, _ = Case().qkv(dtype=torch.float16)
    assert attention.dot_scores(q, k).dtype == torch.float32
    assert attention.dot_scores(q * 1000, k * 1000).isfinite().all()


@given(seed=st.integers(0, 1000), temperature=st.floats(0.1, 10))
def test_temperature_divides_the_scores(seed, temperature):
    s = Case(seed=seed).normal(5, 7)
    close(
        attention.masked_softmax(s, temperature=temperature),
        attention.masked_softmax(s / temperature),
    )


@given(seed=st.integers(0, 1000))
def test_a_lower_temperature_sharpens(seed):
    s = Case(seed=seed).normal(5, 7)
    tops = [attention.masked_softmax(s, temperature=t).amax(-1) for t in (0.3, 1.0, 3.0)]
    assert (tops[0] >= tops[1]).all() and (tops[1] >= tops[2]).all()


def test_a_known_softmax():
    s = torch.tensor([[0.0, math.log(2), math.log(5)]], dtype=DOUBLE)
    close(attention.masked_softmax(s), torch.tensor([[1, 2, 5]], dtype=DOUBLE) / 8)
    mask = torch.tensor([[True, True, False]])
    close(attention.masked_softmax(s, mask), torch.tensor([[1, 2, 0]], dtype=DOUBLE) / 3)


def test_one_row_of_scores_is_enough():
    close(attention.masked_softmax(torch.zeros(4)), torch.full((4,), 0.25))
    close(attention.log_sum_exp(torch.zeros(4)), torch.tensor(4.0).log())


def test_a_row_without_anything_allowed_is_zero():
    s = torch.zeros(2, 3)
    assert (attention.masked_softmax(s, torch.zeros(1, 3, dtype=torch.bool)) == 0).all()
    assert (attention.masked_softmax(s - torch.inf) == 0).all()


@given(seed=st.integers(0, 1000))
def test_the_jacobian_is_what_autograd_finds(seed):
    s = Case(seed=seed).normal(7)
    wanted = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, -1), s)
    close(attention.softmax_jacobian(torch.softmax(s, -1)), wanted)


def test_the_jacobian_is_symmetric_with_rows_that_sum_to_zero():
    jacobian = attention.softmax_jacobian(torch.softmax(Case().normal(2, 5, 7), -1))
    assert jacobian.shape == (2, 5, 7, 7)
    close(jacobian, jacobian.mT)
    close(jacobian.sum(-1), torch.zeros(2, 5, 7, dtype=DOUBLE))


def test_the_jacobian_vanishes_where_the_softmax_is_saturated():
    assert (attention.softmax_jacobian(torch.tensor([0.0, 1.0, 0.0])) == 0).all()


def test_restrict_with_nothing_changes_nothing():
    s = Case().normal(5, 7)
    assert attention.restrict(s) is s


Q, K = torch.randn(5, 3), torch.randn(7, 3)
S = torch.randn(5, 7)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: attention.dot_scores(Q, torch.randn(7, 2)), ValueError, "same last dimension"),
        (lambda: attention.dot_scores(Q[0], K), ValueError, "q needs at least 2 dimensions"),
        (lambda: attention.dot_scores(Q, [1.0]), TypeError, "k must be a tensor, got list"),
        (lambda: attention.dot_scores(Q, K.double()), TypeError, "same dtype"),
        (lambda: attention.scaled_dot_scores(Q, K, scale=0), ValueError, "scale must be finite"),
        (
            lambda: attention.bilinear_scores(Q, K, torch.randn(3, 2)),
            ValueError,
            r"weight must have shape \(d_q, d_k\) = \(3, 3\), got \(3, 2\)",
        ),
        (
            lambda: attention.additive_scores(
                Q, K, torch.randn(4, 3), torch.randn(5, 3), torch.ones(4)
            ),
            ValueError,
            r"w_k must have shape \(d_hidden, d_k\) = \(4, 3\), got \(5, 3\)",
        ),
        (
            lambda: attention.additive_scores(
                Q, K, torch.randn(4, 3), torch.randn(4, 3), torch.ones(4, 1)
            ),
            ValueError,
            r"w_a must have shape \(d_hidden,\)",
        ),
        (
            lambda: attention.masked_softmax(S, temperature=0.0),
            ValueError,
            "temperature must be fin",
        ),
        (lambda: attention.masked_softmax(S, S), TypeError, "mask must be boolean"),
        (lambda: attention.masked_softmax(S, S.T > 0), ValueError, "queries come before keys"),
        (
            lambda: attention.masked_softmax(S.long()),
            TypeError,
            "scores must have a floating-point",
        ),
        (lambda: attention.softmax_jacobian(torch.tensor(1.0)), ValueError, "p needs at least 1"),
        (lambda: attention.restrict(S, causal=S > 0), TypeError, "causal must be True or False"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
