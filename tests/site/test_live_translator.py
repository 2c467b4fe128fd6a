"""The translator in the page against `tfbook`: the library in a browser, and the figure's numbers.

The checks of the library are those that `tests/package/test_live_translator.py` runs in Node. The
figure is visited as that of `test_live_model.py` is; what stands on the page is compared with the
same rounded weights in PyTorch, in float64 on both sides.
"""

import functools
import random

import pytest

from tests.package import node
from tests.package import translator_checks as checks
from tests.site import test_explorables as others
from tests.site.live_pages import (
    HOSTS,
    SLOW,
    WATCH,
    longest_frame,
    models_asked,
    opener,
    slowed,
    unseen_bugs,
)
from tests.site.test_explorables import axe_faults, check_widths, control, lay_out, tap_slider
from tfbook.data import BOS, EOS
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _base, _translator, _weights

pytestmark = pytest.mark.browser
figures_at, free_pages, visit = others.figures_at, others.free_pages, others.visit
near = functools.partial(pytest.approx, abs=1e-9, rel=0)
TEXT = "Press the Enter key."
OFF = ["encoder 0.1", "decoder 1.2", "cross 1.3"]
FIGURES = {
    "translator": lambda: [explorables.live_translator(TEXT)],
    "changed": lambda: [
        explorables.live_translator(
            "Files.",
            n_beams=3,
            length_penalty=0.4,
            off=OFF,
            layer=0,
            head=2,
            step=4,
            chosen=1,
            token=2,
        )
    ],
    "short": lambda: [explorables.live_translator("Files.", n_beams=1, length_penalty=0)],
    "two": lambda: [explorables.live_translator(TEXT), explorables.live_translator("Open it.")],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with the figure, and the weights where the built site has them."""
    folder = lay_out(tmp_path_factory.mktemp("translator"), FIGURES)
    script = folder / "_static" / "models" / "translator.js"
    script.parent.mkdir()
    script.write_text(_weights.live_script("translator"), encoding="utf-8")
    return folder


# ---------------------------------------------------------------------- the library by itself


@pytest.fixture(scope="module")
def bench(browser):
    """A page with the library and the weights."""
    page = browser.new_page()
    page.goto("about:blank")
    page.evaluate(_weights.live_script("translator"))
    checks.load(page)
    yield page
    page.close()


@pytest.mark.parametrize("name", checks.CHECKS)
def test_the_library_computes_what_the_package_does(bench, name):
    assert checks.CHECKS[name](bench)


@pytest.mark.skipif(node.NODE is not None, reason="Node sees them, which is quicker")
def test_planted_bugs_are_seen(bench):
    sync_api = pytest.importorskip("playwright.sync_api")
    assert checks.survivors(bench, sync_api.Error) == []


# ---------------------------------------------------------------------- the figure


def ask(page):
    """Ask for the model, and wait for its first translation."""
    control(page, "ask").first.click()
    settled(page)
    return page


def settled(page):
    """Wait until what is shown belongs to what was asked, and was drawn."""
    page.evaluate("() => new Promise((go) => setTimeout(go))")
    page.wait_for_function(
        "[...document.querySelectorAll('.tfx-translator')].every((card) => {"
        " const stage = card.querySelector(':scope > .tfx-opened');"
        " return stage.hidden || !('busy' in stage.dataset); })"
        " && document.querySelector('.tfx-translator > .tfx-opened:not([hidden])')"
    )


def shown(page):
    """All numbers of the figure in full precision, by name."""
    found = page.locator(".tfx-translator [data-value]").evaluate_all(
        "nodes => nodes.map(({ dataset }) => [dataset.name,"
        " [dataset.value, dataset.id, dataset.weight]])"
    )
    return dict(found)


def check_page(page, text, *, n_beams=4, penalty=1, off=(), step=None, chosen=0, at=0,
               layer=1, head=None):  # fmt: skip
    """Hypotheses, the grid's row, and the likeliest tokens off the page."""
    if hasattr(page, "mouse"):
        page.mouse.move(0, 0)  # what it is over is followed
        page.wait_for_timeout(20)
    _, tokenizer = checks.loaded()
    ids = [*tokenizer.encode(text).ids, EOS]
    steps = _steps(text, tuple(off), n_beams, penalty)
    alive, finished = steps[(step or len(steps)) - 1]
    hypotheses = sorted([*finished, *alive], key=lambda each: -each.score)
    numbers = shown(page)
    for i, each in enumerate(hypotheses):
        told = [float(numbers[f"{name}[{i}]"][0]) for name in ("length", "log_prob", "score")]
        assert told == near([len(each.tokens), each.log_prob, each.score])
    assert f"score[{len(hypotheses)}]" not in numbers
    words = page.locator(".tfx-beams tbody tr:not([hidden]) td:nth-child(2)").all_text_contents()
    decoded = tokenizer.decode_batch([each.tokens for each in hypotheses])
    assert words == [
        text + " …" * (each.tokens[-1] != EOS)
        for text, each in zip(decoded, hypotheses, strict=True)
    ]
    chosen = min(chosen, len(hypotheses) - 1)
    assert page.locator(".tfx-result").text_content() == words[chosen]
    tokens = hypotheses[chosen].tokens
    at = min(at, len(tokens) - 1)
    _, _, logits, _, cross = _read(tuple(ids), (BOS, *tokens[:-1]), tuple(off))
    assert [int(numbers[f"source[{j}]"][0]) for j in range(len(ids))] == ids
    weights = cross[layer, :, at].mean(0) if head is None else cross[layer, head, at]
    assert [float(numbers[f"source[{j}]"][2]) for j in range(len(ids))] == near(weights.tolist())
    best = logits[at].topk(8)
    assert [int(numbers[f"logit[{k}]"][1]) for k in range(8)] == best.indices.tolist()
    assert [float(numbers[f"logit[{k}]"][0]) for k in range(8)] == near(best.values.tolist())
    chances = logits[at].softmax(-1)[best.indices]
    assert [float(numbers[f"chance[{k}]"][0]) for k in range(8)] == near(chances.tolist())
    assert page.locator(".tfx-tokens input:checked").get_attribute("value") == str(at)
    boxes = page.locator(".tfx-leaf").count()
    assert boxes >= sum(len(each) for each in steps[(step or len(steps)) - 1])


@functools.lru_cache
def _steps(text, off, n_beams, penalty):
    _, tokenizer = checks.loaded()
    ids = [*tokenizer.encode(text).ids, EOS]
    return checks.search(ids, off, n_beams, penalty, _translator.MOST)


@functools.lru_cache
def _read(ids, target, off):
    return checks.read(ids, target, off)


def type_text(page, text):
    """Type a sentence."""
    control(page, "text").fill(text)
    settled(page)


def slide(page, name, value):
    """Move a slider to a position."""
    control(page, name).evaluate(
        "(n, v) => { n.value = v; n.dispatchEvent(new Event('input')); }", value
    )
    settled(page)


@pytest.mark.parametrize("seed", range(3))
def test_random_sentences_give_the_packages_numbers(visit, figures_at, seed):
    page = ask(visit("translator", figures_at))
    text = checks.random_text(seed + 40)[:60].strip() or "x"
    type_text(page, text)
    check_page(page, text)
    for at in (0, 2, 63):
        control(page, "token").last.evaluate("n => n.value")
        last = control(page, "token").count() - 1
        control(page, "token", min(at, last)).check(force=True)
        settled(page)
        check_page(page, text, at=at)
    chance = random.Random(seed)
    layer, head = chance.randrange(2), chance.randrange(4)
    control(page, "cross_head", f"{layer}.{head}").check(force=True)
    settled(page)
    check_page(page, text, at=63, layer=layer, head=head)


def test_what_was_set_in_python_is_shown(visit):
    page = ask(visit("changed"))
    check_changed(page)


def check_changed(page):
    """The page that begins with other beams, heads that are off, and a step."""
    text, given = "Files.", {"n_beams": 3, "penalty": 0.4, "layer": 0, "head": 2}
    check_page(page, text, step=4, chosen=1, at=2, off=OFF, **given)
    control(page, "on").click()
    settled(page)
    check_page(page, text, step=5, chosen=1, at=63, off=OFF, **given)
    control(page, "chosen", 2).check(force=True)
    settled(page)
    check_page(page, text, step=5, chosen=2, at=63, off=OFF, **given)
    control(page, f"on[{OFF[0]}]").press("Space")
    settled(page)
    check_page(page, text, step=5, at=63, off=OFF[1:], **given)
    slide(page, "length_penalty", 14)  # tenths: by score and by probability the order differs
    slide(page, "step", 99)
    check_page(page, text, at=63, off=OFF[1:], **(given | {"penalty": 1.4}))
    slide(page, "length_penalty", 4)
    control(page, "all_on").click()
    control(page, "cross_head", "1.3").check(force=True)
    slide(page, "step", 99)
    given |= {"layer": 1, "head": 3}
    check_page(page, text, at=63, **given)


def test_heads_are_switched_off_by_the_keyboard(visit):
    page = ask(visit("short"))
    control(page, "on[cross 0]").press("Space")
    settled(page)
    off = [f"cross 0.{head}" for head in range(4)]
    check_page(page, "Files.", n_beams=1, penalty=0, off=off)
    control(page, "on[cross 0.2]").press("Space")
    settled(page)
    off.remove("cross 0.2")
    check_page(page, "Files.", n_beams=1, penalty=0, off=off)
    assert control(page, "on[cross 0]").evaluate("node => node.indeterminate")


def test_beams_and_penalty_are_moved_by_the_keyboard(visit):
    page = ask(visit("translator"))
    control(page, "n_beams").press("ArrowLeft")
    control(page, "n_beams").press("ArrowLeft")
    control(page, "length_penalty").press("Home")
    settled(page)
    check_page(page, TEXT, n_beams=2, penalty=0)
    control(page, "cross_head", "1.mean").press("ArrowLeft")
    settled(page)
    check_page(page, TEXT, n_beams=2, penalty=0, head=3)
    control(page, "token", 0).press("ArrowRight")
    settled(page)
    check_page(page, TEXT, n_beams=2, penalty=0, head=3, at=1)


def test_a_finger_does_it_too(visit):
    page = visit("short", width=390, touch=True)
    control(page, "ask").tap()
    settled(page)
    control(page, "on[cross 1.0]").tap(force=True)
    control(page, "n_beams").scroll_into_view_if_needed()
    tap_slider(page, "n_beams", 0.26)
    settled(page)
    control(page, "cross_head", "0.1").tap(force=True)
    control(page, "chosen", 1).tap(force=True)
    control(page, "token", 1).tap(force=True)
    settled(page)
    given = {"n_beams": 2, "penalty": 0, "layer": 0, "head": 1, "off": ["cross 1.0"]}
    check_page(page, "Files.", chosen=1, at=1, **given)


def test_it_is_written_word_by_word(visit):
    page = ask(visit("short"))
    given = {"n_beams": 1, "penalty": 0, "at": 63}
    total = len(_steps("Files.", (), 1, 0))
    page.evaluate(
        """() => {
          const slider = document.querySelector('[data-control=step]'), seen = (window.seen = []);
          new MutationObserver(() => seen.push(Number(slider.value)))
            .observe(slider, { attributes: true, attributeFilter: ['aria-valuetext'] });
        }"""
    )
    control(page, "play").click()
    settled(page)
    assert control(page, "play").inner_text() == "Pause"
    page.get_by_role("button", name="Write it word by word").wait_for()
    assert sorted(set(page.evaluate("window.seen"))) == list(range(1, total + 1))
    check_page(page, "Files.", **given)
    slide(page, "step", 2)
    check_page(page, "Files.", step=2, **given)
    control(page, "play").click()  # it goes on from where it stands
    settled(page)
    assert control(page, "step").input_value() != "2"
    control(page, "play").click()
    settled(page)
    step = int(control(page, "step").input_value())
    page.wait_for_timeout(900)
    assert int(control(page, "step").input_value()) == step
    check_page(page, "Files.", step=step, **given)


def test_any_text_can_be_typed(visit):
    page = ask(visit("translator"))
    for text in ("\U0001f642 caf\u00e9\n\u4e2d", " ", "<b>x</b>"):
        type_text(page, text)
        check_page(page, text)
    control(page, "text").fill("")
    assert page.get_by_text("Type an English sentence.").is_visible()
    control(page, "text").evaluate(
        "n => { n.value = 'a\\ud800b'; n.dispatchEvent(new Event('input')); }"
    )
    settled(page)
    check_page(page, "a\ufffdb")
    control(page, "text").fill("x " * 80)
    assert page.get_by_text("At most 120 characters.").is_visible()
    assert len(control(page, "text").input_value()) == 120
    control(page, f"text[{len(_translator.TEXTS) - 2}]").click()
    settled(page)
    check_page(page, _translator.TEXTS[-2])


@pytest.fixture
def fresh_page(browser):
    """Open pages of a context of their own."""
    yield from opener(browser, "live_translator")


READY = "document.querySelectorAll('.tfx-translator > .tfx-opened:not([hidden]):not([data-busy])')"


@pytest.mark.parametrize("host", HOSTS)
def test_nothing_is_loaded_before_it_is_asked_for(fresh_page, folder, figures_at, host):
    origin = figures_at if host != "file" else folder.as_uri()
    page = fresh_page(f"{origin}/two.html", HOSTS[host])
    assert models_asked(page) == []
    control(page, "ask").nth(1).click()
    page.wait_for_function(f"{READY}.length === 1")
    assert len(models_asked(page)) == 1
    place = page.locator(".tfx-translator > .tfx-opened:not([hidden])").get_attribute("data-place")
    assert place == {"http": "worker"}.get(host, "page")
    best = _steps("Open it.", (), 4, 1)[-1][1][0]
    (told,) = [float(n[0]) for name, n in shown(page).items() if name == "score[0]"]
    assert told == near(best.score)
    control(page, "ask").first.click()  # the other figure takes what is there
    page.wait_for_function(f"{READY}.length === 2")
    assert len(models_asked(page)) == 1
    assert page.complaints == []


def test_weights_that_do_not_load_can_be_asked_for_again(fresh_page, figures_at):
    page = fresh_page(f"{figures_at}/translator.html")
    page.route("**/models/*.js", lambda route: route.abort())
    control(page, "ask").click()
    page.get_by_text("did not load").wait_for()
    page.unroute_all()
    ask(page)


FIGURE_MUTANTS = [
    ('penalty: get("length_penalty")', "penalty: 1"),
    ("[...encodeText(tokenizer, request.text), data.eos]", "encodeText(tokenizer, request.text)"),
    ("seen.looks.get(parent))", "seen.looks.get(path[0].parent))"),
    ("b.score - a.score);\n      const chosen", "b.log_prob - a.log_prob);\n      const chosen"),
    ("look.cross[layer][head])", "look.cross[1 - layer][head])"),
    ("save({ layer, head })", "save({ layer: 1 - layer, head })"),
    ("order.filter((part) => off.has(part)), chosen", "[], chosen"),
    ("const stepNow = () => Math.max(1,", "const stepNow = () => Math.max(total(),"),
    ("each.chance.set(chance)", "each.chance.set(chance / looks[at].best[0].chance)"),
]


def test_planted_bugs_of_the_figure_are_seen(fresh_page, figures_at):
    seen = lambda page: check_changed(ask(page))  # noqa: E731
    address = f"{figures_at}/changed.html"
    assert unseen_bugs(fresh_page, address, "live_translator", FIGURE_MUTANTS, seen, 8_000) == []


@pytest.mark.parametrize("host", ["worker", "page"])
def test_a_slow_page_does_not_freeze(fresh_page, figures_at, host, record_property):
    """Between two frames the page answers, also where it does the work itself."""
    before = "delete window.Worker" if host == "page" else None
    page = ask(fresh_page(f"{figures_at}/translator.html", before))
    slowed(page, SLOW)
    page.evaluate(WATCH)
    control(page, "text").fill("You can send files using the Bluetooth settings window.")
    settled(page)
    longest = longest_frame(page)
    slowed(page, 1)
    speed = float(shown(page).get("speed", ["0"])[0])
    record_property("longest_ms", longest)
    record_property("tokens_a_second_throttled", speed)
    assert longest < 2000  # a guard against what takes seconds; no stop-watch


def test_it_fits(visit):
    check_widths(ask(visit("changed", width=390)), [320, 390, 600, 768, 1280])


def test_axe_finds_no_fault(visit):
    page = visit("changed")
    assert axe_faults(page) == []
    ask(page)
    assert axe_faults(page) == []


def test_every_control_has_a_name_and_is_reached_by_tab(visit):
    page = ask(visit("translator"))
    nodes = page.locator(".tfx :is(input, button, select, summary, textarea, [tabindex])")
    names = nodes.evaluate_all(
        """nodes => nodes.map(n => [n.tabIndex, n.ariaLabel || n.closest('label')?.textContent
            || n.textContent || (n.hidden ? 'hidden' : '')])"""
    )
    assert all(index == 0 and name.strip() for index, name in names)


def test_it_says_in_words_what_it_shows(visit):
    page = ask(visit("translator"))
    control(page, "token", 1).check(force=True)
    said = page.get_by_role("status").filter(has_text=", token 2,")
    said.wait_for()
    assert "looks at" in said.inner_text() and TEXT in said.inner_text()


def test_the_page_of_the_book_translates(fresh_page, site):
    """From a disk; the page is looked at in `test_live_model.py`."""
    page = fresh_page(f"{site.as_uri()}/book/live_models.html")
    page.locator('[data-module="live_translator"] [data-control="ask"]').click()
    settled(page)
    check_page(page.locator('[data-module="live_translator"]'), _translator.TEXT)
    assert page.complaints == []


def test_the_weights_stand_beside_the_modules():
    """Where the page looks for them, the book's build writes them."""
    from book.tools import live as tool

    source = (_base.FOLDER / "workers.js").read_text(encoding="utf-8")
    assert "../models/${name}.js" in source and tool.FOLDER == "models"
    assert "translator" in tool.MODELS
