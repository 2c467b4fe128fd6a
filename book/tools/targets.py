"""What the notebooks' links may lead to: works, words, sections, equations, claims."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import nbformat
from docutils.nodes import make_id
from pybtex.database import Entry, parse_file
from pybtex.richtext import Text

from book.tools.index import DEEPER, claims_of, headings

FENCE = r"^[ ]{0,3}(?P<ticks>`{3,}|~{3,})[^\n]*\n(?:.*?\n)??[ ]{0,3}(?P=ticks)[`~]*[ ]*$"
FORMULA = r"[ ]{0,3}\$\$(?P<formula>.*?)\$\$"
TAG = re.compile(r"\s*\\tag\{([^{}]*)\}")
OUTLINE = re.compile(
    rf"""(?:{FENCE})
    | ^(?:>[ ])?{FORMULA}
    | ^[ ]{{0,3}}(?P<heading>\#{{1,6}}[ ].*?$)
    | ^>[ ]\*\*Exercise[ ](?P<exercise>[\d.]+)[ ]""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


def authors(entry: Entry) -> str:
    """Return whom a text names for a work: one or two names, or the first "et al."."""
    people = [" ".join(p.prelast_names + p.last_names) for p in entry.persons["author"]]
    people = [str(Text.from_latex(name)) for name in people]
    return f"{people[0]} et al." if len(people) > 2 else " and ".join(people)


def works(root: Path) -> dict[str, tuple[str, str]]:
    """Return authors and year of each work of the bibliography, by key."""
    path = root / "book" / "references.bib"
    return _works(path, path.stat().st_mtime_ns)


@cache
def _works(path: Path, stamp: int) -> dict[str, tuple[str, str]]:
    entries = parse_file(str(path)).entries
    return {key: (authors(entry), entry.fields["year"]) for key, entry in entries.items()}


def terms(root: Path) -> dict[str, str]:
    """Return the words that the glossary explains, by anchor."""
    text = (root / "book" / "glossary.md").read_text(encoding="utf-8")
    return {make_id(word): word for word in re.findall(r"(?m)^(\w.*)\n  \S", text)}


@dataclass(frozen=True)
class Outline:
    """Where in a page what stands."""

    sections: dict[str, str] = field(default_factory=dict)  # JupyterLab's anchor → id in the page
    equations: dict[str, str] = field(default_factory=dict)  # number → anchor of its section
    exercises: list[str] = field(default_factory=list)  # numbers
    claims: set[str] = field(default_factory=set)  # slugs


def page_with(chapter: Path, section: str) -> str:
    """Return the page of a chapter, its road or its deeper one, that has a section."""
    deeper = chapter.with_name(f"{chapter.name}{DEEPER}.ipynb")
    name = "-".join(section.split())
    return deeper.stem if deeper.exists() and name in outline(deeper).sections else chapter.name


def outline(path: Path) -> Outline:
    """Read the headings, equations and exercises of a notebook or a Markdown file."""
    return _outline(path, path.stat().st_mtime_ns)


@cache
def _outline(path: Path, stamp: int) -> Outline:
    found, anchor = Outline(), ""
    texts = [path.read_text(encoding="utf-8")]
    if path.suffix == ".ipynb":
        cells = nbformat.reads(texts[0], as_version=4).cells
        texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
        codes = [cell.source for cell in cells if "claim(" in cell.source]
        found.claims.update(slug for code in codes for slug, *_ in claims_of(code)[0])
    for match in (match for text in texts for match in OUTLINE.finditer(text)):
        if match["heading"]:
            ((_, title),) = headings(match["heading"])
            anchor = title.replace(" ", "-")
            if "$" not in match["heading"]:  # no two hosts agree on the anchor of a formula
                found.sections[anchor] = make_id(title)
        elif match["exercise"]:
            found.exercises.append(match["exercise"])
        elif match["formula"]:
            found.equations.update(dict.fromkeys(TAG.findall(match["formula"]), anchor))
    return found
