"""Packed weights: the same numbers as decoded ones, in any place where a matrix may stand.

A check is `check(kit)`, with `kit` the module, or a copy of it with a planted bug.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import tfbook.blocks.packed
from tfbook.models import build, preset

CHECKS = {}
# What rounding to 8 bits of mantissa does: once to each x, once to each scale, once to the sum.
HALF_STEP = 2.0**-9


@pytest.fixture
def kit():
    return tfbook.blocks.packed


def check(run):
    CHECKS[run.__name__] = run
    return run


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(bits, rows=48, columns=96, group=32, seed=0):
    """Codes, scales and least values that bfloat16 holds exactly."""
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(low, high, (rows, columns), generator=seeded(seed))
    scale = 2.0 ** torch.randint(-4, 3, (rows, columns // group), generator=seeded(seed + 1))
    least = torch.randint(-3, 4, (rows, columns // group), generator=seeded(seed + 2)) * scale
    return codes, scale, least


def by_hand(codes, scale, least):
    group = codes.shape[1] // scale.shape[1]
    wide = [x.repeat_interleave(group, dim=1) for x in (scale, least)]
    return wide[0] * codes + wide[1]


def made(kit, kind, rows=48, columns=96, seed=0):
    if kind == "rows":
        codes = torch.randint(-127, 128, (rows, columns), generator=seeded(seed)).to(torch.int8)
        scale = 2.0 ** torch.randint(-4, 3, (rows,), generator=seeded(seed + 1)).float()
        return kit.RowWeight(codes, scale), codes * scale[:, None]
    codes, scale, least = drawn(int(kind), rows, columns, seed=seed)
    weight = kit.GroupedWeight(codes, scale, least, bits=int(kind))
    return weight, by_hand(codes, scale, least)


KINDS = ("4", "8", "rows")


@check
def test_a_packed_weight_stands_for_its_formula(kit):
    for kind in KINDS:
        weight, matrix = made(kit, kind)
        assert torch.equal(weight.decode(), matrix), kind
        assert (weight.shape, weight.dtype) == (matrix.shape, matrix.dtype)


@check
def test_more_rows_than_are_packed_at_once(kit):
    for kind in ("4", "8"):
        weight, matrix = made(kit, kind, rows=2128, columns=32)
        assert torch.equal(functional.linear(torch.eye(32), weight), matrix.T.bfloat16().float())


@check
def test_codes_and_scales_come_back(kit):
    for bits in (4, 8):
        for group in (32, 64):
            codes, scale, least = drawn(bits, columns=128, group=group)
            weight = kit.GroupedWeight(codes, scale, least, bits=bits)
            assert torch.equal(weight.codes().long(), codes)
            assert all(map(torch.equal, weight.parts(), (scale, least)))


@check
def test_the_kernel_multiplies_exactly_what_is_exact(kit):
    """Small whole numbers: every product and sum is held by bfloat16, so nothing is rounded."""
    for kind in KINDS:
        weight, matrix = made(kit, kind)
        ones = torch.zeros(5, matrix.shape[1])
        ones[torch.arange(5), torch.tensor([0, 31, 32, 63, 95])] = torch.tensor([1.0, 2, -1, 4, 1])
        exact = (ones @ matrix.T).bfloat16().float()
        assert torch.equal(functional.linear(ones, weight), exact), kind


@check
def test_the_kernel_rounds_as_bfloat16_does_and_no_more(kit):
    for kind in KINDS:
        weight, matrix = made(kit, kind)
        for shape in ((96,), (1, 96), (7, 96), (2, 3, 96), (130, 96)):
            x = torch.randn(shape, generator=seeded(3))
            bound = 2 * HALF_STEP * (x.abs() @ matrix.abs().T) + 1e-6
            error = (functional.linear(x, weight) - x @ matrix.T).abs()
            assert (error <= bound).all(), (kind, shape)


@check
def test_a_layer_keeps_its_bias_and_the_dtype_of_x(kit):
    weight, matrix = made(kit, "4")
    layer = nn.Linear(96, 48)
    kit.set_weight(layer, "weight", weight)
    layer.bias.data *= 1000
    x = torch.randn(3, 96, generator=seeded())
    right = functional.linear(x, matrix, layer.bias)
    assert (layer(x) - right).abs().max() < 0.02 * right.abs().max()
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert functional.linear(x.to(dtype), weight).dtype == dtype


@check
def test_rows_are_looked_up_as_decoded(kit):
    ids = torch.tensor([[3, 1, 47], [0, 3, 3]])
    for kind in KINDS:
        weight, matrix = made(kit, kind)
        table = nn.Embedding(*matrix.shape)
        kit.set_weight(table, "weight", weight)
        assert torch.equal(table(ids), matrix[ids]), kind
        assert torch.equal(table(ids[0, 0]), matrix[3]), kind


@check
def test_any_other_operation_sees_the_matrix(kit):
    for kind in KINDS:
        weight, matrix = made(kit, kind)
        x = torch.randn(5, 48, generator=seeded())
        assert torch.equal(weight[3], matrix[3])
        assert torch.equal(x @ weight, x @ matrix)
        assert torch.equal(weight.mT.contiguous(), matrix.mT.contiguous())
        assert torch.equal(weight.double(), matrix.double())
        assert torch.equal(torch.cat([weight, matrix]), torch.cat([matrix, matrix]))
        assert functional.linear(torch.zeros(0, 96), weight).shape == (0, 48)
        assert weight.tolist() == matrix.tolist() and (weight.numpy() == matrix.numpy()).all()


@check
def test_x_has_the_gradient_of_the_matrix(kit):
    for kind in KINDS:
        weight, matrix = made(kit, kind)
        x = torch.randn(5, 96, generator=seeded(), requires_grad=True)
        up = torch.randn(5, 48, generator=seeded(1))
        functional.linear(x, weight).backward(up)
        torch.testing.assert_close(x.grad, up @ matrix, atol=1e-4, rtol=1e-5)


@check
def test_bits_stay_bits_where_nothing_is_computed(kit):
    for kind in KINDS:
        weight, _ = made(kit, kind)
        for other in (weight.detach(), weight.clone(), weight.bfloat16(), copy.deepcopy(weight)):
            assert type(other) is type(weight)
            assert torch.equal(other.decode().float(), weight.decode())
        assert weight.bfloat16().dtype == weight.bfloat16().decode().dtype == torch.bfloat16
        layer = nn.Linear(96, 48, bias=False)
        kit.set_weight(layer, "weight", weight)
        for other in (copy.deepcopy(layer), layer.bfloat16()):
            assert type(other.weight) is type(weight) and not other.weight.requires_grad
        assert other.weight.dtype == torch.bfloat16
        assert other(torch.ones(2, 96, dtype=torch.bfloat16)).dtype == torch.bfloat16


@check
def test_a_packed_weight_takes_the_bytes_it_says(kit):
    n, d = 48, 96
    sizes = {"4": n * d / 2 + 4 * n * d / 32, "8": 2 * n * d + 8 * n * d / 32}
    sizes["rows"] = n * d + 2 * n
    for kind, wanted in sizes.items():
        assert made(kit, kind)[0].nbytes == wanted


@check
def test_a_packed_weight_is_never_changed(kit):
    for kind in KINDS:
        weight, matrix = made(kit, kind)
        for change in (lambda w: w.mul_(2), lambda w: w.copy_(torch.ones(48, 96)), nn.init.ones_):
            with pytest.raises(TypeError, match="cannot be changed in place"):
                change(weight)
        assert torch.equal(weight.decode(), matrix)


@check
def test_scales_are_those_of_their_own_group(kit):
    """The scale of one group moves the columns of that group and no others."""
    codes, scale, least = drawn(4)
    other = scale.clone()
    other[:, 1] *= 2
    change = kit.GroupedWeight(codes, other, least).decode()
    change = change != kit.GroupedWeight(codes, scale, least).decode()
    assert not change[:, :32].any() and not change[:, 64:].any() and change[:, 32:64].any()




def tiny(**changes):
    sizes = {"vocab_size": 48, "d_model": 32, "n_heads": 2, "n_kv_heads": 1, "n_layers": 2}
    return build(preset("smollm2-135m", d_ff=64, **sizes | changes)).eval()


def test_a_whole_model_in_packed_weights_is_the_model_of_their_matrices(kit):
    """Projections, feed-forward, tied table: prompts, single tokens, padding, gradients."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = tiny()
    plain = copy.deepcopy(model)
    for i, (name, old) in enumerate(list(model.named_parameters())):
        if old.ndim == 2:
            scale = old.abs().amax(1, keepdim=True) / 127
            codes = (old / scale).round().to(torch.int8)
            kinds = (kit.GroupedWeight, kit.RowWeight)
            if i % 2:
                groups = scale.expand(-1, old.shape[1] // 32)
                weight = kinds[0](codes.long(), groups, bits=8)
            else:
                weight = kinds[1](codes, scale[:, 0])
            kit.set_weight(model, name, weight)
            plain.get_parameter(name).data = weight.decode()
    tokens = torch.randint(48, (2, 7), generator=seeded())
    with torch.no_grad():
        right, _ = plain(tokens)
        whole, _ = model(tokens)
        assert (whole - right).norm() < 0.02 * right.norm()
        first, state = model(tokens[:, :4], model.empty_state(2))
        rest, _ = model(tokens[:, 4:], state)
        assert (torch.cat([first, rest], 1) - whole).norm() < 0.02 * right.norm()
        x = torch.randn(2, 7, 32, generator=seeded())
        heads = [m.stack.blocks[0].mixer.head_outputs(x) for m in (model, plain)]
        torch.testing.assert_close(*heads, atol=0.02, rtol=0.02)
    model(tokens)[0].sum().backward()
    plain(tokens)[0].sum().backward()
    one, other = (m.stack.final_norm.weight.grad for m in (model, plain))
    torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


@pytest.mark.untyped
def test_what_does_not_fit_is_refused_in_words(kit):
    codes, scale, least = drawn(4)
    eight = codes.to(torch.int8)
    wrong = [
        (lambda: kit.GroupedWeight(codes.float(), scale), TypeError, "codes must be integers"),
        (lambda: kit.GroupedWeight(codes[0], scale), ValueError, "codes must have shape"),
        (lambda: kit.GroupedWeight(codes + 1, scale), ValueError, "from 0 to 15"),
        (lambda: kit.GroupedWeight(codes * 20, scale, bits=8), ValueError, "from -128 to 127"),
        (lambda: kit.GroupedWeight(codes, scale, bits=5), ValueError, "bits must be 4 or 8"),
        (lambda: kit.GroupedWeight(codes, scale[:, :2]), ValueError, r"48 \(D / G\)"),
        (lambda: kit.GroupedWeight(codes, scale.repeat(1, 2)), ValueError, r"16 \(D / G\)"),
        (lambda: kit.GroupedWeight(codes[:40], scale[:40]), ValueError, "multiple of 16 rows"),
        (lambda: kit.GroupedWeight(codes, scale, least[:9]), ValueError, "low must have shape"),
        (lambda: kit.GroupedWeight(codes, scale * torch.nan), ValueError, "scale must be finite"),
        (lambda: kit.GroupedWeight(codes, scale, dtype=torch.int8), TypeError, "dtype must be"),
        (lambda: kit.RowWeight(codes, scale[:, 0]), TypeError, "codes must be int8"),
        (lambda: kit.RowWeight(codes.to(torch.int8), scale), ValueError, "scale must have shape"),
        (lambda: kit.RowWeight(eight[:, 1:], scale[:, 0]), ValueError, "multiple of 16 columns"),
        (lambda: kit.set_weight(nn.Linear(2, 2), "w", made(kit, "4")[0]), ValueError, "name must"),
        (lambda: kit.set_weight(nn.Linear(2, 2), "weight", made(kit, "4")[0]), ValueError, "shape"),
        (lambda: kit.set_weight(nn.Linear(2, 2), "weight", codes), TypeError, "a PackedWeight"),
        (lambda: kit.set_weight("a", "weight", made(kit, "4")[0]), TypeError, "model must be"),
        (lambda: functional.linear(torch.ones(2, 95), made(kit, "4")[0]), RuntimeError, "shape"),
        (lambda: made(kit, "4")[0].to("meta"), ValueError, "laid out for CPUs"),
    ]
    for call, kind, words in wrong:
        with pytest.raises(kind, match=words):
            call()
