"""The exercise of chapter 03 on attention to a compressed cache."""

import math
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tfbook.teaching.exercises._spec import Exercise, Wrong, expect, expect_gradients, numbers


def absorbed_latent(
    q: torch.Tensor, latent: torch.Tensor, w_uk: torch.Tensor, w_uv: torch.Tensor
) -> torch.Tensor:
    """Compute attention over compressed keys and values without decompressing them.

    Of each earlier token only a short vector c_j is kept, for all heads together. Head h would
    read from it the key k_j = W_UK c_j and the value v_j = W_UV c_j, with its own two matrices.
    The result is softmax(q kᵀ / √d) v for each head. Keys and values must not be computed: absorb
    the matrices into the queries and into the result.

    q: (B, H, N, d). latent: (B, M, r), the rows c_j. w_uk: (H, d, r). w_uv: (H, e, r).
    Returns: (B, H, N, e).
    """
    ...


def _latent_case(
    b: int, h: int, n: int, m: int, r: int, d: int, e: int
) -> tuple[torch.Tensor, ...]:
    shapes = (b, h, n, d), (b, m, r), (h, d, r), (h, e, r)
    return tuple(numbers(*shape, seed=351 + i) for i, shape in enumerate(shapes))


def _decompressed(
    q: torch.Tensor, latent: torch.Tensor, w_uk: torch.Tensor, w_uv: torch.Tensor, *,
    scale: float | None = None, axis: int = -1,
) -> torch.Tensor:
    """Compute the same with keys and values, to compare with."""
    k, v = (latent[:, None] @ w.mT for w in (w_uk, w_uv))  # (B, H, M, d) and (B, H, M, e)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return torch.softmax(q @ k.mT * scale, axis) @ v


def _latent_values(attend: Any) -> None:
    """The result is attention to the decompressed keys and values."""
    q, c, w_uk, w_uv = case = _latent_case(1, 2, 3, 3, 3, 3, 3)
    right = _decompressed(*case)
    mixed = torch.softmax(q @ (c[:, None] @ w_uk.mT).mT / math.sqrt(3), -1) @ c[:, None]
    first = w_uk[:1].expand_as(w_uk), w_uv[:1].expand_as(w_uv)
    expect(
        attend(*case),
        right,
        "This is not attention to the keys W_UK c_j and the values W_UV c_j.",
        mistakes={
            "The queries met the vectors c_j directly: W_UK was not used.":
                torch.softmax(q @ c[:, None].mT / math.sqrt(3), -1) @ (c[:, None] @ w_uv.mT),
            "The result is still compressed: W_UV was not used.": mixed,
            "W_UK is transposed on its way into the queries: q·(W_UK c) = (W_UKᵀ q)·c, and for "
            "queries in rows W_UKᵀ q is `q @ w_uk`.": _decompressed(q, c, w_uk.mT, w_uv),
            "W_UV is transposed on its way into the result: for rows, W_UV times the mixed vector "
            "is `mixed @ w_uv.mT`.": _decompressed(q, c, w_uk, w_uv.mT),
            "The scale is missing: divide the scores by √d.": _decompressed(*case, scale=1.0),
            "The softmax ran over the queries. It runs over the tokens that are kept.":
                _decompressed(*case, axis=-2),
            "All heads used the matrices of head 0.": _decompressed(q, c, *first),
            "W_UK and W_UV are exchanged.": _decompressed(q, c, w_uv, w_uk),
        },
    )


def _latent_sizes(attend: Any) -> None:
    """The scale follows d, and all sizes may differ."""
    for sizes in ((2, 3, 2, 5, 2, 7, 3), (1, 2, 1, 3, 5, 2, 7)):
        case = _latent_case(*sizes)
        r, d = sizes[4], sizes[5]
        expect(
            attend(*case),
            _decompressed(*case),
            f"With r = {r} and d = {d} the result differs.",
            mistakes={
                "The scores were divided by √r. Absorbing does not change them: they are still "
                "dot products of length d, and the scale is √d.":
                    _decompressed(*case, scale=1 / math.sqrt(r)),
            },
        )


def _latent_memory(attend: Any) -> None:
    """Neither keys nor values of all heads are made."""
    heads, tokens, width = 5, 211, 7
    case = _latent_case(1, heads, 1, tokens, 2, width, width)
    largest = 0

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Watch(), torch.no_grad():
        result = attend(*case)
    if largest >= heads * tokens * width:
        raise Wrong(
            f"Keys or values of all {heads} heads were made: a tensor of {largest} numbers, while "
            f"the compressed cache has {tokens * 2}. Move W_UK to the side of the queries, and "
            "W_UV behind the weighted sum.",
            got=f"{largest} numbers", wanted=f"less than {heads * tokens * width} numbers",
        )
    expect(result, _decompressed(*case))


def _latent_gradients(attend: Any) -> None:
    """Gradients reach the queries, the compressed tokens and both matrices."""
    names = ("q", "latent", "w_uk", "w_uv")
    expect_gradients(attend, **dict(zip(names, _latent_case(1, 2, 2, 3, 2, 3, 2), strict=True)))


ABSORBED_LATENT = Exercise(
    name="absorbed-latent",
    title="Attend without decompressing",
    level=3,
    section='chapters/03_multi_head_deeper, section "Latent attention"',
    stub=absorbed_latent,
    properties=(_latent_values, _latent_sizes, _latent_memory, _latent_gradients),
    hints=(
        "A score is q·(W_UK c). Where can the brackets stand so that W_UK meets q first?",
        "The same on the way out: Σ_j a_j (W_UV c_j) = W_UV (Σ_j a_j c_j). Mix the compressed "
        "vectors first.",
        "`latent[:, None]` has an axis for the heads, over which it broadcasts. Which matrix meets "
        "the query before the latents do, and which one meets the average after them?",
    ),
)

EXERCISES = (ABSORBED_LATENT,)
