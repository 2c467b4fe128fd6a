"""The lens and the parts of a logit: against `transformers`, sums, loops, and what must be refused.

A test that takes `kit` gets the modules; planted bugs (test_interpret_circuit_mutants.py) are put
through the same tests. `kit_of`, `tiny` and `MODELS` serve the tests of ablation and patching too.
"""

import dataclasses
import functools
import importlib
import inspect
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from tfbook import blocks, data, models, pretrained
from tfbook.interpret import lens

V, D, N = 19, 12, 7
ROOM = "capturing lens ablation patching indirect_object circuits".split()
MODULES = {"models": models} | {
    name: importlib.import_module(f"tfbook.interpret.{name}") for name in ROOM
}


def kit_of(**modules):
    """Return what the tests use, each public name once."""
    found = {}
    for module in modules.values():
        found |= {name: getattr(module, name) for name in module.__all__}
    return SimpleNamespace(**(modules | found))


KIT = kit_of(**MODULES)


@pytest.fixture
def kit():
    return KIT


def checks(names):
    """Return the tests in a namespace that need nothing but a kit."""
    return {
        name: run
        for name, run in names.items()
        if name.startswith("test_") and list(inspect.signature(run).parameters) == ["kit"]
    }


def layers(kit, kind):
    m = kit.models
    plain = m.Layer(m.Attention(3), m.FFN(20, "gelu"))
    llama = m.Layer(
        m.Attention(6, n_kv_heads=2, d_head=4, position=m.Rotary(), bias=False),
        m.FFN(20, "swiglu", bias=False),
        norm=m.Norm("rms"),
    )
    change = dataclasses.replace
    return {
        "gpt2": [plain] * 3,
        "llama": [llama] * 3,
        "parallel": [change(plain, parallel=True, one_norm=True)] * 3,
        "multiplier": [change(plain, multiplier=0.5)] * 3,
        "both": [change(plain, place="both")] * 3,
        "inside": [change(plain, place="inside")] * 3,
        "hybrid": [m.Layer(m.Retention(2, d_head=4), m.FFN(20)), plain],
        "post": [change(plain, place="post")] * 3,
    }[kind]


MODELS = ("gpt2", "llama", "parallel", "multiplier", "both", "inside", "hybrid")


def tiny(kit, kind, *, dtype=torch.float64, **choices):
    """Return a small model with random biases and norms."""
    m = kit.models
    given = {"embedding": m.Tokens(m.Learned()), "max_len": 32}
    if kind == "llama":
        given |= {"head": m.NextToken(tie_embeddings=False, scale=0.7, bias=True)}
    torch.manual_seed(0)
    config = m.TransformerConfig(V, D, decoder=layers(kit, kind), **(given | choices))
    model = m.build(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator, dtype=dtype)
    return model


def ids(batch=3, n=N, seed=2, high=V):
    return torch.randint(high, (batch, n), generator=torch.Generator().manual_seed(seed))


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0.0)


# the logit lens


def test_the_last_entry_is_what_the_model_says(kit):
    for kind in MODELS:
        model, tokens = tiny(kit, kind), ids()
        logits = kit.logit_lens(model, tokens)
        assert len(logits) == len(model.stack.blocks) + 1
        assert torch.equal(logits[-1], model(tokens)[0])
        some = kit.logit_lens(model, tokens, layers=[1, 0])
        assert torch.equal(some, logits[[1, 0]])


def test_each_entry_is_the_model_that_ends_there(kit):
    model, tokens = tiny(kit, "llama"), ids()
    logits = kit.logit_lens(model, tokens)
    blocks = list(model.stack.blocks)
    for n_layers in range(len(blocks)):
        model.stack.blocks = torch.nn.ModuleList(blocks[:n_layers] or [Through()])
        close(logits[n_layers], model(tokens)[0])


class Through(torch.nn.Module):
    """A block that does nothing."""

    def forward(self, x, state=None, *, mask=None):
        return x, blocks.BlockState()


def test_the_lens_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")  # which the other files need not load
    config = transformers.GPT2Config(vocab_size=V, n_embd=D, n_layer=3, n_head=3, n_positions=32)
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    weights = {name: x.clone() for name, x in theirs.state_dict().items() if "lm_head" not in name}
    ours = pretrained.fill_model(config.to_dict() | {"model_type": "gpt2"}, weights).eval()
    with torch.no_grad():
        out = theirs(ids(), output_hidden_states=True)
        read = [theirs.lm_head(theirs.transformer.ln_f(x)) for x in out.hidden_states[:-1]]
    close(lens.logit_lens(ours, ids()), torch.stack([*read, out.logits]), 1e-4)


def test_padding_in_front_changes_nothing(kit):
    model, tokens = tiny(kit, "gpt2"), ids(1)
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), tokens], 1)
    mask = torch.tensor([[False] * 2 + [True] * N])
    found = kit.logit_lens(model, padded, mask=mask)[:, :, 2:]
    close(found, kit.logit_lens(model, tokens))
    whole = kit.lens_divergence(kit.logit_lens(model, padded, mask=mask), mask)
    close(whole, kit.lens_divergence(kit.logit_lens(model, tokens)), 1e-5)


def test_the_divergence_is_its_sum(kit):
    logits = torch.randn(3, 2, 4, V, generator=torch.Generator().manual_seed(0))
    p, q = logits[-1].softmax(-1), logits.softmax(-1)
    wanted = (p * (p / q).log()).sum(-1).mean((1, 2))
    close(kit.lens_divergence(logits), wanted, 1e-6)
    assert float(kit.lens_divergence(logits)[-1]) == 0
    mask = torch.tensor([[True, True, False, False], [True, False, False, False]])
    each = (p * (p / q).log()).sum(-1)
    close(kit.lens_divergence(logits, mask), each[:, mask].mean(1), 1e-6)


# the tuned lens


def test_a_tuned_lens_begins_as_the_logit_lens(kit):
    model, tokens = tiny(kit, "gpt2"), ids()
    new = kit.TunedLens(model)
    assert torch.equal(new.logits(model, tokens), kit.logit_lens(model, tokens))
    assert sum(weight.numel() for weight in new.parameters()) == 3 * (D * D + D)


def test_a_tuned_lens_learns_and_the_model_does_not(kit):
    model = tiny(kit, "gpt2", dtype=torch.float32)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    model.train()
    tuned, found = kit.fit_tuned_lens(model, (ids(16, 12, seed) for seed in range(60)), lr=0.02)
    assert model.training and all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert found.shape == (60, 3)
    held_out = ids(16, 12, 1000)
    raw = kit.lens_divergence(kit.logit_lens(model, held_out))
    now = kit.lens_divergence(tuned.logits(model, held_out))
    assert bool((now[:-1] < 0.7 * raw[:-1]).all()) and float(now[-1]) == 0
    close(found[0], kit.lens_divergence(kit.logit_lens(model, ids(16, 12, 0)))[:-1], 1e-4)


def test_the_step_is_that_of_the_divergence(kit):
    """The gradient of one step against differences of what the lens prints."""
    model, tokens = tiny(kit, "llama"), ids()
    tuned = kit.TunedLens(model)
    kit.fit_tuned_lens(model, [tokens], lens=tuned, lr=1e-12)
    weight = tuned.maps[1].weight
    slope = weight.grad[3, 5].item()

    def at(value):
        with torch.no_grad():
            weight.zero_()[3, 5] = value
        last = model(tokens)[0].log_softmax(-1).detach()
        said = tuned.logits(model, tokens)[1].log_softmax(-1)
        return float((last.exp() * (last - said)).sum(-1).mean())

    step = 1e-4
    assert abs((at(step) - at(-step)) / (2 * step) - slope) < 1e-5 * max(1.0, abs(slope))


# who wrote the logit


def test_parts_sum_to_the_logit(kit):
    for kind in MODELS:
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-4)):
            model, tokens = tiny(kit, kind, dtype=dtype), ids()
            target, against = ids(1, 3, 5)[0], ids(1, 3, 6)[0]
            logits = model(tokens)[0]
            for place in (-1, 2):
                for other in (None, against):
                    parts = kit.direct_logits(model, tokens, target, other, place=place)
                    rows = torch.arange(3)
                    wanted = logits[rows, place, target]
                    if other is not None:
                        wanted = wanted - logits[rows, place, other]
                    assert torch.equal(parts.total, wanted)
                    close(parts.values.sum(0), wanted, tolerance)


def test_a_part_is_what_the_frozen_norm_makes_of_it(kit):
    """Each part by a loop: its rows through the norm's linear map, times the row of the head."""
    for kind in ("gpt2", "llama", "multiplier"):
        model, tokens = tiny(kit, kind), ids()
        target = ids(1, 3, 5)[0]
        parts = kit.direct_logits(model, tokens, target, place=4)
        norm = model.stack.final_norm
        table = model.embed.weight if model.head.tied else model.head.weight
        u = table[target] * (model.head.scale or 1)
        x = model.hidden_states(tokens)
        spread = x[-1][:, 4]
        if kind == "llama":
            spread = spread.square().mean(-1)
        else:
            spread = spread.var(-1, correction=0)

        def read(row, kind=kind, norm=norm, spread=spread, u=u):
            row = row if kind == "llama" else row - row.mean(-1, keepdim=True)
            return (row / (spread + norm.eps).sqrt()[:, None] * norm.weight * u).sum(-1)

        close(parts.of("embedding"), read(x[0][:, 4]))
        factor = 0.5 if kind == "multiplier" else 1.0
        for i, block in enumerate(model.stack.blocks):
            entered = block.mixer_residual.norm(x[i])
            heads = block.mixer.head_outputs(entered)  # (B, H, N, D)
            for head in range(heads.shape[1]):
                close(parts.of(f"{i}.head.{head}"), read(factor * heads[:, head, 4]))
            found = parts.heads()[i]
            assert torch.equal(found[0], parts.of(f"{i}.head.0"))
            middle = x[i] + factor * block.mixer(entered)[0]
            added = factor * block.ffn(block.ffn_residual.norm(middle))
            close(parts.of(f"{i}.ffn"), read(added[:, 4]))


def test_without_a_norm_a_part_is_a_product(kit):
    """The hand-built model: the logit of what comes is head (1, 0)'s alone."""
    model = kit.induction_model(20, 16)
    tokens = torch.tensor([[4, 7, 2, 9, 4]])
    parts = kit.direct_logits(model, tokens, torch.tensor([7]), torch.tensor([2]))
    close(parts.of("1.head.0"), torch.tensor([50.0]), 1e-4)
    rest = [value for name, value in zip(*parts[:2], strict=True) if name != "1.head.0"]
    close(torch.stack(rest), torch.zeros(len(rest), 1), 1e-6)


def test_of_and_heads_say_what_is_not_there(kit):
    model, tokens = tiny(kit, "hybrid"), ids()
    parts = kit.direct_logits(model, tokens, ids(1, 3)[0])
    assert parts.names[:3] == ("embedding", "0.mixer", "0.ffn")
    with pytest.raises(ValueError, match="name must be one of embedding, 0.mixer"):
        parts.of("0.head.0")
    whole = kit.direct_logits(tiny(kit, "inside"), tokens, ids(1, 3)[0])
    with pytest.raises(ValueError, match="same number of heads"):
        whole.heads()


# what is refused, in words


@pytest.mark.untyped
def test_what_is_no_sum_is_refused():
    model, tokens = tiny(KIT, "post"), ids()
    for call in (
        lambda: lens.logit_lens(model, tokens),
        lambda: lens.direct_logits(model, tokens, ids(1, 3)[0]),
        lambda: lens.TunedLens(model),
    ):
        with pytest.raises(ValueError, match="must be pre-norm.*layer 0 has its norm at 'post'"):
            call()
    m = models
    encoder = m.build(
        m.TransformerConfig(V, D, encoder=[m.Layer(m.Attention(3), m.FFN(16))], head=None)
    )
    with pytest.raises(TypeError, match="model must be a DecoderOnly, got EncoderOnly"):
        lens.logit_lens(encoder, tokens)
    shared = m.build(m.TransformerConfig(V, D, decoder=m.share(layers(KIT, "gpt2"), 1)))
    assert lens.logit_lens(shared, tokens).shape[0] == 4
    with pytest.raises(ValueError, match="parts of its own in each layer"):
        lens.direct_logits(shared, tokens, ids(1, 3)[0])


@pytest.mark.untyped
def test_bad_arguments_are_refused_in_words():
    model, tokens, target = tiny(KIT, "gpt2"), ids(), ids(1, 3)[0]
    bad = {
        "an entry of layers must be from 0 to 3": lambda: lens.logit_lens(
            model, tokens, layers=[4]
        ),
        "layers must name": lambda: lens.logit_lens(model, tokens, layers=[]),
        "place must be": lambda: lens.direct_logits(model, tokens, target, place=N),
        "target must have shape": lambda: lens.direct_logits(model, tokens, target[:2]),
        "against must be from": lambda: lens.direct_logits(model, tokens, target, target + V),
        "target must be a tensor of integers": lambda: lens.direct_logits(
            model, tokens, target.float()
        ),
        "batches must hold": lambda: lens.fit_tuned_lens(model, []),
        "batches must be a list": lambda: lens.fit_tuned_lens(model, 3),
        "lr must be": lambda: lens.fit_tuned_lens(model, [tokens], lr=0.0),
        "lens must be a TunedLens": lambda: lens.fit_tuned_lens(model, [tokens], lens=model),
        "layer must be": lambda: lens.TunedLens(model)(torch.zeros(1, 2, D).double(), 9),
        "x must have shape": lambda: lens.unembed(model, torch.zeros(1, 2, D + 1).double()),
        "same dtype": lambda: lens.unembed(model, torch.zeros(1, 2, D)),
        "at least one token": lambda: lens.lens_divergence(
            torch.zeros(2, 1, 3, V), torch.zeros(1, 3, dtype=torch.bool)
        ),
        "logits must have shape": lambda: lens.lens_divergence(torch.zeros(2, 3, V)),
    }
    for message, call in bad.items():
        with pytest.raises((ValueError, TypeError), match=message):
            call()


# the shipped model


@functools.cache
def shipped():
    return pretrained.load("shakespeare")


def test_the_lens_of_the_shipped_model_comes_closer_layer_by_layer():
    language = shipped()
    text = data.shakespeare("valid")[:600]
    tokens = language.encode(text)[:, :200]
    logits = lens.logit_lens(language.model, tokens)
    away = lens.lens_divergence(logits)
    assert float(away[0]) > float(away[-2]) > float(away[-1]) == 0
    loss = [float(functional.cross_entropy(x[0, :-1], tokens[0, 1:])) for x in logits]
    assert loss[-1] == min(loss)
    parts = lens.direct_logits(language.model, tokens[:, :60], tokens[:, 60], tokens[:, 3])
    close(parts.values.sum(0), parts.total, 2e-4)


def test_a_tuned_lens_of_the_shipped_model_is_closer_on_text_it_has_not_seen():
    model = shipped().model
    text = shipped().encode(data.shakespeare("train")[:6000])[0]
    n = 64
    rows = text[: len(text) // n * n].view(-1, n)
    tuned, _ = lens.fit_tuned_lens(model, list(rows[:64].split(8)) * 2, lr=2e-3)
    held_out = shipped().encode(data.shakespeare("valid")[:512])[:, :512].view(-1, n)
    raw = lens.lens_divergence(lens.logit_lens(model, held_out))
    now = lens.lens_divergence(tuned.logits(model, held_out))
    assert bool((now[:-1] < raw[:-1]).all())


def test_parts_of_smollm2_sum_to_its_logit():
    """Thirty layers of nine heads, in float32."""
    language = pretrained.load("smollm2-135m")
    tokens = language.encode("The capital of France is")
    right, wrong = (language.encode(word)[0, :1] for word in (" Paris", " London"))
    parts = lens.direct_logits(language.model, tokens, right, wrong)
    assert float(parts.total) > 0
    close(parts.values.sum(0), parts.total, 1e-3)
    assert parts.heads().shape == (30, 9, 1)


CHECKS = checks(globals())
