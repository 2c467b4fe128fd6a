"""Schematic drawings: what is asked for is on the sheet, and what is odd is refused."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from tfbook.teaching import Drawing, who_sees_whom
from tfbook.teaching.plotting import Place
from tfbook.teaching.plotting._drawing import TONES, WIDTH

ALT = "A block, a matrix of two rows and an arrow from one to the other."


@pytest.fixture
def shown(monkeypatch):
    """Collect what is displayed, as (data, metadata)."""
    outputs = []
    monkeypatch.delenv("TFBOOK_SKETCH")
    monkeypatch.setattr(
        "IPython.display.display", lambda data, *, metadata, raw: outputs.append((data, metadata))
    )
    return outputs


def words(sheet):
    return [text.get_text() for text in sheet.ax.texts]


def colours(sheet):
    return {to_hex(patch.get_edgecolor()) for patch in sheet.ax.patches}


def test_a_drawing_is_one_picture_marked_as_such(shown):
    sheet = Drawing(3)
    block = sheet.block(1, 1, 2, 1, "x", shape="4 × 2", tone="orange")
    matrix = sheet.matrix(6, 1, [[1, 2], [3, 4]], label="Q", shape="2 × 2", focus=1)
    sheet.arrow(block.right, matrix.left, "W", tone="green")
    sheet.show(title="A title that says what to see", alt=ALT)
    ((data, metadata),) = shown
    assert metadata["image/png"]["kind"] == "drawing" and metadata["image/png"]["alt"] == ALT
    assert data["text/plain"] == f"Figure: A title that says what to see. {ALT}"
    assert {"x", "4 × 2", "Q (2 × 2)", "W", "1.0", "4.0"} <= set(words(sheet))
    assert {TONES["orange"], TONES["blue"], TONES["green"]} <= colours(sheet)


def test_the_sheet_keeps_its_scale_below_the_title(shown):
    """A unit is half an inch, across and down, whatever the title takes."""
    for title in ("Short", "A title that is so long that it has to be written in two lines"):
        sheet = Drawing(4)
        sheet.block(0, 0, 12.4, 4)
        sheet.show(title=title, alt=ALT)
        box = sheet.ax.get_position()
        inches = sheet.fig.get_size_inches()
        assert box.width * inches[0] == pytest.approx(WIDTH)
        assert box.height * inches[1] == pytest.approx(2.0)
        assert sheet.fig._suptitle.get_window_extent().y0 >= box.y1 * inches[1] * sheet.fig.dpi
    picture = np.asarray(Image.open(io.BytesIO(shown[-1][0]["image/png"])).convert("RGB"))
    assert picture.min() < 100  # something is drawn


def test_a_matrix_writes_its_numbers_and_frames_one_row():
    sheet = Drawing(4)
    place = sheet.matrix(2, 1, [[0.5, -1], [0.25, 2]], rows=["a", "b"], cols=["c", "d"], focus=0,
                         digits=2)  # fmt: skip
    assert [w for w in words(sheet) if w not in "abcd"] == ["0.50", "−1.00", "0.25", "2.00"]
    bold = [text.get_text() for text in sheet.ax.texts if text.get_fontweight() == "bold"]
    assert bold == ["a"]
    frames = [p for p in sheet.ax.patches if p.get_linewidth() == 3]
    row = place.row(0)
    assert [(f.get_x(), f.get_y(), f.get_width(), f.get_height()) for f in frames] == [
        (row.x, row.y, row.width, row.height)
    ]
    assert place.row(1).left == (2, pytest.approx(1 + 0.62 * 1.5))


def test_matrices_with_the_same_largest_can_be_compared():
    def grounds(numbers, **choices):
        sheet = Drawing(4)
        sheet.matrix(2, 1, [numbers], **choices)
        return [patch.get_facecolor() for patch in sheet.ax.patches if patch.get_fill()]

    small, large = grounds([0.5, 1.0], largest=2), grounds([1.0, 2.0], largest=2)
    assert small[1] == large[0] and small[1] != large[1]
    assert grounds([1.0, 2.0]) == large  # its own largest, when none is named
    assert grounds([2.0, 7.0], largest=2) == [large[1]] * 2  # no stronger than full
    assert grounds([0.5, 1.0]) == large != small
    for wrong in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="largest must be a number above 0"):
            Drawing(4).matrix(2, 1, [1.0], largest=wrong)


def test_what_is_not_allowed_is_hatched_and_empty(shown):
    allowed = np.tril(np.ones((3, 3)))
    who_sees_whom(allowed, rows="abc", cols="abc", title="Nobody reads to the right", alt=ALT)
    sheet = Drawing(4)
    sheet.matrix(1, 1, [[1, np.nan], [3, 4]], allowed=[[True, False], [True, True]])
    assert sum(patch.get_hatch() is not None for patch in sheet.ax.patches) == 1
    assert sorted(words(sheet)) == ["1.0", "3.0", "4.0"]


def test_arrows_in_the_plane_end_where_the_numbers_say():
    sheet = Drawing(6)
    sheet.plane(1, 1, 4, {"q": [1.0, 0.5]}, limit=2, tones={"q": "blue"})
    (arrow,) = [p for p in sheet.ax.patches if hasattr(p, "get_arrowstyle")]
    assert arrow._posA_posB == [(3, 3), (4, 2.5)]


def test_a_stream_lies_below_what_is_drawn_upon_it():
    sheet = Drawing(6)
    sheet.stream((2, 5), (2, 1), "x", tone="plum")
    sheet.block(1, 2, 2, 1, "norm")
    arrow, block = sheet.ax.patches
    assert arrow.get_zorder() < block.get_zorder()
    assert {"x", "norm"} <= set(words(sheet)) and to_hex(arrow.get_edgecolor()) == TONES["plum"]


def test_a_route_goes_from_point_to_point_and_carries_its_words_on_the_last_line():
    sheet = Drawing(6)
    sheet.route([(1, 5), (4, 5), (4, 1)], "reads", tone="plum", above=0.5)
    (arrow,) = sheet.ax.patches
    assert arrow._path_original.vertices.tolist() == [[1, 5], [4, 5], [4, 1]]
    (text,) = sheet.ax.texts
    assert (text.get_text(), text.get_position()) == ("reads", (4, 2.5))


def test_a_plus_sign_is_where_it_is_said_to_be():
    sheet = Drawing(6)
    place = sheet.plus(3, 2, tone="orange")
    (circle,) = sheet.ax.patches
    assert circle.center == (3, 2) and place.left == (pytest.approx(2.68), 2)
    across, down = (line.get_xydata().tolist() for line in sheet.ax.get_lines())
    assert across == [[2.83, 2], [3.17, 2]] and down == [[3, 1.83], [3, 2.17]]


@pytest.mark.parametrize(
    ("opens", "tip", "align"), [("right", 1.25, "right"), ("left", 0.75, "left")]
)
def test_a_bracket_opens_towards_what_repeats(opens, tip, align):
    sheet = Drawing(6)
    sheet.bracket(1, 2, 5, "× L", opens=opens)
    (line,) = sheet.ax.get_lines()
    assert line.get_xydata().tolist() == [[tip, 2], [1, 2], [1, 5], [tip, 5]]
    (text,) = sheet.ax.texts
    assert text.get_ha() == align and text.get_position()[1] == 3.5


def test_cells_are_as_tall_as_is_asked():
    sheet = Drawing(6)
    place = sheet.matrix(0, 1, np.ones((4, 2)), cell=0.3, tall=0.25, written=False)
    assert (place.width, place.height) == (0.6, 1.0)
    assert place.row(3).y == pytest.approx(1.75)


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda s: Drawing(0), "height must be positive, got 0"),
        (lambda s: s.block(0, 0, 1, 1, tone="red"), "tone must be one of blue"),
        (lambda s: s.text(0, 0, "x", size="huge"), "size must be one of"),
        (lambda s: s.matrix(0, 0, [[1, 2]], rows=["a", "b"]), "rows must have 1 entries, got 2"),
        (lambda s: s.matrix(0, 0, [[1, 2]], focus=1), "index must be from 0 to 0, got 1"),
        (lambda s: s.matrix(0, 0, [[1, float("nan")]]), "numbers must be finite"),
        (lambda s: s.matrix(0, 0, np.zeros((2, 2, 2))), "numbers must be"),
        (lambda s: s.matrix(0, 0, [[1, 2]], allowed=[True]), "allowed must have shape"),
        (lambda s: s.plane(0, 0, 2, {"q": [3, 0]}, limit=2), "at most 2"),
        (lambda s: s.plane(0, 0, 2, {"q": [1]}, limit=2), "must be two numbers"),
        (lambda s: s.plane(0, 0, 2, {"q": [1, 1]}, limit=0), "limit must be positive"),
        (lambda s: s.route([(1, 1)]), "points must be at least two, got 1"),
        (lambda s: s.bracket(1, 2, 3, "", opens="up"), "opens must be right or left, got 'up'"),
        (lambda s: s.plus(1, 1, tone="red"), "tone must be one of blue"),
        (lambda s: s.show(title="", alt=ALT), "title must be a sentence"),
        (lambda s: s.show(title="A title", alt="plot"), "alt must say"),
        (lambda s: Place(0, 0, 1, 1).row(1), "index must be from 0 to 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises((ValueError, TypeError), match=message):
        draw(Drawing(3))
