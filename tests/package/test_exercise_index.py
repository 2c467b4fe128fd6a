"""The index of the exercises: it says what the files hold, and a check reads one file only."""

import importlib
import pkgutil
import re
import subprocess
import sys

from tfbook.teaching import exercises
from tfbook.teaching.exercises._index import FILES

ROOM = exercises.__name__
FOUND = sorted(
    module.name.removeprefix(f"{ROOM}.")
    for module in pkgutil.walk_packages(exercises.__path__, f"{ROOM}.")
    if not module.ispkg and not module.name.rpartition(".")[2].startswith("_")
)
HELD = {file: importlib.import_module(f"{ROOM}.{file}").EXERCISES for file in FOUND}
# What is imported in a new process, first by asking for names, then by one check.
FRESH = """
import sys
from tfbook.teaching.exercises import check, describe, names

assert len(names()) > 90
try:
    describe("stable-sofmax")
except ValueError as error:
    assert "did you mean 'stable-softmax'" in str(error)
else:
    raise AssertionError("found")
print(*sys.modules)
check("stable-softmax", lambda scores: (scores - scores.amax(-1, keepdim=True)).softmax(-1))
print(*sys.modules)
"""
DRAWS = {"matplotlib", "IPython", "anywidget"}


PARTS = ("_card", "_guard", "_index", "_progress", "_spec")
SHARED = {
    "tfbook.teaching", "tfbook.teaching.boxes", ROOM, *(f"{ROOM}.{part}" for part in PARTS)
}  # fmt: skip


def test_the_index_is_what_the_files_hold():
    held = [(exercise.name, file) for file, found in HELD.items() for exercise in found]
    assert len(held) == len(dict(held)), "two exercises have one name"
    assert dict(held) == FILES


def chapter_of(exercise):
    """A road and its deeper page are one chapter."""
    return re.match(r"chapters/(\w+?)(?:_deeper)?, section ", exercise.section)[1]


def test_the_order_is_by_chapter_and_then_by_level():
    by_name = {exercise.name: exercise for found in HELD.values() for exercise in found}
    order = [(chapter_of(by_name[name]), by_name[name].level) for name in FILES]
    assert order == sorted(order)
    assert exercises.names() == tuple(FILES)


def test_a_folder_is_named_after_its_chapter():
    for file, found in HELD.items():
        for exercise in found:
            chapter = re.fullmatch(r"(?:\d+_)?(\w+)", chapter_of(exercise))[1]
            assert file.partition(".")[0] == chapter, exercise.name


def test_a_check_loads_the_file_of_the_exercise_and_no_other():
    done = subprocess.run(
        [sys.executable, "-c", FRESH], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    asked, card, checked = done.stdout.splitlines()
    assert "passed" in card
    before, after = (
        {name for name in line.split() if name.startswith("tfbook.") or name in DRAWS}
        for line in (asked, checked)
    )
    assert before == SHARED
    assert after == SHARED | {f"{ROOM}.attention", f"{ROOM}.attention.softmax"}
