"""The model that learns in the page: its library against `torch`, and the figure as readers use it.

The library is what the package's test runs in Node, in the browser here. The figure is visited as
those of `test_explorables.py` are; what it shows after so many steps is compared with the same
training by `tfbook` and `torch.optim`.
"""

import functools
import json
import math
import re

import pytest
import torch

from tests.package import training_checks as checks
from tests.package.node import library
from tests.site import test_explorables as others
from tests.site.live_pages import (
    HOSTS,
    SLOW,
    WATCH,
    longest_frame,
    opener,
    slowed,
    unseen_bugs,
)
from tests.site.test_explorables import axe_faults, check_widths, control, lay_out, tap_slider
from tfbook.teaching.explorables import _training

pytestmark = pytest.mark.browser
figures_at, free_pages, visit = others.figures_at, others.free_pages, others.visit
near = functools.partial(pytest.approx, abs=1e-7, rel=0)
TEXT, NAMES = checks.TEXT, _training.TEXTS["Names"]
make = _training.live_training
FIGURES = {
    "cat": lambda: [make(TEXT, seed=3)],
    "names": lambda: [make()],
    "two": lambda: [make(TEXT, n_layers=2, layer=1, head=1, probe="dog sat"), make(seed=1)],
    "short": lambda: [make("yes\nno\n" * 20, lr=0.03)],
    "wild": lambda: [make(TEXT, lr=10)],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with the figure."""
    return lay_out(tmp_path_factory.mktemp("learning"), FIGURES)


# ---------------------------------------------------------------------- the library by itself


@pytest.fixture(scope="module")
def bench(browser):
    """A page with the library."""
    page = browser.new_page()
    page.goto("about:blank")
    checks.load(page)
    yield page
    page.close()


@pytest.mark.parametrize("name", checks.CHECKS)
def test_javascript_computes_what_torch_computes(bench, name):
    assert checks.CHECKS[name](bench)


# ---------------------------------------------------------------------- the figure

IDLE = """[...document.querySelectorAll('.tfx-learn')].every((card) =>
  card.dataset.busy === 'no')"""


def settled(page):
    """Wait until all that was asked is done."""
    page.wait_for_function(IDLE)


def step(page, count=1):
    """Press "One step" so often."""
    for _ in range(count):
        control(page, "learn_one").first.click()
        settled(page)


def value(page, name):
    """One number off the page."""
    text = page.locator(f'.tfx-learn [data-name="{name}"]').first.get_attribute("data-value")
    return None if text is None else float(text)


def check_page(page, text, *, n_layers=1, lr=0.01, seed=0, steps, layer=0, head=0, probe=None):
    """All that the first figure of a page shows after some steps."""
    found = _training.train(text, n_layers, lr, seed, steps)
    assert value(page, "step") == steps
    recent = found.losses[-20:]
    assert value(page, "loss") == near(sum(recent) / len(recent))
    assert value(page, "held") == near(found.held)
    written = page.locator(".tfx-learn .tfx-drawn").first.get_attribute("data-written")
    assert written == found.written
    known = _training.characters_of(text)
    ids = torch.tensor([known.index(c) for c in (text[:12] if probe is None else probe)])
    looked = checks.attention_of(found.model, ids)[layer][head]
    row = [value(page, f"weight[{j}]") for j in range(len(ids))]
    assert row == near(looked[-1].tolist())


def test_step_by_step_it_is_torchs_training(visit, figures_at):
    page = visit("cat", figures_at)
    assert value(page, "step") is None and control(page, "learn_again").is_hidden()
    step(page)
    check_page(page, TEXT, seed=3, steps=1)
    control(page, "learned_head", "0.1").check(force=True)
    step(page, 3)
    check_page(page, TEXT, seed=3, steps=4, head=1)
    assert page.locator(".tfx-learn").get_attribute("data-place") == "worker"


def run_to(page, least):
    """Train, and pause when so many steps are done; how many they are then."""
    control(page, "learn").first.click()
    page.wait_for_function(
        "least => Number(document.querySelector('[data-name=\"step\"]').dataset.value) >= least",
        arg=least,
    )
    assert control(page, "learn").first.inner_text() == "Pause"
    control(page, "learn").first.click()
    settled(page)
    return int(value(page, "step"))


def test_it_runs_pauses_and_goes_on(visit, figures_at, record_property):
    page = visit("names", figures_at)
    first = run_to(page, 10)
    check_page(page, NAMES, steps=first)
    assert control(page, "learn").inner_text() == "Train on"
    record_property("steps_a_second", value(page, "pace"))
    second = run_to(page, first + 10)
    check_page(page, NAMES, steps=second)
    assert value(page, "loss") < math.log(27)
    control(page, "learn_again").click()
    settled(page)
    assert value(page, "step") == 0 and value(page, "loss") is None
    step(page)
    check_page(page, NAMES, steps=1)


def test_depth_luck_and_text_begin_anew(visit):
    page = visit("two")
    step(page, 2)
    check_page(page, TEXT, n_layers=2, layer=1, head=1, probe="dog sat", steps=2)
    control(page, "n_layers", 1).first.check(force=True)
    settled(page)
    assert value(page, "step") == 0
    step(page)
    check_page(page, TEXT, head=1, probe="dog sat", steps=1)
    control(page, "learn_luck").first.click()
    step(page)
    check_page(page, TEXT, head=1, seed=1, probe="dog sat", steps=1)
    mine = "Ünïcode 😀 <b>is</b> text too, and so it is learned.\n" * 4
    control(page, "learned_text").first.fill(mine)
    step(page)
    check_page(page, mine, head=1, seed=1, steps=1)
    control(page, "learned_text[Sums]").first.click()
    step(page)
    check_page(page, _training.TEXTS["Sums"], head=1, seed=1, steps=1)


def test_another_probe_is_looked_at_and_nothing_is_learned(visit):
    page = visit("cat")
    step(page, 2)
    control(page, "probe").fill("log? the")
    settled(page)
    check_page(page, TEXT, seed=3, steps=2, probe="log the")
    assert page.get_by_text("left out: ?").is_visible()
    control(page, "followed", 2).check(force=True)
    known = _training.characters_of(TEXT)
    model = _training.train(TEXT, 1, 0.01, 3, 2).model
    looked = checks.attention_of(model, torch.tensor([known.index(c) for c in "log the"]))
    row = [value(page, f"weight[{j}]") for j in range(7)]
    assert row == near(looked[0][0][2].tolist())


def test_texts_that_do_not_do_are_refused_in_words(visit):
    page = visit("cat")
    control(page, "learned_text").fill("too short")
    assert page.get_by_text("must have 100 characters at least; it has 9").is_visible()
    step(page)
    check_page(page, TEXT, seed=3, steps=1)
    control(page, "learned_text").fill("".join(map(chr, range(300, 600))))
    assert page.get_by_text("may have 200 different characters; it has 300").is_visible()


def test_it_says_in_words_that_it_diverges(visit):
    page = visit("wild")
    step(page, 25)
    words = page.locator(".tfx-words-now").inner_text()
    assert "diverges" in words and "worse than guessing evenly" in words
    assert value(page, "loss") > math.log(len(set(TEXT))) + 0.2
    assert "NaN" not in page.locator(".tfx-learn").inner_text()
    shown = page.locator(".tfx-learn polyline").evaluate_all("n => n.map(x => x.outerHTML).join()")
    assert "NaN" not in shown and "Infinity" not in shown
    status = page.get_by_role("status").filter(has_text="diverges")
    status.wait_for(state="attached")
    # Where it stands the loss falls again once the steps are short.
    tap = control(page, "lr")
    tap.evaluate("n => { n.value = -9; n.dispatchEvent(new Event('input')); }")
    step(page, 20)  # the number shown is the mean of as many
    before = value(page, "loss")
    run_to(page, value(page, "step") + 60)
    assert value(page, "loss") < before
    assert page.locator(".tfx-learn .tfx-rate").count() == 1


def test_the_rate_is_moved_by_the_keyboard_while_it_runs(visit):
    page = visit("cat")
    control(page, "learn").press("Enter")
    page.wait_for_function("Number(document.querySelector('[data-name=step]').dataset.value) > 3")
    control(page, "lr").press("ArrowRight")
    control(page, "learn").press("Enter")
    settled(page)
    assert control(page, "lr").get_attribute("aria-valuetext") == "0.018"
    assert page.locator(".tfx-learn .tfx-rate").count() == 1


def test_a_finger_does_it_too(visit):
    page = visit("cat", width=390, touch=True)
    tap_slider(page, "lr", 0.5)
    lr = float(control(page, "lr").get_attribute("aria-valuetext"))
    control(page, "n_layers", 2).tap(force=True)
    control(page, "learn_one").tap()
    settled(page)
    control(page, "learned_head", "1.1").tap(force=True)
    check_page(page, TEXT, seed=3, n_layers=2, lr=lr, layer=1, head=1, steps=1)


def test_what_is_learned_by_heart_is_said(visit):
    page = visit("cat")
    run_to(page, 120)
    assert "by heart" in page.locator(".tfx-words-now").inner_text()


def test_lines_of_the_text_are_marked(visit):
    page = visit("short")
    run_to(page, 30)
    copied = page.locator(".tfx-drawn .tfx-copied")
    count = copied.count()
    assert copied.first.evaluate("n => getComputedStyle(n).transform") == "none"  # in its line
    lines = page.locator(".tfx-drawn").get_attribute("data-written").split("\n")[:-1]
    lines = [line for line in lines if line]
    assert count == sum(line in ("yes", "no") for line in lines) > 0
    assert page.get_by_text(f"Of {len(lines)} whole lines {count} stand in the text").is_visible()


@pytest.fixture
def fresh_page(browser):
    """Open pages of a context of their own."""
    yield from opener(browser, "live_training")


@pytest.mark.parametrize("host", HOSTS)
def test_every_host_learns_the_same(fresh_page, folder, figures_at, host):
    origin = figures_at if host != "file" else folder.as_uri()
    page = fresh_page(f"{origin}/cat.html", HOSTS[host])
    done = run_to(page, 5)
    check_page(page, TEXT, seed=3, steps=done)
    place = page.locator(".tfx-learn").get_attribute("data-place")
    assert place == {"http": "worker"}.get(host, "page")
    assert page.complaints == []




@pytest.mark.parametrize("host", ["worker", "page"])
def test_a_slow_page_does_not_freeze(fresh_page, figures_at, host, record_property):
    """Between two frames the page answers, also where it does the work itself."""
    before = "delete window.Worker" if host == "page" else None
    page = fresh_page(f"{figures_at}/names.html", before)
    step(page)
    page.evaluate(WATCH)
    run_to(page, 15)
    found = longest_frame(page)
    slowed(page, SLOW)
    run_to(page, value(page, "step") + 5)
    slow = longest_frame(page)
    slowed(page, 1)
    tasks = page.evaluate("Math.max(0, ...window.tasks)")
    record_property("longest_ms", json.dumps({"frame": found, "slow": slow, "task": tasks}))
    assert found < 1000 and slow < 3000  # a guard against what takes seconds; no stop-watch


MUTANTS = [
    ("run.losses.push(...answer.losses)", "run.losses.push(...answer.losses.slice(1))"),
    ("seed: run.seed, lr", "seed: 0, lr"),
    ("looked[layer][head][place * n + j]", "looked[layer][head][j * n + place]"),
    ("{ ...sizes, vocabulary: characters.length, n_layers: run.n_layers }",
     "{ ...sizes, vocabulary: characters.length, n_layers: 1 }"),
    ("if (pair[0] > (run.held.at(-1)?.[0] ?? -1)) ", "if (!run.held.length) "),
]  # fmt: skip


def test_planted_bugs_of_the_figure_are_seen(fresh_page, figures_at):
    def seen(page):
        control(page, "learn_luck").first.click()
        step(page, 2)
        check_page(page, TEXT, n_layers=2, layer=1, head=1, seed=1, probe="dog sat", steps=2)

    address = f"{figures_at}/two.html"
    assert unseen_bugs(fresh_page, address, "live_training", MUTANTS, seen, 5_000) == []


def test_it_fits(visit):
    page = visit("names", width=390)
    check_widths(page, [320, 390, 600, 768, 1280])
    step(page)
    check_widths(page, [320, 390, 600, 768, 1280])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_fault(visit, theme):
    page = visit("names", theme=theme)
    assert axe_faults(page) == []
    step(page)
    assert axe_faults(page) == []


def test_every_control_has_a_name_and_is_reached_by_tab(visit):
    page = visit("cat")
    step(page)
    nodes = page.locator(".tfx :is(input, button, select, summary, textarea, [tabindex])")
    names = nodes.evaluate_all(
        """nodes => nodes.map(n => [n.tabIndex, n.ariaLabel || n.closest('label')?.textContent
            || n.textContent || (n.hidden ? 'hidden' : '')])"""
    )
    assert all(index == 0 and name.strip() for index, name in names)


def test_the_page_of_the_book_shows_it(site, browser):
    """On the page of the live models, from a disk, beside the others."""
    page = browser.new_page()
    try:
        page.goto(f"{site.as_uri()}/book/live_models.html")
        page.wait_for_function(others.ALIVE)
        step(page)
        check_page(page, NAMES, steps=1)
    finally:
        page.close()


def test_what_is_shipped_has_no_address():
    assert not re.search(r"https?://(?!www\.w3\.org)", library(checks.LIBRARY))
