"""A model read off a table, of which everything can be computed by hand.

Explained in: chapters/12_generation, section "Beam search".
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from tfbook._checks import check_float

__all__ = ["TableModel", "TableState"]


@dataclass(frozen=True)
class TableState:
    """How far a table model has read; it needs to know nothing else.

    Explained in: chapters/12_generation, section "Beam search".
    """

    batch: int
    length: int

    def select(self, rows: Int[Tensor, " S"]) -> "TableState":
        """Return the state of the chosen sequences."""
        return TableState(len(rows), self.length)

    def truncate(self, length: int) -> "TableState":
        """Return the state as it was after ``length`` tokens."""
        return TableState(self.batch, length)


class TableModel:
    """A bigram model read off a table: what comes next depends on the last token alone.

    Small enough to know every probability, so that a way of decoding can be checked by hand.

    Args:
        logits: row i are the logits of what follows token i, (V, V); logarithms of
            probabilities will do.

    Raises:
        ValueError: if the table is not square.

    Source: [shannon1948mathematical]
    Explained in: chapters/12_generation, section "Beam search".
    """

    def __init__(self, logits: Float[Tensor, "V V"]):
        """Keep the table."""
        check_float("logits", logits)
        if logits.ndim != 2 or logits.shape[0] != logits.shape[1]:
            raise ValueError(f"logits must have shape (V, V), got {tuple(logits.shape)}")
        self.logits = logits

    def decode(
        self,
        tokens: Int[Tensor, "B N"],
        state: TableState | None = None,
        *,
        mask: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Float[Tensor, "B _ V"], TableState]:
        """Look up the row of each token; see :meth:`tfbook.generation.LanguageModel.decode`.

        Raises:
            ValueError: if an id is outside of the table.
        """
        if tokens.min() < 0 or tokens.max() >= len(self.logits):
            raise ValueError(
                f"tokens must be from 0 to {len(self.logits) - 1}, "
                f"got {tokens.min().item()} … {tokens.max().item()}"
            )
        read = tokens[:, -1:] if last else tokens
        past = 0 if state is None else state.length
        return self.logits[read], TableState(len(tokens), past + tokens.shape[1])
