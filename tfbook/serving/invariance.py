"""The same bits whoever stands beside one in a batch: sums in an order that no batch changes.

Numbers in floating point are rounded, so the order of a sum shows in its last bits. A library
chooses that order by the shapes that it gets: one row by another kernel than eight. A text that is
served beside others then differs in its last bits from the same text alone, and where two tokens
are almost equally likely, in its words.

Explained in: chapters/17_hardware, section "Serving many".
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tfbook._checks import check_float, check_ids, check_number, check_same, check_shape
from tfbook.models import DecoderOnly

__all__ = ["BatchDifferences", "BatchInvariant", "batch_differences", "tiled_linear", "tree_linear"]

PRODUCTS = 2**20  # that are held at once
ALIGNED = 16  # numbers: what a library asks of the address of a row, for its fastest kernel


def tree_linear(
    x: Float[Tensor, "*B D"],
    weight: Float[Tensor, "N D"],
    bias: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "*B N"]:
    """Return x Wᵀ + b with each sum taken by halves, in an order that only D decides.

    Of the products p_1 … p_D the second half is added to the first, and so on until one is left.
    Each addition is one of two rounded numbers, which gives the same on any machine and in any
    batch. It is written to be read: every product is formed and stored.

    Args:
        x: rows (..., D).
        weight: W (N, D).
        bias: b (N,).

    Returns:
        (..., N).

    Raises:
        TypeError: for an argument that is no tensor of floating point, or another dtype.
        ValueError: for a shape that does not fit.

    Cost: B · N · D products, each stored once; log₂ D additions deep.

    Example:
        >>> x = torch.tensor([[1e8, 1.0, -1e8, 1.0]])
        >>> tree_linear(x, torch.ones(1, 4))  # (1e8 − 1e8) + (1 + 1)
        tensor([[2.]])

    Source: [he2025defeating]
    Explained in: chapters/17_hardware, section "Serving many".
    """
    rows = _rows(x, weight, bias)  # (B, D)
    step = max(1, PRODUCTS // max(1, weight.shape[1] * max(1, len(rows))))
    found = [_halved(rows[:, None] * some) for some in weight.split(step)]  # each (B, step)
    y = torch.cat(found, dim=-1).view(*x.shape[:-1], -1)
    return y if bias is None else y + bias


def _halved(products: Tensor) -> Tensor:
    """Return the sums over the last dimension, by halves and in place."""
    size = products.shape[-1]
    while size > 1:
        half = (size + 1) // 2  # of an odd number the middle one waits
        products[..., : size - half] += products[..., half:size]
        size = half
    return products[..., 0]


def tiled_linear(
    x: Float[Tensor, "*B D"],
    weight: Float[Tensor, "N D"],
    bias: Float[Tensor, " N"] | None = None,
    *,
    rows: int = 8,
) -> Float[Tensor, "*B N"]:
    """Return x Wᵀ + b by the library's kernel, which always gets as many rows.

    What is left over is filled up with zeros, so that a single row takes as long as a whole tile.
    The library then has one shape to choose a kernel for, and a row's bits depend neither on how
    many there are nor on where it stands; that is measured, not promised. Where D is no multiple of
    16 (then a row's place would show) both are filled up with zeros, which copies the weight.

    Args:
        x: rows (..., D).
        weight: W (N, D); it may be a :class:`tfbook.blocks.PackedWeight`.
        bias: b (N,).
        rows: of a tile.

    Returns:
        (..., N).

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a shape that does not fit, or no row in a tile.

    Example:
        >>> x, weight = torch.randn(11, 5), torch.randn(3, 5)
        >>> torch.equal(tiled_linear(x, weight)[:1], tiled_linear(x[:1], weight))
        True

    Source: [he2025defeating]
    Explained in: chapters/17_hardware, section "Serving many".
    """
    check_number("rows", rows, 1, 2**20, whole=True)
    flat, found = _round(_rows(x, weight, bias)), []  # (B, D), or a little wider
    weight = _round(weight)
    for some in flat.split(rows):
        tile = flat.new_zeros(rows, flat.shape[-1])  # its own memory, so at a round address
        tile[: len(some)] = some
        found.append(functional.linear(tile, weight, bias)[: len(some)])
    return torch.cat(found).view(*x.shape[:-1], -1)


def _rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x as rows (B, D), at least one, checked."""
    check_float("x", x, min_dims=1)
    check_float("weight", weight)
    check_shape("weight", weight, (weight.shape[0] if weight.ndim else 0, x.shape[-1]), "(N, D)")
    check_same(x=x, weight=weight)
    if bias is not None:
        check_float("bias", bias)
        check_shape("bias", bias, weight.shape[:1], "(N,)")
        check_same(x=x, bias=bias)
    if 0 in (*x.shape, *weight.shape):
        raise ValueError(f"x must have a row, got {tuple(x.shape)} for {tuple(weight.shape)}")
    return x.reshape(-1, x.shape[-1])


class BatchInvariant(TorchFunctionMode):
    """Within this context a model gives a row the same bits in any batch.

    Linear maps go by :func:`tiled_linear`. In attention each query stands alone, before the keys
    that it may see and no others, so that nobody's padding is in its sums, and it does not matter
    in which pieces a text is read. Norms and what works number by number treat rows alone anyhow,
    as long as these are a multiple of 32 numbers wide.

    Args:
        rows: of a tile.

    Raises:
        TypeError: if it is no integer.
        ValueError: if it is below 1.

    Example:
        >>> from tfbook.models import preset, build
        >>> model = build(preset("smollm2-135m", vocab_size=64, n_layers=2)).eval()
        >>> tokens = torch.arange(24).view(8, 3)
        >>> with BatchInvariant(), torch.no_grad():
        ...     torch.equal(model(tokens)[0][:1], model(tokens[:1])[0])
        True

    Source: [he2025defeating]
    Explained in: chapters/17_hardware, section "Serving many".
    """

    def __init__(self, *, rows: int = 8):
        """Keep the number of rows."""
        check_number("rows", rows, 1, 2**20, whole=True)
        super().__init__()
        self.rows = rows

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Take the two operations that look at a batch, and pass the others on."""
        kwargs = kwargs or {}
        if func is functional.linear:
            return tiled_linear(*args, rows=self.rows, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return _each_alone(*args, **kwargs)
        return func(*args, **kwargs)


def _each_alone(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Return attention (B, H, n, d), each query by itself with the keys that it sees."""
    batch, heads, n, d = query.shape
    m, shared = key.shape[-2], query.shape[1] // key.shape[1]
    scale, width = d**-0.5 if scale is None else scale, value.shape[-1]
    query, key, value = (_round(x) for x in (query, key, value))
    key, value = (x.repeat_interleave(shared, 1) for x in (key, value))  # (B, H, m, d)
    mask = query.new_ones(n, m, dtype=torch.bool).tril() if is_causal else attn_mask
    mask = None if mask is None else mask.expand(batch, heads, n, m)
    found = query.new_zeros(batch, n, heads, value.shape[-1])
    for b in range(batch):
        for i in range(n):
            own, bias = torch.arange(m), None
            if mask is not None:
                seen = mask[b, :, i] if mask.dtype == torch.bool else mask[b, :, i] > -torch.inf
                own = seen.any(0).nonzero()[:, 0]  # (M,)
                if mask.dtype != torch.bool or not seen[:, own].all():
                    bias = mask[b, :, i][:, own][None, :, None]  # (1, H, 1, M)
            if len(own):
                q, k, v = query[b, :, i, None].clone(), key[b][:, own], value[b][:, own]
                alone = functional.scaled_dot_product_attention(
                    q[None], k[None], v[None], attn_mask=bias, dropout_p=dropout_p, scale=scale
                )
                found[b, i] = alone[0, :, 0]
    return found.transpose(1, 2)[..., :width]


def _round(x: Tensor) -> Tensor:
    """Return rows filled up with zeros, so that each begins at a round address."""
    missing = -x.shape[-1] % ALIGNED
    return functional.pad(x, (0, missing)) if missing else x


class BatchDifferences(NamedTuple):
    """How the logits of a batch differ from those of its rows alone.

    Attributes:
        numbers: how many logits were compared.
        different: how many of them have other bits.
        largest: the largest difference.
        choices: at how many places another token is the most likely one.

    Explained in: chapters/17_hardware, section "Serving many".
    """

    numbers: int
    different: int
    largest: float
    choices: int


@torch.no_grad()
def batch_differences(model: DecoderOnly, tokens: Int[Tensor, "B N"]) -> BatchDifferences:
    """Compute rows together and each alone, and count how the logits differ.

    Args:
        model: a decoder in evaluation mode.
        tokens: (B, N). With N = 1, as where a text is continued, libraries treat one row and
            several most differently.

    Raises:
        TypeError: if model is no decoder, or tokens are no integers.
        ValueError: for a shape or a number that does not fit.

    Example:
        >>> from tfbook.models import preset, build
        >>> model = build(preset("smollm2-135m", vocab_size=64, n_layers=2)).eval()
        >>> with BatchInvariant():
        ...     batch_differences(model, torch.arange(8)[:, None])
        BatchDifferences(numbers=512, different=0, largest=0.0, choices=0)

    Source: [he2025defeating]
    Explained in: chapters/17_hardware, section "Serving many".
    """
    if not isinstance(model, DecoderOnly):
        raise TypeError(f"model must be a DecoderOnly, got {type(model).__name__}")
    check_ids("tokens", tokens, below=model.config.vocab_size)
    together = model(tokens)[0]  # (B, N, V)
    alone = torch.cat([model(row[None])[0] for row in tokens])
    return BatchDifferences(
        numbers=together.numel(),
        different=int((together != alone).sum()),
        largest=float((together - alone).abs().max()),
        choices=int((together.argmax(-1) != alone.argmax(-1)).sum()),
    )
