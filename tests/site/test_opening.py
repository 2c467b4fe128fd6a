"""A page opens with its first screen, and the rest follows; nothing stays closed."""

import pytest

pytestmark = pytest.mark.browser

CHAPTER = "chapters/02_attention.html"
SECTIONS = ".bd-article > section > :is(section, :nth-child(n + 6))"
# How many pieces below the first screen stood on the page when it was read, and at each
# frame after it.
NOTES = """() => {
    window.frames = [];
    const note = () => {
        const all = [...document.querySelectorAll('SECTIONS')];
        frames.push(all.filter((section) => section.getClientRects().length).length);
        if (performance.now() < 4000) requestAnimationFrame(note);
    };
    addEventListener('DOMContentLoaded', () => requestAnimationFrame(note));
}""".replace("SECTIONS", SECTIONS)
SHOWN = f"""() => [...document.querySelectorAll('{SECTIONS}')]
    .filter((section) => section.getClientRects().length).length"""
OPEN = "document.documentElement.dataset.opening === undefined"


@pytest.fixture
def page(browser):
    """A page of its own, for what these tests do to it is not undone."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    yield context.new_page()
    context.close()


def test_sections_follow_the_first_screen_in_several_frames(page, server):
    page.add_init_script(f"({NOTES})()")
    page.goto(f"{server}/{CHAPTER}")
    page.wait_for_function(OPEN)
    every = page.locator(SECTIONS).count()
    assert every > 10 and page.evaluate(SHOWN) == every
    shown = page.evaluate("frames")
    assert shown[0] < every and len(set(shown)) > 3 and shown == sorted(shown)
    # What a closed section could not tell is asked again: its wide boxes can be reached.
    page.wait_for_function(f"document.querySelectorAll('{SECTIONS} [data-scrolls]').length > 3")


def test_a_place_that_is_asked_for_finds_all_of_the_page(page, server):
    page.add_init_script(f"({NOTES})()")
    page.goto(f"{server}/{CHAPTER}#what-to-remember")
    page.wait_for_function("window.frames.length")
    assert page.evaluate("frames[0]") == page.locator(SECTIONS).count()
    page.wait_for_function(
        "Math.abs(document.getElementById('what-to-remember').getBoundingClientRect().top) < 200"
    )


def test_a_reader_in_a_hurry_gets_all_of_the_page(page, server):
    page.add_init_script("window.requestAnimationFrame = () => 0;")  # the frames never come
    page.goto(f"{server}/{CHAPTER}")
    assert page.evaluate(SHOWN) == 0
    page.keyboard.press("End")
    assert page.evaluate(SHOWN) == page.locator(SECTIONS).count()


def test_paper_has_all_of_a_page_that_is_still_closed(page, server):
    page.add_init_script("window.requestAnimationFrame = () => 0;")
    page.goto(f"{server}/{CHAPTER}")
    page.emulate_media(media="print")
    assert page.evaluate(SHOWN) == page.locator(SECTIONS).count()


def test_without_scripts_nothing_is_closed(browser, server):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server}/{CHAPTER}")
    assert page.evaluate(SHOWN) == page.locator(SECTIONS).count() > 10
    context.close()
