"""What a cache of keys and values weighs, in bytes.

Explained in: chapters/03_multi_head, section "What heads cost".
"""


from tfbook._checks import check_number

__all__ = [
    "kv_cache_bytes",
    "latent_cache_bytes",
]


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
    check_number("length", length, 0, whole=True)
    check_number("batch", batch, 0, whole=True)
    check_sizes(
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
    Explained in: chapters/03_multi_head_deeper, section "Latent attention".
    """
    for name, value in (("d_rope", d_rope), ("length", length), ("batch", batch)):
        check_number(name, value, 0, whole=True)
    check_sizes(n_layers=n_layers, d_latent=d_latent, bytes_per_number=bytes_per_number)
    return n_layers * (d_latent + d_rope) * length * batch * bytes_per_number


def check_sizes(**sizes: object) -> None:
    for name, value in sizes.items():
        check_number(name, value, 1, whole=True)
