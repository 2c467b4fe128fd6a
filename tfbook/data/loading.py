"""Batches for training, in an order that a seed decides and that can be taken up anywhere.

A run that was stopped goes on with the very batch it would have seen. :class:`Windows` needs no
memory for that, it is a function from the number of a batch to the batch; :class:`Loader` has a
state of a few numbers. Both go to :func:`tfbook.training.fit` as they are.

Explained in: chapters/11_training_deeper, section "Batches without waste".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from tfbook._checks import check_number, check_tensor

__all__ = ["Loader", "Windows", "rows", "seeded"]

Plan = Callable[[torch.Generator], list[list[int]]]


def seeded(seed: int, number: int) -> torch.Generator:
    """Return a generator for one epoch or batch of a run, independent of those of its neighbours.

    Adding the two would give the second epoch of seed 0 and the first of seed 1 the same order.

    Args:
        seed: of the run.
        number: of the epoch or batch.

    Raises:
        TypeError: if a number is no integer.
        ValueError: if one is negative.

    Explained in: chapters/11_training_deeper, section "Batches without waste".
    """
    check_number("seed", seed, 0, whole=True)
    check_number("number", number, 0, whole=True)
    (mixed,) = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(mixed >> np.uint64(1)))


class Windows:
    """Random stretches of a long text: batch number → (B, length + 1) tokens.

    The text is one row of ids; where a stretch begins is uniform over all places that leave room
    for it. The one token more is for the targets: a model reads ``[:, :-1]`` and is to predict
    ``[:, 1:]``. A batch depends on seed and number alone, so any batch of a run can be had at any
    time. O(B · length) a batch.

    Args:
        ids: (T,), the text; any integer dtype, a memory-mapped one too.
        length: tokens that a model reads, N.
        batch_size: B.
        seed: of the run.

    Raises:
        TypeError: if ids hold no integers, or a number is no integer.
        ValueError: if ids have another shape or fewer than length + 1 tokens.

    Example:
        >>> windows = Windows(torch.arange(100), length=4, batch_size=2, seed=0)
        >>> windows(3)
        tensor([[10, 11, 12, 13, 14],
                [89, 90, 91, 92, 93]])

    Explained in: chapters/11_training_deeper, section "Batches without waste".
    """

    def __init__(self, ids: Int[Tensor, " T"], length: int, *, batch_size: int, seed: int = 0):
        """Check the numbers; see the class."""
        _check_text(ids, length)
        check_number("batch_size", batch_size, 1, whole=True)
        check_number("seed", seed, 0, whole=True)
        self.ids, self.length, self.batch_size, self.seed = ids, length, batch_size, seed

    def __call__(self, number: int) -> Int[Tensor, "B N1"]:
        """Return the batch of this number, from 0."""
        begins = torch.randint(
            len(self.ids) - self.length, (self.batch_size,), generator=seeded(self.seed, number)
        )  # (B,)
        return self.ids[begins[:, None] + torch.arange(self.length + 1)].long()  # (B, N + 1)


def rows(ids: Int[Tensor, " T"], length: int) -> Int[Tensor, "R N1"]:
    """Cut a long text into rows for evaluation: each token but the first is a target once.

    Row r is ids[r N : r N + N + 1], so that the last token of a row is the first of the next. What
    is left at the end, fewer than N targets, is dropped.

    Args:
        ids: (T,), the text.
        length: targets in a row, N.

    Returns:
        (R, length + 1) int64, R = (T − 1) // N.

    Raises:
        TypeError: if ids hold no integers, or length is no integer.
        ValueError: if ids have another shape or fewer than length + 1 tokens.

    Example:
        >>> rows(torch.arange(8), 3)
        tensor([[0, 1, 2, 3],
                [3, 4, 5, 6]])

    Explained in: chapters/11_training_deeper, section "Batches without waste".
    """
    _check_text(ids, length)
    return ids.unfold(0, length + 1, length).long()  # (R, N + 1)


class Loader:
    """Examples in batches, epoch after epoch, each in its own order, and which is next.

    Iterating gives the batches that are left of the epoch and then ends; iterating again begins the
    next one. What an epoch looks like follows from seed and number of the epoch; with
    ``state_dict()`` another loader over the same examples goes on where this one is.

    Args:
        examples: anything with a length and ``[i]``.
        plan: makes the batches of an epoch as lists of indices, given a generator, such as
            ``lambda g: bucketed(lengths, 32, generator=g)``.
        collate: makes a batch of a list of examples; by default it stays a list.
        seed: of the run.

    Raises:
        TypeError: if examples have no length or no [i], plan or collate cannot be called, or seed
            is no integer.
        ValueError: if there are no examples, or seed is negative.

    Example:
        >>> from tfbook.data.batches import shuffled
        >>> loader = Loader("abcde", lambda g: shuffled(5, 2, generator=g))
        >>> list(loader)
        [['c', 'b'], ['a', 'd'], ['e']]
        >>> loader.state_dict()
        {'seed': 0, 'examples': 5, 'epoch': 1, 'next': 0}

    Explained in: chapters/11_training_deeper, section "Batches without waste".
    """

    def __init__(
        self,
        examples: Sequence,
        plan: Plan,
        *,
        collate: Callable[[list], object] = list,
        seed: int = 0,
    ):
        """Check what is given; see the class."""
        for name, function in (("plan", plan), ("collate", collate)):
            if not callable(function):
                raise TypeError(f"{name} must be a function, got {type(function).__name__}")
        check_number("seed", seed, 0, whole=True)
        if not (hasattr(examples, "__len__") and hasattr(examples, "__getitem__")):
            kind = type(examples).__name__
            raise TypeError(f"examples must have a length and [i], got {kind}")
        if not len(examples):
            raise ValueError("examples must hold at least one, got none")
        self.examples, self.plan, self.collate, self.seed = examples, plan, collate, seed
        self.epoch = self.next = 0

    def batches(self, epoch: int) -> list[list[int]]:
        """Return the indices of an epoch's batches."""
        return self.plan(seeded(self.seed, epoch))

    def __len__(self) -> int:
        """Return how many batches the present epoch has, from its beginning."""
        return len(self.batches(self.epoch))

    def __iter__(self) -> Iterator[object]:
        """Go through what is left of the epoch."""
        epoch, plan = self.epoch, self.batches(self.epoch)
        while self.epoch == epoch and self.next < len(plan):
            indices = plan[self.next]
            self.next += 1
            if self.next == len(plan):  # so that a state never points behind the end
                self.epoch, self.next = epoch + 1, 0
            yield self.collate([self.examples[i] for i in indices])

    def state_dict(self) -> dict[str, int]:
        """Return which batch is next, and of what."""
        return {
            "seed": self.seed,
            "examples": len(self.examples),
            "epoch": self.epoch,
            "next": self.next,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where another loader was.

        Raises:
            TypeError: if the state holds no integers.
            ValueError: if it is of other examples or another seed, or there is no such batch.
        """
        here = self.state_dict()
        if not isinstance(state, Mapping) or set(state) != set(here):
            raise ValueError(f"state must have {', '.join(here)}, got {state!r:.80}")
        for name in ("seed", "examples"):
            if state[name] != here[name]:
                raise ValueError(
                    f"state must be of a loader with {name} {here[name]}, got {state[name]!r}"
                )
        check_number("epoch", state["epoch"], 0, whole=True)
        check_number("next", state["next"], 0, whole=True)
        n_batches = len(self.batches(state["epoch"]))
        if state["next"] >= n_batches:
            raise ValueError(f"next must be below the {n_batches} batches, got {state['next']}")
        self.epoch, self.next = state["epoch"], state["next"]


def _check_text(ids: object, length: object) -> None:
    check_tensor("ids", ids)
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"ids must be integers, got {ids.dtype}")
    check_number("length", length, 1, whole=True)
    if ids.ndim != 1 or len(ids) <= length:
        raise ValueError(
            f"ids must be one row of at least length + 1 = {length + 1} tokens, "
            f"got shape {tuple(ids.shape)}"
        )
