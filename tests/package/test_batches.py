"""Plans of batches, packing, curricula, and loaders that can be taken up anywhere."""

import doctest
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfbook.attention import document_mask
from tfbook.data import (
    Loader,
    Windows,
    augment,
    batches,
    bucketed,
    competence,
    corpora,
    duplicates,
    easiest,
    loading,
    pack,
    pad_batch,
    padding_waste,
    rows,
    seeded,
    shuffled,
    token_budget,
    warm_length,
)
from tfbook.models import FFN, Attention, Layer, Rotary, TransformerConfig, build
from tfbook.training import Checkpointing, causal_loss, fit

LENGTHS = [len(english.split()) for english, _ in corpora.english_french()[:509]]


@pytest.mark.parametrize("module", [corpora, augment, batches, duplicates, loading])
def test_examples_in_the_docstrings_of_the_data_modules(module):
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def gen(seed=3):
    return torch.Generator().manual_seed(seed)


PLANS = {
    "shuffled": lambda lengths, g: shuffled(len(lengths), 7, generator=g),
    "bucketed": lambda lengths, g: bucketed(lengths, 7, pool=5, generator=g),
    "budget": lambda lengths, g: token_budget(lengths, 53, pool=61, generator=g),
}


@pytest.fixture(params=PLANS)
def plan(request):
    return PLANS[request.param]


# Plans


@given(st.lists(st.integers(0, 53), max_size=70), st.integers(0, 99))
def test_every_example_is_in_one_batch(lengths, seed):
    for plan in PLANS.values():
        found = list(itertools.chain(*plan(lengths, gen(seed))))
        assert sorted(found) == list(range(len(lengths)))


def test_no_batch_is_empty_or_too_large(plan):
    for batch in plan(LENGTHS, gen()):
        assert batch
        cost = len(batch) * max(LENGTHS[i] for i in batch)
        assert cost <= 53 if plan is PLANS["budget"] else len(batch) <= 7


def test_the_generator_decides_the_plan(plan):
    assert plan(LENGTHS, gen(3)) == plan(LENGTHS, gen(3))
    assert plan(LENGTHS, gen(3)) != plan(LENGTHS, gen(4))


@pytest.mark.parametrize(
    "plan",
    [
        lambda g: bucketed(LENGTHS, 7, pool=999, generator=g),
        lambda g: token_budget(LENGTHS, 53, pool=999, generator=g),
    ],
)
def test_neither_short_nor_long_batches_come_first(plan):
    """All are sorted together, and then shuffled."""
    means = [sum(LENGTHS[i] for i in batch) / len(batch) for batch in plan(gen())]
    steps = list(zip(means, means[1:], strict=False))
    assert sum(a < b for a, b in steps) > 0.3 * len(steps)
    assert sum(a > b for a, b in steps) > 0.3 * len(steps)


def test_batches_of_like_lengths_pad_less():
    waste = {name: padding_waste(LENGTHS, plan(LENGTHS, gen())) for name, plan in PLANS.items()}
    assert waste["bucketed"] < waste["shuffled"] / 2
    assert waste["budget"] < waste["shuffled"] / 2
    wider = [
        padding_waste(LENGTHS, bucketed(LENGTHS, 7, pool=pool, generator=gen()))
        for pool in (1, 3, 100)
    ]
    assert wider[0] > wider[1] > wider[2]


def test_padding_waste_counts_what_padding_makes():
    sequences = [[5] * n for n in LENGTHS]
    plan = shuffled(len(LENGTHS), 11, generator=gen())
    padding = positions = 0
    for batch in plan:
        ids, _ = pad_batch([sequences[i] for i in batch])
        padding += int((ids == 0).sum())
        positions += ids.numel()
    assert padding_waste(LENGTHS, plan) == pytest.approx(padding / positions)
    assert padding_waste(torch.tensor(LENGTHS), plan) == padding_waste(LENGTHS, plan)
    assert padding_waste([], []) == 0 == padding_waste([0, 0], [[0, 1]])


def test_a_pool_of_one_batch_sorts_nothing_together():
    waste = [
        padding_waste(LENGTHS, bucketed(LENGTHS, 7, pool=1, generator=gen(s))) for s in range(9)
    ]
    plain = [padding_waste(LENGTHS, shuffled(len(LENGTHS), 7, generator=gen(s))) for s in range(9)]
    assert sum(waste) / 9 == pytest.approx(sum(plain) / 9, abs=0.02)


def test_a_budget_is_filled_as_far_as_the_next_example_allows():
    plan = token_budget([3] * 20, 13, generator=gen())
    assert sorted(map(len, plan)) == [4] * 5
    whole = token_budget(LENGTHS, 97, pool=len(LENGTHS), generator=gen())
    means = sum(map(len, whole)) / len(whole)
    assert means > 97 / max(LENGTHS) * 1.5  # short ones go together in larger numbers


def test_a_last_batch_that_is_not_full_may_be_dropped():
    assert sorted(map(len, shuffled(23, 5, generator=gen()))) == [3, 5, 5, 5, 5]
    dropped = shuffled(23, 5, generator=gen(), drop_last=True)
    assert [len(batch) for batch in dropped] == [5] * 4
    assert shuffled(3, 5, drop_last=True) == [] == shuffled(0, 5)
    assert len(shuffled(20, 5, drop_last=True)) == 4


@pytest.mark.untyped
def test_bad_plans_are_refused():
    with pytest.raises(ValueError, match="lengths must be at most max_tokens = 6, got 7"):
        token_budget([3, 7], 6)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        shuffled(3, 0)
    with pytest.raises(ValueError, match="pool must be at least 1"):
        bucketed([1], 2, pool=0)
    with pytest.raises(ValueError, match="a length must be at least 0, got -1"):
        bucketed([2, -1], 2)
    with pytest.raises(TypeError, match="a length must be an integer, got float"):
        padding_waste([2.0], [[0]])
    with pytest.raises(ValueError, match="plan must hold indices below 1, got 1"):
        padding_waste([2], [[1]])
    with pytest.raises(TypeError, match="drop_last must be True or False"):
        shuffled(3, 2, drop_last=1)


# Packing


@given(st.lists(st.lists(st.integers(1, 99), max_size=13), max_size=30))
def test_packing_loses_nothing_and_cuts_nothing(sequences):
    packed = pack(sequences, 13)
    found = []
    for tokens, documents, positions in zip(*packed, strict=True):
        for number in range(int(documents.max()) + 1):
            here = documents == number
            found.append(tokens[here].tolist())
            assert positions[here].tolist() == list(range(int(here.sum())))
        assert (tokens[documents < 0] == 0).all() and (positions[documents < 0] == 0).all()
    assert sorted(found) == sorted(s for s in sequences if s)


def test_rows_are_as_few_as_can_be_where_that_is_known():
    sequences = [[1] * n for n in (7, 6, 5, 5, 3, 2, 1, 1)]  # together 30
    assert len(pack(sequences, 10).tokens) == 3
    assert len(pack([[1] * 4] * 7, 10).tokens) == 4  # two to a row at most


def test_packing_pads_less_than_sorting():
    sequences = [[5] * n for n in LENGTHS]
    packed = pack(sequences, max(LENGTHS))
    waste = (packed.documents < 0).double().mean().item()
    assert waste < 0.05 < padding_waste(LENGTHS, shuffled(len(LENGTHS), 7, generator=gen()))
    best = -(-sum(LENGTHS) // max(LENGTHS))
    assert best <= len(packed.tokens) <= best * 1.05


def test_a_packed_model_computes_what_it_computes_for_each_document_alone():
    torch.manual_seed(0)
    model = (
        build(
            TransformerConfig(31, 12, decoder=[Layer(Attention(2, position=Rotary()), FFN(24))] * 2)
        )
        .double()
        .eval()
    )
    sequences = [torch.randint(1, 31, (n,)).tolist() for n in (7, 5, 3, 2, 11)]
    packed = pack(sequences, 13)
    # The model adds the causal mask. Its rotary positions need not begin anew: they are relative.
    logits, _ = model(packed.tokens, mask=document_mask(packed.documents))
    assert packed.documents.max() >= 1
    for row, documents in enumerate(packed.documents):
        for number in range(int(documents.max()) + 1):
            here = documents == number
            alone, _ = model(packed.tokens[row][here][None])
            torch.testing.assert_close(logits[row][here], alone[0], rtol=1e-9, atol=1e-9)


@pytest.mark.untyped
def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match=r"sequences\[1\] must have at most 3 ids, got 4"):
        pack([[1], [1, 2, 3, 4]], 3)
    with pytest.raises(ValueError, match=r"an id of sequences\[0\] must be at least 0, got -1"):
        pack([[-1]], 3)
    with pytest.raises(ValueError, match="length must be from 1 to"):
        pack([], 0)
    assert pack([], 5).tokens.shape == (0, 5) == pack([[], []], 5).documents.shape


# Curricula


def test_competence_rises_from_its_start_to_one():
    values = [competence(step, 50, start=0.2) for step in range(70)]
    assert values[0] == pytest.approx(0.2)
    assert values == sorted(values)
    assert values[49] < 1 == values[50] == values[69]
    # Its square rises evenly: new examples come in at a falling rate.
    assert values[25] ** 2 == pytest.approx((values[0] ** 2 + 1) / 2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.floats(0.01, 1))
def test_the_easiest_are_none_harder_than_the_rest(difficulty, share):
    chosen = easiest(difficulty, share)
    left = set(range(len(difficulty))) - set(chosen)
    assert len(chosen) == max(1, -int(-share * len(difficulty) // 1))
    if left:
        assert max(difficulty[i] for i in chosen) <= min(difficulty[i] for i in left)


def test_sequences_grow_in_steps_to_their_full_length():
    lengths = [warm_length(step, 97, first=11, last=61, multiple=4) for step in range(120)]
    assert lengths[0] == 11 and lengths == sorted(lengths)
    assert all(length == 11 or length % 4 == 0 for length in lengths[:97])
    assert set(lengths[97:]) == {61}


@pytest.mark.untyped
def test_bad_curricula_are_refused():
    with pytest.raises(ValueError, match="start must be above 0 and at most 1, got 0"):
        competence(1, 5, start=0)
    with pytest.raises(TypeError, match="share must be a number, got str"):
        easiest([1], "all")
    with pytest.raises(ValueError, match="share must be above 0 and at most 1, got 1.5"):
        easiest([1], 1.5)
    with pytest.raises(ValueError, match="at least one example, got none"):
        easiest([], 0.5)
    with pytest.raises(ValueError, match="last must be at least 9, got 8"):
        warm_length(1, 5, first=9, last=8)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        competence(1, 0)


# Loaders


def test_neighbours_have_independent_generators():
    drawn = {(s, n): torch.rand(5, generator=seeded(s, n)) for s in range(4) for n in range(4)}
    for (one, a), (other, b) in itertools.combinations(drawn.items(), 2):
        assert not torch.equal(a, b), (one, other)
    assert torch.equal(drawn[2, 3], torch.rand(5, generator=seeded(2, 3)))


def loader(seed=5, **choices):
    return Loader(range(29), lambda g: shuffled(29, 4, generator=g), seed=seed, **choices)


def endless(source):
    while True:
        yield from source


def test_each_epoch_has_all_examples_in_an_order_of_its_own():
    source = loader()
    # No more than 99 batches, so that a loader without an end fails and does not run for ever.
    epochs = [list(itertools.chain(*itertools.islice(source, 99))) for _ in range(3)]
    assert all(sorted(epoch) == list(range(29)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs == [list(itertools.chain(*again)) for again in [loader()] * 3]
    assert epochs[0] != list(itertools.chain(*loader(seed=6)))


@pytest.mark.parametrize("stop", [0, 1, 7, 8, 9, 16, 21])
def test_a_loader_is_taken_up_with_the_very_next_batch(stop):
    whole = list(itertools.islice(endless(loader()), 25))
    first = endless(source := loader())
    seen = list(itertools.islice(first, stop))
    state = source.state_dict()
    again = loader()
    again.load_state_dict(dict(state))
    assert seen + list(itertools.islice(endless(again), 25 - stop)) == whole
    # and what was looked at in between did not matter
    assert list(itertools.islice(first, 25 - stop)) == whole[stop:]


def test_a_state_is_plain_numbers_and_no_view():
    source = loader()
    state = source.state_dict()
    next(iter(source))
    assert state == {"seed": 5, "examples": 29, "epoch": 0, "next": 0}
    assert source.state_dict()["next"] == 1
    assert len(source) == 8


def test_examples_go_through_collate():
    source = Loader(
        [[1, 2], [3], [4, 5, 6]], lambda g: [[0, 1], [2]], collate=lambda xs: pad_batch(xs)[0]
    )
    assert [batch.tolist() for batch in source] == [[[1, 2], [3, 0]], [[4, 5, 6]]]


@pytest.mark.parametrize("kind", ["windows", "loader"])
def test_a_training_run_goes_on_with_the_batches_it_would_have_seen(kind, tmp_path):
    texts = [[5, 7, 3, 2, 9, 11, 1][:n] for n in (3, 4, 5, 6, 7, 3, 5)]
    lengths = [len(text) for text in texts]

    def run(steps, folder):
        torch.manual_seed(0)
        model = build(
            TransformerConfig(13, 8, decoder=[Layer(Attention(2, position=Rotary()), FFN(16))])
        )
        if kind == "windows":
            source = Windows(torch.arange(101) % 13, 5, batch_size=3, seed=7)
        else:
            source = Loader(
                texts,
                lambda g: bucketed(lengths, 2, pool=2, generator=g),
                collate=lambda chosen: pad_batch(chosen)[0],
                seed=7,
            )
        return fit(
            model,
            source,
            loss=causal_loss,
            optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
            steps=steps,
            checkpointing=None if folder is None else Checkpointing(folder, every=2),
            progress=False,
        ).losses

    whole = run(11, None)
    run(6, tmp_path)
    assert list(run(11, tmp_path)) == list(whole)
    assert len(set(whole)) == 11


@pytest.mark.untyped
def test_a_foreign_state_is_refused():
    source = loader()
    good = source.state_dict()
    for change, message in [
        ({"seed": 6}, "loader with seed 5, got 6"),
        ({"examples": 30}, "loader with examples 29, got 30"),
        ({"next": 8}, "next must be below the 8 batches, got 8"),
        ({"next": -1}, "next must be at least 0"),
        ({"epoch": -1}, "epoch must be at least 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            source.load_state_dict(good | change)
        assert source.state_dict() == good
    for state in ({}, [], None, {"epoch": 1}):
        with pytest.raises(ValueError, match="state must have seed, examples, epoch, next"):
            source.load_state_dict(state)
    with pytest.raises(TypeError, match="epoch must be an integer"):
        source.load_state_dict(good | {"epoch": 1.0})


@pytest.mark.untyped
def test_bad_loaders_are_refused():
    with pytest.raises(ValueError, match="examples must hold at least one"):
        Loader([], lambda g: [])
    with pytest.raises(TypeError, match="plan must be a function, got list"):
        Loader([1], [[0]])
    with pytest.raises(TypeError, match="collate must be a function, got str"):
        Loader([1], lambda g: [[0]], collate="pad")
    with pytest.raises(ValueError, match="seed must be at least 0"):
        Loader([1], lambda g: [[0]], seed=-1)


# Long texts


def test_windows_are_stretches_of_the_text_and_a_function_of_their_number():
    ids = torch.arange(1009, dtype=torch.int16)
    windows = Windows(ids, length=17, batch_size=5, seed=3)
    batch = windows(11)
    assert batch.shape == (5, 18) and batch.dtype == torch.int64
    assert (batch.diff(dim=-1) == 1).all()
    assert torch.equal(batch, Windows(ids, 17, batch_size=5, seed=3)(11))
    assert not torch.equal(batch, windows(12))
    assert not torch.equal(batch, Windows(ids, 17, batch_size=5, seed=4)(11))


def test_windows_begin_everywhere_that_leaves_room():
    windows = Windows(torch.arange(11), length=4, batch_size=499)
    begins = windows(0)[:, 0]
    assert begins.unique().tolist() == [0, 1, 2, 3, 4, 5, 6]
    counts = begins.bincount().double()
    assert ((counts - 499 / 7) ** 2 / (499 / 7)).sum() < 22.5  # χ² with 6 degrees, p > 0.001
    assert torch.equal(Windows(torch.arange(5), 4, batch_size=2)(0)[0], torch.arange(5))


@given(st.integers(1, 9), st.integers(2, 60))
def test_rows_ask_for_each_token_once(length, n):
    if n <= length:
        return
    cut = rows(torch.arange(n), length)
    assert cut.shape == ((n - 1) // length, length + 1)
    assert cut[:, 1:].flatten().tolist() == list(range(1, 1 + len(cut) * length))
    assert torch.equal(cut[:, 0], cut[:, 1] - 1)


@pytest.mark.untyped
@pytest.mark.parametrize("cut", [lambda ids, n: Windows(ids, n, batch_size=2), rows])
def test_texts_that_are_too_short_or_no_texts_are_refused(cut):
    with pytest.raises(ValueError, match=r"at least length \+ 1 = 6 tokens, got shape \(5,\)"):
        cut(torch.arange(5), 5)
    with pytest.raises(ValueError, match=r"got shape \(3, 4\)"):
        cut(torch.zeros(3, 4, dtype=torch.int64), 2)
    with pytest.raises(TypeError, match="ids must be integers, got torch.float32"):
        cut(torch.rand(9), 5)
    with pytest.raises(TypeError, match="ids must be a tensor, got list"):
        cut([1, 2, 3], 2)
