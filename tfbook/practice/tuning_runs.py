"""A fine-tuning run in a folder: what was chosen, what it stands on, and how it is opened again.

The folder keeps the choices as ``finetune.json``, with digests of the examples and of the base
model, and checkpoints of the trained weights alone. The base is not copied: it is named, and it
has to be the same when a run goes on or its model is opened.

Explained in: chapters/18_practice, section "Fine-tuning on your own data".
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from tokenizers import Tokenizer
from torch import Tensor, nn

from tfbook import pretrained
from tfbook._checks import check_choice, check_number
from tfbook.data import Loader, Windows, bucketed, rows
from tfbook.practice.finetuning import (
    TrainedOnly,
    answer_batch,
    answer_ids,
    answer_loss,
    class_loss,
    classifier_from,
)
from tfbook.practice.freezing import freeze, layer_rates
from tfbook.practice.lora import add_lora, bake_lora
from tfbook.practice.reading import KINDS, Examples, read_examples, split_examples
from tfbook.pretrained import Pretrained
from tfbook.training import (
    PRECISIONS,
    Task,
    causal_loss,
    check_empty,
    device_of,
    last_checkpoint,
    move,
    read_json,
    write_bytes,
    write_text,
)

__all__ = [
    "TUNING",
    "Tuned",
    "check_tuning",
    "holds_tuning",
    "load_tuned",
    "make_tuning",
    "read_tuning",
    "resolve_tuning",
    "tuning_groups",
    "write_tuning",
]

CHOICES = "finetune.json"
BASES = {"labels": "minilm-l6", "text": "smollm2-135m", "answers": "smollm2-135m"}

# Of each choice its default, its kind, and what it means.
TUNING: Mapping[str, tuple[object, object, str]] = {
    "data": (None, str, "your examples: .txt, .tsv, .csv or .jsonl, see above"),
    "model": (None, str, "what to begin with: a name or a folder (minilm-l6 or smollm2-135m)"),
    "lora": (None, int, "train adapters of this rank, all else frozen (8, but for labels)"),
    "full": (False, bool, "train every weight (for labels)"),
    "freeze": (None, str, "train all but the parameters whose names fit, such as 'embed.*'"),
    "context": (256, int, "tokens of an example that are read"),
    "steps": (200, int, "how often the weights are changed; with --resume more than before"),
    "batch": (8, int, "examples for a step"),
    "accumulate": (1, int, "batches for a step: larger steps in the same memory"),
    "lr": (None, float, "learning rate at its highest (5e-4 with adapters, else 5e-5)"),
    "layer_decay": (1.0, float, "factor on the rate from a layer to the one before it"),
    "warmup": (None, int, "steps in which the rate rises (a tenth)"),
    "schedule": ("linear", ("constant", "linear", "cosine"), "how it falls after that"),
    "weight_decay": (0.01, float, "how much matrices shrink at each step, times the rate"),
    "clip": (1.0, float, "longest gradient: a longer one is shortened to it"),
    "precision": ("float32", PRECISIONS, "of products; bfloat16 (bf16) pays on a GPU"),
    "seed": (0, int, "of everything that is drawn; the same seed gives the same run"),
    "every": (50, int, "steps between two evaluations, and between two checkpoints"),
    "patience": (None, int, "stop after so many evaluations that brought nothing better"),
}
BOUNDS = {
    "lora": (1, 4096),
    "context": (2, 2**20),
    "steps": (1, 10**9),
    "batch": (1, 2**20),
    "accumulate": (1, 2**20),
    "warmup": (0, 10**9),
    "seed": (0, 2**63 - 1),
    "every": (1, 10**9),
    "patience": (1, 10**9),
}


@dataclass(frozen=True, eq=False)
class Tuned:
    """A model that was fine-tuned, opened to be used.

    Attributes:
        found: the model with its tokenizer, adapters baked in, in evaluation mode.
        kind: what it learned: "text", "labels" or "answers".
        labels: of a classifier, in the order of its logits.
        step: how many steps it took.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """

    found: Pretrained
    kind: str
    labels: tuple[str, ...]
    step: int

    @torch.no_grad()
    def classify(self, texts: str | list[str]) -> Float[Tensor, "S C"]:
        """Return the probability of each label for each text, (S, C).

        Raises:
            TypeError: if texts are no strings.
            ValueError: if the model knows no labels, or a text is empty.
        """
        if self.kind != "labels":
            raise ValueError(f"{self.found.name} learned {self.kind} and no labels")
        ids, mask = self.found.encode([texts] if isinstance(texts, str) else texts, truncate=True)
        device = device_of(self.found.model)
        return self.found.model(ids.to(device), mask=mask.to(device)).softmax(-1)


def resolve_tuning(asked: Mapping[str, object], kind: str) -> dict[str, object]:
    """Fill up what was asked for with what is usual for a kind of examples, and check it all.

    Args:
        asked: some choices out of :data:`TUNING`, "data" among them.
        kind: of the examples.

    Returns:
        All choices, none of them open but "warmup" and "patience".

    Raises:
        TypeError: if a choice is of another kind.
        ValueError: for one that is unknown or out of its bounds, or for two ways at once.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    check_choice("kind", kind, KINDS)
    if not isinstance(asked, Mapping):
        raise TypeError(f"asked must be choices by name, got {type(asked).__name__}")
    unknown = [name for name in asked if name not in TUNING]
    if unknown:
        raise ValueError(f"choices must be out of {', '.join(TUNING)}, got {unknown[0]!r}")
    choices = {name: default for name, (default, _, _) in TUNING.items()} | dict(asked)
    ways = [name for name in ("lora", "full", "freeze") if choices[name] not in (None, False)]
    if len(ways) > 1:
        raise ValueError(f"choose one way to train, got {' and '.join(f'--{w}' for w in ways)}")
    if not ways:
        choices |= {"full": True} if kind == "labels" else {"lora": 8}
    choices["model"] = choices["model"] or BASES[kind]
    if choices["lr"] is None:
        choices["lr"] = 5e-5 if choices["lora"] is None else 5e-4
    if choices["warmup"] is None and isinstance(choices["steps"], int):
        choices["warmup"] = choices["steps"] // 10
    _check_choices(choices)
    return choices


def make_tuning(choices: Mapping[str, object], examples: Examples | None = None) -> Task:
    """Load the base, prepare it and the examples: all that :func:`tfbook.training.fit` needs.

    Args:
        choices: all of them, of :func:`resolve_tuning`.
        examples: of ``choices["data"]``, where they are read already.

    Returns:
        The task; its model's checkpoints hold trained weights only.

    Raises:
        TypeError: if a choice is of another kind.
        ValueError: for choices that do not go together, a base that cannot learn these examples, or
            examples that are all too long.
        OSError: if a file cannot be read.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    _check_choices(choices)
    examples = read_examples(choices["data"]) if examples is None else examples
    found = _open_base(choices["model"])
    torch.manual_seed(choices["seed"])
    model = _prepare(found, choices, len(examples.labels))
    longest = found.config.max_len or choices["context"]
    context = min(choices["context"], longest)
    make = {"text": _text_task, "labels": _label_task, "answers": _answer_task}[examples.kind]
    batches, loss, held = make(found, examples, choices, context)

    def evaluate(model):
        parts = [loss(model, move(batch, device_of(model))) for batch in held]
        numbers = {"loss": sum(x.item() for x, _ in parts) / sum(count for _, count in parts)}
        if examples.kind == "labels":
            right = sum(_count_right(model, batch) for batch in held)
            numbers["accuracy"] = right / sum(len(labels) for *_, labels in held)
        return numbers

    return Task(TrainedOnly(model), batches, loss, evaluate, found.tokenizer, examples.digest)


def holds_tuning(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder was begun by :func:`write_tuning`.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    return (Path(folder) / CHOICES).is_file()


def write_tuning(
    folder: str | os.PathLike[str], choices: Mapping[str, object], task: Task, examples: Examples
) -> None:
    """Begin a run's folder, or write down that a run takes more steps.

    Args:
        folder: one that is not there, an empty one, or that of the run.
        choices: all of them.
        task: what was made of them.
        examples: that it learns from.

    Raises:
        FileExistsError: if the folder holds anything else.
        OSError: if it cannot be written.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    folder = Path(folder)
    about = {
        "made_by": "tfbook.practice",
        "kind": examples.kind,
        "labels": list(examples.labels),
        "choices": dict(choices),
        "examples": task.digest,
        "base": _fingerprint(_open_base(choices["model"]).model),
    }
    text = json.dumps(about, indent=1)
    if holds_tuning(folder):
        write_text(folder / CHOICES, text)
        return
    check_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / CHOICES, text.encode("utf-8"))


def read_tuning(folder: str | os.PathLike[str]) -> dict[str, object]:
    """Return what a run's folder says: kind, labels, choices and digests.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: if it is damaged or of another program.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    path = Path(folder) / CHOICES
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no fine-tuning: there is no {CHOICES} in it")
    try:
        found = read_json(path.read_bytes())
        fits = found["made_by"] == "tfbook.practice" and found["kind"] in BASES
        fits = fits and all(isinstance(label, str) for label in found["labels"])
        fits = fits and isinstance(found["base"], str) and isinstance(found["examples"], str)
        _check_choices(found["choices"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged or of another program: {error!r}") from None
    if not fits:
        raise ValueError(f"{path} is damaged or of another program")
    return found


def check_tuning(folder: str | os.PathLike[str], task: Task) -> None:
    """Raise unless a task learns from the examples that a run was begun with, on the same base.

    Raises:
        FileNotFoundError: if the folder holds no run.
        ValueError: if the examples or the base were changed.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    found = read_tuning(folder)
    if found["examples"] != task.digest:
        raise ValueError(
            f"the run in {folder} learns from other examples: what it is given now is not what it "
            "was begun with; give it that file with --data, or begin another run"
        )
    _checked_base(folder, found)


def load_tuned(folder: str | os.PathLike[str]) -> Tuned:
    """Open what a run has learned: the last checkpoint, or the best where it had patience.

    Args:
        folder: of the run.

    Returns:
        The model, with plain layers: adapters are multiplied into them.

    Raises:
        FileNotFoundError: if the folder holds no run, or no checkpoint yet.
        ValueError: if a file is damaged, or the base is not the one that was begun with.
        OSError: if the base cannot be read.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    about = read_tuning(folder)
    choices, found = about["choices"], _checked_base(folder, about)
    checkpoint = last_checkpoint(folder)
    if checkpoint is None:
        raise FileNotFoundError(f"{folder} holds no checkpoint yet")
    model = _prepare(found, choices, len(about["labels"]))
    try:
        TrainedOnly(model).load_state_dict(checkpoint.state["best"]["weights"] or checkpoint.model)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the checkpoint of step {checkpoint.step} in {folder} is of another kind of run: "
            f"{error}"
        ) from None
    if choices["lora"] is not None:
        bake_lora(model)
    name = Path(folder).resolve().name
    whole = replace(found, name=name, model=model.eval(), config=model.config)
    return Tuned(whole, about["kind"], tuple(about["labels"]), checkpoint.step)


def tuning_groups(model: nn.Module, choices: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the optimizer's groups that the choices ask for, see :func:`layer_rates`.

    Args:
        model: with layers.
        choices: all of them, of :func:`resolve_tuning`.

    Raises:
        TypeError: if a choice is of another kind.
        ValueError: for choices out of their bounds, or nothing to train.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    _check_choices(choices)
    decay = {"decay": choices["layer_decay"], "weight_decay": choices["weight_decay"]}
    return layer_rates(model, choices["lr"], **decay)


def _open_base(name: str) -> Pretrained:
    if name in pretrained.names():
        return pretrained.load(name)
    if not os.path.isdir(name):
        known = ", ".join(pretrained.names())
        raise ValueError(f"model must be a folder or one of {known}, got {name!r}")
    return load_tuned(name).found if holds_tuning(name) else pretrained.load_directory(name)


def _checked_base(folder, about) -> Pretrained:
    found = _open_base(about["choices"]["model"])
    if _fingerprint(found.model) != about["base"]:
        raise ValueError(
            f"the run in {folder} stands on another {about['choices']['model']}: the weights there "
            "are not those that it was begun with"
        )
    return found


def _fingerprint(model: nn.Module) -> str:
    """Return what tells these weights from others; half a second for half a gigabyte."""
    found = hashlib.blake2b(digest_size=20)
    for name, x in model.state_dict().items():
        found.update(f"{name} {x.dtype} {tuple(x.shape)}\n".encode())
        found.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.hexdigest()


def _prepare(found: Pretrained, choices: Mapping[str, object], n_classes: int) -> nn.Module:
    """Return the model with the parts that are trained, and the rest frozen."""
    wanted = "encoder" if n_classes else "decoder"
    if found.config.kind != wanted:
        raise ValueError(
            f"model must be of kind {wanted} for these examples, got {found.name}, which is of "
            f"kind {found.config.kind}"
        )
    model = classifier_from(found, n_classes) if n_classes else found.model
    if choices["lora"] is not None:
        add_lora(model, choices["lora"])
        if n_classes:
            model.head.requires_grad_(True)  # nothing was learned there yet
    elif choices["freeze"] is not None:
        freeze(model, *choices["freeze"].split())
    return model


def _text_task(found, examples, choices, context):
    (train,), (test,) = split_examples(examples)
    ids, others = (torch.tensor(_plain_ids(found, text)) for text in (train, test))
    if min(len(ids), len(others)) <= context:
        raise ValueError(
            f"the text must hold more than context = {context} tokens to train and to test on, "
            f"got {len(ids):,} and {len(others):,}: choose a smaller --context"
        )
    windows = Windows(ids, context, batch_size=choices["batch"], seed=choices["seed"])
    return windows, causal_loss, rows(others, context)[:64].split(choices["batch"])


def _label_task(found, examples, choices, context):
    short = replace(found, config=found.config.replace(max_len=context))
    numbers = {label: i for i, label in enumerate(examples.labels)}

    def collate(chosen):
        ids, mask = short.encode([text for text, _ in chosen], truncate=True)  # (B, N) both
        return ids, mask, torch.tensor([numbers[label] for _, label in chosen])

    train, test = split_examples(examples, choices["seed"])
    lengths = [len(text) for text, _ in train]
    return _loader(train, lengths, collate, choices), class_loss, _held(test, collate, choices)


def _answer_task(found, examples, choices, context):
    def prepared(part):
        made = (answer_ids(found, messages) for messages in part)
        return [(ids, start) for ids, start in made if len(ids) <= context + 1]

    train, test = map(prepared, split_examples(examples, choices["seed"]))
    if not train or not test:
        raise ValueError(
            f"examples must have at most context = {context} tokens, and there is none so short "
            f"to {'test on' if train else 'train on'}: choose a larger --context"
        )

    def collate(chosen):
        return answer_batch(chosen, found.pad_id)

    lengths = [len(ids) for ids, _ in train]
    return _loader(train, lengths, collate, choices), answer_loss, _held(test, collate, choices)


def _loader(train, lengths, collate, choices):
    def plan(generator):
        return bucketed(lengths, choices["batch"], generator=generator)

    return Loader(train, plan, collate=collate, seed=choices["seed"])


def _held(test, collate, choices):
    size = choices["batch"]
    return [collate(test[i : i + size]) for i in range(0, len(test), size)]


def _plain_ids(found: Pretrained, text: str) -> list[int]:
    """Return the ids of a text of any length, in which nothing is a special token."""
    if found.tokenizer is None:
        raise ValueError(f"{found.name} came without a tokenizer.json, so it learns no text")
    plain = Tokenizer.from_str(found.tokenizer.to_str())
    plain.encode_special_tokens = True
    try:
        return plain.encode(text, add_special_tokens=False).ids
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"the text has a character that the model never saw: {error}") from None


def _count_right(model, batch) -> int:
    tokens, mask, labels = move(batch, device_of(model))
    return int((model(tokens, mask=mask).argmax(-1) == labels).sum())


def _check_choices(choices: Mapping[str, object]) -> None:
    if not isinstance(choices, Mapping) or set(choices) != set(TUNING):
        raise ValueError(f"choices must be {', '.join(TUNING)}")
    for name, value in choices.items():
        default, kind, _ = TUNING[name]
        if value is None and default is None and name not in ("data", "model", "lr"):
            continue
        if kind is int:
            check_number(name, value, *BOUNDS[name], whole=True)
        elif isinstance(kind, tuple) and value not in kind:
            raise ValueError(f"{name} must be one of {', '.join(kind)}, got {value!r}")
        elif kind in (str, bool) and not isinstance(value, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    check_number("lr", choices["lr"], above=0)
    check_number("clip", choices["clip"], above=0)
    check_number("weight_decay", choices["weight_decay"], 0)
    check_number("layer_decay", choices["layer_decay"], 0, 1, above=0)
