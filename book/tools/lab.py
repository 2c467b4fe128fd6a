"""Open the book in JupyterLab: the reader's own copies, and a page to start from.

    python book/tools/lab.py [OPTIONS OF JUPYTERLAB ...]

The notebooks of `chapters/` are copied to `work/`, which git ignores. A copy that the reader has
changed is never written again: when the book has a newer version, that is put beside it, as
`02_attention_2.ipynb`. To get a fresh copy, delete or rename yours. JupyterLab finds defaults in
`book/lab`; the reader's own settings stay as they are, and come first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from book.tools import notebooks  # noqa: E402

CHAPTERS, WORK, SETTINGS = ROOT / "chapters", ROOT / "work", ROOT / "book" / "lab"
VERSIONS = ".versions.json"
START = "index.ipynb"
# What a kernel says about itself. JupyterLab writes it into each notebook that it opens; where it
# stands there already, opening a notebook changes nothing.
LANGUAGE = notebooks.LANGUAGE | {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "mimetype": "text/x-python",
    "nbconvert_exporter": "python",
    "version": ".".join(map(str, sys.version_info[:3])),
}
INTRODUCTION = """\
# The Executable Transformer

Choose a chapter. What opens is **your own copy**, in the folder `work`: run it, change it, write \
into it. A new version of the book never overwrites a copy that you changed; it is put beside it, \
and this page leads to the newest. For a fresh copy, delete or rename yours and start again."""
LABS = """\
Whole tasks: empty steps to fill in, a check for each, a table of points. The solved notebook is \
for afterwards."""
PROGRESS = """\
## Your progress

Which exercises have passed their check, on this machine. Run the cell below (Shift+Enter) to \
bring the table up to date."""


def prepare(chapters: Path, work: Path) -> dict[str, str]:
    """Copy the notebooks to where the reader works, and write the page to start from.

    Returns:
        The name of each notebook in `chapters` → the name of its newest copy in `work`.
    """
    work.mkdir(exist_ok=True)
    kept = work / VERSIONS
    versions = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for path in sorted([*chapters.glob("*.ipynb"), *chapters.glob("start/*.ipynb")]):
        name = path.relative_to(chapters).as_posix()
        source = digest(path.read_text(encoding="utf-8"))
        before = versions.get(name, {})
        if before.get("source") == source and (work / before["copy"]).exists():
            continue
        copy, text = place(work, name, before), own_copy(path)
        copy.parent.mkdir(exist_ok=True)
        notebooks.replace(text, copy)
        where = copy.relative_to(work).as_posix()
        versions[name] = {"copy": where, "made": digest(text), "source": source}
        notebooks.replace(json.dumps(versions, indent=1) + "\n", kept)
    copies = {name: entry["copy"] for name, entry in versions.items() if (chapters / name).exists()}
    notebooks.write(start_page(chapters, copies), work / START)
    return copies


def place(work: Path, name: str, before: dict) -> Path:
    """Return where a copy goes: over the last one, unless that is the reader's by now."""
    if before:
        last = work / before["copy"]
        if last.exists() and digest(last.read_text(encoding="utf-8")) == before["made"]:
            return last
    free, number = work / name, 2
    while free.exists():
        free, number = (work / name).with_stem(f"{Path(name).stem}_{number}"), number + 1
    return free


def digest(text: str) -> str:
    """Return a fingerprint of a text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def own_copy(path: Path) -> str:
    """Return a notebook as this machine's kernel would leave it on opening."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["metadata"]["language_info"] = LANGUAGE
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def start_page(chapters: Path, copies: dict[str, str]) -> nbformat.NotebookNode:
    """Return the notebook that lists what there is to read, and what has been passed."""
    from tfbook.teaching import progress

    lines = questions()
    rows = ["| | chapter | what it answers |", "|-:|:-|:-|"]
    labs = ["| | | |", "|:-|:-|:-|"]
    for name, copy in copies.items():
        if "/" in name:
            continue
        stem = Path(name).stem
        link = f"[{title(chapters / name)}]({copy})"
        if stem[0].isdigit():
            number = "" if stem.endswith("_deeper") else str(int(stem.partition("_")[0]))
            rows.append(f"| {number} | {link} | {lines.get(stem, 'For a second reading')} |")
        else:
            begin = f"[{title(chapters / name)}]({copies.get(f'start/{name}', copy)})"
            labs.append(f"| {begin} | {lines.get(stem, '')} | [solved]({copy}) |")
    table = progress()
    shown = nbformat.v4.new_output("execute_result", table._repr_mimebundle_(), execution_count=1)
    code = nbformat.v4.new_code_cell(
        "from tfbook.teaching import progress\n\nprogress()",
        id="progress-table", execution_count=1, outputs=[shown],
    )  # fmt: skip
    texts = {
        "welcome": INTRODUCTION,
        "chapters": "## Chapters\n\n" + "\n".join(rows),
        "labs": f"## Labs and projects\n\n{LABS}\n\n" + "\n".join(labs),
        "progress": PROGRESS,
    }
    cells = [nbformat.v4.new_markdown_cell(text, id=name) for name, text in texts.items()]
    metadata = {"kernelspec": notebooks.KERNELSPEC, "language_info": LANGUAGE}
    return nbformat.v4.new_notebook(cells=[*cells, code], metadata=metadata)


def title(path: Path) -> str:
    """Return the heading that a notebook begins with."""
    (first, *_) = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return re.match(r"# (.*)", "".join(first["source"]))[1].strip()


def questions() -> dict[str, str]:
    """Read from the book's first page what each chapter, lab and project is about."""
    text = (ROOT / "book" / "welcome.md").read_text(encoding="utf-8")
    chapters = re.findall(r"(?m)^(\d\d_\w+): (.*)$", text)
    labs = re.findall(r"chapters/((?:lab|project)_\w+)(?:\.ipynb)?[>)]`?: *(.*)", text)
    return {name: line[:1].upper() + line[1:].replace("|", "\\|") for name, line in chapters + labs}


def options(root: Path, work: Path) -> list[str]:
    """Return the options of JupyterLab: where the files are, and what opens first."""
    page = (work / START).relative_to(root).as_posix()
    return [
        f"--ServerApp.root_dir={root}",
        f"--ServerApp.preferred_dir={work}",
        f"--LabApp.default_url=/lab/tree/{page}",
        "--LabApp.extension_manager=readonly",
    ]


def environment() -> dict[str, str]:
    """Return the environment of JupyterLab: the book's defaults beside the reader's settings."""
    before = os.environ.get("JUPYTER_CONFIG_PATH")
    found = [str(SETTINGS), before] if before else [str(SETTINGS)]
    return os.environ | {"JUPYTER_CONFIG_PATH": os.pathsep.join(found)}


def main(arguments: list[str]) -> int:
    """Make the copies and run JupyterLab until it is ended."""
    prepare(CHAPTERS, WORK)
    command = [sys.executable, "-m", "jupyterlab", *options(ROOT, WORK), *arguments]
    try:
        return subprocess.run(command, env=environment(), check=False).returncode
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
