"""What the command line trains, from data to loss: a :class:`Task` made of plain choices.

Explained in: chapters/11_training, section "A run that can be resumed".
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from tfbook import data
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
from tfbook.optimization import Muon, decay_groups, muon_groups
from tfbook.training.choices import check_choices, check_memory
from tfbook.training.objectives import causal_loss, translation_loss
from tfbook.training.processes import device_of, move

__all__ = ["TASKS", "Task", "make_optimizer", "make_task"]


@dataclass(frozen=True)
class Task:
    """A model with everything that its training needs.

    Attributes:
        model: freshly drawn.
        batches: as :func:`tfbook.training.fit` takes them.
        loss: of a model and a batch: a sum and how many terms it has.
        evaluate: of a model: the loss on other data, and what else is worth knowing.
        tokenizer: from text to ids.
        digest: of the texts that it learns from and is tested on.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """

    model: nn.Module
    batches: object
    loss: Callable[[nn.Module, object], tuple[Tensor, int]]
    evaluate: Callable[[nn.Module], dict[str, float]]
    tokenizer: Tokenizer
    digest: str


def make_task(name: str, choices: Mapping[str, object]) -> Task:
    """Make a task of its choices.

    Args:
        name: one of :data:`TASKS`.
        choices: all those of ``DEFAULTS[name]``.

    Raises:
        TypeError: if a choice is of another kind.
        ValueError: for an unknown name, choices out of their bounds or that do not go together, a
            text that is no UTF-8, or a model that this machine has no memory for.
        OSError: if a text cannot be read.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    check_choices(name, choices)
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
    return Task(
        _built(config, choices), windows, causal_loss, evaluate, tokenizer, _digest(train, valid)
    )


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

    texts = [text for pair in data.english_french("valid") for text in pair]
    digest = _digest(*(text for pair in pairs for text in pair), *texts)
    return Task(_built(config, choices), loader, loss, evaluate, tokenizer, digest)


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
        there = (move(batch, device_of(model)) for batch in held)
        right = sum((scores(model, batch).argmax(-1) == batch[1]).sum().item() for batch in there)
        return {"loss": _mean_loss(model, loss, held), "accuracy": right / len(valid)}

    loader = Loader(
        train,
        lambda generator: bucketed(lengths, choices["batch"], generator=generator),
        collate=collate,
        seed=choices["seed"],
    )
    config = _decoder(choices, tokenizer.get_vocab_size())
    config = config.replace(encoder=config.decoder, decoder=(), head=Classes(2))
    digest = _digest(*(f"{rating} {text}" for text, rating in train + valid))
    return Task(_built(config, choices), loader, loss, evaluate, tokenizer, digest)


TASKS = {"lm": _language_model, "mt": _translation, "classifier": _classifier}


def make_optimizer(
    choices: Mapping[str, object], *, shard: bool = False
) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Return what makes the optimizer of a model.

    Args:
        choices: of the run: optimizer, lr and weight_decay among them.
        shard: whether weights are cut.

    Raises:
        ValueError: if the optimizer cannot work on weights that are cut.

    Explained in: chapters/11_training, section "A run that can be resumed".
    """
    name, lr, decay = (choices[each] for each in ("optimizer", "lr", "weight_decay"))
    if name == "muon" and shard:
        raise ValueError("muon makes whole matrices orthogonal, and --shard cuts them: use adamw")

    def make(model):
        if name == "muon":
            groups = muon_groups(model, lr=lr, adamw_lr=lr, weight_decay=decay)
            return Muon(groups, scale="adamw")
        groups = decay_groups(model, decay)
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.99), fused=not shard)

    return make


def _texts(path: str | None) -> tuple[str, str]:
    """Return the text to train on, and the one to test on: its last tenth."""
    if path is None:
        return data.shakespeare("train"), data.shakespeare("valid")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no UTF-8 text: it has the byte {error.object[error.start]:#04x} at place "
            f"{error.start:,}; if it is Latin-1: iconv -f latin1 -t utf-8 {path} > new.txt"
        ) from None
    return text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]


def _decoder(choices: Mapping[str, object], vocab_size: int) -> TransformerConfig:
    """Return the config of a small model as they are made today."""
    d_ff = 8 * math.ceil(choices["d_model"] / 3)  # three matrices of it cost what two of 4 d do
    layer = Layer(
        Attention(choices["heads"], position=Rotary(), bias=False),
        FFN(d_ff, "swiglu", bias=False),
        norm=Norm("rms"),
        dropout=choices["dropout"],
    )
    return TransformerConfig(
        vocab_size,
        choices["d_model"],
        decoder=[layer] * choices["layers"],
        embedding=Tokens(dropout=choices["dropout"]),
        init="gpt2",
    )


def _built(config: TransformerConfig, choices: Mapping[str, object]) -> nn.Module:
    """Return the model, if this machine has room for it."""
    check_memory(config.count_parameters(), config.vocab_size, choices)
    return build(config)


def _digest(*texts: str) -> str:
    """Return what tells these texts from others."""
    found = hashlib.sha256()
    for text in texts:
        found.update(text.encode("utf-8") + b"\0")
    return found.hexdigest()


def _mean_loss(model, loss, batches) -> float:
    """Return the mean over all terms of some batches."""
    found = [loss(model, move(batch, device_of(model))) for batch in batches]
    return sum(value.item() for value, _ in found) / sum(count for _, count in found)
