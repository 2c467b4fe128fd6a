"""The exercise of chapter 13 on labels of words: which pieces count."""

import math
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect, expect_gradients, numbers

# word-head --------------------------------------------------------------------------------------


def word_loss(
    hidden: torch.Tensor,
    word_ids: list[list[int | None]],
    labels: list[list[int]],
    head: torch.nn.Linear,
) -> torch.Tensor:
    """Compute the loss of a head for words: the mean over the first pieces of all texts.

    A word's label stands at its first piece. Its other pieces, the special tokens and padding are
    left out: give them the target -100.

    hidden: (B, N, D), vectors of all tokens. word_ids: for each text N numbers, that of the word to
    which the token belongs, from 0 on, or None at special tokens and padding. labels: for each text
    one int for each word. head: nn.Linear(D, K).
    Returns: the cross-entropy in nats, a tensor without axes.
    """
    ...


def _word_costs(
    hidden: torch.Tensor, word_ids: list[list[int | None]], labels: list[list[int]],
    head: torch.nn.Linear, *, carries: str = "first", others: int | None = None,
    logits: bool = False,
) -> list[torch.Tensor]:
    """Return the costs that count, one tensor for each text, as asked or with a known slip."""
    scores = head(hidden)
    log_p = torch.log_softmax(scores.softmax(-1) if logits else scores, -1)
    found = []
    for row, ids, wanted in zip(log_p, word_ids, labels, strict=True):
        pieces: list[tuple[int, int]] = []
        for i, word in enumerate(ids):
            at = [j for j, other in enumerate(ids) if other == word]
            here = {"first": at[:1], "last": at[-1:], "every": at}[carries]
            if word is not None and i in here:
                pieces.append((i, wanted[word]))
            elif others is not None:
                pieces.append((i, others))
        found.append(torch.stack([-row[i, label] for i, label in pieces]))
    return found


def _head(d: int, k: int, seed: int) -> torch.nn.Linear:
    """Return a head with known weights, without a draw from PyTorch's own generator."""
    head = torch.nn.utils.skip_init(torch.nn.Linear, d, k, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(numbers(k, d, seed=seed))
        head.bias.copy_(numbers(k, seed=seed + 1))
    return head


WORDS = [[None, 0, 0, 0, 1, 2, None], [None, 0, 1, 1, None, None, None]]
WORD_LABELS = [[1, 0, 0], [0, 2]]


def _words_first(loss: Any) -> None:
    """The first piece of a word carries its label, and nothing else counts."""
    hidden, head = numbers(2, 7, 2, seed=661), _head(2, 3, seed=663)
    case = hidden, WORDS, WORD_LABELS, head
    right = _word_costs(*case)
    every = _word_costs(*case, carries="every")
    as_class = _word_costs(*case, others=0)
    slipped = hidden[:, :3]
    begins = [row[:len(wanted)] for row, wanted in zip(slipped, WORD_LABELS, strict=True)]
    expect(
        loss(*case), torch.cat(right).mean(),
        "Five words count here, three of the first text and two of the second, each at the place "
        "of its first piece.",
        mistakes={
            "Every piece of a word carries its label here. Only the first one does; the others "
            "get -100.": torch.cat(every).mean(),
            "The last piece of a word carries its label here. Take the first one.":
                torch.cat(_word_costs(*case, carries="last")).mean(),
            "What should be left out has label 0 here, so it enters the loss. Begin with a target "
            "of -100 everywhere.": torch.cat(as_class).mean(),
            "This is the sum. Divide by the number of words, as `F.cross_entropy` does by itself.":
                torch.cat(right).sum(),
            "Each text's mean was taken, and then the mean of these. Each word counts alike.":
                torch.stack([costs.mean() for costs in right]).mean(),
            "The softmax was taken twice: `F.cross_entropy` wants the scores of the head.":
                torch.cat(_word_costs(*case, logits=True)).mean(),
            "The sum was divided by all places. Only first pieces count.":
                torch.cat(right).sum() / 14,
            "These are bits. Here the loss is in nats, as `F.cross_entropy` gives it.":
                torch.cat(right).mean() / math.log(2),
            "The labels were given to the first tokens of each text, [CLS] among them. `word_ids` "
            "says where a word begins.":
                torch.nn.functional.cross_entropy(
                    head(torch.cat(begins)), torch.tensor(sum(WORD_LABELS, []))
                ),
            "The sign is wrong: a loss is positive.": -torch.cat(right).mean(),
            "Word 0 was left out. It is a word like the others: ask whether the number is None.":
                torch.cat([costs[1:] for costs in right]).mean(),
        },
    )


def _words_padding(loss: Any) -> None:
    """What stands at special tokens, padding and further pieces changes nothing."""
    hidden, head = numbers(2, 7, 2, seed=665), _head(2, 3, seed=667)
    right = torch.cat(_word_costs(hidden, WORDS, WORD_LABELS, head)).mean()
    other = hidden.clone()
    other[0, [0, 2, 3, 6]], other[1, [0, 3, 4, 5, 6]] = 9.0, -9.0
    expect(
        loss(other, WORDS, WORD_LABELS, head), right,
        "Other vectors at tokens that do not count changed the loss.",
    )


def _words_any(loss: Any) -> None:
    """Any number of texts, words and labels, and the head learns from it."""
    for b, n, k, seed in ((1, 3, 2, 671), (3, 9, 5, 681)):
        generator = torch.Generator("cpu").manual_seed(seed)
        hidden, head = numbers(b, n, 4, seed=seed + 2), _head(4, k, seed=seed + 4)
        ids: list[list[int | None]] = []
        labels = []
        for _ in range(b):
            new = torch.randint(0, 2, (n - 2,), generator=generator).cumsum(0)
            ids.append([None, *(new - new[0]).tolist(), None])
            labels.append(
                torch.randint(0, k, (int(new[-1] - new[0]) + 1,), generator=generator).tolist()
            )
        right = torch.cat(_word_costs(hidden, ids, labels, head)).mean()
        expect(loss(hidden, ids, labels, head), right, f"With {b} texts and {k} labels it differs.")
    expect_gradients(lambda hidden: loss(hidden, ids, labels, head), hidden=hidden)


WORD_HEAD = Exercise(
    name="word-head",
    title="A head for words",
    level=2,
    section='chapters/13_language, section "A label for each word"',
    stub=word_loss,
    properties=(_words_first, _words_padding, _words_any),
    hints=(
        "Two parts: a table of targets, (B, N), and one call of `F.cross_entropy`. What stands in "
        "the table where nothing should count?",
        "Begin with -100 everywhere. In a list of word numbers, where does word 2 stand for the "
        "first time?",
        "The head gives (B, N, K), and `F.cross_entropy` wants one row of K scores for each "
        "target. Which two axes have to become one, and in both tensors?",
    ),
)

EXERCISES = (WORD_HEAD,)
