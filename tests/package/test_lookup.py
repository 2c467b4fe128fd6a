"""Soft and hard lookup: what they share with attention, and how one becomes the other."""

import pytest
import torch
from attention_properties import CHECKS, Bound, Case, close, gradients

from tfbook.attention import attend, hard_lookup, soft_lookup

# Checks that pass no mask, bias, scale or causal.
BOTH = [
    "test_equal_values_come_out_unchanged",
    "test_permuting_queries_permutes_outputs",
    "test_permuting_keys_with_their_values_changes_nothing",
    "test_a_query_alone_gets_the_same_output",
    "test_the_output_is_linear_in_the_values",
    "test_expanded_inputs_work",
    "test_one_key_returns_its_value",
]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("lookup", [soft_lookup, hard_lookup])
def test_lookup_has(lookup, name):
    CHECKS[name](Bound(lookup))


def test_soft_lookup_at_the_root_of_the_size_is_attention():
    q, k, v = Case().qkv()
    close(soft_lookup(q, k, v, temperature=3**0.5), attend(q, k, v))


def test_soft_lookup_becomes_hard_as_the_temperature_falls():
    q, k, v = Case().qkv()
    distances = [
        (soft_lookup(q, k, v, temperature=t) - hard_lookup(q, k, v)).abs().max()
        for t in (1.0, 0.1, 0.01, 1e-4)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-9


def test_soft_lookup_becomes_the_mean_as_the_temperature_rises():
    q, k, v = Case().qkv()
    wanted = v.mean(-2, keepdim=True).expand(2, 5, 2)
    close(soft_lookup(q, k, v, temperature=1e9), wanted, atol=1e-8)


def test_hard_lookup_returns_the_value_of_the_most_similar_key():
    keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    values = torch.tensor([[2.0], [3.0], [5.0]])
    query = torch.tensor([[0.9, 0.1], [0.1, 0.9], [-2.0, 0.3]])
    output, weights = hard_lookup(query, keys, values, return_weights=True)
    close(output, values)
    close(weights, torch.eye(3))


def test_hard_lookup_takes_the_first_of_equal_keys():
    keys = torch.ones(3, 2)
    values = torch.tensor([[2.0], [3.0], [5.0]])
    close(hard_lookup(torch.ones(1, 2), keys, values), torch.tensor([[2.0]]))


def test_hard_lookup_gives_its_gradient_to_the_chosen_value_only():
    q, k, v = inputs = Case().qkv(grad=True)
    dq, dk, dv = gradients(hard_lookup(q, k, v), inputs)
    assert dq is None and dk is None
    close(dv.sum(), torch.tensor(2.0 * 5 * 2, dtype=v.dtype))


@pytest.mark.parametrize("lookup", [soft_lookup, hard_lookup])
def test_a_lookup_among_no_keys_gives_zeros(lookup):
    q, k, v = Case().qkv()
    assert (lookup(q, k[..., :0, :], v[..., :0, :]) == 0).all()


@pytest.mark.untyped
@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf")])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature must be finite and above 0"):
        soft_lookup(*Case().qkv(), temperature=temperature)
