"""How surprised is the model? Perplexity, and bits per byte, which does not depend on the tokens.

Explained in: chapters/11_training_deeper, section "Is it any good?".
"""

import math

from tfbook._checks import check_number

__all__ = [
    "bits_per_byte",
    "perplexity",
]


def perplexity(nats: float, tokens: int = 1) -> float:
    """Return exp of the mean loss per token: as unsure as between so many equal choices.

    PPL = exp(L / T), L = −Σ_t ln p(x_t | x_<t) over the T tokens that are predicted.

    It depends on what a token is: the same text with the same L has another perplexity when it is
    cut into more tokens. Compare :func:`bits_per_byte` where the tokens differ.

    Args:
        nats: L, the summed loss in nats; or the mean loss per token, with tokens=1.
        tokens: T, padding not counted.

    Returns:
        From 1, no surprise, to ∞ (also where exp is beyond the largest float).

    Raises:
        TypeError: if nats is no number or tokens no integer.
        ValueError: if nats is negative or NaN, or tokens below 1.

    Example:
        >>> round(perplexity(100.0, tokens=20), 1), round(perplexity(100.0, tokens=40), 1)
        (148.4, 12.2)

    Source: [jelinek1977perplexity]
    Explained in: chapters/11_training_deeper, section "Is it any good?".
    """
    check_number("nats", nats, 0, finite=False)
    check_number("tokens", tokens, 1, whole=True)
    try:
        return math.exp(nats / tokens)
    except OverflowError:
        return math.inf


def bits_per_byte(nats: float, n_bytes: int) -> float:
    """Return the loss in bits for each byte of the text: comparable whatever the tokens are.

    BPB = L / (n_bytes ln 2) = (T / n_bytes) (L / T) / ln 2, where L / T is the mean loss per token.

    Args:
        nats: L, the summed loss of all tokens of the text, in nats.
        n_bytes: the size of that text, ``len(text.encode("utf-8"))``.

    Returns:
        From 0; 8 is what bytes at random cost.

    Raises:
        TypeError: if nats is no number or n_bytes no integer.
        ValueError: if nats is negative or NaN, or n_bytes below 1.

    Example:
        >>> bits_per_byte(5 * math.log(256), n_bytes=5)
        8.0

    Source: [gao2020pile]
    Explained in: chapters/11_training_deeper, section "Is it any good?".
    """
    check_number("nats", nats, 0, finite=False)
    check_number("n_bytes", n_bytes, 1, whole=True)
    return nats / (n_bytes * math.log(2))
