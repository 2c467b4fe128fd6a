"""Fine-tuning: what is read from files, what is learned of it, and runs that stop and go on."""

import dataclasses
import json
import re

import pytest
import torch
from practice_kit import KIT, checks, close, decoder, encoder, ids

import tfbook.__main__ as command
import tfbook.commands.finetuning as finetuner
from tfbook import pretrained
from tfbook.data import char_tokenizer
from tfbook.training import IGNORE, Example, steps_in

LETTERS = "abcdefghijklmnopqr\n"
SMALL = "--batch 3 --context 24 --every 2 --quiet".split()


@pytest.fixture
def kit():
    return KIT


def tiny(kit, kind="decoder", **choices):
    """Return a pretrained model of 19 letters."""
    make = {"decoder": decoder, "encoder": encoder}[kind]
    return kit.Pretrained("tiny", model := make(kit), char_tokenizer(LETTERS), model.config,
                          **choices)  # fmt: skip


def turns(*contents):
    roles = ("user", "assistant") * len(contents)
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


# what is learned


def test_a_classifier_keeps_the_encoder_and_gets_a_new_head(kit):
    found = tiny(kit, "encoder")
    model = kit.classifier_from(found, 3)
    assert model.config.head == kit.models.Classes(3) and not model.training
    for name, x in found.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], x)
    tokens, mask = ids(2, 5), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    hidden = found.model.hidden(tokens, mask=mask)
    close(model(tokens, mask=mask), model.head(found.model.pooled(hidden)))
    labels = torch.tensor([2, 0])
    loss, count = kit.class_loss(model, (tokens, mask, labels))
    log_p = model(tokens, mask=mask).log_softmax(-1)
    close(loss, -(log_p[0, 2] + log_p[1, 0]), 1e-6)
    assert count == 2


def test_only_the_answer_is_learned_and_each_of_its_tokens(kit):
    found = tiny(kit, eos_ids=(18,))
    whole, start = kit.answer_ids(found, turns("abc", "de"))
    assert whole == [0 + 1, 2, 3, 0, 4, 5, 18] and start == 4  # the new line is the first letter
    batch = kit.answer_batch([(whole, start), ([7, 8, 9], 2)], pad_id=6)
    assert batch.inputs.tolist() == [whole[:-1], [7, 8, 9, 6, 6, 6]]
    no = IGNORE
    assert batch.targets.tolist() == [[no, no, no, 4, 5, 18], [no, 9, no, no, no, no]]
    logits = found.model(batch.inputs)[0].log_softmax(-1)
    wanted = -(logits[0, 3, 4] + logits[0, 4, 5] + logits[0, 5, 18] + logits[1, 1, 9])
    loss, count = kit.answer_loss(found.model, batch)
    close(loss, wanted, 1e-5)
    assert count == 4


def test_padding_and_the_next_conversation_change_no_answer(kit):
    found = tiny(kit)
    one, other = ([1, 2, 3, 4], 2), ([5, 6, 7, 8, 9, 10], 3)
    alone = [kit.answer_loss(found.model, kit.answer_batch([each])) for each in (one, other)]
    for pad in (0, 11):
        together, count = kit.answer_loss(found.model, kit.answer_batch([one, other], pad))
        close(together, alone[0][0] + alone[1][0], 1e-5)
        assert count == alone[0][1] + alone[1][1] == 5


def test_what_a_chat_model_reads_in_training_is_what_it_reads_when_asked(kit):
    found = pretrained.load("smollm2-135m")
    for messages in (turns("Who?", "Me.\n\nYou."), turns("Hi", "Hello", "And?", "<|im_end|>")):
        whole, start = kit.answer_ids(found, messages)
        assert whole[:start] == found.encode_chat(messages[:-1])[0].tolist()
        assert whole[-1:] == list(found.eos_ids)
        assert found.decode(whole[start:-1], special=True) == messages[-1]["content"]
        assert 2 not in whole[start:-1]  # an answer cannot end its turn by its words


def test_checkpoints_hold_what_is_trained_alone(kit):
    model = decoder(kit)
    kit.add_lora(model, 2)
    whole = kit.TrainedOnly(model)
    names = {name for name in whole.state_dict()}
    assert names == {f"{n}.{p}" for n in kit.lora_layers(model) for p in ("lora_a", "lora_b")}
    tokens = ids(2, 5)
    assert torch.equal(whole(tokens)[0], model(tokens)[0])
    other = {name: torch.full_like(x, 0.1) for name, x in whole.state_dict().items()}
    whole.load_state_dict(other)
    assert (model.stack.blocks[1].mixer.q_proj.lora_b == 0.1).all()
    with pytest.raises(ValueError, match="state does not fit: stack.blocks.0"):
        whole.load_state_dict(dict(list(other.items())[1:]))


# files


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def lines(*objects):
    return "\n".join(map(json.dumps, objects))


def test_the_same_labels_are_read_from_each_kind_of_file(kit, write):
    pairs = [("good, very", "yes"), ('bad "it is"', "no"), ("so\u2028so", "yes")]
    tables = {
        "a.tsv": "text\tlabel\n" + "".join(f"{t}\t{label}\n" for t, label in pairs),
        "b.TSV": "\ufeffLabel\tText\r\n" + "".join(f"{label}\t{t}\r\n" for t, label in pairs),
        "c.csv": "text,label\n" + "".join(
            '"{}",{}\n'.format(t.replace('"', '""'), label) for t, label in pairs),
        "d.jsonl": lines(*({"label": label, "text": t} for t, label in pairs)) + "\n\n",
    }  # fmt: skip
    for name, text in tables.items():
        found = kit.read_examples(write(name, text))
        assert (found.kind, found.items, found.labels) == ("labels", pairs, ("no", "yes"))
    numbers = kit.read_examples(write("e.jsonl", lines({"text": "a", "label": 1},
                                                       {"text": "b", "label": 0})))  # fmt: skip
    assert numbers.labels == ("0", "1")


def test_answers_and_texts_are_read(kit, write):
    both = lines({"prompt": "a", "answer": "b"}, {"messages": turns("a", "b")})
    found = kit.read_examples(write("a.jsonl", both))
    assert found.kind == "answers" and found.items == [turns("a", "b")] * 2
    found = kit.read_examples(write("a.txt", "abc\n"))
    assert (found.kind, found.items) == ("text", ["abc\n"])
    train, test = kit.split_examples(kit.read_examples(write("b.md", "0123456789" * 3)))
    assert (train, test) == (["0123456789" * 2 + "0123456"], ["789"])


def test_a_tenth_is_held_out_by_chance_and_nothing_is_lost(kit, write):
    items = [{"text": f"t{i}", "label": "ab"[i >= 20]} for i in range(40)]
    found = kit.read_examples(write("a.jsonl", lines(*items)))
    train, test = kit.split_examples(found, 3)
    assert len(test) == 4 and sorted(train + test) == sorted(found.items)
    assert kit.split_examples(found, 3) == (train, test) != kit.split_examples(found, 4)
    # The file is sorted by its labels, and its end holds one of them alone.
    assert any({label for _, label in kit.split_examples(found, i)[1]} == {"a", "b"}
               for i in range(3))  # fmt: skip


@pytest.mark.untyped
def test_a_line_that_does_not_fit_is_named(kit, write):
    for name, text, words in (
        ("a.doc", "x", "must end in one of .txt"),
        ("a.txt", b"na\xefve", "no UTF-8 text: it has the byte 0xef at place 2"),
        ("a.txt", " \n", "holds no example"),
        ("a.tsv", "good\tyes\nbad\tno\n", "must name its two columns"),
        ("a.tsv", "text\tlabel\nx\ty\tz\n", "a.tsv, line 2: there must be 2 columns, got 3"),
        ("a.tsv", "text\tlabel\nx\ty\nz\ty\n", "at least 2 labels, got only 'y'"),
        ("a.csv", "text,label\nx,\n", "line 2: label must be a text that is not empty"),
        ("a.csv", "text,label\n" + "x" * 200_000 + ",y\n", "a.csv, line"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{', "a.jsonl, line 2 is no JSON"),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1 is no JSON"),
        ("a.jsonl", "[]", "line 1 must be an object"),
        ("a.jsonl", '{"question": "a"}', "line 1 must have text and label"),
        ("a.jsonl", '{"text": "a", "label": true}', "label must be a text"),
        ("a.jsonl", lines({"text": "a", "label": "b"}, {"prompt": "a", "answer": "b"}),
         "line 2 is of another kind"),
        ("a.jsonl", lines({"messages": turns("a")}), "must end with an answer"),
        ("a.jsonl", lines({"messages": [{"role": "robot", "content": "a"}] * 2}), "must have a ro"),
        ("a.jsonl", "", "holds no example"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=re.escape(words)):
            kit.read_examples(write(name, text))


# runs


def run(*arguments):
    return command.main([str(each) for each in arguments])


QUESTIONS = lines(*({"prompt": f"What is {i}?", "answer": f"It is {i}."} for i in range(12)))


def losses(folder):
    found = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["loss"] for entry in map(json.loads, found) if "step" in entry]


@pytest.fixture
def tune(tmp_path, write):
    data = write(
        "mine.jsonl",
        QUESTIONS.replace("0", "zero").translate(str.maketrans("123456789", "abcdefghi")),
    )  # letters that Shakespeare has

    def tune(name, *more):
        folder = tmp_path / name
        begin = ("finetune", folder, "--data", data, "--model", "shakespeare", *SMALL)
        return folder, run(*begin, *more)

    return tune


def stopped(monkeypatch, stop):
    """Let training stop after some steps as Ctrl-C stops it."""
    real = finetuner.fit

    def fit(*args, steps, **choices):
        real(*args, steps=stop, **choices)
        raise KeyboardInterrupt(f"stopped after {stop} steps and saved")

    monkeypatch.setattr(finetuner, "fit", fit)


@pytest.mark.parametrize("way", [["--lora", "2"], ["--full"], ["--freeze", "embed.* *.0.*"]])
def test_a_tuning_that_was_stopped_goes_on(tune, monkeypatch, capsys, way):
    whole, code = tune("whole", "--steps", 5, *way)
    assert code == 0
    with monkeypatch.context() as patch:
        stopped(patch, 3)
        parts, code = tune("parts", "--steps", 5, *way)
    assert code == 130 and steps_in(parts) == [2, 3]
    assert run("finetune", parts, "--resume", "--quiet") == 0
    assert losses(parts) == losses(whole) and len(losses(whole)) == 5
    assert "going on after 3 steps" in capsys.readouterr().err
    one, other = (KIT.load_tuned(each) for each in (whole, parts))
    base = pretrained.load("shakespeare").model.state_dict()
    moved = set()
    for name, x in one.found.model.state_dict().items():
        assert torch.equal(x, other.found.model.state_dict()[name])
        moved |= set() if torch.equal(x, base[name]) else {name}
    wanted = {"--lora": lambda n: n.endswith("_proj.weight"), "--full": lambda n: True,
              "--freeze": lambda n: not n.startswith("embed") and ".0." not in n}  # fmt: skip
    assert moved == {name for name in base if wanted[way[0]](name)}
    assert one.step == 5 and one.kind == "answers" and not one.found.model.training


def test_a_checkpoint_of_adapters_is_small_and_opens_merged(tune, capsys):
    folder, code = tune("mine", "--steps", 4, "--lora", 2, "--lr", 0.01)
    assert code == 0
    said = capsys.readouterr().err
    assert re.search(r"shakespeare on 12 conversations: [\d,]+ of [\d,]+ parameters, 4 st", said)
    sizes = [p.stat().st_size for p in folder.glob("step-*/model.safetensors")]
    base = pretrained.load("shakespeare").model
    assert max(sizes) < 4 * 0.1 * base.count_parameters()
    tuned = KIT.load_tuned(folder)
    assert not KIT.lora_layers(tuned.found.model)
    for _ in range(2):
        assert run("generate", folder, "--prompt", "What is", "--tokens", 5, "--seed", 1) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first == second and first.startswith("What is")
    # And it is a base for the next.
    data = folder.parent / "mine.jsonl"
    again = ("finetune", folder.parent / "next", "--data", data, "--model", folder, *SMALL)
    assert run(*again, "--steps", 2, "--lora", 1) == 0
    (folder / "log.jsonl").unlink()
    for path in folder.glob("*/model.safetensors"):
        path.write_bytes(b"")
    assert run("generate", folder) == 1
    assert "whole" in capsys.readouterr().err


def test_labels_are_learned_by_minilm_and_told(tmp_path, write, capsys):
    data = write("m.tsv", "text\tlabel\n" + "fine good film\tup\nbad dull film\tdown\n" * 10)
    folder = tmp_path / "labels"
    assert run("finetune", folder, "--data", data, *SMALL, "--batch", 8, "--context", 9,
               "--steps", 12, "--every", 12, "--lr", "3e-4", "--freeze",
               "embed.* segments.* stack.blocks.[0-3].*") == 0  # fmt: skip
    said = capsys.readouterr().err
    assert "minilm-l6 on 20 texts with 2 labels" in said and "accuracy 1.0000" in said
    assert run("generate", folder, "--prompt", "good") == 0
    told = dict(line.split(" with probability ") for line in capsys.readouterr().out.splitlines())
    assert set(told) == {"up", "down"} and float(told["up"]) > 0.5
    tuned = KIT.load_tuned(folder)
    found = tuned.classify(["a dull film", "a good film"])
    assert tuned.labels == ("down", "up") and found.argmax(1).tolist() == [0, 1]
    close(found.sum(1), torch.ones(2), 1e-6)


def test_a_text_is_learned_and_adapters_stand_under_a_classifier(tmp_path, write, capsys):
    text = write("t.txt", "To be, or not to be, that is the question.\n" * 20)
    assert run("finetune", tmp_path / "text", "--data", text, "--model", "shakespeare", *SMALL,
               "--steps", 6, "--lora", 4, "--lr", "0.01") == 0  # fmt: skip
    found = losses(tmp_path / "text")
    assert found[-1] < found[0]
    capsys.readouterr()
    assert run("generate", tmp_path / "text", "--prompt", "To be", "--tokens", 3) == 0
    assert capsys.readouterr().out.startswith("To be")
    data = write("m.csv", "text,label\n" + "good film,1\nbad film,0\n" * 5)
    assert run("finetune", tmp_path / "thin", "--data", data, *SMALL, "--steps", 2,
               "--lora", 2) == 0  # fmt: skip
    assert KIT.load_tuned(tmp_path / "thin").classify("a film").shape == (1, 2)


@pytest.mark.untyped
def test_a_run_goes_on_with_its_own_choices_examples_and_base(tune, tmp_path, capsys):
    folder, _ = tune("run", "--steps", 2, "--lora", 2)
    assert tune("run", "--steps", 2)[1] == 1
    assert "holds a run already" in capsys.readouterr().err
    for more, words in (
        (("--lr", "0.5"), "has lr 0.0005, not 0.5"),
        (("--lora", "3"), "has lora 2, not 3"),
        (("--steps", "1"), "has steps 2, not 1"),
    ):
        assert run("finetune", folder, "--resume", *more) == 1
        assert words in capsys.readouterr().err
    assert run("finetune", folder, "--resume", "--steps", "4", "--quiet") == 0
    assert KIT.read_tuning(folder)["choices"]["steps"] == 4 and len(losses(folder)) == 4
    data = tmp_path / "mine.jsonl"
    data.rename(tmp_path / "moved.jsonl")
    assert run("finetune", folder, "--resume", "--data", tmp_path / "moved.jsonl", "--quiet") == 0
    (tmp_path / "moved.jsonl").write_text(lines({"prompt": "a", "answer": "b"}) + "\n" * 3)
    capsys.readouterr()
    again = ("finetune", folder, "--resume", "--data", tmp_path / "moved.jsonl")
    assert run(*again) == 1
    about = json.loads((folder / "finetune.json").read_text())
    for change, words in (
        ({"base": "0" * 40}, "stands on another shakespeare"),
        ({"choices": about["choices"] | {"lora": "2"}}, "damaged or of another program"),
        ({"choices": about["choices"] | {"steps": 0}}, "damaged or of another program"),
        ({"kind": "songs"}, "damaged or of another program"),
        ({"labels": 3}, "damaged or of another program"),
    ):
        (folder / "finetune.json").write_text(json.dumps(about | change))
        assert run("generate", folder) == 1
        assert words in capsys.readouterr().err
    for content in (b"{", b"\xff", b"[]", b"[" * 200_000):
        (folder / "finetune.json").write_bytes(content)
        assert run("generate", folder) == 1
        assert "finetune.json is damaged" in capsys.readouterr().err


@pytest.mark.untyped
def test_files_of_the_reader_are_left_alone(tune, tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes").write_text("mine")
    assert tune("a", "--steps", 2)[1] == 1
    assert "holds something else, such as notes" in capsys.readouterr().err
    assert [p.read_text() for p in (tmp_path / "a").iterdir()] == ["mine"]
    (tmp_path / "file").write_text("mine")
    assert tune("file", "--steps", 2)[1] == 1 and (tmp_path / "file").read_text() == "mine"


@pytest.mark.untyped
def test_what_cannot_be_tuned_is_said_in_a_line(tune, write, tmp_path, capsys):
    labels = write("l.tsv", "text\tlabel\na\tb\nc\td\n")
    words = write("w.txt", "To be or not to be. ")
    for arguments, said in (
        (["x"], "needs --data FILE"),
        (["x", "--data", labels, "--model", "shakespeare"], "must be of kind encoder"),
        (["x", "--data", words, "--model", "minilm-l6"], "must be of kind decoder"),
        (["x", "--data", words, "--model", "gpt5"], "must be a folder or one of minilm-l6"),
        (["x", "--data", words, "--model", "shakespeare"], "must hold more than context = 256"),
        (["x", "--data", words, "--lora", "2", "--full"], "one way to train, got --lora and --ful"),
        (["x", "--data", words, "--lr", "nan"], "lr must be"),
        (["x", "--data", words, "--steps", "0"], "steps must be from 1"),
        (["x", "--data", tmp_path / "none.txt"], "No such file"),
        (["x", "--resume"], "holds no fine-tuning"),
    ):
        assert run("finetune", *(tmp_path / "x" if a == "x" else a for a in arguments)) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("error: ") and said in last
    assert tune("y", "--steps", 2, "--freeze", "*")[1] == 1
    assert "got frozen ones only" in capsys.readouterr().err
    assert tune("z", "--steps", 2, "--freeze", "zz")[1] == 1
    assert "no name fits the pattern 'zz'" in capsys.readouterr().err
    assert tune("w", "--steps", 2, "--context", 4)[1] == 1
    assert "choose a larger --context" in capsys.readouterr().err


def test_the_help_explains_every_choice(capsys):
    with pytest.raises(SystemExit) as stop:
        run("finetune", "--help")
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(f"--{name.replace('_', '-')}" in text for name in KIT.TUNING)


def test_an_example_is_a_batch_that_can_be_moved(kit):
    batch = kit.answer_batch([([5, 6, 7], 1)])
    assert isinstance(kit.training.move(batch, torch.device("cpu")), Example)
    assert dataclasses.is_dataclass(kit.Tuned)


CHECKS = checks(globals())
