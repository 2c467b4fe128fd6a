"""The figure of a run with a planted fault: its traces, what it says, and whether that is so."""

import json
import math
import re

import pytest

from tfbook import experiments
from tfbook.experiments import traced_faults
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _dashboard

LOG = experiments.log("traced_faults")
FAULTS, RUNS = _dashboard.FAULTS, _dashboard.RUNS
SEEDS = range(len(LOG["settings"]["seeds"]))
X = explorables


def test_every_fault_is_a_run_and_has_its_answer():
    assert sorted(RUNS.values()) == sorted(FAULTS) == sorted(traced_faults.FAULTS)
    assert tuple(_dashboard.TRACES) == traced_faults.TRACES
    assert {trace for _, trace, _, _ in FAULTS.values()} == set(_dashboard.TRACES)


def test_what_a_cell_stores_carries_all_that_the_figure_needs():
    figure = X.debugging_dashboard(LOG)
    html = figure._repr_mimebundle_()["text/html"]
    payload = json.loads(re.search(r'json">(.*?)</script>', html, flags=re.S)[1])
    assert payload.pop("data") == json.loads(json.dumps(figure.data))
    assert payload == figure._now() and len(html) < 20_000
    for key, value in payload.items():
        setattr(figure, key, value)


@pytest.mark.parametrize("letter", RUNS)
def test_traces_are_those_of_the_log(letter):
    figure = X.debugging_dashboard(LOG, letter)
    for step in (0, 5, 7, 150, 295):
        figure.step = step
        for trace in _dashboard.TRACES:
            own, none = (LOG["runs"][name][trace][0] for name in (RUNS[letter], "none"))
            assert getattr(figure, trace) == own[step // 5]
            assert getattr(figure, f"healthy_{trace}") == none[step // 5]


@pytest.mark.parametrize("letter", RUNS)
def test_only_the_right_answer_is_right_and_tells_the_trace(letter):
    figure = X.debugging_dashboard(LOG, letter)
    assert figure.right is None and "Your answer" not in repr(figure)
    for fault, (label, trace, _, _) in FAULTS.items():
        figure.answer = fault
        right = fault == RUNS[letter]
        assert figure.right is right and figure.tells == (trace if right else None)
        assert f"Your answer: {label} {'Yes' if right else 'No'}." in " ".join(repr(figure).split())


def series(name, trace, seed):
    return LOG["runs"][name][trace][seed]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_sign_is_in_the_run_of_its_fault_and_in_no_other(seed):
    """What the figure says of a fault holds for its runs of all seeds, and of no other run."""
    start = math.log(63)
    normal = {trace: series("none", trace, seed) for trace in _dashboard.TRACES}

    def sign_of(name):
        loss, norm, entropy, score = (series(name, t, seed) for t in _dashboard.TRACES)
        return {
            "rate": score[0] < 1 and max(score[:5]) > 100 and loss[-1] > normal["loss"][-1] + 0.3,
            "mask": loss[-1] < 0.5 * normal["loss"][-1] and entropy[-1] < 0.9,
            "shift": loss[20] < 0.2 and min(entropy) > 0.95,
            "scores": entropy[0] < 0.2 and score[0] > 50,
            "gradients": norm[0] < 12 and min(norm[-10:]) > 30,
            "frozen": min(entropy) > 0.95 and max(score) < 1 and loss[-1] > 2.5,
            "head": loss[0] > 3 * start and norm[0] < 20,
        }

    for name in ("none", *FAULTS):
        found = [fault for fault, there in sign_of(name).items() if there]
        assert found == ([] if name == "none" else [name]), name


def test_the_healthy_run_begins_at_knowing_nothing_and_learns():
    assert "ln 63 = 4.14" in FAULTS["head"][2]
    assert LOG["even"] == pytest.approx(math.log(63), abs=1e-4)
    for seed in SEEDS:
        loss, entropy = series("none", "loss", seed), series("none", "entropy", seed)
        assert loss[0] == pytest.approx(LOG["even"], abs=0.1) and loss[-1] < 2.5
        assert entropy[0] > 0.99 and entropy[-1] < 0.8


def test_checks_say_what_the_figure_quotes():
    for fault, (_, _, _, check) in FAULTS.items():
        found = LOG["found"][fault]
        assert (found is None) == (check is None)
    said = {fault: found[0] for fault, found in LOG["found"].items() if found}
    assert said["mask"] == "the model sees the future"
    assert said["shift"] == "targets are the inputs themselves"
    assert said["scores"] == said["rate"] == "attention has collapsed onto single keys"
    assert said["frozen"] == "no gradient reaches a layer"
    assert said["head"] == "the first loss is too high"


def test_a_short_run_has_the_faults_at_its_start():
    short = {fault: traced_faults.learn(fault, 0, 10)[1] for fault in ("scores", "head", None)}
    for fault, traces in short.items():
        stored = LOG["runs"][fault or "none"]
        for trace in ("loss", "entropy", "score"):
            assert traces[trace][0] == pytest.approx(stored[trace][0][0], rel=0.02)


BAD = [
    (lambda: X.debugging_dashboard([]), TypeError, "log must be a mapping, got list"),
    (lambda: X.debugging_dashboard({"runs": {}}), ValueError, "log must be that of the experiment"),
    (lambda: X.debugging_dashboard(LOG, "H"), ValueError, "run must be one of A, B"),
    (lambda: X.debugging_dashboard(LOG, step=296), ValueError, "step must be between 0 and 295"),
    (lambda: X.debugging_dashboard(LOG, healthy=1), TypeError, "healthy must be True or False"),
    (lambda: X.debugging_dashboard(LOG, answer="data"), ValueError, "answer must be one of , rate"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[m for *_, m in BAD])
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()
