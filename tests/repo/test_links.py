"""What a page or a chapter points to exists: files, bibliography keys, glossary words, pictures."""

import re
from functools import cache

import nbformat
import pytest
import yaml
from repofiles import ROOT, findings, named, short

PAGES = [p for p in named(".md", ".ipynb") if not p.is_relative_to(ROOT / "tests")]
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
IMAGE = re.compile(r"^\s*(?:```|:::)\{(?:image|figure|literalinclude|include)\}\s+(\S+)", re.M)
CITE = re.compile(r"\{cite(?::[a-z*]+)?\}`([^`]+)`")
TERM = re.compile(r"\{term\}`(?:[^`<]*<)?([^`<>]+)>?`")
KEY = re.compile(r"^\s*@\w+\{\s*([^,\s]+)\s*,", re.M)


@cache
def prose(path):
    """The Markdown of a page, without code."""
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = path.read_text(encoding="utf-8")
    return "\n".join(outside_code(text))


def outside_code(text):
    """The lines that are not in a code fence; a directive's fence, ```{name}, is not one."""
    fence, code = "", False
    for line in text.splitlines():
        mark = re.match(r"(`{3,}|~{3,})(\{?)", line)
        if fence and line.rstrip() == fence:
            fence, code = "", False
        elif mark and not fence:
            fence, code = mark[1], not mark[2]
        if not code:
            yield line


@cache
def bibliography():
    path = ROOT / "book" / "references.bib"
    return KEY.findall(path.read_text(encoding="utf-8")) if path.exists() else []


def dead_links(path):
    text = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "``", prose(path))
    for target in LINK.findall(text) + IMAGE.findall(prose(path)):
        if re.match(r"[a-z][a-z0-9+.-]*:|#|//", target):
            continue
        target = target.split("#")[0]
        places = [path.parent / target, ROOT / target.lstrip("/")]
        if target.startswith("/"):
            places = places[1:]
        # Sphinx lets a page be named without its ending, or by the page it becomes.
        stem = re.sub(r"\.html$", "", target)
        places += [path.parent / (stem + end) for end in (".md", ".ipynb")]
        if not any(place.exists() for place in places):
            yield f"links to {target}"


def unknown_works(path):
    for group in CITE.findall(prose(path)):
        for key in group.split(","):
            key = re.sub(r"^.*<|>$", "", key.strip())
            if key not in bibliography():
                yield f"cites {key}"


@cache
def glossary():
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8").lower()
    return {line.strip() for line in text.splitlines()}


def unknown_terms(path):
    for term in TERM.findall(prose(path)):
        if term.strip().lower() not in glossary():
            yield f"marks {term!r}, which the glossary does not explain"


def unknown_sources(path):
    for key in re.findall(r"\[([a-z]+\d{4}\w+)\]", path.read_text(encoding="utf-8")):
        if key not in bibliography():
            yield f"names {key} as its source"


def test_relative_links_lead_somewhere():
    assert PAGES and findings(PAGES, dead_links) == []


def test_cited_works_are_in_the_bibliography():
    assert findings(PAGES, unknown_works) == []


def test_words_marked_as_terms_are_in_the_glossary():
    assert findings(PAGES, unknown_terms) == []


def test_works_named_as_sources_are_in_the_bibliography():
    assert findings(named(".py", under="tfbook"), unknown_sources) == []


@pytest.mark.parametrize(
    ("look", "content", "words"),
    [
        (dead_links, "[this](gone.md) and [that](a.md)", "links to gone.md"),
        (dead_links, "```{image} gone.png\n```", "links to gone.png"),
        (unknown_works, "{cite:t}`vaswani2017attention,nobody2020`", "cites nobody2020"),
        (unknown_terms, "{term}`attention` and {term}`these <no-such-word>`", "'no-such-word'"),
        (unknown_sources, "[vaswani2017attention] [nobody2020none]", "names nobody2020none"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, look, content, words):
    path = tmp_path / "a.md"
    path.write_text(content, encoding="utf-8")
    (found,) = look(path)
    assert words in found


def test_bibliography_keys_are_unique():
    keys = bibliography()
    assert len(keys) == len(set(keys))


def table_of_contents():
    node = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += node
        elif isinstance(node, dict):
            yield from (node[key] for key in ("root", "file") if key in node)
            stack += [value for value in node.values() if isinstance(value, list)]


def test_every_chapter_is_in_the_table_of_contents_and_every_entry_exists():
    entries = set(table_of_contents())
    for entry in entries:
        assert any((ROOT / f"{entry}{end}").exists() for end in (".md", ".ipynb")), entry
    chapters = {f"chapters/{p.stem}" for p in (ROOT / "chapters").glob("*.ipynb")}
    assert chapters <= entries, "a chapter is missing in _toc.yml"


def astray(toc, pages):
    """The deeper pages that do not stand right below their road in the table of contents."""
    nested = {
        section["file"]: entry["file"]
        for part in toc["parts"]
        for entry in part["chapters"]
        for section in entry.get("sections", ())
    }
    deeper = [page for page in pages if page.endswith("_deeper")]
    return [page for page in deeper if nested.get(page) != page.removesuffix("_deeper")]


def test_deeper_pages_stand_below_their_roads():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    assert astray(toc, [f"chapters/{p.stem}" for p in (ROOT / "chapters").glob("*.ipynb")]) == []
    planted = {"parts": [{"chapters": [{"file": "a", "sections": [{"file": "a_deeper"}]}]}]}
    assert astray(planted, ["a", "a_deeper"]) == []
    planted["parts"][0]["chapters"].append({"file": "b_deeper"})
    assert astray(planted, ["b", "b_deeper"]) == ["b_deeper"]


def test_explained_in_names_a_chapter_that_exists():
    for path in named(".py", under="tfbook"):
        for name in re.findall(r"chapters/(\w+)", path.read_text(encoding="utf-8")):
            assert (ROOT / "chapters" / f"{name}.ipynb").exists(), f"{short(path)}: {name}"


def unknown_sections(path):
    """Each `chapters/NAME, section "HEADING"` that is not on this very page."""
    text = " ".join(path.read_text(encoding="utf-8").split())
    for chapter, section in re.findall(r'chapters/(\w+), section "([^"]+)"', text):
        page = ROOT / "chapters" / f"{chapter}.ipynb"
        if section not in re.findall(r"^#{1,6} (.+?)\s*$", prose(page), flags=re.M):
            yield f"chapters/{chapter} has no section {section!r}"


def test_the_sections_that_explain_it_exist(tmp_path):
    assert findings(named(".py", under="tfbook"), unknown_sections) == []
    planted = tmp_path / "a.py"
    for page in ("02_attention", "03_multi_head"):  # which "Pruning heads" has on its deeper page
        planted.write_text(f'See chapters/{page}, section "Pruning heads".')
        assert len(list(unknown_sections(planted))) == 1
