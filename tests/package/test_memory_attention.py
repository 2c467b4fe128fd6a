"""Memory across segments: what is remembered, how far it reaches, and where gradients stop."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tfbook.attention import (
    DynamicCache,
    MultiHeadAttention,
    SlidingCache,
    SlidingKVState,
    causal_mask,
)
from tfbook.blocks import Block, FeedForward, Stack
from tfbook.efficient import SegmentAttention, SegmentState, SinkCache
from tfbook.generation import generate
from tfbook.models import FFN, Attention, Layer, Rotary, TransformerConfig, build
from tfbook.positions import (
    ALiBi,
    RotaryPositions,
    SinusoidalPositions,
    TransformerXLPositions,
    YarnScaling,
)

B, D, H, DH = 2, 12, 3, 4


def normal(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def drawn(module, seed=0):
    module = module.double()
    for i, weight in enumerate(module.parameters()):
        weight.data = normal(*weight.shape, seed=seed + i) / max(weight.shape[-1], 1) ** 0.5
    return module


def attention(position="xl", **choices):
    parts = {"xl": lambda: TransformerXLPositions(H, DH), "alibi": lambda: ALiBi(H)}
    parts |= {"rotary": lambda: RotaryPositions(DH), "none": lambda: None}
    return MultiHeadAttention(D, H, causal=True, position=parts[position](), **choices)


def layer(length, position="xl", *, mha=None, **choices):
    return drawn(SegmentAttention(attention(position, **(mha or {})), length, **choices))


def in_segments(mixer, x, sizes, mask=None):
    state, found, start = None, [], 0
    for size in sizes:
        own = None if mask is None else mask[..., start : start + size]
        y, state = mixer(x[:, start : start + size], state, mask=own)
        found.append(y)
        start += size
    return torch.cat(found, 1), state


def staircase(sizes, length):
    """Which rows a row may see: those of its segment up to itself, and `length` before it."""
    starts = [sum(sizes[:i]) for i, size in enumerate(sizes) for _ in range(size)]
    n = len(starts)
    return torch.tensor([[starts[i] - length <= j <= i for j in range(n)] for i in range(n)])


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


@pytest.mark.parametrize("position", ["xl", "alibi", "rotary", "none"])
@pytest.mark.parametrize(("sizes", "length"), [([4, 4, 4], 4), ([3, 5, 1, 3], 2), ([1] * 6, 3)])
def test_segments_equal_one_pass_with_the_band_they_may_see(position, sizes, length):
    mixer, x = layer(length, position, mha={"n_kv_heads": 1}), normal(B, sum(sizes), D)
    got, state = in_segments(mixer, x, sizes)
    wanted, _ = mixer.attention(x, mask=staircase(sizes, length))
    close(got, wanted)
    assert state.length == length and state.seen == sum(sizes)
    assert torch.equal(state.rows, x[:, -length:])


@pytest.mark.parametrize("position", ["xl", "rotary"])
def test_a_memory_of_everything_is_the_whole_sequence(position):
    mixer, x = layer(50, position, mha={"qk_norm": nn.RMSNorm}), normal(B, 9, D)
    whole, _ = mixer.attention(x)
    for sizes in ([9], [1] * 9, [4, 5], [2, 6, 1]):
        close(in_segments(mixer, x, sizes)[0], whole)


def test_padding_is_remembered_as_such():
    mixer, x = layer(4), normal(B, 7, D)
    keep = torch.ones(B, 1, 7, dtype=torch.bool)
    keep[0, 0, :3] = False  # padded in front
    got, state = in_segments(mixer, x, [4, 3], keep)
    alone, _ = in_segments(mixer, x[:1, 3:], [1, 3])
    close(got[:1, 3:], alone)
    assert state.mask.shape == (B, 1, 1, 4)
    assert state.select(torch.tensor([1])).mask.shape == (1, 1, 1, 4)


def test_the_gradient_stops_at_the_memory():
    for detach in (True, False):
        mixer, x = layer(4, detach=detach), normal(B, 8, D).requires_grad_()
        got, _ = in_segments(mixer, x, [4, 4])
        (slope,) = torch.autograd.grad(got[:, 4:].sum(), x)
        assert (slope[:, :4] == 0).all() == detach
        assert (slope[:, 4:] != 0).any()


def test_the_weights_learn_from_what_is_remembered():
    mixer, x = layer(4), normal(B, 8, D)
    _, state = mixer(x[:, :4])
    y, _ = mixer(x[:, 4:], state)
    (slope,) = torch.autograd.grad(y.sum(), mixer.attention.v_proj.weight)
    memory_only = state.rows.clone().requires_grad_()
    again = SegmentState(memory_only, state.pooled, None, 4)
    (through,) = torch.autograd.grad(mixer(x[:, 4:], again)[0].sum(), memory_only)
    assert (slope != 0).any() and (through != 0).any()


def deep(depth, length):
    blocks = [
        Block(SegmentAttention(attention(), length, detach=False), FeedForward(D, 8))
        for _ in range(depth)
    ]
    return drawn(Stack(blocks))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_reach_is_layers_times_length(depth):
    n, length, segments = 2, 2, 6
    net, x = deep(depth, length), normal(1, n * segments, D).requires_grad_()
    state, found = None, None
    for piece in x.split(n, 1):
        found, state = net(piece, state)
    (slope,) = torch.autograd.grad(found[:, 0].square().sum(), x)  # of the last segment's first row
    felt = slope[0].abs().amax(-1) > 0
    first = n * (segments - 1)
    assert felt.tolist() == [first - depth * length <= j <= first for j in range(n * segments)]


def test_a_memory_of_nothing_forgets():
    mixer, x = layer(0), normal(B, 6, D)
    got, state = in_segments(mixer, x, [3, 3])
    close(got[:, 3:], mixer(x[:, 3:])[0])
    assert state.length == 0 and state.nbytes == 0


# pooled memories


def pool_by_hand(rows, rate, how):
    groups = [rows[:, i : i + rate] for i in range(0, rows.shape[1], rate)]
    if how == "mean":
        return torch.stack([sum(g.unbind(1)) / rate for g in groups], 1)
    return torch.stack([g.max(1).values for g in groups], 1)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_what_is_too_old_is_pooled(pool):
    mixer, x = layer(4, pooled=3, rate=2, pool=pool), normal(B, 20, D)
    _, state = in_segments(mixer, x, [4, 4])
    assert torch.equal(state.rows, x[:, 4:8])
    close(state.pooled, pool_by_hand(x[:, :4], 2, pool))
    _, state = in_segments(mixer, x, [4, 4, 4])
    close(state.pooled, pool_by_hand(x[:, 2:8], 2, pool))  # the last three
    assert (state.length, state.seen, state.reach) == (7, 12, 7)
    _, state = in_segments(mixer, x, [4, 3])  # one row too old, and it takes two
    assert state.pooled.shape[1] == 1 and torch.equal(state.rows, x[:, 2:7])
    assert state.nbytes == 8 * B * D * 6


def test_pooled_rows_are_keys_in_front_of_the_memory():
    mixer, x = layer(4, pooled=3, rate=2), normal(B, 12, D)
    _, state = in_segments(mixer, x, [4, 4])
    y, _ = mixer(x[:, 8:], state)
    rows = torch.cat([pool_by_hand(x[:, :4], 2, "mean"), x[:, 4:]], 1)
    wanted, _ = mixer.attention(rows)  # the plain module on the rows themselves
    close(y, wanted[:, -4:])


def test_a_learned_pool_is_trained_by_what_it_loses():
    mixer = layer(4, pooled=3, rate=2, pool="conv")
    x, old = normal(B, 5, D), normal(B, 6, D, seed=2)
    mean = functional.avg_pool1d(old.mT, 2).mT
    with torch.no_grad():
        mixer.conv.weight.copy_(torch.eye(D).double()[..., None].expand(D, D, 2) / 2)
        mixer.conv.bias.zero_()
    close(mixer._pool(old), mean)
    loss = mixer.reconstruction_loss(x, old)
    loss.backward()
    with_gradient = [name for name, w in mixer.named_parameters() if w.grad is not None]
    assert with_gradient == ["conv.weight", "conv.bias"]
    optimizer = torch.optim.Adam(mixer.conv.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        later = mixer.reconstruction_loss(x, old)
        later.backward()
        optimizer.step()
    assert later < 0.7 * loss
    same = old[:, ::2].repeat_interleave(2, 1)  # nothing is lost of rows that are alike
    layer_mean = layer(4, pooled=3, rate=2)
    assert layer_mean.reconstruction_loss(x, same) < 1e-20
    assert layer_mean.reconstruction_loss(x, old) > 1e-4


# a stream


def streaming(mha, x, window, sinks):
    """StreamingLLM from its description: at each step, the kept keys rotated to their places."""
    found = []
    for t in range(x.shape[1]):
        last = range(max(0, t + 1 - window), t + 1)
        kept = sorted({*range(min(sinks, t + 1)), *last})
        rows = x[:, kept]
        q = mha.q_proj(x[:, t : t + 1]).unflatten(-1, (H, DH)).transpose(1, 2)
        k = mha.k_proj(rows).unflatten(-1, (H, DH)).transpose(1, 2)
        v = mha.v_proj(rows).unflatten(-1, (H, DH)).transpose(1, 2)
        places = torch.arange(len(kept))
        q, k = mha.position.rotate(q, places[-1:]), mha.position.rotate(k, places)
        z = functional.scaled_dot_product_attention(q, k, v)
        found.append(mha.out_proj(z.transpose(1, 2).flatten(-2)))
    return torch.cat(found, 1)


@pytest.mark.parametrize(("window", "sinks"), [(3, 2), (1, 1), (4, 0), (50, 4), (1, 0)])
def test_a_stream_sees_the_first_and_the_last_keys_at_their_places_in_the_cache(window, sinks):
    mha, x = drawn(attention("rotary")), normal(B, 15, D)
    state, found = mha.empty_state(B, cache=SinkCache(window, sinks, mha.position)), []
    for row in x.split(1, 1):
        y, state = mha(row, state)
        found.append(y)
    close(torch.cat(found, 1), streaming(mha, x, window, sinks))
    assert state.length == state.seen == min(15, sinks + window - 1)
    assert state.length + state.dropped == 15
    assert state.select(torch.tensor([1])).k.shape[0] == 1


def test_places_stay_within_the_cache_however_long_the_stream():
    mha = drawn(attention("rotary"))
    asked = []
    turn = mha.position.rotate
    mha.position.rotate = lambda x, places: (
        asked.extend(torch.as_tensor(places)),
        turn(x, places),
    )[1]
    state = mha.empty_state(1, cache=SinkCache(3, 2, mha.position))
    for row in normal(40, 1, 1, D):
        _, state = mha(row, state)
    assert max(asked) == 4


def test_without_a_rotary_part_the_positions_are_kept():
    empty = torch.zeros(1, 2, 0, 4), torch.zeros(1, 2, 0, 4)
    state = SinkCache(3, 2).empty(*empty)
    assert isinstance(state, SlidingKVState) and (state.window, state.sinks) == (3, 2)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    layers = [Layer(Attention(2, position=Rotary()), FFN(16))] * 2
    return build(TransformerConfig(13, 8, decoder=layers)).double().eval()


def test_a_model_generates_from_it(model):
    prompt = [3, 1, 4, 1, 5]
    rotary = model.stack.blocks[0].mixer.position
    plain = generate(model, prompt, max_new_tokens=8, cache=DynamicCache()).tokens
    assert generate(model, prompt, max_new_tokens=8, cache=SinkCache(30, 2, rotary)).tokens == plain
    found = generate(model, prompt, max_new_tokens=40, cache=SinkCache(4, 2, rotary)).tokens
    kept = generate(model, prompt, max_new_tokens=40, cache=SinkCache(4, 2)).tokens
    assert kept == generate(model, prompt, max_new_tokens=40, cache=SlidingCache(4, 2)).tokens
    assert len(found[0]) == len(kept[0])
    state = model.empty_state(1, cache=SinkCache(4, 2, rotary))
    for token in range(13):
        _, state = model(torch.tensor([[token]]), state)
    assert state.nbytes == 2 * 2 * 5 * 8 * 8 and state.reach == 5 and state.seen == 13


def test_it_goes_back_only_over_what_it_holds(model):
    mha, x = drawn(attention("rotary")), normal(B, 6, D)
    _, state = mha(x[:, :3], mha.empty_state(B, cache=SinkCache(9, 2, mha.position)))
    _, further = mha(x[:, 3:], state)
    close(mha(x[:, 3:], further.truncate(3))[0], mha(x[:, 3:], state)[0])
    _, short = mha(x, mha.empty_state(B, cache=SinkCache(2, 2, mha.position)))
    with pytest.raises(ValueError, match="cannot go back"):
        short.truncate(2)


def test_a_whole_piece_is_causal_and_padding_stays_hidden():
    mha, x = drawn(attention("rotary")), normal(B, 6, D)
    keep = torch.ones(B, 1, 6, dtype=torch.bool)
    keep[0, 0, :2] = False
    y, state = mha(x, mha.empty_state(B, cache=SinkCache(3, 4, mha.position)), mask=keep)
    close(y, mha(x, mask=keep & causal_mask(6))[0])
    _, state = mha(x[:, :1], state)
    assert state.mask.shape == (B, 1, 1, 6) and state.mask[0].sum() == 4


REFUSED = {
    "a window": (
        lambda: SegmentAttention(attention(window=3), 4),
        ValueError,
        "attention must have no window, got 3",
    ),
    "no attention": (
        lambda: SegmentAttention(3, 4),
        TypeError,
        "attention must be a MultiHeadAttention, got int",
    ),
    "attention that sees the future": (
        lambda: SegmentAttention(MultiHeadAttention(D, H), 4),
        ValueError,
        "attention must be causal self-attention",
    ),
    "absolute positions": (
        lambda: SegmentAttention(
            MultiHeadAttention(D, H, causal=True, position=SinusoidalPositions(D)), 4
        ),
        ValueError,
        "one that depends on distances",
    ),
    "a length below 0": (lambda: layer(-1), ValueError, "length must be at least 0, got -1"),
    "an unknown pool": (lambda: layer(4, pool="min"), ValueError, "pool must be one of mean, max"),
    "a state of another kind": (
        lambda: layer(4)(normal(B, 3, D), KEYS()),
        TypeError,
        "state must be a SegmentState, got KVState",
    ),
    "a state of another batch": (
        lambda: layer(4)(normal(B, 3, D), layer(4)(normal(1, 3, D))[1]),
        ValueError,
        "state.rows must have shape",
    ),
    "a mask where rows are pooled": (
        lambda: layer(4, pooled=2)(normal(B, 3, D), mask=torch.ones(B, 1, 3).bool()),
        ValueError,
        "mask must be None where old rows are pooled",
    ),
    "rows that cannot be pooled": (
        lambda: layer(4, pooled=2).reconstruction_loss(normal(B, 3, D), normal(B, 3, D)),
        ValueError,
        "M a multiple of 4",
    ),
    "no window at all": (lambda: SinkCache(0), ValueError, "window must be at least 1, got 0"),
    "a part that cannot rotate": (
        lambda: SinkCache(3, 2, ALiBi(2)),
        TypeError,
        "rotary must have a method rotate, or be None, got ALiBi",
    ),
    "a part that stretches": (
        lambda: SinkCache(3, 2, RotaryPositions(8, scaling=YarnScaling(4.0, 16))),
        ValueError,
        "rotary must keep the lengths of keys",
    ),
}


def KEYS():
    return attention("none").double()(normal(B, 3, D))[1]


@pytest.mark.untyped
@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()
