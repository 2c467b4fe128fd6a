"""Sums whose order no batch changes: bits are compared, and numbers with those of PyTorch.

That the usual kernels do change it depends on the machine, so no test says so.
"""

import importlib

import fresh
import pytest
import torch
from fresh import Mutant
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tfbook import data, pretrained, serving

LINEARS = ("tree_linear", "tiled_linear")


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.manual_seed(seed), dtype=dtype)


def decoder(position, room=serving):
    """A small decoder in float32, of widths that a vector register divides."""
    m = importlib.import_module(room.__name__.split(".")[0] + ".models")
    mixers = {
        "rotary": m.Attention(4, n_kv_heads=2, d_head=6, position=m.Rotary(), bias=False),
        "alibi": m.Attention(2, position=m.LinearBias()),
        "window": m.Attention(2, position=m.Rotary(), window=5),
        "llama": m.Attention(4, n_kv_heads=2, position=m.Rotary(), bias=False),
    }
    layer = m.Layer(mixers[position], m.FFN(64), norm=m.Norm("rms"))
    if position == "llama":  # which takes few operations where no context replaces its sums
        ffn = m.FFN(64, "swiglu", bias=False)
        layer = m.Layer(mixers["llama"], ffn, norm=m.Norm("rms"), place="pre")
    torch.manual_seed(5)
    model = m.build(m.TransformerConfig(32, 32, decoder=[layer] * 2, max_len=40)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.4 * torch.randn(weight.shape) + (weight.ndim == 1))
    return model


@settings(max_examples=60)
@given(st.integers(1, 19), st.integers(1, 37), st.integers(1, 11))
def test_a_row_gets_the_same_bits_in_any_batch(batch, d, n):
    for name in LINEARS:
        linear = getattr(serving, name)
        x, weight, bias = numbers(batch, d), numbers(n, d, seed=1), numbers(n, seed=2)
        whole = linear(x, weight, bias)
        for row in (0, batch // 2, batch - 1):
            assert torch.equal(linear(x[row], weight, bias), whole[row])
        order = torch.randperm(batch, generator=torch.manual_seed(3))
        assert torch.equal(linear(x[order], weight, bias), whole[order])
        assert torch.equal(linear(x[:, None], weight, bias), whole[:, None])


def test_linear_maps_are_those_of_pytorch(room=serving):
    x, weight, bias = (numbers(*s, dtype=torch.float64) for s in ((3, 5, 13), (7, 13), (7,)))
    for name in LINEARS:
        linear = getattr(room, name)
        torch.testing.assert_close(linear(x, weight), functional.linear(x, weight))
        torch.testing.assert_close(linear(x, weight, bias), functional.linear(x, weight, bias))
        inputs = [each[..., :5].clone().requires_grad_() for each in (x[0, :2], weight[:3])]
        assert torch.autograd.gradcheck(linear, (*inputs, bias[:3].clone().requires_grad_()))
    for rows in (1, 2, 20):
        found = room.tiled_linear(x, weight, rows=rows)
        torch.testing.assert_close(found, functional.linear(x, weight))


def test_sums_are_taken_by_halves(monkeypatch, room=serving):
    """By hand, each addition rounded to float32; pieces of the weight change nothing."""
    x, weight = numbers(4, 11), numbers(6, 11, seed=1)
    found = room.tree_linear(x, weight)
    terms = [(x[:, i, None] * weight[None, :, i]) for i in range(11)]
    while len(terms) > 1:
        half = (len(terms) + 1) // 2
        later = terms[half:]
        terms = [a + later[i] if i < len(later) else a for i, a in enumerate(terms[:half])]
    assert torch.equal(found, terms[0])
    module = importlib.import_module(room.__name__ + ".invariance")
    monkeypatch.setattr(module, "PRODUCTS", 1)
    assert torch.equal(room.tree_linear(x, weight), found)


def test_attention_of_each_alone_is_attention(room=serving):
    q, k, v = (
        numbers(2, h, n, d, dtype=torch.float64) for h, n, d in ((6, 5, 7), (3, 5, 7), (3, 5, 3))
    )
    some = numbers(2, 1, 5, 5, seed=4) > -0.5
    some[..., 0] = True
    bias = numbers(1, 6, 5, 5, seed=5, dtype=torch.float64).masked_fill(~some[:1], -torch.inf)
    for choices in (
        {},
        {"is_causal": True},
        {"attn_mask": some},
        {"attn_mask": bias, "scale": 0.3},
    ):
        wanted = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **choices)
        with room.BatchInvariant():
            found = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **choices)
        torch.testing.assert_close(found, wanted)


class Logged:
    """What a scheduler saw of the logits of each request."""

    def __init__(self, room, model, asked, **choices):
        self.rows = {}
        server = room.Server(model, **({"n_pages": 60, "page_size": 4} | choices))
        choose = server._choose

        def note(logits, requests):
            for row, request in zip(logits, requests, strict=True):
                self.rows.setdefault(request.number, []).append(row.clone())
            return choose(logits, requests)

        server._choose = note
        for prompt, count in asked:
            server.submit(prompt, count)
        for _ in server.run():
            pass
        self.stats = server.stats


@pytest.mark.parametrize("position", ["rotary", "alibi", "window", "llama"])
def test_who_is_served_among_others_gets_the_bits_that_it_gets_alone(position, room=serving):
    """In any batch, behind pages that others wrote, and read again after it lost its own."""
    model = decoder(position, room)
    begin = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    asked = [([7 + i] * (i % 4 + 1), 9 + i % 3) for i in range(5)]
    asked += [(begin + [i], 7) for i in range(4)]
    alone = [Logged(room, model, [each], invariant=True).rows[0] for each in asked]
    for choices in ({}, {"n_pages": 9}, {"max_running": 3}):
        many = Logged(room, model, asked, invariant=True, **choices)
        assert (many.stats.preempted > 0) == ("n_pages" in choices)
        for number, rows in enumerate(alone):
            for one, other in zip(rows, many.rows[number], strict=True):
                assert torch.equal(one, other)
    assert Logged(room, model, asked, invariant=True).stats.shared > 0


def test_smollm_gives_a_row_the_same_bits_in_batches_of_one_and_of_eight():
    model = pretrained.load("smollm2-135m").model
    text = pretrained.load("smollm2-135m", weights="int4").encode(data.shakespeare()[:400])
    for tokens in (text[0, :8, None], text[0, :24].view(8, 3)):
        with serving.BatchInvariant():
            found = serving.batch_differences(model, tokens)
        assert found == (tokens.numel() * model.config.vocab_size, 0, 0.0, 0)
        usual = serving.batch_differences(model, tokens)
        assert usual.largest < 1e-2 and usual.choices <= 1


def test_differences_are_counted(room=serving):
    """With a map that adds to each row how many there are, all logits differ, by a known number."""
    model = decoder("rotary", room).double()
    model.head.register_forward_hook(lambda part, given, out: out + len(out))
    found = room.batch_differences(model, torch.arange(6).view(3, 2))
    assert found.numbers == found.different == 6 * 32
    assert found.largest == pytest.approx(2) and found.choices == 0


@pytest.mark.untyped
def test_what_cannot_be_multiplied_is_refused():
    for name in LINEARS:
        linear = getattr(serving, name)
        with pytest.raises(ValueError, match="weight must have shape"):
            linear(numbers(2, 3), numbers(4, 5))
        with pytest.raises(TypeError, match="same dtype"):
            linear(numbers(2, 3), numbers(4, 3).double())
        with pytest.raises(ValueError, match="x must have a row"):
            linear(numbers(0, 3), numbers(4, 3))
    with pytest.raises(ValueError, match="rows must be"):
        serving.BatchInvariant(rows=0)


MUTANTS = [
    Mutant(
        "the middle one is added twice",
        "tfbook.serving.invariance",
        "products[..., : size - half] += products[..., half:size]",
        "products[..., :half] += products[..., size - half : size]",
        "test_linear_maps_are_those_of_pytorch",
    ),
    Mutant(
        "neighbours are added",
        "tfbook.serving.invariance",
        "    return products[..., 0]\n",
        "    return products.sum(-1) if size > 1 else products[..., 0].clone() * (1 + 1e-7)\n",
        "test_sums_are_taken_by_halves",
    ),
    Mutant(
        "the filling is handed out",
        "tfbook.serving.invariance",
        "functional.linear(tile, weight, bias)[: len(some)]",
        "functional.linear(tile, weight, bias)[-len(some) :]",
        "test_linear_maps_are_those_of_pytorch",
    ),
    Mutant(
        "the scale of the filled row",
        "tfbook.serving.invariance",
        "scale, width = d**-0.5 if scale is None else scale, ",
        "scale, width = 16**-0.5 if scale is None else scale, ",
        "test_attention_of_each_alone_is_attention",
    ),
    Mutant(
        "heads share the wrong keys",
        "tfbook.serving.invariance",
        "(x.repeat_interleave(shared, 1) for x",
        "(x.repeat(1, shared, 1, 1) for x",
        "test_attention_of_each_alone_is_attention",
    ),
    Mutant(
        "biases are left out",
        "tfbook.serving.invariance",
        "bias = mask[b, :, i][:, own][None, :, None]",
        "bias = None",
        "test_attention_of_each_alone_is_attention",
    ),
    Mutant(
        "the future is seen",
        "tfbook.serving.invariance",
        "dtype=torch.bool).tril() if",
        "dtype=torch.bool).tril(1) if",
        "test_attention_of_each_alone_is_attention",
    ),
    Mutant(
        "differences have signs",
        "tfbook.serving.invariance",
        "(together - alone).abs().max()",
        "(alone - together).max()",
        "test_differences_are_counted",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant, monkeypatch):
    room = fresh.copies("sick_sums", ["tfbook.serving"], mutant.edits)
    more = {"monkeypatch": monkeypatch} if "halves" in mutant.caught_by else {}
    with pytest.raises(AssertionError):
        globals()[mutant.caught_by](room=room, **more)
