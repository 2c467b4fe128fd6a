"""Statistics of patterns: made-up heads whose numbers are known, loops, and padding that is inert.

A check is `check(kit)`, with `kit` the module, or a copy of it with a planted bug.
"""

import math

import pytest
import scipy.stats
import torch

import tfbook.interpret.statistics
from tfbook.attention import causal_mask

DOUBLE = torch.float64
CHECKS = {}
NAMES = ("attention_distance", "entropy", "mass_first")


@pytest.fixture
def kit():
    return tfbook.interpret.statistics


def check(run):
    CHECKS[run.__name__] = run
    return run


def drawn(*shape, seed=0, causal=False, mask=None):
    """Random patterns; rows without an allowed key are 0."""
    scores = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)
    allowed = torch.ones(shape, dtype=torch.bool)
    if causal:
        allowed = allowed & causal_mask(shape[-2], shape[-1])
    if mask is not None:
        allowed = allowed & mask[:, None, None, :]
    return scores.masked_fill(~allowed, -math.inf).softmax(-1).nan_to_num(0.0)


def equal(one, other, atol=1e-12):
    other = torch.as_tensor(other, dtype=one.dtype).expand(one.shape)
    torch.testing.assert_close(one, other, atol=atol, rtol=0.0)


def all_of(kit, patterns, **given):
    """Every statistic, by name."""
    found = {name: getattr(kit, name)(patterns, **given) for name in NAMES}
    for offset in (-2, -1, 0, 1):
        found[f"at {offset}"] = kit.mass_next_to(patterns, offset, **given)
    return found | {"on": kit.mass_on(patterns, [0, 2], **given)}


def by_hand(weights, tokens, counts):
    """The numbers of one head in one sequence, term by term: (n, m) weights, (m,) tokens."""
    n, m = weights.shape
    first = tokens.tolist().index(True)
    found = {name: [] for name in (*NAMES, "on", *(f"at {offset}" for offset in (-2, -1, 0, 1)))}
    for i in range(n):
        place, row = m - n + i, weights[i].tolist()
        if not (tokens[place] and counts[i] and sum(row) > 0):
            continue
        found["attention_distance"].append(sum(a * abs(place - j) for j, a in enumerate(row)))
        found["entropy"].append(-sum(a * math.log(a) for a in row if a > 0))
        found["mass_first"].append(row[first])
        found["on"].append(row[0] + row[2])
        for offset in (-2, -1, 0, 1):
            there = place + offset
            if 0 <= there < m and tokens[there]:
                found[f"at {offset}"].append(row[there])
    return {name: sum(each) / len(each) for name, each in found.items()}


# Heads that are known -----------------------------------------------------------------------------


@check
def test_heads_made_up_have_the_numbers_they_were_made_for(kit):
    n = 6
    eye = torch.eye(n, dtype=DOUBLE)
    back = eye.roll(-1, 1).tril()  # row i looks at i − 1, and row 0 nowhere
    ahead = eye.roll(1, 1).triu()
    first = torch.zeros(n, n, dtype=DOUBLE)
    first[:, 0] = 1
    heads = torch.stack([eye, back, ahead, first])
    numbers = all_of(kit, heads)
    equal(numbers["at 0"], [1, 0, 0, 1 / n])
    equal(numbers["at -1"], [0, 1, 0, 1 / (n - 1)])
    equal(numbers["at 1"], [0, 0, 1, 0])
    equal(numbers["mass_first"], [1 / n, 1 / (n - 1), 0, 1])
    equal(numbers["attention_distance"], [0, 1, 1, (n - 1) / 2])
    equal(numbers["entropy"], 0)


@check
def test_looking_everywhere_alike_is_known_in_closed_form(kit):
    n = 9
    wide = torch.full((1, n, n), 1 / n, dtype=DOUBLE)
    equal(kit.entropy(wide), math.log(n))
    equal(kit.attention_distance(wide), (n * n - 1) / (3 * n))
    before = torch.ones(1, n, n, dtype=DOUBLE).tril()
    before = before / before.sum(-1, keepdim=True)
    equal(kit.attention_distance(before), (n - 1) / 4)
    equal(kit.entropy(before, each=True), [math.log(i + 1) for i in range(n)])
    equal(kit.mass_next_to(before, -1), sum(1 / (i + 1) for i in range(1, n)) / (n - 1))


@check
def test_entropy_lies_between_its_bounds_and_is_that_of_scipy(kit):
    patterns = drawn(3, 2, 8, 8, causal=True)
    found = kit.entropy(patterns, each=True)
    equal(found, torch.from_numpy(scipy.stats.entropy(patterns.numpy(), axis=-1)))
    allowed = torch.arange(1, 9, dtype=DOUBLE).log()
    assert bool((found >= 0).all()) and bool((found <= allowed + 1e-12).all())
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    equal(kit.entropy(patterns[..., order]), kit.entropy(patterns))


# Queries that do not count ------------------------------------------------------------------------


@check
def test_every_number_is_its_mean_term_by_term(kit):
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 4:] = False
    mask[2, :3] = False
    for n, causal in ((7, False), (7, True), (4, True)):
        use = mask if n == 7 else mask[[0, 0, 2]]  # of the last 4 some are tokens everywhere
        patterns = drawn(3, 2, n, 7, seed=n, causal=causal, mask=use)
        found = all_of(kit, patterns, mask=use)
        for b in range(3):
            for h in range(2):
                wanted = by_hand(patterns[b, h], use[b], [True] * n)
                for name, number in wanted.items():
                    equal(found[name][b, h], number)


@check
def test_padding_on_either_side_changes_nothing(kit):
    alone = drawn(1, 2, 5, 5, causal=True)
    wanted = all_of(kit, alone)
    del wanted["on"]  # which names positions
    for side in (slice(0, 5), slice(3, 8)):
        padded = torch.full((1, 2, 8, 8), 1 / 8, dtype=DOUBLE)  # rows of padding look anywhere
        padded[:, :, side] = 0
        padded[:, :, side, side] = alone
        mask = torch.zeros(1, 8, dtype=torch.bool)
        mask[:, side] = True
        found = all_of(kit, padded, mask=mask)
        for name, numbers in wanted.items():
            equal(found[name], numbers)
        each = kit.entropy(padded, mask=mask, each=True)
        equal(each[:, :, side], kit.entropy(alone, each=True))
        assert int((each != 0).sum()) == 2 * 4  # causal: the first query has no choice


@check
def test_rows_of_zeros_are_not_counted(kit):
    patterns = drawn(1, 2, 6, 6)
    patterns[0, 1, 2:4] = 0
    found = all_of(kit, patterns)
    for h, counts in enumerate(([True] * 6, [True, True, False, False, True, True])):
        wanted = by_hand(patterns[0, h], torch.ones(6, dtype=torch.bool), counts)
        for name, number in wanted.items():
            equal(found[name][0, h], number)
    assert kit.attention_distance(patterns, each=True)[0, 1, 2:4].tolist() == [0, 0]
    patterns[0, 1] = 0
    for call in (kit.attention_distance, kit.entropy, kit.mass_first, kit.head_table):
        with pytest.raises(ValueError, match="leave each head a query to count"):
            call(patterns if call is not kit.head_table else patterns[None])


@check
def test_keys_are_chosen_by_position_or_token(kit):
    patterns = drawn(2, 3, 2, 4, 6, seed=3)  # layers, sequences, heads
    tokens = torch.tensor([[7, 1, 2, 7, 1, 9], [1, 7, 7, 1, 2, 2], [7, 7, 7, 7, 7, 7]])
    found = kit.mass_on(patterns, torch.isin(tokens, torch.tensor([7, 9])))
    for b in range(3):
        chosen = [j for j, token in enumerate(tokens[b].tolist()) if token in (7, 9)]
        equal(found[:, b], kit.mass_on(patterns[:, b], chosen))
        equal(found[:, b], patterns[:, b, :, :, chosen].sum(-1).mean(-1))
    equal(found[:, 2], 1)
    equal(kit.mass_on(patterns, []), 0)
    equal(kit.mass_on(patterns, [3, 3]), kit.mass_on(patterns, [3]))


@check
def test_the_table_counts_every_query_of_a_batch_alike(kit):
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 3:] = False
    patterns = drawn(2 * 3, 4, 7, 7, causal=True, mask=mask.repeat(2, 1)).unflatten(0, (2, 3))
    table = kit.head_table(patterns, mask=mask, sinks=[0])
    assert list(table) == ["distance", "entropy", "self", "previous", "next", "first", "sinks"]
    named = {
        "distance": "attention_distance",
        "entropy": "entropy",
        "self": "at 0",
        "previous": "at -1",
        "next": "at 1",
        "first": "mass_first",
    }
    single = all_of(kit, patterns, mask=mask)
    lengths = torch.tensor([7.0, 3.0, 7.0], dtype=DOUBLE)
    for name, other in named.items():
        assert table[name].shape == (2, 4)
        many = lengths - (1 if name in ("previous", "next") else 0)
        wanted = torch.einsum("lbh,b->lh", single[other], many) / many.sum()
        equal(table[name], wanted)
    equal(table["sinks"], table["first"])
    equal(table["next"], 0)
    one = kit.head_table(torch.ones(1, 1, 1, 1, 1))
    equal(one["previous"], 0)  # there is none, and that is no error here


@check
def test_a_cache_sees_the_last_rows_of_the_whole(kit):
    patterns = drawn(2, 3, 8, 8, causal=True)
    for name, rows in all_of(kit, patterns, each=True).items():
        equal(all_of(kit, patterns[..., 5:, :], each=True)[name], rows[..., 5:])


# Numbers ------------------------------------------------------------------------------------------


@check
def test_entropy_has_a_gradient_where_keys_are_hidden(kit):
    scores = torch.randn(1, 5, 5, dtype=DOUBLE).requires_grad_()

    def total(scores):
        hidden = scores.masked_fill(~causal_mask(5), -math.inf)
        return kit.entropy(hidden.softmax(-1)).sum()

    (gradient,) = torch.autograd.grad(total(scores), scores)
    assert bool(gradient.isfinite().all())
    equal(gradient.triu(1), 0)
    way = torch.randn(1, 5, 5, dtype=DOUBLE)
    step = 1e-6
    with torch.no_grad():
        slope = (total(scores + step * way) - total(scores - step * way)) / (2 * step)
    equal(slope, (gradient * way).sum(), atol=1e-8)


def test_small_dtypes_are_counted_in_float32(kit):
    patterns = drawn(2, 6, 64, causal=True).float()
    for dtype in (torch.bfloat16, torch.float16):
        for name, found in all_of(kit, patterns.to(dtype)).items():
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, all_of(kit, patterns)[name], atol=0.15, rtol=0.02)
    assert kit.weights_of(patterns.double()).dtype == DOUBLE


def test_a_causal_model_has_no_distance_of_its_own(kit):
    """More queries than keys: cross-attention, where entropy and mass have a meaning."""
    patterns = drawn(2, 3, 9, 4)
    equal(kit.entropy(patterns), kit.entropy(patterns, each=True).mean(-1))
    equal(kit.mass_on(patterns, [0, 1, 2, 3]), 1)


@pytest.mark.untyped
def test_what_are_no_patterns_is_refused(kit):
    good = drawn(2, 3, 5, 5)
    for wrong, error, words in (
        (torch.randn(2, 3, 5, 5), ValueError, "weights, not negative"),
        (2 * good, ValueError, "rows that sum to 1 or to 0.*off by 1"),
        (good * math.nan, ValueError, "rows that sum to 1"),
        (good[..., :0], ValueError, "not be empty"),
        (good[0, 0], ValueError, "at least 3 dimensions"),
        (good.long(), TypeError, "floating-point"),
        (good.tolist(), TypeError, "must be a tensor"),
    ):
        for name in NAMES:
            with pytest.raises(error, match=words):
                getattr(kit, name)(wrong)
    tokens = torch.ones(2, 5, dtype=torch.bool)
    for mask, error, words in (
        (tokens.long(), TypeError, "mask must be boolean"),
        (tokens[:, :4], ValueError, r"mask must broadcast to .*\(2, 5\)"),
        (tokens[:1].expand(3, 5), ValueError, "mask must broadcast"),
        ([0, 1], TypeError, "mask must be a tensor"),
        (torch.ones((), dtype=torch.bool), ValueError, "mask must broadcast"),
        (~tokens, ValueError, "a query to count"),
    ):
        with pytest.raises(error, match=words):
            kit.entropy(good, mask=mask)
    with pytest.raises(ValueError, match="with cross-attention set the rows"):
        kit.entropy(good[..., :3] / good[..., :3].sum(-1, keepdim=True), mask=tokens[:, :3])
    for keys, error, words in (
        ([5], ValueError, "position of keys must be from 0 to 4"),
        ([-1], ValueError, "position of keys must be from 0 to 4"),
        (["a"], TypeError, "an integer"),
        (3, TypeError, "keys must be a list"),
        (torch.tensor([0, 1]), TypeError, "keys must be boolean"),
    ):
        with pytest.raises(error, match=words):
            kit.mass_on(good, keys)
    with pytest.raises(ValueError, match=r"\(L, B, H, n, m\)"):
        kit.head_table(good)
    with pytest.raises(TypeError, match="offset"):
        kit.mass_next_to(good, 1.0)
    with pytest.raises(ValueError, match="no token at that place"):
        kit.mass_next_to(good, 2**62)
    with pytest.raises(TypeError, match="each"):
        kit.entropy(good, each=1)
