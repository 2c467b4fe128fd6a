"""Why does a pass over two tokens take twice as long as one over a single token?

SmolLM2-135M as it is, float32, one thread. The same product of n rows x with a matrix W of the
model is asked for in two ways: as `x @ W.T`, as every layer does, and turned, as `(W @ x.T).T`.
Bytes, operations and result are the same, so what differs is the routine that the library takes.
`products` holds the times of all products with the model's matrices, `passes` those of whole passes
with a cache of 128 tokens, both as multiples of the time of one row in the way that every layer
takes: `as it is` and `turned`, one value for each of `rows`. `apart` is the largest difference of
the scores of the two ways. All are timed in turn, `rounds` times, and the fastest of each counts.

It does not show another processor or another library: there the two can be equal.

Explained in: chapters/12_generation_deeper, section "Tokens a second".
"""

from collections.abc import Callable
from time import process_time

import torch
from torch import Tensor
from torch.nn import functional as F

from tfbook import data, pretrained

__all__ = ["SMOKE", "run", "turned"]

SMOKE = {"rows": (1, 2), "rounds": 1, "seen": 4}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters in float32",
    "data": "a text of {seen} tokens that is continued",
    "steps": "nothing is trained; the fastest of {rounds} rounds",
    "batch": "",
    "rate": "",
}


def turned(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what `F.linear` returns, with the matrix on the left of the product."""
    flat = x.reshape(-1, x.shape[-1])
    result = (weight @ flat.T).T.reshape(*x.shape[:-1], len(weight))
    return result if bias is None else result + bias


def _timed(action: Callable[[], object]) -> float:
    begun = process_time()
    action()
    return process_time() - begun


@torch.no_grad()
def run(
    *, rows: tuple[int, ...] = (1, 2, 4, 5, 8, 16, 64), rounds: int = 15, seen: int = 128
) -> tuple[dict, None]:
    """Time both ways in turn, `rounds` times.

    Args:
        rows: tokens of a pass.
        rounds: how often each is timed.
        seen: tokens in the cache.
    """
    language = pretrained.load("smollm2-135m")
    model = language.model
    text = language.encode(data.shakespeare("test").partition("\n\n")[2][:1500])
    _, state = model.decode(text[:, :seen])
    matrices = [w for w in model.parameters() if w.ndim == 2]
    linear = F.linear

    def one_pass(n: int, way: Callable) -> Tensor:
        F.linear = way
        try:
            return model.decode(text[:, seen : seen + n], state)[0]
        finally:
            F.linear = linear

    def products(n: int, way: Callable) -> None:
        for w in matrices:
            way(torch.ones(n, w.shape[1]), w)

    ways = {"as it is": linear, "turned": turned}
    actions = {
        (kind, name, n): lambda do=do, n=n, way=way: do(n, way)
        for n in rows
        for kind, do in (("products", products), ("passes", one_pass))
        for name, way in ways.items()
    }
    apart = max((one_pass(n, linear) - one_pass(n, turned)).abs().max().item() for n in rows)
    seconds = {key: min(_timed(action) for _ in range(2)) for key, action in actions.items()}
    for _ in range(rounds - 1):
        for key, action in actions.items():
            seconds[key] = min(seconds[key], _timed(action))
    log = {
        kind: {
            name: [
                round(seconds[kind, name, n] / seconds[kind, "as it is", rows[0]], 3) for n in rows
            ]
            for name in ways
        }
        for kind in ("products", "passes")
    }
    settings = {"rows": list(rows), "rounds": rounds, "seen": seen}
    return {"settings": settings, **log, "apart": float(f"{apart:.1e}")}, None
