"""The index of topics, corrections and claims: complete, and blind to none of its faults."""

import re

import nbformat
import pytest
from docutils.core import publish_doctree
from docutils.nodes import section
from myst_parser.docutils_ import Parser
from repofiles import ROOT
from sphinx.util.docutils import docutils_namespace

from book.tools import index
from book.tools.index import Erratum, Topic

CHAPTERS = ROOT / "chapters"
TOPICS = {
    "T1": Topic("T1", "a", "g", "claim", "assert rows sum to 1", ("E1",), "02_a"),
    "T2": Topic("T2", "b", "g", "claim", "prose; toy retrieval", (), "02_a"),
    "T3": Topic("T3", "c", "g", "claim", "plot it", ("E2",), "03_b"),
}
ERRATA = {
    "E1": Erratum("E1", "WRONG", "t", "s", "w", "c", "r"),
    "E2": Erratum("E2", "TYPO", "t", "s", "w", "c", "r", check="none"),
}
GOOD = "claim('rows', 'Rows sum to 1.', rows, 1.0, 1e-6, wrong=2.0)"


# --- the book itself --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def topics():
    return index.load_topics()


@pytest.fixture(scope="module")
def errata():
    return index.load_errata()


def test_nothing_the_chapters_answer_for_is_without_a_home(topics, errata):
    found = index.problems(index.scan(CHAPTERS), topics, errata)
    assert not found, "\n" + "\n".join(found)


def test_the_lists_are_complete(topics, errata):
    known = (*range(1, 424), *range(432, 442))
    assert sorted(topics) == [f"T{n:03}" for n in known]
    assert sorted(errata) == [f"E{n:03}" for n in range(1, 201)]
    assert {topic.id for topic in topics.values() if topic.chapter == "02_attention"} == {
        f"T{n:03}" for n in range(30, 88)
    }


def test_every_erratum_is_named_by_a_topic_and_every_named_one_exists(topics, errata):
    assert {name for topic in topics.values() for name in topic.errata} == set(errata)


def test_no_field_is_empty_and_the_marks_are_known(topics, errata):
    for row in [*topics.values(), *errata.values()]:
        assert all(value not in ("", None) for value in vars(row).values()), row
    assert {erratum.check for erratum in errata.values()} == {"claim", "none"}
    assert {type(erratum.checked) for erratum in errata.values()} == {bool}
    kinds = {"claim", "formula", "algorithm", "architecture", "definition", "exercise", "code"}
    assert {topic.kind for topic in topics.values()} == kinds | {"project", "reference"}


def test_few_errata_are_excused_from_a_claim(errata):
    excused = [erratum.id for erratum in errata.values() if erratum.check == "none"]
    assert len(excused) <= 25


# A note to oneself, where a reader should find a sentence.
NOTE = re.compile(
    r"(?:(add|annotate|cite|name|omits|mixes|report|say|separate|split|state|true only|use|no|not)"
    r"\b|both[;,])(?! (one|standard))"
    r"|.*(\[[A-Z ]{8,}\]|\b(TODO|TBD|without remark|needs? checking)\b)"
)
SENTENCE = re.compile(r"[^a-z\W].*\s.*\s.*[.?!]", re.DOTALL)


def test_the_page_of_corrections_speaks_in_sentences(errata):
    found = index.scan(CHAPTERS)
    rows = {row.erratum for row in found.wrongs}
    shown = {name: errata[name] for name in found.errata}
    notes = [(name, each.why) for name, each in shown.items() if NOTE.match(each.why)]
    assert len(shown) > 150 and not notes
    for name in shown.keys() - rows:  # worded by the list alone
        texts = (shown[name].says, shown[name].correct, shown[name].why)
        assert all(SENTENCE.fullmatch(text) and not NOTE.match(text) for text in texts), texts


# --- what it must notice ----------------------------------------------------------------------


def code(source, **marks):
    return nbformat.v4.new_code_cell(source, metadata={"tfbook": marks} if marks else {})


def text(source, **marks):
    return nbformat.v4.new_markdown_cell(source, metadata={"tfbook": marks} if marks else {})


@pytest.fixture
def faults(tmp_path):
    """Write cells as a chapter and return what is wrong with the index."""

    def check(*cells, chapter="02_a"):
        notebook = nbformat.v4.new_notebook(cells=[text("# A chapter"), *cells])
        nbformat.write(notebook, tmp_path / f"{chapter}.ipynb")
        return index.problems(index.scan(tmp_path), TOPICS, ERRATA)

    return check


COMPLETE = (
    text(f"## Rows\nSee [A (1990)](../{index.CITATION}x).", topics=["T2"]),
    code(f"rows = 1.0\n{GOOD}", topics=["T1"], errata=["E1"]),
)


def test_a_complete_chapter_has_no_problems(faults):
    assert faults(*COMPLETE) == []


def test_a_missing_topic_and_a_missing_erratum_are_noticed(faults):
    found = faults(code("pass"))
    assert "topic T1 has no home" in found
    assert "topic T2 has no home" in found
    assert "erratum E1 has no home" in found
    assert len(found) == 3


def test_chapters_that_do_not_exist_demand_nothing(faults):
    assert not any("T3" in problem or "E2" in problem for problem in faults(*COMPLETE))
    found = faults(text(f"See ([A, 1990](../{index.CITATION}x))."), chapter="03_b")
    assert "topic T3 has no home" in found
    assert "erratum E2 has no home" in found


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([code("x = 1", topics=["T1"])], "topic T1 has 2 homes"),
        ([code(f"x = 1\n{GOOD.replace('rows', 'r')}", errata=["E1"])], "erratum E1 has 2 homes"),
        ([code("x = 1", topics=["T9"])], "names topic T9, which does not exist"),
        ([code("x = 1", errata=["E9"])], "names erratum E9, which does not exist"),
        ([code("x = 1", topics=["T3"])], "topic T3 belongs to 03_b"),
        ([code("x = 1", topics=["T5", "T6", "T7", "T8"])], "home of 4 topics"),
        ([code(f"x = 1\n{GOOD}")], "claim rows is made 2 times"),
        ([code("claim(slug, 'S', a, b)")], "plain texts"),
        ([code("claim('s', f'S {x}', a, b)")], "plain texts"),
        ([code("claim('s', 'S', True, x)")], "measures nothing"),
        ([code("claim('s', 'S', f(x), f(x))")], "with itself"),
        ([code("for x in y:\n    claim('s', 'S', a, b)")], "top level"),
        ([code("if x:\n    claim('s', 'S', a, b)")], "top level"),
        ([code("def broken(:")], "does not parse"),
        ([text("## Rows")], "headings with the anchor #rows"),
    ],
)
def test_a_fault_of_form_is_noticed(faults, cells, message):
    found = faults(*COMPLETE, *cells)
    assert any(message in problem for problem in found), found


def replaced(number, cell):
    return [cell if n == number else other for n, other in enumerate(COMPLETE)]


def test_code_is_wanted_where_the_topic_is_not_prose(faults):
    prose = text("Rows.", topics=["T1"])
    found = faults(COMPLETE[0], prose, code(f"rows = 1\n{GOOD}", errata=["E1"]))
    assert len(found) == 1
    assert "takes code" in found[0]


def test_prose_wants_a_citation(faults):
    found = faults(*replaced(0, text("## Rows", topics=["T2"])))
    assert len(found) == 1
    assert "takes a citation" in found[0]


def test_prose_may_be_code_instead(faults):
    assert faults(*replaced(0, code("x = 1", topics=["T2"]))) == []


def test_imports_are_no_home(faults):
    found = faults(*replaced(0, code("import torch", topics=["T2"])))
    assert "only imports" in found[0]


@pytest.mark.parametrize(
    "source", ["x = 1", "claim('rows', 'Rows sum to 1.', rows, 1.0, 1e-6)", f"# {GOOD}"]
)
def test_an_erratum_wants_a_claim_that_rejects_its_wrong_value(faults, source):
    found = faults(*replaced(1, code(f"rows = 1\n{source}", topics=["T1"], errata=["E1"])))
    assert len(found) == 1
    assert "`wrong=`" in found[0]


def test_an_excused_erratum_wants_none(faults):
    cells = code("x = 1", topics=["T3"]), text("A slip.", errata=["E2"])
    assert faults(*cells, chapter="03_b") == []


# --- two pages of one chapter, and what is often got wrong -------------------------------------


@pytest.fixture
def both(tmp_path):
    """Write a road and its deeper page and return what is wrong with the index, and the index."""

    def check(road, deeper):
        for name, cells in (("02_a", road), ("02_a_deeper", deeper)):
            notebook = nbformat.v4.new_notebook(cells=[text(f"# {name}"), *cells])
            nbformat.write(notebook, tmp_path / f"{name}.ipynb")
        found = index.scan(tmp_path)
        return index.problems(found, TOPICS, ERRATA), found

    return check


def test_a_topic_and_an_erratum_may_be_at_home_on_the_deeper_page(both):
    problems, found = both(COMPLETE[:1], COMPLETE[1:])
    assert problems == []
    assert found.topics["T1"][0].page == "02_a_deeper"
    assert found.topics["T1"][0].chapter == found.topics["T2"][0].chapter == "02_a"
    problems, _ = both(COMPLETE, COMPLETE[1:])
    assert any("topic T1 has 2 homes" in problem for problem in problems)
    assert any("claim rows is made 2 times" in problem for problem in problems)


TABLE = """\
## Often got wrong

| You may hear | What holds | Verified |
|---|---|---|
| A row sums to $\\|a\\|$. | It sums to `1`. | [✓](02_a_deeper.ipynb#claim-rows) |
"""


def test_rows_know_what_is_said_what_holds_the_claim_and_the_erratum(both):
    for name in ("rows", "claim-rows"):
        problems, found = both([COMPLETE[0], text(TABLE, wrong={name: "E1"})], COMPLETE[1:])
        assert problems == []
        (row,) = found.wrongs
        assert (row.says, row.holds) == ("A row sums to $|a|$.", "It sums to `1`.")
        assert (row.page, row.slug, row.erratum) == ("02_a_deeper", "rows", "E1")


LAX = COMPLETE[1].source.replace(", wrong=2.0", "")


@pytest.mark.parametrize(
    ("table", "marks", "deeper", "words"),
    [
        (TABLE.replace("_deeper", ""), {"rows": "E1"}, COMPLETE[1], "02_a makes no claim rows"),
        (TABLE.replace("claim-rows", "claim-x"), {"x": "E1"}, COMPLETE[1], "makes no claim x"),
        (TABLE, {"rows": "E2"}, COMPLETE[1], "E2, which is not at home in this chapter"),
        (TABLE, {"rows": "E2"}, COMPLETE[1], "erratum E1 has its home in 02_a_deeper, cell 1"),
        (TABLE, {"rows": "E9"}, COMPLETE[1], "names erratum E9, which does not exist"),
        (TABLE, {"rows": "E1"}, code(LAX, topics=["T1"], errata=["E1"]), "rejects no wrong value"),
        (TABLE, {}, COMPLETE[1], "names no erratum for the row of rows"),
        (TABLE, {"rows": "E1", "more": "E2"}, COMPLETE[1], "no row links to more"),
        (TABLE.replace("[✓]", "[yes]"), {"rows": "E1"}, COMPLETE[1], "has to end with [✓]"),
        (TABLE.replace("may", "will"), {"rows": "E1"}, COMPLETE[1], "has no table with the head"),
        (TABLE.replace("##", "## Not"), {"rows": "E1"}, COMPLETE[1], "belongs into the section"),
    ],
)
def test_a_row_that_does_not_keep_its_promise_is_noticed(both, table, marks, deeper, words):
    problems, _ = both([COMPLETE[0], text(table, wrong=marks)], [deeper])
    assert any(words in problem for problem in problems), problems


def test_a_table_without_its_metadata_is_noticed(both):
    problems, _ = both([COMPLETE[0], text(TABLE)], [COMPLETE[1]])
    assert problems == ["02_a, cell 2 (Often got wrong): the metadata names no erratum for the row "
                        "of rows"]  # fmt: skip


def test_an_erratum_has_one_row(both):
    twice = TABLE + TABLE.splitlines()[-1].replace("rows", "more")
    more = code(COMPLETE[1].source.replace("'rows'", "'more'"))
    road = [COMPLETE[0], text(twice, wrong={"rows": "E1", "more": "E1"})]
    assert both(road, [COMPLETE[1], more])[0] == ["erratum E1 has 2 rows in 'Often got wrong'"]


# --- what the site is given -------------------------------------------------------------------


def test_a_claim_knows_its_section_its_topics_and_its_anchor(tmp_path):
    cells = [text("# A chapter"), *COMPLETE]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "02_a.ipynb")
    found = index.scan(tmp_path)
    (claim,) = found.claims
    assert (claim.slug, claim.sentence, claim.corrects) == ("rows", "Rows sum to 1.", True)
    assert (claim.anchor, claim.place.section, claim.place.anchor) == ("claim-rows", "Rows", "rows")
    assert (claim.topics, claim.errata) == (("T1",), ("E1",))
    assert found.chapters == {"02_a": "A chapter"}
    assert found.topics["T2"][0].anchor == "rows"


@pytest.mark.parametrize(
    "call",
    ["claim", "claims.claim", "tfbook.teaching.claims.claim"],
)
def test_a_claim_is_found_however_it_is_called(call):
    found, faults, _ = index.claims_of(f"%matplotlib inline\n{call}('a', 'S ' 'T', x, expected=y)")
    assert (found, faults) == ([("a", "S T", False)], [])


HEADINGS = """\
# Attention: *what* it computes

## Why divide by $\\sqrt{d_k}$?

## `attend(q, k, v)` and `masks`

## The `query` and the [key](#x)

### Self- and cross-attention, 100 %

```python
# not a heading
```

## snake_case and __dunder__ words — “quoted” ###
"""


def test_anchors_are_those_of_the_pages():
    """Compare with MyST itself: the ids of the sections that it makes."""
    ours = [index.make_id(title) for _, title in index.headings(HEADINGS)]
    settings = {"myst_enable_extensions": ["dollarmath"], "report_level": 5}
    with docutils_namespace():
        tree = publish_doctree(
            HEADINGS, parser=Parser(), settings_overrides=settings | {"doctitle_xform": False}
        )
    theirs = [node["ids"][0] for node in tree.findall(section)]
    assert ours == theirs
