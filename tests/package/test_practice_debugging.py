"""The checklist: each planted fault is found, at its place, and healthy models yield nothing."""

import copy
import math

import pytest
import torch
from practice_kit import KIT, checks, decoder, encoder, ids, normal
from torch import nn
from torch.nn import functional

from tfbook import pretrained

N_LAYERS = 4


@pytest.fixture
def kit():
    return KIT


def fresh(kit, kind="llama", **choices):
    """Return a model as it is drawn, with d_model 12."""
    m = kit.models
    torch.manual_seed(0)
    if kind == "llama":
        attention = m.Attention(2, position=m.Rotary(), bias=False, **choices)
        layer = m.Layer(attention, m.FFN(24, "swiglu", bias=False), norm=m.Norm("rms"))
        return m.build(m.TransformerConfig(19, 12, decoder=[layer] * N_LAYERS, init="gpt2")).eval()
    layer = m.Layer(m.Attention(3, **choices), m.FFN(24, "gelu"))
    return m.build(m.TransformerConfig(19, 12, decoder=[layer] * N_LAYERS, init="gpt2",
                   embedding=m.Tokens(m.Learned()), max_len=32)).eval()  # fmt: skip


def lm_loss(kit, tokens):
    return lambda model: kit.training.causal_loss(model, tokens)


def only(found, what, where=""):
    """Assert one finding, and what it says."""
    assert len(found) == 1, found
    (one,) = found
    assert what in one.what and where in one.where, one
    assert one.expected and one.advice and isinstance(one.measured, float)
    return one


# healthy models


def test_healthy_models_yield_nothing(kit):
    tokens = ids(3, 9)
    assert kit.checklist(fresh(kit, "gpt2"), tokens, fresh=True) == []
    assert kit.checklist(decoder(kit), tokens) == []
    shipped = pretrained.load("shakespeare").model
    text = pretrained.load("shakespeare").encode("To be, or not to be")
    for look in (kit.leaks, kit.dead_heads, kit.entropy_collapse, kit.forgotten_eval):
        assert look(shipped, text) == []
    assert kit.gradient_flow(shipped, lm_loss(kit, text)) == []


def test_looking_changes_nothing_and_healthy_models_are_quiet(kit):
    tokens = ids(3, 9)
    assert kit.checklist(fresh(kit), tokens, fresh=True) == []
    model = fresh(kit).train()
    weights, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    kit.checklist(model, tokens, fresh=True)
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(part._forward_hooks for part in model.modules())


# leaks


def test_an_attention_without_its_mask_leaks(kit):
    model = fresh(kit)
    model.stack.blocks[2].mixer.causal = False
    one = only(kit.leaks(model, ids(2, 7)), "sees the future", "place 0")
    assert one.measured > 1e-4


class Blurred(nn.Module):
    """A layer that takes the mean with the next place, from some place on."""

    def __init__(self, inner, start):
        super().__init__()
        self.inner, self.start = inner, start

    def forward(self, tokens, mask=None):
        logits = self.inner(tokens)[0]
        later = logits.roll(-1, 1)
        reach = torch.arange(logits.shape[1])[:, None] >= self.start
        return torch.where(reach, (logits + later) / 2, logits)


def test_the_first_place_that_sees_ahead_is_named(kit):
    only(kit.leaks(Blurred(fresh(kit), 3), ids(2, 7)), "future", "place 3")


def test_padding_that_is_seen_is_found(kit):
    model, tokens = fresh(kit), ids(2, 7)
    mask = torch.tensor([[False, False, True, True, True, True, True], [True] * 7])
    assert kit.leaks(model, tokens, mask=mask) == []

    class Deaf(nn.Module):
        def forward(self, tokens, mask=None):
            return model(tokens)[0]

    only(kit.leaks(Deaf(), tokens, mask=mask), "padding changes", "mask")
    assert kit.leaks(Deaf(), tokens, mask=torch.ones(2, 7, dtype=torch.bool)) == []


# targets, padding, modes


def test_targets_moved_by_another_number_are_found(kit):
    tokens = ids(3, 11)
    inputs = tokens[:, :-1]
    assert kit.wrong_shift(inputs, tokens[:, 1:]) == []
    one = only(kit.wrong_shift(inputs, inputs), "the inputs themselves", "shift 0")
    assert one.measured < 0.5
    only(kit.wrong_shift(tokens[:, :-2], tokens[:, 2:]), "moved by 2", "shift 2")
    only(kit.wrong_shift(tokens[:, 1:], tokens[:, :-1]), "moved by -1", "shift -1")
    only(kit.wrong_shift(inputs, ids(3, 10, seed=8)), "by any shift")
    some = tokens[:, 1:].clone()
    some[:, :5] = kit.training.IGNORE
    assert kit.wrong_shift(inputs, some) == []
    same = torch.full((2, 6), 3)  # every shift fits
    assert kit.wrong_shift(same, same) == []
    assert kit.wrong_shift(inputs, torch.full_like(inputs, kit.training.IGNORE)) == []


def test_padding_on_the_wrong_side_is_found(kit):
    left = torch.tensor([[False, True, True], [True, True, True]])
    assert kit.wrong_padding(left) == [] == kit.wrong_padding(left.flip(1), wanted="right")
    one = only(kit.wrong_padding(left.flip(1)), "not on the left", "row 0")
    assert one.measured == 0.5
    only(kit.wrong_padding(left, wanted="right"), "not on the right", "row 0")
    gap = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    assert kit.wrong_padding(gap)[0].where == "row 1"
    assert kit.wrong_padding(gap, wanted="right")[0].measured == pytest.approx(2 / 3)


def test_a_forgotten_eval_is_found_by_two_answers(kit):
    model = fresh(kit, "gpt2", dropout=0.3)
    assert kit.forgotten_eval(model, ids(2, 5)) == []
    one = only(kit.forgotten_eval(model.train(), ids(2, 5)), "training mode")
    assert one.measured > 0
    model.eval()
    model.stack.blocks[1].train()
    only(kit.forgotten_eval(model, ids(2, 5)), "training mode", "stack.blocks.1")

    class Dice(nn.Module):
        def forward(self, tokens):
            return torch.rand(*tokens.shape, 5)

    only(kit.forgotten_eval(Dice().eval(), ids(2, 5)), "by chance")


# numbers


def test_a_first_loss_that_is_not_ln_v_is_found(kit):
    tokens = ids(3, 9)
    model, loss = fresh(kit), lm_loss(kit, tokens)
    assert kit.start_loss(model, loss, 19) == []
    with torch.no_grad():
        model.embed.weight.mul_(200)  # tied to the head
    only(kit.start_loss(model, loss, 19), "too high", "before training")
    one = only(kit.start_loss(fresh(kit), lambda m: loss(m)[0] / 100, 19), "too low")
    assert f"{math.log(19):.3f}" in one.expected


def test_a_dead_head_is_found_by_what_it_adds(kit):
    for how in ("values", "output"):
        model = fresh(kit, "gpt2")
        mixer = model.stack.blocks[2].mixer
        with torch.no_grad():
            if how == "values":
                mixer.v_proj.weight[4:8] = 0
                mixer.v_proj.bias[4:8] = 0
            else:
                mixer.out_proj.weight[:, 4:8] *= 1e-5
        only(kit.dead_heads(model, ids(2, 9)), "next to nothing", "blocks.2.mixer, head 1")


class Chain(nn.Module):
    """Plain layers without residual connections, each scaled."""

    def __init__(self, gain, depth=6):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        with torch.no_grad():
            for block in self.blocks:
                nn.init.orthogonal_(block.weight, gain)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_gradients_that_vanish_or_explode_are_found_in_their_layer(kit):
    x = normal(7, 16, dtype=torch.float32)

    def loss(model):
        return model(x).square().mean()

    assert kit.gradient_flow(Chain(1.0), loss) == []
    for scale, what in ((1e4, "explodes"), (1e-4, "vanishes")):
        model = Chain(1.0)
        with torch.no_grad():
            model.blocks[3].weight.div_(scale)  # so that what the layer says stays as it was
        model.blocks[3].register_forward_pre_hook(lambda part, args, s=scale: (args[0] * s,))
        one = only(kit.gradient_flow(model, loss), f"the gradient {what}", "layer 3")
        assert one.measured == pytest.approx(scale, rel=0.5)


def test_gradients_vanish_through_sigmoids(kit):
    x = normal(7, 16, dtype=torch.float32)

    class Sigmoids(Chain):
        def forward(self, x):
            for block in self.blocks:
                x = torch.sigmoid(block(x))
            return x

    found = kit.gradient_flow(Sigmoids(0.3, depth=9), lambda m: m(x).square().mean())
    vanishing = [each.where for each in found if each.what == "the gradient vanishes"]
    assert "layer 0" in vanishing and "layer 1" in vanishing


def test_a_layer_that_no_gradient_reaches_is_found(kit):
    model, loss = fresh(kit), lm_loss(kit, ids(3, 9))
    kit.freeze(model, "stack.blocks.1.*")
    only(kit.gradient_flow(model, loss), "no gradient reaches", "layer 1")
    model = fresh(kit)
    model.stack.blocks[2].register_forward_hook(lambda part, args, out: (out[0].detach(), out[1]))
    found = kit.gradient_flow(model, loss)
    assert [each.where for each in found] == ["layer 0", "layer 1", "layer 2"]
    assert {each.what for each in found} == {"no gradient reaches a layer"}
    model = fresh(kit)
    with torch.no_grad():
        model.stack.blocks[3].mixer.q_proj.weight[0, 0] = math.nan
    found = kit.gradient_flow(model, loss)
    assert {each.what for each in found} == {"a gradient is not finite"}


def test_attention_that_has_collapsed_is_found(kit):
    model = fresh(kit, "gpt2")
    mixer = model.stack.blocks[1].mixer
    with torch.no_grad():
        mixer.q_proj.weight.mul_(1e4)
        mixer.k_proj.weight.mul_(1e4)
    one = only(kit.entropy_collapse(model, ids(2, 9)), "collapsed", "stack.blocks.1.mixer")
    assert one.measured < 0.05
    assert kit.entropy_collapse(encoder(kit), ids(2, 9)) == []


def test_even_attention_has_all_of_its_entropy(kit):
    for model in (fresh(kit, "gpt2"), encoder(kit)):
        with torch.no_grad():
            for block in model.stack.blocks:
                block.mixer.q_proj.weight.zero_()
                block.mixer.q_proj.bias.zero_()
        assert kit.entropy_collapse(model, ids(2, 9), share=0.9999) == []


def test_a_jump_of_the_rate_and_of_the_loss_is_found(kit):
    history = kit.training.History()
    for step in range(60):
        rate = min(1.0, (step + 1) / 20) * 1e-3
        loss = 4 * math.exp(-step / 20) + 0.02 * math.cos(3.0 * step)
        history.add(loss=loss, gradient_norm=1.0, learning_rate=rate, count=1)
    assert kit.rate_spikes(history) == []
    history.learning_rates[40:43] = [1e-2] * 3
    one = only(kit.rate_spikes(history), "learning rate jumps", "step 40")
    assert one.measured == 1e-2
    history.losses[42:44] = [9.0, 8.0]
    found = kit.rate_spikes(history)
    assert [each.what for each in found] == ["the learning rate jumps", "the loss jumps"]
    assert found[1].where == "step 42, at a rate of 0.01" and found[1].measured == 9.0
    history.losses[55] = 9.0
    assert kit.rate_spikes(history)[-1].where.startswith("step 55")


def test_a_real_run_with_a_rate_that_jumps_is_told(kit):
    model = fresh(kit)
    schedule = lambda step: 300.0 if step == 30 else 1.0  # noqa: E731
    found = kit.training.fit(
        model, [ids(3, 9)], loss=kit.training.causal_loss, steps=40, progress=False,
        optimizer=lambda m: torch.optim.Adam(m.parameters(), 3e-3), schedule=schedule,
    )  # fmt: skip
    whats = [each.what for each in kit.rate_spikes(found)]
    assert whats == ["the learning rate jumps", "the loss jumps"]


def test_a_silent_broadcast_is_found_in_the_loss(kit):
    outputs, wanted = normal(7, 1), normal(7)
    losses = {
        "mse_loss": functional.mse_loss, "sub": lambda a, b: (a - b).square().mean(),
        "rsub": lambda a, b: (b - a).abs().mean(), "mul": lambda a, b: -(a * b).mean(),
    }  # fmt: skip
    for name, loss in losses.items():
        one = only(kit.silent_broadcasts(loss, outputs, wanted), "broadcast", "(7")
        assert one.measured == 49.0 and name.strip("r")[:3] in one.where
        assert kit.silent_broadcasts(loss, outputs[:, 0], wanted) == []
        assert kit.silent_broadcasts(loss, outputs, wanted[:, None]) == []
    weighted = lambda a, b: ((a - b) * torch.ones(5)).mean()  # noqa: E731
    assert kit.silent_broadcasts(weighted, normal(7, 5), normal(7, 5)) == []
    assert kit.silent_broadcasts(lambda a, b: functional.cross_entropy(a, b), normal(7, 5),
                                 ids(7, below=5)) == []  # fmt: skip


def test_a_test_text_that_was_learned_is_found(kit):
    words = " ".join(f"word{i}" for i in range(40))
    clean = " ".join(f"other{i}" for i in range(40))
    assert kit.seen_tests([clean], [words]) == []
    found = kit.seen_tests([clean, clean[:30] + " " + words[90:250]], [clean[::-1], words])
    one = only(found, "was learned", "test text 1")
    assert one.measured >= 13 and "training text 1" in one.where


def test_a_model_that_cannot_learn_one_batch_is_found(kit):
    tokens = ids(2, 7)
    loss = lm_loss(kit, tokens)
    assert kit.stuck_on_one_batch(fresh(kit), loss) == []
    frozen = fresh(kit)
    kit.freeze(frozen)
    only(kit.stuck_on_one_batch(frozen, loss), "by heart", "after 0 steps")
    cut = fresh(kit)
    cut.stack.final_norm.register_forward_hook(lambda part, args, y: torch.zeros_like(y))
    only(kit.stuck_on_one_batch(cut, loss), "by heart", "after ")
    calls = iter(range(10**6))

    def other_targets(model):
        logits = model(tokens)[0]
        return functional.cross_entropy(logits.flatten(0, 1), ids(14, seed=next(calls)))

    only(kit.stuck_on_one_batch(fresh(kit), other_targets), "by heart", "after 150 steps")
    only(kit.stuck_on_one_batch(fresh(kit), loss, lr=1e-7), "by heart")


def test_the_checklist_gathers_what_each_check_says(kit):
    model = fresh(kit, "gpt2")
    model.stack.blocks[2].mixer.causal = False
    with torch.no_grad():
        model.stack.blocks[0].mixer.v_proj.weight[:4] = 0
        model.stack.blocks[0].mixer.v_proj.bias[:4] = 0
    kit.freeze(model, "stack.blocks.3.*")
    found = kit.checklist(model.train(), ids(3, 9))
    assert [each.what for each in found][:4] == [
        "the model is in training mode", "the model sees the future",
        "a head adds next to nothing", "no gradient reaches a layer",
    ]  # fmt: skip


@pytest.mark.untyped
def test_what_does_not_fit_is_refused_in_words(kit):
    model, tokens = fresh(kit), ids(2, 7)
    for make, error, words in (
        (lambda: kit.leaks(model, tokens[:, :1]), ValueError, "at least 2 columns"),
        (lambda: kit.leaks(model, tokens.float()), TypeError, "tokens must be integers"),
        (lambda: kit.leaks("model", tokens), TypeError, "model must be a module"),
        (lambda: kit.wrong_shift(tokens, tokens[:, 1:]), ValueError, "targets must have shape"),
        (lambda: kit.gradient_flow(nn.Linear(2, 2), len), ValueError, "layers named blocks"),
        (lambda: kit.gradient_flow(model, lambda m: m(tokens)[0]), ValueError, "one number"),
        (lambda: kit.start_loss(model, lambda m: 3.0, 7), TypeError, "what loss returns"),
        (lambda: kit.dead_heads(nn.Linear(2, 2), tokens), ValueError, "no taps"),
        (lambda: kit.rate_spikes([1.0]), TypeError, "History"),
        (lambda: kit.wrong_padding(tokens), TypeError, "mask must be boolean"),
        (lambda: kit.wrong_padding(tokens > 3, wanted="top"), ValueError, "wanted must be one of"),
        (lambda: kit.silent_broadcasts(3, tokens, tokens), TypeError, "loss must be a function"),
        (lambda: kit.seen_tests("a", ["b"]), TypeError, "test must be a list"),
        (lambda: kit.stuck_on_one_batch(model, lambda m: m(tokens)), TypeError, "count of loss"),
    ):
        with pytest.raises(error, match=words):
            make()


CHECKS = checks(globals())
