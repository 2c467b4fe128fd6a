"""The pages under real conditions: a slow phone, no scripts, forced colours, a strict policy."""

import functools
import gzip
import http.server
import io
import re
import threading

import numpy as np
import pytest
from PIL import Image
from visits import ALIVE, PHONE, TOO_WIDE

from book.tools import stills
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


def drawn(page, theme):
    """Look at the pictures of the figures of a page, and return how many there are."""
    pictures = page.locator(".tfbook-explorable > noscript img").all()
    for picture in pictures:
        picture.scroll_into_view_if_needed()
        picture.evaluate("each => each.decode()")
        assert picture.evaluate("each => each.naturalWidth") > stills.WIDTH
        assert picture.evaluate("each => each.currentSrc").endswith(f"-{theme}.webp")
        filters = picture.evaluate("e => [getComputedStyle(e).filter, getComputedStyle(e).opacity]")
        assert filters == ["none", "1"]
        text = picture.locator("xpath=ancestor::div[1]").locator(".tfx-text")
        assert picture.get_attribute("alt") == text.locator("strong").first.inner_text()
        there, below = picture.bounding_box(), text.bounding_box()
        assert there["width"] > 500 and there["height"] > 50 and text.is_visible()
        assert 0 <= below["y"] - there["y"] - there["height"] < 30
    return len(pictures)


def test_without_scripts_figures_show_their_picture(bare, site):
    name = f"chapters/{ROADS[0]}"
    there = [*stills.figures(name, (site / f"{name}.html").read_text(encoding="utf-8"))]
    assert drawn(bare, bare.theme) == len(there) >= 2


def test_without_scripts_a_phone_shows_a_picture_in_its_box(bare):
    size = bare.viewport_size
    bare.set_viewport_size({"width": PHONE, "height": 844})
    wide = bare.evaluate(TOO_WIDE)
    boxes = [each.bounding_box() for each in bare.locator(".tfbook-drawn").all()]
    count = drawn(bare, bare.theme)
    bare.set_viewport_size(size)
    assert wide == [] and count == len(boxes) >= 2
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= PHONE for box in boxes)


def test_without_scripts_figures_of_a_page_on_a_disk_show_their_picture(browser, site):
    context = browser.new_context(java_script_enabled=False, color_scheme="dark")
    page = context.new_page()
    page.goto((site / "chapters" / f"{ROADS[1]}.html").as_uri())
    assert drawn(page, "dark") >= 2
    context.close()


def test_with_scripts_no_still_is_asked_for(open_page, server):
    page = open_page()
    page.goto(f"{server}/chapters/{ROADS[0]}.html")
    page.wait_for_function(ALIVE)
    asked = [address for address in page.log.asked if "stills" in address]
    elements = page.locator(".tfbook-drawn").count()
    told = page.locator(".tfbook-explorable > noscript").count()
    page.leave()
    assert asked == [] and elements == 0 and told >= 2


def test_every_figure_has_its_still(site):
    """What is named here has changed since it was drawn; its page shows no picture of it."""
    outdated = stills.missing(site)
    command = " ".join([stills.COMMAND, *dict.fromkeys(page for page, _ in outdated)])
    assert outdated == [], f"draw them: make stills, or {command}"
    assert stills.left_over(site) == [], "delete them: make stills"


def test_stills_are_light_and_those_that_pages_show(site):
    folder = site / stills.SHIPPED
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.*")}
    named = re.compile(rf"{stills.SHIPPED}/([^\"]+)")
    assert files.keys() == {n for text in stills.pages(site).values() for n in named.findall(text)}
    assert len(files) > 50
    assert {n for n, path in files.items() if path.stat().st_size > 1.2 * stills.LARGEST} == set()


# ---------------------------------------------------------------------------------- forced colours

# Chapters: one has switches, sliders, options and questions, the other keys with grounds and bits.
SCALED, BITS = "02_attention_deeper", "17_hardware"


@pytest.fixture(scope="module", params=["light", "dark"])
def forced(request, browser, server):
    """A function that opens a chapter where the system has the last word on colours."""
    size = {"width": 1280, "height": 900}
    context = browser.new_context(
        forced_colors="active", color_scheme=request.param, viewport=size, reduced_motion="reduce"
    )
    page = context.new_page()

    def visit(name):
        address = f"{server}/chapters/{name}.html"
        if page.url != address:
            page.goto(address)
            page.wait_for_function(ALIVE)
        return page

    yield visit
    context.close()


def seen(page, box, margin=0):
    """What a box of the page shows, as the luminance of its points; no pointer is on it."""
    page.mouse.move(2, 2)
    page.evaluate("document.activeElement.blur()")
    clip = {
        "x": box["x"] - margin, "y": box["y"] - margin,
        "width": box["width"] + 2 * margin, "height": box["height"] + 2 * margin,
    }  # fmt: skip
    picture = Image.open(io.BytesIO(page.screenshot(clip=clip, animations="disabled")))
    value = np.asarray(picture.convert("RGB")) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def apart(shown, other):
    """Where two luminances have a contrast of 3 at least, as graphics need."""
    return (np.maximum(shown, other) + 0.05) / (np.minimum(shown, other) + 0.05) >= 3


def ground(page):
    """The luminance of the page where nothing is."""
    return np.median(seen(page, {"x": 400, "y": 200, "width": 1, "height": 600}))


def box_of(locator):
    locator.scroll_into_view_if_needed()
    return locator.bounding_box()


def states(page, target, act):
    """What an element shows, before and after something is done."""
    before = seen(page, box_of(target))
    act()
    return before, seen(page, target.bounding_box())


def test_forced_colours_reach_the_page(forced):
    page = forced(SCALED)
    assert page.evaluate("matchMedia('(forced-colors: active)').matches")
    card = page.locator(".tfx-card").first
    assert np.ptp(seen(page, box_of(card))) > 0.5


def test_forced_colours_leave_a_switch_and_how_it_stands(forced):
    page = forced(SCALED)
    switch = page.locator(".tfx-switch").first
    before, after = states(page, switch, switch.click)
    empty = ground(page)
    for shown in (before, after):
        # A rim all around, and a knob or a filling within.
        assert apart(shown, empty).mean() > 0.15
        assert apart(shown[:3], empty).any(0).mean() > 0.5, "no rim"
    assert apart(before, after).mean() > 0.1
    switch.click()


def test_forced_colours_leave_the_track_of_a_slider(forced):
    page = forced(SCALED)
    for slider in page.locator(".tfx-range:visible").all():
        columns = apart(seen(page, box_of(slider)), ground(page)).any(0)
        assert columns.mean() > 0.95


@pytest.mark.parametrize("name", [SCALED, BITS])
def test_forced_colours_leave_the_keys_of_a_legend(forced, name):
    page = forced(name)
    keys = page.locator(".tfx-key:visible").all()
    assert len(keys) >= 2
    empty = ground(page)
    for key in keys:
        style = "getComputedStyle(e, '::before')"
        sizes = [
            key.evaluate(f"e => parseFloat({style}.{each})")
            for each in ("width", "borderLeftWidth")
        ]
        shown = apart(seen(page, box_of(key) | {"width": sum(sizes)}), empty)
        assert shown.any(0).mean() > 0.5, key.inner_text()


def test_forced_colours_leave_what_is_pressed(forced):
    page = forced(BITS)
    bit = page.locator(".tfx-bit[aria-pressed]").nth(3)
    before, after = states(page, bit, bit.click)
    assert apart(before, after).mean() > 0.3
    bit.click()


def test_forced_colours_leave_which_option_is_chosen(forced):
    page = forced(SCALED)
    free = ".tfx-option:visible:not(:has(:checked, :disabled))"
    option = page.locator(free).first.element_handle()  # also when it is free no more
    before, after = states(page, option, option.click)
    assert apart(before, after).mean() > 0.3


def test_forced_colours_leave_the_answer_that_is_chosen(forced):
    page = forced(SCALED)
    free = ".tfx-question .tfx-choice:visible:not(:has(:checked, :disabled)) input"
    circle = page.locator(free).first.element_handle()
    before, after = states(page, circle, circle.click)
    assert apart(before, ground(page)).mean() > 0.05
    assert apart(before, after).mean() > 0.1


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
