"""The book as one PDF: title, contents with page numbers, chapters in the order of `_toc.yml`.

    python -m book.tools.paper     prints _build/leaves into _build/pdf/executable-transformer.pdf

Chromium prints leaf after leaf, each from the page number where the one before ended. pypdf joins
them, turns links between them into jumps, and makes bookmarks of the headings.
"""

from __future__ import annotations

import html
import importlib.util
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pypdf
from lxml import etree
from PIL import Image
from pypdf.generic import (
    ArrayObject,
    ByteStringObject,
    DictionaryObject,
    Fit,
    FloatObject,
    NameObject,
    NumberObject,
    StreamObject,
    TextStringObject,
)

import tfbook
from book.tools import leaves
from book.tools.leaves import Entry

OUT = leaves.ROOT / "_build" / "pdf" / f"{leaves.NAME}.pdf"
STYLE = Path(__file__).with_name("paper.css")
XHTML = "{http://www.w3.org/1999/xhtml}"
SEPARATOR = "--"
TITLE = "The Executable Transformer"
PATIENCE = 600_000  # ms
ELSEWHERE = "https://elsewhere.invalid/"  # a place in another leaf
CLOSING = "</div></body></html>\n"
FONTS = {
    ("Book Serif", "normal", 400): "STIXGeneral.ttf",
    ("Book Serif", "italic", 400): "STIXGeneralItalic.ttf",
    ("Book Serif", "normal", 700): "STIXGeneralBol.ttf",
    ("Book Serif", "italic", 700): "STIXGeneralBolIta.ttf",
    ("Book Mono", "normal", 400): "DejaVuSansMono.ttf",
    ("Book Mono", "normal", 700): "DejaVuSansMono-Bold.ttf",
    ("Book Mono", "italic", 400): "DejaVuSansMono-Oblique.ttf",
    ("Book Sans", "normal", 400): "DejaVuSans.ttf",
    ("Book Sans", "normal", 700): "DejaVuSans-Bold.ttf",
}


class Heading(NamedTuple):
    """A heading of the book: its words, what leads to it, and its depth from 0."""

    title: str
    target: str
    depth: int


class Chapter(NamedTuple):
    """A printed page of the site: what it is, its article, its headings."""

    entry: Entry
    article: etree._Element
    headings: list[Heading]


def read(folder: Path) -> list[Chapter]:
    """Return the leaves of a folder, with links that lead to places in the same document."""
    order = [Entry(**each) for each in json.loads((folder / "order.json").read_text())]
    keys = {each.name: each.key for each in order}
    found = []
    for entry in order:
        article = etree.parse(folder / f"{entry.key}.xml").getroot()
        adopt(article, entry, keys)
        found.append(Chapter(entry, article, list(headings(article, entry))))
    mend_links(found)
    return found


def adopt(article: etree._Element, entry: Entry, keys: dict[str, str]) -> None:
    """Make the ids of a leaf different from those of others, and let its links follow."""
    prefix = entry.key + SEPARATOR
    article.set("id", entry.key)
    article.set("class", f"bd-article tfbook-leaf tfbook-depth-{entry.depth}")
    for node in article.iter(etree.Element):
        name = node.get("id")
        if node is not article and name and not name.startswith(prefix):
            node.set("id", prefix + name)
    for node in list(article.iter(f"{XHTML}a")):
        node.set("href", place_of(node.get("href", ""), entry, keys, prefix))
        if not node.get("href"):  # a place that is not printed
            node.tag = f"{XHTML}span"
            for name in ("href", "download", "target", "rel"):
                node.attrib.pop(name, None)


def place_of(href: str, entry: Entry, keys: dict[str, str], prefix: str) -> str:
    """Return where a link leads in the joined document; nothing, if its page is not printed."""
    if re.match(r"[a-z]+:", href):
        return href
    path, _, anchor = href.partition("#")
    if not path:
        inside = anchor.startswith(prefix) or not anchor
        return f"#{anchor}" if inside else f"#{prefix}{anchor}"
    if not path.endswith(".html"):
        return ""
    folder = entry.name.rpartition("/")[0]
    name = str(Path("/", folder, unquote(path)).resolve()).lstrip("/").removesuffix(".html")
    if name not in keys:
        return ""
    return f"#{keys[name]}{SEPARATOR}{anchor}" if anchor else f"#{keys[name]}"


def mend_links(chapters: Iterable[Chapter]) -> None:
    """Lead links whose place does not stand on paper to its page."""
    chapters = list(chapters)
    known = {n.get("id") for c in chapters for n in c.article.iter(etree.Element) if n.get("id")}
    for chapter in chapters:
        for link in chapter.article.iter(f"{XHTML}a"):
            href = link.get("href")
            if href.startswith("#") and href[1:] not in known:
                page = href[1:].partition(SEPARATOR)[0]
                link.set("href", f"#{page}")


def headings(article: etree._Element, entry: Entry) -> Iterable[Heading]:
    """Yield title and sections of a leaf; what stands deeper than two levels is left out."""
    for node in article.iter(f"{XHTML}h1", f"{XHTML}h2"):
        section = node.getparent().get("id")
        if section is None:
            continue
        title = re.sub(r"\s+", " ", "".join(node.itertext())).strip().replace("\u2060", "")
        first = node.tag == f"{XHTML}h1"
        yield Heading(title, entry.key if first else section, entry.depth + (0 if first else 1))


# Documents --------------------------------------------------------------------------------------


def leaf(chapter: Chapter, site: Path, first: int, wanted: set[str]) -> str:
    """Return a leaf as a document whose first page has the number `first`.

    Chromium tells where a place is if a link of the same document leads there, and leaves out links
    that lead nowhere. So places that are wanted get a link that is not seen, and links to other
    leaves an address that `join` knows.
    """
    own = set()
    for node in chapter.article.iter(etree.Element):
        if node.get("id"):
            own.add(node.get("id"))
    for link in chapter.article.iter(f"{XHTML}a"):
        href = link.get("href", "")
        if href.startswith("#") and href[1:] not in own:
            link.set("href", ELSEWHERE + href[1:])
    for image in chapter.article.iter(f"{XHTML}img"):
        if not re.match(r"[a-z]+:", image.get("src", "")):
            folder = (site / chapter.entry.name).parent
            image.set("src", (folder / image.get("src")).resolve().as_uri())
    head = chapter.headings[0].title.replace("\\", "\\\\").replace('"', '\\"')
    style = f"html {{ counter-reset: page {first - 1} }}\n"
    style += f'@page {{ @top-right {{ content: "{head}" }} }}'
    links = "".join(f'<a href="#{each}"></a>' for each in sorted(own & wanted))
    body = f'<div hidden="">{links}</div>' + etree.tostring(chapter.article, encoding="unicode")
    return opening(site, style) + body + CLOSING


def front(chapters: list[Chapter], site: Path, pages: dict[str, int], version: str) -> str:
    """Return title page and contents as a document."""
    return opening(site) + title_page(site, version) + contents(chapters, pages) + CLOSING


def opening(site: Path, more: str = "") -> str:
    """Return the head of a document, with the site's styles and the fonts of the paper."""
    style = (site / "_static" / "style.css").as_uri()
    faces = "\n".join(
        f"@font-face{{font-family:'{family}';font-style:{slant};font-weight:{weight};"
        f"src:url('{(font_folder() / name).as_uri()}')}}"
        for (family, slant, weight), name in FONTS.items()
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<html xmlns="http://www.w3.org/1999/xhtml" lang="en" data-theme="light">\n<head>'
        "<title>The Executable Transformer</title>"
        f'<link rel="stylesheet" href="{style}"/>'
        f"<style>{faces}</style>"
        f'<link rel="stylesheet" href="{STYLE.as_uri()}"/>'
        f"<style>{html.escape(more, quote=False)}</style>"
        '</head>\n<body class="tfbook-paper"><div class="bd-content">'
    )


def font_folder() -> Path:
    """Return the folder of the fonts that come with matplotlib."""
    found = importlib.util.find_spec("matplotlib")
    return Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"


def title_page(site: Path, version: str) -> str:
    """Return the first page."""
    logo = (site / "_static" / "logo-light.svg").as_uri()
    return (
        '<section class="tfbook-title-page">'
        f'<img src="{logo}" alt=""/><h1>The Executable Transformer</h1>'
        "<p>A textbook on attention and Transformers<br/>in which the sentences that carry an "
        "argument are computed</p>"
        f'<p class="tfbook-imprint">Version {html.escape(version)}<br/>'
        "Text and figures CC BY 4.0, code Apache-2.0<br/>"
        "Figures move, questions answer and code runs in the pages and notebooks of the book; "
        "what stands here is what they show at first. The reference of the code and the indexes "
        "of claims, topics and figures are in the pages only.</p></section>"
    )


def contents(chapters: list[Chapter], pages: dict[str, int]) -> str:
    """Return the contents with page numbers."""
    rows, part = [], ""
    for chapter in chapters:
        if chapter.entry.part != part:
            part = chapter.entry.part
            rows.append(f'<p class="tfbook-contents-part">{html.escape(part)}</p>')
        lines = chapter.headings
        if not chapter.entry.name.startswith("chapters/"):
            lines = lines[:1]
        for at, heading in enumerate(lines):
            level = "chapter" if at == 0 else "section"
            number = pages.get(heading.target, "")
            rows.append(
                f'<p class="tfbook-contents-{level}"><a href="{ELSEWHERE}{heading.target}">'
                f"<span>{html.escape(heading.title)}</span><span>{number}</span></a></p>"
            )
    return f'<section class="tfbook-contents"><h1>Contents</h1><div>{"".join(rows)}</div></section>'


# Printing ---------------------------------------------------------------------------------------


def print_pdf(view: Any, source: Path, target: Path) -> pypdf.PdfReader:
    """Print a document."""
    view.goto(source.as_uri())
    view.evaluate("document.fonts.ready.then(() => true)")
    view.pdf(path=target, prefer_css_page_size=True)
    return pypdf.PdfReader(target)


def join(printed: list[pypdf.PdfReader]) -> tuple[pypdf.PdfWriter, dict[str, tuple[int, float]]]:
    """Return all documents as one, and where each place is: number of its page from 0, height."""
    writer, places, before = pypdf.PdfWriter(), {}, 0
    for reader in printed:
        for name, place in reader.named_destinations.items():
            number = before + reader.get_destination_page_number(place)
            places[name.lstrip("/")] = (number, float(place.top or 0))
        before += len(reader.pages)
        writer.append(reader, import_outline=False)
    for page in writer.pages:
        for note in page.get("/Annots", ()):
            jump(note.get_object(), places, writer)
    return writer, places


def jump(note: DictionaryObject, places: dict, writer: pypdf.PdfWriter) -> None:
    """Turn a link to a place of the book into one that goes there."""
    action = note["/A"].get_object() if "/A" in note else {}
    address = str(action.get("/URI", ""))
    name = address.removeprefix(ELSEWHERE) if address.startswith(ELSEWHERE) else note.get("/Dest")
    if not isinstance(name, str) or name.lstrip("/") not in places:
        return
    number, top = places[name.lstrip("/")]
    note.pop("/A", None)
    note[NameObject("/Dest")] = ArrayObject(
        [
            writer.pages[number].indirect_reference, NameObject("/XYZ"), FloatObject(0),
            FloatObject(top), FloatObject(0),
        ]
    )  # fmt: skip


def lighten(writer: pypdf.PdfWriter) -> None:
    """Store pictures of few colours as they are in the pages: a byte for each point, not three."""
    seen = set()
    for page in writer.pages:
        for held in page["/Resources"].get("/XObject", {}).values():
            image = held.get_object()
            if held.idnum in seen or image["/Subtype"] != "/Image" or not _plain(image):
                continue
            seen.add(held.idnum)
            size = (image["/Width"], image["/Height"])
            colours = Image.frombytes("RGB", size, image.get_data())
            few = colours.getcolors(256)
            if few is None:
                continue
            palette = bytes(value for _, colour in few for value in colour)
            number = {colour: at for at, (_, colour) in enumerate(few)}
            indexed = np.frombuffer(colours.tobytes(), dtype=np.uint8).reshape(-1, 3)
            codes = indexed.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32)
            found, back = np.unique(codes, return_inverse=True)
            table = [number[int(c) >> 16, int(c) >> 8 & 255, int(c) & 255] for c in found]
            image.set_data(np.array(table, dtype=np.uint8)[back].tobytes())
            image.pop("/DecodeParms", None)
            image[NameObject("/ColorSpace")] = ArrayObject(
                [
                    NameObject("/Indexed"), image.raw_get("/ColorSpace"),
                    NumberObject(len(few) - 1), ByteStringObject(palette),
                ]
            )  # fmt: skip


def _plain(image: StreamObject) -> bool:
    """Tell whether a picture has three bytes for each point: red, green, blue."""
    space = image.get("/ColorSpace")
    if isinstance(space, ArrayObject) and space[0] == "/ICCBased":
        three = space[1].get_object()["/N"] == 3
    else:
        three = space == "/DeviceRGB"
    return three and image["/BitsPerComponent"] == 8 and image.get("/Filter") == "/FlateDecode"


def bookmark(writer: pypdf.PdfWriter, chapters: list[Chapter], places: dict) -> None:
    """Make bookmarks of parts, chapters and sections."""
    above: list = []
    part = ""
    for chapter in chapters:
        if chapter.entry.part != part:
            part = chapter.entry.part
            first, _ = places[chapter.entry.key]
            opened = part == "Chapters"
            above = [writer.add_outline_item(title=part, page_number=first, is_open=opened)]
        for heading in chapter.headings:
            number, top = places[heading.target]
            above = above[: heading.depth]
            above.append(
                writer.add_outline_item(
                    title=heading.title, page_number=number, parent=above[-1],
                    fit=Fit.xyz(left=0, top=top), is_open=False,
                )  # fmt: skip
            )


def write(browser: Any, site: Path, folder: Path, out: Path) -> int:
    """Print the leaves of a folder, and return how many pages they have."""
    chapters = read(folder)
    version = tfbook.__version__
    out.parent.mkdir(parents=True, exist_ok=True)
    source = folder / "printed.xhtml"
    wanted = {heading.target for chapter in chapters for heading in chapter.headings}
    for chapter in chapters:
        links = chapter.article.iter(f"{XHTML}a")
        wanted |= {link.get("href", "")[1:] for link in links}
    view = browser.new_page()
    view.set_default_timeout(PATIENCE)

    def printed(text: str, name: str) -> pypdf.PdfReader:
        source.write_text(text, encoding="utf-8")
        return print_pdf(view, source, folder / f"{name}.pdf")

    # The contents are as long with these numbers as with the right ones.
    blank = dict.fromkeys(wanted, 1000)
    lead = len(printed(front(chapters, site, blank, version), "front").pages)
    documents, numbers, first = [], {}, lead + 1
    for chapter in chapters:
        reader = printed(leaf(chapter, site, first, wanted), chapter.entry.key)
        for name, place in reader.named_destinations.items():
            numbers[name.lstrip("/")] = first + reader.get_destination_page_number(place)
        documents.append(reader)
        first += len(reader.pages)
    documents.insert(0, printed(front(chapters, site, numbers, version), "front"))
    view.close()
    if len(documents[0].pages) != lead:
        raise RuntimeError("the contents with their numbers are longer than without")
    writer, places = join(documents)
    bookmark(writer, chapters, places)
    lighten(writer)
    writer.add_metadata(
        {
            "/Title": TITLE,
            "/Author": f"The authors of {TITLE}",
            "/Subject": f"Attention and Transformers. Version {version}. CC BY 4.0",
        }
    )
    writer.root_object[NameObject("/Lang")] = TextStringObject("en")
    writer.page_mode = "/UseOutlines"
    writer.compress_identical_objects(remove_unreferenced=True)
    writer.write(out)
    return len(writer.pages)


def main() -> None:
    """Print the leaves of the built book."""
    with leaves.launched() as browser:
        count = write(browser, leaves.SITE, leaves.LEAVES, OUT)
    print(f"{OUT}: {count} pages, {OUT.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
