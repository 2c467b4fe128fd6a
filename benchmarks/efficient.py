"""Every efficient attention and every mixer against exact attention, by length: how each grows.

Setting: one sequence, 8 heads of size 64 or rows of 512, float32, one thread, forward only, lengths
512 to 8192. The attention functions are compared with PyTorch's own on the same q, k and v; the
mixers, which have projections around what they do, with multi-head attention of the same width.

Beside the exponent with which time grew stands that of the FLOPs over the same lengths, and the one
in the limit, of very long sequences; beside that of the memory, the one claimed. Where a variant
grows faster than its FLOPs, it waits for something else.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measure import MIB, fit_exponent, machine, peak_memory, time_ratios
from benchmarks.rows import HEADS, SIZE, inputs
from benchmarks.rows import table as write
from tfbook.attention import VARIANTS
from tfbook.efficient import LinformerAttention
from tfbook.models import (
    RWKV,
    S4D,
    Attention,
    DeltaNet,
    GatedDeltaNet,
    Indexed,
    LinearAttention,
    Mamba,
    Mamba2,
    NativeSparse,
    Retention,
    Run,
    Segments,
    Site,
    Spec,
)

LENGTHS = {512: 5, 1024: 5, 2048: 3, 4096: 3, 8192: 3}  # length: rounds
LIMIT = 2**16  # from here to twice as much, the exponent of the FLOPs is that of the limit
MEMORY = 3 * 1024  # MiB; what would need more is left out
D_MODEL = HEADS * SIZE
WINDOW, BLOCK, RANK, SEGMENT = 256, 64, 64, 512


@dataclass(frozen=True)
class Entry:
    """A thing to measure.

    Attributes:
        make: from a length to the call that is timed; it returns the output.
        flops: from a length to the FLOPs of that call.
        memory: the exponent with which its memory beyond the output grows, and
        why: what that memory is.
    """

    make: Callable[[int], Callable[[], Tensor]]
    flops: Callable[[int], int]
    memory: float
    why: str


# attention functions


def _options(name: str, n: int) -> dict[str, object]:
    """Return what a variant is called with at a length."""
    if name == "blocks":  # each block sees itself and the three before
        count = -(-n // BLOCK)
        near = torch.arange(count)[:, None] - torch.arange(count)
        return {"layout": (near >= 0) & (near <= 3), "block": BLOCK}
    return {
        "window": {"window": WINDOW},
        "streaming": {"window": WINDOW, "sinks": 4},
        "longformer": {"window": WINDOW, "n_global": 4},
        "dilated": {"window": WINDOW, "dilation": 4},
        "strided": {"stride": round(n**0.5)},
        "bigbird": {"block": BLOCK},
        "topk": {"top": 32},
        "hashed": {"buckets": 64},
        "features": {"n_features": SIZE},
        "nystrom": {"landmarks": RANK},
    }.get(name, {})


def _call(attend: Callable[..., Tensor], n: int) -> Callable[[], Tensor]:
    given = [x.detach() for x in inputs(n)]
    return lambda: attend(*given)


def _registered(name: str, memory: float, why: str, *, causal: bool = True) -> Entry:
    """Return the entry of a registered variant."""
    variant, order = VARIANTS[name], {"causal": True} if causal else {}

    def make(n: int) -> Callable[[], Tensor]:
        return _call(partial(variant.fn, **order, **_options(name, n)), n)

    def flops(n: int) -> int:
        if variant.flops is None:
            return HEADS * 4 * n * n * SIZE
        return HEADS * sum(variant.flops(n, n, SIZE, SIZE, **order, **_options(name, n)))

    return Entry(make, flops, memory, why)


def _pytorch(causal: bool) -> Entry:
    attend = partial(functional.scaled_dot_product_attention, is_causal=causal)
    flops = lambda n: HEADS * 4 * n * n * SIZE // (1 + causal)  # noqa: E731
    return Entry(lambda n: _call(attend, n), flops, 1, "one number for each query")


def _linformer(n: int) -> Callable[[], Tensor]:
    torch.manual_seed(n)
    return _call(LinformerAttention(n, RANK), n)


CAUSAL = {
    "PyTorch": _pytorch(True),
    "window": _registered("window", 1, "the tiles of the output, before they are joined"),
    "streaming": _registered("streaming", 1, "the tiles of the output"),
    "longformer": _registered("longformer", 1, "the tiles; a global row is one of n keys"),
    "dilated": _registered("dilated", 1, "the tiles of the output"),
    "blocks": _registered("blocks", 1, "the tiles of the output"),
    "bigbird": _registered("bigbird", 1, "the tiles of the output"),
    "strided": _registered("strided", 1.5, "about 3 √n scores for each query"),
    "hashed": _registered("hashed", 1, "the scores of two chunks for each query and round"),
    "linear": _registered("linear", 1, "features, and a state for each chunk"),
    "features": _registered("features", 1, "features, and a state for each chunk"),
    "topk": _registered("topk", 2, "all scores; only what is mixed is sparse"),
}
BOTH_WAYS = {
    "PyTorch": _pytorch(False),
    "nystrom": _registered("nystrom", 1, "landmarks × n scores", causal=False),
    "linformer": Entry(_linformer, lambda n: HEADS * 8 * RANK * n * SIZE, 1, "rank × n scores"),
}

# mixers


def _mixer(spec: Spec, memory: float, why: str, segment: int | None = None) -> Entry:
    """Return the entry of a described mixer, which may read its rows segment by segment."""

    def make(n: int) -> Callable[[], Tensor]:
        torch.manual_seed(n)
        module = spec.build(Site(D_MODEL, causal=True)).eval()
        pieces = torch.randn(1, n, D_MODEL).split(segment or n, 1)

        def mix() -> Tensor:
            state, found = None, []
            for piece in pieces:
                y, state = module(piece, state)
                found.append(y)
            return torch.cat(found, 1) if segment else y

        return mix

    def flops(n: int) -> int:
        step = segment or n
        runs = (
            Run(D_MODEL, 1, min(step, n - past), past=past, causal=True)
            for past in range(0, n, step)
        )
        return sum(part.flops for run in runs for part in spec.price("mixer", run))

    return Entry(make, flops, memory, why)


MIXERS = {
    "attention": _mixer(Attention(HEADS), 1, "q, k and v"),
    "compressive": _mixer(
        Segments(Attention(HEADS), SEGMENT, pooled=128, pool="conv"),
        1,
        "the outputs of all segments",
        SEGMENT,
    ),
    "native sparse": _mixer(
        NativeSparse(HEADS, n_kv_heads=2), 2, "scores of n / 16 pooled keys for each query"
    ),
    "indexed": _mixer(
        Indexed(Attention(HEADS, n_kv_heads=1), 64), 2, "the indexer's scores of all pairs"
    ),
    "linear": _mixer(LinearAttention(HEADS), 1, "q, k, v and a state for each chunk"),
    "RetNet": _mixer(Retention(HEADS), 1, "q, k, v and the gate"),
    "DeltaNet": _mixer(DeltaNet(HEADS), 1, "q, k, v and what is written"),
    "gated DeltaNet": _mixer(GatedDeltaNet(HEADS), 1, "q, k, v, gate and what is written"),
    "RWKV": _mixer(RWKV(), 1, "k, v and r, and the sums of each token"),
    "S4D": _mixer(
        S4D(), 1, "32 complex powers for each token and channel, of which the kernel is made"
    ),
    "Mamba": _mixer(Mamba(), 1, "16 numbers for each token and channel"),
    "Mamba-2": _mixer(Mamba2(), 1, "x, B, C and a state for each chunk"),
}
GROUPS = {
    "causal functions": CAUSAL,
    "functions that see both ways": BOTH_WAYS,
    "mixers": MIXERS,
}


def _rows(entries: Mapping[str, Entry], lengths: Mapping[int, int]) -> list[dict[str, object]]:
    """Measure one group, whose first entry the others are compared with."""
    baseline = next(iter(entries))
    rows = {
        name: {"variant": name, "left out": [], "ms": {}, "ratio": {}, "extra MiB": {}}
        for name in entries
    }
    for n, rounds in lengths.items():
        calls = {}
        for name, entry in entries.items():
            before = rows[name]["extra MiB"]
            if before and 2**entry.memory * list(before.values())[-1] > MEMORY:
                rows[name]["left out"].append(n)
            else:
                calls[name] = entry.make(n)
        times = time_ratios(calls, baseline, rounds)
        for name, call in calls.items():
            rows[name]["ms"][n], rows[name]["ratio"][n] = times[name]["ms"], times[name]["ratio"]
            rows[name]["extra MiB"][n] = (peak_memory(call) - 4 * n * D_MODEL) / MIB
    for name, entry in entries.items():
        row = rows[name]
        flops = [entry.flops(n) for n in row["ms"]]
        row["exponents"] = {
            "time": _fit(row["ms"]),
            "FLOPs": fit_exponent(list(row["ms"]), flops),
            "FLOPs in the limit": math.log2(entry.flops(2 * LIMIT) / entry.flops(LIMIT)),
            "memory": _fit(row["extra MiB"]),
            "memory claimed": float(entry.memory),
        }
        row["memory is"] = entry.why
    return list(rows.values())


def _fit(found: Mapping[int, float]) -> float | None:
    return fit_exponent(list(found), list(found.values()))


def run(lengths: dict[int, int] | None = None) -> dict[str, object]:
    """Measure every group at each length.

    Args:
        lengths: rounds for each length, each twice the one before; ``LENGTHS`` when omitted.

    Returns:
        The setting, the machine and for each group one row for each variant, with its times, ratios
        and memory by length, and its exponents. "left out" are lengths that would need too much
        memory.
    """
    setting = {
        "batch": 1, "heads": HEADS, "head size": SIZE, "dtype": "float32", "window": WINDOW,
        "block": BLOCK, "landmarks and rank": RANK, "segment": SEGMENT, "memory limit MiB": MEMORY,
    }  # fmt: skip
    with torch.no_grad():
        groups = {name: _rows(each, lengths or LENGTHS) for name, each in GROUPS.items()}
    return {"setting": setting, "machine": machine(), "groups": groups}


def table(results: dict[str, object]) -> str:
    """Write a table for each group: ratios by length, then exponents beside those of theory."""
    found = []
    for group, rows in results["groups"].items():
        baseline, lengths = rows[0]["variant"], list(rows[0]["ms"])
        columns = [("variant", "variant", "<15")]
        columns += [(f"at {n}", f"ratio at {n}", ">8") for n in lengths]
        columns += [
            ("ms", "last ms", ">8"),
            ("time", "time", ">6"),
            ("FLOPs", "FLOPs", ">6"),
            ("limit", "FLOPs in the limit", ">6"),
            ("MiB", "last extra MiB", ">8"),
            ("memory", "memory", ">7"),
            ("claimed", "memory claimed", ">8"),
        ]
        flat = []
        for row in rows:
            last = list(row["ms"])[-1]
            ratios = {f"ratio at {n}": row["ratio"].get(n) for n in lengths}
            ends = {"last ms": row["ms"][last], "last extra MiB": row["extra MiB"][last]}
            flat.append({"variant": row["variant"]} | ratios | ends | row["exponents"])
        title = f"{group}: time by that of {baseline}; ms and MiB at the longest; exponents in n"
        found.append(write(title, flat, columns))
        found += [
            f"{row['variant']}: left out at {', '.join(map(str, row['left out']))}, too much memory"
            for row in rows
            if row["left out"]
        ]
    return "\n".join(found)
