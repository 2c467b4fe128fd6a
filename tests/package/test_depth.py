"""Ways through depth: DeepNorm, learned factors, streams, attention over layers.

Properties that planted bugs must not pass stand in CHECKS and get the module or a copy of it.
"""

import copy

import fresh
import pytest
import torch
from fresh import Mutant
from torch import nn

import tfbook.blocks.depth
from tfbook.blocks import (
    AttentionStack,
    HyperConnection,
    HyperStack,
    Stack,
    deep_norm,
    draw_deep_norm,
    sinkhorn,
    with_deep_norm,
    with_layer_scale,
)
from tfbook.models import FFN, Attention, Layer, Norm, TransformerConfig, build

V, D, L = 13, 8, 3
KIT = tfbook.blocks.depth
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(one, other, atol=1e-9):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def stack_of(place="pre", room="tfbook", **choices):
    """Build a stack of the package, or of a copy, with the same random weights."""
    models = fresh.copy_of(room, "tfbook.models")
    layer = models.Layer(models.Attention(2), models.FFN(10, "gelu"), place=place)
    config = models.TransformerConfig(V, D, decoder=[layer] * L, **choices)
    stack = models.build(config).stack.double()
    torch.manual_seed(1)
    for weight in stack.parameters():
        nn.init.normal_(weight, std=0.4)
    return stack


def room_of(kit):
    return kit.__name__.split(".")[0]


X = normal(2, 5, D)
KINDS = [(False, False), (False, True), (True, False), (True, True)]


def randomised(module, std=0.3):
    torch.manual_seed(2)
    for weight in module.parameters():
        with torch.no_grad():
            weight.add_(std * torch.randn_like(weight))
    return module


@check
def streams_begin_as_a_plain_stack(kit):
    stack = stack_of(room=room_of(kit))
    for n in (1, 2, 4):
        for constrained, dynamic in KINDS:
            made = kit.HyperStack(stack, D, n, constrained=constrained, dynamic=dynamic)
            # A constrained reading sums to 1 but for rounding, and so do rows of the mixing.
            close(made.double()(X)[0], stack(X)[0], 1e-6)
            assert [*made.double().parameters()][0].dtype == torch.float64


@check
def streams_are_read_mixed_and_written(kit):
    stack = stack_of(room=room_of(kit))
    for constrained in (False, True):
        made = kit.HyperStack(stack, D, 3, constrained=constrained, dynamic=False).double()
        randomised(made.connections)
        streams = [X, X, X]
        for block, own in zip(made.blocks, made.connections, strict=True):
            for name in ("mixer", "ffn"):
                one = own[name]
                read, write, mix = one.read_bias, one.write_bias, one.mix_bias
                if constrained:
                    read, write = 1 / (1 + torch.exp(-read)), 2 / (1 + torch.exp(-write))
                    mix = torch.exp(mix)
                    for _ in range(20):
                        mix = mix / mix.sum(0)
                        mix = mix / mix.sum(1, keepdim=True)
                h = sum(read[i] * streams[i] for i in range(3))
                seen = getattr(block, f"{name}_residual").norm(h)
                y = block.ffn(seen) if name == "ffn" else block.mixer(seen)[0]
                streams = [
                    sum(mix[i, j] * streams[j] for j in range(3)) + write[i] * y for i in range(3)
                ]
        close(made(X)[0], stack.final_norm(sum(streams) / 3), 1e-7)


@check
def mixing_is_doubly_stochastic_and_keeps_the_mean(kit):
    mixing = kit.sinkhorn(normal(4, 5, 5), 200)
    ones = torch.ones(4, 5, dtype=torch.float64)
    close(mixing.sum(-1), ones), close(mixing.sum(-2), ones)
    assert (mixing > 0).all()
    rough = kit.sinkhorn(3 * normal(4, 5, 5, seed=3), 2)
    close(rough.sum(-1), ones)  # rows come last
    close(kit.sinkhorn(normal(1, 1)), torch.ones(1, 1, dtype=torch.float64))
    # Scaled rows and columns of the logits are the same matrix.
    logits = normal(4, 4, seed=4)
    close(kit.sinkhorn(logits, 300), kit.sinkhorn(logits + normal(4, 1) + normal(4), 300))
    connection = randomised(kit.HyperConnection(D, 4, constrained=True).double())
    streams = normal(2, 3, 4, D, seed=5)
    _, _, mix = connection.numbers(streams)
    close((mix @ streams).mean(-2), streams.mean(-2), 1e-3)


@check
def rows_move_the_numbers_only_by_themselves(kit):
    for constrained in (False, True):
        connection = randomised(kit.HyperConnection(D, 3, constrained=constrained).double())
        streams = normal(2, 4, 3, D, seed=6)
        whole = connection.numbers(streams)
        for t in range(4):
            for one, other in zip(connection.numbers(streams[:, t]), whole, strict=True):
                close(one, other[:, t])
        assert not torch.equal(whole[2][0, 0], whole[2][0, 1])
        shuffled = connection.numbers(2.0 * streams)  # norms: the size of a row says nothing
        for one, other in zip(shuffled, whole, strict=True):
            close(one, other, 1e-4)


@check
def depth_is_attended_to(kit):
    stack = stack_of(room=room_of(kit))
    for size in (1, 2, 4, 100):
        made = randomised(kit.AttentionStack(stack, D, size).double(), 0.0)
        made.queries.data.copy_(normal(*made.queries.shape, seed=7))
        done, running, number = [X], None, 0

        def read(sources, number, made=made):
            scores = [
                (v / (v.square().mean(-1, keepdim=True) + 1e-30).sqrt() * made.queries[number]).sum(
                    -1
                )
                for v in sources
            ]
            alphas = torch.stack(scores).softmax(0)
            return sum(a[..., None] * v for a, v in zip(alphas, sources, strict=True))

        for block in made.blocks:
            for name in ("mixer", "ffn"):
                h = read(done + ([] if running is None else [running]), number)
                seen = getattr(block, f"{name}_residual").norm(h)
                y = block.ffn(seen) if name == "ffn" else block.mixer(seen)[0]
                running, number = y if running is None else running + y, number + 1
                if number % size == 0:
                    done, running = [*done, running], None
        wanted = read(done + ([] if running is None else [running]), number)
        close(made(X)[0], made.final_norm(wanted), 1e-7)


@check
def queries_of_zero_read_the_mean(kit):
    made = kit.AttentionStack(stack_of(room=room_of(kit)), D)
    weights = made.depth_weights(normal(4, 2, 5, D), 3)
    close(weights, torch.full((4, 2, 5), 0.25, dtype=torch.float64))


@check
def deep_norm_weighs_the_sum(kit):
    models = fresh.copy_of(room_of(kit), "tfbook.models")
    for norm in (models.Norm(), models.Norm("rms", eps=0.01)):
        layer = models.Layer(models.Attention(2), models.FFN(10), place="post", norm=norm)
        config = models.TransformerConfig(V, D, decoder=[layer] * 8)
        stack = models.build(kit.with_deep_norm(config)).stack.double()
        torch.manual_seed(3)
        for weight in stack.parameters():
            nn.init.normal_(weight, std=0.5)
        x = X
        for block in stack.blocks:
            for name in ("mixer", "ffn"):
                y = block.ffn(x) if name == "ffn" else block.mixer(x)[0]
                own = getattr(block, f"{name}_residual").norm
                own, x = copy.deepcopy(own), 2.0 * x + y  # α = (2 · 8)^¼ = 2
                own.eps = norm.eps
                x = own(x)
        close(stack(X)[0], x)


@check
def deep_norm_has_the_numbers_of_the_paper(kit):
    found = kit.deep_norm(n_decoder=50)["decoder"]
    close(found.alpha**4, 100.0), close(found.beta**-4, 400.0)
    assert kit.deep_norm(n_encoder=50)["encoder"] == found
    both = kit.deep_norm(6, 6)
    close(both["encoder"].alpha, 0.81 * 6 ** (5 / 16))
    close(both["encoder"].beta, 0.87 * 6 ** (-5 / 16))
    close(both["decoder"].alpha ** 4, 18.0), close(both["decoder"].beta ** -4, 72.0)


@check
def factors_scale_what_sublayers_add(kit):
    stack = stack_of(room=room_of(kit))
    plain = copy.deepcopy(stack)
    for width, start in ((D, 1.0), (None, 1.0)):
        close(kit.with_layer_scale(copy.deepcopy(stack), width, start)(X)[0], plain(X)[0])
    rezero = kit.with_layer_scale(copy.deepcopy(stack), None, 0.0)
    close(rezero(X)[0], plain.final_norm(X))  # nothing is added at first
    rezero(X)[0].sum().backward()
    gains = [each.gain for block in rezero.blocks for each in
             (block.mixer_residual, block.ffn_residual)]  # fmt: skip
    assert all(gain.grad.abs() > 0 for gain in gains)  # and it can be learned
    scaled = kit.with_layer_scale(stack, D, 1e-3)
    assert sum(p.numel() for p in scaled.parameters()) == 2 * L * D + sum(
        p.numel() for p in plain.parameters()
    )
    block, gain = scaled.blocks[0], normal(D)
    block.ffn_residual.gain.data.copy_(gain)
    found = block.ffn_residual.leave(X, X + 1)
    close(found, X + gain * (X + 1))


@pytest.mark.parametrize("name", CHECKS)
def test_property(name):
    CHECKS[name](KIT)


MUTANTS = [
    Mutant("streams not mixed", "tfbook.blocks.depth",
           "streams = mix @ streams + write", "streams = streams + write",
           "streams_are_read_mixed_and_written"),
    Mutant("mixed the other way", "tfbook.blocks.depth",
           "streams = mix @ streams + write", "streams = mix.mT @ streams + write",
           "streams_are_read_mixed_and_written"),
    Mutant("written twice as much", "tfbook.blocks.depth",
           "read, write, mix = torch.sigmoid(read), 2 * torch.sigmoid(write), sinkhorn(mix)",
           "read, write, mix = torch.sigmoid(read), 4 * torch.sigmoid(write), sinkhorn(mix)",
           "streams_begin_as_a_plain_stack"),
    Mutant("columns last", "tfbook.blocks.depth",
           "        logits = logits - logits.logsumexp(-2, keepdim=True)\n"
           "        logits = logits - logits.logsumexp(-1, keepdim=True)\n",
           "        logits = logits - logits.logsumexp(-1, keepdim=True)\n"
           "        logits = logits - logits.logsumexp(-2, keepdim=True)\n",
           "mixing_is_doubly_stochastic_and_keeps_the_mean"),
    Mutant("only rows divided", "tfbook.blocks.depth",
           "        logits = logits - logits.logsumexp(-2, keepdim=True)\n", "",
           "mixing_is_doubly_stochastic_and_keeps_the_mean"),
    Mutant("no norm before the dynamic numbers", "tfbook.blocks.depth",
           "torch.tanh(self.proj(functional.layer_norm(streams, streams.shape[-1:])))",
           "torch.tanh(self.proj(streams))",
           "rows_move_the_numbers_only_by_themselves"),
    Mutant("weights over the wrong dimension", "tfbook.blocks.depth",
           "torch.softmax(keys @ self.queries[number], dim=0)",
           "torch.softmax(keys @ self.queries[number], dim=-1)",
           "queries_of_zero_read_the_mean"),
    Mutant("keys without their norm", "tfbook.blocks.depth",
           "keys = functional.rms_norm(sources, (self.d_model,), self.key_weights[number])",
           "keys = sources * self.key_weights[number]",
           "depth_is_attended_to"),
    Mutant("blocks one too long", "tfbook.blocks.depth",
           "if len(running) == self.block_size:", "if len(running) > self.block_size:",
           "depth_is_attended_to"),
    Mutant("epsilon not scaled", "tfbook.blocks.depth",
           "layer.norm.eps / alpha**2", "layer.norm.eps", "deep_norm_weighs_the_sum"),
    Mutant("beta of one stack and alpha of two", "tfbook.blocks.depth",
           "DeepNorm((3 * n_decoder) ** 0.25, (12 * n_decoder) ** -0.25)",
           "DeepNorm((2 * n_decoder) ** 0.25, (12 * n_decoder) ** -0.25)",
           "deep_norm_has_the_numbers_of_the_paper"),
    Mutant("the stream is scaled with what is added", "tfbook.blocks.depth",
           "return self.inner.leave(x, y * self.gain)",
           "return self.inner.leave(x * self.gain, y * self.gain)",
           "factors_scale_what_sublayers_add"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    sick = fresh.copies("sick_depth", ["tfbook.blocks.depth"], mutant.edits)
    with pytest.raises(AssertionError):
        CHECKS[mutant.caught_by](sick)


def test_the_copy_without_a_bug_passes():
    healthy = fresh.copies("healthy_depth", ["tfbook.blocks.depth"])
    for name in {mutant.caught_by for mutant in MUTANTS}:
        CHECKS[name](healthy)


@pytest.mark.parametrize("make", [
    lambda stack: HyperStack(stack, D, 3),
    lambda stack: HyperStack(stack, D, 3, constrained=True),
    lambda stack: AttentionStack(stack, D),
    lambda stack: AttentionStack(stack, D, 4),
])  # fmt: skip
def test_a_model_with_another_stack_reads_pieces_and_learns(make):
    torch.manual_seed(0)
    config = TransformerConfig(V, D, decoder=[Layer(Attention(2), FFN(10))] * L)
    model = build(config).double().eval()
    model.stack = randomised(make(model.stack).double(), 0.2)
    ids = torch.randint(V, (2, 7), generator=torch.Generator().manual_seed(1))
    whole, last = model(ids)
    start, state = model(ids[:, :3])
    rest, state = model(ids[:, 3:], state)
    close(torch.cat([start, rest], 1), whole)
    assert len(state.layers) == L and state.nbytes == last.nbytes
    rows = model.stack(X)[0]
    close(model.stack.encode(X), rows)
    traced = model.stack.trace(X).states
    assert len(traced) == L + 1
    close(model.stack.finish(traced[-1]), rows)
    model.train()(ids)[0].square().sum().backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # A norm does not see how much is read of streams that are alike, or that all come from x.
    assert [n for n in still if "connections.0.mixer" not in n and "queries" not in n] == []
    twin = copy.deepcopy(model)
    close(twin.eval()(ids)[0], model.eval()(ids)[0])


@pytest.mark.parametrize("make", [lambda s: HyperStack(s, D, 2), lambda s: AttentionStack(s, D)])
def test_a_decoder_that_looks_into_a_memory(make):
    layer = Layer(Attention(2), FFN(10))
    config = TransformerConfig(V, D, encoder=[layer] * 2, decoder=[layer.with_cross()] * 2)
    model = build(config).double().eval()
    plain = model.decoder
    model.decoder = make(plain).double()
    memory = normal(2, 4, D, seed=8)
    found = model.decoder(X, model.decoder.remember(memory))[0]
    other = model.decoder(X, model.decoder.remember(memory + 1.0))[0]
    assert not torch.allclose(found, other)
    if isinstance(model.decoder, HyperStack):
        close(found, plain(X, plain.remember(memory))[0], 1e-6)


def test_more_streams_than_one_can_differ():
    connection = HyperConnection(D, 3, 4)
    assert connection.read_bias.tolist() == [0, 1, 0]  # the fifth sublayer reads stream 4 mod 3
    assert connection.mix_bias.tolist() == torch.eye(3).tolist()
    assert connection.factors.tolist() == pytest.approx([0.01] * 3)


def test_deep_norm_draws_small_values_and_plain_queries():
    torch.manual_seed(0)
    layer = Layer(Attention(4), FFN(256, "swiglu"))
    config = with_deep_norm(TransformerConfig(V, 64, decoder=[layer] * 6))
    stack = build(config).stack
    beta = deep_norm(n_decoder=6)["decoder"].beta
    draw_deep_norm(stack, beta)
    block = stack.blocks[0]
    spread = {
        name: linear.weight.std() / (2 / sum(linear.weight.shape)) ** 0.5
        for name, linear in block.named_modules()
        if isinstance(linear, nn.Linear)
    }
    for name, ratio in spread.items():
        wanted = 1.0 if name.endswith(("q_proj", "k_proj")) else beta
        assert abs(ratio / wanted - 1) < 0.06, name
    assert all(linear.bias.abs().sum() == 0 for linear in block.modules()
               if isinstance(linear, nn.Linear))  # fmt: skip
    assert config.norm_behind is None  # post-norm ends with a norm already


def test_deep_norm_keeps_what_a_deep_stack_computes_stable():
    def moved(deep):
        layer = Layer(Attention(2), FFN(32), place="post", norm=Norm())
        config = TransformerConfig(V, 16, decoder=[layer] * 40)
        config = with_deep_norm(config) if deep else config
        torch.manual_seed(4)
        stack = build(config).stack
        if deep:
            draw_deep_norm(stack, deep_norm(n_decoder=40)["decoder"].beta)
        x = normal(1, 6, 16).float()
        before = stack(x)[0]
        with torch.no_grad():
            for p in stack.parameters():
                p.add_(0.02 * torch.randn_like(p))
        return (stack(x)[0] - before).norm()

    assert moved(True) < 0.5 * moved(False)


PARALLEL = [Layer(Attention(2), FFN(10), parallel=True)]
REFUSED = {
    "stack must be a module": lambda: HyperStack(3, D, 2),
    "stack must be a Stack": lambda: AttentionStack(nn.Linear(2, 2), D),
    "stack must hold blocks of the places": lambda: HyperStack(stack_of("post"), D, 2),
    "and parallel True": lambda: HyperStack(
        build(TransformerConfig(V, D, decoder=PARALLEL)).stack, D, 2
    ),
    "stack must hold Blocks": lambda: HyperStack(Stack([nn.Linear(2, 2)]), D, 2),
    "n_streams must be at least 1": lambda: HyperConnection(D, 0),
    "block_size must be at least 1": lambda: AttentionStack(stack_of(), D, 0),
    "weights are not for this stack": lambda: HyperStack(stack_of(), D, 2).trace(X, weights=True),
    "x must have shape": lambda: HyperStack(stack_of(), D, 2)(X[0]),
    "logits must have shape": lambda: sinkhorn(torch.zeros(2, 3)),
    "steps must be": lambda: sinkhorn(torch.zeros(2, 2), 0),
    "n_encoder or n_decoder must be at least 1": lambda: deep_norm(),
    "config must be a TransformerConfig": lambda: with_deep_norm(3),
    "config must have no multiplier": lambda: with_deep_norm(
        TransformerConfig(V, D, decoder=[Layer(Attention(2), FFN(9), multiplier=0.5)])
    ),
    "beta must be": lambda: draw_deep_norm(stack_of(), 0.0),
    "stack must have no factors yet": lambda: with_layer_scale(
        with_layer_scale(stack_of(), None, 0.0), None, 0.0
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_refused_in_words(message):
    with pytest.raises((TypeError, ValueError), match=message):
        REFUSED[message]()
