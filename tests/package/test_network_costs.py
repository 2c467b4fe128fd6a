"""Costs of recurrent and convolutional layers: those of real ones, and paths found in graphs.

A test takes the module it tests, `tfbook.costs` or a copy of it with a bug, as its last argument.
"""

import itertools

import fresh
import pytest
import torch
from fresh import Mutant
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tfbook import costs
from tfbook.attention import MultiHeadAttention, attend
from tfbook.recurrent import ElmanCell, GRUCell, LSTMCell, Recurrent

LAYERS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
STEPS = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}
OURS = {"rnn": ElmanCell, "gru": GRUCell, "lstm": LSTMCell}
# Inputs, outputs, groups.
CHANNELS = [(5, 7, 1), (6, 9, 3), (12, 12, 12), (7, 5, 1)]
KERNELS = (1, 2, 3, 5)


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


def counted(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def read(cell, x):
    """Read a sequence (n, batch, d_in) input by input."""
    state = None
    for each in x:
        state = cell(each, state)


def test_recurrent_parameters_are_those_of_the_layer(c=costs):
    for kind, bias in itertools.product(LAYERS, (True, False)):
        layer = LAYERS[kind](5, 7, bias=bias)
        assert c.recurrent_parameters(5, 7, kind, bias=bias) == size(layer)


def test_recurrent_flops_are_those_of_the_steps(c=costs):
    for kind, n in itertools.product(STEPS, (0, 1, 11)):
        cell, x = STEPS[kind](5, 7), torch.zeros(n, 3, 5)
        assert c.recurrent_flops(n, 5, 7, kind, batch=3) == counted(
            lambda cell=cell, x=x: read(cell, x)
        )


def test_recurrent_flops_are_those_of_the_whole_layer(c=costs):
    for kind, cell in OURS.items():
        layer, x = Recurrent(cell(5, 7)), torch.zeros(3, 11, 5)
        assert c.recurrent_flops(11, 5, 7, kind, batch=3) == counted(
            lambda layer=layer, x=x: layer(x)
        )


def test_convolution_parameters_are_those_of_the_layer(c=costs):
    for (d_in, d_out, groups), kernel, bias in itertools.product(CHANNELS, KERNELS, (True, False)):
        layer = nn.Conv1d(d_in, d_out, kernel, groups=groups, bias=bias)
        there = c.convolution_parameters(d_in, d_out, kernel, groups=groups, bias=bias)
        assert there == size(layer)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_convolution_flops_are_those_of_the_layer(c=costs):
    for (d_in, d_out, groups), kernel, dilation in itertools.product(CHANNELS, KERNELS, (1, 2)):
        options = {"padding": "same", "groups": groups, "dilation": dilation}
        layer, x = nn.Conv1d(d_in, d_out, kernel, **options), torch.zeros(3, d_in, 11)
        assert layer(x).shape == (3, d_out, 11)
        there = counted(lambda layer=layer, x=x: layer(x))
        assert c.convolution_flops(11, d_in, d_out, kernel, batch=3, groups=groups) == there


def test_convolution_flops_are_those_of_products_with_windows(c=costs):
    for kernel in KERNELS:
        layer = nn.Conv1d(5, 7, kernel).double()
        x = torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        padded = nn.functional.pad(x, (kernel - 1, 0))
        windows = padded.unfold(-1, kernel, 1).transpose(1, 2).flatten(2)  # (3, 11, 5 · kernel)
        weight = layer.weight.flatten(1).mT  # (5 · kernel, 7)
        by_hand = (windows @ weight + layer.bias).mT
        torch.testing.assert_close(by_hand, layer(padded), atol=1e-12, rtol=0)
        there = counted(lambda windows=windows, weight=weight: windows @ weight)
        assert c.convolution_flops(11, 5, 7, kernel, batch=3) == there


def test_a_separable_convolution_is_two(c=costs):
    layers = nn.Sequential(nn.Conv1d(12, 12, 5, padding=2, groups=12), nn.Conv1d(12, 12, 1))
    x = torch.zeros(3, 12, 11)
    each_alone = c.convolution_flops(11, 12, 12, 5, batch=3, groups=12)
    mixing = c.convolution_flops(11, 12, 12, 1, batch=3)
    assert each_alone + mixing == counted(lambda: layers(x))


def depth(tensor, products=("mm", "Convolution")):
    """Count the products on the longest chain of operations that led to a tensor."""
    longest, stack = {None: 0}, [tensor.grad_fn]
    while stack:
        node = stack[-1]
        before = [each for each, _ in node.next_functions]
        waiting = [each for each in before if each not in longest]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        own = any(name in node.name() for name in products)
        longest[node] = own + max([longest[each] for each in before], default=0)
    return longest[tensor.grad_fn]


def test_steps_that_wait_are_the_longest_chain_of_products(c=costs):
    generator = torch.Generator().manual_seed(0)
    attention = MultiHeadAttention(6, 2, attend=attend)
    layers = {
        "recurrent": lambda x: Recurrent(ElmanCell(6, 6))(x)[0],
        "attention": lambda x: attention(x)[0],
        "convolution": lambda x: nn.Conv1d(6, 6, 3, padding=1)(x.mT),
    }
    for (kind, layer), n in itertools.product(layers.items(), (1, 2, 5, 11)):
        one, many = (torch.randn(3, length, 6, generator=generator) for length in (1, n))
        assert depth(layer(one)) >= 1
        assert depth(layer(many)) == c.sequential_steps(kind, n) * depth(layer(one))


def moves_until_connected(n, sees):
    """Count moves until each position has met all before it.

    sees(l, i, j) tells whether in move l = 0, 1, … position i sees j.
    """
    met, moves = torch.eye(n, dtype=torch.bool), 0
    while not torch.equal(met, torch.ones(n, n, dtype=torch.bool).tril()):
        edges = [[sees(moves, i, j) for j in range(n)] for i in range(n)]
        met = (torch.tensor(edges, dtype=torch.float64) @ met.double()) > 0
        moves += 1
    return moves


def test_paths_are_the_shortest_ones_in_the_graph(c=costs):
    graphs = {
        "attention": lambda move, i, j: j <= i,
        "recurrent": lambda move, i, j: j in (i - 1, i),
    }
    for (kind, sees), n in itertools.product(graphs.items(), range(1, 18)):
        assert c.path_length(kind, n) == moves_until_connected(n, sees)


def test_paths_through_convolutions_are_the_shortest_ones_in_the_graph(c=costs):
    for k, n in itertools.product((2, 3, 4, 7), (*range(1, 11), 16, 17, 27, 28)):

        def near(layer, i, j, k=k):
            return 0 <= i - j < k

        def apart(layer, i, j, k=k):
            return i - j in range(0, k ** (layer + 1), k**layer)

        assert c.path_length("convolution", n, kernel=k) == moves_until_connected(n, near)
        dilated = c.path_length("convolution", n, kernel=k, dilated=True)
        assert dilated == moves_until_connected(n, apart)


def layers_until_the_end_sees_all(n, kernel, dilated):
    """Stack real convolutions until the last output has a gradient at each input."""
    x = torch.ones(1, 1, n, dtype=torch.float64, requires_grad=True)
    weight, y, layers = torch.full((1, 1, kernel), 1 / kernel, dtype=torch.float64), x, 0
    while not (torch.autograd.grad(y[0, 0, -1], x, retain_graph=True)[0] > 0).all():
        dilation = kernel**layers if dilated else 1
        padded = nn.functional.pad(y, ((kernel - 1) * dilation, 0))
        y, layers = nn.functional.conv1d(padded, weight, dilation=dilation), layers + 1
    return layers


def test_paths_through_convolutions_are_those_of_gradients(c=costs):
    near = [(2, 2), (19, 3), (20, 3), (28, 10), (29, 10)]
    apart = [(64, 2), (65, 2), (125, 5), (126, 5), (243, 3), (244, 3), (1000, 10)]
    for n, k in (*near, *apart):
        dilated = (n, k) in apart
        there = layers_until_the_end_sees_all(n, k, dilated)
        assert c.path_length("convolution", n, kernel=k, dilated=dilated) == there


REFUSED = {
    "an unknown network": (
        lambda: costs.recurrent_flops(3, 5, 7, "mgu"),
        ValueError,
        "kind must be one of rnn, gru, lstm, got 'mgu'",
    ),
    "no kind of network": (
        lambda: costs.recurrent_parameters(5, 7, None),
        ValueError,
        "kind must be one of rnn, gru, lstm, got None",
    ),
    "no state": (
        lambda: costs.recurrent_parameters(5, 0, "rnn"),
        ValueError,
        "d_hidden must be at least 1, got 0",
    ),
    "a state of some kind": (
        lambda: costs.recurrent_parameters(5, "7", "rnn"),
        TypeError,
        "d_hidden must be an integer, got str",
    ),
    "half an input": (
        lambda: costs.recurrent_flops(2.5, 5, 7, "rnn"),
        TypeError,
        "n must be an integer, got float",
    ),
    "a truth for a batch": (
        lambda: costs.recurrent_flops(2, 5, 7, "rnn", batch=True),
        TypeError,
        "batch must be an integer, got bool",
    ),
    "a number for a bias": (
        lambda: costs.recurrent_parameters(5, 7, "rnn", bias=2),
        TypeError,
        "bias must be True or False, got int",
    ),
    "a kernel of nothing": (
        lambda: costs.convolution_flops(3, 5, 7, 0),
        ValueError,
        "kernel must be at least 1, got 0",
    ),
    "uneven groups": (
        lambda: costs.convolution_parameters(6, 8, 3, groups=3),
        ValueError,
        "groups must divide d_in and d_out, got 3, 6 and 8",
    ),
    "less than no sequences": (
        lambda: costs.convolution_flops(3, 5, 7, 3, batch=-1),
        ValueError,
        "batch must be at least 0, got -1",
    ),
    "steps of something else": (
        lambda: costs.sequential_steps("lstm", 3),
        ValueError,
        "kind must be one of attention, recurrent, convolution, got 'lstm'",
    ),
    "no positions": (
        lambda: costs.sequential_steps("attention", 0),
        ValueError,
        "n must be at least 1, got 0",
    ),
    "a convolution without kernel": (
        lambda: costs.path_length("convolution", 5),
        ValueError,
        "kernel must be given for a convolution, got None",
    ),
    "a kernel that reaches nothing": (
        lambda: costs.path_length("convolution", 5, kernel=1),
        ValueError,
        "kernel must be at least 2, got 1",
    ),
    "attention with a kernel": (
        lambda: costs.path_length("attention", 5, kernel=3),
        ValueError,
        "kernel and dilated are for a convolution, got kind 'attention'",
    ),
    "a dilated recurrence": (
        lambda: costs.path_length("recurrent", 5, dilated=True),
        ValueError,
        "kernel and dilated are for a convolution, got kind 'recurrent'",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def planted(bug, old, new, caught_by):
    return Mutant(bug, "tfbook.costs.networks", old, new, caught_by.__name__)


MUTANTS = [
    planted(
        "one vector of biases",
        "2 * d_hidden * bias",
        "d_hidden * bias",
        test_recurrent_parameters_are_those_of_the_layer,
    ),
    planted(
        "gates exchanged",
        '"gru": 3, "lstm": 4',
        '"gru": 4, "lstm": 3',
        test_recurrent_flops_are_those_of_the_steps,
    ),
    planted(
        "a gate of the LSTM without an input",
        "_gates(kind, d_in, d_hidden) * (d_in * d_hidden + d_hidden**2)\n",
        "(_gates(kind, d_in, d_hidden) * d_hidden**2 + 3 * d_in * d_hidden)\n",
        test_recurrent_flops_are_those_of_the_whole_layer,
    ),
    planted(
        "sizes of input and state exchanged",
        "(d_in * d_hidden + d_hidden**2)\n",
        "(d_in * d_hidden + d_in**2)\n",
        test_recurrent_flops_are_those_of_the_steps,
    ),
    planted(
        "a kernel of one position",
        "return kernel * d_in * d_out // groups",
        "return d_in * d_out // groups",
        test_convolution_flops_are_those_of_products_with_windows,
    ),
    planted(
        "groups that share their inputs",
        "return kernel * d_in * d_out // groups",
        "return kernel * d_in * d_out",
        test_a_separable_convolution_is_two,
    ),
    planted(
        "a bias for each input",
        "d_out * bias",
        "d_in * bias",
        test_convolution_parameters_are_those_of_the_layer,
    ),
    planted(
        "no zeros beyond the ends",
        "return 2 * batch * n * _weights(",
        "return 2 * batch * (n - kernel + 1) * _weights(",
        test_convolution_flops_are_those_of_the_layer,
    ),
    planted(
        "attention that reads in order",
        'return n if kind == "recurrent" else 1',
        'return n if kind != "convolution" else 1',
        test_steps_that_wait_are_the_longest_chain_of_products,
    ),
    planted(
        "the state before the first counted",
        'return n - 1 if kind == "recurrent"',
        'return n if kind == "recurrent"',
        test_paths_are_the_shortest_ones_in_the_graph,
    ),
    planted(
        "a move to where one is",
        "else min(n - 1, 1)",
        "else 1",
        test_paths_are_the_shortest_ones_in_the_graph,
    ),
    planted(
        "a kernel that reaches k back",
        "return -(-(n - 1) // (kernel - 1))",
        "return -(-(n - 1) // kernel)",
        test_paths_through_convolutions_are_the_shortest_ones_in_the_graph,
    ),
    planted(
        "the last layer forgotten",
        "return -(-(n - 1) // (kernel - 1))",
        "return (n - 1) // (kernel - 1)",
        test_paths_through_convolutions_are_those_of_gradients,
    ),
    planted(
        "a rounded logarithm",
        "    while seen < n:",
        '    m = __import__("math")\n    return m.ceil(m.log(n, kernel))\n    while seen < n:',
        test_paths_through_convolutions_are_those_of_gradients,
    ),
    planted(
        "a dilation of two whatever the kernel",
        "seen * kernel",
        "seen * 2",
        test_paths_through_convolutions_are_the_shortest_ones_in_the_graph,
    ),
    planted(
        "one position too many",
        "    while seen < n:",
        "    while seen <= n:",
        test_paths_through_convolutions_are_the_shortest_ones_in_the_graph,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    sick = fresh.copies("sick_tfbook", ["tfbook.costs"], mutant.edits)
    with pytest.raises(AssertionError):
        globals()[mutant.caught_by](sick)


def test_the_copy_without_a_bug_passes():
    healthy = fresh.copies("healthy_tfbook", ["tfbook.costs"])
    for name in {mutant.caught_by for mutant in MUTANTS}:
        globals()[name](healthy)
