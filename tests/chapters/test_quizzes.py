"""No notebook shows an answer: the questions stand in data files, each used in its chapter."""

import ast
import re
from collections import Counter

import nbformat
import pytest
from repofiles import findings, named

from tfbook.teaching import explain, predict, quiz
from tfbook.teaching.explorables import _questions

# A starting notebook has the questions of its lab, without the outputs.
NOTEBOOKS = [p for p in named(".ipynb", under="chapters") if p.parent.name != "start"]
ASKS = {"quiz": quiz, "predict": predict, "explain": explain}


def quizzes(notebook):
    """The calls of `quiz`, `predict` and `explain` in a notebook, each with its cell."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and any(f"{name}(" in cell.source for name in ASKS):
            for node in ast.walk(ast.parse(cell.source)):
                name = getattr(node, "func", None)
                if isinstance(node, ast.Call) and getattr(name, "id", "") in ASKS:
                    yield cell, node


def open_answers(path):
    """A call with more than a name shows which answer is right."""
    for cell, call in quizzes(nbformat.read(path, as_version=4)):
        named_only = len(call.args) == 1 and isinstance(call.args[0], ast.Constant)
        if not named_only or call.keywords:
            name = call.func.id
            yield f"cell {cell.id}: a {name} in the open; put it into the chapter's quizzes.toml"


def experiments(path):
    """A prediction and its experiment: one cell each, and the question comes first."""
    notebook = nbformat.read(path, as_version=4)
    order = [cell.id for cell in notebook.cells]
    asked = {
        call.args[0].value: order.index(cell.id)
        for cell, call in quizzes(notebook)
        if call.func.id == "predict"
    }
    shown = [
        (cell.metadata["tfbook"]["predict"], place)
        for place, cell in enumerate(notebook.cells)
        if cell.metadata.get("tfbook", {}).get("predict")
    ]
    for slug, place in shown:
        if slug not in asked:
            yield f"cell {place} shows what {slug!r} asks, which no cell does"
        elif place < asked[slug]:
            yield f"cell {place} shows what {slug!r} asks before it is asked"
        if not notebook.cells[place].get("outputs"):
            yield f"cell {place} is an experiment without outputs"
    for slug in asked:
        if [name for name, _ in shown].count(slug) != 1:
            yield f"{slug!r} is to be the prediction of one experiment"


def chapter_of(path):
    """The folder of a chapter's exercises: its road and its deeper page have one."""
    return re.sub(r"^\d+_|_deeper$", "", path.stem)


def test_no_notebook_shows_an_answer():
    assert findings(NOTEBOOKS, open_answers) == []


def test_a_planted_answer_is_found(tmp_path):
    for source in (
        "quiz('a', 'How many?', answer=3)", "quiz('a', 'How many?')", "quiz(name)",
        "predict('a', 'What?', answer=3)", "explain('a', 'Why?', model='x', rubric=r)",
    ):  # fmt: skip
        cells = [nbformat.v4.new_code_cell(source)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
        assert len(list(open_answers(tmp_path / "a.ipynb"))) == 1


def test_predictions_and_their_experiments_stand_together():
    assert findings(NOTEBOOKS, experiments) == []


OUTPUT = nbformat.v4.new_output("stream", text="8")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([("predict('a')", None, True)], "'a' is to be the prediction of one experiment"),
        ([("run()", "a", True)], "which no cell does"),
        ([("run()", "a", True), ("predict('a')", None, True)], "before it is asked"),
        ([("predict('a')", None, True), ("run()", "a", False)], "without outputs"),
        ([("predict('a')", None, True), *[("run()", "a", True)] * 2], "of one experiment"),
        ([("predict('a')", None, True), ("run()", "a", True)], None),
    ],
)
def test_a_planted_disorder_is_found(tmp_path, cells, words):
    made = [
        nbformat.v4.new_code_cell(
            source, metadata={"tfbook": {"predict": slug}} if slug else {},
            outputs=[OUTPUT] if shown else [],
        )
        for source, slug, shown in cells
    ]  # fmt: skip
    nbformat.write(nbformat.v4.new_notebook(cells=made), tmp_path / "a.ipynb")
    found = list(experiments(tmp_path / "a.ipynb"))
    assert [words in fault for fault in found] == ([True] if words else [])


def test_each_question_stands_once_in_its_own_chapter():
    used = {chapter: Counter() for chapter in _questions.chapters()}
    for path in NOTEBOOKS:
        for _, call in quizzes(nbformat.read(path, as_version=4)):
            used[chapter_of(path)][call.args[0].value] += 1
            entry = _questions.questions(chapter_of(path)).get(call.args[0].value, {})
            assert call.func.id == _questions.kind_of(entry), call.args[0].value
    assert used == {c: Counter(dict.fromkeys(_questions.questions(c), 1)) for c in used}
    names = [name for chapter in used for name in _questions.questions(chapter)]
    assert len(names) == len(set(names)) > 100


def test_what_is_stored_is_what_the_question_says():
    for path in NOTEBOOKS:
        for cell, call in quizzes(nbformat.read(path, as_version=4)):
            (output,) = cell.outputs
            made = ASKS[call.func.id](call.args[0].value)
            assert output.data == made._repr_mimebundle_(), cell.id


def guessed(places, n):
    """The share of the place where the right one of `n` choices stands most often."""
    found = Counter(place for of, place in places if of == n)
    return max(found.values()) / found.total()


def right_places():
    """Of each question with choices: how many there are, and the place of the right one."""
    for chapter in _questions.chapters():
        for entry in _questions.questions(chapter).values():
            if choices := entry.get("choices"):
                (place,) = (i for i, choice in enumerate(choices) if choice.get("right"))
                yield len(choices), place


def test_the_place_of_the_right_answer_does_not_give_it_away():
    places = list(right_places())
    assert guessed(places, 4) <= 0.4 and guessed(places, 3) <= 0.65
    assert guessed([(4, 0)] * 3 + [(4, 1)] * 2, 4) == 0.6  # such a book would be refused
