"""The figures of machines in a real browser: their numbers equal the package's.

The pages are laid out and visited as those of `test_explorables.py` are.
"""

import functools
import math

import pytest

from tests.site import test_explorables as others
from tests.site.test_explorables import (
    axe_faults,
    check_widths,
    control,
    lay_out,
    tap_slider,
    value,
)
from tfbook import experiments
from tfbook.parallel import timeline
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _bits, _dashboard, _pipeline, _quantising

pytestmark = pytest.mark.browser
visit, figures_at, free_pages = others.visit, others.figures_at, others.free_pages
near = functools.partial(pytest.approx, rel=1e-9, abs=1e-300, nan_ok=True)
NAMES = (
    "float_bits",
    "pipeline_schedule",
    "continuous_batching",
    "training_planner",
    "quantisation_error",
)
LOG = experiments.log("traced_faults")
FIGURES = {
    "bits": lambda: [explorables.float_bits()],
    "overflow": lambda: [explorables.float_bits(3e38, format="fp16")],
    "large": lambda: [explorables.float_bits(3e38, format="bf16")],
    "whole": lambda: [explorables.float_bits(0.337, format="int8")],
    "pipeline": lambda: [explorables.pipeline_schedule()],
    "serving": lambda: [explorables.continuous_batching()],
    "planner": lambda: [explorables.training_planner()],
    "weights": lambda: [explorables.quantisation_error()],
    "dashboard": lambda: [explorables.debugging_dashboard(LOG)],
    "all": lambda: (
        [getattr(explorables, name)() for name in NAMES] + [explorables.debugging_dashboard(LOG)]
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with these figures, laid out as in the built site."""
    return lay_out(tmp_path_factory.mktemp("machines"), FIGURES)


def number_of(page, name):
    """A number, or None where a dash or a word stands."""
    text = page.locator(f'[data-name="{name}"]').get_attribute("data-value")
    return None if text is None else float(text)


# ---------------------------------------------------------------------- float_bits


def check_bits(page, wanted=0.1, **given):
    figure = explorables.float_bits(wanted, **given)
    found, form = figure.results(), figure.format
    bits = _bits.FORMATS[form].bits
    shown = page.locator(".tfx-bits").get_attribute("data-bits")
    assert shown == f"{found['pattern']:0{bits}b}"
    buttons = page.locator(".tfx-bit:visible")
    assert "".join(buttons.all_inner_texts()) == shown
    pressed = buttons.evaluate_all("n => n.map(b => b.getAttribute('aria-pressed'))")
    assert pressed == ["true" if bit == "1" else "false" for bit in shown]
    for name in ("shown", "error", "spacing", "largest"):
        assert number_of(page, name) == (None if found[name] is None else near(found[name])), name
    for name, rounded in found["all"].items():
        assert value(page, f"all[{name}]") == near(rounded)
    assert page.locator(".tfx-verdict").get_attribute("data-event") == found["event"]
    return found


@pytest.mark.parametrize("name", _bits.NAMES)
def test_every_format_shows_the_packages_bits(visit, name):
    page = visit("bits")
    control(page, "format", name).check()
    check_bits(page, format=name)
    for text in ("-65520", "6e-8", "1"):
        control(page, "value").fill(text)
        check_bits(page, float(text), format=name)


def test_a_bit_is_switched_by_keyboard(visit):
    page = visit("bits")
    control(page, "value").fill("1,5")  # with a comma too
    check_bits(page, 1.5)
    sign = control(page, "bit[0]")
    sign.focus()
    page.keyboard.press("Space")
    check_bits(page, -1.5, code=0xBE00)
    assert control(page, "value").input_value() == "-1.5"
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.control") == "bit[6]"
    check_bits(page, -1.0, code=0xBC00)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Space")
    check_bits(page, -0.5, code=0xB800)
    page.keyboard.press("ArrowLeft")
    assert control(page, "bit[4]").get_attribute("aria-label") == "exponent, 1: 1"


def test_all_ones_are_infinity_and_no_number(visit):
    page = visit("bits")
    control(page, "value").fill("1")
    control(page, "bit[1]").click()  # the exponent 01111 becomes 11111
    found = check_bits(page, 1.0, code=0x7C00)
    assert found["shown"] == math.inf and found["event"] == "chosen"
    assert page.locator('[data-name="shown"]').inner_text() == "inf"
    control(page, "bit[15]").click()
    found = check_bits(page, 1.0, code=0x7C01)
    assert page.locator('[data-name="shown"]').inner_text() == "NaN"
    control(page, "format", "bf16").check()  # what was wanted last, not the bits
    check_bits(page, 1.0, format="bf16")


def test_what_is_no_number_is_said_and_changes_nothing(visit):
    page = visit("bits")
    field = control(page, "value")
    field.fill("one")
    assert field.get_attribute("aria-invalid") == "true"
    assert "Not a number" in page.locator('[role="alert"]').inner_text()
    check_bits(page)
    field.press("Enter")
    assert field.input_value() == "0.1" and page.locator('[role="alert"]').inner_text() == ""


def test_examples_show_overflow_and_underflow(visit):
    page = visit("bits")
    events = []
    for i, wanted in enumerate(_bits.EXAMPLES):
        control(page, "example").nth(i).click()
        events.append(check_bits(page, wanted)["event"])
    assert set(events) == {"exact", "rounded", "overflow", "underflow"}
    page.get_by_text("Overflow: 3·10³⁸ is beyond the largest number").last.wait_for()


def test_neighbours_stand_at_their_places(visit):
    page = visit("bits")
    control(page, "value").fill("1")
    places = page.locator(".tfx-neighbours .tfx-mark").evaluate_all(
        "nodes => nodes.map(n => parseFloat(n.style.left))"
    )
    steps = [b - a for a, b in zip(places, places[1:], strict=False)]
    assert steps[4] == pytest.approx(2 * steps[3], rel=1e-3)  # above a power of two they double
    wanted = page.locator(".tfx-wanted").evaluate("n => parseFloat(n.style.left)")
    assert wanted == pytest.approx(places[4])


def test_whole_numbers_have_a_scale(visit):
    page = visit("whole", width=390, touch=True)
    check_bits(page, 0.337, format="int8")
    tap_slider(page, "scale", 0.999)
    check_bits(page, 0.337, format="int8", scale=5.0)
    control(page, "bit[5]").tap()
    check_bits(page, 20.0, format="int8", scale=5.0, code=4)
    control(page, "format", "fp16").tap()
    assert control(page, "scale").is_hidden()


# ---------------------------------------------------------------------- pipeline_schedule


def check_pipeline(page, schedule="gpipe", **given):
    figure = explorables.pipeline_schedule(schedule, **given)
    found, p, m = figure.results(), figure.stages, figure.micro_batches
    for name in ("bubble", "total", "most", "share"):
        assert value(page, name) == near(found[name])
    for stage in range(p):
        for name in ("held", "kept"):
            assert value(page, f"{name}[{stage}]") == found[name][stage]
        does = page.locator(f'[data-name="doing[{stage}]"]')
        assert does.get_attribute("data-value") == found["doing"][stage]
    boxes = page.locator("rect.tfx-task").evaluate_all(
        "n => n.map(b => [b.dataset.task, ...['x', 'y', 'width'].map(k => +b.getAttribute(k))])"
    )
    assert len(boxes) == 2 * p * m
    spans = timeline(_pipeline.SCHEDULES[schedule](p, m), backward=float(figure.backward))
    placed = {name: (x, y, width) for name, x, y, width in boxes}
    for stage, tasks in enumerate(spans):
        for (kind, micro), start, end in tasks:
            x, y, width = placed[f"{stage}{kind}{micro}"]
            assert (x, x + width) == (start, end) and stage < y < stage + 0.5
    on = page.locator("rect.tfx-task.tfx-on").evaluate_all("n => n.map(b => b.dataset.task)")
    follow = min(figure.followed, m - 1)
    assert sorted(on) == sorted(f"{s}{k}{follow}" for s in range(p) for k in "FB")
    now = page.locator("rect.tfx-now")
    assert now.get_attribute("x") == str(found["moment_shown"])
    return found


def test_pipeline_shows_the_packages_numbers(visit):
    page = visit("pipeline")
    check_pipeline(page)
    control(page, "schedule", "1f1b").check()
    check_pipeline(page, "1f1b")
    page.get_by_text("the first one keeps the activations of at most 4.").wait_for()


def test_pipeline_follows_the_keyboard(visit):
    page = visit("pipeline")
    given = {}
    for name, key, now in (
        ("stages", "End", 8), ("micro_batches", "ArrowRight", 9), ("backward", "Home", 1),
        ("moment", "ArrowLeft", 11), ("followed", "End", 8), ("micro_batches", "Home", 1),
        ("stages", "Home", 1),
    ):  # fmt: skip
        control(page, name).press(key)
        given[name] = now
        check_pipeline(page, **given)


def test_a_moment_is_chosen_in_the_picture(visit):
    page = visit("pipeline", width=390, touch=True)
    picture = page.locator(".tfx-lanes-box > svg")
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    page.touchscreen.tap(box["x"] + 20.5 / 33 * box["width"], box["y"] + 5)
    check_pipeline(page, moment=20)
    tap_slider(page, "followed", 0.999)
    check_pipeline(page, moment=20, followed=7)


# ---------------------------------------------------------------------- continuous_batching


def check_serving(page, policy="static", **given):
    figure = explorables.continuous_batching(policy, **given)
    found = figure.results()
    for name in ("steps", "tokens_a_step", "wasted", "mean_end", "peak", "empty"):
        assert value(page, name) == near(found[name]), name
    for request, slot, filled, held in found["running"]:
        shown = [value(page, f"{name}[{slot}]") for name in ("request", "filled", "held")]
        assert shown == [request, filled, held]
    rects = "n => n.map(b => ['x', 'width', 'y'].map(k => +b.getAttribute(k)))"
    for request, slot, start, done, end in found["spans"]:
        for kind, first, last in (("request", start, done), ("wasted", done, end)):
            boxes = page.locator(f'rect[data-{kind}="{request}"]').evaluate_all(rects)
            assert len(boxes) == (last > first)
            for x, width, y in boxes:
                assert (x, x + width) == (first, last) and slot < y < slot + 0.5
    memory = page.locator(".tfx-low-lanes rect").evaluate_all(rects)
    assert sum(width for _, width, _ in memory) == found["held"]
    return found


def test_batches_show_the_packages_numbers(visit):
    page = visit("serving")
    check_serving(page)
    control(page, "policy", "continuous").check()
    found = check_serving(page, "continuous")
    page.get_by_text(f"all 16 requests are served after {found['steps']} steps").wait_for()


def test_batches_follow_the_keyboard(visit):
    page = visit("serving")
    given = {}
    control(page, "policy", "continuous").check()
    for name, chosen in (("answers", "mixed"), ("page_size", 16)):
        control(page, name, chosen).check()
        given[name] = chosen
        check_serving(page, "continuous", **given)
    for name, key, now in (("slots", "End", 8), ("step", "ArrowRight", 11)):
        control(page, name).press(key)
        given[name] = now
        check_serving(page, "continuous", **given)
    control(page, "fresh").press("Enter")
    check_serving(page, "continuous", **given, seed=10)
    control(page, "policy", "static").check()
    check_serving(page, "static", **given, seed=10)


def test_a_step_is_chosen_in_the_picture(visit):
    page = visit("serving", width=390, touch=True)
    picture = page.locator(".tfx-lanes-box > svg").first
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    page.touchscreen.tap(box["x"] + 50.5 / 77 * box["width"], box["y"] + 5)
    check_serving(page, step=50)


# ---------------------------------------------------------------------- training_planner


def check_plan(page, **given):
    found = explorables.training_planner(**given).results()
    names = "devices weights gradients optimizer activations memory seconds utilisation tokens days"
    for name in names.split():
        assert value(page, name) == near(found[name]), name
    for name, seconds in found["times"].items():
        assert value(page, f"time[{name}]") == near(seconds, abs=1e-12), name
    widths = page.locator(".tfx-piece-of").evaluate_all(
        "nodes => nodes.map(n => parseFloat(n.style.width))"
    )
    room = page.locator(".tfx-room").evaluate("n => parseFloat(n.style.left)")
    assert (sum(widths[:4]) <= room + 1e-3) == found["fits"]
    assert sum(widths[4:]) == pytest.approx(100, abs=1e-3)
    said = {True: "fits", False: "does not fit"}[found["fits"]]
    assert page.locator(".tfx-verdict strong").inner_text() == said
    return found


def test_planner_shows_the_packages_numbers(visit):
    page = visit("planner")
    assert not check_plan(page)["fits"]
    control(page, "zero", "1").check()
    assert check_plan(page, zero=1)["fits"]


def test_planner_follows_the_keyboard(visit):
    page = visit("planner")
    control(page, "model").select_option("gpt3-175b")
    given = {"model": "gpt3-175b"}
    for name, key, now in (
        ("tensor", "End", 8), ("pipeline", "End", 16), ("replicas", "End", 256),
        ("batch", "End", 2048), ("micro_batch", "ArrowRight", 2), ("replicas", "ArrowLeft", 128),
    ):  # fmt: skip
        control(page, name).press(key)
        given[name] = now
        check_plan(page, **given)
    for name, chosen in (("recompute", "full"), ("machine", "H100 SXM"), ("zero", "1")):
        control(page, name, chosen).check()
        given[name] = int(chosen) if name == "zero" else chosen
        check_plan(page, **given)
    control(page, "precision").select_option("gradients")
    check_plan(page, **given, precision="gradients")


def test_what_does_not_go_together_is_settled(visit):
    page = visit("planner")
    control(page, "zero", "3").check()
    control(page, "pipeline").press("ArrowRight")
    found = check_plan(page, zero=3, pipeline=2)
    assert found["used_zero"] == 1 and control(page, "zero", "1").is_checked()
    assert control(page, "zero", "3").is_disabled() and control(page, "zero", "1").is_enabled()
    control(page, "pipeline").press("Home")
    assert control(page, "zero", "3").is_checked()
    control(page, "replicas").press("End")
    control(page, "batch").press("Home")
    found = check_plan(page, zero=3, replicas=256, batch=64)
    assert found["used_replicas"] == 64 and control(page, "micro_batch").is_hidden()
    assert control(page, "replicas").get_attribute("aria-valuetext") == "64"


def test_planner_follows_a_finger(visit):
    page = visit("planner", width=390, touch=True)
    tap_slider(page, "replicas", 0.999)
    control(page, "recompute", "full").tap()
    check_plan(page, replicas=256, recompute="full")


# ---------------------------------------------------------------------- quantisation_error


def check_quantised(page, **given):
    figure = explorables.quantisation_error(**given)
    found = figure.results()
    for name in ("relative", "largest", "zeros", "effective_bits", "scale", "used"):
        assert value(page, name) == near(found[name]), name
    grid = page.locator("[data-grid]").evaluate_all(
        "nodes => nodes.map(n => [+n.dataset.grid, +n.getAttribute('x1')])"
    )
    assert [x for x, _ in grid] == near(found["grid"], abs=1e-12)
    places = [at for _, at in grid]
    steps = [b - a for a, b in zip(places, places[1:], strict=False)]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-4)
    dots = page.locator(".tfx-errordots").evaluate_all(
        "nodes => nodes.map(n => n.getAttribute('d').split('M').length - 1)"
    )
    assert sum(dots) == 512 and dots[1] == 512 // found["groups"]
    return found


def test_weights_show_the_packages_numbers(visit):
    page = visit("weights")
    check_quantised(page)
    page.get_by_text("symmetric: the error is 36.3% of the weights").wait_for()


@pytest.mark.parametrize("shared", _quantising.SHARED)
def test_weights_follow_the_keyboard(visit, shared):
    page = visit("weights")
    control(page, "shared", str(shared)).check()
    control(page, "bits").press("ArrowLeft")
    check_quantised(page, shared=shared, bits=3)
    control(page, "symmetric", "false").check()
    check_quantised(page, shared=shared, bits=3, symmetric=False)
    control(page, "weights").select_option("ordinary")
    given = {"weights": "ordinary", "shared": shared, "bits": 3, "symmetric": False}
    if shared == "tensor":
        assert control(page, "group").is_hidden()
    else:
        control(page, "group").press("ArrowRight")
        given["group"] = 1
    check_quantised(page, **given)


def test_weights_follow_a_finger(visit):
    page = visit("weights", width=390, touch=True)
    control(page, "shared", "8").tap()
    tap_slider(page, "bits", 0.999)
    tap_slider(page, "group", 0.999)
    check_quantised(page, shared=8, bits=8, group=63)


# ---------------------------------------------------------------------- debugging_dashboard


def check_dashboard(page, run="A", **given):
    figure = explorables.debugging_dashboard(LOG, run, **given)
    found, fault = figure.results(), _dashboard.RUNS[run]
    for trace in _dashboard.TRACES:
        assert value(page, trace) == found[trace]
        beside = page.locator(f'[data-name="healthy_{trace}"]')
        assert float(beside.get_attribute("data-value")) == found[f"healthy_{trace}"]
        assert beside.is_visible() == figure.healthy
        assert page.locator(f'[data-name="healthy_{trace}_line"]').is_visible() == figure.healthy
        line = page.locator(f'[data-name="{trace}_line"]').get_attribute("points").split()
        values = figure.data["values"][fault][trace]
        assert len(line) == len(values) == 60
        heights = [float(pair.split(",")[1]) for pair in line]
        assert all(-1e-6 <= y <= 100 + 1e-6 for y in heights)
        best = min(range(60), key=values.__getitem__)
        assert heights[best] == pytest.approx(max(heights))
    telling = page.locator(".tfx-telling").evaluate_all("n => n.map(p => p.dataset.trace)")
    assert telling == ([found["tells"]] if found["right"] else [])
    voice = page.locator(".tfx-voice").inner_text()
    assert voice.split(".")[0] == {True: "✓ Yes", False: "✗ No", None: ""}[found["right"]] or (
        voice.split(".")[0] == {True: "Yes", False: "No", None: ""}[found["right"]]
    )
    return voice


def test_dashboard_shows_the_log(visit):
    page = visit("dashboard")
    check_dashboard(page)
    control(page, "step").press("Home")
    check_dashboard(page, step=0)
    control(page, "step").press("ArrowRight")
    check_dashboard(page, step=5)
    control(page, "healthy").press("Space")
    check_dashboard(page, step=5, healthy=False)


@pytest.mark.parametrize("run", _dashboard.RUNS)
def test_a_fault_is_named_wrong_and_right(visit, run):
    page = visit("dashboard")
    control(page, "run", run).check()
    fault = _dashboard.RUNS[run]
    wrong = next(name for name in _dashboard.FAULTS if name != fault)
    control(page, "answer", wrong).check()
    said = check_dashboard(page, run, answer=wrong)
    assert _dashboard.FAULTS[wrong][2] in said and _dashboard.FAULTS[fault][2] not in said
    control(page, "answer", fault).check()
    said = check_dashboard(page, run, answer=fault)
    _, trace, sign, check = _dashboard.FAULTS[fault]
    assert sign in said and _dashboard.TRACES[trace].split(",")[0] in said
    assert (check or "No check of the list") in said
    other = "B" if run == "A" else "A"
    control(page, "run", other).check()  # a new run is a new question
    check_dashboard(page, other)


def test_dashboard_follows_a_finger(visit):
    page = visit("dashboard", width=390, touch=True)
    control(page, "run", "D").tap()
    plot = page.locator('[data-trace="entropy"] .tfx-plot > svg')
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 100 / 295, box["y"] + 20)
    check_dashboard(page, "D", step=100)


# ---------------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", FIGURES)
def test_axe_finds_nothing(visit, figures_at, name):
    assert axe_faults(visit(name, figures_at)) == []


@pytest.mark.parametrize("name", ["all", "large"])
def test_no_page_scrolls_sideways(visit, name):
    check_widths(visit(name), [1280, 620, 390, 320])
