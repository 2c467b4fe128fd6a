"""Every committed notebook is in its normal form, without errors, warnings, addresses, weight."""

import base64
import json
import re

import nbformat
import pytest
from repofiles import ROOT

from book.tools import notebooks

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
CHAPTER_BYTES = 3_000_000
IMAGE_BYTES = 150_000
CODE_LINES = 25
TIMING = "nbval-ignore-output"
TAGS = {"hide-input", "hide-cell", "hide-output", "remove-input", TIMING}
# A path, an address in memory, or a warning has no business in a published output.
MACHINE = re.compile(
    "|".join(
        [r"/ho" + r"me/", r"/Us" + r"ers/", r"/wo" + r"rk/", r"/t" + r"mp/", r"/ro" + r"ot/"]
        + [r"[A-Z]:\\", r"site-" + r"packages", r"\bat 0x[0-9a-f]{6,}", r"\bWarning\b"]
        + [r"<ipython-input"]
    )
)
ALT_PLACEHOLDERS = {"plot", "figure", "image", "picture", "plot output", "graph", "chart"}
FORBIDDEN = re.compile(r"\b(?:interact|interactive|interactive_output|widgets\.Output|Output)\s*\(")
MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\(")
HTML_IMAGE = re.compile(r"<img\b[^>]*>", re.I)


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


@pytest.fixture
def code(notebook):
    return [(n, cell) for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


@pytest.fixture
def outputs(code):
    return [(number, output) for number, cell in code for output in cell.outputs]


def tags(cell):
    return set(cell.metadata.get("tags", ()))


def test_there_is_a_chapter():
    assert CHAPTERS


def test_it_is_in_the_normal_form(path, notebook):
    """The form `make notebooks` writes: ids, counts, kernel, no timestamps, no widget states."""
    raw = path.read_text(encoding="utf-8")
    nbformat.validate(notebook)
    normal = nbformat.writes(notebooks.normalise(notebook)).rstrip("\n") + "\n"
    assert raw == normal, f"run `make notebooks CHAPTER={path.stem}`"


def test_cell_ids_are_there_and_differ(path):
    names = [cell.get("id") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    assert all(names)
    assert len(names) == len(set(names))


def test_it_ran_from_top_to_bottom(code):
    assert [cell.execution_count for _, cell in code] == list(range(1, len(code) + 1))


def test_it_runs_on_the_kernel_that_everyone_has(notebook):
    assert notebook.metadata.kernelspec.name == "python3"


def test_no_cell_fails_or_warns(notebook):
    assert notebooks.complaints(notebook) == []


def test_no_output_names_a_machine_an_address_or_a_warning(outputs):
    for number, output in outputs:
        data = output.get("data", {})
        texts = [output.get("text", "")] + [v for k, v in data.items() if k.startswith("text/")]
        for text in texts:
            found = MACHINE.search(text)
            assert not found, f"cell {number}: {found[0]!r} in an output"


def test_no_widget_view_is_stored(outputs):
    for number, output in outputs:
        views = [kind for kind in output.get("data", {}) if "widget" in kind]
        assert not views, f"cell {number}: {views}"


def test_every_output_has_a_text_form(outputs):
    for number, output in outputs:
        if "data" in output:
            assert output.data.get("text/plain"), f"cell {number}"


def test_pictures_are_light(outputs):
    for number, output in outputs:
        for kind, content in output.get("data", {}).items():
            if kind.startswith("image/"):
                size = len(content) if kind.endswith("svg+xml") else len(base64.b64decode(content))
                assert size <= IMAGE_BYTES, f"cell {number}: a picture of {size:,} bytes"


def test_pictures_say_what_they_show(outputs):
    for number, output in outputs:
        for kind in output.get("data", {}):
            if kind.startswith("image/"):
                alt = output.metadata.get(kind, {}).get("alt", "").strip()
                assert len(alt) >= 25, f"cell {number}: a picture without alternative text"
                assert alt.lower() not in ALT_PLACEHOLDERS


def test_markdown_images_say_what_they_show(notebook):
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "markdown":
            continue
        for alt in MARKDOWN_IMAGE.findall(cell.source):
            assert len(alt) >= 25, f"cell {number}: an image without alternative text"
        for image in HTML_IMAGE.findall(cell.source):
            found = re.search(r'alt="([^"]*)"', image)
            assert found, f"cell {number}: an image without alternative text"
            assert len(found[1]) >= 25


def test_the_chapter_is_light(path):
    assert path.stat().st_size <= CHAPTER_BYTES


def test_few_outputs_are_left_out_of_the_comparison(code):
    timings = [number for number, cell in code if TIMING in tags(cell)]
    assert len(timings) * 8 <= len(code), f"cells {timings}"
    for number, cell in code:
        marks = "NBVAL_", "PYTEST_VALIDATE"
        assert not any(mark in cell.source for mark in marks), f"cell {number}: use a tag instead"


def test_no_claim_is_left_out_of_the_comparison(code):
    for number, cell in code:
        if TIMING in tags(cell):
            assert not re.search(r"\bclaim\(", cell.source), f"cell {number}"


def test_tags_are_known(notebook):
    for number, cell in enumerate(notebook.cells):
        unknown = tags(cell) - TAGS
        assert not unknown, f"cell {number}: {unknown}"


def test_no_widget_that_hangs_or_is_dead_in_a_page(code):
    for number, cell in code:
        assert not FORBIDDEN.search(cell.source), f"cell {number} uses interact or Output"


def test_code_cells_are_short(code):
    for number, cell in code:
        lines = len(cell.source.splitlines())
        assert lines <= CODE_LINES, f"cell {number} has {lines} lines: move code to tfbook"


def test_code_needs_no_network_no_shell_and_no_gpu(code):
    for number, cell in code:
        found = re.search(r"^\s*[!%]|\burlopen\b|\brequests\.|\.cuda\(\)", cell.source, re.M)
        assert not found, f"cell {number}: {found[0]!r}"


def test_seeds_are_set_once(code):
    seed = re.compile(r"^torch\.manual_seed\(", re.M)
    seeds = [number for number, cell in code if seed.search(cell.source)]
    assert len(seeds) <= 1, f"cells {seeds}"
