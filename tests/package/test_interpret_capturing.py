"""Capturing and patching: what passes a tap is what other code finds, and no hook stays behind.

A check is `check(kit)`, with `kit` the modules, or copies of them with a planted bug.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch
import transformers
from test_checkpoints import BERT, GPT2, LLAMA, T5, close, make, ours, padding, tokens

import tfbook.attention
import tfbook.interpret.capturing
import tfbook.models
from tfbook.generation import generate
from tfbook.pretrained import load

DOUBLE = torch.float64
CHECKS = {}


def kit_of(copy_of):
    """Put modules side by side, as `copy_of` finds them by their whole names."""
    return SimpleNamespace(
        models=copy_of("tfbook.models"),
        attention=copy_of("tfbook.attention"),
        **vars(copy_of("tfbook.interpret.capturing")),
    )


@pytest.fixture
def kit():
    return kit_of(lambda name: eval(name, {"tfbook": tfbook}))


def check(run):
    CHECKS[run.__name__] = run
    return run


def ids(batch=2, n=7, seed=1):
    return torch.randint(11, (batch, n), generator=torch.Generator().manual_seed(seed))


def decoder(kit, n_layers=3, **choices):
    """A decoder with every weight random, in float64."""
    models = kit.models
    layer = models.Layer(models.Attention(2), models.FFN(12))
    return randomised(models.build(models.TransformerConfig(11, 8, decoder=[layer] * n_layers)))


def both(kit):
    models = kit.models
    layer = models.Layer(models.Attention(2), models.FFN(12))
    looking = models.Layer(models.Attention(2), models.FFN(12), cross=models.Attention(2))
    config = models.TransformerConfig(11, 8, encoder=[layer] * 2, decoder=[looking] * 3)
    return randomised(models.build(config))


def randomised(model):
    generator = torch.Generator().manual_seed(0)
    for value in model.double().parameters():
        value.data = torch.randn(value.shape, generator=generator, dtype=DOUBLE) / 2
    return model.eval()


def hooks_on(model):
    return [name for name, part in model.named_modules() if getattr(part, "watched", False)]


def equal(one, other, atol=1e-12):
    torch.testing.assert_close(one, other, atol=atol, rtol=0.0)


# Names --------------------------------------------------------------------------------------------


@check
def test_taps_come_by_name_in_the_order_of_the_modules(kit):
    model = both(kit)
    wanted = [name for name, m in model.named_modules() if isinstance(m, kit.attention.Tap)]
    found = kit.taps(model)
    assert list(found) == wanted and len(wanted) > 30
    assert all(model.get_submodule(name) is tap for name, tap in found.items())
    assert list(kit.taps(model, "decoder.*.cross.pattern")) == [
        f"decoder.blocks.{i}.cross.pattern" for i in range(3)
    ]
    assert list(kit.taps(model, "*.[02].*.pattern")) == [
        "encoder.blocks.0.mixer.pattern",
        "decoder.blocks.0.mixer.pattern",
        "decoder.blocks.0.cross.pattern",
        "decoder.blocks.2.mixer.pattern",
        "decoder.blocks.2.cross.pattern",
    ]


@pytest.mark.untyped
@pytest.mark.parametrize(
    ("pattern", "error", "words"),
    [
        ("stack.blocks.0.mixer.patern", ValueError, "stack.blocks.0.mixer.pattern"),
        ("stack.blocks.*.mixer.patterns", ValueError, "stack.blocks.0.mixer.pattern"),
        ("stack.blocks.3.mixer.z", ValueError, "stack.blocks.2.mixer.z"),
        ("nothing of the kind", ValueError, r"stack\.blocks\.\*\.resid_post"),
        ("", ValueError, "fits no tap"),
        (3, TypeError, "pattern must be the name of a tap, got int"),
    ],
)
def test_a_pattern_that_fits_nothing_is_told_what_is_near(kit, pattern, error, words):
    for call in (kit.taps, kit.capture):
        with pytest.raises(error, match=words):
            call(decoder(kit), pattern)


@pytest.mark.untyped
def test_what_has_no_taps_is_refused(kit):
    with pytest.raises(ValueError, match="no taps, got a Linear"):
        kit.taps(torch.nn.Linear(2, 3))
    for call in (kit.taps, kit.capture):
        with pytest.raises(TypeError, match="model must be a module, got str"):
            call("gpt", "*")
    with pytest.raises(TypeError, match="model must be a module"):
        kit.patched("gpt", {})


# Capturing ----------------------------------------------------------------------------------------


@check
def test_captured_is_what_the_model_says_itself(kit):
    model, tokens_ = decoder(kit), ids()
    with kit.capture(model, "*.pattern", "*.resid_post", "*.0.resid_pre") as seen:
        logits, _ = model(tokens_)
    equal(logits, model(tokens_)[0])
    states, weights = model.hidden_states(tokens_), model.attention_weights(tokens_)
    equal(seen["stack.blocks.0.resid_pre"], states[0])
    for i in range(3):
        equal(seen[f"stack.blocks.{i}.resid_post"], states[i + 1])
        equal(seen[f"stack.blocks.{i}.mixer.pattern"], weights[i])
    assert list(seen)[0] == "stack.blocks.0.resid_pre" and len(seen) == 7
    equal(kit.patterns(model, tokens_), torch.stack(weights))
    equal(kit.streams(model, tokens_), torch.stack(states))
    assert not any(x.requires_grad for x in seen.values())


@check
def test_scores_give_the_pattern_and_the_pattern_gives_z(kit):
    model = decoder(kit)
    with kit.capture(model, "*.1.mixer.*") as seen:
        model(ids())
    q, k, v, scores, pattern, z = (
        seen[f"stack.blocks.1.mixer.{name}"] for name in "q k v scores pattern z".split()
    )
    future = torch.ones(7, 7).triu(1).bool()
    equal((q @ k.mT / 2).masked_fill(future, -torch.inf), scores)  # d_head = 4
    equal(scores.softmax(-1), pattern)
    equal(pattern @ v, z)


@check
def test_nothing_stays_behind(kit):
    model, tokens_ = decoder(kit), ids()
    before, after = model(tokens_)[0], {}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with (
        kit.capture(model, "*", every=True),
        kit.patched(model, {name: lambda x: 2 * x for name in kit.taps(model, "*.q")}),
    ):
        assert hooks_on(model)
        changed = model(tokens_)[0]
    assert hooks_on(model) == [] and not torch.allclose(changed, before)
    for broken in (ZeroDivisionError, KeyboardInterrupt):

        def fails(x, broken=broken):
            raise broken

        with pytest.raises(broken), kit.capture(model, "*"):
            raise broken
        with pytest.raises(broken), kit.capture(model, "*.z"):
            with kit.patched(model, {"stack.blocks.1.mixer.z": fails}):
                model(tokens_)
        assert hooks_on(model) == []
    with pytest.raises(ValueError, match="tokens must be from 0 to 10"):
        kit.streams(model, tokens_ + 11)
    with pytest.raises(ValueError, match="one shape"), kit.capture(model, "*.z"):
        kit.streams(LongerInTheMiddle(model.stack), torch.randn(2, 5, 8, dtype=DOUBLE))
    assert hooks_on(model) == []
    equal(model(tokens_)[0], before)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in weights.items())
    assert not model.training


class LongerInTheMiddle(torch.nn.Module):
    """Blocks that get one row more from one to the next."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack

    def forward(self, x):
        for block in self.stack.blocks:
            x = torch.cat([block(x)[0], x[:, :1]], dim=1)


@check
def test_hooks_go_when_one_cannot_be_set(kit):
    model = decoder(kit)
    last = list(kit.taps(model, "*.resid_post").values())[-1]

    def fails(hook):
        raise ZeroDivisionError

    last.register_forward_hook = last.register_forward_pre_hook = fails
    with pytest.raises(ZeroDivisionError), kit.capture(model, "*.resid_post"):
        pass
    changes = dict.fromkeys(kit.taps(model, "*.resid_post"), torch.zeros_like)
    with pytest.raises(ZeroDivisionError), kit.patched(model, changes):
        pass
    assert hooks_on(model) == []


@check
def test_a_tap_passed_more_than_once_keeps_the_last_or_all(kit):
    model, name = decoder(kit), "stack.blocks.1.resid_post"
    first, second = ids(seed=2), ids(seed=3)
    wanted = [model.hidden_states(each)[2] for each in (first, second)]
    with kit.capture(model, name) as last, kit.capture(model, name, every=True) as all_of_them:
        model(first)
        equal(last[name], wanted[0])
        model(second)
    equal(last[name], wanted[1])
    assert isinstance(all_of_them[name], list) and len(all_of_them[name]) == 2
    for one, other in zip(all_of_them[name], wanted, strict=True):
        equal(one, other)


@check
def test_layers_that_share_a_tap_are_all_seen(kit):
    models = kit.models
    layers = models.share([models.Layer(models.Attention(2), models.FFN(12))] * 3)
    model = randomised(models.build(models.TransformerConfig(11, 8, decoder=layers)))
    tokens_ = ids()
    equal(kit.streams(model, tokens_), torch.stack(model.hidden_states(tokens_)))
    equal(kit.patterns(model, tokens_), torch.stack(model.attention_weights(tokens_)))
    (name,) = kit.taps(model, "*.pattern")
    with kit.capture(model, name, every=True) as seen, kit.capture(model, name) as last:
        model(tokens_)
    assert len(seen[name]) == 3
    equal(last[name], model.attention_weights(tokens_)[2])


@check
def test_a_cache_gives_the_rows_of_the_whole(kit):
    model, tokens_ = decoder(kit), ids(n=6)
    whole, stream = kit.patterns(model, tokens_), kit.streams(model, tokens_)
    names = [f"stack.blocks.{i}.mixer.pattern" for i in range(3)]
    with kit.capture(model, "*.pattern", "*.2.resid_post", every=True) as seen:
        state = None
        for t in range(6):
            _, state = model(tokens_[:, t : t + 1], state)
    for layer, name in enumerate(names):
        for t, row in enumerate(seen[name]):
            equal(row, whole[layer, :, :, t : t + 1, : t + 1])
    equal(torch.cat(seen["stack.blocks.2.resid_post"], dim=1), stream[-1])


@check
def test_what_is_kept_stays_when_the_model_goes_on(kit):
    """A static cache is written to in place; what was captured before is not."""
    model, tokens_ = decoder(kit), ids(n=6)
    state = model.empty_state(2, cache=kit.attention.StaticCache(6))
    with torch.no_grad(), kit.capture(model, "*.k", "*.v", every=True) as seen:
        for t in range(6):
            _, state = model(tokens_[:, t : t + 1], state)
    with kit.capture(model, "*.k", "*.v") as whole:
        model(tokens_)
    for name, pieces in seen.items():
        equal(torch.cat(pieces, dim=-2), whole[name])


@check
def test_what_is_kept_can_be_moved(kit):
    model = decoder(kit)
    with kit.capture(model, "*.z") as seen:
        model(ids())
    for to in (torch.float32, torch.device("meta"), "meta"):
        with kit.capture(model, "*.z", to=to) as moved:
            model(ids())
        assert all(
            x.dtype == to if isinstance(to, torch.dtype) else x.device.type == "meta"
            for x in moved.values()
        )
        if to is torch.float32:
            equal(moved["stack.blocks.2.mixer.z"], seen["stack.blocks.2.mixer.z"].float())


def test_generation_is_seen(kit):
    model, name = decoder(kit), "stack.blocks.0.mixer.pattern"
    prompt = ids(1, 4)
    with kit.capture(model, name, every=True) as seen:
        found = generate(model, prompt, max_new_tokens=5)
    plain = generate(model, prompt, max_new_tokens=5)
    assert found.tokens == plain.tokens
    sizes = [tuple(x.shape) for x in seen[name]]
    assert sizes[0] == (1, 2, 4, 4) and sizes[1] == (1, 2, 1, 5)


@pytest.mark.untyped
def test_what_was_not_captured_says_so(kit):
    model = decoder(kit)
    with kit.capture(model, "*.z") as seen:
        with pytest.raises(KeyError, match="call the model first"):
            seen["stack.blocks.0.mixer.z"]
        model(ids())
    with pytest.raises(KeyError, match=r"'stack.blocks.0.mixer.q'.*stack.blocks.0.mixer.z"):
        seen["stack.blocks.0.mixer.q"]
    for wrong, error, words in (
        (dict(), ValueError, "name of a tap"),
        (dict(grad=1), TypeError, "grad"),
        (dict(every="zz"), TypeError, "every"),
        (dict(to="nowhere"), ValueError, "'nowhere'"),
        (dict(to=3), TypeError, "to must be a device or a dtype, got int"),
        (dict(to="cpu", grad=True), ValueError, "not moved copies"),
    ):
        with pytest.raises(error, match=words):
            kit.capture(model, *["*.z"] * bool(wrong), **wrong)


# Gradients ----------------------------------------------------------------------------------------


def score(model, tokens_):
    return model(tokens_)[0][:, -1, 3].sum()


@check
def test_gradients_are_finite_differences(kit):
    model, tokens_ = decoder(kit), ids(n=4)
    names = ["stack.blocks.0.resid_pre", "stack.blocks.1.mixer.pattern", "stack.blocks.2.mixer.z"]
    with kit.capture(model, *names, grad=True) as seen:
        gradients = torch.autograd.grad(score(model, tokens_), [seen[name] for name in names])
    step, generator = 1e-5, torch.Generator().manual_seed(4)
    for name, gradient in zip(names, gradients, strict=True):
        way = torch.randn(gradient.shape, generator=generator, dtype=DOUBLE)
        found = []
        for sign in (1, -1):
            moved = seen[name].detach() + sign * step * way
            with torch.no_grad(), kit.patched(model, {name: moved}):
                found.append(score(model, tokens_))
        equal((found[0] - found[1]) / (2 * step), (gradient * way).sum(), atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


@check
def test_a_model_whose_weights_are_fixed_has_gradients_too(kit):
    model, tokens_ = decoder(kit), ids()
    name = "stack.blocks.0.resid_pre"
    with kit.capture(model, name, grad=True) as seen:
        (wanted,) = torch.autograd.grad(score(model, tokens_), seen[name])
    model.requires_grad_(False)
    with kit.capture(model, name, grad=True) as seen:
        (found,) = torch.autograd.grad(score(model, tokens_), seen[name])
    equal(found, wanted)
    with torch.no_grad(), kit.capture(model, name, grad=True):
        with pytest.raises(ValueError, match=f"{name} needs gradients, which are switched off"):
            model(tokens_)


def test_captured_without_gradients_holds_no_graph(kit):
    model = decoder(kit)
    with kit.capture(model, "*") as seen:
        loss = score(model, ids())
    assert loss.requires_grad
    assert all(x.grad_fn is None and not x.requires_grad for x in seen.values())
    with torch.inference_mode(), kit.capture(model, "*") as seen:
        model(ids())
    assert len(seen) == len(kit.taps(model))


# Patching -----------------------------------------------------------------------------------------


@check
def test_a_whole_stream_from_elsewhere_gives_the_answer_from_elsewhere(kit):
    model, here, there = decoder(kit), ids(seed=2), ids(seed=3)
    wanted = model(there)[0]
    for name in (
        "stack.blocks.0.resid_pre",
        "stack.blocks.1.resid_mid",
        "stack.blocks.2.resid_post",
    ):
        with kit.capture(model, name) as seen:
            model(there)
        with kit.patched(model, seen):
            equal(model(here)[0], wanted)
        with kit.patched(model, {name: lambda x: x}):
            equal(model(there)[0], wanted)


@check
def test_a_pattern_that_is_put_in_mixes_the_values(kit):
    model, tokens_ = decoder(kit), ids()
    name = "stack.blocks.1.mixer"
    alike = torch.ones(7, 7, dtype=DOUBLE).tril()
    alike = (alike / alike.sum(-1, keepdim=True)).expand(2, 2, 7, 7)
    with kit.capture(model, f"{name}.v", f"{name}.z") as seen:
        with kit.patched(model, {f"{name}.pattern": alike}):
            model(tokens_)
    v = seen[f"{name}.v"]
    wanted = torch.stack([v[:, :, : t + 1].mean(2) for t in range(7)], dim=2)
    equal(seen[f"{name}.z"], wanted)


@check
def test_patches_follow_each_other_and_captures_see_the_last(kit):
    model, name = decoder(kit), "stack.blocks.1.resid_mid"
    with kit.capture(model, name) as plain:
        model(ids())
    doubled = kit.patched(model, {name: lambda x: 2 * x})
    raised = kit.patched(model, {name: lambda x: x + 1})
    with kit.capture(model, name) as outside, doubled, raised, kit.capture(model, name) as inside:
        model(ids())
    for seen in (outside, inside):
        equal(seen[name], 2 * plain[name] + 1)


@pytest.mark.untyped
def test_a_patch_that_does_not_fit_is_refused_by_the_name_of_its_tap(kit):
    model, name = decoder(kit), "stack.blocks.1.resid_mid"
    for wrong, error, words in (
        (torch.zeros(2, 7, 9, dtype=DOUBLE), ValueError, r"shape \(2, 7, 8\), got \(2, 7, 9\)"),
        (torch.zeros(7, 8, dtype=DOUBLE), ValueError, r"shape \(2, 7, 8\), got \(7, 8\)"),
        (torch.zeros(2, 7, 8), ValueError, "dtype torch.float64, got torch.float32"),
        (torch.zeros(2, 7, 8, dtype=DOUBLE, device="meta"), ValueError, "device cpu, got meta"),
        (lambda x: x[:1], ValueError, r"got \(1, 7, 8\)"),
        (lambda x: None, TypeError, "pass on a tensor, got NoneType"),
    ):
        with pytest.raises(error, match=f"tap {name} .*{words}"), kit.patched(model, {name: wrong}):
            model(ids())
    for wrong, error, words in (
        ({"stack.blocks.1.resid_mod": torch.zeros_like}, ValueError, name),
        ({name: 3}, TypeError, f"{name}.*a tensor or a function, got int"),
        ([name], TypeError, "changes must map names of taps, got list"),
        ({3: torch.zeros_like}, ValueError, "names no tap with 3"),
    ):
        with pytest.raises(error, match=words):
            kit.patched(model, wrong)
    with kit.patched(model, {}):
        equal(model(ids())[0], model(ids())[0])


# Stacks -------------------------------------------------------------------------------------------


@check
def test_stacks_of_an_encoder_and_a_decoder_are_kept_apart(kit):
    model, source, target = both(kit), ids(n=5), ids(n=5, seed=2)
    weights = model.attention_weights(source, target)
    states = model.hidden_states(source, target)
    for where, wanted in (
        ("encoder.*", weights.encoder),
        ("decoder.*.mixer.*", weights.decoder),
        ("decoder.*.cross.*", weights.cross),
    ):
        equal(kit.patterns(model, source, target, where=where), torch.stack(wanted))
    equal(kit.streams(model, source, target, where="encoder.*"), torch.stack(states.encoder))
    equal(kit.streams(model, source, target, where="decoder.*"), torch.stack(states.decoder))
    for call, where in ((kit.patterns, "*"), (kit.patterns, "decoder.*"), (kit.streams, "*")):
        with pytest.raises(ValueError, match="taps of [23] kinds"):
            call(model, source, target, where=where)


@pytest.mark.untyped
def test_what_cannot_be_stacked_is_refused(kit):
    model, models = decoder(kit), kit.models
    with pytest.raises(ValueError, match=r"'\*\.z' fits no tap named pattern"):
        kit.patterns(model, ids(), where="*.z")
    with pytest.raises(ValueError, match="no tap named resid_pre or resid_post"):
        kit.streams(model, ids(), where="*.z")
    for call in (kit.patterns, kit.streams):
        with pytest.raises(TypeError, match="pattern must be the name"):
            call(model, ids(), where=3)
    layers = [models.Layer(models.Attention(heads), models.FFN(12)) for heads in (2, 4)]
    uneven = models.build(models.TransformerConfig(11, 8, decoder=layers))
    with pytest.raises(ValueError, match=r"one shape, got \(2, 2, 7, 7\), \(2, 4, 7, 7\)"):
        kit.patterns(uneven, ids())


def test_layers_without_a_pattern_are_left_out(kit):
    models = kit.models
    layers = [
        models.Layer(mixer, models.FFN(12)) for mixer in (models.Attention(2), models.Mamba())
    ]
    model = randomised(models.build(models.TransformerConfig(11, 8, decoder=layers * 2)))
    equal(kit.streams(model, ids()), torch.stack(model.hidden_states(ids())))
    found = kit.patterns(model, ids())
    for one, layer in zip(found, (0, 2), strict=True):
        with kit.capture(model, f"*.{layer}.mixer.pattern") as seen:
            model(ids())
        equal(one, seen[f"stack.blocks.{layer}.mixer.pattern"])
    plain = models.TransformerConfig(11, 8, decoder=layers[1:])
    with pytest.raises(ValueError, match="no tap named pattern"):
        kit.patterns(models.build(plain), ids())


def test_one_block_is_a_model_too(kit):
    model = decoder(kit)
    block, x = model.stack.blocks[0], torch.randn(2, 5, 8, dtype=DOUBLE)
    equal(kit.streams(block, x), torch.stack([x, block(x)[0].detach()]))
    equal(kit.patterns(block, x)[0], block.weights(x)[0].detach())
    equal(kit.patterns(model.stack, x), torch.stack(model.stack.trace(x, weights=True).weights))


# Models of `transformers`, and real ones ----------------------------------------------------------


def theirs(name):
    kinds = {
        "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT2),
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, LLAMA),
        "bert": (transformers.BertModel, transformers.BertConfig, BERT),
        "t5": (
            transformers.T5ForConditionalGeneration,
            transformers.T5Config,
            T5 | {"attn_implementation": "eager"},
        ),
    }
    model, config, choices = kinds[name]
    return make(model, config(**choices))


@pytest.mark.parametrize("side", ["none", "right"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@torch.no_grad()
def test_patterns_and_streams_are_those_of_transformers(kit, name, side):
    their = theirs(name)
    mine, x = ours(their), tokens(3, 11)
    mask = None if side == "none" else padding((11, 4, 7), 11, side)
    seen = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    found = their(
        x,
        attention_mask=None if mask is None else mask.long(),
        output_attentions=True,
        output_hidden_states=True,
    )
    rows = seen[:, None, :, None]
    close(kit.patterns(mine, x, mask=mask) * rows, torch.stack(found.attentions) * rows)
    *earlier, last = kit.streams(mine, x, mask=mask)
    *wanted, final = found.hidden_states
    close(torch.stack(earlier)[:, seen], torch.stack(wanted)[:, seen])
    close(mine.stack.finish(last)[seen], final[seen])  # theirs is behind the norm


@torch.no_grad()
def test_patterns_and_streams_are_those_of_t5_in_transformers(kit):
    their = theirs("t5")
    mine, source, target = ours(their), tokens(3, 9), tokens(3, 5, seed=2)
    found = their(
        input_ids=source,
        decoder_input_ids=target,
        output_attentions=True,
        output_hidden_states=True,
    )
    for where, wanted in (
        ("encoder.*", found.encoder_attentions),
        ("decoder.*.mixer.*", found.decoder_attentions),
        ("decoder.*.cross.*", found.cross_attentions),
    ):
        close(kit.patterns(mine, source, target, where=where), torch.stack(wanted))
    for stack, wanted in (
        ("encoder", found.encoder_hidden_states),
        ("decoder", found.decoder_hidden_states),
    ):
        *earlier, last = kit.streams(mine, source, target, where=f"{stack}.*")
        close(torch.stack(earlier), torch.stack(wanted[:-1]))
        close(getattr(mine, stack).finish(last), wanted[-1])


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "text"), [("shakespeare", "to be or not"), ("minilm-l6", "The cat sat.")]
)
def test_pretrained_models_can_be_read(kit, name, text):
    pretrained = load(name)
    model, x = pretrained.model, pretrained.encode(text)
    x = x[0] if isinstance(x, tuple) else x
    found, stream = kit.patterns(model, x), kit.streams(model, x)
    close(found, torch.stack(model.attention_weights(x)))
    close(stream, torch.stack(model.hidden_states(x)))
    close(found.sum(-1), torch.ones(found.shape[:-1]))
    assert hooks_on(model) == []


@torch.no_grad()
def test_smollm_is_read_while_it_answers(kit):
    pretrained = load("smollm2-135m")
    model, x = pretrained.model, pretrained.encode("The cat sat")
    with kit.capture(model, "*.pattern", "*.resid_post") as seen:
        logits, _ = model(x)
    found = torch.stack([seen[f"stack.blocks.{i}.mixer.pattern"] for i in range(30)])
    assert found.shape == (30, 1, 9, 3, 3) and float(found.triu(1).abs().max()) == 0
    close(found.sum(-1), torch.ones(found.shape[:-1]))
    last = seen["stack.blocks.29.resid_post"]
    close(model.head(model.stack.finish(last), model.embed.weight), logits)


@check
def test_the_pattern_is_seen_before_dropout(kit):
    """In training the pattern is seen before dropout, so its rows sum to 1."""
    model = decoder(kit)
    for block in model.stack.blocks:
        block.mixer.dropout = 0.5
    found = kit.patterns(model.train(), ids())
    equal(found.sum(-1), torch.ones(found.shape[:-1], dtype=DOUBLE))
    assert model.training


def test_contexts_can_be_stacked(kit):
    model = decoder(kit)
    with contextlib.ExitStack() as stack:
        seen = [stack.enter_context(kit.capture(model, name)) for name in ("*.q", "*.k", "*.v")]
        model(ids())
    assert [len(each) for each in seen] == [3, 3, 3]
