"""Kinds of exercises, a drawing in steps and the reader's progress, on the pages of a small book.

The book is built with the real configuration, so that what folds an experiment's outputs, counts
and remembers is what the chapters' pages have. Visited from a server and from a disk.
"""

import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from visits import ALIVE, FORGET, FOUND

from tfbook import attention
from tfbook.teaching import explain, predict, quiz
from tfbook.teaching.explorables import attention_walk, stepper

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
JUPYTER_BOOK = str(Path(sys.executable).with_name("jupyter-book"))
CHOICES = [
    ("It grows with `d_k`.", True, "The variance of q · k is d_k, as the curve shows."),
    ("It stays <as> it is.", False, "Each product adds its own variance."),
    ("It shrinks.", False, "Nothing is divided yet."),
]
ASKED = {
    "spread": lambda: predict("spread", "What becomes of the spread, given d_k?", choices=CHOICES),
    "largest": lambda: predict(
        "largest", "How large is the largest weight?", answer=0.75, tolerance=0.05, unit="percent",
        feedback={0.25: "A quarter would be the weight of each, were all alike."},
        explanation="The softmax favours the largest.",
    ),
    "alone": lambda: predict("alone", "And without an experiment?", choices=CHOICES),
    "why-scale": lambda: explain(
        "why-scale", "Why divide by √`d_k`?", model="The softmax would saturate, and `d_k` is why.",
        rubric=["Names the softmax.", "Says that gradients vanish.", "Says where d_k comes from."],
    ),
    "count": lambda: quiz("count", "Which?", choices=CHOICES),
    "mixture": lambda: quiz(
        "mixture", "The scores are 1 and 3. Which weights?", explanation="They sum to 1.",
        numbers=[
            {"name": "α₁", "answer": 0.12, "tolerance": 0.005, "feedback": {0.88: "The other."}},
            {"name": "α₂", "answer": 0.88, "tolerance": 0.005},
        ],
    ),
}  # fmt: skip
TOKENS = ["sat", "by", "the", "river", "bank"]
Q = [1.5, -0.2, 0.7, 0.1]
KEYS = [[0.1, 1, 0, 0.2], [0, 0.3, 0.1, -0.5], [0, 0, 0, 1], [1.2, 0, 0.4, 0], [0.8, 0.1, 0.9, 0]]
VALUES = [[0.1, 0.9, 0], [0, 0.2, 0.1], [0, 0, 0.1], [1, 0, 0.2], [0.5, 0.1, -0.9]]
WIDE = (torch.arange(48).reshape(8, 6).sin() * 1.4).tolist()
LARGE = {"matrix": "K", "values": WIDE, "rows": [f"word{i}" for i in range(8)]}
FIGURES = {
    "walk": lambda: attention_walk(Q, KEYS, VALUES, TOKENS, of="bank", slug="walk"),
    "unscaled": lambda: attention_walk(Q, KEYS, VALUES, TOKENS, False, slug="unscaled"),
    "large": lambda: attention_walk(WIDE[0], WIDE, WIDE, LARGE["rows"], slug="large"),
    "drawn": lambda: stepper(
        "drawn", title="A <part> moves", alt="A matrix, its shape and a vector.",
        steps=[
            {
                "caption": "A matrix of d_k columns.",
                "parts": [LARGE | {"columns": list("abcdef"), "highlight": 7},
                          {"matrix": "W", "shape": (6, 3), "at": (1, 0)}],
            },
            {
                "caption": "A vector, and `W` aside.", "formula": "x = K w_j", "pale": ["K"],
                "parts": ["W", {"bars": "x", "values": [0.5, -2, 1e-9], "at": (1, 1)}],
                "arrows": [("W", "x", "gives"), ("K", "W")],
            },
            {"caption": "It has moved.", "parts": [{"bars": "x", "values": [2], "at": (0, 1)}]},
        ],
    ),
}  # fmt: skip
WORDS = "A sentence of a length that fills a line or two of the page, and says nothing else. " * 6


# ------------------------------------------------------------------------------- the small book


def text(name, source):
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def code(name, source, data, **metadata):
    output = {"output_type": "display_data", "data": data, "metadata": {}}
    return {
        "cell_type": "code", "id": name, "execution_count": 1, "metadata": metadata,
        "source": source, "outputs": [output],
    }  # fmt: skip


def asked(slug):
    """A cell that asks."""
    kind = ASKED[slug]().module
    source = f'{kind}("{slug}")'
    return code(f"ask-{slug}", source, ASKED[slug]()._repr_mimebundle_(), tags=["remove-input"])


def shown(slug, result, **metadata):
    """The cell of an experiment whose result is to be predicted."""
    data = {"text/plain": result}
    return code(f"run-{slug}", "experiment()", data, tfbook={"predict": slug}, **metadata)


def followers(where):
    """Cells with folded code that draw and state what an experiment showed."""
    name, told = where.split()[0], {"text/plain": f"drawn {where}"}
    claimed = '<div class="tfbook-claim"><span>claimed</span></div>'
    return [
        code(f"drawn-{name}", "draw()", told, tags=["hide-input"]),
        code(f"verified-{name}", "claim()", {"text/html": claimed}, tags=["verify"]),
    ]


def figure(name):
    """A cell that shows a drawing in steps."""
    data = FIGURES[name]()._repr_mimebundle_()
    return code(f"show-{name}", f"{name}()", data, tags=["remove-input"])


def filler(name, lines=6):
    return text(name, "\n\n".join([WORDS] * lines))


CHAPTERS = {
    "02_small": [
        text("a", "# Small matters"), filler("a1", 1),
        text("b", "## Scores and `d_k`"), filler("b1"), asked("spread"),
        shown("spread", "the spread is 8"), *followers("directly behind"),
        text("b0", "It is 8, as the figure shows."), *followers("after")[1:],
        text("b00", "So much for that."), filler("b2"),
        *followers("later"), asked("count"),
        text("c", "## Weights"), filler("c1"), asked("largest"),
        shown("largest", "the largest is 0.75", tags=["remove-input"]),
        text("c0", "Compare it with the others:"), asked("mixture"),
        filler("c2"), text("c3", "### A part of it"), filler("c4"),
        text("d", "## Values"), filler("d1"), asked("why-scale"), asked("alone"), filler("d2"),
        text("e", "## Steps"), *[figure(name) for name in FIGURES],
    ],
    "03_more": [text("a", "# More"), text("b", "## Only one"), filler("b1"), asked("count")],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The built pages of a small book."""
    folder = tmp_path_factory.mktemp("kinds")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    pages = {
        "book/welcome.md": "# Start\n\nWords.\n\n## Chapters\n\n```{chapter-list}\n"
        "02_small: About little\n03_more: About more\n04_later: To come\n```\n",
        "book/references.bib": "@misc{a2020b, author={A B}, title={T}, year={2020}}",
        "_toc.yml": yaml.safe_dump({
            "format": "jb-book", "root": "book/welcome",
            "parts": [{"numbered": 2, "chapters": [{"file": f"chapters/{c}"} for c in CHAPTERS]}],
        }),
    }  # fmt: skip
    for name, cells in CHAPTERS.items():
        notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
        pages[f"chapters/{name}.ipynb"] = json.dumps(notebook)
    for part in ("book/tools", "book/templates", "book/assets"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("book/topics.yml", "book/errata.yml", "_config.yml"):
        shutil.copy(ROOT / part, folder / part)
    for name, content in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    command = [JUPYTER_BOOK, "build", ".", "-W", "--keep-going", "-n"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0, (made.stdout + made.stderr)[-3000:]
    return folder / "_build" / "html"


@pytest.fixture(scope="module")
def address(folder, served):
    """The address of these pages over HTTP, on a loopback port."""
    with served(folder) as address:
        yield address


@pytest.fixture(params=["http", "file"])
def origin(request, address, folder):
    """Where the pages come from."""
    return address if request.param == "http" else folder.as_uri()


@pytest.fixture(scope="module")
def free(browser):
    """Browsers and pages that no reader uses, by kind: what they have compiled is not lost."""
    return {}


@pytest.fixture
def reader(browser, address, free):
    """Return a function that makes a reader: a browser that remembers until the test ends.

    Each page it opens is noted; an error on one of them, or a request that fails, fails the test.
    """
    used, complaints = [], []

    def make(
        *, width=1280, theme="light", touch=False, scripts=True, reduced_motion="no-preference"
    ):
        kind = (touch, scripts)
        if free.setdefault(kind, []):
            context = free[kind].pop()
        else:
            context = browser.new_context(
                has_touch=touch, is_mobile=touch, java_script_enabled=scripts
            )
            context.set_default_timeout(120_000)
        used.append((kind, context))

        def visit(name="chapters/02_small", origin=address, before=None):
            blank = [page for page in context.pages if page.url == "about:blank"]
            page = blank[0] if blank and not before else new(context)
            page.complaints = complaints
            page.emulate_media(color_scheme=theme, reduced_motion=reduced_motion)
            page.set_viewport_size({"width": width, "height": 800})
            if before:
                page.add_init_script(before)
            page.changed = before
            page.goto(f"{origin}/{name}.html")
            page.wait_for_load_state("load")
            if scripts:
                page.wait_for_function(ALIVE)
            return page

        return visit

    yield make
    for kind, context in used:
        for page in context.pages:
            if kind[1]:
                page.evaluate(FORGET)
            page.close() if page.changed else page.goto("about:blank")
        free[kind].append(context)
    assert complaints == []


def new(context):
    """A page that notes what fails."""
    page = context.new_page()
    page.on("console", lambda m: m.type == "error" and page.complaints.append(m.text))
    page.on("pageerror", lambda e: page.complaints.append(str(e)))

    def failed(request):
        if request.failure != "net::ERR_ABORTED":  # a page that is left stops loading
            page.complaints.append(f"{request.url}: {request.failure}")

    page.on("requestfailed", failed)
    return page


def card(page, slug):
    return page.locator(f'form[data-slug="{slug}"]')


def fold(page, slug):
    return page.locator(f'details[data-predict="{slug}"]')


def plain(words):
    """A text of a question as it is read off the page."""
    parts = words.split("`")
    parts[::2] = [re.sub(r"\b([a-z])_([a-z])\b", r"\1\2", part) for part in parts[::2]]
    return "".join(parts)


def told(form):
    return " ".join(form.get_by_role("status").first.inner_text().split())


# ---------------------------------------------------------------------------------- predict first


@pytest.mark.parametrize("touch", [False, True])
@pytest.mark.parametrize("choice", range(3))
def test_a_prediction_is_kept_before_the_result_unfolds(reader, choice, touch):
    page = reader(width=390 if touch else 1280, touch=touch)()
    form, result = card(page, "spread"), fold(page, "spread")
    assert not result.get_by_text("the spread is 8").is_visible()
    assert "Predict first" in result.inner_text() and told(form) == ""
    # What stands in the box at the moment when the fold opens: only what was said.
    page.evaluate(
        """() => document.querySelector('details[data-predict="spread"]').addEventListener(
            'toggle', () => (window.before = document.querySelector(
                'form[data-slug="spread"] [role="status"]').innerText), { capture: true })"""
    )
    radio, button = form.get_by_role("radio").nth(choice), form.get_by_role("button")
    radio.tap() if touch else radio.press("Space")
    button.tap() if touch else button.press("Enter")
    right = CHOICES[choice][1]
    said, feedback = (plain(CHOICES[choice][i]) for i in (0, 2))
    word = "As you said." if right else "It went otherwise."
    form.get_by_text(word).wait_for()
    kept = f"Kept: you said “{said[:-1]}”."
    assert " ".join(page.evaluate("window.before").split()) == kept
    assert told(form) == f"{kept} {word} {feedback}"
    assert result.get_by_text("the spread is 8").is_visible()
    assert "What happens" in result.locator("> summary").inner_text()
    assert form.get_by_role("radio", disabled=True).count() == 3 and not button.is_visible()
    assert page.evaluate("document.activeElement.closest('form')?.dataset.slug") == "spread"


def test_folded_cells_directly_behind_unfold_with_the_result_and_later_ones_stand_by_themselves(
    reader,
):
    page = reader()()
    result, behind = fold(page, "spread"), page.get_by_text("drawn directly behind")
    assert not behind.is_visible() and page.get_by_text("drawn later").is_visible()
    assert page.get_by_text("1 verified").count() == 3
    folded = result.get_by_text("1 verified")  # one behind the drawing, one behind the paragraph
    assert folded.count() == 2 and not folded.first.is_visible() and not folded.last.is_visible()
    result.locator("> summary").first.click()
    assert behind.is_visible() and folded.first.is_visible() and folded.last.is_visible()
    claimed = result.get_by_text("claimed", exact=True)
    assert not claimed.first.is_visible()
    folded.first.click()
    assert claimed.first.is_visible()


def test_the_paragraph_that_reads_a_result_unfolds_with_it_and_what_leads_on_stands_open(reader):
    page = reader()()
    result, read = fold(page, "spread"), page.get_by_text("It is 8, as the figure shows.")
    assert not read.is_visible() and page.get_by_text("So much for that.").is_visible()
    assert page.get_by_text("Compare it with the others:").is_visible()
    result.locator("> summary").first.click()
    assert read.is_visible()


def test_what_is_given_stands_apart_from_what_is_asked(reader):
    page = reader()()
    weight = "node => getComputedStyle(node).fontWeight"
    asks = card(page, "mixture").locator("legend > span").last
    assert asks.inner_text() == "The scores are 1 and 3. Which weights?"
    given = asks.locator(".tfx-given")
    assert given.inner_text().strip() == "The scores are 1 and 3."
    assert given.evaluate(weight) == "400" and int(asks.evaluate(weight)) >= 600
    assert card(page, "count").locator(".tfx-given").count() == 0


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        ("0.77", "As you said. The softmax favours the largest."),
        (
            "1/4",
            "It went otherwise. A quarter would be the weight of each, were all alike. The softmax "
            "favours the largest.",
        ),
        ("−1", "It went otherwise. The softmax favours the largest."),
    ],
)
def test_a_number_is_predicted(reader, number, answer):
    page = reader()()
    form = card(page, "largest")
    field = form.get_by_role("textbox", name="Your number, in percent")
    field.press("Enter")
    assert told(form) == "Type a number, for instance 0.25 or 1/4."
    assert not fold(page, "largest").evaluate("e => e.open")
    field.fill(number)
    field.press("Enter")
    form.locator(".tfx-feedback").nth(1).wait_for()
    shown = {"1/4": "0.25"}.get(number, number)
    assert told(form) == f"Kept: you said {shown} percent. {answer}"
    assert fold(page, "largest").get_by_text("the largest is 0.75").is_visible()


def test_a_prediction_outlives_the_page(reader, origin):
    visit = reader()
    page = visit(origin=origin)
    card(page, "spread").get_by_role("radio").nth(2).check()
    card(page, "spread").get_by_role("button").click()
    page.goto("about:blank")
    page = visit(origin=origin)
    card(page, "spread").get_by_text("It went otherwise.").wait_for()
    assert "Kept: you said “It shrinks”." in told(card(page, "spread"))
    assert card(page, "spread").get_by_role("radio").nth(2).is_checked()
    assert fold(page, "spread").evaluate("e => e.open")
    assert not fold(page, "largest").evaluate("e => e.open")


def test_what_fits_no_longer_is_forgotten(reader):
    visit = reader()
    page = visit()
    for kept in ('"many"', "7", "{", "null", "[]"):
        page.evaluate("kept => localStorage.setItem('tfbook:answer:spread', kept)", kept)
        page.goto("about:blank")
        page = visit()
        assert page.evaluate("localStorage.getItem('tfbook:answer:spread')") == kept
        assert told(card(page, "spread")) == "", kept
        assert card(page, "spread").get_by_role("button", name="Keep my prediction").is_visible()


@pytest.mark.parametrize("way", ["Enter", "click", "tap"])
def test_the_result_can_be_seen_without_a_prediction(reader, way):
    page = reader(touch=way == "tap")()
    line = fold(page, "spread").locator("> summary")
    line.press("Enter") if way == "Enter" else getattr(line, way)()
    assert fold(page, "spread").get_by_text("the spread is 8").is_visible()
    assert told(card(page, "spread")) == ""
    card(page, "spread").get_by_role("radio").nth(0).check()
    card(page, "spread").get_by_role("button").click()
    assert "As you said." in told(card(page, "spread"))


def test_without_an_experiment_the_comparison_waits_for_a_button(reader):
    page = reader()()
    form = card(page, "alone")
    form.get_by_role("radio").nth(0).check()
    form.get_by_role("button").press("Enter")
    assert told(form) == "Kept: you said “It grows with d_k”."
    form.get_by_role("button", name="Compare").press("Enter")
    assert "As you said." in told(form) and form.get_by_role("button").count() == 0


# --------------------------------------------------------------------------------------- explain


@pytest.mark.parametrize("touch", [False, True])
def test_an_explanation_is_compared_and_marked(reader, touch):
    page = reader(width=390 if touch else 1280, touch=touch)()
    form = card(page, "why-scale")
    press = (lambda e: e.tap()) if touch else (lambda e: e.press("Enter"))
    button = form.get_by_role("button", name="Compare with a model answer")
    model = form.get_by_role("group", name="A model answer")
    press(button)
    assert told(form) == "Write your answer first, a sentence or two." and not model.is_visible()
    field = form.get_by_role("textbox")
    assert field.evaluate("e => e === document.activeElement")
    field.fill("The <softmax>.\nAnd more.")
    assert told(form) == ""
    press(button)
    assert "The softmax would saturate, and d_k is why." in model.inner_text()
    assert not button.is_visible() and model.evaluate("e => e === document.activeElement")
    marks = form.get_by_role("checkbox")
    assert form.get_by_role("status").nth(1).inner_text() == "0 of 3"
    for mark in marks.all():
        mark.tap() if touch else mark.press("Space")
    assert form.get_by_role("status").nth(1).inner_text() == "All three: well explained."
    assert [plain(t) for t in ASKED["why-scale"]().data["rubric"]] == [
        form.locator("label.tfx-choice").nth(i).inner_text() for i in range(3)
    ]


def test_an_explanation_outlives_the_page(reader, origin):
    visit = reader()
    page = visit(origin=origin)
    card(page, "why-scale").get_by_role("textbox").fill("One </textarea> line\nand another")
    page.goto("about:blank")
    page = visit(origin=origin)
    form = card(page, "why-scale")
    assert form.get_by_role("textbox").input_value() == "One </textarea> line\nand another"
    assert not form.get_by_role("checkbox").first.is_visible()
    form.get_by_role("button").click()
    form.get_by_role("checkbox").nth(1).check()
    page.goto("about:blank")
    form = card(visit(origin=origin), "why-scale")
    marks = [mark.is_checked() for mark in form.get_by_role("checkbox").all()]
    assert marks == [False, True, False]
    assert "1 of 3" in form.inner_text()


# ----------------------------------------------------------------------------- numbers by name


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (("0.12", "0.88"), "Right. They sum to 1."),
        (("0,123", "22/25"), "Right. They sum to 1."),
        (("0.88", "0.88"), "Not yet. α₁: The other. α₂: right."),
        (("0.2", "0.8"), "Not yet. α₁: Your number is too large. α₂: Your number is too small."),
        (("0.12", ""), "Type a number into each field, for instance 0.25 or 1/4."),
        (("0.12", "most"), "Type a number into each field, for instance 0.25 or 1/4."),
    ],
)
def test_several_numbers_are_asked_for_by_name(reader, typed, answer):
    form = card(reader()(), "mixture")
    for name, number in zip(("α₁", "α₂"), typed, strict=True):
        form.get_by_role("textbox", name=name).fill(number)
    form.get_by_role("textbox").nth(1).press("Enter")
    assert told(form) == answer


# ------------------------------------------------------------------------------ drawings in steps


def stage(page, name):
    return page.locator(".tfx-stepper").nth(list(FIGURES).index(name))


def part(drawing, name):
    return drawing.locator(f'[data-part="{name}"]')


def numbers(drawing, name):
    """The numbers of a part in full precision, if it is seen."""
    found = part(drawing, name).locator(f'[data-name^="{name}["]')
    return [float(n.get_attribute("data-value")) for n in found.all() if n.is_visible()]


def turn(drawing, way):
    if way in ("Next", "Previous"):
        drawing.get_by_role("button", name=way).click(force=True)  # at an end, too
    elif way.startswith("tap"):
        drawing.get_by_role("button", name=way[4:]).tap(force=True)
    else:
        drawing.get_by_role("button", name="Next").press(way)


def at_step(drawing, k, count):
    assert drawing.locator(".tfx-place").inner_text() == f"Step {k + 1} of {count}"


@pytest.mark.parametrize(
    ("name", "scale", "origin"),
    [("walk", True, "http"), ("walk", True, "file"), ("unscaled", False, "file")],
    indirect=["origin"],
)
def test_the_walk_shows_the_packages_numbers(reader, origin, name, scale):
    drawing = stage(reader()(origin=origin), name)
    q, k, v = (torch.tensor(x, dtype=torch.double) for x in ([Q], KEYS, VALUES))
    scores = attention.dot_scores(q, k)[0].tolist()
    scaled = attention.scaled_dot_scores(q, k)[0].tolist() if scale else scores
    out, weights = attention.attend(q, k, v, return_weights=True, scale=None if scale else 1.0)
    flat = {"q": Q, "K": k.flatten().tolist()}
    shown = [flat, flat | {"scores": scores}, flat | {"scores": scaled}]
    shown.append(shown[-1] | {"weights": weights[0].tolist()})
    shown.append(shown[-1] | {"V": v.flatten().tolist()})
    shown.append(shown[-1] | {"output": out[0].tolist()})
    if not scale:
        del shown[2]
    for i, wanted in enumerate(shown):
        at_step(drawing, i, len(shown))
        for part_name in ("q", "K", "scores", "weights", "V", "output"):
            near = pytest.approx(wanted.get(part_name, []), abs=1e-9)
            assert numbers(drawing, part_name) == near, (i, part_name)
        turn(drawing, "ArrowRight")
    texts = part(drawing, "output").locator(".tfx-number").all_inner_texts()
    assert [float(t.replace("−", "-")) for t in texts] == pytest.approx(out[0].tolist(), abs=0.0051)


def test_steps_are_turned_by_buttons_keys_and_fingers(reader):
    page = reader(touch=True)()
    drawing = stage(page, "walk")
    ways = [("Next", 1), ("tap Next", 2), ("ArrowRight", 3), ("Previous", 2), ("tap Previous", 1),
            ("ArrowLeft", 0), ("ArrowLeft", 0), ("Previous", 0), ("End", 5), ("ArrowRight", 5),
            ("Next", 5), ("Home", 0)]  # fmt: skip
    for way, k in ways:
        turn(drawing, way)
        at_step(drawing, k, 6)
        where = drawing.get_by_role("button")
        ends = [b.get_attribute("aria-disabled") for b in where.all()]
        assert ends == [str(k == 0).lower(), str(k == 5).lower()]
        assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    at_step(stage(page, "unscaled"), 0, 5)
    before = page.evaluate("scrollY")
    turn(drawing, "ArrowRight")
    assert page.evaluate("scrollY") == before
    status = drawing.get_by_role("status")
    status.filter(has_text="Step 2 of 6. A product says how well a key fits").wait_for()


def test_each_step_says_one_caption_and_its_formula(reader):
    drawing = stage(reader()(), "drawn")
    for said in (["A matrix of dk columns."], ["A vector, and W aside.", "x = K wj"],
                 ["It has moved."]):  # fmt: skip
        seen = [p.inner_text() for p in drawing.locator(".tfx-saying p").all() if p.is_visible()]
        assert seen == said
        turn(drawing, "Next")


def test_parts_that_stay_keep_their_place(reader):
    drawing = stage(reader(reduced_motion="reduce")(), "walk")
    board = drawing.locator(".tfx-board")
    first, boxes = {}, []
    for _ in range(6):
        for name in ("q", "K", "scores", "weights", "V", "output"):
            if part(drawing, name).is_visible():
                frame, box = board.bounding_box(), part(drawing, name).bounding_box()
                box = box | {"x": box["x"] - frame["x"], "y": box["y"] - frame["y"]}
                was = first.setdefault(name, box)  # a bold name in a row is a pixel wider
                boxes.append(all(abs(box[side] - was[side]) < 3 for side in box))
        turn(drawing, "Next")
    assert len(first) == 6 and len(boxes) == 2 + 3 + 3 + 4 + 5 + 6 and all(boxes)
    rows = [first[name] for name in ("K", "scores", "weights", "V")]
    assert len({round(box["y"] + box["height"]) for box in rows}) == 1  # the tokens stand in rows


def arrows(drawing):
    """From where to where each arrow runs, and the boxes of all parts that are seen."""
    return drawing.evaluate(
        """root => {
            const frame = root.querySelector('.tfx-board').getBoundingClientRect();
            const ends = [...root.querySelectorAll('.tfx-arrows path')].map(p => p
                .getAttribute('d').match(/^M([-\\d.]+),([-\\d.]+)L([-\\d.]+),([-\\d.]+)/).slice(1)
                .map((x, i) => Number(x) + (i % 2 ? frame.top : frame.left)));
            const boxes = Object.fromEntries([...root.querySelectorAll('[data-part]')]
                .map(n => [n.dataset.part, n.getBoundingClientRect().toJSON()]));
            return [ends, boxes];
        }"""
    )


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_arrows_lead_from_part_to_part(reader, width):
    drawing = stage(reader(width=width, reduced_motion="reduce")(), "walk")
    seen = []
    for step in FIGURES["walk"]().data["steps"]:
        ends, boxes = arrows(drawing)
        said = [a for a in step["arrows"] if part(drawing, a["from"]).is_visible()]
        assert len(ends) == len(said) == len(step["arrows"])
        for (x1, y1, x2, y2), arrow in zip(ends, said, strict=True):
            for x, y, box in ((x1, y1, boxes[arrow["from"]]), (x2, y2, boxes[arrow["to"]])):
                # Just outside of the part, beside one of its edges.
                assert box["left"] - 6 <= x <= box["right"] + 6
                assert box["top"] - 6 <= y <= box["bottom"] + 6
                inside = box["left"] < x < box["right"] and box["top"] < y < box["bottom"]
                assert not inside, arrow
            seen.append((x2 - x1, y2 - y1))
        turn(drawing, "Next")
    assert all(max(abs(dx), abs(dy)) > 8 for dx, dy in seen) and len(seen) == 6
    labels = drawing.locator(".tfx-labels span").all_inner_texts()
    assert "add up" in labels and (width == 390 or "times" in labels)


@pytest.mark.parametrize("name", FIGURES)
def test_a_drawing_fits_and_can_be_read_at_any_width(reader, name):
    page = reader(reduced_motion="reduce")()
    drawing = stage(page, name)
    look = """root => [...root.querySelectorAll('.tfx-slab, .tfx-number, .tfx-labels span')]
        .filter(n => n.checkVisibility({ visibilityProperty: true }))
        .filter(n => {
            const box = n.getBoundingClientRect(), card = root.getBoundingClientRect();
            return parseFloat(getComputedStyle(n).fontSize) < 10.5
                || box.left < card.left || box.right > card.right;
        }).map(n => n.outerHTML.slice(0, 120))"""
    for _ in FIGURES[name]().data["steps"]:
        for width in (1280, 720, 390):
            page.set_viewport_size({"width": width, "height": 800})
            page.evaluate("() => new Promise(d => requestAnimationFrame(() => setTimeout(d)))")
            assert drawing.evaluate(look) == [], width
            assert drawing.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), width
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        turn(drawing, "ArrowRight")


def test_bars_move_only_where_motion_is_allowed(reader):
    for motion, moves in (("no-preference", True), ("reduce", False)):
        drawing = stage(reader(reduced_motion=motion)(), "walk")
        turn(drawing, "Next")
        drawing.evaluate("e => e.addEventListener('transitionrun', () => (e.begun = true))")
        turn(drawing, "ArrowRight")
        drawing.evaluate("() => new Promise((done) => setTimeout(done, 100))")
        assert drawing.evaluate("e => Boolean(e.begun)") is moves


def test_a_bar_is_as_long_as_its_number(reader):
    drawing = stage(reader(reduced_motion="reduce")(), "drawn")
    turn(drawing, "Next")
    bars = part(drawing, "x").locator(".tfx-bar").all()
    lengths = [bar.evaluate("e => [e.style.marginLeft, e.style.width]") for bar in bars]
    assert lengths == [["50%", "12.5%"], ["0%", "50%"], ["50%", "2.5e-08%"]]


# ---------------------------------------------------------------------------------- every kind


REFUSED = """Object.defineProperty(window, 'localStorage', { configurable: true,
    get() { throw new DOMException('The operation is insecure.', 'SecurityError'); } })"""
FULL = """const set = Storage.prototype.setItem;
Storage.prototype.setItem = function (key, value) {
    if (key.startsWith('tfbook')) throw new DOMException('Too much.', 'QuotaExceededError');
    set.call(this, key, value); }"""


@pytest.mark.parametrize("before", [REFUSED, FULL])
def test_everything_works_where_nothing_may_be_kept(reader, before):
    page = reader()(before=before)
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    card(page, "spread").get_by_role("radio").nth(0).check()
    card(page, "spread").get_by_role("button").click()
    card(page, "spread").get_by_text("As you said.").wait_for()
    form = card(page, "why-scale")
    form.get_by_role("textbox").fill("x")
    form.get_by_role("button").click()
    form.get_by_role("checkbox").first.check()
    assert "1 of 3" in form.inner_text()


def test_without_javascript_everything_is_reachable(reader):
    page = reader(scripts=False)()
    for slug, make in ASKED.items():
        text = page.locator(".tfx-text").filter(has_text=plain(make().data["question"])).first
        assert text.is_visible()
        text.locator("summary").click()
        said = make().data
        wanted = said.get("explanation") or said.get("model") or said["choices"][0]["feedback"]
        assert plain(wanted) in text.locator("details").inner_text(), slug
    for slug, result in (("spread", "the spread is 8"), ("largest", "the largest is 0.75")):
        assert not page.get_by_text(result).is_visible()
        fold(page, slug).locator("> summary").click()
        assert page.get_by_text(result).is_visible()


def test_without_javascript_every_step_is_told(reader):
    page = reader(scripts=False)()
    for name, make in FIGURES.items():
        figure = make()
        text = page.locator(".tfx-text").filter(has_text=figure.data["title"])
        text = text.nth([f().data["title"] for f in FIGURES.values()][:list(FIGURES).index(name)]
                        .count(figure.data["title"]))  # fmt: skip
        told = " ".join(text.inner_text().split())
        assert text.is_visible() and figure.data["alt"] in told
        assert text.locator("li").count() == len(figure.data["steps"])
        assert all(plain(step["caption"]) in told for step in figure.data["steps"])


def answer_all(page):
    """Bring every question of the page into the state in which most is said, and drawings on."""
    for drawing in page.locator(".tfx-stepper").all():
        turn(drawing, "Next")
        turn(drawing, "ArrowRight")
    for slug in ("spread", "alone", "count"):
        card(page, slug).get_by_role("radio").nth(1).check()
        card(page, slug).get_by_role("button").click()
    card(page, "largest").get_by_role("textbox").fill("0.25")
    card(page, "largest").get_by_role("button").click()
    for field in card(page, "mixture").get_by_role("textbox").all():
        field.fill("0.88")
    card(page, "mixture").get_by_role("button").click()
    card(page, "why-scale").get_by_role("textbox").fill("Words " * 80)
    card(page, "why-scale").get_by_role("button").click()
    card(page, "why-scale").get_by_role("checkbox").first.check()


def test_no_question_makes_the_page_scroll_sideways(reader):
    for touch, widths in ((True, (390, 320)), (False, (1280, 720, 320))):
        page = reader(width=widths[0], touch=touch)()
        for step in (lambda: None, functools.partial(answer_all, page)):
            step()
            for width in widths:
                page.set_viewport_size({"width": width, "height": 800})
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                wide = ".tfx-card, .tfbook-prediction"
                assert page.locator(wide).evaluate_all(
                    "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).length"
                ) == 0


def test_touch_targets_are_44_pixels_high(reader):
    page = reader(width=390, touch=True)()
    look = """() => [...document.querySelectorAll(
            '.tfx :is(input, button, textarea), .tfbook-prediction > summary')]
        .map(e => ['checkbox', 'radio'].includes(e.type) ? e.closest('label') : e)
        .filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 44)
        .map(e => e.outerHTML.slice(0, 120))"""
    assert page.evaluate(look) == []
    answer_all(page)
    assert page.evaluate(look) == []


def axe_faults(page, root):
    """All that axe finds in a part of the page in the light, and the contrasts in the dark."""
    from axe_playwright_python.sync_playwright import Axe

    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(Axe().axe_script)
    faults = []
    for theme, only in (("dark", {"runOnly": ["color-contrast"]}), ("light", {})):
        page.evaluate("theme => (document.documentElement.dataset.theme = theme)", theme)
        page.evaluate("document.getAnimations().forEach(a => a.finish())")
        options = {"resultTypes": ["violations", "incomplete"], "preload": False} | only
        run = f"([root, options]) => axe.run(root, options).then({FOUND})"
        report = page.evaluate(run, [root, options])
        found = report["violations"]
        found += [rule for rule in report["incomplete"] if rule["id"] == "color-contrast"]
        nodes = [(rule["id"], n["html"]) for rule in found for n in rule["nodes"]]
        # Of one character, such as a tick, axe cannot tell; what is hidden from readers is a sign.
        faults += [(theme, *node) for node in nodes if 'aria-hidden="true"' not in node[1]]
    return faults


def test_axe_finds_nothing_in_the_questions(reader):
    page = reader()()
    assert axe_faults(page, ".bd-article") == []
    answer_all(page)
    assert axe_faults(page, ".bd-article") == []
    plant = "document.querySelector('.tfx-voice').innerHTML = '<p style=\"color: #999\">pale</p>'"
    page.evaluate(plant)
    assert {rule for _, rule, _ in axe_faults(page, ".bd-article")} == {"color-contrast"}
