"""Run an experiment again: `python -m tfbook.experiments NAME`."""

import argparse
import importlib
import inspect
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
    parser.add_argument("--device", help="where to train, of what can train elsewhere: cuda, say")
    parser.add_argument("--folder", type=Path, default=experiments.RESULTS, help="for the results")
    chosen = parser.parse_args()
    if chosen.device is not None:
        for name in chosen.names:
            run = importlib.import_module(f"tfbook.experiments.{name}").run
            if "device" not in inspect.signature(run).parameters:
                parser.error(f"{name} trains on the processor only")
        try:
            torch.empty(1, device=chosen.device)
        except (RuntimeError, AssertionError) as error:
            parser.error(f"no device {chosen.device!r} is here: {str(error).splitlines()[0]}")
    torch.set_num_threads(1)
    for name in chosen.names:
        module = importlib.import_module(f"tfbook.experiments.{name}")
        settings = dict(module.SMOKE) if chosen.smoke else {}
        command = f"python -m tfbook.experiments {name}" + " --smoke" * chosen.smoke
        clock = time.process_time  # one thread: what a busy machine does not lengthen
        if chosen.device is not None:
            settings["device"] = chosen.device
            command += f" --device {chosen.device}"
            clock = time.perf_counter  # the processor waits for the device
        started = clock()
        log, weights = module.run(**settings)
        log["command"] = command
        log["machine"] = {
            # A run that was cut short and taken up again knows better what it took in all.
            "seconds": log.pop("seconds", round(clock() - started)),
            "threads": 1,
            "processor": platform.machine(),
            "torch": torch.__version__.split("+")[0],
        }
        if chosen.device is not None:
            log["machine"]["device"] = _device_name(chosen.device)
        experiments.keep(name, log, weights, folder=chosen.folder)
        print(f"{name}: kept in {chosen.folder}")


def _device_name(device: str) -> str:
    """Return what a reader calls a device: the name of the card, or of its kind."""
    if torch.device(device).type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    return f"the device {device}"


if __name__ == "__main__":
    main()
