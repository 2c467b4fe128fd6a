"""What the command line trains, from data to loss, and the folder that remembers how.

A :class:`Task` is made of plain choices, numbers and names. They are kept as ``run.json`` in the
run's folder, with the tokenizer beside it, so that a run can be gone on with, and its model used,
by the name of the folder alone.

Explained in: chapters/11_training, section "A run that cannot be lost".
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from tfbook import data
from tfbook._checks import check_number
from tfbook.data import (
    BOS,
    EOS,
    PAD,
    Loader,
    Windows,
    bucketed,
    byte_pair_tokenizer,
    char_tokenizer,
    pad_batch,
    rows,
    word_tokenizer,
)
from tfbook.models import (
    FFN,
    Attention,
    Classes,
    Layer,
    Norm,
    Rotary,
    Tokens,
    TransformerConfig,
    build,
)
from tfbook.training.checkpoints import last_checkpoint
from tfbook.training.objectives import causal_loss, translation_loss

__all__ = [
    "DEFAULTS",
    "TASKS",
    "Task",
    "holds_run",
    "load_run",
    "make_task",
    "read_choices",
    "write_choices",
]

CHOICES, TOKENIZER = "run.json", "tokenizer.json"
Choices = dict[str, object]

_MODEL = {"d_model": 128, "layers": 4, "heads": 4, "dropout": 0.0}
_COURSE = {
    "steps": 1000,
    "batch": 16,
    "accumulate": 1,
    "lr": 3e-3,
    "warmup": None,
    "schedule": "cosine",
    "optimizer": "adamw",
    "weight_decay": 0.1,
    "clip": 1.0,
    "precision": "float32",
    "seed": 0,
    "every": 250,
    "patience": None,
}
DEFAULTS: Mapping[str, Choices] = {
    "lm": {"text": None, "vocab": None, "context": 256} | _MODEL | _COURSE,
    "mt": {"vocab": 2000, "context": 48}
    | _MODEL
    | {"layers": 2, "dropout": 0.1}
    | _COURSE
    | {"batch": 32, "lr": 1e-3},
    "classifier": {"vocab": 8000, "context": 64}
    | _MODEL
    | {"d_model": 64, "layers": 2, "dropout": 0.3}
    | _COURSE
    | {"batch": 32, "lr": 1e-3, "every": 100, "patience": 4},
}


@dataclass(frozen=True)
class Task:
    """A model with everything that its training needs.

    Attributes:
        model: freshly drawn.
        batches: as :func:`tfbook.training.fit` takes them.
        loss: of a model and a batch: a sum and how many terms it has.
        evaluate: of a model: the loss on other data, and what else is worth knowing.
        tokenizer: from text to ids.

    Explained in: chapters/11_training, section "A run that cannot be lost".
    """

    model: nn.Module
    batches: object
    loss: Callable[[nn.Module, object], tuple[Tensor, int]]
    evaluate: Callable[[nn.Module], dict[str, float]]
    tokenizer: Tokenizer


def make_task(name: str, choices: Mapping[str, object]) -> Task:
    """Make a task of its choices.

    Args:
        name: one of :data:`TASKS`.
        choices: all those of ``DEFAULTS[name]``.

    Raises:
        ValueError: for an unknown name, or choices that do not go together.
        OSError: if a text cannot be read.

    Explained in: chapters/11_training, section "A run that cannot be lost".
    """
    if name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    torch.manual_seed(choices["seed"])
    return TASKS[name](choices)


def _language_model(choices: Mapping[str, object]) -> Task:
    """Predict the next character, or piece of a word, of a text."""
    train, valid = _texts(choices["text"])
    if choices["vocab"] is None:
        tokenizer = char_tokenizer(train + valid)
    else:
        tokenizer = byte_pair_tokenizer([train], vocab_size=choices["vocab"])
    ids, others = (torch.tensor(tokenizer.encode(text).ids) for text in (train, valid))
    context, n_bytes = choices["context"], len(valid.encode())
    if min(len(ids), len(others)) <= context:
        raise ValueError(
            f"the text must hold more than context = {context} tokens to train and to test on, "
            f"got {len(ids):,} and {len(others):,}"
        )
    config = _decoder(choices, tokenizer.get_vocab_size())
    held = rows(others, context)[:64]  # (R, N + 1): some are enough to watch
    bytes_per_token = n_bytes / len(others)

    def evaluate(model):
        nats = _mean_loss(model, causal_loss, held.split(choices["batch"]))
        return {"loss": nats, "bits_per_byte": nats / math.log(2) / bytes_per_token}

    windows = Windows(ids, context, batch_size=choices["batch"], seed=choices["seed"])
    return Task(build(config), windows, causal_loss, evaluate, tokenizer)


def _translation(choices: Mapping[str, object]) -> Task:
    """Translate English sentences into French."""
    pairs = data.english_french("train")
    tokenizer = byte_pair_tokenizer(
        [text for pair in pairs for text in pair], vocab_size=choices["vocab"]
    )
    longest = choices["context"]

    def ids(text, *, target):
        found = tokenizer.encode(text).ids
        return [BOS, *found, EOS] if target else [*found, EOS]

    def examples(split):
        found = [
            (ids(english, target=False), ids(french, target=True))
            for english, french in data.english_french(split)
        ]
        return [pair for pair in found if max(map(len, pair)) <= longest]

    def collate(chosen):
        return tuple(pad_batch(side, PAD)[0] for side in zip(*chosen, strict=True))

    def loss(model, pair):
        return translation_loss(model, pair, pad_id=PAD, label_smoothing=0.1)

    def plain(model, pair):
        return translation_loss(model, pair, pad_id=PAD)

    train, valid = examples("train"), examples("valid")
    lengths = [len(target) for _, target in train]
    held = [collate(valid[i : i + 32]) for i in range(0, len(valid), 32)]
    loader = Loader(
        train,
        lambda generator: bucketed(lengths, choices["batch"], generator=generator),
        collate=collate,
        seed=choices["seed"],
    )
    config = _decoder(choices, tokenizer.get_vocab_size())
    looking = [layer.with_cross() for layer in config.decoder]
    config = config.replace(encoder=config.decoder, decoder=looking)

    def evaluate(model):
        return {"loss": _mean_loss(model, plain, held)}

    return Task(build(config), loader, loss, evaluate, tokenizer)


def _classifier(choices: Mapping[str, object]) -> Task:
    """Tell sentences of film reviews that were found positive from those found negative."""
    train, valid = (
        [pair for pair in data.movie_sentiment(split) if pair[1]] for split in ("train", "valid")
    )
    tokenizer = word_tokenizer([text for text, _ in train], vocab_size=choices["vocab"])

    def collate(chosen):
        sequences = [
            [BOS, *tokenizer.encode(text).ids[: choices["context"] - 1]] for text, _ in chosen
        ]
        labels = torch.tensor([int(rating > 0) for _, rating in chosen])  # (B,)
        return pad_batch(sequences, PAD)[0], labels

    def scores(model, batch):
        return model(batch[0], mask=batch[0] != PAD)  # (B, 2)

    def loss(model, batch):
        found = functional.cross_entropy(scores(model, batch), batch[1], reduction="sum")
        return found, len(batch[1])

    lengths = [len(text) for text, _ in train]
    held = [collate(valid[i : i + 64]) for i in range(0, len(valid), 64)]

    def evaluate(model):
        right = sum((scores(model, batch).argmax(-1) == batch[1]).sum().item() for batch in held)
        return {"loss": _mean_loss(model, loss, held), "accuracy": right / len(valid)}

    loader = Loader(
        train,
        lambda generator: bucketed(lengths, choices["batch"], generator=generator),
        collate=collate,
        seed=choices["seed"],
    )
    config = _decoder(choices, tokenizer.get_vocab_size())
    config = config.replace(encoder=config.decoder, decoder=(), head=Classes(2))
    return Task(build(config), loader, loss, evaluate, tokenizer)


TASKS = {"lm": _language_model, "mt": _translation, "classifier": _classifier}


def write_choices(
    folder: str | os.PathLike[str], name: str, choices: Mapping[str, object], tokenizer: Tokenizer
) -> None:
    """Begin a run's folder: its choices and its tokenizer.

    Raises:
        FileExistsError: if it holds a run already.
        OSError: if it cannot be written.

    Explained in: chapters/11_training, section "A run that cannot be lost".
    """
    folder = Path(folder)
    if (folder / CHOICES).exists():
        raise FileExistsError(
            f"{folder} holds a run already: go on with --resume, or choose another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"made_by": "tfbook", "task": name, "choices": dict(choices)}
    # The choices come last: a folder that has them is complete.
    for file, text in ((TOKENIZER, tokenizer.to_str()), (CHOICES, json.dumps(contents, indent=1))):
        new = folder / f"{file}.new"
        new.write_text(text, encoding="utf-8")
        os.replace(new, folder / file)


def holds_run(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder was begun by :func:`write_choices`."""
    return (Path(folder) / CHOICES).is_file()


def read_choices(folder: str | os.PathLike[str]) -> tuple[str, Choices]:
    """Return the task and the choices of a run.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: if it is damaged or of another program.

    Explained in: chapters/11_training, section "A run that cannot be lost".
    """
    path = Path(folder) / CHOICES
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no run: there is no {CHOICES} in it")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        name, choices = found["task"], found["choices"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or of another program: {error!r}") from None
    if name not in TASKS or set(choices) != set(DEFAULTS[name]):
        raise ValueError(f"{path} is of another version of tfbook: task {name!r}")
    return name, choices


def load_run(folder: str | os.PathLike[str]) -> tuple[nn.Module, Tokenizer, int]:
    """Return the model of a run as it is in the last checkpoint, its tokenizer, and the step.

    The model is in evaluation mode, with the best weights if the run was watched with patience.

    Raises:
        FileNotFoundError: if the folder holds no run, or no checkpoint yet.
        ValueError: if no checkpoint is whole.

    Explained in: chapters/11_training, section "A run that cannot be lost".
    """
    folder = Path(folder)
    read_choices(folder)
    checkpoint = last_checkpoint(folder)
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint yet")
    model = build(TransformerConfig.from_dict(checkpoint.about["config"]))
    model.load_state_dict(checkpoint.state["best"]["weights"] or checkpoint.model)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    return model.eval(), tokenizer, checkpoint.step


def _texts(path: str | None) -> tuple[str, str]:
    """Return the text to train on, and the one to test on: its last tenth."""
    if path is None:
        return data.shakespeare("train"), data.shakespeare("valid")
    text = Path(path).read_text(encoding="utf-8")
    return text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]


def _decoder(choices: Mapping[str, object], vocab_size: int) -> TransformerConfig:
    """Return the config of a small model as they are made today."""
    check_number("d_model", choices["d_model"], 1, whole=True)
    d_ff = 8 * math.ceil(choices["d_model"] / 3)  # three matrices of it cost what two of 4 d do
    layer = Layer(
        Attention(choices["heads"], position=Rotary(), bias=False),
        FFN(d_ff, "swiglu", bias=False),
        norm=Norm("rms"),
        dropout=choices["dropout"],
    )
    check_number("layers", choices["layers"], 1, whole=True)
    return TransformerConfig(
        vocab_size,
        choices["d_model"],
        decoder=[layer] * choices["layers"],
        embedding=Tokens(dropout=choices["dropout"]),
        init="gpt2",
    )


def _mean_loss(model, loss, batches) -> float:
    """Return the mean over all terms of some batches."""
    found = [loss(model, batch) for batch in batches]
    return sum(value.item() for value, _ in found) / sum(count for _, count in found)
