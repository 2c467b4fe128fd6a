"""Narrow screens: nothing makes a page scroll sideways, and pictures keep their text legible."""

import base64
import hashlib
import json
import re

import pytest
from repofiles import ROOT
from visits import ALIVE, PATIENCE

from book.tools.roads import ROADS

pytestmark = pytest.mark.browser

# Formulas that run out of the screen and stand in no box of their own, or in one without a key.
FORMULAS = """() => [...document.querySelectorAll('#main-content math')].flatMap((math) => {
  const box = math.closest('.tfbook-formula, .pst-scrollable-table-container, pre, .output');
  if (!math.checkVisibility()) return [];
  if (!box) return math.getBoundingClientRect().right > innerWidth + 1 ? [math.textContent] : [];
  const wide = box.scrollWidth > box.clientWidth + 1;
  const lost = box.getBoundingClientRect().right > innerWidth + 1;
  return lost || (wide && box.tabIndex !== 0) ? [math.textContent] : [];
})"""
# Of each picture: how wide it is, how wide it was drawn, and whether what does not fit is told.
PICTURES = """() => [...document.querySelectorAll('#main-content .tfbook-picture')].map((img) => {
  const box = img.closest('a.image-reference'), rect = box.getBoundingClientRect();
  return {
    name: img.src.match(/(\\w+)\\.png/)[1], shown: img.getBoundingClientRect().width,
    drawn: +img.getAttribute('width'), inside: rect.left >= 0 && rect.right <= innerWidth,
    fits: box.scrollWidth <= box.clientWidth + 1,
    scrolls: getComputedStyle(box).overflowX === 'auto' && box.matches('[href]'),
    told: getComputedStyle(box, '::after').content.includes('right'),
  };
})"""
# Of a figure with controls: the smallest text it shows, in pixels of the screen, with its letters.
SMALLEST = """(figure) => {
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const found = [...figure.querySelectorAll('*')].filter((e) =>
    own(e) && e.getClientRects().length && !e.closest('style, script, .tfbook-still'));
  const size = (e) => {
    const matrix = e.closest('svg') && e.getScreenCTM && e.getScreenCTM();
    const scale = matrix ? Math.hypot(matrix.b, matrix.d) : 1;
    return [scale * parseFloat(getComputedStyle(e).fontSize), e.textContent.slice(0, 20)];
  };
  return found.map(size).reduce((a, b) => (b[0] < a[0] ? b : a), [99, '']);
}"""
# Code and outputs that stand open and are cut at the right edge: their first line, and by how much.
CUT = """() => [...document.querySelectorAll('#main-content pre')]
  .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
  .map((e) => [e.textContent.trim().split('\\n')[0], e.scrollWidth - e.clientWidth])"""
MARKED = "() => document.querySelectorAll('#main-content [data-scrolls]').length"


def text_sizes(notebook):
    """Points of the smallest text of each picture, as its output says or else as its code says.

    What a function of the package draws without a word on sizes has nothing below 10.
    """
    sizes = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        said = re.findall(r"size=([\d.]+)", "".join(cell["source"]))
        for output in cell.get("outputs", ()):
            if png := output.get("data", {}).get("image/png"):
                mark = output["metadata"]["image/png"].get("text")
                key = hashlib.sha256(base64.b64decode("".join(png))).hexdigest()
                written = [float(size) for size in said if 5 < float(size) < 30]
                sizes[key] = mark or min([10.0, *written])
    return sizes


def settled(page):
    """Wait until boxes that scroll are marked, a few at a time."""
    page.wait_for_load_state("load")
    before = -1
    while (now := page.evaluate(MARKED)) != before:
        before = now
        page.wait_for_timeout(700)


def test_no_page_of_the_package_scrolls_sideways(open_page, server, site):
    page = open_page(width=320, height=844)
    names = sorted(path.name for path in (site / "book" / "api").glob("*.html"))
    assert len(names) > 15
    wide = {}
    for name in names:
        page.goto(f"{server}/book/api/{name}")
        if (width := page.evaluate("document.documentElement.scrollWidth")) > 320:
            wide[name] = width
    page.leave()
    assert not wide


@pytest.mark.parametrize("name", ROADS)
def test_a_road_on_a_narrow_screen(open_page, server, name):
    page = open_page(width=390, height=844)
    page.goto(f"{server}/chapters/{name}.html")
    settled(page)
    pictures = page.evaluate(PICTURES)  # on a phone of 390 px each fits
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(FORMULAS) == []
    smaller = page.evaluate(PICTURES)  # on one of 320 px it scrolls, and says so
    assert all(each["fits"] or (each["scrolls"] and each["told"]) for each in smaller), smaller
    page.leave()
    sizes = text_sizes(ROOT / "chapters" / f"{name}.ipynb")
    assert len(pictures) > 5 and {each["name"] for each in pictures} <= set(sizes)
    for each in pictures:
        pixels = sizes[each["name"]] / 72 * 100 * each["shown"] / each["drawn"]
        assert pixels >= 9.95 and each["inside"] and each["fits"], (each, pixels)


def test_open_code_of_roads_is_seen_whole_beside_the_lists_of_pages(open_page, server):
    page = open_page(width=1280, height=900)
    cut = {}
    for name in ROADS:
        page.goto(f"{server}/chapters/{name}.html")
        page.wait_for_load_state("load")
        if found := page.evaluate(CUT):
            cut[name] = found
    page.leave()
    assert cut == {}


# Exercises whose answer a card asks for: what lies between the two boxes, and around the card.
JOINED = """() => [...document.querySelectorAll('div.exercise.admonition + .cell .tfx-question')]
  .filter((e) => !e.closest('.cell').querySelector('.cell_input'))
  .map((e) => {
    const [cell, card] = [e.closest('.cell'), getComputedStyle(e)];
    const above = cell.previousElementSibling.getBoundingClientRect();
    return [cell.getBoundingClientRect().top - above.bottom, parseFloat(card.borderTopWidth)];
  })"""


@pytest.mark.parametrize("width", [1280, 390])
def test_an_exercise_and_the_card_that_asks_it_are_one_box(open_page, server, width):
    page = open_page(width=width, height=900)
    page.goto(f"{server}/chapters/07_efficient_attention.html")
    page.wait_for_function(ALIVE, timeout=PATIENCE)
    found = page.evaluate(JOINED)
    page.leave()
    assert len(found) >= 2 and all(abs(gap) < 0.6 and rim == 0 for gap, rim in found), found


@pytest.mark.parametrize("name", ROADS)
def test_figures_with_controls_are_read_on_a_phone(open_page, server, name):
    page = open_page(width=390, height=844)
    page.goto(f"{server}/chapters/{name}.html")
    settled(page)
    asked = ':is([data-module="quiz"], [data-module="predict"], [data-module="explain"])'
    figures = page.locator(f"#main-content .tfbook-explorable:not({asked})").all()
    small = {}
    for figure in figures:
        figure.scroll_into_view_if_needed()
        page.wait_for_timeout(250)  # it wakes
        size, text = figure.evaluate(SMALLEST)
        if size < 9.95:
            small[figure.get_attribute("data-module")] = (size, text)
    page.leave()
    assert len(figures) >= 2 and not small, small


def test_a_jump_on_a_phone_stays_where_it_leads(open_page, server):
    page = open_page(width=390, height=844)
    page.goto(f"{server}/chapters/{ROADS[0]}.html")
    page.wait_for_load_state("load")
    sections = page.locator(".bd-article > section > section")
    ids = [each.get_attribute("id") for each in sections.all()][:-2]  # the last end with the page
    for name in ids[1::3]:
        page.evaluate("name => { location.hash = name; }", name)
        page.wait_for_timeout(1_800)  # what stands above is laid out, and figures wake
        top = page.locator(f"[id='{name}']").evaluate("e => e.getBoundingClientRect().top")
        assert -5 < top < 160, name
    page.leave()


def test_the_theme_does_not_measure_every_box(site):
    script = (site / "_static" / "script.js").read_text(encoding="utf-8")
    assert "tabIndex=e.scrollWidth>" in script  # the function is there, and nobody calls it
    begin = r'function (\w)\(\)\{const e=\(\)=>\{document\.querySelectorAll\(\["pre"'
    name = re.search(begin, script)
    assert name and f'"load",{name[1]})' not in script
