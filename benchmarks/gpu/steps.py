"""Training steps of two models by precision, compiled or not, checkpointed or not; and decoding.

A training step is forward, backward and AdamW. Its FLOPs are three forward passes; what
checkpointing computes a second time is not counted, so that shares compare useful work. Decoding
takes one token after a filled cache, called as usual and as a captured graph, which the device
replays without the processor: the difference is the time that launching takes.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu.ceilings import tensor_float
from benchmarks.gpu.tools import Bench, Row, measured, require_close
from tfbook.attention import StaticCache
from tfbook.hardware import run_checkpointed
from tfbook.models import (
    FFN,
    Attention,
    Layer,
    Norm,
    Rotary,
    TransformerConfig,
    build,
    preset,
)

PRECISIONS = ("float32", "tf32", "bfloat16")


def models(bench: Bench) -> dict[str, tuple[TransformerConfig, int, int]]:
    """Return configurations with batch and length, by name."""
    lab = _llama(128, 4, 4, 384, 65)
    if bench.tiny:
        return {"lab": (_llama(16, 1, 2, 24, 13), 2, 8)}
    return {"lab": (lab, 64, 256), "gpt2 (124M)": (preset("gpt2"), 16, 1024)}


def _llama(d_model: int, n_layers: int, n_heads: int, d_ff: int, vocab: int) -> TransformerConfig:
    mixer = Attention(n_heads, bias=False, position=Rotary())
    layer = Layer(mixer, FFN(d_ff, "swiglu", bias=False), norm=Norm("rms"), place="pre")
    return TransformerConfig(vocab, d_model, decoder=[layer] * n_layers, max_len=2048)


def training(
    bench: Bench, peaks: dict[str, float], keep: Callable[[list[Row]], None] = lambda rows: None
) -> list[Row]:
    """Measure steps, in tokens a second and as a share of the format's ceiling.

    What takes a minute to compile comes last; of the smaller model only one precision is compiled.
    """
    ways = [(False, False), (False, True)]
    plans = [
        (name, precision, *way)
        for name in models(bench)
        for precision in PRECISIONS
        for way in ways
    ]
    if bench.device != "cpu":
        large = list(models(bench))[-1]
        plans += [(large, precision, True, False) for precision in reversed(PRECISIONS)]
        plans += [(name, "bfloat16", True, False) for name in models(bench) if name != large]
    rows = []
    for name, precision, compiled, checkpointed in plans:
        config, batch, n = models(bench)[name]
        what = {"model": name, "batch": batch, "n": n, "precision": precision}
        what |= {"compiled": compiled, "checkpointed": checkpointed}
        given = (config, batch, n, precision, compiled, checkpointed)
        rows.append(measured(what, lambda given=given: _step(bench, peaks, *given)))
        keep(rows)
    return rows


def _step(bench, peaks, config, batch, n, precision, compiled, checkpointed):
    torch.manual_seed(0)
    model = build(config).to(bench.device)
    fast = {"fused": True} if bench.device == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fast)
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, config.vocab_size, (batch, n + 1), generator=draw).to(bench.device)
    score: Callable[[Tensor], Tensor] = lambda ids: _logits(model, ids, checkpointed)  # noqa: E731
    if compiled:
        score = torch.compile(score)

    def loss() -> Tensor:
        with torch.autocast(bench.device, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = score(tokens[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def step() -> Tensor:
        found = loss()
        optimizer.zero_grad(set_to_none=True)
        found.backward()
        optimizer.step()
        return found.detach()

    with tensor_float(precision == "tf32"):
        with torch.no_grad():
            right = functional.cross_entropy(
                model(tokens[:, :-1])[0].flatten(0, 1), tokens[:, 1:].flatten()
            )
            error = require_close(loss(), right, 1e-2)
        taken = bench.time(step) | {"error": error, "peak bytes": bench.peak_bytes(step)}
    flops, peak = 3 * config.flops(n, batch), peaks.get(precision)
    return taken | {
        "tokens/s": 1e3 * batch * n / taken["ms"],
        "TFLOP/s": flops / taken["ms"] / 1e9,
        "share of peak": peak and 1e3 * flops / taken["ms"] / peak,
    }


def _logits(model: nn.Module, tokens: Tensor, checkpointed: bool) -> Tensor:
    if not checkpointed:
        return model(tokens)[0]
    x = model._entrances[0](tokens).x
    return model.head(
        model.stack.finish(run_checkpointed(model.stack.blocks, x)), model.embed.weight
    )


@torch.no_grad()
def decoding(bench: Bench) -> list[Row]:
    """Measure one token behind a filled cache, called and as a graph."""
    rows = []
    for name, (config, _, _) in models(bench).items():
        torch.manual_seed(0)
        dtype = torch.float32 if bench.device == "cpu" else torch.bfloat16
        model = build(config).to(bench.device, dtype).eval()
        for past in (8,) if bench.tiny else (128, 1000):
            draw = torch.Generator().manual_seed(1)
            ids = torch.randint(0, config.vocab_size, (1, past + 1), generator=draw)
            step, right = _one_token(model, ids.to(bench.device), past)
            ways = {"called": lambda step=step: step, "graph": lambda step=step: _captured(step)}
            for way, make in ways.items():
                rows.append(
                    measured(
                        {"model": name, "past": past, "way": way, "dtype": str(dtype)},
                        lambda make=make, right=right: _token(bench, make(), right),
                    )
                )
    return rows


def _one_token(model: nn.Module, ids: Tensor, past: int) -> tuple[Callable[[], Tensor], Tensor]:
    """Return a call that decodes the last token, and its logits by a pass over everything."""
    right = model(ids, last=True)[0]
    state = model(ids[:, :-1], model.empty_state(1, cache=StaticCache(past + 8)))[1]
    row = model._entrances[0](ids[:, -1:], seen=past).x  # looks at the ids, which no graph can

    def step() -> Tensor:
        for layer in state.layers:  # nobody goes on from here, so the place may be taken again
            layer.mixer.room.filled = past
        return model.head(model.stack(row, state.layers)[0], model.embed.weight)

    return step, right


def _captured(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return the step as a graph of launches, replayed as a whole."""
    if not torch.cuda.is_available():
        raise RuntimeError("graphs are CUDA's")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()

    def replay() -> Tensor:
        graph.replay()
        return found

    return replay


def _token(bench: Bench, step: Callable[[], Tensor], right: Tensor) -> Row:
    error = require_close(step(), right, 5e-2)
    taken = bench.time(step)
    return taken | {"error": error, "tokens/s": 1e3 / taken["ms"]}
