"""The harness for accelerators, tried on the processor: what it writes and what it refuses."""

import json

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.tools import Bench, measured, require_close

BENCH = Bench("cpu", tiny=True, warm=1, runs=3)
MUST = {  # of each part, what must be measured on a processor too
    "products": ("TFLOP/s", {"format": "float32"}),
    "copies": ("GB/s", {}),
    "few bits": ("ms", {"format": "int4", "rows": 1}),
    "attention": ("share of roofline", {"form": "sdpa flash", "pass": "backward"}),
    "training": ("tokens/s", {"precision": "bfloat16", "checkpointed": True}),
    "decoding": ("tokens/s", {"way": "called"}),
}


def test_every_part_measures_or_says_why_not(tmp_path):
    path = tmp_path / "gpu.json"
    command.main(["--device", "cpu", "--out", str(path)])
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [p.name for p in tmp_path.iterdir()] == ["gpu.json"]
    assert found["machine"]["torch"] == torch.__version__ and len(found["date"]) == 10
    assert found["command"].startswith("python -m benchmarks.gpu --device cpu") and found["tiny"]
    for part, (measure, asked) in MUST.items():
        rows = found[part]
        assert all(("ms" in row) != ("not measured" in row) for row in rows), part
        assert all(row["low"] <= row["ms"] <= row["high"] for row in rows if "ms" in row), part
        fits = [row for row in rows if all(row[name] == value for name, value in asked.items())]
        assert fits and all(row[measure] > 0 for row in fits), part
    forms = {row["form"]: "ms" in row for row in found["attention"]}
    assert forms["naive"] and forms["sdpa math"] and "tfbook triton" in forms


def test_parts_can_be_chosen_and_others_are_refused(capsys):
    found = command.measure(BENCH, ("decoding",))
    assert set(found) == {"products", "copies", "decoding"}  # shares need the ceilings
    with pytest.raises(SystemExit):
        command.main(["--device", "cpu", "--parts", "cooking"])
    assert "unknown part cooking" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_device_the_command_says_so(capsys):
    with pytest.raises(SystemExit):
        command.main(["--out", "nowhere.json"])
    assert "no CUDA device is here" in capsys.readouterr().err


def test_what_is_wrong_is_not_timed():
    right = torch.randn(5, 7)
    assert require_close(right + 1e-4 * right.abs().max(), right, 2e-4) > 5e-5
    for wrong in (right + 1.0, right * torch.nan):
        row = measured({"n": 5}, lambda wrong=wrong: {"ms": require_close(wrong, right, 1e-2)})
        assert set(row) == {"n", "not measured"} and row["not measured"].startswith("wrong by")


def test_times_are_medians_of_runs_behind_a_warm_up():
    calls = []
    taken = Bench("cpu", tiny=True, warm=4, runs=9).time(lambda: calls.append(1))
    assert len(calls) == 13 and 0 <= taken["low"] <= taken["ms"] <= taken["high"]
