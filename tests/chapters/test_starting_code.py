"""Where an exercise is to find a planted fault, the cell shows the code that has it."""

import ast
import inspect

import nbformat
import pytest
from repofiles import findings, named

from tfbook.teaching import exercises

NOTEBOOKS = named(".ipynb", under="chapters")
FAULTY = """
def mean(x):
    \"\"\"Return the mean.\"\"\"
    return sum(x)
"""


def plain(function):
    """What a function does, as text without its docstring; nothing where there is none."""
    if function is None:
        return None
    body = function.body[1:] if ast.get_docstring(function) else function.body
    names = [argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)]
    return names, [ast.unparse(node) for node in body]


def to_mend():
    """The exercises with a planted fault: name → the function that has it."""
    found = map(exercises._find, exercises.names())
    return {e.name: ast.parse(inspect.getsource(e.stub)).body[0] for e in found if e.broken}


def other_code(path, faulty=None):
    """The function above a check is the one that is to be mended."""
    faulty = to_mend() if faulty is None else faulty
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "code" or cell.metadata.get("tfbook", {}).get("solution"):
            continue
        if not any(f'"{name}"' in cell.source for name in faulty):
            continue
        tree = ast.parse(cell.source)
        shown = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "check":
                wanted = faulty.get(node.args[0].value)
                if wanted and plain(shown.get(wanted.name)) != plain(wanted):
                    yield f"cell {cell.id} does not show the code of {node.args[0].value!r}"


def test_the_code_to_begin_with_stands_in_the_notebook():
    assert findings(NOTEBOOKS, other_code) == []


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        (FAULTY, 0),
        ("def mean(x):\n    # where?\n    return sum(x)\n", 0),
        ("def mean(x):\n    ...\n", 1),
        ("def other(x):\n    return sum(x)\n", 1),
    ],
)
def test_other_code_is_found(tmp_path, source, faults):
    cell = nbformat.v4.new_code_cell(source + '\n\ncheck("mend", mean)')
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "a.ipynb")
    faulty = {"mend": ast.parse(FAULTY).body[0]}
    assert len(list(other_code(tmp_path / "a.ipynb", faulty))) == faults
