"""The pages under real conditions: a slow phone, no scripts, forced colours, a strict policy."""

import functools
import gzip
import http.server
import re
import threading

import pytest

from book.tools.roads import ROADS

pytestmark = pytest.mark.browser

NODES, REQUESTS, WEIGHT = 9_000, 25, 450_000  # of a road when it has loaded, bytes after gzip -6
POLICY = (
    # Pictures in style sheets and the font of formulas are data; figures are modules made from
    # text, since over file:// no module loads from a file.
    "default-src 'self'; script-src 'self' blob:; worker-src 'self' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'"
)


def loaded(page, address):
    page.goto(address)
    page.wait_for_load_state("load")
    page.wait_for_timeout(500)  # figures near the screen begin to live


# ------------------------------------------------------------------------------------- on a phone


@pytest.mark.parametrize("name", ROADS)
def test_a_road_is_light_on_a_phone(open_page, server, site, name):
    page = open_page(width=390, height=844)
    loaded(page, f"{server}/chapters/{name}.html")
    nodes = page.evaluate("document.querySelectorAll('*').length")
    asked = [a for a in page.log.asked if a.startswith(server)]
    weight = sum(_size(site / a.removeprefix(server).split("?")[0].lstrip("/")) for a in asked)
    page.leave()
    assert nodes <= NODES and len(asked) <= REQUESTS and weight <= WEIGHT, (nodes, asked, weight)


@functools.cache
def _size(file):
    body = file.read_bytes()
    return len(body) if file.suffix in (".png", ".woff2") else len(gzip.compress(body, 6))


def test_figures_far_away_wait_until_they_are_near(open_page, server):
    page = open_page(width=390, height=844)
    loaded(page, f"{server}/chapters/{ROADS[0]}.html")
    dead = page.locator(".tfbook-explorable:not([data-alive])")
    before = dead.count()
    assert before > 2
    last = page.locator(".tfbook-explorable").last
    assert last.get_attribute("data-alive") is None
    last.scroll_into_view_if_needed()
    page.locator(".tfbook-explorable[data-alive]").last.wait_for()
    page.wait_for_function(
        "[...document.querySelectorAll('.tfbook-explorable')].at(-1).matches('[data-alive]')"
    )
    assert 0 < dead.count() < before
    page.leave()


def test_solutions_are_closed_until_they_are_asked_for(open_page, server):
    page = open_page()
    loaded(page, f"{server}/chapters/{ROADS[0]}.html")
    solutions = page.locator("div.solution.dropdown")
    assert solutions.count() > 3
    texts = [each.locator("section").first for each in solutions.all()]
    assert not any(text.is_visible() for text in texts)
    solutions.first.locator(".toggle-button").click()
    assert texts[0].is_visible() and not texts[1].is_visible()
    page.leave()


# -------------------------------------------------------------------------------- without scripts


@pytest.fixture(scope="module", params=["light", "dark"])
def bare(request, browser, server):
    """A road in a browser that runs no scripts."""
    size = {"width": 1280, "height": 900}
    context = browser.new_context(
        java_script_enabled=False, color_scheme=request.param, viewport=size
    )
    page = context.new_page()
    page.goto(f"{server}/chapters/{ROADS[0]}.html")
    page.theme = request.param
    yield page
    context.close()


def colour(page, selector, what):
    """A colour of the first element that a selector finds: three numbers and how opaque it is."""
    found = page.locator(selector).first.evaluate(f"e => getComputedStyle(e).{what}")
    numbers = [float(x) for x in re.findall(r"[\d.]+", found)]
    return [*numbers, 1.0][:4]


def test_without_scripts_the_system_chooses_the_colours(bare):
    dark = bare.theme == "dark"
    ground, text = colour(bare, "body", "backgroundColor"), colour(bare, "article p", "color")
    assert (max(ground[:3]) < 60) == dark and (min(text[:3]) > 150) == dark
    edge = colour(bare, "article .cell_input", "borderLeftColor")
    assert edge[3] == 1.0 and edge[:3] != ground[:3]
    heading = colour(bare, "article h1", "color")
    assert (min(heading[:3]) > 150) == dark
    keyword = colour(bare, ".highlight .k, .highlight .kn", "color")
    assert keyword[:3] != colour(bare, ".highlight pre", "color")[:3]
    assert (sum(keyword[:3]) > 380) == dark
    claim = colour(bare, ".tfbook-claim", "backgroundColor")
    assert claim[3] == 1.0 and claim[:3] != ground[:3]


def test_without_scripts_no_text_runs_under_the_header(bare):
    assert colour(bare, ".bd-header-article", "backgroundColor")[3] == 1.0


def test_without_scripts_formulas_are_set_and_folds_open(bare):
    widths = [each.bounding_box()["width"] for each in bare.locator(".tfbook-formula math").all()]
    assert len(widths) > 5 and max(widths) > 100
    fold = bare.locator("details.hide").first
    assert not fold.locator(".highlight").first.is_visible()
    fold.locator("summary").click()
    assert fold.locator(".highlight").first.is_visible()


def test_without_scripts_figures_show_their_text(bare):
    text = bare.locator(".tfbook-explorable .tfx-text").first
    assert text.is_visible() and len(text.inner_text()) > 40


# --------------------------------------------------------------------------------- a strict policy


@pytest.fixture(scope="module")
def strict(site):
    """The site from a server that allows no script within a page."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def end_headers(self):
            self.send_header("Content-Security-Policy", POLICY)
            super().end_headers()

        def log_message(self, *words):
            pass

    handler = functools.partial(Files, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()


@pytest.mark.parametrize("name", [f"chapters/{ROADS[0]}.html", "book/welcome.html", "search.html"])
def test_pages_live_under_a_policy_against_scripts_within_them(browser, strict, name):
    page = browser.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else 0)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{strict}/{name}")
    page.evaluate(
        """document.querySelectorAll('.tfbook-explorable').forEach((each) =>
          each.dispatchEvent(new Event('tfbook-wake', { bubbles: true })))"""
    )
    dead = page.locator(".tfbook-explorable:not([data-alive])")
    for _ in range(120):  # Playwright's own waiting would evaluate texts, which is forbidden here
        if dead.count() == 0 or said:
            break
        page.wait_for_timeout(500)
    assert said == [] and dead.count() == 0
    assert page.evaluate("document.documentElement.dataset.theme") in ("light", "dark")
    page.close()


def test_the_policy_would_stop_a_script_within_a_page(browser, strict):
    page = browser.new_page()
    page.goto(f"{strict}/book/preface.html")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'seen = 1'}))"
    )
    assert page.evaluate("typeof seen") == "undefined"
    page.close()
