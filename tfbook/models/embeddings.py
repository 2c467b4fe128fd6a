"""The two ends of a model: what turns tokens or images into rows, and rows into scores.

The embedding of tokens is ``nn.Embedding``, a row of a table for each token. Here are the ends that
need more: patches of an image, and the heads. A head that is *tied* uses the table of the embedding
in the other direction; it owns no weight of its own, and the table is handed to it.

Explained in: chapters/05_architecture, section "From words in to words out".
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_bool, check_count, check_float, check_positive
from tfbook.models.layers import ACTIVATIONS, GATES, make_norm

__all__ = ["LanguageHead", "MaskedHead", "PatchEmbedding"]


class PatchEmbedding(nn.Module):
    """Cut an image into patches, map each to d_model numbers, and put a class token in front.

    row 0 is the class token c; row 1 + i is W p_i + b, with p_i the numbers of patch i, channel by
    channel, and patches counted row by row.

    Args:
        image_size: S, pixels along each side of the image.
        patch_size: pixels along each side of a patch, a divisor of S.
        n_channels: C, colours.
        d_model: size of a row.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1, or the patches do not fill the image.

    Source: [dosovitskiy2021image]
    Explained in: chapters/05_architecture, section "What the sizes add up to".
    """

    def __init__(self, image_size: int, patch_size: int, n_channels: int, d_model: int):
        """Make the linear map, Xavier uniform with bias 0, and the class token, 0."""
        super().__init__()
        sizes = {"image_size": image_size, "patch_size": patch_size, "n_channels": n_channels}
        for name, size in (sizes | {"d_model": d_model}).items():
            check_count(name, size, minimum=1)
        if image_size % patch_size:
            raise ValueError(
                f"patch_size must divide image_size, got {patch_size} and {image_size}"
            )
        self.image_size, self.patch_size, self.n_channels = image_size, patch_size, n_channels
        self.proj = nn.Linear(n_channels * patch_size**2, d_model)
        self.class_token = nn.Parameter(torch.zeros(d_model))
        nn.init.xavier_uniform_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)

    def forward(self, images: Float[Tensor, "B C S S"]) -> Float[Tensor, "B N D"]:
        """Return the class token and the patches, (B, 1 + patches, d_model).

        Raises:
            TypeError: if the images are not floating point.
            ValueError: if they have another shape.
        """
        wanted = (self.n_channels, self.image_size, self.image_size)
        check_float("images", images)
        if images.ndim != 4 or tuple(images.shape[1:]) != wanted:
            raise ValueError(
                f"images must have shape (B, C, S, S) with (C, S, S) = {wanted}, "
                f"got {tuple(images.shape)}"
            )
        p = self.patch_size
        patches = images.unflatten(3, (-1, p)).unflatten(2, (-1, p))  # (B, C, rows, p, cols, p)
        patches = patches.permute(0, 2, 4, 1, 3, 5)  # (B, rows, cols, C, p, p)
        patches = patches.flatten(3).flatten(1, 2)  # (B, rows · cols, C p p)
        first = self.class_token.expand(len(images), 1, -1)  # (B, 1, d_model)
        return torch.cat([first, self.proj(patches)], dim=1)

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"image_size={self.image_size}, patch_size={self.patch_size}"


class LanguageHead(nn.Module):
    """Score every token of the vocabulary as the next one: logits = scale · x Wᵀ.

    Args:
        d_model: size of a row.
        vocab_size: V.
        tied: whether W is the table of the embedding, handed in with each call.
        scale: factor on x; 1 when omitted. T5 has 1/√d_model.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Cost: 2 · d_model · V FLOPs a row.

    Source: tied: [press2017using], [inan2017tying]
    Explained in: chapters/05_architecture, section "From words in to words out".
    """

    def __init__(
        self, d_model: int, vocab_size: int, *, tied: bool = False, scale: float | None = None
    ):
        """Make W, Xavier uniform, unless it is the embedding's."""
        super().__init__()
        _check_head(d_model, vocab_size, tied)
        if scale is not None:
            check_positive("scale", scale)
        self.scale, self.tied = scale, tied
        self.weight = None if tied else _table(d_model, vocab_size)

    def forward(
        self, x: Float[Tensor, "B N D"], table: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "B N V"]:
        """Return the logits of x (B, N, d_model), with the embedding's table (V, d_model) if tied.

        Raises:
            ValueError: if the head is tied and no table is given.
        """
        x = x if self.scale is None else x * self.scale
        return functional.linear(x, _choose(self, table))

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"tied={self.tied}, scale={self.scale}"


class MaskedHead(nn.Module):
    """BERT's head, which scores every token for a hidden place: logits = norm(act(x W + b)) Tᵀ + c.

    Args:
        d_model: size of a row.
        vocab_size: V.
        ffn: the kind of feed-forward network whose activation is used.
        norm: "layer" or "rms".
        eps: ε of the norm.
        tied: whether T is the table of the embedding, handed in with each call.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a number out of range.

    Cost: 2 · d_model · (d_model + V) FLOPs a row.

    Source: [devlin2019bert]
    Explained in: chapters/05_architecture, section "Encoder only: BERT".
    """

    def __init__(
        self,
        d_model: int,
        vocab_size: int,
        *,
        ffn: str = "gelu",
        norm: str = "layer",
        eps: float = 1e-5,
        tied: bool = True,
    ):
        """Make the transform and the bias of the vocabulary."""
        super().__init__()
        _check_head(d_model, vocab_size, tied)
        self.tied, self.activation = tied, ACTIVATIONS[GATES.get(ffn, ffn)]
        self.dense = nn.Linear(d_model, d_model)
        nn.init.xavier_uniform_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)
        self.norm = make_norm(norm, d_model, eps=eps)
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
    check_count("d_model", d_model, minimum=1)
    check_count("vocab_size", vocab_size, minimum=1)
    check_bool("tied", tied)
