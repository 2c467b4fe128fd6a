"""Make the notebook a reader starts from out of a solved lab or project.

    python book/tools/starting.py [NAME ...]

A lab in `chapters/` is solved: behind each empty step stands its folded solution, and the outputs
are stored. The notebook of the same name in `chapters/start/` has the tasks, the empty steps and
the checks, and neither solutions nor outputs. It is made, never edited; `make notebooks` makes it
anew with the lab.
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
INTRODUCTION = """\
**This is the starting notebook.** `make lab` opens a copy of your own; elsewhere save it under \
another name before you write in it, for it is made anew with each version of the book. Go from \
top to bottom; where a cell ends in `check(...)`, fill in the function above it until the check \
has passed. Cells further down call your functions, so they fail as long as a step before them is \
empty. The solved notebook is [{name}](../{name}.ipynb)."""


def is_lab(name: str) -> bool:
    """Tell whether a notebook is a lab or a project, by its name."""
    return name.startswith(KINDS)


def starting(notebook: NotebookNode, name: str) -> NotebookNode:
    """Return a solved notebook without its solutions and outputs, for JupyterLab.

    Left out are the cells whose metadata names an exercise that they solve,
    `{"tfbook": {"solution": "ex-name"}}`, or says that they are part of the solved notebook only,
    `{"tfbook": {"solution": true}}`.
    """
    cells = []
    for cell in copy.deepcopy(notebook.cells):
        if cell.metadata.get("tfbook", {}).get("solution"):
            continue
        if cell.cell_type == "markdown":
            cell.source = _from_below(cell.source)
        else:
            cell.outputs, cell.execution_count = [], None
        folded = {key: cell.metadata[key] for key in ("jupyter",) if key in cell.metadata}
        cell.metadata = nbformat.from_dict(folded)
        cells.append(cell)
    cells.insert(1, nbformat.v4.new_markdown_cell(INTRODUCTION.format(name=name), id="start-here"))
    return nbformat.v4.new_notebook(cells=cells, metadata=copy.deepcopy(notebook.metadata))


def _from_below(source: str) -> str:
    """Lead the links of a notebook in `chapters/` to the same places from the folder below."""
    return re.sub(r"(?<=\]\()(?![#/]|[a-z]+:)(?=[^()\s]+\))", "../", source)


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
