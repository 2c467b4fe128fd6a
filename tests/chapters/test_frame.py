"""Every chapter has the same frame, so that a reader knows where to look."""

import re

import nbformat
import pytest
from repofiles import ROOT

from book.tools.index import CITATION, headings

CHAPTERS = sorted((ROOT / "chapters").glob("[0-9]*.ipynb"))
FRAME = {"What to remember", "Further reading"}


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def cells(request):
    return nbformat.read(request.param, as_version=4).cells


@pytest.fixture
def prose(cells):
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.fixture
def sections(cells):
    """Pieces of prose and code cells of each section of the second level; the opening is ''."""
    found, title = {"": []}, ""
    for cell in cells:
        if cell.cell_type == "code":
            found[title].append(cell)
            continue
        for piece in re.split(r"(?m)^(?=## )", cell.source):
            if piece.startswith("## "):
                ((_, title), *_) = headings(piece)
                found[title] = []
            found[title].append(nbformat.v4.new_markdown_cell(piece))
    return found


def test_it_begins_with_its_only_title(cells, prose):
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert [level for level, _ in headings(prose)].count(1) == 1


def test_heading_levels_are_not_skipped(prose):
    levels = [level for level, _ in headings(prose)]
    for before, after in zip(levels, levels[1:], strict=False):
        assert after <= before + 1


def test_a_box_says_what_the_reader_will_be_able_to_do(cells):
    box = re.search(r"(?m)^> \*\*What you will be able to do\.\*\*(?:\n>.*)+", cells[0].source)
    assert box, "the first cell has no box 'What you will be able to do'"
    assert len(re.findall(r"^> [*-] ", box[0], re.M)) >= 3
    lower = box[0].lower()
    assert "before you start" in lower, "the box names no prerequisites"
    assert re.search(r"running time:.*(?:second|minute)", lower), "the box names no running time"


def test_it_opens_with_a_question_and_a_picture(sections):
    opening = sections[""]
    assert any("?" in c.source for c in opening if c.cell_type == "markdown")
    shown = [output.get("data", {}) for cell in opening for output in cell.get("outputs", ())]
    drawn = any("![" in cell.source for cell in opening)
    assert drawn or any("image/png" in data for data in shown)


def test_it_ends_with_what_to_remember_and_further_reading(sections):
    titles = list(sections)
    assert titles[-2:] == ["What to remember", "Further reading"]
    last = "\n".join(cell.source for cell in sections["Further reading"])
    assert last.count(CITATION) >= 2
    remember = "\n".join(cell.source for cell in sections["What to remember"])
    assert len(re.findall(r"^\s*[*-] ", remember, re.M)) >= 3


def code_of(cells):
    return "\n".join(cell.source for cell in cells if cell.cell_type == "code")


def test_main_sections_end_with_a_quiz(sections):
    mains = {t: c for t, c in sections.items() if t and t not in FRAME}
    with_quiz = [t for t, section in mains.items() if re.search(r"^quiz\(", code_of(section), re.M)]
    assert len(with_quiz) >= 2 / 3 * len(mains), f"no quiz in {sorted(set(mains) - set(with_quiz))}"
    quizzes = re.findall(r"^quiz\(", code_of(cell for s in sections.values() for cell in s), re.M)
    assert len(quizzes) >= 6


def test_quizzes_have_names_of_their_own(cells):
    names = re.findall(r"^quiz\(\s*\"([^\"]+)\"", code_of(cells), re.M)
    assert len(names) == len(set(names))
    assert len(names) == len(re.findall(r"^quiz\(", code_of(cells), re.M))


def test_there_are_exercises_at_three_levels(prose):
    assert len(re.findall(r"^> \*\*Exercise ", prose, re.M)) >= 6
    for level in ("Warm-up", "Standard", "Challenge"):
        assert f"*{level}.*" in prose, f"no exercise of the level {level}"


def marked(cells, mark):
    return [c for c in cells if isinstance(c.metadata.get("tfbook", {}).get(mark), str)]


def test_each_exercise_has_a_solution_which_passes_its_own_check(cells):
    exercises = [cell.metadata["tfbook"]["exercise"] for cell in marked(cells, "exercise")]
    passed = []
    for cell in marked(cells, "solution"):
        if "check(" in cell.source:
            shown = "\n".join(str(o.get("data", {}).get("text/plain", "")) for o in cell.outputs)
            assert re.search(r"\bpassed\b|\ball \d+ checks\b", shown), f"a solution fails:\n{shown}"
            passed.append(cell.metadata["tfbook"]["solution"])
    assert exercises and sorted(passed) == sorted(exercises)


def test_it_cites_and_it_claims(prose, cells):
    assert CITATION in prose
    assert re.search(r"^\s*claim\(", code_of(cells), re.M)
