"""Machines and work: bytes and FLOPs equal those of real operations, and each planted bug is seen.

A test takes the module it tests, `tfbook.costs` or a copy of it with a bug, as its last argument.
"""

import itertools
import math
import sys
from unittest import mock

import fresh
import pytest
import torch
from fresh import Mutant
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tfbook import costs

# Queries, keys, heads, heads of keys, their size, size of a value, sequences.
ATTENTION = [
    (7, 7, 1, 1, 5, 5, 1),
    (7, 11, 6, 6, 5, 5, 3),
    (13, 11, 6, 2, 5, 3, 2),
    (1, 17, 4, 1, 5, 7, 2),
]
DTYPES = (torch.float32, torch.float64)


class Traffic(TorchDispatchMode):
    """Notes the bytes each operation reads and writes, and the FLOPs of products of two matrices.

    Every operation takes its tensors from memory and puts its result there.
    """

    KNOWN = {"mm", "bmm", "_softmax", "sum", "copy_"}
    MAKE_OR_VIEW = {"ones", "full", "empty", "empty_like", "split", "transpose", "view", "detach"}

    def __init__(self):
        super().__init__()
        self.bytes, self.products = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        assert name in self.KNOWN | self.MAKE_OR_VIEW, name
        if name in self.KNOWN:
            read = args[1:] if name == "copy_" else args  # the target of a copy is not read
            tensors = [each for each in (*read, result) if isinstance(each, torch.Tensor)]
            self.bytes.append(sum(each.nbytes for each in tensors))
        if name == "mm":
            (rows, inner), (_, columns) = args[0].shape, args[1].shape
            self.products.append(2 * rows * inner * columns)
        return result


def counted(run):
    """Return FLOPs and bytes of a run, counted by operation."""
    with FlopCounterMode(display=False) as counter:
        run()
    with Traffic() as traffic:
        run()
    return counter.get_total_flops(), sum(traffic.bytes)


def heads(n, m, n_heads, n_kv_heads, d_head, d_value, batch, dtype):
    """Return q, k, v; queries of heads that share their keys stand below each other."""
    generator = torch.Generator().manual_seed(0)
    shapes = (n_heads // n_kv_heads * n, d_head), (m, d_head), (m, d_value)
    return [
        torch.randn(batch * n_kv_heads, *shape, generator=generator, dtype=dtype)
        for shape in shapes
    ]


class Chip:
    """Computes on what was loaded from memory, and counts the bytes that pass."""

    def __init__(self):
        self.bytes = 0

    def load(self, tensor):
        self.bytes += tensor.nbytes
        return tensor.clone()

    def store(self, tensor, place):
        self.bytes += tensor.nbytes
        place.copy_(tensor)


def tiled(q, k, v, tile, group):
    """Attend tile by tile of queries, their scores never stored; return results and bytes."""
    chip = Chip()
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    n = q.shape[-2] // group
    each_head = torch.arange(group)[:, None] * n
    for begin in range(0, n, tile):
        rows = (each_head + torch.arange(begin, min(begin + tile, n))).flatten()
        queries = chip.load(q[:, rows])
        weights = torch.bmm(queries, chip.load(k).mT).softmax(-1)
        result = torch.bmm(weights, chip.load(v))
        chip.store(result, place := torch.empty_like(result))
        out[:, rows] = place
    return out, chip.bytes


def test_a_product_does_and_moves_what_pytorch_does(c=costs):
    for dtype, rows in itertools.product(DTYPES, (1, 5, 13)):
        x, w = torch.ones(rows, 7, dtype=dtype), torch.ones(7, 11, dtype=dtype)
        work = c.linear_intensity(rows, 7, 11, dtype.itemsize)
        assert work == counted(lambda x=x, w=w: x @ w)
        assert work.intensity == work.flops / work.bytes


def test_attention_that_stores_its_weights_moves_what_pytorch_moves(c=costs):
    for dtype, sizes in itertools.product(DTYPES, ATTENTION):
        q, k, v = heads(*sizes, dtype)
        n, m, n_heads, n_kv_heads, d_head, d_value, batch = sizes
        work = c.attention_work(
            *(n, m, n_heads, d_head),
            stored=True,
            n_kv_heads=n_kv_heads,
            d_value=d_value,
            batch=batch,
            bytes_per_number=dtype.itemsize,
        )
        assert work == counted(lambda q=q, k=k, v=v: torch.bmm(torch.bmm(q, k.mT).softmax(-1), v))


def test_tiled_attention_moves_what_its_tiles_load_and_store(c=costs):
    for sizes, tile in itertools.product(ATTENTION, (1, 3, 7, 20)):
        q, k, v = heads(*sizes, torch.float64)
        n, m, n_heads, n_kv_heads, d_head, d_value, batch = sizes
        with FlopCounterMode(display=False) as counter:
            out, moved = tiled(q, k, v, tile, n_heads // n_kv_heads)
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
        torch.testing.assert_close(out, wanted, atol=1e-12, rtol=0)
        options = {"n_kv_heads": n_kv_heads, "d_value": d_value, "batch": batch}
        options["bytes_per_number"] = 8
        work = c.attention_work(n, m, n_heads, d_head, stored=False, tile=tile, **options)
        assert work == (counter.get_total_flops(), moved)
        whole = c.attention_work(n, m, n_heads, d_head, stored=False, **options)
        assert whole.bytes == q.nbytes + k.nbytes + v.nbytes + out.nbytes <= work.bytes


def test_storing_the_weights_costs_bytes_and_no_flops(c=costs):
    sizes = {"n_heads": 12, "d_head": 64, "bytes_per_number": 2}
    stored, kept = (c.attention_work(4096, 4096, **sizes, stored=each) for each in (True, False))
    assert stored.flops == kept.flops
    assert stored.bytes - kept.bytes == 4 * 12 * 4096**2 * 2
    machine = c.MACHINES["A100 80GB SXM"]
    assert [machine.limit(*each) for each in (stored, kept)] == ["memory", "compute"]


def test_one_row_waits_for_memory_and_many_for_arithmetic(c=costs):
    intensities = [c.linear_intensity(2**i, 4096, 4096, 2).intensity for i in range(15)]
    assert intensities == sorted(intensities)
    assert intensities[0] < 1  # 2 FLOPs for the two bytes of each weight, and x and y besides
    for machine in c.MACHINES.values():
        limits = [machine.limit(*c.linear_intensity(rows, 4096, 4096, 2)) for rows in (1, 4096)]
        assert limits == ["memory", "compute"]


def test_the_slower_of_two_ceilings_decides(c=costs):
    machine = c.Machine("small", flops=100e9, bandwidth=20e9, memory=8e9)
    assert machine.ridge == 5.0
    table = [  # GFLOPs, GB, seconds, and what they go for
        (1, 1, 0.05, "memory"),
        (4.9, 1, 0.05, "memory"),
        (5, 1, 0.05, "compute"),
        (10, 1, 0.1, "compute"),
        (10, 0, 0.1, "compute"),
        (0, 3, 0.15, "memory"),
        (0, 0, 0.0, "compute"),
    ]
    for flops, moved, seconds, limit in table:
        assert machine.seconds(flops * 1e9, moved * 1e9) == pytest.approx(seconds, rel=1e-12)
        assert machine.limit(flops * 1e9, moved * 1e9) == limit
    heights = [(0, 0), (1, 20e9), (4, 80e9), (5, 100e9), (6, 100e9), (math.inf, 100e9)]
    for intensity, height in heights:
        assert machine.attainable(intensity) == pytest.approx(height, rel=1e-12)


def test_time_is_work_divided_by_the_height_of_the_roof(c=costs):
    for machine in (*c.MACHINES.values(), c.Machine("small", 3e9, 7e9)):
        for factor in (1e-3, 0.5, 0.999, 1.001, 2, 1e3):
            work = c.Work(factor * machine.ridge * 1e6, 1e6)
            time = work.flops / machine.attainable(work.intensity)
            assert machine.seconds(*work) == pytest.approx(time, rel=1e-9)
            assert machine.limit(*work) == ("memory" if factor < 1 else "compute")


def test_published_figures_are_those_of_cores_and_clocks(c=costs):
    """Tensor cores, FMA of each in a cycle, GHz; bits of the bus, MHz, twice a cycle; GB."""
    made_of = {
        "V100 SXM2": (640, 64, 1.53, 4096, 877, 16),
        "A100 80GB SXM": (432, 256, 1.41, 5120, 1593, 80),
        "H100 SXM": (528, 512, 1.83, 5120, 2619, 80),
    }
    assert set(c.MACHINES) == set(made_of)
    for name, (cores, products, clock, bits, memory_clock, memory) in made_of.items():
        machine = c.MACHINES[name]
        assert machine.name == name
        assert machine.flops == pytest.approx(2 * cores * products * clock * 1e9, rel=0.005)
        assert machine.bandwidth == pytest.approx(2 * bits / 8 * memory_clock * 1e6, rel=0.005)
        assert machine.memory == memory * 1e9


def test_work_adds_up_and_is_done_several_times(c=costs):
    a, b = c.Work(7, 2), c.Work(3, 5)
    assert a + b == (10, 7)
    assert 3 * a == a * 3 == (21, 6)
    assert sum([a, b, b], c.Work(0, 0)) == a + 2 * b == (13, 12)
    assert all(isinstance(each, c.Work) for each in (a + b, 3 * a, a * 3))
    assert c.Work(7, 2).intensity == 3.5
    assert c.Work(7, 0).intensity == math.inf


class Clock:
    """A clock that goes on by one tick at each look, and sees how many threads there are."""

    TICK = 2**-10

    def __init__(self):
        self.now, self.threads = 0.0, set()

    def __call__(self):
        self.now += self.TICK
        self.threads.add(torch.get_num_threads())
        return self.now


def measured(c, **options):
    """Measure with a clock of our own and a short array; return machine, clock and operations."""
    clock, module = Clock(), sys.modules[c.Machine.__module__]
    with mock.patch.multiple(module, perf_counter=clock, STREAMED=2**12, SIZES=(3, 5)):
        with Traffic() as traffic:
            machine = c.measure_machine(**options)
    return machine, clock, traffic


def test_what_is_timed_is_what_is_counted(c=costs):
    machine, clock, traffic = measured(c, seconds=0.1)
    assert machine.flops == max(traffic.products) / clock.TICK
    streams = [each for each in traffic.bytes if each >= 2**12]  # products are smaller
    assert machine.bandwidth == pytest.approx(max(streams) / clock.TICK, rel=0.005)
    assert clock.now < 1


def test_as_many_threads_as_were_asked_for_and_then_as_before(c=costs):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        _, clock, _ = measured(c, threads=1, seconds=0.01)
        assert clock.threads == {1}
        assert torch.get_num_threads() == 2
        _, clock, _ = measured(c, seconds=0.01)
        assert clock.threads == {2}
        with mock.patch("torch.mm", side_effect=MemoryError), pytest.raises(MemoryError):
            measured(c, threads=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_this_machine_is_measured():
    before = torch.get_num_threads()
    machine = costs.measure_machine(threads=1, seconds=0.01)
    assert machine.name == "this machine" and machine.memory is None
    assert all(0 < each < math.inf for each in (machine.flops, machine.bandwidth, machine.ridge))
    assert torch.get_num_threads() == before


SMALL = costs.Machine("small", 3e9, 7e9)
REFUSED = {
    "no speed": (lambda: costs.Machine("m", 0, 1), ValueError, "flops must be finite and above 0"),
    "endless bandwidth": (
        lambda: costs.Machine("m", 1, math.inf),
        ValueError,
        "bandwidth must be finite and above 0, got inf",
    ),
    "a truth for a figure": (
        lambda: costs.Machine("m", True, 1),
        TypeError,
        "flops must be a number, got bool",
    ),
    "no memory": (lambda: costs.Machine("m", 1, 1, 0), ValueError, "memory must be finite and"),
    "no name": (lambda: costs.Machine(3, 1, 1), TypeError, "name must be a string, got int"),
    "less than no intensity": (
        lambda: SMALL.attainable(-1),
        ValueError,
        "intensity must be at least 0, got -1",
    ),
    "no number": (
        lambda: SMALL.attainable(math.nan),
        ValueError,
        "intensity must be at least 0, got nan",
    ),
    "less than no FLOPs": (
        lambda: SMALL.seconds(-1, 1),
        ValueError,
        "flops must be finite and at least 0, got -1",
    ),
    "bytes as text": (lambda: SMALL.limit(1, "2"), TypeError, "bytes must be a number, got str"),
    "nothing at all": (lambda: costs.Work(0, 0).intensity, ValueError, "intensity needs FLOPs"),
    "a tuple for work": (
        lambda: costs.Work(1, 2) + (3, 4),
        TypeError,
        "Work must be added to Work, got tuple",
    ),
    "less than no times": (
        lambda: -1 * costs.Work(1, 2),
        ValueError,
        "times must be finite and at least 0, got -1",
    ),
    "no rows": (
        lambda: costs.linear_intensity(0, 3, 5),
        ValueError,
        "rows must be at least 1, got 0",
    ),
    "half a byte": (
        lambda: costs.linear_intensity(1, 3, 5, 0.5),
        TypeError,
        "bytes_per_number must be an integer",
    ),
    "heads that do not fit": (
        lambda: costs.attention_work(3, 3, 4, 5, stored=True, n_kv_heads=3),
        ValueError,
        "n_kv_heads must divide n_heads, got 3 and 4",
    ),
    "a word for stored": (
        lambda: costs.attention_work(3, 3, 4, 5, stored="yes"),
        TypeError,
        "stored must be True or False, got str",
    ),
    "tiles that are stored": (
        lambda: costs.attention_work(3, 3, 4, 5, stored=True, tile=2),
        ValueError,
        "tile is for stored=False, got tile = 2",
    ),
    "an empty tile": (
        lambda: costs.attention_work(3, 3, 4, 5, stored=False, tile=0),
        ValueError,
        "tile must be at least 1, got 0",
    ),
    "no threads": (
        lambda: costs.measure_machine(threads=0),
        ValueError,
        "threads must be from 1 to",
    ),
    "more threads than processors": (
        lambda: costs.measure_machine(threads=10**6),
        ValueError,
        "threads must be from 1 to",
    ),
    "no time": (
        lambda: costs.measure_machine(seconds=0),
        ValueError,
        "seconds must be above 0 and at most 60.0, got 0",
    ),
}


@pytest.mark.untyped
@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def planted(bug, old, new, caught_by):
    return Mutant(bug, "tfbook.costs.machines", old, new, caught_by.__name__)


MUTANTS = [
    planted(
        "computing waits for moving",
        "return max(self._times(flops, bytes))",
        "return sum(self._times(flops, bytes))",
        test_the_slower_of_two_ceilings_decides,
    ),
    planted(
        "bytes for each FLOP at the ridge",
        "return self.flops / self.bandwidth",
        "return self.bandwidth / self.flops",
        test_the_slower_of_two_ceilings_decides,
    ),
    planted(
        "the higher ceiling",
        "float(min(self.flops, intensity * self.bandwidth))",
        "float(max(self.flops, intensity * self.bandwidth))",
        test_time_is_work_divided_by_the_height_of_the_roof,
    ),
    planted(
        "limits exchanged",
        'return "compute" if computing >= moving else "memory"',
        'return "memory" if computing >= moving else "compute"',
        test_one_row_waits_for_memory_and_many_for_arithmetic,
    ),
    planted(
        "a result that is not written",
        "rows * inputs + inputs * outputs + rows * outputs",
        "rows * inputs + inputs * outputs",
        test_a_product_does_and_moves_what_pytorch_does,
    ),
    planted(
        "weights read again for each row",
        "rows * inputs + inputs * outputs + rows * outputs",
        "rows * inputs + rows * inputs * outputs + rows * outputs",
        test_one_row_waits_for_memory_and_many_for_arithmetic,
    ),
    planted(
        "scores and weights written but never read",
        "numbers += 4 * n_heads",
        "numbers += 2 * n_heads",
        test_attention_that_stores_its_weights_moves_what_pytorch_moves,
    ),
    planted(
        "weights of the shared heads only",
        "numbers += 4 * n_heads",
        "numbers += 4 * n_kv_heads",
        test_attention_that_stores_its_weights_moves_what_pytorch_moves,
    ),
    planted(
        "keys read for each head that shares them",
        "readings * n_kv_heads * m * width",
        "readings * n_heads * m * width",
        test_tiled_attention_moves_what_its_tiles_load_and_store,
    ),
    planted(
        "no keys for the last tile",
        "-(-n // tile)",
        "max(1, n // tile)",
        test_tiled_attention_moves_what_its_tiles_load_and_store,
    ),
    planted(
        "a product of attention forgotten",
        "2 * batch * n_heads * n * m * width",
        "2 * batch * n_heads * n * m * d_head",
        test_tiled_attention_moves_what_its_tiles_load_and_store,
    ),
    planted(
        "a figure with sparsity",
        "989.4e12",
        "1978.9e12",
        test_published_figures_are_those_of_cores_and_clocks,
    ),
    planted(
        "the bandwidth of the card with 40 GB",
        "2039e9",
        "1555e9",
        test_published_figures_are_those_of_cores_and_clocks,
    ),
    planted(
        "work that is put behind",
        "    def __add__(self",
        "    def add(self",
        test_work_adds_up_and_is_done_several_times,
    ),
    planted(
        "work that is repeated like a tuple",
        "    __rmul__ = __mul__\n",
        "",
        test_work_adds_up_and_is_done_several_times,
    ),
    planted(
        "an addition is free",
        "return 2 * size**3 /",
        "return size**3 /",
        test_what_is_timed_is_what_is_counted,
    ),
    planted(
        "all of the array counted as copied",
        "return array.nbytes / min(summing, copying)",
        "return array.nbytes / min(summing, copying / 2)",
        test_what_is_timed_is_what_is_counted,
    ),
    planted(
        "the slowest run",
        "return min(times)",
        "return sum(times)",
        test_what_is_timed_is_what_is_counted,
    ),
    planted(
        "threads as they were asked for stay",
        "    finally:\n        torch.set_num_threads(before)",
        "    finally:\n        pass",
        test_as_many_threads_as_were_asked_for_and_then_as_before,
    ),
    planted(
        "threads restored only when all went well",
        "    finally:\n",
        "    except ZeroDivisionError:\n        pass\n    else:\n",
        test_as_many_threads_as_were_asked_for_and_then_as_before,
    ),
    planted(
        "threads that nobody sets",
        "torch.set_num_threads(threads)",
        "pass",
        test_as_many_threads_as_were_asked_for_and_then_as_before,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.bug.replace(" ", "_"))
def test_the_planted_bug_is_caught(mutant):
    sick = fresh.copies("sick_tfbook", ["tfbook.costs"], mutant.edits)
    with pytest.raises((AssertionError, TypeError)):
        globals()[mutant.caught_by](sick)


def test_the_copy_without_a_bug_passes():
    healthy = fresh.copies("healthy_tfbook", ["tfbook.costs"])
    for name in {mutant.caught_by for mutant in MUTANTS}:
        globals()[name](healthy)
