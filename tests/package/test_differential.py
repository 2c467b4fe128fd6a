"""Differential attention: two softmax attentions, their difference, and what carries on."""

import math

import pytest
import torch
from torch import nn

from tfbook.attention import (
    DifferentialAttention,
    MultiHeadAttention,
    SlidingCache,
    StaticCache,
    attend,
    causal_mask,
    first_lambda,
)
from tfbook.positions import RotaryPositions

B, N, D, H = 2, 7, 16, 2
SIZE = D // (2 * H)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(one, other, atol=1e-9):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def mixer(**choices):
    torch.manual_seed(1)
    made = DifferentialAttention(D, H, **choices).double()
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.4)
    return made


def by_heads(module, x, allowed):
    """Compute it head by head from the two maps, written down."""
    q, k, v = (getattr(module, f"{name}_proj")(x) for name in "qkv")
    own = [getattr(module, f"lambda_{name}") for name in ("q1", "k1", "q2", "k2")]
    size = sum(own[0] * own[1]).exp() - sum(own[2] * own[3]).exp() + module.lambda_init
    heads, maps = [], []
    for h in range(H):
        a, b, c = 2 * h * SIZE, (2 * h + 1) * SIZE, (2 * h + 2) * SIZE
        weights = []
        for left, right in ((a, b), (b, c)):
            scores = q[..., left:right] @ k[..., left:right].mT / math.sqrt(SIZE)
            weights.append(scores.masked_fill(~allowed, -math.inf).softmax(-1))
        maps.append(weights[0] - size * weights[1])
        z = maps[-1] @ v[..., a:c]
        if module.norm_weight is not None:
            z = z / (z.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.norm_weight
            z = z * (1 - module.lambda_init)
        heads.append(z)
    return module.out_proj(torch.cat(heads, -1)), torch.stack(maps, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_it_is_the_difference_of_two_attentions(causal, normalise):
    module = mixer(causal=causal, normalise=normalise, layer=3)
    x = normal(B, N, D).requires_grad_()
    allowed = causal_mask(N) if causal else torch.ones(N, N, dtype=torch.bool)
    y, maps = by_heads(module, x, allowed)
    close(module(x)[0], y)
    close(module.weights(x), maps)
    inputs = [x, *module.parameters()]
    mine, theirs = (torch.autograd.grad(z.square().sum(), inputs) for z in (module(x)[0], y))
    for one, other in zip(mine, theirs, strict=True):
        close(one, other, 1e-8)


def test_without_lambda_it_is_attention_with_half_the_heads():
    module = mixer(lambda_init=0.0, normalise=False, causal=True)
    with torch.no_grad():
        module.lambda_q1.zero_(), module.lambda_q2.zero_()
    assert module.weight == 0
    plain = MultiHeadAttention(
        D, H, d_head=SIZE, d_value=2 * SIZE, bias=False, causal=True
    ).double()  # fmt: skip
    with torch.no_grad():
        for name in ("q_proj", "k_proj"):
            weight = getattr(module, name).weight.unflatten(0, (H, 2, SIZE))
            getattr(plain, name).weight.copy_(weight[:, 0].flatten(0, 1))
        plain.v_proj.weight.copy_(module.v_proj.weight)
        plain.out_proj.weight.copy_(module.out_proj.weight)
    x = normal(B, N, D, seed=2)
    close(module(x)[0], plain(x)[0])


def test_rows_of_the_difference_sum_to_one_minus_lambda():
    module = mixer(causal=True)
    sums = module.weights(normal(B, N, D)).sum(-1)
    close(sums, (1 - module.weight).expand_as(sums))
    with torch.no_grad():  # what both maps see alike falls out
        module.lambda_q1.zero_(), module.lambda_q2.zero_()
    module.lambda_init = 1.0
    half = module.q_proj.weight.data.unflatten(0, (H, 2, SIZE))
    half[:, 1] = half[:, 0]
    half = module.k_proj.weight.data.unflatten(0, (H, 2, SIZE))
    half[:, 1] = half[:, 0]
    close(module.weights(normal(B, N, D)), torch.zeros(B, H, N, N, dtype=torch.float64))


@pytest.mark.parametrize("cuts", [[7], [1] * 7, [3, 1, 3]])
@pytest.mark.parametrize("rotary", [False, True])
def test_pieces_give_the_whole(cuts, rotary):
    module = mixer(causal=True, position=RotaryPositions(SIZE).double() if rotary else None)
    x, state, pieces = normal(B, N, D, seed=3), None, []
    mask = torch.ones(B, 1, N, dtype=torch.bool)
    mask[1, 0, :2] = False
    whole, last = module(x, mask=mask)
    for piece, seen in zip(x.split(cuts, 1), mask.split(cuts, 2), strict=True):
        before = None if state is None else (state.length, state.k.clone())
        y, after = module(piece, state, mask=seen)
        if state is not None:
            assert state.length == before[0] and torch.equal(state.k, before[1])  # never changed
        state = after
        pieces.append(y)
    close(torch.cat(pieces, 1), whole)
    assert state.length == last.length == N
    assert state.nbytes == 8 * 2 * B * N * D
    turned = module(x[:, :1], state.select(torch.tensor([1, 0])))[0]
    close(turned[0], module(x[:, :1].flip(0), state)[0][1])
    close(module(x[:, 5:], last.truncate(5), mask=mask[..., 5:])[0], whole[:, 5:])


def test_padding_and_rows_that_may_see_nothing():
    module = mixer(causal=True)
    x, mask = normal(1, N, D), torch.ones(1, 1, N, dtype=torch.bool)
    mask[..., :3] = False
    y = module(x, mask=mask)[0]
    close(y[:, 3:], module(x[:, 3:])[0])
    assert torch.equal(y[:, :3], torch.zeros(1, 3, D, dtype=torch.float64))
    each = torch.rand(1, H, N, N, generator=torch.Generator().manual_seed(0)) > 0.4
    maps = module.weights(x, mask=each)
    assert (maps[~(each & causal_mask(N))] == 0).all()


@pytest.mark.parametrize("cache", [StaticCache(9), SlidingCache(20)])
def test_caches_hold_its_keys(cache):
    module, x = mixer(causal=True), normal(B, N, D, seed=4)
    state = module.empty_state(B, cache=cache)
    with torch.no_grad():
        first, state = module(x[:, :4], state)
        rest, state = module(x[:, 4:], state)
    close(torch.cat([first, rest], 1), module(x)[0])


def test_any_attention_function_will_do():
    x = normal(B, N, D, seed=5)
    close(mixer(causal=True)(x)[0], mixer(causal=True, attend=attend)(x)[0])


def test_lambda_begins_as_published_and_can_be_learned():
    for layer in (0, 5, 30):
        torch.manual_seed(layer)
        module = DifferentialAttention(64, 4, layer=layer)
        assert abs(module.weight.item() - first_lambda(layer)) < 0.25  # exp(·) − exp(·) is near 0
    module = mixer()
    module(normal(B, N, D))[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())
    with pytest.raises(ValueError, match="layer must be at least 0"):
        first_lambda(-1)


def test_it_equals_a_diffllama_attention():
    from transformers import DiffLlamaConfig
    from transformers.models.diffllama.modeling_diffllama import (
        DiffLlamaAttention,
        DiffLlamaRotaryEmbedding,
    )

    config = DiffLlamaConfig(
        hidden_size=D, num_attention_heads=2 * H, num_key_value_heads=2 * H,
        attn_implementation="eager", rms_norm_eps=1e-5,
    )  # fmt: skip
    torch.manual_seed(6)
    theirs = DiffLlamaAttention(config, 2).double()
    for weight in theirs.parameters():
        nn.init.normal_(weight, std=0.4)
    ours = mixer(layer=2, causal=True, position=RotaryPositions(SIZE, layout="half").double())
    with torch.no_grad():
        nn.init.ones_(ours.norm_weight)
        for name in "qkv":  # theirs has all first halves, then all second ones
            weight = getattr(theirs, f"{name}_proj").weight.unflatten(0, (2, H, SIZE))
            getattr(ours, f"{name}_proj").weight.copy_(weight.transpose(0, 1).flatten(0, 2))
        ours.out_proj.weight.copy_(theirs.o_proj.weight)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            getattr(ours, name).copy_(getattr(theirs, name))
    x = normal(B, N, D, seed=7)
    places = DiffLlamaRotaryEmbedding(config)(x, torch.arange(N)[None])
    blocked = (~causal_mask(N)).double().mul(-1e300)[None, None]
    wanted = theirs(x, places, blocked)[0]
    torch.testing.assert_close(ours(x)[0], wanted, rtol=0, atol=1e-5)


REFUSED = {
    "2 · n_heads must divide d_model": lambda: DifferentialAttention(16, 3),
    "n_heads must be an integer": lambda: DifferentialAttention(16, True),
    "lambda_init must be from 0": lambda: DifferentialAttention(16, 2, lambda_init=1.0),
    "position must have rotate": lambda: DifferentialAttention(16, 2, position=3),
    "attend must be a function": lambda: DifferentialAttention(16, 2, attend=3),
    "state must be a KVState": lambda: mixer()(normal(B, N, D), 3),
    "x must have shape": lambda: mixer()(normal(N, D)),
    "state.k must have shape": lambda: mixer()(
        normal(B, N, D), MultiHeadAttention(D, H).double()(normal(1, N, D))[1]
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_refused_in_words(message):
    with pytest.raises((TypeError, ValueError), match=message):
        REFUSED[message]()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    module, x = mixer(causal=True, normalise=False), normal(B, N, D, seed=8)
    wanted = module(x)[0]
    found = module.to(dtype)(x.to(dtype))[0]
    torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.1)
