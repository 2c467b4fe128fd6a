"""Mixtures of experts: two forms, loops and libraries; loads, losses, records; what they cost.

Properties that the planted bugs of test_experts_mutants.py must not pass stand in CHECKS; each
gets the two modules, so that it can run on a copy of them.
"""

import copy
import io
import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory_accounts import kept
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tfbook.blocks.experts
import tfbook.blocks.routing
from tfbook.blocks import (
    FEED_FORWARDS,
    ROUTERS,
    FeedForward,
    MixtureOfExperts,
    Router,
    Routing,
    load_balancing_loss,
    mix_experts,
    mix_experts_dense,
    route,
    routing_losses,
    update_biases,
)
from tfbook.models import (
    FFN,
    Attention,
    Experts,
    Layer,
    Norm,
    Rotary,
    TransformerConfig,
    active_parameters,
    build,
)

D, F, E, K = 6, 10, 5, 2
KIT = SimpleNamespace(experts=tfbook.blocks.experts, routing=tfbook.blocks.routing)
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(one, other, atol=1e-9):
    torch.testing.assert_close(one, other, rtol=0, atol=atol)


def randomised(module, seed=0):
    """Give every weight, biases too, numbers that are not those of the beginning."""
    torch.manual_seed(seed)
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.5)
    return module.double()


def mixture(kit=KIT, **choices):
    sizes = {"kind": "swiglu", "n_experts": E, "top_k": K} | choices
    return randomised(kit.experts.MixtureOfExperts(D, F, **sizes))


def gradients(outputs, inputs):
    found = torch.autograd.grad(
        outputs.square().sum(), inputs, allow_unused=True, retain_graph=True
    )
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


def by_rows(moe, x, routing):
    """Compute a mixture one row and one expert at a time."""
    rows = []
    for t in range(len(x)):
        y = torch.zeros(D, dtype=x.dtype)
        for k in range(routing.chosen.shape[1]):
            if routing.kept[t, k]:
                y = y + routing.weights[t, k] * moe.experts[int(routing.chosen[t, k])](x[t])
        rows.append(y if moe.shared is None else y + moe.shared(x[t]))
    return torch.stack(rows)


@check
def both_forms_equal_a_loop(kit):
    x = normal(11, D)
    x[3] = x[7]  # the same row twice
    x.requires_grad_()
    for router in kit.routing.ROUTERS:
        top_k = 1 if router == "switch" else K
        for factor in (None, 0.6):
            moe = mixture(kit, router=router, top_k=top_k, capacity_factor=factor, n_shared=1)
            torch.manual_seed(4)  # of the noise
            y = moe(x)
            wanted = by_rows(moe, x, moe.routing)
            dense = kit.experts.mix_experts_dense(moe.experts, x, moe.routing) + moe.shared(x)
            inputs = [x, *moe.parameters()]
            for found in (y, dense):
                close(found, wanted)
                for one, other in zip(
                    gradients(found, inputs), gradients(wanted, inputs), strict=True
                ):
                    close(one, other)


@check
def weights_are_what_the_router_promises(kit):
    logits = normal(40, E, seed=1)
    p = torch.exp(logits) / torch.exp(logits).sum(-1, keepdim=True)
    best = p.argsort(-1, descending=True)
    wanted = {
        "softmax": p.gather(1, best[:, :K]),
        "top_k": p.gather(1, best[:, :K]) / p.gather(1, best[:, :K]).sum(-1, keepdim=True),
        "sigmoid": None,
    }
    s = 1 / (1 + torch.exp(-logits))
    wanted["sigmoid"] = s.gather(1, best[:, :K]) / s.gather(1, best[:, :K]).sum(-1, keepdim=True)
    wanted["noisy"] = wanted["top_k"]
    for kind, weights in wanted.items():
        found = kit.routing.route(logits, K, kind=kind)
        assert torch.equal(found.chosen, best[:, :K])
        close(found.weights, weights)
        close(found.scores.sum(-1), torch.ones(40, dtype=torch.float64))
        close(kit.routing.route(logits, K, kind=kind, scale=2.5).weights, 2.5 * weights)
    close(kit.routing.route(logits, 1, kind="switch").weights, p.max(-1, keepdim=True).values)


@check
def a_full_expert_drops_the_last_choices(kit):
    logits = torch.tensor([[9.0, 5, 0], [9, 0, 5], [9, 5, 0], [0, 9, 5], [5, 9, 0]])
    found = kit.routing.route(logits, 2, capacity=2)
    # Expert 0 is the first choice of rows 0, 1, 2 and the second of 4; expert 1 the first of 3, 4.
    wanted = [[True, False], [True, True], [False, False], [True, True], [True, False]]
    assert found.kept.tolist() == wanted
    assert found.load.tolist() == [2, 2, 2] and found.demand.tolist() == [4, 4, 2]
    assert found.dropped == 4 and found.missed.tolist() == [False, False, True, False, False]
    assert int(found.load.sum()) + found.dropped == found.chosen.numel()


@check
def capacity_is_the_mean_load_times_the_factor(kit):
    router = kit.routing.Router(D, 4, 2, capacity_factor=1.25)
    assert [router.capacity(rows) for rows in (0, 1, 8, 100)] == [1, 1, 5, 63]
    assert router.eval().capacity(100) is None  # what generation reads must not depend on the rest
    assert kit.routing.Router(D, 4, 2).capacity(100) is None


@check
def a_loss_of_one_is_a_uniform_load(kit):
    rows = torch.eye(4).repeat(3, 1)
    for sharp in (0.0, 1.0, 50.0):  # however sure the router is
        close(kit.routing.load_balancing_loss(kit.routing.route(sharp * rows + rows, 1)),
              torch.tensor(1.0), 1e-6)  # fmt: skip
    alone = torch.tensor([[60.0, 0, 0, 0]]).expand(12, -1)
    close(kit.routing.load_balancing_loss(kit.routing.route(alone, 1)), torch.tensor(4.0), 1e-6)
    logits = normal(30, E, seed=3)
    found = kit.routing.route(logits, K)
    p, total = torch.softmax(logits, -1), 0.0
    for i in range(E):
        asked = sum(int(i in found.chosen[t]) for t in range(30)) / (30 * K)
        total += E * asked * p[:, i].mean()
    close(kit.routing.load_balancing_loss(found), total)
    close(kit.routing.load_balancing_loss(kit.routing.route(logits, K, capacity=3)), total)


@check
def the_z_loss_is_the_square_of_the_log_of_the_sum(kit):
    logits = normal(7, E, seed=5)
    wanted = sum(torch.log(torch.exp(row).sum()) ** 2 for row in logits) / 7
    close(kit.routing.router_z_loss(kit.routing.route(logits, 1)), wanted)


@check
def the_bias_moves_choices_and_never_weights(kit):
    logits, bias = normal(50, E, seed=6), torch.zeros(E, dtype=torch.float64)
    plain = kit.routing.route(logits, K, kind="sigmoid")
    bias[2] = 5.0
    pushed = kit.routing.route(logits, K, kind="sigmoid", bias=bias)
    assert (pushed.chosen[:, 0] == 2).all() and not (plain.chosen[:, 0] == 2).all()
    s = torch.sigmoid(logits).gather(1, pushed.chosen)
    close(pushed.weights, s / s.sum(-1, keepdim=True))
    same = kit.routing.route(logits, K, kind="sigmoid", bias=0 * bias)
    assert torch.equal(same.chosen, plain.chosen)
    # It is added to what lies between 0 and 1, not to the logits.
    small = torch.linspace(-0.3, 0.3, E, dtype=torch.float64)
    for kind, liked in (("top_k", logits.softmax(-1)), ("sigmoid", torch.sigmoid(logits))):
        found = kit.routing.route(logits, K, kind=kind, bias=small)
        assert torch.equal(found.chosen, (liked + small).topk(K, dim=-1).indices)
        assert not torch.equal(found.chosen, (logits + small).topk(K, dim=-1).indices)


@check
def updates_of_the_bias_make_loads_equal(kit):
    moe = mixture(kit, router="sigmoid", top_k=1, balanced=True)
    x = normal(200, D, seed=7) + 1.0  # rows that like some experts better
    moe(x)
    before = moe.routing.demand
    for _ in range(300):
        moe(x)
        kit.experts.update_biases(moe, 0.005)
    after = moe.routing.demand
    assert before.max() > 2 * 40 and (after - 40).abs().max() <= 8
    assert moe.router.choice_bias.requires_grad is False


@check
def equal_experts_are_one_network(kit):
    x = normal(9, D, seed=8)
    for router in ("top_k", "sigmoid", "noisy"):
        moe = mixture(kit, router=router, kind="gelu")
        for expert in moe.experts:
            expert.load_state_dict(moe.experts[0].state_dict())
        close(moe(x), moe.experts[0](x))


@check
def pieces_of_a_network_are_fine_grained_experts(kit):
    whole, x = randomised(FeedForward(D, 12, kind="swiglu", bias=False)), normal(9, D, seed=9)
    moe = kit.experts.MixtureOfExperts(D, 4, 3, 3, kind="swiglu", bias=False, scale=3.0).double()
    nn.init.zeros_(moe.router.proj.weight)  # weights of 1/3, times 3
    with torch.no_grad():
        for i, expert in enumerate(moe.experts):
            rows = slice(4 * i, 4 * i + 4)
            expert.up_proj.weight.copy_(whole.up_proj.weight[rows])
            expert.gate_proj.weight.copy_(whole.gate_proj.weight[rows])
            expert.down_proj.weight.copy_(whole.down_proj.weight[:, rows])
    close(moe(x), whole(x))


@check
def every_expert_takes_as_many_rows_where_experts_choose(kit):
    logits = normal(12, 4, seed=10)
    found = kit.routing.route(logits, 2, kind="expert_choice")
    assert found.load.tolist() == [6, 6, 6, 6] and found.dropped == 0
    p = torch.softmax(logits, -1)
    for i in range(4):
        taken = found.kept[:, i]
        assert p[taken, i].min() >= p[~taken, i].max()
        close(found.gates()[:, i], p[:, i] * taken)


@check
def losses_are_of_the_last_pass(kit):
    moe = mixture(kit)
    model = nn.Sequential(moe, nn.Linear(D, D).double(), mixture(kit, router="switch", top_k=1))
    x, y = normal(8, D, seed=11), normal(5, D, seed=12)
    model(y)
    with torch.no_grad():
        model(x)
    quiet = kit.experts.routing_losses(model)
    assert not quiet.balance.requires_grad
    model(x)
    loud = kit.experts.routing_losses(model)
    close(loud.balance.detach(), quiet.balance), close(loud.z.detach(), quiet.z)
    (loud.balance + loud.z).backward()
    assert all(each.router.proj.weight.grad.abs().sum() > 0 for each in (model[0], model[2]))
    found = [kit.routing.load_balancing_loss(each.routing) for each in (model[0], model[2])]
    close(loud.balance, (found[0] + found[1]) / 2)


@pytest.mark.parametrize("name", CHECKS)
def test_property(name):
    CHECKS[name](KIT)


@pytest.mark.parametrize("kind", FEED_FORWARDS)
def test_experts_of_every_kind(kind):
    x = normal(2, 4, D, seed=13)
    moe = mixture(kind=kind)
    close(moe(x).flatten(0, 1), by_rows(moe, x.flatten(0, 1), moe.routing))


@settings(max_examples=30)
@given(st.integers(0, 9), st.integers(1, 6), st.data())
def test_both_forms_agree_on_any_routing(rows, n_experts, data):
    top_k = data.draw(st.integers(1, n_experts))
    capacity = data.draw(st.none() | st.integers(1, 4))
    logits = normal(rows, n_experts, seed=data.draw(st.integers(0, 99)))
    found = route(logits, top_k, capacity=capacity)
    experts = [randomised(nn.Linear(3, 3), i) for i in range(n_experts)]
    x = normal(rows, 3, seed=1)
    close(mix_experts(experts, x, found), mix_experts_dense(experts, x, found))
    if capacity is not None:
        assert (found.load <= capacity).all()
    assert int(found.load.sum()) + found.dropped == rows * top_k


def test_gradients_are_those_of_finite_differences():
    moe = mixture(router="softmax", kind="gelu", n_shared=1)
    x = normal(4, D, seed=14).requires_grad_()
    assert torch.autograd.gradcheck(moe, (x,))  # the choice is the same around x


def test_an_expert_that_nobody_asks_for_computes_nothing():
    moe, calls = mixture(top_k=1), []
    for number, expert in enumerate(moe.experts):
        expert.register_forward_hook(lambda *_, number=number: calls.append(number))
    moe(normal(1, D).expand(7, -1))
    assert len(calls) == 1
    assert moe(normal(0, D)).shape == (0, D)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_chooses_in_single(dtype):
    moe = mixture().to(dtype)
    x = normal(50, D, seed=15).to(dtype)
    y = moe(x)
    exact = copy.deepcopy(moe).double()
    wanted = exact(x.double())
    assert y.dtype == dtype and moe.routing.logits.dtype == torch.float32
    assert torch.equal(moe.routing.chosen, exact.routing.chosen)
    torch.testing.assert_close(y.double(), wanted, rtol=0.03, atol=0.03)
    with torch.autocast("cpu", torch.bfloat16):
        moe.float()(x.float())
    assert moe.routing.logits.dtype == torch.float32


def test_noise_is_for_training_only():
    moe, x = mixture(router="noisy"), normal(30, D, seed=16)
    assert not torch.equal(moe(x), moe(x))
    moe.eval()
    assert torch.equal(moe(x), moe(x))
    logits = moe.routing.logits
    close(logits, x @ moe.router.proj.weight.T)
    moe.train()(x)
    assert moe.router.noise_proj.weight.shape == (E, D)
    grads = gradients(moe(x), [moe.router.noise_proj.weight])
    assert grads[0].abs().sum() > 0  # how loud it is can be learned


def test_a_record_is_left_behind_by_copies_and_files():
    moe = mixture(router="sigmoid", balanced=True)
    moe(normal(4, D))
    twin = copy.deepcopy(moe)
    assert twin.routing is None and moe.routing is not None
    assert copy.copy(moe.records).maxlen == 1
    file = io.BytesIO()
    torch.save(moe.state_dict(), file)
    file.seek(0)
    other = mixture(router="sigmoid", balanced=True, n_shared=0)
    other.load_state_dict(torch.load(file))
    close(other(normal(4, D)), moe(normal(4, D)))
    assert "router.choice_bias" in moe.state_dict()
    file = io.BytesIO()
    torch.save(moe, file)  # with its graph behind it
    with pytest.raises(ValueError, match="no routing yet"):
        routing_losses(twin)


def test_a_mixtral_block_is_this_one():
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=D, intermediate_size=F, num_local_experts=E, num_experts_per_tok=K,
        router_jitter_noise=0.0,
    )  # fmt: skip
    config._experts_implementation = "eager"
    theirs = randomised(MixtralSparseMoeBlock(config), 1).float()
    ours = MixtureOfExperts(D, F, E, K, kind="swiglu", bias=False)
    with torch.no_grad():
        ours.router.proj.weight.copy_(theirs.gate.weight)
        for i, expert in enumerate(ours.experts):
            gate, up = theirs.experts.gate_up_proj[i].chunk(2)
            expert.gate_proj.weight.copy_(gate), expert.up_proj.weight.copy_(up)
            expert.down_proj.weight.copy_(theirs.experts.down_proj[i])
    x, z = (normal(2, 7, D, seed=17).float().requires_grad_() for _ in range(2))
    y, wanted = ours(x), theirs(z)
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    y.square().sum().backward(), wanted.square().sum().backward()
    same = [(x, z), (ours.router.proj.weight, theirs.gate.weight)]
    for one, other in same:
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)
    downs = torch.stack([expert.down_proj.weight.grad for expert in ours.experts])
    torch.testing.assert_close(downs, theirs.experts.down_proj.grad, rtol=1e-5, atol=1e-5)


def test_a_switch_block_is_this_one_and_drops_the_same_rows():
    from transformers import SwitchTransformersConfig
    from transformers.models.switch_transformers import modeling_switch_transformers as switch

    config = SwitchTransformersConfig(
        d_model=D, d_ff=F, num_experts=3, expert_capacity=4, router_jitter_noise=0.0,
        dropout_rate=0.0, dense_act_fn="relu", feed_forward_proj="relu",
    )  # fmt: skip
    theirs = randomised(switch.SwitchTransformersSparseMLP(config), 2).float().train()
    ours = MixtureOfExperts(D, F, 3, 1, bias=False, router="switch", capacity_factor=0.75)
    with torch.no_grad():
        ours.router.proj.weight.copy_(theirs.router.classifier.weight)
        for i, expert in enumerate(ours.experts):
            expert.up_proj.weight.copy_(theirs.experts[f"expert_{i}"].wi.weight)
            expert.down_proj.weight.copy_(theirs.experts[f"expert_{i}"].wo.weight)
    x, z = (normal(1, 16, D, seed=18).float().requires_grad_() for _ in range(2))
    y, wanted = ours(x), theirs(z)
    assert ours.router.capacity(16) == 4 and ours.routing.dropped > 0
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    y.square().sum().backward(), wanted.square().sum().backward()
    torch.testing.assert_close(x.grad, z.grad, rtol=1e-5, atol=1e-5)


def test_a_deepseek_block_is_this_one():
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = DeepseekV3Config(
        hidden_size=D, moe_intermediate_size=F, n_routed_experts=E, num_experts_per_tok=K,
        n_shared_experts=2, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.5,
    )  # fmt: skip
    config._experts_implementation = "eager"
    theirs = randomised(DeepseekV3MoE(config), 3).float()
    ours = MixtureOfExperts(
        D, F, E, K, kind="swiglu", bias=False, router="sigmoid", n_shared=2, scale=2.5,
        balanced=True,
    )  # fmt: skip
    with torch.no_grad():
        theirs.gate.e_score_correction_bias.normal_()
        ours.router.choice_bias.copy_(theirs.gate.e_score_correction_bias)
        ours.router.proj.weight.copy_(theirs.gate.weight)
        for i, expert in enumerate(ours.experts):
            gate, up = theirs.experts.gate_up_proj[i].chunk(2)
            expert.gate_proj.weight.copy_(gate), expert.up_proj.weight.copy_(up)
            expert.down_proj.weight.copy_(theirs.experts.down_proj[i])
        for name in ("gate_proj", "up_proj", "down_proj"):
            given = getattr(theirs.shared_experts, name).weight
            getattr(ours.shared, name).weight.copy_(given)
    x = normal(2, 7, D, seed=19).float()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


def test_the_loss_of_transformers_is_k_times_this_one():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = normal(40, E, seed=20)
    theirs = load_balancing_loss_func((logits,), E, K)
    close(K * load_balancing_loss(route(logits, K)), theirs.double(), 1e-6)


SPARSE = [
    Experts(9, 4, 2),
    Experts(9, 4, 2, "swiglu", bias=False, n_shared=2),
    Experts(7, 3, 1, "gelu", router="switch", capacity_factor=1.5),
    Experts(7, 3, 2, router="sigmoid", balanced=True, scale=2.0),
    Experts(7, 3, 2, router="noisy"),
]


@pytest.mark.parametrize("experts", SPARSE, ids=lambda e: f"{e.router} {e.kind}")
def test_a_model_is_counted_as_it_is_built(experts):
    attention = Attention(2, position=Rotary(), attend="reference")
    layers = [Layer(attention, FFN(11)), Layer(attention, experts), Layer(attention, experts)]
    config = TransformerConfig(13, 8, decoder=layers)
    torch.manual_seed(0)
    model = build(config).eval()
    assert config.count_parameters() == model.count_parameters()
    tokens = torch.randint(13, (2, 6), generator=torch.Generator().manual_seed(1))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        _, state = model(tokens)
    assert config.flops(6, 2) == counter.get_total_flops()
    active = 0
    for block in model.stack.blocks:
        if isinstance(block.ffn, MixtureOfExperts):
            active += sum(p.numel() for p in block.ffn.router.parameters())
            active += experts.top_k * sum(p.numel() for p in block.ffn.experts[0].parameters())
            if block.ffn.shared is not None:
                active += sum(p.numel() for p in block.ffn.shared.parameters())
    assert active == 2 * experts.active_parameters(8)
    dense = model.count_parameters() - sum(
        p.numel() for b in model.stack.blocks[1:] for p in b.ffn.parameters()
    )
    assert active_parameters(config) == dense + active
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    # A row's experts do not depend on other rows, so pieces give the whole.
    whole = model(tokens)[0]
    start, state = model(tokens[:, :4])
    torch.testing.assert_close(torch.cat([start, model(tokens[:, 4:], state)[0]], 1), whole)


@pytest.mark.parametrize("experts", SPARSE[:4], ids=lambda e: f"{e.router} {e.kind}")
def test_training_keeps_as_many_bytes_as_counted(experts):
    whole = Experts(**{**vars(experts), "capacity_factor": None})  # nothing dropped
    config = TransformerConfig(13, 8, decoder=[Layer(Attention(2), whole)])
    for n in (5, 20):
        assert kept(config, n, 2) == config.saved_bytes(n, 2)


def test_mixtral_has_its_published_sizes():
    layer = Layer(
        Attention(32, n_kv_heads=8, position=Rotary(), bias=False),
        Experts(14336, n_experts=8, top_k=2, kind="swiglu", bias=False),
        norm=Norm("rms"),
    )
    config = TransformerConfig(32000, 4096, decoder=[layer] * 32)
    untied = 32000 * 4096  # its head has a matrix of its own
    assert round((config.count_parameters() + untied) / 1e9, 1) == 46.7
    assert round((active_parameters(config) + untied) / 1e9, 1) == 12.9


def test_a_step_of_training_reaches_the_experts_that_were_asked():
    config = TransformerConfig(13, 8, decoder=[Layer(Attention(2), Experts(9, 4, 2, "swiglu"))])
    torch.manual_seed(0)
    model = build(config)
    tokens = torch.randint(13, (4, 9), generator=torch.Generator().manual_seed(2))
    found = model(tokens[:, :-1])[0].flatten(0, 1)
    loss = nn.functional.cross_entropy(found, tokens[:, 1:].flatten())
    extra = routing_losses(model)
    (loss + 0.01 * extra.balance + 0.001 * extra.z).backward()
    load = model.stack.blocks[0].ffn.routing.load
    for expert, rows in zip(model.stack.blocks[0].ffn.experts, load, strict=True):
        assert (expert.up_proj.weight.grad is not None) == bool(rows)


def test_training_on_the_loss_makes_loads_equal():
    torch.manual_seed(0)
    moe = MixtureOfExperts(D, F, 4, 1, router="switch")
    x = normal(256, D, seed=21).float() + 1
    optimizer = torch.optim.SGD(moe.router.parameters(), lr=0.3)
    moe(x)
    before = routing_losses(moe).balance.item()
    for _ in range(150):
        moe(x)
        optimizer.zero_grad()
        routing_losses(moe).balance.backward()
        optimizer.step()
    assert before > 1.5 and routing_losses(moe).balance.item() < 1.1


REFUSED = {
    "top_k must be at most n_experts": lambda: MixtureOfExperts(D, F, 2, 3),
    "top_k must be 1 for kind 'switch'": lambda: Experts(F, 4, 2, router="switch"),
    "kind must be one of": lambda: Router(D, 4, 2, kind="best"),
    "n_shared must be an integer": lambda: MixtureOfExperts(D, F, 2, 1, n_shared=True),
    "capacity_factor must be finite and above 0": lambda: Experts(F, 4, 2, capacity_factor=0.0),
    "balanced is not for expert_choice": lambda: Router(
        D, 4, 2, kind="expert_choice", balanced=True
    ),
    "x must end with d_model = 6": lambda: MixtureOfExperts(D, F, 2, 1)(torch.zeros(3, 7)),
    "x must be a tensor": lambda: MixtureOfExperts(D, F, 2, 1)(3),
    "logits must have shape": lambda: route(torch.zeros(3), 1),
    "logits must have a floating": lambda: route(torch.zeros(3, 2, dtype=torch.long), 1),
    "bias must have shape": lambda: route(torch.zeros(3, 2), 1, bias=torch.zeros(3)),
    "routing must be of at least one row": lambda: load_balancing_loss(route(torch.zeros(0, 2), 1)),
    "routing must be a Routing": lambda: load_balancing_loss(3),
    "model must have a MixtureOfExperts": lambda: routing_losses(nn.Linear(2, 2)),
    "model must be a module": lambda: routing_losses(3),
    "model must have a mixture with balanced": lambda: update_biases(MixtureOfExperts(D, F, 2, 1)),
    "rate must be": lambda: update_biases(MixtureOfExperts(D, F, 2, 1), -1.0),
    "routing.logits must have shape": lambda: mix_experts(
        [nn.Identity()], torch.zeros(2, 3), route(torch.zeros(2, 2), 1)
    ),
    "expert_choice compares all rows": lambda: build(
        TransformerConfig(
            5, D, decoder=[Layer(Attention(2), Experts(F, 2, 1, router="expert_choice"))]
        )
    ),
    "config must be a TransformerConfig": lambda: active_parameters(3),
}


@pytest.mark.untyped
@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_refused_in_words(message):
    with pytest.raises((TypeError, ValueError), match=message):
        REFUSED[message]()


def test_a_record_can_be_read():
    moe = mixture(router="softmax", capacity_factor=0.5)
    moe(normal(10, D, seed=22))
    found = moe.routing
    assert isinstance(found, Routing) and found.n_experts == E
    assert found.chosen.shape == found.weights.shape == found.kept.shape == (10, K)
    assert routing_losses(moe).dropped == found.dropped / (10 * K)
    assert set(ROUTERS) == {"softmax", "top_k", "switch", "sigmoid", "noisy", "expert_choice"}
