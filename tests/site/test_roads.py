"""Roads, as pages: what stands open on them is counted, and kept within what a reader can take."""

import pytest

from book.tools import roads
from book.tools.index import DEEPER


def test_roads_keep_their_limits(site):
    found = []
    for name in roads.ROADS:
        for page, look in ((name, roads.faults), (name + DEEPER, roads.deeper_faults)):
            path = site / "chapters" / f"{page}.html"
            if path.exists():
                measured = roads.measure(path.read_text(encoding="utf-8"))
                found += [f"{page}: {fault}" for fault in look(measured)]
    assert found == []


def test_each_road_is_in_the_book(site):
    assert [name for name in roads.ROADS if not (site / f"chapters/{name}.html").exists()] == []


# --- the counting, on small pages -----------------------------------------------------------------

CLAIM = (
    '<div class="tfbook-claim"><span>✓</span> <span>It is so.</span>'
    "<details><summary>0.5</summary> expected 0.5</details></div>"
)
EXERCISE = (
    '<div class="exercise admonition"><p class="admonition-title">Exercise 2.1 (T)</p>'
    "<section><p><em>{}.</em> Do it.</p></section></div>"
)


def cell(code="x = 1", output="", fold=False):
    source = f'<div class="cell_input"><pre>{code}</pre></div>'
    source = f"<details><summary>Show</summary>{source}</details>" if fold else source
    return f'<div class="cell">{source}<div class="cell_output">{output}</div></div>'


def article(*parts):
    return f"<nav>no words of it</nav><article>{''.join(parts)}</article>"


def count(*parts):
    return roads.measure(article(*parts)).counts


def test_words_are_those_that_stand_open():
    text = "<p>Three plain words.</p>"
    assert count(text)["prose words"] == count(text)["open words"] == 3
    hidden = f"<details><summary>Two here</summary>{text}</details>"
    assert count(text, hidden)["prose words"] == 5
    assert count(hidden.replace("<details>", "<details open>"))["prose words"] == 5
    solution = f'<div class="solution dropdown"><p class="admonition-title">Title</p>{text}</div>'
    assert count(solution)["prose words"] == 1
    assert count("<script>a b</script><p>A<a class='headerlink'>#b</a></p>")["open words"] == 1
    shown = count(text, cell("for i in x:", "<p>Two words.</p>"), cell("a b", fold=True))
    assert (shown["prose words"], shown["open words"]) == (3, 3 + 4 + 2 + 1)


def test_code_claims_and_pictures_are_counted_where_they_stand_open():
    pictures = '<img class="tfbook-picture tfbook-drawing"><img class="tfbook-picture">'
    page = article(
        cell("a\n\nb", CLAIM + pictures), cell("c", CLAIM, fold=True),
        f"<details><summary>2 verified</summary>{cell(output=CLAIM * 2 + pictures)}</details>",
    )  # fmt: skip
    found = roads.measure(page)
    assert found.counts["open code cells"] == 1
    assert found.counts["open claims"] == 2
    assert found.counts["drawings"] == 1
    assert count(CLAIM)["open words"] == 5  # it is so, 0, 5


def test_long_cells_are_found_by_their_lines_that_are_not_empty():
    lines = ["x"] * roads.CODE_LINES + [""] * 9
    found = roads.measure(article(cell("\n".join(lines)), cell("\n".join([*lines, "y", "z"]))))
    assert found.long_cells == [22]
    assert roads.measure(article(cell("\n".join(["x"] * 30), fold=True))).long_cells == []


def test_questions_are_no_figures_with_controls():
    modules = ("quiz", "predict", "predict", "explain", "softmax_temperature")
    parts = [f'<div class="tfbook-explorable" data-module="{name}"></div>' for name in modules]
    found = count(*parts)
    assert (found["explorables"], found["predictions"]) == (1, 2)


def test_exercises_name_their_kind():
    kinds = ("By hand", "Predict", "Draw or explain", "Explain", "Code", "Break it", "Warm-up")
    without = EXERCISE.replace("<em>{}.</em>", "")
    found = roads.measure(article(*map(EXERCISE.format, kinds), without))
    assert (found.counts["exercises"], found.counts["kinds of exercises"]) == (8, 5)
    assert found.unknown == ["warm-up", "none"]


def test_quarrels_are_found_but_where_they_belong():
    quarrel = "<p>Some texts say so, and it is often misprinted.</p>"
    wrong = f"<section><h2>2.7. Often got wrong</h2>{quarrel}</section>".replace(
        "2.7.", '<span class="section-number">2.7. </span>'
    )
    found = roads.measure(article(quarrel, wrong))
    assert found.absent == ["Some texts say", "is often misprinted"]
    assert roads.measure(article(wrong, cell(output=quarrel))).absent == []


def test_reading_takes_as_long_as_the_box_says():
    prose, code = f"<p>{'word ' * 1000}</p>", cell("\n".join(["x"] * 20), "w " * 200)
    assert roads.measure(article(prose, code)).minutes == 1000 / 125 + 200 / 125 + 20 / 7

    def times(box):
        return [f for f in roads.faults(roads.measure(article(prose, code, box))) if "reading" in f]

    assert times("<p><b>Reading time:</b> about 12 minutes; running time: 30 seconds.</p>") == []
    assert times("<p>Reading time: 9 minutes</p>") == [
        "promises 9 minutes of reading, and takes 12"
    ]
    assert times("") == ["its box names no reading time; it is 12 minutes"]


GOOD = roads.Page(
    counts={what: least or most for what, (least, most) in roads.LIMITS.items()},
    long_cells=[], sections={}, absent=[], unknown=[], minutes=80.0, promised=90,
)  # fmt: skip


def changed(**fields):
    return roads.Page(**vars(GOOD) | fields)


def test_a_page_within_its_limits_has_no_faults():
    assert list(roads.faults(GOOD)) == []
    most = {what: most or least for what, (least, most) in roads.LIMITS.items()}
    assert list(roads.faults(changed(counts=most))) == []


@pytest.mark.parametrize("what", roads.LIMITS)
def test_each_limit_is_kept(what):
    least, most = roads.LIMITS[what]
    for value in ([least - 1] if least else []) + ([most + 1] if most else []):
        (fault,) = roads.faults(changed(counts=GOOD.counts | {what: value}))
        assert f"{value:,} {what}, at " in fault


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"long_cells": [21]}, "a code cell of 21 lines"),
        ({"absent": ["one reads"]}, "quarrels with the absent: 'one reads'"),
        ({"unknown": ["warm-up"]}, "no known kind: 'warm-up'"),
        ({"promised": 30}, "promises 30 minutes of reading, and takes 80"),
    ],
)
def test_each_fault_is_said(fields, words):
    (fault,) = roads.faults(changed(**fields))
    assert words in fault


def test_a_deeper_page_is_counted_by_section():
    text = f"<p>{'word ' * (roads.DEEPER_WORDS // 2)}</p>"
    below = f"<section><h3>More</h3>{text}</section>"
    page = article(
        f"<section><h2>A</h2>{text}</section>", f"<section><h2>B</h2>{text}{below}</section>"
    )
    (fault,) = roads.deeper_faults(roads.measure(page))
    assert fault == "8,002 open words in 'B', at most 8,000: make it two"
    assert list(roads.deeper_faults(changed(long_cells=[21], absent=["x"]))) == [
        "a code cell of 21 lines, at most 20", "quarrels with the absent: 'x'",
    ]  # fmt: skip
