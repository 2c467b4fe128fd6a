"""cache_growth: what keeping keys and values saves in work, and what it takes in bytes."""

from tfbook.costs import kv_cache_bytes
from tfbook.teaching.explorables._base import Explorable, one_of, whole, wrapped
from tfbook.teaching.explorables._sizes import BYTES, LIMITS, PRESETS, config_of, optional

TITLE = "What a cache saves, and what it takes"
LONGEST = 131_072
DECODERS = ("gpt2", "gpt2-xl", "gpt3-175b", "llama-7b", "smollm2-135m")
SIZES = ("n_layers", "n_heads", "n_kv_heads", "d_head")
STOPS = {
    "n_layers": [1, 2, 4, 6, 8, 12, 16, 20, 24, 30, 32, 40, 48, 64, 80, 96],
    "n_heads": [1, 2, 3, 4, 6, 8, 9, 12, 16, 20, 24, 25, 32, 40, 48, 64, 96, 128],
    "d_head": [16, 32, 48, 64, 80, 96, 128, 192, 256],
    "length": [1, *(size for p in range(2, 18) for size in (2**p, 3 * 2 ** (p - 1)))][:-1],
    "batch": [2**p for p in range(9)],
    "window": [2**p for p in range(4, 14)],
}


def cache_growth(
    preset: str = "smollm2-135m",
    *,
    length: int = 1024,
    batch: int = 1,
    window: int = 256,
    precision: str = "float16",
    measure: str = "step",
    n_layers: int | None = None,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    d_head: int | None = None,
) -> Explorable:
    r"""Return a figure of generation with and without a cache of keys and values.

    With a cache the token at position $t$ passes alone and meets $t$ keys; without one all $t$
    tokens pass again, and only the last one's scores are computed. The cache holds
    $2 L G d_\text{head}$ numbers for each token, with $G$ heads of keys and values; a sliding
    window holds the last ones only. The FLOPs are those of projections, scores and mixed values.

    Args:
        preset: "gpt2", "gpt2-xl", "gpt3-175b", "llama-7b" or "smollm2-135m". With other heads its
            width becomes `n_heads` times `d_head`, and the feed-forward network keeps its
            proportion.
        length: Tokens so far, 1 to 131 072; no preset's limit is kept.
        batch: Sequences, 1 to 256.
        window: Tokens that the sliding window holds, 16 to 8192.
        precision: "float32", "float16" or "int8", for the bytes.
        measure: FLOPs of one "step", the token at this length, or the "total" of all up to it.
        n_layers: Blocks; `None` for the preset's, like the next three.
        n_heads: Heads.
        n_kv_heads: Heads of keys and values; must divide `n_heads`.
        d_head: Size of a head, even.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [pope2023efficiently], [shazeer2019fast].
    Explained in: chapters/12_generation, section "The cache".
    """
    limits = LIMITS | {"d_head": (1, 1024)}
    checks = {
        "preset": one_of("preset", *DECODERS),
        "length": whole("length", 1, LONGEST),
        "batch": whole("batch", 1, 256),
        "window": whole("window", 16, 8192),
        "precision": one_of("precision", *BYTES),
        "measure": one_of("measure", "step", "total"),
        **{name: optional(name, *limits[name]) for name in SIZES},
    }
    given = {
        "preset": preset, "length": length, "batch": batch, "window": window,
        "precision": precision, "measure": measure, "n_layers": n_layers, "n_heads": n_heads,
        "n_kv_heads": n_kv_heads, "d_head": d_head,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}
    heads = _model(state)
    if n_kv_heads is not None and heads["n_kv_heads"] != n_kv_heads:
        raise ValueError(
            f"n_kv_heads must divide n_heads = {heads['n_heads']}, got {state['n_kv_heads']}"
        )

    def text(now: dict) -> str:
        found, model = _results(now), _model(now)
        mib = {key: f"{found[key] / 2**20:,.1f}" for key in found if key.endswith("bytes")}
        return wrapped(f"""{TITLE}

        A model with the proportions of {model["label"]}, {found["parameters"]:,} parameters in
        {model["n_layers"]} blocks, has {model["n_heads"]} heads of {model["d_head"]} numbers and
        {model["n_kv_heads"]} for keys and values. Generating the token at length {now["length"]:,}
        takes {found["step_cached"] / 1e9:,.2f} GFLOP with a cache and
        {found["step_uncached"] / 1e9:,.2f} without; all tokens up to it
        {found["total_cached"] / 1e9:,.1f} and {found["total_uncached"] / 1e9:,.1f}. In
        {now["precision"]}, for {now["batch"]} sequence{"s" * (now["batch"] > 1)}, the cache takes
        {mib["cache_bytes"]} MiB; with keys and values for every head it would be
        {mib["multi_head_bytes"]}, for one head {mib["multi_query_bytes"]}, with a window of
        {now["window"]} tokens {mib["window_bytes"]}. The weights take {mib["weight_bytes"]}; the
        cache weighs as much at {found["break_even"]:,.0f} tokens.

        In the page, sliders change the length, the model's sizes, the window and the batch; one
        picture shows the work with and without a cache, another the bytes.""")

    data = {
        "title": TITLE, "presets": {name: PRESETS[name] for name in DECODERS}, "stops": STOPS,
        "bytes": BYTES,
    }  # fmt: skip
    return Explorable(
        "cache_growth", data=data, state=state, checks=checks, results=_results, text=text
    )


def _model(now: dict) -> dict:
    """Return the preset with what was changed; its width follows the heads."""
    preset = PRESETS[now["preset"]]
    heads = now["n_heads"] or preset["n_heads"]
    size = now["d_head"] or preset["d_model"] // preset["n_heads"]
    wanted = now["n_kv_heads"] or preset["n_kv_heads"] or heads
    width = heads * size
    return preset | {
        "preset": now["preset"],
        "n_layers": now["n_layers"] or preset["n_layers"],
        "n_heads": heads,
        "d_head": size,
        "n_kv_heads": max(g for g in range(1, min(wanted, heads) + 1) if heads % g == 0),
        "d_model": width,
        # To the nearest whole number, as the page rounds.
        "d_ff": (2 * preset["d_ff"] * width + preset["d_model"]) // (2 * preset["d_model"]),
    }


def _results(now: dict) -> dict:
    model, length, batch = _model(now), now["length"], now["batch"]
    # FLOPs of the pass of one token that looks at itself alone, with the scores of what follows.
    rows = config_of(model).parts(1)
    met = sum(row.flops for row in rows if row.name.endswith((".scores", ".z")))  # for each key
    head = sum(row.flops for row in rows if row.name == "head")
    alone = sum(row.flops for row in rows) - met - head
    size = BYTES[now["precision"]]
    parameters = sum(row.parameters for row in rows)
    squares = length * (length + 1) * (2 * length + 1) // 6
    triangle = length * (length + 1) // 2

    def kept(heads: int, tokens: int) -> int:
        layers, d_head = model["n_layers"], model["d_head"]
        return kv_cache_bytes(layers, heads, d_head, tokens, batch, size)

    return {
        "parameters": parameters,
        "weight_bytes": size * parameters,
        "cache_bytes": kept(model["n_kv_heads"], length),
        "window_bytes": kept(model["n_kv_heads"], min(length, now["window"])),
        "multi_head_bytes": kept(model["n_heads"], length),
        "multi_query_bytes": kept(1, length),
        "step_cached": batch * (alone + met * length + head),
        "step_uncached": batch * (length * alone + met * length**2 + head),
        "total_cached": batch * (length * (alone + head) + met * triangle),
        "total_uncached": batch * (triangle * alone + met * squares + length * head),
        "break_even": size * parameters / kept(model["n_kv_heads"], 1),
    }
