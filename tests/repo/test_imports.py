"""Who imports whom: one total order of modules, and an `import tfbook` that costs nothing."""

import ast
import subprocess
import sys

import pytest
from repofiles import ROOT, named, short

# One total order, read left to right and downward: a module imports only what stands before it.
LEVELS = (
    "validate costs schedules tokenizers data metrics plotting claims explorables",
    "masks taps states caches scores tiled variants attention headweights rotary relative "
    "positions sampling efficient linear ssm optimizers sophia muon objectives denoising",
    "multihead latent layers embeddings blocks skipping moe graphs recurrent seq2seq",
    "parts config presets assembly models vision multimodal",
    "families checkpoints modelfiles pretrained prompts generation beam speculative "
    "runs ranks upkeep training tasks "
    "interpret theory precision memory quantize parallel finetune debug",
    "experiments exercises __main__",
)
ORDER = [name for level in LEVELS for name in level.split()]
LEVEL = {name: depth for depth, level in enumerate(LEVELS) for name in level.split()}
# What shows or grades things is no part of what computes.
FOR_SHOW = {"plotting", "claims", "explorables", "exercises"}
FOLDERS = {"data", "experiments", "explorables", "exercises", "plotting"}
PACKAGE = ROOT / "tfbook"
MOST_LINES = 300


def module_of(path):
    """The module of the table to which a file belongs; a folder is one module."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def sources():
    return [path for path in named(".py", under="tfbook") if path != PACKAGE / "__init__.py"]


def imports_of(path):
    """Yield line and module of each import from within tfbook."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{short(path)}:{node.lineno}: import by the full name instead")
        elif isinstance(node, ast.ImportFrom) and node.module == "tfbook":
            found = [f"tfbook.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [node.module or ""]
        else:
            continue
        for name in found:
            if name == "tfbook" or name.startswith("tfbook."):
                yield node.lineno, (name.split(".") + [""])[1]


@pytest.mark.parametrize("path", sources(), ids=short)
def test_a_module_imports_only_what_stands_before_it(path):
    module = module_of(path)
    assert module in ORDER, (
        f"tfbook/{module} is not in the table of levels: give it its place in {short_self()}"
    )
    for line, other in imports_of(path):
        assert other in ORDER, f"{short(path)}:{line} imports tfbook.{other}, which has no place"
        if other == module:
            continue
        assert ORDER.index(other) < ORDER.index(module), (
            f"{short(path)}:{line}: {module} may not import {other}, which stands after it"
        )


def short_self():
    return "tests/repo/test_imports.py"


@pytest.mark.parametrize("path", sources(), ids=short)
def test_what_computes_imports_nothing_that_shows(path):
    if not 1 <= LEVEL[module_of(path)] <= 4:
        return
    for line, other in imports_of(path):
        assert other not in FOR_SHOW, f"{short(path)}:{line} imports {other}"


def test_only_modules_that_carry_files_are_folders():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders <= FOLDERS


@pytest.mark.parametrize("path", sources(), ids=short)
def test_a_module_can_be_read_in_one_sitting(path):
    code = code_lines(path.read_text(encoding="utf-8"))
    assert code <= MOST_LINES * 1.1, f"{short(path)} has {code} lines of code: split it"


def code_lines(source):
    """Count the lines that are neither empty nor comment nor docstring."""
    tree = ast.parse(source)
    left_out = set()
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node):
            text = node.body[0]
            left_out |= set(range(text.lineno, text.end_lineno + 1))
    return sum(
        1
        for number, line in enumerate(source.splitlines(), 1)
        if number not in left_out and line.strip() and not line.strip().startswith("#")
    )


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_tfbook_loads_no_submodule_and_no_library():
    loaded = run("import tfbook, sys; print(*sys.modules)")
    assert [name for name in loaded if name.startswith("tfbook.")] == []
    assert {"torch", "numpy", "matplotlib", "IPython", "anywidget"} & set(loaded) == set()


@pytest.mark.parametrize("module", ["masks", "attention", "claims"])
def test_computing_does_not_load_what_draws(module):
    loaded = set(run(f"import sys, tfbook; tfbook.{module}; print(*sys.modules)"))
    assert f"tfbook.{module}" in loaded
    assert {"matplotlib", "IPython", "anywidget"} & loaded == set()


def test_a_submodule_is_there_on_first_use_and_listed():
    found = run("import tfbook; print(tfbook.attention.masks.__name__, *dir(tfbook))")
    assert found[0] == "tfbook.attention.masks"
    assert {"attention", "masks", "claims", "exercises", "data", "__version__"} <= set(found[1:])


def test_an_unknown_name_is_an_attribute_error():
    import tfbook

    with pytest.raises(AttributeError, match="no attribute 'attenton'"):
        _ = tfbook.attenton
    assert not hasattr(tfbook, "__wrapped__")
