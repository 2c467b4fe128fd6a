"""The weights of the models that run in the page: a script each, written where the site is built.

They are made of the weights that ship with the package, and nothing is committed twice.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

from tfbook.teaching import explorables

FOLDER = "models"  # beside the folder of the modules; live figures look for it there
MODELS = ("shakespeare", "translator")
LOOKED = ("smollm2-135m", "minilm-l6")  # whose attention weights were computed beforehand


def write_models(target: Path) -> None:
    """Write a script for each model into a folder."""
    target.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        (target / f"{name}.js").write_text(explorables.live_script(name), encoding="utf-8")
    for name in LOOKED:
        script = explorables.attention_script(name)
        (target / f"attention-{name}.js").write_text(script, encoding="utf-8")


def finish(app: Sphinx, error: Exception | None) -> None:
    """Write them at the end of a build of the site."""
    if error is None and app.builder.name == "html":
        write_models(Path(app.outdir) / "_static" / FOLDER)


def setup(app: Sphinx) -> None:
    """Register with Sphinx; style sheets are thinned before, by the words of the other scripts."""
    app.connect("build-finished", finish, priority=200)
