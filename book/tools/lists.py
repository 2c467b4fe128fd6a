"""Directives: all exercises of the book, and all figures with controls, each with its place.

{exercise-list}    by chapter: number, title, kind and level; how many questions each page asks
{figure-list}      by chapter: the figures, by the titles that they show
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import nbformat
from docutils import nodes
from docutils.nodes import make_id

from book.tools import roads
from book.tools.index import chapter_of, headings
from book.tools.pages import ChapterDirective
from tfbook.teaching import exercises

EXERCISE = re.compile(
    r"> \*\*Exercise (?P<number>[\d.]+) \((?P<title>[^*]+)\)\.\*\*\s*(?:\*(?P<kind>[^*]+)\.\*)?"
)
CHECK = re.compile(r"""check\(\s*["']([\w-]+)["']""")
FIGURE = re.compile(
    r'data-module="(?P<name>\w+)"[^>]*>\s*<script type="application/json">(?P<values>.*?)</script>',
    re.DOTALL,
)
QUESTIONS = {"quiz": "quizzes", "predict": "predictions", "explain": "explanations"}


class Asked(NamedTuple):
    """An exercise, and where it stands."""

    page: str
    anchor: str
    number: str
    title: str
    told: str


class Shown(NamedTuple):
    """A figure with controls, and the section in which it stands."""

    page: str
    anchor: str
    section: str
    title: str


class Found(NamedTuple):
    """What the notebooks ask and show, in their order; questions are counted by page."""

    asked: list[Asked]
    shown: list[Shown]
    questions: Counter[tuple[str, str]]


def find(chapters: Path) -> Found:
    """Read all notebooks of a folder."""
    found = Found([], [], Counter())
    for path in sorted(chapters.glob("*.ipynb")):
        _read(nbformat.read(path, as_version=4).cells, path.stem, found)
    return found


def _read(cells: list, page: str, found: Found) -> None:
    levels = dict(_levels(cells))
    section = anchor = ""
    for cell in cells:
        if cell.cell_type == "markdown":
            for _, title in headings(cell.source):
                section, anchor = title, make_id(title)
        marked = cell.metadata.get("tfbook", {}).get("exercise", "")
        if match := EXERCISE.match(cell.source) if marked else None:
            kind = roads.kind(match["kind"] or "")
            told = ", ".join(filter(None, (kind if kind in KINDS else "", levels.get(marked))))
            found.asked.append(Asked(page, marked, match["number"], match["title"], told))
        for name, title in _figures(cell):
            if name in QUESTIONS:
                found.questions[page, name] += 1
            else:
                found.shown.append(Shown(page, anchor, section, title))


KINDS = frozenset(roads.KINDS.values())


def _levels(cells: list) -> Iterator[tuple[str, str]]:
    """Yield the anchor of each exercise that is checked, and how hard it is."""
    known = set(exercises.names())
    for cell in cells:
        for name in CHECK.findall(cell.source) if cell.cell_type == "code" else ():
            if name in known:
                yield f"ex-{name}", exercises.LEVELS[exercises.describe(name).level]


def _figures(cell: nbformat.NotebookNode) -> Iterator[tuple[str, str]]:
    for output in cell.get("outputs", ()):
        for match in FIGURE.finditer(output.get("data", {}).get("text/html", "")):
            name = match["name"]
            values = {} if name in QUESTIONS else json.loads(match["values"])
            yield name, values.get("data", {}).get("title") or name.replace("_", " ").capitalize()


class ListDirective(ChapterDirective):
    """A list with one section for each chapter, lab and project."""

    def sections(self, rows: dict[str, list[nodes.Node]]) -> Iterator[nodes.section]:
        """Yield a section for each page that has rows; what is deeper stands below its road."""
        found = self.scan()
        joined: dict[str, list[nodes.Node]] = {}
        for page in found.chapters:
            joined.setdefault(chapter_of(page), []).extend(rows.get(page, ()))
        for chapter, section in self.chapter_sections(found, [c for c, r in joined.items() if r]):
            items = nodes.bullet_list(classes=["tfbook-index"])
            items += joined[chapter]
            section += items
            yield section


class ExerciseList(ListDirective):
    """List the exercises of all chapters, with the reader's answers to the pages' questions."""

    def run(self) -> list[nodes.Node]:
        """Return one section for each chapter."""
        found = find(self.chapters)
        rows: dict[str, list[nodes.Node]] = {}
        for each in found.asked:
            link = self.link(f"{each.number} {each.title}", each.page, each.anchor)
            item = nodes.list_item("", nodes.paragraph("", "", link))
            item += nodes.paragraph("", each.told, classes=["tfbook-index-detail"])
            rows.setdefault(each.page, []).append(item)
        for page in dict.fromkeys(page for page, _ in found.questions):
            asked = [f"{found.questions[page, kind]} {QUESTIONS[kind]}" for kind in QUESTIONS]
            told = ", ".join(each for each in asked if not each.startswith("0 "))
            line = nodes.paragraph("", "", self.link("Questions in the text", page))
            item = nodes.list_item("", line, classes=["tfbook-questions"])
            item += nodes.paragraph("", told, classes=["tfbook-index-detail"])
            rows.setdefault(page, []).append(item)
        asked = sum(found.questions.values())
        lead = f"{len(found.asked)} exercises, and {asked} questions in the text."
        return [nodes.paragraph("", lead), *self.sections(rows)]


class FigureList(ListDirective):
    """List the figures with controls of all chapters."""

    def run(self) -> list[nodes.Node]:
        """Return one section for each chapter."""
        found = find(self.chapters)
        rows: dict[str, list[nodes.Node]] = {}
        for each in found.shown:
            link = self.link(each.title, each.page, each.anchor)
            item = nodes.list_item("", nodes.paragraph("", "", link))
            item += nodes.paragraph("", each.section, classes=["tfbook-index-detail"])
            rows.setdefault(each.page, []).append(item)
        lead = f"{len(found.shown)} figures with controls."
        return [nodes.paragraph("", lead), *self.sections(rows)]


DIRECTIVES = {"exercise-list": ExerciseList, "figure-list": FigureList}
