"""Two processes compute what one does, up to rounding; and each holds half where it is asked to."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from typing import NamedTuple

import pytest
import runaway
import torch

from tfbook.training import Ranks, last_checkpoint, steps_in

STEPS = 5
ROUNDING = 2e-6  # relative; sums of float32 in another order, through five steps of AdamW
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo is tested on POSIX")


def alone(**choices):
    return runaway.train(None, steps=STEPS, model=runaway.model(dropout=0.0), **choices)


@pytest.fixture(scope="module")
def one():
    return alone()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Run the program in two processes at once; return their exit codes and what the first said."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(runaway.MODULES)

    def together(folder, **how):
        said = tmp_path_factory.mktemp("said")
        port = str(free_port())
        processes = []
        for rank in range(2):
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2}
            each = {name: str(value) for name, value in names.items()}
            each |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            told = {"steps": STEPS, "dropout": 0.0, "environment": each} | how
            arguments = (str(folder), told, str(said / f"{rank}.txt"))
            processes.append(context.Process(target=runaway.run, args=arguments))
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        return [process.exitcode for process in processes], (said / "0.txt").read_text()

    return together


def numbers(said):
    return json.loads(said.splitlines()[-1])


def close(found, wanted, tolerance=ROUNDING):
    assert len(found) == len(wanted)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("shard", [False, True], ids=["whole", "sharded"])
def test_two_processes_lose_what_one_does(together, one, tmp_path, shard):
    codes, said = together(tmp_path, shard=shard, held=True)
    assert codes == [0, 0], said
    found = numbers(said)
    held, total = int(said.splitlines()[-2]), runaway.model().count_parameters()
    assert held < 0.6 * total if shard else held == total
    close(found["losses"], one.losses)
    close(found["norms"], one.gradient_norms, 1e-5)
    saved = last_checkpoint(tmp_path)
    names = {name: tuple(x.shape) for name, x in saved.model.items()}
    assert names == {name: tuple(x.shape) for name, x in runaway.model().state_dict().items()}


def test_means_over_shares_of_unequal_size_are_the_mean_over_all(together, tmp_path):
    wanted = alone(loss=runaway.mean_loss, batches=runaway.Loader(size=5))
    codes, said = together(tmp_path, mean=True)  # three rows and two
    assert codes == [0, 0], said
    close(numbers(said)["losses"], wanted.losses)
    assert wanted.counts == [2.0] * STEPS


@pytest.mark.parametrize("shard", [False, True], ids=["whole", "sharded"])
def test_two_processes_that_were_stopped_go_on_bit_for_bit(together, tmp_path, shard):
    choices = {"shard": shard, "dropout": 0.1}  # each process has random numbers of its own
    whole = numbers(together(tmp_path / "whole", **choices)[1])
    assert together(tmp_path / "parts", steps=2, **choices)[0] == [0, 0]
    assert steps_in(tmp_path / "parts") == [2]
    assert numbers(together(tmp_path / "parts", **choices)[1]) == whole


def apart(folder, **how):
    """Run the program in two processes that order their sets differently; return what they said."""
    port, told = str(free_port()), json.dumps({"steps": STEPS, "dropout": 0.0, "shard": True} | how)
    processes = []
    for rank in range(2):
        each = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "PYTHONHASHSEED": rank + 1}
        each = {name: str(value) for name, value in each.items()}
        each |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, runaway.__file__, str(folder), told]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(subprocess.Popen(command, env=os.environ | each, **piped))
    try:
        said = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said
    return said[0]


def test_processes_that_order_sets_differently_go_on_with_their_parts(one, tmp_path):
    apart(tmp_path, steps=2)
    assert steps_in(tmp_path) == [2]
    close(numbers(apart(tmp_path))["losses"], one.losses)


def test_one_process_goes_on_with_what_two_have_begun(together, one, tmp_path):
    assert together(tmp_path, steps=2)[0] == [0, 0]
    close(runaway.train(str(tmp_path), steps=STEPS, model=runaway.model(0.0)).losses, one.losses)


def test_a_wish_to_end_is_granted_after_the_same_step_everywhere(together, one, tmp_path):
    codes, said = together(tmp_path, at=2, signal=int(signal.SIGTERM), rank="1")
    assert codes == [128 + signal.SIGTERM] * 2, said
    assert steps_in(tmp_path)[-1] == 3


def test_what_cannot_be_written_ends_all_processes(together, tmp_path):
    codes, said = together(tmp_path, largest=4000)
    assert codes == [1, 1]
    assert "the checkpoint of step 2 could not be written" in said


class Pair(NamedTuple):
    tokens: torch.Tensor
    labels: torch.Tensor


def of_three(rank):
    """A Ranks that believes it is one of three."""
    ranks = Ranks()
    ranks.rank, ranks.size = rank, 3
    return ranks


def test_shares_are_all_rows_once_and_in_order():
    tokens, labels = torch.arange(22).view(11, 2), torch.arange(11)
    batch = {"x": Pair(tokens, labels), "y": [tokens, None]}
    shares = [of_three(rank).share(batch) for rank in range(3)]
    for pick in (lambda b: b["x"].tokens, lambda b: b["y"][0]):
        assert torch.equal(torch.cat([pick(share) for share, _ in shares]), tokens)
    assert torch.equal(torch.cat([share["x"].labels for share, _ in shares]), labels)
    assert [part * 11 for _, part in shares] == pytest.approx([3, 4, 4])
    assert shares[0][0]["y"][1] is None


def test_one_process_takes_the_batch_as_it_is():
    batch = object()
    assert Ranks().share(batch) == (batch, 1.0)
    assert Ranks().add([0.1, 2.0]) == [0.1, 2.0]
    assert Ranks().gather(batch) == [batch]


@pytest.mark.untyped
def test_what_cannot_be_shared_is_refused():
    with pytest.raises(ValueError, match="at least one for each of 3 processes, got 2"):
        of_three(0).share(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="the same number of rows.* got 3, 5"):
        of_three(0).share((torch.zeros(3), torch.zeros(5)))
    with pytest.raises(TypeError, match="can share a batch of tensors.* got str"):
        of_three(0).share([torch.zeros(3), "text"])
    with pytest.raises(ValueError, match="shard=True cuts weights .* torchrun"):
        Ranks().split(runaway.model())
