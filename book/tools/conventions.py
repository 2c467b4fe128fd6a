r"""Read the notebooks' Markdown, which every host shows, as what Sphinx knows.

    [Elman (1990)](../book/bibliography.md#elman1990finding)       a citation in the sentence
    ([Elman, 1990](…#elman1990finding); [B and C, 1991](…#key))     citations in parentheses
    [logit](../book/glossary.md#logit)                              a word of the glossary
    [`attend()`](../book/api/attention.md#tfbook.attention.attend)  a name of the package
    [text](02_attention.ipynb#The-title), [text](#The-title)        a section
    [✓](#claim-slug), [✓](02_attention.ipynb#claim-slug)            the line of a claim
    [text](start/lab_x.ipynb)                                       a file to download
    $$ … \tag{2.1} $$, [(2.1)](#The-title)                          an equation; a link to it
    > **Exercise 2.3 (Title).** …                                   an exercise
    > **Note.** …                                                   a box

A section's anchor is that of JupyterLab: its title with hyphens for spaces. An equation is named
with the section in which it stands. The cell of an exercise carries its name,
`{"tfbook": {"exercise": "ex-name"}}`; the cells of its solution carry
`{"tfbook": {"solution": "ex-name"}}`, and the first of them opens with
`**Solution of exercise 2.3.**`. Equations and exercises count from 1 through a chapter, and
through a lab, whose numbers name no chapter. What leads nowhere, or counts wrong, is complained of.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
from docutils.nodes import make_id
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.util import logging

from book.tools.targets import FENCE, FORMULA, TAG, outline, terms, works

LOG = logging.getLogger(__name__)
NUMBERS = "tfbook_numbers"  # of the environment: page → id of an equation or exercise → number
# The class of a box, by how its title begins; other boxes have none.
BOXES = {
    "What you will be able to do": "tip",
    "Note": "note",
    "Predict": "hint",
    "A report": "dropdown",
}

CITATION = r"\[[^\[\]]+\]\([^()\s]*bibliography\.md\#[^()\s]+\)"
PIECE = re.compile(
    rf"""(?P<fence>{FENCE})
    | (?P<display>^{FORMULA})
    | (?P<quote>^>[^\n]*(?:\n>[^\n]*)*)
    | (?P<image>!\[[^\]]*\]\([^)]*\))
    | (?P<citations>\({CITATION}(?:;\s{CITATION})*\))
    | (?P<link>\[(?P<text>(?:`[^`]+`|\$[^$]+\$|\\.|[^\[\]`$\\])+)\]
        \((?P<target>(?:[^()\s]|\([^()\s]*\))+)\))
    | (?P<code>(?P<tick>`+)(?!`).*?(?<!`)(?P=tick)(?!`))
    | (?P<math>(?<!\\)\$(?!\s)(?:[^$\\]|\\.)+\$)""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
NUMBER = re.compile(r"\((\d+(?:\.\d+)?)\)")
CITED = re.compile(r"\[([^\[\]]+)\]\([^()\s]*#([^()\s]+)\)")
EXERCISE = re.compile(
    r"\*\*Exercise (?P<number>[\d.]+) \((?P<title>.+?)\)\.\*\*\s+(?P<body>.+)", re.S
)
BOX = re.compile(r"\*\*(?P<title>[^*]+?)(?:\.|(?<=[?!]))\*\*\s*(?P<body>.*)", re.S)
SOLUTION = re.compile(r"\*\*Solution of exercise (?P<number>[\d.]+)\.\*\*\s*")


def equation_label(page: str, number: str) -> str:
    """Return the label of an equation; the numbers of a lab are those of its page only."""
    return f"eq:{number}" if "." in number else f"eq:{page}:{number}"


# A notebook on its way to Sphinx -----------------------------------------------------------------


class Reader:
    """Turns the Markdown of one notebook into MyST, in place, and collects what is wrong."""

    def __init__(self, path: Path, root: Path) -> None:
        """Begin with the notebook at `path` in the book at `root`; both are absolute."""
        self.path, self.root = path, root
        self.complaints: list[str] = []
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.exercises: dict[str, str] = {}
        self._cell, self._name = 0, ""
        chapter = re.match(r"(\d\d)_", path.stem)
        self._head = f"{int(chapter[1])}." if chapter else ""
        pages = path.parent.glob(f"{chapter[0]}*.ipynb") if chapter else ()
        before = [outline(page) for page in pages if page.stem < path.stem]
        self._equations = sum(len(page.equations) for page in before)
        self._exercises = sum(len(page.exercises) for page in before)

    def read(self, notebook: NotebookNode) -> None:
        """Turn all cells, and put each run of a solution's cells between its directives."""
        cells, solved = [], ""
        for self._cell, cell in enumerate(notebook.cells):
            marks = cell.metadata.get("tfbook", {})
            solves = marks.get("solution", "")
            solves = solves if isinstance(solves, str) else ""
            start = ""
            if solves != solved:
                cells += [_end(solved)] if solved else []
                start, solved = self._solution(solves, cell) if solves else "", solves
            if cell.cell_type == "markdown":
                self._name = marks.get("exercise", "")
                cell.source = start + self.markdown(cell.source)
                if self._name:
                    self._complain(f"carries the name {self._name!r} and holds no exercise")
            cells.append(cell)
        notebook.cells = cells + ([_end(solved)] if solved else [])

    def markdown(self, source: str) -> str:
        """Turn a piece of Markdown."""
        return PIECE.sub(self._piece, source)

    def _piece(self, match: re.Match) -> str:
        turn = getattr(self, f"_{match.lastgroup}", None)
        return turn(match) if turn else match[0]

    def _complain(self, what: str) -> None:
        self.complaints.append(f"cell {self._cell}: {what}")

    def _count(self, kind: str, number: str, place: int, key: str) -> None:
        """Keep the number of an equation or exercise, which has to be the next one."""
        if number != f"{self._head}{place}":
            self._complain(f"{kind} {number} should be {self._head}{place}")
        elif key:
            self.numbers[key] = tuple(map(int, number.split(".")))

    # Equations, exercises, solutions, boxes

    def _display(self, match: re.Match) -> str:
        tags = TAG.findall(match["formula"])
        if not tags:
            return match[0]
        self._equations += 1
        label = equation_label(self.path.stem, tags[0])
        self._count("equation", tags[0], self._equations, make_id(f"equation-{label}"))
        return f"$${TAG.sub('', match['formula'])}$$ ({label})"

    def _quote(self, match: re.Match) -> str:
        inner = re.sub(r"(?m)^> ?", "", match[0])
        if exercise := EXERCISE.fullmatch(inner):
            return self._exercise(exercise)
        if inner.startswith("**Exercise"):
            self._complain("an exercise opens with **Exercise 2.3 (Title).** and a text")
        elif box := BOX.fullmatch(inner):
            title, body = box["title"], self.markdown(box["body"])
            kinds = [{"class": kind} for start, kind in BOXES.items() if title.startswith(start)]
            return _directive("admonition", title, kinds[0] if kinds else {}, body)
        return re.sub(r"(?m)^", "> ", self.markdown(inner))

    def _exercise(self, match: re.Match) -> str:
        name, self._name = self._name, ""
        self._exercises += 1
        self._count("exercise", match["number"], self._exercises, name)
        if not name.startswith("ex-"):
            self._complain(f"exercise {match['number']} needs a name, ex-…, in its cell's metadata")
            return match[0]
        self.exercises[name] = match["number"]
        return _directive("exercise", match["title"], {"label": name}, self.markdown(match["body"]))

    def _solution(self, name: str, cell: NotebookNode) -> str:
        number = self.exercises.get(name)
        opening = SOLUTION.match(cell.source) if cell.cell_type == "markdown" else None
        if not number:
            self._complain(f"solves {name!r}, which is no exercise above")
        elif not opening or opening["number"] != number:
            self._complain(f"has to open with **Solution of exercise {number}.**")
        else:
            cell.source = cell.source[opening.end() :]
        options = {"label": f"sol-{name.removeprefix('ex-')}", "class": "dropdown"}
        return _directive("solution-start", name, options) + "\n\n"

    # Links

    def _citations(self, match: re.Match) -> str:
        keys = [self._work(*found.groups(), "{}, {}") for found in CITED.finditer(match[0])]
        return f"{{cite:p}}`{','.join(keys)}`"

    def _work(self, text: str, key: str, form: str) -> str:
        """Check what a link says about a work, and return the work's key."""
        known = works(self.root).get(key)
        if not known:
            self._complain(f"cites {key!r}, which is not in the bibliography")
        elif text != form.format(*known):
            self._complain(f"cites {key} as {text!r}, not as {form.format(*known)!r}")
        return key

    def _link(self, match: re.Match) -> str:
        text, target = match["text"], match["target"]
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z][a-z0-9+.-]*:|//", target):
            return match[0]
        file = Path(os.path.normpath(self.path.parent / unquote(path))) if path else self.path
        if not file.is_file():
            self._complain(f"links to {path}, which does not exist")
            return match[0]
        anchor, name = unquote(anchor), os.path.relpath(file, self.root).replace(os.sep, "/")
        if name == "book/bibliography.md" and anchor:
            return f"{{cite:t}}`{self._work(text, anchor, '{} ({})')}`"
        if name == "book/glossary.md" and anchor:
            return self._term(text, anchor)
        if name.startswith("book/api/") and anchor:
            return self._name_of_package(text, file.stem, anchor)
        if not anchor and name.startswith("chapters/start/"):
            return f"{{download}}`{text} <{path}>`"
        if anchor.startswith("claim-") and file.suffix == ".ipynb":
            return self._claim(text, file, name, anchor)
        if anchor and (number := NUMBER.fullmatch(text)):
            return self._equation(file, number[1], anchor)
        if anchor and file.suffix in (".md", ".ipynb"):
            return f"[{text}]({path}#{self._section(file, anchor)})"
        return match[0]

    def _term(self, text: str, anchor: str) -> str:
        word = terms(self.root).get(anchor)
        if not word:
            self._complain(f"links to the word {anchor!r}, which the glossary does not explain")
        return f"{{term}}`{text}`" if text == word else f"{{term}}`{text} <{word or anchor}>`"

    def _name_of_package(self, text: str, room: str, name: str) -> str:
        if not re.fullmatch(r"`[^`]+`", text):
            self._complain(f"a link to {name} has to be written as code")
        if name.split(".")[:2] != ["tfbook", room]:
            self._complain(f"{name} does not stand on the page of tfbook.{room}")
        return f"{{py:obj}}`{text.strip('`')} <{name}>`"

    def _equation(self, file: Path, number: str, anchor: str) -> str:
        stands = outline(file).equations.get(number)
        if stands is None:
            self._complain(f"links to equation ({number}), which {file.stem} does not have")
        elif stands != anchor:
            self._complain(f"equation ({number}) stands in #{stands}, not in #{anchor}")
        return f"{{eq}}`{equation_label(file.stem, number)}`"

    def _claim(self, text: str, file: Path, name: str, anchor: str) -> str:
        if anchor.removeprefix("claim-") not in outline(file).claims:
            self._complain(f"links to #{anchor}, which {file.stem} does not claim")
        return f"{{claimed}}`{text} <{name.removesuffix('.ipynb')}#{anchor}>`"

    def _section(self, file: Path, anchor: str) -> str:
        found = outline(file).sections
        if anchor not in found:
            self._complain(f"links to #{anchor}, which is no heading of {file.stem}")
        return found.get(anchor, make_id(anchor))


def _directive(name: str, argument: str, options: dict[str, str], body: str = "") -> str:
    fence = "`" * max(3, *(len(ticks) + 1 for ticks in re.findall("`+", body) or [""]))
    lines = [f":{key}: {value}" for key, value in options.items()]
    inside = ["", body] if body else []
    return "\n".join([f"{fence}{{{name}}} {argument}", *lines, *inside, fence])


def _end(name: str) -> NotebookNode:
    return nbformat.v4.new_markdown_cell("```{solution-end}\n```", id=f"{name}-end")


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Give Sphinx a notebook in its own language, and warn of what is wrong with it."""
    path = Path(app.env.doc2path(page))
    if path.suffix != ".ipynb":
        return
    reader = Reader(path, Path(app.srcdir))
    notebook: Any = nbformat.reads(source[0], as_version=4)
    reader.read(notebook)
    for complaint in reader.complaints:
        LOG.warning(complaint, location=page)
    setattr(app.env, NUMBERS, getattr(app.env, NUMBERS, {}) | {page: reader.numbers})
    source[0] = nbformat.writes(notebook)
