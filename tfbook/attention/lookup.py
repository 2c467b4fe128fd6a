"""Attention as a lookup in a table, soft and hard.

Explained in: chapters/02_attention.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from tfbook._checks import check_attention, check_bool, check_number
from tfbook.attention.exact import Output, attend
from tfbook.attention.scores import dot_scores

__all__ = [
    "hard_lookup",
    "soft_lookup",
]


def soft_lookup(
    query: Float[Tensor, "*#B N D"],
    keys: Float[Tensor, "*#B M D"],
    values: Float[Tensor, "*#B M E"],
    *,
    temperature: float = 1.0,
    return_weights: bool = False,
) -> Output:
    """Look up every key at once, each by its similarity to the query.

    weights = softmax(query · keys / T); out = weights values. As T → 0 this becomes
    :func:`hard_lookup`; with T = √d it is :func:`attend`.

    Args:
        query: (..., n, d).
        keys: (..., m, d).
        values: (..., m, d_v).
        temperature: T above 0.
        return_weights: also return the weights (..., n, m).

    Returns:
        The output (..., n, d_v), or (output, weights).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape or device, or a temperature that is not positive.

    Explained in: chapters/02_attention_deeper, section "Lookup made soft".
    """
    check_number("temperature", temperature, above=0)
    return attend(query, keys, values, scale=1 / temperature, return_weights=return_weights)


def hard_lookup(
    query: Float[Tensor, "*#B N D"],
    keys: Float[Tensor, "*#B M D"],
    values: Float[Tensor, "*#B M E"],
    *,
    return_weights: bool = False,
) -> Output:
    """Look up the one key most similar to the query and return its value.

    out[i] = values[argmax_j query[i] · keys[j]], the first of equal ones; zeros without any key.
    The choice has no gradient: none reaches query or keys.

    Args:
        query: (..., n, d).
        keys: (..., m, d).
        values: (..., m, d_v).
        return_weights: also return the weights (..., n, m), one 1 in each row.

    Returns:
        The output (..., n, d_v), or (output, weights).

    Raises:
        TypeError: for a wrong type or dtype.
        ValueError: for a wrong shape or device.

    Example:
        >>> keys, values = torch.eye(2), torch.tensor([[10.0], [20.0]])
        >>> hard_lookup(torch.tensor([[0.2, 0.9]]), keys, values)
        tensor([[20.]])

    Explained in: chapters/02_attention_deeper, section "Lookup made soft".
    """
    check_attention(query, keys, values)
    check_bool("return_weights", return_weights)
    scores = dot_scores(query, keys).detach()  # (..., n, m)
    weights = torch.zeros_like(scores, dtype=values.dtype)
    if scores.shape[-1] > 0:
        weights = weights.scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
    output = weights @ values  # (..., n, d_v)
    return (output, weights) if return_weights else output
