"""The figures of the chapter on looking inside in a real browser: numbers equal the package's.

The pages are laid out and visited as those of `test_explorables.py` are.
"""

import functools
import json

import pytest
import torch

from book.tools import live
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
from tfbook.interpret import ablated, induction_model, patterns, rollout
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _induction

pytestmark = pytest.mark.browser
visit, figures_at, free_pages = others.visit, others.figures_at, others.free_pages
near = functools.partial(pytest.approx, rel=1e-9, abs=1e-9)
NAMES = "When Mary and John went to the shop , John gave the <b> bag to".split()
KINDS = ("stream", "attention", "feed-forward network")


def some_effects(rows, columns):
    """Numbers with signs, one of them large."""
    generator = torch.Generator().manual_seed(rows)
    numbers = torch.randn(len(KINDS), rows, columns, generator=generator).double() ** 3 / 10
    numbers[0, rows // 2, 1] = 2.5
    return dict(zip(KINDS, numbers, strict=True))


def some_patterns(n_layers, n):
    """Causal patterns, rows sum to 1."""
    generator = torch.Generator().manual_seed(n_layers)
    scores = 2 * torch.randn(n_layers, n, n, generator=generator).double()
    return scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)


def patching(**changes):
    return explorables.patching_grid(
        some_effects(6, len(NAMES)), rows=range(6), columns=NAMES, **changes
    )


def wide_patching():
    return explorables.patching_grid(
        some_effects(30, 40),
        rows=[f"{i} of thirty" for i in range(30)],
        columns=[f"column number {i}" for i in range(40)],
        row_name="head",
        column_name="site",
    )


def tall_patching():
    """Many rows of shares between 0 and 1, as the book has them."""
    effects = {kind: x.abs().clamp(max=1) for kind, x in some_effects(30, 14).items()}
    return explorables.patching_grid(effects, rows=range(30), columns=NAMES[:14])


def rolled(**changes):
    return explorables.rollout_stepper(some_patterns(4, 9), NAMES[:9], **changes)


FIGURES = {
    "patching": lambda: [patching()],
    "away": lambda: [patching(chosen=(2, 5))],
    "wide": lambda: [wide_patching()],
    "tall": lambda: [tall_patching()],
    "one": lambda: [explorables.patching_grid({"x": [[-2.0]]}, rows=["a"], columns=["b"])],
    "rollout": lambda: [rolled()],
    "deep": lambda: [
        explorables.rollout_stepper(some_patterns(12, 20), ["w"] * 20, layer=11, step=3)
    ],
    "induction": lambda: [explorables.induction_head()],
    "words": lambda: [explorables.induction_head(["<b>", "x", "&", "<b>"], first_head=False)],
    "smollm2-135m": lambda: [explorables.pretrained_attention()],
    "minilm-l6": lambda: [explorables.pretrained_attention("minilm-l6")],
    "all": lambda: [patching(), wide_patching(), rolled(), explorables.induction_head()],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with these figures, laid out as in the built site."""
    made = lay_out(tmp_path_factory.mktemp("interpret"), FIGURES)
    (made / "_static" / live.FOLDER).mkdir()
    for model in live.LOOKED:
        script = explorables.attention_script(model)
        (made / "_static" / live.FOLDER / f"attention-{model}.js").write_text(script)
    return made


def grid_values(page, name, rows, columns):
    """Numbers name[i][j] off the page."""
    found = dict(
        page.locator(f'[data-name^="{name}["]').evaluate_all(
            "nodes => nodes.map(node => [node.dataset.name, Number(node.dataset.value)])"
        )
    )
    return [[found[f"{name}[{i}][{j}]"] for j in range(columns)] for i in range(rows)]


# ---------------------------------------------------------------------- patching_grid


def check_patching(page, figure=None, **changes):
    figure = figure or patching()
    for name, set_to in changes.items():
        setattr(figure, name, set_to)
    found = figure.results()
    grid = figure.data["effects"][figure.kind]
    n, m = len(grid), len(grid[0])
    for shown, wanted in zip(grid_values(page, "effects", n, m), grid, strict=True):
        assert shown == near(wanted)
    assert value(page, "effect") == near(found["effect"])
    assert value(page, "rank") == found["rank"]
    assert values(page, "row", m) == near(found["row"])
    assert values(page, "column", n) == near(found["column"])
    named = [x for *_, x in found["largest"]]
    assert values(page, "largest", len(named)) == near(named)
    frame = page.locator(".tfx-labelled .tfx-frame")
    assert [float(frame.get_attribute(key)) for key in "yx"] == figure.chosen
    for rect, sign in (("effects", "-"), ("effects", "+")):
        cells = page.locator(f'[data-name^="{rect}["][data-sign="{sign}"]')
        assert cells.count() == sum((x < 0) == (sign == "-") for row in grid for x in row)
    heat = page.locator(f'[data-name="effects[{figure.chosen[0]}][{figure.chosen[1]}]"]')
    shown = float(heat.evaluate("n => parseFloat(n.style.getPropertyValue('--heat'))"))
    most = max(abs(x) for g in figure.data["effects"].values() for row in g for x in row)
    assert shown == pytest.approx(100 * abs(found["effect"]) / most, abs=0.06)
    bars = page.locator('[data-name="row[0]"]')
    assert float(bars.get_attribute("height")) == near(abs(found["row"][0]))


@pytest.mark.parametrize("kind", KINDS)
def test_grid_shows_the_packages_numbers(visit, kind):
    page = visit("patching")
    control(page, "kind", kind).check()
    check_patching(page, kind=kind)


def test_grid_follows_the_keyboard(visit):
    page = visit("patching")
    control(page, "chosen[0]").press("End")
    control(page, "chosen[1]").press("ArrowRight")
    control(page, "chosen[1]").press("ArrowRight")
    check_patching(page, chosen=(5, 2))
    said = page.get_by_text("Patched: stream, layer 5, token “and” (2). What came of it:")
    said.wait_for()
    control(page, "kind", "stream").press("ArrowRight")
    check_patching(page, kind="attention", chosen=(5, 2))


def test_grid_follows_mouse_and_finger(visit):
    for touch in (False, True):
        page = visit("patching", width=390, touch=touch)
        cells = page.locator("svg.tfx-mapped")
        cells.scroll_into_view_if_needed()
        box = cells.bounding_box()
        at = box["x"] + box["width"] * 3.5 / len(NAMES), box["y"] + box["height"] * 4.5 / 6
        page.touchscreen.tap(*at) if touch else page.mouse.click(*at)
        check_patching(page, chosen=(4, 3))
    tap_slider(page, "chosen[0]", 0.001)
    check_patching(page, chosen=(0, 3))


def test_the_largest_are_buttons_that_lead_there(visit):
    page = visit("patching")
    figure = patching()
    for k, (i, j, _) in enumerate(figure.largest):
        control(page, "largest").nth(k).click()
        check_patching(page, chosen=(i, j))
    assert control(page, "largest").first.inner_text().startswith("layer 3, token “Mary” (1):")


def test_names_that_do_not_fit_are_left_out_but_for_the_chosen(visit):
    page = visit("wide", width=390, touch=True)
    check_patching(page, wide_patching())
    shown = """side => [...document.querySelectorAll(`.tfx-${side} > span`)]
        .map((n, i) => n.checkVisibility({ visibilityProperty: true }) ? i : null)
        .filter(i => i !== null)"""
    before = page.evaluate(shown, "top")
    assert before[0] == 0 and 2 < len(before) < 30
    control(page, "chosen[1]").press("End")
    page.wait_for_function("document.querySelectorAll('.tfx-top .tfx-named').length === 1")
    after = page.evaluate(shown, "top")
    assert after[-1] == 39 and all(39 - i >= before[1] for i in after[:-1])
    assert 0 in page.evaluate(shown, "left")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["patching", "tall"])
def test_names_and_bars_stand_beside_their_cells(visit, name, width):
    """The sides are as long as the map: none pulls it apart."""
    page = visit(name, width=width)
    box = lambda css: page.locator(css).first.bounding_box()  # noqa: E731
    cells = box("svg.tfx-mapped")
    for side in (".tfx-left", ".tfx-columnbars"):
        assert [box(side)[key] for key in ("y", "height")] == pytest.approx(
            [cells["y"], cells["height"]], abs=2
        )
    for side in (".tfx-top", ".tfx-rowbars"):
        assert [box(side)[key] for key in ("x", "width")] == pytest.approx(
            [cells["x"], cells["width"]], abs=2
        )


def test_a_grid_of_one_cell(visit):
    page = visit("one")
    assert value(page, "effect") == -2 and value(page, "rank") == 1
    assert not control(page, "chosen[0]").is_visible() and not control(page, "kind").is_visible()


# ---------------------------------------------------------------------- rollout_stepper


def check_rollout(page, **changes):
    figure = rolled(**changes)
    found = figure.results()
    n = len(figure.data["tokens"])
    kept = torch.tensor(figure.data["patterns"], dtype=torch.double)[: figure.layer + 1]
    product = rollout(kept[:, None])
    assert values(page, "right", n) == near(product[figure.token].tolist())
    assert values(page, "wrong", n) == near(found["wrong"])
    assert values(page, "weight", n) == near(found["shown"])
    for name in ("row_sum", "own", "difference"):
        assert value(page, name) == near(found[name])
    layer = kept[-1]
    wanted = [layer, layer + torch.eye(n), (layer + torch.eye(n)) / 2, product][figure.step]
    shown = torch.tensor(grid_values(page, "matrix", n, n), dtype=torch.double)
    torch.testing.assert_close(shown, wanted, rtol=0, atol=1e-5)
    frame = page.locator(".tfx-labelled .tfx-frame")
    assert float(frame.get_attribute("y")) == figure.token


def test_rollout_shows_the_packages_numbers_at_every_step(visit):
    page = visit("rollout")
    for layer in range(4):
        for step in range(4):
            check_rollout(page, layer=layer, step=step)
            control(page, "next").press("Enter")  # in the end it has no effect
    check_rollout(page, layer=3, step=3)
    control(page, "previous").click()
    check_rollout(page, layer=3, step=2)


def test_rollout_follows_the_keyboard_and_a_finger(visit):
    page = visit("rollout")
    control(page, "layer").press("End")
    control(page, "step", 0).press("ArrowRight")
    control(page, "token", 8).press("ArrowLeft")
    check_rollout(page, layer=3, step=1, token=7)
    page = visit("rollout", width=390, touch=True)
    tap_slider(page, "layer", 0.999)
    control(page, "next").tap()
    check_rollout(page, layer=3, step=1)
    cells = page.locator("svg.tfx-mapped")
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] * 5.5 / 9)
    check_rollout(page, layer=3, step=1, token=5)


def test_both_orders_are_named(visit):
    page = visit("rollout")
    names = page.locator(".tfx-note").filter(has_text="right:")
    control(page, "layer").press("ArrowRight")
    control(page, "layer").press("ArrowRight")
    assert names.inner_text().split("\n") == ["right: Ã₂ Ã₁ Ã₀", "wrong: Ã₀ Ã₁ Ã₂"]
    page = visit("deep")
    assert page.locator(".tfx-label").filter(has_text="R =").inner_text() == "R = Ã₁₁ ⋯ Ã₁ Ã₀"


# ---------------------------------------------------------------------- induction_head


def check_induction(page, text=None, **changes):
    words = (text or " ".join(_induction.WORDS)).split()
    figure = explorables.induction_head(words, **changes)
    found = figure.results()
    i, vocabulary = figure.place, list(dict.fromkeys(words))
    model = induction_model(max(2, len(vocabulary)), max_len=16).double()
    ids = torch.tensor([[vocabulary.index(word) for word in words]])
    with torch.no_grad(), ablated(model, [] if figure.first_head else [(0, 0)]):
        says = model(ids)[0][0, i, : len(vocabulary)].softmax(-1).tolist()
        looks = patterns(model, ids)[1, 0, 0, i].tolist()
    assert values(page, "key_weight", i + 1) == near(looks[: i + 1])
    assert values(page, "weight", len(words)) == near(looks)
    assert values(page, "score", i + 1) == near(found["scores"])
    shown = page.locator('[data-name^="probability["]').evaluate_all(
        "nodes => nodes.map(n => [n.dataset.name.slice(12, -1), Number(n.dataset.value)])"
    )
    for word, share in shown:
        assert share == near(says[vocabulary.index(word)])
    shares = sorted(says, reverse=True)[:4]
    assert [share for _, share in shown] == near(shares)
    assert value(page, "found") == near(found["found"])
    before = page.locator('[data-name^="before["]').all_inner_texts()
    assert before == [word or "nothing" for word in found["before"]]
    says = " or ".join(found["answer"]) if len(found["answer"]) <= 3 else "many alike"
    assert page.locator(".tfx-says").inner_text() == says
    second = page.locator("line.tfx-second").count()
    assert second == sum(w >= 0.02 for w in looks)
    assert page.locator("line.tfx-first").count() == (len(words) if figure.first_head else 0)


def test_induction_shows_the_packages_numbers(visit):
    page = visit("induction")
    for token in range(10):
        control(page, "token", token).check()
        check_induction(page, token=token)
    control(page, "first_head").press("Space")
    check_induction(page, first_head=False)
    page.get_by_text("Earlier, “red” was followed by “fox”: that is missed.").wait_for()


def test_induction_reads_what_is_typed(visit):
    page = visit("induction")
    control(page, "text").fill("  one two three one two three  one two ")
    check_induction(page, "one two three one two three one two")
    page.get_by_text("Earlier, “two” was followed by “three”.").wait_for()
    control(page, "text").fill("word " * 17)
    assert page.get_by_text("Up to 16 words fit here").is_visible()
    check_induction(page, "one two three one two three one two")
    control(page, "text").fill("indivisibilityandmore")
    assert page.get_by_text("has more than 16 letters").is_visible()
    control(page, "text").fill("")
    check_induction(page, "one two three one two three one two")
    for i, text in enumerate(_induction.EXAMPLES):
        control(page, "example").nth(i).click()
        assert control(page, "text").input_value() == text
        check_induction(page, text)


def test_own_words_stay_text(visit):
    page = visit("words", width=390, touch=True)
    check_induction(page, "<b> x & <b>", first_head=False)
    control(page, "first_head").tap()
    check_induction(page, "<b> x & <b>")
    assert page.locator("tbody th").filter(has_text="<b>").count() > 1


# ---------------------------------------------------------------------- pretrained_attention


def check_heads(page, model="smollm2-135m", **changes):
    figure = explorables.pretrained_attention(model, **changes)
    found = figure.results()
    assert values(page, "weight", len(found["weights"])) == near(found["weights"])
    for name in ("self", "previous", "first", "distance", "entropy"):
        assert value(page, name) == near(found["stats"][name])


@pytest.mark.parametrize("model", live.LOOKED)
def test_real_heads_are_loaded_when_asked_for(visit, model):
    page = visit(model)
    page.evaluate("window.tfbookWeights = undefined")
    assert page.locator(".tfx-card").get_by_text("on 20 sentences").is_visible()
    assert page.locator('[data-name^="weight["]').count() == 0
    control(page, "ask").focus()
    control(page, "ask").press("Enter")
    control(page, "text").wait_for()
    assert page.evaluate("document.activeElement.dataset.control") == "text"
    check_heads(page, model)
    control(page, "text").select_option("4")
    layer = {"smollm2-135m": 29, "minilm-l6": 5}[model]
    control(page, "layer").press("End")
    control(page, "head", f"{layer}.8").check()
    control(page, "token", 3).check()
    check_heads(page, model, sentence=4, layer=layer, head=8, token=3)
    control(page, "direction", "to").check()
    check_heads(page, model, sentence=4, layer=layer, head=8, token=3, direction="to")


def test_weights_that_do_not_load_can_be_asked_for_again(visit, figures_at):
    page = visit("minilm-l6", figures_at)  # not from where another test has loaded them
    page.route("**/models/*.js", lambda route: route.abort())
    control(page, "ask").click()
    page.get_by_text("did not load. Try again").wait_for()
    page.unroute_all()
    control(page, "ask").click()
    control(page, "text").wait_for()
    check_heads(page, "minilm-l6")
    page.complaints.clear()  # of the file that was kept back


# ---------------------------------------------------------------------- planted bugs

MUTANTS = {
    "patching_grid": (
        ("away", lambda page: check_patching(page, chosen=(2, 5)), [
            ('[i, j] = model.get("chosen")', '[j, i] = model.get("chosen")'),
            ("Math.abs(cell[2]) > Math.abs(x)", "cell[2] > x"),
            ("Math.abs(b[2]) - Math.abs(a[2])", "b[2] - a[2]"),
            ("row[j], k === i", "row[i], k === i"),
            ("sign: x < 0", "sign: x > 0"),
            ("share(Math.abs(x) / (reach || 1))", "share(Math.abs(x))"),
        ])
    ),
    "rollout_stepper": (
        ("rollout", lambda page: check_rollout(page, layer=2, step=3), [
            ("times(share, below.steps[end])", "times(below.steps[end], share)"),
            ("times(below.wrong, share)", "times(share, below.wrong)"),
            ("x + (i === j ? 1 : 0)", "x"),
            ("Math.abs(x - wrong[j]), 0) / 2", "Math.abs(x - wrong[j]), 0)"),
            ("line.wrong.set(wrong[j])", "line.wrong.set(right[j])"),
        ])
    ),
    "induction_head": (
        ("induction", check_induction, [
            ("j === place - 1", "j === place"),
            ("- (j ? 0 : data.passed)", ""),
            ("data.sharp * (parts[own]", "data.sharp * (parts[0]"),
            ("data.sharp * share", "share"),
            ("words.slice(1, i + 1)", "words.slice(0, i + 1)"),
        ])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bugs_of_a_figure_are_seen(browser, folder, name):
    sync_api = pytest.importorskip("playwright.sync_api")
    source = explorables.module_source(name)
    where, check, planted = MUTANTS[name]
    page = browser.new_page()
    page.set_default_timeout(20_000)
    put, unseen = {}, []
    try:
        page.route(f"**/{name}.js", lambda route: route.fulfill(**put))
        for old, new in [("", ""), *planted]:
            assert not old or source.count(old) == 1, f"{old!r} stands {source.count(old)} times"
            text = json.dumps(source.replace(old, new) if old else source)
            put["body"] = f"(window.tfbookModules ||= {{}}).{name} = {text};"
            page.goto(f"{folder.as_uri()}/{where}.html")
            page.wait_for_function(others.ALIVE)
            page.evaluate(others.UNFOLD)
            if name == "rollout_stepper":
                for _ in range(11):
                    control(page, "next").click()
            try:
                check(page)
                unseen.append(old)
            except (AssertionError, sync_api.Error):
                pass
    finally:
        page.close()
    assert unseen == [""]  # as it stands it is right


# ---------------------------------------------------------------------- all of them


def show_much(page):
    """Bring the figures into a state in which most is shown."""
    for kind in ("attention", "feed-forward network"):
        control(page, "kind", kind).first.check()
    control(page, "chosen[0]").first.press("End")
    control(page, "chosen[1]").nth(1).press("End")
    control(page, "layer").press("End")
    control(page, "step", 3).check()
    control(page, "text").fill("indivisibility! " * 16)


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
    assert axe_faults(visit("smollm2-135m", figures_at)) == []


def test_touch_targets_are_44_pixels_high(visit):
    page = visit("all", width=390, touch=True)
    show_much(page)
    small = page.evaluate(
        """() => [...document.querySelectorAll('.tfx :is(input, button, select)')]
            .map(node => ['checkbox', 'radio'].includes(node.type) ? node.closest('label') : node)
            .filter(node => node.checkVisibility() && node.getBoundingClientRect().height < 44)
            .map(node => node.outerHTML.slice(0, 200))"""
    )
    assert small == []


def test_colours_follow_the_theme(visit):
    page = visit("all", theme="light")
    marks = [".tfx-effectbar", "line.tfx-first", "line.tfx-second", ".tfx-labelled .tfx-frame"]
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
    assert len(names) > 40 and all(index == 0 and name.strip() for index, name in names)


def test_without_javascript_the_text_alternative_is_there(visit):
    page = visit("all", scripts=False)
    for text, made in zip(page.locator(".tfx-text").all(), FIGURES["all"](), strict=True):
        assert text.is_visible() and made.data["title"] in text.inner_text()
