"""Every committed notebook is in its normal form, without errors, warnings, addresses, weight."""

import ast
import base64
import copy
import functools
import json
import re

import nbformat
import pytest
from repofiles import ROOT, findings

from book.tools import notebooks
from book.tools.conventions import Reader
from book.tools.index import claims_of
from book.tools.targets import FENCE

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
EVERY = sorted((ROOT / "chapters").rglob("*.ipynb"))
CHAPTER_BYTES = 3_000_000
IMAGE_BYTES = 150_000
CODE_LINES = 25
TIMING = "nbval-ignore-output"
TAGS = {"hide-input", "hide-cell", "hide-output", "remove-input", "verify", TIMING}
# A path, an address in memory, or a warning has no business in a published output.
MACHINE = re.compile(
    "|".join(
        [r"/ho" + r"me/", r"/Us" + r"ers/", r"/wo" + r"rk/", r"/t" + r"mp/", r"/ro" + r"ot/"]
        + [r"(?<![A-Za-z])[A-Z]:\\", r"site-" + r"packages", r"\bat 0x[0-9a-f]{6,}", r"\bWarning\b"]
        + [r"<ipython-input"]
    )
)
ALT_PLACEHOLDERS = {"plot", "figure", "image", "picture", "plot output", "graph", "chart"}
FORBIDDEN = re.compile(r"\b(?:interact|interactive|interactive_output|widgets\.Output|Output)\s*\(")
MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\(")
HTML_IMAGE = re.compile(r"<img\b[^>]*>", re.I)
# What only MyST reads. Code and formulas are taken out before, but no role, which ends in code.
CODE_OR_FORMULA = re.compile(
    rf"{FENCE}|(?<!`)(?<!\}})(?P<tick>`+)(?!`).*?(?<!`)(?P=tick)(?!`)|\$\$.*?\$\$|\$[^$]*\$",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
ONLY_MYST = {
    "a directive": r"^[ >]*(?:`{3,}|~{3,}) *\{|^[ >]*:{3,}",
    "a role": r"\{[\w:+-]+\}`",
    "a label": r"^\([^()\n]+\)= *$|\$\$ *\([\w:.-]+\) *$",
    "attributes": r"\{ *[#.][\w-][^{}\n]*\}",
    "a substitution": r"\{\{[^{}\n]+\}\}",
    "a comment": r"^%",
    "a break": r"^\+\+\+",
}


@functools.cache
def read(path):
    """A notebook; nobody changes it."""
    return nbformat.read(path, as_version=4)


def code(path):
    return [(n, cell) for n, cell in enumerate(read(path).cells) if cell.cell_type == "code"]


def outputs(path):
    return [(number, output) for number, cell in code(path) for output in cell.outputs]


def tags(cell):
    return set(cell.metadata.get("tags", ()))


# Each of these looks at one notebook and yields what is wrong with it.


def normal_form(path):
    """The form `make notebooks` writes: ids, counts, kernel, no timestamps, no widget states."""
    nbformat.validate(read(path))
    normal = nbformat.writes(notebooks.normalise(copy.deepcopy(read(path)))).rstrip("\n") + "\n"
    if path.read_text(encoding="utf-8") != normal:
        yield f"not in its normal form: run `make notebooks CHAPTER={path.stem}`"


def cell_ids(path):
    names = [cell.get("id") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    if not all(names) or len(names) != len(set(names)):
        yield "a cell has no id, or two have the same"


def order(path):
    if [cell.execution_count for _, cell in code(path)] != list(range(1, len(code(path)) + 1)):
        yield "did not run from top to bottom"


def kernel(path):
    if read(path).metadata.kernelspec.name != "python3":
        yield "does not run on the kernel that everyone has"


def complaints(path):
    yield from notebooks.complaints(read(path))


def machines_and_warnings(path):
    for number, output in outputs(path):
        data = output.get("data", {})
        texts = [output.get("text", "")] + [v for k, v in data.items() if k.startswith("text/")]
        for found in filter(None, map(MACHINE.search, texts)):
            yield f"cell {number}: {found[0]!r} in an output"


def widget_views(path):
    for number, output in outputs(path):
        views = [kind for kind in output.get("data", {}) if "widget" in kind]
        if views:
            yield f"cell {number}: stores {views}"


def no_text_form(path):
    for number, output in outputs(path):
        if "data" in output and not output.data.get("text/plain"):
            yield f"cell {number}: an output without a text form"


def pictures(path):
    """Each picture is light and says what it shows."""
    for number, output in outputs(path):
        for kind, content in output.get("data", {}).items():
            if not kind.startswith("image/"):
                continue
            size = len(content) if kind.endswith("svg+xml") else len(base64.b64decode(content))
            if size > IMAGE_BYTES:
                yield f"cell {number}: a picture of {size:,} bytes"
            alt = output.metadata.get(kind, {}).get("alt", "").strip()
            if len(alt) < 25 or alt.lower() in ALT_PLACEHOLDERS:
                yield f"cell {number}: a picture without alternative text"


def markdown_images(path):
    for number, cell in enumerate(read(path).cells):
        if cell.cell_type != "markdown":
            continue
        alts = MARKDOWN_IMAGE.findall(cell.source)
        for image in HTML_IMAGE.findall(cell.source):
            found = re.search(r'alt="([^"]*)"', image)
            alts.append(found[1] if found else "")
        if any(len(alt) < 25 for alt in alts):
            yield f"cell {number}: an image without alternative text"


def weight(path):
    if path.stat().st_size > CHAPTER_BYTES:
        yield f"has {path.stat().st_size:,} bytes"


def left_out(path):
    """Few outputs are left out of the comparison, by a tag, and none of a claim."""
    timings = [number for number, cell in code(path) if TIMING in tags(cell)]
    if len(timings) * 8 > len(code(path)):
        yield f"cells {timings} are left out of the comparison: too many"
    for number, cell in code(path):
        if any(mark in cell.source for mark in ("NBVAL_", "PYTEST_VALIDATE")):
            yield f"cell {number}: use a tag instead"
        if TIMING in tags(cell) and re.search(r"\bclaim\(", cell.source):
            yield f"cell {number}: a claim is left out of the comparison"


def unknown_tags(path):
    for number, cell in enumerate(read(path).cells):
        if tags(cell) - TAGS:
            yield f"cell {number}: unknown tags {tags(cell) - TAGS}"


def sources(path):
    """Code is short, has no widget that hangs or is dead in a page, needs no network and no GPU."""
    for number, cell in code(path):
        if FORBIDDEN.search(cell.source):
            yield f"cell {number} uses interact or Output"
        lines = len(cell.source.removeprefix(says(cell)).splitlines())
        if lines > CODE_LINES:
            yield f"cell {number} has {lines} lines: move code to tfbook"
        needs = r"^\s*[!%]|\burlopen\b|\brequests\.|\.cuda\(\)"
        found = re.search(needs, cell.source, re.M)
        if found:
            yield f"cell {number}: {found[0]!r}"


def says(cell):
    """The first line of a folded cell, which JupyterLab shows in place of the code."""
    if "verify" in tags(cell):
        claims = len(claims_of(cell.source)[0])
        return f"# Folded: {claims} verification{'s' if claims > 1 else ''}.\n"
    drawn = any(kind.startswith("image/") for o in cell.outputs for kind in o.get("data", {}))
    return f"# Folded: the code of the {'figure' if drawn else 'output'} below.\n"


def folds(path):
    """Code that the page folds is folded in JupyterLab, and says so."""
    for number, cell in code(path):
        wanted = {name for tag in tags(cell) for name in notebooks.FOLDS.get(tag, ())}
        if missing := wanted - set(cell.metadata.get("jupyter", {})):
            yield f"cell {number} is folded in the page, but has no {sorted(missing)}"
        if tags(cell) & {"hide-input", "verify"} and not cell.source.startswith(says(cell)):
            yield f"cell {number} does not begin with {says(cell)!r}"


def verifications(path):
    """What a verification shows is folded with it: claims, and nothing else."""
    for number, cell in code(path):
        shown = [output.get("data", {}).get("text/html", "") for output in cell.outputs]
        claims = [html for html in shown if 'class="tfbook-claim"' in html]
        if "verify" in tags(cell) and not len(claims) == len(shown) > 0:
            yield f"cell {number}: verifies, and shows {len(claims)} claims of {len(shown)}"


def by_the_way(path):
    """The value of a last line is shown where it says something, not what a drawing returned."""
    drawn = re.compile(r"Place\(|\[?<matplotlib|Text\(|\[?<Axes")
    called = re.compile(r"tensor\(|<generator|<torch|dict_|\[?History")
    for number, cell in code(path):
        shown = [str(output.get("data", {}).get("text/plain", "")) for output in cell.outputs]
        last = (ast.parse(cell.source).body or [None])[-1]
        acts = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)
        if any(map(drawn.match, shown)) or acts and any(map(called.match, shown)):
            yield f"cell {number} shows what its last line returned: {shown[-1][:30]}"


def seeds(path):
    """Set once."""
    seed = re.compile(r"^torch\.manual_seed\(", re.M)
    found = [number for number, cell in code(path) if seed.search(cell.source)]
    if len(found) > 1:
        yield f"cells {found} set the seed"


def only_myst(path):
    """The Markdown is what every host shows: no role, no directive, no label of MyST."""
    for number, cell in enumerate(read(path).cells):
        if cell.cell_type != "markdown":
            continue
        for name, pattern in ONLY_MYST.items():
            whole = name in ("a directive", "a label")
            text = cell.source if whole else CODE_OR_FORMULA.sub("$$", cell.source)
            if found := re.search(pattern, text, re.M):
                yield f"cell {number}: {name} of MyST, {found[0]!r}"


def conventions(path):
    """Citations, links, equations, exercises, solutions: all lead somewhere and count right."""
    reader = Reader(path, ROOT)
    reader.read(copy.deepcopy(read(path)))
    yield from reader.complaints


def open_solutions(path):
    """The code of a solution is folded in JupyterLab too."""
    for number, cell in code(path):
        solves = isinstance(cell.metadata.get("tfbook", {}).get("solution"), str)
        folded = cell.metadata.get("jupyter", {})
        if solves and not (folded.get("source_hidden") and folded.get("outputs_hidden")):
            yield f"cell {number}: a solution lies open"


def others_passes(path):
    """A solution of the book counts as nobody's, what the reader writes as theirs."""
    for number, cell in code(path):
        solves = bool(cell.metadata.get("tfbook", {}).get("solution"))
        calls = re.findall(r"(?m)^check\(.*$", cell.source)
        if any(("record=False" in call) is not solves for call in calls):
            yield f"cell {number}: a check has record=False in solutions, and nowhere else"


LOOKS = (
    normal_form, cell_ids, order, kernel, complaints, machines_and_warnings, widget_views,
    no_text_form, pictures, markdown_images, weight, left_out, unknown_tags, sources, folds,
    verifications, by_the_way, seeds, conventions, open_solutions, others_passes,
)  # fmt: skip


def test_there_is_a_chapter():
    assert CHAPTERS


@pytest.mark.parametrize("look", LOOKS)
def test_notebooks_are_as_they_should_be(look):
    assert findings(CHAPTERS, look) == []


def test_every_host_can_show_the_markdown():
    assert len(EVERY) > len(CHAPTERS) and findings(EVERY, only_myst) == []


def _cell(source="x", outputs=(), **metadata):
    return nbformat.v4.new_code_cell(
        source, execution_count=1, outputs=list(outputs), metadata=metadata
    )


def _shown(data, marks=None):
    return _cell(outputs=[nbformat.v4.new_output("display_data", data, metadata=marks or {})])


def _text(source):
    return nbformat.v4.new_markdown_cell(source)


HEAVY = base64.b64encode(b"x" * (IMAGE_BYTES + 1)).decode()
SAYS = {"image/png": {"alt": "A line that rises from zero to one and stays."}}
CLAIM = "claim('a', 'S.', x, 1)\n"
LINE, SAID = (
    nbformat.v4.new_output("display_data", {"text/html": html, "text/plain": "x"})
    for html in ('<div class="tfbook-claim"></div>', "<p>")
)
VERIFY = {"tags": ["verify"], "jupyter": {"source_hidden": True, "outputs_hidden": True}}
PLANTED = [
    (order, [_cell(), _cell()], "from top to bottom"),
    (complaints, [_cell(outputs=[nbformat.v4.new_output("error", ename="E", evalue="v")])], "E"),
    (machines_and_warnings, [_shown({"text/plain": "at 0x7f00deadbeef"})], "0x7f00"),
    (widget_views, [_shown({"application/vnd.jupyter.widget-view+json": {}})], "widget-view"),
    (no_text_form, [_shown({"image/png": ""})], "text form"),
    (pictures, [_shown({"image/png": HEAVY, "text/plain": "x"}, SAYS)], "bytes"),
    (pictures, [_shown({"image/png": "", "text/plain": "x"})], "alternative text"),
    (markdown_images, [nbformat.v4.new_markdown_cell("![plot](a.png)")], "alternative text"),
    (markdown_images, [nbformat.v4.new_markdown_cell("<img src='a.png'>")], "alternative text"),
    (left_out, [_cell(tags=[TIMING])], "too many"),
    (left_out, [_cell("claim(1)", tags=[TIMING]), *[_cell()] * 8], "a claim is left out"),
    (left_out, [_cell("# NBVAL_SKIP")], "use a tag"),
    (unknown_tags, [_cell(tags=["remove-all"])], "remove-all"),
    (sources, [_cell("interact(f)")], "interact"),
    (sources, [_cell("x\n" * (CODE_LINES + 1))], "26 lines"),
    (sources, [_cell("!ls")], "'!'"),
    (others_passes, [_cell("check('a', f)", tfbook={"solution": "ex-a"})], "record=False in"),
    (others_passes, [_cell("check('a', f, record=False)")], "nowhere else"),
    (folds, [_cell("x", tags=["remove-input"])], "no ['source_hidden']"),
    (folds, [_cell("x", tags=["hide-input"], jupyter={"source_hidden": True})], "does not begin"),
    (folds, [_cell(f"# Folded: 1 verification.\n{CLAIM * 2}", **VERIFY)], "Folded: 2 verif"),
    (verifications, [_cell(CLAIM, [SAID], **VERIFY)], "shows 0 claims of 1"),
    (verifications, [_cell(CLAIM, **VERIFY)], "shows 0 claims of 0"),
    (verifications, [_cell(CLAIM, [LINE, SAID], **VERIFY)], "shows 1 claims of 2"),
    (by_the_way, [_shown({"text/plain": "Place(x=9.9, y=4.5)"})], "last line returned"),
    (seeds, [_cell("torch.manual_seed(0)"), _cell("torch.manual_seed(1)")], "[0, 1]"),
    (weight, [nbformat.v4.new_markdown_cell("x" * CHAPTER_BYTES)], "bytes"),
    (normal_form, [_cell(extra=1)], "normal form"),
    (conventions, [_text("[a](#b)")], "no heading"),
    (open_solutions, [_cell(tfbook={"solution": "ex-a"}, jupyter={"source_hidden": True})], "open"),
    (only_myst, [_text("See {term}`x`.")], "a role"),
    (only_myst, [_text("`a` {py:func}`~x.y` and $x$")], "a role"),
    (only_myst, [_text("> ```{note} A\n> ```")], "a directive"),
    (only_myst, [_text(":::{note}\nA\n:::")], "a directive"),
    (only_myst, [_text("(here)=\n# A")], "a label"),
    (only_myst, [_text("$$\nx\n$$ (eq:x)")], "a label"),
    (only_myst, [_text("# A {#here}")], "attributes"),
    (only_myst, [_text("A {{ word }}.")], "a substitution"),
]


FINE = r"""`a {b}`, $\text{a}$`b`, $x_{#1}$, ``{`x`}``, {1, 2}, a (b)

```python
d = {"a": 1}  # {role}`x`
```
$$
x_{a} \tag{2.1}
$$
"""


def test_braces_of_code_and_formulas_are_no_fault(tmp_path):
    path = tmp_path / "a.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[_text(FINE)]), path)
    assert list(only_myst(path)) == []


@pytest.mark.parametrize(("look", "cells", "words"), PLANTED)
def test_a_planted_fault_is_found(tmp_path, look, cells, words):
    path = tmp_path / "01_x.ipynb"
    kernelspec = {"name": "python3", "display_name": "Python 3"}
    cells = [copy.deepcopy(cell) | {"id": f"c{n}"} for n, cell in enumerate(cells)]
    made = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernelspec})
    path.write_text(json.dumps(made), encoding="utf-8")
    (found,) = look(path)
    assert words in found


def test_verifications_that_are_folded_and_say_so_are_no_fault(tmp_path):
    path = tmp_path / "a.ipynb"
    cell = _cell(f"# Folded: 2 verifications.\n{CLAIM * 2}", [LINE, LINE], **VERIFY)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    assert [*folds(path), *verifications(path), *unknown_tags(path)] == []
