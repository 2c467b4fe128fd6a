"""What multi-head attention costs: parameters, and FLOPs by product.

Explained in: chapters/03_multi_head, section "What heads cost".
"""

from collections.abc import Collection

from tfbook._checks import check_bool, check_number, chosen_names, head_sizes, memory_sizes

__all__ = [
    "attention_flops",
    "attention_flops_parts",
    "attention_parameters",
]

PROJECTIONS = ("q", "k", "v", "out")


def attention_parameters(
    d_model: int,
    n_heads: int,
    *,
    n_kv_heads: int | None = None,
    d_head: int | None = None,
    d_value: int | None = None,
    d_memory: int | tuple[int, int] | None = None,
    bias: bool | Collection[str] = True,
) -> int:
    """Count the parameters of :class:`tfbook.attention.MultiHeadAttention`, arguments as there.

    d_model · H · (d_head + d_value) + n_kv_heads · (d_memory_k · d_head + d_memory_v · d_value),
    and one for each output of a projection with a bias. With the usual sizes, d_head = d_value =
    d_model / H and n_kv_heads = H, this is 4 d_model² (+ 4 d_model), whatever H is.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: for sizes that do not fit.

    Example:
        >>> [attention_parameters(512, n_heads, bias=False) for n_heads in (1, 8)]
        [1048576, 1048576]

    Source: [vaswani2017attention]
    Explained in: chapters/03_multi_head, section "What heads cost".
    """
    shapes = _projections(d_model, n_heads, n_kv_heads, d_head, d_value, d_memory)
    biased = chosen_names("bias", bias, PROJECTIONS)
    return sum(rows * columns + rows * (name in biased) for name, (columns, rows) in shapes.items())


def attention_flops(n: int, d_model: int, n_heads: int, **choices: object) -> int:
    """Count the FLOPs of one pass of multi-head attention; see :func:`attention_flops_parts`.

    Example:
        >>> attention_flops(10, 512, 8) == 2 * 4 * 10 * 512**2 + 2 * 2 * 10**2 * 512
        True

    Explained in: chapters/03_multi_head, section "What heads cost".
    """
    return sum(attention_flops_parts(n, d_model, n_heads, **choices).values())


def attention_flops_parts(
    n: int,
    d_model: int,
    n_heads: int,
    *,
    m: int | None = None,
    batch: int = 1,
    n_kv_heads: int | None = None,
    d_head: int | None = None,
    d_value: int | None = None,
    d_memory: int | tuple[int, int] | None = None,
    remembered: bool = False,
) -> dict[str, int]:
    """Count the FLOPs of each step of multi-head attention.

    Projections: 2 · rows · inputs · outputs; scores: 2 · H · n · m · d_head; mixing the values:
    2 · H · n · m · d_value. Causal attention is counted in full: half of its scores are thrown
    away, but whether they are computed is the attention function's affair.

    Args:
        n: rows of x, which are projected to queries and, in self-attention, keys and values.
        d_model: as for the module, like the other sizes.
        n_heads: H.
        m: keys to compare with; n when omitted. In self-attention the m − n others come from the
            state, already projected. In cross-attention it is the length of the memory.
        batch: sequences.
        n_kv_heads: heads of keys and values.
        d_head: size of queries and keys.
        d_value: size of values.
        d_memory: size of the memory's rows, which makes it cross-attention.
        remembered: whether the memory's keys and values are there already.

    Returns:
        FLOPs of "q", "k", "v", "scores", "mix" and "out".

    Raises:
        TypeError: if a size is not an integer.
        ValueError: for sizes that do not fit, or fewer keys than rows in self-attention.

    Explained in: chapters/03_multi_head, section "What heads cost".
    """
    shapes = _projections(d_model, n_heads, n_kv_heads, d_head, d_value, d_memory)
    m = check_lengths(n, m, batch, at_least_n=d_memory is None)
    check_bool("remembered", remembered)
    if remembered and d_memory is None:
        raise ValueError("remembered is for cross-attention, set d_memory; use m for a cache")
    projected = n if d_memory is None else m * (not remembered)
    rows = {"q": n, "k": projected, "v": projected, "out": n}
    products = {name: rows[name] * inputs * outputs for name, (inputs, outputs) in shapes.items()}
    products["scores"] = n * m * shapes["q"][1]  # H d_head
    products["mix"] = n * m * shapes["out"][0]  # H d_value
    order = ("q", "k", "v", "scores", "mix", "out")
    return {name: 2 * batch * products[name] for name in order}


def _projections(d_model, n_heads, n_kv_heads, d_head, d_value, d_memory):
    """Return inputs and outputs of each projection."""
    n_kv_heads, d_head, d_value = head_sizes(d_model, n_heads, n_kv_heads, d_head, d_value)
    d_keys, d_values = memory_sizes(d_model if d_memory is None else d_memory)
    return {
        "q": (d_model, n_heads * d_head),
        "k": (d_keys, n_kv_heads * d_head),
        "v": (d_values, n_kv_heads * d_value),
        "out": (n_heads * d_value, d_model),
    }


def check_lengths(n, m, batch, *, at_least_n):
    m = n if m is None else m
    for name, value in (("n", n), ("m", m), ("batch", batch)):
        check_number(name, value, 0, whole=True)
    if at_least_n and m < n:
        raise ValueError(f"m counts all keys, the n new ones included, got m = {m} and n = {n}")
    return m
