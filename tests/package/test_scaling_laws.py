"""Scaling laws and budgets: their properties, PyTorch's counts, shapes, bad input."""

import math

import pytest
import torch
from scaling_properties import CHECKS, DOUBLE, near
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tfbook import costs

X, LOSS = [1e6, 1e7, 1e8, 1e9], [6.0, 4.0, 3.0, 2.5]
RUNS = ([1e7, 1e7, 1e8, 1e8, 1e9, 1e9], [1e9, 1e10, 1e9, 1e11, 1e10, 1e11])


@pytest.mark.parametrize("name", CHECKS)
def test_scaling_laws_have(name):
    CHECKS[name](costs)


# PyTorch's counts ---------------------------------------------------------------------------------


class Layer(nn.Module):
    """Causal attention and a feed-forward part, of matrices without biases."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x):
        parts = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in parts)
        weights = (q @ k.mT).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(-2))
        return x + self.down(self.up(x).relu())


def stack(n_layers=3, d_model=24, n_heads=3, vocab_size=57):
    layers = [Layer(d_model, n_heads) for _ in range(n_layers)]
    return nn.Sequential(*layers, nn.Linear(d_model, vocab_size, bias=False))


def test_forward_flops_are_those_pytorch_counts():
    net, x = stack(), torch.randn(2, 7, 24)
    n_parameters = sum(parameter.numel() for parameter in net.parameters())
    with FlopCounterMode(display=False) as counter:
        net(x)
    ours = 2 * 7 * costs.forward_flops(n_parameters, n_layers=3, d_model=24, context=7)
    assert ours == counter.get_total_flops()


def test_training_flops_are_those_pytorch_counts_without_attention():
    net = nn.Sequential(nn.Linear(5, 11, bias=False), nn.ReLU(), nn.Linear(11, 3, bias=False))
    x = torch.randn(13, 5, requires_grad=True)  # as of an embedding, which is trained too
    with FlopCounterMode(display=False) as counter:
        net(x).sum().backward()
    assert costs.training_flops(5 * 11 + 11 * 3, 13) == counter.get_total_flops()


# shapes -------------------------------------------------------------------------------------------


def test_numbers_give_numbers_and_lists_tensors():
    law = costs.PowerLaw(100, 0.5, 1)
    assert isinstance(law.loss(25), float)
    assert law.loss([25, 100]).tolist() == [3, 2]
    assert law.loss(torch.tensor([[25], [100]])).shape == (2, 1)
    assert law.loss(torch.tensor(25.0)).shape == ()
    assert law.inverse([3, 2]).tolist() == [25, 100]


@pytest.mark.parametrize(
    "law", [costs.HOFFMANN, costs.KAPLAN, costs.DataConstrainedLaw(costs.HOFFMANN, 1e9)], ids=str
)
def test_sizes_and_tokens_broadcast(law):
    n, d = torch.tensor([1e7, 1e8, 1e9]), torch.tensor([1e9, 3e10])
    grid = law.loss(n[:, None], d)
    assert grid.shape == (3, 2) and grid.dtype == DOUBLE
    near(grid[2, 1].item(), law.loss(1e9, float(d[1])))
    near(law.loss(1e9, d).tolist(), grid[2].tolist())


def test_laws_have_gradients():
    n = torch.tensor(1e9, dtype=DOUBLE, requires_grad=True)
    for law in (costs.HOFFMANN, costs.KAPLAN, costs.DataConstrainedLaw(costs.HOFFMANN, 1e9)):
        (slope,) = torch.autograd.grad(law.loss(n, 1e10), n)
        step = (law.loss(1e9 * 1.0001, 1e10) - law.loss(1e9 * 0.9999, 1e10)) / (2e-4 * 1e9)
        near(slope.item(), step, 1e-5)


def test_fits_leave_the_gradients_of_their_columns_alone():
    loss = torch.tensor(LOSS, dtype=DOUBLE, requires_grad=True)
    assert isinstance(costs.fit_power_law(X, loss).floor, float)
    with torch.no_grad():
        found = costs.fit_chinchilla(*RUNS, costs.HOFFMANN.loss(*RUNS))
    near(found.n_exponent, 0.34, 1e-3)


def test_a_fit_is_the_same_each_time():
    assert costs.fit_power_law(X, LOSS) == costs.fit_power_law(X, LOSS)
    loss = costs.HOFFMANN.loss(*RUNS)
    assert costs.fit_chinchilla(*RUNS, loss) == costs.fit_chinchilla(*RUNS, loss)


def test_draws_leave_the_random_numbers_of_others_alone():
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    costs.bootstrap(torch.sum, [1, 2, 3], samples=5)
    assert torch.equal(torch.rand(3), wanted)


def test_all_draws_refused_is_an_error_that_says_why():
    calls = []

    def fit(x):
        calls.append(x)
        if len(calls) > 1:
            raise ValueError("no such luck")

    with pytest.raises(ValueError, match="fit refused 100 draws in a row: no such luck"):
        costs.bootstrap(fit, [1, 2, 3])


# bad input ----------------------------------------------------------------------------------------

WRONG = {
    "scale must be finite and above 0": lambda: costs.PowerLaw(0, 0.5),
    "exponent must be finite and above 0": lambda: costs.PowerLaw(1, -0.5),
    "floor must be finite and at least 0": lambda: costs.PowerLaw(1, 0.5, -1),
    "exponent must be a number, got bool": lambda: costs.PowerLaw(1, True),
    "x must be positive and finite, got 0.0": lambda: costs.PowerLaw(1, 0.5).loss([1, 0]),
    "x must be positive and finite, got inf": lambda: costs.PowerLaw(1, 0.5).loss(
        torch.tensor([math.inf])
    ),
    "x must be a list, got str": lambda: costs.PowerLaw(1, 0.5).loss("7"),
    "x must hold real numbers, got torch.bool": lambda: costs.PowerLaw(1, 0.5).loss(
        torch.tensor([True])
    ),
    "loss must be above the law's floor, 2.0, got 2.0": lambda: costs.PowerLaw(1, 0.5, 2.0).inverse(
        [3, 2]
    ),
    r"shapes must broadcast, got n_parameters \(3,\) and n_tokens \(2,\)": lambda: (
        costs.HOFFMANN.loss([1, 2, 3], [1, 2])
    ),
    "law must be a ChinchillaLaw, got KaplanLaw": lambda: costs.DataConstrainedLaw(
        costs.KAPLAN, 1e9
    ),
    "unique_tokens must be finite and above 0": lambda: costs.DataConstrainedLaw(
        costs.HOFFMANN, math.inf
    ),
    "repeat_decay must be above 0": lambda: costs.DataConstrainedLaw(costs.HOFFMANN, 1e9, 0),
    "x must have at least 3 different values, got 2": lambda: costs.fit_power_law(
        [1, 2, 2], [3, 2, 2]
    ),
    "x must have at least 2 different values, got 1": lambda: costs.fit_power_law(
        [2, 2], [3, 2], floor=0
    ),
    "floor must be from 0 up to below 2.5, got 2.5": lambda: costs.fit_power_law(
        X, LOSS, floor=2.5
    ),
    "loss must fall as x grows": lambda: costs.fit_power_law(X, LOSS[::-1]),
    "loss must fall as x": lambda: costs.fit_power_law(X, [3.0] * 4),
    r"shapes must be the same, got x \(4,\) and loss \(3,\)": lambda: costs.fit_power_law(
        X, LOSS[:3]
    ),
    r"x must have shape \(n,\), got \(1, 4\)": lambda: costs.fit_power_law(torch.tensor([X]), LOSS),
    "loss must not be empty": lambda: costs.fit_power_law(X, []),
    "loss must be that of at least 5 runs, got 4": lambda: costs.fit_chinchilla(X, X, LOSS),
    "n_parameters must have at least 3 different": lambda: costs.fit_chinchilla(
        [1, 1, 1, 2, 2, 2], [1, 2, 3, 1, 2, 3], [5, 4, 3, 4, 3, 2]
    ),
    "loss must fall as n_parameters grow": lambda: costs.fit_chinchilla(
        *RUNS, [2 + 1e3 / d**0.3 for d in RUNS[1]]
    ),
    "delta must be from 1e-06 to 1000000.0, got 0": lambda: costs.fit_chinchilla(
        *RUNS, LOSS + LOSS[:2], delta=0
    ),
    "fit must be a function, got int": lambda: costs.bootstrap(3, X),
    "samples must be from 1 to 100000, got 0": lambda: costs.bootstrap(sum, X, samples=0),
    "columns must be at least one list": lambda: costs.bootstrap(sum),
    "level must be above 0 and below 1, got 1": lambda: costs.interval(X, 1),
    "values must not be empty": lambda: costs.interval([]),
    "n_tokens must be finite and above 0": lambda: costs.training_flops(1e9, 0),
    "attention needs n_layers, d_model and context": lambda: costs.forward_flops(9, n_layers=2),
    "context must be an integer": lambda: costs.forward_flops(
        9, n_layers=2, d_model=3, context=5.0
    ),
    "utilisation must be": lambda: costs.training_days(1e20, 8, 1e15, 40),
    r"law must have a method loss\(N, D\), got int": lambda: costs.compute_optimal(3, 1e20),
    "flops must pay for one parameter and one token": lambda: costs.compute_optimal(
        costs.HOFFMANN, 5
    ),
    "flops must be finite and above 0, got nan": lambda: costs.compute_optimal(
        costs.HOFFMANN, math.nan
    ),
    "law must have a minimum": lambda: costs.compute_optimal(Falls(), 1e20),
    r"law.loss\(N, D\) must be a number, got str": lambda: costs.compute_optimal(Speaks(), 1e20),
    "loss must be finite and above 1.69, got 1.69": lambda: costs.serving_optimal(
        costs.HOFFMANN, 1.69, 0
    ),
    "number of parameters would be less than one": lambda: costs.serving_optimal(
        costs.HOFFMANN, 1e6, 0
    ),
    "number of tokens would be more than a float holds": lambda: costs.serving_optimal(
        costs.ChinchillaLaw(0.0, 1.0, 0.5, 1.0, 0.01), 1e-4, 0
    ),
    "the parabola has none": lambda: costs.isoflop_minimum(X[:3], [2, 3, 2]),
    "n_parameters must have at least 3": lambda: costs.isoflop_minimum(X[:2], [2, 3]),
}


class Falls:
    """A law that says: the larger the better."""

    def loss(self, n_parameters, n_tokens):
        return 1 / n_parameters


class Speaks:
    """A law that does not give numbers."""

    def loss(self, n_parameters, n_tokens):
        return "little"


@pytest.mark.untyped
@pytest.mark.parametrize("message", WRONG)
def test_bad_input_is_refused_in_words(message):
    with pytest.raises((ValueError, TypeError), match=message):
        WRONG[message]()
