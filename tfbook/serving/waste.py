"""What a batch that is filled once computes and holds for nothing.

Explained in: chapters/17_hardware, section "Serving many".
"""

from collections.abc import Sequence
from typing import NamedTuple

from tfbook._checks import check_list, check_number

__all__ = ["StaticBatches", "paged_waste", "static_batches"]

MOST = 2**31


class StaticBatches(NamedTuple):
    """What batches that are filled once cost.

    Attributes:
        steps: passes of the model that make a token for each sequence.
        slots: tokens that these compute, those for sequences that have ended included.
        useful: tokens that were asked for of these.
        held: rows of keys and values that are set aside at once, at most.
        filled: rows that are ever written of all that were set aside.
        reserved: rows that were set aside, over all batches.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    steps: int
    slots: int
    useful: int
    held: int
    filled: int
    reserved: int

    @property
    def waste(self) -> float:
        """Return the share of computed tokens that nobody asked for."""
        return 1 - self.useful / self.slots if self.slots else 0.0

    @property
    def empty(self) -> float:
        """Return the share of rows set aside that nothing is written to."""
        return 1 - self.filled / self.reserved


def static_batches(prompts: Sequence[int], new_tokens: Sequence[int], batch: int) -> StaticBatches:
    """Count what requests cost in batches that are filled in their order, and end together.

    A batch of prompts padded to the longest takes max(new tokens) − 1 steps after the first token,
    which reading the prompts gives, and sets aside longest prompt + longest answer − 1 rows for
    each of its sequences.

    Args:
        prompts: how many tokens each prompt has.
        new_tokens: how many tokens are made of each.
        batch: sequences of a batch.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if a number is below 1, there is none, or there are not equally many.

    Example:
        >>> found = static_batches([3, 5, 2, 2], [2, 9, 1, 3], batch=2)
        >>> found.steps, found.slots, found.useful, round(found.waste, 2)
        (10, 20, 11, 0.45)

    Source: [yu2022orca]
    Explained in: chapters/17_hardware, section "Serving many".
    """
    check_number("batch", batch, 1, MOST, whole=True)
    for name, values in (("prompts", prompts), ("new_tokens", new_tokens)):
        check_list(name, values)
        for value in values:
            check_number(f"a number of {name}", value, 1, MOST, whole=True)
    if len(prompts) != len(new_tokens) or not len(prompts):
        raise ValueError(
            "prompts and new_tokens must be equally many and at least one, got "
            f"{len(prompts)} and {len(new_tokens)}"
        )
    steps = slots = useful = held = filled = reserved = 0
    for start in range(0, len(prompts), batch):
        asked, made = prompts[start : start + batch], new_tokens[start : start + batch]
        rows = len(asked) * (max(asked) + max(made) - 1)
        steps += max(made) - 1
        slots += len(asked) * (max(made) - 1)
        useful += sum(made) - len(made)
        held, reserved = max(held, rows), reserved + rows
        filled += sum(asked) + sum(made) - len(made)
    return StaticBatches(steps, slots, useful, held, filled, reserved)


def paged_waste(lengths: Sequence[int], page_size: int) -> float:
    """Return the share of the rows of pages that sequences of these lengths leave empty.

    1 − Σ n / Σ ⌈n / s⌉ s: on average half a page a sequence.

    Args:
        lengths: tokens of each sequence.
        page_size: s.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if a number is below 1, or there is none.

    Example:
        >>> round(paged_waste([16, 17, 40], 16), 3)
        0.24

    Source: [kwon2023efficient]
    Explained in: chapters/17_hardware, section "Serving many".
    """
    check_list("lengths", lengths)
    check_number("page_size", page_size, 1, MOST, whole=True)
    for value in lengths:
        check_number("a number of lengths", value, 1, MOST, whole=True)
    if not len(lengths):
        raise ValueError("lengths must hold at least one, got none")
    rows = sum(-(-value // page_size) * page_size for value in lengths)
    return 1 - sum(lengths) / rows
