"""What attention costs, as plain numbers: parameters, floating-point operations, bytes.

Nothing here allocates or computes a tensor; the numbers equal those counted from real modules.
One multiplication with its addition counts as 2 FLOPs. Adding a bias, rotating, scaling and the
softmax are left out, as PyTorch's ``torch.utils.flop_counter`` leaves them out: they grow with the
number of entries, not with the size of a product.

Explained in: chapters/03_multi_head, section "What heads cost".
"""

from collections.abc import Collection

from tfbook.validate import check_bool, check_count, check_heads, check_memory, check_names

__all__ = [
    "attention_flops",
    "attention_flops_parts",
    "attention_parameters",
    "kv_cache_bytes",
    "latent_cache_bytes",
    "latent_flops",
    "latent_flops_parts",
    "latent_parameters",
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
    """Count the parameters of :class:`tfbook.multihead.MultiHeadAttention`, arguments as there.

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
    biased = check_names("bias", bias, PROJECTIONS)
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
    m = _lengths(n, m, batch, at_least_n=d_memory is None)
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


def kv_cache_bytes(
    n_layers: int,
    n_kv_heads: int,
    d_head: int,
    length: int,
    batch: int = 1,
    bytes_per_number: int = 2,
    *,
    d_value: int | None = None,
) -> int:
    """Count the bytes of a cache of keys and values.

    n_layers · n_kv_heads · (d_head + d_value) · length · batch · bytes_per_number.

    Args:
        n_layers: layers, each with a cache of its own.
        n_kv_heads: heads of keys and values: H, or fewer when grouped, or 1.
        d_head: size of a key.
        length: positions held.
        batch: sequences.
        bytes_per_number: 2 for half precision, 4 for single.
        d_value: size of a value; d_head when omitted.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if one is negative, or 0 where there must be something.

    Example:
        >>> kv_cache_bytes(32, n_kv_heads=32, d_head=128, length=4096) / 2**30  # GiB
        2.0

    Source: [ainslie2023gqa]
    Explained in: chapters/03_multi_head, section "Fewer keys and values".
    """
    d_value = d_head if d_value is None else d_value
    check_count("length", length)
    check_count("batch", batch)
    _check_sizes(
        n_layers=n_layers,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        d_value=d_value,
        bytes_per_number=bytes_per_number,
    )
    return n_layers * n_kv_heads * (d_head + d_value) * length * batch * bytes_per_number


def latent_cache_bytes(
    n_layers: int,
    d_latent: int,
    d_rope: int,
    length: int,
    batch: int = 1,
    bytes_per_number: int = 2,
) -> int:
    """Count the bytes of a cache of latents and rotated key parts, which all heads share.

    n_layers · (d_latent + d_rope) · length · batch · bytes_per_number: no factor for heads.

    Args:
        n_layers: layers.
        d_latent: size of the latent.
        d_rope: size of the rotated part of a key; may be 0.
        length: positions held.
        batch: sequences.
        bytes_per_number: 2 for half precision, 4 for single.

    Raises:
        TypeError: if a number is not an integer.
        ValueError: if one is negative, or 0 where there must be something.

    Example:
        >>> latent_cache_bytes(1, d_latent=512, d_rope=64, length=1)
        1152

    Source: [deepseek2024v2]
    Explained in: chapters/03_multi_head, section "Latent attention".
    """
    for name, value in (("d_rope", d_rope), ("length", length), ("batch", batch)):
        check_count(name, value)
    _check_sizes(n_layers=n_layers, d_latent=d_latent, bytes_per_number=bytes_per_number)
    return n_layers * (d_latent + d_rope) * length * batch * bytes_per_number


def latent_parameters(
    d_model: int,
    n_heads: int,
    *,
    d_latent: int,
    d_rope: int = 0,
    d_head: int | None = None,
    d_value: int | None = None,
    d_query_latent: int | None = None,
) -> int:
    """Count the parameters of :class:`tfbook.latent.LatentAttention`, without norms.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: for sizes that do not fit.

    Source: [deepseek2024v2]
    Explained in: chapters/03_multi_head, section "Latent attention".
    """
    shapes = _latent(d_model, n_heads, d_latent, d_rope, d_head, d_value, d_query_latent)
    return sum(inputs * outputs for inputs, outputs in shapes.values())


def latent_flops(n: int, d_model: int, n_heads: int, **choices: object) -> int:
    """Count the FLOPs of one pass of latent attention; see :func:`latent_flops_parts`.

    Explained in: chapters/03_multi_head, section "Latent attention".
    """
    return sum(latent_flops_parts(n, d_model, n_heads, **choices).values())


def latent_flops_parts(
    n: int,
    d_model: int,
    n_heads: int,
    *,
    d_latent: int,
    d_rope: int = 0,
    d_head: int | None = None,
    d_value: int | None = None,
    d_query_latent: int | None = None,
    m: int | None = None,
    batch: int = 1,
    absorbed: bool = False,
) -> dict[str, int]:
    """Count the FLOPs of each step of latent attention, in either of its two forms.

    The naive form makes keys and values of all m latents, 2 m d_latent H (d_head + d_value), and
    then attends in spaces of d_head + d_rope and d_value. The absorbed form moves the n queries to
    the latents, 2 n d_latent H d_head, attends in spaces of d_latent + d_rope and d_latent, and
    moves back what was found, 2 n d_latent H d_value. For few queries and many keys it is cheaper.

    Args:
        n: rows of x.
        d_model: as for the module, like the other sizes.
        n_heads: H.
        d_latent: size of the latent.
        d_rope: size of the rotated part of a key.
        d_head: size of the other part.
        d_value: size of a value.
        d_query_latent: size of the queries' own latent.
        m: latents to look at, those of the state included; n when omitted.
        batch: sequences.
        absorbed: which form.

    Returns:
        FLOPs of "q", "down", "up" (or its replacement), "scores", "mix" and "out".

    Raises:
        TypeError: if a size is not an integer.
        ValueError: for sizes that do not fit.

    Source: [deepseek2024v2]
    Explained in: chapters/03_multi_head, section "Latent attention".
    """
    shapes = _latent(d_model, n_heads, d_latent, d_rope, d_head, d_value, d_query_latent)
    m = _lengths(n, m, batch, at_least_n=True)
    check_bool("absorbed", absorbed)

    def size(*names: str) -> int:
        return sum(inputs * outputs for inputs, outputs in map(shapes.get, names) if inputs)

    query, value = (n_heads * d_latent,) * 2 if absorbed else (shapes["k_up"][1], shapes["v_up"][1])
    products = {
        "q": n * size(*(name for name in shapes if name.startswith("q"))),
        "down": n * size("kv_down", "k_rope"),
        "up": (n if absorbed else m) * size("k_up", "v_up"),
        "scores": n * m * (query + n_heads * d_rope),
        "mix": n * m * value,
        "out": n * size("out"),
    }
    return {name: 2 * batch * product for name, product in products.items()}


def _projections(d_model, n_heads, n_kv_heads, d_head, d_value, d_memory):
    """Return inputs and outputs of each projection."""
    n_kv_heads, d_head, d_value = check_heads(d_model, n_heads, n_kv_heads, d_head, d_value)
    d_keys, d_values = check_memory(d_model if d_memory is None else d_memory)
    return {
        "q": (d_model, n_heads * d_head),
        "k": (d_keys, n_kv_heads * d_head),
        "v": (d_values, n_kv_heads * d_value),
        "out": (n_heads * d_value, d_model),
    }


def _latent(d_model, n_heads, d_latent, d_rope, d_head, d_value, d_query_latent):
    """Return inputs and outputs of each projection of latent attention."""
    _, d_head, d_value = check_heads(d_model, n_heads, None, d_head, d_value)
    _check_sizes(d_latent=d_latent)
    check_count("d_rope", d_rope)
    queries = n_heads * (d_head + d_rope)
    if d_query_latent is None:
        shapes = {"q": (d_model, queries)}
    else:
        _check_sizes(d_query_latent=d_query_latent)
        shapes = {"q_down": (d_model, d_query_latent), "q": (d_query_latent, queries)}
    return shapes | {
        "kv_down": (d_model, d_latent),
        "k_rope": (d_model, d_rope),
        "k_up": (d_latent, n_heads * d_head),
        "v_up": (d_latent, n_heads * d_value),
        "out": (n_heads * d_value, d_model),
    }


def _lengths(n, m, batch, *, at_least_n):
    m = n if m is None else m
    for name, value in (("n", n), ("m", m), ("batch", batch)):
        check_count(name, value)
    if at_least_n and m < n:
        raise ValueError(f"m counts all keys, the n new ones included, got m = {m} and n = {n}")
    return m


def _check_sizes(**sizes: object) -> None:
    for name, value in sizes.items():
        check_count(name, value, minimum=1)
