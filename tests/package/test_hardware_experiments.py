"""The experiments of the chapter on hardware: what they round, leave out and time."""

import pytest
import torch

from tfbook import data, experiments, pretrained
from tfbook.experiments import caches_read, many_at_once, sixteen_bits


def trained(way, steps=3):
    letters = torch.tensor(list(data.shakespeare()[:5000].encode()))
    with torch.random.fork_rng(devices=[]):
        return sixteen_bits.train(way, letters, 0, steps, 1e-3)


def test_without_rounding_the_division_changes_nothing(monkeypatch):
    divided = trained("float32")
    monkeypatch.setattr(sixteen_bits, "MICRO_BATCHES", 1)
    assert trained("float32")["losses"] == pytest.approx(divided["losses"], abs=2e-3)


def test_fp16_loses_gradients_and_a_scale_brings_them_back():
    lost, scaled, exact = (
        trained(way)["zeros"] for way in ("fp16", "fp16, loss scaling", "float32")
    )
    assert min(lost) > 0.03 and max(scaled) < 0.01 and max(exact) < 0.01


def test_an_infinite_gradient_costs_the_step_and_half_of_the_scale(monkeypatch):
    monkeypatch.setattr(sixteen_bits, "MICRO_BATCHES", 2**-14)  # losses times 2^14, S = 2^16
    found = trained("fp16, loss scaling")
    assert found["left_out"] == [0, 1, 2]
    assert found["scales"] == [2.0**16, 2.0**15, 2.0**14]


def test_good_steps_double_the_scale(monkeypatch):
    monkeypatch.setattr(sixteen_bits, "AGAIN", 2)
    assert trained("fp16, loss scaling", 5)["scales"] == [2.0**16] * 2 + [2.0**17] * 2 + [2.0**18]


def test_the_shipped_runs_say_what_the_chapter_says():
    losses = experiments.log("sixteen_bits")["losses"]
    ends = {way: torch.tensor(runs)[:, -50:].mean(1) for way, runs in losses.items()}
    exact, lost = ends.pop("float32"), ends.pop("fp16")
    assert (lost - exact).min() > 0.1
    assert all((each - exact).abs().max() < 0.02 for each in ends.values())


def test_bytes_are_those_of_the_weights():
    model = pretrained.load("smollm2-135m").model
    matrices = sum(part.numel() for part in model.parameters() if part.ndim == 2)
    assert many_at_once.bytes_of("float32") == 4 * matrices
    assert many_at_once.FLOPS == 2 * matrices


def test_no_shipped_pass_is_faster_than_its_bound():
    log = experiments.log("many_at_once")
    for form, ms in log["ms"].items():
        for requests, taken in zip(log["settings"]["requests"], ms, strict=True):
            fetched = log["bytes"][form] / log["bandwidth"]
            computed = requests * many_at_once.FLOPS / log["flops"]
            assert taken > 1e3 * max(fetched, computed)
        assert ms == sorted(ms)
        each = [taken / n for n, taken in zip(log["settings"]["requests"], ms, strict=True)]
        assert each[2] < each[0] / 2


def test_products_are_a_part_of_a_pass_and_four_rows_cost_what_the_program_makes_of_them():
    log = experiments.log("many_at_once")
    for form, ms in log["ms"].items():
        assert all(part < whole for part, whole in zip(log["products"][form], ms, strict=True))
    layer = log["layer"]
    assert layer["oneDNN"][1] < 1.3 * layer["oneDNN"][0]
    assert layer["usual"][1] > 1.5 * layer["usual"][0]


def test_caches_have_the_bytes_of_the_model():
    model = pretrained.load("smollm2-135m").model
    _, state = model.decode(torch.arange(3)[None])
    held = sum(x.nbytes for layer in state.layers for x in (layer.mixer.k, layer.mixer.v))
    assert held == 3 * caches_read.KV_BYTES


def test_a_pass_takes_longer_the_more_its_requests_have_read():
    log = experiments.log("caches_read")
    assert log["kv_bytes"] == caches_read.KV_BYTES
    for runs in log["ms"].values():
        added = [ms[-1] - ms[0] for ms in runs.values()]
        assert 0 < 2 * added[0] < added[1] < added[2] / 2
    assert log["ms"]["int4"]["16"][-1] > 1.5 * log["ms"]["int4"]["16"][0]
