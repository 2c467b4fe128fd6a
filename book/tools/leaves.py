"""Leaves: the built pages as they stand on paper, for the PDF (`paper`) and the EPUB (`epub`).

A browser opens each page, lets its figures draw, and gives the copy that `assets/js/paper.js` makes
for printing. What is kept beside it is a picture of each figure, for readers that run no script.

    python -m book.tools.leaves     reads _build/html, writes _build/leaves
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
LEAVES = ROOT / "_build" / "leaves"
NAME = "executable-transformer"  # of the files
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Of use on a screen only: pages of links, models that run in the page, the reference of the code.
ON_SCREEN = frozenset(
    f"book/{name}"
    for name in ("welcome", "live_models", "exercises", "figures", "claims", "topics")
)
WIDTH = 635  # px: 21 cm without two margins of 2.1 cm
PATIENCE = 120_000  # ms
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND"]
LIVE = "live_"  # models that are loaded when the reader asks for them show no picture before

WAKE = """(which) => {
  for (const each of document.querySelectorAll(`${which}:not([data-called])`))
    each.dispatchEvent(new Event('tfbook-wake', { bubbles: true }));
  return !document.querySelector(`${which}:not([data-alive])`);
}"""
LAY = "(prefix) => window.tfbookPaper.lay(prefix)"
TAKE = "() => new XMLSerializer().serializeToString(document.querySelector('article.bd-article'))"
# A column, also for what measures itself.
COLUMN = "body { width: %dpx !important } .bd-main { padding: 0 !important }"
CARD = "> div:not(.tfx-text)"  # of a figure


class Entry(NamedTuple):
    """A page of the book: its name, the part it stands in, and how deep below it."""

    name: str
    part: str
    depth: int

    @property
    def key(self) -> str:
        """What the ids of the page begin with."""
        return self.name.replace("/", "-")


def entries(toc: Path = ROOT / "_toc.yml") -> list[Entry]:
    """Return the pages that are printed, in the order of `_toc.yml`."""
    read = yaml.safe_load(toc.read_text(encoding="utf-8"))
    found = []
    for part in read["parts"]:
        for chapter in part["chapters"]:
            found += _below(chapter, part["caption"], 1)
    return [each for each in found if each.name not in ON_SCREEN and "/api/" not in each.name]


def _below(row: dict, part: str, depth: int) -> Iterator[Entry]:
    yield Entry(row["file"], part, depth)
    for section in row.get("sections", ()):
        yield from _below(section, part, depth + 1)


def find_browser() -> str:
    """Return the path of Chromium or Chrome; `BROWSER_PATH` names another one."""
    named = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if named is None:
        raise SystemExit("Printing the book needs Chromium (Debian: apt-get install chromium).")
    return named


def opened(browser: Any, page: Path, width: int, scale: float) -> Any:
    """Open a built page as it is printed, in a column of a width."""
    view = browser.new_page(viewport={"width": width, "height": 1000}, device_scale_factor=scale)
    view.set_default_timeout(PATIENCE)
    view.emulate_media(media="print", color_scheme="light", reduced_motion="reduce")
    view.goto(page.as_uri())
    view.add_style_tag(content=COLUMN % width)
    return view


def lay(view: Any, prefix: str = "", which: str = ".tfbook-explorable") -> None:
    """Let figures of a page draw, and put the copy for printing in the place of the article."""
    view.wait_for_function(WAKE, arg=which)
    for each in view.locator(f".tfbook-explorable[data-module^={LIVE}]").all():
        each.locator(f":scope {CARD}").evaluate_all("(cards) => cards.forEach((c) => c.remove())")
    view.evaluate(LAY, prefix)


def take(browser: Any, page: str, prefix: str, site: Path, pictures: Path) -> str:
    """Return the leaf of a built page as XML, and leave a picture of each of its figures."""
    view = opened(browser, site / f"{page}.html", WIDTH, 2)
    lay(view, prefix)
    for at, card in enumerate(view.locator(f".tfbook-still {CARD}").all(), 1):
        name = f"{prefix}figure-{at}.png"
        card.evaluate("(card, name) => card.parentElement.dataset.picture = name", name)
        card.screenshot(path=pictures / name, animations="disabled")
    leaf = view.evaluate(TAKE)
    view.close()
    return leaf


COVER = """<!DOCTYPE html><html lang="en"><style>
body {{ margin: 0; height: 100vh; display: grid; place-content: center; justify-items: center;
  gap: 60px; font: 700 64px/1.15 "Liberation Sans", Arial, sans-serif; color: #121820;
  text-align: center; background: #fff }}
img {{ width: 260px }} p {{ font-size: 26px; font-weight: 400; color: #55606d; margin: 0 }}
</style><img src="{logo}" alt="">The Executable<br>Transformer
<p>A textbook on attention and Transformers</p></html>"""


def cover(browser: Any, site: Path, target: Path) -> None:
    """Draw the cover."""
    view = browser.new_page(viewport={"width": 800, "height": 1200}, device_scale_factor=1.5)
    source = target.with_suffix(".html")
    logo = (site / "_static" / "logo-light.svg").as_uri()
    source.write_text(COVER.format(logo=logo), encoding="utf-8")
    view.goto(source.as_uri())
    view.screenshot(path=target)
    view.close()


def write(browser: Any, site: Path, out: Path, names: list[str] | None = None) -> None:
    """Write the leaves of all printed pages, or of those that are named."""
    shutil.rmtree(out, ignore_errors=True)
    pictures = out / "figures"
    pictures.mkdir(parents=True)
    wanted = [each for each in entries() if names is None or each.name in names]
    cover(browser, site, out / "cover.png")
    for each in wanted:
        leaf = take(browser, each.name, f"{each.key}--", site, pictures)
        (out / f"{each.key}.xml").write_text(leaf, encoding="utf-8")
    order = [each._asdict() for each in wanted]
    (out / "order.json").write_text(json.dumps(order, indent=1), encoding="utf-8")


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """Start the browser that is there."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        yield browser
        browser.close()


def main(names: list[str] | None = None) -> None:
    """Write the leaves of the built book."""
    with launched() as browser:
        write(browser, SITE, LEAVES, names)


if __name__ == "__main__":
    main(names=sys.argv[1:] or None)
