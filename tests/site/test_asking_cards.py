"""Each interactive figure asks a question, says what to try, and fits one screen.

What is asked is said before the controls, in the card and in the still of a page without scripts.
A card is as wide here as in the column of a chapter.
"""

import math

import pytest

from book.tools.site import asking
from tests.site import test_explorables as others
from tests.site.test_explorables import MAKERS, NEXT, control, lay_out, value
from tfbook import experiments
from tfbook.teaching import explorables
from tfbook.teaching.explorables._asked import ASKED
from tfbook.teaching.explorables._base import NAMES, QUESTIONS

pytestmark = pytest.mark.browser
visit, figures_at, free_pages = others.visit, others.figures_at, others.free_pages
COLUMN = 736  # px: the text of a chapter at 1280 px, with the 12 px of these pages on either side
SCREEN, PHONE = 800, 844
# On a phone their picture is seen together with the controls that the question needs.
SEEN = {
    "shape_tracer": ".tfx-walk",
    "next_token_sampling": ".tfx-tokenlist",
    "optimizer_paths": ".tfx-plane",
    "relative_bias_shapes": ".tfx-plot",
    "alignment_viewer": ".tfx-weave",
    "schedule_designer": ".tfx-plot",
}
EXAMPLES = [
    {**example, "reference": " ".join(example["reference"])}
    for example in experiments.log("translation")["examples"]
]
CARDS = {
    "cards": lambda: [make() for make in MAKERS],
    "redone": lambda: [
        explorables.shape_tracer("gpt2"),
        explorables.next_token_sampling(NEXT),
        explorables.optimizer_paths("momentum", against="sgd", condition=100, lr=0.015),
        explorables.relative_bias_shapes(scheme="t5", max_distance=32),
        explorables.alignment_viewer(EXAMPLES),
        explorables.schedule_designer(against="wsd"),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with these figures, laid out as in the built site, with the questions of the stills."""
    made = lay_out(tmp_path_factory.mktemp("cards"), CARDS)
    for page in made.glob("*.html"):
        text = asking(page.read_text(encoding="utf-8"))
        text = text.replace("padding:0 12px", f"padding:0 12px;width:min(100%,{COLUMN}px)")
        page.write_text(text, encoding="utf-8")
    return made


def heights(page):
    """The height of each card, by the name of its figure."""
    return page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.tfx-card')].map(card => [
            card.closest('[data-module]').dataset.module, card.getBoundingClientRect().height]))"""
    )


def test_every_figure_has_a_question_and_something_to_try():
    assert set(ASKED) == set(NAMES) - set(QUESTIONS)
    for name, (question, trial) in ASKED.items():
        assert question.endswith("?"), name
        assert trial.endswith(".") and trial[0].isupper(), name
        assert len(question) <= 80 and len(trial) <= 100, name


def test_cards_ask_before_their_controls(visit):
    page = visit("cards", unfolded=False)
    found = page.evaluate(
        """() => [...document.querySelectorAll('.tfx-card')].map(card => {
            const asked = card.querySelector('.tfx-ask');
            const first = card.querySelector(
                'button, input, select, textarea, summary, [tabindex]');
            const before = asked && (!first
                || asked.compareDocumentPosition(first) & Node.DOCUMENT_POSITION_FOLLOWING);
            return [card.closest('[data-module]').dataset.module, asked?.textContent, !!before];
        })"""
    )
    for name, text, before in found:
        if name not in QUESTIONS:
            question, trial = ASKED[name]
            assert (text, before) == (f"{question} Try: {trial}", True), name
    assert {name for name, _, _ in found} >= set(ASKED) - {"stepper"}


def test_without_scripts_the_still_asks_too(visit):
    page = visit("cards", scripts=False)
    for host in page.locator(".tfbook-explorable").all():
        name = host.get_attribute("data-module")
        asked = host.locator(".tfx-text .tfx-ask")
        if name in QUESTIONS:
            assert asked.count() == 0
        else:
            assert asked.inner_text().startswith(ASKED[name][0]), name


def test_cards_fit_one_screen(visit):
    page = visit("cards", unfolded=False)
    found = {k: v for k, v in heights(page).items() if k not in QUESTIONS}
    assert {k: v for k, v in found.items() if v > SCREEN} == {}
    page = visit("redone", unfolded=False)
    assert {k: v for k, v in heights(page).items() if v > SCREEN} == {}


def test_on_a_phone_picture_and_first_controls_share_a_screen(visit):
    page = visit("redone", width=390, touch=True, unfolded=False)
    for name, picture in SEEN.items():
        reach = page.evaluate(
            """([name, picture]) => {
                const card = document.querySelector(`[data-module="${name}"] .tfx-card`);
                return card.querySelector(picture).getBoundingClientRect().bottom
                    - card.getBoundingClientRect().top;
            }""",
            [name, picture],
        )
        assert reach <= PHONE, (name, reach)


def test_at_twice_the_size_a_shape_stays_in_one_line(visit):
    page = visit("redone", width=640, unfolded=False)
    lines = page.locator(".tfx-shape").evaluate_all(
        "nodes => nodes.map(n => n.getBoundingClientRect().height / parseFloat("
        "getComputedStyle(n).lineHeight))"
    )
    assert max(lines) < 1.6


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_redone_cards_do_not_scroll_sideways(visit, width):
    page = visit("redone", width=width, unfolded=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_sampling_begins_with_a_cut_and_its_first_control_changes_what_comes(visit):
    page = visit("redone", unfolded=False)
    sampler = page.locator('[data-module="next_token_sampling"]')
    assert value(sampler, "after[0]") > value(sampler, "before[0]") + 0.05
    assert value(sampler, "kept") < 49_152
    assert sampler.locator("tr.tfx-last").count() == 1  # what was drawn last has a row
    before = value(sampler, "entropy")
    control(sampler, "temperature").press("ArrowLeft")
    assert value(sampler, "entropy") < before - 0.05


def test_alignments_begin_at_a_word_that_says_something(visit):
    page = visit("redone", unfolded=False)
    viewer = page.locator('[data-module="alignment_viewer"]')
    for chosen, pair in enumerate(EXAMPLES):
        control(viewer, "chosen").select_option(str(chosen))
        place = int(viewer.locator('[data-control="target"]:checked').get_attribute("value"))
        assert place == explorables.alignment_viewer(EXAMPLES, chosen=chosen).word
        word = pair["target"][place]
        assert (len(word) >= 4 and word.isalpha()) or place == 0
        assert word not in (".", "<eos>")


def test_no_thread_of_an_alignment_crosses_a_word(visit):
    page = visit("redone", width=390, touch=True, unfolded=False)
    gap = page.evaluate(
        """() => {
            const weave = document.querySelector('.tfx-weave');
            const side = (name, edge) => [...weave.querySelectorAll(`[data-control="${name}"]`)]
                .map(n => n.nextSibling.getBoundingClientRect()[edge]
                    - weave.getBoundingClientRect().left);
            const lines = [...weave.querySelectorAll('line')].flatMap(
                l => ['x1', 'x2'].map(k => Number(l.getAttribute(k))));
            return [Math.max(...side('source', 'right')), Math.min(...lines), Math.max(...lines),
                Math.min(...side('target', 'left'))];
        }"""
    )
    right, first, last, left = gap
    assert right - 0.5 <= first < last <= left + 0.5
    assert not any(math.isnan(x) for x in gap)
