"""roofline: where a linear layer stands below the two ceilings of a machine, by its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfbook.costs import MACHINES, Machine, linear_intensity
from tfbook.teaching.explorables._base import Explorable, number, one_of, whole, wrapped
from tfbook.teaching.explorables._sizes import BYTES

TITLE = "Waiting for memory, or for arithmetic"
MOST_ROWS = 4096
BOUNDS = {"memory": "memory", "compute": "arithmetic"}
# FLOPs a second of dense products in other formats than the 16 bits of `MACHINES`; float32 without
# tensor cores. A V100 has none for 8 bits, and multiplies such numbers as those of 16.
# Source: [nvidia2017volta], [nvidia2021ampere], [nvidia2022hopper].
PEAKS = {
    "V100 SXM2": {"float32": 15.7e12},
    "A100 80GB SXM": {"float32": 19.5e12, "int8": 624e12},
    "H100 SXM": {"float32": 66.9e12, "int8": 1978.9e12},
}
WIDTHS = [64, 128, 256, 384, 576, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 11_008, 12_288]
STOPS = {
    "rows": [1, *(size for p in range(1, 12) for size in (2**p, 3 * 2 ** (p - 1))), MOST_ROWS],
    "d_in": [*WIDTHS, 16_384],
    "d_out": [*WIDTHS, 16_384, 32_000, 49_152],
}


def roofline(
    machines: Sequence | Mapping | None = None,
    *,
    machine: str | None = None,
    rows: int = 1,
    d_in: int = 4096,
    d_out: int = 4096,
    precision: str = "float16",
) -> Explorable:
    r"""Return a figure of a linear layer below the roof of a machine.

    A layer of $r$ rows takes $F = 2 r d_\text{in} d_\text{out}$ FLOPs and moves
    $M = s (d_\text{in} d_\text{out} + r d_\text{in} + r d_\text{out})$ bytes, $s$ for each number.
    With FLOPs and bytes at the machine's highest rates, one while the other goes on, it needs at
    least $\max(F / \text{flops}, M / \text{bandwidth})$ seconds. In logarithms of $F / M$ and FLOPs
    a second the bound is a roof: a slope where the layer waits for memory, and a level where it
    waits for arithmetic.

    Args:
        machines: 1 to 12 of :class:`tfbook.costs.Machine`, or (name, FLOPs a second, bytes a
            second); those of `tfbook.costs.MACHINES` when omitted.
        machine: Name of the one that is shown; the first when omitted.
        rows: Tokens that pass at once, 1 to 4096.
        d_in: Size of a row that comes in, 1 to 65 536.
        d_out: Size of a row that goes out, 1 to 65 536.
        precision: "float32", "float16" or "int8", for the bytes of a number. Machines of
            `tfbook.costs.MACHINES` have a peak for each; other machines keep the rates given.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [williams2009roofline].
    Explained in: chapters/06_complexity, section "Two ceilings".
    """
    table = _checked(MACHINES if machines is None else machines)
    checks = {
        "machine": one_of("machine", *table),
        "rows": whole("rows", 1, MOST_ROWS),
        "d_in": whole("d_in", 1, 65_536),
        "d_out": whole("d_out", 1, 65_536),
        "precision": one_of("precision", *BYTES),
    }
    given = {
        "machine": next(iter(table)) if machine is None else machine, "rows": rows, "d_in": d_in,
        "d_out": d_out, "precision": precision,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}

    def machine_of(now: dict) -> Machine:
        return _in_format(table[now["machine"]], now["precision"])

    def results(now: dict) -> dict:
        return _results(now, machine_of(now))

    def text(now: dict) -> str:
        found, chosen = results(now), machine_of(now)
        reached = "however many rows there are, it waits for memory"
        if found["ridge_rows"] is not None:
            reached = f"from {found['ridge_rows']:,.1f} rows on it waits for arithmetic"
        return wrapped(f"""{TITLE}

        {now["machine"]} does at most {chosen.flops / 1e12:,.4g} TFLOP a second in
        {now["precision"]} and moves at most {chosen.bandwidth / 1e9:,.4g} GB a second:
        {found["ridge"]:,.3g} FLOPs a byte. A linear layer from {now["d_in"]:,} to {now["d_out"]:,}
        numbers with {now["rows"]:,} row{"s" * (now["rows"] > 1)} takes
        {found["flops"] / 1e9:,.4g} GFLOP and moves {found["bytes"] / 1e6:,.4g} MB:
        {found["intensity"]:,.3g} FLOPs a byte. It waits for {BOUNDS[found["bound"]]} and needs at
        least {found["seconds"] * 1e6:,.3g} microseconds; {reached}.

        In the page you choose the machine and the layer and move the number of rows, and a point
        climbs the slope of the roof until it reaches the level.""")

    data = {
        "title": TITLE, "bytes": BYTES, "stops": STOPS,
        "bounds": BOUNDS,
        "machines": {
            name: {
                "flops": {form: _in_format(each, form).flops for form in BYTES},
                "bandwidth": each.bandwidth,
            }
            for name, each in table.items()
        },
    }  # fmt: skip
    return Explorable("roofline", data=data, state=state, checks=checks, results=results, text=text)


def _in_format(machine: Machine, precision: str) -> Machine:
    """Return a machine with the peak that its maker publishes for a format, where one is known."""
    if MACHINES.get(machine.name) != machine:
        return machine
    return replace(machine, flops=PEAKS[machine.name].get(precision, machine.flops))


def _checked(machines: Sequence | Mapping) -> dict[str, Machine]:
    """Return the machines by their names."""
    rows = list(machines.values()) if isinstance(machines, Mapping) else machines
    if isinstance(rows, str) or not isinstance(rows, Sequence):
        raise TypeError(f"machines must be a list of machines, got {type(rows).__name__}")
    if not 1 <= len(rows) <= 12:
        raise ValueError(f"machines must be 1 to 12, got {len(rows)}")
    table: dict[str, Machine] = {}
    for i, row in enumerate(rows):
        if not isinstance(row, Machine):
            row = _machine(f"machines[{i}]", row)
        if row.name in table:
            raise ValueError(f"machines must have different names, got {row.name!r} twice")
        table[row.name] = row
    return table


def _machine(called: str, row: object) -> Machine:
    """Return a machine of its name and its two rates."""
    if not isinstance(row, (tuple, list)):
        raise TypeError(f"{called} must be (name, flops, bandwidth), got {type(row).__name__}")
    if len(row) != 3:
        raise ValueError(f"{called} must be (name, flops, bandwidth), got {len(row)} items")
    name, flops, bandwidth = row
    if not isinstance(name, str) or not name.strip():
        raise TypeError(f"{called} name must be a text, got {name!r}")
    rates = (number(f"{called} {key}", 1e6, 1e21) for key in ("flops", "bandwidth"))
    return Machine(name, *(check(x) for check, x in zip(rates, (flops, bandwidth), strict=True)))


def _results(now: dict, machine: Machine) -> dict:
    d_in, d_out, size = now["d_in"], now["d_out"], BYTES[now["precision"]]
    work = linear_intensity(now["rows"], d_in, d_out, size)
    seconds = machine.seconds(*work)
    # FLOPs a byte grow with the rows towards 2 d_in d_out / (size (d_in + d_out)).
    left = 2 * d_in * d_out - machine.ridge * size * (d_in + d_out)
    return {
        "flops": work.flops,
        "bytes": work.bytes,
        "intensity": work.intensity,
        "ridge": machine.ridge,
        "ridge_rows": machine.ridge * size * d_in * d_out / left if left > 0 else None,
        "bound": machine.limit(*work),
        "seconds": seconds,
        "rate": work.flops / seconds,
        "used": work.flops / seconds / machine.flops,
    }
