"""The figures of mixers: who sees whom, which expert, a recurrence as a tree, a state's writes."""

import functools
import json
import math
import re
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbook.attention import causal_mask
from tfbook.blocks import load_balancing_loss, route, router_z_loss
from tfbook.efficient import hops_needed, reach, strided_mask, window_mask
from tfbook.recurrent import SCANS, delta_recurrent, scan_tree
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _delta, _routing, _scan, _sparsity
from tfbook.teaching.explorables._chance import uniforms

X, double = explorables, functools.partial(torch.tensor, dtype=torch.double)
NAMES = ("delta_rule", "expert_routing", "scan_tree", "sparsity_designer")
near = pytest.approx


@pytest.mark.parametrize("name", NAMES)
def test_what_a_cell_stores_carries_all_that_the_figure_needs(name):
    make = getattr(X, name)
    figure = make()
    bundle = figure._repr_mimebundle_()
    assert bundle == make()._repr_mimebundle_() and bundle["text/plain"] == repr(figure)
    payload = re.search(r'json">(.*?)</script>', bundle["text/html"], flags=re.S)[1]
    payload = json.loads(payload)
    assert payload.pop("data") == json.loads(json.dumps(figure.data))
    assert payload == figure._now()
    assert max(map(len, repr(figure).splitlines())) <= 88
    assert len(bundle["text/html"]) < 4000  # of each, in every notebook that shows it
    for key, value in payload.items():
        setattr(figure, key, value)


# ---------------------------------------------------------------------- sparsity_designer


def mask_of(figure):
    rows = torch.zeros(figure.n, figure.n, dtype=torch.bool)
    for i, keys in enumerate(figure.rows):
        rows[i, keys] = True
    return rows


PATTERNS = {
    "full": lambda n: causal_mask(n),
    "window": lambda n: window_mask(n, window=4, causal=True),
    "strided": lambda n: strided_mask(n, stride=6),
    "longformer": lambda n: window_mask(n, window=3, n_global=1),
    "streaming": lambda n: window_mask(n, window=5, sinks=1, causal=True),
}


@pytest.mark.parametrize("n", [4, 31, 64])
@pytest.mark.parametrize("name", PATTERNS)
def test_presets_are_the_packages_patterns(name, n):
    figure = X.sparsity_designer(name, n=n, answer=1)
    mask = PATTERNS[name](n)
    assert torch.equal(mask_of(figure), mask)
    assert figure.preset == name and figure.kept == mask.sum()


def test_bigbird_has_its_window_its_globals_and_what_was_drawn():
    figure = X.sparsity_designer("bigbird", n=40, seed=7)
    drawn, rest = uniforms(7, 160), window_mask(40, window=2, n_global=2)
    for i in range(2, 40):
        rest[i, [int(40 * u) for u in drawn[4 * i : 4 * i + 2]]] = True
    assert torch.equal(mask_of(figure), rest)
    assert rest.sum() > window_mask(40, window=2, n_global=2).sum() + 50
    figure.seed = 8
    assert not torch.equal(mask_of(figure), rest)


RULES = st.fixed_dictionaries({
    "n": st.integers(4, 24),
    "window": st.one_of(st.integers(1, 6), st.just("all")),
    "dilation": st.integers(1, 4),
    "stride": st.sampled_from([0, 2, 3, 5]),
    "block": st.sampled_from([0, 2, 3, 7]),
    "global_tokens": st.integers(0, 3),
    "sinks": st.integers(0, 3),
    "random_keys": st.integers(0, 4),
    "causal": st.booleans(),
    "layers": st.integers(1, 8),
    "seed": st.integers(0, 9999),
})  # fmt: skip


def sees(i, j, c, chance):
    """One cell of the pattern, asked for by itself."""
    last = i if c["causal"] else c["n"] - 1
    if j > last:
        return False
    gap = abs(i - j)
    full = c["window"] == "all"
    near_it = full or (gap % c["dilation"] == 0 and gap < c["window"] * c["dilation"])
    strided = c["stride"] and gap % c["stride"] == 0
    blocked = c["block"] and i // c["block"] == j // c["block"]
    drawn = [int(u * (last + 1)) for u in chance[4 * i : 4 * i + c["random_keys"]]]
    for_all = j < max(c["sinks"], c["global_tokens"]) or i < c["global_tokens"]
    return bool(i == j or near_it or strided or blocked or for_all or j in drawn)


@settings(max_examples=20)
@given(RULES)
def test_any_pattern_is_what_a_plain_loop_says(c):
    figure = X.sparsity_designer(answer=0, length=8192, cell=128, **c)
    n, chance = c["n"], uniforms(c["seed"], 4 * c["n"])
    mask = torch.tensor([[sees(i, j, c, chance) for j in range(n)] for i in range(n)])
    assert torch.equal(mask_of(figure), mask)
    assert figure.kept == mask.sum() and figure.share == near(mask.double().mean().item())
    assert figure.all_layers == hops_needed(mask, causal=c["causal"])
    assert figure.reached == reach(mask, c["layers"]).sum()
    for j in (0, n // 2, n - 1):
        figure.answer = j
        hops = [h for h in range(n + 1) if reach(mask, h)[n - 1, j]]
        assert figure.answer_layers == (hops[0] if hops else None)
    assert figure.first_layers == figure.links["first"]
    assert ("future" in figure.links) == (not c["causal"])


@settings(max_examples=30)
@given(RULES)
def test_pairs_are_counted_without_a_list_of_them(c):
    chance = uniforms(c["seed"], 4 * 200)
    for n in (c["n"], 50):
        assert _sparsity.kept(n, c, chance) == sum(map(len, _sparsity.rows(n, c, chance)))


def test_a_real_length_costs_what_its_blocks_cost():
    figure = X.sparsity_designer("full", length=8192, cell=128)
    blocks = 64 * 65 // 2
    assert figure.pairs == blocks * 128**2 and figure.real_share == near(blocks / 64**2)
    assert figure.flops == 4 * 64 * figure.pairs and figure.score_bytes == 2 * figure.pairs
    assert figure.growth == near(128 * 129 / (64 * 65))
    figure.window = 4
    assert figure.pairs == window_mask(64, window=4, causal=True).sum() * 128**2


def test_what_grows_with_the_length_and_what_with_its_square():
    growth = {name: X.sparsity_designer(name, length=131_072).growth for name in _sparsity.PRESETS}
    assert growth.pop("full") == near(4, rel=1e-2)
    assert growth.pop("strided") > 3.5  # the same stride at twice the length: as many keys more
    assert all(x == near(2, rel=1e-2) for x in growth.values())


def test_links_that_a_pattern_loses():
    blocks = X.sparsity_designer(window=1, block=8, answer=3)
    assert blocks.answer_layers is None and blocks.all_layers is None
    assert blocks.links == {"previous": 1, "first": None, "middle": None, "answer": None}
    assert "Never met: the first token, one halfway back, the answer." in " ".join(
        repr(blocks).split()
    )
    blocks.sinks = 1
    assert blocks.first_layers == 1 and blocks.answer_layers is None
    blocks.causal, blocks.global_tokens = False, 1
    assert blocks.answer_layers == 2 and blocks.all_layers == 2
    window = X.sparsity_designer(window=4, answer=4)
    assert window.answer_layers == math.ceil((31 - 4) / 3)
    window.n = 4  # the answer stays inside
    assert window.answer_layers == 0 and window.first_layers == 1


# ---------------------------------------------------------------------- expert_routing


def inputs():
    return double([row[2:] for row in _routing.TOKENS])


ROUTERS = st.fixed_dictionaries({
    "turn": st.floats(0, 90), "temperature": st.floats(0.2, 5), "noise": st.sampled_from([0, 0.7]),
    "seed": st.integers(0, 99), "top_k": st.sampled_from([1, 2]), "capacity": st.floats(0.25, 4),
    "balance": st.booleans(), "steps": st.integers(0, 100), "rate": st.floats(0.001, 0.1),
})  # fmt: skip


@settings(max_examples=20)
@given(ROUTERS)
def test_routing_is_the_packages(c):
    made = X.expert_routing(**c)
    figure = SimpleNamespace(**made.results())
    angles = torch.deg2rad(double(c["turn"]) + 90 * torch.arange(4))
    weight = torch.stack([angles.cos(), angles.sin()], dim=1)
    logits = inputs() @ weight.T / c["temperature"]
    found = double(_routing.logits(made._now(), list(_routing.TOKENS)))
    if not c["noise"]:
        torch.testing.assert_close(found, logits, rtol=0, atol=1e-12)
    room = math.ceil(c["capacity"] * c["top_k"] * 24 / 4)
    bias = double(figure.bias)
    expected = route(found, c["top_k"], kind="softmax", bias=bias, capacity=max(1, room))
    assert figure.room == room
    assert figure.chosen == expected.chosen.tolist() and figure.kept == expected.kept.tolist()
    assert figure.load == expected.demand.tolist() and figure.taken == expected.load.tolist()
    assert figure.dropped == expected.dropped and figure.lost == expected.missed.sum()
    assert figure.p == near(expected.scores.mean(0).tolist(), abs=1e-12)
    assert sum(figure.f) == near(1)
    assert figure.balancing_loss == near(load_balancing_loss(expected).item(), abs=1e-12)
    assert figure.z_loss == near(router_z_loss(expected).item(), rel=1e-9)
    assert figure.most == near(4 * max(figure.f))


def test_noise_is_normal_and_of_its_size():
    figure = X.expert_routing(seed=1)
    plain, noisy = (
        double(_routing.logits({**figure._now(), "noise": size}, list(_routing.TOKENS)))
        for size in (0, 2)
    )
    drawn = (noisy - plain) / 2
    assert abs(drawn.mean()) < 4 / 96**0.5
    assert drawn.var().item() == near(1, abs=4 * (2 / 96) ** 0.5)


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_bias_follows_the_sign_rule(top_k):
    figure = X.expert_routing(balance=True, top_k=top_k)
    p = torch.softmax(inputs() @ double([[1, 0], [0, 1], [-1, 0], [0, -1.0]]).T, 1)
    bias = torch.zeros(4).double()
    loads = figure.loads
    for step in range(101):
        load = torch.bincount((p + bias).topk(top_k).indices.flatten(), minlength=4)
        assert loads[step] == load.tolist()
        if step % 20 == 0:
            figure.steps = step
            assert figure.bias == near(bias.tolist(), abs=1e-12)
        bias += 0.01 * torch.sign(6.0 * top_k - load.double())
    assert figure.load == [6 * top_k] * 4  # the last loads are even
    assert figure.most == 1 and figure.balancing_loss == near(1, abs=1e-12)
    figure.balance = False
    assert figure.bias == [0, 0, 0, 0] and figure.load != [6 * top_k] * 4


def test_a_step_too_long_never_settles():
    figure = X.expert_routing(balance=True, rate=0.1)
    tail = figure.loads[-20:]
    assert all(load != [6, 6, 6, 6] for load in tail)
    assert any(before != after for before, after in pairwise(tail))


def test_own_tokens_take_the_place_of_the_sentence():
    tokens = [("<a>", "x", 1, 0), ["b", "y", 0.5, 1], ("c", "x", -1, 0)]
    figure = X.expert_routing(tokens, capacity=4)
    assert figure.chosen == [[0], [1], [2]] and figure.dropped == 0
    assert "A: 1 x. B: 1 y. C: 1 x. D: nothing." in " ".join(repr(figure).split())
    assert "<a>" not in figure._repr_mimebundle_()["text/html"]


def test_sharp_logits_do_not_overflow():
    figure = X.expert_routing([("a", "x", 2.5, 2.5), ("b", "y", -2.5, 0)], temperature=0.1, noise=2)
    assert math.isfinite(figure.z_loss) and math.isfinite(figure.balancing_loss)


# ---------------------------------------------------------------------- scan_tree


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize("method", _scan.LABELS)
def test_every_way_ends_at_the_states_of_the_recurrence(method, n):
    for reset in (0, 3):
        a, b = list(_scan.A[:n]), _scan.B[:n]
        if reset:
            a[reset] = 0
        h, expected = 0.0, []
        for x, y in zip(a, b, strict=True):
            h = x * h + y
            expected.append(h)
        figure = X.scan_tree(method, n=n, level=15, reset=reset)
        assert figure.h == near(expected, abs=1e-12)
        assert figure.levels_done == figure.depth and figure.done == figure.work
        assert [b for _, b in figure.pairs] == figure.h
        rows = [double(x)[None] for x in (a, b)]
        assert figure.h == near(SCANS[method](*rows)[0][0].tolist(), abs=1e-12)


@pytest.mark.parametrize("n", [4, 8, 16])
@pytest.mark.parametrize("method", _scan.LABELS)
def test_levels_are_the_packages_tree(method, n):
    tree = scan_tree(n, method)
    assert [tuple(level) for level in _scan.levels(method, n)] == list(tree.levels)
    figure = X.scan_tree(method, n=n)
    assert (figure.depth, figure.work) == (tree.steps, tree.work)
    for p in (1, 3, 64):
        rounds = sum(math.ceil(len(level) / p) for level in tree.levels)
        account = {"depth": tree.steps, "work": tree.work, "rounds": rounds}
        assert _scan.account(method, n, p) == account
    for level in _scan.levels(method, n):  # no join of a level needs another of it
        places = [t for _, t in level]
        assert len(places) == len(set(places))


@pytest.mark.parametrize("method", _scan.LABELS)
def test_a_level_joins_whole_parts(method):
    """Strings in place of pairs: what is joined in which order can be read off."""
    letters = [[x] for x in "abcdefgh"]
    for joins in _scan.levels(method, 8):
        before = list(letters)
        for s, t in joins:
            letters[t] = before[s] + before[t]
    assert ["".join(x) for x in letters] == ["abcdefgh"[: t + 1] for t in range(8)]


def test_a_level_shows_the_pairs_of_that_level():
    figure = X.scan_tree("hillis_steele", n=4, a=[0.5] * 16, b=[1.0] * 16)
    assert figure.pairs == [[0.5, 1.0]] * 4 and figure.done == 0
    figure.level = 1
    assert figure.pairs == [[0.5, 1.0]] + [[0.25, 1.5]] * 3 and figure.done == 3
    figure.level = 2
    assert figure.pairs[3] == [0.0625, 1.875] and figure.done == figure.work == 5


def test_work_and_depth_at_a_real_length():
    costs = X.scan_tree(length=1024, processors=1).costs
    assert costs["sequential"] == {"depth": 1023, "work": 1023, "rounds": 1023}
    assert costs["hillis_steele"] == {"depth": 10, "work": 9217, "rounds": 9217}
    assert costs["blelloch"] == {"depth": 19, "work": 2036, "rounds": 2036}
    many = X.scan_tree(length=1024, processors=1024).costs
    assert [row["rounds"] for row in many.values()] == [1023, 10, 19]


# ---------------------------------------------------------------------- delta_rule


WRITING = st.fixed_dictionaries({
    "mode": st.sampled_from(_delta.MODES), "first": st.floats(-180, 180),
    "second": st.floats(-180, 180), "query": st.floats(-180, 180), "beta": st.floats(0, 2),
    "alpha": st.floats(0.01, 1), "written": st.integers(1, 4),
})  # fmt: skip


@settings(max_examples=30)
@given(WRITING)
def test_the_state_is_the_packages_delta_rule(c):
    figure = X.delta_rule(**c)
    angles = torch.deg2rad(double([c["first"], c["second"], c["query"]]))
    arrows = torch.stack([angles.cos(), angles.sin()], dim=1)
    writes = _delta.WRITES[: c["written"]]
    k = arrows[[key for key, _ in writes]]
    v = double([value for _, value in writes])
    fades = math.log(c["alpha"]) if c["mode"] in ("decay", "gated") else 0.0
    n = len(writes)
    if c["mode"] in ("delta", "gated"):
        beta, decay = double([c["beta"]] * n), double([fades] * n)
        state = delta_recurrent(k, k, v, beta, log_decay=decay)[1]
    else:  # Σ_t α^(n − t) k_tᵀ v_t, all at once
        state = (k * torch.exp(fades * torch.arange(n - 1, -1, -1).double())[:, None]).T @ v
    torch.testing.assert_close(double(figure.state), state, rtol=0, atol=1e-9)
    assert figure.read == near((arrows[2] @ state).tolist(), abs=1e-9)
    for i in range(min(2, n)):
        last = double([value for key, value in writes if key == i][-1])
        assert figure.recall_error[i] == near((arrows[i] @ state - last).norm().item(), abs=1e-9)
    step = figure.last_write
    for i in (0, 1):
        for j in (0, 1):
            parts = step["left"][i][j] + step["erased"][i][j] + step["added"][i][j]
            assert parts == near(step["after"][i][j], abs=1e-12)


@settings(max_examples=30)
@given(st.floats(-180, 180), st.floats(-180, 180))
def test_errors_by_the_angle_in_closed_form(first, second):
    figure = X.delta_rule(first=first, second=second, alpha=0.5, written=0)
    cos = math.cos(math.radians(first - second))
    (x, y), (u, v) = (value for _, value in _delta.WRITES[:2])
    assert figure.between == near(math.degrees(math.acos(max(-1, min(1, cos)))), abs=1e-5)
    # What the second write leaves of the first value, and puts in its place.
    first_errors = {
        "linear": abs(cos) * math.hypot(u, v),
        "decay": math.hypot(cos * u - 0.5 * x, cos * v - 0.5 * y),
        "delta": abs(cos) * math.hypot(u - cos * x, v - cos * y),
        "gated": math.hypot(
            cos * u - x * (0.5 + 0.5 * cos**2), cos * v - y * (0.5 + 0.5 * cos**2)
        ),
    }  # fmt: skip
    linear = abs(cos) * math.hypot(x, y)
    second_errors = {"linear": linear, "decay": linear / 2}
    for mode, (one, two) in figure.errors.items():
        assert one == near(first_errors[mode], abs=1e-9)
        assert two == near(second_errors.get(mode, 0), abs=1e-9)


def test_only_the_delta_rule_replaces_a_value():
    value = [0.5, -1.0]
    for mode, replaced in (("linear", False), ("delta", True), ("gated", True), ("decay", False)):
        figure = X.delta_rule(mode, first=0, second=90, written=3)
        assert (figure.recall_error[0] < 1e-12) == replaced
        if mode == "linear":  # both values of the first key at once
            assert figure.recall[0] == near([1.0 + 0.5, 0.5 - 1.0])
            assert figure.recall_error[0] == near(math.hypot(1.0, 0.5))
        elif replaced:
            assert figure.recall[0] == near(value)


def test_nothing_is_read_before_it_is_written():
    figure = X.delta_rule(written=0)
    assert figure.state == [[0, 0], [0, 0]] and figure.read == [0, 0]
    assert figure.recall_error == [None, None] and figure.last_write is None
    figure.written = 1
    assert figure.recall_error[0] == near(0, abs=1e-12) and figure.recall_error[1] is None


# ---------------------------------------------------------------------- bad input

BAD = [
    (lambda: X.sparsity_designer("sparse"), ValueError, "preset must be one of full, window"),
    (lambda: X.sparsity_designer(3), ValueError, "preset must be one of full, window"),
    (lambda: X.sparsity_designer(n=65), ValueError, "n must be between 4 and 64, got 65"),
    (lambda: X.sparsity_designer(n=True), TypeError, "n must be a whole number, got bool"),
    (lambda: X.sparsity_designer(n=8, answer=8), ValueError, "answer must be below n = 8, got 8"),
    (lambda: X.sparsity_designer(window="some"), ValueError, 'window must be "all" or 1 to 64'),
    (lambda: X.sparsity_designer(window=0), ValueError, "window must be between 1 and 64, got 0"),
    (lambda: X.sparsity_designer(window=2.0), TypeError, "window must be a whole number"),
    (lambda: X.sparsity_designer(stride=1), ValueError, "stride must be 0 for none or 2 to 64"),
    (lambda: X.sparsity_designer(block="2"), TypeError, "block must be a whole number, got str"),
    (lambda: X.sparsity_designer(random_keys=5), ValueError, "random_keys must be between 0 and 4"),
    (lambda: X.sparsity_designer(causal=1), TypeError, "causal must be True or False, got int"),
    (lambda: X.sparsity_designer(length=100), ValueError, "length must be between 8192 and 131072"),
    (lambda: X.sparsity_designer(cell=1), ValueError, "cell must be between 16 and 128, got 1"),
    (lambda: X.expert_routing("abc"), TypeError, "tokens must be a list of .*, got str"),
    (lambda: X.expert_routing([("a", "x", 0, 0)]), ValueError, "tokens must be 2 to 40, got 1"),
    (lambda: X.expert_routing(["a", "b"]), TypeError, r"tokens\[0\] must be \(word, kind, x, y\)"),
    (lambda: X.expert_routing([("a", "x", 0)] * 2), ValueError, r"tokens\[0\] .* got 3 items"),
    (lambda: X.expert_routing([("a", 1, 0, 0)] * 2), TypeError, r"tokens\[0\] kind must be a text"),
    (lambda: X.expert_routing([("a", "x", 3, 0)] * 2), ValueError, r"tokens\[0\] x must be betw"),
    (lambda: X.expert_routing(top_k=3), ValueError, "top_k must be between 1 and 2, got 3"),
    (lambda: X.expert_routing(temperature=0), ValueError, "temperature must be between 0.1 and 10"),
    (lambda: X.expert_routing(noise=math.nan), ValueError, "noise must be between 0 and 2"),
    (lambda: X.expert_routing(steps=101), ValueError, "steps must be between 0 and 100, got 101"),
    (lambda: X.expert_routing(balance="yes"), TypeError, "balance must be True or False, got str"),
    (lambda: X.scan_tree("parallel"), ValueError, "method must be one of sequential"),
    (lambda: X.scan_tree(n=6), ValueError, "n must be one of 4, 8, 16, got 6"),
    (lambda: X.scan_tree(n="8"), TypeError, "n must be a whole number, got str"),
    (lambda: X.scan_tree(length=1000), ValueError, "length must be a power of two, got 1000"),
    (lambda: X.scan_tree(processors=0), ValueError, "processors must be between 1 and"),
    (lambda: X.scan_tree(a=[1.0] * 8), ValueError, "a must have 16 numbers, got 8"),
    (lambda: X.scan_tree(b=3), TypeError, "b must be a list of numbers, got int"),
    (lambda: X.delta_rule("hebb"), ValueError, "mode must be one of linear, decay, delta, gated"),
    (lambda: X.delta_rule(first=181), ValueError, "first must be between -180 and 180, got 181"),
    (lambda: X.delta_rule(beta=-0.1), ValueError, "beta must be between 0 and 2, got -0.1"),
    (lambda: X.delta_rule(alpha="1"), TypeError, "alpha must be a number, got str"),
    (lambda: X.delta_rule(written=5), ValueError, "written must be between 0 and 4, got 5"),
    (lambda: X.delta_rule(watched="both"), ValueError, "watched must be one of first, second"),
    (lambda: X.delta_rule(writes=3), TypeError, "writes must be a list of .* got int"),
    (lambda: X.delta_rule(writes=[(0, (1, 1))]), ValueError, "writes must be 2 to 8, got 1"),
    (lambda: X.delta_rule(writes=[1, 2]), TypeError, r"writes\[0\] must be .* got int"),
    (lambda: X.delta_rule(writes=[(0, (1, 1))] * 2), ValueError, r"writes\[1\] key must be 1, got"),
    (lambda: X.delta_rule(writes=[(0, 1), (1, 1)]), TypeError, r"writes\[0\] value must be a list"),
    (lambda: X.delta_rule(writes=[(0, (3, 1)), (1, (1, 1))]), ValueError, r"writes\[0\] value"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[m for *_, m in BAD])
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()
