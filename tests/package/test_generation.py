"""Generation: its properties, its errors. The properties stand in generation_properties.py."""

import functools

import pytest
import torch
from generation_properties import (
    CHECKS,
    CUTS,
    LENGTH,
    NO_DROPOUT,
    POSITIONS,
    PROMPTS,
    SMALL,
    Kit,
    by_hand,
    ids,
    lively,
    piecewise,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from multihead_properties import close

from tfbook import generation
from tfbook.attention import DynamicCache, LatentAttention, SlidingCache, StaticCache
from tfbook.generation import (
    FirstLayers,
    NGramDraft,
    Sampling,
    TableModel,
    accept_probability,
    beam_search,
    generate,
    perplexity,
    residual_distribution,
    score,
    speculative_generate,
    stream,
)
from tfbook.models import PRESETS, build, preset
from tfbook.recurrent import LSTMCell, Recurrent

KIT = Kit("tfbook")


# Thousands of small calls, where the check of every shape would take most of the time.
MANY = {
    "test_speculation_has_exactly_the_models_distribution",
    "test_speculation_draws_from_the_warped_distribution",
    "test_every_cut_and_every_cache_give_the_whole_with_every_position",
    "test_a_sliding_cache_is_exact_for_a_model_that_sees_no_further",
    "test_greedy_takes_the_most_likely_token_of_a_full_pass_each_time",
    "test_one_beam_is_greedy_and_every_beam_has_its_log_probability",
    "test_the_search_ends_when_nothing_can_come_in_and_not_before",
    "test_windows_score_each_token_once_with_enough_before_it",
    "test_a_seed_repeats_and_another_does_not",
    "test_a_row_draws_what_it_would_draw_alone_with_its_own_seed",
    "test_a_mask_takes_the_padding_off_whichever_side_it_is_on",
    "test_cropped_to_half_a_context_each_goes_on_as_by_hand",
    "test_with_a_sliding_cache_a_text_goes_on_behind_the_context",
    "test_an_encoder_decoder_generates_from_what_it_remembers",
    "test_a_sequence_that_stops_leaves_the_batch_and_changes_no_other",
    "test_every_cache_generates_the_same",
    "test_at_temperature_0_it_says_what_greedy_says_with_any_draft",
}


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in MANY])
def test_property(name):
    CHECKS[name](KIT)


@pytest.mark.untyped
@pytest.mark.parametrize("name", sorted(MANY))
def test_property_in_many_calls(name):
    CHECKS[name](KIT)


# Every family that generates, at toy size


FAMILIES = [name for name, config in PRESETS.items() if config.kind != "encoder"]


@pytest.mark.untyped
@pytest.mark.parametrize("name", FAMILIES)
def test_with_a_cache_the_logits_are_those_without_for_every_preset(name):
    changes = SMALL | NO_DROPOUT | {"n_layers": 2, "d_ff": 29}
    if PRESETS[name].choice("n_kv_heads"):
        changes["n_kv_heads"] = 2
    model = lively(build(preset(name, **changes)), 3)
    tokens, source = ids(2, LENGTH), ids(2, 7, seed=5)
    for cut, cache in ((CUTS[0], None), *((CUTS[3], c) for c in KIT.caches_of(LENGTH).values())):
        with torch.no_grad():
            if model.config.kind == "encoder-decoder":
                whole, state = model(source, tokens), model.remember(source, cache=cache)
            else:
                (whole, _), state = model(tokens), model.empty_state(2, cache=cache)
        got, state = piecewise(model, tokens, cut, state)
        close(got, whole, atol=1e-10)
        assert state.length == LENGTH


@pytest.mark.untyped
@settings(max_examples=25)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 3), st.data())
def test_any_way_to_cut_and_any_cache_give_the_whole(cut, kind, data):
    n = sum(cut)
    model, tokens = decoder(data.draw(st.sampled_from(POSITIONS))), ids(2, n, seed=n)
    cache = [None, *KIT.caches_of(n).values()][kind]
    whole, _ = piecewise(model, tokens, [n])
    got, _ = piecewise(model, tokens, cut, model.empty_state(2, cache=cache))
    close(got, whole, atol=1e-10)


@functools.cache
def decoder(position):
    return KIT.decoder(position=position, n_layers=1, n_kv_heads=2)


P = st.lists(st.floats(0, 1), min_size=7, max_size=7).filter(lambda p: sum(p) > 0.01)


@given(P, P)
def test_accepting_and_redrawing_give_any_p_from_any_q(p, q):
    p, q = (torch.tensor(x, dtype=torch.float64) for x in (p, q))
    p, q = p / p.sum(), q / q.sum()
    kept = q * accept_probability(p, q)
    close(kept + (1 - kept.sum()) * residual_distribution(p, q), p, atol=1e-9)


@pytest.mark.untyped
def test_a_hybrid_of_three_mixers_generates_and_cannot_go_back():
    model = KIT.decoder(n_layers=3)
    model.stack.blocks[0].mixer = Recurrent(LSTMCell(24, 24))
    model.stack.blocks[2].mixer = LatentAttention(24, 3, d_latent=7, d_head=5, causal=True)
    model = lively(model, 2)
    wanted = [by_hand(model, prompt, 7) for prompt in PROMPTS]
    assert generate(model, PROMPTS, max_new_tokens=7).tokens == wanted
    stop = wanted[0][2]
    got = generate(model, PROMPTS, max_new_tokens=7, stop=stop).tokens
    cut = [tokens[: (*tokens, stop).index(stop) + 1] for tokens in wanted]
    assert got == cut
    with pytest.raises(TypeError, match=r"a state of type \w+ cannot go back"):
        speculative_generate(model, KIT.decoder(seed=9), [1, 2], max_new_tokens=12)


# Errors


CALLS = {
    "generate": lambda model, prompt, **o: generate(model, prompt, **{"max_new_tokens": 2} | o),
    "stream": lambda model, prompt, **o: list(stream(model, prompt, **{"max_new_tokens": 2} | o)),
    "beam": lambda model, prompt, **o: beam_search(
        model, prompt, **{"max_new_tokens": 2, "n_beams": 2} | o
    ),
    "speculative": lambda model, prompt, **o: speculative_generate(
        model, model, prompt, **{"max_new_tokens": 2} | o
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_what_cannot_be_continued_is_refused(call):
    table = TableModel(torch.zeros(5, 5))
    for prompt, error, words in (
        ([], ValueError, "prompt 0 has 0 tokens"),
        ([[]], ValueError, "prompt 0 has 0 tokens"),
        ("hello", TypeError, "prompt must be token ids, got str; a tokenizer"),
        (7, TypeError, "got int"),
        ([1.5], TypeError, "sequence 0 does not"),
        ([[1, 2], "ab"], TypeError, "sequence 1 does not"),
        (torch.rand(2, 3), TypeError, "integer ids of shape"),
        (torch.zeros(1, 2, 3).long(), TypeError, "got torch.int64 of shape"),
        ([1, 5], ValueError, "tokens must be from 0 to 4, got 1 … 5"),
        ([-1], ValueError, "tokens must be from 0 to 4, got -1"),
    ):
        with pytest.raises(error, match=words):
            call(table, prompt)
    for options, error, words in (
        ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be at least 1, got 0"),
        ({"max_new_tokens": 1.5}, TypeError, "max_new_tokens must be an integer"),
        ({"stop": ["a"]}, TypeError, "stop must hold ids or sequences of ids, got 'a'"),
        ({"stop": [[]]}, ValueError, "empty sequence"),
        ({"cache": StaticCache(9)}, ValueError, "TableModel has no empty_state"),
    ):
        with pytest.raises(error, match=words):
            call(table, [1], **options)
    with pytest.raises(TypeError, match="model must have decode"):
        call(torch.nn.Linear(2, 2), [1])
    model = decoder("rotary")
    with pytest.raises(ValueError, match="context holds 31 tokens, got a prompt of 28 and max_new"):
        call(model, [1] * 28, max_new_tokens=4)
    with pytest.raises(ValueError, match="call model.eval()"):
        call(model.train(), [1])
    model.eval()


@pytest.mark.untyped
@pytest.mark.parametrize("call", [CALLS[name] for name in ("generate", "stream", "speculative")])
def test_choices_that_make_no_sense_are_refused(call):
    table = TableModel(torch.zeros(5, 5))
    for options, error, words in (
        ({"sampling": 0.7}, TypeError, "sampling must be a Sampling, .* got float"),
        ({"sampling": {"top_k": 3}}, TypeError, "sampling must be a Sampling, .* got dict"),
        ({"seed": 0.5}, TypeError, "seed must be an integer or a torch.Generator, got float"),
        ({"seed": True}, TypeError, "seed must be an integer or a torch.Generator, got bool"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"temperature": 1.0}, TypeError, "unexpected keyword argument 'temperature'"),
    ):
        with pytest.raises(error, match=words):
            call(table, [1], **options)


@pytest.mark.untyped
def test_a_list_of_seeds_must_have_one_for_each_sequence():
    table = TableModel(torch.zeros(5, 5))
    for seed, error, words in (
        ([1, 2, 3], ValueError, "seed must be one, or one for each of 2 sequences, got 3"),
        ([1, -1], ValueError, "seed must be at least 0, got -1"),
        ([1, 0.5], TypeError, "seed must be an integer, got"),
    ):
        with pytest.raises(error, match=words):
            generate(table, [[1], [2]], sampling=Sampling(), seed=seed)


@pytest.mark.untyped
def test_a_sampling_refuses_numbers_that_it_cannot_mean():
    for options, error, words in (
        ({"temperature": -1.0}, ValueError, "temperature must be finite and above 0, got -1"),
        ({"temperature": torch.inf}, ValueError, "temperature must be finite and above 0"),
        ({"temperature": "hot"}, TypeError, "temperature must be a number"),
        ({"temperature": False}, TypeError, "temperature must be a number, got bool"),
        ({"temperature": 0, "top_k": 3}, ValueError, "top_k has no effect on the most likely"),
        ({"temperature": 0.0, "min_p": 0.1}, ValueError, "min_p has no effect on the most likely"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ({"top_k": 1.5}, TypeError, "top_k must be an integer"),
        ({"top_p": 1.5}, ValueError, "top_p must be above 0 and at most 1, got 1.5"),
        ({"min_p": 0.0}, ValueError, "min_p must be above 0 and at most 1, got 0.0"),
        ({"repetition_penalty": 0.0}, ValueError, "repetition_penalty must be finite and above 0"),
        ({"top_p": "0.9"}, TypeError, "top_p must be a number, got str"),
        ({"min_p": True}, TypeError, "min_p must be a number, got bool"),
        ({"temperature": 1e-40}, ValueError, "temperature 1e-40 is so small that logits / T over"),
        ({"rule": 0.5}, TypeError, "rule must be a function of logits, got float"),
        ({"rule": abs, "temperature": 0.5}, ValueError, "rule replaces temperature, top_k"),
        ({"rule": abs, "temperature": 0.0}, ValueError, "rule replaces temperature, top_k"),
        ({"rule": abs, "top_p": 0.5}, ValueError, "rule replaces temperature, top_k"),
    ):
        with pytest.raises(error, match=words):
            Sampling(**options)
    with pytest.raises(TypeError, match="logits must have a floating-point dtype"):
        Sampling()(torch.zeros(1, 3).long())
    with pytest.raises(ValueError, match="repetition_penalty needs seen, the ids that each row"):
        Sampling(repetition_penalty=1.2)(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="a row for each row of the logits"):
        Sampling(repetition_penalty=1.2)(torch.zeros(2, 3), [[0]])


@pytest.mark.untyped
def test_other_wrong_arguments_are_named():
    table, model = TableModel(torch.zeros(5, 5)), decoder("rotary")
    with pytest.raises(ValueError, match="stream takes one prompt, got 2"):
        stream(table, [[1], [2]], max_new_tokens=2)
    with pytest.raises(ValueError, match="takes one prompt, got 2"):
        speculative_generate(table, table, [[1], [2]], max_new_tokens=2)
    with pytest.raises(ValueError, match="state and cache exclude"):
        state = model.empty_state(1)
        generate(model, [1], max_new_tokens=2, state=state, cache=DynamicCache())
    with pytest.raises(ValueError, match="holds 31 tokens, got 30 tokens in the state, a prompt"):
        _, state = piecewise(model, ids(1, 30), [30])
        generate(model, [1], max_new_tokens=2, state=state)
    with pytest.raises(ValueError, match="static cache of 3 keys holds 3 and cannot take 1 more"):
        generate(model, [1], max_new_tokens=9, cache=StaticCache(3))
    with pytest.raises(ValueError, match="row 0 of the logits: its largest is nan"):
        generate(TableModel(torch.full((3, 3), torch.nan)), [1], max_new_tokens=2)
    with pytest.raises(ValueError, match="every token has been cut"):
        generate(NGramDraft(2, 5), [1], max_new_tokens=2)
    with pytest.raises(ValueError, match="one vocabulary, got 5 and 7 tokens"):
        draft = TableModel(torch.zeros(7, 7))
        speculative_generate(table, draft, [1], max_new_tokens=3)
    with pytest.raises(ValueError, match="cannot go back"):
        narrow = KIT.decoder(window=3)
        speculative_generate(
            narrow, KIT.decoder(seed=9), [1, 2], max_new_tokens=12, cache=SlidingCache(3)
        )
    with pytest.raises(ValueError, match="n_draft must be at least 1"):
        speculative_generate(table, table, [1], max_new_tokens=3, n_draft=0)
    with pytest.raises(ValueError, match="n_beams must be at least 1"):
        beam_search(table, [1], n_beams=0, max_new_tokens=2)
    for penalty, error in (("long", TypeError), (torch.inf, ValueError)):
        with pytest.raises(error, match="length_penalty must be"):
            beam_search(table, [1], n_beams=1, max_new_tokens=2, length_penalty=penalty)
    with pytest.raises(ValueError, match=r"logits must have shape \(V, V\)"):
        TableModel(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="n_layers must be below 3, got 3"):
        FirstLayers(KIT.decoder(), 3)
    with pytest.raises(TypeError, match="must be a DecoderOnly, got TableModel"):
        FirstLayers(table, 1)
    with pytest.raises(ValueError, match="n must be at least 2, got 1"):
        NGramDraft(1, 5)
    with pytest.raises(ValueError, match="one shape"):
        accept_probability(torch.ones(3), torch.ones(2))


@pytest.mark.untyped
def test_scores_need_two_tokens_and_a_window_that_moves():
    table = TableModel(torch.zeros(5, 5))
    for tokens in ([1], [[1, 2], [3]]):
        with pytest.raises(ValueError, match="has 1 tokens and needs at least 2"):
            score(table, tokens)
    with pytest.raises(ValueError, match="stride must be below context = 3, got 3"):
        score(table, [1, 2, 3, 4], context=3, stride=3)
    with pytest.raises(ValueError, match="context must be at least 2, got 1"):
        perplexity(table, [1, 2, 3, 4], context=1)
    with pytest.raises(ValueError, match="must fit one window of 3, got 4"):
        score(table, [1, 2, 3, 4], state=object(), context=3)
    model = decoder("rotary")
    assert score(model, ids(1, 60)).shape == (1, 59)  # in windows of max_len


@pytest.mark.untyped
def test_sampling_refuses_what_it_cannot_mean():
    logits = torch.zeros(2, 3)
    for call, error, words in (
        (
            lambda: generation.temperature(logits, 0),
            ValueError,
            "most likely token, tfbook.generation",
        ),
        (lambda: generation.temperature(logits.long(), 1.0), TypeError, "logits must have a float"),
        (lambda: generation.temperature(logits + 9, 1e-38), ValueError, "1e-38 is so small that"),
        (
            lambda: generate(
                TableModel(torch.eye(2) * 9), [1], sampling=Sampling(temperature=2e-38)
            ),
            ValueError,
            "temperature 2e-38 is so small that logits / T overflow; 0 takes the most likely token",
        ),
        (lambda: generation.top_k(logits, 2.0), TypeError, "top_k must be an integer"),
        (lambda: generation.top_p(logits, True), TypeError, "top_p must be a number"),
        (lambda: generation.draw(logits, torch.rand(3)), ValueError, "one number for each row"),
        (lambda: generation.draw(logits - torch.inf, torch.rand(2)), ValueError, "has been cut"),
        (lambda: generation.greedy(logits * torch.nan), ValueError, "largest is nan"),
        (lambda: generation.greedy(logits + torch.inf), ValueError, "largest is inf"),
        (
            lambda: generation.repetition_penalty(logits, torch.zeros(1, 2).long(), 2.0),
            ValueError,
            "a row for each row",
        ),
    ):
        with pytest.raises(error, match=words):
            call()
    assert generation.top_k(logits, 99) is logits
    assert generation.temperature(logits - torch.inf, 2.0).tolist() == [[-torch.inf] * 3] * 2
    alone = Sampling(top_p=0.6)(torch.tensor([0.1, 0.5, 0.4]).log())  # without a temperature
    assert alone.isinf().tolist() == [True, False, False]
    cut = torch.tensor([[0.0, -torch.inf, 1.0]])
    for step in (generation.top_p, generation.min_p):  # what is cut stays cut
        assert step(cut, 0.5).tolist() == [[-torch.inf, -torch.inf, 1.0]]


@pytest.mark.untyped
def test_caches_refuse_what_they_cannot_hold():
    model, tokens = decoder("rotary"), ids(1, 5)
    state = model.empty_state(1, cache=StaticCache(4))
    with pytest.raises(ValueError, match="static cache of 4 keys holds 0 and cannot take 5 more"):
        piecewise(model, tokens, [5], state)
    with pytest.raises(ValueError, match="under torch.no_grad"):
        model.decode(tokens[:, :2], state)
    with pytest.raises(ValueError, match=r"k must have shape \(B, H, N, D\)"):
        narrow = state.layers[0].mixer
        narrow.extend(torch.zeros(2, 2, 1, 6).double(), torch.zeros(2, 2, 1, 6).double())
    for make, error, words in (
        (lambda: StaticCache(0), ValueError, "max_len must be at least 1"),
        (lambda: SlidingCache(0), ValueError, "window must be at least 1"),
        (lambda: SlidingCache(2, sinks=-1), ValueError, "sinks must be at least 0"),
        (lambda: model.empty_state(0), ValueError, "batch must be at least 1"),
        (lambda: model.empty_state(1, cache=StaticCache), TypeError, "got StaticCache"),
        (lambda: model.empty_state(1, cache="static"), TypeError, "got str"),
    ):
        with pytest.raises(error, match=words):
            make()
    _, state = piecewise(model, tokens, [5])
    for length in (-1, 6):
        with pytest.raises(ValueError, match="length must be"):
            state.truncate(length)
    _, state = piecewise(model, tokens, [5], None, torch.tensor([[False] + [True] * 4]))
    with pytest.raises(ValueError, match="padded batch cannot go back"):
        state.truncate(2)
    cross = KIT.translator().decoder.blocks[0].cross
    with pytest.raises(ValueError, match=r"remember\(memory\), never empty"):
        cross.empty_state(1)


def test_gradients_pass_through_a_growing_cache():
    model, tokens = KIT.decoder(n_layers=1), ids(1, 5)
    whole, _ = model.decode(tokens)
    first, state = model.decode(tokens[:, :3], model.empty_state(1))
    rest, _ = model.decode(tokens[:, 3:], state)
    wanted = torch.autograd.grad(whole.square().sum(), list(model.parameters()))
    both = torch.cat([first, rest], dim=1).square().sum()
    for a, b in zip(torch.autograd.grad(both, list(model.parameters())), wanted, strict=True):
        close(a, b, atol=1e-9)
