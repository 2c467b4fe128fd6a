"""Folds of a chapter's page: verifications become one line, folds in a row become one.

A cell with the tag `verify` is folded whole, under a line that counts its claims. Folded code
(`hide-input`, `hide-cell`) joins the fold before it where nothing to be seen stands between.

Most elements of a chapter are the coloured words of folded code, so what is folded stands in a
`noscript`: without scripts it is there at once, with scripts when the fold is opened
(`assets/js/folds.js`).
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

VERIFY = "tag_verify"
CLAIM = re.compile(r'<div class="tfbook-claim"')
UNSEEN = (nodes.comment, nodes.target, nodes.substitution_definition)


class Verified(nodes.General, nodes.Element):
    """A fold whose line says how many claims are in it."""


def visit_verified(self: Any, node: Verified) -> None:
    """Open the fold, with its line."""
    self.body.append(
        '<details class="hide above-input tfbook-verified">\n<summary><span class="tfbook-tick" '
        f'aria-hidden="true">✓</span> <span>{escape(node["line"])}</span></summary>\n<noscript>'
    )


def visit_fold(self: Any, node: HideCodeCellNode) -> None:
    """Open a fold of code or outputs, with its line."""
    classes = " ".join(["hide", *node["classes"]])
    lines = (("collapsed", node["prompt_show"]), ("expanded", node["prompt_hide"]))
    told = "".join(f'<span class="{state}">{escape(line)}</span>' for state, line in lines)
    self.body.append(f'<details class="{classes}">\n<summary>{told}</summary>\n<noscript>')


def depart_fold(self: Any, node: nodes.Element) -> None:
    """Close the fold."""
    self.body.append("</noscript></details>\n")


class Folds(SphinxPostTransform):
    """Fold verifications, and join folds between which nothing is seen."""

    default_priority = 190  # when outputs are what the page shows; myst-nb folds cells at 199
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Go through all places where cells stand."""
        parents = {id(cell.parent): cell.parent for cell in self.document.findall(_is_cell)}
        for parent in parents.values():
            fold_cells(parent)


def fold_cells(parent: nodes.Element) -> None:
    """Fold the cells among the children of a node, in place."""
    run: list[nodes.container] = []
    for child in [*parent.children, None]:
        if isinstance(child, UNSEEN) or (_is_cell(child) and not child.children):
            continue
        inside, shown = parts(child) if _is_cell(child) else ([], [child])
        if inside:
            run.append(child)
        if shown:
            if len(run) > 1 or (run and VERIFY in run[0]["classes"]):
                _join(run)
            run = []


def _is_cell(node: Any) -> bool:
    return isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"


def parts(cell: nodes.container) -> tuple[list[nodes.Node], list[nodes.Node]]:
    """Return what a cell folds and what it shows; of a verification the claims come first."""
    if VERIFY in cell["classes"]:
        return cell.children[::-1], []
    has_code = cell.children[0].get("nb_element") == "cell_code_source"
    if has_code and cell.get("hide_mode") == "all":
        return list(cell.children), []
    if has_code and cell.get("hide_mode") == "input":
        return cell.children[:1], cell.children[1:]
    return [], list(cell.children)


def _join(run: list[nodes.container]) -> None:
    """Put all that a run of cells folds into one fold, in the last of the cells."""
    *others, last = run
    inside = [part for cell in run for part in parts(cell)[0]]
    shown = parts(last)[1]
    fold: nodes.Element = HideCodeCellNode(classes=["above-input"])
    if any(VERIFY in cell["classes"] for cell in run):
        raw = "".join(node.astext() for part in inside for node in part.findall(nodes.raw))
        code = ", and the code" if shown else ""  # of what is seen below
        fold = Verified(line=f"{len(CLAIM.findall(raw))} verified{code}")
    else:
        fold["prompt_show"], fold["prompt_hide"] = last["prompt_show"], last["prompt_hide"]
    for cell in others:
        cell.parent.remove(cell)
    last.children = []
    last.attributes.pop("hide_mode", None)
    fold += inside
    last += [fold, *shown]


def setup(app: Sphinx) -> None:
    """Register the fold and the transform."""
    app.add_node(Verified, html=(visit_verified, depart_fold))
    app.add_node(HideCodeCellNode, override=True, html=(visit_fold, depart_fold))
    app.add_post_transform(Folds)
