"""The figures of costs: a token's price, the roof of a machine, the best use of FLOPs."""

import math
import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tfbook.costs import MACHINES, ChinchillaLaw, Machine
from tfbook.models import build, preset
from tfbook.teaching import explorables
from tfbook.teaching.explorables import _budget, _calculator
from tfbook.teaching.explorables._roofline import PEAKS

X = explorables
NAMES = tuple(_calculator.PRESETS)

# ---------------------------------------------------------------------- cost_calculator


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "smollm2-135m"])
@pytest.mark.parametrize("n", [1, 7, 300])
def test_a_token_costs_what_pytorch_counts_in_a_pass(name, n):
    config = preset(name, attend="reference")
    with torch.device("meta"):  # shapes and no numbers: 135 million weights cost nothing
        model = build(config).eval()
    tokens = torch.zeros(2, n, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens)
    figure = X.cost_calculator(name, length=n)
    assert figure.flops * 2 * n == counter.get_total_flops()
    assert figure.parameters == sum(parameter.numel() for parameter in model.parameters())
    counts = {"projections": 0, "feed_forward": 0, "head": 0}
    ends = {"_proj": "projections", "head": "head"}
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "pooler" not in path:
            key = "feed_forward" if ".ffn" in path else ends[path[-5:] if "_" in path else path]
            counts[key] += 2 * module.weight.numel()
    if figure.data["presets"][name]["tied"]:
        counts["head"] = figure.head  # a product with the table, no module of its own
    assert {key: getattr(figure, key) for key in counts} == counts


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 1000, 131_072])
def test_a_token_costs_what_the_config_counts(name, n):
    config = preset(name)
    longer = config.replace(max_len=131_072)
    figure = X.cost_calculator(name, length=n, batch=3, precision="int8")
    assert figure.flops * n == longer.flops(n)
    assert figure.parameters == config.count_parameters()
    parts = [figure.projections, figure.feed_forward, figure.mixing, figure.head]
    assert sum(parts) == figure.flops and figure.training_flops == 3 * figure.flops
    if config.kind == "encoder":
        assert figure.cache_bytes is figure.read_bytes is figure.flops_per_byte is None
        return
    assert figure.flops == longer.flops(1, past=n - 1)  # generated last
    assert figure.cache_bytes == config.kv_cache_bytes(n, 3, 1)
    assert figure.flops_per_byte == pytest.approx(figure.flops / figure.read_bytes)


def test_scores_equal_the_rest_at_lengths_known_by_hand():
    for name, width in (("gpt2", 768), ("gpt2-xl", 1600), ("gpt3-175b", 12_288)):
        assert X.cost_calculator(name).crossover == 6 * width
    # 2 · (2 d² + 2 d·192 + 3 d·1536) to 4 d for each key, with d = 576
    assert X.cost_calculator("smollm2-135m").crossover == (2 * 576 + 2 * 192 + 3 * 1536) / 2
    # 2 · (4 d² + 3 d·11008) to 4 d, with d = 4096
    assert X.cost_calculator("llama-7b").crossover == 2 * 4096 + 3 * 11_008 / 2
    figure = X.cost_calculator("gpt2", length=4608)
    assert figure.mixing == figure.projections + figure.feed_forward


# Parameters of the released models less the tables of which a row is looked up.
READ = {
    "gpt2": 124_439_808 - 1024 * 768,
    "gpt2-xl": 1_557_611_200 - 1024 * 1600,
    "llama-7b": 6_738_415_616 - 32_000 * 4096,
    "smollm2-135m": 134_515_008,
}


@pytest.mark.parametrize("name", READ)
def test_bytes_read_are_weights_that_multiply_and_the_caches(name):
    config = preset(name)
    for batch, length in ((1, 1), (64, 900)):
        figure = X.cost_calculator(name, batch=batch, length=length)
        step = 2 * READ[name] + config.kv_cache_bytes(length, batch, 2)
        assert figure.read_bytes == step / batch


def test_training_keeps_16_bytes_a_parameter():
    layer = torch.nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.randn(3, 30)).sum().backward()
    optimizer.step()
    kept = [t for p in layer.parameters() for t in (p, p.grad, *optimizer.state[p].values())]
    size = sum(t.nbytes for t in kept if t.numel() > 1)  # without the count of steps
    count = sum(p.numel() for p in layer.parameters())
    figure = X.cost_calculator("gpt2", precision="float32")
    assert figure.training_bytes / figure.parameters == size / count == 16


def test_one_sequence_does_a_flop_a_byte_and_many_do_more():
    one = X.cost_calculator("llama-7b", length=1)
    assert one.flops_per_byte == pytest.approx(1, rel=1e-3)
    found = [X.cost_calculator("llama-7b", length=1, batch=b).flops_per_byte for b in (1, 8, 64)]
    assert found[1] == pytest.approx(8 * found[0], rel=0.01) and found[2] > 50 * found[0]
    # However many there are, a long cache is read by its own sequence alone.
    assert X.cost_calculator("llama-7b", length=131_072, batch=1024).flops_per_byte < 2


# ---------------------------------------------------------------------- roofline

HOME = ("home", 100e9, 20e9)


def test_a_layer_below_and_above_the_ridge_by_hand():
    figure = X.roofline([HOME], rows=1, d_in=1000, d_out=1000, precision="float32")
    assert (figure.flops, figure.bytes) == (2e6, 4 * 1_002_000)
    assert figure.ridge == 5 and figure.bound == "memory"
    assert figure.seconds == pytest.approx(4_008_000 / 20e9)
    # 2 r·10⁶ = 5 · 4 (10⁶ + 2000 r) where r = 20·10⁶ / 1 960 000
    assert figure.ridge_rows == pytest.approx(500 / 49)
    figure.rows = 10
    assert figure.bound == "memory" and figure.used == pytest.approx(0.9804, abs=1e-4)
    figure.rows = 11
    assert figure.bound == "compute" and figure.used == 1
    assert figure.seconds == pytest.approx(22e6 / 100e9) and figure.rate == pytest.approx(100e9)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize(("d_in", "d_out"), [(64, 64), (768, 3072), (4096, 11_008), (16_384, 512)])
def test_rows_at_the_ridge_are_where_the_waiting_changes(machine, precision, d_in, d_out):
    figure = X.roofline(machine=machine, d_in=d_in, d_out=d_out, precision=precision)
    size = {"float32": 4, "float16": 2, "int8": 1}[precision]
    at = MACHINES[machine]
    peak = PEAKS[machine].get(precision, at.flops)

    def arithmetic_decides(rows):
        moved = size * (d_in * d_out + rows * (d_in + d_out)) / at.bandwidth
        return 2 * rows * d_in * d_out / peak >= moved

    if figure.ridge_rows is None:
        assert not arithmetic_decides(10**9)
        return
    rows = math.ceil(figure.ridge_rows)
    assert arithmetic_decides(rows) and not arithmetic_decides(rows - 1)
    for r in (rows - 1, rows):
        if 1 <= r <= 4096:
            figure.rows = r
            assert figure.bound == ("compute" if r == rows else "memory")


# Cores for float32, their highest clock, and how many products of 8 bits tensor cores do in the
# time of one of 16, as the makers' papers say.
CARDS = {
    "V100 SXM2": (5120, 1.530e9, 1),
    "A100 80GB SXM": (6912, 1.410e9, 2),
    "H100 SXM": (16_896, 1.980e9, 2),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_fewer_bytes_never_lower_the_peak_of_a_card(machine):
    formats = ("float32", "float16", "int8")
    shown = [X.roofline(machine=machine, rows=4096, precision=form) for form in formats]
    rates = [figure.flops / figure.seconds / figure.used for figure in shown]
    assert rates == sorted(rates) and rates[1] == pytest.approx(MACHINES[machine].flops)
    cores, clock, eighths = CARDS[machine]
    assert rates[0] == pytest.approx(2 * cores * clock, rel=5e-3)  # a core multiplies and adds
    assert rates[2] == pytest.approx(eighths * rates[1], rel=5e-3)
    # A machine of the reader's own keeps the rates that it was given with.
    assert X.roofline([HOME], rows=4096, precision="int8").rate <= HOME[1]


def test_machines_come_as_tuples_as_machines_and_in_a_mapping():
    given = Machine(*HOME)
    forms = [[HOME], [list(HOME)], [given], {"x": given}]
    first, *others = [X.roofline(form)._repr_mimebundle_() for form in forms]
    assert all(other == first for other in others)
    assert set(X.roofline().data["machines"]) == set(MACHINES)
    assert X.roofline([HOME, ("b", 1e9, 1e9)], machine="b").ridge == 1


# ---------------------------------------------------------------------- compute_budget


def loss_of(law, n, d):
    return law.floor + law.n_scale / n**law.n_exponent + law.d_scale / d**law.d_exponent


@given(
    st.floats(18, 26), st.floats(0.2, 0.6), st.floats(0.2, 0.6), st.floats(100, 2000),
    st.floats(100, 2000),
)  # fmt: skip
def test_best_is_the_lowest_of_many_on_the_line(power, alpha, beta, a, b):
    law, c = ChinchillaLaw(1.7, a, alpha, b, beta), 10**power
    figure = X.compute_budget(c, 10 ** ((power - 0.8) / 2), law=law)
    places = [10 ** (3 + i / 200) for i in range(3000)]  # N from 10³ to 10¹⁸
    losses = [loss_of(law, n, c / (6 * n)) for n in places]
    i = min(range(3000), key=losses.__getitem__)
    assert figure.best_loss <= losses[i] and figure.best_loss == pytest.approx(losses[i], abs=1e-4)
    assert places[max(0, i - 1)] <= figure.best_size <= places[min(2999, i + 1)]
    assert 6 * figure.best_size * figure.best_tokens == pytest.approx(c)
    assert figure.best_ratio == pytest.approx(figure.best_tokens / figure.best_size)
    assert figure.loss >= figure.best_loss - 1e-12


def test_known_models_stand_where_their_numbers_say():
    chinchilla, gpt3, llama = X.compute_budget().models
    assert chinchilla["ratio"] == 20 and llama["ratio"] == 1875
    assert gpt3["ratio"] == pytest.approx(12 / 7)
    # With the constants as they are printed the law asks for a smaller model, trained for longer.
    budget = 6 * 70e9 * 1.4e12
    figure = X.compute_budget(budget, 70e9)
    assert figure.loss == pytest.approx(chinchilla["loss"])
    assert 30e9 < figure.best_size < 50e9
    for row in (chinchilla, gpt3, llama):
        assert row["best_loss"] < row["loss"]


def test_parameters_stay_on_the_part_of_the_line_that_is_seen():
    figure = X.compute_budget(1e21, 3e8)
    assert figure.size == 3e8 and figure.tokens == pytest.approx(1e21 / 1.8e9)
    figure.compute = 1e26
    assert figure.tokens == pytest.approx(1e15) and figure.size == pytest.approx(1e11 / 6)
    figure.compute, figure.parameters = 1e18, 1e12
    assert figure.tokens == pytest.approx(1e8) and figure.size == pytest.approx(1e10 / 6)
    generator = random.Random(0)
    for _ in range(50):
        low, high = _budget.reach(c := 10 ** generator.uniform(18, 26))
        assert 1e6 <= low < high <= 1e13
        for n in (low, high):
            assert 1e8 * 0.999999 <= c / (6 * n) <= 1e15 * 1.000001


def test_levels_rise_from_just_above_the_floor():
    for floor in (0.0, 1.69, 3.2):
        levels = X.compute_budget(law=ChinchillaLaw(floor, 400, 0.3, 400, 0.3)).data["levels"]
        assert levels[0] > floor and all(low < high for low, high in pairwise(levels))


# ---------------------------------------------------------------------- bad input

BAD = [
    (lambda: X.cost_calculator("gpt5"), ValueError, "preset must be one of gpt2, gpt2-medium"),
    (lambda: X.cost_calculator(length=0), ValueError, "length must be between 1 and 131072, got 0"),
    (lambda: X.cost_calculator(length=1e3), TypeError, "length must be a whole number, got float"),
    (lambda: X.cost_calculator(batch=True), TypeError, "batch must be a whole number, got bool"),
    (lambda: X.cost_calculator(precision="f2"), ValueError, "precision must be one of float32"),
    (lambda: X.roofline(3), TypeError, "machines must be a list of machines, got int"),
    (lambda: X.roofline("abc"), TypeError, "machines must be a list of machines, got str"),
    (lambda: X.roofline([]), ValueError, "machines must be 1 to 12, got 0"),
    (lambda: X.roofline([3]), TypeError, r"machines\[0\] must be \(name, flops, bandwidth\), got"),
    (lambda: X.roofline([HOME, HOME[:2]]), ValueError, r"machines\[1\] .* got 2 items"),
    (lambda: X.roofline([HOME, HOME]), ValueError, "different names, got 'home' twice"),
    (lambda: X.roofline([(" ", 1e9, 1e9)]), TypeError, r"machines\[0\] name must be a text"),
    (lambda: X.roofline([("a", 0, 1e9)]), ValueError, r"machines\[0\] flops must be between"),
    (lambda: X.roofline([("a", 1e9, "1")]), TypeError, r"machines\[0\] bandwidth must be a number"),
    (lambda: X.roofline([HOME], machine="a"), ValueError, "machine must be one of home, got 'a'"),
    (lambda: X.roofline(rows=4097), ValueError, "rows must be between 1 and 4096, got 4097"),
    (lambda: X.roofline(d_in=1.5), TypeError, "d_in must be a whole number, got float"),
    (lambda: X.roofline(d_out=0), ValueError, "d_out must be between 1 and 65536, got 0"),
    (lambda: X.compute_budget(1e17), ValueError, "compute must be between 1e.18 and 1e.26"),
    (lambda: X.compute_budget("1e20"), TypeError, "compute must be a number, got str"),
    (lambda: X.compute_budget(1e20, math.nan), ValueError, "parameters must be between 1e.06"),
    (lambda: X.compute_budget(1e18, 1e12), ValueError, "for compute = 1e.18, got 1e.12"),
    (lambda: X.compute_budget(law=(1, 2)), TypeError, "law must be a ChinchillaLaw, got tuple"),
    (lambda: X.compute_budget(models=3), TypeError, "models must be a list of models, got int"),
    (lambda: X.compute_budget(models=[("a", 1e9, 1e9)] * 7), ValueError, "at most 6, got 7"),
    (lambda: X.compute_budget(models=["a"]), TypeError, r"models\[0\] must be \(name, parameters"),
    (lambda: X.compute_budget(models=[("a", 1e9)]), ValueError, r"models\[0\] .* got 2 items"),
    (lambda: X.compute_budget(models=[("", 1e9, 1e9)]), TypeError, r"models\[0\] name must be a"),
    (lambda: X.compute_budget(models=[("a", 1e9, 1)]), ValueError, r"models\[0\] tokens must be"),
]


@pytest.mark.untyped
@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[m for *_, m in BAD])
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()
