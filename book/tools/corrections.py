"""The page of corrections, {corrections-index}, and the role that leads to a claim, {claimed}.

A chapter with the section *Often got wrong* is taken at its word: the rows of its table say what
one may hear and what holds, `book/errata.yml` adds why and where it is written. Of other chapters'
errata, `book/errata.yml` says it all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from book.tools import index as book_index
from book.tools.conventions import Reader
from book.tools.index import ClaimSite, Erratum, Index, Place
from book.tools.pages import ChapterDirective, typeset
from book.tools.wrongs import SECTION, Row

LINK = re.compile(r"(?<=\]\()(?P<target>[^()\s]+)(?=\))")


class CorrectionsIndex(ChapterDirective):
    """List the usual statements that the chapters correct, with what is right."""

    def run(self) -> list[nodes.Node]:
        """Return one section for each chapter, and the number of corrections to come."""
        found = self.scan()
        errata = book_index.load_errata()
        rows = {row.erratum: row for row in found.wrongs}
        claims = {claim.place: claim for claim in found.claims if claim.corrects}
        by_slug = {claim.slug: claim for claim in found.claims}
        homes: dict[str, list] = defaultdict(list)
        for name, places in found.errata.items():
            for place in places[:1] if name in errata else ():
                homes[place.chapter].append((place, errata[name]))
        order = {name: number for number, name in enumerate(rows)}
        sections = []
        for chapter, section in self.chapter_sections(found, homes):
            # First those of the table, in its order.
            homes[chapter].sort(key=lambda home: (home[0].page, home[0].cell))
            homes[chapter].sort(key=lambda home: order.get(home[1].id, len(order)))
            for place, erratum in homes[chapter]:
                row = rows.get(erratum.id)
                claim = by_slug.get(row.slug) if row else claims.get(place)
                make = self._from_row if row and claim else self._entry
                section += make(erratum, row or place, claim, found)
            sections.append(section)
        done = sum(map(len, homes.values()))
        lead = (
            f"{done} corrections have their place; {len(errata) - done} wait for chapters to come."
        )
        return [nodes.paragraph("", lead), *sections]

    def _entry(
        self, erratum: Erratum, place: Place, claim: ClaimSite | None, found: Index
    ) -> nodes.container:
        """Return an erratum as `book/errata.yml` words it."""
        texts = {"You may read": erratum.says, "What holds": erratum.correct, "Why": erratum.why}
        rows = {name: nodes.paragraph("", "", *typeset(text)) for name, text in texts.items()}
        link = self.link(place.section, place.page, claim.anchor if claim else place.anchor)
        return _container(erratum, rows, "Shown in ", link, nodes.Text("."))

    def _from_row(
        self, erratum: Erratum, row: Row, claim: ClaimSite, found: Index
    ) -> nodes.container:
        """Return an erratum as the table of its chapter words it."""
        rows = {"You may hear": self._read(row.says, row), "What holds": self._read(row.holds, row)}
        rows["Why"] = nodes.paragraph("", "", *typeset(as_sentence(erratum.why)))
        where = claim.place.section
        title = found.chapters[claim.place.page] if where == SECTION else where
        link = self.link(title, claim.place.page, claim.anchor)
        reference = typeset(f". See {as_sentence(erratum.reference, first=False)}")
        return _container(erratum, rows, "Verified in ", link, *reference)

    def _read(self, text: str, row: Row) -> nodes.Node:
        """Read a cell of a chapter's table as Markdown of this page."""
        root = Path(self.env.srcdir)
        reader = Reader(root / "book" / "corrections.md", root)
        made = reader.markdown(LINK.sub(lambda match: from_book(match[0], row.place.page), text))
        box = nodes.container()
        self.state.nested_parse(StringList([made], self.env.docname), self.content_offset, box)
        return box.children[0] if len(box.children) == 1 else box


def _container(
    erratum: Erratum, rows: dict[str, nodes.Node], *last: str | nodes.Node
) -> nodes.container:
    entry = nodes.container(classes=["tfbook-correction"], ids=[f"correction-{erratum.id}"])
    items = [
        nodes.definition_list_item("", nodes.term("", name), nodes.definition("", text))
        for name, text in rows.items()
    ]
    text, *parts = last
    entry += [nodes.definition_list("", *items), nodes.paragraph("", text, *parts)]
    return entry


def from_book(target: str, page: str) -> str:
    """Return the target of a link in a chapter's page as one writes it on a page of `book/`."""
    if re.match(r"[a-z][a-z0-9+.-]*:|//", target):
        return target
    target = f"{page}.ipynb{target}" if target.startswith("#") else target
    return target.removeprefix("../book/") if target.startswith("../") else f"../chapters/{target}"


def as_sentence(text: str, first: bool = True) -> str:
    """Return a note as a sentence: with a capital, unless it begins with a formula, and a stop."""
    text = text.strip()
    if first and re.match(r"[a-z]{2,}(?![\w_(=])", text):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."


class Claimed(SphinxRole):
    """A link to the line of a claim, `✓ <chapters/02_attention#claim-slug>`."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the link."""
        text, page, anchor = re.fullmatch(r"(.*) <(.*)#(.*)>", self.text, re.DOTALL).groups()
        uri = self.env.app.builder.get_relative_uri(self.env.docname, page)
        uri = "" if page == self.env.docname else uri
        link = nodes.reference("", "", nodes.Text(text), refuri=f"{uri}#{anchor}", internal=True)
        link["classes"] += ["tfbook-claimed"]
        return [link], []


def setup(app: Sphinx) -> None:
    """Register directive and role."""
    app.add_directive("corrections-index", CorrectionsIndex)
    app.add_role("claimed", Claimed())
