"""What a message costs: a latency, and its bytes over a bandwidth; and what collectives send.

A message of n bytes takes latency + n / bandwidth. A collective over p processes is several
messages, one after another; how many, and of how many bytes, is what tells one algorithm from
another.

Explained in: chapters/17_hardware, section "Many devices".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tfbook._checks import check_choice, check_number

__all__ = ["COLLECTIVES", "LINKS", "Link", "Traffic", "collective_traffic", "crossing_bytes"]


class Traffic(NamedTuple):
    """What one process sends: messages, one after another, and the bytes of all of them.

    Traffics of pieces of work that follow one another add up, ``a + b``.

    Attributes:
        messages: how many.
        bytes: of all messages together.

    Example:
        >>> Traffic(1, 100) + Traffic(2, 50)
        Traffic(messages=3, bytes=150)

    Explained in: chapters/17_hardware, section "Many devices".
    """

    messages: float
    bytes: float

    def __add__(self, other: "Traffic") -> "Traffic":
        """Add messages to messages and bytes to bytes; a tuple would be put behind."""
        if not isinstance(other, Traffic):
            raise TypeError(f"Traffic must be added to Traffic, got {type(other).__name__}")
        return Traffic(self.messages + other.messages, self.bytes + other.bytes)


@dataclass(frozen=True)
class Link:
    """A way between two devices: seconds = messages · latency + bytes / bandwidth.

    Args:
        name: what it is called.
        latency: seconds that an empty message takes.
        bandwidth: bytes a second in one direction.

    Raises:
        TypeError: if the name is no text, or a figure no number.
        ValueError: if the latency is negative, or the bandwidth not positive.

    Example:
        >>> wire = Link("wire", latency=1e-5, bandwidth=1e9)
        >>> round(wire.seconds(Traffic(messages=2, bytes=1e6)), 6)
        0.00102

    Source: [hockney1994communication]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    name: str
    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        """Check name and figures."""
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, got {type(self.name).__name__}")
        check_number("latency", self.latency, 0)
        check_number("bandwidth", self.bandwidth, above=0)

    def seconds(self, traffic: Traffic) -> float:
        """Return how long the messages take, one after another.

        Raises:
            TypeError: if it is no :class:`Traffic`.
        """
        if not isinstance(traffic, Traffic):
            raise TypeError(f"traffic must be a Traffic, got {type(traffic).__name__}")
        return traffic.messages * self.latency + traffic.bytes / self.bandwidth


#: Ways between accelerators with the bandwidths that their maker publishes, for one device and one
#: direction. Latencies are orders of magnitude, not data of a sheet.
LINKS: Mapping[str, Link] = {
    link.name: link
    for link in (
        # Source: [nvidia2021ampere], 600 GB a second of an A100 in both directions together.
        Link("NVLink 3", latency=5e-6, bandwidth=300e9),
        # Source: [nvidia2022hopper], 900 GB a second of an H100 in both directions together.
        Link("NVLink 4", latency=5e-6, bandwidth=450e9),
        # Source: [narayanan2021efficient], eight adapters of 200 Gb a second for eight devices.
        Link("InfiniBand HDR", latency=1e-5, bandwidth=25e9),
    )
}


def _ring(rounds: int):
    """Return the traffic of so many turns of a ring, a p-th of the whole at a time."""
    return lambda size, p: Traffic(rounds * (p - 1), rounds * (p - 1) / p * size)


def _doubling(size: float, p: int) -> Traffic:
    """Return the traffic of log₂ p exchanges of the whole."""
    steps = math.ceil(math.log2(p))
    return Traffic(steps, steps * size)


#: What each collective sends, of a tensor's bytes and the number of processes.
COLLECTIVES = {
    "reduce_scatter": _ring(1),
    "all_gather": _ring(1),
    "all_to_all": _ring(1),
    "all_reduce": _ring(2),
    "all_reduce_doubling": _doubling,
}


def collective_traffic(name: str, size: float, p: int) -> Traffic:
    """Count what each of p processes sends in a collective over a tensor of so many bytes.

    * "reduce_scatter", "all_gather", "all_to_all": p − 1 messages, (p − 1)/p · size bytes;
    * "all_reduce": both of the first, 2(p − 1) messages, 2(p − 1)/p · size bytes, which is the
      fewest there can be;
    * "all_reduce_doubling": ⌈log₂ p⌉ messages, ⌈log₂ p⌉ · size bytes.

    Args:
        name: one of ``COLLECTIVES``.
        size: bytes of the whole tensor: what a process has before it is scattered, or after it
            was gathered.
        p: processes.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for an unknown name, a negative size or no process.

    Example:
        >>> collective_traffic("all_reduce", 1000, 4)
        Traffic(messages=6, bytes=1500.0)

    Source: [patarasuk2009bandwidth]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_choice("name", name, COLLECTIVES)
    check_number("size", size, 0)
    check_number("p", p, 1, 2**31, whole=True)
    return COLLECTIVES[name](size, p)


def crossing_bytes(link: Link, p: int) -> float:
    """Return the size from which on a ring sums up faster than doubling does.

    Both take as long where latency · (2(p − 1) − log₂ p) = n / bandwidth · (log₂ p − 2(p − 1)/p).
    Below, messages cost more than bytes and the few long messages of doubling win.

    Args:
        link: between the processes.
        p: processes, at least 3; with fewer both send the same bytes.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if there are fewer than three.

    Example:
        >>> round(crossing_bytes(Link("wire", latency=1e-5, bandwidth=1e9), 8) / 1000)
        88

    Source: [patarasuk2009bandwidth]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    if not isinstance(link, Link):
        raise TypeError(f"link must be a Link, got {type(link).__name__}")
    check_number("p", p, 3, 2**31, whole=True)
    ring, doubling = (COLLECTIVES[name](1.0, p) for name in ("all_reduce", "all_reduce_doubling"))
    late = link.latency * (ring.messages - doubling.messages)
    return late * link.bandwidth / (doubling.bytes - ring.bytes)
