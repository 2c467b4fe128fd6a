"""What a machine can do in a second, and which of its two ceilings a piece of work meets first.

A machine computes so many FLOPs a second and moves so many bytes a second between its memory and
its chip. Work that does few FLOPs for each byte waits for the memory, work that does many waits for
the arithmetic. This is the roofline.

Explained in: chapters/06_complexity, section "Two ceilings".
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch

from tfbook._checks import check_bool, check_number
from tfbook.costs.caches import check_sizes

__all__ = [
    "MACHINES",
    "Machine",
    "Work",
    "attention_work",
    "linear_intensity",
    "measure_machine",
]

SIZES = (256, 512, 1024)  # of the square matrices whose product is timed
STREAMED = 2**28  # bytes of the array that is streamed, more than most caches hold
RUNS = 3  # at least, the best of which counts
LONGEST = 60.0  # seconds that a measurement may be asked to take


class Work(NamedTuple):
    """What a computation does: FLOPs, and bytes that pass between memory and chip.

    Pieces of work that follow one another add up, ``a + b`` or ``sum(works, Work(0, 0))``, and L
    times the same piece is ``L * a``.

    Attributes:
        flops: 2 for each multiplication with its addition.
        bytes: read and written.

    Example:
        >>> layer = Work(flops=100, bytes=20) + Work(flops=50, bytes=10)
        >>> 2 * layer, layer.intensity
        (Work(flops=300, bytes=60), 5.0)

    Source: [williams2009roofline]
    Explained in: chapters/06_complexity, section "Two ceilings".
    """

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs for each byte, flops / bytes; infinite where nothing is moved.

        Raises:
            ValueError: if nothing is computed and nothing moved.
        """
        _check_work(self.flops, self.bytes)
        if not self.flops and not self.bytes:
            raise ValueError("intensity needs FLOPs or bytes, got 0 of both")
        return self.flops / self.bytes if self.bytes else math.inf

    def __add__(self, other: "Work") -> "Work":
        """Add FLOPs to FLOPs and bytes to bytes; a tuple would be put behind."""
        if not isinstance(other, Work):
            raise TypeError(f"Work must be added to Work, got {type(other).__name__}")
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: float) -> "Work":
        """Do the same work several times; a tuple would be repeated."""
        check_number("times", times, 0)
        return Work(times * self.flops, times * self.bytes)

    __rmul__ = __mul__


@dataclass(frozen=True)
class Machine:
    """A processor with its memory: two speeds, of which the slower one decides.

    The roofline is min(flops, intensity · bandwidth), the FLOPs a second that can be had at most
    from work of that intensity. Below the ridge, flops / bandwidth, memory is the limit.

    Args:
        name: what it is called.
        flops: peak FLOPs a second.
        bandwidth: bytes a second between memory and chip.
        memory: bytes of memory, if known.

    Raises:
        TypeError: if the name is no text, or a figure no number.
        ValueError: if a figure is not finite and positive.

    Example:
        >>> machine = Machine("small", flops=100e9, bandwidth=20e9)
        >>> machine.ridge, machine.attainable(2), machine.limit(flops=1e9, bytes=1e9)
        (5.0, 40000000000.0, 'memory')

    Source: [williams2009roofline]
    Explained in: chapters/06_complexity, section "Two ceilings".
    """

    name: str
    flops: float
    bandwidth: float
    memory: float | None = None

    def __post_init__(self) -> None:
        """Check name and figures."""
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, got {type(self.name).__name__}")
        check_number("flops", self.flops, above=0)
        check_number("bandwidth", self.bandwidth, above=0)
        if self.memory is not None:
            check_number("memory", self.memory, above=0)

    @property
    def ridge(self) -> float:
        """FLOPs for each byte at which the two ceilings meet: flops / bandwidth."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Return the most FLOPs a second at this many FLOPs for each byte.

        min(flops, intensity · bandwidth).

        Raises:
            TypeError: if the intensity is not a number.
            ValueError: if it is negative.
        """
        check_number("intensity", intensity, 0, finite=False)
        return float(min(self.flops, intensity * self.bandwidth))

    def seconds(self, flops: float, bytes: float) -> float:
        """Return the least time for this work: max(flops / self.flops, bytes / bandwidth).

        It takes for granted that computing and moving overlap perfectly and that both run at their
        peak. Real work takes longer, at most twice as long if they run at their peak in turns.

        Raises:
            TypeError: if one is not a number.
            ValueError: if one is negative or not finite.
        """
        return max(self._times(flops, bytes))

    def limit(self, flops: float, bytes: float) -> str:
        """Tell what this work waits for: "compute" or "memory"; "compute" if both take as long.

        Raises:
            TypeError: if one is not a number.
            ValueError: if one is negative or not finite.
        """
        computing, moving = self._times(flops, bytes)
        return "compute" if computing >= moving else "memory"

    def _times(self, flops: float, bytes: float) -> tuple[float, float]:
        _check_work(flops, bytes)
        return flops / self.flops, bytes / self.bandwidth


#: Accelerators with the figures their maker publishes: dense products of 16-bit numbers on the
#: tensor cores, without sparsity, which would double them. A GB of memory is 10⁹ bytes here.
MACHINES: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        # Source: [nvidia2017volta], float16; later sold with 32 GB too.
        Machine("V100 SXM2", flops=125e12, bandwidth=900e9, memory=16e9),
        # Source: [nvidia2021ampere], bfloat16 or float16.
        Machine("A100 80GB SXM", flops=312e12, bandwidth=2039e9, memory=80e9),
        # Source: [nvidia2022hopper], bfloat16 or float16.
        Machine("H100 SXM", flops=989.4e12, bandwidth=3.35e12, memory=80e9),
    )
}


def linear_intensity(rows: int, inputs: int, outputs: int, bytes_per_number: int = 4) -> Work:
    """Count what the product x W does, x (rows, inputs) and W (inputs, outputs).

    FLOPs: 2 · rows · inputs · outputs. Bytes: bytes_per_number · (rows · inputs + inputs · outputs
    + rows · outputs), each number moved once. With one row, as in decoding, the weights are most of
    the bytes, and the intensity stays below 2 / bytes_per_number whatever the sizes. With many
    rows, as in reading a prompt, each weight serves all of them, and the intensity grows towards
    2 / bytes_per_number · inputs · outputs / (inputs + outputs).

    Args:
        rows: tokens that pass at once, those of all sequences together.
        inputs: numbers of a row of x.
        outputs: numbers of a row of the result.
        bytes_per_number: 2 for half precision, 4 for single.

    Returns:
        The work; its ``intensity`` is FLOPs for each byte.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if one is below 1.

    Example:
        >>> [round(linear_intensity(rows, 4096, 4096, 2).intensity) for rows in (1, 4096)]
        [1, 1365]

    Source: [williams2009roofline]
    Explained in: chapters/06_complexity, section "Two ceilings".
    """
    check_sizes(rows=rows, inputs=inputs, outputs=outputs, bytes_per_number=bytes_per_number)
    numbers = rows * inputs + inputs * outputs + rows * outputs
    return Work(2 * rows * inputs * outputs, bytes_per_number * numbers)


def attention_work(
    n: int,
    m: int,
    n_heads: int,
    d_head: int,
    *,
    stored: bool,
    tile: int | None = None,
    n_kv_heads: int | None = None,
    d_value: int | None = None,
    batch: int = 1,
    bytes_per_number: int = 4,
) -> Work:
    """Count what scores, softmax and mix do: n queries, m keys, the projections left out.

    FLOPs, the two products: 2 · H · n · m · (d_head + d_value), however it is computed; the softmax
    is left out as everywhere here. Bytes: queries read and results written, H · n · (d_head +
    d_value) numbers, keys and values read, n_kv_heads · m · (d_head + d_value) numbers. ``stored``
    adds 4 · H · n · m: the scores are written, read by the softmax, the weights are written, and
    read by the mix. A mask, a scale or dropout by operations of their own would add more. Tiled,
    none of these leaves the chip, but keys and values are read again for each tile of queries.

    Args:
        n: queries.
        m: keys.
        n_heads: H.
        d_head: size of queries and keys.
        stored: whether scores and weights are written to memory, or stay on the chip.
        tile: queries the chip holds at a time, so that keys and values are read ⌈n / tile⌉ times;
            all of them when omitted, which gives the fewest bytes there can be.
        n_kv_heads: heads of keys and values, which those that share them read together; H when
            omitted.
        d_value: size of a value; d_head when omitted.
        batch: sequences.
        bytes_per_number: 2 for half precision, 4 for single.

    Raises:
        TypeError: if a number is not an integer, or ``stored`` not True or False.
        ValueError: if one is below 1, the heads do not fit, or a tile is given with ``stored``.

    Example:
        >>> sizes = {"n_heads": 12, "d_head": 64, "bytes_per_number": 2}
        >>> [attention_work(1024, 1024, **sizes, stored=s).bytes / 2**20 for s in (True, False)]
        [102.0, 6.0]

    Source: [dao2022flashattention]
    Explained in: chapters/06_complexity, section "Two ceilings".
    """
    d_value = d_head if d_value is None else d_value
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    check_sizes(n=n, m=m, n_heads=n_heads, d_head=d_head, n_kv_heads=n_kv_heads, d_value=d_value)
    check_sizes(batch=batch, bytes_per_number=bytes_per_number)
    check_bool("stored", stored)
    if n_heads % n_kv_heads:
        raise ValueError(f"n_kv_heads must divide n_heads, got {n_kv_heads} and {n_heads}")
    if tile is not None:
        check_sizes(tile=tile)
        if stored:
            raise ValueError(f"tile is for stored=False, got tile = {tile} with stored=True")
    readings = 1 if tile is None else -(-n // tile)
    width = d_head + d_value
    numbers = n_heads * n * width + readings * n_kv_heads * m * width
    numbers += 4 * n_heads * n * m * stored
    return Work(2 * batch * n_heads * n * m * width, batch * bytes_per_number * numbers)


def measure_machine(*, threads: int | None = None, seconds: float = 1.0) -> Machine:
    """Measure the processor that runs this, in about a second: float32 products, and streaming.

    FLOPs a second: the best of several products of square matrices of a few sizes, 2 · size³ each.
    Bytes a second: the best of several passes over an array of 256 MiB, either read and summed up,
    or one half copied to the other; both move each of its bytes once, the copy reads half and
    writes half. Some processors also read a place before they write to it, which is not counted.
    What is measured is what can be had now; other programs take their share.

    Args:
        threads: to compute with, when omitted as many as PyTorch is set to; afterwards it is set to
            as many as before.
        seconds: to measure for, about; the few runs that there must be may take longer.

    Returns:
        A machine called "this machine", whose memory is not measured.

    Raises:
        TypeError: if a number is none, or ``threads`` not an integer.
        ValueError: if there are fewer processors than threads, or ``seconds`` is not above 0.

    Example:
        >>> machine = measure_machine(threads=1, seconds=0.1)
        >>> machine.name, machine.ridge > 0
        ('this machine', True)

    Source: [williams2009roofline]
    Explained in: chapters/06_complexity, section "Two ceilings".
    """
    before = torch.get_num_threads()
    if threads is not None:
        check_number("threads", threads, 1, os.cpu_count() or 1, whole=True)
    check_number("seconds", seconds, high=LONGEST, above=0)
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.no_grad():
            flops = max(_product_rate(size, seconds / 2 / len(SIZES)) for size in SIZES)
            bandwidth = _streaming_rate(seconds / 2)
    finally:
        torch.set_num_threads(before)
    return Machine("this machine", flops, bandwidth)


def _product_rate(size: int, seconds: float) -> float:
    """Return the FLOPs a second of a product of two square matrices."""
    a = torch.full((size, size), 0.5, dtype=torch.float32, device="cpu")
    product = torch.empty_like(a)
    return 2 * size**3 / _least_seconds(lambda: torch.mm(a, a, out=product), seconds)


def _streaming_rate(seconds: float) -> float:
    """Return the bytes a second of summing up a large array, or copying half of it if faster."""
    array = torch.ones(STREAMED // 4, dtype=torch.float32, device="cpu")
    source, target = array.chunk(2)
    summing = _least_seconds(array.sum, seconds / 2)  # reads all
    copying = _least_seconds(lambda: target.copy_(source), seconds / 2)  # reads half, writes half
    return array.nbytes / min(summing, copying)


def _least_seconds(run: Callable[[], object], seconds: float) -> float:
    """Return the time of the fastest run, after one that is not timed."""
    run()
    times = []
    end = perf_counter() + seconds
    while len(times) < RUNS or perf_counter() < end:
        begun = perf_counter()
        run()
        times.append(perf_counter() - begun)
    return min(times)


def _check_work(flops: object, bytes: object) -> None:
    check_number("flops", flops, 0)
    check_number("bytes", bytes, 0)
