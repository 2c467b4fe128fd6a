"""How many tokens a second does one core write when many requests share a pass of the model?

SmolLM2-135M has read a few tokens for each of several requests. A pass then reads one token more
for each of them, with the weights in float32, in int8 or in int4. Passes of all kinds are timed in
turns, on one thread, by the time of the processor, and the fastest counts.

The log holds for each form its milliseconds for each number of requests (`ms`), those of all matrix
products of so many rows alone (`products`), the bytes of weights that a pass reads (`bytes`), and
what the same core does at most: FLOPs a second in products of square matrices (`flops`) and bytes a
second (`bandwidth`). From these a roofline says how long a pass takes at least. One layer of
`width` times `width` weights in float32 is timed for a few rows by PyTorch's usual product and by
that of a second library, oneDNN, which is given the weights in its own order (`layer`).

One machine and requests of one length; prompts are not timed.

Explained in: chapters/17_hardware, section "Serving many".
"""

import math
from collections.abc import Callable
from functools import partial
from time import process_time

import torch
from torch import nn
from torch.nn import functional

from tfbook import pretrained

__all__ = ["BITS", "FLOPS", "FORMS", "SMOKE", "bytes_of", "limits", "run"]

FORMS = ("float32", "int8", "int4")
WEIGHTS, OUTPUT = 106_168_320, 28_311_552  # in the layers, and in the output layer
FLOPS = 2 * (WEIGHTS + OUTPUT)  # of a token
# Bits of a weight in the layers and in the output layer, which is finer; with scales.
BITS = {"float32": (32, 32), "int8": (8, 10), "int4": (5, 10)}
SMOKE = {"forms": ("int4",), "requests": (1, 2), "past": 2, "rounds": 1, "width": 64}
ROWS = (1, 4, 16)  # of the layer that is timed by two libraries
CARD = {
    "model": "SmolLM2-135M as it is, 134,515,008 parameters, with weights in three forms",
    "data": "{requests_first} to {requests_last} requests that have read {past} tokens each",
    "steps": "nothing is trained",
    "batch": "",
    "rate": "",
}


def bytes_of(form: str) -> int:
    """Return how many bytes of weights a pass reads."""
    inner, output = BITS[form]
    return (WEIGHTS * inner + OUTPUT * output) // 8


def seconds(call: Callable[[], object]) -> float:
    """Return the time of the processor that one call takes."""
    begun = process_time()
    call()
    return process_time() - begun


def products_of(model: nn.Module, rows: int) -> Callable[[], object]:
    """Return a call that multiplies so many rows with each matrix of a model."""
    weights = [part.weight for part in model.modules() if isinstance(part, nn.Linear)]
    weights.append(model.embed.weight)  # the output layer uses the table of embeddings
    work = [(torch.randn(rows, weight.shape[1]), weight) for weight in weights]
    return lambda: [functional.linear(x, weight) for x, weight in work]


def two_libraries(width: int, rounds: int) -> dict:
    """Return the milliseconds of a layer by the usual product and by oneDNN, for a few rows."""
    weight, runs = torch.randn(2 * width, 2 * width), {}
    for rows in ROWS:
        x = torch.randn(rows, 2 * width)
        runs["usual", rows] = partial(functional.linear, x, weight)
        if torch.backends.mkldnn.is_available():
            own = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
            runs["oneDNN", rows] = partial(
                torch.ops.mkldnn._linear_pointwise, x, own, None, "none", [], ""
            )
    taken = dict.fromkeys(runs, math.inf)
    for _ in range(rounds + 1):
        for key, call in runs.items():
            taken[key] = min(taken[key], 1e3 * seconds(call))
    names = dict.fromkeys(name for name, _ in runs)
    found = {name: [taken[name, rows] for rows in ROWS] for name in names}
    return {"rows": list(ROWS), "width": 2 * width, **found}


def limits(width: int, rounds: int) -> tuple[float, float]:
    """Return the most FLOPs a second that a product does here, and the most bytes that are read."""
    square, large = torch.randn(width, width), torch.randn(2 * width, 2 * width)
    row, stream = torch.randn(1, 2 * width), torch.ones(4 * large.numel())
    flops = min(seconds(lambda: square @ square) for _ in range(rounds + 1))
    readers = {
        stream.nbytes: stream.sum,  # two ways to read; the faster counts
        large.nbytes: lambda: functional.linear(row, large),
    }
    found = [size / min(seconds(read) for _ in range(3 * rounds + 1))
             for size, read in readers.items()]  # fmt: skip
    return 2 * width**3 / flops, max(found)


@torch.no_grad()
def run(
    *,
    forms: tuple[str, ...] = FORMS,
    requests: tuple[int, ...] = (1, 4, 16, 64),
    past: int = 32,
    rounds: int = 15,
    width: int = 2048,
) -> tuple[dict, None]:
    """Time passes for each form and number of requests.

    Returns:
        the log, see above.
    """
    passes = {}
    for form in forms:
        model = pretrained.load("smollm2-135m", weights=form).model
        for count in requests:
            passes[form, "products", count] = products_of(model, count)
            _, state = model.decode(torch.arange(past).expand(count, past), last=True)
            token = torch.full((count, 1), 5)
            passes[form, count] = partial(model.decode, token, state)
    flops, bandwidth = limits(width, rounds)
    taken = dict.fromkeys(passes, math.inf)
    for _ in range(rounds + 1):
        for key, call in passes.items():
            taken[key] = min(taken[key], 1e3 * seconds(call))
    return {
        "settings": {"requests": list(requests), "past": past, "rounds": rounds},
        "flops": flops,
        "bandwidth": bandwidth,
        "bytes": {form: bytes_of(form) for form in forms},
        "ms": {form: [taken[form, count] for count in requests] for form in forms},
        "products": {
            form: [taken[form, "products", count] for count in requests] for form in forms
        },
        "layer": two_libraries(width, rounds),
    }, None
