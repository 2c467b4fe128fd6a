"""Layers that share weights: what is one module, what is counted, what is saved; and the other
choices of a layer that the literature names: parallel, sandwich, norms of queries and keys."""

import copy
import io
import json

import pytest
import torch
from torch import nn

from tfbook.blocks import routing_losses
from tfbook.models import (
    FFN,
    Attention,
    Experts,
    Layer,
    Norm,
    Rotary,
    Shared,
    SharedLayer,
    T5Buckets,
    TransformerConfig,
    active_parameters,
    build,
    preset,
    share,
    sharing_order,
)

V, D = 17, 12
PLAIN = Layer(Attention(2, position=Rotary()), FFN(20, "swiglu"), norm=Norm("rms"))


def model_of(layers, **choices):
    torch.manual_seed(0)
    return build(TransformerConfig(V, D, decoder=layers, **choices)).eval()


def tokens(batch=2, n=9):
    return torch.randint(V, (batch, n), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("order", "what", "n_unique"),
    [("sequence", "all", 1), ("sequence", "all", 2), ("cycle", "all", 2), ("reversed", "all", 2),
     ("cycle", "all", 5), ("sequence", "mixer", 2), ("cycle", "mixer", 1), ("reversed", "ffn", 3),
     ("sequence", "ffn", 4)],
)  # fmt: skip
def test_what_is_shared_is_one_module_and_counted_once(order, what, n_unique):
    layers = share([PLAIN] * 5, n_unique, what=what, order=order)
    model, names = model_of(layers), sharing_order(5, n_unique, order=order)
    blocks = model.stack.blocks
    for i in range(5):
        for j in range(i):
            same = names[i] == names[j]
            assert (blocks[i] is blocks[j]) == (same and what == "all")
            assert (blocks[i].mixer is blocks[j].mixer) == (same and what != "ffn")
            assert (blocks[i].ffn is blocks[j].ffn) == (same and what != "mixer")
    assert model.config.count_parameters() == model.count_parameters()
    one = build(TransformerConfig(V, D, decoder=[PLAIN]))
    part = {"all": one.stack.blocks[0], "mixer": one.stack.blocks[0].mixer,
            "ffn": one.stack.blocks[0].ffn}[what]  # fmt: skip
    plain = model_of([PLAIN] * 5).count_parameters()
    saved = (5 - n_unique) * sum(p.numel() for p in part.parameters())
    assert model.count_parameters() == plain - saved
    # Work and state are those of five layers.
    whole = TransformerConfig(V, D, decoder=[PLAIN] * 5)
    assert model.config.flops(9) == whole.flops(9)
    assert model(tokens())[1].nbytes == whole.kv_cache_bytes(9, 2)


def test_orders_are_those_of_the_paper():
    assert sharing_order(6, 3) == [0, 0, 1, 1, 2, 2]
    assert sharing_order(6, 3, order="cycle") == [0, 1, 2, 0, 1, 2]
    assert sharing_order(6, 3, order="reversed") == [0, 1, 2, 2, 1, 0]
    assert sharing_order(5, 3, order="reversed") == [0, 1, 2, 2, 1]
    assert sharing_order(3, 3, order="reversed") == [0, 1, 2]
    assert sharing_order(4, 1, order="reversed") == [0, 0, 0, 0]


@pytest.mark.parametrize("what", ["all", "mixer", "ffn"])
def test_it_computes_what_copies_of_the_weights_compute(what):
    model, copies = model_of(share([PLAIN] * 4, 2, what=what)), model_of([PLAIN] * 4)
    copies.load_state_dict(model.state_dict())  # every place under its own name
    ids = tokens()
    torch.testing.assert_close(model(ids)[0], copies(ids)[0])
    for each in (model, copies):
        each(ids)[0].square().sum().backward()
    found, wanted = model.stack.blocks[0].ffn.up_proj.weight.grad, 0
    names = range(4) if what == "mixer" else range(2)
    for i in names if what != "mixer" else [0]:
        wanted = wanted + copies.stack.blocks[i].ffn.up_proj.weight.grad
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)  # gradients add up


def test_states_pieces_files_and_copies():
    model, ids = model_of(share([PLAIN] * 4, 2, order="cycle")), tokens()
    whole, _ = model(ids)
    start, state = model(ids[:, :4])
    rest, state = model(ids[:, 4:], state)
    torch.testing.assert_close(torch.cat([start, rest], 1), whole)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = model_of(share([PLAIN] * 4, 2, order="cycle"))
    other.load_state_dict(torch.load(file))
    torch.testing.assert_close(other(ids)[0], whole)
    twin = copy.deepcopy(model)
    assert twin.stack.blocks[0] is twin.stack.blocks[2]
    assert twin.count_parameters() == model.count_parameters()


def test_a_config_survives_json_and_changes():
    for what in ("all", "mixer", "ffn"):
        config = TransformerConfig(V, D, decoder=share([PLAIN] * 6, 3, what=what, order="cycle"))
        assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        for changed in (config.replace(n_layers=9), config.replace(d_ff=8, n_heads=3)):
            assert changed.count_parameters() == build(changed).count_parameters()
    one = TransformerConfig(V, D, decoder=share([PLAIN] * 12))
    assert len(one.to_dict()["decoder"]) == 1  # twelve equal layers, written once


def test_an_encoder_decoder_with_a_shared_bias_shares_too():
    attention = Attention(2, position=T5Buckets())
    layer = Layer(attention, FFN(20))
    for what in ("all", "mixer"):
        config = TransformerConfig(
            V, D, encoder=share([layer] * 3, what=what),
            decoder=share([layer.with_cross()] * 2, what=what),
        )  # fmt: skip
        model = build(config).eval()
        assert config.count_parameters() == model.count_parameters()
        assert model.decoder.blocks[0].cross is model.decoder.blocks[1].cross
        assert model.decoder.blocks[0].cross is not model.decoder.blocks[0].mixer
        assert model.encoder.blocks[0].mixer is not model.decoder.blocks[0].mixer


def test_albert_is_bert_with_one_layer():
    albert = preset("bert-base", vocab_size=30000, pooler=False)
    layers = share(albert.encoder)
    assert isinstance(layers[0], SharedLayer)
    shared = albert.replace(encoder=tuple(layers))
    one = albert.replace(n_layers=1)
    assert shared.count_parameters() == one.count_parameters()
    assert shared.flops(128) == albert.flops(128)


def test_it_equals_the_layers_of_albert():
    from transformers import AlbertConfig
    from transformers.models.albert.modeling_albert import AlbertTransformer

    theirs = AlbertTransformer(AlbertConfig(
        hidden_size=D, embedding_size=D, num_hidden_layers=3, num_hidden_groups=1,
        num_attention_heads=2, intermediate_size=20, hidden_act="gelu",
        attn_implementation="eager", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )).eval()  # fmt: skip
    torch.manual_seed(3)
    for weight in theirs.parameters():
        nn.init.normal_(weight, std=0.4)
    nn.init.eye_(theirs.embedding_hidden_mapping_in.weight)
    nn.init.zeros_(theirs.embedding_hidden_mapping_in.bias)
    layer = Layer(Attention(2), FFN(20, "gelu"), place="post", norm=Norm(eps=1e-12))
    config = TransformerConfig(V, D, encoder=share([layer] * 3))
    stack = build(config).stack.eval()
    names = {
        "mixer.q_proj": "attention.query", "mixer.k_proj": "attention.key",
        "mixer.v_proj": "attention.value", "mixer.out_proj": "attention.dense",
        "mixer_residual.norm": "attention.LayerNorm", "ffn.up_proj": "ffn",
        "ffn.down_proj": "ffn_output", "ffn_residual.norm": "full_layer_layer_norm",
    }  # fmt: skip
    own = theirs.albert_layer_groups[0].albert_layers[0].state_dict()
    stack.blocks[0].load_state_dict({
        f"{name}.{x}": own[f"{other}.{x}"] for name, other in names.items()
        for x in ("weight", "bias")
    })  # fmt: skip
    x = torch.randn(2, 5, D, generator=torch.Generator().manual_seed(4))
    wanted = theirs(x, None)
    wanted = getattr(wanted, "last_hidden_state", wanted)
    torch.testing.assert_close(stack(x)[0], wanted, rtol=1e-4, atol=1e-4)


def test_a_shared_mixture_remembers_every_call_of_a_pass():
    layer = Layer(Attention(2), Experts(9, 4, 2))
    model = model_of(share([layer] * 3))
    moe = model.stack.blocks[0].ffn
    for _ in range(2):
        model(tokens())
        assert len(moe.records) == 3
    copies = model_of([layer] * 3)
    copies.load_state_dict(model.state_dict())
    copies(tokens())
    torch.testing.assert_close(routing_losses(model).balance, routing_losses(copies).balance)
    config = model.config
    idle = 2 * (2 * D * 9 + 9 + D)
    assert active_parameters(config) == config.count_parameters() - idle


REFUSED = {
    "n_unique must be from 1 to 3": lambda: share([PLAIN] * 3, 4),
    "n_unique must be an integer": lambda: share([PLAIN] * 3, True),
    "what must be one of": lambda: share([PLAIN], what="norm"),
    "order must be one of": lambda: share([PLAIN], order="random"),
    "layers must hold layers": lambda: share([3]),
    "layers must be a list": lambda: share(3),
    "layers that share must be alike": lambda: share([PLAIN, Layer(Attention(3), FFN(9))]),
    "spec must be a description": lambda: Shared(3, 0),
    "owner must be at least 0": lambda: Shared(FFN(9), -1),
}


@pytest.mark.untyped
@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_refused_in_words(message):
    with pytest.raises((TypeError, ValueError), match=message):
        REFUSED[message]()


def block_of(**choices):
    torch.manual_seed(2)
    block = model_of([Layer(Attention(2), FFN(20), **choices)]).stack.blocks[0].double()
    for weight in block.parameters():
        nn.init.normal_(weight, std=0.5)
    return block


X = torch.randn(2, 5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def test_parallel_adds_both_to_the_same_rows():
    block = block_of(parallel=True, one_norm=True)
    seen = nn.functional.layer_norm(X, (D,), *block.mixer_residual.norm.parameters())
    torch.testing.assert_close(block(X)[0], X + block.mixer(seen)[0] + block.ffn(seen))


def test_a_sandwich_has_a_norm_on_both_sides_of_a_sublayer():
    block = block_of(place="both")

    def around(x, wiring, sublayer):
        first, last = ([*norm.parameters()] for norm in (wiring.norm, wiring.norm_after))
        y = sublayer(nn.functional.layer_norm(x, (D,), *first))
        return x + nn.functional.layer_norm(y, (D,), *last)

    wanted = around(X, block.mixer_residual, lambda x: block.mixer(x)[0])
    wanted = around(wanted, block.ffn_residual, block.ffn)
    torch.testing.assert_close(block(X)[0], wanted)


def test_norms_of_queries_and_keys_bound_the_scores():
    layer = Layer(Attention(2, qk_norm=Norm("rms"), attend="reference"), FFN(20))
    mixer = model_of([layer]).stack.blocks[0].mixer.double()
    with torch.no_grad():
        mixer.q_proj.weight.mul_(100)
    seen = []
    mixer.scores.register_forward_hook(lambda module, args, scores: seen.append(scores))
    mixer(X)
    finite = seen[0][seen[0].isfinite()]
    assert finite.abs().max() <= (D // 2) ** 0.5 + 1e-6  # |q| |k| / √d = √d · √d / √d
