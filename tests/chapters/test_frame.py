"""Every chapter has the same frame, so that a reader knows where to look.

A road (`book/tools/roads.py`) has a frame of its own; the deeper page of a chapter is part of it.
"""

import re

import nbformat
import pytest
from repofiles import ROOT

from book.tools import roads
from book.tools.index import CITATION, DEEPER, headings

PAGES = sorted((ROOT / "chapters").glob("[0-9]*.ipynb"))
CHAPTERS = [path for path in PAGES if not path.stem.endswith(DEEPER)]
FRAME = {"What to remember", "Further reading"}
# Sections of a road in which nothing is taught that could be asked.
ROAD_FRAME = FRAME | {"What to do", "Often got wrong", "Exercises"}
ASKS = r"^(quiz|predict|explain)\("


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def road(path):
    return path.stem in roads.ROADS


@pytest.fixture
def cells(path):
    return nbformat.read(path, as_version=4).cells


@pytest.fixture
def chapter(path, cells):
    """The cells of the whole chapter, with those of its deeper page."""
    return cells + deeper_cells(path)


@pytest.fixture
def prose(cells):
    return prose_of(cells)


def deeper_cells(path):
    deeper = path.with_stem(f"{path.stem}{DEEPER}")
    return nbformat.read(deeper, as_version=4).cells if deeper.exists() else []


def prose_of(cells):
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.fixture
def sections(cells):
    return sections_of(cells)


def sections_of(cells):
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


def test_main_sections_end_with_a_quiz(sections, chapter, road):
    asked = ASKS if road else r"^quiz\("
    mains = {t: c for t, c in sections.items() if t and t not in (ROAD_FRAME if road else FRAME)}
    with_quiz = [t for t, section in mains.items() if re.search(asked, code_of(section), re.M)]
    assert len(with_quiz) >= 2 / 3 * len(mains), f"no quiz in {sorted(set(mains) - set(with_quiz))}"
    assert len(re.findall(r"^quiz\(", code_of(chapter), re.M)) >= 6


def test_quizzes_have_names_of_their_own(chapter):
    names = re.findall(r"^quiz\(\s*\"([^\"]+)\"", code_of(chapter), re.M)
    assert len(names) == len(set(names))
    assert len(names) == len(re.findall(r"^quiz\(", code_of(chapter), re.M))


def test_there_are_exercises_at_three_levels(chapter, road):
    """Those of a road are of several kinds instead, which are counted on the page."""
    prose = prose_of(chapter)
    assert len(re.findall(r"^> \*\*Exercise ", prose, re.M)) >= 6
    for level in ("Warm-up", "Standard", "Challenge") if not road else ():
        assert f"*{level}.*" in prose, f"no exercise of the level {level}"


def marked(cells, mark):
    return [c for c in cells if isinstance(c.metadata.get("tfbook", {}).get(mark), str)]


def kind_of(cell):
    """The kind of an exercise of a road: *By hand.*, *Predict.*, *Code.* …"""
    said = re.search(r"\)\.\*\*[\s>]+\*([^*]+)\*", cell.source)
    return roads.kind(said[1]) if said else "none"


def answers(cells):
    """Exercises whose solution passes its own check, those that are solved, and those asked."""
    passed, solved, asked, exercise = [], set(), set(), ""
    for cell in cells:
        marks = cell.metadata.get("tfbook", {})
        if cell.cell_type == "markdown":
            exercise = marks.get("exercise", "")
        if isinstance(marks.get("solution"), str):
            solved.add(marks["solution"])
            if "check(" in cell.source:
                plain = [str(o.get("data", {}).get("text/plain", "")) for o in cell.outputs]
                shown = "\n".join(plain)
                assert re.search(r"\bpassed\b|\ball \d+ checks\b", shown), f"fails:\n{shown}"
                passed.append(marks["solution"])
        elif cell.cell_type == "code" and re.search(ASKS, cell.source, re.M):
            asked.add(exercise)  # in the cells right below it
    return passed, solved, asked


def test_each_exercise_has_a_solution_which_passes_its_own_check(chapter, road):
    """On a road, what is coded, built or broken does; the rest is answered in a box or solved."""
    cells = marked(chapter, "exercise")
    passed, solved, asked = answers(chapter)
    names = [cell.metadata["tfbook"]["exercise"] for cell in cells]
    checked = [c for c in cells if not road or kind_of(c) in ("code", "build", "break it")]
    wanted = [cell.metadata["tfbook"]["exercise"] for cell in checked]
    assert names and sorted(wanted) == sorted(passed)
    assert set(names) - set(passed) <= solved | asked


def test_it_cites_and_it_claims(prose, cells):
    assert CITATION in prose
    assert re.search(r"^\s*claim\(", code_of(cells), re.M)


def deeper_faults(cells):
    """Yield what a deeper page lacks: its sections stand alone, and say whom they are for."""
    levels = [level for level, _ in headings(prose_of(cells))]
    if not cells[0].source.startswith("# ") or levels.count(1) != 1:
        yield "does not begin with its only title"
    if any(after > before + 1 for before, after in zip(levels, levels[1:], strict=False)):
        yield "skips a level of headings"
    for title, section in list(sections_of(cells).items())[1:]:
        words = section[0].source.partition("\n")[2].strip() or section[1].source
        if title not in FRAME and not re.match(r"[>*_ ]*Read this when ", words):
            yield f"{title!r} does not open with 'Read this when'"


def test_deeper_pages_say_when_to_read_each_section():
    for page in PAGES:
        if page.stem.endswith(DEEPER):
            assert list(deeper_faults(nbformat.read(page, as_version=4).cells)) == [], page.stem


def test_a_planted_fault_of_a_deeper_page_is_found():
    text = nbformat.v4.new_markdown_cell
    good = [text(t) for t in ("# T", "## A\n\nText.", "## B", "Read this when you")]
    assert [*deeper_faults(good)] == ["'A' does not open with 'Read this when'"]
    good[1] = text("## A\n\n> *Read this when you.*\n\n### C\n\nText.")
    assert [*deeper_faults(good)] == []
    assert [*deeper_faults([text("# T\n\n### C")])] == ["skips a level of headings"]
    assert [*deeper_faults([text("## T\n\nRead this when it")])]
