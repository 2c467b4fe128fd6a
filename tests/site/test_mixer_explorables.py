"""The figures of mixers in a real browser: their numbers equal the package's.

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
    values,
)
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _delta, _routing, _scan, _sparsity

pytestmark = pytest.mark.browser
visit, figures_at, free_pages = others.visit, others.figures_at, others.free_pages
near = functools.partial(pytest.approx, rel=1e-9, abs=1e-9)
WORDS = [("<b>", "x & y", 1, 0.5), ("b", "y", 0.5, 1), ("c", "x", -1, 0.25)]
NAMES = ("sparsity_designer", "expert_routing", "scan_tree", "delta_rule")
FIGURES = {
    "pattern": lambda: [explorables.sparsity_designer()],
    "bigbird": lambda: [explorables.sparsity_designer("bigbird", n=40, seed=9, layers=2)],
    "routing": lambda: [explorables.expert_routing()],
    "words": lambda: [explorables.expert_routing(WORDS, noise=0.5, seed=3, top_k=2)],
    "tree": lambda: [explorables.scan_tree()],
    "delta": lambda: [explorables.delta_rule()],
    "all": lambda: [getattr(explorables, name)() for name in NAMES],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with these figures, laid out as in the built site."""
    return lay_out(tmp_path_factory.mktemp("mixers"), FIGURES)


def number_of(page, name):
    """A number, or None where a dash or a word stands."""
    node = page.locator(f'[data-name="{name}"]')
    text = node.get_attribute("data-value")
    return None if text is None else float(text)


def squares(page, kind):
    """How many squares of the pattern have a kind."""
    return page.locator(f'[data-name="{kind}"]').get_attribute("d").count("M")


# ---------------------------------------------------------------------- sparsity_designer


def check_pattern(page, preset="window", **changes):
    figure = explorables.sparsity_designer(preset, **changes)
    found = figure.results()
    for name in ("kept", "reached", "real_share", "flops", "score_bytes", "growth"):
        assert value(page, name) == near(found[name]), name
    for name in ("first_layers", "all_layers"):
        assert number_of(page, name) == found[name]
    for name, layers in found["links"].items():
        assert number_of(page, f"link[{name}]") == layers
        if layers is None:
            assert page.locator(f'[data-name="link[{name}]"]').inner_text() == "never"
    kinds = [f"path_{kind}" for kind in ("near", "far", "block", "wide", "chance")]
    assert sum(squares(page, kind) for kind in kinds) == found["kept"]
    assert squares(page, "later") == found["reached"] - found["kept"]
    shown = control(page, "preset").input_value()
    assert shown == (found["preset"] or "own")
    when = found["answer_layers"]
    when = "never" if when is None else f"after {when} layer{'s' * (when != 1)}"
    assert page.locator(".tfx-verdict strong").inner_text() == when


@pytest.mark.parametrize("preset", _sparsity.PRESETS)
def test_patterns_show_the_packages_numbers(visit, preset):
    page = visit("pattern")
    control(page, "preset").select_option(preset)
    check_pattern(page, preset)
    control(page, "n").press("End")
    control(page, "layers").press("ArrowRight")
    check_pattern(page, preset, n=64, layers=2)


def test_drawn_keys_are_the_packages(visit):
    page = visit("bigbird")
    check_pattern(page, "bigbird", n=40, seed=9, layers=2)
    control(page, "fresh").click()
    check_pattern(page, "bigbird", n=40, seed=10, layers=2)
    control(page, "causal").press("Space")
    check_pattern(page, "bigbird", n=40, seed=10, layers=2, causal=True)


def test_pattern_follows_the_keyboard(visit):
    page = visit("pattern")
    changes = {"window": 3, "stride": 5, "block": 4, "global_tokens": 1, "sinks": 2,
               "random_keys": 1, "dilation": 2, "answer": 5}  # fmt: skip
    presses = {"window": -1, "stride": 4, "block": 3, "global_tokens": 1, "sinks": 2,
               "random_keys": 1, "dilation": 1, "answer": 1}  # fmt: skip
    for name, count in presses.items():
        for _ in range(abs(count)):
            control(page, name).press("ArrowRight" if count > 0 else "ArrowLeft")
    check_pattern(page, **changes)
    control(page, "cell").press("Home")
    control(page, "length").press("End")
    control(page, "window").press("End")
    check_pattern(page, **changes | {"window": "all", "cell": 16, "length": 131_072})


def test_a_lost_answer_is_said_and_marked(visit):
    page = visit("pattern")
    control(page, "window").press("Home")
    control(page, "sinks").press("ArrowRight")
    check_pattern(page, window=1, sinks=1)
    page.get_by_text("Never met: the token just before, one halfway back, the answer.").wait_for()
    assert page.locator("tr.tfx-lost").count() == 3


def test_answer_follows_a_finger_in_the_pattern(visit):
    page = visit("pattern", width=390, touch=True)
    grid = page.locator("svg.tfx-seen")
    grid.scroll_into_view_if_needed()
    box = grid.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 20.5 / 32, box["y"] + box["height"] / 2)
    assert control(page, "answer").input_value() == "20"
    check_pattern(page, answer=20)
    tap_slider(page, "answer", 0.001)
    check_pattern(page, answer=0)


# ---------------------------------------------------------------------- expert_routing


def check_routing(page, tokens=None, **changes):
    figure = explorables.expert_routing(tokens, **changes)
    found = figure.results()
    for name in ("balancing_loss", "z_loss", "dropped", "most"):
        assert value(page, name) == near(found[name]), name
    for name in ("load", "f", "p", "bias"):
        assert values(page, name, 4) == near(found[name]), name
    shown = page.locator('[data-name^="chosen["]').evaluate_all(
        "nodes => nodes.map(n => [n.dataset.name, +n.dataset.value, n.dataset.kept === 'true'])"
    )
    pairs = zip(found["chosen"], found["kept"], strict=True)
    expected = [
        [f"chosen[{t}][{k}]", i, served]
        for t, (row, kept) in enumerate(pairs)
        for k, (i, served) in enumerate(zip(row, kept, strict=True))
    ]
    assert shown == expected
    for i, letter in enumerate(_routing.LETTERS):
        text = page.locator(f'[data-name="curve_{letter}"]').get_attribute("points")
        heights = [float(pair.split(",")[1]) for pair in text.split()]
        level = float(page.locator(".tfx-plot .tfx-weights").get_attribute("y1"))
        mean = len(found["chosen"]) * figure.top_k / 4
        loads = [mean * (100 - y) / (100 - level) for y in heights]
        assert loads == near([row[i] for row in found["loads"]])


def test_routing_shows_the_packages_numbers(visit):
    page = visit("routing")
    check_routing(page)
    for _ in range(3):
        control(page, "update").click()
    check_routing(page, balance=True, steps=3)
    control(page, "update_10").click()
    check_routing(page, balance=True, steps=13)
    control(page, "balance").press("Space")
    check_routing(page, steps=13)
    control(page, "restart").click()
    check_routing(page)


def test_routing_follows_the_keyboard(visit):
    page = visit("routing")
    control(page, "top_k", 2).check()
    control(page, "turn").press("ArrowRight")
    control(page, "temperature").press("ArrowLeft")
    control(page, "capacity").press("Home")
    control(page, "rate").press("End")
    control(page, "steps").press("End")
    changes = {"top_k": 2, "turn": 5, "temperature": 0.7, "capacity": 0.25, "rate": 0.1}
    check_routing(page, **changes, steps=100)
    for _ in range(4):
        control(page, "noise").press("ArrowRight")
    control(page, "fresh").click()
    check_routing(page, **changes, steps=100, noise=0.4, seed=1)


def test_own_words_stay_text(visit):
    page = visit("words")
    check_routing(page, WORDS, noise=0.5, seed=3, top_k=2)
    assert page.get_by_text("<b>", exact=True).is_visible()
    assert page.locator(".tfx-routed").count() == 3


def test_dropped_tokens_are_marked(visit):
    page = visit("routing", width=390, touch=True)
    found = explorables.expert_routing().results()
    assert page.locator(".tfx-badge.tfx-dropped").count() == found["dropped"] > 0
    assert page.locator("circle.tfx-lost").count() == found["lost"]
    tap_slider(page, "capacity", 0.999)
    check_routing(page, capacity=4)
    assert page.locator(".tfx-badge.tfx-dropped").count() == 0


# ---------------------------------------------------------------------- scan_tree


def check_tree(page, method="blelloch", **changes):
    figure = explorables.scan_tree(method, **changes)
    found = figure.results()
    n = figure.n
    for name in ("depth", "work", "done"):
        assert value(page, name) == found[name]
    assert values(page, "a", n) == near([a for a, _ in found["pairs"]])
    assert values(page, "b", n) == near([b for _, b in found["pairs"]])
    assert values(page, "h", n) == near(found["h"])
    for name, row in found["costs"].items():
        for column, count in row.items():
            assert value(page, f"{name}.{column}") == count
    joins = page.locator("line.tfx-branch:not(.tfx-handed)").count()
    assert joins == 2 * found["work"]  # each from two parts
    todo = page.locator("line.tfx-branch.tfx-todo:not(.tfx-handed)").count()
    assert todo == 2 * (found["work"] - found["done"])


@pytest.mark.parametrize("method", _scan.LABELS)
def test_tree_shows_the_packages_numbers_at_every_level(visit, method):
    page = visit("tree")
    control(page, "method").select_option(method)
    depth = explorables.scan_tree(method).depth
    for level in range(depth + 1):
        check_tree(page, method, level=level)
        control(page, "next").press("Enter")  # in the end it has no effect
    for n in (4, 16):
        control(page, "n", n).check()
        control(page, "end").click()
        check_tree(page, method, n=n, level=15)
        assert values(page, "b", n) == near(values(page, "h", n))


def test_tree_follows_the_keyboard_and_a_finger(visit):
    page = visit("tree")
    control(page, "reset").press("ArrowRight")
    control(page, "reset").press("ArrowRight")
    control(page, "length").press("End")
    control(page, "processors").press("Home")
    control(page, "level").press("End")
    check_tree(page, reset=2, length=2**20, processors=1, level=5)
    control(page, "start").click()
    check_tree(page, reset=2, length=2**20, processors=1)
    page = visit("tree", width=390, touch=True)
    tap_slider(page, "level", 0.999)
    check_tree(page, level=5)
    control(page, "back").tap()
    check_tree(page, level=4)


# ---------------------------------------------------------------------- delta_rule


def check_delta(page, mode="delta", **changes):
    figure = explorables.delta_rule(mode, **changes)
    found = figure.results()
    for i in (0, 1):
        assert values(page, f"state[{i}]", 2) == near(found["state"][i])
        assert number_of(page, f"recall_error[{i}]") == (
            None if found["recall_error"][i] is None else near(found["recall_error"][i])
        )
        for part in ("left", "erased", "added"):
            expected = found["last_write"][part][i] if found["last_write"] else [0, 0]
            assert values(page, f"{part}[{i}]", 2) == near(expected)
    assert values(page, "read", 2) == near(found["read"])
    assert value(page, "between") == near(found["between"])
    watched = 0 if figure.watched == "first" else 1
    assert value(page, "error") == near(found["errors"][mode][watched])
    check_curves(page, figure, watched)


def check_curves(page, figure, watched):
    """Each curve is the error over the angle; the scale is read off the ticks."""
    ticks = page.locator(".tfx-plot .tfx-ytick").evaluate_all(
        "nodes => nodes.map(n => [parseFloat(n.style.top), Number(n.textContent)])"
    )
    (low, zero), *_, (high, top) = sorted(ticks, key=lambda tick: tick[1])
    assert zero == 0
    for name in _delta.MODES:
        text = page.locator(f'[data-name="curve_{name}"]').get_attribute("points")
        corners = [tuple(map(float, pair.split(","))) for pair in text.split()]
        for x, y in corners[::15]:
            errors = _delta.recall_errors(name, 1.8 * x, figure._now(), list(_delta.WRITES))
            assert top * (low - y) / (low - high) == pytest.approx(errors[watched], abs=1e-4)


@pytest.mark.parametrize("mode", _delta.MODES)
def test_delta_shows_the_packages_numbers_after_every_write(visit, mode):
    page = visit("delta")
    control(page, "mode", mode).check()
    control(page, "none").click()
    for written in range(5):
        check_delta(page, mode, written=written)
        control(page, "next").press("Enter")  # in the end it has no effect
    control(page, "watched", "second").check()
    check_delta(page, mode, written=4, watched="second")


def test_delta_follows_the_keyboard(visit):
    page = visit("delta")
    control(page, "mode", "gated").check()
    page.locator('[data-handle="first"]').press("ArrowLeft")
    page.locator('[data-handle="second"]').press("Shift+ArrowRight")
    control(page, "query").press("Home")
    control(page, "beta").press("ArrowLeft")
    control(page, "alpha").press("ArrowRight")
    changes = {"first": 25, "second": 64, "query": -180, "beta": 0.95, "alpha": 0.85}
    check_delta(page, "gated", **changes)
    control(page, "back").click()
    check_delta(page, "gated", **changes, written=1)


def test_arrows_are_dragged(visit):
    page = visit("delta")
    plane = page.locator(".tfx-keys")
    plane.scroll_into_view_if_needed()
    box = plane.bounding_box()
    for name, degrees in (("first", 90), ("second", -45), ("query", 180)):
        handle = page.locator(f'[data-handle="{name}"]').bounding_box()
        page.mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2)
        page.mouse.down()
        angle = math.radians(degrees)
        page.mouse.move(
            box["x"] + box["width"] * (0.5 + 0.4 * math.cos(angle)),
            box["y"] + box["height"] * (0.5 - 0.4 * math.sin(angle)),
        )
        page.mouse.up()
    turned = page.locator('[data-handle="query"]').get_attribute("aria-valuenow")
    check_delta(page, first=90, second=-45, query=float(turned))
    assert abs(float(turned)) == 180


def test_delta_follows_a_finger(visit):
    page = visit("delta", width=390, touch=True)
    control(page, "next").tap()
    check_delta(page, written=3)
    tap_slider(page, "beta", 0.001)
    check_delta(page, written=3, beta=0)


# ---------------------------------------------------------------------- all of them


def show_much(page):
    """Bring the figures into a state in which most is shown."""
    control(page, "preset").select_option("bigbird")
    control(page, "block").press("End")
    control(page, "stride").press("ArrowRight")
    control(page, "layers").press("ArrowRight")
    control(page, "top_k", 2).check()
    control(page, "noise").press("ArrowRight")
    control(page, "update").click()
    control(page, "n", 16).check()
    control(page, "end").click()
    control(page, "mode", "gated").check()


@pytest.mark.parametrize("touch", [False, True])
def test_no_figure_makes_the_page_scroll_sideways(visit, touch):
    widths = [390, 320] if touch else [1280, 720, 620]
    page = visit("all", width=widths[0], touch=touch)
    check_widths(page, widths)
    show_much(page)
    check_widths(page, widths)


def test_axe_finds_nothing(visit, figures_at):
    page = visit("all", figures_at)
    assert axe_faults(page) == []
    show_much(page)
    assert axe_faults(page) == []


def test_touch_targets_are_44_pixels_high(visit):
    page = visit("all", width=390, touch=True)
    show_much(page)
    small = page.evaluate(
        """() => [...document.querySelectorAll('.tfx :is(input, button, select, .tfx-handle)')]
            .map(node => ['checkbox', 'radio'].includes(node.type) ? node.closest('label') : node)
            .filter(node => node.checkVisibility() && node.getBoundingClientRect().height < 44)
            .map(node => node.outerHTML.slice(0, 200))"""
    )
    assert small == []


def test_colours_follow_the_theme(visit):
    page = visit("all", theme="light")
    marks = [".tfx-kind-near", ".tfx-e0.tfx-region", ".tfx-branch", ".tfx-aim", ".tfx-knob"]
    script = """marks => marks.map(s => {
        const style = getComputedStyle(document.querySelector(s));
        return [style.fill, style.stroke].join();
    })"""
    light = page.evaluate(script, marks)
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert all(a != b for a, b in zip(light, page.evaluate(script, marks), strict=True))


def test_every_control_has_a_name(visit):
    page = visit("all")
    nodes = page.locator(".tfx :is(input, button, select, [tabindex])")
    names = nodes.evaluate_all(
        """nodes => nodes.map(n => [n.tabIndex, n.ariaLabel || n.closest('label')?.textContent
            || n.textContent])"""
    )
    assert len(names) > 50 and all(index == 0 and name.strip() for index, name in names)


def test_without_javascript_the_text_alternative_is_there(visit):
    page = visit("all", scripts=False)
    for text, made in zip(page.locator(".tfx-text").all(), FIGURES["all"](), strict=True):
        assert text.is_visible() and made.data["title"] in text.inner_text()
