"""Costs: the plain numbers equal those counted from real modules, states and runs."""

import pytest
import torch
from multihead_properties import normal
from torch.utils.flop_counter import FlopCounterMode

from tfbook import costs
from tfbook.attention import LatentAttention, MultiHeadAttention, attend
from tfbook.positions import RotaryPositions

SIZES = [
    {"d_model": 24, "n_heads": 6},
    {"d_model": 24, "n_heads": 1},
    {"d_model": 24, "n_heads": 6, "n_kv_heads": 2},
    {"d_model": 24, "n_heads": 6, "n_kv_heads": 1, "d_value": 7},
    {"d_model": 23, "n_heads": 6, "n_kv_heads": 3, "d_head": 5, "d_value": 7},
]
LATENT = [
    {"d_model": 24, "n_heads": 6, "d_latent": 11},
    {"d_model": 23, "n_heads": 6, "d_latent": 11, "d_head": 5, "d_value": 7, "d_rope": 4},
    {"d_model": 24, "n_heads": 3, "d_latent": 5, "d_rope": 2, "d_query_latent": 13},
]


def counted(run):
    """Count the FLOPs of a run as PyTorch counts them, by operation."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def latent(sizes, **choices):
    rope = sizes.get("d_rope", 0)
    position = RotaryPositions(rope) if rope else None
    return LatentAttention(**sizes, **choices, position=position, attend=attend).double()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("bias", [True, False, ("q", "v")], ids=str)
def test_parameters_are_those_of_the_module(sizes, bias):
    module = MultiHeadAttention(**sizes, bias=bias)
    there = sum(parameter.numel() for parameter in module.parameters())
    assert costs.attention_parameters(**sizes, bias=bias) == there


@pytest.mark.parametrize("memory", [11, (11, 5)])
def test_parameters_of_cross_attention_are_those_of_the_module(memory):
    module = MultiHeadAttention(24, 6, d_memory=memory)
    there = sum(parameter.numel() for parameter in module.parameters())
    assert costs.attention_parameters(24, 6, d_memory=memory) == there


@pytest.mark.parametrize("sizes", LATENT, ids=str)
def test_parameters_of_latent_attention_are_those_of_the_module(sizes):
    there = sum(parameter.numel() for parameter in latent(sizes).parameters())
    assert costs.latent_parameters(**sizes) == there


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_flops_are_those_pytorch_counts(sizes):
    module = MultiHeadAttention(**sizes, attend=attend).double()
    x = normal(3, 7, sizes["d_model"])
    assert costs.attention_flops(7, **sizes, batch=3) == counted(lambda: module(x))


@pytest.mark.parametrize("new", [1, 2, 7])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_flops_with_a_cache_are_those_pytorch_counts(sizes, new):
    module = MultiHeadAttention(**sizes, attend=attend, causal=True).double()
    x = normal(3, 12, sizes["d_model"])
    _, state = module(x[:, :-new])
    there = counted(lambda: module(x[:, -new:], state))
    assert costs.attention_flops(new, **sizes, m=12, batch=3) == there


def test_flops_of_cross_attention_are_those_pytorch_counts():
    module = MultiHeadAttention(24, 6, n_kv_heads=2, d_memory=(11, 5), attend=attend).double()
    x, memory, values = normal(3, 7, 24), normal(3, 13, 11), normal(3, 13, 5)
    state = module.remember(memory, values)
    sizes = {"d_model": 24, "n_heads": 6, "n_kv_heads": 2, "d_memory": (11, 5), "m": 13, "batch": 3}
    remembered = counted(lambda: module(x, state))
    assert costs.attention_flops(7, **sizes, remembered=True) == remembered
    whole = counted(lambda: module(x, module.remember(memory, values)))
    assert costs.attention_flops(7, **sizes) == whole > remembered


@pytest.mark.parametrize("absorbed", [True, False])
@pytest.mark.parametrize("sizes", LATENT, ids=str)
def test_flops_of_latent_attention_are_those_pytorch_counts(sizes, absorbed):
    module = latent(sizes, absorbed=absorbed, causal=True)
    x = normal(3, 12, sizes["d_model"])
    whole = costs.latent_flops(12, **sizes, batch=3, absorbed=absorbed)
    assert whole == counted(lambda: module(x))
    _, state = module(x[:, :-2])
    step = costs.latent_flops(2, **sizes, m=12, batch=3, absorbed=absorbed)
    assert step == counted(lambda: module(x[:, -2:], state))


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8, 16])
def test_parameters_and_flops_do_not_depend_on_the_number_of_heads(n_heads):
    assert costs.attention_parameters(64, n_heads, bias=False) == 4 * 64**2
    assert costs.attention_parameters(64, n_heads) == 4 * 64**2 + 4 * 64
    assert costs.attention_flops(10, 64, n_heads) == 8 * 10 * 64**2 + 4 * 10**2 * 64


def test_the_parts_are_named_and_sum_to_the_whole():
    parts = costs.attention_flops_parts(7, 24, 6, n_kv_heads=2)
    assert list(parts) == ["q", "k", "v", "scores", "mix", "out"]
    assert sum(parts.values()) == costs.attention_flops(7, 24, 6, n_kv_heads=2)
    assert parts["k"] * 3 == parts["q"] == parts["out"]
    parts = costs.latent_flops_parts(7, 24, 6, d_latent=11)
    assert list(parts) == ["q", "down", "up", "scores", "mix", "out"]
    assert sum(parts.values()) == costs.latent_flops(7, 24, 6, d_latent=11)


def test_absorbing_pays_for_few_queries_and_many_keys():
    sizes = {"d_model": 512, "n_heads": 8, "d_latent": 128, "d_rope": 32}
    for n, m, pays in ((1, 1000, True), (1000, 1000, False)):
        absorbed, naive = (
            costs.latent_flops(n, **sizes, m=m, absorbed=form) for form in (True, False)
        )
        assert (absorbed < naive) == pays


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_cache_bytes_are_those_of_the_state(sizes, dtype):
    module = MultiHeadAttention(**sizes).to(dtype)
    _, state = module(torch.zeros(3, 11, sizes["d_model"], dtype=dtype))
    there = costs.kv_cache_bytes(
        1, module.n_kv_heads, module.d_head, 11, 3, dtype.itemsize, d_value=module.d_value
    )
    assert there == state.nbytes


@pytest.mark.parametrize("sizes", LATENT, ids=str)
def test_latent_cache_bytes_are_those_of_the_state(sizes):
    module = latent(sizes).float()
    _, state = module(torch.zeros(3, 11, sizes["d_model"]))
    there = costs.latent_cache_bytes(1, module.d_latent, module.d_rope, 11, 3, 4)
    assert there == state.nbytes


def test_cache_bytes_grow_with_each_factor():
    one = costs.kv_cache_bytes(1, 1, 8, 5)
    assert one == 2 * 8 * 5 * 2
    assert costs.kv_cache_bytes(3, 7, 8, 5, 11) == 3 * 7 * 11 * one
    assert costs.kv_cache_bytes(1, 1, 8, 0) == 0
    assert costs.latent_cache_bytes(3, 8, 0, 5, 11) == 3 * 11 * one // 2


REFUSED = {
    "no heads": (lambda c: c.attention_parameters(8, 0), ValueError, "n_heads must be at least 1"),
    "uneven heads": (lambda c: c.attention_parameters(8, 3), ValueError, "n_heads must divide"),
    "uneven groups": (
        lambda c: c.attention_flops(2, 8, 4, n_kv_heads=3),
        ValueError,
        "n_kv_heads must divide n_heads, got 3 and 4",
    ),
    "a fraction": (lambda c: c.attention_flops(2.5, 8, 4), TypeError, "n must be an integer"),
    "fewer keys than rows": (
        lambda c: c.attention_flops(5, 8, 4, m=3),
        ValueError,
        "m counts all keys, the n new ones included, got m = 3 and n = 5",
    ),
    "a memory in self-attention": (
        lambda c: c.attention_flops(5, 8, 4, remembered=True),
        ValueError,
        "remembered is for cross-attention",
    ),
    "an unknown bias": (
        lambda c: c.attention_parameters(8, 2, bias="qkv"),
        ValueError,
        "bias must be True, False or names",
    ),
    "no layers": (lambda c: c.kv_cache_bytes(0, 1, 8, 5), ValueError, "n_layers must be at least"),
    "negative length": (
        lambda c: c.kv_cache_bytes(1, 1, 8, -5),
        ValueError,
        "length must be at least 0, got -5",
    ),
    "half a byte": (
        lambda c: c.kv_cache_bytes(1, 1, 8, 5, bytes_per_number=0.5),
        TypeError,
        "bytes_per_number must be an integer",
    ),
    "no latent": (
        lambda c: c.latent_parameters(8, 2, d_latent=0),
        ValueError,
        "d_latent must be at least 1",
    ),
    "a form that is no choice": (
        lambda c: c.latent_flops(2, 8, 2, d_latent=3, absorbed=None),
        TypeError,
        "absorbed must be True or False",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", REFUSED)
def test_wrong_sizes_are_refused(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call(costs)
