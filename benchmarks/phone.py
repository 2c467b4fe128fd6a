"""Roads on a slow phone: when the first screen stands, how long its longest task is, what it asks.

Setting: Chromium with a screen of 390 × 844, a processor four times as slow, 1.6 Mbit/s and 150 ms,
an empty cache; the built pages come compressed from this machine. Each page is opened several times
and read to its end by the wheel. A task is what the page can't be interrupted in: while one runs,
nothing scrolls and no button answers. The browser does not always tell of one before the first
paint; that one shows in the paint's time. Load of the machine and the time of a fixed loop stand
beside each row, for a busy machine makes a slower phone.

Needs `make book`, Chromium, and Playwright.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import http.server
import importlib.util
import mimetypes
import os
import statistics
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.measure import machine
from benchmarks.rows import compare
from benchmarks.rows import table as write

ROOT = Path(__file__).parents[1]
SITE = ROOT / "_build" / "html"
WIDTH, HEIGHT = 390, 844
SLOWER = 4  # times, of the processor
BYTES_A_SECOND, DELAY = 1.6e6 / 8, 150  # ms
RUNS = 3
STEP, PAUSE = 600, 120  # of the wheel: pixels, and ms between two
FIGURE = ".tfbook-explorable, img.tfbook-picture"

# What is measured, with the most that is allowed.
LIMITS = {
    "first paint, s": 2.5,
    "largest paint, s": 2.5,
    "formulas, s": 2.5,
    "figure, s": 2.5,
    "task while loading, ms": 200.0,
    "task while scrolling, ms": 200.0,
    "nodes": 9_000,
    "requests": 25,
    "MB": 0.45,
}
PLAIN_MB = 0.25  # of a page without figures

# Notes in the page itself: paints, tasks, and when the first formulas and the first figure stand.
NOTES = """() => {
  const notes = (window.tfbookNotes = { tasks: [] });
  const watch = (type, then) => {
    const observer = new PerformanceObserver((list) => list.getEntries().forEach(then));
    observer.observe({ type, buffered: true });
  };
  watch('paint', (e) => { if (e.name === 'first-contentful-paint') notes.first = e.startTime; });
  watch('largest-contentful-paint', (e) => { notes.largest = e.startTime; });
  watch('longtask', (e) => notes.tasks.push([e.startTime, e.duration]));
  const near = (e) => e.getBoundingClientRect().top < innerHeight;
  const whole = (e) => e.matches('img') ? e.complete && e.naturalWidth > 0 : 'alive' in e.dataset;
  const look = () => {
    // Before it is painted, a page is not laid out by its style sheet either.
    const read = document.readyState !== 'loading' && notes.first !== undefined;
    if (notes.formulas === undefined && read) {
      const all = [...document.querySelectorAll('#main-content math')].slice(0, 30).filter(near);
      const font = all.length && getComputedStyle(all[0]).font;
      const set = all.every((e) => e.getBoundingClientRect().width > 0);
      if (!all.length) notes.formulas = null;
      else if (set && document.fonts.check(font, '√')) notes.formulas = performance.now();
    }
    const figure = document.querySelector('#main-content :is(FIGURE)');
    if (notes.figure === undefined && figure && whole(figure)) notes.figure = performance.now();
    // One that is far away waits until it is near.
    const far = () => figure.getBoundingClientRect().top > 2 * innerHeight;
    if (notes.figure === undefined && read && (!figure || far())) notes.figure = null;
    if (notes.formulas === undefined || notes.figure === undefined) setTimeout(look, 25);
  };
  look();
}""".replace("FIGURE", FIGURE)

# A fixed piece of work, whose time says how slow this phone is at the moment.
LOOP = """() => {
  const start = performance.now();
  for (let i = 0, x = 1; i < 2e6; i++) x = (x * 1103515245 + 12345) % 2147483648;
  return performance.now() - start;
}"""


def missing(site: Path = SITE) -> str:
    """Say what is needed and not there; nothing, if it can be measured."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed"
    if not any(site.glob("*/*.html")):
        return "there are no built pages; `make book` builds them"
    from book.tools.leaves import find_browser

    try:
        find_browser()
    except SystemExit:
        return "Chromium is not installed"
    return ""


@functools.cache
def _packed(path: Path) -> bytes:
    return gzip.compress(path.read_bytes(), 6)


class _Files(http.server.BaseHTTPRequestHandler):
    """Files of a folder, those that are text compressed, over a connection that stays."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:  # noqa: N802, the name that the library calls
        path = self.folder / unquote(urlsplit(self.path).path).lstrip("/")
        there = path.is_file() and path.resolve().is_relative_to(self.folder)
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        packs = there and not kind.startswith(("image/png", "font/"))
        body = _packed(path) if packs else path.read_bytes() if there else b""
        self.send_response(200 if there else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if packs:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a page that is left stops loading
            self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Say nothing on each."""


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder compressed, on this machine only."""
    handler = type("Files", (_Files,), {"folder": site.resolve()})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """Start the browser that is there."""
    from playwright.sync_api import sync_playwright

    from book.tools.leaves import find_browser

    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions"]
    flags += ["--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=flags)
        yield browser
        browser.close()


def visit(browser: Any, address: str, *, slower: float = SLOWER) -> dict[str, float | None]:
    """Open a page once on the slow phone and read it to its end.

    Returns:
        What was measured, by the names in `LIMITS`; None for what the page has not.
    """
    size = {"width": WIDTH, "height": HEIGHT}
    context = browser.new_context(viewport=size, device_scale_factor=2, has_touch=True)
    page = context.new_page()
    page.set_default_timeout(120_000)
    wire = context.new_cdp_session(page)
    loaded: list[float] = []
    wire.on("Network.loadingFinished", lambda event: loaded.append(event["encodedDataLength"]))
    wire.send("Network.enable")
    wire.send("Network.setCacheDisabled", {"cacheDisabled": True})
    line = {"offline": False, "latency": DELAY, "downloadThroughput": BYTES_A_SECOND}
    wire.send("Network.emulateNetworkConditions", line | {"uploadThroughput": BYTES_A_SECOND})
    wire.send("Emulation.setCPUThrottlingRate", {"rate": slower})
    page.add_init_script(f"({NOTES})()")
    loop = page.evaluate(LOOP)
    loaded.clear()
    page.goto(address, wait_until="load")
    page.wait_for_function("tfbookNotes.formulas !== undefined && tfbookNotes.figure !== undefined")
    page.wait_for_timeout(500)  # figures near the screen begin to live
    found: dict[str, float | None] = {"loop, ms": loop}
    found["nodes"] = page.evaluate("document.querySelectorAll('*').length")
    found["figures"] = page.locator(f"#main-content :is({FIGURE})").count()
    found["requests"], found["MB"] = len(loaded), sum(loaded) / 1e6
    until = page.evaluate("performance.now()")
    page.mouse.move(WIDTH / 2, HEIGHT / 2)
    for _ in range(1 + page.evaluate("document.documentElement.scrollHeight") // STEP):
        page.mouse.wheel(0, STEP)
        page.wait_for_timeout(PAUSE)
    page.wait_for_timeout(500)
    notes = page.evaluate("tfbookNotes")
    context.close()
    seconds = {"first paint, s": "first", "largest paint, s": "largest"}
    seconds |= {"formulas, s": "formulas", "figure, s": "figure"}
    for name, key in seconds.items():
        found[name] = None if notes.get(key) is None else notes[key] / 1e3
    for name, later in (("task while loading, ms", False), ("task while scrolling, ms", True)):
        lasted = [length for start, length in notes["tasks"] if (start >= until) == later]
        found[name] = float(max(lasted, default=0))  # one of less than 50 ms is not told
    return found


def row(browser: Any, home: str, name: str, runs: int = RUNS) -> dict[str, object]:
    """Return the medians of several visits of a page, beside what is allowed."""
    visits = [visit(browser, f"{home}/{name}.html") for _ in range(runs)]
    medians: dict[str, object] = {"page": name.rpartition("/")[2]}
    for measure in [*LIMITS, "loop, ms"]:
        values = [each[measure] for each in visits if each[measure] is not None]
        medians[measure] = statistics.median(values) if values else None
    medians["load"] = os.getloadavg()[0]
    plain = not visits[0]["figures"]
    return compare(medians, (LIMITS | {"MB": PLAIN_MB} if plain else LIMITS).get)


def pages() -> list[str]:
    """Name what is measured: every road in the order of the book, and two plain pages."""
    from book.tools.roads import ROADS

    return [*(f"chapters/{name}" for name in sorted(ROADS)), "book/notation", "book/preface"]


def run(
    names: Sequence[str] | None = None, site: Path = SITE, runs: int = RUNS
) -> dict[str, object]:
    """Measure pages of the built book.

    Args:
        names: which, without suffix; by default `pages`.
        site: the folder of the built book.
        runs: how often each is visited.

    Returns:
        The setting, the machine, its load, and one row for each page.
    """
    if lacks := missing(site):
        raise SystemExit(f"phone: {lacks}")
    setting = {"screen": [WIDTH, HEIGHT], "times slower": SLOWER, "Mbit/s": 1.6, "delay ms": DELAY}
    setting |= {"runs": runs, "load before": os.getloadavg()}
    with served(site) as home, launched() as browser:
        setting["browser"] = browser.version
        rows = [row(browser, home, name, runs) for name in names or pages()]
    setting["load after"] = os.getloadavg()
    return {"setting": setting, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table."""
    setting = results["setting"]
    before, after = (setting[f"load {when}"][0] for when in ("before", "after"))
    title = (
        f"A phone, {setting['times slower']} times slower, medians of {setting['runs']}; Chromium "
        f"{setting['browser']}; load {before:.1f} before, {after:.1f} after"
    )
    columns = [("page", "page", "<26")]
    columns += [(name, name, f">{max(12, len(name) + 1)}") for name in LIMITS]
    columns += [("loop, ms", "loop, ms", ">9"), ("load", "load", ">6")]
    return write(title, results["rows"], columns)
