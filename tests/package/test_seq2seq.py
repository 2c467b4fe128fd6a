"""Encoder and decoder: what each step may see, what padding may change, and that both learn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tfbook.attention import additive_scores, bilinear_scores, masked_softmax
from tfbook.recurrent import Decoder, Encoder, Seq2Seq

KINDS = ("bahdanau", "luong", None)
ATTENTIVE = ("bahdanau", "luong")
B, M, N = 3, 11, 7
SOURCES, TARGETS = 17, 19
D_EMBED, D_HIDDEN = 5, 13
PAD, BOS, EOS = 0, 1, 2
LENGTHS = torch.tensor([11, 5, 1])
SEEDS = st.integers(0, 10**6)


def lively(module, seed=0):
    """Spread all parameters, biases too, so that no gate and no weight stays near its mean."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.6)
    return module.double().eval()


def a_model(kind, seed=0, **options):
    return lively(Seq2Seq(SOURCES, TARGETS, D_EMBED, D_HIDDEN, attention=kind, **options), seed)


def ids(high, *shape, seed=1):
    return torch.randint(3, high, shape, generator=torch.Generator().manual_seed(seed))


def a_batch(seed=1):
    return ids(SOURCES, B, M, seed=seed), LENGTHS, ids(TARGETS, B, N, seed=seed + 1)


def changed_steps(a, b):
    """Which steps of (B, N, ...) differ in any number."""
    return ((a - b).abs() > 1e-9).flatten(2).any(-1).any(0).tolist()


def near(a, b, tolerance=1e-12):
    return torch.allclose(a, b, 0, tolerance)


@pytest.fixture(params=KINDS, ids=str)
def model(request):
    return a_model(request.param)


@pytest.fixture(params=ATTENTIVE)
def attentive(request):
    return a_model(request.param)


# What a step sees


def test_scores_and_weights_have_one_row_for_each_target_token(model):
    logits, weights = model(*a_batch())
    assert logits.shape == (B, N, TARGETS)
    if model.decoder.attention is None:
        assert weights is None
    else:
        assert weights.shape == (B, N, M)


def test_a_target_token_changes_its_own_and_later_scores_only(model):
    source, lengths, target = a_batch()
    logits, _ = model(source, lengths, target)
    for t in range(N):
        other = target.clone()
        other[:, t] = 3 + (other[:, t] - 2) % (TARGETS - 3)
        changed = changed_steps(model(source, lengths, other)[0], logits)
        assert changed == [False] * t + [True] * (N - t)


def test_no_gradient_reaches_a_later_target_token(model):
    source, lengths, target = a_batch()
    memory, state = model.encode(source, lengths)
    y = model.decoder.embedding(target).detach().requires_grad_()
    scored = []
    for y_t in y.unbind(1):
        state, context, _ = model.decoder.step(y_t, state, memory)
        scored.append(model.decoder.readout(y_t, state, context))
    (gradient,) = torch.autograd.grad(scored[3].sum(), y)
    assert (gradient.abs().amax((0, 2)) > 0).tolist() == [True] * 4 + [False] * (N - 4)


def weights_changed_by(kind, t):
    """Which rows of the alignment change with the target token that goes in at step t."""
    model = a_model(kind)
    source, _, target = a_batch()
    lengths = torch.tensor([11, 5, 2])  # with one key there would be nothing to choose
    other = target.clone()
    other[:, t] = 3 + (other[:, t] - 2) % (TARGETS - 3)
    return changed_steps(model(source, lengths, other)[1], model(source, lengths, target)[1])


@pytest.mark.parametrize("t", range(N))
def test_bahdanau_aligns_by_the_state_before_the_step(t):
    """s_{t−1} has not read the token of step t; s_t would have."""
    assert weights_changed_by("bahdanau", t) == [False] * (t + 1) + [True] * (N - t - 1)


@pytest.mark.parametrize("t", range(N))
def test_luong_aligns_by_the_state_after_the_step(t):
    assert weights_changed_by("luong", t) == [False] * t + [True] * (N - t)


def test_bahdanau_weights_are_the_additive_scores_of_the_state_before():
    model = a_model("bahdanau")
    source, lengths, target = a_batch()
    memory, state = model.encode(source, lengths)
    _, weights = model(source, lengths, target)
    decoder = model.decoder
    for t, y in enumerate(decoder.embedding(target).unbind(1)):
        scores = additive_scores(
            state[:, None], memory.values, decoder.query.weight, decoder.key.weight, decoder.energy
        )
        assert near(weights[:, t], masked_softmax(scores, memory.mask)[:, 0])
        context = (weights[:, t, None] @ memory.values)[:, 0]
        state, _ = decoder.cell(torch.cat([y, context], -1), state)


def test_luong_weights_are_the_bilinear_scores_of_the_state_after():
    model = a_model("luong")
    source, lengths, target = a_batch()
    memory, state = model.encode(source, lengths)
    _, weights = model(source, lengths, target)
    for t, y in enumerate(model.decoder.embedding(target).unbind(1)):
        state, _ = model.decoder.cell(y, state)
        scores = bilinear_scores(state[:, None], memory.values, model.decoder.bilinear)
        assert near(weights[:, t], masked_softmax(scores, memory.mask)[:, 0])


def test_weights_are_a_distribution_over_the_real_source_tokens(attentive):
    _, weights = attentive(*a_batch())
    assert bool((weights >= 0).all())
    assert near(weights.sum(-1), torch.ones(B, N, dtype=torch.float64))
    real = torch.arange(M) < LENGTHS[:, None, None]
    assert weights.masked_select(~real.expand_as(weights)).abs().max() == 0
    assert weights.masked_select(real.expand_as(weights)).min() > 0


def test_a_source_of_one_token_gets_all_the_weight(attentive):
    _, weights = attentive(*a_batch())
    assert torch.equal(weights[2, :, 0], torch.ones(N, dtype=torch.float64))


def test_the_context_does_not_depend_on_the_order_of_the_annotations(attentive):
    source, lengths, _ = a_batch()
    memory, state = attentive.encode(source, lengths)
    order = torch.randperm(M, generator=torch.Generator().manual_seed(0))
    turned = memory._replace(
        values=memory.values[:, order], keys=memory.keys[:, order], mask=memory.mask[..., order]
    )
    context, weights = attentive.decoder.align(state, memory)
    context_turned, weights_turned = attentive.decoder.align(state, turned)
    assert near(context, context_turned)
    assert near(weights[:, order], weights_turned)


def test_without_attention_only_the_summary_reaches_the_decoder():
    model = a_model(None)
    source, lengths, target = a_batch()
    memory, state = model.encode(source, lengths)
    other = memory._replace(values=memory.values + 1, keys=memory.keys - 1)
    assert torch.equal(model.decoder(target, state, memory)[0], model(source, lengths, target)[0])
    assert torch.equal(model.decoder(target, state, other)[0], model(source, lengths, target)[0])


def test_without_attention_the_summary_goes_into_every_step():
    model = a_model(None)
    memory, _ = model.encode(*a_batch()[:2])
    same_state = torch.zeros(B, D_HIDDEN, dtype=torch.float64)
    y = model.decoder.embedding(ids(TARGETS, B, seed=3))
    other = memory._replace(summary=memory.summary + 1)
    here, there = (model.decoder.step(y, same_state, m)[0] for m in (memory, other))
    assert (here - there).abs().min() > 1e-9


@pytest.mark.parametrize("kind", ATTENTIVE)
def test_with_attention_the_summary_is_the_first_state_and_nothing_more(kind):
    model = a_model(kind)
    source, lengths, target = a_batch()
    memory, state = model.encode(source, lengths)
    other = memory._replace(summary=memory.summary + 1)
    assert torch.equal(
        model.decoder(target, state, other)[0], model.decoder(target, state, memory)[0]
    )


def test_every_real_source_token_matters_from_the_first_step_on(model):
    source, lengths, target = a_batch()
    logits, _ = model(source, lengths, target)
    for j in range(M):
        other = source.clone()
        other[:, j] = 3 + (other[:, j] - 2) % (SOURCES - 3)
        changed = (model(other, lengths, target)[0] - logits).abs().amax(-1) > 1e-12  # (B, N)
        assert bool(changed.any(-1).eq(j < lengths).all())
        assert bool(changed[0].all())


# Padding, batches, pieces


@given(seed=SEEDS, extra=st.integers(0, 5))
@settings(max_examples=10)
def test_what_lies_behind_the_end_of_a_source_changes_nothing(seed, extra):
    for kind in KINDS:
        model = a_model(kind, seed)
        source, lengths, target = a_batch(seed)
        real = torch.arange(M) < lengths[:, None]
        other = torch.where(real, source, ids(SOURCES, B, M, seed=seed + 7))
        other = torch.cat([other, ids(SOURCES, B, extra, seed=seed + 8)], 1)
        logits, weights = model(source, lengths, target)
        padded, padded_weights = model(other, lengths, target)
        assert near(logits, padded)
        if weights is not None:
            assert near(weights, padded_weights[..., :M])
            assert extra == 0 or padded_weights[..., M:].abs().max() == 0


def test_sentences_of_a_batch_do_not_meet(model):
    source, lengths, target = a_batch()
    logits, _ = model(source, lengths, target)
    for b, length in enumerate(lengths.tolist()):
        alone, _ = model(source[b : b + 1, :length], lengths[b : b + 1], target[b : b + 1])
        assert near(logits[b], alone[0])


def test_given_tokens_all_at_once_or_one_by_one_are_scored_the_same(model):
    source, lengths, target = a_batch()
    logits, weights = model(source, lengths, target)
    memory, state = model.encode(source, lengths)
    for t in range(N):
        y = model.decoder.embedding(target[:, t])
        state, context, row = model.decoder.step(y, state, memory)
        assert near(model.decoder.readout(y, state, context), logits[:, t])
        assert weights is None or near(row, weights[:, t])


def test_the_encoder_reads_from_both_sides():
    encoder = lively(Encoder(SOURCES, D_EMBED, D_HIDDEN))
    source = ids(SOURCES, 1, M)
    annotations, summary = encoder(source, torch.tensor([M]))
    other = source.clone()
    other[0, 4] = 3 + (other[0, 4] - 2) % (SOURCES - 3)
    changed = (encoder(other, torch.tensor([M]))[0] - annotations).abs() > 1e-12  # (1, M, 2H)
    ahead, behind = changed[0].split(D_HIDDEN, dim=-1)
    assert ahead.any(-1).tolist() == [False] * 4 + [True] * (M - 4)
    assert behind.any(-1).tolist() == [True] * 5 + [False] * (M - 5)
    # The summary is what each direction knows at its end.
    assert torch.equal(summary, torch.cat([annotations[:, -1, :D_HIDDEN],
                                           annotations[:, 0, D_HIDDEN:]], -1))  # fmt: skip


# Greedy translation


@given(seed=SEEDS)
@settings(max_examples=10)
def test_a_translation_is_the_best_guess_at_every_step(seed):
    for kind in KINDS:
        model = a_model(kind, seed)
        source, lengths, _ = a_batch(seed)
        written, weights = model.translate(source, lengths, max_len=9)
        start = torch.full((B, 1), BOS)
        logits, forced = model(source, lengths, torch.cat([start, written[:, :-1]], 1))
        logits[..., [PAD, BOS]] = -torch.inf
        ended = (written == EOS).cumsum(1) - (written == EOS).long() > 0  # behind the end token
        assert torch.equal(written, logits.argmax(-1).masked_fill(ended, PAD))
        if weights is not None:
            assert near(weights, forced.masked_fill(ended[..., None], 0.0))


def test_a_translation_ends_with_the_end_token_and_padding():
    model = a_model("bahdanau")
    with torch.no_grad():
        model.decoder.to_scores.bias[EOS] += 2.0
    for seed in range(20):
        written, weights = model.translate(*a_batch(seed)[:2], max_len=9)
        ends = (written == EOS).long()
        assert bool((ends.sum(1) <= 1).all())
        behind = ends.cumsum(1) - ends > 0
        assert torch.equal(written == PAD, behind)
        assert weights[behind].abs().sum() == 0
        assert written.shape[1] == 9 or bool(ends.sum(1).all()) and bool(ends[:, -1].any())


@pytest.mark.parametrize("special", [PAD, BOS])
def test_padding_and_begin_token_are_never_written(model, special):
    with torch.no_grad():
        model.decoder.to_scores.bias[special] = 1e4
        model.decoder.to_scores.bias[EOS] = -1e4
    written, _ = model.translate(*a_batch()[:2], max_len=9)
    assert written.shape == (B, 9) and not bool((written == special).any())


def test_other_special_ids_may_be_chosen():
    model = a_model("luong", pad_id=3, bos_id=4, eos_id=5)
    with torch.no_grad():
        model.decoder.to_scores.bias[5] = 1e4
    written, _ = model.translate(*a_batch()[:2], max_len=9)
    assert written.tolist() == [[5]] * B


def test_translating_ignores_dropout_keeps_the_mode_and_no_graph():
    model = a_model("bahdanau", dropout=0.9).train()
    source, lengths, _ = a_batch()
    one, weights = model.translate(source, lengths, max_len=9)
    two, again = model.translate(source, lengths, max_len=9)
    assert torch.equal(one, two) and torch.equal(weights, again)
    assert model.training and model.decoder.training and not weights.requires_grad
    model.eval().translate(source, lengths, max_len=1)
    assert not model.training


def test_dropout_works_in_training_only():
    model = a_model("bahdanau", dropout=0.5)
    batch = a_batch()
    assert torch.equal(model(*batch)[0], model(*batch)[0])
    model.train()
    assert not torch.equal(model(*batch)[0], model(*batch)[0])


# Learning


def test_every_parameter_gets_a_gradient(model):
    source, lengths, target = a_batch()
    logits, _ = model(source, lengths, target)
    F.cross_entropy(logits.mT, target).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


def test_gradients_agree_with_finite_differences(model):
    source, lengths, target = a_batch()
    memory, state = model.encode(source[:2, :3], torch.tensor([3, 1]))
    parts = [x.detach().requires_grad_() for x in (memory.values, memory.summary)]

    def scored(values, summary):
        memory_, state_ = model.decoder.remember(values, summary, memory.mask)
        return model.decoder(target[:2, :2], state_, memory_)[0]

    assert torch.autograd.gradcheck(scored, parts)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_learns_to_turn_three_tokens_round(kind):
    torch.manual_seed(0)
    model = Seq2Seq(9, 9, 12, 24, attention=kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    lengths = torch.full((32,), 3)

    def loss():
        source = torch.randint(3, 9, (32, 3))
        start, end = torch.full((32, 1), BOS), torch.full((32, 1), EOS)
        out = torch.cat([source.flip(1), end], 1)
        logits, _ = model(source, lengths, torch.cat([start, out[:, :-1]], 1))
        return F.cross_entropy(logits.mT, out)

    for _ in range(150):
        optimizer.zero_grad()
        now = loss()
        now.backward()
        optimizer.step()
    assert now.item() < 0.3  # guessing evenly among six tokens costs 1.3
    source = torch.randint(3, 9, (32, 3))
    written, _ = model.translate(source, lengths, max_len=6)
    right = [row[:4] == [*turned, EOS] for row, turned in
             zip(written.tolist(), source.flip(1).tolist(), strict=True)]  # fmt: skip
    assert sum(right) >= 20


# Bad input


def one(tokens, token):
    """Put a single other id among them."""
    return tokens.index_fill(1, torch.tensor([2]), token)


def test_the_last_id_of_a_vocabulary_is_known():
    MODEL(one(S, SOURCES - 1), L, one(T, TARGETS - 1))


MODEL = Seq2Seq(SOURCES, TARGETS, D_EMBED, D_HIDDEN)
S, L, T = a_batch()
BAD = [
    (lambda: Seq2Seq(0, 9, 5, 7), ValueError, "vocab_size must be at least 1"),
    (lambda: Seq2Seq(9, 9, 5.0, 7), TypeError, "d_embed must be an integer"),
    (lambda: Seq2Seq(9, 9, 5, 7, attention="dot"), ValueError, "'luong', got 'dot'"),
    (
        lambda: Seq2Seq(9, 9, 5, 7, eos_id=9),
        ValueError,
        "eos_id must be below the vocabulary's size, 9",
    ),
    (lambda: Seq2Seq(3, 9, 5, 7, pad_id=4), ValueError, "pad_id must be below .* 3, got 4"),
    (lambda: MODEL(S, L.to("meta"), T), ValueError, "lengths must be on the device of source"),
    (lambda: Decoder(9, 5, 7, 14, attention="Luong"), ValueError, "got 'Luong'"),
    (lambda: MODEL(S.float(), L, T), TypeError, "source must hold integer ids"),
    (lambda: MODEL(S.tolist(), L, T), TypeError, "source must be a tensor, got list"),
    (lambda: MODEL(S[0], L, T), ValueError, r"source must have shape \(B, length\)"),
    (lambda: MODEL(S[:, :0], L, T), ValueError, "length of 1 or more"),
    (lambda: MODEL(S + SOURCES, L, T), ValueError, r"ids from 0 to 16 \(the vocabulary\)"),
    (lambda: MODEL(S, L, T - 20), ValueError, "target_in must hold ids from 0 to 18"),
    (lambda: MODEL(one(S, SOURCES), L, T), ValueError, r"0 to 16 \(the vocabulary\), got 17"),
    (lambda: MODEL(one(S, -1), L, T), ValueError, r"0 to 16 \(the vocabulary\), got -1"),
    (lambda: MODEL(S, L, one(T, TARGETS)), ValueError, r"0 to 18 \(the vocabulary\), got 19"),
    (lambda: MODEL(S, L[:2], T), ValueError, r"lengths must have shape \(B,\) = \(3,\)"),
    (lambda: MODEL(S, L.float(), T), TypeError, "lengths must be integers"),
    (lambda: MODEL(S, L - 1, T), ValueError, "between 1 and M = 11, got 0 to 10"),
    (lambda: MODEL(S, L + 1, T), ValueError, "got 2 to 12"),
    (lambda: MODEL(S, [11, 5, 1], T), TypeError, "lengths must be a tensor, got list"),
    (lambda: MODEL(S, L, T[:2]), ValueError, "equally many sentences, got 3 and 2"),
    (lambda: MODEL.translate(S, L, max_len=0), ValueError, "max_len must be at least 1"),
    (lambda: MODEL.translate(S, L * 2), ValueError, "between 1 and M = 11"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_bad_input_gets_a_clear_error(call, error, message):
    with pytest.raises(error, match=message):
        call()
