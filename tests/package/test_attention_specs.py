"""Attentions of other kinds as parts of a hybrid: counted, continued, padded, trained.

Each stands between an attention, a Mamba and a delta rule, and one model holds them all. Layers of
graphs stand in an encoder whose mask is the graph.
"""

import json
import weakref

import fresh
import mixer_properties
import pytest
import torch
from fresh import Mutant
from mixer_properties import close, normal
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import tfbook.models
from tfbook.attention import VARIANTS
from tfbook.efficient import attend_window
from tfbook.generation import generate
from tfbook.models import (
    FFN,
    Attention,
    DeltaNet,
    Differential,
    Gated,
    Indexed,
    Layer,
    Mamba,
    Messages,
    NativeSparse,
    Neighbours,
    NoFFN,
    Rotary,
    Segments,
    Site,
    TransformerConfig,
    TransformerXL,
    build,
)

V, D, N = 23, 12, 11
ALONE = {"parallel": True, "one_norm": True}  # a layer without a feed-forward part


def specs(m=tfbook.models):
    """Describe each kind; those with an attention inside form its weights, to be counted."""

    def inner(**choices):
        return m.Attention(3, attend="reference", **choices)

    turned, keys = m.Rotary(), {"index_heads": 2, "d_index": 5}
    return {
        "gated": m.Gated(inner(position=turned)),
        "gated heads": m.Gated(inner(n_kv_heads=1, d_value=5), per="head", gate_bias=False),
        "segments": m.Segments(inner(position=m.TransformerXL()), 30, detach=False),
        "short segments": m.Segments(inner(n_kv_heads=1), 4),
        "pooled": m.Segments(inner(), 4, pooled=2, rate=2, pool="conv"),
        "indexed": m.Indexed(m.Attention(3, n_kv_heads=1, position=turned), 4, **keys),
        "native": m.NativeSparse(3, block=3, top=2, window=4, position=turned, pool="mlp"),
        "native mean": m.NativeSparse(2, n_kv_heads=1, block=2, top=3, window=30, pool="mean"),
        "differential": m.Differential(3, layer=2, attend="reference", position=turned),
        "plain differential": m.Differential(2, normalise=False, attend="reference"),
    }


SPECS = specs()
CUT = {"short segments", "pooled"}  # where a sequence is cut matters: they forget
UNMASKED = {"pooled", "native", "native mean"}
EVERYTHING = [
    SPECS["gated"],
    Mamba(4),
    SPECS["segments"],
    Attention(2, position=Rotary(), window=4, attend="reference"),
    SPECS["indexed"],
    DeltaNet(3, chunk=4),
    SPECS["native"],
    Attention(3, attend="linear", options={"chunk": 4}),
    SPECS["differential"],
]


def hybrid(spec, m=tfbook.models):
    layers = [
        m.Layer(spec, m.FFN(17), norm=m.Norm("rms")),
        m.Layer(m.Mamba(4), m.NoFFN(), **ALONE),
        m.Layer(m.DeltaNet(3, chunk=4), m.FFN(9)),
        m.Layer(spec, m.NoFFN(), **ALONE),
    ]
    return m.TransformerConfig(V, D, decoder=layers)


def everything():
    return TransformerConfig(V, D, decoder=[Layer(each, FFN(9)) for each in EVERYTHING])


def drawn(config, m=tfbook.models):
    """Build a model in double precision whose weights are large enough to matter."""
    torch.manual_seed(0)
    model = m.build(config).double().eval()
    for i, weight in enumerate(model.parameters()):
        if weight.ndim > 1:
            weight.data += 0.3 * normal(*weight.shape, seed=i)
    return model


def tokens(batch=2, n=N):
    return torch.randint(V, (batch, n), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", params=SPECS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    return drawn(hybrid(SPECS[name]))


def flops_of(call):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = call()
    return counter.get_total_flops(), result


def uncounted(spec, n, past):
    """Return what a window costs by its pairs, less what its tiles are seen to cost."""
    if not hasattr(spec, "window"):
        return 0
    heads, near = spec.heads(D), min(past, spec.window - 1) + n
    groups, size = heads.n_kv_heads, heads.d_head
    q = normal(2, groups, heads.n_heads // groups, n, size)
    k = normal(2, groups, 1, near, size)
    seen, _ = flops_of(lambda: attend_window(q, k, k, window=spec.window, causal=True))
    said = VARIANTS["window"].flops(n, near, size, size, causal=True, window=spec.window)
    return 2 * heads.n_heads * sum(said) - seen


# What is counted


def it_has_the_parameters_that_are_counted(m, spec):
    config = hybrid(spec, m)
    assert config.count_parameters() == m.build(config).count_parameters()


def it_costs_what_is_counted(m, spec):
    config = hybrid(spec, m)
    model = m.build(config).eval()
    seen, (_, state) = flops_of(lambda: model(tokens()))
    assert config.flops(N, 2) == seen + 2 * uncounted(spec, N, 0)
    seen, _ = flops_of(lambda: model(tokens(2, 3)))
    assert config.flops(3, 2) == seen + 2 * uncounted(spec, 3, 0)
    for n in (1, 6):
        seen, _ = flops_of(lambda n=n: model(tokens(2, n), state))
        assert config.flops(n, 2, past=N) == seen + 2 * uncounted(spec, n, N)


def its_state_is_as_large_as_counted(m, spec):
    config = hybrid(spec, m)
    model, state = m.build(config), None
    with torch.no_grad():
        for n in (1, 2, 5, 6, 7, 13):
            _, state = model(tokens(2, n - (state.seen if state else 0)), state)
            assert state.nbytes == config.kv_cache_bytes(n, 2)
        _, whole = model(tokens(2, 13))
    assert whole.nbytes == state.nbytes


def it_does_not_see_the_future(m, spec):
    model = drawn(hybrid(spec, m), m)
    ids = tokens(1)
    with torch.no_grad():
        whole = model(ids)[0]
        for t in (1, 6, N - 1):
            other = torch.cat([ids[:, :t], (ids[:, t:] + 5) % V], dim=1)
            found = model(other)[0]
            close(found[:, :t], whole[:, :t])
            assert (found[:, t] - whole[:, t]).abs().max() > 1e-6


CHECKS = {
    each.__name__: each
    for each in (
        it_has_the_parameters_that_are_counted,
        it_costs_what_is_counted,
        its_state_is_as_large_as_counted,
        it_does_not_see_the_future,
    )
}


@pytest.mark.parametrize("check", CHECKS)
def test_it(check, name):
    CHECKS[check](tfbook.models, SPECS[name])


def test_one_model_holds_all_and_is_counted():
    config = everything()
    model = build(config).eval()
    assert config.count_parameters() == model.count_parameters()
    for past in (0, N):
        state = model(tokens(2, past))[1] if past else None
        seen, (_, state) = flops_of(lambda state=state: model(tokens(), state))
        assert config.flops(N, 2, past=past) == seen + uncounted(SPECS["native"], N, past)
        assert state.nbytes == config.kv_cache_bytes(past + N, 2)
    assert config.summary(5).count("mixer.q_proj") == 5  # those around an attention name it too


# What is continued, hidden and padded


def in_pieces(model, ids, sizes):
    state, found = None, []
    with torch.no_grad():
        for piece in ids.split(sizes, dim=1):
            logits, state = model(piece, state)
            found.append(logits)
    return torch.cat(found, 1)


def test_the_whole_is_its_pieces_and_its_tokens(name, model):
    with torch.no_grad():
        whole = model(tokens())[0]
    for sizes in ([4, 1, 6], [1] * N, [N - 1, 1]):
        same = in_pieces(model, tokens(), sizes)
        if name in CUT:  # up to where the first row has left
            close(same[:, :4], whole[:, :4])
            assert len(sizes) < N or (same - whole)[:, -1].abs().max() > 1e-6
        else:
            close(same, whole)


def test_a_model_of_all_can_be_cut_and_generates_from_its_state():
    model = drawn(everything())
    with torch.no_grad():
        whole = model(tokens())[0]
    for sizes in ([4, 1, 6], [1] * N):
        close(in_pieces(model, tokens(), sizes), whole)
    found = generate(model, tokens(1, 4), max_new_tokens=5).tokens[0]
    wanted = tokens(1, 4)
    for _ in range(5):
        wanted = torch.cat([wanted, model(wanted)[0][:, -1:].argmax(-1)], 1)
    assert list(found)[-5:] == wanted[0, 4:].tolist()


def test_a_short_memory_sees_its_rows_and_no_others():
    spec, x = Segments(Attention(3), 3), normal(1, 7, D)
    mixer = spec.build(Site(D, causal=True)).double()
    _, state = mixer(x[:, :4])
    y, _ = mixer(x[:, 4:], state)
    close(y, mixer(x[:, 1:])[0][:, 3:])  # the first row has gone, and no position is missed


@pytest.mark.parametrize("name", [name for name in SPECS if name not in UNMASKED], indirect=True)
def test_a_padded_batch_gives_what_each_sequence_gives_alone(name, model):
    mask = torch.arange(N) >= torch.tensor([[4], [0]])
    with torch.no_grad():
        logits, state = model(tokens(), mask=mask)
        alone, own = model(tokens()[:1, 4:])
        close(logits[:1, 4:], alone)
        if name not in CUT:
            more = tokens(2, 3)
            close(model(more, state)[0][:1], model(more[:1], own)[0])


@pytest.mark.untyped
@pytest.mark.parametrize("kind", sorted(UNMASKED))
def test_what_cannot_be_masked_says_so(kind):
    model = build(hybrid(SPECS[kind]))
    with pytest.raises(ValueError, match="mask must be None"):
        model(tokens(), mask=torch.arange(N) >= torch.tensor([[4], [0]]))


def properties():
    """Return the properties of states for each kind."""
    for kind in ("gated", "segments", "indexed", "native", "differential"):
        for case in mixer_properties.cases(lacks=["", "causal", "half", "mask", "gaps"]):
            yield pytest.param(kind, *case.values, marks=case.marks)


@pytest.mark.parametrize(("kind", "check"), list(properties()))
def test_as_a_mixer(kind, check):
    torch.manual_seed(0)
    mixer_properties.CHECKS[check](lambda: SPECS[kind].build(Site(D, causal=True)))


# Training


def test_a_step_of_training_reaches_every_part(name):
    torch.manual_seed(2)
    net = build(hybrid(SPECS[name]))
    before = {path: weight.detach().clone() for path, weight in net.named_parameters()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    ids = tokens(8, 12)
    loss = nn.functional.cross_entropy(net(ids[:, :-1])[0].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    still = [path for path, weight in net.named_parameters() if torch.equal(weight, before[path])]
    aside = ("indexer", "mixer.conv")  # these learn by losses of their own
    assert [path for path in still if not any(each in path for each in aside)] == []
    assert not still or name in ("indexed", "pooled")


class Box:
    """Keeps a tensor for the backward pass, as long as that may come."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()


def kept(config, n=24, batch=2, mask=None):
    """Measure the bytes that are kept when a pass is over, each storage once.

    What a second pass keeps too, such as weights, is left out; so is what only served a choice,
    through which no gradient goes.
    """
    model, ids = build(config).train(), torch.zeros(batch, n, dtype=torch.long)

    def run():
        boxes = weakref.WeakSet()

        def pack(tensor):
            box = Box(tensor)
            boxes.add(box)
            return box

        with saved_tensors_hooks(pack, lambda box: box.tensor):
            out = model(ids) if mask is None else model(ids, mask=mask)
        return out, {box.tensor.untyped_storage().data_ptr(): box.tensor for box in list(boxes)}

    run()  # tables are made
    first, second = run(), run()
    own = second[1].keys() - first[1].keys()
    return sum(second[1][each].untyped_storage().nbytes() for each in own)


def said_and_kept(spec, n=24, mask=None, stack="decoder"):
    """Return what a second layer is said to keep, and what it keeps."""
    layer = Layer(spec, NoFFN(), **ALONE)
    one, two = (TransformerConfig(V, 48, **{stack: [layer] * k}) for k in (1, 2))
    said = sum(part.saved for part in two.parts(n, 2) if ".1." in part.name)
    return said, kept(two, n, mask=mask) - kept(one, n, mask=mask)


def test_it_says_how_much_training_keeps(name):
    said, measured = said_and_kept(SPECS[name])
    if name == "segments":  # the positions of Transformer-XL are not counted
        assert said < measured
    else:  # the weights that a window's tiles form are not counted
        assert (0.9 if "native" in name else 0.9999) < said / measured <= 1.0


@pytest.mark.parametrize("attend", ["linear", "features"])
@pytest.mark.parametrize("stack", ["decoder", "encoder"])
def test_attention_without_weights_keeps_none(attend, stack):
    """The chunked form keeps rows and chunks; only the parallel one keeps each pair."""
    own = {"n_features": 24} if attend == "features" else {}
    for form, n in (("chunked", 20), ("chunked", 48), ("recurrent", 24), ("parallel", 24)):
        choices = {"attend": attend, "options": {"form": form, "chunk": 8} | own}
        said, measured = said_and_kept(Attention(3, **choices), n, stack=stack)
        low, high = (0.95, 1.05) if attend == "features" else (1.0, 1.0)
        assert low <= said / measured <= high, (form, n, said, measured)


def test_linear_attention_is_linear_in_what_it_keeps():
    def growth(**choices):
        config = TransformerConfig(V, D, decoder=[Layer(Attention(3, **choices), FFN(9))])
        return config.saved_bytes(2048) / config.saved_bytes(1024)

    assert growth(attend="features") == 2.0 and 2.0 <= growth(attend="linear") < 2.01
    assert growth(attend="linear", options={"form": "parallel"}) > 3.9
    assert growth(attend="linear", dropout=0.1) > 3.9  # to drop weights they have to be there
    config = TransformerConfig(V, D, decoder=[Layer(Attention(3, attend="linear"), FFN(9))])
    assert config.saved_bytes(99) == config.saved_bytes(99, stores_weights=False)
    assert config.saved_bytes(99) < config.saved_bytes(99, stores_weights=True)


# Layers of graphs


GRAPHS = {
    "gat": Neighbours(2),
    "gatv2": Neighbours(3, kind="gatv2", bias=False),
    "mean": Messages(),
    "sum": Messages("sum", bias=False),
    "max": Messages("max"),
}


def graph(n, batch=1):
    """Return a path, each node beside the next and itself."""
    steps = torch.arange(n)
    return ((steps[:, None] - steps).abs() < 2).expand(batch, n, n)


@pytest.mark.parametrize("kind", GRAPHS)
def test_layers_of_graphs_stand_beside_attention(kind):
    spec = GRAPHS[kind]
    layers = [Layer(spec, FFN(7)), Layer(Attention(2, attend="reference"), FFN(7))]
    config = TransformerConfig(V, D, encoder=[*layers, Layer(spec, NoFFN(), **ALONE)])
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    model, ids, mask = drawn(config), tokens(2), graph(N, 2)
    assert config.count_parameters() == model.count_parameters()
    seen, y = flops_of(lambda: model(ids, mask=mask))
    assert config.flops(N, 2) == seen
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    turned = model(ids[:, order], mask=mask[:, order][:, :, order])
    close(turned, y[:, order])  # whatever the order
    other = torch.cat([ids[:, :-1], (ids[:, -1:] + 1) % V], dim=1)
    change = (model(other, mask=mask) - y).abs().amax((0, 2))
    assert (change[:-4] < 1e-12).all() and (change[-4:] > 1e-9).all()  # three layers, three steps
    said, measured = said_and_kept(spec, 16, graph(16, 2), "encoder")
    assert 0.95 < said / measured < 1.05
    for site in (Site(D, causal=True), Site(D, memory=True)):
        with pytest.raises(ValueError, match="for an encoder, whose mask is the graph"):
            spec.check(site)
    with pytest.raises(ValueError, match="cannot look into a memory"):
        Layer(spec, FFN(4)).with_cross()


@pytest.mark.untyped
def test_messages_need_a_graph():
    model = build(TransformerConfig(V, D, encoder=[Layer(Messages(), FFN(7))]))
    with pytest.raises(TypeError, match="mask"):
        model(tokens())
    with pytest.raises(ValueError, match="mask"):
        model(tokens(), mask=torch.ones(2, N, dtype=torch.bool))


# Descriptions


def test_it_survives_json(name):
    config = hybrid(SPECS[name])
    again = TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and again.decoder[0].mixer == SPECS[name]


def test_a_choice_reaches_the_attention_inside():
    config = everything().replace(index_heads=3, per="head", gated_gate_bias=False)
    assert config.decoder[4].mixer.index_heads == 3
    assert config.decoder[0].mixer.per == "head" and not config.decoder[0].mixer.gate_bias
    one = hybrid(SPECS["gated heads"]).replace(n_kv_heads=3)
    assert one.decoder[0].mixer.attention.n_kv_heads == 3


def test_a_cross_is_that_of_the_attention_inside_or_named():
    assert Layer(Gated(Attention(3)), FFN(4)).with_cross().cross == Attention(3)
    for spec in (NativeSparse(3), Differential(3)):
        with pytest.raises(ValueError, match="cross"):
            Layer(spec, FFN(4)).with_cross()
        layer = Layer(spec, FFN(4), cross=Attention(3))
        config = TransformerConfig(V, D, encoder=[Layer(Attention(3), FFN(4))], decoder=[layer])
        assert config.replace(d_ff=5).decoder[0].cross == Attention(3)
        assert config.replace(attention_bias=False).decoder[0].cross == Attention(3, bias=False)


def test_an_encoder_has_those_that_need_no_order():
    layers = [Layer(spec, FFN(5)) for spec in (Gated(Attention(3)), Differential(3))]
    model = drawn(TransformerConfig(V, D, encoder=layers))
    ids = tokens(1)
    other = torch.cat([ids[:, :-1], (ids[:, -1:] + 1) % V], dim=1)
    assert ((model(other) - model(ids)).abs().amax((0, 2)) > 1e-9).all()


@pytest.mark.parametrize("kind", ["segments", "indexed", "native"])
def test_the_others_stand_in_decoders_only(kind):
    for site in (Site(D), Site(D, causal=True, memory=True)):
        with pytest.raises(ValueError, match=type(SPECS[kind]).__name__):
            SPECS[kind].check(site)


BAD = {
    "attention must be a Attention, got int": lambda: Gated(3),
    "per must be one of element, head": lambda: Gated(Attention(3), per="row"),
    "gate_bias": lambda: Gated(Attention(3), gate_bias=None),
    "length must be at least 0": lambda: Segments(Attention(3), -1),
    "attention must have no window, got 3": lambda: Segments(Attention(3, window=3), 4),
    "pooled must be an integer": lambda: Segments(Attention(3), 4, pooled=True),
    "pool must be one of mean, max, conv": lambda: Segments(Attention(3), 4, pool="min"),
    "rate must be at least 1": lambda: Segments(Attention(3), 4, rate=0),
    "top must be at least 1": lambda: Indexed(Attention(3), 0),
    "attention must have no dropout of its own": lambda: Indexed(Attention(3, dropout=0.1), 4),
    "attention must have no attend": lambda: Indexed(Attention(3, attend="rows"), 4),
    "position must be Rotary": lambda: Indexed(Attention(3, position=TransformerXL()), 4),
    "block must be at least 1": lambda: NativeSparse(3, block=0),
    "d_head must be at least 1": lambda: NativeSparse(3, d_head=0),
    "position must be a InAttention": lambda: NativeSparse(3, position="rotary"),
    "pool must be one of mean, mlp": lambda: NativeSparse(3, pool="max"),
    "n_heads must divide d_model": lambda: NativeSparse(5).check(Site(D, causal=True)),
    "d_head must be even": lambda: NativeSparse(4, position=Rotary()).check(Site(D, causal=True)),
    "layer must be at least 0": lambda: Differential(3, layer=-1),
    "lambda_init must be": lambda: Differential(3, lambda_init=1.0),
    "options must be a dictionary, got int": lambda: Differential(3, attend="topk", options=3),
    "attend must be a name, got list": lambda: Differential(3, attend=[]),
    r"2 · n_heads must divide d_model, got 4 and 12": lambda: Differential(4).check(Site(D)),
    "Differential is no cross": lambda: Differential(3).check(Site(D).of_memory()),
    "Gated is no cross": lambda: Gated(Attention(3)).check(Site(D).of_memory()),
    "kind must be one of gat, gatv2": lambda: Neighbours(3, kind="gcn"),
    "slope": lambda: Neighbours(3, slope=2.0),
    "neighbours_dropout": lambda: Neighbours(3, dropout=1.0),
    "kind must be one of mean, sum, max": lambda: Messages("min"),
}


@pytest.mark.untyped
@pytest.mark.parametrize("message", BAD)
def test_bad_choices_are_refused(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()


# Planted bugs

HOME = "tfbook.models.attentions"
MUTANTS = [
    Mutant(
        "the gate forgets whether it has a bias",
        HOME,
        "gates, bias=self.gate_bias, keeps=keeps)",
        "gates, keeps=keeps)",
        "it_has_the_parameters_that_are_counted",
        "gated heads",
    ),
    Mutant(
        "what is remembered costs nothing",
        HOME,
        "part._replace(flops=part.flops + again.flops,",
        "part._replace(",
        "it_costs_what_is_counted",
        "segments",
    ),
    Mutant(
        "a row is pooled as soon as it is too old",
        HOME,
        "        old -= old % self.rate\n",
        "",
        "its_state_is_as_large_as_counted",
        "pooled",
    ),
    Mutant(
        "the indexer's heads are not added up",
        HOME,
        "self.index_heads * (self.d_index + 1)",
        "self.index_heads * self.d_index",
        "it_costs_what_is_counted",
        "indexed",
    ),
    Mutant(
        "the window holds its own row too",
        HOME,
        "self.heads(d_model), min(length, self.window - 1)",
        "self.heads(d_model), min(length, self.window)",
        "its_state_is_as_large_as_counted",
        "native",
    ),
    Mutant(
        "a query's own block takes no place",
        HOME,
        "self.block * (min(self.top - 1, blocks) + 1)",
        "self.block * min(self.top, blocks)",
        "it_costs_what_is_counted",
        "native mean",
    ),
    Mutant(
        "values as small as keys",
        HOME,
        'sizes = {"d_head": size, "d_value": heads.d_value}',
        'sizes = {"d_head": size, "d_value": size}',
        "it_costs_what_is_counted",
        "differential",
    ),
    Mutant(
        "a difference that sees the future",
        HOME,
        "            causal=site.causal,\n",
        "",
        "it_does_not_see_the_future",
        "differential",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.bug)
def test_a_planted_bug_is_caught(mutant):
    m = fresh.copies("mutant_attentions", ["tfbook.models"], mutant.edits)
    with pytest.raises(AssertionError):
        CHECKS[mutant.caught_by](m, specs(m)[mutant.variant])
