"""shape_tracer: a walk through a model, with the shape, weights, work and memory of each part."""

from tfbook.teaching.explorables._base import Explorable, boolean, one_of, whole, wrapped
from tfbook.teaching.explorables._sizes import (
    BYTES,
    LIMITS,
    LONGEST,
    PRESETS,
    SIZES,
    cache_bytes,
    optional,
    parts_of,
    settled,
)

TITLE = "A walk through the model"
NAMES = {
    "embed": "token embedding",
    "position": "positions",
    "segments": "segment embedding",
    "embedding_norm": "norm of the embedding",
    "norm_1": "norm",
    "qkv": "queries, keys, values",
    "scores": "scores, softmax",
    "mix": "values mixed",
    "out": "output projection",
    "norm_x": "norm",
    "cross_qkv": "queries; keys, values of the memory",
    "cross_scores": "scores, softmax",
    "cross_mix": "values mixed",
    "cross_out": "output projection",
    "norm_2": "norm",
    "up": "feed-forward, up",
    "down": "feed-forward, down",
    "final_norm": "final norm",
    "head": "scores of the next token",
    "pooler": "pooler",
}
# Values the sliders stop at, those of the presets among them.
STOPS = {
    "d_model": [
        64, 96, 128, 192, 256, 320, 384, 512, 576, 640, 768, 1024, 1280, 1536, 1600, 2048, 2560,
        3072, 4096, 5120, 6144, 8192, 12_288, 16_384,
    ],
    "n_layers": [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 18, 20, 24, 28, 30, 32, 36, 40, 48, 64, 80, 96],
    "d_ff": [
        64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6400, 8192, 11_008,
        12_288, 16_384, 24_576, 32_768, 49_152,
    ],
    "vocab_size": [
        256, 1000, 2000, 4000, 8000, 16_000, 30_522, 32_000, 32_128, 37_000, 40_478, 49_152,
        50_257, 65_536, 100_000, 128_000, 256_000,
    ],
    "length": [1, *(size for p in range(2, 16) for size in (2**p, 3 * 2 ** (p - 1)))][:-1],
    "batch": [2**p for p in range(9)],
}  # fmt: skip


def shape_tracer(
    preset: str = "smollm2-135m",
    *,
    length: int = 128,
    batch: int = 1,
    precision: str = "float32",
    part: str = "qkv",
    measure: str = "parameters",
    d_model: int | None = None,
    n_layers: int | None = None,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    d_ff: int | None = None,
    vocab_size: int | None = None,
    tied: bool | None = None,
) -> Explorable:
    r"""Return a figure of one forward pass, part by part: shapes, parameters, FLOPs, bytes.

    A projection of $r$ rows from $a$ to $b$ numbers has $ab$ weights and costs $2rab$ FLOPs;
    scores and mixed values cost $2BHN^2d_\text{head}$ each. Additions, norms, activations and the
    softmax are left out, as PyTorch's counter leaves them out. A size that is `None` is the
    preset's; heads asked for that do not divide $d_\text{model}$ become the next fewer that do.

    Args:
        preset: A well-known model: "transformer-base", "transformer-big", "bert-base",
            "bert-large", "minilm-l6", "gpt", "gpt2", "gpt2-xl", "gpt3-175b", "t5-small",
            "t5-base", "llama-7b" or "smollm2-135m".
        length: Tokens of a sequence, up to 32 768 or as many as the preset has positions for; in a
            model with two stacks, of source and target alike.
        batch: Sequences, 1 to 256.
        precision: "float32", "float16" or "int8", for the bytes.
        part: Which part is explained, for instance "embed", "qkv", "scores", "up", "head".
        measure: What the bars show, "parameters", "flops" or "bytes".
        d_model: Width, even.
        n_layers: Blocks of each stack.
        n_heads: Heads.
        n_kv_heads: Heads of keys and values.
        d_ff: Width inside the feed-forward network.
        vocab_size: Tokens known.
        tied: Whether the output reads the embedding table.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range, or heads do not divide what they must.

    Source: [vaswani2017attention].
    Explained in: chapters/05_architecture, section "Count the parameters".
    """
    checks = {
        "preset": one_of("preset", *PRESETS),
        "length": whole("length", 1, LONGEST),
        "batch": whole("batch", 1, 256),
        "precision": one_of("precision", *BYTES),
        "part": one_of("part", *NAMES, *(f"decoder {key}" for key in NAMES)),
        "measure": one_of("measure", "parameters", "flops", "bytes"),
        **{name: optional(name, *LIMITS[name]) for name in SIZES},
        "tied": lambda value: None if value is None else boolean("tied")(value),
    }
    given = {
        "preset": preset, "length": length, "batch": batch, "precision": precision, "part": part,
        "measure": measure, "d_model": d_model, "n_layers": n_layers, "n_heads": n_heads,
        "n_kv_heads": n_kv_heads, "d_ff": d_ff, "vocab_size": vocab_size, "tied": tied,
    }  # fmt: skip
    state = {name: check(given[name]) for name, check in checks.items()}
    model = settled(state)
    for name, of in (("n_heads", "d_model"), ("n_kv_heads", "n_heads")):
        if state[name] is not None and model[name] != state[name]:
            even = " with an even size each" if name == "n_heads" else ""
            raise ValueError(f"{name} must divide {of} = {model[of]}{even}, got {state[name]}")
    if model["length"] != length:
        raise ValueError(
            f"length must be at most {model['length']}, the positions of {preset}, got {length}"
        )

    def results(now: dict) -> dict:
        model, size = settled(now), BYTES[now["precision"]]
        parts = parts_of(model)
        return {
            "parameters": sum(p["parameters"] for p in parts),
            "flops": sum(p["flops"] for p in parts),
            "weight_bytes": size * sum(p["parameters"] for p in parts),
            "activation_bytes": size * max(p["numbers"] // p["times"] for p in parts),
            "cache_bytes": cache_bytes(model, size),
            "parts": [{"name": NAMES[p["key"]], **p, "bytes": size * p["numbers"]} for p in parts],
            "sizes": {
                key: model[key] for key in (*SIZES, "d_head", "tied", "length", "batch", "kind")
            },
        }

    def text(now: dict) -> str:
        found, model = results(now), settled(now)
        lines = "; ".join(
            f"{p['stack']} {p['name']}".strip()
            + (f" (× {p['times']})" if p["times"] > 1 else "")
            + f": {tuple(p['shape'])}, {p['parameters']:,} parameters, {p['flops'] / 1e9:.3f} GFLOP"
            for p in found["parts"]
        )
        return wrapped(f"""{TITLE}

        {model["label"]} with {found["parameters"]:,} parameters reads {model["batch"]} ×
        {model["length"]} tokens. The pass takes {found["flops"] / 1e9:.2f} GFLOP; in
        {now["precision"]} the weights take {found["weight_bytes"] / 2**20:,.1f} MiB, the largest
        output of a part {found["activation_bytes"] / 2**20:,.1f} MiB, the cache of keys and values
        {found["cache_bytes"] / 2**20:,.1f} MiB.

        Its parts, with the shape of what each gives: {lines}.

        In the page you choose a model, change its sizes, and pick a part, which then says what it
        does and how its numbers come about.""")

    data = {
        "title": TITLE, "presets": PRESETS, "names": NAMES, "stops": STOPS, "bytes": BYTES,
        "longest": LONGEST,
    }  # fmt: skip
    return Explorable(
        "shape_tracer", data=data, state=state, checks=checks, results=results, text=text
    )
