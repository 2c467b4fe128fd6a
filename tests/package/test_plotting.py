"""Pictures: small, deterministic, described, and refused when they cannot be."""

import base64
import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tfbook.teaching import plotting
from tfbook.teaching.plotting import _curves, _look, _maps
from tfbook.teaching.plotting._drawing import TONES

ALT = "Five curves that fall from one towards zero, the steepest first."
TOKENS = ["the", "cat", "sat"]


@pytest.fixture(autouse=True)
def in_full(monkeypatch):
    """Draw pictures as readers see them."""
    monkeypatch.delenv("TFBOOK_SKETCH")


@pytest.fixture
def shown(monkeypatch):
    """Collect what is displayed, as (data, metadata)."""
    outputs = []

    def display(data, *, metadata, raw):
        assert raw
        outputs.append((data, metadata))

    monkeypatch.setattr("IPython.display.display", display)
    return outputs


@pytest.fixture
def first(shown):
    """Give what the first call of its kind displays; it is drawn once."""

    def first(name):
        if name not in FIRST:
            assert CALLS[name](title="What to see", alt=ALT) is None
            (FIRST[name],) = shown
            shown.clear()
        return FIRST[name]

    return first


FIRST = {}


def pixels(output):
    """The picture as an array (height, width, 3)."""
    return np.asarray(Image.open(io.BytesIO(output[0]["image/png"])).convert("RGB"))


def near(picture, colour, tolerance=12):
    """How many pixels are close to a colour."""
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    return int((np.abs(picture.astype(int) - wanted).max(-1) <= tolerance).sum())


RNG = np.random.default_rng(7)
CALLS = {
    "heatmap": lambda **kw: plotting.heatmap(RNG_MATRIX, rows=TOKENS, **kw),
    "heatmap of many": lambda **kw: plotting.heatmap({"a": RNG_LARGE, "b": -RNG_LARGE}, **kw),
    "lines": lambda **kw: plotting.lines(
        [1, 2, 4, 8], {"raw": [1, 2, 4, 8], "scaled": [1, 1, 1, 1]}, xlabel="d", ylabel="variance",
        xlog=True, ylog=True, bands={"raw": ([0.5, 1, 2, 4], [2, 4, 8, 16])}, levels={"law": 3},
        **kw,
    ),
    "lines with ends": lambda **kw: plotting.lines(
        [1, 2], {"raw": [1, 2], "scaled": [1, 1.99]}, xlabel="d", ylabel="variance", ends=True, **kw
    ),
    "named ends": lambda **kw: plotting.lines(
        [0, 1], {"old": [4, 2], "new": [4, 2]}, xlabel="step", ylabel="loss", muted=["old"],
        ends={"old": "orange", "new": "blue", "seen": None}, points={"seen": ([0, 1], [3, 2])},
        levels={"law": 3.5}, marks={"here": 0.5}, **kw,
    ),
    "roofline": lambda **kw: plotting.roofline(
        {"one": [(0.5, 9, "1 row")], "two": [(10, 80, "20 rows")]}, peak=100, bandwidth=20,
        ylabel="FLOPs a second", **kw
    ),
    "spreads": lambda **kw: plotting.spreads(
        {"none": [2.6, 2.7], "two": [3.1, 3.3]}, xlabel="loss", level="none",
        notes={"two": "43,455"}, noted="parameters", **kw
    ),
    "bars": lambda **kw: plotting.bars({"cat": 0.7, "mat": 0.3}, ylabel="weight", **kw),
    "bars in groups": lambda **kw: plotting.bars(
        {"T = 1": [0.2, 0.5, 0.3], "T = 0.1": [0, 1, 0]}, labels=TOKENS, ylabel="weight", **kw
    ),
    "lying bars": lambda **kw: plotting.bars(
        {"a long label here": 1, "another long label": -2}, ylabel="seconds", **kw
    ),
    "lying bars and a level": lambda **kw: plotting.bars(
        {"a long label here": 1, "another long label": 2}, ylabel="s", levels={"law": 1.5}, **kw
    ),
    "bars and a level": lambda **kw: plotting.bars(
        {"cat": 0.7, "mat": 0.3}, ylabel="weight", levels={"alike": 0.5}, **kw
    ),
    "tensor_picture": lambda **kw: plotting.tensor_picture(RNG_CUBE, names=("B", "N", "D"), **kw),
    "tensor with labels": lambda **kw: plotting.tensor_picture(
        RNG_MATRIX, rows=TOKENS, cols=list("abcde"), **kw
    ),
}  # fmt: skip
RNG_MATRIX = RNG.normal(size=(3, 5))
RNG_LARGE = RNG.random(size=(47, 53))
RNG_CUBE = RNG.normal(size=(2, 3, 5))


def test_a_picture_says_how_small_its_smallest_text_is(shown):
    fig, ax = plotting.figure()
    ax.plot([1, 2], [3, 4])
    ax.text(1.5, 3.5, "small", fontsize=7.5)
    ax.text(1.5, 3.2, "not seen", fontsize=4, visible=False)
    ax.text(1.5, 3.2, " ", fontsize=3)
    plotting.show(fig, alt=ALT, title="What to see.")
    assert shown[0][1]["image/png"]["text"] == 7.5


@pytest.mark.parametrize("name", CALLS)
def test_picture_is_small_described_and_opaque(first, name):
    data, metadata = first(name)
    assert data["text/plain"] == f"Figure: What to see. {ALT}"
    assert metadata["image/png"]["alt"] == ALT
    picture = Image.open(io.BytesIO(data["image/png"]))
    assert picture.mode == "P" and "transparency" not in picture.info
    assert len(data["image/png"]) <= 150_000
    assert pixels((data, metadata))[0, 0].tolist() == [255, 255, 255]
    # Twice the pixels of the width it is shown at; not wider than a column of text.
    assert 300 < metadata["image/png"]["width"] <= 700
    assert picture.width == pytest.approx(2 * metadata["image/png"]["width"], abs=2)


@pytest.mark.parametrize("name", CALLS)
def test_same_call_gives_the_same_bytes(first, shown, name):
    data, _ = first(name)
    CALLS[name](title="What to see", alt=ALT)
    assert shown[0][0]["image/png"] == data["image/png"]


def test_bytes_do_not_depend_on_the_readers_settings(first, shown):
    data, _ = first("lines")
    with plotting._look.matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        CALLS["lines"](title="What to see", alt=ALT)
    assert shown[0][0]["image/png"] == data["image/png"]


@pytest.mark.parametrize("alt", ["", "   ", "plot", "A figure.", "Plot output", "short text"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_picture_without_a_description_is_refused(shown, call, alt):
    with pytest.raises(ValueError, match="alt must say in at least 25 characters"):
        call(title="What to see", alt=alt)
    assert shown == []


@pytest.mark.untyped
def test_alt_is_required():
    with pytest.raises(TypeError, match="alt"):
        plotting.heatmap([[1.0]], title="What to see")
    with pytest.raises(TypeError, match="alt must be a string"):
        plotting.heatmap([[1.0]], title="What to see", alt=None)


@pytest.mark.untyped
@pytest.mark.parametrize("title", ["", "  ", None])
def test_title_is_required(shown, title):
    with pytest.raises(ValueError, match="title must be a sentence"):
        plotting.bars({"a": 1}, ylabel="y", title=title, alt=ALT)


def test_positive_matrix_goes_from_white_to_dark_blue(shown):
    plotting.heatmap([[0.0, 1.0]], title="What to see", alt=ALT, values=False, colorbar=False)
    picture = pixels(shown[0])
    assert near(picture, "#072f5f") > 1000
    red, _, blue = (picture[..., i].astype(int) for i in range(3))
    assert (red > blue + 20).sum() == 0


@pytest.mark.parametrize("matrix", [[[-1.0, 3.0]], [[-3.0, 1.0]]])
def test_signed_scale_is_symmetric_with_white_at_zero(matrix):
    low, high, cmap = _maps._scale(np.array(matrix), None)
    assert low == -high == -3
    assert cmap(0.5)[:3] == pytest.approx((1, 1, 1), abs=0.02)


def test_map_grows_darker_away_from_zero():
    steps = [_maps._luminance(_maps.SEQUENTIAL(x)) for x in np.linspace(0, 1, 50)]
    assert (np.diff(steps) < 0).all()
    for side in (1, -1):
        steps = [_maps._luminance(_maps.DIVERGING(0.5 + side * x)) for x in np.linspace(0, 0.5, 50)]
        assert (np.diff(steps) < 0).all()


def test_masked_cells_are_grey_and_their_numbers_are_not_looked_at(shown):
    matrix = torch.tensor([[0.3, torch.nan], [0.4, 0.6]])
    mask = torch.tensor([[True, False], [True, True]])
    plotting.heatmap(matrix, mask=mask, title="What to see", alt=ALT)
    masked = near(pixels(shown[0]), _maps.MASKED, 6)
    plotting.heatmap(matrix.nan_to_num(0.1), title="What to see", alt=ALT)
    assert masked > near(pixels(shown[1]), _maps.MASKED, 6) + 5000


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_tensors_of_any_type_are_taken(shown, dtype):
    plotting.heatmap(torch.eye(3, dtype=dtype), title="What to see", alt=ALT)
    plotting.heatmap(np.eye(3).tolist(), title="What to see", alt=ALT)
    assert shown[0][0]["image/png"] == shown[1][0]["image/png"]


def test_tensor_that_needs_a_gradient_is_taken(shown):
    plotting.bars(torch.ones(2, requires_grad=True), labels="ab", ylabel="y", title="T", alt=ALT)
    assert len(shown) == 1


@pytest.fixture
def drawn(monkeypatch):
    """Collect figures instead of showing them."""
    figures = []
    for module in (plotting._curves, plotting._roofline):
        monkeypatch.setattr(module, "show", lambda fig, **kw: figures.append(fig))
    return figures


@pytest.mark.parametrize(
    ("names", "columns", "filled"),
    [
        ("ABCD", 4, "ABCD"),
        (["one", "another", "the third", "and the fourth"], 3, [0, 3, 1, 2]),
        (["one of them", "another one of them", "the third one", "the fourth"], 2, [0, 2, 1, 3]),
    ],
)
def test_the_names_of_groups_are_read_in_rows(monkeypatch, names, columns, filled):
    """matplotlib fills its legends by columns."""
    figures = []
    monkeypatch.setattr(_curves, "show", lambda fig, **kw: figures.append(fig))
    groups = {name: [1, 2] for name in names}
    plotting.bars(groups, labels=["x", "y"], ylabel="y", title="T", alt=ALT)
    legend = figures[0].axes[0].get_legend()
    found = [text.get_text() for text in legend.get_texts()]
    assert found == [names[k] if isinstance(k, int) else k for k in filled]
    assert legend._ncols == columns


def test_spreads_write_means_and_notes_in_their_rows(drawn):
    values = {"none": [2.0, 3.0], "two": [4.0]}
    plotting.spreads(values, xlabel="x", title="T", alt=ALT, notes={"two": "7"}, level="none")
    (axes,) = drawn[0].axes
    assert [(t.get_text(), t.xy) for t in axes.texts if hasattr(t, "xy")] == [
        ("2.50", (3.0, 0)), ("4.00", (4.0, 1)),
    ]  # fmt: skip
    (note,) = (t for t in axes.texts if t.get_text() == "7")
    assert note.get_position()[1] == 1
    means = [line.get_xdata()[0] for line in axes.get_lines() if line.get_marker() == "|"]
    assert means == [2.5, 4.0] and axes.get_lines()[0].get_xdata() == [2.5, 2.5]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first row is on top


def test_a_roofline_bends_at_its_ridge_and_names_its_points(drawn):
    points = {"a": [(1, 15, "2 rows"), (8, 90, "")]}
    plotting.roofline(points, peak=100, bandwidth=20, ylabel="y", title="T", alt=ALT, joined=True)
    (axes,) = drawn[0].axes
    roof, _, joined = axes.get_lines()
    (left, ridge, right), heights = roof.get_data()
    assert ridge == 5 and left < 1 and right > 8
    assert list(heights) == [20 * left, 100, 100]
    assert joined.get_xydata().tolist() == [[1, 15], [8, 90]] and joined.get_linestyle() == "-"
    named = {t.get_text(): t.xy for t in axes.texts if t.get_text()}
    assert named.keys() == {"ridge: 5.0", "2 rows"} and named["2 rows"] == (1, 15)
    assert axes.get_legend() is None


def test_numbers_stand_on_an_axis_where_they_are_asked_for(drawn):
    sizes = [50, 200, 800, 2000]
    names = {"xlabel": "x", "title": "T", "alt": ALT}
    plotting.lines(sizes, {"a": sizes}, ylabel="y", xlog=True, xticks=sizes, **names)
    plotting.spreads({"a": [0.2, 0.9]}, xticks=[0, 0.5, 1], **names)
    labels = [[t.get_text() for t in fig.axes[0].get_xticklabels()] for fig in drawn]
    assert labels == [["50", "200", "800", "2000"], ["0", "0.5", "1"]]
    assert not len(drawn[0].axes[0].get_xticks(minor=True))


XY = {"xlabel": "x", "ylabel": "y"}
ROOF = {"peak": 100, "bandwidth": 20, "ylabel": "FLOPs a second"}
WRONG_VALUES = [
    ("heatmap", ([1.0],), {}, "2 dimension"),
    ("heatmap", ([[1.0, np.nan]],), {}, "finite"),
    ("heatmap", ([[1.0]],), {"rows": "ab"}, "rows must have 1"),
    ("heatmap", ([[1.0]],), {"cols": "ab"}, "cols must have 1"),
    ("heatmap", ([[1.0]],), {"mask": [[True, True]]}, "broadcast"),
    ("heatmap", ([[1.0]],), {"limits": (2, 1)}, "low < high"),
    ("heatmap", ({},), {}, "at least one panel"),
    ("heatmap", ([[]],), {}, "non-empty"),
    ("lines", ([1, 2], {"a": [1]}), XY, "length of x"),
    ("roofline", ({},), ROOF, "at least one point"),
    ("roofline", ({"a": []},), ROOF, "at least one point"),
    ("roofline", ({"a": [(0, 1, "")]},), ROOF, "points must be positive"),
    ("roofline", ({"a": [(1, 1, "")]},), ROOF | {"peak": -1}, "peak must be positive"),
    ("roofline", ({"a": [(1, 1, "")]},), ROOF | {"bandwidth": np.inf}, "bandwidth must be"),
    ("roofline", ({"a": [(1, 1, "")]},), ROOF | {"ylabel": ""}, "must say what is drawn"),
    ("spreads", ({},), {"xlabel": "x"}, "at least one label"),
    ("spreads", ({"a": []},), {"xlabel": "x"}, "finite numbers"),
    ("spreads", ({"a": [1, np.nan]},), {"xlabel": "x"}, "finite numbers"),
    ("spreads", ({"a": [1]},), {"xlabel": ""}, "must say what is drawn"),
    ("spreads", ({"a": [1]},), {"xlabel": "x", "notes": {"b": "1"}}, r"got \['b'\]"),
    ("spreads", ({"a": [1]},), {"xlabel": "x", "level": "b"}, r"got \['b'\]"),
    ("lines", ([1], {}), XY, "series"),
    ("lines", ([1], {"a": [1]}), {"xlabel": "", "ylabel": "y"}, "xlabel"),
    ("lines", ([0, 1], {"a": [1, 2]}), XY | {"xlog": True}, "positive for xlog"),
    ("lines", ([1], {"a": [1]}), XY | {"bands": {"b": (0, 1)}}, "bands"),
    ("lines", ([1], {"a": [1]}), XY | {"ends": {"b": None}}, "ends and muted"),
    ("lines", ([1], {"a": [1]}), XY | {"muted": ["b"]}, "ends and muted"),
    ("lines", ([1], {"a": [1]}), XY | {"ends": {"a": "pink"}}, "tone must be one of"),
    ("bars", ([1, 2],), {"ylabel": "y"}, "labels must name the 2"),
    ("bars", ([1, 2],), {"ylabel": "y", "labels": "abc"}, "labels must have 2"),
    ("bars", ({"a": np.inf},), {"ylabel": "y"}, "finite"),
    ("bars", ([],), {"ylabel": "y", "labels": []}, "non-zero length"),
    ("tensor_picture", (np.zeros((2, 2, 2, 2)),), {}, "one to three"),
    ("tensor_picture", (np.zeros((2, 99)),), {}, "at most"),
    ("tensor_picture", ([1.0],), {"names": ("a", "b")}, "names must have 1"),
]
WRONG_TYPES = [
    ("heatmap", ([["a"]],), {}, "matrix must be numbers"),
    ("heatmap", ([[1.0]],), {"mask": [[1]]}, "mask must be boolean"),
    ("show", ("no figure",), {}, "fig must be a matplotlib Figure"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("name", "args", "kwargs", "message"), WRONG_VALUES)
def test_value_that_does_not_fit_is_refused_by_name(shown, name, args, kwargs, message):
    with pytest.raises(ValueError, match=message):
        getattr(plotting, name)(*args, title="T", alt=ALT, **kwargs)
    assert shown == []


@pytest.mark.untyped
@pytest.mark.parametrize(("name", "args", "kwargs", "message"), WRONG_TYPES)
def test_type_that_does_not_fit_is_refused_by_name(shown, name, args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        getattr(plotting, name)(*args, title="T", alt=ALT, **kwargs)
    assert shown == []


@pytest.mark.parametrize(
    ("args", "message"), [({"n_rows": 0}, "at least 1"), ({"size": (0, 1)}, "positive")]
)
def test_figure_without_area_is_refused(args, message):
    with pytest.raises(ValueError, match=message):
        plotting.figure(**args)


def test_points_are_drawn_beside_the_curve_and_named(shown):
    call = {"title": "T", "alt": ALT, "xlabel": "x", "ylabel": "y", "ylim": (0, 1)}
    plotting.lines([0, 1], {"law": [0, 1]}, **call)
    plotting.lines([0, 1], {"law": [0, 1]}, points={"seen": ([0.2, 0.8], [0.8, 0.2])}, **call)
    without, with_points = (near(pixels(output), _look.SOFT_INK) for output in shown)
    assert with_points > without + 40


def test_a_mark_is_a_line_from_bottom_to_top_with_its_name(shown):
    call = {"title": "T", "alt": ALT, "xlabel": "x", "ylabel": "y", "ylim": (0, 1)}
    plotting.lines([0, 1], {"law": [0, 1]}, **call)
    plotting.lines([0, 1], {"law": [0, 1]}, marks={"seen up to here": 0.5}, **call)
    without, with_mark = (near(pixels(output), _look.SOFT_INK) for output in shown)
    assert with_mark > without + 400


def test_names_at_the_ends_are_in_the_colours_of_the_curves_and_apart(first):
    picture = pixels(first("named ends"))
    names = picture[:, int(0.93 * picture.shape[1]) :]  # right of the axes and of the lines to it
    rows = {
        tone: np.flatnonzero([near(row[None], TONES[tone]) for row in names])
        for tone in ("orange", "blue", "grey")
    }
    # All three end at 2; sorted by name, each stands a line (of 0.15 inches) above the last.
    assert all(len(found) > 8 for found in rows.values())
    new, old, seen = (np.median(rows[tone]) for tone in ("blue", "orange", "grey"))
    assert new > old + 30 > seen + 60


def test_a_curve_that_is_muted_is_thinner(shown):
    call = {"title": "T", "alt": ALT, "xlabel": "x", "ylabel": "y"}
    for muted in ([], ["law"]):
        plotting.lines([0, 1], {"law": [0, 1]}, ends={"law": "green"}, muted=muted, **call)
    strong, thin = (near(pixels(output), TONES["green"]) for output in shown)
    assert strong > 1.3 * thin > 0


@pytest.mark.untyped
def test_points_of_unequal_length_are_refused(shown):
    with pytest.raises(ValueError, match="as many x as y"):
        plotting.lines(
            [0, 1], {"law": [0, 1]}, points={"seen": ([0.2], [0.8, 0.2])}, title="T", alt=ALT,
            xlabel="x", ylabel="y",
        )  # fmt: skip
    assert shown == []


def test_own_figure_can_be_shown_with_its_drawn_title(shown):
    fig, ax = plotting.figure()
    ax.plot([0, 1], [0, 1])
    ax.set_title("A line rises?")
    plotting.show(fig, alt=ALT)
    assert shown[0][0]["text/plain"] == f"Figure: A line rises? {ALT}"


def test_figure_made_by_pyplot_is_closed(shown):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    fig, ax = pyplot.subplots()
    ax.set_title("A line")
    plotting.show(fig, alt=ALT)
    assert pyplot.get_fignums() == []


def test_picture_that_is_too_large_is_made_smaller_or_refused(shown, monkeypatch):
    fig, ax = plotting.figure(size=(3, 2))
    ax.imshow(RNG.random(size=(40, 70)), aspect="auto", cmap="viridis")
    plotting.show(fig, title="Noise", alt=ALT)
    full = len(shown[0][0]["image/png"])
    monkeypatch.setattr(_look, "MAX_BYTES", full - 1)
    plotting.show(fig, title="Noise", alt=ALT)
    assert len(shown[1][0]["image/png"]) < full
    monkeypatch.setattr(_look, "MAX_BYTES", 500)
    with pytest.raises(ValueError, match="must fit in 500 bytes"):
        plotting.show(fig, title="Noise", alt=ALT)
    assert len(shown) == 2


def test_a_sketch_is_the_same_picture_with_fewer_pixels(first, shown, monkeypatch):
    full, said = first("lines")
    monkeypatch.setenv("TFBOOK_SKETCH", "1")
    CALLS["lines"](title="What to see", alt=ALT)
    ((small, also_said),) = shown
    assert full["text/plain"] == small["text/plain"]
    width, height = Image.open(io.BytesIO(full["image/png"])).size
    size = Image.open(io.BytesIO(small["image/png"])).size
    assert size == pytest.approx((width / 5, height / 5), abs=2)
    said, also_said = said["image/png"], also_said["image/png"]
    assert said | {"width": 0} == also_said | {"width": 0}
    assert said["width"] == pytest.approx(also_said["width"], rel=0.02)


def test_style_leaves_nothing_behind():
    before = dict(_look.matplotlib.rcParams)
    with plotting.style():
        assert _look.matplotlib.rcParams["axes.spines.top"] is False
    assert dict(_look.matplotlib.rcParams) == before


def test_no_window_and_no_pyplot_is_needed():
    code = (
        "import sys\nfrom tfbook.teaching import plotting\n"
        f"plotting.bars({{'a': 1}}, ylabel='y', title='T', alt={ALT!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_notebook_stores_the_description_beside_the_picture():
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.instance()
    try:
        with capture_output() as captured:
            plotting.bars({"a": 1}, ylabel="y", title="T", alt=ALT)
    finally:
        InteractiveShell.clear_instance()
    (output,) = captured.outputs
    assert output.metadata["image/png"]["alt"] == ALT
    assert base64.b64encode(output.data["image/png"]).startswith(b"iVBORw0KGgo")
