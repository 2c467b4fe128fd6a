"""Directives: the indexes made from the chapters, a live figure, the line of a claim.

{claims-index} {topic-index}                        pages that list what the chapters hold
{explorable} softmax_temperature                    a figure of tfbook.teaching.explorables
{claim} weights-are-a-distribution                  a claim's line, with a link to its place
{chapter-list}                                      the chapters, written and to come
{repository} {citing}                               where the book is kept, and how it is cited
{downloads}                                         PDF and EPUB, where a published build has them
"""

from __future__ import annotations

import html
import importlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import nbformat
import yaml
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from book.tools import index as book_index
from book.tools import leaves
from book.tools.index import ClaimSite, Index, Place

INDEX_PAGES = "tfbook_index_pages"
DOWNLOADS = "TFBOOK_DOWNLOADS"
SAID = re.compile(
    r'<div class="tfbook-claim" id="claim-(?P<slug>[^"]+)".*?'
    r'<span class="tfbook-claim-sentence">(?P<sentence>.*?)</span> <details',
    re.DOTALL,
)
TAG = re.compile(r"<[^>]*>")
SHOWN = re.compile(r"claim (?P<slug>\S+): .*? \| (?P<shown>measured .*)", re.DOTALL)


class ChapterDirective(SphinxDirective):
    """A directive that reads the chapters."""

    @property
    def chapters(self) -> Path:
        """The folder of the chapters."""
        return Path(self.env.srcdir) / "chapters"

    def scan(self) -> Index:
        """Read the chapters that are in the book, and have the page made anew at every build."""
        pages = getattr(self.env, INDEX_PAGES, set())
        setattr(self.env, INDEX_PAGES, pages | {self.env.docname})
        found = book_index.scan(self.chapters)
        for chapter in found.chapters:
            self.env.note_dependency(str(self.chapters / f"{chapter}.ipynb"))
        return found

    def link(self, text: str, page: str, anchor: str = "") -> nodes.reference:
        """Return a link to a place in a page of a chapter."""
        uri = self.env.app.builder.get_relative_uri(self.env.docname, f"chapters/{page}")
        target = f"{uri}#{anchor}" if anchor else uri
        return nodes.reference("", "", nodes.Text(text), refuri=target, internal=True)

    def group_heading(self, place: Place, found: Index) -> nodes.paragraph:
        """Return a line that names a section of a chapter and leads to it."""
        opening = place.section == found.chapters[place.page] and place.page == place.chapter
        title = "The opening question" if opening else place.section
        link = self.link(title, place.page, place.anchor)
        return nodes.paragraph("", "", link, classes=["tfbook-index-section"])

    def chapter_sections(self, found: Index, kept: Iterable[str]) -> Iterator[tuple]:
        """Yield each kept chapter with an empty section that has its title as heading.

        What stands on a deeper page belongs to its chapter.
        """
        for chapter in found.chapters:
            if chapter in kept:
                title = found.chapters[chapter]
                section = nodes.section(ids=[f"in-{nodes.make_id(chapter)}"], names=[])
                section += nodes.title("", "", nodes.Text(title))
                section.document = self.state.document
                yield chapter, section


class ClaimsIndex(ChapterDirective):
    """List every claim: its sentence, what was measured, and a link to its line."""

    def run(self) -> list[nodes.Node]:
        """Return one section for each chapter."""
        found = self.scan()
        shown, said = shown_values(self.chapters), said_sentences(self.chapters)
        kept = {claim.place.chapter for claim in found.claims}
        sections = []
        for chapter, section in self.chapter_sections(found, kept):
            claims = [claim for claim in found.claims if claim.place.chapter == chapter]
            section += _opened(f"{len(claims)} claims")
            for _, group in groupby(claims, key=lambda c: (c.place.page, c.place.anchor)):
                group = list(group)
                section += self.group_heading(group[0].place, found)
                rows = nodes.bullet_list(classes=["tfbook-index"])
                rows += [self._row(claim, said, shown.get(claim.slug, "")) for claim in group]
                section += rows
            section += nodes.raw("", "</details>", format="html")
            sections.append(section)
        total = f"The book makes {len(found.claims)} claims so far."
        return [nodes.paragraph("", total), *sections]

    def _row(self, claim: ClaimSite, said: dict[str, str], shown: str) -> nodes.list_item:
        link = self.link(said.get(claim.slug, claim.sentence), claim.place.page, claim.anchor)
        row = nodes.list_item("", nodes.paragraph("", "", link))
        if shown:
            row += nodes.paragraph("", shown, classes=["tfbook-index-detail"])
        return row


def _opened(line: str) -> nodes.raw:
    """Return the beginning of a fold of rows, which `assets/js/filter.js` can search."""
    opening = f'<details class="tfbook-rows"><summary>{line}</summary>'
    return nodes.raw("", opening, format="html")


class TopicIndex(ChapterDirective):
    """List the topics that the chapters treat, each with a link to its section."""

    def run(self) -> list[nodes.Node]:
        """Return one section for each chapter, and the number of topics to come."""
        found = self.scan()
        topics = book_index.load_topics()
        homes: dict[str, list] = defaultdict(list)
        for name, places in found.topics.items():
            for place in places[:1] if name in topics else ():
                homes[place.chapter].append((place, topics[name]))
        sections = []
        for chapter, section in self.chapter_sections(found, homes):
            placed = sorted(homes[chapter], key=lambda home: (home[0].page, home[0].cell))
            for _, group in groupby(placed, key=lambda home: (home[0].page, home[0].anchor)):
                group = list(group)
                section += self.group_heading(group[0][0], found)
                rows = nodes.bullet_list(classes=["tfbook-index"])
                rows += [
                    nodes.list_item("", nodes.paragraph("", "", *typeset(t.title)))
                    for _, t in group
                ]
                section += rows
            sections.append(section)
        done = sum(map(len, homes.values()))
        lead = f"{done} topics have their place; {len(topics) - done} wait for chapters to come."
        return [nodes.paragraph("", lead), *sections]


# A letter that stands alone and its index; or an exponent.
INDEX = re.compile(
    r"(?<=(?<![A-Za-z_])[^\W\d_])_(\{[^{}]*\}|[A-Za-z0-9]+)|\^(\{[^{}]*\}|-?[A-Za-z0-9]+)"
)


def typeset(text: str) -> list[nodes.Node]:
    """Return a text with its indices lowered and its exponents raised: d_k, K^T, R^{n×d_k}."""
    parts: list[nodes.Node] = []
    start = 0
    for match in INDEX.finditer(text):
        kind = nodes.subscript if match[1] else nodes.superscript
        parts.append(nodes.Text(text[start : match.start()]))
        parts.append(kind("", "", *typeset((match[1] or match[2]).strip("{}"))))
        start = match.end()
    return [*parts, nodes.Text(text[start:])]


def shown_values(chapters: Path) -> dict[str, str]:
    """Read from the committed outputs what each claim showed: slug → "measured … expected …"."""
    return {
        match["slug"]: match["shown"].strip().replace(" | ", " · ")
        for output in _outputs(chapters)
        if (match := SHOWN.fullmatch(output.get("text/plain", "")))
    }


def said_sentences(chapters: Path) -> dict[str, str]:
    """Read from the committed outputs the sentence of each claim, with its numbers."""
    return {
        match["slug"]: html.unescape(TAG.sub("", match["sentence"]))
        for output in _outputs(chapters)
        if (match := SAID.match(output.get("text/html", "")))
    }


def _outputs(chapters: Path) -> Iterator[dict]:
    for path in sorted(chapters.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", ()):
                yield output.get("data", {})


class Explorable(SphinxDirective):
    """Show a figure of `tfbook.teaching.explorables`; the content may be its arguments as YAML."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the figure's HTML, which is the same as in a notebook's output."""
        module = importlib.import_module("tfbook.teaching.explorables")
        make = getattr(module, self.arguments[0], None)
        if make is None:
            raise self.error(f"tfbook.teaching.explorables has no {self.arguments[0]!r}")
        figure = make(**(yaml.safe_load("\n".join(self.content)) or {}))
        bundle = figure._repr_mimebundle_()
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        return [nodes.raw("", bundle["text/html"], format="html")]


class ClaimLine(ChapterDirective):
    """Repeat the line of a claim as its chapter shows it, with a link to its place."""

    required_arguments = 1
    option_spec = {"lead": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Return the line; where no chapter is in the book yet, nothing."""
        slug = self.arguments[0]
        found = self.scan()
        sites = [claim for claim in found.claims if claim.slug == slug]
        lines = [
            output["text/html"]
            for output in _outputs(self.chapters)
            if f'id="claim-{slug}"' in output.get("text/html", "")
        ]
        if not found.chapters:
            return []
        if not sites or not lines:
            raise self.error(f"no chapter shows a claim {slug!r}")
        place = sites[0].place
        link = self.link(found.chapters[place.page], place.page, sites[0].anchor)
        source = nodes.paragraph("", self.options.get("lead", "From the chapter "), link)
        source += nodes.Text(".")
        source["classes"] += ["tfbook-index-detail"]
        return [nodes.raw("", lines[0], format="html"), source]


class ChapterList(ChapterDirective):
    """List the chapters with the question each answers; those in the book are links.

    The content maps the name of a notebook to its question, as YAML.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return one item for each line of the content."""
        found = self.scan()
        rows = nodes.bullet_list(classes=["tfbook-chapters"])
        for name, question in yaml.safe_load("\n".join(self.content)).items():
            number, _, words = name.partition("_")
            here = name in found.chapters
            title = found.chapters[name] if here else words.replace("_", " ").capitalize()
            parts = [
                nodes.inline("", str(int(number)), classes=["tfbook-number"]),
                self.link(title, name) if here else nodes.inline("", f"{title} (to come)"),
                nodes.inline("", question, classes=["tfbook-question"]),
            ]
            if (deeper := f"{name}{book_index.DEEPER}") in found.chapters:
                parts[2:2] = [nodes.Text(" · "), self.link("deeper", deeper)]
            rows += nodes.list_item("", nodes.paragraph("", "", *parts))
        return [rows]


class Repository(SphinxDirective):
    """Say where the repository is and where errors are reported, as `_config.yml` knows it."""

    def run(self) -> list[nodes.Node]:
        """Return one paragraph."""
        address = self.config.html_theme_options.get("repository_url", "").rstrip("/")
        if not address:
            text = (
                "This copy of the book does not say where its repository is: whoever publishes it "
                "sets the address in `_config.yml`, once, and the buttons above each page appear. "
                "Until then, turn to whoever gave you the book."
            )
            return self.parse_text_to_nodes(text)
        issues = nodes.reference("", "its list of issues", refuri=f"{address}/issues")
        place = nodes.reference("", address, refuri=address)
        parts = [nodes.Text("The repository is "), place, nodes.Text(", errors go to "), issues]
        return [nodes.paragraph("", "", *parts, nodes.Text("."))]


class Downloads(SphinxDirective):
    """Offer the book on paper and for a reading device, where the files are published beside it.

    `.ci/publish` puts them there and says so: `TFBOOK_DOWNLOADS=1`. Other builds show nothing.
    """

    def run(self) -> list[nodes.Node]:
        """Return one paragraph, or nothing."""
        self.env.note_reread()
        if not os.environ.get(DOWNLOADS):
            return []
        root = "../" * self.env.docname.count("/")
        pdf, epub = (
            nodes.reference("", text, refuri=f"{root}{leaves.NAME}.{kind}")
            for kind, text in (("pdf", "one PDF"), ("epub", "an EPUB"))
        )
        parts = [nodes.Text("The whole book as "), pdf, nodes.Text(", to print, or as "), epub]
        return [nodes.paragraph("", "", *parts, nodes.Text(", for a reading device."))]


class Citing(SphinxDirective):
    """Show the entry by which this version of the book is cited."""

    def run(self) -> list[nodes.Node]:
        """Return the BibTeX entry."""
        entry = "\n".join(
            (
                "@book{executabletransformer,",
                "  title  = {The Executable Transformer},",
                f"  author = {{{{{self.config.author}}}}},",
                f"  year   = {{{self.config.copyright[:4]}}},",
                f"  note   = {{Version {self.config.version}}},",
                "}",
            )
        )
        return [nodes.literal_block(entry, entry, language="bibtex")]


DIRECTIVES = {
    "repository": Repository,
    "citing": Citing,
    "downloads": Downloads,
    "chapter-list": ChapterList,
    "claims-index": ClaimsIndex,
    "topic-index": TopicIndex,
    "explorable": Explorable,
    "claim": ClaimLine,
}
