"""Tools to measure time and memory so that the numbers mean something.

Times are processor times on one thread, taken in rounds: every variant runs once in each round, so
that a slow moment of the machine strikes all of them. What is reported is the median over rounds of
the ratio to the baseline of the same round.
"""

import contextlib
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

MIB = 2**20


def machine() -> dict[str, object]:
    """Describe the machine without naming it."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def time_ratios(
    functions: dict[str, Callable[[], object]],
    baseline: str,
    rounds: int,
    *,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, dict[str, object]]:
    """Time all functions in turn, ``rounds`` times over.

    Args:
        functions: what to time, by name.
        baseline: the name of the one that the others are compared with.
        rounds: how often.
        clock: seconds; the time of all threads of the process, or on several threads
            ``time.perf_counter``.

    Returns:
        For each name its median milliseconds, the median ratio to the baseline's time in the same
        round, and the spread of the middle half of these ratios, from and to.
    """
    times = {name: [] for name in functions}
    for function in functions.values():
        function()  # warm up: allocator, caches, lazy initialisation
    for _ in range(rounds):
        for name, function in functions.items():
            start = clock()
            function()
            times[name].append(clock() - start)
    found = {}
    for name, taken in times.items():
        ratios = sorted(mine / other for mine, other in zip(taken, times[baseline], strict=True))
        quarter = len(ratios) // 4
        found[name] = {
            "ms": 1e3 * statistics.median(taken),
            "ratio": statistics.median(ratios),
            "spread": [ratios[quarter], ratios[-1 - quarter]],
        }
    return found


def peak_memory(function: Callable[[], object]) -> int:
    """Return the most bytes that were allocated at once while the function ran.

    Counted from the profiler's allocation events on the CPU, so memory that existed before does not
    count and the operating system's caching does not disturb.
    """
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = function()
        del result
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    current = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the p with which values grow as sizes^p, by least squares in the logarithms.

    None where there are fewer than two sizes, or a value that is not above 0.
    """
    if len(sizes) < 2 or min(values) <= 0:
        return None
    x, y = ([math.log(each) for each in numbers] for numbers in (sizes, values))
    return statistics.linear_regression(x, y).slope


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the profiler's C++ part writes to standard error at each start and stop."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
