"""What an experiment shows is folded until the reader has said what it will show.

    {"tfbook": {"predict": "without-scale"}}      metadata of the experiment's cell

The outputs stand in a `<details>` of that name, which the card of `predict("without-scale")` opens
when the prediction is kept. Without JavaScript the reader does.
"""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

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
            slug = (cell.get("cell_metadata") or {}).get("tfbook", {}).get("predict")
            shown = [c for c in cell.children if c.get("nb_element") == "cell_code_output"]
            if cell.get("nb_element") == "cell_code" and slug and shown:
                fold = Prediction(slug=slug)
                cell.replace(shown[0], fold)
                fold += shown[0]
