"""Rollout against a sum over all paths and a network's Jacobian, flow against cuts and programs.

A check is `check(kit)`, with `kit` the module, or a copy of it with a planted bug.
"""

import itertools
import math

import pytest
import scipy.optimize
import torch

import tfbook.interpret.flow
from tfbook.interpret.capturing import patterns as patterns_of
from tfbook.models import FFN, Attention, Layer, TransformerConfig, build

DOUBLE = torch.float64
CHECKS = {}


@pytest.fixture
def kit():
    return tfbook.interpret.flow


def check(run):
    CHECKS[run.__name__] = run
    return run


def drawn(*shape, seed=0, causal=False):
    scores = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    if causal:
        scores = scores.masked_fill(torch.ones(shape[-2:]).triu(1).bool(), -math.inf)
    return scores.softmax(-1)


def equal(one, other, atol=1e-12):
    other = torch.as_tensor(other, dtype=one.dtype).expand(one.shape)
    torch.testing.assert_close(one, other, atol=atol, rtol=0.0)


def steps_of(patterns, join=lambda heads: sum(heads) / len(heads)):
    """Each layer's shares as nested lists: heads joined, the row itself added, made to sum to 1."""
    found = []
    for layer in patterns.tolist():
        n = len(layer[0])
        rows = []
        for i in range(n):
            row = [join([head[i][j] for head in layer]) + (i == j) for j in range(n)]
            rows.append([share / sum(row) for share in row])
        found.append(rows)
    return found


# Rollout ------------------------------------------------------------------------------------------


@check
def test_rollout_is_the_sum_over_all_paths(kit):
    n, joins = 3, {"mean": lambda heads: sum(heads) / len(heads), "max": max, "min": min}
    patterns = drawn(4, 2, n, n)
    for heads, join in joins.items():
        steps = steps_of(patterns, join)
        wanted = torch.zeros(n, n, dtype=DOUBLE)
        for path in itertools.product(range(n), repeat=5):  # rows before layer 0, behind each
            share = math.prod(steps[low][path[low + 1]][path[low]] for low in range(4))
            wanted[path[4], path[0]] += share
        equal(kit.rollout(patterns, heads=heads), wanted)


@check
def test_rollout_is_the_jacobian_of_a_network_of_patterns(kit):
    """Layers that only mix, x ← ½ x + ½ A x, without values, norms or feed-forward parts."""
    patterns = drawn(5, 3, 6, 6, causal=True)

    def network(x):
        for layer in patterns.mean(1):
            x = (x + layer @ x) / 2
        return x

    jacobian = torch.autograd.functional.jacobian(network, torch.randn(6, dtype=DOUBLE))
    equal(kit.rollout(patterns), jacobian)


@check
def test_twelve_layers_still_share_out_one_whole(kit):
    """Without the renormalisation rows would sum to 2 to the 12th, 4096."""
    patterns = drawn(12, 4, 5, 5)
    equal(kit.rollout(patterns).sum(-1), 1)
    unnormalised = patterns.mean(1) + torch.eye(5, dtype=DOUBLE)
    assert float(torch.linalg.multi_dot(list(unnormalised)).sum(-1)[0]) == pytest.approx(4096)
    for heads in ("max", "min"):
        equal(kit.rollout(patterns, heads=heads).sum(-1), 1)


@check
def test_later_layers_stand_on_the_left(kit):
    """Layer 0 brings token 0 to row 1, layer 1 brings row 1 to row 2: so token 0 is in row 2."""
    first, second = torch.eye(3, dtype=DOUBLE), torch.eye(3, dtype=DOUBLE)
    first[1] = torch.tensor([1.0, 0.0, 0.0])
    second[2] = torch.tensor([0.0, 1.0, 0.0])
    equal(kit.rollout(torch.stack([first, second])[:, None])[2], [0.25, 0.25, 0.5])
    equal(kit.rollout(torch.stack([second, first])[:, None])[2], [0.0, 0.5, 0.5])


@check
def test_every_layer_is_that_of_the_layers_below(kit):
    patterns = drawn(4, 2, 3, 5, 5)  # layers, sequences, heads
    found = kit.rollout(patterns, every=True)
    assert found.shape == (4, 2, 5, 5)
    for layer in range(4):
        equal(found[layer], kit.rollout(patterns[: layer + 1]))
        for b in range(2):
            equal(found[layer, b], kit.rollout(patterns[: layer + 1, b]))


@check
def test_nobody_sees_the_future_and_names_do_not_matter(kit):
    patterns = drawn(6, 2, 7, 7, causal=True)
    equal(kit.rollout(patterns).triu(1), 0)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    moved = patterns[..., order, :][..., order]
    equal(kit.rollout(moved), kit.rollout(patterns)[order][:, order])
    equal(kit.rollout(torch.eye(4, dtype=DOUBLE).expand(3, 2, 4, 4)), torch.eye(4, dtype=DOUBLE))


@check
def test_rows_of_zeros_stay_where_they_are(kit):
    patterns = drawn(3, 2, 4, 4)
    patterns[:, :, 1] = 0
    equal(kit.rollout(patterns)[1], [0, 1, 0, 0])
    equal(kit.rollout(patterns).sum(-1), 1)


def test_a_model_rolls_out(kit):
    layers = [Layer(Attention(2), FFN(12))] * 3
    model = build(TransformerConfig(11, 8, decoder=layers)).eval()
    found = kit.rollout(patterns_of(model, torch.randint(11, (2, 6))))
    assert found.shape == (2, 6, 6)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 6))


# Flow ---------------------------------------------------------------------------------------------


@check
def test_flow_is_the_narrowest_cut(kit):
    """By the theorem of max-flow and min-cut: all 2⁷ ways to part a network of 9 rows."""
    n, patterns = 3, drawn(2, 2, 3, 3, seed=5)
    steps = steps_of(patterns)
    pipes = {
        ((low, j), (low + 1, i)): steps[low][i][j]
        for low, i, j in itertools.product(range(2), range(n), range(n))
    }
    rows = list(itertools.product(range(3), range(n)))
    for token in range(n):
        found = kit.attention_flow(patterns, token)
        for source in range(n):
            ends = ((0, source), (2, token))
            rest = [row for row in rows if row not in ends]
            cuts = []
            for chosen in itertools.product((False, True), repeat=len(rest)):
                side = {ends[0], *itertools.compress(rest, chosen)}
                cuts.append(sum(c for (a, b), c in pipes.items() if a in side and b not in side))
            equal(found[source], min(cuts), atol=1e-9)


@check
def test_flow_is_the_best_linear_program(kit):
    n_layers, n, token = 4, 4, 3
    patterns = drawn(n_layers, 2, n, n, seed=2, causal=True)
    steps, found = steps_of(patterns), kit.attention_flow(patterns, token)
    edges = [(low, i, j) for low, i, j in itertools.product(range(n_layers), range(n), range(n))]
    for source in range(n):
        inner = [(low, i) for low in range(n_layers + 1) for i in range(n)]
        inner = [row for row in inner if row not in ((0, source), (n_layers, token))]
        keep = [[((low + 1, i) == row) - ((low, j) == row) for low, i, j in edges] for row in inner]
        gain = [-float((low + 1, i) == (n_layers, token)) for low, i, j in edges]
        best = scipy.optimize.linprog(
            gain,
            A_eq=keep,
            b_eq=[0.0] * len(inner),
            bounds=[(0, steps[low][i][j]) for low, i, j in edges],
        )
        equal(found[source], -best.fun, atol=1e-9)


@check
def test_flow_is_at_least_rollout_and_at_most_one(kit):
    """What rollout sends is a flow that fits; what arrives comes through pipes of width 1."""
    patterns = drawn(3, 2, 6, 6, seed=3, causal=True)
    shares = kit.rollout(patterns)
    for token in (0, 3, 5):
        found = kit.attention_flow(patterns, token)
        assert bool((found >= shares[token] - 1e-12).all()) and float(found.max()) <= 1 + 1e-12
        assert found[token + 1 :].tolist() == [0.0] * (5 - token)
    one = kit.attention_flow(patterns[:1], 4)
    equal(one, kit.rollout(patterns[:1])[4])


def test_flow_and_rollout_can_disagree(kit):
    """One path of two halves: rollout multiplies them, flow takes the narrower one."""
    back = torch.eye(3).roll(-1, 1).tril()
    back[0, 0] = 1.0
    patterns = back.expand(2, 1, 3, 3)
    equal(kit.rollout(patterns)[2], [0.25, 0.5, 0.25])
    equal(kit.attention_flow(patterns, 2), [0.5, 1.0, 0.5])


@pytest.mark.untyped
def test_what_are_no_patterns_is_refused(kit):
    good = drawn(2, 3, 4, 4)
    for call in (kit.rollout, lambda patterns: kit.attention_flow(patterns, 0)):
        for wrong, error, words in (
            (good[..., :3], ValueError, r"square.*\(2, 3, 4, 3\)"),
            (good[:0], ValueError, "not be empty|hold something"),
            (2 * good, ValueError, "rows that sum to 1"),
            (-good, ValueError, "not negative"),
            (good * math.nan, ValueError, "rows that sum to 1"),
            (good.long(), TypeError, "floating-point"),
            ([good], TypeError, "must be a tensor"),
        ):
            with pytest.raises(error, match=words):
                call(wrong)
    with pytest.raises(ValueError, match="at least 4 dimensions"):
        kit.rollout(good[0])
    with pytest.raises(ValueError, match="at least 3 dimensions"):
        kit.with_residual(good[0, 0])
    with pytest.raises(ValueError, match=r"of a batch take one, patterns\[:, i\]"):
        kit.attention_flow(good[:, None], 0)
    for token, error in ((4, ValueError), (-1, ValueError), (0.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="token"):
            kit.attention_flow(good, token)
    for call in (
        kit.rollout,
        kit.with_residual,
        lambda p, heads: kit.attention_flow(p, 0, heads=heads),
    ):
        with pytest.raises(ValueError, match="heads must be one of mean, max, min, got 'median'"):
            call(good, heads="median")
    with pytest.raises(TypeError, match="every"):
        kit.rollout(good, every=1)
