"""A reader's own examples: a text, lines with a label, or questions with answers, out of one file.

What the file is follows from its name and its columns; a line that does not fit is named by its
number, and nothing is guessed.

Explained in: chapters/18_practice, section "Fine-tuning on your own data".
"""

import csv
import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tfbook._checks import check_number
from tfbook.training import read_json

__all__ = ["KINDS", "Examples", "read_examples", "split_examples"]

KINDS = ("text", "labels", "answers")
COLUMNS = {"labels": {"text", "label"}, "answers": {"prompt", "answer"}}
ROLES = ("system", "user", "assistant")
ENDINGS = (".txt", ".md", ".tsv", ".csv", ".jsonl")
SHARE = 10  # one in so many is held out


@dataclass(frozen=True)
class Examples:
    """What a file holds.

    Attributes:
        kind: "text", "labels" or "answers".
        items: for a text that text; for labels pairs of text and label; for answers conversations,
            each a list of messages with "role" and "content" that ends with the assistant's.
        labels: the labels that occur, sorted; empty for other kinds.
        digest: of the file's bytes.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """

    kind: str
    items: list
    labels: tuple[str, ...]
    digest: str


def read_examples(path: str | os.PathLike[str]) -> Examples:
    """Read a file of examples.

    Its ending says what it holds. ``.txt`` and ``.md``: a text to go on with. ``.tsv``, ``.csv``: a
    first line that names the columns text and label, and then an example in each line. ``.jsonl``:
    an object in each line, with text and label, with prompt and answer, or with messages.

    Args:
        path: of the file, in UTF-8.

    Returns:
        What it holds.

    Raises:
        TypeError: if path is no path.
        ValueError: for an unknown ending, a text that is no UTF-8, or a line that does not fit.
        OSError: if it cannot be read.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a path, got {type(path).__name__}")
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ValueError(f"{path.name} must end in one of {', '.join(ENDINGS)}")
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no UTF-8 text: it has the byte {content[error.start]:#04x} at place "
            f"{error.start:,}; if it is Latin-1: iconv -f latin1 -t utf-8 {path} > new{ending}"
        ) from None
    if ending in (".txt", ".md"):
        kind, items = "text", [text] if text.strip() else []
    elif ending == ".jsonl":
        kind, items = _objects(path.name, text)
    else:
        kind, items = "labels", _rows(path.name, text, "\t" if ending == ".tsv" else ",")
    if not items:
        raise ValueError(f"{path.name} holds no example")
    labels = tuple(sorted({label for _, label in items})) if kind == "labels" else ()
    if kind == "labels" and len(labels) < 2:
        raise ValueError(f"{path.name} must have at least 2 labels, got only {labels[0]!r}")
    return Examples(kind, items, labels, hashlib.sha256(content).hexdigest())


def split_examples(examples: Examples, seed: int = 0) -> tuple[list, list]:
    """Keep a tenth for testing: the end of a text, and of other examples a tenth by chance.

    Args:
        examples: of :func:`read_examples`.
        seed: of the choice, which otherwise would follow the order of the file.

    Returns:
        What to learn from, and what to test on; at least one example in each.

    Raises:
        TypeError: for a wrong type.
        ValueError: if there are too few examples, or the seed is negative.

    Explained in: chapters/18_practice, section "Fine-tuning on your own data".
    """
    if not isinstance(examples, Examples):
        raise TypeError(f"examples must be Examples, got {type(examples).__name__}")
    check_number("seed", seed, 0, 2**63 - 1, whole=True)
    if examples.kind == "text":
        (text,) = examples.items
        cut = len(text) * (SHARE - 1) // SHARE
        return [text[:cut]], [text[cut:]]
    n = len(examples.items)
    if n < 2:
        raise ValueError(f"examples must be at least 2, one to test on, got {n}")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    held = set(order[: max(1, n // SHARE)])
    parts = ([i for i in range(n) if (i in held) == wanted] for wanted in (False, True))
    train, test = ([examples.items[i] for i in part] for part in parts)
    return train, test


def _rows(name: str, text: str, between: str) -> list[tuple[str, str]]:
    """Return texts and labels of a table."""
    quoting = csv.QUOTE_NONE if between == "\t" else csv.QUOTE_MINIMAL
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=between, quoting=quoting)
    try:
        rows = [(lines.line_num, row) for row in lines if row]
    except csv.Error as error:
        raise ValueError(f"{name}, line {lines.line_num}: {error}") from None
    head = [column.strip().lower() for column in rows[0][1]] if rows else []
    if sorted(head) != ["label", "text"]:
        raise ValueError(
            f"{name} must name its two columns, text and label, in its first line, got {head}"
        )
    found = []
    for number, row in rows[1:]:
        if len(row) != 2:
            raise ValueError(f"{name}, line {number}: there must be 2 columns, got {len(row)}")
        named = dict(zip(head, row, strict=True))
        found.append(_labelled(f"{name}, line {number}", named))
    return found


def _objects(name: str, text: str) -> tuple[str, list]:
    """Return the kind and the items of lines of JSON."""
    kinds, items = set(), []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            found = read_json(line.encode("utf-8"))
        except ValueError as error:
            raise ValueError(f"{where} is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise ValueError(f"{where} must be an object, got a {type(found).__name__}")
        if set(found) == COLUMNS["labels"]:
            kind, item = "labels", _labelled(where, found)
        elif set(found) == COLUMNS["answers"]:
            turns = (("user", found["prompt"]), ("assistant", found["answer"]))
            messages = [{"role": role, "content": content} for role, content in turns]
            kind, item = "answers", _conversation(where, messages)
        elif set(found) == {"messages"}:
            kind, item = "answers", _conversation(where, found["messages"])
        else:
            raise ValueError(
                f"{where} must have text and label, prompt and answer, or messages, "
                f"got {', '.join(sorted(found)) or 'nothing'}"
            )
        kinds.add(kind)
        items.append(item)
        if len(kinds) > 1:
            raise ValueError(f"{where} is of another kind than the lines before it")
    return (kinds or {"labels"}).pop(), items


def _labelled(where: str, found: Mapping[str, object]) -> tuple[str, str]:
    text, label = found["text"], found["label"]
    if isinstance(label, int) and not isinstance(label, bool):
        label = str(label)
    for name, value in (("text", text), ("label", label)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{where}: {name} must be a text that is not empty, got {value!r}")
    return text, label.strip()


def _conversation(where: str, messages: object) -> list[dict[str, str]]:
    """Return messages that end with an answer."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ValueError(f"{where}: messages must be a list of at least one, got {messages!r:.40}")
    for message in messages:
        fits = isinstance(message, dict) and set(message) == {"role", "content"}
        if not fits or not isinstance(message["content"], str) or message["role"] not in ROLES:
            raise ValueError(
                f"{where}: a message must have a role out of {', '.join(ROLES)} and a text as "
                f"content, got {message!r:.60}"
            )
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise ValueError(f"{where}: a conversation must end with an answer of the assistant")
    return list(messages)
