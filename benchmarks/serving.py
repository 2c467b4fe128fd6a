"""SmolLM2 asked by eight at once: continuous batching against one after the other.

Setting: one thread, no gradients, eight requests whose prompts and answers differ in length,
greedily. They are served one by one, eight at once, and eight at once over HTTP (clients and server
in this process). Beside the ratios stand the time of a step, with one, with eight, and with eight
by sums whose order no batch changes; the bytes of weights that a token takes, against what a copy
of memory moves in the same time; and how many logits have other bits in a batch than alone.
"""

import http.client
import json
import threading
import time

import torch

from benchmarks.measure import machine, time_ratios
from tfbook import data, pretrained
from tfbook.serving import BatchInvariant, Endpoint, Engine, Server, batch_differences

WEIGHTS = ("float32", "int8", "int4")
CLIENTS, PAGE = 8, 16
PROMPT, NEW = 16, 24  # tokens at least; each client has one more of either than the one before
ROUNDS = 2
LEAST = 3.0  # times as many tokens a second as one by one
GIB = 2**30
ONE, MANY, HTTP = "one by one", "eight at once", "over HTTP"


def _asked(smol: pretrained.Pretrained) -> list[tuple[list[int], int]]:
    """Return prompts out of one text, and how many tokens are made of each."""
    text = smol.encode(data.shakespeare()[:8000])[0].tolist()
    return [(text[100 * i : 100 * i + PROMPT + i], NEW + i) for i in range(CLIENTS)]


def _serve(model, asked, running: int) -> None:
    """Serve all requests, so many at once."""
    server = Server(model, n_pages=64, page_size=PAGE, max_running=running)
    for prompt, new in asked:
        server.submit(prompt, new)
    assert sum(1 for _ in server.run()) == sum(new for _, new in asked)


def _post(address: tuple[str, int], body: dict[str, object]) -> None:
    connection = http.client.HTTPConnection(*address)
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    assert connection.getresponse().read()
    connection.close()


def _serve_http(smol, asked) -> None:
    """Serve all requests to clients in threads of their own."""
    server = Server(smol.model, n_pages=64, page_size=PAGE, max_running=CLIENTS)
    with Engine(server) as engine, Endpoint(smol, engine, port=0) as endpoint:
        host, port = endpoint.url.removeprefix("http://").removesuffix("/v1").split(":")
        common = {"model": smol.name, "temperature": 0}
        clients = [
            threading.Thread(
                target=_post,
                args=((host, int(port)), common | {"prompt": prompt, "max_tokens": new}),
            )
            for prompt, new in asked
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()


def _step_seconds(model, asked, batch: int, steps: int = 8, **choices) -> float:
    """Return the median time of a step in which each of a batch gets a token."""
    server = Server(model, n_pages=64, page_size=PAGE, max_running=batch, **choices)
    for prompt, _ in asked[:batch]:
        server.submit(prompt, steps + 3)
    server.step()
    taken = []
    for _ in range(steps):
        start = time.process_time()
        server.step()
        taken.append(time.process_time() - start)
    return sorted(taken)[steps // 2]


def _copy_speed() -> float:
    """Return how many bytes a second a copy reads and writes."""
    x = torch.ones(2**26)  # zeros would be one page of memory, seen many times
    y, taken = torch.empty_like(x), []
    for _ in range(7):
        start = time.process_time()
        y.copy_(x)
        taken.append(time.process_time() - start)
    return 2 * x.nbytes / sorted(taken)[3]


def _row(weights: str, rounds: int, copied: float) -> dict[str, object]:
    """Measure one kind of weights."""
    smol = pretrained.load("smollm2-135m", weights=weights)
    asked = _asked(smol)
    made = sum(new for _, new in asked)
    taken = time_ratios(
        {
            ONE: lambda: _serve(smol.model, asked, 1),
            MANY: lambda: _serve(smol.model, asked, CLIENTS),
            HTTP: lambda: _serve_http(smol, asked),
        },
        ONE,
        rounds,
    )
    speed = {name: 1 / each["ratio"] for name, each in taken.items()}
    nbytes = sum(weight.nbytes for weight in smol.model.parameters())
    steps = {batch: _step_seconds(smol.model, asked, batch) for batch in (1, CLIENTS)}
    fixed = _step_seconds(smol.model, asked, CLIENTS, 3, invariant=True)
    tokens = torch.tensor([[prompt[0]] for prompt, _ in asked])
    usual = batch_differences(smol.model, tokens)
    with BatchInvariant():
        invariant = batch_differences(smol.model, tokens)
    return {
        "weights": weights,
        "tokens/s": {name: made / each["ms"] * 1e3 for name, each in taken.items()},
        "times as fast": speed,
        "target": {"limit": LEAST, "met": speed[MANY] >= LEAST},
        "weights MiB": nbytes / 2**20,
        "MiB a token": {batch: nbytes / 2**20 / batch for batch in steps},
        "step ms": {batch: 1e3 * seconds for batch, seconds in steps.items()},
        "invariant step ms": 1e3 * fixed,
        "GiB/s of weights": {batch: nbytes / GIB / seconds for batch, seconds in steps.items()},
        "share of a copy": {batch: nbytes / seconds / copied for batch, seconds in steps.items()},
        "logits with other bits": usual.different / usual.numbers,
        "largest difference": f"{usual.largest:.1e}",
        "invariant logits with other bits": invariant.different / invariant.numbers,
    }


@torch.no_grad()
def run(weights: tuple[str, ...] = WEIGHTS, rounds: int = ROUNDS) -> dict[str, object]:
    """Measure all kinds of weights.

    Args:
        weights: which kinds.
        rounds: how often each way of serving is timed.

    Returns:
        The setting, the machine and one row for each kind.
    """
    copied = _copy_speed()
    setting = {"requests": CLIENTS, "prompt": [PROMPT, PROMPT + CLIENTS - 1], "page": PAGE}
    setting |= {"new": [NEW, NEW + CLIENTS - 1], "GiB/s copied": copied / GIB, "rounds": rounds}
    rows = [_row(each, rounds, copied) for each in weights]
    return {"setting": setting, "machine": machine(), "rows": rows}


def table(results: dict[str, object]) -> str:
    """Write the results as a table; the target follows its number, with a ! where it is missed."""
    lines = [
        f"a copy moves {results['setting']['GiB/s copied']:.1f} GiB/s, read and written",
        f"{'weights':<9} {'tokens/s':>9} {MANY:>14} {HTTP:>10} {'step 1, 8, invariant':>20} "
        f"{'MiB a token':>14} {'of a copy':>11} {'other bits':>11}",
    ]
    for row in results["rows"]:
        fast, met = row["times as fast"], row["target"]["met"]
        steps = [*row["step ms"].values(), row["invariant step ms"]]
        share = row["share of a copy"].values()
        lines.append(
            f"{row['weights']:<9} {row['tokens/s'][ONE]:>9.1f} "
            f"{f'{fast[MANY]:.2f} × ≥{LEAST:g}' + ' !'[not met]:>14} {fast[HTTP]:>8.2f} × "
            f"{', '.join(f'{x:.0f}' for x in steps) + ' ms':>20} "
            f"{', '.join(f'{x:.0f}' for x in row['MiB a token'].values()):>14} "
            f"{', '.join(f'{x:.0%}' for x in share):>11} {row['logits with other bits']:>11.0%}"
        )
    return "\n".join(lines)
