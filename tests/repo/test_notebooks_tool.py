"""`make notebooks`: one normal form, the same bytes twice, and nothing published that warns."""

import copy
import json

import nbformat
import pytest

from book.tools import notebooks

CODE = nbformat.v4.new_code_cell
WIDGET = {
    "application/vnd.jupyter.widget-view+json": {"model_id": "a1b2"},
    "text/html": "<p>live</p>",
    "text/plain": "a figure",
}


def untidy():
    """Return a notebook with everything that a session in JupyterLab leaves behind."""
    cells = [
        nbformat.v4.new_markdown_cell("# Title\n\n", metadata={"collapsed": True}),
        CODE(
            "x = 1 ",
            execution_count=17,
            metadata={
                "execution": {"iopub.status.busy": "2026-01-01T00:00:00Z"},
                "jupyter": {"source_hidden": True, "outputs_hidden": False},
                "tags": ["hide-input"],
                "tfbook": {"topics": ["T030"]},
                "scrolled": True,
            },
            outputs=[
                nbformat.v4.new_output("stream", name="stdout", text="a\n"),
                nbformat.v4.new_output("display_data", data=dict(WIDGET)),
                nbformat.v4.new_output("stream", name="stdout", text="b\n"),
                nbformat.v4.new_output("execute_result", data={"text/plain": "1"}),
            ],
        ),
        CODE("y = 2", execution_count=3, metadata={"jupyter": {"outputs_hidden": True}}),
    ]
    cells[1].outputs[3].execution_count = 17
    view = "application/vnd.jupyter.widget-view+json"
    cells[2].outputs = [nbformat.v4.new_output("display_data", data={view: WIDGET[view]})]
    metadata = {
        "kernelspec": {"name": "venv", "display_name": "My venv", "language": "python"},
        "language_info": {"name": "python", "version": "3.11.7"},
        "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
        "jupytext": {"formats": "ipynb,md"},
    }
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    cells[2].id = cells[1].id
    return notebook


def test_normal_form():
    done = notebooks.normalise(untidy())
    assert done.metadata == {
        "kernelspec": notebooks.KERNELSPEC,
        "language_info": notebooks.LANGUAGE,
    }
    assert [cell.get("execution_count") for cell in done.cells] == [None, 1, 2]
    assert len({cell.id for cell in done.cells}) == 3
    assert done.cells[0].source == "# Title"
    assert done.cells[1].metadata == {
        "jupyter": {"source_hidden": True},
        "tags": ["hide-input"],
        "tfbook": {"topics": ["T030"]},
    }
    assert done.cells[2].metadata == {"jupyter": {"outputs_hidden": True}}
    streams, shown, result = done.cells[1].outputs
    assert streams.text == "a\nb\n"
    assert set(shown.data) == {"text/html", "text/plain"}
    assert result.execution_count == 1
    assert done.cells[2].outputs == []
    nbformat.validate(done)


def test_an_experiment_that_is_predicted_is_stored_with_its_outputs_folded():
    cell = CODE("run()", metadata={"tags": ["remove-input"], "tfbook": {"predict": "a"}})
    done = notebooks.normalise(nbformat.v4.new_notebook(cells=[cell]))
    assert done.cells[0].metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}


def test_the_normal_form_of_a_normal_form_is_itself():
    once = notebooks.normalise(untidy())
    assert notebooks.normalise(copy.deepcopy(once)) == once


def test_cell_ids_that_exist_are_kept():
    before = untidy()
    names = [cell.id for cell in before.cells[:2]]
    assert [cell.id for cell in notebooks.normalise(before).cells[:2]] == names


@pytest.fixture
def chapter(tmp_path, monkeypatch):
    """Write a chapter of given cells, run the tool on it, and return status and file."""
    monkeypatch.setattr(notebooks, "CHAPTERS", tmp_path)
    path = tmp_path / "02_a.ipynb"

    def make(*sources):
        nbformat.write(nbformat.v4.new_notebook(cells=[CODE(s) for s in sources]), path)
        return path

    return make


PICTURE = """\
import random, matplotlib.pyplot as plt
from IPython.display import HTML, display
plt.plot([random.random() > 2]);
plt.show()
display(HTML("<p>x</p>"))
range(3)"""


@pytest.mark.slow
def test_two_runs_give_the_same_bytes(chapter, capsys):
    path = chapter(PICTURE, "from pathlib import Path\nPath.cwd().name == Path('.').resolve().name")
    assert notebooks.main([]) == 0
    first = path.read_bytes()
    assert notebooks.main(["02_a"]) == 0
    assert path.read_bytes() == first
    assert "the same bytes" in capsys.readouterr().out
    stored = json.loads(first)
    kinds = [set(o["data"]) for o in stored["cells"][0]["outputs"]]
    assert {"image/png", "text/plain"} in kinds
    assert [p.name for p in path.parent.iterdir()] == ["02_a.ipynb"]


@pytest.mark.parametrize(
    ("source", "message"),
    [("1 / 0", "ZeroDivisionError"), ("import warnings\nwarnings.warn('old')", "cell 0 warns")],
)
def test_a_cell_that_fails_or_warns_leaves_the_file_as_it_was(chapter, capsys, source, message):
    path = chapter(source)
    before = path.read_bytes()
    assert notebooks.main([]) == 1
    assert path.read_bytes() == before
    assert message in capsys.readouterr().err


def test_an_unknown_chapter_is_named(chapter, capsys):
    chapter("1")
    assert notebooks.main(["99_x"]) == 1
    assert "99_x: there is no such notebook" in capsys.readouterr().err
