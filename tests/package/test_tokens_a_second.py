"""The experiment that times the ways of writing: with guesses it writes what it writes without."""

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import tokens_a_second as timed
from tfbook.models import FFN, Attention, Layer, Rotary, TransformerConfig, build


@pytest.fixture(scope="module")
def model():
    layer = Layer(Attention(2, position=Rotary()), FFN(32))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(TransformerConfig(7, 16, decoder=[layer] * 2)).eval()


def test_a_guess_is_what_followed_the_last_two():
    assert timed.guess([1, 2, 3, 4, 5, 1, 2], 2) == [3, 4]
    assert timed.guess([1, 2, 3, 1, 2, 4, 1, 2], 4) == [4, 1, 2]  # the latest of two places
    assert timed.guess([1, 2, 3, 4], 4) == []
    assert timed.guess([1, 2, 1, 2], 0) == []


@pytest.mark.parametrize("n", [0, 1, 4])
def test_guesses_leave_the_text_as_it_is(model, n):
    ids, wanted = [1, 2, 3, 1, 2], []
    with torch.no_grad():
        for _ in range(20):
            logits, _ = model.decode(torch.tensor([ids + wanted]))
            wanted.append(int(logits[0, -1].argmax()))
        _, state = model.decode(torch.tensor([ids[:-1]]))
        found, passes = timed.write_ahead(model, ids, state, 20, n)
    assert found == wanted
    assert passes == 20 if n == 0 else passes <= 20


def test_the_shipped_run_compares_equal_texts():
    log = experiments.log("tokens_a_second")
    new = log["settings"]["new"]
    assert all(each["same"] for each in log["ahead"].values())
    assert all(new / 5 <= each["passes"] <= new for each in log["ahead"].values())
    assert len(log["passes"]) == len(log["products"]) == len(log["settings"]["rows"])
