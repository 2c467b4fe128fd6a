"""The Python side of explorables: what a cell stores, what Python reads, what is refused."""

import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch

from tfbook import attention, explorables
from tfbook.data import word_vectors
from tfbook.explorables import _base, _softmax
from tfbook.masks import causal_mask

CHOICES = [("one", False, "No: `one`."), ("two", True, "Yes: d_k."), ("three", False, "No.")]
MAKE = {
    "softmax_temperature": explorables.softmax_temperature,
    "attention_steps": explorables.attention_steps,
    "attention_steps on a sentence": lambda: explorables.attention_steps(
        mode="sentence", sentence="The cat sat, on the mat.", causal=True, padding="masked"
    ),
    "soft_lookup_plane": explorables.soft_lookup_plane,
    "quiz with choices": lambda: explorables.quiz("a-b", "Which?", choices=CHOICES),
    "quiz with a number": lambda: explorables.quiz("c", "How many?", answer=3, tolerance=0.1),
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
    assert words and set(words) <= set(re.findall(r"\w{4,}", seen.text)) | {"Quiz", "Answer"}


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
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", source)


@pytest.mark.parametrize("name", [*explorables.NAMES, "shared"])
def test_no_module_makes_markup_from_text(name):
    source = (_base.FOLDER / f"{name}.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", source)


def test_names_are_the_modules_in_the_folder():
    found = {path.stem for path in _base.FOLDER.glob("*.js")} - {"shared"}
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
def test_softmax_results_equal_the_package(d_k, scaled, temperature, query):
    figure = explorables.softmax_temperature(
        d_k=d_k, scaled=scaled, temperature=temperature, query=query
    )
    keys, queries = (torch.tensor(x[:, :d_k]) for x in _softmax.gaussians())
    scale = (d_k**-0.5 if scaled else 1.0) / temperature
    _, p = attention.attend(queries, keys, keys, scale=scale, return_weights=True)
    norms = torch.linalg.matrix_norm(attention.softmax_jacobian(p))
    assert figure.weights == pytest.approx(p[query].tolist(), abs=1e-12)
    assert figure.entropy == pytest.approx(torch.special.entr(p[query]).sum().item(), abs=1e-12)
    assert figure.largest == pytest.approx(p[query].max().item(), abs=1e-12)
    assert figure.jacobian_norm == pytest.approx(norms[query].item(), abs=1e-12)
    assert figure.mean_jacobian_norm == pytest.approx(norms.mean().item(), abs=1e-12)


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


def test_cat_example_equals_attention():
    figure = explorables.attention_steps()
    q, k, v = (
        torch.tensor(x, dtype=torch.double)
        for x in ([figure.query], figure.data["keys"], figure.data["values"])
    )
    output, weights = attention.attend(q, k, v, return_weights=True)
    assert figure.weights == pytest.approx(weights[0].tolist(), abs=1e-12)
    assert figure.output == pytest.approx(output[0].tolist(), abs=1e-12)
    assert figure.scores == pytest.approx([0.3, 0.96, 0.1, 0, 0.3, 0.2], abs=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "masked", "unmasked"])
def test_sentence_equals_attention_under_every_mask(causal, padding):
    figure = explorables.attention_steps(
        mode="sentence", sentence="the dog chased the cat", causal=causal, padding=padding, row=2
    )
    words, vectors = word_vectors()
    x = vectors[[words.index(w) for w in "the dog chased the cat".split()]].double()
    pads = 0 if padding == "none" else 2
    k = torch.cat([x, x.new_zeros(pads, x.shape[1])])
    mask = torch.ones(len(x), len(k), dtype=torch.bool)
    if causal:
        mask = causal_mask(len(k))[: len(x)]
    if padding == "masked":
        mask = mask & (torch.arange(len(k)) < len(x))
    output, weights = attention.attend(x, k, k, mask=mask, return_weights=True)
    for found, expected in zip(figure.all_weights, weights.tolist(), strict=True):
        assert found == pytest.approx(expected, abs=1e-12)
    assert figure.output == pytest.approx(output[2].tolist(), abs=1e-12)
    assert figure.tokens == "the dog chased the cat".split() + ["[pad]"] * pads


@pytest.mark.parametrize("hard", [False, True])
def test_lookup_results_equal_the_package(hard):
    figure = explorables.soft_lookup_plane(query=(-0.4, 1.1), temperature=0.3, hard=hard)
    q, k, v = (
        torch.tensor(x, dtype=torch.double)
        for x in ([figure.query], figure.data["keys"], [[x] for x in figure.data["values"]])
    )
    look = (
        attention.hard_lookup(q, k, v, return_weights=True)
        if hard
        else attention.soft_lookup(q, k, v, temperature=0.3, return_weights=True)
    )
    assert figure.result == pytest.approx(look[0].item(), abs=1e-12)
    assert figure.weights == pytest.approx(look[1][0].tolist(), abs=1e-12)


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


def test_importing_explorables_loads_neither_torch_nor_anywidget():
    code = (
        "import sys, tfbook.explorables as x; x.softmax_temperature()._repr_mimebundle_();"
        "assert not {'torch', 'anywidget', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


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
]


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
def test_nbval_accepts_the_normalised_outputs_of_a_live_kernel(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("nbval")
    sources = [
        "from tfbook import explorables",
        "explorables.softmax_temperature()",
        "explorables.attention_steps()",
        "explorables.soft_lookup_plane()",
        "explorables.quiz('c', 'How many?', answer=3)",
    ]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbclient.NotebookClient(notebook, timeout=120).execute()
    for cell in notebook.cells[1:]:
        (output,) = cell.outputs
        assert set(output.data) == {"text/plain", "text/html", VIEW}
        del output.data[VIEW]
    notebook.metadata.pop("widgets", None)
    path = tmp_path / "figures.ipynb"
    nbformat.write(notebook, path)
    command = [sys.executable, "-m", "pytest", "--nbval", str(path), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
