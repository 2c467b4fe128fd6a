"""Stills: what each figure shows at first, as pictures for readers whose browser runs no scripts.

    python -m book.tools.stills [05_architecture ...]

draws the figures of the built pages, or of those that are named, in light and in dark colours into
`book/stills/PAGE/MODULE-MARK-THEME.webp`, and puts the pictures into these pages. What is there is
not drawn again, and what no figure of the page shows any more is deleted.

The mark is a hash of what decides how a figure looks. Where a picture of that mark is missing, as
after an edit, the page shows the text of the figure alone; `tests/site/test_conditions.py` names
such figures.

No picture have questions, whose text is all there is, and what shows nothing before the reader asks
for it: models and numbers that are loaded then, and a model that is still to be trained.
"""

from __future__ import annotations

import functools
import hashlib
import html
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import imagesize

from book.tools import assets, bundle, leaves
from book.tools.roads import QUESTIONS
from tfbook.teaching import explorables

FOLDER = leaves.ROOT / "book" / "stills"
ASSETS = Path(__file__).resolve().parents[1] / "assets"
SHIPPED = "_static/stills"
THEMES = ("light", "dark")
WIDTH = 700  # CSS px
SCALES = (1.5, 1.25, 1.0)  # device px for each, the first that makes no larger file than this
LARGEST = 25_000  # bytes
APART = 48  # of 255: colours that are nearer become one, but those of grounds
GROUND, GROUNDS_APART = 0.002, 10  # of all pixels
COMMAND = "python -m book.tools.stills"

FIGURE = re.compile(
    r'<div class="tfbook-explorable" data-module="(?P<module>\w+)">\s*'
    r'<script type="application/json">(?P<payload>[^<]*)</script>\s*'
    r"(?P<still><noscript>.*?</noscript>\s*)?"
    r'(?P<text><div class="tfx-text"[^>]*>\s*<p>(?P<title>.*?)</p>)',
    re.DOTALL,
)
# The picture is a part of the page, and its title stands below it.
STYLE = """
.tfbook-still > div:not(.tfx-text) { zoom: 1 !important; }
.tfbook-still .tfx-card { border: 0; border-radius: 0; padding: 0.3rem 1.1rem; }
.tfbook-still :is(.tfx-title, .tfx-ask) { display: none; }
"""
MARKED = "[data-still]"
MARK = """(names) => {
  for (const each of document.querySelectorAll('.tfbook-explorable')) {
    const name = names[each.dataset.module + each.querySelector('script').textContent];
    if (name) each.dataset.still = name;
  }
}"""
TURN = "(theme) => { document.documentElement.dataset.theme = theme; }"
OUR_COLOURS = re.compile(r"--pst-color-(?:text-base|background): [^;]+;")


# What is shown ----------------------------------------------------------------------------------


class Figure(NamedTuple):
    """A figure of a page: its module, data and state as they stand there, its title, its name."""

    module: str
    payload: str
    title: str
    name: str


def figures(page: str, text: str) -> Iterator[tuple[Figure, re.Match]]:
    """Yield the figures of a page that have a picture, and where they stand in its text."""
    for found in FIGURE.finditer(text):
        module, payload = found["module"], found["payload"]
        folded = text.count("<noscript>", 0, found.start()) - text.count(
            "</noscript>", 0, found.start()
        )
        if folded or module in QUESTIONS or module.startswith(leaves.LIVE):
            continue
        if json.loads(payload).get("asked") is False:
            continue
        title = html.unescape(re.sub(r"<[^>]*>", "", found["title"])).strip()
        name = f"{page.rpartition('/')[2]}/{module}-{mark(module, payload)}"
        yield Figure(module, payload, title, name), found


def mark(module: str, payload: str) -> str:
    """Return a hash of what decides how a figure looks at first.

    Its data and state; its module, in which stands what it asks; styles and colours; what makes a
    still of it. Nothing of the machine, and no order of files or keys.
    """
    parts = [json.dumps(json.loads(payload), sort_keys=True), explorables.module_source(module)]
    return hashlib.sha256("\0".join([*parts, *_common()]).encode()).hexdigest()[:10]


@functools.cache
def _common() -> tuple[str, ...]:
    numbers = WIDTH, SCALES, LARGEST, APART, GROUND, GROUNDS_APART
    colours = OUR_COLOURS.findall(_asset("book.css"))
    return explorables.style_source(), _asset("js/paper.js"), *colours, STYLE, repr(numbers)


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def files(figure: Figure) -> tuple[str, ...]:
    """Return the files of a figure, light and dark, below the folder of stills."""
    return tuple(f"{figure.name}-{theme}.webp" for theme in THEMES)


def there(figure: Figure, folder: Path) -> bool:
    """Tell whether a figure has its pictures."""
    return all((folder / file).is_file() for file in files(figure))


# The pages --------------------------------------------------------------------------------------


def show(page: str, text: str, folder: Path) -> str:
    """Put the pictures that are there into a page, each before the text of its figure."""
    parts, last = [], 0
    for figure, found in figures(page, text):
        parts.append(text[last : found.end("payload")] + "</script>\n")
        if there(figure, folder):
            parts.append(element(figure, folder, "../" * page.count("/")) + "\n")
        last = found.start("text")
    return "".join(parts) + text[last:]


def element(figure: Figure, folder: Path, root: str) -> str:
    """Return a picture that only a browser without scripts sees."""
    light, dark = files(figure)
    width, height = imagesize.get(str(folder / light))
    size = f'width="{WIDTH}" height="{round(height * WIDTH / width)}"'
    where = f"{root}{SHIPPED}/"
    return (
        '<noscript><picture class="tfbook-drawn">'
        f'<source media="(prefers-color-scheme: dark)" srcset="{where}{dark}">'
        f'<img class="dark-light" src="{where}{light}" alt="{html.escape(figure.title)}" {size} '
        'loading="lazy" decoding="async"></picture></noscript>'
    )


def ship(folder: Path, out: Path, written: Iterable[str]) -> None:
    """Copy the pictures that pages name into the built site, and no others."""
    shipped = re.compile(rf"{SHIPPED}/([\w/-]+\.webp)")
    named = {name for text in written for name in shipped.findall(text)}
    shutil.rmtree(out / SHIPPED, ignore_errors=True)
    for name in sorted(named):
        if (folder / name).is_file():
            target = out / SHIPPED / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target)


def pages(site: Path) -> dict[str, str]:
    """Return the built pages by their names."""
    found = [path for part in ("book", "chapters") for path in (site / part).glob("*.html")]
    return {
        path.relative_to(site).with_suffix("").as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(found)
    }


def missing(site: Path, folder: Path = FOLDER) -> list[tuple[str, str]]:
    """Return page and module of figures whose picture is missing or shows what was there before."""
    return [
        (page.rpartition("/")[2], figure.module)
        for page, text in pages(site).items()
        for figure, _ in figures(page, text)
        if not there(figure, folder)
    ]


def left_over(site: Path, folder: Path = FOLDER) -> list[str]:
    """Return the pictures that no figure shows any more."""
    used = {
        file
        for page, text in pages(site).items()
        for figure, _ in figures(page, text)
        for file in files(figure)
    }
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.webp")}
    return sorted(names - used)


# The drawing ------------------------------------------------------------------------------------


def draw(browser: Any, site: Path, folder: Path, page: str, text: str) -> int:
    """Draw the figures of a built page that have no picture, and return how many they were."""
    wanted = [figure for figure, _ in figures(page, text) if not there(figure, folder)]
    left = {file: figure for figure in wanted for file in files(figure)}
    for scale in SCALES:
        if not left:
            break
        drawn = dict(photographs(browser, site / f"{page}.html", [*left.values()], scale))
        for file in left:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(packed(drawn[file]))
        left = {f: left[f] for f in left if (folder / f).stat().st_size > LARGEST}
    return len(wanted)


def photographs(
    browser: Any, page: Path, shown: list[Figure], scale: float
) -> Iterator[tuple[str, bytes]]:
    """Yield file and picture of figures of a page."""
    view = leaves.opened(browser, page, WIDTH, scale)
    view.add_style_tag(content=STYLE)
    view.evaluate(MARK, {figure.module + figure.payload: figure.name for figure in shown})
    leaves.lay(view, which=MARKED)
    for theme in THEMES:
        view.evaluate(TURN, theme)
        for card in view.locator(f"{MARKED} {leaves.CARD}").all():
            name = card.evaluate("(card) => card.parentElement.dataset.still")
            yield f"{name}-{theme}.webp", card.screenshot(animations="disabled")
    view.close()


def packed(picture: bytes) -> bytes:
    """Return a picture of text and lines in a small file."""
    from PIL import Image

    file = io.BytesIO()
    few = few_colours(Image.open(io.BytesIO(picture)).convert("RGB"))
    few.save(file, format="WEBP", lossless=True, quality=75, method=4)
    return file.getvalue()


def few_colours(picture: Any) -> Any:
    """Return a picture without the shades in between, from the edges of letters and lines.

    The most frequent colours stay; each of the others becomes the nearest that stays.
    """
    import numpy as np
    from PIL import Image

    pixels = np.asarray(picture).astype(np.int32)
    whole = pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]
    found, where, count = np.unique(whole, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=-1)
    away = np.full(len(found), 3 * 256**2)  # squared, from the nearest that stays
    kept = np.zeros(len(found), dtype=int)
    for k in np.argsort(-count, kind="stable"):
        apart = GROUNDS_APART if count[k] > GROUND * whole.size else APART
        if away[k] >= apart**2:
            distance = ((colours - colours[k]) ** 2).sum(axis=-1)
            kept[distance < away] = k
            away = np.minimum(away, distance)
    shades = colours[kept][where.reshape(-1)].reshape(pixels.shape)
    return Image.fromarray(shades.astype(np.uint8))


def check_age(site: Path) -> None:
    """Refuse pages whose scripts and styles are not those of which the marks are made."""
    static = site / "_static"
    styles = (static / "style.css").read_text(encoding="utf-8")
    scripts = (static / "script.js").read_text(encoding="utf-8")
    same = _asset("js/paper.js") in scripts and all(
        bundle.themed(style)[0] in styles
        for style in (explorables.style_source(), _asset("book.css"))
    )
    for name in explorables.NAMES:
        script = static / "explorables" / f"{name}.js"
        same = same and script.read_text(encoding="utf-8") == assets.wrapped(name)
    if not same:
        raise SystemExit("Scripts or styles have changed since the pages were built: make book")


def main(names: list[str], site: Path) -> None:
    """Draw what is missing, delete what is left over, and show all of it in the built pages."""
    check_age(site)
    written = pages(site)
    chosen = {
        page: text
        for page, text in written.items()
        if not names or page.rpartition("/")[2] in names
    }
    if unknown := set(names) - {page.rpartition("/")[2] for page in chosen}:
        raise SystemExit(f"No built page is called {', '.join(sorted(unknown))}.")
    with leaves.launched() as browser:
        drawn = sum(draw(browser, site, FOLDER, page, text) for page, text in chosen.items())
    for name in left_over(site):
        if not names or name.partition("/")[0] in names:
            (FOLDER / name).unlink()
    for page, text in chosen.items():
        written[page] = show(page, text, FOLDER)
        if written[page] != text:
            (site / f"{page}.html").write_text(written[page], encoding="utf-8")
    ship(FOLDER, site, written.values())
    print(f"{drawn} figures drawn")


if __name__ == "__main__":
    main(sys.argv[1:], Path(os.environ.get("TFBOOK_SITE", leaves.SITE)).resolve())
