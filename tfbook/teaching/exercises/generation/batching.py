"""The exercise of chapter 12 on prompts of different lengths."""

from typing import Any

import torch

from tfbook.teaching.exercises._spec import (
    Exercise,
    expect,
    parts,
)

Prompts = tuple[tuple[int, ...], ...]

# left-padding -----------------------------------------------------------------------------------


def pad_left(
    prompts: list[list[int]], pad: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Put prompts of different lengths into one batch, so that all end in the last column.

    Shorter prompts get padding in front. The first token of each prompt has position 0, wherever
    it stands; padding has position 0 too.

    prompts: lists of ids, none empty. pad: the id to fill with.
    Returns: the tokens (B, N), int64, with N the length of the longest prompt; the mask (B, N),
    boolean, True at tokens of a prompt; the positions (B, N), int64.
    """
    ...


def _padded(prompts: Prompts, pad: int) -> tuple[torch.Tensor, ...]:
    longest = max(map(len, prompts))
    gaps = [longest - len(prompt) for prompt in prompts]
    tokens = [[pad] * gap + list(prompt) for gap, prompt in zip(gaps, prompts, strict=True)]
    places = [[0] * gap + list(range(longest - gap)) for gap in gaps]
    real = torch.arange(longest) >= torch.tensor(gaps)[:, None]
    return torch.tensor(tokens), real, torch.tensor(places)


PROMPTS = ((7, 8, 9, 6), (5,), (3, 4))
NAMES = ("tokens", "mask", "positions")


def _results(function: Any, prompts: Prompts, pad: int) -> tuple[Any, ...]:
    return parts(function([list(prompt) for prompt in prompts], pad), *NAMES)


def _pad_tokens(function: Any) -> None:
    """The padding stands in front, and every prompt ends in the last column."""
    right, mask, places = _padded(PROMPTS, 0)
    behind = torch.tensor([[7, 8, 9, 6], [5, 0, 0, 0], [3, 4, 0, 0]])
    turned = torch.tensor([[6, 9, 8, 7], [0, 0, 0, 5], [0, 0, 4, 3]])
    expect(
        _results(function, PROMPTS, 0)[0],
        right,
        "Every prompt should end in the last column, with padding in front of the shorter ones.",
        what="The first result, the tokens,",
        mistakes={
            "The padding stands behind the prompts. The next token is predicted from the last "
            "column, which would be padding.": behind,
            "The prompts were turned around.": (turned, behind.flip(1)),
            "All prompts were cut to the shortest.": right[:, -1:],
            "There is a column of padding too many.":
                torch.cat([torch.zeros(3, 1).long(), right], 1),
            "The order of the results is tokens, mask, positions.": (mask, places),
        },
    )


def _pad_mask(function: Any) -> None:
    """The mask is True at the tokens of a prompt."""
    _, right, places = _padded(PROMPTS, 0)
    expect(
        _results(function, PROMPTS, 0)[1],
        right,
        "The mask should be True where a token of a prompt stands.",
        what="The second result, the mask,",
        mistakes={
            "The mask is inverted: True marks a token of a prompt.": ~right,
            "These are ones and zeros. Return a boolean mask.": (right.long(), right.double()),
            "This is the mask of padding behind the prompts.": right.flip(1),
            "The mask is a table of queries and keys. Return one row for each prompt.":
                right[:, None] & torch.ones(4, 4).tril().bool(),
            "The order of the results is tokens, mask, positions.": places,
        },
    )


def _pad_positions(function: Any) -> None:
    """The first token of every prompt has position 0."""
    tokens, mask, right = _padded(PROMPTS, 0)
    columns = torch.arange(4).expand(3, 4)
    sums = mask.cumsum(1)
    expect(
        _results(function, PROMPTS, 0)[2],
        right,
        "The positions should count the tokens of each prompt from 0, and be 0 at padding.",
        what="The third result, the positions,",
        mistakes={
            "The columns were counted. A short prompt would begin at a position where it never "
            "began in training: count its own tokens.": columns,
            "The columns were counted and set to 0 at padding. The first token of a prompt has "
            "position 0, whatever its column.": columns * mask,
            "The positions begin with 1. The first token has position 0.": sums,
            "Padding has a negative position. It has position 0.":
                (sums - 1, columns - (~mask).sum(1, keepdim=True)),
            "Padding was counted: its tokens have positions of their own.":
                (~mask).cumsum(1) + columns,
            "The positions count down.": right.flip(1),
        },
    )


def _pad_inside(function: Any) -> None:
    """The id of padding may be a token of a prompt."""
    prompts = ((2, 5, 2, 2), (2, 3), (4, 2))
    for got, right, name in zip(
        _results(function, prompts, 2), _padded(prompts, 2), NAMES, strict=True
    ):
        expect(
            got, right,
            "Here the id of padding occurs in the prompts. Find the padding by the lengths.",
            what=f"With prompts that hold the id of padding, the result {name}",
        )


def _pad_sizes(function: Any) -> None:
    """One prompt, or prompts of one length, need no padding."""
    for prompts in (((4, 5, 6),), ((1,), (2,), (3,)), ((1, 2), (3, 4))):
        for got, right, name in zip(
            _results(function, prompts, 9), _padded(prompts, 9), NAMES, strict=True
        ):
            expect(got, right, what=f"Without padding, the result {name}")


LEFT_PADDING = Exercise(
    name="left-padding",
    title="A batch of different lengths",
    level=1,
    section='chapters/12_generation, section "A batch of different lengths"',
    stub=pad_left,
    properties=(_pad_tokens, _pad_mask, _pad_positions, _pad_inside, _pad_sizes),
    hints=(
        "How many columns of padding does each prompt need? All three results follow from that "
        "number.",
        "A column belongs to a prompt where its number is at least the gap in front. The position "
        "is the column minus the gap, but never below 0.",
        "Put the gaps into a column (B, 1), and take `torch.arange(n)` as a row. What do a "
        "comparison and a difference of the two broadcast to?",
    ),
)

EXERCISES = (LEFT_PADDING,)
