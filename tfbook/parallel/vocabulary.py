"""A vocabulary that is cut over processes: each knows the rows of some tokens only.

The table of the embedding and the scores of all tokens are among the largest tensors of a training.
Neither is ever whole here: a token's row comes from the process that has it, and the loss needs of
the scores a maximum, a sum and one number for each place.

Explained in: chapters/17_hardware, section "Many devices".
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_float, check_tensor
from tfbook.blocks import LanguageHead
from tfbook.parallel.collectives import ring_all_reduce
from tfbook.parallel.conjugates import copy_to, gather, sum_over
from tfbook.parallel.groups import Group, check_group, check_parts

__all__ = ["SplitEmbedding", "SplitHead", "split_loss"]


class SplitEmbedding(nn.Embedding):
    """An embedding of which each process has the rows of V/p tokens.

    Args:
        embed: the whole one, alike in every process.
        group: the processes.

    Attributes:
        weight: the own rows, (V/p, d_model).
        first: the first token whose row is here.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if V is no multiple of the processes.

    Example:
        >>> embed = SplitEmbedding(nn.Embedding(5, 3), Group())
        >>> embed(torch.tensor([[4, 0]])).shape
        torch.Size([1, 2, 3])

    Source: [shoeybi2019megatron]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(self, embed: nn.Embedding, group: Group):
        """Keep the own rows."""
        if not isinstance(embed, nn.Embedding):
            raise TypeError(f"embed must be an nn.Embedding, got {type(embed).__name__}")
        check_parts("the vocabulary", embed.num_embeddings, group)
        super().__init__(embed.num_embeddings, embed.embedding_dim, device="meta")
        self.group = group
        self.weight = own_part(embed.weight, group, 0)
        self.first = group.rank * len(self.weight)

    def forward(self, tokens: Int[Tensor, "*B"]) -> Float[Tensor, "*B D"]:
        """Return the rows of the tokens: each process adds those that it has, the others 0."""
        here = tokens - self.first
        own = (here >= 0) & (here < len(self.weight))
        rows = functional.embedding(here.where(own, 0), self.weight)  # (..., d_model)
        return sum_over(rows * own[..., None], self.group)


class SplitHead(nn.Module):
    """A language head of which each process scores V/p tokens.

    Args:
        head: the whole one, alike in every process.
        group: the processes.
        sequence: whether each process has other rows, which are gathered first.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if V is no multiple of the processes.

    Example:
        >>> SplitHead(LanguageHead(3, 5), Group())(torch.ones(1, 2, 3), None).shape
        torch.Size([1, 2, 5])

    Source: [shoeybi2019megatron]
    Explained in: chapters/17_hardware, section "Many devices".
    """

    def __init__(self, head: LanguageHead, group: Group, *, sequence: bool = False):
        """Keep the own rows."""
        super().__init__()
        if not isinstance(head, LanguageHead):
            raise TypeError(f"head must be a LanguageHead, got {type(head).__name__}")
        check_group(group)
        self.group, self.sequence, self.tied, self.scale = group, sequence, head.tied, head.scale
        for name in ("weight", "bias"):
            whole = getattr(head, name)
            if whole is not None:
                check_parts("the vocabulary", len(whole), group)
            setattr(self, name, None if whole is None else own_part(whole, group, 0))

    def forward(
        self, x: Float[Tensor, "B N D"], table: Float[Tensor, "V D"] | None
    ) -> Float[Tensor, "B K V"]:
        """Return the scores of the own tokens, with the own rows of the embedding if tied."""
        x = gather(x, self.group, 1) if self.sequence else copy_to(x, self.group)
        x = x if self.scale is None else x * self.scale
        return functional.linear(x, table if self.tied else self.weight, self.bias)


def split_loss(
    logits: Float[Tensor, "*B V"], targets: Int[Tensor, "*B"], group: Group
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of scores of which each process has those of V/p tokens.

    −log softmax(l)_t = log Σ_r Σ_{v at r} exp(l_v − m) + m − l_t: three small all-reduces, of the
    maximum m, of the sum and of l_t, in place of one of all scores.

    Args:
        logits: the scores of the own tokens, (..., V/p).
        targets: the right tokens, (...), of all V.
        group: the processes.

    Returns:
        The mean over all places, the same in every process.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: if a target is no token, or the shapes do not fit.

    Cost: 2(p − 1)/p · 3 numbers for each place, instead of V.

    Example:
        >>> split_loss(torch.zeros(2, 8), torch.tensor([3, 7]), Group())
        tensor(2.0794)

    Source: [shoeybi2019megatron]
    Explained in: chapters/17_hardware, section "Many devices".
    """
    check_float("logits", logits, min_dims=1)
    check_tensor("targets", targets)
    check_group(group)
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"targets must be integers, got {targets.dtype}")
    if targets.shape != logits.shape[:-1] or not logits.numel():
        raise ValueError(
            "targets must have the shape of the logits without their last dimension, and one "
            f"place at least, got {tuple(targets.shape)} and logits {tuple(logits.shape)}"
        )
    size = logits.shape[-1]
    if int(targets.min()) < 0 or int(targets.max()) >= size * group.size:
        raise ValueError(
            f"targets must be from 0 to {size * group.size - 1}, got {int(targets.min())} to "
            f"{int(targets.max())}"
        )
    highest = ring_all_reduce(logits.amax(-1), group, reduce=torch.maximum)  # (...)
    shifted = logits - highest[..., None]
    total = sum_over(shifted.exp().sum(-1), group)
    here = targets - group.rank * size
    own = (here >= 0) & (here < size)
    found = shifted.gather(-1, here.where(own, 0).long()[..., None]).squeeze(-1)  # (...)
    right = sum_over(found.where(own, 0.0), group)
    return (total.log() - right).mean()


def own_part(weight: Tensor, group: Group, dim: int) -> nn.Parameter:
    """Return a copy of this process's part of a weight, cut along a dimension."""
    part = weight.detach().chunk(group.size, dim)[group.rank]
    return nn.Parameter(part.clone(memory_format=torch.contiguous_format))
