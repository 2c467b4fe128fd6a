"""One visit of a page: loaded in the light, looked at, and looked at again in the dark."""

import contextlib
import functools
import gzip
import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import filelock
import pytest

# What a page leaves for the next one: nothing. When it is left, it may want to write again.
FORGET = """() => {
  try { localStorage.clear(); sessionStorage.clear(); } catch { return; }
  Storage.prototype.setItem = () => {};
}"""
WIDTH, PHONE = 1280, 390
PATIENCE = 60_000  # ms for what must come; it bounds what hangs, on a slow machine too
PLAIN_BUDGET, FIGURE_BUDGET = 800_000, 1_200_000

# Formulas that could not be read when the book was built, and TeX that was no formula then.
BAD_MATHS = r"""() => {
  const bad = [...document.querySelectorAll('.math code, merror')]
    .map((e) => `Unread: ${e.textContent.trim().slice(0, 80)}`);
  const walker = document.createTreeWalker(
    document.querySelector('article, main') || document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest('pre, code, script, style, noscript, math')) continue;
    const raw = node.data.match(/\\\(|\\\[|\\(frac|sqrt|sum|text|top|alpha)\b|\$[^$\s][^$]*\$/);
    if (raw) bad.push(node.data.trim().slice(0, 80));
  }
  return bad;
}"""
# Whether all figures live, also those far away, which would wait for the reader to come near.
ALIVE = """(() => {
  for (const each of document.querySelectorAll('.tfbook-explorable:not([data-called])'))
    each.dispatchEvent(new Event('tfbook-wake', { bubbles: true }));
  return !document.querySelector('.tfbook-explorable:not([data-alive])');
})()"""
TOO_WIDE = """() => {
  const room = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= room && document.body.scrollWidth <= room) return [];
  return [...document.querySelectorAll('body *')]
    .filter((e) => e.getBoundingClientRect().right > room + 1)
    .map((e) => e.outerHTML.slice(0, 90)).slice(0, 5);
}"""
COUNTS = """() => ({
  written: document.querySelectorAll('span.math, div.math, .amsmath').length,
  set: document.querySelectorAll(':is(span.math, div.math, .amsmath):has(math > *)').length,
  figures: document.querySelectorAll('.tfbook-explorable').length,
  alive: document.querySelectorAll('.tfbook-explorable[data-alive]').length,
})"""

# What slides or changes its colour slowly is where it is going.
ARRIVE = """() => document.getAnimations().filter((a) => a instanceof CSSTransition)
  .forEach((a) => a.finish())"""
# Boxes that scroll are made reachable soon after the page has its width; axe looks after that.
REACHED = """() => [...document.querySelectorAll('#main-content pre')]
  .every((e) => e.scrollWidth <= e.clientWidth + 1 || e.tabIndex === 0)"""


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
FOUND = "({ violations, incomplete }) => ({ violations, incomplete })"
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
# Most elements are the coloured words of code and of signatures: a class and a text each. Of those
# that have the same class and stand in the same boxes one stays, the others become plain text.
PLAIN_CODE = """() => {
  const seen = new Set(), chains = new Map();
  const chain = (e) => {
    if (!e) return '';
    if (!chains.has(e)) chains.set(e, `${e.tagName}.${e.className} ${chain(e.parentElement)}`);
    return chains.get(e);
  };
  for (const e of document.querySelectorAll(':is(pre, dt.sig) span')) {
    if ([...e.attributes].some((a) => a.name !== 'class')) continue;
    const kind = chain(e);
    if (seen.has(kind)) e.replaceWith(...e.childNodes);
    seen.add(kind);
  }
}"""
# A formula has the colour of its text, and axe can't tell what lies behind its letters: it
# becomes plain text, the formulas that scroll after axe has seen whether they can be reached.
PLAIN_MATHS = """(all) => {
  for (const e of document.querySelectorAll('math')) {
    const box = e.closest('.tfbook-formula');
    if (all || !box || box.scrollWidth <= box.clientWidth + 1) e.replaceWith('x');
  }
}"""
# For the contrasts everything loses its content that neither is marked nor holds what is.
STRIP = """() => {
  const kept = new Set();
  for (let e of document.querySelectorAll('[data-marked]'))
    for (; e && !kept.has(e); e = e.parentElement) kept.add(e);
  for (const e of document.querySelectorAll('body *'))
    if (e.isConnected && !kept.has(e) && !e.closest('select, svg, style')) e.replaceChildren();
}"""


@pytest.fixture(scope="session")
def look(open_page, settle, site, server):
    """Return a function that visits a page in both themes, gives its faults and notes its weight.

    The page comes from `home`, a server if none is named; `before` it is loaded and `then`, when it
    has loaded, it is given away.
    """
    script = pytest.importorskip("axe_playwright_python.sync_playwright").Axe().axe_script

    def visit(name, axe=True, *, home=server, before=_pass, then=_pass):
        page = open_page(width=WIDTH)
        before(page)
        page.goto(f"{home}/{name}")
        settle(page)
        faults = [f"formula: {bad}" for bad in page.evaluate(BAD_MATHS)]
        counts = page.evaluate(COUNTS)
        if counts["set"] < counts["written"]:
            faults.append(f"formula: {counts['set']} of {counts['written']} are set")
        if counts["alive"] != counts["figures"]:
            faults.append(f"figure: {counts['alive']} of {counts['figures']} live")
        kinds = _weigh(page.log.asked, site, home)
        total, budget = sum(kinds.values()), FIGURE_BUDGET if counts["figures"] else PLAIN_BUDGET
        if total > budget:
            faults.append(f"weight: {total} bytes, allowed {budget}: {kinds}")
        then(page)
        if axe:
            page.evaluate(PLAIN_CODE)
            page.evaluate(PLAIN_MATHS, False)
        for theme in ("light", "dark"):
            _turn(page, theme)
            applied = page.evaluate("document.documentElement.dataset.theme || ''")
            if applied != theme:
                faults.append(f"theme: {applied!r} where the system is {theme}")
            if axe:
                page.evaluate(MARK, theme)
        page.set_viewport_size({"width": PHONE, "height": 844})
        faults += [f"sideways: {wide}" for wide in page.evaluate(TOO_WIDE)]
        if axe:
            page.set_viewport_size({"width": WIDTH, "height": 900})
            page.evaluate(ARRIVE)
            with contextlib.suppress(_timeout()):
                page.wait_for_function(REACHED, timeout=PATIENCE / 4)
            page.evaluate(script)
            found = page.evaluate(f"options => axe.run(options).then({FOUND})", ALL_BUT_CONTRAST)
            faults += [f"axe: {line}" for line in _nodes(found["violations"])]
            page.evaluate(PLAIN_MATHS, True)
            page.evaluate(STRIP)
            page.add_style_tag(content=WRAP)
            for theme in ("dark", "light"):
                _turn(page, theme)
                faults += _contrasts(page, theme)
        for what in ("outside", "failed", "errors"):
            faults += [f"{what}: {line}" for line in getattr(page.log, what)]
        page.leave()
        return faults, {"total": total, **kinds}

    return visit


def _pass(page):
    """Leave the page as it is."""


@pytest.fixture
def note_weights(site, record_property):
    """Return a function that notes what pages weigh, with the test and beside the site."""

    def note(report):
        record_property("page_weight", json.dumps(report))
        weights = site.parent / "page-weight.json"
        with filelock.FileLock(f"{weights}.lock"):
            before = json.loads(weights.read_text()) if weights.exists() else {}
            after = {n: w for n, w in sorted((before | report).items()) if (site / n).exists()}
            weights.write_text(json.dumps(after, indent=1))

    return note


def _turn(page, theme):
    """Let the system turn dark or light, and colours that change slowly arrive at once."""
    page.emulate_media(color_scheme=theme)
    with contextlib.suppress(_timeout()):
        turned = f"document.documentElement.dataset.theme === '{theme}'"
        page.wait_for_function(turned, timeout=PATIENCE)
    page.evaluate(ARRIVE)


def _timeout():
    return pytest.importorskip("playwright.sync_api").TimeoutError


def _contrasts(page, theme):
    """Axe's violations of contrast, and those left open."""
    found = page.evaluate(f"options => axe.run(options).then({FOUND})", ONLY_CONTRAST)
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


def _weigh(asked, site, home):
    """Bytes after gzip -6 of what a page asked for, by kind; pictures and fonts as they are."""
    kinds = {}
    for path in sorted(urlsplit(a.removeprefix(home)).path for a in asked if a.startswith(home)):
        suffix = Path(path).suffix
        kind = {
            ".html": "document", ".css": "styles", ".js": "scripts", ".woff": "fonts",
            ".woff2": "fonts", ".png": "pictures", ".svg": "pictures",
        }.get(suffix, "other")  # fmt: skip
        kinds[kind] = kinds.get(kind, 0) + _size(site / unquote(path.lstrip("/")))
    return kinds


@functools.cache
def _size(file):
    body = file.read_bytes() if file.is_file() else b""
    return len(body) if file.suffix in (".png", ".woff", ".woff2") else len(gzip.compress(body, 6))
