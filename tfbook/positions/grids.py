"""Positions on a grid: rows and columns of the patches of an image.

Explained in: chapters/04_positions.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tfbook._checks import check_even, check_float, check_number
from tfbook.positions.added import beside, positions_of, sinusoidal_encoding
from tfbook.positions.frequencies import check_base

__all__ = [
    "LearnedPositions2d",
    "SinusoidalPositions2d",
    "interpolate_grid",
    "sinusoidal_encoding_2d",
]


def sinusoidal_encoding_2d(
    rows: int,
    cols: int,
    d_model: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "rows cols d_model"]:
    """Encode each cell of a grid: one half of the numbers for its row, the other for its column.

    PE[r, c] = [PE_{d/2}[r]; PE_{d/2}[c]].

    Args:
        rows: height of the grid.
        cols: width of the grid.
        d_model: size of the encoding, a multiple of 4.
        base: see :func:`sinusoidal_encoding`.
        dtype: of the result; the default dtype when omitted.

    Returns:
        (rows, cols, d_model).

    Raises:
        TypeError: for a wrong type.
        ValueError: if a size is negative, or d_model is no multiple of 4.

    Source: [vaswani2017attention]
    Explained in: chapters/04_positions_deeper, section "Two dimensions".
    """
    check_number("rows", rows, 0, whole=True)
    check_number("cols", cols, 0, whole=True)
    _check_quarters(d_model)
    row = sinusoidal_encoding(rows, d_model // 2, base=base, dtype=dtype)  # (rows, d/2)
    col = sinusoidal_encoding(cols, d_model // 2, base=base, dtype=dtype)  # (cols, d/2)
    return torch.cat(
        (row[:, None].expand(-1, cols, -1), col.expand(rows, -1, -1)), dim=-1
    )  # (rows, cols, d)


def interpolate_grid(
    weight: Float[Tensor, "R C D"],
    rows: int,
    cols: int,
    *,
    mode: Literal["bicubic", "bilinear"] = "bicubic",
) -> Float[Tensor, "rows cols D"]:
    """Stretch or squeeze a grid of positions to another size, as for images of another size.

    A cell is an area, so the *edges* of both grids coincide (``align_corners=False``): the centre
    of new row r lies at old row (r + 1/2) · R / rows − 1/2. Beyond the outer centres the outer
    cells are repeated.

    Args:
        weight: one vector for each old cell, (rows, cols, d).
        rows: new height, at least 1.
        cols: new width, at least 1.
        mode: "bicubic", as vision transformers are resized in `transformers`, or "bilinear".

    Returns:
        (rows, cols, d).

    Raises:
        TypeError: for a wrong type.
        ValueError: for an empty grid or an unknown mode.

    Source: [dosovitskiy2021image]
    Explained in: chapters/04_positions_deeper, section "Two dimensions".
    """
    check_float("weight", weight, min_dims=3)
    check_number("rows", rows, 1, whole=True)
    check_number("cols", cols, 1, whole=True)
    if weight.ndim != 3 or weight.numel() == 0:
        raise ValueError(
            f"weight must have shape (rows, cols, d) and not be empty, got {tuple(weight.shape)}"
        )
    if mode not in ("bicubic", "bilinear"):
        raise ValueError(f"mode must be 'bicubic' or 'bilinear', got {mode!r}")
    image = weight.permute(2, 0, 1)[None]  # (1, d, R, C), as an image of d channels
    image = functional.interpolate(image, size=(rows, cols), mode=mode, align_corners=False)
    return image[0].permute(1, 2, 0)


class SinusoidalPositions2d(nn.Module):
    """Add the sinusoidal encoding of a grid's cells, counted row by row.

    Args:
        rows: height of the grid.
        cols: width of the grid.
        d_model: size of the embeddings, a multiple of 4.
        base: see :func:`sinusoidal_encoding`.

    Raises:
        TypeError: for a wrong type.
        ValueError: if a size is out of range.

    Source: [vaswani2017attention]
    Explained in: chapters/04_positions_deeper, section "Two dimensions".
    """

    def __init__(self, rows: int, cols: int, d_model: int, base: float = 10000.0) -> None:
        """Keep the configuration."""
        super().__init__()
        check_number("rows", rows, 1, whole=True)
        check_number("cols", cols, 1, whole=True)
        _check_quarters(d_model)
        check_base(base)
        self.rows, self.cols, self.d_model, self.base = rows, cols, d_model, base

    def forward(
        self, x: Float[Tensor, "*B N D"], positions: Int[Tensor, "... N"] | None = None
    ) -> Float[Tensor, "*B N D"]:
        """Return x (..., N, d_model) plus the codes of its cells.

        Cell r · cols + c is row r, column c. Without positions x must hold the whole grid.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit or a cell is outside of the grid.
        """
        positions = _cells_of(x, positions, self.d_model, self.rows, self.cols)
        half, as_x = self.d_model // 2, {"base": self.base, "dtype": x.dtype}
        row = sinusoidal_encoding(positions // self.cols, half, **as_x)  # (..., N, d/2)
        col = sinusoidal_encoding(positions % self.cols, half, **as_x)
        return x + beside(x, torch.cat((row, col), dim=-1))

    def extra_repr(self) -> str:
        """Show the configuration."""
        return f"rows={self.rows}, cols={self.cols}, d_model={self.d_model}, base={self.base:g}"


class LearnedPositions2d(nn.Module):
    """Add a learned vector for each cell of a grid, counted row by row, as ViT does.

    Args:
        rows: height of the grid.
        cols: width of the grid.
        d_model: size of the embeddings.

    Raises:
        TypeError: for a wrong type.
        ValueError: if a size is below 1.

    Source: [dosovitskiy2021image]
    Explained in: chapters/04_positions_deeper, section "Two dimensions".
    """

    def __init__(self, rows: int, cols: int, d_model: int) -> None:
        """Make the table, (rows, cols, d_model), normal with std 0.02."""
        super().__init__()
        for name, size in (("rows", rows), ("cols", cols), ("d_model", d_model)):
            check_number(name, size, 1, whole=True)
        self.weight = nn.Parameter(torch.empty(rows, cols, d_model))
        nn.init.normal_(self.weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "*B N D"], positions: Int[Tensor, "... N"] | None = None
    ) -> Float[Tensor, "*B N D"]:
        """Return x (..., N, d_model) plus the vectors of its cells.

        Cell r · cols + c is row r, column c. Without positions x must hold the whole grid.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: if a shape does not fit or a cell is outside of the grid.
        """
        rows, cols, d_model = self.weight.shape
        positions = _cells_of(x, positions, d_model, rows, cols)
        return x + beside(x, functional.embedding(positions, self.weight.flatten(0, 1)))

    def interpolated(self, rows: int, cols: int) -> "LearnedPositions2d":
        """Return a copy for a grid of another size, see :func:`interpolate_grid`.

        Raises:
            TypeError: if a size is not an integer.
            ValueError: if a size is below 1.
        """
        weight = interpolate_grid(self.weight.detach(), rows, cols)
        other = LearnedPositions2d(rows, cols, weight.shape[-1])
        other.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        return other

    def extra_repr(self) -> str:
        """Show the configuration."""
        rows, cols, d_model = self.weight.shape
        return f"rows={rows}, cols={cols}, d_model={d_model}"


def _cells_of(x: Tensor, positions: Tensor | None, d_model: int, rows: int, cols: int) -> Tensor:
    """Check x and its cells; return the cells, the whole grid when omitted."""
    check_float("x", x, min_dims=2)
    if positions is None and x.shape[-2] != rows * cols:
        raise ValueError(
            f"x must hold the {rows} x {cols} = {rows * cols} cells of the grid, got shape "
            f"{tuple(x.shape)}; name the cells with positions="
        )
    return positions_of(x, positions, d_model, below=rows * cols)


def _check_quarters(d_model: object) -> None:
    check_even("d_model", d_model)
    if d_model % 4:
        raise ValueError(
            f"d_model must be a multiple of 4, half of it for rows and half for columns, "
            f"got {d_model}"
        )
