"""nbval as `make test` runs it: a measured figure may differ, anything else may not."""

import re
import subprocess
import sys

import nbformat
import pytest
from repofiles import ROOT

from tfbook.teaching.claims import evaluate

CLAIM = """\
from tfbook.teaching.claims import claim
claim('a-b', 'Half is half.', 0.5004, 0.5, 1e-3, wrong=0.6)"""
STORED = "claim a-b: Half is half. | measured 0.5004 | expected 0.5 ± 0.001 | not 0.6"
HTML = evaluate("a-b", "Half is half.", 0.5004, 0.5, 1e-3, wrong=0.6)._html()


def options():
    """The options that the Makefile gives to nbval."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (call,) = re.findall(r"-m pytest (.*)", makefile)
    return re.findall(r"--nbval\S*(?: (?:[\w/.]+\.cfg|\d+)\b)?", call)


def cell(change=lambda text: text, printed="1.25\n"):
    outputs = [
        nbformat.v4.new_output(
            "display_data", data={"text/plain": change(STORED), "text/html": change(HTML)}
        ),
        nbformat.v4.new_output("stream", name="stdout", text=printed),
    ]
    return nbformat.v4.new_code_cell(f"{CLAIM}\nprint(1.25)", outputs=outputs)


# A cell of the notebook each: what it stores, and whether that passes for the same.
CASES = {
    "as_stored": (cell(), True),
    "another_measurement": (cell(lambda t: t.replace("0.5004", "0.4997")), True),
    "another_expectation": (cell(lambda t: t.replace("0.5 ±", "0.51 ±")), False),
    "another_sentence": (cell(lambda t: t.replace("is half", "is a half")), False),
    "another_wrong_value": (cell(lambda t: t.replace("0.6", "0.7")), False),
    "another_print": (cell(printed="1.26\n"), False),
}


@pytest.mark.slow
def test_only_measured_figures_may_differ(tmp_path):
    cells = [content for content, _ in CASES.values()]
    for number, content in enumerate(cells, start=1):
        content.execution_count = number
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "cases.ipynb")
    flags = " ".join(options()).split()
    assert "--nbval-sanitize-with" in flags
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    failed = set(re.findall(r"FAILED \S*cases\.ipynb::Cell (\d+)", done.stdout))
    names = [name for number, name in enumerate(CASES) if str(number) in failed]
    assert names == [name for name, (_, same) in CASES.items() if not same], done.stdout
    assert f"{len(names)} failed, {len(CASES) - len(names)} passed" in done.stdout


def test_notebooks_are_compared_not_only_run():
    assert "--nbval" in options()
    assert not any("lax" in option for option in options())
