"""Where outputs name code of the package, the page leads to its documentation.

A notebook links to the file, `<a class="tfbook-source" href="../tfbook/…" title="tfbook.…">`, which
JupyterLab opens. The page has no such file, but a page for each room, with what the doors name; of
an experiment it has the code. A name that is documented nowhere leads to its module.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

LOG = logging.getLogger(__name__)
LINK = re.compile(
    r'<a class="tfbook-source" href="[^"]*" title="(?P<name>[\w.]+)">(?P<text>.*?)</a>'
)
EXPERIMENTS = "tfbook.experiments."


def code_of(experiment: str) -> str:
    """Return the anchor of an experiment's code on the page of its room."""
    return f"code-of-{experiment.replace('_', '-')}"


class CodeLinks(SphinxPostTransform):
    """Lead the links of outputs to the pages of the package."""

    default_priority = 195
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Turn the links of all outputs."""
        documented = self.env.get_domain("py").objects

        def turn(match: re.Match) -> str:
            entry = find(match["name"], documented)
            if entry is None:
                if any(page.startswith("book/api/") for page in self.env.found_docs):
                    LOG.warning("%s is documented nowhere", match["name"], location=self.document)
                return match["text"]
            page = self.app.builder.get_relative_uri(self.env.docname, entry[0])
            return f'<a class="tfbook-source" href="{page}#{entry[1]}">{match["text"]}</a>'

        for raw in self.document.findall(nodes.raw):
            if "tfbook-source" in raw.astext():
                raw.children = [nodes.Text(LINK.sub(turn, raw.astext()))]


def find(name: str, documented: dict) -> tuple[str, str] | None:
    """Return page and anchor of a name, or of the nearest thing around it that has one."""
    while "." in name and name not in documented:
        name = name.rpartition(".")[0]
    if name not in documented:
        return None
    page, anchor = documented[name].docname, documented[name].node_id
    inside = name.removeprefix(EXPERIMENTS)
    return page, code_of(inside) if inside != name and "." not in inside else anchor


def setup(app: Sphinx) -> None:
    """Register the transform."""
    app.add_post_transform(CodeLinks)
