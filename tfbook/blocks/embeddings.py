"""The entrance of a model: what turns tokens or images into rows that know their places.

Explained in: chapters/05_architecture_deeper, section "From words in to words out".
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfbook._checks import (
    check_float,
    check_ids,
    check_number,
    check_token_mask,
)

__all__ = ["Entered", "PatchEmbedding", "TokenEmbedding"]


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
    Explained in: chapters/05_architecture_deeper, section "What the sizes add up to".
    """

    def __init__(self, image_size: int, patch_size: int, n_channels: int, d_model: int):
        """Make the linear map, Xavier uniform with bias 0, and the class token, 0."""
        super().__init__()
        sizes = {"image_size": image_size, "patch_size": patch_size, "n_channels": n_channels}
        for name, size in (sizes | {"d_model": d_model}).items():
            check_number(name, size, 1, whole=True)
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


class Entered(NamedTuple):
    """What enters the first block.

    Attributes:
        x: rows (B, N, d_model).
        mask: for attention, (B, 1, N), or as it was given; None where all may be seen.
        counts: tokens of each sequence so far, (B,); None when all columns were tokens.

    Explained in: chapters/05_architecture_deeper, section "From words in to words out".
    """

    x: Tensor
    mask: Tensor | None
    counts: Tensor | None


class TokenEmbedding(nn.Module):
    """Turn tokens into rows: scale · table[token] + segment + position, then norm and dropout.

    A mask (B, N) says where tokens are, True = token. Positions that are added count tokens, so
    padding may stand on either side, and a sequence that is continued counts on.

    Args:
        embed: the table, an ``nn.Embedding``; or :class:`PatchEmbedding` for images.
        segments: the table of segments; None for none.
        position: adds positions, such as :class:`tfbook.positions.LearnedPositions`; or None.
        norm: applied to the sum; None for none.
        scale: factor on the rows of the table; None for 1.
        dropout: rate on what leaves.
        max_len: the longest sequence; None for no limit.

    Source: [vaswani2017attention], segments and norm: [devlin2019bert]
    Explained in: chapters/05_architecture_deeper, section "From words in to words out".
    """

    def __init__(
        self,
        embed: nn.Module,
        *,
        segments: nn.Embedding | None = None,
        position: nn.Module | None = None,
        norm: nn.Module | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        max_len: int | None = None,
    ):
        """Keep the parts."""
        super().__init__()
        self.embed, self.segments, self.position, self.embed_norm = embed, segments, position, norm
        self.embed_dropout = nn.Dropout(dropout)
        self.scale, self.max_len = scale, max_len

    def forward(
        self,
        tokens: Int[Tensor, "B N"] | Float[Tensor, "B C S S"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        seen: int = 0,
        reach: int | None = None,
        counts: Int[Tensor, " B"] | None = None,
        segments: Int[Tensor, "B N"] | None = None,
        name: str = "tokens",
    ) -> Entered:
        """Return rows with positions, and what the mask says to attention and to the next piece.

        Args:
            tokens: (B, N), or images (B, C, S, S).
            mask: True = token, (B, N); with three or four dimensions it is handed on as it is.
            seen: how many columns came before.
            reach: how far back the layers look from here; all that was seen when omitted. Where no
                position is added, this and not the length of the text must fit max_len.
            counts: how many of these were tokens in each sequence, (B,); None when all were.
            segments: which segment each token belongs to, (B, N); all 0 when omitted.
            name: of the tokens, for messages.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape or a number that does not fit, or too long a sequence.
        """
        table = isinstance(self.embed, nn.Embedding)
        if table:
            check_ids(name, tokens, self.embed.num_embeddings)
            mask, places, counts = self._places(name, tokens, mask, seen, counts)
            limited = seen if reach is None or self.position is not None else reach
            self._check_length(name, limited + tokens.shape[1], counts)
            x = self.embed(tokens)  # (B, N, d_model)
        else:
            x, places, counts = self.embed(tokens), None, None
            mask = _read_mask(mask, x[..., 0])[0]
        x = x if self.scale is None else x * self.scale
        if not (self.segments is None and segments is None):
            x = x + self._segments(tokens, segments)
        x = x if self.position is None else self.position(x, places)
        x = x if self.embed_norm is None else self.embed_norm(x)
        return Entered(self.embed_dropout(x), mask, counts)

    def _places(self, name, tokens, mask, seen, before):
        """Return the mask for attention, the positions of the tokens, and how many there are."""
        n, places, counts = tokens.shape[1], None, None
        mask, padded = _read_mask(mask, tokens)
        if padded is not None:
            start = seen if before is None else before[:, None]
            steps = start + padded.cumsum(-1)  # (B, N), tokens so far
            places, counts = (steps - 1).clamp(min=0), steps[:, -1]
        elif before is not None:
            places = before[:, None] + torch.arange(n, device=tokens.device)
            places, counts = places.clamp(min=0), before + n  # who has not begun stands at 0
        elif seen:
            places = torch.arange(seen, seen + n, device=tokens.device)
        return mask, places, counts

    def _segments(self, tokens, segments):
        """Return what segments add: (B, N, d_model), or (d_model,) where all are of the first."""
        if self.segments is None:
            raise ValueError("segments were given, but this model has none: n_segments is None")
        if segments is None:
            return self.segments.weight[0]
        check_ids("segments", segments, self.segments.num_embeddings)
        if segments.shape != tokens.shape:
            raise ValueError(
                f"segments must have the shape of tokens, {tuple(tokens.shape)}, "
                f"got {tuple(segments.shape)}"
            )
        return self.segments(segments)

    def _check_length(self, name, columns, counts):
        if self.max_len is None or columns <= self.max_len:
            return
        if counts is not None and self.position is not None:
            columns = int(counts.max())  # padding takes up no position
        if columns > self.max_len:
            raise ValueError(
                f"{name} must not be longer than max_len = {self.max_len}, got {columns} "
                "with what came before"
            )


def _read_mask(mask: object, tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask for attention and, where it says which columns are tokens, that too."""
    if mask is None or (isinstance(mask, Tensor) and mask.ndim > 2):
        return mask, None
    check_token_mask(mask, tokens.shape)
    return mask[:, None, :], mask  # (B, 1, N)
