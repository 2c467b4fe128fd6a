"""What the tests of figures that load a model have in common."""

import json

import pytest

from tests.site import test_explorables as others
from tfbook.teaching import explorables

# Where the work is done: the page by itself, from a disk, and where a worker is not to be had.
HOSTS = {
    "http": None,
    "file": None,
    "no worker": "delete window.Worker",
    "worker that fails": "window.Worker = class { constructor() { throw Error('no'); } }",
}
SLOW = 6  # a phone's processor
# How long the page does not come to its next frame, and its tasks over 50 ms.
WATCH = """() => {
  let last = performance.now();
  window.longest = 0;
  window.tasks = [];
  new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((e) => e.duration)))
    .observe({ type: 'longtask' });
  const frame = (now) => {
    window.longest = Math.max(window.longest, now - last);
    last = now;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""


def opener(browser, module):
    """Give pages of a context of their own, with what they ask for, until the test is over.

    `before` runs before the scripts of a page, `script` stands in place of the figure's module.
    """
    made = []

    def opened(address, before=None, script=None):
        context = browser.new_context()
        made.append(context)
        if before:
            context.add_init_script(before)
        page = context.new_page()
        if script:
            page.route(f"**/{module}.js", lambda route: route.fulfill(body=script))
        page.asked, page.complaints = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda m: m.type == "error" and page.complaints.append(m.text))
        page.on("pageerror", lambda e: page.complaints.append(str(e)))
        page.goto(address)
        page.wait_for_function(others.ALIVE)
        return page

    yield opened
    for context in made:
        context.close()


def models_asked(page):
    """Files of weights that a page has asked for."""
    return [url for url in page.asked if "/models/" in url]


def slowed(page, rate):
    """Let the processor of a page be so many times as slow."""
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": rate})


def longest_frame(page):
    """Milliseconds between two frames, the most since last asked."""
    return page.evaluate("() => { const l = window.longest; window.longest = 0; return l; }")


def unseen_bugs(opened, address, module, mutants, check, patience=None):
    """Open the figure with each planted bug; those that `check(page)` does not see."""
    sync_api = pytest.importorskip("playwright.sync_api")
    source, unseen = explorables.module_source(module), []
    for old, new in mutants:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times"
        text = json.dumps(source.replace(old, new))
        page = opened(address, script=f"(window.tfbookModules ||= {{}}).{module} = {text};")
        if patience:
            page.set_default_timeout(patience)
        try:
            check(page)
            unseen.append(f"{old} -> {new}")
        except (AssertionError, KeyError, ValueError, sync_api.Error):
            pass
    return unseen
