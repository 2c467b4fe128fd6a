"""training_planner: memory and time of a training step, by how it is dealt out over devices."""

from functools import cache
from typing import NamedTuple

from tfbook.costs import MACHINES
from tfbook.models import TransformerConfig, preset
from tfbook.parallel import LINKS, Bytes, Cluster, Split, estimate, stage_accounts
from tfbook.teaching.explorables._base import Explorable, one_of, whole, wrapped

TITLE = "Where a training fits, and how long a step takes"
PER_NODE = 8
MODELS = {
    "gpt2-medium": "GPT-2 medium, 0.35 B",
    "llama-7b": "LLaMA 7B",
    "llama-65b": "LLaMA 65B",
    "gpt3-175b": "GPT-3, 175 B",
}
DEVICES = {"A100 80GB SXM": "NVLink 3", "H100 SXM": "NVLink 4"}  # and the way inside of a node
BETWEEN = "InfiniBand HDR"
PRECISIONS = {
    "mixed": ("mixed: 2 + 2 + 12 bytes", Bytes(2, 2, 12, 2)),
    "gradients": ("gradients in float32: 2 + 4 + 12", Bytes(2, 4, 12, 2)),
    "low": ("all in bfloat16: 2 + 2 + 4", Bytes(2, 2, 4, 2)),
}
RECOMPUTE = {"none": "nothing", "full": "each layer"}
STOPS = {
    "replicas": [2**i for i in range(9)], "tensor": [1, 2, 4, 8], "pipeline": [1, 2, 4, 8, 16],
    "micro_batch": [1, 2, 4, 8], "batch": [64, 256, 1024, 2048],
}  # fmt: skip
EFFICIENCY = 0.7  # as in tfbook.parallel.estimate
MANY = 1e12  # tokens of a whole training


class Settled(NamedTuple):
    """The choices as far as they fit together."""

    replicas: int
    micro_batch: int
    zero: int


def training_planner(
    model: str = "llama-7b",
    *,
    machine: str = "A100 80GB SXM",
    replicas: int = 8,
    tensor: int = 1,
    pipeline: int = 1,
    zero: int = 0,
    micro_batch: int = 1,
    recompute: str = "none",
    precision: str = "mixed",
    batch: int = 256,
) -> Explorable:
    r"""Return a figure of the memory and the time of a training step on many devices.

    The training is dealt out over $d \cdot t \cdot p$ devices: $d$ replicas, each layer in $t$
    parts, the layers in $p$ stages. The numbers are those of :func:`tfbook.parallel.estimate`, for
    sequences of 2048 tokens (1024 for GPT-2): bytes on the device that holds most, and seconds in
    products, in messages along each axis, and in waiting.

    Args:
        model: "gpt2-medium", "llama-7b", "llama-65b" or "gpt3-175b".
        machine: "A100 80GB SXM" or "H100 SXM", 8 in a node.
        replicas: d, a power of 2 up to 256; at most as many as there are sequences in a step.
        tensor: t, parts of each layer, with their rows cut too: 1, 2, 4 or 8.
        pipeline: p, stages: 1, 2, 4, 8 or 16.
        zero: What replicas hold only a part of, see :class:`tfbook.parallel.Split`; at most 1 where
            there are stages.
        micro_batch: Sequences that pass a stage at once: 1, 2, 4 or 8.
        recompute: "none" or "full", what the backward pass computes again.
        precision: "mixed", "gradients" or "low": bytes of weights, gradients and the optimizer.
        batch: Sequences of a step: 64, 256, 1024 or 2048.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Example:
        >>> figure = training_planner("llama-7b", replicas=8)
        >>> f"{figure.memory / 1e9:.0f} GB", figure.fits
        ('120 GB', False)
        >>> figure.zero = 1
        >>> f"{figure.memory / 1e9:.0f} GB", figure.fits
        ('49 GB', True)

    Source: [narayanan2021efficient], [rajbhandari2020zero], [korthikanti2022reducing].
    Explained in: chapters/17_hardware_deeper, section "Plan a training".
    """
    checks = {
        "model": one_of("model", *MODELS),
        "machine": one_of("machine", *DEVICES),
        **{name: _stop(name) for name in ("replicas", "tensor", "pipeline")},
        "zero": whole("zero", 0, 3),
        "micro_batch": _stop("micro_batch"),
        "recompute": one_of("recompute", *RECOMPUTE),
        "precision": one_of("precision", *PRECISIONS),
        "batch": _stop("batch"),
    }
    given = {
        "model": model, "machine": machine, "replicas": replicas, "tensor": tensor,
        "pipeline": pipeline, "zero": zero, "micro_batch": micro_batch, "recompute": recompute,
        "precision": precision, "batch": batch,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}
    return Explorable(
        "training_planner", data=_data(), state=state, checks=checks, results=_results, text=_text
    )


def _stop(name: str):
    """Return a check that lets the stops of a slider through."""
    stops = STOPS[name]

    def check(value):
        value = whole(name, stops[0], stops[-1])(value)
        if value not in stops:
            raise ValueError(f"{name} must be one of {stops}, got {value}")
        return value

    return check


def _config(model: str) -> TransformerConfig:
    if model == "llama-65b":  # the sizes of its table
        return preset("llama-7b", d_model=8192, n_heads=64, n_layers=80, d_ff=22_016)
    return preset(model)


@cache
def _data() -> dict:
    """What the page needs to plan by itself: what a layer and the two ends of each model need."""
    return {
        "title": TITLE, "stops": STOPS, "recompute": RECOMPUTE, "efficiency": EFFICIENCY,
        "per_node": PER_NODE, "many": MANY,
        "precisions": {
            key: {"label": label, **each._asdict()} for key, (label, each) in PRECISIONS.items()
        },
        "machines": {
            name: {
                "flops": MACHINES[name].flops, "bandwidth": MACHINES[name].bandwidth,
                "memory": MACHINES[name].memory,
                "inside": [LINKS[inside].latency, LINKS[inside].bandwidth],
                "between": [LINKS[BETWEEN].latency, LINKS[BETWEEN].bandwidth],
            }
            for name, inside in DEVICES.items()
        },
        "models": {name: _described(name, label) for name, label in MODELS.items()},
    }  # fmt: skip


def _described(name: str, label: str) -> dict:
    """What one layer of a model, and its ends, need for a sequence, by t and what is recomputed."""
    config = _config(name)
    n, layers = config.max_len, config.n_layers
    rows = {}
    for tensor in STOPS["tensor"]:
        for recompute in RECOMPUTE:
            split = _split(tensor=tensor, recompute=recompute)
            one = stage_accounts(config, split(pipeline=layers), 1, n)  # a layer for each stage
            whole_model = stage_accounts(config, split(pipeline=1), 1, n)[0]
            first, layer, last = one[0], one[1], one[-1]
            two = stage_accounts(config, split(pipeline=layers, micro_batch=2), 2, n)[0]
            tied = sum(account.weights for account in one) - whole_model.weights
            rows[f"{tensor} {recompute}"] = {
                "layer": _short([*layer[:5], *layer.tensor]),
                "first": _more(first, layer),
                "last": _more(last, layer),
                "working": last.working,
                "once": int(2 * first.kept - two.kept),  # kept once, for however many sequences
                "tied": tied,  # a table that the last stage has only where it is not the first
            }
    return {
        "label": label, "layers": layers, "n": n, "stream": config.d_model * n * 2,
        "flops": config.flops(n), "parameters": config.count_parameters(), "rows": rows,
    }  # fmt: skip


def _split(**kept):
    return lambda **more: Split(**kept, **more, sequence=kept["tensor"] > 1)


def _more(end, layer) -> list[float]:
    """Return what an end needs more than a layer: weights, flops, bytes kept, messages, bytes."""
    names = ("weights", "flops", "kept")
    more = [getattr(end, name) - getattr(layer, name) for name in names]
    return _short(more + [a - b for a, b in zip(end.tensor, layer.tensor, strict=True)])


def _short(numbers: list[float]) -> list[float]:
    """Write whole numbers without a point."""
    return [int(number) if number == int(number) else number for number in numbers]


def settled(now: dict) -> Settled:
    """Return the choices that depend on others, as far as they fit."""
    replicas = min(now["replicas"], now["batch"])
    micro = min(now["micro_batch"], now["batch"] // replicas)
    return Settled(replicas, micro, min(now["zero"], 1) if now["pipeline"] > 1 else now["zero"])


@cache
def _plan(items: tuple):
    now = dict(items)
    fits, config = settled(now), _config(now["model"])
    split = _split(tensor=now["tensor"], recompute=now["recompute"])(
        data=fits.replicas, pipeline=now["pipeline"], zero=fits.zero, micro_batch=fits.micro_batch
    )
    machine = MACHINES[now["machine"]]
    cluster = Cluster(
        machine, split.devices, PER_NODE, LINKS[DEVICES[now["machine"]]], LINKS[BETWEEN]
    )
    return estimate(
        config, split, cluster, now["batch"], config.max_len, each=PRECISIONS[now["precision"]][1],
        efficiency=EFFICIENCY,
    )  # fmt: skip


def _results(now: dict) -> dict:
    plan, fits = _plan(tuple(sorted(now.items()))), settled(now)
    config, machine = _config(now["model"]), MACHINES[now["machine"]]
    waiting = (plan.computing + plan.tensor) * plan.bubble / (1 - plan.bubble)
    messages = {name: getattr(plan, name) for name in ("tensor", "pipeline", "data")}
    tokens = now["batch"] * config.max_len / plan.seconds
    times = {"computing": plan.computing, "waiting": waiting, **messages}
    return {
        "devices": plan.split.devices,
        "used_replicas": fits.replicas,
        "used_micro_batch": fits.micro_batch,
        "used_zero": fits.zero,
        "weights": plan.weights,
        "gradients": plan.gradients,
        "optimizer": plan.optimizer,
        "activations": plan.activations,
        "memory": plan.memory,
        "fits": plan.memory <= machine.memory,
        "bubble": plan.bubble,
        "times": times | {"update": plan.seconds - sum(times.values())},
        "seconds": plan.seconds,
        "utilisation": plan.utilisation,
        "tokens": tokens,
        "days": MANY / tokens / 86_400,
    }


def _text(now: dict) -> str:
    found = _results(now)
    name = MODELS[now["model"]]
    held = ", ".join(
        f"{found[key] / 1e9:.1f} GB of {key}"
        for key in ("weights", "gradients", "optimizer", "activations")
    )
    verdict = "fits into" if found["fits"] else "does not fit into"
    return wrapped(f"""{TITLE}

    {name} on {found["devices"]} × {now["machine"]}: {found["used_replicas"]} replicas, layers in
    {now["tensor"]} parts, {now["pipeline"]} stages, ZeRO {found["used_zero"]}. The device that
    holds most holds {held}: {found["memory"] / 1e9:.1f} GB in all, which {verdict} its
    {MACHINES[now["machine"]].memory / 1e9:.0f} GB. A step of {now["batch"]} sequences takes
    {found["seconds"]:.3g} seconds, {found["times"]["computing"] / found["seconds"]:.0%} of them in
    computing; the devices do {found["utilisation"]:.0%} of what they could.

    In the page you choose the model and how it is dealt out, and two bars show what fills the
    memory and what takes the time.""")
