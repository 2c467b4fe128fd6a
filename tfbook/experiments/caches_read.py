"""How long does a pass for many requests take when each of them has read more?

SmolLM2-135M writes a token for each of several requests in one pass, with its weights in float32
or in int4. The weights are read once for all requests, but each request has keys and values of its
own, and more of them the more it has read. Passes of all kinds are timed in turns, on one thread,
by the time of the processor, and the fastest counts. The keys and values lie in memory that was set
aside, so a pass reads them and writes those of one token.

The log holds the milliseconds of a pass (`ms`), for each form and each number of requests one for
each number of tokens read, and the bytes of keys and values of a token (`kv_bytes`).

One machine and requests of one length; all requests hold copies of one text's keys and values.

Explained in: chapters/17_hardware, section "Serving many".
"""

import math
from collections.abc import Callable, Sequence
from time import process_time

import torch
from torch import nn

from tfbook import pretrained
from tfbook.attention import StaticCache

__all__ = ["KV_BYTES", "SMOKE", "run"]

KV_BYTES = 4 * 2 * 30 * 3 * 64  # float32; keys and values of 30 layers, 3 heads of 64 numbers
SMOKE = {"forms": ("int4",), "requests": (1,), "past": (2,), "rounds": 1}
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters, with weights in two forms",
    "data": "{requests_first} to {requests_last} requests that have read {past_first} to "
    "{past_last} tokens each",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}


def passes(model: nn.Module, count: int, past: int, room: int) -> Callable[[], float]:
    """Return a call that writes one more token for each request, and how long that took."""
    _, state = model.decode(
        torch.arange(past)[None], model.empty_state(1, cache=StaticCache(past + room)), last=True
    )
    held = [state.select(torch.zeros(count, dtype=torch.long))]
    token = torch.full((count, 1), 5)

    def one() -> float:
        begun = process_time()
        _, held[0] = model.decode(token, held[0])
        return process_time() - begun

    return one


@torch.no_grad()
def run(
    *,
    forms: Sequence[str] = ("float32", "int4"),
    requests: Sequence[int] = (1, 4, 16),
    past: Sequence[int] = (32, 256, 1024),
    rounds: int = 25,
) -> tuple[dict, None]:
    """Time passes for each form, number of requests and number of tokens read.

    Returns:
        the log, see above.
    """
    calls = {}
    for form in forms:
        model = pretrained.load("smollm2-135m", weights=form).model
        for count in requests:
            for read in past:
                calls[form, count, read] = passes(model, count, read, rounds + 1)
    taken = dict.fromkeys(calls, math.inf)
    for _ in range(rounds + 1):
        for key, call in calls.items():
            taken[key] = min(taken[key], 1e3 * call())
    return {
        "settings": {"requests": list(requests), "past": list(past), "rounds": rounds},
        "kv_bytes": KV_BYTES,
        "ms": {
            form: {str(n): [taken[form, n, read] for read in past] for n in requests}
            for form in forms
        },
    }, None
