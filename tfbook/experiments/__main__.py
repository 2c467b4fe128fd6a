"""Run an experiment again: `python -m tfbook.experiments NAME`."""

import argparse
import importlib
import platform
import time
from pathlib import Path

import torch

from tfbook import experiments


def main() -> None:
    """Run the named experiments on one thread and keep their results."""
    parser = argparse.ArgumentParser(
        prog="python -m tfbook.experiments",
        description="Train what the chapters show; the result replaces the shipped one.",
    )
    parser.add_argument("names", nargs="+", choices=experiments.names(), metavar="NAME",
                        help=f"any of {', '.join(experiments.names())}")  # fmt: skip
    parser.add_argument("--smoke", action="store_true", help="a run of seconds, to see it work")
    parser.add_argument("--folder", type=Path, default=experiments.RESULTS, help="for the results")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.names:
        module = importlib.import_module(f"tfbook.experiments.{name}")
        started = time.process_time()  # one thread: what a busy machine does not lengthen
        log, weights = module.run(**(module.SMOKE if chosen.smoke else {}))
        log["command"] = f"python -m tfbook.experiments {name}" + " --smoke" * chosen.smoke
        log["machine"] = {
            # A run that was cut short and taken up again knows better what it took in all.
            "seconds": log.pop("seconds", round(time.process_time() - started)),
            "threads": 1,
            "processor": platform.machine(),
            "torch": torch.__version__.split("+")[0],
        }
        experiments.keep(name, log, weights, folder=chosen.folder)
        print(f"{name}: kept in {chosen.folder}")


if __name__ == "__main__":
    main()
