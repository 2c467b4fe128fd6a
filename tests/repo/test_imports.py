"""Who imports whom: rooms in one order, modules in a room too, and nobody passes a door by.

A room is a folder of `tfbook` with its `__init__.py` as door. It may import from rooms above it,
and only what their doors name; inside, a module imports from those before it. `import tfbook` loads
nothing, and opening a room loads nothing that draws, but for the room that is there for it.
"""

import ast
import importlib
import json
import subprocess
import sys
from functools import cache

import pytest
from repofiles import ROOT, named, short

PACKAGE = ROOT / "tfbook"
# One order of rooms, and in each room one of modules: each imports only what stands before it.
ROOMS = {
    "_checks": "",
    "data": "corpora tokenizers loading batches augment duplicates graphs",
    "metrics": "likelihood labels text",
    "costs": "caches heads latent machines networks power_laws budgets",
    "positions": "frequencies protocols rotary added relative grids",
    "attention": "masks scores tiled registry exact lookup taps explicit states caches heads "
    "head_surgery multihead latent gated differential",
    "efficient": "patterns windows blocks linear random_features low_rank hashed memory selected "
    "indexed",
    "recurrent": "cells networks gradients seq2seq scan convolution state_space "
    "mamba retention rwkv delta_rule",
    "graphs": "adjacency attention positions structure messages",
    "blocks": "norms packed residual feed_forward states blocks embeddings heads routing experts "
    "streams depth initial stepping",
    "models": "spec placements layers mixtures mixers attentions state_spaces convolutions "
    "conv_attention graph_mixers graph_transformer sharing ends changes config presets "
    "architectures",
    "optimization": "schedules optimizers muon sophia",
    "training": "objectives denoising skipping processes files states history checkpoints resuming "
    "gradients monitoring loop choices recipes run_folders",
    "pretrained": "files part_names decoders mixed families conversion rounding packing "
    "loading",
    "generation": "streaming prompts sampling decoding conversation tables scoring beam "
    "speculative grammar",
    "interpret": "capturing statistics flow attribution lens ablation patching indirect_object "
    "circuits probing similarity supervision superposition dictionaries steering",
    "hardware": "formats blocks scaling memory quantisation calibration "
    "triton_kernels kernels",
    "parallel": "links processes groups collectives conjugates replicas zero vocabulary "
    "tensor_parallel context schedules pipeline expert_parallel splits planner",
    "serving": "pages paged invariance batching waste endings engine completions "
    "listening answering endpoint",
    "practice": "freezing lora adapters adapter_files reading finetuning tuning_runs "
    "preference verifiable asking evaluation findings debugging training_faults",
    "teaching": "sentences boxes claims listings plotting explorables exercises",
    "experiments": "",
    "commands": "arguments training finetuning measuring serving",
    "__main__": "",
}
ORDER = list(ROOMS)
# Scripts with a source of their own, which nothing imports.
SCRIPTS = PACKAGE / "data" / "make"
# Rooms in a room, each with a door.
INNER = {"plotting", "explorables", "exercises"}
DRAWING = {"matplotlib", "seaborn", "IPython", "anywidget", "ipywidgets"}
MOST_LINES = 300
FEWEST_MODULES, MOST_MODULES = 3, 17


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def sources():
    """The modules of the package and of what uses it, as a reader of the package meets it."""
    return [p for p in named(".py", under="tfbook") if p != PACKAGE / "__init__.py"]


def place_of(path):
    """Room and module of a file, as names: ("attention", "masks"); a door's module is ""."""
    room, *rest = path.relative_to(PACKAGE).with_suffix("").parts
    rest = [part for part in rest if part != "__init__"]
    return room, ".".join(rest)


def imports_of(tree):
    """Yield line, module and names of each import from tfbook; () for `import a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"line {node.lineno}: import by the full name instead")
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tfbook":
            yield node.lineno, node.module, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "tfbook":
                    yield node.lineno, alias.name, ()


@cache
def door(room):
    """What the door of a room names."""
    return frozenset(importlib.import_module(room).__all__)


def faults_of(tree, room, module):
    """Yield what is wrong with the imports of a file that stands in a room (None: outside)."""
    for line, name, names in imports_of(tree):
        if name == "tfbook":
            wanted = [(each, "", ()) for each in names]
        else:
            _, other, *inner = name.split(".")
            wanted = [(other, ".".join(inner), names)]
        for other, inner, taken in wanted:
            yield from (f"{line}: {fault}" for fault in fault(room, module, other, inner, taken))


def fault(room, module, other, inner, taken):
    if other not in ORDER:
        yield f"tfbook.{other} is no room"
    elif other == room:
        yield from fault_inside(room, module, inner, taken)
    elif room is not None and ORDER.index(other) > ORDER.index(room):
        yield f"{room} stands above {other} and may not import it"
    elif inner and inner not in INNER:
        yield f"tfbook.{other}.{inner} is imported past its door: from tfbook.{other} import …"
    elif other != "_checks" and not (other == "experiments" and room in (None, "__main__")):
        name = ".".join(filter(None, ("tfbook", other, inner)))
        yield from (f"the door {name} does not name {each}" for each in set(taken) - door(name))


def fault_inside(room, module, inner, taken):
    modules = ROOMS[room].split()
    if not modules or module == "":  # experiments stand side by side; a door sees all of its room
        return
    own, head = module.split(".")[0], inner.split(".")[0]
    if not inner:
        yield f"siblings are imported by their module, not through the own door: {', '.join(taken)}"
    elif head != own and modules.index(head) > modules.index(own):
        yield f"{own} stands before {head} and may not import it"


def test_every_module_has_its_place():
    found = {}
    for path in sources():
        room, module = place_of(path)
        if module and not path.is_relative_to(SCRIPTS):
            found.setdefault(room, set()).add(module.split(".")[0])
        elif room not in ROOMS:
            found.setdefault(room, set())
    listed = {room: set(modules.split()) for room, modules in ROOMS.items() if modules}
    assert set(found) - {"_checks", "__main__", "experiments"} == set(listed)
    assert {room: found[room] for room in listed} == listed


def test_a_room_has_at_least_three_modules():
    small = [room for room, modules in ROOMS.items() if 0 < len(modules.split()) < FEWEST_MODULES]
    assert small == []


def test_a_room_is_seen_at_a_glance():
    large = [room for room, modules in ROOMS.items() if len(modules.split()) > MOST_MODULES]
    assert large == []


def test_the_package_is_imported_in_order_and_through_doors():
    faults = []
    for path in sources():
        room, module = place_of(path)
        faults += [f"{short(path)}:{each}" for each in faults_of(tree_of(path), room, module)]
    assert faults == []


def test_chapters_benchmarks_and_the_book_come_through_doors():
    faults = []
    for path in named(".py", under="benchmarks") + named(".py", under="book"):
        faults += [f"{short(path)}:{each}" for each in faults_of(tree_of(path), None, None)]
    for path in named(".ipynb", under="chapters"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code" and "tfbook" in source:
                found = faults_of(ast.parse(source), None, None)
                faults += [f"{short(path)}, cell {cell['id']}, line {each}" for each in found]
    assert faults == []


@pytest.mark.parametrize(
    ("room", "module", "code", "wanted"),
    [
        ("attention", "scores", "from tfbook.models import Block", "stands above models"),
        ("attention", "masks", "from tfbook.attention.scores import restrict", "stands before"),
        ("attention", "scores", "from tfbook.attention import causal_mask", "by their module"),
        ("models", "layers", "from tfbook.attention.masks import causal_mask", "past its door"),
        ("blocks", "blocks", "import tfbook.attention.masks", "past its door"),
        ("blocks", "blocks", "from tfbook.attention import nothing", "does not name nothing"),
        ("blocks", "blocks", "from tfbook import experiments", "may not import it"),
        ("teaching", "claims", "from tfbook.teaching.plotting._look import show", "stands before"),
        (None, None, "from tfbook.training.loop import fit", "past its door"),
        (None, None, "from tfbook import layers", "no room"),
    ],
)
def test_each_fault_is_seen(room, module, code, wanted):
    (found,) = faults_of(ast.parse(code), room, module)
    assert wanted in found


@pytest.mark.parametrize(
    ("room", "module", "code"),
    [
        ("blocks", "blocks", "from tfbook.attention import Cache"),
        ("blocks", "blocks", "from tfbook._checks import check_number"),
        ("attention", "scores", "from tfbook.attention.masks import causal_mask"),
        ("attention", "", "from tfbook.attention.multihead import MultiHeadAttention"),
        (None, None, "from tfbook.teaching.explorables import quiz\nfrom tfbook import models"),
    ],
)
def test_what_is_in_order_passes(room, module, code):
    assert list(faults_of(ast.parse(code), room, module)) == []


def test_a_door_names_what_its_modules_name():
    """Nothing public is left behind a door, but for modules that the door passes on whole."""
    faults = []
    for room, modules in ROOMS.items():
        for name in modules.split() if room != "teaching" else ():
            module = importlib.import_module(f"tfbook.{room}.{name}")
            public = set(getattr(module, "__all__", ()))
            if not public <= door(f"tfbook.{room}") and name not in door(f"tfbook.{room}"):
                faults.append(f"{room}.{name}: {sorted(public - door(f'tfbook.{room}'))}")
    assert faults == []


def test_a_module_can_be_read_in_one_sitting():
    long = {short(path): code_lines(path) for path in sources()}
    assert {name: lines for name, lines in long.items() if lines > MOST_LINES * 1.1} == {}


def code_lines(path):
    """Count the lines that are neither empty nor comment nor docstring."""
    left_out = set()
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    for node in ast.walk(tree_of(path)):
        if isinstance(node, documented) and ast.get_docstring(node):
            text = node.body[0]
            left_out |= set(range(text.lineno, text.end_lineno + 1))
    return sum(
        1
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if number not in left_out and line.strip() and not line.strip().startswith("#")
    )


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_import_tfbook_loads_no_room_and_no_library():
    (loaded, _) = run("import tfbook, sys; print(*sys.modules)")
    loaded = loaded.split()
    assert [name for name in loaded if name.startswith("tfbook.")] == []
    assert ({"torch", "numpy"} | DRAWING) & set(loaded) == set()


def test_opening_a_room_loads_nothing_that_draws_and_nothing_below_it():
    rooms = [room for room in ORDER if room not in ("_checks", "__main__")]
    lines = run(
        "import importlib, sys\n"
        f"for room in {rooms}:\n"
        "    importlib.import_module(f'tfbook.{room}')\n"
        "    print(*sys.modules)\n"
    )
    for room, line in zip(rooms, lines[:-1], strict=True):
        loaded = set(line.split())
        opened = {name.split(".")[1] for name in loaded if name.startswith("tfbook.")}
        assert DRAWING & loaded == set(), room
        assert opened <= set(ORDER[: ORDER.index(room) + 1]), room


def test_a_claim_loads_nothing_that_draws_and_no_exercise():
    (line, _) = run("import sys\nfrom tfbook.teaching import claim\nprint(*sys.modules)")
    assert DRAWING & set(line.split()) == set()
    assert not [name for name in line.split() if name.startswith("tfbook.teaching.exercises")]


def test_a_room_is_there_on_first_use_and_listed():
    (found, _) = run("import tfbook; print(tfbook.attention.causal_mask.__module__, *dir(tfbook))")
    first, *names = found.split()
    assert first == "tfbook.attention.masks"
    assert {room for room in ORDER if room[0] != "_"} | {"__version__"} == set(names)


def test_an_unknown_name_is_an_attribute_error():
    import tfbook

    with pytest.raises(AttributeError, match="no attribute 'attenton'"):
        _ = tfbook.attenton
    assert not hasattr(tfbook, "__wrapped__")
    with pytest.raises(AttributeError, match="no attribute 'clam'"):
        _ = tfbook.teaching.clam
