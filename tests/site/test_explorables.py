"""Explorables in a real browser, without a kernel: their numbers equal the package's.

Small pages carry what a notebook's cell stores, the committed host and the modules as the book's
build writes them, and the theme's style sheets. Each number is read off the page in full precision
and compared with `tfbook.attention`, after controls were moved by keyboard and by touch.
"""

import functools
import http.server
import importlib.util
import json
import math
import re
import shutil
import threading
from pathlib import Path

import jaxtyping
import pytest
import torch
from visits import ALIVE, FOUND, MARK

from book.tools.assets import wrap_modules
from tfbook import attention, costs, experiments, generation, optimization, positions
from tfbook.data import BytePairs, tokenizers, word_vectors
from tfbook.models import preset
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _bytepairs, _cache, _sampling, _schedules, _softmax

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-6
CHOICES = [
    ("The first, `a`.", False, "Not the first: `a` is wrong."),
    ("The second.", True, "Yes, because of d_k."),
    ("The third.", False, "Not the third."),
]


def some_weights(*shape, causal=False):
    """Random attention weights, float64."""
    generator = torch.Generator().manual_seed(len(shape))
    scores = 2 * torch.randn(*shape, generator=generator).double()
    if causal:
        scores = scores.masked_fill(~attention.causal_mask(shape[-1]), -math.inf)
    return scores.softmax(-1)


SOURCE = "the selected file could not be opened <eos>".split()
TARGET = "le fichier <b>sélectionné</b> n' a pas pu être ouvert . <eos>".split()
LONG = [f"word{i}" for i in range(40)]
PAIRS = [
    {"source": SOURCE, "target": TARGET, "weights": some_weights(11, 8), "reference": "Le <i>."},
    {"source": ["yes"], "target": ["oui", "!"], "weights": [[1.0], [1.0]]},
    {"source": LONG, "target": LONG[:39], "weights": some_weights(39, 40)},
]
LETTERS = list("to be, or not to be,\nall see the <question>")
TEXTS = [
    {"tokens": LETTERS, "weights": some_weights(2, 4, 43, 43, causal=True), "title": "letters"},
    {"tokens": SOURCE, "weights": some_weights(2, 4, 8, 8), "title": "<words>"},
]
REAL_HEADS = experiments.log("pretrained_heads")
NEXT = experiments.log("next_tokens")["prompts"]
EFFECTS = {"stream": torch.linspace(-1, 2, 16).reshape(2, 8), "attention": torch.ones(2, 8)}
BIAS_TABLE = (torch.arange(32 * 4).double().reshape(32, 4) / 10).sin() - 1
SHAW_TABLE = torch.linspace(-1, 1, 11).double()[:, None]
FIGURES = {
    "softmax": lambda: [explorables.softmax_temperature()],
    "steps": lambda: [explorables.attention_steps()],
    "plane": lambda: [explorables.soft_lookup_plane()],
    "quiz": lambda: [
        explorables.quiz("pick-one", "Which, given d_k?", choices=CHOICES),
        explorables.quiz(
            "how-many", "How many?", answer=0.125, tolerance=1e-3, unit="nats",
            feedback={8: "That is its inverse."}, explanation="One in eight.",
        ),
    ],
    "alignment": lambda: [explorables.alignment_viewer(PAIRS)],
    "heads": lambda: [explorables.head_viewer(TEXTS)],
    "real": lambda: [explorables.head_viewer(REAL_HEADS["minilm"], layer=1, head=8, token=3)],
    "shape": lambda: [explorables.shape_tracer()],
    "next": lambda: [explorables.next_token_sampling(NEXT)],
    "cache": lambda: [explorables.cache_growth()],
    "average": lambda: [explorables.one_average()],
    "waves": lambda: [explorables.encoding_wavelengths()],
    "rope": lambda: [explorables.rope_rotation()],
    "bias": lambda: [explorables.relative_bias_shapes()],
    "schedule": lambda: [explorables.schedule_designer(against="wsd")],
    "paths": lambda: [explorables.optimizer_paths(noise=0.5)],
    "pairs": lambda: [explorables.byte_pairs()],
}  # fmt: skip
MAKERS = (
    explorables.softmax_temperature,
    explorables.attention_steps,
    explorables.soft_lookup_plane,
    lambda: explorables.quiz("pick-one", "Which?", choices=CHOICES),
    lambda: explorables.alignment_viewer(PAIRS),
    lambda: explorables.head_viewer(TEXTS),
    explorables.encoding_wavelengths,
    explorables.rope_rotation,
    explorables.relative_bias_shapes,
    explorables.shape_tracer,
    lambda: explorables.next_token_sampling(NEXT[:2]),
    explorables.cache_growth,
    explorables.cost_calculator,
    explorables.roofline,
    explorables.compute_budget,
    explorables.float_bits,
    explorables.pipeline_schedule,
    lambda: explorables.debugging_dashboard(experiments.log("traced_faults")),
    explorables.quantisation_error,
    explorables.training_planner,
    explorables.continuous_batching,
    explorables.sparsity_designer,
    explorables.expert_routing,
    explorables.scan_tree,
    explorables.delta_rule,
    lambda: explorables.patching_grid(EFFECTS, rows=range(2), columns=SOURCE),
    lambda: explorables.rollout_stepper(some_weights(3, 8, 8), SOURCE, layer=1),
    explorables.induction_head,
    explorables.schedule_designer,
    explorables.one_average,
    explorables.optimizer_paths,
    explorables.byte_pairs,
    explorables.live_model,
    explorables.live_training,
    explorables.live_translator,
)
LARGE = [[0, 0, 0, 9e5], [1e6, 0, 0, 0], [0, 0, 0, 0], [-1e6, 0, 0, 0], [0, 1e6, 0, 0], [0] * 4]
EXTRA = {
    "many": lambda: [figure for make in FIGURES.values() for figure in make()]
    + [make() for make in MAKERS],
    "two": lambda: [explorables.softmax_temperature(), explorables.soft_lookup_plane()],
    "smollm2": lambda: [explorables.head_viewer(REAL_HEADS["smollm2"])],
    "large": lambda: [explorables.attention_steps(keys=LARGE, query=[2, -2, 0, 2])],
    "tables": lambda: [
        explorables.relative_bias_shapes(
            scheme="t5", bidirectional=True, reach=100, clip=5, t5_table=BIAS_TABLE,
            shaw_table=SHAW_TABLE,
        )
    ],
}  # fmt: skip
WORDS, VECTORS = word_vectors()
DEFAULT_SOFTMAX = {"d_k": 64, "scaled": False, "temperature": 1}
PLAIN = str.maketrans("−⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789")


# ---------------------------------------------------------------------- pages and browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with explorables, laid out as in the built site."""
    return lay_out(tmp_path_factory.mktemp("explorables"), FIGURES | EXTRA)


def lay_out(folder, pages):
    """Write pages of figures into a folder, with what the built site puts beside them."""
    static = folder / "_static"
    (static / "js").mkdir(parents=True)
    wrap_modules(static / "explorables")
    shutil.copy(ROOT / "book" / "assets" / "js" / "explorables-host.js", static / "js")
    sheets = []
    for package, name in (
        ("pydata_sphinx_theme", "pydata-sphinx-theme.css"),
        ("sphinx_book_theme", "sphinx-book-theme.css"),
    ):
        origin = Path(importlib.util.find_spec(package).origin).parent
        shutil.copy(origin / "theme" / package / "static" / "styles" / name, static)
        sheets.append(f"_static/{name}")
    sheets.append("_static/explorables/explorables.css")
    links = "".join(f'<link rel="stylesheet" href="{sheet}">' for sheet in sheets)
    for name, make in pages.items():
        cells = "".join(
            '<div class="cell"><div class="cell_output"><div class="output text_html">'
            f"{figure._repr_mimebundle_()['text/html']}</div></div></div>"
            for figure in make()
        )
        page = (
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<link rel="icon" href="data:,">{links}'
            '<script defer src="_static/js/explorables-host.js"></script></head><body>'
            f'<main class="bd-content" style="display:block;padding:0 12px"><h1>{name}</h1>'
            f"{cells}</main></body></html>"
        )
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def figures_at(folder):
    """The address of these pages over HTTP, on a loopback port."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


# What stands on a page is put there anew, and the host wakes it once more.
AFRESH = """async (html) => {
  document.querySelector('main').innerHTML = html;
  const before = document.querySelector('script[src$="explorables-host.js"]');
  const host = document.createElement('script');
  host.src = before.src;
  before.replaceWith(host);
  scrollTo(0, 0);
}"""


UNFOLD = "() => document.querySelectorAll('.tfx-more').forEach(fold => (fold.open = true))"


@pytest.fixture(scope="module")
def free_pages():
    """Pages that no test uses, by kind: figures keep nothing, so a page serves many tests."""
    return {}


@pytest.fixture
def visit(browser, folder, free_pages):
    """Open a page; every console error and every page error fails the test in the end.

    Where it stands open already, it is not loaded again: only its figures are new.
    """
    used = []

    def opened(
        name, origin=None, *, width=1280, theme="light", touch=False, scripts=True, unfolded=True
    ):
        kind, address = (touch, scripts), f"{origin or folder.as_uri()}/{name}.html"
        if free_pages.setdefault(kind, []):
            page = free_pages[kind].pop()
            page.complaints.clear()
            page.emulate_media(media="null", reduced_motion="reduce")
            if page.viewport_size != {"width": width, "height": 900}:
                page.set_viewport_size({"width": width, "height": 900})
            page.mouse.move(0, 0)
        else:
            context = browser.new_context(
                viewport={"width": width, "height": 900}, has_touch=touch, is_mobile=touch,
                java_script_enabled=scripts, reduced_motion="reduce",
            )  # fmt: skip
            context.set_default_timeout(120_000)
            page = context.new_page()
            page.complaints = complaints = []
            page.on("console", lambda m: m.type == "error" and complaints.append(m.text))
            page.on("pageerror", lambda e: complaints.append(str(e)))
        used.append((kind, page))
        if page.url == address and scripts:
            text = (folder / f"{name}.html").read_text(encoding="utf-8")
            page.evaluate(AFRESH, re.search(r"(?s)<main[^>]*>(.*)</main>", text)[1])
        else:
            page.goto(address)
        if scripts:
            page.evaluate("theme => (document.documentElement.dataset.theme = theme)", theme)
            page.wait_for_function(ALIVE)
            if unfolded:
                page.evaluate(UNFOLD)
        return page

    yield opened
    for kind, page in used:
        free_pages[kind].append(page)
    assert [line for _, page in used for line in page.complaints] == []


def figure(page, module):
    """The first figure of a kind on a page of several."""
    return page.locator(f'[data-module="{module}"]').first


def value(page, name):
    """One number off the page in full precision."""
    text = page.locator(f'[data-name="{name}"]').get_attribute("data-value")
    return float(text)


def values(page, name, count):
    """Numbers name[0], name[1], ... off the page, read in one go."""
    found = page.locator(f'[data-name^="{name}["]').evaluate_all(
        "nodes => nodes.map(node => [node.dataset.name, node.dataset.value])"
    )
    assert len(dict(found)) == len(found), f"a number of {name} stands twice"
    return [float(dict(found)[f"{name}[{i}]"]) for i in range(count)]


def shows(page, name, digits):
    """The number as the reader sees it, which has to be the rounded one.

    What is below half of the last digit is written as a power of ten, with one digit of its own.
    """
    text = page.locator(f'[data-name="{name}"]').inner_text().translate(PLAIN)
    exact = value(page, name)
    tiny = digits > 2 and 0 < abs(exact) < 0.5 * 10**-digits
    assert ("10-" in text) == tiny
    step = 10 ** (math.floor(math.log10(abs(exact))) if tiny else -digits)
    shown = float(text.replace("·10", "e").replace("10-", "1e-"))
    assert shown == pytest.approx(exact, abs=0.51 * step, rel=0)


def control(page, name, value=None):
    """A slider, switch or button of a figure."""
    suffix = "" if value is None else f'[value="{value}"]'
    return page.locator(f'[data-control="{name}"]{suffix}')


def tap_slider(page, name, share):
    """Touch a slider at a share of its length."""
    control(page, name).scroll_into_view_if_needed()
    box = control(page, name).bounding_box()
    page.touchscreen.tap(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def double(rows):
    """Numbers as a float64 tensor."""
    return torch.tensor(rows, dtype=torch.double)


# ---------------------------------------------------------------------- softmax_temperature


def check_softmax(page, *, d_k, scaled, temperature, query=0):
    keys, queries = (torch.tensor(x[:, :d_k]) for x in _softmax.gaussians())
    scores = attention.dot_scores(queries, keys) * (d_k**-0.5 if scaled else 1)
    p = attention.masked_softmax(scores, temperature=temperature)
    norms = torch.linalg.matrix_norm(attention.softmax_jacobian(p))
    near = functools.partial(pytest.approx, abs=TOLERANCE)
    assert values(page, "score", 8) == near(scores[query].tolist())
    assert values(page, "weight", 8) == near(p[query].tolist())
    assert value(page, "largest") == near(p[query].max().item())
    assert value(page, "entropy") == near(torch.special.entr(p[query]).sum().item())
    assert value(page, "jacobian_norm") == near(norms[query].item())
    assert value(page, "mean_jacobian_norm") == near(norms.mean().item())
    shows(page, "largest", 3)
    shows(page, "entropy", 3)


def test_softmax_shows_the_packages_numbers(visit):
    check_softmax(visit("softmax"), **DEFAULT_SOFTMAX)


def test_softmax_follows_the_keyboard(visit):
    page = visit("softmax")
    control(page, "scaled").press("Space")
    check_softmax(page, d_k=64, scaled=True, temperature=1)
    control(page, "d_k").press("ArrowRight")
    control(page, "d_k").press("ArrowRight")
    check_softmax(page, d_k=256, scaled=True, temperature=1)
    control(page, "temperature").press("Home")
    check_softmax(page, d_k=256, scaled=True, temperature=0.1)
    control(page, "temperature").press("End")
    check_softmax(page, d_k=256, scaled=True, temperature=10)
    control(page, "query").press("End")
    control(page, "d_k").press("Home")
    check_softmax(page, d_k=1, scaled=True, temperature=10, query=31)


def test_softmax_follows_a_finger(visit):
    page = visit("softmax", width=390, touch=True)
    control(page, "scaled").tap()
    tap_slider(page, "d_k", 0.99)
    check_softmax(page, d_k=512, scaled=True, temperature=1)
    control(page, "scaled").tap()
    tap_slider(page, "temperature", 0.5)
    check_softmax(page, d_k=512, scaled=False, temperature=1)


@pytest.mark.parametrize("scaled", [False, True])
def test_curve_is_the_mean_jacobian_norm(visit, scaled):
    page = visit("softmax")
    line = page.locator(f'[data-name="curve_{"scaled" if scaled else "raw"}"]')
    points = [tuple(map(float, p.split(","))) for p in line.get_attribute("points").split()]
    keys, queries = (torch.tensor(x) for x in _softmax.gaussians())
    for i, (x, y) in enumerate(points):
        d = 2**i
        scale = d**-0.5 if scaled else 1.0
        _, p = attention.attend(
            queries[:, :d], keys[:, :d], keys[:, :d], scale=scale, return_weights=True
        )
        mean = torch.linalg.matrix_norm(attention.softmax_jacobian(p)).mean().item()
        assert x == pytest.approx(100 * i / 9)
        assert (100 - y) / 200 == pytest.approx(mean, abs=TOLERANCE)


def test_own_scores_are_softmaxed(visit):
    page = visit("softmax")
    control(page, "mode", "scores").press("Space")
    for _ in range(3):
        control(page, "scores[2]").press("ArrowRight")
    scores = double([[2.0, 1.0, 2.0, 0.0, -1.0]])
    weights = attention.masked_softmax(scores)[0].tolist()
    assert values(page, "score", 5) == scores[0].tolist()
    assert values(page, "weight", 5) == pytest.approx(weights, abs=TOLERANCE)
    assert page.locator('[data-name="weight[5]"]').is_hidden()
    assert control(page, "d_k").is_hidden() and control(page, "scaled").is_hidden()
    control(page, "temperature").press("Home")  # weights down to 5·10⁻¹⁴, each as exact as a large
    weights = attention.masked_softmax(scores, temperature=0.1)[0].tolist()
    assert values(page, "weight", 5) == pytest.approx(weights, rel=1e-9, abs=0)
    for i in range(5):
        shows(page, f"weight[{i}]", 3)


def test_softmax_says_in_words_what_it_shows(visit):
    page = visit("softmax")
    control(page, "scaled").check()
    said = page.get_by_role("status").filter(has_text="divided by √d_k, temperature 1.0")
    said.wait_for()
    assert f"{100 * value(page, 'largest'):.1f}% of the weight" in said.inner_text()


# ---------------------------------------------------------------------- attention_steps


def cat(query):
    figure = explorables.attention_steps()
    return double([query]), double(figure.data["keys"]), double(figure.data["values"])


def check_example(page, query, *, allowed=6, pads=0):
    q, k, v = cat(query)
    k, v = (torch.cat([x, x.new_zeros(pads, 4)]) for x in (k, v))
    mask = torch.arange(6 + pads)[None] < allowed
    output, weights = attention.attend(q, k, v, mask=mask, return_weights=True)
    near = functools.partial(pytest.approx, abs=TOLERANCE)
    scores = attention.dot_scores(q, k)[0]
    scaled = attention.scaled_dot_scores(q, k)[0]
    masked = scaled.masked_fill(~mask[0], -math.inf)
    assert values(page, "score", 6 + pads) == near(scores.tolist())
    assert values(page, "scaled", 6 + pads) == near(scaled.tolist())
    assert values(page, "masked", 6 + pads) == near(masked.tolist())
    assert values(page, "weight", 6 + pads) == near(weights[0].tolist())
    assert values(page, "output", 4) == near(output[0].tolist())
    shows(page, "weight[1]", 3)
    shows(page, "output[3]", 2)


def test_cat_example_shows_the_packages_numbers(visit):
    page = visit("steps")
    check_example(page, [0.9, 0.1, 0.2, 0.3])
    assert value(page, "score[1]") == pytest.approx(0.96)


def test_scores_in_the_millions_do_not_overflow(visit):
    page = visit("large")
    _, k, v = cat([0] * 4)
    output, weights = attention.attend(
        double([[2, -2, 0, 2]]), double(LARGE), v, return_weights=True
    )
    assert values(page, "weight", 6) == pytest.approx(weights[0].tolist(), abs=TOLERANCE)
    assert values(page, "output", 4) == pytest.approx(output[0].tolist(), abs=TOLERANCE)


def test_query_follows_the_keyboard(visit):
    page = visit("steps")
    control(page, "query[0]").press("Home")
    control(page, "query[1]").press("ArrowRight")
    control(page, "query[3]").press("End")
    check_example(page, [-2.0, 0.2, 0.2, 2.0])


def test_query_follows_a_finger(visit):
    page = visit("steps", width=390, touch=True)
    tap_slider(page, "query[2]", 0.999)
    tap_slider(page, "query[0]", 0.5)
    check_example(page, [0.0, 0.1, 2.0, 0.3])


def test_causal_mask_hides_what_stands_after_the_query(visit):
    page = visit("steps")
    control(page, "causal").press("Space")
    check_example(page, [0.9, 0.1, 0.2, 0.3], allowed=6)
    control(page, "row", 2).press("Space")
    check_example(page, [0.9, 0.1, 0.2, 0.3], allowed=3)
    assert page.locator('[data-name="masked[3]"]').inner_text() == "−inf"
    assert value(page, "weight[3]") == 0


@pytest.mark.parametrize("touch", [False, True])
@pytest.mark.parametrize(("padding", "allowed"), [("masked", 6), ("unmasked", 8)])
def test_padding_takes_weight_unless_it_is_masked(visit, touch, padding, allowed):
    page = visit("steps", width=390 if touch else 1280, touch=touch)
    button = control(page, "padding", padding)
    button.tap() if touch else button.press("Space")
    check_example(page, [0.9, 0.1, 0.2, 0.3], allowed=allowed, pads=2)


def check_sentence(page, sentence, *, causal=False, padding="none", row=None):
    names = sentence.split()
    x = VECTORS[[WORDS.index(word) for word in names]].double()
    n, pads = len(names), 0 if padding == "none" else 2
    k = torch.cat([x, x.new_zeros(pads, 24)])
    mask = torch.ones(n, n + pads, dtype=torch.bool)
    if causal:
        mask = attention.causal_mask(n + pads)[:n]
    if padding == "masked":
        mask = mask & (torch.arange(n + pads) < n)
    output, weights = attention.attend(x, k, k, mask=mask, return_weights=True)
    row = n - 1 if row is None else row
    near = functools.partial(pytest.approx, abs=TOLERANCE)
    for i in range(n):
        assert values(page, f"weights[{i}]", n + pads) == near(weights[i].tolist())
    assert page.locator('[data-name^="weights["]').count() == n * (n + pads)
    assert values(page, "weight", n + pads) == near(weights[row].tolist())
    assert values(page, "score", n + pads) == near((x[row] @ k.T).tolist())
    assert values(page, "output", 24) == near(output[row].tolist())


def test_sentence_attends_to_itself(visit):
    page = visit("steps")
    control(page, "mode", "sentence").check()
    check_sentence(page, "the boat was near the river bank", row=5)
    control(page, "row", 6).press("Space")
    check_sentence(page, "the boat was near the river bank")


@pytest.mark.parametrize("padding", ["none", "masked", "unmasked"])
@pytest.mark.parametrize("causal", [False, True])
def test_sentence_under_every_mask(visit, causal, padding):
    page = visit("steps")
    control(page, "mode", "sentence").check()
    control(page, "causal").set_checked(causal)
    control(page, "padding", padding).check()
    check_sentence(page, "the boat was near the river bank", causal=causal, padding=padding, row=5)


def test_sentence_can_be_typed_with_capitals_and_punctuation(visit):
    page = visit("steps")
    control(page, "mode", "sentence").check()
    field = control(page, "sentence")
    field.fill("")
    field.press_sequentially("The cat drank milk, and the dog ATE!")
    check_sentence(page, "the cat drank milk and the dog ate", row=5)


def test_unknown_word_is_refused_politely_with_suggestions(visit):
    page = visit("steps")
    control(page, "mode", "sentence").check()
    field = control(page, "sentence")
    field.fill("the catt slept")
    advice = page.get_by_role("status").filter(has_text="Sorry, “catt” is not among the")
    offered = advice.get_by_role("button").all_inner_texts()
    assert "cat" in offered and len(offered) == 3
    assert field.get_attribute("aria-invalid") == "true"
    check_sentence(page, "the boat was near the river bank", row=5)  # the last good one stays
    advice.get_by_role("button", name="cat", exact=True).press("Enter")
    assert field.input_value() == "the cat slept"
    assert field.get_attribute("aria-invalid") == "false"
    check_sentence(page, "the cat slept")


def test_sentence_that_is_too_long_is_refused(visit):
    page = visit("steps")
    control(page, "mode", "sentence").check()
    control(page, "sentence").fill("the " * 11)
    page.get_by_role("status").filter(has_text="Up to 10 words fit").wait_for()
    check_sentence(page, "the boat was near the river bank", row=5)
    control(page, "sentence").fill("the " * 10)
    check_sentence(page, " ".join(["the"] * 10), row=5)


def test_markup_in_a_sentence_stays_text(visit):
    page = visit("steps")
    control(page, "mode", "sentence").check()
    control(page, "sentence").fill("<img/src=x/onerror=alert(1)>")
    page.get_by_role("status").filter(has_text="Sorry, “<img/src=x/onerror=alert").wait_for()
    assert page.locator("main img").count() == 0


def test_closest_words_are_named(visit):
    page = visit("steps")
    control(page, "mode", "sentence").check()
    control(page, "sentence").fill("she paid the money to the bank")
    control(page, "row", 3).check()
    x = VECTORS[[WORDS.index(w) for w in "she paid the money to the bank".split()]].double()
    output = attention.attend(x, x, x)[3]
    similar = torch.nn.functional.cosine_similarity(VECTORS.double(), output, dim=1)
    best = [WORDS[i] for i in similar.topk(4).indices]
    said = page.get_by_role("status").filter(has_text="For “money” the largest weight")
    said.wait_for()
    text = said.inner_text().split("output: ")[1]
    assert [part.split(" (")[0] for part in text.split(", ")] == best


# ---------------------------------------------------------------------- soft_lookup_plane


def check_plane(page, query, *, temperature=0.5, hard=False):
    data = explorables.soft_lookup_plane().data
    q, k, v = double([query]), double(data["keys"]), double(data["values"])[:, None]
    if hard:
        output, weights = attention.hard_lookup(q, k, v, return_weights=True)
    else:
        output, weights = attention.soft_lookup(
            q, k, v, temperature=temperature, return_weights=True
        )
    near = functools.partial(pytest.approx, abs=TOLERANCE)
    assert values(page, "score", 5) == near((q @ k.T)[0].tolist())
    assert values(page, "weight", 5) == near(weights[0].tolist())
    assert value(page, "result") == near(output.item())
    shows(page, "result", 3)


def place(page, query):
    """Where a point of the plane lies on the screen."""
    box = page.locator(".tfx-plane").bounding_box()
    x, y = ((q + 1.5) / 3 for q in query)
    return box["x"] + x * box["width"], box["y"] + (1 - y) * box["height"]


def test_plane_shows_the_packages_numbers(visit):
    check_plane(visit("plane"), [0.9, 0.9])


def test_query_moves_by_arrow_keys(visit):
    page = visit("plane")
    page.locator(".tfx-handle").focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowDown", "Shift+ArrowUp", "Shift+ArrowRight"):
        page.keyboard.press(key)
    check_plane(page, [1.05, 1.1])
    for _ in range(30):
        page.keyboard.press("ArrowUp")
    check_plane(page, [1.05, 1.5])  # it stays in the plane
    spoken = page.locator(".tfx-handle").get_attribute("aria-valuetext")
    assert spoken.startswith("1.05 across, 1.50 up; answer")


def test_query_moves_by_sliders(visit):
    page = visit("plane")
    control(page, "query[0]").press("Home")
    control(page, "query[1]").press("ArrowRight")
    check_plane(page, [-1.5, 0.95])


def test_query_is_dragged_by_a_mouse(visit):
    page = visit("plane")
    page.mouse.move(*place(page, (0.9, 0.9)))
    page.mouse.down()
    page.mouse.move(*place(page, (0.2, 0.1)))
    page.mouse.move(*place(page, (-0.75, -0.4)))
    page.mouse.up()
    check_plane(page, [-0.75, -0.4])
    page.mouse.move(*place(page, (1.0, 1.0)))
    check_plane(page, [-0.75, -0.4])


def test_query_goes_where_a_finger_taps_or_drags(visit):
    page = visit("plane", width=390, touch=True)
    page.locator(".tfx-plane").scroll_into_view_if_needed()
    page.touchscreen.tap(*place(page, (-0.5, 0.85)))
    check_plane(page, [-0.5, 0.85])
    touch = page.context.new_cdp_session(page)
    for kind, query in (("Start", (-0.5, 0.85)), ("Move", (0, 0)), ("Move", (0.75, -0.25))):
        x, y = place(page, query)
        points = [{"x": x, "y": y}]
        touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.locator(".tfx-handle[aria-valuetext^='0.75 across']").wait_for()  # moves come by the frame
    check_plane(page, [0.75, -0.25])


def test_temperature_and_hard_lookup(visit):
    page = visit("plane")
    control(page, "temperature").press("Home")
    check_plane(page, [0.9, 0.9], temperature=0.05)
    control(page, "temperature").press("End")
    check_plane(page, [0.9, 0.9], temperature=5)
    control(page, "hard").press("Space")
    check_plane(page, [0.9, 0.9], hard=True)
    assert value(page, "result") == 9


def test_ground_is_coloured_by_the_answer(visit):
    page = visit("plane")
    control(page, "hard").check()
    shares = page.locator(".tfx-ground").evaluate_all(
        "nodes => nodes.map(n => parseFloat(n.style.getPropertyValue('--share')))"
    )
    data = explorables.soft_lookup_plane().data
    steps = (torch.arange(26).double() + 0.5) / 26 * 3 - 1.5
    points = torch.cartesian_prod(-steps, steps).flip(1)  # rows from the top, then x
    v = double(data["values"])[:, None]
    k = double(data["keys"])
    best, second = (points @ k.T).topk(2).values.unbind(1)
    clear = best - second > 1e-9  # on a border between two keys rounding decides
    answers = attention.hard_lookup(points, k, v)[:, 0]
    expected = 100 * (answers - 1) / 8
    assert clear.sum() > 600
    assert double(shares)[clear].tolist() == pytest.approx(expected[clear].tolist(), abs=0.06)


# ---------------------------------------------------------------------- alignment_viewer
TOLD = explorables.alignment_viewer(PAIRS).word  # the word that is followed at first


def check_alignment(page, pair, *, side, word):
    weights = double(explorables.unpack_weights(explorables.pack_weights(PAIRS[pair]["weights"])))
    followed = weights[word] if side == "target" else weights[:, word]
    near = functools.partial(pytest.approx, abs=TOLERANCE)
    assert values(page, "weight", len(followed)) == near(followed.tolist())
    assert value(page, "largest") == near(followed.max().item())
    assert value(page, "total") == near(followed.sum().item())
    if side == "target":
        assert value(page, "entropy") == near(torch.special.entr(followed).sum().item())
        shows(page, "entropy", 3)
    else:
        assert page.locator('[data-name="entropy"]').is_hidden()
    other = "source" if side == "target" else "target"
    assert control(page, side, word).is_checked() or control(page, side).count() == 0
    assert page.locator(f'input[data-control="{other}"]:checked').count() == 0
    shows(page, "largest", 3)
    shows(page, "total", 2)


def test_alignment_shows_the_packages_numbers(visit):
    page = visit("alignment")
    check_alignment(page, 0, side="target", word=TOLD)
    weights = PAIRS[0]["weights"]
    cells = [[value(page, f"weights[{t}][{s}]") for s in range(8)] for t in range(11)]
    assert (double(cells) - weights).abs().max() < 4e-4
    assert page.locator("main b, main i").count() == 0  # what looks like markup is text


def test_alignment_follows_the_keyboard(visit):
    page = visit("alignment")
    page.locator('[data-control="target"]:checked').press("ArrowRight")
    check_alignment(page, 0, side="target", word=TOLD + 1)
    control(page, "source", 0).press("Space")
    check_alignment(page, 0, side="source", word=0)
    page.locator('[data-control="source"]:checked').press("ArrowLeft")
    check_alignment(page, 0, side="source", word=7)
    control(page, "chosen").press("ArrowDown")
    check_alignment(page, 1, side="target", word=0)
    control(page, "source", 0).press("Space")
    check_alignment(page, 1, side="source", word=0)
    said = page.get_by_role("status").filter(has_text="“yes”, source word 1 of 1, got 2.00 of all")
    said.wait_for()


def test_alignment_follows_a_finger(visit):
    page = visit("alignment", width=390, touch=True)
    control(page, "target", 9).tap()
    check_alignment(page, 0, side="target", word=9)
    control(page, "source", 4).tap()
    check_alignment(page, 0, side="source", word=4)
    page.locator(".tfx-map tbody tr").nth(2).locator("td").nth(1).tap()
    check_alignment(page, 0, side="target", word=2)


def test_alignment_shows_a_word_under_the_mouse_while_it_is_there(visit):
    page = visit("alignment")
    chip = page.locator("label", has=control(page, "source", 5))
    chip.hover()
    weights = PAIRS[0]["weights"]
    assert value(page, "total") == pytest.approx(weights[:, 5].sum().item(), abs=2e-3)
    page.locator(".tfx-title").hover()
    check_alignment(page, 0, side="target", word=TOLD)


@pytest.mark.parametrize("width", [1280, 390])
def test_threads_join_the_words_and_grow_with_the_weight(visit, width):
    page = visit("alignment", width=width)
    control(page, "target", 4).check()
    weights = PAIRS[0]["weights"][4]
    found = page.evaluate(
        """() => {
            const box = document.querySelector('.tfx-weave').getBoundingClientRect();
            const middle = (name, i) => {
                const chip = document.querySelector(`[data-control="${name}"][value="${i}"]`);
                const face = chip.nextSibling.getBoundingClientRect();
                return face.top + face.height / 2 - box.top;
            };
            const lines = [...document.querySelectorAll('.tfx-strand.tfx-on')].map(
                l => ['y1', 'y2', 'stroke-width'].map(k => Number(l.getAttribute(k))));
            return [lines, [...Array(8).keys()].map(i => middle('source', i)), middle('target', 4)];
        }"""
    )
    lines, sources, target = found
    shown = [s for s in range(8) if weights[s] >= 0.01]
    expected = [[sources[s], target, 0.75 + 7 * weights[s].item()] for s in shown]
    assert double(lines) == pytest.approx(double(expected), abs=0.02)


# ---------------------------------------------------------------------- head_viewer


def check_heads(page, *, text=0, layer=0, head=0, token, direction="from"):
    tokens = TEXTS[text]["tokens"]
    packed = explorables.pack_weights(TEXTS[text]["weights"])
    weights = double(explorables.unpack_weights(packed))[layer, head]
    n = len(tokens)
    followed = weights[token] if direction == "from" else weights[:, token]
    near = functools.partial(pytest.approx, abs=TOLERANCE)
    assert values(page, "weight", n) == near(followed.tolist())
    i, j = torch.arange(n)[:, None], torch.arange(n)
    same = torch.tensor([[a == b for b in tokens] for a in tokens])
    after = torch.zeros(n, n, dtype=torch.bool)
    after[:, 1:] = same[:, :-1]
    after &= j < i
    asked = after.any(1)

    def mean(of):
        return near((weights * of).sum(1)[1:].mean().item())

    assert value(page, "self") == mean(i == j)
    assert value(page, "previous") == mean(i - 1 == j)
    assert value(page, "first") == mean(j == 0)
    assert value(page, "distance") == mean((i - j).abs())
    entropy = torch.special.entr(weights).sum(1)[1:].mean().item()
    assert value(page, "entropy") == near(entropy)
    copied = page.locator('[data-name="after_copy"]')
    if asked.any():
        assert value(page, "after_copy") == near((weights * after).sum(1)[asked].mean().item())
    else:
        assert copied.get_attribute("data-value") is None and copied.inner_text() == "–"
    shows(page, "distance", 2)
    shows(page, "self", 3)


def test_heads_show_the_packages_numbers(visit):
    page = visit("heads")
    check_heads(page, token=42)
    assert page.locator("main question").count() == 0


def test_heads_follow_the_keyboard(visit):
    page = visit("heads")
    for _ in range(5):
        page.locator('[data-control="head"]:checked').press("ArrowRight")
    check_heads(page, layer=1, head=1, token=42)
    control(page, "direction", "to").press("Space")
    page.locator('[data-control="token"]:checked').press("ArrowRight")  # around to the first
    check_heads(page, layer=1, head=1, token=0, direction="to")
    control(page, "text").press("ArrowDown")
    check_heads(page, text=1, layer=1, head=1, token=0, direction="to")
    control(page, "direction", "from").check()
    control(page, "token", 5).check()
    check_heads(page, text=1, layer=1, head=1, token=5)
    said = page.get_by_role("status").filter(has_text="Head 1.1: “be” at 5 looks at")
    said.wait_for()


def test_heads_follow_a_finger(visit):
    page = visit("heads", width=390, touch=True)
    control(page, "head", "0.3").tap()
    control(page, "token", 20).tap()
    check_heads(page, head=3, token=20)
    page.locator(".tfx-large").scroll_into_view_if_needed()
    box = page.locator(".tfx-large").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] * 7.5 / 43)
    check_heads(page, head=3, token=7)


def test_large_map_shows_the_token_under_the_mouse(visit):
    page = visit("heads")
    page.locator(".tfx-large").scroll_into_view_if_needed()
    box = page.locator(".tfx-large").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + box["height"] * 30.5 / 43)
    check_heads(page, token=30)
    assert page.locator(".tfx-frame").get_attribute("y") == "30"
    control(page, "direction", "to").check()
    page.mouse.move(box["x"] + box["width"] * 12.5 / 43, box["y"] + box["height"] * 30.5 / 43)
    check_heads(page, token=12, direction="to")
    frame = page.locator(".tfx-frame")
    assert [frame.get_attribute(key) for key in ("x", "y", "width", "height")] == [
        "12", "0", "1", "43"
    ]  # fmt: skip
    page.mouse.move(0, 0)
    check_heads(page, token=42, direction="to")


def test_maps_are_shaded_by_the_root_of_the_weights(visit):
    page = visit("heads")
    paths = page.locator(".tfx-large .tfx-shade").evaluate_all(
        "nodes => nodes.map(n => [n.getAttribute('d'), n.style.getPropertyValue('--heat')])"
    )
    shade = torch.zeros(43, 43).double()
    for d, heat in paths:
        for run in d.split("M")[1:]:
            place, width = run.split("h")[0], run.split("h")[1].split("v")[0]
            x, y = map(int, place.split())
            assert (shade[y, x : x + int(width)] == 0).all()
            shade[y, x : x + int(width)] = float(heat.rstrip("%")) / 100
    expected = TEXTS[0]["weights"][0, 0].sqrt()
    assert (shade - expected).abs().max() < 0.051  # ten shades


# ---------------------------------------------------------------------- encoding_wavelengths


def check_waves(page, *, position=10, pair=3, base=10_000.0):
    where = torch.tensor([position])
    encoding = positions.sinusoidal_encoding(where, 32, base=base)[0].tolist()
    waves = positions.sinusoidal_wavelengths(32, base=base)
    assert values(page, "encoding", 32) == pytest.approx(encoding, abs=1e-5)
    assert value(page, "wavelength") == pytest.approx(waves[2 * pair].item(), rel=1e-6)
    assert value(page, "frequency") == pytest.approx(2 * math.pi / waves[2 * pair].item(), rel=1e-6)
    assert value(page, "turns") == pytest.approx(position / waves[2 * pair].item(), rel=1e-6)
    shows(page, "frequency", 4)
    hands = page.locator(".tfx-hand").evaluate_all(
        "nodes => nodes.flatMap(n => [-n.getAttribute('y2'), n.getAttribute('x2')].map(Number))"
    )
    assert hands == pytest.approx(encoding, abs=1e-5)  # the tip of each hand, up and across
    assert control(page, "clock", pair).is_checked()
    for name, shift in (("sin", 0), ("cos", 1)):
        line = page.locator(f'[data-name="curve_{name}"]').get_attribute("points").split()
        points = double([[float(x) for x in point.split(",")] for point in line])[::4]
        expected = positions.sinusoidal_encoding(128, 32, base=base)[:, 2 * pair + shift]
        heights = (1 - points[:, 1] / 50) * 1.05
        assert points[:, 0].tolist() == pytest.approx([100 * i / 127 for i in range(128)])
        assert heights.tolist() == pytest.approx(expected.tolist(), abs=2e-5)


def test_wavelengths_show_the_packages_numbers(visit):
    check_waves(visit("waves"))


def test_wavelengths_follow_the_keyboard(visit):
    page = visit("waves")
    control(page, "position").press("End")
    control(page, "pair").press("ArrowLeft")
    check_waves(page, position=127, pair=2)
    control(page, "clock", 2).press("ArrowLeft")
    control(page, "base").press("Home")
    check_waves(page, position=127, pair=1, base=2.0)
    control(page, "base").press("End")
    control(page, "clock", 15).check()
    check_waves(page, position=127, pair=15, base=1e6)


def test_wavelengths_follow_a_finger(visit):
    page = visit("waves", width=390, touch=True)
    control(page, "clock", 9).tap()
    tap_slider(page, "position", 0.999)
    check_waves(page, position=127, pair=9)
    said = page.get_by_role("status").filter(has_text="At position 127 clock 9 has made")
    said.wait_for()


# ---------------------------------------------------------------------- rope_rotation


def check_rope(page, *, m=6, n=2, q_angle=40, k_angle=100, pair=1):
    vectors = torch.zeros(2, 1, 16).double()
    for row, angle in enumerate((q_angle, k_angle)):
        turn = math.radians(angle)
        vectors[row, 0, 2 * pair : 2 * pair + 2] = double([math.cos(turn), math.sin(turn)])
    q, k = positions.apply_rotary(vectors, torch.tensor([[m], [n]]))[:, 0]
    assert value(page, "unrotated") == pytest.approx(
        (vectors[0] @ vectors[1].T).item(), abs=TOLERANCE
    )
    assert value(page, "gap") == m - n
    assert value(page, "score") == pytest.approx((q @ k).item(), abs=TOLERANCE)
    shows(page, "score", 3)
    tips = page.locator(".tfx-vector").evaluate_all(
        """nodes => nodes.flatMap(
            n => [n.getAttribute('x2') / 160 - 1, 1 - n.getAttribute('y2') / 160])"""
    )
    drawn = torch.cat([q[2 * pair : 2 * pair + 2], k[2 * pair : 2 * pair + 2]]) * 0.96 / 1.35
    assert tips == pytest.approx(drawn.tolist(), abs=1e-6)
    # The curve: a query that many positions after a key at 0, or the other way round.
    line = page.locator('[data-name="curve"]').get_attribute("points").split()
    heights = [(1 - float(point.split(",")[1]) / 50) * 1.08 for point in line][::4]
    gaps = torch.arange(-40, 41)
    turned = positions.apply_rotary(vectors[0].expand(81, 16), gaps.clamp(min=0))
    others = positions.apply_rotary(vectors[1].expand(81, 16), (-gaps).clamp(min=0))
    assert heights == pytest.approx((turned * others).sum(1).tolist(), abs=1e-6)


def test_rotation_shows_the_packages_numbers(visit):
    check_rope(visit("rope"))


def test_rotation_follows_the_keyboard(visit):
    page = visit("rope")
    control(page, "m").press("End")
    control(page, "n").press("ArrowRight")
    check_rope(page, m=40, n=3)
    control(page, "pair").press("Home")
    control(page, "q_angle").press("ArrowLeft")
    control(page, "k_angle").press("End")
    check_rope(page, m=40, n=3, q_angle=35, k_angle=180, pair=0)
    page.locator(".tfx-handle").nth(0).focus()  # k
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowRight")
    check_rope(page, m=40, n=3, q_angle=35, k_angle=-176, pair=0)
    page.locator(".tfx-handle").nth(1).press("ArrowLeft")
    check_rope(page, m=40, n=3, q_angle=40, k_angle=-176, pair=0)


def test_moving_both_keeps_the_score(visit):
    page = visit("rope")
    before = value(page, "score")
    for key, m, n in (("Home", 4, 0), ("ArrowRight", 5, 1), ("End", 40, 36)):
        control(page, "both").press(key)
        check_rope(page, m=m, n=n)
        assert value(page, "score") == pytest.approx(before, abs=1e-12)
    control(page, "n").press("End")
    control(page, "m").press("Home")
    control(page, "both").press("ArrowRight")  # the gap leaves no room
    check_rope(page, m=0, n=40)


def test_vector_is_dragged(visit):
    page = visit("rope")
    handle = page.locator(".tfx-handle").nth(1)
    box = page.locator(".tfx-plane").bounding_box()
    start = handle.bounding_box()
    page.mouse.move(start["x"] + 26, start["y"] + 26)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 30, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2 + 80)
    page.mouse.up()
    # The tip went to -90 degrees, so the direction before rotation is that less six turns.
    angle = round(-90 - 6 * math.degrees(10_000 ** (-2 / 16))) + 360
    check_rope(page, q_angle=angle)
    assert handle.get_attribute("aria-valuetext") == f"{angle} degrees, rotated to −90"


def test_vector_is_dragged_by_a_finger(visit):
    page = visit("rope", width=390, touch=True)
    control(page, "n").press("Home")
    page.locator(".tfx-plane").scroll_into_view_if_needed()
    handle, box = page.locator(".tfx-handle").nth(0), page.locator(".tfx-plane").bounding_box()
    start = handle.bounding_box()
    touch = page.context.new_cdp_session(page)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    places = [("Start", (start["x"] + 26, start["y"] + 26)), ("Move", (x, y - 60))]
    for kind, (left, top) in [*places, ("Move", (x - 90, y))]:
        points = [{"x": left, "y": top}]
        touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.locator(".tfx-handle[aria-valuenow='-180']").wait_for()
    check_rope(page, n=0, k_angle=-180)


# ---------------------------------------------------------------------- relative_bias_shapes


def check_bias(page, scheme, *, head=0, distance=-12, both=False, reach=64, heads=8, table=None,
               count=32, furthest=128, clip=16):  # fmt: skip
    deltas = torch.arange(-reach, reach + 1 if both else 1)
    how = {"bidirectional": both, "n_buckets": count, "max_distance": furthest}
    index = {
        "t5": positions.t5_bucket(deltas, **how),
        "shaw": positions.shaw_clip(deltas, clip) - clip,
    }.get(scheme)
    if scheme == "alibi":
        slope = positions.alibi_slopes(heads)[head]
        bias = -slope * deltas.abs().double()
        assert value(page, "slope") == pytest.approx(slope, rel=1e-9)
    elif scheme == "none":
        bias = torch.zeros(len(deltas)).double()
    else:
        bias = None if table is None else table[index + (clip if scheme == "shaw" else 0), head]
    at = distance + reach
    bucket = page.locator('[data-name="bucket"]')
    if index is None:
        assert bucket.is_hidden()
    else:
        assert value(page, "bucket") == index[at].item()
        assert value(page, "runs") == len(index.unique())
    if bias is None:
        assert page.locator('[data-name="bias"]').is_hidden()
        assert page.locator(".tfx-area").is_hidden()
    else:
        weights = bias.softmax(0)
        assert value(page, "bias") == pytest.approx(bias[at].item(), abs=TOLERANCE)
        assert value(page, "weight") == pytest.approx(weights[at].item(), abs=TOLERANCE)
        half = next(d for d in range(reach + 1) if weights[deltas.abs() <= d].sum() >= 0.5 - 1e-12)
        assert value(page, "half") == half
        outline = page.locator(".tfx-area").get_attribute("d").split("L")[1:-1]
        heights = [(100 - float(point.split()[1])) / 100 for point in outline]
        assert heights == pytest.approx((weights / weights.max()).tolist(), abs=TOLERANCE)
        shows(page, "bias", 3)
    # The curve is linear in what is shown: bias or index.
    line = page.locator('[data-name="curve"]').get_attribute("points").split()
    points = double([[float(x) for x in point.split(",")] for point in line])
    shown = (index if bias is None else bias).double()
    if index is not None:
        points = points[::2]  # a staircase, two points a step
    elif scheme == "alibi":
        where = points[:, 0] / 100 * (2 * reach if both else reach) - reach
        end = where[0].item()
        assert where.tolist() == pytest.approx([end, 0, -end] if both else [end, 0])
        shown = -slope * where.abs()
        assert end == pytest.approx(-reach) or -8.5 < shown[0] < -8  # below e⁻⁸ it ends
    else:
        shown = shown[[0, -1]]
    height = points[:, 1]
    low, high = shown.argmin(), shown.argmax()
    if shown[high] > shown[low]:
        slope = (height[high] - height[low]) / (shown[high] - shown[low])
        expected = height[low] + slope * (shown - shown[low])
        assert slope < 0 and height.tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_biases_show_the_packages_numbers(visit):
    page = visit("bias")
    assert control(page, "distance").get_attribute("min") == "-32"  # where something happens
    control(page, "span").press("Enter")
    assert control(page, "distance").get_attribute("min") == "-64"
    check_bias(page, "alibi")


def test_biases_of_every_scheme(visit):
    page = visit("bias")
    control(page, "span").press("Enter")
    control(page, "n_heads").press("End")
    control(page, "head").press("End")
    check_bias(page, "alibi", head=15, heads=16)
    for _ in range(4):
        control(page, "n_heads").press("ArrowLeft")
    check_bias(page, "alibi", head=11, heads=12)  # no power of two
    control(page, "n_heads").press("Home")
    check_bias(page, "alibi", heads=1)
    control(page, "scheme", "none").press("Space")
    check_bias(page, "none")
    control(page, "scheme", "t5").check()
    check_bias(page, "t5")
    control(page, "distance").press("Home")
    control(page, "max_distance").press("ArrowRight")
    check_bias(page, "t5", distance=-64, furthest=129)
    control(page, "n_buckets").press("Home")
    check_bias(page, "t5", distance=-64, furthest=129, count=4)
    control(page, "scheme", "shaw").check()
    check_bias(page, "shaw", distance=-64)
    control(page, "clip").press("Home")
    control(page, "bidirectional").press("Space")
    control(page, "distance").press("End")
    check_bias(page, "shaw", distance=64, clip=1, both=True)
    control(page, "scheme", "alibi").check()
    check_bias(page, "alibi", distance=64, heads=1, both=True)
    control(page, "bidirectional").press("Space")
    check_bias(page, "alibi", distance=0, heads=1)


def test_last_bucket_cannot_begin_before_the_others_end(visit):
    page = visit("bias")
    control(page, "span").press("Enter")
    control(page, "scheme", "t5").check()
    control(page, "max_distance").press("Home")
    check_bias(page, "t5", furthest=17)
    control(page, "n_buckets").press("End")
    check_bias(page, "t5", furthest=33, count=64)


def test_learned_tables_are_shown(visit):
    page = visit("tables")
    control(page, "span").press("Enter")
    given = {"both": True, "reach": 100, "table": BIAS_TABLE}
    check_bias(page, "t5", **given)
    assert control(page, "n_buckets").is_hidden() and control(page, "bidirectional").is_hidden()
    control(page, "head").press("End")
    control(page, "distance").press("End")
    check_bias(page, "t5", head=3, distance=100, **given)
    control(page, "scheme", "shaw").check()
    check_bias(page, "shaw", distance=100, clip=5, **(given | {"table": SHAW_TABLE}))
    assert control(page, "clip").is_hidden() and control(page, "head").is_hidden()


def test_biases_follow_a_finger(visit):
    page = visit("bias", width=390, touch=True)
    control(page, "span").press("Enter")
    control(page, "bidirectional").tap()
    tap_slider(page, "distance", 0.5)
    check_bias(page, "alibi", distance=0, both=True)
    tap_slider(page, "head", 0.999)
    check_bias(page, "alibi", distance=0, both=True, head=7)


# ---------------------------------------------------------------------- heads of real models


def check_overview(page, model, text, key):
    """The number of each head in the overview, by a mask over its matrix."""
    item = REAL_HEADS[model][text]
    weights = double(explorables.unpack_weights(item["weights"]))
    inner = weights[:, :, 1:-1]
    expected = {
        "first": weights[:, :, 1:, 0],
        "previous": weights.diagonal(-1, dim1=-2, dim2=-1),
        "self": weights.diagonal(dim1=-2, dim2=-1)[..., 1:],
        "next": inner.diagonal(2, dim1=-2, dim2=-1),
        "last": inner[..., -1],
    }[key].mean(-1)
    shown = page.locator('[data-name^="overview["]').evaluate_all(
        "n => n.map(x => x.dataset.value)"
    )
    assert [float(x) for x in shown] == pytest.approx(expected.flatten().tolist(), abs=TOLERANCE)
    half = page.get_by_text(f"More than half of it: {(expected > 0.5).sum()} of {len(shown)} heads")
    assert half.is_visible()


def test_overview_counts_what_the_weights_say(visit):
    page = visit("real")
    for key in ("first", "previous", "self", "next", "last"):
        control(page, "counted", key).check()
        check_overview(page, "minilm", 0, key)
    control(page, "text").select_option("1")
    check_overview(page, "minilm", 1, "last")


@pytest.mark.parametrize("touch", [False, True])
def test_any_of_270_heads_can_be_reached(visit, touch):
    page = visit("smollm2", width=390 if touch else 1280, touch=touch)
    check_overview(page, "smollm2", 0, "first")
    assert control(page, "head").count() == 9
    assert control(page, "counted").count() == 4  # nothing looks ahead under a causal mask
    weights = double(explorables.unpack_weights(REAL_HEADS["smollm2"][0]["weights"]))
    for _ in range(16):
        control(page, "layer").press("ArrowRight")
    choice = control(page, "head", "16.3")
    choice.tap() if touch else choice.press("Space")
    back = weights[16, 3].diagonal(-1).mean().item()
    assert value(page, "previous") == pytest.approx(back, abs=TOLERANCE)
    grid = page.locator(".tfx-overview")
    grid.scroll_into_view_if_needed()
    box = grid.bounding_box()
    at = {"x": box["width"] * 5.5 / 9, "y": box["height"] * 18.5 / 30}
    grid.tap(position=at) if touch else grid.click(position=at)
    assert control(page, "head", "18.5").is_checked()
    assert values(page, "weight", 13) == pytest.approx(weights[18, 5, -1].tolist(), abs=TOLERANCE)


# ---------------------------------------------------------------------- shape_tracer


def check_shape(page, name="smollm2-135m", *, n=128, batch=1, precision="float32", **changes):
    figure = explorables.shape_tracer(name, length=n, batch=batch, precision=precision, **changes)
    tied = {"tie_embeddings": changes.pop("tied")} if "tied" in changes else {}
    config, near = preset(name, **changes, **tied), functools.partial(pytest.approx, rel=1e-12)
    size = {"float32": 4, "float16": 2, "int8": 1}[precision]
    assert value(page, "total_parameters") == config.count_parameters()
    assert value(page, "total_flops") == near(config.flops(n, batch))
    assert value(page, "weight_bytes") == size * config.count_parameters()
    assert value(page, "activation_bytes") == figure.activation_bytes
    if config.kind == "encoder":
        assert page.locator('[data-name="cache_bytes"]').is_hidden()
    else:
        m = n if config.kind == "encoder-decoder" else 0
        assert value(page, "cache_bytes") == config.kv_cache_bytes(n, batch, size, m=m)
    assert page.locator('[data-name^="amount["]').count() == len(figure.parts)
    for measure in ("flops", "bytes", "parameters"):
        control(page, "measure", measure).check()
        expected = [part[measure] for part in figure.parts]
        assert values(page, "amount", len(expected)) == near(expected)
    shapes = page.locator(".tfx-shape").all_inner_texts()
    for text, part in zip(shapes, figure.parts, strict=True):
        assert text.replace("\u202f", "").startswith(str(tuple(part["shape"])))


def check_part(page, part, figure):
    found = next(p for p in figure.parts if p["key"] == part)
    assert page.locator(".tfx-detail").is_visible()
    for name in ("parameters", "flops", "bytes"):
        assert value(page, f"part_{name}") == found[name]


def test_shapes_show_the_packages_numbers(visit):
    page = visit("shape")
    check_shape(page)
    check_part(page, "qkv", explorables.shape_tracer())


@pytest.mark.parametrize("name", list(explorables.shape_tracer().data["presets"]))
def test_shapes_of_every_preset(visit, name):
    page = visit("shape")
    control(page, "d_model").press("End")
    control(page, "vocab_size").press("Home")
    other = "gpt2" if name == "smollm2-135m" else name  # choosing what is chosen changes nothing
    control(page, "preset").select_option(other)  # what was moved is forgotten
    control(page, "preset").select_option(name)
    check_shape(page, name)


def test_shapes_follow_the_keyboard(visit):
    page = visit("shape")
    control(page, "d_model").press("ArrowRight")  # 640: heads fall to the next divisor
    check_shape(page, d_model=640, n_heads=8, n_kv_heads=2)
    control(page, "n_heads").press("ArrowRight")
    control(page, "n_kv_heads").press("End")
    check_shape(page, d_model=640, n_heads=10, n_kv_heads=10)
    control(page, "n_layers").press("Home")
    control(page, "tied").press("Space")
    control(page, "d_ff").press("ArrowLeft")
    control(page, "vocab_size").press("Home")
    control(page, "batch").press("ArrowRight")
    control(page, "length").press("End")
    control(page, "precision", "int8").check()
    sizes = {"d_model": 640, "n_heads": 10, "n_kv_heads": 10, "n_layers": 1, "d_ff": 1024}
    check_shape(page, n=8192, batch=2, precision="int8", vocab_size=256, tied=False, **sizes)
    page.locator('[data-control="part"]:checked').press("ArrowDown")
    figure = explorables.shape_tracer(
        length=8192, batch=2, precision="int8", vocab_size=256, tied=False, **sizes
    )
    check_part(page, "scores", figure)
    said = page.get_by_role("status").filter(has_text="scores, softmax: 0.0% of the parameters")
    said.wait_for()


def test_shapes_follow_a_finger(visit):
    page = visit("shape", width=390, touch=True)
    tap_slider(page, "batch", 0.999)
    control(page, "part", "up").tap()
    control(page, "precision", "float16").tap()
    check_shape(page, batch=256, precision="float16")
    check_part(page, "up", explorables.shape_tracer(batch=256, precision="float16"))


def test_second_stack_has_parts_of_its_own(visit):
    page = visit("shape")
    control(page, "preset").select_option("t5-small")
    control(page, "part", "decoder cross_scores").check()
    figure = explorables.shape_tracer("t5-small")
    check_part(page, "cross_scores", figure)
    control(page, "part", "decoder embed").check()
    assert value(page, "part_parameters") == 0  # the table is the encoder's


def test_length_ends_with_the_positions_of_the_preset(visit):
    page = visit("shape")
    control(page, "length").press("End")
    check_shape(page, n=8192)
    control(page, "preset").select_option("bert-base")
    check_shape(page, "bert-base", n=512)


# ---------------------------------------------------------------------- next_token_sampling


FIRST = 8  # rows before all are asked for


def rows_of(times, last):
    """The places of the tokens with a row: the likeliest, the last of them giving way to draws."""
    places = list(range(FIRST))
    drawn = [i for i in range(FIRST, 40) if times[i]]
    for i in sorted(drawn, key=lambda i: (i != last, -times[i], i)):
        free = [j for j in places if j < FIRST and not times[j]]
        if not free and i == last:
            free = [FIRST - 1]
        if not free or places.index(free[-1]) < 1:
            break
        places[places.index(free[-1])] = i
    return sorted(places)


def check_next(page, prompt=0, *, prompts=NEXT, seed=0, draws=20, rows=None, **cuts):
    cuts = {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0} | cuts
    entries = _sampling.entries_of(prompts[prompt])
    logs = torch.cat([torch.full((c,), x, dtype=torch.double) for c, x in entries])
    sampling = generation.Sampling(
        temperature=cuts["temperature"],
        top_k=cuts["top_k"] or None,
        top_p=cuts["top_p"] if cuts["top_p"] < 1 else None,
        min_p=cuts["min_p"] or None,
    )
    logits = sampling(logs)
    before, after = logs.softmax(0), logits.softmax(0)
    uniform = torch.tensor(_sampling.uniforms(seed, draws), dtype=torch.double)
    ids = generation.draw(logits.expand(draws, -1), uniform)
    times = ids.bincount(minlength=len(logs))
    last = ids[-1].item() if draws else None
    places = list(range(rows)) if rows else rows_of(times.tolist(), last)
    for name, column in (("before", before), ("after", after), ("drawn", times)):
        column = column.double()
        expected = [*column[places].tolist(), column.sum().item() - column[places].sum().item()]
        shown = [value(page, f"{name}[{i}]") for i in [*places, "others"]]
        assert shown == pytest.approx(expected, abs=TOLERANCE)
    near = functools.partial(pytest.approx, abs=TOLERANCE)
    assert value(page, "kept") == (after > 0).sum().item()
    mass = (logs / cuts["temperature"]).softmax(0)[after > 0].sum().item()
    assert value(page, "mass") == near(mass)
    assert value(page, "entropy_before") == near(torch.special.entr(before).sum().item())
    assert value(page, "entropy") == near(torch.special.entr(after).sum().item())
    struck = page.locator("tr.tfx-cut:not(:last-child)").count()
    assert struck == (after[places] == 0).sum().item()
    if draws:
        assert page.locator("tr.tfx-last").count() == 1
        token = prompts[prompt]["tokens"][last] if last < 40 else "…"
        assert page.locator(".tfx-sofar mark").text_content() == token.replace("\n", "⏎")
    else:
        assert page.locator(".tfx-sofar mark").count() == 0
    shows(page, "entropy", 3)


def test_next_tokens_show_the_packages_numbers(visit):
    check_next(visit("next"))


def test_next_tokens_follow_the_keyboard(visit):
    page = visit("next")
    for _ in range(5):
        control(page, "top_k").press("ArrowRight")
    check_next(page, top_k=5)
    control(page, "temperature").press("End")
    check_next(page, top_k=5, temperature=5.0)
    control(page, "top_k").press("Home")
    for _ in range(10):
        control(page, "top_p").press("ArrowLeft")
    check_next(page, temperature=5.0, top_p=0.8)  # the cut lies far down in the tail
    control(page, "min_p").press("ArrowRight")
    control(page, "temperature").press("Home")
    check_next(page, temperature=0.1, top_p=0.8, min_p=0.01)
    control(page, "prompt").select_option("3")
    control(page, "top_p").press("Home")
    check_next(page, 3, temperature=0.1, top_p=0.01, min_p=0.01)


def test_tokens_are_drawn_by_seed_and_stay_when_settings_change(visit):
    page = visit("next")
    control(page, "prompt").select_option("4")
    check_next(page, 4)
    control(page, "clear").click()
    for _ in range(3):
        control(page, "draw_1").press("Enter")
    check_next(page, 4, draws=3)
    control(page, "draw_100").click()
    check_next(page, 4, draws=103)
    control(page, "fresh").click()
    check_next(page, 4, draws=103, seed=1)
    for _ in range(20):
        control(page, "top_k").press("ArrowRight")
    check_next(page, 4, draws=103, seed=1, top_k=20)
    control(page, "all").click()
    check_next(page, 4, draws=103, seed=1, top_k=20, rows=40)
    said = page.get_by_role("status").filter(has_text="of 49\u202f152 tokens are kept")
    said.wait_for()
    control(page, "clear").click()
    check_next(page, 4, seed=1, top_k=20, rows=40, draws=0)


def test_next_tokens_follow_a_finger(visit):
    page = visit("next", width=390, touch=True)
    tap_slider(page, "min_p", 0.5)
    control(page, "draw_100").tap()
    check_next(page, min_p=0.5, draws=120)


# ---------------------------------------------------------------------- one_average


def check_average(page, **now):
    figure = explorables.one_average(**now)
    for name in ("first", "second", "error"):
        assert value(page, name) == pytest.approx(getattr(figure, name), abs=TOLERANCE)


def test_one_average_follows_the_keyboard_and_keeps_the_smallest_error(visit):
    page = visit("average")
    check_average(page)
    control(page, "weight").press("End")
    check_average(page, weight=1)
    assert value(page, "least") == 0.5
    control(page, "factor").press("Home")
    check_average(page, weight=1, factor=-2)
    assert value(page, "least") == 0.5


# ---------------------------------------------------------------------- cache_growth


def check_cache(page, name="smollm2-135m", *, length=1024, batch=1, window=256, **changes):
    how = {"length": length, "batch": batch, "window": window}
    precision = changes.pop("precision", "float16")
    figure = explorables.cache_growth(name, precision=precision, **how, **changes)
    sizes = _cache._model(figure._now())
    keys = ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff")
    config = preset(name, **{key: sizes[key] for key in keys})
    near = functools.partial(pytest.approx, rel=1e-12)
    if config.max_len >= length:
        assert value(page, "step_cached") == near(config.flops(1, batch, past=length - 1))
        spared = 2 * batch * (length - 1) * config.d_model * config.vocab_size
        assert value(page, "step_uncached") == near(config.flops(length, batch) - spared)
    for key in ("step_cached", "step_uncached", "total_cached", "total_uncached", "break_even"):
        assert value(page, key) == near(getattr(figure, key))
    size = {"float32": 4, "float16": 2, "int8": 1}[precision]
    n_heads, n_kv_heads, d_head, _ = config.layers[0].mixer.heads(config.d_model)

    def kept(heads, tokens):
        return costs.kv_cache_bytes(config.n_layers, heads, d_head, tokens, batch, size)

    assert value(page, "cache_bytes") == kept(n_kv_heads, length)
    assert value(page, "window_bytes") == kept(n_kv_heads, min(window, length))
    assert value(page, "multi_head_bytes") == kept(n_heads, length)
    assert value(page, "multi_query_bytes") == kept(1, length)
    assert value(page, "weight_bytes") == size * config.count_parameters()


def test_cache_shows_the_packages_numbers(visit):
    check_cache(visit("cache"))


def test_cache_follows_the_keyboard(visit):
    page = visit("cache")
    control(page, "length").press("ArrowRight")
    check_cache(page, length=1536)
    control(page, "n_kv_heads").press("Home")
    control(page, "n_layers").press("End")
    control(page, "d_head").press("ArrowRight")
    control(page, "batch").press("ArrowRight")
    control(page, "window").press("ArrowRight")
    control(page, "precision", "float32").check()
    changed = {"n_kv_heads": 1, "n_layers": 96, "d_head": 80, "precision": "float32"}
    check_cache(page, length=1536, batch=2, window=512, **changed)
    control(page, "preset").select_option("llama-7b")
    check_cache(page, "llama-7b", length=1536, batch=2, window=512, precision="float32")
    control(page, "n_kv_heads").press("ArrowLeft")
    for _ in range(4):
        control(page, "n_heads").press("ArrowLeft")
    # On the way past 25, 24 and 20 heads those of keys and values fell to 5 and then to 4.
    changed = {"n_heads": 16, "n_kv_heads": 4, "precision": "float32"}
    check_cache(page, "llama-7b", length=1536, batch=2, window=512, **changed)
    for _ in range(3):
        control(page, "n_heads").press("ArrowLeft")
    changed |= {"n_heads": 8, "n_kv_heads": 2}
    check_cache(page, "llama-7b", length=1536, batch=2, window=512, **changed)
    control(page, "length").press("End")
    check_cache(page, "llama-7b", length=131_072, batch=2, window=512, **changed)


def test_cache_follows_a_finger(visit):
    page = visit("cache", width=390, touch=True)
    control(page, "precision", "int8").tap()
    tap_slider(page, "length", 0.001)
    check_cache(page, length=1, precision="int8")


@pytest.mark.parametrize("measure", ["step", "total"])
def test_curves_of_the_cache_are_its_numbers(visit, measure):
    page = visit("cache")
    control(page, "measure", measure).check()
    names = ["uncached", "cached", "multi_head", "cache", "multi_query", "window"]
    found = {}
    for name in names:
        line = page.locator(f'[data-name="curve_{name}"]').get_attribute("points")
        found[name] = [tuple(map(float, p.split(","))) for p in line.split()]
    ends = {}  # axes in factors: each picture is a shift and a scale of two logarithms
    for i in (0, 32, 64, 96):
        length = 2048 ** (i / 96)
        assert found["cache"][i][0] == pytest.approx(100 * i / 96)
        if not float(length).is_integer():
            continue
        figure = explorables.cache_growth(length=int(length))
        for name in names:
            key = f"{measure}_{name}" if name in names[:2] else f"{name}_bytes"
            ends.setdefault(name, []).append((found[name][i][1], math.log10(getattr(figure, key))))
    for pair in (names[:2], names[2:]):
        points = [p for name in pair for p in ends[name]]
        (y0, v0), (y1, v1) = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
        for y, v in points:
            expected = y0 + (y1 - y0) * (v - v0) / (v1 - v0)
            assert y == pytest.approx(expected, abs=1e-6) and y1 < y0


# ---------------------------------------------------------------------- schedule_designer


def unchecked(rate):
    """A rate without the check of types: ten thousand calls of floats cost seconds with it."""

    def call(step):
        jaxtyping.config.update("jaxtyping_disable", True)
        try:
            return rate(step)
        finally:
            jaxtyping.config.update("jaxtyping_disable", False)

    return call


def check_schedule(page, shape="cosine", **choices):
    now = explorables.schedule_designer()._now() | choices
    now = _schedules.settled(now | {"shape": shape})
    own = unchecked(_schedules.rates_of(shape, now))
    rates = [own(s) for s in range(now["steps"])]
    near = functools.partial(pytest.approx, rel=1e-9)
    assert value(page, "rate") == near(own(now["step"]))
    assert value(page, "highest") == near(max(rates))
    assert value(page, "mean") == near(math.fsum(rates) / len(rates))
    assert value(page, "last") == near(rates[-1])
    curve(page, "curve", own, now)
    other = page.locator('[data-name="against_rate"]')
    if now["against"] == "none":
        assert other.count() == 0
        return
    other = unchecked(_schedules.rates_of(now["against"], now))
    assert value(page, "against_rate") == near(other(now["step"]))
    curve(page, "curve_against", other, now)


def curve(page, name, rate, now):
    """Each point of the line is the rate at its step; the highest of both stands below the top."""
    line = page.locator(f'[data-name="{name}"]').get_attribute("points")
    shapes = [s for s in (now["shape"], now["against"]) if s != "none"]
    top = max(_schedules.rates_of(s, now)(max(1, now["warmup"])) for s in shapes)
    points = [tuple(map(float, p.split(","))) for p in line.split()]
    steps = [round(x * now["steps"] / 100) for x, _ in points]
    corners = {0, max(1, now["warmup"]), now["steps"]}
    if name == "curve" and now["shape"] == "restarts":
        wave, length = now["warmup"] + now["period"], now["period"]
        while wave < now["steps"]:
            corners |= {wave - 1, wave}  # it falls to the floor, and jumps
            length *= now["stretch"]
            wave += length
    assert steps == sorted(set(steps)) and corners <= set(steps)
    found = [(100 - y) / 100 * 1.06 * top for _, y in points]
    assert found == pytest.approx([rate(s) for s in steps], rel=1e-9, abs=1e-12 * top)


def test_schedules_show_the_packages_numbers(visit):
    page = visit("schedule")
    check_schedule(page, against="wsd")
    text = page.locator('[data-name="rate"]').inner_text().translate(PLAIN)
    assert float(text.replace("·10", "e")) == pytest.approx(value(page, "rate"), rel=0.006)


def test_schedules_of_every_shape(visit):
    page = visit("schedule")
    control(page, "against").select_option("none")
    always = {"peak", "steps", "warmup", "step", "shape", "against"}
    for shape, (_, _, takes) in _schedules.SHAPES.items():
        control(page, "shape").select_option(shape)
        check_schedule(page, shape)
        named = page.locator("[data-control]:visible")
        seen = set(named.evaluate_all("nodes => nodes.map(n => n.dataset.control)"))
        assert seen == always - ({"peak"} if shape == "noam" else set()) | set(takes)


def test_schedules_follow_the_keyboard(visit):
    page = visit("schedule")
    for name, key in (("peak", "ArrowRight"), ("warmup", "ArrowLeft"), ("floor", "ArrowRight"),
                      ("decay", "ArrowRight"), ("step", "End")):  # fmt: skip
        control(page, name).press(key)
    changed = {"peak": 1.5e-3, "warmup": 200, "floor": 0.12, "decay": 4000, "step": 10_000}
    check_schedule(page, against="wsd", **changed)
    control(page, "fall", "sqrt").check()
    check_schedule(page, against="wsd", fall="sqrt", **changed)
    control(page, "shape").select_option("restarts")
    control(page, "against").select_option("noam")
    control(page, "d_model").press("ArrowRight")
    control(page, "period").press("ArrowLeft")
    control(page, "stretch").press("ArrowRight")
    changed |= {"d_model": 768, "period": 1000, "stretch": 3, "against": "noam"}
    for place in (0, 50, 100):  # the slider has 200 places
        control(page, "step").fill(str(place))
        check_schedule(page, "restarts", **changed | {"step": 50 * place})
    control(page, "stretch").press("Home")
    check_schedule(page, "restarts", **changed | {"step": 5000, "stretch": 1})
    control(page, "against").select_option("exponential")
    control(page, "half_life").press("ArrowLeft")
    changed |= {"against": "exponential", "half_life": 1000, "step": 5000, "stretch": 1}
    check_schedule(page, "restarts", **changed)
    control(page, "warmup").fill("4")
    check_schedule(page, "restarts", **changed | {"warmup": 10})


def test_fewer_steps_shorten_what_no_longer_fits(visit):
    page = visit("schedule")
    control(page, "steps").press("Home")
    control(page, "shape").select_option("wsd")
    control(page, "against").select_option("noam")
    check_schedule(page, "wsd", against="noam", steps=100)
    control(page, "warmup").press("Home")
    check_schedule(page, "wsd", against="noam", steps=100, warmup=0)
    control(page, "shape").select_option("inverse_sqrt")
    check_schedule(page, "inverse_sqrt", against="noam", steps=100, warmup=0)


def test_schedules_follow_a_finger(visit):
    page = visit("schedule", width=390, touch=True)
    plot = page.locator(".tfx-plot svg")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.touchscreen.tap(box["x"] + 0.75 * box["width"], box["y"] + 30)
    step = round(200 * 0.75) * 50
    found = int(control(page, "step").input_value()) * 50
    assert abs(found - step) <= 50
    for name, share in (("step", 0.999), ("warmup", 0.001)):
        control(page, name).scroll_into_view_if_needed()
        tap_slider(page, name, share)
    check_schedule(page, against="wsd", step=10_000, warmup=0)


# ---------------------------------------------------------------------- optimizer_paths


def check_paths(page, optimizer="adam", *, against="sgd", **choices):
    figure = explorables.optimizer_paths(optimizer, against=against, **choices)
    now, step = figure._now(), figure.step
    pair = [("", "path", optimizer, "lr"), ("against_", "against_path", against, "against_lr")]
    for prefix, name, kind, rate in pair[: 1 if against == "none" else 2]:
        path = package_path(kind, now[rate], now)
        path = path[: 1 + max(i for i, w in enumerate(path) if max(map(abs, w)) <= 1e6)]
        check_drawn(page, name, path)
        if len(path) <= step:
            left = page.locator(f'[data-name="{prefix}loss"]')
            assert left.get_attribute("data-value") is None
            assert f"at step {len(path)}" in left.locator("..").inner_text()
            continue
        x, y = path[-1]
        assert values(page, f"{prefix}w", 2) == pytest.approx([x, y], abs=TOLERANCE)
        expected = surface(double([x, y]), now).item()
        assert value(page, f"{prefix}loss") == pytest.approx(expected, abs=TOLERANCE)


def check_drawn(page, name, path):
    """Every point in the picture has a dot, and the line joins them; what is outside is cut off."""
    line = page.locator(f'[data-name="{name}"]')
    dots = line.evaluate(
        """n => [...n.parentNode.querySelectorAll(`.tfx-dots.${n.classList[1]} circle`)]
            .map(d => [d.cx.baseVal.value, d.cy.baseVal.value])"""
    )
    seen = [w for w in path if max(map(abs, w)) <= 2.4]
    found = [(4.8 * x / 320 - 2.4, 2.4 - 4.8 * y / 320) for x, y in dots]
    for got, expected in zip(found, seen, strict=True):
        assert got == pytest.approx(expected, abs=3e-6)  # SVG keeps float32
    for piece in line.get_attribute("d").split("M")[1:]:
        ends = [tuple(map(float, end.split())) for end in piece.split("L")]
        for (x, y), place in zip(ends, (0, 1), strict=True):
            w = (4.8 * x / 320 - 2.4, 2.4 - 4.8 * y / 320)
            steps = path[1:] if place else path[:-1]
            joined = min(math.dist(w, point) for point in steps) < TOLERANCE
            assert joined or max(map(abs, w)) == pytest.approx(2.4)
    if max(max(map(abs, w)) for w in path) <= 2.4:
        assert line.get_attribute("d").count("M") == len(path) - 1


def surface(w, now):
    kappa, (x, y) = now["condition"], w
    if now["surface"] == "valley":
        return (1 - x) ** 2 / 2 + kappa / 2 * (y - x**2 / 2) ** 2
    angle = math.radians(now["tilt"])
    u = math.cos(angle) * (x - 1) + math.sin(angle) * (y - 0.5)
    v = math.cos(angle) * (y - 0.5) - math.sin(angle) * (x - 1)
    return (u**2 + kappa * v**2) / 2


def package_path(kind, rate, now):
    """The path of an optimizer of the package, gradients by autograd."""
    w = double(now["start"]).requires_grad_()
    common = {"lr": rate, "weight_decay": now["weight_decay"]}
    betas = {"betas": (now["momentum"], now["beta2"])}
    optimizer = {
        "sgd": lambda: optimization.SGD([w], **common),
        "momentum": lambda: optimization.SGD([w], momentum=now["momentum"], **common),
        "adam": lambda: optimization.Adam([w], **common, **betas),
        "adamw": lambda: optimization.AdamW([w], **common, **betas),
        "lion": lambda: optimization.Lion([w], **common, **betas),
    }[kind]()
    chance = (2 * double(_sampling.uniforms(now["seed"], 400)) - 1).reshape(200, 2)
    path = [w.tolist()]
    for noise in now["noise"] * math.sqrt(3) * chance[: now["step"]]:
        optimizer.zero_grad()
        surface(w, now).backward()
        w.grad += noise
        optimizer.step()
        path.append(w.tolist())
    return path


def test_paths_show_the_packages_numbers(visit):
    page = visit("paths")
    check_paths(page, noise=0.5)
    shows(page, "loss", 3)
    shows(page, "w[0]", 2)


@pytest.mark.parametrize("surface", ["bowl", "valley"])
def test_paths_of_every_optimizer(visit, surface):
    page = visit("paths")
    control(page, "surface", surface).check()
    for _ in range(4):
        control(page, "weight_decay").press("ArrowRight")
    for name in ("sgd", "momentum", "adam", "adamw", "lion"):
        control(page, "optimizer").select_option(name)
        control(page, "against").select_option("none" if name == "lion" else "lion")
        other = "none" if name == "lion" else "lion"
        check_paths(page, name, against=other, noise=0.5, weight_decay=0.03, surface=surface)
        assert control(page, "beta2").is_visible()
    assert control(page, "against_lr").is_hidden()
    assert control(page, "tilt").is_hidden() == (surface == "valley")


def test_paths_follow_the_keyboard(visit):
    page = visit("paths")
    for name, key in (("lr", "ArrowLeft"), ("against_lr", "ArrowRight"), ("momentum", "ArrowLeft"),
                      ("beta2", "ArrowLeft"), ("condition", "ArrowLeft"), ("tilt", "End"),
                      ("noise", "ArrowLeft"), ("step", "PageUp")):  # fmt: skip
        control(page, name).press(key)
    step = int(control(page, "step").input_value())
    assert step > 60
    changed = {"lr": 0.03, "against_lr": 0.07, "momentum": 0.8, "beta2": 0.995, "condition": 15,
               "tilt": 45, "noise": 0.2, "step": step}  # fmt: skip
    check_paths(page, **changed)
    control(page, "fresh").press("Enter")
    check_paths(page, seed=1, **changed)
    control(page, "noise").press("Home")
    assert control(page, "fresh").is_hidden()
    page.locator(".tfx-handle").focus()
    for key in ("ArrowRight", "ArrowUp", "Shift+ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    changed |= {"noise": 0, "start": (-1.3, 0.8)}
    check_paths(page, **changed)
    for _ in range(12):
        page.keyboard.press("Shift+ArrowLeft")
    control(page, "step").press("Home")
    check_paths(page, **changed | {"start": (-2.2, 0.8), "step": 0})


def test_path_that_leaves_says_when(visit):
    page = visit("paths")
    control(page, "noise").press("Home")
    control(page, "optimizer").select_option("sgd")
    control(page, "against").select_option("none")
    for _ in range(4):
        control(page, "lr").press("ArrowRight")
    figure = explorables.optimizer_paths("sgd", lr=0.2, against="none")
    assert figure.diverged == 13
    assert page.locator('[data-name="loss"]').inner_text() == "–"
    loss = page.locator(".tfx-stat").filter(has=page.locator('[data-name="loss"]'))
    assert "at step 13" in loss.inner_text()
    control(page, "step").fill("13")
    assert page.locator('[data-name="loss"]').inner_text() == "–"
    control(page, "step").fill("12")
    figure.step = 12
    assert value(page, "loss") == pytest.approx(figure.loss, rel=1e-9)


def test_start_is_dragged_by_a_mouse_and_tapped_by_a_finger(visit):
    def spot(page, start):
        box = page.locator(".tfx-plane").bounding_box()
        x, y = ((z + 2.4) / 4.8 for z in start)
        return box["x"] + x * box["width"], box["y"] + (1 - y) * box["height"]

    page = visit("paths")
    page.mouse.move(*spot(page, (-1.5, 1.2)))
    page.mouse.down()
    page.mouse.move(*spot(page, (0, 0)))
    page.mouse.move(*spot(page, (0.75, -1.6)))
    page.mouse.up()
    check_paths(page, noise=0.5, start=(0.75, -1.6))
    page.mouse.move(*spot(page, (1, 1)))
    check_paths(page, noise=0.5, start=(0.75, -1.6))
    page = visit("paths", width=390, touch=True)
    page.locator(".tfx-plane").scroll_into_view_if_needed()
    page.touchscreen.tap(*spot(page, (1.5, 0.65)))
    check_paths(page, noise=0.5, start=(1.5, 0.65))
    control(page, "step").scroll_into_view_if_needed()
    tap_slider(page, "step", 0.001)
    check_paths(page, noise=0.5, start=(1.5, 0.65), step=0)


@pytest.mark.parametrize("kind", ["bowl", "valley"])
def test_level_lines_lie_where_the_loss_has_that_level(visit, kind):
    page = visit("paths")
    control(page, "tilt").press("End")
    control(page, "surface", kind).check()
    lines = page.locator(".tfx-level").evaluate_all(
        "nodes => nodes.map(n => [n.dataset.level, n.getAttribute('d')])"
    )
    now = {"condition": 20, "tilt": 45, "surface": kind}
    assert sum(len(d) > 0 for _, d in lines) >= 6
    for level, d in lines:
        points = double([list(map(float, p.split())) for p in d.replace("L", "M").split("M")[1:]])
        if not len(points):
            continue
        across, up = 4.8 * points[:, 0] / 320 - 2.4, 2.4 - 4.8 * points[:, 1] / 320
        w = torch.stack([across, up]).requires_grad_()
        found = surface(w, now)
        found.sum().backward()
        # Between two corners of a square, 1/15 apart, the loss is taken for a line.
        away = (found - float(level)).abs() / w.grad.norm(dim=0)
        assert away.max() < 0.03


@pytest.mark.parametrize("name", ["curve", "curve_against"])
def test_loss_curves_are_the_losses(visit, name):
    page = visit("paths")
    line = page.locator(f'[data-name="{name}"]').get_attribute("points")
    points = [tuple(map(float, p.split(","))) for p in line.split()]
    figure = explorables.optimizer_paths("adam" if name == "curve" else "sgd", noise=0.5)
    logs = [math.log10(x) for x in figure.losses]
    assert [x for x, _ in points] == pytest.approx([i / 2 for i in range(201)])
    (a, _), (b, _) = ((points[i][1], logs[i]) for i in (0, 100))
    scale = (b - a) / (logs[100] - logs[0])
    assert scale < 0
    assert [y for _, y in points] == pytest.approx([a + scale * (x - logs[0]) for x in logs])


# ---------------------------------------------------------------------- byte_pairs


def first_merges(merges):
    """The figure's tokenizer, with the first of its merges."""
    whole = _bytepairs._learned()
    return BytePairs(whole.merges[:merges], whole.tokens[: 256 + merges])


def check_pairs(page, text=_bytepairs.TEXTS[0], merges=0):
    ids = first_merges(merges).encode(text)
    tokens = page.locator(".tfx-bytes")
    shown = tokens.evaluate_all(
        "nodes => nodes.map(n => [n.dataset.name, n.dataset.value, n.firstChild.textContent])"
    )
    heard = {"␣": "space", "⏎": "line break", "⇥": "tab"}
    names = [heard.get(name, name) for name in explorables.byte_pairs().data["names"]]
    assert shown == [[f"token[{i}]", str(x), names[x]] for i, x in enumerate(ids)]
    assert value(page, "count") == len(ids)
    assert value(page, "bytes") == len(text.encode())
    assert value(page, "characters") == len(text)
    if ids:
        assert value(page, "ratio") == pytest.approx(len(text.encode()) / len(ids))
    new = tokens.evaluate_all(
        "nodes => nodes.filter(n => n.classList.contains('tfx-new')).map(n => n.dataset.value)"
    )
    assert new == [str(x) for x in ids if merges and x == 255 + merges]
    if merges:
        before = len(first_merges(merges - 1).encode(text))
        assert value(page, f"places[{merges}]") == before - len(ids)


def check_merges(page, text, merges):
    """The table of merges: number, what was joined, the new token, and how often it is here."""
    data = explorables.byte_pairs().data
    names, start = data["names"], min(max(merges - 3, 1), 145)
    counts = [len(first_merges(n).encode(text)) for n in range(start - 1, start + 6)]
    wanted = []
    for k, before, after in zip(range(start, start + 6), counts, counts[1:], strict=False):
        left, right = (names[i] for i in data["merges"][k - 1])
        places = f"{before - after}×" if before > after else "·"
        wanted.append([str(k), f"{left} + {right}", names[255 + k], places, f"places[{k}]"])
    found = page.locator(".tfx-table tbody tr").evaluate_all(
        "nodes => nodes.map(({cells: c}) => [...[...c].map(x => x.textContent), c[3].dataset.name])"
    )
    assert found == wanted


def test_byte_pairs_show_the_packages_tokens(visit):
    page = visit("pairs")
    check_pairs(page)
    check_merges(page, _bytepairs.TEXTS[0], 0)
    line = page.locator('[data-name="curve"]').get_attribute("points")
    heights = [float(p.split(",")[1]) for p in line.split()]
    for n in (0, 1, 2, 17, 64, 149, 150):
        count = len(first_merges(n).encode(_bytepairs.TEXTS[0]))
        assert (100 - heights[n]) / 100 * 1.05 * 38 == pytest.approx(count)


TYPED = [
    "déjà  vu: l'été, the the  the",
    "don't we'll I'm they've he'd you're 's 'S 12 345 x1y2",
    "  two spaces \t tab, \n\n\n break  ",
    "\u0085next\u00a0line\ufeffmark\u2003em\u3000wide\u180evowel\u200bzero",
    "e\u0301 \u0301 日本語 👍🏽 ½² ٣",
    "<script>alert(1)</script> &amp; a_b-c/d",
    "the" * 100,
    "",
]


@pytest.mark.parametrize("text", TYPED, ids=range(len(TYPED)))
def test_any_text_can_be_typed(visit, text):
    page = visit("pairs")
    control(page, "text").fill(text)
    check_pairs(page, text)
    cut = page.locator(".tfx-piece").evaluate_all("nodes => nodes.map(n => n.children.length)")
    assert cut == [len(piece) for piece in tokenizers._pieces(text)]  # a chip for each byte
    control(page, "all").click()
    check_pairs(page, text, 150)
    control(page, "merges").fill("40")
    check_pairs(page, text, 40)


def test_text_that_is_too_long_or_no_unicode_is_mended(visit):
    page = visit("pairs")
    control(page, "text").fill("é" * 310)
    check_pairs(page, "é" * 300)
    control(page, "text").evaluate(
        "n => { n.value = 'a\\ud800b'; n.dispatchEvent(new Event('input')); }"
    )
    check_pairs(page, "a\ufffdb")
    assert control(page, "text").evaluate("n => n.value.codePointAt(1)") == 0xFFFD


def test_merges_are_stepped_by_the_keyboard(visit):
    page = visit("pairs")
    control(page, "text[1]").press("Enter")
    text = _bytepairs.TEXTS[1]
    control(page, "next").press("Enter")
    check_pairs(page, text, 1)
    counts = [len(first_merges(n).encode(text)) for n in range(151)]
    now = 1
    for _ in range(4):
        control(page, "next_here").press("Enter")
        now = next(n for n in range(now + 1, 151) if counts[n] < counts[n - 1])
        check_pairs(page, text, now)
    control(page, "back_here").press("Enter")
    now = next(n for n in range(now - 1, -1, -1) if counts[n] > counts[n + 1])
    check_pairs(page, text, now)
    control(page, "merges").press("ArrowRight")
    check_pairs(page, text, now + 1)
    check_merges(page, text, now + 1)
    control(page, "merges").press("End")
    control(page, "next_here").press("Enter")
    control(page, "next").press("Enter")
    check_pairs(page, text, 150)
    control(page, "none").press("Enter")
    control(page, "back_here").press("Enter")
    check_pairs(page, text, 0)


def test_merges_follow_a_finger(visit):
    page = visit("pairs", width=390, touch=True)
    control(page, "text[2]").tap()
    tap_slider(page, "merges", 0.999)
    check_pairs(page, _bytepairs.TEXTS[2], 150)
    control(page, "back_here").tap()
    control(page, "next_here").tap()
    counts = [len(first_merges(n).encode(_bytepairs.TEXTS[2])) for n in range(151)]
    last = max(n for n in range(1, 151) if counts[n] < counts[n - 1])
    check_pairs(page, _bytepairs.TEXTS[2], last)


# ---------------------------------------------------------------------- quiz


def quiz_of(page, slug):
    return page.locator(f'form[data-slug="{slug}"]')


def told(quiz):
    return quiz.get_by_role("status").inner_text()


@pytest.mark.parametrize("touch", [False, True])
def test_each_choice_gets_its_own_answer(visit, touch):
    page = visit("quiz", width=390 if touch else 1280, touch=touch)
    quiz = quiz_of(page, "pick-one")
    for i, (_, right, feedback) in enumerate(CHOICES):
        choice = quiz.get_by_role("radio").nth(i)
        button = quiz.get_by_role("button", name="Check")
        choice.tap() if touch else choice.press("Space")
        assert told(quiz) == ""  # the last answer's feedback is gone
        button.tap() if touch else button.press("Enter")
        word = "Right." if right else "Not yet."
        expected = feedback.replace("`", "").replace("d_k", "dk")
        assert f"{word} {expected}" in " ".join(told(quiz).split())


def test_quiz_asks_for_a_choice_first(visit):
    page = visit("quiz")
    quiz = quiz_of(page, "pick-one")
    quiz.get_by_role("button").click()
    assert told(quiz) == "Choose one of the answers first."


@pytest.mark.parametrize("text", ["0.125", "1/8", "0,125", ".125", "12.5e-2", " 0.1255 "])
def test_right_numbers_in_many_forms(visit, text):
    page = visit("quiz")
    quiz = quiz_of(page, "how-many")
    quiz.get_by_role("textbox", name="Your number, in nats").fill(text)
    quiz.get_by_role("textbox").press("Enter")
    assert "Right. One in eight." in told(quiz)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("8", "Not yet. That is its inverse."),
        ("0.2", "Not yet. Your number is too large."),
        ("−1", "Not yet. Your number is too small."),
        ("eight", "Type a number, for instance"),
        ("", "Type a number, for instance"),
        ("1/0", "Type a number, for instance"),
        ("0x1", "Type a number, for instance"),
    ],
)
def test_wrong_numbers_are_answered(visit, text, answer):
    page = visit("quiz")
    quiz = quiz_of(page, "how-many")
    quiz.get_by_role("textbox").fill(text)
    quiz.get_by_role("textbox").press("Enter")
    assert answer in told(quiz)


# ---------------------------------------------------------------------- every figure


NUMBERS = """() => [...document.querySelectorAll('.tfbook-explorable')].map(figure => [
    figure.dataset.module, 'alive' in figure.dataset,
    ...[...figure.querySelectorAll('[data-value]')].map(n => [n.dataset.name, n.dataset.value])])"""


def test_from_a_server_figures_show_what_they_show_from_a_disk(visit, figures_at):
    from_disk = visit("many").evaluate(NUMBERS)
    assert visit("many", figures_at).evaluate(NUMBERS) == from_disk
    elsewhere = {"predict", "explain", "stepper"}  # in test_kinds.py, both ways
    assert {module for module, *_ in from_disk} >= set(explorables.NAMES) - elsewhere
    assert all(alive for _, alive, *_ in from_disk) and sum(map(len, from_disk)) > 500


def show_much(page):
    """Bring figures into the state in which most is shown, or what is long."""
    control(figure(page, "softmax_temperature"), "mode", "scores").check()
    steps = figure(page, "attention_steps")
    control(steps, "mode", "sentence").check()
    control(steps, "padding", "unmasked").check()
    words = "yesterday beautiful university children " * 2 + "grey elephant"
    control(steps, "sentence").fill(words)
    control(figure(page, "alignment_viewer"), "chosen").select_option("2")
    control(figure(page, "schedule_designer"), "shape").select_option("restarts")
    control(figure(page, "byte_pairs"), "text").fill("indivisibility" * 21)


@pytest.mark.parametrize("touch", [False, True])
def test_no_figure_makes_the_page_scroll_sideways(visit, touch):
    widths = [390, 320] if touch else [1280, 720, 620]
    page = visit("many", width=widths[0], touch=touch)
    check_widths(page, widths)
    show_much(page)
    check_widths(page, widths)


def check_widths(page, widths):
    """A page that becomes narrower and wider again; figures may wait for the next frame."""
    for width in [*widths, widths[0]]:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate("() => new Promise(d => requestAnimationFrame(() => setTimeout(d)))")
        check_width(page, width)


def check_width(page, width):
    # Nothing is cut off inside of a figure either.
    wide = page.evaluate(
        """width => [...document.querySelectorAll('.tfx-card')].filter(card =>
            card.scrollWidth > card.clientWidth + 1 || card.getBoundingClientRect().right > width
        ).map(card => card.closest('[data-module]').dataset.module)""",
        width,
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_touch_targets_are_44_pixels_high(visit):
    page = visit("many", width=390, touch=True)
    steps = figure(page, "attention_steps")
    control(steps, "mode", "sentence").check()
    control(steps, "sentence").fill("the catt slept")
    small = page.evaluate(
        """() => [...document.querySelectorAll(
                '.tfx :is(input, button, select, summary, textarea, .tfx-handle)')]
            .map(node => ['checkbox', 'radio'].includes(node.type) ? node.closest('label') : node)
            .filter(node => node.checkVisibility() && node.getBoundingClientRect().height < 44)
            .map(node => node.outerHTML.slice(0, 200))"""
    )
    assert small == []


@pytest.mark.parametrize("name", FIGURES)
def test_axe_finds_nothing(visit, figures_at, name):
    page = visit(name, figures_at)  # over file:// axe cannot read the style sheets
    assert axe_faults(page) == []
    for change in CHANGES.get(name, ()):
        change(page)
        assert axe_faults(page) == []


def press(name, key, value=None):
    return lambda page: control(page, name, value).press(key)


def answer(text):
    def change(page):
        page.locator(".tfx-field").fill(text)
        page.locator(".tfx-field").press("Enter")

    return change


def several(*changes):
    return lambda page: [change(page) for change in changes]


# What else axe looks at: figures in states in which other things are shown.
CHANGES = {
    "softmax": [press("mode", "Space", "scores")],
    "steps": [
        several(
            press("mode", "Space", "sentence"), press("causal", "Space"),
            press("padding", "Space", "masked"),
            lambda page: control(page, "sentence").fill("the catt slept"),
        )
    ],
    "plane": [press("hard", "Space")],
    "quiz": [answer("8"), answer("1/8")],
    "alignment": [
        several(
            press("source", "Space", 2),
            lambda page: control(page, "chosen").select_option("2"),
        )
    ],
    "heads": [
        several(
            press("direction", "Space", "to"), press("head", "Space", "1.0"),
            lambda page: control(page, "text").select_option("1"),
        )
    ],
    "real": [press("counted", "Space", "next")],
    "shape": [
        several(
            lambda page: control(page, "preset").select_option("t5-small"),
            press("part", "Space", "head"),
        )
    ],
    "next": [several(press("top_k", "ArrowRight"), press("draw_100", "Enter"),
                     press("all", "Enter"))],
    "bias": [press("scheme", "Space", scheme) for scheme in ("t5", "shaw", "none")],
    "schedule": [lambda page: control(page, "shape").select_option("restarts")],
    "paths": [
        several(
            lambda page: control(page, "optimizer").select_option("momentum"), press("lr", "End")
        )
    ],
    "pairs": [several(press("text[2]", "Enter"), press("next_here", "Enter"))],
}  # fmt: skip


def axe_faults(page):
    """All that axe finds in the light, and the contrasts in the dark, where only colours differ."""
    from axe_playwright_python.sync_playwright import Axe

    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(Axe().axe_script)
        # It cannot tell the ground of what is scrolled out of sight.
        page.add_style_tag(content=".tfx .tfx-walk { max-height: none !important }")
    faults = []
    for theme in ("dark", "light"):
        page.evaluate("theme => (document.documentElement.dataset.theme = theme)", theme)
        options, where = {"resultTypes": ["violations", "incomplete"], "preload": False}, ".tfx"
        if theme == "dark":
            page.evaluate(MARK, theme)  # one text of those with the same colours
            options["runOnly"] = ["color-contrast"]
            where = [[f".tfx {e}"] for e in ("[data-marked]", "input", "select", "textarea")]
        run = f"([where, options]) => axe.run(where, options).then({FOUND})"
        report = page.evaluate(run, [where, options])
        page.evaluate(UNMARK)
        found = report["violations"]
        found += [rule for rule in report["incomplete"] if rule["id"] == "color-contrast"]
        faults += [(theme, rule["id"], n["html"]) for rule in found for n in rule["nodes"]]
    return faults


UNMARK = "document.querySelectorAll('[data-marked]').forEach((e) => delete e.dataset.marked)"


@pytest.mark.parametrize(
    ("fault", "themes"),
    [
        ("<button></button>", {("light", "button-name")}),
        ("<p style='color: #999; background: #aaa'>pale</p>",
         {("light", "color-contrast"), ("dark", "color-contrast")}),
        ("<style>[data-theme=dark] .x {color: #222; background: #333}</style><p class='x'>dim</p>",
         {("dark", "color-contrast")}),
        ("<style>[data-theme=light] .x {color: #ddd; background: #eee}</style><p class='x'>dim</p>",
         {("light", "color-contrast")}),
        ("<p style='background: linear-gradient(red, blue)'>words</p>",
         {("light", "color-contrast"), ("dark", "color-contrast")}),
    ],
)  # fmt: skip
def test_axe_would_find_a_fault(visit, figures_at, fault, themes):
    page = visit("quiz", figures_at)
    page.evaluate("html => document.querySelector('.tfx').insertAdjacentHTML('beforeend', html)",
                  fault)  # fmt: skip
    assert {found[:2] for found in axe_faults(page)} == themes


def test_colours_follow_the_theme_at_once(visit):
    page = visit("plane", theme="light")

    def colours():
        return page.evaluate(
            """() => ['.tfx-card', '.tfx-point', '.tfx-ground', '.tfx-bar'].map(s => {
                const style = getComputedStyle(document.querySelector(s));
                return [style.color, style.backgroundColor, style.fill].join();
            })"""
        )

    light = colours()
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert all(before != after for before, after in zip(light, colours(), strict=True))


def test_several_on_a_page_do_not_share_state_or_ids(visit):
    page = visit("many")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(node => node.id)")
    assert len(ids) == len(set(ids))
    both = page.locator('[data-module="softmax_temperature"]')
    first, second = (control(both.nth(i), "temperature") for i in range(2))
    before = second.input_value()
    first.press("Home")
    assert second.input_value() == before != first.input_value()
    choices = quiz_of(page, "pick-one").nth(0).get_by_role("radio")
    choices.nth(0).check()
    quiz_of(page, "pick-one").nth(1).get_by_role("radio").nth(2).check()
    assert choices.nth(0).is_checked()


def test_every_control_is_reached_by_tab_and_has_a_name(visit):
    page = visit("many")
    nodes = page.locator(".tfx :is(input, button, select, summary, textarea, [tabindex])")
    names = nodes.evaluate_all(
        """nodes => nodes.map(n => [n.tabIndex, n.ariaLabel || n.closest('label')?.textContent
            || n.textContent])"""
    )
    assert all(index == 0 and name.strip() for index, name in names)


def test_without_javascript_the_text_alternative_is_there(visit):
    page = visit("many", scripts=False)
    for text, made in zip(page.locator(".tfx-text").all(), EXTRA["many"](), strict=True):
        assert text.is_visible()
        title = "Quiz." if made.module == "quiz" else made.data["title"]
        assert title in text.inner_text()


def test_module_that_fails_leaves_the_text_alternative(browser, folder):
    page = browser.new_page()
    try:
        page.route("**/softmax_temperature.js", lambda route: route.abort())
        page.goto(f"{folder.as_uri()}/two.html")
        page.locator('[data-module="soft_lookup_plane"][data-alive]').wait_for()
        broken = page.locator('[data-module="softmax_temperature"]')
        assert broken.locator(".tfx-text").is_visible()
        assert broken.get_attribute("data-alive") is None
    finally:
        page.close()


def test_print_shows_the_figures(visit):
    page = visit("many")
    page.emulate_media(media="print")
    assert all(card.is_visible() for card in page.locator(".tfx-card").all())


def stored(figure):
    """The values that a figure of a page begins with."""
    return json.loads(figure.locator('script[type="application/json"]').text_content())


def check_alignments(page, log, chosen=0):
    first = experiments.log(log)["examples"][chosen]
    packed = explorables.pack_weights(first["weights"])
    viewer = page.locator('[data-module="alignment_viewer"]')
    followed = explorables.unpack_weights(packed)[stored(viewer)["word"]]
    shown = values(viewer, "weight", len(first["source"]))
    assert shown == pytest.approx(list(followed), abs=TOLERANCE)
    assert value(viewer, "total") == pytest.approx(1, abs=0.01)


def check_motivation(page):
    """The second walk begins with what sur reads of sur, la, zone, économique, without a mask."""
    walk = page.locator('[data-module="stepper"]').nth(1)
    keys = double([[0], [0], [1], [0]])  # sur and économique ask for the noun, with ln 3
    weights = attention.attend(double([[math.log(3)]]), keys, keys, return_weights=True)[1]
    assert values(walk, "weights", 4) == pytest.approx(weights[0].tolist(), abs=0.001)


def check_chapter_of_attention(page):
    steps = page.locator('[data-module="attention_steps"]')
    words = double([[0, 0, 1], [0, 0, 0], [2, 0, 0], [1, 1, 1]])  # by the river bank
    output, weights = attention.attend(words[3:], words, words, return_weights=True)
    assert values(steps, "weight", 4) == pytest.approx(weights[0].tolist(), abs=TOLERANCE)
    assert values(steps, "output", 3) == pytest.approx(output[0].tolist(), abs=TOLERANCE)
    plane = page.locator('[data-module="soft_lookup_plane"]')
    query, keys = double([[0.25, 0.95]]), double([[0, 1.2], [0.6, 0.6], [1.2, 0]])
    weights = attention.soft_lookup(query, keys, keys, temperature=0.3, return_weights=True)[1]
    assert values(plane, "weight", 3) == pytest.approx(weights[0].tolist(), abs=TOLERANCE)


def check_second_reading_of_attention(page):
    check_softmax(page.locator('[data-module="softmax_temperature"]'), **DEFAULT_SOFTMAX)
    check_example(page.locator('[data-module="attention_steps"]'), [0.9, 0.1, 0.2, 0.3])
    check_plane(page.locator('[data-module="soft_lookup_plane"]'), [0.9, 0.9])
    walk = page.locator('[data-module="stepper"]')  # the words of the road through W_q, W_k and W_v
    query, keys = double([[2, 2]]), double([[-2, 1], [0, 0], [2, 0], [0, 1]])
    weights = attention.attend(query, keys, double([[0], [0], [2], [0]]), return_weights=True)[1]
    assert values(walk, "weights", 4) == pytest.approx(weights[0].tolist(), abs=TOLERANCE)


def check_multi_head(page):
    passage = experiments.log("heads")["passages"][0]
    weights = double(explorables.unpack_weights(passage["weights"]))[0, 0]
    viewer = page.locator('[data-module="head_viewer"]').first
    token = len(passage["tokens"]) - 1
    shown = values(viewer, "weight", len(passage["tokens"]))
    assert shown == pytest.approx(weights[token].tolist(), abs=TOLERANCE)
    back = weights.diagonal(-1).mean().item()
    assert value(viewer, "previous") == pytest.approx(back, abs=TOLERANCE)
    check_average(page.locator('[data-module="one_average"]'))


def check_multi_head_deeper(page):
    check_overview(page.locator('[data-module="head_viewer"]').first, "minilm", 0, "first")
    check_overview(page.locator('[data-module="head_viewer"]').nth(1), "smollm2", 0, "first")


def check_chapter_of_positions(page):
    check_waves(page.locator('[data-module="encoding_wavelengths"]'))
    check_rope(page.locator('[data-module="rope_rotation"]'))
    biases = page.locator('[data-module="relative_bias_shapes"]')
    assert value(biases, "bucket") == positions.t5_bucket(
        torch.tensor([-12]), bidirectional=False, n_buckets=16, max_distance=32
    )


def check_architecture(page):
    check_shape(page.locator('[data-module="shape_tracer"]'), "gpt2")


def check_sampler(page):
    sampler = page.locator('[data-module="next_token_sampling"]')
    now = stored(sampler)
    cuts = {name: now[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    prompts = now["data"]["prompts"]
    check_next(sampler, prompts=prompts, seed=now["seed"], draws=now["draws"], **cuts)


def check_generation(page):
    check_sampler(page)
    check_cache(page.locator('[data-module="cache_growth"]'))


def check_training(page):
    paths = page.locator('[data-module="optimizer_paths"]')
    rates = {"lr": 0.019, "against_lr": 0.05}
    check_paths(paths, "sgd", against="adam", condition=100, beta2=0.99, **rates)
    chosen = {"peak": 0.01, "steps": 200, "warmup": 20, "step": 110, "floor": 0}
    check_schedule(page.locator('[data-module="schedule_designer"]'), against="linear", **chosen)


def check_language(page):
    pairs = page.locator('[data-module="byte_pairs"]')
    check_pairs(pairs, "Select the file λ that you want to open.", 150)
    check_sampler(page)


def check_language_deeper(page):
    check_alignments(page, "translator")
    check_live(page)


def check_costs(page):
    from tests.site import test_cost_explorables as figures  # it lays out its pages as this file

    figures.check_roofline(page.locator('[data-module="roofline"]'), "H100 SXM", rows=8)
    budget = page.locator('[data-module="compute_budget"]')
    figures.check_budget(budget, compute=1e21, parameters=1e9, law=costs.BESIROGLU)


def check_second_reading_of_costs(page):
    from tests.site import test_cost_explorables as figures

    figures.check_calculator(page.locator('[data-module="cost_calculator"]'))


def check_efficient(page):
    from tests.site import test_mixer_explorables as figures

    figures.check_pattern(page.locator('[data-module="sparsity_designer"]'), window=4, n=48)
    walk = page.locator('[data-module="stepper"]')  # the features elu + 1 of (1, -1) and (-1, 1)
    near = functools.partial(pytest.approx, abs=1e-6)
    assert values(walk, "features[0]", 2) == near([2, math.exp(-1)])
    assert values(walk, "features[1]", 2) == near([math.exp(-1), 2])


def check_variants(page):
    from tests.site import test_mixer_explorables as figures

    routing = page.locator('[data-module="expert_routing"]')
    figures.check_routing(routing, balance=True)


def check_hybrids(page):
    from tests.site import test_mixer_explorables as figures

    state = page.locator('[data-module="delta_rule"]')
    figures.check_delta(state.nth(0), "linear", first=20, second=65, query=-30)
    figures.check_delta(state.nth(1), first=20, second=65, query=-30)


def check_second_reading_of_hybrids(page):
    from tests.site import test_mixer_explorables as figures

    figures.check_tree(page.locator('[data-module="scan_tree"]'), "hillis_steele", n=8)


def check_interpretability(page):
    stored = experiments.log("name_mover")["grid"]["stream"]
    figure = page.locator('[data-module="patching_grid"]')
    assert value(figure, "effect") == pytest.approx(stored[23][13], abs=1e-3)


def check_second_reading_of_interpretability(page):
    induction = page.locator('[data-module="induction_head"]')
    found = explorables.induction_head(["Mary", "met", "John", "and", "Mary"]).found
    assert value(induction, "found") == pytest.approx(found, abs=TOLERANCE)
    viewer = page.locator('[data-module="head_viewer"]')
    assert viewer.locator('[data-name^="weight["]').count() == 0  # nothing is loaded unasked
    viewer.locator('[data-control="ask"]').click()
    viewer.locator('[data-control="text"]').wait_for()
    figure = explorables.pretrained_attention("minilm-l6", sentence=8, layer=1, head=4, token=3)
    found = figure.results()["weights"]
    assert values(viewer, "weight", len(found)) == pytest.approx(found, abs=TOLERANCE)


def check_hardware(page):
    from tests.site import test_cost_explorables
    from tests.site import test_machine_explorables as figures

    stored = json.loads((ROOT / "benchmarks/results/gpu.json").read_text(encoding="utf-8"))
    rates = {row["format"]: row["TFLOP/s"] for row in stored["products"] if row["n"] == 16_384}
    copied = max(row["GB/s"] for row in stored["copies"])
    card = costs.Machine("H100, measured", 1e12 * rates["bfloat16"], 1e9 * copied)
    test_cost_explorables.check_roofline(page.locator('[data-module="roofline"]'), card)
    figures.check_bits(page.locator('[data-module="float_bits"]'), 0.1, format="fp16")
    figures.check_pipeline(page.locator('[data-module="pipeline_schedule"]'))
    figures.check_serving(page.locator('[data-module="continuous_batching"]'))


def check_hardware_deeper(page):
    from tests.site import test_machine_explorables as figures

    figures.check_plan(page.locator('[data-module="training_planner"]'))


def check_practice(page):
    from tests.site import test_machine_explorables as figures

    figures.check_dashboard(page.locator('[data-module="debugging_dashboard"]'))


def check_live(page):
    """A model loads when the reader asks; what it computes is tested on pages of its own."""
    assert page.locator('[data-module^="live_"] [data-control="ask"]').first.is_visible()
    assert not page.evaluate("Boolean(window.tfbookWeights)")


CHAPTERS = {
    "01_motivation": check_motivation,
    "01_motivation_deeper": functools.partial(check_alignments, log="translation", chosen=5),
    "02_attention": check_chapter_of_attention,
    "02_attention_deeper": check_second_reading_of_attention,
    "03_multi_head": check_multi_head,
    "03_multi_head_deeper": check_multi_head_deeper,
    "04_positions": check_chapter_of_positions,
    "05_architecture": check_architecture,
    "06_complexity": check_costs,
    "06_complexity_deeper": check_second_reading_of_costs,
    "07_efficient_attention": check_efficient,
    "08_architectural_variants": check_variants,
    "09_hybrids": check_hybrids,
    "09_hybrids_deeper": check_second_reading_of_hybrids,
    "10_interpretability": check_interpretability,
    "10_interpretability_deeper": check_second_reading_of_interpretability,
    "11_training": check_training,
    "12_generation": check_generation,
    "12_generation_deeper": check_live,
    "13_language": check_language,
    "13_language_deeper": check_language_deeper,
    "17_hardware": check_hardware,
    "17_hardware_deeper": check_hardware_deeper,
    "18_practice": check_practice,
}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapters_have_no_fault(look, note_weights, site, chapter):
    """One visit from a disk, as `test_pages.py` makes of the other pages; figures have numbers."""
    name = f"chapters/{chapter}.html"
    faults, weight = look(name, home=site.as_uri(), then=CHAPTERS[chapter])
    note_weights({name: weight})
    assert faults == []


def test_every_chapter_with_figures_is_looked_at(site):
    shown = {
        page.stem: set(re.findall(r'data-module="(\w+)"', page.read_text(encoding="utf-8")))
        for page in (site / "chapters").glob("*.html")
    }
    asked = {"quiz", "predict", "explain"}
    assert {stem for stem, modules in shown.items() if modules - asked} == set(CHAPTERS)


def test_host_is_small():
    host = ROOT / "book" / "assets" / "js" / "explorables-host.js"
    assert len(host.read_bytes()) <= 3_200
