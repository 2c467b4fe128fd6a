"""softmax_temperature: how the size of the scores decides how sharp the weights are."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from tfbook.teaching.explorables._base import (
    Explorable,
    boolean,
    number,
    one_of,
    softmax,
    vector,
    whole,
    wrapped,
)

N_KEYS, N_QUERIES, D_MAX = 8, 32, 512
SIZES = tuple(2**i for i in range(10))  # the d_k of the curve
SEED = 20
TITLE = "How large scores saturate the softmax"


def softmax_temperature(
    *,
    mode: str = "keys",
    d_k: int = 64,
    scaled: bool = False,
    temperature: float = 1.0,
    query: int = 0,
    scores: Sequence[float] = (2.0, 1.0, 0.5, 0.0, -1.0),
) -> Explorable:
    r"""Return a figure of softmax weights under a changing d_k, scale and temperature.

    In mode "keys" the scores are $q \cdot k_i$ of one random query and eight random keys with
    independent standard normal entries, divided by $\sqrt{d_k}$ if `scaled`; in mode "scores"
    they are given. The weights are $\mathrm{softmax}(s / \text{temperature})$. Shown with them:
    the entropy in nats, the largest weight, the Frobenius norm of the Jacobian
    $\mathrm{diag}(p) - pp^\top$, and the mean of that norm over 32 queries for each d_k.

    Args:
        mode: "keys" or "scores".
        d_k: Number of entries of a query, 1 to 512.
        scaled: Divide by the square root of d_k.
        temperature: From 0.1 to 10.
        query: Which of the 32 random queries, from 0.
        scores: Two to eight numbers from -10 to 10, for mode "scores".

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Explained in: chapters/02_attention, section "Why divide by the square
    root of d_k?".
    """
    given = vector("scores", None, -10, 10)(scores)
    if not 2 <= len(given) <= N_KEYS:
        raise ValueError(f"scores must have 2 to {N_KEYS} numbers, got {len(given)}")
    checks = {
        "mode": one_of("mode", "keys", "scores"),
        "d_k": whole("d_k", 1, D_MAX),
        "scaled": boolean("scaled"),
        "temperature": number("temperature", 0.1, 10),
        "query": whole("query", 0, N_QUERIES - 1),
        "scores": vector("scores", len(given), -10, 10),
    }
    values = (mode, d_k, scaled, temperature, query, given)
    state = {name: check(v) for (name, check), v in zip(checks.items(), values, strict=True)}
    data = {
        "title": TITLE, "seed": SEED, "n_keys": N_KEYS, "n_queries": N_QUERIES, "d_max": D_MAX,
        "sizes": list(SIZES),
    }  # fmt: skip
    return Explorable(
        "softmax_temperature", data=data, state=state, checks=checks, results=_results, text=_text
    )


@cache
def gaussians() -> tuple[np.ndarray, np.ndarray]:
    """Return the keys (8, 512) and queries (32, 512) that the browser draws too, float64.

    mulberry32 is a hash of a counter, so that both sides get the same bits; Box-Muller turns two
    of its numbers into two independent standard normal ones.
    """
    count = (N_KEYS + N_QUERIES) * D_MAX
    word = np.uint64(0xFFFFFFFF)
    t = (np.uint64(SEED) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x6D2B79F5)) & word
    a = t.copy()
    t = ((a ^ (a >> np.uint64(15))) * (a | np.uint64(1))) & word
    t ^= (t + (((t ^ (t >> np.uint64(7))) * (t | np.uint64(61))) & word)) & word
    uniform = ((t ^ (t >> np.uint64(14))).astype(np.float64) + 0.5) / 2.0**32
    radius = np.sqrt(-2 * np.log(uniform[::2]))
    angle = 2 * np.pi * uniform[1::2]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1, D_MAX)
    return normal[:N_KEYS], normal[N_KEYS:]


def jacobian_norm(p) -> float:
    """Return the Frobenius norm of diag(p) - p pᵀ."""
    terms = (
        ((p_i if i == j else 0.0) - p_i * p_j) ** 2
        for i, p_i in enumerate(p)
        for j, p_j in enumerate(p)
    )
    return math.sqrt(math.fsum(terms))


def _weights(query: int, d_k: int, scaled: bool, temperature: float) -> tuple[list, list]:
    keys, queries = gaussians()
    scores = (keys[:, :d_k] @ queries[query, :d_k]) / (math.sqrt(d_k) if scaled else 1.0)
    scores = scores.tolist()
    return scores, softmax([s / temperature for s in scores])


def _text(now: dict) -> str:
    facts = [_results({**now, "mode": "keys", "scaled": scaled}) for scaled in (False, True)]
    raw, divided = ((100 * f["largest"], f["jacobian_norm"]) for f in facts)
    return wrapped(f"""{TITLE}

    A query meets eight random keys; all entries are standard normal. The weights are the softmax
    of their dot products. At d_k = {now["d_k"]} and temperature {now["temperature"]:g} the largest
    weight is {raw[0]:.1f}% without scaling and {divided[0]:.1f}% when the scores are divided by
    √d_k; the Jacobian of the softmax, through which every gradient passes, has norm {raw[1]:.4f}
    without scaling and {divided[1]:.4f} with it.

    In the page, sliders change d_k from 1 to 512 and the temperature from 0.1 to 10, a switch
    turns the scaling on and off, and a second mode lets you set the scores.""")


def _results(now: dict) -> dict:
    if now["mode"] == "keys":
        given = now["query"], now["d_k"], now["scaled"], now["temperature"]
        scores, p = _weights(*given)
        norms = [jacobian_norm(_weights(i, *given[1:])[1]) for i in range(N_QUERIES)]
        mean = {"mean_jacobian_norm": math.fsum(norms) / N_QUERIES}
    else:
        scores, mean = now["scores"], {}
        p = softmax([s / now["temperature"] for s in scores])
    entropy = -math.fsum(x * math.log(x) for x in p if x > 0)
    return {
        "scores_used": scores, "weights": p, "entropy": max(entropy, 0.0), "largest": max(p),
        "jacobian_norm": jacobian_norm(p), **mean,
    }  # fmt: skip
