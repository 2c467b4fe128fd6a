"""softmax_temperature: how the size of the scores decides how sharp the weights are."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from tfbook.attention import masked_softmax, scaled_dot_scores, softmax_jacobian
from tfbook.teaching.explorables._base import (
    Explorable,
    boolean,
    number,
    one_of,
    vector,
    whole,
    wrapped,
)
from tfbook.teaching.explorables._chance import hashed

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

    Explained in: chapters/02_attention_deeper, section "What the variance
    does not say".
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

    Both sides get the same bits of uniform numbers; Box-Muller turns two of them into two
    independent standard normal ones.
    """
    uniform = hashed(SEED, (N_KEYS + N_QUERIES) * D_MAX)
    radius = np.sqrt(-2 * np.log(uniform[::2]))
    angle = 2 * np.pi * uniform[1::2]
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1, D_MAX)
    return normal[:N_KEYS], normal[N_KEYS:]


def jacobian_norms(p: Tensor) -> Tensor:
    """Return the Frobenius norm of diag(p) - p pᵀ for each row of weights, (..., m) to (...)."""
    return torch.linalg.matrix_norm(softmax_jacobian(p))


def _scores(d_k: int, scaled: bool) -> Tensor:
    """Return the scores of all queries and keys, (32, 8), float64."""
    keys, queries = (torch.from_numpy(x[:, :d_k]) for x in gaussians())
    return scaled_dot_scores(queries, keys, scale=None if scaled else 1.0)


def _text(now: dict) -> str:
    facts = [_results({**now, "mode": "keys", "scaled": scaled}) for scaled in (False, True)]
    raw, divided = ((100 * f["largest"], f["jacobian_norm"]) for f in facts)
    return wrapped(f"""{TITLE}

    A query meets eight random keys; all entries are standard normal. The weights are the softmax
    of their dot products. At d_k = {now["d_k"]} and temperature {now["temperature"]:g} the largest
    weight is {raw[0]:.1f}% without scaling and {divided[0]:.1f}% when the scores are divided by
    √d_k; the Jacobian of the softmax, through which queries and keys learn, has norm {raw[1]:.4f}
    without scaling and {divided[1]:.4f} with it.

    In the page, sliders change d_k from 1 to 512 and the temperature from 0.1 to 10, a switch
    turns the scaling on and off, and a second mode lets you set the scores.""")


def _results(now: dict) -> dict:
    if now["mode"] == "keys":
        scores, row = _scores(now["d_k"], now["scaled"]), now["query"]
    else:
        scores, row = torch.tensor([now["scores"]], dtype=torch.double), 0
    p = masked_softmax(scores, temperature=now["temperature"])  # (queries, keys)
    norms = jacobian_norms(p)
    mean = {"mean_jacobian_norm": norms.mean().item()} if now["mode"] == "keys" else {}
    return {
        "scores_used": scores[row].tolist(), "weights": p[row].tolist(),
        "entropy": torch.special.entr(p[row]).sum().item(), "largest": p[row].max().item(),
        "jacobian_norm": norms[row].item(), **mean,
    }  # fmt: skip
