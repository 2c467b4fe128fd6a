"""Run benchmarks by name, print their tables and keep the numbers as JSON."""

import argparse
import datetime
import importlib
import json
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent
TOOLS = ("__init__", "__main__", "measure", "rows")
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in TOOLS)
PAGES = ("phone",)  # measure built pages, not code: by name only


def main() -> None:
    """Measure what was asked for, on one thread unless told otherwise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    given = f"any of {', '.join(NAMES)}; without, all but {', '.join(PAGES)}"
    parser.add_argument("names", nargs="*", metavar="name", help=given)
    parser.add_argument("--dry", action="store_true", help="print the table, keep nothing")
    parser.add_argument("--threads", type=int, default=1, help="for what can use several")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(NAMES)
    if unknown:
        parser.error(
            f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}"
        )
    torch.set_num_threads(chosen.threads)
    for name in chosen.names or [name for name in NAMES if name not in PAGES]:
        benchmark = importlib.import_module(f"benchmarks.{name}")
        began = time.perf_counter()
        results = benchmark.run()
        results["run"] = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "command": f"python -m benchmarks {name}{_option(chosen.threads)}",
            "seconds": time.perf_counter() - began,
        }
        print(benchmark.table(results))
        if not chosen.dry:
            path = HERE / "results" / f"{name}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(_rounded(results), indent=1) + "\n")
            print(f"kept in {path.relative_to(HERE.parent)}")


def _option(threads: int) -> str:
    return "" if threads == 1 else f" --threads {threads}"


def _rounded(value: object) -> object:
    """Keep three decimals, more is noise."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
