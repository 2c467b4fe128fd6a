"""Reversible layers: undone exactly, gradients as autograd's, memory that does not grow."""

import pytest
import torch
from torch import nn

from benchmarks.measure import peak_memory
from tfbook.attention import MultiHeadAttention
from tfbook.blocks import FeedForward, LayerNorm, ReversibleBlock, ReversibleStack

D = 6


def drawn(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    for weight in module.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data = noise / max(weight.shape[-1], 1) ** 0.5
    return module


def layer(dropout=0.0):
    f = nn.Sequential(LayerNorm(D), MultiHeadAttention(D, 2, causal=True, dropout=dropout))
    g = nn.Sequential(LayerNorm(D), FeedForward(D, 11, kind="gelu", dropout=dropout))
    return ReversibleBlock(f, g)


def stack(depth=3, **choices):
    return drawn(ReversibleStack([layer(**choices) for _ in range(depth)]))


def streams(*shape):
    generator = torch.Generator().manual_seed(1)
    both = torch.randn(2, *(shape or (2, 5, D)), generator=generator, dtype=torch.float64)
    return [x.clone().requires_grad_() for x in both]


def by_autograd(blocks, x1, x2):
    """Two streams, layer by layer, in formulas; autograd keeps what it likes."""
    for block in blocks:
        x1 = x1 + block.f(x2)[0]
        x2 = x2 + block.g(x1)
    return x1, x2


def slopes(outputs, inputs):
    probe = torch.linspace(-1, 2, outputs[0].numel(), dtype=torch.float64).view_as(outputs[0])
    loss = (outputs[0] * probe).sum() + (outputs[1] * probe.flip(0)).square().sum()
    return torch.autograd.grad(loss, inputs)


def close(got, wanted, atol=1e-9):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def test_outputs_give_the_inputs_back():
    net = stack(8).requires_grad_(False)
    x1, x2 = streams()
    y1, y2 = net(x1, x2)
    assert (y1 - x1).abs().min() > 1e-6 and (y2 - x2).abs().max() > 1
    for back, x in zip(net.inverse(y1, y2), (x1, x2), strict=True):
        close(back, x)
    one = net.blocks[0]
    for back, x in zip(one.inverse(*one(x1, x2)), (x1, x2), strict=True):
        close(back, x, atol=1e-12)


def test_outputs_and_gradients_equal_those_of_autograd():
    net, inputs = stack(), streams()
    weights = list(net.parameters())
    got, wanted = net(*inputs), by_autograd(net.blocks, *inputs)
    for one, other in zip(got, wanted, strict=True):
        close(one, other, atol=1e-12)
    everything = [*inputs, *weights]
    for one, other in zip(slopes(got, everything), slopes(wanted, everything), strict=True):
        close(one, other)


def test_gradients_agree_with_finite_differences():
    net, inputs = stack(2), streams(1, 3, D)
    assert torch.autograd.gradcheck(lambda a, b: torch.stack(net(a, b)), inputs)


def test_a_layer_that_stands_twice_gets_both_gradients():
    one = drawn(layer())
    net, inputs = ReversibleStack([one, one]), streams()
    weights = list(one.parameters())
    got = slopes(net(*inputs), weights)
    wanted = slopes(by_autograd([one, one], *inputs), weights)
    for mine, theirs in zip(got, wanted, strict=True):
        close(mine, theirs)


def test_frozen_weights_and_inputs_without_gradient():
    net, (x1, x2) = stack(2), streams()
    for weight in net.blocks[0].parameters():
        weight.requires_grad_(False)
    free = [w for w in net.parameters() if w.requires_grad]
    x1, x2 = x1.detach(), x2.detach()
    got = slopes(net(x1, x2), free)
    for mine, theirs in zip(got, slopes(by_autograd(net.blocks, x1, x2), free), strict=True):
        close(mine, theirs)
    assert not stack().requires_grad_(False)(x1, x2)[0].requires_grad


def test_dropout_is_drawn_again_the_same():
    net, inputs = stack(3, dropout=0.4).train(), streams()
    everything = [*inputs, *net.parameters()]
    torch.manual_seed(7)
    wanted = by_autograd(net.blocks, *inputs)
    slopes_wanted = slopes(wanted, everything)
    torch.manual_seed(7)
    got = net(*inputs)
    torch.manual_seed(8)  # what is drawn in between does not matter, and goes on undisturbed
    torch.rand(3)
    state = torch.get_rng_state()
    for mine, theirs in zip(slopes(got, everything), slopes_wanted, strict=True):
        close(mine, theirs)
    assert torch.equal(torch.get_rng_state(), state)


def saved(net, inputs):
    """Count the bytes that a forward pass keeps, by the hooks through which they go."""
    kept = []

    def pack(x):
        kept.append(x.nbytes)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        net(*inputs)
    return sum(kept)


def test_what_is_kept_does_not_grow_with_the_depth():
    inputs = streams()
    assert saved(stack(2), inputs) == saved(stack(8), inputs) == sum(x.nbytes for x in inputs)

    def kept_by_autograd(depth):
        blocks = stack(depth).blocks
        return saved(lambda a, b: by_autograd(blocks, a, b), inputs)

    assert kept_by_autograd(8) > 3 * kept_by_autograd(2)


def test_peak_memory_grows_with_the_weights_only():
    def peak(depth, run):
        net, inputs = stack(depth), streams(4, 64, D)
        weights = list(net.parameters())

        def step():
            y1, y2 = run(net, *inputs)
            torch.autograd.grad((y1 + y2).sum(), weights)

        step()
        return peak_memory(step)

    def plain(net, *inputs):
        return by_autograd(net.blocks, *inputs)

    def reversible(net, *inputs):
        return net(*inputs)

    few, many = peak(2, reversible), peak(8, reversible)
    weights = sum(w.nbytes for w in stack(6).parameters())
    assert many <= few + 1.2 * weights + 20_000
    assert peak(8, plain) > 2.5 * peak(2, plain)


def test_there_is_no_second_derivative():
    net, inputs = stack(1), streams()
    (slope,) = torch.autograd.grad(net(*inputs)[0].square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


REFUSED = {
    "no module": (lambda x: ReversibleBlock(3, nn.Identity()), TypeError, "f must be a module"),
    "no blocks": (lambda x: ReversibleStack([]), ValueError, "blocks must be at least one"),
    "no list": (lambda x: ReversibleStack(3), TypeError, "blocks must be a list"),
    "another module": (
        lambda x: ReversibleStack([nn.Identity()]),
        TypeError,
        "blocks must be made of ReversibleBlock, got Identity",
    ),
    "streams of two sizes": (
        lambda x: stack(1)(x, x[:1]),
        ValueError,
        r"x2 must have shape of x1 = \(2, 5, 6\), got \(1, 5, 6\)",
    ),
    "another dtype": (lambda x: stack(1)(x, x.float()), TypeError, "x1 and x2 must have the same"),
    "a part that changes the shape": (
        lambda x: ReversibleBlock(nn.Linear(D, 4).double(), nn.Identity())(x, x),
        ValueError,
        "what f returns must have shape",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call(streams()[0])
