"""What the benchmarks share: ratios of one round, bytes at once, exponents, targets, tables."""

import itertools
import platform

import pytest
import torch

from benchmarks import rows
from benchmarks.measure import MIB, fit_exponent, machine, peak_memory, time_ratios


def ticking(*steps):
    """Return a clock that moves on by `steps` in turn, and calls that take one of them each."""
    now = itertools.accumulate(steps, initial=0.0)
    return lambda: next(now)


def test_ratios_are_medians_of_rounds_and_the_warm_up_does_not_count():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in ("ours", "theirs")}
    # Each call reads the clock twice; between two calls it stands still. The third round is slow.
    taken = [(3.0, 1.0), (4.0, 2.0), (50.0, 20.0)]
    steps = [step for ours, theirs in taken for step in (ours, 0.0, theirs, 0.0)]
    found = time_ratios(functions, "theirs", 3, clock=ticking(*steps))
    assert calls == ["ours", "theirs"] * 4  # once to warm up
    assert found["theirs"] == {"ms": 2000.0, "ratio": 1.0, "spread": [1.0, 1.0]}
    # Of 3, 2 and 2.5; not of the medians, 2.
    assert found["ours"] == {"ms": 4000.0, "ratio": 2.5, "spread": [2.0, 3.0]}


def test_memory_is_what_is_alive_at_once():
    numbers = MIB // 4  # a MiB of float32

    def one_after_the_other():
        for _ in range(4):
            torch.empty(numbers)

    def all_together():
        return [torch.empty(numbers) for _ in range(4)]

    assert peak_memory(one_after_the_other) == pytest.approx(MIB, rel=0.01)
    assert peak_memory(all_together) == pytest.approx(4 * MIB, rel=0.01)
    before = torch.empty(8 * numbers)
    assert peak_memory(lambda: before.add_(1)) < MIB / 100  # existed, so it does not count


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_exponent_of_a_power(power):
    sizes = [512, 1024, 8192]
    assert fit_exponent(sizes, [3.5 * n**power for n in sizes]) == pytest.approx(power)


def test_exponent_of_a_sum_lies_between_and_of_nothing_is_none():
    sizes = [16, 32, 64]
    assert 1 < fit_exponent(sizes, [n * n + 20 * n for n in sizes]) < 2
    assert fit_exponent([16], [3.0]) is None
    assert fit_exponent(sizes, [1.0, 0.0, 2.0]) is None


def test_rows_time_both_ways_and_take_off_the_results():
    def plain(q, k, v):
        return (q @ k.mT).softmax(-1) @ v

    def frugal(q, k, v):
        return q + k + v

    n = 128
    found = rows.measure_rows(n, {"plain": plain, "frugal": frugal}, "plain", rounds=2)
    assert [row["variant"] for row in found] == ["plain", "frugal"]
    first, second = found
    assert first["forward ratio"] == first["training ratio"] == 1.0
    assert all(row[f"{what} ms"] > 0 for row in found for what in ("forward", "training"))
    weights = rows.HEADS * n * n * 4 / MIB  # one matrix of scores
    given = rows.HEADS * n * rows.SIZE * 4 / MIB  # queries, as large as the output
    # Scores and weights at once, before there is the output that is taken off.
    assert first["forward extra MiB"] == pytest.approx(2 * weights - given, rel=0.05)
    assert second["forward extra MiB"] == pytest.approx(given, rel=0.05)  # q + k
    assert second["training extra MiB"] <= 0 < first["training extra MiB"]


def test_targets_are_met_or_missed_and_the_table_says_so():
    row = {"variant": "tiles", "forward ms": 12.34, "forward ratio": 1.25, "extra": None}
    limits = {"forward ratio": 1.2, "forward ms": 13.0, "extra": 1.0}
    told = rows.compare(row, lambda measure: limits.get(measure))
    assert told["targets"] == {
        "forward ratio": {"limit": 1.2, "met": False},
        "forward ms": {"limit": 13.0, "met": True},
    }
    columns = [
        ("variant", "variant", "<8"),
        ("ms", "forward ms", ">10"),
        ("ratio", "forward ratio", ">10"),
        ("extra", "extra", ">8"),
    ]
    assert rows.table("Of a test", [told], columns).splitlines() == [
        "Of a test",
        "variant          ms      ratio    extra",
        "tiles     12.3 ≤13  1.25 ≤1.2!",
    ]


def test_the_machine_is_described_without_its_name():
    described = machine()
    assert described["torch"] == torch.__version__ and described["cores"] >= 1
    assert platform.node() not in described.values()
