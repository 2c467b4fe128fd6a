"""What an experiment shows is folded until the reader has said what it will show.

    {"tfbook": {"predict": "without-scale"}}      metadata of the experiment's cell

The outputs stand in a `<details>` of that name, which the card of `predict("without-scale")` opens
when the prediction is kept. Without JavaScript the reader does. Cells with folded code that follow
at once, before the text goes on, draw and state what the experiment showed: they stand in it, too,
and so does the paragraph that reads it, which would give the answer away, with the claims behind
it. A paragraph that leads on, to a formula, a figure or a question, stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import takewhile
from typing import Any

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.transforms.post_transforms import SphinxPostTransform

from book.tools.folds import UNSEEN, Verified

CLOSED, OPEN = "Predict first, then see what happens", "What happens"


class Prediction(nodes.General, nodes.Element):
    """The outputs of an experiment whose result is to be predicted."""


def visit(self: Any, node: Prediction) -> None:
    """Begin the fold, with a line for when it is closed and one for when it is open."""
    self.body.append(
        f'<details class="hide tfbook-prediction" data-predict="{escape(node["slug"])}">\n<summary>'
        f'<span class="collapsed">{CLOSED}</span><span class="expanded">{OPEN}</span></summary>\n'
    )


def depart(self: Any, node: Prediction) -> None:
    """End the fold."""
    self.body.append("</details>\n")


class FoldPredictions(SphinxPostTransform):
    """Wrap the outputs of the cells that name a prediction."""

    default_priority = 198  # before myst-nb folds what the tags of a cell fold
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Fold the outputs of each such cell of the page."""
        for cell in list(self.document.findall(nodes.container)):
            slug = _asked(cell)
            shown = [c for c in cell.children if c.get("nb_element") == "cell_code_output"]
            if cell.get("nb_element") == "cell_code" and slug and shown:
                fold = Prediction(slug=slug)
                followers = [*_followers(cell)]  # before the tree changes
                followers += _reading(followers[-1] if followers else cell)
                cell.replace(shown[0], fold)
                fold += shown[0]
                for follower in followers:
                    follower.parent.remove(follower)
                    fold += follower


def _followers(cell: nodes.Element) -> Iterator[nodes.container]:
    """Yield the cells behind a cell whose code is folded, up to what else is seen."""
    siblings = cell.parent.children
    for node in siblings[siblings.index(cell) + 1 :]:
        if isinstance(node, UNSEEN):
            continue
        if not (isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"):
            return
        if not node.children:
            continue  # what it showed stands in another
        if not _folds(node) or _asked(node):
            return
        if any("tfbook-explorable" in raw.astext() for raw in node.findall(nodes.raw)):
            return  # what the reader moves is no result
        yield node


def _reading(last: nodes.container) -> list[nodes.Element]:
    """Return the paragraph behind a result, if it ends with a full stop, and its claims."""
    siblings = last.parent.children
    for node in siblings[siblings.index(last) + 1 :]:
        empty = isinstance(node, nodes.container) and not node.children
        if not empty and not isinstance(node, UNSEEN):
            said = isinstance(node, nodes.paragraph) and node.astext().rstrip(")”\" ").endswith(".")
            return [node, *takewhile(_claims, _followers(node))] if said else []
    return []


def _claims(cell: nodes.container) -> bool:
    """Return whether a cell shows nothing but what it claims."""
    shown = [c for c in cell.findall(nodes.container) if c.get("nb_element") == "cell_code_output"]
    parts = [part for output in shown for part in output.children]
    return bool(parts) and all(
        isinstance(part, nodes.raw | nodes.container) and "tfbook-claim" in part.astext()
        for part in parts
    )


def _asked(cell: nodes.container) -> str | None:
    """Return the name of the prediction that a cell is about."""
    return (cell.get("cell_metadata") or {}).get("tfbook", {}).get("predict")


def _folds(cell: nodes.container) -> bool:
    return cell.get("hide_mode") in ("input", "all") or isinstance(
        cell.children[0], Verified | HideCodeCellNode
    )
