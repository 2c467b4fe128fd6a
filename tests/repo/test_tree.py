"""What may not be in any committed file, and what may not be missing."""

import ast
import re

import pytest
from repofiles import ROOT, files, named, short

TEXT = {"", ".bib", ".cff", ".cfg", ".css", ".html", ".ipynb", ".js", ".json", ".md", ".mplstyle"}
TEXT |= {".py", ".svg", ".toml", ".tsv", ".txt", ".yml", ".yaml"}
TEXTS = [p for p in files() if p.suffix in TEXT]
TOP = {
    "binder", "book", "benchmarks", "chapters", "tests", "tfbook", ".ci", ".gitignore",
    "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "LICENSE-TEXT", "Makefile", "README.md",
    "_config.yml", "_toc.yml", "constraints.txt", "environment.yml", "models.txt",
    "pyproject.toml",
}  # fmt: skip
# Paths and addresses of one machine. Written in two pieces, so that this file has none of them.
ONE_MACHINE = re.compile(
    "|".join(
        head + tail
        for head, tail in [
            (r"/ho", r"me/\w"),
            (r"/Us", r"ers/\w"),
            (r"[A-Z]:\\\\", r"Users"),
            (r"/wo", r"rk/"),
            (r"/t", r"mp/\w"),
            (r"/ro", r"ot/"),
            (r"site-", r"packages/"),
            (r"\b(?:192\.168|10\.\d+|172\.(?:1[6-9]|2\d|3[01]))\.", r"\d+\.\d+\b"),
            (r"lo", r"calhost:\d"),
        ]
    )
)
# Where a path in the text is a matter of the text.
MAY_NAME_PATHS = {"tests/repo/test_environment.py", "tfbook/data/en-fr_gnome.tsv"}
ADDRESS = re.compile(r"https?://[\w.]*git(?:hub|lab)\.com/[\w.-]+/(?:tfbook|[\w-]*transformer)\b")
LARGEST = 3_000_000


def text_of(path):
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", TEXTS, ids=short)
def test_no_file_names_one_machine(path):
    if short(path) in MAY_NAME_PATHS:
        return
    found = ONE_MACHINE.search(text_of(path))
    assert not found, f"{short(path)} names {found[0]!r}"


@pytest.mark.parametrize("path", TEXTS, ids=short)
def test_the_repository_address_stands_in_the_configuration_only(path):
    if path.name != "_config.yml":
        assert not ADDRESS.search(text_of(path))


def test_nothing_else_lies_at_the_top():
    assert {path.relative_to(ROOT).parts[0] for path in files()} <= TOP


def test_nothing_is_missing_at_the_top():
    there = {path.relative_to(ROOT).parts[0] for path in files()}
    assert there - {"benchmarks"} == TOP - {"benchmarks"}


@pytest.mark.parametrize("path", files(), ids=short)
def test_no_file_is_large(path):
    assert path.stat().st_size <= LARGEST


@pytest.mark.parametrize("path", TEXTS, ids=short)
def test_text_is_utf8_with_unix_line_ends_and_no_trailing_space(path):
    raw = path.read_bytes()
    assert b"\r" not in raw
    assert not raw or raw.endswith(b"\n")
    text = raw.decode("utf-8")
    assert "\ufffd" not in text
    if path.suffix in (".py", ".js", ".css", ".yml", ".toml"):
        bad = [n for n, line in enumerate(text.splitlines(), 1) if line != line.rstrip()]
        assert not bad, f"{short(path)} has trailing space in line {bad[:3]}"


@pytest.mark.parametrize("path", named(".py", under="tfbook"), ids=short)
def test_the_package_prints_nothing_and_opens_no_socket(path):
    script = "__main__" in text_of(path)
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print" and not script:
            raise AssertionError(f"{short(path)}:{node.lineno} prints")
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {a.name.split(".")[0] for a in node.names} | {getattr(node, "module", "") or ""}
            network = {"requests", "urllib", "socket", "http", "httpx"} & names
            assert not network, f"{short(path)}:{node.lineno} uses {network}"


def test_ci_calls_the_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"
    lines = text_of(script).splitlines()
    assert lines[0].startswith("#!")
    assert lines[-1] == "make test"
    assert "export CI=true" in lines
    assert "rm -rf _build" in lines
    assert "make test" in text_of(ROOT / "README.md")
