"""Optimizers: their properties, the steps of PyTorch's, states that travel, what is refused."""

import json
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_properties import CHECKS, PARTS, Kit, normal
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from tfbook.models import build, preset
from tfbook.optimization import (
    SGD,
    Adafactor,
    Adam,
    AdamW,
    Lion,
    Muon,
    RAdam,
    Sophia,
    decay_groups,
    gauss_newton_bartlett,
    hutchinson,
    muon_groups,
    orthogonalize,
    schedule,
)

NAMES = [name for name, part in PARTS.items() if part == "optimizers"]
SHAPES = [(3, 5), (7,), (2, 3, 5), ()]
OURS = {"SGD": SGD, "Adam": Adam, "AdamW": AdamW, "RAdam": RAdam, "Adafactor": Adafactor}
CHOICES = {
    "SGD": {
        "momentum": st.sampled_from([0.0, 0.9]),
        "weight_decay": st.sampled_from([0.0, 0.3]),
    },
    "Adam": {"betas": st.tuples(*[st.floats(0, 0.99)] * 2), "weight_decay": st.floats(0, 1)},
    "AdamW": {"betas": st.tuples(*[st.floats(0, 0.99)] * 2), "weight_decay": st.floats(0, 1)},
    "RAdam": {"betas": st.tuples(st.floats(0, 0.99), st.floats(0.8, 0.999))},
    "Adafactor": {"d": st.floats(1, 2), "weight_decay": st.floats(0, 1), "lr": st.floats(0, 1)},
}


@pytest.mark.parametrize("name", NAMES)
def test_properties(name):
    CHECKS[name](Kit("tfbook"))


def together(ours, theirs, shapes, steps=7, dtype=torch.float64, **tolerance):
    """Let both take steps from the same place along the same gradients, and compare."""
    sides = []
    for make in (ours, theirs):
        parameters = [nn.Parameter(normal(*shape).to(dtype)) for shape in shapes]
        sides.append((parameters, make(parameters)))
    for t in range(steps):
        for parameters, optimizer in sides:
            for i, w in enumerate(parameters):
                w.grad = normal(*w.shape, seed=100 * t + i).to(dtype)
            optimizer.step()
        for w, other in zip(sides[0][0], sides[1][0], strict=True):
            torch.testing.assert_close(w, other, **tolerance)
    return sides


@pytest.mark.parametrize("name", OURS)
@settings(max_examples=12)
@given(data=st.data())
def test_the_steps_are_pytorchs(name, data):
    options = data.draw(st.fixed_dictionaries(CHOICES[name]))
    if options.get("momentum"):
        options["nesterov"] = data.draw(st.booleans())
    theirs = getattr(torch.optim, name)
    together(
        lambda params: OURS[name](params, **options),
        lambda params: theirs(params, **options, foreach=False),
        SHAPES,
        rtol=1e-9,
        atol=1e-11,
    )


@pytest.mark.parametrize("options", [{}, {"scale": "adamw"}, {"nesterov": False}, {"steps": 3}])
def test_the_steps_of_muon_are_pytorchs(options):
    names = {"spectral": "original", "adamw": "match_rms_adamw"}
    rename = {"steps": "ns_steps", "scale": "adjust_lr_fn"}
    theirs = {rename.get(key, key): names.get(value, value) for key, value in options.items()}
    # Both iterate in bfloat16, and in the same order.
    together(
        lambda params: Muon(params, 0.05, precision="bfloat16", **options),
        lambda params: torch.optim.Muon(params, 0.05, **theirs),
        [(3, 5), (7, 5), (11, 11)],
        rtol=1e-9,
        atol=1e-11,
    )


def test_muon_rounds_to_bfloat16_on_a_cpu_only_when_told():
    moved = {}
    for precision in ("auto", "full", "bfloat16"):
        w = nn.Parameter(normal(3, 5))
        w.grad = normal(3, 5, seed=1)
        Muon([w], 0.05, precision=precision).step()
        moved[precision] = w.detach()
    assert torch.equal(moved["auto"], moved["full"])
    assert not torch.equal(moved["auto"], moved["bfloat16"])


@pytest.mark.parametrize("name", OURS)
def test_half_precision_and_single_precision_work_too(name):
    theirs = getattr(torch.optim, name)
    together(OURS[name], lambda p: theirs(p, foreach=False), SHAPES[:2], dtype=torch.float32)
    w = nn.Parameter(normal(3, 5).bfloat16())
    w.grad = normal(3, 5).bfloat16()
    OURS[name]([w], lr=0.5).step()
    assert w.dtype == torch.bfloat16 and w.isfinite().all()


@pytest.mark.parametrize("name", [*OURS, "Muon"])
def test_either_goes_on_with_what_the_other_saved(name):
    shapes = [(3, 5), (7, 2)]
    options = {"momentum": 0.9} if name == "SGD" else {}
    ours = {**OURS, "Muon": partial(Muon, precision="bfloat16")}[name]
    theirs = getattr(torch.optim, name)
    sides = together(
        lambda params: ours(params, **options), lambda params: theirs(params, **options), shapes
    )
    (mine, one), (other, two) = sides
    saved = [one.state_dict(), two.state_dict()]
    assert saved[0]["state"][0].keys() <= saved[1]["state"][0].keys()
    swapped = ours(mine, **options), theirs(other, **options)
    for optimizer, state in zip(swapped, reversed(saved), strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state["state"]})
    for parameters, optimizer in zip((mine, other), swapped, strict=True):
        for w in parameters:
            w.grad = normal(*w.shape, seed=999)
        optimizer.step()
    for w, same in zip(mine, other, strict=True):
        torch.testing.assert_close(w, same)


EVERY = [*OURS.values(), Lion, Sophia, Muon]


@pytest.mark.parametrize("make", EVERY)
def test_what_is_saved_beside_tensors_is_plain_json_and_all_can_be_pickled(make):
    w = nn.Parameter(normal(3, 5))
    w.grad = normal(3, 5, seed=1)
    optimizer = make([w])
    optimizer.step()
    saved = optimizer.state_dict()
    json.dumps(saved["param_groups"])
    assert all(isinstance(x, torch.Tensor) for x in saved["state"][0].values())
    pickle.loads(pickle.dumps(optimizer)).step()


@pytest.mark.parametrize("make", EVERY)
def test_every_optimizer_goes_downhill_under_a_schedule(make):
    target, w = normal(5, 7), nn.Parameter(torch.zeros(5, 7, dtype=torch.float64))
    optimizer = make([w], lr=0.1, weight_decay=0.0)
    follow = LambdaLR(optimizer, schedule("cosine", steps=100, warmup=5))

    def loss():
        return (w - target).square().mean()

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    first = loss().item()
    for t in range(100):
        if make is Sophia and t % 10 == 0:
            optimizer.curvature(hutchinson(loss(), [w]))
        before = loss().item()
        assert optimizer.step(closure).item() == before
        follow.step()
    assert optimizer.param_groups[0]["lr"] == 0
    assert loss().item() < (0.98 if make in (SGD, Adafactor) else 0.6) * first


def test_the_step_of_adam_does_not_see_the_scale_of_the_loss_but_that_of_sgd_does():
    for make, ratio in ((SGD, 1000.0), (Adam, 1.0), (Lion, 1.0)):
        lengths = []
        for scale in (1.0, 1000.0):
            w = nn.Parameter(torch.zeros(5, dtype=torch.float64))
            w.grad = scale * normal(5)
            make([w], lr=0.1).step()
            lengths.append(w.detach().norm().item())
        assert lengths[1] / lengths[0] == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "t5-small", "bert-base", "vit-b-16", "llama-7b"])
def test_the_hidden_matrices_of_a_model_are_those_of_its_blocks(name):
    sizes = {"d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 17}
    with torch.device("meta"):
        model = build(preset(name).replace(**sizes))
    groups = muon_groups(model, lr=0.02, adamw_lr=1e-3)
    names = {id(w): name for name, w in model.named_parameters()}
    hidden = {names[id(w)] for w in groups[0]["params"]}
    blocks = {n for n, w in model.named_parameters() if ".blocks." in n and w.ndim == 2}
    assert {n for n in hidden if ".blocks." in n} == blocks
    assert all(".blocks." in n or n.startswith(("pooler", "transform")) for n in hidden)
    Muon(groups)
    AdamW(decay_groups(model, 0.1))


def test_the_estimates_of_sophia_leave_the_loss_for_its_own_backward_pass():
    w, unused = nn.Parameter(normal(5, 7)), nn.Parameter(normal(3))
    logits = normal(2, 3, 5) @ w
    estimates = gauss_newton_bartlett(logits, [w, unused])
    assert [x.shape for x in estimates] == [w.shape, unused.shape] and estimates[1].sum() == 0
    loss = logits.square().sum()
    hutchinson(loss, [w, unused])
    assert w.grad is None
    loss.backward()
    assert w.grad.shape == w.shape


def weight():
    return nn.Parameter(torch.ones(3, 5))


def stepped(w, g):
    w.grad = g
    SGD([w]).step()


MISTAKES = {
    "negative rate": (lambda: SGD([weight()], lr=-1.0), ValueError, "lr must be finite and at le"),
    "rate as text": (lambda: Adam([weight()], lr="1"), TypeError, "lr must be a number, got str"),
    "rate nan": (lambda: Adam([weight()], lr=float("nan")), ValueError, "lr must be finite"),
    "no pair": (lambda: Adam([weight()], betas=0.9), TypeError, "betas must be a pair of numbers"),
    "beta of 1": (lambda: Adam([weight()], betas=(0.9, 1.0)), ValueError, "betas must be from 0"),
    "eps": (lambda: AdamW([weight()], eps=-1e-8), ValueError, "eps must be finite and at least 0"),
    "decay": (lambda: AdamW([weight()], weight_decay=-0.1), ValueError, "weight_decay must be fin"),
    "nesterov alone": (
        lambda: SGD([weight()], nesterov=True),
        ValueError,
        "nesterov needs a momentum above 0, got 0",
    ),
    "momentum of 1": (lambda: SGD([weight()], momentum=1.0), ValueError, "momentum must be from 0"),
    "misspelt in a group": (
        lambda: AdamW([{"params": [weight()], "weight_deacy": 0.1}]),
        ValueError,
        "a group must have options out of lr, betas, eps, weight_decay, got weight_deacy",
    ),
    "wrong in a group": (
        lambda: AdamW([{"params": [weight()], "lr": -1.0}]),
        ValueError,
        "lr must be finite and at least 0, got -1.0",
    ),
    "eps of adafactor": (lambda: Adafactor([weight()], eps=1e-3), TypeError, "eps must be a pair"),
    "d": (lambda: Adafactor([weight()], d=0.5), ValueError, "d at least 1, got -0.8 and 0.5"),
    "gamma": (lambda: Sophia([weight()], gamma=0.0), ValueError, "gamma must be finite and above"),
    "vector for muon": (
        lambda: Muon([nn.Parameter(torch.ones(3))]),
        ValueError,
        r"rule 'muon' is for matrices, got a parameter of shape \(3,\)",
    ),
    "rule": (lambda: Muon([weight()], rule="sgd"), ValueError, "rule must be one of muon, adamw"),
    "scale": (lambda: Muon([weight()], scale="x"), ValueError, "scale must be one of spectral, a"),
    "steps": (lambda: Muon([weight()], steps=-1), ValueError, "steps must be at least 0, got -1"),
    "vector": (lambda: orthogonalize(torch.ones(3)), ValueError, "matrix needs at least 2 dim"),
    "estimates": (
        lambda: Sophia([weight()]).curvature([torch.ones(3)]),
        ValueError,
        r"estimates must have the parameters' shapes \[\(3, 5\)\], got \[\(3,\)\]",
    ),
    "loss": (lambda: hutchinson(torch.ones(2), []), ValueError, "loss must be one number"),
    "logits": (
        lambda: gauss_newton_bartlett(torch.ones(2).long(), []),
        TypeError,
        "logits must have a floating-point dtype",
    ),
    "no matrices": (
        lambda: muon_groups(nn.Embedding(3, 5), lr=0.1, adamw_lr=0.1),
        ValueError,
        "model must have hidden matrices, got none",
    ),
    "negative decay": (lambda: decay_groups(nn.Linear(3, 5), -1.0), ValueError, "weight_decay mus"),
    "complex": (
        lambda: stepped(nn.Parameter(torch.ones(2) * 1j), torch.ones(2) * 1j),
        TypeError,
        "gradients must be dense and real",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    call, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.untyped
def test_sparse_gradients_are_refused():
    table = nn.Embedding(7, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="dense"):
        AdamW(table.parameters()).step()


@pytest.mark.untyped
def test_a_refused_group_leaves_the_optimizer_as_it_was():
    muon = Muon([weight()])
    with pytest.raises(ValueError, match="is for matrices"):
        muon.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    assert len(muon.param_groups) == 1
