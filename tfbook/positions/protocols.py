"""Three ways to bring order into attention, and what a part has to offer to be one of them.

* :class:`AddedPosition`, called on the embeddings: sinusoidal, learned, concatenated, 2-D, none;
* :class:`RotaryPosition`, turns queries and keys;
* :class:`BiasPosition`, adds to the scores.

Explained in: chapters/04_positions.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "AddedPosition",
    "BiasPosition",
    "RotaryPosition",
    "places_for",
]


@runtime_checkable
class AddedPosition(Protocol):
    """Puts positions into the embeddings, once, before the first layer.

    Explained in: chapters/04_positions_deeper, section "Adding and concatenating".
    """

    def __call__(
        self, x: Float[Tensor, "*B N D"], positions: Int[Tensor, "... N"] | None = None
    ) -> Float[Tensor, "*B N D"]:
        """Return x with its positions, 0 … N − 1 when omitted."""
        ...


@runtime_checkable
class RotaryPosition(Protocol):
    """Turns queries and keys to their positions, in every layer.

    Explained in: chapters/04_positions, section "Rotary embeddings".
    """

    def rotate(
        self, x: Float[Tensor, "*B N D"], positions: Int[Tensor, "... N"]
    ) -> Float[Tensor, "*B N D"]:
        """Return queries or keys, turned."""
        ...


@runtime_checkable
class BiasPosition(Protocol):
    """Adds to the scores what the distances of the keys are worth, in every layer.

    ``scaled`` says which scores it is added to: q · k / √d, or q · k where it is False. The bias is
    complete as it is; nobody scales it.

    Explained in: chapters/04_positions, section "Relative positions".
    """

    scaled: bool

    def bias(
        self,
        q: Float[Tensor, "*B H N D"],
        q_positions: Int[Tensor, "... N"],
        k_positions: Int[Tensor, "... M"],
    ) -> Float[Tensor, "*C H N M"]:
        """Return the bias, in the dtype of q, broadcastable to the scores (..., H, N, M)."""
        ...


def places_for(
    part: object, first: int, stop: int, device: torch.device
) -> Int[Tensor, " N"] | range:
    """Return the positions first … stop − 1 in the form that a part of a model takes best.

    A part may hand out positions of its own (``places``), or take a range (``spans``), so that it
    need not look at the numbers to find them in a table. All others get a tensor.

    Explained in: chapters/04_positions, section "Rotary embeddings".
    """
    if callable(getattr(part, "places", None)):
        return part.places(first, stop, device)
    if getattr(part, "spans", False) and not torch.compiler.is_compiling():
        return range(first, stop)
    return torch.arange(first, stop, device=device)
