"""cost_calculator: the work of one token by parts, and the bytes of a model in use and in training.

What the page computes in closed form is here read off :class:`tfbook.models.TransformerConfig`.
"""

from tfbook.models import PRESETS as CONFIGS
from tfbook.teaching.explorables._base import Explorable, one_of, whole, wrapped
from tfbook.teaching.explorables._sizes import BYTES, described

TITLE = "What does a token cost?"
LONGEST = 131_072
TRAINED = 16  # bytes a parameter: itself, its gradient and what AdamW keeps, either way
CALLED = {
    "gpt2": "GPT-2",
    "gpt2-medium": "GPT-2 medium",
    "gpt2-large": "GPT-2 large",
    "gpt2-xl": "GPT-2 XL",
    "gpt3-175b": "GPT-3",
    "bert-base": "BERT base",
    "llama-7b": "LLaMA 7B",
    "smollm2-135m": "SmolLM2 135M",
}
PRESETS = {name: described(CONFIGS[name], label, "") for name, label in CALLED.items()}
PARTS = {
    "projections": (".q_proj", ".k_proj", ".v_proj", ".out_proj"),
    "feed_forward": (".gate_proj", ".up_proj", ".down_proj"),
    "mixing": (".scores", ".z"),
    "head": ("head",),
}
TABLES = ("embed", "position", "segments")  # looked up: of each only a row is read
STOPS = {
    "length": [1, *(size for p in range(1, 17) for size in (2**p, 3 * 2 ** (p - 1))), LONGEST],
    "batch": [2**p for p in range(11)],
}


def cost_calculator(
    preset: str = "gpt2",
    *,
    length: int = 1024,
    batch: int = 1,
    precision: str = "float16",
) -> Explorable:
    r"""Return a figure of what one token costs: its FLOPs by parts, and the bytes of the model.

    A token that sees $n$ tokens, itself among them, takes $2 p$ FLOPs for each $p$ parameters that
    multiply it and $4 L H d_\text{head} n$ for scores and mixed values; causal attention is counted
    in full, so the mean token of a pass of $n$ costs as much as the one generated last. Both are
    the same where $n$ is the crossover, about $6 d_\text{model}$ with $d_\text{ff} = 4
    d_\text{model}$. To generate, all parameters are read once for a step and each sequence's cache
    once; of a table that is looked up a row is read, which is left out.

    Training keeps 16 bytes a parameter, without activations: in float32 4 each for parameters,
    gradients and AdamW's two averages; in mixed precision 2 for parameters, 2 for gradients, and in
    float32 a copy of the parameters and the averages, 12.

    Args:
        preset: A name in `tfbook.models.PRESETS`, one of "gpt2", "gpt2-medium", "gpt2-large",
            "gpt2-xl", "gpt3-175b", "bert-base", "llama-7b", "smollm2-135m".
        length: Tokens in the context, 1 to 131 072; no preset's limit is kept.
        batch: Sequences that are read or generated at once, 1 to 1024.
        precision: "float32", "float16" or "int8", for the bytes of a number.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if it is out of range.

    Source: [kaplan2020scaling], [pope2023efficiently], [rajbhandari2020zero].
    Explained in: chapters/06_complexity_deeper, section "Sizes of other models".
    """
    checks = {
        "preset": one_of("preset", *PRESETS),
        "length": whole("length", 1, LONGEST),
        "batch": whole("batch", 1, 1024),
        "precision": one_of("precision", *BYTES),
    }
    given = {"preset": preset, "length": length, "batch": batch, "precision": precision}
    state = {name: check(given[name]) for name, check in checks.items()}

    def text(now: dict) -> str:
        found = _results(now)
        share = {key: f"{100 * found[key] / found['flops']:.1f}%" for key in PARTS}
        gib = {key: f"{found[key] / 2**30:,.2f}" for key in found if found[key] is not None}
        decoding = ""
        if found["cache_bytes"] is not None:
            one = now["batch"] == 1
            decoding = f"""For {now["batch"]} sequence{"" if one else "s"} the cache takes
            {gib["cache_bytes"]} GiB. A generated token reads {gib["read_bytes"]} GiB, which makes
            {found["flops_per_byte"]:.3g} FLOPs a byte."""
        return wrapped(f"""{TITLE}

        {PRESETS[now["preset"]]["label"]} has {found["parameters"]:,} parameters. In a context of
        {now["length"]:,} tokens one token takes {found["flops"] / 1e9:,.3f} GFLOP:
        {share["projections"]} for the projections, {share["feed_forward"]} for the feed-forward
        networks, {share["mixing"]} for scores and mixed values, {share["head"]} for the output
        layer. Scores and mixed values take as much as the rest of the layers at
        {found["crossover"]:,.0f} tokens. In {now["precision"]} the parameters take
        {gib["weight_bytes"]} GiB; training keeps {gib["training_bytes"]} GiB, {TRAINED} bytes a
        parameter. {decoding}

        In the page you choose the model, and sliders change the length of the context and the
        number of sequences; bars show the parts of the work, a picture how they grow.""")

    data = {
        "title": TITLE, "presets": {name: _sizes(name) for name in PRESETS}, "stops": STOPS,
        "bytes": BYTES, "trained": TRAINED,
    }  # fmt: skip
    return Explorable(
        "cost_calculator", data=data, state=state, checks=checks, results=_results, text=text
    )


def _sizes(name: str) -> dict:
    """Return what the page counts with."""
    model = dict(PRESETS[name])
    for key in ("act", "place", "shared", "n_buckets"):
        del model[key]
    heads = model["n_heads"]
    return model | {
        "d_head": model["d_model"] // heads, "n_kv_heads": model["n_kv_heads"] or heads,
    }  # fmt: skip


def _results(now: dict) -> dict:
    config, length, batch = CONFIGS[now["preset"]], now["length"], now["batch"]
    rows = config.parts(1)
    work = {
        key: sum(row.flops for row in rows if row.name.endswith(ends))
        for key, ends in PARTS.items()
    }
    layers = work["projections"] + work["feed_forward"]
    crossover = layers / work["mixing"]
    work["mixing"] *= length  # so many keys instead of one
    total = sum(work.values())
    size, parameters = BYTES[now["precision"]], sum(row.parameters for row in rows)
    found = {
        "parameters": parameters, **work, "flops": total, "training_flops": 3 * total,
        "crossover": crossover, "weight_bytes": size * parameters,
        "training_bytes": TRAINED * parameters, "cache_bytes": None, "read_bytes": None,
        "flops_per_byte": None,
    }  # fmt: skip
    if config.kind == "decoder":
        cache = config.kv_cache_bytes(length, batch, size)
        # The head reads a table that it shares with the embedding, which has counted it.
        shared = work["head"] // 2 if PRESETS[now["preset"]]["tied"] else 0
        used = sum(row.parameters for row in rows if row.name not in TABLES) + shared
        read = (size * used + cache) / batch
        found |= {"cache_bytes": cache, "read_bytes": read, "flops_per_byte": total / read}
    return found
