"""The book for a reading device: EPUB 3 with formulas as MathML and pictures as files, no scripts.

    python -m book.tools.epub     packs _build/leaves into _build/epub/executable-transformer.epub

Each leaf is a file. A figure that moves in the page is the picture that it shows at first, and what
it says is the alternative text.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import re
import uuid
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from lxml import etree

import tfbook
from book.tools import leaves
from book.tools.paper import SEPARATOR, TITLE, XHTML, Chapter, read

OUT = leaves.ROOT / "_build" / "epub" / f"{leaves.NAME}.epub"
STYLE = Path(__file__).with_name("epub.css")
MATHML = "{http://www.w3.org/1998/Math/MathML}"
SVG = "{http://www.w3.org/2000/svg}"
FONT = re.compile(r"url\([\"']?data:font/woff2;base64,([A-Za-z0-9+/=]+)")
NAMESPACES = (
    'xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" '
    'lang="en" xml:lang="en"'
)
CONTAINER = """<?xml version="1.0" encoding="utf-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="EPUB/package.opf" media-type="application/oebps-package+xml"/>
</rootfiles></container>
"""
ACCESS = {
    "accessMode": ("textual", "visual"),
    "accessModeSufficient": ("textual",),
    "accessibilityFeature": (
        "alternativeText", "MathML", "readingOrder", "structuralNavigation", "tableOfContents",
    ),
    "accessibilityHazard": ("none",),
    "accessibilitySummary": (
        "Pictures have alternative text, formulas are MathML, headings and contents are in order. "
        "Figures that move in the pages of the book are shown as pictures with a description.",
    ),
}  # fmt: skip


# Pages ------------------------------------------------------------------------------------------


def adapt(chapter: Chapter, site: Path, folder: Path) -> dict[str, Path]:
    """Turn a leaf into what reading devices take; return the pictures it shows, by their name."""
    article = chapter.article
    pictures = {}
    for host in list(article.iter(f"{XHTML}div")):
        if host.get("data-picture"):
            name = show(host)
            pictures[name] = folder / "figures" / name
    for image in article.iter(f"{XHTML}img"):
        source = image.get("src", "")
        if source.startswith("pictures/"):
            continue
        path = ((site / chapter.entry.name).parent / source).resolve()
        pictures[path.name] = path
        image.set("src", f"pictures/{path.name}")
        for name in ("height", "decoding"):
            image.attrib.pop(name, None)
    for node in article.iter(etree.Element):
        for name in [n for n in node.attrib if n in UNUSED or n.startswith("data-")]:
            del node.attrib[name]
        if not node.tag.startswith((MATHML, SVG)):
            node.attrib.pop("style", None)
        link = node.get("href", "")
        if link.startswith("#"):
            node.set("href", file_of(link[1:], chapter.entry.key))
    return pictures


UNUSED = frozenset("loading tabindex align valign border cellpadding rel target title".split())


def file_of(target: str, here: str) -> str:
    """Return the address of a place, seen from the file of a leaf."""
    key, _, anchor = target.partition(SEPARATOR)
    place = f"#{target}" if anchor else ""
    return place if key == here and place else f"{key}.xhtml{place}"


def show(host: etree._Element) -> str:
    """Put the picture of a figure in its place, with what it says; return the picture's name."""
    name = host.get("data-picture")
    card, text = None, None
    for child in host:
        if "tfx-text" in child.get("class", ""):
            text = child
        elif child.tag == f"{XHTML}div":
            card = child
    said = [
        " ".join("".join(part.itertext()).split())
        for part in card.iter(etree.Element)
        if {"tfx-title", "tfx-settings", "tfx-summary"} & set(part.get("class", "").split())
    ]
    picture = etree.Element(f"{XHTML}img", {"src": f"pictures/{name}"})
    picture.set("alt", " ".join(said) or "A figure of the book, described below.")
    picture.set("class", "tfbook-figure")
    paragraph = etree.Element(f"{XHTML}p")
    paragraph.append(picture)
    tail = card.tail
    host.replace(card, paragraph)
    paragraph.tail = tail
    if text is not None:
        text.attrib.pop("hidden", None)
    return name


def page(chapter: Chapter) -> str:
    """Return a leaf as a file."""
    article = chapter.article
    article.tag = f"{XHTML}section"
    body = etree.tostring(article, encoding="unicode", with_tail=False)
    return document(chapter.headings[0].title, body)


def document(title: str, body: str) -> str:
    """Return a file."""
    return (
        f'<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html {NAMESPACES}>\n'
        f'<head><title>{escape(title)}</title><link rel="stylesheet" href="book.css"/></head>\n'
        f"<body>{body}</body>\n</html>\n"
    )


def navigation(chapters: list[Chapter]) -> str:
    """Return the contents: parts, chapters, sections."""
    rows, part = [], ""
    depth = 0
    for chapter in chapters:
        for heading in chapter.headings:
            level = heading.depth + 1
            if heading is chapter.headings[0] and chapter.entry.part != part:
                part = chapter.entry.part
                rows.append(_down(depth, 1) + f"<span>{escape(part)}</span>")
                depth = 1
            level = min(level, depth + 1)
            address = file_of(heading.target, "")
            link = f'<a href="{escape(address)}">{escape(heading.title)}</a>'
            rows.append(_down(depth, level) + link)
            depth = level
    rows.append(_down(depth, 0))
    first = next(c.entry.key for c in chapters if c.entry.name.startswith("chapters/"))
    landmarks = (
        f'<li><a epub:type="bodymatter" href="{first}.xhtml">Chapters</a></li>'
        '<li><a epub:type="toc" href="nav.xhtml">Contents</a></li>'
    )
    return document(
        "Contents",
        f'<nav epub:type="toc" id="toc" role="doc-toc"><h1>Contents</h1>{"".join(rows)}</nav>'
        f'<nav epub:type="landmarks" id="landmarks" hidden=""><ol>{landmarks}</ol></nav>',
    )


def _down(depth: int, level: int) -> str:
    """Return what leads from an entry of one depth to the beginning of one of another."""
    if level == depth + 1:
        return "<ol><li>"
    ends = "</li></ol>" * (depth - level) if depth > level else ""
    return ends + ("</li><li>" if level else "")


# The package ------------------------------------------------------------------------------------


def package(chapters: list[Chapter], files: dict[str, str], version: str) -> str:
    """Return the list of all files, with what a catalogue and a reader who cannot see ask for."""
    named = uuid.uuid5(uuid.NAMESPACE_URL, f"tfbook:executable-transformer:{version}")
    when = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(when), UTC) if when else datetime.now(UTC)
    access = "".join(
        f'<meta property="schema:{name}">{escape(value)}</meta>\n'
        for name, values in ACCESS.items()
        for value in values
    )
    items = "".join(
        f'<item id="{_id(name)}" href="{name}" media-type="{media(name)}"{marks}/>\n'
        for name, marks in files.items()
    )
    order = "".join(f'<itemref idref="{_id(c.entry.key)}.xhtml"/>\n' for c in chapters)
    return f"""<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="book" xml:lang="en"
 prefix="schema: http://schema.org/">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:identifier id="book">urn:uuid:{named}</dc:identifier>
<dc:title>{TITLE}</dc:title>
<dc:creator>The authors of {TITLE}</dc:creator>
<dc:language>en</dc:language>
<dc:description>A textbook on attention and Transformers. Version {version}.</dc:description>
<dc:rights>Text and figures CC BY 4.0, code Apache-2.0</dc:rights>
<meta property="dcterms:modified">{moment:%Y-%m-%dT%H:%M:%SZ}</meta>
{access}</metadata>
<manifest>
{items}</manifest>
<spine>
<itemref idref="cover.xhtml"/>
<itemref idref="nav.xhtml"/>
{order}</spine>
</package>
"""


def _id(name: str) -> str:
    name = name.rpartition("/")[2]
    return name if name[0].isalpha() else f"f-{name}"


def media(name: str) -> str:
    """Return the kind of a file."""
    known = {".xhtml": "application/xhtml+xml", ".woff2": "font/woff2", ".css": "text/css"}
    return known.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "image/png"


def marks_of(article: etree._Element) -> str:
    """Return what a file has that a reader needs to know beforehand."""
    found = [
        word
        for word, tag in (("mathml", f"{MATHML}math"), ("svg", f"{SVG}svg"))
        if next(article.iter(tag), None) is not None
    ]
    return f' properties="{" ".join(found)}"' if found else ""


def contents(
    chapters: list[Chapter], site: Path, folder: Path
) -> Iterator[tuple[str, str | bytes, str]]:
    """Yield the files of the book: name, text or bytes, marks in the list of files."""
    pictures: dict[str, Path] = {}
    cover = f'<p><img src="pictures/cover.png" alt="{TITLE}"/></p>'
    yield "cover.xhtml", document(TITLE, f'<section epub:type="cover">{cover}</section>'), ""
    yield "nav.xhtml", navigation(chapters), ' properties="nav"'
    for chapter in chapters:
        pictures |= adapt(chapter, site, folder)
        yield f"{chapter.entry.key}.xhtml", page(chapter), marks_of(chapter.article)
    style = STYLE.read_text(encoding="utf-8")
    font = FONT.search((site / "_static" / "style.css").read_text(encoding="utf-8"))
    if font:
        yield "math.woff2", base64.b64decode(font[1]), ""
    yield "book.css", style, ""
    yield "pictures/cover.png", (folder / "cover.png").read_bytes(), ' properties="cover-image"'
    for name, path in pictures.items():
        yield f"pictures/{name}", path.read_bytes(), ""


def write(site: Path, folder: Path, out: Path) -> int:
    """Pack the leaves of a folder, and return how many they are."""
    chapters = read(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    files: dict[str, str] = {}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        packed.writestr("META-INF/container.xml", CONTAINER)
        for name, text, marks in contents(chapters, site, folder):
            stored = zipfile.ZIP_STORED if name.endswith(".png") else zipfile.ZIP_DEFLATED
            packed.writestr(f"EPUB/{name}", text, stored)
            files[name] = marks
        packed.writestr("EPUB/package.opf", package(chapters, files, tfbook.__version__))
    return len(chapters)


def main() -> None:
    """Pack the leaves of the built book."""
    count = write(leaves.SITE, leaves.LEAVES, OUT)
    print(f"{OUT}: {count} pages, {OUT.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
