"""Progress: a pass is noted in the reader's folder, and nothing else is."""

import warnings

import pytest
import torch

from tfbook.teaching import check, progress
from tfbook.teaching.exercises import _progress, names

NAME = "soft-lookup"


def right(query, keys, values, temperature=1.0):
    return torch.softmax(keys @ query / temperature, dim=0) @ values


def wrong(query, keys, values, temperature=1.0):
    return torch.softmax(keys @ query * temperature, dim=0) @ values


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBOOK_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "passed"


def test_only_a_pass_is_noted_and_once(folder):
    check(NAME, wrong)
    check(NAME, lambda *given: ...)
    check(NAME, right, record=False)
    assert _progress.passed() == () and not folder.exists()
    for _ in range(2):
        check(NAME, right)
        assert _progress.passed() == (NAME,)


def test_the_table_counts_by_chapter(folder):
    assert sum(total for _, total in progress().chapters.values()) == len(names())
    for name in (NAME, "stable-softmax", "lab-split", "not-an-exercise"):
        _progress.record(name)
    table = progress()
    assert table.chapters["Attention"] == (2, 10)
    assert table.chapters["Lab shakespeare"][0] == 1
    assert sum(count for count, _ in table.chapters.values()) == 3
    page = table._repr_mimebundle_()["text/html"]
    assert "<td>2 of 10</td>" in page and "●●○○○○○○○○" in page
    assert "2 of 10" in repr(table)


def test_a_folder_that_cannot_be_written_warns_and_the_card_comes(folder, capsys):
    folder.parent.parent.mkdir(exist_ok=True)
    folder.parent.write_text("a file, no folder")
    with pytest.warns(UserWarning, match="could not be noted.*TFBOOK_DATA"):
        check(NAME, right)
    assert "passed" in capsys.readouterr().out
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert progress().chapters["Attention"] == (0, 10)


def test_the_folder_is_named_by_the_environment_or_by_the_system(monkeypatch, tmp_path):
    monkeypatch.delenv("TFBOOK_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert _progress.data_folder() == tmp_path / "tfbook"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    for platform, place in {
        "linux": ".local/share/tfbook",
        "darwin": "Library/Application Support/tfbook",
        "win32": "Local/tfbook/data",
    }.items():
        monkeypatch.setattr(_progress.sys, "platform", platform)
        assert _progress.data_folder() == tmp_path / place
