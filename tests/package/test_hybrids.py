"""A mixer and a feed-forward part from outside the package stand between attentions.

Only the description and the module are written here; a config counts them, a model with them is
built, trained by a step, and generates with a state.
"""

import json
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tfbook.generation import generate
from tfbook.models import (
    FFN,
    Attention,
    Layer,
    Norm,
    Rotary,
    Spec,
    TransformerConfig,
    build,
)

V, D = 23, 12


class Decay(nn.Module):
    """y_t = W_out s_t with s_t = a ⊙ s_{t−1} + W_in x_t: a state of one row."""

    def __init__(self, d_model, width):
        super().__init__()
        self.into = nn.Linear(d_model, width, bias=False)
        self.log_rate = nn.Parameter(torch.linspace(-3, -0.1, width)[None])  # not for a scheme
        self.out = nn.Linear(width, d_model)

    def forward(self, x, state=None, *, mask=None):
        rows, held = self.into(x), x.new_zeros(len(x), self.into.out_features)
        held, found = held if state is None else state, []
        for row in rows.unbind(1):
            held = self.log_rate[0].exp() * held + row
            found.append(held)
        return self.out(torch.stack(found, 1)), held


@dataclass(frozen=True)
class DecaySpec(Spec):
    """What a config holds of it."""

    width: int

    def build(self, site):
        return Decay(site.d_model, self.width)

    def price(self, name, run):
        yield run.linear(f"{name}.into", run.d_model, self.width, bias=False)
        yield run.part(name, (run.batch, run.n, self.width), self.width)
        yield run.linear(f"{name}.out", self.width, run.d_model)

    def held(self, d_model, length):
        return self.width


class Experts(nn.Module):
    """The better one of n networks for each row, weighed by how much it is."""

    def __init__(self, d_model, d_ff, n_experts):
        super().__init__()
        self.choose = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
            for _ in range(n_experts)
        )

    def forward(self, x):
        share, which = self.choose(x).softmax(-1).max(-1)  # (B, N) each
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            y[which == number] = expert(x[which == number])
        return y * share[..., None]


@dataclass(frozen=True)
class ExpertsSpec(Spec):
    """What a config holds of it; a row goes through one of them."""

    d_ff: int
    n_experts: int

    def build(self, site):
        return Experts(site.d_model, self.d_ff, self.n_experts)

    def price(self, name, run):
        d, others = run.d_model, self.n_experts - 1
        yield run.linear(f"{name}.choose", d, self.n_experts, bias=False)
        for inputs, outputs in ((d, self.d_ff), (self.d_ff, d)):
            one = run.linear(f"{name}.experts", inputs, outputs)
            idle = others * (inputs * outputs + outputs)
            yield one._replace(parameters=one.parameters + idle)


@pytest.fixture(scope="module")
def config():
    attention = Attention(3, n_kv_heads=1, position=Rotary(), attend="reference")
    window = Attention(2, window=4, position=Rotary(), attend="reference")
    return TransformerConfig(
        V,
        D,
        decoder=[
            Layer(attention, FFN(17)),
            Layer(DecaySpec(7), ExpertsSpec(9, 3), norm=Norm("rms")),
            Layer(window, FFN(19, "swiglu"), place="both"),
            Layer(DecaySpec(5), FFN(8), parallel=True, one_norm=True),
        ],
    )


@pytest.fixture(scope="module")
def model(config):
    torch.manual_seed(0)
    return build(config).eval()


def tokens(batch=2, n=11):
    return torch.randint(V, (batch, n), generator=torch.Generator().manual_seed(1))


def test_a_hybrid_is_counted_like_the_model(config, model):
    assert config.count_parameters() == model.count_parameters()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens())
    assert config.flops(11, 2) == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        state = model(tokens())[1]
        past = counter.get_total_flops()
        model(tokens(2, 3), state)
    assert config.flops(3, 2, past=11) == counter.get_total_flops() - past


def test_its_states_are_as_large_as_counted(config, model):
    for n in (1, 11):
        state = model(tokens(2, n))[1]
        assert state.nbytes == config.kv_cache_bytes(n, 2)
    grown = config.kv_cache_bytes(12) - config.kv_cache_bytes(11)
    assert grown == 4 * 2 * (4 + 2 * 6)  # keys and values of one head of 4 and of two of 6


def test_pieces_give_the_whole_and_generation_goes_on_from_the_state(model):
    whole, pieces, state = model(tokens())[0], [], None
    for piece in tokens().split([4, 1, 6], dim=1):
        logits, state = model(piece, state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    found = generate(model, tokens(1, 4), max_new_tokens=5).tokens[0]
    wanted = tokens(1, 4)
    for _ in range(5):
        wanted = torch.cat([wanted, model(wanted)[0][:, -1:].argmax(-1)], 1)
    assert list(found)[-5:] == wanted[0, 4:].tolist()


def test_a_step_of_training_reaches_every_part(config):
    torch.manual_seed(2)
    net = build(config)
    before = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    ids = tokens(8, 12)
    loss = nn.functional.cross_entropy(net(ids[:, :-1])[0].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    still = [name for name, weight in net.named_parameters() if torch.equal(weight, before[name])]
    assert still == []


def test_weights_that_a_module_made_itself_stay(model):
    rates = model.stack.blocks[1].mixer.log_rate[0]
    torch.testing.assert_close(rates, torch.linspace(-3, -0.1, 7))


def test_a_hybrid_survives_json_and_is_written_layer_by_layer(config):
    text = json.dumps(config.to_dict())
    assert TransformerConfig.from_dict(json.loads(text)) == config
    summary = config.summary(5)
    assert summary.count("mixer.q_proj") == 2 and summary.count("experts") == 2
    doubled = config.replace(n_layers=8).summary(5)
    assert len(doubled.splitlines()) == len(summary.splitlines()) and "× 2" in doubled


def test_a_choice_of_a_part_from_outside_can_be_changed(config):
    wider = config.replace(width=6, n_experts=2)
    assert [layer.mixer.width for layer in wider.decoder[1::2]] == [6, 6]
    assert wider.decoder[1].ffn.n_experts == 2
