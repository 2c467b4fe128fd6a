"""The notebooks' plain Markdown becomes what Sphinx knows; what leads nowhere is complained of."""

import nbformat
import pytest
from pybtex.database import parse_string

from book.tools import targets
from book.tools.conventions import Reader

WORKS = """
@misc{a1990one, author = {Adams, Ann}, year = {1990}}
@misc{b1991two, author = {de Bruijn, Bo and M{\\"u}ller, Cy}, year = {1991}}
@misc{d1992all, author = {Dee, D. and Eve, E. and Fox, F.}, year = {1992}}
@misc{g1993lab, author = {{Grand Lab}}, year = {1993}}
"""
GLOSSARY = "# Glossary\n\n```{glossary}\nlogit\n  A score.\n\nBIO tags\n  Letters.\n```\n"
ABOVE = "# Road\n\n## Why `x`? *Yes*\n\n$$\na \\tag{2.1}\n$$\n\n> **Exercise 2.1 (T).** Do."
CLAIM = "claim('x', 'X holds.', x, 1)"
BIB, WORDS, API = "../book/bibliography.md#", "../book/glossary.md#", "../book/api/data.md#tfbook"
DROPDOWN = ":label: sol-a\n:class: dropdown\n```\n\n"


def text(source, **marks):
    return nbformat.v4.new_markdown_cell(source, metadata={"tfbook": marks} if marks else {})


def code(source="x = 1", **marks):
    return nbformat.v4.new_code_cell(source, metadata={"tfbook": marks} if marks else {})


@pytest.fixture
def book(tmp_path):
    """A small book; the returned function turns cells and gives their sources and complaints."""
    (tmp_path / "chapters" / "start").mkdir(parents=True)
    (tmp_path / "book" / "api").mkdir(parents=True)
    files = {"references.bib": WORKS, "glossary.md": GLOSSARY, "notation.md": "# Notation\n\n## N"}
    for name, content in (files | {"bibliography.md": "", "api/data.md": ""}).items():
        (tmp_path / "book" / name).write_text(content, encoding="utf-8")
    for name in ("02_a", "lab_a", "start/lab_a"):
        cells = [text(ABOVE.replace("2.", "") if "lab" in name else ABOVE), code(CLAIM)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / f"chapters/{name}.ipynb")

    def turn(*cells, name="03_b"):
        cells = [text(cell) if isinstance(cell, str) else cell for cell in cells]
        notebook = nbformat.v4.new_notebook(cells=cells)
        path = tmp_path / "chapters" / f"{name}.ipynb"
        nbformat.write(notebook, path)
        reader = Reader(path, tmp_path)
        reader.read(notebook)
        nbformat.validate(notebook)
        return [cell.source for cell in notebook.cells], reader

    return turn


@pytest.mark.parametrize(
    ("plain", "myst"),
    [
        (f"[Adams (1990)]({BIB}a1990one)'s way", "{cite:t}`a1990one`'s way"),
        (f"as ([Adams, 1990]({BIB}a1990one)).", "as {cite:p}`a1990one`."),
        (
            f"([de Bruijn and Müller, 1991]({BIB}b1991two); [Dee et al., 1992]({BIB}d1992all))",
            "{cite:p}`b1991two,d1992all`",
        ),
        (f"[Grand Lab (1993)]({BIB}g1993lab)", "{cite:t}`g1993lab`"),
        ("[index](../book/bibliography.md)", "[index](../book/bibliography.md)"),
        (f"[logit]({WORDS}logit)", "{term}`logit`"),
        (f"[tags]({WORDS}bio-tags)", "{term}`tags <BIO tags>`"),
        (f"[`f()`]({API}.data.f)", "{py:obj}`f() <tfbook.data.f>`"),
        ("[a](02_a.ipynb)", "[a](02_a.ipynb)"),
        ("[a](02_a.ipynb#Why-x?-Yes)", "[a](02_a.ipynb#why-x-yes)"),
        ("[N](../book/notation.md#N)", "[N](../book/notation.md#n)"),
        ("# A B\n\n[a](#A-B)", "# A B\n\n[a](#a-b)"),
        ("# Bo's (A)\n\n[a](#Bo's-(A)), b", "# Bo's (A)\n\n[a](#bo-s-a), b"),
        ("# A's\n\n[a](#A%27s)", "# A's\n\n[a](#a-s)"),
        ("[a](start/lab_a.ipynb)", "{download}`a <start/lab_a.ipynb>`"),
        ("[(2.1)](02_a.ipynb#Why-x?-Yes)", "{eq}`eq:2.1`"),
        ("[(1)](lab_a.ipynb#Why-x?-Yes)", "{eq}`eq:lab_a:1`"),
        ("[✓](02_a.ipynb#claim-x)", "{claimed}`✓ <chapters/02_a#claim-x>`"),
        ("[a](https://a.example/b_(c)#d)", "[a](https://a.example/b_(c)#d)"),
        ("# A\n$$\na\\\\\nb . \\tag{3.1}\n$$\n[(3.1)](#A)",
         "# A\n$$\na\\\\\nb .\n$$ (eq:3.1)\n{eq}`eq:3.1`"),
        ("$$\nx\n$$", "$$\nx\n$$"),
        ("> **Note.** A.\n>\n> * c", "```{admonition} Note\n:class: note\n\nA.\n\n* c\n```"),
        ("> **Why?**\n> A.", "```{admonition} Why?\n\nA.\n```"),
        (f"> A *b* of [logit]({WORDS}logit),\n> c.", "> A *b* of {term}`logit`,\n> c."),
        ("`[a](b.md)` and $[a](b.md)$", "`[a](b.md)` and $[a](b.md)$"),
        ("```python\n> **Note.** [a](b.md)\n```", "```python\n> **Note.** [a](b.md)\n```"),
        ("![A picture](a.png)", "![A picture](a.png)"),
    ],
)  # fmt: skip
def test_a_convention_becomes_what_sphinx_knows(book, plain, myst):
    found, reader = book(plain)
    assert (found, reader.complaints) == ([myst], [])


def test_an_exercise_and_its_solution(book):
    found, reader = book(
        text("A.\n\n> **Exercise 3.1 (F (x)?).** *Warm-up.* Do\n> `it`.\n\nB.", exercise="ex-a"),
        code(),
        text("**Solution of exercise 3.1.** Why.", solution="ex-a"),
        code("y = 1", solution="ex-a"),
        text("C."),
        code("z = 1", solution=True),
    )
    exercise = "A.\n\n```{exercise} F (x)?\n:label: ex-a\n\n*Warm-up.* Do\n`it`.\n```\n\nB."
    start = f"```{{solution-start}} ex-a\n{DROPDOWN}Why."
    end = "```{solution-end}\n```"
    assert found == [exercise, "x = 1", start, "y = 1", end, "C.", "z = 1"]
    assert (reader.complaints, reader.numbers) == ([], {"ex-a": (3, 1)})


def test_solutions_may_follow_each_other_and_end_the_notebook(book):
    exercises = [text(f"> **Exercise 3.{n} (T).** Do.", exercise=f"ex-{n}") for n in (1, 2)]
    solutions = [text(f"**Solution of exercise 3.{n}.**", solution=f"ex-{n}") for n in (1, 2)]
    found, reader = book(*exercises, *solutions)
    assert reader.complaints == []
    assert [cell.split("}")[0][4:] for cell in found[2:]] == ["solution-start", "solution-end"] * 2


def test_a_longer_fence_holds_a_fence(book):
    found, _ = book("> **Note.**\n> ```python\n> x\n> ```")
    assert found == ["````{admonition} Note\n:class: note\n\n```python\nx\n```\n````"]


def test_a_chapter_counts_on_where_its_page_before_ends(book):
    cells = "$$\nb \\tag{2.2}\n$$", text("> **Exercise 2.2 (T).** Do.", exercise="ex-b")
    _, reader = book(*cells, name="02_a_deeper")
    assert reader.complaints == []
    assert reader.numbers == {"equation-eq-2-2": (2, 2), "ex-b": (2, 2)}
    _, reader = book("$$\nb \\tag{1}\n$$", name="lab_b")
    assert reader.complaints == [] and reader.numbers == {"equation-eq-lab-b-1": (1,)}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([f"[Adams (1990)]({BIB}a1990none)"], "cites 'a1990none', which is not in"),
        ([f"[Adams (1991)]({BIB}a1990one)"], "not as 'Adams (1990)'"),
        ([f"[Adams, 1990]({BIB}a1990one)"], "not as 'Adams (1990)'"),
        ([f"([Adams (1990)]({BIB}a1990one))"], "not as 'Adams, 1990'"),
        ([f"([Dee, 1992]({BIB}d1992all))"], "not as 'Dee et al., 1992'"),
        ([f"[x]({WORDS}nothing)"], "which the glossary does not explain"),
        ([f"[f]({API}.data.f)"], "has to be written as code"),
        ([f"[`f`]({API}.costs.f)"], "does not stand on the page of tfbook.data"),
        (["[a](nowhere.ipynb)"], "links to nowhere.ipynb, which does not exist"),
        (["# A b\n\n[a](#a-b)"], "links to #a-b, which is no heading of 03_b"),
        (["# A $b$\n\n[a](#A-b)"], "which is no heading"),
        (["[a](02_a.ipynb#Nowhere)"], "links to #Nowhere, which is no heading of 02_a"),
        (["# A\n\n[(3.1)](#A)"], "links to equation (3.1), which 03_b does not have"),
        (["[(2.1)](02_a.ipynb#Road)"], "equation (2.1) stands in #Why-x?-Yes, not in #Road"),
        (["[✓](02_a.ipynb#claim-y)"], "links to #claim-y, which 02_a does not claim"),
        (["[✓](#claim-x)"], "links to #claim-x, which 03_b does not claim"),
        (["$$\nx \\tag{3.2}\n$$"], "equation 3.2 should be 3.1"),
        (["$$\nx \\tag{4.1}\n$$"], "equation 4.1 should be 3.1"),
        ([text("> **Exercise 3.2 (T).** Do.", exercise="ex-a")], "exercise 3.2 should be 3.1"),
        (["> **Exercise 3.1 (T).** Do."], "exercise 3.1 needs a name"),
        ([text("> **Exercise 3.1.** Do.", exercise="ex-a")], "an exercise opens with"),
        ([text("A.", exercise="ex-a")], "carries the name 'ex-a' and holds no exercise"),
        ([text("**Solution of exercise 3.1.**", solution="ex-a")], "which is no exercise above"),
        (
            [text("> **Exercise 3.1 (T).** Do.", exercise="ex-a"), code(solution="ex-a")],
            "has to open with **Solution of exercise 3.1.**",
        ),
        (
            [
                text("> **Exercise 3.1 (T).** Do.", exercise="ex-a"),
                text("**Solution of exercise 3.2.**", solution="ex-a"),
            ],
            "has to open with **Solution of exercise 3.1.**",
        ),
    ],
)
def test_what_leads_nowhere_or_counts_wrong_is_complained_of(book, cells, words):
    _, reader = book(*cells)
    assert words in reader.complaints[0]


def test_names_are_read_as_the_bibliography_prints_them():
    entries = parse_string(WORKS, "bibtex").entries.values()
    wanted = ["Adams", "de Bruijn and Müller", "Dee et al.", "Grand Lab"]
    assert list(map(targets.authors, entries)) == wanted
