"""Predictions and explanations with a kernel: one small notebook in a real JupyterLab."""

import json
import re
import signal
import subprocess
import sys
import time
from urllib.parse import urlsplit

import nbformat
import pytest

from book.tools import lab as lab_tool
from book.tools import notebooks

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHOICES = '[("It grows.", True, "By `d_k`."), ("It stays.", False, "Each adds its own.")]'
RUBRIC = '["Names it.", "Says why.", "Says when."]'
NAME = "kinds.ipynb"
STEP_MS = 60_000  # a cold import on two busy cores
SETTINGS = {"windowingMode": "none", "autoStartDefaultKernel": True}


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
def folder(tmp_path_factory):
    """What the server shows, and a home for what it writes."""
    folder = tmp_path_factory.mktemp("kinds-lab")
    nbformat.write(small(), folder / NAME)
    tracker = folder / "settings" / "@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
    tracker.parent.mkdir(parents=True)
    tracker.write_text(json.dumps(SETTINGS), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def lab(browser, folder):
    """The notebook in JupyterLab; server and kernels end with the tests."""
    places = {
        "HOME": "home", "IPYTHONDIR": "ipython", "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }  # fmt: skip
    for name in places.values():
        (folder / name).mkdir(exist_ok=True)
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=0", "--ServerApp.allow_root=True", "--LabApp.expose_app_in_browser=True",
        *lab_tool.options(folder, folder),
    ]  # fmt: skip
    own = {name: str(folder / place) for name, place in places.items()}
    log = (folder / "server.log").open("wb")
    server = subprocess.Popen(
        command, env=lab_tool.environment() | own, stdout=log, stderr=subprocess.STDOUT, cwd=folder
    )
    try:
        yield Lab(browser, *listening(server, folder))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        log.close()


def listening(server, folder):
    """Wait until the server has written down where it listens: address and token."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and server.poll() is None:
        for path in (folder / "runtime").glob("jpserver-*.json"):
            if (text := path.read_text(encoding="utf-8")).endswith("}"):
                entry = json.loads(text)
                return f"http://127.0.0.1:{entry['port']}/", entry["token"]
        time.sleep(0.2)
    raise RuntimeError("no server: " + (folder / "server.log").read_text(errors="replace")[-2000:])


class Lab:
    """The notebook, and what a reader does with it."""

    def __init__(self, browser, address, token):
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.context.set_default_timeout(STEP_MS)
        self.foreign, self.errors = [], []
        self.context.route(re.compile(r"^(https?|wss?):"), self.gate)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(f"{address}lab/tree/{NAME}?token={token}&reset")
        self.page.wait_for_function(
            "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
            " === 'idle'"
        )

    def gate(self, route):
        if urlsplit(route.request.url).hostname == "127.0.0.1":
            route.continue_()
        else:
            self.foreign.append(route.request.url)
            route.abort()

    def cell(self, name):
        """A cell by its id, scrolled to."""
        names = [cell.id for cell in small().cells]
        cell = self.page.locator(".jp-Notebook .jp-Cell").nth(names.index(name))
        cell.scroll_into_view_if_needed()
        return cell

    def run(self, *names):
        """Run cells as a reader does, one after the other, and wait for each."""
        for name in names:
            self.page.evaluate(
                """async (at) => {
                    const panel = jupyterapp.shell.currentWidget;
                    panel.content.activeCellIndex = at;
                    await jupyterapp.commands.execute("notebook:run-cell");
                }""",
                [cell.id for cell in small().cells].index(name),
            )

    def python(self, expression):
        """Evaluate an expression in the kernel."""
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

    def until(self, expression, wanted):
        """Wait until Python has heard of a change."""
        deadline = time.monotonic() + STEP_MS / 1000
        while (found := self.python(expression)) != wanted:
            assert time.monotonic() < deadline, f"{expression} is {found}, not {wanted}"
            self.page.wait_for_timeout(50)


def told(form):
    return " ".join(form.get_by_role("status").first.inner_text().split())


def test_an_experiment_is_closed_until_it_is_run_after_the_prediction(lab):
    output = lab.cell("run").locator(".jp-OutputArea-output")
    assert not output.is_visible()
    lab.run("imports", "ask")
    form = lab.cell("ask").locator("form.tfx-predict")
    form.get_by_role("radio").nth(1).check()
    form.get_by_role("button", name="Keep my prediction").click()
    assert told(form) == "Kept: you said “It stays”."
    lab.until("[p.answer, p.correct]", [1, False])
    lab.run("run")
    output.get_by_text("8", exact=True).wait_for()
    assert told(form) == "Kept: you said “It stays”."
    form.get_by_role("button", name="Compare").click()
    assert told(form) == "Kept: you said “It stays”. It went otherwise. Each adds its own."


def test_a_prediction_outlives_the_kernels_object_and_python_may_set_it(lab):
    lab.run("ask")
    form = lab.cell("ask").locator("form.tfx-predict")
    form.get_by_text("you said “It stays”").wait_for()
    lab.until("p.answer", 1)
    lab.python("setattr(p, 'answer', 0)")
    form.get_by_text("you said “It grows”").wait_for()
    assert form.get_by_role("radio").nth(0).is_checked()


def test_an_explanation_is_typed_marked_and_read_in_python(lab):
    lab.run("imports", "explain")
    form = lab.cell("explain").locator("form.tfx-explain")
    field = form.get_by_role("textbox")
    field.click()
    # Letters that are commands of JupyterLab outside of a field.
    lab.page.keyboard.type("add a bad text, xyz\nand b")
    assert field.input_value() == "add a bad text, xyz\nand b"
    lab.until("e.text", "add a bad text, xyz\nand b")
    form.get_by_role("button", name="Compare with a model answer").click()
    for mark in form.get_by_role("checkbox").all():
        mark.check()
    lab.until("[e.compared, e.marks, e.complete]", [True, [True] * 3, True])
    assert lab.page.locator(".jp-Notebook .jp-Cell").count() == len(small().cells)


def test_nothing_was_asked_of_another_machine_and_nothing_failed(lab):
    assert lab.foreign == []
    assert [error for error in lab.errors if "Failed to initialize model" not in error] == []
