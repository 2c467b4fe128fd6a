"""The examples in the docstrings."""

import doctest
import importlib
from pathlib import Path

import pytest

import tfbook

MODULES = [
    path.stem
    for path in sorted(Path(tfbook.__file__).parent.glob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"tfbook.{name}")
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0
