"""Verifications become one line of the page; folds with nothing between them become one."""

import copy

import pytest
from docutils import nodes

from book.tools import folds

CLAIM = '<div class="tfbook-claim" id="claim-a">✓</div>'
# What a cell is, how it is tagged, and how many claims its output holds (None: no output).
KINDS = {
    "open": ({}, 0),
    "code": ({"hide_mode": "input"}, None),
    "drawn": ({"hide_mode": "input"}, 0),
    "hidden": ({"hide_mode": "all"}, 1),
    "verify": ({"classes": ["tag_verify"]}, 2),
    "output": ({"hide_mode": "output"}, 0),
    "empty": None,
}


def cell(kind, number):
    prompts = {"prompt_show": "Show the code", "prompt_hide": "Hide the code"}
    if KINDS[kind] is None:
        return nodes.container(nb_element="cell_code")
    marks, claims = copy.deepcopy(KINDS[kind])
    made = nodes.container(nb_element="cell_code", **(prompts if "hide_mode" in marks else {}))
    made.update_all_atts(marks, replace=True)
    source = nodes.container("", nodes.literal_block("", f"in{number}"))
    source["nb_element"] = "cell_code_source"
    made += source
    if claims is not None:
        text = CLAIM * claims if claims else "<p>"
        output = nodes.container("", nodes.raw("", f"{text}out{number}", format="html"))
        output["nb_element"] = "cell_code_output"
        made += output
    return made


def seen(node):
    """The order of inputs and outputs, folds in brackets with their line."""
    if isinstance(node, folds.Verified | folds.HideCodeCellNode):
        line = node.get("line", node.get("prompt_show"))
        return f"[{line}: {' '.join(map(seen, node.children))}]"
    if isinstance(node, nodes.literal_block):
        return node.astext()
    if isinstance(node, nodes.raw):
        return node.astext().rpartition(">")[2]
    if isinstance(node, nodes.paragraph):
        return "text"
    return " ".join(filter(None, map(seen, node.children)))


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [
        ("verify", "[2 verified: out0 in0]"),
        ("verify verify", "[4 verified: out0 in0 out1 in1]"),
        ("verify text verify", "[2 verified: out0 in0] text [2 verified: out2 in2]"),
        ("verify comment empty verify", "[4 verified: out0 in0 out3 in3]"),
        ("code verify", "[2 verified: in0 out1 in1]"),
        ("hidden verify", "[3 verified: in0 out0 out1 in1]"),
        ("verify drawn", "[2 verified, and the code: out0 in0 in1] out1"),
        ("drawn verify", "in0 out0 [2 verified: out1 in1]"),
        ("code code drawn drawn", "[Show the code: in0 in1 in2] out2 in3 out3"),
        ("hidden code open", "[Show the code: in0 out0 in1] in2 out2"),
        ("open output open", "in0 out0 in1 out1 in2 out2"),
    ],
)
def test_folds_with_nothing_between_them_are_one(kinds, shown):
    made = {"text": nodes.paragraph("", "text"), "comment": nodes.comment("", "x")}
    section = nodes.section()
    section += [made.get(k) or cell(k, n) for n, k in enumerate(kinds.split())]
    folds.fold_cells(section)
    section.children = [c for c in section.children if not isinstance(c, nodes.comment)]
    assert seen(section) == shown


def test_one_fold_of_code_is_left_to_myst_nb():
    for kind in ("code", "drawn", "hidden"):
        section = nodes.section()
        section += cell(kind, 0)
        folds.fold_cells(section)
        assert section.children[0]["hide_mode"] and len(section.children[0].children) < 3
    section = nodes.section()
    section += [cell("code", 0), cell("drawn", 1)]
    folds.fold_cells(section)
    assert "hide_mode" not in section.children[0].attributes
