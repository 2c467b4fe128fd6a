"""The figures of costs in a real browser: their numbers equal the package's.

The pages are laid out and visited as those of `test_explorables.py` are.
"""

import functools
import math

import pytest

from tests.site import test_explorables as others
from tests.site.test_explorables import axe_faults, control, lay_out, tap_slider, value
from tfbook import costs
from tfbook.models import preset
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _budget, _calculator, _roofline

pytestmark = pytest.mark.browser
visit, figures_at, free_pages = others.visit, others.figures_at, others.free_pages
near = functools.partial(pytest.approx, rel=1e-12)
LAW = costs.ChinchillaLaw(0.5, 90.0, 0.3, 900.0, 0.4)
FIGURES = {
    "calculator": lambda: [explorables.cost_calculator()],
    "roofline": lambda: [explorables.roofline()],
    "narrow": lambda: [explorables.roofline([("<slow> memory", 1e15, 1e10)], rows=8)],
    "budget": lambda: [explorables.compute_budget()],
    "law": lambda: [explorables.compute_budget(1e22, 1e9, law=LAW, models=[("mine", 1e9, 1e10)])],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with these figures, laid out as in the built site."""
    return lay_out(tmp_path_factory.mktemp("costs"), FIGURES)


def points(page, name):
    """The corners of a line, in hundredths of the picture from its upper left corner."""
    line = page.locator(f'[data-name="{name}"]').get_attribute("points")
    return [tuple(map(float, pair.split(","))) for pair in line.split()]


def place(page, selector):
    """Where a mark stands, in hundredths of the picture."""
    style = "node => [node.style.left, node.style.top].map(parseFloat)"
    return page.locator(selector).evaluate(style)


# ---------------------------------------------------------------------- cost_calculator


def check_calculator(page, name="gpt2", *, length=1024, batch=1, precision="float16"):
    config, size = preset(name), {"float32": 4, "float16": 2, "int8": 1}[precision]
    longer = config.replace(max_len=_calculator.LONGEST)
    assert value(page, "parameters") == config.count_parameters()
    assert value(page, "flops") == near(longer.flops(length) / length)
    assert value(page, "training_flops") == near(3 * longer.flops(length) / length)
    work = dict.fromkeys(_calculator.PARTS, 0)
    for row in longer.parts(length):
        for key, ends in _calculator.PARTS.items():
            work[key] += row.flops * row.name.endswith(ends)
    shares = {key: value(page, f"share[{key}]") for key in work}
    bars = page.locator(".tfx-costs .tfx-bar").evaluate_all("n => n.map(b => b.style.width)")
    for (key, flops), bar in zip(work.items(), bars, strict=True):
        assert value(page, key) == near(flops / length)
        assert shares[key] == near(100 * flops / sum(work.values()))
        assert float(bar.removesuffix("%")) == pytest.approx(shares[key], abs=1e-3)
    assert sum(shares.values()) == near(100)
    alone = longer.parts(1)
    layers = sum(row.flops for row in alone if ".blocks." in row.name)
    met = sum(row.flops for row in alone if row.name.endswith((".scores", ".z")))
    assert value(page, "crossover") == near((layers - met) / met)
    assert value(page, "weight_bytes") == size * config.count_parameters()
    assert value(page, "training_bytes") == 16 * config.count_parameters()
    cards = page.locator(".tfx-stat:has([data-name=cache_bytes])")
    assert cards.evaluate("card => !card.hidden") == (config.kind == "decoder")  # in a fold
    if config.kind == "decoder":
        assert value(page, "cache_bytes") == config.kv_cache_bytes(length, batch, size)
        given = {"length": length, "batch": batch, "precision": precision}
        figure = explorables.cost_calculator(name, **given)
        assert value(page, "read_bytes") == near(figure.read_bytes)
        assert value(page, "flops_per_byte") == near(figure.flops_per_byte)


def test_calculator_shows_the_packages_numbers(visit):
    check_calculator(visit("calculator"))


@pytest.mark.parametrize("name", _calculator.PRESETS)
def test_calculator_of_every_preset(visit, name):
    page = visit("calculator")
    control(page, "preset").select_option(name)
    check_calculator(page, name)
    for key, length in (("Home", 1), ("End", 131_072), ("ArrowLeft", 98_304)):
        control(page, "length").press(key)
        check_calculator(page, name, length=length)


def test_calculator_follows_the_keyboard(visit):
    page = visit("calculator")
    control(page, "length").press("ArrowRight")
    control(page, "batch").press("End")
    control(page, "precision", "float32").check()
    changed = {"length": 1536, "batch": 1024, "precision": "float32"}
    check_calculator(page, **changed)
    training = page.locator(".tfx-stat:has([data-name=training_bytes])")
    assert "float32" in training.inner_text() and "parameters 4" in training.inner_text()
    control(page, "precision", "int8").check()
    assert "mixed precision" in training.inner_text() and "parameters 2" in training.inner_text()
    control(page, "preset").select_option("llama-7b")
    check_calculator(page, "llama-7b", **changed | {"precision": "int8"})


def test_calculator_follows_a_finger(visit):
    page = visit("calculator", width=390, touch=True)
    tap_slider(page, "length", 0.001)
    check_calculator(page, length=1)
    plot = page.locator(".tfx-plot svg")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 12 / 17, box["y"] + 30)
    length = round(value(page, "mixing") / (4 * 12 * 768))
    assert length == pytest.approx(4096, rel=0.06)
    check_calculator(page, length=length)


def test_calculator_says_in_words_what_it_shows(visit):
    page = visit("calculator")
    control(page, "length").press("End")
    page.get_by_text("It was made for 1\u202f024.").wait_for()
    said = page.locator(".tfx-summary").inner_text()
    share = float(said.split("token, ")[1].split("%")[0])
    assert share == pytest.approx(value(page, "share[mixing]"), abs=0.06)
    control(page, "preset").select_option("bert-base")
    page.get_by_text("It generates nothing").wait_for()


def test_lines_of_the_calculator_cross_at_the_crossover(visit):
    page = visit("calculator")
    (x0, y0), (x1, y1) = points(page, "curve_mixing")
    (_, level), (_, same) = points(page, "curve_rest")
    assert level == same and (x0, x1) == (0, 100)
    crossing = (level - y0) / (y1 - y0)  # a share of 17 doublings
    assert 2 ** (17 * crossing) == pytest.approx(value(page, "crossover"), rel=1e-9)
    across, up = place(page, ".tfx-plot .tfx-mark:not(.tfx-scaled)")
    assert across == pytest.approx(100 * 10 / 17, abs=1e-3)
    assert up == pytest.approx(y0 + (y1 - y0) * 10 / 17, abs=1e-3)


# ---------------------------------------------------------------------- roofline


def check_roofline(page, machine="V100 SXM2", *, rows=1, d_in=4096, d_out=4096, size=2):
    precision = {4: "float32", 2: "float16", 1: "int8"}[size]
    at = _roofline._in_format(costs.MACHINES.get(machine, machine), precision)
    work = costs.linear_intensity(rows, d_in, d_out, size)
    assert value(page, "flops") == work.flops
    assert value(page, "bytes") == work.bytes
    assert value(page, "intensity") == near(work.intensity)
    assert value(page, "ridge") == near(at.ridge)
    assert value(page, "seconds") == near(at.seconds(*work))
    rate = at.attainable(work.intensity)
    assert value(page, "rate") == near(rate)
    assert value(page, "used") == near(rate / at.flops)
    bound = at.limit(*work)
    verdict = page.locator(".tfx-verdict").inner_text()
    assert verdict == f"It waits for {_roofline.BOUNDS[bound]}."
    sizes = {"rows": rows, "d_in": d_in, "d_out": d_out}
    figure = explorables.roofline([at], precision=precision, **sizes)
    if figure.ridge_rows is None:
        assert page.locator('[data-name="ridge_rows"]').inner_text() == "–"
    else:
        assert value(page, "ridge_rows") == near(figure.ridge_rows)
    check_roof(page, at, work, rate)
    return bound


def check_roof(page, at, work, rate):
    """The bend is the ridge, and the layer stands on the roof where its numbers say."""
    (x0, y0), (x1, y1), (x2, y2) = points(page, "roof")
    assert y1 == near(y2) and y1 < y0 and (x0, x2) == (0, 100)
    ticks = page.locator(".tfx-xtick").evaluate_all(
        "nodes => nodes.map(n => [parseFloat(n.style.left), n.textContent])"
    )
    number = {"0.01": -2, "0.1": -1, "1": 0, "10": 1, "100": 2, "1k": 3, "10k": 4, "100k": 5}
    powers = {number[text]: at for at, text in ticks if text in number}
    step = powers[1] - powers[0]

    def across(intensity):
        return powers[0] + step * math.log10(intensity)

    assert x1 == pytest.approx(across(at.ridge), abs=1e-2)
    left, top = place(page, '[data-name="point"]')
    assert left == pytest.approx(across(work.intensity), abs=1e-2)
    # A decade of the slope is a decade of FLOPs a second.
    decade = (y0 - y1) / ((x1 - x0) / step)
    assert top == pytest.approx(y1 + decade * math.log10(at.flops / rate), abs=1e-2)


def test_roofline_shows_the_packages_numbers(visit):
    assert check_roofline(visit("roofline")) == "memory"


def test_roofline_follows_the_keyboard(visit):
    page = visit("roofline")
    control(page, "rows").press("End")
    assert check_roofline(page, rows=4096) == "compute"
    control(page, "precision", "float32").check()
    control(page, "d_in").press("ArrowRight")
    control(page, "d_out").press("Home")
    check_roofline(page, rows=4096, d_in=6144, d_out=64, size=4)
    control(page, "precision", "int8").check()
    control(page, "rows").press("ArrowLeft")
    for machine in costs.MACHINES:
        control(page, "machine").select_option(machine)
        check_roofline(page, machine, rows=3072, d_in=6144, d_out=64, size=1)


def test_point_climbs_until_it_reaches_the_level(visit):
    page = visit("roofline")
    control(page, "machine").select_option("A100 80GB SXM")
    bounds = []
    for rows in _roofline.STOPS["rows"]:
        bounds.append(check_roofline(page, "A100 80GB SXM", rows=rows))
        control(page, "rows").press("ArrowRight")
    assert bounds == sorted(bounds, reverse=True) and set(bounds) == {"memory", "compute"}
    spots = page.locator(".tfx-spot").evaluate_all(
        "nodes => nodes.map(n => [Number(n.dataset.rows), parseFloat(n.style.left)])"
    )
    assert [rows for rows, _ in spots] == [1, 8, 64, 512, 4096]
    assert [left for _, left in spots] == sorted(left for _, left in spots)
    assert place(page, '[data-name="point"]')[0] == pytest.approx(spots[-1][1])


def test_narrow_layer_never_reaches_the_ridge(visit):
    page = visit("narrow")
    slow = costs.Machine("<slow> memory", 1e15, 1e10)
    check_roofline(page, slow, rows=8)
    assert "never reached" in page.locator(".tfx-stats").last.inner_text()


def test_roofline_follows_a_finger(visit):
    page = visit("roofline", width=390, touch=True)
    tap_slider(page, "rows", 0.999)
    control(page, "precision", "int8").tap()
    check_roofline(page, rows=4096, size=1)


# ---------------------------------------------------------------------- compute_budget


def check_budget(page, compute=1e21, parameters=3e8, law=costs.HOFFMANN):
    n, d = parameters, compute / (6 * parameters)
    best_n, best_d = costs.compute_optimal(law, compute)
    wide = functools.partial(pytest.approx, rel=1e-9)
    assert value(page, "size") == wide(n)
    assert value(page, "tokens") == wide(d)
    assert value(page, "ratio") == wide(d / n)
    assert value(page, "loss") == wide(law.loss(n, d))
    assert value(page, "best_size") == wide(best_n)
    assert value(page, "best_tokens") == wide(best_d)
    assert value(page, "best_ratio") == wide(best_d / best_n)
    assert value(page, "best_loss") == wide(law.loss(best_n, best_d))
    assert place(page, ".tfx-handle") == pytest.approx(spot(n, d), abs=1e-3)
    assert place(page, ".tfx-goal") == pytest.approx(spot(best_n, best_d), abs=1e-3)
    for x, y in points(page, "line"):
        assert 6 * 10 ** amounts(x, y)[0] * 10 ** amounts(x, y)[1] == wide(compute)


def spot(n, d):
    """Where parameters and tokens stand, in hundredths of the picture."""
    return [100 * (math.log10(n) - 6) / 7, 100 * (15 - math.log10(d)) / 7]


def amounts(x, y):
    """The powers of ten of parameters and tokens there."""
    return 6 + 7 * x / 100, 15 - 7 * y / 100


def test_budget_shows_the_packages_numbers(visit):
    page = visit("budget")
    check_budget(page)
    for i, (_, n, d) in enumerate(_budget.MODELS):
        lowest = costs.compute_optimal(costs.HOFFMANN, 6 * n * d)
        assert value(page, f"model_ratio[{i}]") == near(d / n)
        assert value(page, f"model_loss[{i}]") == near(costs.HOFFMANN.loss(n, d))
        best = costs.HOFFMANN.loss(*lowest)
        assert value(page, f"model_best_loss[{i}]") == pytest.approx(best, rel=1e-9)
        mark = page.locator(".tfx-known").nth(i)
        style = mark.evaluate("node => [node.style.left, node.style.top].map(parseFloat)")
        assert style == pytest.approx(spot(n, d), abs=1e-3)


def test_budget_of_another_law(visit):
    page = visit("law")
    check_budget(page, 1e22, 1e9, LAW)
    assert page.locator(".tfx-known").count() == 1


@pytest.mark.parametrize(("name", "law"), [("budget", costs.HOFFMANN), ("law", LAW)])
def test_lines_of_equal_loss_lie_where_the_loss_is_that(visit, name, law):
    page = visit(name)
    lines = page.locator("polyline.tfx-level").evaluate_all(
        "nodes => nodes.map(n => [n.dataset.level, n.getAttribute('points')])"
    )
    drawn = 0
    for level, line in lines:
        for x, y in (map(float, pair.split(",")) for pair in line.split()):
            assert -1e-6 <= x <= 100 + 1e-6 and -1e-6 <= y <= 100 + 1e-6
            n, d = (10**p for p in amounts(x, y))
            assert law.loss(n, d) == pytest.approx(float(level), rel=1e-9)
        drawn += line.count(",") > 20
    assert drawn >= 6
    for x, y in points(page, "frontier"):
        n, d = (10**p for p in amounts(x, y))
        assert costs.compute_optimal(law, 6 * n * d)[0] == pytest.approx(n, rel=1e-6)


def test_budget_follows_the_keyboard(visit):
    page = visit("budget")
    handle = page.locator(".tfx-handle")
    handle.press("ArrowRight")
    # On steps of 0.02 in the power of ten: from 8.477 to 8.50.
    check_budget(page, parameters=10**8.5)
    for key, power in (("ArrowUp", 8.52), ("Shift+ArrowLeft", 8.32), ("PageUp", 8.52)):
        handle.press(key)
        check_budget(page, parameters=10**power)
    handle.press("Home")
    check_budget(page, parameters=1e6)
    handle.press("End")
    check_budget(page, parameters=1e21 / 6e8)
    control(page, "compute").press("ArrowRight")
    check_budget(page, 1.26e21, 1e21 / 6e8)
    control(page, "compute").press("Home")  # fewer parameters, where the line ends
    check_budget(page, 1e18, 1e18 / 6e8)
    handle.press("Home")
    control(page, "compute").press("End")  # and more, where it begins
    check_budget(page, 1e26, 1e26 / 6e15)
    assert handle.get_attribute("aria-valuemin") == "10.22"
    control(page, "compute").press("Home")
    control(page, "to_best").press("Enter")
    check_budget(page, 1e18, costs.compute_optimal(costs.HOFFMANN, 1e18)[0])
    assert value(page, "loss") == pytest.approx(value(page, "best_loss"), rel=1e-12)
    words = handle.get_attribute("aria-valuetext")
    assert words.endswith(f"loss {value(page, 'loss'):.3f}")


def test_handle_is_dragged_along_the_line(visit):
    page = visit("budget")
    plot = page.locator(".tfx-plot > svg")

    def at(power, y=0.5):
        box = plot.bounding_box()
        return box["x"] + (power - 6) / 7 * box["width"], box["y"] + y * box["height"]

    box = page.locator(".tfx-handle").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(*at(9))
    page.mouse.move(*at(10.3, 0.9))
    check_budget(page, parameters=10**10.3)
    page.mouse.move(*at(5, 0.1))  # beyond the end of the line
    page.mouse.up()
    check_budget(page, parameters=1e6)
    page.mouse.move(*at(9))
    check_budget(page, parameters=1e6)
    page.mouse.click(*at(11))
    check_budget(page, parameters=1e11)


def test_budget_follows_a_finger(visit):
    page = visit("budget", width=390, touch=True)
    plot = page.locator(".tfx-plot > svg")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 4 / 7, box["y"] + 40)
    power = math.log10(value(page, "size"))
    assert power == pytest.approx(10, abs=0.05)
    check_budget(page, parameters=10**power)
    control(page, "compute").scroll_into_view_if_needed()
    tap_slider(page, "compute", 0.999)
    check_budget(page, 1e26, 1e26 / 6e15)


# ---------------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", FIGURES)
def test_axe_finds_nothing(visit, figures_at, name):
    page = visit(name, figures_at)
    assert axe_faults(page) == []


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("width", [1280, 620, 390, 320])
def test_nothing_is_cut_off(visit, name, width):
    page = visit(name, width=width, touch=width < 600)
    if name == "calculator":
        control(page, "preset").select_option("gpt3-175b")
        control(page, "length").press("End")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = page.evaluate(
        """() => [...document.querySelectorAll('.tfx-card :is(td, th, span, p, input, button)')]
            .filter(node => node.checkVisibility() && !node.closest('.tfx-hidden'))
            .filter(node => {
              const card = node.closest('.tfx-card').getBoundingClientRect();
              const box = node.getBoundingClientRect();
              return box.width && (box.left < card.left || box.right > card.right);
            }).map(node => node.outerHTML.slice(0, 200))"""
    )
    assert outside == []


@pytest.mark.parametrize("name", ["calculator", "roofline", "budget"])
def test_what_is_told_is_a_live_region(visit, name):
    page = visit(name)
    said = page.locator('.tfx-summary[role="status"]')
    before = said.inner_text()
    moved = {"calculator": "length", "roofline": "rows", "budget": "compute"}[name]
    control(page, moved).press("End")
    page.wait_for_function(
        "before => document.querySelector('.tfx-summary').textContent !== before", arg=before
    )
    assert len(before) > 40
