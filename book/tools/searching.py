"""The index of the search page: sections, words of the glossary and functions, each a result.

Sphinx's own search finds pages, and parts of words: a section of 600 words is lost in a chapter of
10,000, and "LoRA" finds *explorables*. Here each section is a result with its title. Words are
stemmed as Sphinx stems them, in the browser too; `assets/js/search.js` ranks.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish

KEPT = "tfbook_search"
WORD = re.compile(r"[^\W_]+(?:_[^\W_]+)*")
LEAD = 180  # letters of a result's text that are shown
# Kinds of results, as `search.js` weighs them.
KINDS = ("section", "deeper", "lab", "word", "page", "list", "function")
LISTS = frozenset(
    f"book/{name}" for name in ("claims", "topics", "corrections", "exercises", "figures")
)
UNREAD = (nodes.literal_block, nodes.raw, nodes.comment, nodes.math_block, nodes.section)


class Entry(NamedTuple):
    """What can be found: its title, where it is, its kind and its text."""

    title: str
    anchor: str
    kind: str
    text: str


def kind_of(page: str) -> str:
    """Return the kind of the sections of a page."""
    if page in LISTS:
        return "list"
    if not page.startswith("chapters/"):
        return "page"
    if page.endswith("_deeper"):
        return "deeper"
    return "section" if re.match(r"chapters/\d", page) else "lab"


def entries(doctree: nodes.document, page: str) -> Iterator[Entry]:
    """Yield what can be found in a page, in its order."""
    kind = kind_of(page)
    for node in doctree.findall():
        if isinstance(node, nodes.section):
            title = node.next_node(nodes.title)
            if title is not None:
                top = isinstance(node.parent, nodes.document)
                anchor = "" if top else node["ids"][0]
                # A list says what stands elsewhere: it is found by its titles.
                told = "" if kind == "list" and not top else own_text(node)
                yield Entry(_clean(title.astext()), anchor, kind, told)
        elif isinstance(node, nodes.definition_list_item) and page == "book/glossary":
            term = node.next_node(nodes.term)
            meaning = node.next_node(nodes.definition)
            if term is not None and meaning is not None and term["ids"]:
                told = _clean(meaning.astext())
                yield Entry(_clean(term.astext()), term["ids"][0], "word", told)
        elif isinstance(node, addnodes.desc):
            sign, content = node.next_node(addnodes.desc_signature), node.children[-1]
            told = content.next_node(nodes.paragraph)
            if sign is not None and sign.get("ids"):
                title = sign["ids"][0]
                yield Entry(title, title, "function", _clean(told.astext()) if told else "")


def own_text(section: nodes.Element) -> str:
    """Return the prose of a section without that of the sections within it, and without code."""
    parts: list[str] = []

    def read(node: nodes.Node) -> None:
        for child in node.children:
            if isinstance(child, UNREAD) or isinstance(child, addnodes.desc | nodes.title):
                continue
            if isinstance(child, nodes.paragraph | nodes.term | nodes.caption):
                parts.append(said(child))
            else:
                read(child)

    read(section)
    return _clean(" ".join(parts))


TEX = re.compile(
    r"\\(?:operatorname|text|mathrm|mathcal|mathbb|left|right|[bB]igg?[lr]?)\b|\\[,;!]|[{}\\]"
)


def said(node: nodes.Node) -> str:
    """Return the text of a node, its formulas without the marks of TeX."""
    if isinstance(node, nodes.math):
        return TEX.sub("", node.astext())
    if isinstance(node, nodes.Text):
        return node.astext()
    return "".join(map(said, node.children))


def _clean(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


STEMMER = SearchEnglish({})


def stems(text: str) -> Iterator[str]:
    """Yield the words of a text, stemmed; of d_k and of MultiHeadAttention the parts too."""
    for word in WORD.findall(text):
        parts = re.split(r"_|(?<=[a-z])(?=[A-Z])", word)
        for each in dict.fromkeys([word, *parts] if len(parts) > 1 else parts):
            yield STEMMER.stem(each.lower())


def index(pages: dict[str, list[Entry]], titles: dict[str, str]) -> dict[str, Any]:
    """Return what the search page loads: results, and for each word where and how often it is.

    A result is [title, address, kind, lead, title of its page, number of words]. Of a word two
    numbers stand for each place: how many results lie between it and the one before, and twice the
    times in the text, plus one if the word is in the title.
    """
    results, postings, last = [], defaultdict(list), {}
    for page, found in pages.items():
        for entry in found:
            named, told = Counter(stems(entry.title)), Counter(stems(entry.text))
            at = len(results)
            address = f"{page}.html" + (f"#{entry.anchor}" if entry.anchor else "")
            lead = (
                entry.text[:LEAD].rsplit(" ", 1)[0] + "…" if len(entry.text) > LEAD else entry.text
            )
            kind = KINDS.index(entry.kind)
            results.append([entry.title, address, kind, lead, titles[page], told.total()])
            for word in named | told:
                between = at - last.get(word, 0)
                postings[word] += [between, 2 * told[word] + (named[word] > 0)]
                last[word] = at
    return {"results": results, "words": dict(sorted(postings.items()))}


def keep(app: Sphinx, doctree: nodes.document) -> None:
    """Note what a page holds when it is read."""
    kept = app.env.__dict__.setdefault(KEPT, {})
    kept[app.env.docname] = list(entries(doctree, app.env.docname))


def purge(app: Sphinx, env: Any, page: str) -> None:
    """Forget a page that is read again."""
    env.__dict__.get(KEPT, {}).pop(page, None)


def merge(app: Sphinx, env: Any, pages: list[str], other: Any) -> None:
    """Take over what another process has read."""
    env.__dict__.setdefault(KEPT, {}).update(other.__dict__.get(KEPT, {}))


def write(app: Sphinx, static: Path) -> None:
    """Write the index as a script, which loads over file:// too."""
    kept = app.env.__dict__.get(KEPT, {})
    titles = {page: _clean(app.env.titles[page].astext()) for page in kept}
    made = json.dumps(
        index(dict(sorted(kept.items())), titles), ensure_ascii=False, separators=(",", ":")
    )
    (static / "search-index.js").write_text(f"window.tfbookSearch = {made};\n", encoding="utf-8")


def forgo(app: Sphinx) -> None:
    """Let Sphinx begin an index of its own anew: no page asks for it, so it is not kept.

    Sphinx would warn that there is none whenever only some pages are built again.
    """
    if hasattr(app.builder, "load_indexer"):
        app.builder.load_indexer = lambda docnames: None


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.connect("builder-inited", forgo)
    app.connect("doctree-read", keep)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
