"""Labs and projects have a frame of their own: a task, steps that are checked, points, a report."""

import copy
import json
import os
import re
import runpy
import subprocess
import sys

import nbformat
import pytest
from repofiles import ROOT

from book.tools import conventions, starting
from book.tools.index import CITATION, headings

CHAPTERS = ROOT / "chapters"
START = CHAPTERS / "start"
LABS = sorted(path for path in CHAPTERS.glob("*.ipynb") if starting.is_lab(path.stem))
ENDS = ["What to hand in", "Stretch goals", "Further reading"]
CARD = re.compile(r"exercise ([\w-]+): (passed|not yet|not started)")


@pytest.fixture(params=LABS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def cells(path):
    return nbformat.read(path, as_version=4).cells


@pytest.fixture
def prose(cells):
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.fixture
def sections(prose):
    return [title for level, title in headings(prose) if level == 2]


@pytest.fixture
def start(path):
    """The notebook that a reader begins with."""
    return nbformat.read(START / path.name, as_version=4)


def code_of(cells):
    return [cell for cell in cells if cell.cell_type == "code"]


def cards(cell):
    shown = "\n".join(str(o.get("data", {}).get("text/plain", "")) for o in cell.outputs)
    return CARD.findall(shown)


def defined(source):
    return set(re.findall(r"^(?:def|class) (\w+)", source, re.M))


def checked(source):
    """The exercises that a cell checks: name and function."""
    return re.findall(r"^check\(\"([\w-]+)\", (\w+)[,)]", source, re.M)


# the page -----------------------------------------------------------------------------------------


def test_there_is_a_lab():
    assert LABS


def test_it_begins_with_its_only_title_and_a_box(cells, prose):
    assert cells[0].source.startswith("# ")
    levels = [level for level, _ in headings(prose)]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    box = re.search(r"(?m)^> \*\*What you will be able to do\.\*\*(?:\n>.*)+", prose)
    assert box and len(re.findall(r"^> \* ", box[0], re.M)) >= 3
    assert "before you start" in box[0].lower()
    assert re.search(r"running time:.*(?:second|minute)", box[0].lower())


def test_it_opens_with_a_question_and_a_picture(cells):
    opening = []
    for cell in cells:
        if cell.source.startswith("## "):
            break
        opening.append(cell)
    assert any("?" in cell.source for cell in opening if cell.cell_type == "markdown")
    shown = [output.get("data", {}) for cell in opening for output in cell.get("outputs", ())]
    assert any("image/png" in data for data in shown)


def test_task_points_steps_and_ends_stand_in_this_order(sections):
    assert sections[:2] == ["The task", "Rubric"]
    assert sections[-3:] == ENDS
    steps = sections[2:-3]
    assert len(steps) >= 5
    numbers = [re.match(r"Step (\d+): \w", title) for title in steps]
    assert all(numbers), steps
    assert [int(found[1]) for found in numbers] == list(range(1, len(steps) + 1))


def test_the_points_of_the_steps_and_the_report_make_100(prose, sections):
    table = re.search(r"(?ms)^## Rubric\n(.*?)^## ", prose)[1]
    rows = re.findall(r"^\| ([^|]+) \| (\**\d+\**) \|(.*)\|$", table, re.M)
    points = {name.strip(): int(value.strip("*")) for name, value, _ in rows}
    total = points.pop("**Sum**")
    assert sum(points.values()) == total == 100
    steps = [title for title in sections if title.startswith("Step ")]
    listed = [re.match(r"(\d+) ", name) for name in points]
    assert [int(found[1]) for found in listed if found] == list(range(1, len(steps) + 1))
    assert "Report" in points
    for name, _, earns in rows:
        assert name.strip() == "**Sum**" or len(earns.strip()) > 15, f"{name}: what earns them?"


def test_the_points_in_a_row_sum_to_those_of_the_row(prose):
    table = re.search(r"(?ms)^## Rubric\n(.*?)^## ", prose)[1]
    for name, value, earns in re.findall(r"^\| ([^|]+) \| (\d+) \|(.*)\|$", table, re.M):
        parts = [int(n) for n in re.findall(r"\((\d+)\)", earns)]
        assert not parts or sum(parts) == int(value), name


def test_the_report_has_headings_to_fill_in(prose):
    hand_in = re.search(r"(?ms)^## What to hand in\n(.*?)^## ", prose)[1]
    assert len([1 for level, _ in headings(hand_in) if level == 3]) >= 4
    assert "…" in hand_in


def test_stretch_goals_have_points_and_further_reading_cites(prose):
    goals = re.search(r"(?ms)^## Stretch goals\n(.*?)^## ", prose)[1]
    assert len(re.findall(r"^\* \*\*\d+ points", goals, re.M)) >= 3
    assert prose.rpartition("## Further reading")[2].count(CITATION) >= 2


# the steps ----------------------------------------------------------------------------------------


def test_each_exercise_has_a_solution(cells):
    marks = [cell.metadata.get("tfbook", {}) for cell in cells]
    exercises = [mark["exercise"] for mark in marks if "exercise" in mark]
    solutions = [mark["solution"] for mark in marks if isinstance(mark.get("solution"), str)]
    assert exercises == list(dict.fromkeys(solutions))


def test_nearly_every_step_is_checked(prose, cells, sections):
    steps = [title for title in sections if title.startswith("Step ")]
    names = [name for cell in code_of(cells) for name, _ in checked(cell.source)]
    assert len(set(names)) >= len(steps) - 2
    assert all(names.count(name) == 2 for name in names), "the empty step, then the solution"


def test_an_empty_step_is_not_started_and_its_solution_passes(cells):
    seen = set()
    for cell in code_of(cells):
        for name, _ in checked(cell.source):
            state = "passed" if name in seen else "not started"
            assert cards(cell) == [(name, state)]
            seen.add(name)


def test_a_solution_has_the_name_of_the_empty_step(cells):
    """So that the cells further down work with either."""
    first = {}
    for cell in code_of(cells):
        for name, function in checked(cell.source):
            assert first.setdefault(name, function) == function
            assert function in defined(cell.source)


# the starting notebook ----------------------------------------------------------------------------


def test_the_starting_notebook_is_made_from_the_lab(path):
    stored = START / path.name
    assert stored.exists(), "run `make notebooks`"
    assert stored.read_text(encoding="utf-8") == starting.text(path.stem), "run `make notebooks`"


def test_the_page_offers_the_starting_notebook(path, prose):
    assert f"](start/{path.name})" in prose


def test_every_starting_notebook_has_its_lab():
    assert {p.name for p in START.iterdir()} <= {p.name for p in LABS} | {
        ".ipynb_checkpoints"
    }


def test_the_starting_notebook_has_every_step_and_nothing_solved(start, cells):
    nbformat.validate(start)
    names = [pair for cell in code_of(cells) for pair in checked(cell.source)]
    kept = [pair for cell in code_of(start.cells) for pair in checked(cell.source)]
    assert kept == names[::2]
    assert all(not cell.outputs and cell.execution_count is None for cell in code_of(start.cells))
    for cell in code_of(start.cells):
        for _, function in checked(cell.source):
            body = re.search(rf"(?ms)^def {function}\(.*?\n\n\ncheck", cell.source)[0]
            assert re.search(r'"""\n    \.\.\.\n', body), f"{function} is not empty"


def test_the_links_of_the_starting_notebook_lead_somewhere(path, start):
    path = START / path.name
    text = "\n".join(cell.source for cell in start.cells if cell.cell_type == "markdown")
    assert "save it under another name" in " ".join(text.split())
    reader = conventions.Reader(path, ROOT)
    for cell in start.cells:
        if cell.cell_type == "markdown":
            reader.markdown(cell.source)
    assert [found for found in reader.complaints if "needs a name" not in found] == []


# Runs the cells of several notebooks in IPython, one notebook after the other, and tells what the
# last cell of each has shown.
RUN = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
shell, last = InteractiveShell.instance(), {}
for name, sources in json.load(sys.stdin).items():
    shell.reset()
    for source in sources:
        with capture_output() as shown:
            result = shell.run_cell(source, store_history=True)
        if not result.success:
            sys.exit(f"{name}: {source}\\n{shown.stdout}{shown.stderr}")
    last[name] = [output.data for output in shown.outputs]
json.dump(last, sys.stdout)
"""


@pytest.fixture(scope="module")
def last(tmp_path_factory):
    """What each starting notebook shows at its first check: every cell up to it has run."""
    cells = {}
    for path in LABS:
        sources = [cell.source for cell in code_of(nbformat.read(START / path.name, 4).cells)]
        first = next(n for n, source in enumerate(sources) if "\ncheck(" in source)
        cells[path.stem] = sources[: first + 1]
    folder = tmp_path_factory.mktemp("start")
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(cells), cwd=folder, capture_output=True,
        env=os.environ | {"IPYTHONDIR": str(folder), "MPLBACKEND": "agg"}, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_starting_notebook_runs_to_its_first_check_which_answers_kindly(path, last):
    (card,) = [data for data in last[path.stem] if "text/html" in data]
    ((_, state),) = CARD.findall(card["text/plain"])
    assert state == "not started"
    assert "Hint 1" in card["text/html"]


def test_the_maker_leaves_other_notebooks_alone(monkeypatch, capsys):
    tool = ROOT / "book" / "tools" / "starting.py"
    monkeypatch.setattr(sys, "argv", [str(tool), "02_attention"])
    runpy.run_path(str(tool), run_name="__main__")
    assert capsys.readouterr().out == ""


# the maker ----------------------------------------------------------------------------------------


def notebook(*cells):
    made = [
        nbformat.v4.new_code_cell(text[1:]) if text.startswith(">x")
        else nbformat.v4.new_markdown_cell(text)
        for text in cells
    ]
    return nbformat.v4.new_notebook(cells=made)


def texts(*cells):
    made = starting.starting(notebook("# Title", *cells), "lab_x")
    return [cell.source for cell in made.cells if cell.get("id") != "start-here"][1:]


def test_solutions_are_left_out_and_so_is_what_only_the_solved_notebook_says():
    solved = notebook("# Title", "Before.", ">x = 1", "Words.", "Stays.")
    for cell, mark in zip(solved.cells[2:4], ["ex-a", True], strict=True):
        cell.metadata["tfbook"] = {"solution": mark}
    made = starting.starting(solved, "lab_x").cells
    assert [cell.source for cell in made if cell.get("id") != "start-here"] == [
        "# Title", "Before.", "Stays.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("[b](02_b.ipynb#T) and ([A, 1990](../book/x.md#k))",
         "[b](../02_b.ipynb#T) and ([A, 1990](../../book/x.md#k))"),
        ("[here](#Step-1) or [there](https://a.example/b)",) * 2,
        ("> **Exercise 1 (T).** $x$ and `{code}`.",) * 2,
    ],
)  # fmt: skip
def test_links_lead_from_the_folder_below_to_where_they_led(above, below):
    assert texts(above) == [below]


def test_the_solved_notebook_is_left_as_it_is():
    solved = notebook("# Title", "[b](02_b.ipynb)", ">x = 1")
    before = copy.deepcopy(solved)
    starting.starting(solved, "lab_x")
    assert solved == before
