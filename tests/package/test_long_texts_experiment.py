"""The times of long texts: what is timed is the pass, in parts that add up."""

import pytest
import torch
import torch.nn.functional as F

from tfbook import experiments, pretrained
from tfbook.experiments import long_texts

LOG = experiments.log("long_texts")


@pytest.fixture(scope="module")
def model():
    return pretrained.load("smollm2-135m").model


@pytest.mark.parametrize("what", ["reading", "writing"])
def test_the_parts_add_up_to_the_whole(what):
    found = LOG[what]
    parts = [found[name] for name in ("products", "attention", "rest")]
    assert [sum(each) for each in zip(*parts, strict=True)] == pytest.approx(
        found["whole"], abs=3e-6
    )
    assert all(seconds > 0 for part in parts for seconds in part)


def test_watched_functions_are_the_real_ones_and_come_back(model):
    real, tokens = (F.linear, F.scaled_dot_product_attention), torch.arange(9)[None]
    with torch.no_grad():
        plain, _ = model.decode(tokens)
        with long_texts.watched(dict.fromkeys(long_texts.PARTS, 0.0)) as _:
            watched, _ = model.decode(tokens)
    assert torch.equal(plain, watched)
    assert (F.linear, F.scaled_dot_product_attention) == real


def test_every_product_and_every_attention_is_watched(model):
    count = {"linear": 0, "scaled_dot_product_attention": 0}
    real = {name: getattr(F, name) for name in count}

    def counting(name):
        def call(*given, **named):
            count[name] += 1
            return real[name](*given, **named)

        return call

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for name in count:
            patch.setattr(F, name, counting(name))
        model.decode(torch.arange(9)[None], last=True)
    assert count == {"linear": 30 * 7 + 1, "scaled_dot_product_attention": 30}


def test_a_filled_state_has_seen_as_many_tokens_and_copies_nothing(model):
    with torch.no_grad():
        state = long_texts.filled(model, 12, 3)
        _, after = model.decode(torch.zeros(1, 1, dtype=torch.long), state)
    assert (state.seen, after.seen) == (12, 13)
    for before, behind in zip(state.layers, after.layers, strict=True):
        assert before.mixer.room is behind.mixer.room
        assert torch.equal(before.mixer.k, behind.mixer.k[:, :, :12])
