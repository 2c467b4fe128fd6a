"""One token in few operations: what the modules compute, and only where nothing else is asked.

A check is `check(kit)`, with `kit` the module, or a copy of it with a planted bug; what it steps
through is built by the package that it belongs to.
"""

import copy
import importlib
import io
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode

import tfbook.blocks.stepping
from tfbook.attention import MultiHeadAttention, StaticCache
from tfbook.blocks import GroupedWeight, PackedWeight, RowWeight, join_rows
from tfbook.generation import generate

CHECKS = {}
BATCH, READ = 3, 11


@pytest.fixture
def kit():
    return tfbook.blocks.stepping


def check(run):
    CHECKS[run.__name__] = run
    return run


def room(kit, name):
    """Return a room of the package that the kit belongs to."""
    return importlib.import_module(f"{kit.__name__.split('.')[0]}.{name}")


def llama(kit, d_head=10, n_heads=6, n_kv_heads=2, d_ff=37, d_model=22, layers=3, **choices):
    """A small LLaMA whose sizes all differ, with gains that are not 1."""
    torch.manual_seed(5)
    parts = room(kit, "models")
    own = {"n_kv_heads": n_kv_heads, "d_head": d_head, "bias": False}
    own |= {"position": parts.Rotary(100.0)} | choices.pop("attention", {})
    ffn = parts.FFN(d_ff, choices.pop("kind", "swiglu"), bias=False)
    norm = choices.pop("norm", parts.Norm("rms", eps=0.01))
    mixer = parts.Attention(n_heads, **own)
    layer = parts.Layer(mixer, ffn, norm=norm, **({"place": "pre"} | choices))
    config = parts.TransformerConfig(53, d_model, decoder=[layer] * layers, max_len=64)
    model = parts.build(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3 if weight.ndim > 1 else 1.0)
    return model


def packed(kit, bits=4, joined=True):
    """One in packed weights, of as many rows as the kernel puts together, or fewer."""
    d_head, d_ff = (64, 128) if joined else (16, 48)
    model = llama(kit, d_head=d_head, n_heads=4, d_ff=d_ff, d_model=64, layers=2)
    if bits == "rows":
        parts = room(kit, "blocks")
        for name, weight in list(model.stack.named_parameters()):
            if weight.ndim == 2:
                scale = weight.detach().abs().amax(1) / 127
                codes = (weight.detach() / scale[:, None]).round().to(torch.int8)
                parts.set_weight(model, f"stack.{name}", parts.RowWeight(codes, scale))
        return model
    return room(kit, "hardware").pack_model(model, bits=bits, group=32)


@torch.no_grad()
def begun(kit, model, cache=None):
    """What enters the layers with the next token of each sequence, and their states."""
    cache = room(kit, "attention").StaticCache(READ + 9) if cache is None else cache
    tokens = torch.randint(0, 53, (BATCH, READ + 1), generator=torch.Generator().manual_seed(3))
    _, state = model(tokens[:, :-1], model.empty_state(BATCH, cache=cache))
    (entrance,) = model._entrances
    return entrance(tokens[:, -1:], seen=READ).x, state.layers


@torch.no_grad()
def uneven(kit, model, lengths=(5, READ, 2), room_for=2):
    """The same for sequences of different lengths, in the cache of a server."""
    pages = room(kit, "serving").PagedCache(model, 12, 4)
    tables = [range(4 * i, 4 * i + 3) for i in range(BATCH)]
    tokens = torch.randint(0, 53, (BATCH, READ + 1), generator=torch.Generator().manual_seed(3))
    for row, table, length in zip(tokens, tables, lengths, strict=True):
        _, state = model(row[None, :length])
        pages.write(state, 0, 0, table, length)
    state = pages.read(tables, lengths, room=room_for)  # what more comes is joined
    (entrance,) = model._entrances
    return entrance(tokens[:, -1:], seen=state.seen, counts=state.counts).x, state.layers


@torch.no_grad()
def padded(kit, model, cache=None):
    """The same for sequences whose first tokens are none."""
    real = torch.arange(READ) >= torch.tensor([[3], [0], [7]])
    tokens = torch.randint(0, 53, (BATCH, READ), generator=torch.Generator().manual_seed(4))
    _, state = model(tokens, model.empty_state(BATCH, cache=cache), mask=real)
    (entrance,) = model._entrances
    return entrance(tokens[:, -1:], seen=READ, counts=state.counts).x, state.layers


@torch.no_grad()
def both_ways(kit, model, tokens=4, begin=begun, **given):
    """Follow a step and the modules over some tokens; return what each found, and both states."""
    x, states = begin(kit, model, **given)
    quick, slow, found = states, states, []
    for i in range(tokens):
        step = kit.Steps().find(model.stack, x, quick)
        assert step is not None, i
        a, quick = step(x, quick)
        b, slow = model.stack(x, slow)
        found.append((a, b))
        x = b.roll(1, dims=-1)
    return found, quick, slow


def close(a, b, most):
    return (a - b).abs().max() <= most * b.abs().max()


@check
def test_a_step_computes_what_the_modules_compute(kit):
    caches = room(kit, "attention")
    for cache in (caches.StaticCache(READ + 9), caches.DynamicCache()):
        found, quick, slow = both_ways(kit, llama(kit), cache=cache)
        assert all(close(a, b, 3e-6) for a, b in found)
        for a, b in zip(quick, slow, strict=True):
            assert type(a.mixer) is type(b.mixer) and a.mixer.seen == b.mixer.seen == READ + 4
            assert close(a.mixer.k, b.mixer.k, 3e-6) and close(a.mixer.v, b.mixer.v, 3e-6)


@check
def test_sequences_of_different_lengths_and_padded_ones(kit):
    """Each at its own positions, before its own keys; in place, and beyond the room set aside."""
    caches = room(kit, "attention")
    ways = [{"begin": uneven}, {"begin": uneven, "lengths": (4, 4, 4)}]
    ways += [{"begin": padded, "cache": c} for c in (caches.StaticCache(READ + 9), None)]
    for way in ways:
        for model in (llama(kit), two_kinds(kit)):
            found, quick, slow = both_ways(kit, model, **way)
            assert all(close(a, b, 3e-6) for a, b in found), way
            for a, b in zip(quick, slow, strict=True):
                a, b = a.mixer, b.mixer
                assert type(a) is type(b) and a.seen == b.seen and torch.equal(a.mask, b.mask)
                assert a.counts is b.counts is None or torch.equal(a.counts, b.counts)
                assert close(a.k, b.k, 3e-6) and close(a.v, b.v, 3e-6)


@check
def test_other_layers_of_the_same_kind(kit):
    """Every head its own keys; another scale; layers that differ, also in where they turn."""
    for model in (
        llama(kit, n_kv_heads=6),
        llama(kit, n_kv_heads=1, attention={"scale": 0.7}),
        llama(kit, d_head=None, d_model=24),
        two_kinds(kit),
    ):
        found, _, _ = both_ways(kit, model)
        assert all(close(a, b, 3e-6) for a, b in found)


def two_kinds(kit):
    torch.manual_seed(1)
    parts = room(kit, "models")
    layers = [
        parts.Layer(
            parts.Attention(n_heads, n_kv_heads=own, bias=False, position=parts.Rotary(base)),
            parts.FFN(19, "swiglu", bias=False),
            norm=parts.Norm("rms"),
            place="pre",
        )
        for n_heads, own, base in ((6, 3, 10.0), (3, 1, 1e4), (6, 2, 10.0))
    ]
    config = parts.TransformerConfig(53, 24, decoder=layers, max_len=64)
    return parts.build(config).eval()


@check
def test_packed_weights_round_alike(kit):
    """The same products of the same rounded numbers: only where a sum in float32 falls on the
    other side of a rounding to 8 bits of mantissa do the two differ, by that one step."""
    for bits in (4, 8, "rows"):
        for joined in (True, False):
            found, _, _ = both_ways(kit, packed(kit, bits, joined))
            for a, b in found:
                assert close(a, b, 0.02), (bits, joined)
            apart = torch.cat([(a - b).abs().flatten() for a, b in found])
            assert apart.median() <= 1e-3 * found[0][1].abs().max(), (bits, joined)


def test_joined_weights_hold_their_bits_once(kit):
    model = packed(kit)
    mixer = model.stack.blocks[0].mixer
    parts = [mixer.q_proj.weight, mixer.k_proj.weight, mixer.v_proj.weight]
    before = [part.decode() for part in parts]
    with torch.no_grad():
        both_ways(kit, model, tokens=1)
    held = {part.packed.untyped_storage().data_ptr() for part in parts}
    assert len(held) == 1
    assert all(torch.equal(a, part.decode()) for a, part in zip(before, parts, strict=True))


@check
def test_the_modules_do_the_work_while_one_of_them_has_a_hook(kit):
    model = llama(kit)
    x, states = begun(kit, model)
    steps = kit.Steps()
    with torch.no_grad():
        assert steps.find(model.stack, x, states) is not None
        for module in model.stack.modules():
            for register in (module.register_forward_hook, module.register_forward_pre_hook):
                handle = register(lambda *_: None)
                assert steps.find(model.stack, x, states) is None, type(module)
                handle.remove()
                assert steps.find(model.stack, x, states) is not None
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
        try:
            assert steps.find(model.stack, x, states) is None
        finally:
            handle.remove()


def changes(kit):
    """Each a change of a model, after which a step made before must not be taken."""

    def replace(module, name, value):
        return lambda: setattr(module, name, value)

    model = llama(kit)
    block = model.stack.blocks[1]
    mixer, ffn = block.mixer, block.ffn
    drawn = torch.Generator().manual_seed(8)
    other = nn.Parameter(torch.randn(mixer.v_proj.weight.shape, generator=drawn))
    gain = nn.Parameter(torch.rand(22, generator=drawn))
    yield model, replace(mixer.v_proj, "weight", other)
    yield model, replace(ffn, "down_proj", nn.Linear(37, 22, bias=False))
    yield model, replace(ffn, "up_proj", nn.Linear(22, 37))  # with a bias
    yield model, replace(block.ffn_residual.norm, "weight", gain)
    yield model, replace(block.ffn_residual.norm, "eps", 0.5)
    yield model, replace(block.mixer_residual, "multiplier", 0.5)
    yield model, replace(mixer, "window", 3)
    yield model, replace(mixer, "scale", 2.0)
    yield model, replace(ffn, "kind", "swiglu_clipped")
    yield model, replace(block.ffn_residual, "leave", lambda x, y: y)
    yield model, replace(ffn, "forward", lambda x: 0 * x)
    yield model, replace(model.stack, "final_norm", nn.Identity())
    yield model, replace(model.stack.blocks, "0", copy.deepcopy(block))
    yield model, lambda: block.mixer_residual.norm.weight.data.mul_(3)  # in place
    yield model, lambda: model.load_state_dict(llama(kit, d_ff=37).state_dict(), assign=True)


@check
def test_what_was_changed_since_is_noticed(kit):
    with torch.no_grad():
        for i, _ in enumerate(changes(kit)):
            model, change = list(changes(kit))[i]
            x, states = begun(kit, model)
            steps = kit.Steps()
            before, _ = steps.find(model.stack, x, states)(x, states)
            change()
            step = steps.find(model.stack, x, states)
            found = (model.stack if step is None else step)(x, states)[0]
            right = model.stack(x, states)[0]
            assert close(found, right, 3e-6), i
            assert i == 14 or not close(before, right, 1e-3), i  # the change does matter


@check
def test_what_is_no_llama_is_left_to_the_modules(kit):
    parts = room(kit, "models")
    other = {
        "a norm with a mean": {"norm": parts.Norm("layer")},
        "another gate": {"kind": "geglu"},
        "norms behind the parts": {"place": "inside"},
        "parallel parts": {"parallel": True},
        "a window": {"attention": {"window": 5}},
        "normalised queries": {"attention": {"qk_norm": parts.Norm("rms")}},
        "biases": {"attention": {"bias": True}},
        "no positions": {"attention": {"position": None}},
        "halves of a head turned": {"attention": {"position": parts.Rotary(share=0.2)}},
        "pairs far apart": {"attention": {"position": parts.Rotary(layout="half")}},
        "values of their own size": {"attention": {"d_value": 7}},
        "another function": {"attention": {"attend": "reference"}},
    }
    with torch.no_grad():
        for name, choices in other.items():
            model = llama(kit, **choices)
            x, states = begun(kit, model)
            assert kit.Steps().find(model.stack, x, states) is None, name


@check
def test_what_more_is_asked_is_left_to_the_modules(kit):
    model, caches = llama(kit), room(kit, "attention")
    x, states = begun(kit, model)

    def found(x=x, states=states, model=model):
        return kit.Steps().find(model.stack, x, states) is not None

    assert not found()  # gradients could be asked for
    with torch.no_grad():
        assert found()
        assert not found(x=torch.cat([x, x], dim=1))
        assert not found(x=x[:2])  # of other sequences than the states
        assert not found(states=states[:2]) and not found(states=None)
        assert not found(states=begun(kit, model, cache=caches.SlidingCache(5))[1])
        seen = torch.ones(BATCH, 1, 1, READ, dtype=torch.bool)
        hidden = seen.clone()
        hidden[1, ..., :4] = False
        assert found(states=masked(kit, model, seen, seen.clone(), seen))
        assert not found(states=masked(kit, model, seen, hidden, seen))  # layers that differ
        assert not found(states=masked(kit, model, *3 * [seen[:1]]))
        assert not found(states=masked(kit, model, *3 * [seen.float()]))
        x2, ragged = uneven(kit, model)
        assert found(x2, ragged)
        other = replace(ragged[1].mixer, lengths=ragged[1].mixer.lengths + 1)
        assert not found(x2, (ragged[0], ragged[1]._replace(mixer=other), ragged[2]))
        with BaseTorchFunctionMode():  # somebody has functions of their own
            assert not found() and not found(x2, ragged)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not found()
        double = copy.deepcopy(model).double()
        assert not found(*begun(kit, double), double)
        assert not found(model=copy.deepcopy(model).train())


def masked(kit, model, *masks):
    """States that hold all keys, with a mask for each layer."""
    states = begun(kit, model, cache=room(kit, "attention").DynamicCache())[1]
    return tuple(
        state._replace(mixer=replace(state.mixer, mask=mask))
        for state, mask in zip(states, masks, strict=True)
    )


@check
def test_copies_begin_anew(kit):
    model = llama(kit)
    x, states = begun(kit, model)
    steps = kit.Steps()
    with torch.no_grad():
        first = steps.find(model.stack, x, states)
        assert steps.find(model.stack, x, states) is first
    assert copy.deepcopy(steps)._step is None


def test_a_model_steps_by_itself_and_a_hook_sees_all(kit):
    """Through the model's own door: the same tokens with and without a tap that is watched."""
    model, seen, calls = llama(kit), [], []
    plain = generate(model, [1, 2, 3], max_new_tokens=8)
    steps = model._steps
    step = steps._step
    assert step is not None
    forward = MultiHeadAttention.forward
    MultiHeadAttention.forward = lambda self, *a, **k: calls.append(1) or forward(self, *a, **k)
    try:
        again = generate(model, [1, 2, 3], max_new_tokens=8)
        assert len(calls) == 3 and again.tokens == plain.tokens  # the prompt alone, in 3 layers
    finally:
        MultiHeadAttention.forward = forward
    tap = model.stack.blocks[1].mixer.z
    handle = tap.register_forward_hook(lambda module, args, z: seen.append(z.shape[-2]))
    watched = generate(model, [1, 2, 3], max_new_tokens=8)
    handle.remove()
    assert seen == [3] + 7 * [1] and watched.tokens == plain.tokens
    assert max(abs(a - b) for a, b in zip(*plain.log_probs, *watched.log_probs, strict=True)) < 1e-5


def test_a_model_that_has_stepped_can_be_copied_and_saved(kit):
    model = llama(kit)
    generate(model, [1, 2, 3], max_new_tokens=3)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.stack.blocks[0].ffn.up_proj.weight.zero_()
    tokens = torch.tensor([[4, 5, 6, 7]])
    with torch.no_grad():
        for each in (model, twin):
            _, state = each(tokens[:, :-1], each.empty_state(1, cache=StaticCache(9)))
            found, _ = each(tokens[:, -1:], state)
            assert close(found, each(tokens)[0][:, -1:], 1e-5)
    file = io.BytesIO()
    torch.save(model, file)
    assert torch.load(io.BytesIO(file.getvalue()), weights_only=False)._steps._step is None


@pytest.mark.untyped
def test_errors_are_those_of_the_modules(kit):
    model = llama(kit)
    tokens = torch.tensor([[4, 5, 6, 7]])
    with torch.no_grad():
        _, state = model(tokens, model.empty_state(1, cache=StaticCache(5)))
        _, state = model(tokens[:, :1], state)
        with pytest.raises(ValueError, match="a static cache of 5 keys holds 5"):
            model(tokens[:, :1], state)
        with pytest.raises(ValueError, match="must have shape"):
            model(tokens[:, :1].expand(2, 1), state)


def test_a_state_from_before_may_be_continued_twice(kit):
    """The second continuation gets memory of its own, as with the modules."""
    model = llama(kit)
    x, states = begun(kit, model)
    step = kit.Step(model.stack)
    with torch.no_grad():
        _, first = step(x, states)
        kept = [state.mixer.k.clone() for state in first]
        step(-x, states)
        assert all(torch.equal(a, b.mixer.k) for a, b in zip(kept, first, strict=True))


def test_several_packed_weights_become_one_product():
    torch.manual_seed(2)
    x = torch.randn(3, 64).bfloat16()
    for kind in (4, 8, "rows"):
        for rows in ((64, 128, 64), (128,), (64, 48)):
            parts = []
            for i, n in enumerate(rows):
                if kind == "rows":
                    codes = torch.randint(-127, 128, (n, 64)).to(torch.int8)
                    parts.append(RowWeight(codes, torch.rand(n) + i))
                else:
                    low, high = (0, 16) if kind == 4 else (-128, 128)
                    codes = torch.randint(low, high, (n, 64))
                    scales = torch.rand(n, 2) + i, torch.rand(n, 2) - i
                    parts.append(GroupedWeight(codes, *scales, bits=kind))
            apart = torch.cat([part.product(x) for part in parts], dim=-1)
            matrix = torch.cat([part.decode() for part in parts])
            whole = join_rows(parts)
            assert isinstance(whole, PackedWeight) and torch.equal(whole.decode(), matrix)
            assert torch.equal(whole.product(x), apart), (kind, rows)
            assert torch.equal(torch.cat([part.decode() for part in parts]), matrix)
            assert torch.equal(torch.cat([part.product(x) for part in parts], dim=-1), apart)
            assert torch.equal(whole.look_up(torch.tensor([70 % len(matrix), 3])),
                               matrix[[70 % len(matrix), 3]])  # fmt: skip


@pytest.mark.untyped
def test_what_cannot_be_joined_is_refused():
    rows = RowWeight(torch.ones(64, 64, dtype=torch.int8), torch.ones(64))
    few = RowWeight(torch.ones(16, 64, dtype=torch.int8), torch.ones(16))
    four = GroupedWeight(torch.ones(64, 64, dtype=torch.int8), torch.ones(64, 2))
    for weights in ([], [few, rows], [rows, four], [rows, torch.ones(64, 64)]):
        with pytest.raises(ValueError, match="weights must be packed alike"):
            join_rows(weights)
