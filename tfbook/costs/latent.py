"""What latent attention costs: parameters, and FLOPs by product.

Explained in: chapters/03_multi_head, section "What heads cost".
"""


from tfbook._checks import check_bool, check_number, head_sizes
from tfbook.costs.caches import check_sizes
from tfbook.costs.heads import check_lengths

__all__ = [
    "latent_flops",
    "latent_flops_parts",
    "latent_parameters",
]


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
    """Count the parameters of :class:`tfbook.attention.LatentAttention`, without norms.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: for sizes that do not fit.

    Source: [deepseek2024v2]
    Explained in: chapters/03_multi_head_deeper, section "Latent attention".
    """
    shapes = _latent(d_model, n_heads, d_latent, d_rope, d_head, d_value, d_query_latent)
    return sum(inputs * outputs for inputs, outputs in shapes.values())


def latent_flops(n: int, d_model: int, n_heads: int, **choices: object) -> int:
    """Count the FLOPs of one pass of latent attention; see :func:`latent_flops_parts`.

    Explained in: chapters/03_multi_head_deeper, section "Latent attention".
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
    Explained in: chapters/03_multi_head_deeper, section "Latent attention".
    """
    shapes = _latent(d_model, n_heads, d_latent, d_rope, d_head, d_value, d_query_latent)
    m = check_lengths(n, m, batch, at_least_n=True)
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


def _latent(d_model, n_heads, d_latent, d_rope, d_head, d_value, d_query_latent):
    """Return inputs and outputs of each projection of latent attention."""
    _, d_head, d_value = head_sizes(d_model, n_heads, None, d_head, d_value)
    check_sizes(d_latent=d_latent)
    check_number("d_rope", d_rope, 0, whole=True)
    queries = n_heads * (d_head + d_rope)
    if d_query_latent is None:
        shapes = {"q": (d_model, queries)}
    else:
        check_sizes(d_query_latent=d_query_latent)
        shapes = {"q_down": (d_model, d_query_latent), "q": (d_query_latent, queries)}
    return shapes | {
        "kv_down": (d_model, d_latent),
        "k_rope": (d_model, d_rope),
        "k_up": (d_latent, n_heads * d_head),
        "v_up": (d_latent, n_heads * d_value),
        "out": (n_heads * d_value, d_model),
    }
