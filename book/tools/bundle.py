"""One style sheet and one script for all pages, and no script within a page.

Sphinx and its extensions bring a dozen sheets and a dozen scripts, which a phone asks for one by
one. They become `_static/style.css` and `_static/script.js`; what has to run before the page is
drawn, the choice of colours, is `_static/early.js`. A page is then content with a policy that
forbids scripts within it.

Without scripts nothing chooses between light and dark, so rules for either theme hold for a page
that has not chosen too, by the system's wish.
"""

from __future__ import annotations

import re
from pathlib import Path

from book.tools.assets import split

SHEET = re.compile(r'\s*<link\b(?=[^>]*rel="stylesheet")[^>]*href="([^"]+)"[^>]*>')
SCRIPT = re.compile(r"\s*<script\b([^>]*)>(.*?)</script>", re.DOTALL)
SOURCE = re.compile(r'\bsrc="([^"]+)"')
PAGE_NAME = re.compile(r"DOCUMENTATION_OPTIONS\.pagename = '([^']*)';")
LIGHT, DARK = (re.compile(rf'(?:html)?\[data-theme="?{theme}"?\]') for theme in ("light", "dark"))
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
UNCHOSEN = 'html[data-theme="auto"]'
# Of the search page only, which takes the book's own search instead of Sphinx's.
ALONE = {
    "searchtools.js": "search-index.js",
    "language_data.js": "language_data.js",
    "searchindex.js": "js/search.js",
}
OURS = ("style.css", "early.js", "script.js")
FOCUS = "form.bd-search input"  # of the search page, which `site.js` does
PRINT = ' onclick="window.print()"'


def plain_name(address: str) -> str:
    """Return the path of a file below `_static`, from an address in a page."""
    return re.sub(r"\?.*", "", address).split("_static/", 1)[-1]


def bundle(out: Path, pages: list[Path]) -> None:
    """Join style sheets and scripts of the pages of a built book, and rewrite the pages."""
    static, texts = out / "_static", {page: page.read_text(encoding="utf-8") for page in pages}
    sheets: dict[str, None] = {}
    scripts: dict[str, None] = {}  # a file below _static, or the text of a script in the page
    early: dict[str, None] = {}
    for text in texts.values():
        names = map(plain_name, SHEET.findall(text))
        sheets.update(dict.fromkeys(name for name in names if name not in OURS))
        for kind, address, body in found_scripts(text):
            if kind != "alone":
                (early if kind == "early" else scripts).setdefault(address or body)
    if not sheets:  # no page was written anew
        return
    styled = [themed(_sheet(static, name)) for name in _last(sheets)]
    _write(static / "style.css", "\n".join([*(light for light, _ in styled), _in_the_dark(styled)]))
    _write(static / "early.js", "\n".join(early) + "\n")
    joined = "\n;\n".join(_script(static, each) for each in sorted(scripts, key=_turn))
    _write(static / "script.js", f"{joined}\n")
    for page, text in texts.items():
        _write(page, rewritten(text))
    used = [*sheets, *(each for each in scripts if "\n" not in each), "searchtools.js"]
    for path in [out / "searchindex.js", *(static / name for name in used)]:
        if path.is_file() and path.suffix in (".js", ".css"):
            path.unlink()


def found_scripts(text: str) -> list[tuple[str, str, str]]:
    """Return kind, file and text of the scripts of a page; data are no script."""
    found = []
    for attributes, body in SCRIPT.findall(text):
        if "json" in attributes:
            continue
        source = SOURCE.search(attributes)
        name = plain_name(source[1]) if source else ""
        body = PAGE_NAME.sub("", body).strip()
        if name in OURS:
            continue
        if name.endswith(tuple(ALONE)) or FOCUS in body:
            found.append(("alone", name, body))
        elif "localStorage" in body:
            found.append(("early", "", body))
        elif name or body:
            found.append(("script", name, body))
    return found


def rewritten(text: str) -> str:
    """Return a page that asks for the joined files."""
    root = re.search(r'data-content_root="([^"]*)"', text)
    if root is None:
        return text
    name = PAGE_NAME.search(text)

    def kept(match: re.Match) -> str:
        source = SOURCE.search(match[1])
        if "json" in match[1]:
            return match[0]
        name = plain_name(source[1]).rpartition("/")[2] if source else ""
        if name in ALONE:
            return f'\n<script defer src="{root[1]}_static/{ALONE[name]}"></script>'
        return ""

    text = SCRIPT.sub(kept, SHEET.sub("", text)).replace(PRINT, " data-print")
    if name and "data-page=" not in text:
        text = text.replace("data-content_root=", f'data-page="{name[1]}" data-content_root=', 1)
    static = f"{root[1]}_static"
    head = (
        f'<script src="{static}/early.js"></script>\n'
        f'<link rel="stylesheet" href="{static}/style.css">\n'
        f'<script defer src="{static}/script.js"></script>\n'
    )
    at = text.index("</title>") + len("</title>")
    return f"{text[:at]}\n{head}{text[at:]}"


def themed(css: str) -> tuple[str, str]:
    """Return a sheet whose light rules hold without a choice too, and the dark ones."""
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    both = f':is(html[data-theme="light"],{UNCHOSEN})'
    parts, dark, depth, last = [], [], 0, 0
    for rule in RULE.finditer(css):
        between = css[last : rule.start()]
        depth += between.count("{") - between.count("}")
        last = rule.end()
        selectors, body = rule[1], rule[2]
        chosen = [each for each in split(selectors) if DARK.search(each)]
        if chosen and depth == 0:
            dark.append(f"{DARK.sub(UNCHOSEN, ','.join(chosen)).strip()}{{{body}}}")
        parts.append(f"{between}{LIGHT.sub(both, selectors)}{{{body}}}")
    return "".join(parts) + css[last:], "\n".join(dark)


def _in_the_dark(styled: list[tuple[str, str]]) -> str:
    dark = "\n".join(rules for _, rules in styled if rules)
    return f"@media (prefers-color-scheme:dark){{\n{dark}\n}}\n"


def _last(sheets: dict[str, None]) -> list[str]:
    """Return the sheets in their order, the book's own at the end."""
    own = ("explorables/explorables.css", "icons.css", "book.css")
    return [name for name in sheets if name not in own] + [name for name in own if name in sheets]


def _sheet(static: Path, name: str) -> str:
    path = static / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


FILE = re.compile(r"[\w./-]+\.js")
MEASURES = re.compile(
    r',"complete"===document\.readyState\?(\w)\(\):window\.addEventListener\("load",\1\)'
    r"(?=\}\)\(\);?\s*(//.*)?\s*$)"
)


def _turn(each: str) -> int:
    """Return when a script has its turn: a file may use at once what pages have set for it.

    One script for all runs when the page has been read, so no file waits for the page any more.
    """
    if each == "documentation_options.js":
        return 0
    return 2 if FILE.fullmatch(each) else 1


def _script(static: Path, each: str) -> str:
    if not FILE.fullmatch(each):
        return each
    path = static / each
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return lightened(text) if each.startswith("scripts/") else text


def lightened(text: str) -> str:
    """Return a script of the theme in a task of its own, without what measures every box at once.

    The theme asks each box of code how wide it is, when a page has loaded and after each change,
    which lays out the whole page; `site.js` does it box by box.
    """
    return f"setTimeout(() => {{\n{MEASURES.sub('', text)}\n}});"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
