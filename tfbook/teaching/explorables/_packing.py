"""Attention weights in few characters: two for each number, and none where a causal mask is."""

import math
from collections.abc import Mapping

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
STEPS = 4095  # 12 bits
SUM_TOLERANCE = 0.01
VALUE = {letter: value for value, letter in enumerate(ALPHABET)}


def pack_weights(weights) -> dict:
    r"""Return attention weights as a small dictionary that JSON can hold.

    A weight $w$ is stored as $\mathrm{round}(4095\sqrt w)$ in two characters, so that small
    weights keep their size: rounding changes a weight near 1 by at most $1.3 \cdot 10^{-4}$ and a
    small one by less, and unpacked rows are scaled to sum to 1 again. If no row of a square matrix
    looks ahead, only the lower triangles are stored.

    Args:
        weights: `(..., n, m)`, a tensor, an array or nested lists; each row sums to 1.

    Returns:
        `shape`, `causal` and `codes`, a string of two characters for each weight.

    Raises:
        TypeError: if weights are not numbers in nested lists.
        ValueError: if a row is no distribution.

    Explained in: chapters/03_multi_head, section "What the heads of a small model do".
    """
    return _pack("weights", weights)


def _pack(name: str, weights) -> dict:
    shape, rows = _rows(name, weights)
    n, m = shape[-2:]
    causal = n == m and not any(any(row[r % n + 1 :]) for r, row in enumerate(rows))
    codes = []
    for r, row in enumerate(rows):
        kept = row[: r % n + 1] if causal else row
        steps = (round(STEPS * math.sqrt(min(w, 1.0))) for w in kept)
        codes.append("".join(ALPHABET[s >> 6] + ALPHABET[s & 63] for s in steps))
    return {"shape": shape, "causal": causal, "codes": "".join(codes)}


def unpack_weights(packed: Mapping) -> list:
    """Return the weights of `pack_weights` as nested lists; each row sums to 1 again.

    Raises:
        ValueError: if the dictionary is not one that `pack_weights` made.

    Explained in: chapters/03_multi_head, section "What the heads of a small model do".
    """
    rows = _unpacked(packed)
    for size in packed["shape"][-2:0:-1]:
        rows = [rows[i : i + size] for i in range(0, len(rows), size)]
    return rows


def packed_weights(name: str, weights, dims: int) -> dict:
    """Return weights with `dims` dimensions packed, whether they come packed or as numbers.

    Raises:
        TypeError: if they are neither.
        ValueError: if there are more or fewer dimensions, or a row is no distribution.
    """
    if isinstance(weights, Mapping):
        packed = {key: weights.get(key) for key in ("shape", "causal", "codes")}
        _unpacked(packed, name)
        packed["shape"] = list(packed["shape"])
    else:
        packed = _pack(name, weights)
    if len(packed["shape"]) != dims:
        raise ValueError(f"{name} must have {dims} dimensions, got shape {packed['shape']}")
    return packed


def _unpacked(packed: Mapping, name: str = "packed") -> list[list[float]]:
    shape, causal, codes = (packed.get(key) for key in ("shape", "causal", "codes"))
    good = isinstance(codes, str) and isinstance(causal, bool) and set(codes) <= set(ALPHABET)
    good = good and isinstance(shape, (list, tuple)) and len(shape) > 1
    if not good or not all(isinstance(s, int) and s > 0 for s in shape):
        raise ValueError(f"{name} must be a dictionary that pack_weights made")
    *lead, n, m = shape
    lengths = [i + 1 if causal else m for i in range(n)]
    if (causal and n != m) or len(codes) != 2 * sum(lengths) * math.prod(lead):
        raise ValueError(f"{name} must hold two characters a weight, got {len(codes)} for {shape}")
    rows, start = [], 0
    for r in range(math.prod(lead) * n):
        end = start + 2 * lengths[r % n]
        steps = (VALUE[codes[i]] * 64 + VALUE[codes[i + 1]] for i in range(start, end, 2))
        squares = [s * s for s in steps]
        total = sum(squares)
        if not total:
            raise ValueError(f"{name} must hold rows that sum to 1, row {r} is empty")
        rows.append([s / total for s in squares] + [0.0] * (m - lengths[r % n]))
        start = end
    return rows


def _rows(name: str, weights) -> tuple[list[int], list[list[float]]]:
    """Return the shape and the rows of nested lists, after checking that each row sums to 1."""
    if hasattr(weights, "tolist"):
        weights = weights.tolist()
    shape, level = [], weights
    while isinstance(level, (list, tuple)) and level:
        shape.append(len(level))
        level = level[0]
    if len(shape) < 2:
        raise TypeError(f"{name} must be rows of numbers or packed, got {type(weights).__name__}")
    rows = [weights]
    for size in shape[:-1]:
        if any(not isinstance(r, (list, tuple)) or len(r) != size for r in rows):
            raise ValueError(f"{name} must have blocks of one size, and begin with shape {shape}")
        rows = [inner for row in rows for inner in row]
    for r, row in enumerate(rows):
        if not isinstance(row, (list, tuple)) or len(row) != shape[-1]:
            raise ValueError(f"{name} must have rows of {shape[-1]} numbers, not so row {r}")
        if wrong := [w for w in row if isinstance(w, bool) or not isinstance(w, (int, float))]:
            raise TypeError(f"{name} must be numbers, got {type(wrong[0]).__name__} in row {r}")
        total = math.fsum(row)
        # Written so that it fails for nan too.
        if not (min(row) >= 0 and abs(total - 1) <= SUM_TOLERANCE):
            raise ValueError(
                f"{name} must have rows of weights that sum to 1, row {r % shape[-2]} sums to "
                f"{total:.3f} (queries are rows, keys are columns)"
            )
    return shape, rows
