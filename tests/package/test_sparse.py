"""Sparse patterns, and the functions that compute no more than a pattern allows.

What is allowed stands here once more as one comparison for each pair of a place and a key. The
checks are functions of a kit, the modules' names, so that planted bugs go through them too.
"""

import functools
import itertools
import json
import types

import pytest
import torch
from attention_properties import DOUBLE, Case, close, gradients, weights_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import peak_memory
from tfbook.attention import VARIANTS, MultiHeadAttention, attend, band_mask, block_mask
from tfbook.efficient import blocks, patterns, windows
from tfbook.generation import generate
from tfbook.models import FFN, Attention, Layer, Norm, Rotary, TransformerConfig, build


def kit_of(*modules):
    names = {name: getattr(module, name) for module in modules for name in module.__all__}
    return types.SimpleNamespace(**names, join_spans=modules[1].join_spans)


KIT = kit_of(patterns, windows, blocks)
SIZES = [(1, 9), (13, 13), (5, 22), (22, 5)]
CHECKS = {}


def checks(run):
    CHECKS[run.__name__] = run
    return run


# The patterns, pair by pair: p is the place of a query among the keys.


def pairwise(allowed, n, m, causal):
    """Make a mask of a comparison of a place and a key."""
    rows = [
        [allowed(p, j) and (j <= p or not causal) for j in range(m)]
        for p in (i + m - n for i in range(n))
    ]
    return torch.tensor(rows, dtype=torch.bool).reshape(n, m)


def in_window(p, j, window=1, dilation=1, n_global=0, sinks=0, rows=None):
    near = j in range(p - (window - 1) * dilation, p + window * dilation, dilation)
    return near or j < n_global or j < sinks or 0 <= p < n_global


def in_stride(p, j, stride):
    """As in section 4.2 of the paper: A⁽¹⁾ = {t, …, i} with t = max(0, i − l), A⁽²⁾ by mod l."""
    return abs(p - j) <= stride or (p - j) % stride == 0


def in_fixed(p, j, stride, summaries):
    return p // stride == j // stride or j % stride in range(stride - summaries, stride)


def in_layout(p, j, layout, block):
    return bool(layout[max(p, 0) // block][j // block])


LAYOUT = (torch.arange(64).reshape(8, 8) * 5 % 7 < 3).tolist()
GLOBAL = {"n_global": 2, "sinks": 4}
WINDOWS = [
    {"window": 1},
    {"window": 4},
    {"window": 3, "sinks": 2},
    {"window": 4, "n_global": 2},
    {"window": 2, **GLOBAL, "rows": 128},
]


def cases(kit):
    """Yield functions with their choices, and the mask each must amount to, for all sizes."""
    for (n, m), causal in itertools.product(SIZES, (False, True)):
        form = functools.partial(pairwise, n=n, m=m, causal=causal)

        def case(name, allowed, n=n, m=m, causal=causal, form=form, **options):
            pattern = form(lambda p, j: allowed(p, j, **options))
            fn = functools.partial(getattr(kit, name), causal=causal, **options)
            return Case(n=n, m=m), fn, pattern

        for chosen in WINDOWS:
            yield case("attend_window", in_window, **({"rows": 4} | chosen))
        for dilation in (3, 30):
            yield case("attend_dilated", in_window, window=3, dilation=dilation)
        for stride in (4, 30):
            yield case("attend_strided", in_stride, stride=stride)
        yield case("attend_blocks", in_layout, layout=LAYOUT, block=3)


@checks
def every_allowed_key_has_weight_and_no_other_one(kit):
    for case, fn, pattern in cases(kit):
        q, k, _ = case.qkv()
        weights = weights_of(fn, q, k)
        assert torch.equal(weights > 0, pattern.expand_as(weights)), (case, fn)
        close(weights.sum(-1), pattern.any(-1).to(DOUBLE).expand(weights.shape[:-1]))


@checks
def a_query_that_prefers_nothing_weighs_what_it_sees_alike(kit):
    for case, fn, pattern in cases(kit):
        q, k, _ = case.qkv()
        wanted = pattern.to(DOUBLE) / pattern.sum(-1, keepdim=True).clamp(min=1)
        close(weights_of(fn, 0 * q, k), wanted.expand(2, -1, -1))


@checks
def weights_follow_mask_and_bias(kit):
    """Weights multiply by exp(bias), masked ones vanish, and what is left sums to 1."""
    for case, fn, _ in cases(kit):
        q, k, _ = case.qkv()
        given = [
            (case.chance(2, 1, case.m), case.normal(case.n, case.m)),
            (case.chance(case.n, 1), case.normal(case.m)),
        ]
        plain = weights_of(fn, q, k)
        for mask, bias in given:
            wanted = plain * bias.exp() * mask
            wanted = wanted / wanted.sum(-1, keepdim=True).clamp(min=1e-300)
            close(weights_of(fn, q, k, mask=mask, bias=bias), wanted)


@checks
def values_and_slopes_are_those_of_the_dense_form(kit):
    for case, fn, pattern in cases(kit):
        q, k, v = case.qkv(grad=True)
        bias = case.normal(case.n, case.m).requires_grad_()
        mask, inputs = case.chance(case.n, case.m, p=0.7), (q, k, v, bias)
        got = fn(q, k, v, mask=mask, bias=bias, scale=0.6)
        wanted = attend(q, k, v, mask=mask & pattern, bias=bias, scale=0.6)
        close(got, wanted)
        probe = case.normal(*got.shape)
        slopes = (torch.autograd.grad(x, inputs, probe) for x in (got, wanted))
        for mine, theirs in zip(*slopes, strict=True):
            close(mine, theirs)


@checks
def the_last_queries_with_all_keys_see_what_they_saw_among_all(kit):
    q, k, v = Case(n=29, m=29).qkv()
    for fn in (
        functools.partial(kit.attend_window, window=4, sinks=2, rows=4),
        functools.partial(kit.attend_dilated, window=3, dilation=4),
        functools.partial(kit.attend_strided, stride=5),
        functools.partial(kit.attend_blocks, layout=torch.ones(8, 8).tril(1) > 0, block=4),
        functools.partial(kit.attend_bigbird, block=3, n_random=2),
    ):
        whole = fn(q, k, v, causal=True)
        for n in range(1, 29, 3):
            close(fn(q[..., -n:, :], k, v, causal=True), whole[..., -n:, :])
        for m in range(1, 29, 5):  # and the first m queries with the keys that were there
            first = [x[..., :m, :] for x in (q, k, v)]
            close(fn(*first, causal=True), whole[..., :m, :])


@checks
def the_slopes_of_the_values_sum_to_what_the_queries_took(kit):
    for case, fn, pattern in cases(kit):
        q, k, v = case.qkv(grad=True)
        (slope,) = gradients(fn(q, k, v), [v])
        close(slope.sum(-2), pattern.any(-1).sum().to(DOUBLE).expand(2, case.e))


@checks
def masks_are_those_of_the_definitions(kit):
    for (n, m), causal in itertools.product(SIZES, (False, True)):
        form, given = functools.partial(pairwise, n=n, m=m, causal=causal), {"causal": causal}
        further = (
            {"window": 3, "dilation": 4},
            {"window": 2, "dilation": 3},
            {"window": 3, **GLOBAL},
        )
        for chosen in (*WINDOWS[:-1], *further):
            wanted = form(lambda p, j, chosen=chosen: in_window(p, j, **chosen))
            assert torch.equal(kit.window_mask(n, m, **chosen, **given), wanted)
            assert kit.window_pairs(n, m, **chosen, **given) == int(wanted.sum())
        for stride in (1, 3, 7):
            wanted = form(lambda p, j, stride=stride: in_stride(p, j, stride))
            heads = [kit.strided_mask(n, m, stride, head=h, **given) for h in ("near", "far")]
            assert torch.equal(kit.strided_mask(n, m, stride, **given), wanted)
            assert torch.equal(heads[0] | heads[1], wanted)
            wanted = form(lambda p, j, stride=stride: in_fixed(p, j, stride, 1 + stride // 4))
            choice = {"summaries": 1 + stride // 4, **given}
            heads = [kit.fixed_mask(n, m, stride, head=h, **choice) for h in ("near", "far")]
            assert torch.equal(kit.fixed_mask(n, m, stride, **choice), wanted)
            assert torch.equal(heads[0] | heads[1], wanted)
        wanted = form(lambda p, j: in_layout(p, j, LAYOUT, 3))
        assert torch.equal(kit.expand_layout(torch.tensor(LAYOUT), 3, n, m, **given), wanted)


@checks
def a_chain_of_looks_is_found_by_following_it(kit):
    for seed in range(5):
        mask = Case(n=11, m=11, seed=seed).chance(11, 11, p=0.15)
        looks = [{i, *mask[i].nonzero().flatten().tolist()} for i in range(11)]
        known, hops = [{i} for i in range(11)], 0
        while True:
            wanted = pairwise(lambda i, j, known=known: j in known[i], 11, 11, False)
            assert torch.equal(kit.reach(mask, hops), wanted)
            if kit.hops_needed(mask) is not None:
                assert wanted.all() == (hops >= kit.hops_needed(mask))
            more = [set().union(*(known[j] for j in looks[i])) for i in range(11)]
            if more == known:
                assert (kit.hops_needed(mask) is None) == (not wanted.all())
                break
            known, hops = more, hops + 1


@checks
def patterns_need_the_layers_that_papers_say(kit):
    n, causal = 64, {"causal": True}
    for mask in (kit.strided_mask(n, stride=8), kit.fixed_mask(n, stride=8)):
        assert kit.hops_needed(mask, **causal) == 2
    assert kit.hops_needed(kit.window_mask(n, window=8, **causal), **causal) == 9  # ⌈63 / 7⌉
    assert kit.hops_needed(kit.window_mask(n, window=8)) == 9
    assert kit.hops_needed(kit.window_mask(n, window=8, n_global=1)) == 2
    sunk = kit.window_mask(n, window=8, sinks=4, **causal)
    assert kit.hops_needed(sunk, **causal) == 9  # a sink is seen by all, but sees nothing later
    assert kit.hops_needed(kit.window_mask(n, window=9, dilation=2)) is None  # even, or odd
    assert kit.hops_needed(block_mask(n, 8)) is None
    assert kit.hops_needed(kit.window_mask(0)) == 0
    drawn = kit.bigbird_layout(n, n_global=0, generator=torch.Generator().manual_seed(0))
    assert kit.hops_needed(drawn) < kit.hops_needed(kit.window_mask(n, window=2)) / 4


@checks
def bigbird_draws_as_many_blocks_as_asked_among_the_unseen(kit):
    for causal in (False, True):
        draw = functools.partial(kit.bigbird_layout, window=2, n_global=2, causal=causal)
        seen = draw(16, n_random=0)
        assert torch.equal(seen, kit.window_mask(16, window=2, n_global=2, causal=causal))
        layout = draw(16, n_random=3, generator=torch.Generator().manual_seed(4))
        assert (layout | ~seen).all() and (not causal or not layout.triu(1).any())
        left = (~seen.tril() if causal else ~seen).tril() if causal else ~seen
        assert torch.equal((layout & ~seen).sum(-1), left.sum(-1).clamp(max=3))
        counts = sum(draw(16, generator=torch.Generator().manual_seed(s)) for s in range(300))
        counts = (counts.int() - 300 * seen.int())[15]  # each unseen block, about equally often
        assert counts[2:14].min() > 0.4 * 300 / 12 and counts[2:14].max() < 1.9 * 300 / 12
    longer = draw(23, n_random=3, generator=torch.Generator().manual_seed(4))
    assert torch.equal(longer[:16, :16], layout)


@checks
def joined_spans_cover_what_the_spans_cover(kit):
    ends = list(itertools.product(range(-2, 8, 3), repeat=2))
    for one, other in itertools.product(ends, repeat=2):
        joined = kit.join_spans([one, other], 6)
        covered = [i for low, high in joined for i in range(low, high)]
        assert covered == [i for i in range(6) if i in range(*one) or i in range(*other)]


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_sparse(check):
    check(KIT)


# Known numbers and relations.


def test_a_causal_window_is_the_band_and_its_global_tokens_are_sinks():
    for n, m in SIZES:
        assert torch.equal(patterns.window_mask(n, m, 4, causal=True), band_mask(n, m, 4))
    one, other = (
        patterns.window_mask(17, window=3, causal=True, **{name: 4})
        for name in ("n_global", "sinks")
    )
    assert torch.equal(one, other)


def test_a_layout_of_own_blocks_is_the_block_mask():
    eye = torch.eye(5, dtype=torch.bool)
    assert torch.equal(patterns.expand_layout(eye, 3, 13), block_mask(13, 3))


def test_the_strided_pattern_of_1024_positions_has_48144_pairs():
    mask = patterns.strided_mask(1024, stride=32)
    by_sets = sum(
        len({*range(max(0, i - 32), i + 1), *range(i % 32, i + 1, 32)}) for i in range(1024)
    )
    assert int(patterns.pairs(mask).sum()) == by_sets == 48144


# What it costs.

FORMS = {
    "window": {"window": 8, "rows": 16},
    "streaming": {"window": 8, "sinks": 3, "rows": 16},
    "longformer": {"window": 8, "n_global": 2, "rows": 16},
    "dilated": {"window": 8, "dilation": 2, "rows": 16},
    "blocks": {"layout": (torch.ones(64, 64).tril(1).triu(-1) > 0), "block": 16},
    "bigbird": {"block": 16, "n_random": 1},
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_with_the_length(name, causal):
    def peak(n, backward):
        inputs = [torch.randn(n, 8, requires_grad=backward) for _ in range(3)]

        def call():
            output = VARIANTS[name].fn(*inputs, causal=causal, **FORMS[name])
            return output.sum().backward() if backward else output

        return peak_memory(call)

    for backward in (False, True):
        assert peak(512, backward) <= 4.3 * peak(128, backward)


def test_memory_of_the_strided_form_grows_with_the_root_times_the_length():
    def peak(n, stride):
        q, k, v = (torch.randn(n, 2, requires_grad=True) for _ in range(3))
        fn = VARIANTS["strided"].fn
        return peak_memory(lambda: fn(q, k, v, stride=stride, causal=True).sum().backward())

    assert peak(1024, 32) <= 8.5 * peak(256, 16)  # 4 · √4


@pytest.mark.parametrize("name", [*FORMS, "strided"])
def test_flops_are_those_of_the_pairs_that_have_weight(name):
    variant = VARIANTS[name]
    options = FORMS.get(name, {"stride": 5})
    for (n, m), causal in itertools.product(SIZES, (False, True)):
        q, k, _ = Case(n=n, m=m, batch=()).qkv()
        count = int((weights_of(variant.fn, q, k, causal=causal, **options) > 0).sum())
        assert variant.flops(n, m, 3, 2, causal=causal, **options) == (6 * count, 4 * count)


@pytest.mark.parametrize("name", ["blocks", "bigbird"])
def test_whole_blocks_cost_what_is_counted(name):
    q, k, v = (torch.randn(1, 1, 128, size) for size in (8, 8, 4))  # v as wide as k is not counted
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        VARIANTS[name].fn(q, k, v, **FORMS[name])
    assert sum(VARIANTS[name].flops(128, 128, 8, 4, **FORMS[name])) == counter.get_total_flops()


def test_a_window_multiplies_at_most_a_tile_more_than_its_pairs():
    q, k, v = (torch.randn(1, 1, 512, size) for size in (8, 8, 4))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        VARIANTS["window"].fn(q, k, v, causal=True, window=64, rows=32)
    pairs = sum(VARIANTS["window"].flops(512, 512, 8, 4, causal=True, window=64))
    assert pairs < counter.get_total_flops() <= pairs + 2 * (8 + 4) * 512 * 32


def errors(window_sizes, n=48, seed=0):
    """Return how far windows of these sizes are from attention to all, largest difference each."""
    q, k, v = Case(n=n, m=n, d=8, e=4, seed=seed).qkv()
    exact = attend(q, k, v, causal=True)
    found = (windows.attend_window(q, k, v, window=w, causal=True) for w in window_sizes)
    return [float((x - exact).square().mean().sqrt()) for x in found]


def test_the_error_falls_to_nothing_as_the_window_grows():
    curve = errors((1, 4, 16, 32, 48))
    assert curve == sorted(curve, reverse=True)
    assert curve[0] > 0.3 and curve[-1] < 1e-12


# Inside of a module and of a model.


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("window", {"window": 3}),
        ("window", {"window": 2, "sinks": 2, "rows": 4}),
        ("dilated", {"window": 3, "dilation": 2}),
        ("blocks", {"layout": tuple(map(tuple, LAYOUT)), "block": 3}),
        ("bigbird", {"block": 3, "window": 1}),
        ("strided", {"stride": 3}),
    ],
)
def test_a_module_with_shared_heads_and_a_state_gives_the_whole(name, options):
    torch.manual_seed(0)
    fn = functools.partial(VARIANTS[name].fn, **options)
    mha = MultiHeadAttention(12, 6, n_kv_heads=2, causal=True, attend=fn).double().eval()
    x = torch.randn(2, 13, 12, dtype=DOUBLE)
    whole, _ = mha(x)
    found, state = [], None
    for piece in x.split([5, 1, 1, 6], 1):
        y, state = mha(piece, state)
        found.append(y)
    close(torch.cat(found, 1), whole)
    padding = (torch.arange(13) >= torch.tensor([[0], [4]]))[:, None]  # (B, 1, N), left
    found, state = [], None
    for piece, kept in zip(x.split([8, 5], 1), padding.split([8, 5], -1), strict=True):
        y, state = mha(piece, state, mask=kept)
        found.append(y)
    close(torch.cat(found, 1), mha(x, mask=padding)[0])
    mha.pattern.register_forward_hook(lambda *_: None)  # now by way of the explicit weights
    close(mha(x)[0], whole)


V = 19


@pytest.fixture(scope="module")
def config():
    parts = [
        Attention(2, position=Rotary(), attend="window", options={"window": 4, "sinks": 1}),
        Attention(4, n_kv_heads=2, attend="dilated", options={"window": 2, "dilation": 3}),
        Attention(2, attend="strided", options={"stride": 3}),
        Attention(2, attend="bigbird", options={"block": 2, "window": 1}),
    ]
    return TransformerConfig(V, 12, decoder=[Layer(x, FFN(17), norm=Norm("rms")) for x in parts])


def test_a_model_with_sparse_layers_learns_and_survives_json(config):
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    torch.manual_seed(0)
    model = build(config)
    assert model.count_parameters() == config.count_parameters()
    ids = torch.arange(24).remainder(V).expand(4, -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(8):
        logits = model(ids[:, :-1])[0]
        losses.append(nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
        optimizer.zero_grad()
        losses[-1].backward()
        assert all(weight.grad is not None for weight in model.parameters())
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_a_model_with_sparse_layers_generates_what_whole_passes_give(config):
    torch.manual_seed(1)
    model = build(config).eval()
    ids = torch.randint(V, (1, 6))
    found = generate(model, ids, max_new_tokens=12).tokens[0]
    for _ in range(12):
        ids = torch.cat([ids, model(ids)[0][:, -1:].argmax(-1)], 1)
    assert list(found)[-12:] == ids[0, 6:].tolist()


def test_the_flops_of_a_config_are_those_of_its_pairs(config):
    few, all_pairs = config, config.replace(attend="sdpa", options=())
    assert few.flops(64) < all_pairs.flops(64)
    one = few.flops(1, past=1000) - few.flops(1, past=500)  # only stride and drawing see farther
    assert one < 0.5 * (all_pairs.flops(1, past=1000) - all_pairs.flops(1, past=500))


# What is refused.

Q = torch.zeros(5, 3)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: windows.attend_window(Q, Q, Q, window=0), ValueError, "window must be .* 1"),
        (lambda: windows.attend_window(Q, Q, Q, window=True), TypeError, "window"),
        (lambda: windows.attend_window(Q, Q, Q, window=2, sinks=-1), ValueError, "sinks"),
        (lambda: windows.attend_window(Q, Q, Q, window=2, n_global=1.5), TypeError, "n_global"),
        (lambda: windows.attend_window(Q, Q, Q, window=2, rows=0), ValueError, "rows"),
        (lambda: windows.attend_window(Q, Q, Q, window=2, mask=Q), TypeError, "mask"),
        (lambda: windows.attend_dilated(Q, Q, Q, window=2, dilation=0), ValueError, "dilation"),
        (lambda: windows.window_pairs(-1, 2, window=2), ValueError, "n must be"),
        (
            lambda: blocks.attend_blocks(Q, Q, Q, layout=Q > 0, block=2),
            ValueError,
            "layout must be square",
        ),
        (
            lambda: blocks.attend_blocks(Q, Q, Q, layout=torch.eye(2), block=3),
            TypeError,
            "layout must be boolean",
        ),
        (
            lambda: blocks.attend_blocks(Q, Q, Q, layout=torch.eye(2) > 0, block=2),
            ValueError,
            "layout must have at least 3 rows",
        ),
        (lambda: blocks.attend_blocks(Q, Q, Q, layout=[[1]], block=5), TypeError, "booleans"),
        (lambda: blocks.attend_blocks(Q, Q, Q, layout=3, block=5), TypeError, "layout"),
        (lambda: blocks.attend_bigbird(Q, Q, Q, seed=-1), ValueError, "seed"),
        (lambda: blocks.attend_bigbird(Q, Q, Q, block=0), ValueError, "block"),
        (lambda: blocks.attend_strided(Q, Q, Q, stride=0), ValueError, "stride"),
        (lambda: patterns.strided_mask(4, stride=2, head="left"), ValueError, "head must be one"),
        (lambda: patterns.fixed_mask(4, stride=2, summaries=3), ValueError, "summaries"),
        (lambda: patterns.reach(torch.ones(2, 3) > 0), ValueError, "mask must be square"),
        (lambda: patterns.pairs(torch.ones(2, 3)), TypeError, "mask must be boolean"),
        (lambda: patterns.bigbird_layout(3, generator=3), TypeError, "generator"),
    ],
)
def test_what_has_no_meaning_is_refused_in_words(call, error, words):
    with pytest.raises(error, match=words):
        call()
