"""The book in a real JupyterLab, as `make lab` opens it: first unread, then chapter 02 run.

Every notebook reads well before it is run, and opening it changes nothing. Chapter 02 runs, and
what stands in it works with a kernel; so do predictions and explanations in a small notebook. One
server on a loopback port with a token and folders of its own; one page for all, whose requests to
any other machine are refused and recorded.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
import torch

from book.tools import lab as lab_tool
from book.tools import notebooks
from tfbook import attention
from tfbook.teaching import boxes, explorables

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
CHAPTER = ROOT / "chapters" / "02_attention.ipynb"
# What anywidget says when a figure needs more than two seconds to begin, on a busy machine. That it
# lives is seen by its card, and by the tests that move it.
LATE = "[anywidget] Failed to initialize model."
RUN_SECONDS = 600  # a cold import of torch and a whole chapter on two busy cores
STEP_MS = 120_000
PAIR = {"source": ["the", "file"], "target": ["le", "fichier"], "weights": [[0.9, 0.1], [0, 1]]}
TEXT = {
    "tokens": ["to", "be", "or"],
    "weights": [[[[1, 0, 0], [0.5, 0.5, 0], [0, 0.75, 0.25]]] * 2],
}
NEXT = explorables.pack_next_tokens("so", [3.0, 2.0, 1.0], ["a", "b", "c"], shown=2)
# Figures that this chapter does not show stand in cells of their own below it.
OTHERS = {
    "softmax_temperature": "explorables.softmax_temperature()",
    "soft_lookup_plane": "explorables.soft_lookup_plane()",
    "alignment_viewer": f"explorables.alignment_viewer([{PAIR}])",
    "head_viewer": f"explorables.head_viewer([{TEXT}])",
    "encoding_wavelengths": "explorables.encoding_wavelengths()",
    "rope_rotation": "explorables.rope_rotation()",
    "relative_bias_shapes": "explorables.relative_bias_shapes()",
    "shape_tracer": "explorables.shape_tracer()",
    "live_model": "explorables.live_model()",
    "live_training": "explorables.live_training()",
    "live_translator": "explorables.live_translator()",
    "next_token_sampling": f"explorables.next_token_sampling([{NEXT}])",
    "cache_growth": "explorables.cache_growth()",
    "cost_calculator": "explorables.cost_calculator()",
    "roofline": "explorables.roofline()",
    "compute_budget": "explorables.compute_budget()",
    "float_bits": "explorables.float_bits()",
    "debugging_dashboard": "explorables.debugging_dashboard("
    "__import__('tfbook.experiments').experiments.log('traced_faults'))",
    "quantisation_error": "explorables.quantisation_error()",
    "training_planner": "explorables.training_planner()",
    "continuous_batching": "explorables.continuous_batching()",
    "pipeline_schedule": "explorables.pipeline_schedule()",
    "sparsity_designer": "explorables.sparsity_designer()",
    "expert_routing": "explorables.expert_routing()",
    "scan_tree": "explorables.scan_tree()",
    "delta_rule": "explorables.delta_rule()",
    "patching_grid": "explorables.patching_grid({'x': [[1], [-2]]}, rows=[0, 1], columns=[0])",
    "rollout_stepper": "explorables.rollout_stepper([[[1, 0], [0.5, 0.5]]] * 2, ['a', 'b'])",
    "induction_head": "explorables.induction_head()",
    "schedule_designer": "explorables.schedule_designer()",
    "one_average": "explorables.one_average()",
    "optimizer_paths": "explorables.optimizer_paths()",
    "byte_pairs": "explorables.byte_pairs()",
    "stepper": "explorables.attention_walk([1, 0], [[1, 0], [0, 1]], [[1], [2]], ['a', 'b'])",
    "predict": "explorables.predict('before', 'Which?', answer=1)",
    "explain": "explorables.explain('own-words', 'Why?', model='So.', rubric=['a', 'b', 'c'])",
}
SETTINGS = {
    # Every cell stays in the page, so that it can be found without scrolling.
    "@jupyterlab/notebook-extension/tracker": {
        "windowingMode": "none",
        "autoStartDefaultKernel": True,
    },
}
PLAYED, KINDS = "played.ipynb", "kinds.ipynb"
CHOICES = '[("It grows.", True, "By `d_k`."), ("It stays.", False, "Each adds its own.")]'
RUBRIC = '["Names it.", "Says why.", "Says when."]'


def small():
    """A notebook with an experiment that was run and stored, as `make notebooks` leaves it."""
    code = nbformat.v4.new_code_cell
    cells = [
        code("from tfbook.teaching import explain, predict", id="imports"),
        code(f'p = predict("spread", "What becomes of it?", choices={CHOICES})\np', id="ask"),
        code(
            "print(7 + 1)",
            id="run",
            metadata={"tfbook": {"predict": "spread"}},
            outputs=[nbformat.v4.new_output("stream", text="8\n")],
        ),
        code(f'e = explain("why", "Why?", model="Because.", rubric={RUBRIC})\ne', id="explain"),
    ]
    return notebooks.normalise(nbformat.v4.new_notebook(cells=cells))


@pytest.fixture(scope="module")
def lab_folder(tmp_path_factory):
    """A home for the server, with the reader's copies, a longer one of the chapter, settings."""
    folder = tmp_path_factory.mktemp("lab")
    lab_tool.prepare(lab_tool.CHAPTERS, folder / "work")
    chapter = nbformat.read(CHAPTER, as_version=4)
    chapter.cells += [nbformat.v4.new_code_cell(source) for source in OTHERS.values()]
    nbformat.write(chapter, folder / "work" / PLAYED)
    nbformat.write(small(), folder / KINDS)
    for name, values in SETTINGS.items():
        path = folder / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def lab(browser, lab_folder):
    """Start `jupyter lab`; give its address with the token; stop it and its kernels in the end.

    The browser comes first, so that without one no server is started.
    """
    folders = {
        "HOME": "home",
        "IPYTHONDIR": "ipython",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "TFBOOK_DATA": "progress",
    }
    for name in folders.values():
        (lab_folder / name).mkdir(exist_ok=True)
    paths = {variable: str(lab_folder / name) for variable, name in folders.items()}
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=0", "--ServerApp.allow_root=True", "--LabApp.expose_app_in_browser=True",
        *lab_tool.options(lab_folder, lab_folder / "work"),
    ]  # fmt: skip
    log = (lab_folder / "server.log").open("wb")
    server = subprocess.Popen(
        command, env=lab_tool.environment() | paths, stdout=log, stderr=subprocess.STDOUT,
        start_new_session=True, cwd=lab_folder,
    )  # fmt: skip
    try:
        yield server_address(server, lab_folder)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        log.close()


def server_address(server, folder):
    """Wait until the server has written down where it listens; with the token."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and server.poll() is None:
        for path in (folder / "runtime").glob("jpserver-*.json"):
            text = path.read_text(encoding="utf-8")
            if text.endswith("}"):
                entry = json.loads(text)
                return f"http://127.0.0.1:{entry['port']}/", entry["token"]
        time.sleep(0.2)
    raise RuntimeError("no server: " + (folder / "server.log").read_text(errors="replace")[-2000:])


OPEN = """async ([path, kernel]) => {
    const panel = await jupyterapp.commands.execute("docmanager:open", { path, kernel });
    await panel.context.ready;
    await panel.revealed;
    await panel.sessionContext.ready;
    await Promise.all(panel.content.widgets.map((cell) => cell.ready));
    return panel;
}"""
EXPLORABLE = "[o for o in Out.values() if getattr(o, 'module', '') == '{}']"


class Lab:
    """JupyterLab in the browser, and what a reader does with the notebook that is seen."""

    def __init__(self, context):
        self.foreign, self.errors = [], []
        context.route(re.compile(r"^(https?|wss?):"), self.gate)
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def gate(self, route):
        """Let only this machine be asked."""
        if urlsplit(route.request.url).hostname == "127.0.0.1":
            route.continue_()
        else:
            self.foreign.append(route.request.url)
            route.abort()

    def wait(self):
        """Wait until there is a notebook with a kernel that is idle."""
        self.page.wait_for_function(
            "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
            " === 'idle'",
            timeout=RUN_SECONDS * 1000,
        )

    def open(self, path, kernel=None):
        """Open a notebook beside those that are open; name a kernel for one that is shared."""
        given = kernel and {"id": kernel}
        self.page.evaluate(f"(named) => ({OPEN})(named).then(() => null)", [path, given])
        self.wait()

    def kernel(self):
        """The id of the notebook's kernel."""
        return self.page.evaluate("jupyterapp.shell.currentWidget.sessionContext.session.kernel.id")

    def cells(self):
        """The cells of the notebook."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell")

    def cell(self, name):
        """A cell of the small notebook by its id, scrolled to."""
        cell = self.cells().nth([cell.id for cell in small().cells].index(name))
        cell.scroll_into_view_if_needed()
        return cell

    def run(self, *names):
        """Run cells of the small notebook, one after the other, and wait for each."""
        for name in names:
            self.page.evaluate(
                """async (at) => {
                    const panel = jupyterapp.shell.currentWidget;
                    panel.content.activeCellIndex = at;
                    await jupyterapp.commands.execute("notebook:run-cell");
                }""",
                [cell.id for cell in small().cells].index(name),
            )

    def cell_with(self, code):
        """The first code cell whose source contains a text."""
        sources = self.page.evaluate(
            "jupyterapp.shell.currentWidget.content.widgets.map(c => c.model.sharedModel.source)"
        )
        index = next(i for i, source in enumerate(sources) if code in source)
        return self.cells().nth(index)

    def run_all(self):
        """Run the whole notebook and wait until the kernel is idle again."""
        self.page.evaluate(
            "jupyterapp.commands.execute('notebook:run-all-cells').then(() => (window.ran = true))"
        )
        self.page.wait_for_function("window.ran === true", timeout=RUN_SECONDS * 1000)

    def figure(self, module, nth=0):
        """The live view of an explorable, scrolled to."""
        card = "form.tfx-quiz" if module == "quiz" else f'.tfx-card[aria-label="{TITLES[module]}"]'
        figure = self.page.locator(f".jp-OutputArea .tfx {card}").nth(nth)
        figure.scroll_into_view_if_needed()
        return figure

    def python(self, expression):
        """Evaluate an expression in the chapter's kernel, as a new cell at the end would."""
        code = f"import json as _json; print('<<' + _json.dumps({expression}) + '>>')"
        return self.page.evaluate(
            """async (code) => {
                const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                const future = kernel.requestExecute({ code, store_history: false });
                let text = "";
                future.onIOPub = (m) => {
                    if (m.header.msg_type === "stream") text += m.content.text;
                    if (m.header.msg_type === "error") text += m.content.evalue;
                };
                await future.done;
                const found = text.match(/<<(.*)>>/s);
                if (!found) throw new Error(text);
                return JSON.parse(found[1]);
            }""",
            code,
        )

    def explorable(self, module, attribute, nth=0):
        """Read an attribute of a displayed explorable in Python."""
        return self.python(f"{EXPLORABLE.format(module)}[{nth}].{attribute}")

    def until(self, module, attribute, wanted, nth=0):
        """Wait until an explorable in Python has heard of a change."""
        self.hears(f"{EXPLORABLE.format(module)}[{nth}].{attribute}", wanted)

    def hears(self, expression, wanted):
        """Wait until Python has heard of a change: the browser holds some back for a while."""
        deadline = time.monotonic() + STEP_MS / 1000
        while (found := self.python(expression)) != wanted:
            assert time.monotonic() < deadline, f"{expression} is {found}, not {wanted}"
            self.page.wait_for_timeout(50)

    def write_cell(self, cell, source):
        """Replace a cell's source by typing, and run it."""
        cell.locator(".cm-content").click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Shift+Enter")


TITLES = {
    name: eval(OTHERS.get(name, f"explorables.{name}()")).data["title"]
    for name in explorables.NAMES
    if name not in ("quiz", "predict", "explain")
}


@pytest.fixture(scope="module")
def start(lab, browser):
    """What a reader sees first. What is opened afterwards is opened here."""
    address, token = lab
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(STEP_MS)
    opened = Lab(context)
    opened.page.goto(f"{address}?token={token}&reset")
    opened.wait()
    yield opened
    context.close()


@pytest.fixture(scope="module")
def notebook(start):
    """The chapter, opened and run once."""
    start.open(f"{lab_tool.WORK.name}/{PLAYED}")
    start.run_all()
    return start


@pytest.fixture(scope="module")
def kinds(notebook):
    """The small notebook, with the kernel of the chapter."""
    notebook.open(KINDS, notebook.kernel())
    return notebook


# What one look at a notebook that was opened and not run tells, with all its cells in the page.
# Hidden at first: each editor that is made would lay out again all that is there.
LOOK = f"""async (named) => {{
    const hidden = document.createElement("style");
    hidden.textContent = ".jp-NotebookPanel {{ display: none !important }}";
    document.head.append(hidden);
    const panel = await ({OPEN})(named);
    hidden.remove();
""" + """
    const kernel = panel.sessionContext.session.kernel;
    await kernel.info;
    await kernel.spec;
    await new Promise((done) => setTimeout(done, 100));
    const all = (query) => [...panel.node.querySelectorAll(query)];
    const style = (node) => getComputedStyle(node);
    const solutions = panel.content.widgets.filter(
        (cell) => typeof cell.model.getMetadata("tfbook")?.solution === "string"
            && cell.model.type === "code");
    const found = {
        dirty: panel.context.model.dirty,
        prose: all(".jp-MarkdownOutput").map((node) => node.innerText).join("\\n"),
        empty: all(".jp-MarkdownOutput").filter((node) => !node.innerText.trim()
            && !node.querySelector("img")).length,
        code: all(".jp-InputArea-editor").filter((node) => node.offsetParent)
            .map((node) => node.innerText).join("\\n"),
        open: all("details[open]").length,
        solutions: solutions.filter((cell) => !(cell.inputHidden && cell.outputHidden)).length,
        boxes: all(".tfbook-claim, .tfbook-check, .tfx-text").map((node) => [
            node.className, style(node).borderLeftColor, style(node).borderLeftWidth,
            node.innerText.trim().slice(0, 4)]),
    };
    panel.close();
    found.asked = [...document.querySelectorAll(".jp-Dialog")].map((node) => node.innerText);
    return found;
}"""
RAW = {
    "a role": r"\{[\w:+-]+\}`|\{(?:doc|cite|eq|ref|numref|term|py|math)(?::\w+)?\}",
    "a directive": r"(?m)^\s*(?::{3,}|`{3,})|^:(?:label|class|name):",
    "a label": r"(?m)^\((?!\d)[\w-]+(?::[\w-]+)?\)=?$",
    "a heading, a link or bold type": r"(?m)^#{1,6} |\]\([\w./#:-]+\)|\*\*\w",
}


def test_the_start_page_comes_first_and_alone(start):
    assert start.page.evaluate("jupyterapp.shell.currentWidget.context.path") == "work/index.ipynb"
    text = start.page.locator(".jp-Notebook").inner_text()
    assert all(word in text for word in ("Attention", "Labs and projects"))
    assert re.search(r"\b0 of \d+\b", text)
    start.page.wait_for_timeout(1500)  # what would pop up has had its time
    assert start.page.locator(".Toastify__toast, .jp-Dialog").count() == 0
    start.page.get_by_role("link", name="Attention", exact=True).click()
    start.page.wait_for_function(
        "jupyterapp.shell.currentWidget.context?.path === 'work/02_attention.ipynb'"
        " && jupyterapp.shell.currentWidget.context.isReady"
    )
    start.page.evaluate("jupyterapp.shell.currentWidget.close()")


def test_each_notebook_reads_well_before_it_runs_and_opening_it_changes_nothing(start, lab_folder):
    # One kernel for all: what it says about itself is what JupyterLab may write into a notebook.
    kernel = start.kernel()
    work = lab_folder / "work"
    paths = sorted([*work.glob("*.ipynb"), *work.glob("start/*.ipynb")])
    assert len(paths) > 16
    edges = {name: f"rgb{rgb}" for name, rgb in boxes.COLOURS.items()}
    faults = []
    for path in paths:
        if path.name == PLAYED:
            continue
        before = path.read_bytes()
        name = path.relative_to(lab_folder).as_posix()
        found = start.page.evaluate(LOOK, [name, {"id": kernel}])
        seen = {
            "is marked as changed": found["dirty"],
            "asks to be saved": found["asked"],
            "has changed on disk": path.read_bytes() != before,
            "has cells without text": found["empty"],
            "has folds that are open": found["open"],
            "has solutions that are open": found["solutions"],
            "shows an answer": re.findall(r"\b(?:choices|answer|feedback)=", found["code"]),
        }
        for what, pattern in RAW.items():
            seen[f"shows {what}"] = re.findall(pattern, found["prose"])
        for kind, colour, width, text in found["boxes"]:
            edge = {"tfbook-claim": "green", "tfx-text": "blue"}.get(kind)
            right = colour == edges[edge] if edge else colour in edges.values()
            if not right or width != "4px" or (kind == "tfbook-claim" and text[0] != "✓"):
                seen[f"{kind}, {colour}, {width}, {text!r}"] = True
        faults += [f"{name} {what}: {value}" for what, value in seen.items() if value]
    assert not faults, "\n".join(faults)
    # A panel that is closed at once takes back what it was about to ask of the kernel.
    assert [error for error in start.errors if "Canceled future" not in error] == []
    start.errors.clear()


def value(figure, name):
    """Read a number off the figure in full precision."""
    return float(figure.locator(f'[data-name="{name}"]').get_attribute("data-value"))


def test_the_chapter_runs_without_an_error(notebook):
    errors = notebook.page.locator(
        '.jp-OutputArea [data-mime-type="application/vnd.jupyter.error"]'
    )
    stderr = notebook.page.locator(
        '.jp-OutputArea [data-mime-type="application/vnd.jupyter.stderr"]'
    )
    assert errors.all_inner_texts() + stderr.all_inner_texts() == []


def test_every_explorable_and_quiz_is_alive(notebook):
    made = notebook.python("[o.module for o in Out.values() if hasattr(o, 'module')]")
    assert set(made) == set(explorables.NAMES)
    assert notebook.page.locator(".jp-OutputArea .tfx-card").count() == len(made)
    assert [error for error in notebook.errors if error != LATE] == []


def test_softmax_moves_and_python_reads_it(notebook):
    figure = notebook.figure("softmax_temperature")
    slider = figure.locator('[data-control="temperature"]')
    before = notebook.explorable("softmax_temperature", "temperature")
    for _ in range(4):
        slider.press("ArrowRight")
    shown = float(slider.get_attribute("aria-valuetext"))
    assert shown > before
    notebook.until("softmax_temperature", "temperature", shown)
    weights = notebook.explorable("softmax_temperature", "weights")
    assert weights == pytest.approx([value(figure, f"weight[{i}]") for i in range(8)], abs=1e-9)


def test_python_moves_the_figure(notebook):
    figure = notebook.figure("softmax_temperature")
    found = EXPLORABLE.format("softmax_temperature")
    notebook.python(f"setattr({found}[0], 'd_k', 1)")
    figure.locator('[data-control="d_k"][aria-valuetext="1"]').wait_for()
    largest = notebook.explorable("softmax_temperature", "largest")
    assert value(figure, "largest") == pytest.approx(largest, abs=1e-9)


def test_steps_move_and_python_reads_them(notebook):
    figure = notebook.figure("attention_steps")
    before = notebook.explorable("attention_steps", "query[1]")
    figure.locator('[data-control="query[1]"]').press("ArrowRight")
    figure.locator('[data-control="causal"]').check()
    notebook.until("attention_steps", "causal", True)
    query = notebook.explorable("attention_steps", "query")
    keys = notebook.explorable("attention_steps", "data['keys']")
    q, k = (torch.tensor(x, dtype=torch.double) for x in ([query], keys))
    _, expected = attention.attend(q, k, k, return_weights=True)  # the query stands at the last key
    shown = [value(figure, f"weight[{i}]") for i in range(len(keys))]
    assert query[1] == pytest.approx(before + 0.1)
    assert shown == pytest.approx(expected[0].tolist(), abs=1e-6)
    assert notebook.explorable("attention_steps", "weights") == pytest.approx(shown, abs=1e-9)


def test_plane_moves_and_python_reads_it(notebook):
    figure = notebook.figure("soft_lookup_plane")
    figure.locator(".tfx-handle").focus()
    x, y = notebook.explorable("soft_lookup_plane", "query")
    notebook.page.keyboard.press("ArrowLeft")
    notebook.page.keyboard.press("Shift+ArrowDown")
    notebook.until("soft_lookup_plane", "query", [round(x - 0.05, 2), round(y - 0.25, 2)])
    result = notebook.explorable("soft_lookup_plane", "result")
    assert value(figure, "result") == pytest.approx(result, abs=1e-9)


@pytest.mark.parametrize(
    ("module", "moved", "key", "control", "wanted"),
    [
        ("alignment_viewer", '[data-control="source"][value="1"]', "Space", "side", "source"),
        ("head_viewer", '[data-control="head"][value="0.1"]', "Space", "head", 1),
        ("encoding_wavelengths", '[data-control="position"]', "End", "position", 127),
        ("rope_rotation", '[data-control="both"]', "Home", "m", 4),
        ("relative_bias_shapes", '[data-control="scheme"][value="t5"]', "Space", "scheme", "t5"),
        ("shape_tracer", '[data-control="d_model"]', "End", "d_model", 16_384),
        ("next_token_sampling", '[data-control="top_k"]', "End", "top_k", 2),
        ("cache_growth", '[data-control="length"]', "Home", "length", 1),
        ("cost_calculator", '[data-control="length"]', "End", "length", 131_072),
        ("roofline", '[data-control="rows"]', "End", "rows", 4096),
        ("compute_budget", '[data-control="compute"]', "End", "compute", 1e26),
        ("pipeline_schedule", '[data-control="micro_batches"]', "End", "micro_batches", 24),
        ("continuous_batching", '[data-control="slots"]', "End", "slots", 8),
        ("training_planner", '[data-control="replicas"]', "End", "replicas", 256),
        ("quantisation_error", '[data-control="bits"]', "End", "bits", 8),
        ("debugging_dashboard", '[data-control="step"]', "Home", "step", 0),
        ("float_bits", '[data-control="bit[0]"]', "Space", "code", 0xAE66),
        ("sparsity_designer", '[data-control="n"]', "End", "n", 64),
        ("expert_routing", '[data-control="capacity"]', "Home", "capacity", 0.25),
        ("scan_tree", '[data-control="length"]', "End", "length", 2**20),
        ("delta_rule", '[data-control="query"]', "Home", "query", -180),
        ("one_average", '[data-control="weight"]', "End", "weight", 1),
        ("patching_grid", '[data-control="chosen[0]"]', "End", "chosen", [1, 0]),
        ("rollout_stepper", '[data-control="layer"]', "End", "layer", 1),
        ("induction_head", '[data-control="first_head"]', "Space", "first_head", False),
    ],
)
def test_each_other_figure_moves_and_python_reads_it(notebook, module, moved, key, control, wanted):
    figure = notebook.figure(module)
    folded = figure.locator(".tfx-more").filter(has=notebook.page.locator(moved))
    for summary in folded.locator("summary").all():
        summary.press("Enter")
    figure.locator(moved).press(key)
    notebook.until(module, control, wanted)
    results = notebook.explorable(module, "results()")
    names = ["largest", "total", "wavelength", "turns", "score", "unrotated", "bucket", "kept"]
    names += ["flops_per_byte", "seconds", "best_loss", "effect", "difference", "found"]
    for name in [*names, "mass", "weight_bytes", "activation_bytes", "step_cached", "break_even"]:
        # What Python computes and what the page shows go by the same name.
        shown = figure.locator(f'[data-name="{name}"]')
        if name in results and shown.count():
            assert value(figure, name) == pytest.approx(results[name], abs=1e-9)


def test_python_moves_a_figure_of_two_controls(notebook):
    found = f"{EXPLORABLE.format('rope_rotation')}[0]"
    notebook.python(f"[setattr({found}, 'm', 40), setattr({found}, 'n', 36)]")
    figure = notebook.figure("rope_rotation")
    figure.locator('[data-control="both"][aria-valuetext="+36"]').wait_for()
    score = notebook.explorable("rope_rotation", "score")
    assert value(figure, "score") == pytest.approx(score, abs=1e-9)


def test_a_quiz_answers_wrong_and_right(notebook):
    quizzes = "[o.data for o in Out.values() if getattr(o, 'module', '') == 'quiz']"
    nth = notebook.python(f"['choices' in data for data in {quizzes}]").index(True)
    choices = notebook.explorable("quiz", "data['choices']", nth)
    figure = notebook.figure("quiz", nth)
    for wanted in (False, True):
        index = [c["correct"] for c in choices].index(wanted)
        figure.locator("input[type=radio]").nth(index).check()
        figure.get_by_role("button", name="Check").click()
        kind = "right" if wanted else "wrong"
        told = figure.locator(f'.tfx-feedback[data-kind="{kind}"]')
        assert choices[index]["feedback"].replace("`", "") in told.inner_text()
        notebook.until("quiz", "answer", index, nth)
        assert notebook.explorable("quiz", "correct", nth) is wanted


def test_an_exercise_takes_a_wrong_and_a_right_solution(notebook, lab_folder):
    cell = notebook.cell_with('check("causal-attention", causal_attention)')
    source = """def causal_attention(q, k, v):
return torch.softmax((q @ k.mT / math.sqrt(q.shape[2])).masked_fill(
torch.ones(q.shape[1], q.shape[1]).triu(1).bool(), -math.inf), dim={axis}) @ v

check("causal-attention", causal_attention)""".replace("fill(\n", "fill(")
    for axis, verdict in ((1, "fail"), (-1, "pass")):
        # The editor indents the body by itself.
        notebook.write_cell(cell, source.replace("\nreturn", "\n    return").format(axis=axis))
        cell.locator(f'.tfbook-check[data-state="{verdict}"]').wait_for()
        passed = (lab_folder / "progress/passed/causal-attention").exists()
        assert passed == (verdict == "pass")
    assert cell.locator('[data-mime-type="application/vnd.jupyter.error"]').count() == 0


def told(form):
    return " ".join(form.get_by_role("status").first.inner_text().split())


def test_an_experiment_is_closed_until_it_is_run_after_the_prediction(kinds):
    output = kinds.cell("run").locator(".jp-OutputArea-output")
    assert not output.is_visible()
    kinds.run("imports", "ask")
    form = kinds.cell("ask").locator("form.tfx-predict")
    form.get_by_role("radio").nth(1).check()
    form.get_by_role("button", name="Keep my prediction").click()
    assert told(form) == "Kept: you said “It stays”."
    kinds.hears("[p.answer, p.correct]", [1, False])
    kinds.run("run")
    output.get_by_text("8", exact=True).wait_for()
    assert told(form) == "Kept: you said “It stays”."
    form.get_by_role("button", name="Compare").click()
    assert told(form) == "Kept: you said “It stays”. It went otherwise. Each adds its own."


def test_a_prediction_outlives_the_kernels_object_and_python_may_set_it(kinds):
    kinds.run("ask")
    form = kinds.cell("ask").locator("form.tfx-predict")
    form.get_by_text("you said “It stays”").wait_for()
    kinds.hears("p.answer", 1)
    kinds.python("setattr(p, 'answer', 0)")
    form.get_by_text("you said “It grows”").wait_for()
    assert form.get_by_role("radio").nth(0).is_checked()


def test_an_explanation_is_typed_marked_and_read_in_python(kinds):
    kinds.run("imports", "explain")
    form = kinds.cell("explain").locator("form.tfx-explain")
    field = form.get_by_role("textbox")
    field.click()
    # Letters that are commands of JupyterLab outside of a field.
    kinds.page.keyboard.type("add a bad text, xyz\nand b")
    assert field.input_value() == "add a bad text, xyz\nand b"
    kinds.hears("e.text", "add a bad text, xyz\nand b")
    form.get_by_role("button", name="Compare with a model answer").click()
    for mark in form.get_by_role("checkbox").all():
        mark.check()
    kinds.hears("[e.compared, e.marks, e.complete]", [True, [True] * 3, True])
    assert kinds.cells().count() == len(small().cells)


def test_nothing_was_asked_of_another_machine_and_nothing_failed(notebook):
    assert notebook.foreign == []
    assert [error for error in notebook.errors if error != LATE] == []
