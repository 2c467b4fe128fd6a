"""Every page in a real browser, in both themes: nothing from outside, no error, readable, light.

Each page is visited once in each theme; the tests read what that visit noted.
"""

import gzip
import importlib
import inspect
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

pytestmark = pytest.mark.browser

THEMES = ("light", "dark")
PHONE = 390
PLAIN_BUDGET, FIGURE_BUDGET, PICTURES_BUDGET = 800_000, 1_200_000, 3_000_000
PLACEHOLDER = re.compile(r"\W*(the |an? )?(plot|figure|image|picture|chart|graph|output)s?[\W\d]*")

# Formulas that MathJax could not read, and TeX that it never saw.
BAD_MATHS = r"""() => {
  const bad = [...document.querySelectorAll('mjx-merror, [data-mjx-error], merror')]
    .map((e) => e.getAttribute('data-mjx-error') || e.textContent);
  const walker = document.createTreeWalker(
    document.querySelector('article, main') || document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest('pre, code, script, style, mjx-container')) continue;
    const raw = node.data.match(/\\\(|\\\[|\\(frac|sqrt|sum|text|top|alpha)\b|\$[^$\s][^$]*\$/);
    if (raw) bad.push(node.data.trim().slice(0, 80));
  }
  return bad;
}"""
TOO_WIDE = """() => {
  const room = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= room && document.body.scrollWidth <= room) return [];
  return [...document.querySelectorAll('body *')]
    .filter((e) => e.getBoundingClientRect().right > room + 1)
    .map((e) => e.outerHTML.slice(0, 90)).slice(0, 5);
}"""
COUNTS = """() => ({
  written: document.querySelectorAll('span.math, div.math, .amsmath').length,
  set: document.querySelectorAll('mjx-container').length,
  figures: document.querySelectorAll('.tfbook-explorable').length,
  alive: document.querySelectorAll('.tfbook-explorable[data-alive]').length,
})"""


# The contrast of every text is computed, of single letters and of symbols too.
CONTRAST = {
    "ignoreUnicode": False, "ignoreLength": True, "ignoreLabel": False, "boldValue": 700,
    "boldTextPt": 14, "largeTextPt": 18, "pseudoSizeThreshold": 0.25, "shadowOutlineEmMax": 0.1,
    "textStrokeEmMin": 0.03,
    "contrastRatio": {"normal": {"expected": 4.5}, "large": {"expected": 3}},
}  # fmt: skip
AXE = {
    "resultTypes": ["violations", "incomplete"],
    "preload": False,
    "checks": {"color-contrast": {"options": CONTRAST}},
}
# Text that is cut off at the edge of a box that scrolls is looked at again with its lines wrapped,
# and the list of pages at full length.
WRAP = """
pre, pre * { white-space: pre-wrap !important; overflow-wrap: anywhere }
.bd-sidebar-primary { position: static !important; max-height: none !important;
    overflow: visible !important }
"""


@dataclass
class Visit:
    """What one visit to one page in one theme noted."""

    log: object
    counts: dict
    maths: list
    too_wide: list
    violations: list
    unresolved: list
    theme: str


@pytest.fixture(scope="session")
def pages(site):
    """All pages, as paths below the site; index.html only leads on to the first."""
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    names.remove("index.html")
    return names


@pytest.fixture(scope="session")
def visits(pages, server, open_page, settle):
    """Visit every page in both themes."""
    script = pytest.importorskip("axe_playwright_python.sync_playwright").Axe().axe_script
    seen = {}
    for theme in THEMES:
        for name in pages:
            page = open_page(theme=theme)
            page.goto(f"{server}/{name}")
            settle(page)
            counts, maths = page.evaluate(COUNTS), page.evaluate(BAD_MATHS)
            applied = page.evaluate("document.documentElement.dataset.theme || ''")
            page.evaluate(script)
            violations, unresolved = _inspect(page, theme)
            page.set_viewport_size({"width": PHONE, "height": 844})
            too_wide = page.evaluate(TOO_WIDE)
            seen[name, theme] = Visit(
                page.log, counts, maths, too_wide, violations, unresolved, applied
            )
            page.context.close()
    return seen


def _inspect(page, theme):
    """Return axe's violations, and the contrasts it leaves open; in the dark only contrasts."""
    only = {} if theme == "light" else {"runOnly": ["color-contrast"]}
    found = page.evaluate("options => axe.run(options)", AXE | only)
    violations = _nodes(found["violations"])
    unclear = [rule for rule in found["incomplete"] if rule["id"] == "color-contrast"]
    if unclear:
        wrapping = page.add_style_tag(content=WRAP)
        where = {"include": [node["target"] for rule in unclear for node in rule["nodes"]]}
        options = AXE | {"runOnly": ["color-contrast"]}
        again = page.evaluate("([c, o]) => axe.run(c, o)", [where, options])
        wrapping.evaluate("style => style.remove()")
        violations += _nodes(again["violations"])
        unclear = again["incomplete"]
    return violations, _nodes(unclear)


def _nodes(rules):
    return [
        f"{rule['id']}: {node['html'][:140]} {_reason(node)}"
        for rule in rules
        for node in rule["nodes"]
    ]


def _reason(node):
    return "; ".join(check["message"] for check in [*node["any"], *node["all"], *node["none"]])[
        :200
    ]


def _gather(visits, what):
    """Lines of `what(visit)` with page and theme before them."""
    return [
        f"{name} ({theme}): {line}"
        for (name, theme), visit in visits.items()
        for line in what(visit)
    ]


def test_nothing_is_asked_of_another_site(visits):
    assert _gather(visits, lambda v: v.log.outside) == []


def test_no_request_fails(visits):
    assert _gather(visits, lambda v: v.log.failed) == []


def test_no_error_and_no_warning_on_the_console(visits):
    assert _gather(visits, lambda v: v.log.errors) == []


def test_every_formula_is_set(visits):
    assert _gather(visits, lambda v: v.maths) == []
    short = [name for name, v in visits.items() if v.counts["set"] < v.counts["written"]]
    assert short == []


def test_every_figure_lives(visits):
    assert any(v.counts["figures"] for v in visits.values())
    assert [n for n, v in visits.items() if v.counts["alive"] != v.counts["figures"]] == []


def test_no_page_scrolls_sideways_on_a_phone(visits):
    assert _gather(visits, lambda v: v.too_wide) == []


def test_axe_finds_nothing(visits):
    assert _gather(visits, lambda v: v.violations) == []


def test_axe_leaves_no_contrast_undecided(visits):
    assert _gather(visits, lambda v: v.unresolved) == []


def test_pages_follow_the_system_theme(visits):
    assert [key for key, visit in visits.items() if visit.theme != key[1]] == []


@pytest.mark.parametrize("way", ["http", "file"])
def test_entrance_leads_to_the_welcome_page(page, server, site, way):
    page.goto(f"{server if way == 'http' else site.as_uri()}/index.html")
    page.wait_for_url(re.compile(r"/book/welcome\.html$"))
    assert page.log.outside == []


def test_broken_formulas_would_be_seen(open_page, server, settle):
    page = open_page()
    page.goto(f"{server}/book/notation.html")
    settle(page)
    assert page.evaluate(BAD_MATHS) == []
    for tex in (r"\(\nosuchcommand{x}\)", r"\(\frac{1\)", r"\(a_1_2\)"):
        page.evaluate(
            """async (tex) => {
              const p = document.createElement('p'); p.className = 'math'; p.textContent = tex;
              document.querySelector('article').append(p); await MathJax.typesetPromise([p]);
            }""",
            tex,
        )
    assert len(page.evaluate(BAD_MATHS)) == 3
    page.evaluate("document.querySelector('article').append('the root $\\\\sqrt{d}$ of it')")
    assert len(page.evaluate(BAD_MATHS)) == 4
    page.context.close()


# ------------------------------------------------------------------------------------- weight


def _weigh(visit, site, server):
    """Bytes after gzip -6 of what a page asked for, by kind; pictures and fonts as they are."""
    kinds = {}
    for address in sorted(a for a in visit.log.asked if a.startswith(server)):
        file = site / unquote(urlsplit(address).path.lstrip("/"))
        body = file.read_bytes() if file.is_file() else b""
        suffix = Path(urlsplit(address).path).suffix
        kind = {
            ".html": "document", ".css": "styles", ".js": "scripts", ".woff": "fonts",
            ".woff2": "fonts", ".png": "pictures", ".svg": "pictures",
        }.get(suffix, "other")  # fmt: skip
        if kind == "scripts" and "mathjax" in address:
            kind = "MathJax"
        size = len(body) if suffix in (".png", ".woff", ".woff2") else len(gzip.compress(body, 6))
        kinds[kind] = kinds.get(kind, 0) + size
    return kinds


def test_pages_are_light(visits, site, server, record_property):
    report, heavy = {}, []
    for (name, theme), visit in visits.items():
        if theme != "light":
            continue
        kinds = _weigh(visit, site, server)
        total = sum(kinds.values())
        report[name] = {"total": total, **kinds}
        budget = FIGURE_BUDGET if visit.counts["figures"] else PLAIN_BUDGET
        if total > budget:
            heavy.append(f"{name}: {total} bytes, allowed {budget}: {kinds}")
    record_property("page_weight", json.dumps(report))
    (site.parent / "page-weight.json").write_text(json.dumps(report, indent=1))
    assert heavy == []


def test_pictures_of_a_chapter_are_light(site):
    sizes = {}
    for page in (site / "chapters").glob("*.html"):
        names = {tag["src"] for tag in _parsed(page).tags("img")}
        sizes[page.name] = sum((page.parent / unquote(n)).stat().st_size for n in names)
    assert sizes and {n: s for n, s in sizes.items() if s > PICTURES_BUDGET} == {}


# ------------------------------------------------------------------------------ files, no browser


class _Parsed(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def tags(self, name):
        return [attrs for tag, attrs in self.found if tag == name]

    def anchors(self):
        return [a["id"] for _, a in self.found if a.get("id")]


def _parsed(path):
    return _Parsed(path.read_text(encoding="utf-8"))


def test_every_link_and_anchor_leads_somewhere(pages, site):
    parsed = {name: _parsed(site / name) for name in pages}
    anchors = {name: set(p.anchors()) for name, p in parsed.items()}
    broken = []
    for name, page in parsed.items():
        wanted = [(t, a.get("href") or a.get("src")) for t, a in page.found if t != "meta"]
        for tag, target in wanted:
            if not target or re.match(r"(https?:|data:|mailto:|javascript:)", target):
                continue
            path, anchor = urldefrag(urljoin(f"http://site/{name}", target))
            file = unquote(urlsplit(path).path.lstrip("/"))
            if not (site / file).is_file():
                broken.append(f"{name}: {tag} {target}")
            elif tag == "a" and anchor and file in anchors and unquote(anchor) not in anchors[file]:
                broken.append(f"{name}: no #{anchor} in {file}")
    assert broken == []


def test_every_public_name_is_documented(site):
    """Under its module's name, or under that of the module where it is written."""
    pages = [p for p in (site / "book" / "api").glob("*.html") if p.stem != "index"]
    anchors = set().union(*(_parsed(page).anchors() for page in pages))
    missing = []
    for page in pages:
        module = importlib.import_module(f"tfbook.{page.stem}")
        own = [n for n, v in vars(module).items() if _home(v) == module.__name__ and n[0] != "_"]
        for name in getattr(module, "__all__", own):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value):
                places = {f"{module.__name__}.{name}", f"{_home(value)}.{name}"}
                missing += [f"{module.__name__}.{name}"] * anchors.isdisjoint(places)
    assert missing == []


def _home(value):
    return getattr(value, "__module__", "")


def test_every_module_has_its_page(site):
    import tfbook

    pages = {page.stem for page in (site / "book" / "api").glob("*.html")}
    inner = {"scores", "tiled", "variants"}  # shown as part of attention
    assert set(tfbook._submodules()) - inner - pages == set()


def test_anchors_are_unique(pages, site):
    twice = {}
    for name in pages:
        ids = _parsed(site / name).anchors()
        twice |= {f"{name}#{i}": ids.count(i) for i in set(ids) if ids.count(i) > 1}
    assert twice == {}


def test_every_picture_has_a_text_and_a_size(pages, site):
    poor = []
    for name in pages:
        for picture in _parsed(site / name).tags("img"):
            alt = picture.get("alt")
            decorative = "logo__image" in picture.get("class", "") and alt == ""
            if not decorative and (not alt or len(alt) < 10 or PLACEHOLDER.fullmatch(alt.lower())):
                poor.append(f"{name}: {picture.get('src')} alt={alt!r}")
            if "tfbook-picture" in picture.get("class", "") and not (
                picture.get("loading") == "lazy" and picture.get("width") and picture.get("height")
            ):
                poor.append(f"{name}: {picture.get('src')} without lazy loading or size")
    assert poor == []


def test_no_page_names_another_host_for_its_parts(pages, site):
    """A script or style from elsewhere would also fail where no browser looks."""
    parts = [
        f"{name}: {attrs.get('src') or attrs.get('href')}"
        for name in pages
        for tag, attrs in _parsed(site / name).found
        if tag in ("script", "link", "img", "iframe", "source")
        and re.match(r"(https?:)?//", attrs.get("src") or attrs.get("href") or "")
        and attrs.get("rel") != "canonical"
    ]
    assert parts == []


def test_nothing_unused_is_shipped(site):
    static = site / "_static"
    names = [p.relative_to(static).as_posix() for p in static.rglob("*") if p.is_file()]
    unwanted = r"fontawesome|^require|embed-amd|html-manager|thebe|\.map$|locales/"
    assert [n for n in names if re.search(unwanted, n)] == []


# ------------------------------------------------------------------------------- the page at work


@pytest.fixture
def page(open_page):
    """A page of its own for one test."""
    made = open_page()
    yield made
    made.context.close()


@pytest.mark.parametrize("way", ["http", "file"])
def test_search_finds_a_word(page, server, site, way):
    home = server if way == "http" else site.as_uri()
    page.goto(f"{home}/book/preface.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results ul.search li a")
    titles = page.locator("#search-results ul.search li a").all_inner_texts()
    assert any("softmax" in title.lower() or "Attention" in title for title in titles)
    page.locator("#search-results ul.search li a").first.click()
    page.wait_for_url(re.compile(r"\.html"))
    assert (page.log.outside, page.log.errors, page.log.failed) == ([], [], [])


def test_files_from_a_disk_are_alive(pages, site, open_page, settle):
    faults = []
    for name in pages:
        page = open_page()
        page.goto((site / name).as_uri())
        settle(page)
        counts = page.evaluate(COUNTS)
        faults += [
            f"{name}: {line}" for line in page.log.errors + page.log.failed + page.log.outside
        ]
        if counts["set"] < counts["written"] or counts["alive"] != counts["figures"]:
            faults.append(f"{name}: {counts}")
        page.context.close()
    assert faults == []


def test_theme_switch_goes_round_and_is_remembered(page, server):
    page.goto(f"{server}/book/preface.html")
    button = page.locator(".theme-switch-button:visible").first
    modes, labels = [], []
    for _ in range(3):
        button.focus()
        page.keyboard.press("Enter")
        modes.append(page.evaluate("document.documentElement.dataset.mode"))
        labels.append(button.get_attribute("aria-label"))
    assert sorted(modes) == ["auto", "dark", "light"] and len(set(labels)) == 3
    while page.evaluate("document.documentElement.dataset.mode") != "dark":
        button.click()
    page.goto(f"{server}/book/notation.html")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_first_tab_offers_to_skip_to_the_text(page, server):
    page.goto(f"{server}/book/preface.html")
    page.keyboard.press("Tab")
    link = page.locator("#pst-skip-link a")
    assert link.evaluate("e => e === document.activeElement")
    # It slides into view.
    page.wait_for_function(
        "document.querySelector('#pst-skip-link').getBoundingClientRect().top >= 0"
    )
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


@pytest.mark.parametrize("side", ["primary", "secondary"])
def test_menus_of_a_phone_work_by_keyboard(open_page, server, side):
    page = open_page(width=PHONE, height=844)
    page.goto(f"{server}/book/notation.html")
    opener = page.locator(f".{side}-toggle:visible").first
    opener.focus()
    page.keyboard.press("Enter")
    box = page.locator(f"#pst-{side}-sidebar-modal")
    assert box.evaluate("e => e.open")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("Escape")
    assert not box.evaluate("e => e.open")
    page.context.close()


def test_download_menu_opens_by_keyboard_and_offers_the_notebook(page, server, site):
    chapter = next((site / "chapters").glob("*.html")).relative_to(site).as_posix()
    page.goto(f"{server}/{chapter}")
    page.locator(".dropdown-download-buttons > button").focus()
    page.keyboard.press("Enter")
    link = page.locator(".dropdown-download-buttons a:visible", has_text=".ipynb")
    answer = page.request.get(urljoin(page.url, link.get_attribute("href")))
    assert answer.ok and json.loads(answer.body())["cells"]


def test_link_to_a_claim_leads_to_its_line(page, server):
    page.goto(f"{server}/book/claims.html")
    link = page.locator("ul.tfbook-index a").first
    slug = urldefrag(link.get_attribute("href"))[1]
    link.click()
    page.wait_for_url(re.compile(re.escape(slug)))
    line = page.locator(f"#{slug}")
    assert line.is_visible() and "tfbook-claim" in line.get_attribute("class")


def test_code_that_scrolls_is_reached_by_keyboard(open_page, server, site):
    page = open_page(width=PHONE, height=844)
    chapter = next((site / "chapters").glob("*.html")).relative_to(site).as_posix()
    page.goto(f"{server}/{chapter}")
    page.wait_for_load_state("load")
    page.wait_for_timeout(100)
    unreachable = page.evaluate(
        """() => [...document.querySelectorAll('#main-content pre')]
          .filter((e) => e.offsetParent && e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0)
          .map((e) => e.textContent.slice(0, 60))"""
    )
    assert unreachable == []
    page.context.close()
