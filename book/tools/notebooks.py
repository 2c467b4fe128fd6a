"""Run the chapters afresh and store their outputs in one normal form.

    python book/tools/notebooks.py [CHAPTER ...]

Each notebook runs in a new kernel, in its own folder. Cell ids stay, execution counts run from
1, widget views and states, timestamps and versions go; so two runs give the same bytes for
everything that is not a timing. A cell that fails or warns leaves the file as it was.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbclient
import nbformat
from nbformat import NotebookNode

CHAPTERS = Path(__file__).resolve().parent.parent.parent / "chapters"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "name": "python", "pygments_lexer": "ipython3"}
# What a cell's metadata may keep: how it is shown and tested, and what it treats.
KEPT = ("mystnb", "tags", "tfbook")
# What JupyterLab folds: what these tags fold in the page. Other cells may say so by themselves.
FOLDS = {
    "hide-input": ("source_hidden",),
    "remove-input": ("source_hidden",),
    "hide-output": ("outputs_hidden",),
    "hide-cell": ("source_hidden", "outputs_hidden"),
    "verify": ("source_hidden", "outputs_hidden"),
}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_SECONDS = 600
START_SECONDS = 180


class NotebookError(Exception):
    """A notebook cannot be published as it is."""


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Bring a notebook into the form in which it is committed, in place."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNELSPEC, "language_info": LANGUAGE}
        | {key: notebook.metadata[key] for key in ("tfbook",) if key in notebook.metadata}
    )
    seen: set[str] = set()
    count = 0
    for number, cell in enumerate(notebook.cells):
        cell.id = _unique(cell.get("id") or f"cell-{number}", seen)
        cell.source = cell.source.rstrip()
        metadata = {key: cell.metadata[key] for key in KEPT if cell.metadata.get(key)}
        if folded := _folded(cell):
            metadata["jupyter"] = dict.fromkeys(folded, True)
        cell.metadata = nbformat.from_dict(metadata)
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            cell.outputs = _outputs(cell.outputs, count)
    return notebook


def _folded(cell: NotebookNode) -> list[str]:
    """Return what JupyterLab folds of a cell, in the words of its metadata."""
    marked = cell.metadata.get("jupyter", {})
    found = {name for name in ("source_hidden", "outputs_hidden") if marked.get(name)}
    if cell.cell_type == "code":
        found.update(*(FOLDS.get(tag, ()) for tag in cell.metadata.get("tags", ())))
        if cell.metadata.get("tfbook", {}).get("predict"):
            found.add("outputs_hidden")  # running the cell shows them
    return sorted(found)


def _unique(name: str, seen: set[str]) -> str:
    candidate, number = name, 2
    while candidate in seen:
        candidate, number = f"{name}-{number}", number + 1
    seen.add(candidate)
    return candidate


def _outputs(outputs: list[NotebookNode], count: int) -> list[NotebookNode]:
    """Join streams, drop views that live only with a kernel, set the counts."""
    kept: list[NotebookNode] = []
    streams: dict[str, NotebookNode] = {}
    for output in outputs:
        if output.output_type == "stream":
            if output.name in streams:
                streams[output.name].text += output.text
                continue
            streams[output.name] = output
        elif "data" in output:
            output.data.pop(WIDGET_VIEW, None)
            output.metadata.pop(WIDGET_VIEW, None)
            if not output.data:
                continue
        if output.output_type == "execute_result":
            output.execution_count = count
        kept.append(output)
    return kept


def complaints(notebook: NotebookNode) -> list[str]:
    """List what may not stand in a published output: errors, and anything on stderr."""
    found = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                found.append(f"cell {number} fails: {output.ename}: {output.evalue}")
            if output.output_type == "stream" and output.name == "stderr":
                found.append(f"cell {number} warns: {output.text.strip()}")
    return found


def run(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Execute a notebook in `folder` with a fresh kernel and normalise it, in place.

    Raises:
        NotebookError: a cell fails or warns.
    """
    client = nbclient.NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        startup_timeout=START_SECONDS,
        kernel_name=KERNELSPEC["name"],
        store_widget_state=False,
        record_timing=False,
        # Kernels warn about their local sockets, which is not about the notebook.
        extra_arguments=["--IPKernelApp.log_level=40"],
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        raise NotebookError(re.sub(r"\x1b\[[0-9;]*m", "", str(error))) from None
    except nbclient.exceptions.CellTimeoutError as error:
        raise NotebookError(str(error)) from None
    normalise(notebook)
    if found := complaints(notebook):
        raise NotebookError("\n".join(found))
    return notebook


def write(notebook: NotebookNode, path: Path) -> bool:
    """Write a notebook in one step, and tell whether the file has changed."""
    nbformat.validate(notebook)
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    replace(text, path)
    return True


def replace(text: str, path: Path) -> None:
    """Write a text in one step: a reader of the file sees the old one or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def main(arguments: list[str] | None = None) -> int:
    """Run the chapters named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description="Run chapters and store their outputs.")
    parser.add_argument("chapter", nargs="*", help="name of a notebook in chapters/, say 02_x")
    names = parser.parse_args(arguments).chapter
    paths = [CHAPTERS / f"{Path(name).stem}.ipynb" for name in names]
    paths = paths or sorted(CHAPTERS.glob("*.ipynb"))
    failed = 0
    for path in paths:
        if not path.exists():
            print(f"{path.stem}: there is no such notebook in chapters/", file=sys.stderr)
            failed += 1
            continue
        start = time.perf_counter()
        try:
            changed = write(run(nbformat.read(path, as_version=4), path.parent), path)
        except NotebookError as error:
            print(f"{path.stem}: left as it was.\n{error}", file=sys.stderr)
            failed += 1
            continue
        took = time.perf_counter() - start
        print(f"{path.stem}: {took:.0f} s, {'changed' if changed else 'the same bytes'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
