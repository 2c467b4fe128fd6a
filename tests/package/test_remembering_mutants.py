"""Hashing, memories, chosen keys, sinks and reversible layers proved by planted bugs.

No check here compares with another implementation.
"""

import fresh
import pytest
import torch
from fresh import Mutant
from torch import nn
from torch.autograd.gradcheck import GradcheckError

MODULES = [
    "tfbook.efficient.hashed",
    "tfbook.efficient.memory",
    "tfbook.efficient.selected",
    "tfbook.attention.gated",
    "tfbook.blocks.streams",
]


class Kit:
    """The modules under test in a copy, and what they are built of, each imported when needed."""

    def __init__(self, package, edits=None):
        self.package = package
        fresh.copies(package, ["tfbook.attention"], edits)

    def __getattr__(self, name):
        homes = {module.rsplit(".", 1)[1]: module for module in MODULES}
        return fresh.copy_of(self.package, homes.get(name, f"tfbook.{name}"))


def normal(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def drawn(module):
    module = module.double()
    for i, weight in enumerate(module.parameters()):
        weight.data = normal(*weight.shape, seed=i) / max(weight.shape[-1], 1) ** 0.5
    return module


def close(got, wanted):
    torch.testing.assert_close(got, wanted, atol=1e-9, rtol=0)


# Checks


def more_rounds_of_the_same_change_nothing(kit):
    q, k, v = normal(12, 3), normal(12, 3, seed=2), normal(12, 2, seed=3)
    one, four = (kit.hashed.attend_hashed(q, k, v, buckets=1, rounds=r, chunk=4) for r in (1, 4))
    close(one, four)
    lse = [
        kit.hashed.attend_hashed(q, k, v, buckets=1, rounds=r, chunk=4, return_lse=True)[1]
        for r in (1, 4)
    ]
    close(*lse)


def equal_values_come_out_whole(kit):
    q, v = normal(13, 3), torch.ones(13, 2).double()
    for causal in (True, False):
        given = {"shared": True, "causal": causal, "buckets": 4, "chunk": 3}
        close(kit.hashed.attend_hashed(q, q, v, **given), v)


def a_token_beside_others_does_not_see_itself(kit):
    q, v = normal(9, 3), torch.eye(9).double()
    weights = kit.hashed.attend_hashed(q, q, v, shared=True, chunk=9)
    assert (weights.diagonal() == 0).all()


def the_length_of_shared_keys_does_not_matter(kit):
    q, v = normal(9, 3), normal(9, 2)
    longer = q.clone()
    longer[0] *= 5
    given = {"shared": True, "chunk": 9}
    one, other = (kit.hashed.attend_hashed(x, x, v, **given) for x in (q, longer))
    close(one[1:], other[1:])


def the_explicit_form_is_the_fast_one(kit):
    q, k, v = normal(13, 3), normal(13, 3, seed=2), normal(13, 2, seed=3)
    given = {"buckets": 4, "rounds": 3, "chunk": 3, "causal": True}
    fast = kit.hashed.attend_hashed(q, k, v, **given)
    slow, _ = kit.hashed.attend_hashed(q, k, v, return_weights=True, **given)
    close(fast, slow)


def opposite_vectors_never_meet(kit):
    x = normal(20, 4)
    one, other = (kit.hashed.lsh_buckets(y, buckets=6, rounds=5) for y in (x, -x))
    assert (one != other).all()


def segments(kit, length, **choices):
    part = kit.positions.TransformerXLPositions(3, 4)
    mha = kit.attention.MultiHeadAttention(12, 3, causal=True, position=part)
    return drawn(kit.memory.SegmentAttention(mha, length, **choices))


def a_long_memory_makes_cuts_invisible(kit):
    part = kit.positions.RotaryPositions(4)
    mha = kit.attention.MultiHeadAttention(12, 3, causal=True, position=part)
    turned = drawn(kit.memory.SegmentAttention(mha, 20))
    for mixer in (segments(kit, 20), turned):
        x, state, found = normal(2, 9, 12), None, []
        whole, _ = mixer(x)
        for piece in x.split([4, 2, 3], 1):
            y, state = mixer(piece, state)
            found.append(y)
        close(torch.cat(found, 1), whole)


def the_memory_has_an_end(kit):
    mixer, x = segments(kit, 3), normal(1, 9, 12)
    other = x.clone()
    other[:, :3] += 1  # older than the memory
    found = []
    for rows in (x, other):
        _, state = mixer(rows[:, :6])
        assert state.length == 3
        found.append(mixer(rows[:, 6:], state)[0])
    close(*found)


def no_gradient_passes_the_memory(kit):
    mixer, x = segments(kit, 4), normal(1, 8, 12).requires_grad_()
    _, state = mixer(x[:, :4])
    y, _ = mixer(x[:, 4:], state)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert (slope[:, :4] == 0).all()


def pooling_loses_no_row(kit):
    mixer, x = segments(kit, 3, pooled=9, rate=2), normal(1, 12, 12)
    state = None
    for piece in x.split([4, 1, 3, 4], 1):
        _, state = mixer(piece, state)
    mass = 2 * state.pooled.sum(1) + state.rows.sum(1)  # a mean of two stands for two
    close(mass, x.sum(1))


def a_stream_of_equal_rows_settles(kit):
    part = kit.positions.RotaryPositions(4)
    mha = drawn(kit.attention.MultiHeadAttention(12, 3, causal=True, position=part))
    state, found = mha.empty_state(1, cache=kit.memory.SinkCache(4, 2, part)), []
    for _ in range(12):
        y, state = mha(normal(1, 1, 12), state)
        found.append(state.k)
    close(found[-1], found[4])  # the same rows at the same places as before any was dropped
    assert state.seen == state.length == 5


def sparse(kit, **choices):
    sizes = {"n_kv_heads": 2, "block": 3, "top": 2, "window": 4}
    return drawn(kit.selected.NativeSparseAttention(16, 4, **(sizes | choices)))


def no_branch_sees_the_future(kit):
    mixer, x = sparse(kit), normal(1, 13, 16).requires_grad_()
    y, _ = mixer(x)
    for i in range(13):
        (slope,) = torch.autograd.grad(y[0, i].sum(), x, retain_graph=True)
        assert (slope[0, i + 1 :] == 0).all()


def native_sparse_attention_can_be_cut(kit):
    mixer, x = sparse(kit, position=kit.positions.RotaryPositions(4)), normal(2, 14, 16)
    whole, _ = mixer(x)
    state, found = None, []
    for piece in x.split([4, 1, 7, 2], 1):
        y, state = mixer(piece, state)
        found.append(y)
    close(torch.cat(found, 1), whole)


def heads_of_a_group_choose_alike(kit):
    mixer = sparse(kit)
    weights = normal(1, 2, 9, 3).abs()
    chosen, valid = mixer._choose(weights, torch.arange(9), 9)
    assert chosen.shape == valid.shape == (1, 2, 9, 6)
    for i in range(9):
        kept = chosen[0, 0, i][valid[0, 0, i]].tolist()
        assert len(set(kept)) == len(kept) and i in kept and max(kept) == i


def a_sink_takes_what_its_logit_says(kit):
    q, k, v = torch.zeros(1, 2), torch.zeros(3, 2), torch.ones(3, 1)
    for logit in (0.0, 1.0, -2.0):
        sink = torch.tensor([logit])
        wanted = 3 / (3 + sink.exp())
        torch.testing.assert_close(kit.gated.attend_sink(q, k, v, sink=sink)[0], wanted)


def shut_gates_let_nothing_pass(kit):
    mixer = drawn(kit.gated.GatedAttention(12, 3, causal=True))
    nn.init.zeros_(mixer.gate_proj.weight)
    nn.init.constant_(mixer.gate_proj.bias, -1e9)
    close(mixer(normal(1, 5, 12))[0], mixer.out_proj.bias.expand(1, 5, 12))


def reversible(kit):
    blocks = [
        kit.streams.ReversibleBlock(
            nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3)),
            nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        )
        for _ in range(3)
    ]
    return drawn(kit.streams.ReversibleStack(blocks))


def the_layer_runs_backwards(kit):
    block = reversible(kit).eval().blocks[0]
    x1, x2 = normal(5, 4), normal(5, 4, seed=2)
    back = block.inverse(*block(x1, x2))
    close(back[0], x1)
    close(back[1], x2)


def it_runs_backwards(kit):
    net = reversible(kit).eval()
    x1, x2 = normal(5, 4), normal(5, 4, seed=2)
    back = net.inverse(*net(x1, x2))
    close(back[0], x1)
    close(back[1], x2)


def its_gradients_agree_with_finite_differences(kit):
    net = reversible(kit)

    def run(a, b):
        torch.manual_seed(3)  # the same dropout each time
        return torch.stack(net(a, b))

    def disturbed(a, b):
        y = run(a, b)
        torch.rand(5)  # between forward and backward others draw too
        return y

    inputs = normal(3, 4).requires_grad_(), normal(3, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(disturbed, inputs)


CHECKS = {
    each.__name__: each
    for each in (
        more_rounds_of_the_same_change_nothing,
        equal_values_come_out_whole,
        a_token_beside_others_does_not_see_itself,
        the_length_of_shared_keys_does_not_matter,
        the_explicit_form_is_the_fast_one,
        opposite_vectors_never_meet,
        a_long_memory_makes_cuts_invisible,
        the_memory_has_an_end,
        no_gradient_passes_the_memory,
        pooling_loses_no_row,
        a_stream_of_equal_rows_settles,
        no_branch_sees_the_future,
        native_sparse_attention_can_be_cut,
        heads_of_a_group_choose_alike,
        a_sink_takes_what_its_logit_says,
        shut_gates_let_nothing_pass,
        the_layer_runs_backwards,
        it_runs_backwards,
        its_gradients_agree_with_finite_differences,
    )
}

HASHED, MEMORY, SELECTED, GATED, STREAMS = MODULES
MUTANTS = [
    Mutant(
        "keys that several rounds show count several times",
        HASHED,
        "        count = count + ((ahead == 0) | (ahead == 1)).long()",
        "        count = count + 0 * ahead",
        "more_rounds_of_the_same_change_nothing",
    ),
    Mutant(
        "a lonely token gets nothing",
        HASHED,
        "    own = own.masked_fill(~alone, -torch.inf)",
        "    own = torch.full_like(own, -torch.inf)",
        "equal_values_come_out_whole",
    ),
    Mutant(
        "a token always sees itself",
        HASHED,
        "        allowed = allowed & (i != j)",
        "        allowed = allowed & True",
        "a_token_beside_others_does_not_see_itself",
    ),
    Mutant(
        "shared keys keep their lengths",
        HASHED,
        "    if shared:\n        k = functional.normalize(k, dim=-1)",
        "    if shared:\n        k = 1 * k",
        "the_length_of_shared_keys_does_not_matter",
    ),
    Mutant(
        "the chunk before is the chunk behind",
        HASHED,
        "    before = torch.cat([first, x.narrow(dim, 0, chunks - 1)], dim=dim)",
        "    before = torch.cat([x.narrow(dim, 1, chunks - 1), first], dim=dim)",
        "the_explicit_form_is_the_fast_one",
    ),
    Mutant(
        "what is found stays in the order of the buckets",
        HASHED,
        "    return torch.take_along_dim(rows, plan.place.unsqueeze(-1), dim=-2)",
        "    return rows[..., : plan.place.shape[-1], :]",
        "the_explicit_form_is_the_fast_one",
    ),
    Mutant(
        "a hash without signs",
        HASHED,
        "torch.cat([turned, -turned], dim=-1).argmax(-1)",
        "turned.abs().argmax(-1)",
        "opposite_vectors_never_meet",
    ),
    Mutant(
        "the memory is a position too far",
        MEMORY,
        "torch.arange(state.length, device=rows.device)",
        "torch.arange(1, state.length + 1, device=rows.device)",
        "a_long_memory_makes_cuts_invisible",
    ),
    Mutant(
        "nothing is forgotten",
        MEMORY,
        "        rows = rows[:, old:]\n",
        "        rows = rows[:, 0:]\n",
        "the_memory_has_an_end",
    ),
    Mutant(
        "the gradient passes the memory",
        MEMORY,
        "            rows, pooled = rows.detach(), pooled.detach()",
        "            rows, pooled = 1 * rows, pooled.detach()",
        "no_gradient_passes_the_memory",
    ),
    Mutant(
        "rows that cannot be pooled yet are lost",
        MEMORY,
        "            old -= old % self.rate  # as many as can be pooled; the rest waits\n"
        "            if old:\n"
        "                pooled = torch.cat([pooled, self._pool(rows[:, :old])], dim=1)",
        "            full = old - old % self.rate\n"
        "            if full:\n"
        "                pooled = torch.cat([pooled, self._pool(rows[:, :full])], dim=1)",
        "pooling_loses_no_row",
    ),
    Mutant(
        "kept keys keep their rotation",
        MEMORY,
        "self.rotary.rotate(last, back)",
        "self.rotary.rotate(last, 0 * back)",
        "a_stream_of_equal_rows_settles",
    ),
    Mutant(
        "a block is seen before it is over",
        SELECTED,
        "* self.block - 1\n        return ends <= at[:, None]",
        "* self.block - 1\n        return ends <= at[:, None] + 1",
        "no_branch_sees_the_future",
    ),
    Mutant(
        "the own block is read to its end",
        SELECTED,
        "valid = counts.repeat_interleave(self.block, dim=-1) & (chosen <= at[:, None])",
        "valid = counts.repeat_interleave(self.block, dim=-1)",
        "no_branch_sees_the_future",
    ),
    Mutant(
        "a block that is not full is forgotten between pieces",
        SELECTED,
        'grown[f"rest_{name}"] = rest[..., full:, :]',
        'grown[f"rest_{name}"] = rest[..., rest.shape[-2] :, :]',
        "native_sparse_attention_can_be_cut",
    ),
    Mutant(
        "the own block may be chosen twice",
        SELECTED,
        "device=at.device) != own[:, None])",
        "device=at.device) != -1)",
        "heads_of_a_group_choose_alike",
    ),
    Mutant(
        "a sink without its exponential",
        GATED,
        "share = torch.sigmoid(some - drain).unsqueeze(-1)",
        "share = (1 - drain / (drain + some.exp())).unsqueeze(-1)",
        "a_sink_takes_what_its_logit_says",
    ),
    Mutant(
        "gates behind the projection's input are one too open",
        GATED,
        "return self.out_proj(gates * found), state",
        "return self.out_proj((1 + gates) * found), state",
        "shut_gates_let_nothing_pass",
    ),
    Mutant(
        "both parts of a layer see the old streams",
        STREAMS,
        '        return y1, x2 + _rows_of(self.g, y1, "g")',
        '        return y1, x2 + _rows_of(self.g, x1, "g")',
        "the_layer_runs_backwards",
    ),
    Mutant(
        "the gradient of what a part saw is lost",
        STREAMS,
        "d_seen if own is None else d_seen + own",
        "d_seen",
        "its_gradients_agree_with_finite_differences",
    ),
    Mutant(
        "dropout is drawn anew in the backward pass",
        STREAMS,
        "            _set_chance(self.chance)",
        "            pass",
        "its_gradients_agree_with_finite_differences",
    ),
]


@pytest.fixture(scope="module")
def healthy():
    return Kit("healthy_remembering")


@pytest.mark.untyped
@pytest.mark.parametrize("name", CHECKS)
def test_the_package_passes(name, healthy):
    CHECKS[name](healthy)


@pytest.mark.untyped
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    sick = Kit("sick_remembering", mutant.edits)
    with pytest.raises((AssertionError, GradcheckError)):
        CHECKS[mutant.caught_by](sick)
