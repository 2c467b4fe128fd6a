"""Cards of experiments: each is complete, and its numbers are those of the log and of the model."""

import importlib
import re
from string import Formatter

import pytest
import torch

from tfbook import data, experiments, pretrained
from tfbook.experiments import _cards
from tfbook.models import FFN, Attention, Classes, Layer, Norm, Rotary, TransformerConfig, build

NAMES = experiments.names()
SHAKESPEARE = len(set(data.shakespeare("train")))


def count(*models):
    return {sum(w.numel() for w in model.parameters()) for model in models}


def module(name):
    return importlib.import_module(f"tfbook.experiments.{name}")


def small(vocabulary, bias=True, n_layers=2):
    """The decoder of width 48 that several experiments train."""
    attention = Attention(4, position=Rotary(), bias=bias)
    layer = Layer(attention, FFN(128, "swiglu", bias=bias), norm=Norm("rms"))
    return build(TransformerConfig(vocabulary, 48, decoder=[layer] * n_layers, init="gpt2"))


def curriculum():
    m = module("curriculum")
    texts = m.reviews("train") + m.reviews("valid")[: m.HELD]
    return count(small(11, bias=False), small(1 + max(max(ids) for ids, _ in texts), bias=False))


def overfitting():
    layer = Layer(Attention(2, position=Rotary()), FFN(88, "swiglu"), norm=Norm("rms"))
    return count(build(TransformerConfig(4000, 32, encoder=[layer] * 2, head=Classes(2))))


def of_log(name, *path):
    """Counts that the run took itself."""
    found = experiments.log(name)["parameters"]
    return {found[key] for key in path} if path else {found}


# What each experiment trains, made anew.
BUILT = {
    "ahead": lambda m: count(*(m.Heads(160, chained=chained) for chained in (False, True))),
    "adapting": lambda m: count(m.Classifier(pretrained.load("minilm-l6").model)),
    "answers": lambda m: count(m.Reader(pretrained.load("minilm-l6"))),
    "forty_notes": lambda m: count(m.answers.Reader(pretrained.load("minilm-l6"))),
    "three_facts": lambda m: count(m.answers.Reader(pretrained.load("minilm-l6"))),
    "associative_recall": lambda m: count(*map(m.Recaller, m.MIXERS)),
    "batch_size": lambda m: count(m.model(SHAKESPEARE)) & of_log("batch_size"),
    "bottleneck": lambda m: count(*map(m.model_of, m.MODELS)),
    "brackets": lambda m: count(m.model_of()),
    "broken_run": lambda m: count(m.model_of(()), m.model_of()),
    "careless_checker": lambda m: count(module("broken_run").model_of()),
    "careful_rates": lambda m: count(m.Classifier(pretrained.load("minilm-l6").model)),
    "checked_sums": lambda m: count(module("broken_run").model_of()),
    "choices": lambda m: count(*map(m.model_of, m.CHANGES)),
    "choices_again": lambda m: count(*map(m.model_of, m.CHOSEN)),
    "choices_controls": lambda m: count(*map(m.model_of, ("twice the width", *m.CHOSEN))),
    "choices_cures": lambda m: count(
        module("choices").model_of("8 experts, loss"), *map(m.model_of, m.CURES)
    ),
    "choices_deep": lambda m: count(*map(m.model_of, m.NAMES)),
    "choices_longer": lambda m: count(
        *map(m.model_of, (*m.TEXT, *m.RATES, *m.ROOM, *m.QUIET, m.ONLY_LAST)),
        *map(m.deep_of, m.DEEP),
    ),
    "choices_scale": lambda m: count(
        module("choices_deep").model_of("post-norm"), module("choices").model_of("plain")
    ),
    "choices_searched": lambda m: count(
        module("choices").model_of(m.BIAS),
        module("choices_deep").model_of("pre-norm"),
        *map(module("choices_longer").deep_of, m.DEEP),
    ),
    "clear_labels": lambda m: count(m.Classifier(pretrained.load("minilm-l6").model)),
    "clipping": lambda m: count(m.begin(0)),
    "copying": lambda m: count(*(m.model_of(m.mixers_of(name)) for name in m.COPIERS)),
    "curriculum": lambda m: curriculum(),
    "decay": lambda m: count(m.begin("pre", 0, n_layers=2, d_model=64)),
    "depth": lambda m: count(
        m.model_of("added", 2, SHAKESPEARE), m.model_of("pre", 12, SHAKESPEARE)
    ),
    "descent": lambda m: count(m.begin("pre", 0, n_layers=2, d_model=64)),
    "dictionary": lambda m: count(m.SparseDictionary(160, 512, 16)),
    "extrapolation": lambda m: count(
        *(m.Reader(s, *[len(set(data.shakespeare("all")))] * 2) for s in m.SCHEMES)
    ),
    "hacked_reward": lambda m: count(m.model_of()),
    "head_roles": lambda m: count(pretrained.load("smollm2-135m").model),
    "heads": lambda m: of_log("heads"),
    "hybrid_controls": lambda m: count(*map(m.model_of, m.CONTROLS)),
    "hybrid_share": lambda m: count(*(m.Recaller(m.mixers_of(n)) for n in m.HYBRIDS)),
    "in_context": lambda m: count(m.Regressor()),
    "inside_mamba": lambda m: count(*map(m.Network, ("Mamba-2", "linear attention"))),
    "induction_birth": lambda m: count(*map(m.model_of, m.MODELS)),
    "ingredients": lambda m: count(m.begin(0)),
    "inside_the_loop": lambda m: count(m.begin(0)),
    "facts": lambda m: count(*map(m.model_of, m.MODELS)),
    "deep_starts": lambda m: count(
        *(m.model_of(wiring, m.DEPTH, SHAKESPEARE, "pytorch") for wiring in m.RATES)
    ),
    "bold_rates": lambda m: count(
        *(m.model_of(wiring, m.DEPTH, SHAKESPEARE, "pytorch") for wiring in m.RATES)
    ),
    "gentle_start": lambda m: count(*(m.begin(w, m.DEPTH, SHAKESPEARE) for w in m.RATES)),
    "gentle_parts": lambda m: count(
        *(m.begin(wiring, m.DEPTH, SHAKESPEARE) for wiring, *_ in m.MODELS.values())
    ),
    "ladder": lambda m: count(*(m.model_of(name, SHAKESPEARE) for name in m.MODELS)),
    "largest_again": lambda m: {
        size for width, _ in m.HELD_OUT for size in count(m.model_of("decoder", width))
    },
    "larger_rates": lambda m: {
        size for width, _ in m.FACTORS for size in count(m.model_of("decoder", width))
    },
    "leaving_out": lambda m: count(small(SHAKESPEARE, bias=False, n_layers=m.LAYERS)),
    "one_layer": lambda m: count(m.characters.CharacterModel(SHAKESPEARE, 8, 1)),
    "rounded_drafts": lambda m: count(pretrained.load("smollm2-135m").model),
    "five_poems": lambda m: count(pretrained.load("smollm2-135m").model),
    "six_settings": lambda m: count(pretrained.load("smollm2-135m").model),
    "one_bad_token": lambda m: count(pretrained.load("smollm2-135m").model),
    "read_often": lambda m: count(m.begin(0)),
    "thin_changes": lambda m: count(
        module("clear_labels").Classifier(pretrained.load("minilm-l6").model)
    ),
    "two_sizes": lambda m: count(m.model_at(1, 7, 0)),
    "two_parts": lambda m: count(module("broken_run").model_of()),
    "two_layouts": lambda m: count(pretrained.load("smollm2-135m").model),
    "written_ways": lambda m: count(pretrained.load("smollm2-135m").model),
    "wirings": lambda m: count(
        m.model_of("added", 2, SHAKESPEARE), m.model_of("pre", 16, SHAKESPEARE)
    ),
    "new_story": lambda m: count(*(m.Listener([mixer]) for mixer in m.LISTENERS.values())),
    "many_answers": lambda m: count(*map(m.long_sums.model_of, ("small", "large"))),
    "name_mover": lambda m: count(pretrained.load("smollm2-135m").model),
    "easier_texts": lambda m: count(
        *(pretrained.load(name).model for name in ("minilm-l6", "smollm2-135m"))
    ),
    "explained_heads": lambda m: count(pretrained.load("smollm2-135m").model),
    "next_tokens": lambda m: count(pretrained.load("smollm2-135m").model),
    "long_sums": lambda m: count(*map(m.model_of, m.MODELS)),
    "long_texts": lambda m: count(pretrained.load("smollm2-135m").model),
    "longer_loops": lambda m: count(m.begin(0)),
    "long_ladder": lambda m: count(m.ingredients.begin(0)),
    "loop_questions": lambda m: count(m.begin(0)),
    "warmed_parts": lambda m: count(m.begin(0)),
    "longer_models": lambda m: count(*(m.model_of(name, SHAKESPEARE) for name in m.MODELS)),
    "one_pass": lambda m: count(pretrained.load("smollm2-135m").model),
    "read_write_learn": lambda m: count(pretrained.load("smollm2-135m").model),
    "fetching_layers": lambda m: count(pretrained.load("smollm2-135m").model),
    "other_words": lambda m: count(pretrained.load("smollm2-135m").model),
    "fewer_keys": lambda m: count(m.Recaller(m.WAY)),
    "few_bits": lambda m: count(pretrained.load("smollm2-135m").model),
    "calibrated_bits": lambda m: count(pretrained.load("smollm2-135m").model),
    "many_at_once": lambda m: count(pretrained.load("smollm2-135m").model),
    "caches_read": lambda m: count(pretrained.load("smollm2-135m").model),
    "six_attentions": lambda m: count(
        *(m.model_of(wiring, SHAKESPEARE) for wiring, _ in m.MODELS.values())
    ),
    "sixteen_bits": lambda m: count(m.model_of()),
    "same_prompt": lambda m: count(pretrained.load("smollm2-135m").model),
    "overfitting": lambda m: overfitting(),
    "own_text": lambda m: count(pretrained.load("smollm2-135m").model),
    "own_words": lambda m: count(*map(module("long_sums").model_of, ("small", "large"))),
    "kinds_of_sentence": lambda m: count(*(m.model_of(kind) for kind, _, _ in m.RUNS.values())),
    "pairs_recalled": lambda m: count(*(m.Recaller(way) for way in m.WAYS)),
    "pretrained_attention": lambda m: count(*(pretrained.load(n).model for n in m.MODELS)),
    "pretrained_heads": lambda m: count(*(pretrained.load(n).model for n in m.MODELS.values())),
    "prompts_compared": lambda m: count(pretrained.load("smollm2-135m").model),
    "position_causes": lambda m: count(m.Reader("rotary", 63, 63), m.Reader("ALiBi", 24, 8)),
    "position_controls": lambda m: count(
        *(m.Reader(how["scheme"], *[len(set(data.shakespeare("all")))] * 2)
          for how in m.PLAIN.values())
    ),
    "position_parts": lambda m: count(*(m.Reader(n, 63, 63) for n in ("sinusoidal", "T5"))),
    "position_rates": lambda m: count(
        *(m.Reader(how["scheme"], *[len(set(data.shakespeare("all")))] * 2)
          for how in m.SETTINGS.values())
    ),
    "fresh_sums": lambda m: count(m.model_of()),
    "paired_labels": lambda m: count(pretrained.load("minilm-l6").model),
    "preferred_rates": lambda m: count(m.model_of()),
    "preferred_sums": lambda m: count(module("broken_run").model_of()),
    "recall": lambda m: count(*map(m.Recaller, m.MODELS)),
    "recall_gates": lambda m: count(*map(module("recall").Recaller, m.KINDS)),
    "recall_again": lambda m: count(*(m.Recaller([mixer]) for mixer, _ in m.LAYERS.values())),
    "repetition": lambda m: count(small(SHAKESPEARE)),
    "retrieval": lambda m: count(
        *(pretrained.load(name).model for name in ("minilm-l6", "smollm2-135m"))
    ),
    "root_of_width": lambda m: count(m.Player(256, True, torch.Generator())),
    "scaling": lambda m: {m.size_of(m.model_of(k, w))[0] for k in m.LAYERS for w in m.LAYERS[k]},
    "sentiment": lambda m: count(m.Classifier(pretrained.load("minilm-l6").model)),
    "sentence_length": lambda m: count(*(m.model_of(kind) for kind, _ in m.RUNS.values())),
    "vector_width": lambda m: count(*map(m.model_of, m.WIDTHS)),
    "shapes_compared": lambda m: {m.inner_parameters(m.model_of(n)) for n in m.SHAPES},
    "sick": lambda m: count(m.begin(0)),
    "shakespeare": lambda m: of_log("shakespeare", "plain", "ours", "lstm", "shipped"),
    "some_layers": lambda m: count(
        pretrained.load("smollm2-135m").model, m.Recaller([m.MIXERS["attention"]] * m.LAYERS)
    ),
    "state_sizes": lambda m: count(*(m.Recaller([m.mixer_of(name)]) for name in m.names_of())),
    "superposition": lambda m: count(m.SuperpositionModel(80, 20)),
    "streamed": lambda m: count(pretrained.load("smollm2-135m").model),
    "summaries": lambda m: count(*(m.Summariser(copies=copies) for copies in (False, True))),
    "told_earlier": lambda m: count(pretrained.load("smollm2-135m").model),
    "tokens_a_second": lambda m: count(pretrained.load("smollm2-135m").model),
    "told_again": lambda m: count(*(m.Recaller([mixer]) for mixer in m.AGAIN.values())),
    "traced_faults": lambda m: count(*(m.model_of(each, 0) for each in (None, *m.FAULTS))),
    "transfer": lambda m: count(*(m.model(width, way, 0) for width in (32, 256) for way in m.WAYS)),
    "translation": lambda m: of_log("translation"),
    "translator": lambda m: of_log("translator", "transformer"),
    "tuned_sums": lambda m: count(*(m.model_at(1, 0, width=width) for width in m.WIDTHS)),
    "two_token_hybrids": lambda m: count(*(m.Recaller(m.mixers_of(each)) for each in m.LISTS)),
    "two_tokens": lambda m: count(*(m.Recaller(m.mixers_of(name)) for name in m.STACKS)),
    "update_rules": lambda m: count(*map(m.Network, m.RULES)),
    "unmasking": lambda m: count(m.network(63, causal=True), m.Unmasker(63)),
    "valley": lambda m: {m.scaling.size_of(m.model_of(m.WIDTHS[-1]))[0]},
    "warmup": lambda m: count(m.begin("pre", 0), m.begin("post", 0)),
}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def card(name):
    return _cards.card_of(name, experiments.log(name))


def test_a_card_says_what_was_trained_on_what_and_how_long(name, card):
    text = "; ".join(card.facts)
    trained = "nothing is trained" not in text
    for words in ("parameters", *(("step|epoch", "batches of", "rate", "seed") if trained else ())):
        assert re.search(words, text), f"{words} is missing in {text}"
    assert re.fullmatch(r"\d+ (minutes|seconds) on one (thread|NVIDIA [^;]+)", card.facts[-1])
    assert all(fact == fact.strip() != "" for fact in card.facts)
    assert len(text) < 300


@pytest.mark.slow
def test_the_numbers_of_parameters_are_those_of_the_models(name, card):
    built = BUILT[name](module(name))
    said = {int(n.replace(",", "")) for n in re.findall(r"\d{1,3}(?:,\d{3})+", card.facts[0])}
    assert said and said <= built
    if " to " in card.facts[0] and "shipped" not in card.facts[0]:
        assert {min(built), max(built)} <= said or len(built) == 1
    else:
        assert said == built or name == "shakespeare"


def test_values_come_from_the_log_before_the_module(monkeypatch):
    log = experiments.log("recall")
    log["settings"] |= {"steps": 12345, "size": 7}
    log["seeds"] = [4]
    log["machine"]["seconds"] = 99
    facts = _cards.card_of("recall", log).facts
    assert {"12,345 steps", "batches of 7", "one seed", "99 seconds on one thread"} <= set(facts)
    monkeypatch.setattr(module("recall"), "RATE", 0.25)
    assert "rate 0.25, falling" in _cards.card_of("recall", log).facts


def test_no_card_copies_a_number_that_the_log_has(name):
    """Steps, batch, rate and seeds are filled in, not written down."""
    card = module(name).CARD
    assert card.keys() <= {"model", "data", *_cards.USUAL}
    for what in ("steps", "batch", "rate"):
        said = card.get(what, "")
        plain = "".join(text for text, *_ in Formatter().parse(said) if text)
        if name not in ("sentiment", "decay", "descent"):
            assert not re.search(r"\d", plain), f"{what}: {said!r}"


def test_log_shows_the_card_when_it_is_asked_to(monkeypatch):
    ipython = pytest.importorskip("IPython")
    shown = []
    monkeypatch.setattr(ipython.display, "display", shown.append)
    monkeypatch.setattr(ipython, "get_ipython", lambda: object())
    assert experiments.log("recall") == experiments.log("recall", card=True)
    experiments.card("heads")
    assert [each.name for each in shown] == ["recall", "heads"]


def test_a_card_can_speak_of_a_part():
    whole = _cards.card_of("recall", experiments.log("recall")).facts
    part = _cards.card_of(
        "recall", experiments.log("recall"), {"batch": "batches of 1", "seeds": "seed 5"}
    ).facts
    changed = [(a, b) for a, b in zip(whole, part, strict=True) if a != b]
    assert [b for _, b in changed] == ["batches of 1", "seed 5"]


def test_the_forms_are_stable_and_lead_to_the_code():
    shown = _cards.Card("x_y", ("a <b>", "3 seeds"))
    forms = shown._repr_mimebundle_()
    assert forms["text/plain"] == "experiment x_y: a <b>; 3 seeds"
    assert "a &lt;b&gt;; 3 seeds" in forms["text/html"]
    link = '<a class="tfbook-source" href="../tfbook/experiments/x_y.py"'
    assert f'{link} title="tfbook.experiments.x_y">the code</a>' in forms["text/html"]
    assert "·" not in forms["text/html"]


@pytest.mark.untyped
def test_an_unknown_experiment_has_no_card():
    with pytest.raises(ValueError, match="name must be one of"):
        experiments.card("no_such")


def test_making_a_card_draws_no_random_number(card):
    """The seed that a chapter has set stays as it is."""
    before = torch.random.get_rng_state()
    _cards.card_of(card.name, experiments.log(card.name))
    assert torch.equal(before, torch.random.get_rng_state())
