"""Read the chapters: which topic, which correction and which claim lives where.

The notebooks are the only source. A cell's metadata names what it treats,

    {"tfbook": {"topics": ["T030"], "errata": ["E015"]}}

a heading gives the section, and a call of `claim(...)` gives a claim. A chapter is one page or two,
`02_name` and `02_name_deeper`; what it treats may have its home on either. `book/topics.yml` and
`book/errata.yml` say what there is to treat. The site makes its index pages from `scan`; the
tests demand that `problems` is empty.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import yaml
from docutils.nodes import make_id

from book.tools import wrongs

DEEPER = "_deeper"
BOOK = Path(__file__).resolve().parent.parent
MOST_TOPICS_IN_A_CELL = 3
CITATION = "book/bibliography.md#"


def chapter_of(page: str) -> str:
    """Return the chapter to which a page belongs: its deeper page is part of it."""
    return page.removesuffix(DEEPER)


@dataclass(frozen=True)
class Topic:
    """A row of `topics.yml`: something the book has to treat."""

    id: str
    title: str
    group: str
    kind: str
    treatment: str
    errata: tuple[str, ...]
    chapter: str

    @property
    def prose(self) -> bool:
        """Whether a cited paragraph may be its home; otherwise it takes code."""
        return self.treatment.startswith("prose")


@dataclass(frozen=True)
class Erratum:
    """An entry of `errata.yml`: a widespread statement that the book corrects."""

    id: str
    tag: str
    title: str
    says: str
    why: str
    correct: str
    reference: str
    check: str = "claim"
    checked: bool = True


@dataclass(frozen=True)
class Place:
    """A cell of a chapter's page, with the section it stands in."""

    page: str
    cell: int
    cell_id: str
    cell_type: str
    section: str
    anchor: str

    @property
    def chapter(self) -> str:
        """The chapter of the page."""
        return chapter_of(self.page)

    def __str__(self) -> str:
        """Return the place as a message names it."""
        return f"{self.page}, cell {self.cell} ({self.section})"


@dataclass(frozen=True)
class ClaimSite:
    """A call of `claim` in a chapter."""

    slug: str
    sentence: str
    place: Place
    topics: tuple[str, ...]
    errata: tuple[str, ...]
    corrects: bool

    @property
    def anchor(self) -> str:
        """The id of the claim's line in the page."""
        return f"claim-{self.slug}"


@dataclass
class Index:
    """What `scan` finds: titles of pages, homes of topics and errata, claims, faults of form."""

    chapters: dict[str, str] = field(default_factory=dict)
    topics: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    errata: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    claims: list[ClaimSite] = field(default_factory=list)
    wrongs: list[wrongs.Row] = field(default_factory=list)
    cited: set[Place] = field(default_factory=set)
    working: set[Place] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


def load_topics(path: Path = BOOK / "topics.yml") -> dict[str, Topic]:
    """Read `topics.yml`, by id."""
    rows = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return _by_id(Topic(**{**row, "errata": tuple(row.get("errata", ()))}) for row in rows)


def load_errata(path: Path = BOOK / "errata.yml") -> dict[str, Erratum]:
    """Read `errata.yml`, by id."""
    rows = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return _by_id(Erratum(**row) for row in rows)


def _by_id(rows: Iterable) -> dict:
    found: dict = {}
    for row in rows:
        if row.id in found:
            raise ValueError(f"{row.id} stands twice")
        found[row.id] = row
    return found


def scan(chapters: Path) -> Index:
    """Read all notebooks of the folder `chapters`, in the order of their names."""
    index = Index()
    for path in sorted(Path(chapters).glob("*.ipynb")):
        _scan_notebook(path, index)
    return index


def _scan_notebook(path: Path, index: Index) -> None:
    notebook = nbformat.read(path, as_version=4)
    page = path.stem
    section, anchor, anchors = "", "", Counter()
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            for level, title in headings(cell.source):
                section, anchor = title, make_id(title)
                anchors[anchor] += 1
                if level == 1:
                    index.chapters.setdefault(page, title)
        place = Place(page, number, cell.get("id", ""), cell.cell_type, section, anchor)
        marks = cell.metadata.get("tfbook", {})
        topics, errata = tuple(marks.get("topics", ())), tuple(marks.get("errata", ()))
        for name in topics:
            index.topics[name].append(place)
        for name in errata:
            index.errata[name].append(place)
        if "wrong" in marks or (section == wrongs.SECTION and wrongs.has_table(cell.source)):
            rows, faults = wrongs.read(cell.source, marks.get("wrong", {}), place)
            index.wrongs += rows
            index.faults += [f"{place}: {fault}" for fault in faults]
        if len(topics) > MOST_TOPICS_IN_A_CELL:
            index.faults.append(f"{place} is the home of {len(topics)} topics; spread them")
        if cell.cell_type == "markdown" and CITATION in cell.source:
            index.cited.add(place)
        if cell.cell_type == "code":
            claims, faults, working = claims_of(cell.source)
            index.faults += [f"{place}: {fault}" for fault in faults]
            index.claims += [
                ClaimSite(slug, sentence, place, topics, errata, corrects)
                for slug, sentence, corrects in claims
            ]
            if working:
                index.working.add(place)
    index.faults += [
        f"{page} has {times} headings with the anchor #{name}; make them differ"
        for name, times in anchors.items()
        if times > 1
    ]


def headings(source: str) -> Iterator[tuple[int, str]]:
    """Yield level and plain text of each Markdown heading outside of code fences."""
    fence = ""
    for line in source.splitlines():
        mark = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if mark and not fence:
            fence = mark[1]
        elif fence and line.strip().startswith(fence):
            fence = ""
        elif not fence and (match := re.match(r" {0,3}(#{1,6})\s+(.*?)\s*#*\s*$", line)):
            yield len(match[1]), plain(match[2])


def plain(markdown: str) -> str:
    """Strip the marks of inline Markdown, as the anchors of a page do."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    text = re.sub(r"\$([^$]*)\$", r"\1", text)
    text = text.replace("`", "")
    return re.sub(r"(\*\*|__|\*|(?<!\w)_|_(?!\w))", "", text).strip()


def claims_of(source: str) -> tuple[list[tuple[str, str, bool]], list[str], bool]:
    """Find the claims of a code cell by its syntax tree.

    Returns:
        (slug, sentence, whether it rejects a wrong value) of each claim; faults of form; and
        whether the cell does more than import.
    """
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError as error:
        return [], [f"cell does not parse: {error.msg}"], False
    found, faults = [], []
    top_level = {id(node.value) for node in tree.body if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _name(node.func) != "claim":
            continue
        given = dict(zip(("slug", "sentence", "measured", "expected"), node.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        slug, sentence = (_literal(given.get(name)) for name in ("slug", "sentence"))
        if slug is None or sentence is None:
            faults.append("claim needs its slug and its sentence as plain texts")
            continue
        if id(node) not in top_level:
            faults.append(f"claim {slug} has to stand at the top level of its cell")
        measured, expected = given.get("measured"), given.get("expected")
        if isinstance(measured, ast.Constant):
            faults.append(f"claim {slug} measures nothing: its measured value is a constant")
        elif measured and expected and ast.dump(measured) == ast.dump(expected):
            faults.append(f"claim {slug} compares an expression with itself")
        found.append((slug, sentence, "wrong" in given))
    working = any(not isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body)
    return found, faults, working


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def demanded(index: Index, topics: dict[str, Topic]) -> tuple[set[str], set[str]]:
    """Return the topics, and the errata their rows name, which the present chapters must treat."""
    rows = [topic for topic in topics.values() if topic.chapter in index.chapters]
    return {topic.id for topic in rows}, {name for topic in rows for name in topic.errata}


def problems(index: Index, topics: dict[str, Topic], errata: dict[str, Erratum]) -> list[str]:
    """List, in words, everything that stands in the way of complete and honest indexes."""
    found = list(index.faults)
    need_topics, need_errata = demanded(index, topics)
    for kind, homes, known, need in (
        ("topic", index.topics, topics, need_topics),
        ("erratum", index.errata, errata, need_errata),
    ):
        found += [f"{kind} {name} has no home" for name in sorted(need - set(homes))]
        for name, places in homes.items():
            if name not in known:
                found.append(f"{places[0]} names {kind} {name}, which does not exist")
            if len(places) > 1:
                found.append(f"{kind} {name} has {len(places)} homes: {_join(places)}")
    found += _topic_problems(index, topics)
    found += _errata_problems(index, errata)
    found += wrongs.problems(index, errata)
    slugs: dict[str, list[Place]] = defaultdict(list)
    for claim in index.claims:
        slugs[claim.slug].append(claim.place)
    for slug, places in slugs.items():
        if len(places) > 1:
            found.append(f"claim {slug} is made {len(places)} times: {_join(places)}")
    return found


def _topic_problems(index: Index, topics: dict[str, Topic]) -> Iterator[str]:
    for name, places in index.topics.items():
        topic = topics.get(name)
        for place in places if topic else ():
            if place.chapter != topic.chapter:
                yield f"topic {name} belongs to {topic.chapter}, but its home is {place}"
            if place.cell_type == "markdown" and not topic.prose:
                yield f"topic {name} takes code ({topic.treatment}), but its home is prose: {place}"
            if place.cell_type == "markdown" and topic.prose and place not in index.cited:
                yield f"topic {name} takes a citation, but there is none in {place}"
            if place.cell_type == "code" and place not in index.working:
                yield f"topic {name} has its home in a cell that only imports: {place}"


def _errata_problems(index: Index, errata: dict[str, Erratum]) -> Iterator[str]:
    due: Counter[Place] = Counter()
    for name, places in index.errata.items():
        if name in errata and errata[name].check == "claim":
            due.update(places[:1])
    made = Counter(claim.place for claim in index.claims if claim.corrects)
    for place, number in due.items():
        if made[place] < number:
            yield (
                f"{place} corrects {number} errata but has {made[place]} claims with `wrong=`: "
                "each wrong value has to be shown and rejected"
            )


def _join(places: Iterable[Place]) -> str:
    return "; ".join(map(str, places))
