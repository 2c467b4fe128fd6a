"""What may not be in any committed file, and what may not be missing."""

import ast
import re

import pytest
from repofiles import ROOT, files, findings, named, short

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


def machines(path):
    if short(path) not in MAY_NAME_PATHS:
        found = ONE_MACHINE.search(text_of(path))
        if found:
            yield f"names {found[0]!r}"


def test_no_file_names_one_machine():
    assert findings(TEXTS, machines) == []


def test_the_repository_address_stands_in_the_configuration_only():
    others = [path for path in TEXTS if path.name != "_config.yml"]
    assert findings(others, lambda path: ADDRESS.findall(text_of(path))) == []


def test_nothing_else_lies_at_the_top():
    assert {path.relative_to(ROOT).parts[0] for path in files()} <= TOP


def test_nothing_is_missing_at_the_top():
    there = {path.relative_to(ROOT).parts[0] for path in files()}
    assert there - {"benchmarks"} == TOP - {"benchmarks"}


def test_no_file_is_large():
    assert [short(path) for path in files() if path.stat().st_size > LARGEST] == []


def untidy(path):
    raw = path.read_bytes()
    if b"\r" in raw:
        yield "has line ends of Windows"
    if raw and not raw.endswith(b"\n"):
        yield "has no end to its last line"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        yield f"is not UTF-8: {error}"
        return
    if "\ufffd" in text:
        yield "has a replacement character"
    if path.suffix in (".py", ".js", ".css", ".yml", ".toml"):
        bad = [n for n, line in enumerate(text.splitlines(), 1) if line != line.rstrip()]
        if bad:
            yield f"has trailing space in line {bad[:3]}"


def test_text_is_utf8_with_unix_line_ends_and_no_trailing_space():
    assert findings(TEXTS, untidy) == []


# What answers clients of `python -m tfbook serve`; it listens, and asks nobody.
LISTENING = ("tfbook/serving/answering.py", "tfbook/serving/listening.py")


def prints_and_sockets(path):
    script = "__main__" in text_of(path) or path.parent.name == "commands"  # of the command line
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print" and not script:
            yield f"line {node.lineno} prints"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {a.name.split(".")[0] for a in node.names} | {getattr(node, "module", "") or ""}
            network = {"requests", "urllib", "socket", "http", "httpx"} & names
            if network and short(path) not in LISTENING:
                yield f"line {node.lineno} uses {sorted(network)}"


def test_the_package_prints_nothing_and_opens_no_socket():
    sources = named(".py", under="tfbook")
    assert sources and findings(sources, prints_and_sockets) == []


@pytest.mark.parametrize(
    ("look", "content", "words"),
    [
        (machines, "see /ho" + "me/anna", "names"),
        (untidy, "a\r\nb\n", "Windows"),
        (untidy, "a", "last line"),
        (untidy, b"\xff\n", "not UTF-8"),
        (untidy, "a\ufffd\n", "replacement"),
        (untidy, "a \n", "line [1]"),
        (prints_and_sockets, "x = 1\nprint(x)\n", "line 2 prints"),
        (prints_and_sockets, "import urllib.request\n", "uses ['urllib']"),
        (prints_and_sockets, "from http import server\n", "uses ['http']"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, monkeypatch, look, content, words):
    monkeypatch.setattr("repofiles.ROOT", tmp_path)
    path = tmp_path / "a.py"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (found,) = findings([path], look)
    assert found.startswith("a.py: ") and words in found


def test_ci_calls_the_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"
    lines = text_of(script).splitlines()
    assert lines[0].startswith("#!")
    assert lines[-1] == "make test"
    assert "export CI=true" in lines
    assert "rm -rf _build" in lines
    assert "make test" in text_of(ROOT / "README.md")
