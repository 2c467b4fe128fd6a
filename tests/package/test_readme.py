"""What the README says one can do with the package: each job is done as it stands there."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

import tfbook.__main__ as command
from tfbook import generation
from tfbook.pretrained import load_directory

README = Path(command.__file__).parents[1] / "README.md"
TINY = "--batch 4 --context 11 --layers 1 --d-model 16 --heads 2 --steps 2 --every 2 --quiet"


@pytest.fixture(scope="module")
def jobs():
    """The blocks of code of the third section: search, chat, train."""
    section = README.read_text(encoding="utf-8").split("\n## ")[3]
    assert section.startswith("What to do with it\n")
    found = re.findall(r"```(?:python)?\n(.*?)\n```", section, flags=re.DOTALL)
    assert len(found) == 3 and all(len(code.splitlines()) <= 5 for code in found)
    return dict(zip(("search", "chat", "train"), found, strict=True))


def test_search_finds_what_means_the_same(jobs, capsys):
    exec(jobs["search"], {})
    assert capsys.readouterr().out == "The train to Bern leaves at nine.\n"


def test_chat_answers_as_it_writes(jobs, monkeypatch, capsys):
    small = partial(generation.Conversation, max_new_tokens=9, sampling=generation.GREEDY)
    monkeypatch.setattr(generation, "Conversation", small)
    exec(jobs["chat"], {})
    assert "Paris" in capsys.readouterr().out


def test_a_text_of_ones_own_is_learned_and_continued(jobs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("It is a truth universally acknowledged. " * 9, encoding="utf-8")
    train, write = (shlex.split(line)[3:] for line in jobs["train"].splitlines())
    assert command.main(train + TINY.split()) == 0
    capsys.readouterr()
    assert command.main([*write, "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("It is")
    assert load_directory("runs/mine").encode("It is").shape == (1, 5)
