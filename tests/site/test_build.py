"""A small book built with the real configuration: what passes, and what must not."""

import base64
import json
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import yaml

from tfbook.attention import attend
from tfbook.teaching.claims import evaluate
from tfbook.teaching.listings import core

ROOT = Path(__file__).resolve().parents[2]
JUPYTER_BOOK = str(Path(sys.executable).with_name("jupyter-book"))
NESTED = {"sections": [{"file": "chapters/03_rows_deeper"}]}
ATTEND, BACK = "tfbook.attention.attend", ("book/bibliography", "book/api/attention")
ALT = "A square of seven by three points, all of them grey."
TEXT = """\
# Chapter

## What's a sum?

$$
x \\tag{3.1}
$$

## Rows of $A$

See [(3.1)](#What's-a-sum?) of ([B, 2020](../book/bibliography.md#a2020b)), and [up](#Chapter).
"""
WRONG = r"""
## Often got wrong

| You may hear | What holds | Verified |
|---|---|---|
| "Sums are $\|a\|$." | No, [see](#Chapter), ([B, 2020](../book/bibliography.md#a2020b)). \
| [✓](03_rows_deeper.ipynb#claim-far-one) |
| The rest. | `x` holds, [there](03_rows_deeper.ipynb#Far-away). | [✓](#claim-rows-sum) |
""".replace("\\\n", "")
DEEPER = """\
# More of rows

## Far away

$$
y \\tag{3.2}
$$

> **Exercise 3.2 (Far).** See [(3.1)](03_rows.ipynb#What's-a-sum?).
> Or [✓](03_rows.ipynb#claim-rows-sum).
"""
LAB = "# Lab\n\n[(3.1)](03_rows.ipynb#What's-a-sum?) [sums](03_rows.ipynb#What's-a-sum?)\n\n"
CLAIM = {
    "text/plain": "claim rows-sum: Rows sum to one. | measured 1 | expected 1 ± 1e-06 | not 2",
    "text/html": '<div class="tfbook-claim" id="claim-rows-sum">Rows sum to one.</div>',
}


def claimed(slug, sentence, wrong=""):
    """A cell that claims, and what it stores."""
    line = evaluate(slug, sentence, 1.0, 1, 1e-6, wrong=wrong or None)
    told = f", wrong={wrong}" if wrong else ""
    return f'claim("{slug}", "{sentence}", x, 1, 1e-6{told})', line._repr_mimebundle_()


def png(width=7, height=3):
    """A grey picture, written by hand so that its size is known."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = (b"\0" + b"\x80" * width) * height
    parts = (b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def code(source, data, marks=None, **metadata):
    output = {"output_type": "display_data", "data": data, "metadata": marks or {}}
    return {
        "cell_type": "code", "id": f"c{abs(hash(source))}"[:12], "execution_count": 1,
        "metadata": metadata, "source": source, "outputs": [output],
    }  # fmt: skip


def markdown(name, source, **marks):
    metadata = {"tfbook": marks} if marks else {}
    return {"cell_type": "markdown", "id": name, "metadata": metadata, "source": source}


def build(folder, *, marks, page="", text=""):
    """Build a book of one chapter and the index pages; return exit code and what was said."""
    picture = {"image/png": base64.b64encode(png()).decode(), "text/plain": "a picture"}
    claim = 'claim("rows-sum", "Rows sum to one.", rows, ones, 1e-6, wrong=[2])'
    treats = {"tfbook": {"topics": ["T031"], "errata": ["E017"]}}
    cells = [
        markdown("a", TEXT),
        markdown("b", "> **Exercise 3.1 (Sums).** Add *them*.", exercise="ex-sums"),
        markdown("c", "**Solution of exercise 3.1.** Do it.", solution="ex-sums"),
        markdown("d", "After it."),
        code("draw()", picture, {"image/png": marks}),
        code(claim, CLAIM, **treats),
        markdown("e", "Verified:"),
        code(*claimed("first-one", "It is one."), tags=["verify"]),
        code(*claimed("second-one", "It is one, too."), tags=["verify"]),
        code("listing(attend)", core(attend)._repr_mimebundle_()),
    ]  # fmt: skip
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    rows = {"wrong": {"rows-sum": "E017", "claim-far-one": "E018"}}
    cells += [markdown("w", WRONG, **rows)]
    far = claimed("far-one", "It is one, far away.", wrong=2.0)
    deeper = [
        markdown("a", DEEPER, exercise="ex-far"),
        code(*far, tags=["verify"], tfbook={"topics": ["T030"], "errata": ["E018"]}),
    ]
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    pages = {
        "book/start.md": "# Start\n\n```{claims-index}\n```\n```{topic-index}\n```\n"
        "```{corrections-index}\n```\n```{claim} rows-sum\n```\n```{explorable} quiz\n"
        "slug: q-one\nquestion: How many?\nanswer: 3\ntolerance: 0.1\n```\n"
        f"```{{chapter-list}}\n03_rows: About rows\n04_later: About more\n```\n{page}",
        "book/references.bib": "@misc{a2020b, author={A B}, title={T}, year={2020}}",
        "book/bibliography.md": "# Works\n\n```{bibliography}\n:all:\n```\n",
        "book/api/attention.md": f"# Room\n\n```{{eval-rst}}\n.. py:function:: {ATTEND}\n```\n",
        "chapters/03_rows.ipynb": json.dumps(notebook),
        "chapters/03_rows_deeper.ipynb": json.dumps(notebook | {"cells": deeper}),
        "chapters/lab_x.ipynb": json.dumps(notebook | {"cells": [markdown("x", f"{LAB}{text}")]}),
        "_toc.yml": yaml.safe_dump(
            {
                "format": "jb-book",
                "root": "book/start",
                "parts": [
                    {"numbered": 2, "chapters": [{"file": "chapters/03_rows"} | NESTED]},
                    {"chapters": [{"file": f} for f in ("chapters/lab_x", *BACK)]},
                ],
            }
        ),
    }
    for part in ("book/tools", "book/templates", "book/assets"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("book/topics.yml", "book/errata.yml", "_config.yml"):
        shutil.copy(ROOT / part, folder / part)
    for name, content in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return again(folder)


def again(folder):
    """Build what changed in a book; return exit code and what was said."""
    command = [JUPYTER_BOOK, "build", ".", "-W", "--keep-going", "-n"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return made.returncode, made.stdout + made.stderr


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The pages of a faultless small book."""
    folder = tmp_path_factory.mktemp("good")
    status, said = build(folder, marks={"alt": ALT, "width": 14, "kind": "drawing"})
    assert status == 0, said[-3000:]
    return folder / "_build" / "html"


@pytest.fixture(scope="module")
def start(good):
    return (good / "book" / "start.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def chapter(good):
    return (good / "chapters" / "03_rows.html").read_text(encoding="utf-8")


def test_a_picture_gets_its_text_and_its_size(chapter):
    (tag,) = [t for t in chapter.split("<img ") if "tfbook-picture" in t[:40]]
    assert f'alt="{ALT}"' in tag and 'loading="lazy"' in tag
    assert 'width="14"' in tag and 'height="6"' in tag
    assert tag.startswith('class="tfbook-picture tfbook-drawing"')


def test_the_only_chapter_keeps_its_number(chapter, start):
    assert "(3.1)" in chapter and "(1.1)" not in chapter and "3. Chapter" in start


def test_plain_markdown_becomes_links_equations_exercises(good, chapter):
    lab = (good / "chapters" / "lab_x.html").read_text(encoding="utf-8")
    assert '<span class="eqno">(3.1)' in chapter and "tag{" not in chapter
    assert 'href="#equation-eq-3-1">(3.1)</a>' in chapter and 'href="#chapter"' in chapter
    assert 'href="03_rows.html#equation-eq-3-1">(3.1)</a>' in lab
    assert 'href="03_rows.html#what-s-a-sum"' in lab
    assert 'title="A B. T. 2020."' in chapter and "bibtex-citation" in chapter
    exercise, _, solution = chapter.partition('id="ex-sums"')[2].partition('id="sol-sums"')
    assert "Exercise 3.1 " in exercise and "(Sums)" in exercise and "Add <em>them</em>" in exercise
    assert "Do it." in solution.partition("After it.")[0] and "Solution of" not in solution


def test_indexes_link_to_the_claim_and_to_the_section(start):
    assert '<a class="reference internal" href="../chapters/03_rows.html#claim-rows-sum">' in start
    assert "measured 1 · expected 1 ± 1e-06 · not 2" in start
    assert 'href="../chapters/03_rows.html#rows-of-a"' in start
    assert "2 topics have their place" in start and "2 corrections have their place" in start


def test_anchors_of_the_indexes_exist(chapter):
    assert 'id="rows-of-a"' in chapter and 'id="claim-rows-sum"' in chapter


def test_a_figure_and_a_claim_stand_on_a_page_of_text(start):
    assert 'data-module="quiz"' in start
    assert 'id="claim-rows-sum"' in start


def test_verifications_in_a_row_are_one_line(chapter):
    (fold,) = re.findall(r'(?s)<details class="[^"]*tfbook-verified.*?</summary>.*', chapter)
    line, _, inside = fold.partition("</summary>")
    assert line.endswith("✓</span> <span>2 verified</span>")
    order = [inside.index(part) for part in ("claim-first-one", "cell_input", "claim-second-one")]
    assert order == sorted(order) and inside.index("</details>\n</div>") > order[-1]


def test_a_listing_has_the_colours_of_code_and_leads_to_the_page_of_its_room(chapter, good):
    listing = chapter.partition('class="tfbook-listing"')[2].partition("</pre>")[0]
    assert '<span class="k">def</span>' in listing and ATTEND in listing
    assert re.findall(r'href="(.*?)"', listing) == [f"../book/api/attention.html#{ATTEND}"]
    assert f'id="{ATTEND}"' in (good / "book/api/attention.html").read_text(encoding="utf-8")


def test_verifications_are_in_the_index(start):
    assert '03_rows.html#claim-second-one">It is one, too.</a>' in start


@pytest.mark.browser
def test_a_link_to_a_folded_claim_opens_its_fold_and_not_its_numbers(good, browser):
    page = browser.new_page()
    page.goto((good / "book" / "start.html").as_uri())
    page.locator("details.tfbook-rows > summary").first.click()
    page.locator('a[href$="#claim-second-one"]').first.click()
    page.wait_for_url("**/03_rows.html#claim-second-one")
    line = page.locator("#claim-second-one")
    line.wait_for(state="visible")
    page.wait_for_function("document.querySelector('#claim-second-one').checkVisibility()")
    numbers = line.locator("summary")
    assert line.locator("details").get_attribute("open") is None
    numbers.focus()
    page.keyboard.press("Enter")
    assert "expected 1" in line.inner_text()
    page.close()


@pytest.fixture(scope="module")
def deeper(good):
    return (good / "chapters" / "03_rows_deeper.html").read_text(encoding="utf-8")


def test_a_deeper_page_counts_on_and_belongs_to_its_chapter(deeper, chapter, start):
    assert '<span class="eqno">(3.2)' in deeper and "Exercise 3.2 " in deeper
    assert 'href="03_rows.html#equation-eq-3-1">(3.1)</a>' in deeper
    assert 'href="03_rows.html#claim-rows-sum"' in deeper
    entry = r'<li class="toctree-l2[^"]*"><a class="[^"]*" href="03_rows_deeper.html"'
    assert re.search(entry, chapter)
    # In the indexes one heading for both pages; in the list of chapters a link behind the title.
    assert start.count('id="in-rows') == 3 and "in-rows-deeper" not in start  # three indexes
    assert '03_rows_deeper.html#claim-far-one">It is one, far away.</a>' in start
    assert '03_rows_deeper.html#far-away">Far away</a>' in start
    assert '03_rows_deeper.html">deeper</a>' in start.partition("About rows")[0]


def test_rows_of_what_is_often_got_wrong_link_to_their_claims(chapter):
    table = chapter.partition('id="often-got-wrong"')[2].partition("</table>")[0]
    links = re.findall(r'<a class="tfbook-claimed[^"]*" href="([^"]*)">✓</a>', table)
    assert links == ["03_rows_deeper.html#claim-far-one", "#claim-rows-sum"]


def test_corrections_are_made_from_the_rows(start):
    first, second = start.split('class="tfbook-correction')[1:3]
    assert 'id="correction-E018"' in first and 'id="correction-E017"' in second  # as in the table
    for words in (
        "You may hear", '“Sums are <span class="math notranslate nohighlight"><math>',
        'href="../chapters/03_rows.html#chapter"', "bibtex", "<dt>Why</dt>",
        'Verified in <a class="reference internal" '
        'href="../chapters/03_rows_deeper.html#claim-far-one">Far away</a>. See ',
    ):  # fmt: skip
        assert words in first, words
    assert 'href="../chapters/03_rows_deeper.html#far-away"' in second
    assert "You may read" not in start


def test_chapters_to_come_are_named_without_a_link(start):
    assert "Later (to come)" in start and "04_later" not in start


def test_the_entrance_leads_to_the_first_page(good):
    assert "url=book/start.html" in (good / "index.html").read_text(encoding="utf-8")


def test_faults_stop_the_build(tmp_path):
    faults = (
        "$\\nosuchcommand{x}$\n\n"
        "![](https://example.org/picture.png)\n\n```{claim} no-such-claim\n```\n\n"
        "```{explorable} no_such_figure\n```\n\n{doc}`nowhere`\n\n{cite:t}`nobody2020`\n"
    )
    text = "[a](#No-such-section), [`f`](../book/api/x.md#tfbook.x.no_such_name)"
    (tmp_path / "book" / "api").mkdir(parents=True)
    (tmp_path / "book" / "api" / "x.md").touch()
    status, said = build(tmp_path, marks={"alt": "plot"}, page=faults, text=text)
    assert status != 0
    for words in (
        "picture without a text that says what it shows: alt='plot'",
        "picture without a text that says what it shows: alt=''",
        "picture from another site",
        r"formula that cannot be read: \nosuchcommand{x}",
        "no chapter shows a claim 'no-such-claim'",
        "tfbook.teaching.explorables has no 'no_such_figure'",
        "nowhere",
        "links to #No-such-section, which is no heading of lab_x",
        "no_such_name",
        "nobody2020",
    ):
        assert words in said, words


def test_a_page_that_changed_is_built_again_without_a_warning(good):
    """In place, for elsewhere all would be read again; so this test is the last of its book."""
    folder = good.parents[1]
    lab = folder / "chapters" / "lab_x.ipynb"
    said_before = lab.read_text(encoding="utf-8")
    lab.write_text(said_before.replace("# Lab", "# Lab of a zebra"), encoding="utf-8")
    status, said = again(folder)
    assert status == 0 and "0 added, 2 changed" in said, said[-3000:]
    index = (good / "_static" / "search-index.js").read_text(encoding="utf-8")
    assert '"zebra"' in index and '"row"' in index  # of this page, and of another
