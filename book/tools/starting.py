"""Make the notebook a reader starts from out of a solved lab or project.

    python book/tools/starting.py [NAME ...]

A lab in `chapters/` is solved: behind each empty step stands its folded solution, and the outputs
are stored. The notebook of the same name in `chapters/start/` has the tasks, the empty steps and
the checks, and neither solutions nor outputs. It is made, never edited; `make notebooks` makes it
anew with the lab. What JupyterLab does not read, such as `{cite}`, becomes plain Markdown.
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent.parent
CHAPTERS = ROOT / "chapters"
KINDS = ("lab_", "project_")
FENCE = re.compile(r"(?ms)^(`{3,}|:{3,})\{(?P<kind>[\w-]+)\}(?P<title>[^\n]*)\n(?P<body>.*?)^\1 *$")
INTRODUCTION = """\
**This is the starting notebook.** Save it under another name before you write in it: it is made \
anew with each version of the book. Go from top to bottom; where a cell ends in `check(...)`, fill \
in the function above it until the check has passed. Cells further down call your functions, so \
they fail as long as a step before them is empty. The solved notebook is \
[{name}](../{name}.ipynb)."""


def is_lab(name: str) -> bool:
    """Tell whether a notebook is a lab or a project, by its name."""
    return name.startswith(KINDS)


def starting(notebook: NotebookNode, name: str) -> NotebookNode:
    """Return a solved notebook without its solutions and outputs, for JupyterLab.

    Left out are the cells between `{solution-start}` and `{solution-end}`, and those whose metadata
    says `{"tfbook": {"solution": true}}`.

    Raises:
        ValueError: if a solution begins inside another one, or does not end.
    """
    cells, inside = [], False
    for cell in copy.deepcopy(notebook.cells):
        if cell.cell_type == "markdown":
            cell.source, inside = _outside(cell.source, inside)
            cell.source = _readable(cell.source)
        elif inside:
            continue
        else:
            cell.outputs, cell.execution_count = [], None
        if cell.source and not cell.metadata.get("tfbook", {}).get("solution"):
            folded = {key: cell.metadata[key] for key in ("jupyter",) if key in cell.metadata}
            cell.metadata = nbformat.from_dict(folded)
            cells.append(cell)
    if inside:
        raise ValueError(f"{name}: a solution does not end")
    cells.insert(1, nbformat.v4.new_markdown_cell(INTRODUCTION.format(name=name), id="start-here"))
    return nbformat.v4.new_notebook(cells=cells, metadata=copy.deepcopy(notebook.metadata))


def _outside(source: str, inside: bool) -> tuple[str, bool]:
    """Return what stands outside of solutions, and whether one is open at the end."""
    kept, place = [], 0
    for fence in FENCE.finditer(source):
        if fence["kind"] not in ("solution-start", "solution-end"):
            continue
        if (fence["kind"] == "solution-end") != inside:
            raise ValueError(f"solutions do not alternate at {fence[0]!r}")
        if not inside:
            kept.append(source[place : fence.start()])
        place, inside = fence.end(), not inside
    if not inside:
        kept.append(source[place:])
    return "".join(kept).strip(), inside


def _readable(source: str) -> str:
    """Write directives, roles and labels of MyST as Markdown that JupyterLab shows."""
    source = FENCE.sub(_plain_fence, source)
    source = re.sub(r"\{doc\}`/?(?:chapters/)?([\w/]+)`", r"[\1](../\1.ipynb)", source)
    source = re.sub(r"\{cite(?::(\w+))?\}`([^`]+)`", _citation, source)
    source = re.sub(r"\{[\w:]+\}`~?([^`<]+?)(?: *<[^>]*>)?`", r"`\1`", source)
    return re.sub(r"(?m)^\$\$ \([\w:-]+\)$", "$$", source)


def _plain_fence(fence: re.Match) -> str:
    body = re.sub(r"(?m)\A(:\w+:[^\n]*\n)+", "", fence["body"]).strip()
    return f"**{fence['title'].strip()}**\n\n{body}"


def _citation(role: re.Match) -> str:
    bib = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    found = []
    for key in role[2].split(","):
        entry = re.search(rf"(?s)^@\w+\{{{key.strip()},(.*?)^\}}", bib, re.M)
        names = re.search(r"author = \{(.*?)\},\n", entry[1])[1].split(" and ")
        names = [re.sub(r"[{}]", "", name.partition(",")[0]) for name in names]
        year = re.search(r"year = \{(\d+)\}", entry[1])[1]
        who = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
        found.append(f"{who} ({year})" if role[1] == "t" else f"{who}, {year}")
    return ", ".join(found) if role[1] == "t" else f"({'; '.join(found)})"


def text(name: str) -> str:
    """Return the starting notebook of a lab as it is stored."""
    notebook = nbformat.read(CHAPTERS / f"{name}.ipynb", as_version=4)
    return nbformat.writes(starting(notebook, name)).rstrip("\n") + "\n"


def make(name: str) -> Path:
    """Write the starting notebook of a lab, and return where."""
    path = CHAPTERS / "start" / f"{name}.ipynb"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text(name), encoding="utf-8", newline="\n")
    return path


if __name__ == "__main__":
    for chosen in sys.argv[1:] or sorted(map(str, CHAPTERS.glob("*.ipynb"))):
        if is_lab(Path(chosen).stem):
            print(make(Path(chosen).stem).relative_to(ROOT))
