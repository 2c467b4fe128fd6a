"""Clock, sizes and checks for measurements on an accelerator.

A time is the median over repetitions, each between two events on the device's own clock, after a
warm-up that also compiles. Inputs are random, since products of zeros draw less power and run at a
higher clock. Before anything is timed its result is compared with one in higher precision; what is
wrong is reported as wrong and not timed.
"""

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import machine

Row = dict[str, object]


@dataclass(frozen=True)
class Bench:
    """Where to measure, and how large.

    Attributes:
        device: "cuda" or "cpu".
        tiny: sizes that a processor passes in seconds.
        warm: runs before the clock starts.
        runs: timed runs.
    """

    device: str
    tiny: bool
    warm: int = 5
    runs: int = 20

    def draw(self, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
        """Draw numbers of a normal distribution on the device."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(shape, generator=generator, device=self.device).to(dtype)

    def time(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the median milliseconds of a call, and the fastest and slowest quarter's edge."""
        for _ in range(self.warm):
            run()
        taken = sorted(self._once(run) for _ in range(self.runs))
        quarter = len(taken) // 4
        spread = {"low": taken[quarter], "high": taken[-1 - quarter]}
        return {"ms": statistics.median(taken)} | spread

    def _once(self, run: Callable[[], object]) -> float:
        if self.device == "cpu":
            start = time.perf_counter()
            run()
            return 1e3 * (time.perf_counter() - start)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def peak_bytes(self, run: Callable[[], object]) -> int | None:
        """Return the most bytes that were held at once on the device beyond those of before."""
        if self.device == "cpu":
            return None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def measured(what: Row, run: Callable[[], Row]) -> Row:
    """Return a row with what was measured, or with the reason why nothing was.

    A kernel that a device lacks, a format it has not, a matrix that does not fit, a compiler that
    gives up: all of these are results, and none may end the run.
    """
    try:
        return what | run()
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        return what | {"not measured": text.splitlines()[0][:200]}


def require_close(found: Tensor, right: Tensor, most: float) -> float:
    """Return the largest difference by the largest number, if it is at most ``most``.

    Raises:
        ValueError: if it is larger, or no number.
    """
    difference = (found.double() - right.double()).abs().max() / right.double().abs().max()
    if not difference <= most:
        raise ValueError(f"wrong by {float(difference):.1e} of the largest number")
    return float(difference)


def describe(device: str) -> Row:
    """Describe the machine and the versions, without naming it."""
    found = machine()
    if device == "cuda":
        own = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": own.name,
            "gpu memory": own.total_memory,
            "gpu processors": own.multi_processor_count,
            "compute capability": f"{own.major}.{own.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": _driver(),
        }
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = None
    return found


def _driver() -> str | None:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.strip()
    except OSError:
        return None
