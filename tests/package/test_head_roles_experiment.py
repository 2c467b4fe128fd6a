"""The run behind the roles of heads: shares against the package's patching, places, and the log."""

import pytest
import torch

from tfbook import experiments, interpret, pretrained
from tfbook.experiments import head_roles

LOG = experiments.log("head_roles")


@pytest.fixture(scope="module")
def language():
    return pretrained.load("smollm2-135m")


@pytest.fixture(scope="module")
def pairs(language):
    return interpret.indirect_object_prompts(
        language, 2, generator=torch.Generator().manual_seed(0)
    )


def test_a_share_is_that_of_the_package(language, pairs):
    """A run that begins at the layer of the head gives what a whole run gives."""
    model, tokens = language.model, (pairs.clean, pairs.corrupted)
    with torch.no_grad():
        clean, corrupted = (head_roles.passed(model, each) for each in tokens)
        good, bad = (
            interpret.logit_difference(model(each, last=True)[0], pairs.right, pairs.wrong)
            for each in tokens
        )
        x = corrupted["stack.blocks.23.resid_pre"]
        back = head_roles.lead_with(model, pairs, 23, 3, x, clean) - bad
        whole = interpret.activation_patching(
            model, *tokens, pairs.metric, [interpret.head_site(23, 3)]
        ).item()
    assert back.mean() / (good - bad).mean() == pytest.approx(whole, abs=1e-3)


def test_the_places_are_those_of_the_names(pairs):
    at, each = head_roles.places_of(pairs), torch.arange(2)
    assert torch.equal(pairs.clean[each, at["right"]], pairs.right)
    assert torch.equal(pairs.clean[each, at["other"]], pairs.wrong)
    assert torch.equal(pairs.clean[each, at["giver"]], pairs.wrong)
    assert (at["giver"] > at["other"]).all() and (at["itself"] == pairs.places["end"]).all()


def test_what_a_head_raises_is_its_part_of_the_logits(language, pairs):
    """Right less wrong is what direct attribution gives."""
    model = language.model
    with torch.no_grad():
        seen = head_roles.passed(model, pairs.clean)
        x = model.stack.blocks[-1](seen["stack.blocks.29.resid_pre"])[0][:, -1]
        z = seen["stack.blocks.23.mixer.z"][:, 3, -1]
        asked = torch.stack([pairs.right, pairs.wrong], 1)
        size = x.square().mean(-1).sqrt()
        by = head_roles.raised(model, z, 23, 3, size, asked)
        wanted = interpret.direct_logits(model, pairs.clean, pairs.right, pairs.wrong).heads()
    torch.testing.assert_close(by[:, 0] - by[:, 1], wanted[23, 3], atol=1e-3, rtol=1e-3)


def test_the_log_holds_what_the_run_says():
    settings = LOG["settings"]
    size, heads = (settings["templates"], settings["prompts"]), {
        head_roles.tag(*each) for each in head_roles.HEADS
    }  # fmt: skip
    layers = settings["layers"]
    assert torch.tensor(LOG["map"]).shape == (settings["templates"], len(layers), 9)
    for key, parts in (
        ("shares", ("clean", "same order", "other order")),
        ("weights", (*head_roles.PLACES, "followed")),
        ("raises", ("right", "wrong")),
        ("values", ("first", "right")),
    ):
        for each in LOG[key]:
            assert set(each) == heads and all(set(found) == set(parts) for found in each.values())
        for part in parts:
            assert torch.tensor([each["L23H3"][part] for each in LOG[key]]).shape == size
    for of_map, each in zip(LOG["map"], LOG["shares"], strict=True):
        mean = torch.tensor(each["L23H3"]["clean"]).mean().item()
        assert mean == pytest.approx(of_map[layers.index(23)][3], abs=1e-3)
