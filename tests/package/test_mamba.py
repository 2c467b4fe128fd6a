"""Mamba and Mamba-2: forms that agree, parity with transformers, and as layers of a model."""

import json
import math

import mixer_properties
import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import peak_memory
from tfbook.generation import generate
from tfbook.models import (
    FFN,
    S4D,
    Attention,
    Layer,
    Mamba,
    Mamba2,
    NoFFN,
    Norm,
    Rotary,
    Site,
    TransformerConfig,
    build,
)
from tfbook.recurrent import (
    SCANS,
    Mamba2Mixer,
    MambaMixer,
    selective_scan,
    semiseparable_mask,
    state_space_dual,
)

DOUBLE = torch.float64
FORMS = ("parallel", "recurrent", "chunked")


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=DOUBLE)


def close(got, wanted, atol=1e-9, rtol=0.0):
    torch.testing.assert_close(got, wanted, atol=atol, rtol=rtol)


MAKES = {
    "mamba": lambda: MambaMixer(6, 5, delta=(0.1, 0.9)),
    "mamba chunked": lambda: MambaMixer(6, 3, rank=2, bias=True, conv_bias=False, form="chunked"),
    "mamba-2": lambda: Mamba2Mixer(6, 5, d_head=3, n_groups=2, chunk=3, delta=(0.1, 0.9)),
    "mamba-2 recurrent": lambda: Mamba2Mixer(6, 3, d_head=6, bias=True, form="recurrent"),
}


@pytest.mark.parametrize("name", mixer_properties.cases())
@pytest.mark.parametrize("kind", ["mamba", "mamba-2"])
def test_it_has_the_properties_of_a_mixer(kind, name):
    mixer_properties.CHECKS[name](MAKES[kind])


@pytest.mark.parametrize("kind", ["mamba chunked", "mamba-2 recurrent"])
def test_so_it_has_with_other_choices(kind):
    for name in ("pieces_with_a_state_are_the_whole", "gaps_are_as_good_as_not_there"):
        mixer_properties.CHECKS[f"test_{name}"](MAKES[kind])


# the selective scan


def selective(n=9, seed=0):
    x, b, c = normal(2, n, 3, seed=seed), normal(2, n, 4, seed=seed + 1), normal(2, n, 4, seed=7)
    delta, a = normal(2, n, 3, seed=seed + 2).exp() / 3, -normal(3, 4, seed=seed + 3).exp()
    state = normal(2, 3, 4, seed=seed + 4)
    return [each.requires_grad_() for each in (x, delta, a, b, c, state)]


def by_loop(x, delta, a, b, c, state):
    """Follow every number by itself, in Python."""
    batch, n, columns = x.shape
    y = torch.zeros(batch, n, columns, dtype=DOUBLE)
    for i in range(batch):
        for d in range(columns):
            h = [state[i, d, s] for s in range(a.shape[1])]
            for t in range(n):
                for s in range(a.shape[1]):
                    fade = math.exp(delta[i, t, d] * a[d, s])
                    h[s] = fade * h[s] + delta[i, t, d] * b[i, t, s] * x[i, t, d]
                y[i, t, d] = sum(c[i, t, s] * h[s] for s in range(a.shape[1]))
    return y


def test_the_selective_scan_is_what_it_says():
    given = selective(5)
    y, _ = selective_scan(*given[:5], state=given[5])
    close(y.detach(), by_loop(*[each.detach() for each in given]))


@pytest.mark.parametrize("form", SCANS)
def test_all_forms_of_it_agree_with_their_gradients(form):
    given = selective(19)
    weights = normal(2, 19, 3, seed=9)

    def run(form):
        y, last = selective_scan(*given[:5], state=given[5], form=form)
        return y, last, torch.autograd.grad((y * weights).sum() + last.square().sum(), given)

    for mine, wanted in zip(run(form), run("sequential"), strict=True):
        for one, other in zip(mine, wanted, strict=True):
            close(one, other, rtol=1e-9)


def test_a_delta_of_zero_is_a_token_that_was_not_there():
    x, delta, a, b, c, state = (each.detach() for each in selective(6))
    delta[:, 2:4] = 0.0
    y, last = selective_scan(x, delta, a, b, c, state=state)
    keep = [0, 1, 4, 5]
    rows = [each[:, keep] for each in (x, delta)] + [a] + [each[:, keep] for each in (b, c)]
    wanted, end = selective_scan(*rows, state=state)
    close(y[:, keep], wanted)
    close(last, end)


def test_with_constant_choices_it_is_a_convolution():
    """Without selection it is S4D with real numbers: y[t] = Σ_l C exp(Δ A)^l Δ B x[t − l]."""
    n, a, b, c, delta = 12, -torch.tensor([[0.5, 2.0]]).double(), normal(2), normal(2, seed=3), 0.3
    x = normal(1, n, 1)
    whole = [each.expand(1, n, 2) for each in (b, c)]
    y, _ = selective_scan(x, torch.full((1, n, 1), delta, dtype=DOUBLE), a, *whole)
    kernel = [(c * (delta * a[0] * lag).exp() * delta * b).sum() for lag in range(n)]
    wanted = [sum(kernel[t - s] * x[0, s, 0] for s in range(t + 1)) for t in range(n)]
    close(y[0, :, 0], torch.stack(wanted))


def test_it_can_copy_what_a_convolution_cannot_choose():
    """Δ large writes and forgets the rest, Δ = 0 ignores: the state holds the marked token."""
    x = torch.tensor([5.0, 1.0, 7.0, 3.0, 2.0]).double().reshape(1, 5, 1)
    marked = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]).double().reshape(1, 5, 1)
    one = torch.ones(1, 5, 1, dtype=DOUBLE)
    y, _ = selective_scan(x, 50 * marked, -torch.ones(1, 1, dtype=DOUBLE), one / 50, one)
    close(y.flatten(), torch.tensor([0.0, 0.0, 7.0, 7.0, 7.0]).double())


# the duality


def dual(n=11):
    x, b, c = normal(2, 3, n, 4), normal(2, 3, n, 5, seed=1), normal(2, 3, n, 5, seed=2)
    delta, a = normal(2, 3, n, seed=3).exp() / 3, -normal(3, seed=4).exp()
    state = normal(2, 3, 5, 4, seed=5)
    return [each.requires_grad_() for each in (x, delta, a, b, c, state)]


@pytest.mark.parametrize("form", FORMS)
def test_the_dual_is_attention_with_a_fading_mask(form):
    x, delta, a, b, c, state = given = dual()
    log_decay = delta * a[:, None]
    mask = semiseparable_mask(log_decay)
    attention = (mask * (c @ b.mT)) @ (delta[..., None] * x)
    start = (log_decay.cumsum(-1).exp()[..., None] * c) @ state
    for held, wanted in ((None, attention), (state, attention + start)):
        options = {"chunk": 4} if form == "chunked" else {}
        y, last = state_space_dual(x, delta, a, b, c, state=held, form=form, **options)
        close(y, wanted)
        end = (mask[..., -1, :, None] * b).mT @ (delta[..., None] * x)
        if held is not None:
            end = end + log_decay.sum(-1)[..., None, None].exp() * state
        close(last, end)
        part = given if held is not None else given[:5]
        weights = normal(*y.shape, seed=8)
        found = torch.autograd.grad((y * weights).sum(), part)
        exact = torch.autograd.grad((wanted * weights).sum(), part, retain_graph=True)
        for mine, theirs in zip(found, exact, strict=True):
            close(mine, theirs, rtol=1e-9)


def test_it_is_the_selective_scan_with_one_rate_for_all():
    """One column of one head: A is the same number in each place of the state."""
    x, delta, a, b, c, _ = (each.detach() for each in dual())
    for head in range(3):
        columns = x[:, head].shape[-1]
        same = delta[:, head, :, None].expand(-1, -1, columns)
        rates = a[head].expand(columns, 5)
        wanted, end = selective_scan(x[:, head], same, rates, b[:, head], c[:, head])
        y, last = state_space_dual(x[:, head], delta[:, head], a[head], b[:, head], c[:, head])
        close(y, wanted)
        close(last, end.mT)


def test_the_mask_is_products_of_decays_and_of_rank_one_below_the_diagonal():
    log_decay = -normal(2, 7).exp()
    mask, decay = semiseparable_mask(log_decay), log_decay.exp()
    for i in range(2):
        for t in range(7):
            for s in range(7):
                wanted = decay[i, s + 1 : t + 1].prod() if s <= t else torch.zeros(()).double()
                close(mask[i, t, s], wanted)
    for cut in range(1, 7):
        assert torch.linalg.matrix_rank(mask[0, cut:, :cut]) == 1
    assert torch.equal(semiseparable_mask(torch.zeros(4)), torch.ones(4, 4).tril())
    assert semiseparable_mask(torch.zeros(0)).shape == (0, 0)


def test_forgetting_everything_is_no_nan():
    log_decay = torch.tensor([-0.1, -torch.inf, -0.2, -0.3], dtype=DOUBLE, requires_grad=True)
    mask = semiseparable_mask(log_decay)
    assert (mask[1:, 0] == 0).all()
    close(mask[2, 1].detach(), torch.tensor(-0.2, dtype=DOUBLE).exp())
    (slope,) = torch.autograd.grad(mask.sum(), log_decay)
    assert slope.isfinite().all()


# parity with transformers


def tiny(kind, bias=False):
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 12, "state_size": 5, "num_hidden_layers": 1}
    if kind == "mamba":
        config = transformers.MambaConfig(**sizes, time_step_rank=3, use_bias=bias)
        model = transformers.MambaModel(config)
        mine = MambaMixer(12, 5, rank=3, bias=bias)
    else:
        config = transformers.Mamba2Config(
            **sizes, num_heads=6, head_dim=4, n_groups=2, chunk_size=4, conv_kernel=3, use_bias=bias
        )
        model = transformers.Mamba2Model(config)
        mine = Mamba2Mixer(12, 5, d_head=4, n_groups=2, width=3, chunk=4, bias=bias)
    theirs = model.layers[0].mixer
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    names = {
        "A_log": "log_rate",
        "D": "skip",
        "dt_bias": "delta_bias",
        "norm.weight": "gain",
        "dt_proj.weight": "delta_proj.weight",
        "dt_proj.bias": "delta_bias",
        "conv1d.weight": "conv.weight",
        "conv1d.bias": "conv.bias",
    }
    weights = {names.get(name, name): weight for name, weight in theirs.state_dict().items()}
    weights["conv.weight"] = weights["conv.weight"][:, 0]
    mine.load_state_dict(weights)
    return model.eval(), theirs.eval(), mine.eval()


@pytest.mark.parametrize("kind", ["mamba", "mamba-2"])
def test_it_is_the_mixer_of_transformers(kind):
    x = normal(2, 9, 12).float()
    for bias in (True, False):
        _, theirs, mine = tiny(kind, bias)
        close(mine(x)[0], theirs(x), atol=1e-5, rtol=1e-5)
    padding = torch.arange(9) >= torch.tensor([[0], [3]])
    got, wanted = mine(x, mask=padding[:, None])[0], theirs(x, attention_mask=padding)
    close(got[padding], wanted[padding], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["mamba", "mamba-2"])
def test_it_goes_on_as_their_cache_does(kind):
    model, theirs, mine = tiny(kind)
    ids = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(1))
    seen = []
    hook = theirs.register_forward_hook(
        lambda module, args, kwargs, out: seen.append((args, kwargs, out)), with_kwargs=True
    )
    cache, state = None, None
    with torch.no_grad():
        for piece in ids.split([5, 1, 1, 1], dim=1):
            cache = model(piece, cache_params=cache, use_cache=True).cache_params
            args, kwargs, wanted = seen.pop()
            x = args[0] if args else kwargs["hidden_states"]
            got, state = mine(x, state)
            close(got, wanted, atol=1e-5, rtol=1e-5)
    hook.remove()
    held = cache.get_recurrent_state(0)
    close(state.h if kind == "mamba" else state.h.mT, held, atol=1e-5, rtol=1e-5)


# as modules


def test_a_first_delta_lies_between_the_bounds():
    for mixer in (MambaMixer(32, 4), Mamba2Mixer(32, 4, d_head=1)):
        delta = nn.functional.softplus(mixer.delta_bias)
        assert delta.min() >= 0.001 * 0.999 and delta.max() <= 0.1 * 1.001
        assert 0.2 < (delta < 0.01).float().mean() < 0.8  # even in the logarithm


def test_the_state_does_not_grow():
    for make in MAKES.values():
        mixer = make()
        with torch.no_grad():
            sizes = [mixer(torch.randn(1, n, 6))[1].nbytes for n in (1, 10, 200)]
        assert len(set(sizes)) == 1


def test_the_forms_of_mamba_2_are_one_module():
    torch.manual_seed(0)
    mixers = [Mamba2Mixer(6, 5, d_head=3, form=form).double() for form in FORMS]
    for mixer in mixers[1:]:
        mixer.load_state_dict(mixers[0].state_dict())
    x = normal(2, 9, 6)
    for mixer in mixers[1:]:
        close(mixer(x)[0], mixers[0](x)[0])


def test_chunks_need_no_square_of_memory():
    def extra(n):
        given = torch.randn(1, 4, n, 16), torch.rand(1, 4, n), -torch.ones(4)
        with torch.no_grad():
            rows = torch.randn(1, 4, n, 16)
            return peak_memory(lambda: state_space_dual(*given, rows, rows))

    assert extra(2048) < 2.5 * extra(1024)


@pytest.mark.untyped
def test_what_does_not_fit_is_refused():
    x, delta, a, b, c, state = (each.detach() for each in selective(4))
    y, gap, rate, keys, queries, held = (each.detach() for each in dual(4))
    for error, name, call in [
        (TypeError, "delta", lambda: selective_scan(x, 0.1, a, b, c)),
        (TypeError, "dtype", lambda: selective_scan(x, delta, a, b.float(), c)),
        (ValueError, "delta", lambda: selective_scan(x, delta[:, :2], a, b, c)),
        (ValueError, "a must", lambda: selective_scan(x, delta, a[:2], b, c)),
        (ValueError, "b must", lambda: selective_scan(x, delta, a, b[..., :2], c)),
        (ValueError, "c must", lambda: selective_scan(x, delta, a, b, c[:1])),
        (ValueError, "form", lambda: selective_scan(x, delta, a, b, c, form="fast")),
        (ValueError, "state", lambda: selective_scan(x, delta, a, b, c, state=state[:1])),
        (ValueError, "x must", lambda: selective_scan(x[0], delta, a, b, c)),
        (ValueError, "delta", lambda: state_space_dual(y, gap[..., :2], rate, keys, queries)),
        (
            ValueError,
            "a must",
            lambda: state_space_dual(y, gap, -normal(2, 1, 3).exp(), keys, queries),
        ),
        (ValueError, "c must", lambda: state_space_dual(y, gap, rate, keys, queries[..., :2])),
        (ValueError, "b must", lambda: state_space_dual(y, gap, rate, keys[..., :2, :], queries)),
        (ValueError, "form", lambda: state_space_dual(y, gap, rate, keys, queries, form="scan")),
        (
            ValueError,
            "chunk",
            lambda: state_space_dual(y, gap, rate, keys, queries, form="parallel", chunk=2),
        ),
        (
            ValueError,
            "state",
            lambda: state_space_dual(y, gap, rate, keys, queries, state=held[..., :2, :]),
        ),
        (TypeError, "log_decay", lambda: semiseparable_mask([0.5])),
        (ValueError, "form", lambda: MambaMixer(4, form="fast")),
        (ValueError, "width", lambda: MambaMixer(4, width=0)),
        (TypeError, "bias", lambda: MambaMixer(4, bias=1)),
        (ValueError, "d_head", lambda: Mamba2Mixer(4, d_head=3)),
        (ValueError, "n_groups", lambda: Mamba2Mixer(4, d_head=4, n_groups=3)),
        (TypeError, "chunk", lambda: Mamba2Mixer(4, d_head=4, chunk=2.0)),
    ]:
        with pytest.raises(error, match=name):
            call()


# as layers of a model

V, D = 23, 12
ALONE = {"parallel": True, "one_norm": True, "norm": Norm("rms")}


@pytest.fixture(scope="module")
def config():
    attention = Attention(3, n_kv_heads=1, position=Rotary(), attend="reference")
    return TransformerConfig(
        V,
        D,
        decoder=[
            Layer(Mamba(5, rank=2), NoFFN(), **ALONE),
            Layer(Mamba2(6, d_head=4, n_groups=2, width=3, chunk=4, bias=True), FFN(17)),
            Layer(attention, FFN(19, "swiglu"), place="both"),
            Layer(S4D(8, "inv"), FFN(7)),
            Layer(Mamba(3, expand=1, width=2, bias=True, conv_bias=False), NoFFN(), **ALONE),
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
    for n in (1, 3, 11):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens(2, n))
        assert config.flops(n, 2) == counter.get_total_flops()
    state = model(tokens())[1]
    for n in (1, 5):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens(2, n), state)
        assert config.flops(n, 2, past=11) == counter.get_total_flops()


def test_its_states_are_as_large_as_counted(config, model):
    for n in (1, 11):
        assert model(tokens(2, n))[1].nbytes == config.kv_cache_bytes(n, 2)
    grown = config.kv_cache_bytes(12) - config.kv_cache_bytes(11)
    assert grown == 4 * 2 * 4  # of the attention alone


def test_pieces_give_the_whole_and_generation_goes_on_from_the_state(model):
    whole, pieces, state = model(tokens())[0], [], None
    for piece in tokens().split([4, 1, 6], dim=1):
        logits, state = model(piece, state)
        pieces.append(logits)
    close(torch.cat(pieces, 1), whole, atol=1e-5)
    found = generate(model, tokens(1, 4), max_new_tokens=5).tokens[0]
    wanted = tokens(1, 4)
    for _ in range(5):
        wanted = torch.cat([wanted, model(wanted)[0][:, -1:].argmax(-1)], 1)
    assert list(found)[-5:] == wanted[0, 4:].tolist()


def test_a_padded_batch_is_its_sequences(model):
    mask = torch.arange(11) >= torch.tensor([[0], [4]])
    logits, state = model(tokens(), mask=mask)
    close(logits[1, 4:], model(tokens()[1:, 4:])[0][0], atol=1e-5)
    after = model(tokens(2, 2), state)[0]
    alone = model(tokens()[1:, 4:])[1]
    close(after[1:], model(tokens(2, 2)[1:], alone)[0], atol=1e-5)


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


def test_a_scheme_leaves_rates_and_deltas_as_they_begin(model):
    blocks = model.stack.blocks
    for number, count in ((0, 5), (1, 6), (4, 3)):
        rates = blocks[number].mixer.log_rate.exp()
        close(
            rates.expand(rates.shape)[..., :], torch.arange(1.0, count + 1).expand_as(rates), 1e-5
        )
        delta = nn.functional.softplus(blocks[number].mixer.delta_bias)
        assert 0.0009 < delta.min() and delta.max() < 0.11
    close(blocks[3].mixer.log_rate.exp(), torch.full((D, 4), 0.5), atol=1e-6)


def test_a_mamba_layer_alone_is_a_norm_a_mixer_and_a_sum(model):
    block, x = model.stack.blocks[0], torch.randn(2, 5, D)
    close(block(x)[0], x + block.mixer(block.mixer_residual.norm(x))[0], atol=1e-6)
    norms = [name for name, _ in block.named_parameters() if "norm" in name]
    assert norms == ["mixer_residual.norm.weight"]


def test_a_hybrid_survives_json_and_its_choices_can_be_changed(config):
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert [layer.mixer.expand for layer in config.replace(mamba_expand=3).decoder[::4]] == [3, 3]


@pytest.mark.untyped
@pytest.mark.parametrize("part", [S4D(8), Mamba(3), Mamba2(4, d_head=4)])
def test_it_is_for_decoders_and_no_cross_attention(part):
    part.check(Site(D, causal=True))
    for site in (Site(D, causal=False), Site(D, memory=True)):
        with pytest.raises(ValueError, match=type(part).__name__):
            part.check(site)
    with pytest.raises(ValueError, match="memory"):
        Layer(part, FFN(8)).with_cross()
    with pytest.raises(ValueError, match="divide"):
        Mamba2(4, d_head=5).check(Site(D, causal=True))
    with pytest.raises(ValueError, match="d_state"):
        type(part)(0)
    with pytest.raises(TypeError, match="d_state"):
        type(part)(2.0)
