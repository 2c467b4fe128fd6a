"""Parts switched off: against edited weights and gates; the model is afterwards as it was."""

import copy

import pytest
import torch
from test_interpret_lens import KIT, V, checks, close, ids, shipped, tiny
from torch import nn
from torch.nn import functional

from tfbook import data, models
from tfbook.interpret import ablation


@pytest.fixture
def kit():
    return KIT


def losses(tokens):
    """Return what measures the loss of each row."""

    def measure(model):
        logits = model(tokens[:, :-1])[0]
        each = functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
        return each.mean(-1)

    return measure


def mean_loss(tokens):
    return lambda model: losses(tokens)(model).mean()


def encoder(kit):
    m = kit.models
    torch.manual_seed(0)
    layer = m.Layer(m.Attention(3), m.FFN(20), place="post")
    config = m.TransformerConfig(V, 12, encoder=[layer] * 2, head=m.MaskedToken(), max_len=32)
    return m.build(config).double().eval()


# zeros


def test_a_head_switched_off_is_one_without_its_columns(kit):
    for kind in ("gpt2", "llama", "both"):
        model, tokens = tiny(kit, kind), ids()
        edited = copy.deepcopy(model)
        with torch.no_grad():
            for layer, head in [(0, 1), (2, 0), (2, 2)]:
                out = edited.stack.blocks[layer].mixer.out_proj
                out.weight.unflatten(1, (model.stack.blocks[0].mixer.n_heads, -1))[:, head] = 0
        with kit.ablated(model, [(0, 1), (2, 0), (2, 2)]):
            found = model(tokens)[0]
        close(found, edited(tokens)[0])
        assert not torch.allclose(found, model(tokens)[0])


def test_layers_switched_off_are_not_there(kit):
    for kind in ("gpt2", "hybrid"):
        model, tokens = tiny(kit, kind), ids()
        edited = copy.deepcopy(model)
        del edited.stack.blocks[1]
        with kit.ablated(model, layers=[1]):
            close(model(tokens)[0], edited(tokens)[0])
        with kit.ablated(model, mixers=[1], ffns=[1]):
            close(model(tokens)[0], edited(tokens)[0])


def test_a_feed_forward_part_switched_off_adds_nothing(kit):
    model, tokens = tiny(kit, "gpt2"), ids()
    edited = copy.deepcopy(model)
    for name in ("weight", "bias"):
        nn.init.zeros_(getattr(edited.stack.blocks[2].ffn.down_proj, name))
    with kit.ablated(model, ffns=[2]):
        close(model(tokens)[0], edited(tokens)[0])


def test_an_encoder_is_switched_off_too(kit):
    model, tokens = encoder(kit), ids()
    edited = copy.deepcopy(model)
    with torch.no_grad():
        edited.stack.blocks[1].mixer.out_proj.weight[:, 4:8] = 0
    with kit.ablated(model, [(1, 1)]):
        close(model(tokens), edited(tokens))


def test_all_switched_off_leaves_the_embedding(kit):
    model, tokens = tiny(kit, "gpt2"), ids()
    with kit.ablated(model, layers=[0, 1, 2]):
        close(model(tokens)[0], kit.logit_lens(model, tokens, layers=[0])[0])


def test_a_cache_is_switched_off_as_the_whole_sequence_is(kit):
    model, tokens = tiny(kit, "llama"), ids()
    with kit.ablated(model, [(0, 3), (1, 1)], ffns=[0], how="mean", reference=ids(4, 9, 8)):
        whole = model(tokens)[0]
        start, state = model(tokens[:, :4])
        rest, _ = model(tokens[:, 4:], state)
    close(torch.cat([start, rest], 1), whole)


# means and other rows


def test_the_mean_is_that_of_the_reference(kit):
    model, tokens, reference = tiny(kit, "gpt2"), ids(), ids(5, 11, 7)
    with kit.capture(model, "*.1.mixer.z") as seen:
        model(reference)
    mean = seen["stack.blocks.1.mixer.z"][:, 2].flatten(0, 1).mean(0)  # (d_value,)

    def put(z):
        z = z.clone()
        z[:, 2] = mean
        return z

    with kit.patched(model, {"stack.blocks.1.mixer.z": put}):
        wanted = model(tokens)[0]
    with kit.ablated(model, [(1, 2)], how="mean", reference=reference):
        close(model(tokens)[0], wanted)


def test_one_text_repeated_is_its_own_mean(kit):
    """Where all rows and places agree, mean and resample take nothing away."""
    model = tiny(kit, "gpt2", embedding=kit.models.Tokens())
    tokens = torch.full((3, 6), 4)
    wanted = model(tokens)[0]
    for how in ("mean", "resample"):
        given = {"heads": [(0, 0), (1, 2)], "ffns": [1], "how": how, "reference": tokens}
        with kit.ablated(model, **given):
            close(model(tokens)[0], wanted)
        with kit.ablated(model, layers=[2], how=how, reference=tokens):
            close(model(tokens)[0], wanted)


def test_resampling_takes_another_row_and_no_other_head(kit):
    model, tokens = tiny(kit, "gpt2"), ids(4)
    for shift in (1, 3):
        with kit.capture(model, "*.mixer.z") as before:
            model(tokens)
        with (
            kit.ablated(model, [(1, 0)], how="resample", reference=tokens, shift=shift),
            kit.capture(model, "*.1.mixer.z") as after,
        ):
            model(tokens)
        was, now = before["stack.blocks.1.mixer.z"], after["stack.blocks.1.mixer.z"]
        assert torch.equal(now[:, 0], was.roll(-shift, 0)[:, 0])
        assert torch.equal(now[:, 1:], was[:, 1:])


def test_the_reference_is_read_without_ablations(kit):
    """Two layers at once: the second takes what it gave in the whole model."""
    model, tokens = tiny(kit, "gpt2"), ids(4)
    with kit.capture(model, "*.2.mixer.z") as before:
        model(tokens)
    heads = [(0, 0), (0, 1), (0, 2), (2, 1)]
    with (
        kit.ablated(model, heads, how="resample", reference=tokens),
        kit.capture(model, "*.2.mixer.z") as after,
    ):
        model(tokens)
    was, now = before["stack.blocks.2.mixer.z"], after["stack.blocks.2.mixer.z"]
    assert torch.equal(now[:, 1], was.roll(-1, 0)[:, 1])


def test_a_model_is_afterwards_what_it_was(kit):
    model, tokens = tiny(kit, "gpt2"), ids()
    model.train()
    wanted, parts = model(tokens)[0], list(model.modules())
    with pytest.raises(RuntimeError, match="in between"):
        with kit.ablated(model, [(0, 0)], layers=[1], how="mean", reference=tokens):
            raise RuntimeError("in between")
    with pytest.raises(RuntimeError, match="in between"), kit.pruned(model, [(0, 0), (2, 1)]):
        raise RuntimeError("in between")
    assert torch.equal(model(tokens)[0], wanted)
    assert all(a is b for a, b in zip(parts, model.modules(), strict=True))
    hooks = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not hooks and all(module.training for module in model.modules())


# which heads matter


def test_effects_are_losses_without_the_head(kit):
    model, tokens = tiny(kit, "llama"), ids(4, 8)
    effects = kit.head_effects(model, mean_loss(tokens))
    assert effects.shape == (3, 6)
    for layer, head in [(0, 0), (1, 4), (2, 5)]:
        edited = copy.deepcopy(model)
        with torch.no_grad():
            out = edited.stack.blocks[layer].mixer.out_proj.weight
            out.unflatten(1, (6, -1))[:, head] = 0
            difference = mean_loss(tokens)(edited) - mean_loss(tokens)(model)
        assert abs(float(effects[layer, head]) - float(difference)) < 1e-6


def test_importance_is_the_slope_along_a_gate(kit):
    """|∂loss / ∂ξ| of each row by differences, with the gate as a factor on the head's columns."""
    model, tokens = tiny(kit, "gpt2"), ids(4, 8)
    found = kit.head_importance(model, losses(tokens))
    assert all(weight.grad is None for weight in model.parameters())
    step = 1e-5
    for layer, head in [(0, 2), (1, 0), (2, 1)]:
        ends = []
        for factor in (1 + step, 1 - step):
            edited = copy.deepcopy(model)
            with torch.no_grad():
                out = edited.stack.blocks[layer].mixer.out_proj.weight
                out.unflatten(1, (3, -1))[:, head] *= factor
                ends.append(losses(tokens)(edited))
        slopes = (ends[0] - ends[1]) / (2 * step)  # (B,), of both signs
        assert abs(float(found[layer, head]) - float(slopes.abs().mean())) < 1e-6
    normalised = kit.head_importance(model, losses(tokens), normalise=True)
    close(normalised.square().sum(-1), torch.ones(3).double())
    close(normalised * found.norm(dim=-1, keepdim=True), found)


def test_importance_of_rows_does_not_cancel(kit):
    """Two rows with slopes of opposite signs are not a head without importance."""
    model, tokens = tiny(kit, "gpt2"), ids(6, 8)
    alone = [kit.head_importance(model, losses(row)) for row in tokens.split(1)]
    close(kit.head_importance(model, losses(tokens)), torch.stack(alone).mean(0))


def test_a_pruned_model_is_one_with_heads_at_zero(kit):
    for kind in ("gpt2", "llama", "both"):
        model, tokens = tiny(kit, kind), ids()
        n_heads = model.stack.blocks[0].mixer.n_heads
        every = [(1, head) for head in range(n_heads)]
        for heads in ([(0, 1)], [(0, 0), (2, n_heads - 1), (2, 0)], [*every, (0, 0)], []):
            with kit.ablated(model, heads):
                wanted = model(tokens)[0]
            size = model.count_parameters()
            with kit.pruned(model, heads):
                assert kind == "llama" or not heads or model.count_parameters() < size
                close(model(tokens)[0], wanted)
                start, state = model(tokens[:, :3])
                rest, _ = model(tokens[:, 3:], state)
                close(torch.cat([start, rest], 1), wanted)
            assert model.count_parameters() == size


def test_the_order_is_that_of_importance(kit):
    importance = torch.tensor([[0.3, 0.1, 0.2], [0.1, 0.9, 0.0]])
    order = kit.prune_order(importance)
    assert order == [(1, 2), (0, 1), (1, 0), (0, 2), (0, 0), (1, 1)]


def test_ablations_kill_induction(kit):
    """The hand-built model: either head of the circuit, and no other head."""
    model = kit.induction_model(30, 24)
    order = torch.stack([torch.randperm(30, generator=torch.manual_seed(i)) for i in range(6)])
    tokens = order[:, :10].repeat(1, 2)

    def hits(model):
        said = model(tokens)[0][:, 10:-1].argmax(-1)
        return (said == tokens[:, 11:]).double().mean()

    assert float(hits(model)) == 1
    lost = -kit.head_effects(model, hits)
    assert float(lost[0, 0]) > 0.6 and float(lost[1, 0]) > 0.6
    assert float(lost[0, 1]) == float(lost[1, 1]) == 0
    other = ids(6, 20, 3, 30)
    for how in ("mean", "resample"):
        lost = -kit.head_effects(model, hits, how=how, reference=other)
        assert float(lost[:, 0].min()) > 0.6 and float(lost[:, 1].abs().max()) == 0


# what is refused, in words


@pytest.mark.untyped
def test_bad_arguments_are_refused_in_words():
    model, tokens = tiny(KIT, "gpt2"), ids()
    mixed = tiny(KIT, "hybrid")
    off = ablation.ablated
    bad = {
        "heads must hold pairs": lambda: off(model, [3]),
        "heads must be a list": lambda: off(model, "zz"),
        "in layers .0, 1, 2. that have heads, got 3": lambda: off(model, [(3, 0)]),
        "in layers .1. that have heads, got 0": lambda: off(mixed, [(0, 0)]),
        "a head of heads must be from 0 to 2": lambda: off(model, [(0, 3)]),
        "an entry of ffns must be from 0 to 2": lambda: off(model, ffns=[3]),
        "how must be one of": lambda: off(model, how="median"),
        "reference is needed": lambda: off(model, how="mean"),
        "more rows than shift": lambda: off(model, how="resample", reference=tokens[:1]),
        "model must have one stack": lambda: off(nn.Linear(2, 2)),
        "heads must name no head twice": lambda: ablation.pruned(model, [(0, 0), (0, 0)]),
        "as many heads in every layer": lambda: ablation.head_effects(mixed, mean_loss(tokens)),
        "loss must return a number": lambda: ablation.head_effects(model, losses(tokens)),
        "losses must return a loss for each row": lambda: ablation.head_importance(
            model, mean_loss(tokens)
        ),
        "gives a gradient to": lambda: ablation.head_importance(
            model, lambda model: losses(tokens)(model).detach()
        ),
        "importance must have shape": lambda: ablation.prune_order(torch.zeros(3)),
        "importance must be numbers": lambda: ablation.prune_order(torch.full((1, 2), torch.nan)),
    }
    for message, call in bad.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()
    with (
        pytest.raises(ValueError, match="as long as the tokens that are read, 7, got 5"),
        off(model, [(0, 0)], how="resample", reference=tokens[:, :5]),
    ):
        model(tokens)
    m = models
    shared = m.Layer(m.Attention(3), m.FFN(16))
    config = m.TransformerConfig(V, 12, decoder=m.share([shared] * 2, 1, what="mixer"))
    with pytest.raises(ValueError, match="parts of its own in each layer"):
        off(m.build(config), [(0, 0)])


# the shipped model


def test_pruning_by_importance_costs_less_than_against_it():
    """The least important quarter against the most important one."""
    language = shipped()
    text = language.encode(data.shakespeare("valid")[:768])[0]
    tokens = text[:768].view(12, 64)
    chosen, held_out = tokens[:6], tokens[6:]
    order = ablation.prune_order(ablation.head_importance(language.model, losses(chosen)))
    few = len(order) // 4
    cost = []
    for heads in (order[:few], order[-few:]):
        with torch.no_grad(), ablation.pruned(language.model, heads):
            cost.append(float(mean_loss(held_out)(language.model)))
    with torch.no_grad():
        whole = float(mean_loss(held_out)(language.model))
    assert whole < cost[0] < cost[1]


CHECKS = checks(globals())
