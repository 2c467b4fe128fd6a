"""A reader's place: kept by the browser, ticked beside the page, told on the welcome page."""

import json

import pytest

pytestmark = pytest.mark.browser

CHAPTER, WELCOME = "chapters/02_attention.html", "book/welcome.html"
KEY = "tfbook:page:02_attention"
AT_END = """() => {
    const part = document.querySelectorAll('.bd-article > section > section')[1];
    part.lastElementChild.scrollIntoView({ block: 'end' });
    return part.id;
}"""


@pytest.fixture
def read(open_page, settle, server):
    """A page of the book, in a browser that keeps what it is told."""
    page = open_page()

    def go(name):
        page.goto(f"{server}/{name}")
        settle(page)
        return page

    yield go
    page.leave()


def kept(page):
    return json.loads(page.evaluate("key => localStorage.getItem(key)", KEY) or "{}")


def test_a_section_counts_when_its_end_was_on_the_screen(read):
    page = read(CHAPTER)
    assert "read" not in kept(page) or len(kept(page)["read"]) == 0
    second = page.evaluate(AT_END)
    page.wait_for_function("key => localStorage.getItem(key)", arg=KEY)
    assert kept(page)["read"] == [second]
    ticked = page.locator(".page-toc a:has(.tfbook-tick)")
    assert ticked.count() == 1 and ticked.get_attribute("href") == f"#{second}"
    assert ticked.locator(".tfbook-unseen").text_content() == " read"
    page = read(CHAPTER)  # once more: it is remembered
    assert page.locator(".page-toc a:has(.tfbook-tick)").get_attribute("href") == f"#{second}"


def test_the_welcome_page_tells_the_place_leads_on_and_forgets(read):
    page = read(WELCOME)
    assert page.locator(".tfbook-place").count() == 0
    page = read(CHAPTER)
    second = page.evaluate(AT_END)
    page.wait_for_function("key => localStorage.getItem(key)", arg=KEY)
    question = page.locator('[data-module="quiz"]').first
    slug = json.loads(question.locator("script").text_content())["data"]["slug"]
    page.evaluate(
        "slug => dispatchEvent(new CustomEvent('tfbook-answer', { detail: { slug, done: true } }))",
        slug,
    )
    sections = page.locator(".bd-article > section > section").count()
    asked = page.locator(
        ':is([data-module="quiz"], [data-module="predict"], [data-module="explain"])'
    ).count()
    assert kept(page)["read"] == [second] and kept(page)["answered"] == [slug]
    page = read(WELCOME)
    line = page.locator(".tfbook-chapters .tfbook-place")
    told = f"1 of {sections} sections read, 1 of {asked} questions answered"
    assert line.count() == 1 and told in line.text_content()
    onward = line.get_by_role("link")
    assert len(onward.text_content()) > len("Go on: 2.2. ")
    first = onward.get_attribute("href")
    assert first.endswith("#" + page.evaluate("k => JSON.parse(localStorage[k]).next", KEY))
    page.get_by_role("button", name="Forget where I am").click()
    assert kept(page) == {} and page.locator(".tfbook-chapters .tfbook-place").count() == 0


def test_an_answer_to_a_quiz_is_counted(read):
    page = read(CHAPTER)
    figure = page.locator('[data-module="quiz"]:has(input[type="radio"])').first
    figure.scroll_into_view_if_needed()
    data = json.loads(figure.locator("script").text_content())["data"]
    for choice in figure.locator('input[type="radio"]').all():
        choice.check(force=True)
        figure.get_by_role("button").first.click()
    page.wait_for_function("key => JSON.parse(localStorage[key] || '{}').answered?.length", arg=KEY)
    assert kept(page)["answered"] == [data["slug"]]


@pytest.mark.parametrize("broken", ["not json", '{"read": ["a-section-of-old"], "sections": 3}'])
def test_what_is_kept_may_be_old_or_damaged(read, broken):
    page = read(WELCOME)
    page.evaluate("([key, value]) => localStorage.setItem(key, value)", [KEY, broken])
    page = read(CHAPTER)
    second = page.evaluate(AT_END)
    page.wait_for_function(
        "([key, id]) => (localStorage.getItem(key) || '').includes(id)", arg=[KEY, second]
    )
    assert kept(page)["read"] == [second] and page.log.errors == []


def test_on_this_page_follows_the_scroll(read):
    page = read(CHAPTER)
    page.mouse.move(600, 400)
    followed = set()
    for step in [400] * 12 + [9000, -5000, 12_000, -3000, 100_000]:
        page.mouse.wheel(0, step)
        page.evaluate("() => new Promise(d => requestAnimationFrame(() => setTimeout(d, 60)))")
        marked, passed = page.evaluate(
            """() => {
                const links = [...document.querySelectorAll('.page-toc a[href^="#"]')];
                const tops = links.map(link => document.querySelector(link.hash)
                    .getBoundingClientRect().top);
                const last = Math.max(...tops.map((top, i) => top < 0.3 * innerHeight ? i : -1));
                return [links.flatMap((link, i) => link.matches('.active') ? [i] : []), last];
            }"""
        )
        followed.add(passed)
        end = page.evaluate("innerHeight + scrollY >= document.documentElement.scrollHeight - 2")
        assert end or marked == ([passed] if passed >= 0 else [])
    last = page.locator('.page-toc a[href^="#"]').last
    assert len(followed) >= 5 and last.get_attribute("aria-current") == "true"
