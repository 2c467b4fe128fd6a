"""Kernels that are forked: they are kernels like others, know nothing of the book, and end."""

import os
import time

import pytest
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, start_new_kernel


@pytest.fixture
def kernel(tmp_path):
    manager, client = start_new_kernel(kernel_name=CURRENT_ENV_KERNEL_NAME, cwd=str(tmp_path))
    yield manager, client
    client.stop_channels()
    if manager.has_kernel:
        manager.shutdown_kernel(now=True)


def said(client, code):
    """What a cell prints; an error fails."""
    texts = []

    def hear(message):
        assert message["msg_type"] != "error", message["content"]
        if message["msg_type"] == "stream":
            texts.append(message["content"]["text"])

    client.execute_interactive(code, timeout=300, output_hook=hear)
    return "".join(texts).strip()


def test_a_kernel_has_the_libraries_and_nothing_of_the_book(kernel, tmp_path):
    _, client = kernel
    assert said(client, "import sys, os; print('torch' in sys.modules)") == "True"
    assert said(client, "print([m for m in sys.modules if m.startswith('tfbook')])") == "[]"
    assert said(client, "print(os.getcwd())") == str(tmp_path)
    assert said(client, "print(os.environ['PYTEST_CURRENT_TEST'])").startswith("tests/repo")
    assert said(client, "import subprocess as s; print(s.run('true').returncode)") == "0"
    assert said(client, "import torch; print(torch.ones(3).sum().item())") == "3.0"


def test_a_kernel_ends_when_its_manager_kills_it(kernel):
    manager, client = kernel
    pid = int(said(client, "import os; print(os.getpid())"))
    assert pid != manager.provisioner.pid
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the fork lives on")


def test_a_kernel_can_be_interrupted(kernel):
    manager, client = kernel
    asked = client.execute("import time\nwhile True: time.sleep(0.05)")
    time.sleep(0.5)
    manager.interrupt_kernel()
    while (reply := client.get_shell_msg(timeout=120))["parent_header"]["msg_id"] != asked:
        pass
    assert reply["content"]["ename"] == "KeyboardInterrupt"
