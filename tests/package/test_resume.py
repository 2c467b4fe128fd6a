"""A run that is killed, wherever it is, goes on as if it had not been: bit-equal losses."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import runaway

from tfbook.training import last_checkpoint, steps_in

PROGRAM = str(Path(runaway.__file__))
STEPS = 7  # with a checkpoint after every second one
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")


def environment():
    root = Path(PROGRAM).parents[2]
    return os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}


class Ended(NamedTuple):
    code: int
    said: str


@pytest.fixture(scope="module")
def processes():
    """Processes that begin with everything imported and nothing computed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(runaway.MODULES)
    return context


@pytest.fixture
def start(processes, tmp_path_factory):
    """Run the program in a process of its own; return how it ended, and what it said."""

    def start(folder, **how):
        said = tmp_path_factory.mktemp("said") / "said.txt"
        arguments = (str(folder), {"steps": STEPS} | how, str(said))
        process = processes.Process(target=runaway.run, args=arguments)
        process.start()
        process.join(120)
        return Ended(process.exitcode, said.read_text(encoding="utf-8"))

    return start


@pytest.fixture(scope="module")
def never_stopped():
    """What a run gives that never stops and writes no checkpoint."""
    found = runaway.train(None, steps=STEPS)
    return {"losses": found.losses, "norms": found.gradient_norms}


def steps_of_log(folder):
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["step"] for entry in map(json.loads, lines) if "step" in entry]


@posix
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_run_killed_at_any_step_goes_on_bit_for_bit(start, tmp_path, never_stopped, at):
    killed = start(tmp_path, at=at, signal=int(signal.SIGKILL))
    assert killed.code == -signal.SIGKILL
    assert steps_in(tmp_path) == [step for step in (2, 4) if step <= at]
    found = runaway.train(str(tmp_path), steps=STEPS)
    assert found.losses == never_stopped["losses"]  # ==, not almost
    assert found.gradient_norms == never_stopped["norms"]
    assert steps_of_log(tmp_path) == list(range(STEPS))  # none twice, none missing


# In the first checkpoint fsync is called for three files, for the new folder and for the run's;
# rename makes it a checkpoint. From the third on the oldest is renamed as well, and removed.
@posix
@pytest.mark.parametrize(
    "name, number, left",
    [
        ("fsync", 1, []),
        ("fsync", 3, []),
        ("rename", 1, []),
        ("fsync", 5, [2]),  # renamed, but not yet flushed
        ("fsync", 7, [2]),  # in the second one
        ("rename", 2, [2]),
        ("rename", 4, [2, 4, 6]),  # before the oldest is put out of the way
    ],
)
def test_a_run_killed_while_it_writes_a_checkpoint_goes_on(
    start, tmp_path, never_stopped, name, number, left
):
    killed = start(tmp_path, call=[name, number])
    assert killed.code == -signal.SIGKILL
    assert steps_in(tmp_path) == left
    saved = last_checkpoint(tmp_path)  # what is there is whole
    assert (saved.step if saved else None) == (left[-1] if left else None)
    found = runaway.train(str(tmp_path), steps=STEPS)
    assert found.losses == never_stopped["losses"]
    assert steps_in(tmp_path) == [6, 7]
    hidden = {path.name for path in tmp_path.iterdir()} - {"step-00000006", "step-00000007"}
    assert hidden == {"log.jsonl"}  # nothing half written is left


@posix
def test_a_run_may_be_killed_again_and_again_and_end_in_a_new_python(
    start, tmp_path, never_stopped
):
    for at in (3, 4, 6):
        assert start(tmp_path, at=at, signal=int(signal.SIGKILL)).code == -signal.SIGKILL
    command = [sys.executable, PROGRAM, str(tmp_path), json.dumps({"steps": STEPS})]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment(), timeout=600
    )
    assert json.loads(done.stdout) == never_stopped  # another process, the same bits


@posix
@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_ctrl_c_ends_the_step_and_saves_it(start, tmp_path, never_stopped, number, code):
    done = start(tmp_path, at=3, signal=int(number))
    assert done.code == code
    assert ("stopped after 4 steps and saved" in done.said) == (number == signal.SIGINT)
    assert steps_in(tmp_path)[-1] == 4
    assert runaway.train(str(tmp_path), steps=STEPS).losses == never_stopped["losses"]


@posix
def test_a_file_that_the_system_will_not_write_leaves_the_last_checkpoint(
    start, tmp_path, never_stopped
):
    runaway.train(str(tmp_path), steps=2)
    done = start(tmp_path, largest=4000)
    assert done.code == 1
    assert "the checkpoint of step 4 could not be written" in done.said
    assert "step-00000002, is as it was" in done.said
    assert steps_in(tmp_path) == [2]
    assert runaway.train(str(tmp_path), steps=STEPS).losses == never_stopped["losses"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux can make a file system of some bytes")
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, never_stopped):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=88k", "tmpfs", str(small)]
    if (
        os.geteuid() != 0
        or shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a small file system takes the rights of root")
    try:
        with pytest.raises(OSError, match=r"step 4 could not be written .*No space left"):
            runaway.train(str(small), steps=STEPS, log=None)
        assert steps_in(small) == [2]
        assert [path.name for path in small.iterdir()] == ["step-00000002"]
        assert last_checkpoint(small).step == 2
        shutil.copytree(small, tmp_path / "larger")
        again = runaway.train(str(tmp_path / "larger"), steps=STEPS)
        assert again.losses == never_stopped["losses"]
    finally:
        subprocess.run(["umount", str(small)], check=True)
