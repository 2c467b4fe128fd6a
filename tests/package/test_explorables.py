"""The Python side of explorables: what a cell stores, what Python reads, what is refused."""

import cmath
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tfbook import experiments
from tfbook.attention import causal_mask
from tfbook.data import BytePairs, word_vectors
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _base, _biases, _heads, _softmax

CHOICES = [("one", False, "No: `one`."), ("two", True, "Yes: d_k."), ("three", False, "No.")]
PAIRS = [
    {
        "source": ["the", "open", "file"],
        "target": ["le", "fichier", "ouvert", "."],
        "weights": [[0.9, 0.05, 0.05], [0.1, 0.2, 0.7], [0, 1, 0], [0.25, 0.25, 0.5]],
        "reference": "le fichier <ouvert>",
    },
    {"source": ["yes"], "target": ["oui", "!"], "weights": [[1.0], [1.0]]},
]
TOKENS = "a b c a b c d".split()
NEXT = explorables.pack_next_tokens(
    "once </p> upon", [math.sin(i) * 3 for i in range(60)], [f" {i}" for i in range(60)], shown=12
)
FAULTS = experiments.log("traced_faults")


def patterns(layers=2, heads=3, tokens=7, causal=True):
    """Random attention weights (L, H, n, n), float64."""
    generator = torch.Generator().manual_seed(3)
    scores = 2 * torch.randn(layers, heads, tokens, tokens, generator=generator).double()
    if causal:
        scores = scores.masked_fill(~causal_mask(tokens), -math.inf)
    return scores.softmax(-1)


def read(**changes):
    """A head_viewer of one causal and one other text."""
    texts = [
        {"tokens": TOKENS, "weights": patterns(), "title": "letters"},
        {"tokens": ["x", " ", "\n", "y", "x"], "weights": patterns(tokens=5, causal=False)},
    ]
    return explorables.head_viewer(texts, **changes)


MAKE = {
    "alignment_viewer": lambda: explorables.alignment_viewer(PAIRS),
    "alignment_viewer of a source word": lambda: explorables.alignment_viewer(
        PAIRS, side="source", word=2
    ),
    "head_viewer": read,
    "head_viewer the other way": lambda: read(text=1, layer=1, head=2, token=0, direction="to"),
    "encoding_wavelengths": explorables.encoding_wavelengths,
    "rope_rotation": explorables.rope_rotation,
    "relative_bias_shapes": explorables.relative_bias_shapes,
    "relative_bias_shapes with tables": lambda: explorables.relative_bias_shapes(
        scheme="t5", n_buckets=4, clip=1, t5_table=torch.ones(4, 2), shaw_table=torch.ones(3, 5)
    ),
    "shape_tracer": explorables.shape_tracer,
    "shape_tracer of two stacks": lambda: explorables.shape_tracer("t5-small", part="decoder qkv"),
    "next_token_sampling": lambda: explorables.next_token_sampling([NEXT], top_p=0.8, draws=9),
    "cache_growth": explorables.cache_growth,
    "cost_calculator": explorables.cost_calculator,
    "cost_calculator of an encoder": lambda: explorables.cost_calculator("bert-base", length=512),
    "roofline": explorables.roofline,
    "roofline of one machine": lambda: explorables.roofline([("<mine>", 1e12, 1e11)], rows=64),
    "compute_budget": explorables.compute_budget,
    "continuous_batching": explorables.continuous_batching,
    "continuous_batching anew": lambda: explorables.continuous_batching("continuous", slots=8),
    "training_planner": explorables.training_planner,
    "training_planner of many": lambda: explorables.training_planner(
        "gpt3-175b", replicas=64, tensor=8, pipeline=8, zero=1, batch=2048, recompute="full"
    ),
    "quantisation_error": explorables.quantisation_error,
    "quantisation_error of groups": lambda: explorables.quantisation_error(
        "ordinary", shared=16, symmetric=False, bits=2, group=5
    ),
    "debugging_dashboard": lambda: explorables.debugging_dashboard(FAULTS),
    "debugging_dashboard answered": lambda: explorables.debugging_dashboard(
        FAULTS, "C", healthy=False, step=40, answer="scores"
    ),
    "pipeline_schedule": explorables.pipeline_schedule,
    "pipeline_schedule of one stage": lambda: explorables.pipeline_schedule("1f1b", stages=1),
    "float_bits": explorables.float_bits,
    "float_bits of a whole number": lambda: explorables.float_bits(-0.3, format="int8"),
    "float_bits of infinity": lambda: explorables.float_bits(format="e5m2", code=0b0_11111_00),
    "sparsity_designer": explorables.sparsity_designer,
    "expert_routing": explorables.expert_routing,
    "scan_tree": explorables.scan_tree,
    "delta_rule": explorables.delta_rule,
    "compute_budget of no model": lambda: explorables.compute_budget(1e24, 7e10, models=[]),
    "schedule_designer": explorables.schedule_designer,
    "schedule_designer of two": lambda: explorables.schedule_designer("wsd", against="noam"),
    "one_average": explorables.one_average,
    "optimizer_paths": explorables.optimizer_paths,
    "optimizer_paths that leave": lambda: explorables.optimizer_paths(
        "sgd", lr=0.3, against="none", surface="valley"
    ),
    "byte_pairs": explorables.byte_pairs,
    "byte_pairs joined": lambda: explorables.byte_pairs(text="</p> déjà & vu", merges=90),
    "patching_grid": lambda: explorables.patching_grid(
        {"stream": [[0.5, -0.25], [1, 0]]}, rows=range(2), columns=["<b>", " "]
    ),
    "rollout_stepper": lambda: explorables.rollout_stepper(
        patterns()[:, 0], TOKENS, layer=1, step=3
    ),
    "induction_head": explorables.induction_head,
    "induction_head without the first": lambda: explorables.induction_head(
        ["<b>", "x", "<b>"], first_head=False
    ),
    "live_model": explorables.live_model,
    "live_translator": explorables.live_translator,
    "live_translator changed": lambda: explorables.live_translator(
        "<b>Files</b>", n_beams=2, length_penalty=0, head=2, off=["cross 0.1"], step=3, token=1
    ),
    "live_model changed": lambda: explorables.live_model(off=["1.2"], patch=[1, 2, 3], token=4),
    "live_training": explorables.live_training,
    "live_training of two layers": lambda: explorables.live_training(
        "</p> & so on, “again” " * 9, n_layers=2, layer=1, lr=0.1, seed=7
    ),
    "head_viewer of many heads": lambda: explorables.head_viewer(
        [{"tokens": TOKENS, "weights": patterns(11, 3, causal=False)}], layer=10
    ),
    "head_viewer that asks first": lambda: explorables.pretrained_attention(sentence=1, layer=3),
    "softmax_temperature": explorables.softmax_temperature,
    "attention_steps": explorables.attention_steps,
    "attention_steps on a sentence": lambda: explorables.attention_steps(
        mode="sentence", sentence="The cat sat, on the mat.", causal=True, padding="masked"
    ),
    "soft_lookup_plane": explorables.soft_lookup_plane,
    "stepper": lambda: explorables.attention_walk([1], [[1], [2]], [[1], [-1]], ["one", "two"]),
    "quiz with choices": lambda: explorables.quiz("a-b", "Which?", choices=CHOICES),
    "quiz with a number": lambda: explorables.quiz("c", "How many?", answer=3, tolerance=0.1),
    "predict": lambda: explorables.predict("d", "Which of them?", choices=CHOICES),
    "explain": lambda: explorables.explain("e", "Why?", model="Because.", rubric=["1", "2", "3"]),
}
KINDS = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
VIEW = "application/vnd.jupyter.widget-view+json"


class Seen(HTMLParser):
    """Collects the text, the JSON and the elements of a piece of HTML."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text, self.payload, self.hosts = [], "", "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag != "br":  # which has no end
            self.open.append(tag)
        if dict(attrs).get("class") == "tfbook-explorable":
            self.hosts.append(dict(attrs)["data-module"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.payload += data
        else:
            self.text += data + " "


# ---------------------------------------------------------------------- what a cell stores


@KINDS
def test_bundle_holds_text_and_html_and_no_view_without_a_kernel(make):
    assert set(make()._repr_mimebundle_()) == {"text/plain", "text/html"}


@KINDS
def test_stored_forms_are_the_same_at_every_run(make):
    first, second = make()._repr_mimebundle_(), make()._repr_mimebundle_()
    assert first == second
    assert not re.search(r"0x[0-9a-f]{6,}", str(first))


@KINDS
def test_text_form_is_the_repr_and_a_description(make):
    figure = make()
    assert figure._repr_mimebundle_()["text/plain"] == repr(figure)
    assert len(repr(figure)) > 30 and max(map(len, repr(figure).splitlines())) <= 88


@KINDS
def test_html_names_the_module_carries_the_data_and_the_text_alternative(make):
    figure = make()
    seen = Seen(figure._repr_mimebundle_()["text/html"])
    assert seen.hosts == [figure.module] and seen.open == []
    payload = json.loads(seen.payload)
    assert payload.pop("data") == json.loads(json.dumps(figure.data))
    assert payload == figure._now()
    words = re.findall(r"\w{4,}", repr(figure))
    told = set(re.findall(r"\w{4,}", seen.text)) | {"Quiz", "Answer", "Step"}
    assert words and set(words) <= told


def test_text_that_looks_like_markup_stays_text():
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    quiz = explorables.quiz("q", evil, choices=[(evil, True, evil), ("b", False, "no")])
    seen = Seen(quiz._repr_mimebundle_()["text/html"])
    assert evil in seen.text
    assert json.loads(seen.payload)["data"]["question"] == evil
    assert "img" not in seen.open


# ---------------------------------------------------------------------- the modules


@pytest.mark.parametrize("name", explorables.NAMES)
def test_module_stands_alone(name):
    source = explorables.module_source(name)
    assert not re.search(r"^\s*(import|export (?!default))", source, flags=re.M)
    assert source.count("export default") == 1
    names = re.findall(r"^(?:async )?(?:const|let|class|function\*?) (\w+)", source, flags=re.M)
    assert len(names) == len(set(names))  # its own and the shared ones
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", source)


@pytest.mark.parametrize("name", [*explorables.NAMES, *_base.HELPERS])
def test_no_module_makes_markup_from_text(name):
    source = (_base.FOLDER / f"{name}.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", source)


def test_names_are_the_modules_in_the_folder():
    found = {path.stem for path in _base.FOLDER.glob("*.js")} - set(_base.HELPERS)
    assert found == set(explorables.NAMES)
    made = {make().module for make in MAKE.values()}
    assert made == found


def test_unknown_module_is_refused():
    with pytest.raises(ValueError, match="name must be one of"):
        explorables.module_source("../base")


def test_style_names_colours_of_both_hosts():
    style = explorables.style_source()
    assert "--pst-color-text-base" in style and "--jp-content-font-color1" in style
    assert "prefers-reduced-motion" in style and "url(" not in style


# ---------------------------------------------------------------------- values in Python


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("d_k", "temperature", "query"), [(1, 1.0, 0), (64, 0.5, 7), (512, 3, 31)])
def test_softmax_results_follow_the_formula(d_k, scaled, temperature, query):
    figure = explorables.softmax_temperature(
        d_k=d_k, scaled=scaled, temperature=temperature, query=query
    )
    keys, queries = (x[:, :d_k] for x in _softmax.gaussians())
    scores = queries @ keys.T / (np.sqrt(d_k) if scaled else 1)
    powers = np.exp(scores / temperature)
    p = powers / powers.sum(1, keepdims=True)
    # Column j of the Jacobian is diag(p) - p pᵀ times a unit vector.
    one = np.eye(8)
    norms = np.sqrt([sum(((q * (one[j] - q[j])) ** 2).sum() for j in range(8)) for q in p])
    assert figure.scores_used == pytest.approx(scores[query].tolist(), abs=1e-12)
    assert figure.weights == pytest.approx(p[query].tolist(), abs=1e-12)
    entropy = -sum(x * math.log(x) for x in p[query].tolist() if x)
    assert figure.entropy == pytest.approx(entropy, abs=1e-12)
    assert figure.largest == pytest.approx(p[query].max(), abs=1e-12)
    assert figure.jacobian_norm == pytest.approx(norms[query], abs=1e-12)
    assert figure.mean_jacobian_norm == pytest.approx(norms.mean(), abs=1e-12)


def test_random_numbers_look_standard_normal_and_independent():
    numbers = torch.cat([torch.tensor(x) for x in _softmax.gaussians()])
    count = numbers.numel()
    assert abs(numbers.mean().item()) < 4 / count**0.5
    assert numbers.var().item() == pytest.approx(1, abs=4 * (2 / count) ** 0.5)
    assert (numbers.abs() > 2).double().mean().item() == pytest.approx(0.0455, abs=0.006)
    correlation = torch.corrcoef(numbers) - torch.eye(len(numbers))
    assert correlation.abs().max().item() < 5 / 512**0.5


def test_own_scores_are_softmaxed():
    figure = explorables.softmax_temperature(mode="scores", scores=[3, -1, 0], temperature=2)
    expected = torch.softmax(torch.tensor([3.0, -1.0, 0.0]).double() / 2, dim=0)
    assert figure.weights == pytest.approx(expected.tolist(), abs=1e-12)


def mixed(q, k, v, allowed):
    """Attention of one query in plain numbers: the weights and what they mix."""
    dots = [math.fsum(a * b for a, b in zip(q, row, strict=True)) for row in k]
    scores = [x / math.sqrt(len(q)) for x in dots]
    powers = [math.exp(s) if ok else 0.0 for s, ok in zip(scores, allowed, strict=True)]
    weights = [x / math.fsum(powers) for x in powers]
    columns = zip(*v, strict=True)
    return weights, [math.fsum(w * x for w, x in zip(weights, c, strict=True)) for c in columns]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "masked", "unmasked"])
def test_cat_example_in_plain_numbers(causal, padding):
    figure = explorables.attention_steps(causal=causal, padding=padding, row=3)
    pads = 0 if padding == "none" else 2
    k, v = (figure.data[x] + [[0.0] * 4] * pads for x in ("keys", "values"))
    allowed = [(j <= 3 or not causal) and (j < 6 or padding == "unmasked") for j in range(6 + pads)]
    weights, output = mixed(figure.query, k, v, allowed)
    assert figure.weights == pytest.approx(weights, abs=1e-12)
    assert figure.output == pytest.approx(output, abs=1e-12)
    assert figure.scores == pytest.approx([0.3, 0.96, 0.1, 0, 0.3, 0.2] + [0] * pads, abs=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "masked", "unmasked"])
def test_sentence_in_plain_numbers_under_every_mask(causal, padding):
    figure = explorables.attention_steps(
        mode="sentence", sentence="the dog chased the cat", causal=causal, padding=padding, row=2
    )
    words, vectors = word_vectors()
    x = vectors[[words.index(w) for w in "the dog chased the cat".split()]].tolist()
    pads = 0 if padding == "none" else 2
    k = x + [[0.0] * len(x[0])] * pads
    for i, found in enumerate(figure.all_weights):
        allowed = [
            (j <= i or not causal) and (j < 5 or padding == "unmasked") for j in range(5 + pads)
        ]
        weights, output = mixed(x[i], k, k, allowed)
        assert found == pytest.approx(weights, abs=1e-12)
        if i == 2:
            assert figure.weights == found
            assert figure.output == pytest.approx(output, abs=1e-12)
    assert len(figure.all_weights) == 5
    assert figure.tokens == "the dog chased the cat".split() + ["[pad]"] * pads


@pytest.mark.parametrize("hard", [False, True])
def test_lookup_results_in_plain_numbers(hard):
    figure = explorables.soft_lookup_plane(query=(-0.4, 1.1), temperature=0.3, hard=hard)
    keys, values = figure.data["keys"], figure.data["values"]
    scores = [-0.4 * x + 1.1 * y for x, y in keys]
    assert figure.scores == pytest.approx(scores, abs=1e-12)
    powers = [float(s == max(scores)) if hard else math.exp(s / 0.3) for s in scores]
    weights = [x / sum(powers) for x in powers]
    assert figure.weights == pytest.approx(weights, abs=1e-12)
    mean = sum(w * x for w, x in zip(weights, values, strict=True))
    assert figure.result == pytest.approx(mean, abs=1e-12)


# ---------------------------------------------------------------------- attention weights, packed


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=2).filter(
        lambda rows: all(sum(row) > 1e-6 for row in rows)
    )
)
def test_packed_weights_come_back(rows):
    weights = torch.tensor(rows).double()
    weights = weights / weights.sum(-1, keepdim=True)
    packed = explorables.pack_weights(weights)
    assert packed == json.loads(json.dumps(packed))
    back = torch.tensor(explorables.unpack_weights(packed), dtype=torch.double)
    assert back.shape == weights.shape
    torch.testing.assert_close(back.sum(-1), torch.ones(2).double(), rtol=0, atol=1e-12)
    assert (back - weights).abs().max() < 4e-4  # 1.3e-4 of rounding, the rest of scaling the sum
    small = (weights > 1e-4) & (weights < 1e-2)
    assert ((back - weights).abs() <= 0.03 * weights)[small].all()


@pytest.mark.parametrize("causal", [False, True])
def test_causal_weights_take_half_the_room(causal):
    weights = patterns(causal=causal)
    packed = explorables.pack_weights(weights)
    assert packed["causal"] is causal and packed["shape"] == [2, 3, 7, 7]
    assert len(packed["codes"]) == 2 * 2 * 3 * (28 if causal else 49)
    back = torch.tensor(explorables.unpack_weights(packed), dtype=torch.double)
    assert (back - weights).abs().max() < 3e-4
    assert not causal or (back.triu(1) == 0).all()


def test_a_single_weight_on_the_next_token_is_kept():
    weights = torch.eye(5)[[0, 1, 3, 2, 4]].tolist()
    packed = explorables.pack_weights(weights)
    assert packed["causal"] is False and explorables.unpack_weights(packed) == weights


def test_packed_weights_and_numbers_give_the_same_figure():
    given = [{**pair, "weights": explorables.pack_weights(pair["weights"])} for pair in PAIRS]
    found, expected = (explorables.alignment_viewer(pairs) for pairs in (given, PAIRS))
    assert found._repr_mimebundle_() == expected._repr_mimebundle_()


# ---------------------------------------------------------------------- alignments and heads


def test_alignment_follows_rows_and_columns():
    figure = explorables.alignment_viewer(PAIRS, word=3)
    weights = torch.tensor(PAIRS[0]["weights"]).double()
    assert figure.weights == pytest.approx(weights[3].tolist(), abs=2e-4)
    assert figure.total == pytest.approx(1, abs=1e-12) and figure.best == 2
    assert figure.entropy == pytest.approx(torch.special.entr(weights[3]).sum().item(), abs=1e-3)
    figure.side, figure.word = "source", 1
    assert figure.weights == pytest.approx(weights[:, 1].tolist(), abs=2e-4)
    assert figure.total == pytest.approx(weights[:, 1].sum().item(), abs=5e-4)
    assert figure.best == 2 and figure.entropy is None
    figure.chosen = 1  # its source has one word: the last is followed
    assert figure.weights == [1, 1]


def head_facts(weights, tokens):
    """The same numbers by masks over the whole matrix."""
    n = len(tokens)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    same = torch.tensor([[a == b for b in tokens] for a in tokens])
    after = torch.zeros(n, n, dtype=torch.bool)
    after[:, 1:] = same[:, :-1]
    after &= j < i  # the earlier copy stands before j, and j itself is earlier
    asked = after.any(1)
    copied = (weights * after).sum(1)[asked]

    def mean(of):
        return (weights * of).sum(1)[1:].mean().item()

    return {
        "self": mean(i == j),
        "previous": mean(i - 1 == j),
        "first": mean(j == 0),
        "after_copy": copied.mean().item() if len(copied) else None,
        "next": (weights * (i + 1 == j)).sum(1)[1:-1].mean().item(),
        "last": weights[1:-1, -1].mean().item(),
        "distance": mean((i - j).abs()),
        "entropy": torch.special.entr(weights).sum(1)[1:].mean().item(),
    }


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", ["abcabcd", "aaaaaaa", "abcdefg", "abababa"])
def test_head_statistics_equal_masks_over_the_matrix(tokens, causal):
    weights = patterns(1, 1, causal=causal)[0, 0]
    found = _heads.head_stats(weights.tolist(), tokens)
    assert found == pytest.approx(head_facts(weights, tokens), abs=1e-12)


def test_pure_heads_have_pure_statistics():
    n, eye = len(TOKENS), torch.eye(len(TOKENS))
    previous = torch.cat([eye[:1], eye[:-1]])
    induction = eye.clone()
    for i, j in ((3, 1), (4, 2), (5, 3)):  # what followed the last a, b and c
        induction[i] = eye[j]
    weights = torch.stack([eye, previous, induction, torch.full((n, n), 1 / n)])[None]
    figure = explorables.head_viewer([{"tokens": TOKENS, "weights": weights}])
    assert figure.stats == pytest.approx(
        {"self": 1, "distance": 0, "entropy": 0}
        | dict.fromkeys(["previous", "first", "after_copy", "next", "last"], 0)
    )
    figure.head = 1
    assert figure.stats["previous"] == figure.stats["distance"] == 1
    figure.head = 2
    assert figure.stats["after_copy"] == 1
    figure.head = 3
    assert figure.stats["entropy"] == pytest.approx(math.log(n))
    assert figure.stats["first"] == pytest.approx(1 / n)


def test_head_viewer_follows_rows_and_columns():
    weights = patterns(tokens=5, causal=False)[1, 2]
    figure = read(text=1, layer=1, head=2, token=3)
    assert figure.weights == pytest.approx(weights[3].tolist(), abs=2e-4)
    figure.direction = "to"
    assert figure.weights == pytest.approx(weights[:, 3].tolist(), abs=2e-4)
    assert figure.stats == pytest.approx(head_facts(weights, "x \nyx"), abs=5e-3)


def test_sixty_tokens_of_eight_heads_stay_small():
    text = {"tokens": list("abcdefghijkl" * 5), "weights": patterns(2, 4, 60, causal=False)}
    assert len(explorables.head_viewer([text])._html()) < 70_000
    with pytest.raises(ValueError, match="texts must fit into 150000 characters, got 172800"):
        explorables.head_viewer([text] * 3)


# ---------------------------------------------------------------------- positions


@pytest.mark.parametrize(("d", "base", "p"), [(4, 2.0, 1), (32, 10_000.0, 10), (64, 500.0, 127)])
def test_wavelengths_follow_the_formula(d, base, p):
    figure = explorables.encoding_wavelengths(d_model=d, base=base, position=p, pair=d // 2 - 1)
    angles = [p / base ** (2 * i / d) for i in range(d // 2)]
    expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
    assert figure.encoding == pytest.approx(expected, abs=1e-12)
    wave = 2 * math.pi * base ** ((d - 2) / d)
    assert figure.wavelength == pytest.approx(wave, rel=1e-12)
    assert figure.frequency == pytest.approx(2 * math.pi / wave, rel=1e-12)
    assert figure.angle == pytest.approx(angles[-1], rel=1e-12)
    assert figure.turns == pytest.approx(p / wave, rel=1e-12)


@pytest.mark.parametrize("pair", [0, 1, 3])
@pytest.mark.parametrize(("m", "n"), [(0, 0), (40, 3), (7, 31)])
def test_rotation_is_a_product_of_complex_numbers(pair, m, n):
    figure = explorables.rope_rotation(
        d_head=8, base=500.0, pair=pair, m=m, n=n, q_angle=-130, k_angle=75
    )
    turn = cmath.exp(1j * 500 ** (-2 * pair / 8))
    q = cmath.rect(1, math.radians(-130)) * turn**m
    k = cmath.rect(1, math.radians(75)) * turn**n
    assert complex(*figure.rotated_q) == pytest.approx(q, abs=1e-12)
    assert complex(*figure.rotated_k) == pytest.approx(k, abs=1e-12)
    assert figure.score == pytest.approx((q * k.conjugate()).real, abs=1e-12)
    assert figure.unrotated == pytest.approx(math.cos(math.radians(205)), abs=1e-12)


@settings(max_examples=25)  # each makes three figures
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 10), st.integers(0, 7))
def test_moving_both_positions_keeps_the_score(m, n, by, pair):
    before = explorables.rope_rotation(m=m, n=n, pair=pair)
    after = explorables.rope_rotation(m=m + by, n=n + by, pair=pair)
    assert after.score == pytest.approx(before.score, abs=1e-12)
    assert explorables.rope_rotation(m=n, n=n, pair=pair).score == pytest.approx(before.unrotated)


# As the paper gives them for 8 and 16 heads; for other numbers, as the authors' code fills up.
SLOPES = {
    1: [2**-8],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    8: [2**-h for h in range(1, 9)],
    12: [*(2**-h for h in range(1, 9)), *(2 ** -(h + 0.5) for h in range(4))],
    16: [2 ** (-h / 2) for h in range(1, 17)],
}


@pytest.mark.parametrize("heads", SLOPES)
def test_slopes_are_those_of_the_paper(heads):
    figures = [
        explorables.relative_bias_shapes(n_heads=heads, head=h, distance=-10) for h in range(heads)
    ]
    assert [f.slope for f in figures] == pytest.approx(SLOPES[heads], rel=1e-12)
    assert [f.bias for f in figures] == pytest.approx([-10 * s for s in SLOPES[heads]], rel=1e-12)


@given(
    st.integers(-256, 256),
    st.booleans(),
    st.integers(2, 32).map(lambda half: 2 * half),
    st.integers(2, 512),
)
@example(-20, True, 64, 20)  # the last bucket begins soon after those of one distance
@example(-17, True, 64, 2)  # and where it cannot begin so soon, right after them
@example(-30, False, 36, 50)  # exactly on an edge, where float32 falls below it
def test_buckets_are_the_largest_that_begin_before_the_distance(delta, both, count, furthest):
    size = count // 2 if both else count
    exact = size // 2
    now = {"bidirectional": both, "n_buckets": count, "max_distance": furthest}
    found = _biases.buckets_of(now, torch.tensor([delta])).item()
    furthest = max(furthest, exact + 1)
    far = abs(delta) if both else max(0, -delta)
    start = size if both and delta > 0 else 0
    if far < exact:
        expected = {far}
    else:
        # bucket exact + s begins where far / exact = (furthest / exact)^(s / steps), in integers
        steps = size - exact
        begins = [(far**steps * exact**s, furthest**s * exact**steps) for s in range(steps)]
        # Exactly on an edge the rounding of float32, in which T5 was trained, decides.
        expected = {
            exact + max(s for s, (here, edge) in enumerate(begins) if here >= edge),
            exact + max((s for s, (here, edge) in enumerate(begins) if here > edge), default=0),
        }
    assert found - start in expected


def test_buckets_of_t5_itself():
    """32 buckets up to 128, one direction: where each begins, by the formula of its code."""
    now = {"bidirectional": False, "n_buckets": 32, "max_distance": 128}
    buckets = _biases.buckets_of(now, -torch.arange(200)).tolist()
    begins = [buckets.index(b) for b in range(32)]
    assert begins[:17] == list(range(17))
    assert begins[17:] == [math.ceil(16 * 8 ** (s / 16)) for s in range(1, 16)]
    assert buckets[-1] == 31


@pytest.mark.parametrize("both", [False, True])
def test_weights_of_a_bias_alone(both):
    table = torch.linspace(-2, 1, 8 * 3).sin().reshape(8, 3)
    figure = explorables.relative_bias_shapes(
        scheme="t5", bidirectional=both, n_buckets=8, max_distance=20, t5_table=table, head=2,
        reach=16, distance=-9, clip=5, shaw_table=torch.linspace(-1, 1, 11)[:, None],
    )  # fmt: skip
    deltas = list(range(-16, 17 if both else 1))
    # Edges of 8 buckets up to 20: 4 alone and then 4·5^(s/4); of each 4, 2 alone and 2·10^(s/2).
    far = [0, 1, 2, 7] if both else [0, 1, 2, 3, 4, 6, 9, 14]
    bucket = {d: sum(abs(d) >= edge for edge in far[1:]) + 4 * (both and d > 0) for d in deltas}
    biases = {
        "none": [0.0 for _ in deltas],
        "alibi": [-abs(d) / 8 for d in deltas],
        "t5": [table[bucket[d], 2].item() for d in deltas],
        "shaw": [max(-5, min(5, d)) / 5 for d in deltas],
    }
    for scheme, bias in biases.items():
        figure.scheme = scheme
        powers = [math.exp(x) for x in bias]
        assert figure.weights == pytest.approx([x / sum(powers) for x in powers], abs=1e-7)
        assert figure.bias == pytest.approx(bias[7], abs=1e-7)
    assert figure.bucket == -5
    with pytest.raises(ValueError, match="clip is fixed to 5 by the table"):
        figure.clip = 6


def test_scheme_without_numbers_has_buckets_only():
    figure = explorables.relative_bias_shapes(scheme="t5")
    assert figure.bucket == 12 and figure.bias is None and figure.weights is None
    figure.n_buckets, figure.max_distance = 64, 2  # cannot be: the last bucket begins right after
    figure.distance = -64
    assert figure.bucket == 63


def test_control_can_be_set_and_the_results_follow():
    figure = explorables.softmax_temperature()
    before = figure.largest
    figure.scaled = True
    assert figure.scaled is True and figure.largest < before
    assert json.loads(Seen(figure._html()).payload)["scaled"] is True
    assert {"scaled", "temperature", "largest"} <= set(dir(figure))


@pytest.mark.parametrize("number", [3, 3.05, "right"])
def test_quiz_knows_right_and_wrong(number):
    quiz = explorables.quiz("c", "How many?", answer=3, tolerance=0.1)
    assert quiz.answer is None and quiz.correct is None
    quiz.answer = 4.0 if number == "right" else number
    assert quiz.correct is (number != "right")
    choice = explorables.quiz("a", "Which?", choices=CHOICES)
    choice.answer = 1
    assert choice.correct is True


@pytest.mark.parametrize(("weight", "factor"), [(0.5, 1), (1, 1), (0, -1), (0.25, -0.6)])
def test_one_average_loses_half_at_least(weight, factor):
    figure = explorables.one_average(weight=weight, factor=factor)
    a, b = torch.eye(2).double()  # two words of length 1 that have nothing in common
    given = factor * (weight * a + (1 - weight) * b)
    error = (given - (a - b)).square().sum() / (a - b).square().sum()
    assert [figure.first, figure.second] == pytest.approx(given.tolist(), abs=1e-12)
    assert figure.error == pytest.approx(error.item(), abs=1e-12) and figure.error >= 0.5


def test_live_widget_carries_the_values_both_ways():
    pytest.importorskip("anywidget")
    figure = explorables.soft_lookup_plane()
    widget = figure.widget
    figure.hard = True
    assert widget.hard is True
    widget.query = [0.1, 0.2]  # as the browser does
    assert figure.query == [0.1, 0.2]
    assert widget._esm == explorables.module_source("soft_lookup_plane")
    assert widget.trait_metadata("temperature", "sync") is True


def test_nothing_needs_anywidget_until_there_is_a_kernel(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.setattr(_base, "_live", lambda: True)
    _base._widget_class.cache_clear()
    figure = explorables.softmax_temperature()
    assert set(figure._repr_mimebundle_()) == {"text/plain", "text/html"}
    with pytest.raises(ImportError):
        figure.widget  # noqa: B018


def test_a_question_of_the_book_is_found_by_its_name():
    choice, number = explorables.quiz("why-soft"), explorables.quiz("copies-beside-a-sink")
    right = [c["text"] for c in choice.data["choices"] if c["correct"]]
    assert len(choice.data["choices"]) == 4 and len(right) == 1 and "gradient" in right[0]
    assert (number.data["target"], number.data["tolerance"]) == (3, 0.01)
    assert [wrong["value"] for wrong in number.data["feedback"]] == [4]


FRESH = """
import sys
from tfbook.teaching import quiz
print(quiz("why-soft")._repr_mimebundle_()["text/plain"].count("?"))
print(*sys.modules)
from tfbook.teaching.explorables import softmax_temperature
print(softmax_temperature()._repr_mimebundle_()["text/plain"].count("√d_k"))
print(*sys.modules)
"""


def test_a_quiz_loads_nothing_that_computes_and_a_figure_what_it_needs():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    quiz, figure = (set(line.split()) for line in lines if "tfbook" in line)
    shared = {"tfbook", "tfbook.teaching", "tfbook.teaching.explorables", "tfbook.teaching.boxes"}
    own = ("_asked", "_base", "_answers", "_questions", "_quiz")
    rest = {f"tfbook.teaching.explorables.{name}" for name in own}
    assert {name for name in quiz if name.partition(".")[0] == "tfbook"} == shared | rest
    assert not {"torch", "numpy", "anywidget", "matplotlib"} & quiz
    assert {"torch", "tfbook.attention"} <= figure
    assert not {"tfbook.models", "tfbook.training", "anywidget", "matplotlib"} & figure


def test_every_name_of_the_door_is_there_and_no_other():
    for name in explorables.__all__:
        assert getattr(explorables, name) is not None
    assert dir(explorables) == sorted(explorables.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'softmax_temperatur'"):
        explorables.softmax_temperatur  # noqa: B018


# ---------------------------------------------------------------------- bad input

X = explorables
BAD = [
    (lambda: X.softmax_temperature(mode="other"), ValueError, "mode must be one of keys, scores"),
    (lambda: X.softmax_temperature(d_k=0), ValueError, "d_k must be between 1 and 512, got 0"),
    (lambda: X.softmax_temperature(d_k=2.0), TypeError, "d_k must be a whole number, got float"),
    (lambda: X.softmax_temperature(scaled=1), TypeError, "scaled must be True or False"),
    (lambda: X.softmax_temperature(temperature=0), ValueError, "temperature must be between"),
    (lambda: X.softmax_temperature(temperature="1"), TypeError, "temperature must be a number"),
    (lambda: X.softmax_temperature(temperature=math.nan), ValueError, "temperature must be"),
    (lambda: X.softmax_temperature(query=32), ValueError, "query must be between 0 and 31"),
    (lambda: X.softmax_temperature(scores=[1]), ValueError, "scores must have 2 to 8 numbers"),
    (lambda: X.softmax_temperature(scores=[1, 11]), ValueError, "an entry of scores"),
    (lambda: X.attention_steps(mode="x"), ValueError, "mode must be one of example, sentence"),
    (lambda: X.attention_steps(query=[1, 2]), ValueError, "query must have 4 numbers, got 2"),
    (lambda: X.attention_steps(sentence="hello zorg"), ValueError, "known words, got hello, zorg"),
    (lambda: X.attention_steps(sentence=" . "), ValueError, "1 to 10 words, got 0"),
    (lambda: X.attention_steps(sentence="the " * 11), ValueError, "1 to 10 words, got 11"),
    (lambda: X.attention_steps(sentence=3), TypeError, "sentence must be a string, got int"),
    (lambda: X.attention_steps(row=6), ValueError, "row must be between 0 and 5, got 6"),
    (lambda: X.attention_steps(padding=2), ValueError, "padding must be one of"),
    (lambda: X.attention_steps(tokens=["a"]), ValueError, "keys must have 1 rows, got 6"),
    (lambda: X.attention_steps(features=["a"]), ValueError, "keys row 0 must have 1 numbers"),
    (lambda: X.attention_steps(tokens=[]), ValueError, "tokens must be 1 to 10"),
    (lambda: X.soft_lookup_plane(keys=[[1, 2, 3]] * 3), ValueError, "row 0 must have 2 numbers"),
    (lambda: X.soft_lookup_plane(keys=[[1, 1]], values=[1]), ValueError, "2 to 8 points, got 1"),
    (lambda: X.soft_lookup_plane(values=[1, 2]), ValueError, "values must have 5 numbers, got 2"),
    (lambda: X.soft_lookup_plane(query=[2, 0]), ValueError, "an entry of query must be between"),
    (lambda: X.quiz("A b", "?", answer=1), ValueError, "slug must be lower case"),
    (lambda: X.quiz("a", " ", answer=1), ValueError, "question must not be empty"),
    (lambda: X.quiz("a", "one ` tick", answer=1), ValueError, "backticks in pairs"),
    (lambda: X.quiz("a", "?"), ValueError, "give either choices or answer"),
    (lambda: X.quiz("why-sof"), ValueError, "'why-sof' is not a .* did you mean 'why-soft'"),
    (lambda: X.quiz("zzzz"), ValueError, "'zzzz' is not a question of the book: for a question of"),
    (lambda: X.quiz("why-soft", answer=1), ValueError, "question must not be missing"),
    (lambda: X.quiz("why-soft", tolerance=1), ValueError, "question must not be missing"),
    (lambda: X.quiz("a", "?", choices=CHOICES, answer=1), ValueError, "give either choices or"),
    (lambda: X.quiz("a", "?", choices=CHOICES[:1]), ValueError, "choices must be 2 to 6, got 1"),
    (lambda: X.quiz("a", "?", choices=[CHOICES[0]] * 2), ValueError, "exactly one right"),
    (lambda: X.quiz("a", "?", choices=[*CHOICES, ("two", False, "-")]), ValueError, "must differ"),
    (lambda: X.quiz("a", "?", choices=[("x", True), ("y", False)]), ValueError, r"choices\[0\]"),
    (lambda: X.quiz("a", "?", choices=[("x", 1, "z"), *CHOICES]), TypeError, "True or False"),
    (lambda: X.quiz("a", "?", choices=[("x", False, ""), *CHOICES]), ValueError, "feedback must"),
    (lambda: X.quiz("a", "?", answer=1, tolerance=-1), ValueError, "tolerance must be"),
    (lambda: X.quiz("a", "?", answer=1, feedback={1: "no"}), ValueError, "got 1, which is right"),
    (lambda: X.softmax_temperature().nothing, AttributeError, "has no 'nothing'; it has mode"),
    (lambda: X.pack_weights("abc"), TypeError, "weights must be rows of numbers or packed"),
    (lambda: X.pack_weights([[0.5, 0.6]]), ValueError, "row 0 sums to 1.100"),
    (lambda: X.pack_weights([[1.5, -0.5]]), ValueError, "rows of weights that sum to 1"),
    (lambda: X.pack_weights([[[1.0]], []]), ValueError, "blocks of one size"),
    (lambda: X.pack_weights([[0.5, 0.5], [1.0]]), ValueError, "rows of 2 numbers, not so row 1"),
    (lambda: X.pack_weights([[0.5, "a"]]), TypeError, "must be numbers, got str in row 0"),
    (lambda: X.pack_weights([[0.5, math.nan]]), ValueError, "row 0 sums to nan"),
    (lambda: X.unpack_weights({"codes": "AA"}), ValueError, "that pack_weights made"),
    (lambda: X.unpack_weights(packed(codes="//")), ValueError, "two characters a weight, got 2"),
    (lambda: X.unpack_weights(packed(codes="A" * 14)), ValueError, "row 0 is empty"),
    (lambda: X.unpack_weights(packed(codes="é" * 14)), ValueError, "that pack_weights made"),
    (lambda: X.alignment_viewer([]), ValueError, "pairs must be 1 to 24 dictionaries, got 0"),
    (lambda: X.alignment_viewer(PAIRS[0]), TypeError, "pairs must be a list of dictionaries"),
    (lambda: X.alignment_viewer([1]), TypeError, r"pairs\[0\] must be a dictionary, got int"),
    (lambda: X.alignment_viewer([{"source": ["a"]}]), ValueError, "must have target, weights"),
    (lambda: align(source="the open file"), TypeError, "source must be a list of strings, got str"),
    (lambda: align(target=["le", 2, "x", "y"]), TypeError, "list of strings, got int in it"),
    (lambda: align(source=["a"] * 41), ValueError, "source must have 1 to 40 tokens, got 41"),
    (lambda: align(source=["a", "b"]), ValueError, r"\(4, 2\), got \(4, 3\)"),
    (lambda: align(weights=torch.ones(4, 3)), ValueError, r"pairs\[0\] weights must have rows"),
    (lambda: align(weights=patterns()), ValueError, "must have 2 dimensions, got shape"),
    (lambda: align(reference=3), TypeError, "reference must be a string, got int"),
    (lambda: X.alignment_viewer(PAIRS, chosen=2), ValueError, "chosen must be between 0 and 1"),
    (lambda: X.alignment_viewer(PAIRS, word=4), ValueError, "word must be between 0 and 3, got 4"),
    (lambda: X.alignment_viewer(PAIRS, side="both"), ValueError, "side must be one of source, tar"),
    (lambda: X.head_viewer({}), TypeError, "texts must be a list of dictionaries, got dict"),
    (lambda: X.head_viewer([]), ValueError, "texts must be 1 to 8 dictionaries, got 0"),
    (lambda: X.head_viewer(["a"]), TypeError, r"texts\[0\] must be a dictionary, got str"),
    (lambda: X.head_viewer([{"tokens": TOKENS}]), ValueError, r"texts\[0\] must have weights"),
    (lambda: heads(tokens=TOKENS[:-1]), ValueError, "6, 6.* for 6 tokens, got .2, 3, 7, 7"),
    (lambda: heads(tokens=["a"]), ValueError, "tokens must have 2 to 64 tokens, got 1"),
    (lambda: heads(weights=patterns()[0]), ValueError, "weights must have 4 dimensions"),
    (lambda: heads(title=" "), ValueError, "title must be a text"),
    (lambda: heads(weights=patterns(28, 11)), ValueError, "at most 300 heads, got 308"),
    (lambda: heads(more=patterns(1, 3)), ValueError, "2 layers and 3 heads like those of texts"),
    (lambda: read(layer=2), ValueError, "layer must be between 0 and 1, got 2"),
    (lambda: read(token=7), ValueError, "token must be between 0 and 6, got 7"),
    (lambda: read(direction="up"), ValueError, "direction must be one of from, to"),
    (lambda: X.encoding_wavelengths(d_model=5), ValueError, "d_model must be even, got 5"),
    (lambda: X.encoding_wavelengths(position=128), ValueError, "position must be between 0 and"),
    (lambda: X.encoding_wavelengths(pair=16), ValueError, "pair must be between 0 and 15, got 16"),
    (lambda: X.encoding_wavelengths(base=1), ValueError, "base must be between 2 and 1e"),
    (lambda: X.rope_rotation(d_head=7), ValueError, "d_head must be even, got 7"),
    (lambda: X.rope_rotation(m=41), ValueError, "m must be between 0 and 40, got 41"),
    (lambda: X.rope_rotation(n=1.0), TypeError, "n must be a whole number, got float"),
    (lambda: X.rope_rotation(q_angle=200), ValueError, "q_angle must be between -180 and 180"),
    (lambda: X.relative_bias_shapes(scheme="rope"), ValueError, "scheme must be one of none, alib"),
    (lambda: X.relative_bias_shapes(n_buckets=7), ValueError, "n_buckets must be even, got 7"),
    (lambda: X.relative_bias_shapes(max_distance=16), ValueError, "must exceed the 16 distances"),
    (lambda: X.relative_bias_shapes(distance=1), ValueError, "at most 0 unless bidirectional"),
    (lambda: X.relative_bias_shapes(distance=-65), ValueError, "distance must be between -64 and"),
    (lambda: X.relative_bias_shapes(t5_table=[[0.0]]), ValueError, "t5_table must have 32 rows"),
    (lambda: X.relative_bias_shapes(shaw_table=[[0]]), ValueError, "shaw_table must have 33 rows"),
    (lambda: X.shape_tracer("gpt5"), ValueError, "preset must be one of transformer-base"),
    (lambda: X.shape_tracer(n_heads=7), ValueError, "n_heads must divide d_model = 576 with an"),
    (lambda: X.shape_tracer(n_heads=64), ValueError, "an even size each, got 64"),
    (lambda: X.shape_tracer(n_kv_heads=2), ValueError, "n_kv_heads must divide n_heads = 9, got 2"),
    (
        lambda: X.shape_tracer("gpt2", length=1025),
        ValueError,
        "at most 1024, the positions",
    ),
    (lambda: X.shape_tracer(length=0), ValueError, "length must be between 1 and 32768, got 0"),
    (lambda: X.shape_tracer(d_model=64.0), TypeError, "d_model must be a whole number, got float"),
    (lambda: X.shape_tracer(d_model=577), ValueError, "d_model must be even, got 577"),
    (lambda: X.one_average(weight=1.1), ValueError, "weight must be between 0 and 1, got 1.1"),
    (lambda: X.one_average(factor="1"), TypeError, "factor must be a number, got str"),
    (lambda: X.one_average(words=("a",)), ValueError, "words must be two names, got 1"),
    (lambda: X.cache_growth(d_head=65), ValueError, "d_head must be even, got 65"),
    (lambda: X.shape_tracer(tied=1), TypeError, "tied must be True or False, got int"),
    (lambda: X.shape_tracer(part="x"), ValueError, "part must be one of embed, position"),
    (lambda: X.shape_tracer(precision="f4"), ValueError, "precision must be one of float32"),
    (lambda: X.shape_tracer(measure="time"), ValueError, "measure must be one of parameters"),
    (lambda: X.cache_growth("bert-base"), ValueError, "preset must be one of gpt2, gpt2-xl"),
    (lambda: X.cache_growth(n_kv_heads=4), ValueError, "n_kv_heads must divide n_heads = 9, got 4"),
    (lambda: X.cache_growth(n_heads=8, n_kv_heads=16), ValueError, "n_heads = 8, got 16"),
    (lambda: X.cache_growth(window=8), ValueError, "window must be between 16 and 8192, got 8"),
    (lambda: X.cache_growth(batch=0), ValueError, "batch must be between 1 and 256, got 0"),
    (lambda: X.cache_growth(d_head="64"), TypeError, "d_head must be a whole number, got str"),
    (lambda: X.next_token_sampling({}), TypeError, "prompts must be a list of dictionaries"),
    (lambda: X.next_token_sampling([]), ValueError, "prompts must be 1 to 12 dictionaries, got 0"),
    (lambda: X.next_token_sampling([3]), TypeError, r"prompts\[0\] must be a dictionary, got int"),
    (lambda: X.next_token_sampling([{"prompt": "a"}]), ValueError, "must have log_probs, rest, to"),
    (lambda: following(prompt=""), TypeError, r"prompts\[0\] prompt must be a string with"),
    (lambda: following(log_probs=[-1.0]), ValueError, "log_probs must have 12 numbers, got 1"),
    (lambda: following(log_probs=[-9.0] * 11 + [-1.0]), ValueError, "log_probs and then rest must"),
    (lambda: following(rest=[[3]]), ValueError, r"rest\[0\] must be \[count, log-probability\]"),
    (lambda: following(rest=[[0, -9.0]]), ValueError, "count must be between 1 and"),
    (lambda: following(rest=[]), ValueError, "probabilities that sum to 1, got 0"),
    (lambda: following({"temperature": 0}), ValueError, "temperature must be between 0.1 and 5"),
    (lambda: following({"top_k": 13}), ValueError, "top_k must be between 0 and 12, got 13"),
    (lambda: following({"top_p": 0}), ValueError, "top_p must be between 0.01 and 1, got 0"),
    (lambda: following({"min_p": 2}), ValueError, "min_p must be between 0 and 1, got 2"),
    (lambda: following({"draws": -1}), ValueError, "draws must be between 0 and 10000, got -1"),
    (lambda: X.schedule_designer("step"), ValueError, "shape must be one of constant, noam"),
    (lambda: X.schedule_designer(against="x"), ValueError, "against must be one of none, const"),
    (lambda: X.schedule_designer(peak=0), ValueError, "peak must be between 1e-06 and 1, got 0"),
    (lambda: X.schedule_designer(steps=50), ValueError, "steps must be between 100 and 100000"),
    (lambda: X.schedule_designer(steps=1e4), TypeError, "steps must be a whole number, got float"),
    (lambda: X.schedule_designer(steps=100), ValueError, "warmup must be below steps = 100, got"),
    (lambda: X.schedule_designer(step=10_001), ValueError, "step must be at most steps = 10000"),
    (lambda: X.schedule_designer("wsd", decay=9_501), ValueError, "decay must be with the warm-up"),
    (lambda: X.schedule_designer(floor=-0.1), ValueError, "floor must be between 0 and 1, got"),
    (lambda: X.schedule_designer(stretch=0), ValueError, "stretch must be between 1 and 4, got 0"),
    (lambda: X.schedule_designer(fall="x"), ValueError, "fall must be one of linear, sqrt"),
    (lambda: X.optimizer_paths("muon"), ValueError, "optimizer must be one of sgd, momentum, adam"),
    (lambda: X.optimizer_paths(against=None), ValueError, "against must be one of none, sgd"),
    (lambda: X.optimizer_paths(surface="hill"), ValueError, "surface must be one of bowl, valley"),
    (lambda: X.optimizer_paths(lr=0), ValueError, "lr must be between 0.001 and 1, got 0"),
    (lambda: X.optimizer_paths(against_lr="1"), TypeError, "against_lr must be a number, got str"),
    (lambda: X.optimizer_paths(momentum=1), ValueError, "momentum must be between 0 and 0.99"),
    (lambda: X.optimizer_paths(beta2=1), ValueError, "beta2 must be between 0.5 and 0.999, got 1"),
    (lambda: X.optimizer_paths(weight_decay=-1), ValueError, "weight_decay must be between 0 and"),
    (lambda: X.optimizer_paths(tilt=7.5), TypeError, "tilt must be a whole number, got float"),
    (lambda: X.optimizer_paths(start=(0, 3)), ValueError, "an entry of start must be between"),
    (lambda: X.optimizer_paths(start=(0,)), ValueError, "start must have 2 numbers, got 1"),
    (lambda: X.optimizer_paths(step=201), ValueError, "step must be between 0 and 200, got 201"),
    (lambda: X.byte_pairs("abc"), TypeError, "tokenizer must be a BytePairs, got str"),
    (lambda: X.byte_pairs(no_merges()), ValueError, "tokenizer must have 1 to 1000 merges, got 0"),
    (lambda: X.byte_pairs(texts="abc"), TypeError, "texts must be a list of strings, got str"),
    (lambda: X.byte_pairs(texts=[]), ValueError, "texts must be 1 to 8 strings, got 0"),
    (lambda: X.byte_pairs(texts=[3]), TypeError, r"texts\[0\] must be a string, got int"),
    (lambda: X.byte_pairs(text="a" * 301), ValueError, "text must have at most 300 characters"),
    (lambda: X.byte_pairs(text="\ud800"), ValueError, "text must be valid Unicode, got half"),
    (lambda: X.byte_pairs(merges=151), ValueError, "merges must be between 0 and 150, got 151"),
    (lambda: X.pack_next_tokens("", [0, 0], "ab"), TypeError, "prompt must be a string with"),
    (lambda: X.pack_next_tokens("x", [[0.0]], "a"), TypeError, "logits must be a list of numbers"),
    (lambda: X.pack_next_tokens("x", [math.nan, 0.0], "ab"), ValueError, "logits must be finite"),
    (
        lambda: X.pack_next_tokens("x", [0.0, 0.0], "abc"),
        ValueError,
        "as many as logits, got 3",
    ),
    (lambda: X.pack_next_tokens("x", [0.0, -math.inf], "ab", shown=2), ValueError, "2 tokens, got"),
    (lambda: X.pack_next_tokens("x", [0.0], "a", shown=1), ValueError, "shown must be between 2"),
]


def no_merges():
    return BytePairs.train([], vocab_size=256)


def packed(**changes):
    return {"shape": [1, 7], "causal": False, "codes": "//" * 7} | changes


def align(**changes):
    return explorables.alignment_viewer([PAIRS[0] | changes])


def following(controls=None, **changes):
    return explorables.next_token_sampling([NEXT | changes], **(controls or {}))


def heads(more=None, **changes):
    text = {"tokens": TOKENS, "weights": patterns()}
    others = [] if more is None else [text | {"weights": more}]
    return explorables.head_viewer([text | changes, *others])


@pytest.mark.untyped
@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[m for *_, m in BAD])
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", ["weights", "module", "anything"])
def test_only_controls_can_be_set(name):
    with pytest.raises(AttributeError, match="only controls can be set"):
        setattr(explorables.softmax_temperature(), name, 1)


def test_control_set_out_of_range_is_refused_and_keeps_its_value():
    figure = explorables.softmax_temperature()
    with pytest.raises(ValueError, match="temperature must be between"):
        figure.temperature = 100
    assert figure.temperature == 1.0


# ---------------------------------------------------------------------- in a kernel


@pytest.mark.slow
def test_a_live_kernel_shows_the_same_each_time_but_for_its_views():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    sources = [
        "explorables.softmax_temperature()",
        "explorables.attention_steps()",
        "explorables.soft_lookup_plane()",
        f"explorables.alignment_viewer({PAIRS})",
        "explorables.relative_bias_shapes()",
        "explorables.quiz('c', 'How many?', answer=3)",
    ]
    twice = ["from tfbook.teaching import explorables", *sources, *sources]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, twice)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbclient.NotebookClient(notebook, timeout=600).execute()
    shown = []
    for cell in notebook.cells[1:]:
        (output,) = cell.outputs
        assert set(output.data) == {"text/plain", "text/html", VIEW}
        del output.data[VIEW]  # what is left is stored, and nbval compares it in each chapter
        shown.append(output.data)
    assert shown[: len(sources)] == shown[len(sources) :]
