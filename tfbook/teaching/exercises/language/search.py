"""The exercise of chapter 13 on search: what is laid before a question."""

from collections.abc import Sequence
from typing import Any

import torch

from tfbook.teaching.exercises._spec import Exercise, expect_plain

# choose-passages --------------------------------------------------------------------------------


def choose_passages(
    query: torch.Tensor, passages: torch.Tensor, lengths: list[int], room: int
) -> list[int]:
    """Choose the passages that are laid before a question.

    They are gone through by falling cosine between their vector and the question's. A passage is
    taken if it fits into the room that is left; one that does not fit is passed over, and shorter
    ones behind it may still be taken. Of equally near ones the earlier comes first.

    query: (D,), the vector of the question, of any length but 0. passages: (S, D), one vector each,
    of any length but 0. lengths: the number of tokens of each passage. room: how many tokens there
    is room for.
    Returns: the numbers of the chosen passages, nearest first.
    """
    ...


def _chosen(
    query: torch.Tensor, passages: torch.Tensor, lengths: Sequence[int], room: int, *,
    score: str = "cosine", fit: str = "skip", down: bool = True,
) -> list[int]:  # fmt: skip
    """Choose as asked, or with a known slip."""
    dots = [float(row @ query) for row in passages]
    near = [dot / float(row.norm()) for dot, row in zip(dots, passages, strict=True)]
    far = [-float((row - query).norm()) for row in passages]
    values = {"cosine": near, "dot": dots, "distance": far}[score]
    order = sorted(range(len(values)), key=lambda i: -values[i] if down else values[i])
    found: list[int] = []
    for i in order:
        if fit == "all":
            found.append(i)
        elif lengths[i] < room or (lengths[i] == room and fit != "less"):
            found.append(i)
            room -= 0 if fit == "each" else lengths[i]
        elif fit == "stop":
            break
    return found


def _case(choose: Any, case: tuple[Any, ...], otherwise: str) -> None:
    names = ("query", "passages", "lengths", "room")
    right = _chosen(*case)
    expect_plain(
        choose, dict(zip(names, case, strict=True)), right, otherwise,
        mistakes={
            "It ended at the first passage that did not fit. Pass over it: shorter ones behind it "
            "may still be taken.": _chosen(*case, fit="stop"),
            "A passage that fills the room exactly was left out. It fits.":
                _chosen(*case, fit="less"),
            "All passages came back. Together they may have at most `room` tokens.":
                _chosen(*case, fit="all"),
            "Each passage was compared with the whole room. What is taken leaves less of it.":
                _chosen(*case, fit="each"),
            "The dot product put a long vector first. The cosine divides by its length.":
                _chosen(*case, score="dot"),
            "The distance of the vectors was compared. The cosine asks for their angle alone.":
                _chosen(*case, score="distance"),
            "The farthest passage came first. Go from the largest cosine down.":
                _chosen(*case, down=False),
            "The passages are right, but not in the order of their cosine: the nearest comes "
            "first.": sorted(right),
        },
    )  # fmt: skip


def _row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


QUERY = _row(2.0, 1.0)
PASSAGES = torch.stack([_row(1.0, 3.0), _row(9.0, -3.0), _row(0.2, 0.1), _row(1.0, 0.9)])


def _choose_order(choose: Any) -> None:
    """The nearest passage comes first, by the cosine."""
    _case(choose, (QUERY, PASSAGES, [5, 5, 5, 5], 20), "All four fit.")
    _case(choose, (QUERY, PASSAGES, [5, 12, 5, 5], 10), "Two of five tokens fit into a room of 10.")


def _choose_room(choose: Any) -> None:
    """Together they have at most as many tokens as there is room for."""
    _case(choose, (QUERY, PASSAGES, [4, 3, 8, 7], 11), "8 and 3 fill a room of 11.")
    _case(choose, (QUERY, PASSAGES, [4, 3, 9, 2], 8), "What does not fit is passed over.")


def _choose_none(choose: Any) -> None:
    """Where nothing fits, the list is empty."""
    _case(choose, (QUERY, PASSAGES, [4, 3, 9, 2], 1), "No passage has a single token.")


def _choose_many(choose: Any) -> None:
    """Any number of passages, of equal ones the earlier first."""
    generator = torch.Generator("cpu").manual_seed(651)
    for size, width in ((1, 3), (6, 2), (40, 5)):
        vectors = torch.randn(size, width, generator=generator, dtype=torch.float64)
        query = torch.randn(width, generator=generator, dtype=torch.float64)
        lengths = torch.randint(5, 60, (size,), generator=generator).tolist()
        _case(choose, (query, vectors, lengths, 150), f"With {size} passages the choice differs.")
    twins = torch.stack([_row(0.0, 1.0), QUERY, QUERY])
    _case(choose, (QUERY, twins, [3, 3, 3], 6), "Two passages are equally near.")


CHOOSE_PASSAGES = Exercise(
    name="choose-passages",
    title="What fits into the prompt",
    level=2,
    section='chapters/13_language_deeper, section "How far down the list"',
    stub=choose_passages,
    properties=(_choose_order, _choose_room, _choose_none, _choose_many),
    hints=(
        "Two parts: an order of the passages, and a walk through it that keeps count of the room.",
        "The cosine is the dot product of vectors that were made 1 long. `argsort` with "
        "`descending=True, stable=True` gives the order, `tolist` makes numbers of it.",
        "Walk through the order with `room` in hand. What happens to the room when a passage is "
        "taken, and what when it is too long?",
    ),
)

EXERCISES = (CHOOSE_PASSAGES,)
