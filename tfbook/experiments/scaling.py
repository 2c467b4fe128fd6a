"""Does the loss of small language models fall as a power of their size and of their data?

And does that hold for LSTMs too? Decoders with pre-norm, and LSTMs of two layers, learn to predict
the next character of Shakespeare, in windows of 64 that do not overlap. Each number of characters
is a run of its own, in which the learning rate rises, and then falls along a cosine to 0. Up to
993,280 characters no window is read twice in a run; the longest runs read the text 2.4 times.
Decoders of all sizes read all numbers of characters, but for what would cost too much; LSTMs read
993,280. What is cheap and reads nothing twice is run with all seeds, the rest with the first.

The rate is a power of the width, laid through the rates that a search with another seed finds at
two widths of each kind: the smallest rate whose loss is within 0.02 of the best.

The log holds a list of `runs`. Each has its kind ("decoder" or "LSTM"), width and layers; its
`parameters` without the tables of embeddings and the map to the scores, and `all_parameters`; the
characters it reads (`tokens`) in `steps`, and how many times the text that is (`epochs`); its
`seed` and `rate`; its `loss` on 56,384 characters of another split in nats a character, and `late`,
that of the last 16 characters of each window; and the `seconds` that training took. `flops` are
6 · parameters · tokens. That leaves out the map to the scores and the scores of attention: half of
the work of the smallest decoder, a twelfth of that of the largest. `tried[kind][width][rate]` are
the losses of the search, `found[kind][width]` is what it found. `redrawn` are laws fitted to cheap
runs that were drawn with replacement, each as E, A, α, B, β: see :func:`redraw`. `redrawn_work` are
such laws in which N is :func:`work_of`, so that 6 N D are all FLOPs: fitted to the cheap runs, and
to all that read nothing twice. They were fitted to the runs afterwards.

Source: [kaplan2020scaling], who count parameters in this way, and compare with LSTMs.
Explained in: chapters/06_complexity, section "A law for the loss".
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tfbook.costs import bootstrap, fit_chinchilla
from tfbook.data import rows
from tfbook.experiments.shakespeare import CharacterLSTM
from tfbook.experiments.warmup import letters
from tfbook.models import FFN, Attention, Layer, NextToken, Norm, Rotary, TransformerConfig, build
from tfbook.optimization import schedule

__all__ = [
    "LAYERS",
    "SMOKE",
    "cheap_runs",
    "held_out",
    "model_of",
    "rate_of",
    "redraw",
    "run",
    "size_of",
    "train",
    "work_of",
]

CONTEXT, BATCH, LATE = 64, 8, 16
# Kind → width → layers. The first five of each kind have about the same numbers of parameters.
LAYERS = {
    "decoder": {12: 2, 20: 2, 32: 2, 48: 2, 64: 3, 96: 3, 128: 4},
    "LSTM": {14: 2, 24: 2, 38: 2, 58: 2, 96: 2},
}
# Kind → the widths of the search and the rates that are tried there.
SEARCH = {
    "decoder": {12: (0.016, 0.032, 0.064, 0.128), 64: (0.004, 0.008, 0.016, 0.032)},
    "LSTM": {14: (0.016, 0.032, 0.064), 58: (0.008, 0.016, 0.032)},
}
SEARCH_STEPS = {"decoder": 310, "LSTM": 1940}
SEARCH_SEED, CLOSE = 1000, 0.02
SMOKE = {
    "widths": {"decoder": (12,), "LSTM": (14,)}, "steps": (2,), "lstm_steps": 2, "seeds": (0,),
    "search": {"decoder": {12: (0.01,), 20: (0.01,)}, "LSTM": {14: (0.01,), 24: (0.01,)}},
    "search_steps": {"decoder": 1, "LSTM": 1},
}  # fmt: skip
CARD = {
    "model": "decoders, and LSTMs for the second reading, "
    "{smallest:,} to {largest:,} parameters without tables",
    "data": "Shakespeare, windows of {CONTEXT} characters",
    "steps": "{steps_first} to {steps_last:,} steps",
    "rate": "rates {highest:.2g} to {lowest:.2g}, the wider the lower; costly runs with one seed",
}


def model_of(kind: str, width: int) -> nn.Module:
    """Return an untrained model; called with ids (B, N), it gives scores (B, N, V) and a state."""
    vocabulary = int(letters("train").max()) + 1
    if kind == "LSTM":
        return CharacterLSTM(vocabulary, width, width)
    attention = Attention(max(1, width // 16), position=Rotary(), bias=False)
    layer = Layer(attention, FFN(4 * width, "gelu", bias=False), norm=Norm("rms"))
    layers, head = [layer] * LAYERS[kind][width], NextToken(tie_embeddings=False)
    made = build(TransformerConfig(vocabulary, width, decoder=layers, head=head))
    for name, weight in made.named_parameters():
        if weight.ndim == 2:  # what comes out is as large as what goes in
            nn.init.normal_(weight, std=1.0 if "embed" in name else weight.shape[1] ** -0.5)
    return made


def size_of(model: nn.Module) -> tuple[int, int]:
    """Count the parameters between the embedding and the map to the scores, and all."""
    between = model.layers if isinstance(model, CharacterLSTM) else model.stack
    inner, every = (sum(p.numel() for p in part.parameters()) for part in (between, model))
    return inner, every


def rate_of(found: Mapping[int, float], width: int) -> float:
    """Return the rate at a width, on the power of it that is laid through two that were found."""
    (one, low), (other, high) = found.items()
    power = math.log(high / low) / math.log(other / one)
    return low * (width / one) ** power


@torch.no_grad()
def held_out(model: nn.Module) -> tuple[float, float]:
    """Return the loss on the other split in nats a character, over all and the last `LATE`."""
    losses = torch.cat([
        F.cross_entropy(model(part[:, :-1])[0].mT, part[:, 1:], reduction="none")
        for part in rows(letters("valid"), CONTEXT).split(128)
    ])  # (windows, CONTEXT)  # fmt: skip
    return losses.mean().item(), losses[:, -LATE:].mean().item()


def train(model: nn.Module, steps: int, seed: int, rate: float) -> None:
    """Train a model on so many batches of windows, each epoch in an order of its own."""
    windows: Tensor = rows(letters("train"), CONTEXT)
    chance, epochs = torch.Generator().manual_seed(seed), math.ceil(steps * BATCH / len(windows))
    order = torch.cat([torch.randperm(len(windows), generator=chance) for _ in range(epochs)])
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=True)
    course = schedule("cosine", steps=steps, warmup=steps // 10)
    course = torch.optim.lr_scheduler.LambdaLR(optimizer, course)
    for step in range(steps):
        batch = windows[order[step * BATCH : (step + 1) * BATCH]]  # (BATCH, CONTEXT + 1)
        optimizer.zero_grad()
        F.cross_entropy(model(batch[:, :-1])[0].mT, batch[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        course.step()


def measure(kind: str, width: int, steps: int, seed: int, rate: float) -> dict:
    """Train a model and return what the log holds of the run."""
    torch.manual_seed(seed)
    model, started = model_of(kind, width), time.process_time()
    train(model, steps, seed, rate)
    seconds = time.process_time() - started
    (inner, every), (loss, late) = size_of(model), held_out(model)
    tokens = steps * BATCH * CONTEXT
    return {
        "kind": kind, "width": width, "layers": LAYERS[kind][width],
        "parameters": inner, "all_parameters": every,
        "tokens": tokens, "steps": steps, "epochs": round(tokens / len(letters("train")), 4),
        "flops": 6 * inner * tokens, "seed": seed, "rate": round(rate, 5),
        "loss": round(loss, 4), "late": round(late, 4), "seconds": round(seconds, 2),
    }  # fmt: skip


def find(kind: str, search: Mapping[int, Sequence[float]], steps: int) -> tuple[dict, dict]:
    """Return the losses of a search, width → rate → loss, and the rate it finds at each width."""
    tried = {
        width: {rate: measure(kind, width, steps, SEARCH_SEED, rate)["loss"] for rate in rates}
        for width, rates in search.items()
    }
    found = {
        width: min(rate for rate in losses if losses[rate] <= min(losses.values()) + CLOSE)
        for width, losses in tried.items()
    }
    return tried, found


def work_of(run: Mapping) -> int:
    """Count a sixth of the FLOPs that a decoder's run takes for a character: of all products.

    The parameters of the matrices, the map to the scores among them, and for each layer two numbers
    of the width for each place of the window, which queries compare and weights mix.
    """
    width, vocabulary = run["width"], int(letters("train").max()) + 1
    return run["layers"] * (12 * width**2 + 2 * CONTEXT * width) + vocabulary * width


def cheap_runs(runs: Sequence[Mapping], most: float = 1e11) -> list[Mapping]:
    """Return the decoders' runs of 300 steps and more that read nothing twice, below so much."""
    return [
        each
        for each in runs
        if each["kind"] == "decoder"
        and each["steps"] >= 300
        and each["tokens"] < len(letters("train"))
        and each["flops"] < most
    ]


def redraw(
    runs: Sequence[Mapping],
    samples: int = 100,
    *,
    most: float = 1e11,
    size: Callable[[Mapping], float] = lambda run: run["parameters"],
) -> list[list[float]]:
    """Return Chinchilla laws, each fitted to as many cheap runs, drawn with replacement.

    Each law is E, A, α, B, β. There are none where the runs are too few for a fit.

    Args:
        runs: of the log.
        samples: how many laws.
        most: FLOPs of a run that is cheap, as :func:`cheap_runs` counts them.
        size: of a run, the N of the law.
    """
    runs = cheap_runs(runs, most)
    columns = [
        [size(each) for each in runs],
        *([each[name] for each in runs] for name in ("tokens", "loss")),
    ]
    if min(len(set(column)) for column in columns) < 3:
        return []
    laws = bootstrap(fit_chinchilla, *columns, samples=samples)
    return [list(dataclasses.astuple(law)) for law in laws]


def run(
    *,
    widths: Mapping[str, Iterable[int]] = LAYERS,
    steps: Sequence[int] = (50, 124, 310, 776, 1940, 4850),
    lstm_steps: int = 1940,
    seeds: Sequence[int] = (0, 1, 2),
    search: Mapping[str, Mapping[int, Sequence[float]]] = SEARCH,
    search_steps: Mapping[str, int] = SEARCH_STEPS,
    cheap: float = 6e10,
    most: float = 1e12,
) -> tuple[dict, None]:
    """Search the rates, then train the decoders for all numbers of steps, the LSTMs for one.

    Args:
        widths: kind → those of its models.
        steps: how many, each a run of its own.
        lstm_steps: how many for LSTMs.
        seeds: of the runs of at most `cheap` FLOPs and one epoch; the others have the first.
        search: kind → two widths → the rates that are tried.
        search_steps: kind → how many each try has.
        cheap: see seeds.
        most: a run that would take more FLOPs is left out.
    """
    tried, found, runs = {}, {}, []
    for kind, sizes in widths.items():
        tried[kind], found[kind] = find(kind, search[kind], search_steps[kind])
        for width in sizes:
            rate, inner = rate_of(found[kind], width), size_of(model_of(kind, width))[0]
            for count in steps if kind == "decoder" else (lstm_steps,):
                tokens = count * BATCH * CONTEXT
                flops = 6 * inner * tokens
                once = tokens < len(letters("train"))
                for seed in seeds if once and flops <= cheap else seeds[:1]:
                    if flops <= most:
                        runs.append(measure(kind, width, count, seed, rate))
    return {
        "settings": {
            "steps": list(steps), "lstm_steps": lstm_steps, "search_steps": dict(search_steps),
            "cheap": cheap, "most": most, "batch": BATCH, "context": CONTEXT,
            "smallest": min(each["parameters"] for each in runs),
            "largest": max(each["parameters"] for each in runs),
            "highest": max(each["rate"] for each in runs),
            "lowest": min(each["rate"] for each in runs),
        },
        "seeds": list(seeds), "tried": tried, "found": found, "runs": runs,
        "redrawn": redraw(runs),
        "redrawn_work": {
            "cheap": redraw(runs, 60, size=work_of),
            "all": redraw(runs, 60, most=math.inf, size=work_of),
        },
    }, None  # fmt: skip
