"""The lists in which a reader finds things: exercises, figures, claims, paths, how to cite."""

import json
import re
from pathlib import Path
from urllib.parse import urldefrag

import lxml.html
import pytest
from bs4 import BeautifulSoup

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
HEAD = re.compile(r"> \*\*Exercise ([\d.]+) \(([^*]+?)\)\.\*\*")
KINDS = {"by hand", "predict", "explain", "code", "build", "break it", "draw"}
LEVELS = {"warm-up", "standard", "challenge"}


@pytest.fixture(scope="module")
def read(site):
    """A built page, parsed; each is read once."""
    parsed = {}

    def page(path):
        if path not in parsed:
            parsed[path] = BeautifulSoup(path.read_text(encoding="utf-8"), "lxml")
        return parsed[path]

    return page


def classed(element, name):
    """The descendants of an element that have this class."""
    return element.xpath(f".//*[contains(concat(' ', @class, ' '), ' {name} ')]")


@pytest.fixture(scope="module")
def chapter():
    """A built chapter as a tree, and its elements by anchor; each is read once."""
    parsed = {}

    def page(path):
        if path not in parsed:
            root = lxml.html.fromstring(path.read_text(encoding="utf-8"))
            parsed[path] = root, {each.get("id"): each for each in root.xpath("//*[@id]")}
        return parsed[path]

    return page


@pytest.fixture(scope="module")
def listed(site, read):
    """The lines of a list: text of the link, text below it, page and anchor it leads to."""

    def lines(name):
        found = []
        for row in read(site / "book" / name).select("article ul.tfbook-index > li"):
            link, told = row.find("a"), row.select_one(".tfbook-index-detail")
            page, anchor = urldefrag(link["href"])
            where = (site / "book" / page).resolve()
            found.append((link.get_text(), told.get_text() if told else "", where, anchor))
        return found

    return lines


def written():
    """Yield page, number and title of each exercise, from the notebooks themselves."""
    curly = str.maketrans("'", "’")
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown" and (head := HEAD.match("".join(cell["source"]))):
                yield path.stem, head[1], head[2].translate(curly)


def test_every_exercise_is_listed_with_its_kind_and_leads_to_its_place(listed, chapter):
    lines = [line for line in listed("exercises.html") if line[0] != "Questions in the text"]
    wanted = [(page, f"{number} {title}") for page, number, title in written()]
    assert len(wanted) > 150
    assert [(where.stem, text) for text, _, where, _ in lines] == wanted
    unmarked = [text for text, told, _, _ in lines if not set(told.split(", ")) <= KINDS | LEVELS]
    assert unmarked == [] and all(told for _, told, _, _ in lines)
    for text, _, where, anchor in lines:
        target = chapter(where)[1].get(anchor)
        assert target is not None and text.split(" ", 1)[1] in target.text_content(), text


def test_every_figure_with_controls_is_listed_and_its_line_leads_to_it(listed, site, chapter):
    lines = listed("figures.html")
    cards = 0
    for path in sorted((site / "chapters").glob("*.html")):
        found = classed(chapter(path)[0], "tfbook-explorable")
        kinds = [each.get("data-module") for each in found]
        cards += sum(kind not in ("quiz", "predict", "explain") for kind in kinds)
    assert len(lines) == cards > 40
    for title, _, where, anchor in lines:
        texts = classed(chapter(where)[1][anchor], "tfx-text")
        titles = [bold.text_content() for each in texts for bold in each.iter("strong")]
        assert title in titles, title


def test_questions_that_were_answered_are_counted_on_the_list(open_page, settle, server):
    page = open_page()
    place = {"read": [], "answered": ["one", "two"], "sections": 9, "questions": 21}
    page.goto(f"{server}/book/exercises.html")
    page.evaluate("place => localStorage['tfbook:page:02_attention'] = place", json.dumps(place))
    page.goto(f"{server}/book/exercises.html")
    settle(page)
    told = page.locator(".tfbook-index .tfbook-place")
    assert told.all_text_contents() == ["2 of 21 answered"]
    line = page.locator(".tfbook-questions", has=page.locator(".tfbook-place"))
    assert line.get_by_role("link").get_attribute("href") == "../chapters/02_attention.html"
    page.leave()


def test_claims_are_folded_and_filtered_by_words(open_page, settle, server):
    page = open_page()
    page.goto(f"{server}/book/claims.html")
    settle(page)
    rows = page.locator("details.tfbook-rows li")
    assert rows.count() > 500
    assert page.locator("details.tfbook-rows[open]").count() == 0
    field, told = page.get_by_label("Filter"), page.locator(".tfbook-filter output")
    field.fill("pytorch ATTENTION")
    left = page.locator("details.tfbook-rows[open] li:not([hidden])")
    texts = [text.lower() for text in left.all_text_contents()]
    assert texts and all("pytorch" in text and "attention" in text for text in texts)
    assert told.text_content() == f"{len(texts)} row{'s' if len(texts) > 1 else ''}"
    field.fill("nothing has these words")
    assert left.count() == 0 and told.text_content() == "0 rows"
    field.fill("")
    assert page.locator("details.tfbook-rows li[hidden]").count() == 0
    assert page.locator("details.tfbook-rows[open]").count() == 0
    page.leave()


def test_a_reader_learns_how_to_cite_to_report_and_to_run(site, read):
    about = read(site / "book" / "about.html").find("article").get_text()
    assert re.search(r"@\w+\{[\w-]+,", about) and "title" in about and "year" in about
    running = read(site / "book" / "running.html").find("article").get_text()
    assert all(word in running for word in ("make lab", "JupyterLab", "Binder", "Colab"))
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    address = re.search(r"^repository:[ ]*(\S*)", config, re.MULTILINE).group(1)
    for text in (about, running):
        assert (address or "does not say where its repository is") in text


def test_three_paths_lead_to_chapters(site, read):
    article = read(site / "book" / "paths.html").find("article")
    for anchor in ("an-evening", "a-weekend", "a-semester"):
        links = article.find(id=anchor).select("a[href*=chapters]")
        assert len(links) >= 3 and all(
            (site / "book" / urldefrag(each["href"])[0]).resolve().is_file() for each in links
        )
    weeks = article.find(id="a-semester").select("tbody tr")
    assert [row.find("td").get_text() for row in weeks] == [str(n) for n in range(1, 15)]
