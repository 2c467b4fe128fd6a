"""Measure an accelerator and write what was found as JSON."""

import argparse
import datetime
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu import attention, ceilings, steps
from benchmarks.gpu.tools import Bench, Row, describe

PARTS = ("products", "copies", "few bits", "attention", "decoding", "training")


def measure(
    bench: Bench, parts: tuple[str, ...] = PARTS, keep: Callable[[Row], None] = lambda found: None
) -> Row:
    """Return the rows of each part; the ceilings come first, for shares are of them.

    Args:
        bench: where, and how large.
        parts: what is asked for beside the ceilings.
        keep: called with all that is there after each part, so that a run cut short is not lost.
    """
    found: Row = {"products": ceilings.products(bench), "copies": ceilings.copies(bench)}
    keep(found)
    rates = {}
    for row in found["products"]:
        rates[row["format"]] = max(rates.get(row["format"], 0.0), 1e12 * row.get("TFLOP/s", 0.0))
    bandwidth = 1e9 * max(row.get("GB/s", 0.0) for row in found["copies"])
    peak = rates.get("float32" if bench.device == "cpu" else "bfloat16")
    others = {
        "few bits": lambda: ceilings.few_bits(bench),
        "attention": lambda: attention.lengths(bench, peak, bandwidth),
        "decoding": lambda: steps.decoding(bench),
        "training": lambda: steps.training(
            bench, rates, lambda rows: keep(found | {"training": rows})
        ),
    }
    for name, run in others.items():
        if name in parts:
            found[name] = run()
            keep(found)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="a file for the JSON; printed when omitted")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, as on a processor")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    asked = parser.parse_args(arguments)
    parts = tuple(asked.parts.split(","))
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device is here; --device cpu tries the harness at tiny sizes")
    tiny = asked.tiny or asked.device == "cpu"
    bench = Bench(asked.device, tiny, *((1, 3) if tiny else ()))
    began = datetime.datetime.now(datetime.UTC)
    found = {
        "date": began.date().isoformat(),
        "command": " ".join(["python -m benchmarks.gpu", *(arguments or sys.argv[1:])]),
        "machine": describe(asked.device),
        "tiny": tiny,
    }

    def keep(rows: Row) -> None:
        taken = (datetime.datetime.now(datetime.UTC) - began).total_seconds()
        if asked.out is not None:
            part = asked.out.with_name(f".{asked.out.name}.{os.getpid()}")
            text = json.dumps(found | rows | {"seconds": taken}, indent=1) + "\n"
            part.write_text(text, encoding="utf-8")
            os.replace(part, asked.out)

    rows = measure(bench, parts, keep)
    if asked.out is None:
        print(json.dumps(found | rows, indent=1))


if __name__ == "__main__":
    main()
