"""Explorables in a real browser, without a kernel: their numbers equal the package's.

Small pages carry what a notebook's cell stores, the committed host and the modules as the book's
build writes them, and the theme's style sheets. Each number is read off the page in full precision
and compared with `tfbook.attention`, after controls were moved by keyboard and by touch.
"""

import functools
import http.server
import importlib.util
import math
import shutil
import threading
from pathlib import Path

import pytest
import torch

from book.tools.assets import wrap_modules
from tfbook import attention, explorables, masks
from tfbook.data import word_vectors
from tfbook.explorables import _softmax

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-6
CHOICES = [
    ("The first, `a`.", False, "Not the first: `a` is wrong."),
    ("The second.", True, "Yes, because of d_k."),
    ("The third.", False, "Not the third."),
]
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
    "many": lambda: [make() for make in MAKERS for _ in range(2)],
}  # fmt: skip
MAKERS = (
    explorables.softmax_temperature,
    explorables.attention_steps,
    explorables.soft_lookup_plane,
    lambda: explorables.quiz("pick-one", "Which?", choices=CHOICES),
)
LARGE = [[0, 0, 0, 9e5], [1e6, 0, 0, 0], [0, 0, 0, 0], [-1e6, 0, 0, 0], [0, 1e6, 0, 0], [0] * 4]
EXTRA = {"large": lambda: [explorables.attention_steps(keys=LARGE, query=[2, -2, 0, 2])]}
WORDS, VECTORS = word_vectors()
DEFAULT_SOFTMAX = {"d_k": 64, "scaled": False, "temperature": 1}
PLAIN = str.maketrans("−⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789")


# ---------------------------------------------------------------------- pages and browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with explorables, laid out as in the built site."""
    folder = tmp_path_factory.mktemp("explorables")
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
    for name, make in (FIGURES | EXTRA).items():
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


@pytest.fixture(params=["http", "file"])
def origin(request, figures_at, folder):
    """Where the pages come from."""
    return figures_at if request.param == "http" else folder.as_uri()


@pytest.fixture
def visit(browser, folder):
    """Open a page; every console error and every page error fails the test in the end."""
    contexts, complaints = [], []

    def opened(name, origin=None, *, width=1280, theme="light", touch=False, scripts=True):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, has_touch=touch, is_mobile=touch,
            java_script_enabled=scripts, reduced_motion="reduce",
        )  # fmt: skip
        contexts.append(context)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.on("console", lambda m: m.type == "error" and complaints.append(m.text))
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.goto(f"{origin or folder.as_uri()}/{name}.html")
        if scripts:
            page.evaluate("theme => (document.documentElement.dataset.theme = theme)", theme)
            alive = "!document.querySelector('.tfbook-explorable:not([data-alive])')"
            page.wait_for_function(alive)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def value(page, name):
    """One number off the page in full precision."""
    text = page.locator(f'[data-name="{name}"]').get_attribute("data-value")
    return float(text)


def values(page, name, count):
    """Numbers name[0], name[1], ... off the page."""
    return [value(page, f"{name}[{i}]") for i in range(count)]


def shows(page, name, digits):
    """The number as the reader sees it, which has to be the rounded one."""
    text = page.locator(f'[data-name="{name}"]').inner_text().translate(PLAIN)
    assert float(text.replace("·10", "e").replace("10-", "1e-")) == pytest.approx(
        value(page, name), abs=0.51 * 10**-digits
    )


def control(page, name, value=None):
    """A slider, switch or button of a figure."""
    suffix = "" if value is None else f'[value="{value}"]'
    return page.locator(f'[data-control="{name}"]{suffix}')


def tap_slider(page, name, share):
    """Touch a slider at a share of its length."""
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


def test_softmax_shows_the_packages_numbers(visit, origin):
    check_softmax(visit("softmax", origin), **DEFAULT_SOFTMAX)


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


def test_cat_example_shows_the_packages_numbers(visit, origin):
    page = visit("steps", origin)
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
        mask = masks.causal_mask(n + pads)[:n]
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


def test_sentence_attends_to_itself(visit, origin):
    page = visit("steps", origin)
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


def test_plane_shows_the_packages_numbers(visit, origin):
    check_plane(visit("plane", origin), [0.9, 0.9])


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


# ---------------------------------------------------------------------- quiz


def quiz_of(page, slug):
    return page.locator(f'form[data-slug="{slug}"]')


def told(quiz):
    return quiz.get_by_role("status").inner_text()


@pytest.mark.parametrize("touch", [False, True])
def test_each_choice_gets_its_own_answer(visit, origin, touch):
    page = visit("quiz", origin, width=390 if touch else 1280, touch=touch)
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


@pytest.mark.parametrize("width", [1280, 720, 620, 390, 320])
@pytest.mark.parametrize("name", FIGURES)
def test_no_page_scrolls_sideways(visit, name, width):
    page = visit(name, width=width, touch=width < 500)
    if name == "steps":
        check_width(page, width)
        control(page, "mode", "sentence").check()
        control(page, "padding", "unmasked").check()
        control(page, "sentence").fill(
            "yesterday beautiful university children " * 2 + "grey elephant"
        )
    if name == "softmax":
        check_width(page, width)
        control(page, "mode", "scores").check()
    check_width(page, width)


def check_width(page, width):
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Nothing is cut off inside of a figure either.
    wide = page.locator(".tfx-card").evaluate_all(
        "cards => cards.filter(c => c.scrollWidth > c.clientWidth + 1).length"
    )
    assert wide == 0


@pytest.mark.parametrize("name", [n for n in FIGURES if n != "many"])
def test_touch_targets_are_44_pixels_high(visit, name):
    page = visit(name, width=390, touch=True)
    if name == "steps":
        control(page, "mode", "sentence").check()
        control(page, "sentence").fill("the catt slept")
    small = page.evaluate(
        """() => [...document.querySelectorAll('.tfx :is(input, button, summary, .tfx-handle)')]
            .map(node => ['checkbox', 'radio'].includes(node.type) ? node.closest('label') : node)
            .filter(node => node.checkVisibility() && node.getBoundingClientRect().height < 44)
            .map(node => node.outerHTML.slice(0, 200))"""
    )
    assert small == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", [n for n in FIGURES if n != "many"])
def test_axe_finds_nothing(visit, figures_at, name, theme):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(name, figures_at, theme=theme)  # over file:// axe cannot read the style sheets
    states = [lambda: None]
    if name == "steps":
        states += [
            lambda: control(page, "mode", "sentence").check(),
            lambda: control(page, "causal").check(),
            lambda: control(page, "padding", "masked").check(),
            lambda: control(page, "sentence").fill("the catt slept"),
        ]
    if name == "softmax":
        states.append(lambda: control(page, "mode", "scores").check())
    if name == "plane":
        states.append(lambda: control(page, "hard").check())
    if name == "quiz":
        for text in ("8", "1/8"):
            states.append(functools.partial(page.locator(".tfx-field").fill, text))
            states.append(functools.partial(page.locator(".tfx-field").press, "Enter"))
    for change in states:
        change()
        report = Axe().run(page, context=".tfx").response
        assert [v["id"] for v in report["violations"]] == []
        unsure = [
            (i["id"], node["html"])
            for i in report["incomplete"]
            for node in i["nodes"]
            if i["id"] == "color-contrast"
        ]
        assert unsure == []


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
    first, second = (control(page, "temperature").nth(i) for i in range(2))
    before = second.input_value()
    first.press("Home")
    assert second.input_value() == before != first.input_value()
    choices = page.locator("form.tfx-quiz").nth(0).get_by_role("radio")
    choices.nth(0).check()
    page.locator("form.tfx-quiz").nth(1).get_by_role("radio").nth(2).check()
    assert choices.nth(0).is_checked()


def test_every_control_is_reached_by_tab_and_has_a_name(visit):
    page = visit("many")
    nodes = page.locator(".tfx :is(input, button, summary, [tabindex])")
    names = nodes.evaluate_all(
        """nodes => nodes.map(n => [n.tabIndex, n.ariaLabel || n.closest('label')?.textContent
            || n.textContent])"""
    )
    assert all(index == 0 and name.strip() for index, name in names)


@pytest.mark.parametrize("name", FIGURES)
def test_without_javascript_the_text_alternative_is_there(visit, name):
    page = visit(name, scripts=False)
    for text, figure in zip(page.locator(".tfx-text").all(), FIGURES[name](), strict=True):
        assert text.is_visible()
        title = "Quiz." if figure.module == "quiz" else figure.data["title"]
        assert title in text.inner_text()


def test_module_that_fails_leaves_the_text_alternative(browser, folder):
    page = browser.new_page()
    try:
        page.route("**/softmax_temperature.js", lambda route: route.abort())
        page.goto(f"{folder.as_uri()}/many.html")
        page.locator(".tfbook-explorable[data-alive]").nth(5).wait_for()
        broken = page.locator('[data-module="softmax_temperature"]').first
        assert broken.locator(".tfx-text").is_visible()
        assert broken.get_attribute("data-alive") is None
    finally:
        page.close()


def test_print_shows_the_figures(visit):
    page = visit("many")
    page.emulate_media(media="print")
    assert all(card.is_visible() for card in page.locator(".tfx-card").all())


@pytest.mark.parametrize("way", ["http", "file"])
def test_figures_of_the_chapter_show_the_packages_numbers(open_page, settle, server, site, way):
    page = open_page()
    page.goto(f"{server if way == 'http' else site.as_uri()}/chapters/02_attention.html")
    settle(page)
    check_softmax(page.locator('[data-module="softmax_temperature"]'), **DEFAULT_SOFTMAX)
    check_example(page.locator('[data-module="attention_steps"]'), [0.9, 0.1, 0.2, 0.3])
    check_plane(page.locator('[data-module="soft_lookup_plane"]'), [0.9, 0.9])
    page.context.close()


def test_host_is_small():
    host = ROOT / "book" / "assets" / "js" / "explorables-host.js"
    assert len(host.read_bytes()) <= 3_000
