"""Every page in a real browser, in both themes: nothing from outside, no error, readable, light.

A test visits a few pages and each page once. Chapters with figures (a quiz is none) are visited in
`test_explorables.py`, from a disk: there less works than from a server.
"""

import functools
import importlib
import inspect
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import lxml.html
import pytest
import visits
from visits import COUNTS, PHONE

pytestmark = pytest.mark.browser

# So many tests share the visits; the test processes take them one by one.
PARTS = 16
PICTURES_BUDGET = 3_000_000
PLACEHOLDER = re.compile(r"\W*(the |an? )?(plot|figure|image|picture|chart|graph|output)s?[\W\d]*")
# The pages of the package are made alike; of them axe sees these: a long one, one with rooms in it,
# and their index. Of all others it sees each.
MADE, SEEN = "book/api/", ("attention", "teaching", "index")


# ------------------------------------------------------------------------------------ the visits


@pytest.fixture(scope="session")
def pages(site):
    """All pages, as paths below the site; index.html only leads on to the first."""
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    names.remove("index.html")
    return names


def _text(path):
    return path.read_text(encoding="utf-8")


@functools.cache
def figures(path):
    """The kinds of figures of a chapter."""
    if path.parent.name != "chapters":
        return frozenset()
    asked = {"quiz", "predict", "explain"}
    return frozenset(re.findall(r'data-module="(\w+)"', _text(path))) - asked


def share(pages, site, part):
    """The pages of one test: from the most work to the least, dealt out in turn."""
    plain = [name for name in pages if not figures(site / name)]
    order = sorted(plain, key=lambda name: ((site / name).stat().st_size, name), reverse=True)
    return order[part::PARTS]


@pytest.mark.parametrize("part", range(PARTS))
def test_pages_have_no_fault(pages, look, site, note_weights, part):
    report, faults = {}, []
    for name in share(pages, site, part):
        found, report[name] = look(name, axe=inspected(name))
        faults += [f"{name}: {fault}" for fault in found]
    note_weights(report)
    assert faults == []


def inspected(name):
    """Whether axe looks at a page."""
    return not name.startswith(MADE) or Path(name).stem in SEEN


def test_axe_sees_all_pages_but_those_made_alike(pages):
    assert {f"{MADE}{name}.html" for name in SEEN} < set(pages)
    assert {name for name in pages if not inspected(name)} < {n for n in pages if MADE in n}
    assert sum(map(inspected, pages)) > len(pages) / 2


def test_each_page_is_visited_once(pages, site):
    here = [name for part in range(PARTS) for name in share(pages, site, part)]
    from_disk = [name for name in pages if figures(site / name)]  # in `test_explorables.py`
    assert sorted(here + from_disk) == pages and len(here) > len(from_disk)


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
    r"formula: \d+ of": "<p><span class='math'>x</span></p>",
    "formula: Unread": r"<p><span class='math'><code>\nosuchcommand{x}</code></span></p>",
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visits, "PATIENCE", 3_000)  # what is waited for in vain
        faults, _ = visit("".join(FAULTS.values()), axe=True)
        return faults + visit(f"<script>{keep}</script>", axe=False)[0]


@pytest.mark.parametrize("kind", [*FAULTS, *STUCK])
def test_a_planted_fault_is_found(planted, kind):
    assert any(re.match(kind, fault) for fault in planted), planted


def test_a_fault_of_one_theme_is_found_in_that_theme_alone(planted):
    others = "axe, dark.*faint", "axe, light.*dim", "undecided, light.*night", "axe, .*word"
    assert [f for f in planted for other in others if re.match(other, f)] == []


def test_a_page_that_is_too_heavy_is_found(look, monkeypatch):
    monkeypatch.setattr(visits, "PLAIN_BUDGET", 10_000)
    faults, weight = look("book/notation.html", axe=False)
    assert [fault.split(":")[0] for fault in faults] == ["weight"]
    assert weight["document"] > 5_000 and weight["styles"] > 5_000 and weight["scripts"] > 5_000


def test_a_page_loaded_in_the_dark_is_dark(open_page, server, lightest):
    for name in ("book/preface.html", lightest):
        page = open_page(theme="dark")
        page.goto(f"{server}/{name}", wait_until="domcontentloaded")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark", name
        page.leave()


@pytest.mark.parametrize("way", ["http", "file"])
def test_entrance_leads_to_the_welcome_page(page, server, site, way):
    page.goto(f"{server if way == 'http' else site.as_uri()}/index.html")
    page.wait_for_url(re.compile(r"/book/welcome\.html$"))
    assert page.log.outside == []


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
        if tag == "img" or not attrs.keys().isdisjoint(("id", "href", "src", "srcset")):
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
        names = "href", "src", "srcset"
        wanted = [(t, a[n]) for t, a in page.found for n in names if n in a and t != "meta"]
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


# What Markdown and reStructuredText mark words with; a reader sees words alone.
MARKS = re.compile(r"(?<![\w*'])\*{1,2}[A-Za-z][^*\n]{0,60}?\*|(?<!\w)`[^`\n]+`")

# Code, formulas and drawings, which a reader does not take for words.
UNREAD = (
    "self::pre or self::code or self::script or self::style or self::math"
    " or (self::dt and contains(concat(' ', @class, ' '), ' sig '))"
    " or contains(concat(' ', @class, ' '), ' tfbook-still ')"
)


def test_no_text_shows_the_marks_it_is_written_with(pages, site):
    shown = []
    for name in pages:
        page = lxml.html.fromstring(_text(site / name))
        body = next(page.iter("article"), page)
        for part in body.xpath(f".//*[{UNREAD}]"):
            part.drop_tree()
        heads = [head.text_content() for head in body.iter("h1", "h2", "h3")]
        raw = [] if name.startswith(MADE) else [h for h in heads if re.search(r"\w_\w|[$\\]", h)]
        text = " ".join(body.xpath(".//text()"))
        shown += [f"{name}: {mark}" for mark in raw + MARKS.findall(text)]
    assert not shown, shown


def test_no_page_names_another_host_for_its_parts(pages, site):
    """A script or style from elsewhere would also fail where no browser looks."""
    parts = [
        f"{name}: {attrs.get('src') or attrs.get('href')}"
        for name in pages
        for tag, attrs in _parsed(site / name).found
        if tag in ("script", "link", "img", "iframe", "source")
        and re.match(
            r"(https?:)?//", attrs.get("src") or attrs.get("srcset") or attrs.get("href") or ""
        )
        and attrs.get("rel") != "canonical"
    ]
    assert parts == []


def test_nothing_unused_is_shipped(site):
    static = site / "_static"
    names = [p.relative_to(static).as_posix() for p in static.rglob("*") if p.is_file()]
    unwanted = r"fontawesome|^require|embed-amd|html-manager|thebe|\.map$|locales/"
    assert [n for n in names if re.search(unwanted, n)] == []


# ------------------------------------------------------------------------------- the page at work


@pytest.fixture(scope="session")
def lightest(site):
    """The chapter with figures that is read fastest."""
    chapters = [path for path in (site / "chapters").glob("*.html") if figures(path)]
    return min(chapters, key=lambda path: path.stat().st_size).relative_to(site).as_posix()


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
    for _ in range(100):  # the key is listened to when the page has come to rest
        page.keyboard.press("Control+k")
        if page.locator("#pst-search-dialog").is_visible():
            break
        page.wait_for_timeout(50)
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    page.wait_for_selector("#search-results .tfbook-found li a")
    titles = page.locator("#search-results .tfbook-found li a").all_inner_texts()
    assert any("softmax" in title.lower() or "Attention" in title for title in titles)
    page.locator("#search-results .tfbook-found li a").first.click()
    page.wait_for_url(re.compile(r"\.html"))
    assert (page.log.outside, page.log.errors, page.log.failed) == ([], [], [])


@functools.cache
def _parts(path):
    """What a page loads and shows by scripts: what can go wrong where there is no server."""
    page = _parsed(path)
    styles = [a["href"] for a in page.tags("link") if a.get("rel") == "stylesheet"]
    loaded = [*styles, *(a["src"] for a in page.tags("script") if a.get("src"))]
    return frozenset(Path(urlsplit(address).path).name for address in loaded)


def test_files_from_a_disk_are_alive(pages, site, open_page, settle):
    """The longest page of all that load the same scripts and styles, but chapters with figures."""
    by_size = sorted(pages, key=lambda name: (site / name).stat().st_size)
    chosen = {_parts(site / name): name for name in by_size if not figures(site / name)}
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


def test_chapter_with_figures_lives_from_a_server_and_offers_its_notebook(
    page, settle, server, lightest
):
    page.goto(f"{server}/{lightest}")
    settle(page)
    counts = page.evaluate(COUNTS)
    assert counts["set"] >= counts["written"] > 0 and counts["alive"] == counts["figures"] > 0
    assert (page.log.outside, page.log.errors, page.log.failed) == ([], [], [])
    page.locator(".dropdown-download-buttons > button").focus()
    page.keyboard.press("Enter")
    link = page.locator(".dropdown-download-buttons a:visible", has_text=".ipynb")
    answer = page.request.get(urljoin(page.url, link.get_attribute("href")))
    assert answer.ok and json.loads(answer.body())["cells"]


def test_link_to_a_claim_leads_to_its_line(page, server):
    page.goto(f"{server}/book/claims.html")
    page.locator("details.tfbook-rows > summary").first.click()
    link = page.locator("ul.tfbook-index a").first
    slug = urldefrag(link.get_attribute("href"))[1]
    link.click()
    page.wait_for_url(re.compile(re.escape(slug)))
    line = page.locator(f"#{slug}")
    assert line.is_visible() and "tfbook-claim" in line.get_attribute("class")


def test_code_that_scrolls_is_reached_by_keyboard(open_page, server, lightest):
    page = open_page(width=PHONE, height=844)
    page.goto(f"{server}/{lightest}")
    page.wait_for_load_state("load")
    page.wait_for_function("document.documentElement.dataset.opening === undefined")
    page.wait_for_timeout(500)
    unreachable = page.evaluate(
        """() => [...document.querySelectorAll('#main-content pre')]
          .filter((e) => e.offsetParent && e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0)
          .map((e) => e.textContent.slice(0, 60))"""
    )
    assert unreachable == []
    page.leave()
