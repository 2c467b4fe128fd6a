"""Translators of chapter 01 whose vector is of several sizes, and all else of one."""

import random

import pytest
import torch

from tfbook import experiments
from tfbook.experiments import sentence_length as language
from tfbook.experiments import vector_width as kit


def test_only_what_makes_and_reads_the_vector_grows():
    small, large = (dict(kit.model_of(width).named_parameters()) for width in (24, 192))
    grown = {name for name in small if small[name].shape != large[name].shape}
    assert grown == {"pack.weight", "pack.bias", "first.weight", "layer.weight_ih_l0", "g.weight"}


def test_all_of_the_source_goes_through_the_vector():
    torch.manual_seed(0)
    model = kit.Translator(24)
    torch.nn.init.zeros_(model.pack.weight)
    _, before, _ = language.batch((1,), 1, random.Random(0))
    sources = [language.batch((1,), 1, random.Random(seed))[0] for seed in (1, 2)]
    first, second = (model(source, before) for source in sources)
    assert torch.equal(first, second)


def test_one_call_of_the_layer_is_the_loop_of_the_chapter():
    torch.manual_seed(0)
    model = kit.model_of(48).double()
    source, before, _ = language.batch((2,), 3, random.Random(0))
    c = model.pack(model.encoder(source)[1])
    s, cell = torch.tanh(model.first(c)), torch.nn.GRUCell(96, 48).double()
    cell.load_state_dict({n.removesuffix("_l0"): w for n, w in model.layer.state_dict().items()})
    logits = []
    for y in model.write(before).unbind(1):
        s = cell(torch.cat([y, c], -1), s)
        logits.append(model.g(torch.cat([s, c], -1)))
    torch.testing.assert_close(model(source, before), torch.stack(logits, 1))


def test_an_unknown_width_is_refused():
    with pytest.raises(ValueError, match="width must be one of 24, 48, 96, 192, got 7"):
        kit.model_of(7)


def test_the_log_holds_a_share_for_each_kind():
    log = experiments.log("vector_width")
    for by_steps in log["faultless"].values():
        for rows in by_steps.values():
            assert len(rows) == len(log["kinds"]) == len(language.SHAPES)
            assert all(0 <= share <= 1 for row in rows for share in row)
