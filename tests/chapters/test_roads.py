"""Roads, as notebooks: errata in their section, code in one form, names with one meaning.

What stands on their pages is counted in `tests/site/test_roads.py`.
"""

import subprocess
import sys

import nbformat
import pytest
from repofiles import ROOT, findings

from book.tools import index, rebound, roads, wrongs

WIDTH = 90
CHAPTERS = ROOT / "chapters"


def pages(names=roads.ROADS):
    """The notebooks of the roads, and of their deeper pages."""
    stems = [stem for name in names for stem in (name, name + index.DEEPER)]
    return [path for stem in stems if (path := CHAPTERS / f"{stem}.ipynb").exists()]


def unformatted(path):
    """Code is as `ruff format` writes it."""
    command = [sys.executable, "-m", "ruff", "format", "--diff", "--line-length", str(WIDTH)]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"is not formatted, run ruff format --line-length {WIDTH}:\n{done.stdout}"


def changed_names(path):
    """A function, a module or a model stays one."""
    cells = nbformat.read(path, as_version=4).cells
    code = [(n, cell.source) for n, cell in enumerate(cells) if cell.cell_type == "code"]
    yield from rebound.rebound(code)


def without_table(found, names):
    """The roads that are the home of errata and have no section for them."""
    homes = {place.chapter for places in found.errata.values() for place in places}
    with_table = {row.place.chapter for row in found.wrongs}
    return [name for name in names if name in homes - with_table]


def test_roads_are_chapters():
    assert {f"{name}.ipynb" for name in roads.ROADS} <= {p.name for p in CHAPTERS.glob("[0-9]*")}
    assert not [name for name in roads.ROADS if name.endswith(index.DEEPER)]


@pytest.mark.parametrize("look", [unformatted, changed_names])
def test_roads_are_as_they_should_be(look):
    assert findings(pages(), look) == []


def test_errata_of_a_road_stand_in_a_section_of_their_own():
    assert without_table(index.scan(CHAPTERS), roads.ROADS) == []


# What these must notice.


def test_a_road_without_the_section_is_found():
    place = index.Place("02_a_deeper", 1, "x", "code", "S", "s")
    found = index.Index(errata={"E1": [place]})
    assert without_table(found, ["02_a", "03_b"]) == ["02_a"]
    found.wrongs.append(wrongs.Row(place, "", "", "02_a", "x", "E1"))
    assert without_table(found, ["02_a", "03_b"]) == []


def test_code_that_ruff_would_write_otherwise_is_found(tmp_path):
    for source, faults in (("x = f(1, 2)\n\n\ny = (1,)", 0), ("x = f( 1,\n2)", 1)):
        cells = [nbformat.v4.new_code_cell(source)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
        assert len(list(unformatted(tmp_path / "a.ipynb"))) == faults


IMPORTS = "from torch import nn\nfrom math import log\nfrom tfbook.attention import attend\n"
GPT = "class GPT(nn.Module):\n    pass\n"


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["log = experiments.log('x')"], "log, function in cell 0, is what a call returns"),
        (["attend = 3"], "attend, function in cell 0, is a value"),
        (["nn = [1]"], "nn, module in cell 0, is a value"),
        (["def f(x):\n    return x", "f, y = 1, 2"], "f, function in cell 1, is a value"),
        (["rows = [1]", "def rows():\n    pass"], "rows, a value in cell 1, is function"),
        (["tiny = nn.Linear(2, 3)", "tiny = 'text'"], "tiny, model in cell 1, is a value"),
        ([f"{GPT}tiny = GPT()", "tiny = [1]"], "tiny, model in cell 1, is a value"),
        (["g = lambda x: x", "for g in range(3):\n    pass"], "g, function in cell 1, is what"),
        (["if x:\n    attend = 3"], "attend, function in cell 0, is a value"),
        (["import torch\nm = torch", "m = nn.ReLU()"], "m, module in cell 1, is model"),
        (["def attend(q):\n    return q", "%time 3\nattend = attend"], None),
        (["tiny = nn.Linear(2, 3)", "tiny = train(tiny)", "tiny = nn.ReLU()"], None),
        (["rows = f()", "rows = [1]", "rows = {}", "rows += [2]", "_ = log(1)"], None),
        (["from tfbook.models import build\nm = build(c)", "m = 3"], "m, model in cell 1, is a"),
    ],
)
def test_a_name_that_changes_its_meaning_is_found(cells, words):
    found = rebound.rebound(list(enumerate([IMPORTS, *cells])))
    assert [words in fault for fault in found] == ([True] if words else []), found
