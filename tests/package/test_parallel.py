"""Several processes compute what one does: collectives, replicas, ZeRO, cut layers, rows, stages.

Each check runs in all processes of a launch, see parallel_checks.py.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import parallel_checks
import pytest
import torch

from tfbook import blocks, models, parallel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo is tested on POSIX")
SECONDS = 100  # that a launch may take on a busy machine


def launch(p, name, *arguments, edits=None, seconds=SECONDS, patience=30.0):
    told = [name, edits, list(arguments)]
    options = {"seconds": seconds, "patience": patience, "modules": parallel_checks.PRELOADED}
    return parallel.launch(parallel_checks.run, p, told, **options)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_rings_do_what_collectives_do(p):
    launch(p, "collectives")


@pytest.mark.parametrize("p", [1, 3])
def test_gradients_pass_by_the_transpose(p):
    launch(p, "transposes")


@pytest.mark.parametrize("p", [2, 3])
def test_replicas_have_the_gradients_of_one_process_and_of_ddp(p):
    launch(p, "replicas")


def test_zero_steps_as_one_process_and_holds_a_part_of_the_state():
    launch(2, "zero")


@pytest.mark.parametrize("p", [2, 3])
def test_sharded_weights_are_whole_only_where_they_compute(p):
    launch(p, "sharded")


def test_a_cut_model_is_the_whole_one_and_sends_what_is_counted():
    launch(2, "tensors")


def test_cut_layers_are_those_of_dtensor():
    launch(2, "tensors_of_torch")


@pytest.mark.parametrize("p", [1, 2, 3])
def test_attention_over_cut_rows_is_attention_over_all(p):
    launch(p, "rings")


@pytest.mark.parametrize("p", [2, 3])
def test_a_pipeline_is_one_process_and_sends_what_is_counted(p):
    launch(p, "pipelines")


def test_stages_run_in_the_pipeline_of_torch():
    launch(2, "pipelines_of_torch")


@pytest.mark.parametrize("p", [1, 2, 3])
def test_rows_travel_to_their_experts_and_back(p):
    launch(p, "experts")


def test_data_and_tensor_parallelism_on_a_grid():
    launch(4, "grids")


def test_a_launch_brings_home_what_each_returns():
    found = launch(3, "sums", torch.tensor([1.5, 2.0]))
    assert [each["rank"] for each in found] == [0, 1, 2]
    assert all(torch.equal(each["sum"], torch.tensor([9.0, 12.0])) for each in found)


def test_torchrun_runs_the_same_program():
    """One process, started by torchrun, joins the others by what that put into its environment."""
    program = Path(parallel_checks.__file__)
    places = [str(program.parents[2]), str(program.parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(program), "collectives", "rings"]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("passed collectives rings") == 2


def alive(folder):
    """Return which of the processes that left their numbers in a folder are still there."""
    found = []
    for path in Path(folder).iterdir():
        try:
            os.kill(int(path.read_text()), 0)
        except ProcessLookupError:
            continue
        found.append(path.name)
    return found


def gone(folder, seconds=10):
    until = time.monotonic() + seconds
    while alive(folder) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(folder)


def test_a_killed_process_ends_all_in_seconds_and_is_named(tmp_path):
    launch(1, "sums", torch.ones(1))  # so that what takes long has been imported
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="^process 1 of 3 was ended by SIGKILL$"):
        launch(3, "one_dies", str(tmp_path))
    assert time.monotonic() - begun < 100  # less than the patience: nobody has waited for it
    assert len(list(tmp_path.iterdir())) == 3 and gone(tmp_path)


def test_who_hears_nothing_says_whom_it_waited_for():
    with pytest.raises(RuntimeError, match="process 0 has waited 0.5 s for process 1, in vain"):
        launch(2, "one_is_silent", 0.5)


def test_a_lost_process_is_noticed_in_words():
    with pytest.raises(RuntimeError, match="process 1 of 2 was ended with exit code 0"):
        launch(2, "one_is_lost")


def test_processes_that_do_not_end_are_ended(tmp_path):
    with pytest.raises(TimeoutError, match="of 2 processes .* still running after 2 s: 0, 1"):
        launch(2, "all_sleep", str(tmp_path), seconds=2)
    assert gone(tmp_path)


def test_an_error_of_one_is_told_and_ends_the_others():
    with pytest.raises(RuntimeError, match="^process 1 of 2: ValueError: of no use$"):
        launch(2, "one_raises")


def test_no_process_outlives_the_program_that_launched_it(tmp_path):
    code = f"import parallel_checks as c; c.launching({str(tmp_path)!r}, 90)"
    home = Path(parallel_checks.__file__)
    places = os.pathsep.join([str(home.parents[2]), str(home.parent)])
    program = subprocess.Popen(
        [sys.executable, "-c", f"if __name__ == '__main__':\n    {code}"],
        env=os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
    )
    until = time.monotonic() + SECONDS
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(0.3)
    assert sorted(alive(tmp_path)) == ["0", "1"]
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert gone(tmp_path)


@pytest.mark.untyped
def test_what_cannot_be_launched_is_refused():
    for given, error, words in (
        ((len, 0), ValueError, "n must be from 1 to 64, got 0"),
        ((3, 2), TypeError, "function must be a function, got int"),
        ((lambda: 0, 2), ValueError, "function must stand in a module"),
        ((len, 2, "ab"), TypeError, "arguments must be a list"),
    ):
        with pytest.raises(error, match=words):
            parallel.launch(*given)
    with pytest.raises(ValueError, match="seconds must be"):
        parallel.launch(len, 2, seconds=0)
    with pytest.raises(TypeError, match="modules must be names"):
        parallel.launch(len, 2, modules=[3])


@pytest.mark.untyped
def test_what_cannot_be_cut_is_refused():
    """One process can be told that it is one of three, where nothing is sent."""
    group = parallel.Group()
    with pytest.raises(ValueError, match="ranks must hold this process, 0"):
        parallel.Group([])
    with pytest.raises(ValueError, match="a rank of ranks must be from 0 to 0"):
        parallel.Group([0, 1])
    with pytest.raises(ValueError, match="another member than this one"):
        group.send(torch.ones(2), 0)
    with pytest.raises(ValueError, match="must be the number of processes, 1, got 2 · 1 · 1"):
        parallel.Grid(data=2)
    group.size = 3
    net = parallel_checks.decoder()
    with pytest.raises(ValueError, match="n_kv_heads must be a multiple .* 3, got 2"):
        parallel.split_attention(net.stack.blocks[0].mixer, group)
    with pytest.raises(ValueError, match="d_ff must be a multiple .* 3, got 14"):
        parallel.split_ffn(net.stack.blocks[0].ffn, group)
    with pytest.raises(ValueError, match="the vocabulary must be a multiple .* 3, got 22"):
        parallel.SplitEmbedding(net.embed, group)
    with pytest.raises(ValueError, match="the size of the dimension must be a multiple"):
        parallel.scatter(torch.ones(4), group, 0)
    with pytest.raises(ValueError, match="1, 2, 4, 8"):
        parallel.doubling_all_reduce(torch.ones(4), group)
    with pytest.raises(ValueError, match="pieces must be one for each of 3"):
        parallel.all_to_all([torch.ones(1)], group)
    moe = blocks.MixtureOfExperts(8, 16, 3, 1, capacity_factor=1.0)
    with pytest.raises(ValueError, match="moe must have no capacity"):
        parallel.SplitExperts(moe, group)
    layer = models.Layer(models.Attention(2), models.FFN(16), dropout=0.1)
    config = models.TransformerConfig(12, 8, decoder=[layer])
    with pytest.raises(ValueError, match="model must have no dropout"):
        parallel.split_model(models.build(config), parallel.Group())
    with pytest.raises(ValueError, match="tokens must be of the shape of targets"):
        tokens = torch.zeros(3, 4, dtype=torch.long)
        stage = parallel.Stage(net, 1, 0)
        loss = parallel_checks.mean_loss
        parallel.run_pipeline(stage, tokens, tokens, loss, parallel.Group(), micro_batches=2)
    with pytest.raises(ValueError, match="of one dtype, got 0 weights"):
        parallel.Sharded(torch.nn.Identity(), parallel.Group())
    with pytest.raises(ValueError, match="stage must be from 1 to 2"):
        weights = torch.nn.Linear(2, 2).parameters()
        parallel.ZeroOptimizer(weights, torch.optim.AdamW, parallel.Group(), stage=3)


def test_a_group_of_one_is_the_module_itself():
    group, net = parallel.Group(), parallel_checks.decoder()
    tokens, targets = parallel_checks.texts()
    wanted = parallel_checks.one_process(net)
    for model in (
        parallel.split_model(net, group),
        parallel.shard(parallel_checks.decoder(), group),
    ):
        found = parallel.split_loss(model(tokens)[0], targets, group)
        torch.testing.assert_close(found, wanted)
    assert group.traffic == parallel.Traffic(0, 0)
