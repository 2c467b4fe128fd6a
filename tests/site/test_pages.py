"""Every page in a real browser, in both themes: nothing from outside, no error, readable, light.

A test visits a few pages and each page once: it is loaded in the light, looked at, and looked at
again after the system has turned dark.
"""

import contextlib
import functools
import gzip
import importlib
import inspect
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import filelock
import pytest

pytestmark = pytest.mark.browser

# So many tests share the visits; the test processes take them one by one.
PARTS = 16
WIDTH, PHONE = 1280, 390
# The pages of the package are made alike; of them axe sees these: a long one, one with rooms in it,
# and their index. Of all others it sees each.
MADE, SEEN = "book/api/", ("attention", "teaching", "index")
PLAIN_BUDGET, FIGURE_BUDGET, PICTURES_BUDGET = 800_000, 1_200_000, 3_000_000
PLACEHOLDER = re.compile(r"\W*(the |an? )?(plot|figure|image|picture|chart|graph|output)s?[\W\d]*")

# Formulas that MathJax could not read, and TeX that it never saw.
BAD_MATHS = r"""() => {
  const bad = [...document.querySelectorAll('mjx-merror, [data-mjx-error], merror')]
    .map((e) => e.getAttribute('data-mjx-error') || e.textContent);
  // A command that it does not know is set in red, without an error.
  for (const e of document.querySelectorAll('mjx-mtext[style*="red"]'))
    bad.push(`Undefined: ${e.closest('mjx-container').textContent.trim().slice(0, 80)}`);
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
# A link in a text has to differ by more than its colour, so the colours need not be compared.
AXE = {
    "resultTypes": ["violations", "incomplete"],
    "preload": False,
    "checks": {
        "color-contrast": {"options": CONTRAST},
        "link-in-text-block": {"enabled": False},
    },
}
ONLY_CONTRAST, ALL_BUT_CONTRAST = (
    AXE | {"runOnly": ["color-contrast"]},
    AXE | {"rules": {"color-contrast": {"enabled": False}}},
)
# Of text that is cut off at the edge of a box that scrolls axe can't tell the contrast: contrasts
# are looked at with lines wrapped, and with the list of pages at full length.
WRAP = """
pre, pre * { white-space: pre-wrap !important; overflow-wrap: anywhere }
.bd-sidebar-primary { position: static !important; max-height: none !important;
    overflow: visible !important }
"""
# Of all texts with the same colour, size and weight on the same backgrounds, up to the root of the
# page, one is marked, in each theme.
MARK = """(theme) => {
  const grounds = new Map(), seen = new Set();
  const ground = (e) => {
    if (!e) return '';
    if (!grounds.has(e)) {
      const s = getComputedStyle(e);
      const own = [s.backgroundColor, s.backgroundImage, s.opacity, s.filter, s.mixBlendMode,
        s.textShadow].join();
      const clear = own === 'rgba(0, 0, 0, 0),none,1,none,normal,none';
      grounds.set(e, ground(e.parentElement) + (clear ? '' : `|${own}`));
    }
    return grounds.get(e);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const e = node.parentElement;
    if (!node.data.trim() || !e.checkVisibility({ visibilityProperty: true })) continue;
    const s = getComputedStyle(e);
    const key = [ground(e), s.color, s.fontSize, s.fontWeight].join();
    if (!seen.has(key)) e.dataset.marked = `${e.dataset.marked || ''} ${theme}`;
    seen.add(key);
  }
  return seen.size;
}"""
# Most elements are the coloured words of code and of signatures: a class and a text each.
# What is not marked of them becomes plain text before axe looks at all but the colours.
PLAIN_CODE = """() => {
  for (const e of document.querySelectorAll(':is(pre, dt.sig) span:not([data-marked])'))
    if (!e.querySelector('[data-marked]') && [...e.attributes].every((a) => a.name === 'class'))
      e.replaceWith(...e.childNodes);
}"""
# For the contrasts everything loses its content that neither is marked nor holds what is.
STRIP = """() => {
  const kept = new Set();
  for (let e of document.querySelectorAll('[data-marked]'))
    for (; e && !kept.has(e); e = e.parentElement) kept.add(e);
  for (const e of document.querySelectorAll('body *'))
    if (e.isConnected && !kept.has(e) && !e.closest('select, svg, style')) e.replaceChildren();
}"""


# ------------------------------------------------------------------------------------ the visits


@pytest.fixture(scope="session")
def pages(site):
    """All pages, as paths below the site; index.html only leads on to the first."""
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    names.remove("index.html")
    return names


def _text(path):
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def look(open_page, settle, site, server):
    """Return a function that visits a page in both themes and gives its faults and its weight."""
    script = pytest.importorskip("axe_playwright_python.sync_playwright").Axe().axe_script

    def visit(name, axe=True, before=lambda page: None):
        page = open_page(width=WIDTH)
        before(page)
        page.goto(f"{server}/{name}")
        settle(page)
        faults = [f"formula: {bad}" for bad in page.evaluate(BAD_MATHS)]
        counts = page.evaluate(COUNTS)
        if counts["set"] < counts["written"]:
            faults.append(f"formula: {counts['set']} of {counts['written']} are set")
        if counts["alive"] != counts["figures"]:
            faults.append(f"figure: {counts['alive']} of {counts['figures']} live")
        kinds = _weigh(page.log.asked, site, server)
        total, budget = sum(kinds.values()), FIGURE_BUDGET if counts["figures"] else PLAIN_BUDGET
        if total > budget:
            faults.append(f"weight: {total} bytes, allowed {budget}: {kinds}")
        for theme in ("light", "dark"):
            _turn(page, theme)
            applied = page.evaluate("document.documentElement.dataset.theme || ''")
            if applied != theme:
                faults.append(f"theme: {applied!r} where the system is {theme}")
            if axe:
                page.evaluate(MARK, theme)
        if axe:
            page.evaluate(script)
            page.evaluate(PLAIN_CODE)
            found = page.evaluate("options => axe.run(options)", ALL_BUT_CONTRAST)
            faults += [f"axe: {line}" for line in _nodes(found["violations"])]
        page.set_viewport_size({"width": PHONE, "height": 844})
        faults += [f"sideways: {wide}" for wide in page.evaluate(TOO_WIDE)]
        if axe:
            page.evaluate(STRIP)
            page.set_viewport_size({"width": WIDTH, "height": 900})
            page.add_style_tag(content=WRAP)
            for theme in ("dark", "light"):
                _turn(page, theme)
                faults += _contrasts(page, theme)
        for what in ("outside", "failed", "errors"):
            faults += [f"{what}: {line}" for line in getattr(page.log, what)]
        page.leave()
        return faults, {"total": total, **kinds}

    return visit


def _turn(page, theme):
    """Let the system turn dark or light, and colours that change slowly arrive at once."""
    page.emulate_media(color_scheme=theme)
    sync_api = pytest.importorskip("playwright.sync_api")
    with contextlib.suppress(sync_api.TimeoutError):
        turned = f"document.documentElement.dataset.theme === '{theme}'"
        page.wait_for_function(turned, timeout=2000)
    page.evaluate(
        "() => document.getAnimations().filter((a) => a instanceof CSSTransition)"
        ".forEach((a) => a.finish())"
    )


def _contrasts(page, theme):
    """Axe's violations of contrast, and those left open."""
    found = page.evaluate("options => axe.run(options)", ONLY_CONTRAST)
    open_ = [rule for rule in found["incomplete"] if rule["id"] == "color-contrast"]
    return [f"axe, {theme}: {line}" for line in _nodes(found["violations"])] + [
        f"undecided, {theme}: {line}" for line in _nodes(open_)
    ]


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


def _weigh(asked, site, server):
    """Bytes after gzip -6 of what a page asked for, by kind; pictures and fonts as they are."""
    kinds = {}
    for address in sorted(a for a in asked if a.startswith(server)):
        suffix = Path(urlsplit(address).path).suffix
        kind = {
            ".html": "document", ".css": "styles", ".js": "scripts", ".woff": "fonts",
            ".woff2": "fonts", ".png": "pictures", ".svg": "pictures",
        }.get(suffix, "other")  # fmt: skip
        if kind == "scripts" and "mathjax" in address:
            kind = "MathJax"
        kinds[kind] = kinds.get(kind, 0) + _size(site / unquote(urlsplit(address).path.lstrip("/")))
    return kinds


@functools.cache
def _size(file):
    body = file.read_bytes() if file.is_file() else b""
    return len(body) if file.suffix in (".png", ".woff", ".woff2") else len(gzip.compress(body, 6))


def share(pages, site, part):
    """The pages of one test: from the most work to the least, dealt out in turn."""
    order = sorted(pages, key=lambda name: ((site / name).stat().st_size, name), reverse=True)
    return order[part::PARTS]


@pytest.mark.parametrize("part", range(PARTS))
def test_pages_have_no_fault(pages, look, site, record_property, part):
    report, faults = {}, []
    for name in share(pages, site, part):
        found, report[name] = look(name, axe=inspected(name))
        faults += [f"{name}: {fault}" for fault in found]
    record_property("page_weight", json.dumps(report))
    weights = site.parent / "page-weight.json"
    with filelock.FileLock(f"{weights}.lock"):
        before = json.loads(weights.read_text()) if weights.exists() else {}
        after = {name: (before | report)[name] for name in pages if name in before | report}
        weights.write_text(json.dumps(after, indent=1))
    assert faults == []


def inspected(name):
    """Whether axe looks at a page."""
    return not name.startswith(MADE) or Path(name).stem in SEEN


def test_axe_sees_all_pages_but_those_made_alike(pages):
    assert {f"{MADE}{name}.html" for name in SEEN} < set(pages)
    assert {name for name in pages if not inspected(name)} < {n for n in pages if MADE in n}
    assert sum(map(inspected, pages)) > len(pages) / 2


def test_each_page_is_visited_once(pages, site):
    assert sorted(name for part in range(PARTS) for name in share(pages, site, part)) == pages


def test_there_are_figures_and_formulas(pages, site):
    """What the visits count is there to be counted."""
    text = "".join(_text(site / name) for name in pages)
    assert "tfbook-explorable" in text and 'class="math' in text


# Faults of each kind, and how the visit words them.
FAULTS = {
    "outside: https://other": "<img src='https://other.example/a.png' alt='From elsewhere'>",
    r"failed: .*no-such-picture.png: 404": "<img src='no-such-picture.png' alt='A missing one'>",
    "errors: said": "<script>console.error('said')</script>",
    "errors: thrown": "<script>throw 'thrown'</script>",
    r"formula: \d+ of": "<p class='mathjax_ignore'><span class='math'>x</span></p>",
    "formula: Undefined": r"<p><span class='math'>\(\nosuchcommand{x}\)</span></p>",
    "formula: the root": r"<p>the root $\sqrt{d}$ of it</p>",
    "figure: 0 of 1": "<div class='tfbook-explorable' data-module='none'>dead</div>",
    "sideways: .*wide": "<div class='wide' style='width: 900px'>wide</div>",
    "axe: button-name": "<pre><span><button></button></span></pre>",
    "axe: link-in-text-block": (
        "<p>A text in which <a style='text-decoration: none; color: #00c' href='#'>a link</a> is"
        " blue and no more.</p>"
    ),
    "axe, (light|dark): color-contrast: .*pale": (
        "<p style='color: #888; background: #eee'>pale</p>"
    ),
    "axe, light: color-contrast: .*faint": (
        "<p class='l'>faint</p><style>html[data-theme=light] .l {color: #aaa}</style>"
    ),
    "axe, dark: color-contrast: .*dim": (
        "<pre>A <span class='k'>word</span> is <span class='d'>dim</span></pre>"
        "<style>html[data-theme=dark] .d {color: #444}</style>"
    ),
    "undecided, light: .*picture": (
        "<p style='background: linear-gradient(red, blue)'>on a picture</p>"
    ),
    "undecided, dark: .*night": (
        "<p class='u'>at night</p><style>html[data-theme=dark] .u"
        " {background: linear-gradient(blue, red)}</style>"
    ),
}  # fmt: skip
STUCK = [f"theme: 'sepia' where the system is {theme}" for theme in ("light", "dark")]


@pytest.fixture(scope="module")
def planted(look, site):
    """What is found on a page with all these faults, and on one that keeps its theme."""
    name = "book/notation.html"
    text = _text(site / name)
    assert text.count("</article>") == 1

    def visit(fault, axe):
        body = text.replace("</article>", f"{fault}</article>")

        def plant(page):
            page.route(f"**/{name}", lambda r: r.fulfill(body=body, content_type="text/html"))

        return look(name, axe, before=plant)

    keep = "setInterval(() => (document.documentElement.dataset.theme = 'sepia'), 1)"
    faults, _ = visit("".join(FAULTS.values()), axe=True)
    return faults + visit(f"<script>{keep}</script>", axe=False)[0]


@pytest.mark.parametrize("kind", [*FAULTS, *STUCK])
def test_a_planted_fault_is_found(planted, kind):
    assert any(re.match(kind, fault) for fault in planted), planted


def test_a_fault_of_one_theme_is_found_in_that_theme_alone(planted):
    others = "axe, dark.*faint", "axe, light.*dim", "undecided, light.*night", "axe, .*word"
    assert [f for f in planted for other in others if re.match(other, f)] == []


def test_a_page_that_is_too_heavy_is_found(look, monkeypatch):
    monkeypatch.setitem(globals(), "PLAIN_BUDGET", 10_000)
    faults, weight = look("book/notation.html", axe=False)
    assert [fault.split(":")[0] for fault in faults] == ["weight"]
    assert weight["document"] > 5_000 and weight["styles"] > 5_000 and weight["scripts"] > 5_000


def test_a_page_loaded_in_the_dark_is_dark(open_page, server, pages):
    for name in ("book/preface.html", next(n for n in pages if n.startswith("chapters/"))):
        page = open_page(theme="dark")
        page.goto(f"{server}/{name}")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark", name
        page.leave()


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
    seen = 0
    for tex in (r"\(\nosuchcommand{x}\)", r"\(\frac{1\)", r"\(a_1_2\)"):
        page.evaluate(
            """async (tex) => {
              const p = document.createElement('p'); p.className = 'math'; p.textContent = tex;
              document.querySelector('article').append(p); await MathJax.typesetPromise([p]);
            }""",
            tex,
        )
        before, seen = seen, len(page.evaluate(BAD_MATHS))
        assert seen > before, tex
    page.evaluate("document.querySelector('article').append('the root $\\\\sqrt{d}$ of it')")
    assert len(page.evaluate(BAD_MATHS)) == seen + 1
    page.leave()


def test_pictures_of_a_chapter_are_light(site):
    sizes = {}
    for page in (site / "chapters").glob("*.html"):
        names = {tag["src"] for tag in _parsed(page).tags("img")}
        sizes[page.name] = sum((page.parent / unquote(n)).stat().st_size for n in names)
    assert sizes and {n: s for n, s in sizes.items() if s > PICTURES_BUDGET} == {}


# ------------------------------------------------------------------------------ files, no browser


class _Parsed(HTMLParser):
    """The elements of a page that have a name, lead somewhere, or are pictures."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = {name: value or "" for name, value in attrs}
        if tag == "img" or not attrs.keys().isdisjoint(("id", "href", "src")):
            self.found.append((tag, attrs))

    def tags(self, name):
        return [attrs for tag, attrs in self.found if tag == name]

    def anchors(self):
        return [a["id"] for _, a in self.found if a.get("id")]


@functools.cache
def _parsed(path):
    return _Parsed(_text(path))


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
    """By the name a reader imports it under: the door's, or that of a room in the room."""
    pages = [p for p in (site / "book" / "api").glob("*.html") if p.stem != "index"]
    anchors = set().union(*(_parsed(page).anchors() for page in pages))
    names = set().union(*(_public(importlib.import_module(f"tfbook.{p.stem}")) for p in pages))
    assert len(names) > 300
    assert {name for name, places in names if anchors.isdisjoint(places)} == set()


def _public(door):
    """Yield each function and class of a door with the names under which it may be documented."""
    for name in door.__all__:
        value = getattr(door, name)
        if inspect.ismodule(value):
            for inner, places in _public(value):
                yield inner, (*places, f"{door.__name__}.{inner.rsplit('.')[-1]}")
        elif inspect.isclass(value) or inspect.isroutine(value):
            home = value.__module__.split("._")[0]
            yield f"{door.__name__}.{name}", (f"{door.__name__}.{name}", f"{home}.{name}")


def test_every_room_has_its_page(site):
    import tfbook

    pages = {page.stem for page in (site / "book" / "api").glob("*.html")}
    assert set(tfbook._rooms()) - pages == set()


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
    made.leave()


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


@functools.cache
def _parts(path):
    """What a page loads and shows by scripts: what can go wrong where there is no server."""
    page = _parsed(path)
    styles = [a["href"] for a in page.tags("link") if a.get("rel") == "stylesheet"]
    loaded = [*styles, *(a["src"] for a in page.tags("script") if a.get("src"))]
    return frozenset(Path(urlsplit(address).path).name for address in loaded)


def _figures(path):
    if path.parent.name != "chapters":
        return set()
    return set(re.findall(r'data-module="(\w+)"', _text(path))) - {"quiz", "predict", "explain"}


def test_files_from_a_disk_are_alive(pages, site, open_page, settle):
    """The longest page of all that load the same scripts and styles.

    Chapters with figures (a quiz is none) are opened from a disk in `test_explorables.py`.
    """
    by_size = sorted(pages, key=lambda name: (site / name).stat().st_size)
    chosen = {_parts(site / name): name for name in by_size if not _figures(site / name)}
    faults = []
    for name in chosen.values():
        page = open_page()
        page.goto((site / name).as_uri())
        settle(page)
        counts = page.evaluate(COUNTS)
        faults += [
            f"{name}: {line}" for line in page.log.errors + page.log.failed + page.log.outside
        ]
        if counts["set"] < counts["written"] or counts["alive"] != counts["figures"]:
            faults.append(f"{name}: {counts}")
        page.leave()
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
    page.leave()


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
    page.leave()
