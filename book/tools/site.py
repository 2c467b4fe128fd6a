"""The Sphinx extension of the book: what turns notebooks into pages that need no network.

It reads the notebooks' Markdown (`conventions`), sets formulas (`formulas`), takes alternative text
and size of pictures from them and refuses pictures without, numbers chapters as their files are
numbered, folds what is to be predicted (`predictions`), writes the indexes (`pages`), brings the
files that come from packages (`assets`), and joins styles and scripts (`bundle`).
"""

from __future__ import annotations

import hashlib
import math
import re
from binascii import a2b_base64
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import imagesize
import nbformat
import pybtex.plugin
from docutils import nodes
from pybtex.style.formatting.unsrt import Style as PlainStyle
from pybtex.style.labels import BaseLabelStyle
from sphinx.application import Sphinx
from sphinx.util import logging

import tfbook
from book.tools import (
    assets,
    bundle,
    code_links,
    conventions,
    corrections,
    folds,
    formulas,
    lists,
    live,
    mathfont,
    pages,
    performance,
    predictions,
    rooms,
    searching,
    stills,
    targets,
)
from tfbook.teaching import explorables

LOG = logging.getLogger(__name__)
CHAPTER = re.compile(r"chapters/(\d\d)_")
MIN_ALT = 10
LEGIBLE = 10  # px, of the smallest text of a picture on a phone
SMALLEST = 10.0  # points, of the text that the functions of `tfbook.teaching.plotting` write
SIZE = re.compile(r"(?:font|label)size=(\d+(?:\.\d+)?)")
PLACEHOLDER = re.compile(r"(the |a |an )?(plot|figure|image|picture|chart|graph|output)s?[\s\d.]*")


# Configuration ----------------------------------------------------------------------------------


def settle_repository(app: Sphinx, config: Any) -> None:
    """Show the buttons that need the repository's address only when `_config.yml` names it."""
    options = config.html_theme_options
    known = bool(options.get("repository_url"))
    options["use_repository_button"] = options["use_issues_button"] = known
    if not known:
        options["launch_buttons"] = {}


def name_version(app: Sphinx, config: Any) -> None:
    """Give the book the version of its package."""
    config.version = config.release = tfbook.__version__


def outdated_pages(app: Sphinx, env: Any, added: set, changed: set, removed: set) -> set[str]:
    """Have pages that list what the chapters hold read again at every build."""
    return {page for page in getattr(env, pages.INDEX_PAGES, ()) if page in env.all_docs}


# Pictures ---------------------------------------------------------------------------------------


def describe_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """Give each picture of a notebook what its output's metadata carries: text, widths, kind.

    myst-nb names a picture by the hash of its bytes, which leads back to its output.
    """
    source = Path(app.env.doc2path(app.env.docname))
    known = {}
    if source.suffix == ".ipynb":
        for cell in nbformat.read(source, as_version=4).cells:
            for output in cell.get("outputs", ()):
                if "image/png" in output.get("data", {}):
                    png = a2b_base64(output["data"]["image/png"])
                    marks = output.get("metadata", {}).get("image/png", {})
                    # A picture that was drawn before they were kept: what its code says.
                    sizes = map(float, SIZE.findall(cell.source))
                    marks = {"text": min([SMALLEST, *sizes])} | marks
                    known[hashlib.sha256(png).hexdigest()] = marks
    for picture in doctree.findall(nodes.image):
        marks = known.get(Path(picture["uri"]).stem, {})
        picture["alt"] = picture.get("alt") or marks.get("alt", "")
        if "width" in marks:
            picture["shown_width"] = float(marks["width"])
            in_pixels = marks["text"] * 100 / 72
            picture["least_width"] = picture["shown_width"] * LEGIBLE / in_pixels
        if "kind" in marks:  # a drawing, say, which is no plot
            picture["classes"].append(f"tfbook-{marks['kind']}")
        if weak_alt(picture["alt"]):
            LOG.warning(
                "picture without a text that says what it shows: alt=%r",
                picture["alt"],
                location=picture,
            )


def weak_alt(alt: str) -> bool:
    """Tell whether a text says nothing about its picture."""
    return len(alt.strip()) < MIN_ALT or bool(PLACEHOLDER.fullmatch(alt.strip().lower()))


def visit_picture(self: Any, node: nodes.image) -> None:
    """Write a picture that loads when it comes near, in a box that has its size before."""
    uri = node["uri"]
    attributes = {"alt": node.get("alt", ""), "loading": "lazy", "decoding": "async"}
    if uri in self.builder.images:
        width, height = imagesize.get(str(Path(self.builder.srcdir) / uri))
        if width > 0 and height > 0:
            shown = node.get("shown_width") or _pixels(node.get("width")) or width
            attributes |= {"width": round(shown), "height": round(height * shown / width)}
        uri = f"{self.builder.imgpath}/{quote(self.builder.images[uri])}"
    elif "://" in uri:
        LOG.warning("picture from another site: %s", uri, location=node)
    if "least_width" in node:
        attributes["style"] = f"--tfbook-least: {math.ceil(node['least_width'])}px"
    classes = " ".join(["tfbook-picture", *node.get("classes", ())])
    text = "".join(f' {name}="{escape(str(value))}"' for name, value in attributes.items())
    self.body.append(f'<img class="{classes}" src="{escape(uri)}"{text}>')


def _pixels(length: str | None) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:px)?", str(length or ""))
    return float(match[1]) if match else None


def depart_picture(self: Any, node: nodes.image) -> None:
    """Write nothing: a picture has no end tag."""


# Numbers ----------------------------------------------------------------------------------------


def number_chapters(app: Sphinx, env: Any) -> list[str]:
    """Give a chapter the number in its file's name, equations and exercises those in its text.

    Sphinx counts the chapters that are there, so the only one would be the first.
    """
    for name in env.all_docs:
        written = getattr(env, conventions.NUMBERS, {}).get(name, {})
        for numbers in env.toc_fignumbers.get(name, {}).values():
            numbers.update({key: written[key] for key in numbers if key in written})
        match = CHAPTER.match(name)
        sections = env.toc_secnumbers.get(name)
        if not match or not sections:
            continue
        first = int(match[1])
        env.toc_secnumbers[name] = {
            anchor: (first, *number[1:]) if number else number
            for anchor, number in sections.items()
        }
        for titled in (env.titles[name], *env.tocs[name].findall(nodes.reference)):
            if titled.get("secnumber"):
                titled["secnumber"] = (first, *titled["secnumber"][1:])
    return []


# Docstrings -------------------------------------------------------------------------------------


def read_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn docstrings, which are written to be read as text, into what autodoc reads."""
    paragraphs = "\n".join(lines).split("\n\n")
    before = ""
    for at, paragraph in enumerate(paragraphs):
        first = paragraph.split("\n")[0]
        if re.match(r"[a-z_]+: \S", first) and "\n" in paragraph:
            # Arguments without a heading of their own.
            paragraph = "Args:\n    " + paragraph.replace("\n", "\n    ")
        elif first.startswith("    ") and not before.startswith(" ") and not _heading(before):
            paragraph = f"::\n\n{paragraph}"
            paragraphs[at] = before = paragraph
            continue
        before = paragraph
        paragraphs[at] = "".join(
            part if odd else _escaped(part) for odd, part in _alternating(paragraph)
        )
    text = "\n\n".join(paragraphs)
    text = EXPLAINED.sub(_chapter_link(app), text)
    lines[:] = text.split("\n")


EXPLAINED = re.compile(
    r"(?<=Explained in: )chapters/(?P<name>\w+)(?=(?:,\s+section\s+\"(?P<section>[^\"]+)\")?)"
)


def _chapter_link(app: Sphinx) -> Callable[[re.Match], str]:
    def link(match: re.Match) -> str:
        name = f"chapters/{match['name']}"
        if name not in app.env.found_docs:
            return name
        page = targets.page_with(Path(app.srcdir) / name, match["section"] or "")
        return f":doc:`{name} </chapters/{page}>`"

    return link


def shorten_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str | None, str | None]:
    """Name types without the modules they come from, and leave out texts that fill pages."""
    modules = re.compile(r"~?\b(?:[a-z_]\w*\.)+(?=[A-Z])")
    short = LONG_TEXT.sub("'…'", signature) if signature else signature
    return tuple(modules.sub("", part) if part else part for part in (short, returns))


LONG_TEXT = re.compile(r"'(?:[^'\\]|\\.){120,}'")


MARKED = re.compile(
    r"(``[^`]+``|:[\w:]+:`[^`]+`|`[^`\n]+`|\${1,2}[^$]+\${1,2}|\*\*[^*\n]+\*\*|\[[a-z]+\d{4}[a-z]+\])"
)


def _alternating(paragraph: str) -> Iterator[tuple[bool, str]]:
    for at, part in enumerate(MARKED.split(paragraph)):
        if at % 2 and part.startswith("$"):
            part = f":math:`{part.strip('$')}`"
        elif at % 2 and re.fullmatch(r"`[^`]+`", part):
            part = f"`{part}`"
        elif at % 2 and part.startswith("["):
            part = f":cite:t:`{part[1:-1]}`"
        yield bool(at % 2), part


EMPHASIS = re.compile(r"(?<![\w*])(\*[A-Za-z]+(?: [A-Za-z]+){0,5}\*)(?![\w*])")


def _escaped(text: str) -> str:
    """Keep what is no markup from being read as such; words between stars are emphasised."""
    text = "".join(
        part if k % 2 else re.sub(r"(?m)(?<!^)(?<!^ {4})([*|])", r"\\\1", part)
        for k, part in enumerate(EMPHASIS.split(text))
    )
    return re.sub(r"(?<=\w)_(?=\W|$)", r"\_", text)


def _heading(paragraph: str) -> bool:
    return bool(re.search(r"^\s*[A-Z][a-z]+:", paragraph.strip().split("\n")[0]))


# Citations --------------------------------------------------------------------------------------


class AuthorYear(BaseLabelStyle):
    """Labels as the text cites: Vaswani et al., 2017."""

    def format_labels(self, sorted_entries: list) -> Any:
        """Yield a label for each entry; equal ones get a letter."""
        seen: dict[str, int] = {}
        for entry in sorted_entries:
            label = f"{targets.authors(entry)}, {entry.fields['year']}"
            seen[label] = seen.get(label, 0) + 1
            yield label if seen[label] == 1 else f"{label}{chr(96 + seen[label])}"


class BookStyle(PlainStyle):
    """The bibliography's entries, sorted by author, with links for DOI and arXiv."""

    default_sorting_style = "author_year_title"
    default_label_style = AuthorYear


# Pages ------------------------------------------------------------------------------------------


def finish_page(
    app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None
) -> None:
    """Repair what stands in the page."""
    body = joined(plain_code(asking(mend(context.get("body", "")))))
    context["body"] = stills.show(page, body, _stills_of(app))


def _stills_of(app: Sphinx) -> Path:
    return Path(app.srcdir) / "book" / "stills"


def asking(body: str) -> str:
    """Let the text of a figure ask what its card asks, below its title."""
    return stills.FIGURE.sub(
        lambda still: still[0] + explorables.asked_lines(still["module"]), body
    )


BEFORE = re.compile(r'([(\[“‘])(?=<span class="math)')
AFTER = re.compile(r"(?<=</math></span>)(?=[.,;:!?)\]”’])")
JOINER = "\u2060"  # no line ends here


def joined(body: str) -> str:
    """Keep a formula and the brackets and stops around it in one line."""
    return AFTER.sub(JOINER, BEFORE.sub(rf"\1{JOINER}", body))


COMMON = re.compile(r'<span class="(?:n|p|w|esc)">([^<]*)</span>')


def plain_code(body: str) -> str:
    """Leave names, brackets and spaces of code without an element of their own."""
    return COMMON.sub(r"\1", body)


SIGNATURE = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*</em>,?</dd>\n)+)</dl>')


FOLDED_OUTPUT = re.compile(
    r'(<details class="hide below-input">\s*<summary><span class="collapsed">Show the )code'
    r'(</span><span class="expanded">Hide the )code'
)


def mend(body: str) -> str:
    """Repair what the writers of HTML get wrong for readers who do not see the page."""
    # ARIA gave up doc-biblioentry in favour of listitem, which a list may hold.
    body = body.replace('role="doc-biblioentry"', 'role="listitem"')
    # Every exercise of a page has a section of this id, which nothing points to.
    body = re.sub(r'<section id="(?:exercise|solution)-content">', "<section>", body)
    # The head of a column without a name is no head.
    body = re.sub(r'<th class="head">\s*(?:<p>\s*</p>)?\s*</th>', '<td class="head"></td>', body)

    body = re.sub(r"(Solution to)(<a [^>]*>) ", r"\1 \2", body)
    # What folds an output says so.
    body = FOLDED_OUTPUT.sub(r"\1output\2output", body)

    # The sections of a room are read one by one, and each counts its citations from 1.
    seen: set[str] = set()

    def once(match: re.Match) -> str:
        again = match[1] in seen or seen.add(match[1])
        return "" if again else match[0]

    body = re.sub(r' id="(id\d+)"', once, body)

    # Parameters are a list of lines, not of definitions.
    def lines(match: re.Match) -> str:
        items = match[1].replace("<dd>", "<li>").replace("</dd>", "</li>")
        return f'<ul class="sig-params">\n{items}</ul>'

    return SIGNATURE.sub(lines, body)


def finish_site(app: Sphinx, error: Exception | None) -> None:
    """Bring what comes from packages, drop what no page uses, and open at the welcome page."""
    if error or app.builder.name != "html":
        return
    out = Path(app.outdir)
    static = out / "_static"
    assets.wrap_modules(static / "explorables")
    root = app.builder.get_target_uri(app.config.root_doc)
    if app.config.root_doc != "index":
        (out / "index.html").write_text(entrance(root, app.config.html_title), encoding="utf-8")
    files = [path for path in out.rglob("*.html") if static not in path.parents]
    written = [path.read_text(encoding="utf-8") for path in files]
    stills.ship(_stills_of(app), out, written)
    assets.trim(static, written)
    (static / "formulas.css").write_text(mathfont.style(written), encoding="utf-8")
    searching.write(app, static)
    bundle.bundle(out, files)


def entrance(page: str, title: str) -> str:
    """Return a page that leads on to `page` at once."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<title>{escape(title)}</title><meta http-equiv="refresh" content="0; url={page}">'
        '<link rel="icon" href="_static/favicon.svg"></head>'
        f'<body><main><h1>{escape(title)}</h1><p><a href="{page}">Open the book</a></p></main>'
        "</body></html>\n"
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Register everything with Sphinx."""
    pybtex.plugin.register_plugin("pybtex.style.formatting", "book", BookStyle)
    for name in ("plaintext", "docutils"):  # each citation asks; looking them up takes long
        backend = pybtex.plugin.find_plugin("pybtex.backends", name)
        pybtex.plugin.register_plugin("pybtex.backends", name, backend, force=True)
    for name, directive in (pages.DIRECTIVES | lists.DIRECTIVES).items():
        app.add_directive(name, directive)
    for part in (code_links, corrections, folds, formulas, live, searching):
        part.setup(app)
    app.add_node(nodes.image, override=True, html=(visit_picture, depart_picture))
    app.add_node(predictions.Prediction, html=(predictions.visit, predictions.depart))
    app.add_post_transform(predictions.FoldPredictions)
    app.connect("config-inited", settle_repository)
    app.connect("config-inited", name_version)
    app.connect("env-get-outdated", outdated_pages)
    app.connect("source-read", rooms.expand)
    app.connect("source-read", performance.expand)
    app.connect("source-read", conventions.read)
    app.connect("doctree-read", describe_pictures)
    app.connect("env-get-updated", number_chapters, priority=900)  # after Sphinx has counted
    app.connect("autodoc-process-docstring", read_docstring, priority=400)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("html-page-context", finish_page)
    app.connect("build-finished", finish_site, priority=900)  # when the theme has written all
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
