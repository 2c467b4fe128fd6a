"""The command line: train, stop, go on, write, look, measure."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tfbook
import tfbook.__main__ as command
import tfbook.commands.training as trainer
from tfbook import optimization, training
from tfbook.generation import Conversation, Sampling, generate
from tfbook.pretrained import Pretrained, load_directory
from tfbook.training import steps_in

SMALL = "--batch 6 --context 13 --layers 1 --d-model 16 --heads 2 --every 2 --quiet".split()
FEW = ["--text", "text.txt", "--context", "13"]  # the default is a million letters
TEXT = "It is a truth universally acknowledged, that a single man must be in want. " * 17


def run(*arguments):
    return command.main([str(each) for each in arguments])


def losses(folder):
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["loss"] for entry in map(json.loads, lines) if "step" in entry]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def lm(tmp_path, text):
    """Train a language model on a small text, in a folder of this name."""

    def lm(name, *more):
        folder = tmp_path / name
        return folder, run("train", "lm", folder, "--text", text, *SMALL, *more)

    return lm


def stopped(monkeypatch, steps):
    """Let training stop after some steps as Ctrl-C stops it."""
    real = trainer.fit

    def fit(*args, steps, **choices):
        real(*args, steps=stop, **choices)
        raise KeyboardInterrupt(f"stopped after {stop} steps and saved")

    stop = steps
    monkeypatch.setattr(trainer, "fit", fit)


def test_a_run_that_was_stopped_goes_on_by_the_name_of_its_folder(lm, monkeypatch, capsys):
    whole, code = lm("whole", "--steps", "5")
    assert code == 0
    with monkeypatch.context() as patch:
        stopped(patch, 3)
        parts, code = lm("parts", "--steps", "5")
    assert code == 130
    assert "Stopped after 3 steps and saved" in capsys.readouterr().err
    assert steps_in(parts) == [2, 3]
    assert run("train", "lm", parts, "--resume", "--quiet") == 0
    assert losses(parts) == losses(whole) and len(losses(whole)) == 5
    said = capsys.readouterr().err
    assert "going on after 3 steps" in said and "after 5 of 5 steps" in said
    for a, b in zip(
        *(training.load_run(each)[0].parameters() for each in (whole, parts)), strict=True
    ):
        assert torch.equal(a, b)


def test_what_was_trained_writes_and_is_looked_at(lm, capsys):
    folder, _ = lm("run", "--steps", "3")
    capsys.readouterr()
    written = []
    for _ in range(2):
        write = ("generate", folder, "--prompt", "It is", "--tokens", 8, "--seed", 3)
        assert run(*write) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]  # a seed is a seed
    assert written[0].startswith("It is") and len(written[0]) == len("It is") + 8 + 1
    assert run("generate", folder, "--prompt", "It is", "--tokens", 5, "--temperature", 0) == 0
    capsys.readouterr()
    assert run("inspect", folder, "--length", 7) == 0
    out, err = capsys.readouterr()
    assert "stack.blocks.0.mixer.scores" in out and "after 3 steps" in err
    total = f"{training.load_run(folder)[0].count_parameters():,}"
    assert total in out.splitlines()[-1]


def test_what_was_trained_is_opened_as_a_pretrained_model(lm, tmp_path, capsys):
    folder, _ = lm("mine", "--steps", "3")
    mine = load_directory(folder)
    assert isinstance(mine, Pretrained) and mine.name == "mine" and not mine.model.training
    assert mine.decode(mine.encode(TEXT[:13])[0].tolist()) == TEXT[:13]
    capsys.readouterr()
    write = ("generate", folder, "--prompt", "It is", "--tokens", 8, "--temperature", 0)
    assert run(*write) == 0
    found = generate(mine, "It is", max_new_tokens=8)
    assert capsys.readouterr().out == "It is" + mine.decode(found.tokens[0]) + "\n"
    assert load_directory(folder, dtype=torch.bfloat16).model.embed.weight.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="made of the 24 characters that the model knows"):
        mine.encode("é")
    for file in folder.glob("*/*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(ValueError, match="no checkpoint in .* is whole|damaged"):
        load_directory(folder)


def test_pieces_of_words_are_written_as_they_come(lm, capsys):
    folder, code = lm("pieces", "--steps", "2", "--vocab", "270", "--optimizer", "muon")
    assert code == 0
    capsys.readouterr()
    assert run("generate", folder, "--prompt", "é", "--tokens", 11, "--seed", 1) == 0
    assert capsys.readouterr().out.startswith("é")


def test_a_translator_is_trained_and_translates(tmp_path, capsys):
    folder = tmp_path / "french"
    choices = ["--vocab", 300, *SMALL, "--context", 40, "--steps", 2]
    assert run("train", "mt", folder, *choices) == 0
    assert run("generate", folder, "--prompt", "Open the file.", "--tokens", 5) == 0
    assert run("train", "mt", folder, "--resume", "--quiet") == 0


def test_a_classifier_is_trained_and_asked(tmp_path, capsys):
    folder = tmp_path / "films"
    assert run("train", "classifier", folder, *SMALL, "--steps", 3, "--vocab", 500) == 0
    assert "accuracy" in capsys.readouterr().err
    assert run("generate", folder, "--prompt", "A dull film.") == 0
    said = capsys.readouterr().out
    assert said.startswith("positive with probability") and 0 < float(said.split()[-1]) < 1


def test_the_loss_before_training_is_that_of_knowing_nothing():
    choices = training.DEFAULTS["lm"] | {"d_model": 16, "heads": 2, "layers": 1, "context": 31}
    task = training.make_task("lm", choices)
    n_tokens = task.tokenizer.get_vocab_size()
    found = task.evaluate(task.model.eval())
    assert n_tokens == 63
    assert found["loss"] == pytest.approx(torch.tensor(63.0).log().item(), rel=0.02)
    # One byte for each character of this text.
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / 0.6931472, rel=1e-6)
    value, count = task.loss(task.model, task.batches(0))
    assert count == 16 * 31 and value.item() / count == pytest.approx(found["loss"], rel=0.02)


def test_any_preset_is_looked_at(capsys):
    assert run("inspect", "gpt2", "--length", 11) == 0
    assert "124,439,808" in capsys.readouterr().out
    assert run("inspect", "vit-b-16") == 0


def test_the_machine_is_measured(monkeypatch, capsys):
    threads, clock = torch.get_num_threads(), itertools.count()
    # Every look at the clock takes a second: one between beginning and end, so three in all.
    ticking = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("tfbook.commands.measuring.time", ticking)
    assert run("bench", "--seconds", 2) == 0
    assert torch.get_num_threads() == threads
    lines = capsys.readouterr().out.splitlines()[1:]
    said = [line.removesuffix(" tokens a second").split() for line in lines]
    assert said == [["training", f"{16 * 256 / 3:,.0f}"], ["writing", f"{32 / 3:,.0f}"]]


def test_the_help_explains_every_choice(capsys):
    for task, choices in training.DEFAULTS.items():
        with pytest.raises(SystemExit) as stop:
            run("train", task, "--help")
        assert stop.value.code == 0
        text = capsys.readouterr().out
        assert all(f"--{name.replace('_', '-')}" in text for name in choices)
        assert "--resume" in text and f"python -m tfbook train {task} runs/" in text
    assert set(choices) <= set(training.MEANINGS)


def test_a_chat_asks_answers_and_ends(monkeypatch, capsys):
    asked, talks = iter(["What is 2+3?"]), []

    def question(prompt):
        print(prompt, end="")
        try:
            return next(asked)
        except StopIteration:
            raise EOFError from None

    class Heard(Conversation):
        def __init__(self, model, **choices):
            super().__init__(model, **choices)
            talks.append((self, choices))

    monkeypatch.setattr("builtins.input", question)
    monkeypatch.setattr(command, "Conversation", Heard)
    assert run("chat", "--tokens", 5, "--top-p", 0.5, "--seed", 1, "--system", "Be brief.") == 0
    ((conversation, choices),) = talks
    assert choices["sampling"] == Sampling(temperature=0.2, top_p=0.5, repetition_penalty=1.1)
    assert (choices["max_new_tokens"], choices["seed"]) == (5, 1)
    system, question, answer = (each["content"] for each in conversation.messages)
    assert (system, question) == ("Be brief.", "What is 2+3?")
    assert capsys.readouterr().out == f"> {answer}\n> \n" and answer
    assert run("chat", "shakespeare") == 1
    assert "shakespeare was not trained on conversations" in capsys.readouterr().err


@pytest.mark.untyped
@pytest.mark.parametrize(
    "message, arguments",
    [
        ("a run's folder or one of smollm2-135m, shakespeare, got", ["generate", "nowhere"]),
        ("a run's folder or one of transformer-base,", ["inspect", "gpt5"]),
        (
            "gpt2 reads at most 1,024 tokens, got --length 2048",
            ["inspect", "gpt2", "--length", "2048"],
        ),
        ("lr must be finite and above 0, got nan", ["train", "lm", "new", "--lr", "nan"]),
        ("holds no run: there is no run.json", ["train", "lm", "nowhere", "--resume"]),
        (
            "No such file or directory: .*nowhere.txt'",
            ["train", "lm", "x", "--text", "nowhere.txt"],
        ),
        ("warmup must be fewer", ["train", "lm", "x", *FEW, "--steps", "5", "--warmup", "7"]),
        (
            "n_heads must divide d_model",
            ["train", "lm", "x", *FEW, "--d-model", "16", "--heads", "3"],
        ),
        ("shard=True cuts weights .* torchrun", ["train", "lm", "x", *FEW, "--shard", *SMALL]),
        ("vocab must be from 1 to 10000000", ["train", "lm", "x", "--vocab", str(2**62)]),
        ("layers must be from 1 to 1000", ["train", "lm", "x", "--layers", str(10**9)]),
        ("batch must be from 1 to 1048576", ["train", "lm", "x", "--batch", "999999999999"]),
        ("this machine has .* smaller", ["train", "lm", "x", *FEW, "--d-model", "65536"]),
        ("threads must be from 1 to 1024, got 0", ["bench", "--threads", "0"]),
        ("seconds must be .* got nan", ["bench", "--seconds", "nan"]),
        ("length must be from 1 to", ["inspect", "gpt2", "--length", "0"]),
    ],
)
def test_an_error_is_one_line_and_not_a_traceback(text, monkeypatch, capsys, message, arguments):
    monkeypatch.chdir(text.parent)
    assert command.main(arguments) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("error: ")
    assert re.search(message, said[-1])


def test_a_folder_is_one_run(lm, capsys):
    folder, _ = lm("run", "--steps", "2")
    assert lm("run", "--steps", "2")[1] == 1
    assert "holds a run already" in capsys.readouterr().err
    assert run("train", "lm", folder, "--resume", "--lr", "0.5") == 1
    assert "has lr 0.003, not 0.5" in capsys.readouterr().err
    assert run("train", "mt", folder, "--resume") == 1
    assert "has task 'lm', not 'mt'" in capsys.readouterr().err
    assert run("generate", folder, "--prompt", "é") == 1
    assert "a character that the model never saw: 'é'" in capsys.readouterr().err
    (folder / "run.json").write_text("{")
    assert run("generate", folder) == 1
    assert "run.json is damaged" in capsys.readouterr().err


@pytest.mark.untyped
def test_a_folder_with_anything_in_it_is_left_alone(lm, tmp_path, capsys):
    for name in ("tokenizer.json", "log.jsonl", "run.json.new", ".writing-notes"):
        folder = tmp_path / name.strip(".").replace(".", "-")
        folder.mkdir()
        (folder / name).write_text("mine")
        assert lm(folder.name, "--steps", "2")[1] == 1
        assert f"holds something else, such as {name}" in capsys.readouterr().err
        assert [path.read_text() for path in folder.iterdir()] == ["mine"]
    (tmp_path / "file").write_text("mine")
    assert lm("file", "--steps", "2")[1] == 1
    assert "got the file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert lm("empty", "--steps", "2")[1] == 0


@pytest.mark.untyped
def test_a_run_goes_on_with_its_own_text_only(lm, text, tmp_path, monkeypatch, capsys):
    folder, _ = lm("run", "--steps", "4")
    monkeypatch.chdir(tmp_path / "run")  # a path is that of the file, wherever one is
    assert run("train", "lm", folder, "--resume", "--quiet") == 0
    text.rename(tmp_path / "moved.txt")
    assert run("train", "lm", folder, "--resume", "--text", "../moved.txt", "--quiet") == 0
    text.write_text(TEXT.swapcase().swapcase().replace("single", "elgnis"))  # the same characters
    capsys.readouterr()
    assert run("train", "lm", folder, "--resume", "--quiet") == 1
    assert "learns from another text" in capsys.readouterr().err
    text.write_bytes("naïve".encode("latin-1") * 100)
    assert run("train", "lm", folder, "--resume", "--quiet") == 1
    assert re.search(r"text.txt is no UTF-8 text: .* 0xef at place 2", capsys.readouterr().err)


@pytest.mark.untyped
def test_a_model_writes_no_further_than_it_has_learned_to_read(lm, capsys):
    folder, _ = lm("run", "--steps", "2")
    assert training.load_run(folder)[0].config.max_len == 13
    capsys.readouterr()
    assert run("generate", folder, "--prompt", "It is", "--seed", 1) == 0
    assert len(capsys.readouterr().out) == 13 + 1  # what there is room for, and not 300
    assert run("generate", folder, "--prompt", "It is", "--tokens", 9) == 1
    assert "trained on 13 tokens at once" in (said := capsys.readouterr().err)
    assert "the prompt has 5, so --tokens is 8 at most" in said
    assert run("generate", folder, "--prompt", "It is a truth") == 1
    assert run("inspect", folder) == 0


@pytest.mark.untyped
def test_a_finished_run_is_lengthened_and_says_what_the_rate_does(lm, capsys):
    folder, _ = lm("run", "--steps", "4", "--warmup", "1")
    assert run("train", "lm", folder, "--resume", "--steps", "3") == 1
    assert "has steps 4, not 3" in capsys.readouterr().err
    assert run("train", "lm", folder, "--resume", "--steps", "8", "--quiet") == 0
    said = capsys.readouterr().err
    assert "8 steps instead of 4: the cosine schedule now ends there" in said
    whole = optimization.schedule("cosine", warmup=1, steps=8)
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in log if "step" in line]
    assert rates[4:] == pytest.approx([3e-3 * whole(step) for step in range(4, 8)])
    assert f"the learning rate is {rates[4]:.2g} and not" in said
    assert training.read_choices(folder)[1]["steps"] == 8
    assert run("train", "lm", folder, "--resume", "--quiet") == 0  # of the new length


def test_the_loss_on_held_out_text_is_said_as_the_run_goes_on(lm, capsys):
    folder, _ = lm("run", "--steps", "5", "--rate", "0.02", "--precision", "bf16")
    said = capsys.readouterr().err
    assert "5 steps of adamw at a rate of 0.02 (cosine), on cpu" in said
    assert training.read_choices(folder)[1]["precision"] == "bfloat16"
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    looks = [line for line in log if "after" in line]
    best = min(looks, key=lambda line: line["loss"])
    for look in looks:
        assert f"after {look['after']} of 5 steps: held-out loss {look['loss']:.4f}" in said
    assert f"(best {best['loss']:.4f} after {best['after']})" in said.splitlines()[-1]


@pytest.mark.untyped
def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(lm, capsys):
    for rate, steps in ("1e300", "1"), ("1e30", "5"):
        folder, code = lm(f"run{steps}", "--lr", rate, "--steps", steps, "--warmup", "0")
        assert code == 1
        said = capsys.readouterr().err
        assert re.search("error: .* (is not finite|is nan|is inf)", said)
        assert "kept in" not in said
        assert all(torch.isfinite(x).all() for x in _weights(folder))


def _weights(folder):
    found = training.last_checkpoint(folder)
    return [] if found is None else found.model.values()


def test_a_rank_without_a_group_is_one_process(lm, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    folder, code = lm("run", "--steps", "2")
    assert code == 0 and training.load_run(folder)[2] == 2


def test_the_bare_command_says_what_can_be_done(capsys):
    assert run() == 0
    said = capsys.readouterr().out
    for name in ("train", "generate", "inspect", "bench"):
        assert f"  {name} " in said and f"python -m tfbook {name}" in said
    with pytest.raises(SystemExit) as stop:
        run("--version")
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"tfbook {tfbook.__version__}\n"


@pytest.mark.untyped
def test_a_damaged_run_is_named(lm, capsys):
    folder, _ = lm("run", "--steps", "2")
    choices, tokenizer = ((folder / name).read_bytes() for name in ("run.json", "tokenizer.json"))
    damages = {
        "tokenizer.json": (None, b"{", b"\xff", b"[" * 200_000, b"{}"),
        "run.json": (
            *(None, b"{", b"\xff", b"[" * 200_000, b"[]", b'{"task": [], "choices": {}}'),
            choices.replace(b'"d_model": 16', b'"d_model": "16"'),
            choices.replace(b'"layers": 1', b'"layers": 1000000000'),
            choices.replace(b'"lr": 0.003', b'"lr": NaN'),
        ),
    }
    for name, contents in damages.items():
        for content in contents:
            (folder / name).unlink()
            if content is not None:
                (folder / name).write_bytes(content)
            capsys.readouterr()
            for arguments in (["generate", folder], ["train", "lm", folder, "--resume", "--quiet"]):
                assert run(*arguments) == 1
                assert re.search(f"error: .*{name}", capsys.readouterr().err), content
            (folder / name).write_bytes(tokenizer if name == "tokenizer.json" else choices)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").mkdir()
    assert run("generate", folder) == 1
    assert "tokenizer.json cannot be read: Is a directory" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="gloo is tested on POSIX")
def test_torchrun_trains_as_one_process_does(lm, tmp_path, text):
    one, _ = lm("one", "--steps", "5")
    root = Path(command.__file__).parents[1]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = ["-m", "tfbook", "train", "lm", tmp_path / "two", "--text", text, *SMALL]
    done = subprocess.run(
        [*launch, *map(str, arguments), "--steps", "5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    # Sums of float32 in another order, through five steps of AdamW.
    assert losses(tmp_path / "two") == pytest.approx(losses(one), rel=1e-5)
    assert steps_in(tmp_path / "two") == steps_in(one)
