"""What is true of multi-head attention, as checks that any module of that name can be put through.

A check is `check(kit)`, with a kit's `attention` in the place of `tfbook.attention.multihead` and
`latent` in that of `tfbook.attention.latent`; it raises AssertionError when the property does not
hold. The checks run
over the package (test_multihead.py, test_latent.py) and over planted bugs
(test_multihead_mutants.py). All sizes are distinct primes where they may be, numbers float64.
"""

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tfbook.efficient  # noqa: F401 (its functions join VARIANTS)
import tfbook.positions
from tfbook.attention import causal_mask, padding_mask
from tfbook.blocks import RMSNorm
from tfbook.positions import ALiBi, RotaryPositions, ShawPositions, T5Bias

B, N, M, D, H, DK, DV = 2, 7, 5, 26, 6, 4, 3
# Ways to cut N rows into pieces.
CUTS = ([1] * N, [N - 1, 1], [1, N - 1], [3, 4], [2, 1, 4], [5, 2])
KV_HEADS = (1, 2, 3, 6)


@dataclass(frozen=True)
class Kit:
    """The modules under test."""

    MODULES = ("tfbook.attention.multihead", "tfbook.attention.latent")
    attention: ModuleType
    latent: ModuleType

    def mha(self, *, seed: int = 0, **choices: object) -> nn.Module:
        """Make a module with random weights and biases, in float64."""
        sizes = {"d_head": DK, "d_value": DV, "causal": True}
        if "d_memory" in choices:
            sizes["causal"] = False
        return randomised(self.attention.MultiHeadAttention(D, H, **(sizes | choices)), seed)

    def mla(self, *, seed: int = 0, **choices: object) -> nn.Module:
        """Make a latent attention with random weights, in float64."""
        sizes = {"d_latent": 11, "d_head": 5, "d_value": DV, "causal": True}
        sizes |= {"d_rope": 4, "position": RotaryPositions(4), "d_query_latent": 13}
        return randomised(self.latent.LatentAttention(D, H, **(sizes | choices)), seed)


CHECKS: dict[str, Callable[[Kit], None]] = {}
LATENT: dict[str, Callable[[Kit], None]] = {}
PARITY: set[str] = set()


def check(run: Callable[[Kit], None]) -> Callable[[Kit], None]:
    """Put the function below among the checks of multi-head attention."""
    CHECKS[run.__name__] = run
    return run


def latent_check(run: Callable[[Kit], None]) -> Callable[[Kit], None]:
    """Put the function below among the checks of latent attention."""
    LATENT[run.__name__] = run
    return run


def parity(run: Callable[[Kit], None]) -> Callable[[Kit], None]:
    """Say of a check that it compares with another implementation of the whole."""
    PARITY.add(run.__name__)
    return run


def randomised(module: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = noise / math.sqrt(parameter.shape[-1])
    return module


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def close(got, wanted, atol=1e-12):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def positions(source: ModuleType = tfbook.positions) -> dict[str, nn.Module | None]:
    """One part of each kind, weights random."""
    parts = {
        "none": None,
        "added": source.SinusoidalPositions(D),
        "rotary": source.RotaryPositions(DK),
        "alibi": source.ALiBi(H),
        "t5": source.T5Bias(H, n_buckets=6, max_distance=8, bidirectional=False),
        "shaw": source.ShawPositions(DK, 3),
        "xl": source.TransformerXLPositions(H, DK),
    }
    return {name: part and randomised(part, 5) for name, part in parts.items()}


def in_pieces(mixer, x, cut, mask=None):
    """Feed x piece by piece, each piece with the part of the padding mask that is its own."""
    state, pieces, start = None, [], 0
    for size in cut:
        own = None if mask is None else mask[..., start : start + size]
        y, state = mixer(x[:, start : start + size], state, mask=own)
        pieces.append(y)
        start += size
    return torch.cat(pieces, dim=1), state


def watch(module, *taps):
    """Return a dictionary that will hold what last passed each tap."""
    seen = {}
    for tap in taps:
        hook = functools.partial(lambda name, _, __, out: seen.__setitem__(name, out), tap)
        getattr(module, tap).register_forward_hook(hook)
    return seen


def blocks(module, name, n_heads):
    """Return the weight and bias rows of one projection for each head, as NumPy arrays."""
    projection = getattr(module, name)
    weight = projection.weight.detach().numpy().reshape(n_heads, -1, projection.in_features)
    if projection.bias is None:
        return weight, np.zeros(weight.shape[:2])
    return weight, projection.bias.detach().numpy().reshape(n_heads, -1)


def by_the_book(module, x, memory=None, values=None, allowed=None):
    """Evaluate Σ_h softmax(q_h k_hᵀ / √d) v_h W_out^h + b with NumPy, one head after another."""
    x = x.detach().numpy()
    memory = x if memory is None else memory.numpy()
    values = memory if values is None else values.numpy()
    (w_q, b_q), (w_k, b_k), (w_v, b_v) = (
        blocks(module, name, heads)
        for name, heads in (
            ("q_proj", module.n_heads),
            ("k_proj", module.n_kv_heads),
            ("v_proj", module.n_kv_heads),
        )
    )
    out = module.out_proj.weight.detach().numpy()
    y = np.zeros((*x.shape[:2], module.d_model))
    if module.out_proj.bias is not None:
        y += module.out_proj.bias.detach().numpy()
    for h in range(module.n_heads):
        g = h // (module.n_heads // module.n_kv_heads)
        q, k, v = x @ w_q[h].T + b_q[h], memory @ w_k[g].T + b_k[g], values @ w_v[g].T + b_v[g]
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(module.d_head)
        if allowed is not None:
            scores = np.where(allowed.numpy(), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        y += weights @ v @ out[:, h * module.d_value : (h + 1) * module.d_value].T
    return torch.from_numpy(y)


# the function


@parity
@check
def test_it_is_the_sum_over_heads_of_the_formula(kit):
    x = normal(B, N, D)
    for n_kv_heads in KV_HEADS:
        for bias in (True, False, ("q", "out"), ("k", "v")):
            mha = kit.mha(n_kv_heads=n_kv_heads, bias=bias, causal=False)
            close(mha(x)[0], by_the_book(mha, x))
            mha.causal = True
            close(mha(x)[0], by_the_book(mha, x, allowed=causal_mask(N)))


@parity
@check
def test_cross_attention_is_the_formula_with_a_memory(kit):
    x, memory, values = normal(B, N, D), normal(B, M, 11, seed=2), normal(B, M, 5, seed=3)
    mha = kit.mha(d_memory=(11, 5), n_kv_heads=2)
    close(mha(x, mha.remember(memory, values))[0], by_the_book(mha, x, memory, values))
    mha = kit.mha(d_memory=11)
    close(mha(x, mha.remember(memory))[0], by_the_book(mha, x, memory))


@check
def test_a_scale_multiplies_the_scores(kit):
    x = normal(B, N, D)
    plain, scaled = kit.mha(), kit.mha(scale=3 / math.sqrt(DK))
    for name in ("weight", "bias"):
        getattr(plain.q_proj, name).data *= 3
    close(scaled(x)[0], plain(x)[0])


@check
def test_an_unscaled_position_leaves_the_scores_as_they_are(kit):
    x, plain, biased = normal(B, N, D), kit.mha(scale=1.0), kit.mha(position=T5Bias(H))
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        getattr(biased, name).load_state_dict(getattr(plain, name).state_dict())
    biased.position.weight.data.zero_()
    close(biased(x)[0], plain(x)[0])


@check
def test_one_head_with_identities_is_attention_itself(kit):
    x = normal(B, N, D)
    mha = randomised(kit.attention.MultiHeadAttention(D, 1, bias=False), 0)
    for projection in (mha.q_proj, mha.k_proj, mha.v_proj, mha.out_proj):
        projection.weight.data = torch.eye(D, dtype=torch.float64)
    close(mha(x)[0], torch.softmax(x @ x.mT / math.sqrt(D), -1) @ x)


@check
def test_heads_swapped_with_their_output_blocks_change_nothing(kit):
    x, order = normal(B, N, D), torch.tensor([4, 0, 5, 2, 1, 3])
    one, other = kit.mha(), kit.mha()
    for name, size in (("q_proj", DK), ("k_proj", DK), ("v_proj", DV)):
        for kind in ("weight", "bias"):
            parameter = getattr(getattr(other, name), kind)
            parameter.data = parameter.data.unflatten(0, (H, size))[order].flatten(0, 1)
    columns = other.out_proj.weight.data.unflatten(1, (H, DV))
    other.out_proj.weight.data = columns[:, order].flatten(1)
    close(other(x)[0], one(x)[0])
    close(other.weights(x), one.weights(x)[:, order])


@check
def test_a_head_depends_on_its_own_block_only(kit):
    x = normal(B, N, D)
    mha = kit.mha()
    before = mha.head_outputs(x).detach()
    mha.q_proj.weight.data[2 * DK : 3 * DK] += 1.0
    changed = (mha.head_outputs(x) - before).abs().amax((0, 2, 3)) > 1e-6
    assert changed.tolist() == [h == 2 for h in range(H)]


@check
def test_shared_keys_and_values_equal_repeated_ones(kit):
    x = normal(B, N, D)
    for n_kv_heads in (1, 2, 3):
        shared, full = kit.mha(n_kv_heads=n_kv_heads), kit.mha()
        for name in ("q_proj", "out_proj"):
            getattr(full, name).load_state_dict(getattr(shared, name).state_dict())
        for name in ("k_proj", "v_proj"):
            for kind in ("weight", "bias"):
                parts = getattr(getattr(shared, name), kind).data.unflatten(0, (n_kv_heads, -1))
                parts = parts.repeat_interleave(H // n_kv_heads, 0).flatten(0, 1)
                getattr(getattr(full, name), kind).data = parts
        close(shared(x)[0], full(x)[0])
        close(shared.weights(x), full.weights(x))
        for cut in CUTS[:2]:
            close(in_pieces(shared, x, cut)[0], full(x)[0])


@check
def test_without_positions_and_causal_order_is_lost(kit):
    x, order = normal(B, N, D), torch.tensor([3, 6, 0, 2, 5, 1, 4])
    for n_kv_heads in KV_HEADS:
        mha = kit.mha(causal=False, n_kv_heads=n_kv_heads)
        close(mha(x[:, order])[0], mha(x)[0][:, order])


@check
def test_sequences_of_a_batch_do_not_meet(kit):
    x = normal(B, N, D)
    mha = kit.mha(n_kv_heads=2, position=RotaryPositions(DK))
    close(torch.cat([mha(x[:1])[0], mha(x[1:])[0]]), mha(x)[0])


# norms of queries and keys


@check
def test_with_norms_the_lengths_of_queries_and_keys_do_not_matter(kit):
    x, norm = normal(B, N, D), functools.partial(RMSNorm, eps=1e-12)
    for position in (None, RotaryPositions(DK)):
        for name in ("q_proj", "k_proj"):
            mha = kit.mha(qk_norm=norm, n_kv_heads=2, position=position)
            before = mha(x)[0]
            for parameter in getattr(mha, name).parameters():
                parameter.data *= 7
            close(mha(x)[0], before, atol=1e-9)
            getattr(mha, name.replace("proj", "norm")).weight.data *= 7
            assert (mha(x)[0] - before).abs().max() > 1e-2


@check
def test_each_head_has_a_norm_of_its_own_before_it_is_rotated(kit):
    met = []

    def look(q, k, v, **options):
        met.append((q, k))
        return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

    mha = kit.mha(qk_norm=RMSNorm, n_kv_heads=6, attend=look, position=RotaryPositions(DK))
    seen = watch(mha, "q", "k")
    mha(normal(B, N, D))
    for name, rotated in zip("qk", met[0], strict=True):
        scale = getattr(mha, f"{name}_norm").weight
        raw = seen[name] / scale  # (B, H, N, DK)
        close(raw.square().mean(-1), torch.ones(B, H, N).double(), atol=1e-3)
        close(rotated.norm(dim=-1), seen[name].norm(dim=-1))  # turning keeps lengths
    same = normal(B, 1, D).expand(B, N, D)  # equal rows: scores depend on the distance alone
    mha(same)
    scores = met[1][0] @ met[1][1].mT  # (B, H, N, N)
    close(scores[..., 1:, 1:], scores[..., :-1, :-1])


@check
def test_norms_of_queries_and_keys_stay_through_state_pruning_and_memory(kit):
    x = normal(B, N, D)
    mha = kit.mha(qk_norm=RMSNorm, n_kv_heads=3, position=RotaryPositions(DK))
    for cut in CUTS:
        close(in_pieces(mha, x, cut)[0], mha(x)[0])
    left = torch.zeros(H, dtype=torch.bool)
    left[[1, 4]] = True
    close(mha.prune_heads([1, 4])(x)[0], mha(x, head_mask=left)[0])
    mha = kit.mha(qk_norm=RMSNorm, d_memory=D)
    alone = kit.mha(qk_norm=RMSNorm, causal=False)
    alone.load_state_dict(mha.state_dict())
    close(mha(x, mha.remember(x))[0], alone(x)[0])


# causal


@check
def test_later_rows_do_not_change_earlier_outputs(kit):
    for name, position in positions().items():
        mha = kit.mha(position=position, n_kv_heads=3)
        x = normal(B, N, D)
        before = mha(x)[0]
        for j in range(N):
            moved = x.clone()
            moved[:, j] += 3.0
            after = mha(moved)[0]
            close(after[:, :j], before[:, :j], atol=1e-13)
            assert (after[:, j] - before[:, j]).abs().max() > 1e-3, name


@check
def test_later_rows_get_no_gradient_from_earlier_outputs(kit):
    x = normal(B, N, D).requires_grad_()
    y = kit.mha(n_kv_heads=2)(x)[0]
    for i in range(N):
        (slope,) = torch.autograd.grad(y[:, i].sum(), x, retain_graph=True)
        assert (slope[:, i + 1 :] == 0).all()
        assert (slope[:, : i + 1].abs().amax(-1) > 0).all()


# state


@check
def test_any_way_to_cut_a_sequence_gives_the_whole(kit):
    x = normal(B, N, D)
    for position in positions().values():
        for n_kv_heads in (2, 6):
            mha = kit.mha(position=position, n_kv_heads=n_kv_heads)
            whole = mha(x)[0]
            for cut in CUTS:
                pieces, state = in_pieces(mha, x, cut)
                close(pieces, whole)
                assert state.length == state.seen == N


@check
def test_gradients_go_through_the_state(kit):
    x = normal(B, N, D).requires_grad_()
    mha = kit.mha(n_kv_heads=2, position=RotaryPositions(DK))
    (wanted,) = torch.autograd.grad(mha(x)[0].square().sum(), x)
    for cut in CUTS[:3]:
        (got,) = torch.autograd.grad(in_pieces(mha, x, cut)[0].square().sum(), x)
        close(got, wanted)


@check
def test_an_old_state_stays_valid_and_can_be_continued_twice(kit):
    x, other = normal(B, N, D), normal(B, 2, D, seed=8)
    mha = kit.mha(position=ALiBi(H))
    _, state = mha(x[:, :4])
    kept = state.k.clone(), state.v.clone()
    one, _ = mha(x[:, 4:], state)
    two, _ = mha(other, state)
    close((state.k, state.v), kept, atol=0)
    assert state.length == 4
    close(one, mha(x)[0][:, 4:])
    close(two, mha(torch.cat([x[:, :4], other], 1))[0][:, 4:])


@check
def test_the_state_holds_what_the_formula_says(kit):
    for n_kv_heads in KV_HEADS:
        _, state = kit.mha(n_kv_heads=n_kv_heads)(normal(B, N, D))
        assert state.nbytes == B * n_kv_heads * N * (DK + DV) * 8
        assert (state.k.shape, state.v.shape) == ((B, n_kv_heads, N, DK), (B, n_kv_heads, N, DV))


@check
def test_sequences_can_be_picked_out_of_a_state(kit):
    x, rows = normal(B, N, D), torch.tensor([1, 1, 0])
    mha = kit.mha(position=RotaryPositions(DK), n_kv_heads=2)
    mask = padding_mask([N, 4])
    whole, _ = mha(x, mask=mask)
    _, state = mha(x[:, :5], mask=mask[..., :5])
    y, _ = mha(x[rows, 5:], state.select(rows), mask=mask[rows][..., 5:])
    close(y, whole[rows, 5:])


@check
def test_dropping_old_keys_from_a_state_equals_masking_them(kit):
    x, dropped = normal(B, N, D), 2
    for name, position in positions().items():
        mha = kit.mha(position=position, n_kv_heads=3)
        _, state = mha(x[:, :5])
        short = replace(state, k=state.k[:, :, dropped:], v=state.v[:, :, dropped:])
        allowed = torch.arange(N).expand(1, 1, 1, N) >= dropped
        wanted, _ = mha(x[:, 5:], state, mask=allowed)
        got, after = mha(x[:, 5:], short)
        close(got, wanted)
        assert (after.length, after.seen) == (N - dropped, N), name


@check
def test_a_memory_is_a_set_and_is_remembered_once(kit):
    x, memory, order = normal(B, N, D), normal(B, M, 11), torch.tensor([2, 4, 0, 3, 1])
    mha = kit.mha(d_memory=11, n_kv_heads=2)
    mask = padding_mask([3, 5])
    state = mha.remember(memory, mask=mask)
    y, after = mha(x, state)
    assert after is state
    shuffled = mha.remember(memory[:, order], mask=mask[..., order])
    close(mha(x, shuffled)[0], y)
    close(torch.cat([mha(x[:, i : i + 1], state)[0] for i in range(N)], 1), y)


# masks


@check
def test_padding_does_not_change_a_sequence(kit):
    lengths = (4, N)
    x = normal(B, N, D)
    for position in positions().values():
        mha = kit.mha(position=position, n_kv_heads=2, causal=False)
        y, _ = mha(x, mask=padding_mask(lengths))
        for b, length in enumerate(lengths):
            close(y[b : b + 1, :length], mha(x[b : b + 1, :length])[0])


@check
def test_padding_of_a_memory_does_not_change_the_result(kit):
    x, memory = normal(B, N, D), normal(B, M, 11)
    mha = kit.mha(d_memory=11, n_kv_heads=2)
    y, _ = mha(x, mha.remember(memory, mask=padding_mask([3, M])))
    close(y[:1], mha(x[:1], mha.remember(memory[:1, :3]))[0])
    close(y[1:], mha(x[1:], mha.remember(memory[1:]))[0])
    late, _ = mha(x, mha.remember(memory), mask=padding_mask([3, M]))
    close(late, y)


@check
def test_padding_in_front_is_remembered_by_the_state(kit):
    x, blank = normal(B, N, D), 3
    for name in ("none", "rotary", "alibi", "t5", "shaw", "xl"):
        mha = kit.mha(position=positions()[name], n_kv_heads=2)
        alone, _ = mha(x[:1, blank:])
        mask = torch.arange(N) >= torch.tensor([blank, 0])[:, None, None]  # (B, 1, N)
        for cut in ([N], *CUTS):
            pieces, state = in_pieces(mha, x, cut, mask)
            close(pieces[:1, blank:], alone, atol=1e-11)
        close(state.mask.squeeze(2), mask, atol=0)
        # With one piece masked and the next not said to be, the padding stays hidden.
        _, state = mha(x[:, :4], mask=mask[..., :4])
        close(mha(x[:, 4:], state)[0][:1], alone[:, 4 - blank :], atol=1e-11)


@check
def test_a_mask_of_all_keys_and_one_of_the_new_keys_say_the_same(kit):
    x, own = normal(B, N, D), causal_mask(3).expand(B, 3, 3)
    mha = kit.mha(causal=False, n_kv_heads=3)
    _, state = mha(x[:, :4])
    every = torch.cat([torch.ones(B, 3, 4, dtype=torch.bool), own], -1)
    one, after = mha(x[:, 4:], state, mask=own)
    close(one, mha(x[:, 4:], state, mask=every)[0])
    assert after.mask is None


@check
def test_three_dimensions_of_a_mask_are_batch_queries_keys(kit):
    x = normal(B, N, D)
    mask = (normal(B, N, N, seed=4) > -0.5) | torch.eye(N, dtype=torch.bool)
    mha = kit.mha(causal=False)
    y = mha(x, mask=mask)[0]
    close(y, mha(x, mask=mask[:, None].expand(B, H, N, N))[0])
    for b in range(B):
        close(y[b : b + 1], mha(x[b : b + 1], mask=mask[b])[0])


@check
def test_each_head_can_have_its_own_mask(kit):
    x = normal(B, N, D)
    mask = (normal(1, H, N, N, seed=4) > -0.5) | torch.eye(N, dtype=torch.bool)
    mha = kit.mha(causal=False, n_kv_heads=2)
    close(
        mha.head_outputs(x, mask=mask),
        torch.stack([mha.head_outputs(x, mask=mask[0, h])[:, h] for h in range(H)], 1),
    )
    one = x[:, :1]
    memory = kit.mha(d_memory=D, n_kv_heads=2)
    state, mask = memory.remember(x), mask[:, :, :1]
    weights = memory.weights(one, state, mask=mask)
    assert ((weights > 0) == mask).all()
    close(
        memory.head_outputs(one, state, mask=mask),
        torch.stack([memory.head_outputs(one, state, mask=mask[0, h])[:, h] for h in range(H)], 1),
    )


@check
def test_a_row_that_may_see_nothing_gets_the_output_bias(kit):
    x = normal(B, N, D).requires_grad_()
    mha = kit.mha(causal=False)
    mask = torch.ones(B, N, N, dtype=torch.bool)
    mask[0, 2] = False
    y = mha(x, mask=mask)[0]
    close(y[0, 2], mha.out_proj.bias.detach())
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.isfinite().all()


# heads


@check
def test_the_heads_sum_to_the_output(kit):
    x, memory = normal(B, N, D), normal(B, M, 11)
    for n_kv_heads in (2, 6):
        mha = kit.mha(n_kv_heads=n_kv_heads, position=RotaryPositions(DK))
        close(mha.head_outputs(x).sum(1) + mha.out_proj.bias, mha(x)[0])
        mha = kit.mha(d_memory=11, n_kv_heads=n_kv_heads, bias=False)
        state = mha.remember(memory, mask=padding_mask([2, 5]))
        close(mha.head_outputs(x, state).sum(1), mha(x, state)[0])


@check
def test_weights_are_shares_and_mix_the_values(kit):
    x = normal(B, N, D)
    for name, position in positions().items():
        mha = kit.mha(position=position, n_kv_heads=2)
        seen = watch(mha, "v", "z")
        mha(x)
        weights = mha.weights(x)
        assert weights.shape == (B, H, N, N), name
        close(weights.sum(-1), torch.ones(B, H, N, dtype=torch.float64))
        assert (weights >= 0).all() and (weights.triu(1) == 0).all()
        close(weights @ seen["v"].repeat_interleave(H // 2, 1), seen["z"])


@check
def test_weights_of_the_last_row_are_the_same_with_a_state(kit):
    x = normal(B, N, D)
    for position in positions().values():
        mha = kit.mha(position=position, n_kv_heads=3)
        _, state = mha(x[:, :-1])
        close(mha.weights(x[:, -1:], state), mha.weights(x)[:, :, -1:])


@check
def test_a_hook_on_a_tap_replaces_what_passes(kit):
    x = normal(B, N, D)
    mha = kit.mha(n_kv_heads=2)
    kept = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5, 1.0], dtype=torch.float64)
    wanted, _ = mha(x, head_mask=kept)
    hook = mha.z.register_forward_hook(lambda _, __, z: z * kept[:, None, None])
    close(mha(x)[0], wanted)
    hook.remove()
    shapes = {"q": (B, H, N, DK), "k": (B, 2, N, DK), "v": (B, 2, N, DV), "z": (B, H, N, DV)}
    seen = watch(mha, *shapes)
    mha(x)
    assert {tap: tuple(value.shape) for tap, value in seen.items()} == shapes


# scores and pattern


def looked_at(module, *taps):
    """Return what passes the taps, and what takes the hooks away again."""
    seen, handles = {}, []
    for tap in taps:
        hook = functools.partial(lambda name, _, __, out: seen.__setitem__(name, out), tap)
        handles.append(getattr(module, tap).register_forward_hook(hook))
    return seen, lambda: [handle.remove() for handle in handles]


def kinds_of_calls(kit):
    """Yield a module, and the arguments of a call, for each way to attend."""
    x, memory = normal(B, N, D), normal(B, M, 11, seed=2)
    some = (normal(B, N, N, seed=4) > -0.5) | torch.eye(N, dtype=torch.bool)
    empty = some.clone()
    empty[0, 2] = False
    for n_kv_heads in (2, H):
        for position in positions().values():
            mha = kit.mha(position=position, n_kv_heads=n_kv_heads)
            yield mha, (x,), {}
            _, state = mha(x[:, :-1])
            yield mha, (x[:, -1:], state), {}
        yield kit.mha(causal=False, n_kv_heads=n_kv_heads), (x,), {"mask": empty}
        yield kit.mha(n_kv_heads=n_kv_heads, window=3, scale=0.7), (x,), {"mask": some}
        yield kit.mha(n_kv_heads=n_kv_heads, qk_norm=RMSNorm, d_value=DK), (x,), {}
        mha = kit.mha(n_kv_heads=n_kv_heads, position=RotaryPositions(DK))
        door = importlib.import_module(kit.attention.__package__)
        for cache in (door.StaticCache(9), door.SlidingCache(4)):
            with torch.no_grad():
                _, state = mha(x[:, :5], mha.empty_state(B, cache=cache))
            yield mha, (x[:, 5:], state), {}
        mha = kit.mha(d_memory=11, n_kv_heads=n_kv_heads)
        yield mha, (x, mha.remember(memory, mask=padding_mask([3, M]))), {}
        yield mha, (x[:, :1], mha.remember(memory)), {}


@check
def test_a_pattern_can_be_read_wherever_attention_is_exact(kit):
    for mha, (x, *state), options in kinds_of_calls(kit):
        static = bool(state) and hasattr(state[0], "room")
        results = []
        for looks in (False, True):
            leaf = x.clone().requires_grad_(not static)
            seen, forget = looked_at(mha, "v", "z", *("scores", "pattern") * looks)
            with torch.set_grad_enabled(not static):
                y, after = mha(leaf, *state, **options)
            forget()
            slopes = () if static else torch.autograd.grad(y.square().sum(), leaf)
            results.append((y, seen["z"], *slopes))
        close(results[1], results[0], atol=1e-11)
        scores, pattern = seen["scores"], seen["pattern"]
        m = after.length if mha.is_cross else scores.shape[-1]
        assert scores.shape == pattern.shape == (B, H, x.shape[1], m)
        assert m >= after.length  # a sliding cache drops keys behind the call
        shown = torch.softmax(scores, -1).nan_to_num(0.0)  # a row of −∞ alone becomes zeros
        close(pattern, shown)
        with torch.no_grad():
            close(pattern, mha.weights(x, *state, **options))
        held = after.v if m == after.length else torch.cat([state[0].v, seen["v"]], 2)
        close(pattern @ held.repeat_interleave(H // mha.n_kv_heads, 1), seen["z"])


@check
def test_a_patched_pattern_mixes_the_values(kit):
    for mha, (x, *state), options in kinds_of_calls(kit):
        with torch.no_grad():
            before, pattern = mha(x, *state, **options)[0], mha.weights(x, *state, **options)
            patch = torch.rand(pattern.shape, generator=torch.Generator().manual_seed(3)).double()
            hook = mha.pattern.register_forward_hook(lambda _, __, p, new=patch: new)
            seen, forget = looked_at(mha, "v", "z")
            y, after = mha(x, *state, **options)
            forget()
            m = patch.shape[-1]
            held = after.v if m == after.length else torch.cat([state[0].v, seen["v"]], 2)
            close(seen["z"], patch @ held.repeat_interleave(H // mha.n_kv_heads, 1))
            close(y, mha.out_proj(kit.attention.merge_heads(seen["z"])))
            close(mha.weights(x, *state, **options), patch, atol=0)
            hook.remove()
            close(mha(x, *state, **options)[0], before, atol=0)
            assert (y - before).abs().max() > 1e-2


@check
def test_patched_scores_give_their_softmax(kit):
    for mha, (x, *state), options in kinds_of_calls(kit):
        with torch.no_grad():
            before = mha.weights(x, *state, **options)
            hook = mha.scores.register_forward_hook(lambda _, __, s: 3 * s)
            seen, forget = looked_at(mha, "v", "z")
            _, after = mha(x, *state, **options)
            forget()
            hook.remove()
            cubed = before**3
            cubed = (cubed / cubed.sum(-1, keepdim=True)).nan_to_num(0.0)
            held = after.v
            if held.shape[2] != cubed.shape[-1]:
                held = torch.cat([state[0].v, seen["v"]], 2)
            close(seen["z"], cubed @ held.repeat_interleave(H // mha.n_kv_heads, 1))


@check
def test_a_row_without_keys_has_no_pattern_and_no_gradient(kit):
    mask = torch.ones(B, N, N, dtype=torch.bool)
    mask[0, 2] = False
    for n_kv_heads in (2, H):
        mha, x = kit.mha(causal=False, n_kv_heads=n_kv_heads), normal(B, N, D).requires_grad_()
        seen, _ = looked_at(mha, "scores", "pattern", "q", "z")
        mha(x, mask=mask)
        assert (seen["scores"][0, :, 2] == -math.inf).all()
        assert (seen["pattern"][0, :, 2] == 0).all() and (seen["z"][0, :, 2] == 0).all()
        (slope,) = torch.autograd.grad(seen["z"].square().sum(), seen["q"])
        assert (slope[0, :, 2] == 0).all() and slope.isfinite().all() and slope.abs().max() > 0


@check
def test_the_pattern_is_shown_before_dropout(kit):
    for n_kv_heads in (2, H):
        mha, x = kit.mha(dropout=0.5, n_kv_heads=n_kv_heads).train(), normal(B, N, D)
        seen, _ = looked_at(mha, "pattern", "z", "v")
        mha(x)
        close(seen["pattern"].sum(-1), torch.ones(B, H, N).double())
        whole = seen["pattern"] @ seen["v"].repeat_interleave(H // n_kv_heads, 1)
        assert (seen["z"] - whole).abs().max() > 1e-2


class Shapes(TorchDispatchMode):
    """Notes the shape of every tensor that any operation returns, and the bytes behind it."""

    def __init__(self):
        super().__init__()
        self.met = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, torch.Tensor):
                held = each.untyped_storage().nbytes()  # a view holds no more than what it views
                shape = tuple(each.shape)
                self.met[shape] = max(held, self.met.get(shape, 0))
        return out


def shapes_in(run):
    """Return the shapes of all tensors that a call makes, those of its backward pass too."""
    with Shapes() as shapes:
        run().sum().backward()
    return shapes.met


@check
def test_scores_are_formed_only_while_somebody_looks(kit):
    n, x = 31, normal(B, 31, D).float()
    for n_kv_heads in (1, 2, H):
        for position in (None, RotaryPositions(DK)):
            mha = kit.mha(n_kv_heads=n_kv_heads, position=position, d_value=DK).float()

            def squares(mha=mha):
                return [s for s in shapes_in(lambda: mha(x)[0]) if s[-2:] == (n, n)]

            assert not squares()
            for tap in ("scores", "pattern"):
                hook = getattr(mha, tap).register_forward_hook(lambda *_: None)
                assert squares()
                hook.remove()
            assert not squares()


@check
def test_keys_are_not_written_out_for_the_heads_that_share_them(kit):
    x = normal(B, 31, D).float()
    for n in (1, 5):
        mha = kit.mha(n_kv_heads=2, d_value=DK).float()
        with torch.no_grad():
            _, state = mha(x)
            with Shapes() as shapes:
                mha(normal(B, n, D).float(), state)
        own = B * 2 * (31 + n) * DK * 4  # bytes of all keys
        of_keys = [s for s in shapes.met if s[-1:] == (DK,) and 31 + n in s]
        assert max(shapes.met[s] for s in of_keys) == own


@check
def test_pruning_equals_masking_heads(kit):
    x = normal(B, N, D)
    choices = ([5], [1, 4], [0, 1, 5], [3, 0, 2, 4], range(H))
    for name in ("none", "t5", "xl"):
        for n_kv_heads in (2, 3):
            mha = kit.mha(position=positions()[name], n_kv_heads=n_kv_heads)
            for keep in choices:
                pruned = mha.prune_heads(keep)
                assert pruned.n_heads == len(keep)
                mask = torch.tensor([h in keep for h in range(H)])
                close(pruned(x)[0], mha(x, head_mask=mask)[0])
            pruned = mha.prune_heads([0, 1, 5])
            close(in_pieces(pruned, x, [5, 1, 1])[0], pruned(x)[0])


@check
def test_pruning_drops_what_nobody_uses(kit):
    mha = kit.mha(n_kv_heads=3)  # heads 0 1 | 2 3 | 4 5
    for keep, left in (([0, 1], 1), ([0, 1, 4, 5], 2), ([0, 2], 2), ([0, 1, 2], 3), ([5], 1)):
        assert mha.prune_heads(keep).n_kv_heads == left


@check
def test_pruning_leaves_the_original_alone(kit):
    x = normal(B, N, D)
    mha = kit.mha(position=randomised(T5Bias(H), 3)).eval()
    before = mha(x)[0].detach().clone()
    pruned = mha.prune_heads([1, 3])
    assert not pruned.training
    for parameter in pruned.parameters():
        parameter.data += 1.0
    close(mha(x)[0], before, atol=0)
    assert all(p.requires_grad and p.is_leaf for p in pruned.parameters())


@check
def test_masked_heads_get_no_gradient(kit):
    x = normal(B, N, D)
    mha = kit.mha()
    mask = torch.tensor([True, False, True, True, False, True])
    mha(x, head_mask=mask)[0].sum().backward()
    for name in ("q_proj", "k_proj", "v_proj"):
        slopes = getattr(mha, name).weight.grad.unflatten(0, (H, -1)).abs().amax((1, 2))
        assert ((slopes > 0) == mask).all()
    slopes = mha.out_proj.weight.grad.unflatten(1, (H, -1)).abs().amax((0, 2))
    assert ((slopes > 0) == mask).all()


@check
def test_the_output_is_linear_in_the_head_mask(kit):
    x = normal(B, N, D)
    mha = kit.mha(n_kv_heads=2)
    share = normal(H, seed=6).requires_grad_()
    y = mha(x, head_mask=share)[0]
    terms = mha.head_outputs(x)  # (B, H, N, D)
    close(y, torch.einsum("h,bhnd->bnd", share, terms) + mha.out_proj.bias)
    (importance,) = torch.autograd.grad(y.sum(), share)
    close(importance, terms.sum((0, 2, 3)))


@check
def test_splitting_cuts_features_and_merging_undoes_it(kit):
    x = normal(B, N, 6)
    heads = kit.attention.split_heads(x, 3)
    assert heads.shape == (B, 3, N, 2)
    close(heads[:, 1], x[..., 2:4], atol=0)
    close(kit.attention.merge_heads(heads), x, atol=0)
    merged = kit.attention.merge_heads(normal(B, 3, N, 2))
    close(kit.attention.split_heads(merged, 3), normal(B, 3, N, 2), atol=0)


@check
def test_gradients_agree_with_finite_differences(kit):
    x = normal(1, 3, D).requires_grad_()
    mha = kit.mha(n_kv_heads=2, position=randomised(ShawPositions(DK, 2), 5))
    mha(x)[0].sum()
    weights = [mha.k_proj.weight, mha.out_proj.bias, mha.position.weight]

    def output(x, *_):
        return mha(x)[0]

    assert torch.autograd.gradcheck(output, (x, *weights), fast_mode=True)


@check
def test_nothing_given_is_changed(kit):
    x, mask = normal(B, N, D), padding_mask([4, N])
    mha = kit.mha(position=RotaryPositions(DK), n_kv_heads=2)
    kept = x.clone(), mask.clone()
    first, _ = mha(x, mask=mask)
    second, _ = mha(x, mask=mask)
    close((x, mask), kept, atol=0)
    close(first, second, atol=0)


# latent attention


@latent_check
def test_both_forms_give_the_same(kit):
    x = normal(B, N, D)
    for mla in (kit.mla(), kit.mla(d_rope=0, position=None), kit.mla(d_query_latent=None)):
        results, slopes = [], []
        for absorbed in (True, False):
            mla.absorbed = absorbed
            inputs = x.clone().requires_grad_()
            y, _ = mla(inputs, mask=padding_mask([5, N]))
            results.append(y)
            slopes.append(torch.autograd.grad(y.square().sum(), inputs)[0])
        close(results[0], results[1])
        close(slopes[0], slopes[1], atol=1e-10)


@latent_check
def test_latents_can_be_cut_anywhere(kit):
    x = normal(B, N, D)
    for absorbed in (True, False, None):
        mla = kit.mla(absorbed=absorbed, norm=nn.RMSNorm)
        whole = mla(x)[0]
        for cut in CUTS:
            pieces, state = in_pieces(mla, x, cut)
            close(pieces, whole)
            assert state.length == state.seen == N


@latent_check
def test_the_latent_state_has_no_factor_for_heads(kit):
    _, state = kit.mla()(normal(B, N, D))
    assert state.nbytes == B * N * (11 + 4) * 8


@latent_check
def test_latent_attention_is_causal(kit):
    x = normal(B, N, D)
    for absorbed in (True, False):
        mla = kit.mla(absorbed=absorbed)
        before = mla(x)[0]
        for j in range(N):
            moved = x.clone()
            moved[:, j] += 3.0
            after = mla(moved)[0]
            close(after[:, :j], before[:, :j], atol=1e-13)
            assert (after[:, j] - before[:, j]).abs().max() > 1e-3


@latent_check
def test_latent_padding_in_front_is_remembered(kit):
    x, blank = normal(B, N, D), 3
    mask = torch.arange(N) >= torch.tensor([blank, 0])[:, None, None]
    for absorbed in (True, False):
        mla = kit.mla(absorbed=absorbed)
        alone, _ = mla(x[:1, blank:])
        for cut in ([N], *CUTS):
            close(in_pieces(mla, x, cut, mask)[0][:1, blank:], alone, atol=1e-11)


@latent_check
def test_positions_of_latents_are_relative(kit):
    x = normal(B, N, D)
    mla = kit.mla()
    _, state = mla(x[:, :4])
    moved = replace(
        state,
        k_rope=mla.position.rotate(mla.k_rope_proj(x[:, :4]), torch.arange(4) + 50),
        seen=54,
    )
    close(mla(x[:, 4:], moved)[0], mla(x[:, 4:], state)[0], atol=1e-10)
    ahead = replace(state, seen=54)
    assert (mla(x[:, 4:], ahead)[0] - mla(x[:, 4:], state)[0]).abs().max() > 1e-3


@latent_check
def test_without_rotation_it_is_multi_head_attention_with_a_low_rank_projection(kit):
    x = normal(B, N, D)
    mla = kit.mla(d_rope=0, position=None, d_query_latent=None)
    mha = randomised(
        kit.attention.MultiHeadAttention(D, H, d_head=5, d_value=DV, causal=True, bias=False), 0
    )
    mha.q_proj.weight.data = mla.q_proj.weight.data
    mha.k_proj.weight.data = mla.k_up.weight.data @ mla.kv_down.weight.data
    mha.v_proj.weight.data = mla.v_up.weight.data @ mla.kv_down.weight.data
    mha.out_proj.weight.data = mla.out_proj.weight.data
    for absorbed in (True, False):
        mla.absorbed = absorbed
        close(mla(x)[0], mha(x)[0])
        close(mla.weights(x), mha.weights(x))


@latent_check
def test_patterns_among_latents_can_be_read_and_patched(kit):
    x = normal(B, N, D)
    for absorbed in (True, False):
        mla = kit.mla(absorbed=absorbed)
        before, state = mla(x)
        values = mla.v_up(state.latent).unflatten(-1, (H, DV)).transpose(1, 2)  # (B, H, N, DV)
        seen, forget = looked_at(mla, "scores", "pattern", "z")
        close(mla(x)[0], before)
        close(seen["pattern"], torch.softmax(seen["scores"], -1))
        close(seen["pattern"], mla.weights(x))
        assert (seen["pattern"].triu(1) == 0).all()
        forget()
        pattern, (seen, forget) = seen["pattern"], looked_at(mla, "z")
        hook = mla.pattern.register_forward_hook(lambda _, __, p: p.flip(1))
        mla(x)
        close(seen["z"], pattern.flip(1) @ values)
        hook.remove()
        hook = mla.scores.register_forward_hook(lambda _, __, s: 0 * s.flip(-1).nan_to_num(0, 0, 0))
        mla(x)
        close(seen["z"], values.mean(2, keepdim=True).expand(B, H, N, DV))
        hook.remove()
        forget()
        close(mla(x)[0], before, atol=0)


@latent_check
def test_the_form_with_fewer_operations_is_taken(kit):
    mla = kit.mla()
    x = normal(1, 40, D)
    chosen = []
    mla._absorbed, absorbed = (lambda *a: chosen.append(True) or absorbed(*a)), mla._absorbed
    mla._naive, naive = (lambda *a: chosen.append(False) or naive(*a)), mla._naive
    _, state = mla(x[:, :-1])
    mla(x[:, -1:], state)
    assert chosen == [False, True]


@latent_check
def test_sequences_can_be_picked_out_of_a_latent_state(kit):
    x, rows = normal(B, N, D), torch.tensor([1, 1, 0])
    mla, mask = kit.mla(), padding_mask([N, 4])
    whole, _ = mla(x, mask=mask)
    _, state = mla(x[:, :5], mask=mask[..., :5])
    y, _ = mla(x[rows, 5:], state.select(rows), mask=mask[rows][..., 5:])
    close(y, whole[rows, 5:])
