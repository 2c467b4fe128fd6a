"""Attention to chosen keys: what is chosen, that the choice is all that counts, and states."""

import pytest
import torch
from torch.nn import functional

from tfbook.attention import MultiHeadAttention, causal_mask
from tfbook.efficient import (
    IndexedAttention,
    LightningIndexer,
    NativeSparseAttention,
    attend_chosen,
    index_loss,
)
from tfbook.positions import ALiBi, RotaryPositions

B, D, H, G, DH = 2, 12, 4, 2, 4


def normal(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def drawn(module, seed=0):
    module = module.double()
    for i, weight in enumerate(module.parameters()):
        weight.data = normal(*weight.shape, seed=seed + i) / max(weight.shape[-1], 1) ** 0.5
    return module


def nsa(**choices):
    sizes = {"n_kv_heads": G, "d_head": DH, "block": 3, "top": 2, "window": 4}
    return drawn(NativeSparseAttention(D, H, **(sizes | choices)))


def in_pieces(mixer, x, sizes):
    state, found = None, []
    for piece in x.split(sizes, 1):
        y, state = mixer(piece, state)
        found.append(y)
    return torch.cat(found, 1), state


def only(mixer, branch):
    """Open the gate of one branch and shut the others."""
    with torch.no_grad():
        mixer.gate_proj.weight.zero_()
        mixer.gate_proj.bias.fill_(-1e9)
        mixer.gate_proj.bias[branch * H : (branch + 1) * H] = 1e9
    return mixer


def heads(mixer, x, branch):
    """Queries, and keys and values of a branch, each written out for every head."""
    q = mixer.q_proj(x).unflatten(-1, (H, DH)).transpose(1, 2)
    k, v = (
        proj(x).unflatten(-1, (3, G, DH))[:, :, branch].transpose(1, 2).repeat_interleave(H // G, 1)
        for proj in (mixer.k_proj, mixer.v_proj)
    )
    return q, k, v


def rows(mixer, z):
    return mixer.out_proj(z.transpose(1, 2).flatten(-2))


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


# chosen keys


def test_chosen_keys_are_all_that_is_seen():
    q, k, v = normal(B, H, 5, DH), normal(B, G, 7, DH), normal(B, G, 7, 3)
    order = torch.stack([torch.randperm(7) for _ in range(B * G * 5)]).view(B, G, 5, 7)
    chosen = order[..., :3]
    valid = normal(B, G, 5, 3) > -0.5
    valid[0, 0, 0] = False
    allowed = torch.zeros(B, G, 5, 7, dtype=torch.bool).scatter(-1, chosen, valid)
    wide = [x.repeat_interleave(2, 1) for x in (k, v, allowed)]
    wanted = functional.scaled_dot_product_attention(q, *wide[:2], attn_mask=wide[2])
    close(attend_chosen(q, k, v, chosen, valid=valid), wanted.nan_to_num())
    close(
        attend_chosen(q, k, v, chosen)[:, :, 1:], attend_chosen(q, k, v, chosen.flip(-1))[:, :, 1:]
    )
    shared = attend_chosen(q, k, v, chosen[:, :1])
    close(shared, attend_chosen(q, k, v, chosen[:, :1].expand(-1, G, -1, -1)))


def test_gradients_reach_chosen_keys_only():
    q, k, v = (
        x.requires_grad_() for x in (normal(1, 2, 3, 2), normal(1, 1, 5, 2), normal(1, 1, 5, 2))
    )
    chosen = torch.tensor([[[[0, 3], [3, 1], [0, 1]]]])
    assert torch.autograd.gradcheck(lambda *x: attend_chosen(*x, chosen), (q, k, v))
    (slope,) = torch.autograd.grad(attend_chosen(q, k, v, chosen).sum(), v)
    assert (slope[0, 0, [2, 4]] == 0).all()


# native sparse attention


@pytest.mark.parametrize("rotary", [False, True])
def test_all_blocks_selected_is_exact_attention(rotary):
    part = RotaryPositions(DH) if rotary else None
    mixer, x = only(nsa(top=9, position=part), 1), normal(B, 11, D)
    q, k, v = heads(mixer, x, 1)
    if rotary:
        q, k = (part.rotate(each, torch.arange(11)) for each in (q, k))
    wanted = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    close(mixer(x)[0], rows(mixer, wanted))


def test_the_window_is_attention_with_a_band():
    mixer, x = only(nsa(), 2), normal(B, 11, D)
    band = torch.tensor([[i - 4 < j <= i for j in range(11)] for i in range(11)])
    wanted = functional.scaled_dot_product_attention(*heads(mixer, x, 2), attn_mask=band)
    close(mixer(x)[0], rows(mixer, wanted))


def pooled_by_hand(mixer, x, pool):
    """Pooled keys and values, block by block."""
    q, k, v = heads(mixer, x, 0)
    found = []
    for each, part in ((k, mixer.k_pool), (v, mixer.v_pool)):
        blocks = [each[:, :, i : i + 3] + part.place for i in range(0, x.shape[1] - 2, 3)]
        if pool == "mean":
            found.append(torch.stack([sum(b.unbind(2)) / 3 for b in blocks], 2))
        else:
            one, _, two = part.net
            inner = [torch.relu(b.flatten(-2) @ one.weight.T + one.bias) for b in blocks]
            found.append(torch.stack([b @ two.weight.T + two.bias for b in inner], 2))
    return q, *found


@pytest.mark.parametrize("pool", ["mean", "mlp"])
def test_pooled_blocks_are_seen_when_they_are_over(pool):
    mixer, x = only(nsa(pool=pool), 0), normal(B, 11, D)
    q, k, v = pooled_by_hand(mixer, x, pool)
    over = torch.tensor([[3 * b + 2 <= i for b in range(3)] for i in range(11)])
    wanted = functional.scaled_dot_product_attention(q, k, v, attn_mask=over).nan_to_num()
    close(mixer(x)[0], rows(mixer, wanted))
    bias = mixer.out_proj(torch.zeros(H * DH).double())
    close(mixer(x)[0][:, :2], bias.expand(B, 2, D))  # no block is over


def test_a_query_reads_its_own_block_and_the_best_ones():
    mixer, x = only(nsa(top=2), 1), normal(B, 14, D)
    q, k, _ = pooled_by_hand(mixer, x, "mlp")
    allowed = torch.zeros(B, H, 14, 14, dtype=torch.bool)
    for b in range(B):
        for group in range(G):
            for i in range(14):
                own, over = i // 3, (i + 1) // 3
                total = torch.zeros(over, dtype=torch.float64)
                for h in (2 * group, 2 * group + 1):
                    total += (k[b, h, :over] @ q[b, h, i] / DH**0.5).softmax(0)
                before = [block for block in range(over) if block != own]
                read = {own} | ({max(before, key=lambda c: total[c])} if before else set())
                for j in range(i + 1):
                    allowed[b, 2 * group : 2 * group + 2, i, j] = j // 3 in read
    wanted = functional.scaled_dot_product_attention(*heads(mixer, x, 1), attn_mask=allowed)
    close(mixer(x)[0], rows(mixer, wanted))


def test_the_gates_weigh_the_branches():
    mixer, x = nsa(d_head=3), normal(B, 11, D)
    gates = torch.sigmoid(mixer.gate_proj(x)).unflatten(-1, (3, H, 1)).expand(-1, -1, -1, -1, 3)
    bodies = []
    for branch in range(3):
        one = only(nsa(d_head=3), branch)
        one.out_proj = torch.nn.Identity()
        bodies.append(one(x)[0])
    whole = sum(g.flatten(-2) * z for g, z in zip(gates.unbind(2), bodies, strict=True))
    close(mixer(x)[0], mixer.out_proj(whole))


@pytest.mark.parametrize("sizes", [[1] * 14, [5, 9], [3, 3, 8], [13, 1], [2, 6, 1, 5]])
def test_it_can_be_cut_anywhere(sizes):
    mixer, x = nsa(position=RotaryPositions(DH), bias=True), normal(B, 14, D).requires_grad_()
    whole, state = mixer(x)
    pieces, last = in_pieces(mixer, x, sizes)
    close(pieces, whole)
    probe = normal(*whole.shape, seed=5)
    one, other = (torch.autograd.grad((y * probe).sum(), x)[0] for y in (pieces, whole))
    close(one, other)
    assert last.length == state.length == 14 and last.nbytes == state.nbytes
    # all for the choice, three of the window, four blocks, two rows of one that is not full
    assert last.nbytes == 2 * 8 * B * G * DH * (14 + 3 + 4 + 2)
    again, _ = mixer(x[:1, :2], last.select(torch.tensor([0])))
    close(again, mixer(x[:, :2], last)[0][:1])


def test_the_future_is_hidden():
    mixer, x = nsa(), normal(1, 13, D).requires_grad_()
    y, _ = mixer(x)
    for i in range(13):
        (slope,) = torch.autograd.grad(y[0, i].sum(), x, retain_graph=True)
        assert (slope[0, i + 1 :] == 0).all() and (slope[0, i] != 0).any()


def test_every_weight_learns():
    mixer = nsa()
    mixer(normal(B, 14, D))[0].square().sum().backward()
    assert all((w.grad != 0).any() for w in mixer.parameters())


# the indexer


def indexed(top, **choices):
    sizes = {"n_kv_heads": G, "d_head": DH, "index_heads": 3, "d_index": 5}
    return drawn(IndexedAttention(D, H, top=top, **(sizes | choices)))


def test_scores_are_those_of_the_formula():
    indexer, x = drawn(LightningIndexer(D, 3, 5)), normal(B, 4, D)
    got = indexer(x, indexer.keys(x))
    for b in range(B):
        for t in range(4):
            weights = indexer.weight_proj.weight @ x[b, t]
            queries = (indexer.q_proj.weight @ x[b, t]).view(3, 5)
            for s in range(4):
                key = indexer.k_proj.weight @ x[b, s]
                wanted = sum(w * max(q @ key, 0) for w, q in zip(weights, queries, strict=True))
                close(got[b, t, s], wanted)


@pytest.mark.parametrize("position", [None, RotaryPositions(DH)])
def test_with_room_for_all_keys_it_is_plain_attention(position):
    mixer, x = indexed(11, position=position), normal(B, 11, D)
    close(mixer(x)[0], mixer.attention(x)[0])
    keep = torch.ones(B, 1, 11, dtype=torch.bool)
    keep[0, 0, :4] = False
    close(mixer(x, mask=keep)[0], mixer.attention(x, mask=keep)[0])


def test_the_best_keys_are_read_by_all_heads():
    mixer, x = indexed(3), normal(B, 9, D)
    scores = mixer.indexer(x, mixer.indexer.keys(x))
    allowed = torch.zeros(B, 9, 9, dtype=torch.bool)
    for b in range(B):
        for t in range(9):
            best = sorted(range(t + 1), key=lambda s: -scores[b, t, s])[:3]
            allowed[b, t, best] = True
    close(mixer(x)[0], mixer.attention(x, mask=allowed)[0])


@pytest.mark.parametrize("sizes", [[1] * 9, [4, 5], [8, 1]])
def test_indexed_attention_can_be_cut_anywhere(sizes):
    mixer, x = indexed(3, position=RotaryPositions(DH)), normal(B, 9, D)
    whole, state = mixer(x)
    pieces, last = in_pieces(mixer, x, sizes)
    close(pieces, whole)
    assert last.nbytes == state.nbytes == 8 * B * 9 * (2 * G * DH + 5) and last.length == 9
    assert last.select(torch.tensor([1, 1, 0])).keys.shape[0] == 3


def test_the_loss_is_the_divergence_of_summed_weights():
    scores, logits = normal(B, 5, 7), normal(B, H, 5, 7, seed=3)
    weights = logits.softmax(-1)
    p = weights.mean(1)
    wanted = functional.kl_div(scores.log_softmax(-1), p, reduction="sum") / (B * 5)
    close(index_loss(scores, weights), wanted)
    close(index_loss(p.log() + 3, weights), torch.tensor(0.0).double())
    hidden = ~causal_mask(5, 7)
    few = logits.masked_fill(hidden, -torch.inf).softmax(-1)
    q = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    each = torch.where(hidden, 0.0, few.mean(1) * (few.mean(1) / q).log()).nan_to_num()
    close(index_loss(scores.masked_fill(hidden, -torch.inf), few), each.sum(-1).mean())
    close(index_loss(scores, few, mask=~hidden), each.sum(-1).mean())
    slope = scores.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: index_loss(s, weights), slope)


def test_the_indexer_learns_what_the_attention_reads():
    mixer, x = indexed(4), normal(4, 12, D)
    past, weights = causal_mask(12), mixer.attention.weights(x)

    def loss():
        scores = mixer.indexer(x, mixer.indexer.keys(x))
        return index_loss(scores.masked_fill(~past, -torch.inf), weights)

    first = loss()
    optimizer = torch.optim.Adam(mixer.indexer.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        later = loss()
        later.backward()
        optimizer.step()
    assert later < 0.8 * first
    assert all(w.grad is None for w in mixer.attention.parameters())
    far = x[:1].clone().requires_grad_()
    mixer.indexer(far, mixer.indexer.keys(far)).sum().backward()
    assert far.grad is not None  # by itself it passes gradients on; in the mixer it gets copies


def test_the_choice_gives_the_indexer_no_gradient():
    mixer, x = indexed(3), normal(B, 9, D)
    mixer(x)[0].sum().backward()
    assert all(w.grad is None for w in mixer.indexer.parameters())


REFUSED = {
    "a mask": (
        lambda: nsa()(normal(B, 3, D), mask=torch.ones(B, 1, 3).bool()),
        ValueError,
        "mask must be None",
    ),
    "no block": (lambda: nsa(block=0), ValueError, "block must be at least 1, got 0"),
    "a pool of no kind": (lambda: nsa(pool="max"), ValueError, "pool must be one of mean, mlp"),
    "a bias as position": (lambda: nsa(position=ALiBi(4)), TypeError, "have a method rotate"),
    "a state of another kind": (
        lambda: nsa()(normal(B, 3, D), indexed(2)(normal(B, 3, D))[1]),
        TypeError,
        "state must be a NativeSparseState, got IndexedState",
    ),
    "a state of another batch": (
        lambda: nsa()(normal(B, 3, D), nsa()(normal(1, 3, D))[1]),
        ValueError,
        "state.k must have shape",
    ),
    "no keys to read": (lambda: indexed(0), ValueError, "top must be at least 1, got 0"),
    "an unknown choice": (
        lambda: indexed(3, window=2),
        ValueError,
        r"choices must be out of .*, got \['window'\]",
    ),
    "a state of plain attention": (
        lambda: indexed(3)(normal(B, 3, D), MultiHeadAttention(D, H).double()(normal(B, 3, D))[1]),
        TypeError,
        "state must be an IndexedState, got KVState",
    ),
    "another mask for each head": (
        lambda: indexed(3)(normal(B, 3, D), mask=torch.ones(1, H, 3, 3).bool()),
        ValueError,
        "mask must be the same for all heads",
    ),
    "keys that do not exist": (
        lambda: attend_chosen(*(normal(1, 1, 2, 2),) * 3, torch.tensor([[[[2], [0]]]])),
        ValueError,
        "chosen must be from 0 to 1, got 0 to 2",
    ),
    "weights of another size": (
        lambda: index_loss(normal(1, 2, 3), normal(1, 2, 3)),
        ValueError,
        r"weights must have shape \(B, H, N, M\)",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()
