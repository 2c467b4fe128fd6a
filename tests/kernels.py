"""The kernels of nbval are forks of one process that has imported the large libraries.

Before a notebook's first line a kernel imports IPython, torch, torch's compiler (with the first
optimizer) and matplotlib, which takes three seconds. Under nbval a test process lets one child do
that once and fork for each notebook. Of `tfbook` the child imports nothing, so a notebook still
shows whether its own imports do.

KernelManager starts `python kernels.py -f CONNECTION`, which asks the child for a fork, hands its
directory, environment and output over, and lives as long as the fork does. Whoever kills it closes
its connection, and the fork ends.
"""

import atexit
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading

WHERE = "TFBOOK_NURSERY"


def install():
    """Let nbval start its kernels here, the child with the first of them."""
    import ipykernel.kernelspec

    usual = ipykernel.kernelspec.get_kernel_dict

    def forked():
        _nursery()
        return usual() | {"argv": [sys.executable, "-I", __file__, "-f", "{connection_file}"]}

    ipykernel.kernelspec.get_kernel_dict = forked


@functools.cache
def _nursery():
    """Start the child, and wait until it listens."""
    folder = tempfile.TemporaryDirectory(prefix="tfbook-kernels-")
    os.environ[WHERE] = os.path.join(folder.name, "socket")
    command = [sys.executable, __file__, "--serve"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n", "the process that forks kernels did not begin"

    def end():
        child.kill()  # where this process is killed itself, the child ends with its input
        child.wait()
        child.stdin.close()
        child.stdout.close()
        folder.cleanup()

    atexit.register(end)


def serve():
    """Import what is large, then fork for each that asks."""
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as a kernel does
    import ipykernel.kernelapp

    for library in ("torch", "torch._dynamo", "matplotlib.figure"):
        importlib.import_module(library)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended are not waited for
    door = socket.socket(socket.AF_UNIX)
    door.bind(os.environ[WHERE])
    door.listen()
    print("ready", flush=True)
    while door in select.select([door, sys.stdin], [], [])[0]:
        asking, _ = door.accept()
        if os.fork() == 0:
            door.close()
            _become(asking, ipykernel.kernelapp.IPKernelApp)
        asking.close()


def _become(asking, app):
    """Be the kernel that was asked for, until it ends or the one who asked does."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    message, outputs, _, _ = socket.recv_fds(asking, 1 << 20, 2)
    wanted = json.loads(message)
    for number, output in zip((1, 2), outputs, strict=True):
        os.dup2(output, number)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.environ["JPY_PARENT_PID"] = str(os.getppid())
    sys.argv = ["ipykernel_launcher", *wanted["arguments"]]
    sys.path[0] = ""
    asking.sendall(f"{os.getpid()}\n".encode())

    def watch():
        asking.recv(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    code = 0
    try:
        app.launch_instance()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        os._exit(code)


def ask():
    """Ask for a fork, pass an interrupt on to it, and end with it."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ[WHERE])
    wanted = {
        "arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)
    }  # fmt: skip
    socket.send_fds(line, [json.dumps(wanted).encode()], [1, 2])
    pid = int(line.makefile().readline())
    signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT))
    line.recv(1)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else ask()
