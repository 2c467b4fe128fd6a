"""The longer runs: each works from its command, and what it shipped can be read."""

import importlib
import inspect
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tfbook import experiments
from tfbook.experiments.__main__ import main

NAMES = experiments.names()
LONGEST = {
    "shakespeare": 10_800, "wirings": 6_600, "told_earlier": 1_500, "choices": 1_500,
    "longer_loops": 1_500, "read_often": 1_500, "longer_models": 1_500, "hybrid_share": 2_400,
}  # fmt: skip
LARGEST = {"shakespeare": 4_000_000, "translator": 1_800_000}
RESULTS = experiments.RESULTS
NESTED = {"translator": ["beams"]}  # what has parts that a smoke run has too
REPEATED = {"in_context", "warmup", "decay", "summaries"}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def test_the_shipped_log_names_its_command_and_machine(name):
    log = experiments.log(name)
    plain = f"python -m tfbook.experiments {name}"
    elsewhere = "device" in log["machine"]
    assert log["command"] == (f"{plain} --device cuda" if elsewhere else plain)
    assert log["machine"]["torch"].startswith("2.")
    assert log["machine"]["seconds"] <= LONGEST.get(name, 1200)


def test_the_shipped_result_is_small(name):
    sizes = [p.stat().st_size for p in experiments.RESULTS.glob(f"{name}.*")]
    assert sizes and max(sizes) <= LARGEST.get(name, 1_600_000)


@pytest.mark.parametrize("model", sorted(p.stem for p in RESULTS.glob("*.safetensors")))
def test_shipped_weights_are_finite(model):
    assert all(bool(w.isfinite().all()) for w in experiments.weights(model).values())


def test_every_shipped_file_belongs_to_an_experiment():
    stems = {p.stem for p in experiments.RESULTS.iterdir() if p.suffix in (".json", ".safetensors")}
    assert stems <= set(NAMES)
    assert {p.suffix for p in experiments.RESULTS.iterdir()} <= {".json", ".safetensors", ".md"}


def same_kind_of_result(name, folder):
    log = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    shipped = experiments.log(name)
    assert log.keys() == shipped.keys()
    assert log["command"] == f"python -m tfbook.experiments {name} --smoke"
    for part in NESTED.get(name, ()):
        assert log[part].keys() == shipped[part].keys()
    kept, shipped_weights = (f / f"{name}.safetensors" for f in (folder, experiments.RESULTS))
    assert kept.exists() == shipped_weights.exists()
    if kept.exists():
        dtypes = [{w.dtype for w in load_file(file).values()} for file in (kept, shipped_weights)]
        assert dtypes[0] == dtypes[1]
    return log


@pytest.mark.untyped  # as the command runs them
def test_a_smoke_run_gives_the_same_kind_of_log(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["experiments", name, "--smoke", "--folder", str(tmp_path)])
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            main()
            log = same_kind_of_result(name, tmp_path)
            if name in REPEATED:  # with torch's random state as the first run left it
                module = importlib.import_module(f"tfbook.experiments.{name}")
                again, _ = module.run(**module.SMOKE)
                first = {key: log[key] for key in log.keys() - {"command", "machine"}}
                assert json.loads(json.dumps(again)) == first
    finally:
        torch.set_num_threads(threads)


def test_the_command_runs_by_itself(tmp_path):
    command = [sys.executable, "-m", "tfbook.experiments"]
    arguments = ["recall", "--smoke", "--folder", str(tmp_path)]
    subprocess.run(command + arguments, check=True, timeout=900)
    same_kind_of_result("recall", tmp_path)


def run_on(device, name, folder, monkeypatch):
    arguments = [name, "--smoke", "--device", device, "--folder", str(folder)]
    monkeypatch.setattr(sys, "argv", ["experiments", *arguments])
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            main()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.untyped
def test_a_log_names_the_device_that_was_asked_for(tmp_path, monkeypatch):
    run_on("cpu", "unmasking", tmp_path, monkeypatch)
    log = json.loads((tmp_path / "unmasking.json").read_text(encoding="utf-8"))
    assert log["command"] == "python -m tfbook.experiments unmasking --smoke --device cpu"
    assert log["machine"]["device"] == "the device cpu"


@pytest.mark.parametrize(
    ("name", "device", "words"),
    [("recall", "cpu", "recall trains on the processor only"),
     ("unmasking", "nonsense", "no device 'nonsense' is here")],
)  # fmt: skip
def test_a_device_that_cannot_be_had_is_refused(
    name, device, words, tmp_path, monkeypatch, capsys
):
    with pytest.raises(SystemExit, match="2"):
        run_on(device, name, tmp_path, monkeypatch)
    assert words in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_its_module_says_what_it_asks_and_has_a_smoke_run(name):
    module = importlib.import_module(f"tfbook.experiments.{name}")
    assert "?" in module.__doc__
    settings = inspect.signature(module.run).parameters
    assert module.SMOKE.keys() <= settings.keys()
    assert all(p.default is not inspect.Parameter.empty for p in settings.values())


def test_a_log_and_weights_come_back_as_they_were_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    log, weights = {"losses": [2.5, 1.25], "note": "é"}, {"w": torch.arange(6.0).view(2, 3).T}
    experiments.keep(NAMES[0], log, weights, folder=tmp_path)
    assert experiments.log(NAMES[0]) == log
    assert torch.equal(experiments.weights(NAMES[0])["w"], weights["w"])


def test_a_result_that_cannot_be_written_leaves_the_old_one(tmp_path):
    experiments.keep(NAMES[0], {"loss": 1.0}, folder=tmp_path)
    with pytest.raises(ValueError):
        experiments.keep(NAMES[0], {"loss": float("nan")}, folder=tmp_path)
    assert json.loads((tmp_path / f"{NAMES[0]}.json").read_text()) == {"loss": 1.0}
    assert [p.name for p in tmp_path.iterdir()] == [f"{NAMES[0]}.json"]


@pytest.mark.parametrize("call", [experiments.log, experiments.weights])
def test_an_unknown_experiment_is_refused_by_name(call):
    with pytest.raises(ValueError, match="name must be one of .*got 'nothing'"):
        call("nothing")


def test_missing_results_are_said_to_be_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(experiments, "RESULTS", tmp_path)
    with pytest.raises(ValueError, match="shipped no safetensors file"):
        experiments.weights(NAMES[0])


def test_a_run_that_cannot_be_finished_on_disk_leaves_the_old_one(monkeypatch, tmp_path):
    weights = {"w": torch.ones(2)}
    experiments.keep(NAMES[0], {"loss": 1.0}, weights, folder=tmp_path)

    def full_disk(path, content):
        raise OSError("No space left on device")

    monkeypatch.setattr(type(tmp_path), "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space"):
        experiments.keep(NAMES[0], {"loss": 2.0}, {"w": torch.zeros(2)}, folder=tmp_path)
    assert json.loads((tmp_path / f"{NAMES[0]}.json").read_text()) == {"loss": 1.0}
    assert len(list(tmp_path.iterdir())) == 2
