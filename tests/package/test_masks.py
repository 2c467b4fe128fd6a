"""Masks: what each allows, how they combine, and how the two forms convert."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfbook import attention
from tfbook.attention import attend

sizes = st.integers(0, 7)


@given(n=sizes, m=sizes)
def test_causal_allows_the_past_aligned_to_the_last_key(n, m):
    mask = attention.causal_mask(n, m)
    assert mask.shape == (n, m)
    for i in range(n):
        for j in range(m):
            # Counted from the end: key m − 1 − a is seen by query n − 1 − b when a ≥ b.
            assert mask[i, j] == (m - 1 - j >= n - 1 - i)


def test_causal_without_a_number_of_keys_is_the_lower_triangle():
    assert torch.equal(attention.causal_mask(5), torch.ones(5, 5, dtype=torch.bool).tril())


@given(lengths=st.lists(sizes, min_size=1, max_size=5), extra=st.integers(0, 3))
def test_padding_allows_as_many_keys_as_the_length_says(lengths, extra):
    mask = attention.padding_mask(lengths, max(lengths) + extra)
    assert mask.shape == (len(lengths), 1, max(lengths) + extra)
    for row, length in zip(mask[:, 0].tolist(), lengths, strict=True):
        assert row == [True] * length + [False] * (len(row) - length)


def test_padding_takes_lists_and_tensors_and_finds_the_largest_length():
    assert torch.equal(attention.padding_mask([3, 1]), attention.padding_mask(torch.tensor([3, 1])))
    assert attention.padding_mask([3, 1]).shape == (2, 1, 3)
    assert attention.padding_mask([]).shape == (0, 1, 0)


def test_padding_with_heads_needs_one_more_dimension():
    q, k, v = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 7)
    mask = attention.padding_mask([4, 11]).unsqueeze(1)
    short = attend(q[0], k[0, :, :4], v[0, :, :4])
    torch.testing.assert_close(attend(q, k, v, mask=mask)[0], short)


@given(ids=st.lists(st.integers(0, 3), max_size=7))
def test_document_mask_allows_the_same_document(ids):
    mask = attention.document_mask(ids)
    assert mask.tolist() == [[a == b for b in ids] for a in ids]


def test_document_mask_keeps_a_batch_apart():
    mask = attention.document_mask(torch.tensor([[0, 0, 1], [0, 1, 1]]))
    assert mask.shape == (2, 3, 3)
    assert mask[0, 0, 1] and not mask[1, 0, 1]


@given(n=sizes, block=st.integers(1, 4))
def test_block_mask_is_made_of_square_blocks(n, block):
    blocks = [torch.ones(min(block, n - i), min(block, n - i)) for i in range(0, n, block)]
    wanted = torch.block_diag(*blocks).bool() if blocks else torch.zeros(0, 0, dtype=torch.bool)
    assert torch.equal(attention.block_mask(n, block), wanted)


def test_combination_allows_what_all_allow():
    causal, padding = attention.causal_mask(5), attention.padding_mask([2, 5])
    combined = attention.combine_masks(causal, None, padding)
    assert combined.shape == (2, 5, 5)
    assert torch.equal(combined, causal & padding)


def test_nothing_combines_to_nothing():
    assert attention.combine_masks() is None
    assert attention.combine_masks(None, None) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_mask_survives_the_way_to_additive_and_back(dtype):
    mask = torch.rand(5, 7) > 0.5
    additive = attention.to_additive(mask, dtype)
    assert additive.dtype == dtype
    assert torch.equal(attention.to_boolean(additive), mask)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_an_additive_mask_as_bias_equals_the_boolean_mask(dtype):
    q, k, v = (torch.randn(2, n, 3).to(dtype) for n in (5, 7, 7))
    mask = torch.rand(5, 7) > 0.5
    mask[0] = False
    got = attend(q, k, v, bias=attention.to_additive(mask, dtype))
    torch.testing.assert_close(got, attend(q, k, v, mask=mask))


def test_the_stand_ins_for_minus_infinity_are_understood():
    for low in (-1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf):
        assert attention.to_boolean(torch.tensor([0.0, low])).tolist() == [True, False]


def test_multihead_attention_of_pytorch_takes_the_opposite_mask():
    module = torch.nn.MultiheadAttention(6, 1, bias=False, batch_first=True)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(6).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(6))
    x = torch.randn(2, 5, 6)
    mask = attention.causal_mask(5)
    theirs, _ = module(x, x, x, attn_mask=~mask)
    torch.testing.assert_close(attend(x, x, x, mask=mask), theirs)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: attention.causal_mask(3.0), TypeError, "n must be an integer, got float"),
        (lambda: attention.causal_mask(3, -1), ValueError, "m must be at least 0, got -1"),
        (
            lambda: attention.padding_mask([1.5]),
            TypeError,
            "lengths must be integers, got torch.float",
        ),
        (lambda: attention.padding_mask([[1]]), ValueError, r"lengths must have shape \(B,\)"),
        (lambda: attention.padding_mask([4], 3), ValueError, "up to 4, which is above max_len = 3"),
        (lambda: attention.padding_mask([-1]), ValueError, "must not be negative, got -1"),
        (
            lambda: attention.padding_mask([True]),
            TypeError,
            "lengths must be integers, got torch.bool",
        ),
        (lambda: attention.document_mask(torch.ones(3)), TypeError, "ids must be integers"),
        (lambda: attention.document_mask(torch.tensor(1)), ValueError, "ids needs at least 1 dim"),
        (lambda: attention.block_mask(3, 0), ValueError, "block must be at least 1, got 0"),
        (lambda: attention.combine_masks(torch.ones(3)), TypeError, "mask must be boolean"),
        (
            lambda: attention.combine_masks(attention.causal_mask(3), attention.causal_mask(5)),
            ValueError,
            r"do not broadcast: mask 0 \(3, 3\), mask 1 \(5, 5\)",
        ),
        (lambda: attention.to_additive(torch.ones(3)), TypeError, "mask must be boolean"),
        (
            lambda: attention.to_additive(attention.causal_mask(3), torch.int64),
            TypeError,
            "dtype must be floating point, got torch.int64",
        ),
        (
            lambda: attention.to_boolean(torch.tensor([0, 1])),
            TypeError,
            "additive must have a float",
        ),
        (lambda: attention.to_boolean(torch.tensor([-3.0])), ValueError, "pass them as bias="),
        (lambda: attention.to_boolean(torch.tensor([1.0])), ValueError, "pass them as bias="),
        (lambda: attention.to_boolean(torch.tensor([torch.nan])), ValueError, "only 0"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("window", [1, 2, 5, 9])
@pytest.mark.parametrize(("n", "m"), [(5, 5), (3, 7), (1, 7), (7, 3), (0, 4)])
def test_a_band_allows_a_query_itself_and_those_just_before_it(n, m, window):
    allowed = attention.band_mask(n, m, window)
    for i in range(n):
        place = i + m - n
        for j in range(m):
            assert allowed[i, j] == (place - window < j <= place)


def test_a_band_as_wide_as_the_keys_is_the_causal_mask():
    assert torch.equal(attention.band_mask(5, 7, 7), attention.causal_mask(5, 7))
