"""What all tests share: shapes checked at run time, hypothesis without a clock, the browser.

Inside of the tests every function of `tfbook` checks the shapes in its signature (jaxtyping with
beartype). Readers run without those checks, so tests of our own errors and of `torch.compile` are
marked `untyped` and run without them too.
"""

import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import jaxtyping
import kernels
import pytest
import shapecheck
from units import pytest_collection_modifyitems, pytest_xdist_make_scheduler  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

shapecheck.install()
kernels.install()

# A check that passes in a test is not the reader's.
os.environ["TFBOOK_DATA"] = tempfile.mkdtemp(prefix="tfbook-data-")

# Pictures are not compared where chapters run; they are drawn, but of few pixels.
os.environ["TFBOOK_SKETCH"] = "1"

# No test asserts a time; the same examples on every machine, so that a red test can be repeated.
hypothesis.settings.register_profile("book", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("book")


def find_browser():
    """Return the path of Chromium (or Chrome), or None; BROWSER_PATH names another one."""
    named = os.environ.get("BROWSER_PATH")
    return named or next(filter(None, map(shutil.which, BROWSERS)), None)


def pytest_report_header():
    """Say which browser is used, or that the tests which need one are left out."""
    return f"browser: {find_browser() or 'none found; tests that need one are left out'}"


def pytest_terminal_summary(terminalreporter):
    """Repeat at the end that the browser was missing, where it is read."""
    if not find_browser():
        terminalreporter.write_line(
            "No Chromium was found, so the tests of the pages in a browser did not run."
        )


@pytest.fixture(scope="session")
def browser_path():
    """Give the path of the browser; without one skip, and fail where CI promises one."""
    path = find_browser()
    if path is None:
        missing = "Chromium is not installed (Debian: apt-get install chromium)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    return path


@pytest.fixture(autouse=True)
def shape_checks(request):
    """Switch the run-time check of shapes off for a test marked `untyped`."""
    off = request.node.get_closest_marker("untyped") is not None
    jaxtyping.config.update("jaxtyping_disable", off)
    shapecheck.calls.clear()
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
