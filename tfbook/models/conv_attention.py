"""Convolution inside of attention: CvT makes the queries, keys and values of a picture by it.

Where the convolutions take strides there are fewer keys and values, and nothing else is needed to
tell where a cell stands.

Explained in: chapters/09_hybrids.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfbook._checks import check_module, check_number, check_rows
from tfbook.models.convolutions import check_width
from tfbook.models.layers import Attention, check_spec
from tfbook.models.spec import Part, Run, Site, Spec

__all__ = ["ConvAttention", "ConvProjection"]


class ConvAttention(nn.Module):
    """Attention over a picture whose queries, keys and values are made by small convolutions.

    q = W_q norm(conv_q(x)), k = W_k norm(conv_k(x)), v = W_v norm(conv_v(x)): each a filter of
    width × width for each number, batch normalisation, and attention's own linear map. Those of
    keys and values take strides, so there are stride² times fewer of them. The convolutions know
    where a cell stands among its neighbours, so no position is needed.

    Args:
        attention: made with ``d_memory=d_model``, for keys come of other rows than queries do.
        grid: rows and columns of cells; x holds them row by row.
        stride: of keys and values.
        width: of the filters, odd.
        first: rows of x before the cells, such as a class token; they are left as they are.

    Attributes:
        q_conv, k_conv, v_conv: the filters and norms.
        attention: the attention.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a value out of range, or an attention that looks at its own rows.

    Example:
        >>> from tfbook.attention import MultiHeadAttention
        >>> attention = MultiHeadAttention(8, n_heads=2, d_memory=8)
        >>> mixer = ConvAttention(attention, grid=(4, 6))
        >>> mixer(torch.randn(2, 24, 8))[0].shape, mixer.weights(torch.randn(2, 24, 8)).shape
        (torch.Size([2, 24, 8]), torch.Size([2, 2, 24, 6]))

    Source: [wu2021cvt]
    Explained in: chapters/09_hybrids.
    """

    def __init__(
        self,
        attention: nn.Module,
        grid: tuple[int, int],
        *,
        stride: int = 2,
        width: int = 3,
        first: int = 0,
    ):
        """Draw the filters as PyTorch does."""
        super().__init__()
        check_module("attention", attention)
        if getattr(attention, "d_memory", None) is None:
            raise ValueError("attention must be made with d_memory=d_model, got none")
        _check_grid(grid, stride, width, first)
        self.grid, self.stride, self.width, self.first = tuple(grid), stride, width, first
        d = attention.d_model
        self.q_conv, self.k_conv, self.v_conv = (
            nn.Sequential(
                nn.Conv2d(d, d, width, step, width // 2, groups=d, bias=False), nn.BatchNorm2d(d)
            )
            for step in (1, stride, stride)
        )
        self.attention = attention

    def extra_repr(self) -> str:
        """Show the choices."""
        return f"grid={self.grid}, stride={self.stride}, width={self.width}, first={self.first}"

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        state: None = None,
        *,
        mask: None = None,
    ) -> tuple[Float[Tensor, "B N D"], None]:
        """Mix the cells of a picture.

        Args:
            x: (B, first + rows · columns, d_model).
            state: None; a picture is no sequence that goes on.
            mask: None; a key is made of several cells.

        Returns:
            y of the shape of x, and None.

        Raises:
            TypeError: for a wrong type or dtype.
            ValueError: for a shape that does not fit, a state or a mask.
        """
        q, held = self._project(x, state, mask)
        return self.attention(q, held)[0], None

    def weights(
        self, x: Float[Tensor, "B N D"], state: None = None, *, mask: None = None
    ) -> Float[Tensor, "B H N M"]:
        """Return how much each cell takes from each key, of which there are fewer.

        Arguments and errors are those of :meth:`forward`.
        """
        q, held = self._project(x, state, mask)
        return self.attention.weights(q, held)

    def _project(self, x, state, mask):
        check_rows("x", x, self.attention.out_proj.weight.mT)
        n = self.first + self.grid[0] * self.grid[1]
        if x.shape[1] != n:
            raise ValueError(
                f"x must have {self.first} + {self.grid[0]} · {self.grid[1]} = {n} rows, "
                f"got shape {tuple(x.shape)}"
            )
        for name, value in (("state", state), ("mask", mask)):
            if value is not None:
                raise ValueError(f"{name} must be None, for keys are made of whole neighbourhoods")
        k, v = self._convolve(self.k_conv, x), self._convolve(self.v_conv, x)
        return self._convolve(self.q_conv, x), self.attention.remember(k, v)

    def _convolve(self, conv, x):
        first, cells = x[:, : self.first], x[:, self.first :]
        y = conv(cells.mT.unflatten(-1, self.grid))  # (B, d_model, rows, columns)
        return torch.cat([first, y.flatten(-2).mT], dim=1)


@dataclass(frozen=True)
class ConvProjection(Spec):
    """Attention with queries, keys and values made by convolutions, see :class:`ConvAttention`.

    Args:
        attention: heads and the rest; without position and window.
        grid: rows and columns of cells.
        stride: of keys and values.
        width: of the filters, odd.
        first: rows before the cells, such as a class token.

    Example:
        >>> ConvProjection(Attention(4), (14, 14)).keys
        49

    Source: [wu2021cvt]
    Explained in: chapters/09_hybrids.
    """

    attention: Attention
    grid: tuple[int, int]
    _: KW_ONLY
    stride: int = 2
    width: int = 3
    first: int = 0

    def __post_init__(self) -> None:
        """Check the choices one by one."""
        check_spec("attention", self.attention, Attention)
        _check_grid(self.grid, self.stride, self.width, self.first)
        object.__setattr__(self, "grid", tuple(self.grid))
        if self.attention.position is not None or self.attention.window is not None:
            raise ValueError("attention must have neither position nor window: keys are no rows")

    @property
    def keys(self) -> int:
        """Return how many keys there are."""
        rows, cols = (-(-size // self.stride) for size in self.grid)
        return self.first + rows * cols

    def check(self, site: Site) -> None:
        """Raise ValueError in a decoder or as a cross-attention, or where heads do not fit."""
        if site.causal or site.memory:
            raise ValueError("ConvProjection is for an encoder of pictures, where all is seen")
        self.attention.check(site.of_memory())

    def build(self, site: Site) -> nn.Module:
        """Make the module."""
        choices = {"stride": self.stride, "width": self.width, "first": self.first}
        return ConvAttention(self.attention.build(site.of_memory()), self.grid, **choices)

    def price(self, name: str, run: Run) -> Iterator[Part]:
        """Yield the three convolutions with their norms, and the attention."""
        d, weights = run.d_model, run.d_model * self.width**2
        for which, made in (("q", self.grid[0] * self.grid[1]), ("k", 0), ("v", 0)):
            made = made or self.keys - self.first
            numbers, shape = run.batch * made * d, (run.batch, d, made)
            memory = {"moves": run.batch * run.n * d + numbers + weights}
            memory["keeps"] = run.batch * run.n * d * (which == "q")
            part = run.part(f"{name}.{which}_conv.0", shape, weights, 2 * made * weights, **memory)
            yield part._replace(flops=part.flops * run.batch)
            memory = {"moves": 2 * numbers + 2 * d, "keeps": numbers}
            yield run.part(f"{name}.{which}_conv.1", shape, 2 * d, **memory)
        yield from self.attention.price(f"{name}.attention", replace(run, m=self.keys, past=0))


def _check_grid(grid: object, stride: object, width: object, first: object) -> None:
    if not (isinstance(grid, tuple | list) and len(grid) == 2):
        raise TypeError(f"grid must be a pair of rows and columns, got {grid!r}")
    for size in grid:
        check_number("grid", size, 1, whole=True)
    check_number("stride", stride, 1, whole=True)
    check_width(width, False)
    check_number("first", first, 0, whole=True)
