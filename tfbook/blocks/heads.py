"""What a model ends in: scores of every token of the vocabulary.

A head that is *tied* uses the table of the embedding in the other direction; it owns no weight of
its own, and the table is handed to it.

Explained in: chapters/05_architecture_deeper, section "From words in to words out".
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_bool, check_number
from tfbook.blocks.feed_forward import ACTIVATIONS, GATES
from tfbook.blocks.norms import LayerNorm

__all__ = ["LanguageHead", "MaskedHead"]


class LanguageHead(nn.Module):
    """Score every token of the vocabulary as the next one: logits = scale · x Wᵀ (+ b).

    Args:
        d_model: size of a row.
        vocab_size: V.
        tied: whether W is the table of the embedding, handed in with each call.
        scale: factor on x; 1 when omitted. T5 has 1/√d_model.
        bias: whether each token has a bias.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Cost: 2 · d_model · V FLOPs a row.

    Source: tied: [press2017using], [inan2017tying]
    Explained in: chapters/05_architecture_deeper, section "From words in to words out".
    """

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        *,
        tied: bool = False,
        scale: float | None = None,
        bias: bool = False,
    ):
        """Make W, Xavier uniform, unless it is the embedding's; b is 0."""
        super().__init__()
        _check_head(d_model, vocab_size, tied)
        if scale is not None:
            check_number("scale", scale, above=0)
        check_bool("bias", bias)
        self.scale, self.tied = scale, tied
        self.weight = None if tied else _table(d_model, vocab_size)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(
        self, x: Float[Tensor, "B N D"], table: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "B N V"]:
        """Return the logits of x (B, N, d_model), with the embedding's table (V, d_model) if tied.

        Raises:
            ValueError: if the head is tied and no table is given.
        """
        x = x if self.scale is None else x * self.scale
        return functional.linear(x, _choose(self, table), self.bias)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"tied={self.tied}, scale={self.scale}"


class MaskedHead(nn.Module):
    """BERT's head, which scores every token for a hidden place: logits = norm(act(x W + b)) Tᵀ + c.

    Args:
        d_model: size of a row.
        vocab_size: V.
        activation: out of ``ACTIVATIONS``, or a gate out of ``GATES``, whose activation is used.
        norm: makes the norm of a given size.
        tied: whether T is the table of the embedding, handed in with each call.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Cost: 2 · d_model · (d_model + V) FLOPs a row.

    Source: [devlin2019bert]
    Explained in: chapters/05_architecture_deeper, section "Encoder only: BERT".
    """

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        *,
        activation: str = "gelu",
        norm: Callable[[int], nn.Module] = LayerNorm,
        tied: bool = True,
    ):
        """Make the transform and the bias of the vocabulary."""
        super().__init__()
        _check_head(d_model, vocab_size, tied)
        self.tied, self.activation = tied, ACTIVATIONS[GATES.get(activation, activation)]
        self.dense = nn.Linear(d_model, d_model)
        nn.init.xavier_uniform_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)
        self.norm = norm(d_model)
        self.weight = None if tied else _table(d_model, vocab_size)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(
        self, x: Float[Tensor, "B N D"], table: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "B N V"]:
        """Return the logits of x (B, N, d_model), with the embedding's table (V, d_model) if tied.

        Raises:
            ValueError: if the head is tied and no table is given.
        """
        x = self.norm(self.activation(self.dense(x)))  # (B, N, d_model)
        return functional.linear(x, _choose(self, table), self.bias)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"tied={self.tied}"


def _table(d_model: int, vocab_size: int) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(vocab_size, d_model))
    nn.init.xavier_uniform_(weight)
    return weight


def _choose(head: nn.Module, table: Tensor | None) -> Tensor:
    if not head.tied:
        return head.weight
    if table is None:
        raise ValueError("table is needed: a tied head uses the weights of the embedding")
    return table


def _check_head(d_model: object, vocab_size: object, tied: object) -> None:
    check_number("d_model", d_model, 1, whole=True)
    check_number("vocab_size", vocab_size, 1, whole=True)
    check_bool("tied", tied)
