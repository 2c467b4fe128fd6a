"""The examples in the docstrings, in modules at any depth."""

import doctest
import importlib
from pathlib import Path

import tfbook

HOME = Path(tfbook.__file__).parent


def examples():
    """Return how many lines of each module begin an example, by the module's whole name."""
    found = {}
    for path in sorted(HOME.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        count = sum(line.lstrip().startswith(">>> ") for line in lines)
        if count:
            parts = path.relative_to(HOME.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = count
    return found


def test_examples_in_docstrings():
    """Each example that stands in the text is found and runs; one of a hidden name would not be."""
    wanted, found, failed = examples(), {}, []
    for name in wanted:
        module = importlib.import_module(name)
        tests = doctest.DocTestFinder(exclude_empty=True).find(module)
        found[name] = sum(len(test.examples) for test in tests)
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
        said = []
        for test in tests:
            runner.run(test, out=said.append)
        failed += ["".join(said)] if said else []
    assert not failed, "\n".join(failed)
    assert found == wanted
    assert len(wanted) > 20
