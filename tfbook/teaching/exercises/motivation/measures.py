"""The exercise of chapter 01 on measuring a translator."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect_plain, numbers

# share-faultless --------------------------------------------------------------------------------


def share_faultless(logits: torch.Tensor, target: torch.Tensor) -> float:
    """Return the share of the sentences of a batch that are written without a mistake.

    At each place the word with the largest logit is written.

    logits: (B, N, V), a number for each of V words. target: (B, N), the true words.
    Returns: a number, as 0.25 where one sentence in four is right from beginning to end.
    """
    ...


def _said(batch: int, n: int, wrong: tuple[tuple[int, int], ...]) -> tuple[torch.Tensor, ...]:
    """Return logits and true words, with a mistake at each (sentence, place) of `wrong`."""
    target = torch.arange(batch * n).view(batch, n) % 4
    written = target.clone()
    for sentence, place in wrong:
        written[sentence, place] = (written[sentence, place] + 1) % 4
    logits = numbers(batch, n, 4, seed=271)
    return logits + 9 * torch.nn.functional.one_hot(written, 4), target


def _faultless_share(measure: Any) -> None:
    """A sentence counts only if each of its words is right."""
    logits, target = _said(4, 5, ((0, 1), (0, 4), (2, 3)))
    right = logits.argmax(-1) == target
    expect_plain(
        measure, {"logits": logits, "target": target}, 0.5,
        "Two of the four sentences have no mistake.",
        mistakes={
            "That is the share of right words. One wrong word spoils its sentence.":
                right.double().mean().item(),
            "A sentence with one right word counted as faultless: ask for all of them.":
                right.any(1).double().mean().item(),
            "That is the share of places at which no sentence has a mistake: `all` ran over the "
            "batch, axis 0.": right.all(0).double().mean().item(),
            "That is a count. Divide it by the number of sentences.": 2.0,
        },
    )


def _faultless_ends(measure: Any) -> None:
    """A batch without a mistake gives 1, and one with a mistake in each sentence 0."""
    for wrong, wanted in (((), 1.0), (((0, 0), (1, 2), (2, 1)), 0.0)):
        logits, target = _said(3, 4, wrong)
        expect_plain(measure, {"logits": logits, "target": target}, wanted)


SHARE_FAULTLESS = Exercise(
    name="share-faultless",
    title="The measure of the curves",
    level=1,
    section='chapters/01_motivation, section "Longer sentences, worse translations"',
    stub=share_faultless,
    properties=(_faultless_share, _faultless_ends),
    hints=(
        "Which word is written at a place? Compare it with the true one: that makes a table "
        "(B, N) of yes and no.",
        "One axis of the table holds the words of a sentence. All of them must be right.",
        "The mean of yes and no is a share, once `.float()` has made numbers of them. Which axis "
        "is left by then?",
    ),
)

EXERCISES = (SHARE_FAULTLESS,)
