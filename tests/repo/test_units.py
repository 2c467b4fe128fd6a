"""The order in which several test processes share the work."""

import subprocess
import sys
from fnmatch import fnmatch

from repofiles import ROOT, files, short
from units import ALONE, LONG, place, unit_of

CONFTEST = """
import sys
sys.path.insert(0, {tests!r})
from units import pytest_xdist_make_scheduler
def pytest_runtest_logreport(report):
    if report.when == "call" and hasattr(report, "node"):
        with open("ran", "a") as file:
            print(report.node.gateway.id, report.nodeid, file=file)
"""
TESTS = """
import time, pytest
@pytest.mark.parametrize("part", range(6))
def test_pages_have_no_fault(part):
    time.sleep(0.3)
@pytest.mark.parametrize("row", range(6))
def test_other(row):
    time.sleep(0.1)
"""


def test_what_is_called_long_exists():
    names = [short(path) for path in files()]
    assert [long for long in LONG if not any(fnmatch(name, long) for name in names)] == []
    for file, name in (("pages", "pages"), ("explorables", "chapters")):
        text = (ROOT / "tests" / "site" / f"test_{file}.py").read_text(encoding="utf-8")
        assert f"def test_{name}_have_no_fault(" in text
        assert ALONE.search(f"::test_{name}_have_no_fault[")


def test_a_file_is_a_unit_and_so_is_each_share_of_the_pages():
    share = "tests/site/test_pages.py::test_pages_have_no_fault[3]"
    assert unit_of(share) == share
    assert unit_of("tests/site/test_pages.py::test_search[a::b]") == "tests/site/test_pages.py"
    assert unit_of("chapters/02_attention.ipynb::Cell 7") == "chapters/02_attention.ipynb"


def test_long_files_stand_before_the_others():
    assert place("chapters/01_x.ipynb::Cell 0") < place("tests/site/test_pages.py::test_a")
    assert place(f"{LONG[0]}::test_a") == 0
    assert place("tests/repo/test_units.py::test_a") == len(LONG)


def test_two_processes_share_the_units(tmp_path):
    """A file stays in one process and in its order; what stands alone goes to both."""
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tests=str(ROOT / "tests")))
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    command += ["--no-loadscope-reorder", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command += ["-p", "no:jaxtyping", "-p", "no:nbval", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert len(ran) == 24
    assert {worker for worker, name in ran if "no_fault" in name} == {"gw0", "gw1"}
    for file in ("test_a.py", "test_b.py"):
        others = [(w, name) for w, name in ran if f"{file}::test_other" in name]
        assert len({worker for worker, _ in others}) == 1
        assert [name[-2] for _, name in others] == list("012345")
