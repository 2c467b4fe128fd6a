"""What a test process does in one go, and which of these pieces of work begin early."""

import fnmatch
import re

import pytest

# Which file takes its time, longest first; all others follow as they come. What is long begins
# early, so that at the end small files keep every process busy. A file that is missing here costs
# nothing but a few idle seconds.
LONG = (
    "tests/site/test_jupyterlab.py",  # beside it nothing that starts a browser
    "tests/package/test_exercises.py",
    "chapters/12_generation.ipynb",  # it and two more read 540 MB a token, one at a time
    "tests/site/test_explorables.py",
    "chapters/project_generation.ipynb",
    "tests/package/test_*experiment*.py",
    "chapters/*.ipynb",
    "tests/site/test_pages.py",
    "tests/site/test_kinds.py",
    "tests/site/test_paper.py",
    "tests/site/test_live_model.py",
    "tests/site/test_live_training.py",
    "tests/site/test_live_translator.py",
    "tests/package/test_*mutants.py",
    "tests/site/test_build.py",
    "tests/package/test_pretrained.py",
    "tests/package/test_ranks.py",
    "tests/package/test_resume.py",
)
# Tests that any process may take, apart from the rest of their file: none shares what is dear.
ALONE = re.compile(r"::test_(pages|chapters)_have_no_fault\[")


def unit_of(name):
    """What one process does in one go: a file (a notebook is one) or a test that stands alone."""
    return name if ALONE.search(name) else name.split("::", 1)[0]


def place(name):
    """Where the unit of a test stands among all: small is early."""
    file = name.split("::", 1)[0]
    return next((i for i, long in enumerate(LONG) if fnmatch.fnmatch(file, long)), len(LONG))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Let long files begin; within a file nothing changes its place."""
    items.sort(key=lambda item: place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile` deal out these units, each as soon as a process is free for it."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return unit_of(nodeid)

    return Units(config, log)
