"""Generation against `transformers`: the steps of sampling, greedy decoding, beam search, scores.

Tiny random models of three families, the same weights in both libraries.
"""

import json

import pytest
import torch
import transformers
from generation_properties import ids
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as theirs

from tfbook.generation import beam_search, generate, sampling, score
from tfbook.pretrained import fill_model

transformers.logging.set_verbosity_error()

V, EOS, NEW = 31, 2, 6
SPECIAL = {"vocab_size": V, "eos_token_id": EOS, "pad_token_id": 0, "bos_token_id": 1}
GPT2 = transformers.GPT2Config(n_embd=22, n_layer=2, n_head=2, n_positions=23, **SPECIAL)
LLAMA = transformers.LlamaConfig(
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    intermediate_size=29,
    max_position_embeddings=37,
    **SPECIAL,
)
T5 = transformers.T5Config(
    d_model=23, d_kv=7, d_ff=29, num_layers=2, num_heads=3, decoder_start_token_id=0, **SPECIAL
)
KINDS = {
    "gpt2": (transformers.GPT2LMHeadModel, GPT2),
    "llama": (transformers.LlamaForCausalLM, LLAMA),
    "t5": (transformers.T5ForConditionalGeneration, T5),
}


def pair(name, seed=0):
    """Return the same random model in their parts and in ours, in float64."""
    kind, config = KINDS[name]
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[-1] ** 0.5)
    config = json.loads(model.config.to_json_string(use_diff=False))
    settings = config | {"architectures": [kind.__name__]}
    return model.double(), fill_model(settings, model.state_dict()).double().eval()


@pytest.fixture(scope="module", params=KINDS)
def models(request):
    return request.param, *pair(request.param)


def ask(model, name, tokens, **options):
    """Let their model generate; return new ids (without padding behind) and scores of beams."""
    made = model.generate(
        tokens,
        max_new_tokens=NEW,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    start = 1 if name == "t5" else tokens.shape[1]
    return [until_stop(row[start:].tolist()) for row in made.sequences], made


def until_stop(tokens):
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens[:NEW]


def prompts_and_state(ours, name, tokens):
    if name != "t5":
        return tokens, None
    with torch.no_grad():
        return [[0]] * len(tokens), ours.remember(tokens)


def test_greedy_decoding_is_theirs(models):
    name, model, ours = models
    tokens = ids(3, 5, high=V).clamp(min=3)  # no padding among them
    wanted, _ = ask(model, name, tokens)
    prompts, state = prompts_and_state(ours, name, tokens)
    got = generate(ours, prompts, max_new_tokens=NEW, stop=EOS, state=state)
    assert got.tokens == wanted


def test_left_padding_is_theirs():
    model, ours = pair("llama")
    prompts = [[5, 6, 7, 8], [9], [3, 4]]
    padded = torch.tensor([[0] * (4 - len(prompt)) + prompt for prompt in prompts])
    wanted, _ = ask(model, "llama", padded, attention_mask=(padded > 0).long())
    assert generate(ours, prompts, max_new_tokens=NEW, stop=EOS).tokens == wanted


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_beam_search_is_theirs(models, penalty):
    name, model, ours = models
    tokens = ids(3, 5, seed=7, high=V).clamp(min=3)
    wanted, made = ask(
        model,
        name,
        tokens,
        num_beams=4,
        num_return_sequences=4,
        length_penalty=penalty,
        early_stopping="never",
    )
    prompts, state = prompts_and_state(ours, name, tokens)
    found = beam_search(
        ours, prompts, n_beams=4, max_new_tokens=NEW, length_penalty=penalty, stop=EOS, state=state
    )
    assert [h.tokens for beams in found for h in beams] == wanted
    scores = torch.tensor([h.score for beams in found for h in beams])
    torch.testing.assert_close(scores, made.sequences_scores.float(), atol=1e-5, rtol=0)


def test_scores_are_theirs(models):
    name, model, ours = models
    tokens = ids(2, 7, high=V)
    if name == "t5":
        source = ids(2, 5, seed=5, high=V)
        with torch.no_grad():
            logits = model(input_ids=source, decoder_input_ids=tokens).logits
            state = ours.remember(source)
    else:
        with torch.no_grad():
            logits, state = model(tokens).logits, None
    wanted = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(score(ours, tokens, state=state), wanted, atol=1e-6, rtol=0)


STEPS = {
    "temperature": (theirs.TemperatureLogitsWarper, st.floats(0.1, 5.0)),
    "top_k": (theirs.TopKLogitsWarper, st.integers(1, 19)),
    "top_p": (theirs.TopPLogitsWarper, st.floats(0.01, 0.99)),
    "min_p": (theirs.MinPLogitsWarper, st.floats(0.01, 0.99)),
}


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=30)
@given(data=st.data())
def test_each_step_of_sampling_is_theirs(name, data):
    step, values = STEPS[name]
    value = data.draw(values)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    logits = 3 * torch.randn(3, 17, generator=generator, dtype=torch.float64)
    got = getattr(sampling, name)(logits, value)
    torch.testing.assert_close(got, step(value)(None, logits.clone()))


@settings(max_examples=30)
@given(penalty=st.floats(0.2, 5.0), seed=st.integers(0, 999))
def test_the_repetition_penalty_is_theirs(penalty, seed):
    logits = torch.randn(3, 17, generator=torch.Generator().manual_seed(seed))
    tokens = ids(3, 7, seed=seed, high=17)
    wanted = theirs.RepetitionPenaltyLogitsProcessor(penalty)(tokens, logits.clone())
    torch.testing.assert_close(sampling.repetition_penalty(logits, tokens, penalty), wanted)


def test_the_order_of_the_steps_is_theirs():
    model, _ = pair("gpt2")
    config = transformers.GenerationConfig(
        do_sample=True, temperature=1.7, top_k=9, top_p=0.8, min_p=0.1
    )
    steps = model._get_logits_processor(config)
    logits = 3 * torch.randn(5, 17, generator=torch.Generator().manual_seed(0))
    got = sampling.Sampling(temperature=1.7, top_k=9, top_p=0.8, min_p=0.1)(logits)
    torch.testing.assert_close(got, steps(None, logits.clone()))
