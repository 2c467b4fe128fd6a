"""Formulas as MathML, made when the book is built.

Browsers set MathML without a script, so a formula is there with the text: on a slow phone, over
file://, without JavaScript. pandoc reads the TeX; what it cannot read is a warning, which stops a
strict build. Afterwards each formula is

- relieved of what browsers do not need (the TeX inside, variants that are letters of their own),
- given the thin spaces that TeX puts around names of functions, log n and softmax x,
- cut at its relations, so that it can go on in the next line where the page is narrow.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import pypandoc
from docutils import nodes
from lxml import etree
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

LOG = logging.getLogger(__name__)
NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'
PANDOC_API = [1, 23, 1]
APPLY, THIN = "\u2061", "0.167em"
BRACKETS = frozenset("()[]{}|‖")
RELATIONS = frozenset("=≠≈≡<>≤≥≪≫∼∝∈→←↦⟹⟸⟺⇒≻≺:")
SCRIPTED = ("msub", "msup", "msubsup", "munder", "mover", "munderover")
LONG = 16  # tokens; a shorter formula within a line is not cut
SIDE_BY_SIDE = 1.0  # em: from this space on two formulas stand side by side


class Formulas:
    """All formulas of the book that were read so far; those of a page are read at once."""

    def __init__(self) -> None:
        """Know none."""
        self.known: dict[tuple[str, bool], str | None] = {}

    def learn(self, wanted: Iterable[tuple[str, bool]]) -> None:
        """Read TeX; the second of a pair says whether it stands in a line of its own."""
        new = [pair for pair in dict.fromkeys(wanted) if pair not in self.known]
        if new:
            self.known.update(zip(new, mathml(new), strict=True))

    def html(self, tex: str, display: bool, node: nodes.Node) -> str:
        """Return what the page shows; TeX that cannot be read is a warning and stays."""
        self.learn([(tex, display)])
        found = self.known[tex, display]
        if found is None:
            LOG.warning("formula that cannot be read: %s", tex, location=node)
            return f"<code>{tex}</code>"
        return found


FORMULAS = Formulas()


def mathml(formulas: list[tuple[str, bool]]) -> list[str | None]:
    """Return the HTML of formulas, None for those that pandoc cannot read."""
    kinds = ("InlineMath", "DisplayMath")
    blocks = [
        {"t": "Para", "c": [{"t": "Math", "c": [{"t": kinds[display]}, tex]}]}
        for tex, display in formulas
    ]
    document = {"pandoc-api-version": PANDOC_API, "meta": {}, "blocks": blocks}
    command = [pypandoc.get_pandoc_path(), "--from=json", "--to=html", "--mathml", "--wrap=none"]
    said = subprocess.run(
        command,
        input=json.dumps(document),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    read = re.findall(r"<p>(.*?)</p>", said.stdout, re.DOTALL)
    if len(read) != len(formulas):
        raise RuntimeError(f"pandoc returned {len(read)} of {len(formulas)} formulas")
    return [
        finish(each, display) if each.startswith("<math") else None
        for each, (_, display) in zip(read, formulas, strict=True)
    ]


def finish(written: str, display: bool) -> str:
    """Turn pandoc's MathML into pieces that browsers set as TeX would, and can break between."""
    row = etree.fromstring(written.replace(NAMESPACE, ""))[0][0]  # math, semantics, then the row
    whole = etree.Element("mrow")
    whole.extend([row] if row.tag != "mrow" or len(row) == 2 and row[1].text == APPLY else row)
    row = whole
    for part in list(row.iter()):
        _plain(part)
    for name in [each for each in row.iter("mi") if len(each.text or "") > 1]:
        _space(name)
    formulas = [
        "<wbr>".join(_written(piece, display) for piece in each) for each in _pieces(row, display)
    ]
    if len(formulas) == 1:
        return formulas[0]
    return "<wbr>".join(f'<span class="tfbook-side">{each}</span>' for each in formulas)


# Accents that combine with a letter, as signs that stand over one.
ACCENTS = {"\u0302": "^", "\u0303": "~", "\u0304": "¯", "\u203e": "¯", "\u0307": "˙"}


def _plain(part: etree._Element) -> None:
    """Drop what the letter says by itself, and what only other browsers read."""
    if part.get("accent") and part.text in ACCENTS:
        part.text = ACCENTS[part.text]
        part.set("stretchy", "false")
    if part.tag == "mtd":
        for name in ("style", "columnalign"):
            side = part.attrib.pop(name, "")
        if side != "center":
            part.set("class", f"tfbook-{side}")
    variant = part.attrib.pop("mathvariant", None)
    if variant == "normal" and part.tag == "mi" and len(part.text or "") == 1:
        part.set("mathvariant", variant)
    elif part.get("stretchy") == "false" and not part.get("accent") and part.text not in BRACKETS:
        del part.attrib["stretchy"]
    if part.tag == "mi" and part.text and not part.text[0].isalpha() and part.text not in "∞∂∇…⋯⊤":
        part.tag = "mo"  # pandoc takes a sign that it finds beside a text for a letter
        before = part.getprevious()
        begins = before is None or before.tag == "mo" and not _closes(before)
        signs = "prefix" if begins else "infix"
        part.set("form", signs if part.text in "−+" else "postfix")
    if part.tag == "mo" and part.text in "/′":  # TeX sets them close
        part.set("lspace", "0")
        part.set("rspace", "0")


def _space(name: etree._Element) -> None:
    """Set a function's name apart from what it is applied to, unless brackets do so."""
    applied = name.getparent()
    if applied.tag == "mrow" and len(applied) == 2 and applied[1].text == APPLY:
        applied.getparent().replace(applied, name)
    while name.getparent().tag in SCRIPTED and name.getparent()[0] is name:  # log₂, max over i
        name = name.getparent()
    row, before, after = name.getparent(), name.getprevious(), name.getnext()
    if row.tag in SCRIPTED:
        return
    if after is not None and after.tag not in ("mspace", "mo") and not _opens(after):
        name.addnext(etree.Element("mspace", width=THIN))
    if before is not None and before.tag != "mspace" and (before.tag != "mo" or _closes(before)):
        name.addprevious(etree.Element("mspace", width=THIN))


def _closes(part: etree._Element) -> bool:
    return part.get("form") == "postfix"


def _opens(part: etree._Element) -> bool:
    if part.tag == "mrow":
        return len(part) > 0 and _opens(part[0])
    return (
        part.tag == "mo" and part.get("form") == "prefix" or part.get("width", "").startswith("-")
    )


def _pieces(row: etree._Element, display: bool) -> list[list[list[etree._Element]]]:
    """Return the formulas that stand side by side in a row, each cut before its relations."""
    if not display and sum(1 for _ in row.iter("mi", "mn", "mo")) < LONG:
        return [[list(row)]]
    formulas: list[list[list[etree._Element]]] = [[[]]]
    for part in row:
        piece = formulas[-1][-1]
        relation = part.tag == "mo" and part.text in RELATIONS and part.get("form") is None
        if relation and any(each.tag != "mspace" for each in piece):
            formulas[-1].append([part])
        else:
            piece.append(part)
        if part.tag == "mspace" and float(part.get("width", "0em")[:-2]) >= SIDE_BY_SIDE:
            formulas.append([[]])
    return [[piece for piece in each if piece] for each in formulas if each[0]]


def _written(piece: list[etree._Element], display: bool) -> str:
    math = etree.Element("math")
    if display:
        math.set("displaystyle", "true")
    # A piece that begins with its relation has something on the left of it: in the piece before.
    if len(piece) > 1 and piece[0].tag == "mo" and piece[0].text in RELATIONS:
        piece[0].set("form", "infix")
    math.extend(deepcopy(part) for part in piece)
    text = etree.tostring(math, encoding="unicode", with_tail=False)
    return re.sub(r"(>)\s+(<)", r"\1\2", text)


def tex_of(node: nodes.Element) -> tuple[str, bool]:
    """Return the TeX of a node, several lines or equations aligned, and whether it is a block."""
    text = node.astext().strip()
    if isinstance(node, nodes.math):
        return text, False
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    if len(parts) > 1:
        return r"\begin{aligned}" + r"\\".join(parts) + r"\end{aligned}", True
    loose = r"\\" in text and not re.search(r"\\begin\{(?:aligned|align\*?|gathered|split)", text)
    rows = loose and r"\\" in re.sub(
        r"\\begin\{(\w+\*?)\}.*?\\end\{\1\}", "", text, flags=re.DOTALL
    )
    return (r"\begin{aligned}" + text + r"\end{aligned}" if rows else text), True


def learn_page(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Read all formulas of a page at once."""
    FORMULAS.learn(
        tex_of(node) for kind in (nodes.math, nodes.math_block) for node in doctree.findall(kind)
    )


def visit_inline(self: Any, node: nodes.math) -> None:
    """Write a formula within a line."""
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(FORMULAS.html(*tex_of(node), node) + "</span>")
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.math_block) -> None:
    """Write a formula in a line of its own, with its number."""
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    formula = FORMULAS.html(*tex_of(node), node)
    self.body.append(f'<div class="tfbook-formula">{formula}</div></div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register the way formulas are written."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("doctree-resolved", learn_page)
