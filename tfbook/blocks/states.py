"""What blocks and models carry on from one piece of a sequence to the next, and their traces.

Explained in: chapters/12_generation, section "The cache".
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

__all__ = ["BlockState", "ModelState", "Trace"]


class BlockState(NamedTuple):
    """What a block carries on: the state of its mixer and that of its cross-attention.

    Attributes:
        mixer: what the mixer returned, or None at the start.
        cross: what the cross-attention remembers of the memory, or None without one.

    Explained in: chapters/05_architecture_deeper, section "The decoder".
    """

    mixer: object = None
    cross: object = None

    def select(self, rows: Int[Tensor, " S"]) -> "BlockState":
        """Return the state of the chosen sequences of the batch, in the order given."""
        return BlockState(*(each if each is None else _select(each, rows) for each in self))

    @property
    def nbytes(self) -> int:
        """Return the bytes of both."""
        return sum(_nbytes(each) for each in self if each is not None)

    def truncate(self, length: int) -> "BlockState":
        """Return the state as it was after ``length`` positions; the memory stays.

        Raises:
            TypeError: if the mixer's state cannot go back.
            ValueError: if the length is out of its range.
        """
        if not hasattr(self.mixer, "truncate"):
            raise TypeError(f"a state of type {type(self.mixer).__name__} cannot go back")
        return self._replace(mixer=self.mixer.truncate(length))

    @property
    def length(self) -> int:
        """Return how many positions the mixer holds, 0 at the start."""
        return getattr(self.mixer, "length", 0)

    def reach(self, seen: int) -> int:
        """Return how far back the mixer looks from the next position, at most all it has seen."""
        return getattr(self.mixer, "reach", seen)


@dataclass(frozen=True, eq=False)
class ModelState:
    """What a model carries on from one piece of a sequence to the next; never changed.

    Attributes:
        layers: a state for each block of the decoder; None before anything was read.
        seen: how many columns of tokens came before the next one, padding included.
        counts: how many of them were tokens in each sequence, (B,); None when all were.

    Explained in: chapters/12_generation, section "The cache".
    """

    layers: tuple[BlockState, ...] | None = None
    seen: int = 0
    counts: Int[Tensor, " B"] | None = None

    @property
    def length(self) -> int:
        """Return how many columns were seen."""
        return self.seen

    @property
    def reach(self) -> int:
        """Return how far back the layers look from the next column: less where caches forget."""
        return max([layer.reach(self.seen) for layer in self.layers]) if self.layers else self.seen

    @property
    def nbytes(self) -> int:
        """Return the bytes of all keys and values, or whatever the layers keep."""
        return sum(layer.nbytes for layer in self.layers)

    def select(self, rows: Int[Tensor, " S"]) -> "ModelState":
        """Return the state of the chosen sequences of the batch, in the order given."""
        counts = None if self.counts is None else self.counts[rows]
        layers = tuple(layer.select(rows) for layer in self.layers)
        return replace(self, layers=layers, counts=counts)

    def truncate(self, length: int) -> "ModelState":
        """Return the state as it was after ``length`` columns: later ones are forgotten.

        Raises:
            TypeError: if a layer's state cannot go back.
            ValueError: if the length is out of its range, or the sequences were padded.
        """
        if self.counts is not None:
            raise ValueError("the state of a padded batch cannot go back")
        layers = tuple(layer.truncate(length) for layer in self.layers)
        return replace(self, layers=layers, seen=length)


class Trace(NamedTuple):
    """What happens in a stack, block by block.

    Attributes:
        states: what enters the first block, and what each block makes of it, (B, N, d_model).
        weights: of each mixer, (B, H, N, M), where they were asked for.
        cross: of each cross-attention, None where there is none.

    Explained in: chapters/05_architecture_deeper, section "Two real models".
    """

    states: list[Tensor]
    weights: list[Tensor]
    cross: list[Tensor | None]


def _select(state, rows):
    if isinstance(state, Tensor):
        return state[rows]
    if hasattr(state, "select"):
        return state.select(rows)
    return tuple(_select(each, rows) for each in state)  # such as an LSTM's pair


def _nbytes(state):
    if hasattr(state, "nbytes"):
        return state.nbytes
    return sum(_nbytes(each) for each in state)
