"""Everything that can be copied says under what licence."""

import re
from hashlib import sha256

import pytest
from repofiles import ROOT, findings, named, short

DATA = ROOT / "tfbook" / "data"
NOT_DATA = {".py", ".md", ""}


def data_files():
    return [p for p in named_data() if not p.name.startswith("LICENSE")]


def named_data():
    return [path for path in named(*suffixes(), under="tfbook/data")]


def suffixes():
    found = {path.suffix for path in DATA.iterdir() if path.is_file()}
    return sorted(found - NOT_DATA - {".pyc"})


def test_code_and_text_have_their_licences():
    code = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in code
    assert "Version 2.0, January 2004" in code
    assert "APPENDIX: How to apply" in code
    text = (ROOT / "LICENSE-TEXT").read_text(encoding="utf-8")
    assert "Creative Commons Attribution 4.0 International" in text
    assert "Section 8" in text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(LICENSE)" in readme
    assert "(LICENSE-TEXT)" in readme


@pytest.fixture(scope="module")
def provenance():
    return (DATA / "README.md").read_text(encoding="utf-8")


def test_each_data_file_has_provenance_checksum_and_a_licence_beside_it(provenance):
    def unsaid(path):
        if path.name not in provenance:
            yield "tfbook/data/README.md does not say where it is from"
        if sha256(path.read_bytes()).hexdigest() not in provenance:
            yield "tfbook/data/README.md gives another sha256"

    assert data_files() and findings(data_files(), unsaid) == []
    assert len(list(unsaid(ROOT / "LICENSE"))) == 1  # named there, but no data
    assert [p for p in DATA.iterdir() if p.name.startswith("LICENSE")]


def test_each_licence_beside_the_data_is_named_in_their_readme(provenance):
    for path in DATA.iterdir():
        if path.name.startswith("LICENSE"):
            assert path.name in provenance


def test_nothing_of_third_parties_is_committed():
    """Fonts, MathJax and other assets come from pinned packages when the book is built."""
    suspects = [short(p) for p in named(".woff", ".woff2", ".ttf", ".otf", ".eot", ".map")]
    suspects += [short(p) for p in named(".js", ".css") if re.search(r"\.min\.|vendor", p.name)]
    assert suspects == []
