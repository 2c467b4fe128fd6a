"""`make lab`: the reader's copies are kept, the start page lists everything, defaults are found."""

import json
import os

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel
from jupyterlab_server.settings_utils import _get_overrides
from repofiles import ROOT

from book.tools import lab


class Book:
    """Two small chapters and a lab, and the reader's folder."""

    def __init__(self, folder):
        self.chapters, self.work = folder / "chapters", folder / "work"
        (self.chapters / "start").mkdir(parents=True)
        for name in ("01_motivation", "02_attention", "lab_shakespeare", "start/lab_shakespeare"):
            self.write(name, "first")

    def write(self, name, said):
        """Store a notebook of the book, with `said` in it."""
        cells = [nbformat.v4.new_markdown_cell(f"# Title of {name}\n\n{said}", id="a")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), self.chapters / f"{name}.ipynb")

    def open(self):
        """What `make lab` does before JupyterLab begins."""
        return lab.prepare(self.chapters, self.work)

    def said(self, copy):
        """What stands in a copy."""
        (cell,) = nbformat.read(self.work / f"{copy}.ipynb", as_version=4).cells
        return cell.source.rpartition("\n")[2]

    def change(self, copy):
        """What the reader writes into a copy."""
        path = self.work / f"{copy}.ipynb"
        path.write_text(path.read_text(encoding="utf-8").replace("first", "mine"), encoding="utf-8")

    def files(self):
        """The bytes of the reader's folder."""
        paths = [path for path in self.work.rglob("*") if path.is_file()]
        return {path.relative_to(self.work).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path)


def test_every_notebook_is_copied_and_a_second_time_changes_nothing(book):
    book.open()
    before = book.files()
    assert {"01_motivation.ipynb", "start/lab_shakespeare.ipynb", "index.ipynb"} <= set(before)
    book.open()
    assert book.files() == before


def test_a_copy_that_was_not_touched_follows_the_book(book):
    book.open()
    book.write("02_attention", "second")
    assert book.open()["02_attention.ipynb"] == "02_attention.ipynb"
    assert book.said("02_attention") == "second"


def test_what_the_reader_wrote_stays_and_the_new_version_stands_beside_it(book):
    book.open()
    book.change("02_attention")
    book.open()
    assert book.said("02_attention") == "mine" and "02_attention_2.ipynb" not in book.files()
    for said in ("second", "third"):
        book.write("02_attention", said)
        assert book.open()["02_attention.ipynb"] == "02_attention_2.ipynb"
        assert (book.said("02_attention"), book.said("02_attention_2")) == ("mine", said)
    start = book.files()["index.ipynb"].decode()
    assert "(02_attention_2.ipynb)" in start and "(02_attention.ipynb)" not in start


def test_another_python_does_not_make_another_copy(book, monkeypatch):
    book.open()
    book.change("02_attention")
    before = {name: text for name, text in book.files().items() if name != "index.ipynb"}
    monkeypatch.setattr(lab, "LANGUAGE", lab.LANGUAGE | {"version": "3.99.0"})
    book.open()
    assert {name: text for name, text in book.files().items() if name != "index.ipynb"} == before


def test_a_lost_record_overwrites_nothing(book):
    book.open()
    book.change("02_attention")
    (book.work / lab.VERSIONS).unlink()
    book.write("02_attention", "second")
    book.open()
    assert (book.said("02_attention"), book.said("02_attention_2")) == ("mine", "second")


def test_a_copy_that_was_deleted_comes_again(book):
    book.open()
    (book.work / "02_attention.ipynb").unlink()
    book.open()
    assert book.said("02_attention") == "first"


def test_a_copy_says_what_this_kernel_says_so_that_opening_it_changes_nothing(book):
    book.open()
    for name in ("02_attention", "index"):
        metadata = json.loads((book.work / f"{name}.ipynb").read_text(encoding="utf-8"))["metadata"]
        assert metadata["language_info"] == IPythonKernel.language_info


def test_the_start_page_lists_every_notebook_of_the_book_with_a_line(tmp_path):
    copies = lab.prepare(lab.CHAPTERS, tmp_path / "work")
    assert len(copies) >= 16
    page = nbformat.read(tmp_path / "work" / lab.START, as_version=4)
    text = "\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")
    rows = [row for row in text.splitlines() if row.startswith("|") and ".ipynb)" in row]
    for name, copy in copies.items():
        (row,) = [row for row in rows if f"({copy})" in row]
        assert (tmp_path / "work" / copy).is_file()
        assert all(len(part.strip()) > 1 for part in row.split("|")[-3:-1]), f"{name}: {row}"
    assert "exercises passed" in page.cells[-1].outputs[0].data["text/plain"]


def test_jupyterlab_finds_the_books_defaults_and_the_readers_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    monkeypatch.setattr(os, "environ", os.environ | lab.environment())
    assert lab.environment()["JUPYTER_CONFIG_PATH"].endswith(os.pathsep + str(tmp_path))
    overrides, error = _get_overrides(str(tmp_path))
    assert not error
    assert overrides["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    found = lab.options(ROOT, ROOT / "work")
    assert f"--LabApp.default_url=/lab/tree/{lab.WORK.name}/index.ipynb" in found
    assert f"--ServerApp.root_dir={ROOT}" in found
