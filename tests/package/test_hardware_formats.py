"""Number formats: every pattern, every neighbour and every half way, against PyTorch's dtypes.

A check is `check(kit)`, with `kit` the modules, or copies of them with a planted bug.
"""

import math
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tfbook import hardware

CHECKS = {}
NAMES = ("formats", "blocks", "scaling")
INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


def kit_of(copy_of):
    parts = {name: copy_of(f"tfbook.hardware.{name}") for name in NAMES}
    return SimpleNamespace(**{k: v for part in parts.values() for k, v in vars(part).items()})


@pytest.fixture
def kit():
    return kit_of(import_module)


def check(run):
    CHECKS[run.__name__] = run
    return run


def same(one, other):
    """Equal, NaN and the sign of 0 too."""
    signs = one.signbit() == other.signbit()
    return bool((((one == other) & signs) | (one.isnan() & other.isnan())).all())


def torch_forms(kit):
    return [f for f in kit.FORMATS.values() if getattr(f, "exponent", 0) and f.dtype and f.bits > 4]


def patterns_of(dtype, x):
    return x.to(dtype).view(INTEGERS[8 * dtype.itemsize]).long() % 2 ** (8 * dtype.itemsize)


@check
def test_every_pattern_stands_for_what_pytorch_reads(kit):
    for form in torch_forms(kit):
        if form.bits <= 16:
            codes = torch.arange(2**form.bits)
            assert same(kit.decode(codes, form), kit.to_torch(codes, form).float()), form.name


@check
def test_every_number_of_a_format_is_its_own_nearest(kit):
    for form in kit.FORMATS.values():
        if form.bits <= 16:
            codes = torch.arange(2**form.bits)
            values = kit.decode(codes, form)
            back = kit.encode(values.nan_to_num(1.0), form)
            finite = values.isfinite()
            assert torch.equal(back[finite], codes[finite]), form.name


@check
def test_half_ways_and_neighbours_round_as_in_pytorch(kit):
    """PyTorch stays finite in e4m3, and so does `saturate`."""
    for form in torch_forms(kit):
        if form.bits > 16:
            continue
        values = kit.decode(torch.arange(form.last + 1), form).double()
        halves = ((values[1:] + values[:-1]) / 2).float()
        x = torch.cat([halves, halves.nextafter(halves * 2), halves.nextafter(halves * 0)])
        x = torch.cat([x, torch.tensor([form.largest * 1.0625, 3e38, 1e-40 * form.signed, 0.0])])
        x = torch.cat([x, -x]) if form.signed else x[x >= 2**-126]
        saturate = form.name == "e4m3"
        right = patterns_of(form.dtype, x)
        assert torch.equal(kit.encode(x, form, saturate=saturate), right), form.name


@check
def test_what_is_beyond_becomes_infinity_or_nan_or_the_largest(kit):
    ends = {"fp16": math.inf, "bf16": math.inf, "e5m2": math.inf, "e4m3": math.nan, "e2m1": 6.0}
    for name, end in ends.items():
        form = kit.FORMATS[name]
        x = torch.tensor([1e39, math.inf, -math.inf])
        wanted = torch.tensor([end, end, -end])
        assert same(kit.round_to(x, form).abs(), wanted.abs()), name
        assert kit.round_to(x, form, saturate=True).abs().eq(form.largest).all(), name
        if form.nan is not None:
            assert kit.round_to(torch.tensor([math.nan]), form).isnan().all()


@check
def test_the_figures_of_the_papers(kit):
    table = {
        "fp32": (32, 3.4028234663852886e38, 2.0**-126, 2.0**-149),
        "tf32": (19, 2.0**127 * (2 - 2.0**-10), 2.0**-126, 2.0**-136),
        "fp16": (16, 65504.0, 2.0**-14, 2.0**-24),
        "bf16": (16, 2.0**127 * (2 - 2.0**-7), 2.0**-126, 2.0**-133),
        "e4m3": (8, 448.0, 2.0**-6, 2.0**-9),
        "e5m2": (8, 57344.0, 2.0**-14, 2.0**-16),
        "e2m1": (4, 6.0, 1.0, 0.5),
        "e8m0": (8, 2.0**127, 2.0**-127, 2.0**-127),
    }
    for name, wanted in table.items():
        form = kit.FORMATS[name]
        assert (form.bits, form.largest, form.smallest, form.least) == wanted, name


@check
def test_whole_numbers_are_in_twos_complement(kit):
    x = torch.tensor([0.5, 1.5, -0.5, -1.5, 126.5, 200.0, -300.0, math.inf])
    codes = kit.encode(x, kit.FORMATS["int8"])
    assert kit.to_torch(codes, kit.FORMATS["int8"]).tolist() == [0, 2, 0, -2, 126, 127, -128, 127]
    assert kit.encode(x, kit.FORMATS["int4"]).tolist() == [0, 2, 0, 14, 7, 7, 8, 7]
    assert kit.decode(torch.arange(16), kit.FORMATS["int4"]).tolist() == [*range(8), *range(-8, 0)]


@check
def test_two_halves_share_a_byte(kit):
    found = kit.to_torch(torch.tensor([[1, 15, 0, 2]]), kit.FORMATS["e2m1"])
    assert found.view(torch.uint8).tolist() == [[0xF1, 0x20]]


@check
def test_drawn_rounding_keeps_the_mean(kit):
    generator = torch.Generator().manual_seed(0)
    cases = [("bf16", 1.003, 1.0, 1.0078125), ("e2m1", -3.4, -4.0, -3.0)]
    for name, x, below, above in [*cases, ("int4", 2.25, 2.0, 3.0), ("e4m3", 0.001, 0.0, 2.0**-9)]:
        found = kit.round_to(torch.full((20000,), x, dtype=torch.float64), kit.FORMATS[name],
                             stochastic=True, generator=generator)  # fmt: skip
        assert set(found.tolist()) == {below, above}, name
        assert abs(found.mean() - x) < 4 * (above - below) / 2 / 20000**0.5, name


@check
def test_blocks_are_the_formula_written_out(kit):
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 64)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    grid = torch.cat([-grid, grid]).double()
    for form, size in (("mxfp4", 32), ("nvfp4", 16)):
        found = kit.encode_blocks(x, form)
        values, factor = kit.decode_blocks(found, dtype=torch.float64), x.abs().max() / (6 * 448)
        for i in range(3):
            for start in range(0, 64, size):
                part = x[i, start : start + size].double()
                most = float(part.abs().max())
                if form == "mxfp4":
                    scale = 2.0 ** (math.floor(math.log2(most)) - 2)
                else:
                    scale = most / 6 / float(factor)
                    scale = float(torch.tensor(scale).to(torch.float8_e4m3fn)) * float(factor)
                near = (part[:, None] / scale - grid).abs().min(1).values * scale
                error = (values[i, start : start + size] - part).abs()
                torch.testing.assert_close(error, near, atol=1e-9 * most, rtol=1e-5)


@check
def test_blocks_take_the_bits_they_say_and_hold_zeros(kit):
    for form, bits in (("mxfp4", 4.25), ("nvfp4", 4.5)):
        found = kit.encode_blocks(torch.zeros(2, 32), form)
        assert found.bits == bits and not kit.decode_blocks(found).any()
        half = torch.cat([torch.zeros(32), torch.full((32,), 3.0)])
        assert torch.equal(kit.decode_blocks(kit.encode_blocks(half, form)).eq(0), half.eq(0))


@check
def test_a_smaller_block_with_a_finer_scale_is_nearer(kit):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
    error = {f: (kit.decode_blocks(kit.encode_blocks(x, f)) - x).norm() / x.norm()
             for f in ("mxfp4", "nvfp4")}  # fmt: skip
    assert error["nvfp4"] < 0.9 * error["mxfp4"] < 0.15


def steps_of(scaler, step, losses):
    """Scale and weight after each of some losses, whose gradients are their factors."""
    found = []
    for factor in losses:
        weight = torch.nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        step(scaler, optimizer, weight * factor)
        found.append(float(weight.detach()))
    return found


LOSSES = [0.5, 0.25, math.inf, 1.0, math.nan, 2.0, 0.5, 0.5, 0.5, 0.125]


@check
def test_loss_scaling_is_that_of_pytorch(kit):
    ours = kit.LossScaler(64.0, interval=3)
    theirs = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)

    def own(scaler, optimizer, loss):
        scaler.scaled(loss).backward()
        scaler.step(optimizer)

    def other(scaler, optimizer, loss):
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for stop in range(1, len(LOSSES) + 1):
        one = steps_of(ours, own, LOSSES[stop - 1 : stop])
        assert one == steps_of(theirs, other, LOSSES[stop - 1 : stop])
        assert ours.scale == theirs.get_scale()


@check
def test_small_gradients_live_when_they_are_scaled(kit):
    """Of float16 gradients below 2⁻²⁴, none is left without a scale and all with one."""
    for scale, alive in ((1.0, False), (2.0**16, True)):
        weight = torch.nn.Parameter(torch.ones((), dtype=torch.float16))
        kit.LossScaler(scale).scaled(weight.float() * 1e-9).backward()
        assert bool(weight.grad != 0) == alive
    again = kit.LossScaler()
    again.load_state_dict({"scale": 8.0, "good": 5})
    assert again.state_dict() == {"scale": 8.0, "good": 5}


@given(x=st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_any_number_is_within_half_a_step(x):
    forms = hardware
    for name in ("fp16", "bf16", "e4m3", "e5m2", "tf32", "fp32"):
        form = forms.FORMATS[name]
        y = float(forms.round_to(torch.tensor(x, dtype=torch.float64), form, saturate=True))
        bound = max(abs(x) * form.epsilon / 2, form.least / 2)
        assert abs(y - x) <= max(bound, abs(x) - form.largest)
    assert float(forms.round_to(torch.tensor(x), forms.FORMATS["fp32"])) == x


@pytest.mark.untyped
def test_what_does_not_fit_is_refused_in_words(kit):
    x, forms = torch.ones(3), kit.FORMATS
    wrong = [
        (lambda: kit.encode(x.long(), forms["fp16"]), TypeError, "x must have a floating"),
        (lambda: kit.encode(x, "fp16"), TypeError, "form must be"),
        (lambda: kit.encode(-x, forms["e8m0"]), ValueError, "must not be negative"),
        (lambda: kit.encode(x * math.nan, forms["e2m1"]), ValueError, "no NaN"),
        (lambda: kit.encode(x * math.nan, forms["int8"]), ValueError, "no NaN"),
        (lambda: kit.decode(torch.tensor([256]), forms["e4m3"]), ValueError, "from 0 to 255"),
        (lambda: kit.decode(x, forms["e4m3"]), TypeError, "codes must be a tensor of integers"),
        (lambda: kit.to_torch(torch.tensor([1]), forms["tf32"]), ValueError, "no dtype for tf32"),
        (lambda: kit.to_torch(torch.tensor([1]), forms["e2m1"]), ValueError, "an even number"),
        (lambda: kit.FloatFormat("a", 0, 3), ValueError, "exponent must be"),
        (lambda: kit.FloatFormat("a", 3, 0), ValueError, "mantissa, got 0"),
        (lambda: kit.encode_blocks(x, "mxfp4"), ValueError, "multiple of 32"),
        (lambda: kit.encode_blocks(x, "fp4"), ValueError, "form must be one of"),
        (lambda: kit.encode_blocks(torch.full((32,), math.inf), "mxfp4"), ValueError, "finite"),
        (lambda: kit.LossScaler(backoff=1.0), ValueError, "backoff must be"),
        (lambda: kit.LossScaler().step(3), TypeError, "optimizer must be"),
        (lambda: kit.LossScaler().load_state_dict({}), TypeError, "scale and good"),
    ]
    for call, kind, words in wrong:
        with pytest.raises(kind, match=words):
            call()
