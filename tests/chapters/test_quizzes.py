"""No notebook shows an answer: the questions stand in data files, each used in its chapter."""

import ast
import re
from collections import Counter

import nbformat
from repofiles import findings, named

from tfbook.teaching import quiz
from tfbook.teaching.explorables import _questions

NOTEBOOKS = named(".ipynb", under="chapters")


def quizzes(notebook):
    """The calls of `quiz` in a notebook, each with its cell."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and "quiz(" in cell.source:
            for node in ast.walk(ast.parse(cell.source)):
                name = getattr(node, "func", None)
                if isinstance(node, ast.Call) and getattr(name, "id", "") == "quiz":
                    yield cell, node


def open_answers(path):
    """A call with more than a name shows which answer is right."""
    for cell, call in quizzes(nbformat.read(path, as_version=4)):
        named_only = len(call.args) == 1 and isinstance(call.args[0], ast.Constant)
        if not named_only or call.keywords:
            yield f"cell {cell.id}: a quiz in the open; put it into the chapter's quizzes.toml"


def chapter_of(path):
    """The folder of a chapter's exercises: its road and its deeper page have one."""
    return re.sub(r"^\d+_|_deeper$", "", path.stem)


def test_no_notebook_shows_an_answer():
    assert findings(NOTEBOOKS, open_answers) == []


def test_a_planted_answer_is_found(tmp_path):
    for source in ("quiz('a', 'How many?', answer=3)", "quiz('a', 'How many?')", "quiz(name)"):
        cells = [nbformat.v4.new_code_cell(source)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
        assert len(list(open_answers(tmp_path / "a.ipynb"))) == 1


def test_each_question_stands_once_in_its_own_chapter():
    used = {chapter: Counter() for chapter in _questions.chapters()}
    for path in NOTEBOOKS:
        for _, call in quizzes(nbformat.read(path, as_version=4)):
            used[chapter_of(path)][call.args[0].value] += 1
    assert used == {c: Counter(dict.fromkeys(_questions.questions(c), 1)) for c in used}
    names = [name for chapter in used for name in _questions.questions(chapter)]
    assert len(names) == len(set(names)) > 100


def test_what_is_stored_is_what_the_question_says():
    for path in NOTEBOOKS:
        for cell, call in quizzes(nbformat.read(path, as_version=4)):
            (output,) = cell.outputs
            assert output.data == quiz(call.args[0].value)._repr_mimebundle_(), cell.id
