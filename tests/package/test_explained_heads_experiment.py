"""The run behind "Switching heads off": shares against the package's patching, and the log."""

import pytest
import torch

from tfbook import experiments, interpret, pretrained
from tfbook.experiments import explained_heads

LOG = experiments.log("explained_heads")
RUNS = ("clean", "same place", "other place")


def test_a_single_pair_has_the_share_of_the_package():
    language = pretrained.load("smollm2-135m")
    model = language.model
    pairs = interpret.indirect_object_prompts(
        language, 1, generator=torch.Generator().manual_seed(0)
    )
    sites = [interpret.head_site(*each) for each in explained_heads.NINE]
    with torch.no_grad():
        tokens = (pairs.clean, pairs.corrupted)
        ends = tuple(explained_heads.leads(model, pairs, each) for each in tokens)
        runs = dict(zip(("clean", "corrupted"), map(model_of(model), tokens), strict=True))
        runs |= dict.fromkeys(RUNS[1:], runs["corrupted"])
        found = explained_heads.shares(model, pairs, sites, ends, runs)
    patched = interpret.activation_patching(model, *tokens, pairs.metric, [sites]).item()
    assert found["clean"] == [pytest.approx(patched, abs=1e-3)]
    assert found["same place"] == [pytest.approx(0, abs=1e-3)]


def model_of(model):
    """Return what gives what passed a run."""
    return lambda tokens: explained_heads.passed(model, tokens)


def test_the_log_holds_what_the_run_says():
    settings = LOG["settings"]
    size = (settings["templates"], settings["prompts"])
    for name in explained_heads.GROUPS:
        for kind in (*RUNS, "lost"):
            assert torch.tensor([each[name][kind] for each in LOG["sets"]]).shape == size
    nine = torch.tensor([each["nine"]["clean"] for each in LOG["sets"]])
    drawn = [draw["clean"] for each in LOG["random"] for draw in each]
    assert nine.mean() > 0.9 and torch.tensor(drawn).mean() < 0.1
    lost = torch.tensor([each["nine"]["lost"] for each in LOG["sets"]])
    resampled = torch.tensor([each["nine"]["resample"] for each in LOG["off"]])
    assert torch.allclose(lost, resampled, atol=1e-3)  # two ways to the same run
