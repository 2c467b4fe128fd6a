"""Serving a model from the command line: an HTTP server, until it is told to stop.

Explained in: chapters/17_hardware, section "Serving many".
"""

import argparse
import errno
import os
import signal
import threading

import torch

from tfbook import pretrained
from tfbook._checks import check_number
from tfbook.commands.arguments import languages
from tfbook.commands.training import say
from tfbook.models import DecoderOnly
from tfbook.practice import holds_tuning, load_tuned
from tfbook.pretrained import Pretrained
from tfbook.serving import Endpoint, Engine, PagedCache, Server
from tfbook.training import choose_device

__all__ = ["serve"]

PAGE = 16  # tokens


def serve(chosen: argparse.Namespace) -> None:
    """Answer completions over HTTP until SIGINT or SIGTERM, then finish what is under way.

    Raises:
        ValueError: for an unknown model, one that does not write, or a number out of range.
        OSError: if the address is taken, or a file cannot be read.
        KeyboardInterrupt: after SIGINT, once it has ended.

    Explained in: chapters/17_hardware, section "Serving many".
    """
    if chosen.threads is not None:
        check_number("threads", chosen.threads, 1, 1024, whole=True)
        torch.set_num_threads(chosen.threads)
    check_number("grace", chosen.grace, 0, 3600)
    check_number("cache", chosen.cache, 1, 2**20, whole=True)
    found = _load(chosen.model, chosen.weights)
    found.model.to(choose_device(chosen.device))
    pages = _pages(found.model, chosen.cache * 2**20, chosen.slots)
    sizes = {"n_pages": pages, "page_size": PAGE, "max_running": chosen.slots}
    server = Server(found.model, **sizes, invariant=chosen.invariant)
    with Engine(server, queue=chosen.queue) as engine:
        try:
            endpoint = Endpoint(found, engine, host=chosen.host, port=chosen.port)
        except OSError as error:
            raise _explained(error, chosen) from None
        stop = threading.Event()
        before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
        try:
            with endpoint:
                say(f"{found.name} answers at {endpoint.url}; Ctrl-C ends it")
                try:
                    while not stop.wait(1):  # in turns, for Windows lets nothing in meanwhile
                        pass
                finally:
                    if engine.under_way:
                        say(f"finishing {engine.under_way} under way, {chosen.grace:g} s at most")
                    endpoint.close(chosen.grace)
        finally:
            signal.signal(signal.SIGTERM, before)


def _load(name: str, weights: str) -> Pretrained:
    """Return a model that writes, by its name or its folder."""
    if name in languages():
        found = pretrained.load(name, weights=weights)
    elif not os.path.isdir(name):
        raise ValueError(
            f"model must be a run's folder or one of {', '.join(languages())}, got {name!r}"
        )
    elif weights != "float32":
        raise ValueError(f"weights {weights!r} are for smollm2-135m, got the folder {name!r}")
    else:
        found = load_tuned(name).found if holds_tuning(name) else pretrained.load_directory(name)
    if not isinstance(found.model, DecoderOnly):
        raise ValueError(f"{name} does not go on with a text: serve takes language models")
    return found


def _pages(model: DecoderOnly, nbytes: int, slots: int) -> int:
    """Return how many pages to set aside: what the memory holds, and no more than all can use."""
    check_number("slots", slots, 1, 1024, whole=True)
    pages = nbytes // PagedCache(model, 1, PAGE).nbytes
    if not pages:
        raise ValueError("cache is too small for a page of this model: give more MiB with --cache")
    longest = model.config.max_len
    return pages if longest is None else min(pages, slots * -(-longest // PAGE))


def _explained(error: OSError, chosen: argparse.Namespace) -> OSError:
    """Return an error that says what to do about an address that cannot be had."""
    where = f"port {chosen.port} of {chosen.host}"
    if error.errno == errno.EADDRINUSE:
        return OSError(f"{where} is in use: choose another with --port, or 0 for any")
    return OSError(f"{where} cannot be listened at: {error.strerror or error}")
