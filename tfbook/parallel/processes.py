"""Several processes on one machine, for a function that wants to be run by all of them.

``torchrun --nproc-per-node=4 script.py`` starts a script so many times; :func:`launch` does it for
a function, from a program or a notebook, and brings home what each returns. Whatever happens to one
of them, the others are ended, and the caller gets one error that says what it was, in the time that
was given.

Explained in: chapters/17_hardware, section "Many devices".
"""

import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import connection, get_context

import torch
from torch import distributed

from tfbook._checks import check_list, check_number

__all__ = ["launch"]

LONGEST = 86_400.0
MOST = 64  # processes that one machine is asked for
GRACE = 0.5  # seconds in which the others may still say why they end
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
ALONE = ("PeerLost", "Connection closed by peer", "Connection reset by peer")


def launch(
    function: Callable[..., object],
    n: int,
    arguments: Sequence[object] = (),
    *,
    seconds: float = 60.0,
    patience: float = 20.0,
    modules: Sequence[str] = (),
) -> list[object]:
    """Run a function in n processes that can talk to each other, and return what each returns.

    Each process calls ``function(*arguments)`` after joining the others by gloo on the loopback,
    with one thread, and the names that torchrun sets are in its environment. What is returned must
    be plain: numbers, texts, tensors, and lists, tuples and dictionaries of them.

    Args:
        function: one that stands in a module, since other processes must find it by its name.
        n: how many processes.
        arguments: for each call, the same.
        seconds: after which those that still run are ended.
        patience: seconds that one collective of PyTorch waits for the others.
        modules: what to import once, before the first process is made; it takes effect with the
            first launch of a program.

    Returns:
        What each returned, in their order.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.
        RuntimeError: if a process raised an error, of which the message tells the last line, or if
            it was ended from outside.
        TimeoutError: if they have not ended in time.

    Explained in: chapters/17_hardware, section "Many devices".
    """
    if not callable(function) or not hasattr(function, "__qualname__"):
        raise TypeError(f"function must be a function, got {type(function).__name__}")
    if "<" in function.__qualname__:
        raise ValueError(f"function must stand in a module, got {function.__qualname__}")
    check_number("n", n, 1, MOST, whole=True)
    check_list("arguments", arguments)
    check_list("modules", modules)
    check_number("seconds", seconds, above=0, high=LONGEST)
    check_number("patience", patience, above=0, high=LONGEST)
    for each in modules:
        if not isinstance(each, str):
            raise TypeError(f"modules must be names, got {type(each).__name__}")
    context = get_context("spawn" if sys.platform == "win32" else "forkserver")
    if hasattr(context, "set_forkserver_preload"):
        context.set_forkserver_preload([__name__, *modules])
    store = distributed.TCPStore("127.0.0.1", 0, n, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe() for _ in range(n)]
    processes = []
    try:
        for rank, (_, end) in enumerate(pipes):
            told = (function, tuple(arguments), rank, n, store.port, patience, end)
            process = context.Process(target=_work, args=told, daemon=True)
            process.start()
            processes.append(process)
            end.close()  # so that its death ends the pipe
        return _collect(processes, [own for own, _ in pipes], seconds)
    finally:
        for process in processes:
            process.kill()
        for process, (own, _) in zip(processes, pipes, strict=False):
            process.join()
            own.close()


def _collect(processes, pipes, seconds) -> list[object]:
    """Wait for an answer of each process; the first that fails ends the waiting."""
    answers, failed = {}, {}
    until = time.monotonic() + seconds
    while len(answers) + len(failed) < len(pipes):
        waiting = {pipe: i for i, pipe in enumerate(pipes) if i not in answers | failed}
        ready = connection.wait(waiting, timeout=max(0.0, until - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            try:
                good, said = pipe.recv()
            except (EOFError, ConnectionResetError):
                good, said = False, None
            (answers if good else failed)[waiting[pipe]] = said
        if failed:  # what the others say of it may be the cause, so it is heard
            until = min(until, time.monotonic() + GRACE)
    if failed:
        raise RuntimeError(_told(processes, failed))
    if len(answers) < len(pipes):
        late = ", ".join(str(i) for i in range(len(pipes)) if i not in answers)
        raise TimeoutError(
            f"of {len(pipes)} processes these were still running after {seconds:g} s: {late}"
        )
    loaded = (io.BytesIO(answers[i]) for i in range(len(pipes)))
    return [torch.load(each, weights_only=True) for each in loaded]


def _told(processes, failed) -> str:
    """Say in one line what went wrong, and where: the cause, not that others were left alone."""
    n, lines, left = len(processes), [], []
    for rank, said in sorted(failed.items()):
        if said is None:
            processes[rank].join(1)
            code = processes[rank].exitcode
            how = f"with exit code {code}"
            if code is not None and code < 0:
                how = f"by {signal.Signals(-code).name}"
            lines.append(f"process {rank} of {n} was ended {how}")
        else:
            alone = any(words in said for words in ALONE)
            (left if alone else lines).append(f"process {rank} of {n}: {said}")
    return "; ".join(lines or left)


def _work(function, arguments, rank, n, port, patience, pipe) -> None:
    """Be one of the processes."""
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    torch.set_num_threads(1)
    try:
        if sys.platform in LOOPBACK:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK[sys.platform])
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        limit = timedelta(seconds=patience)
        store = distributed.TCPStore("127.0.0.1", port, n, is_master=False, timeout=limit)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=n, timeout=limit)
        answer = io.BytesIO()
        torch.save(function(*arguments), answer)
        said = True, answer.getvalue()
    except BaseException as error:
        if os.environ.get("TFBOOK_TRACE"):
            traceback.print_exc()
        said = False, f"{type(error).__name__}: {error}"
    pipe.send(said)
    pipe.close()
    os._exit(0 if said[0] else 1)  # a lost connection could hold up a tidy end


def _end_with_the_caller() -> None:
    """End when the process is gone that started this one; nobody would wait for the answer."""
    from multiprocessing import parent_process

    parent_process().join()
    os._exit(1)
