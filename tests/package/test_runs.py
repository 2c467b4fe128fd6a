"""Checkpoints: all kinds of values come back as they were, and nothing damaged is believed."""

import errno
import json
import math
import os
import random
import shutil

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from tfbook.training import (
    Checkpoint,
    DamagedCheckpoint,
    checkpoints,
    last_checkpoint,
    read_checkpoint,
    steps_in,
    write_checkpoint,
)

FILES = ("model.safetensors", "tensors.safetensors", "checkpoint.json")


def checkpoint(step=3):
    torch.manual_seed(step)
    state = {
        "optimizer": {"state": {0: {"mean": torch.randn(5, 7), "step": torch.tensor(3.0)}}},
        "random": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
        "numbers": (0.1, -math.inf, 2**70, None, True, "π", [], {}, ()),
    }
    return Checkpoint(step, {"w": torch.randn(7, 11)}, state, {"clip": 0.5, "betas": (0.9, 0.99)})


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


# --- round trip -------------------------------------------------------------------------------


def test_everything_comes_back_as_it_was(tmp_path):
    written = checkpoint()
    path = write_checkpoint(tmp_path / "new" / "run", written)
    assert path == tmp_path / "new" / "run" / "step-00000003"
    found = read_checkpoint(path)
    assert found.step == 3
    assert same(found.model, written.model)
    assert same(found.state, written.state)
    assert same(found.about, written.about)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.none()
tensors = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]).map(
    lambda dtype: (torch.arange(13) % 2).to(dtype)
)
nested = st.recursive(
    plain | tensors | st.just(np.arange(5, dtype=np.uint32)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys | st.sampled_from(checkpoints.KINDS), inner, max_size=3)
    ),
    max_leaves=11,
)


@hypothesis.given(nested)
@hypothesis.settings(max_examples=60)
def test_any_nesting_comes_back(value):
    found = {}
    packed = json.loads(json.dumps(checkpoints._pack(value, "state", found)))
    assert same(checkpoints._unpack(packed, found), value)


def test_tensors_that_share_memory_are_written_both(tmp_path):
    base = torch.arange(35.0).view(5, 7)
    write_checkpoint(tmp_path, Checkpoint(1, {"a": base, "tied": base, "part": base[2:].T}))
    found = last_checkpoint(tmp_path).model
    assert same(found, {"a": base, "tied": base, "part": base[2:].T.contiguous()})


def test_what_was_read_is_no_view_of_the_file(tmp_path):
    path = write_checkpoint(tmp_path, checkpoint())
    found = read_checkpoint(path)
    before = found.model["w"].clone()
    shutil.rmtree(path)
    found.model["w"].add_(1)
    assert torch.equal(found.model["w"], before + 1)


@pytest.mark.untyped
def test_what_only_a_pickle_could_hold_is_refused_by_its_place(tmp_path):
    with pytest.raises(TypeError, match=r"state\.data\.1 cannot be kept .* got function"):
        write_checkpoint(tmp_path, Checkpoint(1, {}, {"data": [0, lambda: 0]}))
    with pytest.raises(TypeError, match=r"about\.lr cannot be kept .* got Tensor"):
        write_checkpoint(tmp_path, Checkpoint(1, {}, {}, {"lr": torch.zeros(2)}))
    assert steps_in(tmp_path) == []


# --- which are kept ---------------------------------------------------------------------------


def test_the_last_ones_are_kept(tmp_path):
    for step in (2, 3, 5, 7):
        write_checkpoint(tmp_path, checkpoint(step), keep=2)
    assert steps_in(tmp_path) == [5, 7]
    assert last_checkpoint(tmp_path).step == 7


def test_one_of_the_same_step_is_replaced(tmp_path):
    write_checkpoint(tmp_path, Checkpoint(3, {"w": torch.zeros(2)}))
    write_checkpoint(tmp_path, Checkpoint(3, {"w": torch.ones(2)}))
    assert last_checkpoint(tmp_path).model["w"].tolist() == [1, 1]
    assert len(list(tmp_path.iterdir())) == 1


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "log.jsonl").write_text("{}\n")
    (tmp_path / "step-7").mkdir()
    (tmp_path / ".writing-step-00000005-abc").mkdir()
    assert last_checkpoint(tmp_path) is None
    write_checkpoint(tmp_path, checkpoint())
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"log.jsonl", "step-7", "step-00000003"}


def test_no_folder_is_no_checkpoint(tmp_path):
    assert steps_in(tmp_path / "none") == []
    assert last_checkpoint(tmp_path / "none") is None
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "step-00000001")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="got the file"):
        last_checkpoint(tmp_path / "file")


# --- damage -----------------------------------------------------------------------------------


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def cut(path, length):
    path.write_bytes(path.read_bytes()[:length])


DAMAGES = {
    "a bit of the weights": lambda path: flip(path / FILES[0], -1),
    "a bit of their header": lambda path: flip(path / FILES[0], 11),
    "a bit of the other tensors": lambda path: flip(path / FILES[1], -3),
    "weights cut short": lambda path: cut(path / FILES[0], -7),
    "tensors emptied": lambda path: cut(path / FILES[1], 0),
    "the JSON cut short": lambda path: cut(path / FILES[2], 101),
    "no weights": lambda path: (path / FILES[0]).unlink(),
    "no JSON": lambda path: (path / FILES[2]).unlink(),
    "nothing": lambda path: [each.unlink() for each in path.iterdir()],
    "another step": lambda path: edit(path, step=4),
    "another state": lambda path: edit(path, state={}),
    "another program": lambda path: edit(path, made_by="x"),
    "a list": lambda path: (path / FILES[2]).write_text("[]"),
    "bytes": lambda path: (path / FILES[2]).write_bytes(b"\xff\xfe"),
}


def edit(path, **changes):
    whole = json.loads((path / FILES[2]).read_text())
    whole["contents"].update(changes)
    (path / FILES[2]).write_text(json.dumps(whole))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_it_used(tmp_path, damage):
    good = checkpoint(2)
    write_checkpoint(tmp_path, good)
    path = write_checkpoint(tmp_path, checkpoint(3))
    damage(path)
    with pytest.raises(DamagedCheckpoint, match="step-00000003"):
        read_checkpoint(path)
    with pytest.warns(UserWarning, match="step-00000003.*last whole checkpoint is used, step-0*2"):
        found = last_checkpoint(tmp_path)
    assert same(found.state, good.state) and found.step == 2
    assert steps_in(tmp_path) == [2]  # the damaged one does not count any more, but is there
    assert [each.name[:8] for each in tmp_path.iterdir() if each.name[:4] != "step"] == ["damaged-"]
    write_checkpoint(tmp_path, checkpoint(3), keep=2)
    assert last_checkpoint(tmp_path).step == 3


def test_every_bit_counts(tmp_path):
    path = write_checkpoint(tmp_path, checkpoint())
    for name in FILES:
        content = (path / name).read_bytes()
        for place in range(0, len(content), max(1, len(content) // 97)):
            flip(path / name, place)
            with pytest.raises(ValueError):
                read_checkpoint(path)
            (path / name).write_bytes(content)
    read_checkpoint(path)


def test_where_none_is_whole_that_is_an_error_and_nothing_is_touched(tmp_path):
    for step in (2, 3):
        cut(write_checkpoint(tmp_path, checkpoint(step)) / FILES[0], 5)
    with pytest.raises(ValueError, match="no checkpoint in .* step-0*3.* cut short.*step-0*2"):
        last_checkpoint(tmp_path)
    assert steps_in(tmp_path) == [2, 3]


def test_a_later_format_is_not_gone_back_from(tmp_path):
    write_checkpoint(tmp_path, checkpoint(2))
    edit(write_checkpoint(tmp_path, checkpoint(3)), format=checkpoints.FORMAT + 1)
    with pytest.raises(ValueError, match="format 2, and this version of tfbook reads format 1"):
        last_checkpoint(tmp_path)
    assert steps_in(tmp_path) == [2, 3]


# --- failures while writing -------------------------------------------------------------------


@pytest.mark.parametrize("name, number", [("fsync", 1), ("fsync", 2), ("rename", 1)])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, name, number):
    good = checkpoint(2)
    write_checkpoint(tmp_path, good)
    calls, real = [], getattr(os, name)

    def full(*args):
        calls.append(args)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    monkeypatch.setattr(os, name, full)
    with pytest.raises(
        OSError, match=r"step 3 could not .*No space left .* bytes.*step-0*2, is as"
    ):
        write_checkpoint(tmp_path, checkpoint(3))
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert same(last_checkpoint(tmp_path).state, good.state)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"could not be written to .*file.*there is none before it"):
        write_checkpoint(tmp_path / "file" / "run", checkpoint())


@pytest.mark.untyped
def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        write_checkpoint(tmp_path, checkpoint(), keep=0)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        write_checkpoint(tmp_path, Checkpoint(-1, {}))


# --- what is somebody else's ------------------------------------------------------------------


@pytest.mark.untyped
def test_a_part_that_cannot_be_read_costs_its_steps_only(tmp_path):
    """A folder in a file's place stands for all that the system will not open."""
    for number, name in enumerate(FILES):
        folder = tmp_path / str(number)
        write_checkpoint(folder, checkpoint(2))
        path = write_checkpoint(folder, checkpoint(3)) / name
        path.unlink()
        path.mkdir()
        with pytest.warns(UserWarning, match=f"{name} cannot be read: Is a directory"):
            assert last_checkpoint(folder).step == 2


def rewrite(path, change):
    """Change what the JSON file says, and its digest with it."""
    whole = json.loads((path / FILES[2]).read_text())
    change(whole["contents"])
    whole["blake2b"] = checkpoints._digest(checkpoints._canonical(whole["contents"]))
    (path / FILES[2]).write_text(json.dumps(whole))


@pytest.mark.untyped
def test_a_checkpoint_names_its_own_files_and_nothing_else(tmp_path):
    changes = {
        "must name": lambda it: it["files"].update({"../../secret": it["files"][FILES[0]]}),
        "must name model": lambda it: it["files"].pop(FILES[1]),
        "no whole list": lambda it: it["files"].update({FILES[0]: {"bytes": 3}}),
        "no whole list of": lambda it: it.pop("state"),
        "no whole state": lambda it: it.update(state={"$tensor": "nowhere"}),
        "no whole state: Type": lambda it: it.update(state={"$pairs": 3}),
        "step three": lambda it: it.update(step="three"),
    }
    for number, (message, change) in enumerate(changes.items()):
        path = write_checkpoint(tmp_path / str(number), checkpoint())
        rewrite(path, change)
        with pytest.raises(DamagedCheckpoint, match=message):
            read_checkpoint(path)
    (path / FILES[2]).write_text("[" * 200_000)
    with pytest.raises(DamagedCheckpoint, match="nested too deeply"):
        read_checkpoint(path)


def test_what_is_not_ours_is_neither_followed_nor_removed(tmp_path):
    notes, outside = tmp_path / ".writing-notes", tmp_path / "outside"
    for folder in (notes, outside):
        folder.mkdir()
        (folder / "mine.txt").write_text("mine")
    (tmp_path / ".writing-step-00000009-ab").symlink_to(outside)
    (tmp_path / ".removed-step-00000001-ab").mkdir()  # left by a run that was killed
    write_checkpoint(tmp_path, checkpoint())
    assert [(folder / "mine.txt").read_text() for folder in (notes, outside)] == ["mine"] * 2
    assert not (tmp_path / ".removed-step-00000001-ab").exists()


@pytest.mark.skipif(os.name != "posix", reason="rights of POSIX")
def test_folders_have_the_rights_that_folders_have_here(tmp_path):
    (tmp_path / "usual").mkdir()
    path = write_checkpoint(tmp_path / "run", checkpoint())
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode
