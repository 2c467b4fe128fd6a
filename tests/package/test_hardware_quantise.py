"""Weights in few bits: bounds of the error, schemes that equal each other, and real weights.

A check is `check(kit)`, with `kit` the modules, or copies of them with a planted bug.
"""

import math
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tfbook import data, hardware, pretrained
from tfbook.models import build, preset
from tfbook.pretrained import round_rows

CHECKS = {}
NAMES = ("quantisation", "calibration")


def kit_of(copy_of):
    parts = {name: copy_of(f"tfbook.hardware.{name}") for name in NAMES}
    return SimpleNamespace(**{k: v for part in parts.values() for k, v in vars(part).items()})


@pytest.fixture
def kit():
    return kit_of(import_module)


def check(run):
    CHECKS[run.__name__] = run
    return run


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


SCHEMES = [(s, sym) for s in ("tensor", "channel", 7, 5) for sym in (True, False)]


@check
def test_every_number_is_within_half_a_step(kit):
    w = drawn(11, 35) + 0.3
    for shared, symmetric in SCHEMES:
        for bits in (2, 3, 4, 8):
            found = kit.quantise(w, bits, shared=shared, symmetric=symmetric)
            groups = {"tensor": (1, 1), "channel": (11, 1), 7: (11, 5), 5: (11, 7)}[shared]
            assert found.scale.shape == found.zero.shape == groups
            wide = found.scale.repeat_interleave(35 // groups[1], 1).expand(11, 35)
            error = (kit.restore(found) - w).abs()
            # A zero point is rounded too, and may push the ends half a step out of the range.
            assert (error <= wide * (0.5 if symmetric else 1.0) * (1 + 1e-5)).all()
            low = -(2 ** (bits - 1)) + symmetric
            assert low <= found.codes.min() and found.codes.max() <= 2 ** (bits - 1) - 1


@check
def test_the_largest_and_zero_are_exact(kit):
    w = drawn(11, 35)
    w[:, 3] = 0
    for shared, symmetric in SCHEMES:
        found = kit.restore(kit.quantise(w, 4, shared=shared, symmetric=symmetric))
        assert not found[:, 3].any()
    far = kit.quantise(w.abs() + 10, 4, symmetric=False)
    assert (far.zero == -8).all()  # the code that stands for 0 is one of the sixteen
    rows = kit.restore(kit.quantise(w, 4)).abs().amax(1)
    torch.testing.assert_close(rows, w.abs().amax(1))
    assert not kit.restore(kit.quantise(torch.zeros(2, 4), 4)).any()


@check
def test_who_shares_a_scale_is_who_is_asked_for(kit):
    """A number made large coarsens those that share its scale, and no other."""
    w = drawn(11, 35)
    big = w.clone()
    big[4, 8] = 1000.0
    for shared, touched in (("tensor", torch.ones(11, 35)), ("channel", torch.zeros(11, 35)),
                            (7, torch.zeros(11, 35))):  # fmt: skip
        if shared == "channel":
            touched[4] = 1
        if shared == 7:
            touched[4, 7:14] = 1
        one, other = (kit.restore(kit.quantise(x, 4, shared=shared)) for x in (w, big))
        assert torch.equal((one != other).any(1), touched.bool().any(1))
        assert not (one != other)[~touched.bool()].any()


@check
def test_finer_sharing_and_zero_points_lose_less(kit):
    w = drawn(16, 256) * torch.logspace(-1, 1, 256) + 0.5
    shares = ("tensor", 256, 64, 16)
    errors = [(kit.restore(kit.quantise(w, 4, shared=s)) - w).norm() for s in shares]
    assert all(a > 1.02 * b for a, b in zip(errors, errors[1:], strict=False))
    skewed = drawn(16, 256).abs()
    both = [
        (kit.restore(kit.quantise(skewed, 4, symmetric=s)) - skewed).norm() for s in (True, False)
    ]
    assert both[1] < 0.6 * both[0]


@check
def test_rows_in_eight_bits_are_those_of_round_rows(kit):
    w = drawn(13, 29)
    found, theirs = kit.quantise(w), round_rows(w)
    assert torch.equal(found.scale[:, 0], theirs.scale)
    assert (found.codes.int() - theirs.values.int()).abs().max() <= 1  # half ways, by the scale
    assert (found.codes != theirs.values).float().mean() < 0.01


@check
def test_a_readable_layer_multiplies_the_restored_matrix(kit):
    layer = nn.Linear(35, 11)
    x = drawn(3, 35)
    for shared, symmetric in SCHEMES:
        new = kit.QuantisedLinear(layer, 4, shared=shared, symmetric=symmetric)
        w = kit.restore(kit.quantise(layer.weight, 4, shared=shared, symmetric=symmetric))
        assert torch.equal(new(x), functional.linear(x, w, layer.bias))
        assert torch.equal(new.weight, w)
    assert {"codes", "scale", "zero", "bias"} == set(new.state_dict())


@check
def test_packed_weights_hold_the_same_numbers(kit):
    w = drawn(48, 128)
    for bits in (4, 8):
        for shared in (32, 64, "channel"):
            for symmetric in (True, False):
                if shared == "channel" and (bits == 4 or not symmetric):
                    continue
                found = kit.quantise(w, bits, shared=shared, symmetric=symmetric)
                packed = kit.pack(found)
                kind = kit.RowWeight if shared == "channel" else kit.GroupedWeight
                assert isinstance(packed, kind)
                right = kit.restore(found)
                most = found.scale.max() * 2**bits / 256  # scales in 8 bits of mantissa
                assert (packed.decode() - right).abs().max() <= most
                codes = packed.codes if shared == "channel" else packed.codes()
                assert torch.equal(codes.int() - (8 if bits == 4 else 0), found.codes.int())


def llama():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        sizes = {"vocab_size": 37, "d_model": 64, "n_heads": 4, "n_kv_heads": 1, "d_ff": 96}
        return build(preset("smollm2-135m", n_layers=2, **sizes)).eval()


@check
def test_models_of_quantised_maps_say_nearly_the_same(kit):
    model, tokens = llama(), torch.arange(12).view(2, 6)
    with torch.no_grad():
        right, _ = model(tokens)
        for new, most in (
            (kit.quantise_model(model, 8), 0.02),
            (kit.quantise_model(model, 4, shared=32), 0.2),
            (kit.pack_model(model, 8), 0.03),
            (kit.pack_model(model, 4), 0.2),
        ):
            found, _ = new(tokens)
            error = (found - right).norm() / right.norm()
            assert 0 < error < most
            first, state = new(tokens[:, :4])
            rest, _ = new(tokens[:, 4:], state)
            assert (torch.cat([first, rest], 1) - found).norm() < 0.02 * right.norm()
        again, _ = model(tokens)
        assert torch.equal(again, right)  # the model itself is as it was
    skipped = kit.pack_model(model, 4, skip=["stack.blocks.0.ffn.up_proj"])
    kinds = {n: type(p.weight) for n, p in skipped.named_modules() if isinstance(p, nn.Linear)}
    assert kinds["stack.blocks.0.ffn.up_proj"] is nn.Parameter
    assert kinds["stack.blocks.1.ffn.up_proj"] is kit.GroupedWeight


@check
def test_readable_and_packed_models_agree(kit):
    model, tokens = llama(), torch.arange(12).view(2, 6)
    with torch.no_grad():
        read = kit.quantise_model(model, 4, shared=32, symmetric=False)(tokens)[0]
        fast = kit.pack_model(model, 4)(tokens)[0]
    assert (read - fast).norm() < 0.02 * read.norm()


@check
def test_outliers_stay_as_they_are(kit):
    x, w = drawn(7, 24), drawn(11, 24, seed=1)
    x[2, 5], x[3, 9] = 300.0, -50.0
    right = x.double() @ w.double().T
    error = [(kit.linear_outliers(x, w, threshold=t) - right).norm() / right.norm()
             for t in (6.0, 1e6)]  # fmt: skip
    assert error[0] < 0.002 < 0.004 < error[1]
    assert (kit.linear_outliers(x, w, threshold=1e-9) - right).abs().max() < 1e-3
    # Where nothing is large, it is the product of the two rounded matrices.
    small = drawn(2, 3, 24, seed=2)
    rounded = kit.restore(kit.quantise(small.flatten(0, 1))).view(2, 3, 24)
    right = rounded @ kit.restore(kit.quantise(w)).T
    torch.testing.assert_close(kit.linear_outliers(small, w), right, atol=1e-4, rtol=1e-4)


@check
def test_gptq_of_inputs_without_correlation_is_plain_rounding(kit):
    """With XᵀX a multiple of the identity no column can make up for another."""
    w = drawn(7, 32)
    for shared, symmetric in (("channel", True), ("tensor", True), (8, False)):
        found = kit.gptq(w, torch.eye(32), 4, shared=shared, symmetric=symmetric)
        plain = kit.quantise(w, 4, shared=shared, symmetric=symmetric)
        assert torch.equal(found.codes, plain.codes) and torch.equal(found.scale, plain.scale)


@check
def test_gptq_makes_each_step_the_best_that_is_left(kit):
    """After a column is rounded the rest solves a least-squares problem: checked by solving it."""
    w, x = drawn(1, 6), drawn(40, 6, seed=1) @ drawn(6, 6, seed=2)
    damping = 1e-9
    found = kit.gptq(w, x, 3, damping=damping)
    left, codes = w.double().clone(), []
    scale = float(kit.quantise(w, 3).scale)
    for j in range(6):
        code = (left[0, j] / scale).round().clamp(-3, 3)
        codes.append(int(code))
        gone = left[0, j] - scale * code
        if j < 5:  # the later columns take over what column j no longer says
            rest = torch.linalg.lstsq(x[:, j + 1 :].double(), x[:, j : j + 1].double() * gone)
            left[0, j + 1 :] += rest.solution[:, 0]
    assert found.codes[0].tolist() == codes


@check
def test_gptq_beats_rounding_on_inputs_like_its_own(kit):
    mix = drawn(48, 48, seed=4) / 7 + drawn(1, 48, seed=5)
    seen, fresh = drawn(300, 48, seed=1) @ mix, drawn(300, 48, seed=2) @ mix
    w = drawn(16, 48, seed=3)
    for shared, symmetric in (("channel", True), (16, False)):
        choices = {"shared": shared, "symmetric": symmetric}
        plain = kit.restore(kit.quantise(w, 3, **choices))
        better = kit.restore(kit.gptq(w, seen, 3, **choices))
        errors = [kit.output_error(w, each, fresh) for each in (plain, better)]
        assert errors[1] < 0.7 * errors[0]
        assert (better - w).norm() > (plain - w).norm()  # the weights themselves move further


@check
def test_awq_is_never_worse_on_its_inputs_and_helps_where_columns_differ(kit):
    w, x = drawn(16, 32), drawn(200, 32, seed=1)
    wide = x * torch.logspace(0, 2, 32)
    for inputs, gain in ((x, 1.0), (wide, 0.8)):
        found = kit.awq(w, inputs, 3)
        plain = kit.restore(kit.quantise(w, 3))
        error = kit.output_error(w, found.matrix(), inputs)
        assert error <= gain * kit.output_error(w, plain, inputs)
        assert abs(found.scale.log().mean()) < 1e-5
        slope = (inputs.abs().mean(0).log() * found.power - found.scale.log()).std()
        assert slope < 1e-4
    assert kit.awq(w, wide, 3).power > 0


@check
def test_hadamard_matrices_are_rotations_of_equal_entries(kit):
    for n in (1, 2, 8, 64):
        h = kit.hadamard(n).double()
        torch.testing.assert_close(h @ h.T, torch.eye(n).double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(h.abs(), torch.full((n, n), n**-0.5).double(), rtol=1e-6, atol=0)
        assert torch.equal(h, h.T)


@check
def test_a_rotation_changes_no_product_and_spreads_outliers(kit):
    for d in (5, 8, 12, 576):
        x, w = drawn(3, d), drawn(7, d, seed=1)
        torch.testing.assert_close(kit.rotate(x) @ kit.rotate(w).T, x @ w.T, atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(kit.rotate(kit.rotate(x)), x, atol=1e-5, rtol=1e-5)
    x = drawn(40, 64, seed=2)
    x[:, 7] *= 100
    assert kit.rotate(x).abs().max() < 0.2 * x.abs().max()


@pytest.fixture(scope="module")
def smol():
    """Weights of SmolLM2, and what these maps see of a text."""
    model = pretrained.load("smollm2-135m")
    names = ("stack.blocks.5.mixer.q_proj", "stack.blocks.20.mixer.out_proj",
             "stack.blocks.20.ffn.down_proj")  # fmt: skip
    seen, hooks = {}, []
    for name in names:
        part = model.model.get_submodule(name)
        keep = lambda part, args, name=name: seen.__setitem__(name, args[0][0])  # noqa: E731
        hooks.append(part.register_forward_pre_hook(keep))
    with torch.no_grad():
        model.model(model.encode(data.shakespeare()[:2800]))
    for hook in hooks:
        hook.remove()
    return {n: (model.model.get_submodule(n).weight.detach(), seen[n].chunk(2)) for n in names}


def test_on_real_weights_each_method_does_what_it_claims(kit, smol):
    """Calibrated on one half of a text, measured on the other; 4 bits, a scale for each row."""
    for name in ("stack.blocks.5.mixer.q_proj", "stack.blocks.20.mixer.out_proj"):
        w, (seen, fresh) = smol[name]
        plain = kit.output_error(w, kit.restore(kit.quantise(w, 4)), fresh)
        assert kit.output_error(w, kit.restore(kit.gptq(w, seen, 4)), fresh) < 0.75 * plain
        assert kit.output_error(w, kit.awq(w, seen, 4, steps=5).matrix(), fresh) < plain
        groups = kit.restore(kit.quantise(w, 4, shared=64))
        assert kit.output_error(w, groups, fresh) < 0.8 * plain


def test_on_real_inputs_outliers_and_rotation_do_what_they_claim(kit, smol):
    w, (_, x) = smol["stack.blocks.20.ffn.down_proj"]
    right = x @ w.T
    error = {t: (kit.linear_outliers(x, w, threshold=t) - right).norm() for t in (6.0, 1e6)}
    assert error[6.0] < 0.8 * error[1e6] < 0.04 * right.norm()
    share = (x.abs().amax(0) >= 6).float().mean()
    assert 0 < share < 0.05  # a few columns are enough
    w, (_, x) = smol["stack.blocks.5.mixer.q_proj"]
    right = x @ w.T
    rounded = {
        turned: (kit.restore(kit.quantise(a, 4)) @ kit.restore(kit.quantise(b, 8)).T - right).norm()
        for turned, a, b in ((False, x, w), (True, kit.rotate(x), kit.rotate(w)))
    }
    assert rounded[True] < 0.5 * rounded[False]


@settings(max_examples=40)
@given(
    bits=st.integers(2, 8),
    scale=st.floats(1e-3, 1e3),
    symmetric=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rounding_twice_is_rounding_once(bits, scale, symmetric, seed):
    q = hardware
    once = q.restore(q.quantise(drawn(3, 8, seed=seed) * scale, bits, symmetric=symmetric))
    again = q.quantise(once, bits, symmetric=symmetric)
    twice = q.restore(again)
    assert (once - twice).abs().max() <= 1.01 * again.scale.max()
    if symmetric:
        torch.testing.assert_close(once, twice, rtol=1e-5, atol=0)


@pytest.mark.untyped
def test_what_does_not_fit_is_refused_in_words(kit):
    w, x = drawn(4, 6), drawn(3, 6)
    wrong = [
        (lambda: kit.quantise(w.long()), TypeError, "weight must have a floating"),
        (lambda: kit.quantise(w[0]), ValueError, "at least 2 dimensions"),
        (lambda: kit.quantise(w, 9), ValueError, "bits must be from 2 to 8"),
        (lambda: kit.quantise(w, shared=4), ValueError, "shared must divide"),
        (lambda: kit.quantise(w, shared="row"), ValueError, "shared must be one of"),
        (lambda: kit.quantise(w * math.nan), ValueError, "weight must be finite"),
        (lambda: kit.restore(w), TypeError, "quantised must be"),
        (lambda: kit.QuantisedLinear(w), TypeError, "linear must be an nn.Linear"),
        (lambda: kit.pack(kit.quantise(w, 3)), ValueError, "4 or 8 bits"),
        (lambda: kit.pack(kit.quantise(w, 4)), ValueError, "group must have"),
        (lambda: kit.pack_model(nn.Linear(4, 4)), ValueError, "a linear map that is not skipped"),
        (lambda: kit.pack_model(nn.Sequential(nn.Linear(4, 4))), ValueError, "multiple of 32"),
        (lambda: kit.pack_model(nn.Sequential(nn.Linear(4, 4)), 5), ValueError, "bits must be 4"),
        (lambda: kit.quantise_model(3), TypeError, "model must be a module"),
        (
            lambda: kit.quantise_model(nn.Sequential(nn.Linear(4, 4)), skip=["1"]),
            ValueError,
            "skip must name",
        ),
        (lambda: kit.linear_outliers(x, w[:, :5]), ValueError, r"weight \(N, D\)"),
        (lambda: kit.linear_outliers(x.double(), w), TypeError, "the same dtype"),
        (lambda: kit.gptq(w, x[:, :5]), ValueError, "inputs must have the 6 columns"),
        (lambda: kit.gptq(w, x, damping=0), ValueError, "damping must be"),
        (lambda: kit.awq(w, x, steps=0), ValueError, "steps must be"),
        (lambda: kit.awq(w, x * 0), ValueError, "must not all be 0"),
        (lambda: kit.hadamard(6), ValueError, "a power of 2"),
        (lambda: kit.rotate(x.long()), TypeError, "x must have a floating"),
        (lambda: kit.output_error(w, x, x), ValueError, "other must have the shape"),
    ]
    for call, kind, words in wrong:
        with pytest.raises(kind, match=words):
            call()
