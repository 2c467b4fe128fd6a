"""The built book, a server for it, one browser, and pages that note what they ask for.

site         folder of the built pages: TFBOOK_SITE, or _build/html, built first if missing
server       its address on this machine
browser      Chromium, for the whole session
open_page    a function that gives a page; it keeps requests, errors and what was refused
look         a function that visits a page in both themes and gives its faults (`visits.py`)
"""

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import psutil
import pytest
import visits
from visits import FORGET, look, note_weights  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "_build" / "html"
JUPYTER_BOOK = str(Path(sys.executable).with_name("jupyter-book"))
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    # Each page would come with processes of its own for the browser's panels. The flag replaces the
    # one that Playwright gives, so what matters of that stands here again.
    "--disable-features=PreloadTopChromeWebUI,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,"
    "LensOverlay,MediaRouter,OptimizationHints,PaintHolding,Translate",
    # No name leads anywhere: whatever a page asks of another host fails, and is noted.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]


@dataclass
class Log:
    """What a page did: what it asked of the site and outside of it, what failed, errors."""

    asked: set[str] = field(default_factory=set)
    outside: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def site():
    """Return the folder of the built pages.

    `make test` builds beside the first tests, and that is waited for; otherwise, if there are no
    pages, they are built here, strictly and from nothing.
    """
    named = os.environ.get("TFBOOK_SITE")
    if named:
        return Path(named).resolve()
    _wait_for_make()
    (ROOT / "_build").mkdir(exist_ok=True)
    # Several test processes may come here at once.
    with filelock.FileLock(ROOT / "_build" / "site.lock"):
        if not (BUILT / "index.html").exists():
            for leftover in (BUILT, ROOT / "_build" / ".doctrees"):
                shutil.rmtree(leftover, ignore_errors=True)
            command = [JUPYTER_BOOK, "build", ".", "-W", "--keep-going", "-n"]
            made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert made.returncode == 0, f"{made.stdout}\n{made.stderr}"[-4000:]
    return BUILT


def _wait_for_make():
    """Wait until the build that `make test` has begun has ended, and fail if it failed."""
    number = os.environ.get("TFBOOK_BUILDING")
    if number is None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        make = psutil.Process(int(number))
        while make.is_running() and make.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.5)
    built = (ROOT / "_build" / ".built").exists()
    assert built, f"the book was not built:\n{(ROOT / '_build' / 'build.log').read_text()[-4000:]}"


class _Files(http.server.SimpleHTTPRequestHandler):
    """Files without a word on each; the browser may keep them, for they do not change.

    But no fonts: those that it has it takes for every page that names them, used or not.
    """

    def end_headers(self):
        font = self.path.endswith((".woff", ".woff2"))
        self.send_header("Cache-Control", "no-store" if font else "max-age=3600")
        super().end_headers()

    def log_message(self, *words):
        pass


@contextlib.contextmanager
def _served(folder):
    handler = functools.partial(_Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def server(site):
    """Serve the built pages on a free port of this machine and return their address."""
    with _served(site) as address:
        yield address


@pytest.fixture(scope="session")
def served():
    """Return what serves another folder, as a context with its address."""
    return _served


@pytest.fixture(scope="session")
def browser(browser_path):
    """Start Chromium once.

    It is not closed but ended, with its pages, by the end of Playwright: closing waits for the
    browser without limit, and one that does not answer would keep a finished run from its end.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=browser_path, args=FLAGS)


@pytest.fixture(scope="session")
def open_page(browser, server, site):
    """Return a function that gives a page; what leaves the site is stopped and noted.

    The page has an attribute `log`. After `page.leave()` it serves the next that asks: a page that
    has read and compiled the scripts of the site shows another one in a third of the time. It is as
    good as new, for what it has stored is gone. All end with the browser.
    """
    left = []
    homes = (server, site.as_uri(), "data:", "blob:", "about:")

    def new():
        page = browser.new_context().new_page()
        page.set_default_timeout(120_000)

        def note(request):
            inside = request.url.startswith(homes)
            (page.log.asked.add if inside else page.log.outside.append)(request.url)

        def failed(request):
            # A page that is left stops loading; that is no fault of it.
            if request.failure != "net::ERR_ABORTED":
                page.log.failed.append(f"{request.url}: {request.failure}")

        def told(message):
            if message.type in ("error", "warning"):
                page.log.errors.append(message.text)

        def answered(response):
            if response.status >= 400:
                page.log.failed.append(f"{response.url}: {response.status}")

        def leave():
            page.unroute_all()
            page.evaluate(FORGET)
            page.goto("about:blank")
            left.append(page)

        page.leave = leave
        page.on("request", note)
        page.on("console", told)
        page.on("pageerror", lambda error: page.log.errors.append(str(error)))
        page.on("requestfailed", failed)
        page.on("response", answered)
        return page

    def give(*, theme="light", width=1280, height=900):
        page = left.pop() if left else new()
        page.log = Log()
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": height})
        return page

    return give


@pytest.fixture(scope="session")
def settle():
    """Return a function that waits until the figures live, also those that are far away.

    A figure that stays dead is waited for no longer than `visits.PATIENCE`; the tests count them.
    """

    def wait(page):
        page.wait_for_load_state("load")
        page.wait_for_function("document.documentElement.dataset.opening === undefined")
        with contextlib.suppress(sync_api.TimeoutError):
            page.wait_for_function(visits.ALIVE, timeout=visits.PATIENCE)

    sync_api = pytest.importorskip("playwright.sync_api")
    return wait
