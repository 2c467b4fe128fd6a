"""Hashed attention, and attention that may look at nothing: sinks and gates.

What holds of every attention function stands in attention_properties.py.
"""

import math

import pytest
import torch
from attention_properties import DOUBLE, Case, close, gradients
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import peak_memory
from tfbook.attention import (
    VARIANTS,
    GatedAttention,
    KVState,
    MultiHeadAttention,
    SinkAttention,
    attend,
    attend_plus_one,
    attend_sink,
    causal_mask,
)
from tfbook.efficient import (
    attend_hashed,
    collision_probability,
    hash_recall,
    hashed_mask,
    lsh_buckets,
)
from tfbook.positions import RotaryPositions


def normal(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=DOUBLE)


def drawn(module, seed=0):
    module = module.double()
    for i, weight in enumerate(module.parameters()):
        weight.data = normal(*weight.shape, seed=seed + i) / max(weight.shape[-1], 1) ** 0.5
    return module


# the hash


def pairs(angle, d=8):
    """Two vectors at an angle, turned by a rotation of its own."""
    basis = torch.linalg.qr(normal(d, 2)).Q
    return basis[:, 0], math.cos(angle) * basis[:, 0] + math.sin(angle) * basis[:, 1]


def share(angle, buckets, rounds=4000):
    found = lsh_buckets(torch.stack(pairs(angle)), buckets=buckets, rounds=1000, seed=1)
    more = [found] + [
        lsh_buckets(torch.stack(pairs(angle)), buckets=buckets, rounds=1000, seed=seed)
        for seed in range(2, 1 + rounds // 1000)
    ]
    found = torch.cat(more)  # (rounds, 2)
    return (found[:, 0] == found[:, 1]).double().mean().item()


ANGLES = [0.0, 0.3, 0.8, math.pi / 2, 2.2, math.pi]


@pytest.mark.parametrize("buckets", [2, 4])
@pytest.mark.parametrize("angle", ANGLES)
def test_two_vectors_share_a_bucket_as_often_as_theory_says(angle, buckets):
    p = collision_probability(angle, buckets=buckets)
    error = 4 * math.sqrt(max(p * (1 - p), 1e-12) / 4000)
    assert abs(share(angle, buckets) - p) <= error


def test_the_smaller_the_angle_the_more_often():
    for buckets in (2, 4, 16):
        found = [share(angle, buckets, 2000) for angle in ANGLES]
        assert found[0] == 1 and found[-1] == 0
        assert all(near > far for near, far in zip(found, found[1:], strict=False))
    theory = [collision_probability(angle) for angle in ANGLES]
    assert theory == sorted(theory, reverse=True)


def test_more_rounds_miss_less():
    angle = 0.8
    x = torch.stack(pairs(angle))
    hit = torch.stack([lsh_buckets(x, buckets=4, rounds=3, seed=seed) for seed in range(800)])
    once = (hit[..., 0] == hit[..., 1]).any(-1).double().mean().item()
    p = collision_probability(angle, buckets=4, rounds=3)
    assert abs(once - p) <= 4 * math.sqrt(p * (1 - p) / 800)
    assert once > share(angle, 4) + 0.1


def test_a_bucket_does_not_know_lengths_and_the_opposite_is_half_a_turn_away():
    x = normal(3, 50, 5)
    one, longer, opposite = (lsh_buckets(f * x, buckets=6, rounds=2) for f in (1, 7.5, -2))
    assert torch.equal(one, longer)
    assert torch.equal((one + 3) % 6, opposite)
    assert one.shape == (3, 2, 50) and set(one.unique().tolist()) == set(range(6))
    assert (lsh_buckets(x, buckets=1) == 0).all()


# hashed attention


def without_itself(n, causal):
    """Each token sees all (past) tokens but itself; the first of a causal row has only itself."""
    mask = ~torch.eye(n, dtype=torch.bool)
    if causal:
        mask &= causal_mask(n)
        mask[0, 0] = True
    return mask


@pytest.mark.parametrize("causal", [False, True])
def test_in_one_chunk_it_is_exact_attention_with_shared_queries_and_keys(causal):
    q, v = normal(2, 3, 11, 5), normal(2, 3, 11, 4)
    wanted = functional.scaled_dot_product_attention(
        q, q / q.norm(dim=-1, keepdim=True), v, attn_mask=without_itself(11, causal)
    )
    for choices in ({"chunk": 11}, {"chunk": 99}, {"chunk": 99, "buckets": 1, "rounds": 3}):
        close(attend_hashed(q, q, v, shared=True, causal=causal, **choices), wanted)
    apart = attend_hashed(q, normal(2, 3, 11, 5, seed=2), v, chunk=11, causal=causal)
    close(apart, attend(q, normal(2, 3, 11, 5, seed=2), v, causal=causal))


def test_in_one_bucket_a_chunk_sees_itself_and_the_one_before():
    q, k, v = normal(12, 3), normal(12, 3, seed=2), normal(12, 2, seed=3)
    near = torch.tensor([[i // 4 - j // 4 in (0, 1) for j in range(12)] for i in range(12)])
    wanted = functional.scaled_dot_product_attention(q, k, v, attn_mask=near)
    for rounds in (1, 4):  # what several rounds show counts once
        close(attend_hashed(q, k, v, buckets=1, rounds=rounds, chunk=4), wanted)


def met_by_hand(q, k, buckets, rounds, chunk):
    """Which pairs some round shows, by sorting lists."""
    n, m = len(q), len(k)
    chunks = -(-m // chunk)
    met = torch.zeros(n, m, dtype=torch.bool)
    hashes = zip(
        lsh_buckets(q, buckets=buckets, rounds=rounds),
        lsh_buckets(k, buckets=buckets, rounds=rounds),
        strict=True,
    )
    for of_q, of_k in hashes:
        sides = []
        for found, count in ((of_q.tolist(), n), (of_k.tolist(), m)):
            order = sorted(range(count), key=lambda i: (found[i], i))
            size = -(-count // chunks)
            sides.append({row: place // size for place, row in enumerate(order)})
        for i in range(n):
            for j in range(m):
                met[i, j] |= sides[0][i] - sides[1][j] in (0, 1)
    return met


@pytest.mark.parametrize(("n", "m", "chunk"), [(13, 13, 4), (13, 13, 1), (7, 12, 3), (12, 5, 2)])
@pytest.mark.parametrize("rounds", [1, 3])
def test_it_is_softmax_over_the_keys_that_some_round_shows(n, m, chunk, rounds):
    q, k, v = normal(n, 3), normal(m, 3, seed=2), normal(m, 2, seed=3)
    choices = {"buckets": 4, "rounds": rounds, "chunk": chunk}
    met = met_by_hand(q, k, **choices)
    assert torch.equal(hashed_mask(q, k, **choices), met)
    keep, bias = normal(n, m, seed=4) > -0.5, normal(n, m, seed=5)
    for given in ({}, {"mask": keep}, {"bias": bias, "causal": True}, {"mask": keep[:1]}):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        got, lse = attend_hashed(*inputs, return_lse=True, **choices, **given)
        mask = met & given.get("mask", met)
        wanted, wanted_lse = attend(*inputs, return_lse=True, **(given | {"mask": mask}))
        close(got, wanted)
        close(lse, wanted_lse)
        for one, other in zip(gradients(got, inputs), gradients(wanted, inputs), strict=True):
            close(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_a_token_sees_itself_only_if_it_sees_nothing_else(causal):
    q, v = normal(13, 3), normal(13, 2)
    choices = {"buckets": 4, "rounds": 2, "chunk": 2}
    met = met_by_hand(q, q, **choices) & without_itself(13, False)
    keep = normal(13, seed=8) > -0.3
    keep[0] = True
    for mask in (torch.ones(13, 13, dtype=torch.bool), keep.expand(13, 13)):
        seen = met & mask
        if causal:
            seen = seen & causal_mask(13)
        alone = ~seen.any(-1, keepdim=True)
        assert alone.any() or not causal
        seen = seen | (alone & torch.eye(13, dtype=torch.bool) & mask)
        inputs = [x.clone().requires_grad_() for x in (q, v)]
        unit = inputs[0] / inputs[0].norm(dim=-1, keepdim=True)
        wanted, lse = attend(inputs[0], unit, inputs[1], mask=seen, return_lse=True)
        given = {"mask": mask, "causal": causal, "shared": True, **choices}
        got, own = attend_hashed(inputs[0], inputs[0], inputs[1], return_lse=True, **given)
        close(got, wanted)
        close(own, lse)
        for one, other in zip(gradients(got, inputs), gradients(wanted, inputs), strict=True):
            close(one, other)
        explicit, weights = attend_hashed(q, q, v, return_weights=True, **given)
        close(explicit, wanted)
        assert ((weights > 0) == seen).all()


def test_gradients_agree_with_finite_differences_with_shared_queries():
    q, v = normal(9, 3).requires_grad_(), normal(9, 2).requires_grad_()

    def function(q, v):
        return attend_hashed(q, q, v, shared=True, causal=True, buckets=4, chunk=2)

    assert torch.autograd.gradcheck(function, (q, v))


def test_more_rounds_find_more_of_the_best_keys():
    x = normal(400, 16)
    choices = {"buckets": 16, "chunk": 16, "top": 4}
    found = [hash_recall(x, x, rounds=rounds, **choices) for rounds in (1, 2, 4, 8)]
    assert found == sorted(found)
    chance = 32 / 400  # two chunks of sixteen, if the hash knew nothing
    assert found[0] > 1.5 * chance and found[-1] > 2 * found[0]
    shown = hashed_mask(x, x, buckets=16, rounds=2, chunk=16)
    scores = (x @ functional.normalize(x, dim=-1).mT).fill_diagonal_(-torch.inf)
    best = scores.argsort(-1, descending=True)[:, :4]
    assert found[1] == pytest.approx(shown.gather(-1, best).double().mean().item(), abs=1e-12)


def test_it_counts_as_many_operations_as_it_takes():
    for choices in ({"chunk": 8}, {"chunk": 7, "rounds": 3, "buckets": 4}, {"buckets": 1}):
        for n, m in ((50, 50), (13, 50)):
            q, k, v = normal(n, 6), normal(m, 6), normal(m, 5)
            with FlopCounterMode(display=False) as counter:
                attend_hashed(q, k, v, **choices)
            assert sum(VARIANTS["hashed"].flops(n, m, 6, 5, **choices)) == counter.get_total_flops()
    q, v = normal(50, 6), normal(50, 5)
    with FlopCounterMode(display=False) as counter:
        attend_hashed(q, q, v, chunk=8, shared=True)
    flops = sum(VARIANTS["hashed"].flops(50, 50, 6, 5, chunk=8, shared=True))
    assert flops == counter.get_total_flops()


def test_memory_grows_with_the_length_not_with_its_square():
    def peak(n):
        q, v = (torch.randn(n, 8, requires_grad=True) for _ in range(2))
        given = {"shared": True, "causal": True, "buckets": 8, "chunk": 16}
        return peak_memory(lambda: attend_hashed(q, q, v, **given).sum().backward())

    assert peak(2048) <= 4.2 * peak(512)


def test_it_serves_heads():
    mha = drawn(MultiHeadAttention(12, 3, n_kv_heads=1, causal=True, attend=attend_hashed))
    x = normal(2, 9, 12)
    assert mha(x)[0].shape == (2, 9, 12)
    close(mha.weights(x).sum(-1), torch.ones(2, 3, 9).double())  # nine rows are one chunk


# sinks


def test_a_sink_is_one_more_key_of_value_zero():
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 7, 4, seed=2), normal(2, 3, 7, 6, seed=3)
    sink, mask = normal(3, 1, seed=4), normal(5, 7, seed=5) > -0.5
    k_more, v_more = functional.pad(k, (0, 0, 0, 1)), functional.pad(v, (0, 0, 0, 1))
    for given in ({}, {"causal": True}, {"mask": mask}, {"bias": normal(5, 7), "scale": 0.3}):
        bias = torch.zeros(3, 5, 8, dtype=DOUBLE)
        bias[..., :7] += given.get("bias", 0.0)
        hidden = ~(given.get("mask", torch.ones(5, 7, dtype=torch.bool)))
        if "causal" in given:
            hidden = hidden | ~causal_mask(5, 7)
        bias[..., :7].masked_fill_(hidden, -torch.inf)
        bias[..., 7] = sink
        wanted = functional.scaled_dot_product_attention(
            q, k_more, v_more, attn_mask=bias, scale=given.get("scale")
        )
        close(attend_sink(q, k, v, sink=sink, **given), wanted)
        zero = torch.cat([bias[..., :7], torch.zeros(3, 5, 1).double()], -1)
        plus = functional.scaled_dot_product_attention(
            q, k_more, v_more, attn_mask=zero, scale=given.get("scale")
        )
        close(attend_plus_one(q, k, v, **given), plus)


def test_its_extras_are_those_of_the_longer_softmax():
    q, k, v = Case().qkv()
    sink = normal(2, seed=4)
    scores = torch.cat([q @ k.mT / 3**0.5, sink.expand(2, 5, 2)], -1)
    _, weights, lse = attend_sink(q, k, v, sink=sink, return_weights=True, return_lse=True)
    close(weights, scores.softmax(-1)[..., :7])
    close(lse, scores.logsumexp(-1))


def test_without_a_sink_it_is_plain_attention():
    q, k, v = Case().qkv()
    sink = torch.full((1,), -torch.inf, dtype=DOUBLE, requires_grad=True)
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[1] = False
    close(attend_sink(q, k, v, sink=sink), attend(q, k, v))
    output = attend_sink(q, k, v, sink=sink, mask=mask)
    assert (output[:, 1] == 0).all() and output.isfinite().all()
    assert gradients(output, [sink])[0].isfinite().all()
    close(attend_sink(q, k, v, sink=sink.detach()[:0]), attend(q, k, v))


def test_sinks_of_gpt_oss():
    from transformers import GptOssConfig
    from transformers.models.gpt_oss import modeling_gpt_oss as oss

    config = GptOssConfig(
        hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = drawn(oss.GptOssAttention(config, 1)).eval()
    ours = MultiHeadAttention(12, 4, n_kv_heads=2, d_head=6, attend=SinkAttention(4)).double()
    names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "out_proj"}
    weights = theirs.state_dict()
    copied = {
        f"{names[name.split('.')[0]]}.{name.split('.')[1]}": x
        for name, x in weights.items()
        if "." in name
    }
    ours.load_state_dict(copied | {"attend.sink": weights["sinks"][:, None]})
    x = normal(2, 7, 12)
    still = torch.ones(2, 7, 3).double(), torch.zeros(2, 7, 3).double()
    blocked = (~causal_mask(7)).double().mul(-1e300)[None, None]
    wanted = theirs(x, position_embeddings=still, attention_mask=blocked)[0]
    close(ours(x, mask=causal_mask(7))[0], wanted, atol=1e-6)


def test_sinks_learn():
    mha = drawn(MultiHeadAttention(12, 4, n_kv_heads=2, causal=True, attend=SinkAttention(4, 2)))
    mha(normal(2, 7, 12))[0].square().sum().backward()
    assert mha.attend.sink.grad.shape == (4, 2) and (mha.attend.sink.grad != 0).all()


# a gate behind attention


def gated(**choices):
    return drawn(GatedAttention(12, 3, causal=True, position=RotaryPositions(4), **choices))


@pytest.mark.parametrize("per", ["element", "head"])
def test_gates_multiply_what_heads_found(per):
    mixer, x = gated(per=per), normal(2, 7, 12)
    found = {}
    mixer.attention.z.register_forward_hook(lambda _, __, z: found.update(z=z))
    y, _ = mixer(x)
    gates = 1 / (1 + (-(x @ mixer.gate_proj.weight.T + mixer.gate_proj.bias)).exp())
    gates = gates.unflatten(-1, (3, -1)).transpose(1, 2)  # (B, H, N, 4 or 1)
    rows = (found["z"] * gates).transpose(1, 2).flatten(-2)
    close(y, rows @ mixer.out_proj.weight.T + mixer.out_proj.bias)


def test_open_gates_are_plain_attention_and_shut_ones_nothing():
    plain = drawn(MultiHeadAttention(12, 3, causal=True, position=RotaryPositions(4)))
    mixer, x = gated(gate_bias=True), normal(2, 7, 12)
    mixer.out_proj.load_state_dict(plain.out_proj.state_dict())
    mixer.attention.load_state_dict(plain.state_dict(), strict=False)
    nn.init.zeros_(mixer.gate_proj.weight)
    nn.init.constant_(mixer.gate_proj.bias, 1e9)
    close(mixer(x)[0], plain(x)[0])
    close(mixer.weights(x), plain.weights(x))
    nn.init.constant_(mixer.gate_proj.bias, -1e9)
    close(mixer(x)[0], mixer.out_proj.bias.expand(2, 7, 12))


@pytest.mark.parametrize("per", ["element", "head"])
def test_gated_attention_can_be_cut_anywhere(per):
    mixer, x = gated(per=per, n_kv_heads=1), normal(2, 7, 12)
    keep = torch.ones(2, 1, 7, dtype=torch.bool)
    keep[0, 0, :2] = False
    whole, _ = mixer(x, mask=keep)
    for sizes in ([1] * 7, [3, 4], [6, 1]):
        state, found, start = mixer.empty_state(2), [], 0
        for size in sizes:
            own = keep[..., start : start + size]
            y, state = mixer(x[:, start : start + size], state, mask=own)
            found.append(y)
            start += size
        close(torch.cat(found, 1), whole)
        assert isinstance(state, KVState) and state.length == 7


REFUSED = {
    "odd buckets": (
        lambda q: attend_hashed(q, q, q, buckets=3),
        ValueError,
        "buckets must be 1 or even, each turn gives two, got 3",
    ),
    "other keys": (
        lambda q: attend_hashed(q, q + 1, q, shared=True),
        ValueError,
        "must be the same vectors, pass q as k too",
    ),
    "fewer keys": (
        lambda q: attend_hashed(q, q[1:], q[1:], shared=True),
        ValueError,
        r"the same vectors, got q \(3, 4\) and k \(2, 4\)",
    ),
    "no chunk": (lambda q: attend_hashed(q, q, q, chunk=0), ValueError, "chunk must be at least 1"),
    "a fraction of a round": (
        lambda q: hashed_mask(q, q, rounds=1.5),
        TypeError,
        "rounds must be an integer, got float",
    ),
    "three buckets in a formula": (
        lambda q: collision_probability(0.5, buckets=3),
        ValueError,
        "buckets must be 2 or 4, got 3",
    ),
    "nothing to recall": (
        lambda q: hash_recall(*[q[:1]] * 2),
        ValueError,
        "no query has a key",
    ),
    "a sink for other heads": (
        lambda q: attend_sink(q, q, q, sink=torch.zeros(5, 1)),
        ValueError,
        r"sink must have shape \(\.\.\., S\) with leading dimensions of \(\)",
    ),
    "a sink in another dtype": (
        lambda q: attend_sink(q, q, q, sink=torch.zeros(1).double()),
        TypeError,
        "q and sink must have the same dtype",
    ),
    "other heads": (
        lambda q: SinkAttention(2)(q[None], q[None], q[None]),
        ValueError,
        "q must have 2 heads at dimension -3",
    ),
    "a gate of no kind": (lambda q: gated(per="row"), ValueError, "per must be one of element"),
    "a memory": (
        lambda q: GatedAttention(12, 3, d_memory=5),
        ValueError,
        "d_memory must be left out, got 5",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call(torch.ones(3, 4))
