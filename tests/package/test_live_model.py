"""Weights in 8 bits, the script that carries them, and what the figure of them says in Python."""

import base64
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tfbook import data, experiments, pretrained
from tfbook.generation import Sampling
from tfbook.models import preset
from tfbook.pretrained import RoundedRows, restore_rows, round_model, round_rows
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _live, _weights


@pytest.fixture(scope="module")
def loaded():
    """The shipped model in float64."""
    return pretrained.load("shakespeare", dtype=torch.float64)


@pytest.fixture(scope="module")
def rounded(loaded):
    """The same model with 8 bits a number."""
    return round_model(loaded.model)


def read(model, ids, off=(), patch=None):
    """Streams, weights and logits, block by block from the parts: no hooks, heads by `head_mask`.

    patch: (place, character, row) or None.
    """
    streams, looked = [], []

    def keep(place, x):
        if patch is not None and patch[0] == place:
            x = torch.cat([x[:, : patch[1]], patch[2][None, None], x[:, patch[1] + 1 :]], 1)
        streams.append(x[0])
        return x

    with torch.no_grad():
        x = keep(0, math.sqrt(model.config.d_model) * model.embed.weight[torch.tensor([ids])])
        for at, block in enumerate(model.stack.blocks):
            seen = block.mixer_residual.norm(x)
            heads = [f"{at}.{head}" not in off for head in range(block.mixer.n_heads)]
            looked.append(block.mixer.weights(seen)[0])
            x = x + block.mixer(seen, head_mask=torch.tensor(heads))[0]
            if f"{at}.ffn" not in off:
                x = x + block.ffn(block.ffn_residual.norm(x))
            x = keep(at + 1, x)
        logits = model.stack.final_norm(x) @ model.embed.weight.mT
    return torch.stack(streams), torch.stack(looked), logits[0]


def random_text(seed, length):
    """Characters at random, which the model has never seen in such an order."""
    return "".join(random.Random(seed).choices(_live._characters(), k=length))


# ---------------------------------------------------------------------- eight bits


@given(st.integers(0, 999), st.floats(-30, 30))
def test_each_number_is_off_by_half_a_step_at_most(seed, size):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 7, generator=generator, dtype=torch.double) * 2.0**size
    values, scale = round_rows(weight)
    assert values.abs().amax(1).tolist() == [127] * 3
    off = (weight - restore_rows(RoundedRows(values, scale), torch.double)).abs()
    assert (off <= scale.double()[:, None] / 2 * (1 + 1e-4)).all()


def test_it_is_what_torch_makes_of_the_same_scales():
    weight = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    rounded = round_rows(weight)
    zero = torch.zeros(40, dtype=torch.int32)
    wanted = torch.fake_quantize_per_channel_affine(weight, rounded.scale, zero, 0, -127, 127)
    assert torch.equal(restore_rows(rounded), wanted)


def test_each_row_has_its_own_scale():
    weight = torch.tensor([[1e-3, 5e-4], [100.0, 1.0]])
    assert round_rows(weight).values.tolist() == [[127, 64], [127, 1]]


def test_bits_do_not_depend_on_the_dtype(loaded):
    for weight in loaded.model.parameters():
        if weight.ndim == 2:
            one, other = round_rows(weight), round_rows(weight.float())
            assert torch.equal(one.values, other.values) and torch.equal(one.scale, other.scale)


def test_rows_of_zeros_and_no_numbers_stay():
    assert not restore_rows(round_rows(torch.zeros(2, 3))).any()
    assert restore_rows(round_rows(torch.zeros(2, 0))).shape == (2, 0)
    assert restore_rows(round_rows(torch.zeros(0, 2))).shape == (0, 2)


def test_only_matrices_of_a_copy_are_rounded(loaded, rounded):
    fresh = pretrained.load("shakespeare", dtype=torch.float64).model.state_dict()
    for name, after in rounded.state_dict().items():
        before = loaded.model.state_dict()[name]
        assert torch.equal(before, fresh[name])
        if after.ndim == 2:
            wanted = restore_rows(round_rows(before), torch.double)
            assert torch.equal(after, wanted) and not torch.equal(after, before)
        else:
            assert torch.equal(after, before)
    again = round_model(rounded)
    assert torch.equal(rounded.embed.weight, again.embed.weight)  # once is enough


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: round_rows(torch.ones(3)), ValueError, "weight"),
        (lambda: round_rows(torch.ones(2, 2, 2)), ValueError, "weight"),
        (lambda: round_rows(torch.ones(2, 2, dtype=torch.long)), TypeError, "weight"),
        (lambda: round_rows(torch.tensor([[1.0, math.nan]])), ValueError, "weight"),
        (lambda: round_rows([[1.0]]), TypeError, "weight"),
        (lambda: restore_rows((1, 2)), TypeError, "rounded"),
        (lambda: restore_rows(round_rows(torch.ones(1, 1)), torch.long), TypeError, "dtype"),
        (lambda: round_model(torch.ones(1)), TypeError, "model"),
        (lambda: _weights.model_file("shakespeare"), TypeError, "loaded"),
        (lambda: _weights.live_script("nobody"), ValueError, "name"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_eight_bits_cost_what_the_page_says():
    """Eight windows of 220; over windows the difference has a deviation of 0.0007."""
    model = pretrained.load("shakespeare")
    ids = torch.tensor(model.tokenizer.encode(data.shakespeare("valid")).ids)
    rows = ids[: 220 * 256].view(220, 256)[::28]

    def loss(model):
        with torch.no_grad():
            logits = model(rows[:, :-1])[0]
        return functional.cross_entropy(logits.mT, rows[:, 1:]).item()

    cost = loss(round_model(model.model)) - loss(model.model)
    assert cost == pytest.approx(_live.LOSS["rounded"] - _live.LOSS["shipped"], abs=0.001)
    known = experiments.log("shakespeare")["final"]["shipped"]["valid"]
    assert _live.LOSS["shipped"] == pytest.approx(known, abs=0.001)


# ---------------------------------------------------------------------- the script


def test_the_script_carries_the_rounded_weights(loaded, rounded):
    script = _weights.live_script()
    start, _, rest = script.partition(" = ")
    assert start == '(window.tfbookWeights ||= {})["shakespeare"]'
    assert len(script.encode()) <= 2_000_000
    file = json.loads(rest.rstrip(";\n"))
    bits = base64.b64decode(file["data"])
    taken = 0
    for tensor in file["tensors"]:
        rows, cols, at = tensor["rows"], tensor["cols"], tensor["numbers"]
        if cols:
            whole = np.frombuffer(bits, "i1", rows * cols, at).reshape(rows, cols)
            scale = np.frombuffer(bits, "<f4", rows, tensor["scale"])
            found = whole.astype("f8") * scale.astype("f8")[:, None]
            taken += rows * cols + 4 * rows
        else:
            found = np.frombuffer(bits, "<f4", rows, at)
            taken += 4 * rows
        assert (found == rounded.state_dict()[tensor["name"]].numpy()).all()
    assert taken == len(bits)
    assert {t["name"] for t in file["tensors"]} == set(loaded.model.state_dict())
    words = loaded.tokenizer.get_vocab()
    assert [words[character] for character in file["characters"]] == list(range(63))


def test_other_models_are_refused(loaded):
    other = preset("gpt2").tiny() if hasattr(preset("gpt2"), "tiny") else preset("gpt2")
    wrong = pretrained.Pretrained("other", nn.Linear(1, 1), loaded.tokenizer, other)
    with pytest.raises(ValueError, match="loaded"):
        _weights.model_file(wrong)


# ---------------------------------------------------------------------- the figure in Python


@pytest.mark.parametrize(
    ("off", "patch"),
    [((), ()), (("0.1", "3.3"), ()), (("1.ffn", "2.0"), ()), ((), (0, 3, 5)), ((), (4, 19, 10)),
     (("0.ffn", "1.2"), (2, 7, 19))],
)  # fmt: skip
def test_the_figure_says_what_the_parts_compute(rounded, off, patch):
    text, other = random_text(len(off), 20), random_text(9, 20)
    ids, others = ([_live._characters().index(c) for c in t] for t in (text, other))
    figure = explorables.live_model(
        text, other=other, off=off, patch=patch, layer=2, head=1, temperature=0.7, top_k=9,
        top_p=0.8,
    )  # fmt: skip
    row = read(rounded, others)[0][patch[0], patch[1]] if patch else None
    streams, looked, logits = read(rounded, ids, off, patch and (patch[0], patch[2], row) or None)
    near = {"abs": 1e-10, "rel": 0}
    assert figure.logits == pytest.approx(logits[-1].tolist(), **near)
    assert figure.next == pytest.approx(logits[-1].softmax(-1).tolist(), **near)
    assert figure.weights == pytest.approx(looked[2, 1, -1].tolist(), **near)
    plain = read(rounded, ids)[2][-1].softmax(-1)
    assert figure.untouched == pytest.approx(plain.tolist(), **near)
    cut = Sampling(temperature=0.7, top_k=9, top_p=0.8)(logits[-1]).softmax(-1)
    assert figure.drawn_from == pytest.approx(cut.tolist(), **near)
    with torch.no_grad():
        seen = rounded.stack.final_norm(streams[:, -1]) @ rounded.embed.weight.mT
    for found, wanted in zip(figure.lens, seen.softmax(-1).tolist(), strict=True):
        assert found == pytest.approx(wanted, **near)
    assert figure.lens[-1] == pytest.approx(figure.next, **near)


def test_the_model_is_left_as_it_was():
    before = explorables.live_model().logits
    figure = explorables.live_model(off=["0.0", "2.ffn"], patch=[1, 2, 3])
    assert figure.logits != before
    assert not any(module._forward_hooks for module in _live._model().model.modules())
    assert explorables.live_model().logits == before


def test_a_patch_changes_only_what_comes_after_it():
    text = random_text(3, 20)
    plain = _live.run(text)
    for place in range(5):
        row = torch.ones(160, dtype=torch.double)
        logits = _live.run(text, (), (place, 11, row)).logits
        changed = (logits != plain.logits).any(-1)
        assert not changed[:11].any() and changed[11]
        assert changed[12:].any() == (place < 4)  # the last stream is read by nobody but the head


def test_the_text_says_what_is_likely():
    words = " ".join(repr(explorables.live_model(off=["1.2"], patch=[2, 5, 6])).split())
    figure = explorables.live_model(off=["1.2"], patch=[2, 5, 6])
    best = max(range(63), key=figure.next.__getitem__)
    assert f"“{_live._characters()[best]}” {figure.next[best]:.2f}" in words
    assert "Switched off: 1.2." in words and "behind layer 1 at character 6" in words


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"text": ""}, ValueError, "text"),
        ({"text": "a" * 97}, ValueError, "text must have 1 to 96"),
        ({"text": "price: 3"}, ValueError, "'3'"),
        ({"text": 3}, TypeError, "text"),
        ({"other": "é"}, ValueError, "other"),
        ({"text": "abc", "token": 3}, ValueError, "token"),
        ({"layer": 4}, ValueError, "layer"),
        ({"head": -1}, ValueError, "head"),
        ({"off": "0.1"}, TypeError, "off"),
        ({"off": ["4.0"]}, ValueError, "off"),
        ({"patch": [1, 2]}, ValueError, "patch"),
        ({"patch": [5, 0, 0]}, ValueError, "the place in patch"),
        ({"text": "ab", "patch": [0, 0, 2]}, ValueError, "of text in patch"),
        ({"other": "ab", "patch": [0, 2, 0]}, ValueError, "of other in patch"),
        ({"temperature": 0}, ValueError, "temperature"),
        ({"top_k": 64}, ValueError, "top_k"),
        ({"top_p": 0}, ValueError, "top_p"),
        ({"seed": 1.5}, TypeError, "seed"),
    ],
)
@pytest.mark.untyped
def test_what_the_figure_refuses(given, error, words):
    with pytest.raises(error, match=re.escape(words)):
        explorables.live_model(**given)


def test_what_is_stored_is_small_and_holds_no_weights():
    html = explorables.live_model()._html()
    assert len(html) < 4_000 and 'asked": false' in html


def test_python_hands_over_the_weights_when_asked():
    figure = explorables.live_model()
    assert "file" not in figure.widget.data
    figure.asked = True
    file = figure.widget.data["file"]
    assert file == _weights.model_file(pretrained.load("shakespeare"))
    assert "file" not in figure.data and len(figure._html()) < 4_000


# ---------------------------------------------------------------------- the page


def test_the_page_says_what_the_model_does():
    """Every number on the page, computed; where it stands beside others, with them."""
    page = Path(__file__).resolve().parents[2] / "book" / "live_models.md"
    words = " ".join(page.read_text(encoding="utf-8").split())
    thou, they = _live.TEXT, _live.OTHER
    assert (thou, they) == ("O, thou ha", "O, they ha")
    plain, source = _live.run(thou), _live.run(they)
    s, v, a = (_live._characters().index(letter) for letter in "sva")

    def p(text, *changes):
        return _live.run(text, *changes).logits[-1].softmax(-1)

    lens = _live.lens(plain.streams[:, -1])
    assert lens.argmax(-1).tolist() == [a, a, v, v, s]
    assert f"as in *hast*: {lens[4, s]:.2f}" in words
    heads = {(at, head): plain.looked[at, head, -1] for at in range(4) for head in range(4)}
    readers = {at for at, row in heads.items() if row[6] > 0.85}
    assert readers == {(2, 2), (2, 3), (3, 3)} and thou[6] == "u" and they[6] == "y"
    without = {at: p(thou, (f"{at[0]}.{at[1]}",))[s] for at in heads}
    assert f"falls from {p(thou)[s]:.2f} to {without.pop((3, 3)):.2f}" in words
    kept = sum(share > 0.8 for share in without.values())
    assert f"Of the other {len(without)} heads, each switched off alone, {kept} leave" in words
    moved = [p(thou, (), (place, 6, source.streams[place, 6])) for place in range(5)]
    assert "`v` " + ", ".join(f"{row[v]:.2f}" for row in moved[1:4]) in words
    assert p(they).argmax() == v and torch.equal(moved[4], p(thou))
    last = [p(thou, (), (place, 9, source.streams[place, 9])) for place in range(5)]
    for place in (1, 2):
        assert (last[place] - p(thou)).abs().max() < 0.01
    assert torch.allclose(last[4], p(they), atol=1e-12)
    shipped, rounded = _live.LOSS["shipped"], _live.LOSS["rounded"]
    assert f"cost {shipped:.4f} nats a character and the rounded ones {rounded:.4f}" in words
    assert f"eight bits cost {rounded - shipped:.4f} nats" in words
    assert f"makes {len(_weights.live_script().encode()) / 1e6:.1f} MB" in words
    held_out = len(data.shakespeare("valid"))
    assert f"the {held_out / 1000:.0f} thousand characters" in words
