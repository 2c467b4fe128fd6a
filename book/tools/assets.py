"""Files of the built site that come from packages: icons, a thinner theme.

Nothing here is committed. What a page does not use is not shipped: of Font Awesome only the icons
that stand in a page, of the theme's style sheets only rules that can match something.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

from tfbook.teaching import explorables

UNUSED = (
    "**/*.map",
    "**/*.LICENSE.txt",
    "scripts/fontawesome.js",
    "vendor",
    "design-tabs.js",
    "locales",
    "sbt-webpack-macros.html",
    "webpack-macros.html",
    "_sphinx_javascript_frameworks_compat.js",
    "jquery*.js",
    "underscore*.js",
    "images/logo_deepnote.svg",
    "images/logo_jupyterhub.svg",
    "images/logo_jupyterlite.svg",
    "plus.png",
    "minus.png",
    "file.png",
    "screenshot.png",
)
# Icons that the theme's style sheet draws with a glyph of its font.
TITLE_ICONS = {
    "": "bell",
    "note": "circle-info",
    "important": "circle-exclamation",
    "attention": "circle-exclamation",
    "warning": "triangle-exclamation",
    "caution": "triangle-exclamation",
    "danger": "triangle-exclamation",
    "error": "circle-xmark",
    "hint": "lightbulb",
    "tip": "lightbulb",
    "seealso": "share",
}
ICON_CLASS = re.compile(r"\bfa[srb]?\s+fa-([a-z0-9-]+)|\bfa-(?:solid|regular)\s+fa-([a-z0-9-]+)")
GLYPH_RULE = re.compile(r"\s*\.(?:fa|fas|far|fab|fa-[\w-]+)(?::[\w:-]+)?\s*")
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
ALWAYS = frozenset("show showing hide active collapsed collapsing fade open scrolled".split())


def package_folder(name: str) -> Path:
    """Return the folder of an installed package, whose name need not be an identifier."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the book needs the package {name}: pip install -e '.[book]'")
    return Path(found.origin).parent


def wrap_modules(target: Path) -> None:
    """Write each explorable as a classic script, which loads over file:// too, and their style.

    The script stores the module's text; the page's host makes a module of it through a blob.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in explorables.NAMES:
        (target / f"{name}.js").write_text(wrapped(name), encoding="utf-8")
    (target / "explorables.css").write_text(explorables.style_source(), encoding="utf-8")


def wrapped(name: str) -> str:
    """Return the script that stores the module of an explorable."""
    text = json.dumps(explorables.module_source(name), ensure_ascii=False)
    return f'(window.tfbookModules ||= {{}})["{name}"] = {text};\n'


def icon_style(pages: Iterable[str]) -> str:
    """Return a style sheet that draws every icon named in the pages as a mask.

    The outlines are read from the theme's own copy of Font Awesome Free (icons CC BY 4.0).

    Raises:
        KeyError: a page names an icon that Font Awesome does not have.
    """
    used = {a or b for page in pages for a, b in ICON_CLASS.findall(page)} - {"lg"}
    library = _icons()
    masks = [f".fa-{name}{{--icon:{_mask(library[name])}}}" for name in sorted(used)]
    titles = [
        f".admonition{'.' * bool(kind)}{kind}>.admonition-title"
        f"{{--icon:{_mask(library[TITLE_ICONS[kind]])}}}"
        for kind in TITLE_ICONS
    ]
    shape = "background:currentColor;-webkit-mask:var(--icon) center/contain no-repeat;"
    shape += "mask:var(--icon) center/contain no-repeat"
    drawn = ".fa-solid,.fa-regular,.fas,.far"
    title = ".admonition>p.admonition-title::after"
    return "\n".join(
        [
            "/* Icons: Font Awesome Free, https://fontawesome.com/license/free, CC BY 4.0. */",
            f"{drawn}{{display:inline-block;width:1em;height:1em;vertical-align:-.125em;{shape}}}",
            f"{title}{{content:'';{shape}}}",
            ".fa-lg{font-size:1.1em}",
            f"@media(forced-colors:active){{{drawn},{title}{{background:CanvasText}}}}",
            *masks,
            *titles,
            "",
        ]
    )


def _icons() -> dict[str, tuple[int, int, str]]:
    """Read name → (width, height, outline) from the theme's fontawesome.js; solid ones win."""
    theme = package_folder("pydata_sphinx_theme") / "theme" / "pydata_sphinx_theme"
    text = (theme / "static" / "scripts" / "fontawesome.js").read_text(encoding="utf-8")
    entry = r'"?([a-z0-9][a-z0-9-]*)"?:\[(\d+),(\d+),\[([^\]]*)\],"([0-9a-f]+)","([^"]+)"\]'
    found: dict[str, tuple[int, int, str]] = {}
    # Brands, regular and solid stand in this order, so a later entry replaces an earlier one.
    for name, width, height, aliases, _, outline in re.findall(entry, text):
        for known in (name, *re.findall(r'"([a-z0-9-]+)"', aliases)):
            found[known] = (int(width), int(height), outline)
    return found


def _mask(icon: tuple[int, int, str]) -> str:
    width, height, outline = icon
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'>"
        f"<path d='{outline}'/></svg>"
    )
    encoded = quote(svg, safe=" ='/:")
    return f'url("data:image/svg+xml,{encoded}")'


def thin(css: str, words: set[str]) -> str:
    """Drop rules that match nothing: glyphs of the icon font, classes and ids nobody names.

    `words` are all words of the pages and scripts, so a class that a script sets is kept.
    """
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    css = re.sub(r"@keyframes fa-[\w-]+\{(?:[^{}]*\{[^{}]*\})*\}", "", css)
    css = RULE.sub(_keeper(words | ALWAYS), css)
    while (thinner := re.sub(r"@(?:media|supports)[^{};]*\{\s*\}", "", css)) != css:
        css = thinner
    return css


def _keeper(words: set[str]) -> Callable[[re.Match], str]:
    def alive(selector: str) -> bool:
        if GLYPH_RULE.fullmatch(selector):
            return False
        # What stands in :not(...) need not exist; in :is(...) one of several has to.
        plain = re.sub(r":(?:not|is|where|has)\((?:[^()]|\([^()]*\))*\)", "", selector)
        plain = re.sub(r"\[[^\]]*\]", "", plain)
        names = re.findall(r"[.#](-?[A-Za-z_][\w-]*(?:\\.[\w-]*)*)", plain)
        return all(name.replace("\\", "") in words for name in names)

    def keep(rule: re.Match) -> str:
        selectors, body = rule[1], rule[2]
        if "@font-face" in selectors:
            return "" if "Awesome" in body else rule[0]
        if "@" in selectors or re.fullmatch(r"[\s\d.%,]*|\s*(?:from|to)\s*", selectors):
            return rule[0]
        living = [s for s in split(selectors) if alive(s)]
        return f"{','.join(living)}{{{body}}}" if living else ""

    return keep


def split(selectors: str) -> list[str]:
    """Split a list of selectors at its commas, not at those inside of brackets."""
    parts, depth, start = [], 0, 0
    for at, mark in enumerate(selectors):
        depth += (mark in "([") - (mark in ")]")
        if mark == "," and depth == 0:
            parts.append(selectors[start:at])
            start = at + 1
    return [*parts, selectors[start:]]


def trim(static: Path, pages: list[str]) -> None:
    """Make the icons, thin the style sheets and delete what no page asks for."""
    (static / "icons.css").write_text(icon_style(pages), encoding="utf-8")
    for pattern in UNUSED:
        for path in static.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    scripts = [path.read_text(encoding="utf-8") for path in static.rglob("*.js")]
    words = {word for text in (*pages, *scripts) for word in re.findall(r"[\w-]+", text)}
    for sheet in ("styles/pydata-sphinx-theme.css", "styles/sphinx-book-theme.css"):
        path = static / sheet
        path.write_text(thin(path.read_text(encoding="utf-8"), words), encoding="utf-8")
    for path in static.glob("*sphinx-design*.css"):
        path.write_text(thin(path.read_text(encoding="utf-8"), words), encoding="utf-8")
